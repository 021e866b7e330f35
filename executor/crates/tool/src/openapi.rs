//! `tool new --openapi`: a tool for each chosen operation of an OpenAPI document.
//!
//! ```text
//! document ─▶ operations ─▶ route: exactly one method, host and path template ─┐
//!                           parameters, body ─▶ schema of the arguments         ├─▶ NAME_OPERATION/tool.toml
//!                           answers ─▶ schema of the result, pages              │   and a copy of the client
//!                           security scheme ─▶ the secret and its place ────────┘
//! ```
//! Everything that is read is another one's text: it is bounded, cleaned, and checked as `tool add` checks a tool. What
//! cannot be a tool is refused by name.

mod document;
mod make;
mod operation;
mod parameters;
mod response;
mod schema;
mod security;
// Links to files of the client, so that it reads what is written here.
mod settings;
mod uri;

use crate::arguments::ApiOptions;
use crate::client::{self, Binding};
use a2g_command::UsageError;
use a2g_command::layout::{Listing, text, wrap};
use a2g_command::output::{note, one_line, print};
use a2g_core::catalog::ToolManifest;
use a2g_types::ident::{SecretName, ToolName, did_you_mean, excerpt};
use anyhow::bail;
use document::{Document, clean, text_member};
use make::{MadeTool, make};
use operation::Operation;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The maximum length of a summary in the list, in characters.
const MAX_SUMMARY_CHARS: usize = 100;
/// The line width of this command's messages. Commands to copy are not wrapped.
const MAX_COLUMNS: usize = 80;
/// The number of tools whose next commands are printed.
const MAX_SHOWN: usize = 3;

/// Writes a folder for each chosen operation of the document at `path`, or lists its operations.
pub(crate) fn new(prefix: &str, path: &Path, options: &ApiOptions) -> anyhow::Result<()> {
    ToolName::parse(prefix).map_err(|error| UsageError(error.to_string()))?;
    for name in &options.secrets {
        SecretName::parse(name).map_err(|error| UsageError(error.to_string()))?;
    }
    let document = Document::read(path)?;
    let operations = operation::list(&document)?;
    if options.operations.is_empty() {
        show(&operations);
        return Ok(());
    }
    let chosen = choose(&operations, &options.operations)?;
    let module = client::find_module()?;
    let mut made = Vec::new();
    let mut refused = Vec::new();
    for operation in chosen {
        match make(&document, &operations, operation, prefix, options) {
            Ok(tool) => made.push(tool),
            Err(error) => refused.push(format!("`{}`: {error:#}", excerpt(&operation.id))),
        }
    }
    check_names(&made)?;
    for MadeTool { manifest, .. } in &made {
        client::check_folder(manifest.name.as_str(), options.force)?;
    }
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    for MadeTool { manifest, remarks, .. } in &made {
        client::write_tool(manifest, &format!("an operation of {file}"), &module)?;
        print(format_args!("made {}: {}", manifest.name, one_line(first_request(manifest))));
        remarks.iter().for_each(|remark| note(format_args!("note: {}: {remark}", manifest.name)));
    }
    if !made.is_empty() {
        show_next(prefix, &made);
    }
    match refused.as_slice() {
        [] => Ok(()),
        refused => bail!("no tool was made of {}", refused.join("\nnor of ")),
    }
}

/// Lists the operations.
fn show(operations: &[Operation<'_>]) {
    let mut listing = Listing::new(&["operation", "request", "summary"]);
    for Operation { id, method, path, value, .. } in operations {
        let summary = text_member(value, "summary").or_else(|| text_member(value, "description"));
        let cells = [
            text(id),
            text(format_args!("{method} {path}")),
            text(clean(summary.unwrap_or_default(), MAX_SUMMARY_CHARS)),
        ];
        listing.row(cells);
    }
    listing.show(std::io::stdout());
    note("`--operations ID,ID` makes a tool of each of these");
}

/// The operations with these ids.
fn choose<'o, 'a>(operations: &'o [Operation<'a>], ids: &[String]) -> anyhow::Result<Vec<&'o Operation<'a>>> {
    let mut chosen = Vec::new();
    let mut unknown = Vec::new();
    for id in ids.iter().collect::<BTreeSet<_>>() {
        match operations.iter().find(|operation| operation.id == *id) {
            Some(operation) => chosen.push(operation),
            None => {
                let known = operations.iter().map(|operation| operation.id.as_str());
                unknown.push(format!("`{}`{}", excerpt(id), did_you_mean(id, known)));
            }
        }
    }
    if unknown.is_empty() {
        return Ok(chosen);
    }
    bail!(UsageError(format!(
        "the document has no operation {}: without `--operations`, they are listed",
        unknown.join(" and ")
    )))
}

/// Refuses two operations whose tools would have one name.
fn check_names(made: &[MadeTool]) -> anyhow::Result<()> {
    let mut names = BTreeSet::new();
    for MadeTool { manifest, .. } in made {
        if !names.insert(&manifest.name) {
            bail!(
                "two of these operations would become the tool `{}`: make one of them alone, with another NAME",
                manifest.name
            );
        }
    }
    Ok(())
}

fn first_request(manifest: &ToolManifest) -> String {
    manifest.capabilities.requests.iter().map(ToString::to_string).collect()
}

/// Prints the commands that add the tools, and then the secrets that the tools need: a configuration with a secret whose
/// host is not allowed yet is refused, also by these commands.
fn show_next(prefix: &str, made: &[MadeTool]) {
    let mut secrets = BTreeMap::<&Binding, BTreeSet<String>>::new();
    for MadeTool { manifest, bindings, .. } in made {
        for binding in bindings {
            let requests = manifest.capabilities.requests.iter().map(ToString::to_string);
            secrets.entry(binding).or_default().extend(requests);
        }
    }
    say("Read their `tool.toml`, whose texts are the document's, and then:");
    for MadeTool { manifest, origin, .. } in made.iter().take(MAX_SHOWN) {
        let name = &manifest.name;
        if !manifest.examples.is_empty() {
            print(format_args!("  a2g-executor tool test {name}"));
        }
        print(format_args!("  a2g-executor tool add {name}"));
        if origin.starts_with("https://") {
            print(format_args!("  a2g-executor tool allow {name} {origin} --write"));
        }
    }
    if made.len() > MAX_SHOWN {
        print(format_args!("  … and so on for {} more", made.len() - MAX_SHOWN));
    }
    if !secrets.is_empty() {
        say(
            "\nTheir key stays in the executor. Once their host is allowed, its configuration says where the key goes:",
        );
    }
    for (binding, requests) in &secrets {
        let file = format!("secrets/{}", binding.name);
        print(format_args!("\n{}", binding.to_toml(&file, prefix, requests).trim_end()));
    }
    let names = secrets.keys().map(|binding| &binding.name).collect::<BTreeSet<_>>();
    if names.len() < secrets.len() {
        say(
            "Two of these have one name and different places: give the tools of each a secret of its own (`--secret`).",
        );
    }
    if !secrets.is_empty() && made.iter().any(|tool| tool.origin.starts_with("http://")) {
        say("A secret is sent over https only: name such a server with `--server https://HOST`.");
    }
}

fn say(text: &str) {
    note(wrap("", text, MAX_COLUMNS));
}
