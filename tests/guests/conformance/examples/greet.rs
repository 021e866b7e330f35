//! Greets somebody.

use a2g_guest_sdk::prelude::*;

/// Greets somebody.
#[derive(Arguments)]
struct Greet {
    /// Whom to greet.
    name: String,
}

fn greet(_: &mut Context, arguments: Greet) -> Result<Value, ToolError> {
    Ok(json!(format!("Hello, {}!", arguments.name)))
}

export_tool!(greet, description = "Greets somebody");
