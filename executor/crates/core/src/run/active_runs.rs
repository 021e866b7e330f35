//! The runs that other calls can stop.

use super::nested::NestedCalls;
use super::{AgentFilter, CallFilter, RunIdentity};
use a2g_sandbox::Abort;
use a2g_types::call::Call;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::AbortReason;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

/// A claimed intent that has not ended.
#[derive(Debug)]
struct RunEntry {
    agent: AgentDid,
    tool: ToolName,
    abort: Arc<Abort>,
    /// The run that makes this call.
    parent: Option<IntentId>,
    /// The calls of the run, once it has begun.
    calls: Option<Arc<NestedCalls>>,
    /// `true` while another node has the call: that node stops it, and this one only at the end of its process.
    is_passed_on: bool,
    /// The reason for which the run is stopped if the other node gives the call back.
    stop_on_return: Option<AbortReason>,
}

impl RunEntry {
    /// Stops the run, now or when another node gives its call back. Returns `None` if another node has the call, otherwise
    /// `true` if nothing stopped it before.
    fn stop(&mut self, reason: AbortReason) -> Option<bool> {
        if self.is_passed_on && reason != AbortReason::Shutdown {
            self.stop_on_return.get_or_insert(reason);
            return None;
        }
        let is_first = self.abort.reason().is_none();
        self.abort.trigger(reason);
        Some(is_first)
    }
}

type RunEntries = HashMap<IntentId, RunEntry>;

/// All claimed intents that have not ended, with their abort switches.
#[derive(Debug, Clone, Default)]
pub(super) struct ActiveRuns(Arc<Mutex<RunEntries>>);

/// A claimed intent, which is removed from [`ActiveRuns`] on drop.
#[derive(Debug)]
pub(super) struct ActiveRun {
    all: ActiveRuns,
    intent: IntentId,
    abort: Arc<Abort>,
}

impl ActiveRuns {
    fn lock(&self) -> MutexGuard<'_, RunEntries> {
        self.0.lock()
    }

    /// Registers a claimed intent. A nested call whose parent has ended is stopped at once.
    pub(super) fn register(&self, call: &Call) -> ActiveRun {
        let (abort, parent) = (Arc::new(Abort::default()), call.parent.as_ref().map(|parent| parent.intent));
        let mut runs = self.lock();
        if parent.is_some_and(|parent| !runs.contains_key(&parent)) {
            abort.trigger(AbortReason::ParentEnded);
        }
        let (agent, tool) = (call.agent.clone(), call.tool.clone());
        let entry = RunEntry {
            agent,
            tool,
            abort: Arc::clone(&abort),
            parent,
            calls: None,
            is_passed_on: false,
            stop_on_return: None,
        };
        runs.insert(call.intent, entry);
        ActiveRun { all: self.clone(), intent: call.intent, abort }
    }

    /// Returns `true` if a claimed intent has not ended.
    pub(super) fn is_active(&self, intent: IntentId) -> bool {
        self.lock().contains_key(&intent)
    }

    /// The calls that a run makes; `None` if it makes none or has ended.
    pub(super) fn calls_of(&self, intent: IntentId) -> Option<Arc<NestedCalls>> {
        self.lock().get(&intent)?.calls.clone()
    }

    /// The identities of the runs, in the order of their ids, without those whose calls another node has.
    pub(super) fn list(&self) -> Vec<RunIdentity> {
        let runs = self.lock();
        let identity = |(intent, run): (&IntentId, &RunEntry)| RunIdentity {
            agent: run.agent.clone(),
            intent: *intent,
            tool: run.tool.clone(),
        };
        let mut all = runs.iter().filter(|(_, run)| !run.is_passed_on).map(identity).collect::<Vec<_>>();
        drop(runs);
        all.sort_by_key(|run| run.intent);
        all
    }

    /// Stops the calls of a run that has ended.
    pub(super) fn abort_children(&self, parent: IntentId) {
        let runs = self.lock();
        let children = runs.values().filter(|run| run.parent == Some(parent));
        children.for_each(|run| run.abort.trigger(AbortReason::ParentEnded));
    }

    /// The agent of an intent that runs or waits for a slot here; `None` if another node has the call.
    pub(super) fn agent_of(&self, intent: IntentId) -> Option<AgentDid> {
        self.lock().get(&intent).filter(|run| !run.is_passed_on).map(|run| run.agent.clone())
    }

    /// Returns `true` if another node has the call of an intent of the selected agents.
    pub(super) fn is_passed_on(&self, intent: IntentId, filter: AgentFilter<'_>) -> bool {
        self.lock().get(&intent).is_some_and(|run| run.is_passed_on && filter(&run.agent))
    }

    /// Stops a run of the selected agents. Returns `true` if nothing stopped it before; `None` if there is no such run.
    pub(super) fn abort_one(
        &self,
        intent: IntentId,
        filter: AgentFilter<'_>,
        reason: AbortReason,
    ) -> Option<bool> {
        self.lock().get_mut(&intent).filter(|run| filter(&run.agent))?.stop(reason)
    }

    /// Stops all selected runs. Returns their number, and the intents of the runs that nothing stopped
    /// before.
    pub(super) fn abort_all(&self, filter: CallFilter<'_>, reason: AbortReason) -> (usize, Vec<IntentId>) {
        let mut runs = self.lock();
        let selected = runs.iter_mut().filter(|(_, run)| filter(&run.agent, &run.tool));
        let stopped =
            selected.filter_map(|(intent, run)| run.stop(reason).map(|is_first| (*intent, is_first)));
        let stopped = stopped.collect::<Vec<_>>();
        let newly_stopped = stopped.iter().filter(|(_, is_first)| *is_first).map(|(intent, _)| *intent);
        (stopped.len(), newly_stopped.collect())
    }
}

impl ActiveRun {
    pub(super) fn abort(&self) -> &Arc<Abort> {
        &self.abort
    }

    pub(super) fn set_passed_on(&self, is_passed_on: bool) {
        if let Some(run) = self.all.lock().get_mut(&self.intent) {
            run.is_passed_on = is_passed_on;
            if let Some(reason) = run.stop_on_return.take().filter(|_| !is_passed_on) {
                run.abort.trigger(reason);
            }
        }
    }

    pub(super) fn set_calls(&self, calls: Option<&Arc<NestedCalls>>) {
        if let Some(run) = self.all.lock().get_mut(&self.intent) {
            run.calls = calls.map(Arc::clone);
        }
    }

    /// Removes an intent whose guest has ended, so that it can no longer be stopped. Returns the reason if it was
    /// stopped before.
    pub(super) fn deregister(&self) -> Option<AbortReason> {
        self.all.lock().remove(&self.intent);
        self.abort.reason()
    }
}

impl Drop for ActiveRun {
    fn drop(&mut self) {
        self.all.lock().remove(&self.intent);
    }
}
