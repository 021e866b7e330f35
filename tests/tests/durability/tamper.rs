//! A journal that somebody, or its disk, changed while nobody served it.

use super::{catalogue, load, options};
use crate::harness::{
    Catalogue, Executor, FakeGovernor, Home, Process, Reply, eventually, execute, in_seconds, intent, result,
    run,
};
use rusqlite::Connection;
use serde_json::{Value, json};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// A governor that lets a person decide about what escalates, and takes no reports.
fn governor() -> FakeGovernor {
    FakeGovernor::start(|method, params| match method {
        "a2g/report" => Reply::Hangup,
        "a2g/intent" => Reply::Result(json!({
            "verdict": "ESCALATE", "intent_id": params["intent_id"], "conditions": [],
            "capability_manifest": { "filesystem_scope": ["/workspace/**"] }, "expires_at": in_seconds(3600),
        })),
        _ => Reply::Result(json!({ "accepted": true })),
    })
}

/// The journal of a server that was killed with something in every table, as one file.
fn start_and_kill(governor: &FakeGovernor) -> (Home, Catalogue) {
    let (catalogue, load) = (catalogue(), load());
    let executor = Executor::start(options(&catalogue, &governor.url()));
    for _ in 0..8 {
        load.send(executor.address());
    }
    for nth in 0..3 {
        let call = intent("mark", json!({ "n": format!("{nth:06}") }));
        assert_eq!(result(&executor.rpc("a2g/intent", &call))["verdict"], "ESCALATE");
        if nth == 0 {
            let denied = json!({ "intent_id": call["intent_id"], "decision": "DENIED" });
            result(&executor.rpc("g2a/directive", &denied));
        }
    }
    let task = json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": { "message": {
        "kind": "message", "messageId": "m", "role": "user", "parts": [{ "kind": "text", "text": "Hello!" }],
    } } });
    let headers = [("Content-Type", "application/json")];
    executor.client().request("POST", "/a2a/rpc", &headers, task.to_string().as_bytes());
    let home = executor.kill();
    let sqlite = Connection::open(home.journal()).unwrap();
    sqlite.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    (home, catalogue)
}

/// A copy of a journal with its marker.
struct Copy {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Copy {
    fn of(journal: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.db");
        for file in ["journal.db", "journal.db.lock"] {
            std::fs::copy(journal.with_file_name(file), path.with_file_name(file)).unwrap();
        }
        Self { _folder: folder, path }
    }

    /// The words of `journal verify` about a finding.
    fn verify_error(&self) -> Option<String> {
        let output = run(["journal", "verify", "--json", "--journal", self.path.to_str().unwrap()]);
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (!output.status.success()).then_some(said)
    }

    /// The words of a server that does not start on it.
    fn start_error(&self) -> Option<String> {
        let home = Home::new(crate::harness::Options::new().set("journal.path", self.path.to_str().unwrap()));
        let mut process = Process::spawn("executor", &mut home.command());
        let listens = process.listens_on_unless_it_ends();
        if listens.is_some() {
            process.kill();
            return None;
        }
        process.wait_for_exit();
        Some(process.whole_stderr())
    }

    fn execute(&self, sql: &str) {
        let sqlite = Connection::open(&self.path).unwrap();
        sqlite.execute_batch(sql).unwrap();
        sqlite.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    }
}

#[test]
fn a_deleted_row_of_any_table_is_detected_and_not_served() {
    let governor = governor();
    let (home, _catalogue) = start_and_kill(&governor);
    let journal = home.journal();
    assert_eq!(Copy::of(&journal).verify_error(), None);
    for table in ["records", "open", "waiting", "tasks", "refusals", "chains"] {
        let sqlite = Connection::open(&journal).unwrap();
        let rows: i64 =
            sqlite.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
        assert!(rows > 0, "{table}");
        let key = if table == "chains" { "name" } else { "rowid" };
        // The first, one in the middle, and the last.
        for nth in [0, rows / 2, rows - 1] {
            let copy = Copy::of(&journal);
            copy.execute(&format!(
                "DELETE FROM {table} WHERE {key} = (SELECT {key} FROM {table} ORDER BY {key} LIMIT 1 OFFSET {nth})"
            ));
            let found = copy
                .verify_error()
                .unwrap_or_else(|| panic!("{table} {nth} of {rows}: `verify` found nothing"));
            assert!(found.contains("\"holds\":false"), "{table} {nth}: {found}");
            let refused =
                copy.start_error().unwrap_or_else(|| panic!("{table} {nth} of {rows} was served: {found}"));
            assert!(
                refused.contains("is damaged") || refused.contains("lacks its last"),
                "{table} {nth}: {refused}"
            );
        }
    }
}

/// The readable part of a journal, or nothing.
fn content(path: &Path) -> Option<String> {
    let sqlite = Connection::open(path).ok()?;
    let mut all = String::new();
    for table in ["sqlite_schema", "records", "open", "waiting", "tasks", "refusals", "chains"] {
        let mut statement = sqlite.prepare(&format!("SELECT * FROM {table} NOT INDEXED")).ok()?;
        let columns = statement.column_count();
        let mut rows = statement.query([]).ok()?;
        while let Some(row) = rows.next().ok()? {
            for column in 0..columns {
                all.push_str(&format!("{:?},", row.get::<_, rusqlite::types::Value>(column).ok()?));
            }
        }
    }
    Some(all)
}

#[test]
fn a_bit_flip_that_changes_content_is_detected() {
    let governor = governor();
    let (home, _catalogue) = start_and_kill(&governor);
    let journal = home.journal();
    let bytes = std::fs::read(&journal).unwrap();
    let before = content(&Copy::of(&journal).path);
    let bits = bytes.len() as u64 * 8;
    let (mut changed, mut unseen, mut served) = (0, Vec::new(), Vec::new());
    for nth in 0..500 {
        let bit = u64::try_from(uuid::Uuid::new_v4().as_u128() % u128::from(bits)).unwrap();
        let copy = Copy::of(&journal);
        let file = std::fs::OpenOptions::new().write(true).open(&copy.path).unwrap();
        let at = bit / 8;
        file.write_all_at(&[bytes[usize::try_from(at).unwrap()] ^ (1 << (bit % 8))], at).unwrap();
        drop(file);
        if content(&copy.path) == before {
            continue;
        }
        changed += 1;
        if copy.verify_error().is_none() {
            unseen.push(bit);
        }
        // A server takes longer to start than a command.
        if nth % 10 == 0 && copy.start_error().is_none() {
            served.push(bit);
        }
    }
    assert!(changed > 50, "only {changed} changed anything");
    assert!(unseen.is_empty() && served.is_empty(), "of {changed}: not found {unseen:?}, served {served:?}");
}

/// A flip in the log of a server that was killed takes its end away, which its marker knows of.
#[test]
fn a_bit_flip_in_the_log_is_detected_by_the_marker() {
    let catalogue = catalogue();
    let executor = Executor::start(crate::harness::Options::new().catalogue(&catalogue));
    for nth in 0..4 {
        result(&executor.rpc("a2g/execute", &execute("mark", json!({ "n": format!("{nth:06}") }))));
    }
    let home = executor.kill();
    let journal = home.journal();
    let log = std::fs::read(journal.with_file_name("journal.db-wal")).unwrap();
    let verified = |path: &Path| run(["journal", "verify", "--journal", path.to_str().unwrap()]);
    for part in [3, 5, 9] {
        let copy = Copy::of(&journal);
        let mut log = log.clone();
        // In the middle of a page, after the heads of the file and of the frame.
        let frame = 24 + 4096;
        let frames = (log.len() - 32) / frame;
        let at = 32 + frames * part / 10 * frame + 24 + 2000;
        log[at] ^= 1;
        let its_log = copy.path.with_file_name("journal.db-wal");
        std::fs::write(&its_log, &log).unwrap();
        crate::harness::set_mode(&its_log, 0o600);
        let output = verified(&copy.path);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "{part}: {said}");
        let refused = copy.start_error().unwrap_or_else(|| panic!("{part} was served"));
        assert!(
            refused.contains("lacks its last records")
                || refused.contains("is damaged")
                || refused.contains("not a journal"),
            "{part}: {refused}"
        );
    }
}

/// A claim or a denial that is taken out of the file makes nothing run.
#[test]
fn a_deleted_claim_or_denial_is_detected_at_the_start() {
    let governor = governor();
    let (home, _catalogue) = start_and_kill(&governor);
    let sqlite = Connection::open(home.journal()).unwrap();
    sqlite.execute_batch("DELETE FROM records WHERE kind IN ('claim', 'denied')").unwrap();
    drop(sqlite);
    let mut process = Process::spawn("executor", &mut home.command());
    assert_eq!(process.wait_for_exit().code(), Some(1));
    let said = process.whole_stderr();
    assert!(said.contains("is damaged: the records 1 to 1 are missing"), "{said}");
    assert!(said.contains("journal verify") && said.contains("journal restore"), "{said}");
    let last: Value = said.lines().last().map(|line| serde_json::from_str(line).unwrap()).unwrap();
    assert_eq!(last["level"], "ERROR", "{last}");
    eventually("it is left as it is", || home.journal().exists().then_some(()));
}
