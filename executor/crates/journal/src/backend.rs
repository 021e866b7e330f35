//! The way of all parts of a journal to its file: queries to the readers, and entries to the writer.

use super::batch::FinishRecord;
use super::error::{BrokenError, NoSpaceError, OpenError};
use super::history::HistoryError;
use super::readers::{IfFull, Readers};
use super::recorded_state::RecordedState;
use super::share::StorageLimits;
use super::store::Reader;
use super::writer::{self, JournalEntry};
use super::{Condition, JournalError, JournalLimits, MAX_INLINE_BYTES};
use a2g_types::error_chain::ErrorChain;
use a2g_types::ident::IntentId;
use a2g_types::outcome::Receipt;
use a2g_types::stored;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use tokio::sync::{oneshot, watch};

/// The readers and the writer of a journal.
pub(super) struct Backend {
    storage: Storage,
    condition: watch::Receiver<Condition>,
    limits: StorageLimits,
    /// Stops the background check and the automatic pruning.
    is_closed: Arc<AtomicBool>,
}

/// Receives each receipt with the number of its record.
type OnFinished = Box<dyn Fn(i64, &FinishRecord) + Send + Sync>;

/// The storage of the journal.
enum Storage {
    /// A file with one writer thread. `reader` answers look-ups of single rows, and `readers` long queries.
    // Dropped in this order: the writer ends once `entries` is dropped, and its connection has to be closed last.
    Disk {
        reader: Mutex<Reader>,
        readers: Readers,
        entries: mpsc::Sender<JournalEntry>,
        /// Reports damage that a reader finds.
        condition_sender: Arc<watch::Sender<Condition>>,
    },
    /// No storage. Counts the entries.
    Memory { count: AtomicI64, on_finished: OnFinished },
}

impl Backend {
    /// Opens the readers of the file at `path`, whose writer receives the entries.
    pub(super) fn open(
        path: &Path,
        entries: mpsc::Sender<JournalEntry>,
        condition_sender: Arc<watch::Sender<Condition>>,
        limits: StorageLimits,
    ) -> Result<Self, OpenError> {
        let condition = condition_sender.subscribe();
        let reader = Mutex::new(Reader::open(path)?);
        let readers = Readers::open(path)?;
        let storage = Storage::Disk { reader, readers, entries, condition_sender };
        Ok(Self { storage, condition, limits, is_closed: Arc::default() })
    }

    /// Answers each entry as if it were written. `on_finished` receives every receipt.
    pub(super) fn in_memory(on_finished: impl Fn(i64, &FinishRecord) + Send + Sync + 'static) -> Self {
        let storage = Storage::Memory { count: AtomicI64::new(1), on_finished: Box::new(on_finished) };
        let condition = watch::channel(Condition::Works).1;
        let limits = StorageLimits::new(JournalLimits::default());
        Self { storage, condition, limits, is_closed: Arc::default() }
    }

    /// Runs a short query on this thread. Without a file, returns the default.
    pub(super) fn read<T: Default>(
        &self,
        query: impl FnOnce(&Reader) -> rusqlite::Result<T>,
    ) -> Result<T, JournalError> {
        let Storage::Disk { reader, .. } = &self.storage else { return Ok(T::default()) };
        let reader = reader.lock();
        query(&reader).map_err(|error| self.report_read_error(error))
    }

    /// Like [`Self::read`], but on a reader thread, for a query that reads many rows or a long row.
    pub(super) async fn read_long<T: Default + Send + 'static>(
        &self,
        if_full: IfFull,
        query: impl FnOnce(&Reader) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, JournalError> {
        let Storage::Disk { readers, .. } = &self.storage else { return Ok(T::default()) };
        readers.query(if_full, query).await?.map_err(|error| self.report_read_error(error))
    }

    /// As [`Self::read_long`]; an unreadable receipt or verdict is an error.
    pub(super) async fn query_history<T: Default + Send + 'static>(
        &self,
        query: impl FnOnce(&Reader) -> Result<T, HistoryError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let Storage::Disk { readers, .. } = &self.storage else { return Ok(T::default()) };
        readers.query(IfFull::Refuse, query).await?.map_err(|error| match error {
            HistoryError::Sqlite(error) => self.report_read_error(error),
            HistoryError::Receipt { .. } | HistoryError::Verdict { .. } => JournalError::unreadable(error),
        })
    }

    /// Maps a read error. If the file is damaged, the whole journal becomes [`Condition::Broken`].
    fn report_read_error(&self, error: rusqlite::Error) -> JournalError {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        // The file is not an intact database.
        let is_damage = matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase));
        let error = BrokenError::from_read(error);
        // Damage stops the server; any other error affects only this query.
        if is_damage && let Storage::Disk { condition_sender, .. } = &self.storage {
            tracing::error!(reason = %ErrorChain(&error), "the journal cannot be read");
            condition_sender.send_replace(Condition::Broken(error.clone()));
        }
        JournalError::Broken(error)
    }

    /// The state of an intent according to its records.
    pub(super) fn recorded_state(&self, intent: IntentId) -> Result<RecordedState, JournalError> {
        self.read(|reader| reader.recorded_state(intent).map(Some))
            .map(|state| state.unwrap_or(RecordedState::Unknown))
    }

    /// The receipt of a record; `None` if it was pruned.
    pub(super) async fn receipt(
        &self,
        record: i64,
        if_full: IfFull,
    ) -> Result<Option<Arc<Receipt>>, JournalError> {
        // The length is read first: the number of readers bounds the number of long receipts in memory.
        let Some(length) = self.read(|reader| reader.body_length(record))? else { return Ok(None) };
        let read = move |reader: &Reader| {
            // Parsed on the reader's thread, because parsing a long receipt would block a worker of the runtime.
            let body = reader.body(record)?;
            Ok(body.map(|body| stored::read_receipt(&body).map(Arc::new)))
        };
        let is_long = length > MAX_INLINE_BYTES as u64;
        let receipt = if is_long { self.read_long(if_full, read).await? } else { self.read(read)? };
        receipt.transpose().map_err(JournalError::unreadable)
    }

    /// Sends an entry to the writer, and returns its pending answer.
    pub(super) fn submit<T>(
        &self,
        entry: impl FnOnce(oneshot::Sender<T>) -> JournalEntry,
    ) -> PendingReply<T> {
        let (reply, answer) = oneshot::channel();
        self.send(entry(reply));
        PendingReply { answer, condition: self.condition.clone() }
    }

    /// Sends an entry to the writer without waiting for an answer. If the writer has ended, so will the process.
    pub(super) fn send(&self, entry: JournalEntry) {
        match &self.storage {
            // The channel is unbounded, so that sending never blocks: callers send decisions under a lock to keep their
            // order.
            Storage::Disk { entries, .. } => drop(entries.send(entry)),
            Storage::Memory { count, on_finished } => {
                writer::answer_in_memory(entry, count.fetch_add(1, Relaxed), on_finished)
            }
        }
    }

    /// The limits on the entries, which their senders keep.
    pub(super) fn limits(&self) -> &StorageLimits {
        &self.limits
    }

    /// The condition of the journal, and its changes.
    pub(super) fn condition(&self) -> &watch::Receiver<Condition> {
        &self.condition
    }

    /// Becomes `true` when the journal is closed.
    pub(super) fn closed_flag(&self) -> &Arc<AtomicBool> {
        &self.is_closed
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // SQLite moves its log into the file when the last connection is closed, and the background check has one.
        self.is_closed.store(true, Relaxed);
    }
}

/// An entry that was sent to the writer.
pub(super) struct PendingReply<T> {
    answer: oneshot::Receiver<T>,
    condition: watch::Receiver<Condition>,
}

impl<T> PendingReply<T> {
    pub(super) async fn wait(self) -> Result<T, JournalError> {
        match self.answer.await {
            Ok(answer) => Ok(answer),
            Err(_dropped) => Err(JournalError::Broken(wait_until_broken(self.condition).await)),
        }
    }
}

impl<T> PendingReply<Result<T, NoSpaceError>> {
    /// As [`Self::wait`], of an entry that a full disk refuses.
    pub(super) async fn wait_unless_full(self) -> Result<T, JournalError> {
        self.wait().await?.map_err(|_no_space| JournalError::NoSpace)
    }
}

/// Waits until the journal is broken. The writer may report the reason only after it has dropped its entries.
pub(super) async fn wait_until_broken(mut condition: watch::Receiver<Condition>) -> BrokenError {
    let broken = condition.wait_for(|condition| matches!(condition, Condition::Broken(_))).await;
    match broken.as_deref() {
        Ok(Condition::Broken(error)) => error.clone(),
        Ok(Condition::Works | Condition::Full) | Err(_) => "the journal's writer has ended".into(),
    }
}
