//! The calls that a run makes: each is an intent of its own, under its own verdict, grant and receipt.
//!
//! ```text
//! guest ─ CallRequest ─▶ NestedCalls::perform ─ limits ─▶ handle_intent ─ a person, if the verdict says so ─▶ receipt
//!                          └─ recorded: ordinal, tool, intent, decision, end
//! the run ends ─▶ close: a call that has not begun never begins, and one that runs is stopped
//! ```
//! The limits on the calls of a run are part of its grant. A call runs on its parent's slot, if no other call uses it:
//! a parent that waits never holds a slot that its calls need.

use crate::run::effects::Member;
use crate::run::events::{RunEvent, RunEventSink};
use crate::run::faults::stop_fault;
use crate::run::{Engine, RETRY_AFTER_MS};
use a2g_capability::{CallGrant, Grant};
use a2g_govern::missing_scope_message;
use a2g_runtime::aside::run_large;
use a2g_runtime::spawn;
use a2g_sandbox::{
    CallAnswer, CallBackend, CallError, CallFuture, CallRequest, CallableTool, MAX_ARGUMENT_BYTES,
    ToolDefinition,
};
use a2g_types::call::{Call, Door, ParentRun, Priority};
use a2g_types::failure_message::{describe_failure, failure_details, layer_name};
use a2g_types::fault::{Fault, RECEIPT_PENDING};
use a2g_types::ident::{AgentDid, IntentId, ToolName, did_you_mean};
use a2g_types::limit::{FileEffects, Layer};
use a2g_types::memory::{self, Charge, CountedBytes, NoRoom};
use a2g_types::outcome::{CallUsage, End, NestedCall, NestedEnd, Receipt};
use a2g_types::strict_json::{self, JsonBounds};
use a2g_types::tool::{CallTargets, Descriptor};
use a2g_types::verdict::Decision;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};

/// Maximum number of questions about other tools that a run may ask.
const MAX_QUESTIONS: u32 = 10_000;
/// Maximum number of tools that a message names.
const MAX_NAMED_TOOLS: usize = 20;
/// Maximum time that the calls of a run may take to end, once the run has ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The bounds of a call's arguments.
const ARGUMENT_BOUNDS: JsonBounds =
    JsonBounds { max_bytes: MAX_ARGUMENT_BYTES, max_depth: 64, max_tree_bytes: 64 << 20 };

/// The calls of one run.
pub(in crate::run) struct NestedCalls {
    engine: Arc<Engine>,
    parent: Parent,
    grant: CallGrant,
    /// The time at which the file changes of the parent take effect.
    effects: FileEffects,
    /// The files of the parent, which its calls share; `None` if it changes them directly.
    member: Option<Arc<Member>>,
    sink: RunEventSink,
    state: Mutex<CallLog>,
    /// One permit for each simultaneous call.
    at_once: Semaphore,
    /// The parent's slot, for one of its calls.
    slot: Arc<Semaphore>,
    has_ended: watch::Sender<bool>,
    /// The number of calls that have not ended.
    open_count: watch::Sender<usize>,
}

/// The values that a call takes from its parent.
struct Parent {
    door: Door,
    agent: AgentDid,
    intent: IntentId,
    tool: ToolName,
    priority: Priority,
    /// The number of runs above the calls.
    depth: u32,
    /// The tools that the parent's caller reaches.
    caller_tools: CallTargets,
    /// The owner of the run's message, against whose share of memory the calls count.
    owner: Box<str>,
}

/// The calls in order, and the number of questions.
#[derive(Default)]
struct CallLog {
    calls: Vec<NestedCall>,
    count: u32,
    questions: u32,
}

/// The text of a call's arguments and, if it is long, its count until the arguments are charged.
struct ArgumentText {
    text: String,
    counted: Option<CountedBytes>,
}

/// The arguments of a call, and their charge against the owner's share of memory.
struct Arguments {
    arguments: Map<String, Value>,
    charge: Charge,
}

/// A call that was counted.
struct CountedCall {
    ordinal: u32,
    intent: IntentId,
    started_at: Instant,
}

/// The end of a call, for its parent's report and for the guest.
struct CallOutcome {
    decision: Option<Decision>,
    end: NestedEnd,
    answer: Result<CallAnswer, CallError>,
}

impl CallOutcome {
    fn refused(error: CallError) -> Self {
        Self { decision: None, end: NestedEnd::Refused, answer: Err(error) }
    }

    fn of_receipt(decision: Option<Decision>, receipt: &Receipt) -> Self {
        Self { decision, end: receipt.outcome.end.status().into(), answer: answer(receipt) }
    }
}

impl NestedCalls {
    /// The calls of a run; `None` if it may make none.
    pub(in crate::run) fn open(
        engine: &Arc<Engine>,
        call: &Call,
        grant: &Grant,
        sink: &RunEventSink,
        member: Option<Arc<Member>>,
    ) -> Option<Arc<Self>> {
        let effects = grant.effects().value;
        let grant = grant.calls();
        grant.allows_any().then(|| {
            Arc::new(Self {
                effects,
                member,
                engine: Arc::clone(engine),
                parent: Parent {
                    door: call.door,
                    agent: call.agent.clone(),
                    intent: call.intent,
                    tool: call.tool.clone(),
                    priority: call.priority,
                    depth: call.parent.as_ref().map_or(0, |parent| parent.depth) + 1,
                    caller_tools: call.nested_caller_tools(),
                    owner: call.charge.owner().unwrap_or(call.agent.as_str()).into(),
                },
                at_once: Semaphore::new(grant.max_parallel().value as usize),
                grant: grant.clone(),
                sink: sink.clone(),
                state: Mutex::default(),
                slot: Arc::new(Semaphore::new(1)),
                has_ended: watch::Sender::new(false),
                open_count: watch::Sender::new(0),
            })
        })
    }

    /// The record of a run that has made no calls yet; `None` if it may make none.
    pub(in crate::run) fn none_yet(grant: &Grant) -> Option<CallUsage> {
        let grant = grant.calls();
        grant.allows_any().then(|| CallUsage {
            max_calls: grant.max_calls(),
            max_parallel: grant.max_parallel(),
            count: 0,
            calls: Vec::new(),
        })
    }

    /// The parent's slot, which one of its calls may use.
    pub(in crate::run) fn slot(&self) -> Arc<Semaphore> {
        Arc::clone(&self.slot)
    }

    /// The calls so far.
    pub(in crate::run) fn list(&self) -> Vec<NestedCall> {
        self.state.lock().calls.clone()
    }

    /// The files that the calls share; `None` if the parent changes its files directly.
    pub(in crate::run) fn member(&self) -> Option<Arc<Member>> {
        self.member.clone()
    }

    /// The time at which the file changes of a call take effect: at least when those of its program do.
    pub(in crate::run) fn effects(&self) -> FileEffects {
        self.effects
    }

    /// Checks that a call may run with this grant. Its file changes are those of its program; what it does over the network
    /// could not be taken back with them, and what would wait by itself would be missing in the program.
    ///
    /// # Errors
    /// The reason why it may not.
    pub(in crate::run) fn check_effects(&self, grant: &Grant) -> Result<(), String> {
        let effects = self.effects.as_str();
        let tool = &self.parent.tool;
        if grant.effects().value == FileEffects::Staged && self.effects != FileEffects::Staged {
            return Err(format!(
                "the file changes of this call would wait for a decision (`effects` is `staged`), and `{tool}`, which makes \
                 it, would go on as if they were in force: let that program itself be staged"
            ));
        }
        if !self.effects.is_direct() && grant.network().value {
            return Err(format!(
                "the file changes of `{tool}`, which makes this call, take effect together or not at all (`effects` is \
                 `{effects}`), and what this call sends over the network would stay: let `{tool}` call only tools without a \
                 network"
            ));
        }
        Ok(())
    }

    /// Stops all calls and returns their record. Call this after the parent has been removed from the active runs.
    pub(in crate::run) async fn close(&self) -> CallUsage {
        {
            // Set under the lock of the log, so that a call is either counted before, or refused.
            let _log = self.state.lock();
            self.has_ended.send_replace(true);
        }
        self.engine.intents.update(|intents| intents.runs.abort_children(self.parent.intent));
        let mut open_count = self.open_count.subscribe();
        if tokio::time::timeout(CLOSE_TIMEOUT, open_count.wait_for(|count| *count == 0)).await.is_err() {
            let open_calls = *self.open_count.borrow();
            let waited_seconds = CLOSE_TIMEOUT.as_secs();
            tracing::warn!(open_calls, waited_seconds, "calls of a run are still open after it ended");
        }
        let state = self.state.lock();
        CallUsage {
            max_calls: self.grant.max_calls(),
            max_parallel: self.grant.max_parallel(),
            count: state.count,
            calls: state.calls.clone(),
        }
    }

    /// Counts a call of `tool`.
    fn count(&self, tool: &str) -> Result<CountedCall, CallError> {
        let mut state = self.state.lock();
        if *self.has_ended.borrow() {
            return Err(CallError::run_ended());
        }
        let max_calls = self.grant.max_calls();
        if state.count >= max_calls.value {
            let max = max_calls.value;
            let layer = layer_name(max_calls.layer);
            return Err(CallError::exhausted(if max == 0 {
                format!("this run may make no calls (`max_calls` is 0, set by {layer})")
            } else {
                format!("this run has made all its {max} calls (`max_calls`, set by {layer})")
            }));
        }
        state.count += 1;
        let ordinal = state.count;
        let intent = self.parent.intent.nested(state.count);
        if state.calls.len() < CallUsage::MAX_LISTED {
            state.calls.push(NestedCall {
                ordinal,
                tool: a2g_types::ident::excerpt(tool),
                intent,
                decision: None,
                end: NestedEnd::Pending,
                duration: Duration::ZERO,
            });
        }
        self.open_count.send_modify(|count| *count += 1);
        Ok(CountedCall { ordinal, intent, started_at: self.engine.clock.monotonic() })
    }

    fn record(&self, counted: &CountedCall, decision: Option<Decision>, end: NestedEnd) {
        let duration = self.engine.clock.monotonic().saturating_duration_since(counted.started_at);
        let index = usize::try_from(counted.ordinal).unwrap_or(usize::MAX).wrapping_sub(1);
        let recorded = self.state.lock().calls.get_mut(index).map(|call| {
            (call.decision, call.end, call.duration) = (decision, end, duration);
            call.clone()
        });
        if let Some(call) = recorded {
            // Sent as progress, because every door already forwards that.
            self.sink.send(RunEvent::Progress(call.to_progress()));
        }
    }

    async fn call(
        self: Arc<Self>,
        counted: CountedCall,
        tool: ToolName,
        text: ArgumentText,
    ) -> Result<CallAnswer, CallError> {
        let outcome = self.make(&counted, tool, text).await;
        self.end(&counted, outcome)
    }

    fn end(&self, counted: &CountedCall, outcome: CallOutcome) -> Result<CallAnswer, CallError> {
        let CallOutcome { decision, end, answer } = outcome;
        self.record(counted, decision, end);
        self.open_count.send_modify(|count| *count -= 1);
        answer
    }

    async fn make(&self, counted: &CountedCall, tool: ToolName, text: ArgumentText) -> CallOutcome {
        let mut has_ended = self.has_ended.subscribe();
        let decided = tokio::select! {
            biased;
            _ended = has_ended.wait_for(|ended| *ended) => None,
            outcome = async {
                let arguments = match self.read(text).await {
                    Ok(arguments) => arguments,
                    Err(error) => return CallOutcome::refused(error),
                };
                let _permit = self.at_once.acquire().await;
                self.decide_and_run(self.intent(counted, tool, arguments)).await
            } => Some(outcome),
        };
        match decided {
            Some(outcome) => outcome,
            None => self.stop(counted.intent).await,
        }
    }

    /// Reads the arguments of a call; long ones where they delay only the owner's other messages.
    async fn read(&self, text: ArgumentText) -> Result<Arguments, CallError> {
        let owner = self.parent.owner.clone();
        let bytes = strict_json::text_bytes(text.text.len());
        run_large(&self.parent.owner, bytes, async move { parse_arguments(&owner, text) }).await
    }

    /// Checks that the run may call `tool`.
    fn check(&self, tool: &str) -> Result<ToolName, CallError> {
        let max_depth = self.grant.max_depth();
        if self.parent.depth > max_depth {
            return Err(CallError::exhausted(format!(
                "there are {} runs above this call, and `ceilings.max_call_depth` is {max_depth}: call the tool from a \
                 run further up",
                self.parent.depth
            )));
        }
        let name = ToolName::parse(tool).map_err(|_| self.unknown_tool(tool))?;
        // No policy is applied here: `handle_intent` applies the policies, and records the refusal.
        if self.engine.catalogue.current().catalog.get(&name).is_none() {
            return Err(self.unknown_tool(tool));
        }
        self.grant.check(&name).map_err(|layer| {
            let reason = if layer == Layer::Caller {
                missing_scope_message(&name)
            } else {
                format!("its `calls`, set by {}, do not include that tool", layer_name(layer))
            };
            let names = self.name_callable();
            let message = format!("`{}` may not call `{name}`: {reason}; {names}", self.parent.tool);
            CallError {
                detail: detail(&json!({ "set_by": layer.as_str() })),
                ..CallError::new("not_allowed", message)
            }
        })?;
        Ok(name)
    }

    fn unknown_tool(&self, tool: &str) -> CallError {
        let callable = self.callable(|tool| tool.name.to_string());
        let nearest = did_you_mean(tool, callable.iter().map(String::as_str));
        let tool = a2g_types::ident::excerpt(tool);
        let names = self.name_callable();
        CallError::new("unknown_tool", format!("there is no tool `{tool}`{nearest}: {names}"))
    }

    /// The part of a message that names the tools that the run may call.
    fn name_callable(&self) -> String {
        let names = self.callable(|tool| format!("`{}`", tool.name));
        match names.len() {
            0 => "this run may call no tool".to_owned(),
            1..=MAX_NAMED_TOOLS => format!("this run may call {}", names.join(", ")),
            _many => "list the tools to see the names of those that this run may call".to_owned(),
        }
    }

    /// Maps the tools that the run may call.
    fn callable<T>(&self, map: impl Fn(&Descriptor) -> T) -> Vec<T> {
        let is_callable = |name: &ToolName| {
            self.grant.check(name).is_ok() && self.engine.policies.may_reach(&self.parent.agent, name)
        };
        self.engine.catalogue.tools().iter().filter(|tool| is_callable(&tool.name)).map(map).collect()
    }

    fn intent(&self, counted: &CountedCall, tool: ToolName, arguments: Arguments) -> Call {
        let Parent { door, agent, intent, tool: parent_tool, priority, depth, caller_tools, owner: _ } =
            &self.parent;
        let Arguments { arguments, charge } = arguments;
        let parent =
            ParentRun { intent: *intent, tool: parent_tool.clone(), ordinal: counted.ordinal, depth: *depth };
        let context = json!({ "parent": {
            "intent_id": intent.to_string(), "tool": parent_tool.as_str(), "ordinal": parent.ordinal, "depth": depth,
        }});
        Call {
            door: *door,
            agent: agent.clone(),
            intent: counted.intent,
            // Treated as new without a look-up: the journal refuses to start an intent that has already run.
            is_new: true,
            tool,
            arguments,
            context: context.as_object().cloned(),
            caller_timeout: None,
            priority: *priority,
            charge,
            parent: Some(parent),
            caller_tools: Some(caller_tools.clone()),
            // A session belongs to a caller, and a run is none.
            session: None,
        }
    }

    async fn decide_and_run(&self, call: Call) -> CallOutcome {
        let intent = call.intent;
        let tool = call.tool.clone();
        match self.engine.handle_intent(call, RunEventSink::none()).await {
            Ok(answer) => {
                let decision = Some(answer.verdict.decision);
                match answer.receipt {
                    Some(receipt) => CallOutcome::of_receipt(decision, &receipt),
                    None => self.await_decision(intent, &tool, decision).await,
                }
            }
            Err(fault) => {
                let is_verdict = matches!(
                    &fault,
                    Fault::Refused { blocked_by: a2g_types::fault::BlockedBy::VerdictDenied, .. }
                );
                let refused = CallOutcome::refused(refusal(&fault, intent, &tool));
                CallOutcome { decision: is_verdict.then_some(Decision::Denied), ..refused }
            }
        }
    }

    /// Waits until a person has decided, and the call has run.
    async fn await_decision(
        &self,
        intent: IntentId,
        tool: &ToolName,
        decision: Option<Decision>,
    ) -> CallOutcome {
        let refused = |error| CallOutcome { decision, ..CallOutcome::refused(error) };
        match self.engine.queries.await_outcome(intent).await {
            Ok(Some(receipt)) => CallOutcome::of_receipt(decision, &receipt),
            Ok(None) => refused(match (self.engine.queries.denial(intent), self.find_stop(intent, tool)) {
                (Ok(Some(fault)), _) | (Ok(None) | Err(_), Some(fault)) => refusal(&fault, intent, tool),
                (Ok(None) | Err(_), None) => CallError {
                    detail: detail(
                        &json!({ "intent_id": intent.to_string(), "blocked_by": "escalation_pending" }),
                    ),
                    ..CallError::new(
                        "denied",
                        "the call had to wait for a person, and was not approved before its verdict expired, or was \
                         cancelled: make it again if it is still needed",
                    )
                },
            }),
            Err(fault) => refused(refusal(&fault, intent, tool)),
        }
    }

    /// The fault for a call that an operator has stopped.
    fn find_stop(&self, intent: IntentId, tool: &ToolName) -> Option<Fault> {
        let stop = self.engine.intents.find_stop(&self.parent.agent, tool)?;
        Some(stop_fault(intent, &stop))
    }

    /// Ends a call with its parent: it never begins, or is stopped.
    async fn stop(&self, intent: IntentId) -> CallOutcome {
        let engine = &self.engine;
        // `close` may have stopped it already. A call that never began has no outcome.
        engine.waits.end_nested(intent).await;
        let outcome = tokio::time::timeout(CLOSE_TIMEOUT, engine.queries.await_outcome(intent)).await;
        let decision = engine.queries.verdict(intent).ok().flatten().map(|verdict| verdict.decision);
        match outcome {
            Ok(Ok(Some(receipt))) => CallOutcome::of_receipt(decision, &receipt),
            Ok(Ok(None) | Err(_)) | Err(_) => {
                CallOutcome { end: NestedEnd::Aborted, ..CallOutcome::refused(CallError::run_ended()) }
            }
        }
    }

    /// Counts a question about other tools, and refuses it above the maximum.
    fn count_question(&self) -> Result<(), CallError> {
        let mut state = self.state.lock();
        state.questions += 1;
        if state.questions > MAX_QUESTIONS {
            let message =
                format!("this run has asked about tools {MAX_QUESTIONS} times: reuse the earlier answers");
            return Err(CallError::exhausted(message));
        }
        Ok(())
    }

    fn tools(&self) -> Result<CallAnswer, CallError> {
        self.count_question()?;
        Ok(CallAnswer::Tools(self.callable(|tool| CallableTool {
            name: tool.name.to_string(),
            description: tool.description.clone(),
        })))
    }

    fn definition(&self, tool: &str) -> Result<CallAnswer, CallError> {
        self.count_question()?;
        let name = self.check(tool)?;
        if !self.engine.policies.may_reach(&self.parent.agent, &name) {
            return Err(self.unknown_tool(tool));
        }
        let tools = self.engine.catalogue.tools();
        let found = tools.iter().find(|listed| listed.name == name);
        let Descriptor { description, arguments_schema, result_schema, .. } =
            found.ok_or_else(|| self.unknown_tool(tool))?;
        Ok(CallAnswer::Definition(ToolDefinition {
            name: name.to_string(),
            description: description.clone(),
            arguments_schema: arguments_schema.to_string(),
            result_schema: result_schema.as_ref().map(Value::to_string),
        }))
    }
}

impl CallBackend for NestedCalls {
    fn perform(self: Arc<Self>, request: CallRequest) -> CallFuture {
        match request {
            CallRequest::List => Box::pin(std::future::ready(self.tools())),
            CallRequest::Describe { tool } => Box::pin(std::future::ready(self.definition(&tool))),
            CallRequest::Call { tool, arguments, counted: text_count } => {
                // Counted here and not in the task, so that the numbers follow the order of the calls.
                let counted = match self.count(&tool) {
                    Ok(counted) => counted,
                    Err(error) => return Box::pin(std::future::ready(Err(error))),
                };
                // Checked here and not in the task, so that the time for a refusal is that of the guest's thread inline.
                let tool = match self.check(&tool) {
                    Ok(tool) => tool,
                    Err(error) => {
                        let refused = self.end(&counted, CallOutcome::refused(error));
                        return Box::pin(std::future::ready(refused));
                    }
                };
                let task = spawn::spawn_run_task(self.call(
                    counted,
                    tool,
                    ArgumentText { text: arguments, counted: text_count },
                ));
                Box::pin(async move { task.await.unwrap_or_else(|_| Err(CallError::run_ended())) })
            }
        }
    }

    fn hold(&self, bytes: u64) -> Result<Option<CountedBytes>, CallError> {
        memory::hold(&self.parent.owner, bytes).map(Some).map_err(busy_error)
    }
}

impl fmt::Debug for NestedCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NestedCalls({})", self.parent.intent)
    }
}

fn detail(facts: &Value) -> Option<String> {
    Some(facts.to_string())
}

fn busy_error(no_room: NoRoom) -> CallError {
    let message = match no_room {
        NoRoom::Budget => {
            "the executor has reached its memory limit (`server.max_memory_mb`): make this call again later"
        }
        NoRoom::Share => {
            "the caller's messages, with the arguments of this program's calls, use up its share of \
             `server.max_memory_mb`: wait for other calls to end, and make this call again"
        }
    };
    CallError {
        detail: detail(&json!({ "retry_after_ms": RETRY_AFTER_MS })),
        ..CallError::new("busy", message)
    }
}

fn parse_arguments(
    owner: &str,
    ArgumentText { text, counted }: ArgumentText,
) -> Result<Arguments, CallError> {
    let invalid = |message: String| CallError::new("invalid_arguments", message);
    let charge = memory::charge(owner, strict_json::tree_bytes(text.as_bytes())).map_err(busy_error)?;
    // The charge includes the text. Kept longer, the count would take the share from other calls while this one runs.
    drop(counted);
    if let Err(fault) = strict_json::check_finite(text.as_bytes(), &ARGUMENT_BOUNDS) {
        let reason = if let Fault::Parse(message) = fault { format!(": {message}") } else { String::new() };
        return Err(invalid(format!("the arguments are not JSON{reason}")));
    }
    match serde_json::from_str(&text) {
        Ok(Value::Object(arguments)) => Ok(Arguments { arguments, charge }),
        Ok(_) | Err(_) => Err(invalid("the arguments have to be one JSON object".to_owned())),
    }
}

/// The answer to a call that ran.
fn answer(receipt: &Receipt) -> Result<CallAnswer, CallError> {
    let code = match &receipt.outcome.end {
        End::Returned(result) | End::Staged(result) => {
            return Ok(CallAnswer::Result(result.as_str().to_owned()));
        }
        End::ToolError { code, message, .. } => {
            let facts = facts_of(receipt);
            return Err(CallError { detail: detail(&facts), ..CallError::new(code, message.clone()) });
        }
        End::LimitReached(_) => "limit_reached",
        End::Aborted(_) => "aborted",
        End::Exited { .. }
        | End::ResultNotJson
        | End::ResultInvalid { .. }
        | End::Trapped(_)
        | End::NotStarted(_)
        | End::Crashed(_)
        | End::NotCommitted(_)
        | End::LeftToOperator(_) => "failed",
    };
    let error = CallError::new(code, describe_failure(&receipt.outcome));
    Err(CallError { detail: detail(&facts_of(receipt)), ..error })
}

fn facts_of(receipt: &Receipt) -> Value {
    let mut facts = failure_details(receipt);
    facts.insert("intent_id".to_owned(), receipt.intent.to_string().into());
    facts.into()
}

/// The error for a call of `tool` that ended with a fault.
fn refusal(fault: &Fault, intent: IntentId, tool: &ToolName) -> CallError {
    let intent_id = intent.to_string();
    let error = |code, message: &str, mut facts: Value| {
        if let Some(facts) = facts.as_object_mut() {
            facts.insert("intent_id".to_owned(), intent_id.clone().into());
            facts.insert("ran".to_owned(), false.into());
        }
        CallError { detail: detail(&facts), ..CallError::new(code, message) }
    };
    match fault {
        Fault::InvalidParams { message, pointer } if pointer.starts_with("/arguments") => {
            error("invalid_arguments", message, json!({ "pointer": pointer }))
        }
        Fault::InvalidParams { message, pointer } => {
            error("unknown_tool", message, json!({ "pointer": pointer }))
        }
        Fault::ToolUnavailable { message, .. } => {
            error("failed", &format!("the tool `{tool}` cannot be run: {message}"), json!({}))
        }
        Fault::Refused { blocked_by, message, risk_score, .. } => {
            error("denied", message, json!({ "blocked_by": blocked_by.as_str(), "risk_score": risk_score }))
        }
        Fault::Busy { message, retry_after_ms } => {
            error("busy", message, json!({ "retry_after_ms": retry_after_ms }))
        }
        Fault::ReceiptPending { retry_after_ms, .. } => CallError {
            detail: detail(&json!({ "intent_id": intent_id, "ran": true, "retry_after_ms": retry_after_ms })),
            ..CallError::new("failed", RECEIPT_PENDING)
        },
        Fault::Failed(receipt) | Fault::LimitReached(receipt, _) => {
            answer(receipt).err().unwrap_or_else(CallError::run_ended)
        }
        Fault::Parse(message)
        | Fault::InvalidRequest(message)
        | Fault::MethodNotFound(message)
        | Fault::RegistrationFailed(message)
        | Fault::SessionExpired(message) => error("failed", message, json!({})),
        Fault::Internal(_) => {
            tracing::error!(?fault, "a nested call has failed");
            error("failed", "the executor failed to make the call; its log has the reason", json!({}))
        }
    }
}
