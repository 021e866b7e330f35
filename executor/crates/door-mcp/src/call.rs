//! `tools/call`: the intent, the notifications of its run, and the cancellation when the client gives the call up.

use super::approval::{
    Effect, Elicitor, ReceivedAnswer, Subject, apply_answer, question_for, withdrawn_fault,
};
use super::{McpDoor, RequestContext};
use a2g_core::run::{Executor, IntentAnswer, RunEvent, RunEventSink};
use a2g_govern::Caller;
use a2g_http::protocol::{take_session_argument, with_caller};
use a2g_types::call::{Call, Door, Priority};
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::{AbortReason, Progress};
use a2g_types::verdict::Verdict;
use a2g_wire::mcp::decode::{ToolCall, intent_of};
use a2g_wire::mcp::elicit::{Decider, ElicitAnswer, InputResponses, Question};
use a2g_wire::mcp::fault::{CallFault, McpError, call_fault};
use a2g_wire::mcp::state::StateOwner;
use a2g_wire::mcp::{ProgressToken, Revision, TaskStatus, encode};
use parking_lot::Mutex;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tracing::Instrument as _;

/// The total of a progress in percent.
const WHOLE: f64 = 100.0;

/// The time for which an approver may decide before a repeated call is answered with the question again.
const DECISION_WAIT: Duration = Duration::from_secs(25);
/// The time for which a call of a client that polls tasks may run before its answer is a task.
const TASK_AFTER: Duration = Duration::from_secs(5);

/// The result of sending an intent.
enum Sent {
    /// The governor's verdict, and the receipt if the tool ran.
    Answered(IntentAnswer),
    /// The run takes longer than [`TASK_AFTER`], and goes on as a task. Its start is on the disk.
    GoesOn,
}

/// The step after the question to a person.
enum Asked {
    /// The answer to the request.
    Reply(String),
    /// The call is sent again.
    SendAgain,
    /// The call is sent again once an approver has decided, or after [`DECISION_WAIT`].
    SendAgainLater,
}

impl McpDoor {
    /// Sends the intent of a call, asks a person if the governor does not decide, and encodes the result.
    pub(super) async fn call(&self, context: RequestContext, call: ToolCall) -> Result<String, McpError> {
        let ToolCall { tool, mut arguments, state, responses } = call;
        let tool = ToolName::parse(&tool).map_err(|error| Fault::invalid("/name", error.to_string()))?;
        let redeemed = state.as_ref().map(|state| self.redeem(&context, &tool, state)).transpose()?;
        let (intent, is_new) = match &redeemed {
            Some((intent, _)) => (*intent, false),
            None => intent_of(&context.meta),
        };
        // An answer counts only for the question that the state belongs to.
        let answers = match redeemed.map(|(_, subject)| subject) {
            Some(Subject::Call) => InputResponses { changes: None, ..responses },
            Some(Subject::Changes) => InputResponses { call: None, ..responses },
            None => InputResponses::default(),
        };
        let agent = self.agent_of(&context.caller)?;
        // An unusable text is refused as the call is, with its intent.
        let session = match self.may_see(&context.caller, &agent, &tool) {
            true => take_session_argument(&self.executor, &tool, &mut arguments),
            false => Ok(None),
        };
        let call = Call {
            door: Door::Mcp,
            agent,
            intent,
            is_new,
            tool,
            arguments,
            context: None,
            caller_timeout: None,
            priority: Priority::Normal,
            charge: context.charge.clone(),
            parent: None,
            caller_tools: None,
            session: None,
        };
        let answered = async {
            let call = with_caller(&self.executor, &context.caller, Call { session: session?, ..call })?;
            if state.is_some() {
                self.check_known(intent).await?;
            }
            let effect = match answers.call {
                Some(answer) => {
                    let question = self.question(&context, intent);
                    Some(
                        apply_answer(&self.executor, &context.caller, &call, question.as_ref(), answer)
                            .await?,
                    )
                }
                None => None,
            };
            self.send_until_decided(&context, call, effect, answers.changes).await
        };
        let span = match &context.meta.traceparent {
            Some(traceparent) => tracing::error_span!("request", traceparent),
            None => tracing::Span::none(),
        };
        match answered.instrument(span).await {
            Ok(answer) => Ok(answer),
            Err(fault) => match call_fault(fault) {
                CallFault::Protocol(error) => Err(error),
                CallFault::Result(fault) => Ok(context.encoder().refusal(&context.id, &fault, intent)),
            },
        }
    }

    /// Checks that the intent of a state still waits, or has ended by a decision.
    ///
    /// # Errors
    /// If the intent was withdrawn, revoked or not decided in time: the governor is not asked again under the same
    /// state.
    async fn check_known(&self, intent: IntentId) -> Result<(), Fault> {
        let is_known =
            self.executor.queries.status_anywhere(intent).await?.is_some() || self.is_denied(intent).await?;
        if is_known { Ok(()) } else { Err(withdrawn_fault(intent)) }
    }

    /// Returns `true` if the intent was denied or revoked, at whichever node, so that a repeat is refused with the reason.
    async fn is_denied(&self, intent: IntentId) -> Result<bool, Fault> {
        if self.executor.queries.denial(intent)?.is_some() {
            return Ok(true);
        }
        let denied = self.executor.queries.denial_in_fleet(intent).await?;
        Ok(denied.is_some_and(|denied| denied.withdrawn_for != Some(AbortReason::Cancelled)))
    }

    /// Uses up the state of a repeated call. Returns its intent, and the matter of the question.
    fn redeem(
        &self,
        context: &RequestContext,
        tool: &ToolName,
        state: &str,
    ) -> Result<(IntentId, Subject), McpError> {
        let owner = StateOwner { caller: context.caller.name(), tool: tool.as_str() };
        let redeemed = self.states.redeem(owner, state, self.executor.clock().now())?;
        if context.meta.intent.is_some_and(|named| named != redeemed.0) {
            return Err(McpError::StateRejected);
        }
        Ok(redeemed)
    }

    /// Sends the call, and sends it again after each decision, until there is an answer for the client. `effect` is the
    /// effect of the answer that came with the call, if one came; `on_changes` is an answer about its file changes.
    async fn send_until_decided(
        &self,
        context: &RequestContext,
        mut call: Call,
        effect: Option<Effect>,
        on_changes: Option<ElicitAnswer>,
    ) -> Result<String, Fault> {
        let intent = call.intent;
        let mut waits = effect.is_some();
        if effect == Some(Effect::Withdrawn) {
            return Err(withdrawn_fault(intent));
        }
        loop {
            let answer = match self.send(context, call.clone()).await? {
                Sent::Answered(answer) => answer,
                Sent::GoesOn => return self.created_task(context, intent, TaskStatus::Running),
            };
            call.is_new = false;
            let verdict = match answer {
                IntentAnswer { verdict, receipt: Some(receipt) } => {
                    return self.answer_run(context, &call, &verdict, &receipt, on_changes).await;
                }
                IntentAnswer { verdict, receipt: None } => verdict,
            };
            if effect == Some(Effect::StillWaits) {
                return Ok(self.waiting(context, &verdict));
            }
            if std::mem::take(&mut waits) && self.wait_for_decision(context, &call).await? {
                continue;
            }
            match self.ask(context, &call, &verdict).await? {
                Asked::Reply(answer) => return Ok(answer),
                Asked::SendAgain => {}
                Asked::SendAgainLater => waits = true,
            }
        }
    }

    /// Waits for up to [`DECISION_WAIT`], or until the executor closes. Returns `true` if the intent no longer waits.
    ///
    /// # Errors
    /// See [`Self::decision`].
    async fn wait_for_decision(&self, context: &RequestContext, call: &Call) -> Result<bool, Fault> {
        // A client of a session cancels a call by a message, at any time. In 2026-07-28 a closed response does not: the
        // client may repeat the call with its state.
        let guard = (context.revision == Revision::Session).then(|| self.cancel_guard(context, call));
        let decided = tokio::select! {
            decided = self.decision(call.intent) => decided.map(|()| true),
            () = tokio::time::sleep(DECISION_WAIT) => Ok(false),
            () = self.executor.wait_until_closed() => Ok(false),
        };
        if let Some(guard) = guard {
            guard.disarm();
        }
        decided
    }

    /// Waits until the intent is denied, or approved and finished.
    ///
    /// # Errors
    /// If the intent ended without a decision, so that sending it again would ask the governor again.
    async fn decision(&self, intent: IntentId) -> Result<(), Fault> {
        let has_decision =
            self.executor.queries.await_outcome(intent).await?.is_some() || self.is_denied(intent).await?;
        if has_decision { Ok(()) } else { Err(withdrawn_fault(intent)) }
    }

    /// Asks a person about a call that waits, as far as the client can.
    async fn ask(&self, context: &RequestContext, call: &Call, verdict: &Verdict) -> Result<Asked, Fault> {
        let encoder = context.encoder();
        let Some(question) = self.question(context, call.intent) else {
            // A task that no person can decide would only be polled until it expires.
            return match context.offers_tasks() && self.decider != Decider::PersonAtHost {
                true => {
                    let status = TaskStatus::Waiting(self.decider);
                    self.created_task(context, call.intent, status).map(Asked::Reply)
                }
                false => Ok(Asked::Reply(self.waiting(context, verdict))),
            };
        };
        let asked = question.elicitation(call, verdict, context.revision);
        match (context.revision, &context.elicitor) {
            (Revision::Stateless, _) => {
                let owner = StateOwner { caller: context.caller.name(), tool: call.tool.as_str() };
                let now = self.executor.clock().now();
                let expires_at = verdict.expires_at.unwrap_or(now);
                let state = self.states.issue(owner, call.intent, Subject::Call, expires_at, now);
                let reply =
                    state.map(|state| encoder.input_required(&context.id, call.intent, &asked, &state));
                Ok(Asked::Reply(reply.unwrap_or_else(|| self.waiting(context, verdict))))
            }
            (Revision::Session, Some(elicitor)) => {
                let guard = self.cancel_guard(context, call);
                let next = self.ask_in_session(call, elicitor, &question, &asked.params).await;
                guard.disarm();
                next.map(|next| next.unwrap_or_else(|| Asked::Reply(self.waiting(context, verdict))))
            }
            (Revision::Session, None) => Ok(Asked::Reply(self.waiting(context, verdict))),
        }
    }

    /// The question about a waiting call that this client can show.
    pub(super) fn question(&self, context: &RequestContext, intent: IntentId) -> Option<Question> {
        // Without the tool, this node cannot show what people decide on.
        let right = context.caller.decision_right().filter(|_| self.executor.queries.can_show(intent));
        let may_approve =
            right.is_some_and(|right| self.executor.previews.approval_bar(intent, &right).is_none());
        question_for(may_approve, context.capabilities, self.console_url.decision_page(intent))
    }

    /// The result for a waiting call that the client cannot ask about.
    fn waiting(&self, context: &RequestContext, verdict: &Verdict) -> String {
        let page = self.console_url.decision_page(verdict.intent);
        context.encoder().waiting(&context.id, verdict, self.decider, page.as_deref())
    }

    /// `None` if the client does not answer, or the executor closes.
    async fn ask_in_session(
        &self,
        call: &Call,
        elicitor: &Elicitor,
        question: &Question,
        params: &Value,
    ) -> Result<Option<Asked>, Fault> {
        let answer = tokio::select! {
            answer = elicitor.ask(params) => answer,
            decided = self.decision(call.intent) => return decided.map(|()| Some(Asked::SendAgain)),
            () = self.executor.wait_until_closed() => None,
        };
        let Some(ReceivedAnswer { answer, caller }) = answer else { return Ok(None) };
        match apply_answer(&self.executor, &caller, call, Some(question), answer).await? {
            Effect::SendAgain if matches!(question, Question::OpenPage(_)) => {
                // The decision is made on the page, so the client is not asked again.
                tokio::select! {
                    decided = self.decision(call.intent) => decided?,
                    () = self.executor.wait_until_closed() => return Ok(None),
                }
                elicitor.complete(call.intent);
                Ok(Some(Asked::SendAgain))
            }
            Effect::SendAgain if self.executor.queries.undecided_call(call.intent).is_some() => {
                Ok(Some(Asked::SendAgainLater))
            }
            Effect::SendAgain => Ok(Some(Asked::SendAgain)),
            Effect::StillWaits => Ok(None),
            Effect::Withdrawn => Err(withdrawn_fault(call.intent)),
        }
    }

    /// Sends the intent once. Dropping the future cancels the call.
    async fn send(&self, context: &RequestContext, call: Call) -> Result<Sent, Fault> {
        let started = Arc::new(Notify::new());
        let sink = event_sink(context, &call.tool, &started);
        let guard = self.cancel_guard(context, &call);
        let agent = call.agent.clone();
        let tool = call.tool.clone();
        let is_listed = self.may_see(&context.caller, &agent, &tool);
        let becomes_task = async {
            started.notified().await;
            tokio::time::sleep(TASK_AFTER).await;
            // The client finds its task again, also after a power failure. Until the start is on the disk, it waits for
            // the result; a broken journal ends the run, and so the call.
            if self.executor.journal.sync().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let sent = tokio::select! {
            answer = self.executor.engine.handle_intent(call, sink) => answer.map(Sent::Answered),
            () = becomes_task, if context.offers_tasks() => Ok(Sent::GoesOn),
        };
        guard.disarm();
        sent.map_err(|fault| {
            // A caller does not learn the state of a tool that its list does not have.
            let is_state_of_tool = matches!(
                fault,
                Fault::ToolUnavailable { .. }
                    | Fault::Busy { .. }
                    | Fault::Refused { blocked_by: BlockedBy::ToolUntrusted, .. }
            );
            if !is_listed && is_state_of_tool {
                return self.executor.catalogue.absent_tool_fault(&agent, &tool);
            }
            fault
        })
    }

    fn cancel_guard(&self, context: &RequestContext, call: &Call) -> CancelGuard<'_> {
        CancelGuard {
            executor: &self.executor,
            intent: call.intent,
            agent: call.agent.clone(),
            caller: Arc::clone(&context.caller),
            is_armed: true,
        }
    }
}

/// Cancels an intent when the request that waits for it is dropped.
struct CancelGuard<'a> {
    executor: &'a Arc<Executor>,
    intent: IntentId,
    agent: AgentDid,
    caller: Arc<Caller>,
    is_armed: bool,
}

impl CancelGuard<'_> {
    fn disarm(mut self) {
        self.is_armed = false;
    }
}

impl Drop for CancelGuard<'_> {
    fn drop(&mut self) {
        if !self.is_armed {
            return;
        }
        let executor = Arc::clone(self.executor);
        let intent = self.intent;
        let agent = self.agent.clone();
        let caller = Arc::clone(&self.caller);
        self.executor.session_tasks().spawn(async move {
            let is_own = move |owner: &AgentDid| *owner == agent;
            if let Err(fault) = executor.operator.cancel(intent, &is_own, caller.name()).await {
                tracing::warn!(%intent, ?fault, "the cancel of a call that its client gave up is not recorded yet");
            }
        });
    }
}

/// The sink that turns events of a run into the notifications that the request asked for, and that notifies
/// `started` when the run starts.
fn event_sink(context: &RequestContext, tool: &ToolName, started: &Arc<Notify>) -> RunEventSink {
    let progress = context.meta.progress_token.clone().map(|token| Mutex::new(ProgressEncoder::new(token)));
    let level = context.log_level;
    let tool = tool.clone();
    let started = Arc::clone(started);
    let wants_events = progress.is_some() || level.is_some();
    let notifications = context.notifications.clone().filter(|_| wants_events);
    if notifications.is_none() && !context.offers_tasks() {
        return RunEventSink::none();
    }
    RunEventSink::new(move |event| {
        let text = match &event {
            RunEvent::Progress(report) => {
                progress.as_ref().and_then(|progress| progress.lock().encode(report))
            }
            RunEvent::Log(line) => {
                level.filter(|level| level.includes(line.level)).map(|_| encode::log_message(&tool, line))
            }
            RunEvent::Started => {
                started.notify_one();
                None
            }
            // The answer has every artifact.
            RunEvent::Artifact(_) => None,
        };
        if let Some((notifications, text)) = notifications.as_ref().zip(text) {
            // Never blocks the run. A client that does not read loses notifications, and no answer.
            let _unread = notifications.try_send(text);
        }
    })
}

/// Encodes the progress of a run. The protocol requires that the number rises with every notification.
struct ProgressEncoder {
    token: ProgressToken,
    last: Option<f64>,
    /// Reports without a percentage are counted, until the first one with a percentage.
    counts: bool,
}

impl ProgressEncoder {
    fn new(token: ProgressToken) -> Self {
        Self { token, last: None, counts: true }
    }

    fn encode(&mut self, report: &Progress) -> Option<String> {
        let Progress { percent, message } = report;
        let (progress, total) = match percent {
            Some(percent) => {
                self.counts = false;
                ((f64::from(*percent) * 100.0).round() / 100.0, Some(WHOLE))
            }
            None if self.counts => (self.last.unwrap_or(0.0) + 1.0, None),
            None => return None,
        };
        if self.last.is_some_and(|last| progress <= last) {
            return None;
        }
        self.last = Some(progress);
        Some(encode::progress(&self.token, progress, total, message))
    }
}
