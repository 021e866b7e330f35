//! (f): what those cost who only wait: the server's memory with so many streams or WebSockets on which nothing
//! comes, each kind at a server of its own. In the end each is told something, so that all of them did wait.

use super::HELLO;
use super::client::{Events, Http, WebSocket, post};
use super::doors::{Server, configure_with, install};
use super::nexus::{self, Agent};
use super::protocols::{self, open_all_doors};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;
use std::time::Duration;

const SUBSCRIBERS: u16 = 1000;
/// How many agents they are of at the Nexus door: its key file has room for no more than some hundred, and one agent
/// has up to 16 subscriptions.
const AGENTS: u16 = 125;
/// What all of them may take, in MB.
const GOAL_MB: f64 = 50.0;
/// Until what was done for a connection is over.
pub(crate) const SETTLED: Duration = Duration::from_secs(1);

/// A command that waits until it is stopped: for the clock, for an hour.
pub(crate) const WAITS: &str = include_str!("waits.wat");

pub(crate) fn measure(data: &Path) {
    as_many_files_as_may_be();
    let binary = crate::executor();
    let folder = tempfile::tempdir().unwrap();
    install(&binary, folder.path(), data, &[("hello", HELLO), ("waits", WAITS)]);
    configure_with(folder.path(), data, "inline", &folder.path().join("journal.db"));
    open_all_doors(folder.path());
    let agents = nexus::agents(AGENTS, &folder.path().join("nexus.keys"));
    let started = || Server::start(&binary, folder.path(), &folder.path().join("catalogue"));
    let title = format!("(f) {SUBSCRIBERS} that wait: the server in MB");
    println!(
        "{title:<42} {:>8} {:>8} {:>8} {:>8} {:>8} {:>14}",
        "RSS", "with", "PSS", "with", "they", "goal"
    );
    a2a(&started());
    a2e(&started());
    nexus(&started(), &agents);
    println!(
        "What the kernel keeps for a connection is in neither figure. Every one of them was told something"
    );
    println!("in the end, so that all of them did wait.");
}

/// One run that goes on, and streams of its task.
fn a2a(server: &Server) {
    let mut http = Http::connect(&server.address);
    let begun = http.exchange(&post("/a2a/rpc", "", &protocols::message("waits", false)));
    let begun: serde_json::Value = serde_json::from_str(begun).unwrap();
    let task = begun["result"]["id"].as_str().unwrap();
    let about = |method: &str| {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"id":"{task}"}}}}"#);
        post("/a2a/rpc", "", &body)
    };
    let subscribe = |_| {
        let mut events = Events::open(&server.address, &about("tasks/resubscribe"));
        let task = events.next();
        assert!(task.contains(r#""kind":"task""#), "{task}");
        events
    };
    let streams = row("A2A, SSE (`tasks/resubscribe`)", server, subscribe);
    let canceled = http.exchange(&about("tasks/cancel"));
    assert!(canceled.contains(r#""state":"canceled""#), "{canceled}");
    for mut stream in streams {
        while !stream.next().contains(r#""final":true"#) {}
    }
}

/// Sessions, each with its stream.
fn a2e(server: &Server) {
    let mut http = Http::connect(&server.address);
    let sessions = row("A2E, SSE (sessions)", server, |_| protocols::session(&mut http, &server.address));
    for (session, mut events) in sessions {
        http.exchange(&protocols::line(&session, "ping", ""));
        let pong = events.next();
        assert!(pong.contains(r#""type":"pong""#), "{pong}");
    }
}

/// WebSockets that want to hear of their agents' runs.
fn nexus(server: &Server, agents: &[Agent]) {
    let agent = |number: u16| &agents[usize::from(number) % agents.len()];
    let ask = |socket: &mut WebSocket, agent: &Agent, action: &str, parameters: &str| {
        socket.send(&WebSocket::frame(&agent.command(action, parameters)));
        let answer = agent.open(&socket.receive());
        assert_eq!(answer["status"], "SUCCESS", "{answer}");
        answer["data"].clone()
    };
    let subscribe = |number| {
        let mut socket = WebSocket::open(&server.address, "/nexus");
        let events = r#"{"events":["started","finished"],"deliveryGuarantee":"at-most-once"}"#;
        let answer = ask(&mut socket, agent(number), "events.subscribe", events);
        (number, socket, answer["subscriptionId"].to_string())
    };
    let sockets = row("Nexus, WebSocket (`events.subscribe`)", server, subscribe);
    for (number, mut socket, subscription) in sockets {
        let parameters = format!(r#"{{"subscriptionId":{subscription}}}"#);
        let answer = ask(&mut socket, agent(number), "events.unsubscribe", &parameters);
        assert_eq!(answer["unsubscribed"], true, "{answer}");
    }
}

/// Lets all of them subscribe, and says what the server's memory was before and is then.
fn row<S>(what: &str, server: &Server, subscribe: impl FnMut(u16) -> S) -> Vec<S> {
    std::thread::sleep(SETTLED);
    let before = server.memory();
    let subscribers = (0..SUBSCRIBERS).map(subscribe).collect::<Vec<_>>();
    std::thread::sleep(SETTLED);
    let with = server.memory();
    let they = with.rss_mb - before.rss_mb;
    let goal = format!("{GOAL_MB:.0}{}", if they < GOAL_MB { "" } else { ", missed" });
    println!(
        "{what:<42} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {they:>8.1} {goal:>14}",
        before.rss_mb, with.rss_mb, before.pss_mb, with.pss_mb
    );
    subscribers
}

/// Lets this process, and the servers that it starts, have as many connections as the system allows.
fn as_many_files_as_may_be() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}
