//! A replacement of the executor in native tests, which runs a tool and records its reports.
//!
//! ```
//! use a2g_guest_sdk::prelude::*;
//! use a2g_guest_sdk::testing;
//!
//! #[derive(Arguments)]
//! struct Add {
//!     a: i64,
//!     b: i64,
//! }
//!
//! fn add(ctx: &mut Context, arguments: Add) -> Result<Value, ToolError> {
//!     ctx.log(Level::Info, "adding");
//!     let sum = arguments.a.checked_add(arguments.b);
//!     let sum = sum.ok_or_else(|| ToolError::new("overflow", "the sum is too large"))?;
//!     Ok(json!({ "sum": sum }))
//! }
//!
//! let run = testing::invoke(add, json!({ "a": 1, "b": 2 }));
//! assert_eq!(run.result, Ok(json!({ "sum": 3 })));
//! assert_eq!(run.record.logs[0].message, "adding");
//! ```
//!
//! There is no sandbox: the tool runs with the rights of the test. The network is off unless a test makes a
//! [`Network`], and there are no other tools unless it makes [`Tools`].

pub(crate) mod network;
mod result_table;
pub(crate) mod tools;

use std::ops::{Deref, DerefMut};

use serde::Serialize;
use serde_json::Value;

use crate::{Arguments, Context, Descriptor, Level, ToolError};

pub use network::{Answer, Network};
pub use result_table::result_table;
pub use tools::{Call, Tools};

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The importance of the line.
    pub level: Level,
    /// The text of the line.
    pub message: String,
}

/// One report of progress.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The progress of the work, from 0 to 100.
    pub percent: Option<f32>,
    /// The step that the tool was working on.
    pub message: String,
}

/// One artifact, its chunks joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Its name.
    pub name: String,
    /// Its media type, from the first chunk.
    pub mime: String,
    /// The content so far.
    pub content: Vec<u8>,
    /// The number of chunks received.
    pub chunks: usize,
    /// True once the last chunk was received.
    pub complete: bool,
}

/// Everything that a tool reported, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    /// The log.
    pub logs: Vec<Log>,
    /// The progress.
    pub progress: Vec<Progress>,
    /// The artifacts, in the order of their first chunks.
    pub artifacts: Vec<Artifact>,
}

impl Record {
    pub(crate) fn log(&mut self, level: Level, message: &str) {
        let message = message.to_owned();
        self.logs.push(Log { level, message });
    }

    pub(crate) fn progress(&mut self, percent: Option<f32>, message: &str) {
        let message = message.to_owned();
        self.progress.push(Progress { percent, message });
    }

    pub(crate) fn artifact(&mut self, name: &str, mime: &str, chunk: &[u8], last: bool) {
        let open = self.artifacts.iter_mut().find(|artifact| artifact.name == name && !artifact.complete);
        if let Some(artifact) = open {
            artifact.content.extend_from_slice(chunk);
            artifact.chunks += 1;
            artifact.complete = last;
        } else {
            self.artifacts.push(Artifact {
                name: name.to_owned(),
                mime: mime.to_owned(),
                content: chunk.to_vec(),
                chunks: 1,
                complete: last,
            });
        }
    }
}

/// A context that records; it can be passed wherever a tool expects `&mut Context`.
#[derive(Debug, Default)]
pub struct TestContext {
    context: Context,
}

impl TestContext {
    /// A context that has recorded nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The reports of the tool so far.
    #[must_use]
    pub fn record(&self) -> Record {
        self.context.host.record()
    }
}

impl Deref for TestContext {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl DerefMut for TestContext {
    fn deref_mut(&mut self) -> &mut Context {
        &mut self.context
    }
}

/// One run of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Invocation {
    /// The result of the tool.
    pub result: Result<Value, ToolError>,
    /// The reports of the tool during the call.
    pub record: Record,
}

/// Runs a tool as the executor would: arguments and result pass through JSON text.
#[must_use]
pub fn invoke<H, A, R, E>(handler: H, arguments: impl Into<Value>) -> Invocation
where
    H: FnOnce(&mut Context, A) -> Result<R, E>,
    A: Arguments,
    R: Serialize,
    E: Into<ToolError>,
{
    let mut context = TestContext::new();
    let arguments = arguments.into().to_string();
    let result = crate::tool::invoke(handler, &mut context, &arguments).and_then(|text| {
        serde_json::from_str(&text).map_err(|error| ToolError::new("invalid_result", error.to_string()))
    });
    let record = context.record();
    Invocation { result, record }
}

/// Differences in name, version and description between a `tool.toml` and the tool itself, each as
/// the line that it should contain; empty when they agree.
#[must_use]
pub fn manifest_differences(manifest: &str, descriptor: &Descriptor) -> Vec<String> {
    [("name", &descriptor.name), ("version", &descriptor.version), ("description", &descriptor.description)]
        .into_iter()
        // A JSON string is also a basic string of TOML.
        .map(|(key, value)| format!("{key} = {}", Value::from(value.as_str())))
        .filter(|expected| !manifest.lines().any(|line| states(line, expected)))
        .collect()
}

/// True if a line of TOML is `expected`, with or without a comment after it.
fn states(line: &str, expected: &str) -> bool {
    line.strip_prefix(expected)
        .map(str::trim_start)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
}
