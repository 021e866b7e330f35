//! `demo fleet`: three executors share their intents over NATS, while one of them is killed and another one restarted.
//!
//! ```text
//! clients ── 100 intents each ──▶ one, two, three ── claims ──▶ NATS
//!    │                               │      ╳ killed
//!    └─ a broken one, repeated ──────┘      └─ its open intents are ended by another node
//! ```
//! Every printed figure is counted: by the clients, by the tool, or by the governor.

mod calls;
mod nodes;
mod sums;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::client::Client;
use super::fixture::Server;
use crate::nats::NatsServers;
use crate::run::{self, Workspace};
use crate::{setup, tools};
use calls::{DOORS, Intent, Reply};
use nodes::{Fixture, NODES};
use sums::{Answered, Attempt, Reports};

/// The number of intents that are first sent to each node.
const FOR_EACH_NODE: usize = 100;
const INTENTS: usize = FOR_EACH_NODE * NODES.len();
/// The clients of each node, each of which sends one intent at a time.
const CLIENTS_OF_EACH: usize = 4;
/// The number of answers after which a node is killed (SIGKILL), and another one is restarted (SIGTERM).
const KILL_AFTER: usize = 60;
const RESTART_AFTER: usize = 120;
/// The positions in [`NODES`] of those two.
const KILLED: usize = 2;
const RESTARTED: usize = 1;
/// The time for the answer of one intent, with all repeats. A lost node is taken over after about 25 s.
const INTENT_TIMEOUT: Duration = Duration::from_secs(55);
/// The time for the reports that are still missing when all intents are answered.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The pause before a repeat at the next node, and the maximum one that a node can ask for.
const REPEAT_DELAY: Duration = Duration::from_millis(100);
const MAX_REPEAT_DELAY: Duration = Duration::from_secs(2);

/// The command `demo fleet`.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let nats = setup::prepare_nats(workspace)?.context("the demo of a fleet needs the server of NATS")?;
    tools::build_with_executor(workspace)?;
    let fixture = Fixture::create(workspace)?;
    run::progress("Starting", "a server of NATS, a governor and three executors");
    let servers = NatsServers::start(&nats, 1, &fixture.logs)?;
    fixture.configure(workspace, servers.urls())?;
    fixture.add_tool(workspace)?;
    fixture.init_fleet()?;
    let started = run::now();
    let mut governor = fixture.start_governor()?;
    let mut nodes = Vec::new();
    for node in NODES {
        nodes.push(fixture.start_node(node, governor.address, &log_name(node))?);
    }
    let answered = send_all(&fixture, &governor, &mut nodes)?;
    run::progress("Waiting", "for the reports of the killed node's intents");
    let reports = wait_for_reports(&fixture)?;
    governor.check_alive()?;
    let is_good = sums::compare(INTENTS, &answered, &fixture.runs(), &reports)?;
    let logs = fixture.logs.display();
    ensure!(is_good, "the sums do not agree; the logs are in {logs}");
    anstream::println!("\nThe sums agree, after {:.1} s.", started.elapsed().as_secs_f64());
    Ok(())
}

fn log_name(node: &str) -> String {
    format!("fleet-{node}.log")
}

/// Where the nodes listen, and the progress of the clients.
struct Fleet {
    addresses: Mutex<Vec<SocketAddr>>,
    answered: AtomicUsize,
}

impl Fleet {
    fn address(&self, node: usize) -> Result<SocketAddr> {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.get(node).copied().context("there is no such node")
    }

    fn set_address(&self, node: usize, address: SocketAddr) {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = addresses.get_mut(node) {
            *known = address;
        }
    }
}

/// Sends all intents, and meanwhile kills a node and restarts another one.
fn send_all(fixture: &Fixture, governor: &Server, nodes: &mut Vec<Server>) -> Result<Vec<Answered>> {
    let addresses = Mutex::new(nodes.iter().map(|node| node.address).collect());
    let fleet = Fleet { addresses, answered: AtomicUsize::new(0) };
    let next = NODES.map(|_| AtomicUsize::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..NODES.len())
            .zip(&next)
            .flat_map(|(home, next)| [(home, next); CLIENTS_OF_EACH])
            .map(|(home, next)| {
                let fleet = &fleet;
                scope.spawn(move || send_share(fleet, home, next))
            })
            .collect();
        let disturbed = disturb(fixture, governor, nodes, &fleet, || clients.iter().all(|c| c.is_finished()));
        let mut all = Vec::with_capacity(INTENTS);
        for client in clients {
            all.extend(client.join().map_err(|_| anyhow!("the thread of a client panicked"))??);
        }
        disturbed.map(|()| all)
    })
}

/// Kills a node, and restarts another one.
fn disturb(
    fixture: &Fixture,
    governor: &Server,
    nodes: &mut Vec<Server>,
    fleet: &Fleet,
    have_ended: impl Fn() -> bool,
) -> Result<()> {
    let started = run::now();
    let wait_for = |count: usize| loop {
        // Asked first, because the last client counts its answer before it ends.
        let have_ended = have_ended();
        let answered = fleet.answered.load(Ordering::SeqCst);
        if answered >= count {
            return Ok(answered);
        }
        ensure!(!have_ended, "the clients ended before {count} intents were answered");
        thread::sleep(POLL_INTERVAL);
    };
    let say = |answered: usize, what: &str| {
        let seconds = started.elapsed().as_secs_f64();
        anstream::println!("{seconds:>6.1} s  {answered:>3} intents answered: {what}");
    };
    let answered = wait_for(KILL_AFTER)?;
    let (Some(killed), Some(restarted)) = (NODES.get(KILLED), NODES.get(RESTARTED)) else {
        bail!("a node has no name");
    };
    // Dropping the value kills the process.
    drop(nodes.remove(KILLED));
    say(answered, &format!("node {killed} is killed (SIGKILL)"));
    let answered = wait_for(RESTART_AFTER)?;
    say(answered, &format!("node {restarted} is asked to end (SIGTERM)"));
    nodes.remove(RESTARTED).stop()?;
    let again = fixture.start_node(restarted, governor.address, &log_name(&format!("{restarted}-again")))?;
    fleet.set_address(RESTARTED, again.address);
    say(fleet.answered.load(Ordering::SeqCst), &format!("node {restarted} serves again"));
    nodes.push(again);
    wait_for(INTENTS)?;
    say(INTENTS, "all are answered");
    Ok(())
}

/// Sends one of a node's intents after the other, until none is left.
fn send_share(fleet: &Fleet, home: usize, next: &AtomicUsize) -> Result<Vec<Answered>> {
    let mut all = Vec::new();
    loop {
        let position = next.fetch_add(1, Ordering::SeqCst);
        if position >= FOR_EACH_NODE {
            return Ok(all);
        }
        let number = home * FOR_EACH_NODE + position;
        let door = DOORS.into_iter().cycle().nth(position).context("there is no protocol")?;
        all.push(send_until_answered(fleet, home, Intent::new(number, door))?);
        fleet.answered.fetch_add(1, Ordering::SeqCst);
    }
}

/// Sends an intent to a node, and repeats it at the next one with the same id until it is answered.
fn send_until_answered(fleet: &Fleet, home: usize, mut intent: Intent) -> Result<Answered> {
    let started = run::now();
    let mut attempts = Vec::new();
    for node in (0..NODES.len()).cycle().skip(home) {
        let number = intent.number;
        ensure!(started.elapsed() < INTENT_TIMEOUT, "intent {number} got no answer: {attempts:?}");
        let reply = intent.send(Client(fleet.address(node)?))?;
        attempts.push(Attempt { node, reply: reply.clone() });
        let delay = match reply {
            Reply::Ended(status) => {
                let id = intent.id.context("an answered intent has an id")?;
                return Ok(Answered { number, door: intent.door, id, status, attempts });
            }
            Reply::Refused { retry_after_ms } => Duration::from_millis(retry_after_ms).min(MAX_REPEAT_DELAY),
            Reply::Broken => REPEAT_DELAY,
        };
        thread::sleep(delay);
    }
    bail!("there are no nodes")
}

/// Waits until the governor has a report of each intent, and for some time for surplus ones.
fn wait_for_reports(fixture: &Fixture) -> Result<Reports> {
    const SETTLE_DELAY: Duration = Duration::from_secs(1);
    let started = run::now();
    while Reports::read(&fixture.reports())?.statuses.len() < INTENTS && started.elapsed() < DELIVERY_TIMEOUT
    {
        thread::sleep(POLL_INTERVAL);
    }
    thread::sleep(SETTLE_DELAY);
    Reports::read(&fixture.reports())
}
