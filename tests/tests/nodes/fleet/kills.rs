//! Executors that are killed or paused, and servers that are killed, at random moments, under the load of clients of
//! all doors.
//!
//! ```text
//! 16 clients ──▶ one, two, three ──▶ three servers of NATS     SIGKILL and a restart, at random
//!                 SIGKILL and a restart, or SIGSTOP and SIGCONT, at random
//! ```
//! Each call appends a byte to a file of its own. At the end, the answers, the files, the governor's reports and the
//! journals have to agree.

use super::{Fleet, written_files};
use harness::nexus::PLANNER;
use harness::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(super) const NODES: [&str; 3] = ["one", "two", "three"];
const CLIENTS: usize = 16;
/// Every so many disturbances of nodes, a pause is longer than the lease.
const LONG_PAUSE_EVERY: usize = 25;

fn random(below: u64) -> u64 {
    u64::try_from(uuid::Uuid::new_v4().as_u128() % u128::from(below)).unwrap()
}

fn sleep_up_to(ms: u64) {
    std::thread::sleep(Duration::from_millis(random(ms)));
}

/// A way to send a call. The table says who chooses the id of its intent:
///
/// | door | the id of the intent | a repeat |
/// |---|---|---|
/// | `a2g/intent`, `a2g/execute` | the client's | over the same door |
/// | MCP | the client's, in `_meta` | over the same door |
/// | A2E | the id of the call, a UUID | over the same door, in a new session |
/// | Nexus | the id of the message, which one node accepts once | over `a2g/intent` |
/// | A2A | the id of the task, which the node chooses | over `a2g/intent`: a task belongs to its node |
/// | Sovereign | the node's, which only the answer contains | none: a call without an answer cannot be named again |
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Door {
    Intent,
    Execute,
    Mcp,
    A2e,
    Nexus,
    /// A task without a call, and then the call, so that the id is known before anything runs.
    A2a,
    /// A task whose id comes at once, while its call may wait or run.
    A2aTask,
    Sovereign,
}

pub(super) const DOORS: [Door; 8] = [
    Door::Intent,
    Door::Execute,
    Door::Mcp,
    Door::A2e,
    Door::Nexus,
    Door::A2a,
    Door::A2aTask,
    Door::Sovereign,
];

impl Door {
    /// The agent of a call.
    fn agent(self) -> &'static str {
        match self {
            Self::Intent | Self::Execute | Self::A2e => AGENT,
            Self::Mcp => "did:a2g:agent:1.0:mcp",
            Self::Nexus => "did:nexus:planner",
            Self::A2a | Self::A2aTask => "did:a2g:agent:1.0:a2a",
            Self::Sovereign => "did:a2g:agent:1.0:sovereign",
        }
    }
}

/// The answer to a call.
#[derive(Debug)]
pub(super) enum Reply {
    /// The status of the report.
    Ended(String),
    /// The intent has an id, and no end yet.
    Accepted,
    /// The call has not run, or its end is not stored yet (`ran`). It may be sent again.
    Refused { ran: bool },
    /// There was no whole answer.
    None(NoAnswer),
    /// Any other answer.
    Odd(String),
}

/// A call, and what its client knows.
#[derive(Debug, Clone)]
pub(super) struct Intent {
    pub(super) door: Door,
    pub(super) id: Option<String>,
    /// The file of the call.
    pub(super) file: String,
    was_sent: bool,
}

impl Intent {
    pub(super) fn new(door: Door) -> Self {
        let chooses_id = !matches!(door, Door::A2a | Door::A2aTask | Door::Sovereign);
        Self { door, id: chooses_id.then(intent_id), file: intent_id(), was_sent: false }
    }

    fn arguments(&self) -> Value {
        json!({ "path": format!("/workspace/{}", self.file), "content": "x", "mode": "append" })
    }

    /// The params of `a2g/intent`.
    fn params(&self) -> Value {
        json!({ "agent_did": self.door.agent(), "intent_id": self.id, "tool": "write_file",
            "arguments": self.arguments() })
    }

    /// Sends the call, or repeats it.
    pub(super) fn send(&mut self, address: SocketAddr) -> Reply {
        let is_repeat = std::mem::replace(&mut self.was_sent, true);
        match (self.door, self.id.clone()) {
            (Door::Execute, Some(_)) => self.send_over_execute(address),
            (Door::Mcp, Some(id)) => self.send_over_mcp(address, &id),
            (Door::A2e, Some(id)) => self.send_over_a2e(address, &id),
            (Door::Nexus, Some(id)) if !is_repeat => self.send_over_nexus(address, &id),
            (Door::A2a, None) => self.send_over_a2a(address),
            (Door::A2aTask, None) => self.begin_over_a2a(address),
            (Door::Sovereign, None) => self.send_over_sovereign(address),
            _ => self.ask_for_end(address),
        }
    }

    /// Sends the call over `a2g/intent`.
    pub(super) fn ask_for_end(&self, address: SocketAddr) -> Reply {
        let answer = ask(address, "a2g/intent", &self.params());
        read(answer, &["/result/report/status", "/error/data/report/status"])
    }

    fn send_over_execute(&self, address: SocketAddr) -> Reply {
        let answer = ask(address, "a2g/execute", &approved(self.params(), &manifest()));
        read(answer, &["/result/status", "/error/data/report/status"])
    }

    fn send_over_mcp(&self, address: SocketAddr, id: &str) -> Reply {
        let mut call = mcp::call(1, "write_file", &self.arguments());
        call["params"]["_meta"]["a2g/intent_id"] = json!(id);
        let body = call.to_string();
        let lines: Vec<String> = mcp::mirror_headers(body.as_bytes())
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let answer = post(address, "/mcp", &lines, &body);
        if answer.as_ref().is_ok_and(|answer| answer["result"]["isError"] == false) {
            return Reply::Ended("SUCCESS".to_owned());
        }
        read(answer, &["/result/_meta/a2g~1error/status"])
    }

    fn send_over_a2e(&self, address: SocketAddr, id: &str) -> Reply {
        read(self.converse_over_a2e(address, id), &["/data/summary/status"])
    }

    fn converse_over_a2e(&self, address: SocketAddr, id: &str) -> Result<Value, NoAnswer> {
        let broken = |_ended| NoAnswer::Broken;
        let begun = post(address, "/a2e/session", &[], "")?;
        let Some(session) = begun["session_id"].as_str() else { return Ok(begun) };
        let session = format!("X-Session-Id: {session}");
        let mut stream = TcpStream::connect(address).map_err(broken)?;
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        write!(stream, "GET /a2e/stream HTTP/1.1\r\nHost: localhost\r\n{session}\r\n\r\n").map_err(broken)?;
        let call = a2e_call(id, "write_file", self.arguments());
        let lines = format!("{}\n{call}", a2e_handshake(AGENT, ""));
        let sent = HttpClient::post_to(address, "/a2e/send", &[&session], &lines)?;
        if sent.status != 202 {
            return Ok(sent.json());
        }
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        let mut messages = lines.filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
        messages.find(|message: &Value| message["req_id"] == id).ok_or(NoAnswer::Broken)
    }

    fn send_over_nexus(&self, address: SocketAddr, id: &str) -> Reply {
        let message = PLANNER.execute_as(id, "write_file", self.arguments());
        let answer = post(address, "/nexus", &[], &message.to_string());
        read(answer.map(|answer| PLANNER.read(&answer)), &["/data/status"])
    }

    fn send_over_a2a(&mut self, address: SocketAddr) -> Reply {
        let greeting = json!({ "kind": "text", "text": "A call follows." });
        let begun = post_to_a2a(address, &greeting, None, true);
        self.id = begun.as_ref().ok().and_then(|begun| Some(begun["result"]["id"].as_str()?.to_owned()));
        let Some(task) = &self.id else { return read(begun, &[]) };
        let call = json!({ "kind": "data", "data": { "tool": "write_file", "arguments": self.arguments() } });
        read(post_to_a2a(address, &call, Some(task), true), &["/result/metadata/status"])
    }

    fn begin_over_a2a(&mut self, address: SocketAddr) -> Reply {
        let call = json!({ "kind": "data", "data": { "tool": "write_file", "arguments": self.arguments() } });
        let begun = post_to_a2a(address, &call, None, false);
        self.id = begun.as_ref().ok().and_then(|begun| Some(begun["result"]["id"].as_str()?.to_owned()));
        if self.id.is_some() { Reply::Accepted } else { read(begun, &[]) }
    }

    fn send_over_sovereign(&mut self, address: SocketAddr) -> Reply {
        let request = json!({ "jsonrpc": "3.0", "id": "r", "method": "write_file",
            "params": { "payload": self.arguments() } });
        let answer = post(address, "/run", &[], &request.to_string());
        let pointers = ["/metadata/context_hints/intent_id", "/error/data/intent_id"];
        let named = |answer: &Value| {
            pointers.iter().find_map(|pointer| answer.pointer(pointer)?.as_str().map(str::to_owned))
        };
        let id = answer.as_ref().ok().and_then(named);
        let reply = read(answer, &["/result/status_code", "/error/data/status_code"]);
        if matches!(reply, Reply::Ended(_)) {
            self.id = Some(id.expect("an answer names the intent"));
        }
        reply
    }
}

fn post(address: SocketAddr, path: &str, lines: &[&str], body: &str) -> Result<Value, NoAnswer> {
    HttpClient::post_to(address, path, lines, body).map(|answer| answer.json())
}

fn ask(address: SocketAddr, method: &str, params: &Value) -> Result<Value, NoAnswer> {
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    post(address, "/jsonrpc", &[], &request.to_string())
}

fn post_to_a2a(
    address: SocketAddr,
    part: &Value,
    task: Option<&str>,
    waits: bool,
) -> Result<Value, NoAnswer> {
    let mut message = json!({ "kind": "message", "role": "user", "messageId": intent_id(), "parts": [part] });
    if let Some(task) = task {
        message["taskId"] = json!(task);
    }
    let params = json!({ "message": message, "configuration": { "blocking": waits } });
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params });
    post(address, "/a2a/rpc", &[], &request.to_string())
}

/// Reads the status of the report at one of these JSON pointers, or a refusal that allows a repeat.
fn read(answer: Result<Value, NoAnswer>, pointers: &[&str]) -> Reply {
    let answer = match answer {
        Ok(answer) => answer,
        Err(why) => return Reply::None(why),
    };
    let mut statuses = pointers.iter().filter_map(|pointer| answer.pointer(pointer)?.as_str());
    if let Some(status) = statuses.find(|status| matches!(*status, "SUCCESS" | "ABORTED")) {
        return Reply::Ended(status.to_owned());
    }
    if has_member(&answer, &|name, value| {
        (matches!(name, "retry_after_ms" | "retryAfterMs") && value.is_u64())
            || (name == "retryable" && *value == true)
    }) {
        return Reply::Refused { ran: has_member(&answer, &|name, value| name == "ran" && *value == true) };
    }
    // A task over A2A that goes on.
    if answer
        .pointer("/result/status/state")
        .is_some_and(|state| matches!(state.as_str(), Some("submitted" | "working")))
    {
        return Reply::Accepted;
    }
    Reply::Odd(answer.to_string())
}

fn has_member(value: &Value, is_match: &dyn Fn(&str, &Value) -> bool) -> bool {
    match value {
        Value::Object(members) => {
            members.iter().any(|(name, value)| is_match(name, value) || has_member(value, is_match))
        }
        Value::Array(items) => items.iter().any(|item| has_member(item, is_match)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// The answers that the clients got.
#[derive(Default)]
pub(super) struct Seen {
    /// The intents that ended, with the status of the answer.
    pub(super) ended: Vec<(Intent, String)>,
    /// The files of calls that nobody can name again: they may have run once.
    pub(super) lost: Vec<String>,
    /// The files of calls that were refused before anything ran, and not sent again.
    pub(super) refused: Vec<String>,
    /// The requests whose connection ended without a whole answer.
    pub(super) broken: Vec<Door>,
    /// Answers that are neither an end nor a refusal that allows a repeat.
    pub(super) odd: Vec<String>,
}

/// The addresses of the nodes, and the answers that their clients got.
pub(super) struct Load {
    pub(super) addresses: Mutex<Vec<SocketAddr>>,
    pub(super) has_ended: AtomicBool,
    pub(super) seen: Mutex<Seen>,
}

impl Load {
    pub(super) fn new(nodes: &[Executor]) -> Self {
        let addresses = nodes.iter().map(|node| node.address()).collect::<Vec<_>>();
        Self { addresses: addresses.into(), has_ended: AtomicBool::new(false), seen: Mutex::default() }
    }

    /// Sends calls, each until it has ended, to one node after another, until the load ends.
    pub(super) fn send(&self, client: usize) {
        let mut nth = client;
        while !self.has_ended.load(Ordering::Relaxed) {
            let door = DOORS[usize::try_from(random(DOORS.len() as u64)).unwrap()];
            let mut intent = Intent::new(door);
            let status = eventually("an end", || {
                let address = {
                    let addresses = self.addresses.lock().unwrap();
                    nth += 1;
                    addresses[nth % addresses.len()]
                };
                let reply = intent.send(address);
                if let Reply::Ended(status) = reply {
                    return Some(status);
                }
                self.record(&mut intent, &reply);
                sleep_up_to(100);
                None
            });
            self.seen.lock().unwrap().ended.push((intent, status));
            sleep_up_to(100);
        }
    }

    /// Records a reply that is not an end. A call over the sovereign door is then replaced by another one.
    fn record(&self, intent: &mut Intent, reply: &Reply) {
        let mut seen = self.seen.lock().unwrap();
        match reply {
            Reply::None(NoAnswer::Broken) => seen.broken.push(intent.door),
            Reply::Odd(answer) => seen.odd.push(format!("{:?}: {answer}", intent.door)),
            Reply::None(NoAnswer::Unreachable)
            | Reply::Ended(_)
            | Reply::Accepted
            | Reply::Refused { .. } => {}
        }
        if intent.door == Door::Sovereign {
            let file = std::mem::replace(intent, Intent::new(Door::Sovereign)).file;
            let has_not_run =
                matches!(reply, Reply::Refused { ran: false } | Reply::None(NoAnswer::Unreachable));
            if has_not_run { seen.refused.push(file) } else { seen.lost.push(file) }
        }
    }

    /// Checks that answers, files, reports and journals agree.
    pub(super) fn check(self, fleet: &Fleet, nodes: &[Executor]) {
        for name in NODES {
            fleet.wait_for(nodes[0].home(), name, |node| node["open"] == 0 && node["state"] == "live");
        }
        let Seen { ended, lost, refused, broken, odd } = self.seen.into_inner().unwrap();
        assert_eq!(odd, [""; 0]);
        let files = written_files(nodes);
        let mut reports = BTreeMap::<String, Vec<Value>>::new();
        for report in fleet.governor.reports() {
            reports.entry(report["intent_id"].as_str().unwrap().to_owned()).or_default().push(report);
        }
        let mut repeated_reports = 0;
        for (position, (intent, status)) in ended.iter().enumerate() {
            let id = intent.id.as_ref().unwrap();
            let reports =
                reports.remove(id).unwrap_or_else(|| panic!("{intent:?}: {status} is not reported"));
            assert!(
                reports.iter().all(|report| report["status"] == status.as_str()),
                "{intent:?}: {status}, {reports:?}"
            );
            repeated_reports += reports.len() - 1;
            let runs = files.get(&intent.file).map_or(0, String::len);
            // An aborted run may have written its byte.
            assert!(runs == 1 || (runs == 0 && status == "ABORTED"), "{intent:?}: {status}, {runs} runs");
            let again = intent.ask_for_end(nodes[position % nodes.len()].address());
            assert!(
                matches!(&again, Reply::Ended(again) if again == status),
                "{intent:?}: {status}, {again:?}"
            );
        }
        for file in lost {
            assert!(files.get(&file).map_or(0, String::len) <= 1, "{file} ran twice");
        }
        for file in refused {
            assert_eq!(files.get(&file), None, "a call that was refused before anything ran has run");
        }
        for node in nodes {
            let verified = node.home().run(&["journal", "verify"]);
            assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
        }
        eventually("each end is in a journal", || {
            let listed = |node: &Executor| node.home().list_journal(&["--limit", "1000000"]);
            let ids =
                nodes.iter().flat_map(listed).filter_map(|run| Some(run["intent_id"].as_str()?.to_owned()));
            let recorded = ids.collect::<HashSet<_>>();
            let is_recorded = |intent: &Intent| intent.id.as_ref().is_some_and(|id| recorded.contains(id));
            ended.iter().all(|(intent, _)| is_recorded(intent)).then_some(())
        });
        let mut counts = BTreeMap::<(Door, &str), usize>::new();
        for (intent, status) in &ended {
            *counts.entry((intent.door, status)).or_default() += 1;
        }
        let total = ended.len();
        let broken = broken.len();
        println!(
            "{total} intents, {broken} broken requests, {repeated_reports} repeated reports: {counts:?}"
        );
        assert!(
            DOORS.iter().all(|door| counts.keys().any(|(other, _)| other == door)),
            "a door was not used"
        );
    }
}

/// Settings of the A2A door that do not limit the requests of a test.
pub(super) fn frequent_requests() -> Value {
    let often = 1_000_000;
    json!({ "requests_per_minute": often, "requests_per_hour": often, "requests_at_once": 1000 })
}

/// The options of a node that serves all doors.
pub(super) fn options(fleet: &Fleet, keys: &nexus::Keys, node: &str) -> Options {
    fleet
        .options(node)
        .set("doors.a2a", frequent_requests())
        .set("doors.nexus", json!({ "key_file": keys.path(), "id": nexus::EXECUTOR }))
}

#[test]
fn kills_under_load_lose_and_repeat_nothing() {
    let Some(servers) = NatsServers::start(3) else { return };
    let (mut fleet, keys) = (Fleet::with(servers), nexus::Keys::of(&[PLANNER]));
    // A new cluster has a leader before it knows all of its servers, and refuses to create the stream until then.
    let start = |node| Executor::start_in_until_it_listens(Home::new(options(&fleet, &keys, node)));
    let mut nodes: Vec<Executor> = NODES.map(start).into();
    let (load, count) = (Load::new(&nodes), times(9));
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&load.has_ended);
        let load = &load;
        for client in 0..CLIENTS {
            scope.spawn(move || load.send(client));
        }
        let servers = &mut fleet.servers;
        let of_servers = scope.spawn(move || {
            for _ in 0..count / 3 {
                // Long enough for the cluster to have a leader most of the time.
                sleep_up_to(4000);
                let nth = usize::try_from(random(3)).unwrap();
                servers.kill(nth);
                sleep_up_to(2000);
                servers.restart(nth);
            }
        });
        for number in 0..count - count / 3 {
            sleep_up_to(1000);
            let nth = usize::try_from(random(3)).unwrap();
            if random(2) == 0 {
                let is_long = number % LONG_PAUSE_EVERY == LONG_PAUSE_EVERY - 1;
                nodes[nth].process().pause();
                std::thread::sleep(Duration::from_millis(if is_long { 9_000 } else { random(2000) }));
                nodes[nth].process().resume();
            } else {
                let home = nodes.remove(nth).kill();
                nodes.insert(nth, Executor::start_in_until_it_listens(home));
                load.addresses.lock().unwrap()[nth] = nodes[nth].address();
            }
        }
        of_servers.join().unwrap();
        load.has_ended.store(true, Ordering::Relaxed);
    });
    fleet.servers.wait_for_leader();
    load.check(&fleet, &nodes);
}
