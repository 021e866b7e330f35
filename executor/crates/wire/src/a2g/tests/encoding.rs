//! The written messages: the document's shapes in the document's order, and the additions of `usage`.

use super::*;
use crate::a2g::decode::{EffectsDecision, EffectsSet};
use crate::a2g::schema::names;
use crate::a2g::{decode, encode, openrpc};
use a2g_types::call::StoredArguments;
use a2g_types::fault::BlockedBy;
use a2g_types::ident::{SecretName, SignerName};
use a2g_types::limit::{ClaimedLimits, FileEffects, Limit, NetworkBudgets};
use a2g_types::outcome::{
    ChangeCounts, ChangeState, ChangeWord, ChangedRange, Contact, DecisionAct, DenialReason, EntryWord,
    FileChanges, HostRule, NetworkUsage, SecretUse, ShownChange, ShownRequest, Status,
};
use a2g_types::request::DeclaredRequest;
use a2g_types::session::SessionRequest;
use a2g_types::tool::{DeclaredCapabilities, Descriptor, Digest, ToolSignature};
use serde_json::value::RawValue;

fn value(raw: &RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap()
}

#[test]
fn the_documents_messages_come_out_as_they_went_in() {
    let intent = document_intent();
    assert_eq!(encode::intent(&decode::intent(&intent.to_string()).unwrap()).get(), intent.to_string());
    let verdict = document_verdict();
    // The texts are compared, not the values: the order of the members has to be the document's as well.
    assert_eq!(encode::verdict(&decode::verdict(&verdict.to_string()).unwrap()).get(), verdict.to_string());
    let policy = document_policy();
    assert_eq!(value(&encode::policy(&decode::policy(&policy.to_string()).unwrap())), policy);
}

#[test]
fn a_denial_stays_a_denial() {
    let denial = json!({ "verdict": "DENIED", "intent_id": INTENT, "reason": "no" });
    let verdict = decode::verdict(&denial.to_string()).unwrap();
    assert_eq!(decode::verdict(encode::verdict(&verdict).get()).unwrap(), verdict);
}

#[test]
fn the_documents_report_with_usage_behind_it() {
    let receipt = receipt(End::Returned(json!({ "bytes_written": 13, "path": "/tmp/test.txt" }).into()));
    let report = value(&encode::report(&receipt));
    assert_eq!(without(report.clone(), "/usage"), document_report());
    decode::report(&report.to_string()).unwrap();
    assert_eq!(
        report["usage"],
        json!({
            "limits": {
                "max_memory_mb": { "granted": 50, "used": 2, "slack": 48, "set_by": "verdict" },
                "max_cpu_percent": { "granted": 10, "used": 1.5, "slack": 8.5, "set_by": "verdict" },
                "timeout_seconds": { "granted": 30, "used": 0.045, "slack": 29.955, "set_by": "condition" },
                "max_output_bytes":
                    { "granted": 1_048_576, "used": 44, "slack": 1_048_532, "set_by": "executor" },
                "max_written_mb": { "granted": 1024, "used": 1, "slack": 1023, "set_by": "executor" },
                "max_created": { "granted": 1000, "used": 2, "slack": 998, "set_by": "executor" },
                "max_random_bytes":
                    { "granted": 1_048_576, "used": 16, "slack": 1_048_560, "set_by": "executor" },
                "max_directory_entries":
                    { "granted": 10_000, "used": 3, "slack": 9_997, "set_by": "executor" },
                "max_artifacts": { "granted": 1000, "used": null, "slack": null, "set_by": "executor" },
                "max_handles": { "granted": 1024, "set_by": "executor" },
                "max_subscriptions": { "granted": 128, "set_by": "executor" },
                "network_allowed": { "granted": false, "linked": false, "set_by": "verdict" },
                "filesystem_scope": {
                    "granted": ["/tmp/**"],
                    "trees": [{
                        "path": "/tmp",
                        "pattern": "/tmp/**",
                        "access": "read-write",
                        "access_set_by": "tool",
                        "set_by": "verdict"
                    }]
                }
            },
            "denied": [{ "what": "/etc/passwd", "reason": "outside_scope", "count": 2 }],
            "denied_truncated": false
        })
    );
}

#[test]
fn the_use_in_a_report_is_read_back_or_else_all_of_it_is_unknown() {
    let report = value(&encode::report(&receipt(End::ResultNotJson)));
    let contacted = json!([{ "authority": "https://a.example:443", "requests": 3 }]);
    let with_network = with(report.clone(), "/usage/contacted", contacted);
    let with_network = with(with_network, "/usage/secrets", json!([{ "name": "token", "uses": 2 }]));
    let held = json!({ "requests": [{ "url": "https://b.example/" }] });
    let used = decode::report_usage(&with(with_network, "/usage/effects", held).to_string()).unwrap();
    assert_eq!(
        used,
        decode::ReportUsage {
            granted: vec!["/tmp/**".into()],
            blocked: Vec::new(),
            contacted: vec![("https://a.example:443".into(), 3), ("https://b.example/".into(), 1)],
            secrets: vec![(SecretName::parse("token").unwrap(), 2)],
            written_bytes: BYTES_PER_MB,
        }
    );
    for (pointer, unknown) in [
        ("/usage", json!({})),
        ("/usage/contacted_truncated", json!(true)),
        ("/usage/limits/max_written_mb/used", json!(null)),
        ("/usage/limits/filesystem_scope/granted", json!("/tmp/**")),
    ] {
        let report = with(report.clone(), pointer, unknown);
        assert_eq!(decode::report_usage(&report.to_string()), None, "{pointer}");
    }
}

#[test]
fn slack_is_never_below_zero() {
    let mut receipt = receipt(End::ResultNotJson);
    receipt.outcome.metrics = RunMetrics {
        wall: Duration::from_secs(31),
        cpu: Duration::from_secs(62),
        peak_memory_bytes: 51 * BYTES_PER_MB,
        output_bytes: u64::MAX,
        peak_resident_bytes: None,
        earlier_runs: 0,
    };
    let limits = value(&encode::report(&receipt))["usage"]["limits"].take();
    for limit in ["max_memory_mb", "max_cpu_percent", "timeout_seconds", "max_output_bytes"] {
        assert_eq!(limits[limit]["slack"].as_f64(), Some(0.0), "{limit}");
    }
}

#[test]
fn effects_are_reported_unless_they_are_direct() {
    let mut receipt = receipt(End::Returned(json!(1).into()));
    assert_eq!(value(&encode::report(&receipt))["usage"].get("effects"), None);
    receipt.outcome.usage.effects = Bound { value: FileEffects::Atomic, layer: Layer::Condition };
    let report = value(&encode::report(&receipt));
    assert_eq!(report["usage"]["effects"], json!({ "mode": "atomic", "set_by": "condition" }));
    receipt.outcome.usage.changes = Some(FileChanges::new(2, Digest([0xab; 32])));
    let report = value(&encode::report(&receipt));
    let expected =
        json!({ "mode": "atomic", "set_by": "condition", "changes": 2, "digest": "ab".repeat(32) });
    assert_eq!(report["usage"]["effects"], expected);
}

/// A deletion, a rename with everything that a change can have, and two changes that are not listed.
fn staged_changes() -> FileChanges {
    let deletion = ShownChange::new(ChangeWord::Deleted, EntryWord::Folder, "/tmp/old");
    let rename = ShownChange {
        kind: ChangeWord::Renamed,
        entry: EntryWord::File,
        path: "/tmp/b".into(),
        from: Some("/tmp/a".into()),
        bytes_before: Some(0),
        bytes_after: Some(u64::MAX),
        mode_before: Some(0o600),
        mode_after: Some(u32::MAX),
        target: Some("c".into()),
        diff: Some("@@ -0,0 +1 @@\n+x\n".into()),
        ranges: vec![ChangedRange { start: 1, old_bytes: 2, new_bytes: 3 }],
        is_diff_cut: true,
    };
    let counts = ChangeCounts { deleted: 1, renamed: 1, created: 2, ..ChangeCounts::default() };
    FileChanges {
        counts: Some(counts),
        shown: vec![deletion, rename],
        ..FileChanges::new(4, Digest([0xab; 32]))
    }
}

fn staged_receipt() -> Receipt {
    let mut receipt = receipt(End::Staged(json!(1).into()));
    receipt.outcome.usage.effects = Bound { value: FileEffects::Staged, layer: Layer::Tool };
    receipt.outcome.usage.changes = Some(staged_changes());
    receipt
}

/// A set whose changes wait, as a list has it and as its own request shows it.
fn effects_sets() -> [EffectsSet; 2] {
    let decision = Receipt {
        tool: ToolName::parse(DecisionAct::Commit.tool()).unwrap(),
        approved_by: Some("anna".into()),
        ..receipt(End::NotCommitted("`/tmp/b` has changed".into()))
    };
    let request = ShownRequest {
        method: "POST".into(),
        url: "https://a.example:443/x".into(),
        fields: vec!["cookie".into()],
        body_bytes: 5,
        body_digest: Digest([0xcd; 32]),
        body: Some("hello".into()),
    };
    let shown = EffectsSet {
        intent: IntentId::parse(INTENT).unwrap(),
        agent: AgentDid::parse(AGENT).unwrap(),
        tool: ToolName::parse("write_file").unwrap(),
        mode: FileEffects::Staged,
        state: ChangeState::Waiting,
        changes: FileChanges { requests: vec![request], ..staged_changes() },
        held: 1,
        bytes: 4096,
        since: OffsetDateTime::UNIX_EPOCH,
        until: OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1),
        decisions: Some(vec![EffectsDecision::of_receipt(&decision).unwrap()]),
    };
    let changes = FileChanges { counts: None, shown: Vec::new(), ..staged_changes() };
    [EffectsSet { changes, decisions: None, ..shown.clone() }, shown]
}

#[test]
fn a_staged_run_is_reported_with_its_result_and_the_changes_that_wait() {
    let report = value(&encode::report(&staged_receipt()));
    assert_eq!(
        (&report["status"], &report["result"], report.get("error")),
        (&json!("STAGED"), &json!(1), None)
    );
    let expected = json!({
        "mode": "staged",
        "set_by": "tool",
        "changes": 4,
        "digest": "ab".repeat(32),
        "counts": { "deleted": 1, "renamed": 1, "emptied": 0, "changed": 0, "attributes": 0, "created": 2 },
        "files": [
            { "change": "deleted", "entry": "folder", "path": "/tmp/old" },
            {
                "change": "renamed",
                "entry": "file",
                "path": "/tmp/b",
                "from": "/tmp/a",
                "bytes_before": 0,
                "bytes_after": u64::MAX,
                "mode_before": 0o600,
                "mode_after": u32::MAX,
                "target": "c",
                "diff": "@@ -0,0 +1 @@\n+x\n",
                "ranges": [{ "start": 1, "old_bytes": 2, "new_bytes": 3 }],
                "diff_cut": true
            }
        ],
        "left_out": 2
    });
    assert_eq!(report["usage"]["effects"], expected);
    let mut committed = staged_receipt();
    committed.outcome.usage.effects.value = FileEffects::Atomic;
    let effects = value(&encode::report(&committed))["usage"]["effects"].take();
    assert_eq!((effects.get("files"), effects.get("left_out"), effects.get("counts")), (None, None, None));
}

#[test]
fn sets_of_file_changes_are_read_as_they_are_written() {
    let sets = effects_sets();
    let written = encode::effects(&sets);
    assert_eq!(decode::effects_result(written.get()).unwrap(), sets);
    let listed = &value(&written)["sets"][0];
    for absent in ["counts", "files", "left_out", "requests", "decisions"] {
        assert_eq!(listed.get(absent), None, "{absent}");
    }
    assert_eq!(listed["held"], 1);
    let shown = &value(&written)["sets"][1];
    assert_eq!((&shown["state"], &shown["left_out"]), (&json!("waiting"), &json!(2)));
    let request = json!({
        "method": "POST", "url": "https://a.example:443/x", "fields": ["cookie"], "bytes": 5, "sha256": "cd".repeat(32),
        "body": "hello",
    });
    assert_eq!(shown["requests"], json!([request]));
    let uncounted = FileChanges { counts: None, ..staged_changes() };
    let old = [EffectsSet { changes: uncounted, ..effects_sets()[1].clone() }];
    assert_eq!(decode::effects_result(encode::effects(&old).get()).unwrap(), old);
    let message = "`/tmp/b` has changed";
    let decision =
        json!({ "intent": INTENT, "act": "commit", "status": "FAILURE", "by": "anna", "message": message });
    assert_eq!(shown["decisions"], json!([decision]));
    assert_eq!(EffectsDecision::of_receipt(&staged_receipt()), None);
}

#[test]
fn decisions_on_file_changes_name_one_intent_and_nothing_else() {
    let intent = IntentId::parse(INTENT).unwrap();
    for asked in [None, Some(intent)] {
        assert_eq!(decode::effects_params(encode::effects_params(asked).get()).unwrap(), asked);
    }
    assert_eq!(decode::decision_params(encode::decision_params(intent).get()).unwrap(), intent);
    let digest = Digest([0xab; 32]);
    let params = encode::commit_params(intent, &digest);
    assert_eq!(decode::commit_params(params.get()).unwrap(), decode::CommitParams { intent, digest });
    for wrong in [json!({}), json!({ "intent": INTENT }), json!({ "intent": INTENT, "digest": "AB" })] {
        assert!(decode::commit_params(&wrong.to_string()).is_err(), "{wrong}");
    }
    for wrong in [json!({ "intent_id": INTENT }), json!({ "intent": null }), json!([])] {
        assert!(decode::effects_params(&wrong.to_string()).is_err(), "{wrong}");
        assert!(decode::decision_params(&wrong.to_string()).is_err(), "{wrong}");
    }
}

#[test]
fn a_process_is_reported_with_its_peak_and_its_earlier_runs() {
    let mut receipt = receipt(End::Returned(json!(1).into()));
    for (peak_resident_bytes, earlier_runs, expected) in [
        (None, 0, Value::Null),
        (Some(BYTES_PER_MB + 1), 0, json!({ "peak_resident_mb": 2 })),
        (Some(BYTES_PER_MB), 3, json!({ "peak_resident_mb": 1, "earlier_runs": 3 })),
        (None, 1, json!({ "earlier_runs": 1 })),
    ] {
        receipt.outcome.metrics.peak_resident_bytes = peak_resident_bytes;
        receipt.outcome.metrics.earlier_runs = earlier_runs;
        let report = value(&encode::report(&receipt));
        assert_eq!(report["usage"].get("process").unwrap_or(&Value::Null), &expected);
    }
}

#[test]
fn a_null_result_and_an_empty_scope_say_so() {
    let mut receipt = receipt(End::Returned(Value::Null.into()));
    let usage = &mut receipt.outcome.usage;
    usage.filesystem.clear();
    usage.filesystem_emptied_by = Some(Layer::StandingPolicy);
    let report = value(&encode::report(&receipt));
    assert_eq!(report["result"], Value::Null);
    assert!(report.as_object().unwrap().contains_key("result"), "a null result is a result");
    assert_eq!(
        report["usage"]["limits"]["filesystem_scope"],
        json!({ "granted": [], "trees": [], "set_by": "standing_policy" })
    );
}

#[test]
fn a_network_is_told_with_all_that_came_of_it() {
    let mut receipt = receipt(End::Returned(Value::Null.into()));
    let without = value(&encode::report(&receipt))["usage"].take();
    assert!(without.get("contacted").is_none() && without["limits"].get("network").is_none());
    let rule = |pattern: &str, set_by| HostRule { pattern: pattern.to_owned(), set_by };
    receipt.outcome.usage.network = Bound { value: true, layer: Layer::Verdict };
    receipt.outcome.usage.network_used = Some(NetworkUsage {
        budgets: NetworkBudgets {
            requests: 10,
            connections: 4,
            sent_bytes: 1000,
            received_bytes: 2000,
            ..NetworkBudgets::ZERO
        },
        allowed: vec![rule("*.example.com", Layer::StandingPolicy)],
        blocked: vec![rule("b.example.com", Layer::Executor)],
        allowed_requests: vec![Bound { value: "GET https://a.example.com/{id}".into(), layer: Layer::Tool }],
        requests_per_minute: Some(Bound { value: 60, layer: Layer::StandingPolicy }),
        requests: 3,
        connections: 1,
        sent_bytes: 120,
        received_bytes: 2000,
        contacted: vec![Contact {
            authority: "https://a.example.com:443".to_owned(),
            address: "93.184.216.34:443".parse().unwrap(),
            requests: 2,
            sent_bytes: 120,
            received_bytes: 2000,
        }],
        contacted_truncated: false,
        secrets: vec![SecretUse {
            name: SecretName::parse("github").unwrap(),
            versions: vec!["0123456789abcdef".to_owned()],
            uses: 2,
            without: 1,
            kept_cookies: 0,
            redacted: 3,
            placeholders: 0,
        }],
        remote_server: Some("https://mcp.example".to_owned()),
    });
    let usage = value(&encode::report(&receipt))["usage"].take();
    assert_eq!(
        usage["limits"]["network_allowed"],
        json!({ "granted": true, "linked": true, "set_by": "verdict" })
    );
    assert_eq!(
        usage["limits"]["network"],
        json!({
            "allowed_domains": [{ "pattern": "*.example.com", "set_by": "standing_policy" }],
            "blocked_domains": [{ "pattern": "b.example.com", "set_by": "executor" }],
            "allowed_requests": [{ "pattern": "GET https://a.example.com/{id}", "set_by": "tool" }],
            "max_requests": { "granted": 10, "used": 3, "slack": 7, "set_by": "executor" },
            "max_connections": { "granted": 4, "used": 1, "slack": 3, "set_by": "executor" },
            "max_sent_bytes": { "granted": 1000, "used": 120, "slack": 880, "set_by": "executor" },
            "max_received_bytes": { "granted": 2000, "used": 2000, "slack": 0, "set_by": "executor" },
            "max_requests_per_minute": { "granted": 60, "set_by": "standing_policy" }
        })
    );
    assert_eq!(
        usage["secrets"],
        json!([{
            "name": "github",
            "versions": ["0123456789abcdef"],
            "uses": 2,
            "without": 1,
            "kept_cookies": 0,
            "redacted": 3,
        }])
    );
    assert_eq!(
        usage["contacted"],
        json!([{
            "authority": "https://a.example.com:443",
            "address": "93.184.216.34:443",
            "requests": 2,
            "sent_bytes": 120,
            "received_bytes": 2000
        }])
    );
    assert_eq!(usage["contacted_truncated"], false);
    assert_eq!(
        (&usage["remote_server"], without.get("remote_server")),
        (&json!("https://mcp.example"), None)
    );
}

#[test]
fn logs_artifacts_and_truncation_are_there_only_when_they_are() {
    let quiet = value(&encode::report(&receipt(End::Returned(json!(1).into()))));
    let loud = value(&encode::report(&talkative_receipt()));
    for member in ["logs", "artifacts", "truncated", "error", "tool_error"] {
        assert!(quiet.get(member).is_none(), "{member}");
    }
    assert_eq!(loud["logs"], json!([{ "level": "warn", "message": "slow" }]));
    assert_eq!(
        loud["artifacts"],
        json!([{ "name": "plot.png", "mime": "image/png", "content": "//79AA==" }])
    );
    assert_eq!(loud["truncated"], json!(true));
}

#[test]
fn the_gateways_answer_is_the_verdict_with_the_report() {
    let verdict = decode::verdict(&document_verdict().to_string()).unwrap();
    assert_eq!(encode::intent_answer(&verdict, None).get(), document_verdict().to_string());
    let receipt = receipt(End::Returned(json!(1).into()));
    let answer = value(&encode::intent_answer(&verdict, Some(&receipt)));
    assert_eq!(answer["report"], value(&encode::report(&receipt)));
    assert_eq!(without(answer, "/report"), document_verdict());
}

#[test]
fn small_answers() {
    let intent = IntentId::parse(INTENT).unwrap();
    let agent = AgentDid::parse(AGENT).unwrap();
    assert_eq!(
        value(&encode::cancel_result(intent, true)),
        json!({ "intent_id": INTENT, "cancelled": true })
    );
    assert_eq!(
        value(&encode::status(intent, encode::IntentStateName::Queued, None, None, &[], None, None)),
        json!({ "intent_id": INTENT, "state": "queued" })
    );
    assert_eq!(
        value(&encode::waiting_status(intent, Some(SessionRequest::New), None)),
        json!({ "intent_id": INTENT, "state": "escalated", "session": "new" })
    );
    let staged = staged_receipt();
    let state = Some(ChangeState::InForce);
    let finished = encode::IntentStateName::Finished;
    let status = value(&encode::status(intent, finished, Some(&staged), state, &[], None, None));
    assert_eq!(status["effects_state"], "in_force");
    assert_eq!(value(&encode::acceptance()), json!({ "accepted": true }));
    assert_eq!(value(&encode::revoke_result(2)), json!({ "accepted": true, "aborted": 2 }));
    assert_eq!(value(&encode::stop_result(2)), json!({ "accepted": true, "aborted": 2 }));
    assert_eq!(value(&encode::resume_result(true)), json!({ "resumed": true }));
    assert_eq!(value(&encode::relay_result(3)), json!({ "accepted": true, "executors": 3 }));

    let journal = encode::JournalState { count: 3, root: "ab", signature: Some("x.y.z") };
    let beat = decode::heartbeat(encode::heartbeat(&agent, 7, 1, 2, journal).get()).unwrap();
    assert_eq!((beat.agent, beat.uptime_seconds, beat.running, beat.queued), (agent.clone(), 7, 1, 2));
    let registration =
        decode::registration(encode::registration(&agent, Some("ed25519:00"), &["echo".to_owned()]).get())
            .unwrap();
    assert_eq!(registration.capabilities_requested, ["echo"]);

    let policy = decode::policy(&document_policy().to_string()).unwrap();
    assert_eq!(
        decode::registration_result(encode::registration_result(Some(&policy)).get()).unwrap(),
        Some(policy)
    );
    assert_eq!(decode::registration_result(encode::registration_result(None).get()).unwrap(), None);
}

fn stop_targets() -> [StopTarget; 3] {
    let tool = ToolName::parse("write_file").unwrap();
    [StopTarget::Agent(AgentDid::parse(AGENT).unwrap()), StopTarget::Tool(tool), StopTarget::Everything]
}

#[test]
fn stops_are_read_as_they_are_written() {
    let reason = OperatorReason::parse("it deletes files").unwrap();
    let stops = stop_targets().map(|target| Stop {
        target,
        reason: reason.clone(),
        by: "anna".to_owned(),
        since: OffsetDateTime::UNIX_EPOCH,
    });
    assert_eq!(decode::stops_result(encode::stops(&stops).get()).unwrap(), stops);
    for target in stop_targets() {
        let params = encode::stop_params(&target, &reason);
        let expected = decode::StopParams { target: target.clone(), reason: reason.clone() };
        assert_eq!(decode::stop_params(params.get()).unwrap(), expected);
        assert_eq!(decode::resume_params(encode::resume_params(&target).get()).unwrap(), target);
    }
}

fn signature() -> ToolSignature {
    ToolSignature {
        signer: SignerName::parse("release@example").unwrap(),
        package: Digest([0xcd; 32]),
        expires_at: Some(time::macros::datetime!(2027-01-02 03:04:05 UTC)),
    }
}

#[test]
fn a_signature_is_in_the_list_of_tools_and_in_a_report() {
    let expected = json!({
        "signer": "release@example",
        "package": format!("sha256:{}", "cd".repeat(32)),
        "expires_at": "2027-01-02T03:04:05Z",
    });
    let tool = Descriptor { signature: Some(signature()), ..descriptor("write_file", json!({})) };
    assert_eq!(value(&encode::tool(&tool))["signature"], expected);
    let signed = Receipt { signature: Some(signature()), ..receipt(End::ResultNotJson) };
    assert_eq!(value(&encode::report(&signed))["tool_signature"], expected);
    assert_eq!(value(&encode::report(&receipt(End::ResultNotJson))).get("tool_signature"), None);
}

#[test]
fn the_openrpc_document_holds_what_this_door_writes_and_reads() {
    let document = openrpc::document("1.2.3");
    let validates = |schema: &Value, instance: &Value| {
        let mut schema = schema.clone();
        schema["components"] = document["components"].clone();
        schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
        let validator = jsonschema::validator_for(&schema).unwrap();
        validator.validate(instance).map_err(|error| format!("{error} at {}", error.instance_path()))
    };
    let named = |name: &str| json!({ "allOf": [{ "$ref": format!("#/components/schemas/{name}") }] });
    let check =
        |name: &str, raw: &RawValue| assert_eq!(validates(&named(name), &value(raw)), Ok(()), "{name}");

    let tool = Descriptor {
        capabilities: DeclaredCapabilities {
            network: true,
            requests: [DeclaredRequest::parse("GET https://a.example/{id}").unwrap()].into(),
            secrets: [SecretName::parse("github").unwrap()].into(),
            limits: ClaimedLimits::default().with(MemoryLimit::from_mb(16).ok()),
            ..Default::default()
        },
        signature: Some(signature()),
        ..descriptor("write_file", json!({ "type": "object" }))
    };
    let verdict = decode::verdict(&document_verdict().to_string()).unwrap();
    let policy = decode::policy(&document_policy().to_string()).unwrap();
    let failed = receipt(End::ToolError { code: "E".into(), message: "m".into(), detail: Some(json!(1)) });
    let intent = verdict.intent;
    check("Intent", &encode::json_value(&document_intent()));
    check("Verdict", &encode::verdict(&verdict));
    check("IntentAnswer", &encode::intent_answer(&verdict, Some(&talkative_receipt())));
    check("Report", &encode::report(&failed));
    check("Report", &encode::report(&Receipt { signature: Some(signature()), ..failed.clone() }));
    check("Report", &encode::report(&talkative_receipt()));
    check("Capabilities", &encode::json_value(&value(&encode::policy(&policy))["capabilities"]));
    check("Tools", &encode::tools([&tool]));
    check("Tool", &encode::tool(&tool));
    check("Cancelled", &encode::cancel_result(intent, false));
    check("IntentStatus", &encode::waiting_status(intent, Some(SessionRequest::New), None));
    let finished = encode::IntentStateName::Finished;
    check("IntentStatus", &encode::status(intent, finished, Some(&failed), None, &[], None, None));
    let state = Some(ChangeState::Waiting);
    check("IntentStatus", &encode::status(intent, finished, Some(&staged_receipt()), state, &[], None, None));
    check("EffectsSets", &encode::effects(&effects_sets()));
    let kept =
        StoredArguments::Kept { arguments: serde_json::Map::new(), left_out: vec!["/password".to_owned()] };
    for arguments in [kept, StoredArguments::TooLarge { max_bytes: 9 }] {
        let denied = encode::IntentStateName::Denied;
        let denial = Some(("no", BlockedBy::VerdictDenied));
        check("IntentStatus", &encode::status(intent, denied, None, None, &[], Some(&arguments), denial));
    }
    check("Accepted", &encode::revoke_result(1));
    let reason = OperatorReason::parse("it deletes files").unwrap();
    for target in stop_targets() {
        let params = value(&encode::stop_params(&target, &reason));
        check("StopTarget", &encode::json_value(&params["target"]));
        let stop =
            Stop { target, reason: reason.clone(), by: "anna".to_owned(), since: OffsetDateTime::UNIX_EPOCH };
        check("Stops", &encode::stops(&[stop]));
    }
    let target = |target: Value| validates(&named("StopTarget"), &target);
    for wrong in
        [json!({}), json!({ "all": false }), json!({ "tool": "a", "all": true }), json!({ "tol": "a" })]
    {
        assert!(target(wrong).is_err());
    }
    check("Resumed", &encode::resume_result(true));
    let manifest = |manifest: Value| validates(&named("CapabilityManifest"), &manifest);
    assert!(manifest(json!({ "max_memory_mb": 0 })).is_err());
    assert!(manifest(json!({ "max_files": 1 })).is_err());
    for (number, in_policy, in_tool) in
        [(0, true, false), (1, true, true), (100_000, true, true), (100_001, false, false)]
    {
        let rule = json!({ "allowed": true, "constraints": { "max_calls": number } });
        let allowed = json!({ "tools": { "program": rule } });
        assert_eq!(validates(&named("Capabilities"), &allowed).is_ok(), in_policy, "{number}");
        let declared = json!({ "filesystem": "none", "network": false, "max_calls": number });
        assert_eq!(validates(&named("DeclaredCapabilities"), &declared).is_ok(), in_tool, "{number}");
    }
}

#[test]
fn the_page_of_this_door_names_every_word_of_the_closed_sets() {
    let page = include_str!("../../../../../../docs/protocols/a2g.md");
    let sets = [
        names::<Layer>(),
        Limit::ending_runs().map(Limit::as_str).collect(),
        names::<DenialReason>(),
        names::<BlockedBy>(),
        names::<Status>(),
        names::<FileEffects>(),
        names::<ChangeState>(),
        names::<ChangeWord>(),
        names::<EntryWord>(),
    ];
    for word in sets.concat() {
        assert!(page.contains(&format!("`{word}`")), "docs/protocols/a2g.md does not name `{word}`");
    }
}

#[test]
fn the_openrpc_document_names_every_method_and_no_loose_end() {
    let document = openrpc::document("1.2.3");
    assert_eq!((&document["openrpc"], &document["info"]["version"]), (&json!("1.3.2"), &json!("1.2.3")));
    let mut names: Vec<&str> = Vec::new();
    for method in document["methods"].as_array().unwrap() {
        names.push(method["name"].as_str().unwrap());
        assert_eq!(method["paramStructure"], "by-name");
        for described in method["params"].as_array().unwrap().iter().chain([&method["result"]]) {
            assert!(described["name"].is_string() && described["schema"].is_object(), "{described}");
        }
    }
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "a2g/cancel",
            "a2g/commit",
            "a2g/discard",
            "a2g/effects",
            "a2g/execute",
            "a2g/heartbeat",
            "a2g/intent",
            "a2g/register",
            "a2g/report",
            "a2g/resume",
            "a2g/session/end",
            "a2g/status",
            "a2g/stop",
            "a2g/stops",
            "a2g/tools",
            "a2g/undo",
            "g2a/directive",
            "g2a/policy",
            "g2a/revoke",
            "rpc.discover"
        ]
    );
    let text = document.to_string();
    for reference in text.split(r##""$ref":"#"##).skip(1) {
        let pointer = reference.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
}
