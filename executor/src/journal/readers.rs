//! The threads that answer long questions about the journal: lists, counts, and long receipts and tasks.
//!
//! Each thread has a read-only connection of its own, so that a long question holds up neither the runtime's workers nor
//! the connection that answers point look-ups. The queue is bounded: a caller that finds it full comes again.

use super::error::OpenError;
use super::store::Reader;
use super::{JournalError, spawn};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

/// The number of threads, and so of long receipts that are brought into memory at once.
const READERS: usize = 2;
/// The number of questions that may wait for a thread.
pub(super) const MAX_QUEUED: usize = 128;

/// The action of a question that finds the queue full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfFull {
    /// It is refused: its caller can come again.
    Refuse,
    /// It waits: the server itself asks.
    Wait,
}

type Question = Box<dyn FnOnce(&Reader) + Send>;

/// The sending side of the queue, and the threads.
pub(super) struct Readers {
    /// `None` at the end.
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

    /// Has a thread answer a question, and waits for the answer.
    ///
    /// # Errors
    /// [`JournalError::Busy`] when the queue is full, [`JournalError::Broken`] when the threads are gone.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        if_full: IfFull,
        question: impl FnOnce(&Reader) -> T + Send + 'static,
    ) -> Result<T, JournalError> {
        let gone = || JournalError::Broken("its readers are gone".into());
        let (reply, answer) = oneshot::channel();
        let question: Question = Box::new(move |reader| {
            // A caller that went away while its question was queued costs no read.
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

/// Answers questions until no more can be asked.
fn answer_all(reader: &Reader, waiting: &Mutex<mpsc::Receiver<Question>>) {
    loop {
        // One thread waits in the queue, and the other one for this lock.
        let question = waiting.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        let Some(question) = question else { return };
        question(reader);
    }
}
