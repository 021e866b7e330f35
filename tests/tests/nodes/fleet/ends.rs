//! Nodes that end between the claim of a run and its start record, or soon after.

use super::Fleet;
use harness::*;
use serde_json::json;
use std::path::Path;

fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Kills a node while it runs the gate, and gives it back the journal from before the call: the node has claimed the
/// intent, and its journal has no start. `two` runs meanwhile, if there is such a node.
fn lose_the_start(fleet: &Fleet, two: Option<&Executor>) {
    let mut one = fleet.node("one");
    one.process().stop();
    let home = one.kill();
    let state = home.journal().parent().unwrap().to_owned();
    let copy = tempfile::tempdir().unwrap();
    copy_files(&state, copy.path());
    let one = Executor::start_in(home);
    let (address, call) = (one.address(), execute("gate", json!({})));
    let params = call.clone();
    let caller = std::thread::spawn(move || HttpClient::ask(address, "a2g/execute", &params));
    one.wait_at_the_gate(1);
    let home = one.kill();
    assert_eq!(caller.join().unwrap(), None);
    for entry in std::fs::read_dir(&state).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    copy_files(copy.path(), &state);
    if let Some(two) = two {
        fleet.wait_for(two.home(), "one", |node| node["taken_over_by"] == "two" && node["open"] == 0);
        assert_eq!(fleet.reports_of(&id_of(&call))[0]["status"], "ABORTED");
    }
    let one = Executor::start_in(home);
    let recorded = eventually("the journal has the end", || {
        let listed = one.home().list_journal(&[]);
        listed.into_iter().find(|entry| entry["intent_id"] == id_of(&call))
    });
    assert_eq!(recorded["status"], "ABORTED", "{recorded}");
    if let Some(two) = two {
        assert_eq!(two.home().list_journal(&[]).len(), 0);
    }
    fleet.wait_for(one.home(), "one", |node| node["open"] == 0 && node["undelivered"] == 0);
    assert_eq!(fleet.reports_of(&id_of(&call)).len(), 1);
    assert_eq!(error(&one.rpc("a2g/execute", &call), -32001)["data"]["report"]["status"], "ABORTED");
    assert_eq!(one.runs_of_the_gate(), 1);
    let verified = one.home().run(&["journal", "verify"]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
}

#[test]
fn an_end_that_another_node_wrote_reaches_the_journal_of_the_node_that_had_the_claim() {
    let Some(fleet) = Fleet::start() else { return };
    let two = fleet.node("two");
    lose_the_start(&fleet, Some(&two));
}

#[test]
fn an_end_that_the_node_itself_wrote_at_its_restart_reaches_its_journal() {
    let Some(fleet) = Fleet::start() else { return };
    lose_the_start(&fleet, None);
}

/// The other nodes know of a run, and of its end before the journal of its node has it.
#[test]
fn every_start_of_a_node_is_on_the_disk_before_its_run() {
    let Some(fleet) = Fleet::start() else { return };
    let forever =
        r#"(module (memory (export "memory") 1) (func (export "_start") (loop $forever (br $forever))))"#;
    let catalogue = Catalogue::empty().add(Tool::command("reads", forever).filesystem("read"));
    let one = Executor::start(fleet.options("one").catalogue(&catalogue));
    // The marker names the last record that is known to be on the disk.
    let marker = || std::fs::read_to_string(one.home().journal().with_file_name("journal.db.lock")).unwrap();
    let before = marker();
    let call = execute("reads", json!({}));
    let answer = call_in_background(&one, "a2g/execute", &call);
    eventually("it runs", || (one.state_of(&call) == "running").then_some(()));
    assert_ne!(marker(), before);
    one.rpc("a2g/cancel", &json!({ "intent_id": id_of(&call) }));
    answer.join().unwrap();
}
