//! The `[result]` table of a `tool.toml`, made from the type of a tool's result.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

use crate::{Arguments, Context};

/// The keywords that are written first, in this order. The others follow by name.
const FIRST_KEYWORDS: [&str; 4] = ["type", "description", "enum", "required"];

/// The `[result]` table of the tool that `handler` implements, as TOML: the JSON Schema of its result, which derives
/// `JsonSchema`. A test that compares it with `tool.toml` keeps both in step:
///
/// ```
/// use a2g_guest_sdk::prelude::*;
/// use a2g_guest_sdk::{schemars, serde, testing};
///
/// # #[derive(Arguments)]
/// # struct Nothing {}
/// #[derive(Serialize, schemars::JsonSchema)]
/// #[serde(crate = "serde")]
/// struct Counted {
///     /// The number of words.
///     words: u32,
/// }
///
/// fn count(_: &mut Context, _: Nothing) -> Result<Counted, ToolError> {
///     Ok(Counted { words: 0 })
/// }
///
/// let manifest = r#"
/// [result]
/// type = "object"
/// required = ["words"]
///
/// [result.properties]
/// words = { type = "integer", description = "The number of words.", minimum = 0 }
/// "#;
/// assert_eq!(manifest.trim_start(), testing::result_table(count));
/// ```
#[must_use]
pub fn result_table<H, A, R, E>(handler: H) -> String
where
    H: FnOnce(&mut Context, A) -> Result<R, E>,
    A: Arguments,
    R: JsonSchema,
{
    // Only the type of the result matters here.
    let _ = handler;
    let mut text = String::new();
    if let Value::Object(schema) = result_schema::<R>().to_value() {
        write_table("result", &schema, &mut text);
    }
    text
}

/// The schema of what `R` serializes to, without what helps no reader.
fn result_schema<R: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<R>();
    schema.remove("title");
    let mut remove_formats = RecursiveTransform(|schema: &mut Schema| {
        schema.remove("format");
    });
    remove_formats.transform(&mut schema);
    schema
}

/// Writes a table: its values on one line each, and then the tables in it.
fn write_table(name: &str, members: &Map<String, Value>, text: &mut String) {
    let is_schema = !name.ends_with(".properties");
    let sorted = if is_schema { sort_keywords(members) } else { members.iter().collect() };
    text.push_str(&format!("[{name}]\n"));
    for (member, value) in sorted.iter().filter(|(_, value)| !is_table(value)) {
        text.push_str(&format!("{} = {}\n", quote_key(member), write_inline(value)));
    }
    for (member, value) in sorted.iter().filter(|(_, value)| is_table(value)) {
        if let Value::Object(inner) = value {
            text.push('\n');
            write_table(&format!("{name}.{}", quote_key(member)), inner, text);
        }
    }
}

/// True if a value has objects in it, which would make its line too long to read.
fn is_table(value: &Value) -> bool {
    value.as_object().is_some_and(|members| members.values().any(Value::is_object))
}

fn sort_keywords(members: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut sorted = members.iter().collect::<Vec<_>>();
    sorted.sort_by_key(|(keyword, _)| {
        let first = FIRST_KEYWORDS.iter().position(|first| first == keyword);
        (first.unwrap_or(FIRST_KEYWORDS.len()), *keyword)
    });
    sorted
}

/// A value on one line. A JSON string is also a basic string of TOML.
fn write_inline(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(write_inline).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let write = |(member, value): (&String, &Value)| {
                format!("{} = {}", quote_key(member), write_inline(value))
            };
            let written = sort_keywords(members).into_iter().map(write);
            format!("{{ {} }}", written.collect::<Vec<_>>().join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

fn quote_key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(is_bare) {
        name.to_owned()
    } else {
        Value::from(name).to_string()
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "only the types are read")]
mod tests {
    use super::*;
    use crate::ToolError;
    use serde::Serialize;
    use std::collections::BTreeMap;

    #[derive(serde::Deserialize, JsonSchema)]
    struct Nothing {}

    /// A list of entries.
    #[derive(Serialize, JsonSchema)]
    struct Listed {
        /// The folder.
        path: String,
        entries: Vec<Entry>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<String>,
        /// By name.
        headers: BTreeMap<String, Vec<String>>,
    }

    #[derive(Serialize, JsonSchema)]
    struct Entry {
        /// In bytes.
        size: Option<u64>,
        #[serde(rename = "a \"kind\"")]
        kind: Kind,
    }

    #[derive(Serialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        File,
        SymbolicLink,
    }

    fn list(_: &mut Context, _: Nothing) -> Result<Listed, ToolError> {
        Err(ToolError::new("never", "only the type is read"))
    }

    const TABLE: &str = r#"[result]
type = "object"
description = "A list of entries."
required = ["path", "entries", "headers"]

[result.properties]
path = { type = "string", description = "The folder." }

[result.properties.entries]
type = "array"

[result.properties.entries.items]
type = "object"
required = ["size", "a \"kind\""]

[result.properties.entries.items.properties]
size = { type = ["integer", "null"], description = "In bytes.", minimum = 0 }
"a \"kind\"" = { type = "string", enum = ["file", "symbolic_link"] }

[result.properties.left_out]
type = "array"
items = { type = "string" }

[result.properties.headers]
type = "object"
description = "By name."

[result.properties.headers.additionalProperties]
type = "array"
items = { type = "string" }
"#;

    #[test]
    fn the_table_has_the_schema_of_what_is_serialized() {
        assert_eq!(result_table(list), TABLE);
    }

    fn any(_: &mut Context, _: Nothing) -> Result<Value, ToolError> {
        Ok(Value::Null)
    }

    #[test]
    fn a_result_of_any_type_has_an_open_schema() {
        assert_eq!(result_table(any), "[result]\n");
    }
}
