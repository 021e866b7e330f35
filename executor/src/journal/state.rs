//! The effect of each record on its intent: the only table of the permitted order of records.

use super::chain::Hash;
use super::record::Kind;

/// The state of an intent after some of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
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
    Over(i64),
}

/// An intent that is open or has a task.
#[derive(Debug, Clone, Copy)]
pub(super) struct Live {
    pub(super) state: State,
    /// The hash of the row of its task.
    pub(super) task: Option<Hash>,
}

/// The columns of a record that decide the next state of its intent.
pub(super) struct Step {
    pub(super) number: i64,
    pub(super) kind: Kind,
    pub(super) about: Option<i64>,
    /// The hash of the row of its task.
    pub(super) task: Option<Hash>,
}

impl Live {
    pub(super) const UNKNOWN: Self = Self { state: State::Unknown, task: None };

    /// The state after one more record; `None` if the record contradicts those before. A missing record may be one of
    /// those up to `first`, which were pruned.
    pub(super) fn after(self, step: &Step, first: i64) -> Option<Self> {
        let Step { number, kind, about, task } = *step;
        let of_pruned = about.is_none_or(|about| about <= first);
        let same = |record: i64| about == Some(record);
        let state = match (kind, self.state) {
            (Kind::Held, State::Unknown) => State::Waiting(number),
            // Carried over by pruning.
            (Kind::Held, State::Waiting(held) | State::Approved(held)) if held <= first => {
                State::Waiting(number)
            }
            (Kind::Approved, State::Waiting(held)) if same(held) => State::Approved(held),
            (Kind::Approved, State::Unknown) if of_pruned => State::Approved(about?),
            (Kind::Denied, State::Waiting(held)) if same(held) => State::Denied,
            (Kind::Denied, State::Unknown) if of_pruned => State::Denied,
            (
                Kind::Cancelled | Kind::Revoked | Kind::Expired,
                State::Waiting(held) | State::Approved(held),
            ) if same(held) => State::Unknown,
            (Kind::Cancelled | Kind::Revoked | Kind::Expired | Kind::Released, State::Unknown)
                if of_pruned =>
            {
                State::Unknown
            }
            (Kind::Claim, State::Unknown) if of_pruned => State::Started(number),
            (Kind::Claim, State::Waiting(held) | State::Approved(held)) if same(held) => {
                State::Started(number)
            }
            (Kind::Receipt, State::Started(claim)) if same(claim) => State::Ended { claim, receipt: number },
            (Kind::Receipt, State::Unknown) if of_pruned => State::Ended { claim: about?, receipt: number },
            (Kind::Released, State::Started(claim)) if same(claim) => State::Unknown,
            (Kind::Used, State::Unknown) if of_pruned || about > Some(first) => State::Over(number),
            (Kind::Used, State::Over(claim)) if claim <= first => State::Over(number),
            (Kind::Kept, State::Started(_) | State::Ended { .. } | State::Over(_)) => self.state,
            (Kind::Kept, State::Unknown) if of_pruned => State::Unknown,
            (Kind::Stopped | Kind::Revocation | Kind::Task | Kind::TaskDropped, _any) => self.state,
            (
                Kind::Held
                | Kind::Approved
                | Kind::Denied
                | Kind::Cancelled
                | Kind::Revoked
                | Kind::Expired
                | Kind::Claim
                | Kind::Receipt
                | Kind::Released
                | Kind::Used
                | Kind::Kept
                | Kind::Delivered
                | Kind::Refusals
                | Kind::Pruned
                | Kind::Migrated,
                _any,
            ) => return None,
        };
        let task = match kind {
            Kind::Task => Some(task?),
            Kind::TaskDropped => None,
            Kind::Held
            | Kind::Approved
            | Kind::Denied
            | Kind::Cancelled
            | Kind::Revoked
            | Kind::Expired
            | Kind::Claim
            | Kind::Receipt
            | Kind::Released
            | Kind::Used
            | Kind::Kept
            | Kind::Stopped
            | Kind::Revocation
            | Kind::Delivered
            | Kind::Refusals
            | Kind::Pruned
            | Kind::Migrated => self.task,
        };
        Some(Self { state, task })
    }

    /// `true` if no row of another table exists because of this intent.
    pub(super) fn is_settled(&self) -> bool {
        self.task.is_none() && matches!(self.state, State::Unknown | State::Denied | State::Over(_))
    }
}
