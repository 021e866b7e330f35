//! The only code that starts asynchronous tasks, so that each has an owner that ends it.
//!
//! A task of a session (a connection, a stream, a follower, a delivery) is one of the server's [`SessionTasks`], and ends
//! with the server. A task of a run belongs to the run, which is drained before that.

use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The tasks of a server's sessions. A clone is another handle to the same tasks.
#[derive(Debug, Clone, Default)]
pub struct SessionTasks {
    tracker: TaskTracker,
    ending: CancellationToken,
}

impl SessionTasks {
    /// Starts a task. When the server ends, the task is dropped at its next await point, and its handle returns `None`.
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        self.tracker.spawn(self.ending.clone().run_until_cancelled_owned(task))
    }

    /// Adds a task that a library has started, such as that of an upgraded connection. It ends with the others.
    pub async fn adopt<T>(&self, task: impl Future<Output = T>) -> Option<T> {
        self.tracker.track_future(self.ending.clone().run_until_cancelled_owned(task)).await
    }

    /// The number of tasks that have not ended.
    #[must_use]
    pub fn count(&self) -> usize {
        self.tracker.len()
    }

    /// Ends all tasks, including those that are started later. Returns the number of tasks that still run after
    /// `limit`.
    pub async fn end(&self, limit: Duration) -> usize {
        self.tracker.close();
        self.ending.cancel();
        // A task that never waits cannot be ended.
        let _some_are_left = tokio::time::timeout(limit, self.tracker.wait()).await;
        self.count()
    }
}

/// Starts a task of a run, or of the processes in which guests run, which ends with its owner.
#[allow(
    clippy::disallowed_methods,
    reason = "a run is drained by its slot and a zygote reaped by its controller"
)]
pub fn spawn_run_task<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(task)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn the_end_drops_what_waits_and_starts_nothing_more() {
        let (held, mut dropped) = tokio::sync::oneshot::channel::<()>();
        let tasks = SessionTasks::default();
        let waits = tasks.spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        assert_eq!(tasks.spawn(async { 1 }).await.unwrap(), Some(1));
        assert_eq!(tasks.clone().end(LONG).await, 0);
        assert_eq!(waits.await.unwrap(), None);
        assert!(
            dropped.try_recv().is_err_and(|error| error == tokio::sync::oneshot::error::TryRecvError::Closed)
        );
        assert_eq!(tasks.spawn(async { 1 }).await.unwrap(), None);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_task_that_does_not_wait_is_counted_as_left() {
        let tasks = SessionTasks::default();
        let (go_on, blocked) = std::sync::mpsc::channel::<()>();
        let (begins, begun) = tokio::sync::oneshot::channel();
        let blocks = tasks.spawn(async move {
            begins.send(()).unwrap();
            let _released = blocked.recv();
        });
        begun.await.unwrap();
        assert_eq!(tasks.end(Duration::from_millis(1)).await, 1);
        drop(go_on);
        blocks.await.unwrap();
        assert_eq!(tasks.end(LONG).await, 0);
    }
}
