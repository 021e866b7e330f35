//! The texts of calls that wait for a person: the lines `waiting/…` of `tests/journals/rows.txt`, by the rules of
//! `journal::tests::rows`.

use super::*;
use a2g_types::call::{Door, Priority};
use a2g_types::ident::{AgentDid, Issuer, ProofId, ToolName};
use a2g_types::memory::Charge;
use a2g_types::quantity::Timeout;
use a2g_types::tool::{CallTargets, Digest};
use serde_json::json;
use std::collections::BTreeMap;
use strum::VariantArray as _;

fn call(door: Door, priority: Priority) -> Call {
    let object = |value: serde_json::Value| value.as_object().cloned();
    Call {
        door,
        agent: AgentDid::parse("did:a:b").unwrap(),
        intent: IntentId::parse("550e8400-e29b-41d4-a716-446655440000").unwrap(),
        is_new: false,
        tool: ToolName::parse("t").unwrap(),
        arguments: object(json!({ "b": 1, "a": [null, 2.5] })).unwrap(),
        context: object(json!({ "executor": "did:a:c" })),
        caller_timeout: Timeout::from_millis(1500).ok(),
        priority,
        charge: Charge::default(),
        parent: None,
        caller_tools: None,
        session: None,
    }
}

fn verdict() -> Verdict {
    Verdict {
        decision: Decision::Escalate,
        intent: call(Door::A2g, Priority::Normal).intent,
        risk: None,
        manifest: Manifest::default(),
        conditions: Vec::new(),
        expires_at: Some(time::macros::datetime!(2026-11-21 12:05 UTC)),
        reason: None,
        rationale: Rationale::default(),
    }
}

fn proven(module: Option<Digest>) -> VerifiedProof {
    let id = ProofId::parse(Issuer::parse("did:a:issuer").unwrap(), "jti-1").unwrap();
    VerifiedProof { id, expires_at: time::macros::datetime!(2026-11-21 12:04 UTC), module }
}

fn waiting() -> Vec<(String, Escalated)> {
    let escalated = |door, priority, proof| Escalated {
        call: call(door, priority),
        verdict: VerifiedVerdict { verdict: Arc::new(verdict()), proof, entry: None },
        module: None,
    };
    let doors = Door::VARIANTS
        .iter()
        .map(|door| (format!("waiting/door/{door:?}"), escalated(*door, Priority::Normal, None)));
    let priorities = Priority::VARIANTS
        .iter()
        .map(|priority| (format!("waiting/priority/{priority:?}"), escalated(Door::A2g, *priority, None)));
    let mut short = escalated(Door::A2g, Priority::Normal, Some(proven(None)));
    (short.call.context, short.call.caller_timeout) = (None, None);
    let module = Some(proven(Some(Digest([0xab; 32]))));
    let bound = escalated(Door::A2g, Priority::Normal, None).bind_to_module(Digest([0xcd; 32]));
    let reaching = |tools| {
        let mut escalated = escalated(Door::A2g, Priority::Normal, None);
        escalated.call.caller_tools = Some(tools);
        escalated
    };
    let rest = [
        ("waiting/caller_tools/All".to_owned(), reaching(CallTargets::All)),
        ("waiting/caller_tools/Named".to_owned(), reaching(CallTargets::parse(&["t", "u"]).unwrap())),
        ("waiting/proof".to_owned(), short),
        ("waiting/module".to_owned(), escalated(Door::A2g, Priority::Normal, module)),
        ("waiting/bound".to_owned(), bound),
    ];
    doors.chain(priorities).chain(rest).collect()
}

#[test]
fn a_call_that_waits_is_written_and_read_as_it_was_before() {
    let path = format!("{}/../../../tests/journals/rows.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().map(|line| line.split_once(' ').unwrap());
    let mut golden = rows.filter(|(name, _)| name.starts_with("waiting/")).collect::<BTreeMap<&str, &str>>();
    for (name, escalated) in waiting() {
        let written = escalated.to_journal().unwrap();
        let kept =
            golden.remove(&*name).unwrap_or_else(|| panic!("rows.txt lacks this line:\n{name} {written}"));
        assert_eq!(kept, written, "{name}");
        let read = Escalated::from_journal(kept).unwrap();
        assert_eq!(read.call, escalated.call, "{name}");
        assert_eq!(read.verdict.verdict, escalated.verdict.verdict, "{name}");
        assert_eq!(read.verdict.proof, escalated.verdict.proof, "{name}");
        assert_eq!(read.module, escalated.module, "{name}");
    }
    assert_eq!(golden, BTreeMap::new(), "lines of rows.txt that nothing was compared with");
}

#[test]
fn a_call_of_an_unknown_caller_reaches_its_own_tool_and_no_other() {
    let stored = call(Door::A2g, Priority::Normal);
    check_caller_tools(&stored).unwrap();
    assert_eq!(caller_claims(&stored).calls, Some(CallTargets::none()));
    let tools =
        |names: &[&str]| Call { caller_tools: Some(CallTargets::parse(names).unwrap()), ..stored.clone() };
    check_caller_tools(&tools(&["t", "u"])).unwrap();
    assert_eq!(caller_claims(&tools(&["*"])).calls, None);
    let refused = check_caller_tools(&tools(&["u"])).unwrap_err();
    assert!(
        matches!(refused, Fault::Refused { blocked_by: BlockedBy::CallerUnauthorized, .. }),
        "{refused:?}"
    );
}

#[test]
fn another_node_is_told_what_the_caller_of_a_call_reaches() {
    let caller_tools = Some(CallTargets::parse(&["t"]).unwrap());
    let call = Call { caller_tools: caller_tools.clone(), ..call(Door::A2g, Priority::Normal) };
    let verdict = Arc::new(Verdict { decision: Decision::Approved, ..verdict() });
    let verdict = VerifiedVerdict { verdict, proof: None, entry: None };
    let Ok(Admission::Run(admitted)) = admit(call, verdict, OffsetDateTime::UNIX_EPOCH) else {
        panic!("it is not approved")
    };
    let text = admitted.to_node().unwrap().unwrap();
    let passed = serde_json::from_str::<StoredCall>(&text).unwrap();
    assert_eq!(passed.call.caller_tools, caller_tools);
}
