//! The calls that wait for the compilation of their tools: they are not claimed yet, and can be ended all the same.

use a2g_sandbox::Abort;
use a2g_types::call::Call;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::AbortReason;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug)]
struct Waiting {
    intent: IntentId,
    agent: AgentDid,
    tool: ToolName,
    abort: Arc<Abort>,
}

/// All calls that wait, by a number of their own: a repeat has the intent of the first call.
#[derive(Debug, Default)]
struct AllWaiting {
    next: u64,
    calls: HashMap<u64, Waiting>,
}

/// The calls that wait for the compilation of their tools.
#[derive(Debug, Clone, Default)]
pub(super) struct CompileWaits(Arc<Mutex<AllWaiting>>);

/// A call that waits. It does so until it is dropped.
#[derive(Debug)]
pub(super) struct CompileWait {
    all: CompileWaits,
    number: u64,
    pub(super) abort: Arc<Abort>,
}

impl CompileWaits {
    /// Adds a call; `None` if `max_of_agent` calls of its agent wait already.
    pub(super) fn add(&self, call: &Call, max_of_agent: usize) -> Option<CompileWait> {
        let mut all = self.0.lock();
        let of_agent = all.calls.values().filter(|waiting| waiting.agent == call.agent).count();
        if of_agent >= max_of_agent {
            return None;
        }
        let abort = Arc::new(Abort::default());
        let number = all.next;
        all.next += 1;
        let waiting = Waiting {
            intent: call.intent,
            agent: call.agent.clone(),
            tool: call.tool.clone(),
            abort: Arc::clone(&abort),
        };
        all.calls.insert(number, waiting);
        Some(CompileWait { all: self.clone(), number, abort })
    }

    /// Ends the waits that are selected by intent, agent and tool. Returns their number.
    pub(super) fn end(
        &self,
        is_selected: impl Fn(IntentId, &AgentDid, &ToolName) -> bool,
        reason: AbortReason,
    ) -> usize {
        let all = self.0.lock();
        let selected = all.calls.values().filter(|call| is_selected(call.intent, &call.agent, &call.tool));
        selected.map(|waiting| waiting.abort.trigger(reason)).count()
    }

    /// The agent of an intent that waits.
    pub(super) fn agent_of(&self, intent: IntentId) -> Option<AgentDid> {
        let all = self.0.lock();
        all.calls.values().find(|waiting| waiting.intent == intent).map(|waiting| waiting.agent.clone())
    }
}

impl Drop for CompileWait {
    fn drop(&mut self) {
        self.all.0.lock().calls.remove(&self.number);
    }
}
