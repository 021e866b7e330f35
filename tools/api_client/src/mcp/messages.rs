//! The messages of a response: one in JSON, or those of a stream of events.

use super::{cut, protocol_error, read_error};
use a2g_guest_sdk::http::ResponseStream;
use a2g_guest_sdk::prelude::*;
use serde_json::Map;
use std::collections::VecDeque;

/// Maximum length of the message of an error, in characters.
const MAX_ERROR_CHARS: usize = 4_000;
/// Maximum length of the data of an error as JSON, in bytes.
const MAX_DATA_BYTES: usize = 8 << 10;
/// The code of a server that does not speak the revision.
const UNSUPPORTED_REVISION: i64 = -32022;
/// The code of a server that expects other header fields: those of another definition.
const HEADER_MISMATCH: i64 = -32020;

/// A message of the server.
#[derive(Debug)]
pub(super) enum Message {
    /// The answer to a request; the id is null if it has none.
    Answer { id: Value, outcome: Result<Value, RpcError> },
    /// A request of the server itself.
    Request { id: Value, method: String },
    /// A notification.
    Notification { method: String, params: Value },
}

/// The error of an answer.
#[derive(Debug)]
pub(super) struct RpcError {
    code: i64,
    message: String,
    data: Value,
}

impl Message {
    /// Parses one message of JSON-RPC 2.0.
    pub(super) fn parse(text: &str) -> Result<Self, ToolError> {
        let parsed = serde_json::from_str::<Value>(text);
        let mut message = parsed.map_err(|_| protocol_error("its answer is not JSON"))?;
        let mut take = |name: &str| message.get_mut(name).map(Value::take).filter(|value| !value.is_null());
        let is_version = take("jsonrpc").is_some_and(|version| version == "2.0");
        let id = take("id").unwrap_or_default();
        let params = take("params").unwrap_or_default();
        match (take("method"), take("result"), take("error")) {
            (Some(Value::String(method)), None, None) if is_version && id.is_null() => {
                Ok(Self::Notification { method, params })
            }
            (Some(Value::String(method)), None, None) if is_version => Ok(Self::Request { id, method }),
            (None, Some(result @ Value::Object(_)), None) if is_version => {
                Ok(Self::Answer { id, outcome: Ok(result) })
            }
            (None, None, Some(Value::Object(error))) if is_version => {
                let code = error.get("code").and_then(Value::as_i64).unwrap_or_default();
                let text = error.get("message").and_then(Value::as_str).unwrap_or_default();
                let message = cut(text, MAX_ERROR_CHARS);
                let data = error.get("data").cloned().unwrap_or_default();
                Ok(Self::Answer { id, outcome: Err(RpcError { code, message, data }) })
            }
            (_, _, _) => Err(protocol_error("its answer is not a message of JSON-RPC 2.0")),
        }
    }
}

impl RpcError {
    pub(super) fn into_tool_error(self) -> ToolError {
        let Self { code, message, data } = self;
        let (name, what) = match code {
            UNSUPPORTED_REVISION | HEADER_MISMATCH => (
                "definition_outdated",
                "the server is not as it was when this tool was made: ask the operator for `a2g-executor tool sync`",
            ),
            _ => ("server_error", "the server refuses the call"),
        };
        let mut detail = Map::from_iter([("code".to_owned(), json!(code))]);
        if !data.is_null() && data.to_string().len() <= MAX_DATA_BYTES {
            detail.insert("data".to_owned(), data);
        }
        ToolError::new(name, format!("{what}: {message} (code {code})")).with_detail(Value::Object(detail))
    }
}

/// The messages of one response, in order.
pub(super) struct Messages {
    stream: ResponseStream,
    form: Form,
    /// Complete messages that were not taken yet.
    ready: VecDeque<String>,
}

/// The form in which a response has its messages.
enum Form {
    /// One message.
    Json,
    /// Events, each of which is a message.
    Events(EventParser),
    /// There are no more.
    Ended,
}

impl Messages {
    pub(super) fn new(stream: ResponseStream) -> Result<Self, ToolError> {
        let named = stream.head().header("content-type").unwrap_or_default().to_ascii_lowercase();
        let form = match named.split(';').next().unwrap_or_default().trim() {
            "application/json" => Form::Json,
            "text/event-stream" => Form::Events(EventParser::default()),
            _ => return Err(protocol_error("its answer is neither JSON nor a stream of events")),
        };
        Ok(Self { stream, form, ready: VecDeque::new() })
    }

    /// Waits for the next message; `None` at the end of the response.
    pub(super) fn next_message(&mut self) -> Result<Option<Message>, ToolError> {
        loop {
            if let Some(text) = self.ready.pop_front() {
                return Message::parse(&text).map(Some);
            }
            match &mut self.form {
                Form::Ended => return Ok(None),
                Form::Json => {
                    let mut bytes = Vec::new();
                    while let Some(part) = self.stream.next_part().map_err(read_error)? {
                        bytes.extend_from_slice(&part);
                    }
                    self.ready.push_back(to_text(bytes)?);
                    self.form = Form::Ended;
                }
                Form::Events(parser) => match self.stream.next_part().map_err(read_error)? {
                    Some(part) => parser.push(&part, &mut self.ready)?,
                    // An event without its empty line is not complete.
                    None => self.form = Form::Ended,
                },
            }
        }
    }
}

fn to_text(bytes: Vec<u8>) -> Result<String, ToolError> {
    String::from_utf8(bytes).map_err(|_| protocol_error("its answer is not UTF-8"))
}

/// Reads events by the rules of HTML's `EventSource`, as far as MCP uses them: the data of each event of the type
/// `message` is a message. Identifiers and delays would serve to resume a stream, which no call does.
#[derive(Default)]
pub(super) struct EventParser {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    is_of_other_type: bool,
    /// `true` after a carriage return, whose line feed is part of the same line end.
    is_after_return: bool,
}

impl EventParser {
    /// Reads the next bytes, and appends the messages that they complete.
    pub(super) fn push(&mut self, part: &[u8], messages: &mut VecDeque<String>) -> Result<(), ToolError> {
        for byte in part {
            match byte {
                b'\n' if self.is_after_return => {}
                b'\n' | b'\r' => self.end_line(messages)?,
                _ => self.line.push(*byte),
            }
            self.is_after_return = *byte == b'\r';
        }
        Ok(())
    }

    fn end_line(&mut self, messages: &mut VecDeque<String>) -> Result<(), ToolError> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            self.has_data = false;
            let is_of_other_type = std::mem::take(&mut self.is_of_other_type);
            // The first event of a stream may be empty.
            if !data.is_empty() && !is_of_other_type {
                messages.push_back(to_text(data)?);
            }
            return Ok(());
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, rest) = line.split_at(colon);
        let spaced = rest.strip_prefix(b":").unwrap_or(rest);
        let value = spaced.strip_prefix(b" ").unwrap_or(spaced);
        match name {
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            b"event" => self.is_of_other_type = !matches!(value, b"" | b"message"),
            _ => {}
        }
        Ok(())
    }
}
