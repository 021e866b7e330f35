//! (l): what policies in Cedar cost: a decision with more and more rules, the facts that rules read after more and more
//! calls, and the calls of a journal decided again.
//!
//! Everything is in this process, and the sizes that are compared have their turns one after another.

use super::{median, micros};
use a2g_policy::{
    AdmittedCall, Answer, CallFacts, CedarSet, Done, EndedCall, History, Ledger, Past, PolicyFile,
    PolicySources, Possible, Subject,
};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::limit::ClaimedLimits;
use a2g_types::tool::{Contract, DeclaredCapabilities, DeclaredFilesystem, Descriptor, Digest};
use a2g_types::verdict::{Decision, Manifest, Rationale, Verdict};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use time::macros::datetime;

const AGENT: &str = "did:a2g:bench:1.0:x";
const TOOL: &str = "read_file";
const PATH: &str = "/workspace/notes.txt";
const WORKSPACE: &str = "/workspace";
const START: OffsetDateTime = datetime!(2026-12-01 12:00 UTC);

const ROUNDS: usize = 1000;
const WARM: usize = 50;
/// The numbers of rules. The first is what the others are compared with.
const RULES: [usize; 3] = [10, 100, 1000];
/// The numbers of calls of one agent within a day.
const CALLS: [usize; 3] = [1000, 100_000, 1_000_000];
/// The receipts of a replay.
const RECEIPTS: usize = 100_000;
/// The goals, in microseconds and seconds.
const DECISION_MICROS: f64 = 100.0;
const FACTS_MICROS: f64 = 50.0;
const REPLAY_SECONDS: f64 = 15.0;

/// What every set begins with, so that the call is allowed.
const BASE: &str = r#"
permit (principal, action in Action::"call", resource);
permit (principal, action == Action::"read", resource in Folder::"/workspace");
"#;

pub(crate) fn measure() {
    println!("{:<56} {:>6} {:>12} {:>12}", "(l) policies in Cedar", "ratio", "this", "goal");
    let call = Call::new();
    measure_decisions(&call, "rules of other agents", |number| {
        format!(
            "forbid (principal == Agent::\"did:a2g:other:1.0:a{number}\", action, resource) \
             when {{ context.history.calls.hour > {number} }};\n"
        )
    });
    measure_decisions(&call, "rules that apply to the call", |number| {
        format!(
            "forbid (principal, action == Action::\"{TOOL}\", resource) \
             when {{ context.input.path like \"/closed/{number}/*\" && context.history.same.hour > {number} }};\n"
        )
    });
    measure_facts(&call);
    measure_replay(&call);
}

/// A call that is decided on.
struct Call {
    agent: AgentDid,
    tool: ToolName,
    arguments: Map<String, Value>,
}

impl Call {
    fn new() -> Self {
        Self {
            agent: AgentDid::parse(AGENT).unwrap(),
            tool: ToolName::parse(TOOL).unwrap(),
            arguments: json!({ "path": PATH }).as_object().unwrap().clone(),
        }
    }

    fn facts(&self, now: OffsetDateTime) -> CallFacts<'_> {
        CallFacts {
            agent: &self.agent,
            tool: &self.tool,
            arguments: &self.arguments,
            paths: vec![PATH.to_owned()],
            depth: 0,
            door: None,
            is_in_session: false,
            parent: None,
            risk_score: 5,
            threats: BTreeSet::new(),
            now,
            text: None,
            longest_text: 20,
        }
    }

    /// Counts a call that has ended.
    fn count(&self, ledger: &mut Ledger, number: usize, possible: &Possible, now: OffsetDateTime) {
        let Self { agent, tool, .. } = self;
        let intent = intent(number);
        let admission = ledger.admit(now, AdmittedCall { agent, intent, tool, possible: possible.clone() });
        ledger.begin(&admission);
        let granted = [format!("{WORKSPACE}/**")];
        let done = Done::new(&granted, &[], [], [], 0);
        ledger.end(now, EndedCall { agent, intent, tool: Some(tool), is_success: true, done: Some(done) });
    }
}

fn intent(number: usize) -> IntentId {
    IntentId::parse(&format!("00000000-0000-4000-8000-{number:012x}")).unwrap()
}

/// What the verdict on the call lets it do.
fn possible() -> Possible {
    let manifest = Manifest {
        limits: ClaimedLimits::default(),
        network_allowed: Some(false),
        filesystem_scope: vec![format!("{WORKSPACE}/**")],
    };
    let verdict = Verdict {
        decision: Decision::Approved,
        intent: intent(0),
        risk: None,
        manifest,
        conditions: Vec::new(),
        expires_at: None,
        reason: None,
        rationale: Rationale::default(),
    };
    Possible::of_verdict(&verdict, 0)
}

fn compile(rules: &str) -> CedarSet {
    let tool = Descriptor {
        name: ToolName::parse(TOOL).unwrap(),
        title: None,
        version: "1.0.0".to_owned(),
        description: "Reads a file.".to_owned(),
        contract: Contract::Typed,
        digest: Digest([0; 32]),
        arguments_schema: json!({
            "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"],
        }),
        settings: None,
        result_schema: None,
        is_idempotent: false,
        has_sessions: false,
        capabilities: DeclaredCapabilities {
            filesystem: DeclaredFilesystem::Read,
            ..DeclaredCapabilities::default()
        },
        signature: None,
    };
    let files = vec![PolicyFile { name: "bench.cedar".to_owned(), text: format!("{BASE}{rules}") }];
    CedarSet::compile(&PolicySources { files, entities: None, schema: None }, [&tool]).unwrap()
}

fn decide(set: &CedarSet, call: &Call, past: &dyn Past, now: OffsetDateTime) -> Duration {
    let facts = call.facts(now);
    let started = Instant::now();
    let answer = black_box(set.decide(&facts, past));
    let took = started.elapsed();
    assert!(matches!(answer, Answer::Allowed(_)), "the call is denied");
    took
}

/// The medians of what each size took in its turns.
fn in_turn<const SIZES: usize>(mut take: impl FnMut(usize) -> Duration) -> [Duration; SIZES] {
    let mut times: [Vec<Duration>; SIZES] = std::array::from_fn(|_| Vec::new());
    for round in 0..WARM + ROUNDS {
        for (size, times) in times.iter_mut().enumerate() {
            let took = take(size);
            if round >= WARM {
                times.push(took);
            }
        }
    }
    times.map(|mut times| median(&mut times))
}

fn print(what: &str, first: Duration, this: Duration, goal: f64) {
    let ratio = this.as_secs_f64() / first.as_secs_f64();
    let missed = if micros(this) > goal { ", missed" } else { "" };
    println!("{what:<56} {ratio:>6.2} {:>9.1} µs {:>12}", micros(this), format!("{goal} µs{missed}"));
}

/// A decision with each number of rules.
fn measure_decisions(call: &Call, what: &str, rule: impl Fn(usize) -> String) {
    let sets = RULES.map(|count| compile(&(0..count).map(&rule).collect::<String>()));
    let medians: [_; RULES.len()] = in_turn(|size| decide(&sets[size], call, &History::default(), START));
    for (count, median) in RULES.into_iter().zip(medians) {
        print(&format!("a decision, {count} {what}"), medians[0], median, DECISION_MICROS);
    }
}

/// The facts of an agent after each number of calls.
fn measure_facts(call: &Call) {
    let possible = possible();
    let ledgers = CALLS.map(|count| {
        let mut ledger = Ledger::default();
        for number in 0..count {
            call.count(&mut ledger, number, &possible, START + within_a_day(number, count));
        }
        ledger
    });
    let now = START + Duration::from_secs(24 * 60 * 60);
    let set = compile("");
    let medians: [_; CALLS.len()] = in_turn(|size| {
        let past = ledgers[size].view(&set, &call.agent);
        let started = Instant::now();
        let history = black_box(past.history(&call.agent, Subject::Tool(&call.tool), now));
        let took = started.elapsed();
        assert!(history.calls.day > 0 && history.read.contains(WORKSPACE), "{history:?}");
        took
    });
    for (count, median) in CALLS.into_iter().zip(medians) {
        print(&format!("facts, {count} calls of the agent within a day"), medians[0], median, FACTS_MICROS);
    }
}

/// The time of a call among `count` that a day has.
fn within_a_day(number: usize, count: usize) -> Duration {
    let share = f64::from(u32::try_from(number).unwrap()) / f64::from(u32::try_from(count).unwrap());
    Duration::from_secs(24 * 60 * 60).mul_f64(share)
}

/// Calls that are decided on and counted one after another, as `policy replay` does with those of a journal.
fn measure_replay(call: &Call) {
    let set = compile(&format!(
        "forbid (principal, action == Action::\"{TOOL}\", resource) when {{ context.history.same.day > {RECEIPTS} }};\n"
    ));
    let possible = possible();
    let mut ledger = Ledger::default();
    let started = Instant::now();
    for number in 0..RECEIPTS {
        let now = START + within_a_day(number, RECEIPTS);
        decide(&set, call, &ledger.view(&set, &call.agent), now);
        call.count(&mut ledger, number, &possible, now);
    }
    let seconds = started.elapsed().as_secs_f64();
    let missed = if seconds > REPLAY_SECONDS { ", missed" } else { "" };
    let what = format!("a replay of {RECEIPTS} calls, without reading the journal");
    println!("{what:<56} {:>6} {seconds:>10.1} s {:>12}", "", format!("{REPLAY_SECONDS} s{missed}"));
}
