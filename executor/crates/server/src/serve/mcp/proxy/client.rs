//! The HTTP client of the bridge: requests with the caller's token, and the messages of a response.

use a2g_govern::{FileError, read_secret};
use a2g_sandbox::egress::{TlsError, client_config};
use a2g_types::error_chain::ErrorChain;
use axum::body::Bytes;
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use axum::http::uri::Scheme;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use futures_util::{Stream, StreamExt as _};
use http_body_util::{BodyDataStream, BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Map, Value};
use sse_stream::SseByteStream;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The maximum size of a message of the server: a result of 16 MiB with its artifacts, twice encoded.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// The maximum part of a refusal's text that the host is told, in characters.
const MAX_REFUSAL_CHARS: usize = 500;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A server that vanishes is noticed after about a minute, although a tool may run for longer without a message.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// The reason why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ServerUrlError {
    /// The URL is not that of a server.
    #[error("`{0}` is not the URL of an MCP server: write `http://HOST:PORT/mcp`, or `https://`")]
    Invalid(String),
    /// The token would be readable on the network.
    #[error("a token is sent over `https://` only, unless the server is on this machine: change `{0}`")]
    Unencrypted(String),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The reason why a request to the server has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("the token: {0}")]
    Token(#[from] FileError),
    #[error("the token in `{0}` cannot be sent: it must be one line of visible ASCII")]
    TokenText(PathBuf),
    #[error("`{url}` cannot be reached: {}", ErrorChain(source))]
    Unreachable { url: String, source: hyper_util::client::legacy::Error },
    #[error("the connection to the server broke, so whether the request was carried out is unknown: {0}")]
    Broken(String),
    #[error("{}", refusal(*.status, .text))]
    Refused { status: StatusCode, text: String },
}

fn refusal(status: StatusCode, text: &str) -> String {
    let text = text.trim();
    let advice = match status {
        StatusCode::UNAUTHORIZED => ": `--token-file` names the file with the token",
        _other => "",
    };
    let colon = if text.is_empty() { "" } else { ": " };
    let text = text.chars().take(MAX_REFUSAL_CHARS).collect::<String>();
    format!("the server answered HTTP {status}{colon}{text}{advice}")
}

impl ExchangeError {
    /// The status of a refusal.
    pub(super) fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Token(_) | Self::TokenText(_) | Self::Unreachable { .. } | Self::Broken(_) => None,
        }
    }

    /// The JSON-RPC error of a refusal that has one.
    pub(super) fn rpc_error(&self) -> Option<Map<String, Value>> {
        let Self::Refused { text, .. } = self else { return None };
        let message = serde_json::from_str::<Map<String, Value>>(text).ok()?;
        message.contains_key("error").then_some(message)
    }
}

/// An MCP server that is reached over HTTP.
pub struct RemoteServer {
    url: Uri,
    token_file: Option<PathBuf>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl RemoteServer {
    /// Checks the URL. `token_file` has the bearer token; it is read for each request, so it may be renewed. `ca_file`
    /// has certificates to accept besides the machine's.
    ///
    /// # Errors
    /// [`ServerUrlError`].
    pub fn new(
        url: &str,
        token_file: Option<PathBuf>,
        ca_file: Option<&Path>,
    ) -> Result<Self, ServerUrlError> {
        let invalid = || ServerUrlError::Invalid(url.to_owned());
        let uri = url.parse::<Uri>().map_err(|_error| invalid())?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let host = authority.ok_or_else(invalid)?.host().to_owned();
        let is_encrypted = uri.scheme() == Some(&Scheme::HTTPS);
        if !is_encrypted && uri.scheme() != Some(&Scheme::HTTP) {
            return Err(invalid());
        }
        if token_file.is_some() && !is_encrypted && !is_loopback(&host) {
            return Err(ServerUrlError::Unencrypted(url.to_owned()));
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_keepalive(Some(TCP_KEEPALIVE));
        connector.set_nodelay(true);
        connector.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(client_config(ca_file)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        Ok(Self { url: uri, token_file, client: Client::builder(TokioExecutor::new()).build(connector) })
    }

    /// Sends a request and returns its response, which is a success.
    pub(super) async fn send(
        &self,
        method: Method,
        mut headers: HeaderMap,
        body: String,
    ) -> Result<Response<Incoming>, ExchangeError> {
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(path) = &self.token_file {
            headers.insert(AUTHORIZATION, bearer(path)?);
        }
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = headers;
        let sent = self.client.request(request).await;
        let response =
            sent.map_err(|source| ExchangeError::Unreachable { url: self.url.to_string(), source })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = read_text(response.into_body()).await.unwrap_or_default();
        Err(ExchangeError::Refused { status, text })
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn bearer(path: &Path) -> Result<HeaderValue, ExchangeError> {
    let token = read_secret(path)?;
    let header = [b"Bearer ", token.trim_ascii()].concat();
    let mut value = HeaderValue::from_bytes(&header)
        .ok()
        .filter(|value| value.to_str().is_ok())
        .ok_or_else(|| ExchangeError::TokenText(path.to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

async fn read_text(body: Incoming) -> Result<String, ExchangeError> {
    let read = Limited::new(body, MAX_MESSAGE_BYTES).collect().await;
    let bytes = read.map_err(|error| ExchangeError::Broken(error.to_string()))?.to_bytes();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

type ResponseData = Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>;

/// The messages of a response, each on one line.
pub(super) struct Messages {
    source: Source,
    last_event: Option<String>,
}

enum Source {
    Body(Option<Incoming>),
    Events {
        events: Box<SseByteStream<ResponseData>>,
        /// The bytes since the last event.
        unfinished: Arc<AtomicUsize>,
    },
}

impl Messages {
    pub(super) fn of(response: Response<Incoming>) -> Self {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let body = response.into_body();
        let source = if is_stream {
            let unfinished = Arc::new(AtomicUsize::new(0));
            let events = Box::new(SseByteStream::new(bounded_data(body, Arc::clone(&unfinished))));
            Source::Events { events, unfinished }
        } else {
            Source::Body(Some(body))
        };
        Self { source, last_event: None }
    }

    /// The id of the last event, after which the stream can be resumed.
    pub(super) fn last_event(&self) -> Option<&str> {
        self.last_event.as_deref()
    }

    /// The next message; `None` at the end of the response.
    pub(super) async fn next(&mut self) -> Result<Option<String>, ExchangeError> {
        match &mut self.source {
            Source::Body(body) => {
                let Some(body) = body.take() else { return Ok(None) };
                let text = read_text(body).await?;
                Ok(Some(text.trim()).filter(|text| !text.is_empty()).map(one_line))
            }
            Source::Events { events, unfinished } => loop {
                let Some(event) = events.next().await else { return Ok(None) };
                let event = event.map_err(|error| ExchangeError::Broken(error.to_string()))?;
                unfinished.store(0, Ordering::Relaxed);
                self.last_event = event.id.filter(|id| !id.is_empty()).or(self.last_event.take());
                if let Some(data) = event.data.filter(|data| !data.trim().is_empty()) {
                    return Ok(Some(one_line(&data)));
                }
            },
        }
    }
}

/// The data of a response, until an event is longer than allowed.
fn bounded_data(body: Incoming, unfinished: Arc<AtomicUsize>) -> ResponseData {
    Box::pin(BodyDataStream::new(body).map(move |chunk| {
        let chunk = chunk.map_err(std::io::Error::other)?;
        if unfinished.fetch_add(chunk.len(), Ordering::Relaxed) > MAX_MESSAGE_BYTES {
            return Err(std::io::Error::other(format!("an event is longer than {MAX_MESSAGE_BYTES} bytes")));
        }
        Ok(chunk)
    }))
}

/// JSON has line ends between its tokens only.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}
