//! The schema of tools: what each JSON schema becomes, and that Cedar reads it back.

use super::*;
use a2g_types::tool::{CallTargets, Contract, DeclaredCapabilities, Digest};
use serde_json::json;

/// A tool of the catalogue.
pub(crate) fn tool(name: &str, arguments_schema: Value) -> Descriptor {
    Descriptor {
        name: ToolName::parse(name).unwrap(),
        title: None,
        version: "1.0.0".to_owned(),
        description: format!("Does {name}."),
        contract: Contract::Command,
        digest: Digest([0; 32]),
        arguments_schema,
        settings: None,
        result_schema: None,
        is_idempotent: false,
        has_sessions: false,
        capabilities: DeclaredCapabilities::default(),
        signature: None,
    }
}

/// A tool that reads or changes the file of its argument `path`.
pub(crate) fn file_tool(name: &str, filesystem: DeclaredFilesystem) -> Descriptor {
    let schema = json!({
        "type": "object",
        "required": ["path"],
        "properties": { "path": { "type": "string" }, "limit": { "type": "number" } },
    });
    let capabilities = DeclaredCapabilities { filesystem, ..DeclaredCapabilities::default() };
    Descriptor { capabilities, ..tool(name, schema) }
}

#[test]
fn each_json_schema_has_the_type_that_cedar_has_for_it() {
    for (schema, expected) in [
        (json!({ "type": "string" }), "String"),
        (json!({ "type": "integer" }), "Long"),
        (json!({ "type": "boolean" }), "Bool"),
        (json!({ "type": "string", "enum": ["a"] }), "String"),
        (json!({ "type": "array", "items": { "type": "integer" } }), "Set<Long>"),
        (json!({ "type": "object", "properties": {} }), "{}"),
        (
            json!({ "type": "object", "properties": { "b": { "type": "string" }, "a": { "type": "boolean" } },
                    "required": ["b"] }),
            "{ a?: Bool, b: String }",
        ),
        (
            json!({ "type": "object", "properties": { "x": { "type": "number" }, "y": { "type": "string" } } }),
            "{ y?: String }",
        ),
        (json!({ "type": "number" }), "-"),
        (json!({ "type": "null" }), "-"),
        (json!({ "type": ["string", "null"] }), "-"),
        (json!({ "type": "array" }), "-"),
        (json!({ "type": "array", "items": { "type": "array", "items": { "type": "string" } } }), "-"),
        (json!({ "type": "array", "items": { "type": "object", "properties": {} } }), "-"),
        (json!({ "type": "object" }), "-"),
        (json!({ "anyOf": [{ "type": "string" }] }), "-"),
        (json!({ "enum": ["a"] }), "-"),
        (json!(true), "-"),
    ] {
        let found = cedar_type(&schema, MAX_DEPTH).map_or_else(|| "-".to_owned(), |kind| type_text(&kind));
        assert_eq!(found, expected, "{schema}");
        let tool = tool("t", json!({ "properties": { "member": schema } }));
        assert_eq!(left_out(&tool).contains_key("member"), expected == "-", "{schema}");
    }
    let nested = |depth: usize| {
        let innermost = json!({ "type": "string" });
        (0..depth).fold(innermost, |inner, _| json!({ "type": "object", "properties": { "a": inner } }))
    };
    let depth =
        |schema: &Value| cedar_type(schema, MAX_DEPTH).map(|kind| type_text(&kind).matches('{').count());
    assert_eq!(depth(&nested(MAX_DEPTH)), Some(MAX_DEPTH));
    assert!(depth(&nested(MAX_DEPTH + 10)) <= Some(MAX_DEPTH), "what is deeper is left out");
}

#[test]
fn cedar_reads_back_what_is_written() {
    let names = [
        "plain",
        "in",
        "a-b",
        "with space",
        "quo\"te",
        "back\\slash",
        "new\nline",
        "",
        "ünï",
        "__cedar",
        "9",
    ];
    let properties = names.iter().map(|name| ((*name).to_owned(), json!({ "type": "string" })));
    let mut strange =
        tool("read", json!({ "properties": properties.collect::<Map<_, _>>(), "required": ["in"] }));
    strange.has_sessions = true;
    strange.capabilities.network = true;
    strange.capabilities.calls = CallTargets::All;
    let nested = json!({ "type": "object", "required": ["o"], "properties": {
        "o": { "type": "object", "properties": { "s": { "type": "array", "items": { "type": "boolean" } } } },
        "left\nout": { "type": "number" },
    } });
    let tools = [
        strange,
        tool("a.b-c", nested),
        tool("none", json!({})),
        file_tool("reader", DeclaredFilesystem::Read),
        file_tool("writer", DeclaredFilesystem::ReadWrite),
    ];
    let text = schema_text(&tools);
    assert_eq!(text, schema_text(tools.iter().rev()), "the order does not matter");
    for parsed in [ParsedSchema::of_catalogue(&text), ParsedSchema::of_file(&text)] {
        let parsed = parsed.unwrap();
        assert_eq!(parsed.tools.len(), tools.len());
        for tool in &tools {
            let shape = &parsed.tools[&tool.name];
            assert_eq!(
                shape.input,
                record(&tool.arguments_schema, MAX_DEPTH).unwrap_or_default(),
                "{}",
                tool.name
            );
            assert_eq!(
                shape.labels,
                labels(tool).into_iter().map(str::to_owned).collect::<BTreeSet<_>>(),
                "{}",
                tool.name
            );
            assert_eq!(shape.filesystem, tool.capabilities.filesystem);
            assert_eq!(shape.has_network, tool.capabilities.network);
            assert_eq!(shape.action.id().unescaped(), action_name(&tool.name));
            assert!(parsed.schema.actions().any(|action| *action == shape.action), "{}", tool.name);
        }
    }
    assert!(text.contains("action \"tool:read\" in [\"call\"]"), "{text}");
    assert!(text.contains("// \"left\\nout\": Cedar has no numbers"), "{text}");
}

#[test]
fn a_schema_file_of_another_version_or_with_an_error_is_refused() {
    let text = schema_text([]);
    for (text, expected) in [
        (text.replace("entity Secret;\n", ""), "was not written by this version"),
        (format!("{text}\naction \"x\" appliesTo"), "line"),
        (format!("{text}\naction \"9\" in [\"call\"];"), "is not a tool name"),
    ] {
        let error = ParsedSchema::of_file(&text).unwrap_err().to_string();
        assert!(error.contains("schema.cedarschema") && error.contains(expected), "{error}");
    }
}
