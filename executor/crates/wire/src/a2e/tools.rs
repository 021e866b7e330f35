//! The catalogue in this door's form.
//!
//! A parameter of the protocol expresses less than a JSON Schema, and is only for people and models to read. Arguments
//! are validated against the schema.

use super::decode::ToolFilter;
use super::message::{ToolDefinition, ToolParameter};
use a2g_types::tool::{Contract, DeclaredFilesystem, Descriptor};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Maximum depth of described objects.
const MAX_DEPTH: usize = 4;
/// Maximum number of parameters of one tool. A schema that refers to itself would otherwise yield its own number of
/// parameters to the power of [`MAX_DEPTH`].
const MAX_PARAMETERS: usize = 1_000;

pub(super) fn list_definitions<'a>(tools: &'a [Descriptor], filter: &ToolFilter) -> Vec<ToolDefinition<'a>> {
    tools.iter().filter(|tool| matches_filter(tool, filter)).map(tool_definition).collect()
}

fn matches_filter(tool: &Descriptor, filter: &ToolFilter) -> bool {
    let ToolFilter { kind, tags, query } = filter;
    let tool_tags = self::tags(tool);
    let query = query.to_lowercase();
    let matches_query = |text: &str| text.to_lowercase().contains(&query);
    (kind.is_empty() || kind == tool.contract.as_str())
        && tags.iter().all(|tag| tool_tags.contains(&tag.as_str()))
        && (matches_query(tool.name.as_str())
            || matches_query(&tool.description)
            || tool_tags.iter().any(|tag| matches_query(tag)))
}

fn tool_definition(tool: &Descriptor) -> ToolDefinition<'_> {
    let Descriptor {
        name,
        title: _,
        version,
        description,
        contract: _,
        digest: _,
        arguments_schema,
        result_schema: _,
        settings: _,
        is_idempotent,
        has_sessions: _,
        capabilities,
        signature: _,
    } = tool;
    let is_read_only = capabilities.filesystem != DeclaredFilesystem::ReadWrite && !capabilities.network;
    ToolDefinition {
        name: name.as_str(),
        description,
        input_parameters: parameters(arguments_schema, arguments_schema, 0, &mut { MAX_PARAMETERS }),
        output_parameters: [],
        streaming: true,
        idempotent: *is_idempotent || is_read_only,
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

/// The parameters of a schema, at most `remaining`, which is reduced by their number.
fn parameters(schema: &Value, root: &Value, depth: usize, remaining: &mut usize) -> Vec<ToolParameter> {
    let schema = resolve_schema(schema, root);
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return Vec::new() };
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let required = required.filter_map(Value::as_str).collect::<HashSet<_>>();
    let mut parameters = Vec::new();
    for (name, property) in properties {
        let Some(rest) = remaining.checked_sub(1) else { break };
        *remaining = rest;
        parameters.push(parameter(name, property, required.contains(name.as_str()), root, depth, remaining));
    }
    parameters
}

fn parameter(
    name: &str,
    property: &Value,
    required: bool,
    root: &Value,
    depth: usize,
    remaining: &mut usize,
) -> ToolParameter {
    let schema = resolve_schema(property, root);
    let description = [property, schema].into_iter().find_map(|schema| schema.get("description")?.as_str());
    let kind = type_name(schema);
    let nested = if kind == "object" && depth < MAX_DEPTH {
        parameters(schema, root, depth + 1, remaining)
    } else {
        Vec::new()
    };
    let nested = nested.into_iter().filter_map(|parameter| {
        let name = parameter.name.clone();
        Some((name, serde_json::to_value(parameter).ok()?))
    });
    let nested = nested.collect::<Map<String, Value>>();
    ToolParameter {
        name: name.to_owned(),
        kind,
        description: description.unwrap_or_default().to_owned(),
        required,
        enum_values: enum_values(schema),
        properties: (!nested.is_empty()).then_some(nested),
    }
}

/// Resolves a local reference, and picks the first alternative that is not `null`. A circular reference is
/// returned unresolved.
fn resolve_schema<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..8 {
        let reference = schema.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'));
        let alternatives =
            ["anyOf", "oneOf", "allOf"].into_iter().find_map(|keyword| schema.get(keyword)?.as_array());
        let is_null = |alternative: &&Value| alternative.get("type").is_some_and(|kind| kind == "null");
        let first = alternatives.and_then(|list| list.iter().find(|alternative| !is_null(alternative)));
        schema = match reference.and_then(|to| root.pointer(to)).or(first) {
            Some(next) => next,
            None => return schema,
        };
    }
    schema
}

/// The type of a schema, or the best guess from its other keywords.
fn type_name(schema: &Value) -> &'static str {
    const KINDS: [&str; 6] = ["string", "integer", "number", "boolean", "object", "array"];
    let declared = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().find(|kind| *kind != "null"),
        kind => kind,
    };
    let declared = declared.and_then(Value::as_str);
    if let Some(kind) = KINDS.into_iter().find(|kind| declared == Some(kind)) {
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
    let values = schema.get("enum")?.as_array()?;
    values.iter().map(|value| value.as_str().map(str::to_owned)).collect()
}
