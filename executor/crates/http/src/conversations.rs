//! The sessions of tools that belong to conversations, at doors whose callers name a conversation and no
//! session.
//!
//! ```text
//! a call that asks for a session ─▶ opening: other calls there are refused with `session_busy`
//!   ─▶ bound to (caller, agent, tool, conversation) ─▶ later calls there go on in it
//!        └─ refused with `session_lost`, which its caller is told ─▶ no longer bound
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
use std::sync::{Arc, Weak};

/// Maximum number of bound sessions, the maximum of `sessions.max`. The oldest one makes room.
const MAX_BOUND: usize = 10_000;
/// Maximum number of answered calls whose repeats get the request of their first sending.
const MAX_ANSWERED: usize = 1_000;
const OPENING: &str = "another call opens the session of this tool and conversation, and has not ended: wait for its \
                       result, and then send this call again; with `session: false`, it runs without a session";

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
    bindings: Mutex<Bindings>,
}

/// The session in which a call of a conversation runs.
pub struct FoundSession {
    /// The session; `None` for a call without one.
    pub session: Option<CallSession>,
    /// The reservation of a call that opens the session of its conversation.
    pub opening: Option<OpeningCall>,
}

/// A call that opens the session of its conversation. Until this is dropped, or the receipt is noted, other calls
/// there are refused.
pub struct OpeningCall {
    sessions: Weak<ConversationSessions>,
    conversation: Conversation,
    intent: IntentId,
}

#[derive(Default)]
struct Bindings {
    bound: VecDeque<BoundSession>,
    opening: Vec<(IntentId, Conversation)>,
    answered: VecDeque<(IntentId, Option<SessionRequest>)>,
}

struct BoundSession {
    conversation: Conversation,
    handle: SessionHandle,
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// The request of a call that reserves nothing.
    Request(Option<SessionRequest>),
    /// The call opens the session, and has reserved the conversation.
    Opens,
    /// Another call opens the session.
    Reserved,
}

impl Bindings {
    fn find(&mut self, conversation: &Conversation, intent: IntentId, asks: Option<bool>) -> Found {
        // A repeat, which gets the stored answer only with the same request.
        if let Some((_, request)) = self.answered.iter().find(|(answered, _)| *answered == intent) {
            return Found::Request(*request);
        }
        if asks == Some(false) {
            return Found::Request(None);
        }
        if let Some(found) = self.bound.iter().find(|bound| bound.conversation == *conversation) {
            return Found::Request(Some(SessionRequest::Continue(found.handle)));
        }
        let opening = self.opening.iter().find(|(_, opening)| opening == conversation);
        match opening {
            // A repeat of the call that opens it.
            Some((opener, _)) if *opener == intent => Found::Request(Some(SessionRequest::New)),
            Some(_) => Found::Reserved,
            None if asks.is_some() => {
                self.opening.push((intent, conversation.clone()));
                Found::Opens
            }
            None => Found::Request(None),
        }
    }

    /// Binds a session to a conversation, unless it is bound.
    fn bind(&mut self, conversation: &Conversation, handle: SessionHandle) {
        if self.bound.iter().any(|bound| bound.handle == handle) {
            return;
        }
        self.bound.retain(|bound| bound.conversation != *conversation);
        if self.bound.len() >= MAX_BOUND {
            self.bound.pop_front();
        }
        self.bound.push_back(BoundSession { conversation: conversation.clone(), handle });
    }

    fn unbind(&mut self, conversation: &Conversation, handle: SessionHandle) {
        self.bound.retain(|bound| bound.conversation != *conversation || bound.handle != handle);
    }

    /// Ends the reservation of a call.
    fn release(&mut self, intent: IntentId) {
        self.opening.retain(|(opener, _)| *opener != intent);
    }

    fn note_answered(&mut self, intent: IntentId, request: Option<SessionRequest>) {
        if self.answered.iter().any(|(answered, _)| *answered == intent) {
            return;
        }
        if self.answered.len() >= MAX_ANSWERED {
            self.answered.pop_front();
        }
        self.answered.push_back((intent, request));
    }
}

impl ConversationSessions {
    /// No bound session.
    #[must_use]
    pub fn new(executor: Arc<Executor>) -> Self {
        Self { executor, bindings: Mutex::default() }
    }

    /// The session of a call in a conversation: the bound one, or a new one if the call asks for one. `asks` is
    /// the call's `session`; `false` is a call outside the bound session.
    ///
    /// # Errors
    /// [`BlockedBy::SessionBusy`] while another call opens the session of the conversation.
    pub fn find(
        self: &Arc<Self>,
        conversation: &Conversation,
        call: &Call,
        asks: Option<bool>,
    ) -> Result<FoundSession, Fault> {
        let intent = call.intent;
        let with_caller = |request| CallSession { request, caller: conversation.caller.clone() };
        let found = self.bindings.lock().find(conversation, intent, asks);
        match found {
            Found::Request(request) => Ok(FoundSession { session: request.map(with_caller), opening: None }),
            Found::Opens => Ok(FoundSession {
                session: Some(with_caller(SessionRequest::New)),
                opening: Some(OpeningCall {
                    sessions: Arc::downgrade(self),
                    conversation: conversation.clone(),
                    intent,
                }),
            }),
            Found::Reserved => {
                let refusals = &self.executor.refusals;
                Err(refusals.refuse(Some(call), BlockedBy::SessionBusy, OPENING.to_owned()))
            }
        }
    }

    /// Notes the session in which a call ran. One that has ended stays bound, so that the next call is told.
    pub fn note_receipt(&self, conversation: &Conversation, receipt: &Receipt) {
        let mut bindings = self.bindings.lock();
        if let Some(turn) = &receipt.session {
            bindings.bind(conversation, turn.handle);
        }
        bindings.release(receipt.intent);
    }

    /// Notes the request of a call whose answer is stored, or will be: a repeat makes the same request.
    pub fn note_answered(&self, intent: IntentId, request: Option<SessionRequest>) {
        self.bindings.lock().note_answered(intent, request);
    }

    /// Notes the refusal of a call with this request: a session that is lost is bound no longer.
    pub fn note_fault(&self, conversation: &Conversation, request: Option<SessionRequest>, fault: &Fault) {
        if let Fault::Refused { blocked_by: BlockedBy::SessionLost, .. } = fault
            && let Some(SessionRequest::Continue(handle)) = request
        {
            self.bindings.lock().unbind(conversation, handle);
        }
    }
}

impl OpeningCall {
    /// Waits for the end of the call, and binds its session. If the conversation's sessions have ended, this one ends
    /// too.
    pub async fn bind_at_end(self, executor: &Executor) {
        let outcome = executor.queries.await_outcome(self.intent).await;
        let Ok(Some(receipt)) = outcome else { return };
        let Conversation { caller, agent, .. } = &self.conversation;
        if let Some(sessions) = self.sessions.upgrade() {
            sessions.note_receipt(&self.conversation, &receipt);
        } else if let Some(turn) = &receipt.session {
            executor.engine.end_session(turn.handle, agent, Some(caller));
        }
    }
}

impl Drop for OpeningCall {
    fn drop(&mut self) {
        if let Some(sessions) = self.sessions.upgrade() {
            sessions.bindings.lock().release(self.intent);
        }
    }
}

impl Drop for ConversationSessions {
    fn drop(&mut self) {
        for BoundSession { conversation, handle } in self.bindings.lock().bound.drain(..) {
            let Conversation { caller, agent, .. } = conversation;
            self.executor.engine.end_session(handle, &agent, Some(&caller));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(name: &str) -> Conversation {
        Conversation {
            caller: "c".to_owned(),
            agent: AgentDid::parse("did:a:x").unwrap(),
            tool: ToolName::parse("take_steps").unwrap(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn one_call_at_a_time_opens_the_session_of_a_conversation() {
        let mut bindings = Bindings::default();
        let here = conversation("here");
        let first = IntentId::random();
        let second = IntentId::random();
        assert_eq!(bindings.find(&here, first, Some(true)), Found::Opens);
        assert_eq!(bindings.find(&here, first, Some(true)), Found::Request(Some(SessionRequest::New)));
        assert_eq!(bindings.find(&here, second, Some(true)), Found::Reserved);
        assert_eq!(bindings.find(&here, second, None), Found::Reserved);
        assert_eq!(bindings.find(&here, second, Some(false)), Found::Request(None));
        assert_eq!(bindings.find(&conversation("there"), second, Some(true)), Found::Opens);
        bindings.release(second);
        assert_eq!(bindings.find(&here, second, None), Found::Reserved);
        bindings.release(first);
        assert_eq!(bindings.find(&here, second, None), Found::Request(None));
        assert_eq!(bindings.find(&here, second, Some(true)), Found::Opens);
    }

    #[test]
    fn a_call_goes_on_in_the_bound_session_unless_it_opts_out() {
        let mut bindings = Bindings::default();
        let here = conversation("here");
        let handle = SessionHandle::random();
        bindings.bind(&here, handle);
        let goes_on = Found::Request(Some(SessionRequest::Continue(handle)));
        assert_eq!(bindings.find(&here, IntentId::random(), None), goes_on);
        assert_eq!(bindings.find(&here, IntentId::random(), Some(true)), goes_on);
        assert_eq!(bindings.find(&here, IntentId::random(), Some(false)), Found::Request(None));
    }

    #[test]
    fn only_the_lost_session_is_bound_no_longer() {
        let mut bindings = Bindings::default();
        let here = conversation("here");
        let lost = SessionHandle::random();
        let later = SessionHandle::random();
        bindings.bind(&here, lost);
        bindings.bind(&here, later);
        bindings.unbind(&here, lost);
        let goes_on = Found::Request(Some(SessionRequest::Continue(later)));
        assert_eq!(bindings.find(&here, IntentId::random(), None), goes_on);
        bindings.unbind(&here, later);
        assert_eq!(bindings.find(&here, IntentId::random(), None), Found::Request(None));
    }

    #[test]
    fn a_repeat_makes_the_request_of_its_first_sending() {
        let mut bindings = Bindings::default();
        let here = conversation("here");
        let handle = SessionHandle::random();
        let before = IntentId::random();
        let inside = IntentId::random();
        bindings.note_answered(before, None);
        bindings.bind(&here, handle);
        bindings.note_answered(inside, Some(SessionRequest::Continue(handle)));
        bindings.unbind(&here, handle);
        let goes_on = Found::Request(Some(SessionRequest::Continue(handle)));
        assert_eq!(bindings.find(&here, inside, None), goes_on);
        bindings.bind(&here, SessionHandle::random());
        assert_eq!(bindings.find(&here, before, None), Found::Request(None));
        for _ in 0..MAX_ANSWERED {
            bindings.note_answered(IntentId::random(), None);
        }
        assert_eq!(bindings.answered.len(), MAX_ANSWERED);
    }
}
