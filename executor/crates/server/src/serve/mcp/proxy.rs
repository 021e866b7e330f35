//! `mcp --connect`: passes the messages of a host on standard input and output to a server over HTTP, and back.
//!
//! ```text
//! host ─ standard input ──▶ POST /mcp ─▶ server
//!      ◀ standard output ── its answer: JSON, or events
//!      ◀─────────────────── GET /mcp: the messages of a session that belong to no request
//! ```
//! Messages are passed on unchanged. The bridge adds what only HTTP has: the token, the headers that repeat parts of a
//! message, and the session. A stream that breaks is resumed, and a session that the server has lost is opened again.

mod client;

pub use client::{RemoteServer, ServerUrlError};

use super::http::{LAST_EVENT_HEADER, SESSION_HEADER};
use super::requests::{OpenRequest, OpenRequests};
use super::stdio::{MAX_UNREAD_MESSAGES, write};
use super::until_true;
use crate::serve::transport::lines::{InputLine, open_stdin, read_line};
use a2g_runtime::spawn::SessionTasks;
use a2g_wire::jsonrpc::{self, Id};
use a2g_wire::mcp::Revision;
use a2g_wire::mcp::decode::{
    self, ClientMessage, ClientNotification, ClientRequest, McpDecodeError, McpRequest,
};
use a2g_wire::mcp::fault::McpError;
use a2g_wire::mcp::headers;
use a2g_wire::strict_json::{self, JsonBounds};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use client::{ExchangeError, Messages};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Attempts to resume a stream whose answer has not arrived.
const MAX_RESUMES: u32 = 5;
const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(30);
/// The JSON-RPC error of a request that the server did not answer.
const INTERNAL_ERROR: i64 = -32603;

struct Bridge {
    server: Arc<RemoteServer>,
    session: Mutex<Option<Session>>,
    /// Held while a lost session is opened again, so that it is opened once.
    reopening: tokio::sync::Mutex<()>,
    /// The schemas with arguments that a header repeats, by tool, from the lists that the host has asked for.
    annotated_tools: Mutex<HashMap<String, Value>>,
    requests: Arc<OpenRequests>,
    tasks: SessionTasks,
    output: mpsc::Sender<String>,
    /// `true` once standard input has ended.
    has_ended: watch::Sender<bool>,
}

/// A session of 2025-11-25, with the messages that opened it.
#[derive(Clone, Default)]
struct Session {
    id: Option<HeaderValue>,
    version: Option<HeaderValue>,
    initialize: String,
    initialized: Option<String>,
}

/// A request that is passed on.
struct Request {
    id: Id,
    method: String,
    text: String,
    revision: Revision,
    /// The headers that repeat parts of the message.
    headers: HeaderMap,
}

/// The parts of a server's message that say what it is.
#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(default)]
    id: Value,
    #[serde(default)]
    method: Option<IgnoredAny>,
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
}

/// Exchanges messages until standard input ends and every request is answered.
///
/// # Errors
/// If standard input cannot be read or standard output is closed.
pub async fn bridge_mcp(server: RemoteServer) -> std::io::Result<()> {
    let input = open_stdin()?;
    let (output, lines) = mpsc::channel(MAX_UNREAD_MESSAGES);
    let bridge = Arc::new(Bridge {
        server: Arc::new(server),
        session: Mutex::default(),
        reopening: tokio::sync::Mutex::default(),
        annotated_tools: Mutex::default(),
        requests: Arc::default(),
        tasks: SessionTasks::default(),
        output,
        has_ended: watch::Sender::new(false),
    });
    let (server, last_session) = (Arc::clone(&bridge.server), watch::Sender::new(None));
    let reading = async {
        let read = bridge.read(input).await;
        bridge.has_ended.send_replace(true);
        last_session.send_replace(bridge.session.lock().clone());
        // The writer ends with the last sender.
        drop(bridge);
        read
    };
    let (read, written) = tokio::join!(reading, write(lines));
    if let Some(session) = last_session.borrow().clone().filter(|session| session.id.is_some()) {
        // A session that is not ended here ends by itself.
        let _ended = server.send(Method::DELETE, session.headers(), String::new()).await;
    }
    read.and(written)
}

impl Session {
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.extend(self.id.clone().map(|id| (SESSION_HEADER, id)));
        let version = HeaderName::from_static(headers::PROTOCOL_VERSION);
        headers.extend(self.version.clone().map(|value| (version, value)));
        headers
    }
}

impl Bridge {
    async fn read(self: &Arc<Self>, mut input: impl tokio::io::AsyncBufRead + Unpin) -> std::io::Result<()> {
        // The server has bounds of its own.
        let bounds = JsonBounds { max_bytes: 64 << 20, max_tree_bytes: usize::MAX, ..JsonBounds::default() };
        loop {
            let line = tokio::select! {
                line = read_line(&mut input, bounds.max_bytes) => line?,
                () = self.output.closed() => return Err(std::io::ErrorKind::BrokenPipe.into()),
            };
            match line {
                InputLine::End => return Ok(()),
                InputLine::TooLong => {
                    self.write(McpError::from(bounds.too_long_fault()).response(None)).await;
                }
                InputLine::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => {}
                InputLine::Whole(line) => self.receive(&line, &bounds).await,
            }
        }
    }

    async fn write(&self, message: String) {
        // A reader that is gone ends the conversation at the next line.
        let _unread = self.output.send(message).await;
    }

    async fn receive(self: &Arc<Self>, line: &[u8], bounds: &JsonBounds) {
        let text = match strict_json::check(line, bounds) {
            Ok(text) => text,
            Err(fault) => return self.write(McpError::from(fault).response(None)).await,
        };
        match decode::message(text) {
            Ok(ClientMessage::Request(request)) => self.begin(&request, text).await,
            Ok(ClientMessage::Notification(notification)) => {
                if let ClientNotification::Initialized = notification
                    && let Some(session) = self.session.lock().as_mut()
                {
                    session.initialized = Some(text.to_owned());
                }
                let is_session = self.session.lock().is_some();
                if is_session {
                    self.post(text.to_owned()).await;
                }
                match notification {
                    // In 2026-07-28, closing the response cancels the request.
                    ClientNotification::Cancelled(id) => self.requests.cancel(&id),
                    ClientNotification::Initialized => {
                        self.tasks.spawn(Arc::clone(self).listen());
                    }
                    ClientNotification::Other => {}
                }
            }
            Ok(ClientMessage::Answer { .. }) => self.post(text.to_owned()).await,
            Err(McpDecodeError { id, error }) => self.write(error.response(id.as_ref())).await,
        }
    }

    /// Sends a message of the session that has no answer.
    async fn post(&self, text: String) {
        let headers = self.session.lock().as_ref().map(Session::headers).unwrap_or_default();
        if let Err(error) = self.server.send(Method::POST, headers, text).await {
            tracing::warn!("a message of the host is not delivered: {error}");
        }
    }

    async fn begin(self: &Arc<Self>, request: &ClientRequest<'_>, text: &str) {
        let open = match self.requests.begin(&request.id) {
            Ok(open) => open,
            Err(fault) => return self.write(McpError::from(fault).response(Some(&request.id))).await,
        };
        let revision = if request.meta.version.is_some() { Revision::Stateless } else { Revision::Session };
        if request.method == "initialize" {
            let initialize = text.to_owned();
            *self.session.lock() = Some(Session { initialize, ..Session::default() });
        }
        let request = Request {
            id: request.id.clone(),
            method: request.method.clone(),
            text: text.to_owned(),
            revision,
            headers: self.headers(request, revision),
        };
        self.tasks.spawn(Arc::clone(self).answer(request, open));
    }

    /// The headers that repeat parts of a request of 2026-07-28.
    fn headers(&self, request: &ClientRequest<'_>, revision: Revision) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if revision == Revision::Session {
            return headers;
        }
        let mut values = headers::of_request(request);
        if let Ok(McpRequest::CallTool(call)) = request.decode(revision)
            && let Some(schema) = self.annotated_tools.lock().get(&call.tool)
        {
            values.extend(headers::of_arguments(schema, &call.arguments));
        }
        for (name, value) in values {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
        headers
    }

    /// Passes a request and its answer on. Dropping it closes the response.
    async fn answer(self: Arc<Self>, request: Request, open: OpenRequest) {
        let mut has_ended = self.has_ended.subscribe();
        let is_subscription = request.method == "subscriptions/listen";
        let exchange = async {
            tokio::select! {
                exchanged = self.exchange(&request) => exchanged,
                () = until_true(&mut has_ended), if is_subscription => Ok(()),
            }
        };
        // A cancelled request has no answer.
        if let Some(Err(error)) = open.run(exchange).await {
            let answer = match error.rpc_error() {
                Some(mut message) => {
                    let id = serde_json::from_str(request.id.as_json()).unwrap_or_default();
                    message.insert("id".to_owned(), id);
                    Value::Object(message).to_string()
                }
                None => {
                    let message = error.to_string();
                    jsonrpc::error(Some(&request.id), INTERNAL_ERROR, &message, None).get().to_owned()
                }
            };
            self.write(answer).await;
        }
    }

    async fn exchange(&self, request: &Request) -> Result<(), ExchangeError> {
        let mut messages = match self.send(request).await {
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) && self.reopen(request).await? => {
                self.send(request).await?
            }
            sent => sent?,
        };
        let mut resumes = 0;
        loop {
            let broken = match messages.next().await {
                Ok(Some(text)) => {
                    let is_answer = self.inspect(request, &text);
                    self.write(text).await;
                    if is_answer {
                        return Ok(());
                    }
                    continue;
                }
                Ok(None) => ExchangeError::Broken("the response ended before the answer".to_owned()),
                Err(error) => error,
            };
            let Some(last_event) = messages.last_event().filter(|_| resumes < MAX_RESUMES) else {
                return Err(broken);
            };
            resumes += 1;
            tokio::time::sleep(MIN_DELAY * resumes).await;
            match self.get(Some(last_event)).await {
                Ok(resumed) => messages = resumed,
                Err(error @ ExchangeError::Refused { .. }) => return Err(error),
                // It is tried again: `messages` has ended, and keeps its last event.
                Err(_unreachable) => {}
            }
        }
    }

    async fn send(&self, request: &Request) -> Result<Messages, ExchangeError> {
        let mut headers = request.headers.clone();
        let is_initialize = request.method == "initialize";
        if request.revision == Revision::Session && !is_initialize {
            headers.extend(self.session.lock().as_ref().map(Session::headers).unwrap_or_default());
        }
        let response = self.server.send(Method::POST, headers, request.text.clone()).await?;
        if is_initialize && let Some(session) = self.session.lock().as_mut() {
            session.id = response.headers().get(SESSION_HEADER).cloned();
        }
        Ok(Messages::of(response))
    }

    /// Messages of the session: those that belong to no request, or those after an event of a stream that broke.
    async fn get(&self, last_event: Option<&str>) -> Result<Messages, ExchangeError> {
        let mut headers = self.session.lock().as_ref().map(Session::headers).unwrap_or_default();
        if let Some(Ok(last)) = last_event.map(HeaderValue::from_str) {
            headers.insert(LAST_EVENT_HEADER, last);
        }
        self.server.send(Method::GET, headers, String::new()).await.map(Messages::of)
    }

    /// Remembers what later requests need of a message. Returns `true` if it is the answer to the request.
    fn inspect(&self, request: &Request, text: &str) -> bool {
        let Ok(Frame { id, method: None, result }) = serde_json::from_str::<Frame<'_>>(text) else {
            return false;
        };
        let is_answer = serde_json::from_str::<Value>(request.id.as_json()).is_ok_and(|sent| sent == id);
        if is_answer && let Some(result) = result {
            match request.method.as_str() {
                "initialize" => self.remember_version(result),
                "tools/list" => self.remember_tools(result),
                _other => {}
            }
        }
        is_answer
    }

    fn remember_version(&self, result: &RawValue) {
        let version = serde_json::from_str::<Value>(result.get()).ok();
        let version = version.as_ref().and_then(|result| result.get("protocolVersion")?.as_str());
        if let Some(session) = self.session.lock().as_mut() {
            session.version = version.and_then(|version| HeaderValue::from_str(version).ok());
        }
    }

    fn remember_tools(&self, result: &RawValue) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Tool {
            name: String,
            input_schema: Value,
        }
        #[derive(Deserialize)]
        struct Page {
            tools: Vec<Tool>,
        }
        let page = serde_json::from_str::<Page>(result.get());
        let mut annotated = self.annotated_tools.lock();
        for Tool { name, input_schema } in page.into_iter().flat_map(|page| page.tools) {
            if headers::has_annotations(&input_schema) {
                annotated.insert(name, input_schema);
            } else {
                annotated.remove(&name);
            }
        }
    }

    /// Opens the session again that a request was refused for. Returns `false` for a request that belongs to none.
    async fn reopen(&self, refused: &Request) -> Result<bool, ExchangeError> {
        if refused.revision == Revision::Stateless || refused.method == "initialize" {
            return Ok(false);
        }
        let lost = self.session.lock().as_ref().and_then(|session| session.id.clone());
        let Some(lost) = lost else { return Ok(false) };
        self.reopen_session(&lost).await.map(|()| true)
    }

    async fn reopen_session(&self, lost: &HeaderValue) -> Result<(), ExchangeError> {
        let _guard = self.reopening.lock().await;
        let session = self.session.lock().clone().unwrap_or_default();
        if session.id.as_ref() != Some(lost) {
            return Ok(());
        }
        tracing::info!("the server has lost the session: opening another");
        let response = self.server.send(Method::POST, HeaderMap::new(), session.initialize).await?;
        let id = response.headers().get(SESSION_HEADER).cloned();
        // The host has the answer to the first one.
        let _answer = Messages::of(response).next().await?;
        if let Some(session) = self.session.lock().as_mut() {
            session.id = id;
        }
        if let Some(initialized) = session.initialized {
            self.post(initialized).await;
        }
        Ok(())
    }

    /// Passes the session's messages on that belong to no request, until standard input ends.
    async fn listen(self: Arc<Self>) {
        let mut has_ended = self.has_ended.subscribe();
        tokio::select! {
            () = self.pass_session_messages() => {}
            () = until_true(&mut has_ended) => {}
        }
    }

    async fn pass_session_messages(&self) {
        let mut delay = MIN_DELAY;
        loop {
            let session = self.session.lock().as_ref().and_then(|session| session.id.clone());
            let Some(session) = session else { return };
            match self.get(None).await {
                Ok(mut messages) => {
                    delay = MIN_DELAY;
                    while let Ok(Some(text)) = messages.next().await {
                        self.write(text).await;
                    }
                }
                Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => {
                    if let Err(error) = self.reopen_session(&session).await {
                        tracing::warn!("the session cannot be opened again: {error}");
                    }
                }
                // The server has no such stream.
                Err(error) if error.status() == Some(StatusCode::METHOD_NOT_ALLOWED) => return,
                Err(error) => tracing::debug!("the session's messages cannot be read: {error}"),
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(MAX_DELAY);
        }
    }
}
