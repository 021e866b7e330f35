//! `tool list` and `tool inspect`: the tools of the catalogue.

use crate::{approve, set_up};
use a2g_command::layout::{Listing, status_cell, text};
use a2g_command::output::{one_line, print};
use a2g_command::setup::{Setup, config};
use a2g_config::Config;
use a2g_core::catalog::{Catalog, CatalogEntry, CatalogError};
use a2g_types::clock::format_seconds;
use a2g_types::ident::{ToolName, did_you_mean};
use a2g_types::limit::{Group, Layer, Limit, LimitRow, rows_set_by};
use a2g_types::tool::{DeclaredCapabilities, Descriptor, ToolSignature};
use anyhow::bail;
use serde_json::{Value, json};
use std::process::ExitCode;

/// The number of digits of a package's digest in a table. `--json` and `tool inspect` show all.
const SHORT_DIGEST: usize = 12;

type Row<'a> = (&'a str, Result<&'a Descriptor, &'a CatalogError>);

/// Prints the tools of the catalogue, and the updates that wait for approval.
pub(crate) fn list(setup: &Setup, as_json: bool) -> anyhow::Result<ExitCode> {
    let config = config(setup)?;
    let catalog = set_up(&config)?.compile_catalog(&config)?;
    let rows = rows(&catalog);
    if as_json {
        list_json(rows)
    } else {
        list_table(rows, config.signers.is_some())
    }
    approve::note_waiting(&config, setup);
    Ok(ExitCode::SUCCESS)
}

/// Prints one tool of the catalogue.
pub(crate) fn inspect(config: &Config, name: &str, as_json: bool) -> anyhow::Result<ExitCode> {
    let catalog = set_up(config)?.compile_catalog(config)?;
    let name = ToolName::parse(name)?;
    let Some(entry) = catalog.get(&name) else {
        bail!(
            "there is no tool `{name}` in `{}`{}: `tool list` lists the tools",
            config.catalog.display(),
            did_you_mean(name.as_str(), catalog.iter().map(|(name, _)| name.as_str()))
        );
    };
    match entry {
        CatalogEntry::Ready(tool) if as_json => print(pretty(&descriptor_json(&tool.descriptor))),
        CatalogEntry::Ready(tool) => print_descriptor(&tool.descriptor),
        CatalogEntry::Preparing(_) => bail!("the tool `{name}` was just added: try again"),
        CatalogEntry::Broken(error) => bail!("the tool `{name}` cannot be used: {error}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// The tools, and the folders that were skipped because of their names.
fn rows(catalog: &Catalog) -> impl Iterator<Item = Row<'_>> {
    let tools = catalog.iter().filter_map(|(name, entry)| match entry {
        CatalogEntry::Ready(tool) => Some((name.as_str(), Ok(&tool.descriptor))),
        CatalogEntry::Preparing(_) => None,
        CatalogEntry::Broken(error) => Some((name.as_str(), Err(&**error))),
    });
    tools.chain(catalog.misnamed_folders().map(|(name, error)| (name, Err(error))))
}

/// Prints the tools. Where signatures are required, the table has the signer of each tool, and the first digits of its
/// package's digest.
fn list_table<'a>(rows: impl Iterator<Item = Row<'a>>, is_signed: bool) {
    let plain = ["tool", "version", "files", "state", "description"];
    let signed = ["tool", "version", "files", "state", "signer", "package", "description"];
    let mut listing = Listing::new(if is_signed { &signed } else { &plain });
    for (name, tool) in rows {
        let (version, files, state, signature, description) = match tool {
            Ok(tool) => {
                let files = tool.capabilities.filesystem.as_str();
                let state = status_cell("ready", true);
                (&*tool.version, files, state, tool.signature.as_ref(), text(&tool.description))
            }
            Err(error) => ("", "", status_cell("broken", false), None, text(in_one_line(error))),
        };
        let mut cells = vec![text(name), text(version), text(files), state];
        if is_signed {
            let signer = signature.map(|signature| signature.signer.as_str()).unwrap_or_default();
            let package = signature.map(|signature| signature.package.to_string()).unwrap_or_default();
            cells.extend([text(signer), text(package.get(..SHORT_DIGEST).unwrap_or_default())]);
        }
        cells.push(description);
        listing.row(cells);
    }
    listing.show(std::io::stdout());
}

/// Joins the lines of a parser's or compiler's message.
fn in_one_line(error: &CatalogError) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn list_json<'a>(rows: impl Iterator<Item = Row<'a>>) {
    let tools = rows.map(|(name, tool)| match tool {
        Ok(tool) => descriptor_json(tool),
        Err(error) => json!({ "name": name, "error": error.to_string() }),
    });
    print(pretty(&tools.collect()));
}

fn print_descriptor(tool: &Descriptor) {
    let DeclaredCapabilities { filesystem, effects, network, requests, secrets, limits, calls } =
        &tool.capabilities;
    let limit_text = |row: &LimitRow| {
        limits[row.limit].map_or_else(|| "the executor's ceiling".to_owned(), |amount| row.format(amount))
    };
    let declared = rows_set_by(Layer::Tool);
    let (of_calls, of_runs) = declared.partition::<Vec<_>, _>(|row| row.group == Group::Calls);
    print(format_args!("{} {}: {}\n", tool.name, one_line(&tool.version), one_line(&tool.description)));
    if let Some(title) = &tool.title {
        print(format_args!("title      {}", one_line(title)));
    }
    print(format_args!("contract   {}", tool.contract.as_str()));
    print(format_args!("sha256     {}", tool.digest));
    if let Some(ToolSignature { signer, package, expires_at }) = &tool.signature {
        let until = expires_at.map(|at| format!(", until {}", format_seconds(at))).unwrap_or_default();
        print(format_args!("signed by  {signer}{until}"));
        print(format_args!("package    sha256:{package}"));
    }
    print(format_args!("files      {}", filesystem.as_str()));
    if let Some(effects) = effects.unless_direct() {
        print(format_args!("effects    {}", effects.as_str()));
    }
    print(format_args!("network    {}", if *network { "yes" } else { "no" }));
    for request in requests {
        print(format_args!("           {request}"));
    }
    for secret in secrets {
        print(format_args!("secret     {secret}"));
    }
    for row in of_runs {
        print(format_args!("{:<10} {}", row.name(), limit_text(row)));
    }
    if !calls.is_empty() {
        let counts = of_calls.into_iter().map(|row| {
            let words = if row.limit == Limit::Calls { row.resource } else { row.summary };
            format!("{} {words}", limit_text(row))
        });
        print(format_args!("calls      {}", calls.to_names().join(", ")));
        print(format_args!("           {}", counts.collect::<Vec<_>>().join(", ")));
    }
    print(format_args!("idempotent {}", if tool.is_idempotent { "yes" } else { "not declared" }));
    print(format_args!("arguments  {}", pretty(&tool.arguments_schema)));
    if let Some(schema) = &tool.result_schema {
        print(format_args!("result     {}", pretty(schema)));
    }
}

fn descriptor_json(tool: &Descriptor) -> Value {
    serde_json::from_str(a2g_wire::a2g::encode::tool(tool).get()).unwrap_or(Value::Null)
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
