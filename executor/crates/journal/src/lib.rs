//! The history of each intent and the undelivered reports, on the disk: a crash loses no record and repeats no run.
//!
//! ```text
//! claim (in memory) ─▶ started (written, before the guest begins) ─▶ finished (receipt and outbox
//!   │                       └─▶ released: refused before it began       in one transaction)
//!   ├─ same content: the receipt of the one run, now or as soon as it exists
//!   └─ other content: conflict
//! ```
//! When the journal is opened, an intent that has started and not finished gets the receipt that was stored with its
//! start: `ABORTED`. It is never started again. Only open intents are held in memory.
//!
//! A [`Journal`] is its parts. Each has private fields, and none knows another: they share the way to the file
//! (`backend`), and claims and deliveries the outbox.
//!
//! ```text
//! claims      claim ─▶ start ─▶ finish, or release; the open intents
//! decisions   held intents and their resolutions, stops, revocations, refusals
//! deliveries  the reports, in the order in which they are sent
//! records     look-ups, searches and figures of what was recorded
//! tasks       documents of the protocols that have tasks
//! ```
//! The journal itself opens and prunes the file, and says how it is.
//!
//! The append-only chain of *records* (`record`) is authoritative. The other tables are derived from it and compared
//! with it (`verify`).

mod arguments;
mod backend;
mod batch;
pub mod chain;
mod check;
mod claims;
mod copy;
mod decided;
mod decisions;
mod deliveries;
mod error;
mod files;
mod finding;
mod fleet;
pub mod history;
mod log;
mod lookup;
mod lost_calls;
mod needs;
mod outbox;
mod past;
mod prune;
mod readers;
mod record;
mod recorded_state;
mod replay;
mod retention;
mod run_record;
mod scan;
mod search;
mod series;
mod share;
mod stops;
mod store;
mod sweep;
mod tables;
mod tasks;
mod usage;
mod usage_sums;
pub mod verify;
mod wall_histogram;
mod writer;

pub use arguments::ArgumentStorage;
pub use batch::HoldResult;
pub use claims::{
    ClaimResult, IntentClaims, IntentSummary, KnownIntent, ReportState, Reporting, RunEffects, Stage,
    StageSource, StartRequest, StartResult, content_hash,
};
pub use copy::{CopyError, JournalCopy, RestoredJournal, back_up, init, restore};
pub use decided::{DecidedEvent, StartedCall};
pub use decisions::{Approval, Decisions, HeldIntent, IntentDenial, Resolution, ResolvedIntent};
pub use deliveries::Deliveries;
pub use error::{BrokenError, OpenError, ReplacedError};
pub use files::IfMissing;
pub use finding::NounCount;
pub use fleet::remembered_fleet;
pub use lookup::{IntentRecords, ReceiptPage, ReceiptSummary, Records};
pub use needs::{PairNeeds, RunNeeds};
pub use outbox::DueReport;
pub use past::PastEvent;
pub use prune::{PruneError, PruneSummary, prune};
pub use readers::IfFull;
pub use retention::Retention;
pub use run_record::{RecordedEvent, RecordedReceipt, RunRecord};
pub use search::{NumberedRefusal, Page, RefusalSearch, RunSearch, RunSummary};
pub use series::{SeriesBucket, SeriesSpan, UsageSeries};
pub use store::JournalOptions;
pub use sweep::sweep;
pub use tasks::{JournalTask, RetryPolicy, TaskKey, TaskQuery, TaskSummary, Tasks};
pub use usage::{
    AccessUse, GroupUsage, LimitKind, LimitSlack, StatusCounts, UsageFigures, UsageSummary, WallTimes,
};
pub use usage_sums::UsageSums;

use a2g_metrics::JournalMetrics;
use a2g_types::clock::{from_micros, to_micros};
use a2g_types::durability::{Durability, SyncedStarts};
use a2g_types::error_chain::{BoxedError, ErrorChain};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::rate_limit::to_whole_units;
use a2g_types::stored;
use backend::{Backend, wait_until_broken};
use batch::FinishRecord;
use chain::Head;
use claims::OpenIntents;
use error::WriteError;
use outbox::Outbox;
use parking_lot::Mutex;
use share::StorageLimits;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use store::{CommitSync, InterruptedRun, Store, Undelivered};
use time::OffsetDateTime;
use tokio::sync::watch;
use writer::JournalEntry;

/// The maximum size of a receipt or task, in bytes of JSON, that is read and written on the caller's thread. A longer
/// one would block other work.
// A look-up of a few pages, mostly in memory, takes less time than waking another thread.
const MAX_INLINE_BYTES: usize = 256 << 10;

/// The delay after which a caller may try again what the disk or the readers prevented, in milliseconds.
const RETRY_AFTER_MS: u64 = 500;

/// The reason why an entry was not written, or a query not answered.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// Too many reports wait for the governor.
    #[error("too many reports wait for the governor to acknowledge them (`journal.max_undelivered`)")]
    Backlog,
    /// The disk is full, or the file is locked; a later attempt may succeed. The log has the system's error.
    #[error("nothing can be recorded: the journal's disk is full, or another program has locked its file")]
    NoSpace,
    /// The calls of an agent have used up its share of the journal.
    #[error(
        "the calls of this agent have added more than its share to the journal, {max_mb} MB an hour \
         (`journal.max_mb_per_agent_hour`): send the call again later, or ask the operator to raise the share"
    )]
    Share {
        /// The share, in MB an hour.
        max_mb: u64,
        /// The time after which the agent has some of it again.
        retry_after: Duration,
    },
    /// Too many long queries are queued, or the memory budget is used up.
    #[error(
        "too many lists and long receipts wait to be read from the journal, or the memory budget \
         (`server.max_memory_mb`) is used up"
    )]
    Busy,
    /// The content of the file is no longer known. The process has to end.
    #[error("the journal is broken")]
    Broken(#[source] BrokenError),
}

impl JournalError {
    /// The fault for a caller. One who may try again is told `message`, and one of a broken journal the error.
    #[must_use]
    pub fn to_fault(&self, message: String) -> Fault {
        let retry_after_ms = match self {
            Self::Share { retry_after, .. } => to_whole_units(*retry_after, Duration::from_millis(1)),
            Self::Backlog | Self::NoSpace | Self::Busy => RETRY_AFTER_MS,
            Self::Broken(_) => return Fault::Internal(ErrorChain(self).to_string()),
        };
        Fault::Busy { message, retry_after_ms }
    }

    /// The error for a value of the file that cannot be read.
    fn unreadable(error: impl Into<BoxedError>) -> Self {
        Self::Broken(BrokenError::from_read(error))
    }
}

impl From<JournalError> for Fault {
    fn from(error: JournalError) -> Self {
        error.to_fault(error.to_string())
    }
}

/// The condition of the journal.
#[derive(Debug, Clone)]
pub enum Condition {
    /// It can be written.
    Works,
    /// The disk is full, or another program has locked the file.
    Full,
    /// This process cannot write it again.
    Broken(BrokenError),
}

/// The operator's limits on what a journal stores.
#[derive(Debug, Clone)]
pub struct JournalLimits {
    /// The extent to which arguments are stored.
    pub arguments: ArgumentStorage,
    /// The number of bytes that the calls of one agent may add to the journal within an hour.
    pub max_bytes_per_agent_hour: u64,
}

impl JournalLimits {
    /// The default share of an agent, in bytes an hour.
    // Hundreds of calls per second with small results, and a bound for one that fills a disk.
    pub const DEFAULT_AGENT_SHARE: u64 = 4 << 30;
}

impl Default for JournalLimits {
    fn default() -> Self {
        Self { arguments: ArgumentStorage::default(), max_bytes_per_agent_hour: Self::DEFAULT_AGENT_SHARE }
    }
}

/// A journal before its interrupted runs are ended.
pub struct InterruptedJournal<'a> {
    store: &'a Store,
    runs: &'a [InterruptedRun],
}

/// A run that had not ended when the earlier process did.
#[derive(Debug, Clone, Copy)]
pub struct InterruptedIntent<'a> {
    /// The intent.
    pub intent: IntentId,
    /// The hash of the call's content.
    pub content: &'a [u8; 32],
    /// The stored receipt that was written with the start.
    pub fallback: &'a str,
}

/// What the caller of [`Journal::open_with_ends`] has found out before the journal is used.
#[derive(Debug, Default)]
pub struct RecoveredState {
    /// The ends of the interrupted runs, in the order of [`InterruptedJournal::runs`]. A run without an element ends with
    /// [`InterruptedEnd::Fallback`].
    pub ends: Vec<InterruptedEnd>,
    /// The identity of the fleet that the executor has joined, which the journal remembers from now on.
    pub fleet: Option<String>,
}

/// How an interrupted run ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InterruptedEnd {
    /// With the receipt that was stored with the start.
    Fallback,
    /// With another stored receipt.
    Receipt(Box<str>),
    /// Without a receipt, because its guest had not begun.
    Released,
}

impl InterruptedJournal<'_> {
    /// The checkpoint of the latest receipt.
    #[must_use]
    pub fn head(&self) -> Head {
        self.store.head()
    }

    /// Returns `true` if the receipt with this number has this hash.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub fn has_receipt(&self, number: u64, hash: &chain::Hash) -> Result<bool, BoxedError> {
        Ok(self.store.has_receipt(number, hash)?)
    }

    /// The identity of the fleet that the journal remembers; `None` if its executor has joined none.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub fn fleet(&self) -> Result<Option<String>, BoxedError> {
        Ok(self.store.fleet()?)
    }

    /// The interrupted runs, in the order of their starts.
    pub fn runs(&self) -> impl Iterator<Item = InterruptedIntent<'_>> {
        self.runs.iter().map(|run| InterruptedIntent {
            intent: run.intent,
            content: &run.content,
            fallback: &run.receipt,
        })
    }
}

/// The result of the recovery when the journal was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoverySummary {
    /// The number of interrupted runs, which are `ABORTED` now.
    pub aborted: usize,
    /// The number of undelivered reports, including those of the interrupted runs.
    pub undelivered: usize,
}

/// The part of the chain that this process has read and verified. What it writes later is not read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainCheck {
    /// The number of the last verified receipt.
    pub last_receipt: u64,
    /// The time of the check.
    pub at: OffsetDateTime,
    /// `true` if every stored record up to that receipt was verified; `false` if only the latest
    /// [`ChainCheck::MAX_RECORDS_AT_START`] were.
    pub is_whole: bool,
}

impl ChainCheck {
    /// The maximum number of records that are verified before the journal is used. A thread verifies the others later.
    pub const MAX_RECORDS_AT_START: i64 = 10_000;
}

/// The journal of one executor: a file, or only open intents in memory.
pub struct Journal {
    /// The claims, starts and ends of intents.
    pub claims: Arc<IntentClaims>,
    /// What waits for a decision, and what was decided.
    pub decisions: Arc<Decisions>,
    /// The delivery of reports.
    pub deliveries: Arc<Deliveries>,
    /// The contents of the records.
    pub records: Arc<Records>,
    /// The stored tasks.
    pub tasks: Arc<Tasks>,
    backend: Arc<Backend>,
    /// `None` for a journal in memory.
    path: Option<PathBuf>,
    durability: Durability,
    head: watch::Receiver<Head>,
    metrics: JournalMetrics,
    /// `true` once the background check has read the records without a finding, or has ended early. The automatic pruning
    /// may then remove some at any size.
    may_prune: Arc<AtomicBool>,
    /// `None` for a journal in memory.
    chain_check: Arc<Mutex<Option<ChainCheck>>>,
}

impl Journal {
    /// Opens or creates the journal at `path`, checks its last records, and writes the receipts of interrupted runs. No
    /// claim is admitted while `max_undelivered` reports are undelivered. The rest of the journal is checked in the
    /// background.
    ///
    /// # Ambient Authority
    /// Creates the file, its folder and a marker beside it, with access only for this user.
    ///
    /// # Errors
    /// [`OpenError`] if the file is in use, missing, damaged or not a journal, or cannot be read or written.
    pub fn open(
        path: &Path,
        max_undelivered: usize,
        options: JournalOptions,
        now: OffsetDateTime,
    ) -> Result<(Self, RecoverySummary), OpenError> {
        Self::open_with_ends(path, max_undelivered, options, now, |_| Ok(RecoveredState::default()))
    }

    /// Like [`Self::open`]. `recover_with` returns how each interrupted run ends, and the fleet that was joined.
    ///
    /// # Ambient Authority
    /// As [`Self::open`].
    ///
    /// # Errors
    /// As [`Self::open`], and the errors of `recover_with`: nothing is then written. If the fleet has to be
    /// written, also a full disk.
    pub fn open_with_ends(
        path: &Path,
        max_undelivered: usize,
        options: JournalOptions,
        now: OffsetDateTime,
        recover_with: impl FnOnce(&InterruptedJournal<'_>) -> Result<RecoveredState, BoxedError>,
    ) -> Result<(Self, RecoverySummary), OpenError> {
        let from_sqlite = OpenError::from_sqlite(path);
        let open_error = |error: BoxedError| OpenError::other(path, error);
        let mut store = Store::open(path, &options)?;
        let check = ChainCheck { last_receipt: store.head().number, at: now, is_whole: false };
        // Recovery comes before every claim: a look-up of an interrupted intent relies on its receipt
        // (`IntentClaims::final_stage`).
        let runs = store.interrupted_runs().map_err(&from_sqlite)?;
        let runs = lost_calls::add(store.connection(), runs).map_err(&open_error)?;
        let recovered = recover_with(&InterruptedJournal { store: &store, runs: &runs });
        let RecoveredState { ends, fleet } = recovered.map_err(OpenError::Ends)?;
        if let Some(identity) = fleet {
            // Before the first claim: a later process must not take an empty fleet for this one.
            let remembered =
                store.commit(to_micros(now), CommitSync::Now, |batch| batch.remember_fleet(&identity));
            remembered.map_err(|error| open_error(error.into()))?;
        }
        let (aborted, unwritten) = recover(&mut store, to_micros(now), runs, ends).map_err(open_error)?;
        // The reports are read after the recovery, which adds the reports of interrupted runs.
        let undelivered = store.undelivered_reports().map_err(&from_sqlite)?.into_iter();
        let undelivered = undelivered.map(|Undelivered { receipt, run, agent }| {
            AgentDid::parse(&agent).map(|agent| (receipt, run, agent))
        });
        let undelivered = undelivered.collect::<Result<Vec<_>, a2g_types::ident::IdentError>>();
        let undelivered = undelivered.map_err(|error| open_error(error.into()))?;
        let recovered = RecoverySummary { aborted, undelivered: undelivered.len() + unwritten.len() };
        let held = store.held_intents().map_err(&from_sqlite)?;
        // An error refuses the start: without its stops, the executor would run what is stopped.
        let stops = store.stops().map_err(&from_sqlite)?;
        let (entries, queue) = mpsc::channel();
        let condition_sender = Arc::new(watch::Sender::new(Condition::Works));
        // The store was opened first: it creates, locks and checks the file that the readers open.
        let limits = StorageLimits::new(options.limits);
        let backend = Arc::new(Backend::open(path, entries, Arc::clone(&condition_sender), limits)?);
        let (head_sender, head) = watch::channel(store.head());
        let open = OpenIntents::default();
        let outbox = Arc::new(Outbox::new(undelivered));
        let unwritten = claims::reopen(&open, unwritten);
        let on_finished = claims::on_finished(Arc::clone(&open), Arc::clone(&outbox));
        let JournalOptions { durability, synced_starts, .. } = options;
        let claims = IntentClaims::new(
            Arc::clone(&backend),
            open,
            Arc::clone(&outbox),
            max_undelivered,
            synced_starts,
        );
        let journal = Self {
            deliveries: Arc::new(Deliveries::new(Arc::clone(&backend), outbox)),
            claims: Arc::new(claims),
            decisions: Arc::new(Decisions::new(Arc::clone(&backend), held, stops)),
            records: Arc::new(Records::new(Arc::clone(&backend))),
            tasks: Arc::new(Tasks::new(Arc::clone(&backend))),
            backend,
            path: Some(path.to_owned()),
            durability,
            head,
            metrics: JournalMetrics::new(durability),
            may_prune: Arc::default(),
            chain_check: Arc::new(Mutex::new(Some(check))),
        };
        let writer = writer::Writer {
            store,
            head: head_sender,
            condition: Arc::clone(&condition_sender),
            metrics: journal.metrics.clone(),
        };
        // The writer is a thread and not a task: waiting for an fsync in a task would block the thread that polls all
        // sockets and timers, and delay even an answer to `/health`.
        spawn_thread("journal", move || writer.run(&queue, unwritten, on_finished))
            .map_err(|error| open_error(error.into()))?;
        let file = path.to_owned();
        let is_closed = Arc::clone(journal.backend.closed_flag());
        let may_prune = Arc::clone(&journal.may_prune);
        let chain_check = Arc::clone(&journal.chain_check);
        spawn_thread("journal check", move || {
            check::check_in_background(&file, &is_closed, &may_prune, &condition_sender, &chain_check)
        })
        .map_err(|error| open_error(error.into()))?;
        Ok((journal, recovered))
    }

    /// A journal without a file: it holds open intents and forgets finished ones. It suffices for a single call.
    #[must_use]
    pub fn in_memory() -> Self {
        let open = OpenIntents::default();
        let outbox = Arc::new(Outbox::new([]));
        // The command `run` uses the pipeline of `serve`, but its one call is never queried later, so it needs no file.
        let on_finished = claims::on_finished(Arc::clone(&open), Arc::clone(&outbox));
        let backend = Arc::new(Backend::in_memory(on_finished));
        let claims = IntentClaims::new(
            Arc::clone(&backend),
            open,
            Arc::clone(&outbox),
            usize::MAX,
            SyncedStarts::default(),
        );
        Self {
            deliveries: Arc::new(Deliveries::new(Arc::clone(&backend), outbox)),
            claims: Arc::new(claims),
            decisions: Arc::new(Decisions::new(Arc::clone(&backend), Vec::new(), Vec::new())),
            records: Arc::new(Records::new(Arc::clone(&backend))),
            tasks: Arc::new(Tasks::new(Arc::clone(&backend))),
            backend,
            path: None,
            durability: Durability::default(),
            head: watch::channel(Head::START).1,
            metrics: JournalMetrics::new(Durability::default()),
            may_prune: Arc::default(),
            chain_check: Arc::default(),
        }
    }

    /// The size of the journal's files, in bytes; 0 for a journal in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let Some(path) = &self.path else { return 0 };
        files::data_files(path).iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum()
    }

    /// The worst failure that a committed entry survives.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// The metrics that this journal updates.
    #[must_use]
    pub fn metrics(&self) -> &JournalMetrics {
        &self.metrics
    }

    /// The checkpoint of the latest receipt.
    #[must_use]
    pub fn head(&self) -> Head {
        *self.head.borrow()
    }

    /// The part of the chain that this process has verified; `None` for a journal in memory.
    #[must_use]
    pub fn chain_check(&self) -> Option<ChainCheck> {
        *self.chain_check.lock()
    }

    /// Waits until every earlier entry is written, so that queries find it. A power failure may still lose the start of a
    /// run without effects: see [`Self::sync`].
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal breaks before.
    pub async fn flush(&self) -> Result<(), JournalError> {
        self.backend.submit(JournalEntry::Flush).wait().await
    }

    /// Waits until every earlier entry is as safe as [`Self::durability`] says, also the starts that were not synced.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal breaks before.
    pub async fn sync(&self) -> Result<(), JournalError> {
        self.backend.submit(JournalEntry::Sync).wait().await
    }

    /// The current condition of the journal.
    #[must_use]
    pub fn condition(&self) -> Condition {
        self.backend.condition().borrow().clone()
    }

    /// Waits until the journal is broken, and returns the reason. The process then has to end.
    pub async fn wait_until_broken(&self) -> BrokenError {
        wait_until_broken(self.backend.condition().clone()).await
    }
}

/// Receipts of interrupted runs that are not written yet, with the content hashes of their intents.
type UnwrittenReceipts = Vec<(FinishRecord, [u8; 32])>;

/// Writes a receipt and the task for each interrupted run. Returns the number of such runs, and the receipts that could
/// not be written because the disk is full.
fn recover(
    store: &mut Store,
    now: i64,
    runs: Vec<InterruptedRun>,
    mut ends: Vec<InterruptedEnd>,
) -> Result<(usize, UnwrittenReceipts), BoxedError> {
    if runs.is_empty() {
        return Ok((0, Vec::new()));
    }
    ends.resize_with(runs.len(), || InterruptedEnd::Fallback);
    let mut finishes = Vec::new();
    let mut released = Vec::new();
    for (InterruptedRun { run, intent, receipt: fallback, task, content }, end) in runs.into_iter().zip(ends)
    {
        let body: Arc<str> = match end {
            InterruptedEnd::Fallback => fallback.into(),
            InterruptedEnd::Receipt(receipt) => receipt.into(),
            InterruptedEnd::Released => {
                released.push((run, intent));
                continue;
            }
        };
        let receipt = Arc::new(stored::read_receipt(body.as_bytes())?);
        let task = task.map(|task| JournalTask::from_text(&task)).transpose()?;
        // An earlier process may have got the fleet's record of the report, so the fleet is asked first.
        let reporting = Reporting::Elsewhere;
        finishes.push((FinishRecord { run, receipt, body, task, ended: now, reporting }, content));
    }
    let aborted = finishes.len();
    // One transaction for all runs: a process that is killed here changes none of them.
    let result = store.commit(now, CommitSync::Now, |batch| {
        released.iter().try_for_each(|(run, intent)| batch.release(*run, *intent))?;
        finishes.iter().try_for_each(|(finish, _)| batch.finish(finish).map(drop))
    });
    match result {
        Ok(()) => Ok((aborted, Vec::new())),
        // A server that starts on a full disk answers known intents, and writes these receipts once there is space.
        Err(WriteError::NoSpace(_no_space)) => Ok((aborted, finishes)),
        Err(WriteError::Broken(error)) => Err(error.into()),
    }
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// Maps the error of a value that has no JSON form.
fn to_row_text(text: serde_json::Result<String>) -> Result<String, JournalError> {
    text.map_err(|error| JournalError::Broken(BrokenError::Record(error.into())))
}

#[cfg(test)]
mod tests;
