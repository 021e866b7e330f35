//! Removal of old records, while a server writes.

use super::*;
use crate::journal::tests::decisions::{denied_by_anna, hold, resolve, shown};
use crate::journal::{Pruned, prune};

const FAR: OffsetDateTime = time::macros::datetime!(2030-01-01 0:00 UTC);

async fn deliver(journal: &Journal, count: usize) {
    for _ in 0..count {
        let (due, _) = journal.next_report().await.unwrap();
        journal.delivered(&due);
    }
    journal.flush().await.unwrap();
}

#[tokio::test]
async fn what_is_old_and_delivered_is_pruned_and_the_chain_still_holds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let (calls, head) = ten(&path).await;
    let journal = opened(&path).0;
    deliver(&journal, 6).await;
    assert_eq!(prune(&path, NOW, NOW).unwrap(), Pruned::default());
    // The seventh is not delivered, and no verdict has expired yet.
    let hour = Duration::HOUR;
    assert_eq!(prune(&path, NOW + hour, NOW).unwrap(), Pruned { receipts: 6, intents: 0, tasks: 0 });
    assert!(holds(&path));
    let found = journal.find(&calls[0], None).await.unwrap();
    assert!(matches!(found, Some(Known::Same(Followed::Over(Stage::Forgotten), _))), "{found:?}");
    // A later verdict extends the time for which the intent is known.
    journal.find(&calls[1], Some(FAR)).await.unwrap();
    journal.flush().await.unwrap();
    run(&journal, &another()).await;
    assert_eq!(journal.head().number, 11);
    let found = verified(&path, Some(head));
    assert!(matches!(found, Finding::Holds { receipts: 5, pruned: 6, .. }), "{found:?}");
    let old = Head { number: 3, hash: [7; 32] };
    assert_eq!(verified(&path, Some(old)), Finding::CheckpointPruned { number: 3 });
    let mut waiting = Vec::new();
    let keep = |entry: history::Entry| -> Result<(), history::HistoryError> {
        waiting.push(entry.number);
        Ok(())
    };
    let filter = Filter { undelivered: true, until: Some(NOW + hour), ..Filter::default() };
    History::open(&path).unwrap().receipts(&filter, false, Some(3), keep).unwrap();
    assert_eq!(waiting, [11, 10, 9]);
    deliver(&journal, 5).await;
    // A prune by a clock that is an hour ahead must not forget an intent that is used again in an hour.
    let pruned = prune(&path, FAR, LATER + hour).unwrap();
    assert_eq!(pruned, Pruned { receipts: 5, intents: 0, tasks: 0 });
    let pruned = prune(&path, FAR, LATER + 25 * hour).unwrap();
    assert_eq!(pruned, Pruned { receipts: 0, intents: 10, tasks: 0 });
    assert!(journal.find(&calls[0], None).await.unwrap().is_none());
    assert!(journal.find(&calls[1], None).await.unwrap().is_some());
    assert!(holds(&path));
    run(&journal, &another()).await;
    drop(journal);
    assert_eq!(opened(&path).0.head().number, 12);
}

/// The promises about an intent that waits, was decided, or belongs to a receipt that stays are preserved.
#[tokio::test]
async fn what_is_promised_by_pruned_records_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let journal = opened(&path).0;
    let [waits, approved, denied, straddles] = [another(), another(), another(), another()];
    for call in [&waits, &approved, &denied] {
        hold(&journal, call).await;
    }
    resolve(&journal, &approved, Resolution::Approved).await;
    resolve(&journal, &denied, Resolution::Denied).await;
    assert!(matches!(start(&journal, &straddles, None).await, Beginning::New));
    let task = KeptTask { task: waits.intent, ..tasks::task("did:a:b", FAR, false, "task") };
    journal.keep_task(task.clone(), Pace::AtOnce).await.unwrap();
    let over = KeptTask { over: Some(NOW), ..tasks::task("did:a:b", NOW, true, "over") };
    journal.keep_task(over, Pace::AtOnce).await.unwrap();
    run(&journal, &another()).await;
    let ended = Arc::new(receipt(&straddles, End::ResultNotJson));
    journal.finished(Arc::clone(&ended), None, FAR + Duration::DAY).await.unwrap();
    deliver(&journal, 2).await;
    for round in 0..3 {
        let pruned = prune(&path, FAR, NOW).unwrap();
        let expected =
            if round == 0 { Pruned { receipts: 1, intents: 0, tasks: 1 } } else { Pruned::default() };
        assert_eq!(pruned, expected, "{round}");
        assert!(holds(&path), "{round}: {}", verified(&path, None));
        let found = journal.find(&straddles, None).await.unwrap();
        let Some(Known::Same(Followed::Over(Stage::Finished(found)), None)) = found else {
            panic!("{found:?}")
        };
        assert_eq!(found, ended);
        assert_eq!(
            denied_by_anna(&journal, &denied).await,
            Some(Denial { by: "anna".to_owned(), risk_score: Some(0.5) })
        );
        assert_eq!(journal.task(waits.intent, KeptTask::clone).await.unwrap(), Some(task.clone()));
        run(&journal, &another()).await;
    }
    drop(journal);
    let journal = opened(&path).0;
    let held = journal.held();
    assert_eq!(held.iter().map(|held| &*held.text).collect::<Vec<_>>(), [shown(&waits), shown(&approved)]);
    assert_eq!(held[1].approval.as_ref().unwrap().by, "anna");
    // A carried-over intent is decided like any other.
    resolve(&journal, &waits, Resolution::Denied).await;
    assert!(matches!(start(&journal, &approved, None).await, Beginning::New));
    assert!(holds(&path), "{}", verified(&path, None));
}

/// Under load there is no moment without a run.
#[tokio::test]
async fn pruning_goes_on_beside_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let journal = Arc::new(opened(&path).0);
    let calls = (0..400).map(|_| another()).collect::<Vec<_>>();
    let pruning = {
        let path = path.clone();
        std::thread::spawn(move || {
            let pruned = (0..20).map(|_| prune(&path, FAR, NOW).unwrap().receipts);
            pruned.sum::<u64>()
        })
    };
    let deliverer = Arc::clone(&journal);
    let delivering = crate::spawn::spawn_run_task(async move {
        loop {
            deliver(&deliverer, 1).await;
        }
    });
    for eight in calls.chunks(8) {
        futures_util::future::join_all(eight.iter().map(|call| run(&journal, call))).await;
        while journal.undelivered() > 50 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    let pruned = tokio::task::spawn_blocking(move || pruning.join().unwrap()).await.unwrap();
    journal.all_delivered().await;
    delivering.abort();
    journal.flush().await.unwrap();
    let pruned = pruned + prune(&path, FAR, NOW).unwrap().receipts;
    assert_eq!((pruned, journal.head().number), (400, 400));
    assert!(holds(&path), "{}", verified(&path, None));
    for call in &calls {
        let found = journal.find(call, None).await.unwrap();
        assert!(matches!(found, Some(Known::Same(Followed::Over(Stage::Forgotten), _))), "{found:?}");
    }
}
