//! What has happened since a time, oldest first.

use super::*;
use crate::PastEvent;
use a2g_types::fault::BlockedBy;
use std::sync::Mutex;

#[tokio::test]
async fn events_since_a_time_are_passed_in_their_order_and_no_others() {
    let (_folder, _path, journal) = new_journal();
    let mut intents = Vec::new();
    // More than a few chunks of a scan, half of them older than the sought time.
    for minute in 0..400 {
        let call = another();
        let at = NOW + Duration::minutes(minute);
        assert!(matches!(journal.claims.claim(&call, LATER, None), Ok(ClaimResult::New)));
        let request = StartRequest {
            call: &call,
            keep_until: LATER,
            proof: None,
            fallback_receipt: &receipt(&call, End::Aborted(AbortReason::Lost)),
            task: None,
            effects: RunEffects::None,
        };
        assert!(matches!(journal.claims.start(request, at).await, Ok(StartResult::New)));
        let ended = Arc::new(receipt(&call, End::ResultNotJson));
        journal.claims.finish(ended, None, Reporting::Here, at).await.unwrap();
        if minute % 50 == 49 {
            deliver(&journal, 50).await;
        }
        let summary = IntentSummary::from_call(&call);
        journal.decisions.record_refusal(&summary, BlockedBy::VerdictDenied, "denied", at);
        intents.push(call.intent);
    }
    journal.flush().await.unwrap();
    let since = NOW + Duration::minutes(200);
    for (since, skipped) in [(NOW, 0), (since, 200), (since + Duration::days(1), 400)] {
        let passed = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&passed);
        let each = move |event| into.lock().unwrap().push(event);
        let count = journal.records.pass_since(since, each).await.unwrap();
        let passed = std::mem::take(&mut *passed.lock().unwrap());
        let ended = passed.iter().filter_map(|event| match event {
            PastEvent::Ended { ended, receipt } => Some((*ended, receipt.intent)),
            PastEvent::Refused(_) => None,
        });
        let refused = passed.iter().filter_map(|event| match event {
            PastEvent::Ended { .. } => None,
            PastEvent::Refused(refusal) => Some((refusal.at, refusal.intent)),
        });
        let expected = intents.iter().enumerate().skip(skipped);
        let expected = expected
            .map(|(minute, intent)| (NOW + Duration::minutes(i64::try_from(minute).unwrap()), *intent))
            .collect::<Vec<_>>();
        assert_eq!(ended.collect::<Vec<_>>(), expected);
        assert_eq!(refused.collect::<Vec<_>>(), expected);
        assert_eq!(count, 2 * u64::try_from(expected.len()).unwrap());
    }
}
