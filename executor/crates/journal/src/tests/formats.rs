//! Journals of every format so far. The files were written by the versions with that format.

use super::*;
use crate::tests::decisions::{find_denial, hold, resolve, resolve_by_anna};
use crate::{ArgumentStorage, RecoveredState, prune, remembered_fleet};
use a2g_types::stop::{OperatorReason, StopTarget};
use std::os::unix::fs::PermissionsExt as _;

fn golden_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/journals").join(name)
}

fn golden(format: u32) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    std::fs::copy(golden_file(&format!("format-{format}.db")), &path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    (folder, path)
}

/// The checkpoint of the journal of format 2, as `journal verify` of its own version printed it.
fn checkpoint() -> Head {
    let hash = "fb5204d0123d44030198700c9e482ccb48e1a8e50529f0ce81a877b833ad24ef";
    Head { number: 11, hash: chain::from_hex(hash).unwrap() }
}

#[test]
fn later_formats_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    drop(open_journal(&path));
    drop(open_journal(&path));
    // The thread of a dropped journal may still have the file.
    eventually(|| Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 6").ok());
    let opened =
        eventually(|| Some(open(&path)).filter(|opened| !matches!(opened, Err(OpenError::InUse(_)))));
    assert!(matches!(opened, Err(OpenError::Newer { format: 6, .. })));
}

#[tokio::test]
async fn format_2_is_converted_and_continued() {
    let (folder, path) = golden(2);
    let before = std::fs::read(&path).unwrap();
    assert!(matches!(History::open(&path), Err(OpenError::Unconverted { format: 2, .. })));
    // A file that an interrupted conversion left.
    std::fs::write(folder.path().join("journal.db.format-2"), "half of it").unwrap();
    let (journal, recovered) = open(&path).unwrap();
    assert_eq!(recovered, RecoverySummary { aborted: 1, undelivered: 4 });
    assert_eq!(journal.head().number, 12);
    let found = verify_journal(&path, Some(checkpoint()));
    assert!(matches!(found, Finding::Holds { receipts: 8, pruned: 4, .. }), "{found}");
    let kept = folder.path().join("journal.db.format-2");
    assert_eq!(std::fs::read(&kept).unwrap(), before);
    assert_eq!(kept.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let all = TaskQuery { limit: 9, ..TaskQuery::default() };
    assert_eq!((journal.take_held().len(), journal.tasks(all).await.unwrap().1), (2, 2));
    let history = History::open(&path).unwrap();
    assert_eq!(history.refusals(&Filter::default(), 10).unwrap().len(), 4);
    let stages = ["0064c4ae-fb75-4e62-a3ad-746e87c8473b", "229e24d1-7643-48a0-819b-ff31625359c4"];
    let mut stage = Vec::new();
    for intent in stages {
        stage.push(journal.stage(IntentId::parse(intent).unwrap(), IfFull::Wait).await.unwrap().unwrap().1);
    }
    assert!(matches!(stage[..], [Stage::Pruned, Stage::Finished(_)]), "{stage:?}");
    run(&journal, &another()).await;
    drop(journal);
    drop(open_journal(&path));
    assert!(super::holds(&path));
    // After pruning into the converted receipts, their own chain is still checked.
    let journal = open_journal(&path).0;
    deliver(&journal, 5).await;
    drop(journal);
    let sql = "SELECT at FROM records WHERE receipt = 8";
    let at = Connection::open(&path).unwrap().query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let pruned = prune(&path, from_micros(at), NOW).unwrap();
    assert!(pruned.receipts > 0 && pruned.receipts < 8, "{pruned:?}");
    let found = verify_journal(&path, Some(checkpoint()));
    assert!(matches!(found, Finding::Holds { .. }), "{found}");
}

/// A change of the written form needs another format number, and a conversion of the old one.
#[tokio::test]
async fn format_3_still_verifies() {
    let (_folder, path) = golden(3);
    let hash = chain::from_hex("311b987f2d965925a4b2e56943484861ad32f4d12a5843f5734ae1d4b0169061").unwrap();
    let found = verify_journal(&path, Some(Head { number: 11, hash }));
    assert!(matches!(found, Finding::Holds { receipts: 7, pruned: 4, records: 44, .. }), "{found}");
    let (journal, recovered) = open(&path).unwrap();
    assert_eq!(recovered, RecoverySummary { aborted: 1, undelivered: 4 });
    let approved = journal.take_held().into_iter().filter(|held| held.approval.is_some()).count();
    assert_eq!(approved, 1);
    // A call raises the format, and a task of the earlier one is checked by its earlier hash.
    run(&journal, &another()).await;
    assert!(super::holds(&path), "{}", verify_journal(&path, None));
}

/// A call in the journals of the formats 4 and 5.
fn golden_call(number: u32) -> Call {
    let with_arguments = call(r#"{"path":"/a","n":[1.5e-7,null]}"#);
    Call { intent: with_arguments.intent.nested(number), ..with_arguments }
}

fn golden_proof() -> ProofId {
    ProofId::parse(Issuer::parse("a").unwrap(), "1").unwrap()
}

fn golden_denial(journal: &Journal) -> ResolvedIntent {
    let call = golden_call(9);
    ResolvedIntent {
        reason: Some("golden".to_owned()),
        basis: Some([7; 32]),
        arguments: journal.arguments_text(&call),
        ..resolve_by_anna(&call, Resolution::Denied)
    }
}

fn golden_task() -> JournalTask {
    JournalTask { task: golden_call(11).intent, ..tasks::task("did:a:b", NOW, false, "golden") }
}

/// Makes a journal of a format, with what that format added. Returns its checkpoint.
async fn fill(path: &Path, format: i64) -> Head {
    let recovered = RecoveredState { ends: Vec::new(), fleet: Some("golden".to_owned()) };
    let options = JournalOptions::default();
    let has_arguments = format >= store::ARGUMENTS_FORMAT;
    let arguments = if has_arguments { ArgumentStorage::default() } else { ArgumentStorage::Hash };
    let limits = JournalLimits { arguments, ..JournalLimits::default() };
    let opened = Journal::open_with_ends(path, 100, options, NOW, |_| Ok(recovered)).unwrap();
    let journal = opened.0.with_limits(limits);
    for number in 1..=4 {
        run(&journal, &golden_call(number)).await;
    }
    deliver(&journal, 2).await;
    assert_eq!(prune(path, NOW + Duration::HOUR, NOW).unwrap().receipts, 2);
    assert!(matches!(start(&journal, &golden_call(5), Some(&golden_proof())).await, StartResult::New));
    journal.release(golden_call(5).intent).await.unwrap();
    for number in 6..=10 {
        hold(&journal, &golden_call(number)).await;
    }
    resolve(&journal, &golden_call(7), Resolution::PartlyApproved).await;
    resolve(&journal, &golden_call(8), Resolution::Approved).await;
    assert_eq!(journal.resolve(vec![golden_denial(&journal)]).await.unwrap(), 1);
    resolve(&journal, &golden_call(10), Resolution::Cancelled).await;
    if has_arguments {
        journal.store_task(golden_task(), RetryPolicy::Retry).await.unwrap();
    }
    let reason = OperatorReason::parse("golden").unwrap();
    let stop = Stop { target: StopTarget::Everything, reason, by: "anna".to_owned(), since: NOW };
    let target = StopTarget::Tool(ToolName::parse("t").unwrap());
    for set in [Stop { target: target.clone(), ..stop.clone() }, stop] {
        journal.set_stop(&set).await.unwrap();
    }
    assert!(journal.lift_stop(&target, "otto").await.unwrap());
    let refused = IntentSummary::from_call(&another());
    journal.record_refusal(&refused, a2g_types::fault::BlockedBy::Stopped, "golden", NOW);
    assert!(matches!(start(&journal, &golden_call(12), None).await, StartResult::New));
    journal.record_stop(&[golden_call(12).intent], "otto", "a2g/cancel").await.unwrap();
    let head = journal.head();
    drop(journal);
    wait_for_the_writer(path);
    let connection = Connection::open(path).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    head
}

/// Makes the files of the formats 4 and 5, which are then kept for ever: a later version may not be able to make them.
#[tokio::test]
#[ignore = "writes files into the repository, once"]
async fn golden_files_are_written() {
    for format in [store::STOP_FORMAT, store::ARGUMENTS_FORMAT] {
        let [to, checkpoint] =
            ["db", "checkpoint"].map(|ending| golden_file(&format!("format-{format}.{ending}")));
        assert!(!to.exists(), "{} is never changed", to.display());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.db");
        let Head { number, hash } = fill(&path, format).await;
        assert_eq!(stops::format(&path), format);
        std::fs::write(to, std::fs::read(&path).unwrap()).unwrap();
        std::fs::write(checkpoint, format!("{number}:{}\n", chain::to_hex(&hash))).unwrap();
    }
}

#[tokio::test]
async fn formats_4_and_5_still_verify() {
    for format in [4, 5] {
        let (_folder, path) = golden(format);
        let checkpoint =
            std::fs::read_to_string(golden_file(&format!("format-{format}.checkpoint"))).unwrap();
        let hash = chain::from_hex(checkpoint.trim_end().strip_prefix("4:").unwrap()).unwrap();
        let found = verify_journal(&path, Some(Head { number: 4, hash }));
        assert!(matches!(found, Finding::Holds { receipts: 2, pruned: 2, .. }), "{found}");
        let (journal, recovered) = open(&path).unwrap();
        assert_eq!(recovered, RecoverySummary { aborted: 1, undelivered: 3 });
        let stopped = journal.take_stops().into_iter().map(|stop| stop.target).collect::<Vec<_>>();
        assert_eq!(stopped, [StopTarget::Everything]);
        assert_eq!(remembered_fleet(&path).unwrap().as_deref(), Some("golden"));
        let held = journal.take_held();
        let approved = held.iter().filter(|held| held.approval.is_some()).count();
        assert_eq!((held.len(), approved), (3, 1));
        let denial = find_denial(&journal, &golden_call(9)).await.unwrap();
        assert_eq!(denial.reason.as_deref(), Some("golden"));
        let stage = journal.stage(golden_call(1).intent, IfFull::Wait).await.unwrap();
        assert!(matches!(stage, Some((_, Stage::Pruned))), "{stage:?}");
        for number in [3, 9, 12] {
            let call = golden_call(number);
            let arguments = journal.arguments(call.intent, &call.agent).unwrap();
            assert_eq!(arguments.is_some(), format == 5, "{number}: {arguments:?}");
        }
        let task = journal.task(golden_task().task, JournalTask::clone).await.unwrap();
        assert_eq!(task, Some(golden_task()).filter(|_| format == 5));
        let replayed = start(&journal, &another(), Some(&golden_proof())).await;
        assert!(matches!(replayed, StartResult::Replayed), "{replayed:?}");
        run(&journal, &another()).await;
        assert!(super::holds(&path), "{format}: {}", verify_journal(&path, None));
    }
}

#[test]
fn damaged_journals_of_format_2_are_left_unchanged() {
    for (sql, what) in [
        ("UPDATE receipts SET ended = ended + 1 WHERE number = 8", "is not what was written"),
        ("DELETE FROM receipts WHERE number = 8", "receipt 9 does not come after"),
        ("DELETE FROM receipts WHERE number > 9", "10 to 11 are missing"),
        ("DELETE FROM intents WHERE receipt = 9", "receipt 9 has no intent"),
        ("DELETE FROM open WHERE receipt IS NULL", "neither open nor finished"),
    ] {
        let (folder, path) = golden(2);
        let changed = Connection::open(&path).unwrap();
        changed.execute_batch(sql).unwrap();
        changed.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        drop(changed);
        let before = std::fs::read(&path).unwrap();
        let refused = open(&path).map(drop).unwrap_err();
        assert!(matches!(refused, OpenError::Damaged { .. }), "{sql}: {refused}");
        assert!(refused.to_string().contains(what), "{sql}: {refused}");
        assert_eq!(std::fs::read(&path).unwrap(), before, "{sql}");
        assert!(!folder.path().join("journal.db.format-2").exists(), "{sql}");
    }
}

/// The first version of format 2 had no tasks, and a later one had them in the order of their ids.
#[tokio::test]
async fn early_journals_of_format_2_are_converted() {
    let by_id = "
        DROP TABLE tasks;
        CREATE TABLE tasks(
            task BLOB PRIMARY KEY, owner TEXT NOT NULL, context TEXT NOT NULL, created INTEGER NOT NULL, over INTEGER,
            status TEXT NOT NULL, bytes INTEGER NOT NULL, document TEXT NOT NULL
        ) WITHOUT ROWID;
        CREATE INDEX tasks_of ON tasks(owner, created, over, bytes);
        CREATE INDEX tasks_open_of ON tasks(owner) WHERE over IS NULL;
        INSERT INTO tasks VALUES
            (x'00000000000040008000000000000001', 'did:a:b', 'c', 2, NULL, 'open', 1, '2'),
            (x'00000000000040008000000000000002', 'did:a:b', 'c', 1, 1, 'over', 1, '1');";
    let none = "DROP TABLE tasks; ALTER TABLE open DROP COLUMN task;";
    for (sql, expected) in [(by_id, vec!["open", "over"]), (none, vec![])] {
        let (_folder, path) = golden(2);
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let (journal, recovered) = open(&path).unwrap();
        assert_eq!(recovered.aborted, 1);
        let all = TaskQuery { limit: 9, ..TaskQuery::default() };
        let (tasks, _) = journal.tasks(all).await.unwrap();
        let status = tasks.iter().map(|task| &*task.status).collect::<Vec<_>>();
        assert_eq!(status, expected, "newest first");
        assert!(super::holds(&path));
    }
}
