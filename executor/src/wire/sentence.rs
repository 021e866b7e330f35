//! One clear sentence for each way in which a run can end badly. It is the `error` of a report
//! and the message of a door's own error, so that all say the same.

use crate::limit::{Layer, Limit};
use crate::outcome::{End, Outcome, Usage};
use std::fmt::Display;

/// The most characters of a guest's own words in a sentence.
const MAX_GUEST_TEXT_CHARS: usize = 400;

/// What went wrong with a run that is told as one that did not succeed.
pub(super) fn of_failure(outcome: &Outcome) -> String {
    of(outcome).unwrap_or_else(|| "the tool did not succeed".to_owned())
}

/// What went wrong; `None` when nothing did.
pub(super) fn of(outcome: &Outcome) -> Option<String> {
    let Outcome { end, output: _, metrics: _, usage } = outcome;
    match end {
        End::Returned(_) => None,
        End::ToolError { code, message, detail: _ } => {
            Some(format!("the tool failed with `{}`: {}", words(code), words(message)))
        }
        End::Exited { code, stderr_tail } => Some(exited(*code, stderr_tail)),
        End::ResultNotJson => Some("the tool's standard output is not one JSON value".to_owned()),
        End::Trapped(trap) => Some(format!("the tool trapped: {}", words(trap))),
        End::Unlinkable(missing) => Some(format!("the tool cannot be started: {}", words(missing))),
        End::Crashed(how) => Some(format!("the process that ran the tool ended early: {}", words(how))),
        End::LimitReached(limit) => Some(limit_reached(*limit, usage)),
        End::Aborted(reason) => Some(reason.message().to_owned()),
    }
}

/// The exit code with the last line that the command wrote to standard error.
fn exited(code: i32, stderr_tail: &str) -> String {
    match stderr_tail.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(line) => format!("the tool exited with code {code}: {}", words(line)),
        None => format!("the tool exited with code {code}"),
    }
}

fn limit_reached(limit: Limit, usage: &Usage) -> String {
    match limit {
        Limit::Memory => reached("memory", usage.memory.value, usage.memory.layer),
        Limit::Time => format!(
            "the tool ran longer than its timeout of {}, set by {}",
            usage.timeout.value,
            author(usage.timeout.layer)
        ),
        Limit::Output => reached("output", usage.output.value, usage.output.layer),
        Limit::Stack => "the tool used up its call stack".to_owned(),
        Limit::Written => over("written bytes", usage.budgets.written, "max_written_mb"),
        Limit::Created => over("created files and folders", usage.budgets.created, "max_created"),
        Limit::Handles => over("open files and handles", usage.budgets.handles, "max_handles"),
        Limit::DirectoryEntries => {
            over("listed directory entries", usage.budgets.directory_entries, "max_directory_entries")
        }
        Limit::RandomBytes => over("random bytes", usage.budgets.random_bytes, "max_random_bytes"),
        Limit::Fuel => match usage.budgets.fuel {
            Some(fuel) => over("fuel", fuel, "max_fuel"),
            None => "the tool ran out of fuel".to_owned(),
        },
        Limit::Subscriptions => over("subscriptions", usage.budgets.subscriptions, "max_subscriptions"),
    }
}

fn reached(what: &str, value: impl Display, layer: Layer) -> String {
    format!("the tool reached its {what} limit of {value}, set by {}", author(layer))
}

/// A limit that the executor's ceilings alone set, by the key to change.
fn over(what: &str, value: impl Display, key: &str) -> String {
    format!("{} (`ceilings.{key}`)", reached(what, value, Layer::Executor))
}

/// Whom to ask for more.
fn author(layer: Layer) -> &'static str {
    match layer {
        Layer::Verdict => "the verdict",
        Layer::Operator => "the operator",
        Layer::Condition => "a condition of the verdict",
        Layer::StandingPolicy => "the standing policy of the agent",
        Layer::Tool => "the tool's own manifest",
        Layer::Executor => "the executor's configuration",
        Layer::Caller => "the caller",
    }
}

/// A guest's own words on one line, without control characters, and cut when they are long.
fn words(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(MAX_GUEST_TEXT_CHARS) {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    if text.chars().nth(MAX_GUEST_TEXT_CHARS).is_some() {
        shown.push('…');
    }
    shown
}
