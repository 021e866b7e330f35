//! Hands over a text, which is neither an image nor a sound.

use a2g_guest_sdk::prelude::*;

/// Nothing to choose.
#[derive(Arguments)]
struct TestEmbeddedResource {}

fn test_embedded_resource(ctx: &mut Context, _: TestEmbeddedResource) -> Result<Value, ToolError> {
    ctx.artifact("note.txt", "text/plain", "This is an embedded resource content.")?;
    Ok(json!("The note is an embedded resource."))
}

export_tool!(test_embedded_resource, description = "Hands over a text");
