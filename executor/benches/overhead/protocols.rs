//! (e): what each door adds to a call. The same hello goes through every door of one server, against
//! `a2g/intent` over HTTP, because every other door asks the governor as well.

use super::client::{Events, Http, WebSocket, post};
use super::doors::{LOGGED, Server, configure_with, install, serve};
use super::journal::RAM_DISK;
use super::nexus::{self, Agent};
use super::{HELLO, HELLO_ARGUMENTS, median, micros};
use serde_json::{Map, Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 1000;
/// Calls of each door before anything is measured.
const WARM: usize = 100;
/// A prime that is at least the number of rows: every step below it visits each row once.
const CYCLE: usize = 11;
/// As many tasks as the A2A door keeps of an agent, so that a call at it is one of many.
const TASKS_KEPT: usize = 1000;
/// How many agents take turns at each Nexus connection: of one the door takes 100 messages a second.
const NEXUS_AGENTS: u16 = 4;

/// Starts of `mcp` of which the median is printed.
const STARTS: usize = 20;
/// The tools in the catalogue, all compiled, when `mcp` starts.
const TOOLS: [&str; 10] = ["hello", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9"];
/// The maximum time from the start of `mcp` to its first list of tools.
const MAX_START: Duration = Duration::from_millis(150);

/// One client at one door.
trait Client {
    /// The next request, as a client that knows what it wants can make it before it has to be sent.
    fn request(&mut self) -> Vec<u8>;
    /// Sends it and takes all of the answer. This is what is measured.
    fn ask(&mut self, request: &[u8]) -> String;
    /// Stops the benchmark unless the tool ran and the answer says so.
    fn check(&self, answer: &str);
}

/// A row of the table.
struct Row {
    what: &'static str,
    /// What the door may add, in microseconds.
    goal: Option<f64>,
    client: Box<dyn Client>,
    times: Vec<Duration>,
}

pub(crate) fn measure(target: &Path, data: &Path) {
    let binary = crate::executor();
    let folder = tempfile::tempdir_in(target).unwrap();
    install(&binary, folder.path(), data, &TOOLS.map(|name| (name, HELLO)));
    let in_ram = tempfile::tempdir_in(RAM_DISK).ok();
    let in_ram = in_ram.as_ref().map(|in_ram| ("a RAM disk", in_ram.path()));
    for (place, journal) in in_ram.into_iter().chain([("the disk", folder.path())]) {
        // Each process has a journal of its own.
        let configure = |name: &str| {
            configure_with(folder.path(), data, "inline", &journal.join(name));
            open_all_doors(folder.path());
        };
        let catalogue = folder.path().join("catalogue");
        configure("a2g.db");
        let a2g = LineClient::start(
            serve(&binary, folder.path(), &catalogue).arg("--stdio"),
            r#""status":"SUCCESS""#,
            intent,
        );
        configure("mcp.db");
        let mcp = LineClient::start(&mut mcp(&binary, folder.path()), r#""isError":false"#, tools_call);
        configure("journal.db");
        let agents = nexus::agents(2 * NEXUS_AGENTS, &folder.path().join("nexus.keys"));
        let server = Server::start(&binary, folder.path(), &catalogue);
        table(place, &server.address, agents, [a2g, mcp]);
        drop(server);
        measure_starts(&binary, folder.path());
    }
    println!(
        "The medians of {ROUNDS} calls of one client at each door, in turn, with {TASKS_KEPT} tasks of A2A kept."
    );
    println!(
        "Client and server share this machine. Not in the figures: requests are made, Nexus messages sealed"
    );
    println!("and signed among them, before the clock starts; answers are checked after it has stopped.");
    println!(
        "An A2E call ends with its answer on the session's stream. On the disk, what a door writes by itself"
    );
    println!("costs what the disk takes for it: only the door of A2A does, for its tasks.");
}

/// Adds to the configuration what lets the benchmark's clients through every door as fast as they ask.
pub(crate) fn open_all_doors(folder: &Path) {
    let policies = folder.join("policies");
    std::fs::create_dir_all(&policies).unwrap();
    let tools = TOOLS.into_iter().chain(["waits"]);
    let tools: Map<String, Value> = tools.map(|name| (name.to_owned(), json!({ "allowed": true }))).collect();
    let policy = json!({ "agent_did": "*", "version": "1", "capabilities": { "tools": tools } });
    std::fs::write(policies.join("policy.json"), policy.to_string()).unwrap();
    let file = folder.join("executor.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    let policies = policies.display();
    let keys = folder.join("nexus.keys");
    let more = format!(
        "[server]\nmax_connections = 2048\n[governor]\npolicies = \"{policies}\"\n\
         [doors.a2a]\nrequests_per_minute = 1000000\nrequests_per_hour = 1000000\nrequests_at_once = 2048\n\
         [doors.a2e]\nmax_sessions = 2048\nmax_sessions_per_caller = 2048\n\
         [doors.nexus]\nkey_file = \"{}\"\n",
        keys.display()
    );
    std::fs::write(file, config + &more).unwrap();
}

fn table(place: &str, address: &str, mut agents: Vec<Agent>, [a2g, mcp]: [LineClient; 2]) {
    let row = |what, goal, client| Row { what, goal, client, times: Vec::new() };
    let json = |path, headers, success, body| {
        Box::new(Json { http: Http::connect(address), path, headers, success, body })
    };
    let http = |path, success, body| json(path, "", success, body);
    let intent = || http("/jsonrpc", r#""status":"SUCCESS""#, intent);
    let others = agents.split_off(usize::from(NEXUS_AGENTS));
    let mut rows = [
        row("A2G `a2g/intent`, HTTP", None, intent()),
        row("the same again, over another connection", None, intent()),
        row("A2A `message/send`", Some(100.0), http("/a2a/rpc", r#""state":"completed""#, send_message)),
        row("A2E `tool/call/req`, HTTP", Some(100.0), Box::new(A2e::begin(address))),
        row(
            "MCP `tools/call`, HTTP",
            Some(60.0),
            json("/mcp", MCP_HEADERS, r#""isError":false"#, tools_call),
        ),
        row("sovereign `/run`", Some(100.0), http("/run", r#""success":true"#, run)),
        row("Nexus command, sealed, HTTP", Some(150.0), Box::new(Nexus::over_http(address, agents))),
        row(
            "Nexus command, sealed, WebSocket",
            Some(150.0),
            Box::new(Nexus::over_web_socket(address, others)),
        ),
        row("A2G `a2g/intent`, stdio", None, Box::new(a2g)),
        row("MCP `tools/call`, stdio", None, Box::new(mcp)),
    ];
    let mut a2a = http("/a2a/rpc", r#""state":"completed""#, send_message);
    for _ in 0..TASKS_KEPT {
        call(&mut *a2a);
    }
    for round in 0..WARM + ROUNDS {
        // What a call leaves to be done falls on the one after it: each comes after each of the others.
        let step = 1 + round % (CYCLE - 1);
        for turn in 0..CYCLE {
            if let Some(row) = rows.get_mut(turn * step % CYCLE) {
                let took = call(&mut *row.client);
                if round >= WARM {
                    row.times.push(took);
                }
            }
        }
    }
    println!(
        "{:<46} {:>12} {:>12} {:>12}",
        format!("(e) inline, the journal on {place}"),
        "median",
        "adds",
        "goal"
    );
    let base = micros(median(&mut rows[0].times));
    for (index, Row { what, goal, client: _, times }) in rows.iter_mut().enumerate() {
        let half = micros(median(times));
        let adds = if index == 0 { String::new() } else { format!("{:.0} µs", half - base) };
        let goal = goal.map_or(String::new(), |goal| {
            format!("{goal:.0} µs{}", if half - base <= goal { "" } else { ", missed" })
        });
        println!("{what:<46} {half:>9.1} µs {adds:>12} {goal:>15}");
    }
    println!();
}

/// Prints how long `mcp` takes from its start to its first list of tools, as a host sees it.
fn measure_starts(binary: &Path, folder: &Path) {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let started = Instant::now();
        let mut host = LineClient::spawn(&mut mcp(binary, folder), "\"tools\"", list_tools);
        let request = host.request();
        let answer = host.ask(&request);
        times.push(started.elapsed());
        assert_eq!(answer.matches("\"inputSchema\"").count(), TOOLS.len(), "{answer}");
    }
    let half = median(&mut times);
    let missed = if half <= MAX_START { "" } else { ", missed" };
    println!(
        "{:<46} {:>9.1} ms {:>12} {:>12} ms{missed}\n",
        format!("`mcp`: first list of {} compiled tools", TOOLS.len()),
        micros(half) / 1e3,
        "",
        MAX_START.as_millis()
    );
}

/// `mcp`, with the configuration of the benchmark.
fn mcp(binary: &Path, folder: &Path) -> Command {
    let mut command = Command::new(binary);
    command.args(["mcp", "--config"]).arg(folder.join("executor.toml"));
    command.arg("--tools").arg(folder.join("catalogue")).env("RUST_LOG", LOGGED);
    command
}

/// How long one call took.
fn call(client: &mut dyn Client) -> Duration {
    let request = client.request();
    let started = Instant::now();
    let answer = client.ask(&request);
    let took = started.elapsed();
    client.check(&answer);
    took
}

/// A door where one HTTP request is a call, and a part of the answer's text says that it succeeded.
struct Json {
    http: Http,
    path: &'static str,
    /// Further header lines, each with its line end.
    headers: &'static str,
    success: &'static str,
    body: fn() -> String,
}

impl Client for Json {
    fn request(&mut self) -> Vec<u8> {
        post(self.path, self.headers, &(self.body)())
    }

    fn ask(&mut self, request: &[u8]) -> String {
        self.http.exchange(request).to_owned()
    }

    fn check(&self, answer: &str) {
        assert!(answer.contains(self.success), "{answer}");
    }
}

/// A process that answers each line of its standard input.
struct LineClient {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    success: &'static str,
    body: fn() -> String,
}

impl LineClient {
    fn spawn(command: &mut Command, success: &'static str, body: fn() -> String) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = child.stdout.take().unwrap();
        Self { child, input, output: BufReader::new(output), success, body }
    }

    /// Starts one, and waits until its tools are compiled.
    fn start(command: &mut Command, success: &'static str, body: fn() -> String) -> Self {
        let mut client = Self::spawn(command, success, body);
        loop {
            let request = client.request();
            if client.ask(&request).contains(success) {
                return client;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Client for LineClient {
    fn request(&mut self) -> Vec<u8> {
        ((self.body)() + "\n").into_bytes()
    }

    fn ask(&mut self, request: &[u8]) -> String {
        self.input.write_all(request).unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn check(&self, answer: &str) {
        assert!(answer.contains(self.success), "{answer}");
    }
}

impl Drop for LineClient {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn intent() -> String {
    let intent = uuid::Uuid::new_v4();
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"a2g/intent","params":{{"agent_did":"did:a2g:bench:1.0:x","intent_id":"{intent}","tool":"hello","arguments":{HELLO_ARGUMENTS}}}}}"#
    )
}

fn send_message() -> String {
    message("hello", true)
}

/// An A2A message that calls a tool.
pub(crate) fn message(tool: &str, blocking: bool) -> String {
    let message = uuid::Uuid::new_v4();
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"message/send","params":{{"message":{{"kind":"message","role":"user","messageId":"{message}","parts":[{{"kind":"data","data":{{"tool":"{tool}","arguments":{HELLO_ARGUMENTS}}}}}]}},"configuration":{{"blocking":{blocking}}}}}}}"#
    )
}

pub(crate) const MCP_HEADERS: &str =
    "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: hello\r\n";

const MCP_META: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

pub(crate) fn tools_call() -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"hello","arguments":{HELLO_ARGUMENTS},"_meta":{MCP_META}}}}}"#
    )
}

fn list_tools() -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"_meta":{MCP_META}}}}}"#)
}

fn run() -> String {
    let id = uuid::Uuid::new_v4();
    format!(r#"{{"jsonrpc":"3.0","id":"{id}","method":"hello","params":{{"payload":{HELLO_ARGUMENTS}}}}}"#)
}

/// A session of A2E, with its stream.
struct A2e {
    send: Http,
    session: String,
    events: Events,
}

impl A2e {
    fn begin(address: &str) -> Self {
        let mut send = Http::connect(address);
        let (session, events) = session(&mut send, address);
        Self { send, session, events }
    }
}

/// Opens a session of A2E and its stream, and shakes hands.
pub(crate) fn session(send: &mut Http, address: &str) -> (String, Events) {
    let answer: Value = serde_json::from_str(send.exchange(&post("/a2e/session", "", ""))).unwrap();
    let session = answer["session_id"].as_str().unwrap().to_owned();
    let stream = format!("GET /a2e/stream HTTP/1.1\r\nHost: localhost\r\nX-Session-Id: {session}\r\n\r\n");
    let mut events = Events::open(address, stream.as_bytes());
    let hands = r#","agent_id":"bench","agent_caps":["tools"],"auth_token":"""#;
    send.exchange(&line(&session, "handshake/req", hands));
    let answer = events.next();
    assert!(answer.contains(r#""ok":true"#), "{answer}");
    (session, events)
}

/// A message of a session with further members, each with a comma before it, as a request.
pub(crate) fn line(session: &str, kind: &str, members: &str) -> Vec<u8> {
    let id = uuid::Uuid::new_v4();
    let line = format!(r#"{{"a2e":"1.0","type":"{kind}","id":"{id}","ts":1{members}}}"#);
    post("/a2e/send", &format!("X-Session-Id: {session}\r\n"), &line)
}

impl Client for A2e {
    fn request(&mut self) -> Vec<u8> {
        let call = format!(r#","tool_name":"hello","arguments":{HELLO_ARGUMENTS},"streaming":false"#);
        line(&self.session, "tool/call/req", &call)
    }

    fn ask(&mut self, request: &[u8]) -> String {
        self.send.exchange(request);
        self.events.next()
    }

    fn check(&self, answer: &str) {
        let succeeded = answer.contains(r#""type":"tool/call/resp""#) && answer.contains(r#""success":true"#);
        assert!(succeeded, "{answer}");
    }
}

/// Agents that take turns at one connection to the Nexus door.
struct Nexus {
    line: Line,
    agents: Vec<Agent>,
}

enum Line {
    Http(Http),
    WebSocket(WebSocket),
}

impl Nexus {
    fn over_http(address: &str, agents: Vec<Agent>) -> Self {
        Self { line: Line::Http(Http::connect(address)), agents }
    }

    fn over_web_socket(address: &str, agents: Vec<Agent>) -> Self {
        Self { line: Line::WebSocket(WebSocket::open(address, "/nexus")), agents }
    }
}

impl Client for Nexus {
    fn request(&mut self) -> Vec<u8> {
        self.agents.rotate_left(1);
        let command = command(&self.agents[0]);
        match self.line {
            Line::Http(_) => post("/nexus", "", &command),
            Line::WebSocket(_) => WebSocket::frame(&command),
        }
    }

    fn ask(&mut self, request: &[u8]) -> String {
        match &mut self.line {
            Line::Http(http) => http.exchange(request).to_owned(),
            Line::WebSocket(socket) => {
                socket.send(request);
                socket.receive()
            }
        }
    }

    fn check(&self, answer: &str) {
        let said = self.agents[0].open(answer);
        assert_eq!(
            (&said["status"], &said["data"]["status"]),
            (&"SUCCESS".into(), &"SUCCESS".into()),
            "{said}"
        );
    }
}

/// A command that runs hello.
pub(crate) fn command(agent: &Agent) -> String {
    agent.command("tool.execute", &format!(r#"{{"tool":"hello","arguments":{HELLO_ARGUMENTS}}}"#))
}
