//! The ledger: windows at their edges, calls in progress, receipts, and its bounds.

use super::agent::MAX_OPEN;
use super::series::{Keyed, MAX_KEYS, Series};
use super::*;
use crate::facts::Window;
use a2g_types::call::{Door, ParentRun};
use a2g_types::durability::Durability;
use a2g_types::ident::SecretName;
use a2g_types::json::JsonText;
use a2g_types::limit::{
    Access, Bound, BudgetUsage, Budgets, ClaimedLimits, FileEffects, Layer, Limit, NetworkBudgets,
};
use a2g_types::outcome::{
    AbortReason, Contact, End, FileChanges, GrantedArea, HostRule, NetworkUsage, Outcome, RunMetrics,
    RunOutput, SecretUse, ShownRequest, Usage,
};
use a2g_types::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use a2g_types::tool::Digest;
use a2g_types::verdict::{Decision, Manifest, Rationale, Verdict};
use std::time::Duration as StdDuration;
use time::Duration;
use time::macros::datetime;

const NOON: OffsetDateTime = datetime!(2026-12-01 12:00 UTC);

fn agent(name: &str) -> AgentDid {
    AgentDid::parse(&format!("did:a:{name}")).unwrap()
}

fn tool(name: &str) -> ToolName {
    ToolName::parse(name).unwrap()
}

fn window(minute: u64, hour: u64, day: u64) -> Window {
    Window { minute, hour, day }
}

fn bound<T>(value: T) -> Bound<T> {
    Bound { value, layer: Layer::Executor }
}

fn verdict(scope: &[&str], network: bool, conditions: &[&str]) -> Verdict {
    Verdict {
        decision: Decision::Approved,
        intent: IntentId::random(),
        risk: None,
        manifest: Manifest {
            limits: ClaimedLimits::default().with_amount(Limit::Written, Some(500)),
            network_allowed: Some(network),
            filesystem_scope: scope.iter().map(|pattern| (*pattern).to_owned()).collect(),
        },
        conditions: conditions.iter().map(|condition| (*condition).to_owned()).collect(),
        expires_at: Some(NOON + Duration::minutes(5)),
        reason: None,
        rationale: Rationale::default(),
    }
}

/// The receipt of a run in `/workspace/secrets` that has sent 3 requests and written 7 bytes.
fn receipt(agent: &AgentDid, intent: IntentId, name: &str, end: End) -> Receipt {
    let network = NetworkUsage {
        budgets: NetworkBudgets { requests: 20, ..NetworkBudgets::ZERO },
        allowed: vec![HostRule { pattern: "*.example.com".to_owned(), set_by: Layer::Executor }],
        blocked: Vec::new(),
        allowed_requests: Vec::new(),
        requests_per_minute: None,
        requests: 3,
        connections: 1,
        sent_bytes: 1,
        received_bytes: 1,
        contacted: vec![Contact {
            authority: "https://api.example.com:443".to_owned(),
            address: "192.0.2.1:443".parse().unwrap(),
            requests: 3,
            sent_bytes: 1,
            received_bytes: 1,
        }],
        contacted_truncated: false,
        secrets: vec![SecretUse {
            name: SecretName::parse("token").unwrap(),
            versions: Vec::new(),
            uses: 2,
            without: 0,
            kept_cookies: 0,
            redacted: 0,
            placeholders: 0,
        }],
        remote_server: None,
    };
    let usage = Usage {
        memory: bound(MemoryLimit::from_mb(1).unwrap()),
        cpu: bound(CpuPercent::new(100).unwrap()),
        timeout: bound(Timeout::from_seconds(1).unwrap()),
        output: bound(OutputLimit::from_bytes(1).unwrap()),
        filesystem: vec![GrantedArea {
            path: "/workspace".to_owned(),
            pattern: "/workspace/secrets/**".to_owned(),
            access: bound(Access::ReadOnly),
            set_by: Layer::Verdict,
        }],
        blocked: Vec::new(),
        missing_roots: Vec::new(),
        filesystem_emptied_by: None,
        effects: bound(FileEffects::Direct),
        changes: None,
        budgets: Budgets::default(),
        spent: Some([(Limit::Written, 7)].into_iter().collect::<BudgetUsage>()),
        network: bound(true),
        network_used: Some(network),
        denied: Vec::new(),
        denied_truncated: false,
        start_memory_bytes: None,
    };
    let metrics = RunMetrics { wall: StdDuration::from_secs(1), ..RunMetrics::default() };
    Receipt {
        agent: agent.clone(),
        intent,
        tool: tool(name),
        door: Door::A2g,
        approved_by: None,
        durability: Durability::PowerLoss,
        parent: None,
        calls: None,
        signature: None,
        session: None,
        rationale: Rationale::default(),
        outcome: Outcome { end, output: RunOutput::default(), metrics, usage },
    }
}

fn returned() -> End {
    End::Returned(JsonText::null())
}

/// A ledger with what is asked of it.
struct Asked {
    ledger: Ledger,
    agent: AgentDid,
    literals: Arc<Literals>,
}

impl Asked {
    fn new() -> Self {
        let folders = ["/workspace", "/workspace/secrets", "/tmp"].map(str::to_owned);
        let hosts = ["example.com", "api.example.com", "example.org"].map(str::to_owned);
        let literals = Literals { names: LiteralNames::new(folders, hosts), ..Literals::default() };
        Self { ledger: Ledger::default(), agent: agent("one"), literals: Arc::new(literals) }
    }

    fn history(&self, subject: Subject<'_>, at: OffsetDateTime) -> History {
        self.ledger.view_by(Arc::clone(&self.literals)).history(&self.agent, subject, at)
    }

    fn same(&self, subject: Subject<'_>, at: OffsetDateTime) -> Window {
        self.history(subject, at).same
    }

    fn admit(&mut self, at: OffsetDateTime, name: &str, verdict: &Verdict) -> (IntentId, Admission) {
        let intent = IntentId::random();
        let possible = Possible::of_verdict(verdict, 20);
        let call = AdmittedCall { agent: &self.agent, intent, tool: &tool(name), possible };
        (intent, self.ledger.admit(at, call))
    }
}

fn names(literals: &std::collections::BTreeSet<String>) -> Vec<&str> {
    literals.iter().map(String::as_str).collect()
}

#[test]
fn a_window_has_every_event_of_its_time_and_few_that_are_older() {
    // The age of the event in seconds, and the windows that have it.
    let cases = [
        (0, window(1, 1, 1)),
        (59, window(1, 1, 1)),
        (60, window(1, 1, 1)),
        (61, window(0, 1, 1)),
        (3_600, window(0, 1, 1)),
        (3_601, window(0, 0, 1)),
        (86_400, window(0, 0, 1)),
        (86_401, window(0, 0, 0)),
    ];
    for (age, expected) in cases {
        let mut series = Series::default();
        series.add(1_000_000, 1);
        assert_eq!(series.window(1_000_000 + age), expected, "{age} s ago");
    }
}

#[test]
fn old_events_are_joined_and_leave_a_window_late_rather_than_early() {
    const START: i64 = 10_000_000;
    const SECONDS: i64 = 100_000;
    let mut series = Series::default();
    for second in 0..SECONDS {
        series.add(START + second, 1);
    }
    let now = START + SECONDS - 1;
    let found = series.window(now);
    let at_least = |count: u64, exact: u64, late: u64| {
        assert!((exact..=exact + late).contains(&count), "{count} is not {exact} to {}", exact + late);
    };
    at_least(found.minute, 60, 1);
    at_least(found.hour, 3_600, 60);
    at_least(found.day, 86_400, 900);
    assert!(series.len() <= 400, "{}", series.len());
    // The clock is set back: nothing is taken out of a window.
    series.add(START, 5);
    assert_eq!(series.window(now).minute, found.minute + 5);
    assert!(series.window(START).minute >= found.day + 5);
}

#[test]
fn names_that_an_agent_makes_up_count_for_every_subject() {
    let mut keyed = Keyed::<Option<u32>>::default();
    for name in 0..1_000 {
        keyed.add(Some(name), None, 0, 1);
    }
    assert_eq!(keyed.len(), MAX_KEYS + 1);
    let others = 1_000 - u64::try_from(MAX_KEYS).unwrap();
    assert_eq!(keyed.window(0, |name| name.is_none_or(|name| name == 3)).day, others + 1);
}

#[test]
fn a_call_in_progress_counts_as_having_done_all_that_it_may() {
    let mut asked = Asked::new();
    let conditions = [
        "blocked_path:/workspace/secrets/**",
        "host:*.example.com",
        "blocked_host:api.example.com",
        "blocked_host:*.api.example.com",
        "secrets:token",
    ];
    let granted = verdict(&["/workspace/**"], true, &conditions);
    let (_, admission) = asked.admit(NOON, "fetch", &granted);
    let history = asked.history(Subject::Tool(&tool("fetch")), NOON);
    assert_eq!((history.calls, history.same), (window(1, 1, 1), window(1, 1, 1)));
    assert_eq!(history.written_bytes, window(500, 500, 500));
    assert_eq!((names(&history.read), names(&history.reached)), (vec!["/workspace"], vec!["example.com"]));
    assert!(history.succeeded.is_empty());
    let later = NOON + Duration::hours(3);
    for (subject, expected) in [
        (Subject::Tool(&tool("other")), 0),
        (Subject::Folder("/workspace"), 1),
        (Subject::Folder("/workspace/secrets"), 0),
        (Subject::Host("example.com"), 20),
        (Subject::Host("api.example.com"), 0),
        (Subject::Secret("token"), 20),
        (Subject::Secret("other"), 0),
    ] {
        // It may be doing it right now.
        assert_eq!(asked.same(subject, later), window(expected, expected, expected), "{subject:?}");
    }
    asked.ledger.forget(&admission);
    assert_eq!(asked.history(Subject::Host("example.com"), NOON), History::default());
    // Without names of hosts and secrets, a verdict allows all of them; without a network, none.
    let cases: [(bool, &[&str], u64); 4] =
        [(true, &[], 20), (true, &["no_secrets"], 0), (false, &[], 0), (true, &["no_network"], 0)];
    for (network, conditions, requests) in cases {
        let mut asked = Asked::new();
        asked.admit(NOON, "fetch", &verdict(&[], network, conditions));
        assert_eq!(asked.same(Subject::Secret("token"), NOON).day, requests, "{network} {conditions:?}");
    }
    let mut asked = Asked::new();
    let admission = asked.admit(NOON, "fetch", &verdict(&["/tmp/**"], false, &[])).1;
    asked.ledger.amend(&admission, Possible::of_verdict(&verdict(&["/workspace/**"], true, &[]), 20));
    let history = asked.history(Subject::Host("example.org"), NOON);
    assert_eq!(names(&history.read), ["/workspace", "/workspace/secrets"]);
    assert_eq!(history.same.day, 20);
}

#[test]
fn an_end_replaces_what_a_call_may_do_by_what_it_has_done() {
    let mut asked = Asked::new();
    let granted = verdict(&["/workspace/**"], true, &[]);
    let (intent, admission) = asked.admit(NOON, "fetch", &granted);
    asked.ledger.begin(&admission);
    let ended = NOON + Duration::minutes(10);
    let receipt = receipt(&asked.agent, intent, "fetch", returned());
    asked.ledger.end_of(ended, &receipt);
    // It comes again, and the right to run the call is dropped.
    asked.ledger.end_of(ended, &receipt);
    asked.ledger.forget(&admission);
    let history = asked.history(Subject::Host("example.com"), ended);
    assert_eq!((history.calls, history.same), (window(1, 1, 1), window(3, 3, 3)));
    assert_eq!(history.written_bytes, window(7, 7, 7));
    assert_eq!(names(&history.read), ["/workspace", "/workspace/secrets"]);
    assert_eq!(names(&history.reached), ["api.example.com", "example.com"]);
    assert_eq!(history.succeeded, [tool("fetch")].into());
    assert_eq!(asked.same(Subject::Secret("token"), ended), window(2, 2, 2));
    assert_eq!(asked.same(Subject::Folder("/tmp"), ended), Window::default());
    // The window begins at the end.
    assert_eq!(asked.same(Subject::Tool(&tool("fetch")), ended + Duration::minutes(59)), window(0, 1, 1));
    let forgotten = ended + Duration::hours(25);
    assert_eq!(asked.history(Subject::Tool(&tool("fetch")), forgotten), History::default());
    // The same past from a journal, without the admission.
    let mut read = Asked::new();
    read.ledger.end_of(ended, &receipt);
    for subject in
        [Subject::Tool(&tool("fetch")), Subject::Host("example.com"), Subject::Folder("/workspace")]
    {
        assert_eq!(read.history(subject, ended), asked.history(subject, ended), "{subject:?}");
    }
}

#[test]
fn a_run_that_nobody_has_measured_has_done_all_that_it_could() {
    let mut asked = Asked::new();
    let lost = receipt(&asked.agent, IntentId::random(), "fetch", End::Aborted(AbortReason::Lost));
    let mut unmeasured = lost.clone();
    unmeasured.outcome.usage.spent = None;
    unmeasured.outcome.usage.network_used.as_mut().unwrap().contacted.clear();
    asked.ledger.end_of(NOON, &unmeasured);
    assert_eq!(asked.same(Subject::Host("example.com"), NOON).day, 20);
    assert_eq!(asked.same(Subject::Secret("token"), NOON).day, 20);
    let history = asked.history(Subject::Host("example.org"), NOON);
    assert_eq!((history.same.day, history.written_bytes.day), (0, 1 << 30));
    assert!(history.succeeded.is_empty());

    let mut asked = Asked::new();
    let mut cut = receipt(&asked.agent, IntentId::random(), "fetch", returned());
    let network = cut.outcome.usage.network_used.as_mut().unwrap();
    network.requests = 10;
    network.contacted_truncated = true;
    asked.ledger.end_of(NOON, &cut);
    assert_eq!(asked.same(Subject::Host("example.com"), NOON).day, 10);
    assert_eq!(asked.same(Subject::Host("api.example.com"), NOON).day, 10);

    let mut asked = Asked::new();
    let not_started = End::NotStarted("it was stopped".to_owned());
    asked.ledger.end_of(NOON, &receipt(&asked.agent, IntentId::random(), "fetch", not_started));
    let history = asked.history(Subject::Host("example.com"), NOON);
    assert_eq!((history.calls.day, history.same.day, names(&history.read)), (1, 0, vec![]));
}

#[test]
fn staged_changes_succeed_with_their_commit() {
    let mut asked = Asked::new();
    let mut staged = receipt(&asked.agent, IntentId::random(), "edit", End::Staged(JsonText::null()));
    let held = ShownRequest {
        method: "POST".to_owned(),
        url: "https://example.org/mail".to_owned(),
        fields: Vec::new(),
        body_bytes: 0,
        body_digest: Digest([0; 32]),
        body: None,
    };
    staged.outcome.usage.changes =
        Some(FileChanges { requests: vec![held], ..FileChanges::new(1, Digest([0; 32])) });
    asked.ledger.end_of(NOON, &staged);
    let history = asked.history(Subject::Host("example.org"), NOON);
    assert_eq!((history.same.day, history.succeeded.len()), (1, 0), "the request is as good as sent");
    for (act, has_succeeded) in [("effects.discard", false), ("effects.commit", true)] {
        let parent = ParentRun { intent: staged.intent, tool: tool("edit"), ordinal: 1, depth: 1 };
        let decision = receipt(&asked.agent, IntentId::random(), act, returned());
        asked.ledger.end_of(NOON, &Receipt { parent: Some(parent), ..decision });
        let history = asked.history(Subject::Tool(&tool("edit")), NOON);
        assert_eq!(history.succeeded.contains(&tool("edit")), has_succeeded, "{act}");
        assert_eq!(history.calls.day, 1, "{act} is no call");
    }
}

#[test]
fn a_report_that_names_nothing_counts_as_the_verdict_allowed_it() {
    let mut asked = Asked::new();
    let (intent, _) = asked.admit(NOON, "fetch", &verdict(&["/workspace/**"], true, &["host:example.org"]));
    let end = EndedCall { agent: &agent("one"), intent, tool: None, is_success: true, done: None };
    asked.ledger.end(NOON, end);
    let later = NOON + Duration::hours(2);
    let history = asked.history(Subject::Host("example.org"), later);
    assert_eq!((history.calls, history.same), (window(0, 0, 1), window(0, 0, 20)));
    assert_eq!(history.succeeded, [tool("fetch")].into());
    assert_eq!(asked.same(Subject::Secret("token"), NOON).day, 20);
    // Of a call that was not admitted here, nobody knows the tool: only what it has done counts.
    let mut asked = Asked::new();
    let done = Done::new(&["/tmp/**".to_owned()], &[], [("https://example.org:443", 2)], [], 5);
    let agent = agent("one");
    let end = EndedCall {
        agent: &agent,
        intent: IntentId::random(),
        tool: None,
        is_success: true,
        done: Some(done),
    };
    asked.ledger.end(NOON, end);
    let history = asked.history(Subject::Host("example.org"), NOON);
    assert_eq!((history.calls.day, history.same.day, names(&history.read)), (0, 2, vec!["/tmp"]));
}

#[test]
fn calls_in_progress_are_bounded_and_forgotten_after_a_day_unless_they_run() {
    let mut asked = Asked::new();
    let granted = verdict(&[], true, &["host:example.org"]);
    let calls = u64::try_from(MAX_OPEN).unwrap() + 10;
    for _ in 0..calls {
        asked.admit(NOON, "fetch", &granted);
    }
    assert_eq!(asked.ledger.agents.get(&asked.agent).unwrap().sizes(), (1, MAX_OPEN));
    assert_eq!(asked.same(Subject::Tool(&tool("fetch")), NOON).day, calls);
    assert_eq!(asked.same(Subject::Host("example.org"), NOON).day, 20 * calls);
    let (_, admission) = asked.admit(NOON, "sleep", &granted);
    asked.ledger.begin(&admission);
    let next_day = NOON + Duration::hours(25);
    asked.ledger.deny(next_day, &agent("one"));
    let history = asked.history(Subject::Tool(&tool("sleep")), next_day);
    assert_eq!((history.calls.day, history.same.minute, history.denials.day), (1, 1, 1));
}

#[test]
fn an_agent_without_a_place_is_told_so_and_idle_agents_make_room() {
    let mut asked = Asked::new();
    let granted = verdict(&[], false, &[]);
    let half = Ledger::MAX_AGENTS / 2;
    for number in 0..=half {
        asked.ledger.deny(NOON, &agent(&format!("denied-{number}")));
    }
    assert_eq!(asked.ledger.agents.len(), half, "denied calls get half of the places");
    for number in half..Ledger::MAX_AGENTS {
        asked.agent = agent(&format!("busy-{number}"));
        assert!(asked.ledger.has_room(NOON, &asked.agent));
        asked.admit(NOON, "fetch", &granted);
    }
    let new = agent("new");
    assert!(!asked.ledger.has_room(NOON, &new));
    assert!(asked.ledger.has_room(NOON, &asked.agent), "a known agent has its place");
    let next_day = NOON + Duration::hours(25);
    assert!(asked.ledger.has_room(next_day, &new));
    assert!(asked.ledger.agents.is_empty());
}

#[test]
fn the_past_of_one_agent_is_not_that_of_another() {
    let mut asked = Asked::new();
    asked.admit(NOON, "fetch", &verdict(&["/workspace/**"], true, &[]));
    asked.ledger.deny(NOON, &agent("one"));
    let view = asked.ledger.view_by(Arc::clone(&asked.literals));
    let fetch = tool("fetch");
    assert_eq!(view.history(&agent("one"), Subject::Tool(&fetch), NOON).denials, window(1, 1, 1));
    assert_eq!(view.history(&agent("two"), Subject::Tool(&fetch), NOON), History::default());
    // The view remembers facts, and of another time it computes them again.
    let later = NOON + Duration::hours(2);
    assert_eq!(view.history(&agent("one"), Subject::Tool(&fetch), later).denials, window(0, 0, 1));
}
