use super::*;

fn document(version: &str, schemas: &Value) -> Document {
    let root = json!({ "openapi": version, "components": { "schemas": schemas } });
    Document::parse(&root.to_string()).unwrap()
}

/// The schema of the component `A`, and the remarks.
fn converted(version: &str, direction: Direction, schemas: &Value) -> (Value, String) {
    let document = document(version, schemas);
    let made = convert(&document, direction, |converter| {
        converter.schema(&document.root["components"]["schemas"]["A"])
    });
    let Converted { schema, remarks } = made.unwrap();
    (schema, remarks.into_iter().collect::<Vec<_>>().join("; "))
}

fn request(version: &str, schema: Value) -> Value {
    converted(version, Direction::Request, &json!({ "A": schema })).0
}

#[test]
fn schemas_of_both_versions_become_json_schema() {
    for (version, schema, expected) in [
        ("3.0.0", json!({ "type": "string", "nullable": true }), json!({ "type": ["string", "null"] })),
        ("3.1.0", json!({ "type": ["string", "null"] }), json!({ "type": ["string", "null"] })),
        (
            "3.0.0",
            json!({ "type": "integer", "minimum": 1, "exclusiveMinimum": true, "maximum": u64::MAX }),
            json!({ "type": "integer", "exclusiveMinimum": 1 }),
        ),
        ("3.1.0", json!({ "exclusiveMaximum": 2.5 }), json!({ "exclusiveMaximum": 2.5 })),
        (
            "3.0.0",
            json!({ "type": "string", "nullable": true, "enum": ["a", null] }),
            json!({ "anyOf": [{ "type": "string", "enum": ["a"] }, { "type": "null" }] }),
        ),
        ("3.1.0", json!({ "items": true, "const": 1 }), json!({ "items": {}, "const": 1 })),
        (
            "3.0.0",
            json!({ "type": "string", "example": "x", "default": null }),
            json!({ "type": "string", "examples": ["x"] }),
        ),
        (
            "3.0.0",
            json!({ "type": "string", "description": "a\n\u{202e}b" }),
            json!({ "type": "string", "description": "a b" }),
        ),
        ("3.0.0", json!({ "oneOf": [{ "type": "string" }] }), json!({ "anyOf": [{ "type": "string" }] })),
        (
            "3.0.0",
            json!({ "title": "T", "allOf": [{ "type": "string" }] }),
            json!({ "type": "string", "description": "T" }),
        ),
    ] {
        assert_eq!(request(version, schema.clone()), expected, "{version} {schema}");
    }
}

#[test]
fn arguments_are_strict_and_answers_are_not() {
    let object = json!({
        "type": "object", "required": ["id", "name", "secret", "gone"],
        "properties": { "id": { "readOnly": true }, "name": {}, "secret": { "writeOnly": true } },
    });
    let schemas = json!({ "A": object });
    let (request, _) = converted("3.0.0", Direction::Request, &schemas);
    let expected = json!({
        "type": "object", "required": ["name", "secret"], "properties": { "name": {}, "secret": {} },
        "additionalProperties": false,
    });
    assert_eq!(request, expected);
    let (response, _) = converted("3.0.0", Direction::Response, &schemas);
    let expected = json!({
        "type": "object", "required": ["gone", "id", "name"], "properties": { "id": {}, "name": {} },
    });
    assert_eq!(response, expected);
    let closed = json!({ "A": { "type": "object", "additionalProperties": false } });
    assert_eq!(converted("3.0.0", Direction::Response, &closed).0, json!({ "type": "object" }));
    let parts = json!([{ "properties": { "a": {} } }, { "required": ["a"], "properties": { "b": {} } }]);
    let combined = json!({ "A": { "allOf": parts } });
    assert!(!converted("3.0.0", Direction::Request, &combined).0.to_string().contains("additional"));
}

#[test]
fn a_schema_that_contains_itself_is_a_definition() {
    let [a, b] = ["A", "B"].map(|name| json!({ "$ref": format!("#/components/schemas/{name}") }));
    let schemas = json!({
        "A": { "type": "object", "properties": { "child": a, "b": b } },
        "B": { "type": "array", "items": b },
    });
    let (schema, remarks) = converted("3.0.0", Direction::Response, &schemas);
    assert_eq!(schema["properties"]["child"]["properties"]["child"], json!({ "$ref": "#/$defs/A" }));
    assert_eq!(schema["$defs"]["B"]["items"], json!({ "$ref": "#/$defs/B" }));
    assert_eq!(remarks, "");
    // Nothing between the schema and itself: every value is accepted.
    for schemas in [json!({ "A": a }), json!({ "A": { "allOf": [b] }, "B": { "anyOf": [a, b] } })] {
        let (schema, remarks) = converted("3.0.0", Direction::Request, &schemas);
        assert!(!schema.to_string().contains("$ref"), "{schema}");
        assert!(remarks.contains("consists of itself"), "{remarks}");
    }
}

#[test]
fn what_exceeds_the_limits_accepts_any_value() {
    // 2^30 schemas if each reference is written out.
    let members = json!({ "x": { "$ref": "#/components/schemas/S0" }, "y": { "type": "string" } });
    let mut schemas = json!({ "A": { "type": "object", "properties": members } });
    for level in 0..30 {
        let next = json!({ "$ref": format!("#/components/schemas/S{}", level + 1) });
        schemas[format!("S{level}")] = json!({ "properties": { "a": next, "b": next } });
    }
    schemas["S30"] = json!({ "type": "string" });
    let (schema, remarks) = converted("3.0.0", Direction::Request, &schemas);
    assert_eq!(schema["properties"]["y"], json!({ "type": "string" }));
    assert!(remarks.contains("deeply nested"), "{remarks}");
    assert!(schema.to_string().len() <= MAX_BYTES);

    // A chain of schemas of one value, which is longer than the executor accepts.
    let mut chain = json!({});
    for level in 0..100 {
        let next = json!({ "$ref": format!("#/components/schemas/{}", level + 1) });
        chain[level.to_string()] = json!({ "type": "object", "allOf": [next] });
    }
    chain["100"] = json!({});
    chain["A"] = json!({ "$ref": "#/components/schemas/0" });
    let (schema, remarks) = converted("3.0.0", Direction::Response, &chain);
    assert_eq!(schema["type"], "object");
    assert!(remarks.contains("deeply nested"), "{remarks}");

    let long = (0..=MAX_ENUM).collect::<Vec<_>>();
    let (schema, remarks) = converted("3.0.0", Direction::Request, &json!({ "A": { "enum": long } }));
    assert_eq!((schema, remarks.as_str()), (json!({}), "long enumerations accept any value"));
}

#[test]
fn only_patterns_that_the_executor_can_check_are_kept() {
    let schemas = json!({ "A": { "properties": {
        "a": { "pattern": "^[a-z]+$" },
        "b": { "pattern": "^(?!x)" },
        "c": { "pattern": "(((a{99}){99}){99}){99}" },
    } } });
    let (schema, remarks) = converted("3.0.0", Direction::Request, &schemas);
    let expected = json!({ "a": { "pattern": "^[a-z]+$" }, "b": {}, "c": {} });
    assert_eq!((&schema["properties"], remarks.as_str()), (&expected, "some patterns are not checked"));
}

#[test]
fn a_reference_out_of_the_document_is_refused() {
    let document = document("3.0.0", &json!({ "A": { "items": { "$ref": "https://evil.example/x" } } }));
    let schema = &document.root["components"]["schemas"]["A"];
    let error = convert(&document, Direction::Request, |converter| converter.schema(schema)).unwrap_err();
    assert!(error.to_string().contains("leads outside"), "{error}");
}
