//! `stop` and `resume`: an operator's stops of a running executor, over its A2G door.

use super::UsageError;
use super::arguments::{ResumeCommand, StopCommand, TargetOptions};
use super::layout::{Listing, text};
use super::local_time::LocalTime;
use super::output::{note, one_line, print};
use super::remote::{call, member, options, unreadable};
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::stop::{OperatorReason, Stop, StopTarget};
use a2g_wire::a2g::{decode, encode};
use anyhow::{Context as _, anyhow, bail};
use serde_json::Value;
use serde_json::value::RawValue;
use std::process::ExitCode;

pub(super) fn stop(arguments: StopCommand) -> anyhow::Result<ExitCode> {
    let StopCommand { address, target, reason, list, json } = arguments;
    if list {
        let result = call(&address, "a2g/stops", encode::json_value(&Value::Object(serde_json::Map::new())))?;
        show(&result, json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let target = parse_target(target)?;
    let given = reason.as_deref().unwrap_or_default();
    let reason = OperatorReason::parse(given).map_err(|error| UsageError(format!("`--reason`: {error}")))?;
    let result = call(&address, "a2g/stop", encode::stop_params(&target, &reason))?;
    let aborted = member(&result, "aborted")?;
    let ended = aborted.as_u64().context("the executor's answer has no number of aborted intents")?;
    note(format_args!(
        "Stopped {target}. Runs and intents ended by this executor: {ended}. `a2g-executor resume {}{}` lifts the stop.",
        target.cli_options(),
        options(&address)
    ));
    Ok(ExitCode::SUCCESS)
}

pub(super) fn resume(arguments: ResumeCommand) -> anyhow::Result<ExitCode> {
    let ResumeCommand { address, target } = arguments;
    let target = parse_target(target)?;
    let result = call(&address, "a2g/resume", encode::resume_params(&target))?;
    match member(&result, "resumed")?.as_bool() {
        Some(true) => {
            note(format_args!("Resumed {target}."));
            Ok(ExitCode::SUCCESS)
        }
        Some(false) => Err(anyhow!("{target} is not stopped: `a2g-executor stop --list` lists the stops")),
        None => bail!("the executor's answer does not say whether the target was resumed"),
    }
}

fn parse_target(target: TargetOptions) -> Result<StopTarget, UsageError> {
    let TargetOptions { agent, tool, all } = target;
    match (agent, tool, all) {
        (Some(agent), None, false) => AgentDid::parse(&agent)
            .map(StopTarget::Agent)
            .map_err(|error| UsageError(format!("`--agent`: {error}"))),
        (None, Some(tool), false) => ToolName::parse(&tool)
            .map(StopTarget::Tool)
            .map_err(|error| UsageError(format!("`--tool`: {error}"))),
        (None, None, true) => Ok(StopTarget::Everything),
        (Some(_), Some(_), _) | (Some(_), _, true) | (_, Some(_), true) | (None, None, false) => {
            Err(UsageError("name one of `--agent`, `--tool` and `--all`".to_owned()))
        }
    }
}

/// Prints the stops in force.
fn show(result: &RawValue, json: bool) -> anyhow::Result<()> {
    if json {
        let stops = member(result, "stops")?;
        print(serde_json::to_string_pretty(&stops)?);
        return Ok(());
    }
    let stops = decode::stops_result(result.get()).map_err(|fault| unreadable("list of stops", &fault))?;
    let mut listing = Listing::new(&["target", "since", "by", "reason"]);
    let here = LocalTime::read();
    for Stop { target, reason, by, since } in &stops {
        let options = target.cli_options();
        let since = here.format_seconds(*since);
        listing.row([text(options), text(since), text(one_line(by)), text(one_line(reason))]);
    }
    listing.show(std::io::stdout());
    Ok(())
}
