//! `#[derive(Arguments)]` on every shape of type that it supports.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should stop where it stands")]

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{schemars, serde_json};

/// The order of the results.
#[derive(Arguments, Debug, Clone, Copy, Default, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Order {
    #[default]
    AsIs,
    /// The largest first.
    LargestFirst,
}

#[derive(Arguments, Debug, PartialEq)]
struct Query {
    #[serde(default = "ten")]
    #[schemars(range(min = 1, max = 100))]
    limit: u32,
    #[serde(default)]
    order: Order,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    below: Vec<Query>,
}

fn ten() -> u32 {
    10
}

#[derive(Arguments, Debug, PartialEq)]
struct Name(String);

#[derive(Arguments, Debug, PartialEq)]
#[serde(tag = "shape", rename_all = "lowercase")]
enum Shape {
    Circle { radius: f64 },
    Point,
}

#[derive(Arguments, Debug, PartialEq)]
enum Mixed {
    Unit,
    Pair(i32, Name),
    Named { shape: Shape },
}

#[derive(Arguments, Debug, PartialEq)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Settings {
    max_size: u8,
    name: String,
}

impl Default for Settings {
    fn default() -> Self {
        let name = "default".to_owned();
        Self { max_size: 7, name }
    }
}

#[derive(Arguments, Serialize, Debug, PartialEq)]
#[serde(crate = "a2g_guest_sdk::serde", rename = "Both")]
struct BothWays {
    raw: String,
}

fn parse<T: a2g_guest_sdk::Arguments>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

fn schema<T: a2g_guest_sdk::Arguments>() -> Value {
    schemars::schema_for!(T).to_value()
}

#[test]
fn fields_honour_serde_attributes() {
    let query: Query = parse(json!({ "type": "x", "below": [{ "limit": 2 }] })).unwrap();
    let below = Query { limit: 2, order: Order::AsIs, kind: None, below: Vec::new() };
    let expected = Query { limit: 10, kind: Some("x".to_owned()), below: vec![below], order: Order::AsIs };
    assert_eq!(query, expected);
    let ordered: Query = parse(json!({ "order": "largest_first" })).unwrap();
    assert_eq!(ordered.order, Order::LargestFirst);
}

#[test]
fn unknown_fields_are_denied_at_every_depth() {
    let check = |value: Value| {
        let error = parse::<Query>(value).unwrap_err();
        assert!(error.contains("unknown field"), "{error}");
    };
    check(json!({ "kind": "x" }));
    check(json!({ "below": [{ "x": 1 }] }));
    let error = parse::<Settings>(json!({ "max_size": 1 })).unwrap_err();
    assert!(error.contains("unknown field"), "{error}");
}

#[test]
fn the_schema_carries_attributes_and_names() {
    let schema = schema::<Query>();
    let property = |name: &str| schema.pointer(&format!("/properties/{name}")).unwrap().clone();
    assert_eq!(schema.pointer("/title"), Some(&json!("Query")));
    assert_eq!(schema.pointer("/additionalProperties"), Some(&json!(false)));
    assert_eq!(property("limit/minimum"), 1);
    assert_eq!(property("limit/maximum"), 100);
    assert_eq!(property("limit/default"), 10);
    assert_eq!(property("type/type"), json!(["string", "null"]));
    assert_eq!(property("below/items"), json!({ "$ref": "#" }));
    assert!(!schema.to_string().contains("__"), "the shadow shows: {schema}");
}

#[test]
fn a_schema_without_recursion_has_no_references() {
    #[derive(Arguments)]
    struct Sort {
        #[expect(dead_code, reason = "only the schema matters")]
        order: Order,
    }
    #[expect(clippy::unnecessary_wraps, reason = "the shape of a tool")]
    fn sort(_: &mut Context, _: Sort) -> Result<(), ToolError> {
        Ok(())
    }
    let identity = a2g_guest_sdk::Identity::new("sort", "1.0.0");
    let text = a2g_guest_sdk::__private::describe(sort, identity).arguments_schema;
    assert!(text.contains("as_is") && !text.contains("$ref"), "{text}");
}

#[test]
fn enums_and_tuples_are_valid_arguments() {
    assert_eq!(parse(json!("a")), Ok(Name("a".to_owned())));
    assert_eq!(parse(json!("Unit")), Ok(Mixed::Unit));
    let pair = Mixed::Pair(1, Name("b".to_owned()));
    assert_eq!(parse(json!({ "Pair": [1, "b"] })), Ok(pair));
    let shape = Shape::Circle { radius: 1.5 };
    let named = json!({ "Named": { "shape": { "shape": "circle", "radius": 1.5 } } });
    assert_eq!(parse(named), Ok(Mixed::Named { shape }));
    assert_eq!(parse(json!({ "shape": "point" })), Ok(Shape::Point));
    assert_eq!(schema::<Name>().pointer("/type"), Some(&json!("string")));
}

#[test]
fn a_container_default_applies_to_missing_fields() {
    let settings: Settings = parse(json!({ "maxSize": 1 })).unwrap();
    let name = "default".to_owned();
    assert_eq!(settings, Settings { max_size: 1, name });
    let schema = schema::<Settings>();
    assert_eq!(schema.pointer("/properties/maxSize/default"), Some(&json!(7)));
    assert_eq!(schema.pointer("/required"), None);
}

#[test]
fn an_argument_type_may_also_derive_serialize() {
    let raw = "x".to_owned();
    let value = serde_json::to_value(BothWays { raw }).unwrap();
    assert_eq!(parse::<BothWays>(value).unwrap().raw, "x");
    assert_eq!(schema::<BothWays>().pointer("/title"), Some(&json!("Both")));
}
