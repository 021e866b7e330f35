//! The sovereign door: `POST /run` and `GET /capabilities`.
//!
//! A body that is not JSON is answered with HTTP 400; every other error is an error of the protocol, with HTTP 200.

use a2g_core::run::{Executor, IntentAnswer, RunEvent, RunEventSink};
use a2g_govern::Caller;
use a2g_http::connections::{Connection, RequestGuard};
use a2g_http::document::{Document, PerCatalog};
use a2g_http::protocol::{AuthPolicy, DoorSettings, ProtocolRouter, with_caller};
use a2g_http::staged::staged_state;
use a2g_http::transport::json::{JsonBody, json_response};
use a2g_http::transport::lines::ndjson_response;
use a2g_types::call::{Call, Door, Priority};
use a2g_types::fault::Fault;
use a2g_types::ident::{IntentId, ToolName};
use a2g_types::memory::Charge;
use a2g_types::outcome::Receipt;
use a2g_types::session::CallSession;
use a2g_types::tool::Descriptor;
use a2g_wire::jsonrpc::Id;
use a2g_wire::sovereign::decode::{self, RequestForm, SovereignDecodeError, SovereignRequest};
use a2g_wire::sovereign::encode::{self, PartialResult, ReplyEncoder};
use a2g_wire::sovereign::fault::{self, SovereignError};
use a2g_wire::sovereign::skills::{self, Missing};
use a2g_wire::strict_json::JsonBounds;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Maximum number of partial results that wait for the client to read them. Further ones are dropped.
const MAX_UNREAD_EVENTS: usize = 256;

struct Sovereign {
    executor: Arc<Executor>,
    settings: DoorSettings,
    bounds: JsonBounds,
    capabilities: PerCatalog<Document>,
}

/// The router of this door.
#[must_use]
pub fn router(executor: Arc<Executor>, settings: DoorSettings, bounds: JsonBounds) -> ProtocolRouter {
    let access = settings.access;
    let door = Arc::new(Sovereign { executor, settings, bounds, capabilities: PerCatalog::default() });
    let routes =
        Router::new().route("/run", post(run)).route("/capabilities", get(capabilities)).with_state(door);
    ProtocolRouter { routes, auth: AuthPolicy::Required(access) }
}

async fn capabilities(State(door): State<Arc<Sovereign>>, headers: HeaderMap) -> Response {
    let render = |tools: &[Descriptor]| Document::new(|_| encode::capabilities(tools));
    door.capabilities.get(door.executor.catalogue.tools(), render).respond(&headers, "")
}

async fn run(
    State(door): State<Arc<Sovereign>>,
    Extension(caller): Extension<Arc<Caller>>,
    JsonBody(body): JsonBody,
    Extension(connection): Extension<Arc<Connection>>,
) -> Response {
    let request = match body.text(&door.bounds).map(decode::request) {
        Ok(Ok(request)) => request,
        Ok(Err(malformed)) => {
            let SovereignDecodeError { form, id, named: (skill, operation), fault } = *malformed;
            let reply = ReplyEncoder { form, id: id.unwrap_or_else(Id::random), skill, operation };
            return json_response(StatusCode::OK, reply.failure(&fault::to_error(&fault)));
        }
        Err(fault) => {
            let id = Id::from_text(fault::UNKNOWN_ID);
            let reply = ReplyEncoder { form: RequestForm::Sovereign, id, skill: None, operation: None };
            // Any other fault: the memory budget or the caller's share is used up.
            let is_malformed = matches!(fault, Fault::Parse(_));
            let status = if is_malformed { StatusCode::BAD_REQUEST } else { StatusCode::OK };
            return json_response(status, reply.failure(&fault::to_error(&fault)));
        }
    };
    let context = RequestContext { caller, charge: body.charge() };
    let reply = ReplyEncoder {
        form: request.form,
        id: request.id.clone().unwrap_or_else(Id::random),
        skill: Some(request.skill.clone()),
        operation: request.operation.clone(),
    };
    if request.stream && request.form == RequestForm::Sovereign {
        return stream_response(door, context, request, reply, connection.begin_request());
    }
    let answer = door.answer(context, request, &reply, RunEventSink::none()).await;
    json_response(StatusCode::OK, answer)
}

/// The caller of a request, and the request's charge against the caller's share of memory.
struct RequestContext {
    caller: Arc<Caller>,
    charge: Charge,
}

/// The answer as lines, the last of which is the result.
fn stream_response(
    door: Arc<Sovereign>,
    context: RequestContext,
    request: SovereignRequest,
    reply: ReplyEncoder,
    work: RequestGuard,
) -> Response {
    let (parts, unread) = mpsc::channel::<StreamLine>(MAX_UNREAD_EVENTS);
    let last = parts.clone();
    let partial = reply.clone();
    let index = std::sync::atomic::AtomicU64::new(0);
    let sink = RunEventSink::new(move |event| {
        let chunk = match &event {
            RunEvent::Started => return,
            RunEvent::Progress(progress) => PartialResult::Progress(progress),
            RunEvent::Log(line) => PartialResult::Log(line),
            RunEvent::Artifact(artifact) => PartialResult::Artifact(artifact),
        };
        let index = index.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // Never blocks the run. A dropped part is no loss: the last line has the complete result.
        let _dropped = parts.try_send(StreamLine::Part(partial.partial(chunk, index)));
    });
    door.executor.session_tasks().clone().spawn(async move {
        let answer = door.answer(context, request, &reply, sink).await;
        let _closed = last.send(StreamLine::Last(answer)).await;
    });
    // The stream ends after the last line, not when the channel closes: a stuck guest may hold a sender for a long
    // time.
    let lines = futures_util::stream::unfold(Some((unread, work)), async |state| {
        let (mut unread, work) = state?;
        let (line, rest) = match unread.recv().await? {
            StreamLine::Part(line) => (line, Some((unread, work))),
            StreamLine::Last(line) => (line, None),
        };
        Some((line, rest))
    });
    ndjson_response(lines)
}

/// A line of a streamed answer.
enum StreamLine {
    Part(String),
    Last(String),
}

impl Sovereign {
    async fn answer(
        &self,
        context: RequestContext,
        request: SovereignRequest,
        reply: &ReplyEncoder,
        sink: RunEventSink,
    ) -> String {
        match self.run_call(context, request, sink).await {
            Ok(receipt) => {
                let state = staged_state(&self.executor, &receipt).await;
                reply.report(&receipt, state.as_ref(), &self.executor.catalogue.tools())
            }
            Err(failure) => reply.failure(&failure),
        }
    }

    /// The tool that another node of the fleet may have, because this one lacks it.
    fn tool_elsewhere(&self, missing: &Missing, skill: &str, operation: Option<&str>) -> Option<ToolName> {
        let is_named = match missing {
            Missing::Skill(_) => true,
            // An omitted operation may be any of those that this node has.
            Missing::Operation(..) => operation.is_some(),
        };
        skills::tool_of(skill, operation).filter(|_| is_named && self.executor.node.name().is_some())
    }

    async fn run_call(
        &self,
        RequestContext { caller, charge }: RequestContext,
        request: SovereignRequest,
        sink: RunEventSink,
    ) -> Result<Arc<Receipt>, SovereignError> {
        let SovereignRequest { form: _, id: _, skill, operation, payload, stream: _, hints, session } =
            request;
        let tools = self.executor.catalogue.tools();
        let own = skills::find(&tools, &skill, operation.as_deref());
        let tool = match &own {
            Ok(tool) => tool.name.clone(),
            Err(missing) => match self.tool_elsewhere(missing, &skill, operation.as_deref()) {
                Some(tool) => tool,
                None => return Err(fault::missing_error(missing.clone())),
            },
        };
        let encode_fault = |fault: Fault| {
            let failure = fault::to_error(&fault);
            if hints.corrects_payload
                && matches!(fault, Fault::InvalidParams { .. })
                && let Ok(tool) = &own
            {
                return failure.with_data("payload_schema", tool.arguments_schema.clone());
            }
            failure
        };
        let agent = self.settings.agent_of(Door::Sovereign, &caller, None).map_err(encode_fault)?;
        let call = Call {
            door: Door::Sovereign,
            agent,
            intent: IntentId::random(),
            is_new: true,
            tool,
            arguments: payload,
            context: None,
            caller_timeout: hints.timeout,
            priority: Priority::Normal,
            charge,
            parent: None,
            caller_tools: None,
            session: session.map(CallSession::from),
        };
        let intent = call.intent;
        let call = with_caller(&self.executor, &caller, call).map_err(encode_fault)?;
        if let Err(missing) = &own
            && let Err(fault) = self.executor.engine.check_tool(&call).await
        {
            let is_absent = matches!(fault, Fault::InvalidParams { .. });
            return Err(if is_absent { fault::missing_error(missing.clone()) } else { encode_fault(fault) });
        }
        let IntentAnswer { verdict, receipt } =
            self.executor.engine.handle_intent(call, sink).await.map_err(encode_fault)?;
        let risk_score = verdict.risk.as_ref().map(|risk| risk.score);
        receipt.ok_or_else(|| fault::escalation_error(intent, risk_score))
    }
}
