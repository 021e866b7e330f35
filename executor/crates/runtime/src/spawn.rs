//! The only code that starts asynchronous tasks, so that each has an owner that ends it.
//!
//! A task of a session (a connection, a stream, a follower, a delivery) is one of the server's [`SessionTasks`], and
//! ends with the server. A task of a run belongs to the run; runs are drained before the server ends.

use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The tasks of a server's sessions with its peers, not of the sessions of tools. A clone is another handle to the same
/// tasks.
#[derive(Debug, Clone, Default)]
pub struct SessionTasks {
    tracker: TaskTracker,
    cancellation: CancellationToken,
}

impl SessionTasks {
    /// Starts a task. When the server ends, the task is dropped at its next await point, and its handle returns `None`.
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        self.tracker.spawn(self.cancellation.clone().run_until_cancelled_owned(task))
    }

    /// Runs the work of a task that a library has started, such as that of an upgraded connection. The work is counted,
    /// and ends with the other tasks.
    pub async fn adopt<T>(&self, task: impl Future<Output = T>) -> Option<T> {
        self.tracker.track_future(self.cancellation.clone().run_until_cancelled_owned(task)).await
    }

    /// The number of tasks that have not ended.
    #[must_use]
    pub fn count(&self) -> usize {
        self.tracker.len()
    }

    /// Waits for all tasks to end by themselves, and ends those that have not after `timeout`.
    pub async fn finish(&self, timeout: Duration) {
        self.tracker.close();
        let _timed_out = tokio::time::timeout(timeout, self.tracker.wait()).await;
        self.cancellation.cancel();
    }

    /// Ends all tasks, including those that are started later. Returns the number of tasks that still run after
    /// `timeout`.
    pub async fn end(&self, timeout: Duration) -> usize {
        self.tracker.close();
        self.cancellation.cancel();
        // A task that reaches no await point cannot be ended.
        let _timed_out = tokio::time::timeout(timeout, self.tracker.wait()).await;
        self.count()
    }
}

/// Starts a task that ends with its owner: a run, or the processes in which guests run.
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

    const LONG_TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn end_drops_waiting_tasks_and_starts_no_more() {
        let (sender, mut receiver) = tokio::sync::oneshot::channel::<()>();
        let tasks = SessionTasks::default();
        let waiting_task = tasks.spawn(async move {
            let _sender = sender;
            std::future::pending::<()>().await;
        });
        assert_eq!(tasks.spawn(async { 1 }).await.unwrap(), Some(1));
        assert_eq!(tasks.clone().end(LONG_TIMEOUT).await, 0);
        assert_eq!(waiting_task.await.unwrap(), None);
        assert_eq!(receiver.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Closed));
        assert_eq!(tasks.spawn(async { 1 }).await.unwrap(), None);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_task_that_blocks_is_counted_after_the_timeout() {
        let tasks = SessionTasks::default();
        let (release, blocker) = std::sync::mpsc::channel::<()>();
        let (start_sender, start_receiver) = tokio::sync::oneshot::channel();
        let blocking_task = tasks.spawn(async move {
            start_sender.send(()).unwrap();
            let _released = blocker.recv();
        });
        start_receiver.await.unwrap();
        assert_eq!(tasks.end(Duration::from_millis(1)).await, 1);
        drop(release);
        blocking_task.await.unwrap();
        assert_eq!(tasks.end(LONG_TIMEOUT).await, 0);
    }
}
