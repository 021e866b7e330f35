use super::*;
use a2g_types::limit::{ClaimedLimits, Limit};
use a2g_types::tool::{CallTargets, Contract, DeclaredCapabilities, Digest};
use a2g_types::verdict::ResourceRule;

const DEFAULTS: Thresholds = Thresholds { conditions_from: 40, escalate_from: 70, deny_from: 80 };
/// Nothing is conditional, escalated or denied for its risk.
const NEVER: Thresholds = Thresholds { conditions_from: 101, escalate_from: 101, deny_from: 101 };

fn rule(paths: &[&str]) -> ToolRule {
    let paths = Some(paths.iter().map(|path| (*path).to_owned()).collect());
    ToolRule { allowed: true, paths, ..ToolRule::default() }
}

fn policy(agent: Option<&str>, tools: &[(&str, ToolRule)]) -> Policy {
    let tools = tools.iter().map(|(name, rule)| (ToolName::parse(name).unwrap(), rule.clone()));
    Policy {
        agent: agent.map(|agent| AgentDid::parse(agent).unwrap()),
        version: "1".to_owned(),
        tools: tools.collect(),
        network: NetworkRule { allowed_domains: Some(Vec::new()), ..NetworkRule::default() },
        resources: ResourceRule::default(),
        constitution_hash: None,
    }
}

fn tool(name: &str) -> Descriptor {
    Descriptor {
        name: ToolName::parse(name).unwrap(),
        title: None,
        version: "1.0.0".to_owned(),
        description: String::new(),
        contract: Contract::Command,
        digest: Digest::compute(name.as_bytes()),
        arguments_schema: serde_json::json!({ "type": "object" }),
        settings: None,
        result_schema: None,
        is_idempotent: false,
        has_sessions: false,
        capabilities: DeclaredCapabilities {
            filesystem: if name == "call_api" {
                DeclaredFilesystem::None
            } else {
                DeclaredFilesystem::ReadWrite
            },
            network: name == "call_api" || name == "t",
            ..DeclaredCapabilities::default()
        },
        signature: None,
    }
}

/// Converts policies for an executor with four tools and two secrets.
fn converted(policies: &[Policy], thresholds: Thresholds) -> Result<String, ConvertError> {
    let secrets = BTreeSet::from(["one", "two"].map(|name| SecretName::parse(name).unwrap()));
    let tools = ["t", "read", "hash", "code", "call_api"].map(tool);
    let tools = tools.iter().collect::<Vec<_>>();
    let only_reads = |tool: &ToolName| tool.as_str() == "hash";
    convert(policies, Surroundings { thresholds, secrets: &secrets, tools: &tools, only_reads })
}

/// The rules of these policies in one line, without comments.
fn rules(policies: &[Policy], thresholds: Thresholds) -> String {
    let text = converted(policies, thresholds).unwrap();
    assert!(text.lines().all(|line| line.len() <= 110), "{text}");
    let lines = text.lines().filter(|line| !line.starts_with("//"));
    in_one_line(&lines.collect::<Vec<_>>().join(" "))
}

fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn equal_tools_share_a_rule_and_others_are_apart() {
    let none = Some(BTreeSet::new());
    let read = ToolRule { secrets: none.clone(), ..rule(&["/workspace/**", "/tmp/**"]) };
    let code = ToolRule { grants_all_paths: true, calls: Some(CallTargets::All), ..read.clone() };
    let call = ToolRule { secrets: none, allowed: true, ..ToolRule::default() };
    let tools = [("read", read.clone()), ("hash", read), ("code", code), ("call_api", call)];
    let expected = r#"
        permit (principal, action in [Action::"call_api", Action::"hash", Action::"tool:read"], resource);
        @calls("*")
        @grant_all_paths
        permit (principal, action == Action::"code", resource);
        permit (principal, action in [Action::"read", Action::"write"], resource)
        when {
            (resource in Folder::"/tmp" || resource in Folder::"/workspace") &&
            [Tool::"code", Tool::"hash", Tool::"read"].contains(context.tool)
        };"#;
    assert_eq!(rules(&[policy(None, &tools)], NEVER), in_one_line(expected));
}

#[test]
fn each_member_has_its_form() {
    let only = |change: fn(&mut Policy, &mut ToolRule)| {
        let mut tool_rule = ToolRule { secrets: Some(BTreeSet::new()), ..rule(&["/w/**"]) };
        let mut policy = policy(None, &[]);
        change(&mut policy, &mut tool_rule);
        policy.tools.insert(ToolName::parse("t").unwrap(), tool_rule);
        rules(&[policy], NEVER)
    };
    type Change = fn(&mut Policy, &mut ToolRule);
    let cases: [(Change, &str); 12] = [
        (|_, _| (), "permit (principal, action == Action::\"t\", resource);"),
        (
            |_, _| (),
            "permit (principal, action in [Action::\"read\", Action::\"write\"], resource in Folder::\"/w\");",
        ),
        (
            |policy, rule| {
                policy.resources.limits = ClaimedLimits::default().with_amount(Limit::Memory, Some(64 << 20));
                rule.limits = ClaimedLimits::default().with_amount(Limit::Time, Some(30_000));
            },
            "@max_memory_mb(\"64\")\n@timeout_seconds(\"30\")\npermit",
        ),
        (|_, rule| rule.max_size_bytes = Some(7), "when { context.longest_text > 7 };"),
        (
            |_, rule| rule.blocked_patterns = vec!["a \t b".to_owned(), "2*\"3\\".to_owned()],
            r#"when { context.text like "*a b*" || context.text like "*2\*\"3\\*" };"#,
        ),
        (
            |_, rule| rule.blocked_patterns = vec!["curl | sh".to_owned()],
            "@blocked_patterns(\"curl | sh\")\npermit",
        ),
        (
            |_, rule| rule.blocked_paths = vec!["/w/private/**".to_owned(), ".env".to_owned()],
            "forbid (principal, action in [Action::\"read\", Action::\"write\"], resource in Folder::\"/w/private\");",
        ),
        (
            |_, rule| rule.blocked_paths = vec![".env".to_owned(), "*.pem".to_owned()],
            "@blocked_paths(\".env *.pem\")",
        ),
        (|_, rule| rule.paths = Some(vec!["/w/**/*.md".to_owned()]), "@scope(\"/w/**/*.md\")\npermit"),
        (
            |policy, _| {
                policy.network.allowed_domains = Some(vec!["a.example".to_owned(), "*.b.example".to_owned()]);
                policy.network.max_requests_per_minute = Some(20);
            },
            "@max_requests_per_minute(\"20\") permit (principal, action == Action::\"reach\", resource) when { \
             resource == Host::\"a.example\" || resource in Host::\"*.b.example\" };",
        ),
        (
            |_, rule| rule.secrets = None,
            "when { resource == Secret::\"one\" || resource == Secret::\"two\" };",
        ),
        (|_, rule| rule.is_previewed = true, "@preview\npermit"),
    ];
    for (change, part) in cases {
        let made = only(change);
        assert!(made.contains(&in_one_line(part)), "{part}\n{made}");
    }
}

#[test]
fn a_policy_of_an_agent_takes_the_place_of_the_one_for_all() {
    let tool = || [("t", ToolRule { secrets: Some(BTreeSet::new()), ..rule(&["/w/**"]) })];
    let made = rules(&[policy(None, &tool()), policy(Some("did:a:b"), &tool())], DEFAULTS);
    let all = "permit (principal, action == Action::\"t\", resource)\nunless { principal in [Agent::\"did:a:b\"] };";
    assert!(made.contains(&in_one_line(all)), "{made}");
    assert!(
        made.contains("permit (principal == Agent::\"did:a:b\", action == Action::\"t\", resource);"),
        "{made}"
    );
    let escalated = "@escalate(\"the risk of this call is 70 or more\")\npermit (principal";
    assert_eq!(made.matches(&in_one_line(escalated)).count(), 2, "{made}");
    assert!(made.ends_with("when { context.risk.score >= 80 };"), "{made}");
}

#[test]
fn what_has_no_exact_form_is_named() {
    type Change = fn(&mut Policy);
    let cases: [(Change, Thresholds, &str); 10] = [
        (|policy| policy.resources.max_disk_mb = Some(1), NEVER, "max_disk_mb"),
        (|policy| policy.network.allowed_domains = None, NEVER, "without `network.allowed_domains`"),
        (
            |policy| policy.network.allowed_domains = Some(vec!["a b".to_owned()]),
            NEVER,
            "neither a host name",
        ),
        (
            |policy| {
                policy.tools.values_mut().for_each(|rule| rule.paths = None);
                policy.tools.insert(ToolName::parse("code").unwrap(), rule(&["/w/**"]));
            },
            NEVER,
            "`t` uses files, and without `paths`",
        ),
        (
            |policy| policy.tools.values_mut().for_each(|rule| rule.paths = Some(Vec::new())),
            NEVER,
            "`t` uses files and has no folder",
        ),
        (
            |policy| {
                policy.network.allowed_domains = Some(vec!["a.example".to_owned()]);
                let previewed = ToolRule { is_previewed: true, ..rule(&["/w/**"]) };
                policy.tools.insert(ToolName::parse("hash").unwrap(), previewed);
            },
            Thresholds { conditions_from: 101, ..DEFAULTS },
            "the `preview` of `hash`",
        ),
        (
            |policy| {
                policy.tools.insert(ToolName::parse("call_api").unwrap(), rule(&["/w/**"]));
            },
            NEVER,
            "`call_api` declares no files",
        ),
        (
            |policy| {
                policy.tools.insert(ToolName::parse("hash").unwrap(), rule(&["/w/**"]));
            },
            DEFAULTS,
            "calls of `hash`",
        ),
        (
            |policy| policy.network.allowed_domains = Some(vec!["a.example".to_owned()]),
            DEFAULTS,
            "`governor.conditions_from`",
        ),
        (
            |policy| {
                policy.tools.values_mut().for_each(|rule| rule.paths = Some(vec!["/a b/*.md".to_owned()]))
            },
            NEVER,
            "has a space",
        ),
    ];
    for (change, thresholds, part) in cases {
        let mut changed = policy(None, &[("t", rule(&["/w/**"]))]);
        change(&mut changed);
        let message = converted(&[changed], thresholds).unwrap_err().to_string();
        assert!(message.contains(part) && message.contains("every agent"), "{message}");
    }
}

#[test]
fn a_tool_that_the_catalogue_lacks_is_left_out_and_named() {
    let calls = CallTargets::parse(&["hash", "absent"]).unwrap();
    let tool_rule = ToolRule { secrets: Some(BTreeSet::new()), calls: Some(calls), ..rule(&["/w/**"]) };
    let text = converted(&[policy(None, &[("t", tool_rule.clone()), ("absent", tool_rule)])], NEVER).unwrap();
    assert!(
        text.contains("// Left out, because the catalogue does not have these tools: absent\n"),
        "{text}"
    );
    assert!(text.contains("@calls(\"hash\")") && text.matches("absent").count() == 1, "{text}");
}

#[test]
fn thresholds_are_whole_hundredths() {
    for (score, number) in [(0.0, 0), (0.05, 5), (0.4, 40), (0.455, 46), (0.7, 70), (1.0, 100), (1.1, 101)] {
        assert_eq!(Thresholds::hundredths(score), number, "{score}");
    }
}
