//! What compiles, with its place, and what is refused, with its file and line.

use super::*;
use crate::schema::tests::{file_tool, tool};
use crate::source::PolicyFile;
use a2g_types::limit::{FileEffects, Limit};
use a2g_types::tool::{CallTargets, DeclaredFilesystem};
use cedar_policy::{Authorizer, Context, Request};
use serde_json::json;

const ALICE: &str = "did:aeon:agent:1.0:alice";
const STAFF: &str = r#"[
    { "uid": { "type": "Agent", "id": "did:aeon:agent:1.0:alice" }, "parents": [{ "type": "Group", "id": "staff" }] },
    { "uid": { "type": "Group", "id": "staff" }, "attrs": {}, "parents": [{ "type": "Group", "id": "people" }] },
    { "uid": { "type": "Tool", "id": "fetch" }, "parents": [{ "type": "Label", "id": "web" }] }
]"#;

fn catalogue() -> Vec<Descriptor> {
    let mut fetch = tool(
        "fetch",
        json!({ "type": "object", "required": ["url"], "properties": { "url": { "type": "string" } } }),
    );
    fetch.capabilities.network = true;
    vec![
        fetch,
        file_tool("read_file", DeclaredFilesystem::Read),
        file_tool("write_file", DeclaredFilesystem::ReadWrite),
    ]
}

fn sources(files: &[(&str, &str)], entities: Option<&str>) -> PolicySources {
    let file =
        |(name, text): &(&str, &str)| PolicyFile { name: (*name).to_owned(), text: (*text).to_owned() };
    PolicySources {
        files: files.iter().map(file).collect(),
        entities: entities.map(str::to_owned),
        schema: None,
    }
}

fn compile(text: &str, entities: Option<&str>) -> Result<CedarSet, PolicyError> {
    CedarSet::compile(&sources(&[("a.cedar", text)], entities), &catalogue())
}

fn agent(text: &str) -> AgentDid {
    AgentDid::parse(text).unwrap()
}

#[test]
fn rules_have_the_line_at_which_they_begin() {
    let text = "// permit(principal, action, resource);
permit(principal, action in Action::\"call\", resource);

// a comment // with another, and a quote \"

@id(\"one\") // after an annotation
@escalate(\"// no comment; permit(principal, action, resource);\")
permit(
    principal, // permit(principal, action, resource);
    action in Action::\"call\", resource
);
permit // the name begins here
(principal, action in Action::\"call\", resource);
\t// the end
permit(principal, action in Action::\"call\", resource);";
    let set = compile(text, None).unwrap();
    let names = set.rules().map(|rule| rule.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names, ["a.cedar:2", "a.cedar:6 (one)", "a.cedar:12", "a.cedar:15"]);
    assert!(set.rules().all(|rule| rule.is_permit));
    let unix = set.rules().map(|rule| rule.text.to_owned()).collect::<Vec<_>>();
    assert!(unix[1].starts_with("@id(\"one\")") && unix[1].ends_with(");"), "{unix:?}");
    let windows = compile(&text.replace('\n', "\r\n"), None).unwrap();
    assert!(windows.rules().map(|rule| rule.name.line).eq([2, 6, 12, 15]));
    // Their ids are places, so two at one place are refused.
    let twice = "permit(principal, action, resource); forbid(principal, action, resource);";
    assert!(compile(twice, None).unwrap_err().to_string().contains("line of its own"));
    assert!(compile("", None).unwrap().rules().next().is_none());
}

/// The condition of a permit of calls.
fn when(condition: &str) -> String {
    format!("permit(principal, action == Action::\"read_file\", resource) when {{\n{condition}\n}};")
}

#[test]
fn what_would_say_nothing_is_refused_with_its_line() {
    let annotated = |annotation: &str| {
        format!("@id(\"x\")\n{annotation}\npermit(principal, action in Action::\"call\", resource);")
    };
    let of = |annotation: &str, rule: &str| format!("{annotation} {rule};");
    let forbid = "forbid(principal, action, resource)";
    let reach = "permit(principal, action == Action::\"reach\", resource)";
    for (text, line, expected) in [
        // The syntax, and the types.
        ("permit(principal, action, resource)\n\n;;".to_owned(), 3, ";"),
        ("permit(principal, action, resource);\npermit(principal".to_owned(), 2, ""),
        (when("context.input.other == \"\""), 2, "`input.other`"),
        (when("context.input.limit == 1"), 2, "no numbers with a fraction"),
        (when("context.input.path == 1"), 2, ""),
        (when("context.call.parent == Tool::\"fetch\""), 2, "optional"),
        (when("context.input.path > 1"), 2, "Long"),
        (when("false"), 1, "impossible"),
        (when("context.input.path == \"\u{202e}\""), 2, "BIDI"),
        (of("", "permit(principal == Group::\"staff\", action, resource)"), 1, ""),
        (of("", "permit(principal == ?principal, action, resource)"), 1, "template"),
        // Names.
        (
            of("", "permit(principal, action == Action::\"read_fil\", resource)"),
            1,
            "did you mean `read_file`",
        ),
        (of("", "permit(principal, action, resource == Tool::\"fetsch\")"), 1, "did you mean `fetch`"),
        (of("", "permit(principal in Group::\"staf\", action, resource)"), 1, "did you mean `staff`"),
        (of("", "forbid(principal, action, resource in Label::\"netwrok\")"), 1, "did you mean `network`"),
        (of("", "permit(principal == Agent::\"alice\", action, resource)"), 1, "is not a DID"),
        (of("", "permit(principal, action, resource in User::\"alice\")"), 1, "not a type of entities"),
        (when("context.history.succeeded.contains(Tool::\"gone\")"), 1, "no tool `gone`"),
        (
            of("", "permit(principal, action == Action::\"use_secret\", resource == Secret::\"A B\")"),
            1,
            "name of a secret",
        ),
        // Folders and hosts.
        (
            of("", "permit(principal, action == Action::\"read\", resource == Folder::\"/a\")"),
            1,
            "write `resource in",
        ),
        (
            of("", "forbid(principal, action, resource) when { resource == Folder::\"/a\" }"),
            1,
            "write `resource in",
        ),
        (
            of("", "forbid(principal, action, resource) when { [Folder::\"/a\"].contains(resource) }"),
            1,
            "only on the left",
        ),
        (
            of("", "permit(principal, action == Action::\"read\", resource in Folder::\"a\")"),
            1,
            "`a` is refused",
        ),
        (of("", "permit(principal, action == Action::\"read\", resource in Folder::\"/a/../b\")"), 1, "`..`"),
        (
            of("", "permit(principal, action == Action::\"read\", resource in Folder::\"/a/**\")"),
            1,
            "not a pattern",
        ),
        (
            of("", "permit(principal, action == Action::\"read\", resource in Folder::\"/a/\")"),
            1,
            "without the `/`",
        ),
        (of("", "permit(principal, action == Action::\"read\", resource in Folder::\"/\")"), 1, "refused"),
        (
            of("", "permit(principal, action == Action::\"reach\", resource in Host::\"A.com\")"),
            1,
            "usual form: `a.com`",
        ),
        (
            of("", "permit(principal, action == Action::\"reach\", resource in Host::\"http://a.com\")"),
            1,
            "host name",
        ),
        // Annotations.
        (annotated("@max_memory_bm(\"1\")"), 1, "did you mean `max_memory_mb`"),
        (annotated("@max_memory_mb(\"0\")"), 1, "an integer from 1"),
        (annotated("@max_memory_mb(\"064\")"), 1, "an integer from 1"),
        (annotated("@max_memory_mb"), 1, "an integer from 1"),
        (annotated("@max_fuel(\"1\")"), 1, "no annotation `@max_fuel`"),
        (annotated("@max_requests_per_minute(\"0\")"), 1, "from 1 to 1000000"),
        (annotated("@timeout_seconds(\"-1\")"), 1, "an integer from 1"),
        (annotated("@scope(\"workspace/**\")"), 1, "`workspace/**` is refused"),
        (annotated("@scope(\"\")"), 1, "list of patterns"),
        (annotated("@effects(\"later\")"), 1, "`direct`, `atomic` or `staged`"),
        (annotated("@escalate(\"\")"), 1, "1 to 500 characters"),
        (annotated("@escalate(\"a\\nb\")"), 1, "on one line"),
        (annotated("@preview(\"no\")"), 1, "no value"),
        (annotated("@secrets(\"TOKEN\")"), 1, "name of a secret"),
        (annotated("@calls(\"fetsch\")"), 1, "did you mean `fetch`"),
        (annotated("@reason(\"no\")"), 1, "only at a `forbid`"),
        (of("@max_memory_mb(\"1\")", forbid), 1, "only at a `permit`"),
        (of("@escalate(\"why\")", forbid), 1, "only at a `permit`"),
        (of("@scope(\"/a/**\")", reach), 1, "only at a `permit` of calls"),
        (of("@timeout_seconds(\"1\")", reach), 1, "only at a `permit` of calls"),
    ] {
        let error = compile(&text, Some(STAFF)).map(|_set| ()).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("`a.cedar`, line {line}: ")) && error.contains(expected),
            "{text}\n{error}"
        );
        assert!(!error.contains("for policy"), "{error}");
    }
}

#[test]
fn entities_that_say_nothing_are_refused() {
    let entity = |kind: &str, id: &str, parents: serde_json::Value| json!({ "uid": { "type": kind, "id": id }, "parents": parents });
    let in_group = |id: &str| json!([{ "type": "Group", "id": id }]);
    for (list, expected) in [
        (json!({}), "invalid type"),
        (json!([1]), "not an object"),
        (json!([{ "parents": [] }]), "no `uid`"),
        (json!([{ "uid": 1 }]), "entity 1"),
        (json!([entity("User", "x", json!([]))]), "entities here are"),
        (json!([entity("Folder", "/a", json!([]))]), "entities here are"),
        (json!([entity("Agent", "alice", json!([]))]), "is not a DID"),
        (json!([entity("Tool", "gone", json!([]))]), "no tool `gone`"),
        (json!([entity("Group", "a", json!(1))]), "not a list"),
        (json!([entity("Tool", "fetch", in_group("a"))]), "cannot be in"),
        (json!([entity("Agent", ALICE, json!([{ "type": "Agent", "id": ALICE }]))]), "cannot be in"),
        (json!([{ "uid": { "type": "Group", "id": "a" }, "attrs": { "b": 1 } }]), "no attributes"),
        (json!([{ "uid": { "type": "Group", "id": "a" }, "parent": [] }]), "`parent` is not one of"),
        (json!([entity("Group", "a", json!([])), entity("Group", "a", json!([]))]), "there twice"),
        (json!([entity("Group", "a", in_group("a"))]), "itself"),
        (
            json!([
                entity("Group", "a", in_group("b")),
                entity("Group", "b", in_group("c")),
                entity("Group", "c", in_group("a")),
            ]),
            "itself",
        ),
    ] {
        let error = compile("", Some(&list.to_string())).map(|_set| ()).unwrap_err().to_string();
        assert!(error.starts_with("`entities.json`: ") && error.contains(expected), "{list}\n{error}");
    }
}

#[test]
fn annotations_are_values() {
    let text = r#"
        @id("all") @max_memory_mb("64") @timeout_seconds("5") @max_output_bytes("1000") @max_calls("0")
        @scope("/workspace/**  /tmp/{a,b}/**") @effects("staged") @escalate("first time") @preview
        @secrets("one two") @calls("fetch read_file") @grant_all_paths @max_requests_per_minute("20")
        permit(principal, action in Action::"call", resource);
        @reason("not on Sundays")
        forbid(principal, action, resource) when { context.weekday == "sunday" };
        @secrets("") @calls("*")
        permit(principal, action, resource);"#;
    let set = compile(text, None).unwrap();
    let mut rules = set.rules.values().collect::<Vec<_>>();
    rules.sort_by_key(|rule| rule.name.line);
    let [all, reason, none] = rules[..] else { panic!("three rules") };
    let limits = [(Limit::Memory, 64 << 20), (Limit::Time, 5000), (Limit::Output, 1000), (Limit::Calls, 0)];
    let secrets = ["one", "two"].map(|name| a2g_types::ident::SecretName::parse(name).unwrap());
    let expected = Annotations {
        limits: limits.into_iter().collect(),
        scope: Some(vec!["/workspace/**".to_owned(), "/tmp/{a,b}/**".to_owned()]),
        effects: FileEffects::Staged,
        escalate: Some("first time".to_owned()),
        reason: None,
        is_previewed: true,
        grants_all_paths: true,
        calls: Some(CallTargets::parse(&["fetch", "read_file"]).unwrap()),
        secrets: Some(secrets.into()),
        max_requests_per_minute: Some(20),
        ..Annotations::default()
    };
    assert_eq!(all.annotations, expected);
    let expected = Annotations { reason: Some("not on Sundays".to_owned()), ..Annotations::default() };
    assert_eq!((reason.effect(), &reason.annotations), (Effect::Forbid, &expected));
    assert_eq!(none.annotations.secrets, Some(BTreeSet::new()));
    assert_eq!(none.annotations.calls, Some(CallTargets::All));
}

/// The lines of the rules that may apply.
fn lines(set: &CedarSet, agent_text: &str, action: &str, kind: EntityKind, resource: &str) -> Vec<u32> {
    let action = set.uid(EntityKind::Action, action);
    let policies = set.policies_for(&agent(agent_text), &action, &set.uid(kind, resource));
    let mut lines =
        policies.policies().map(|policy| set.rule(policy.id()).unwrap().name.line).collect::<Vec<_>>();
    lines.sort_unstable();
    lines
}

#[test]
fn each_request_has_the_policies_whose_scope_matches() {
    let text = r#"permit(principal, action, resource);
permit(principal == Agent::"did:aeon:agent:1.0:alice", action in Action::"call", resource);
permit(principal in Group::"people", action in [Action::"read", Action::"write_file"], resource);
permit(principal is Agent in Group::"staff", action, resource in Folder::"/a");
permit(principal is Agent, action in Action::"call", resource);
permit(principal, action in Action::"call", resource in Label::"web");
permit(principal, action == Action::"read", resource in Folder::"/a/b/c");
permit(principal, action == Action::"reach", resource == Host::"api.example.com");
permit(principal, action == Action::"reach", resource in Host::"example.com");
permit(principal, action == Action::"reach", resource in Host::"*.example.com");
"#;
    let set = compile(text, Some(STAFF)).unwrap();
    let bob = "did:aeon:agent:1.0:bob";
    for (who, action, kind, resource, expected) in [
        (ALICE, "read_file", EntityKind::Tool, "read_file", vec![1, 2, 5]),
        (ALICE, "write_file", EntityKind::Tool, "write_file", vec![1, 2, 3, 5]),
        (ALICE, "fetch", EntityKind::Tool, "fetch", vec![1, 2, 5, 6]),
        (bob, "write_file", EntityKind::Tool, "write_file", vec![1, 5]),
        (ALICE, "read", EntityKind::Folder, "/a", vec![1, 3, 4]),
        (ALICE, "read", EntityKind::Folder, "/a/b/c", vec![1, 3, 4, 7]),
        (ALICE, "write", EntityKind::Folder, "/a/b/c", vec![1, 4]),
        (bob, "read", EntityKind::Folder, "/a/b/c", vec![1, 7]),
        (bob, "reach", EntityKind::Host, "example.com", vec![1, 9]),
        (bob, "reach", EntityKind::Host, "*.example.com", vec![1, 9, 10]),
        (bob, "reach", EntityKind::Host, "api.example.com", vec![1, 8, 9, 10]),
        (bob, "reach", EntityKind::Host, "*.api.example.com", vec![1, 9, 10]),
    ] {
        for _twice in 0..2 {
            assert_eq!(lines(&set, who, action, kind, resource), expected, "{who} {action} {resource}");
        }
        // Cedar itself, of all policies: without conditions, a policy applies if its scope matches.
        let principal = set.uid(EntityKind::Agent, who);
        let uid = set.uid(EntityKind::Action, action);
        let request = Request::new(principal, uid, set.uid(kind, resource), Context::empty(), None).unwrap();
        let response = Authorizer::new().is_authorized(&request, &set.all, set.entities());
        let mut applied =
            response.diagnostics().reason().map(|id| set.rule(id).unwrap().name.line).collect::<Vec<_>>();
        applied.sort_unstable();
        assert_eq!(applied, expected, "{who} {request}");
    }
    let hosts = |who: &str| {
        let literals = set.literals_for(&agent(who));
        literals.hosts.iter().map(|host| (host.pattern.to_string(), host.literal.clone())).collect::<Vec<_>>()
    };
    let mut found = hosts(bob);
    found.sort();
    let expected = [
        ("*.api.example.com", "api.example.com"),
        ("*.example.com", "example.com"),
        ("api.example.com", "api.example.com"),
        ("example.com", "example.com"),
    ];
    assert_eq!(found, expected.map(|(pattern, literal)| (pattern.to_owned(), literal.to_owned())));
    let folders = |who: &str| {
        let literals = set.literals_for(&agent(who));
        literals.folders.iter().map(|folder| folder.tree.path().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(folders(ALICE), ["/a", "/a/b/c"]);
    assert_eq!(folders(bob), ["/a/b/c"]);
}

#[test]
fn agents_that_nobody_names_share_what_is_cached() {
    let set = compile("permit(principal, action in Action::\"call\", resource);", Some(STAFF)).unwrap();
    let shape = set.tool(&ToolName::parse("fetch").unwrap()).unwrap();
    let of = |name: &str| set.policies_for(&agent(&format!("did:x:{name}")), &shape.action, &shape.resource);
    let first = of("0");
    assert!((1..1000).all(|number| Arc::ptr_eq(&first, &of(&number.to_string()))));
    assert!(!Arc::ptr_eq(&first, &set.policies_for(&agent(ALICE), &shape.action, &shape.resource)));
    let literals = set.literals_for(&agent("did:x:0"));
    assert!(Arc::ptr_eq(&literals, &set.literals_for(&agent("did:x:1"))));
}

#[test]
fn a_permit_reaches_what_its_scope_says() {
    let text = r#"permit(principal in Group::"staff", action == Action::"fetch", resource);
forbid(principal, action, resource);"#;
    let set = compile(text, Some(STAFF)).unwrap();
    for (who, name, expected) in [
        (ALICE, "fetch", true),
        (ALICE, "read_file", false),
        ("did:x:1", "fetch", false),
        (ALICE, "gone", false),
    ] {
        assert_eq!(set.may_reach(&agent(who), &ToolName::parse(name).unwrap()), expected, "{who} {name}");
    }
}

#[test]
fn an_observed_file_is_added_to_what_is_enforced_and_to_nothing_else() {
    let permit = "permit(principal, action in Action::\"call\", resource);";
    let text = "permit(principal, action == Action::\"fetch\", resource) when { context.text like \"*a*\" };";
    let sources = sources(&[("a.cedar", permit), ("b.cedar", text), ("c.cedar", permit)], None);
    let tools = catalogue();
    let observe = ["b.cedar".to_owned(), "c.cedar".to_owned()];
    let compiled = CompiledPolicies::compile(&sources, &observe, &tools).unwrap();
    let files = |set: &CedarSet| set.rules().map(|rule| rule.name.file.clone()).collect::<Vec<_>>();
    assert_eq!(files(&compiled.enforced), ["a.cedar"]);
    let observed =
        compiled.observed.iter().map(|(name, set)| (name.as_str(), files(set), set.mentions_text()));
    let both = |name: &str| vec!["a.cedar".to_owned(), name.to_owned()];
    let expected = [("b.cedar", both("b.cedar"), true), ("c.cedar", both("c.cedar"), false)];
    assert!(observed.eq(expected));
    assert!(!compiled.enforced.mentions_text());
    let error = CompiledPolicies::compile(&sources, &["d.cedar".to_owned()], &tools).unwrap_err();
    assert!(error.to_string().contains("`d.cedar`"), "{error}");
    let all = CedarSet::compile(&sources, &tools).unwrap();
    assert_ne!(all.hash(), compiled.enforced.hash());
    assert_eq!(all.hash(), CedarSet::compile(&sources, tools.iter().rev()).unwrap().hash());
    assert_ne!(
        all.hash(),
        CedarSet::compile(&sources, &tools[..2]).unwrap().hash(),
        "the schema is a part of it"
    );
}

#[test]
fn too_many_policies_and_too_large_files_are_refused() {
    let rule = "permit(principal, action in Action::\"call\", resource);\n";
    for (text, expected) in
        [(rule.repeat(10_001), "more than 10000 policies"), (" ".repeat(1_000_001), "1000000 bytes")]
    {
        let error = compile(&text, None).map(|_set| ()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_cedar_would_recurse_into_too_deeply_is_refused_with_its_line() {
    let rule = |condition: &str| {
        format!(
            "permit (principal, action, resource);\nforbid (principal, action, resource)\nwhen {{ {condition} }};"
        )
    };
    let terms = |count: usize| vec!["context.call.depth == 1"; count].join(" || ");
    let nested = format!("\n{}true{}", "(".repeat(500), ")".repeat(500));
    for (condition, words) in
        [(terms(202), "line 2: it has 201 times"), (nested, "line 4: brackets are nested more than 64 deep")]
    {
        let error = compile(&rule(&condition), None).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let quoted = format!("context.call.door == \"{}\\\"\" // {}\n", "(".repeat(100), "[".repeat(100));
    for condition in [terms(201), quoted] {
        // On a thread with a small stack, as those of a server have.
        let text = rule(&condition);
        let small = std::thread::Builder::new().stack_size(1 << 20);
        let compiled = small.spawn(move || compile(&text, None).map(drop)).unwrap().join().unwrap();
        assert!(compiled.is_ok(), "{compiled:?}");
    }
}
