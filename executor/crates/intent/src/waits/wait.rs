//! The wait of one intent, and its phases.

use crate::content::{Content, Owner};
use a2g_types::ident::IntentId;
use a2g_types::node::NodeName;
use time::OffsetDateTime;

/// Identifies one wait of an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitId {
    pub(crate) intent: IntentId,
    pub(super) number: u64,
    /// The number of times that all partial approvals had been forgotten.
    pub(super) forget_count: u64,
}

impl WaitId {
    /// The number of the wait. When the intent waits again, the number differs, even in another process.
    #[must_use]
    pub fn number(self) -> u64 {
        self.number
    }

    /// A wait that is in no table, for tests.
    #[must_use]
    pub fn detached(intent: IntentId, number: u64) -> Self {
        Self { intent, number, forget_count: 0 }
    }
}

/// The event that ends an intent's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeCondition {
    /// The verdict expires at this time, unless a decision is made before.
    Until(OffsetDateTime),
    /// Another task, which decides on the intent or runs it, announces a change.
    AnotherTask,
}

/// The phase of an intent's wait.
#[derive(Debug, Clone)]
pub(super) enum Phase<A> {
    /// The intent waits for a person.
    Undecided,
    /// A decision is in progress, and excludes any other.
    Deciding,
    /// The intent is claimed, and its approval is being recorded. From now on, a cancellation aborts its run.
    Approving,
    /// The intent is approved and claimed. If its run cannot begin, it waits to run again.
    Claimed,
    /// The intent is approved and waits to run.
    Approved(A),
    /// An attempt to run an approved intent is in progress.
    Retrying,
    /// The fleet stores a decision, and no task of this process acts on it.
    Decided,
}

/// The wait of an intent.
#[derive(Debug)]
pub struct Wait<C: Content> {
    pub(super) owner: Owner,
    pub(super) call: C::Call,
    pub(super) expires_at: OffsetDateTime,
    /// The node of a fleet at which the intent arrived; `None` for this one.
    pub(super) home: Option<NodeName>,
    /// The latest known revision of the value of the wait in the fleet; 0 if it is not stored.
    pub(super) revision: u64,
    /// `true` if the journal of this executor has the wait.
    pub(super) is_recorded: bool,
    /// The number that [`super::Waits`] gives this wait. An intent may wait again later under the same id.
    pub(super) number: u64,
    pub(super) phase: Phase<C::Approval>,
    pub(super) partial_approvals: Vec<C::PartialApproval>,
}

impl<C: Content> Wait<C> {
    /// A wait for a person, who may decide until `expires_at`.
    #[must_use]
    pub fn new(owner: Owner, call: C::Call, expires_at: OffsetDateTime) -> Self {
        Self {
            owner,
            call,
            expires_at,
            home: None,
            revision: 0,
            is_recorded: true,
            number: 0,
            phase: Phase::Undecided,
            partial_approvals: Vec::new(),
        }
    }

    /// The node of a fleet at which the intent arrived; `None` for this one.
    #[must_use]
    pub fn home(&self) -> Option<&NodeName> {
        self.home.as_ref()
    }

    /// Returns `true` if the fleet stores the wait.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        self.revision > 0
    }

    /// Returns `true` if the journal of this executor has the wait.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// The number of the wait. When the intent waits again, the number differs, even in another process.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns `true` if the fleet stores a decision, and no task of this process acts on it.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        matches!(self.phase, Phase::Decided)
    }

    /// The call.
    #[must_use]
    pub fn call(&self) -> &C::Call {
        &self.call
    }

    /// The approvals so far of an intent that needs more of them.
    #[must_use]
    pub fn partial_approvals(&self) -> &[C::PartialApproval] {
        &self.partial_approvals
    }

    /// Returns `true` if the verdict has not expired.
    #[must_use]
    pub fn is_in_time(&self, now: OffsetDateTime) -> bool {
        now < self.expires_at
    }

    /// Returns `true` if the intent waits for a decision, or one is in progress.
    #[must_use]
    pub fn awaits_decision(&self) -> bool {
        match self.phase {
            Phase::Undecided | Phase::Deciding | Phase::Approving => true,
            Phase::Claimed | Phase::Approved(_) | Phase::Retrying | Phase::Decided => false,
        }
    }

    /// Returns `true` if the intent arrived here, and waits for a decision, or one is in progress. An approved intent may
    /// have to wait for another decision later.
    #[must_use]
    pub fn awaits_decision_here(&self) -> bool {
        self.home.is_none() && self.awaits_decision()
    }

    /// Returns `true` if the intent is approved and waits to run.
    #[must_use]
    pub fn is_approved(&self) -> bool {
        matches!(self.phase, Phase::Approved(_))
    }

    /// Returns `true` if the intent is approved and claimed here.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        matches!(self.phase, Phase::Claimed)
    }

    /// Returns `true` if no task of this process decides on the intent or runs it.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_undecided() || self.is_decided()
    }

    /// Returns `true` if the fleet stores the wait, or has to store it.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.is_stored() || self.is_idle()
    }

    /// The event that ends the wait.
    #[must_use]
    pub fn wake_condition(&self) -> WakeCondition {
        match self.phase {
            Phase::Undecided => WakeCondition::Until(self.expires_at),
            Phase::Deciding
            | Phase::Approving
            | Phase::Claimed
            | Phase::Approved(_)
            | Phase::Retrying
            | Phase::Decided => WakeCondition::AnotherTask,
        }
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// `true` if the intent ends with its wait. A claimed intent ends with its run.
    pub(crate) fn ends_with_wait(&self) -> bool {
        match self.phase {
            Phase::Undecided | Phase::Deciding | Phase::Approved(_) | Phase::Retrying | Phase::Decided => {
                true
            }
            Phase::Approving | Phase::Claimed => false,
        }
    }

    pub(super) fn id(&self, intent: IntentId, forget_count: u64) -> WaitId {
        WaitId { intent, number: self.number, forget_count }
    }

    pub(super) fn is_undecided(&self) -> bool {
        matches!(self.phase, Phase::Undecided)
    }
}

/// The end of a wait.
#[derive(Debug, PartialEq, Eq)]
pub struct EndedWait<T> {
    /// The call that waited.
    pub call: T,
    /// `true` if the journal of this executor has the wait.
    pub is_recorded: bool,
}

impl<T> EndedWait<T> {
    pub(super) fn of<C: Content<Call = T>>(wait: Wait<C>) -> Self {
        Self { call: wait.call, is_recorded: wait.is_recorded }
    }
}
