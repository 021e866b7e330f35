//! `doctor`: the protections of this machine against tools.

use super::arguments::Setup;
use super::layout::{Listing, status_cell, text};
use super::output::{one_line, print};
use super::setup::config;
use a2g_isolate::support;
use a2g_types::durability::Durability;
use a2g_types::error_chain::ErrorChain;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

pub(super) fn main(json: bool, config: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let support = support();
    let durability = describe_durability(&Setup { config, tools: None });
    if json {
        let rows = support.rows().map(|row| {
            let detail = row.state.as_ref().ok();
            let missing = row.state.as_ref().err();
            json!({ "name": row.name, "required": row.required, "detail": detail, "missing": missing })
        });
        let detail = durability.as_ref().ok();
        let missing = durability.as_ref().err();
        let durability = json!({
            "name": DURABILITY, "required": false, "detail": detail, "missing": missing,
        });
        let rows = rows.into_iter().chain([durability]).collect::<Vec<_>>();
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
        let (state, detail) = match durability {
            Ok(detail) => (status_cell("available", true), detail),
            Err(unknown) => (text("unknown"), unknown),
        };
        listing.row([text(DURABILITY), state, text("answered calls are not lost"), text(detail)]);
        listing.show(std::io::stdout());
    }
    Ok(if support.missing().next().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The name of the row that is not a protection of the kernel.
const DURABILITY: &str = "journal-durability";

/// The configured durability as a sentence, or the error if the configuration cannot be read.
fn describe_durability(setup: &Setup) -> Result<String, String> {
    let durability =
        config(setup).map_err(|error| one_line(format_args!("{}", ErrorChain(error.as_ref()))))?.durability;
    let guarantee = match durability {
        Durability::PowerLoss => "every commit waits for the disk, and a power failure loses nothing",
        Durability::ProcessCrash => {
            "a commit waits for the kernel: a crash of the process loses nothing, and a power failure may lose the last calls"
        }
    };
    Ok(format!("{}: {guarantee}", durability.as_str()))
}
