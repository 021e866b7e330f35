//! Removal of old records, while a server writes.

use super::*;
use crate::tests::decisions::{find_denial, hold, resolve, shown_text};
use crate::{PruneSummary, Retention, prune};
use std::sync::atomic::Ordering::Relaxed;

const FAR: OffsetDateTime = time::macros::datetime!(2030-01-01 0:00 UTC);

#[tokio::test]
async fn old_delivered_records_are_pruned() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let (calls, head) = ten(&path).await;
    let journal = open_journal(&path).0;
    deliver(&journal, 6).await;
    assert_eq!(prune(&path, NOW, NOW).unwrap(), PruneSummary::default());
    // The seventh is not delivered, and no verdict has expired yet.
    let hour = Duration::HOUR;
    assert_eq!(prune(&path, NOW + hour, NOW).unwrap(), PruneSummary { receipts: 6, intents: 0, tasks: 0 });
    assert!(holds(&path));
    let found = journal.claims.find(&calls[0], None).await.unwrap();
    assert!(matches!(found, Some(KnownIntent::Same(StageSource::Final(Stage::Pruned), _))), "{found:?}");
    // A later verdict extends the time for which the intent is known.
    journal.claims.find(&calls[1], Some(FAR)).await.unwrap();
    journal.flush().await.unwrap();
    run(&journal, &another()).await;
    assert_eq!(journal.head().number, 11);
    let found = verify_journal(&path, Some(head));
    assert!(matches!(found, Finding::Holds { receipts: 5, pruned: 6, .. }), "{found:?}");
    let old = Head { number: 3, hash: [7; 32] };
    assert_eq!(verify_journal(&path, Some(old)), Finding::CheckpointPruned { number: 3 });
    let mut waiting = Vec::new();
    let keep = |entry: history::ReceiptEntry| -> Result<(), history::HistoryError> {
        waiting.push(entry.number);
        Ok(())
    };
    let filter = Filter { undelivered: true, until: Some(NOW + hour), ..Filter::default() };
    History::open(&path).unwrap().receipts(&filter, false, Some(3), keep).unwrap();
    assert_eq!(waiting, [11, 10, 9]);
    deliver(&journal, 5).await;
    // A prune by a clock that is an hour ahead must not forget an intent that is used again in an hour.
    let pruned = prune(&path, FAR, LATER + hour).unwrap();
    assert_eq!(pruned, PruneSummary { receipts: 5, intents: 0, tasks: 0 });
    let pruned = prune(&path, FAR, LATER + 25 * hour).unwrap();
    assert_eq!(pruned, PruneSummary { receipts: 0, intents: 10, tasks: 0 });
    assert!(journal.claims.find(&calls[0], None).await.unwrap().is_none());
    assert!(journal.claims.find(&calls[1], None).await.unwrap().is_some());
    assert!(holds(&path));
    run(&journal, &another()).await;
    drop(journal);
    assert_eq!(open_journal(&path).0.head().number, 12);
}

/// The promises about an intent that waits, was decided, or belongs to a receipt that stays are preserved.
#[tokio::test]
async fn promises_of_pruned_records_are_carried_over() {
    let (_folder, path, journal) = new_journal();
    let [waits, approved, denied, partly, straddles] = [(); 5].map(|()| another());
    for call in [&waits, &approved, &denied, &partly] {
        hold(&journal, call).await;
    }
    resolve(&journal, &approved, Resolution::Approved).await;
    resolve(&journal, &denied, Resolution::Denied).await;
    assert!(matches!(start(&journal, &straddles, None).await, StartResult::New));
    let task = JournalTask { task: waits.intent, ..tasks::task("did:a:b", FAR, false, "task") };
    journal.tasks.store(task.clone(), RetryPolicy::Retry).await.unwrap();
    let ended = JournalTask { ended: Some(NOW), ..tasks::task("did:a:b", NOW, true, "over") };
    journal.tasks.store(ended, RetryPolicy::Retry).await.unwrap();
    run(&journal, &another()).await;
    let ended = Arc::new(receipt(&straddles, End::ResultNotJson));
    journal.claims.finish(Arc::clone(&ended), None, Reporting::Here, FAR + Duration::DAY).await.unwrap();
    deliver(&journal, 2).await;
    for round in 0..3 {
        let pruned = prune(&path, FAR, NOW).unwrap();
        let expected = if round == 0 {
            PruneSummary { receipts: 1, intents: 0, tasks: 1 }
        } else {
            PruneSummary::default()
        };
        assert_eq!(pruned, expected, "{round}");
        assert!(holds(&path), "{round}: {}", verify_journal(&path, None));
        let found = journal.claims.find(&straddles, None).await.unwrap();
        let Some(KnownIntent::Same(StageSource::Final(Stage::Finished(found)), None)) = found else {
            panic!("{found:?}")
        };
        assert_eq!(found, ended);
        assert_eq!(
            find_denial(&journal, &denied).await,
            Some(IntentDenial { by: Some("anna".to_owned()), risk_score: Some(0.5), reason: None })
        );
        assert_eq!(journal.tasks.find(waits.intent, JournalTask::clone).await.unwrap(), Some(task.clone()));
        // The next pruning removes the record of the wait, and may leave this one.
        resolve(&journal, &partly, Resolution::PartlyApproved).await;
        run(&journal, &another()).await;
    }
    drop(journal);
    let journal = open_journal(&path).0;
    let held = journal.decisions.take_held();
    assert_eq!(
        held.iter().map(|held| &*held.text).collect::<Vec<_>>(),
        [shown_text(&waits), shown_text(&approved), shown_text(&partly)]
    );
    assert_eq!(held[1].approval.as_ref().unwrap().by, "anna");
    // A carried-over intent is decided like any other.
    resolve(&journal, &waits, Resolution::Denied).await;
    assert!(matches!(start(&journal, &approved, None).await, StartResult::New));
    assert!(holds(&path), "{}", verify_journal(&path, None));
}

/// Under load there is no moment without a run.
#[tokio::test]
async fn pruning_runs_beside_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let journal = Arc::new(open_journal(&path).0);
    let calls = (0..400).map(|_| another()).collect::<Vec<_>>();
    let pruning = {
        let path = path.clone();
        std::thread::spawn(move || {
            let pruned = (0..20).map(|_| prune(&path, FAR, NOW).unwrap().receipts);
            pruned.sum::<u64>()
        })
    };
    let deliverer = Arc::clone(&journal);
    let delivering = a2g_runtime::spawn::spawn_run_task(async move {
        loop {
            deliver(&deliverer, 1).await;
        }
    });
    for eight in calls.chunks(8) {
        futures_util::future::join_all(eight.iter().map(|call| run(&journal, call))).await;
        while journal.deliveries.undelivered_count() > 50 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    let pruned = tokio::task::spawn_blocking(move || pruning.join().unwrap()).await.unwrap();
    journal.deliveries.wait_until_delivered().await;
    delivering.abort();
    journal.flush().await.unwrap();
    let pruned = pruned + prune(&path, FAR, NOW).unwrap().receipts;
    assert_eq!((pruned, journal.head().number), (400, 400));
    assert!(holds(&path), "{}", verify_journal(&path, None));
    for call in &calls {
        let found = journal.claims.find(call, None).await.unwrap();
        assert!(matches!(found, Some(KnownIntent::Same(StageSource::Final(Stage::Pruned), _))), "{found:?}");
    }
}

/// A run whose receipt has a result of this length.
async fn run_long(journal: &Journal, call: &Call, length: usize) {
    assert!(matches!(start(journal, call, None).await, StartResult::New));
    let receipt = receipt(call, End::Returned(serde_json::json!("x".repeat(length)).into()));
    journal.claims.finish(Arc::new(receipt), None, Reporting::Here, NOW).await.unwrap();
}

/// The number of records that each transaction of the pruning has removed.
fn removed_by_transaction(path: &Path) -> Vec<i64> {
    let connection = Connection::open(path).unwrap();
    let sql = "SELECT body FROM records WHERE kind = 'pruned' ORDER BY number";
    let mut statement = connection.prepare(sql).unwrap();
    let bodies = statement.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
    let mut before = 0;
    let removed = bodies.map(|body| {
        let pruned: serde_json::Value = serde_json::from_slice(&body.unwrap()).unwrap();
        let last = pruned["number"].as_i64().unwrap();
        last - std::mem::replace(&mut before, last)
    });
    removed.collect()
}

/// A server that writes waits for the transactions of a pruning: each removes few records, and few bytes.
#[tokio::test]
async fn each_transaction_removes_little() {
    for (runs, length, at_least) in [(200_u64, 1, 2), (4, 3 << 20, 4)] {
        let (_folder, path, journal) = new_journal();
        let calls = (0..runs).map(|_| another()).collect::<Vec<_>>();
        for some in calls.chunks(50) {
            futures_util::future::join_all(some.iter().map(|call| run_long(&journal, call, length))).await;
            deliver(&journal, some.len()).await;
        }
        assert_eq!(prune(&path, FAR, NOW).unwrap().receipts, runs);
        let removed = removed_by_transaction(&path);
        assert!(removed.len() >= at_least, "{runs} runs of {length} bytes: {removed:?}");
        let is_bounded = |count: &i64| (1..=prune::MAX_PRUNED_PER_TRANSACTION).contains(count);
        assert!(removed.iter().all(is_bounded), "{runs} runs of {length} bytes: {removed:?}");
        assert!(holds(&path), "{}", verify_journal(&path, None));
    }
}

const DAY: std::time::Duration = std::time::Duration::from_secs(86_400);

async fn is_pruned(journal: &Journal, call: &Call) -> bool {
    let stage = journal.claims.stage(call.intent, IfFull::Wait).await.unwrap();
    !matches!(stage, Some((_, Stage::Finished(_))))
}

async fn wait_until_pruned(journal: &Journal, call: &Call) {
    let removed = async {
        while !is_pruned(journal, call).await {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let limit = std::time::Duration::from_secs(20);
    tokio::time::timeout(limit, removed).await.expect("something is removed");
}

#[tokio::test]
async fn a_journal_is_kept_below_an_age_and_a_size() {
    let (_folder, path, journal) = new_journal();
    let old = another();
    run(&journal, &old).await;
    deliver(&journal, 1).await;
    journal.prune_regularly(Retention { max_age: Some(DAY), max_bytes: None }).unwrap();
    wait_until_pruned(&journal, &old).await;
    let calls = (0..4).map(|_| another()).collect::<Vec<_>>();
    for call in &calls {
        run_long(&journal, call, 1 << 20).await;
    }
    deliver(&journal, 4).await;
    journal.prune_regularly(Retention { max_age: None, max_bytes: Some(2 << 20) }).unwrap();
    wait_until_pruned(&journal, &calls[1]).await;
    assert!(!is_pruned(&journal, &calls[3]).await, "no more than needed");
    assert!(holds(&path), "{}", verify_journal(&path, None));
}

/// A report that waits for the governor can keep the journal above its size for long.
#[tokio::test]
async fn a_futile_removal_by_size_delays_no_removal_by_age() {
    let (_folder, path, journal) = new_journal();
    let old = another();
    run(&journal, &old).await;
    let by_size = Retention { max_age: None, max_bytes: Some(1) };
    let mut pruner = retention::Pruner::new(path, by_size, Arc::default());
    pruner.remove_old();
    deliver(&journal, 1).await;
    pruner.remove_old();
    assert!(!is_pruned(&journal, &old).await, "the size is checked again later");
    pruner.retention.max_age = Some(DAY);
    pruner.remove_old();
    assert!(is_pruned(&journal, &old).await);
}

#[tokio::test]
async fn automatic_pruning_begins_when_it_may() {
    let (_folder, _path, mut journal) = new_journal();
    let old = another();
    run(&journal, &old).await;
    deliver(&journal, 1).await;
    journal.may_prune = Arc::default();
    journal.prune_regularly(Retention { max_age: Some(DAY), max_bytes: None }).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!is_pruned(&journal, &old).await, "the check has not ended");
    journal.may_prune.store(true, Relaxed);
    wait_until_pruned(&journal, &old).await;
}

/// On a machine without idle time, the check may never end.
#[tokio::test]
async fn a_journal_that_is_far_too_large_is_pruned_before_the_check_has_ended() {
    let (_folder, path, mut journal) = new_journal();
    let calls = (0..4).map(|_| another()).collect::<Vec<_>>();
    for call in &calls {
        run_long(&journal, call, 1 << 20).await;
    }
    deliver(&journal, 4).await;
    // The four take a little more than 4 MiB, which is less than a quarter too much.
    let tolerated = Retention { max_age: Some(DAY), max_bytes: Some(7 << 19) };
    retention::Pruner::new(path.clone(), tolerated, Arc::default()).remove_excess();
    assert!(!is_pruned(&journal, &calls[0]).await, "the check has not ended");
    journal.may_prune = Arc::default();
    journal.prune_regularly(Retention { max_age: Some(DAY), max_bytes: Some(5 << 19) }).unwrap();
    wait_until_pruned(&journal, &calls[1]).await;
    assert!(!is_pruned(&journal, &calls[3]).await, "the age waits for the check");
    assert!(holds(&path), "{}", verify_journal(&path, None));
}

#[test]
fn a_check_that_panics_lets_records_be_pruned() {
    for (is_damaged, expected) in [(false, true), (true, false)] {
        let may_prune = AtomicBool::new(false);
        let panicked = std::thread::scope(|scope| {
            let check = || {
                let _guard = check::PruningGuard { may_prune: &may_prune, is_damaged };
                panic!("a panic of the check");
            };
            scope.spawn(check).join().is_err()
        });
        assert_eq!((panicked, may_prune.into_inner()), (true, expected));
    }
}

/// Runs the background check. Returns whether records may be pruned then, and whether the journal is broken.
fn check_in_background(path: &Path) -> (bool, bool) {
    let may_prune = AtomicBool::new(false);
    let condition = watch::Sender::new(Condition::Works);
    // The check lowers the priority of its thread.
    std::thread::scope(|scope| {
        let check = || {
            check::check_in_background(path, &Arc::default(), &may_prune, &condition, &Mutex::default());
        };
        scope.spawn(check);
    });
    let is_broken = matches!(*condition.borrow(), Condition::Broken(_));
    (may_prune.into_inner(), is_broken)
}

/// A removal would make the check begin again, and could remove what it is about to find.
#[tokio::test]
async fn records_may_be_pruned_when_the_check_has_read_them() {
    let (_folder, path, journal) = new_journal();
    // More than the start checks.
    let intents = (0..=ChainCheck::MAX_RECORDS_AT_START).map(|_| IntentId::random()).collect::<Vec<_>>();
    journal.decisions.record_stop(&intents, "otto", "a2g/cancel").await.unwrap();
    let change = |sql| Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    change("UPDATE records SET at = at + 1 WHERE number = 5");
    assert_eq!(check_in_background(&path), (false, true));
    change("UPDATE records SET at = at - 1 WHERE number = 5");
    assert_eq!(check_in_background(&path), (true, false));
}
