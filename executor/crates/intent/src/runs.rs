//! The claimed intents whose guests have not ended.

use crate::content::{Abortable as _, Content, Owner};
use a2g_types::ident::IntentId;
use a2g_types::outcome::AbortReason;
use std::collections::HashMap;
use std::mem;

/// Identifies one run of an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunId {
    intent: IntentId,
    number: u64,
}

/// The node that has a claimed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunPlace {
    /// This node.
    Here,
    /// Another node, which aborts it. This one does so if the call comes back, or at the end of its process.
    Elsewhere {
        /// The reason for which the run is aborted if the other node gives the call back.
        abort_on_return: Option<AbortReason>,
    },
}

/// The effect of aborting a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortEffect {
    /// It is aborted, and was not before.
    First,
    /// It was aborted before.
    Repeated,
    /// Another node has the call, and has to end it.
    Elsewhere,
}

/// A claimed intent whose guest has not ended.
#[derive(Debug)]
struct Run<C: Content> {
    /// The number of this run. An intent whose run was released may run again.
    number: u64,
    owner: Owner,
    handle: C::Run,
    place: RunPlace,
    /// The first reason for which the run was aborted.
    aborted: Option<AbortReason>,
}

impl<C: Content> Run<C> {
    /// Aborts the run, now or when another node gives its call back.
    fn abort(&mut self, reason: AbortReason) -> AbortEffect {
        match &mut self.place {
            RunPlace::Elsewhere { abort_on_return } if reason != AbortReason::Shutdown => {
                abort_on_return.get_or_insert(reason);
                return AbortEffect::Elsewhere;
            }
            RunPlace::Elsewhere { .. } | RunPlace::Here => {}
        }
        let effect = if self.aborted.is_none() { AbortEffect::First } else { AbortEffect::Repeated };
        self.aborted.get_or_insert(reason);
        self.handle.abort(reason);
        effect
    }
}

/// The claimed intents whose guests have not ended.
#[derive(Debug)]
pub struct Runs<C: Content> {
    by_intent: HashMap<IntentId, Run<C>>,
    /// The number of the latest run.
    last_number: u64,
}

impl<C: Content> Runs<C> {
    pub(crate) fn new() -> Self {
        Self { by_intent: HashMap::new(), last_number: 0 }
    }

    /// Returns `true` if a claimed intent has not ended.
    #[must_use]
    pub fn is_active(&self, intent: IntentId) -> bool {
        self.by_intent.contains_key(&intent)
    }

    /// The run of a claimed intent.
    #[must_use]
    pub fn handle(&self, intent: IntentId) -> Option<&C::Run> {
        self.by_intent.get(&intent).map(|run| &run.handle)
    }

    /// The owner of an intent that is claimed, and the place of its run.
    #[must_use]
    pub fn place(&self, intent: IntentId) -> Option<(&Owner, RunPlace)> {
        self.by_intent.get(&intent).map(|run| (&run.owner, run.place))
    }

    /// The runs here, in the order of their ids, without those whose calls another node has.
    #[must_use]
    pub fn here(&self) -> Vec<(IntentId, &Owner)> {
        let here = self.by_intent.iter().filter(|(_, run)| run.place == RunPlace::Here);
        let mut owners = here.map(|(intent, run)| (*intent, &run.owner)).collect::<Vec<_>>();
        owners.sort_by_key(|(intent, _)| *intent);
        owners
    }

    /// The first reason for which a run was aborted.
    pub(crate) fn abort_reason(&self, intent: IntentId) -> Option<AbortReason> {
        self.by_intent.get(&intent)?.aborted
    }

    // The begin and the end of a run.

    /// Registers a claimed intent: see [`crate::Intents::claim`], which calls this.
    pub(crate) fn begin(&mut self, intent: IntentId, owner: Owner, handle: C::Run) -> RunId {
        let is_orphan = owner.parent.is_some_and(|parent| !self.is_active(parent));
        self.last_number += 1;
        let number = self.last_number;
        let mut run = Run { number, owner, handle, place: RunPlace::Here, aborted: None };
        if is_orphan {
            run.abort(AbortReason::ParentEnded);
        }
        self.by_intent.insert(intent, run);
        RunId { intent, number }
    }

    /// Removes a run whose guest has ended, so that it can no longer be aborted. Returns the reason if it was aborted
    /// before.
    pub fn end(&mut self, id: RunId) -> Option<AbortReason> {
        self.get_mut(id)?;
        self.by_intent.remove(&id.intent)?.aborted
    }

    /// A run, to be changed; `None` if it has ended.
    pub fn handle_mut(&mut self, id: RunId) -> Option<&mut C::Run> {
        self.get_mut(id).map(|run| &mut run.handle)
    }

    /// Notes that another node has the call of a run.
    pub fn pass_on(&mut self, id: RunId) {
        if let Some(run) = self.get_mut(id) {
            run.place = RunPlace::Elsewhere { abort_on_return: None };
        }
    }

    /// Notes that this node has the call of a run again. The run is aborted if that was asked for meanwhile.
    pub fn take_back(&mut self, id: RunId) {
        if let Some(run) = self.get_mut(id)
            && let RunPlace::Elsewhere { abort_on_return } = mem::replace(&mut run.place, RunPlace::Here)
            && let Some(reason) = abort_on_return
        {
            run.abort(reason);
        }
    }

    /// Aborts a run, whatever waits.
    pub fn abort(&mut self, id: RunId, reason: AbortReason) {
        if let Some(run) = self.get_mut(id) {
            run.abort(reason);
        }
    }

    /// As [`Self::abort`], for the run of an intent if it has one.
    pub fn abort_of(&mut self, intent: IntentId, reason: AbortReason) {
        if let Some(run) = self.by_intent.get_mut(&intent) {
            run.abort(reason);
        }
    }

    /// Aborts the runs of the calls that a run has made.
    pub fn abort_children(&mut self, parent: IntentId) {
        for run in self.by_intent.values_mut().filter(|run| run.owner.parent == Some(parent)) {
            run.abort(AbortReason::ParentEnded);
        }
    }

    /// Aborts all runs, at the end of the process. What waits goes on waiting, in the next process. Returns the number of
    /// runs.
    pub fn abort_all(&mut self) -> usize {
        for run in self.by_intent.values_mut() {
            run.abort(AbortReason::Shutdown);
        }
        self.by_intent.len()
    }

    /// Aborts the run of an intent if its owner is selected. Returns `None` if there is none.
    pub(crate) fn abort_if(
        &mut self,
        intent: IntentId,
        is_selected: impl Fn(&Owner) -> bool,
        reason: AbortReason,
    ) -> Option<AbortEffect> {
        let run = self.by_intent.get_mut(&intent).filter(|run| is_selected(&run.owner))?;
        Some(run.abort(reason))
    }

    /// Aborts all runs whose owners are selected, while the result is read.
    pub(crate) fn abort_selected(
        &mut self,
        is_selected: impl Fn(&Owner) -> bool,
        reason: AbortReason,
    ) -> impl Iterator<Item = (IntentId, AbortEffect)> {
        let selected = self.by_intent.iter_mut().filter(move |(_, run)| is_selected(&run.owner));
        selected.map(move |(intent, run)| (*intent, run.abort(reason)))
    }

    fn get_mut(&mut self, id: RunId) -> Option<&mut Run<C>> {
        self.by_intent.get_mut(&id.intent).filter(|run| run.number == id.number)
    }
}
