//! A journal of another server, and one of another format.

use harness::{
    Catalogue, EXECUTOR, Executor, FakeGovernor, GATE, Home, Keys, Options, Process, Reply, Tool,
    assert_chain_holds, error, eventually, result, set_mode,
};
use rusqlite::Connection;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A file of `tests/journals`.
fn golden_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("journals").join(name)
}

/// A place with the journal of a server that was killed.
fn home(options: Options) -> Home {
    let home = Home::new(options);
    std::fs::create_dir(home.journal().parent().unwrap()).unwrap();
    std::fs::copy(golden_file("served-1.db"), home.journal()).unwrap();
    set_mode(&home.journal(), 0o600);
    home
}

/// Takes every report, and knows nothing else.
fn governor() -> FakeGovernor {
    FakeGovernor::start(|_, _| Reply::Result(json!({ "accepted": true })))
}

#[test]
fn a_journal_of_another_format_is_refused_with_advice() {
    let home = home(Options::new());
    let connection = Connection::open(home.journal()).unwrap();
    connection.execute_batch("PRAGMA user_version = 2").unwrap();
    drop(connection);
    let before = std::fs::read(home.journal()).unwrap();
    let mut process = Process::spawn("executor", &mut home.command());
    assert_eq!(process.wait_for_exit().code(), Some(1));
    let said = process.whole_stderr();
    assert!(said.contains("has format 2") && said.contains("begin another with `journal.path`"), "{said}");
    let listed = home.run(&["journal", "list"]);
    assert!(String::from_utf8_lossy(&listed.stderr).contains("has format 2"), "{listed:?}");
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

/// An approved intent of that time runs, once; nothing else does.
#[test]
fn a_journal_of_another_server_goes_on() {
    let governor = governor();
    let keys = Keys::new();
    let catalogue = Catalogue::with_tools().add(Tool::command("gate", GATE));
    let options = Options::new().catalogue(&catalogue).governor(&governor.url());
    let options = options.set("executor.did", EXECUTOR).set("trust.keys", json!(keys.trusted_folder()));
    let text = std::fs::read_to_string(golden_file("served-1.json")).unwrap();
    let mut told = serde_json::from_str::<Value>(&text).unwrap();
    // The key of that time is gone.
    told.as_object_mut().unwrap().remove("proven");
    let mut executor = Executor::start_in(home(options));
    for _ in 0..2 {
        assert_known(&executor, &told);
        eventually("what was approved runs", || executor.file("approved"));
        let ran = std::fs::read_dir(executor.workspace()).unwrap().count();
        assert_eq!(ran, 1, "nothing of it runs again");
        executor = Executor::start_in(executor.kill());
    }
    let checkpoint = "11:7b360c8db2b1b8ecdc88b710a2980e41bdbb2e94cb4c12c6242eb6e7baa49ba0";
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
