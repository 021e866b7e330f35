//! The check of a tool's result against the `[result]` schema of its `tool.toml`.

use super::LoadedCatalog;
use crate::catalog::{QuickCheck, Schema, Violation};
use a2g_types::ident::ToolName;
use a2g_types::json::JsonText;
use a2g_types::outcome::End;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The maximum length of a checked result in bytes. Parsed values take up to some forty times the length of their text.
const MAX_CHECKED_BYTES: usize = 1 << 20;
/// The maximum length in bytes of a result that is checked in parallel with any number of others.
const MAX_SMALL_BYTES: usize = 16 << 10;
/// The maximum length of the pointer in a failure, in characters: it contains keys that the tool wrote.
const MAX_POINTER_CHARS: usize = 256;
/// The permit for the one long result that is checked at a time.
static LONG_CHECK: Semaphore = Semaphore::const_new(1);

async fn check(loaded: &Arc<LoadedCatalog>, tool: &ToolName, result: &JsonText) -> Result<(), Violation> {
    let bytes = result.as_str().len();
    if bytes > MAX_CHECKED_BYTES {
        return Err(violation(format!(
            "it has {bytes} bytes, and a result with a schema may have {MAX_CHECKED_BYTES}: return an artifact"
        )));
    }
    let is_long = bytes > MAX_SMALL_BYTES;
    let _place = if is_long { LONG_CHECK.acquire().await.ok() } else { None };
    if !is_long && let Some(schema) = schema_of(loaded, tool) {
        match schema.check_quickly(&parse(result)) {
            QuickCheck::Done(checked) => return checked,
            QuickCheck::Unfinished => {}
        }
    }
    let loaded = Arc::clone(loaded);
    let tool = tool.clone();
    let result = result.clone();
    let check = move || schema_of(&loaded, &tool).map_or(Ok(()), |schema| schema.check(&parse(&result)));
    let checked = tokio::task::spawn_blocking(check).await;
    checked.unwrap_or_else(|error| Err(violation(format!("its check ended early: {error}"))))
}

fn schema_of<'a>(loaded: &'a LoadedCatalog, tool: &ToolName) -> Option<&'a Schema> {
    loaded.usable_tool(tool)?.result_schema.as_ref()
}

fn parse(result: &JsonText) -> Value {
    serde_json::from_str(result.as_str()).unwrap_or_default()
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
