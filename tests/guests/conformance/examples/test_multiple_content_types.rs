//! Answers with a text, and hands over an image and a document.

use a2g_guest_sdk::prelude::*;

/// Nothing to choose.
#[derive(Arguments)]
struct TestMultipleContentTypes {}

fn test_multiple_content_types(ctx: &mut Context, _: TestMultipleContentTypes) -> Result<Value, ToolError> {
    ctx.artifact("red.png", "image/png", include_bytes!("../media/red.png"))?;
    let document = json!({ "test": "data", "value": 123 });
    ctx.artifact("data.json", "application/json", document.to_string())?;
    Ok(json!("Multiple content types test:"))
}

export_tool!(test_multiple_content_types, description = "Hands over an image and a document");
