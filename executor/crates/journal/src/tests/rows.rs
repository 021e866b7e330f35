//! The texts in the rows of a journal: `tests/journals/rows.txt`.
//!
//! Each line is a name, a blank and the text. A text is read as the value of its name, and the value is written as the
//! text, byte for byte: journals of other versions with the same format open, and the hashes of their records hold.

use super::*;
use crate::record::{DecisionBody, HeldBody, StopLiftedBody, StopSetBody, digest};
use a2g_types::call::ParentRun;
use a2g_types::grant::{CallSummary, GrantSummary, approved_limits};
use a2g_types::ident::SignerName;
use a2g_types::limit::{Access, BudgetUsage, ClaimedLimits, Limit, NetworkBudgets};
use a2g_types::outcome::{
    Artifact, CallUsage, ChangeCounts, ChangeWord, ChangedRange, Contact, Denial, DenialReason, EntryWord,
    FileChanges, GrantedArea, HostRule, LogLevel, LogLine, NestedCall, NestedEnd, NetworkUsage, Progress,
    ShownChange, ShownRequest,
};
use a2g_types::tool::{CallTargets, Digest, ToolSignature};
use a2g_types::verdict::{Observation, Risk, RiskLevel};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration as StdDuration;
use strum::VariantArray as _;

/// The lines of the file that have not been compared yet.
struct Golden(BTreeMap<String, String>);

impl Golden {
    fn read() -> Self {
        let path = format!("{}/../../../tests/journals/rows.txt", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let rows = text.lines().map(|line| line.split_once(' ').unwrap());
        // The texts of waiting calls are compared beside their authority, in `govern`.
        let rows = rows.filter(|(name, _)| !name.starts_with("waiting/"));
        Self(rows.map(|(name, text)| (name.to_owned(), text.to_owned())).collect())
    }

    fn check<T: PartialEq + Debug>(
        &mut self,
        name: &str,
        value: &T,
        write: impl Fn(&T) -> String,
        read: impl Fn(&str) -> T,
    ) {
        let written = write(value);
        let kept =
            self.0.remove(name).unwrap_or_else(|| panic!("rows.txt lacks this line:\n{name} {written}"));
        assert_eq!(kept, written, "{name}");
        assert_eq!(read(&kept), *value, "{name}");
    }

    fn check_receipt(&mut self, name: &str, receipt: &Receipt) {
        let write = |receipt: &Receipt| stored::write_receipt(receipt).unwrap();
        self.check(&format!("receipt/{name}"), receipt, write, |text| {
            stored::read_receipt(text.as_bytes()).unwrap()
        });
    }

    fn check_verdict(&mut self, name: &str, verdict: &Verdict) {
        let write = |verdict: &Verdict| stored::write_verdict(verdict).unwrap();
        self.check(&format!("verdict/{name}"), verdict, write, |text| stored::read_verdict(text).unwrap());
    }
}

fn returned_receipt() -> Receipt {
    receipt(&call("{}"), End::Returned(json!({ "a": [1, 2.5, null, "\u{fc}\n"] }).into()))
}

fn ends() -> Vec<(String, End)> {
    let tool_error = |detail| End::ToolError { code: "E1".into(), message: "no \"x\"".into(), detail };
    let exited = End::Exited { code: -1, stderr_tail: "tail\u{2028}".into() };
    let mut ends = vec![
        ("returned".to_owned(), End::Returned(json!(1.5e-7).into())),
        ("tool-error".to_owned(), tool_error(None)),
        ("tool-error-with-detail".to_owned(), tool_error(Some(json!({ "b": 1, "a": u64::MAX })))),
        ("exited".to_owned(), exited),
        ("result-not-json".to_owned(), End::ResultNotJson),
        ("result-invalid".to_owned(), End::ResultInvalid { pointer: "/a".into(), message: "b".into() }),
        ("trapped".to_owned(), End::Trapped("unreachable".into())),
        ("not-started".to_owned(), End::NotStarted("a:b/c".into())),
        ("crashed".to_owned(), End::Crashed("signal 9 (SIGKILL)".into())),
        ("not-committed".to_owned(), End::NotCommitted("`/a/b` has changed".into())),
        ("left-to-operator".to_owned(), End::LeftToOperator("`/a/b` has changed".into())),
    ];
    ends.extend(Limit::ending_runs().map(|limit| (format!("limit/{limit:?}"), End::LimitReached(limit))));
    ends.extend(AbortReason::VARIANTS.iter().map(|why| (format!("aborted/{why:?}"), End::Aborted(*why))));
    ends
}

fn receipt_with(change: impl FnOnce(&mut Receipt)) -> Receipt {
    let mut receipt = returned_receipt();
    change(&mut receipt);
    receipt
}

fn full_output() -> RunOutput {
    let line = |level: &LogLevel| LogLine { level: *level, message: format!("{level:?}") };
    RunOutput {
        logs: LogLevel::VARIANTS.iter().map(line).collect(),
        progress: Some(Progress { percent: Some(12.5), message: "on".into() }),
        artifacts: vec![
            Artifact { name: "plot".into(), mime: "image/png".into(), content: vec![0, 255, 16] },
            Artifact { name: String::new(), mime: "a/b".into(), content: Vec::new() },
        ],
        truncated: true,
    }
}

fn network() -> NetworkUsage {
    let rule = |pattern: &str, set_by| HostRule { pattern: pattern.into(), set_by };
    let contact = |authority: &str, address: &str| Contact {
        authority: authority.into(),
        address: address.parse().unwrap(),
        requests: 2,
        sent_bytes: 120,
        received_bytes: u64::MAX,
    };
    NetworkUsage {
        budgets: NetworkBudgets {
            requests: 10,
            connections: 4,
            sent_bytes: 1000,
            received_bytes: 2000,
            ..NetworkBudgets::ZERO
        },
        allowed: vec![rule("*.example.com", Layer::StandingPolicy)],
        blocked: vec![rule("b.example.com", Layer::Executor)],
        allowed_requests: Vec::new(),
        requests_per_minute: Some(Bound { value: 60, layer: Layer::StandingPolicy }),
        requests: 3,
        connections: 1,
        sent_bytes: 120,
        received_bytes: 2000,
        contacted: vec![
            contact("https://a.example.com:443", "93.184.216.34:443"),
            contact("tcp://b.example.com:5432", "[2001:db8::1]:5432"),
        ],
        contacted_truncated: true,
        secrets: Vec::new(),
        remote_server: None,
    }
}

fn full_usage(usage: &mut Usage) {
    let area = |access, set_by| GrantedArea {
        path: "/data".into(),
        pattern: "/data/**/*.md".into(),
        access: Bound { value: access, layer: Layer::Tool },
        set_by,
    };
    usage.timeout = Bound { value: Timeout::from_millis(250).unwrap(), layer: Layer::Caller };
    usage.filesystem =
        vec![area(Access::ReadOnly, Layer::Verdict), area(Access::ReadWrite, Layer::Condition)];
    usage.blocked = vec![Bound { value: "/data/.env".into(), layer: Layer::StandingPolicy }];
    usage.budgets = usage.budgets.with(Limit::Fuel, 1 << 53);
    usage.budgets.hard_links = true;
    usage.spent = Some(BudgetUsage::from_iter([
        (Limit::Written, 5),
        (Limit::Created, 2),
        (Limit::RandomBytes, 16),
        (Limit::DirectoryEntries, 3),
        (Limit::Fuel, 7),
    ]));
    usage.network = Bound { value: true, layer: Layer::Verdict };
    usage.network_used = Some(network());
    let denial =
        |reason: &DenialReason| Denial { what: "/x\\u{1b}".into(), reason: *reason, set_by: None, count: 2 };
    // The reasons that were added later have receipts of their own.
    let later = [
        DenialReason::Staged,
        DenialReason::HeldRequests,
        DenialReason::RequestNotDeclared,
        DenialReason::SecretWithheld,
        DenialReason::SecretUnavailable,
        DenialReason::SecretUses,
        DenialReason::SecretPlace,
        DenialReason::SecretAnswer,
    ];
    let reasons = DenialReason::VARIANTS.iter().filter(|reason| !later.contains(reason));
    usage.denied = reasons.map(denial).collect();
    usage.denied_truncated = true;
}

/// A nested call that makes a call for every end.
fn nest(receipt: &mut Receipt) {
    let tool = receipt.tool.clone();
    receipt.parent = Some(ParentRun { intent: receipt.intent, tool, ordinal: 3, depth: 1 });
    let call = |(ordinal, end): (u32, &NestedEnd)| NestedCall {
        ordinal,
        tool: "read_file".into(),
        intent: receipt.intent.nested(ordinal),
        decision: (*end != NestedEnd::Refused).then_some(Decision::Approved),
        end: *end,
        duration: StdDuration::from_micros(2500),
    };
    receipt.calls = Some(CallUsage {
        max_calls: Bound { value: 1000, layer: Layer::Tool },
        max_parallel: Bound { value: 8, layer: Layer::Executor },
        count: 7,
        // `stage` has the end that was added later.
        calls: (1..)
            .zip(NestedEnd::VARIANTS.iter().filter(|end| **end != NestedEnd::Staged))
            .map(call)
            .collect(),
    });
}

/// A run whose changes of each kind wait, and that made a call whose changes wait.
fn stage(receipt: &mut Receipt) {
    let change = |kind| ShownChange::new(kind, EntryWord::File, "/a");
    let full = ShownChange {
        from: Some("/b".into()),
        bytes_before: Some(1),
        bytes_after: Some(2),
        mode_before: Some(0o600),
        mode_after: Some(0o644),
        target: Some("c".into()),
        diff: Some("@@ -1 +1 @@\n-a\n+b\n".into()),
        ranges: vec![ChangedRange { start: 1, old_bytes: 2, new_bytes: 3 }],
        is_diff_cut: true,
        ..change(ChangeWord::Renamed)
    };
    let entries = EntryWord::VARIANTS.iter().map(|entry| ShownChange { entry: *entry, ..full.clone() });
    let kinds = ChangeWord::VARIANTS.iter().map(|kind| change(*kind));
    let shown = kinds.chain(entries).collect();
    let call = NestedCall {
        ordinal: 1,
        tool: "read_file".into(),
        intent: receipt.intent.nested(1),
        decision: Some(Decision::Approved),
        end: NestedEnd::Staged,
        duration: StdDuration::from_micros(2500),
    };
    receipt.calls = Some(CallUsage {
        max_calls: Bound { value: 1000, layer: Layer::Tool },
        max_parallel: Bound { value: 8, layer: Layer::Executor },
        count: 1,
        calls: vec![call],
    });
    receipt.outcome.end = End::Staged(json!({ "n": 1.5e-7 }).into());
    receipt.outcome.usage.effects = Bound { value: FileEffects::Staged, layer: Layer::StandingPolicy };
    let counts = ChangeCounts { deleted: 1, renamed: 5, emptied: 0, changed: 1, attributes: 1, created: 2 };
    receipt.outcome.usage.changes =
        Some(FileChanges { counts: Some(counts), shown, ..FileChanges::new(10, Digest([2; 32])) });
}

fn full() -> Receipt {
    receipt_with(|receipt| {
        receipt.approved_by = Some("alice".into());
        receipt.durability = Durability::ProcessCrash;
        receipt.outcome.output = full_output();
        receipt.outcome.metrics = RunMetrics {
            wall: StdDuration::new(1, 5),
            cpu: StdDuration::from_micros(675),
            peak_memory_bytes: 1 << 20,
            output_bytes: 44,
            peak_resident_bytes: Some(1 << 24),
            earlier_runs: 0,
        };
        full_usage(&mut receipt.outcome.usage);
    })
}

fn verdict(decision: Decision) -> Verdict {
    Verdict {
        decision,
        intent: call("{}").intent,
        risk: None,
        manifest: Manifest::default(),
        conditions: Vec::new(),
        expires_at: None,
        reason: None,
        rationale: Rationale::default(),
    }
}

fn manifest() -> Manifest {
    Manifest {
        limits: ClaimedLimits::default()
            .with(MemoryLimit::from_mb(50).ok())
            .with(CpuPercent::new(100).ok())
            .with(Timeout::from_seconds(30).ok()),
        network_allowed: Some(false),
        filesystem_scope: vec!["/data/**".into()],
    }
}

fn full_verdict(level: RiskLevel) -> Verdict {
    let risk = Risk {
        score: 0.25,
        level,
        model_score: Some(0.5),
        heuristic_score: None,
        threats: vec!["path".into()],
    };
    Verdict {
        risk: Some(risk),
        manifest: manifest(),
        conditions: vec!["read_only".into()],
        expires_at: Some(time::macros::datetime!(2026-11-21 12:05:00.25 +02:00)),
        reason: Some("because".into()),
        ..verdict(Decision::Conditional)
    }
}

#[test]
fn stored_texts_are_stable() {
    let mut golden = Golden::read();
    for (name, end) in ends() {
        golden.check_receipt(&name, &receipt(&call("{}"), end));
    }
    for layer in Layer::VARIANTS {
        let by_layer = receipt_with(|receipt| {
            receipt.outcome.usage.memory.layer = *layer;
            receipt.outcome.usage.filesystem_emptied_by = Some(*layer);
        });
        golden.check_receipt(&format!("layer/{layer:?}"), &by_layer);
    }
    golden.check_receipt("full", &full());
    let missing_roots = receipt_with(|receipt| receipt.outcome.usage.missing_roots = vec!["/gone".into()]);
    golden.check_receipt("missing-roots", &missing_roots);
    let changes = Some(FileChanges::new(2, Digest([1; 32])));
    let committed = receipt_with(|receipt| {
        receipt.outcome.usage.effects = Bound { value: FileEffects::Atomic, layer: Layer::Condition };
        receipt.outcome.usage.changes = changes;
    });
    golden.check_receipt("committed", &committed);
    golden.check_receipt("staged", &receipt_with(stage));
    let denial =
        Denial { what: "tcp://a.example:1".into(), reason: DenialReason::Staged, set_by: None, count: 2 };
    let refused = receipt_with(|receipt| receipt.outcome.usage.denied = vec![denial]);
    golden.check_receipt("refused-while-staged", &refused);
    let refused_host = receipt_with(|receipt| {
        let what = "https://a.example:443".into();
        let set_by = Some(Layer::StandingPolicy);
        let denial = Denial { what, reason: DenialReason::DomainNotAllowed, set_by, count: 2 };
        receipt.outcome.usage.denied = vec![denial];
    });
    golden.check_receipt("refused-host", &refused_host);
    let undeclared = receipt_with(|receipt| {
        let declared = Bound { value: "GET https://a.example/{id}".into(), layer: Layer::Tool };
        let what = "PUT https://a.example:443/1".into();
        let set_by = Some(Layer::Tool);
        let denial = Denial { what, reason: DenialReason::RequestNotDeclared, set_by, count: 2 };
        receipt.outcome.usage.network_used =
            Some(NetworkUsage { allowed_requests: vec![declared], ..network() });
        receipt.outcome.usage.denied = vec![denial];
    });
    golden.check_receipt("undeclared-request", &undeclared);
    let remote = receipt_with(|receipt| {
        let remote_server = Some("https://mcp.example".into());
        receipt.outcome.usage.network_used = Some(NetworkUsage { remote_server, ..network() });
    });
    golden.check_receipt("remote-server", &remote);
    let held = receipt_with(|receipt| {
        receipt.outcome.usage.effects = Bound { value: FileEffects::Staged, layer: Layer::Condition };
        let request = ShownRequest {
            method: "POST".into(),
            url: "https://a.example:443/".into(),
            fields: vec!["cookie".into()],
            body_bytes: 3,
            body_digest: Digest([2; 32]),
            body: None,
        };
        receipt.outcome.usage.changes =
            Some(FileChanges { requests: vec![request], ..FileChanges::new(0, Digest([1; 32])) });
        let what = "https://a.example:443".into();
        receipt.outcome.usage.denied =
            vec![Denial { what, reason: DenialReason::HeldRequests, set_by: None, count: 2 }];
    });
    golden.check_receipt("held", &held);
    golden.check_receipt("nested", &receipt_with(nest));
    for (name, expires_at) in
        [("signed", None), ("signed/expiry", Some(time::macros::datetime!(2027-01-02 03:04:05 UTC)))]
    {
        let signature = ToolSignature {
            signer: SignerName::parse("release@example").unwrap(),
            package: Digest::compute(b"package"),
            expires_at,
        };
        golden.check_receipt(name, &receipt_with(|receipt| receipt.signature = Some(signature)));
    }
    let progress = Some(Progress { percent: None, message: String::new() });
    golden.check_receipt("progress", &receipt_with(|receipt| receipt.outcome.output.progress = progress));
    for decision in Decision::VARIANTS {
        golden.check_verdict(&format!("{decision:?}"), &verdict(*decision));
    }
    for level in RiskLevel::VARIANTS {
        golden.check_verdict(&format!("risk/{level:?}"), &full_verdict(*level));
    }
    check_rationale(&mut golden);
    check_decided(&mut golden);
    check_arguments(&mut golden);
    check_stops(&mut golden);
    check_tasks(&mut golden);
    assert_eq!(golden.0, BTreeMap::new(), "lines of rows.txt that nothing was compared with");
}

fn check_rationale(golden: &mut Golden) {
    let observed = Observation {
        file: "new.cedar".into(),
        decision: Decision::Approved,
        decided_by: vec!["new.cedar:1".into()],
    };
    let rationale = Rationale { decided_by: vec!["mail.cedar:12 (mail)".into()], observed: vec![observed] };
    let decided = Verdict { rationale: rationale.clone(), ..verdict(Decision::Denied) };
    golden.check_verdict("rationale", &decided);
    golden.check_receipt("rationale", &receipt_with(|receipt| receipt.rationale = rationale));
}

fn full_grant() -> GrantSummary {
    let rule = |pattern: &str| HostRule { pattern: pattern.into(), set_by: Layer::Verdict };
    let tools = CallTargets::parse(&["read_file", "hash_file"]).unwrap();
    GrantSummary {
        network: Bound { value: true, layer: Layer::Operator },
        allowed_hosts: vec![rule("*.example.com")],
        blocked_hosts: vec![rule("b.example.com")],
        requests_per_minute: Some(Bound { value: 60, layer: Layer::Condition }),
        areas: vec![Bound { value: "/data/**".into(), layer: Layer::StandingPolicy }],
        blocked_paths: vec![Bound { value: "/data/x".into(), layer: Layer::Tool }],
        access: Bound { value: Access::ReadWrite, layer: Layer::Verdict },
        calls: Some(CallSummary {
            targets: vec![
                Bound { value: tools, layer: Layer::Condition },
                Bound { value: CallTargets::All, layer: Layer::Tool },
            ],
            max_calls: Bound { value: 5, layer: Layer::StandingPolicy },
            max_parallel: Bound { value: 2, layer: Layer::Executor },
            max_depth: 4,
        }),
        ..plain_grant()
    }
}

fn plain_grant() -> GrantSummary {
    GrantSummary {
        limits: approved_limits(|_| Bound { value: 0, layer: Layer::Executor })
            .with(Bound { value: MemoryLimit::from_mb(50).unwrap(), layer: Layer::Verdict })
            .with(Bound { value: CpuPercent::new(100).unwrap(), layer: Layer::Caller })
            .with(Bound { value: Timeout::from_seconds(30).unwrap(), layer: Layer::Tool })
            .with(Bound { value: OutputLimit::from_bytes(2048).unwrap(), layer: Layer::Executor }),
        network: Bound { value: false, layer: Layer::Executor },
        allowed_hosts: Vec::new(),
        blocked_hosts: Vec::new(),
        allowed_requests: Vec::new(),
        requests_per_minute: None,
        areas: Vec::new(),
        blocked_paths: Vec::new(),
        access: Bound { value: Access::ReadOnly, layer: Layer::Verdict },
        effects: Bound { value: FileEffects::Direct, layer: Layer::Executor },
        calls: None,
        secrets: Vec::new(),
    }
}

fn check_decided(golden: &mut Golden) {
    let held = HeldBody { content: digest(b"a"), text_hash: digest(b"b"), until: 7 };
    let plain = DecisionBody {
        by: "alice".into(),
        held,
        risk_score: None,
        manifest: None,
        reason: None,
        basis: None,
        grants: Vec::new(),
        arguments: None,
    };
    let full = DecisionBody { risk_score: Some(0.75), manifest: Some(manifest()), ..plain.clone() };
    let reason = DecisionBody { reason: Some("why".into()), ..full.clone() };
    let basis = DecisionBody { basis: Some(digest(b"c")), ..plain.clone() };
    let grants = DecisionBody { grants: vec![full_grant(), plain_grant()], ..plain.clone() };
    let declared = Bound { value: "GET https://a.example/{id}".into(), layer: Layer::Tool };
    let limited = GrantSummary { allowed_requests: vec![declared], ..plain_grant() };
    let requests = DecisionBody { grants: vec![limited], ..plain.clone() };
    let arguments = DecisionBody { arguments: Some(digest(b"c")), ..plain.clone() };
    for (name, decided) in [
        ("decided/plain", plain),
        ("decided/full", full),
        ("decided/reason", reason),
        ("decided/basis", basis),
        ("decided/arguments", arguments),
        ("decided/grants", grants),
        ("decided/requests", requests),
    ] {
        let write = |decided: &DecisionBody| serde_json::to_string(decided).unwrap();
        golden.check(name, &decided, write, |text| serde_json::from_str(text).unwrap());
    }
}

fn check_arguments(golden: &mut Golden) {
    let plain = call(r#"{"path":"/a","token":"x"}"#);
    let parent = ParentRun { intent: plain.intent, tool: plain.tool.clone(), ordinal: 3, depth: 1 };
    let nested = Call { parent: Some(parent), ..plain.clone() };
    let cases = [("kept", &plain, "", 99), ("nested", &nested, "TOKEN", 99), ("too-large", &plain, "", 9)];
    for (name, call, never, max_bytes) in cases {
        let text = stored::write_arguments(call, &[never.to_owned()], max_bytes);
        let row = stored::read_arguments(&text).unwrap();
        let read = |text: &str| stored::read_arguments(text).unwrap();
        golden.check(&format!("arguments/{name}"), &row, |_| text.clone(), read);
    }
}

fn check_stops(golden: &mut Golden) {
    let set = StopSetBody { by: "anna".into(), reason: "it deletes files".into(), since: 7 };
    let write = |body: &StopSetBody| serde_json::to_string(body).unwrap();
    golden.check("stop/set", &set, write, |text| serde_json::from_str(text).unwrap());
    let lifted = StopLiftedBody { by: "anna".into() };
    let write = |body: &StopLiftedBody| serde_json::to_string(body).unwrap();
    golden.check("stop/lifted", &lifted, write, |text| serde_json::from_str(text).unwrap());
}

fn check_tasks(golden: &mut Golden) {
    let open = JournalTask {
        task: call("{}").intent,
        owner: call("{}").agent,
        context: "c".into(),
        created: NOW,
        ended: None,
        status: "{}".into(),
        document: "{\"a\":1}".into(),
    };
    let ended = JournalTask { ended: Some(LATER), ..open.clone() };
    for (name, task) in [("task/open", open), ("task/ended", ended)] {
        golden.check(
            name,
            &task,
            |task| task.to_text().unwrap(),
            |text| JournalTask::from_text(text).unwrap(),
        );
    }
}
