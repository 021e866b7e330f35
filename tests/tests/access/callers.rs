//! Authentication and roles: tokens, certificates and sockets, and the methods of each role.

use harness::callers::{Authority, List, agent, ask, assert_unusable, bearer, dns, ends, rpc};
use harness::methods::{self, ESCALATES, write};
use harness::{
    AGENT, Executor, Exposition, Home, HttpClient, Options, Process, WebSocketClient, error, eventually,
    execute, expect_blocked, id_of, in_seconds, intent, intent_id, post_request, result, run, set_mode,
    succeeds,
};
use rcgen::SanType;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const OTHER: &str = "did:aeon:other:1.0:abc123";

#[test]
fn unauthenticated_requests_are_rejected() {
    let list = List::new();
    let token = agent(&list, "planner", AGENT);
    let executor = Executor::start(list.options().signed_only());
    let mut client = executor.client();
    let hash = harness::sha256(&token);
    for (shown, asks) in [
        (None, "Bearer"),
        (Some(String::new()), "Bearer"),
        (Some("Bearer".to_owned()), "Bearer"),
        (Some("Bearer ".to_owned()), "Bearer"),
        (Some(format!("Bearer {hash}")), r#"Bearer error="invalid_token""#),
        (Some(format!("Bearer {token}x")), r#"Bearer error="invalid_token""#),
        (Some(format!("Bearer  {token}")), r#"Bearer error="invalid_token""#),
        (Some(format!("Basic {token}")), "Bearer"),
        (Some(token.clone()), "Bearer"),
    ] {
        let answer = ask(&mut client, shown.as_deref(), "a2g/intent", &intent("write_file", write("x", "x")));
        assert_eq!(answer.status, 401, "{shown:?}: {}", answer.text());
        assert!(answer.headers.contains(&("www-authenticate".to_owned(), asks.to_owned())), "{answer:?}");
    }
    let twice = bearer(&token);
    let headers =
        [("Content-Type", "application/json"), ("Authorization", &twice), ("Authorization", &twice)];
    assert_eq!(client.post_with(&headers, b"{}").status, 401, "two tokens are none");
    assert!(WebSocketClient::upgrade(executor.address(), &[]).is_err());
    assert_eq!(client.request("GET", "/health", &[], b"").status, 200);
    executor.assert_workspace_is_empty("calls of nobody");
    let answer = rpc(&mut client, &token, "a2g/intent", &intent("write_file", write("x", "x")));
    assert_eq!(result(&answer)["report"]["status"], "SUCCESS", "{answer}");
    let answer = ask(&mut client, Some(&format!("bearer {token}")), "a2g/tools", &json!({}));
    assert_eq!(answer.status, 200, "the scheme is read as HTTP says");
    assert!(!executor.stderr().contains(&token), "a token is in the log");
}

/// The methods of each role, as documented.
#[test]
fn each_role_may_call_its_own_methods_only() {
    let list = List::new();
    let tokens = [
        ("agent", agent(&list, "an-agent", AGENT)),
        ("governor", list.add("a-governor", &["--role", "governor"])),
        ("approver", list.add("an-approver", &["--role", "approver"])),
        ("operator", list.add("an-operator", &["--role", "operator"])),
    ];
    let executor = Executor::start(list.options());
    let mut client = executor.client();
    let everybody: &[&str] = &["agent", "governor", "approver", "operator"];
    let policy = json!({ "agent_did": OTHER, "version": "1", "capabilities": { "tools": {} } });
    for (method, params, may) in [
        ("a2g/intent", intent("write_file", write("x", "x")), &["agent"][..]),
        ("a2g/execute", execute("write_file", write("x", "x")), &["agent"]),
        ("a2g/register", json!({ "agent_did": AGENT }), &["agent"]),
        (
            "a2g/report",
            json!({ "agent_did": AGENT, "intent_id": intent_id(), "status": "SUCCESS" }),
            &["agent"],
        ),
        ("a2g/heartbeat", json!({ "agent_did": AGENT }), &["agent"]),
        ("a2g/cancel", json!({ "intent_id": intent_id() }), &["agent", "governor", "operator"]),
        ("a2g/status", json!({ "intent_id": intent_id() }), everybody),
        ("a2g/tools", json!({}), everybody),
        ("rpc.discover", json!({}), everybody),
        (
            "a2g/session/end",
            json!({ "agent_did": AGENT, "session": format!("ses_{}", "0".repeat(32)) }),
            &["agent", "operator"],
        ),
        ("a2g/stop", json!({ "target": { "agent_did": OTHER }, "reason": "a test" }), &["operator"]),
        ("a2g/resume", json!({ "target": { "agent_did": OTHER } }), &["operator"]),
        ("a2g/stops", json!({}), &["operator"]),
        ("a2g/effects", json!({}), everybody),
        ("a2g/commit", json!({ "intent": intent_id(), "digest": "0".repeat(64) }), &["governor", "approver"]),
        ("a2g/discard", json!({ "intent": intent_id() }), everybody),
        ("a2g/undo", json!({ "intent": intent_id() }), &["governor", "approver"]),
        ("g2a/policy", policy, &["governor"]),
        ("g2a/revoke", json!({ "agent_did": OTHER }), &["governor"]),
        (
            "g2a/directive",
            json!({ "intent_id": intent_id(), "decision": "APPROVED" }),
            &["governor", "approver"],
        ),
    ] {
        for (role, token) in &tokens {
            let answer = rpc(&mut client, token, method, &params);
            let refused = answer["error"]["data"]["blocked_by"] == "caller_unauthorized";
            assert_eq!(refused, !may.contains(role), "{role}: {method}: {answer}");
        }
    }
    executor.line_with("\"blocked_by\":\"caller_unauthorized\"");
    for (role, token) in &tokens {
        let answer = client.request("GET", "/metrics", &[("Authorization", &bearer(token))], b"");
        assert_eq!(answer.status, if *role == "operator" { 200 } else { 403 }, "{role}: {}", answer.text());
    }
    assert_eq!(client.request("GET", "/metrics", &[], b"").status, 401);
}

#[test]
fn an_agent_accesses_its_own_intents_only() {
    let list = List::new();
    let mine = agent(&list, "mine", AGENT);
    let theirs = agent(&list, "theirs", OTHER);
    let operator = list.add("operator", &["--role", "operator"]);
    let executor = Executor::start(list.options().catalogue(&methods::catalogue()));
    let mut client = executor.client();
    let call = execute("write_file", write("mine", "x"));
    expect_blocked(&rpc(&mut client, &theirs, "a2g/execute", &call), "caller_unauthorized");
    expect_blocked(&rpc(&mut client, &theirs, "a2g/intent", &call["intent"]), "caller_unauthorized");
    executor.assert_workspace_is_empty("an intent in another's name");
    let report = json!({ "agent_did": AGENT, "intent_id": id_of(&call), "status": "SUCCESS" });
    for method in ["a2g/register", "a2g/report", "a2g/heartbeat"] {
        expect_blocked(&rpc(&mut client, &theirs, method, &report), "caller_unauthorized");
        assert_eq!(
            *result(&rpc(&mut client, &mine, method, &report)),
            json!({ "accepted": true }),
            "{method}"
        );
    }
    error(&rpc(&mut client, &mine, "a2g/status", &json!({ "intent_id": id_of(&call) })), -32602);
    let journal = executor.home().journal();
    eventually("the refusal is in the journal", || {
        let listed = run(["journal", "list", "--refused", "--json", "--journal", journal.to_str().unwrap()]);
        String::from_utf8_lossy(&listed.stdout).contains("caller_unauthorized").then_some(())
    });

    let running = execute("gate", json!({}));
    let id = json!({ "intent_id": id_of(&running) });
    std::thread::scope(|scope| {
        let address = executor.address();
        let params = running.clone();
        let token = mine.clone();
        let caller =
            scope.spawn(move || rpc(&mut HttpClient::connect(address), &token, "a2g/execute", &params));
        executor.wait_at_the_gate(1);
        error(&rpc(&mut client, &theirs, "a2g/status", &id), -32602);
        assert_eq!(result(&rpc(&mut client, &theirs, "a2g/cancel", &id))["cancelled"], false);
        assert_eq!(result(&rpc(&mut client, &operator, "a2g/status", &id))["state"], "running");
        assert_eq!(result(&rpc(&mut client, &mine, "a2g/status", &id))["state"], "running");
        assert_eq!(result(&rpc(&mut client, &mine, "a2g/cancel", &id))["cancelled"], true);
        let report = error(&caller.join().unwrap(), -32001)["data"]["report"].clone();
        assert_eq!(report["status"], "ABORTED", "{report}");
    });
    error(&rpc(&mut client, &theirs, "a2g/status", &id), -32602);
    assert_eq!(result(&rpc(&mut client, &mine, "a2g/status", &id))["state"], "finished");

    // One that waits for a person is no other agent's either.
    let mut waits = execute("write_file", write("later", "x"));
    waits["verdict"]["verdict"] = json!("ESCALATE");
    expect_blocked(&rpc(&mut client, &mine, "a2g/execute", &waits), "escalation_pending");
    let id = json!({ "intent_id": id_of(&waits) });
    error(&rpc(&mut client, &theirs, "a2g/status", &id), -32602);
    assert_eq!(result(&rpc(&mut client, &theirs, "a2g/cancel", &id))["cancelled"], false);
    assert_eq!(result(&rpc(&mut client, &operator, "a2g/cancel", &id))["cancelled"], true);
}

/// A denial by the governor is shown to all who may see the agent, until its id is used for a call that waits or runs.
#[test]
fn a_denial_by_the_governor_is_the_state_of_its_intent() {
    let list = List::new();
    let mine = agent(&list, "mine", AGENT);
    let theirs = agent(&list, "theirs", OTHER);
    let operator = list.add("operator", &["--role", "operator"]);
    let executor = Executor::start(list.options().catalogue(&methods::catalogue()));
    let mut client = executor.client();
    let approved = execute("write_file", write("file", "x"));
    let with = |agent: &str, verdict: &str, reason: &str| {
        let mut call = approved.clone();
        call["intent"]["agent_did"] = json!(agent);
        call["verdict"]["verdict"] = json!(verdict);
        call["verdict"]["reason"] = json!(reason);
        call
    };
    let id = json!({ "intent_id": id_of(&approved) });
    let denied = |reason: &str| {
        json!({
            "intent_id": id_of(&approved), "state": "denied", "blocked_by": "verdict_denied",
            "reason": format!("denied by the governor: {reason}"),
        })
    };
    for (token, agent, reason) in [(&mine, AGENT, "not today"), (&theirs, OTHER, "never")] {
        error(&rpc(&mut client, token, "a2g/status", &id), -32602);
        let answer = rpc(&mut client, token, "a2g/execute", &with(agent, "DENIED", reason));
        expect_blocked(&answer, "verdict_denied");
        assert_eq!(rpc(&mut client, token, "a2g/status", &id)["result"], denied(reason));
    }
    assert_eq!(*result(&rpc(&mut client, &mine, "a2g/status", &id)), denied("not today"));
    assert_eq!(*result(&rpc(&mut client, &operator, "a2g/status", &id)), denied("never"), "the latest one");

    let waits = rpc(&mut client, &mine, "a2g/execute", &with(AGENT, "ESCALATE", "ask"));
    expect_blocked(&waits, "escalation_pending");
    assert_eq!(result(&rpc(&mut client, &mine, "a2g/status", &id))["state"], "escalated");
    assert_eq!(*result(&rpc(&mut client, &theirs, "a2g/status", &id)), denied("never"));
    assert_eq!(result(&rpc(&mut client, &mine, "a2g/cancel", &id))["cancelled"], true);
    error(&rpc(&mut client, &mine, "a2g/status", &id), -32602);
    result(&rpc(&mut client, &mine, "a2g/execute", &approved));
    assert_eq!(result(&rpc(&mut client, &mine, "a2g/status", &id))["state"], "finished");
    // A refusal for another reason is no denial.
    let mut mismatched = execute("write_file", write("file", "x"));
    mismatched["verdict"]["intent_id"] = json!(intent_id());
    expect_blocked(&rpc(&mut client, &mine, "a2g/execute", &mismatched), "verdict_mismatch");
    eventually("the refusal is in the journal", || {
        let refused = executor.home().list_journal(&["--refused"]);
        refused.iter().any(|call| call["blocked_by"] == "verdict_mismatch").then_some(())
    });
    error(&rpc(&mut client, &mine, "a2g/status", &json!({ "intent_id": id_of(&mismatched) })), -32602);
}

/// In every state of an intent, another agent that uses its id gets the same answer, which is the one for an agent
/// that uses an id of its own twice.
#[test]
fn an_intent_id_reveals_nothing_to_other_agents() {
    let list = List::new();
    let mine = agent(&list, "mine", AGENT);
    let theirs = agent(&list, "theirs", OTHER);
    let approver = list.add("approver", &["--role", "approver"]);
    let folder = methods::policy_folder(&[methods::policy()]);
    let catalogue = methods::catalogue();
    let executor = Executor::start(list.options().catalogue(&catalogue).policies(folder.path()));
    let mut client = executor.client();
    let asked = |call: &Value| rpc(&mut executor.client(), &mine, "a2g/intent", call);
    let finished = intent("write_file", write("finished", "x"));
    assert_eq!(result(&asked(&finished))["report"]["status"], "SUCCESS");
    let [waiting, denied] = ["waiting", "denied"].map(|name| intent("write_file", write(name, ESCALATES)));
    for call in [&waiting, &denied] {
        assert_eq!(result(&asked(call))["verdict"], "ESCALATE");
    }
    let directive = json!({ "intent_id": denied["intent_id"], "decision": "DENIED" });
    result(&rpc(&mut client, &approver, "g2a/directive", &directive));
    let running = intent("gate", json!({ "path": "/workspace/x" }));
    let gate = std::thread::spawn({
        let address = executor.address();
        let token = mine.clone();
        let call = running.clone();
        move || rpc(&mut HttpClient::connect(address), &token, "a2g/intent", &call)
    });
    executor.wait_at_the_gate(1);

    let mut said = std::collections::BTreeSet::new();
    for (state, call) in
        [("finished", &finished), ("waiting", &waiting), ("denied", &denied), ("running", &running)]
    {
        let id = call["intent_id"].as_str().unwrap();
        let mut other = intent("write_file", write("other", "x"));
        other["intent_id"] = json!(id);
        let by_mine = rpc(&mut client, &mine, "a2g/intent", &other);
        other["agent_did"] = json!(OTHER);
        let by_theirs = rpc(&mut client, &theirs, "a2g/intent", &other);
        for answer in [by_mine, by_theirs] {
            error(&answer, -32600);
            said.insert(answer["error"].to_string().replace(id, "ID"));
        }
        let unknown = [id, &intent_id()].map(|id| {
            let answer = rpc(&mut client, &theirs, "a2g/status", &json!({ "intent_id": id }));
            answer["error"].to_string().replace(id, "ID")
        });
        assert_eq!(unknown[0], unknown[1], "{state}");
    }
    assert_eq!(said.len(), 1, "{said:#?}");
    assert_eq!(executor.file("other"), None);
    executor.open_the_gate();
    assert_eq!(result(&gate.join().unwrap())["report"]["status"], "SUCCESS");
}

#[test]
fn an_approver_decides_without_being_the_governor() {
    let list = List::new();
    let mine = agent(&list, "mine", AGENT);
    let approver = list.add("a-person", &["--role", "approver"]);
    let folder = methods::policy_folder(&[methods::policy()]);
    let executor = Executor::start(list.options().signed_only().policies(folder.path()));
    let mut client = executor.client();
    let call = intent("write_file", write("x", ESCALATES));
    assert_eq!(result(&rpc(&mut client, &mine, "a2g/intent", &call))["verdict"], "ESCALATE");
    let directive = json!({ "intent_id": call["intent_id"], "decision": "APPROVED" });
    expect_blocked(&rpc(&mut client, &mine, "g2a/directive", &directive), "caller_unauthorized");
    assert_eq!(result(&rpc(&mut client, &approver, "g2a/directive", &directive))["accepted"], true);
    eventually("it has run", || executor.file("x").filter(|content| content == ESCALATES));
    executor.line_with("\"caller\":\"a-person\"");
    // The approver is part of the receipt, and so of the chain.
    let id = call["intent_id"].as_str().unwrap();
    let shown = eventually("its receipt is there", || {
        let shown = executor.home().run(&["journal", "show", id, "--json"]);
        let shown = shown.status.success().then(|| serde_json::from_slice::<Value>(&shown.stdout).unwrap());
        shown.filter(|shown| shown["report"]["status"] == "SUCCESS")
    });
    assert_eq!(shown["approved_by"], "a-person");
}

/// An approver sees pending intents, and later readers see the caller that denied each.
#[test]
fn pending_escalations_are_listed_and_denials_name_their_caller() {
    let list = List::new();
    let mine = agent(&list, "mine", AGENT);
    let approver = list.add("a-person", &["--role", "approver"]);
    let operator = bearer(&list.add("operator", &["--role", "operator"]));
    let folder = methods::policy_folder(&[methods::policy()]);
    let executor = Executor::start(list.options().signed_only().policies(folder.path()));
    let mut client = executor.client();
    let figures = || {
        let answer = executor.client().request("GET", "/metrics", &[("Authorization", &operator)], b"");
        Exposition::read(&answer.text())
    };
    let call = intent("write_file", write("x", ESCALATES));
    assert_eq!(result(&rpc(&mut client, &mine, "a2g/intent", &call))["verdict"], "ESCALATE");
    let waiting = executor.home().list_journal(&["--waiting"]);
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert_eq!(waiting[0]["intent_id"], call["intent_id"]);
    assert_eq!(waiting[0]["arguments"], write("x", ESCALATES));
    assert!(waiting[0]["reason"].as_str().unwrap().contains("holds a private key"), "{waiting:?}");
    assert!(figures().is("a2g_waiting_intents", 1.0));
    let waits = executor.line_with("waits for a directive");
    assert!(waits.contains(call["intent_id"].as_str().unwrap()), "{waits}");

    let directive = json!({ "intent_id": call["intent_id"], "decision": "DENIED" });
    expect_blocked(&rpc(&mut client, &mine, "g2a/directive", &directive), "caller_unauthorized");
    let refused = executor.line_with("\"blocked_by\":\"caller_unauthorized\"");
    assert!(refused.contains("g2a/directive") && refused.contains("`mine`"), "{refused}");
    result(&rpc(&mut client, &approver, "g2a/directive", &directive));
    assert_eq!(executor.home().list_journal(&["--waiting"]), [json!(null); 0]);
    assert!(figures().is("a2g_waiting_intents", 0.0));
    let refusal_of = |call: &Value| {
        eventually("the end of the intent is on record", || {
            let refused = executor.home().list_journal(&["--refused"]);
            refused.into_iter().find(|refused| refused["intent_id"] == call["intent_id"])
        })
    };
    let recorded = refusal_of(&call);
    assert_eq!(recorded["blocked_by"], "verdict_denied");
    assert!(recorded["message"].as_str().unwrap().contains("denied by `a-person`"), "{recorded}");
    let mine_of_late = ["--refused", "--agent", AGENT, "--tool", "write_file", "--since", "1h"];
    assert!(executor.home().list_journal(&mine_of_late).contains(&recorded));
    for others in [["--agent", OTHER], ["--tool", "gate"], ["--until", "1h"]] {
        assert_eq!(executor.home().list_journal(&[&["--refused"], &others[..]].concat()), [json!(null); 0]);
    }
    // It is not put to them again.
    expect_blocked(&rpc(&mut client, &mine, "a2g/intent", &call), "verdict_denied");
    assert_eq!(executor.home().list_journal(&["--waiting"]), [json!(null); 0]);
    let cancelled = intent("write_file", write("x", ESCALATES));
    result(&rpc(&mut client, &mine, "a2g/intent", &cancelled));
    let id = json!({ "intent_id": cancelled["intent_id"] });
    assert_eq!(result(&rpc(&mut client, &mine, "a2g/cancel", &id))["cancelled"], true);
    let recorded = refusal_of(&cancelled);
    assert!(recorded["message"].as_str().unwrap().contains("cancelled while it waited"), "{recorded}");
    executor.assert_workspace_is_empty("a denial");

    assert!(figures().is("a2g_unknown_callers_total", 0.0));
    assert_eq!(ask(&mut client, Some("Bearer a2g_wrong"), "a2g/tools", &json!({})).status, 401);
    assert!(figures().is("a2g_unknown_callers_total", 1.0));
    executor.line_with("no caller in the list has this credential");
    assert_eq!(ask(&mut client, None, "a2g/tools", &json!({})).status, 401);
    executor.line_with("the caller presented no credential");
}

/// Of two who decide in the same moment one is told that it did, and that is what happens.
#[test]
fn concurrent_decisions_are_answered_consistently() {
    let list = List::new();
    let mine = agent(&list, "mine", AGENT);
    let approvers = ["one", "two"].map(|name| list.add(name, &["--role", "approver", "--role", "operator"]));
    let folder = methods::policy_folder(&[methods::policy()]);
    let executor = Executor::start(list.options().signed_only().policies(folder.path()));
    let [mut first, mut second] = [executor.client(), executor.client()];
    let mut denials = 0;
    let rounds = 120;
    for round in 0..rounds {
        let file = format!("file-{round}");
        let call = intent("write_file", write(&file, ESCALATES));
        result(&rpc(&mut first, &mine, "a2g/intent", &call));
        let id = json!({ "intent_id": call["intent_id"] });
        let decided = |decision: &str| json!({ "intent_id": call["intent_id"], "decision": decision });
        let (other, params) = match round % 2 {
            0 => ("g2a/directive", decided("DENIED")),
            _ => ("a2g/cancel", id.clone()),
        };
        let (approved, against) = std::thread::scope(|scope| {
            let approving =
                scope.spawn(|| rpc(&mut first, &approvers[0], "g2a/directive", &decided("APPROVED")));
            // Sooner or later than the other.
            std::thread::sleep(std::time::Duration::from_micros(round * 5));
            let against = rpc(&mut second, &approvers[1], other, &params);
            (approving.join().unwrap(), against)
        });
        let runs = approved["result"]["accepted"] == true;
        let told_that_not = match other {
            "a2g/cancel" => result(&against)["cancelled"] == true,
            _ => against["result"]["accepted"] == true,
        };
        denials += u64::from(told_that_not);
        if !runs {
            assert!(told_that_not, "{approved} {against}");
            error(&approved, -32602);
            assert_eq!(executor.file(&file), None, "{against}");
            continue;
        }
        let report = eventually("it is over", || {
            let status = rpc(&mut first, &approvers[0], "a2g/status", &id);
            status["result"].get("report").cloned()
        });
        // A run that has begun can be cancelled as well, and its report says so.
        let status = if told_that_not { "ABORTED" } else { "SUCCESS" };
        assert_eq!(report["status"], status, "{other}: {against}");
        assert!(!told_that_not || other == "a2g/cancel", "{approved} {against}");
    }
    assert!((1..rounds).contains(&denials), "{denials} of {rounds}: they did not meet");
}

#[test]
fn removed_callers_are_rejected_even_on_an_open_web_socket() {
    let list = List::new();
    let first = agent(&list, "first", AGENT);
    let second = agent(&list, "second", AGENT);
    let mut executor = Executor::start(list.options());
    let upgrade = |token: &str| {
        WebSocketClient::upgrade(executor.address(), &[("Authorization", &bearer(token))]).unwrap()
    };
    let mut socket = upgrade(&first);
    let mut kept = upgrade(&second);
    let tools = br#"{"jsonrpc":"2.0","method":"a2g/tools","id":1}"#;
    socket.send(tools);
    assert!(socket.receive().unwrap().contains("write_file"));
    list.remove("first");
    executor.process().hang_up();
    executor.line_with("callers reloaded");
    socket.send(tools);
    assert_eq!(socket.receive(), None, "it is closed without an answer");
    kept.send(tools);
    assert!(kept.receive().unwrap().contains("write_file"));
    assert_eq!(ask(&mut executor.client(), Some(&bearer(&first)), "a2g/tools", &json!({})).status, 401);

    // A list that cannot be read is nobody's.
    set_mode(&list.path(), 0o666);
    executor.process().hang_up();
    executor.line_with("all callers are refused until the list can be read again");
    kept.send(tools);
    assert_eq!(kept.receive(), None);
    set_mode(&list.path(), 0o600);
    executor.process().hang_up();
    eventually("it is known again", || {
        let answer = ask(&mut executor.client(), Some(&bearer(&second)), "a2g/tools", &json!({}));
        (answer.status == 200).then_some(())
    });
}

/// The answer to an approval under a rule that requires two.
const COUNTED: &str = "needs_more_approvals";

/// Starts an executor on which two of anna, bert and carl have to approve. Returns it with their tokens and the token
/// of an agent.
fn two_of_three(list: &List) -> (Executor, [String; 3], String) {
    let approvers = ["anna", "bert", "carl"].map(|name| list.add(name, &["--role", "approver"]));
    let planner = agent(list, "planner", AGENT);
    let executor = Executor::start(list.options().set("approvals", json!([{ "required": 2 }])));
    (executor, approvers, planner)
}

/// Writes this list, and waits until the executor has reloaded it.
fn reload(list: &List, executor: &mut Executor, text: &str) {
    std::fs::write(list.path(), text).unwrap();
    let before = executor.process().stderr().matches("callers reloaded").count();
    executor.process().hang_up();
    eventually("the list is read", || {
        (executor.process().stderr().matches("callers reloaded").count() > before).then_some(())
    });
}

#[test]
fn an_approval_counts_no_longer_than_the_entry_of_its_author() {
    let list = List::new();
    let (mut executor, [anna, bert, carl], planner) = two_of_three(&list);
    let until = format!("name = \"anna\"\nexpires_at = \"{}\"", in_seconds(6));
    let text = std::fs::read_to_string(list.path()).unwrap().replace("name = \"anna\"", &until);
    reload(&list, &mut executor, &text);
    let mut client = executor.client();
    let call = intent("write_file", write("file", ESCALATES));
    result(&rpc(&mut client, &planner, "a2g/intent", &call));
    let directive = json!({ "intent_id": call["intent_id"], "decision": "APPROVED" });
    assert_eq!(result(&rpc(&mut client, &anna, "g2a/directive", &directive))[COUNTED], true);
    eventually("her entry expires", || {
        let status =
            ask(&mut client, Some(&bearer(&anna)), "a2g/status", &json!({ "intent_id": call["intent_id"] }));
        (status.status == 401).then(|| assert!(status.text().starts_with("this credential expired at 20")))
    });
    assert_eq!(result(&rpc(&mut client, &bert, "g2a/directive", &directive))[COUNTED], true);
    assert_eq!(executor.file("file"), None);
    assert_eq!(result(&rpc(&mut client, &carl, "g2a/directive", &directive)), &json!({ "accepted": true }));
    eventually("it ran", || executor.file("file"));
    let show = eventually("its receipt", || {
        let show = executor.home().run(&["journal", "show", call["intent_id"].as_str().unwrap()]);
        // The file is there before the receipt is.
        let has_ended = show.status.success() && String::from_utf8_lossy(&show.stdout).contains("SUCCESS");
        has_ended.then_some(show)
    });
    assert!(String::from_utf8_lossy(&show.stdout).contains("bert, carl"), "{show:?}");
}

#[test]
fn a_public_port_requires_a_list_of_callers() {
    let refused = |more: &[&str], words: &str| {
        let home = Home::new(Options::new().signed_only());
        ends(home.command().args(["--listen", "0.0.0.0:0"]).args(more), 2, words);
    };
    refused(&[], "callers are not authenticated: list them in `server.callers`");
    refused(&["--insecure-accept-unsigned"], "only on loopback addresses and sockets");
    let list = List::new();
    agent(&list, "planner", AGENT);
    // Inline tools, which the same tests are run with, are for callers of this machine unless somebody says so.
    let options = list.options().set("executor.containment", "best-effort");
    let open = Executor::start(options.signed_only().argument("--listen").argument("0.0.0.0:0"));
    open.line_with("tokens are sent over the network unencrypted");
}

#[test]
fn caller_commands_show_a_token_once_and_store_only_its_hash() {
    let list = List::new();
    let token = list.add("planner", &["--role", "agent", "--agent", AGENT, "--days", "30"]);
    assert_eq!((token.len(), token.starts_with("a2g_")), (47, true), "{token}");
    list.add("governor", &["--role", "governor", "--certificate", "governor.example"]);
    let path = list.path();
    let path = path.to_str().unwrap();
    let written = std::fs::read_to_string(path).unwrap();
    assert!(!written.contains(&token) && written.contains(&harness::sha256(&token)), "{written}");
    let listed = || -> (Value, String) {
        let json = succeeds(&["caller", "list", "--json", "--callers", path]);
        let table = succeeds(&["caller", "list", "--callers", path]);
        (serde_json::from_slice(&json).unwrap(), String::from_utf8(table).unwrap())
    };
    let (json, table) = listed();
    assert_eq!(json[0]["name"], "planner");
    assert_eq!(json[1]["certificate"], "governor.example");
    assert!(table.contains("a certificate for") && table.contains("a token"), "{table}");
    let about = ["--jwt-issuer", "https://id.example", "--jwt-subject", "anna"];
    let added = list.add("anna", &[&["--role", "approver"], &about[..]].concat());
    assert_eq!(added, "", "there is no token to show");
    let (json, table) = listed();
    assert!(table.contains("a JWT from") && table.contains("anna"), "{table}");
    assert_eq!(json[2]["jwt"], json!({ "issuer": "https://id.example", "subject": "anna" }));
    let operator = ["caller", "new", "x", "--callers", path, "--role", "operator"];
    let [issuer, of, subject, anna] = about;
    for wrong in [
        &["caller", "new", "planner", "--role", "operator", "--callers", path][..],
        &[&operator[..], &[issuer, of]].concat(),
        &[&operator[..], &[subject, anna]].concat(),
        &[&operator[..], &[issuer, "a b", subject, "x"]].concat(),
        &[&operator[..], &[issuer, of, subject, ""]].concat(),
        // Somebody else has that subject already.
        &[&operator[..], &about].concat(),
        &[&operator[..], &["--certificate", "x.example"], &about].concat(),
        &[&operator[..], &["--agent", AGENT]].concat(),
        &["caller", "new", "x", "--role", "root", "--callers", path],
        &["caller", "new", "x", "--role", "agent", "--callers", path],
        &["caller", "remove", "nobody", "--callers", path],
        &["caller", "list", "--callers", "nowhere.toml"],
    ] {
        let output = run(wrong.iter().copied());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{wrong:?}: {output:?}");
    }
}

#[test]
fn tls_certificates_can_be_renewed_while_serving() {
    let authority = Authority::new();
    let list = List::new();
    let token = agent(&list, "planner", AGENT);
    authority.issue("server", vec![dns("executor.test")]);
    let mut executor = Executor::start(authority.serving(list.options(), "server", None));
    let address = executor.address();
    let answer = authority.ask(address, None, Some(&token)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("write_file"), "{answer}");
    assert!(authority.ask(address, None, None).unwrap().starts_with("HTTP/1.1 401 "));
    let plain = HttpClient::connect(address).request("GET", "/health", &[], b"");
    assert_eq!(plain.status, 400, "{plain:?}");
    assert!(
        plain.text().starts_with("plain http is refused: ") && plain.text().contains("use https"),
        "{plain:?}"
    );

    let other = Authority::new();
    other.issue("server", vec![dns("executor.test")]);
    for file in ["server.pem", "server.key"] {
        std::fs::copy(other.path(file), authority.path(file)).unwrap();
    }
    executor.process().hang_up();
    executor.line_with("certificates reloaded");
    assert!(other.ask(address, None, Some(&token)).is_ok());
    assert!(authority.ask(address, None, Some(&token)).is_err(), "the old one is shown no more");
    std::fs::write(authority.path("server.pem"), "nothing").unwrap();
    executor.process().hang_up();
    executor.line_with("the certificates cannot be reloaded, and the old ones stay");
    assert!(other.ask(address, None, Some(&token)).is_ok());
}

#[test]
fn a_client_certificate_authenticates_its_caller() {
    let servers = Authority::new();
    let clients = Authority::new();
    let strangers = Authority::new();
    let list = List::new();
    servers.issue("server", vec![dns("executor.test")]);
    clients.issue("planner", vec![dns("planner.test")]);
    clients.issue("service", vec![SanType::URI("spiffe://test/service".try_into().unwrap())]);
    clients.issue("unlisted", vec![dns("unlisted.test")]);
    clients
        .issue("two", vec![dns("planner.test"), SanType::URI("spiffe://test/service".try_into().unwrap())]);
    strangers.issue("planner", vec![dns("planner.test")]);
    list.add("planner", &["--role", "agent", "--agent", AGENT, "--certificate", "planner.test"]);
    list.add("service", &["--role", "operator", "--certificate", "spiffe://test/service"]);
    let token = list.add("bearer", &["--role", "operator"]);
    let executor = Executor::start(servers.serving(list.options(), "server", Some(&clients)));
    let ask = |certificate, token| servers.ask(executor.address(), certificate, token);
    let status = |answer: Result<String, String>| answer.map(|answer| answer[9..12].to_owned());
    assert_eq!(status(ask(Some((&clients, "planner")), None)).unwrap(), "200");
    assert_eq!(status(ask(Some((&clients, "service")), None)).unwrap(), "200");
    assert_eq!(status(ask(Some((&clients, "unlisted")), None)).unwrap(), "401");
    assert_eq!(status(ask(Some((&clients, "two")), None)).unwrap(), "401", "it names two callers");
    assert_eq!(status(ask(Some((&clients, "unlisted")), Some(&token))).unwrap(), "200");
    assert_eq!(status(ask(Some((&clients, "planner")), Some("wrong"))).unwrap(), "401");
    assert!(ask(Some((&strangers, "planner")), None).is_err(), "another root vouches for it");
    assert!(ask(None, Some(&token)).is_err(), "no certificate, no handshake");
}

#[test]
fn readable_keys_and_unmatched_certificates_are_refused() {
    let authority = Authority::new();
    let list = List::new();
    agent(&list, "planner", AGENT);
    for name in ["server", "other"] {
        authority.issue(name, vec![dns("executor.test")]);
    }
    let refused = |words: &str| assert_unusable(authority.serving(list.options(), "server", None), words);
    set_mode(&authority.path("server.key"), 0o644);
    refused("other users may read");
    std::fs::copy(authority.path("other.key"), authority.path("server.key")).unwrap();
    set_mode(&authority.path("server.key"), 0o600);
    refused("server.pem");
}

/// One request over a socket in a folder.
fn ask_socket(path: &Path, body: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(post_request("/jsonrpc", &["Connection: close"], body).as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn a_unix_socket_is_private_and_removed_at_shutdown() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("executor.sock");
    let home = || Home::new(Options::new().set("server.listen", format!("unix:{}", socket.display())));
    let serve = |home: &Home| {
        let process = Process::spawn("executor", &mut home.command());
        process.line_with("listens on unix:");
        process
    };
    let first = home();
    let second = home();
    let third = home();
    let mut process = serve(&first);
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    let call = json!({ "jsonrpc": "2.0", "method": "a2g/execute", "params": execute("write_file", write("x", "y")), "id": 1 });
    let answer = ask_socket(&socket, &call.to_string()).unwrap();
    assert!(answer.contains(r#""status":"SUCCESS""#), "{answer}");
    ends(&mut second.command(), 1, "another process listens there");
    process.stop();
    assert!(!socket.exists());

    // One that was killed leaves it, and the next one takes its place.
    let mut process = serve(&second);
    process.kill();
    assert!(socket.exists());
    let _process = serve(&third);
    let listed = ask_socket(&socket, r#"{"jsonrpc":"2.0","method":"a2g/tools","id":1}"#).unwrap();
    assert!(listed.contains("write_file"), "{listed}");
}

#[test]
fn an_agent_at_its_share_does_not_delay_others() {
    let list = List::new();
    let greedy = agent(&list, "greedy", AGENT);
    let other = agent(&list, "other", OTHER);
    let options = list.options().set("executor.concurrent", 2).set("executor.concurrent_per_agent", 1);
    let options = options.set("executor.queue", 8).set("executor.queue_per_agent", 2);
    let executor = Executor::start(options.catalogue(&methods::catalogue()));
    let address = executor.address();
    std::thread::scope(|scope| {
        let calls = [0; 3].map(|_| execute("gate", json!({})));
        let callers = calls.clone().map(|call| {
            let token = greedy.clone();
            scope.spawn(move || rpc(&mut HttpClient::connect(address), &token, "a2g/execute", &call))
        });
        let mut client = executor.client();
        eventually("its share is full", || {
            let known = |call: &Value| {
                rpc(&mut client, &greedy, "a2g/status", &json!({ "intent_id": id_of(call) }))
                    .get("result")
                    .is_some()
            };
            let one_runs = executor.file("runs").is_some_and(|runs| !runs.is_empty());
            (one_runs && calls.iter().all(known)).then_some(())
        });
        let answer = rpc(&mut client, &greedy, "a2g/execute", &execute("write_file", write("too-much", "x")));
        let full = error(&answer, -32003);
        assert!(full["message"].as_str().unwrap().contains("of this agent"), "{full}");
        assert!(full["data"]["retry_after_ms"].is_u64(), "{full}");
        let mut call = execute("write_file", write("other", "x"));
        call["intent"]["agent_did"] = json!(OTHER);
        let answer = rpc(&mut client, &other, "a2g/execute", &call);
        assert_eq!(result(&answer)["status"], "SUCCESS", "{answer}");
        assert_eq!(executor.file("runs").unwrap().len(), 1, "one of the greedy agent's runs at a time");
        executor.open_the_gate();
        for caller in callers {
            assert_eq!(result(&caller.join().unwrap())["status"], "SUCCESS");
        }
    });
}
