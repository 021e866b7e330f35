//! Hands over an image.

use a2g_guest_sdk::prelude::*;

/// Nothing to choose.
#[derive(Arguments)]
struct TestImageContent {}

fn test_image_content(ctx: &mut Context, _: TestImageContent) -> Result<Value, ToolError> {
    ctx.artifact("red.png", "image/png", include_bytes!("../media/red.png"))?;
    Ok(json!("The image is one red pixel."))
}

export_tool!(test_image_content, description = "Hands over an image");
