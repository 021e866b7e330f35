//! The messages of an MCP client, and how they are posted.

use super::{Executor, HttpAnswer, HttpClient, TIMEOUT};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

pub const LATEST: &str = "2026-07-28";

/// `_meta` that every request of 2026-07-28 has.
fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": LATEST,
        "io.modelcontextprotocol/clientInfo": { "name": "tests", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// A request of 2026-07-28.
pub fn request(id: u64, method: &str, mut params: Value) -> Value {
    let mut all = meta();
    for (name, value) in params["_meta"].as_object().cloned().unwrap_or_default() {
        all[name] = value;
    }
    params["_meta"] = all;
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// A call of 2026-07-28.
pub fn call(id: u64, tool: &str, arguments: &Value) -> Value {
    request(id, "tools/call", json!({ "name": tool, "arguments": arguments }))
}

/// The headers that repeat a message; those of a call where it cannot be read.
pub fn mirror_headers(message: &[u8]) -> Vec<(&'static str, String)> {
    let message: Value = serde_json::from_slice(message).unwrap_or_default();
    let text = |pointer: &str| message.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let version = text("/params/_meta/io.modelcontextprotocol~1protocolVersion").unwrap_or(LATEST.to_owned());
    let mut headers = vec![
        ("MCP-Protocol-Version", version),
        ("Mcp-Method", text("/method").unwrap_or_default()),
        ("Accept", "application/json, text/event-stream".to_owned()),
    ];
    let name = ["/params/name", "/params/uri", "/params/taskId"].into_iter().find_map(text);
    headers.extend(name.map(|name| ("Mcp-Name", name)));
    headers
}

pub fn post(client: &mut HttpClient, message: &Value, more: &[(&str, &str)]) -> HttpAnswer {
    let body = message.to_string();
    let mirrored = mirror_headers(body.as_bytes());
    let mut headers = vec![("Content-Type", "application/json")];
    headers.extend(
        mirrored
            .iter()
            .filter(|(name, _)| !more.iter().any(|(other, _)| other == name))
            .map(|(name, value)| (*name, &**value)),
    );
    headers.extend(more.iter().filter(|(_, value)| !value.is_empty()));
    client.request("POST", "/mcp", &headers, body.as_bytes())
}

/// The messages of an answer of events.
pub fn events(answer: &HttpAnswer) -> Vec<Value> {
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| !data.is_empty());
    data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

/// The first message of a session of 2025-11-25.
pub fn initialize_request(capabilities: Value) -> Value {
    let client = json!({ "name": "tests", "version": "1" });
    let params =
        json!({ "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params })
}

/// Opens a session of 2025-11-25, and gives its id.
pub fn open_session(client: &mut HttpClient, more: &[(&str, &str)], capabilities: Value) -> String {
    let headers = [&[("Content-Type", "application/json")], more].concat();
    let answer =
        client.request("POST", "/mcp", &headers, initialize_request(capabilities).to_string().as_bytes());
    assert_eq!(answer.json()["result"]["protocolVersion"], "2025-11-25", "{}", answer.text());
    let session = answer.headers.iter().find(|(name, _)| name == "mcp-session-id");
    session.expect("a session").1.clone()
}

/// Sends a message, and reads the events of its answer as they come. Dropping them closes the connection.
pub fn stream(
    executor: &Executor,
    more: &[(&str, &str)],
    message: &Value,
) -> impl Iterator<Item = Value> + use<> {
    let body = message.to_string();
    let mirrored = mirror_headers(body.as_bytes());
    let is_overridden = |name: &str| more.iter().any(|(other, _)| *other == name);
    let mirrored = mirrored.iter().filter(|(name, _)| !is_overridden(name));
    let headers = mirrored
        .map(|(name, value)| (*name, &**value))
        .chain(more.iter().copied())
        .map(|(name, value)| format!("{name}: {value}\r\n"));
    let mut stream = TcpStream::connect(executor.address()).expect("a connection");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{}Content-Length: {}\r\n\r\n{body}",
        headers.collect::<String>(),
        body.len()
    )
    .expect("it reads");
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
}

/// A request whose client polls tasks.
pub fn with_tasks(mut message: Value) -> Value {
    let capabilities = &mut message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    capabilities["extensions"] = json!({ "io.modelcontextprotocol/tasks": {} });
    message
}

/// A request whose client shows forms.
pub fn with_forms(mut message: Value) -> Value {
    let capabilities = &mut message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    capabilities["elicitation"] = json!({ "form": {} });
    message
}

/// The same call again, with the state of its answer and the action of a person.
pub fn answered(message: &Value, result: &Value, action: &str, decision: Option<&str>) -> Value {
    let mut again = message.clone();
    again["id"] = json!(again["id"].as_u64().expect("an id") + 1);
    again["params"]["requestState"] = result["requestState"].clone();
    let content = decision.map(|decision| json!({ "decision": decision }));
    again["params"]["inputResponses"] = json!({ "decision": { "action": action, "content": content } });
    again
}
