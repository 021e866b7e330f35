//! Journals of other formats, which are refused, and the golden journal of this one.

use super::*;
use crate::store::FORMAT;
use crate::tests::decisions::{find_denial, hold, resolve, resolve_by_anna};
use crate::{RecoveredState, RunSearch, prune, remembered_fleet};
use a2g_types::stop::{OperatorReason, Stop, StopTarget};
use std::os::unix::fs::PermissionsExt as _;

fn golden_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/journals").join(name)
}

/// A copy of a golden journal.
fn golden(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    std::fs::copy(golden_file(name), &path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    (folder, path)
}

#[test]
fn other_formats_are_refused_with_advice() {
    let (_folder, path, journal) = new_journal();
    drop(journal);
    wait_for_the_writer(&path);
    for format in [-1, 0, 2] {
        let set = format!("PRAGMA user_version = {format}");
        Connection::open(&path).unwrap().execute_batch(&set).unwrap();
        let before = std::fs::read(&path).unwrap();
        let refused = open(&path).map(drop).unwrap_err();
        assert!(matches!(refused, OpenError::Format { format: found, .. } if found == format), "{refused}");
        let advice = format!("has format {format}, and this version reads only format 1: use the version");
        assert!(refused.to_string().contains(&advice), "{refused}");
        assert!(matches!(History::open(&path), Err(OpenError::Format { .. })), "{format}");
        assert_eq!(std::fs::read(&path).unwrap(), before, "{format}");
    }
}

/// A call in the golden journal.
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
        arguments: journal.decisions.arguments_text(&call),
        ..resolve_by_anna(&call, Resolution::Denied)
    }
}

fn golden_task() -> JournalTask {
    JournalTask { task: golden_call(11).intent, ..tasks::task("did:a:b", NOW, false, "golden") }
}

/// Makes a journal with much of what it can have. Returns its checkpoint.
async fn fill(path: &Path) -> Head {
    let recovered = RecoveredState { ends: Vec::new(), fleet: Some("golden".to_owned()) };
    let options = JournalOptions::default();
    let journal = Journal::open_with_ends(path, 100, options, NOW, |_| Ok(recovered)).unwrap().0;
    for number in 1..=4 {
        run(&journal, &golden_call(number)).await;
    }
    deliver(&journal, 2).await;
    assert_eq!(prune(path, NOW + Duration::HOUR, NOW).unwrap().receipts, 2);
    assert!(matches!(start(&journal, &golden_call(5), Some(&golden_proof())).await, StartResult::New));
    journal.claims.release(golden_call(5).intent).await.unwrap();
    for number in 6..=10 {
        hold(&journal, &golden_call(number)).await;
    }
    resolve(&journal, &golden_call(7), Resolution::PartlyApproved).await;
    resolve(&journal, &golden_call(8), Resolution::Approved).await;
    assert_eq!(journal.decisions.resolve(vec![golden_denial(&journal)]).await.unwrap(), 1);
    resolve(&journal, &golden_call(10), Resolution::Cancelled).await;
    journal.tasks.store(golden_task(), RetryPolicy::Retry).await.unwrap();
    let reason = OperatorReason::parse("golden").unwrap();
    let stop = Stop { target: StopTarget::Everything, reason, by: "anna".to_owned(), since: NOW };
    let target = StopTarget::Tool(ToolName::parse("t").unwrap());
    for set in [Stop { target: target.clone(), ..stop.clone() }, stop] {
        journal.decisions.set_stop(&set).await.unwrap();
    }
    assert!(journal.decisions.lift_stop(&target, "otto").await.unwrap());
    let refused = IntentSummary::from_call(&another());
    journal.decisions.record_refusal(&refused, a2g_types::fault::BlockedBy::Stopped, "golden", NOW);
    assert!(matches!(start(&journal, &golden_call(12), None).await, StartResult::New));
    journal.decisions.record_stop(&[golden_call(12).intent], "otto", "a2g/cancel").await.unwrap();
    let head = journal.head();
    drop(journal);
    wait_for_the_writer(path);
    let connection = Connection::open(path).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    head
}

/// What a journal has, without times, hashes and texts, to which later versions may add members. Deliveries and refusals
/// are written when there is time, so their records have no fixed place.
fn list_contents(path: &Path) -> Vec<String> {
    let connection = Connection::open(path).unwrap();
    let list = |sql: &str| {
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        rows.collect::<Result<Vec<_>, _>>().unwrap()
    };
    let records = list(
        "SELECT kind || ' ' || coalesce(hex(intent), '') || ' ' || coalesce(tool, '') || ' ' || coalesce(status, '')
         FROM records WHERE kind NOT IN ('delivered', 'refusals') ORDER BY number",
    );
    let counts = ["refusals", "open", "waiting", "tasks", "stops", "arguments"]
        .map(|table| list(&format!("SELECT '{table}: ' || count(*) FROM {table}")));
    [records, counts.concat()].concat()
}

/// The golden journal of a format is kept, so a new one is compared with it. A new format has none yet.
#[tokio::test]
async fn a_new_journal_has_what_the_golden_one_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let Head { number, hash } = fill(&path).await;
    let name = format!("format-{FORMAT}.db");
    if !golden_file(&name).exists() {
        let made = folder.keep().join("journal.db");
        let checkpoint = format!("{number}:{}", chain::to_hex(&hash));
        panic!(
            "copy {} to tests/journals/{name}, with its checkpoint, {checkpoint}, beside it",
            made.display()
        );
    }
    let (_folder, golden) = golden(&name);
    assert_eq!(list_contents(&path), list_contents(&golden));
}

/// A change of the written form needs another format number.
#[tokio::test]
async fn the_golden_journal_verifies_and_goes_on() {
    let (_folder, path) = golden("format-1.db");
    let checkpoint = std::fs::read_to_string(golden_file("format-1.checkpoint")).unwrap();
    let hash = chain::from_hex(checkpoint.trim_end().strip_prefix("4:").unwrap()).unwrap();
    let found = verify_journal(&path, Some(Head { number: 4, hash }));
    assert!(matches!(found, Finding::Holds { receipts: 2, pruned: 2, .. }), "{found}");
    let (journal, recovered) = open(&path).unwrap();
    assert_eq!(recovered, RecoverySummary { aborted: 1, undelivered: 3 });
    let stopped = journal.decisions.take_stops().into_iter().map(|stop| stop.target).collect::<Vec<_>>();
    assert_eq!(stopped, [StopTarget::Everything]);
    assert_eq!(remembered_fleet(&path).unwrap().as_deref(), Some("golden"));
    let held = journal.decisions.take_held();
    let approved = held.iter().filter(|held| held.approval.is_some()).count();
    assert_eq!((held.len(), approved), (3, 1));
    let denial = find_denial(&journal, &golden_call(9)).await.unwrap();
    assert_eq!(denial.reason.as_deref(), Some("golden"));
    let stage = journal.claims.stage(golden_call(1).intent, IfFull::Wait).await.unwrap();
    assert!(matches!(stage, Some((_, Stage::Pruned))), "{stage:?}");
    for number in [3, 9, 12] {
        let call = golden_call(number);
        assert!(journal.records.arguments(call.intent, &call.agent).unwrap().is_some(), "{number}");
    }
    let task = journal.tasks.find(golden_task().task, JournalTask::clone).await.unwrap();
    assert_eq!(task, Some(golden_task()));
    assert_eq!(History::open(&path).unwrap().refusals(&Filter::default(), 10).unwrap().len(), 1);
    let replayed = start(&journal, &another(), Some(&golden_proof())).await;
    assert!(matches!(replayed, StartResult::Replayed), "{replayed:?}");
    run(&journal, &another()).await;
    assert!(super::holds(&path), "{}", verify_journal(&path, None));
}

/// The journal of a server, which `durability::formats` serves.
#[tokio::test]
async fn the_served_journal_verifies_and_goes_on() {
    let (_folder, path) = golden("served-1.db");
    let hash = chain::from_hex("7b360c8db2b1b8ecdc88b710a2980e41bdbb2e94cb4c12c6242eb6e7baa49ba0").unwrap();
    let found = verify_journal(&path, Some(Head { number: 11, hash }));
    assert!(matches!(found, Finding::Holds { receipts: 7, pruned: 4, records: 44, .. }), "{found}");
    let (journal, recovered) = open(&path).unwrap();
    assert_eq!(recovered, RecoverySummary { aborted: 1, undelivered: 4 });
    let approved = journal.decisions.take_held().into_iter().filter(|held| held.approval.is_some()).count();
    assert_eq!(approved, 1);
    let runs = journal.records.search_runs(RunSearch::default(), |_| true, None, 20).await.unwrap().items;
    assert_eq!(runs.len(), 8, "every receipt is read");
    run(&journal, &another()).await;
    assert!(super::holds(&path), "{}", verify_journal(&path, None));
}
