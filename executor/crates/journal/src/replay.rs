//! The effect of each record on its intent: the only table of the permitted order of records.

use super::chain::Hash;
use super::record::RecordKind;

/// The state of an intent after some of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplayState {
    Unknown,
    Waiting(i64),
    Approved(i64),
    Denied,
    Started(i64),
    Ended {
        claim: i64,
        receipt: i64,
    },
    /// The governor has the report, or pruning left nothing but the record that the intent ran. Contains that record.
    Closed(i64),
}

/// An intent that is open or has a task.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplayedIntent {
    pub(super) state: ReplayState,
    /// The hash of the row of its task.
    pub(super) task: Option<Hash>,
}

/// The columns of a record that decide the next state of its intent.
pub(super) struct ReplayStep {
    pub(super) number: i64,
    pub(super) kind: RecordKind,
    pub(super) about: Option<i64>,
    /// The hash of the row of its task.
    pub(super) task: Option<Hash>,
}

impl ReplayedIntent {
    pub(super) const UNKNOWN: Self = Self { state: ReplayState::Unknown, task: None };

    /// The state after one more record; `None` if the record contradicts those before. A missing record may be one of
    /// those up to `first`, which were pruned.
    pub(super) fn after(self, step: &ReplayStep, first: i64) -> Option<Self> {
        let ReplayStep { number, kind, about, task } = *step;
        // Pruning cuts the chain at any record, also between those of one intent, so a later one may refer to one that
        // is gone.
        let of_pruned = about.is_none_or(|about| about <= first);
        let same = |record: i64| about == Some(record);
        let state = match (kind, self.state) {
            (RecordKind::Held, ReplayState::Unknown) => ReplayState::Waiting(number),
            // Carried over by pruning.
            (RecordKind::Held, ReplayState::Waiting(held) | ReplayState::Approved(held)) if held <= first => {
                ReplayState::Waiting(number)
            }
            // A decision counts for the wait that it names: an intent may wait again later, with other content.
            (RecordKind::Approved, ReplayState::Waiting(held)) if same(held) => ReplayState::Approved(held),
            (RecordKind::Approved, ReplayState::Unknown) if of_pruned => ReplayState::Approved(about?),
            (RecordKind::Denied, ReplayState::Waiting(held)) if same(held) => ReplayState::Denied,
            (RecordKind::Denied, ReplayState::Unknown) if of_pruned => ReplayState::Denied,
            // An intent that was taken back may be sent again and is put to a person again; only a denial is for good.
            (
                RecordKind::Cancelled | RecordKind::Revoked | RecordKind::Expired,
                ReplayState::Waiting(held) | ReplayState::Approved(held),
            ) if same(held) => ReplayState::Unknown,
            (
                RecordKind::Cancelled | RecordKind::Revoked | RecordKind::Expired | RecordKind::Released,
                ReplayState::Unknown,
            ) if of_pruned => ReplayState::Unknown,
            (RecordKind::Claim, ReplayState::Unknown) if of_pruned => ReplayState::Started(number),
            (RecordKind::Claim, ReplayState::Waiting(held) | ReplayState::Approved(held)) if same(held) => {
                ReplayState::Started(number)
            }
            (RecordKind::Receipt, ReplayState::Started(claim)) if same(claim) => {
                ReplayState::Ended { claim, receipt: number }
            }
            (RecordKind::Receipt, ReplayState::Unknown) if of_pruned => {
                ReplayState::Ended { claim: about?, receipt: number }
            }
            (RecordKind::Released, ReplayState::Started(claim)) if same(claim) => ReplayState::Unknown,
            // The receipt that a carried claim names may still be in the chain.
            (RecordKind::Used, ReplayState::Unknown) if of_pruned || about > Some(first) => {
                ReplayState::Closed(number)
            }
            // Each pruning writes a promise again that is still due, so one carried claim may follow another.
            (RecordKind::Used, ReplayState::Closed(claim)) if claim <= first => ReplayState::Closed(number),
            (
                RecordKind::Kept,
                ReplayState::Started(_) | ReplayState::Ended { .. } | ReplayState::Closed(_),
            ) => self.state,
            (RecordKind::Kept, ReplayState::Unknown) if of_pruned => ReplayState::Unknown,
            (
                RecordKind::Stopped | RecordKind::Revocation | RecordKind::Task | RecordKind::TaskDropped,
                _any,
            ) => self.state,
            (
                RecordKind::Held
                | RecordKind::Approved
                | RecordKind::Denied
                | RecordKind::Cancelled
                | RecordKind::Revoked
                | RecordKind::Expired
                | RecordKind::Claim
                | RecordKind::Receipt
                | RecordKind::Released
                | RecordKind::Used
                | RecordKind::Kept
                | RecordKind::Delivered
                | RecordKind::Refusals
                | RecordKind::Pruned
                | RecordKind::Migrated,
                _any,
            ) => return None,
        };
        let task = match kind {
            RecordKind::Task => Some(task?),
            RecordKind::TaskDropped => None,
            RecordKind::Held
            | RecordKind::Approved
            | RecordKind::Denied
            | RecordKind::Cancelled
            | RecordKind::Revoked
            | RecordKind::Expired
            | RecordKind::Claim
            | RecordKind::Receipt
            | RecordKind::Released
            | RecordKind::Used
            | RecordKind::Kept
            | RecordKind::Stopped
            | RecordKind::Revocation
            | RecordKind::Delivered
            | RecordKind::Refusals
            | RecordKind::Pruned
            | RecordKind::Migrated => self.task,
        };
        Some(Self { state, task })
    }

    /// `true` if no row of another table exists because of this intent.
    pub(super) fn is_settled(&self) -> bool {
        self.task.is_none()
            && matches!(self.state, ReplayState::Unknown | ReplayState::Denied | ReplayState::Closed(_))
    }
}
