//! The same call over each of the six protocols, which all lead to the same core.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Map, Value, json};
use sha2::Sha256;
use uuid::Uuid;

use super::client::{Client, at, text};
use super::output::mark;
use crate::run::{self, BOLD};

/// The Nexus agent.
pub(super) const NEXUS_AGENT: &str = "demo";
/// The secret that signs this agent's messages.
pub(super) const NEXUS_SECRET: &str = "a-secret-that-only-the-demo-uses";

/// Calls a tool with arguments over one protocol. Returns the tool's result, or null.
type Call = fn(Client, &str, &Value) -> Result<Value>;

const PROTOCOLS: [(&str, &str, Call); 6] = [
    ("A2G", "POST /jsonrpc, a2g/intent", call_a2g),
    ("A2A", "POST /a2a/rpc, message/send", call_a2a),
    ("A2E", "POST /a2e/send, tool/call/req", call_a2e),
    ("MCP", "POST /mcp, tools/call", call_mcp),
    ("Nexus", "POST /nexus, a signed command", call_nexus),
    ("sovereign", "POST /run, read_file", call_sovereign),
];

/// Sends the same call over each protocol and prints the results. Returns `true` if they are equal.
pub(super) fn compare(client: Client) -> Result<bool> {
    anstream::println!("\n{BOLD}The same call over each protocol{BOLD:#}");
    let mut first = None;
    let mut all_agree = true;
    for (name, endpoint, call) in PROTOCOLS {
        let result = call(client, "read_file", &json!({ "path": "/workspace/todo.txt" }))?;
        let content = text(&result, "/content").lines().next();
        let agrees = content.is_some() && first.get_or_insert_with(|| result.clone()) == &result;
        all_agree &= agrees;
        anstream::println!("{} {name:<9} {endpoint:<30} {}", mark(agrees), content.unwrap_or("no content"));
    }
    Ok(all_agree)
}

fn call_a2g(client: Client, tool: &str, arguments: &Value) -> Result<Value> {
    let params = json!({ "agent_did": "did:a2g:agent:1.0:visitor", "intent_id": Uuid::new_v4().to_string(), "tool": tool,
        "arguments": arguments });
    Ok(at(&client.call("a2g/intent", &params)?, "/result/report/result").clone())
}

fn call_a2a(client: Client, tool: &str, arguments: &Value) -> Result<Value> {
    let part = json!({ "kind": "data", "data": { "tool": tool, "arguments": arguments } });
    let message = json!({ "role": "user", "messageId": Uuid::new_v4().to_string(), "parts": [part] });
    let request =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": { "message": message } });
    Ok(at(&client.post("/a2a/rpc", &[], request)?, "/result/artifacts/0/parts/0/data").clone())
}

fn call_a2e(client: Client, tool: &str, arguments: &Value) -> Result<Value> {
    let opened = client.post("/a2e/session", &[], "")?;
    let session = text(&opened, "/session_id");
    let mut events = client.events("/a2e/stream", session)?;
    let handshake = json!({ "a2e": "1.0", "type": "handshake/req", "id": "1", "ts": 1, "agent_id": "visitor",
        "agent_caps": ["tools"], "auth_token": "" });
    let call = json!({ "a2e": "1.0", "type": "tool/call/req", "id": "2", "ts": 2, "tool_name": tool,
        "arguments": arguments });
    client.post("/a2e/send", &[("X-Session-Id", session)], format!("{handshake}\n{call}\n"))?;
    let answer = events.find(|event| text(event, "/type") == "tool/call/resp");
    Ok(at(&answer.unwrap_or_default(), "/data/data").clone())
}

fn call_mcp(client: Client, tool: &str, arguments: &Value) -> Result<Value> {
    const REVISION: &str = "2026-07-28";
    let meta = json!({ "io.modelcontextprotocol/protocolVersion": REVISION,
        "io.modelcontextprotocol/clientCapabilities": {} });
    let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let headers = [("MCP-Protocol-Version", REVISION), ("Mcp-Method", "tools/call"), ("Mcp-Name", tool)];
    Ok(at(&client.post("/mcp", &headers, request)?, "/result/structuredContent").clone())
}

#[allow(clippy::disallowed_methods, reason = "the rule is for the executor, whose clock tests can set")]
fn call_nexus(client: Client, tool: &str, arguments: &Value) -> Result<Value> {
    let timestamp = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
    // The signed members; serde_json keeps their order.
    let signed = json!({
        "id": Uuid::new_v4().to_string(), "type": "command",
        "from": { "id": NEXUS_AGENT, "type": "desktop", "version": "1.0.0", "capabilities": [] },
        "to": { "id": "did:a2g:executor:1.0:local", "type": "mcp", "version": "1.0.0", "capabilities": [] },
        "action": "tool.execute", "payload": { "parameters": { "tool": tool, "arguments": arguments } },
        "timestamp": timestamp,
    });
    let mac = Hmac::<Sha256>::new_from_slice(NEXUS_SECRET.as_bytes())?.chain_update(signed.to_string());
    let others = json!({
        "version": "1.0.0", "priority": "normal", "ttl": 60_000, "requiresAck": false, "requiresSignature": true,
        "signature": run::to_hex(&mac.finalize().into_bytes()),
    });
    let members = [signed, others].into_iter().filter_map(|part| part.as_object().cloned()).flatten();
    let message: Map<String, Value> = members.collect();
    Ok(at(&client.post("/nexus", &[], json!(message))?, "/data/result").clone())
}

fn call_sovereign(client: Client, tool: &str, arguments: &Value) -> Result<Value> {
    let request = json!({ "jsonrpc": "3.0", "id": 1, "method": tool, "params": { "payload": arguments } });
    Ok(at(&client.post("/run", &[], request)?, "/result/data").clone())
}
