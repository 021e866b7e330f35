//! The one writer: a thread that puts everything that waits into one transaction, so that many runs
//! share one fsync.

use super::chain::Head;
use super::store::{Batch, Began, Finish, Refusal, Run, Start, Store, Trouble, stored};
use super::tasks::{KeptTask, Pace};
use crate::clock::{Clock as _, SystemClock};
use crate::ident::IntentId;
use crate::metrics::JournalMetrics;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// The most entries of one transaction.
const MOST_AT_ONCE: usize = 512;
/// How long to wait before what found no room is tried again.
const BEFORE_ANOTHER: Duration = Duration::from_millis(200);

/// How long something that nobody waits for may wait for the next one.
const FOR_COMPANY: Duration = Duration::from_millis(100);

/// Where an answer is waited for. Dropped without one, the journal is broken.
pub(super) type Reply<T> = oneshot::Sender<T>;

/// Something to write. An answer means that it is on the disk.
pub(super) enum Entry {
    /// A run may begin; or the reason why that cannot be written.
    Start(Box<Start>, Reply<Result<Began, String>>),
    /// A run is over. It is tried until there is room.
    Finish(Box<Finish>, Reply<()>),
    /// A claimed intent was refused before its guest began.
    Release(Run, Reply<()>),
    /// A verdict of this intent expires later than those before.
    Keep(IntentId, i64),
    /// The governor has the report of a run.
    Delivered(Run),
    /// An intent waits for a person. Answered with whether it does: one that has started does not.
    Hold(IntentId, String, Reply<Result<bool, String>>),
    /// Intents do so no longer. While there is no room it is tried on, though nobody waits any more.
    LetGo(Vec<IntentId>, Option<Reply<Result<(), String>>>),
    /// A task of the A2A door is like this now. Its pace says whether it is tried on while there is no room,
    /// though nobody waits any more.
    Task(Box<KeptTask>, Pace, Option<Reply<Result<(), String>>>),
    /// Something was not run.
    Refuse(Box<Refusal>),
    /// Nothing: everything before it is on the disk.
    Flush(Reply<()>),
}

impl Entry {
    /// Whether it has to be on the disk as soon as it can be.
    fn is_urgent(&self) -> bool {
        match self {
            Self::Start(..)
            | Self::Finish(..)
            | Self::Release(..)
            | Self::Hold(..)
            | Self::LetGo(..)
            | Self::Task(..)
            | Self::Flush(_) => true,
            Self::Keep(..) | Self::Delivered(_) | Self::Refuse(_) => false,
        }
    }
}

/// What an entry came to.
enum Written {
    Began(Began),
    Numbered(u64),
    Waits(bool),
    Done,
}

/// Writes until nobody has anything to say any more. `finished` hears of every receipt that is on
/// the disk, in order; `broken` of the end of all writing.
pub(super) fn write(
    mut store: Store,
    entries: &Receiver<Entry>,
    head: &watch::Sender<Head>,
    broken: &watch::Sender<Option<Arc<str>>>,
    metrics: &JournalMetrics,
    finished: impl Fn(u64, &Finish),
) {
    // What has to be written, and found no room.
    let mut left: Vec<Entry> = Vec::new();
    loop {
        let stuck = !left.is_empty();
        let Some(batch) = gather(entries, std::mem::take(&mut left)) else { return };
        let began = SystemClock.monotonic();
        match store.commit(|transaction| {
            batch.iter().map(|entry| put(transaction, entry)).collect::<Result<Vec<_>, _>>()
        }) {
            Ok(written) => {
                if stuck {
                    tracing::info!("the journal can be written again");
                }
                metrics.committed(batch.len(), SystemClock.monotonic().saturating_duration_since(began));
                head.send_replace(store.head());
                batch
                    .into_iter()
                    .zip(written)
                    .for_each(|(entry, written)| answer(entry, &written, &finished));
            }
            Err(Trouble::Later(reason)) => {
                if !stuck {
                    tracing::error!(
                        reason,
                        "the journal cannot be written, and nothing more is run until it can"
                    );
                }
                left = batch.into_iter().filter_map(|entry| begun(entry, &reason)).collect();
            }
            Err(Trouble::Broken(reason)) => {
                tracing::error!(reason, "the journal is broken: what is on the disk is not known");
                broken.send_replace(Some(reason.into()));
                return;
            }
        }
    }
}

/// Waits for something to write, beside what is `left`; `None` when nobody is there any more.
fn gather(entries: &Receiver<Entry>, left: Vec<Entry>) -> Option<Vec<Entry>> {
    let stuck = !left.is_empty();
    let mut batch = left;
    let mut patience = stuck.then_some(BEFORE_ANOTHER);
    loop {
        let first = match patience {
            None => entries.recv().map_err(|_nobody| RecvTimeoutError::Disconnected),
            Some(patience) => entries.recv_timeout(patience),
        };
        match first {
            Ok(first) => {
                let new = std::iter::once(first).chain(entries.try_iter()).take(MOST_AT_ONCE);
                // While reports find no room, nothing may begin that would need another.
                let may = |entry| if stuck { begun(entry, "no room for a report") } else { Some(entry) };
                batch.extend(new.filter_map(may));
            }
            Err(RecvTimeoutError::Timeout) => return Some(batch),
            Err(RecvTimeoutError::Disconnected) => return (!stuck && !batch.is_empty()).then_some(batch),
        }
        if patience.is_some() || batch.iter().any(Entry::is_urgent) {
            return Some(batch);
        }
        // An fsync for it alone would keep the next run waiting, which brings one anyway.
        patience = Some(FOR_COMPANY);
    }
}

/// Answers as if an entry were written, and keeps nothing. Every `number` is given once.
pub(super) fn forget(entry: Entry, number: u64, finished: &impl Fn(u64, &Finish)) {
    let written = match &entry {
        Entry::Start(..) => Written::Began(Began::New(Run(stored(number)))),
        Entry::Finish(..) => Written::Numbered(number),
        Entry::Hold(..) => Written::Waits(true),
        Entry::Release(..)
        | Entry::Keep(..)
        | Entry::Delivered(_)
        | Entry::LetGo(..)
        | Entry::Task(..)
        | Entry::Refuse(_)
        | Entry::Flush(_) => Written::Done,
    };
    answer(entry, &written, finished);
}

fn put(transaction: &mut Batch<'_>, entry: &Entry) -> rusqlite::Result<Written> {
    match entry {
        Entry::Start(start, _) => transaction.start(start).map(Written::Began),
        Entry::Finish(finish, _) => transaction.finish(finish).map(Written::Numbered),
        Entry::Release(run, _) => transaction.release(*run).map(|()| Written::Done),
        Entry::Keep(intent, until) => transaction.keep(*intent, *until).map(|()| Written::Done),
        Entry::Delivered(run) => transaction.delivered(*run).map(|()| Written::Done),
        Entry::Hold(intent, held, _) => transaction.hold(*intent, held).map(Written::Waits),
        Entry::LetGo(intents, _) => {
            intents.iter().try_for_each(|intent| transaction.let_go(*intent)).map(|()| Written::Done)
        }
        Entry::Task(task, ..) => transaction.keep_task(task).map(|()| Written::Done),
        Entry::Refuse(refusal) => transaction.refuse(refusal).map(|()| Written::Done),
        Entry::Flush(_) => Ok(Written::Done),
    }
}

/// Tells whoever waits. One who waits no longer is told nothing.
fn answer(entry: Entry, written: &Written, finished: &impl Fn(u64, &Finish)) {
    match (entry, written) {
        (Entry::Start(_, reply), Written::Began(began)) => {
            let _nobody_waits = reply.send(Ok(*began));
        }
        (Entry::Finish(finish, reply), Written::Numbered(number)) => {
            finished(*number, &finish);
            let _nobody_waits = reply.send(());
        }
        (Entry::Release(_, reply) | Entry::Flush(reply), Written::Done) => {
            let _nobody_waits = reply.send(());
        }
        (Entry::Hold(_, _, reply), Written::Waits(waits)) => {
            let _nobody_waits = reply.send(Ok(*waits));
        }
        (Entry::LetGo(_, Some(reply)) | Entry::Task(_, _, Some(reply)), Written::Done) => {
            let _nobody_waits = reply.send(Ok(()));
        }
        (
            Entry::Start(..)
            | Entry::Finish(..)
            | Entry::Release(..)
            | Entry::Keep(..)
            | Entry::Delivered(_)
            | Entry::Hold(..)
            | Entry::LetGo(..)
            | Entry::Task(..)
            | Entry::Refuse(_)
            | Entry::Flush(_),
            Written::Began(_) | Written::Numbered(_) | Written::Waits(_) | Written::Done,
        ) => {}
    }
}

/// Refuses what has not begun; what has is given back, to be written later.
fn begun(entry: Entry, reason: &str) -> Option<Entry> {
    match entry {
        Entry::Start(_, reply) => {
            let _nobody_waits = reply.send(Err(reason.to_owned()));
        }
        Entry::Hold(_, _, reply) => {
            let _nobody_waits = reply.send(Err(reason.to_owned()));
        }
        Entry::LetGo(intents, reply) => {
            let _nobody_waits = reply.map(|reply| reply.send(Err(reason.to_owned())));
            return Some(Entry::LetGo(intents, None));
        }
        Entry::Task(task, pace, reply) => {
            let _nobody_waits = reply.map(|reply| reply.send(Err(reason.to_owned())));
            match pace {
                Pace::AtOnce => return Some(Entry::Task(task, pace, None)),
                Pace::NowOrNever => {}
            }
        }
        Entry::Refuse(_) => {}
        begun @ (Entry::Finish(..)
        | Entry::Release(..)
        | Entry::Keep(..)
        | Entry::Delivered(_)
        | Entry::Flush(_)) => return Some(begun),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lets_an_intent_go_on_a_full_disk_is_told_and_it_is_tried_on() {
        let (reply, mut answer) = oneshot::channel();
        let left = begun(Entry::LetGo(vec![IntentId::random()], Some(reply)), "full");
        assert_eq!(answer.try_recv().unwrap(), Err("full".to_owned()));
        let Some(Entry::LetGo(left, None)) = left else { panic!("it has to be written later") };
        assert_eq!(left.len(), 1);
    }
}
