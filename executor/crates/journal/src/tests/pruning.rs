//! Removal of old records, while a server writes.

use super::*;
use crate::tests::decisions::{find_denial, hold, resolve, shown_text};
use crate::{PruneSummary, Retention, prune};

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
    let found = journal.find(&calls[0], None).await.unwrap();
    assert!(matches!(found, Some(KnownIntent::Same(StageSource::Final(Stage::Pruned), _))), "{found:?}");
    // A later verdict extends the time for which the intent is known.
    journal.find(&calls[1], Some(FAR)).await.unwrap();
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
    assert!(journal.find(&calls[0], None).await.unwrap().is_none());
    assert!(journal.find(&calls[1], None).await.unwrap().is_some());
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
    journal.store_task(task.clone(), RetryPolicy::Retry).await.unwrap();
    let ended = JournalTask { ended: Some(NOW), ..tasks::task("did:a:b", NOW, true, "over") };
    journal.store_task(ended, RetryPolicy::Retry).await.unwrap();
    run(&journal, &another()).await;
    let ended = Arc::new(receipt(&straddles, End::ResultNotJson));
    journal.finish(Arc::clone(&ended), None, Reporting::Here, FAR + Duration::DAY).await.unwrap();
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
        let found = journal.find(&straddles, None).await.unwrap();
        let Some(KnownIntent::Same(StageSource::Final(Stage::Finished(found)), None)) = found else {
            panic!("{found:?}")
        };
        assert_eq!(found, ended);
        assert_eq!(
            find_denial(&journal, &denied).await,
            Some(IntentDenial { by: "anna".to_owned(), risk_score: Some(0.5), reason: None })
        );
        assert_eq!(journal.task(waits.intent, JournalTask::clone).await.unwrap(), Some(task.clone()));
        // The next pruning removes the record of the wait, and may leave this one.
        resolve(&journal, &partly, Resolution::PartlyApproved).await;
        run(&journal, &another()).await;
    }
    drop(journal);
    let journal = open_journal(&path).0;
    let held = journal.take_held();
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
        while journal.undelivered_count() > 50 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    let pruned = tokio::task::spawn_blocking(move || pruning.join().unwrap()).await.unwrap();
    journal.wait_until_delivered().await;
    delivering.abort();
    journal.flush().await.unwrap();
    let pruned = pruned + prune(&path, FAR, NOW).unwrap().receipts;
    assert_eq!((pruned, journal.head().number), (400, 400));
    assert!(holds(&path), "{}", verify_journal(&path, None));
    for call in &calls {
        let found = journal.find(call, None).await.unwrap();
        assert!(matches!(found, Some(KnownIntent::Same(StageSource::Final(Stage::Pruned), _))), "{found:?}");
    }
}

/// A run whose receipt has a result of this length.
async fn run_long(journal: &Journal, call: &Call, length: usize) {
    assert!(matches!(start(journal, call, None).await, StartResult::New));
    let receipt = receipt(call, End::Returned(serde_json::json!("x".repeat(length)).into()));
    journal.finish(Arc::new(receipt), None, Reporting::Here, NOW).await.unwrap();
}

fn transactions(path: &Path) -> i64 {
    let sql = "SELECT count(*) FROM records WHERE kind = 'pruned'";
    Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
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
        let count = transactions(&path);
        assert!(count >= at_least, "{count} transactions for {runs} runs of {length} bytes");
        assert!(holds(&path), "{}", verify_journal(&path, None));
    }
}

#[tokio::test]
async fn a_journal_is_kept_below_an_age_and_a_size() {
    let (_folder, path, journal) = new_journal();
    let old = another();
    run(&journal, &old).await;
    deliver(&journal, 1).await;
    let day = std::time::Duration::from_secs(86_400);
    journal.prune_regularly(Retention { max_age: Some(day), max_bytes: None }).unwrap();
    let is_pruned = |stage: Option<(AgentDid, Stage)>| !matches!(stage, Some((_, Stage::Finished(_))));
    let wait = async |call: &Call| {
        let removed = async {
            while !is_pruned(journal.stage(call.intent, IfFull::Wait).await.unwrap()) {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        let limit = std::time::Duration::from_secs(20);
        tokio::time::timeout(limit, removed).await.expect("something is removed");
    };
    wait(&old).await;
    let calls = (0..4).map(|_| another()).collect::<Vec<_>>();
    for call in &calls {
        run_long(&journal, call, 1 << 20).await;
    }
    deliver(&journal, 4).await;
    journal.prune_regularly(Retention { max_age: None, max_bytes: Some(2 << 20) }).unwrap();
    wait(&calls[1]).await;
    let stage = journal.stage(calls[3].intent, IfFull::Wait).await.unwrap();
    assert!(matches!(stage, Some((_, Stage::Finished(_)))), "no more than needed: {stage:?}");
    assert!(holds(&path), "{}", verify_journal(&path, None));
}
