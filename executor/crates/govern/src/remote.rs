//! The client of a governor behind a URL, over HTTP or WebSocket.
//!
//! An invalid answer is an error, and an error never runs anything. A JSON-RPC error in answer to an intent is a denial
//! if its code is one of the protocol's refusals, even if the message also has a result: one reference governor sends
//! both. Any other error says nothing about the intent, so the governor is asked again.

mod transport;

use super::{Checkpoint, ExecutorHeartbeat, ExecutorRegistration};
use a2g_types::call::Call;
use a2g_types::error_chain::ErrorChain;
use a2g_types::fault::Fault;
use a2g_types::outcome::Receipt;
use a2g_types::verdict::{Decision, Manifest, Policy, Rationale, Risk, RiskLevel, Verdict};
use a2g_wire::a2g::{decode, encode};
use jsonrpsee::core::client::{ClientT, Error as ClientError};
use jsonrpsee::core::traits::ToRpcParams;
use jsonrpsee::types::ErrorObjectOwned;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use transport::{GovernorConnection, HttpClient};

/// Maximum time of a call to the governor, and of all attempts for one intent together.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The delays before another attempt to obtain a verdict. The attempts outlast the restart of a small governor.
const RETRY_DELAYS: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];
/// The error codes that are denials, because the governor has decided: a policy violation, and exhausted capabilities.
const DENIAL_CODES: [i32; 2] = [-32000, -32003];
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: u32 = 1 << 20;
/// Maximum size of a request, in bytes: a report of the largest output with every byte escaped.
const MAX_REPORT_BYTES: u32 = 1 << 30;
/// The methods that a governor may push over its WebSocket.
const PUSH_METHODS: [&str; 3] = ["g2a/policy", "g2a/revoke", "g2a/directive"];

/// The address of a governor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GovernorUrl {
    /// `http://` or `https://`.
    Http(String),
    /// `ws://` or `wss://`.
    WebSocket(String),
}

/// The reason why a text is not the address of a governor. Other messages embed it, so it has no `source`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GovernorUrlError {
    /// The text is not a URL.
    #[error("`{text}` is not a URL: {error}")]
    NotAUrl {
        /// The text.
        text: String,
        /// The parser's error.
        error: url::ParseError,
    },
    /// The scheme is not one that a governor can have.
    #[error("`{0}` is not a scheme of a governor: use http, https, ws or wss")]
    Scheme(String),
}

impl GovernorUrl {
    /// Parses an address.
    ///
    /// # Errors
    /// [`GovernorUrlError`], which lists the accepted schemes.
    pub fn parse(text: &str) -> Result<Self, GovernorUrlError> {
        let not_a_url = |error| GovernorUrlError::NotAUrl { text: text.to_owned(), error };
        let url = url::Url::parse(text).map_err(not_a_url)?;
        match url.scheme() {
            "http" | "https" => Ok(Self::Http(text.to_owned())),
            "ws" | "wss" => Ok(Self::WebSocket(text.to_owned())),
            other => Err(GovernorUrlError::Scheme(other.to_owned())),
        }
    }

    /// The address for logs, without user, password, query and fragment.
    #[must_use]
    pub fn redact(&self) -> String {
        let Ok(mut url) = url::Url::parse(self.as_str()) else { return String::new() };
        // Setting a user fails only for URLs without a host, which these schemes do not permit.
        let _infallible_with_host = (url.set_username(""), url.set_password(None));
        url.set_query(None);
        url.set_fragment(None);
        url.into()
    }

    fn as_str(&self) -> &str {
        let (Self::Http(url) | Self::WebSocket(url)) = self;
        url
    }
}

/// The reason why a call to a governor failed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The connection failed or broke, or the answer came too late.
    #[error("no answer")]
    Unreachable(#[source] ClientError),
    /// No verdict arrived within the time for all attempts.
    #[error("no answer: timed out after {} seconds", .0.as_secs())]
    TimedOut(Duration),
    /// The result violates the protocol, for this reason.
    #[error("the result is not valid: {0}")]
    InvalidResult(String),
    /// The governor answered an intent with an error that is not a decision.
    #[error("an error that is not a verdict: {code} `{message}`")]
    Faulty {
        /// The error code.
        code: i32,
        /// An excerpt of the error message.
        message: String,
    },
    /// The governor answered a call other than an intent with an error.
    #[error("refused: {0:?}")]
    Refused(Fault),
    /// The local governor could not record the report.
    #[error("the report could not be recorded")]
    Record(#[source] std::io::Error),
}

/// A message that the governor pushed over its own connection.
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
    redacted_url: String,
    http: Option<HttpClient>,
    /// Opened at the first call, and again after a failure.
    web_socket: Mutex<Option<Arc<GovernorConnection>>>,
    /// The number of WebSockets opened so far.
    connections: AtomicU64,
    pushes: mpsc::Sender<Push>,
}

struct EncodedParams(Box<RawValue>);

impl ToRpcParams for EncodedParams {
    fn to_rpc_params(self) -> Result<Option<Box<RawValue>>, serde_json::Error> {
        Ok(Some(self.0))
    }
}

impl RemoteGovernor {
    /// Makes a client of the governor at `url`, and the receiver of the messages that the governor pushes.
    ///
    /// # Errors
    /// [`RemoteError::Unreachable`] when the URL is not usable.
    pub fn new(url: GovernorUrl) -> Result<(Self, mpsc::Receiver<Push>), RemoteError> {
        let http = match &url {
            GovernorUrl::Http(url) => Some(transport::http(url).map_err(RemoteError::Unreachable)?),
            GovernorUrl::WebSocket(_) => None,
        };
        let (pushes, receiver) = mpsc::channel(64);
        let redacted_url = url.redact();
        let web_socket = Mutex::new(None);
        Ok((Self { url, redacted_url, http, web_socket, connections: AtomicU64::new(0), pushes }, receiver))
    }

    /// The governor's address, redacted by [`GovernorUrl::redact`].
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.redacted_url
    }

    /// The number of the latest connection, which changes when the governor has to be connected to again. Connections over
    /// HTTP are not counted.
    pub(super) fn connection(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Requests a verdict, and retries while failures may be temporary.
    pub(super) async fn decide(&self, call: &Call) -> Result<Verdict, RemoteError> {
        let mut last_error = RemoteError::TimedOut(CALL_TIMEOUT);
        let attempts = async {
            for delay in RETRY_DELAYS {
                match self.request_verdict(call).await {
                    Err(error) if error.is_transient() => {
                        let governor = &self.redacted_url;
                        tracing::debug!(governor, error = %ErrorChain(&error), "the governor gave no verdict and is asked again");
                        last_error = error;
                    }
                    result => return result,
                }
                tokio::time::sleep(delay).await;
            }
            self.request_verdict(call).await
        };
        let result = tokio::time::timeout(CALL_TIMEOUT, attempts).await;
        result.unwrap_or(Err(last_error))
    }

    async fn request_verdict(&self, call: &Call) -> Result<Verdict, RemoteError> {
        match self.call("a2g/intent", encode::intent(call)).await {
            Ok(result) => decode::verdict(result.get()).map_err(|fault| RemoteError::invalid_result(&fault)),
            Err(ClientError::Call(error)) if DENIAL_CODES.contains(&error.code()) => Ok(denial(call, &error)),
            Err(ClientError::Call(error)) => Err(undecided_error(&error)),
            Err(error) => Err(RemoteError::Unreachable(error)),
        }
    }

    pub(super) async fn register(
        &self,
        registration: &ExecutorRegistration,
    ) -> Result<Option<Policy>, RemoteError> {
        let ExecutorRegistration { agent, public_key, tools } = registration;
        let registration = encode::registration(agent, public_key.as_deref(), tools);
        let answer = self.request("a2g/register", registration).await?;
        decode::registration_result(answer.get()).map_err(|fault| RemoteError::invalid_result(&fault))
    }

    pub(super) async fn report(&self, receipt: &Receipt) -> Result<(), RemoteError> {
        self.request("a2g/report", encode::report(receipt)).await.map(drop)
    }

    pub(super) async fn heartbeat(&self, heartbeat: &ExecutorHeartbeat) -> Result<(), RemoteError> {
        let ExecutorHeartbeat { agent, uptime_seconds, running, queued, checkpoint } = heartbeat;
        let Checkpoint { count, root, signature } = checkpoint;
        let journal = encode::JournalState { count: *count, root, signature: signature.as_deref() };
        self.request("a2g/heartbeat", encode::heartbeat(agent, *uptime_seconds, *running, *queued, journal))
            .await
            .map(drop)
    }

    async fn request(&self, method: &str, params: Box<RawValue>) -> Result<Box<RawValue>, RemoteError> {
        self.call(method, params).await.map_err(|error| {
            if let ClientError::Call(error) = &error {
                return RemoteError::Refused(refusal_fault(error));
            }
            RemoteError::Unreachable(error)
        })
    }

    async fn call(&self, method: &str, params: Box<RawValue>) -> Result<Box<RawValue>, ClientError> {
        if let Some(http) = &self.http {
            return http.request(method, EncodedParams(params)).await;
        }
        self.web_socket().await?.client.request(method, EncodedParams(params)).await
    }

    /// The open WebSocket. Opens one if there is none, or if it is broken.
    async fn web_socket(&self) -> Result<Arc<GovernorConnection>, ClientError> {
        let mut connection = self.web_socket.lock().await;
        if let Some(open) = connection.as_ref().filter(|open| open.is_usable()) {
            return Ok(Arc::clone(open));
        }
        let open = Arc::new(GovernorConnection::open(self.url.as_str(), self.pushes.clone()).await?);
        self.connections.fetch_add(1, Ordering::Relaxed);
        *connection = Some(Arc::clone(&open));
        Ok(open)
    }
}

impl RemoteError {
    fn invalid_result(fault: &Fault) -> Self {
        let sentence = fault.sentence();
        let Fault::InvalidParams { pointer, .. } = fault else {
            return Self::InvalidResult(sentence.into_owned());
        };
        Self::InvalidResult(match pointer.as_str() {
            "" => "it is not an object".to_owned(),
            _ => format!("{sentence} (at `{pointer}`)"),
        })
    }

    /// `true` for a failure that may be temporary.
    fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::TimedOut(_) | Self::Faulty { .. } => true,
            Self::InvalidResult(_) | Self::Refused(_) | Self::Record(_) => false,
        }
    }
}

fn undecided_error(error: &ErrorObjectOwned) -> RemoteError {
    RemoteError::Faulty { code: error.code(), message: a2g_types::ident::excerpt(error.message()) }
}

fn refusal_fault(error: &ErrorObjectOwned) -> Fault {
    let message = a2g_types::ident::excerpt(error.message());
    match error.code() {
        -32004 => Fault::SessionExpired(message),
        _other => Fault::RegistrationFailed(message),
    }
}

/// Converts an error in answer to an intent into the denial that it stands for.
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
            level: RiskLevel::from_score(score),
            model_score: None,
            heuristic_score: None,
            threats: Vec::new(),
        }),
        manifest: Manifest::default(),
        conditions: Vec::new(),
        expires_at: None,
        reason: Some(error.message().chars().filter(|c| !c.is_control()).take(300).collect()),
        rationale: Rationale::default(),
    }
}
