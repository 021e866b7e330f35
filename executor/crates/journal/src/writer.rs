//! The only writer: a thread that puts all queued entries into one transaction, so that many runs share one fsync.

use super::batch::{
    Batch, FinishRecord, HoldRecord, HoldResult, RevocationRecord, StartRecord, StartReply, StopRecord,
};
use super::chain::Head;
use super::error::{NoRoomError, WriteError};
use super::log::RefusalRecord;
use super::store::{RunId, Store};
use super::tasks::{JournalTask, RetryPolicy};
use super::{Condition, Resolution, ResolvedIntent, to_micros};
use a2g_metrics::JournalMetrics;
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::error_chain::ErrorChain;
use a2g_types::ident::IntentId;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// The maximum number of entries in one transaction.
const MAX_BATCH: usize = 512;
/// The pause before entries for which there was no room are retried.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// The maximum wait of an entry without a waiting caller for the next entry.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// The interval between checks of the files while nothing is written.
// A journal that vanishes under an idle server has to stop it too, before a call relies on it.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum interval between log lines about a lack of room.
const LOG_INTERVAL: Duration = Duration::from_secs(2);

/// The sender of an answer. Dropped without an answer, it means that the journal is broken.
pub(super) type Reply<T> = oneshot::Sender<T>;
/// The reply to an entry that may find no room, with the system's error.
pub(super) type RoomReply<T> = Reply<Result<T, NoRoomError>>;

/// An entry to write. Its answer means that it is on the disk.
pub(super) enum JournalEntry {
    /// A run may begin; or the reason for which the start cannot be written.
    Start(Box<StartRecord>, RoomReply<StartReply>),
    /// A run has finished. Retried until there is room.
    Finish(Box<FinishRecord>, Reply<()>),
    /// A claimed intent was refused before its guest began.
    Release(RunId, IntentId, Reply<()>),
    /// A verdict of this intent expires later than those before.
    Extend(IntentId, i64),
    /// The governor has the report of a run, with the record of its receipt.
    Delivered(RunId, i64),
    /// An intent waits for a person.
    Hold(Box<HoldRecord>, RoomReply<HoldResult>),
    /// Intents no longer wait. Retried while there is no room, although its caller has been answered; an approval is
    /// not.
    Resolve(Vec<ResolvedIntent>, Option<RoomReply<usize>>),
    /// A caller stopped runs. Retried while there is no room.
    Stop(Vec<StopRecord>, Option<RoomReply<()>>),
    /// The governor revoked something. Retried while there is no room.
    Revoke(Box<RevocationRecord>, Option<RoomReply<()>>),
    /// The current state of a task. The policy determines if it is retried while there is no room,
    /// although no caller waits any more.
    Task(Box<JournalTask>, RetryPolicy, Option<RoomReply<()>>),
    /// A call was not run.
    Refuse(Box<RefusalRecord>),
    /// No content: every entry before it is on the disk.
    Flush(Reply<()>),
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
            | Self::Task(..)
            | Self::Flush(_) => true,
            // No caller waits for these, so an fsync for them alone would only delay the next run.
            Self::Extend(..) | Self::Delivered(..) | Self::Refuse(_) => false,
        }
    }
}

/// The result of an entry.
enum EntryResult {
    Started(StartReply),
    Numbered(i64),
    Held(HoldResult),
    Counted(usize),
    Done,
}

/// The next work of the writer.
enum WriterAction {
    Write(Vec<JournalEntry>),
    /// Checks the files, or the room on the disk.
    Check,
    /// All senders are gone.
    End,
}

/// The writer's side of the journal.
pub(super) struct Writer {
    pub(super) store: Store,
    pub(super) head: watch::Sender<Head>,
    pub(super) condition: Arc<watch::Sender<Condition>>,
    pub(super) metrics: JournalMetrics,
}

/// The room on the disk, and its state in the log.
#[derive(Default)]
struct DiskRoom {
    is_full: bool,
    /// `true` if the log has reported the lack of room, and has yet to report its end.
    is_reported: bool,
    reported_at: Option<Instant>,
}

impl Writer {
    /// Writes until all senders are gone, beginning with the entries in `unwritten`, for which there was no room before.
    /// `on_finished` receives every receipt that is on the disk, in order.
    pub(super) fn run(
        mut self,
        entries: &Receiver<JournalEntry>,
        mut unwritten: Vec<JournalEntry>,
        on_finished: impl Fn(i64, &FinishRecord),
    ) {
        let _break_on_exit = BreakOnExit(Arc::clone(&self.condition));
        let mut room = DiskRoom::default();
        if !unwritten.is_empty() {
            self.mark_full(&mut room, "no room for the receipts of the process before");
        }
        loop {
            let next = if room.is_full {
                gather_while_full(entries, std::mem::take(&mut unwritten))
            } else {
                gather(entries)
            };
            let written = match next {
                WriterAction::End => return,
                // Claims are refused while the disk is full, so without this attempt no entry would ever find that
                // there is room.
                WriterAction::Check if room.is_full => self.store.check_room(),
                WriterAction::Check => self.store.check_files(),
                WriterAction::Write(batch) => self.write(batch, &mut unwritten, &on_finished),
            };
            match written {
                Ok(()) => self.mark_writable(&mut room),
                Err(WriteError::NoRoom(error)) => self.mark_full(&mut room, &ErrorChain(&error).to_string()),
                // There is no second attempt: after a failed fsync the kernel may have dropped the pages, and a later
                // success proves nothing.
                Err(WriteError::Broken(error)) => {
                    tracing::error!(reason = %ErrorChain(&error), "the journal is broken");
                    self.condition.send_replace(Condition::Broken(error));
                    return;
                }
            }
        }
    }

    /// Writes all of a batch and answers it; or writes nothing, and leaves the entries that have to be retried in
    /// `unwritten`.
    fn write(
        &mut self,
        batch: Vec<JournalEntry>,
        unwritten: &mut Vec<JournalEntry>,
        on_finished: &impl Fn(i64, &FinishRecord),
    ) -> Result<(), WriteError> {
        let began = SystemClock.monotonic();
        let now = to_micros(SystemClock.now());
        let all =
            |transaction: &mut Batch<'_>| batch.iter().map(|entry| write_entry(transaction, entry)).collect();
        match self.store.commit::<Vec<_>>(now, all) {
            Ok(written) => {
                let took = SystemClock.monotonic().saturating_duration_since(began);
                self.metrics.record_commit(batch.len(), took);
                self.head.send_replace(self.store.head());
                batch
                    .into_iter()
                    .zip(written)
                    .for_each(|(entry, written)| send_reply(entry, written, on_finished));
                Ok(())
            }
            Err(WriteError::NoRoom(error)) => {
                unwritten.extend(batch.into_iter().filter_map(|entry| requeue_or_reject(entry, &error)));
                Err(error.into())
            }
            Err(broken @ WriteError::Broken(_)) => Err(broken),
        }
    }

    fn mark_writable(&self, room: &mut DiskRoom) {
        if std::mem::take(&mut room.is_full) {
            self.condition.send_if_modified(|is| {
                // A reader may have found damage meanwhile, and that stays.
                let was_full = matches!(*is, Condition::Full);
                if was_full {
                    *is = Condition::Works;
                }
                was_full
            });
            if std::mem::take(&mut room.is_reported) {
                tracing::info!("the journal can be written again");
            }
        }
    }

    fn mark_full(&self, room: &mut DiskRoom, reason: &str) {
        if !std::mem::replace(&mut room.is_full, true) {
            self.condition.send_if_modified(|is| {
                let worked = matches!(*is, Condition::Works);
                if worked {
                    *is = Condition::Full;
                }
                worked
            });
        }
        let now = SystemClock.monotonic();
        let is_due = room.reported_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL);
        if !room.is_reported && is_due {
            (room.is_reported, room.reported_at) = (true, Some(now));
            tracing::error!(reason, "the journal cannot be written, and nothing more is run until it can");
        }
    }
}

/// Marks the journal as broken if its writer ends without doing so, by a panic.
struct BreakOnExit(Arc<watch::Sender<Condition>>);

impl Drop for BreakOnExit {
    fn drop(&mut self) {
        self.0.send_if_modified(|is| {
            let is_new = !matches!(is, Condition::Broken(_));
            if is_new {
                *is = Condition::Broken("its writer is gone".into());
            }
            is_new
        });
    }
}

/// Waits for entries to write.
fn gather(entries: &Receiver<JournalEntry>) -> WriterAction {
    let mut batch = Vec::new();
    let mut timeout = WATCH_INTERVAL;
    loop {
        match entries.recv_timeout(timeout) {
            // Only entries that already wait are taken: waiting for more would delay a lonely caller, and the next
            // batch gathers while this one is written.
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
        // An fsync for this entry alone would delay the next run, which brings one anyway.
        timeout = BATCH_DELAY;
    }
}

/// Waits until the entries in `unwritten` are retried, and refuses entries that would need more room at once.
fn gather_while_full(entries: &Receiver<JournalEntry>, unwritten: Vec<JournalEntry>) -> WriterAction {
    let mut batch = unwritten;
    let again_at = SystemClock.monotonic() + RETRY_DELAY;
    loop {
        match entries.recv_timeout(again_at.saturating_duration_since(SystemClock.monotonic())) {
            // A new entry is answered at once: its caller must not wait until there is room on a full disk.
            Ok(entry) => batch.extend(requeue_or_reject(entry, &NoRoomError::Earlier)),
            Err(RecvTimeoutError::Timeout) if batch.is_empty() => return WriterAction::Check,
            Err(RecvTimeoutError::Timeout) => return WriterAction::Write(batch),
            // Receipts that still find no room are given up here; the next start writes the fallback receipts of these
            // runs.
            Err(RecvTimeoutError::Disconnected) => return WriterAction::End,
        }
    }
}

/// Answers as if an entry were written, and stores nothing. Each `number` is used once.
pub(super) fn answer_in_memory(entry: JournalEntry, number: i64, on_finished: &impl Fn(i64, &FinishRecord)) {
    let written = match &entry {
        JournalEntry::Start(..) => EntryResult::Started(StartReply::New(RunId(number))),
        JournalEntry::Finish(..) => EntryResult::Numbered(number),
        JournalEntry::Hold(..) => EntryResult::Held(HoldResult::Waiting),
        JournalEntry::Resolve(resolved, _) => EntryResult::Counted(resolved.len()),
        JournalEntry::Release(..)
        | JournalEntry::Extend(..)
        | JournalEntry::Delivered(..)
        | JournalEntry::Stop(..)
        | JournalEntry::Revoke(..)
        | JournalEntry::Task(..)
        | JournalEntry::Refuse(_)
        | JournalEntry::Flush(_) => EntryResult::Done,
    };
    send_reply(entry, written, on_finished);
}

fn write_entry(transaction: &mut Batch<'_>, entry: &JournalEntry) -> Result<EntryResult, WriteError> {
    let done = |()| EntryResult::Done;
    match entry {
        JournalEntry::Start(start, _) => transaction.start(start).map(EntryResult::Started),
        JournalEntry::Finish(finish, _) => transaction.finish(finish).map(EntryResult::Numbered),
        JournalEntry::Release(run, intent, _) => transaction.release(*run, *intent).map(done),
        JournalEntry::Extend(intent, until) => transaction.extend_claim(*intent, *until).map(done),
        JournalEntry::Delivered(run, receipt) => transaction.mark_delivered(*run, *receipt).map(done),
        JournalEntry::Hold(hold, _) => transaction.hold(hold).map(EntryResult::Held),
        JournalEntry::Resolve(resolved, _) => {
            let each = resolved.iter().map(|resolved| transaction.resolve(resolved).map(usize::from));
            each.sum::<Result<usize, _>>().map(EntryResult::Counted)
        }
        JournalEntry::Stop(stops, _) => {
            stops.iter().try_for_each(|stop| transaction.record_stop(stop)).map(done)
        }
        JournalEntry::Revoke(revocation, _) => transaction.record_revocation(revocation).map(done),
        JournalEntry::Task(task, ..) => transaction.store_task(task).map(done),
        JournalEntry::Refuse(refusal) => transaction.record_refusal(refusal).map(done),
        JournalEntry::Flush(_) => Ok(EntryResult::Done),
    }
}

/// Answers the caller that waits, if there is one.
fn send_reply(entry: JournalEntry, written: EntryResult, on_finished: &impl Fn(i64, &FinishRecord)) {
    match (entry, written) {
        (JournalEntry::Start(_, reply), EntryResult::Started(start_reply)) => {
            let _no_waiter = reply.send(Ok(start_reply));
        }
        (JournalEntry::Finish(finish, reply), EntryResult::Numbered(number)) => {
            on_finished(number, &finish);
            let _no_waiter = reply.send(());
        }
        (JournalEntry::Release(_, _, reply) | JournalEntry::Flush(reply), EntryResult::Done) => {
            let _no_waiter = reply.send(());
        }
        (JournalEntry::Hold(_, reply), EntryResult::Held(waits)) => {
            let _no_waiter = reply.send(Ok(waits));
        }
        (JournalEntry::Resolve(_, Some(reply)), EntryResult::Counted(count)) => {
            let _no_waiter = reply.send(Ok(count));
        }
        (
            JournalEntry::Stop(_, Some(reply))
            | JournalEntry::Revoke(_, Some(reply))
            | JournalEntry::Task(_, _, Some(reply)),
            EntryResult::Done,
        ) => {
            let _no_waiter = reply.send(Ok(()));
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
            | JournalEntry::Task(..)
            | JournalEntry::Refuse(_)
            | JournalEntry::Flush(_),
            EntryResult::Started(_)
            | EntryResult::Numbered(_)
            | EntryResult::Held(_)
            | EntryResult::Counted(_)
            | EntryResult::Done,
        ) => {}
    }
}

/// Answers a waiting caller that there is no room.
fn reply_no_room<T>(reply: Option<RoomReply<T>>, reason: &NoRoomError) {
    let _no_waiter = reply.map(|reply| reply.send(Err(reason.clone())));
}

/// Refuses an entry that has not begun; returns one that has, to be written later.
fn requeue_or_reject(entry: JournalEntry, reason: &NoRoomError) -> Option<JournalEntry> {
    match entry {
        // A start is refused and not retried: its guest has not begun, and its caller can send the intent again.
        JournalEntry::Start(_, reply) => reply_no_room(Some(reply), reason),
        JournalEntry::Hold(_, reply) => reply_no_room(Some(reply), reason),
        JournalEntry::Resolve(resolved, reply) => {
            reply_no_room(reply, reason);
            // A retried approval would run the intent after its approver was told that there was no room.
            let is_approval = resolved.iter().any(|resolved| resolved.resolution == Resolution::Approved);
            return (!is_approval).then_some(JournalEntry::Resolve(resolved, None));
        }
        // The stop has taken effect already, so its record is owed however long the disk stays full.
        JournalEntry::Stop(stops, reply) => {
            reply_no_room(reply, reason);
            return Some(JournalEntry::Stop(stops, None));
        }
        JournalEntry::Revoke(revocation, reply) => {
            reply_no_room(reply, reason);
            return Some(JournalEntry::Revoke(revocation, None));
        }
        JournalEntry::Task(task, retry_policy, reply) => {
            reply_no_room(reply, reason);
            match retry_policy {
                RetryPolicy::Retry => return Some(JournalEntry::Task(task, retry_policy, None)),
                RetryPolicy::FailFast => {}
            }
        }
        // Every call on a full disk makes a refusal, so keeping them would take memory without a bound; the log has
        // them.
        JournalEntry::Refuse(_) => {}
        // These say what has happened, which no refusal can undo.
        begun @ (JournalEntry::Finish(..)
        | JournalEntry::Release(..)
        | JournalEntry::Extend(..)
        | JournalEntry::Delivered(..)
        | JournalEntry::Flush(_)) => return Some(begun),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve_as(resolution: Resolution) -> Vec<ResolvedIntent> {
        vec![ResolvedIntent {
            intent: IntentId::random(),
            resolution,
            by: "x".to_owned(),
            risk_score: None,
            manifest: None,
        }]
    }

    #[test]
    fn full_disk_retries_denials_but_not_approvals() {
        for (resolution, is_left) in [(Resolution::Denied, true), (Resolution::Approved, false)] {
            let (reply, mut answer) = oneshot::channel();
            let unwritten = requeue_or_reject(
                JournalEntry::Resolve(resolve_as(resolution), Some(reply)),
                &NoRoomError::Earlier,
            );
            assert!(matches!(answer.try_recv().unwrap(), Err(NoRoomError::Earlier)));
            assert_eq!(
                matches!(unwritten, Some(JournalEntry::Resolve(unwritten, None)) if unwritten.len() == 1),
                is_left,
                "{resolution:?}"
            );
        }
    }
}
