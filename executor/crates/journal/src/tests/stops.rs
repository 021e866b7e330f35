//! Stops: what is in force after restarts and pruning, and every change of their table.

use super::*;
use crate::prune;
use a2g_types::stop::{OperatorReason, Stop, StopTarget};

const FAR: OffsetDateTime = time::macros::datetime!(2030-01-01 0:00 UTC);

fn agent() -> StopTarget {
    StopTarget::Agent(AgentDid::parse("did:a:b").unwrap())
}

fn tool() -> StopTarget {
    StopTarget::Tool(ToolName::parse("t").unwrap())
}

fn stop(target: StopTarget, reason: &str) -> Stop {
    Stop { target, reason: OperatorReason::parse(reason).unwrap(), by: "anna".to_owned(), since: NOW }
}

#[tokio::test]
async fn stops_survive_a_restart_until_they_are_lifted() {
    let (_folder, path, journal) = new_journal();
    let targets = [agent(), tool(), StopTarget::Everything];
    for target in &targets {
        journal.decisions.set_stop(&stop(target.clone(), "first")).await.unwrap();
    }
    journal.decisions.set_stop(&stop(tool(), "second")).await.unwrap();
    assert!(journal.decisions.take_stops().is_empty(), "only those of an earlier process");
    assert!(holds(&path), "{}", verify_journal(&path, None));
    drop(journal);
    let journal = open_journal(&path).0;
    let expected = [stop(agent(), "first"), stop(StopTarget::Everything, "first"), stop(tool(), "second")];
    assert_eq!(journal.decisions.take_stops(), expected);
    assert!(journal.decisions.take_stops().is_empty());
    assert!(journal.decisions.lift_stop(&tool(), "otto").await.unwrap());
    assert!(!journal.decisions.lift_stop(&tool(), "otto").await.unwrap());
    assert!(journal.decisions.lift_stop(&agent(), "otto").await.unwrap());
    run(&journal, &another()).await;
    assert!(holds(&path), "{}", verify_journal(&path, None));
    drop(journal);
    let journal = open_journal(&path).0;
    assert_eq!(journal.decisions.take_stops(), [stop(StopTarget::Everything, "first")]);
    assert!(journal.decisions.lift_stop(&StopTarget::Everything, "otto").await.unwrap());
    drop(journal);
    assert!(open_journal(&path).0.decisions.take_stops().is_empty());
    assert!(holds(&path), "{}", verify_journal(&path, None));
}

#[tokio::test]
async fn a_backup_has_the_stops_in_force() {
    let (folder, path, journal) = new_journal();
    assert!(!journal.decisions.lift_stop(&agent(), "otto").await.unwrap());
    journal.decisions.set_stop(&stop(agent(), "why")).await.unwrap();
    run(&journal, &another()).await;
    let backup = folder.path().join("backup.db");
    back_up(&path, &backup).unwrap();
    drop(journal);
    wait_for_the_writer(&path);
    restore(&backup, &path, true).unwrap();
    let journal = open_journal(&path).0;
    assert_eq!(journal.decisions.take_stops(), [stop(agent(), "why")]);
    journal.decisions.lift_stop(&agent(), "otto").await.unwrap();
    drop(journal);
    assert_eq!(open_journal(&path).0.decisions.take_stops(), []);
}

#[tokio::test]
async fn pruning_keeps_the_stops_in_force() {
    let (_folder, path, journal) = new_journal();
    journal.decisions.set_stop(&stop(agent(), "first")).await.unwrap();
    journal.decisions.set_stop(&stop(agent(), "second")).await.unwrap();
    journal.decisions.set_stop(&stop(tool(), "lifted")).await.unwrap();
    journal.decisions.lift_stop(&tool(), "otto").await.unwrap();
    journal.decisions.set_stop(&stop(StopTarget::Everything, "third")).await.unwrap();
    run(&journal, &another()).await;
    deliver(&journal, 1).await;
    for round in 0..3 {
        prune(&path, FAR, NOW).unwrap();
        assert!(holds(&path), "{round}: {}", verify_journal(&path, None));
        run(&journal, &another()).await;
        deliver(&journal, 1).await;
    }
    // The server lifts and replaces copies like the originals.
    assert!(journal.decisions.lift_stop(&agent(), "otto").await.unwrap());
    assert!(!journal.decisions.lift_stop(&tool(), "otto").await.unwrap());
    journal.decisions.set_stop(&stop(StopTarget::Everything, "fourth")).await.unwrap();
    assert!(holds(&path), "{}", verify_journal(&path, None));
    prune(&path, FAR, NOW).unwrap();
    assert!(holds(&path), "{}", verify_journal(&path, None));
    drop(journal);
    assert_eq!(open_journal(&path).0.decisions.take_stops(), [stop(StopTarget::Everything, "fourth")]);
}

#[tokio::test]
async fn changes_of_stops_are_found() {
    for (sql, what) in [
        ("DELETE FROM stops WHERE number = (SELECT max(number) FROM stops)", "is missing"),
        ("INSERT INTO stops SELECT number FROM records WHERE kind = 'claim'", "nothing is stopped"),
        ("INSERT INTO stops SELECT min(number) FROM records WHERE kind = 'stop_set'", "nothing is stopped"),
        ("DROP TABLE stops", "differs from the schema"),
        ("DELETE FROM records WHERE kind = 'stop_lifted'", "are missing"),
        ("UPDATE records SET tool = 'u' WHERE kind = 'stop_set' AND tool = 't'", "is not what was written"),
        (
            "UPDATE records SET body = replace(body, 'why', 'now') WHERE kind = 'stop_set'",
            "is not what was written",
        ),
    ] {
        let (_folder, path, journal) = new_journal();
        journal.decisions.set_stop(&stop(agent(), "lifted")).await.unwrap();
        journal.decisions.lift_stop(&agent(), "otto").await.unwrap();
        journal.decisions.set_stop(&stop(tool(), "why")).await.unwrap();
        run(&journal, &another()).await;
        drop(journal);
        wait_for_the_writer(&path);
        assert!(holds(&path));
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let found = verify_journal(&path, None).to_string();
        assert!(found.contains(what), "{sql}: {found}");
        assert!(matches!(open(&path), Err(OpenError::Damaged { .. })), "{sql}");
    }
}
