//! The doors, each in the ways in which a transcript can be held: what is started, and how messages get there.

use super::matching::{Bindings, fill_placeholders};
use super::reading::{ANSWER, Message};
use harness::a2a::Hook;
use harness::callers::{List, agent};
use harness::methods::policy_folder;
use harness::*;
use serde_json::{Value, json};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// One answer: headers if the door has them, and the body, if there is one; a text as a string.
#[derive(Debug)]
pub struct ReceivedAnswer {
    pub first: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<Value>,
}

impl ReceivedAnswer {
    fn message(body: Value) -> Self {
        Self { first: "HTTP 200".to_owned(), headers: Vec::new(), body: Some(body) }
    }
}

/// An executor, or a governor, and the line to it.
pub struct Conversation {
    line: MessageTransport,
    /// Signs what is sent to the door of Nexus, and reads what comes from there.
    peer: Option<nexus::Agent>,
    /// Is told of tasks.
    hook: Option<Hook>,
    /// Governs, and answers intents as the transcript has it.
    governor: Option<Scripted>,
    /// Values that the transcript may name.
    pub known: Bindings,
    kept: Vec<Box<dyn Any>>,
}

/// The agent of the A2G document.
const DOCUMENTED: &str = "did:aeon:myagent:1.0:abc123";

impl Conversation {
    /// Starts what a transcript of this door talks to in this way.
    pub fn start(door: &str, way: &str) -> Self {
        let catalogue = match (door, way) {
            ("sovereign", "http") => serve_catalogue().add(email(&saying(1, r#"{"messages":[]}"#, 0))),
            ("sovereign", "refused") => {
                serve_catalogue().add(email(&saying(2, "IMAP connection refused", 1)))
            }
            _ => serve_catalogue(),
        };
        let anywhere = json!({ "paths": ["/tmp/**", "/workspace/**"] });
        let tools = ["write_file", "read_file", "search_text", "gate", "email.check_unread"];
        let policy = policy_for_all(&tools.map(|tool| (tool, anywhere.clone())));
        let policies = policy_folder(&[policy]);
        let temporary = tempfile::tempdir().expect("a folder");
        // Always apart, since a report says so.
        let options = Options::new()
            .set("executor.isolation", "process")
            .catalogue(&catalogue)
            .mount("/tmp", temporary.path())
            .scope(&["/tmp/**", "/workspace/**"]);
        let options = if way == "ungoverned" { options } else { options.policies(policies.path()) };
        let mut talk = match door {
            "a2g" => Self::a2g(way, options),
            "a2a" => Self::a2a(way, options),
            "a2e" => Self::a2e(way, options),
            "mcp" => Self::mcp(way, options),
            "nexus" => Self::nexus(way, options),
            "sovereign" => Self::sovereign(way, options),
            _ => panic!("no door: {door}"),
        };
        talk.kept.extend([Box::new(catalogue) as Box<dyn Any>, Box::new(policies), Box::new(temporary)]);
        talk
    }

    fn over(line: MessageTransport, kept: Vec<Box<dyn Any>>) -> Self {
        Self { line, peer: None, hook: None, governor: None, known: Bindings::new(), kept }
    }

    fn http(options: Options, path: &'static str) -> Self {
        let executor = Executor::start(options);
        let mut talk = Self::over(MessageTransport::Http(executor.client(), path), Vec::new());
        talk.known.insert("address".to_owned(), executor.address().to_string());
        talk.kept.push(Box::new(executor));
        talk
    }

    /// With a governor that never answers.
    fn ungoverned(options: Options, path: &'static str) -> Self {
        let governor = FakeGovernor::start(|_, _| Reply::Hangup);
        let mut talk = Self::http(options.governor(&governor.url()), path);
        talk.kept.push(Box::new(governor));
        talk
    }

    fn a2g(way: &str, options: Options) -> Self {
        match way {
            "http" => Self::http(options, "/jsonrpc"),
            "websocket" => {
                let executor = Executor::start(options);
                Self::over(MessageTransport::Socket(executor.web_socket()), vec![Box::new(executor)])
            }
            "stdio" => Self::over(MessageTransport::Stdio(StdioClient::start(options)), Vec::new()),
            "governor" | "governor-websocket" => {
                let mut policy = policy_for_all(&[("write_file", json!({ "paths": ["/tmp/**"] }))]);
                policy["agent_did"] = json!(DOCUMENTED);
                let governor = Governor::start(&[policy]);
                let line = match way {
                    "governor" => {
                        MessageTransport::Http(HttpClient::to_governor(governor.address()), "/jsonrpc")
                    }
                    _ => MessageTransport::Socket(WebSocketClient::connect(governor.address())),
                };
                Self::over(line, vec![Box::new(governor)])
            }
            "governed-http" | "governed-websocket" => {
                let scripted = Scripted::start();
                let url = match way {
                    "governed-http" => scripted.governor.url(),
                    _ => scripted.governor.web_socket_url(),
                };
                let mut talk = Self::http(options.governor(&url), "/jsonrpc");
                talk.governor = Some(scripted);
                talk
            }
            _ => panic!("no way: {way}"),
        }
    }

    fn a2a(way: &str, options: Options) -> Self {
        let hook = Hook::start(&[]);
        let list = List::new();
        let options = match way {
            "http" => options,
            "acp" | "ungoverned" => options.set("doors.a2a", json!({ "dialect": "acp" })),
            "callers" => list.of(options),
            "webhooks" | "acp-webhooks" => options
                .set(
                    "doors.a2a",
                    json!({
                        "webhook_domains": ["your-app.com", "hook.example"],
                        "dialect": if way == "webhooks" { "a2a" } else { "acp" },
                    }),
                )
                // The webhook of this test is the only one notified.
                .set("network.hosts", json!({ "your-app.com": ["127.0.0.1"], "hook.example": ["127.0.0.1"] }))
                .set("network.allowed_addresses", json!([hook.address().to_string()])),
            _ => panic!("no way: {way}"),
        };
        let token = if way == "callers" { agent(&list, "mine", DOCUMENTED) } else { String::new() };
        let start = if way == "ungoverned" { Self::ungoverned } else { Self::http };
        let mut talk = start(options, "/a2a/rpc");
        let named = [("token", token), ("hook", hook.url())];
        talk.known.extend(named.map(|(name, value)| (name.to_owned(), value)));
        talk.hook = Some(hook);
        talk.kept.push(Box::new(list));
        talk
    }

    fn a2e(way: &str, options: Options) -> Self {
        match way {
            "http" => {
                let executor = Executor::start(options);
                Self::over(
                    MessageTransport::Session(A2eSession::open(&executor, None)),
                    vec![Box::new(executor)],
                )
            }
            "stdio" => {
                Self::over(MessageTransport::Stdio(StdioClient::start_as("--a2e-stdio", options)), Vec::new())
            }
            _ => panic!("no way: {way}"),
        }
    }

    fn mcp(way: &str, options: Options) -> Self {
        match way {
            "http" => Self::http(options, "/mcp"),
            "callers" => {
                let list = List::new();
                let token = agent(&list, "mine", DOCUMENTED);
                let mut talk = Self::http(list.of(options), "/mcp");
                talk.known.insert("token".to_owned(), token);
                talk.kept.push(Box::new(list));
                talk
            }
            _ => panic!("no way: {way}"),
        }
    }

    fn nexus(way: &str, options: Options) -> Self {
        let keys = nexus::Keys::of(&[nexus::PLANNER]);
        let door = json!({ "key_file": keys.path() });
        let mut talk = Self::http(options.set("doors.nexus", door), "/nexus");
        match way {
            "http" => {}
            "websocket" => {
                let address = talk.known["address"].parse().expect("an address");
                let socket = WebSocketClient::upgrade_at(address, "/nexus", &[]).expect("a WebSocket");
                talk.line = MessageTransport::Socket(socket);
            }
            _ => panic!("no way: {way}"),
        }
        talk.peer = Some(nexus::PLANNER);
        talk.kept.push(Box::new(keys));
        talk
    }

    fn sovereign(way: &str, options: Options) -> Self {
        match way {
            "http" | "refused" => Self::http(options, "/run"),
            "ungoverned" => Self::ungoverned(options, "/run"),
            _ => panic!("no way: {way}"),
        }
    }

    /// Sends a message, and gives so many that come back; over HTTP, all that do.
    pub fn exchange(&mut self, sent: &Message, count: usize) -> Vec<ReceivedAnswer> {
        if self.peer.is_some() {
            self.known.insert("now".to_owned(), nexus::now_ms().to_string());
        }
        let mut text = fill_placeholders(&sent.body, &self.known);
        if sent.first.as_deref() == Some(ANSWER) {
            self.governor.as_ref().expect("a governor").answers.lock().unwrap().push_back(text);
            return Vec::new();
        }
        if let Some(peer) = self.peer {
            text = secure_message(peer, &text);
        }
        let mut answers = match &mut self.line {
            MessageTransport::Http(client, path) => {
                let known = &self.known;
                let headers =
                    sent.headers.iter().map(|(name, value)| (&**name, fill_placeholders(value, known)));
                let headers = headers.collect::<Vec<_>>();
                let first = fill_placeholders(sent.first.as_deref().unwrap_or_default(), known);
                let (method, path) = first.split_once(' ').unwrap_or(("POST", path));
                let mirrored = if path == "/mcp" { mcp::mirror_headers(text.as_bytes()) } else { Vec::new() };
                let is_written = |name: &str| sent.headers.iter().any(|(written, _)| written == name);
                let mirrored = mirrored.into_iter().filter(|(name, _)| !is_written(name));
                let headers = headers.into_iter().chain(mirrored).collect::<Vec<_>>();
                post(client, method, path, &headers, &text)
            }
            line @ (MessageTransport::Socket(_)
            | MessageTransport::Stdio(_)
            | MessageTransport::Session(_)) => {
                let text = text.lines().map(str::trim).collect::<String>();
                line.send(&text);
                let mut answers = (0..count).map(|_| line.receive()).collect::<Vec<_>>();
                // The door of Nexus answers as things get done: a run's last event comes before or after its response.
                answers.sort_by_key(|answer| self.peer.is_some() && answer["type"] != "event");
                answers.into_iter().map(ReceivedAnswer::message).collect()
            }
        };
        if let Some(peer) = self.peer {
            let bodies = answers.iter_mut().filter_map(|answer| answer.body.as_mut());
            // The answer to an unsigned message is unsigned, too.
            for body in bodies.filter(|body| body["signature"] != "") {
                *body = peer.read(body);
            }
        }
        answers
    }

    /// The messages that the executor has sent by itself, in order: to its governor, where the transcript
    /// has one, and else a webhook.
    pub fn told(&self, nth: usize) -> Value {
        if let Some(scripted) = &self.governor {
            return eventually("the governor is told", || scripted.told().into_iter().nth(nth));
        }
        self.hook.as_ref().expect("somebody who is told").wait_for(nth + 1)[nth].clone()
    }

    /// Checks that nothing more came, as far as that can be known.
    pub fn finish(self) -> Vec<String> {
        match self.line {
            MessageTransport::Stdio(client) => client.finish().1,
            MessageTransport::Http(..) | MessageTransport::Socket(_) | MessageTransport::Session(_) => {
                Vec::new()
            }
        }
    }
}

/// A governor that answers intents with what a transcript has for it, and everything else with an empty result.
struct Scripted {
    governor: FakeGovernor,
    answers: Arc<Mutex<VecDeque<String>>>,
}

impl Scripted {
    fn start() -> Self {
        let answers = Arc::<Mutex<VecDeque<String>>>::default();
        let next = Arc::clone(&answers);
        let governor = FakeGovernor::start(move |method, _| match method {
            "a2g/intent" => {
                let answer = next.lock().unwrap().pop_front().expect("an answer");
                Reply::Body(answer.replace("\"<id>\"", "$ID"))
            }
            _ => Reply::Result(json!({})),
        });
        Self { governor, answers }
    }

    /// All that it was sent but heartbeats, which come when they come.
    fn told(&self) -> Vec<Value> {
        self.governor.requests().into_iter().filter(|request| request["method"] != "a2g/heartbeat").collect()
    }
}

/// The tools that transcripts name.
fn serve_catalogue() -> Catalogue {
    let tools = ["write_file", "read_file", "search_text"];
    let catalogue = tools.into_iter().fold(Catalogue::empty(), Catalogue::copy);
    catalogue.add(Tool::command("gate", GATE))
}

/// The operation of the sovereign document.
fn email(wat: &str) -> Tool {
    Tool::command("email.check_unread", wat)
}

/// Seals and signs a message that is written without either.
fn secure_message(peer: nexus::Agent, text: &str) -> String {
    let Ok(mut message) = serde_json::from_str::<Value>(text) else { return text.to_owned() };
    if message["encryption"] == "<sealed>" {
        let members = message.as_object_mut().expect("an object");
        members.shift_remove("encryption");
        let payload = members.shift_remove("payload").expect("what is sealed");
        message = peer.sealed(message, &payload);
    } else if message["signature"] == "<signature>" {
        message = peer.signed(message);
    }
    message.to_string()
}

fn post(
    client: &mut HttpClient,
    method: &str,
    path: &str,
    headers: &[(&str, String)],
    body: &str,
) -> Vec<ReceivedAnswer> {
    let mut all = headers.iter().map(|(name, value)| (*name, &**value)).collect::<Vec<_>>();
    if method == "POST" {
        all.push(("Content-Type", "application/json"));
    }
    let answer = client.request(method, path, &all, body.as_bytes());
    let first = format!("HTTP {}", answer.status);
    let text = answer.text();
    let kind = answer.headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| &**value);
    let bodies = match kind {
        Some("text/event-stream") => {
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            data.filter(|data| !data.is_empty()).collect()
        }
        Some("application/x-ndjson") => text.lines().collect(),
        _ => vec![&*text],
    };
    let parse = |body: &str| {
        let empty = body.is_empty();
        (!empty).then(|| serde_json::from_str(body).unwrap_or_else(|_plain_text| json!(body.trim_end())))
    };
    let answered = |body: &&str| ReceivedAnswer {
        first: first.clone(),
        headers: answer.headers.clone(),
        body: parse(body),
    };
    bodies.iter().map(answered).collect()
}
