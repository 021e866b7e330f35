//! The page of one run.

use super::searches::{call_of, run_with};
use super::*;
use crate::RunSearch;
use crate::history::Filter;
use crate::history::RecordEntry;
use crate::tests::decisions::{hold, resolve};
use a2g_types::outcome::CallUsage;

#[tokio::test]
async fn the_page_of_a_run_has_all_of_its_records() {
    let (_folder, path, journal) = new_journal();
    run(&journal, &another()).await;
    let call = call_of("did:a:x", "read");
    let verdict = Verdict {
        decision: Decision::Escalate,
        intent: call.intent,
        risk: None,
        manifest: Manifest::default(),
        conditions: Vec::new(),
        expires_at: Some(LATER),
        reason: None,
        rationale: Rationale::default(),
    };
    let manifest = Manifest { filesystem_scope: vec!["/narrow/**".into()], ..Manifest::default() };
    hold(&journal, &call).await;
    let approve = |manifest| ResolvedIntent {
        intent: call.intent,
        at: NOW,
        content: None,
        resolution: Resolution::Approved,
        by: "anna".to_owned(),
        risk_score: None,
        manifest,
        reason: None,
        basis: None,
        grants: Vec::new(),
        arguments: None,
    };
    journal.decisions.resolve(vec![approve(Some(manifest.clone()))]).await.unwrap();
    let page = journal.records.run_record(call.intent).await.unwrap().unwrap();
    assert_eq!((page.approved_manifest, page.receipt, page.verdict), (Some(manifest.clone()), None, None));
    let verdict = Arc::new(verdict);
    assert!(matches!(journal.claims.claim(&call, LATER, Some(Arc::clone(&verdict))), Ok(ClaimResult::New)));
    assert!(matches!(start_claimed(&journal, &call, None, None).await, Ok(StartResult::New)));
    journal.decisions.record_stop(&[call.intent], "otto", "a2g/cancel").await.unwrap();
    let mut receipt = receipt(&call, End::Aborted(AbortReason::Cancelled));
    receipt.approved_by = Some("anna".to_owned());
    receipt.calls = Some(CallUsage {
        max_calls: Bound { value: 5, layer: Layer::Verdict },
        max_parallel: Bound { value: 1, layer: Layer::Verdict },
        count: 3,
        calls: Vec::new(),
    });
    let receipt = Arc::new(receipt);
    journal.claims.finish(Arc::clone(&receipt), None, Reporting::Here, LATER).await.unwrap();
    run(&journal, &another()).await;

    let page = journal.records.run_record(call.intent).await.unwrap().unwrap();
    assert_eq!((&*page.agent, &*page.tool), ("did:a:x", "read"));
    assert_eq!((page.approved_manifest, page.verdict), (Some(manifest), Some((*verdict).clone())));
    let mut records = Vec::new();
    let add = |record: RecordEntry| -> Result<(), history::HistoryError> {
        records.push(record);
        Ok(())
    };
    History::open(&path).unwrap().records(None, add).unwrap();
    let own = records.iter().filter(|record| record.intent == Some(call.intent));
    let own = own.map(|record| (record.number, record.kind, record.at)).collect::<Vec<_>>();
    assert_eq!(page.events.iter().map(|event| (event.record, event.kind, event.at)).collect::<Vec<_>>(), own);
    let by = page.events.iter().map(|event| (event.kind, event.by.as_deref())).collect::<Vec<_>>();
    let expected = [
        ("held", None),
        ("approved", Some("anna")),
        ("claim", None),
        ("stopped", Some("otto")),
        ("receipt", None),
    ];
    assert_eq!(by, expected);
    let found = page.receipt.unwrap();
    assert_eq!((found.number, found.ended, found.delivered), (2, LATER, false));
    assert_eq!(found.receipt, *receipt);
    let hash_of = |number| records.iter().find(|record| record.number == number).unwrap().hash;
    assert_eq!(found.hash, hash_of(found.record));
    assert_eq!(found.previous_hash, Some(hash_of(found.record - 1)));
    let sought =
        RunSearch { filter: Filter { agent: Some(call.agent), ..Filter::default() }, ..RunSearch::default() };
    let summary = &journal.records.search_runs(sought, |_| true, None, 1).await.unwrap().items[0];
    assert_eq!((summary.calls, summary.approved_by.as_deref()), (3, Some("anna")));
    assert!(!summary.is_nested());

    deliver(&journal, 3).await;
    let page = journal.records.run_record(call.intent).await.unwrap().unwrap();
    assert!(page.receipt.unwrap().delivered);
    assert_eq!(journal.records.run_record(IntentId::random()).await.unwrap(), None);
    assert_eq!(Journal::in_memory().records.run_record(call.intent).await.unwrap(), None);
    let denied = another();
    hold(&journal, &denied).await;
    resolve(&journal, &denied, Resolution::Denied).await;
    let page = journal.records.run_record(denied.intent).await.unwrap().unwrap();
    assert_eq!(page.events.last().unwrap().by.as_deref(), Some("anna"));
    assert_eq!((page.receipt, page.approved_manifest), (None, None));
}

/// An approval that was cancelled says nothing about the next wait.
#[tokio::test]
async fn the_manifest_is_that_of_the_last_wait() {
    let (_folder, _path, journal) = new_journal();
    let call = another();
    hold(&journal, &call).await;
    let approved = ResolvedIntent {
        intent: call.intent,
        at: NOW,
        content: None,
        resolution: Resolution::Approved,
        by: "anna".to_owned(),
        risk_score: None,
        manifest: Some(Manifest::default()),
        reason: None,
        basis: None,
        grants: Vec::new(),
        arguments: None,
    };
    journal.decisions.resolve(vec![approved]).await.unwrap();
    resolve(&journal, &call, Resolution::Cancelled).await;
    hold(&journal, &call).await;
    let page = journal.records.run_record(call.intent).await.unwrap().unwrap();
    assert_eq!(page.approved_manifest, None);
}

/// An id whose start was taken back is free, also for another agent.
#[tokio::test]
async fn the_page_is_that_of_the_latest_agent_after_many_records_of_an_earlier_one() {
    let (_folder, _path, journal) = new_journal();
    let first = another();
    assert!(matches!(start(&journal, &first, None).await, StartResult::New));
    journal.decisions.record_stop(&[first.intent; 1_001], "otto", "a2g/cancel").await.unwrap();
    journal.claims.release(first.intent).await.unwrap();
    let page = journal.records.run_record(first.intent).await.unwrap().unwrap();
    assert_eq!((&*page.agent, page.events.len()), ("did:a:b", 1_000));
    let second = Call { agent: AgentDid::parse("did:a:other").unwrap(), ..first.clone() };
    hold(&journal, &second).await;
    for agent in [&first.agent, &second.agent] {
        journal
            .decisions
            .record_revocation(Some(agent), Some(first.intent), agent.as_str(), 0)
            .await
            .unwrap();
    }
    journal.decisions.record_stop(&[first.intent], "anna", "a2g/cancel").await.unwrap();
    let page = journal.records.run_record(first.intent).await.unwrap().unwrap();
    assert_eq!(&*page.agent, "did:a:other");
    let events = page.events.iter().map(|event| (event.kind, event.by.as_deref())).collect::<Vec<_>>();
    assert_eq!(events, [("held", None), ("revocation", Some("did:a:other")), ("stopped", Some("anna"))]);
}

#[tokio::test]
async fn a_pruned_run_has_what_was_carried_over() {
    let (_folder, path, journal) = new_journal();
    let [pruned, kept] = [another(), another()];
    run(&journal, &pruned).await;
    // The claim is pruned, and its receipt becomes the first record.
    run_with(&journal, &kept, receipt(&kept, End::ResultNotJson), LATER).await;
    deliver(&journal, 2).await;
    let before = journal.records.run_record(kept.intent).await.unwrap().unwrap().receipt;
    assert_eq!(crate::prune(&path, NOW + Duration::SECOND, NOW).unwrap().receipts, 1);
    let page = journal.records.run_record(pruned.intent).await.unwrap().unwrap();
    assert_eq!(page.receipt, None);
    assert_eq!(page.events.iter().map(|event| event.kind).collect::<Vec<_>>(), ["used"]);
    let page = journal.records.run_record(kept.intent).await.unwrap().unwrap();
    assert_eq!(page.receipt, before);
    assert!(page.receipt.unwrap().previous_hash.is_some());
    assert_eq!(page.events.iter().map(|event| event.kind).collect::<Vec<_>>(), ["receipt", "used"]);
}

#[tokio::test]
async fn a_damaged_record_is_an_error() {
    let sql = [
        "UPDATE records SET body = x'7b' WHERE kind = 'receipt'",
        "UPDATE records SET body = x'7b' WHERE kind = 'claim'",
        "UPDATE records SET body = x'7b' WHERE kind = 'approved'",
        "UPDATE records SET kind = 'nonsense' WHERE kind = 'held'",
    ];
    for sql in sql {
        let (_folder, path, journal) = new_journal();
        let call = another();
        hold(&journal, &call).await;
        resolve(&journal, &call, Resolution::Approved).await;
        run(&journal, &call).await;
        assert!(journal.records.run_record(call.intent).await.unwrap().is_some());
        assert_eq!(Connection::open(&path).unwrap().execute(sql, []).unwrap(), 1);
        let page = journal.records.run_record(call.intent).await.map(drop);
        assert!(matches!(page, Err(JournalError::Broken(BrokenError::Read(_)))), "{sql}: {page:?}");
    }
}

/// The killed process had the list of the calls in its memory.
#[tokio::test]
async fn calls_of_an_interrupted_run_are_counted_beyond_the_longest_list() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let journal = open_journal(&path).0;
    let parent = another();
    let bound = |value| Bound { value, layer: Layer::Executor };
    let usage = CallUsage { max_calls: bound(100_000), max_parallel: bound(1), count: 0, calls: Vec::new() };
    let fallback_receipt =
        &Receipt { calls: Some(usage), ..receipt(&parent, End::Aborted(AbortReason::Lost)) };
    assert!(matches!(journal.claims.claim(&parent, LATER, None), Ok(ClaimResult::New)));
    let request = StartRequest {
        call: &parent,
        keep_until: LATER,
        proof: None,
        fallback_receipt,
        task: None,
        effects: RunEffects::Possible,
    };
    assert!(matches!(journal.claims.start(request, NOW).await, Ok(StartResult::New)));
    let nested = |ordinal| Call { intent: parent.intent.nested(ordinal), ..another() };
    // The last one is after too many calls without a record.
    for ordinal in [1, 1000, 1800, 4000] {
        let refused = IntentSummary::from_call(&nested(ordinal));
        journal.decisions.record_refusal(&refused, a2g_types::fault::BlockedBy::VerdictDenied, "no", NOW);
    }
    run(&journal, &nested(2700)).await;
    // Another agent can derive the ids as well.
    let other = AgentDid::parse("did:a:other").unwrap();
    for ordinal in [1, 2, 3500] {
        let foreign = IntentSummary { agent: other.clone(), ..IntentSummary::from_call(&nested(ordinal)) };
        journal.decisions.record_refusal(&foreign, a2g_types::fault::BlockedBy::VerdictDenied, "no", NOW);
    }
    hold(&journal, &Call { agent: other.clone(), ..nested(3) }).await;
    run(&journal, &Call { agent: other, ..nested(3600) }).await;
    drop(journal);
    let journal = open_journal(&path).0;
    let stage = journal.claims.stage(parent.intent, IfFull::Wait).await.unwrap();
    let Some((_, Stage::Finished(aborted))) = &stage else { panic!("{stage:?}") };
    let calls = aborted.calls.as_ref().unwrap();
    let listed = calls.calls.iter().map(|call| call.ordinal).collect::<Vec<_>>();
    assert_eq!((&listed[..], calls.count), (&[1, 1000][..], 2700));
}
