//! Accepted messages and, above all, refused ones.

use super::*;
use crate::a2g::decode;
use crate::strict_json::{self, JsonBounds};
use a2g_types::limit::FileEffects;
use a2g_types::quantity::OutOfRangeError;
use a2g_types::verdict::{Decision, RiskLevel};
use time::macros::datetime;

fn execute(verdict: &Value) -> Result<decode::ExecuteParams, Fault> {
    decode::execute_params(&json!({ "intent": document_intent(), "verdict": verdict }).to_string())
}

#[test]
fn the_documents_intent() {
    let call = decode::intent(&document_intent().to_string()).unwrap();
    assert_eq!((call.agent.as_str(), call.tool.as_str()), (AGENT, "write_file"));
    assert_eq!(call.arguments["content"], "Hello, World!");
    assert_eq!(call.context.unwrap()["session_id"], "session-123");
}

#[test]
fn the_documents_verdict() {
    let verdict = decode::verdict(&document_verdict().to_string()).unwrap();
    assert_eq!(verdict.decision, Decision::Approved);
    assert_eq!(verdict.intent.to_string(), INTENT);
    let risk = verdict.risk.unwrap();
    assert_eq!((risk.score, risk.level, risk.model_score), (0.15, RiskLevel::Low, Some(0.12)));
    assert_eq!(verdict.manifest.limits.quantity::<MemoryLimit>(), MemoryLimit::from_mb(50).ok());
    assert_eq!(verdict.manifest.network_allowed, Some(false));
    assert_eq!(verdict.manifest.filesystem_scope, ["/tmp/**", "/workspace/**"]);
    assert_eq!(verdict.expires_at, Some(datetime!(2024-01-15 10:05 UTC)));
}

#[test]
fn the_documents_policy_report_and_registration() {
    let policy = decode::policy(&document_policy().to_string()).unwrap();
    let execute_command = &policy.tools[&ToolName::parse("execute_command").unwrap()];
    assert!(execute_command.allowed);
    assert_eq!(execute_command.blocked_patterns, ["rm -rf"]);
    assert_eq!(policy.network.blocked_domains, ["*.onion"]);
    assert_eq!(policy.resources.limits.quantity::<MemoryLimit>(), MemoryLimit::from_mb(256).ok());

    let head = decode::report(&document_report().to_string()).unwrap();
    assert_eq!((head.agent.as_str(), head.status), (AGENT, a2g_types::outcome::Status::Success));

    let registration = json!({
        "agent_did": AGENT,
        "public_key": "ed25519:abc123...",
        "capabilities_requested": ["write_file", "read_file", "execute_command"],
        "metadata": { "name": "My Agent", "version": "1.0.0", "runtime": "python" }
    });
    let registration = decode::registration(&registration.to_string()).unwrap();
    assert_eq!(registration.capabilities_requested.len(), 3);
    assert_eq!(registration.metadata.unwrap()["runtime"], "python");
}

/// True for values of a type that a member may have.
type HasRightType = fn(&Value) -> bool;

/// Each member with a value of every type that it may not have.
fn of_wrong_types<const N: usize>(
    members: [(&'static str, HasRightType); N],
) -> impl Iterator<Item = (&'static str, Value)> {
    let all = [json!(null), json!(5), json!(true), json!([]), json!({}), json!("no")];
    members.into_iter().flat_map(move |(pointer, is_right)| {
        all.clone().into_iter().filter(move |value| !is_right(value)).map(move |value| (pointer, value))
    })
}

/// Decodes params with one function of the door and drops the result.
type Decoder = fn(&str) -> Result<(), Fault>;

/// Every number that limits something: the function that decodes it, a whole message, its pointer and its maximum
/// value.
fn limit_fields() -> Vec<(Decoder, Value, String, u64)> {
    const MANIFEST: [(&str, u64); 3] = [
        ("max_memory_mb", MemoryLimit::MAX_MB),
        ("max_cpu_percent", CpuPercent::MAX),
        ("timeout_seconds", Timeout::MAX_SECONDS),
    ];
    let policy: Decoder = |text| decode::policy(text).map(drop);
    let file: Decoder = |text| decode::policy_file(text).map(drop);
    let mut fields: Vec<(Decoder, Value, String, u64)> = Vec::new();
    for (name, most) in MANIFEST {
        let verdict: Decoder = |text| decode::verdict(text).map(drop);
        fields.push((verdict, document_verdict(), format!("/capability_manifest/{name}"), most));
        let execute: Decoder = |text| decode::execute_params(text).map(drop);
        let both = json!({ "intent": document_intent(), "verdict": document_verdict() });
        fields.push((execute, both, format!("/verdict/capability_manifest/{name}"), most));
        let directive: Decoder = |text| decode::directive(text).map(drop);
        let answer = json!({ "intent_id": INTENT, "decision": "APPROVED", "capability_manifest": {} });
        fields.push((directive, answer, format!("/capability_manifest/{name}"), most));
    }
    for decoder in [policy, file] {
        let standing = [
            ("resources/max_memory_mb", MemoryLimit::MAX_MB),
            ("resources/max_cpu_percent", CpuPercent::MAX),
            ("resources/max_disk_mb", 1 << 30),
            ("network/max_requests_per_minute", 1_000_000),
            ("tools/write_file/constraints/timeout_seconds", Timeout::MAX_SECONDS),
            ("tools/write_file/constraints/max_size_bytes", 1 << 50),
        ];
        for (name, most) in standing {
            fields.push((decoder, document_policy(), format!("/capabilities/{name}"), most));
        }
    }
    fields
}

#[test]
fn the_effects_of_a_rule_are_direct_atomic_or_staged() {
    let pointer = "/capabilities/tools/write_file/constraints/effects";
    let read = |value: Value| decode::policy(&with(document_policy(), pointer, value).to_string());
    for (name, effects) in
        [("direct", FileEffects::Direct), ("atomic", FileEffects::Atomic), ("staged", FileEffects::Staged)]
    {
        assert!(read(json!(name)).unwrap().tools.values().any(|rule| rule.effects == effects), "{name}");
    }
    for other in [json!("ATOMIC"), json!("later"), json!(true), json!(null)] {
        assert_eq!(invalid(read(other)).0, pointer);
    }
}

#[test]
fn a_limit_is_an_integer_in_range_and_nothing_else() {
    const BAD: [&str; 23] = [
        "-1",
        "0",
        "-0",
        "0.0",
        "1e309",
        "-1e309",
        "5e1",
        "5E1",
        "5.0",
        "0.5",
        "5.5",
        "18446744073709551616",
        "18446744073709551615",
        "9007199254740993.0",
        "\"50\"",
        "\"\"",
        "null",
        "true",
        "false",
        "[]",
        "[50]",
        "{}",
        "99999999999999999999999999",
    ];
    for (decoder, document, pointer, most) in limit_fields() {
        let name = pointer.rsplit('/').next().unwrap();
        for bad in BAD {
            // A string marks the place of the number, because not every number fits into a `Value`.
            let body = with(document.clone(), &pointer, "HERE".into()).to_string().replace("\"HERE\"", bad);
            strict_json::check(body.as_bytes(), &JsonBounds::default()).unwrap();
            let (at, message) = invalid(decoder(&body));
            assert_eq!(at, pointer, "{bad}");
            let expected = format!("`{name}` {}, not ", OutOfRangeError { min: 1, max: most });
            assert!(message.starts_with(&expected), "{pointer} = {bad}: {message}");
        }
        for good in [1, most] {
            decoder(&with(document.clone(), &pointer, good.into()).to_string()).unwrap();
        }
        invalid(decoder(&with(document.clone(), &pointer, (most + 1).into()).to_string()));
    }
}

#[test]
fn a_number_that_may_be_zero_has_its_range_in_the_message() {
    let pointer = "/capabilities/tools/write_file/constraints/max_calls";
    for bad in ["-1", "0.5", "\"5\"", "100001", "18446744073709551616"] {
        let body = with(document_policy(), pointer, "HERE".into()).to_string().replace("\"HERE\"", bad);
        let (at, message) = invalid(decode::policy(&body));
        assert_eq!(at, pointer, "{bad}");
        assert!(
            message.starts_with("`max_calls` must be an integer from 0 to 100000, not "),
            "{bad}: {message}"
        );
    }
}

#[test]
fn what_is_wrong_with_a_verdict_and_where() {
    let cases = [
        ("/verdict", json!("approved")),
        ("/intent_id", json!("550e8400")),
        ("/capability_manifest", json!([50, 10, 30, false, []])),
        ("/capability_manifest/network_allowed", json!("false")),
        ("/capability_manifest/network_allowed", json!(0)),
        ("/capability_manifest/network_allowed", json!(null)),
        ("/capability_manifest/filesystem_scope", json!("/tmp/**")),
        ("/capability_manifest/filesystem_scope", json!(null)),
        ("/capability_manifest/filesystem_scope", json!([null])),
        ("/capability_manifest/max_disk_mb", json!(1)),
        ("/capability_manifest/Max_memory_mb", json!(1)),
        ("/expires_at", json!("2024-01-15T10:05:00")),
        ("/expires_at", json!("2024-01-15")),
        ("/expires_at", json!("4070908800")),
        ("/risk_assessment", json!([])),
        ("/risk_assessment/score", json!(1.01)),
        ("/risk_assessment/score", json!(-0.1)),
        ("/risk_assessment/score", json!("0.1")),
        ("/risk_assessment/score", json!(null)),
        ("/risk_assessment/model_score", json!(2)),
        ("/risk_assessment/level", json!("low")),
        ("/risk_assessment/threats", json!([1])),
        ("/reason", json!(1)),
    ];
    let wrong_types = of_wrong_types([
        ("/verdict", |_| false),
        ("/intent_id", |_| false),
        ("/expires_at", |_| false),
        ("/conditions", Value::is_array),
        ("/capability_manifest", Value::is_object),
    ]);
    for (pointer, bad) in wrong_types.chain(cases) {
        let verdict = with(document_verdict(), pointer, bad.clone());
        let (at, message) = invalid(decode::verdict(&verdict.to_string()));
        assert!(at.starts_with(pointer), "{pointer} = {bad}: {at} {message}");
        let (at, _) = invalid(execute(&verdict));
        assert!(at.starts_with(&format!("/verdict{pointer}")), "{at}");
    }
    let verdict = with(document_verdict(), "/conditions", json!(["read_only", 1]));
    let (at, message) = invalid(decode::verdict(&verdict.to_string()));
    assert_eq!(
        (at.as_str(), message.as_str()),
        ("/conditions/1", "`conditions[1]` must be a string, not `1`")
    );
}

#[test]
fn what_each_verdict_needs() {
    let needed = |decision: &str| -> Vec<&'static str> {
        let whole = with(document_verdict(), "/verdict", decision.into());
        let members = [
            "/verdict",
            "/intent_id",
            "/risk_assessment",
            "/capability_manifest",
            "/conditions",
            "/expires_at",
        ];
        members
            .into_iter()
            .filter(|member| match decode::verdict(&without(whole.clone(), member).to_string()) {
                Ok(_) => false,
                Err(Fault::InvalidParams { pointer, .. }) => pointer == *member,
                Err(other) => panic!("{other:?}"),
            })
            .collect()
    };
    assert_eq!(needed("APPROVED"), ["/verdict", "/intent_id", "/capability_manifest", "/expires_at"]);
    assert_eq!(
        needed("CONDITIONAL"),
        ["/verdict", "/intent_id", "/capability_manifest", "/conditions", "/expires_at"]
    );
    assert_eq!(needed("ESCALATE"), ["/verdict", "/intent_id", "/expires_at"]);
    assert_eq!(needed("DENIED"), ["/verdict", "/intent_id"]);

    let bare = json!({ "verdict": "DENIED", "intent_id": INTENT, "capability_manifest": null,
        "conditions": null, "expires_at": null, "risk_assessment": null, "reason": null });
    let verdict = decode::verdict(&bare.to_string()).unwrap();
    assert!(verdict.expires_at.is_none() && verdict.risk.is_none());
}

#[test]
fn what_is_wrong_with_an_intent_and_where() {
    let cases =
        [("/agent_did", json!("agent")), ("/intent_id", json!("req-1")), ("/tool", json!("../write_file"))];
    let wrong_types = of_wrong_types([
        ("/agent_did", |_| false),
        ("/intent_id", |_| false),
        ("/tool", Value::is_string),
        ("/arguments", Value::is_object),
        ("/context", |value| value.is_object() || value.is_null()),
    ]);
    for (pointer, bad) in wrong_types.chain(cases) {
        let intent = with(document_intent(), pointer, bad.clone());
        let (at, message) = invalid(decode::intent(&intent.to_string()));
        assert_eq!(at, pointer, "{bad}: {message}");
        let both = json!({ "intent": intent, "verdict": document_verdict() });
        assert_eq!(invalid(decode::execute_params(&both.to_string())).0, format!("/intent{pointer}"));
    }
    for needed in ["/agent_did", "/intent_id", "/tool", "/arguments"] {
        let (at, message) = invalid(decode::intent(&without(document_intent(), needed).to_string()));
        assert_eq!((at.as_str(), message), (needed, format!("`{}` is missing", &needed[1..])));
    }
    for params in ["[]", "1", "null", r#"["did:a:b"]"#] {
        assert_eq!(invalid(decode::intent(params)).0, "");
        assert_eq!(invalid(decode::execute_params(params)).0, "");
    }
    let huge = document_intent().to_string().replace("\"Hello, World!\"", "1e309");
    assert_eq!(invalid(decode::intent(&huge)).0, "/arguments");
}

#[test]
fn an_unknown_member_is_refused_where_it_could_restrict() {
    let both = json!({ "intent": document_intent(), "verdict": document_verdict() });
    let directive = json!({ "intent_id": INTENT, "decision": "DENIED", "capability_manifest": {} });
    let refused: [(Decoder, &Value, &str); 10] = [
        (|text| decode::execute_params(text).map(drop), &both, "/limits"),
        (|text| decode::execute_params(text).map(drop), &both, "/verdict/capability_manifest/max_files"),
        (|text| decode::directive(text).map(drop), &directive, "/conditions"),
        (|text| decode::directive(text).map(drop), &directive, "/capability_manifest/a~1b"),
        (|text| decode::policy(text).map(drop), &document_policy(), "/description"),
        (|text| decode::policy(text).map(drop), &document_policy(), "/capabilities/filesystem"),
        (|text| decode::policy(text).map(drop), &document_policy(), "/capabilities/network/ports"),
        (|text| decode::policy(text).map(drop), &document_policy(), "/capabilities/resources/max_gpu"),
        (|text| decode::policy(text).map(drop), &document_policy(), "/capabilities/tools/write_file/when"),
        (
            |text| decode::policy(text).map(drop),
            &document_policy(),
            "/capabilities/tools/write_file/constraints/max_writes",
        ),
    ];
    for (decoder, document, pointer) in refused {
        let mut body = document.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/");
        body.pointer_mut(parent).unwrap()[&key] = json!(1);
        let (at, message) = invalid(decoder(&body.to_string()));
        assert_eq!(at, pointer);
        assert!(message.starts_with(&format!("`{key}` is not a known member")), "{message}");
    }
    let mut policy = document_policy();
    policy["capabilities"]["tools"]["write_file"]["allow"] = json!(true);
    let (_, message) = invalid(decode::policy(&policy.to_string()));
    let members = "`allow` is not a known member (did you mean `allowed`?); the members here are `allowed`, \
                   `constraints`";
    assert_eq!(message, members);
}

#[test]
fn an_unknown_member_is_ignored_where_it_only_describes() {
    decode::intent(&with(document_intent(), "/priority", json!(1)).to_string()).unwrap();
    decode::verdict(&with(document_verdict(), "/issued_by", json!("x")).to_string()).unwrap();
    decode::verdict(&with(document_verdict(), "/risk_assessment/notes", json!("x")).to_string()).unwrap();
    decode::report(&with(document_report(), "/usage", json!({})).to_string()).unwrap();
    decode::intent_id(&json!({ "intent_id": INTENT, "why": "x" }).to_string()).unwrap();
}

#[test]
fn a_member_that_is_there_twice_is_refused_also_without_the_gate() {
    for (first, second) in [("max_memory_mb", "max_memory_mb"), ("max_memory_mb", r"\u006dax_memory_mb")] {
        let manifest = format!(r#"{{"{first}": 1, "{second}": 1048576}}"#);
        let body = document_verdict()
            .to_string()
            .replace(&document_verdict()["capability_manifest"].to_string(), &manifest);
        assert!(strict_json::check(body.as_bytes(), &JsonBounds::default()).is_err());
        assert_eq!(invalid(decode::verdict(&body)).0, "/capability_manifest/max_memory_mb");
    }
    // This also holds where a surplus member would be ignored.
    for second in [r#""verdict":"DENIED""#, r#""expires_at":null"#, r#""c\u006fnditions":["read_only"]"#] {
        let body = document_verdict().to_string().replacen('{', &format!("{{{second},"), 1);
        let (_, message) = invalid(decode::verdict(&body));
        assert!(message.ends_with("occurs twice"), "{second}: {message}");
    }
    let twice = r#"{"agent_did":"did:a:b","version":"1","capabilities":{"tools":{
        "a":{"allowed":false},"\u0061":{"allowed":true}}}}"#;
    assert_eq!(invalid(decode::policy(twice)).0, "/capabilities/tools/a");
}

#[test]
fn a_policy_file_may_bind_every_agent_and_say_why_it_exists() {
    let everyone = with(document_policy(), "/agent_did", json!("*"));
    let described = with(everyone.clone(), "/description", json!("for the tests"));
    assert_eq!(decode::policy_file(&described.to_string()).unwrap().agent, None);
    assert!(decode::policy_file(&document_policy().to_string()).unwrap().agent.is_some());
    assert_eq!(invalid(decode::policy(&everyone.to_string())).0, "/agent_did");
    let bad = with(everyone.clone(), "/description", json!(1));
    assert_eq!(invalid(decode::policy_file(&bad.to_string())).0, "/description");
    let twice = everyone.to_string().replacen('{', r#"{"version":"0","#, 1);
    assert!(matches!(decode::policy_file(&twice), Err(Fault::Parse(_))));
    for bad in [json!(null), json!(true)] {
        let pointer = "/capabilities/tools/write_file/constraints";
        assert_eq!(
            invalid(decode::policy_file(&with(everyone.clone(), pointer, bad).to_string())).0,
            pointer
        );
    }
    let (at, message) =
        invalid(decode::policy(&with(document_policy(), "/capabilities/tools/..", json!({})).to_string()));
    assert!(at == "/capabilities/tools" && message.contains("not a tool name"), "{message}");
}

#[test]
fn revocations_directives_and_the_rest() {
    let revoke = |params: Value| decode::revoke_params(&params.to_string());
    assert!(revoke(json!({ "agent_did": AGENT })).unwrap().intent.is_none());
    assert!(revoke(json!({ "intent_id": INTENT, "agent_did": null })).unwrap().intent.is_some());
    assert_eq!(invalid(revoke(json!({}))).0, "");
    assert_eq!(invalid(revoke(json!({ "agent_did": null }))).0, "");
    assert_eq!(invalid(revoke(json!({ "agent_did": "*" }))).0, "/agent_did");

    let stop = |target: Value, reason: Value| {
        decode::stop_params(&json!({ "target": target, "reason": reason }).to_string())
    };
    assert!(stop(json!({ "all": true }), json!("why")).is_ok());
    let several = json!({ "tool": "write_file", "all": true });
    for wrong in [json!({}), several, json!({ "agent_did": AGENT, "tool": "write_file" })] {
        assert_eq!(invalid(stop(wrong, json!("why"))).0, "/target");
    }
    assert_eq!(invalid(stop(json!({ "all": false }), json!("why"))).0, "/target/all");
    assert_eq!(invalid(stop(json!({ "agent_did": null }), json!("why"))).0, "/target/agent_did");
    assert_eq!(invalid(stop(json!({ "agent_did": "*" }), json!("why"))).0, "/target/agent_did");
    assert_eq!(invalid(stop(json!({ "tol": "write_file" }), json!("why"))).0, "/target/tol");
    for reason in [json!(""), json!("a\nb"), json!(null)] {
        assert_eq!(invalid(stop(json!({ "all": true }), reason)).0, "/reason");
    }
    assert_eq!(invalid(decode::resume_params("{}")).0, "/target");

    let directive = |params: Value| decode::directive(&params.to_string());
    let approved = directive(json!({ "intent_id": INTENT, "decision": "APPROVED" })).unwrap();
    assert!(approved.approved && approved.manifest.is_none());
    assert!(!directive(json!({ "intent_id": INTENT, "decision": "DENIED" })).unwrap().approved);
    for bad in ["ESCALATE", "CONDITIONAL", "approved", ""] {
        assert_eq!(invalid(directive(json!({ "intent_id": INTENT, "decision": bad }))).0, "/decision");
    }
    let manifest = json!({ "intent_id": INTENT, "decision": "APPROVED", "capability_manifest": null });
    assert_eq!(invalid(directive(manifest)).0, "/capability_manifest");

    assert_eq!(decode::intent_id(&json!({ "intent_id": INTENT }).to_string()).unwrap().to_string(), INTENT);
    assert_eq!(invalid(decode::intent_id("{}")).0, "/intent_id");

    let beat = json!({ "agent_did": AGENT, "uptime_seconds": 5, "running": 0, "queued": 1 });
    assert_eq!(decode::heartbeat(&beat.to_string()).unwrap().queued, 1);
    for bad in [json!(-1), json!(1.5), json!(null)] {
        assert_eq!(
            invalid(decode::heartbeat(&with(beat.clone(), "/running", bad).to_string())).0,
            "/running"
        );
    }
    for (pointer, bad) in [
        ("/status", json!("success")),
        ("/error", json!({})),
        ("/metrics", json!([])),
        ("/metrics/duration_ms", json!(1.5)),
        ("/metrics/memory_used_mb", json!(-1)),
        ("/metrics/cpu_percent", json!(-0.5)),
    ] {
        assert_eq!(invalid(decode::report(&with(document_report(), pointer, bad).to_string())).0, pointer);
    }
}

#[test]
fn no_params_are_none_or_empty() {
    for params in [None, Some("{}"), Some("[]"), Some(" { } "), Some("[ ]")] {
        decode::no_params(params).unwrap();
    }
    assert_eq!(invalid(decode::no_params(Some(r#"{"a":1}"#))).0, "/a");
    for params in ["[1]", "1", "null"] {
        assert_eq!(invalid(decode::no_params(Some(params))).0, "");
    }
}

#[test]
fn params_of_a_list_of_tools() {
    use crate::listing::DescribeRequest;
    use crate::stubs::Language;
    use decode::ToolsParams::{Code, Every};

    for params in ["{}", "[]", r#"{"listing":"tools"}"#] {
        assert_eq!(decode::tools_params(params).unwrap(), Every, "{params}");
    }
    let agent = Some(AgentDid::parse("did:aeon:a:1").unwrap());
    let request = |query: &str, language| Some(DescribeRequest { query: query.to_owned(), language });
    for (params, expected) in [
        (json!({ "listing": "code" }), Code { agent: None, request: None }),
        (
            json!({ "listing": "code", "agent_did": "did:aeon:a:1", "query": "", "language": null }),
            Code { agent, request: request("", None) },
        ),
        (
            json!({ "listing": "code", "query": "x y", "language": "python" }),
            Code { agent: None, request: request("x y", Some(Language::Python)) },
        ),
    ] {
        assert_eq!(decode::tools_params(&params.to_string()).unwrap(), expected, "{params}");
    }
    for (params, pointer) in [
        (json!({ "a": 1 }), "/a"),
        (json!({ "listing": null }), "/listing"),
        (json!({ "listing": "tools", "query": "x" }), "/query"),
        (json!({ "agent_did": "did:aeon:a:1" }), "/agent_did"),
        (json!({ "listing": "code", "agent_did": "x" }), "/agent_did"),
        (json!({ "listing": "code", "query": 1 }), "/query"),
        (json!({ "listing": "code", "language": "python" }), "/query"),
        (json!([1]), ""),
    ] {
        assert_eq!(invalid(decode::tools_params(&params.to_string())).0, pointer, "{params}");
    }
}

#[test]
fn the_answer_to_a_registration() {
    for acknowledged in ["null", "true", "{}", r#"{"status":"ok","policy":null}"#, "\"ok\"", "[]"] {
        assert_eq!(decode::registration_result(acknowledged).unwrap(), None, "{acknowledged}");
    }
    let answer = json!({ "accepted": true, "policy": document_policy() });
    assert!(decode::registration_result(&answer.to_string()).unwrap().unwrap().agent.is_some());
    let bad = json!({ "policy": { "agent_did": "*" } });
    assert_eq!(invalid(decode::registration_result(&bad.to_string())).0, "/policy/agent_did");
}

#[test]
fn messages_and_pointers_echo_little() {
    let long = "x".repeat(100_000);
    let limit = "/capability_manifest/max_memory_mb";
    let faults = [
        invalid(decode::intent(&with(document_intent(), "/agent_did", json!(long)).to_string())),
        invalid(decode::intent(&with(document_intent(), "/intent_id", json!(long)).to_string())),
        invalid(decode::verdict(&with(document_verdict(), limit, json!(long)).to_string())),
        invalid(decode::intent(&with(document_intent(), "/tool", json!(long)).to_string())),
        invalid(decode::intent(&with(document_intent(), "/arguments", json!([long])).to_string())),
        invalid(decode::verdict(&with(document_verdict(), "/verdict", json!(long)).to_string())),
        invalid(decode::verdict(&with(document_verdict(), "/expires_at", json!(long)).to_string())),
        invalid(execute(&with(document_verdict(), &format!("/capability_manifest/{long}"), json!(1)))),
        invalid(decode::policy(
            &with(document_policy(), &format!("/capabilities/tools/{long}"), json!({})).to_string(),
        )),
        invalid(decode::no_params(Some(&json!({ long: 1 }).to_string()))),
    ];
    for (pointer, message) in faults {
        assert!(pointer.len() + message.len() < 400, "{pointer} {message}");
    }
}
