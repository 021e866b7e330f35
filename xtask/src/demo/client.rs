//! Calls of the executor over HTTP, and reading their answers.

use std::fmt::Display;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// Timeout of a request, longer than any step of the demo.
const TIMEOUT_SECONDS: u64 = 60;

/// The address of the executor.
#[derive(Clone, Copy)]
pub(crate) struct Client(pub(crate) SocketAddr);

impl Client {
    /// Calls a method over JSON-RPC. The answer has either a `result` or an `error`.
    pub(crate) fn call(self, method: &str, params: &Value) -> Result<Value> {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = self.post("/jsonrpc", &[], request)?;
        let is_valid = answer.get("result").is_some() != answer.get("error").is_some();
        ensure!(is_valid, "`{method}` got neither one result nor one error: {answer}");
        Ok(answer)
    }

    /// Posts JSON with more headers. The answer is null if it has no body.
    pub(super) fn post(self, path: &str, headers: &[(&str, &str)], body: impl Display) -> Result<Value> {
        let failed = || format!("POST {path} got no answer");
        let response = self.send(path, headers, body).with_context(failed)?;
        let body = response.as_str().with_context(failed)?;
        ensure!((200..300).contains(&response.status_code), "POST {path}: {} {body}", response.status_code);
        if body.is_empty() { Ok(Value::Null) } else { serde_json::from_str(body).with_context(failed) }
    }

    /// Posts JSON with more headers, and returns the answer with any status.
    pub(super) fn send(
        self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Display,
    ) -> Result<minreq::Response, minreq::Error> {
        let request = minreq::post(format!("http://{}{path}", self.0)).with_timeout(TIMEOUT_SECONDS);
        let request = request.with_header("Content-Type", "application/json");
        let request =
            headers.iter().fold(request, |request, (name, value)| request.with_header(*name, *value));
        request.with_body(body.to_string()).send()
    }

    /// Opens a stream of server-sent events, and returns the JSON of each as it arrives.
    pub(super) fn events(self, path: &str, session: &str) -> Result<impl Iterator<Item = Value>> {
        let request = minreq::get(format!("http://{}{path}", self.0)).with_timeout(TIMEOUT_SECONDS);
        let response = request.with_header("X-Session-Id", session).send_lazy();
        let response = response.with_context(|| format!("GET {path} got no answer"))?;
        // minreq reads until a buffer is full, so a larger one would hold back events.
        let lines = BufReader::with_capacity(1, response).lines().map_while(Result::ok);
        Ok(lines.filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()))
    }
}

/// A member of an answer, or null.
pub(crate) fn at<'a>(answer: &'a Value, pointer: &str) -> &'a Value {
    answer.pointer(pointer).unwrap_or(&Value::Null)
}

/// A text of an answer; empty if there is none.
pub(crate) fn text<'a>(answer: &'a Value, pointer: &str) -> &'a str {
    at(answer, pointer).as_str().unwrap_or_default()
}
