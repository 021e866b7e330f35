//! A model of five nodes: the code of this crate runs against simulated servers, and all that happens follows from
//! a seed.
//!
//! Requests arrive late, or not at all; answers are lost; nodes are paused, cut off, killed and started again. A request
//! may take effect after its node has given it up, has lost its lease or has been killed.
//!
//! `A2G_FLEET_SEEDS` sets the number of seeds, `A2G_FLEET_FIRST` the first one, and `A2G_FLEET_ALL=1` counts those that
//! fail. `A2G_FLEET_SEED` runs one, and prints what happens.

mod history;
mod node;
mod world;

use crate::identity::IDENTITY;
use crate::record::encode;
use crate::seal::SealedStore;
use crate::{FleetKey, LeaseTimes, StreamIdentity};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::ident::IntentId;
use node::{Call, Journal, Process, Processes, fleet_name};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use world::{Blow, Faults, NODES, ProcessId, SimulatedStore, Tasks, World};

/// The number of seeds without `A2G_FLEET_SEEDS`, which `cargo xtask torture` sets.
const SEEDS: u64 = 3_000;
const SECOND: u64 = 1_000_000;
/// The maximum time until everything has settled, in microseconds.
const SETTLING: u64 = 300 * SECOND;

/// The figures of a seed, or the sums of those of several.
#[derive(Debug, Default)]
struct Figures {
    begun: u64,
    reports: u64,
    again: u64,
    requests: u64,
    /// The seeds that have failed, where those are counted.
    failed: u64,
}

impl Figures {
    fn and(self, more: &Self) -> Self {
        Self {
            begun: self.begun + more.begun,
            reports: self.reports + more.reports,
            again: self.again + more.again,
            requests: self.requests + more.requests,
            failed: self.failed + more.failed,
        }
    }
}

struct Simulation {
    world: World,
    tasks: Tasks,
    key: FleetKey,
    journals: Vec<Arc<Journal>>,
    processes: Processes,
    calls: Vec<Call>,
    /// `true` if nothing goes wrong.
    is_calm: bool,
}

impl Simulation {
    fn new(seed: u64, is_traced: bool, key: FleetKey) -> Self {
        let world = World::new(seed, is_traced);
        let store = SimulatedStore { world: world.clone(), process: ProcessId { node: 0, number: 0 } };
        let identity = StreamIdentity::random(LeaseTimes::default());
        let sealed = SealedStore::new(store, key.clone(), fleet_name());
        let identity = sealed.seal.seal(IDENTITY, &encode(&identity).unwrap());
        world.lock().write(IDENTITY.to_owned(), identity);
        let processes = Arc::new(Mutex::new((0..NODES).map(|_| None::<Arc<Process>>).collect()));
        let journals = (0..NODES).map(|_| Arc::default()).collect();
        Self { world, tasks: Tasks::default(), key, journals, processes, calls: Vec::new(), is_calm: false }
    }

    fn run_until(&mut self, until: u64) {
        loop {
            self.tasks.poll(&self.world);
            let step = {
                let mut state = self.world.lock();
                if state.violation.is_some() { None } else { state.step(until) }
            };
            match step {
                None => {
                    let mut state = self.world.lock();
                    state.now = state.now.max(until);
                    return;
                }
                Some(None) => {}
                Some(Some((node, blow))) => self.strike(node, blow),
            }
        }
    }

    fn strike(&mut self, node: usize, blow: Blow) {
        let status = self.world.lock().nodes[node];
        self.world.lock().note(|| format!("n{node}: {blow:?}"));
        match blow {
            Blow::Kill if status.is_alive => {
                self.tasks.kill(node);
                self.processes.lock()[node] = None;
                let mut state = self.world.lock();
                state.nodes[node].is_alive = false;
                state.nodes[node].is_paused = false;
                state.history.kill(node);
            }
            Blow::Start if !status.is_alive => {
                let id = {
                    let mut state = self.world.lock();
                    let status = &mut state.nodes[node];
                    (status.is_alive, status.number) = (true, status.number + 1);
                    ProcessId { node, number: status.number }
                };
                let key = self.key.clone();
                let journal = Arc::clone(&self.journals[node]);
                let start = node::start(id, self.world.clone(), key, journal, Arc::clone(&self.processes));
                self.world.spawn(id, false, start);
            }
            Blow::Pause if status.is_alive => self.world.lock().nodes[node].is_paused = true,
            Blow::Resume => {
                self.world.lock().nodes[node].is_paused = false;
                self.tasks.unpark();
            }
            Blow::Leave => {
                if let Some(process) = self.processes.lock()[node].clone() {
                    process.close();
                    self.world.spawn(ProcessId { node, number: status.number }, false, process.leave());
                    let mut state = self.world.lock();
                    let at = state.now + state.random.below(15 * SECOND);
                    state.schedule_blow(at, node, Blow::Kill);
                }
            }
            Blow::Call(number) => {
                if let Some(process) = self.processes.lock()[node].clone() {
                    let call = self.calls[number];
                    self.world.spawn(ProcessId { node, number: status.number }, true, process.call(call));
                }
            }
            Blow::Approve(number) => {
                if let Some(process) = self.processes.lock()[node].clone() {
                    let approve = process.approve(self.calls[number].intent);
                    self.world.spawn(ProcessId { node, number: status.number }, true, approve);
                }
            }
            Blow::Deny(number) => {
                if let Some(process) = self.processes.lock()[node].clone() {
                    let deny = process.deny(self.calls[number].intent);
                    self.world.spawn(ProcessId { node, number: status.number }, true, deny);
                }
            }
            Blow::Kill | Blow::Start | Blow::Pause | Blow::Cut(_) => {}
        }
    }

    /// Plans what clients and misfortune do.
    fn plan(&mut self) -> u64 {
        let mut state = self.world.lock();
        let is_calm = state.random.chance(60);
        self.is_calm = is_calm;
        let intents = 1 + state.random.below(4);
        let is_shared = state.random.chance(500);
        for nth in 0..intents {
            let mut bytes = [0; 16];
            bytes[15] = u8::try_from(nth).unwrap();
            let usual = if is_shared && nth < 2 { Some(0) } else { Some(1 + bytes[15]) };
            let proof = usual.filter(|_| is_shared || state.random.chance(500));
            let longest = state.random.pick(&[10_u64, 1000, 30_000]);
            let run = Duration::from_millis(state.random.below(longest));
            let waits = state.random.chance(400);
            // An intent whose proof another one has used would wait until its verdict expires.
            let proof = proof.filter(|_| !waits);
            self.calls.push(Call { intent: IntentId::from_bytes(bytes), proof, run, waits });
        }
        let latency = state.random.pick(&[200_u64, 2000, 50_000, 1_000_000]);
        let length = SECOND * (2 + state.random.below(50));
        if is_calm {
            state.faults = Faults { latency, write: 5000, ..Faults::default() };
        } else {
            state.faults = Faults {
                latency,
                write: state.random.pick(&[5000, 5000, 1_000_000]),
                slow: state.random.pick(&[0, 0, 10, 100]),
                lost: state.random.pick(&[0, 0, 10, 100]),
                unanswered: state.random.pick(&[0, 0, 10, 100]),
                early_error: state.random.pick(&[0, 0, 10, 100]),
                strike: state.random.pick(&[0, 0, 10, 50]),
                provoke: state.random.pick(&[0, 0, 50, 300]),
                governor: state.random.pick(&[0, 0, 100, 700]),
                refusal: state.random.pick(&[0, 0, 100, 300]),
            };
        }
        for node in 0..NODES {
            state.schedule_blow(0, node, Blow::Start);
        }
        let mut moments = Vec::new();
        // Many repeats at few nodes find other things than few repeats at many.
        let called = state.random.pick(&[1, 2, NODES as u64, NODES as u64]);
        let repeats = state.random.pick(&[3, 3, 15]);
        for call in 0..self.calls.len() {
            for _ in 0..1 + state.random.below(repeats) {
                let moment = SECOND + state.random.below(length);
                moments.push(moment);
                // Several nodes get the call at about the same time.
                for _ in 0..1 + state.random.below(3) {
                    let node = usize::try_from(state.random.below(called)).unwrap();
                    let at = moment + state.random.below(3 * latency);
                    state.schedule_blow(at, node, Blow::Call(call));
                }
            }
            let approvals = if self.calls[call].waits { state.random.below(4) } else { 0 };
            for _ in 0..approvals {
                let at = state.random.pick(&moments) + state.random.below(10 * latency);
                let node = usize::try_from(state.random.below(NODES as u64)).unwrap();
                state.schedule_blow(at, node, Blow::Approve(call));
            }
            if state.random.chance(200) {
                let at = state.random.pick(&moments) + state.random.below(10 * latency);
                let node = usize::try_from(state.random.below(NODES as u64)).unwrap();
                state.schedule_blow(at, node, Blow::Deny(call));
            }
        }
        let blows = if is_calm { 0 } else { state.random.below(8) };
        for _ in 0..blows {
            let at = if state.random.chance(500) {
                state.random.pick(&moments) + state.random.below(10 * latency)
            } else {
                state.random.below(length)
            };
            let node = usize::try_from(state.random.below(NODES as u64)).unwrap();
            let longest = state.random.pick(&[SECOND, 10 * SECOND, 50 * SECOND]);
            let lasts = state.random.below(longest);
            let blow = state.random.pick(&[Blow::Kill, Blow::Pause, Blow::Cut(lasts), Blow::Leave]);
            state.schedule_blow(at, node, blow);
            match blow {
                Blow::Kill | Blow::Leave => state.schedule_blow(at + lasts, node, Blow::Start),
                Blow::Pause => state.schedule_blow(at + lasts, node, Blow::Resume),
                Blow::Start
                | Blow::Resume
                | Blow::Cut(_)
                | Blow::Call(_)
                | Blow::Deny(_)
                | Blow::Approve(_) => {}
            }
        }
        length
    }

    /// Ends all faults. Some dead nodes stay dead.
    fn heal(&mut self) {
        let mut state = self.world.lock();
        state.note(|| "all faults end".to_owned());
        state.heal();
        let now = state.now;
        let keeper = usize::try_from(state.random.below(NODES as u64)).unwrap();
        for node in 0..NODES {
            state.schedule_blow(now, node, Blow::Resume);
            if self.processes.lock()[node].as_ref().is_some_and(|process| process.is_closed()) {
                state.schedule_blow(now, node, Blow::Kill);
            }
            if node == keeper || state.random.chance(500) {
                state.schedule_blow(now + 1, node, Blow::Start);
            }
        }
    }

    fn is_settled(&self) -> bool {
        let processes = self.processes.lock().clone();
        let joined = (0..NODES).filter(|node| processes[*node].is_some()).collect::<Vec<_>>();
        let are_delivered = joined.iter().all(|node| self.journals[*node].undelivered().is_empty());
        let ready = processes.iter().flatten().filter(|process| process.may_run()).count();
        let state = self.world.lock();
        let live = state.nodes.iter().filter(|node| node.is_alive).count();
        let are_recorded = joined.iter().all(|node| state.keys(&format!("ended.n{node}.>")).is_empty());
        ready == live
            && are_delivered
            && are_recorded
            && state.keys("open.>").is_empty()
            && self
                .calls
                .iter()
                .all(|call| state.wait(call.intent).is_none_or(|(_, decision)| decision.is_none()))
            && self.tasks.is_idle()
    }

    /// Waits until nothing is left to do.
    fn settle(&mut self) {
        let end = self.world.lock().now + SETTLING;
        loop {
            let now = self.world.lock().now;
            self.run_until(now + 2 * SECOND);
            if self.world.lock().violation.is_some() || self.is_settled() {
                return;
            }
            if now > end {
                let mut state = self.world.lock();
                let marks = state.keys("open.>").join(", ");
                return state.violate(format!("marks, calls or nodes without a lease are left: {marks}"));
            }
        }
    }

    /// Sends each call to one node until it is answered.
    fn call_again(&mut self) {
        for number in 0..self.calls.len() {
            let intent = self.calls[number].intent;
            let answered = {
                let state = self.world.lock();
                state.history.is_answered(intent)
                    && !state.claim(intent).is_some_and(|claim| claim.state.is_open())
            };
            if answered {
                continue;
            }
            let mut tries = 0;
            loop {
                let processes = self.processes.lock().iter().flatten().count();
                if tries > 40 || processes == 0 {
                    let text = format!("no node answers a call of {intent}");
                    return self.world.lock().violate(text);
                }
                tries += 1;
                let nth = {
                    let mut state = self.world.lock();
                    usize::try_from(state.random.below(processes as u64)).unwrap()
                };
                let node = {
                    let processes = self.processes.lock();
                    let mut live = processes.iter().enumerate().filter(|(_, process)| process.is_some());
                    live.nth(nth).unwrap().0
                };
                self.strike(node, Blow::Call(number));
                if self.calls[number].waits && tries > 1 {
                    self.strike(node, Blow::Approve(number));
                }
                let now = self.world.lock().now;
                self.run_until(now + SECOND);
                let state = self.world.lock();
                if state.violation.is_some() {
                    return;
                }
                let is_denied = state.claim(intent).is_some_and(|claim| claim.state.is_denied());
                if is_denied || state.history.is_answered(intent) || state.history.is_replayed(intent) {
                    break;
                }
            }
        }
    }

    fn check_end(&self) {
        let mut state = self.world.lock();
        let (_, again) = state.history.reports();
        if self.is_calm && again > 0 {
            state.violate("a report is delivered again, although nothing went wrong".to_owned());
        }
        for Call { intent, .. } in &self.calls {
            if let Some(problem) = state.history.check(*intent) {
                state.violate(format!("{intent}: {problem}"));
            }
            let latest = state.wait(*intent).map_or(0, |(number, _)| number);
            let approved = state.history.approved(*intent);
            if approved.is_some_and(|number| number >= latest) && state.claim(*intent).is_none() {
                state.violate(format!("the approval of {intent} is lost"));
            }
            let Some(claim) = state.claim(*intent) else { continue };
            if claim.state.is_open() {
                state.violate(format!("the claim of {intent} is open at the end"));
            }
            // A node that never started again has its journal on a disk that nobody reads.
            let has_started = (0..NODES).any(|node| {
                claim.node.as_str() == format!("n{node}") && self.processes.lock()[node].is_some()
            });
            let is_recorded = self.journals.iter().any(|journal| journal.has_end(*intent));
            if has_started && state.history.end(*intent).is_some() && !is_recorded {
                state.violate(format!("the end of {intent} is in no journal"));
            }
        }
    }

    fn run(&mut self) {
        let length = self.plan();
        self.run_until(length);
        self.heal();
        self.settle();
        if self.world.lock().violation.is_none() {
            self.call_again();
            self.settle();
        }
        if self.world.lock().violation.is_none() {
            self.check_end();
        }
    }
}

fn key() -> FleetKey {
    FleetKey::parse("0f".repeat(32).as_bytes()).unwrap()
}

/// Runs a seed. Returns the violation and the trace if there is one.
fn run(seed: u64, is_traced: bool, key: FleetKey) -> Result<Figures, (String, Vec<String>)> {
    let mut simulation = Simulation::new(seed, is_traced, key);
    simulation.run();
    let mut state = simulation.world.lock();
    if let Some(violation) = state.violation.take() {
        return Err((violation, state.trace.take().unwrap_or_default()));
    }
    let (reports, again) = state.history.reports();
    if is_traced {
        println!("{}", state.trace.take().unwrap_or_default().join("\n"));
    }
    Ok(Figures { begun: state.history.begun(), reports, again, requests: state.requests, failed: 0 })
}

#[allow(clippy::disallowed_methods, reason = "the length of a test is no setting of the executor")]
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn a_report_whose_claim_is_lost_stays_undelivered_until_the_governor_has_it() {
    for seed in 0..50 {
        let mut simulation = Simulation::new(seed, false, key());
        let intent = IntentId::from_bytes([0; 16]);
        simulation.calls.push(Call { intent, proof: None, run: Duration::from_secs(5), waits: false });
        {
            let mut state = simulation.world.lock();
            state.faults.governor = 1000;
            state.schedule_blow(0, 0, Blow::Start);
            state.schedule_blow(SECOND, 0, Blow::Call(0));
        }
        simulation.run_until(3 * SECOND);
        simulation.world.lock().lose_claims();
        // The run has ended, and the governor has refused several attempts.
        simulation.run_until(30 * SECOND);
        assert_eq!(simulation.journals[0].undelivered(), [intent], "seed {seed}");
        assert_eq!(simulation.world.lock().keys("open.>").len(), 1, "another node would not deliver it");
        simulation.world.lock().faults.governor = 0;
        simulation.run_until(100 * SECOND);
        assert!(simulation.world.lock().history.is_reported(intent) && simulation.is_settled());
        assert_eq!(simulation.world.lock().violation, None);
    }
}

#[test]
fn five_nodes_keep_their_promises() {
    if let Some(seed) = number("A2G_FLEET_SEED") {
        let result = run(seed, true, key());
        return match result {
            Ok(figures) => println!("seed {seed}: {figures:?}"),
            Err((violation, trace)) => panic!("{}\nseed {seed}: {violation}", trace.join("\n")),
        };
    }
    let first = number("A2G_FLEET_FIRST").unwrap_or(0);
    let end = first + number("A2G_FLEET_SEEDS").unwrap_or(SEEDS);
    let started = SystemClock.monotonic();
    let sum = std::thread::scope(|scope| {
        let parts = [0_u64, 1].map(|part| scope.spawn(move || run_seeds((first + part..end).step_by(2))));
        parts.into_iter().fold(Figures::default(), |sum, part| sum.and(&part.join().unwrap()))
    });
    let elapsed = SystemClock.monotonic().saturating_duration_since(started);
    println!("{} seeds in {elapsed:.1?}: {sum:?}", end - first);
}

/// Runs seeds one after another, and adds up their figures.
fn run_seeds(seeds: impl Iterator<Item = u64>) -> Figures {
    let mut sum = Figures::default();
    for seed in seeds {
        match run(seed, false, key()) {
            Ok(figures) => sum = sum.and(&figures),
            Err((violation, _)) if number("A2G_FLEET_ALL").is_some() => {
                println!("seed {seed}: {violation}");
                sum.failed += 1;
            }
            Err(_) => {
                let Err((violation, trace)) = run(seed, true, key()) else {
                    panic!("seed {seed} does not fail twice");
                };
                panic!("{}\nseed {seed}: {violation}", trace.join("\n"));
            }
        }
    }
    sum
}
