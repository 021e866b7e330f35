//! Schemas and arguments that are made to cost the server time and memory when one is checked against the other.

use super::bench::Bench;
use harness::guests::Guest;
use harness::{Options, Tool, error};
use serde_json::{Map, Value, json};

/// Memory that the server may take beside its own for a call with hostile arguments, in MB.
const MAX_GROWTH_MB: u64 = 100;

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!("end"), |inner, _| json!({ "x": inner }))
}

fn tool(name: &str, schema: Value) -> Tool {
    Tool::command_bytes(name, Guest::new("(call $note (i32.const 7))").wasm()).schema(schema)
}

/// Every level of nesting doubles the work of a validator that gathers the errors of both branches.
#[test]
fn schema_branches_that_share_a_definition_take_bounded_time_and_memory() {
    let branch = json!({ "type": "object", "properties": { "x": { "$ref": "#" } }, "required": ["x"] });
    let unique = json!({ "properties": { "x": { "uniqueItems": true } } });
    let patterns = json!({ "additionalProperties": { "pattern": "^(a|aa|aaa)*b$" } });
    let bench = Bench::start_tools(
        Options::new(),
        [
            tool("twice", json!({ "anyOf": [branch, branch] })),
            tool("unique", unique),
            tool("patterns", patterns),
        ],
    );
    let shapes = (0..12_000).map(|mut number: usize| {
        let mut shape = json!([]);
        while number > 0 {
            shape = if number.is_multiple_of(2) { json!([shape]) } else { json!([[], shape]) };
            number /= 2;
        }
        shape
    });
    let text = "a".repeat(900_000);
    let grown = bench.peak_since(|| {
        for levels in [16, 20, 24, 58] {
            let answer = bench.call("twice").arguments(nested(levels)).send();
            let message = error(&answer.response, -32602)["message"].as_str().unwrap().to_owned();
            assert!(message.contains("do not match the schema"), "{message}");
        }
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| bench.call("twice").arguments(nested(58)).send())));
        });
        bench.call("unique").arguments(json!({ "x": shapes.collect::<Vec<_>>() })).send().success();
        error(&bench.call("patterns").arguments(json!({ "x": text })).send().response, -32602);
    });
    assert!(grown < MAX_GROWTH_MB, "the server grew by {grown} MB");
}

/// Schemas whose cost no budget could hold make their tools unusable, and no others.
#[test]
fn an_unbounded_schema_makes_its_tool_unusable() {
    let doubling = |level: usize| {
        let next = json!({ "$ref": format!("#/$defs/d{}", level + 1) });
        (format!("d{level}"), json!({ "allOf": [next, next] }))
    };
    let mut definitions = (0..40).map(doubling).collect::<Map<_, _>>();
    definitions.insert("d40".to_owned(), json!(true));
    let bench = Bench::start_tools(
        Options::new(),
        [
            tool("doubling", json!({ "$ref": "#/$defs/d0", "$defs": definitions })),
            tool("circle", json!({ "$ref": "#" })),
            tool("remote", json!({ "$ref": "https://example.com/schema.json" })),
            tool("backtracks", json!({ "properties": { "x": { "pattern": "(a+)+\\1" } } })),
        ],
    );
    for name in ["doubling", "circle", "remote", "backtracks"] {
        let answer = bench.call(name).send();
        let message = error(&answer.response, -32001)["message"].as_str().unwrap().to_owned();
        assert!(message.contains("schema"), "{name}: {message}");
    }
    bench.assert_well("schemas that cannot be bounded");
}
