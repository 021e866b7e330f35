//! Journals of every format so far. The files were written by the versions with that format.

use super::*;
use std::os::unix::fs::PermissionsExt as _;

fn golden(format: u32) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let from = format!("{}/../../../tests/journals/format-{format}.db", env!("CARGO_MANIFEST_DIR"));
    std::fs::copy(from, &path).unwrap();
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
