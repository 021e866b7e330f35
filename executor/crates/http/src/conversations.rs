//! The sessions of tools that belong to conversations, at doors whose callers name a conversation and no
//! session.
//!
//! ```text
//! a call that asks for a session ─▶ bound to (caller, agent, tool, conversation) ─▶ later calls there go on in it
//!                                     └─ refused with `session_lost`, which its caller is told ─▶ no longer bound
//! ```

use a2g_core::run::Executor;
use a2g_govern::Caller;
use a2g_types::call::Call;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::Receipt;
use a2g_types::session::{CallSession, SessionHandle, SessionRequest};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of bound sessions, the maximum of `sessions.max`. The oldest one makes room.
const MAX_BOUND: usize = 10_000;

/// A tool in the conversation of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    caller: String,
    agent: AgentDid,
    tool: ToolName,
    name: String,
}

impl Conversation {
    /// The conversation `name` in which a call with a session was made; `None` for a call without one.
    #[must_use]
    pub fn of_session(call: &Call, name: &str) -> Option<Self> {
        call.session.as_ref().map(|session| Self::new(&session.caller, call, name))
    }

    /// The conversation `name` of a caller, with the tool of a call.
    #[must_use]
    pub fn of(caller: &Caller, call: &Call, name: &str) -> Self {
        Self::new(caller.name(), call, name)
    }

    fn new(caller: &str, call: &Call, name: &str) -> Self {
        Self {
            caller: caller.to_owned(),
            agent: call.agent.clone(),
            tool: call.tool.clone(),
            name: name.to_owned(),
        }
    }
}

/// The sessions that are bound to conversations. They end when this is dropped.
pub struct ConversationSessions {
    executor: Arc<Executor>,
    bound: Mutex<VecDeque<BoundSession>>,
}

struct BoundSession {
    conversation: Conversation,
    handle: SessionHandle,
    /// The call that opened it, which a repeat asks for a new one as well.
    opened_by: Option<IntentId>,
}

impl ConversationSessions {
    /// No bound session.
    #[must_use]
    pub fn new(executor: Arc<Executor>) -> Self {
        Self { executor, bound: Mutex::default() }
    }

    /// The session of a call in a conversation: the bound one, or a new one if the call asks for one.
    #[must_use]
    pub fn find(&self, conversation: &Conversation, intent: IntentId, asks: bool) -> Option<CallSession> {
        let bound = self.bound.lock();
        let request = match (bound.iter().find(|bound| bound.conversation == *conversation), asks) {
            // A repeat of that call, which gets the stored answer.
            (Some(found), true) if found.opened_by == Some(intent) => SessionRequest::New,
            (Some(found), _) => SessionRequest::Continue(found.handle),
            (None, true) => SessionRequest::New,
            (None, false) => return None,
        };
        Some(CallSession { request, caller: conversation.caller.clone() })
    }

    /// Notes the session in which a call ran. One that has ended stays bound, so that the next call is told.
    pub fn note_receipt(&self, conversation: &Conversation, receipt: &Receipt) {
        let Some(turn) = &receipt.session else { return };
        let mut bound = self.bound.lock();
        if bound.iter().any(|bound| bound.handle == turn.handle) {
            return;
        }
        bound.retain(|bound| bound.conversation != *conversation);
        if bound.len() >= MAX_BOUND {
            bound.pop_front();
        }
        let opened_by = (turn.turn == 1).then_some(receipt.intent);
        bound.push_back(BoundSession { conversation: conversation.clone(), handle: turn.handle, opened_by });
    }

    /// Notes the refusal of a call: a session that is lost is bound no longer.
    pub fn note_fault(&self, conversation: &Conversation, fault: &Fault) {
        if let Fault::Refused { blocked_by: BlockedBy::SessionLost, .. } = fault {
            self.bound.lock().retain(|bound| bound.conversation != *conversation);
        }
    }
}

impl Drop for ConversationSessions {
    fn drop(&mut self) {
        for BoundSession { conversation, handle, .. } in self.bound.lock().drain(..) {
            let Conversation { caller, agent, .. } = conversation;
            self.executor.engine.end_session(handle, &agent, Some(&caller));
        }
    }
}
