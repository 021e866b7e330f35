//! `policy suggest`: the smallest policies for what an agent has used, with what they would change.
//!
//! Runs say what they used: the granted files and those that arguments name, the contacted hosts, the secrets that were
//! sent, and the measured memory and time. What narrowed them (effects, blocked files, rates, a person) stays, so a
//! suggestion does not widen. Nothing is written.

use super::Workplace;
use super::diff;
use super::replay::Replay;
use crate::cli::UsageError;
use crate::cli::journal::parse_time;
use crate::cli::output::{note, print};
use a2g_capability::{Host, Tree};
use a2g_journal::history::{History, HistoryError};
use a2g_journal::{DecidedEvent, StartedCall};
use a2g_policy::{CedarSet, PolicyFile, PolicySources, ToolUse, suggest as policies_of};
use a2g_types::call::StoredArguments;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::limit::{ClaimedLimits, Layer, Limit};
use a2g_types::outcome::{DecisionAct, End, NetworkUsage, Receipt, Usage};
use a2g_types::quantity::{CpuPercent, MemoryLimit, Timeout};
use a2g_types::tool::{CallTargets, DeclaredFilesystem, Descriptor};
use a2g_types::verdict::{Decision, Verdict};
use anyhow::bail;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use time::OffsetDateTime;

/// The factor between the longest measured run and the suggested timeout: a busy machine is slower.
const TIMEOUT_FACTOR: u32 = 10;
/// Maximum number of folders of one tool. Of more, the granted ones are taken.
const MAX_FOLDERS: usize = 16;
/// The name of the suggested file in messages.
const FILE: &str = "suggested.cedar";

/// The options of the command.
pub(super) struct SuggestOptions {
    pub(super) agent: String,
    pub(super) since: String,
    pub(super) journal: Option<PathBuf>,
    pub(super) calls: usize,
}

pub(super) fn suggest(workplace: &Workplace, options: &SuggestOptions) -> anyhow::Result<ExitCode> {
    let SuggestOptions { agent, since, journal, calls } = options;
    let agent = AgentDid::parse(agent).map_err(|error| UsageError(error.to_string()))?;
    let since = parse_time(since)?;
    let journal = journal.as_deref().unwrap_or(&workplace.config.journal);
    // What arguments name is smaller than what was granted, and may be too small: the replay says so.
    let mut last = None;
    for by_arguments in [true, false] {
        let uses = Uses::collect(workplace, journal, &agent, since, by_arguments)?;
        if uses.0.is_empty() {
            bail!(
                "{agent} has no run since then that this journal has: choose an earlier `--since`, or another agent"
            );
        }
        let text = policies_of(&agent, &uses.0);
        let file = PolicyFile { name: FILE.to_owned(), text };
        let sources = PolicySources { files: vec![file], ..PolicySources::default() };
        let set = workplace.compile(&sources)?;
        let summary = Replay::run(workplace, &set, journal, since, Some(&agent))?;
        let fits = summary.flipped() == 0;
        last = Some((sources, set, summary));
        if fits {
            break;
        }
    }
    let Some((sources, set, summary)) = last else { return Ok(ExitCode::SUCCESS) };
    sources.files.iter().for_each(|file| print(file.text.trim_end()));
    print("");
    summary.show();
    show_difference(workplace, &sources, &set, *calls)?;
    Ok(ExitCode::from(u8::from(summary.flipped() > 0)))
}

/// Says if the suggestion allows more than the policies of the configuration, if those are in Cedar.
fn show_difference(
    workplace: &Workplace,
    suggested: &PolicySources,
    set: &CedarSet,
    calls: usize,
) -> anyhow::Result<()> {
    let configured = workplace.config.policies.as_deref().filter(|folder| PolicySources::has_cedar(folder));
    let Some(folder) = configured else {
        note("not compared with the policies in force, which are not in Cedar (`policy convert`)");
        return Ok(());
    };
    let mut current = workplace.sources(Some(folder))?;
    // What is only observed is not in force.
    current.files.retain(|file| !workplace.config.observe.contains(&file.name));
    let current_set = workplace.compile(&current)?;
    let (count, found) = diff::compare(workplace, [&current, suggested], &current_set, set, calls);
    match found {
        None => print(format_args!(
            "it grants nothing more than the policies in force, in {count} generated calls"
        )),
        Some(widened) => diff::show(&widened, count),
    }
    print(diff::PROOF_NOTE);
    Ok(())
}

/// What the tools of one agent have used.
#[derive(Default)]
struct Uses(BTreeMap<ToolName, ToolUse>);

impl Uses {
    /// Reads the runs of an agent since a time; the files of calls by what their arguments name, or by the grants.
    fn collect(
        workplace: &Workplace,
        journal: &Path,
        agent: &AgentDid,
        since: OffsetDateTime,
        by_arguments: bool,
    ) -> anyhow::Result<Self> {
        let mut uses = Self::default();
        History::open(journal)?.decided_since(since, |event| -> Result<(), HistoryError> {
            match event {
                DecidedEvent::Started(started) if started.agent == agent.as_str() => {
                    uses.add(workplace, &started, by_arguments);
                }
                DecidedEvent::Started(_)
                | DecidedEvent::Ended { .. }
                | DecidedEvent::Refused(_)
                | DecidedEvent::Damaged { .. } => {}
            }
            Ok(())
        })?;
        Ok(uses)
    }

    fn add(&mut self, workplace: &Workplace, started: &StartedCall, by_arguments: bool) {
        let Some((verdict, receipt)) = started.verdict.as_ref().zip(started.receipt.as_ref()) else { return };
        let declared = workplace.tools.iter().find(|tool| tool.name.as_str() == started.tool);
        let Some(declared) = declared.filter(|_| DecisionAct::of_tool(&started.tool).is_none()) else {
            return;
        };
        if matches!(receipt.outcome.end, End::NotStarted(_)) {
            return;
        }
        if let Some(parent) = &receipt.parent {
            let of_parent = self.0.entry(parent.tool.clone()).or_default();
            of_parent.called.get_or_insert_default().insert(declared.name.clone());
        }
        let used = self.0.entry(declared.name.clone()).or_default();
        used.calls = used.calls.saturating_add(1);
        used.is_escalated |= verdict.decision == Decision::Escalate;
        if declared.capabilities.calls != CallTargets::none() {
            used.called.get_or_insert_default();
        }
        add_files(used, declared, started, receipt, by_arguments);
        add_network(used, started, receipt);
        add_limits(used, verdict, receipt);
    }
}

fn add_files(
    used: &mut ToolUse,
    declared: &Descriptor,
    started: &StartedCall,
    receipt: &Receipt,
    by_arguments: bool,
) {
    let Usage { filesystem, blocked, effects, .. } = &receipt.outcome.usage;
    used.writes = declared.capabilities.filesystem == DeclaredFilesystem::ReadWrite;
    used.effects = used.effects.max(effects.value);
    let by_policy = blocked.iter().filter(|bound| is_of_policy(bound.layer));
    used.blocked_paths.extend(by_policy.map(|bound| bound.value.clone()));
    if filesystem.iter().any(|area| area.pattern != format!("{}/**", area.path)) {
        used.scope.extend(filesystem.iter().map(|area| area.pattern.clone()));
    }
    let roots = filesystem.iter().filter_map(|area| Tree::parse_path(&area.path).ok()).collect::<Vec<_>>();
    let named = texts_of(started).into_iter().filter_map(|text| folder_of(text, &roots));
    let named = named.collect::<BTreeSet<_>>();
    if named.is_empty() {
        used.grants_all_paths |= !roots.is_empty();
    }
    if named.is_empty() || !by_arguments {
        used.folders.extend(roots.iter().map(|root| root.path().to_owned()));
    } else {
        used.folders.extend(named);
    }
    if used.folders.len() > MAX_FOLDERS {
        used.folders = roots.iter().map(|root| root.path().to_owned()).collect();
    }
}

fn is_of_policy(layer: Layer) -> bool {
    match layer {
        Layer::Verdict | Layer::Operator | Layer::Condition | Layer::StandingPolicy => true,
        Layer::Tool | Layer::Executor | Layer::Caller => false,
    }
}

/// The folder of a path in one of these; `None` for another text.
fn folder_of(text: &str, roots: &[Tree]) -> Option<String> {
    let path = text.trim_end_matches('/');
    let root = roots.iter().find(|root| root.contains(path))?;
    let above = path.rsplit_once('/').map_or("", |(above, _)| above);
    Some(if root.contains(above) { above.to_owned() } else { root.path().to_owned() })
}

/// All texts in the arguments of a call; none if these were not kept.
fn texts_of(started: &StartedCall) -> Vec<&str> {
    let mut texts = Vec::new();
    if let Some(StoredArguments::Kept { arguments, .. }) =
        started.arguments.as_ref().map(|row| &row.arguments)
    {
        arguments.values().for_each(|value| collect_texts(value, &mut texts));
    }
    texts
}

fn collect_texts<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, texts)),
        Value::Object(members) => members.values().for_each(|member| collect_texts(member, texts)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn add_network(used: &mut ToolUse, started: &StartedCall, receipt: &Receipt) {
    let Some(network) = &receipt.outcome.usage.network_used else { return };
    let NetworkUsage { contacted, secrets, requests_per_minute, .. } = network;
    let contacted = contacted.iter().map(|contact| contact.authority.as_str());
    // A URL in arguments is compared with the hosts, even if nothing was sent.
    used.hosts.extend(contacted.chain(texts_of(started)).filter_map(host_of));
    let sent = secrets.iter().filter(|used| used.uses > 0);
    used.secrets.extend(sent.map(|used| used.name.clone()));
    let rate =
        requests_per_minute.as_ref().filter(|bound| is_of_policy(bound.layer)).map(|bound| bound.value);
    used.max_requests_per_minute = [used.max_requests_per_minute, rate].into_iter().flatten().min();
}

/// The host of a URL, as policies write it; `None` for another text.
fn host_of(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#', ' ', '"', '\'']).next()?;
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        Some(_) | None => authority,
    };
    Host::parse(host).ok().map(|host| host.to_string())
}

/// Adds what was measured, which is never more than what was granted.
fn add_limits(used: &mut ToolUse, verdict: &Verdict, receipt: &Receipt) {
    let Receipt { outcome, calls, .. } = receipt;
    let Usage { memory, cpu, timeout, .. } = &outcome.usage;
    let measured_memory =
        MemoryLimit::from_mb(outcome.metrics.memory_used_mb().max(1)).unwrap_or(memory.value);
    let seconds = outcome.metrics.wall.saturating_mul(TIMEOUT_FACTOR).as_secs().saturating_add(1);
    let measured_time = Timeout::from_seconds(seconds).unwrap_or(timeout.value);
    let measured = ClaimedLimits::default()
        .with(Some(measured_memory.min(memory.value)))
        .with(Some(measured_time.min(timeout.value)))
        .with::<CpuPercent>(Some(cpu.value).filter(|_| is_of_policy(cpu.layer)))
        .with_amount(Limit::Calls, calls.as_ref().map(|calls| calls.count.into()));
    // The greatest measured amount of all runs.
    let limits = used.limits;
    used.limits = ClaimedLimits::from_fn(|limit| measured[limit].into_iter().chain(limits[limit]).max());
    let output = verdict
        .conditions
        .iter()
        .find_map(|text| text.strip_prefix("max_output_bytes:")?.parse::<u64>().ok());
    used.limits = used.limits.with_amount(Limit::Output, output.or(used.limits[Limit::Output]));
}
