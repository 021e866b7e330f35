//! The HTTP client of the proxy: requests with the caller's token, and the messages of a response.

use a2g_govern::FileError;
use a2g_http::server_url::{BearerError, ServerUrlError, parse_server_url, read_bearer};
use a2g_types::error_chain::ErrorChain;
use a2g_wire::jsonrpc::{self, Id};
use axum::body::Bytes;
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use futures_util::{Stream, StreamExt as _};
use http_body_util::{BodyDataStream, BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use sse_stream::SseByteStream;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The maximum size of a message in either direction, in bytes: a result of 16 MiB with its artifacts, twice encoded.
pub(super) const MAX_MESSAGE_BYTES: usize = 64 << 20;
const MAX_REFUSAL_BYTES: usize = 1 << 20;
/// The size up to which a message is read at any time, in bytes. The rest of a longer message is read only while
/// no other long message is in memory.
const SMALL_MESSAGE_BYTES: usize = 64 << 10;
/// The maximum part of a refusal's text that the host is told, in characters.
const MAX_REFUSAL_CHARS: usize = 500;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The idle time before the first keepalive probe, and the interval and the number of probes, after which a dead server
/// is noticed. A tool may be silent for longer.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

type BodyStream = Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>;

/// The reason why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RemoteServerError {
    /// The URL is not the URL of a server.
    #[error("`--connect`: `{0}` is not the URL of an MCP server, such as `https://HOST:PORT/mcp`")]
    InvalidUrl(String),
    /// The token would be readable on the network.
    #[error(
        "`--connect`: `{0}` would send the token unencrypted: use `https://`, or a server on this machine"
    )]
    Unencrypted(String),
    /// The token cannot be read, or cannot be sent.
    #[error("`--token-file`: {0}")]
    Token(String),
}

/// The reason why a request to the server failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("the token cannot be read: {0}")]
    Token(FileError),
    #[error("the token in `{}` cannot be sent: it must be one line of visible ASCII", .0.display())]
    TokenText(PathBuf),
    #[error("`{url}` cannot be reached: {}{}", ErrorChain(error), connection_advice(error))]
    Unreachable { url: String, error: hyper_util::client::legacy::Error },
    #[error("`{url}` does not answer in HTTP: if the port has TLS, write `https://`")]
    NotHttp { url: String },
    #[error("the response ended early, so it is unknown if the request was carried out: {0}")]
    Incomplete(String),
    #[error(
        "the server answered with something that is not a JSON-RPC message: is this the URL of its MCP endpoint?"
    )]
    NotAMessage,
    #[error(
        "the server has lost the session and opens no other, so nothing was carried out: start the host again"
    )]
    SessionLost,
    #[error("{}", describe_refusal(url, *.status, .text, .token_file.as_deref()))]
    Refused { url: String, status: StatusCode, text: String, token_file: Option<PathBuf> },
}

/// The cause of an error with this type. It is found also inside an error of the system, whose `source` is not that
/// cause.
fn find_cause<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let next = |error: &'a (dyn Error + 'static)| {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source())
    };
    std::iter::successors(Some(error), |&error| next(error)).find_map(<dyn Error>::downcast_ref)
}

/// The change to make if a connection cannot be made.
fn connection_advice(error: &(dyn Error + 'static)) -> &'static str {
    match find_cause::<rustls::Error>(error) {
        Some(rustls::Error::InvalidMessage(_)) => ": if the port has no TLS, write `http://`",
        Some(rustls::Error::InvalidCertificate(_)) => {
            ": name the certificates to trust by `--ca-file`, and the host as in its certificate"
        }
        Some(_) => "",
        None => match find_cause::<std::io::Error>(error).map(std::io::Error::kind) {
            Some(std::io::ErrorKind::ConnectionRefused) => {
                ": start the server (`a2g-executor serve`), or check the host and the port"
            }
            Some(_) | None => "",
        },
    }
}

fn describe_refusal(url: &str, status: StatusCode, text: &str, token_file: Option<&Path>) -> String {
    let advice = match (status, token_file) {
        (StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED, _) if !url.ends_with("/mcp") => {
            ": the path of an executor is `/mcp`".to_owned()
        }
        (StatusCode::UNAUTHORIZED, Some(path)) => {
            format!(" to the token in `{}`, which may have expired", path.display())
        }
        (StatusCode::UNAUTHORIZED, None) => ": name the file with your token, by `--token-file`".to_owned(),
        _other => String::new(),
    };
    let text = text.trim().chars().take(MAX_REFUSAL_CHARS).collect::<String>();
    let separator = if text.is_empty() { "" } else { ": " };
    format!("`{url}` answered HTTP {status}{advice}{separator}{text}")
}

impl ExchangeError {
    fn incomplete(error: &(dyn Error + 'static)) -> Self {
        Self::Incomplete(ErrorChain(error).to_string())
    }

    /// The status of a refusal.
    pub(super) fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Token(_)
            | Self::TokenText(_)
            | Self::Unreachable { .. }
            | Self::NotHttp { .. }
            | Self::Incomplete(_)
            | Self::SessionLost
            | Self::NotAMessage => None,
        }
    }

    /// The error response to the request: the server's own error, if it sent one.
    pub(super) fn response(&self, id: &Id) -> String {
        #[derive(Deserialize)]
        struct Refusal {
            error: RpcError,
        }
        #[derive(Deserialize)]
        struct RpcError {
            code: i64,
            message: String,
            data: Option<Value>,
        }
        let refusal = match self {
            Self::Refused { text, .. } => serde_json::from_str::<Refusal>(text).ok(),
            Self::Token(_)
            | Self::TokenText(_)
            | Self::Unreachable { .. }
            | Self::NotHttp { .. }
            | Self::Incomplete(_)
            | Self::SessionLost
            | Self::NotAMessage => None,
        };
        let error = refusal.map_or_else(
            || RpcError { code: jsonrpc::INTERNAL_ERROR.into(), message: self.to_string(), data: None },
            |refusal| refusal.error,
        );
        jsonrpc::error(Some(id), error.code, &error.message, error.data.as_ref()).get().to_owned()
    }
}

/// An MCP server that is reached over HTTP.
pub struct RemoteServer {
    url: Uri,
    token_file: Option<PathBuf>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Held for the long message that is in memory.
    long_message: Arc<Semaphore>,
}

impl RemoteServer {
    /// Checks the URL. `token_file` has the bearer token; it is read for each request, so it may be renewed.
    ///
    /// # Errors
    /// For a URL that is not `http(s)://HOST…`, and for a token that would be sent unencrypted or cannot be read.
    pub fn new(
        url: &str,
        token_file: Option<PathBuf>,
        tls: rustls::ClientConfig,
    ) -> Result<Self, RemoteServerError> {
        let uri = check_url(url, token_file.is_some())?;
        if let Some(path) = &token_file {
            read_token(path).map_err(|error| RemoteServerError::Token(error.to_string()))?;
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_keepalive(Some(KEEPALIVE_IDLE));
        connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        connector.set_keepalive_retries(Some(KEEPALIVE_PROBES));
        connector.set_nodelay(true);
        connector.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { url: uri, token_file, client, long_message: Arc::new(Semaphore::new(1)) })
    }

    /// The messages of a response; `last_event_id` is the last event of the stream that the response resumes.
    pub(super) fn messages(&self, response: Response<Incoming>, last_event_id: Option<String>) -> Messages {
        Messages::new(response, last_event_id, Arc::clone(&self.long_message))
    }

    /// Sends a request.
    ///
    /// # Errors
    /// [`ExchangeError`], also for a status that is not a success.
    pub(super) async fn send(
        &self,
        method: Method,
        mut headers: HeaderMap,
        body: Option<String>,
    ) -> Result<Response<Incoming>, ExchangeError> {
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        if body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(path) = &self.token_file {
            headers.insert(AUTHORIZATION, read_token(path)?);
        }
        let mut request = Request::new(Full::from(body.unwrap_or_default()));
        *request.method_mut() = method;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = headers;
        let sent = self.client.request(request).await;
        let response = sent.map_err(|error| {
            let url = self.url.to_string();
            match find_cause::<hyper::Error>(&error) {
                _ if error.is_connect() => ExchangeError::Unreachable { url, error },
                Some(cause) if cause.is_parse() => ExchangeError::NotHttp { url },
                Some(_) | None => ExchangeError::incomplete(&error),
            }
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = read_text(response.into_body(), MAX_REFUSAL_BYTES).await.unwrap_or_default();
        let token_file = self.token_file.clone();
        Err(ExchangeError::Refused { url: self.url.to_string(), status, text, token_file })
    }
}

fn check_url(url: &str, sends_token: bool) -> Result<Uri, RemoteServerError> {
    parse_server_url(url, sends_token).map_err(|error| match error {
        ServerUrlError::Invalid => RemoteServerError::InvalidUrl(url.to_owned()),
        ServerUrlError::Unencrypted => RemoteServerError::Unencrypted(url.to_owned()),
    })
}

fn read_token(path: &Path) -> Result<HeaderValue, ExchangeError> {
    read_bearer(path).map_err(|error| match error {
        BearerError::File(error) => ExchangeError::Token(error),
        BearerError::NotAToken => ExchangeError::TokenText(path.to_owned()),
    })
}

async fn read_text(body: Incoming, max_bytes: usize) -> Result<String, ExchangeError> {
    let read = Limited::new(body, max_bytes).collect().await;
    let bytes = read.map_err(|error| ExchangeError::Incomplete(error.to_string()))?.to_bytes();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A message of the server, on one line. While a long message is in memory, no other long message is read.
pub(super) struct Message {
    pub(super) text: String,
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// The messages of a response.
pub(super) struct Messages {
    source: Source,
    intake: Arc<Intake>,
    last_event_id: Option<String>,
}

enum Source {
    Json(Option<BodyStream>),
    Events(Box<SseByteStream<BodyStream>>),
}

/// The bytes of the message that is being read. Several long messages at a time would need a multiple of
/// [`MAX_MESSAGE_BYTES`], for as long as the host does not read them.
struct Intake {
    long_message: Arc<Semaphore>,
    reading: Mutex<(usize, Option<OwnedSemaphorePermit>)>,
}

impl Intake {
    async fn admit(&self, bytes: usize) -> std::io::Result<()> {
        let (total, is_admitted) = {
            let mut reading = self.reading.lock();
            reading.0 += bytes;
            (reading.0, reading.1.is_some())
        };
        if total > MAX_MESSAGE_BYTES {
            let message = format!("a message is longer than {MAX_MESSAGE_BYTES} bytes");
            return Err(std::io::Error::other(message));
        }
        if total > SMALL_MESSAGE_BYTES && !is_admitted {
            let permit = Arc::clone(&self.long_message).acquire_owned().await;
            self.reading.lock().1 = Some(permit.map_err(std::io::Error::other)?);
        }
        Ok(())
    }

    fn finish(&self, text: &str) -> Message {
        let (_bytes, permit) = std::mem::take(&mut *self.reading.lock());
        Message { text: join_lines(text), permit }
    }
}

impl Messages {
    fn new(
        response: Response<Incoming>,
        last_event_id: Option<String>,
        long_message: Arc<Semaphore>,
    ) -> Self {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_stream = kind.is_some_and(|kind| kind.to_ascii_lowercase().starts_with("text/event-stream"));
        let intake = Arc::new(Intake { long_message, reading: Mutex::default() });
        let admitting = Arc::clone(&intake);
        let body: BodyStream = Box::pin(BodyDataStream::new(response.into_body()).then(move |chunk| {
            let intake = Arc::clone(&admitting);
            async move {
                let chunk = chunk.map_err(std::io::Error::other)?;
                intake.admit(chunk.len()).await?;
                Ok(chunk)
            }
        }));
        let source = match is_stream {
            true => Source::Events(Box::new(SseByteStream::new(body))),
            false => Source::Json(Some(body)),
        };
        Self { source, intake, last_event_id }
    }

    /// The id of the last event, after which the stream can be resumed.
    pub(super) fn last_event_id(&self) -> Option<&str> {
        self.last_event_id.as_deref()
    }

    /// The next message; `None` at the end of the response.
    pub(super) async fn next(&mut self) -> Result<Option<Message>, ExchangeError> {
        match &mut self.source {
            Source::Json(body) => {
                let Some(mut body) = body.take() else { return Ok(None) };
                let mut bytes = Vec::new();
                while let Some(chunk) = body.next().await {
                    bytes.extend_from_slice(&chunk.map_err(|error| ExchangeError::incomplete(&error))?);
                }
                let text = String::from_utf8_lossy(&bytes);
                Ok(Some(text.trim()).filter(|text| !text.is_empty()).map(|text| self.intake.finish(text)))
            }
            Source::Events(events) => loop {
                let next = events.next().await;
                // The permit is also released after the last event: a stream that broke is resumed later, and others
                // are read meanwhile.
                let data = next.as_ref().and_then(|event| event.as_ref().ok()?.data.as_deref());
                let message = self.intake.finish(data.unwrap_or_default());
                let Some(event) = next else { return Ok(None) };
                let event = event.map_err(|error| ExchangeError::incomplete(&error))?;
                self.last_event_id = event.id.filter(|id| !id.is_empty()).or(self.last_event_id.take());
                let is_message =
                    event.event.as_deref().is_none_or(|kind| kind.is_empty() || kind == "message");
                if is_message && !message.text.trim().is_empty() {
                    return Ok(Some(message));
                }
            },
        }
    }
}

/// Puts JSON on one line: it has line ends only between tokens. Unicode's line separators, which some readers of lines
/// know, occur only in strings.
fn join_lines(text: &str) -> String {
    text.replace(['\n', '\r'], " ").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}
