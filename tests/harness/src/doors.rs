//! All doors, each with its transports and its way to call a tool.

use super::callers::bearer;
use super::{
    A2ePeer as _, A2eSession, AGENT, Executor, MessageTransport, Options, StdioClient, WebSocketClient,
    a2e_call, intent, intent_id, mcp, nexus,
};
use serde_json::{Value, json};

/// An agent that every door can name.
pub const PEER: nexus::Agent =
    nexus::Agent { id: AGENT, secret: "tester-secret-0123456789abcdef-0123", key: [7; 32] };

/// The facts that differ from door to door.
pub struct Door {
    pub name: &'static str,
    /// The path of its HTTP requests.
    pub path: &'static str,
    /// Its transports, HTTP first.
    pub transports: &'static [fn(&Executor) -> MessageTransport],
    pub call: fn(&str, &Value) -> Value,
    /// The JSON Pointer to what a tool gave back.
    pub result: &'static str,
    /// The codes for text that is not JSON, and for JSON that is not an object.
    pub unreadable: [&'static str; 2],
    /// Members of a call, each with a value that it may not have, and the code for that.
    pub wrong: &'static [(&'static str, &'static str, &'static str)],
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
    pub fn exchange(&self, transport: &mut MessageTransport, message: &[u8]) -> Value {
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
    pub fn ask(&self, transport: &mut MessageTransport, tool: &str, arguments: &Value) -> Option<Value> {
        let answer = self.exchange(transport, (self.call)(tool, arguments).to_string().as_bytes());
        answer.pointer(self.result).filter(|result| !result.is_null()).cloned()
    }

    pub fn expect_error(&self, transport: &mut MessageTransport, message: &[u8], code: &str) -> Value {
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
pub fn with_small_messages() -> Options {
    Options::new().set("server.max_body_bytes", 4096)
}
