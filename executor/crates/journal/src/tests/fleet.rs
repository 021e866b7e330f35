//! The identity of the fleet, which outlives restarts, pruning and a restored backup.

use super::*;
use crate::{RecoveredState, prune, remembered_fleet};

const FAR: OffsetDateTime = time::macros::datetime!(2030-01-01 0:00 UTC);

/// Opens the journal of an executor that joins a fleet. Returns what the journal remembered before.
fn join(path: &Path, identity: &str) -> (Journal, Option<String>) {
    let mut before = None;
    let journal = eventually(|| {
        let opened = Journal::open_with_ends(path, 1000, JournalOptions::default(), NOW, |interrupted| {
            before = interrupted.fleet()?;
            Ok(RecoveredState { ends: Vec::new(), fleet: Some(identity.to_owned()) })
        });
        match opened {
            Err(OpenError::InUse(_)) => None,
            opened => Some(opened.unwrap().0),
        }
    });
    (journal, before)
}

#[tokio::test]
async fn the_latest_fleet_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    assert_eq!(remembered_fleet(&path).unwrap(), None);
    let mut expected = None;
    for identity in ["first", "second", "second"] {
        let (journal, before) = join(&path, identity);
        assert_eq!(before, expected);
        expected = Some(identity.to_owned());
        assert_eq!(remembered_fleet(&path).unwrap(), expected);
        run(&journal, &another()).await;
        deliver(&journal, 1).await;
    }
    let journal = open_journal(&path).0;
    for _ in 0..2 {
        prune(&path, FAR, FAR).unwrap();
        assert_eq!(remembered_fleet(&path).unwrap(), expected);
        assert!(holds(&path), "{}", verify_journal(&path, None));
    }
    let backup = folder.path().join("backup.db");
    back_up(&path, &backup).unwrap();
    assert_eq!(remembered_fleet(&backup).unwrap(), expected);
    // The record says nothing about an intent with its id.
    let nil = Call { intent: IntentId::from_bytes([0; 16]), ..another() };
    run(&journal, &nil).await;
    assert!(holds(&path), "{}", verify_journal(&path, None));
    assert_eq!(remembered_fleet(&path).unwrap(), expected);
}

#[tokio::test]
async fn the_end_of_a_run_that_never_started_here_is_recorded_once() {
    let (_folder, path, journal) = new_journal();
    let lost = another();
    let receipt = Arc::new(receipt(&lost, End::Aborted(AbortReason::Lost)));
    let record = || journal.claims.record_end(content_hash(&lost), None, Arc::clone(&receipt), NOW);
    // Open here: a call of this process decides first.
    assert!(matches!(journal.claims.claim(&lost, LATER, None), Ok(ClaimResult::New)));
    assert!(!record().await.unwrap());
    journal.claims.release(lost.intent).await.unwrap();
    for _ in 0..2 {
        assert!(record().await.unwrap());
    }
    assert_eq!(journal.head().number, 1);
    let (_, stage) = journal.claims.stage(lost.intent, IfFull::Refuse).await.unwrap().unwrap();
    assert!(matches!(stage, Stage::Finished(found) if found.intent == lost.intent));
    let (due, reported) = journal.deliveries.next_report().await.unwrap();
    assert!(!due.is_first_attempt() && reported.intent == lost.intent);
    journal.deliveries.mark_delivered(&due);
    journal.flush().await.unwrap();
    assert!(matches!(journal.claims.report_state(lost.intent), Ok(ReportState::Delivered)));
    assert!(holds(&path), "{}", verify_journal(&path, None));
}
