//! What `fleet status` and `fleet drain` say of nodes that have died, and what people read if a fleet cannot be used.

use super::{Fleet, Guarded, KEY, LEASE};
use harness::*;
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
    let seen = lost["seen_seconds_ago"].as_u64().unwrap();
    // Asked again and again, it is lost soon after its lease has ended.
    assert!((LEASE.as_secs()..LEASE.as_secs() * 3 / 2).contains(&seen), "{lost}");
    for figure in ["taken_over_by", "running", "queued", "waiting", "undelivered"] {
        assert!(lost[figure].is_null(), "{figure}: {lost}");
    }
    let shown = home.run(&["fleet", "status"]);
    let table = String::from_utf8(shown.stdout).unwrap();
    assert!(table.contains("lost") && table.contains(" s ago"), "{table}");
    let two = fleet.node("two");
    let taken = fleet.wait_for(two.home(), "one", |node| node["taken_over_by"] == "two");
    for figure in ["running", "queued", "waiting", "concurrent", "undelivered"] {
        assert!(taken[figure].is_null() || taken[figure] == 0, "{figure}: {taken}");
    }
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

#[test]
fn a_wrong_key_is_named_and_nothing_is_listed() {
    let Some(fleet) = Fleet::start() else { return };
    let refused = |home: &Home, command: &[&str]| {
        let output = home.run(&[&["fleet"], command].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("cannot be authenticated: the key in `fleet.key_file`"), "{said}");
        assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{output:?}");
    };
    // The one lease was written with another key.
    let subject = fleet.subject("node.ghost");
    let stored = fleet.servers.ask(0, &subject, &json!({ "epoch": 1 })).unwrap();
    assert!(stored["seq"].is_u64(), "{stored}");
    refused(&Home::new(fleet.options("two")), &["status"]);
    let _one = fleet.node("one");
    let other = fleet.key_file("other.key", &KEY.replace('0', "f"));
    let home = Home::new(fleet.options("two").set("fleet.key_file", json!(other)));
    for command in [&["status"][..], &["status", "--json"], &["drain", "one"], &["init"]] {
        refused(&home, command);
    }
    let mut process = Process::spawn("executor", &mut home.command());
    assert_eq!(process.wait_for_exit().code(), Some(2), "{}", process.stderr());
}

#[test]
fn a_fleet_that_cannot_be_used_is_named_with_its_servers_and_what_to_do() {
    let Some((fleet, guarded)) = Fleet::start().zip(Guarded::start()) else { return };
    let stream = json!({ "name": "A2G_foreign", "subjects": ["a2g.foreign.>"], "description": "of others" });
    fleet.servers.ask(0, "$JS.API.STREAM.CREATE.A2G_foreign", &stream).unwrap();
    let two = || fleet.options("two");
    let guarded_by = |file: &str| {
        let options = two().set("fleet.servers", json!(guarded.plain.urls()));
        options.set("fleet.nkey_file", guarded.file(file))
    };
    let cases = [
        (
            two().set("fleet.servers", json!(["nats://127.0.0.1:1"])),
            "no server listens there",
            "check `fleet.servers`",
        ),
        (guarded_by("unknown.nk"), "the server refuses the login", "`fleet.nkey_file`"),
        (guarded_by("poor.nk"), "JetStream is off for this login", "need JetStream"),
        (
            two().set("fleet.name", "none"),
            "no stream of the fleet `none`",
            "run `a2g-executor fleet init` once",
        ),
        (two().set("fleet.name", "foreign"), "it has `of others`", "choose another `fleet.name`"),
    ];
    for (options, failed, next) in cases {
        let name = options.get("fleet.name").as_str().unwrap().to_owned();
        let server = options.get("fleet.servers")[0].as_str().unwrap().to_owned();
        let place = format!("the fleet `{name}` at {server} cannot be used: ");
        let home = Home::new(options);
        let shown = home.run(&["fleet", "status"]);
        assert_eq!(shown.status.code(), Some(1), "{shown:?}");
        let mut process = Process::spawn("executor", &mut home.command());
        assert_eq!(process.wait_for_exit().code(), Some(1));
        for said in [String::from_utf8(shown.stderr).unwrap(), process.whole_stderr()] {
            assert!(said.contains(&place) && said.contains(failed) && said.contains(next), "{said}");
        }
    }
}

#[test]
fn a_cluster_without_a_majority_is_named_as_such() {
    let Some(servers) = NatsServers::start(3) else { return };
    let mut fleet = Fleet::with(servers);
    fleet.servers.kill(0);
    fleet.servers.kill(1);
    let home = Home::new(fleet.options("two"));
    // A leader notices only after some seconds that it has lost its majority.
    let said = eventually("no figures are shown", || {
        let shown = home.run(&["fleet", "status"]);
        (!shown.status.success()).then(|| String::from_utf8(shown.stderr).unwrap())
    });
    let place = format!("the fleet `tests` at {} cannot be used: ", fleet.servers.urls().join(", "));
    assert!(said.contains(&place) && said.contains("majority"), "{said}");
}

#[test]
fn a_node_that_was_killed_before_its_first_receipt_does_not_wait_for_its_own_lease() {
    let Some(fleet) = Fleet::start() else { return };
    let home = fleet.node("one").kill();
    let one = Executor::start_in(home);
    assert!(!one.stderr().contains("for the lease of its earlier process"), "{}", one.stderr());
    let status = fleet.wait_for(one.home(), "one", |node| node["state"] == "live");
    assert_eq!(status["receipts"], 0, "{status}");
}
