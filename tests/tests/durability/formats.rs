//! Journals of every format that there was, written by the versions that had it, and served by the built one.

use super::assert_chain_holds;
use crate::harness::{
    Catalogue, EXECUTOR, Executor, FakeGovernor, GATE, Home, Keys, Options, Process, Reply, Tool, error,
    eventually, result, set_mode,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The folder of the journals, and of what those who called were answered then.
fn journals() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("journals")
}

/// A place with a journal of a format. Keep one file of each, for ever.
fn home(options: Options, format: u32) -> Home {
    let home = Home::new(options);
    std::fs::create_dir(home.journal().parent().unwrap()).unwrap();
    std::fs::copy(journals().join(format!("format-{format}.db")), home.journal()).unwrap();
    set_mode(&home.journal(), 0o600);
    home
}

fn golden_file(format: u32) -> Value {
    let text = std::fs::read_to_string(journals().join(format!("format-{format}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Takes every report, and knows nothing else.
fn governor() -> FakeGovernor {
    FakeGovernor::start(|_, _| Reply::Result(json!({ "accepted": true })))
}

#[test]
fn a_journal_of_format_1_is_refused_with_advice() {
    let home = home(Options::new(), 1);
    let before = std::fs::read(home.journal()).unwrap();
    let mut process = Process::spawn("executor", &mut home.command());
    assert_eq!(process.wait_for_exit().code(), Some(1));
    let said = process.whole_stderr();
    assert!(said.contains("has format 1") && said.contains("begin another with `journal.path`"), "{said}");
    let listed = home.run(&["journal", "list"]);
    assert!(String::from_utf8_lossy(&listed.stderr).contains("has format 1"), "{listed:?}");
    assert_eq!(std::fs::read(home.journal()).unwrap(), before);
}

/// A repeated call gets the answer that was given when it was written.
fn assert_known(executor: &Executor, told: &Value) {
    for (name, said) in told.as_object().unwrap() {
        let Some(call) = said.get("call") else { continue };
        let method = if call.get("intent").is_some() { "a2g/execute" } else { "a2g/intent" };
        let again = executor.rpc(method, call);
        match (name.split(' ').next().unwrap(), said.get("result"), said.get("error")) {
            ("execute", ..) => {
                let message = error(&again, -32600)["message"].as_str().unwrap().to_owned();
                assert!(message.contains("already ran"), "{name}: {message}");
            }
            ("cut", ..) => {
                let report = &error(&again, -32001)["data"]["report"];
                assert_eq!(report["status"], "ABORTED", "{name}: {again}");
            }
            (_, Some(answer), _) => assert_eq!(result(&again), answer, "{name}"),
            (_, _, Some(failure)) => assert_eq!(&again["error"], failure, "{name}"),
            (_, None, None) => panic!("{name} has no answer"),
        }
    }
}

/// A journal of an older version goes on in this one: in `expected` files of runs that it had been told to begin.
fn goes_on(format: u32, checkpoint: &str, expected: &[&str]) {
    let governor = governor();
    let keys = Keys::new();
    let catalogue = Catalogue::with_tools().add(Tool::command("gate", GATE));
    let options = Options::new().catalogue(&catalogue).governor(&governor.url());
    let options = options.set("executor.did", EXECUTOR).set("trust.keys", json!(keys.trusted_folder()));
    let home = home(options, format);
    let before = std::fs::read(home.journal()).unwrap();
    let mut told = golden_file(format);
    let all = told.as_object_mut().unwrap();
    // The key of that time is gone, and a version that forgot what it denied would ask again.
    all.remove("proven");
    all.retain(|name, said| name != "escalated DENIED" || said.get("error").is_some());
    let mut executor = Executor::start_in(home);
    for _ in 0..2 {
        assert_known(&executor, &told);
        for file in expected {
            eventually("what was approved runs", || executor.file(file));
        }
        let ran = std::fs::read_dir(executor.workspace()).unwrap().count();
        assert_eq!(ran, expected.len(), "nothing of it runs again");
        executor = Executor::start_in(executor.kill());
    }
    if format < 3 {
        let kept = executor.home().journal().with_file_name(format!("journal.db.format-{format}"));
        assert_eq!(std::fs::read(kept).unwrap(), before);
    }
    let verified = executor.home().run(&["journal", "verify", "--checkpoint", checkpoint]);
    assert!(verified.status.success(), "{verified:?}");
    eventually("the reports of that time are delivered", || {
        executor.home().list_journal(&["--undelivered"]).is_empty().then_some(())
    });
    let reports = governor.seen().into_iter().filter(|(method, _)| method == "a2g/report").count();
    assert!(reports >= 4, "{reports}");
    // The intents that waited still wait.
    let waiting = told["escalated none"]["call"].clone();
    let directive = json!({ "intent_id": waiting["intent_id"], "decision": "APPROVED" });
    result(&executor.rpc("g2a/directive", &directive));
    eventually("it ran", || executor.file("escalated"));
    assert_chain_holds(executor.home());
}

#[test]
fn a_journal_of_format_2_is_converted_and_used() {
    goes_on(2, "11:fb5204d0123d44030198700c9e482ccb48e1a8e50529f0ce81a877b833ad24ef", &[]);
}

#[test]
fn a_journal_of_format_3_is_used() {
    goes_on(3, "11:311b987f2d965925a4b2e56943484861ad32f4d12a5843f5734ae1d4b0169061", &["approved"]);
}

#[test]
fn read_commands_name_the_command_that_converts_a_journal() {
    let home = home(Options::new(), 2);
    let listed = home.run(&["journal", "list"]);
    assert!(String::from_utf8_lossy(&listed.stderr).contains("`serve` converts it"), "{listed:?}");
}
