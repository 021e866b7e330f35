//! `doctor`: what this machine has to contain tools with.

use super::layout::{Listing, judged, text};
use super::output::print;
use crate::isolate::support;
use serde_json::json;
use std::process::ExitCode;

pub(super) fn main(json: bool) -> anyhow::Result<ExitCode> {
    let support = support();
    if json {
        let rows = support.rows().map(|row| {
            let (detail, missing) = (row.state.as_ref().ok(), row.state.as_ref().err());
            json!({ "name": row.name, "required": row.required, "detail": detail, "missing": missing })
        });
        print(serde_json::to_string_pretty(&rows)?);
    } else {
        let mut listing = Listing::new(&["control", "state", "for", "how"]);
        for row in support.rows() {
            let (state, how) = match row.state {
                Ok(detail) => (judged("available", true), detail),
                Err(missing) if row.required => (judged("missing", false), missing),
                Err(missing) => (text("missing, optional"), missing),
            };
            listing.row([text(row.name), state, text(row.purpose), text(how)]);
        }
        listing.show(std::io::stdout());
    }
    Ok(if support.missing().next().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
