//! Calls that the network of a test answers. What arrives in parts, and what a run does with it, is tested from
//! outside.

use super::messages::EventParser;
use a2g_guest_sdk::http::Request;
use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::testing::{self, Answer, Network};
use std::collections::VecDeque;

const URL: &str = "https://mcp.example/mcp";

/// The input of a call under a revision, with more settings.
fn input(revision: &str, more: Value) -> Value {
    let mut settings = json!({ "kind": "mcp", "url": URL, "tool": "echo", "revision": revision });
    for (name, value) in more.as_object().unwrap() {
        settings[name] = value.clone();
    }
    json!({ "settings": settings, "arguments": { "text": "hü", "region": "eu" } })
}

fn json_answer(status: u16, body: &Value) -> Answer {
    Answer::new(status).header("content-type", "application/json").body(body.to_string())
}

fn events(messages: &[Value]) -> Answer {
    let body = messages.iter().map(|message| format!("data: {message}\n\n")).collect::<String>();
    Answer::new(200).header("content-type", "text/event-stream; charset=utf-8").body(body)
}

fn message(request: &Request) -> Value {
    serde_json::from_slice(request.body_bytes()).unwrap_or_default()
}

fn result(result: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "result": result })
}

fn field<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.headers().get(name)?.to_str().ok()
}

/// The outcome of a call whose only request gets this answer.
fn outcome(answer: Answer, more: Value) -> Result<Value, ToolError> {
    let network = Network::answering(move |_| Ok(answer.clone()));
    let run = testing::invoke(crate::api_client, input("2026-07-28", more));
    assert_eq!(network.requests().len(), 1, "nothing is sent again");
    run.result
}

#[test]
fn a_call_of_the_stateless_revision_is_one_request() {
    let content = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    let answer = json_answer(200, &result(json!({ "resultType": "complete", "content": content })));
    let network = Network::answering(move |_| Ok(answer.clone()));
    let headers = json!([{ "name": "Text", "path": ["text"] }, { "name": "Region", "path": ["region"] },
                         { "name": "Absent", "path": ["a", "b"] }]);
    let run = testing::invoke(crate::api_client, input("2026-07-28", json!({ "headers": headers })));
    assert_eq!(run.result, Ok(json!({ "text": "a\nb" })));
    let [sent] = network.requests().try_into().unwrap();
    assert_eq!(sent.url(), &URL);
    for (name, value) in [
        ("mcp-protocol-version", Some("2026-07-28")),
        ("mcp-method", Some("tools/call")),
        ("mcp-name", Some("echo")),
        ("mcp-param-text", Some("=?base64?aMO8?=")),
        ("mcp-param-region", Some("eu")),
        ("mcp-param-absent", None),
        ("mcp-session-id", None),
        ("accept", Some("application/json, text/event-stream")),
    ] {
        assert_eq!(field(&sent, name), value, "{name}");
    }
    let sent = message(&sent);
    assert_eq!(sent["method"], "tools/call");
    assert_eq!(sent["params"]["arguments"], json!({ "text": "hü", "region": "eu" }));
    let meta = &sent["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({}));
    assert_eq!(meta["progressToken"], sent["id"]);
}

#[test]
fn a_session_is_opened_used_and_ended() {
    let network = Network::answering(|request| {
        let message = message(request);
        Ok(match message["method"].as_str() {
            Some("initialize") => {
                let result = json!({ "protocolVersion": "2025-06-18", "capabilities": {} });
                json_answer(200, &json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))
                    .header("mcp-session-id", "s1")
            }
            Some("tools/call") => events(&[
                json!({ "jsonrpc": "2.0", "id": "x", "method": "sampling/createMessage", "params": {} }),
                json!({ "jsonrpc": "2.0", "id": 7, "method": "ping" }),
                json!({ "jsonrpc": "2.0", "id": message["id"], "result": { "content": [] } }),
            ]),
            Some(_) | None => Answer::new(202),
        })
    });
    let run = testing::invoke(crate::api_client, input("2025-11-25", json!({})));
    assert_eq!(run.result, Ok(json!({ "text": "" })));
    let requests = network.requests();
    let said = requests.iter().map(|request| {
        let message = message(request);
        let method = message["method"].as_str().map(str::to_owned);
        let refused = message["error"]["code"].as_i64().map(|code| code.to_string());
        let named = method.or(refused).unwrap_or_else(|| request.method().to_string());
        (named, field(request, "mcp-session-id").is_some())
    });
    let expected = [
        ("initialize", false),
        ("notifications/initialized", true),
        ("tools/call", true),
        ("-32601", true),
        ("POST", true),
        ("DELETE", true),
    ];
    assert_eq!(said.collect::<Vec<_>>(), expected.map(|(named, session)| (named.to_owned(), session)));
    assert_eq!(field(&requests[0], "mcp-protocol-version"), None);
    assert!(requests[1..].iter().all(|sent| field(sent, "mcp-protocol-version") == Some("2025-06-18")));
}

#[test]
fn progress_and_log_are_passed_on_and_limited() {
    let progress = |token: u64, done: u64| {
        let params = json!({ "progressToken": token, "progress": done, "total": 4, "message": "m" });
        json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
    };
    let log = json!({ "jsonrpc": "2.0", "method": "notifications/message",
                      "params": { "level": "alert", "data": { "a": 1 } } });
    let mut messages = vec![progress(1, 1), progress(2, 2), log];
    messages.extend((0..500).map(|_| progress(1, 3)));
    messages.push(result(json!({ "content": [] })));
    let answer = events(&messages);
    let _network = Network::answering(move |_| Ok(answer.clone()));
    let run = testing::invoke(crate::api_client, input("2026-07-28", json!({})));
    assert!(run.result.is_ok());
    let record = &run.record;
    assert_eq!(record.logs[0].message, r#"{"a":1}"#);
    assert_eq!(record.logs[0].level, Level::Error);
    assert!(record.logs[1].message.contains("302 further messages"), "{:?}", record.logs[1]);
    assert_eq!(record.progress.len(), 199);
    assert_eq!(record.progress[0].percent, Some(25.0));
}

#[test]
fn files_of_a_result_become_artifacts() {
    let content = json!([
        { "type": "image", "mimeType": "image/png", "data": "AAE=" },
        { "type": "audio", "mimeType": "no type", "data": "AAE=" },
        { "type": "resource", "resource": { "uri": "file:///a/../x y.txt?q", "mimeType": "text/plain", "text": "t" } },
        { "type": "resource", "resource": { "uri": "..", "blob": "AAE=" } },
        { "type": "image", "mimeType": "image/png", "data": "" },
        { "type": "resource_link", "uri": "a:b", "name": "n", "extra": 1 },
        { "type": "video" },
    ]);
    let answer = json_answer(200, &result(json!({ "content": content, "structuredContent": [1] })));
    let _network = Network::answering(move |_| Ok(answer.clone()));
    let run = testing::invoke(crate::api_client, input("2026-07-28", json!({})));
    let names = ["image.png", "audio.octet-stream", "x_y.txt", "resource", "2-image.png"];
    let links = json!([{ "uri": "a:b", "name": "n" }]);
    let expected = json!({ "text": "", "structured": [1], "artifacts": names, "links": links });
    assert_eq!(run.result, Ok(expected));
    let sent = run.record.artifacts.iter().map(|artifact| (&*artifact.mime, artifact.content.len()));
    let any = "application/octet-stream";
    assert_eq!(
        sent.collect::<Vec<_>>(),
        [("image/png", 2), (any, 2), ("text/plain", 1), (any, 2), ("image/png", 0)]
    );
}

#[test]
fn the_result_of_a_tool_with_an_output_schema_is_its_structured_content() {
    let structured = json!({ "structured": true });
    let answered = |inner: Value| outcome(json_answer(200, &result(inner)), structured.clone());
    let content = json!([{ "type": "text", "text": "{}" }]);
    assert_eq!(answered(json!({ "content": content, "structuredContent": 3 })), Ok(json!(3)));
    assert_eq!(answered(json!({ "content": content })).unwrap_err().code(), "protocol_error");
    let failed = answered(json!({ "content": content, "isError": true })).unwrap_err();
    assert_eq!((failed.code(), failed.message()), ("tool_failed", "{}"));
}

#[test]
fn what_is_no_answer_is_a_named_error() {
    let ok = result(json!({ "content": [] }));
    let error = |code: i64| json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": code, "message": "no" } });
    let asks = json!({ "a": { "method": "elicitation/create" } });
    let other = json!({ "jsonrpc": "2.0", "id": 2, "result": { "content": [] } });
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "roots/list" });
    for (answer, code, words) in [
        (
            Answer::new(307).header("location", "https://b.example/x?key=1"),
            "redirect_refused",
            "`https://b.example/x`",
        ),
        (Answer::new(401), "unauthorized", "check its secret"),
        (Answer::new(500).body("broken"), "http_error", "500): broken"),
        (Answer::new(202), "protocol_error", "neither JSON nor"),
        (
            Answer::new(200).header("content-type", "text/html").body("<"),
            "protocol_error",
            "neither JSON nor",
        ),
        (json_answer(200, &other), "protocol_error", "another request"),
        (events(&[other, ok.clone()]), "protocol_error", "another request"),
        (events(&[]), "protocol_error", "before the result"),
        (events(&[request]), "protocol_error", "`roots/list`"),
        (json_answer(200, &json!([ok])), "protocol_error", "not a message"),
        (json_answer(200, &json!({ "id": 1, "result": {} })), "protocol_error", "not a message"),
        (json_answer(200, &error(-32602)), "server_error", "no (code -32602)"),
        (json_answer(400, &error(-32022)), "definition_outdated", "tool sync"),
        (json_answer(200, &result(json!({}))), "protocol_error", "no list of content"),
        (json_answer(200, &result(json!({ "resultType": "task" }))), "protocol_error", "`task`"),
        (
            json_answer(200, &result(json!({ "resultType": "input_required", "inputRequests": asks }))),
            "input_required",
            "elicitation/create",
        ),
    ] {
        let found = outcome(answer, json!({})).unwrap_err();
        assert_eq!(found.code(), code, "{found}");
        assert!(found.message().contains(words) && !found.message().contains("key=1"), "{found}");
    }
}

#[test]
fn events_are_read_however_they_are_cut() {
    let text = "\u{feff}: c\r\ndata: {\"a\":\r\ndata:1}\r\n\r\nevent: other\rdata: x\r\revent: other\n\nid: 7\ndata\n\n\
                event: message\ndata:  y \nretry: 5\n\ndata: unfinished\n";
    let expected = ["{\"a\":\n1}", " y "];
    for size in 1..=text.len() {
        let mut parser = EventParser::default();
        let mut found = VecDeque::new();
        for part in text.as_bytes().chunks(size) {
            parser.push(part, &mut found).unwrap();
        }
        assert_eq!(found, expected, "in parts of {size} bytes");
    }
}
