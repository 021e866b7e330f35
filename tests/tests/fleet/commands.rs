//! What `fleet status` and `fleet drain` say of nodes that have died.

use super::{Fleet, LEASE};
use crate::harness::*;
use serde_json::json;

#[test]
fn a_dead_node_is_lost_and_has_the_age_of_its_last_sign_of_life() {
    let Some(fleet) = Fleet::start() else { return };
    let one = fleet.node("one");
    let live = fleet.wait_for(one.home(), "one", |node| node["state"] == "live");
    assert!(live["seen_seconds_ago"].as_u64().unwrap() < LEASE.as_secs() && live["running"] == 0, "{live}");
    // No other node takes over.
    let home = one.kill();
    let lost = fleet.wait_for(&home, "one", |node| node["state"] == "lost");
    assert!(lost["seen_seconds_ago"].as_u64().unwrap() >= LEASE.as_secs(), "{lost}");
    for figure in ["taken_over_by", "running", "queued", "waiting", "undelivered"] {
        assert!(lost[figure].is_null(), "{figure}: {lost}");
    }
    let shown = home.run(&["fleet", "status"]);
    let table = String::from_utf8(shown.stdout).unwrap();
    assert!(table.contains("lost") && table.contains(" s ago"), "{table}");
}

/// What a drain that fails says.
fn failed_drain(home: &Home, arguments: &[&str]) -> String {
    let drained = home.run(&[&["fleet", "drain"], arguments].concat());
    assert_eq!(drained.status.code(), Some(1), "{drained:?}");
    String::from_utf8(drained.stderr).unwrap()
}

#[test]
fn a_dead_node_is_not_drained_for_ever() {
    let Some(fleet) = Fleet::start() else { return };
    let one = fleet.node("one");
    let (address, call) = (one.address(), execute("gate", json!({})));
    let caller = std::thread::spawn(move || HttpClient::ask(address, "a2g/execute", &call));
    one.wait_at_the_gate(1);
    let home = one.kill();
    assert_eq!(caller.join().unwrap(), None);
    // Asked before the lease has ended, and after that.
    let lost = failed_drain(&home, &["one"]);
    assert!(lost.contains("`one` was lost before it left: it has not renewed its lease for "), "{lost}");
    for arguments in [&["one"][..], &["one", "--no-wait"]] {
        let refused = failed_drain(&home, arguments);
        assert!(refused.contains("no running node `one`: it has not renewed its lease for "), "{refused}");
        assert!(refused.contains("ends what it left open (1) as ABORTED"), "{refused}");
    }
    // The next process of the node was not asked.
    let one = Executor::start_in(home);
    let two = fleet.node("two");
    fleet.wait_for(two.home(), "one", |node| node["state"] == "live");
    let _home = one.kill();
    let lost = failed_drain(two.home(), &["one"]);
    assert!(lost.contains("`one` was lost before it left: "), "{lost}");
    fleet.wait_for(two.home(), "one", |node| node["taken_over_by"] == "two");
    let refused = failed_drain(two.home(), &["one"]);
    assert!(refused.contains("no running node `one`: `two` took over "), "{refused}");
    assert!(failed_drain(two.home(), &["three"]).contains("no running node `three`"));
}
