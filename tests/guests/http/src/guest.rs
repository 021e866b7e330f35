//! The requests, one after the other or all at once.

use a2g_guest_sdk::prelude::*;
use std::io::Write as _;

use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{
    ErrorCode, Fields, FutureIncomingResponse, HeaderError, IncomingBody, IncomingResponse, Method,
    OutgoingBody, OutgoingRequest, RequestOptions, Scheme,
};
use wasip2::io::streams::{InputStream, StreamError};

/// The steps to take.
#[derive(Arguments)]
struct HostileHttp {
    /// Files to write first, as paths and contents.
    #[serde(default)]
    write: Vec<(String, String)>,
    /// The requests.
    requests: Vec<Asked>,
    /// True to send all requests before waiting for the first.
    #[serde(default)]
    at_once: bool,
    /// True to query only whether there is a network, and send no request.
    #[serde(default)]
    only_ask: bool,
    /// The parts of a text that is said in every way that there is, after the requests.
    #[serde(default)]
    say: Vec<String>,
    /// True to say it in an error.
    #[serde(default)]
    fail: bool,
    /// Variables of the environment, whose values replace `{NAME}` in paths, fields and bodies.
    #[serde(default)]
    environment: Vec<String>,
}

/// One request.
#[derive(a2g_guest_sdk::serde::Deserialize, a2g_guest_sdk::schemars::JsonSchema)]
#[serde(crate = "a2g_guest_sdk::serde")]
#[schemars(crate = "a2g_guest_sdk::schemars")]
struct Asked {
    /// As a method of HTTP; GET without one.
    method: Option<String>,
    /// `http` or `https`, or another word.
    scheme: Option<String>,
    /// Host and port.
    authority: String,
    /// The path; `/` without one.
    path: Option<String>,
    /// Further header fields.
    #[serde(default)]
    fields: Vec<(String, String)>,
    /// The body, as often as `times` says.
    body: Option<String>,
    /// The number of times that the body is sent.
    times: Option<u32>,
    /// Texts before and after the body, which are sent once.
    around: Option<(String, String)>,
    /// The fields after the body.
    #[serde(default)]
    trailers: Vec<(String, String)>,
    /// The time limit for the head of the answer, and between its parts, in milliseconds.
    patience_ms: Option<u64>,
    /// The most bytes of the answer to read; all without one, and none with 0, which keeps it open.
    read: Option<u64>,
    /// True to tell fields and body with their characters in the opposite order.
    #[serde(default)]
    reversed: bool,
}

impl Asked {
    fn tell(&self, bytes: &[u8]) -> String {
        let text = String::from_utf8_lossy(bytes);
        if self.reversed { text.chars().rev().collect() } else { text.into_owned() }
    }
}

#[allow(clippy::disallowed_methods, reason = "a guest reads placeholders in its own environment")]
fn hostile_http(context: &mut Context, mut arguments: HostileHttp) -> Result<Value, ToolError> {
    for name in &arguments.environment {
        let value = std::env::var(name).unwrap_or_default();
        for asked in &mut arguments.requests {
            let fields = asked.fields.iter_mut().map(|(_, text)| text);
            for text in fields.chain(&mut asked.path).chain(&mut asked.body) {
                *text = text.replace(&format!("{{{name}}}"), &value);
            }
        }
    }
    if arguments.only_ask {
        return Ok(json!({ "network": a2g_guest_sdk::bindings::a2g::tool::host::network() }));
    }
    for (path, content) in &arguments.write {
        std::fs::write(path, content)?;
    }
    let mut kept = Vec::new();
    let mut answers = Vec::new();
    if arguments.at_once {
        let begun: Vec<_> = arguments.requests.iter().map(|asked| (asked, begin(asked))).collect();
        for (asked, begun) in begun {
            answers.push(begun.and_then(|begun| end(asked, &begun, &mut kept)).unwrap_or_else(|error| error));
        }
    } else {
        for asked in &arguments.requests {
            let answer = begin(asked).and_then(|begun| end(asked, &begun, &mut kept));
            answers.push(answer.unwrap_or_else(|error| error));
        }
    }
    if !arguments.say.is_empty() {
        let text = arguments.say.concat();
        context.log(Level::Info, &text);
        std::io::stderr().write_all(text.as_bytes())?;
        context.progress(50.0, &text);
        context.artifact(&text, "text/plain", &text)?;
        if arguments.fail {
            return Err(ToolError::new("said", &text).with_detail(json!({ "text": text })));
        }
        answers.push(json!({ (text.clone()): [text] }));
    }
    Ok(Value::Array(answers))
}

fn error(code: &ErrorCode) -> Value {
    json!({ "error": format!("{code:?}") })
}

fn begin(asked: &Asked) -> Result<FutureIncomingResponse, Value> {
    let refused = |what: &str| json!({ "refused": what });
    let fields = Fields::new();
    for (name, value) in &asked.fields {
        fields.append(name, value.as_bytes()).map_err(|error| match error {
            HeaderError::Forbidden => refused("forbidden field"),
            HeaderError::InvalidSyntax | HeaderError::Immutable => refused("field"),
        })?;
    }
    let request = OutgoingRequest::new(fields);
    let method = match asked.method.as_deref() {
        None | Some("GET") => Method::Get,
        Some("POST") => Method::Post,
        Some("CONNECT") => Method::Connect,
        Some(other) => Method::Other(other.to_owned()),
    };
    request.set_method(&method).map_err(|()| refused("method"))?;
    let scheme = match asked.scheme.as_deref() {
        None | Some("http") => Scheme::Http,
        Some("https") => Scheme::Https,
        Some(other) => Scheme::Other(other.to_owned()),
    };
    request.set_scheme(Some(&scheme)).map_err(|()| refused("scheme"))?;
    request.set_authority(Some(&asked.authority)).map_err(|()| refused("authority"))?;
    let path = asked.path.as_deref().unwrap_or("/");
    request.set_path_with_query(Some(path)).map_err(|()| refused("path"))?;
    let options = asked.patience_ms.map(|milliseconds| {
        let options = RequestOptions::new();
        let patience = Some(milliseconds.saturating_mul(1_000_000));
        let _taken = options.set_first_byte_timeout(patience);
        let _taken = options.set_between_bytes_timeout(patience);
        options
    });
    let body = match &asked.body {
        Some(text) => Some((text, request.body().map_err(|()| refused("body"))?)),
        None => None,
    };
    let begun = handle(request, options).map_err(|code| error(&code))?;
    if let Some((text, body)) = body {
        if let Ok(stream) = body.write() {
            let around = asked.around.as_ref();
            let (before, after) = around.map_or(("", ""), |(one, other)| (one.as_str(), other.as_str()));
            let times = usize::try_from(asked.times.unwrap_or(1)).unwrap_or(usize::MAX);
            let repeated = std::iter::repeat_n(text.as_str(), times);
            let parts = std::iter::once(before).chain(repeated).chain([after]);
            for part in parts.filter(|part| !part.is_empty()) {
                if stream.blocking_write_and_flush(part.as_bytes()).is_err() {
                    break;
                }
            }
        }
        let trailers = Fields::new();
        for (name, value) in &asked.trailers {
            trailers.append(name, value.as_bytes()).map_err(|_| refused("trailer"))?;
        }
        let _finished = OutgoingBody::finish(body, (!asked.trailers.is_empty()).then_some(trailers));
    }
    Ok(begun)
}

/// Responses and bodies that stay open until the guest ends.
type Kept = Vec<(IncomingResponse, Option<(InputStream, IncomingBody)>)>;

fn end(asked: &Asked, begun: &FutureIncomingResponse, kept: &mut Kept) -> Result<Value, Value> {
    begun.subscribe().block();
    let answer = begun.get().and_then(Result::ok);
    let answer = answer.ok_or_else(|| json!({ "refused": "answer" }))?.map_err(|code| error(&code))?;
    let status = answer.status();
    let entries = answer.headers().entries();
    let fields: Vec<_> = entries
        .into_iter()
        .map(|(name, value)| json!([asked.tell(name.as_bytes()), asked.tell(&value)]))
        .collect();
    let most = asked.read.unwrap_or(u64::MAX);
    let mut told = json!({ "status": status, "fields": fields });
    // A stream has to be dropped before its body.
    let body = answer.consume().ok().and_then(|body| Some((body.stream().ok()?, body)));
    let Some((stream, body)) = body else { return Ok(told) };
    let (mut read, mut first) = (0_u64, Vec::new());
    while read < most {
        match stream.blocking_read(most.min(64 << 10)) {
            Ok(bytes) => {
                read += bytes.len() as u64;
                if first.len() < 4096 {
                    first.extend(bytes);
                }
            }
            Err(StreamError::Closed) => break,
            Err(StreamError::LastOperationFailed(error)) => {
                if let Some(told) = told.as_object_mut() {
                    told.insert("broken".to_owned(), json!(error.to_debug_string()));
                }
                break;
            }
        }
    }
    if let Some(told) = told.as_object_mut() {
        first.truncate(4096);
        told.insert("read".to_owned(), json!(read));
        told.insert("body".to_owned(), json!(asked.tell(&first)));
    }
    if asked.read.is_some() {
        kept.push((answer, Some((stream, body))));
    } else {
        drop((stream, body));
    }
    Ok(told)
}

export_tool!(hostile_http, description = "Sends the requests of its arguments, and tells what came back");
