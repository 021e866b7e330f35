//! The scope of a caller's token binds the calls of its runs: at every depth, and after a wait and a restart.

use super::{Nest, fan_out, nested, one};
use harness::callers::{List, rpc};
use harness::console::Client;
use harness::jwt::{Provider, add_agent, add_subject, claims, with};
use harness::methods::write;
use harness::*;
use serde_json::{Value, json};

/// A token for `anna` with this scope.
fn token(provider: &Provider, scope: &str) -> String {
    provider.token(&with(claims("anna"), "scope", json!(scope)))
}

/// Arguments of `fan_out` that want `write_file`, so many runs further down.
fn wanting(depth: u32) -> Value {
    match depth.checked_sub(1) {
        None => json!({
            "calls": [one("write_file", write("out", "x"))], "list": true, "describe": ["write_file"],
        }),
        Some(depth) => json!({ "calls": [one("fan_out", wanting(depth))] }),
    }
}

/// The outcome of the innermost run.
fn innermost(mut outcome: &Value, depth: u32) -> &Value {
    for _ in 0..depth {
        outcome = &outcome["outcomes"][0]["result"];
    }
    outcome
}

fn assert_refused(outcome: &Value) {
    let error = &outcome["outcomes"][0]["error"];
    assert_eq!(
        (&error["code"], &error["detail"]["set_by"]),
        (&json!("not_allowed"), &json!("caller")),
        "{outcome}"
    );
    assert!(error["message"].as_str().is_some_and(|text| text.contains("`tools:write_file`")), "{outcome}");
    assert_eq!(outcome["definitions"][0]["error"]["code"], "not_allowed", "{outcome}");
}

#[test]
fn a_scope_binds_calls_at_every_door_and_depth() {
    let provider = Provider::new();
    let list = List::new();
    add_agent(&list, "anna");
    let keys = nexus::Keys::of(&[doors::PEER]);
    let nest = Nest::start(doors::open_doors(provider.options(&list).signed_only(), &keys));
    for (scope, reaches) in
        [("tools:fan_out tools:gate", false), ("tools:fan_out tools:write_file", true), ("openid", true)]
    {
        let token = token(&provider, scope);
        let mut expected = vec!["fan_out", "gate", "read_file", "write_file"];
        if scope != "openid" {
            expected.retain(|tool| scope.contains(tool));
        }
        for door in doors::DOORS {
            // The runs below the first one do not depend on the door.
            let depths = if door.name == "a2g" { 0..3 } else { 0..1 };
            for depth in depths {
                let case = format!("{scope}, {}, {depth}", door.name);
                let answer = door.ask_as(&nest.executor, &token, "fan_out", &wanting(depth));
                let outcome = innermost(&answer, depth);
                assert_eq!(outcome["tools"], json!(expected), "{case}: {answer}");
                if reaches {
                    assert!(outcome["outcomes"][0]["error"].is_null(), "{case}: {outcome}");
                    assert!(!outcome["definitions"][0]["result"].is_null(), "{case}: {outcome}");
                } else {
                    assert_refused(outcome);
                }
                assert_eq!(nest.executor.file("out").is_some(), reaches, "{case}");
                let _absent = std::fs::remove_file(nest.executor.workspace().join("out"));
            }
        }
        let asked = nest.asked().iter().any(|call| call["tool"] == "write_file");
        assert_eq!(asked, reaches, "the governor is not asked about a call that the token does not reach");
    }
}

/// Every run of `fan_out` waits for a person: the first one over a restart, the one below it as a call of a run.
#[test]
fn a_scope_binds_the_calls_of_runs_that_have_waited() {
    let provider = Provider::new();
    let list = List::new();
    add_agent(&list, "anna");
    add_subject(&list, "boss", "boss", &["--role", "approver"]);
    let governor = FakeGovernor::deciding(|call| {
        let mut verdict = verdict(call["intent_id"].as_str().expect("an id"), &manifest());
        if call["tool"] == "fan_out" {
            verdict["verdict"] = "ESCALATE".into();
        }
        Reply::Result(verdict)
    });
    let catalogue = Catalogue::empty().add(fan_out(&["*"])).copy("write_file");
    let options = provider.options(&list).signed_only().catalogue(&catalogue).governor(&governor.url());
    let executor = Executor::start(options);
    let call = intent("fan_out", wanting(1));
    let parent = &call["intent_id"];
    let child = nested(&call["intent_id"], 1);
    let answer = rpc(&mut executor.client(), &token(&provider, "tools:fan_out"), "a2g/intent", &call);
    assert_eq!(answer["result"]["verdict"], "ESCALATE", "{answer}");
    let executor = Executor::start_in(executor.kill());
    let boss = provider.token(&claims("boss"));
    let mut client = executor.client();
    let console = Client::with_token(&executor, &boss);
    for intent in [parent, &child] {
        let status = json!({ "intent_id": intent });
        eventually("it waits", || {
            let status = rpc(&mut client, &boss, "a2g/status", &status);
            (status["result"]["state"] == "escalated").then_some(())
        });
        // The person sees which tools the token leaves to the run.
        let page = console.get(&format!("/console/decide/{}", intent.as_str().expect("an id"))).1;
        assert!(page.contains("<code>fan_out</code>, set by the caller"), "{page}");
        let directive = json!({ "intent_id": intent, "decision": "APPROVED" });
        result(&rpc(&mut client, &boss, "g2a/directive", &directive));
    }
    let report = eventually("the parent has a report", || {
        let status = rpc(&mut client, &boss, "a2g/status", &json!({ "intent_id": parent }));
        status["result"].get("report").cloned()
    });
    assert_refused(innermost(&report["result"], 1));
    assert_eq!(executor.file("out"), None);
}
