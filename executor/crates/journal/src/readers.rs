//! The threads that answer long queries of the journal: lists, counts, and long receipts and tasks.
//!
//! Each thread has a read-only connection of its own, so that a long query holds up neither the runtime's workers nor
//! the connection that answers point look-ups. The queue is bounded, and so is the memory: a caller that finds either
//! full retries later.

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

/// The number of threads, and so of long receipts that are read at once.
pub(super) const READERS: usize = 2;
/// The maximum number of queries that wait for a thread.
pub(super) const MAX_QUEUED: usize = 128;

/// The action of a query that finds the queue full or the memory budget used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfFull {
    /// The query is refused: its caller can retry.
    Refuse,
    /// The query waits for the queue, and is not limited by the budget: the server's own work has nobody to retry it.
    Wait,
}

type Query = Box<dyn FnOnce(&Reader) + Send>;

/// The sending side of the queue, and the threads.
pub(super) struct Readers {
    /// `None` during the drop.
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
            let (reader, queue) = (Reader::open(path)?, Arc::clone(&queue));
            let thread = spawn_thread("journal reader", move || answer_all(&reader, &queue));
            readers.threads.push(thread.map_err(|error| OpenError::other(path, error))?);
        }
        Ok(readers)
    }

    /// Runs a query on one of the threads, and waits for its result.
    ///
    /// # Errors
    /// [`JournalError::Busy`] if the queue is full or the memory budget is used up, [`JournalError::Broken`] if the
    /// threads are gone.
    pub(super) async fn query<T: Send + 'static>(
        &self,
        if_full: IfFull,
        query: impl FnOnce(&Reader) -> T + Send + 'static,
    ) -> Result<T, JournalError> {
        let gone = || JournalError::Broken("its readers are gone".into());
        let (reply, answer) = oneshot::channel();
        let query: Query = Box::new(move |reader| {
            // A caller that left while its query was queued costs no read.
            if reply.is_closed() {
                return;
            }
            // Checked here and not when the query is queued: the results of the queries before it are in memory until
            // their callers take them.
            let has_room = if_full == IfFull::Wait || memory::has_room(0);
            let _no_waiter = reply.send(if has_room { Ok(query(reader)) } else { Err(JournalError::Busy) });
        });
        let queries = self.queries.as_ref().ok_or_else(gone)?;
        match if_full {
            IfFull::Refuse => queries.try_send(query).map_err(|refused| match refused {
                TrySendError::Full(_) => JournalError::Busy,
                TrySendError::Closed(_) => gone(),
            })?,
            IfFull::Wait => queries.send(query).await.map_err(|_closed| gone())?,
        }
        answer.await.map_err(|_dropped| gone())?
    }
}

impl Drop for Readers {
    /// Waits until the connections are closed: SQLite moves its log into the file, and removes it, only when the last
    /// connection of a journal is closed, which is the writer's.
    fn drop(&mut self) {
        self.queries = None;
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}

/// Answers queries until the queue is closed.
fn answer_all(reader: &Reader, queue: &Mutex<mpsc::Receiver<Query>>) {
    loop {
        // One thread waits for the queue, and the other one for this lock.
        let query = queue.lock().blocking_recv();
        let Some(query) = query else { return };
        query(reader);
    }
}
