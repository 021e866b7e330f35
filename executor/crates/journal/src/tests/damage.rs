//! Every modification of a journal's file is found and named.

use super::*;
use crate::tests::decisions::{hold, resolve};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;

/// A journal with a row in every table and a record of most kinds.
async fn fill_journal(path: &Path) -> Head {
    let journal = open_journal(path).0;
    for _ in 0..6 {
        run(&journal, &another()).await;
    }
    let (due, _) = journal.deliveries.next_report().await.unwrap();
    journal.deliveries.mark_delivered(&due);
    let [waits, approved, denied, runs, proven, cancelled] = [(); 6].map(|()| another());
    for call in [&waits, &approved, &denied, &cancelled] {
        hold(&journal, call).await;
    }
    resolve(&journal, &approved, Resolution::Approved).await;
    resolve(&journal, &denied, Resolution::Denied).await;
    resolve(&journal, &cancelled, Resolution::Cancelled).await;
    let proof = ProofId::parse(Issuer::parse("a").unwrap(), "1").unwrap();
    assert!(matches!(start(&journal, &proven, Some(&proof)).await, StartResult::New));
    journal.claims.release(proven.intent).await.unwrap();
    assert!(matches!(start(&journal, &runs, None).await, StartResult::New));
    journal.decisions.record_stop(&[runs.intent], "otto", "a2g/cancel").await.unwrap();
    journal.tasks.store(tasks::task("did:a:b", NOW, false, "1"), RetryPolicy::Retry).await.unwrap();
    for _ in 0..3 {
        journal.decisions.record_refusal(
            &IntentSummary::from_call(&another()),
            a2g_types::fault::BlockedBy::VerdictDenied,
            "no",
            NOW,
        );
    }
    run(&journal, &another()).await;
    journal.flush().await.unwrap();
    let head = journal.head();
    drop(journal);
    wait_for_the_writer(path);
    merge_wal(path);
    head
}

/// Moves the write-ahead log of SQLite into the database, so that the journal is a single file.
fn merge_wal(path: &Path) {
    let connection = Connection::open(path).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
}

/// Copies a journal, with its marker, and runs `sql` on the copy.
fn damage_copy(intact: &Path, sql: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["journal.db", "journal.db.lock"] {
        std::fs::copy(intact.with_file_name(file), folder.path().join(file)).unwrap();
    }
    let connection = Connection::open(folder.path().join("journal.db")).unwrap();
    connection.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    folder
}

/// Checks that both `journal verify` and a start find the damage.
fn assert_found(intact: &Path, sql: &str, what: &str) {
    let folder = damage_copy(intact, sql);
    let path = folder.path().join("journal.db");
    let found = verify_journal(&path, None).to_string();
    assert!(found.contains(what), "{sql}: {found}");
    let opened = open(&path).map(|_| "opened");
    assert!(matches!(opened, Err(OpenError::Damaged { .. } | OpenError::Behind { .. })), "{sql}: {opened:?}");
}

#[tokio::test]
async fn every_change_to_the_history_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let intact = folder.path().join("journal.db");
    let head = fill_journal(&intact).await;
    let holds = verify_journal(&intact, Some(head));
    assert!(matches!(holds, Finding::Holds { receipts: 7, pruned: 0, .. }), "{holds}");
    let last = "(SELECT max(number) FROM records)";
    let cases = [
        ("UPDATE records SET body = replace(body, '1.5', '1.6') WHERE number = 4", "record 4 (intent"),
        ("UPDATE records SET status = 'FAILURE' WHERE number = 4", "record 4"),
        ("UPDATE records SET agent = 'did:a:c' WHERE number = 5", "record 5"),
        ("UPDATE records SET at = at + 1 WHERE number = 1", "record 1"),
        ("UPDATE records SET hash = zeroblob(32) WHERE number = 6", "record 6"),
        ("UPDATE records SET body = CAST(body AS TEXT) WHERE number = 6", "record 6"),
        ("UPDATE records SET kind = 'nonsense' WHERE number = 6", "record 6"),
        (
            "UPDATE records SET number = number + 100 WHERE number IN (7, 8);
          UPDATE records SET number = 8 WHERE number = 107; UPDATE records SET number = 7 WHERE number = 108",
            "record 7",
        ),
        ("DELETE FROM records WHERE number IN (4, 5)", "records 4 to 5 are missing"),
        ("DELETE FROM records WHERE number > 10", "the last record is 10"),
        ("DELETE FROM records", "the last record is 0"),
        ("UPDATE chains SET last_hash = zeroblob(32)", "`chains`"),
        ("UPDATE chains SET checkpoint = last_hash", "`chains`"),
        (
            "INSERT INTO chains SELECT 'mine', first, first_hash, receipts, checkpoint, last, last_hash FROM chains LIMIT 1",
            "`chains`",
        ),
        ("UPDATE chains SET last = last - 1 WHERE name = 'records'", "`chains`"),
        (
            "UPDATE chains SET first = 2, first_hash = (SELECT hash FROM records WHERE number = 2);
          DELETE FROM records WHERE number <= 2",
            "",
        ),
        (
            "UPDATE open SET fallback_receipt = replace(fallback_receipt, 'did:a:b', 'did:a:c') WHERE fallback_receipt IS NOT NULL",
            "`open`",
        ),
        ("UPDATE open SET receipt = NULL WHERE fallback_receipt IS NULL", "`open`"),
        ("INSERT INTO open(run, fallback_receipt) VALUES (1, 'x')", "`open`"),
        ("INSERT INTO open(run, fallback_receipt) VALUES (4, 'x')", "`open`"),
        ("UPDATE waiting SET text = text || ' '", "`waiting`"),
        ("INSERT INTO waiting VALUES (1, 'x')", "`waiting`"),
        ("UPDATE tasks SET document = '2'", "`tasks`"),
        ("UPDATE tasks SET number = number + 1", "`tasks`"),
        ("UPDATE arguments SET text = text || ' '", "`arguments`"),
        ("UPDATE arguments SET text = CAST(text AS BLOB)", "`arguments`"),
        ("UPDATE arguments SET number = number + 1000", "`arguments`"),
        ("INSERT INTO arguments VALUES (0, '{}')", "`arguments`"),
        ("INSERT INTO arguments VALUES (1000, '{}')", "`arguments`"),
        ("DROP TABLE arguments", "arguments"),
        (
            "INSERT INTO tasks(task, owner, context, created, status, bytes, document)
          VALUES (zeroblob(16), 'did:a:b', 'c', 1, 's', 1, 'd')",
            "`tasks`",
        ),
        ("UPDATE refusals SET message = 'yes' WHERE number = 2", "`refusals`, row of record 2"),
        ("DELETE FROM refusals WHERE number = 2", "`refusals`, row of record 2"),
        (
            "DELETE FROM refusals WHERE number = 3; UPDATE chains SET last = 2,
          last_hash = (SELECT hash FROM refusals WHERE number = 2) WHERE name = 'refusals'",
            "what the records say",
        ),
        (
            "CREATE TRIGGER mine AFTER INSERT ON records BEGIN DELETE FROM records WHERE number = 1; END",
            "trigger mine",
        ),
        ("DROP INDEX proofs", "index proofs"),
        ("CREATE TABLE mine(x)", "table mine"),
    ];
    for (sql, what) in cases {
        assert_found(&intact, sql, what);
    }
    for table in ["records", "open", "waiting", "tasks", "refusals", "chains", "arguments"] {
        let rows = Connection::open(&intact).unwrap();
        let rows =
            rows.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0)).unwrap();
        assert!(rows > 0, "{table}");
        let key = if table == "chains" { "name" } else { "rowid" };
        for nth in 0..rows {
            let sql = format!(
                "DELETE FROM {table} WHERE {key} = (SELECT {key} FROM {table} ORDER BY {key} LIMIT 1 OFFSET {nth})"
            );
            assert_found(&intact, &sql, "");
        }
    }
    // A forged end is found by the marker, and by a stored checkpoint.
    let forged = format!(
        "DELETE FROM records WHERE number > 6; DELETE FROM open WHERE run > 6; DELETE FROM waiting; DELETE FROM tasks;
         DELETE FROM arguments WHERE number > 6;
         DELETE FROM refusals; UPDATE chains SET last = 0, last_hash = zeroblob(32) WHERE name = 'refusals';
         INSERT INTO open(run, receipt) VALUES (1, 2) ON CONFLICT DO NOTHING;
         UPDATE chains SET last = {last}, last_hash = (SELECT hash FROM records WHERE number = {last}) WHERE name = 'records'"
    );
    assert_found(&intact, &forged, "the end is cut off");
    let folder = damage_copy(&intact, &forged);
    let path = folder.path().join("journal.db");
    std::fs::remove_file(folder.path().join("journal.db.lock")).unwrap();
    assert!(super::holds(&path), "{}", verify_journal(&path, None));
    assert_eq!(verify_journal(&path, Some(head)), Finding::Short { last: 3, number: 7 });
    let journal = open_journal(&path).0;
    for _ in 0..4 {
        run(&journal, &another()).await;
    }
    assert_eq!(verify_journal(&path, Some(head)), Finding::Differs { number: 7 });
}

/// Appends a receipt, claim or decision of another intent, or a second one, with the right hash.
#[tokio::test]
async fn contradictory_records_with_valid_hashes_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let intact = folder.path().join("journal.db");
    fill_journal(&intact).await;
    let append = |kind: record::RecordKind, about: Option<i64>, intent: &[u8; 16]| {
        let folder = damage_copy(&intact, "");
        let path = folder.path().join("journal.db");
        let mut connection = Connection::open(&path).unwrap();
        let transaction = connection.transaction().unwrap();
        let mut log = log::RecordLog::resume(&transaction, log::Tip::read(&transaction).unwrap()).unwrap();
        let intent = Some(IntentId::from_bytes(*intent));
        log.append(kind, &log::NewRecord { at: 1, intent, about, body: b"{}", ..log::NewRecord::default() })
            .unwrap();
        log.save().unwrap();
        transaction.commit().unwrap();
        drop(connection);
        verify_journal(&path, None)
    };
    let connection = Connection::open(&intact).unwrap();
    let of = |kind: &str| {
        let sql = format!("SELECT number, intent FROM records WHERE kind = '{kind}' ORDER BY number LIMIT 1");
        connection.query_row(&sql, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, [u8; 16]>(1)?))).unwrap()
    };
    let (claim, ran) = of("claim");
    let (held, waits) = of("held");
    let (denied, was_denied) = of("denied");
    let cases = [
        (record::RecordKind::Claim, None, &ran, "a second claim"),
        (record::RecordKind::Released, Some(claim), &ran, "released after its receipt"),
        (record::RecordKind::Held, None, &ran, "waits after it ran"),
        (record::RecordKind::Held, None, &waits, "waits twice"),
        (record::RecordKind::Approved, Some(claim), &waits, "another is approved"),
        (record::RecordKind::PartlyApproved, Some(claim), &waits, "another is partly approved"),
        (
            record::RecordKind::PartlyApproved,
            Some(denied),
            &was_denied,
            "partly approved though it was denied",
        ),
        (record::RecordKind::Claim, None, &was_denied, "runs though it was denied"),
        (record::RecordKind::Approved, Some(denied), &was_denied, "approved though it was denied"),
        (record::RecordKind::Denied, Some(held), &[7; 16], "another's"),
        (record::RecordKind::Used, None, &ran, "used before it was pruned"),
    ];
    for (kind, about, intent, what) in cases {
        let found = append(kind, about, intent);
        assert!(matches!(found, Finding::Order { .. } | Finding::Row { .. }), "{what}: {found}");
    }
    // The unique index of receipts rejects a second one.
    let second = "INSERT INTO records SELECT max(number) + 1, kind, at, intent, agent, tool, status, about, proof, receipt,
                  latest, body, hash FROM records WHERE kind = 'receipt'";
    assert!(Connection::open(&intact).unwrap().execute_batch(second).is_err());
}

/// Opening a journal checks only its end. A background thread checks the older records.
#[tokio::test]
async fn damage_in_older_records_breaks_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let intact = folder.path().join("journal.db");
    let quick = JournalOptions { durability: Durability::ProcessCrash, ..JournalOptions::default() };
    let open = |path: &Path| Journal::open(path, usize::MAX, quick.clone(), NOW);
    let journal = open(&intact).unwrap().0;
    for _ in 0..27 {
        let calls = (0..200).map(|_| another()).collect::<Vec<_>>();
        futures_util::future::join_all(calls.iter().map(|call| run(&journal, call))).await;
        deliver(&journal, journal.deliveries.undelivered_count()).await;
    }
    journal.flush().await.unwrap();
    drop(journal);
    wait_for_the_writer(&intact);
    merge_wal(&intact);
    let sql = "SELECT max(number) FROM records";
    let last = Connection::open(&intact).unwrap().query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert!(last > 10_800, "{last}");
    for (sql, found) in [
        ("UPDATE records SET at = at + 1 WHERE number = 100", Some("record 100")),
        ("DELETE FROM records WHERE number = 101", Some("the records 101 to 101 are missing")),
        ("UPDATE records SET intent = zeroblob(16) WHERE number = 102", Some("record 102")),
        ("", None),
    ] {
        let copy = damage_copy(&intact, sql);
        let path = copy.path().join("journal.db");
        let journal = open(&path).unwrap().0;
        let broken = tokio::time::timeout(
            std::time::Duration::from_secs(if found.is_some() { 60 } else { 3 }),
            journal.wait_until_broken(),
        );
        let broken = broken.await.ok();
        match found {
            Some(found) => {
                assert!(
                    broken.as_ref().is_some_and(|said| said.to_string().contains(found)),
                    "{sql}: {broken:?}"
                )
            }
            None => assert!(broken.is_none(), "{broken:?}"),
        }
    }
    let copy =
        damage_copy(&intact, &format!("UPDATE records SET at = at + 1 WHERE number = {}", last - 9_000));
    let refused = open(&copy.path().join("journal.db")).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
}

/// The readable content of a journal; `None` if it cannot be read.
fn content(path: &Path) -> Option<Vec<String>> {
    let connection = Connection::open(path).ok()?;
    let mut all = Vec::new();
    for table in ["sqlite_schema", "records", "open", "waiting", "tasks", "refusals", "chains", "arguments"] {
        let mut statement = connection.prepare(&format!("SELECT * FROM {table} NOT INDEXED")).ok()?;
        let columns = statement.column_count();
        let mut rows = statement.query([]).ok()?;
        while let Some(row) = rows.next().ok()? {
            let values = (0..columns).map(|column| row.get::<_, rusqlite::types::Value>(column));
            all.push(format!("{table} {:?}", values.collect::<Result<Vec<_>, _>>().ok()?));
        }
    }
    Some(all)
}

#[tokio::test]
async fn every_flipped_bit_in_the_content_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let intact = folder.path().join("journal.db");
    fill_journal(&intact).await;
    let bytes = std::fs::read(&intact).unwrap();
    let before = content(&intact);
    let mut changed = 0;
    let mut missed = Vec::new();
    let mut served = Vec::new();
    // Spread over the file, and the same in each run of the test.
    let places = (0..1_000_u64).map(|nth| (nth * 2_654_435_761) % (bytes.len() as u64 * 8));
    for bit in places {
        let copy = damage_copy(&intact, "");
        let path = copy.path().join("journal.db");
        let at = bit / 8;
        let mask = 1_u8 << (bit % 8);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[bytes[usize::try_from(at).unwrap()] ^ mask], at).unwrap();
        drop(file);
        if content(&path) == before {
            continue;
        }
        changed += 1;
        let found = History::open(&path).map(|history| history.verify(None, |_| ()));
        if matches!(found, Ok(Ok(Finding::Holds { .. }))) {
            missed.push(bit);
        }
        if open(&path).is_ok() {
            served.push(bit);
        }
    }
    assert!(changed > 100, "{changed}");
    assert!(missed.is_empty() && served.is_empty(), "of {changed}: not found {missed:?}, served {served:?}");
}
