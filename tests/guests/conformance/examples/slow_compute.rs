//! Takes as long as it is told to.

use a2g_guest_sdk::prelude::*;
use std::thread::sleep;
use std::time::Duration;

/// Takes its time.
#[derive(Arguments)]
struct SlowCompute {
    /// The time that it takes.
    seconds: u64,
    /// A name for the result.
    #[serde(default)]
    label: String,
}

fn slow_compute(_: &mut Context, arguments: SlowCompute) -> Result<Value, ToolError> {
    let SlowCompute { seconds, label } = arguments;
    sleep(Duration::from_secs(seconds));
    Ok(json!({ "label": label, "seconds": seconds }))
}

export_tool!(slow_compute, description = "Takes as long as it is told to");
