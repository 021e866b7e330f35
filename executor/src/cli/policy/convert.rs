//! `policy convert`: policies in JSON, written in Cedar.

use super::Workplace;
use crate::cli::UsageError;
use crate::cli::output::{note, print};
use a2g_govern::local::{PolicySet, RiskThresholds, only_reads};
use a2g_policy::{CedarSet, PolicyFile, PolicySources, Surroundings, Thresholds};
use a2g_types::ident::SecretName;
use anyhow::{Context as _, bail};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// The name of the file that is written.
const FILE: &str = "policies.cedar";

pub(super) fn convert(workplace: &Workplace, path: &Path, to: Option<&Path>) -> anyhow::Result<ExitCode> {
    let policies = if path.is_dir() { PolicySet::load(path)? } else { PolicySet::load_file(path)? };
    if policies.cedar().is_some() {
        bail!(UsageError(format!("the policies of `{}` are in Cedar already", path.display())));
    }
    let policies = policies.iter().map(|(policy, _from)| policy.clone()).collect::<Vec<_>>();
    let RiskThresholds { conditions_from, escalate_from, deny_from } = workplace.config.risk;
    let secrets = workplace.config.secrets.iter().map(|secret| secret.binding.name().clone());
    let secrets = secrets.collect::<BTreeSet<SecretName>>();
    let tools = workplace.tools.iter().collect::<Vec<_>>();
    let text = a2g_policy::convert(
        &policies,
        Surroundings {
            thresholds: Thresholds {
                conditions_from: Thresholds::hundredths(conditions_from),
                escalate_from: Thresholds::hundredths(escalate_from),
                deny_from: Thresholds::hundredths(deny_from),
            },
            secrets: &secrets,
            tools: &tools,
            only_reads,
        },
    )?;
    let file = PolicyFile { name: FILE.to_owned(), text: text.clone() };
    let sources = PolicySources { files: vec![file], ..PolicySources::default() };
    CedarSet::compile(&sources, &workplace.tools).context("the converted policies do not compile")?;
    match to {
        Some(folder) => {
            let path = write(folder, &text)?;
            note(format_args!("written: {path}"));
        }
        None => print(text.trim_end()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the file into a folder, which is created if it is missing, and returns the path.
fn write(folder: &Path, text: &str) -> anyhow::Result<String> {
    let path = folder.join(FILE);
    let shown = path.display().to_string();
    std::fs::create_dir_all(folder).with_context(|| format!("`{}` cannot be created", folder.display()))?;
    let mut file = std::fs::File::create_new(&path)
        .with_context(|| format!("`{shown}` cannot be written; name a folder that does not have it"))?;
    file.write_all(text.as_bytes()).with_context(|| format!("`{shown}` cannot be written"))?;
    Ok(shown)
}
