//! `a2g-executor mcp --connect`: a host on standard input and output, and an executor that runs already.

use crate::mcp::Host;
use harness::callers::{Authority, List, agent, dns, ends};
use harness::mcp::{call, initialize_request, request};
use harness::methods::{ESCALATES, catalogue, write};
use harness::*;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    let list = List::new();
    let folder = tempfile::tempdir().expect("a folder");
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
    let text = lost["error"]["message"].as_str().expect("a text");
    assert!(text.contains("cannot be reached") && text.contains("start the server"), "{lost}");
    let executor = Executor::start_at(address, options());
    let written = host.ask(&session_call(4, "write_file", &write("y", "hi")));
    assert_eq!((&written["id"], &written["result"]["isError"]), (&json!(4), &json!(false)), "{written}");
    assert_eq!(executor.file("y").as_deref(), Some("hi"));
}

/// The error for a wrong URL names the URL and the change to make.
#[test]
fn a_url_that_is_wrong_is_answered_with_what_to_change() {
    let authority = Authority::new();
    authority.issue("server", vec![dns("localhost")]);
    let plain = Executor::start(Options::new());
    let encrypted = Executor::start(authority.serving(Options::new(), "server", None));
    let plain = plain.address();
    let port = encrypted.address().port();
    for (url, expected) in [
        (format!("http://{plain}/"), "the path of an executor is `/mcp`"),
        (format!("http://{plain}/mpc"), "the path of an executor is `/mcp`"),
        (format!("https://{plain}/mcp"), "write `http://`"),
        (format!("http://localhost:{port}/mcp"), "plain http is refused: this port has TLS"),
        (format!("https://localhost:{port}/mcp"), "`--ca-file`"),
    ] {
        let mut host = Host::connect_to(&url, &[]);
        let failed = host.ask(&request(1, "tools/list", json!({})));
        let text = failed["error"]["message"].as_str().unwrap_or_else(|| panic!("{url}: {failed}"));
        assert!(text.contains(&url) && text.contains(expected), "{url}: {text}");
    }
    let root = authority.path("root.pem");
    let url = format!("https://localhost:{port}/mcp");
    let mut host = Host::connect_to(&url, &["--ca-file", root.to_str().expect("UTF-8")]);
    assert!(host.ask(&request(1, "tools/list", json!({})))["result"]["tools"].is_array());
}

/// A host that is gone needs no answer: its calls are cancelled, and the process ends.
#[test]
fn the_end_of_the_hosts_input_cancels_its_calls() {
    let catalogue = catalogue();
    let policies =
        methods::policy_folder(&[policy_for_all(&[("gate", json!({ "paths": ["/workspace/**"] }))])]);
    let executor = Executor::start(Options::new().catalogue(&catalogue).policies(policies.path()));
    let gate = json!({ "path": "/workspace/gate" });
    let mut host = Host::connect(executor.address(), &[]);
    host.send(&call(1, "gate", &gate));
    executor.wait_at_the_gate(1);
    assert_eq!(host.finish(), [] as [Value; 0]);
    assert_eq!(executor.wait_for_reports(1)[0]["status"], "ABORTED");

    let mut host = Host::connect(executor.address(), &[]);
    host.ask(&initialize_request(json!({})));
    host.send(&session_call(2, "gate", &gate));
    executor.wait_at_the_gate(2);
    assert_eq!(host.finish(), [] as [Value; 0]);
    assert_eq!(executor.wait_for_reports(2)[1]["status"], "ABORTED");
}

/// Long answers wait at the server until the host reads, so that the process does not hold all of them.
#[test]
fn answers_that_the_host_does_not_read_have_a_bound() {
    const ANSWERS: u64 = 24;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.expect("a connection"));
                let request = read_request(&mut reader);
                let (_, body) = request.split_once("\r\n\r\n").expect("a body");
                let id = serde_json::from_str::<Value>(body).expect("JSON")["id"].clone();
                let long = "x".repeat(4 << 20);
                let body = json!({ "jsonrpc": "2.0", "id": id, "result": { "text": long } }).to_string();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n\
                     Content-Length: {}\r\n\r\n",
                    body.len()
                );
                counted.fetch_add(1, Ordering::Relaxed);
                let _sent = reader.get_mut().write_all((head + &body).as_bytes());
            });
        }
    });
    let mut host = Host::connect(address, &[]);
    for id in 1..=ANSWERS {
        host.send(&request(id, "tools/call", json!({ "name": "long", "arguments": {} })));
    }
    eventually("all are answered", || (sent.load(Ordering::Relaxed) == ANSWERS).then_some(()));
    std::thread::sleep(std::time::Duration::from_secs(1));
    let peak = host.process().status("VmHWM");
    assert!(peak < 96 << 10, "{peak} KiB");
    let mut ids = (1..=ANSWERS).map(|_| host.receive()["id"].as_u64().expect("an id")).collect::<Vec<_>>();
    ids.sort_unstable();
    assert_eq!(ids, (1..=ANSWERS).collect::<Vec<_>>());
}

/// Reads one request: its head, and a body of the announced length.
fn read_request(reader: &mut BufReader<TcpStream>) -> String {
    let mut request = String::new();
    let mut length = 0;
    while !request.ends_with("\r\n\r\n") {
        let start = request.len();
        reader.read_line(&mut request).expect("a header");
        let header = request[start..].to_ascii_lowercase();
        length = header.strip_prefix("content-length: ").map_or(length, |n| n.trim().parse().unwrap());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    request.push_str(std::str::from_utf8(&body).expect("UTF-8"));
    request
}

/// A server that answers one request after another: each has to contain the texts, and gets the response.
fn scripted(exchanges: Vec<(&'static str, String)>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let answering = std::thread::spawn(move || {
        for (expected, response) in exchanges {
            let (stream, _) = listener.accept().expect("a connection");
            let mut reader = BufReader::new(stream);
            let request = read_request(&mut reader);
            assert!(expected.split(" & ").all(|text| request.contains(text)), "{expected}: {request}");
            reader.get_mut().write_all(response.as_bytes()).expect("it reads");
        }
    });
    (address, answering)
}

fn response(kind: &str, more: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {kind}\r\n{more}\r\n{body}")
}

/// A session that is opened in place of another keeps the level of the log; one that the host replaces is ended.
#[test]
fn a_session_is_replaced_with_its_level_and_ended() {
    let result = |id: u64, more: &str| {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25"}}}}"#);
        response("application/json", more, &body)
    };
    let lost = "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n".to_owned();
    let (address, server) = scripted(vec![
        ("initialize", result(1, "Mcp-Session-Id: s1\r\n")),
        ("mcp-session-id: s1 & logging/setLevel", result(2, "")),
        ("mcp-session-id: s1 & ping", lost),
        ("initialize", result(1, "Mcp-Session-Id: s2\r\n")),
        ("mcp-session-id: s2 & logging/setLevel & debug", result(2, "")),
        ("mcp-session-id: s2 & ping", result(3, "")),
        ("initialize", result(1, "Mcp-Session-Id: s3\r\n")),
        ("DELETE & mcp-session-id: s2", response("text/plain", "", "")),
        ("mcp-session-id: s3 & ping", result(4, "")),
        ("DELETE & mcp-session-id: s3", response("text/plain", "", "")),
    ]);
    let mut host = Host::connect(address, &[]);
    let plain = |id: u64, method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    assert_eq!(host.ask(&initialize_request(json!({})))["id"], 1);
    assert_eq!(host.ask(&plain(2, "logging/setLevel", json!({ "level": "debug" })))["id"], 2);
    assert_eq!(host.ask(&plain(3, "ping", json!({})))["id"], 3);
    assert_eq!(host.ask(&initialize_request(json!({})))["id"], 1);
    // The old session is ended meanwhile.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(host.ask(&plain(4, "ping", json!({})))["id"], 4);
    drop(host);
    server.join().expect("the sessions were ended");
}

#[test]
fn a_broken_stream_is_resumed_and_only_answers_reach_the_host() {
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
    let open = folder.path().join("open").to_str().expect("UTF-8").to_owned();
    std::fs::write(&open, "secret").expect("a file");
    set_mode(Path::new(&open), 0o644);
    for (arguments, expected) in [
        (&["--connect", "executor.example"][..], "is not the URL"),
        (&["--connect", "ftp://executor.example/mcp"], "is not the URL"),
        (&["--connect", "http://me@127.0.0.1/mcp"], "is not the URL"),
        (&["--connect", "http://127.0.0.1:70420/mcp"], "is not the URL"),
        (&["--connect", "http://[::1].evil.example/mcp"], "is not the URL"),
        (&["--connect", "http://executor.example/mcp", "--token-file", &token], "send the token unencrypted"),
        (&["--connect", "https://executor.example/mcp", "--ca-file", &token], "no certificate"),
        (&["--connect", "http://127.0.0.1/mcp", "--token-file", "/nowhere/token"], "`--token-file`: "),
        (&["--connect", "http://127.0.0.1/mcp", "--token-file", &open], "`--token-file`: "),
        (&["--connect", "http://127.0.0.1/mcp", "--tools", "x"], "cannot be used with"),
        (&["--token-file", &token], "--connect"),
        (
            &["--config", "x", "--scope", "y"],
            "`--scope` cannot be used with `--config`: the file has `ceilings.filesystem_scope`, and `paths`",
        ),
        (&["--config", "x", "--read-only"], "`ceilings.read_only`"),
        (&["--config", "x", "--with-secrets"], "`blocked_paths`"),
        (&["--config", "x", "--journal", "y"], "`journal.path`"),
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
