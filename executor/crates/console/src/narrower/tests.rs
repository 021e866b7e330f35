//! The narrower limits, without a server. `tests/tests/pages/console_usage.rs` repeats real runs under them.

use super::*;
use a2g_types::ident::SecretName;
use a2g_types::limit::FileEffects;
use a2g_types::quantity::CpuPercent;
use a2g_types::request::DeclaredRequest;
use a2g_types::verdict::{NetworkRule, ResourceRule};
use a2g_wire::a2g::decode;
use time::macros::date;

const AGENT: &str = "did:a:agent";

fn tool(name: &str) -> ToolName {
    ToolName::parse(name).unwrap()
}

fn needs() -> RunNeeds {
    RunNeeds {
        runs: 3,
        memory_bytes: 10 << 20,
        granted_memory_bytes: 64 << 20,
        wall_ms: 1_700,
        granted_ms: 30_000,
        has_files: true,
        ..RunNeeds::default()
    }
}

fn pair(name: &str, needs: RunNeeds) -> PairNeeds {
    PairNeeds { agent: AGENT.to_owned(), tool: name.to_owned(), needs }
}

fn narrowed(current: Option<Policy>, pairs: &[PairNeeds]) -> Policy {
    let agent = AgentDid::parse(AGENT).unwrap();
    let pairs = pairs.iter().collect::<Vec<_>>();
    let policy = policy(&agent, current, &pairs, date!(2026 - 11 - 26)).unwrap();
    // Every text is a message that the executor accepts, and means the same.
    assert_eq!(decode::policy(&policy_text(&policy)).unwrap(), policy);
    policy
}

#[test]
fn a_policy_allows_what_was_used() {
    let slow = RunNeeds { wall_ms: 20_000, memory_bytes: 60 << 20, ..needs() };
    let policy = narrowed(None, &[pair("read", needs()), pair("slow", slow)]);
    assert_eq!((policy.version.as_str(), policy.tools.len()), ("usage-2026-11-26", 2));
    let seconds = |policy: &Policy, name: &str| {
        policy.tools[&tool(name)].limits.quantity::<Timeout>().map(Timeout::seconds)
    };
    // Twice the longest run, but no more than was granted; the same holds for memory.
    assert_eq!((seconds(&policy, "read"), seconds(&policy, "slow")), (Some(4), Some(30)));
    assert_eq!(policy.resources.limits, ClaimedLimits::default().with(MemoryLimit::from_mb(64).ok()));
    assert_eq!(policy.network.allowed_domains.as_deref(), Some(&[][..]));
    let quick = narrowed(None, &[pair("read", RunNeeds { wall_ms: 1, memory_bytes: 1, ..needs() })]);
    assert_eq!(seconds(&quick, "read"), Some(2));
    assert_eq!(quick.resources.limits[Limit::Memory], Some(1 << 20));
    let agent = AgentDid::parse(AGENT).unwrap();
    let lost = pair("read", RunNeeds { unmeasured: 4, ..RunNeeds::default() });
    assert_eq!(super::policy(&agent, None, &[&lost], date!(2026 - 11 - 26)), None);
}

#[test]
fn a_policy_is_never_wider_than_the_current_one() {
    let read = ToolRule {
        allowed: true,
        paths: Some(vec!["/workspace/ü\u{202e}\u{7f}/**".to_owned()]),
        blocked_patterns: vec!["rm \"-rf\"".to_owned()],
        limits: ClaimedLimits::default().with(Timeout::from_seconds(3).ok()),
        ..ToolRule::default()
    };
    let stopped = ToolRule { allowed: false, ..ToolRule::default() };
    let current = Policy {
        agent: AgentDid::parse(AGENT).ok(),
        version: "7".to_owned(),
        tools: [
            (tool("read"), read.clone()),
            (tool("stopped"), stopped.clone()),
            (tool("unused"), read.clone()),
        ]
        .into(),
        network: NetworkRule {
            allowed_domains: Some(
                ["*.example.org", "1.2.3.4", "https://other.test:8443", "https://unused.test"]
                    .map(str::to_owned)
                    .to_vec(),
            ),
            blocked_domains: vec!["bad.example.org".to_owned()],
            max_requests_per_minute: Some(60),
        },
        resources: ResourceRule {
            limits: ClaimedLimits::default()
                .with(MemoryLimit::from_mb(8).ok())
                .with(CpuPercent::new(50).ok()),
            max_disk_mb: Some(7),
        },
        constitution_hash: Some("sha256:00".to_owned()),
    };
    let hosts = ["api.example.org", "example.org", "1.2.3.4", "5.6.7.8", "other.test"].map(str::to_owned);
    let networked = RunNeeds { has_used_network: true, hosts: Some(hosts.into()), ..needs() };
    let pairs = [pair("read", networked), pair("stopped", needs()), pair("removed", needs())];
    let policy = narrowed(Some(current.clone()), &pairs);
    assert_eq!(policy.tools.keys().map(ToolName::as_str).collect::<Vec<_>>(), ["read", "stopped"]);
    assert_eq!(policy.tools[&tool("read")], read);
    assert!(!policy.tools[&tool("stopped")].allowed);
    let allowed = policy.network.allowed_domains.clone().unwrap();
    assert_eq!(allowed, ["1.2.3.4", "api.example.org", "https://other.test:8443"]);
    assert_eq!(policy.network.blocked_domains, current.network.blocked_domains);
    assert_eq!(policy.resources, current.resources);
    assert!(policy_text(&policy).is_ascii());
    // Hosts that receipts do not name are not guessed.
    let unnamed = RunNeeds { has_used_network: true, hosts: None, ..needs() };
    let policy = narrowed(Some(current.clone()), &[pair("read", unnamed)]);
    assert_eq!(policy.network.allowed_domains, current.network.allowed_domains);
}

#[test]
fn calls_are_narrowed_to_the_called_tools() {
    let program = RunNeeds { may_call: true, calls: 4, called: Some([tool("read")].into()), ..needs() };
    let policy = narrowed(None, &[pair("program", program.clone())]);
    let rule = &policy.tools[&tool("program")];
    assert_eq!(
        (rule.limits[Limit::Calls], rule.calls.as_ref().unwrap().to_names()),
        (Some(5), vec!["read".to_owned()])
    );
    assert!(policy.tools[&tool("read")].allowed, "the receipts of the calls were not read");
    let busy = narrowed(None, &[pair("program", RunNeeds { calls: 90_000, ..program.clone() })]);
    assert_eq!(busy.tools[&tool("program")].limits[Limit::Calls], Some(100_000));
    let unnamed = narrowed(None, &[pair("program", RunNeeds { called: None, ..program.clone() })]);
    assert_eq!(unnamed.tools[&tool("program")].calls, None);
    let silent = narrowed(None, &[pair("program", RunNeeds { calls: 0, ..program })]);
    assert!(silent.tools[&tool("program")].calls.as_ref().is_some_and(CallTargets::is_empty));
}

#[test]
fn capabilities_are_narrowed_and_parse() {
    let declared = DeclaredCapabilities {
        filesystem: DeclaredFilesystem::ReadWrite,
        effects: FileEffects::Atomic,
        network: true,
        requests: [DeclaredRequest::parse("GET https://a.example/{id}").unwrap()].into(),
        secrets: [SecretName::parse("github").unwrap()].into(),
        limits: ClaimedLimits::default()
            .with(MemoryLimit::from_mb(64).ok())
            .with(CpuPercent::new(50).ok())
            .with_amount(Limit::Calls, Some(3))
            .with_amount(Limit::ParallelCalls, Some(2)),
        calls: CallTargets::All,
    };
    let text = |needs: &RunNeeds| {
        let narrower = capabilities(&declared, needs).unwrap();
        capabilities_text(&narrower, needs, "From 3 runs.")
    };
    let called =
        RunNeeds { may_call: true, calls: 4, called: Some([tool("a"), tool("b")].into()), ..needs() };
    let expected = "# From 3 runs.\n[capabilities]\nfilesystem = \"read-write\"\n# No run wrote to a file or created one, so \
        \"read\" suffices, unless the tool removes, renames or truncates\n# files, or sets their times: receipts do not \
        count that.\neffects = \"atomic\"\nnetwork = false\nmax_memory_mb = 13\nmax_cpu_percent = 50\ntimeout_seconds = 4\ncalls = [\"a\", \"b\"]\n\
        max_calls = 3\nmax_parallel_calls = 2\n";
    assert_eq!(text(&called), expected);
    let plain = text(&RunNeeds { has_files: false, has_used_network: true, ..needs() });
    assert!(
        plain.contains("filesystem = \"none\"\neffects = \"atomic\"\nnetwork = true\n")
            && plain.contains("\nrequests = [\"GET https://a.example/{id}\"]\nsecrets = [\"github\"]\n")
            && !plain.contains("calls"),
        "{plain}"
    );
    assert!(toml::from_str::<toml::Table>(&plain).is_ok());
    assert_eq!(capabilities(&declared, &RunNeeds::default()), None);
}
