//! Calls an operation of an HTTP API.
//!
//! ```text
//! arguments ─▶ URL, fields, body ─▶ request ─▶ 2xx: JSON is the result; anything else, and what is large, an artifact
//!                                     │         otherwise the error `http_STATUS`
//!                                     └─ idempotent: sent again after a failure that passes
//! ```
//! No redirect is followed. Further pages are requests of the same operation: to the same host and path.

mod fields;
pub(crate) mod settings;
mod uri;

use a2g_guest_sdk::http::{Error, Method, Reason, Request, Response};
use a2g_guest_sdk::prelude::*;
use fields::{header_fields, write_form};
use serde_json::Map;
use settings::{FORM, OpenapiSettings, Pagination, is_json};
use std::thread;
use std::time::Duration;
use uri::write_url;

/// The argument with the body.
const BODY: &str = "body";
/// The argument with the number of pages, 1 by default.
const MAX_PAGES: &str = "max_pages";
/// The largest body of an answer that is read.
const MAX_RESPONSE_BYTES: usize = 8 << 20;
/// The largest JSON of an answer that is a result. More would be of no use to a model.
const MAX_JSON_BYTES: usize = 512 << 10;
/// The part of the body of an error that is passed on, in bytes.
const MAX_ERROR_BYTES: usize = 4 << 10;
const MAX_RETRIES: u32 = 2;
/// The longest time that a server may ask to wait for.
const MAX_WAIT_SECONDS: u64 = 5;
/// The time before the first repetition after a failed connection, which doubles.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// Many servers refuse a request that does not say what sent it.
const USER_AGENT: &str = concat!("a2g-executor/", env!("CARGO_PKG_VERSION"));

/// An operation with the parts of its request that all pages have.
struct Operation<'a> {
    ctx: &'a Context,
    settings: &'a OpenapiSettings,
    method: Method,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

/// The content of an answer.
enum Content {
    Nothing,
    Json(Value),
    Artifact(Value),
}

/// Calls the operation with these arguments.
pub(crate) fn call(
    ctx: &mut Context,
    settings: &OpenapiSettings,
    arguments: Value,
) -> Result<Value, ToolError> {
    let Value::Object(mut arguments) = arguments else {
        return Err(invalid("the arguments are not an object".to_owned()));
    };
    let asked = arguments.get(MAX_PAGES).filter(|_| settings.pagination.is_some());
    let max_pages = asked.and_then(Value::as_u64).unwrap_or(1);
    let first_url = write_url(settings, &arguments).map_err(invalid)?;
    let fields = header_fields(settings, &arguments);
    let method = Method::from_bytes(settings.method.as_bytes())
        .map_err(|_| ToolError::new("invalid_settings", "the method of the operation is none"))?;
    let body = write_body(settings, &arguments)?;
    let operation = Operation { ctx, settings, method, fields, body };
    let mut response = operation.fetch(&first_url)?;
    let mut members = Map::from_iter([("status".to_owned(), response.status().into())]);
    let mut merged = Content::Nothing;
    let mut pages = 0_u64;
    let next = loop {
        let content = operation.read(&response)?;
        pages += 1;
        let found = match (&settings.pagination, &content) {
            (Some(pagination), Content::Json(page)) => {
                operation.find_next(pagination, &response, page, &first_url, &mut arguments)?
            }
            (Some(_), Content::Nothing | Content::Artifact(_)) | (None, _) => None,
        };
        merged = merge(merged, content);
        match found {
            Some(url) if pages < max_pages => response = operation.fetch(&url)?,
            found => break found,
        }
    };
    match merged {
        Content::Nothing => None,
        Content::Json(value) => members.insert("body".to_owned(), value),
        Content::Artifact(artifact) => members.insert("artifact".to_owned(), artifact),
    };
    if settings.pagination.is_some() {
        members.insert("pages".to_owned(), pages.into());
        members.insert("has_more".to_owned(), next.is_some().into());
    }
    Ok(Value::Object(members))
}

fn invalid(message: String) -> ToolError {
    ToolError::new("invalid_arguments", message)
}

/// The body of the request; empty without one.
fn write_body(settings: &OpenapiSettings, arguments: &Map<String, Value>) -> Result<Vec<u8>, ToolError> {
    let (Some(body), Some(value)) = (&settings.body, arguments.get(BODY)) else { return Ok(Vec::new()) };
    if is_json(&body.media_type) {
        return Ok(value.to_string().into_bytes());
    }
    match (value, body.media_type == FORM) {
        (Value::Object(members), true) => Ok(write_form(members, &body.deep).into_bytes()),
        (Value::String(text), false) => Ok(text.clone().into_bytes()),
        _ => Err(invalid(format!("`{BODY}` cannot be written as {}", body.media_type))),
    }
}

/// The pages so far, and another one: lists are joined, and of other members the last one counts.
fn merge(merged: Content, page: Content) -> Content {
    match (merged, page) {
        (Content::Json(all), Content::Json(page)) => Content::Json(merge_json(all, page)),
        (Content::Nothing, page) => page,
        (merged, Content::Nothing | Content::Artifact(_))
        | (merged @ Content::Artifact(_), Content::Json(_)) => merged,
    }
}

fn merge_json(all: Value, page: Value) -> Value {
    match (all, page) {
        (Value::Array(mut all), Value::Array(page)) => {
            all.extend(page);
            Value::Array(all)
        }
        (Value::Object(mut all), Value::Object(page)) => {
            for (name, value) in page {
                if let (Some(Value::Array(list)), Value::Array(more)) = (all.get_mut(&name), &value) {
                    list.extend(more.iter().cloned());
                } else {
                    all.insert(name, value);
                }
            }
            Value::Object(all)
        }
        (_, page) => page,
    }
}

impl Operation<'_> {
    /// Sends the request to one of its URLs. If it may be repeated, waits and repeats it after a failure that passes.
    fn fetch(&self, url: &str) -> Result<Response, ToolError> {
        let mut attempts = 0;
        loop {
            let sent = self.request(url)?.send();
            let may_repeat = self.settings.retry && attempts < MAX_RETRIES;
            let Some(wait) = wait_before_repeat(&sent, attempts).filter(|_| may_repeat) else {
                return Ok(sent?);
            };
            attempts += 1;
            self.ctx.log(Level::Info, format!("sending the request again in {} ms", wait.as_millis()));
            thread::sleep(wait);
        }
    }

    fn request(&self, url: &str) -> Result<Request, Error> {
        let mut request = Request::new(self.method.clone(), url)?
            .header("accept", "application/json, */*;q=0.5")?
            .header("user-agent", USER_AGENT)?
            .max_bytes(MAX_RESPONSE_BYTES);
        for (name, value) in &self.fields {
            request = request.header(name, value)?;
        }
        match &self.settings.body {
            Some(body) if !self.body.is_empty() => {
                Ok(request.header("content-type", &body.media_type)?.body(self.body.clone()))
            }
            Some(_) | None => Ok(request),
        }
    }

    /// The content of a successful answer. What is not JSON, or too large for a result, is sent as an artifact.
    fn read(&self, response: &Response) -> Result<Content, ToolError> {
        if !response.is_success() {
            return Err(self.failure(response));
        }
        let bytes = response.body();
        if bytes.is_empty() {
            return Ok(Content::Nothing);
        }
        let declared = response.header("content-type").unwrap_or_default();
        if is_json(declared) && bytes.len() <= MAX_JSON_BYTES {
            return Ok(Content::Json(response.json()?));
        }
        let media_type = media_type(declared);
        let name = artifact_name(response.url().path());
        self.ctx.artifact(&name, &media_type, bytes)?;
        Ok(Content::Artifact(json!({ "name": name, "media_type": media_type, "bytes": bytes.len() })))
    }

    /// The error of an answer that is not successful, with the beginning of its body.
    fn failure(&self, response: &Response) -> ToolError {
        let status = response.status();
        let body: Value = match response.body().get(..MAX_ERROR_BYTES) {
            Some(start) => String::from_utf8_lossy(start).into(),
            None => response.json().unwrap_or_else(|_| String::from_utf8_lossy(response.body()).into()),
        };
        let mut detail = Map::from_iter([("status".to_owned(), status.into()), ("body".to_owned(), body)]);
        for name in ["location", "retry-after"] {
            if let Some(value) = response.header(name) {
                detail.insert(name.to_owned(), value.into());
            }
        }
        let hint = if (300..400).contains(&status) { ": redirects are not followed" } else { "" };
        let path = response.url().path();
        let message = format!("the server answered {status} to {} {path}{hint}", self.method);
        ToolError::new(format!("http_{status}"), message).with_detail(Value::Object(detail))
    }

    /// The URL of the page after this one. A link to another operation is no further page.
    fn find_next(
        &self,
        pagination: &Pagination,
        response: &Response,
        page: &Value,
        first_url: &str,
        arguments: &mut Map<String, Value>,
    ) -> Result<Option<String>, ToolError> {
        let named = match &pagination.member {
            Some(member) => match page.get(member) {
                Some(Value::String(text)) => Some(text.clone()),
                Some(Value::Number(number)) => Some(number.to_string()),
                _ => None,
            },
            None => {
                let links = response.headers().get_all("link").into_iter();
                links.filter_map(|link| link.to_str().ok()).find_map(next_link).map(str::to_owned)
            }
        };
        let Some(named) = named.filter(|named| !named.is_empty()) else { return Ok(None) };
        let Some(argument) = &pagination.argument else {
            let url = page_url(&named, first_url);
            if url.is_none() {
                let message = "the link to the next page leads to another operation, and is not followed";
                self.ctx.log(Level::Warn, message);
            }
            return Ok(url);
        };
        arguments.insert(argument.clone(), Value::String(named));
        write_url(self.settings, arguments).map(Some).map_err(invalid)
    }
}

/// The time to wait before a request is sent again; `None` if that would be of no use.
fn wait_before_repeat(sent: &Result<Response, Error>, attempts: u32) -> Option<Duration> {
    match sent {
        Ok(response) if [429, 503].contains(&response.status()) => {
            let seconds = response.header("retry-after")?.trim().parse().ok()?;
            Some(Duration::from_secs(seconds)).filter(|_| seconds <= MAX_WAIT_SECONDS)
        }
        Ok(_) => None,
        Err(error) => match error.reason() {
            Reason::Transport(_) => Some(FIRST_WAIT * 2_u32.saturating_pow(attempts)),
            Reason::Off
            | Reason::Invalid(_)
            | Reason::Denied(_)
            | Reason::Limit(_)
            | Reason::Timeout(_)
            | Reason::TooLarge { .. }
            | Reason::NotText { .. }
            | Reason::NotJson(_) => None,
        },
    }
}

/// A media type without its parameters, as an artifact may have it.
fn media_type(declared: &str) -> String {
    let essence = declared.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_token = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte))
    };
    let is_valid = essence.len() <= 127
        && essence.split_once('/').is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype));
    if is_valid { essence } else { "application/octet-stream".to_owned() }
}

/// The name of an artifact: the last part of the path, in characters that every file system has.
fn artifact_name(path: &str) -> String {
    let last = path.rsplit('/').find(|part| !part.is_empty()).unwrap_or_default();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let name = last.chars().take(100).map(|letter| if is_plain(letter) { letter } else { '_' });
    let name = name.collect::<String>();
    if name.bytes().all(|byte| byte == b'.') { "response".to_owned() } else { name }
}

/// The target of a `Link` with the relation `next`.
fn next_link(field: &str) -> Option<&str> {
    let mut rest = field;
    loop {
        let (target, tail) = rest.split_once('<')?.1.split_once('>')?;
        let parameters = tail.split('<').next().unwrap_or_default();
        let is_next = |parameter: &str| {
            let (name, value) = parameter.split_once('=').unwrap_or_default();
            let mut relations = value.trim().trim_matches('"').split_whitespace();
            name.trim().eq_ignore_ascii_case("rel")
                && relations.any(|relation| relation.eq_ignore_ascii_case("next"))
        };
        if parameters.split([';', ',']).any(is_next) {
            return Some(target);
        }
        rest = tail;
    }
}

/// The URL of another page at the host and path of the first one; `None` for any other URL.
fn page_url(named: &str, first_url: &str) -> Option<String> {
    let first = first_url.split('?').next().unwrap_or_default();
    let named = named.split('#').next().unwrap_or_default();
    let path_start = first.find("://").and_then(|end| Some(end + 3 + first.get(end + 3..)?.find('/')?));
    let origin = path_start.and_then(|start| first.get(..start)).unwrap_or(first);
    let url = if named.starts_with('?') {
        format!("{first}{named}")
    } else if named.starts_with('/') {
        format!("{origin}{named}")
    } else {
        named.to_owned()
    };
    (url.split('?').next() == Some(first)).then_some(url)
}
