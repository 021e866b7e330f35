//! The Genesis Nexus door: `POST /nexus` and WebSocket `/nexus`.
//!
//! ```text
//! text ─ signature ─ rate ─ time ─ payload decrypted ─ id unused ─▶ ack, if requested ─▶ handled ─▶ response
//! ```
//! A bad token is answered in this protocol's error format. The signature determines the agent of a message, and the
//! caller that the token identifies has to be allowed to act for that agent. A signature covers only five members of
//! the header, and `ttl` is not one of them, so ids are remembered for the maximum `ttl`.

mod hub;
mod ids;
mod mailbox;
mod socket;

use a2g_core::run::{Executor, IntentAnswer, IntentState, RunEventSink};
use a2g_govern::{Caller, Credential, Role};
use a2g_http::ConnectionLimits;
use a2g_http::NexusSettings;
use a2g_http::auth::{CallerDirectory, Unauthenticated};
use a2g_http::connections::Connection;
use a2g_http::protocol::{AuthPolicy, DoorAccess, ProtocolRouter, agent_did, with_caller};
use a2g_http::staged::staged_state;
use a2g_http::transport::json::{JsonBody, json_response};
use a2g_http::transport::lines::ndjson_response;
use a2g_types::call::{Call, Door, Priority};
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::memory::Charge;
use a2g_types::rate_limit::to_whole_units;
use a2g_types::session::CallSession;
use a2g_wire::nexus::decode::{
    self, Content, EventHead, ExecuteCommand, NexusDecodeError, SubscribeCommand, Verified,
};
use a2g_wire::nexus::encode::{self, MessageStamp, MessageWriter, OutgoingBody};
use a2g_wire::nexus::fault::{self, NexusCode, NexusError};
use a2g_wire::nexus::keys::{AgentKeys, Keyring};
use a2g_wire::nexus::message::{
    DeliveryGuarantee, MAX_TTL_MS, MessageType, QueryAction, QueryResource, ResponseStatus,
};
use a2g_wire::strict_json::JsonBounds;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use futures_util::{StreamExt as _, stream};
use hub::{Hub, MAX_MESSAGES_PER_SECOND};
use ids::{IdPurpose, IdUse};
use mailbox::{OutgoingEvent, Subscription};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use tokio::sync::mpsc;

/// Milliseconds that a `timestamp` may be ahead of the executor's clock.
const MAX_CLOCK_SKEW_MS: u64 = 60_000;
/// The identity that answers are addressed to if the sender of a message cannot be read.
const UNKNOWN: &str = r#"{"id":"unknown","type":"nexus","version":"1.0.0","capabilities":[]}"#;

/// The properties of the HTTP port that the door is served on.
pub struct NexusPort {
    /// Size and depth limits of a message.
    pub bounds: JsonBounds,
    /// The list of callers.
    pub callers: CallerDirectory,
    /// Limits for connections.
    pub connections: ConnectionLimits,
}

struct Nexus {
    executor: Arc<Executor>,
    settings: NexusSettings,
    port: NexusPort,
    keys: Keyring,
    id: String,
    /// The executor's identity, as sent in `from`.
    identity: Box<RawValue>,
    /// [`UNKNOWN`] as JSON.
    unknown: Box<RawValue>,
    hub: Arc<Hub>,
    /// The time since which this process remembers ids, in milliseconds since 1970.
    started_ms: u64,
}

/// The agent of an id in the key file.
///
/// # Errors
/// [`Fault::InvalidRequest`] if the id does not fit into a DID.
pub fn agent_of(id: &str) -> Result<AgentDid, Fault> {
    agent_did(Door::Nexus, id)
}

/// The router of this door. `id` is the executor's id if the settings have none.
#[must_use]
pub fn router(
    executor: Arc<Executor>,
    settings: NexusSettings,
    id: &str,
    keys: Keyring,
    port: NexusPort,
) -> ProtocolRouter {
    let own_id = settings.id.clone().unwrap_or_else(|| id.to_owned());
    let access = settings.access;
    let hub = Arc::new(Hub::default());
    let subscribers = Arc::clone(&hub);
    let clock = Arc::clone(executor.clock());
    executor.subscribe(move |run, notification| subscribers.publish(run, notification, clock.monotonic()));
    let identity = encode::executor_identity(&own_id);
    let unknown = RawValue::from_string(UNKNOWN.to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned());
    let started_ms = unix_ms(executor.clock().now());
    let door =
        Arc::new(Nexus { executor, settings, port, keys, id: own_id, identity, unknown, hub, started_ms });
    let routes = Router::new().route("/nexus", get(socket::upgrade).post(post)).with_state(door);
    ProtocolRouter { routes, auth: AuthPolicy::Delegated(access) }
}

/// An answer; `last` if no further answer to the same message follows.
struct Reply {
    text: String,
    last: bool,
}

/// The transport that a message arrived over.
#[derive(Clone, Copy)]
enum MessageTransport<'a> {
    Post,
    Socket(&'a socket::EventTarget),
}

/// The verified sender of a message, and the form of its answer.
struct MessageSender<'a> {
    caller: &'a Caller,
    agent: AgentDid,
    /// `from.id`.
    name: &'a str,
    identity: &'a RawValue,
    /// The id of the message.
    id: IntentId,
    priority: Priority,
    sealed: bool,
    transport: MessageTransport<'a>,
    charge: Charge,
}

/// A message of a verified sender, and the way to answer it.
struct Exchange<'a> {
    /// The id of the message.
    id: IntentId,
    /// `from.id`.
    name: &'a str,
    writer: MessageWriter<'a>,
    /// `true` if the sender asks for an acknowledgement.
    requires_ack: bool,
    started_at: Instant,
    out: &'a mpsc::Sender<Reply>,
}

/// A message that has passed the strict reader, or the reader's fault; and the message's charge against the caller's
/// share of memory.
struct Received<'a> {
    text: Result<&'a str, Fault>,
    charge: Charge,
}

/// The result of a command or a query.
type RequestResult = Result<(ResponseStatus, Box<RawValue>, Option<NexusError>), NexusError>;

async fn post(
    State(door): State<Arc<Nexus>>,
    Extension(connection): Extension<Arc<Connection>>,
    Extension(credential): Extension<Credential>,
    Extension(caller): Extension<Result<Arc<Caller>, Unauthenticated>>,
    JsonBody(body): JsonBody,
) -> Response {
    let caller = match caller {
        Ok(caller) => caller,
        Err(reason) => {
            let error = NexusError::new(NexusCode::AuthFailed, reason.message());
            let refusal = door.unauthenticated_error(None, error);
            let challenge = [(header::WWW_AUTHENTICATE, reason.challenge(&credential))];
            return (challenge, json_response(StatusCode::UNAUTHORIZED, refusal)).into_response();
        }
    };
    let (out, mut replies) = mpsc::channel(2);
    // Held by this response and not by the spawned task, so that the connection of a client that stops reading is idle.
    let work = connection.begin_request();
    door.executor.session_tasks().clone().spawn(async move {
        let message = Received { text: body.text(&door.port.bounds), charge: body.charge() };
        door.dispatch(&caller, message, MessageTransport::Post, &out).await;
    });
    match replies.recv().await {
        None => StatusCode::NO_CONTENT.into_response(),
        Some(Reply { text, last: true }) => json_response(StatusCode::OK, text),
        Some(Reply { text, last: false }) => {
            let rest = stream::unfold((replies, work), async |(mut replies, work)| {
                Some((replies.recv().await?.text, (replies, work)))
            });
            ndjson_response(stream::iter([text]).chain(rest))
        }
    }
}

impl Nexus {
    /// Authenticates a credential, as of now.
    fn caller(&self, credential: &Credential) -> Result<Arc<Caller>, Unauthenticated> {
        match self.settings.access {
            DoorAccess::Callers => self.port.callers.identify(credential, self.executor.clock().now()),
            DoorAccess::Public => Ok(Arc::new(Caller::any_agent())),
        }
    }

    fn now_ms(&self) -> u64 {
        unix_ms(self.executor.clock().now())
    }

    /// Id, time and random IV of the next message; `None` if the system has no random bytes.
    fn stamp(&self, id: IntentId) -> Option<MessageStamp> {
        let mut iv = [0; 12];
        if let Err(error) = getrandom::fill(&mut iv) {
            tracing::error!(%error, "the system has no random bytes");
            return None;
        }
        Some(MessageStamp { id, timestamp_ms: self.now_ms(), iv })
    }

    fn write(&self, writer: MessageWriter<'_>, body: OutgoingBody<'_>) -> String {
        self.stamp(IntentId::random()).map_or(String::new(), |stamp| writer.write(&stamp, body))
    }

    /// An unsigned error for a sender that is not authenticated.
    fn unauthenticated_error(&self, sender: Option<(IntentId, &RawValue)>, failure: NexusError) -> String {
        let (id, to) = sender.map_or((None, &*self.unknown), |(id, to)| (Some(id), to));
        self.unsigned_error(id, to, failure)
    }

    fn unsigned_error(&self, id: Option<IntentId>, to: &RawValue, failure: NexusError) -> String {
        let writer = MessageWriter {
            from: &self.identity,
            to,
            keys: None,
            scope: self.settings.scope,
            sealed: false,
            priority: Priority::Normal,
        };
        self.write(writer, OutgoingBody::Error(id, failure))
    }

    /// Encodes an event for an agent: signed, and encrypted if requested. `None` if the agent has no keys, or if the
    /// system has no random bytes.
    fn event(&self, agent: &str, event: &OutgoingEvent) -> Option<String> {
        let writer = MessageWriter {
            from: &self.identity,
            to: &event.to,
            keys: Some(self.keys.get(agent)?),
            scope: self.settings.scope,
            sealed: event.sealed,
            priority: Priority::Normal,
        };
        let body =
            OutgoingBody::Event { name: event.name, guarantee: event.guarantee, payload: &event.payload };
        Some(writer.write(&self.stamp(event.id)?, body))
    }

    /// Returns `true` if a caller may see an agent's runs.
    fn may_see(caller: &Caller, agent: &AgentDid) -> bool {
        caller.may_act_as(agent) || caller.is_any_of(&[Role::Operator])
    }

    /// Handles one message, and sends its answers to `out`.
    async fn dispatch(
        &self,
        caller: &Caller,
        message: Received<'_>,
        transport: MessageTransport<'_>,
        out: &mpsc::Sender<Reply>,
    ) {
        let Received { text, charge } = message;
        let started_at = self.executor.clock().monotonic();
        let decoded = match text {
            Ok(text) => decode::envelope(text),
            Err(fault) => Err(Box::new(NexusDecodeError { id: None, failure: fault::to_error(&fault) })),
        };
        let envelope = match decoded {
            Ok(envelope) => envelope,
            Err(malformed) => {
                let NexusDecodeError { id, failure } = *malformed;
                return send_last(out, self.unsigned_error(id, &self.unknown, failure)).await;
            }
        };
        let id = envelope.id();
        let name = envelope.from().to_owned();
        let identity = envelope.identity().to_owned();
        let known = self.keys.get(&name);
        let verified = match envelope.verify(known, self.settings.scope) {
            Ok(verified) => verified,
            Err(failure) => {
                return send_last(out, self.unauthenticated_error(Some((id, &identity)), failure)).await;
            }
        };
        let Some(keys) = known else { return };
        let accepted = self.accept(caller, &verified, &name, keys, transport);
        // A sender whose key does not decrypt the request could not decrypt the reply either, which is therefore sent
        // in clear.
        let opened = accepted.as_ref().map_or_else(|unaccepted| unaccepted.opened, |_| true);
        let sealed = verified.is_sealed() && opened;
        let writer = MessageWriter {
            from: &self.identity,
            to: &identity,
            keys: Some(keys),
            scope: self.settings.scope,
            sealed,
            priority: verified.priority(),
        };
        match accepted {
            Ok(accepted) => {
                let requires_ack = verified.requires_ack();
                let exchange = Exchange { id, name: &name, writer, requires_ack, started_at, out };
                self.handle(&exchange, accepted, caller, transport, charge).await;
            }
            // Errors are never answered: two peers that answered them would never stop.
            Err(_) if verified.envelope().kind() == MessageType::Error => {}
            Err(Unaccepted { failure, opened: _ }) => {
                send_last(out, self.write(writer, OutgoingBody::Error(Some(id), failure))).await;
            }
        }
    }

    /// Handles the content of an accepted message.
    async fn handle(
        &self,
        exchange: &Exchange<'_>,
        accepted: Accepted,
        caller: &Caller,
        transport: MessageTransport<'_>,
        charge: Charge,
    ) {
        let Exchange { id, name, writer, .. } = *exchange;
        let Accepted { agent, content, is_repeat } = accepted;
        match content {
            Content::Event(event) => self.receive_event(exchange, &event, is_repeat).await,
            Content::Ack(event) => self.hub.acknowledge(name, event),
            Content::Response | Content::Error => {
                tracing::debug!(agent = name, "an answer without a request is ignored");
            }
            Content::Execute(_)
            | Content::Cancel(_)
            | Content::Subscribe(_)
            | Content::Unsubscribe(_)
            | Content::Query(..) => {
                let sender = MessageSender {
                    caller,
                    agent,
                    name,
                    identity: writer.to,
                    id,
                    priority: writer.priority,
                    sealed: writer.sealed,
                    transport,
                    charge,
                };
                self.respond(exchange, &sender, content).await;
            }
        }
    }

    /// Logs an agent's event, and acknowledges it if its sender asks for that.
    async fn receive_event(&self, exchange: &Exchange<'_>, event: &EventHead, is_repeat: bool) {
        tracing::debug!(
            agent = exchange.name,
            kind = event.kind,
            event = event.name,
            is_repeat,
            "event received"
        );
        if exchange.requires_ack || event.guarantee != DeliveryGuarantee::AtMostOnce {
            let ack = self.write(exchange.writer, OutgoingBody::Ack(exchange.id));
            send_last(exchange.out, ack).await;
        }
    }

    /// Performs a command or a query, and sends the response; before it an acknowledgement, if the sender asks for that.
    async fn respond(&self, exchange: &Exchange<'_>, sender: &MessageSender<'_>, content: Content) {
        let Exchange { id, name: _, writer, requires_ack, started_at, out } = *exchange;
        if requires_ack {
            let ack = self.write(writer, OutgoingBody::Ack(id));
            let _closed = out.send(Reply { text: ack, last: false }).await;
        }
        let (status, data, error) = match self.perform(sender, content).await {
            Ok((status, data, error)) => (status, Some(data), error),
            Err(failure) => (ResponseStatus::Failure, None, Some(failure)),
        };
        let elapsed = self.executor.clock().monotonic().saturating_duration_since(started_at);
        let processing_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let response = OutgoingBody::Response { request: id, status, data, error, processing_ms };
        send_last(out, self.write(writer, response)).await;
    }

    /// Checks the rate, addressee, time, agent, payload and id of a verified message.
    fn accept(
        &self,
        caller: &Caller,
        verified: &Verified<'_>,
        name: &str,
        keys: &AgentKeys,
        transport: MessageTransport<'_>,
    ) -> Result<Accepted, Unaccepted> {
        let agent = self
            .check_sender(caller, verified, name)
            .map_err(|failure| Unaccepted { failure, opened: false })?;
        let content = verified.content(keys, &self.port.bounds).map_err(|failure| {
            let opened = failure.code != NexusCode::SignatureInvalid;
            Unaccepted { failure, opened }
        })?;
        let is_repeat =
            self.use_id(verified, name, &content).map_err(|failure| Unaccepted { failure, opened: true })?;
        if let MessageTransport::Socket(target) = transport {
            target.add_agent(name);
            self.hub.attach(name, target);
        }
        Ok(Accepted { agent, content, is_repeat })
    }

    /// Checks the rate, addressee and time of a verified message, and the caller's right to act for its agent.
    fn check_sender(
        &self,
        caller: &Caller,
        verified: &Verified<'_>,
        name: &str,
    ) -> Result<AgentDid, NexusError> {
        if let Err(wait) = self.hub.acquire(name, self.executor.clock().monotonic()) {
            let max = MAX_MESSAGES_PER_SECOND;
            let message = format!(
                "an agent may send at most {max} messages in a burst, and then {max} per second: send fewer"
            );
            let retry_after_ms = to_whole_units(wait, Duration::from_millis(1));
            return Err(
                NexusError::new(NexusCode::RateLimited, message).with_detail("retryAfterMs", retry_after_ms)
            );
        }
        if verified.envelope().to() != self.id {
            let message = format!("the message is addressed to another executor: this one is `{}`", self.id);
            return Err(NexusError::new(NexusCode::NotFound, message).with_detail("pointer", "/to/id"));
        }
        verified.check_time(self.now_ms(), MAX_CLOCK_SKEW_MS)?;
        let agent = agent_of(name).map_err(|fault| fault::to_error(&fault))?;
        if !caller.may_act_as(&agent) && !caller.may_read_all() {
            let message = format!(
                "`{}` may not act for `{agent}`: add the agent to the caller's `agents`",
                caller.name()
            );
            let fault = self.executor.refusals.refuse(None, BlockedBy::CallerUnauthorized, message);
            return Err(fault::to_error(&fault));
        }
        Ok(agent)
    }

    /// Checks that the id of a message is unused. Returns `true` if the message is a permitted repeat.
    fn use_id(&self, verified: &Verified<'_>, name: &str, content: &Content) -> Result<bool, NexusError> {
        let purpose = match content {
            Content::Execute(_) => IdPurpose::Execute,
            Content::Event(_) => IdPurpose::Event,
            Content::Cancel(_) | Content::Subscribe(_) | Content::Unsubscribe(_) | Content::Query(..) => {
                IdPurpose::Once
            }
            // A repeated message of these kinds changes nothing.
            Content::Response | Content::Ack(_) | Content::Error => return Ok(false),
        };
        // This is the maximum and not the message's own `ttl`, which the signature does not cover.
        let until_ms = verified.timestamp_ms().saturating_add(MAX_TTL_MS);
        let id = verified.envelope().id();
        if purpose == IdPurpose::Once && verified.timestamp_ms() < self.started_ms {
            let message = "the message was created before this executor started, so its `id` may have been used: send \
                           a new message";
            let error = NexusError::new(NexusCode::ValidationError, message);
            return Err(error.with_detail("pointer", "/timestamp"));
        }
        match self.hub.use_id(name, id, purpose, self.now_ms(), until_ms) {
            IdUse::First => Ok(false),
            IdUse::Again => Ok(true),
            IdUse::Spent => {
                let message = "the `id` was used before: every message needs a new one";
                Err(NexusError::new(NexusCode::ValidationError, message).with_detail("pointer", "/id"))
            }
            IdUse::Full => {
                let message = "the agent has sent too many messages within an hour: send fewer";
                Err(NexusError::new(NexusCode::RateLimited, message).with_detail("retryAfterMs", 60_000))
            }
        }
    }

    async fn perform(&self, sender: &MessageSender<'_>, content: Content) -> RequestResult {
        match content {
            Content::Execute(execute) => self.execute(sender, execute).await,
            Content::Cancel(intent) => self.cancel(sender, intent).await,
            Content::Subscribe(subscribe) => self.subscribe(sender, subscribe),
            Content::Unsubscribe(id) => {
                let unsubscribed = self.hub.unsubscribe(sender.name, id);
                success(json!({ "subscriptionId": id.to_string(), "unsubscribed": unsubscribed }))
            }
            Content::Query(action, QueryResource::Executor) => self.describe_executor(sender, action),
            Content::Query(action, QueryResource::Intent(intent)) => {
                self.describe_intent(sender, action, intent).await
            }
            // These have no answer.
            Content::Event(_) | Content::Response | Content::Ack(_) | Content::Error => success(Value::Null),
        }
    }

    async fn execute(&self, sender: &MessageSender<'_>, execute: ExecuteCommand) -> RequestResult {
        let ExecuteCommand { tool, arguments, timeout, context, session } = execute;
        let unchecked = Call {
            door: Door::Nexus,
            agent: sender.agent.clone(),
            intent: sender.id,
            is_new: false,
            tool,
            arguments,
            context,
            caller_timeout: timeout,
            priority: sender.priority,
            charge: sender.charge.clone(),
            parent: None,
            caller_tools: None,
            session: session.map(CallSession::from),
        };
        let call = with_caller(&self.executor, sender.caller, unchecked).map_err(execution_failure)?;
        let intent = call.intent.to_string();
        let IntentAnswer { verdict, receipt } = self
            .executor
            .engine
            .handle_intent(call, RunEventSink::none())
            .await
            .map_err(execution_failure)?;
        if let Some(receipt) = receipt {
            let staged = staged_state(&self.executor, &receipt).await;
            return Ok(encode::run_report(&receipt, staged.as_ref()));
        }
        let risk_score = verdict.risk.as_ref().map(|risk| risk.score);
        let data = json!({
            "intentId": intent,
            "state": "escalated",
            "riskScore": risk_score,
            "message": "a person has to decide: the intent runs once an approver allows it",
        });
        Ok((ResponseStatus::Partial, encode::answer(&data), None))
    }

    async fn cancel(&self, sender: &MessageSender<'_>, intent: IntentId) -> RequestResult {
        let may_cancel_all = sender.caller.is_any_of(&[Role::Governor, Role::Operator]);
        let may_cancel =
            |agent: &AgentDid| may_cancel_all || (*agent == sender.agent && sender.caller.may_act_as(agent));
        let cancelled = self
            .executor
            .operator
            .cancel(intent, &may_cancel, sender.caller.name())
            .await
            .map_err(execution_failure)?;
        success(json!({ "intentId": intent.to_string(), "cancelled": cancelled }))
    }

    fn subscribe(&self, sender: &MessageSender<'_>, subscribe: SubscribeCommand) -> RequestResult {
        let MessageTransport::Socket(target) = sender.transport else {
            return Err(NexusError::new(
                NexusCode::ValidationError,
                "events are sent over a WebSocket: subscribe on one at `/nexus`",
            )
            .with_detail("pointer", "/action"));
        };
        let sees_all = sender.caller.is_any_of(&[Role::Operator]);
        if !sees_all && !sender.caller.may_act_as(&sender.agent) {
            let message = format!("`{}` may not act for `{}`", sender.caller.name(), sender.agent);
            return Err(execution_failure(self.executor.refusals.refuse(
                None,
                BlockedBy::CallerUnauthorized,
                message,
            )));
        }
        let SubscribeCommand { events, intent, guarantee } = subscribe;
        let id = IntentId::random();
        let names = events.iter().map(|event| event.as_str()).collect::<Vec<_>>();
        let answer = json!({
            "subscriptionId": id.to_string(),
            "events": names,
            "intentId": intent.map(|intent| intent.to_string()),
            "deliveryGuarantee": guarantee.as_str(),
        });
        let subscription = Subscription {
            id,
            agent: (!sees_all).then(|| sender.agent.clone()),
            intent,
            events,
            guarantee,
            sealed: sender.sealed,
            to: sender.identity.to_owned().into(),
            connection: target.id,
            sequence: 0,
            dropped: 0,
        };
        if self.hub.subscribe(sender.name, subscription, target, self.executor.clock().monotonic()) {
            return success(answer);
        }
        Err(NexusError::new(NexusCode::RateLimited, "an agent has at most 16 subscriptions: end one of them"))
    }

    /// Answers a query about the executor. Its load is only for operators.
    fn describe_executor(&self, sender: &MessageSender<'_>, action: QueryAction) -> RequestResult {
        let load = || {
            let (running, queued) = self.executor.queries.queue_stats();
            let journal = &self.executor.journal;
            json!({
                "running": running,
                "queued": queued,
                "receipts": journal.head().number,
                "undeliveredReports": journal.deliveries.undelivered_count(),
                "journalBytes": journal.bytes(),
            })
        };
        match action {
            QueryAction::Status => success(json!({ "resourceId": "executor", "state": "ready" })),
            QueryAction::State => success(json!({
                "resourceId": "executor",
                "state": "ready",
                "version": env!("CARGO_PKG_VERSION"),
                "tools": encode::tools(&self.executor.catalogue.tools()),
            })),
            QueryAction::Metrics if sender.caller.is_any_of(&[Role::Operator]) => {
                success(json!({ "resourceId": "executor", "metrics": load() }))
            }
            QueryAction::Metrics => {
                let message = "the executor's metrics are for callers with the role `operator`".to_owned();
                Err(execution_failure(self.executor.refusals.refuse(
                    None,
                    BlockedBy::CallerUnauthorized,
                    message,
                )))
            }
        }
    }

    /// Answers a query about an intent. To an agent, the intents of other agents do not exist.
    async fn describe_intent(
        &self,
        sender: &MessageSender<'_>,
        action: QueryAction,
        intent: IntentId,
    ) -> RequestResult {
        let may_read_all = sender.caller.may_read_all();
        let found = self.executor.queries.status_anywhere(intent).await.map_err(execution_failure)?;
        let readable = found
            .filter(|(agent, _)| may_read_all || (*agent == sender.agent && sender.caller.may_act_as(agent)));
        let (state, receipt) = match readable.map(|(_, state)| state) {
            Some(IntentState::Escalated) => ("escalated", None),
            Some(IntentState::Queued) => ("queued", None),
            Some(IntentState::Running) => ("running", None),
            Some(IntentState::Finished(receipt)) => ("finished", receipt),
            None => {
                let message = format!("unknown intent `{intent}`");
                return Err(NexusError::new(NexusCode::NotFound, message)
                    .with_detail("pointer", "/payload/resourceId"));
            }
        };
        let mut answer = json!({ "resourceId": intent.to_string(), "state": state });
        let Some(receipt) = receipt else { return success(answer) };
        let mut put = |key: &str, value: Value| {
            if let Some(answer) = answer.as_object_mut() {
                answer.insert(key.to_owned(), value);
            }
        };
        put("status", receipt.outcome.end.status().as_str().into());
        match action {
            QueryAction::Status => success(answer),
            QueryAction::Metrics => {
                put("metrics", encode::metrics(&receipt));
                success(answer)
            }
            QueryAction::State => {
                let staged = staged_state(&self.executor, &receipt).await;
                let finished = encode::finished_state(intent, &receipt, staged.as_ref());
                Ok((ResponseStatus::Success, finished, None))
            }
        }
    }
}

/// Sends an answer that no further one follows. The receiver may have gone.
async fn send_last(out: &mpsc::Sender<Reply>, text: String) {
    let _closed = out.send(Reply { text, last: true }).await;
}

/// Milliseconds since 1970.
fn unix_ms(at: OffsetDateTime) -> u64 {
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or_default()
}

/// A message that is to be handled.
struct Accepted {
    agent: AgentDid,
    content: Content,
    /// `true` if the message is a permitted repeat.
    is_repeat: bool,
}

/// The reason why a message is refused. `opened` is `true` if its payload could be read before that.
struct Unaccepted {
    failure: NexusError,
    opened: bool,
}

#[allow(clippy::unnecessary_wraps, reason = "all branches of `perform` have this type")]
fn success(data: Value) -> RequestResult {
    Ok((ResponseStatus::Success, encode::answer(&data), None))
}

fn execution_failure(fault: Fault) -> NexusError {
    if let Fault::Internal(detail) = &fault {
        tracing::error!(detail, "a message could not be answered");
    }
    fault::execution_error(&fault)
}
