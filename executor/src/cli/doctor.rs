//! `doctor`: the protections of this machine against tools, and what the configuration gives up.

use super::arguments::Setup;
use super::layout::{Listing, status_cell, text};
use super::output::{list, one_line, print};
use super::setup::config;
use a2g_config::{Config, Reuse};
use a2g_isolate::{Isolation, support};
use a2g_types::durability::{Durability, SyncedStarts};
use a2g_types::error_chain::ErrorChain;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

pub(super) fn main(json: bool, config: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let support = support();
    let configured = configured_rows(&Setup { config, tools: None });
    if json {
        let rows = support.rows().map(|row| {
            let detail = row.state.as_ref().ok();
            let missing = row.state.as_ref().err();
            json!({ "name": row.name, "required": row.required, "detail": detail, "missing": missing })
        });
        let configured = configured.iter().map(|ConfiguredRow { name, state, .. }| {
            let detail = state.as_ref().ok();
            let missing = state.as_ref().err();
            json!({ "name": name, "required": false, "detail": detail, "missing": missing })
        });
        let rows = rows.into_iter().chain(configured).collect::<Vec<_>>();
        print(serde_json::to_string_pretty(&rows)?);
    } else {
        let mut listing = Listing::new(&["control", "state", "for", "how"]);
        for row in support.rows() {
            let (state, detail) = match row.state {
                Ok(detail) => (status_cell("available", true), detail),
                Err(missing) if row.required => (status_cell("missing", false), missing),
                Err(missing) => (text("missing, optional"), missing),
            };
            listing.row([text(row.name), state, text(row.purpose), text(detail)]);
        }
        for ConfiguredRow { name, purpose, state, otherwise } in &configured {
            let (state, detail) = match state {
                Ok(detail) => (status_cell("available", true), detail),
                Err(reason) => (text(otherwise), reason),
            };
            listing.row([text(name), state, text(purpose), text(detail)]);
        }
        listing.show(std::io::stdout());
    }
    Ok(if support.missing().next().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A row about a protection that depends on the configuration, and not on the kernel.
struct ConfiguredRow {
    name: &'static str,
    purpose: &'static str,
    /// The way in which the machine provides it, or the reason why it is missing.
    state: Result<String, String>,
    /// The word in the list for the state of a row that is missing.
    otherwise: &'static str,
}

fn configured_rows(setup: &Setup) -> [ConfiguredRow; 2] {
    let read = config(setup).map_err(|error| one_line(format_args!("{}", ErrorChain(error.as_ref()))));
    let otherwise = if read.is_ok() { "given up" } else { "unknown" };
    let durability = read.as_ref().map(describe_durability).map_err(Clone::clone);
    let processes = read.as_ref().map_err(Clone::clone).and_then(describe_processes);
    [
        ConfiguredRow {
            name: "process-for-each-run",
            purpose: "a compromised process sees one run",
            state: processes,
            otherwise,
        },
        ConfiguredRow {
            name: "journal-durability",
            purpose: "answered calls are not lost",
            state: durability,
            otherwise,
        },
    ]
}

/// The configured durability as a sentence.
fn describe_durability(config: &Config) -> String {
    let guarantee = match (config.durability, config.synced_starts) {
        (Durability::PowerLoss, SyncedStarts::All) => {
            "every commit waits for the disk, and a power failure loses nothing"
        }
        (Durability::PowerLoss, SyncedStarts::WithEffects) => {
            "a power failure loses nothing but unanswered runs without effects (`journal.synced_starts`)"
        }
        (Durability::ProcessCrash, _) => {
            "a commit waits for the kernel: a crash of the process loses nothing, and a power failure may lose the last calls"
        }
    };
    format!("{}: {guarantee}", config.durability.as_str())
}

/// The runs that have a process of their own, or else those that have none.
fn describe_processes(config: &Config) -> Result<String, String> {
    if config.isolation == Isolation::Inline {
        return Err("every tool runs on threads of the server (`executor.isolation`)".to_owned());
    }
    let Reuse { tools, limits } = &config.reuse;
    let mut exceptions = Vec::new();
    if !config.inline_tools.is_empty() {
        let inline = list(&config.inline_tools);
        exceptions.push(format!("{inline}: on threads of the server (`executor.inline_tools`)"));
    }
    if !tools.is_empty() {
        exceptions.push(format!(
            "{}: a process serves up to {} runs of one agent under one grant, and once compromised it can see the later \
             of these runs (`executor.reuse`)",
            list(tools),
            limits.runs
        ));
    }
    if exceptions.is_empty() {
        Ok("each run has a process of its own".to_owned())
    } else {
        Err(exceptions.join("; "))
    }
}
