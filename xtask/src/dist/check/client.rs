//! A client of `a2g-executor mcp` over standard input and output.
//!
//! It speaks the revision without sessions, in which a request has everything in itself, and approves what it is asked.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::demo::client::text;
use crate::run;

/// The time limit of an answer. A development build compiles all tools before its first one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(240);
/// The time limit of the end after the end of standard input.
const END_TIMEOUT: Duration = Duration::from_secs(90);

/// A running server.
pub(super) struct Client {
    child: Child,
    /// `None` once it is closed.
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    next_id: u64,
}

impl Client {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let what = format!("could not start {command:?}");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context(what)?;
        let output = child.stdout.take().context("the server has no output")?;
        let input = child.stdin.take();
        let (sender, lines) = mpsc::channel();
        // It ends with the server, or with this program.
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, input, lines, next_id: 0 })
    }

    /// Checks that these are the names of all tools.
    pub(super) fn ensure_lists(&mut self, expected: &[String]) -> Result<()> {
        let result = self.request("tools/list", json!({}))?;
        let tools = result.get("tools").and_then(Value::as_array).context("`tools/list` has no list")?;
        let listed: Vec<&str> = tools.iter().map(|tool| text(tool, "/name")).collect();
        let count = expected.len();
        ensure!(listed == expected, "`tools/list` has not the {count} tools of the release: {listed:?}");
        Ok(())
    }

    /// The result of a call. If the server asks a person, this client approves.
    pub(super) fn call(&mut self, tool: &str, arguments: &Value) -> Result<Value> {
        let params = json!({ "name": tool, "arguments": arguments });
        let result = self.request("tools/call", params.clone())?;
        if text(&result, "/resultType") != "input_required" {
            return Ok(result);
        }
        let mut answer = params;
        let members = answer.as_object_mut().context("an object")?;
        let state = result.get("requestState").cloned().unwrap_or_default();
        members.insert("requestState".to_owned(), state);
        let approval = json!({ "decision": { "action": "accept", "content": { "decision": "approve" } } });
        members.insert("inputResponses".to_owned(), approval);
        let mut result = self.request("tools/call", answer)?;
        if let Some(members) = result.as_object_mut() {
            members.insert("was_asked".to_owned(), json!(true));
        }
        Ok(result)
    }

    fn request(&mut self, method: &str, mut params: Value) -> Result<Value> {
        self.next_id += 1;
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": { "elicitation": { "form": {} } },
        });
        params.as_object_mut().context("an object")?.insert("_meta".to_owned(), meta);
        let message = json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params });
        let input = self.input.as_mut().context("standard input is closed")?;
        writeln!(input, "{message}").context("the server reads nothing")?;
        let started = run::now();
        while let Some(rest) = ANSWER_TIMEOUT.checked_sub(started.elapsed()) {
            let line = self.lines.recv_timeout(rest);
            let line = line.with_context(|| format!("the server does not answer `{method}`"))?;
            let answer: Value =
                serde_json::from_str(&line).with_context(|| format!("no message of MCP: {line}"))?;
            if answer.get("id") == Some(&json!(self.next_id)) {
                let result = answer.get("result").cloned();
                return result.with_context(|| format!("`{method}` is refused: {answer}"));
            }
        }
        bail!("the server does not answer `{method}`")
    }

    /// Closes standard input, upon which the server ends.
    pub(super) fn end(mut self) -> Result<()> {
        drop(self.input.take());
        let status = run::wait(&mut self.child, END_TIMEOUT, |_| {})?;
        ensure!(status.is_some_and(|status| status.success()), "the server ended with {status:?}");
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended already.
        let _has_ended = self.child.kill();
        let _was_reaped = self.child.wait();
    }
}
