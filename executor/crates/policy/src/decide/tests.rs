//! Decisions, from the text of policies to the rule of a tool.

use super::*;
use crate::facts::{History, Window};
use crate::schema::tests::{file_tool, tool};
use crate::source::{PolicyFile, PolicySources};
use a2g_capability::HostClaims;
use a2g_types::call::Door;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::limit::{FileEffects, Limit};
use a2g_types::tool::{CallTargets, DeclaredCapabilities, Descriptor};
use proptest::prelude::*;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::macros::datetime;

const ALICE: &str = "did:aeon:agent:1.0:alice";
const ANY_CALL: &str = "permit(principal, action in Action::\"call\", resource);\n";

/// A past that depends on the subject.
struct Fake<F>(F);

impl<F: Fn(Subject<'_>) -> History> Past for Fake<F> {
    fn history(&self, _agent: &AgentDid, subject: Subject<'_>, _now: OffsetDateTime) -> History {
        (self.0)(subject)
    }
}

fn hours(hour: u64) -> Window {
    Window { hour, ..Window::default() }
}

fn catalogue() -> Vec<Descriptor> {
    let object = |name: &str, kind: &str| json!({ "type": "object", "required": [name], "properties": { name: { "type": kind } } });
    let network = DeclaredCapabilities { network: true, ..DeclaredCapabilities::default() };
    let sync_schema = json!({
        "type": "object",
        "required": ["n"],
        "properties": { "n": { "type": "integer" }, "path": { "type": "string" } },
    });
    let sync = DeclaredCapabilities { filesystem: DeclaredFilesystem::Read, ..network.clone() };
    let run =
        DeclaredCapabilities { filesystem: DeclaredFilesystem::ReadWrite, ..DeclaredCapabilities::default() };
    vec![
        Descriptor { capabilities: network, ..tool("fetch", object("url", "string")) },
        file_tool("read_file", DeclaredFilesystem::Read),
        Descriptor { capabilities: run, ..tool("run", object("code", "string")) },
        tool("sum", object("n", "integer")),
        Descriptor { capabilities: sync, ..tool("sync", sync_schema) },
        file_tool("write_file", DeclaredFilesystem::ReadWrite),
    ]
}

fn compile(text: &str) -> CedarSet {
    let file = PolicyFile { name: "a.cedar".to_owned(), text: text.to_owned() };
    let sources = PolicySources { files: vec![file], entities: None, schema: None };
    CedarSet::compile(&sources, &catalogue()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The facts of a call of Alice.
fn with_facts<T>(name: &str, arguments: &Value, then: impl FnOnce(CallFacts<'_>) -> T) -> T {
    let agent = AgentDid::parse(ALICE).unwrap();
    let tool = ToolName::parse(name).unwrap();
    let arguments = arguments.as_object().unwrap();
    let path = arguments.get("path").and_then(Value::as_str);
    then(CallFacts {
        agent: &agent,
        tool: &tool,
        arguments,
        paths: path.map(str::to_owned).into_iter().collect(),
        depth: 0,
        door: Some(Door::Mcp),
        is_in_session: false,
        parent: None,
        risk_score: 10,
        threats: BTreeSet::new(),
        now: datetime!(2026-12-01 12:00 UTC),
        text: None,
        longest_text: 0,
    })
}

fn decide_after(past: &dyn Past, set: &CedarSet, name: &str, arguments: &Value) -> Answer {
    with_facts(name, arguments, |facts| set.decide(&facts, past))
}

fn decide(set: &CedarSet, name: &str, arguments: &Value) -> Answer {
    decide_after(&History::default(), set, name, arguments)
}

#[track_caller]
fn allowed(answer: Answer) -> Allowed {
    match answer {
        Answer::Allowed(allowed) => *allowed,
        Answer::Denied(denied) => panic!("{}", denied.reason),
    }
}

#[track_caller]
fn denied(answer: Answer) -> Denied {
    match answer {
        Answer::Allowed(allowed) => panic!("{allowed:?}"),
        Answer::Denied(denied) => denied,
    }
}

fn names(rules: &[RuleName]) -> Vec<String> {
    rules.iter().map(ToString::to_string).collect()
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

#[test]
fn a_denial_names_the_rule_and_what_to_do() {
    let set = compile(
        r#"permit(principal, action == Action::"write_file", resource);
@id("weekdays") @reason("no writes on weekends")
forbid(principal, action == Action::"write_file", resource) when { context.weekday == "tuesday" };
permit(principal, action == Action::"sum", resource) when { context.input.n > 3 };
permit(principal, action == Action::"fetch", resource);
forbid(principal, action == Action::"fetch", resource) unless { context.risk.score < 10 };
forbid(principal, action == Action::"fetch", resource);
"#,
    );
    for (name, arguments, expected, decided_by) in [
        (
            "write_file",
            json!({ "path": "/w/a" }),
            "`a.cedar:2 (weekdays)` forbids this call of `write_file` by `did:aeon:agent:1.0:alice`: no writes on weekends; do \
             without it, or ask the operator",
            &["a.cedar:2 (weekdays)"][..],
        ),
        (
            "fetch",
            json!({ "url": "" }),
            "`a.cedar:6`, `a.cedar:7` forbid this call",
            &["a.cedar:6", "a.cedar:7"],
        ),
        ("sum", json!({ "n": 3 }), "the conditions of `a.cedar:4` are not met", &[]),
        (
            "read_file",
            json!({ "path": "/w/a" }),
            "no policy permits `read_file` for `did:aeon:agent:1.0:alice`; use another tool, or ask the operator to add a \
             `permit` for it",
            &[],
        ),
        ("gone", json!({}), "the policies do not know the tool `gone`", &[]),
        ("sum", json!({ "n": 3.5 }), "this call of `sum`: its argument `n` has to be a whole number", &[]),
        ("sum", json!({ "n": "4" }), "its argument `n` has to be a whole number", &[]),
        ("sum", json!({ "n": u64::MAX }), "its argument `n` has to be a whole number", &[]),
        ("sum", json!({}), "its argument `n` is missing", &[]),
    ] {
        let found = denied(decide(&set, name, &arguments));
        assert!(found.reason.contains(expected), "{name} {arguments}: {}", found.reason);
        assert_eq!(names(&found.decided_by), decided_by, "{name} {arguments}");
    }
    assert_eq!(names(&allowed(decide(&set, "sum", &json!({ "n": 4 }))).decided_by), ["a.cedar:4"]);
}

#[test]
fn a_policy_that_cannot_be_evaluated_denies_the_call() {
    let call = r#"permit(principal, action == Action::"sum", resource) when { context.input.n * 9223372036854775807 > 0 };
permit(principal, action == Action::"sum", resource);
"#;
    let reach = r#"permit(principal, action == Action::"fetch", resource);
permit(principal, action == Action::"reach", resource in Host::"a.com");
forbid(principal, action == Action::"reach", resource) when { context.history.same.hour * 9223372036854775807 < 0 };
"#;
    let past = |hour| History { same: hours(hour), ..History::default() };
    for (text, name, arguments, hour, rule) in [
        (call, "sum", json!({ "n": 1 }), 0, None),
        (call, "sum", json!({ "n": 2 }), 0, Some("a.cedar:1")),
        (reach, "fetch", json!({ "url": "" }), 1, None),
        (reach, "fetch", json!({ "url": "" }), 2, Some("a.cedar:3")),
    ] {
        let answer = decide_after(&past(hour), &compile(text), name, &arguments);
        match rule {
            None => drop(allowed(answer)),
            Some(rule) => {
                let found = denied(answer);
                assert!(found.reason.contains(&format!("`{rule}` cannot be evaluated")), "{}", found.reason);
                assert!(found.reason.contains("overflow"), "{}", found.reason);
                assert_eq!(names(&found.decided_by), [rule]);
            }
        }
    }
}

#[test]
fn the_meet_of_all_permits_that_apply_is_granted() {
    let set = compile(
        r#"@max_memory_mb("64") @timeout_seconds("60") @calls("fetch sum") @effects("atomic")
permit(principal, action in Action::"call", resource);
@max_memory_mb("128") @timeout_seconds("5") @calls("fetch") @effects("staged") @escalate("it writes")
permit(principal, action == Action::"write_file", resource);
@escalate("it writes")
permit(principal, action == Action::"write_file", resource in Label::"writes_files");
@escalate("a large number") @max_requests_per_minute("9")
permit(principal, action == Action::"sum", resource) when { context.input.n > 9 };
@grant_all_paths
permit(principal, action == Action::"run", resource);
"#,
    );
    let targets = |tools: &[&str]| Some(CallTargets::parse(tools).unwrap());
    let megabytes = |megabytes: u64| Some(megabytes << 20);
    let seconds = |seconds: u64| Some(seconds * 1000);

    let write = allowed(decide(&set, "write_file", &json!({ "path": "/w/a" })));
    let limits = &write.rule.limits;
    assert_eq!((write.resources.limits[Limit::Memory], limits[Limit::Memory]), (megabytes(64), None));
    assert_eq!((write.resources.limits[Limit::Time], limits[Limit::Time]), (None, seconds(5)));
    assert_eq!((write.rule.effects, write.rule.calls), (FileEffects::Staged, targets(&["fetch"])));
    assert_eq!(write.escalate.as_deref(), Some("it writes"), "a reason is told once");
    assert!(write.rule.allowed && !write.rule.is_previewed && !write.rule.grants_all_paths);
    assert_eq!(names(&write.decided_by), ["a.cedar:1", "a.cedar:3", "a.cedar:5"]);

    let small = allowed(decide(&set, "sum", &json!({ "n": 1 })));
    assert_eq!((small.rule.effects, small.rule.calls), (FileEffects::Atomic, targets(&["fetch", "sum"])));
    assert_eq!((small.rule.limits[Limit::Time], small.escalate), (seconds(60), None));
    let large = allowed(decide(&set, "sum", &json!({ "n": 10 })));
    assert_eq!(large.escalate.as_deref(), Some("a large number"));
    assert_eq!(
        (large.network.max_requests_per_minute, small.network.max_requests_per_minute),
        (Some(9), None)
    );
    assert!(allowed(decide(&set, "run", &json!({ "code": "" }))).rule.grants_all_paths);
}

#[test]
fn a_preview_needs_each_permit_of_the_call_that_escalates() {
    let read =
        r#"@escalate("outside") permit(principal, action == Action::"read", resource in Folder::"/w");"#;
    for (annotations, expected) in [
        (&["@preview"][..], true),
        (&["@escalate(\"a\") @preview"], true),
        (&["@escalate(\"a\") @preview", "@escalate(\"b\")"], false),
        (&["@escalate(\"a\")", "@preview"], false),
        (&["@escalate(\"a\") @preview", ""], true),
        (&[""], false),
    ] {
        let permits =
            annotations.iter().map(|annotation| format!("{annotation} {ANY_CALL}")).collect::<String>();
        let answer = decide(&compile(&(permits + read)), "read_file", &json!({ "path": "/w/a" }));
        let answer = allowed(answer);
        assert_eq!(answer.rule.is_previewed, expected, "{annotations:?}");
        assert!(answer.escalate.unwrap().contains("outside"), "{annotations:?}");
    }
}

#[test]
fn folders_become_paths() {
    let set = compile(
        r#"permit(principal, action in Action::"call", resource);
@grant_all_paths
permit(principal, action in [Action::"run", Action::"sync"], resource) when { context.risk.score == 10 };
permit(principal, action in [Action::"read", Action::"write"], resource in Folder::"/w");
@id("secrets") @reason("secrets stay")
forbid(principal, action in [Action::"read", Action::"write"], resource in Folder::"/w/secrets");
@escalate("a document")
permit(principal, action == Action::"read", resource in Folder::"/docs");
forbid(principal, action == Action::"read", resource in Folder::"/w/drop");
"#,
    );
    let outside = json!({ "path": "/etc/x" });
    let all_blocked = &["/w/drop/**", "/w/secrets/**"][..];
    for (name, arguments, paths, blocked, folders, escalate) in [
        ("read_file", json!({ "path": "/w/a" }), &["/w/**"][..], all_blocked, &["/w"][..], None),
        ("read_file", json!({ "path": "/docs/x" }), &["/docs/**"], &[], &["/docs"], Some("a document")),
        // Nothing is granted; a message names what could be.
        ("read_file", outside.clone(), &["/docs/**", "/w/**"], &[], &[], None),
        ("write_file", outside, &["/w/**"], &[], &[], None),
        ("write_file", json!({ "path": "/docs/x" }), &["/w/**"], &[], &[], None),
        ("write_file", json!({ "path": "/w" }), &["/w/**"], all_blocked, &["/w"], None),
        ("run", json!({ "code": "" }), &["/w/**"], all_blocked, &["/w"], None),
        (
            "sync",
            json!({ "n": 1 }),
            &["/docs/**", "/w/**"],
            all_blocked,
            &["/docs", "/w"],
            Some("a document"),
        ),
    ] {
        let found = allowed(decide(&set, name, &arguments));
        let rule = found.rule;
        assert_eq!(rule.paths, Some(texts(paths)), "{name} {arguments}");
        assert_eq!(rule.blocked_paths, texts(blocked), "{name} {arguments}");
        assert!(found.folders.iter().eq(folders), "{name} {arguments}: {:?}", found.folders);
        assert_eq!(found.escalate.as_deref(), escalate, "{name} {arguments}");
    }
    assert_eq!(allowed(decide(&set, "sum", &json!({ "n": 1 }))).rule.paths, None, "it uses no files");

    let reason = denied(decide(&set, "read_file", &json!({ "path": "/w/secrets/x" })));
    let expected = "`a.cedar:5 (secrets)` forbids `/w/secrets/x` to `read_file` of `did:aeon:agent:1.0:alice`: secrets stay; \
                    use another path, or ask the operator";
    assert_eq!(
        (reason.reason.as_str(), names(&reason.decided_by)),
        (expected, texts(&["a.cedar:5 (secrets)"]))
    );
    // A run that may write can read, too.
    let reason = denied(decide(&set, "write_file", &json!({ "path": "/w/drop/x" })));
    assert!(reason.reason.starts_with("`a.cedar:9` forbids"), "{}", reason.reason);
}

#[test]
fn without_a_permit_for_folders_the_rule_names_no_paths() {
    let forbid = "forbid(principal, action == Action::\"read\", resource in Folder::\"/w\");";
    let deep = "when { context.call.depth > 0 }";
    let conditional =
        format!("permit(principal, action == Action::\"read\", resource in Folder::\"/w\") {deep};");
    // A name in a forbid that does not apply opens nothing.
    let everything = format!(
        "permit(principal, action, resource);
forbid(principal, action == Action::\"read\", resource in Folder::\"/w\") {deep};"
    );
    for (text, expected) in [("", None), (&*conditional, Some(vec![])), (&*everything, Some(vec![]))] {
        let set = compile(&format!("{ANY_CALL}{text}"));
        let found = allowed(decide(&set, "read_file", &json!({ "path": "/w/a" })));
        assert_eq!((found.rule.paths, found.folders.len()), (expected, 0), "{text}");
    }
    // A forbid of the folder says so, although nothing opens the folder.
    let set = compile(&format!("{ANY_CALL}{forbid}"));
    let refused = denied(decide(&set, "read_file", &json!({ "path": "/w/a" })));
    assert!(refused.reason.contains("`a.cedar:2` forbids `/w/a`"), "{}", refused.reason);
}

#[test]
fn a_folder_in_a_blocked_one_is_granted_alone() {
    let set = compile(
        r#"permit(principal, action in Action::"call", resource);
permit(principal, action == Action::"read", resource in Folder::"/w");
forbid(principal, action == Action::"read", resource in Folder::"/w/m") unless { resource in Folder::"/w/m/n" };
"#,
    );
    let read = |path: &str| allowed(decide(&set, "read_file", &json!({ "path": path })));
    let inner = read("/w/m/n/f");
    assert_eq!((inner.rule.paths, inner.rule.blocked_paths), (Some(texts(&["/w/m/n/**"])), vec![]));
    // Those around it have been read in part.
    assert!(inner.folders.iter().eq(["/w", "/w/m", "/w/m/n"]), "{:?}", inner.folders);
    let outer = read("/w/f");
    assert_eq!((outer.rule.paths, outer.rule.blocked_paths), (Some(texts(&["/w/**"])), texts(&["/w/m/**"])));
    assert!(outer.folders.iter().eq(["/w"]), "{:?}", outer.folders);
}

#[test]
fn scopes_narrow_folders() {
    let folders = r#"permit(principal, action == Action::"read", resource in Folder::"/w/src");
permit(principal, action == Action::"read", resource in Folder::"/w/doc");
"#;
    for (scopes, paths, folders_read) in [
        (&["/w/**"][..], &["/w/src/**"][..], &["/w/src"][..]),
        (&["/w/src/a/**"], &["/w/src/a/**"], &["/w/src"]),
        (&["/w/**/*.rs"], &["/w/src/**/*.rs"], &["/w/src"]),
        (&["/w/**/*.rs", "/w/src/**"], &["/w/src/**/*.rs"], &["/w/src"]),
        (&["/w/src/*.md /w/**/*.rs"], &["/w/src/**/*.rs", "/w/src/*.md"], &["/w/src"]),
        (&["/w/**/*.md"], &["/w/src/**/*.md"], &[]),
        (&["/tmp/**"], &[], &[]),
        (&["/w/src/**", "/tmp/**"], &[], &[]),
    ] {
        let permits =
            scopes.iter().map(|scope| format!("@scope(\"{scope}\") {ANY_CALL}")).collect::<String>();
        let set = compile(&(permits + folders));
        let found = allowed(decide(&set, "read_file", &json!({ "path": "/w/src/a/b.rs" })));
        assert_eq!(found.rule.paths, Some(texts(paths)), "{scopes:?}");
        assert!(found.folders.iter().eq(folders_read), "{scopes:?}: {:?}", found.folders);
    }
    let both = format!("@scope(\"/w/**/*.rs\") {ANY_CALL}@scope(\"/w/*/a/*\") {ANY_CALL}{folders}");
    let reason = denied(decide(&compile(&both), "read_file", &json!({ "path": "/w/src/a/b.rs" }))).reason;
    assert!(reason.contains("`a.cedar:1` and `a.cedar:2` has patterns whose intersection"), "{reason}");
}

#[test]
fn hosts_become_domains() {
    let reach = |effect: &str, resource: &str, rest: &str| {
        format!("{effect}(principal, action == Action::\"reach\", resource {resource}) {rest};\n")
    };
    let example = reach("permit", "in Host::\"example.com\"", "");
    let evil = reach("forbid", "in Host::\"evil.example.com\"", "");
    for (text, allowed_domains, blocked_domains) in [
        (example.clone(), &["*.example.com", "example.com"][..], &[][..]),
        (String::new(), &[], &[]),
        // Without a name, there is nothing to grant; a name in a forbid is not granted for it.
        (reach("permit", "", ""), &[], &[]),
        (
            reach("permit", "", "")
                + &reach("forbid", "in Host::\"a.com\"", "when { context.call.depth > 0 }"),
            &[],
            &[],
        ),
        (reach("permit", "in Host::\"*\"", ""), &["*"], &[]),
        (reach("permit", "== Host::\"example.com\"", ""), &["example.com"], &[]),
        (
            reach("permit", "in Host::\"example.com\"", "unless { resource == Host::\"example.com\" }"),
            &["*.example.com"],
            &[],
        ),
        (
            format!("{example}{evil}"),
            &["*.example.com", "example.com"],
            &["*.evil.example.com", "evil.example.com"],
        ),
        (
            format!("{example}{}", reach("forbid", "== Host::\"evil.example.com\"", "")),
            &["*.evil.example.com", "*.example.com", "example.com"],
            &["evil.example.com"],
        ),
        (evil, &[], &[]),
        (reach("permit", "in Host::\"192.0.2.1\"", ""), &["192.0.2.1"], &[]),
        // A name may have the address.
        (
            format!("{example}{}", reach("forbid", "in Host::\"192.0.2.1\"", "")),
            &["*.example.com", "example.com"],
            &["192.0.2.1"],
        ),
    ] {
        let set = compile(&format!("{ANY_CALL}{text}"));
        let mut network = allowed(decide(&set, "fetch", &json!({ "url": "" }))).network;
        network.allowed_domains.iter_mut().for_each(|domains| domains.sort());
        network.blocked_domains.sort();
        assert_eq!(network.allowed_domains, Some(texts(allowed_domains)), "{text}");
        assert_eq!(network.blocked_domains, texts(blocked_domains), "{text}");
    }
    let found = allowed(decide(&compile(&format!("{ANY_CALL}{example}")), "sum", &json!({ "n": 1 })));
    assert_eq!(found.network, NetworkRule::default(), "it has no network");
}

#[test]
fn secrets_have_permits_of_their_own() {
    let permits = r#"permit(principal, action == Action::"use_secret", resource == Secret::"github");
permit(principal, action == Action::"use_secret", resource) when { resource == Secret::"npm" || resource == Secret::"pypi" };
forbid(principal, action == Action::"use_secret", resource == Secret::"pypi");
"#;
    let every = "permit(principal, action == Action::\"use_secret\", resource);";
    let every_but_npm = "permit(principal, action == Action::\"use_secret\", resource);
forbid(principal, action == Action::\"use_secret\", resource == Secret::\"npm\") when { context.call.depth > 0 };";
    for (annotation, rest, name, expected) in [
        ("", permits, "fetch", &["github", "npm"][..]),
        ("@secrets(\"github other\")", permits, "fetch", &["github"]),
        ("@secrets(\"\")", permits, "fetch", &[]),
        ("@secrets(\"other\")", every, "fetch", &["other"]),
        // No permit names one.
        ("", every, "fetch", &[]),
        ("", every_but_npm, "fetch", &[]),
        ("@secrets(\"github\")", "", "fetch", &[]),
        ("", permits, "sum", &[]),
    ] {
        let set = compile(&format!("{annotation} {ANY_CALL}{rest}"));
        let arguments = if name == "sum" { json!({ "n": 1 }) } else { json!({ "url": "" }) };
        let secrets = allowed(decide(&set, name, &arguments)).rule.secrets.unwrap();
        assert!(
            secrets.iter().map(SecretName::as_str).eq(expected.iter().copied()),
            "{annotation} {rest}: {secrets:?}"
        );
    }
}

#[test]
fn policies_read_the_past() {
    let set = compile(
        r#"permit(principal, action in Action::"call", resource) when { context.history.calls.hour < 5 };
permit(principal, action == Action::"read", resource in Folder::"/w");
permit(principal, action == Action::"reach", resource in Host::"example.com") when { context.history.same.hour < 20 };
forbid(principal, action == Action::"reach", resource) when { context.history.read.contains(Folder::"/w/secrets") };
forbid(principal, action == Action::"fetch", resource) unless { context.history.succeeded.contains(Tool::"sum") };
forbid(principal, action == Action::"use_secret", resource) when { context.history.reached.contains(Host::"example.com") };
permit(principal, action == Action::"use_secret", resource == Secret::"github");
"#,
    );
    let checked =
        || History { succeeded: BTreeSet::from([ToolName::parse("sum").unwrap()]), ..History::default() };
    let fetch = |past: &dyn Past| decide_after(past, &set, "fetch", &json!({ "url": "" }));
    let found = |past: &dyn Past| {
        let Allowed { network, rule, .. } = allowed(fetch(past));
        (network.allowed_domains.unwrap().len(), rule.secrets.unwrap().len())
    };
    let reason = denied(fetch(&History::default())).reason;
    assert!(reason.contains("`a.cedar:5` forbids"), "{reason}");
    assert_eq!(found(&checked()), (2, 1));
    let often = History { calls: hours(5), ..checked() };
    assert!(denied(fetch(&often)).reason.contains("the conditions of `a.cedar:1` are not met"));
    let host = Fake(|subject: Subject<'_>| {
        let same = hours(if subject == Subject::Host("example.com") { 20 } else { 0 });
        History { same, ..checked() }
    });
    assert_eq!(found(&host), (0, 1));
    let secret = History { read: BTreeSet::from(["/w/secrets".to_owned()]), ..checked() };
    assert_eq!(found(&secret), (0, 1));
    let reached = History { reached: BTreeSet::from(["example.com".to_owned()]), ..checked() };
    assert_eq!(found(&reached), (2, 0));

    // A call counts as having read what it is granted itself.
    for (path, domains) in [("/w/a", 2), ("/w/secrets/a", 0), ("/w", 0)] {
        let answer = decide(&set, "sync", &json!({ "n": 1, "path": path }));
        assert_eq!(allowed(answer).network.allowed_domains.unwrap().len(), domains, "{path}");
    }
}

#[test]
fn a_text_that_is_not_computed_is_no_empty_text() {
    let set = compile(
        r#"permit(principal, action in Action::"call", resource) unless { context.text like "*rm -rf*" };
"#,
    );
    let decide = |text| {
        with_facts("sum", &json!({ "n": 1 }), |facts| {
            set.decide(&CallFacts { text, ..facts }, &History::default())
        })
    };
    assert!(denied(decide(None)).reason.contains("context.text"));
    allowed(decide(Some("ls")));
    denied(decide(Some("sudo rm -rf /")));
}

#[test]
fn every_context_fits_the_schema() {
    let set = compile(
        r#"permit(principal, action in Action::"call", resource);
permit(principal, action, resource in Folder::"/w");
permit(principal, action, resource in Host::"a.com");
permit(principal, action, resource == Secret::"github");
"#,
    );
    let full = History {
        calls: Window { minute: 1, hour: 2, day: u64::MAX },
        succeeded: BTreeSet::from([ToolName::parse("sum").unwrap()]),
        reached: BTreeSet::from(["a.com".to_owned()]),
        read: BTreeSet::from(["/w".to_owned(), "/gone".to_owned()]),
        ..History::default()
    };
    let parent = Some(ToolName::parse("run").unwrap());
    let threats = BTreeSet::from(["a threat".to_owned()]);
    let pasts: [&dyn Past; 2] = [&History::default(), &full];
    for (past, parent, threats) in [(pasts[0], None, BTreeSet::new()), (pasts[1], parent, threats)] {
        with_facts("sum", &json!({ "n": 1 }), |facts| {
            let facts = CallFacts { parent, threats, depth: 1, ..facts };
            // The request for the call itself is checked when it is made.
            allowed(set.decide(&facts, past));
            let contexts = Contexts::of(&set, &facts, past).unwrap();
            let granted = BTreeSet::from(["/w".to_owned()]);
            for (action, kind, id, subject) in [
                (READ, EntityKind::Folder, "/w", Subject::Folder("/w")),
                (WRITE, EntityKind::Folder, "/w", Subject::Folder("/w")),
                (REACH, EntityKind::Host, "*.a.com", Subject::Host("a.com")),
                (USE_SECRET, EntityKind::Secret, "github", Subject::Secret("github")),
            ] {
                let uid = |kind, id| set.uid(kind, id);
                let context = contexts.of_part(subject, &granted).unwrap();
                let agent = uid(EntityKind::Agent, ALICE);
                let action_uid = uid(EntityKind::Action, action);
                let request = Request::new(agent, action_uid, uid(kind, id), context, Some(set.schema()));
                assert!(request.is_ok(), "{action}: {}", request.unwrap_err());
            }
        });
    }
}

const PERMITS: [&str; 14] = [
    r#"@max_memory_mb("64") permit(principal, action in Action::"call", resource);"#,
    r#"@timeout_seconds("5") @effects("atomic") permit(principal, action == Action::"sync", resource);"#,
    r#"@grant_all_paths @escalate("why") permit(principal, action == Action::"sync", resource) when { context.input.n > 3 };"#,
    r#"@scope("/w/**") permit(principal, action == Action::"sync", resource) when { context.input.n > 5 };"#,
    r#"permit(principal, action == Action::"read", resource in Folder::"/w");"#,
    r#"permit(principal, action == Action::"read", resource in Folder::"/w") unless { resource in Folder::"/w/a" };"#,
    r#"permit(principal, action == Action::"read", resource in Folder::"/w/a");"#,
    r#"permit(principal, action == Action::"read", resource in Folder::"/w/a/b");"#,
    r#"permit(principal, action == Action::"read", resource in Folder::"/x");"#,
    r#"permit(principal, action == Action::"reach", resource in Host::"example.com");"#,
    r#"permit(principal, action == Action::"reach", resource == Host::"api.example.com");"#,
    r#"permit(principal, action == Action::"reach", resource in Host::"*") when { context.risk.score == 10 };"#,
    r#"permit(principal, action == Action::"use_secret", resource == Secret::"github");"#,
    r#"permit(principal, action, resource) when { context.weekday == "tuesday" };"#,
];
const FORBIDS: [&str; 11] = [
    r#"forbid(principal, action == Action::"sync", resource) when { context.input.n > 6 };"#,
    r#"forbid(principal, action == Action::"read", resource in Folder::"/w");"#,
    r#"forbid(principal, action == Action::"read", resource in Folder::"/w/a");"#,
    r#"forbid(principal, action == Action::"read", resource in Folder::"/w/a/b") when { context.call.depth == 0 };"#,
    r#"forbid(principal, action == Action::"read", resource in Folder::"/w/c");"#,
    r#"forbid(principal, action == Action::"reach", resource in Host::"example.com");"#,
    r#"forbid(principal, action == Action::"reach", resource == Host::"api.example.com");"#,
    r#"forbid(principal, action == Action::"reach", resource in Host::"api.example.com");"#,
    r#"forbid(principal, action == Action::"use_secret", resource == Secret::"github");"#,
    r#"forbid(principal, action, resource) when { context.weekday == "monday" };"#,
    r#"forbid(principal, action == Action::"read", resource in Folder::"/x") unless { context.risk.score > 50 };"#,
];
const PATHS: [Option<&str>; 6] =
    [None, Some("/w/f"), Some("/w/a/f"), Some("/w/a/b/f"), Some("/x/f"), Some("/w/a")];
const HOSTS: [&str; 5] =
    ["example.com", "api.example.com", "x.api.example.com", "www.example.com", "other.org"];

/// The lines whose bits are set.
fn chosen<'a>(lines: &'a [&'a str], bits: u32) -> impl Iterator<Item = &'a str> {
    lines.iter().enumerate().filter(move |(index, _)| (bits >> index) & 1 == 1).map(|(_, line)| *line)
}

/// The files among [`PATHS`] that a call which names `path` is granted.
fn files_of(found: &Allowed, path: Option<&str>) -> BTreeSet<&'static str> {
    let areas = found.rule.paths.iter().flatten().flat_map(|pattern| Area::parse(pattern).unwrap());
    let is_needed = |area: &Area| {
        found.rule.grants_all_paths
            || path.is_some_and(|path| area.contains(path) || area.root().path() == path)
    };
    let areas = areas.filter(is_needed).collect::<Vec<_>>();
    let blocked = found.rule.blocked_paths.iter().flat_map(|pattern| Area::parse(pattern).unwrap());
    let blocked = blocked.collect::<Vec<_>>();
    let is_in = |areas: &[Area], path: &str| areas.iter().any(|area| area.contains(path));
    PATHS.into_iter().flatten().filter(|path| is_in(&areas, path) && !is_in(&blocked, path)).collect()
}

/// The hosts among [`HOSTS`] that a call may reach.
fn hosts_of(found: &Allowed) -> BTreeSet<&'static str> {
    let patterns =
        |texts: &[String]| texts.iter().map(|text| HostPattern::parse(text).unwrap()).collect::<Vec<_>>();
    let claims = HostClaims {
        allowed: found.network.allowed_domains.as_deref().map(patterns),
        blocked: patterns(&found.network.blocked_domains),
        ..HostClaims::default()
    };
    HOSTS.into_iter().filter(|host| claims.allows(&HostPattern::parse(host).unwrap())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_forbid_that_is_added_never_grants_more(
        permits in 0u32..1 << PERMITS.len(),
        forbids in 0u32..1 << FORBIDS.len(),
        // Few forbids leave more that the added one can change.
        others in 0u32..1 << FORBIDS.len(),
        added in 0..FORBIDS.len(),
        path in 0..PATHS.len(),
        n in 0..9,
    ) {
        let lines = chosen(&PERMITS, permits).chain(chosen(&FORBIDS, forbids & others)).collect::<Vec<_>>();
        let text = lines.join("\n");
        let with_added = format!("{text}\n{}", FORBIDS[added]);
        let path = PATHS[path];
        let arguments = match path {
            None => json!({ "n": n }),
            Some(path) => json!({ "n": n, "path": path }),
        };
        let before = decide(&compile(&text), "sync", &arguments);
        let after = decide(&compile(&with_added), "sync", &arguments);
        let Answer::Allowed(after) = after else { return Ok(()) };
        let Answer::Allowed(before) = before else {
            return Err(TestCaseError::fail(format!("denied before: {with_added}")));
        };
        prop_assert!(files_of(&after, path).is_subset(&files_of(&before, path)), "{}", with_added);
        prop_assert!(hosts_of(&after).is_subset(&hosts_of(&before)), "{}", with_added);
        prop_assert!(after.folders.is_subset(&before.folders), "{}", with_added);
        prop_assert!(after.rule.secrets.unwrap().is_subset(&before.rule.secrets.unwrap()));
        prop_assert_eq!(before.rule.limits.narrower(&after.rule.limits), after.rule.limits);
        prop_assert_eq!(before.resources.limits.narrower(&after.resources.limits), after.resources.limits);
        prop_assert!(after.rule.effects >= before.rule.effects);
        prop_assert_eq!(after.escalate, before.escalate);
    }
}
