//! The writer thread. It commits all queued entries in one transaction, so that many runs share one fsync.

use super::batch::{
    Batch, FinishRecord, HoldRecord, HoldResult, RevocationRecord, StartRecord, StartReply, StopRecord,
};
use super::chain::Head;
use super::error::{NoSpaceError, WriteError};
use super::log::RefusalRecord;
use super::stops::StopLift;
use super::store::{CommitSync, RunId, Store};
use super::tasks::{JournalTask, RetryPolicy};
use super::{Condition, Resolution, ResolvedIntent, to_micros};
use a2g_metrics::JournalMetrics;
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::error_chain::ErrorChain;
use a2g_types::ident::IntentId;
use a2g_types::stop::Stop;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// The maximum number of entries in one transaction.
const MAX_BATCH: usize = 512;
/// The delay before entries that a full disk refused are retried.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// The maximum time for which an entry without a waiting caller is held back, so that later entries share its fsync.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// The interval between checks of the files while nothing is written.
// An idle server has to stop as well if its journal disappears, before a call relies on the journal.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum interval between log lines about a full disk.
const LOG_INTERVAL: Duration = Duration::from_secs(2);

/// Sends the answer to an entry. A sender that is dropped unused means that the journal is broken.
pub(super) type Reply<T> = oneshot::Sender<T>;
/// Sends the answer to an entry that fails if the disk is full, with the system's error.
pub(super) type FallibleReply<T> = Reply<Result<T, NoSpaceError>>;

/// An entry to write. It is committed before it is answered, and then also on the disk unless it
/// [may wait](JournalEntry::may_wait_for_sync).
pub(super) enum JournalEntry {
    /// The start of a run. The guest may begin once the reply is `Ok` with [`StartReply::New`].
    Start(Box<StartRecord>, FallibleReply<StartReply>),
    /// A run has finished. Retried while the disk is full.
    Finish(Box<FinishRecord>, Reply<()>),
    /// A claimed intent was refused before its guest began.
    Release(RunId, IntentId, Reply<()>),
    /// A new verdict for this intent expires later than the previous ones.
    Extend(IntentId, i64),
    /// The governor has acknowledged the report of a run. The number is that of the receipt's record.
    Delivered(RunId, i64),
    /// An intent waits for a person.
    Hold(Box<HoldRecord>, FallibleReply<HoldResult>),
    /// Decisions on waiting intents. A denial is retried while the disk is full, even after its caller was answered; an
    /// approval is not.
    Resolve(Vec<ResolvedIntent>, Option<FallibleReply<usize>>),
    /// A caller stopped runs. Retried while the disk is full.
    Stop(Vec<StopRecord>, Option<FallibleReply<()>>),
    /// The governor revoked capabilities. Retried while the disk is full.
    Revoke(Box<RevocationRecord>, Option<FallibleReply<()>>),
    /// An operator stopped something. Retried while the disk is full.
    SetStop(Box<Stop>, Option<FallibleReply<()>>),
    /// An operator lifted a stop. Refused while the disk is full.
    LiftStop(Box<StopLift>, FallibleReply<bool>),
    /// The current state of a task. The policy determines whether it is retried while the disk is full, after its
    /// caller was answered.
    Task(Box<JournalTask>, RetryPolicy, Option<FallibleReply<()>>),
    /// A call did not run.
    Refuse(Box<RefusalRecord>),
    /// Writes nothing. Its reply means that every earlier entry is committed, so that a reader finds it.
    Flush(Reply<()>),
    /// Adds no record. Its reply means that every earlier entry is on the disk. Retried while the disk is full.
    Sync(Reply<()>),
}

impl JournalEntry {
    /// `true` if the entry has to be on the disk as soon as possible.
    fn is_urgent(&self) -> bool {
        match self {
            Self::Start(..)
            | Self::Finish(..)
            | Self::Release(..)
            | Self::Hold(..)
            | Self::Resolve(..)
            | Self::Stop(..)
            | Self::Revoke(..)
            | Self::SetStop(..)
            | Self::LiftStop(..)
            | Self::Task(..)
            | Self::Flush(_)
            | Self::Sync(_) => true,
            // No caller waits for these, so an fsync only for them would delay the next run.
            Self::Extend(..) | Self::Delivered(..) | Self::Refuse(_) => false,
        }
    }

    /// `true` if a power failure may lose the entry until a later one is synced.
    fn may_wait_for_sync(&self) -> bool {
        // Without an acknowledgement, the report is sent again, as after a crash before this entry is written.
        matches!(self, Self::Delivered(..) | Self::Flush(_))
            || matches!(self, Self::Start(start, _) if start.sync == CommitSync::WithNext)
    }
}

/// The sync that a transaction with these entries needs.
fn sync_of(batch: &[JournalEntry]) -> CommitSync {
    let has_start = batch.iter().any(|entry| matches!(entry, JournalEntry::Start(..)));
    let is_flush = batch.iter().all(|entry| matches!(entry, JournalEntry::Flush(_)));
    // Acknowledgements alone are synced: no end of a run may follow them for long.
    if is_flush || (has_start && batch.iter().all(JournalEntry::may_wait_for_sync)) {
        CommitSync::WithNext
    } else {
        CommitSync::Now
    }
}

/// The result of an entry.
enum EntryResult {
    Started(StartReply),
    Recorded(i64),
    Held(HoldResult),
    Resolved(usize),
    Lifted(bool),
    Done,
}

/// The next action of the writer.
enum WriterAction {
    Write(Vec<JournalEntry>),
    /// Checks the files, or whether a full disk has space again.
    Check,
    /// All senders have been dropped.
    End,
}

/// The state of the writer thread.
pub(super) struct Writer {
    pub(super) store: Store,
    pub(super) head: watch::Sender<Head>,
    pub(super) condition: Arc<watch::Sender<Condition>>,
    pub(super) metrics: JournalMetrics,
}

/// The state of the disk, and of the log lines about it.
#[derive(Default)]
struct DiskState {
    is_full: bool,
    /// `true` from the log line about a full disk to the log line about its end.
    is_reported: bool,
    reported_at: Option<Instant>,
}

impl Writer {
    /// Writes until all senders have been dropped, beginning with the entries in `unwritten`, which a full disk
    /// refused. `on_finished` receives every receipt that is on the disk, in order.
    pub(super) fn run(
        mut self,
        entries: &Receiver<JournalEntry>,
        mut unwritten: Vec<JournalEntry>,
        on_finished: impl Fn(i64, &FinishRecord),
    ) {
        let _break_on_exit = BreakOnExit(Arc::clone(&self.condition));
        let mut disk = DiskState::default();
        if !unwritten.is_empty() {
            self.mark_full(&mut disk, "no space for the receipts of the previous process");
        }
        loop {
            let action = if disk.is_full {
                gather_while_full(entries, std::mem::take(&mut unwritten))
            } else {
                gather(entries)
            };
            let result = match action {
                WriterAction::End => return,
                // Claims are refused while the disk is full, so only this attempt can find that there is space again.
                WriterAction::Check if disk.is_full => self.store.check_space(),
                WriterAction::Check => self.store.check_files(),
                WriterAction::Write(batch) => self.write(batch, &mut unwritten, &on_finished),
            };
            match result {
                Ok(()) => self.mark_writable(&mut disk),
                Err(WriteError::NoSpace(error)) => self.mark_full(&mut disk, &ErrorChain(&error).to_string()),
                // A write is not retried: after a failed fsync the kernel may have dropped the pages, so a later
                // success would not mean that they are on the disk.
                Err(WriteError::Broken(error)) => {
                    tracing::error!(reason = %ErrorChain(&error), "the journal is broken");
                    self.condition.send_replace(Condition::Broken(error));
                    return;
                }
            }
        }
    }

    /// Writes a whole batch and answers it. If the disk is full, writes nothing and adds the entries that have to be
    /// retried to `unwritten`.
    fn write(
        &mut self,
        batch: Vec<JournalEntry>,
        unwritten: &mut Vec<JournalEntry>,
        on_finished: &impl Fn(i64, &FinishRecord),
    ) -> Result<(), WriteError> {
        let start = SystemClock.monotonic();
        let now = to_micros(SystemClock.now());
        let write_all =
            |transaction: &mut Batch<'_>| batch.iter().map(|entry| write_entry(transaction, entry)).collect();
        match self.store.commit::<Vec<_>>(now, sync_of(&batch), write_all) {
            Ok(results) => {
                let elapsed = SystemClock.monotonic().saturating_duration_since(start);
                self.metrics.record_commit(batch.len(), elapsed);
                self.head.send_replace(self.store.head());
                batch
                    .into_iter()
                    .zip(results)
                    .for_each(|(entry, result)| send_reply(entry, result, on_finished));
                Ok(())
            }
            Err(WriteError::NoSpace(error)) => {
                unwritten.extend(batch.into_iter().filter_map(|entry| requeue_or_reject(entry, &error)));
                Err(error.into())
            }
            Err(broken @ WriteError::Broken(_)) => Err(broken),
        }
    }

    fn mark_writable(&self, disk: &mut DiskState) {
        if std::mem::take(&mut disk.is_full) {
            self.condition.send_if_modified(|condition| {
                // `Broken` stays: a reader may have found damage in the meantime.
                let was_full = matches!(*condition, Condition::Full);
                if was_full {
                    *condition = Condition::Works;
                }
                was_full
            });
            if std::mem::take(&mut disk.is_reported) {
                tracing::info!("the journal can be written again");
            }
        }
    }

    fn mark_full(&self, disk: &mut DiskState, reason: &str) {
        if !std::mem::replace(&mut disk.is_full, true) {
            self.condition.send_if_modified(|condition| {
                let was_working = matches!(*condition, Condition::Works);
                if was_working {
                    *condition = Condition::Full;
                }
                was_working
            });
        }
        let now = SystemClock.monotonic();
        let is_due = disk.reported_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL);
        if !disk.is_reported && is_due {
            (disk.is_reported, disk.reported_at) = (true, Some(now));
            tracing::error!(reason, "the journal cannot be written: no tool runs until it can");
        }
    }
}

/// Marks the journal as broken when the writer ends, also by a panic.
struct BreakOnExit(Arc<watch::Sender<Condition>>);

impl Drop for BreakOnExit {
    fn drop(&mut self) {
        self.0.send_if_modified(|condition| {
            let is_new = !matches!(condition, Condition::Broken(_));
            if is_new {
                *condition = Condition::Broken("the journal's writer has ended".into());
            }
            is_new
        });
    }
}

/// Waits for the next batch.
fn gather(entries: &Receiver<JournalEntry>) -> WriterAction {
    let mut batch = Vec::new();
    let mut timeout = WATCH_INTERVAL;
    loop {
        match entries.recv_timeout(timeout) {
            // Waiting for more entries would delay a single caller, and the next batch queues up while this one is
            // written.
            Ok(first) => batch.extend(std::iter::once(first).chain(entries.try_iter()).take(MAX_BATCH)),
            Err(RecvTimeoutError::Timeout) if batch.is_empty() => return WriterAction::Check,
            Err(RecvTimeoutError::Disconnected) if batch.is_empty() => return WriterAction::End,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return WriterAction::Write(batch);
            }
        }
        if timeout == BATCH_DELAY || batch.iter().any(JournalEntry::is_urgent) {
            return WriterAction::Write(batch);
        }
        // An fsync only for this entry would delay the next run, which needs an fsync anyway.
        timeout = BATCH_DELAY;
    }
}

/// Waits until the entries in `unwritten` are due for a retry. New entries that can be refused are refused immediately.
fn gather_while_full(entries: &Receiver<JournalEntry>, unwritten: Vec<JournalEntry>) -> WriterAction {
    let mut batch = unwritten;
    let retry_at = SystemClock.monotonic() + RETRY_DELAY;
    loop {
        match entries.recv_timeout(retry_at.saturating_duration_since(SystemClock.monotonic())) {
            // A new caller is answered immediately instead of waiting until the disk has space.
            Ok(entry) => batch.extend(requeue_or_reject(entry, &NoSpaceError::Earlier)),
            Err(RecvTimeoutError::Timeout) if batch.is_empty() => return WriterAction::Check,
            Err(RecvTimeoutError::Timeout) => return WriterAction::Write(batch),
            // Receipts that are still unwritten are lost here; the next start writes the fallback receipts of these
            // runs.
            Err(RecvTimeoutError::Disconnected) => return WriterAction::End,
        }
    }
}

/// Answers an entry as if it were written, without storing it. `number` must be unique.
pub(super) fn answer_in_memory(entry: JournalEntry, number: i64, on_finished: &impl Fn(i64, &FinishRecord)) {
    let result = match &entry {
        JournalEntry::Start(..) => EntryResult::Started(StartReply::New(RunId(number))),
        JournalEntry::Finish(..) => EntryResult::Recorded(number),
        JournalEntry::Hold(..) => EntryResult::Held(HoldResult::Waiting),
        JournalEntry::Resolve(resolved, _) => EntryResult::Resolved(resolved.len()),
        JournalEntry::LiftStop(..) => EntryResult::Lifted(true),
        JournalEntry::Release(..)
        | JournalEntry::Extend(..)
        | JournalEntry::Delivered(..)
        | JournalEntry::Stop(..)
        | JournalEntry::Revoke(..)
        | JournalEntry::SetStop(..)
        | JournalEntry::Task(..)
        | JournalEntry::Refuse(_)
        | JournalEntry::Flush(_)
        | JournalEntry::Sync(_) => EntryResult::Done,
    };
    send_reply(entry, result, on_finished);
}

fn write_entry(transaction: &mut Batch<'_>, entry: &JournalEntry) -> Result<EntryResult, WriteError> {
    let done = |()| EntryResult::Done;
    match entry {
        JournalEntry::Start(start, _) => transaction.start(start).map(EntryResult::Started),
        JournalEntry::Finish(finish, _) => transaction.finish(finish).map(EntryResult::Recorded),
        JournalEntry::Release(run, intent, _) => transaction.release(*run, *intent).map(done),
        JournalEntry::Extend(intent, until) => transaction.extend_claim(*intent, *until).map(done),
        JournalEntry::Delivered(run, receipt) => transaction.mark_delivered(*run, *receipt).map(done),
        JournalEntry::Hold(hold, _) => transaction.hold(hold).map(EntryResult::Held),
        JournalEntry::Resolve(resolved, _) => {
            let counts = resolved.iter().map(|resolved| transaction.resolve(resolved).map(usize::from));
            counts.sum::<Result<usize, _>>().map(EntryResult::Resolved)
        }
        JournalEntry::Stop(stops, _) => {
            stops.iter().try_for_each(|stop| transaction.record_stop(stop)).map(done)
        }
        JournalEntry::Revoke(revocation, _) => transaction.record_revocation(revocation).map(done),
        JournalEntry::SetStop(stop, _) => transaction.set_stop(stop).map(done),
        JournalEntry::LiftStop(lift, _) => transaction.lift_stop(lift).map(EntryResult::Lifted),
        JournalEntry::Task(task, ..) => transaction.store_task(task).map(done),
        JournalEntry::Refuse(refusal) => transaction.record_refusal(refusal).map(done),
        JournalEntry::Flush(_) | JournalEntry::Sync(_) => Ok(EntryResult::Done),
    }
}

/// Answers the caller of an entry, if one waits.
fn send_reply(entry: JournalEntry, result: EntryResult, on_finished: &impl Fn(i64, &FinishRecord)) {
    match (entry, result) {
        (JournalEntry::Start(_, reply), EntryResult::Started(start_reply)) => {
            let _no_waiter = reply.send(Ok(start_reply));
        }
        (JournalEntry::Finish(finish, reply), EntryResult::Recorded(number)) => {
            on_finished(number, &finish);
            let _no_waiter = reply.send(());
        }
        (
            JournalEntry::Release(_, _, reply) | JournalEntry::Flush(reply) | JournalEntry::Sync(reply),
            EntryResult::Done,
        ) => {
            let _no_waiter = reply.send(());
        }
        (JournalEntry::Hold(_, reply), EntryResult::Held(hold_result)) => {
            let _no_waiter = reply.send(Ok(hold_result));
        }
        (JournalEntry::Resolve(_, Some(reply)), EntryResult::Resolved(count)) => {
            let _no_waiter = reply.send(Ok(count));
        }
        (
            JournalEntry::Stop(_, Some(reply))
            | JournalEntry::Revoke(_, Some(reply))
            | JournalEntry::SetStop(_, Some(reply))
            | JournalEntry::Task(_, _, Some(reply)),
            EntryResult::Done,
        ) => {
            let _no_waiter = reply.send(Ok(()));
        }
        (JournalEntry::LiftStop(_, reply), EntryResult::Lifted(was_stopped)) => {
            let _no_waiter = reply.send(Ok(was_stopped));
        }
        (
            JournalEntry::Start(..)
            | JournalEntry::Finish(..)
            | JournalEntry::Release(..)
            | JournalEntry::Extend(..)
            | JournalEntry::Delivered(..)
            | JournalEntry::Hold(..)
            | JournalEntry::Resolve(..)
            | JournalEntry::Stop(..)
            | JournalEntry::Revoke(..)
            | JournalEntry::SetStop(..)
            | JournalEntry::LiftStop(..)
            | JournalEntry::Task(..)
            | JournalEntry::Refuse(_)
            | JournalEntry::Flush(_)
            | JournalEntry::Sync(_),
            EntryResult::Started(_)
            | EntryResult::Recorded(_)
            | EntryResult::Held(_)
            | EntryResult::Resolved(_)
            | EntryResult::Lifted(_)
            | EntryResult::Done,
        ) => {}
    }
}

/// Answers the caller of an entry, if one waits, that the disk is full.
fn reply_no_space<T>(reply: Option<FallibleReply<T>>, reason: &NoSpaceError) {
    let _no_waiter = reply.map(|reply| reply.send(Err(reason.clone())));
}

/// Refuses an entry whose effect has not happened yet. Returns any other one, to be written later.
fn requeue_or_reject(entry: JournalEntry, reason: &NoSpaceError) -> Option<JournalEntry> {
    match entry {
        // A start and a hold are refused: the guest has not begun, and the caller can send the intent again.
        JournalEntry::Start(_, reply) => reply_no_space(Some(reply), reason),
        JournalEntry::Hold(_, reply) => reply_no_space(Some(reply), reason),
        JournalEntry::Resolve(resolved, reply) => {
            reply_no_space(reply, reason);
            // A retried approval would run the intent after its approver was told that the approval failed.
            let is_approval = resolved.iter().any(|record| match record.resolution {
                Resolution::PartlyApproved | Resolution::Approved => true,
                Resolution::Denied | Resolution::Cancelled | Resolution::Revoked | Resolution::Expired => {
                    false
                }
            });
            return (!is_approval).then_some(JournalEntry::Resolve(resolved, None));
        }
        // The stop has already taken effect, so it must be recorded, however long the disk stays full.
        JournalEntry::Stop(stops, reply) => {
            reply_no_space(reply, reason);
            return Some(JournalEntry::Stop(stops, None));
        }
        JournalEntry::Revoke(revocation, reply) => {
            reply_no_space(reply, reason);
            return Some(JournalEntry::Revoke(revocation, None));
        }
        JournalEntry::SetStop(stop, reply) => {
            reply_no_space(reply, reason);
            return Some(JournalEntry::SetStop(stop, None));
        }
        // Refused: what an operator was told is still stopped must not run later.
        JournalEntry::LiftStop(_, reply) => reply_no_space(Some(reply), reason),
        JournalEntry::Task(task, retry_policy, reply) => {
            reply_no_space(reply, reason);
            match retry_policy {
                RetryPolicy::Retry => return Some(JournalEntry::Task(task, retry_policy, None)),
                RetryPolicy::FailFast => {}
            }
        }
        // Dropped, because every call on a full disk adds a refusal and memory is bounded; the log has them.
        JournalEntry::Refuse(_) => {}
        // The effect of these entries cannot be undone.
        entry @ (JournalEntry::Finish(..)
        | JournalEntry::Release(..)
        | JournalEntry::Extend(..)
        | JournalEntry::Delivered(..)
        | JournalEntry::Flush(_)
        | JournalEntry::Sync(_)) => return Some(entry),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::ident::{AgentDid, ToolName};

    /// The start of a new run, and the receiver of its reply.
    fn start(sync: CommitSync) -> (JournalEntry, oneshot::Receiver<Result<StartReply, NoSpaceError>>) {
        let (reply, answer) = oneshot::channel();
        let start = StartRecord {
            intent: IntentId::random(),
            agent: AgentDid::parse("did:a:b").unwrap(),
            tool: ToolName::parse("t").unwrap(),
            content: [0; 32],
            proof: None,
            keep_until: 0,
            started: 0,
            verdict: None,
            fallback_receipt: "{}".to_owned(),
            task: None,
            sync,
            arguments: None,
        };
        (JournalEntry::Start(Box::new(start), reply), answer)
    }

    #[test]
    fn an_acknowledgement_does_not_make_a_start_wait_for_the_disk() {
        let begun = |sync| start(sync).0;
        let delivered = || JournalEntry::Delivered(RunId(1), 2);
        for (batch, sync) in [
            (vec![delivered(), begun(CommitSync::WithNext)], CommitSync::WithNext),
            (vec![delivered(), begun(CommitSync::Now)], CommitSync::Now),
            (vec![begun(CommitSync::WithNext), begun(CommitSync::Now)], CommitSync::Now),
            (vec![delivered()], CommitSync::Now),
        ] {
            assert_eq!(sync_of(&batch), sync);
        }
    }

    fn resolve_as(resolution: Resolution) -> Vec<ResolvedIntent> {
        vec![ResolvedIntent {
            intent: IntentId::random(),
            at: time::OffsetDateTime::UNIX_EPOCH,
            content: None,
            resolution,
            by: "x".to_owned(),
            risk_score: None,
            manifest: None,
            reason: None,
            basis: None,
            grants: Vec::new(),
            arguments: None,
        }]
    }

    #[test]
    fn denials_are_retried_on_a_full_disk_and_approvals_are_not() {
        for (resolution, is_retried) in
            [(Resolution::Denied, true), (Resolution::PartlyApproved, false), (Resolution::Approved, false)]
        {
            let (reply, mut answer) = oneshot::channel();
            let unwritten = requeue_or_reject(
                JournalEntry::Resolve(resolve_as(resolution), Some(reply)),
                &NoSpaceError::Earlier,
            );
            assert!(matches!(answer.try_recv().unwrap(), Err(NoSpaceError::Earlier)));
            assert_eq!(
                matches!(unwritten, Some(JournalEntry::Resolve(unwritten, None)) if unwritten.len() == 1),
                is_retried,
                "{resolution:?}"
            );
        }
    }
}
