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
    /// The conversation `name` of a caller, with the tool of a call.
    #[must_use]
    pub fn of(caller: &Caller, call: &Call, name: &str) -> Self {
        Self {
            caller: caller.name().to_owned(),
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

/// A call in its conversation, whose session it notes there. If it opens that session, other calls there are refused
/// until this is dropped, or the receipt is noted.
pub struct ConversationCall {
    sessions: Weak<ConversationSessions>,
    conversation: Conversation,
    intent: IntentId,
    request: Option<SessionRequest>,
    /// `true` if it has reserved the conversation, to open its session.
    has_reserved: bool,
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

    /// Binds the session of a run, and ends the reservation of its call.
    fn note_receipt(&mut self, conversation: &Conversation, receipt: &Receipt) {
        if let Some(turn) = &receipt.session {
            self.bind(conversation, turn.handle);
        }
        self.release(receipt.intent);
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
        conversation: Conversation,
        call: &Call,
        asks: Option<bool>,
    ) -> Result<ConversationCall, Fault> {
        let intent = call.intent;
        let found = self.bindings.lock().find(&conversation, intent, asks);
        let has_reserved = found == Found::Opens;
        let request = match found {
            Found::Request(request) => request,
            Found::Opens => Some(SessionRequest::New),
            Found::Reserved => {
                let refusals = &self.executor.refusals;
                return Err(refusals.refuse(Some(call), BlockedBy::SessionBusy, OPENING.to_owned()));
            }
        };
        Ok(ConversationCall { sessions: Arc::downgrade(self), conversation, intent, request, has_reserved })
    }
}

impl ConversationCall {
    /// The session in which the call runs; `None` for a call without one.
    #[must_use]
    pub fn session(&self) -> Option<CallSession> {
        self.request.map(|request| CallSession { request, caller: self.conversation.caller.clone() })
    }

    /// Notes the session in which the call ran. One that has ended stays bound, so that the next call is told.
    pub fn note_receipt(&self, receipt: &Receipt) {
        self.change_bindings(|bindings| bindings.note_receipt(&self.conversation, receipt));
    }

    /// Notes that the answer to the call is stored, or will be: a repeat makes the same request.
    pub fn note_answered(&self) {
        self.change_bindings(|bindings| bindings.note_answered(self.intent, self.request));
    }

    /// Notes the refusal of the call: a session that is lost is bound no longer.
    pub fn note_fault(&self, fault: &Fault) {
        if let Fault::Refused { blocked_by: BlockedBy::SessionLost, .. } = fault
            && let Some(SessionRequest::Continue(handle)) = self.request
        {
            self.change_bindings(|bindings| bindings.unbind(&self.conversation, handle));
        }
    }

    /// Binds the session that the call opens once the call has ended, in a task of its own. If the conversation's
    /// sessions have ended by then, this one ends too.
    pub fn bind_at_end(self, executor: &Arc<Executor>) {
        if self.has_reserved {
            executor.session_tasks().spawn(self.await_end(Arc::clone(executor)));
        }
    }

    /// Changes the bindings, unless the conversation's sessions have ended.
    fn change_bindings(&self, change: impl FnOnce(&mut Bindings)) {
        if let Some(sessions) = self.sessions.upgrade() {
            change(&mut sessions.bindings.lock());
        }
    }

    async fn await_end(self, executor: Arc<Executor>) {
        let outcome = executor.queries.await_outcome(self.intent).await;
        let Ok(Some(receipt)) = outcome else { return };
        let Conversation { caller, agent, .. } = &self.conversation;
        if let Some(sessions) = self.sessions.upgrade() {
            sessions.bindings.lock().note_receipt(&self.conversation, &receipt);
        } else if let Some(turn) = &receipt.session {
            executor.engine.end_session(turn.handle, agent, Some(caller));
        }
    }
}

impl Drop for ConversationCall {
    fn drop(&mut self) {
        if self.has_reserved {
            self.change_bindings(|bindings| bindings.release(self.intent));
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
