//! The stored arguments of calls: what is stored, what is not, and every difference from the records.

use super::*;
use crate::record::{ClaimBody, Digest32, RecordKind, digest};
use crate::tests::decisions::{hold, resolve_by_anna};
use crate::{ArgumentStorage, JournalLimits, RefusalSearch, RunSearch, prune};
use a2g_types::call::{ParentRun, StoredArguments};
use a2g_types::fault::BlockedBy;
use serde_json::{Value, json};

fn arguments(value: &Value) -> serde_json::Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn kept(value: &Value, left_out: &[&str]) -> Option<StoredArguments> {
    let left_out = left_out.iter().map(|place| (*place).to_owned()).collect();
    Some(StoredArguments::Kept { arguments: arguments(value), left_out })
}

#[tokio::test]
async fn arguments_are_stored_as_far_as_the_operator_wants() {
    let given = json!({
        "path": "/a", "n": [1e300, -0.0, 0.1, 18446744073709551615_u64, null],
        "deep": [{ "Password": "x", "a/b": { "token": [1] } }],
    });
    let without = json!({
        "path": "/a", "n": [1e300, -0.0, 0.1, 18446744073709551615_u64, null], "deep": [{ "a/b": {} }],
    });
    let never = vec!["password".to_owned(), "token".to_owned()];
    let all = |max_bytes, never: &[String]| ArgumentStorage::Full { max_bytes, never: never.to_vec() };
    let cases = [
        (ArgumentStorage::default(), kept(&given, &[])),
        (all(1 << 10, &never), kept(&without, &["/deep/0/Password", "/deep/0/a~1b/token"])),
        (all(50, &[]), Some(StoredArguments::TooLarge { max_bytes: 50 })),
        (ArgumentStorage::Hash, None),
    ];
    for (storage, expected) in cases {
        let limits = JournalLimits { arguments: storage.clone(), ..JournalLimits::default() };
        let (_folder, path, journal) = new_limited_journal(limits);
        let parent = ParentRun {
            intent: IntentId::random(),
            tool: ToolName::parse("t").unwrap(),
            ordinal: 1,
            depth: 1,
        };
        let ran = Call { arguments: arguments(&given), ..another() };
        let nested = Call { parent: Some(parent), ..Call { intent: IntentId::random(), ..ran.clone() } };
        for call in [&ran, &nested] {
            run(&journal, call).await;
            assert_eq!(journal.records.arguments(call.intent, &call.agent).unwrap(), expected, "{storage:?}");
        }
        let page = journal.records.run_record(ran.intent).await.unwrap().unwrap();
        assert_eq!(page.arguments, expected, "{storage:?}");
        let runs = journal.records.search_runs(RunSearch::default(), |_| true, None, 2).await.unwrap().items;
        let is_kept = matches!(expected, Some(StoredArguments::Kept { .. }));
        assert_eq!(runs[0].main_argument.as_deref(), is_kept.then_some("/a"), "{storage:?}");
        assert_eq!(History::open(&path).unwrap().arguments_of(ran.intent, "did:a:b").unwrap(), expected);
        assert!(holds(&path), "{storage:?}: {}", verify_journal(&path, None));
        deliver(&journal, 2).await;
        prune(&path, NOW + Duration::HOUR, NOW).unwrap();
        assert_eq!(journal.records.arguments(ran.intent, &ran.agent).unwrap(), None, "{storage:?}");
        assert!(holds(&path), "{storage:?}: {}", verify_journal(&path, None));
    }
}

/// A wait that ends without a run keeps what was waited for.
#[tokio::test]
async fn arguments_of_a_call_that_was_not_approved_are_stored() {
    let (_folder, path, journal) = new_journal();
    let given = json!({ "path": "/a" });
    for resolution in [Resolution::Denied, Resolution::Cancelled, Resolution::Revoked, Resolution::Expired] {
        let call = Call { arguments: arguments(&given), ..another() };
        hold(&journal, &call).await;
        assert_eq!(journal.records.arguments(call.intent, &call.agent).unwrap(), None, "its wait has it");
        let arguments = journal.decisions.arguments_text(&call);
        let ended = ResolvedIntent { arguments, ..resolve_by_anna(&call, resolution) };
        assert_eq!(journal.decisions.resolve(vec![ended]).await.unwrap(), 1);
        assert_eq!(
            journal.records.arguments(call.intent, &call.agent).unwrap(),
            kept(&given, &[]),
            "{resolution:?}"
        );
        assert!(holds(&path), "{resolution:?}: {}", verify_journal(&path, None));
    }
    run(&journal, &another()).await;
    deliver(&journal, 1).await;
    prune(&path, NOW + Duration::days(900), NOW).unwrap();
    assert!(holds(&path), "the denial was copied: {}", verify_journal(&path, None));
}

/// A start that was taken back leaves its arguments, and its id to any agent.
#[tokio::test]
async fn arguments_are_those_of_the_agent_that_used_the_id() {
    let (_folder, _path, journal) = new_journal();
    let first = Call { arguments: arguments(&json!({ "path": "/secret" })), ..another() };
    assert!(matches!(start(&journal, &first, None).await, StartResult::New));
    journal.claims.release(first.intent).await.unwrap();
    let second = Call {
        agent: AgentDid::parse("did:a:other").unwrap(),
        tool: ToolName::parse("other").unwrap(),
        arguments: arguments(&json!({ "path": "/mine" })),
        ..first.clone()
    };
    hold(&journal, &second).await;
    // The denial stores no arguments, as with `journal.arguments = "hash"`.
    let denial = resolve_by_anna(&second, Resolution::Denied);
    assert_eq!(journal.decisions.resolve(vec![denial]).await.unwrap(), 1);
    assert_eq!(journal.records.arguments(first.intent, &second.agent).unwrap(), None);
    let expected = kept(&json!({ "path": "/secret" }), &[]);
    assert_eq!(journal.records.arguments(first.intent, &first.agent).unwrap(), expected);
    let page = journal.records.run_record(first.intent).await.unwrap().unwrap();
    assert_eq!((&*page.agent, &*page.tool, page.arguments), ("did:a:other", "other", None));
    let kinds = page.events.iter().map(|event| event.kind).collect::<Vec<_>>();
    assert_eq!(kinds, ["held", "denied"], "the release is that of the first agent's start");
}

/// A list shows what each call was about, and nothing of another agent's call with the same id.
#[tokio::test]
async fn lists_have_the_main_argument_of_each_call() {
    let (_folder, _path, journal) = new_journal();
    let [ran, waited] =
        ["/ran", "/waited"].map(|path| Call { arguments: arguments(&json!({ "path": path })), ..another() });
    run(&journal, &ran).await;
    hold(&journal, &waited).await;
    let denied = ResolvedIntent {
        arguments: journal.decisions.arguments_text(&waited),
        ..resolve_by_anna(&waited, Resolution::Denied)
    };
    assert_eq!(journal.decisions.resolve(vec![denied]).await.unwrap(), 1);
    let same_id = Call { agent: AgentDid::parse("did:a:other").unwrap(), ..waited.clone() };
    for call in [&waited, &same_id, &ran] {
        journal.decisions.record_refusal(
            &IntentSummary::from_call(call),
            BlockedBy::VerdictDenied,
            "no",
            NOW,
        );
    }
    journal.flush().await.unwrap();
    let runs = journal.records.search_runs(RunSearch::default(), |_| true, None, 9).await.unwrap().items;
    assert_eq!(runs.iter().map(|run| run.main_argument.as_deref()).collect::<Vec<_>>(), [Some("/ran")]);
    let refusals =
        journal.records.search_refusals(RefusalSearch::default(), |_| true, None, 9).await.unwrap().items;
    let shown = refusals.iter().map(|refusal| refusal.main_argument.as_deref()).collect::<Vec<_>>();
    // The newest first: a refused call with the id of one that ran is not that one.
    assert_eq!(shown, [None, None, Some("/waited")]);
}

/// An id may be used again after a wait, with other arguments, and be refused at once or wait as well.
#[tokio::test]
async fn a_refusal_has_the_arguments_of_the_wait_that_ended_with_it() {
    let (_folder, path, journal) = new_journal();
    let first = Call { arguments: arguments(&json!({ "path": "/first" })), ..another() };
    let second = Call { arguments: arguments(&json!({ "path": "/second" })), ..first.clone() };
    for (call, at) in [(&first, NOW), (&second, LATER)] {
        hold(&journal, call).await;
        let arguments = journal.decisions.arguments_text(call);
        let expired = ResolvedIntent { at, arguments, ..resolve_by_anna(call, Resolution::Expired) };
        assert_eq!(journal.decisions.resolve(vec![expired]).await.unwrap(), 1);
        let summary = IntentSummary::from_call(call);
        journal.decisions.record_refusal(&summary, BlockedBy::EscalationPending, "expired", at);
        journal.decisions.record_refusal(&summary, BlockedBy::StandingPolicy, "no", at + Duration::SECOND);
        // A start that is taken back lets the id be used for other content.
        assert!(matches!(start(&journal, call, None).await, StartResult::New));
        journal.claims.release(call.intent).await.unwrap();
    }
    journal.flush().await.unwrap();
    let refusals =
        journal.records.search_refusals(RefusalSearch::default(), |_| true, None, 9).await.unwrap().items;
    let shown = refusals.iter().map(|refusal| refusal.main_argument.as_deref()).collect::<Vec<_>>();
    assert_eq!(shown, [None, Some("/second"), None, Some("/first")]);
    let history = History::open(&path).unwrap();
    let stored = refusals.iter().map(|refusal| history.arguments_of_refusal(&refusal.refusal).unwrap());
    let expected =
        [None, kept(&json!({ "path": "/second" }), &[]), None, kept(&json!({ "path": "/first" }), &[])];
    assert_eq!(stored.collect::<Vec<_>>(), expected);
}

/// The row has the hash that its record names, but the record is about another call.
#[tokio::test]
async fn arguments_of_another_call_are_found() {
    let (_folder, path, journal) = new_journal();
    let call = call(r#"{"a":1}"#);
    run(&journal, &call).await;
    drop(journal);
    wait_for_the_writer(&path);
    let claim = |text: &str| {
        let mut connection = Connection::open(&path).unwrap();
        let transaction = connection.transaction().unwrap();
        let mut log = log::RecordLog::resume(&transaction, log::Tip::read(&transaction).unwrap()).unwrap();
        let body = ClaimBody {
            content: Digest32(claims::content_hash(&call)),
            keep_until: 0,
            fallback_receipt: digest(b"{}"),
            task: None,
            verdict: None,
            arguments: Some(digest(text.as_bytes())),
        };
        let body = serde_json::to_vec(&body).unwrap();
        let intent = Some(IntentId::random());
        let agent = Some(call.agent.as_str());
        let new = log::NewRecord {
            at: 1,
            intent,
            agent,
            tool: Some("t"),
            body: &body,
            ..log::NewRecord::default()
        };
        let number = log.append(RecordKind::Claim, &new).unwrap();
        log.save().unwrap();
        transaction.execute("INSERT INTO open(run, fallback_receipt) VALUES (?1, '{}')", [number]).unwrap();
        transaction
            .execute("INSERT INTO arguments VALUES (?1, ?2)", rusqlite::params![number, text])
            .unwrap();
        transaction.commit().unwrap();
        verify_journal(&path, None).to_string()
    };
    let found = claim(r#"{"arguments":{"a":1}}"#);
    assert!(found.contains("intact"), "{found}");
    let found = claim(r#"{"arguments":{"a":2}}"#);
    assert!(found.contains("`arguments`") && found.contains("differs from the call"), "{found}");
}
