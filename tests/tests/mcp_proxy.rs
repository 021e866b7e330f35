//! `a2g-executor mcp --connect`: a host on standard input and output, and an executor that runs already.

use crate::callers::{List, agent, ends};
use crate::harness::*;
use crate::mcp::{Host, call, initialize_request, request};
use crate::methods::{self, ESCALATES, catalogue, write};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;

fn write_token(folder: &Path, token: &str) -> String {
    let path = folder.join("token");
    std::fs::write(&path, format!("{token}\n")).expect("a file");
    set_mode(&path, 0o600);
    path.to_str().expect("UTF-8").to_owned()
}

fn notify(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

fn session_call(id: u64, tool: &str, arguments: &Value) -> Value {
    let params = json!({ "name": tool, "arguments": arguments });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
}

#[test]
fn a_host_uses_an_executor_that_runs_already() {
    let (list, folder) = (List::new(), tempfile::tempdir().expect("a folder"));
    let token = write_token(folder.path(), &agent(&list, "mine", AGENT));
    let schema = json!({ "properties": { "region": { "type": "string", "x-mcp-header": "Region" } } });
    let says = wat::parse_str(saying(1, "1", 0)).expect("WAT");
    let catalogue = catalogue().add(Tool::command_bytes("says", says).schema(schema));
    let anywhere = json!({ "paths": ["/workspace/**"] });
    let policy = policy_for_all(&["gate", "says", "write_file"].map(|tool| (tool, anywhere.clone())));
    let policies = methods::policy_folder(&[policy]);
    let options = list.options().policies(policies.path()).catalogue(&catalogue);
    let executor = Executor::start(options);
    let mut host = Host::connect(executor.address(), &["--token-file", &token]);
    // A tool is listed once it is compiled. From the list, the proxy learns which arguments a header repeats.
    eventually("the tools are listed", || {
        let listed = host.ask(&request(1, "tools/list", json!({})));
        let tools = listed["result"]["tools"].as_array().expect("tools");
        tools.iter().any(|tool| tool["name"] == "says").then_some(())
    });
    // The server refuses a request whose headers do not repeat the message, also where they have to be encoded.
    for (id, uri) in [(2, "a2g://receipts/x"), (3, "a2g://receipts/ä"), (4, " a2g://receipts/x")] {
        let missing = host.ask(&request(id, "resources/read", json!({ "uri": uri })));
        assert_eq!((&missing["id"], &missing["error"]["code"]), (&json!(id), &json!(-32602)), "{missing}");
    }
    for (id, region) in [(21, "north"), (22, "ä"), (23, "=?base64?x?=")] {
        let said = host.ask(&call(id, "says", &json!({ "region": region })));
        assert_eq!(said["result"]["isError"], false, "{said}");
    }
    let written = host.ask(&call(5, "write_file", &write("x", "hi")));
    assert_eq!(written["result"]["isError"], false, "{written}");
    assert_eq!(executor.file("x").as_deref(), Some("hi"));
    let unknown = host.ask(&request(6, "prompts/list", json!({})));
    assert_eq!((&unknown["id"], &unknown["error"]["code"]), (&json!(6), &json!(-32601)), "{unknown}");
    let bad = host.ask(&json!([]));
    assert_eq!(bad["error"]["code"], -32600, "{bad}");

    // A cancelled request has no answer, and its tool is ended: the next answer is that of a later request.
    host.send(&call(7, "gate", &json!({ "path": "/workspace/gate" })));
    executor.wait_at_the_gate(1);
    host.send(&notify("notifications/cancelled", json!({ "requestId": 7 })));
    assert_eq!(executor.wait_for_reports(5)[4]["status"], "ABORTED");
    let written = host.ask(&call(8, "write_file", &write("y", "hi")));
    assert_eq!(written["id"], 8, "{written}");

    // The file is read again for each request.
    write_token(folder.path(), "another");
    let refused = host.ask(&call(9, "write_file", &write("z", "hi")));
    let text = refused["error"]["message"].as_str().unwrap_or_else(|| panic!("{refused}"));
    assert!(refused["id"] == 9 && text.contains("401") && text.contains(&token), "{refused}");
    assert_eq!(executor.file("z"), None);
}

#[test]
fn a_session_goes_on_after_the_server_was_restarted() {
    let folder = methods::policy_folder(&[methods::policy()]);
    let options = || Options::new().policies(folder.path());
    let executor = Executor::start(options());
    let address = executor.address();
    let mut host = Host::connect(address, &[]);
    let opened = host.ask(&initialize_request(json!({ "elicitation": {} })));
    assert_eq!(opened["result"]["protocolVersion"], "2025-11-25", "{opened}");
    host.send(&notify("notifications/initialized", json!({})));
    // A question of the server, and the answer of the person at the host.
    host.send(&session_call(2, "write_file", &write("x", ESCALATES)));
    let question = host.receive();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    let result = json!({ "action": "accept", "content": { "decision": "approve" } });
    host.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result }));
    let approved = host.receive();
    assert_eq!((&approved["id"], &approved["result"]["isError"]), (&json!(2), &json!(false)), "{approved}");

    executor.kill();
    let lost = host.ask(&session_call(3, "write_file", &write("y", "hi")));
    assert!(lost["error"]["message"].as_str().expect("a text").contains("cannot be reached"), "{lost}");
    let executor = Executor::start_at(address, options());
    let written = host.ask(&session_call(4, "write_file", &write("y", "hi")));
    assert_eq!((&written["id"], &written["result"]["isError"]), (&json!(4), &json!(false)), "{written}");
    assert_eq!(executor.file("y").as_deref(), Some("hi"));
}

/// A server that answers one request after another: each has to contain the text, and gets the response.
fn scripted(exchanges: Vec<(&'static str, String)>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let answering = std::thread::spawn(move || {
        for (expected, response) in exchanges {
            let (stream, _) = listener.accept().expect("a connection");
            let mut reader = BufReader::new(stream);
            let (mut request, mut length) = (String::new(), 0);
            while !request.ends_with("\r\n\r\n") {
                let start = request.len();
                reader.read_line(&mut request).expect("a header");
                let header = request[start..].to_ascii_lowercase();
                length =
                    header.strip_prefix("content-length: ").map_or(length, |n| n.trim().parse().unwrap());
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("a body");
            request.push_str(std::str::from_utf8(&body).expect("UTF-8"));
            assert!(request.contains(expected), "{expected}: {request}");
            reader.get_mut().write_all(response.as_bytes()).expect("it reads");
        }
    });
    (address, answering)
}

#[test]
fn a_broken_stream_is_resumed_and_only_answers_reach_the_host() {
    let response = |kind: &str, more: &str, body: &str| {
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {kind}\r\n{more}\r\n{body}")
    };
    let events = |body: &str| response("text/event-stream", "", body);
    let opened = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25"}}"#;
    let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{}}"#;
    let (address, server) = scripted(vec![
        ("initialize", response("application/json", "Mcp-Session-Id: s1\r\n", opened)),
        ("mcp-session-id: s1", events(&format!("id: e1\ndata: {progress}\n\n"))),
        (
            "last-event-id: e1",
            events(
                "event: ping\ndata: now\n\n\
                 id: e2\ndata: {\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n\n\
                 id: e3\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"id\":2,\"result\":{}}\n\n",
            ),
        ),
        ("ping", response("text/html", "", "<html>\nnot MCP\n</html>")),
        ("ping", response("application/json", "", "[\"2.0\", 4]")),
        ("ping", response("application/json", "", "")),
        ("DELETE", response("text/plain", "", "")),
    ]);
    let mut host = Host::connect(address, &[]);
    assert_eq!(host.ask(&initialize_request(json!({})))["id"], 1);
    host.send(&session_call(2, "write_file", &json!({})));
    assert_eq!(host.receive()["method"], "notifications/progress");
    assert_eq!(host.receive(), json!({ "jsonrpc": "2.0", "id": 2, "result": {} }));
    for (id, expected) in [(3, "not a JSON-RPC message"), (4, "not a JSON-RPC message"), (5, "no answer")] {
        let failed = host.ask(&json!({ "jsonrpc": "2.0", "id": id, "method": "ping" }));
        let text = failed["error"]["message"].as_str().unwrap_or_else(|| panic!("{failed}"));
        assert!(failed["id"] == id && text.contains(expected), "{failed}");
    }
    drop(host);
    server.join().expect("the session was ended");
}

#[test]
fn a_server_that_cannot_be_used_is_refused_at_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = write_token(folder.path(), "secret");
    for (arguments, expected) in [
        (&["--connect", "executor.example"][..], "is not the URL"),
        (&["--connect", "ftp://executor.example/mcp"], "is not the URL"),
        (&["--connect", "http://me@127.0.0.1/mcp"], "is not the URL"),
        (&["--connect", "http://127.0.0.1:70420/mcp"], "is not the URL"),
        (&["--connect", "http://[::1].evil.example/mcp"], "is not the URL"),
        (&["--connect", "http://executor.example/mcp", "--token-file", &token], "send the token unencrypted"),
        (&["--connect", "https://executor.example/mcp", "--ca-file", &token], "no certificate"),
        (&["--connect", "http://127.0.0.1/mcp", "--tools", "x"], "cannot be used with"),
        (&["--token-file", &token], "--connect"),
    ] {
        ends(Command::new(program()).arg("mcp").args(arguments), 2, expected);
    }
    let printed = succeeds(&[
        "mcp",
        "--connect",
        "http://127.0.0.1:7420/mcp",
        "--token-file",
        &token,
        "--print-config",
        "codex",
    ]);
    let printed = String::from_utf8(printed).expect("UTF-8");
    assert!(printed.contains("--connect") && printed.contains(&token), "{printed}");
}
