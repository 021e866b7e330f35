//! The state of one open intent.

use crate::{Abortable as _, Content};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::AbortReason;
use time::OffsetDateTime;

/// The parts of a call by which people and operators select it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The agent.
    pub agent: AgentDid,
    /// The tool.
    pub tool: ToolName,
    /// The run that makes the call, if it is a nested one.
    pub parent: Option<IntentId>,
}

/// Identifies one wait of an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitNumber {
    pub(crate) intent: IntentId,
    pub(crate) wait: u64,
    /// The number of times that all partial approvals had been forgotten.
    pub(crate) forgotten: u64,
}

impl WaitNumber {
    /// The number of the wait. When the intent waits again, the number differs, even in another process.
    #[must_use]
    pub fn number(self) -> u64 {
        self.wait
    }

    /// A wait that is in no table, for tests.
    #[must_use]
    pub fn detached(intent: IntentId, wait: u64) -> Self {
        Self { intent, wait, forgotten: 0 }
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

/// The reason why a decision on a taken intent can no longer be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outdated {
    /// The intent was denied, cancelled, revoked or stopped, or is in a new wait.
    WaitEnded,
    /// All partial approvals were forgotten, because the list of callers was replaced.
    ApprovalsForgotten,
}

/// The phase of an intent's wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase<A> {
    /// The intent waits for a person.
    Undecided,
    /// A decision is in progress, and excludes any other.
    Deciding,
    /// The intent is claimed, and its approval is being recorded. From now on, a cancellation stops its run.
    Approving,
    /// The intent is approved and claimed. If its run cannot begin, it waits to run again.
    Claimed,
    /// The intent is approved and waits to run.
    Approved(A),
    /// An attempt to run an approved intent is in progress.
    Retrying,
}

/// An intent that waits for a person, or has waited and has not ended.
#[derive(Debug)]
pub(crate) struct Wait<C: Content> {
    pub(crate) owner: Owner,
    pub(crate) call: C::Call,
    pub(crate) expires_at: OffsetDateTime,
    /// The number of this wait. An intent may wait again later under the same id.
    pub(crate) number: u64,
    pub(crate) phase: Phase<C::Approval>,
    /// The approvals so far of an intent that needs more of them.
    pub(crate) partial: Vec<C::PartialApproval>,
}

impl<C: Content> Wait<C> {
    pub(crate) fn is_pending(&self, now: OffsetDateTime) -> bool {
        now < self.expires_at
    }

    /// `true` if the intent waits for a decision, or one is in progress.
    pub(crate) fn awaits_decision(&self) -> bool {
        match self.phase {
            Phase::Undecided | Phase::Deciding | Phase::Approving => true,
            Phase::Claimed | Phase::Approved(_) | Phase::Retrying => false,
        }
    }

    /// `true` if the intent is reported as waiting without a look-up in the journal.
    pub(crate) fn is_visible(&self, now: OffsetDateTime) -> bool {
        !matches!(self.phase, Phase::Claimed) && self.is_pending(now)
    }

    /// `true` if the intent ends with its wait. A claimed intent ends with its run.
    pub(crate) fn ends_with_wait(&self) -> bool {
        match self.phase {
            Phase::Undecided | Phase::Deciding | Phase::Approved(_) | Phase::Retrying => true,
            Phase::Approving | Phase::Claimed => false,
        }
    }

    /// `true` if the intent can no longer be approved. Any other expired intent is removed by the task that decides on it
    /// or runs it.
    pub(crate) fn has_expired(&self, now: OffsetDateTime) -> bool {
        matches!(self.phase, Phase::Undecided) && !self.is_pending(now)
    }

    pub(crate) fn wake_condition(&self) -> WakeCondition {
        match self.phase {
            Phase::Undecided => WakeCondition::Until(self.expires_at),
            Phase::Deciding | Phase::Approving | Phase::Claimed | Phase::Approved(_) | Phase::Retrying => {
                WakeCondition::AnotherTask
            }
        }
    }
}

/// The node that has a claimed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunPlace {
    /// This node.
    Here,
    /// Another node, which stops it. This one does so if the call comes back, or at the end of its process.
    Elsewhere {
        /// The reason for which the run is stopped if the other node gives the call back.
        stop_on_return: Option<AbortReason>,
    },
}

/// Tells a run from a later one of the same intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunNumber(pub(crate) u64);

/// A claimed intent whose guest has not ended.
#[derive(Debug)]
pub(crate) struct Run<C: Content> {
    pub(crate) number: RunNumber,
    pub(crate) owner: Owner,
    pub(crate) handle: C::Run,
    pub(crate) place: RunPlace,
    /// The first reason for which the run was stopped.
    pub(crate) stopped: Option<AbortReason>,
}

impl<C: Content> Run<C> {
    pub(crate) fn new(owner: Owner, handle: C::Run, number: RunNumber) -> Self {
        Self { number, owner, handle, place: RunPlace::Here, stopped: None }
    }

    pub(crate) fn is_here(&self) -> bool {
        self.place == RunPlace::Here
    }

    /// Stops the run, now or when another node gives its call back. Returns `None` if another node has the call, otherwise
    /// `true` if nothing stopped it before.
    pub(crate) fn stop(&mut self, reason: AbortReason) -> Option<bool> {
        match &mut self.place {
            RunPlace::Elsewhere { stop_on_return } if reason != AbortReason::Shutdown => {
                stop_on_return.get_or_insert(reason);
                return None;
            }
            RunPlace::Elsewhere { .. } | RunPlace::Here => {}
        }
        let is_first = self.stopped.is_none();
        self.stopped.get_or_insert(reason);
        self.handle.abort(reason);
        Some(is_first)
    }
}

/// An open intent. It waits, or has a run, or both while a person's approval starts the run.
// Each has its owner: another agent's call with the same id is refused only once it finds the claim.
#[derive(Debug)]
pub(crate) struct Open<C: Content> {
    pub(crate) wait: Option<Wait<C>>,
    pub(crate) run: Option<Run<C>>,
}

impl<C: Content> Default for Open<C> {
    fn default() -> Self {
        Self { wait: None, run: None }
    }
}
