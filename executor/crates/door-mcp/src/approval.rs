//! People's decisions on calls that the governor escalated. Those on file changes that wait are in `staged.rs`.
//!
//! ```text
//! call ─▶ waits ─┬─ 2026-07-28 ─▶ `input_required` with a state ─ call with state and answer ─▶ decision ─▶ call again
//!                └─ 2025-11-25 ─▶ `elicitation/create` on the call's stream ─ answer ─▶ decision ─▶ call again
//! ```
//! A caller that may approve, with a client that shows forms, gets a form with the decision. Otherwise the client gets the
//! link to the decision page of the console, or a form that names the deciding role; the answer to these two only
//! continues the wait or withdraws the call. No answer starts a run by itself: the decision goes to the core, which
//! applies it once, and the call is sent again under the same intent.

use a2g_core::run::{DirectiveOutcome, Executor};
use a2g_govern::Caller;
use a2g_types::call::Call;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::IntentId;
use a2g_types::verdict::Directive;
use a2g_wire::jsonrpc::Id;
use a2g_wire::mcp::ClientCapabilities;
use a2g_wire::mcp::elicit::{
    ElicitAction, ElicitAnswer, PersonDecision, Question, elicitation_cancelled, elicitation_complete,
    elicitation_request,
};
use a2g_wire::mcp::fault::McpError;
use a2g_wire::mcp::state::{RequestState, StateOwner, StateSealer};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use time::OffsetDateTime;
use tokio::sync::{mpsc, oneshot};

/// The maximum number of states that can be redeemed. More intents than this cannot wait.
const MAX_STATES: usize = 2_000;

/// The matter of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// A call that waits: it runs or not.
    Call,
    /// The file changes of a call: they take effect or not.
    Changes,
}

/// The latest state of an intent.
struct LatestState {
    nonce: [u8; 16],
    expires_at: OffsetDateTime,
    subject: Subject,
}

/// The states that clients carry from a question to its answer.
pub(super) struct States {
    /// `None` if the system has no random numbers: no state is then made or accepted.
    sealer: Option<StateSealer>,
    /// The latest state of each intent. Only that one can be redeemed, and only once.
    latest: Mutex<HashMap<IntentId, LatestState>>,
}

impl States {
    pub(super) fn new() -> Self {
        let mut key = [0; 32];
        let sealer = getrandom::fill(&mut key).ok().map(|()| StateSealer::new(&key));
        Self { sealer, latest: Mutex::default() }
    }

    /// Makes the state for the next answer about an intent, in place of earlier ones. `None` if too many intents have
    /// a state.
    pub(super) fn issue(
        &self,
        owner: StateOwner<'_>,
        intent: IntentId,
        subject: Subject,
        expires_at: OffsetDateTime,
        now: OffsetDateTime,
    ) -> Option<String> {
        let mut nonce = [0; 16];
        let mut iv = [0; 12];
        getrandom::fill(&mut nonce).and_then(|()| getrandom::fill(&mut iv)).ok()?;
        let state = RequestState { intent, nonce, expires_at };
        let sealed = self.sealer.as_ref()?.seal(&state, owner, iv)?;
        let mut latest = self.latest.lock();
        if latest.len() >= MAX_STATES {
            latest.retain(|_, state| state.expires_at > now);
        }
        if latest.len() >= MAX_STATES && !latest.contains_key(&intent) {
            return None;
        }
        latest.insert(intent, LatestState { nonce, expires_at, subject });
        Some(sealed)
    }

    /// Uses a state up. Returns its intent, and the matter of the question.
    ///
    /// # Errors
    /// [`McpError::StateRejected`] if the state is not the latest one of its intent, was used, has expired, or belongs
    /// to another caller or tool.
    pub(super) fn redeem(
        &self,
        owner: StateOwner<'_>,
        text: &str,
        now: OffsetDateTime,
    ) -> Result<(IntentId, Subject), McpError> {
        let opened = self.sealer.as_ref().and_then(|sealer| sealer.open(text, owner));
        let RequestState { intent, nonce, expires_at } = opened.ok_or(McpError::StateRejected)?;
        let mut latest = self.latest.lock();
        let known = latest.get(&intent).filter(|known| known.nonce == nonce && expires_at > now);
        let subject = known.map(|known| known.subject).ok_or(McpError::StateRejected)?;
        latest.remove(&intent);
        Ok((intent, subject))
    }
}

/// The effect of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The call is sent again: it runs, is refused, or still waits.
    SendAgain,
    /// The person closed the form, or sent it without a decision, and the intent still waits.
    StillWaits,
    /// The call is withdrawn, and does not run.
    Withdrawn,
}

/// The question that a client can show; `None` if it can show none. `page` is the page of the console on which people
/// decide on the call, if there is one.
pub(super) fn question_for(
    may_approve: bool,
    capabilities: ClientCapabilities,
    page: Option<String>,
) -> Option<Question> {
    let page = page.filter(|_| capabilities.elicits_urls);
    match (may_approve, capabilities.elicits_forms, page) {
        (true, true, _) => Some(Question::Decide),
        (true | false, _, Some(url)) => Some(Question::OpenPage(url)),
        (false, true, None) => Some(Question::WaitForApprover),
        (true | false, false, None) => None,
    }
}

/// Applies the answer of a person to the call that waits under the same intent. An answer about another call, or about
/// an intent that no longer waits, has no effect. Neither has the consent to open a page: the decision is made there.
///
/// # Errors
/// The intent cannot run as approved, or the decision is not recorded yet.
pub(super) async fn apply_answer(
    executor: &Arc<Executor>,
    caller: &Caller,
    call: &Call,
    question: Option<&Question>,
    answer: ElicitAnswer,
) -> Result<Effect, Fault> {
    let intent = call.intent;
    executor.queries.refresh_wait(intent).await?;
    let Some((waiting, _)) = executor.queries.undecided_call(intent) else { return Ok(Effect::SendAgain) };
    let is_same =
        waiting.agent == call.agent && waiting.tool == call.tool && waiting.arguments == call.arguments;
    if !is_same {
        return Ok(Effect::SendAgain);
    }
    let ElicitAnswer { action, decision } = answer;
    let right = match question {
        Some(Question::OpenPage(_)) => None,
        // Without the tool, the form shows less than people decide on.
        Some(Question::Decide | Question::WaitForApprover) | None => {
            caller.decision_right().filter(|_| executor.queries.can_show(intent))
        }
    };
    let approved = match (right, action, decision) {
        (_, ElicitAction::Cancel, _)
        | (_, ElicitAction::Accept, Some(PersonDecision::Commit | PersonDecision::Discard)) => {
            return Ok(Effect::StillWaits);
        }
        // The caller could have decided, so no other person is waited for.
        (Some(_), ElicitAction::Accept, None) if !matches!(question, Some(Question::WaitForApprover)) => {
            return Ok(Effect::StillWaits);
        }
        (Some(right), ElicitAction::Accept, Some(PersonDecision::Approve)) => (right, true),
        (Some(right), ElicitAction::Accept, Some(PersonDecision::Deny))
        | (Some(right), ElicitAction::Decline, _) => (right, false),
        (_, ElicitAction::Accept, _) => return Ok(Effect::SendAgain),
        (None, ElicitAction::Decline, _) => {
            executor.operator.cancel(intent, &|agent| caller.may_cancel(agent), caller.name()).await?;
            return Ok(Effect::Withdrawn);
        }
    };
    let (right, approved) = approved;
    tracing::info!(%intent, approved, caller = caller.name(), "decision received in a form");
    match executor
        .operator
        .apply_directive(&Directive { intent, approved, manifest: None, reason: None, digest: None }, right)
        .await
    {
        Ok(DirectiveOutcome::Applied | DirectiveOutcome::NeedsMoreApprovals) => Ok(Effect::SendAgain),
        // Another person was faster.
        Err(Fault::InvalidParams { pointer, .. }) if pointer == "/intent_id" => Ok(Effect::SendAgain),
        Err(fault) => Err(fault),
    }
}

/// The refusal of a call that no longer waits, and that no person approved or denied.
pub(super) fn withdrawn_fault(intent: IntentId) -> Fault {
    Fault::Refused {
        intent: Some(intent),
        risk_score: None,
        blocked_by: BlockedBy::EscalationPending,
        message:
            "the call was withdrawn, revoked, stopped by an operator, or not decided in time: it does not run"
                .to_owned(),
    }
}

/// The answer to a question, with the caller that sent it: its roles may have changed since the call.
pub(super) struct ReceivedAnswer {
    pub(super) answer: ElicitAnswer,
    pub(super) caller: Arc<Caller>,
}

/// The questions to the client of a session that have no answer yet.
#[derive(Default)]
pub(super) struct Questions {
    last: AtomicU64,
    open: Mutex<OpenQuestions>,
}

#[derive(Default)]
struct OpenQuestions {
    /// `true` once no further answer can arrive.
    is_closed: bool,
    replies: HashMap<u64, oneshot::Sender<Option<ReceivedAnswer>>>,
}

impl Questions {
    /// Passes the client's answer on; `None` is an error. Returns `false` if there is no such question.
    pub(super) fn answer(&self, id: &Id, answer: Option<ElicitAnswer>, caller: &Arc<Caller>) -> bool {
        let number = id.as_json().parse::<u64>().ok();
        let question = number.and_then(|number| self.open.lock().replies.remove(&number));
        let received = answer.map(|answer| ReceivedAnswer { answer, caller: Arc::clone(caller) });
        question.is_some_and(|question| question.send(received).is_ok())
    }

    /// Ends every question, because the client sends no more messages.
    pub(super) fn close(&self) {
        let mut open = self.open.lock();
        open.is_closed = true;
        open.replies.clear();
    }

    /// Adds a question; `None` if no further answer can arrive.
    fn add(&self) -> Option<(u64, oneshot::Receiver<Option<ReceivedAnswer>>)> {
        let (reply, answer) = oneshot::channel();
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut open = self.open.lock();
        if open.is_closed {
            return None;
        }
        open.replies.insert(number, reply);
        Some((number, answer))
    }
}

/// Asks the client of a session, on the stream of a call.
#[derive(Clone)]
pub(super) struct Elicitor {
    pub(super) questions: Arc<Questions>,
    pub(super) output: mpsc::Sender<String>,
}

impl Elicitor {
    /// Sends a question and waits for its answer; `None` if the client cannot answer. Dropping the future tells the
    /// client that the answer is no longer wanted.
    pub(super) async fn ask(&self, params: &Value) -> Option<ReceivedAnswer> {
        let (number, answer) = self.questions.add()?;
        let _open = OpenQuestion { elicitor: self, number };
        self.output.send(elicitation_request(number, params)).await.ok()?;
        answer.await.ok().flatten()
    }

    /// Tells the client that the decision of [`Question::OpenPage`] was made.
    pub(super) fn complete(&self, intent: IntentId) {
        // The answer of the call follows, so nothing depends on the notification.
        let _unread = self.output.try_send(elicitation_complete(intent));
    }
}

/// A question until it is answered or dropped.
struct OpenQuestion<'a> {
    elicitor: &'a Elicitor,
    number: u64,
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        if self.elicitor.questions.open.lock().replies.remove(&self.number).is_some() {
            // A client that does not read keeps its form open; its answer then has no effect.
            let _unread = self.elicitor.output.try_send(elicitation_cancelled(self.number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::Duration;

    const NOW: OffsetDateTime = time::macros::datetime!(2026-11-25 12:00 UTC);
    const LATER: OffsetDateTime = time::macros::datetime!(2026-11-25 12:05 UTC);
    const OWNER: StateOwner<'_> = StateOwner { caller: "anna", tool: "write_file" };

    #[test]
    fn a_state_is_redeemed_once_by_its_owner_before_it_expires() {
        let states = States::new();
        let intent = IntentId::random();
        let issue = || states.issue(OWNER, intent, Subject::Changes, LATER, NOW).unwrap();
        let first = issue();
        let second = issue();
        let rejected = |owner, text: &str, now| {
            assert!(matches!(states.redeem(owner, text, now), Err(McpError::StateRejected)), "{text}");
        };
        rejected(OWNER, &first, NOW);
        rejected(StateOwner { caller: "berta", ..OWNER }, &second, NOW);
        rejected(StateOwner { tool: "read_file", ..OWNER }, &second, NOW);
        rejected(OWNER, &second, LATER);
        for index in 0..second.len() {
            let mut changed = second.clone().into_bytes();
            changed[index] ^= 1;
            rejected(OWNER, &String::from_utf8(changed).unwrap(), NOW);
        }
        rejected(OWNER, "", NOW);
        rejected(OWNER, &States::new().issue(OWNER, intent, Subject::Changes, LATER, NOW).unwrap(), NOW);
        assert_eq!(states.redeem(OWNER, &second, NOW).unwrap(), (intent, Subject::Changes));
        rejected(OWNER, &second, NOW);
    }

    #[test]
    fn states_are_bounded_and_expired_ones_make_room() {
        let states = States::new();
        let issue = |expires_at, now| states.issue(OWNER, IntentId::random(), Subject::Call, expires_at, now);
        assert!((0..MAX_STATES).all(|_| issue(LATER, NOW).is_some()));
        assert!(issue(LATER, NOW).is_none());
        assert!(issue(LATER + Duration::HOUR, LATER).is_some());
    }
}
