//! The same call through each of the five doors, which all lead to the same core.

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use super::client::Client;
use super::paint::{Ink, painted, say};
use super::story::new_intent;
use crate::run::{self, Failure};

/// The agent that signs its messages, and what it signs them with.
pub(super) const NEXUS_AGENT: &str = "demo";
pub(super) const NEXUS_SECRET: &str = "the-secret-of-the-demo-and-of-nobody-else";
/// The executor's own name, where none is configured.
const EXECUTOR: &str = "did:a2g:executor:1.0:local";

/// Calls a tool in the words of one protocol, and gives what it gave back.
type Ask = fn(Client, &str, &Value) -> Result<Value, Failure>;

const DOORS: [(&str, &str, Ask); 5] = [
    ("A2G", "POST /jsonrpc, a2g/intent", a2g),
    ("A2A", "POST /a2a/rpc, message/send", a2a),
    ("A2E", "POST /a2e/send, tool/call/req", a2e),
    ("Nexus", "POST /nexus, a signed command", nexus),
    ("sovereign", "POST /run, read_file", sovereign),
];

/// Sends the same call through each door and shows what came back. Returns whether it was the same.
///
/// # Errors
/// When a door does not answer.
pub(super) fn show(client: Client) -> Result<bool, Failure> {
    say(painted("\nThe same call through each door", Ink::Bold));
    let arguments = json!({ "path": "/workspace/todo.txt" });
    let mut first = None;
    let mut same = true;
    for (name, how, ask) in DOORS {
        let result = ask(client, "read_file", &arguments)?;
        let content = result.pointer("/content").and_then(Value::as_str).unwrap_or("nothing");
        let agrees = content != "nothing" && first.get_or_insert_with(|| result.clone()) == &result;
        same &= agrees;
        let mark = if agrees { painted("✓", Ink::Green) } else { painted("✗", Ink::Red) };
        say(format_args!("{mark} {name:<9} {how:<30} {}", content.lines().next().unwrap_or_default()));
    }
    Ok(same)
}

/// A member of an answer, null when it is not there.
fn at(answer: &Value, pointer: &str) -> Value {
    answer.pointer(pointer).cloned().unwrap_or_default()
}

fn a2g(client: Client, tool: &str, arguments: &Value) -> Result<Value, Failure> {
    let agent = "did:a2g:agent:1.0:visitor";
    let params =
        json!({ "agent_did": agent, "intent_id": new_intent(), "tool": tool, "arguments": arguments });
    Ok(at(&client.call("a2g/intent", &params)?, "/result/report/result"))
}

fn a2a(client: Client, tool: &str, arguments: &Value) -> Result<Value, Failure> {
    let part = json!({ "kind": "data", "data": { "tool": tool, "arguments": arguments } });
    let message = json!({ "role": "user", "messageId": new_intent(), "parts": [part] });
    let request =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": { "message": message } });
    let answer = client.post("/a2a/rpc", "", &request.to_string())?;
    Ok(at(&answer, "/result/artifacts/0/parts/0/data"))
}

fn a2e(client: Client, tool: &str, arguments: &Value) -> Result<Value, Failure> {
    let session = at(&client.post("/a2e/session", "", "")?, "/session_id");
    let header = format!("X-Session-Id: {}\r\n", session.as_str().unwrap_or_default());
    let no_stream = |error: std::io::Error| Failure::Program(format!("GET /a2e/stream: {error}"));
    let mut events = client.events("/a2e/stream", &header).map_err(no_stream)?;
    let shake = json!({ "a2e": "1.0", "type": "handshake/req", "id": "1", "ts": 1, "agent_id": "visitor",
        "agent_caps": ["tools"], "auth_token": "" });
    let call = json!({ "a2e": "1.0", "type": "tool/call/req", "id": "2", "ts": 2, "tool_name": tool,
        "arguments": arguments });
    client.post("/a2e/send", &header, &format!("{shake}\n{call}\n"))?;
    let answer = events.find(|event| at(event, "/type") == "tool/call/resp").unwrap_or_default();
    Ok(at(&answer, "/data/data"))
}

fn nexus(client: Client, tool: &str, arguments: &Value) -> Result<Value, Failure> {
    let id = new_intent();
    let timestamp = u64::try_from(run::now_ms()).unwrap_or_default();
    let from = json!({ "id": NEXUS_AGENT, "type": "desktop", "version": "1.0.0", "capabilities": [] });
    let to = json!({ "id": EXECUTOR, "type": "mcp", "version": "1.0.0", "capabilities": [] });
    let payload = json!({ "parameters": { "tool": tool, "arguments": arguments } });
    let signed = format!(
        r#"{{"id":"{id}","type":"command","from":{from},"to":{to},"action":"tool.execute","payload":{payload},"timestamp":{timestamp}}}"#
    );
    let not_a_key = |_| Failure::Program("the secret of the demo is no key".to_owned());
    let mac = Hmac::<Sha256>::new_from_slice(NEXUS_SECRET.as_bytes()).map_err(not_a_key)?;
    let signature = mac.chain_update(&signed).finalize().into_bytes();
    let signature: String = signature.iter().map(|byte| format!("{byte:02x}")).collect();
    let message = json!({
        "id": id, "type": "command", "version": "1.0.0", "timestamp": timestamp, "from": from, "to": to,
        "action": "tool.execute", "payload": payload, "signature": signature, "priority": "normal",
        "ttl": 60_000, "requiresAck": false, "requiresSignature": true,
    });
    let answer = client.post("/nexus", "", &message.to_string())?;
    Ok(at(&answer, "/data/result"))
}

fn sovereign(client: Client, tool: &str, arguments: &Value) -> Result<Value, Failure> {
    let request = json!({ "jsonrpc": "3.0", "id": 1, "method": tool, "params": { "payload": arguments } });
    Ok(at(&client.post("/run", "", &request.to_string())?, "/result/data"))
}
