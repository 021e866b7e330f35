//! Intents that wait for a person, and the decisions of people.

use super::*;

/// The text of a call that a person is shown.
pub(super) fn shown_text(call: &Call) -> String {
    format!("shown: {}", call.intent)
}

pub(super) async fn hold(journal: &Journal, call: &Call) {
    assert_eq!(journal.decisions.hold(call, shown_text(call), LATER).await.unwrap(), HoldResult::Waiting);
}

pub(super) fn resolve_by_anna(call: &Call, resolution: Resolution) -> ResolvedIntent {
    ResolvedIntent {
        intent: call.intent,
        at: NOW,
        content: Some(claims::content_hash(call)),
        resolution,
        by: "anna".to_owned(),
        risk_score: Some(0.5),
        manifest: None,
        reason: None,
        basis: None,
        grants: Vec::new(),
        arguments: None,
    }
}

pub(super) async fn resolve(journal: &Journal, call: &Call, resolution: Resolution) {
    assert_eq!(
        journal.decisions.resolve(vec![resolve_by_anna(call, resolution)]).await.unwrap(),
        1,
        "{resolution:?}"
    );
}

pub(super) async fn find_denial(journal: &Journal, call: &Call) -> Option<IntentDenial> {
    match journal.claims.find(call, None).await.unwrap() {
        Some(KnownIntent::Denied(denial)) => Some(denial),
        Some(KnownIntent::Same(..) | KnownIntent::Conflict) | None => None,
    }
}

fn texts(journal: &Journal) -> Vec<String> {
    journal.decisions.take_held().into_iter().map(|held| held.text).collect()
}

#[tokio::test]
async fn held_intents_survive_restarts_until_they_start_or_are_resolved() {
    let (_folder, path, journal) = new_journal();
    let [stays, starts, cancelled, revoked, expired] = [(); 5].map(|()| another());
    for call in [&stays, &starts, &cancelled, &revoked, &expired, &stays] {
        hold(&journal, call).await;
    }
    for (call, how) in [
        (&cancelled, Resolution::Cancelled),
        (&revoked, Resolution::Revoked),
        (&expired, Resolution::Expired),
    ] {
        resolve(&journal, call, how).await;
        assert_eq!(
            journal.decisions.resolve(vec![resolve_by_anna(call, how)]).await.unwrap(),
            0,
            "it waits no longer"
        );
        // It may wait again.
        hold(&journal, call).await;
        resolve(&journal, call, how).await;
    }
    assert!(matches!(start(&journal, &starts, None).await, StartResult::New));
    // An intent that has started meanwhile does not wait.
    assert_eq!(
        journal.decisions.hold(&starts, shown_text(&starts), LATER).await.unwrap(),
        HoldResult::Started
    );
    drop(journal);
    let journal = open_journal(&path).0;
    assert_eq!(texts(&journal), [shown_text(&stays)]);
    assert!(texts(&journal).is_empty(), "they are given once");
    assert!(holds(&path));
}

/// A slow governor delays a call with other content until the first one waits or was withdrawn.
#[tokio::test]
async fn an_id_that_waits_or_has_waited_is_that_of_no_other_content() {
    let (_folder, path, journal) = new_journal();
    let [waits, approved, withdrawn, denied, started] = [(); 5].map(|()| another());
    for call in [&waits, &approved, &withdrawn, &denied] {
        hold(&journal, call).await;
    }
    resolve(&journal, &approved, Resolution::Approved).await;
    resolve(&journal, &withdrawn, Resolution::Cancelled).await;
    resolve(&journal, &denied, Resolution::Denied).await;
    assert!(matches!(start(&journal, &started, None).await, StartResult::New));
    for shown in [&waits, &approved, &withdrawn, &denied, &started] {
        let other = Call { intent: shown.intent, ..call(r#"{"other":1}"#) };
        let held = journal.decisions.hold(&other, shown_text(&other), LATER).await.unwrap();
        assert_eq!(held, HoldResult::Conflict);
        for how in [Resolution::Approved, Resolution::PartlyApproved, Resolution::Denied] {
            assert_eq!(
                journal.decisions.resolve(vec![resolve_by_anna(&other, how)]).await.unwrap(),
                0,
                "{how:?}"
            );
        }
    }
    for shown in [&waits, &approved, &withdrawn] {
        let other = Call { intent: shown.intent, ..call(r#"{"other":1}"#) };
        let result = start(&journal, &other, None).await;
        assert!(matches!(result, StartResult::Known(KnownIntent::Conflict)), "{result:?}");
    }
    // The content that waited first still waits, or may wait again.
    hold(&journal, &waits).await;
    hold(&journal, &withdrawn).await;
    assert!(matches!(start(&journal, &approved, None).await, StartResult::New));
    drop(journal);
    assert!(holds(&path), "{}", verify_journal(&path, None));
}

#[tokio::test]
async fn a_denial_keeps_its_reason() {
    let (_folder, path, journal) = new_journal();
    let [plain, reasoned] = [another(), another()];
    for call in [&plain, &reasoned] {
        hold(&journal, call).await;
    }
    resolve(&journal, &plain, Resolution::Denied).await;
    let denial =
        ResolvedIntent { reason: Some("why".to_owned()), ..resolve_by_anna(&reasoned, Resolution::Denied) };
    assert_eq!(journal.decisions.resolve(vec![denial]).await.unwrap(), 1);
    drop(journal);
    let journal = open_journal(&path).0;
    let reason = async |call| find_denial(&journal, call).await.unwrap().reason;
    assert_eq!((reason(&plain).await, reason(&reasoned).await.as_deref()), (None, Some("why")));
    drop(journal);
    assert!(holds(&path));
}

/// An intent that needs more approvals waits until it has them, also across restarts.
#[tokio::test]
async fn a_partial_approval_is_recorded_and_decides_nothing() {
    let (_folder, path, journal) = new_journal();
    let call = another();
    hold(&journal, &call).await;
    resolve(&journal, &call, Resolution::PartlyApproved).await;
    drop(journal);
    let journal = open_journal(&path).0;
    let held = journal.decisions.take_held();
    assert!(matches!(&*held, [HeldIntent { approval: None, .. }]), "{held:?}");
    resolve(&journal, &call, Resolution::PartlyApproved).await;
    resolve(&journal, &call, Resolution::Approved).await;
    // The intent may already start.
    let late = resolve_by_anna(&call, Resolution::PartlyApproved);
    assert_eq!(journal.decisions.resolve(vec![late]).await.unwrap(), 0);
    let record = journal.records.run_record(call.intent).await.unwrap().unwrap();
    let events = record.events.iter().map(|event| (event.kind, event.by.as_deref())).collect::<Vec<_>>();
    let by = Some("anna");
    let expected = [("held", None), ("partly_approved", by), ("partly_approved", by), ("approved", by)];
    assert_eq!(events, expected);
    drop(journal);
    assert!(holds(&path), "{}", verify_journal(&path, None));
}

#[tokio::test]
async fn decisions_are_final() {
    let (_folder, path, mut journal) = new_journal();
    let denied = another();
    let approved = another();
    for call in [&denied, &approved] {
        hold(&journal, call).await;
    }
    resolve(&journal, &denied, Resolution::Denied).await;
    resolve(&journal, &approved, Resolution::Approved).await;
    let denial = IntentDenial { by: Some("anna".to_owned()), risk_score: Some(0.5), reason: None };
    for round in 0..2 {
        assert_eq!(find_denial(&journal, &denied).await, Some(denial.clone()), "{round}");
        let waits = journal.decisions.hold(&denied, shown_text(&denied), LATER).await.unwrap();
        assert_eq!(waits, HoldResult::Denied(denial.clone()), "{round}");
        for how in [Resolution::Approved, Resolution::Denied] {
            assert_eq!(
                journal.decisions.resolve(vec![resolve_by_anna(&denied, how)]).await.unwrap(),
                0,
                "{round} {how:?}"
            );
            assert_eq!(
                journal.decisions.resolve(vec![resolve_by_anna(&approved, how)]).await.unwrap(),
                0,
                "{round} {how:?}"
            );
        }
        // A proof that arrives for it changes nothing.
        let began = start(&journal, &denied, None).await;
        assert!(matches!(began, StartResult::Known(KnownIntent::Denied(_))), "{round}: {began:?}");
        let other = Call { tool: ToolName::parse("other").unwrap(), ..denied.clone() };
        let found = journal.claims.find(&other, None).await.unwrap();
        assert!(matches!(found, Some(KnownIntent::Conflict)), "{round}: {found:?}");
        drop(journal);
        journal = open_journal(&path).0;
        let held = journal.decisions.take_held();
        assert_eq!(held.len(), 1, "{round}: {held:?}");
        assert_eq!(
            (&*held[0].text, &*held[0].approval.as_ref().unwrap().by),
            (&*shown_text(&approved), "anna")
        );
    }
    assert!(matches!(start(&journal, &approved, None).await, StartResult::New));
    drop(journal);
    assert!(open_journal(&path).0.decisions.take_held().is_empty());
    assert!(holds(&path));
}
