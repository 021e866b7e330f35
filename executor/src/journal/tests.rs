use super::history::{Filter, Finding, History, Pruned, prune};
use super::*;
use crate::call::{Door, Priority};
use crate::ident::Issuer;
use crate::limit::{Bound, Budgets, Layer};
use crate::outcome::{AbortReason, End, Metrics, Outcome, Output, Usage};
use crate::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use crate::verdict::{Decision, Manifest};
use rusqlite::Connection;
use time::Duration;

const NOW: OffsetDateTime = time::macros::datetime!(2026-11-21 12:00 UTC);
const LATER: OffsetDateTime = time::macros::datetime!(2026-11-21 12:05 UTC);

fn call(arguments: &str) -> Call {
    Call {
        at_most: None,
        priority: Priority::Normal,
        door: Door::A2g,
        agent: AgentDid::parse("did:a:b").unwrap(),
        intent: IntentId::parse("550e8400-e29b-41d4-a716-446655440000").unwrap(),
        is_new: false,
        charge: crate::memory::Charge::default(),
        tool: ToolName::parse("t").unwrap(),
        arguments: serde_json::from_str(arguments).unwrap(),
        context: None,
    }
}

fn another() -> Call {
    Call { intent: IntentId::random(), ..call("{}") }
}

fn receipt(call: &Call, end: End) -> Receipt {
    fn bound<T>(value: T) -> Bound<T> {
        Bound { value, layer: Layer::Executor }
    }
    let budgets = Budgets {
        written: MemoryLimit::from_mb(1).unwrap(),
        created: 1,
        handles: 32,
        subscriptions: 1,
        random_bytes: 1,
        directory_entries: 1,
        fuel: None,
        hard_links: false,
    };
    let usage = Usage {
        memory: bound(MemoryLimit::from_mb(1).unwrap()),
        cpu: bound(CpuPercent::new(100).unwrap()),
        timeout: bound(Timeout::from_seconds(1).unwrap()),
        output: bound(OutputLimit::from_bytes(1).unwrap()),
        filesystem: Vec::new(),
        blocked: Vec::new(),
        filesystem_emptied_by: None,
        budgets,
        spent: None,
        network: bound(false),
        network_used: None,
        denied: Vec::new(),
        denied_truncated: false,
    };
    let outcome = Outcome { end, output: Output::default(), metrics: Metrics::default(), usage };
    Receipt {
        agent: call.agent.clone(),
        intent: call.intent,
        tool: call.tool.clone(),
        approved_by: None,
        outcome,
    }
}

fn opened(path: &Path) -> (Journal, Recovered) {
    // The writer of the one before ends a moment after it was dropped.
    for _ in 0..500 {
        match Journal::open(path, 100, NOW) {
            Err(OpenError::InUse(_)) => std::thread::sleep(std::time::Duration::from_millis(10)),
            opened => return opened.unwrap(),
        }
    }
    panic!("the journal stays in use");
}

async fn start(journal: &Journal, call: &Call, proof: Option<&ProofId>) -> Beginning {
    assert!(matches!(journal.claim(call, LATER, None), Ok(Claim::New)));
    let will = receipt(call, End::Aborted(AbortReason::Lost));
    journal.started(Intended { call, keep_until: LATER, proof, will: &will, task: None }, NOW).await.unwrap()
}

async fn run(journal: &Journal, call: &Call) -> Arc<Receipt> {
    assert!(matches!(start(journal, call, None).await, Beginning::New));
    let receipt = Arc::new(receipt(call, End::Returned(serde_json::json!({ "n": 1.5e-7 }).into())));
    journal.finished(Arc::clone(&receipt), None, NOW).await.unwrap();
    receipt
}

#[test]
fn the_order_of_keys_does_not_count_and_their_values_do() {
    assert_eq!(content(&call(r#"{"a":1,"b":[2]}"#)), content(&call(r#"{"b":[2],"a":1}"#)));
    assert_ne!(content(&call(r#"{"a":1}"#)), content(&call(r#"{"a":"1"}"#)));
    assert_ne!(content(&call(r#"{"a":["b"]}"#)), content(&call(r#"{"a":"b"}"#)));
}

#[tokio::test]
async fn an_intent_is_claimed_once_and_started_once() {
    let folder = tempfile::tempdir().unwrap();
    let journal = opened(&folder.path().join("journal.db")).0;
    let (this, other) = (call(r#"{"a":1}"#), call(r#"{"a":2}"#));
    assert!(journal.find(&this, None).await.unwrap().is_none());
    assert!(matches!(journal.claim(&this, LATER, None), Ok(Claim::New)));
    assert!(matches!(journal.claim(&this, LATER, None), Ok(Claim::Known(Known::Same(..)))));
    assert!(matches!(journal.claim(&other, LATER, None), Ok(Claim::Known(Known::Conflict))));
    journal.released(this.intent).await.unwrap();
    let receipt = run(&journal, &this).await;
    assert!(matches!(journal.find(&other, None).await, Ok(Some(Known::Conflict))));
    let found = journal.find(&this, None).await.unwrap();
    let Some(Known::Same(Followed::Over(Stage::Finished(found)), None)) = found else { panic!("{found:?}") };
    assert_eq!(found, receipt);
    // Whoever looked before the other had finished gets no further than the disk.
    let began = start(&journal, &this, None).await;
    assert!(
        matches!(began, Beginning::Known(Known::Same(Followed::Over(Stage::Finished(_)), _))),
        "{began:?}"
    );
    assert_eq!(journal.head().number, 1);
}

#[tokio::test]
async fn a_proof_is_good_for_one_intent_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let (first, second) = (another(), another());
    let id = |issuer: &str| ProofId::parse(Issuer::parse(issuer).unwrap(), "1").unwrap();
    let (proof, other) = (id("a"), id("b"));
    let journal = opened(&path).0;
    assert!(matches!(start(&journal, &first, Some(&proof)).await, Beginning::New));
    assert!(matches!(start(&journal, &second, Some(&proof)).await, Beginning::Replayed));
    drop(journal);
    let journal = opened(&path).0;
    assert!(matches!(start(&journal, &second, Some(&proof)).await, Beginning::Replayed));
    assert!(matches!(start(&journal, &second, Some(&other)).await, Beginning::New));
}

#[tokio::test]
async fn what_was_cut_off_is_aborted_and_what_was_written_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state/journal.db");
    let (done, lost, released) = (another(), another(), another());
    let verdict = Arc::new(Verdict {
        decision: Decision::Approved,
        intent: done.intent,
        risk: None,
        manifest: Manifest::default(),
        conditions: Vec::new(),
        expires_at: Some(LATER),
        reason: Some("because".to_owned()),
    });
    {
        let (journal, recovered) = opened(&path);
        assert_eq!(recovered, Recovered { aborted: 0, undelivered: 0 });
        assert!(matches!(journal.claim(&done, LATER, Some(Arc::clone(&verdict))), Ok(Claim::New)));
        journal.released(done.intent).await.unwrap();
        assert!(matches!(journal.claim(&done, LATER, Some(Arc::clone(&verdict))), Ok(Claim::New)));
        let will = receipt(&done, End::Aborted(AbortReason::Lost));
        let intended = Intended { call: &done, keep_until: LATER, proof: None, will: &will, task: None };
        assert!(matches!(journal.started(intended, NOW).await, Ok(Beginning::New)));
        journal.finished(Arc::new(receipt(&done, End::ResultNotJson)), None, NOW).await.unwrap();
        assert!(matches!(start(&journal, &lost, None).await, Beginning::New));
        assert!(matches!(start(&journal, &released, None).await, Beginning::New));
        journal.released(released.intent).await.unwrap();
        assert!(matches!(Journal::open(&path, 1, NOW), Err(OpenError::InUse(_))));
    }
    let (journal, recovered) = opened(&path);
    assert_eq!(recovered, Recovered { aborted: 1, undelivered: 2 });
    assert!(journal.find(&released, None).await.unwrap().is_none());
    let Some(Known::Same(_, Some(found))) = journal.find(&done, None).await.unwrap() else { panic!() };
    assert_eq!(found, verdict);
    let Some((_, Stage::Finished(aborted))) = journal.stage(lost.intent).await.unwrap() else { panic!() };
    assert_eq!(aborted.outcome.end, End::Aborted(AbortReason::Lost));
    let (first, receipt) = journal.next_report().await.unwrap();
    assert_eq!(receipt.intent, done.intent);
    journal.delivered(&first);
    assert_eq!(journal.next_report().await.unwrap().1.intent, lost.intent);
    journal.flush().await.unwrap();
    drop(journal);
    assert_eq!(opened(&path).1, Recovered { aborted: 0, undelivered: 1 });
}

#[tokio::test]
async fn what_waits_for_a_person_is_kept_until_it_starts_or_is_let_go() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let (starts, stays, leaves) = (another(), another(), another());
    let journal = opened(&path).0;
    for call in [&starts, &stays, &leaves] {
        assert!(journal.hold(call.intent, call.intent.to_string()).await.unwrap());
    }
    journal.let_go(vec![leaves.intent]).await.unwrap();
    // Nobody else said anything: it was written for its own sake.
    let there = Connection::open(&path).unwrap();
    let there = there.query_row("SELECT count(*) FROM waiting", [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(there, 2);
    assert!(matches!(start(&journal, &starts, None).await, Beginning::New));
    // What has started meanwhile waits for nobody.
    assert!(!journal.hold(starts.intent, starts.intent.to_string()).await.unwrap());
    drop(journal);
    let journal = opened(&path).0;
    assert_eq!(journal.held(), [stays.intent.to_string()]);
    assert!(journal.held().is_empty());
}

#[tokio::test]
async fn nothing_is_claimed_while_too_many_reports_wait() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(&folder.path().join("journal.db"), 2, NOW).unwrap();
    run(&journal, &another()).await;
    let open = another();
    assert!(matches!(journal.claim(&open, LATER, None), Ok(Claim::New)));
    assert!(matches!(journal.claim(&another(), LATER, None), Err(JournalError::Backlog)));
    let (due, _) = journal.next_report().await.unwrap();
    journal.delivered(&due);
    assert!(matches!(journal.claim(&another(), LATER, None), Ok(Claim::New)));
}

/// A journal of ten receipts, none of which the governor has.
async fn ten(path: &Path) -> (Vec<Call>, Head) {
    let journal = opened(path).0;
    let calls = (0..10).map(|_| another()).collect::<Vec<_>>();
    for call in &calls {
        run(&journal, call).await;
    }
    (calls, journal.head())
}

#[tokio::test]
async fn whatever_is_done_to_the_history_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, damaged) = (folder.path().join("whole.db"), folder.path().join("damaged.db"));
    let (calls, head) = ten(&whole).await;
    drop(opened(&whole));
    let holds = Finding::Holds { receipts: 10, pruned: 0, head };
    let verified = |path: &Path, point| History::open(path).unwrap().verify(point, |_| ()).unwrap();
    assert_eq!(verified(&whole, None), holds);
    assert_eq!(verified(&whole, Some(head)), holds);
    let intent = |number: usize| calls[number - 1].intent;
    let cases = [
        ("UPDATE receipts SET body = replace(body, '1.5', '1.6') WHERE number = 3", 3),
        ("UPDATE receipts SET status = 'FAILURE' WHERE number = 4", 4),
        ("UPDATE receipts SET agent = 'did:a:c' WHERE number = 10", 10),
        ("UPDATE receipts SET ended = ended + 1 WHERE number = 1", 1),
        ("UPDATE receipts SET hash = zeroblob(32) WHERE number = 5", 5),
        ("UPDATE receipts SET body = CAST(body AS TEXT) WHERE number = 6", 6),
        ("UPDATE receipts SET number = number + 100 WHERE number IN (7, 8);
          UPDATE receipts SET number = 8 WHERE number = 107; UPDATE receipts SET number = 7 WHERE number = 108", 7),
        ("UPDATE chain SET hash = x'0100000000000000000000000000000000000000000000000000000000000000'", 1),
    ];
    let damage = |sql: &str| {
        std::fs::copy(&whole, &damaged).unwrap();
        Connection::open(&damaged).unwrap().execute_batch(sql).unwrap();
    };
    for (sql, number) in cases {
        damage(sql);
        let changed = match verified(&damaged, None) {
            Finding::Changed { number, .. } => number,
            found @ (Finding::Holds { .. }
            | Finding::Missing { .. }
            | Finding::Cut { .. }
            | Finding::Differs { .. }
            | Finding::CheckpointPruned { .. }) => panic!("{sql}: {found:?}"),
        };
        assert_eq!(changed, number, "{sql}");
    }
    damage(cases[0].0);
    assert_eq!(verified(&damaged, None), Finding::Changed { number: 3, intent: intent(3) });
    damage("DELETE FROM receipts WHERE number IN (4, 5)");
    assert_eq!(verified(&damaged, None), Finding::Missing { first: 4, last: 5 });
    damage("DELETE FROM receipts WHERE number > 8");
    assert_eq!(verified(&damaged, None), Finding::Cut { last: 8, was: 10 });
    // Who takes every trace of the end away is found by whoever knows a checkpoint.
    damage("DELETE FROM receipts WHERE number > 8; DELETE FROM open; UPDATE intents SET receipt = 1");
    assert!(matches!(verified(&damaged, None), Finding::Holds { receipts: 8, .. }));
    assert_eq!(verified(&damaged, Some(head)), Finding::Cut { last: 8, was: 10 });
    // So is an older copy that went on.
    damage("DELETE FROM receipts WHERE number > 8; DELETE FROM open; DELETE FROM intents");
    let journal = opened(&damaged).0;
    for _ in 0..2 {
        run(&journal, &another()).await;
    }
    drop(journal);
    drop(opened(&damaged));
    assert_eq!(verified(&damaged, Some(head)), Finding::Differs { number: 10 });
}

#[tokio::test]
async fn what_is_old_and_delivered_is_pruned_and_the_chain_still_holds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let (calls, head) = ten(&path).await;
    let journal = opened(&path).0;
    for _ in 0..6 {
        let (due, _) = journal.next_report().await.unwrap();
        journal.delivered(&due);
    }
    journal.flush().await.unwrap();
    let hour = Duration::HOUR;
    assert_eq!(prune(&path, NOW, NOW).unwrap(), Pruned::default());
    // The seventh is not delivered, and no verdict has expired yet.
    assert_eq!(prune(&path, NOW + hour, NOW).unwrap(), Pruned { receipts: 6, intents: 0, tasks: 0 });
    let found = journal.find(&calls[0], None).await.unwrap();
    assert!(matches!(found, Some(Known::Same(Followed::Over(Stage::Forgotten), _))), "{found:?}");
    // A later verdict for it keeps it known for longer.
    journal.find(&calls[1], Some(NOW + 2 * hour)).await.unwrap();
    journal.flush().await.unwrap();
    // Who is an hour ahead has not to forget what is used again in an hour.
    assert_eq!(prune(&path, NOW + hour, NOW + hour).unwrap(), Pruned::default());
    let later = NOW + Duration::DAY + hour;
    assert_eq!(prune(&path, NOW + hour, later).unwrap(), Pruned { receipts: 0, intents: 5, tasks: 0 });
    assert!(journal.find(&calls[0], None).await.unwrap().is_none());
    assert!(journal.find(&calls[1], None).await.unwrap().is_some());
    run(&journal, &another()).await;
    assert_eq!(journal.head().number, 11);
    drop(journal);
    drop(opened(&path));
    let history = History::open(&path).unwrap();
    let found = history.verify(Some(head), |_| ()).unwrap();
    assert!(matches!(found, Finding::Holds { receipts: 5, pruned: 6, .. }), "{found:?}");
    let old = Head { number: 3, hash: [7; 32] };
    assert_eq!(history.verify(Some(old), |_| ()).unwrap(), Finding::CheckpointPruned { number: 3 });
    let mut waiting = Vec::new();
    let keep = |entry: history::Entry| -> Result<(), history::HistoryError> {
        waiting.push(entry.number);
        Ok(())
    };
    let filter = Filter { undelivered: true, until: Some(NOW + hour), ..Filter::default() };
    history.receipts(&filter, false, Some(3), keep).unwrap();
    assert_eq!(waiting, [11, 10, 9]);
}

#[test]
fn what_is_no_journal_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.db");
    assert!(matches!(History::open(&path), Err(OpenError::Missing(_))));
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE mine(x); PRAGMA user_version = 7").unwrap();
    assert!(matches!(Journal::open(&path, 1, NOW), Err(OpenError::Format(_, 7))));
    std::fs::write(&path, "not a database, and long enough to be looked at as one").unwrap();
    assert!(matches!(Journal::open(&path, 1, NOW), Err(OpenError::Failed { .. })));
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("not a database"));
}

fn task(owner: &str, created: OffsetDateTime, over: bool, document: &str) -> KeptTask {
    KeptTask {
        task: IntentId::random(),
        owner: AgentDid::parse(owner).unwrap(),
        context: "c".to_owned(),
        created,
        over: over.then_some(created),
        status: format!("{{{document}}}").chars().take(9).collect(),
        document: document.to_owned(),
    }
}

/// With an id whose end looks for what has to go.
fn looking(task: KeptTask) -> KeptTask {
    let mut id = *task.task.as_bytes();
    id[15] &= 0xf0;
    KeptTask { task: IntentId::from_bytes(id), ..task }
}

fn in_list(task: &KeptTask) -> ListedTask {
    let KeptTask { task, context, created, status, .. } = task.clone();
    ListedTask { task, context, created, status }
}

#[tokio::test]
async fn a_task_is_kept_as_it_was_said_last_and_found_by_owner_and_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let journal = opened(&path).0;
    let first = task("did:a:b", NOW, false, "1");
    let other = KeptTask { context: "d".to_owned(), ..task("did:a:b", LATER, false, "2") };
    let theirs = task("did:x:y", NOW, true, "3");
    // Said one after the other, and waited for the other way round.
    let kept = [&first, &other, &theirs].map(|task| journal.keep_task(task.clone(), Pace::AtOnce));
    let ended = KeptTask { over: Some(LATER), document: "ended".to_owned(), ..first.clone() };
    journal.keep_task(ended.clone(), Pace::AtOnce).await.unwrap();
    for kept in kept {
        kept.await.unwrap();
    }
    drop(journal);
    let journal = opened(&path).0;
    assert_eq!(journal.task(first.task).unwrap(), Some(ended.clone()));
    assert_eq!(journal.task(IntentId::random()).unwrap(), None);
    let open = [(other.task, other.owner.clone())];
    assert_eq!(journal.open_tasks().unwrap(), open);
    let of = |owner: Option<&AgentDid>, context, limit, offset| {
        journal.tasks(owner, context, limit, offset).unwrap()
    };
    assert_eq!(of(Some(&first.owner), None, 10, 0), (vec![in_list(&other), in_list(&ended)], 2));
    assert_eq!(of(Some(&first.owner), None, 1, 1), (vec![in_list(&ended)], 2));
    assert_eq!(of(Some(&first.owner), Some("d"), 10, 0), (vec![in_list(&other)], 1));
    assert_eq!(of(None, None, 10, 0).1, 3);
    drop(journal);
    // What ended before goes, and what is open stays.
    assert_eq!(prune(&path, NOW + Duration::SECOND, NOW).unwrap().tasks, 1);
    assert_eq!(prune(&path, LATER + Duration::DAY, NOW).unwrap().tasks, 1);
    assert_eq!(opened(&path).0.open_tasks().unwrap(), open);
}

#[tokio::test]
async fn of_each_owner_the_latest_tasks_are_kept_and_all_that_are_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let journal = opened(&path).0;
    let open = task("did:a:b", NOW - Duration::DAY, false, "");
    let theirs = task("did:x:y", NOW - Duration::DAY, true, "");
    let mine = (0..MOST_KEPT + 9).map(|n| task("did:a:b", NOW + Duration::seconds(n), true, ""));
    let mine = mine.chain([looking(task("did:a:b", NOW + Duration::DAY, true, ""))]);
    let all = [open.clone(), theirs.clone()].into_iter().chain(mine).collect::<Vec<_>>();
    let kept = all.iter().map(|task| journal.keep_task(task.clone(), Pace::AtOnce)).collect::<Vec<_>>();
    for kept in kept {
        kept.await.unwrap();
    }
    let (_, left) = journal.tasks(Some(&open.owner), None, 1, 0).unwrap();
    assert_eq!(left, u64::try_from(MOST_KEPT).unwrap() + 1);
    assert!(journal.task(open.task).unwrap().is_some() && journal.task(theirs.task).unwrap().is_some());
    assert_eq!(journal.task(all[2].task).unwrap(), None, "the oldest");
    // And as many as there is room for.
    let large = "x".repeat(usize::try_from(MOST_KEPT_BYTES).unwrap() / 2 + 1);
    for n in 0..2 {
        let task = looking(task("did:x:y", NOW + Duration::seconds(n), true, &large));
        journal.keep_task(task, Pace::AtOnce).await.unwrap();
    }
    assert_eq!(journal.tasks(Some(&theirs.owner), None, 9, 0).unwrap().1, 1);
}

#[test]
fn a_journal_of_before_gets_the_tables_of_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    drop(opened(&path));
    Connection::open(&path).unwrap().execute_batch("DROP TABLE tasks").unwrap();
    assert_eq!(prune(&path, NOW, NOW).unwrap(), Pruned::default());
    Connection::open(&path).unwrap().execute_batch("DROP TABLE tasks").unwrap();
    assert_eq!(opened(&path).0.open_tasks().unwrap(), []);
}

#[test]
fn the_tasks_of_a_journal_that_has_them_by_their_ids_are_put_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    drop(opened(&path));
    let before = "
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
    Connection::open(&path).unwrap().execute_batch(before).unwrap();
    for _ in ["the first time", "again"] {
        let journal = opened(&path).0;
        let (tasks, _) = journal.tasks(None, None, 9, 0).unwrap();
        assert_eq!(
            tasks.iter().map(|task| &*task.status).collect::<Vec<_>>(),
            ["open", "over"],
            "newest first"
        );
        assert_eq!(journal.open_tasks().unwrap()[0].0, tasks[0].task);
        let kept = journal.task(tasks[1].task).unwrap().unwrap();
        assert_eq!((&*kept.document, kept.over.unwrap().microsecond()), ("1", 1));
    }
}

#[tokio::test]
async fn a_task_that_was_written_by_itself_is_newer_than_its_will() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let journal = opened(&path).0;
    for (call, is_written) in [(another(), false), (another(), true)] {
        let will = receipt(&call, End::ResultNotJson);
        let first = KeptTask { task: call.intent, ..task("did:a:b", NOW, false, "will") };
        assert!(matches!(journal.claim(&call, LATER, None).unwrap(), Claim::New));
        let intended =
            Intended { call: &call, keep_until: LATER, proof: None, will: &will, task: Some(&first) };
        journal.started(intended, NOW).await.unwrap();
        if is_written {
            let newer = KeptTask { document: "newer".to_owned(), ..first };
            journal.keep_task(newer, Pace::AtOnce).await.unwrap();
        }
    }
    drop(journal);
    let journal = opened(&path).0;
    let (kept, _) = journal.tasks(None, None, 9, 0).unwrap();
    let kept = kept.iter().map(|one| journal.task(one.task).unwrap().unwrap().document).collect::<Vec<_>>();
    assert_eq!(kept, ["will", "newer"], "the latest first");
}
