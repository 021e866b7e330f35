//! `tool approve` and `tool reject`, and the report of `tool add` on a waiting update.
//!
//! An approval covers exactly the update that was shown. On a terminal, the update stays in memory until the answer. In
//! a script, the approval names the digest that was printed with the difference.

use crate::difference::{self, Extent};
use crate::set_up;
use a2g_command::UsageError;
use a2g_command::layout::wrap;
use a2g_command::output::{can_ask, confirm, note, one_line, print};
use a2g_command::setup::{Setup, config, recorded_definitions};
use a2g_config::Config;
use a2g_core::catalog::{Change, Update, reject as reject_update, waiting_updates};
use a2g_types::ident::{ToolName, did_you_mean};
use a2g_types::tool::{Descriptor, Digest};
use anyhow::{Context as _, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The exit code if an update waits or was not approved.
const NOT_APPROVED: u8 = 3;
/// The line width of this command's messages. Commands to copy and digests are not wrapped.
const MAX_COLUMNS: usize = 80;

/// The options that name the catalogue, for commands to copy.
pub(crate) fn catalogue_options(Setup { config, tools }: &Setup) -> String {
    let option = |name: &str, path: &Option<PathBuf>| Some(format!(" {name} {}", quoted(path.as_ref()?)));
    [option("--config", config), option("--tools", tools)].into_iter().flatten().collect()
}

/// A path as a word of a shell.
pub(crate) fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    if is_plain { path } else { format!("'{}'", one_line(path.replace('\'', r"'\''"))) }
}

/// Reports a waiting update and its changes.
pub(crate) fn print_waiting(update: &Update, setup: &Setup) -> ExitCode {
    let name = &update.tool().manifest.name;
    print_difference(update, Extent::Summary);
    let parts = part_names(update.changes());
    let text = format!("{name} was not updated: the update changes {parts} and waits for approval:");
    note(wrap("", &text, MAX_COLUMNS));
    let options = catalogue_options(setup);
    note(format_args!(
        "  a2g-executor tool approve {name}{options}\n  a2g-executor tool reject {name}{options}"
    ));
    ExitCode::from(NOT_APPROVED)
}

/// Shows the update of a tool, and installs it after the approval of a person at the terminal or by `digest`.
pub(crate) fn approve(setup: &Setup, name: &str, digest: Option<&str>) -> anyhow::Result<ExitCode> {
    let name = ToolName::parse(name)?;
    let config = &config(setup)?;
    let options = catalogue_options(setup);
    let runtime = set_up(config)?;
    let definitions = recorded_definitions(config);
    let trust = runtime.trust();
    let update = runtime.installer(&config.catalog, &trust, &definitions).find_update(&name)?;
    let Some(update) = update else {
        bail!("no update of `{name}` waits for approval{}", nearest(config, &name));
    };
    let found = update.digest();
    if let Some(shown) = digest {
        let parsed = Digest::parse(shown.strip_prefix("sha256:").unwrap_or(shown));
        let shown = parsed.map_err(|reason| UsageError(format!("`--digest` {reason}")))?;
        if shown != found {
            print_difference(&update, Extent::Full);
            note(format_args!(
                "refused: the waiting update of {name} is not\n  sha256:{shown}\nto approve the one above:\n  \
                 a2g-executor tool approve {name} --digest sha256:{found}{options}"
            ));
            return Ok(ExitCode::from(NOT_APPROVED));
        }
    } else {
        print_difference(&update, Extent::Full);
        if !can_ask() {
            note(format_args!(
                "to approve exactly this:\n  a2g-executor tool approve {name} --digest sha256:{found}{options}"
            ));
            return Ok(ExitCode::from(NOT_APPROVED));
        }
        if !confirm(question(&name, &update)).context("the answer cannot be read")? {
            note(format_args!(
                "{name} is not approved; `a2g-executor tool reject {name}{options}` drops the update"
            ));
            return Ok(ExitCode::from(NOT_APPROVED));
        }
    }
    let version = one_line(&update.tool().tool.descriptor.version);
    update.approve(&config.catalog, &definitions)?;
    print(format_args!("approved {name} {version} (sha256:{found})"));
    note("note: a running server loads it at SIGHUP, or at its next start");
    Ok(ExitCode::SUCCESS)
}

/// Drops the waiting update of a tool.
pub(crate) fn reject(config: &Config, name: &str) -> anyhow::Result<ExitCode> {
    let name = ToolName::parse(name)?;
    if !reject_update(&name, &config.catalog, &recorded_definitions(config))? {
        bail!("no update of `{name}` waits for approval{}", nearest(config, &name));
    }
    print(format_args!("rejected the update of {name}; the installed version is unchanged"));
    Ok(ExitCode::SUCCESS)
}

/// Prints the waiting updates, below a list of tools.
pub(crate) fn note_waiting(config: &Config, setup: &Setup) {
    let options = catalogue_options(setup);
    for name in waiting_updates(&config.catalog) {
        note(format_args!("note: an update of {name} waits for `a2g-executor tool approve {name}{options}`"));
    }
}

/// A suggestion of a waiting update with a similar name, as the end of a sentence.
fn nearest(config: &Config, name: &ToolName) -> String {
    let waiting = waiting_updates(&config.catalog);
    did_you_mean(name.as_str(), waiting.iter().map(ToolName::as_str))
}

fn print_difference(update: &Update, extent: Extent) {
    let Descriptor { name, version, digest, .. } = &update.tool().tool.descriptor;
    print(format_args!("{name} {}, the accepted definition (-) and the new one (+):\n", one_line(version)));
    difference::lines(update.changes(), extent).into_iter().for_each(print);
    if update.changes().is_empty() {
        print("no change to the accepted definition");
    }
    print(format_args!("\nmodule   sha256:{digest}\npackage  sha256:{}", update.digest()));
}

fn question(name: &ToolName, update: &Update) -> String {
    let parts = part_names(update.changes());
    let what = if parts.is_empty() { String::new() } else { format!(" with the changed {parts}") };
    format!("Approve {name}{what}?")
}

/// The parts that need approval.
fn part_names(changes: &[Change]) -> String {
    let changes = changes.iter().filter(|change| change.kind.needs_approval());
    changes.map(|change| change.part.to_string()).collect::<Vec<_>>().join(", ")
}
