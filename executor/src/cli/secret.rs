//! `secret list` and `secret check`: the secrets of a configuration, without their values.

use super::arguments::SecretCommand;
use super::layout::wrap;
use super::output::{columns, list, one_line, print};
use super::serve::other_journals;
use super::setup::{config, open_vault};
use a2g_capability::{Placeholder, SecretBinding};
use a2g_config::{Config, SecretSetting};
use a2g_journal::history::{Filter, History, ReceiptEntry};
use a2g_secrets::{OAuthClient, SecretSource};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::error_chain::ErrorChain;
use a2g_types::ident::{IntentId, SecretName};
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use time::{Duration, OffsetDateTime};

/// Maximum number of runs of one journal in which the last use of secrets is looked for.
const MAX_RUNS: u64 = 1000;

pub(super) fn main(command: SecretCommand) -> anyhow::Result<ExitCode> {
    match command {
        SecretCommand::List(setup) => {
            list_secrets(&config(&setup)?);
            Ok(ExitCode::SUCCESS)
        }
        SecretCommand::Check(setup) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.context("no runtime can be started")?.block_on(check(&config(&setup)?))
        }
    }
}

/// The last use of a secret, as the receipt of its run says.
struct LastUse {
    at: OffsetDateTime,
    tool: String,
    intent: IntentId,
    version: Option<String>,
}

/// The last uses of secrets in the newest runs.
#[derive(Default)]
struct LastUses {
    /// The number of runs that were looked at.
    runs: u64,
    uses: BTreeMap<SecretName, LastUse>,
}

impl LastUses {
    /// Looks at the journal of a configuration, and at those of other processes in its folder.
    fn find(journal: &Path) -> anyhow::Result<Self> {
        let mut found = Self::default();
        let own = Some(journal.to_owned()).filter(|path| path.exists());
        for path in own.into_iter().chain(other_journals(journal)) {
            let add = |entry: ReceiptEntry| found.add(&entry);
            History::open(&path)?.receipts(&Filter::default(), false, Some(MAX_RUNS), add)?;
        }
        Ok(found)
    }

    fn add(&mut self, entry: &ReceiptEntry) -> anyhow::Result<()> {
        self.runs = self.runs.saturating_add(1);
        let network = entry.parse_receipt()?.outcome.usage.network_used;
        for used in network.into_iter().flat_map(|network| network.secrets).filter(|used| used.uses > 0) {
            if self.uses.get(&used.name).is_some_and(|known| known.at >= entry.ended) {
                continue;
            }
            let last = LastUse {
                at: entry.ended,
                tool: entry.tool.clone(),
                intent: entry.intent,
                version: used.versions.last().cloned(),
            };
            self.uses.insert(used.name, last);
        }
        Ok(())
    }

    fn describe(&self, secret: &SecretName, now: OffsetDateTime) -> String {
        let Some(LastUse { at, tool, intent, version }) = self.uses.get(secret) else {
            return format!("not in the last {} runs", self.runs);
        };
        let version = version.as_ref().map(|version| format!(", version {version}")).unwrap_or_default();
        format!("{} ago by `{tool}`, run {intent}{version}", age(*at, now))
    }
}

fn list_secrets(config: &Config) {
    let now = SystemClock.now();
    let found = LastUses::find(&config.journal);
    let uses = found.map_err(|error| format!("unknown: {}", ErrorChain(error.as_ref())));
    for setting in &config.secrets {
        let name = setting.binding.name();
        let last = uses.as_ref().map_or_else(String::clone, |uses| uses.describe(name, now));
        describe(setting, &last, now);
    }
}

fn describe(SecretSetting { binding, source }: &SecretSetting, last_use: &str, now: OffsetDateTime) {
    let width = columns(&std::io::stdout());
    let row = |label: &str, text: &str| print(wrap(&format!("  {label:<9} "), &one_line(text), width));
    print(binding.name());
    row("source", &source.to_string());
    row("value", &value_age(source, now));
    row("last use", last_use);
    row("place", &binding.place().to_string());
    row("tools", &list(binding.tools()));
    row("agents", &agents(binding));
    row("uses", &format!("at most {} a run", binding.max_uses()));
    if let Some(variable) = binding.placeholder().map(Placeholder::variable) {
        row("variable", &format!("{variable}, with a placeholder"));
    }
    binding.requests().iter().for_each(|request| row("request", &request.to_string()));
}

/// The age of a value, as far as it is known without reading it.
fn value_age(source: &SecretSource, now: OffsetDateTime) -> String {
    match source {
        SecretSource::File(path) => format!("the file {}", change_age(path, now)),
        SecretSource::Environment(_) => "as it was at the start of the server".to_owned(),
        SecretSource::Command { refresh, .. } => format!("at most {} s old", refresh.as_secs()),
        SecretSource::OAuth(OAuthClient { client_secret_file, .. }) => {
            format!("a token; the client's secret {}", change_age(client_secret_file, now))
        }
    }
}

fn change_age(path: &Path, now: OffsetDateTime) -> String {
    let changed = std::fs::metadata(path).and_then(|metadata| metadata.modified());
    match changed {
        Ok(at) => format!("changed {} ago", age(at.into(), now)),
        Err(error) => format!("cannot be looked at: {error}"),
    }
}

/// A time span in its largest whole unit.
fn age(since: OffsetDateTime, now: OffsetDateTime) -> String {
    let age = (now - since).max(Duration::ZERO);
    match (age.whole_days(), age.whole_hours(), age.whole_minutes()) {
        (0, 0, 0) => format!("{} s", age.whole_seconds()),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, _) => format!("{hours} h"),
        (1, _, _) => "1 day".to_owned(),
        (days, _, _) => format!("{days} days"),
    }
}

fn agents(binding: &SecretBinding) -> String {
    binding.agents().map_or_else(|| "every agent".to_owned(), list)
}

async fn check(config: &Config) -> anyhow::Result<ExitCode> {
    let mut has_failed = false;
    let Some(vault) = open_vault(config)? else {
        print("no secrets are configured (`[[secret]]`)");
        return Ok(ExitCode::SUCCESS);
    };
    for SecretSetting { binding, source } in &config.secrets {
        let name = binding.name();
        match vault.read(name).await {
            Ok(value) => {
                print(format_args!("{name}: version {}, {}", value.version(), one_line(source)));
                if value.is_short() {
                    print(format_args!(
                        "{name}: the value has less than 16 bytes, and could be found by guesses: use a longer one"
                    ));
                }
            }
            Err(error) => {
                has_failed = true;
                print(format_args!("{name}: {}", one_line(error)));
            }
        }
    }
    Ok(ExitCode::from(u8::from(has_failed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn an_age_has_one_unit() {
        let now = datetime!(2026-12-01 12:00 UTC);
        for (seconds, text) in [
            (-5, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3599, "59 min"),
            (3600, "1 h"),
            (86_399, "23 h"),
            (86_400, "1 day"),
            (172_800, "2 days"),
        ] {
            assert_eq!(age(now - Duration::seconds(seconds), now), text);
        }
    }
}
