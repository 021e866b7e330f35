//! decode(encode(x)) == x, for every value of the vocabulary that is both encoded and decoded.

use super::*;
use crate::a2g::{decode, encode};
use crate::strict_json::{self, JsonBounds};
use a2g_types::call::{Call, Door, Priority};
use a2g_types::ident::SecretName;
use a2g_types::limit::{ClaimedLimits, FileEffects, Limit};
use a2g_types::tool::CallTargets;
use a2g_types::verdict::{
    Decision, Manifest, NetworkRule, Observation, Policy, Proof, Rationale, ResourceRule, Risk, RiskLevel,
    ToolRule, Verdict,
};
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use time::{OffsetDateTime, UtcOffset};

fn agent() -> impl Strategy<Value = AgentDid> {
    "did:[a-z0-9]{1,8}:[A-Za-z0-9._:%-]{1,40}".prop_map(|text| AgentDid::parse(&text).unwrap())
}

fn intent() -> impl Strategy<Value = IntentId> {
    any::<u128>().prop_map(|n| {
        let hex = format!("{n:032x}");
        let text = format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        IntentId::parse(&text).unwrap()
    })
}

fn tool() -> impl Strategy<Value = ToolName> {
    "[A-Za-z][A-Za-z0-9_.-]{0,63}".prop_map(|text| ToolName::parse(&text).unwrap())
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(".{0,12}", 0..4)
}

fn memory() -> impl Strategy<Value = MemoryLimit> {
    (1..=MemoryLimit::MAX_MB).prop_map(|mb| MemoryLimit::from_mb(mb).unwrap())
}

fn cpu() -> impl Strategy<Value = CpuPercent> {
    (1..=CpuPercent::MAX).prop_map(|percent| CpuPercent::new(percent).unwrap())
}

fn timeout() -> impl Strategy<Value = Timeout> {
    (1..=Timeout::MAX_SECONDS).prop_map(|seconds| Timeout::from_seconds(seconds).unwrap())
}

fn call() -> impl Strategy<Value = Call> {
    (agent(), intent(), tool(), map(".{0,8}"), of(map(".{0,8}"))).prop_map(
        |(agent, intent, tool, arguments, context)| Call {
            caller_timeout: None,
            priority: Priority::Normal,
            door: Door::A2g,
            agent,
            intent,
            is_new: false,
            charge: a2g_types::memory::Charge::default(),
            parent: None,
            caller_tools: None,
            session: None,
            tool,
            arguments,
            context,
        },
    )
}

/// Any time that RFC 3339 can write, at any offset of whole minutes.
fn moment() -> impl Strategy<Value = OffsetDateTime> {
    (0_i64..253_000_000_000, 0_i64..1_000_000_000, -1439_i32..=1439).prop_map(|(seconds, nanos, minutes)| {
        let offset = UtcOffset::from_whole_seconds(minutes * 60).unwrap();
        let moment = OffsetDateTime::from_unix_timestamp(seconds).unwrap();
        (moment + time::Duration::nanoseconds(nanos)).to_offset(offset)
    })
}

fn risk() -> impl Strategy<Value = Risk> {
    let level = prop_oneof![
        Just(RiskLevel::Low),
        Just(RiskLevel::Medium),
        Just(RiskLevel::High),
        Just(RiskLevel::Critical)
    ];
    let score = || 0.0..=1.0_f64;
    (score(), level, of(score()), of(score()), texts()).prop_map(
        |(score, level, model_score, heuristic_score, threats)| Risk {
            score,
            level,
            model_score,
            heuristic_score,
            threats,
        },
    )
}

fn manifest() -> impl Strategy<Value = Manifest> {
    (of(memory()), of(cpu()), of(timeout()), of(any::<bool>()), texts()).prop_map(
        |(memory, cpu, timeout, network_allowed, filesystem_scope)| Manifest {
            limits: ClaimedLimits::default().with(memory).with(cpu).with(timeout),
            network_allowed,
            filesystem_scope,
        },
    )
}

fn verdict() -> impl Strategy<Value = Verdict> {
    let decision = prop_oneof![
        Just(Decision::Approved),
        Just(Decision::Denied),
        Just(Decision::Escalate),
        Just(Decision::Conditional)
    ];
    let explained = (of(".{0,20}"), rationale());
    (decision, intent(), of(risk()), manifest(), texts(), of(moment()), moment(), explained).prop_map(
        |(decision, intent, risk, manifest, conditions, perhaps, moment, (reason, rationale))| {
            // Only a denial may omit its expiry.
            let expires_at = if decision == Decision::Denied { perhaps } else { Some(moment) };
            Verdict { decision, intent, risk, manifest, conditions, expires_at, reason, rationale }
        },
    )
}

fn rationale() -> impl Strategy<Value = Rationale> {
    let observation = (".{0,20}", texts()).prop_map(|(file, decided_by)| Observation {
        file,
        decision: Decision::Denied,
        decided_by,
    });
    let observed = vec(observation, 0..3);
    (texts(), observed).prop_map(|(decided_by, observed)| Rationale { decided_by, observed })
}

fn tool_rule() -> impl Strategy<Value = ToolRule> {
    let names = of(prop::sample::subsequence(vec!["a", "b"], 0..3));
    let secrets = of(prop::sample::subsequence(vec!["a", "b"], 0..3));
    let calls = (names, of(0..=100_000_u32), any::<bool>(), any::<bool>(), secrets);
    let effects =
        prop_oneof![Just(FileEffects::Direct), Just(FileEffects::Atomic), Just(FileEffects::Staged)];
    (any::<bool>(), of(texts()), texts(), texts(), of(1..=1_u64 << 50), effects, of(timeout()), calls)
        .prop_map(
            |(allowed, paths, blocked_paths, blocked_patterns, max_size_bytes, effects, timeout, calls)| {
                ToolRule {
                    allowed,
                    paths,
                    blocked_paths,
                    blocked_patterns,
                    max_size_bytes,
                    effects,
                    limits: ClaimedLimits::default()
                        .with(timeout)
                        .with_amount(Limit::Calls, calls.1.map(u64::from)),
                    calls: calls.0.map(|names| CallTargets::parse(&names).unwrap()),
                    secrets: calls.4.map(|names| {
                        names.into_iter().map(|name| SecretName::parse(name).unwrap()).collect()
                    }),
                    grants_all_paths: calls.2,
                    is_previewed: calls.3,
                }
            },
        )
}

fn policy() -> impl Strategy<Value = Policy> {
    let network = (of(texts()), texts(), of(1..=1_000_000_u64)).prop_map(
        |(allowed_domains, blocked_domains, max_requests_per_minute)| NetworkRule {
            allowed_domains,
            blocked_domains,
            max_requests_per_minute,
        },
    );
    let resources = (of(memory()), of(cpu()), of(1..=1_u64 << 30)).prop_map(|(memory, cpu, max_disk_mb)| {
        ResourceRule { limits: ClaimedLimits::default().with(memory).with(cpu), max_disk_mb }
    });
    let tools = btree_map(tool(), tool_rule(), 0..5);
    (of(agent()), ".{0,12}", tools, network, resources, of(".{0,12}")).prop_map(
        |(agent, version, tools, network, resources, constitution_hash)| Policy {
            agent,
            version,
            tools,
            network,
            resources,
            constitution_hash,
        },
    )
}

/// Checks that a written text passes the strict check of every body.
fn gated(text: &str) -> &str {
    strict_json::check(text.as_bytes(), &JsonBounds::default()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn calls(call in call()) {
        prop_assert_eq!(decode::intent(gated(encode::intent(&call).get())).unwrap(), call);
    }

    #[test]
    fn verdicts(verdict in verdict()) {
        prop_assert_eq!(decode::verdict(gated(encode::verdict(&verdict).get())).unwrap(), verdict);
    }

    #[test]
    fn policies(policy in policy()) {
        let text = encode::policy(&policy);
        let governors = decode::policy(gated(text.get()));
        prop_assert_eq!(governors.is_ok(), policy.agent.is_some());
        prop_assert_eq!(decode::policy_file(text.get()).unwrap(), policy);
    }

    #[test]
    fn executions(call in call(), verdict in verdict(), proof in of("[A-Za-z0-9_.-]{0,80}")) {
        let params = json!({
            "intent": encode::intent(&call),
            "verdict": encode::verdict(&verdict),
            "proof": proof,
        });
        let execute = decode::execute_params(&params.to_string()).unwrap();
        let said = serde_json::from_str(encode::verdict(&verdict).get()).unwrap();
        let proof = proof.map(|compact| Proof { compact, verdict: said });
        prop_assert_eq!(execute, decode::ExecuteParams { call, verdict, proof });
    }
}
