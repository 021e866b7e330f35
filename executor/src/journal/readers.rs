//! The threads that answer long queries of the journal: lists, counts, and long receipts and tasks.
//!
//! Each thread has a read-only connection of its own, so that a long query holds up neither the runtime's workers nor
//! the connection that answers point look-ups. The queue is bounded: a caller that finds it full retries later.

use super::error::OpenError;
use super::store::Reader;
use super::{JournalError, spawn};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

/// The number of threads, and so of long receipts that are loaded at once.
const READERS: usize = 2;
/// The maximum number of queries that wait for a thread.
pub(super) const MAX_QUEUED: usize = 128;

/// The action of a query that finds the queue full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfFull {
    /// The query is refused: its caller can retry.
    Refuse,
    /// The query waits: the server itself asks.
    Wait,
}

type Question = Box<dyn FnOnce(&Reader) + Send>;

/// The sending side of the queue, and the threads.
pub(super) struct Readers {
    /// `None` during the drop.
    questions: Option<mpsc::Sender<Question>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts the threads for the journal at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let (questions, waiting) = mpsc::channel(MAX_QUEUED);
        let waiting = Arc::new(Mutex::new(waiting));
        let mut readers = Self { questions: Some(questions), threads: Vec::new() };
        for _ in 0..READERS {
            let (reader, waiting) = (Reader::open(path)?, Arc::clone(&waiting));
            let thread = spawn("journal reader", move || answer_all(&reader, &waiting));
            readers.threads.push(thread.map_err(|error| OpenError::failed(path, error))?);
        }
        Ok(readers)
    }

    /// Runs a query on one of the threads, and waits for its result.
    ///
    /// # Errors
    /// [`JournalError::Busy`] if the queue is full, [`JournalError::Broken`] if the threads are gone.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        if_full: IfFull,
        question: impl FnOnce(&Reader) -> T + Send + 'static,
    ) -> Result<T, JournalError> {
        let gone = || JournalError::Broken("its readers are gone".into());
        let (reply, answer) = oneshot::channel();
        let question: Question = Box::new(move |reader| {
            // A caller that left while its query was queued costs no read.
            if !reply.is_closed() {
                let _nobody_waits = reply.send(question(reader));
            }
        });
        let questions = self.questions.as_ref().ok_or_else(gone)?;
        match if_full {
            IfFull::Refuse => questions.try_send(question).map_err(|refused| match refused {
                TrySendError::Full(_) => JournalError::Busy,
                TrySendError::Closed(_) => gone(),
            })?,
            IfFull::Wait => questions.send(question).await.map_err(|_closed| gone())?,
        }
        answer.await.map_err(|_dropped| gone())
    }
}

impl Drop for Readers {
    /// Waits until the connections are closed: SQLite moves its log into the file, and removes it, only when the last
    /// connection of a journal is closed, which is the writer's.
    fn drop(&mut self) {
        self.questions = None;
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}

/// Answers queries until the queue is closed.
fn answer_all(reader: &Reader, waiting: &Mutex<mpsc::Receiver<Question>>) {
    loop {
        // One thread waits for the queue, and the other one for this lock.
        let question = waiting.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        let Some(question) = question else { return };
        question(reader);
    }
}
