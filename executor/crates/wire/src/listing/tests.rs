//! The tools that a query finds, and the length of answers.

use super::*;
use crate::stubs::tests::tool;
use serde_json::json;

fn catalogue() -> Vec<Descriptor> {
    let path = json!({ "properties": { "path": { "type": "string" } }, "required": ["path"] });
    let long = json!({ "properties": { "path": { "type": "string" }, "content": { "type": "string" } } });
    [
        ("copyFile", "Copies.", &long),
        ("delete-file", "Removes a file for good.", &path),
        ("read_file", "Reads a text.", &path),
        ("run_javascript", "Runs a file of JavaScript.", &path),
        ("search_text", "Finds a text in files.", &long),
        ("unrelated", "Adds numbers.", &path),
    ]
    .map(|(name, description, schema)| tool(name, description, schema.clone(), None))
    .to_vec()
}

fn ask(tools: &[Descriptor], query: &str, language: Option<Language>) -> ToolStubs {
    describe(tools.iter(), &DescribeRequest { query: query.to_owned(), language })
}

#[test]
fn a_query_finds_tools_by_words() {
    let tools = catalogue();
    let cases: [(&str, &[&str]); 9] = [
        // Name and description, the name alone with the shortest stub first, and the description alone.
        ("file", &["delete-file", "read_file", "copyFile", "search_text"]),
        ("FILES", &["delete-file", "read_file", "copyFile", "search_text"]),
        ("read the file", &["read_file", "delete-file", "copyFile", "search_text"]),
        ("remove", &["delete-file"]),
        ("numbers", &["unrelated"]),
        ("search_text", &["search_text"]),
        ("unrelated, read_file", &["read_file", "unrelated"]),
        ("to a of", &[]),
        ("javascript", &[]),
    ];
    for (query, expected) in cases {
        let answer = ask(&tools, query, None);
        assert_eq!(answer.described, expected, "{query}");
        assert_eq!(answer, ask(&tools, query, None));
    }
    // An answer with one tool, selected by its name, still counts the others.
    let answer = ask(&tools, "read_file", None);
    assert!(
        answer.text.ends_with("// Not described, ask for them by name: delete-file, copyFile, search_text\n")
    );
    assert_eq!((answer.tools, answer.matched), (5, 4));
}

#[test]
fn the_language_is_that_of_the_interpreter_unless_named() {
    let mut tools = catalogue();
    assert_eq!(ask(&tools, "read", None).language, Language::Javascript);
    assert!(ask(&tools, "read", Some(Language::Python)).text.starts_with("# In run_python: "));
    let only = tool("run_python", "Runs Python.", json!({}), None);
    tools.retain(|tool| !is_interpreter(tool));
    tools.push(only);
    assert_eq!(ask(&tools, "read", None).language, Language::Python);
}

#[test]
fn an_overview_says_as_much_as_fits() {
    let all = |count: usize, name: &str| {
        let tool = |n: usize| tool(&format!("{name}_{n:04}"), "Does something to a thing.", json!({}), None);
        (0..count).map(tool).collect::<Vec<_>>()
    };
    let lines = ask(&all(10, "work"), " ", None);
    assert_eq!((lines.matched, lines.text.lines().count()), (10, 11), "{}", lines.text);
    assert!(lines.text.ends_with("work_0009: Does something to a thing.\n"));
    let names = ask(&all(100, "work"), "", None).text;
    assert!(names.ends_with("work_0098, work_0099\n"), "{names}");
    let most = ask(&all(5_000, "work"), "", None).text;
    assert!(most.contains("Words in their names: work (5000)\n") && most.ends_with(" more\n"), "{most}");
    assert!(ask(&[], "", None).text.starts_with("0 tools."));
    assert!(ask(&all(3, "work"), "other", None).text.starts_with("No tool matches this query.\n3 tools."));
}

#[test]
fn an_answer_is_bounded_whatever_the_schemas_are() {
    let properties = (0..60).map(|n| {
        (
            format!("member_{n}"),
            json!({ "type": "string", "description": "A part of the request to the service." }),
        )
    });
    let schema = json!({ "properties": properties.collect::<serde_json::Map<_, _>>() });
    let name = |n: usize| format!("{}_{n:03}", "long".repeat(14));
    let tools =
        (0..500).map(|n| tool(&name(n), &"word ".repeat(1_600), schema.clone(), Some(schema.clone())));
    let tools = tools.collect::<Vec<_>>();
    for language in [Language::Javascript, Language::Python].map(Some) {
        let found = ask(&tools, "word", language);
        assert!(!found.described.is_empty() && found.text.len() <= MAX_SEARCH_BYTES, "{}", found.text.len());
        assert!(found.text.contains(" more: narrow the query to see them\n"), "{}", found.text);
        let named = ask(&tools, &name(7), language);
        assert_eq!(named.described, [name(7)]);
        assert!(
            named.text.contains("member_59") && named.text.len() <= MAX_NAMED_BYTES,
            "{}",
            named.text.len()
        );
        let none = ask(&tools, "zebra", language);
        assert!(none.text.len() <= MAX_OVERVIEW_BYTES + 100, "{}", none.text.len());
    }
    assert!(ask(&tools, "", None).text.len() <= MAX_OVERVIEW_BYTES);
}
