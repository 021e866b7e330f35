//! All open intents and the stops in force, with each step that looks at several of them.

use crate::content::{Content, Owner};
use crate::runs::{AbortEffect, RunId, Runs};
use crate::stops::Stops;
use crate::waits::{Changes, EndedWait, HoldError, HoldOutcome, Wait, Waits};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::AbortReason;
use a2g_types::stop::Stop;

/// The reason why an intent is not claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimError {
    /// An operator has stopped its agent, its tool or everything.
    Stopped(Stop),
}

/// The reason why a claimed intent may not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartError {
    /// An operator has stopped its agent, its tool or everything.
    Stopped(Stop),
    /// An operator has stopped the call, and has lifted the stop since.
    StopLifted,
}

/// The intents that a stop or a revocation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those that arrived or run here: each node of a fleet ends its own.
    ThisNode,
    /// All that wait, also at other nodes, and those that run here.
    Fleet,
}

/// The effect of ending an intent. `T` is the type of an [`EndedWait`].
#[derive(Debug, PartialEq, Eq)]
pub enum Ended<T> {
    /// It waited, and no longer does.
    Wait(T),
    /// It was claimed, and its run is aborted.
    Run(AbortEffect),
}

impl<T> Ended<T> {
    /// Maps the wait.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> Ended<U> {
        match self {
            Self::Wait(wait) => Ended::Wait(map(wait)),
            Self::Run(effect) => Ended::Run(effect),
        }
    }
}

/// The effect of ending several intents.
#[derive(Debug)]
pub struct EndedAll<T> {
    /// The waits.
    pub waits: Vec<T>,
    /// The runs that are aborted.
    pub run_count: usize,
    /// Those that were not aborted before.
    pub newly_aborted: Vec<IntentId>,
}

impl<T> EndedAll<T> {
    /// The effect of ending this intent, as that of ending several.
    pub fn of(intent: IntentId, ended: Option<Ended<T>>) -> Self {
        let mut all = Self::none();
        match ended {
            Some(Ended::Wait(wait)) => all.waits.push(wait),
            Some(Ended::Run(effect)) => all.count_run(intent, effect),
            None => {}
        }
        all
    }

    fn none() -> Self {
        Self { waits: Vec::new(), run_count: 0, newly_aborted: Vec::new() }
    }

    fn count_run(&mut self, intent: IntentId, effect: AbortEffect) {
        match effect {
            AbortEffect::First => {
                self.run_count += 1;
                self.newly_aborted.push(intent);
            }
            AbortEffect::Repeated => self.run_count += 1,
            AbortEffect::Elsewhere => {}
        }
    }
}

/// The open intents of an executor, and the stops in force. An intent waits, or has a run, or both while a person's approval
/// starts the run.
// The wait and the run of an intent have an owner each: another agent's call with the same id is refused only once it finds
// the claim.
#[derive(Debug)]
pub struct Intents<C: Content> {
    /// The waits. [`Self::hold`] begins one.
    pub waits: Waits<C>,
    /// The runs. [`Self::claim`] begins one.
    pub runs: Runs<C>,
    /// The stops in force. [`Self::stop`] sets one.
    pub stops: Stops,
}

impl<C: Content> Intents<C> {
    /// No intents, of which at most `max_waiting` may wait for a person, `max_waiting_per_agent` of one agent. `first_wait`
    /// is a random number, so that no wait has the number of one of an earlier process.
    #[must_use]
    pub fn new(max_waiting: usize, max_waiting_per_agent: usize, first_wait: u64) -> Self {
        Self {
            waits: Waits::new(max_waiting, max_waiting_per_agent, first_wait),
            runs: Runs::new(),
            stops: Stops::default(),
        }
    }

    /// Lets an intent wait for a person. A later verdict does not replace the first one.
    ///
    /// # Errors
    /// [`HoldError`]; an intent that waits already goes on.
    pub fn hold(&mut self, intent: IntentId, wait: Wait<C>) -> Result<HoldOutcome, HoldError> {
        let owner = wait.owner();
        if let Some(stop) = self.stops.find(&owner.agent, &owner.tool) {
            return Err(HoldError::Stopped(stop.clone()));
        }
        if owner.parent.is_some_and(|parent| !self.runs.is_active(parent)) {
            return Err(HoldError::ParentEnded);
        }
        self.waits.begin(intent, wait)
    }

    /// Registers a claimed intent. A nested call whose parent has ended is aborted at once.
    ///
    /// # Errors
    /// If an operator has stopped the call.
    pub fn claim(&mut self, intent: IntentId, owner: Owner, handle: C::Run) -> Result<RunId, ClaimError> {
        if let Some(stop) = self.stops.find(&owner.agent, &owner.tool) {
            return Err(ClaimError::Stopped(stop.clone()));
        }
        Ok(self.runs.begin(intent, owner, handle))
    }

    /// Checks whether the guest of a claimed intent may begin. A stop that is set later aborts the run.
    ///
    /// # Errors
    /// If an operator has stopped the call, even if that stop has been lifted.
    pub fn check_start(&self, intent: IntentId, agent: &AgentDid, tool: &ToolName) -> Result<(), StartError> {
        if let Some(stop) = self.stops.find(agent, tool) {
            return Err(StartError::Stopped(stop.clone()));
        }
        match self.runs.abort_reason(intent) {
            Some(AbortReason::Stopped) => Err(StartError::StopLifted),
            Some(_) | None => Ok(()),
        }
    }

    /// Ends an intent if its agent is selected: aborts its run, and removes its wait unless it ends with the run, so that a
    /// decision in progress can no longer be recorded. Returns `None` if there is no such intent, or its run has ended.
    pub fn end(
        &mut self,
        intent: IntentId,
        is_selected: impl Fn(&AgentDid) -> bool,
        reason: AbortReason,
    ) -> Option<Ended<EndedWait<C::Call>>> {
        let effect = self.runs.abort_if(intent, |owner| is_selected(&owner.agent), reason);
        let ends = |wait: &Wait<C>| is_selected(&wait.owner().agent) && wait.ends_with_wait();
        let wait = self.waits.remove_if(intent, ends);
        wait.map(Ended::Wait).or(effect.map(Ended::Run))
    }

    /// As [`Self::end`], for all intents of the scope that are selected.
    pub fn end_all(
        &mut self,
        is_selected: impl Fn(&AgentDid, &ToolName) -> bool,
        scope: Scope,
        reason: AbortReason,
    ) -> EndedAll<EndedWait<C::Call>> {
        let is_included = |owner: &Owner| is_selected(&owner.agent, &owner.tool);
        let is_in_scope = |wait: &Wait<C>| match scope {
            Scope::ThisNode => wait.home().is_none(),
            Scope::Fleet => true,
        };
        let ends = |wait: &Wait<C>| is_included(wait.owner()) && wait.ends_with_wait() && is_in_scope(wait);
        let mut ended = EndedAll::none();
        for (intent, effect) in self.runs.abort_selected(is_included, reason) {
            // A run whose approval is not being recorded yet ends with its wait.
            if !self.waits.get(intent).is_some_and(ends) {
                ended.count_run(intent, effect);
            }
        }
        ended.waits = self.waits.remove_all(ends);
        self.waits.note(Changes::Waits);
        ended
    }

    /// Sets a stop, and ends all intents of the scope that it includes.
    pub fn stop(&mut self, stop: Stop, scope: Scope) -> EndedAll<EndedWait<C::Call>> {
        let target = stop.target.clone();
        self.stops.set(stop);
        self.end_all(|agent, tool| target.includes(agent, tool), scope, AbortReason::Stopped)
    }
}
