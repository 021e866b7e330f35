//! A guest that makes the calls of its arguments, one after the other or all at once, and tells what came back.

use a2g_guest_sdk::prelude::*;
use std::time::{Duration, Instant};

/// Calls tools.
#[derive(Arguments)]
struct FanOut {
    /// The calls.
    #[serde(default)]
    calls: Vec<Call>,
    /// True to start all calls before waiting for the first.
    #[serde(default)]
    parallel: bool,
    /// True to start all calls and wait for none.
    #[serde(default)]
    forget: bool,
    /// The number of times that the guest calls itself; only the last one makes the calls.
    #[serde(default)]
    recurse: u32,
    /// The time to compute after the calls, in milliseconds.
    #[serde(default)]
    spin_ms: u64,
    /// True to list the tools that may be called.
    #[serde(default)]
    list: bool,
    /// The tools to describe.
    #[serde(default)]
    describe: Vec<String>,
}

/// One call.
#[derive(Clone, Serialize, a2g_guest_sdk::serde::Deserialize, a2g_guest_sdk::schemars::JsonSchema)]
#[serde(crate = "a2g_guest_sdk::serde")]
#[schemars(crate = "a2g_guest_sdk::schemars")]
struct Call {
    /// The name of the tool.
    tool: String,
    /// Its arguments, of any type.
    arguments: Value,
}

impl FanOut {
    /// The calls to make: those of the arguments, or one of this guest.
    fn calls(&self) -> Vec<Call> {
        let Self { calls, parallel, forget, recurse, spin_ms, .. } = self;
        match recurse.checked_sub(1) {
            None => calls.clone(),
            Some(recurse) => vec![Call {
                tool: "fan_out".to_owned(),
                arguments: json!({
                    "calls": calls, "parallel": parallel, "forget": forget, "recurse": recurse, "spin_ms": spin_ms,
                }),
            }],
        }
    }
}

fn fan_out(ctx: &mut Context, arguments: FanOut) -> Result<Value, ToolError> {
    let tools = ctx.tools();
    let calls = arguments.calls();
    let outcomes = if arguments.forget && arguments.recurse == 0 {
        for Call { tool, arguments } in &calls {
            let _not_waited_for = tools.start(tool, arguments)?;
        }
        Vec::new()
    } else if arguments.parallel {
        tools.all(calls.into_iter().map(|Call { tool, arguments }| (tool, arguments)))?
    } else {
        calls.iter().map(|Call { tool, arguments }| tools.call(tool, arguments)).collect()
    };
    spin(Duration::from_millis(arguments.spin_ms));
    let mut told = json!({ "outcomes": outcomes.into_iter().map(outcome).collect::<Vec<_>>() });
    let mut tell =
        |key: &str, value: Value| told.as_object_mut().map(|told| told.insert(key.to_owned(), value));
    if arguments.list {
        tell("tools", tools.list().into_iter().map(|tool| tool.name).collect());
    }
    if !arguments.describe.is_empty() {
        let definition = |name: &String| outcome(tools.describe(name).map(|tool| tool.arguments_schema));
        tell("definitions", arguments.describe.iter().map(definition).collect());
    }
    Ok(told)
}

fn outcome(outcome: Result<Value, ToolError>) -> Value {
    match outcome {
        Ok(result) => json!({ "result": result }),
        Err(error) => json!({
            "error": { "code": error.code(), "message": error.message(), "detail": error.detail() },
        }),
    }
}

#[allow(clippy::disallowed_methods, reason = "a guest has no other clock")]
fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

export_tool!(fan_out, description = "Calls the tools of its arguments, and tells what came back");
