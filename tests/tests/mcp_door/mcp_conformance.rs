//! The conformance suite of MCP's authors, against the built server in both revisions, where `cargo xtask setup` could
//! install it.
//!
//! ```text
//! tests/conformance/REVISION.txt ─┬─ required ───┬─ passes ─────── every check passes, but for those named here
//!   (the frozen list)             │              └─ not offered ── some check fails: else it belongs above
//!                                 └─ not_scored ────────────────── its checks are printed
//! ```
//! The server has no switches for the suite. Its tools are guests (`tests/guests/conformance`), and its governor leaves
//! some calls to a person, because that is the only question that this server asks a client.

use harness::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Scenarios at once. Each is a process that needs most of its time for its start.
const AT_ONCE: usize = 4;
/// The scenario that runs first and alone: it gives a call half a second, which other processes that start could take up.
/// It also leaves receipts, without which there would be no resources for others to list.
const FIRST: &str = "server-stateless";

/// The tools whose calls are left to a person.
const ESCALATED: [&str; 3] = [
    "test_input_required_result_elicitation",
    "test_input_required_result_request_state",
    "test_input_required_result_tampered_state",
];
/// The one of them that an approver approves.
const APPROVED: &str = "test_input_required_result_request_state";

const PROMPTS: &str = "prompts are not offered";
const SAMPLING: &str = "the server asks no client for samples of a model";
const ROOTS: &str = "the server asks no client for roots";
const QUESTIONS: &str = "a tool has no questions to a person: only a governor does";
const RESOURCES: &str = "resources are the receipts and artifacts of runs, under URIs of the server's own";
const SUBSCRIPTIONS: &str = "a receipt does not change, so there is nothing to subscribe to";

/// A revision, and what is expected of each scenario of its frozen list.
struct Revision {
    version: &'static str,
    /// On each line `required` or `not_scored`, and a scenario.
    frozen: &'static str,
    /// Scenarios of which every check passes.
    passes: &'static [&'static str],
    /// Scenarios of which every check passes but these, each with the reason.
    passes_but_for: &'static [(&'static str, &'static [(&'static str, &'static str)])],
    /// Reasons, each with the scenarios that cannot pass for it.
    not_offered: &'static [(&'static str, &'static [&'static str])],
}

const REVISIONS: [Revision; 2] = [
    Revision {
        version: "2026-07-28",
        frozen: include_str!("../../conformance/2026-07-28.txt"),
        passes: &[
            "tools-list",
            "tools-call-simple-text",
            "tools-call-image",
            "tools-call-audio",
            "tools-call-embedded-resource",
            "tools-call-mixed-content",
            "tools-call-error",
            "tools-call-with-progress",
            "server-sse-multiple-streams",
            "resources-list",
            "sep-2164-resource-not-found",
            "dns-rebinding-protection",
            "input-required-result-request-state",
            "input-required-result-missing-input-response",
            "input-required-result-result-type",
            "input-required-result-unsupported-methods",
            "input-required-result-tampered-state",
            "input-required-result-validate-input",
        ],
        passes_but_for: &[
            (
                FIRST,
                &[
                    ("sep-2575-server-rejects-undeclared-capability", "no tool needs a client's capability"),
                    ("sep-2575-missing-capability-http-400", "no tool needs a client's capability"),
                    (
                        "sep-2575-server-sends-tools-list-changed-on-subscription",
                        "no tool changes the catalogue",
                    ),
                ],
            ),
            ("caching", &[("sep-2549-prompts-list-caching-hints", PROMPTS)]),
            (
                "input-required-result-ignore-extra-params",
                &[("sep-2322-ignore-unexpected-params", "the answer is to no question of this server")],
            ),
        ],
        not_offered: &[
            (
                PROMPTS,
                &[
                    "completion-complete",
                    "prompts-list",
                    "prompts-get-simple",
                    "prompts-get-with-args",
                    "prompts-get-embedded-resource",
                    "prompts-get-with-image",
                    "input-required-result-non-tool-request",
                ],
            ),
            (RESOURCES, &["resources-read-text", "resources-read-binary", "resources-templates-read"]),
            (QUESTIONS, &["input-required-result-basic-elicitation", "input-required-result-multi-round"]),
            (
                SAMPLING,
                &[
                    "input-required-result-basic-sampling",
                    "input-required-result-capability-check",
                    "input-required-result-multiple-input-requests",
                ],
            ),
            (ROOTS, &["input-required-result-basic-list-roots"]),
        ],
    },
    Revision {
        version: "2025-11-25",
        frozen: include_str!("../../conformance/2025-11-25.txt"),
        passes: &[
            "server-initialize",
            "logging-set-level",
            "ping",
            "tools-list",
            "tools-call-simple-text",
            "tools-call-image",
            "tools-call-audio",
            "tools-call-embedded-resource",
            "tools-call-mixed-content",
            "tools-call-with-logging",
            "tools-call-error",
            "tools-call-with-progress",
            "server-sse-multiple-streams",
            "resources-list",
            "dns-rebinding-protection",
        ],
        passes_but_for: &[],
        not_offered: &[
            (
                PROMPTS,
                &[
                    "completion-complete",
                    "prompts-list",
                    "prompts-get-simple",
                    "prompts-get-with-args",
                    "prompts-get-embedded-resource",
                    "prompts-get-with-image",
                ],
            ),
            (RESOURCES, &["resources-read-text", "resources-read-binary", "resources-templates-read"]),
            (SUBSCRIPTIONS, &["resources-subscribe", "resources-unsubscribe"]),
            (
                QUESTIONS,
                &["tools-call-elicitation", "elicitation-sep1034-defaults", "elicitation-sep1330-enums"],
            ),
            (SAMPLING, &["tools-call-sampling"]),
        ],
    },
];

/// What a scenario has to do.
enum Expected {
    /// All of its checks pass, but these.
    PassesBut(BTreeSet<&'static str>),
    /// Some check fails, for this reason.
    NotOffered(&'static str),
    /// Nothing.
    NotScored,
}

/// A scenario of a revision.
struct Scenario {
    version: &'static str,
    name: &'static str,
    expected: Expected,
}

impl Revision {
    /// The scenarios of one part of the frozen list.
    fn listed(&self, part: &str) -> Vec<&'static str> {
        let words = self.frozen.lines().filter_map(|line| line.split_once(' '));
        words.filter(|(of, _)| *of == part).map(|(_, name)| name).collect()
    }

    /// Every scenario. Those that are not scored come first: they take the longest, because they wait.
    fn scenarios(&self) -> Vec<Scenario> {
        let version = self.version;
        let but_for = |checks: &'static [(&str, &str)]| checks.iter().map(|(check, _)| *check).collect();
        let not_scored = self.listed("not_scored").into_iter().map(|name| (name, Expected::NotScored));
        let passes = self.passes.iter().map(|name| (*name, Expected::PassesBut(BTreeSet::new())));
        let partly = self.passes_but_for.iter();
        let partly = partly.map(|(name, checks)| (*name, Expected::PassesBut(but_for(checks))));
        let not_offered = self
            .not_offered
            .iter()
            .flat_map(|(reason, names)| names.iter().map(|name| (*name, Expected::NotOffered(reason))));
        let all = not_scored.chain(passes).chain(partly).chain(not_offered);
        all.map(|(name, expected)| Scenario { version, name, expected }).collect()
    }
}

#[test]
fn each_scenario_of_a_frozen_list_has_one_place() {
    for revision in &REVISIONS {
        let scenarios = revision.scenarios();
        let scored = scenarios.iter().filter(|scenario| !matches!(scenario.expected, Expected::NotScored));
        let mut named: Vec<_> = scored.map(|scenario| scenario.name).collect();
        let mut frozen = revision.listed("required");
        assert_eq!(frozen.len() + revision.listed("not_scored").len(), revision.frozen.lines().count());
        named.sort_unstable();
        frozen.sort_unstable();
        assert_eq!(named, frozen, "{}", revision.version);
    }
}

#[test]
fn the_conformance_suite_passes_as_far_as_it_applies() {
    let package = "@modelcontextprotocol/conformance";
    let folder = "node22/node_modules";
    let Some(node) = client_folder("node of npm", &format!("{folder}/node/bin/node")) else { return };
    let Some(script) = client_folder(package, &format!("{folder}/{package}/dist/index.js")) else { return };
    let catalogue = catalogue();
    let address = Arc::new(OnceLock::new());
    let governor = governor(&address);
    let executor = Executor::start(Options::new().catalogue(&catalogue).governor(&governor.url()));
    address.set(executor.address()).expect("it is set once");
    let results = tempfile::tempdir().expect("a temp folder");
    let suite = Suite { node, script, url: format!("http://{}/mcp", executor.address()), results };

    let scenarios = REVISIONS.iter().flat_map(Revision::scenarios);
    let (first, others): (Vec<_>, Vec<_>) = scenarios.partition(|scenario| scenario.name == FIRST);
    let mut outcomes = suite.run_all(&first, 1);
    outcomes.extend(suite.run_all(&others, AT_ONCE));
    let mut objections = Vec::new();
    for (Scenario { version, name, expected }, outcome) in outcomes {
        let met = outcome.count("SUCCESS");
        let unmet = outcome.unmet();
        let word = match expected {
            Expected::PassesBut(_) => "applies",
            Expected::NotOffered(reason) => reason,
            Expected::NotScored => "not scored",
        };
        println!("{version} {name} ({word}): {met} checks pass");
        unmet.iter().for_each(|(check, reason)| println!("    {check}: {reason}"));
        if let Some(objection) = outcome.objection(expected) {
            println!("{}", outcome.output);
            objections.push(format!("{version} {name}: {objection}"));
        }
    }
    assert!(objections.is_empty(), "{}", objections.join("\n"));
}

/// The tools that the scenarios call.
fn catalogue() -> Catalogue {
    let module = |name: &str| guest(&format!("examples/{name}"));
    let command = |name, from| Tool::command_bytes(name, module(from)).filesystem("none");
    let typed = [
        "greet",
        "slow_compute",
        "test_audio_content",
        "test_embedded_resource",
        "test_image_content",
        "test_multiple_content_types",
        "test_tool_with_progress",
    ];
    let typed = typed.map(|name| Tool::typed_bytes(name, module(name)).filesystem("none"));
    let commands = [
        command("failing_job", "fails"),
        command("json_schema_2020_12_tool", "says").schema(every_keyword()),
        command("test_error_handling", "fails"),
        // Of its own name: the suite takes any tool with such an argument.
        command("test_header_argument", "says").schema(json!({
            "type": "object",
            "properties": { "region": { "type": "string", "x-mcp-header": "Region" } },
        })),
        command("test_logging_tool", "says"),
        command("test_reconnection", "says"),
        command("test_simple_text", "says"),
        command("test_streaming_elicitation", "says"),
        command("test_tool_with_logging", "logs"),
    ];
    let escalated = ESCALATED.map(|name| command(name, "says"));
    typed.into_iter().chain(commands).chain(escalated).fold(Catalogue::empty(), Catalogue::add)
}

/// The schema of `json-schema-2020-12`, without `$anchor`: the executor refuses a schema with it, so a check of that
/// scenario, which is not scored, fails.
fn every_keyword() -> Value {
    let text = || json!({ "type": "string" });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": { "type": "object", "properties": { "street": text(), "city": text() } },
        },
        "properties": {
            "name": text(),
            "address": { "$ref": "#/$defs/address" },
            "contactMethod": { "type": "string", "enum": ["phone", "email"] },
            "phone": text(),
            "email": text(),
        },
        "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
        "if": { "properties": { "contactMethod": { "const": "phone" } }, "required": ["contactMethod"] },
        "then": { "required": ["phone"] },
        "else": { "required": ["email"] },
        "additionalProperties": false,
    })
}

/// A governor that approves all but [`ESCALATED`], and an approver, who approves [`APPROVED`] at this address.
fn governor(executor: &Arc<OnceLock<SocketAddr>>) -> FakeGovernor {
    let executor = Arc::clone(executor);
    FakeGovernor::deciding(move |intent| {
        let tool = intent["tool"].as_str().expect("a tool");
        let id = intent["intent_id"].as_str().expect("an id");
        let mut verdict = verdict(id, &manifest());
        if ESCALATED.contains(&tool) {
            verdict["verdict"] = json!("ESCALATE");
        }
        if tool == APPROVED {
            let executor = Arc::clone(&executor);
            let id = id.to_owned();
            std::thread::spawn(move || approve(*executor.get().expect("it listens"), &id));
        }
        Reply::Result(verdict)
    })
}

/// Approves a call once it waits, which it does only after the governor's answer.
fn approve(executor: SocketAddr, intent: &str) {
    let directive = json!({ "intent_id": intent, "decision": "APPROVED" });
    let mut client = HttpClient::connect(executor);
    eventually("the call waits for a person", || {
        client.rpc("g2a/directive", &directive).get("result").map(drop)
    });
}

/// The installed suite, and the server that it tests.
struct Suite {
    node: PathBuf,
    script: PathBuf,
    url: String,
    results: tempfile::TempDir,
}

/// What came of a scenario.
struct Outcome {
    output: String,
    /// Its checks; none if the suite did not run it to its end.
    checks: Vec<Value>,
}

impl Suite {
    /// Runs scenarios, so many at once, and gives them with their outcomes in their order.
    fn run_all<'a>(&self, scenarios: &'a [Scenario], at_once: usize) -> Vec<(&'a Scenario, Outcome)> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(scenario) = scenarios.get(index) else { return done };
                done.push((index, self.run(scenario)));
            }
        };
        let outcomes: BTreeMap<_, _> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect()
        });
        scenarios.iter().zip(outcomes.into_values()).collect()
    }

    fn run(&self, scenario: &Scenario) -> Outcome {
        let Scenario { version, name, expected } = scenario;
        let folder = self.results.path().join(format!("{version}-{name}"));
        let mut command = Command::new(&self.node);
        command.arg(&self.script).args(["server", "--url", &self.url, "--scenario", name]);
        command.args(["--spec-version", version, "--output-dir"]).arg(&folder);
        // A third less CPU time for each start.
        command.env("NODE_COMPILE_CACHE", self.results.path().join("compile-cache"));
        // A scenario of an extension belongs to no revision, and would not run.
        command.args(matches!(expected, Expected::NotScored).then_some("--force"));
        let output = run_to_end(command, b"");
        // The exit code says too little: it is 0 for a scenario that did not run, too.
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut files = entries.filter_map(|entry| std::fs::read(entry.path().join("checks.json")).ok());
        let checks = files.next().map(|text| serde_json::from_slice(&text).expect("checks"));
        let output = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        Outcome { output, checks: checks.unwrap_or_default() }
    }
}

impl Outcome {
    fn count(&self, status: &str) -> usize {
        self.checks.iter().filter(|check| check["status"] == status).count()
    }

    /// The checks that fail, and those that warn because the specification only recommends it, with their reasons.
    fn unmet(&self) -> BTreeMap<&str, &str> {
        let mut unmet = BTreeMap::new();
        for check in &self.checks {
            if let Some("FAILURE" | "WARNING") = check["status"].as_str() {
                let reason = check["errorMessage"].as_str().unwrap_or_default();
                unmet.insert(check["id"].as_str().expect("an id"), reason);
            }
        }
        unmet
    }

    /// Why it is not what is expected, if it is not.
    fn objection(&self, expected: &Expected) -> Option<String> {
        let unmet: BTreeSet<_> = self.unmet().into_keys().collect();
        match expected {
            Expected::NotScored => None,
            Expected::PassesBut(_) | Expected::NotOffered(_) if self.checks.is_empty() => {
                Some("the suite has no result".to_owned())
            }
            Expected::NotOffered(_) => unmet.is_empty().then(|| "it passes, so it is offered".to_owned()),
            Expected::PassesBut(excepted) => {
                let worse = &unmet - excepted;
                let better = excepted - &unmet;
                if !worse.is_empty() {
                    Some(format!("{worse:?} do not pass"))
                } else if !better.is_empty() {
                    Some(format!("{better:?} pass, so they are no exceptions"))
                } else {
                    // A check may also be skipped.
                    let is_vacuous = excepted.is_empty() && self.count("SUCCESS") == 0;
                    is_vacuous.then(|| "none of its checks passes".to_owned())
                }
            }
        }
    }
}
