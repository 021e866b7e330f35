//! The recorded answers of an example, in place of the network.
//!
//! A request that is not the next recorded one fails the example. The grant was checked before: a request that the tool
//! does not declare never arrives here.

use a2g_capability::{Host, HostClaims, HostPattern};
use a2g_command::output::one_line;
use a2g_core::catalog::{AnswerBody, Example, RecordedAnswer};
use a2g_sandbox::egress::{Answers, Body, EgressError, NetworkError, SendFuture};
use anyhow::Context as _;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// The maximum size of a request's body, in bytes.
const MAX_BODY_BYTES: usize = 4 << 20;
/// The number of bytes of a body that a message shows.
const MAX_SHOWN_BYTES: usize = 200;

/// The recorded answers of the example that runs.
#[derive(Debug, Default)]
pub(crate) struct Replay(Mutex<Script>);

#[derive(Debug, Default)]
struct Script {
    next: VecDeque<RecordedAnswer>,
    /// What was sent instead of the next recorded request, for the first time.
    unexpected: Option<String>,
}

impl Replay {
    /// The answers of the examples; `None` if they have none, and so no network.
    pub(crate) fn of(examples: &[Example]) -> Option<Arc<Self>> {
        examples.iter().any(|example| !example.answers.is_empty()).then(Arc::default)
    }

    /// Begins an example.
    pub(crate) fn begin(&self, example: &Example) {
        *self.0.lock() = Script { next: example.answers.iter().cloned().collect(), unexpected: None };
    }

    /// The difference between the requests that were sent and the recorded ones, as a sentence.
    pub(crate) fn difference(&self) -> Option<String> {
        let script = self.0.lock();
        let left =
            || script.next.front().map(|answer| format!("{} was not sent", one_line(request_text(answer))));
        script.unexpected.clone().or_else(left)
    }

    /// The next recorded answer, if it is that of this request.
    fn take(&self, sent: &str, body: &[u8]) -> Option<RecordedAnswer> {
        let mut script = self.0.lock();
        if script.next.front().is_some_and(|answer| request_text(answer) == sent) {
            return script.next.pop_front();
        }
        let expected = match script.next.front() {
            Some(answer) => format!("the next recorded request is {}", one_line(request_text(answer))),
            None => "no further request is recorded".to_owned(),
        };
        let shown = String::from_utf8_lossy(body.get(..MAX_SHOWN_BYTES).unwrap_or(body)).into_owned();
        let with_body =
            if shown.is_empty() { String::new() } else { format!(" with the body {}", one_line(shown)) };
        let unexpected = format!("it sent {}{with_body}, but {expected}", one_line(sent));
        script.unexpected.get_or_insert(unexpected);
        None
    }
}

fn request_text(answer: &RecordedAnswer) -> String {
    format!("{} {}", answer.method, answer.url)
}

impl Answers for Replay {
    fn answer(self: Arc<Self>, url: String, request: Request<Body>) -> SendFuture {
        Box::pin(async move {
            let sent = format!("{} {url}", request.method());
            let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await;
            let body = body.map_err(|_| EgressError::from(NetworkError::RequestBody))?.to_bytes();
            let answer = self.take(&sent, &body).ok_or(NetworkError::Refused)?;
            response(&answer).ok_or_else(|| NetworkError::Response.into())
        })
    }
}

/// The answer as the tool gets it; `None` if it is not one of HTTP.
fn response(answer: &RecordedAnswer) -> Option<Response<Body>> {
    let RecordedAnswer { method: _, url: _, status, headers, body } = answer;
    let text = match body {
        AnswerBody::Text(text) => text.clone(),
        AnswerBody::Json(value) => value.to_string(),
    };
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(*status).ok()?;
    if let AnswerBody::Json(_) = answer.body {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        response.headers_mut().insert(name, HeaderValue::from_str(value).ok()?);
    }
    Some(response)
}

/// The hosts of the recorded requests, which are all that a run of the examples may reach.
///
/// # Errors
/// If a recorded answer is not one of HTTP, or its request has no host.
pub(crate) fn recorded_hosts(examples: &[Example]) -> anyhow::Result<HostClaims> {
    let mut allowed = Vec::new();
    for answer in examples.iter().flat_map(|example| &example.answers) {
        let text = request_text(answer);
        let invalid = || format!("the recorded answer to {} is not one of HTTP", one_line(&text));
        response(answer).with_context(invalid)?;
        let url = url::Url::parse(&answer.url).with_context(invalid)?;
        allowed.push(HostPattern::Exactly(Host::parse(url.host_str().with_context(invalid)?)?));
    }
    Ok(HostClaims { allowed: Some(allowed), ..HostClaims::default() })
}
