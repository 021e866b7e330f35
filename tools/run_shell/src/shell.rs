//! One shell, which keeps variables, functions and its working folder between two scripts.

use std::sync::Arc;
use std::time::Duration;

use a2g_guest_sdk::prelude::*;
use bashkit::parser::Parser;
use bashkit::{
    Bash, Error, ExecOptions, ExecResult, ExecutionLimits, LimitExceeded, MemoryLimits, SessionLimits,
};
use tokio::runtime::{Builder, Runtime};

use crate::commands;
use crate::files::Files;
use crate::folders;

/// A script with a longer output is refused: all of it has to fit into one answer.
const MAX_OUTPUT_BYTES: usize = 4 << 20;
/// The depth of functions and of `source`. bashkit allows no more, and `sh` and `bash` 8.
const MAX_DEPTH: usize = 16;
/// The depth of nested syntax. The stack of a run holds some more.
const MAX_SYNTAX_DEPTH: usize = 100;
/// The values of a range in braces, such as `{1..10}`. bashkit makes no more of them.
const MAX_RANGE: u64 = 10_000;
/// Longer than any run may take, so that the executor's limit of time decides.
const FOREVER: Duration = Duration::from_secs(7 * 24 * 3600);

/// A shell with its state.
pub(crate) struct Shell {
    bash: Bash,
    runtime: Runtime,
}

impl Shell {
    /// A shell that is in the first granted folder.
    ///
    /// # Errors
    /// `internal`, if the system has no clock.
    pub(crate) fn new() -> Result<Self, ToolError> {
        let files = Files::new(folders::granted());
        let start = files.start();
        let home = start.to_string_lossy().into_owned();
        let builder = Bash::builder()
            .fs(Arc::new(files))
            .rootfs(false)
            .cwd(start)
            .env("HOME", home)
            .limits(limits())
            .session_limits(SessionLimits::unlimited())
            .memory_limits(memory_limits());
        let runtime = Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|error| ToolError::new("internal", error.to_string()))?;
        Ok(Self { bash: commands::add(builder).build(), runtime })
    }

    /// Sets a variable that commands see.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.bash.set_env(name, value);
    }

    /// Runs a script to its end.
    ///
    /// # Errors
    /// `syntax_error`, before anything runs; `output_too_large`; `shell_limit` at a limit of the shell
    /// itself.
    pub(crate) fn run(&mut self, script: &str, input: Option<String>) -> Result<ExecResult, ToolError> {
        check_syntax(script)?;
        let mut options = ExecOptions::new();
        if let Some(input) = input {
            options = options.stdin(input);
        }
        let done = self.runtime.block_on(self.bash.exec_with_options(script, options));
        let result = done.map_err(|error| refusal(&error, script))?;
        if result.stdout_truncated || result.stderr_truncated {
            let message = format!(
                "the script printed more than {MAX_OUTPUT_BYTES} bytes, the limit of run_shell: write to a \
                 file, or filter with `head`, `grep` or `wc`"
            );
            return Err(ToolError::new("output_too_large", message));
        }
        Ok(result)
    }
}

/// The executor's limits of time, processor and memory decide, so those of bashkit are above what they allow,
/// apart from those of the stack.
fn limits() -> ExecutionLimits {
    ExecutionLimits::new()
        .max_work_units(u64::MAX)
        .max_aggregate_input_bytes(u64::MAX)
        .max_live_intermediate_bytes(u64::MAX)
        .max_commands(usize::MAX)
        .max_loop_iterations(usize::MAX)
        .max_total_loop_iterations(usize::MAX)
        .max_function_depth(MAX_DEPTH)
        .max_ast_depth(MAX_SYNTAX_DEPTH)
        .max_parser_operations(usize::MAX)
        .max_stdout_bytes(MAX_OUTPUT_BYTES)
        .max_stderr_bytes(MAX_OUTPUT_BYTES)
        .max_word_split_fields(usize::MAX)
        .max_word_split_bytes(usize::MAX)
        .max_history_entries(0)
        .timeout(FOREVER)
        .parser_timeout(FOREVER)
}

fn memory_limits() -> MemoryLimits {
    MemoryLimits::new()
        .max_variable_count(usize::MAX)
        .max_total_variable_bytes(usize::MAX)
        .max_array_entries(usize::MAX)
        .max_function_count(usize::MAX)
        .max_function_body_bytes(usize::MAX)
}

/// bash runs a script up to its first error of syntax. An agent learns more from a script that has changed
/// nothing.
fn check_syntax(script: &str) -> Result<(), ToolError> {
    let parser = Parser::with_limits(script, MAX_SYNTAX_DEPTH, usize::MAX);
    parser.parse().map(drop).map_err(|error| refusal(&error, script))?;
    for (line, text) in script.lines().enumerate() {
        if let Some(range) = text.split('{').skip(1).find_map(large_range) {
            let message = format!(
                "line {}: `{{{range}}}` has more than {MAX_RANGE} values, the limit of run_shell: write \
                 `for ((i = FIRST; i <= LAST; i++))`; nothing has run",
                line + 1
            );
            return Err(ToolError::new("shell_limit", message));
        }
    }
    Ok(())
}

/// The range with which a text begins that was after a `{`, if bashkit would leave it as it is, without a
/// message.
fn large_range(text: &str) -> Option<&str> {
    let range = text.split_once('}')?.0;
    let mut ends = range.split("..").map(str::parse::<i64>);
    let first = ends.next()?.ok()?;
    let last = ends.next()?.ok()?;
    let step = ends.next().and_then(Result::ok).map_or(1, |step| step.unsigned_abs().max(1));
    (first.abs_diff(last) / step >= MAX_RANGE).then_some(range)
}

/// The line of an error that bashkit reports without one: the first with which the script fails for the same
/// reason.
fn find_line(script: &str, message: &str) -> usize {
    let ends = script.match_indices('\n').map(|(end, _)| end).collect::<Vec<_>>();
    let lacks_it = |end: &usize| {
        let start = script.get(..*end).unwrap_or_default();
        match Parser::with_limits(start, MAX_SYNTAX_DEPTH, usize::MAX).parse() {
            Err(Error::Parse { message: found, .. }) => found != message,
            Err(_) | Ok(_) => true,
        }
    };
    ends.partition_point(lacks_it) + 1
}

/// An error that ended a script.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "the other errors have no facts beyond their message, and features of bashkit add more of them"
)]
fn refusal(error: &Error, script: &str) -> ToolError {
    match error {
        Error::Parse { message, line, .. } => {
            let line = if *line > 0 { *line } else { find_line(script, message) };
            let text = script.lines().nth(line - 1).unwrap_or_default();
            ToolError::new("syntax_error", format!("line {line}: {message}; nothing has run"))
                .with_detail(json!({ "message": message, "line": line, "text": text }))
        }
        Error::ResourceLimit(LimitExceeded::Memory(_)) => {
            let message = "the script needs more memory than this run has: read and write the data in parts";
            ToolError::new("out_of_memory", message)
        }
        Error::ResourceLimit(limit) => {
            ToolError::new("shell_limit", format!("run_shell ended the script: {limit}"))
        }
        error => ToolError::new("shell_error", error.to_string()),
    }
}
