//! What `fleet status` and `fleet drain` say of nodes that have died.

use super::{Fleet, LEASE};
use crate::harness::*;

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
