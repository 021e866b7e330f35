//! Servers that lose what they have stored, and what becomes of claims and reports.

use super::{Fleet, append, init, refusal, wait_at_the_gate, written};
use harness::*;
use serde_json::{Value, json};
use std::process::Output;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks that a node refuses a call because the claims are gone.
fn expect_gone(node: &Executor, call: &Value) {
    eventually("the node knows that the claims are gone", || {
        let refused = node.rpc("a2g/execute", call);
        assert!(refused["error"]["data"]["retry_after_ms"].is_u64(), "{refused}");
        let message = refused["error"]["message"].as_str()?;
        (message.contains("the claims of the fleet `tests` are gone") && message.contains("fleet init --new"))
            .then_some(())
    });
    let health = node.client().request("GET", "/health", &[], b"");
    assert!(health.status == 503 && health.text().contains("the claims of the fleet are gone"), "{health:?}");
}

/// Waits until a node has noticed that the stream has another identity, or none.
fn wait_for_the_renewal(node: &Executor) {
    eventually("the node is not healthy", || {
        (node.client().request("GET", "/health", &[], b"").status == 503).then_some(())
    });
}

/// The entry of an intent in the list of a journal.
fn listed(home: &Home, call: &Value) -> Option<Value> {
    home.list_journal(&[]).into_iter().find(|entry| entry["intent_id"] == id_of(call))
}

#[test]
fn an_intent_runs_once_although_the_servers_lose_its_claim() {
    let Some(mut fleet) = Fleet::start() else { return };
    let (one, two) = (fleet.node("one"), fleet.node("two"));
    let [first, second] = [&one, &two].map(|node| {
        let call = append("x");
        assert_eq!(result(&node.rpc("a2g/execute", &call))["status"], "SUCCESS");
        call
    });
    let (running, caller) = wait_at_the_gate(&one);
    fleet.servers.lose(0);
    let streams = || fleet.servers.ask(0, "$JS.API.STREAM.NAMES", &json!({})).unwrap()["total"].clone();
    // Repeats at the node that has not run them.
    for (node, call) in [(&one, &second), (&two, &first)] {
        expect_gone(node, call);
    }
    for command in [&["status"][..], &["drain", "one"], &["init"]] {
        let refused = two.home().run(&[&["fleet"], command].concat());
        let said = said(&refused);
        assert!(!refused.status.success() && said.contains("are gone") && said.contains("--new"), "{said}");
    }
    let told = refusal(fleet.options("three"));
    assert!(told.contains("no stream of the fleet `tests`"), "{told}");
    assert_eq!(streams(), 0);
    // Somebody without a journal makes the fleet anew, and a new node joins it. The others do not.
    let created = init(fleet.options("four"), &[]);
    assert!(created.status.success(), "{}", said(&created));
    let three = fleet.node("three");
    assert_eq!(result(&three.rpc("a2g/execute", &append("y")))["status"], "SUCCESS");
    expect_gone(&two, &first);
    let home = two.kill();
    let mut process = Process::spawn("executor", &mut home.command());
    assert!(!process.wait_for_exit().success());
    let told = process.whole_stderr();
    assert!(told.contains("the servers have another one"), "{told}");
    // An operator accepts the loss.
    for state in ["start its nodes", "already"] {
        let accepted = home.run(&["fleet", "init", "--new"]);
        let said = said(&accepted);
        assert!(accepted.status.success() && said.contains(state), "{said}");
    }
    let pending = caller.join().unwrap();
    assert!(pending["error"]["data"]["retry_after_ms"].is_u64(), "{pending}");
    let [one, two] = [one.kill(), home].map(Executor::start_in);
    // Each node has its own intents in its journal.
    for (node, call) in [(&one, &first), (&two, &second)] {
        assert_eq!(result(&node.rpc("a2g/execute", call))["status"], "SUCCESS");
    }
    assert_eq!((written(&[&one]), written(&[&two])), ("x".to_owned(), "x".to_owned()));
    // The run that the loss has interrupted has one end and one report at all nodes.
    for node in [&one, &two, &three] {
        let end = node.rpc("a2g/execute", &running);
        assert_eq!(error(&end, -32001)["data"]["report"]["status"], "ABORTED", "{end}");
    }
    assert_eq!(one.runs_of_the_gate() + two.runs_of_the_gate() + three.runs_of_the_gate(), 1);
    assert_eq!(fleet.reports_of(&id_of(&running)).len(), 1);
    assert_eq!(result(&two.rpc("a2g/execute", &append("z")))["status"], "SUCCESS");
    for node in [&one, &two] {
        let verified = node.home().run(&["journal", "verify"]);
        assert!(verified.status.success(), "{}", said(&verified));
    }
    // The journals remember the stream that has replaced theirs, and no longer the first one only.
    let [one, _two] = [one.kill(), two.kill()].map(Executor::start_in);
    assert_eq!(result(&one.rpc("a2g/execute", &append("z")))["status"], "SUCCESS");
}

#[test]
fn a_stream_made_again_with_the_same_subjects_is_another_one() {
    let Some(fleet) = Fleet::start() else { return };
    let node = fleet.node("one");
    let call = append("x");
    assert_eq!(result(&node.rpc("a2g/execute", &call))["status"], "SUCCESS");
    let ask = |request: &str, body: &Value| {
        fleet.servers.ask(0, &format!("$JS.API.STREAM.{request}.A2G_tests"), body).unwrap()
    };
    // Somebody makes the stream again from its configuration, and initialises it without a node's journal.
    let config = ask("INFO", &json!({}))["config"].clone();
    assert_eq!(ask("DELETE", &json!({}))["success"], true);
    let made = ask("CREATE", &config);
    assert_eq!(made["config"]["subjects"], config["subjects"], "{made}");
    let created = init(fleet.options("two"), &[]);
    assert!(created.status.success(), "{}", said(&created));
    wait_for_the_renewal(&node);
    expect_gone(&node, &append("y"));
    let home = node.kill();
    let refused = home.run(&["fleet", "init"]);
    assert!(!refused.status.success() && said(&refused).contains("another one"), "{}", said(&refused));
    // An operator accepts that; later, somebody empties the stream.
    let accepted = home.run(&["fleet", "init", "--new"]);
    assert!(accepted.status.success(), "{}", said(&accepted));
    let node = Executor::start_in(home);
    assert_eq!(result(&node.rpc("a2g/execute", &append("y")))["status"], "SUCCESS");
    assert_eq!(ask("PURGE", &json!({}))["success"], true);
    wait_for_the_renewal(&node);
    expect_gone(&node, &append("z"));
    let unknown = init(fleet.options("two"), &[]);
    assert!(
        !unknown.status.success() && said(&unknown).contains("has lost what it had"),
        "{}",
        said(&unknown)
    );
    // The emptied stream gets a new identity, which a running node notices.
    let accepted = node.home().run(&["fleet", "init", "--new"]);
    assert!(accepted.status.success(), "{}", said(&accepted));
    expect_gone(&node, &append("z"));
    let node = Executor::start_in(node.kill());
    assert_eq!(result(&node.rpc("a2g/execute", &append("z")))["status"], "SUCCESS");
    assert_eq!(result(&node.rpc("a2g/execute", &call))["status"], "SUCCESS");
    assert_eq!(written(&[&node]), "xyz");
}

#[test]
fn a_report_counts_as_delivered_only_once_the_governor_has_it() {
    let Some(mut fleet) = Fleet::start() else { return };
    let (mut one, two) = (fleet.node("one"), fleet.node("two"));
    let (lost, caller) = wait_at_the_gate(&one);
    // The servers come back with an older copy of the stream, without the claim.
    for key in ["claim.>", "open.>"] {
        let filter = json!({ "filter": fleet.subject(key) });
        let purged = fleet.servers.ask(0, "$JS.API.STREAM.PURGE.A2G_tests", &filter).unwrap();
        assert_eq!(purged["success"], true, "{purged}");
    }
    fleet.governor.stop();
    one.open_the_gate();
    assert_eq!(result(&caller.join().unwrap())["status"], "SUCCESS");
    // Another run ends while its node is lost, and so does the node that has ended it.
    std::fs::remove_file(one.workspace().join("go")).unwrap();
    let call = execute("gate", json!({ "second": true }));
    let second = call_in_background(&one, "a2g/execute", &call);
    one.wait_at_the_gate(2);
    one.process().pause();
    fleet.wait_for(two.home(), "one", |node| node["taken_over_by"] == "two");
    eventually("the run has its end", || {
        (two.rpc("a2g/execute", &call)["error"]["data"]["report"]["status"] == "ABORTED").then_some(())
    });
    let _home = two.kill();
    one.process().resume();
    error(&second.join().unwrap(), -32001);
    one.line_with("the delivery of a report failed");
    for call in [&lost, &call] {
        let entry = eventually("the journal has the receipt", || listed(one.home(), call));
        assert_eq!(entry["delivered"], false, "{entry}");
    }
    fleet.governor.restart();
    for (call, status) in [(&lost, "SUCCESS"), (&call, "ABORTED")] {
        let reports = fleet.reports_of(&id_of(call));
        assert!(reports.iter().all(|report| report["status"] == status), "{reports:?}");
        eventually("the journal knows of the delivery", || {
            (listed(one.home(), call)?["delivered"] == true).then_some(())
        });
    }
    fleet.wait_for(one.home(), "one", |node| node["open"] == 0 && node["undelivered"] == 0);
}
