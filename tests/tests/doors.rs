//! One core behind six doors: the same call through each is the same run under the same grant, and each rejects
//! unreadable messages and unknown callers with its own codes.

use crate::bad_input::set;
use crate::callers::{List, agent, bearer};
use crate::mcp;
use crate::methods::write;
use crate::nexus;
use crate::transcripts::MessageTransport;
use harness::*;
use serde_json::{Value, json};

/// An agent that every door can name.
pub const PEER: nexus::Agent =
    nexus::Agent { id: AGENT, secret: "tester-secret-0123456789abcdef-0123", key: [7; 32] };

/// What differs from door to door.
pub struct Door {
    pub name: &'static str,
    /// The path of its HTTP requests.
    path: &'static str,
    /// Its transports, HTTP first.
    transports: &'static [fn(&Executor) -> MessageTransport],
    call: fn(&str, &Value) -> Value,
    /// The JSON Pointer to what a tool gave back.
    result: &'static str,
    /// The codes for text that is not JSON, and for JSON that is not an object.
    unreadable: [&'static str; 2],
    /// Members of a call, each with a value that it may not have, and the code for that.
    wrong: &'static [(&'static str, &'static str, &'static str)],
}

pub const DOORS: [Door; 6] = [
    Door {
        name: "a2g",
        path: "/jsonrpc",
        transports: &[
            |executor| MessageTransport::Http(executor.client(), "/jsonrpc"),
            |executor| MessageTransport::Socket(executor.web_socket()),
            |_| MessageTransport::Stdio(StdioClient::start(with_small_messages())),
        ],
        call: |tool, arguments| json!({ "jsonrpc": "2.0", "id": 1, "method": "a2g/intent", "params": intent(tool, arguments.clone()) }),
        result: "/result/report/result",
        unreadable: ["-32700", "-32600"],
        wrong: &[
            ("/jsonrpc", "2.0", "-32600"),
            ("/params", "null", "-32600"),
            ("/method", r#""a2g/exec""#, "-32601"),
            ("/params/tool", "[]", "-32602"),
        ],
    },
    Door {
        name: "a2a",
        path: "/a2a/rpc",
        transports: &[|executor| MessageTransport::Http(executor.client(), "/a2a/rpc")],
        call: |tool, arguments| {
            let part = json!({ "kind": "data", "data": { "tool": tool, "arguments": arguments } });
            let message = json!({ "role": "user", "messageId": intent_id(), "parts": [part] });
            json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": { "message": message } })
        },
        result: "/result/artifacts/0/parts/0/data",
        unreadable: ["-32700", "-32600"],
        wrong: &[
            ("/jsonrpc", r#""1.0""#, "-32600"),
            ("/method", r#""SendMessage""#, "-32601"),
            ("/params/message/role", r#""agent""#, "-32602"),
            ("/params/message/parts/0/data/tool", r#""no_tool""#, "-32602"),
        ],
    },
    Door {
        name: "a2e",
        path: "/a2e/session",
        transports: &[
            |executor| {
                let mut session = A2eSession::open(executor, None);
                session.shake_hands(AGENT, "");
                MessageTransport::Session(session)
            },
            |_| {
                let mut door = StdioClient::start_as("--a2e-stdio", with_small_messages());
                door.shake_hands(AGENT, "");
                MessageTransport::Stdio(door)
            },
        ],
        call: |tool, arguments| {
            let mut call = a2e_call(&intent_id(), tool, arguments.clone());
            // Equal to the ceiling, because A2E would otherwise apply its own default timeout.
            call["timeout"] = json!(60);
            call
        },
        result: "/data/data",
        unreadable: ["parse_error", "invalid_message"],
        wrong: &[
            ("/type", r#""tool/call""#, "invalid_message"),
            ("/type", r#""chain/req""#, "capability_missing"),
            ("/version", r#""2.0""#, "version_mismatch"),
            ("/session_id", r#""nobody's""#, "unauthorized"),
            ("/timeout", "0", "schema_violation"),
        ],
    },
    Door {
        name: "mcp",
        path: "/mcp",
        transports: &[|executor| MessageTransport::Http(executor.client(), "/mcp")],
        call: |tool, arguments| mcp::call(1, tool, arguments),
        result: "/result/structuredContent",
        unreadable: ["-32700", "-32600"],
        wrong: &[
            ("/jsonrpc", r#""1.0""#, "-32600"),
            ("/id", "null", "-32600"),
            ("/method", r#""tools/execute""#, "-32601"),
            ("/params/name", "[]", "-32602"),
            ("/params/name", r#""no_such_tool""#, "-32602"),
            ("/params/_meta", "{}", "-32602"),
            ("/params/_meta/progressToken", "{}", "-32602"),
        ],
    },
    Door {
        name: "nexus",
        path: "/nexus",
        transports: &[
            |executor| MessageTransport::Http(executor.client(), "/nexus"),
            |executor| {
                let socket = WebSocketClient::upgrade_at(executor.address(), "/nexus", &[]);
                MessageTransport::Socket(socket.expect("a WebSocket"))
            },
        ],
        call: |tool, arguments| PEER.execute(tool, arguments.clone()),
        result: "/data/result",
        unreadable: ["INVALID_MESSAGE", "INVALID_MESSAGE"],
        wrong: &[
            ("/type", r#""shout""#, "INVALID_MESSAGE"),
            ("/ttl", r#""60000""#, "VALIDATION_ERROR"),
            ("/signature", "null", "SIGNATURE_INVALID"),
        ],
    },
    Door {
        name: "sovereign",
        path: "/run",
        transports: &[|executor| MessageTransport::Http(executor.client(), "/run")],
        call: |tool, arguments| json!({ "jsonrpc": "3.0", "id": 1, "method": tool, "params": { "payload": arguments } }),
        result: "/result/data",
        unreadable: ["-32700", "-32600"],
        wrong: &[
            ("/jsonrpc", r#""1.0""#, "-32600"),
            ("/method", r#""write_file/other""#, "-32601"),
            ("/method", r#""no_such_skill/x""#, "-32002"),
            ("/params/payload", r#"{"path":1}"#, "-32602"),
        ],
    },
];

impl Door {
    /// The answer to a message, opened if it was sealed.
    fn exchange(&self, transport: &mut MessageTransport, message: &[u8]) -> Value {
        unseal(transport.exchange(message))
    }

    /// Calls a tool over HTTP as the holder of this token, and gives its result.
    pub fn ask_as(&self, executor: &Executor, token: &str, tool: &str, arguments: &Value) -> Value {
        let call = (self.call)(tool, arguments);
        let authorization = bearer(token);
        let answer = unseal(match self.name {
            "a2e" => {
                let mut session = A2eSession::open(executor, Some(token));
                session.shake_hands(AGENT, token);
                session.ask(&call)
            }
            "mcp" => mcp::post(&mut executor.client(), &call, &[("Authorization", &authorization)]).json(),
            _plain => {
                let headers = [("Content-Type", "application/json"), ("Authorization", &*authorization)];
                executor.client().request("POST", self.path, &headers, call.to_string().as_bytes()).json()
            }
        });
        answer.pointer(self.result).unwrap_or_else(|| panic!("{}: {answer}", self.name)).clone()
    }

    /// Calls a tool, and gives its result if it ran.
    fn ask(&self, transport: &mut MessageTransport, tool: &str, arguments: &Value) -> Option<Value> {
        let answer = self.exchange(transport, (self.call)(tool, arguments).to_string().as_bytes());
        answer.pointer(self.result).filter(|result| !result.is_null()).cloned()
    }

    fn expect_error(&self, transport: &mut MessageTransport, message: &[u8], code: &str) -> Value {
        let sent = String::from_utf8_lossy(&message[..message.len().min(300)]).into_owned();
        let answer = self.exchange(transport, message);
        let given = answer.pointer("/error/code").or(answer.get("code"));
        let given = given.map(|code| code.as_str().map_or(code.to_string(), str::to_owned));
        assert_eq!(given.as_deref(), Some(code), "{}: {sent}: {answer}", self.name);
        assert!(answer.to_string().len() < 1000, "{}: {answer}", self.name);
        answer
    }
}

/// An answer, opened if it was sealed.
fn unseal(answer: Value) -> Value {
    if answer.get("encryption").is_some() { PEER.read(&answer) } else { answer }
}

/// Every door open to [`PEER`].
pub fn open_doors(options: Options, keys: &nexus::Keys) -> Options {
    let agent = json!({ "agent": AGENT });
    options
        .set("doors.a2a", agent.clone())
        .set("doors.mcp", agent.clone())
        .set("doors.sovereign", agent)
        .set("doors.nexus", json!({ "key_file": keys.path(), "id": nexus::EXECUTOR }))
}

/// Options that limit a message to 4 KiB.
fn with_small_messages() -> Options {
    Options::new().set("server.max_body_bytes", 4096)
}

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
                set(&mut wrong, pointer, serde_json::from_str(value).unwrap());
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
