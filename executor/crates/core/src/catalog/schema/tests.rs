use super::*;
use a2g_types::clock::{Clock as _, SystemClock};
use serde_json::{Map, json};
use std::time::Duration;

/// Far more time than a validation within its budget takes, and far less than these schemas take without one.
const MAX_TIME: Duration = Duration::from_secs(5);

fn schema(schema: &Value) -> Schema {
    Schema::new(schema).unwrap()
}

fn nested(levels: usize, name: &str) -> Value {
    (0..levels).fold(json!("end"), |inner, _| Value::Object(Map::from_iter([(name.to_owned(), inner)])))
}

#[test]
fn a_violation_points_to_the_invalid_value() {
    let schema = schema(&json!({
        "type": "object",
        "properties": { "lines": { "type": "array", "items": { "type": "integer" } } },
        "additionalProperties": false
    }));
    assert_eq!(schema.check(&json!({ "lines": [1, 2] })), Ok(()));
    assert_eq!(schema.check(&json!({ "lines": [1, "two"] })).unwrap_err().pointer, "/lines/1");
    let secret = "s".repeat(10_000);
    let violation = schema.check(&json!({ "lines": secret })).unwrap_err();
    assert!(violation.message.len() < 400 && !violation.message.contains("sss"), "{violation:?}");
}

#[test]
fn an_invalid_or_unbounded_schema_is_refused() {
    // Definitions that refer to the next one each, in some form.
    let levels_of = |levels: usize, form: fn(Value) -> Value| {
        let definition =
            |level: usize| (format!("d{level}"), form(json!({ "$ref": format!("#/$defs/d{}", level + 1) })));
        let mut defs = (0..levels).map(definition).collect::<Map<_, _>>();
        defs.insert(format!("d{levels}"), json!(true));
        json!({ "$ref": "#/$defs/d0", "$defs": defs })
    };
    let doubling = |levels: usize| levels_of(levels, |next| json!({ "anyOf": [next, next] }));
    let chain = |levels: usize| levels_of(levels, |next| next);
    let patterns = (0..100).map(|n| (n.to_string(), json!(true))).collect::<Map<_, _>>();
    for schema in [
        json!({ "$ref": "https://example.com/schema.json" }),
        json!({ "$ref": "#/$defs/missing" }),
        json!({ "$ref": "#name", "$defs": { "a": { "$anchor": "name" } } }),
        json!({ "$dynamicRef": "#x" }),
        json!({ "properties": { "a": { "$id": "https://example.com/a", "$ref": "#/b" } } }),
        json!({ "type": 5 }),
        json!({ "$ref": "#" }),
        json!({ "allOf": [{ "$ref": "#/$defs/a" }], "$defs": { "a": { "not": { "$ref": "#" } } } }),
        json!({ "pattern": "(\\w{1000}){1000}" }),
        json!({ "pattern": "^(?=x)" }),
        json!({ "patternProperties": patterns }),
        json!({ "description": "x".repeat(300 << 10) }),
        doubling(40),
        chain(100),
        nested(100, "not"),
    ] {
        let start = SystemClock.monotonic();
        assert!(Schema::new(&schema).is_err(), "{:.200}", schema.to_string());
        assert!(start.elapsed() < MAX_TIME, "{:.200}", schema.to_string());
    }
    schema(&doubling(6));
    schema(&chain(8));
    schema(&json!({ "properties": { "$anchor": true, "$id": { "type": "string" } } }));
}

/// In these schemas, several branches refer to the same definition, one level deeper each time.
#[test]
fn branches_that_share_a_definition_stay_within_the_budget() {
    let tree = json!({ "anyOf": [
        { "type": "object", "properties": { "x": { "$ref": "#" } }, "required": ["x"] },
        { "type": "object", "properties": { "x": { "$ref": "#" } }, "required": ["x"] },
    ] });
    let unevaluated = json!({
        "$ref": "#/$defs/node",
        "$defs": { "node": {
            "oneOf": [{ "properties": { "x": { "$ref": "#/$defs/node" } } }, { "required": ["y"] }, { "required": ["x"] }],
            "unevaluatedProperties": false,
        } }
    });
    // The longest permitted chain at every level needs the most stack.
    let levels =
        (0..6).map(|n| (format!("d{n}"), json!({ "allOf": [{ "$ref": format!("#/$defs/d{}", n + 1) }] })));
    let mut deep = levels.collect::<Map<_, _>>();
    deep.insert(
        "d6".to_owned(),
        json!({ "properties": { "x": { "$ref": "#/$defs/d0" } }, "not": { "required": ["y"] } }),
    );
    let deep = json!({ "$ref": "#/$defs/d0", "$defs": deep });
    for costly in [tree, unevaluated, deep] {
        let schema = schema(&costly);
        for levels in [16, 24, 60] {
            let start = SystemClock.monotonic();
            let _any_result = schema.check(&nested(levels, "x"));
            assert!(start.elapsed() < MAX_TIME, "{levels} levels took {:?}", start.elapsed());
        }
    }
}

#[test]
fn a_validation_that_takes_too_long_is_ended() {
    let schema =
        schema(&json!({ "items": { "enum": (0..2_000).collect::<Vec<_>>(), "not": { "const": -1 } } }));
    let many = Value::Array((0..2_000_000).map(|_| json!(7)).collect());
    let violation = schema.check(&many).unwrap_err();
    assert!(violation.message.contains("steps"), "{violation:?}");
    assert_eq!(schema.check_quickly(&many), QuickCheck::Unfinished);
    assert_eq!(schema.check_quickly(&json!([7])), QuickCheck::Done(Ok(())));
}

/// All of these arrays have the same hash in the validator's library.
#[test]
fn unique_items_are_not_compared_in_pairs() {
    fn shape(mut number: usize) -> Value {
        let mut value = json!([]);
        while number > 0 {
            value = if number.is_multiple_of(2) { json!([value]) } else { json!([[], value]) };
            number /= 2;
        }
        value
    }
    let schema = schema(&json!({ "uniqueItems": true }));
    let start = SystemClock.monotonic();
    assert_eq!(schema.check(&Value::Array((0..20_000).map(shape).collect())), Ok(()));
    assert!(start.elapsed() < MAX_TIME, "{:?}", start.elapsed());
    for (equal, items) in [
        (true, json!([1, 1.0])),
        (true, json!([{ "a": 1, "b": [2] }, { "b": [2.0], "a": 1 }])),
        (true, json!([0, -0.0])),
        (false, json!([1, "1", true, null, [1], { "1": 1 }])),
        (false, json!([["ab"], ["a", "b"], [["a"], "b"], ["a", ["b"]]])),
        (false, json!([9_007_199_254_740_993_u64, 9_007_199_254_740_992_u64])),
        (false, json!([0.5, 1.5, -0.5])),
    ] {
        assert_eq!(schema.check(&items).is_err(), equal, "{items}");
    }
}

#[test]
fn an_integer_that_is_not_exact_as_a_double_is_refused() {
    let typed = schema(&json!({ "properties": { "n": { "type": "integer" } } }));
    let nullable = schema(&json!({ "properties": { "n": { "type": ["integer", "null"] } } }));
    let number = schema(&json!({ "properties": { "n": { "type": "number" } } }));
    for (exact, n) in [
        (true, json!(9_007_199_254_740_991_i64)),
        (true, json!(-9_007_199_254_740_991_i64)),
        (true, json!(5.0)),
        (false, json!(9_007_199_254_740_992_u64)),
        (false, json!(-9_007_199_254_740_993_i64)),
        (false, json!(u64::MAX)),
        (false, json!(1e300)),
    ] {
        let arguments = json!({ "n": n });
        for schema in [&typed, &nullable] {
            let violation = schema.check(&arguments).err();
            assert_eq!(violation.is_none(), exact, "{arguments}: {violation:?}");
            assert!(
                violation
                    .is_none_or(|violation| violation.pointer == "/n" && violation.message.contains("2^53")),
                "{arguments}"
            );
        }
        assert_eq!(number.check(&arguments), Ok(()), "{arguments}");
    }
}

#[test]
fn metered_results_are_those_of_the_library() {
    let schemas = [
        json!({ "type": "object", "required": ["a"], "properties": { "a": { "minimum": 2 } }, "maxProperties": 2 }),
        json!({ "propertyNames": { "pattern": "^[a-c]$" }, "additionalProperties": { "type": ["string", "null"] } }),
        json!({ "prefixItems": [{ "type": "string" }], "items": { "type": "number" }, "minItems": 1 }),
        json!({ "oneOf": [{ "type": "integer" }, { "minimum": 2 }] }),
        json!({ "contains": { "const": 1.0 }, "maxContains": 2, "uniqueItems": false }),
        json!({ "if": { "type": "string" }, "then": { "minLength": 2 }, "else": { "type": "object" } }),
        json!({ "enum": ["a", 1, null, [1, 2], { "a": 1 }] }),
        json!({ "dependentRequired": { "a": ["b"] }, "patternProperties": { "^b": { "type": "string" } } }),
        json!({ "properties": { "a": true }, "unevaluatedProperties": false }),
        json!({ "multipleOf": 0.5, "exclusiveMaximum": 10 }),
    ];
    let values = [
        json!(null),
        json!(true),
        json!(1),
        json!(1.5),
        json!(3),
        json!("a"),
        json!("ü"),
        json!("long"),
        json!([]),
        json!([1, 2]),
        json!(["x", 1, 1.0]),
        json!(["x", "y"]),
        json!({}),
        json!({ "a": 1 }),
        json!({ "a": 3, "b": "x" }),
        json!({ "a": null, "d": 1 }),
        json!({ "b": 1 }),
        json!({ "a": 2, "c": {} }),
    ];
    for written in &schemas {
        let ours = schema(written);
        let theirs = jsonschema::validator_for(written).unwrap();
        for value in &values {
            let expected = theirs.validate(value).err().map(|error| error.instance_path().to_string());
            assert_eq!(
                ours.check(value).err().map(|violation| violation.pointer),
                expected,
                "{written} of {value}"
            );
        }
    }
}
