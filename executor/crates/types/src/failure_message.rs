//! One sentence for each way in which a run can fail. It is the `error` of a report and the message of each
//! door's error, so all doors report the same text.

use crate::ident::ToolName;
use crate::limit::{Access, Bound, FileEffects, Layer, Limit, LimitRow};
use crate::outcome::{Denial, DenialReason, End, Outcome, Receipt, Usage};
use crate::quantity::BYTES_PER_MB;
use crate::visible_text::escape_invisible;
use serde_json::{Map, Value, json};
use std::fmt::Display;

/// The code with which a tool says that its run has no network, as the SDK for tools does.
const NETWORK_OFF: &str = "network_off";
/// The state of file changes that could be neither applied nor taken back as a whole, with what to do.
const LEFT_TO_OPERATOR: &str = "some changes may be in force, and are left to an operator (see the \
                                executor's log; its next start tries again)";
/// Maximum number of characters of guest text in a sentence.
const MAX_GUEST_TEXT_CHARS: usize = 400;

/// The reason why a run failed, with a fallback for a door that treats a successful end as a failure.
#[must_use]
pub fn describe_failure(outcome: &Outcome) -> String {
    describe(outcome).unwrap_or_else(|| "the tool did not succeed".to_owned())
}

/// The reason why a run failed; `None` for a successful run.
#[must_use]
pub fn describe(outcome: &Outcome) -> Option<String> {
    let Outcome { end, output: _, metrics: _, usage } = outcome;
    match end {
        End::Returned(_) | End::Staged(_) => None,
        End::ToolError { code, message, detail: _ } => Some(format!(
            "the tool failed with `{}`: {}{}{}",
            escape_guest_text(code),
            escape_guest_text(message),
            denial_notices(usage),
            if code == NETWORK_OFF { no_network_notice(usage) } else { String::new() }
        )),
        End::Exited { code, stderr_tail } => {
            Some(format!("{}{}", exit_message(*code, stderr_tail), denial_notices(usage)))
        }
        End::ResultNotJson => Some("the tool's standard output is not one JSON value".to_owned()),
        End::ResultInvalid { pointer, message } => {
            let at = if pointer.is_empty() {
                String::new()
            } else {
                format!(" at `{}`", escape_guest_text(pointer))
            };
            let message = escape_guest_text(message);
            Some(format!("the tool's result breaks the `[result]` schema of its `tool.toml`{at}: {message}"))
        }
        End::Trapped(trap) => Some(format!("the tool trapped: {}", escape_guest_text(trap))),
        End::NotStarted(reason) => Some(format!("the tool cannot be started: {}", escape_guest_text(reason))),
        End::Crashed(cause) => {
            Some(format!("the process that ran the tool ended early: {}", escape_guest_text(cause)))
        }
        // Only a decision on the file changes of another run: its reader knows which one.
        End::NotCommitted(reason) if usage.effects.value.is_direct() => Some(escape_guest_text(reason)),
        End::NotCommitted(reason) => {
            let reason = escape_guest_text(reason);
            Some(format!("the tool's file changes were not committed: {reason}"))
        }
        End::LeftToOperator(reason) => {
            let subject = if usage.effects.value.is_direct() {
                ""
            } else {
                "the tool's file changes were not committed as a whole: "
            };
            Some(format!("{subject}{LEFT_TO_OPERATOR}: {}", escape_guest_text(reason)))
        }
        End::LimitReached(limit) => Some(limit_message(*limit, usage)),
        End::Aborted(reason) => Some(reason.message().to_owned()),
    }
}

/// Machine-readable details of a failed run.
#[must_use]
pub fn failure_details(receipt: &Receipt) -> Map<String, Value> {
    let status = receipt.outcome.end.status().as_str();
    let details = match &receipt.outcome.end {
        End::ToolError { code, message, detail } => {
            json!({ "status": status, "ran": true, "code": code, "message": message, "detail": detail })
        }
        End::Exited { code, stderr_tail } => {
            json!({ "status": status, "ran": true, "exit_code": code, "stderr": stderr_tail })
        }
        End::ResultInvalid { pointer, message: _ } => {
            json!({ "status": status, "ran": true, "result_pointer": pointer })
        }
        End::LimitReached(limit) => json!({ "status": status, "ran": true, "limit": limit.as_str() }),
        End::Returned(_)
        | End::Staged(_)
        | End::ResultNotJson
        | End::Trapped(_)
        | End::NotStarted(_)
        | End::Crashed(_)
        | End::NotCommitted(_)
        | End::LeftToOperator(_)
        | End::Aborted(_) => json!({ "status": status, "ran": true }),
    };
    details.as_object().cloned().unwrap_or_default()
}

/// The exit code and the last line of standard error.
fn exit_message(code: i32, stderr_tail: &str) -> String {
    match stderr_tail.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(line) => format!("the tool exited with code {code}: {}", escape_guest_text(line)),
        None => format!("the tool exited with code {code}"),
    }
}

/// The parts of a message about what a run was denied.
fn denial_notices(usage: &Usage) -> String {
    let notices = [
        read_only_notice(usage),
        no_folder_notice(usage),
        missing_folder_notice(usage),
        staged_notice(usage),
        request_notice(usage),
        secret_notice(usage),
        host_notice(usage),
    ];
    notices.concat()
}

/// The part of a message about a path in a run without folders: the layer that left none of those that others granted.
fn no_folder_notice(usage: &Usage) -> String {
    let is_outside = usage.denied.iter().any(|denial| denial.reason == DenialReason::OutsideScope);
    let Some(layer) = usage.filesystem_emptied_by.filter(|_| is_outside) else { return String::new() };
    let key = match layer {
        Layer::Executor => " (`ceilings.filesystem_scope`)",
        Layer::Verdict
        | Layer::Operator
        | Layer::Condition
        | Layer::StandingPolicy
        | Layer::Tool
        | Layer::Caller => "",
    };
    format!("; the run has no folder, because {}{key} leaves none", layer_name(layer))
}

/// The part of a message that names the granted folders that do not exist on the host, with what to do.
fn missing_folder_notice(usage: &Usage) -> String {
    let notice = |folder: &String| {
        format!(
            "; the granted folder `{}` does not exist on the host: create it, or correct `mount.host`",
            escape_guest_text(folder)
        )
    };
    usage.missing_roots.iter().map(notice).collect()
}

/// The part of a message about a run without a network: the layer that turned it off, which a tool cannot
/// know.
fn no_network_notice(usage: &Usage) -> String {
    let Bound { value: has_network, layer } = usage.network;
    if has_network { String::new() } else { format!("; {}", no_network_reason(layer)) }
}

/// The reason why a run has no network, by the layer that denies it, with the key to change.
#[must_use]
pub fn no_network_reason(layer: Layer) -> &'static str {
    match layer {
        Layer::Verdict => "the verdict does not grant it (`network_allowed`)",
        Layer::Operator => {
            "the operator does not grant it: `a2g-executor run` grants one by a policy (`--policy`)"
        }
        Layer::Condition => {
            "the verdict turned the network off (`no_network`), as the built-in governor does for a URL without TLS: \
             plain http is refused, so use `https`"
        }
        Layer::StandingPolicy => {
            "the standing policy of the agent allows no host that the other layers allow \
             (`capabilities.network.allowed_domains`)"
        }
        Layer::Tool => {
            "the tool does not ask for it, or its `requests` name no host that the other layers allow: set \
             `network = true` in its `tool.toml`, or correct its `requests`"
        }
        Layer::Executor => {
            "the executor's configuration does not allow it (`ceilings.network_allowed`), or allows the tool no host \
             (`network.allowed_domains`, or `network.tools` if that has the tool)"
        }
        Layer::Caller => "the caller did not ask for it",
    }
}

/// The part of a message about a host or an address that was refused: the list that refuses it. It names no
/// other entry of the list: a tool does not learn which hosts it may reach.
fn host_notice(usage: &Usage) -> String {
    let notice = |denial: &Denial| {
        let reason = refused_host_reason(denial)?;
        Some(format!("; access to `{}` was refused: {reason}", escape_guest_text(&denial.what)))
    };
    usage.denied.iter().find_map(notice).unwrap_or_default()
}

/// The reason why a host or an address was refused, with the key of the list; `None` for another denial.
fn refused_host_reason(denial: &Denial) -> Option<String> {
    if denial.reason == DenialReason::Address {
        let reason = "its address is not public, and not in `network.allowed_addresses` of the executor's configuration";
        return Some(reason.to_owned());
    }
    let is_blocked = denial.reason == DenialReason::DomainBlocked;
    let not_allowed = [DenialReason::DomainNotAllowed, DenialReason::IpLiteral, DenialReason::NotLookedUp];
    if !is_blocked && !not_allowed.contains(&denial.reason) {
        return None;
    }
    let layer = denial.set_by?;
    let by = layer_name(layer);
    let key = match (layer, is_blocked) {
        (Layer::Executor, true) => " (`network.blocked_domains`)",
        (Layer::Executor, false) => " (`network.allowed_domains`, or `network.tools` if that has the tool)",
        (Layer::StandingPolicy, true) => " (`capabilities.network.blocked_domains`)",
        (Layer::StandingPolicy, false) => " (`capabilities.network.allowed_domains`)",
        (Layer::Condition, true) => " (`blocked_host`)",
        (Layer::Condition, false) => " (`host`)",
        (Layer::Verdict | Layer::Operator | Layer::Tool | Layer::Caller, _) => "",
    };
    if is_blocked {
        return Some(format!("{by} blocks it{key}"));
    }
    let is_plain = denial.what.starts_with("http://");
    let scheme = if is_plain { ", and an entry with `https://` allows no plain http" } else { "" };
    Some(format!("{by} does not allow it{key}{scheme}"))
}

/// The part of a message about a request or a connection that a run under `staged` may not make, or a request that cannot
/// wait.
fn staged_notice(usage: &Usage) -> String {
    let find = |reason| usage.denied.iter().find(|denial| denial.reason == reason);
    if let Some(denial) = find(DenialReason::Staged) {
        return format!(
            "; access to `{}` was refused: under `effects = \"staged\"`, set by {}, only requests with GET \
             and HEAD are sent, because nobody can take back what a run has sent",
            escape_guest_text(&denial.what),
            layer_name(usage.effects.layer)
        );
    }
    let Some(denial) = find(DenialReason::HeldRequests) else { return String::new() };
    let max = usage.network_used.as_ref().map_or(0, |network| network.budgets.held_requests);
    format!(
        "; a request to `{}` cannot wait for the commit: a run may leave {max} requests \
         (`ceilings.held_requests`), each with a URL of at most 2 KiB and a body of at most 1 MiB",
        escape_guest_text(&denial.what)
    )
}

/// The part of a message about a request that the tool does not declare.
fn request_notice(usage: &Usage) -> String {
    let mut denied = usage.denied.iter();
    let Some(denial) = denied.find(|denial| denial.reason == DenialReason::RequestNotDeclared) else {
        return String::new();
    };
    format!(
        "; `{}` was refused: the tool sends only the requests that its `tool.toml` declares \
         (`capabilities.requests`), with paths that every server reads in one way, and opens no connection of its own",
        escape_guest_text(&denial.what)
    )
}

/// The part of a message about a request that was refused for a secret: its name, and what to do.
fn secret_notice(usage: &Usage) -> String {
    let notice = |denial: &Denial| {
        let layer = denial.set_by.map_or("a layer", layer_name);
        let withheld = format!("{layer} does not let the run use it");
        let reasons = [
            (DenialReason::SecretWithheld, &*withheld),
            (
                DenialReason::SecretUnavailable,
                "its value cannot be read: `a2g-executor secret check` says why",
            ),
            (DenialReason::SecretUses, "the run has used it as often as it may (`secret.max_uses`)"),
            (
                DenialReason::SecretAnswer,
                "it is compressed or only a part, so that no value of a secret could be found in it; the server has to \
                 answer with all of it, without `content-encoding`",
            ),
            (
                DenialReason::SecretPlace,
                "it is set only over `https`, in a body only if that is a JSON document with its place, and in no \
                 connection of the tool's own",
            ),
        ];
        let (_, reason) = reasons.into_iter().find(|(reason, _)| *reason == denial.reason)?;
        Some(format!("; the {} was refused: {reason}", escape_guest_text(&denial.what)))
    };
    usage.denied.iter().find_map(notice).unwrap_or_default()
}

/// The part of a message about a file that could not be changed: the layer that grants it for reading only.
fn read_only_notice(usage: &Usage) -> String {
    let Some(denial) = usage.denied.iter().find(|denial| denial.reason == DenialReason::ReadOnly) else {
        return String::new();
    };
    let mut areas = usage.filesystem.iter().map(|area| &area.access);
    let layer = areas.find(|access| access.value == Access::ReadOnly).map(|access| access.layer);
    let key = match layer {
        Some(Layer::Executor) => " (`ceilings.read_only`, or `--read-only` of `a2g-executor mcp`)",
        Some(Layer::Condition) => " (`read_only`)",
        Some(Layer::Tool) => " (`filesystem`)",
        Some(Layer::Verdict | Layer::Operator | Layer::StandingPolicy | Layer::Caller) | None => "",
    };
    let set_by = layer.map_or_else(String::new, |layer| format!(", set by {}{key}", layer_name(layer)));
    format!("; `{}` is granted for reading only{set_by}", escape_guest_text(&denial.what))
}

fn limit_message(limit: Limit, usage: &Usage) -> String {
    let Some(row) = limit.row() else { return "the tool used up its call stack".to_owned() };
    if row.is_budget() {
        return match usage.budgets.granted(limit) {
            Some(granted) => {
                let exceeded = exceeded_budget(row, granted, usage.budgets.layer(limit));
                format!("{exceeded}{}", room_notice(limit, usage))
            }
            None => format!("the tool ran out of {}", row.resource),
        };
    }
    if limit == Limit::Time {
        return format!(
            "the tool ran longer than its timeout of {}, set by {}",
            usage.timeout.value,
            layer_name(usage.timeout.layer)
        );
    }
    if limit == Limit::Output {
        let reached = reached_limit(row.resource, usage.output.value, usage.output.layer);
        return format!("{reached}: print and return less, or write it to a file and return the path");
    }
    if limit != Limit::Memory {
        return format!("the tool reached its {} limit", row.resource);
    }
    match usage.start_memory_bytes {
        Some(bytes) => start_memory_message(bytes, usage),
        None => reached_limit(row.resource, usage.memory.value, usage.memory.layer),
    }
}

/// The part of a message about the room that is left for the changes of a staged run: it may be less than the ceiling.
fn room_notice(limit: Limit, usage: &Usage) -> &'static str {
    let is_of_executor = usage.budgets.layer(limit) == Layer::Executor;
    if limit == Limit::Written && usage.effects.value == FileEffects::Staged && is_of_executor {
        "; a staged run has at most what the changes that wait for a decision leave of `effects.max_mb`: \
         decide on some of them, and run it again"
    } else {
        ""
    }
}

/// The message for a module that starts with more memory than its limit; it names the key to change.
fn start_memory_message(bytes: u64, usage: &Usage) -> String {
    let key = match usage.memory.layer {
        Layer::Tool => " (`max_memory_mb`)",
        Layer::Executor => " (`ceilings.max_memory_mb`)",
        Layer::Condition => " (`max_memory_mb`)",
        Layer::StandingPolicy => " (`capabilities.resources.max_memory_mb`)",
        Layer::Verdict => {
            " (where the built-in governor decides: `capabilities.resources.max_memory_mb` of the agent's policy)"
        }
        Layer::Operator | Layer::Caller => "",
    };
    format!(
        "the module needs {} MB of memory to start; its limit is {}, set by {}{key}",
        bytes.div_ceil(BYTES_PER_MB),
        usage.memory.value,
        layer_name(usage.memory.layer)
    )
}

fn reached_limit(resource: &str, value: impl Display, layer: Layer) -> String {
    format!("the tool reached its {resource} limit of {value}, set by {}", layer_name(layer))
}

/// The message for a budget; if it is the executor's ceiling, it names the key to change.
fn exceeded_budget(row: &LimitRow, granted: u64, layer: Layer) -> String {
    let reached = reached_limit(row.resource, row.format(granted), layer);
    if layer == Layer::Executor { format!("{reached} (`{}`)", row.path) } else { reached }
}

/// The command with which an operator lets a tool reach a host that was refused; `None` if no such command
/// helps.
#[must_use]
pub fn allow_command(tool: &ToolName, usage: &Usage) -> Option<String> {
    let is_refused = |denial: &&Denial| {
        denial.reason == DenialReason::DomainNotAllowed
            // Neither its declaration nor policies in Cedar, whose hosts are conditions, are changed by the command.
            && !matches!(denial.set_by, Some(Layer::Tool | Layer::Condition))
            && denial.what.starts_with("https://")
    };
    let denial = usage.denied.iter().find(is_refused)?;
    Some(format!("a2g-executor tool allow {tool} {}", escape_guest_text(&denial.what)))
}

/// The layer that set a limit, as a message names it.
#[must_use]
pub fn layer_name(layer: Layer) -> &'static str {
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

/// A guest's text on one line, truncated if long.
fn escape_guest_text(text: &str) -> String {
    escape_invisible(text, MAX_GUEST_TEXT_CHARS)
}
