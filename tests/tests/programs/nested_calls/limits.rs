//! The limits on the calls of a run: its declaration, the conditions of its verdict, the standing policy and the ceilings.

use super::{Nest, codes, fan, fan_out, gate, nested, one, read, with_context};
use harness::methods::write;
use harness::*;
use serde_json::{Value, json};

/// A limit of a report, with the layer that set it.
fn limit(report: &Value, name: &str) -> (u64, String) {
    let limit = &report["calls"][name];
    let set_by = limit["set_by"].as_str().unwrap_or_else(|| panic!("no {name}: {report}"));
    (limit["granted"].as_u64().expect("a number"), set_by.to_owned())
}

fn by(granted: u64, layer: &str) -> (u64, String) {
    (granted, layer.to_owned())
}

fn two() -> Vec<Value> {
    vec![read("in.txt"), one("write_file", write("out", "x"))]
}

/// Checks that of the two calls the second is not allowed, and which layer says so.
fn assert_only_reads(nest: &Nest, call: &Value, layer: &str) {
    let (outcomes, report) = nest.outcomes(call);
    assert_eq!(codes(&outcomes), ["", "not_allowed"], "{layer}: {outcomes:?}");
    assert_eq!(outcomes[1]["error"]["detail"]["set_by"], layer, "{outcomes:?}");
    assert_eq!(report["calls"]["list"][1]["status"], "REFUSED", "{report}");
    assert_eq!(nest.executor.file("out"), None, "{layer}");
}

#[test]
fn a_run_calls_only_what_its_tool_declares() {
    let nest = Nest::start_with(Options::new(), fan_out(&["read_file"]));
    assert_only_reads(&nest, &fan(two(), &json!({})), "tool");
    // It is listed and described likewise.
    let call = fan(Vec::new(), &json!({ "list": true, "describe": ["read_file", "write_file", "none"] }));
    let answer = nest.ask(&call);
    let told = &result(&answer)["report"]["result"];
    assert_eq!(told["tools"], json!(["read_file"]));
    assert_eq!(codes(told["definitions"].as_array().unwrap()), ["", "not_allowed", "unknown_tool"]);
    assert!(told["definitions"][0]["result"]["properties"]["path"].is_object(), "{told}");

    let nest = Nest::start_with(Options::new(), fan_out(&[]));
    let call = fan(two(), &json!({ "list": true }));
    let (outcomes, report) = nest.outcomes(&call);
    assert_eq!(codes(&outcomes), ["not_allowed", "not_allowed"]);
    assert_eq!((&report["calls"], &report["result"]["tools"]), (&Value::Null, &json!([])), "{report}");
    assert_eq!(nest.asked().len(), 1, "the governor was asked about a call that is not allowed");
}

#[test]
fn what_calls_change_takes_effect_with_the_run_whose_changes_do_so_together() {
    let nest = Nest::start(Options::new());
    let atomic = with_context(fan(two(), &json!({})), json!({ "conditions": ["effects:atomic"] }));
    let (outcomes, report) = nest.outcomes(&atomic);
    assert_eq!(codes(&outcomes), ["", ""], "{outcomes:?}");
    let effects = &report["usage"]["effects"];
    assert_eq!((&effects["mode"], &effects["changes"]), (&json!("atomic"), &json!(1)), "{report}");
    assert!(nest.executor.file("out").is_some());
}

#[test]
fn conditions_of_a_verdict_limit_the_calls_of_its_run() {
    let nest = Nest::start(Options::new());
    let conditioned =
        |conditions: Value| with_context(fan(two(), &json!({})), json!({ "conditions": conditions }));
    assert_only_reads(&nest, &conditioned(json!(["calls:read_file"])), "condition");
    // Several conditions name several tools.
    let both = conditioned(json!(["calls:read_file", "calls:write_file", "max_calls:7"]));
    let (outcomes, report) = nest.outcomes(&both);
    assert_eq!(codes(&outcomes), ["", ""]);
    assert_eq!(limit(&report, "max_calls"), by(7, "condition"));

    let (outcomes, report) = nest.outcomes(&conditioned(json!(["max_calls:1", "max_calls:2"])));
    assert_eq!(codes(&outcomes), ["", "calls_exhausted"]);
    let message = outcomes[1]["error"]["message"].as_str().unwrap();
    assert!(message.contains("all its 1 calls (`max_calls`, set by a condition of the verdict"), "{message}");
    assert_eq!(limit(&report, "max_calls"), by(1, "condition"));
    assert_eq!(report["calls"]["max_calls"]["used"], 1, "{report}");
    assert_eq!(report["calls"]["list"].as_array().unwrap().len(), 1, "{report}");

    let before = nest.asked().len();
    let (outcomes, report) = nest.outcomes(&conditioned(json!(["max_calls:0"])));
    assert_eq!(codes(&outcomes), ["calls_exhausted", "calls_exhausted"]);
    let message = outcomes[0]["error"]["message"].as_str().unwrap();
    assert!(message.contains("may make no calls (`max_calls` is 0, set by a condition of"), "{message}");
    assert_eq!(
        (limit(&report, "max_calls"), nest.asked().len()),
        (by(0, "condition"), before + 1),
        "{report}"
    );
    for condition in
        ["calls:", "calls:a/b", "max_calls:", "max_calls:-1", "max_calls:4294967296", "max_parallel_calls:1"]
    {
        expect_blocked(&nest.ask(&conditioned(json!([condition]))), "condition_unknown");
    }
}

#[test]
fn a_standing_policy_limits_the_calls_and_rules_each_of_them() {
    let nest = Nest::start(Options::new());
    let set = |constraints: Value, others: &[&str]| {
        let mut tools = json!({ "fan_out": { "allowed": true, "constraints": constraints } });
        for other in others {
            tools[*other] = json!({ "allowed": true });
        }
        let policy = json!({ "agent_did": AGENT, "version": "v", "capabilities": { "tools": tools } });
        assert_eq!(result(&nest.executor.rpc("g2a/policy", &policy))["accepted"], true);
    };
    set(json!({ "calls": ["read_file"] }), &["read_file", "write_file"]);
    assert_only_reads(&nest, &fan(two(), &json!({})), "standing_policy");
    set(json!({ "calls": [] }), &["read_file", "write_file"]);
    let (outcomes, _) = nest.outcomes(&fan(two(), &json!({})));
    assert_eq!(codes(&outcomes), ["not_allowed", "not_allowed"]);
    assert_eq!(outcomes[0]["error"]["detail"]["set_by"], "standing_policy", "{outcomes:?}");
    set(json!({ "max_calls": 1 }), &["read_file", "write_file"]);
    let (outcomes, report) = nest.outcomes(&fan(two(), &json!({})));
    assert_eq!(codes(&outcomes), ["", "calls_exhausted"]);
    assert_eq!(limit(&report, "max_calls"), by(1, "standing_policy"));
    // A program may call it, and its agent may not: it is refused as from outside.
    set(json!({}), &["write_file"]);
    let (outcomes, _) = nest.outcomes(&fan(two(), &json!({})));
    assert_eq!(codes(&outcomes), ["denied", ""]);
}

#[test]
fn ceilings_limit_number_and_depth() {
    let options = Options::new().set("ceilings.max_calls", 3).set("ceilings.max_call_depth", 2);
    let nest = Nest::start(options.set("ceilings.max_parallel_calls", 5));
    for parallel in [false, true] {
        let call = fan(vec![read("in.txt"); 5], &json!({ "parallel": parallel }));
        let (outcomes, report) = nest.outcomes(&call);
        let codes = codes(&outcomes);
        assert_eq!(codes.iter().filter(|code| code.is_empty()).count(), 3, "{codes:?}");
        assert_eq!(codes.iter().filter(|code| **code == "calls_exhausted").count(), 2, "{codes:?}");
        assert_eq!(limit(&report, "max_calls"), by(3, "executor"));
        assert_eq!(limit(&report, "max_parallel_calls"), by(5, "executor"));
    }
    // Two runs above a call, and not three.
    let (outcomes, _) = nest.outcomes(&fan(vec![read("in.txt")], &json!({ "recurse": 1 })));
    assert_eq!(codes(inner(&outcomes[0])), [""], "{outcomes:?}");
    let call = fan(vec![read("in.txt")], &json!({ "recurse": 2 }));
    let (outcomes, _) = nest.outcomes(&call);
    assert_eq!(codes(inner(&inner(&outcomes[0])[0])), ["calls_exhausted"], "{outcomes:?}");
    let lowest = nested(&nested(&call["intent_id"], 1), 1);
    assert_eq!(nest.report(&lowest)["calls"]["list"][0]["status"], "REFUSED");
    error(&nest.status(&nested(&lowest, 1)), -32602);
}

/// The outcomes of a call that is one of `fan_out` itself.
fn inner(outcome: &Value) -> &[Value] {
    outcome["result"]["outcomes"].as_array().unwrap_or_else(|| panic!("no outcomes: {outcome}"))
}

#[test]
fn recursion_ends_at_the_depth_of_the_ceiling() {
    // One slot for all of it.
    let nest = Nest::start(Options::new().set("executor.concurrent", 1));
    let (outcomes, _) = nest.outcomes(&fan(Vec::new(), &json!({ "recurse": 50 })));
    let mut outcome = &outcomes[0];
    let mut depth = 1;
    while outcome["error"].is_null() {
        (outcome, depth) = (&inner(outcome)[0], depth + 1);
    }
    assert_eq!((&outcome["error"]["code"], depth), (&json!("calls_exhausted"), 5), "{outcome}");
    let message = outcome["error"]["message"].as_str().unwrap();
    assert!(message.contains("`ceilings.max_call_depth` is 4"), "{message}");
}

#[test]
fn at_most_so_many_calls_run_at_once() {
    let options = Options::new().set("ceilings.max_parallel_calls", 2).set("executor.concurrent", 16);
    let nest = Nest::start(options);
    let call = fan(vec![gate(); 6], &json!({ "parallel": true }));
    let answer = call_in_background(&nest.executor, "a2g/intent", &call);
    nest.executor.wait_at_the_gate(2);
    // Far longer than a third one would need.
    for _ in 0..20 {
        assert_eq!(result(&nest.ask(&with_read()))["report"]["status"], "SUCCESS");
    }
    assert_eq!(nest.executor.runs_of_the_gate(), 2);
    nest.executor.open_the_gate();
    let answer = answer.join().unwrap();
    let report = &result(&answer)["report"];
    assert_eq!(codes(report["result"]["outcomes"].as_array().unwrap()), [""; 6], "{report}");
    assert_eq!(
        (nest.executor.runs_of_the_gate(), limit(report, "max_parallel_calls")),
        (6, by(2, "executor"))
    );
}

fn with_read() -> Value {
    intent("read_file", json!({ "path": "/workspace/in.txt" }))
}

#[test]
fn a_tool_declares_how_many_calls_it_makes() {
    let fan_out = fan_out(&["*"]).limit("max_calls", 2).limit("max_parallel_calls", 1);
    let nest = Nest::start_with(Options::new(), fan_out);
    let (outcomes, report) = nest.outcomes(&fan(vec![read("in.txt"); 3], &json!({})));
    assert_eq!(codes(&outcomes), ["", "", "calls_exhausted"]);
    assert_eq!(limit(&report, "max_calls"), by(2, "tool"));
    assert_eq!(limit(&report, "max_parallel_calls"), by(1, "tool"));
}
