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
mod standing;
mod state;
mod store;
mod tables;
mod tasks;
pub mod verify;
mod writer;

pub use batch::Waits;
pub use claims::{Asked, Beginning, Claim, Followed, Intended, Known, Stage};
pub use copy::{Copied, CopyError, Restored, back_up, init, restore};
pub use decisions::{Approval, Denial, HeldIntent, Resolution, Resolved};
pub use error::{BrokenError, OpenError, ReplacedError};
pub use files::IfMissing;
pub(crate) use finding::Counted;
pub use outbox::Due;
pub use prune::{PruneError, Pruned, prune};
pub use readers::IfFull;
pub use store::Opening;
pub use tasks::{KeptTask, ListedTask, MAX_TASK_BYTES, MAX_TASKS, Pace, TaskKey, TaskQuery};

use crate::durability::Durability;
use crate::error_chain::{BoxedError, ErrorChain};
use crate::ident::{AgentDid, IntentId};
use crate::metrics::JournalMetrics;
use crate::outcome::Receipt;
use crate::stored;
use batch::Finish;
use chain::Head;
use claims::{AllOpen, Open, close};
use error::WriteError;
use outbox::Outbox;
use readers::Readers;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use store::{Reader, Store, Undelivered, Will};
use time::OffsetDateTime;
use tokio::sync::{oneshot, watch};
use writer::Entry;

/// Receipts and tasks up to this many bytes of JSON are read and written in place; longer ones would block other work.
const AT_ONCE_BYTES: usize = 256 << 10;

/// The reason for which an entry was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// Too many reports wait for the governor.
    #[error("too many reports wait for the governor, which does not acknowledge them")]
    Backlog,
    /// There is no room, or the file is locked; a later attempt may succeed. The system's error is for the log.
    #[error("the journal has no room for another run on its disk, or another program holds its file")]
    NoRoom,
    /// Too many long queries wait to be read.
    #[error("too many lists and long receipts wait to be read from the journal")]
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
pub struct Recovered {
    /// Interrupted runs, which are `ABORTED` now.
    pub aborted: usize,
    /// Reports that still go to the governor, including those of the interrupted runs.
    pub undelivered: usize,
}

/// The journal.
pub struct Journal {
    open: AllOpen,
    place: Place,
    outbox: Arc<Outbox>,
    most_undelivered: usize,
    durability: Durability,
    head: watch::Receiver<Head>,
    condition: watch::Receiver<Condition>,
    /// The sender by which a reader reports damage, for a journal in a file.
    breaks: Option<Arc<watch::Sender<Condition>>>,
    waiting: Mutex<Vec<HeldIntent>>,
    metrics: JournalMetrics,
    /// Ends the check in the background.
    is_closed: Arc<AtomicBool>,
}

/// The storage of the journal.
enum Place {
    /// A file, which one thread writes. The connection `reader` answers point look-ups.
    Disk { path: PathBuf, reader: Mutex<Reader>, readers: Readers, entries: mpsc::Sender<Entry> },
    /// No storage; the number of entries that were sent to the writer.
    Memory(AtomicI64),
}

impl Journal {
    /// Opens or makes the journal at `path`, checks its end, and writes the receipts of interrupted runs. Admits
    /// nothing while `most_undelivered` reports wait. The rest of the journal is checked in the background.
    ///
    /// # Ambient Authority
    /// Makes the file, its folder and a marker beside it, for this user alone.
    ///
    /// # Errors
    /// [`OpenError`] if the journal is in use, is no journal, is damaged or gone, or cannot be read or written.
    pub fn open(
        path: &Path,
        most_undelivered: usize,
        opening: Opening,
        now: OffsetDateTime,
    ) -> Result<(Self, Recovered), OpenError> {
        let of_sqlite = OpenError::of_sqlite(path);
        let failed = |error: BoxedError| OpenError::failed(path, error);
        let mut store = Store::open(path, opening)?;
        let (aborted, left) = recover(&mut store, micros(now)).map_err(failed)?;
        let undelivered = store.undelivered().map_err(&of_sqlite)?.into_iter();
        let undelivered = undelivered.map(|Undelivered { receipt, run, agent }| {
            AgentDid::parse(&agent).map(|agent| (receipt, run, agent))
        });
        let undelivered = undelivered.collect::<Result<Vec<_>, crate::ident::IdentError>>();
        let undelivered = undelivered.map_err(|error| failed(error.into()))?;
        let recovered = Recovered { aborted, undelivered: undelivered.len() + left.len() };
        let held = store.waiting().map_err(&of_sqlite)?;
        let (entries, to_write) = mpsc::channel();
        let (reader, readers) = (Mutex::new(Reader::open(path)?), Readers::open(path)?);
        let place = Place::Disk { path: path.to_owned(), reader, readers, entries };
        let (head_is, head) = watch::channel(store.head());
        let (condition_is, condition) = watch::channel(Condition::Works);
        let condition_is = Arc::new(condition_is);
        let journal = Self {
            open: AllOpen::default(),
            place,
            outbox: Arc::new(Outbox::new(undelivered)),
            most_undelivered,
            durability: opening.durability,
            head,
            condition,
            breaks: Some(Arc::clone(&condition_is)),
            waiting: Mutex::new(held),
            metrics: JournalMetrics::new(opening.durability),
            is_closed: Arc::default(),
        };
        let left = journal.still_open(left);
        let writer = writer::Writer {
            store,
            head: head_is,
            condition: Arc::clone(&condition_is),
            metrics: journal.metrics.clone(),
        };
        let over = journal.over();
        spawn("journal", move || writer.run(&to_write, left, over)).map_err(|error| failed(error.into()))?;
        let (file, is_closed) = (path.to_owned(), Arc::clone(&journal.is_closed));
        spawn("journal check", move || check::in_the_background(&file, &is_closed, &condition_is))
            .map_err(|error| failed(error.into()))?;
        Ok((journal, recovered))
    }

    /// A journal that holds the open intents and stores no finished ones: for a single call that is not queried later.
    #[must_use]
    pub fn in_memory() -> Self {
        Self {
            open: AllOpen::default(),
            place: Place::Memory(AtomicI64::new(1)),
            outbox: Arc::new(Outbox::new([])),
            most_undelivered: usize::MAX,
            durability: Durability::default(),
            head: watch::channel(Head::START).1,
            condition: watch::channel(Condition::Works).1,
            breaks: None,
            waiting: Mutex::default(),
            metrics: JournalMetrics::new(Durability::default()),
            is_closed: Arc::default(),
        }
    }

    /// The action on a finished run once its receipt has a number.
    fn over(&self) -> impl Fn(i64, &Finish) + Send + use<> {
        let (open, outbox) = (Arc::clone(&self.open), Arc::clone(&self.outbox));
        move |number, finish| {
            outbox.push(number, finish.run, &finish.receipt);
            close(&open, finish.receipt.intent, Stage::Finished(Arc::clone(&finish.receipt)));
        }
    }

    /// Entries for the receipts of interrupted runs for which there is no room yet. Until they are written, the runs
    /// count as running.
    fn still_open(&self, left: Vec<(Finish, [u8; 32])>) -> Vec<Entry> {
        let entries = left.into_iter().map(|(finish, content)| {
            self.lock().insert(finish.receipt.intent, Open::of_an_earlier_process(&finish, content));
            Entry::Finish(Box::new(finish), oneshot::channel().0)
        });
        entries.collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IntentId, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up one row on the disk, on this thread. Without a disk, returns the default.
    fn read<T: Default>(
        &self,
        question: impl FnOnce(&Reader) -> rusqlite::Result<T>,
    ) -> Result<T, JournalError> {
        let Place::Disk { reader, .. } = &self.place else { return Ok(T::default()) };
        let reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        question(&reader).map_err(|error| self.unreadable(error))
    }

    /// As [`Self::read`], on a thread of its own: for a query that reads many rows or a long one.
    async fn read_long<T: Default + Send + 'static>(
        &self,
        if_full: IfFull,
        question: impl FnOnce(&Reader) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, JournalError> {
        let Place::Disk { readers, .. } = &self.place else { return Ok(T::default()) };
        readers.ask(if_full, question).await?.map_err(|error| self.unreadable(error))
    }

    /// Breaks the journal if the file is damaged, for every connection that reads it.
    fn unreadable(&self, error: rusqlite::Error) -> JournalError {
        let is_damage = is_damage(&error);
        let error = BrokenError::read(error);
        if let (true, Some(breaks)) = (is_damage, &self.breaks) {
            tracing::error!(reason = %ErrorChain(&error), "the journal cannot be read");
            breaks.send_replace(Condition::Broken(error.clone()));
        }
        JournalError::Broken(error)
    }

    /// Sends an entry to the writer. The result awaits its answer.
    fn tell<T>(&self, entry: impl FnOnce(oneshot::Sender<T>) -> Entry) -> Told<T> {
        let (reply, answer) = oneshot::channel();
        self.say(entry(reply));
        Told { answer, condition: self.condition.clone() }
    }

    /// Sends an entry to the writer, and waits for its answer.
    async fn ask<T>(&self, entry: impl FnOnce(oneshot::Sender<T>) -> Entry) -> Result<T, JournalError> {
        self.tell(entry).answer().await
    }

    /// Sends an entry to the writer without an answer. If the writer is gone, the process is about to end.
    fn say(&self, entry: Entry) {
        match &self.place {
            Place::Disk { entries, .. } => drop(entries.send(entry)),
            Place::Memory(said) => writer::forget(entry, said.fetch_add(1, Relaxed), &self.over()),
        }
    }

    /// The receipt of a record; `None` if it was pruned.
    async fn receipt(&self, record: i64, if_full: IfFull) -> Result<Option<Arc<Receipt>>, JournalError> {
        let Some(length) = self.read(|reader| reader.body_length(record))? else { return Ok(None) };
        let read = move |reader: &Reader| {
            let body = reader.body(record)?;
            Ok(body.map(|body| stored::read_receipt(&body).map(Arc::new)))
        };
        let is_long = length > AT_ONCE_BYTES as u64;
        let receipt = if is_long { self.read_long(if_full, read).await? } else { self.read(read)? };
        receipt.transpose().map_err(|error| JournalError::Broken(BrokenError::read(error)))
    }

    /// Waits for the next report to deliver, and returns it with its receipt.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub async fn next_report(&self) -> Result<(Due, Arc<Receipt>), JournalError> {
        let mut due = self.outbox.next().await;
        let receipt = match due.at_hand.take() {
            Some(receipt) => receipt,
            None => {
                let gone = || JournalError::Broken("a report is gone that was not delivered".into());
                self.receipt(due.record, IfFull::Wait).await?.ok_or_else(gone)?
            }
        };
        Ok((due, receipt))
    }

    /// Records that the governor has a report.
    pub fn delivered(&self, due: &Due) {
        self.say(Entry::Delivered(due.run, due.record));
        self.outbox.delivered(due);
    }

    /// Records that the governor refused a report, or could not be reached. After a pause, the caller passes it to
    /// [`Self::again`].
    #[must_use]
    pub fn failed(&self, due: Due, refused: bool) -> Due {
        self.outbox.failed(due, refused)
    }

    /// Queues a report for another attempt.
    pub fn again(&self, due: Due) {
        self.outbox.again(due);
    }

    /// The number of reports that the governor does not have yet.
    #[must_use]
    pub fn undelivered(&self) -> usize {
        self.outbox.undelivered()
    }

    /// The time at which the oldest run ended whose report the governor does not have yet.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub async fn oldest_undelivered(&self) -> Result<Option<OffsetDateTime>, JournalError> {
        // A report that was delivered just now may still be undelivered on the disk.
        if self.undelivered() == 0 {
            return Ok(None);
        }
        let oldest = self.read_long(IfFull::Wait, Reader::oldest_undelivered).await?;
        Ok(oldest.map(moment))
    }

    /// The size of the journal's files, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let Place::Disk { path, .. } = &self.place else { return 0 };
        files::growing(path).iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum()
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
    pub async fn all_delivered(&self) {
        self.outbox.all_delivered().await;
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
        self.ask(Entry::Flush).await
    }

    /// The current condition of the journal.
    #[must_use]
    pub fn condition(&self) -> Condition {
        self.condition.borrow().clone()
    }

    /// Waits until the journal breaks, and returns the reason. The process has to end then.
    pub async fn broken(&self) -> BrokenError {
        broken(self.condition.clone()).await
    }
}

/// Waits until the journal breaks. The writer announces it shortly after it has dropped its entries.
async fn broken(mut condition: watch::Receiver<Condition>) -> BrokenError {
    let broken = condition.wait_for(|condition| matches!(condition, Condition::Broken(_))).await;
    match broken.as_deref() {
        Ok(Condition::Broken(error)) => error.clone(),
        Ok(Condition::Works | Condition::Full) | Err(_) => "its writer is gone".into(),
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.is_closed.store(true, Relaxed);
    }
}

/// An entry that was sent to the writer.
struct Told<T> {
    answer: oneshot::Receiver<T>,
    condition: watch::Receiver<Condition>,
}

impl<T> Told<T> {
    async fn answer(self) -> Result<T, JournalError> {
        match self.answer.await {
            Ok(answer) => Ok(answer),
            Err(_gone) => Err(JournalError::Broken(broken(self.condition).await)),
        }
    }
}

/// Receipts to be written for interrupted runs, with the content of their intents.
type Left = Vec<(Finish, [u8; 32])>;

/// Writes a receipt and the task for each interrupted run. Returns the number of such runs, and the receipts for which
/// there is no room.
fn recover(store: &mut Store, now: i64) -> Result<(usize, Left), BoxedError> {
    let wills = store.wills()?;
    if wills.is_empty() {
        return Ok((0, Vec::new()));
    }
    let finish = |Will { run, receipt: body, task, content }| {
        let receipt = Arc::new(stored::read_receipt(body.as_bytes())?);
        let task = task.map(|task| KeptTask::read(&task)).transpose()?;
        Ok((Finish { run, receipt, body: body.into(), task, ended: now }, content))
    };
    let finishes = wills.into_iter().map(finish).collect::<serde_json::Result<Vec<_>>>()?;
    let aborted = finishes.len();
    let written =
        store.commit(now, |batch| finishes.iter().try_for_each(|(finish, _)| batch.finish(finish).map(drop)));
    match written {
        Ok(()) => Ok((aborted, Vec::new())),
        Err(WriteError::NoRoom(_no_room)) => Ok((aborted, finishes)),
        Err(WriteError::Broken(error)) => Err(error.into()),
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// Runs a JSON conversion, on another thread if it is long.
async fn aside<T: Send + 'static>(
    long: bool,
    work: impl FnOnce() -> serde_json::Result<T> + Send + 'static,
) -> Result<T, JournalError> {
    let broken = |error: BoxedError| JournalError::Broken(BrokenError::read(error));
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
fn text(written: serde_json::Result<String>) -> Result<String, JournalError> {
    written.map_err(|error| JournalError::Broken(BrokenError::Record(error.into())))
}

/// Microseconds since 1970.
fn micros(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}

fn moment(micros: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
