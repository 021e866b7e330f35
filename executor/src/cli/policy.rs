//! `policy`: the policies in Cedar of the built-in governor, before they are in force. Nothing here runs a tool or changes
//! a decision.

mod arguments;
mod check;
mod convert;
mod diff;
mod replay;
mod suggest;
mod test;

pub(super) use arguments::{POLICY, PolicyCommand};

use super::UsageError;
use super::arguments::Setup;
use super::log::start_logging;
use super::output::{note, one_line, print};
use super::setup::{ToolRuntime, check_containment, config};
use a2g_config::Config;
use a2g_core::catalog::CatalogEntry;
use a2g_policy::{CedarSet, PolicySources, schema_text};
use a2g_types::tool::Descriptor;
use anyhow::bail;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(super) fn main(command: PolicyCommand) -> anyhow::Result<ExitCode> {
    start_logging("error");
    match command {
        PolicyCommand::Schema(setup) => {
            print(schema_text(&Workplace::of(&setup)?.tools).trim_end());
            Ok(ExitCode::SUCCESS)
        }
        PolicyCommand::Check { setup, path } => check::check(&Workplace::of(&setup)?, path.as_deref()),
        PolicyCommand::Convert { setup, path, to } => {
            convert::convert(&Workplace::of(&setup)?, &path, to.as_deref())
        }
        PolicyCommand::Test { setup, files } => test::test(&Workplace::of(&setup)?, &files),
        PolicyCommand::Diff { setup, old, new, calls } => {
            diff::diff(&Workplace::of(&setup)?, &old, &new, calls)
        }
        PolicyCommand::Replay { setup, since, policies, journal } => {
            replay::replay(&Workplace::of(&setup)?, &replay::ReplayOptions { since, policies, journal })
        }
        PolicyCommand::Suggest { setup, agent, since, journal, calls } => {
            let options = suggest::SuggestOptions { agent, since, journal, calls };
            suggest::suggest(&Workplace::of(&setup)?, &options)
        }
    }
}

/// The configuration, and the tools that policies may name.
struct Workplace {
    config: Config,
    /// By name.
    tools: Vec<Descriptor>,
}

impl Workplace {
    fn of(setup: &Setup) -> anyhow::Result<Self> {
        let config = config(setup)?;
        let runtime =
            ToolRuntime::new(&config, 1, None, check_containment(&config, None)?, |text| note(text))?;
        let catalog = runtime.compile_catalog(&config)?;
        let mut tools = Vec::new();
        for (name, entry) in catalog.iter() {
            match entry {
                CatalogEntry::Ready(tool) => tools.push(tool.descriptor.clone()),
                CatalogEntry::Preparing(_) => {}
                CatalogEntry::Broken(error) => {
                    note(format_args!(
                        "`{name}` is left out, because it cannot be used: {}",
                        one_line(error)
                    ));
                }
            }
        }
        Ok(Self { config, tools })
    }

    /// The policies of a folder, of one file of it with its entities, or else of the configured folder.
    fn sources(&self, path: Option<&Path>) -> anyhow::Result<PolicySources> {
        let Some(path) = path.or(self.config.policies.as_deref()) else {
            bail!(UsageError(
                "name a folder or a file of policies, or configure a folder (`governor.policies`)".to_owned()
            ));
        };
        if path.is_dir() {
            return Ok(PolicySources::read(path)?);
        }
        let (folder, name) = folder_and_name(path)?;
        let mut sources = PolicySources::read(&folder)?;
        sources.files.retain(|file| file.name == name);
        if sources.files.is_empty() {
            bail!(UsageError(format!(
                "there is no file of policies `{}`: its name ends in `.cedar`",
                path.display()
            )));
        }
        Ok(sources)
    }

    fn compile(&self, sources: &PolicySources) -> anyhow::Result<CedarSet> {
        Ok(CedarSet::compile(sources, &self.tools)?)
    }
}

/// The folder of a file, and its name.
fn folder_and_name(path: &Path) -> anyhow::Result<(PathBuf, String)> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        bail!(UsageError(format!("`{}` names no file", path.display())));
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((folder.to_owned(), name.to_owned()))
}
