//! The runs that can be stopped by other calls.

use super::Whose;
use crate::ident::{AgentDid, IntentId};
use crate::outcome::AbortReason;
use crate::sandbox::Abort;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Runs = HashMap<IntentId, (AgentDid, Arc<Abort>)>;

/// All claimed intents that have not ended, with their abort switches.
#[derive(Debug, Clone, Default)]
pub(super) struct Running(Arc<Mutex<Runs>>);

/// One claimed intent. Dropping it removes the intent from the list.
#[derive(Debug)]
pub(super) struct Entered {
    all: Running,
    intent: IntentId,
    abort: Arc<Abort>,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, intent: IntentId, agent: AgentDid) -> Entered {
        let abort = Arc::new(Abort::default());
        self.lock().insert(intent, (agent, Arc::clone(&abort)));
        Entered { all: self.clone(), intent, abort }
    }

    /// Stops one run of the selected agents. Returns `true` for the first stop of that run; `None` if there is no such
    /// run.
    pub(super) fn abort_one(&self, intent: IntentId, of: Whose<'_>, reason: AbortReason) -> Option<bool> {
        let runs = self.lock();
        let (_, abort) = runs.get(&intent).filter(|(agent, _)| of(agent))?;
        let is_first = abort.reason().is_none();
        abort.trigger(reason);
        Some(is_first)
    }

    /// Stops all runs of the selected agents. Returns their number, and the intents of those that were not stopped
    /// before.
    pub(super) fn abort_all(&self, of: Whose<'_>, reason: AbortReason) -> (usize, Vec<IntentId>) {
        let runs = self.lock();
        let chosen = runs.iter().filter(|(_, (agent, _))| of(agent)).collect::<Vec<_>>();
        let first = chosen.iter().filter(|(_, (_, abort))| abort.reason().is_none());
        let first = first.map(|(intent, _)| **intent).collect();
        chosen.iter().for_each(|(_, (_, abort))| abort.trigger(reason));
        (chosen.len(), first)
    }
}

impl Entered {
    pub(super) fn abort(&self) -> &Arc<Abort> {
        &self.abort
    }

    /// Removes an intent whose guest has ended, so that it can no longer be stopped. Returns the reason of an earlier
    /// stop.
    pub(super) fn over(&self) -> Option<AbortReason> {
        self.all.lock().remove(&self.intent);
        self.abort.reason()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.all.lock().remove(&self.intent);
    }
}
