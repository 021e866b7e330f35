//! The client of a governor behind a URL, over HTTP or WebSocket.
//!
//! An answer that cannot be understood is an error, and an error never runs anything. A JSON-RPC error in answer to an
//! intent is a denial when its code is one of the protocol's own refusals, also when a result stands beside it, as one
//! reference governor sends it. Any other error says nothing about the intent, which is then asked about again.

mod transport;

use super::{Checkpoint, Introduction, Pulse};
use crate::call::Call;
use crate::error_chain::ErrorChain;
use crate::fault::Fault;
use crate::outcome::Receipt;
use crate::verdict::{Decision, Manifest, Policy, Risk, RiskLevel, Verdict};
use crate::wire::a2g::{decode, encode};
use jsonrpsee::core::client::{ClientT, Error as ClientError};
use jsonrpsee::core::traits::ToRpcParams;
use jsonrpsee::types::ErrorObjectOwned;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use transport::{Connection, HttpClient};

/// The longest call to the governor, and the longest time for which it is asked about one intent.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The pauses before the governor is asked again about an intent without a verdict.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];
/// The codes of an error that is a denial: a policy violation, and capabilities that are used up.
const DENIALS: [i32; 2] = [-32000, -32003];
/// The code for an error inside of a peer.
const INTERNAL_ERROR: i32 = -32603;
/// The largest answer that is read, in bytes.
const MAX_ANSWER_BYTES: u32 = 1 << 20;
/// The largest message that is sent: a report of the most output, with every byte of it escaped.
const MAX_REPORT_BYTES: u32 = 1 << 30;
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

/// Why a text is no address of a governor. It ends another sentence, so it has no `source`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GovernorUrlError {
    /// No URL at all.
    #[error("`{text}` is not a URL: {error}")]
    NotAUrl {
        /// The text.
        text: String,
        /// The parser's error.
        error: url::ParseError,
    },
    /// A protocol that governors do not speak.
    #[error("`{0}` is not a scheme of a governor: use http, https, ws or wss")]
    Scheme(String),
}

impl GovernorUrl {
    /// Parses an address.
    ///
    /// # Errors
    /// [`GovernorUrlError`] names the schemes that can be used.
    pub fn parse(text: &str) -> Result<Self, GovernorUrlError> {
        let not_a_url = |error| GovernorUrlError::NotAUrl { text: text.to_owned(), error };
        let url = url::Url::parse(text).map_err(not_a_url)?;
        match url.scheme() {
            "http" | "https" => Ok(Self::Http(text.to_owned())),
            "ws" | "wss" => Ok(Self::WebSocket(text.to_owned())),
            other => Err(GovernorUrlError::Scheme(other.to_owned())),
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
    #[error("no answer")]
    Unreachable(#[source] ClientError),
    /// There was no answer in all the time for which a verdict is asked for.
    #[error("no answer: none within {} seconds", .0.as_secs())]
    TimedOut(Duration),
    /// The result is not what the protocol says.
    #[error("a result that cannot be understood: {0:?}")]
    InvalidResult(Fault),
    /// The governor answered with an error that decides nothing.
    #[error("an error that is no verdict: {code} `{message}`")]
    Faulty {
        /// Its code.
        code: i32,
        /// An excerpt of its message.
        message: String,
    },
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
    web_socket: Mutex<Option<Arc<Connection>>>,
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
            GovernorUrl::Http(url) => Some(transport::http(url).map_err(RemoteError::Unreachable)?),
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

    /// Asks for a verdict, again for a while when there is none.
    pub(super) async fn decide(&self, call: &Call) -> Result<Verdict, RemoteError> {
        let mut failed = RemoteError::TimedOut(CALL_TIMEOUT);
        let asked = async {
            for pause in PAUSES {
                match self.ask(call).await {
                    Err(error) if error.may_pass() => {
                        let governor = &self.shown;
                        tracing::debug!(governor, error = %ErrorChain(&error), "the governor is asked again");
                        failed = error;
                    }
                    decided => return decided,
                }
                tokio::time::sleep(pause).await;
            }
            self.ask(call).await
        };
        let asked = tokio::time::timeout(CALL_TIMEOUT, asked).await;
        asked.unwrap_or(Err(failed))
    }

    async fn ask(&self, call: &Call) -> Result<Verdict, RemoteError> {
        match self.call("a2g/intent", encode::intent(call)).await {
            Ok(result) => decode::verdict(result.get()).map_err(RemoteError::InvalidResult),
            Err(ClientError::Call(error)) if DENIALS.contains(&error.code()) => Ok(denial(call, &error)),
            Err(ClientError::Call(error)) => Err(faulty(&error)),
            Err(error) => Err(RemoteError::Unreachable(error)),
        }
    }

    /// Registers the executor.
    pub(super) async fn register(&self, introduction: &Introduction) -> Result<Option<Policy>, RemoteError> {
        let Introduction { agent, public_key, tools } = introduction;
        let registration = encode::registration(agent, public_key.as_deref(), tools);
        let answer = self.answered("a2g/register", registration).await?;
        decode::registered(answer.get()).map_err(RemoteError::InvalidResult)
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
        self.call(method, params).await.map_err(|error| {
            if let ClientError::Call(error) = &error {
                return RemoteError::Refused(refusal(error));
            }
            RemoteError::Unreachable(error)
        })
    }

    async fn call(&self, method: &str, params: Box<RawValue>) -> Result<Box<RawValue>, ClientError> {
        if let Some(http) = &self.http {
            return http.request(method, Encoded(params)).await;
        }
        self.web_socket().await?.client.request(method, Encoded(params)).await
    }

    /// The WebSocket, connected again if it broke.
    async fn web_socket(&self) -> Result<Arc<Connection>, ClientError> {
        let mut connection = self.web_socket.lock().await;
        if let Some(open) = connection.as_ref().filter(|open| open.is_usable()) {
            return Ok(Arc::clone(open));
        }
        let open = Arc::new(Connection::open(self.url.as_str(), self.pushes.clone()).await?);
        *connection = Some(Arc::clone(&open));
        Ok(open)
    }
}

impl RemoteError {
    /// `true` when the governor may give a verdict when it is asked once more.
    fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::TimedOut(_) | Self::Faulty { .. } => true,
            Self::InvalidResult(_) | Self::Refused(_) | Self::Record(_) => false,
        }
    }
}

fn faulty(error: &ErrorObjectOwned) -> RemoteError {
    RemoteError::Faulty { code: error.code(), message: crate::ident::excerpt(error.message()) }
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
