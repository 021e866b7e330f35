//! Calls of a run whose tool an operator stops.

use super::{Nest, codes, fan, gate, read};
use harness::*;
use serde_json::json;

#[test]
fn a_nested_call_of_a_stopped_tool_is_refused_with_the_reason() {
    let nest = Nest::start(Options::new());
    let stop = json!({ "target": { "tool": "read_file" }, "reason": "it reads secrets" });
    result(&nest.executor.rpc("a2g/stop", &stop));
    let (outcomes, _) = nest.outcomes(&fan(vec![read("in.txt")], &json!({})));
    assert_eq!(codes(&outcomes), ["denied"], "{outcomes:?}");
    let refused = &outcomes[0]["error"];
    assert_eq!(refused["detail"]["blocked_by"], "stopped", "{refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("it reads secrets") && message.contains("resume --tool read_file"), "{message}");
    let resumed = nest.executor.rpc("a2g/resume", &json!({ "target": { "tool": "read_file" } }));
    assert_eq!(result(&resumed)["resumed"], true);
    let (outcomes, _) = nest.outcomes(&fan(vec![read("in.txt")], &json!({})));
    assert_eq!(codes(&outcomes), [""], "{outcomes:?}");
}

/// The parent goes on, because its own tool is not stopped.
#[test]
fn a_stop_of_a_tool_aborts_a_nested_call_and_not_its_parent() {
    let nest = Nest::start(Options::new().set("executor.concurrent", 4));
    let call = fan(vec![gate(), read("in.txt")], &json!({}));
    let answer = call_in_background(&nest.executor, "a2g/intent", &call);
    nest.executor.wait_at_the_gate(1);
    let stop = json!({ "target": { "tool": "gate" }, "reason": "it waits too long" });
    assert_eq!(result(&nest.executor.rpc("a2g/stop", &stop))["aborted"], 1);
    let answer = answer.join().unwrap();
    let report = &result(&answer)["report"];
    assert_eq!(report["status"], "SUCCESS", "{answer}");
    assert_eq!(codes(report["result"]["outcomes"].as_array().unwrap()), ["aborted", ""], "{answer}");
}

/// A stop of the agent ends the parent and its calls.
#[test]
fn a_stop_of_an_agent_aborts_a_parent_with_its_calls() {
    let nest = Nest::start(Options::new().set("executor.concurrent", 4));
    let call = fan(vec![gate()], &json!({}));
    let answer = call_in_background(&nest.executor, "a2g/intent", &call);
    nest.executor.wait_at_the_gate(1);
    let stop = json!({ "target": { "agent_did": AGENT }, "reason": "it is out of control" });
    assert_eq!(result(&nest.executor.rpc("a2g/stop", &stop))["aborted"], 2);
    let answer = answer.join().unwrap();
    assert_eq!(result(&answer)["report"]["status"], "ABORTED", "{answer}");
    expect_blocked(&nest.ask(&fan(vec![gate()], &json!({}))), "stopped");
}

/// A nested call that waits for a person is withdrawn, and its parent is told why.
#[test]
fn a_nested_call_that_waits_is_withdrawn() {
    let nest = Nest::start(Options::new());
    let call = fan(vec![read("escalated")], &json!({}));
    let answer = call_in_background(&nest.executor, "a2g/intent", &call);
    let id = super::nested(&call["intent_id"], 1);
    eventually("it waits", || (nest.status(&id)["result"]["state"] == "escalated").then_some(()));
    let stop = json!({ "target": { "tool": "read_file" }, "reason": "it reads secrets" });
    assert_eq!(result(&nest.executor.rpc("a2g/stop", &stop))["aborted"], 1);
    let answer = answer.join().unwrap();
    let outcome = &result(&answer)["report"]["result"]["outcomes"][0];
    assert_eq!(outcome["error"]["detail"]["blocked_by"], "stopped", "{answer}");
}
