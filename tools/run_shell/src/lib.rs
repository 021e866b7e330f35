//! Runs a shell script. bashkit interprets it; all that it reaches are files of the sandbox and calls of
//! other tools.

use std::cell::RefCell;
use std::collections::BTreeMap;

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{schemars, serde};

mod commands;
mod files;
mod folders;
mod shell;

use shell::Shell;

#[derive(Arguments)]
struct RunShell {
    /// The script, in the language of bash. Its working folder is the first granted one.
    script: String,
    /// The standard input: a text as it is, and any other JSON value as JSON.
    #[serde(default)]
    input: Value,
    /// Variables of the environment.
    #[serde(default)]
    env: BTreeMap<String, String>,
}

#[derive(Serialize, schemars::JsonSchema)]
#[serde(crate = "serde")]
struct Ended {
    /// What the script printed. Bytes that are not UTF-8 are replaced: print them with `base64`.
    stdout: String,
    /// The messages of its commands.
    stderr: String,
    /// The status of its last command, or of `exit`. A status other than 0 is no error of the call.
    exit_code: i32,
}

thread_local! {
    /// The shell of this instance. A session calls the same instance again, and finds what its last script
    /// has left.
    static SHELL: RefCell<Option<Shell>> = const { RefCell::new(None) };
}

fn run_shell(_: &mut Context, arguments: RunShell) -> Result<Ended, ToolError> {
    let RunShell { script, input, env } = arguments;
    check_names(&env)?;
    let mut shell = SHELL.take().map_or_else(Shell::new, Ok)?;
    for (name, value) in &env {
        shell.set(name, value);
    }
    let ended = shell.run(&script, input_text(input));
    SHELL.set(Some(shell));
    let result = ended?;
    Ok(Ended {
        stdout: result.stdout.text_lossy().into_owned(),
        stderr: result.stderr.text_lossy().into_owned(),
        exit_code: result.exit_code,
    })
}

fn input_text(input: Value) -> Option<String> {
    match input {
        Value::Null => None,
        Value::String(text) => Some(text),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => Some(format!("{input}\n")),
    }
}

fn check_names(env: &BTreeMap<String, String>) -> Result<(), ToolError> {
    let Some(name) = env.keys().find(|name| !is_name(name)) else {
        return Ok(());
    };
    let message =
        format!("`env` has the name `{name}`: a variable has letters, digits and `_`, and no digit first");
    Err(ToolError::new("invalid_arguments", message))
}

fn is_name(name: &str) -> bool {
    let has_start = name.chars().next().is_some_and(|start| start.is_ascii_alphabetic() || start == '_');
    has_start && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

export_tool!(
    run_shell,
    description = "Runs a bash script in a sandbox: pipes, redirections, globs, functions, arrays and \
                   here-documents, with grep, sed, awk, sort, uniq, cut, tr, find, xargs, diff, jq and the \
                   other usual commands for text and files. Files are those of the granted folders, by \
                   absolute paths or relative to the working folder, which is the first of them. `tool NAME \
                   --argument value` or `tool NAME '{json}'` calls another tool and prints its result as \
                   JSON; `tool` alone lists them. There are no other programs, processes or network (no git, \
                   curl or python: use `tool http_fetch` or `tool run_python`), no links can be created, \
                   functions call each other at most 16 deep, and seq prints at most 100,000 lines. Variables, \
                   functions and the working folder stay for a later call only in a session: call with session \
                   \"new\", and then with the handle that it returns. Returns stdout, stderr and exit_code; a \
                   status other than 0 is no error."
);

#[cfg(test)]
mod tests;
