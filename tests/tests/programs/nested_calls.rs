//! Calls of other tools by a run: each is as if the agent had made it, but for its parent.
//!
//! The guest `fan_out` makes the calls of its arguments; `programs` and `tampering` make calls in each language. The
//! governor of the tests decides by the last part of the path that a call names, and about a parent by what its
//! `context` says.

mod ends;
mod generated;
mod kills;
mod limits;
mod programs;
mod scope;
mod shown;
mod stops;
mod tampering;

use harness::methods::write;
use harness::*;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of the file that is larger than the output of the call that reads it.
const LARGE: usize = 10_000;

/// An executor with `fan_out` and what it calls, and its governor.
struct Nest {
    executor: Executor,
    governor: FakeGovernor,
    _catalogue: Catalogue,
}

/// The guest, which may call these tools.
fn fan_out(calls: &[&str]) -> Tool {
    Tool::typed_bytes("fan_out", guest("fan_out")).calls(calls)
}

impl Nest {
    fn start(options: Options) -> Self {
        Self::start_with(options, fan_out(&["*"]))
    }

    fn start_with(options: Options, fan_out: Tool) -> Self {
        Self::start_in(options, Catalogue::empty().add(fan_out))
    }

    /// Starts with a catalogue to which the tools that are called are added.
    fn start_in(options: Options, catalogue: Catalogue) -> Self {
        let governor = FakeGovernor::deciding(|call| Reply::Result(decide(call)));
        let catalogue = catalogue.copy("read_file").copy("write_file").add(Tool::command("gate", GATE));
        let executor = Executor::start(options.catalogue(&catalogue).governor(&governor.url()));
        let file =
            |name: &str, content: &str| std::fs::write(executor.workspace().join(name), content).unwrap();
        file("in.txt", "text");
        file("conditional", "text");
        file("limited", &"x".repeat(LARGE));
        Self { executor, governor, _catalogue: catalogue }
    }

    fn ask(&self, call: &Value) -> Value {
        self.executor.rpc("a2g/intent", call)
    }

    /// Runs `fan_out`, which has to succeed: its outcomes, and its report.
    fn outcomes(&self, call: &Value) -> (Vec<Value>, Value) {
        let answer = self.ask(call);
        let report = &result(&answer)["report"];
        assert_eq!(report["status"], "SUCCESS", "{answer}");
        (report["result"]["outcomes"].as_array().expect("outcomes").clone(), report.clone())
    }

    fn status(&self, intent: &Value) -> Value {
        self.executor.rpc("a2g/status", &json!({ "intent_id": intent }))
    }

    /// The report of an intent that has ended.
    fn report(&self, intent: &Value) -> Value {
        eventually("it has a report", || self.status(intent)["result"].get("report").cloned())
    }

    /// Approves every intent that waits and is meant to be approved, until `meanwhile` is over.
    fn approving<T>(&self, meanwhile: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| self.approve_until(&over));
            let _over = SetOnDrop(&over);
            meanwhile()
        })
    }

    fn approve_until(&self, over: &AtomicBool) {
        let mut approved = HashSet::new();
        while !over.load(Ordering::SeqCst) {
            for call in self.asked() {
                let id = call["intent_id"].as_str().expect("an id").to_owned();
                if word(&call) == "escalated" && !approved.contains(&id) {
                    let directive = json!({ "intent_id": id, "decision": "APPROVED" });
                    if self.executor.rpc("g2a/directive", &directive).get("result").is_some() {
                        approved.insert(id);
                    }
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// The intents about which the governor was asked.
    fn asked(&self) -> Vec<Value> {
        let asked = self.governor.seen().into_iter().filter(|(method, _)| method == "a2g/intent");
        asked.map(|(_, call)| call).collect()
    }
}

/// The word by which the governor decides: the last part of the path.
fn word(call: &Value) -> String {
    call["arguments"]["path"].as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default().to_owned()
}

fn decide(call: &Value) -> Value {
    let mut verdict = verdict(call["intent_id"].as_str().expect("an id"), &manifest());
    let mut set = |key: &str, value: Value| verdict[key] = value;
    match word(call).as_str() {
        "denied" => {
            set("verdict", "DENIED".into());
            set("reason", "this path is denied".into());
        }
        "conditional" => {
            set("verdict", "CONDITIONAL".into());
            set("conditions", json!(["max_memory_mb:20", "read_only"]));
        }
        "limited" => {
            set("verdict", "CONDITIONAL".into());
            set("conditions", json!(["max_output_bytes:1000"]));
        }
        "escalated" => set("verdict", "ESCALATE".into()),
        "expired" => {
            set("verdict", "ESCALATE".into());
            set("expires_at", in_seconds(2).into());
        }
        "slow" => verdict["capability_manifest"]["timeout_seconds"] = json!(1),
        _any => {}
    }
    // An interpreter needs more than other tools, also as a call of a program.
    if call["tool"].as_str().is_some_and(|tool| tool.starts_with("run_")) {
        verdict["capability_manifest"]["max_memory_mb"] = json!(Language::SciencePython.memory_mb());
    }
    let context = &call["context"];
    for limit in ["timeout_seconds", "max_memory_mb"] {
        if let Some(value) = context.get(limit) {
            verdict["capability_manifest"][limit] = value.clone();
        }
    }
    if let Some(conditions) = context.get("conditions") {
        verdict["verdict"] = "CONDITIONAL".into();
        verdict["conditions"] = conditions.clone();
    }
    verdict
}

/// One call of `fan_out`.
fn one(tool: &str, arguments: Value) -> Value {
    json!({ "tool": tool, "arguments": arguments })
}

fn read(name: &str) -> Value {
    one("read_file", json!({ "path": format!("/workspace/{name}") }))
}

fn gate() -> Value {
    one("gate", json!({}))
}

/// An intent of `fan_out` that makes these calls, with more arguments.
fn fan(calls: Vec<Value>, more: &Value) -> Value {
    let mut arguments = more.clone();
    arguments["calls"] = calls.into();
    intent("fan_out", arguments)
}

/// The same intent, about whose run the governor is told this.
fn with_context(mut call: Value, context: Value) -> Value {
    call["context"] = context;
    call
}

/// The intent of a call of a run.
fn nested(parent: &Value, ordinal: u32) -> Value {
    let parent = parent.as_str().expect("an id").parse::<uuid::Uuid>().expect("a UUID");
    uuid::Uuid::new_v5(&parent, ordinal.to_string().as_bytes()).to_string().into()
}

/// The codes of outcomes, and an empty text for a success.
fn codes(outcomes: &[Value]) -> Vec<&str> {
    outcomes.iter().map(|outcome| outcome["error"]["code"].as_str().unwrap_or_default()).collect()
}

/// A call as a person sees it who does not know where it came from.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    verdict: Value,
    status: Value,
    code: String,
    /// Empty after a success.
    message: String,
    blocked_by: Value,
    /// The report without what every run has of its own.
    report: Value,
    /// Reason and message in the list of refused calls.
    refusal: Option<(Value, Value)>,
}

/// Removes from a report what differs between two runs of the same call.
fn without_own(mut report: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(members) => {
                for own in ["used", "slack", "peak_resident_mb", "metrics"] {
                    members.remove(own);
                }
                members.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let members = report.as_object_mut().expect("a report");
    for own in ["intent_id", "parent"] {
        members.remove(own);
    }
    strip(&mut report);
    report
}

fn refusal(refused: &[Value], intent: &Value) -> Option<(Value, Value)> {
    let entry = refused.iter().find(|entry| entry["intent_id"] == *intent)?;
    Some((entry["blocked_by"].clone(), entry["message"].clone()))
}

/// The code and the message of a run that has ended, as the contract of calls names them.
fn failure(report: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if report["status"] == "SUCCESS" {
        return (String::new(), String::new());
    }
    match report.get("tool_error") {
        Some(error) => (text(&error["code"]), text(&error["message"])),
        None => {
            let limited = report["status"] == "TIMEOUT" || text(&report["error"]).contains("limit of");
            (if limited { "limit_reached" } else { "failed" }.to_owned(), text(&report["error"]))
        }
    }
}

/// Makes a call as the agent.
fn directly(nest: &Nest, call: &Value) -> (Value, Seen) {
    let call = intent(call["tool"].as_str().expect("a tool"), call["arguments"].clone());
    let id = call["intent_id"].clone();
    let answer = nest.ask(&call);
    let error = &answer["error"];
    let mut seen = Seen {
        verdict: answer["result"]["verdict"].clone(),
        status: json!("REFUSED"),
        code: String::new(),
        message: error["message"].as_str().unwrap_or_default().to_owned(),
        blocked_by: error["data"]["blocked_by"].clone(),
        report: Value::Null,
        refusal: None,
    };
    if let Some(pointer) = error["data"]["pointer"].as_str() {
        seen.code =
            if pointer.starts_with("/arguments") { "invalid_arguments" } else { "unknown_tool" }.to_owned();
    } else if error.is_object() {
        (seen.code, seen.verdict) = ("denied".to_owned(), "DENIED".into());
    } else if word(&call) == "expired" {
        eventually("it has expired", || nest.status(&id).get("error").cloned());
        (seen.code, seen.blocked_by) = ("denied".to_owned(), "escalation_pending".into());
    } else {
        let report = nest.report(&id);
        seen.status = report["status"].clone();
        (seen.code, seen.message) = failure(&report);
        seen.report = without_own(report);
    }
    (id, seen)
}

/// Reads how a call of a run went: from its outcome, the parent's report and its own.
fn of_parent(nest: &Nest, parent: &Value, ordinal: u32, outcome: &Value, report: &Value) -> (Value, Seen) {
    let id = nested(parent, ordinal);
    let listed = &report["calls"]["list"][ordinal as usize - 1];
    assert_eq!((&listed["intent_id"], &listed["ordinal"]), (&id, &json!(ordinal)), "{listed}");
    let error = &outcome["error"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut seen = Seen {
        verdict: listed.get("verdict").cloned().unwrap_or_default(),
        status: listed["status"].clone(),
        code: text(&error["code"]),
        message: text(&error["message"]),
        blocked_by: error["detail"]["blocked_by"].clone(),
        report: Value::Null,
        refusal: None,
    };
    if listed["status"] != "REFUSED" {
        let own = nest.report(&id);
        let expected = json!({ "intent_id": parent, "tool": "fan_out", "ordinal": ordinal, "depth": 1 });
        assert_eq!(own["parent"], expected);
        assert_eq!(own["status"], listed["status"]);
        seen.report = without_own(own);
    }
    (id, seen)
}

/// The calls, with the verdict, the status and the code that each of them has in both ways.
fn cases() -> Vec<(Value, &'static str, &'static str, &'static str)> {
    vec![
        (read("in.txt"), "APPROVED", "SUCCESS", ""),
        (read("denied"), "DENIED", "REFUSED", "denied"),
        (read("conditional"), "CONDITIONAL", "SUCCESS", ""),
        (one("write_file", write("conditional", "x")), "CONDITIONAL", "FAILURE", "permission_denied"),
        (one("write_file", write("escalated", "x")), "ESCALATE", "SUCCESS", ""),
        (one("write_file", write("expired", "x")), "ESCALATE", "REFUSED", "denied"),
        (one("gate", json!({ "path": "/workspace/slow" })), "APPROVED", "TIMEOUT", "limit_reached"),
        (read("missing"), "APPROVED", "FAILURE", "not_found"),
        (read("limited"), "CONDITIONAL", "FAILURE", "limit_reached"),
        (one("none", json!({})), "", "REFUSED", "unknown_tool"),
        (one("read_file", json!({ "path": 7 })), "", "REFUSED", "invalid_arguments"),
    ]
}

#[test]
fn a_nested_call_is_as_a_direct_one_but_for_its_parent() {
    let nest = Nest::start(Options::new());
    let cases = cases();
    let calls = cases.iter().map(|(call, ..)| call.clone()).collect::<Vec<_>>();
    for parallel in [false, true] {
        let parent = fan(calls.clone(), &json!({ "parallel": parallel }));
        let (direct, (outcomes, report)) = nest.approving(|| {
            let direct = calls.iter().map(|call| directly(&nest, call)).collect::<Vec<_>>();
            let _ = std::fs::remove_file(nest.executor.workspace().join("escalated"));
            (direct, nest.outcomes(&parent))
        });
        assert_eq!(report["calls"]["max_calls"]["used"], calls.len());
        assert_eq!(nest.executor.file("escalated").as_deref(), Some("x"));
        let refused = nest.executor.home().list_journal(&["--refused"]);
        for (index, (call, verdict, status, code)) in cases.iter().enumerate() {
            let ordinal = u32::try_from(index).unwrap() + 1;
            let (id, mut nested) = of_parent(&nest, &parent["intent_id"], ordinal, &outcomes[index], &report);
            let (direct_id, mut direct) = direct[index].clone();
            (direct.refusal, nested.refusal) = (refusal(&refused, &direct_id), refusal(&refused, &id));
            // A program asks for the list in another way than an agent does; and an intent that waits in vain is
            // answered before it does.
            if *code == "unknown_tool" || word(call) == "expired" {
                direct.message.clear();
                nested.message.clear();
            }
            assert_eq!(direct, nested, "{call}");
            let expected = if verdict.is_empty() { Value::Null } else { json!(verdict) };
            assert_eq!(
                (&nested.verdict, &nested.status, nested.code.as_str()),
                (&expected, &json!(status), *code)
            );
        }
    }
    assert_eq!(nest.executor.file("expired"), None);
    assert_eq!(nest.executor.file("conditional").as_deref(), Some("text"));
}

#[test]
fn the_governor_is_told_of_the_parent() {
    let nest = Nest::start(Options::new());
    // The agent's own `context.parent` does not reach the governor; the rest of its context does.
    let forged = json!({ "parent": { "intent_id": intent_id(), "depth": 0 }, "reasoning": "why" });
    let parent = with_context(fan(vec![read("in.txt")], &json!({ "recurse": 1 })), forged);
    nest.outcomes(&parent);
    let asked = nest.asked();
    assert_eq!(asked[0]["context"], json!({ "reasoning": "why" }));
    let context = |id: &Value| {
        let call = asked.iter().find(|call| call["intent_id"] == *id).unwrap_or_else(|| panic!("{id}"));
        assert_eq!(call["agent_did"], AGENT);
        call["context"]["parent"].clone()
    };
    let child = nested(&parent["intent_id"], 1);
    let of = |parent: &Value, depth: u32| json!({ "intent_id": parent, "tool": "fan_out", "ordinal": 1, "depth": depth });
    assert_eq!(context(&parent["intent_id"]), Value::Null);
    assert_eq!(context(&child), of(&parent["intent_id"], 1));
    assert_eq!(context(&nested(&child, 1)), of(&child, 2));
}

#[test]
fn a_planted_intent_is_a_conflict_and_runs_nothing() {
    let nest = Nest::start(Options::new());
    // One that has run, with the same call and with another; and one that waits for a person.
    for (planted, name) in [("one", "one"), ("two", "other"), ("escalated", "escalated")] {
        let parent = fan(vec![one("write_file", write(name, "nested"))], &json!({}));
        let mut outside = intent("write_file", write(planted, "planted"));
        if planted == name {
            outside["arguments"]["content"] = "nested".into();
        }
        outside["intent_id"] = nested(&parent["intent_id"], 1);
        let first = nest.ask(&outside);
        if planted != "escalated" {
            assert_eq!(result(&first)["report"]["status"], "SUCCESS", "{first}");
            std::fs::remove_file(nest.executor.workspace().join(planted)).expect("it ran");
        }
        let (outcomes, report) = nest.outcomes(&parent);
        assert_eq!(codes(&outcomes), ["failed"], "{outcomes:?}");
        let message = outcomes[0]["error"]["message"].as_str().expect("a message");
        assert!(message.contains("cannot be used for this call"), "{message}");
        assert_eq!(report["calls"]["list"][0]["status"], "REFUSED", "{report}");
        assert_eq!(nest.executor.file(name), None, "it ran under a planted id");
    }
    // And the other way round: the id of a nested call that ran answers nobody from outside.
    let parent = fan(vec![one("write_file", write("nested", "x"))], &json!({}));
    assert_eq!(codes(&nest.outcomes(&parent).0), [""]);
    std::fs::remove_file(nest.executor.workspace().join("nested")).expect("it ran");
    let mut outside = intent("write_file", write("nested", "x"));
    outside["intent_id"] = nested(&parent["intent_id"], 1);
    error(&nest.ask(&outside), -32600);
    assert_eq!(nest.executor.file("nested"), None);
}
