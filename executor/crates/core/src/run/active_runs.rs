//! The runs that other calls can stop.

use super::AgentFilter;
use a2g_sandbox::Abort;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::outcome::AbortReason;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

type AbortSwitches = HashMap<IntentId, (AgentDid, Arc<Abort>)>;

/// All claimed intents that have not ended, with their abort switches.
#[derive(Debug, Clone, Default)]
pub(super) struct ActiveRuns(Arc<Mutex<AbortSwitches>>);

/// A claimed intent, which is removed from [`ActiveRuns`] on drop.
#[derive(Debug)]
pub(super) struct ActiveRun {
    all: ActiveRuns,
    intent: IntentId,
    abort: Arc<Abort>,
}

impl ActiveRuns {
    fn lock(&self) -> MutexGuard<'_, AbortSwitches> {
        self.0.lock()
    }

    pub(super) fn register(&self, intent: IntentId, agent: AgentDid) -> ActiveRun {
        let abort = Arc::new(Abort::default());
        self.lock().insert(intent, (agent, Arc::clone(&abort)));
        ActiveRun { all: self.clone(), intent, abort }
    }

    /// Stops a run of the selected agents. Returns `true` if nothing stopped it before; `None` if there is no such run.
    pub(super) fn abort_one(
        &self,
        intent: IntentId,
        filter: AgentFilter<'_>,
        reason: AbortReason,
    ) -> Option<bool> {
        let runs = self.lock();
        let (_, abort) = runs.get(&intent).filter(|(agent, _)| filter(agent))?;
        let is_first = abort.reason().is_none();
        abort.trigger(reason);
        Some(is_first)
    }

    /// Stops all runs of the selected agents. Returns their number, and the intents of the runs that nothing stopped
    /// before.
    pub(super) fn abort_all(&self, filter: AgentFilter<'_>, reason: AbortReason) -> (usize, Vec<IntentId>) {
        let runs = self.lock();
        let selected = runs.iter().filter(|(_, (agent, _))| filter(agent)).collect::<Vec<_>>();
        let newly_stopped = selected.iter().filter(|(_, (_, abort))| abort.reason().is_none());
        let newly_stopped = newly_stopped.map(|(intent, _)| **intent).collect();
        selected.iter().for_each(|(_, (_, abort))| abort.trigger(reason));
        (selected.len(), newly_stopped)
    }
}

impl ActiveRun {
    pub(super) fn abort(&self) -> &Arc<Abort> {
        &self.abort
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
