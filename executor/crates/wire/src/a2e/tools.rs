//! The catalogue in this door's form.
//!
//! A parameter of the protocol expresses less than a JSON Schema: it is for people and models to read.
//! Arguments are still validated against the schema.

use super::decode::ToolFilter;
use super::message::{ToolDefinition, ToolParameter};
use a2g_types::tool::{Contract, DeclaredFilesystem, Descriptor};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// The maximum depth of described objects.
const MAX_DEPTH: usize = 4;
/// The maximum number of parameters of one tool. Without it a schema that refers to itself would yield its own
/// number of parameters to the power of [`MAX_DEPTH`].
const MAX_PARAMETERS: usize = 1_000;

pub(super) fn list_definitions<'a>(tools: &'a [Descriptor], filter: &ToolFilter) -> Vec<ToolDefinition<'a>> {
    tools.iter().filter(|tool| matches_filter(tool, filter)).map(tool_definition).collect()
}

fn matches_filter(tool: &Descriptor, filter: &ToolFilter) -> bool {
    let ToolFilter { kind, tags, query } = filter;
    let tool_tags = self::tags(tool);
    let query = query.to_lowercase();
    let found = |text: &str| text.to_lowercase().contains(&query);
    (kind.is_empty() || kind == tool.contract.as_str())
        && tags.iter().all(|tag| tool_tags.contains(&tag.as_str()))
        && (found(tool.name.as_str()) || found(&tool.description) || tool_tags.iter().any(|tag| found(tag)))
}

fn tool_definition(tool: &Descriptor) -> ToolDefinition<'_> {
    let Descriptor { name, version, description, contract: _, digest: _, arguments_schema, capabilities } =
        tool;
    let changes_nothing = capabilities.filesystem != DeclaredFilesystem::ReadWrite && !capabilities.network;
    ToolDefinition {
        name: name.as_str(),
        description,
        input_parameters: parameters(arguments_schema, arguments_schema, 0, &mut { MAX_PARAMETERS }),
        output_parameters: [],
        streaming: true,
        idempotent: changes_nothing,
        tags: tags(tool),
        version,
        toolkit: None,
        defer_loading: false,
    }
}

/// The contract of a tool and its declared capabilities.
fn tags(tool: &Descriptor) -> Vec<&'static str> {
    let contract = match tool.contract {
        Contract::Command => "command",
        Contract::Typed => "typed",
    };
    let files: &[&str] = match tool.capabilities.filesystem {
        DeclaredFilesystem::None => &[],
        DeclaredFilesystem::Read => &["filesystem", "read-only"],
        DeclaredFilesystem::ReadWrite => &["filesystem", "read-write"],
    };
    let network: &[&str] = if tool.capabilities.network { &["network"] } else { &[] };
    [&[contract], files, network].concat()
}

/// The parameters of a schema, at most `left`, which is reduced by their number.
fn parameters(schema: &Value, whole: &Value, depth: usize, left: &mut usize) -> Vec<ToolParameter> {
    let schema = resolve_schema(schema, whole);
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return Vec::new() };
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let required = required.filter_map(Value::as_str).collect::<HashSet<_>>();
    let mut described = Vec::new();
    for (name, property) in properties {
        let Some(less) = left.checked_sub(1) else { break };
        *left = less;
        described.push(parameter(name, property, required.contains(name.as_str()), whole, depth, left));
    }
    described
}

fn parameter(
    name: &str,
    written: &Value,
    required: bool,
    whole: &Value,
    depth: usize,
    left: &mut usize,
) -> ToolParameter {
    let schema = resolve_schema(written, whole);
    let described = [written, schema].into_iter().find_map(|schema| schema.get("description")?.as_str());
    let kind = type_name(schema);
    let inside = if kind == "object" && depth < MAX_DEPTH {
        parameters(schema, whole, depth + 1, left)
    } else {
        Vec::new()
    };
    let inside = inside.into_iter().filter_map(|one| {
        let name = one.name.clone();
        Some((name, serde_json::to_value(one).ok()?))
    });
    let inside = inside.collect::<Map<String, Value>>();
    ToolParameter {
        name: name.to_owned(),
        kind,
        description: described.unwrap_or_default().to_owned(),
        required,
        enum_values: enum_values(schema),
        properties: (!inside.is_empty()).then_some(inside),
    }
}

/// Resolves a local reference, and picks the first alternative that is not `null`. A circular reference is
/// returned unresolved.
fn resolve_schema<'a>(schema: &'a Value, whole: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..8 {
        let referred = schema.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'));
        let several = ["anyOf", "oneOf", "allOf"].into_iter().find_map(|of| schema.get(of)?.as_array());
        let is_null = |one: &&Value| one.get("type").is_some_and(|kind| kind == "null");
        let first = several.and_then(|several| several.iter().find(|one| !is_null(one)));
        schema = match referred.and_then(|to| whole.pointer(to)).or(first) {
            Some(next) => next,
            None => return schema,
        };
    }
    schema
}

/// The type of a schema, or the best guess from its other keywords.
fn type_name(schema: &Value) -> &'static str {
    const KINDS: [&str; 6] = ["string", "integer", "number", "boolean", "object", "array"];
    let named = match schema.get("type") {
        Some(Value::Array(several)) => several.iter().find(|one| *one != "null"),
        one => one,
    };
    let named = named.and_then(Value::as_str);
    if let Some(kind) = KINDS.into_iter().find(|kind| named == Some(kind)) {
        return kind;
    }
    let example = schema.get("const").or_else(|| schema.get("enum")?.get(0));
    match example {
        Some(Value::String(_)) => "string",
        Some(Value::Bool(_)) => "boolean",
        Some(Value::Number(number)) if number.is_f64() => "number",
        Some(Value::Number(_)) => "integer",
        Some(Value::Array(_)) => "array",
        Some(Value::Object(_) | Value::Null) => "object",
        None if schema.get("items").is_some() => "array",
        None => "object",
    }
}

/// The values of `enum`, if all of them are strings.
fn enum_values(schema: &Value) -> Option<Vec<String>> {
    let listed = schema.get("enum")?.as_array()?;
    listed.iter().map(|word| word.as_str().map(str::to_owned)).collect()
}
