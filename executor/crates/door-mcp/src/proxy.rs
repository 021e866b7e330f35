//! `mcp --connect`: forwards the messages of a host on standard input to a server over HTTP, and its answers back.
//!
//! ```text
//! host ─ standard input ──▶ POST /mcp ─▶ server
//!      ◀ standard output ── its answer: JSON, or events
//!      ◀─────────────────── GET /mcp: the messages of a session that belong to no request
//! ```
//! The proxy adds what only HTTP has: the token, the headers that repeat parts of a message, and the session. A stream
//! that breaks is resumed, and a session that the server has lost is opened again.

mod client;

pub use client::{RemoteServer, RemoteServerError};

use super::http::{LAST_EVENT_HEADER, SESSION_HEADER};
use super::requests::{OpenRequest, OpenRequests};
use super::stdio::MAX_UNREAD_MESSAGES;
use super::until_true;
use a2g_http::transport::lines::{InputLine, open_stdin, open_stdout, read_line, write_line};
use a2g_runtime::spawn::SessionTasks;
use a2g_wire::jsonrpc::Id;
use a2g_wire::mcp::Revision;
use a2g_wire::mcp::decode::{
    self, ClientMessage, ClientNotification, ClientRequest, McpDecodeError, McpRequest,
};
use a2g_wire::mcp::fault::McpError;
use a2g_wire::mcp::headers;
use a2g_wire::strict_json::{self, JsonBounds};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use client::{ExchangeError, MAX_MESSAGE_BYTES, Message, Messages};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};

/// Timeout of a message that has no answer, and of opening and ending a session.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum time to tell the server that the host has gone. A host waits for the end of its child and kills it soon,
/// so this and the next one together are less than a second.
const END_TIMEOUT: Duration = Duration::from_millis(700);
/// The maximum time for the tasks to end after that.
const TASKS_END_TIMEOUT: Duration = Duration::from_millis(200);
/// The maximum length of a list of tools whose schemas are kept, in bytes.
const MAX_SCHEMAS_BYTES: usize = 4 << 20;
/// The maximum length of an id that is compared by value, in bytes: an id of [`Id::MAX_BYTES`] with every byte escaped.
const MAX_ID_BYTES: usize = 6 * Id::MAX_BYTES;
/// The maximum estimated size of a parsed message from the host, in bytes.
const MAX_TREE_BYTES: usize = 256 << 20;
/// The maximum number of attempts to resume a stream whose answer has not arrived.
const MAX_RESUMES: u32 = 5;
/// The delay before a stream is opened again; it doubles with each attempt.
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

struct Proxy {
    server: Arc<RemoteServer>,
    session: Mutex<Option<Session>>,
    /// Held while a lost session is opened again, so that only one task opens it.
    reopening: tokio::sync::Mutex<()>,
    /// The input schemas with `x-mcp-header`, by tool name, from the `tools/list` results so far.
    annotated_schemas: Mutex<HashMap<String, Value>>,
    requests: Arc<OpenRequests>,
    tasks: SessionTasks,
    output: mpsc::Sender<Message>,
    input_has_ended: watch::Sender<bool>,
}

/// A session under the MCP revision 2025-11-25.
#[derive(Clone, Default)]
struct Session {
    /// `None` until the server has answered `initialize`, and for a server without session ids.
    id: Option<HeaderValue>,
    /// The negotiated revision.
    version: Option<HeaderValue>,
    initialize_message: Arc<str>,
    initialized_message: Option<String>,
    /// The latest `logging/setLevel` that the server has carried out.
    level_message: Option<String>,
}

/// A request of the host, with the headers that repeat parts of it.
struct ForwardedRequest {
    id: Id,
    method: String,
    text: String,
    revision: Revision,
    mirrored: HeaderMap,
    /// The session that this `initialize` replaces.
    replaced: Option<Session>,
}

/// The members that distinguish an answer from a request or a notification.
#[derive(Deserialize)]
struct PeerMessage<'a> {
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: Option<IgnoredAny>,
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

/// Forwards messages until standard input ends; then cancels the requests that are not answered, and ends the session.
///
/// # Errors
/// If standard input cannot be read or standard output is closed.
pub async fn proxy_mcp_stdio(server: RemoteServer) -> std::io::Result<()> {
    let input = open_stdin()?;
    let (output, lines) = mpsc::channel(MAX_UNREAD_MESSAGES);
    let server = Arc::new(server);
    let proxy = Arc::new(Proxy {
        server: Arc::clone(&server),
        session: Mutex::default(),
        reopening: tokio::sync::Mutex::default(),
        annotated_schemas: Mutex::default(),
        requests: Arc::default(),
        tasks: SessionTasks::default(),
        output,
        input_has_ended: watch::Sender::new(false),
    });
    let reading = async {
        let read = proxy.read(input).await;
        proxy.input_has_ended.send_replace(true);
        let headers = proxy.session_headers();
        let tasks = proxy.tasks.clone();
        // The writer ends with the last sender.
        drop(proxy);
        if headers.contains_key(SESSION_HEADER) {
            // The DELETE cancels the session's calls. If it fails, the server ends the session when the session has
            // become idle.
            let _ended = tokio::time::timeout(END_TIMEOUT, server.send(Method::DELETE, headers, None)).await;
        }
        tasks.finish(TASKS_END_TIMEOUT).await;
        read
    };
    let (read, written) = tokio::join!(reading, write_lines(lines));
    read.and(written)
}

/// Writes messages until every sender is gone.
async fn write_lines(mut lines: mpsc::Receiver<Message>) -> std::io::Result<()> {
    let mut output = open_stdout()?;
    while let Some(Message { text, permit }) = lines.recv().await {
        write_line(&mut output, text).await?;
        drop(permit);
    }
    Ok(())
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

impl Proxy {
    async fn read(self: &Arc<Self>, mut input: impl tokio::io::AsyncBufRead + Unpin) -> std::io::Result<()> {
        // Generous: the server applies its own bounds.
        let bounds = JsonBounds {
            max_bytes: MAX_MESSAGE_BYTES,
            max_tree_bytes: MAX_TREE_BYTES,
            ..JsonBounds::default()
        };
        loop {
            let line = tokio::select! {
                line = read_line(&mut input, bounds.max_bytes) => line?,
                () = self.output.closed() => return Err(std::io::ErrorKind::BrokenPipe.into()),
            };
            match line {
                InputLine::End => return Ok(()),
                InputLine::TooLong => {
                    self.write_to_host(McpError::from(bounds.too_long_fault()).response(None)).await;
                }
                InputLine::Whole(line) => self.receive(&line, &bounds).await,
            }
        }
    }

    async fn write_to_host(&self, text: String) {
        self.forward_to_host(Message { text, permit: None }).await;
    }

    async fn forward_to_host(&self, message: Message) {
        // If the host no longer reads, `read` ends at the next line.
        let _unread = self.output.send(message).await;
    }

    async fn receive(self: &Arc<Self>, line: &[u8], bounds: &JsonBounds) {
        let text = match strict_json::check(line, bounds) {
            Ok(text) => text,
            Err(fault) => return self.write_to_host(McpError::from(fault).response(None)).await,
        };
        match decode::message(text) {
            Ok(ClientMessage::Request(request)) => self.begin(&request, text).await,
            Ok(ClientMessage::Notification(notification)) => self.forward_notification(notification, text),
            Ok(ClientMessage::Answer { .. }) => self.spawn_post(text.to_owned()),
            // `decode::message` recognises only answers to requests that the executor can send. Another server may send
            // others.
            Err(_) if parse(text).is_ok_and(|message| message.is_answer()) => {
                self.spawn_post(text.to_owned())
            }
            Err(McpDecodeError { id, error }) => self.write_to_host(error.response(id.as_ref())).await,
        }
    }

    /// Forwards a notification under the revision 2025-11-25. The revision 2026-07-28 has none over HTTP: closing the
    /// response cancels a request.
    fn forward_notification(self: &Arc<Self>, notification: ClientNotification, text: &str) {
        match notification {
            // The task of the request tells the server, because the request has to arrive first.
            ClientNotification::Cancelled(id) => self.requests.cancel(&id),
            ClientNotification::Initialized => {
                let is_first =
                    self.session.lock().as_mut().is_some_and(|session| {
                        session.initialized_message.replace(text.to_owned()).is_none()
                    });
                if is_first {
                    self.spawn_post(text.to_owned());
                    self.tasks.spawn(Arc::clone(self).follow_session_stream());
                }
            }
            ClientNotification::Other => {
                let has_session = self.session.lock().is_some();
                if has_session {
                    self.spawn_post(text.to_owned());
                }
            }
        }
    }

    fn spawn_post(self: &Arc<Self>, text: String) {
        let proxy = Arc::clone(self);
        self.tasks.spawn(async move { proxy.post_unanswered(text).await });
    }

    /// Sends a message of the session that has no answer.
    async fn post_unanswered(&self, text: String) {
        let sent = self.server.send(Method::POST, self.session_headers(), Some(text));
        match tokio::time::timeout(SEND_TIMEOUT, sent).await {
            Ok(Ok(_accepted)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "a message of the host was not delivered"),
            Err(_elapsed) => tracing::warn!("the server did not accept a message of the host in time"),
        }
    }

    async fn begin(self: &Arc<Self>, request: &ClientRequest<'_>, text: &str) {
        let open = match self.requests.begin(&request.id) {
            Ok(open) => open,
            Err(fault) => {
                return self.write_to_host(McpError::from(fault).response(Some(&request.id))).await;
            }
        };
        let revision = if request.meta.version.is_some() { Revision::Stateless } else { Revision::Session };
        let replaced = if request.method == "initialize" {
            let session = Session { initialize_message: text.into(), ..Session::default() };
            self.session.lock().replace(session)
        } else {
            None
        };
        let mirrored = match revision {
            Revision::Stateless => self.mirror(request),
            Revision::Session => HeaderMap::new(),
        };
        let request = ForwardedRequest {
            id: request.id.clone(),
            method: request.method.clone(),
            text: text.to_owned(),
            revision,
            mirrored,
            replaced,
        };
        self.tasks.spawn(Arc::clone(self).answer(request, open));
    }

    /// The headers that repeat parts of a request under the revision 2026-07-28.
    fn mirror(&self, request: &ClientRequest<'_>) -> HeaderMap {
        let mut values = headers::mirror_request(request);
        if let Ok(McpRequest::CallTool(call)) = request.decode(Revision::Stateless)
            && let Some(schema) = self.annotated_schemas.lock().get(&call.tool)
        {
            values.extend(headers::mirror_arguments(schema, &call.arguments));
        }
        // A header that cannot be sent is left out; the server then refuses the request.
        let sendable = values.into_iter().filter_map(|(name, value)| {
            Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
        });
        sendable.collect()
    }

    fn session_headers(&self) -> HeaderMap {
        self.session.lock().as_ref().map(Session::headers).unwrap_or_default()
    }

    fn request_headers(&self, request: &ForwardedRequest) -> HeaderMap {
        if request.revision == Revision::Stateless || request.method == "initialize" {
            return request.mirrored.clone();
        }
        self.session_headers()
    }

    /// Forwards a request and writes its answer. Dropping the future closes the response.
    async fn answer(self: Arc<Self>, request: ForwardedRequest, open: OpenRequest) {
        let mut input_has_ended = self.input_has_ended.subscribe();
        let arrived = Notify::new();
        let exchange = self.exchange(&request, &arrived);
        tokio::pin!(exchange);
        tokio::select! {
            exchanged = &mut exchange => {
                if let Err(error) = exchanged {
                    self.write_to_host(error.response(&request.id)).await;
                }
            }
            // In a session, the end of the session cancels the request. Without a session id, the request is cancelled
            // here.
            () = until_true(&mut input_has_ended) => {
                let headers = self.request_headers(&request);
                let is_in_session = headers.contains_key(SESSION_HEADER);
                if request.revision == Revision::Session && request.method != "initialize" && !is_in_session {
                    self.post_unanswered(cancellation(&request.id)).await;
                }
            }
            // A cancelled request has no answer.
            () = open.cancelled() => {
                if request.revision == Revision::Session {
                    tokio::select! {
                        _exchanged = &mut exchange => return,
                        () = arrived.notified() => {}
                        () = tokio::time::sleep(SEND_TIMEOUT) => {}
                    }
                    self.post_unanswered(cancellation(&request.id)).await;
                }
            }
        }
    }

    /// Sends a request, and forwards the messages of its response up to the answer. `arrived` is notified once the
    /// server has the request.
    async fn exchange(&self, request: &ForwardedRequest, arrived: &Notify) -> Result<(), ExchangeError> {
        let (mut messages, session) = self.send_or_reopen(request).await?;
        arrived.notify_one();
        if let Some(headers) = request.replaced.as_ref().map(Session::headers)
            && headers.contains_key(SESSION_HEADER)
        {
            let server = Arc::clone(&self.server);
            self.tasks.spawn(async move {
                // If the DELETE fails, the server ends the old session when that session has become idle.
                let _ended =
                    tokio::time::timeout(SEND_TIMEOUT, server.send(Method::DELETE, headers, None)).await;
            });
        }
        let mut resumes = 0;
        let mut delay = FIRST_RETRY_DELAY;
        loop {
            let Err(broken) = self.forward_until_answer(request, &mut messages).await else { return Ok(()) };
            let is_resumable = matches!(broken, ExchangeError::Incomplete(_)) && resumes < MAX_RESUMES;
            let Some(last_event_id) = messages.last_event_id().filter(|_| is_resumable) else {
                return Err(broken);
            };
            resumes += 1;
            tokio::time::sleep(delay).await;
            delay *= 2;
            // Resumed in the session of the request: another session has different events with the same ids.
            match self.open_stream(session.clone(), Some(last_event_id)).await {
                Ok(resumed) => messages = resumed,
                // `messages` has ended, and keeps its last event for the next attempt.
                Err(ExchangeError::Unreachable { .. } | ExchangeError::Incomplete(_)) => {}
                Err(_refused) => return Err(broken),
            }
        }
    }

    /// Sends a request. If the server has lost the session, opens it again and sends the request once more. Also
    /// returns the headers of the request that the server accepted.
    async fn send_or_reopen(
        &self,
        request: &ForwardedRequest,
    ) -> Result<(Messages, HeaderMap), ExchangeError> {
        let headers = self.request_headers(request);
        match (self.post_request(request, headers.clone()).await, headers.get(SESSION_HEADER)) {
            (Err(error), Some(lost)) if error.status() == Some(StatusCode::NOT_FOUND) => {
                self.reopen_session(lost).await?;
                let headers = self.request_headers(request);
                Ok((self.post_request(request, headers.clone()).await?, headers))
            }
            (sent, _) => Ok((sent?, headers)),
        }
    }

    async fn post_request(
        &self,
        request: &ForwardedRequest,
        headers: HeaderMap,
    ) -> Result<Messages, ExchangeError> {
        let response = self.server.send(Method::POST, headers, Some(request.text.clone())).await?;
        if request.method == "initialize"
            && let Some(session) = self.session.lock().as_mut()
        {
            session.id = response.headers().get(SESSION_HEADER).cloned();
        }
        Ok(self.server.messages(response, None))
    }

    /// Opens the stream of the session that the headers name, or resumes the stream that ended after this event.
    async fn open_stream(
        &self,
        mut headers: HeaderMap,
        last_event_id: Option<&str>,
    ) -> Result<Messages, ExchangeError> {
        if let Some(Ok(last)) = last_event_id.map(HeaderValue::from_str) {
            headers.insert(LAST_EVENT_HEADER, last);
        }
        let response = self.server.send(Method::GET, headers, None).await?;
        Ok(self.server.messages(response, last_event_id.map(str::to_owned)))
    }

    async fn forward_until_answer(
        &self,
        request: &ForwardedRequest,
        messages: &mut Messages,
    ) -> Result<(), ExchangeError> {
        while let Some(received) = messages.next().await? {
            let message = parse(&received.text)?;
            if message.method.is_some() {
                self.forward_to_host(received).await;
                continue;
            }
            if !message.id.is_some_and(|id| is_same_id(id.get(), request.id.as_json())) {
                tracing::debug!("the server sent an answer to another request");
                continue;
            }
            if let Some(result) = message.result {
                self.remember(request, result);
            }
            self.forward_to_host(received).await;
            return Ok(());
        }
        Err(ExchangeError::Incomplete("it has no answer".to_owned()))
    }

    /// Remembers the parts of a result that later requests need.
    fn remember(&self, request: &ForwardedRequest, result: &RawValue) {
        match &*request.method {
            "initialize" => self.remember_version(result),
            "logging/setLevel" => {
                if let Some(session) = self.session.lock().as_mut() {
                    session.level_message = Some(request.text.clone());
                }
            }
            "tools/list" => self.remember_schemas(result),
            _other => {}
        }
    }

    fn remember_version(&self, result: &RawValue) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Initialized {
            protocol_version: String,
        }
        if let Ok(initialized) = serde_json::from_str::<Initialized>(result.get())
            && let Some(session) = self.session.lock().as_mut()
        {
            session.version = HeaderValue::try_from(initialized.protocol_version).ok();
        }
    }

    fn remember_schemas(&self, result: &RawValue) {
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
        if result.get().len() > MAX_SCHEMAS_BYTES {
            tracing::warn!(
                "the list of tools is too long: headers for arguments (`x-mcp-header`) are not sent"
            );
            return;
        }
        let page = serde_json::from_str::<Page>(result.get());
        let mut annotated = self.annotated_schemas.lock();
        for Tool { name, input_schema } in page.into_iter().flat_map(|page| page.tools) {
            if headers::has_annotations(&input_schema) {
                annotated.insert(name, input_schema);
            } else {
                annotated.remove(&name);
            }
        }
    }

    /// Opens a session in place of one that the server has lost, unless another task has done so.
    async fn reopen_session(&self, lost: &HeaderValue) -> Result<(), ExchangeError> {
        let _guard = self.reopening.lock().await;
        let session = self.session.lock().clone().unwrap_or_default();
        if session.id.as_ref() != Some(lost) {
            return Ok(());
        }
        tracing::info!("the server has lost the session: opening another");
        let opening = async {
            let message = Some(session.initialize_message.to_string());
            let response = self.server.send(Method::POST, HeaderMap::new(), message).await?;
            let id = response.headers().get(SESSION_HEADER).cloned();
            // The host already has the answer to its own `initialize`.
            let answer = self.server.messages(response, None).next().await?;
            let is_result = |answer: Message| parse(&answer.text).is_ok_and(|answer| answer.result.is_some());
            let is_open = answer.is_some_and(is_result);
            Ok(id.filter(|_| is_open))
        };
        let id = match tokio::time::timeout(SEND_TIMEOUT, opening).await {
            Ok(Ok(Some(id))) => id,
            Ok(Err(error @ (ExchangeError::Refused { .. } | ExchangeError::Unreachable { .. }))) => {
                return Err(error);
            }
            Ok(Ok(None) | Err(_)) | Err(_) => return Err(ExchangeError::SessionLost),
        };
        if let Some(session) = self.session.lock().as_mut() {
            session.id = Some(id);
        }
        for message in session.initialized_message.into_iter().chain(session.level_message) {
            self.post_unanswered(message).await;
        }
        Ok(())
    }

    /// Forwards the session's messages that belong to no request, until standard input ends.
    async fn follow_session_stream(self: Arc<Self>) {
        let mut input_has_ended = self.input_has_ended.subscribe();
        tokio::select! {
            () = self.forward_session_messages() => {}
            () = until_true(&mut input_has_ended) => {}
        }
    }

    async fn forward_session_messages(&self) {
        let mut delay = FIRST_RETRY_DELAY;
        let Some(followed) = self.session.lock().clone() else { return };
        loop {
            let session = self.session.lock().clone();
            // A second `initialize` of the host opens another session, which has its own follower.
            let is_same =
                |session: &Session| Arc::ptr_eq(&session.initialize_message, &followed.initialize_message);
            let Some(session) = session.filter(is_same).and_then(|session| session.id) else { return };
            match self.open_stream(self.session_headers(), None).await {
                Ok(mut messages) => {
                    while let Ok(Some(received)) = messages.next().await {
                        delay = FIRST_RETRY_DELAY;
                        if parse(&received.text).is_ok_and(|message| message.method.is_some()) {
                            self.forward_to_host(received).await;
                        }
                    }
                }
                Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => {
                    if let Err(error) = self.reopen_session(&session).await {
                        tracing::warn!(%error, "the session cannot be opened again");
                    }
                }
                // The server has no such stream.
                Err(error) if error.status() == Some(StatusCode::METHOD_NOT_ALLOWED) => return,
                Err(error) => tracing::debug!(%error, "the session's stream cannot be opened"),
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }
}

/// Parses a message, which is an object: a request, a notification, or an answer with a result or an error.
fn parse(text: &str) -> Result<PeerMessage<'_>, ExchangeError> {
    // serde would also read an array as this struct.
    let parsed = if text.trim_start().starts_with('{') {
        serde_json::from_str::<PeerMessage<'_>>(text).ok()
    } else {
        None
    };
    let message = parsed.filter(|message| message.method.is_some() || message.is_answer());
    message.ok_or(ExchangeError::NotAMessage)
}

impl PeerMessage<'_> {
    fn is_answer(&self) -> bool {
        self.method.is_none() && self.result.is_some() != self.error.is_some()
    }
}

/// Compares ids, which a server may write in another way: with other escapes, for example.
fn is_same_id(received: &str, sent: &str) -> bool {
    let value = |text: &str| serde_json::from_str::<Value>(text).ok();
    received == sent || (received.len() <= MAX_ID_BYTES && value(received) == value(sent))
}

fn cancellation(id: &Id) -> String {
    let id = id.as_json();
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#)
}
