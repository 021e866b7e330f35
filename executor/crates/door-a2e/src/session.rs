//! One session of A2E: its caller, the result of its handshake, its waiting and running calls, and the sessions of tools
//! that it has opened.
//!
//! ```text
//! Open ─ shutdown, end of input, the executor closes ─▶ Draining ─ all calls answered ─▶ ended
//!   └──────────── no agent reads ────────────▶ Abandoned: its calls are cancelled
//! ```
//! Messages are handled in the order in which they arrive. A call is checked at once but runs in the background, so
//! that a later `ping` is answered while the call runs. The next call begins once it is answered, unless the agent has
//! asked for several at a time; a call that waits for a person is answered when the wait begins. Every run goes through
//! [`Engine::handle_intent`]. When a session is abandoned, calls that have not begun are dropped, and runs are
//! cancelled by their intent.
//!
//! [`Engine::handle_intent`]: a2g_core::run::Engine::handle_intent

use super::outgoing::{OutgoingQueue, Presence};
use super::{A2eShared, PendingRequest};
use a2g_core::run::{IntentAnswer, RunEvent, RunEventSink};
use a2g_govern::{Caller, Credential};
use a2g_http::auth::Unauthenticated;
use a2g_http::conversations::{Conversation, ConversationSessions};
use a2g_http::protocol::with_caller;
use a2g_http::staged::staged_state;
use a2g_runtime::timer_now;
use a2g_types::call::{Call, Door, Priority};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::memory::Charge;
use a2g_types::tool::{Descriptor, Digest};
use a2g_wire::a2e::decode::{self, A2eDecodeError, AgentMessage, Handshake, MessageBody, ToolCall};
use a2g_wire::a2e::encode::{self, AcceptedHandshake, CallEvent, RejectReason, StagedRun};
use a2g_wire::a2e::fault::{self, A2eCode, A2eError};
use a2g_wire::a2e::{TOOLS, is_tools_capability};
use a2g_wire::staged::changes_of;
use a2g_wire::strict_json;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Map;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Maximum number of waiting calls of one session.
const MAX_WAITING: usize = 64;
/// Maximum wait for the answers of cancelled calls.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which lines may wait for an agent to read them, before its session counts as abandoned.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Capabilities of an agent that concern only the form of its answers. They grant nothing.
const FEATURES: [&str; 2] = ["streaming", "artifacts"];

/// The error for a call that did not run.
fn call_failure(fault: &Fault, tool: &ToolName, known: &[Descriptor]) -> A2eError {
    let unknown = matches!(fault, Fault::InvalidParams { pointer, .. } if pointer == "/tool");
    if unknown { unknown_tool(tool.as_str(), known) } else { fault::to_error(fault) }
}

fn unknown_tool(name: &str, known: &[Descriptor]) -> A2eError {
    fault::unknown_tool_error(name, known.iter().map(|tool| tool.name.as_str()))
}

/// The caller of a session.
pub(super) enum SessionCaller {
    /// Any caller, if the door is public.
    Anonymous(Arc<Caller>),
    /// The caller that presented this credential, authenticated again with every message.
    Authenticated(Credential),
}

pub(super) struct Session {
    shared: Arc<A2eShared>,
    id: Box<str>,
    pub(super) out: OutgoingQueue,
    state: Mutex<SessionState>,
    /// `true` once the session is abandoned.
    abandoned: watch::Sender<bool>,
    /// The number of calls that wait or run.
    open: watch::Sender<usize>,
    /// The sessions of tools that its calls have asked for, which end with it.
    tool_sessions: Arc<ConversationSessions>,
}

struct SessionState {
    caller: SessionCaller,
    agreement: Option<Agreement>,
    phase: Phase,
    waiting: VecDeque<Queued>,
    /// The calls that run, by their numbers.
    running: BTreeMap<u64, (IntentId, AgentDid)>,
    /// The number of the last call that has begun.
    last_number: u64,
    /// The time of the last message, or of the end of the last call.
    last_active: Instant,
}

struct Agreement {
    agent: AgentDid,
    tools: bool,
    /// Maximum number of calls that run at the same time.
    max_parallel: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Draining,
    Abandoned,
}

struct Queued {
    req_id: String,
    call: Call,
    streaming: bool,
    conversation: Conversation,
    asks_for_session: Option<bool>,
}

enum HandshakeError {
    Refused(RejectReason),
    Invalid(A2eError),
}

impl Session {
    /// Creates a session whose queue counts against the share of `owner`.
    pub(super) fn new(shared: Arc<A2eShared>, id: String, owner: &str, caller: SessionCaller) -> Arc<Self> {
        let state = SessionState {
            caller,
            agreement: None,
            phase: Phase::Open,
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            last_number: 0,
            last_active: timer_now(),
        };
        Arc::new(Self {
            tool_sessions: Arc::new(ConversationSessions::new(Arc::clone(&shared.executor))),
            shared,
            id: id.into(),
            out: OutgoingQueue::new(owner),
            state: Mutex::new(state),
            abandoned: watch::Sender::new(false),
            open: watch::Sender::new(0),
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock()
    }

    /// Returns `true` while the session's caller is authenticated.
    pub(super) fn is_authenticated(&self) -> bool {
        self.authenticate(&self.lock().caller).is_ok()
    }

    /// The time without calls; `None` while calls wait or run.
    pub(super) fn idle(&self) -> Option<Duration> {
        let state = self.lock();
        (state.open() == 0).then(|| state.last_active.elapsed())
    }

    /// Returns `true` if the session's agent has been disconnected, or has read nothing, for longer than the limits
    /// allow.
    pub(super) fn is_abandoned(&self) -> bool {
        let settings = &self.shared.settings;
        match self.out.presence() {
            Presence::Attached(stalled) => stalled > ANSWER_TIMEOUT,
            Presence::Detached(detached) => match self.idle() {
                None => detached > settings.reconnect,
                Some(idle) => detached.min(idle) > settings.idle,
            },
        }
    }

    /// Returns `true` if the session is over and its last answers were read, or no reader has attached in time to read
    /// them.
    pub(super) fn has_ended(&self) -> bool {
        let is_unread = match self.out.presence() {
            Presence::Attached(_) => false,
            Presence::Detached(detached) => detached > self.shared.settings.reconnect,
        };
        self.out.has_ended() || (self.out.is_closed() && is_unread)
    }

    fn authenticate(&self, caller: &SessionCaller) -> Result<Arc<Caller>, Unauthenticated> {
        match caller {
            SessionCaller::Anonymous(caller) => Ok(Arc::clone(caller)),
            SessionCaller::Authenticated(credential) => self.shared.identify(credential),
        }
    }

    /// Handles one line; `None` stands for a line that was too long to read. `charge` is the line's charge against the
    /// caller's share of memory.
    pub(super) fn receive(self: &Arc<Self>, line: Option<&[u8]>, charge: Result<Charge, Fault>) {
        let bounds = &self.shared.bounds;
        let text =
            line.ok_or_else(|| bounds.too_long_fault()).and_then(|line| strict_json::check(line, bounds));
        let mut state = self.lock();
        state.last_active = timer_now();
        if state.phase == Phase::Abandoned {
            return;
        }
        match text.map(decode::message) {
            Ok(Ok(message)) => self.handle(&mut state, message, charge),
            Ok(Err(A2eDecodeError::Ignored { kind })) => {
                tracing::debug!(kind, "a message without an answer is ignored");
            }
            Ok(Err(A2eDecodeError::Refused { id: Some(id), handshake: true, failure: _ })) => {
                self.refuse_handshake(&id, RejectReason::VersionMismatch);
            }
            Ok(Err(A2eDecodeError::Refused { id, handshake: _, failure })) => {
                self.fail(id.as_deref(), &failure)
            }
            Err(fault) => self.fail(None, &fault::to_error(&fault)),
        }
        drop(state);
        self.start_waiting();
    }

    fn fail(&self, req_id: Option<&str>, failure: &A2eError) {
        self.out.push(encode::error(req_id, failure, self.shared.timestamp()));
    }

    fn refuse_handshake(&self, req_id: &str, reason: RejectReason) {
        tracing::info!(reason = reason.as_str(), "a handshake is refused");
        self.out.push(encode::handshake_rejection(
            req_id,
            reason,
            self.shared.settings.max_parallel,
            self.shared.timestamp(),
        ));
    }

    fn handle(
        self: &Arc<Self>,
        state: &mut SessionState,
        message: AgentMessage,
        charge: Result<Charge, Fault>,
    ) {
        let AgentMessage { id, body } = message;
        let ts = self.shared.timestamp();
        match body {
            MessageBody::Ping => self.out.push(encode::pong(&id, self.shared.uptime_seconds(), ts)),
            MessageBody::Shutdown(timeout) => {
                state.phase = Phase::Draining;
                let drain = Arc::clone(self).drain(Some(timeout.duration()));
                self.shared.executor.session_tasks().spawn(drain);
            }
            MessageBody::Handshake(handshake) => match self.negotiate(state, &handshake) {
                Ok(max_parallel) => {
                    let accepted = AcceptedHandshake {
                        session_id: &self.id,
                        requested_caps: &handshake.agent_caps,
                        max_parallel,
                        bounds: self.shared.bounds,
                        tools: self.shared.executor.catalogue.tools().len(),
                    };
                    self.out.push(encode::handshake_acceptance(&id, &accepted, ts));
                }
                Err(HandshakeError::Refused(reason)) => self.refuse_handshake(&id, reason),
                Err(HandshakeError::Invalid(failure)) => self.fail(Some(&id), &failure),
            },
            MessageBody::ToolList(filter) => match self.authorize_tools(state) {
                Ok(_) => self.out.push(encode::tool_list(
                    &id,
                    &self.shared.executor.catalogue.tools(),
                    &filter,
                    ts,
                )),
                Err(failure) => self.fail(Some(&id), &failure),
            },
            MessageBody::ToolCall(call) => {
                if let Err(failure) = self.queue_call(state, &id, call, charge) {
                    self.fail(Some(&id), &failure);
                }
            }
            MessageBody::Other { kind, capability: Some(capability) } => {
                let message = format!(
                    "`{kind}` needs the capability `{capability}`, which this executor does not have"
                );
                self.fail(
                    Some(&id),
                    &A2eError::new(A2eCode::CapabilityMissing, message).for_capability(capability),
                );
            }
            MessageBody::Other { kind, capability: None } => {
                let message = format!("`{}` is not a known message type", a2g_types::ident::excerpt(&kind));
                self.fail(Some(&id), &A2eError::new(A2eCode::InvalidMessage, message));
            }
        }
    }

    /// Binds the session to one agent; a later handshake of the same agent negotiates again. Returns the maximum number
    /// of calls that run at the same time.
    fn negotiate(&self, state: &mut SessionState, handshake: &Handshake) -> Result<usize, HandshakeError> {
        let Handshake { agent_id, agent_caps, auth_token, max_parallel } = handshake;
        let auth_failed = || HandshakeError::Refused(RejectReason::AuthFailed);
        if state.phase != Phase::Open {
            return Err(HandshakeError::Refused(RejectReason::ServerError));
        }
        let mut new_credential = None;
        let current = self.authenticate(&state.caller).ok();
        let caller = if auth_token.is_empty() {
            current
        } else {
            let credential = Credential::new(Some(auth_token.as_bytes()), Arc::default());
            let caller = self.shared.identify(&credential).ok();
            // A token in the handshake must belong to the caller that the transport has authenticated.
            let is_another = match (&state.caller, &current, &caller) {
                (SessionCaller::Authenticated(_), Some(current), Some(caller)) => {
                    current.name() != caller.name()
                }
                (SessionCaller::Authenticated(_) | SessionCaller::Anonymous(_), _, _) => false,
            };
            new_credential = Some(credential);
            caller.filter(|_| !is_another)
        };
        let caller = caller.ok_or_else(auth_failed)?;
        let claimed = Some(agent_id.as_str()).filter(|name| !name.is_empty());
        let agent = self.shared.settings.door.agent_of(Door::A2e, &caller, claimed).map_err(|fault| {
            let A2eError { message, .. } = fault::to_error(&fault);
            HandshakeError::Invalid(fault::to_error(&Fault::invalid("/agent_id", message)))
        })?;
        let is_another = state.agreement.as_ref().is_some_and(|agreement| agreement.agent != agent);
        if is_another || !caller.may_act_as(&agent) {
            return Err(auth_failed());
        }
        let tools = agent_caps.iter().any(|capability| is_tools_capability(capability));
        if !tools && !agent_caps.iter().any(|capability| FEATURES.contains(&capability.as_str())) {
            return Err(HandshakeError::Refused(RejectReason::NoCaps));
        }
        tracing::debug!(%agent, caller = caller.name(), tools, "a session begins");
        if let Some(credential) = new_credential {
            state.caller = SessionCaller::Authenticated(credential);
        }
        let max_parallel = self.shared.settings.max_parallel.min(*max_parallel);
        state.agreement = Some(Agreement { agent, tools, max_parallel });
        Ok(max_parallel)
    }

    /// The caller and the agent of a request that needs the `tools` capability.
    fn authorize_tools(&self, state: &SessionState) -> Result<(Arc<Caller>, AgentDid), A2eError> {
        let unauthorized =
            |message: &str| A2eError::new(A2eCode::Unauthorized, message).for_capability(TOOLS);
        let agreement = state
            .agreement
            .as_ref()
            .ok_or_else(|| unauthorized("send `handshake/req` first: this session has no handshake"))?;
        let caller = self.authenticate(&state.caller).map_err(|reason| {
            unauthorized(&format!("the caller is no longer authenticated: {}", reason.message()))
        })?;
        if !agreement.tools {
            let message = "the handshake did not request `tools` in `agent_caps`";
            return Err(A2eError::new(A2eCode::CapabilityMissing, message).for_capability(TOOLS));
        }
        Ok((caller, agreement.agent.clone()))
    }

    /// Checks a call and queues it.
    fn queue_call(
        &self,
        state: &mut SessionState,
        req_id: &str,
        tool_call: ToolCall,
        charge: Result<Charge, Fault>,
    ) -> Result<(), A2eError> {
        let (caller, agent) = self.authorize_tools(state)?;
        let ToolCall {
            intent,
            session_id,
            tool_name,
            arguments,
            correlation_id,
            streaming,
            timeout,
            asks_for_session,
        } = tool_call;
        if !session_id.is_empty() && session_id != *self.id {
            let message = "`session_id` differs from that of this session's `handshake/resp`";
            return Err(A2eError::new(A2eCode::Unauthorized, message).for_capability(TOOLS));
        }
        let busy = |message: &str| Err(A2eError::new(A2eCode::RuntimeError, message).for_capability(TOOLS));
        if state.phase != Phase::Open {
            return busy("the session is shutting down");
        }
        let tool = ToolName::parse(&tool_name)
            .map_err(|_| unknown_tool(&tool_name, &self.shared.executor.catalogue.tools()))?;
        if state.waiting.len() >= MAX_WAITING {
            return busy("too many calls of this session are waiting: read their results first");
        }
        let context = (!correlation_id.is_empty())
            .then(|| Map::from_iter([("correlation_id".to_owned(), correlation_id.into())]));
        let unchecked = Call {
            door: Door::A2e,
            agent,
            intent: intent.unwrap_or_else(|| self.intent_of(req_id)),
            is_new: false,
            tool,
            arguments,
            context,
            priority: Priority::Normal,
            caller_timeout: Some(timeout),
            charge: charge.map_err(|fault| fault::to_error(&fault))?,
            parent: None,
            caller_tools: None,
            session: None,
        };
        let call = with_caller(&self.shared.executor, &caller, unchecked)
            .map_err(|fault| fault::to_error(&fault))?;
        // Checked before queueing, so that a call that cannot run takes no place in the queue. Other nodes are asked once
        // the call runs: a question takes up to 3 s, in which this session would read nothing.
        let executor = &self.shared.executor;
        let checked = executor.engine.check_tool_locally(&call);
        checked.map_err(|fault| call_failure(&fault, &call.tool, &executor.catalogue.tools()))?;
        let conversation = Conversation::of(&caller, &call, &self.id);
        let req_id = req_id.to_owned();
        state.waiting.push_back(Queued { req_id, call, streaming, conversation, asks_for_session });
        self.open.send_replace(state.open());
        Ok(())
    }

    /// Derives the intent id from a message id that is not a UUID. A repeated message of this session gets the same
    /// intent id, so that its call does not run twice; the same message in another session gets another id.
    fn intent_of(&self, req_id: &str) -> IntentId {
        let Digest(digest) = Digest::compute(format!("a2e/{}/{req_id}", self.id).as_bytes());
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(digest).for_each(|(byte, source)| *byte = source);
        IntentId::from_bytes(bytes)
    }

    /// Begins calls in their order of arrival, while the session may run more and its outgoing queue has capacity.
    pub(super) fn start_waiting(self: &Arc<Self>) {
        let mut started = Vec::new();
        let mut state = self.lock();
        while state.phase != Phase::Abandoned
            && state.running.len() < state.max_parallel()
            && self.out.has_capacity()
            && let Some(queued) = state.waiting.pop_front()
        {
            state.last_number += 1;
            let number = state.last_number;
            state.running.insert(number, (queued.call.intent, queued.call.agent.clone()));
            started.push((RunSlot { session: Arc::clone(self), number }, queued));
        }
        // The lock is released first: a spawned task may be dropped at once, and dropping its slot takes the lock.
        drop(state);
        for (slot, queued) in started {
            self.shared.executor.session_tasks().spawn(async move { slot.session.run(queued).await });
        }
    }

    async fn run(self: &Arc<Self>, queued: Queued) {
        let Queued { req_id, call, streaming, conversation, asks_for_session } = queued;
        // Only now: the calls before it may have opened the session.
        let in_conversation = match self.tool_sessions.find(conversation, &call, asks_for_session) {
            Ok(found) => found,
            Err(refusal) => return self.fail(Some(&req_id), &fault::to_error(&refusal)),
        };
        let call = Call { session: in_conversation.session(), ..call };
        let intent = call.intent;
        let agent = call.agent.clone();
        let tool = call.tool.clone();
        let pending = PendingRequest::new(&self.shared, intent);
        let reporter = Arc::new(CallReporter::new(Arc::clone(self), req_id));
        let sink = if streaming { reporter.sink() } else { RunEventSink::none() };
        let mut abandoned = self.abandoned.subscribe();
        let answer = tokio::select! {
            answer = self.shared.executor.engine.handle_intent(call, sink) => answer,
            () = async { drop(abandoned.wait_for(|abandoned| *abandoned).await) } => {
                if pending.is_exclusive()
                    && let Err(fault) = self.shared.executor.operator.cancel(intent, &|owner| *owner == agent, agent.as_str()).await
                {
                    tracing::warn!(%intent, ?fault, "a call of an abandoned session cannot be cancelled");
                }
                return;
            }
        };
        match answer {
            Ok(IntentAnswer { verdict: _, receipt: Some(receipt) }) => {
                in_conversation.note_answered();
                in_conversation.note_receipt(&receipt);
                let state = staged_state(&self.shared.executor, &receipt).await;
                let run = StagedRun { receipt: &receipt, state: state.as_ref() };
                if streaming {
                    reporter.report_staged(run);
                }
                reporter.answer(|req_id, reported| {
                    let output = &receipt.outcome.output;
                    let all = reported.logs == output.logs.len()
                        && reported.artifacts == output.artifacts.len()
                        && reported.staged == usize::from(changes_of(&receipt).is_some());
                    let next_seq = (!all || reported.is_incomplete).then_some(reported.next_seq);
                    encode::call_response(req_id, run, next_seq, self.shared.timestamp())
                });
            }
            Ok(IntentAnswer { verdict, receipt: None }) => {
                in_conversation.note_answered();
                in_conversation.bind_at_end(&self.shared.executor);
                let failure = fault::escalation_error(intent, verdict.risk.as_ref().map(|risk| risk.score));
                reporter.answer(|req_id, _| encode::error(Some(req_id), &failure, self.shared.timestamp()));
            }
            Err(fault) => {
                in_conversation.note_fault(&fault);
                // The call ran, so that a repeat gets its receipt.
                if let Fault::Failed(_) | Fault::LimitReached(..) | Fault::ReceiptPending { .. } = &fault {
                    in_conversation.note_answered();
                }
                if let Fault::ReceiptPending { .. } = &fault {
                    in_conversation.bind_at_end(&self.shared.executor);
                }
                let failure = call_failure(&fault, &tool, &self.shared.executor.catalogue.tools());
                if let Fault::Internal(detail) = &fault {
                    tracing::error!(%intent, detail, "a call failed with an internal error");
                }
                reporter.answer(|req_id, _| encode::error(Some(req_id), &failure, self.shared.timestamp()));
            }
        }
    }

    /// Waits for the next line for a reader.
    pub(super) async fn next(self: &Arc<Self>, reader: u64) -> Option<String> {
        let line = self.out.next(reader).await;
        // The queue may now have capacity for another call.
        self.start_waiting();
        line
    }

    /// Accepts no more calls, waits until all are answered, and closes the queue. Runs that have not ended after
    /// `limit` are cancelled.
    pub(super) async fn drain(self: Arc<Self>, limit: Option<Duration>) {
        {
            let mut state = self.lock();
            if state.phase == Phase::Open {
                state.phase = Phase::Draining;
            }
        }
        let mut open = self.open.subscribe();
        let mut all_answered = async || drop(open.wait_for(|open| *open == 0).await);
        match limit {
            None => all_answered().await,
            Some(limit) => {
                if tokio::time::timeout(limit, all_answered()).await.is_err() {
                    self.cancel_all().await;
                    if tokio::time::timeout(CANCEL_TIMEOUT, all_answered()).await.is_err() {
                        return self.abandon();
                    }
                }
            }
        }
        self.out.close();
    }

    /// Cancels running calls, and answers waiting ones with an error.
    async fn cancel_all(self: &Arc<Self>) {
        let (waiting, running) = {
            let mut state = self.lock();
            let waiting = std::mem::take(&mut state.waiting);
            self.open.send_replace(state.open());
            (waiting, state.running.values().cloned().collect::<Vec<_>>())
        };
        let failure = A2eError::new(A2eCode::RuntimeError, "the session was shut down before the call began");
        waiting
            .iter()
            .for_each(|queued| self.fail(Some(&queued.req_id), &failure.clone().for_capability(TOOLS)));
        for (intent, agent) in running {
            let cancelled =
                self.shared.executor.operator.cancel(intent, &|owner| *owner == agent, agent.as_str()).await;
            if let Err(fault) = cancelled {
                tracing::warn!(%intent, ?fault, "a call of a session that ends cannot be cancelled");
            }
        }
    }

    /// Ends the session at once: running calls are cancelled, waiting ones dropped, and none is answered.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        state.phase = Phase::Abandoned;
        state.waiting.clear();
        self.open.send_replace(state.open());
        drop(state);
        self.out.discard();
        self.abandoned.send_replace(true);
    }
}

impl SessionState {
    /// The number of calls that wait or run.
    fn open(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// Maximum number of calls that run at the same time.
    fn max_parallel(&self) -> usize {
        self.agreement.as_ref().map_or(1, |agreement| agreement.max_parallel)
    }
}

/// The slot of a running call. Dropping it lets the next call begin, even on a panic.
struct RunSlot {
    session: Arc<Session>,
    number: u64,
}

impl Drop for RunSlot {
    fn drop(&mut self) {
        let mut state = self.session.lock();
        state.running.remove(&self.number);
        state.last_active = timer_now();
        self.session.open.send_replace(state.open());
        drop(state);
        self.session.start_waiting();
    }
}

/// Sends the events of one call to its agent, then one answer, and nothing after that.
struct CallReporter {
    session: Arc<Session>,
    req_id: String,
    reported: Mutex<ReportedEvents>,
}

/// The events of one call that were queued so far.
#[derive(Default)]
struct ReportedEvents {
    /// The `seq` of the next event.
    next_seq: u64,
    logs: usize,
    artifacts: usize,
    /// The events about the file changes of a staged run.
    staged: usize,
    /// `true` if an event was dropped.
    is_incomplete: bool,
    is_answered: bool,
}

impl CallReporter {
    fn new(session: Arc<Session>, req_id: String) -> Self {
        Self { session, req_id, reported: Mutex::default() }
    }

    fn sink(self: &Arc<Self>) -> RunEventSink {
        let reporter = Arc::clone(self);
        RunEventSink::new(move |event| reporter.report(&event))
    }

    fn lock(&self) -> MutexGuard<'_, ReportedEvents> {
        self.reported.lock()
    }

    /// Queues an event. The run's own thread calls this, so it must not block.
    fn report(&self, event: &RunEvent) {
        self.queue(match event {
            RunEvent::Started => CallEvent::Status("started"),
            RunEvent::Progress(progress) => CallEvent::Progress(progress),
            RunEvent::Log(line) => CallEvent::Log(line),
            RunEvent::Artifact(artifact) => CallEvent::Artifact(artifact),
        });
    }

    /// Queues the event about the file changes of a run, if it is staged.
    fn report_staged(&self, run: StagedRun<'_>) {
        self.queue(CallEvent::Staged(run));
    }

    fn queue(&self, event: CallEvent<'_>) {
        let mut reported = self.lock();
        if reported.is_answered {
            return;
        }
        let lines = encode::events(&self.req_id, reported.next_seq, event, self.session.shared.timestamp());
        let lines_count = lines.len();
        if !self.session.out.offer(lines) {
            reported.is_incomplete = true;
            return;
        }
        let count = u64::try_from(lines_count).unwrap_or(u64::MAX);
        reported.next_seq = reported.next_seq.saturating_add(count);
        match event {
            CallEvent::Status(_) | CallEvent::Progress(_) => {}
            CallEvent::Log(_) => reported.logs += 1,
            CallEvent::Artifact(_) => reported.artifacts += 1,
            CallEvent::Staged(_) => reported.staged += lines_count,
        }
    }

    fn answer(&self, write: impl FnOnce(&str, &ReportedEvents) -> String) {
        let mut reported = self.lock();
        reported.is_answered = true;
        self.session.out.push(write(&self.req_id, &reported));
    }
}
