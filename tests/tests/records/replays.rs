//! W8 of the threats: what was used stays used, however many bring it again, whatever happens to the
//! process in between, and, as far as that can be, to its journal.

use harness::proofs::{append, at_once, of_one_identifier, runs, trusting};
use harness::*;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

#[test]
fn used_proofs_are_remembered_after_each_restart() {
    let keys = Keys::new();
    let mut executor = Executor::start(trusting(&keys));
    let calls = of_one_identifier(&keys, 65);
    let (used, others) = calls.split_first().unwrap();
    // 64 clients have it at once, before it has run and after that.
    let ran = at_once(&executor, &vec![used.clone(); 64]).swap_remove(0);
    assert_eq!((runs(&executor), executor.wait_for_reports(1).len()), (1, 1));
    for round in 0..3 {
        for answer in at_once(&executor, &vec![used.clone(); 64]) {
            assert_eq!(result(&answer), result(&ran), "round {round}");
        }
        for answer in at_once(&executor, others) {
            assert!(
                expect_blocked(&answer, "verdict_replayed").contains("already used"),
                "{round}: {answer}"
            );
        }
        assert_eq!(runs(&executor), 1, "round {round}");
        // First by a crash, and then in good order.
        if round == 1 {
            executor.process().stop();
        }
        executor = Executor::start_in(executor.kill());
    }
    assert_eq!(executor.home().list_journal(&[]).len(), 1);
    assert!(executor.wait_for_reports(1).iter().all(|report| report == result(&ran)));
}

/// 64 clients are at it when the server dies, and again when it is back.
#[test]
fn a_server_killed_amid_64_clients_has_run_their_proof_at_most_once() {
    let keys = Keys::new();
    let mut executor = Executor::start(trusting(&keys));
    for round in 0..4 {
        let file = format!("log{round}");
        let mut call = append();
        call["intent"]["arguments"]["path"] = json!(format!("/workspace/{file}"));
        let call = keys.proven(call);
        let address = executor.address();
        let home = std::thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| HttpClient::ask(address, "a2g/execute", &call));
            }
            std::thread::sleep(Duration::from_millis(10 + 15 * round));
            executor.kill()
        });
        executor = Executor::start_in(home);
        let answers = at_once(&executor, &vec![call; 64]);
        let ran = executor.file(&file).map_or(0, |log| log.len());
        for answer in &answers {
            // An interrupted run is not repeated, and every client gets the report that says so.
            let report = answer.get("result").unwrap_or(&answer["error"]["data"]["report"]);
            let first = answers[0].get("result").unwrap_or(&answers[0]["error"]["data"]["report"]);
            assert_eq!(report, first, "{answer}");
            match report["status"].as_str() {
                Some("SUCCESS") => assert_eq!(ran, 1, "round {round}"),
                Some("ABORTED") => assert!(ran <= 1, "round {round}: {ran} runs"),
                _ => panic!("{answer}"),
            }
        }
    }
}

/// D7 of the threats. Of what ran since an older copy was made, that copy knows nothing. An executor that is given one
/// refuses it, because of the marker beside it; whoever takes that away as well has a proof run again that has not
/// expired, and `docs/operations.md` says what to wait for before a backup serves. What is promised then is that it
/// shows: to the governor, which has the checkpoints, and to whoever kept one.
#[test]
fn an_older_copy_of_the_journal_is_detected_by_a_checkpoint() {
    let keys = Keys::new();
    let governor = Governor::start(&[]);
    let options = trusting(&keys).governor(&governor.http_url()).set("governor.heartbeat_seconds", 1);
    let executor = Executor::start(options);
    result(&executor.rpc("a2g/execute", &keys.proven(append())));
    let older = stop(executor);
    let copy = tempfile::tempdir().unwrap();
    copy_files(&older.journal(), &copy.path().join("journal.db"));

    let executor = Executor::start_in(older);
    let since = keys.proven(append());
    result(&executor.rpc("a2g/execute", &since));
    assert_eq!(runs(&executor), 2);
    // The governor has heard of both.
    governor.line_with("\"2:");
    let home = stop(executor);
    let journal = home.journal().to_str().unwrap().to_owned();
    let kept: Value =
        serde_json::from_slice(&succeeds(&["journal", "verify", "--json", "--journal", &journal])).unwrap();
    let kept = kept["found"]["checkpoint"].as_str().unwrap();
    assert!(!governor.stderr().contains("was truncated or replaced"), "{}", governor.stderr());

    copy_files(&copy.path().join("journal.db"), &home.journal());
    let mut refused = Process::spawn("executor", &mut home.command());
    assert_eq!(refused.wait_for_exit().code(), Some(1));
    assert!(refused.whole_stderr().contains("lacks its last records"), "{}", refused.stderr());
    std::fs::remove_file(home.journal().with_file_name("journal.db.lock")).unwrap();
    let executor = Executor::start_in(home);
    // It goes on at once, past where the history was that is lost.
    assert_eq!(result(&executor.rpc("a2g/execute", &since))["status"], "SUCCESS");
    for _ in 0..3 {
        result(&executor.rpc("a2g/execute", &keys.proven(append())));
    }
    assert_eq!(runs(&executor), 6, "it cannot know that one of them ran before");
    governor.line_with("was truncated or replaced");
    let output = run(["journal", "verify", "--checkpoint", kept, "--journal", &journal]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Copies a journal that nobody writes, in the place of another.
fn copy_files(from: &Path, to: &Path) {
    for file in ["journal.db", "journal.db-wal", "journal.db-shm"] {
        let from = from.with_file_name(file);
        let to = to.with_file_name(file);
        if from.exists() {
            std::fs::copy(&from, &to).unwrap();
        } else {
            let _there_was_none = std::fs::remove_file(&to);
        }
    }
}

/// Stops it in good order, and gives its folders.
fn stop(mut executor: Executor) -> Home {
    executor.process().stop();
    executor.kill()
}
