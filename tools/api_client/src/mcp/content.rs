//! The result of a call: what the model gets of it, and its files as artifacts.

use super::{cut, protocol_error};
use a2g_guest_sdk::prelude::*;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Map;
use std::collections::BTreeSet;

/// Maximum length of the text of a failure, in characters.
const MAX_FAILURE_CHARS: usize = 8_000;
/// Maximum number of artifacts of one result.
const MAX_ARTIFACTS: usize = 64;
/// Maximum number of links of one result.
const MAX_LINKS: usize = 256;
/// Maximum length of the name of an artifact, in characters.
const MAX_NAME_CHARS: usize = 100;
/// The media type of content whose own is missing or malformed.
const ANY_TYPE: &str = "application/octet-stream";

/// The content of a result, in the order of its blocks.
#[derive(Default)]
struct Content {
    texts: Vec<String>,
    artifacts: Vec<String>,
    names: BTreeSet<String>,
    links: Vec<Value>,
}

/// The result of the tool. With an output schema (`is_structured`), it is the structured content; otherwise an object
/// with the text and, where there are any, the structured content, the names of artifacts, and links.
///
/// # Errors
/// `tool_failed` with the text of a tool that failed, `input_required`, or `protocol_error`.
pub(super) fn to_result(ctx: &Context, is_structured: bool, result: Value) -> Result<Value, ToolError> {
    let Value::Object(mut result) = result else { return Err(protocol_error("its result is no object")) };
    match result.get("resultType").map(|kind| kind.as_str().unwrap_or_default()) {
        // Servers of earlier revisions do not name the type.
        None | Some("complete") => {}
        Some("input_required") => return Err(input_required(result.get("inputRequests"))),
        Some(other) => {
            let what = format!("its result has the unknown type `{}`", cut(other, 64));
            return Err(protocol_error(&what));
        }
    }
    let structured = result.remove("structuredContent");
    let blocks = match result.remove("content") {
        Some(Value::Array(blocks)) => blocks,
        None if structured.is_some() => Vec::new(),
        Some(_) | None => return Err(protocol_error("its result has no list of content")),
    };
    let mut content = Content::default();
    for block in blocks {
        content.add(ctx, block)?;
    }
    let text = content.texts.join("\n");
    if result.get("isError") == Some(&Value::Bool(true)) {
        let said = if text.is_empty() { "the tool failed, and says no reason" } else { text.as_str() };
        let error = ToolError::new("tool_failed", cut(said, MAX_FAILURE_CHARS));
        return Err(match structured {
            Some(structured) => error.with_detail(structured),
            None => error,
        });
    }
    match (is_structured, structured) {
        (true, Some(structured)) => Ok(structured),
        (true, None) => {
            Err(protocol_error("its result has no structured content, which its definition promises"))
        }
        (false, structured) => Ok(content.to_value(text, structured)),
    }
}

/// The error for a call that the server would only carry out after further questions.
fn input_required(requests: Option<&Value>) -> ToolError {
    let requests = requests.and_then(Value::as_object);
    let methods = requests.into_iter().flat_map(|requests| requests.values());
    let methods = methods.filter_map(|request| request.get("method")?.as_str()).collect::<BTreeSet<_>>();
    let named = cut(&methods.into_iter().collect::<Vec<_>>().join(", "), 200);
    let message = format!(
        "the server asks back before it carries out the call ({named}), and a run has nobody to ask: give all that it \
         needs in the arguments, if the tool has a place for it"
    );
    ToolError::new("input_required", message)
}

impl Content {
    fn add(&mut self, ctx: &Context, block: Value) -> Result<(), ToolError> {
        let Value::Object(mut block) = block else { return Err(protocol_error("its content is malformed")) };
        let mut text = |name: &str| match block.remove(name) {
            Some(Value::String(text)) => Some(text),
            Some(_) | None => None,
        };
        let kind = text("type").unwrap_or_default();
        match kind.as_str() {
            "text" => self.texts.extend(text("text")),
            "image" | "audio" => {
                let mime = media_type(text("mimeType"));
                let bytes = decode(&text("data").unwrap_or_default())?;
                let end = mime.split_once('/').map_or("", |(_, end)| end).split(['+', ';']).next();
                let wanted = format!("{kind}.{}", end.unwrap_or_default());
                self.add_artifact(ctx, &wanted, &mime, &bytes)?;
            }
            "resource" => {
                let resource = block.remove("resource").unwrap_or_default();
                self.add_resource(ctx, &resource)?;
            }
            "resource_link" => {
                if self.links.len() >= MAX_LINKS {
                    return Err(protocol_error("its result has more than 256 links"));
                }
                let wanted = ["uri", "name", "title", "description", "mimeType"];
                block.retain(|name, value| wanted.contains(&name.as_str()) && value.is_string());
                self.links.push(Value::Object(block));
            }
            other => {
                ctx.log(
                    Level::Warn,
                    format!("content of the unknown type `{}` was left out", cut(other, 64)),
                );
            }
        }
        Ok(())
    }

    /// Adds a resource that is part of the result.
    fn add_resource(&mut self, ctx: &Context, resource: &Value) -> Result<(), ToolError> {
        let text = |name: &str| resource.get(name).and_then(Value::as_str);
        let uri = text("uri").unwrap_or_default();
        let last = uri.split(['?', '#']).next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        let mime = media_type(text("mimeType").map(str::to_owned));
        match (text("text"), text("blob")) {
            (Some(text), None) => self.add_artifact(ctx, last, &mime, text.as_bytes()),
            (None, Some(blob)) => self.add_artifact(ctx, last, &mime, &decode(blob)?),
            (_, _) => Err(protocol_error("a resource in its result has neither a text nor a blob")),
        }
    }

    fn add_artifact(
        &mut self,
        ctx: &Context,
        wanted: &str,
        mime: &str,
        bytes: &[u8],
    ) -> Result<(), ToolError> {
        if self.artifacts.len() >= MAX_ARTIFACTS {
            return Err(protocol_error("its result has more than 64 files"));
        }
        let name = self.free_name(wanted);
        ctx.artifact(&name, mime, bytes)?;
        self.artifacts.push(name);
        Ok(())
    }

    /// A name of letters, digits, `.`, `_` and `-` that no artifact has yet.
    fn free_name(&mut self, wanted: &str) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let letters = wanted.chars().take(MAX_NAME_CHARS).map(|c| if is_plain(c) { c } else { '_' });
        let plain = letters.collect::<String>();
        let first = match plain.trim_start_matches('.') {
            "" => "resource",
            visible => visible,
        };
        let mut name = first.to_owned();
        let mut number = 2;
        while !self.names.insert(name.clone()) {
            name = format!("{number}-{first}");
            number += 1;
        }
        name
    }

    fn to_value(&self, text: String, structured: Option<Value>) -> Value {
        let mut members = Map::from_iter([("text".to_owned(), text.into())]);
        if let Some(structured) = structured {
            members.insert("structured".to_owned(), structured);
        }
        if !self.artifacts.is_empty() {
            members.insert("artifacts".to_owned(), json!(self.artifacts));
        }
        if !self.links.is_empty() {
            members.insert("links".to_owned(), json!(self.links));
        }
        Value::Object(members)
    }
}

fn decode(base64: &str) -> Result<Vec<u8>, ToolError> {
    BASE64_STANDARD.decode(base64).map_err(|_| protocol_error("its result has a file that is not base64"))
}

/// The media type, if it is one in its plain form.
fn media_type(named: Option<String>) -> String {
    let is_token = |part: &str| {
        let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte);
        (1..=100).contains(&part.len()) && part.bytes().all(is_token_byte)
    };
    let is_plain =
        |mime: &String| mime.split_once('/').is_some_and(|(kind, end)| is_token(kind) && is_token(end));
    named
        .map(|mime| mime.split(';').next().unwrap_or_default().trim().to_owned())
        .filter(is_plain)
        .unwrap_or_else(|| ANY_TYPE.to_owned())
}
