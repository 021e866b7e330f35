//! The same call over three protocols, each with an id that the next node knows it by.

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use uuid::Uuid;

use super::nodes::TOOL;
use crate::demo::client::{Client, at, text};

const REVISION: &str = "2026-07-28";

/// The protocol of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    A2g,
    A2a,
    Mcp,
}

pub(super) const DOORS: [Door; 3] = [Door::A2g, Door::A2a, Door::Mcp];

impl Door {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::A2g => "A2G",
            Self::A2a => "A2A",
            Self::Mcp => "MCP",
        }
    }

    /// The agent of a call without a token.
    fn agent(self) -> &'static str {
        match self {
            Self::A2g => "did:a2g:agent:1.0:demo",
            Self::A2a => "did:a2g:agent:1.0:a2a",
            Self::Mcp => "did:a2g:agent:1.0:mcp",
        }
    }
}

/// One call of the tool.
#[derive(Debug)]
pub(super) struct Intent {
    /// The number that the tool writes down.
    pub(super) number: usize,
    pub(super) door: Door,
    /// The client's id, except over A2A, where the server names it: `None` until it has.
    pub(super) id: Option<Uuid>,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The intent has ended, with this status in its report.
    Ended(String),
    /// The node asks for a repeat after this time.
    Refused { retry_after_ms: u64 },
    /// The connection was not made, or ended without an answer: the tool may have run.
    Broken,
}

impl Intent {
    pub(super) fn new(number: usize, door: Door) -> Self {
        Self { number, door, id: (door != Door::A2a).then(Uuid::new_v4) }
    }

    fn arguments(&self) -> Value {
        json!({ "number": self.number })
    }

    /// Sends the intent to a node. A call over A2A that already has a task is repeated over A2G: tasks belong to one
    /// node, and intents to the fleet.
    ///
    /// # Errors
    ///
    /// An answer that is neither a report nor a request to repeat the call.
    pub(super) fn send(&mut self, client: Client) -> Result<Reply> {
        match (self.door, self.id) {
            (Door::A2a, None) => self.send_over_a2a(client),
            (Door::A2g | Door::A2a, Some(id)) => self.send_over_a2g(client, id),
            (Door::Mcp, Some(id)) => self.send_over_mcp(client, id),
            (Door::A2g | Door::Mcp, None) => bail!("only A2A names intents by itself"),
        }
    }

    fn send_over_a2g(&self, client: Client, id: Uuid) -> Result<Reply> {
        let params = json!({ "agent_did": self.door.agent(), "intent_id": id.to_string(), "tool": TOOL,
            "arguments": self.arguments() });
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "a2g/intent", "params": params });
        let Some(answer) = post(client, "/jsonrpc", &[], &request) else { return Ok(Reply::Broken) };
        read_reply(&answer, &["/result/report/status", "/error/data/report/status"])
    }

    /// Creates a task, and then sends it the call, so that the id of the intent is known before the tool may run.
    fn send_over_a2a(&mut self, client: Client) -> Result<Reply> {
        let greeting = a2a_request(&json!({ "kind": "text", "text": "A call follows." }), None);
        let Some(answer) = post(client, "/a2a/rpc", &[], &greeting) else { return Ok(Reply::Broken) };
        if let Some(refused) = read_refusal(&answer) {
            return Ok(refused);
        }
        let task = text(&answer, "/result/id").to_owned();
        self.id = Some(task.parse().with_context(|| format!("A2A created no task: {answer}"))?);
        let call = json!({ "kind": "data", "data": { "tool": TOOL, "arguments": self.arguments() } });
        let call = a2a_request(&call, Some(&task));
        let Some(answer) = post(client, "/a2a/rpc", &[], &call) else { return Ok(Reply::Broken) };
        read_reply(&answer, &["/result/metadata/status"])
    }

    fn send_over_mcp(&self, client: Client, id: Uuid) -> Result<Reply> {
        let meta = json!({ "io.modelcontextprotocol/protocolVersion": REVISION,
            "io.modelcontextprotocol/clientCapabilities": {}, "a2g/intent_id": id.to_string() });
        let params = json!({ "name": TOOL, "arguments": self.arguments(), "_meta": meta });
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let headers = [("MCP-Protocol-Version", REVISION), ("Mcp-Method", "tools/call"), ("Mcp-Name", TOOL)];
        let Some(answer) = post(client, "/mcp", &headers, &request) else { return Ok(Reply::Broken) };
        if at(&answer, "/result/isError") == false {
            return Ok(Reply::Ended("SUCCESS".to_owned()));
        }
        read_reply(&answer, &["/result/_meta/a2g~1error/status"])
    }
}

/// A message with one part, to a new task or to this one.
fn a2a_request(part: &Value, task: Option<&str>) -> Value {
    let mut message = json!({ "kind": "message", "role": "user", "messageId": Uuid::new_v4().to_string(),
        "parts": [part] });
    if let (Some(members), Some(task)) = (message.as_object_mut(), task) {
        members.insert("taskId".to_owned(), task.into());
    }
    json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": { "message": message } })
}

/// Posts a request. Returns `None` without a whole answer.
fn post(client: Client, path: &str, headers: &[(&str, &str)], request: &Value) -> Option<Value> {
    let response = client.send(path, headers, request).ok()?;
    serde_json::from_slice(response.as_bytes()).ok()
}

/// Reads the status of the report at one of these places, or the request to repeat the call.
fn read_reply(answer: &Value, places: &[&str]) -> Result<Reply> {
    let status = places.iter().find_map(|place| at(answer, place).as_str());
    let reply = status.map(|status| Reply::Ended(status.to_owned())).or_else(|| read_refusal(answer));
    reply.with_context(|| format!("the answer has neither a report nor a time for a repeat: {answer}"))
}

/// Each protocol has the time for a repeat at another place of its answers.
fn read_refusal(answer: &Value) -> Option<Reply> {
    let find = |value: &Value| read_refusal(value);
    match answer {
        Value::Object(members) => {
            let time = members.get("retry_after_ms").and_then(Value::as_u64);
            let refused = time.map(|retry_after_ms| Reply::Refused { retry_after_ms });
            refused.or_else(|| members.values().find_map(find))
        }
        Value::Array(items) => items.iter().find_map(find),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_comes_before_a_time_for_a_repeat() {
        let places = ["/result/report/status", "/error/data/report/status"];
        for (answer, reply) in [
            (json!({ "result": { "report": { "status": "SUCCESS" } } }), Reply::Ended("SUCCESS".to_owned())),
            (
                json!({ "error": { "data": { "report": { "status": "ABORTED" } } } }),
                Reply::Ended("ABORTED".to_owned()),
            ),
            (json!({ "error": { "data": { "retry_after_ms": 5 } } }), Reply::Refused { retry_after_ms: 5 }),
            (
                json!({ "result": [{ "data": { "retry_after_ms": 7 } }] }),
                Reply::Refused { retry_after_ms: 7 },
            ),
        ] {
            assert_eq!(read_reply(&answer, &places).unwrap(), reply);
        }
        assert!(read_reply(&json!({ "error": { "code": -32603 } }), &places).is_err());
    }
}
