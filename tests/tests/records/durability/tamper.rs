//! A journal that somebody, or its disk, changed while nobody served it.

use super::{catalogue, escalating, mark, options};
use harness::{Executor, Home, Process, eventually, intent, result, run};
use rusqlite::Connection;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

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

    /// The words of a server that does not start on it.
    fn start_error(&self) -> Option<String> {
        let home = Home::new(harness::Options::new().set("journal.path", self.path.to_str().unwrap()));
        let mut process = Process::spawn("executor", &mut home.command());
        let listens = process.listens_on_unless_it_ends();
        if listens.is_some() {
            process.kill();
            return None;
        }
        process.wait_for_exit();
        Some(process.whole_stderr())
    }
}

/// A flip in the log of a server that was killed takes its end away, which its marker knows of.
#[test]
fn a_bit_flip_in_the_log_is_detected_by_the_marker() {
    let catalogue = catalogue();
    let executor = Executor::start(harness::Options::new().catalogue(&catalogue));
    for nth in 0..4 {
        result(&executor.rpc("a2g/execute", &mark(nth)));
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
        harness::set_mode(&its_log, 0o600);
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
    let catalogue = catalogue();
    let governor = escalating(3600);
    let executor = Executor::start(options(&catalogue, &governor.url()));
    result(&executor.rpc("a2g/execute", &mark(0)));
    let call = intent("mark", json!({ "n": "000001" }));
    assert_eq!(result(&executor.rpc("a2g/intent", &call))["verdict"], "ESCALATE");
    let denied = json!({ "intent_id": call["intent_id"], "decision": "DENIED" });
    result(&executor.rpc("g2a/directive", &denied));
    let home = executor.kill();
    let sqlite = Connection::open(home.journal()).unwrap();
    let deleted = sqlite.execute("DELETE FROM records WHERE kind IN ('claim', 'denied')", []).unwrap();
    assert_eq!(deleted, 2);
    drop(sqlite);
    let journal = home.journal();
    let verified = run(["journal", "verify", "--json", "--journal", journal.to_str().unwrap()]);
    let found = String::from_utf8_lossy(&verified.stdout);
    assert!(!verified.status.success() && found.contains("\"holds\":false"), "{found}");
    let mut process = Process::spawn("executor", &mut home.command());
    assert_eq!(process.wait_for_exit().code(), Some(1));
    let said = process.whole_stderr();
    assert!(said.contains("is damaged: the records 1 to 1 are missing"), "{said}");
    assert!(said.contains("journal verify") && said.contains("journal restore"), "{said}");
    let last: Value = said.lines().last().map(|line| serde_json::from_str(line).unwrap()).unwrap();
    assert_eq!(last["level"], "ERROR", "{last}");
    eventually("it is left as it is", || home.journal().exists().then_some(()));
}
