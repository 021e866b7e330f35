//! The effect of each record on its intent, and with it the permitted order of records.

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
    /// The report was delivered, or pruning left only the copy of the claim. Contains the record of the claim or copy.
    Closed(i64),
}

/// The state of an intent and of its task.
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
    /// The hash of the task's row, in a record of a task.
    pub(super) task: Option<Hash>,
}

impl ReplayedIntent {
    pub(super) const UNKNOWN: Self = Self { state: ReplayState::Unknown, task: None };

    /// The state after one more record; `None` if the record contradicts the earlier ones. The records up to `first`
    /// were pruned, and may be missing.
    pub(super) fn after(self, step: &ReplayStep, first: i64) -> Option<Self> {
        let ReplayStep { number, kind, about, task } = *step;
        // Pruning can cut the chain between the records of one intent, so a record may refer to a pruned one.
        let is_about_pruned = about.is_none_or(|about| about <= first);
        let is_about = |record: i64| about == Some(record);
        let state = match (kind, self.state) {
            (RecordKind::Held, ReplayState::Unknown) => ReplayState::Waiting(number),
            // A copy by pruning.
            (RecordKind::Held, ReplayState::Waiting(held) | ReplayState::Approved(held)) if held <= first => {
                ReplayState::Waiting(number)
            }
            // A decision applies only to the wait that it names: the intent may wait again later, with other content.
            (RecordKind::Approved, ReplayState::Waiting(held)) if is_about(held) => {
                ReplayState::Approved(held)
            }
            (RecordKind::PartlyApproved, ReplayState::Waiting(held)) if is_about(held) => self.state,
            (RecordKind::PartlyApproved, ReplayState::Unknown) if is_about_pruned => self.state,
            (RecordKind::Approved, ReplayState::Unknown) if is_about_pruned => ReplayState::Approved(about?),
            (RecordKind::Denied, ReplayState::Waiting(held)) if is_about(held) => ReplayState::Denied,
            (RecordKind::Denied, ReplayState::Unknown) if is_about_pruned => ReplayState::Denied,
            // The intent may be sent again, and then waits for a person again; only a denial is permanent.
            (
                RecordKind::Cancelled | RecordKind::Revoked | RecordKind::Expired,
                ReplayState::Waiting(held) | ReplayState::Approved(held),
            ) if is_about(held) => ReplayState::Unknown,
            (
                RecordKind::Cancelled | RecordKind::Revoked | RecordKind::Expired | RecordKind::Released,
                ReplayState::Unknown,
            ) if is_about_pruned => ReplayState::Unknown,
            (RecordKind::Claim, ReplayState::Unknown) if is_about_pruned => ReplayState::Started(number),
            (RecordKind::Claim, ReplayState::Waiting(held) | ReplayState::Approved(held))
                if is_about(held) =>
            {
                ReplayState::Started(number)
            }
            (RecordKind::Receipt, ReplayState::Started(claim)) if is_about(claim) => {
                ReplayState::Ended { claim, receipt: number }
            }
            (RecordKind::Receipt, ReplayState::Unknown) if is_about_pruned => {
                ReplayState::Ended { claim: about?, receipt: number }
            }
            (RecordKind::Released, ReplayState::Started(claim)) if is_about(claim) => ReplayState::Unknown,
            // A copied claim may name a receipt that is still in the chain.
            (RecordKind::Used, ReplayState::Unknown) if is_about_pruned || about > Some(first) => {
                ReplayState::Closed(number)
            }
            // Each pruning copies the claims that are still needed, so one copy may follow another.
            (RecordKind::Used, ReplayState::Closed(claim)) if claim <= first => ReplayState::Closed(number),
            (
                RecordKind::Kept,
                ReplayState::Started(_) | ReplayState::Ended { .. } | ReplayState::Closed(_),
            ) => self.state,
            (RecordKind::Kept, ReplayState::Unknown) if is_about_pruned => ReplayState::Unknown,
            (
                RecordKind::Stopped
                | RecordKind::Revocation
                | RecordKind::Task
                | RecordKind::TaskDropped
                | RecordKind::Fleet,
                _any,
            ) => self.state,
            (
                RecordKind::Held
                | RecordKind::PartlyApproved
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
                | RecordKind::StopSet
                | RecordKind::StopLifted,
                _any,
            ) => return None,
        };
        let task = if kind == RecordKind::Task { Some(task?) } else { self.task };
        Some(Self { state, task: task.filter(|_| kind != RecordKind::TaskDropped) })
    }

    /// `true` if the intent needs no row in another table.
    pub(super) fn is_settled(&self) -> bool {
        self.task.is_none()
            && matches!(self.state, ReplayState::Unknown | ReplayState::Denied | ReplayState::Closed(_))
    }
}
