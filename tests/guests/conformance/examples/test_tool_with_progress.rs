//! Reports how far it is, with pauses, so that a client can get each report while it runs.

use a2g_guest_sdk::prelude::*;
use std::thread::sleep;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(50);

/// Nothing to choose.
#[derive(Arguments)]
struct TestToolWithProgress {}

fn test_tool_with_progress(ctx: &mut Context, _: TestToolWithProgress) -> Result<Value, ToolError> {
    ctx.progress(0.0, "started");
    sleep(PAUSE);
    ctx.progress(50.0, "halfway");
    sleep(PAUSE);
    ctx.progress(100.0, "done");
    Ok(json!("The tool has reported its progress."))
}

export_tool!(test_tool_with_progress, description = "Reports how far it is");
