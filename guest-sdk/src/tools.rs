//! Calls of the executor's other tools.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ToolError;
use crate::host::Host;

/// Calls other tools.
///
/// Each call is an intent of its own: the governor decides on it, it runs under its own grant and limits, and it has
/// its own report. This run may make the calls that its grant allows: `calls`, `max_calls` and `max_parallel_calls` in
/// `tool.toml`, as narrowed by governor, policy and operator. All calls end with this run.
///
/// ```
/// use a2g_guest_sdk::prelude::*;
/// use a2g_guest_sdk::testing;
///
/// /// Counts the lines of two files.
/// #[derive(Arguments)]
/// struct CountLines {
///     first: String,
///     second: String,
/// }
///
/// fn count_lines(ctx: &mut Context, arguments: CountLines) -> Result<Value, ToolError> {
///     let paths = [arguments.first, arguments.second];
///     let calls = paths.iter().map(|path| ("read_file", json!({ "path": path })));
///     let mut lines = 0;
///     for file in ctx.tools().all::<Value>(calls)? {
///         lines += file?["content"].as_str().unwrap_or_default().lines().count();
///     }
///     let written: Value = ctx.tools().call("write_file", &json!({ "path": "/workspace/lines", "content": lines.to_string() }))?;
///     Ok(json!({ "lines": lines, "written": written }))
/// }
///
/// let tools = testing::Tools::new()
///     .tool("read_file", |arguments| Ok(json!({ "content": arguments["path"] })))
///     .denied("write_file", "nothing may be written on a Sunday");
/// let run = testing::invoke(count_lines, json!({ "first": "a", "second": "b\nc" }));
/// let error = run.result.unwrap_err();
/// assert_eq!((error.code(), error.message()), ("denied", "nothing may be written on a Sunday"));
/// assert_eq!(tools.calls().len(), 3);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Tools<'a> {
    host: &'a Host,
}

/// A tool that may be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSummary {
    /// Its name.
    pub name: String,
    /// One or two sentences about it.
    pub description: String,
}

/// The interface of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDefinition {
    /// Its name.
    pub name: String,
    /// One or two sentences about it.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub arguments_schema: Value,
    /// The JSON Schema of its result, if it declares one.
    pub result_schema: Option<Value>,
}

/// The end of one of several calls.
#[derive(Debug)]
pub struct FinishedCall<R> {
    /// The number of the call: [`StartedCall::number`].
    pub number: u32,
    /// The result or the error of the call.
    pub outcome: Result<R, ToolError>,
}

impl<'a> Tools<'a> {
    pub(crate) fn new(host: &'a Host) -> Self {
        Self { host }
    }

    /// The tools that this run may call, sorted by name.
    #[must_use]
    pub fn list(&self) -> Vec<ToolSummary> {
        self.host.tools()
    }

    /// The interface of one of these tools.
    ///
    /// # Errors
    /// `unknown_tool` or `not_allowed`.
    pub fn describe(&self, name: &str) -> Result<ToolDefinition, ToolError> {
        self.host.definition(name)
    }

    /// Calls a tool and waits for its result. The arguments are a JSON object.
    ///
    /// # Errors
    /// The tool's own error, or one with a code of the executor: `unknown_tool`, `not_allowed`, `invalid_arguments`,
    /// `denied`, `calls_exhausted`, `limit_reached`, `failed`, `aborted` or `busy`. `unexpected_result` if the result
    /// is not an `R`; in that case the call did run.
    pub fn call<R: DeserializeOwned>(
        &self,
        name: &str,
        arguments: &(impl Serialize + ?Sized),
    ) -> Result<R, ToolError> {
        parse_result(name, self.host.call(name, &arguments_text(arguments)?))
    }

    /// Starts a call and does not wait for it. If the maximum number of parallel calls is reached, the call runs once
    /// another one has ended.
    ///
    /// # Errors
    /// `invalid_arguments` if the arguments cannot be serialized. Every other error is returned when the call is waited
    /// for.
    pub fn start(
        &self,
        name: &str,
        arguments: &(impl Serialize + ?Sized),
    ) -> Result<StartedCall<'a>, ToolError> {
        let number = self.host.start(name, &arguments_text(arguments)?);
        Ok(StartedCall { host: self.host, name: name.to_owned(), number })
    }

    /// Makes several calls at once and waits for all of them. The outcomes are in the order of the calls.
    ///
    /// # Errors
    /// `invalid_arguments` if the arguments of a call cannot be serialized; the calls before it have been started.
    pub fn all<R: DeserializeOwned>(
        &self,
        calls: impl IntoIterator<Item = (impl AsRef<str>, impl Serialize)>,
    ) -> Result<Vec<Result<R, ToolError>>, ToolError> {
        let started = calls.into_iter().map(|(name, arguments)| self.start(name.as_ref(), &arguments));
        let started = started.collect::<Result<Vec<_>, _>>()?;
        Ok(started.into_iter().map(StartedCall::wait).collect())
    }

    /// Waits until one of `calls` has ended, and removes it from them. Returns `None` if `calls` is empty.
    ///
    /// ```
    /// use a2g_guest_sdk::prelude::*;
    /// use a2g_guest_sdk::testing::{self, TestContext};
    ///
    /// let _tools = testing::Tools::new().tool("square", |arguments| Ok(json!(arguments["n"].as_i64().map(|n| n * n))));
    /// let ctx = TestContext::new();
    /// let mut calls = Vec::new();
    /// for n in 1..=3 {
    ///     calls.push(ctx.tools().start("square", &json!({ "n": n }))?);
    /// }
    /// let mut sum = 0;
    /// while let Some(finished) = ctx.tools().wait_any::<i64>(&mut calls) {
    ///     sum += finished.outcome?;
    /// }
    /// assert_eq!(sum, 14);
    /// # Ok::<_, ToolError>(())
    /// ```
    pub fn wait_any<R: DeserializeOwned>(&self, calls: &mut Vec<StartedCall<'_>>) -> Option<FinishedCall<R>> {
        let numbers = calls.iter().map(StartedCall::number).collect::<Vec<_>>();
        let first = *numbers.first()?;
        // A number that the executor does not know never gets an outcome, so it is removed here.
        let (number, outcome) = self.host.wait(&numbers).unwrap_or_else(|error| (first, Err(error)));
        let place = numbers.iter().position(|known| *known == number)?;
        let name = calls.swap_remove(place).name;
        Some(FinishedCall { number, outcome: parse_result(&name, outcome) })
    }
}

/// A call that was started.
///
/// If it is dropped, the call continues, and ends with this run at the latest.
#[derive(Debug)]
#[must_use = "the call continues, but its outcome is lost unless you wait for it"]
pub struct StartedCall<'a> {
    host: &'a Host,
    name: String,
    number: u32,
}

impl StartedCall<'_> {
    /// The number of the call among those of this run, from 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Waits for the result of the call.
    ///
    /// # Errors
    /// As [`Tools::call`].
    pub fn wait<R: DeserializeOwned>(self) -> Result<R, ToolError> {
        let outcome = self.host.wait(&[self.number]).and_then(|(_, outcome)| outcome);
        parse_result(&self.name, outcome)
    }
}

fn arguments_text(arguments: &(impl Serialize + ?Sized)) -> Result<String, ToolError> {
    serde_json::to_string(arguments).map_err(|error| ToolError::new("invalid_arguments", error.to_string()))
}

fn parse_result<R: DeserializeOwned>(name: &str, outcome: Result<String, ToolError>) -> Result<R, ToolError> {
    serde_json::from_str(&outcome?).map_err(|error| {
        ToolError::new(
            "unexpected_result",
            format!("`{name}` returned a result of an unexpected type: {error}"),
        )
    })
}
