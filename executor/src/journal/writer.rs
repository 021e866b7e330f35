//! The only writer: a thread that puts all queued entries into one transaction, so that many runs share one fsync.

use super::batch::{Batch, Began, Finish, Hold, Revocation, Start, Stop, Waits};
use super::chain::Head;
use super::error::{NoRoomError, WriteError};
use super::log::Refusal;
use super::store::{Run, Store};
use super::tasks::{KeptTask, Pace};
use super::{Condition, Resolution, Resolved, micros};
use crate::clock::{Clock as _, SystemClock};
use crate::error_chain::ErrorChain;
use crate::ident::IntentId;
use crate::metrics::JournalMetrics;
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
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum interval between log lines about a lack of room.
const LOG_INTERVAL: Duration = Duration::from_secs(2);

/// The sender of an answer. Dropped without an answer, it means that the journal is broken.
pub(super) type Reply<T> = oneshot::Sender<T>;
/// The reply to an entry that may find no room, with the system's error.
pub(super) type RoomReply<T> = Reply<Result<T, NoRoomError>>;

/// An entry to write. Its answer means that it is on the disk.
pub(super) enum Entry {
    /// A run may begin; or the reason for which the start cannot be written.
    Start(Box<Start>, RoomReply<Began>),
    /// A run has finished. Retried until there is room.
    Finish(Box<Finish>, Reply<()>),
    /// A claimed intent was refused before its guest began.
    Release(Run, IntentId, Reply<()>),
    /// A verdict of this intent expires later than those before.
    Keep(IntentId, i64),
    /// The governor has the report of a run, with the record of its receipt.
    Delivered(Run, i64),
    /// An intent waits for a person.
    Hold(Box<Hold>, RoomReply<Waits>),
    /// Intents no longer wait. Retried while there is no room, although its caller has been answered; an approval is
    /// not.
    Resolve(Vec<Resolved>, Option<RoomReply<usize>>),
    /// A caller stopped runs. Retried while there is no room.
    Stop(Vec<Stop>, Option<RoomReply<()>>),
    /// The governor revoked something. Retried while there is no room.
    Revoke(Box<Revocation>, Option<RoomReply<()>>),
    /// The current state of a task of the A2A door. The pace determines if it is retried while there is no room,
    /// although no caller waits any more.
    Task(Box<KeptTask>, Pace, Option<RoomReply<()>>),
    /// A call was not run.
    Refuse(Box<Refusal>),
    /// No content: every entry before it is on the disk.
    Flush(Reply<()>),
}

impl Entry {
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
            Self::Keep(..) | Self::Delivered(..) | Self::Refuse(_) => false,
        }
    }
}

/// The result of an entry.
enum Written {
    Began(Began),
    Numbered(i64),
    Waits(Waits),
    Counted(usize),
    Done,
}

/// The next work of the writer.
enum Next {
    Write(Vec<Entry>),
    /// Checks the files, or the room on the disk.
    Look,
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
struct Room {
    is_full: bool,
    /// `true` if the log has reported the lack of room, and has yet to report its end.
    is_told: bool,
    told_at: Option<Instant>,
}

impl Writer {
    /// Writes until all senders are gone, beginning with the entries in `left`, for which there was no room before.
    /// `finished` receives every receipt that is on the disk, in order.
    pub(super) fn run(
        mut self,
        entries: &Receiver<Entry>,
        mut left: Vec<Entry>,
        finished: impl Fn(i64, &Finish),
    ) {
        let _says_when_it_ends = Ends(Arc::clone(&self.condition));
        let mut room = Room::default();
        if !left.is_empty() {
            self.full(&mut room, "no room for the receipts of the process before");
        }
        loop {
            let next = if room.is_full {
                gather_while_full(entries, std::mem::take(&mut left))
            } else {
                gather(entries)
            };
            let written = match next {
                Next::End => return,
                Next::Look if room.is_full => self.store.check_room(),
                Next::Look => self.store.check_files(),
                Next::Write(batch) => self.write(batch, &mut left, &finished),
            };
            match written {
                Ok(()) => self.works(&mut room),
                Err(WriteError::NoRoom(error)) => self.full(&mut room, &ErrorChain(&error).to_string()),
                Err(WriteError::Broken(error)) => {
                    tracing::error!(reason = %ErrorChain(&error), "the journal is broken");
                    self.condition.send_replace(Condition::Broken(error));
                    return;
                }
            }
        }
    }

    /// Writes all of a batch and answers it; or writes nothing, and leaves the entries that have to be retried in
    /// `left`.
    fn write(
        &mut self,
        batch: Vec<Entry>,
        left: &mut Vec<Entry>,
        finished: &impl Fn(i64, &Finish),
    ) -> Result<(), WriteError> {
        let began = SystemClock.monotonic();
        let now = micros(SystemClock.now());
        let all = |transaction: &mut Batch<'_>| batch.iter().map(|entry| put(transaction, entry)).collect();
        match self.store.commit::<Vec<_>>(now, all) {
            Ok(written) => {
                let took = SystemClock.monotonic().saturating_duration_since(began);
                self.metrics.record_commit(batch.len(), took);
                self.head.send_replace(self.store.head());
                batch.into_iter().zip(written).for_each(|(entry, written)| answer(entry, written, finished));
                Ok(())
            }
            Err(WriteError::NoRoom(error)) => {
                left.extend(batch.into_iter().filter_map(|entry| begun(entry, &error)));
                Err(error.into())
            }
            Err(broken @ WriteError::Broken(_)) => Err(broken),
        }
    }

    fn works(&self, room: &mut Room) {
        if std::mem::take(&mut room.is_full) {
            self.condition.send_if_modified(|is| {
                let was_full = matches!(*is, Condition::Full);
                if was_full {
                    *is = Condition::Works;
                }
                was_full
            });
            if std::mem::take(&mut room.is_told) {
                tracing::info!("the journal can be written again");
            }
        }
    }

    fn full(&self, room: &mut Room, reason: &str) {
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
        let is_due = room.told_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL);
        if !room.is_told && is_due {
            (room.is_told, room.told_at) = (true, Some(now));
            tracing::error!(reason, "the journal cannot be written, and nothing more is run until it can");
        }
    }
}

/// Marks the journal as broken if its writer ends without doing so, by a panic.
struct Ends(Arc<watch::Sender<Condition>>);

impl Drop for Ends {
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
fn gather(entries: &Receiver<Entry>) -> Next {
    let mut batch = Vec::new();
    let mut patience = WATCH_INTERVAL;
    loop {
        match entries.recv_timeout(patience) {
            Ok(first) => batch.extend(std::iter::once(first).chain(entries.try_iter()).take(MAX_BATCH)),
            Err(RecvTimeoutError::Timeout) if batch.is_empty() => return Next::Look,
            Err(RecvTimeoutError::Disconnected) if batch.is_empty() => return Next::End,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Next::Write(batch),
        }
        if patience == BATCH_DELAY || batch.iter().any(Entry::is_urgent) {
            return Next::Write(batch);
        }
        // An fsync for this entry alone would delay the next run, which brings one anyway.
        patience = BATCH_DELAY;
    }
}

/// Waits until the entries in `left` are retried, and refuses entries that would need more room at once.
fn gather_while_full(entries: &Receiver<Entry>, left: Vec<Entry>) -> Next {
    let mut batch = left;
    let again_at = SystemClock.monotonic() + RETRY_DELAY;
    loop {
        match entries.recv_timeout(again_at.saturating_duration_since(SystemClock.monotonic())) {
            Ok(entry) => batch.extend(begun(entry, &NoRoomError::Earlier)),
            Err(RecvTimeoutError::Timeout) if batch.is_empty() => return Next::Look,
            Err(RecvTimeoutError::Timeout) => return Next::Write(batch),
            Err(RecvTimeoutError::Disconnected) => return Next::End,
        }
    }
}

/// Answers as if an entry were written, and stores nothing. Each `number` is used once.
pub(super) fn forget(entry: Entry, number: i64, finished: &impl Fn(i64, &Finish)) {
    let written = match &entry {
        Entry::Start(..) => Written::Began(Began::New(Run(number))),
        Entry::Finish(..) => Written::Numbered(number),
        Entry::Hold(..) => Written::Waits(Waits::Yes),
        Entry::Resolve(resolved, _) => Written::Counted(resolved.len()),
        Entry::Release(..)
        | Entry::Keep(..)
        | Entry::Delivered(..)
        | Entry::Stop(..)
        | Entry::Revoke(..)
        | Entry::Task(..)
        | Entry::Refuse(_)
        | Entry::Flush(_) => Written::Done,
    };
    answer(entry, written, finished);
}

fn put(transaction: &mut Batch<'_>, entry: &Entry) -> Result<Written, WriteError> {
    let done = |()| Written::Done;
    match entry {
        Entry::Start(start, _) => transaction.start(start).map(Written::Began),
        Entry::Finish(finish, _) => transaction.finish(finish).map(Written::Numbered),
        Entry::Release(run, intent, _) => transaction.release(*run, *intent).map(done),
        Entry::Keep(intent, until) => transaction.keep(*intent, *until).map(done),
        Entry::Delivered(run, receipt) => transaction.delivered(*run, *receipt).map(done),
        Entry::Hold(hold, _) => transaction.hold(hold).map(Written::Waits),
        Entry::Resolve(resolved, _) => {
            let each = resolved.iter().map(|resolved| transaction.resolve(resolved).map(usize::from));
            each.sum::<Result<usize, _>>().map(Written::Counted)
        }
        Entry::Stop(stops, _) => stops.iter().try_for_each(|stop| transaction.stop(stop)).map(done),
        Entry::Revoke(revocation, _) => transaction.revoke(revocation).map(done),
        Entry::Task(task, ..) => transaction.keep_task(task).map(done),
        Entry::Refuse(refusal) => transaction.refuse(refusal).map(done),
        Entry::Flush(_) => Ok(Written::Done),
    }
}

/// Answers the caller that waits, if there is one.
fn answer(entry: Entry, written: Written, finished: &impl Fn(i64, &Finish)) {
    match (entry, written) {
        (Entry::Start(_, reply), Written::Began(began)) => {
            let _nobody_waits = reply.send(Ok(began));
        }
        (Entry::Finish(finish, reply), Written::Numbered(number)) => {
            finished(number, &finish);
            let _nobody_waits = reply.send(());
        }
        (Entry::Release(_, _, reply) | Entry::Flush(reply), Written::Done) => {
            let _nobody_waits = reply.send(());
        }
        (Entry::Hold(_, reply), Written::Waits(waits)) => {
            let _nobody_waits = reply.send(Ok(waits));
        }
        (Entry::Resolve(_, Some(reply)), Written::Counted(count)) => {
            let _nobody_waits = reply.send(Ok(count));
        }
        (
            Entry::Stop(_, Some(reply)) | Entry::Revoke(_, Some(reply)) | Entry::Task(_, _, Some(reply)),
            Written::Done,
        ) => {
            let _nobody_waits = reply.send(Ok(()));
        }
        (
            Entry::Start(..)
            | Entry::Finish(..)
            | Entry::Release(..)
            | Entry::Keep(..)
            | Entry::Delivered(..)
            | Entry::Hold(..)
            | Entry::Resolve(..)
            | Entry::Stop(..)
            | Entry::Revoke(..)
            | Entry::Task(..)
            | Entry::Refuse(_)
            | Entry::Flush(_),
            Written::Began(_)
            | Written::Numbered(_)
            | Written::Waits(_)
            | Written::Counted(_)
            | Written::Done,
        ) => {}
    }
}

/// Answers a waiting caller that there is no room.
fn refuse<T>(reply: Option<RoomReply<T>>, reason: &NoRoomError) {
    let _nobody_waits = reply.map(|reply| reply.send(Err(reason.clone())));
}

/// Refuses an entry that has not begun; returns one that has, to be written later.
fn begun(entry: Entry, reason: &NoRoomError) -> Option<Entry> {
    match entry {
        Entry::Start(_, reply) => refuse(Some(reply), reason),
        Entry::Hold(_, reply) => refuse(Some(reply), reason),
        Entry::Resolve(resolved, reply) => {
            refuse(reply, reason);
            // A retried approval would run the intent after its approver was told that there was no room.
            let is_approval = resolved.iter().any(|resolved| resolved.how == Resolution::Approved);
            return (!is_approval).then_some(Entry::Resolve(resolved, None));
        }
        Entry::Stop(stops, reply) => {
            refuse(reply, reason);
            return Some(Entry::Stop(stops, None));
        }
        Entry::Revoke(revocation, reply) => {
            refuse(reply, reason);
            return Some(Entry::Revoke(revocation, None));
        }
        Entry::Task(task, pace, reply) => {
            refuse(reply, reason);
            match pace {
                Pace::AtOnce => return Some(Entry::Task(task, pace, None)),
                Pace::NowOrNever => {}
            }
        }
        Entry::Refuse(_) => {}
        begun @ (Entry::Finish(..)
        | Entry::Release(..)
        | Entry::Keep(..)
        | Entry::Delivered(..)
        | Entry::Flush(_)) => return Some(begun),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(how: Resolution) -> Vec<Resolved> {
        vec![Resolved {
            intent: IntentId::random(),
            how,
            by: "x".to_owned(),
            risk_score: None,
            manifest: None,
        }]
    }

    #[test]
    fn on_a_full_disk_a_denial_is_told_and_tried_on_and_an_approval_never_was() {
        for (how, is_left) in [(Resolution::Denied, true), (Resolution::Approved, false)] {
            let (reply, mut answer) = oneshot::channel();
            let left = begun(Entry::Resolve(resolved(how), Some(reply)), &NoRoomError::Earlier);
            assert!(matches!(answer.try_recv().unwrap(), Err(NoRoomError::Earlier)));
            assert_eq!(
                matches!(left, Some(Entry::Resolve(left, None)) if left.len() == 1),
                is_left,
                "{how:?}"
            );
        }
    }
}
