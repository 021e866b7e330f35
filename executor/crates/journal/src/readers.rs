//! The threads that run long queries of the journal: lists, counts, and long receipts and tasks.
//!
//! Each thread has its own read-only connection, so that a long query blocks neither the runtime's workers nor look-ups
//! of single rows. The queue and the memory are bounded: a caller that finds either exhausted has to retry later.

use super::error::OpenError;
use super::store::Reader;
use super::{JournalError, spawn_thread};
use a2g_types::memory;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

/// The number of threads, and so of long receipts that are read at the same time.
pub(super) const READERS: usize = 2;
/// The maximum number of queries that wait for a thread.
pub(super) const MAX_QUEUED: usize = 128;

/// The treatment of a query when the queue is full or the memory budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfFull {
    /// The query is refused: its caller can retry.
    Refuse,
    /// The query waits for the queue and ignores the memory budget: for the server's own work, which no caller retries.
    Wait,
}

type Query = Box<dyn FnOnce(&Reader) + Send>;

/// The queue and the threads.
pub(super) struct Readers {
    /// `None` once `drop` has closed the queue.
    queries: Option<mpsc::Sender<Query>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts the threads for the journal at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let (queries, queue) = mpsc::channel(MAX_QUEUED);
        let queue = Arc::new(Mutex::new(queue));
        let mut readers = Self { queries: Some(queries), threads: Vec::new() };
        for _ in 0..READERS {
            let reader = Reader::open(path)?;
            let queue = Arc::clone(&queue);
            let thread = spawn_thread("journal reader", move || run_queries(&reader, &queue));
            readers.threads.push(thread.map_err(|error| OpenError::other(path, error))?);
        }
        Ok(readers)
    }

    /// Runs a query on one of the threads, and waits for its result.
    ///
    /// # Errors
    /// [`JournalError::Busy`] if the queue is full or the memory budget is used up, [`JournalError::Broken`] if the
    /// threads have ended.
    pub(super) async fn query<T: Send + 'static>(
        &self,
        if_full: IfFull,
        query: impl FnOnce(&Reader) -> T + Send + 'static,
    ) -> Result<T, JournalError> {
        let ended = || JournalError::Broken("the journal's readers have ended".into());
        let (reply, answer) = oneshot::channel();
        let query: Query = Box::new(move |reader| {
            if reply.is_closed() {
                return;
            }
            // Checked here and not when the query is queued, because the results of earlier queries are in memory by
            // now.
            let has_memory = if_full == IfFull::Wait || memory::has_room(0);
            let _no_waiter = reply.send(if has_memory { Ok(query(reader)) } else { Err(JournalError::Busy) });
        });
        let queries = self.queries.as_ref().ok_or_else(ended)?;
        match if_full {
            IfFull::Refuse => queries.try_send(query).map_err(|error| match error {
                TrySendError::Full(_) => JournalError::Busy,
                TrySendError::Closed(_) => ended(),
            })?,
            IfFull::Wait => queries.send(query).await.map_err(|_closed| ended())?,
        }
        answer.await.map_err(|_dropped| ended())?
    }
}

impl Drop for Readers {
    /// Waits until the connections are closed. The writer's connection has to be closed last: SQLite then moves its log
    /// into the file and removes the log.
    fn drop(&mut self) {
        self.queries = None;
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}

/// Runs queries until the queue is closed.
fn run_queries(reader: &Reader, queue: &Mutex<mpsc::Receiver<Query>>) {
    loop {
        // One thread waits for the queue, and the others for this lock.
        let query = queue.lock().blocking_recv();
        let Some(query) = query else { return };
        query(reader);
    }
}
