use super::*;

const MINIMAL: &str = r#"
[[case]]
name = "n"
agent = "did:a:b"
tool = "t"
expect = "allow"
"#;

fn only(text: &str) -> Case {
    let mut cases = TestFile::parse(text).unwrap().cases;
    assert_eq!(cases.len(), 1);
    cases.remove(0)
}

#[test]
fn a_case_has_known_defaults() {
    let case = only(MINIMAL);
    assert_eq!((case.at, case.door, case.depth, case.parent), (DEFAULT_TIME, Door::A2g, 0, None));
    assert_eq!((case.facts, case.risk, case.arguments.len()), (History::default(), None, 0));
}

#[test]
fn each_member_is_read() {
    let case = only(&format!(
        r#"{MINIMAL}
arguments = {{ path = "/w/a", n = 1, list = ["x"] }}
at = 2026-12-01T09:30:00Z
door = "mcp"
parent = "run_python"
in_session = true
risk = {{ score = 75, threats = ["private_key"] }}
rule = "api"
limits = {{ max_memory_mb = 64 }}
folders = ["/w/**"]

[case.facts]
calls = 3
same = {{ minute = 1, hour = 19 }}
succeeded = ["check"]
read = ["/workspace/secrets"]
"#
    ));
    assert_eq!(
        case.arguments,
        *serde_json::json!({ "path": "/w/a", "n": 1, "list": ["x"] }).as_object().unwrap()
    );
    assert_eq!((case.at, case.door), (datetime!(2026-12-01 09:30 UTC), Door::Mcp));
    assert_eq!((case.depth, case.is_in_session), (1, true));
    assert_eq!(case.risk, Some((75, vec!["private_key".to_owned()])));
    let history = &case.facts;
    assert_eq!(history.calls, Window { minute: 3, hour: 3, day: 3 });
    assert_eq!(history.same, Window { minute: 1, hour: 19, day: 19 });
    assert_eq!(history.succeeded, BTreeSet::from([ToolName::parse("check").unwrap()]));
    assert_eq!(history.read, BTreeSet::from(["/workspace/secrets".to_owned()]));
    assert_eq!(case.expected.limits, BTreeMap::from([("max_memory_mb".to_owned(), 64)]));
}

#[test]
fn a_case_is_written_as_it_is_read() {
    let text = format!(
        r#"{MINIMAL}
arguments = {{ path = "/w/a" }}
at = 2026-12-01T09:30:00Z
door = "mcp"
parent = "run_python"
in_session = true
risk = {{ score = 75, threats = ["private_key"] }}
facts = {{ same = {{ minute = 1, hour = 19 }}, succeeded = ["check"] }}
"#
    );
    let case = only(&text);
    let written =
        format!("{}\n", case.to_toml()).replace("[[case]]", "[[case]]\nname = \"n\"\nexpect = \"allow\"");
    let again = only(&written);
    assert_eq!(format!("{case:?}"), format!("{again:?}"), "{written}");
}

#[test]
fn what_cannot_be_is_named() {
    for (more, part) in [
        ("at = \"yesterday\"", "`at` is `yesterday`"),
        ("door = \"window\"", "a2g, a2a"),
        ("risk = 101", "from 0 to 100"),
        ("limits = { max_memory = 1 }", "did you mean `max_memory_mb`"),
        ("expects = 1", "unknown field `expects`"),
        ("facts = { sames = 1 }", "unknown field `sames`"),
    ] {
        let message = TestFile::parse(&format!("{MINIMAL}{more}\n")).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(TestFile::parse("").unwrap_err(), CaseError::Empty);
}

#[test]
fn differences_say_what_was_expected_and_what_is() {
    let rule =
        |line, id: Option<&str>| RuleName { file: "a.cedar".to_owned(), line, id: id.map(str::to_owned) };
    let decided_by = [rule(1, None), rule(7, Some("api"))];
    let observed = Observed {
        decision: Decision::Denied,
        reason: Some("too late"),
        decided_by: &decided_by,
        folders: &[],
        granted: None,
    };
    let expecting = |more: &str| {
        let text = MINIMAL.replace("allow", "deny");
        only(&format!("{text}{more}\n")).expected.differences(&observed)
    };
    for same in
        ["", "rule = \"api\"", "rule = \"a.cedar:1\"", "reason = \"late\"", "folders = []", "hosts = []"]
    {
        assert_eq!(expecting(same), Vec::<String>::new(), "{same}");
    }
    for (other, part) in [
        (
            "rule = \"a.cedar:2\"",
            "expected the rule `a.cedar:2` to decide, and it is a.cedar:1, a.cedar:7 (api)",
        ),
        ("reason = \"early\"", "expected a reason with `early`, and it is: too late"),
        ("folders = [\"/w/**\"]", "expected the folders `/w/**`, and they are (none)"),
        ("limits = { max_memory_mb = 1 }", "expected `max_memory_mb` of 1, and no policy sets it"),
    ] {
        assert_eq!(expecting(other), [part]);
    }
    let decision = only(MINIMAL).expected.differences(&observed);
    assert_eq!(decision, ["expected allow, and it is deny: too late"]);
}

#[test]
fn coverage_counts_a_rule_once_for_each_case() {
    let rule = |line| RuleName { file: "a.cedar".to_owned(), line, id: None };
    let mut coverage = Coverage::of([rule(1), rule(2)]);
    coverage.add(&[rule(2), rule(2)]);
    coverage.add(&[rule(2)]);
    let counted = coverage.rules().map(|(rule, cases)| (rule.line, cases)).collect::<Vec<_>>();
    assert_eq!(counted, [(1, 0), (2, 2)]);
}
