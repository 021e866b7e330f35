//! The check of a tool's result against the `[result]` schema of its `tool.toml`.

use super::LoadedCatalog;
use crate::catalog::{QuickCheck, Schema, Violation};
use a2g_types::ident::ToolName;
use a2g_types::json::JsonText;
use a2g_types::outcome::End;
use a2g_types::strict_json::{text_bytes, tree_bytes};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The length in bytes up to which a result may have any number of values.
const MAX_UNCOUNTED_BYTES: usize = 1 << 20;
/// The maximum size of the values of a longer result, in bytes, as [`tree_bytes`] estimates it apart from the text: some
/// 600,000 values. Values take up to some forty times the length of their text.
const MAX_VALUE_BYTES: u64 = 64 << 20;
/// The maximum length in bytes of a result that is checked in parallel with any number of others.
const MAX_SMALL_BYTES: usize = 16 << 10;
/// The maximum length of the pointer in a failure, in characters: it contains keys that the tool wrote.
const MAX_POINTER_CHARS: usize = 256;
/// The permit for the one long result that is checked at a time.
static LONG_CHECK: Semaphore = Semaphore::const_new(1);

async fn check(loaded: &Arc<LoadedCatalog>, tool: &ToolName, result: &JsonText) -> Result<(), Violation> {
    let is_long = result.as_str().len() > MAX_SMALL_BYTES;
    let _place = if is_long { LONG_CHECK.acquire().await.ok() } else { None };
    if !is_long && let Some(schema) = schema_of(loaded, tool) {
        match schema.check_quickly(&parse(schema, result.as_str())?) {
            QuickCheck::Done(checked) => return checked,
            QuickCheck::Unfinished => {}
        }
    }
    let loaded = Arc::clone(loaded);
    let tool = tool.clone();
    let result = result.clone();
    let check = move || {
        let Some(schema) = schema_of(&loaded, &tool) else { return Ok(()) };
        schema.check(&parse(schema, result.as_str())?)
    };
    let checked = tokio::task::spawn_blocking(check).await;
    checked.unwrap_or_else(|error| Err(violation(format!("its check ended early: {error}"))))
}

fn schema_of<'a>(loaded: &'a LoadedCatalog, tool: &ToolName) -> Option<&'a Schema> {
    loaded.usable_tool(tool)?.result_schema.as_ref()
}

/// The value of a result, with `null` for the members that satisfy its schema with any value.
///
/// # Errors
/// A violation if a long result has too many values.
fn parse(schema: &Schema, result: &str) -> Result<Value, Violation> {
    let unrestricted = schema.unrestricted_members();
    if unrestricted.is_empty() || !result.starts_with('{') {
        return parse_part(result, result.len());
    }
    let members = serde_json::from_str::<BTreeMap<String, &RawValue>>(result).unwrap_or_default();
    let parse_member = |(name, text): (String, &RawValue)| {
        let is_unrestricted = unrestricted.contains(&name);
        let value = if is_unrestricted { Ok(Value::Null) } else { parse_part(text.get(), result.len()) };
        value.map(|value| (name, value))
    };
    members.into_iter().map(parse_member).collect::<Result<Map<_, _>, _>>().map(Value::Object)
}

/// Parses a part of a result of `length` bytes.
fn parse_part(text: &str, length: usize) -> Result<Value, Violation> {
    let value_bytes = tree_bytes(text.as_bytes()).saturating_sub(text_bytes(text.len()));
    if length > MAX_UNCOUNTED_BYTES && value_bytes > MAX_VALUE_BYTES {
        return Err(violation(format!(
            "it has {length} bytes and too many values to check: return less, or an artifact"
        )));
    }
    Ok(serde_json::from_str(text).unwrap_or_default())
}

fn violation(message: String) -> Violation {
    Violation { pointer: String::new(), message }
}

/// Replaces a result that breaks the schema of its tool by the failure.
pub(super) async fn check_result(loaded: &Arc<LoadedCatalog>, tool: &ToolName, end: &mut End) {
    let End::Returned(result) = end else { return };
    if loaded.usable_tool(tool).is_none_or(|tool| tool.result_schema.is_none()) {
        return;
    }
    if let Err(Violation { pointer, message }) = check(loaded, tool, result).await {
        let pointer = pointer.chars().take(MAX_POINTER_CHARS).collect();
        *end = End::ResultInvalid { pointer, message };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: &Value, result: &str) -> Result<(), Violation> {
        let schema = Schema::new_for_result(schema).unwrap();
        schema.check(&parse(&schema, result)?)
    }

    #[test]
    fn a_long_text_is_checked_and_too_many_values_are_refused() {
        let schema = json!({
            "type": "object",
            "required": ["content", "more"],
            "properties": { "content": { "type": "string" }, "more": { "type": "array" } },
        });
        let result = |text: usize, values: usize| {
            json!({ "content": "x".repeat(text), "more": vec![1; values] }).to_string()
        };
        assert_eq!(check(&schema, &result(8 << 20, 10)), Ok(()));
        // Two bytes each: any number is accepted up to the length.
        assert_eq!(check(&schema, &result(0, 500_000)), Ok(()));
        let refused = check(&schema, &result(0, 2_000_000)).unwrap_err();
        assert!(refused.message.contains("too many values"), "{refused:?}");
        let wrong = json!({ "content": "x".repeat(8 << 20), "more": 1 }).to_string();
        assert_eq!(check(&schema, &wrong).unwrap_err().pointer, "/more");
    }

    #[test]
    fn a_member_without_a_restriction_may_have_any_value() {
        let schema = json!({
            "type": "object",
            "required": ["result", "stdout"],
            "properties": { "result": { "description": "Any JSON value." }, "stdout": { "type": "string" } },
        });
        let many = vec![1; 2_000_000];
        assert_eq!(check(&schema, &json!({ "result": many, "stdout": "" }).to_string()), Ok(()));
        assert_eq!(check(&schema, r#"{"result":null,"stdout":""}"#), Ok(()));
        for (wrong, pointer) in
            [(r#"{"stdout":""}"#, ""), (r#"{"result":1,"stdout":1}"#, "/stdout"), ("[]", ""), ("1", "")]
        {
            assert_eq!(check(&schema, wrong).unwrap_err().pointer, pointer, "{wrong}");
        }
    }
}
