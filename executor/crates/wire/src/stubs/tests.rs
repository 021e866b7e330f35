//! Schemas and their stubs, in both languages.

use super::*;
use a2g_types::ident::ToolName;
use a2g_types::tool::{Contract, DeclaredCapabilities, Digest};
use serde_json::{Value, json};
use std::io::Write as _;

pub(crate) fn tool(name: &str, description: &str, arguments: Value, result: Option<Value>) -> Descriptor {
    Descriptor {
        name: ToolName::parse(name).unwrap(),
        title: None,
        version: "1.0.0".to_owned(),
        description: description.to_owned(),
        contract: Contract::Command,
        digest: Digest([0; 32]),
        arguments_schema: arguments,
        result_schema: result,
        settings: None,
        is_idempotent: false,
        has_sessions: false,
        capabilities: DeclaredCapabilities::default(),
        signature: None,
    }
}

const MAX: usize = 5_000;

fn member(tool: &Descriptor, language: Language) -> String {
    Stub::new(tool, language, MAX).member
}

/// The types of a value that a tool with this schema answers.
fn types(schema: &Value) -> (String, String) {
    let tool =
        tool("t", "", json!({ "type": "object", "additionalProperties": false }), Some(schema.clone()));
    let script = member(&tool, Language::Javascript);
    let script = script.trim_end().strip_prefix("  t(args?: {}): Promise<").unwrap();
    let python = Stub::new(&tool, Language::Python, MAX);
    let result = python.member.strip_prefix("    def t(self) -> ").unwrap().strip_suffix(": ...\n").unwrap();
    (script.strip_suffix(">;").unwrap().to_owned(), format!("{}{result}", python.types))
}

#[test]
fn a_schema_becomes_a_type_of_each_language() {
    let node = json!({ "type": "object", "properties": { "next": { "$ref": "#/$defs/node" } } });
    let cases = [
        (json!({ "type": "string" }), "string", "str"),
        (json!({ "type": "integer" }), "number", "int"),
        (json!({ "type": "number" }), "number", "float"),
        (json!({ "type": "boolean" }), "boolean", "bool"),
        (json!({ "type": "null" }), "null", "None"),
        (json!({}), "unknown", "Any"),
        (json!(true), "unknown", "Any"),
        (json!({ "type": "widget" }), "unknown", "Any"),
        (json!({ "not": { "type": "string" } }), "unknown", "Any"),
        (json!({ "type": ["string", "null"] }), "string | null", "str | None"),
        (json!({ "type": "string", "nullable": true }), "string | null", "str | None"),
        (json!({ "type": ["integer", "number"] }), "number", "int | float"),
        (json!({ "const": "a" }), "\"a\"", "Literal[\"a\"]"),
        (json!({ "const": 1.5 }), "1.5", "float"),
        (
            json!({ "enum": ["a", 1, true, null] }),
            "\"a\" | 1 | true | null",
            "Literal[\"a\", 1, True] | None",
        ),
        (json!({ "enum": [[1], "a"] }), "unknown", "Any"),
        (json!({ "enum": (0..30).map(|n| n.to_string()).collect::<Vec<_>>() }), "string", "str"),
        (json!({ "type": "array" }), "unknown[]", "list[Any]"),
        (json!({ "items": { "type": "string" } }), "string[]", "list[str]"),
        (
            json!({ "type": "array", "items": { "enum": ["a", "b"] } }),
            "(\"a\" | \"b\")[]",
            "list[Literal[\"a\", \"b\"]]",
        ),
        (
            json!({ "type": "array", "prefixItems": [{ "type": "string" }, { "type": "null" }], "items": false }),
            "(string | null)[]",
            "list[str | None]",
        ),
        (json!({ "type": "array", "prefixItems": [{ "type": "string" }] }), "unknown[]", "list[Any]"),
        (json!({ "type": "object" }), "Record<string, unknown>", "dict[str, Any]"),
        (
            json!({ "type": "object", "additionalProperties": { "type": "integer" } }),
            "Record<string, number>",
            "dict[str, int]",
        ),
        (
            json!({ "type": "object", "patternProperties": { "^x": { "type": "integer" } } }),
            "Record<string, number>",
            "dict[str, int]",
        ),
        (
            json!({ "type": "object", "additionalProperties": false }),
            "{}",
            "TResult = TypedDict(\"TResult\", {})\nTResult",
        ),
        (
            json!({ "properties": { "a": { "type": "string" }, "b": false }, "required": ["a"] }),
            "{ a: string }",
            "class TResult(TypedDict):\n    a: str\nTResult",
        ),
        (
            json!({ "properties": { "a": {} }, "additionalProperties": true }),
            "{ a?: unknown; [name: string]: unknown }",
            "class TResult(TypedDict):  # and others\n    a: NotRequired[Any]\nTResult",
        ),
        (
            json!({ "properties": { "my-key": { "type": "string" }, "class": { "type": "string" } } }),
            "{ \"my-key\"?: string; class?: string }",
            "TResult = TypedDict(\"TResult\", {\"my-key\": NotRequired[str], \"class\": NotRequired[str]})\nTResult",
        ),
        (
            json!({ "oneOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] }),
            "string | string[]",
            "str | list[str]",
        ),
        (json!({ "anyOf": [{ "type": "string" }, {}] }), "unknown", "Any"),
        (json!({ "type": "string", "anyOf": [{ "pattern": "a" }, { "pattern": "b" }] }), "string", "str"),
        (
            json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"],
                "oneOf": [{ "properties": { "b": { "const": 1 } }, "required": ["b"] }, { "properties": { "c": {} } }] }),
            "{ a: string; b: 1 } | { a: string; c?: unknown }",
            "class TResult(TypedDict):\n    a: str\n    b: Literal[1]\n\
             class TResult2(TypedDict):\n    a: str\n    c: NotRequired[Any]\nTResult | TResult2",
        ),
        (
            json!({ "allOf": [{ "properties": { "a": { "type": "string" } } }, { "required": ["b"],
                "properties": { "b": { "type": "null" } } }] }),
            "{ a?: string; b: null }",
            "class TResult(TypedDict):\n    a: NotRequired[str]\n    b: None\nTResult",
        ),
        (
            json!({ "type": "array", "items": { "$ref": "#/definitions/x" }, "definitions": { "x": { "type": "string" } } }),
            "string[]",
            "list[str]",
        ),
        (
            json!({ "$ref": "#/$defs/node", "$defs": { "node": node } }),
            "{ next?: unknown }",
            "class TResult(TypedDict):\n    next: NotRequired[Any]\nTResult",
        ),
        (json!({ "$ref": "#" }), "unknown", "Any"),
        (json!({ "$ref": "https://example.com/schema" }), "unknown", "Any"),
        (json!({ "$ref": "#/$defs/none" }), "unknown", "Any"),
    ];
    for (schema, script, python) in cases {
        assert_eq!(types(&schema), (script.to_owned(), python.to_owned()), "{schema}");
    }
}

#[test]
fn a_tool_becomes_a_member_with_its_descriptions() {
    let arguments = json!({
        "type": "object",
        "required": ["path"],
        "properties": {
            "max_bytes": { "type": "integer", "description": "At most\nthis many.", "default": 1024 },
            "path": { "type": "string", "description": "The file." },
            "mode": { "enum": ["text", "base64"], "default": "text" },
        },
    });
    let result = json!({ "type": "object", "required": ["content"],
        "properties": { "content": { "type": "string" } } });
    let tool = tool("read_file", "Reads a file.", arguments, Some(result));
    assert_eq!(
        file(Language::Javascript, &[&Stub::new(&tool, Language::Javascript, MAX)]),
        r#"declare const tools: {
  /** Reads a file. */
  read_file(args: {
    /** At most this many. (default 1024) */ max_bytes?: number;
    /** The file. */ path: string;
    /** (default "text") */ mode?: "text" | "base64";
  }): Promise<{ content: string }>;
};
"#
    );
    assert_eq!(
        file(Language::Python, &[&Stub::new(&tool, Language::Python, MAX)]),
        r#"from typing import Literal, TypedDict
class ReadFileResult(TypedDict):
    content: str
class Tools:
    def read_file(self, *,
        path: str,  # The file.
        max_bytes: int = 1024,  # At most this many.
        mode: Literal["text", "base64"] = "text",
    ) -> ReadFileResult:
        """Reads a file."""
tools: Tools
"#
    );
}

#[test]
fn a_name_that_is_no_identifier_is_quoted() {
    let schema =
        json!({ "properties": { "self": {}, "a b": { "type": "string" }, "x": {} }, "required": ["a b"] });
    let dashed = tool("my-tool", "", schema, None);
    assert_eq!(
        member(&dashed, Language::Javascript),
        "  \"my-tool\"(args: { self?: unknown; \"a b\": string; x?: unknown }): Promise<unknown>;\n"
    );
    assert_eq!(
        member(&dashed, Language::Python),
        "    # tools[\"my-tool\"](...)\n    def my_tool(self, *,\n        x: Any = ...,\n        \
         **others: Any,  # pass as **{...}: \"self\": Any (optional), \"a b\": str\n    ) -> Any: ...\n"
    );
    let keyword = tool("import", "", json!({ "type": "object" }), None);
    assert_eq!(
        member(&keyword, Language::Javascript),
        "  import(args?: Record<string, unknown>): Promise<unknown>;\n"
    );
    assert_eq!(
        member(&keyword, Language::Python),
        "    # tools[\"import\"](...)\n    def import_(self, **others: Any) -> Any: ...\n"
    );
}

#[test]
fn python_takes_the_members_of_every_alternative() {
    let schema = json!({ "oneOf": [
        { "properties": { "a": { "type": "string" }, "b": { "type": "string" } }, "required": ["a", "b"] },
        { "properties": { "a": { "type": "integer" } }, "required": ["a"] },
    ] });
    let tool = tool("t", "", schema, None);
    assert_eq!(
        member(&tool, Language::Python),
        "    def t(self, *, a: str | int, b: str = ...) -> Any: ...\n"
    );
    assert_eq!(
        member(&tool, Language::Javascript),
        "  t(args: { a: string; b: string } | { a: number }): Promise<unknown>;\n"
    );
}

/// Texts that try to leave the place that they are in.
const HOSTILE: [&str; 7] = [
    "*/ evil(): void; /*",
    "\"\"\"\nimport os\n\"\"\"",
    "a\\",
    "'\"`${x}",
    "# x\r\nclass Y: pass",
    "\u{202e}reversed\u{2066}\u{feff}\0",
    "\u{2028}\u{2029}\u{85}x\u{b}y",
];

fn hostile_tool() -> Descriptor {
    let property = |text: &str| json!({ "description": text, "default": text, "enum": [text, 1] });
    let mut schema = json!({ "type": "object", "properties": {}, "required": HOSTILE[..3].to_vec() });
    for text in HOSTILE {
        schema["properties"][text] = property(text);
        let nested = json!({ "type": "object", "description": text, "properties": { text: property(text) } });
        schema["properties"][format!("n{}", text.len())] = nested;
    }
    tool("my-tool.x", &HOSTILE.join(" "), schema.clone(), Some(schema))
}

#[test]
fn texts_of_authors_stay_in_their_comments_and_strings() {
    let tool = hostile_tool();
    let script = Stub::new(&tool, Language::Javascript, 100_000).member;
    // None of the texts occurs outside of strings and comments.
    let mut code = String::new();
    let mut rest = script.as_str();
    while let Some(start) = rest.find(['"', '/']) {
        code.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = match rest.strip_prefix("/*") {
            Some(comment) => comment.find("*/").unwrap() + 4,
            None => {
                let mut bytes = rest.bytes().enumerate().skip(1);
                loop {
                    match bytes.next().unwrap() {
                        (_, b'\\') => drop(bytes.next()),
                        (index, b'"') => break index + 1,
                        _other => {}
                    }
                }
            }
        };
        rest = &rest[end..];
    }
    code.push_str(rest);
    assert!(!["evil", "import", "class", "reversed", "$"].iter().any(|word| code.contains(word)), "{code}");
    assert!(!script.chars().any(|c| c != '\n' && a2g_types::ident::is_display_control(c)), "{script:?}");
}

/// Schemas that would take long, or become long, if nothing bounded them.
fn large_schemas() -> Vec<Value> {
    let mut nested = json!({ "type": "string" });
    for depth in 0..60 {
        let branches = (0..24).map(|n| json!({ "properties": { format!("b{n}"): { "type": "null" } } }));
        let branches = branches.collect::<Vec<_>>();
        nested = json!({ "properties": { format!("n{depth}"): nested }, "anyOf": branches });
    }
    let wide = (0..5_000).map(|n| (format!("member_{n}"), json!({ "description": "x".repeat(500) })));
    let mut doubling = json!({ "$defs": { "d0": { "type": "string" } }, "$ref": "#/$defs/d40" });
    for n in 1..=40 {
        let previous = json!({ "$ref": format!("#/$defs/d{}", n - 1) });
        doubling["$defs"][format!("d{n}")] = json!({ "properties": { "a": previous, "b": previous } });
    }
    let long = json!({ "properties": { "n".repeat(10_000): {} }, "enum": ["v".repeat(10_000)] });
    let all = json!({ "allOf": vec![json!({ "properties": { "a": {} } }); 1_000] });
    vec![
        nested,
        json!({ "type": "object", "properties": wide.collect::<serde_json::Map<_, _>>() }),
        doubling,
        long,
        all,
    ]
}

#[test]
fn a_stub_is_as_short_as_asked() {
    for schema in large_schemas() {
        let tool = tool("t", &"word ".repeat(1_000), schema.clone(), Some(schema.clone()));
        for language in [Language::Javascript, Language::Python] {
            for max_bytes in [5_000, 2_000, 400] {
                let stub = Stub::new(&tool, language, max_bytes);
                assert!(!stub.is_empty() && stub.len() <= max_bytes, "{} of {max_bytes}", stub.len());
            }
        }
    }
}

/// Every Python file that the cases make, as the parser of Python reads it; without Python, nothing.
#[test]
fn python_reads_the_stubs() {
    let mut tools = vec![hostile_tool()];
    tools.extend(large_schemas().into_iter().map(|schema| tool("t", "T.", schema.clone(), Some(schema))));
    tools.push(tool("none", "", json!({ "additionalProperties": false, "type": "object" }), None));
    let stubs =
        tools.iter().flat_map(|tool| [100_000, 3_000, 200].map(|max| Stub::new(tool, Language::Python, max)));
    let stubs = stubs.collect::<Vec<_>>();
    let text = file(Language::Python, &stubs.iter().collect::<Vec<_>>()) + &file(Language::Python, &[]);
    let folder = std::env::temp_dir().join(format!("a2g-stubs-{}.pyi", std::process::id()));
    std::fs::write(&folder, &text).unwrap();
    let script = "import ast, sys; ast.parse(open(sys.argv[1], encoding='utf-8').read())";
    let parsed = std::process::Command::new("python3").args(["-c", script]).arg(&folder).output();
    std::fs::remove_file(&folder).unwrap();
    let Ok(parsed) = parsed else {
        // A passing test shows nothing that `eprintln!` prints.
        return writeln!(std::io::stderr(), "skipped: there is no python3").unwrap();
    };
    assert!(parsed.status.success(), "{}\n{text}", String::from_utf8_lossy(&parsed.stderr));
}
