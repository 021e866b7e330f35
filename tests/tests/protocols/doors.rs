//! One core behind six doors: the same call through each is the same run under the same grant, and each rejects
//! unreadable messages and unknown callers with its own codes.

use harness::callers::{List, agent, bearer};
use harness::doors::{DOORS, Door, PEER, open_doors, with_small_messages};
use harness::methods::write;
use harness::*;
use serde_json::{Value, json};

/// The members of a report that are equal in every run.
fn without_variable_members(report: &Value) -> Value {
    match report {
        Value::Object(members) => {
            let variable = [
                "intent_id",
                "metrics",
                "used",
                "slack",
                "process",
                "started_at",
                "finished_at",
                "timestamp",
            ];
            let members = members.iter().filter(|(name, _)| !variable.contains(&name.as_str()));
            members.map(|(name, value)| (name.clone(), without_variable_members(value))).collect()
        }
        Value::Array(elements) => elements.iter().map(without_variable_members).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => report.clone(),
    }
}

#[test]
fn every_door_gives_the_same_run_for_the_same_call() {
    let keys = nexus::Keys::of(&[PEER]);
    let executor = Executor::start(open_doors(Options::new(), &keys));
    for (tool, arguments, runs) in [
        ("write_file", write("one", "hi"), true),
        ("list_directory", json!({ "path": "/workspace" }), true),
        ("read_file", json!({ "path": "/workspace/none" }), true),
        ("write_file", json!({ "path": "/etc/passwd", "content": "x" }), false),
    ] {
        let before = executor.reports().len();
        let results = DOORS.map(|door| {
            let mut transport = door.transports[0](&executor);
            (door.name, door.ask(&mut transport, tool, &arguments))
        });
        let (_, first) = &results[0];
        assert!(results.iter().all(|(_, result)| result == first), "{results:#?}");
        let expected = if runs { DOORS.len() } else { 0 };
        let reports = executor.wait_for_reports(before + expected).split_off(before);
        assert_eq!(reports.len(), expected, "one report for each that ran: {reports:#?}");
        let comparable = reports.iter().map(without_variable_members).collect::<Vec<_>>();
        for (door, report) in DOORS.iter().zip(&comparable) {
            assert_eq!(Some(report), comparable.first(), "through {}", door.name);
            assert!(report["usage"]["limits"]["max_memory_mb"]["granted"].is_u64(), "{report}");
        }
    }
    // Only the log says which door it was. It is read by another thread, and may be behind the answers.
    for Door { name, .. } in DOORS {
        let mark = format!("\"door\":\"{name}\",\"status\"");
        eventually(&format!("the log has all runs of {name}"), || {
            let lines = executor.stderr().matches(&mark).count();
            assert!(lines <= 3, "{name}: {}", executor.stderr());
            (lines == 3).then_some(())
        });
    }
}

/// Other malformed messages are in the tests beside each decoder.
#[test]
fn malformed_messages_are_answered_and_run_nothing() {
    let keys = nexus::Keys::of(&[PEER]);
    for door in DOORS {
        for open in door.transports {
            let executor = Executor::start(open_doors(with_small_messages(), &keys));
            let mut transport = open(&executor);
            let good = (door.call)("write_file", &write("ran", "x"));
            let text = good.to_string();
            let with = |member: &str| text.replacen('{', &format!("{{{member},"), 1).into_bytes();
            let [not_json, not_object] = door.unreadable;
            for unreadable in [
                b"{".to_vec(),
                b"\xff".to_vec(),
                format!("\u{feff}{text}").into_bytes(),
                text.as_bytes()[..text.len() - 1].to_vec(),
                text.repeat(2).into_bytes(),
                text.replacen("\"", "'", 2).into_bytes(),
                with(r#""twice":0,"twic\u0065":0"#),
                with(&format!(r#""deep":{}{}"#, "[".repeat(100), "]".repeat(100))),
            ] {
                door.expect_error(&mut transport, &unreadable, not_json);
            }
            // A message that is too long closes a WebSocket.
            let stays_open = !matches!(transport, MessageTransport::Socket(_));
            let long = [with(&format!(r#""long":"{}""#, "y".repeat(5000))), "x".repeat(10_000).into_bytes()];
            for long in long.iter().filter(|_| stays_open) {
                let answer = door.expect_error(&mut transport, long, not_json);
                assert!(answer.to_string().contains("4096"), "{answer}");
            }
            for text in ["null", "7\r", "\"x\"", "[]"] {
                door.expect_error(&mut transport, text.as_bytes(), not_object);
            }
            for (pointer, value, code) in door.wrong {
                let mut wrong = good.clone();
                set_member(&mut wrong, pointer, serde_json::from_str(value).unwrap());
                door.expect_error(&mut transport, wrong.to_string().as_bytes(), code);
            }
            let workspace = if let MessageTransport::Stdio(client) = &transport {
                client.workspace()
            } else {
                executor.workspace()
            };
            assert_eq!(std::fs::read_dir(&workspace).unwrap().count(), 0, "something ran: {}", door.name);
            assert_eq!(executor.reports(), [] as [Value; 0]);
            match &mut transport {
                MessageTransport::Http(..) | MessageTransport::Socket(_) => {
                    door.expect_error(&mut transport, b"", not_json);
                }
                MessageTransport::Stdio(client) => {
                    ["", "  ", "\t\r"].iter().for_each(|blank| client.send(blank.as_bytes()));
                }
                MessageTransport::Session(_) => {}
            }
            assert!(door.ask(&mut transport, "write_file", &write("ran", "x")).is_some(), "{}", door.name);
            assert!(workspace.join("ran").exists());
        }
    }
}

#[test]
fn requests_must_be_json_from_an_allowed_host_and_origin() {
    let keys = nexus::Keys::of(&[PEER]);
    let executor = Executor::start(open_doors(Options::new(), &keys));
    let mut client = executor.client();
    let json = ("Content-Type", "application/json");
    let media_types = [
        "text/html",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "text/plain; application/json",
        "text/plain",
    ];
    let hosts = ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "192.0.2.1", ""];
    let origins = ["https://evil.example", "null", "http://localhost"];
    let cases = media_types.map(|kind| (vec![("Content-Type", kind)], 415)).into_iter();
    let cases = cases.chain([(vec![], 415)]);
    let cases = cases.chain(hosts.map(|host| (vec![json, ("Host", host)], 403)));
    let cases = cases.chain(origins.map(|origin| (vec![json, ("Origin", origin)], 403))).collect::<Vec<_>>();
    for door in DOORS {
        let body = (door.call)("write_file", &write("ran", "x")).to_string();
        // An A2E session is opened without a body, so the `Content-Type` of that request is not checked.
        let is_checked = |status: u16| door.name != "a2e" || status == 403;
        for (headers, status) in cases.iter().filter(|(_, status)| is_checked(*status)) {
            let answer = client.request("POST", door.path, headers, body.as_bytes());
            assert_eq!(answer.status, *status, "{} {headers:?}: {}", door.path, answer.text());
            assert!(!answer.body.is_empty(), "{headers:?} is not told why");
            executor.assert_workspace_is_empty(&format!("{} {headers:?}", door.path));
        }
        assert_eq!(client.request("PUT", door.path, &[json], body.as_bytes()).status, 405, "{}", door.path);
    }
    let port = executor.address().port();
    for host in [&*format!("LOCALHOST:{port}"), "localhost", "127.0.0.1", &format!("[::1]:{port}")] {
        assert_eq!(client.post_with(&[json, ("Host", host)], b"{}").status, 200, "{host}");
    }
    for (method, path, status) in
        [("DELETE", "/jsonrpc", 405), ("POST", "/", 405), ("POST", "/JSONRPC", 404), ("POST", "/health", 405)]
    {
        assert_eq!(client.request(method, path, &[json], b"{}").status, status, "{method} {path}");
    }
    assert!(client.request("GET", "/jsonrpc", &[], b"").status >= 400);

    let allowing = Options::new()
        .set("server.allowed_hosts", json!(["executor.example"]))
        .set("server.allowed_origins", json!(["https://console.example"]));
    let executor = Executor::start(allowing);
    let headers = [json, ("Host", "executor.example:7420"), ("Origin", "https://console.example")];
    let body = json!({ "jsonrpc": "2.0", "method": "a2g/tools", "id": 1 }).to_string();
    result(&executor.client().post_with(&headers, body.as_bytes()).json());
}

#[test]
fn unauthenticated_callers_are_rejected_at_every_door() {
    let keys = nexus::Keys::of(&[PEER]);
    let list = List::new();
    let token = agent(&list, "peer", AGENT);
    let executor = Executor::start(list.of(open_doors(Options::new(), &keys)));
    let mut client = executor.client();
    let bearer_header = bearer(&token);
    let basic = format!("Basic {token}");
    let unknown: [&[(&str, &str)]; 9] = [
        &[],
        &[("X-API-Key", "a2g_nobody")],
        &[("X-API-Key", "")],
        &[("X-API-Key", &token), ("X-API-Key", &token)],
        &[("X-API-Key", &token), ("Authorization", &bearer_header)],
        &[("Authorization", "Basic YTpi")],
        &[("Authorization", &basic)],
        &[("Authorization", "Bearer x")],
        &[("Authorization", "Bearer a2g_wrong")],
    ];
    for door in DOORS {
        let body = (door.call)("write_file", &write("ran", "x")).to_string();
        // The A2G door ignores `X-API-Key`.
        let is_known = |headers: &[(&str, &str)]| {
            door.name == "a2g" && headers.contains(&("Authorization", bearer_header.as_str()))
        };
        for headers in unknown.into_iter().filter(|headers| !is_known(headers)) {
            let headers = [&[("Content-Type", "application/json")], headers].concat();
            let answer = client.request("POST", door.path, &headers, body.as_bytes());
            assert_eq!(answer.status, 401, "{} {headers:?}: {}", door.path, answer.text());
        }
    }
    let card = "/.well-known/agent-card.json";
    for (path, status) in [("/a2a/tasks/x/governor/history", 401), ("/a2a/tasks/x/stream", 401), (card, 200)]
    {
        assert_eq!(client.request("GET", path, &[], b"").status, status, "{path}");
    }
    executor.assert_workspace_is_empty("unauthenticated calls");
    // The key alone is enough, but not at the A2G door.
    for door in DOORS {
        let body = (door.call)("write_file", &write("ran", "x")).to_string();
        let headers = [("Content-Type", "application/json"), ("X-API-Key", &token)];
        let answer = client.request("POST", door.path, &headers, body.as_bytes());
        let expected = match door.name {
            "a2g" => 401,
            // The caller is authenticated, but the headers `Mcp-Method` and `Mcp-Name`, which have to match the
            // message, are missing.
            "mcp" => 400,
            _ => 200,
        };
        assert_eq!(answer.status, expected, "{}: {}", door.path, answer.text());
    }
    assert_eq!(executor.wait_for_reports(3).len(), 3, "A2E has only begun a session");
}

#[test]
fn disabled_doors_are_not_served() {
    let off = |options: Options| {
        let doors = ["doors.a2a", "doors.a2e", "doors.mcp", "doors.sovereign"];
        doors.iter().fold(options, |options, door| options.set(door, json!({ "enabled": false })))
    };
    let executor = Executor::start(off(Options::new()));
    let mut client = executor.client();
    let card = "/.well-known/agent-card.json";
    let json = [("Content-Type", "application/json")];
    assert_eq!(client.request("GET", card, &[], b"").status, 404);
    for door in DOORS.iter().filter(|door| door.name != "a2g") {
        assert_eq!(client.request("POST", door.path, &json, b"{}").status, 404, "{}", door.path);
    }
    assert!(WebSocketClient::upgrade_at(executor.address(), "/nexus", &[]).is_err());
    // A disabled door is not served over standard input either, and two doors cannot share standard input.
    for options in [off(Options::new()), Options::new().argument("--stdio")] {
        let home = Home::new(options.argument("--a2e-stdio"));
        let mut process = Process::spawn("executor", &mut home.command());
        assert_eq!(process.wait_for_exit().code(), Some(2), "{}", process.stderr());
    }
}
