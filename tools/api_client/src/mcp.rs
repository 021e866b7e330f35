//! Calls a tool of an MCP server over Streamable HTTP.
//!
//! ```text
//! 2026-07-28   POST tools/call
//! 2025-11-25   POST initialize ─▶ POST notifications/initialized ─▶ POST tools/call ─▶ DELETE of the session
//! ```
//! The call is sent once, whatever comes back: only its caller knows whether a repeat would do something twice. A
//! redirect is an error, and so is an answer to another request. What the server asks for in the middle of a call
//! (sampling, elicitation, roots) is refused, because a run has nobody to ask.

mod content;
mod messages;
#[cfg(test)]
mod tests;

use a2g_guest_sdk::http::{self, Method, Reason, Request, ResponseStream};
use a2g_guest_sdk::prelude::*;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use messages::{Message, Messages, RpcError};
use serde::Deserialize;
use std::time::Duration;

/// Maximum size of the answer to a call, with all messages before it, in bytes.
const MAX_CALL_BYTES: usize = 8 << 20;
/// Maximum size of the answer to any other request, in bytes.
const MAX_OTHER_BYTES: usize = 1 << 20;
/// Maximum part of a refusal that is read, in bytes.
const MAX_REFUSAL_BYTES: usize = 16 << 10;
/// Maximum part of a refusal that the caller is told, in characters.
const MAX_REFUSAL_CHARS: usize = 500;
/// Time limit of the requests that open a session. A call has only that of its run.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit of a message without an answer.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of requests of the server that are answered during a call.
const MAX_SERVER_REQUESTS: u32 = 16;
/// Maximum number of progress and log messages that are passed on.
const MAX_NOTES: u32 = 200;
/// Maximum length of a progress or log message, in characters.
const MAX_NOTE_CHARS: usize = 1_000;
/// The revisions with sessions that differ in nothing that is used here.
const SESSION_VERSIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];
const USER_AGENT: &str = concat!("a2g-executor/", env!("CARGO_PKG_VERSION"));
const SESSION_FIELD: &str = "mcp-session-id";
/// The marks around the value of a header field in base64.
const ENCODED_PREFIX: &str = "=?base64?";
const ENCODED_SUFFIX: &str = "?=";

/// The settings of a tool that is a tool of an MCP server.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct McpSettings {
    /// The endpoint of the server.
    url: String,
    /// The name of the tool there.
    tool: String,
    /// The revision of the protocol that the server spoke when the tool was made.
    revision: Revision,
    /// `true` if the tool has an output schema, so that its result is the structured content.
    #[serde(default)]
    structured: bool,
    /// The arguments that header fields repeat (`x-mcp-header`).
    #[serde(default)]
    headers: Vec<MirroredArgument>,
}

/// A revision of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Revision {
    /// Each request is complete in itself.
    #[serde(rename = "2026-07-28")]
    Stateless,
    /// Requests belong to a session.
    #[serde(rename = "2025-11-25")]
    Session,
}

/// An argument that the header field `Mcp-Param-NAME` repeats.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MirroredArgument {
    name: String,
    /// The names of the members that lead to it.
    path: Vec<String>,
}

/// Calls it with these arguments.
pub(crate) fn call(ctx: &mut Context, settings: &McpSettings, arguments: Value) -> Result<Value, ToolError> {
    let mut server = Server::new(settings);
    let answered = server.call_tool(ctx, arguments);
    server.end_session();
    content::to_result(ctx, settings.structured, answered?)
}

/// The server, as one call knows it.
struct Server<'a> {
    settings: &'a McpSettings,
    /// The revision that requests name, once it is agreed on.
    version: Option<&'static str>,
    session: Option<String>,
    last_id: u64,
    notes: Notes,
}

/// The progress and log messages of a call.
#[derive(Default)]
struct Notes {
    passed: u32,
    left_out: u32,
}

/// The limits of one request.
#[derive(Clone, Copy)]
struct Limits {
    max_bytes: usize,
    timeout: Option<Duration>,
}

impl<'a> Server<'a> {
    fn new(settings: &'a McpSettings) -> Self {
        let version = match settings.revision {
            Revision::Stateless => Some("2026-07-28"),
            Revision::Session => None,
        };
        Self { settings, version, session: None, last_id: 0, notes: Notes::default() }
    }

    /// The result of the call, as the server sends it.
    fn call_tool(&mut self, ctx: &Context, arguments: Value) -> Result<Value, ToolError> {
        if self.settings.revision == Revision::Session {
            self.open_session(ctx)?;
        }
        let fields = self.call_fields(&arguments);
        let token = self.last_id + 1;
        let params = json!({
            "name": self.settings.tool,
            "arguments": arguments,
            "_meta": { "progressToken": token },
        });
        let limits = Limits { max_bytes: MAX_CALL_BYTES, timeout: None };
        let answered = self.exchange(ctx, "tools/call", params, &fields, limits);
        if self.notes.left_out > 0 {
            let text = format!("{} further messages of the server were left out", self.notes.left_out);
            ctx.log(Level::Warn, text);
        }
        answered
    }

    /// The header fields of 2026-07-28 that repeat parts of the call.
    fn call_fields(&self, arguments: &Value) -> Vec<(String, String)> {
        if self.settings.revision == Revision::Session {
            return Vec::new();
        }
        let mut fields = vec![("mcp-name".to_owned(), encode_field(&self.settings.tool))];
        for MirroredArgument { name, path } in &self.settings.headers {
            let found = path.iter().try_fold(arguments, |value, member| value.get(member));
            let text = match found {
                Some(Value::String(text)) => text.clone(),
                Some(scalar @ (Value::Bool(_) | Value::Number(_))) => scalar.to_string(),
                None | Some(Value::Null | Value::Array(_) | Value::Object(_)) => continue,
            };
            fields.push((format!("mcp-param-{name}"), encode_field(&text)));
        }
        fields
    }

    fn open_session(&mut self, ctx: &Context) -> Result<(), ToolError> {
        let [latest, ..] = SESSION_VERSIONS;
        let params = json!({ "protocolVersion": latest, "capabilities": {}, "clientInfo": client_info() });
        let limits = Limits { max_bytes: MAX_OTHER_BYTES, timeout: Some(OPEN_TIMEOUT) };
        let result = self.exchange(ctx, "initialize", params, &[], limits)?;
        let named = result.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
        let version = SESSION_VERSIONS.into_iter().find(|version| *version == named);
        self.version = Some(version.ok_or_else(|| {
            let message = format!(
                "the server speaks the revision `{}` of MCP, which this tool does not: ask the operator to make it \
                 again",
                cut(named, 64)
            );
            ToolError::new("unsupported_revision", message)
        })?);
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }), OPEN_TIMEOUT)
    }

    /// Ends the session, if there is one. If that fails, the server ends it when it has become idle.
    fn end_session(&self) {
        if self.session.is_none() {
            return;
        }
        let request =
            Request::new(Method::DELETE, &self.settings.url).and_then(|request| self.add_fields(request));
        let _is_idle_soon = request.and_then(|request| request.timeout(SEND_TIMEOUT).open());
    }

    /// Sends a request, and reads what comes until its answer, which is returned.
    fn exchange(
        &mut self,
        ctx: &Context,
        method: &str,
        mut params: Value,
        fields: &[(String, String)],
        limits: Limits,
    ) -> Result<Value, ToolError> {
        self.last_id += 1;
        let id = self.last_id;
        if self.settings.revision == Revision::Stateless {
            add_meta(&mut params);
        }
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let mut request = self.make_post(&message)?.max_bytes(limits.max_bytes);
        if self.settings.revision == Revision::Stateless {
            request = request.header("mcp-method", method)?;
        }
        for (name, value) in fields {
            request = request.header(name, value)?;
        }
        if let Some(timeout) = limits.timeout {
            request = request.timeout(timeout);
        }
        let stream = self.check_status(request.open().map_err(read_error)?)?;
        if method == "initialize" {
            self.session = stream.head().header(SESSION_FIELD).map(str::to_owned);
        }
        self.read_until_answer(ctx, id, Messages::new(stream)?)
    }

    fn read_until_answer(
        &mut self,
        ctx: &Context,
        id: u64,
        mut messages: Messages,
    ) -> Result<Value, ToolError> {
        let mut asked = 0;
        while let Some(message) = messages.next_message()? {
            match message {
                Message::Answer { id: found, outcome } => {
                    // An error that concerns the message as a whole has no id.
                    if found != json!(id) && !(found.is_null() && outcome.is_err()) {
                        return Err(protocol_error("it answered another request than this one"));
                    }
                    return outcome.map_err(RpcError::into_tool_error);
                }
                Message::Request { id, method } => {
                    asked += 1;
                    if self.settings.revision == Revision::Stateless || asked > MAX_SERVER_REQUESTS {
                        let what =
                            format!("it sent requests, such as `{}`, instead of an answer", cut(&method, 64));
                        return Err(protocol_error(&what));
                    }
                    self.send(&refuse_request(&id, &method), SEND_TIMEOUT)?;
                }
                Message::Notification { method, params } => self.notes.pass_on(ctx, id, &method, &params),
            }
        }
        Err(protocol_error("it ended its answer before the result"))
    }

    /// Sends a message that has no answer.
    fn send(&self, message: &Value, timeout: Duration) -> Result<(), ToolError> {
        let stream = self.make_post(message)?.timeout(timeout).open().map_err(read_error)?;
        self.check_status(stream).map(drop)
    }

    fn make_post(&self, message: &Value) -> Result<Request, http::Error> {
        let request = Request::post(&self.settings.url, message.to_string())?;
        self.add_fields(request)?.header("content-type", "application/json")
    }

    /// Adds the fields that every request of the session has.
    fn add_fields(&self, request: Request) -> Result<Request, http::Error> {
        let mut request = request
            .header("accept", "application/json, text/event-stream")?
            .header("user-agent", USER_AGENT)?;
        if let Some(version) = self.version {
            request = request.header("mcp-protocol-version", version)?;
        }
        match &self.session {
            Some(session) => request.header(SESSION_FIELD, session),
            None => Ok(request),
        }
    }

    /// The response, if its status is one of success.
    fn check_status(&self, stream: ResponseStream) -> Result<ResponseStream, ToolError> {
        let status = stream.head().status();
        if stream.head().is_success() {
            return Ok(stream);
        }
        if (300..400).contains(&status) {
            let given = stream.head().header("location").unwrap_or_default();
            let location = given.split(['?', '#']).next().unwrap_or_default();
            let message = format!(
                "the server redirects to `{}`, where nothing was sent: if that is right, ask the operator to make the \
                 tool for that address",
                cut(location, 200)
            );
            return Err(ToolError::new("redirect_refused", message).with_detail(json!({ "status": status })));
        }
        let text = read_refusal(stream);
        let (code, what) = match status {
            401 | 403 => (
                "unauthorized",
                "the server refuses the credentials of this tool: ask the operator to check its secret",
            ),
            404 if self.session.is_some() => {
                ("session_lost", "the server has lost the session of this call: call again")
            }
            _ => match Message::parse(&text) {
                Ok(Message::Answer { outcome: Err(error), .. }) => return Err(error.into_tool_error()),
                Ok(_) | Err(_) => ("http_error", "the server did not accept the request"),
            },
        };
        let said = match text.trim() {
            "" => String::new(),
            said => format!(": {}", cut(said, MAX_REFUSAL_CHARS)),
        };
        let message = format!("{what} (HTTP status {status}){said}");
        Err(ToolError::new(code, message).with_detail(json!({ "status": status })))
    }
}

impl Notes {
    /// Passes a progress or log message on.
    fn pass_on(&mut self, ctx: &Context, id: u64, method: &str, params: &Value) {
        let text = |name: &str| params.get(name).and_then(Value::as_str).unwrap_or_default();
        let number = |name: &str| params.get(name).and_then(Value::as_f64);
        let is_own = params.get("progressToken").is_some_and(|token| *token == json!(id));
        match method {
            "notifications/progress" if is_own => {}
            "notifications/message" => {}
            _ => return,
        }
        if self.passed >= MAX_NOTES {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        self.passed += 1;
        if method == "notifications/progress" {
            let total = number("total").filter(|total| *total > 0.0);
            let percent = number("progress").zip(total).map(|(done, total)| to_percent(done / total));
            ctx.progress(percent, cut(text("message"), MAX_NOTE_CHARS));
            return;
        }
        let level = match text("level") {
            "debug" => Level::Debug,
            "warning" => Level::Warn,
            "error" | "critical" | "alert" | "emergency" => Level::Error,
            _ => Level::Info,
        };
        let data = match params.get("data") {
            Some(Value::String(text)) => text.clone(),
            Some(data) => data.to_string(),
            None => String::new(),
        };
        ctx.log(level, cut(&data, MAX_NOTE_CHARS));
    }
}

/// A part of 1 in percent.
#[allow(clippy::cast_possible_truncation, reason = "no digit that a person sees is lost")]
fn to_percent(part: f64) -> f32 {
    (part * 100.0) as f32
}

/// Adds the members that every request of 2026-07-28 has.
fn add_meta(params: &mut Value) {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": client_info(),
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let Value::Object(members) = params else { return };
    let own = members.entry("_meta").or_insert_with(|| json!({}));
    if let (Value::Object(own), Value::Object(more)) = (own, meta) {
        own.extend(more);
    }
}

fn client_info() -> Value {
    json!({ "name": "a2g-executor", "version": env!("CARGO_PKG_VERSION") })
}

/// The answer to a request of the server: there is nobody to ask, but the client is there.
fn refuse_request(id: &Value, method: &str) -> Value {
    if method == "ping" {
        return json!({ "jsonrpc": "2.0", "id": id, "result": {} });
    }
    let error = json!({ "code": -32601, "message": "this client has no such method" });
    json!({ "jsonrpc": "2.0", "id": id, "error": error })
}

/// Encodes a value that is not plain ASCII, has surrounding spaces, or would be taken for an encoded one.
fn encode_field(value: &str) -> String {
    let is_plain = value.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && value.trim() == value
        && !value.starts_with(ENCODED_PREFIX);
    if is_plain {
        return value.to_owned();
    }
    format!("{ENCODED_PREFIX}{}{ENCODED_SUFFIX}", BASE64_STANDARD.encode(value))
}

/// The beginning of the text of a refusal.
fn read_refusal(mut stream: ResponseStream) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_REFUSAL_BYTES
        && let Ok(Some(part)) = stream.next_part()
    {
        bytes.extend_from_slice(&part);
    }
    bytes.truncate(MAX_REFUSAL_BYTES);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// An error while a request was sent or its answer read.
fn read_error(error: http::Error) -> ToolError {
    let (code, message) = match error.reason() {
        Reason::TooLarge { max_bytes } => (
            "answer_too_large",
            format!("the server sent more than {max_bytes} bytes, the maximum of an answer: ask it for less"),
        ),
        Reason::Timeout(_) | Reason::Transport(_) => {
            (error.code(), format!("{error}; what the server has done is unknown, and nothing is sent again"))
        }
        Reason::Off
        | Reason::Invalid(_)
        | Reason::Denied(_)
        | Reason::Limit(_)
        | Reason::NotText { .. }
        | Reason::NotJson(_) => return error.into(),
    };
    ToolError::new(code, message)
}

/// The error of a server that does not keep to the protocol.
fn protocol_error(what: &str) -> ToolError {
    let message = format!(
        "the server does not keep to MCP: {what}; what it has done is unknown, and nothing is sent again"
    );
    ToolError::new("protocol_error", message)
}

/// The first characters of a text.
fn cut(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
