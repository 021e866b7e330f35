//! `doctor`: what this machine has to contain tools with.

use super::output::{print, show, table, verdict_cell};
use crate::isolate::support;
use comfy_table::Cell;
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
        let mut table = table(&std::io::stdout(), &["control", "state", "for", "detail"]);
        for row in support.rows() {
            let (state, detail) = match row.state {
                Ok(detail) => (verdict_cell("there", true), detail),
                Err(missing) if row.required => (verdict_cell("missing", false), missing),
                Err(missing) => (Cell::new("missing, optional"), missing),
            };
            table.add_row([Cell::new(row.name), state, Cell::new(row.purpose), Cell::new(detail)]);
        }
        show(&table, std::io::stdout());
    }
    Ok(if support.missing().next().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
