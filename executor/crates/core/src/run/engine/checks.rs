//! Checks of a call that need no verdict, and of the memory that an answer needs.

use crate::catalog::QuickCheck;
use crate::run::LoadedCatalog;
use crate::run::faults::busy_fault;
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::ident::{ToolName, excerpt};
use a2g_types::memory;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Maximum number of a tool's arguments that a message names.
const MAX_SHOWN_NAMES: usize = 12;
/// The message for a call or a request for a stored receipt when the memory budget is used up.
pub(in crate::run) const NO_MEMORY: &str = "the executor has reached its memory limit (`server.max_memory_mb`) with pending messages, unread \
                         results and expected output: send the request again later";

/// Refuses a request if the memory budget is used up: answering may load a stored receipt.
pub(in crate::run) fn check_memory() -> Result<(), Fault> {
    if memory::has_room(0) {
        return Ok(());
    }
    Err(busy_fault(NO_MEMORY))
}

/// Checks a call's arguments against the schema of its tool. Called after the verdict, so that a denied agent
/// learns nothing about the schema.
pub(in crate::run) async fn check_arguments(loaded: &Arc<LoadedCatalog>, call: &Call) -> Result<(), Fault> {
    check_tool_arguments(loaded, &call.tool, call.arguments.clone()).await
}

/// As [`check_arguments`], for the arguments alone.
pub(in crate::run) async fn check_tool_arguments(
    loaded: &Arc<LoadedCatalog>,
    name: &ToolName,
    arguments: Map<String, Value>,
) -> Result<(), Fault> {
    let Some(tool) = loaded.usable_tool(name) else { return Ok(()) };
    let arguments = Value::Object(arguments);
    let result = match tool.schema.check_quickly(&arguments) {
        QuickCheck::Done(result) => result,
        QuickCheck::Unfinished => {
            let loaded = Arc::clone(loaded);
            let name = name.clone();
            let check = move || {
                let tool = loaded.usable_tool(&name);
                tool.map_or(Ok(()), |tool| tool.schema.check(&arguments))
            };
            let result = tokio::task::spawn_blocking(check).await;
            result.map_err(|error| Fault::Internal(format!("the check of the arguments failed: {error}")))?
        }
    };
    result.map_err(|violation| {
        // A name that is missing or wrong: the right ones are in the schema.
        let names = if violation.pointer.is_empty() { argument_names(loaded, name) } else { String::new() };
        let argument = violation.pointer.strip_prefix('/');
        let argument = argument.map_or_else(String::new, |argument| format!("`{}`: ", excerpt(argument)));
        let message = format!(
            "the arguments do not match the schema of `{name}`: {argument}{}{names}",
            violation.message
        );
        Fault::invalid(format!("/arguments{}", violation.pointer), message)
    })
}

/// The end of a message about a name that is missing or wrong: the tool's own names. Empty if its schema has none.
fn argument_names(loaded: &LoadedCatalog, tool: &ToolName) -> String {
    let schema = loaded.usable_tool(tool).map(|tool| &tool.descriptor.arguments_schema);
    let properties = schema.and_then(|schema| schema.get("properties")?.as_object());
    let names = properties.into_iter().flatten().take(MAX_SHOWN_NAMES);
    let names = names.map(|(name, _)| format!("`{}`", excerpt(name))).collect::<Vec<_>>();
    if names.is_empty() { String::new() } else { format!("; its arguments are {}", names.join(", ")) }
}
