//! `tool`: the catalogue (`list`, `inspect`, `add`, `approve`, `reject`, `prepare`), registries (`push`, `sync`), and the
//! commands of a tool's author, one file each.

mod approve;
mod build;
mod check;
mod dev;
mod difference;
mod language;
mod new;
mod prepare;
mod registry;
mod sign;
mod suggest;
mod test;
mod toolchain;

pub(super) use language::Language;

use super::arguments::Tool;
use super::layout::{Listing, status_cell, text};
use super::log::start_logging;
use super::output::{note, one_line, print};
use super::setup::{ToolRuntime, check_containment, config, recorded_definitions};
use a2g_core::catalog::{
    Catalog, CatalogEntry, CatalogError, CheckedTool, Installation, Reference, ToolManifest, package_folder,
};
use a2g_server::config::Config;
use a2g_types::clock::format_seconds;
use a2g_types::ident::{ToolName, did_you_mean};
use a2g_types::tool::{DeclaredCapabilities, Descriptor, ToolSignature};
use anyhow::bail;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(super) fn main(command: Tool) -> anyhow::Result<ExitCode> {
    start_logging("error");
    match command {
        Tool::List { setup, json } => {
            let config = config(&setup)?;
            let catalog = set_up(&config)?.compile_catalog(&config)?;
            let rows = rows(&catalog);
            if json {
                list_json(rows)
            } else {
                list_table(rows, config.signers.is_some())
            }
            approve::note_waiting(&config, &setup);
            Ok(ExitCode::SUCCESS)
        }
        Tool::Inspect { setup, name, json } => {
            let config = config(&setup)?;
            let catalog = set_up(&config)?.compile_catalog(&config)?;
            let name = ToolName::parse(&name)?;
            let Some(entry) = catalog.get(&name) else {
                bail!(
                    "there is no tool `{name}` in `{}`{}: `tool list` lists the tools",
                    config.catalog.display(),
                    did_you_mean(name.as_str(), catalog.iter().map(|(name, _)| name.as_str()))
                );
            };
            match entry {
                CatalogEntry::Ready(tool) if json => print(pretty(&descriptor_json(&tool.descriptor))),
                CatalogEntry::Ready(tool) => inspect(&tool.descriptor),
                CatalogEntry::Preparing(_) => bail!("the tool `{name}` was just added: try again"),
                CatalogEntry::Broken(error) => bail!("the tool `{name}` cannot be used: {error}"),
            }
            Ok(ExitCode::SUCCESS)
        }
        Tool::Add { setup, registry, path } => {
            let config = config(&setup)?;
            let tools_runtime = set_up(&config)?;
            let trust = tools_runtime.trust();
            let address = path.to_str().filter(|text| Reference::is_address(text));
            let pulled = address
                .map(|address| {
                    registry::pull(address, &config, &registry, tools_runtime.cache.folder(), &trust)
                })
                .transpose()?;
            let source = match &pulled {
                Some(pulled) => pulled.folder().to_owned(),
                None if path.exists() => package_folder(&path)?,
                None => bail!(
                    "`{}` does not exist: name the folder of a tool, a module, or the address of a tool in a registry \
                     (`oci://REGISTRY/NAME:TAG`)",
                    path.display()
                ),
            };
            if let Ok(manifest) = ToolManifest::read(&path.join("tool.toml"))
                && let Some(remark) = toolchain::stale_module_remark(&path, &manifest)
            {
                note(format_args!("note: {remark}"));
            }
            let definitions = recorded_definitions(&config);
            let installer = tools_runtime.installer(&config.catalog, &trust, &definitions);
            let checked = installer.check(&source)?;
            if let Some(pulled) = &pulled {
                pulled.check(&checked)?;
            }
            let replaced = replaced_tool(&config.catalog, &checked);
            let checked = match installer.install(checked)? {
                Installation::Installed(checked) => checked,
                Installation::Waits(update) => return Ok(approve::print_waiting(&update, &setup)),
            };
            let Descriptor { name, version, digest, signature, .. } = &checked.tool.descriptor;
            let version = one_line(version);
            print(format_args!("added {name} {version} (sha256 {digest}) to {}", config.catalog.display()));
            if let Some(pulled) = &pulled {
                print(format_args!("from {}", pulled.reference));
            }
            if let Some(ToolSignature { signer, package, expires_at: _ }) = signature {
                print(format_args!("signed by {signer} (package sha256:{package})"));
            }
            if let Some(replaced) = replaced {
                note(format_args!("note: it replaces {replaced}"));
            }
            if let Some(remark) = check::start_memory_remark(&checked, &config) {
                note(format_args!("note: {remark}"));
            }
            if path.is_file() {
                // A bare module has no `tool.toml`, and the generated one grants no files.
                let manifest = config.catalog.join(name.as_str()).join("tool.toml");
                print(format_args!(
                    "it has no access to files: if it needs any, change `filesystem = \"none\"` in `{}` to \"read\" or \
                     \"read-write\"",
                    manifest.display()
                ));
            }
            Ok(ExitCode::SUCCESS)
        }
        Tool::Push { setup, registry, address, folder, installed } => {
            registry::push(&setup, &registry, &address, &folder, installed.as_deref())?;
            Ok(ExitCode::SUCCESS)
        }
        Tool::Prepare { setup } => prepare::prepare(&config(&setup)?),
        Tool::Sync { setup, registry } => registry::sync(&setup, &registry),
        Tool::Sign { setup, folder, key, expires_days } => {
            sign::sign(&folder, &key, expires_days, &config(&setup)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Tool::Approve { setup, name, digest } => approve::approve(&setup, &name, digest.as_deref()),
        Tool::Reject { setup, name } => approve::reject(&config(&setup)?, &name),
        Tool::New { name, language, sdk } => {
            new::new(&name, language, sdk.as_deref())?;
            Ok(ExitCode::SUCCESS)
        }
        Tool::Build { setup, folder } => {
            build::build(&folder, &config(&setup)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Tool::Check { setup, path } => {
            check::check(&path, &config(&setup)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Tool::Test { setup, folder, suggest } => test::test(&folder, config(&setup)?, suggest),
        Tool::Dev { setup, folder } => {
            let option =
                setup.config.iter().flat_map(|file| ["--config".into(), file.clone().into_os_string()]);
            dev::dev(&folder, &option.collect::<Vec<_>>())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The path of the `tool.toml` in a tool's folder.
fn find_manifest(folder: &Path) -> anyhow::Result<PathBuf> {
    let path = folder.join("tool.toml");
    match path.symlink_metadata() {
        Ok(_) if path.is_file() => Ok(path),
        Ok(_) => bail!("`{}` is not a file", path.display()),
        Err(_) if folder.is_file() => bail!("`{}` is a file: name the folder of a tool", folder.display()),
        Err(_) => bail!(
            "`{}` is missing: `a2g-executor tool new NAME --language LANGUAGE` makes a folder with one",
            path.display()
        ),
    }
}

/// The tool in the catalogue that has the name of `checked` and another module, as a message names it.
fn replaced_tool(catalog: &Path, checked: &CheckedTool) -> Option<String> {
    let folder = catalog.join(checked.manifest.name.as_str());
    let old = ToolManifest::read(&folder.join("tool.toml")).ok()?;
    let digest = old.sha256.filter(|digest| checked.manifest.sha256.as_ref() != Some(digest))?;
    Some(format!("another tool of this name: {} {} (sha256 {digest})", old.name, one_line(&old.version)))
}

/// Sets up the compilation of tools, and the processes in which they describe themselves.
fn set_up(config: &Config) -> anyhow::Result<ToolRuntime> {
    ToolRuntime::new(config, 1, None, check_containment(config, None)?, |text| note(text))
}

/// The number of digits of a package's digest in a table. `--json` and `tool inspect` show all.
const SHORT_DIGEST: usize = 12;

type Row<'a> = (&'a str, Result<&'a Descriptor, &'a CatalogError>);

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

fn inspect(tool: &Descriptor) {
    let Descriptor {
        name,
        title,
        version,
        description,
        contract,
        digest,
        arguments_schema,
        result_schema,
        is_idempotent,
        capabilities,
        signature,
    } = tool;
    let DeclaredCapabilities { filesystem, network, memory, cpu, timeout, calls } = capabilities;
    let limit_text = |limit: Option<String>| limit.unwrap_or_else(|| "the executor's ceiling".to_owned());
    print(format_args!("{name} {}: {}\n", one_line(version), one_line(description)));
    if let Some(title) = title {
        print(format_args!("title      {}", one_line(title)));
    }
    print(format_args!("contract   {}", contract.as_str()));
    print(format_args!("sha256     {digest}"));
    if let Some(ToolSignature { signer, package, expires_at }) = signature {
        let until = expires_at.map(|at| format!(", until {}", format_seconds(at))).unwrap_or_default();
        print(format_args!("signed by  {signer}{until}"));
        print(format_args!("package    sha256:{package}"));
    }
    print(format_args!("files      {}", filesystem.as_str()));
    print(format_args!("network    {}", if *network { "yes" } else { "no" }));
    print(format_args!("memory     {}", limit_text(memory.map(|limit| limit.to_string()))));
    print(format_args!("cpu        {}", limit_text(cpu.map(|limit| limit.to_string()))));
    print(format_args!("timeout    {}", limit_text(timeout.map(|limit| limit.to_string()))));
    if !calls.targets.is_empty() {
        let count = |max: Option<u32>| limit_text(max.map(|max| max.to_string()));
        print(format_args!("calls      {}", calls.targets.to_names().join(", ")));
        print(format_args!(
            "           {} calls, {} at once",
            count(calls.max_calls),
            count(calls.max_parallel)
        ));
    }
    print(format_args!("idempotent {}", if *is_idempotent { "yes" } else { "not declared" }));
    print(format_args!("arguments  {}", pretty(arguments_schema)));
    if let Some(schema) = result_schema {
        print(format_args!("result     {}", pretty(schema)));
    }
}

fn descriptor_json(tool: &Descriptor) -> Value {
    serde_json::from_str(a2g_wire::a2g::encode::tool(tool).get()).unwrap_or(Value::Null)
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
