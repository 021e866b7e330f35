//! `tool`: the catalogue (`list`, `inspect`, `add`, `approve`, `reject`, `allow`, `prepare`), registries
//! (`push`, `sync`), and the commands of a tool's author, one file each.

mod add;
mod allow;
mod approve;
mod arguments;
mod build;
mod check;
mod client;
mod dev;
mod difference;
mod edit;
mod language;
mod list;
mod mcp;
mod new;
mod openapi;
mod packages;
mod prepare;
mod registry;
mod replay;
mod science;
mod sign;
mod suggest;
mod test;
mod toolchain;

pub use arguments::ToolCommand;

use a2g_command::UsageError;
use a2g_command::output::{note, one_line};
use a2g_command::setup::{ToolRuntime, check_containment, config};
use a2g_config::Config;
use a2g_core::catalog::{CheckedTool, ToolManifest};
use anyhow::bail;
use arguments::{Packages, Tool};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs one command.
///
/// # Errors
/// If the command fails. The error is a message for the user.
pub fn main(command: ToolCommand) -> anyhow::Result<ExitCode> {
    match command.command {
        Tool::List { setup, json } => list::list(&setup, json),
        Tool::Inspect { setup, name, json } => list::inspect(&config(&setup)?, &name, json),
        Tool::Add { setup, registry, path: Some(path), python: None, wheel: _, packages: _ } => {
            add::add(&setup, &registry, &path)
        }
        Tool::Add { setup, registry: _, path: None, python: None, wheel: _, packages } => {
            add::add_packages(&setup, &packages)
        }
        Tool::Add { setup, registry: _, path: _, python: Some(Packages::Science), wheel, packages: _ } => {
            add::add_python(&setup, wheel.as_deref())
        }
        Tool::Push { setup, registry, address, folder, installed } => {
            registry::push(&setup, &registry, &address, &folder, installed.as_deref())?;
            Ok(ExitCode::SUCCESS)
        }
        Tool::Prepare { setup } => prepare::prepare(&config(&setup)?),
        Tool::Sync { setup, registry: _, name: Some(name), write } => mcp::sync(&setup, &name, write),
        Tool::Sync { setup, registry, name: None, write: _ } => registry::sync(&setup, &registry),
        Tool::Sign { setup, folder, key, expires_days } => {
            sign::sign(&folder, &key, expires_days, &config(&setup)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Tool::Approve { setup, name, digest } => approve::approve(&setup, &name, digest.as_deref()),
        Tool::Reject { setup, name } => approve::reject(&config(&setup)?, &name),
        Tool::Allow { setup, options } => allow::allow(&setup, &options),
        Tool::New { setup, name, language, sdk, api } => {
            match (&api.openapi, &api.mcp, language) {
                (Some(document), _, _) => openapi::new(&name, document, &api)?,
                (None, Some(url), _) => mcp::new(&setup, &name, url, &api)?,
                (None, None, Some(language)) => new::new(&name, language, sdk.as_deref())?,
                (None, None, None) => {
                    bail!(UsageError("name the language of the tool: `--language LANGUAGE`".to_owned()))
                }
            }
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
