use super::*;
use a2g_types::tool::{Contract, DeclaredCapabilities, Digest};
use serde_json::json;

const TEXT: &str = r#"
// Comments name nobody: Agent::"did:x:comment" 99
@reason("too late")
forbid (principal == Agent::"did:a:b", action == Action::"t", resource)
when { context.history.same.hour >= 20 && context.input.path like "*.md" && resource in Folder::"/w" };
"#;

fn tool() -> Descriptor {
    Descriptor {
        name: ToolName::parse("t").unwrap(),
        title: None,
        version: "1.0.0".to_owned(),
        description: String::new(),
        contract: Contract::Command,
        digest: Digest::compute(b"t"),
        arguments_schema: json!({
            "type": "object",
            "required": ["path"],
            "properties": { "path": { "type": "string" }, "n": { "type": "integer" } },
        }),
        settings: None,
        result_schema: None,
        is_idempotent: false,
        has_sessions: false,
        capabilities: DeclaredCapabilities::default(),
        signature: None,
    }
}

#[test]
fn words_are_those_outside_of_comments() {
    let mut words = Words::default();
    words.read(TEXT);
    assert_eq!(words.of("Agent").collect::<Vec<_>>(), ["did:a:b"]);
    assert_eq!(words.of("Folder").collect::<Vec<_>>(), ["/w"]);
    assert_eq!(words.numbers, BTreeSet::from([0, 1, 19, 20, 21]));
    assert_eq!(words.texts, BTreeSet::from(["too late".to_owned(), "*.md".to_owned()]));
    words.read(r#"a like "x\"y" || 7"#);
    assert!(words.texts.contains(r#"x\"y"#) && words.numbers.contains(&7));
}

#[test]
fn calls_vary_what_the_policies_name() {
    let tool = tool();
    let made = samples(&[TEXT], &[r#"[{ "uid": "did:a:group-member" }]"#], &[&tool], 3_000);
    assert!(made.len() <= 3_000);
    let agents = made.iter().map(|sample| sample.case.agent.as_str()).collect::<BTreeSet<_>>();
    assert_eq!(agents, BTreeSet::from(["did:a:b", "did:a:group-member", OTHER_AGENT]));
    let paths = made.iter().filter_map(|sample| sample.case.arguments.get("path")?.as_str());
    let paths = paths.collect::<BTreeSet<_>>();
    assert!(["/w/a", "/w", ".md", OTHER_PATH].iter().all(|path| paths.contains(path)), "{paths:?}");
    let both = made.iter().any(|sample| {
        sample.changes == 2 && sample.case.risk.is_some() && sample.case.facts != History::default()
    });
    assert!(both, "two changes at once");
    assert_eq!(made.first().map(|sample| sample.changes), Some(0), "the plain call is the first");
    let again = samples(&[TEXT], &[r#"[{ "uid": "did:a:group-member" }]"#], &[&tool], 3_000);
    let shown = |samples: &[Sample]| samples.iter().map(|sample| format!("{sample:?}")).collect::<Vec<_>>();
    assert_eq!(shown(&made), shown(&again));
    assert!(samples(&[], &[], &[], 10).is_empty());
}
