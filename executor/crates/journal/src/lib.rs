//! The history of each intent, and the reports that the governor does not have yet: on disk, so that a crash loses
//! nothing and repeats nothing.
//!
//! ```text
//! claim (in memory) ─▶ started (on disk, before the guest begins) ─▶ finished (receipt and outbox
//!   │                       └─▶ released: refused before it began       in one transaction)
//!   ├─ same content: the receipt of the one run, now or as soon as it exists
//!   └─ other content: conflict
//! ```
//! An intent that has started and not finished when the journal is opened gets the receipt that was stored with its
//! start: `ABORTED`. It is never started again. Only open intents are held in memory.
//!
//! Every promise is in one chain of *records* (`record`), which is append-only; the other tables follow from it and are
//! compared with it (`verify`).

mod batch;
pub mod chain;
mod check;
mod claims;
mod copy;
mod decisions;
mod error;
mod files;
mod finding;
mod format2;
pub mod history;
mod log;
mod outbox;
mod prune;
mod readers;
mod record;
mod recorded_state;
mod replay;
mod store;
mod tables;
mod tasks;
pub mod verify;
mod writer;

pub use batch::HoldResult;
pub use claims::{ClaimResult, IntentSummary, KnownIntent, Stage, StageSource, StartRequest, StartResult};
pub use copy::{CopyError, JournalCopy, RestoredJournal, back_up, init, restore};
pub use decisions::{Approval, HeldIntent, IntentDenial, Resolution, ResolvedIntent};
pub use error::{BrokenError, OpenError, ReplacedError};
pub use files::IfMissing;
pub use finding::NounCount;
pub use outbox::DueReport;
pub use prune::{PruneError, PruneSummary, prune};
pub use readers::IfFull;
pub use store::JournalOptions;
pub use tasks::{JournalTask, MAX_TASK_BYTES, MAX_TASKS, RetryPolicy, TaskKey, TaskQuery, TaskSummary};

use a2g_metrics::JournalMetrics;
use a2g_types::durability::Durability;
use a2g_types::error_chain::{BoxedError, ErrorChain};
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::outcome::Receipt;
use a2g_types::stored;
use batch::FinishRecord;
use chain::Head;
use claims::{OpenIntent, OpenIntents, close_intent};
use error::WriteError;
use outbox::Outbox;
use parking_lot::{Mutex, MutexGuard};
use readers::Readers;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use store::{InterruptedRun, Reader, Store, Undelivered};
use time::OffsetDateTime;
use tokio::sync::{oneshot, watch};
use writer::JournalEntry;

/// Receipts and tasks up to this many bytes of JSON are read and written in place; longer ones would block other work.
// A look-up reads a few pages that are mostly in memory, in less time than a thread takes to wake up.
const MAX_INLINE_BYTES: usize = 256 << 10;

/// The reason for which an entry was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// Too many reports wait for the governor.
    #[error("too many reports wait for the governor, which does not acknowledge them")]
    Backlog,
    /// There is no room, or the file is locked; a later attempt may succeed. The system's error is for the log.
    #[error("the journal has no room for another run on its disk, or another program holds its file")]
    NoRoom,
    /// Too many long queries wait to be read, or the memory budget is used up.
    #[error(
        "too many lists and long receipts wait to be read from the journal, or the memory budget is used up"
    )]
    Busy,
    /// The content of the disk is not known. The process has to end.
    #[error("the journal is broken")]
    Broken(#[source] BrokenError),
}

/// The condition of the journal.
#[derive(Debug, Clone)]
pub enum Condition {
    /// It can be written.
    Works,
    /// There is no room for it, or another program holds its file.
    Full,
    /// It cannot be written again in this process.
    Broken(BrokenError),
}

/// The result of the recovery when the journal was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoverySummary {
    /// Interrupted runs, which are `ABORTED` now.
    pub aborted: usize,
    /// Reports that still go to the governor, including those of the interrupted runs.
    pub undelivered: usize,
}

/// The journal.
pub struct Journal {
    open: OpenIntents,
    backend: JournalBackend,
    outbox: Arc<Outbox>,
    max_undelivered: usize,
    durability: Durability,
    head: watch::Receiver<Head>,
    condition: watch::Receiver<Condition>,
    /// The sender by which a reader reports damage, for a journal in a file.
    condition_sender: Option<Arc<watch::Sender<Condition>>>,
    waiting: Mutex<Vec<HeldIntent>>,
    metrics: JournalMetrics,
    /// Ends the check in the background.
    is_closed: Arc<AtomicBool>,
}

/// The storage of the journal.
enum JournalBackend {
    /// A file, which one thread writes. The connection `reader` answers point look-ups.
    Disk { path: PathBuf, reader: Mutex<Reader>, readers: Readers, entries: mpsc::Sender<JournalEntry> },
    /// No storage; the number of entries that were sent to the writer.
    Memory(AtomicI64),
}

impl Journal {
    /// Opens or makes the journal at `path`, checks its end, and writes the receipts of interrupted runs. Admits
    /// nothing while `max_undelivered` reports wait. The rest of the journal is checked in the background.
    ///
    /// # Ambient Authority
    /// Makes the file, its folder and a marker beside it, for this user alone.
    ///
    /// # Errors
    /// [`OpenError`] if the journal is in use, is no journal, is damaged or gone, or cannot be read or written.
    pub fn open(
        path: &Path,
        max_undelivered: usize,
        options: JournalOptions,
        now: OffsetDateTime,
    ) -> Result<(Self, RecoverySummary), OpenError> {
        let from_sqlite = OpenError::from_sqlite(path);
        let failed = |error: BoxedError| OpenError::other(path, error);
        let mut store = Store::open(path, options)?;
        // Recovery comes before every claim: a look-up of an interrupted intent relies on its receipt
        // (`Self::final_stage`).
        let (aborted, unwritten) = recover(&mut store, to_micros(now)).map_err(failed)?;
        // The reports are read after the recovery, because its receipts are among them.
        let undelivered = store.undelivered_reports().map_err(&from_sqlite)?.into_iter();
        let undelivered = undelivered.map(|Undelivered { receipt, run, agent }| {
            AgentDid::parse(&agent).map(|agent| (receipt, run, agent))
        });
        let undelivered = undelivered.collect::<Result<Vec<_>, a2g_types::ident::IdentError>>();
        let undelivered = undelivered.map_err(|error| failed(error.into()))?;
        let recovered = RecoverySummary { aborted, undelivered: undelivered.len() + unwritten.len() };
        let held = store.held_intents().map_err(&from_sqlite)?;
        let (entries, to_write) = mpsc::channel();
        // The store comes first: it makes, locks, converts and checks the file that the readers open.
        let (reader, readers) = (Mutex::new(Reader::open(path)?), Readers::open(path)?);
        let backend = JournalBackend::Disk { path: path.to_owned(), reader, readers, entries };
        let (head_sender, head) = watch::channel(store.head());
        let (condition_sender, condition) = watch::channel(Condition::Works);
        let condition_sender = Arc::new(condition_sender);
        let journal = Self {
            open: OpenIntents::default(),
            backend,
            outbox: Arc::new(Outbox::new(undelivered)),
            max_undelivered,
            durability: options.durability,
            head,
            condition,
            condition_sender: Some(Arc::clone(&condition_sender)),
            waiting: Mutex::new(held),
            metrics: JournalMetrics::new(options.durability),
            is_closed: Arc::default(),
        };
        let unwritten = journal.reopen(unwritten);
        let writer = writer::Writer {
            store,
            head: head_sender,
            condition: Arc::clone(&condition_sender),
            metrics: journal.metrics.clone(),
        };
        let on_finished = journal.on_finished();
        // A thread and not a task: the thread that waits for the fsync would be the one that watches all sockets and
        // timers, and behind one refused call `/health` would take as long as the fsync.
        spawn_thread("journal", move || writer.run(&to_write, unwritten, on_finished))
            .map_err(|error| failed(error.into()))?;
        let (file, is_closed) = (path.to_owned(), Arc::clone(&journal.is_closed));
        spawn_thread("journal check", move || {
            check::check_in_background(&file, &is_closed, &condition_sender)
        })
        .map_err(|error| failed(error.into()))?;
        Ok((journal, recovered))
    }

    /// A journal that holds the open intents and stores no finished ones: for a single call that is not queried later.
    #[must_use]
    pub fn in_memory() -> Self {
        Self {
            open: OpenIntents::default(),
            // `run` takes the pipeline of `serve`, but no caller can ask about its one call later, so a file would
            // serve nobody.
            backend: JournalBackend::Memory(AtomicI64::new(1)),
            outbox: Arc::new(Outbox::new([])),
            max_undelivered: usize::MAX,
            durability: Durability::default(),
            head: watch::channel(Head::START).1,
            condition: watch::channel(Condition::Works).1,
            condition_sender: None,
            waiting: Mutex::default(),
            metrics: JournalMetrics::new(Durability::default()),
            is_closed: Arc::default(),
        }
    }

    /// The action on a finished run once its receipt has a number.
    fn on_finished(&self) -> impl Fn(i64, &FinishRecord) + Send + use<> {
        let (open, outbox) = (Arc::clone(&self.open), Arc::clone(&self.outbox));
        move |number, finish| {
            // The outbox counts the run before the open intents stop counting it, so that `claim` never admits one run
            // too many.
            outbox.push(number, finish.run, &finish.receipt);
            close_intent(&open, finish.receipt.intent, Stage::Finished(Arc::clone(&finish.receipt)));
        }
    }

    /// Entries for the receipts of interrupted runs for which there is no room yet. Until they are written, the runs
    /// count as running.
    fn reopen(&self, unwritten: Vec<(FinishRecord, [u8; 32])>) -> Vec<JournalEntry> {
        let entries = unwritten.into_iter().map(|(finish, content)| {
            // The open entry answers repeats until the receipt is on the disk: the records alone would read as a
            // contradiction.
            self.lock().insert(finish.receipt.intent, OpenIntent::from_earlier_process(&finish, content));
            // The caller of this run was lost with the earlier process.
            JournalEntry::Finish(Box::new(finish), oneshot::channel().0)
        });
        entries.collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IntentId, OpenIntent>> {
        self.open.lock()
    }

    /// Looks up one row on the disk, on this thread. Without a disk, returns the default.
    fn read<T: Default>(
        &self,
        query: impl FnOnce(&Reader) -> rusqlite::Result<T>,
    ) -> Result<T, JournalError> {
        let JournalBackend::Disk { reader, .. } = &self.backend else { return Ok(T::default()) };
        let reader = reader.lock();
        query(&reader).map_err(|error| self.report_read_error(error))
    }

    /// As [`Self::read`], on a thread of its own: for a query that reads many rows or a long one.
    async fn read_long<T: Default + Send + 'static>(
        &self,
        if_full: IfFull,
        query: impl FnOnce(&Reader) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, JournalError> {
        let JournalBackend::Disk { readers, .. } = &self.backend else { return Ok(T::default()) };
        readers.query(if_full, query).await?.map_err(|error| self.report_read_error(error))
    }

    /// Breaks the journal if the file is damaged, for every connection that reads it.
    fn report_read_error(&self, error: rusqlite::Error) -> JournalError {
        let is_damage = is_damage(&error);
        let error = BrokenError::from_read(error);
        // Damage stops the server, whoever finds it; any other error concerns this query alone.
        if let (true, Some(condition_sender)) = (is_damage, &self.condition_sender) {
            tracing::error!(reason = %ErrorChain(&error), "the journal cannot be read");
            condition_sender.send_replace(Condition::Broken(error.clone()));
        }
        JournalError::Broken(error)
    }

    /// Sends an entry to the writer. The result awaits its answer.
    fn submit<T>(&self, entry: impl FnOnce(oneshot::Sender<T>) -> JournalEntry) -> PendingReply<T> {
        let (reply, answer) = oneshot::channel();
        self.send(entry(reply));
        PendingReply { answer, condition: self.condition.clone() }
    }

    /// Sends an entry to the writer, and waits for its answer.
    async fn request<T>(
        &self,
        entry: impl FnOnce(oneshot::Sender<T>) -> JournalEntry,
    ) -> Result<T, JournalError> {
        self.submit(entry).wait().await
    }

    /// Sends an entry to the writer without an answer. If the writer is gone, the process is about to end.
    fn send(&self, entry: JournalEntry) {
        match &self.backend {
            // The channel is unbounded, so that decisions can be sent under their caller's lock, which keeps their
            // order.
            JournalBackend::Disk { entries, .. } => drop(entries.send(entry)),
            JournalBackend::Memory(count) => {
                writer::answer_in_memory(entry, count.fetch_add(1, Relaxed), &self.on_finished())
            }
        }
    }

    /// The receipt of a record; `None` if it was pruned.
    async fn receipt(&self, record: i64, if_full: IfFull) -> Result<Option<Arc<Receipt>>, JournalError> {
        // The length is read first: long receipts come into memory only as many at a time as there are readers.
        let Some(length) = self.read(|reader| reader.body_length(record))? else { return Ok(None) };
        let read = move |reader: &Reader| {
            // The text is parsed on the same thread, because parsing a long receipt would block a worker of the runtime
            // as well.
            let body = reader.body(record)?;
            Ok(body.map(|body| stored::read_receipt(&body).map(Arc::new)))
        };
        let is_long = length > MAX_INLINE_BYTES as u64;
        let receipt = if is_long { self.read_long(if_full, read).await? } else { self.read(read)? };
        receipt.transpose().map_err(|error| JournalError::Broken(BrokenError::from_read(error)))
    }

    /// Waits for the next report to deliver, and returns it with its receipt.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub async fn next_report(&self) -> Result<(DueReport, Arc<Receipt>), JournalError> {
        let mut due = self.outbox.next().await;
        let receipt = match due.cached.take() {
            Some(receipt) => receipt,
            None => {
                // Pruning stops at the first run in `open`, so the receipt of an undelivered report can only be lost by
                // damage.
                let gone = || JournalError::Broken("a report is gone that was not delivered".into());
                // The delivery waits for room in the queue: unlike a caller, it cannot be told to come again.
                self.receipt(due.record, IfFull::Wait).await?.ok_or_else(gone)?
            }
        };
        Ok((due, receipt))
    }

    /// Records that the governor has a report.
    pub fn mark_delivered(&self, due: &DueReport) {
        // The entry is sent first: a server that stops waits for an empty outbox, and must not end before the entry
        // exists.
        self.send(JournalEntry::Delivered(due.run, due.record));
        self.outbox.mark_delivered(due);
    }

    /// Records that the governor refused a report, or could not be reached. After a pause, the caller passes it to
    /// [`Self::requeue`].
    #[must_use]
    pub fn mark_failed(&self, due: DueReport, refused: bool) -> DueReport {
        self.outbox.mark_failed(due, refused)
    }

    /// Queues a report for another attempt.
    pub fn requeue(&self, due: DueReport) {
        self.outbox.requeue(due);
    }

    /// The number of reports that the governor does not have yet.
    #[must_use]
    pub fn undelivered_count(&self) -> usize {
        self.outbox.undelivered_count()
    }

    /// The time at which the oldest run ended whose report the governor does not have yet.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub async fn oldest_undelivered_at(&self) -> Result<Option<OffsetDateTime>, JournalError> {
        // A report that was delivered just now may still be undelivered on the disk.
        if self.undelivered_count() == 0 {
            return Ok(None);
        }
        let oldest = self.read_long(IfFull::Wait, Reader::oldest_undelivered_at).await?;
        Ok(oldest.map(from_micros))
    }

    /// The size of the journal's files, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let JournalBackend::Disk { path, .. } = &self.backend else { return 0 };
        files::data_files(path).iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum()
    }

    /// The event that a commit waits for.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// The metrics of the journal.
    #[must_use]
    pub fn metrics(&self) -> &JournalMetrics {
        &self.metrics
    }

    /// Waits until the governor has every report.
    pub async fn wait_until_delivered(&self) {
        self.outbox.wait_until_delivered().await;
    }

    /// The checkpoint of the latest receipt.
    #[must_use]
    pub fn head(&self) -> Head {
        *self.head.borrow()
    }

    /// Waits until every earlier entry is on the disk.
    ///
    /// # Errors
    /// [`JournalError::Broken`].
    pub async fn flush(&self) -> Result<(), JournalError> {
        self.request(JournalEntry::Flush).await
    }

    /// The current condition of the journal.
    #[must_use]
    pub fn condition(&self) -> Condition {
        self.condition.borrow().clone()
    }

    /// Waits until the journal breaks, and returns the reason. The process has to end then.
    pub async fn wait_until_broken(&self) -> BrokenError {
        wait_until_broken(self.condition.clone()).await
    }
}

/// Waits until the journal breaks. The writer announces it shortly after it has dropped its entries.
async fn wait_until_broken(mut condition: watch::Receiver<Condition>) -> BrokenError {
    let broken = condition.wait_for(|condition| matches!(condition, Condition::Broken(_))).await;
    match broken.as_deref() {
        Ok(Condition::Broken(error)) => error.clone(),
        Ok(Condition::Works | Condition::Full) | Err(_) => "its writer is gone".into(),
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // The check holds a connection, and SQLite moves its log into the file only when the last one is closed.
        self.is_closed.store(true, Relaxed);
    }
}

/// An entry that was sent to the writer.
struct PendingReply<T> {
    answer: oneshot::Receiver<T>,
    condition: watch::Receiver<Condition>,
}

impl<T> PendingReply<T> {
    async fn wait(self) -> Result<T, JournalError> {
        match self.answer.await {
            Ok(answer) => Ok(answer),
            Err(_gone) => Err(JournalError::Broken(wait_until_broken(self.condition).await)),
        }
    }
}

/// Receipts to be written for interrupted runs, with the content of their intents.
type UnwrittenReceipts = Vec<(FinishRecord, [u8; 32])>;

/// Writes a receipt and the task for each interrupted run. Returns the number of such runs, and the receipts for which
/// there is no room.
fn recover(store: &mut Store, now: i64) -> Result<(usize, UnwrittenReceipts), BoxedError> {
    let runs = store.interrupted_runs()?;
    if runs.is_empty() {
        return Ok((0, Vec::new()));
    }
    let finish = |InterruptedRun { run, receipt: body, task, content }| {
        let receipt = Arc::new(stored::read_receipt(body.as_bytes())?);
        let task = task.map(|task| JournalTask::from_text(&task)).transpose()?;
        Ok((FinishRecord { run, receipt, body: body.into(), task, ended: now }, content))
    };
    let finishes = runs.into_iter().map(finish).collect::<serde_json::Result<Vec<_>>>()?;
    let aborted = finishes.len();
    let written =
        // One transaction for all runs: a process that is killed here leaves each of them as it found it.
        store.commit(now, |batch| finishes.iter().try_for_each(|(finish, _)| batch.finish(finish).map(drop)));
    match written {
        Ok(()) => Ok((aborted, Vec::new())),
        // A start on a full disk serves: it answers what is known, and writes these receipts when there is room.
        Err(WriteError::NoRoom(_no_room)) => Ok((aborted, finishes)),
        Err(WriteError::Broken(error)) => Err(error.into()),
    }
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// Runs a JSON conversion, on another thread if it is long.
async fn spawn_blocking_if_large<T: Send + 'static>(
    long: bool,
    work: impl FnOnce() -> serde_json::Result<T> + Send + 'static,
) -> Result<T, JournalError> {
    let broken = |error: BoxedError| JournalError::Broken(BrokenError::from_read(error));
    let done = if long {
        tokio::task::spawn_blocking(work).await.map_err(|error| broken(error.into()))?
    } else {
        work()
    };
    done.map_err(|error| broken(error.into()))
}

/// `true` if the error means that the file is not an intact database.
fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
}

/// The text for a row, or the error of a value without a JSON form.
fn to_row_text(written: serde_json::Result<String>) -> Result<String, JournalError> {
    written.map_err(|error| JournalError::Broken(BrokenError::Record(error.into())))
}

/// Microseconds since 1970.
fn to_micros(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}

fn from_micros(micros: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
