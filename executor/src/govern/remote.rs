//! The client of a governor behind a URL, over HTTP or WebSocket.
//!
//! Whatever cannot be understood is an error, and an error never runs anything. A JSON-RPC error in
//! answer to an intent is a denial, also when a result stands beside it, as one reference governor
//! sends it.

use super::{Checkpoint, Introduction, Pulse};
use crate::call::Call;
use crate::fault::Fault;
use crate::outcome::Receipt;
use crate::verdict::{Decision, Manifest, Policy, Risk, RiskLevel, Verdict};
use crate::wire::a2g::{decode, encode};
use crate::wire::strict_json::{self, JsonBounds};
use jsonrpsee::core::client::{ClientT, Error as ClientError, Subscription, SubscriptionClientT};
use jsonrpsee::core::traits::ToRpcParams;
use jsonrpsee::http_client::{HttpClient, HttpClientBuilder};
use jsonrpsee::types::ErrorObjectOwned;
use jsonrpsee::ws_client::{WsClient, WsClientBuilder};
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};

/// How long one call to the governor may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer that is read, in bytes.
const LARGEST_ANSWER: u32 = 1 << 20;
/// The largest message that is sent: a report of the most output, with every byte of it escaped.
const LARGEST_REPORT: u32 = 1 << 30;
/// The messages that a governor may push over its WebSocket.
const PUSHES: [&str; 3] = ["g2a/policy", "g2a/revoke", "g2a/directive"];

/// The address of a governor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GovernorUrl {
    /// `http://` or `https://`.
    Http(String),
    /// `ws://` or `wss://`.
    WebSocket(String),
}

impl GovernorUrl {
    /// Parses an address.
    ///
    /// # Errors
    /// A sentence that names the schemes that can be used.
    pub fn parse(text: &str) -> Result<Self, String> {
        let url = url::Url::parse(text).map_err(|error| format!("`{text}` is not a URL: {error}"))?;
        match url.scheme() {
            "http" | "https" => Ok(Self::Http(text.to_owned())),
            "ws" | "wss" => Ok(Self::WebSocket(text.to_owned())),
            other => Err(format!("`{other}` is not a scheme of a governor: use http, https, ws or wss")),
        }
    }

    /// The address as people may see it: without user, password and query.
    #[must_use]
    pub fn shown(&self) -> String {
        let Ok(mut url) = url::Url::parse(self.as_str()) else { return String::new() };
        // A URL with a host, as those of these schemes are, can be without a user.
        let _has_a_host = (url.set_username(""), url.set_password(None));
        url.set_query(None);
        url.set_fragment(None);
        url.into()
    }

    /// The address as it is connected to.
    fn as_str(&self) -> &str {
        let (Self::Http(url) | Self::WebSocket(url)) = self;
        url
    }
}

/// Why a governor did not give what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// There is no connection, or it broke, or the answer did not come in time.
    #[error("no answer: {0}")]
    Unreachable(String),
    /// The answer is not what the protocol says.
    #[error("an answer that cannot be understood: {0}")]
    Nonsense(String),
    /// The governor answered with an error.
    #[error("refused: {0:?}")]
    Refused(Fault),
    /// The local governor could not write its record.
    #[error("the report could not be recorded")]
    Record(#[source] std::io::Error),
}

/// Something that the governor sent over its own connection without being asked.
#[derive(Debug, Clone)]
pub struct Push {
    /// `g2a/policy`, `g2a/revoke` or `g2a/directive`.
    pub method: &'static str,
    /// The parameters, as JSON text.
    pub params: Box<RawValue>,
}

/// A governor behind a URL.
pub struct RemoteGovernor {
    url: GovernorUrl,
    shown: String,
    http: Option<HttpClient>,
    /// Connected when it is first needed, and again after it broke.
    web_socket: Mutex<Option<Arc<WsClient>>>,
    pushes: mpsc::Sender<Push>,
}

/// Parameters that are JSON text already.
struct Encoded(Box<RawValue>);

impl ToRpcParams for Encoded {
    fn to_rpc_params(self) -> Result<Option<Box<RawValue>>, serde_json::Error> {
        Ok(Some(self.0))
    }
}

impl RemoteGovernor {
    /// A client of the governor at `url`. What the governor pushes arrives at the receiver.
    ///
    /// # Errors
    /// [`RemoteError::Unreachable`] when no client can be made for the URL.
    pub fn new(url: GovernorUrl) -> Result<(Self, mpsc::Receiver<Push>), RemoteError> {
        let http = match &url {
            GovernorUrl::Http(url) => Some(
                HttpClientBuilder::default()
                    .request_timeout(CALL_TIMEOUT)
                    .max_request_size(LARGEST_REPORT)
                    .max_response_size(LARGEST_ANSWER)
                    .build(url)
                    .map_err(|error| RemoteError::Unreachable(error.to_string()))?,
            ),
            GovernorUrl::WebSocket(_) => None,
        };
        let (pushes, receiver) = mpsc::channel(64);
        let shown = url.shown();
        Ok((Self { url, shown, http, web_socket: Mutex::new(None), pushes }, receiver))
    }

    /// The governor's address, as [`GovernorUrl::shown`].
    #[must_use]
    pub fn place(&self) -> &str {
        &self.shown
    }

    /// Asks for a verdict.
    pub(super) async fn decide(&self, call: &Call) -> Result<Verdict, RemoteError> {
        match self.call("a2g/intent", encode::intent(call)).await {
            Ok(result) => decode::verdict(strictly(result)?.get()).map_err(nonsense),
            Err(ClientError::Call(error)) => Ok(denial(call, &error)),
            Err(error) if both_result_and_error(&error) => Ok(denial(
                call,
                &ErrorObjectOwned::owned(0, "the governor sent an error beside its result", None::<()>),
            )),
            Err(error) => Err(unreachable(&error)),
        }
    }

    /// Registers the executor.
    pub(super) async fn register(&self, introduction: &Introduction) -> Result<Option<Policy>, RemoteError> {
        let Introduction { agent, tools } = introduction;
        let answer = self.answered("a2g/register", encode::registration(agent, tools)).await?;
        decode::registered(answer.get()).map_err(nonsense)
    }

    /// Delivers a report.
    pub(super) async fn report(&self, receipt: &Receipt) -> Result<(), RemoteError> {
        self.answered("a2g/report", encode::report(receipt)).await.map(drop)
    }

    /// Sends a heartbeat.
    pub(super) async fn heartbeat(&self, pulse: &Pulse) -> Result<(), RemoteError> {
        let Pulse { agent, uptime_seconds, running, queued, checkpoint } = pulse;
        let Checkpoint { count, root, signature } = checkpoint;
        let journal = encode::JournalState { count: *count, root, signature: signature.as_deref() };
        self.answered("a2g/heartbeat", encode::heartbeat(agent, *uptime_seconds, *running, *queued, journal))
            .await
            .map(drop)
    }

    async fn answered(&self, method: &str, params: Box<RawValue>) -> Result<Box<RawValue>, RemoteError> {
        let answer = self.call(method, params).await.map_err(|error| {
            if let ClientError::Call(error) = &error {
                return RemoteError::Refused(refusal(error));
            }
            unreachable(&error)
        })?;
        strictly(answer)
    }

    async fn call(&self, method: &str, params: Box<RawValue>) -> Result<Box<RawValue>, ClientError> {
        if let Some(http) = &self.http {
            return http.request(method, Encoded(params)).await;
        }
        self.web_socket().await?.request(method, Encoded(params)).await
    }

    /// The WebSocket, connected again if it broke.
    async fn web_socket(&self) -> Result<Arc<WsClient>, ClientError> {
        let mut connection = self.web_socket.lock().await;
        if let Some(client) = connection.as_ref().filter(|client| client.is_connected()) {
            return Ok(Arc::clone(client));
        }
        let client = WsClientBuilder::default()
            .request_timeout(CALL_TIMEOUT)
            .connection_timeout(CALL_TIMEOUT)
            .max_request_size(LARGEST_REPORT)
            .max_response_size(LARGEST_ANSWER)
            .enable_ws_ping(jsonrpsee::ws_client::PingConfig::default())
            .build(self.url.as_str())
            .await?;
        let client = Arc::new(client);
        for method in PUSHES {
            let pushed = client.subscribe_to_method(method).await?;
            tokio::spawn(forward(method, pushed, self.pushes.clone()));
        }
        *connection = Some(Arc::clone(&client));
        Ok(client)
    }
}

async fn forward(method: &'static str, mut pushed: Subscription<Box<RawValue>>, pushes: mpsc::Sender<Push>) {
    while let Some(Ok(params)) = pushed.next().await {
        if pushes.send(Push { method, params }).await.is_err() {
            return;
        }
    }
}

/// The governor's answers are read as strictly as any caller's message.
fn strictly(answer: Box<RawValue>) -> Result<Box<RawValue>, RemoteError> {
    strict_json::check(answer.get().as_bytes(), &JsonBounds::default()).map_err(nonsense)?;
    Ok(answer)
}

fn nonsense(fault: Fault) -> RemoteError {
    RemoteError::Nonsense(format!("{fault:?}"))
}

fn unreachable(error: &ClientError) -> RemoteError {
    RemoteError::Unreachable(error.to_string())
}

/// jsonrpsee refuses such an answer as a whole; this is what it then says.
fn both_result_and_error(error: &ClientError) -> bool {
    matches!(error, ClientError::ParseError(error) if error.to_string().contains("mutually exclusive"))
}

fn refusal(error: &ErrorObjectOwned) -> Fault {
    let message = crate::ident::excerpt(error.message());
    match error.code() {
        -32004 => Fault::SessionExpired(message),
        _other => Fault::RegistrationFailed(message),
    }
}

/// An error in answer to an intent, as the verdict that it is.
fn denial(call: &Call, error: &ErrorObjectOwned) -> Verdict {
    let score = error
        .data()
        .and_then(|data| serde_json::from_str::<serde_json::Value>(data.get()).ok())
        .and_then(|data| data.get("risk_score")?.as_f64())
        .filter(|score| (0.0..=1.0).contains(score));
    Verdict {
        decision: Decision::Denied,
        intent: call.intent,
        risk: score.map(|score| Risk {
            score,
            level: RiskLevel::of(score),
            model_score: None,
            heuristic_score: None,
            threats: Vec::new(),
        }),
        manifest: Manifest::default(),
        conditions: Vec::new(),
        expires_at: None,
        reason: Some(error.message().chars().filter(|c| !c.is_control()).take(300).collect()),
    }
}
