//! `run`: runs one tool under limits from the command line, or any module with this process's standard streams.

use super::UsageError;
use super::arguments::{LimitOptions, Run};
use super::changes;
use super::layout::{Listing, status_cell, text};
use super::local_run::{CallParts, local_call, start_executor};
use super::log::start_logging;
use super::output::{can_ask, confirm, note, one_line, print};
use super::serve::check_thresholds;
use super::setup::{CgroupGuard, ToolRuntime, check_containment, config, take_authority};
use a2g_capability::{Ceilings, Claims, Permit};
use a2g_config::Config;
use a2g_core::catalog::{CompileJob, Compiled};
use a2g_core::run::{Executor, RunEventSink};
use a2g_govern::local::{CedarPolicies, LocalGovernor, PolicySet};
use a2g_govern::{Granter, OperatorLimits};
use a2g_isolate::{Inline, RunAs};
use a2g_sandbox::{Code, Input};
use a2g_types::failure_message::allow_command;
use a2g_types::fault::Fault;
use a2g_types::ident::{IntentId, ToolName, did_you_mean};
use a2g_types::json::JsonText;
use a2g_types::limit::{ClaimedLimits, FileEffects, Layer, Limit, rows_set_by};
use a2g_types::outcome::{Denial, DenialReason, End, FileChanges, Outcome, Receipt, Usage};
use a2g_types::quantity::OutOfRangeError;
use a2g_types::tool::{Contract, Descriptor};
use a2g_types::verdict::Manifest;
use a2g_wire::a2g::{encode, fault};
use a2g_wire::strict_json;
use anyhow::{Context as _, anyhow, bail};
use serde_json::{Map, Value};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

pub(super) fn main(arguments: Run) -> anyhow::Result<ExitCode> {
    // The command prints refusals itself, so they are not logged.
    start_logging("warn,a2g_core::run::refusal_log=off");
    let config = config(&arguments.setup)?;
    let is_path = arguments.tool.contains('/') || arguments.tool.ends_with(".wasm");
    // A module that the operator tries out runs inside this process, without the kernel's protections.
    let run_as = if is_path { RunAs::Server } else { check_containment(&config, None)? };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let code = if is_path {
        runtime.block_on(run_module(&arguments, &config))
    } else {
        runtime.block_on(run_tool(&arguments, config, run_as))
    };
    runtime.shutdown_background();
    code
}

/// The limits given on the command line.
fn parse_limits(arguments: &Run) -> Result<ClaimedLimits, UsageError> {
    let mut limits = ClaimedLimits::default();
    for row in rows_set_by(Layer::Verdict) {
        let parse_amount = |number| row.parse_amount(Layer::Operator, number);
        let amount = arguments.limits.0.get(row.limit).map(parse_amount).transpose();
        let out_of_range =
            |error: OutOfRangeError| UsageError(format!("`--{}` {error}", LimitOptions::name(row)));
        limits[row.limit] = amount.map_err(out_of_range)?;
    }
    Ok(limits)
}

/// The limits given on the command line for a tool of the catalogue, without any option that only a module has.
fn parse_tool_limits(arguments: &Run) -> Result<ClaimedLimits, UsageError> {
    if !(arguments.mount.is_empty() && arguments.env.is_empty() && arguments.args.is_empty()) {
        return Err(UsageError(
            "`--mount`, `--env` and arguments after `--` are for modules; a tool takes `--arguments`".into(),
        ));
    }
    let limits = parse_limits(arguments)?;
    if arguments.policy.is_some() && !(arguments.scope.is_empty() && limits == ClaimedLimits::default()) {
        return Err(UsageError(
            "`--policy` decides in place of `--scope` and the limits on the command line: leave one of the two out"
                .into(),
        ));
    }
    Ok(limits)
}

/// Runs a tool of the catalogue through the same pipeline as a call over any protocol.
async fn run_tool(arguments: &Run, config: Config, run_as: RunAs) -> anyhow::Result<ExitCode> {
    let limits = parse_tool_limits(arguments)?;
    let call = local_call(CallParts {
        agent: &arguments.agent,
        tool: ToolName::parse(&arguments.tool).map_err(|error| UsageError(error.to_string()))?,
        arguments: read_arguments(&arguments.arguments)?,
    })?;
    let cgroup_guard = CgroupGuard::create(&config);
    let tools_runtime = ToolRuntime::new(&config, 1, cgroup_guard.share(), run_as, |text| note(text))?;
    let governor = match &arguments.policy {
        Some(path) => policy_governor(path, &config, &tools_runtime)?,
        None => LocalGovernor::new(PolicySet::builtin()?, Arc::clone(&tools_runtime.clock)),
    };
    let local = governor.with_open_areas(config.open_areas()).with_thresholds(config.risk);
    let authority = take_authority()?;
    let operator_limits = match arguments.policy {
        Some(_) => None,
        None => {
            let filesystem_scope = arguments.scope.clone();
            let manifest = Manifest { limits, network_allowed: None, filesystem_scope };
            Some(OperatorLimits::new(&authority, manifest))
        }
    };
    let granter = Granter::new(authority);
    let egress = tools_runtime.egress(&config)?;
    let executor = start_executor(&config, &tools_runtime, &call.tool, egress, granter, local).await?;
    if let Some(error) = executor.policies.governor().cedar().and_then(CedarPolicies::error) {
        bail!(UsageError(format!("the policies of `--policy`: {error}")));
    }
    let result = match operator_limits {
        None => executor
            .engine
            .handle_intent(call, RunEventSink::none())
            .await
            .map(|answer| (Some(answer.verdict), answer.receipt)),
        Some(limits) => {
            executor.engine.execute_for_operator(call, limits).await.map(|receipt| (None, Some(receipt)))
        }
    };
    Ok(match result {
        Ok((_, Some(receipt))) => {
            let code = print_report(&receipt, arguments, &config.ceilings);
            let Outcome { end, usage, .. } = &receipt.outcome;
            if let (End::Staged(_), Some(changes)) = (end, &usage.changes) {
                let right = executor.policies.governor().decision_right();
                let with_bodies = executor.changes.with_bodies(&receipt, Some(&right)).await;
                let shown = with_bodies.as_ref().and_then(|shown| shown.outcome.usage.changes.as_ref());
                decide_on_changes(&executor, receipt.intent, shown.unwrap_or(changes), arguments.yes).await?
            } else {
                code
            }
        }
        Ok((verdict, None)) => {
            match verdict.map(|verdict| verdict.decision.as_str()) {
                Some(decision) => {
                    note(format_args!(
                        "refused: the verdict is {decision}, and a person would have to approve it"
                    ));
                }
                None => note("refused: there is no verdict"),
            }
            ExitCode::from(3)
        }
        Err(Fault::Failed(receipt) | Fault::LimitReached(receipt, _)) => {
            print_report(&receipt, arguments, &config.ceilings)
        }
        Err(refusal) => {
            let (_, message, data) = fault::to_error(&refusal);
            let message =
                refusal_message(&refusal, &arguments.tool, &executor.catalogue.tools()).unwrap_or(message);
            match data.filter(|_| arguments.json) {
                Some(data) => print(serde_json::json!({ "error": message, "data": data })),
                None => note(format_args!("refused: {message}")),
            }
            ExitCode::from(3)
        }
    })
}

/// Shows the file changes of a staged run, and asks about them now: they are gone when this process ends.
async fn decide_on_changes(
    executor: &Executor,
    intent: IntentId,
    changes: &FileChanges,
    yes: bool,
) -> anyhow::Result<ExitCode> {
    changes::lines(changes).iter().for_each(note);
    let summary = changes.summarize();
    let question = changes::commit_question(&summary, changes);
    let is_confirmed = yes || (can_ask() && confirm(question).context("the answer cannot be read")?);
    if !is_confirmed {
        let nothing_sent = if changes.requests.is_empty() { "" } else { ", and nothing was sent" };
        note(format_args!(
            "not confirmed: no file was changed{nothing_sent}; `--yes` lets the changes take effect without a question"
        ));
        return Ok(ExitCode::FAILURE);
    }
    let right = executor.policies.governor().decision_right();
    let decided = executor.changes.commit(intent, &changes.digest, right).await;
    let decision = decided.map_err(|fault| anyhow!("no file was changed: {}", fault.sentence()))?;
    if let Some(reason) = encode::describe_failure(&decision.outcome) {
        let extent = if decision.outcome.end.is_left_to_operator() { " as a whole" } else { "" };
        bail!("the file changes were not committed{extent}: {reason}");
    }
    note(format_args!("committed: {summary}"));
    let result = decision.outcome.end.result().map(JsonText::to_map).unwrap_or_default();
    changes::report_requests(changes, &Value::Object(result))?;
    Ok(ExitCode::SUCCESS)
}

/// Rewords a fault whose message names a method of a protocol; `None` for any other.
fn refusal_message(refusal: &Fault, tool: &str, tools: &[Descriptor]) -> Option<String> {
    let Fault::InvalidParams { message: _, pointer } = refusal else { return None };
    if pointer != "/tool" {
        return None;
    }
    let nearest = did_you_mean(tool, tools.iter().map(|known| known.name.as_str()));
    Some(format!("there is no tool `{tool}`{nearest}: `a2g-executor tool list` lists the tools"))
}

fn policy_governor(
    path: &Path,
    config: &Config,
    tools_runtime: &ToolRuntime,
) -> anyhow::Result<LocalGovernor> {
    let policies = if path.is_dir() { PolicySet::load(path)? } else { PolicySet::load_file(path)? };
    check_thresholds(config, &policies)?;
    Ok(LocalGovernor::new(policies, Arc::clone(&tools_runtime.clock)))
}

/// Reads the arguments: JSON, a file with it, or standard input.
fn read_arguments(argument: &str) -> anyhow::Result<Map<String, Value>> {
    let text = match argument.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("`{path}` cannot be read"))?,
        None if argument == "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input is not text")?;
            text
        }
        None => argument.to_owned(),
    };
    let bounds = strict_json::JsonBounds { max_bytes: 64 << 20, ..Default::default() };
    strict_json::check(text.as_bytes(), &bounds)
        .map_err(|fault| UsageError(format!("`--arguments`: {}", fault::to_error(&fault).1)))?;
    serde_json::from_str(&text).map_err(|_| {
        UsageError("`--arguments` must be a JSON object such as '{\"path\": \"/tmp/x\"}'".to_owned()).into()
    })
}

/// Prints a report, with the result on standard output and the measurements on standard error. Returns the exit code.
fn print_report(receipt: &Receipt, arguments: &Run, ceilings: &Ceilings) -> ExitCode {
    if arguments.json {
        print(encode::report(receipt));
    } else {
        let Outcome { end, output, metrics, usage } = &receipt.outcome;
        for line in &output.logs {
            for text in line.message.lines() {
                note(format_args!("{:5} {text}", line.level.as_str()));
            }
        }
        match end.result() {
            Some(result) => print(serde_json::to_string_pretty(result).unwrap_or_default()),
            None => note(format_args!("error: {}", error_message(&receipt.outcome))),
        }
        for Denial { what, reason, set_by: _, count } in &usage.denied {
            let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
            note(format_args!("denied {} ({}, {times})", one_line(what), reason.as_str()));
        }
        if let Some(hint) = hint(end, usage, arguments, ceilings) {
            note(format_args!("hint: {hint}"));
        }
        let mut listing = Listing::new(&["status", "time", "cpu", "memory"]);
        listing.row([
            status_cell(end.status().as_str(), end.result().is_some()),
            text(format_args!("{:.1} ms of {}", metrics.wall.as_secs_f64() * 1000.0, usage.timeout.value)),
            text(format_args!("{} % of {}", metrics.cpu_percent(), usage.cpu.value)),
            text(format_args!("{} MB of {}", metrics.memory_used_mb(), usage.memory.value)),
        ]);
        listing.show(std::io::stderr());
    }
    match &receipt.outcome.end {
        End::Returned(_) | End::Staged(_) => ExitCode::SUCCESS,
        End::LimitReached(_) => ExitCode::from(4),
        End::ToolError { .. }
        | End::Exited { .. }
        | End::ResultNotJson
        | End::ResultInvalid { .. }
        | End::Trapped(_)
        | End::NotStarted(_)
        | End::Crashed(_)
        | End::NotCommitted(_)
        | End::LeftToOperator(_)
        | End::Aborted(_) => ExitCode::FAILURE,
    }
}

/// Advice for a tool that was denied a host, or a path outside the scope of the command line.
fn hint(end: &End, usage: &Usage, arguments: &Run, ceilings: &Ceilings) -> Option<String> {
    let tool = ToolName::parse(&arguments.tool).ok();
    if let Some(command) = tool.and_then(|tool| allow_command(&tool, usage)) {
        return Some(format!("`{command}` prints what would allow the tool that host"));
    }
    let is_outside_scope = usage.denied.iter().any(|denial| denial.reason == DenialReason::OutsideScope);
    // An interpreter that traps has looked for its own source files, which are in no scope.
    if !is_outside_scope || arguments.policy.is_some() || matches!(end, End::Trapped(_)) {
        return None;
    }
    if usage.filesystem_emptied_by == Some(Layer::Tool) {
        return Some("the tool's own `tool.toml` declares `filesystem = \"none\"`".to_owned());
    }
    let areas = ceilings.areas.iter().map(|area| format!("`{area}`")).collect::<Vec<_>>().join(", ");
    Some(if arguments.scope.is_empty() {
        format!("`--scope` grants access to files; the configuration allows {areas}")
    } else {
        format!("that path is outside `--scope`, or outside the configuration, which allows {areas}")
    })
}

/// Runs any module as a command, with this process's own standard streams.
async fn run_module(arguments: &Run, config: &Config) -> anyhow::Result<ExitCode> {
    if arguments.policy.is_some() || !arguments.scope.is_empty() || arguments.arguments != "{}" {
        bail!(UsageError(
            "`--policy`, `--scope` and `--arguments` are for tools; a module takes `--mount` and `-- args`"
                .into()
        ));
    }
    let limits = parse_limits(arguments)?;
    let folders = parse_mounts(&arguments.mount)?;
    let env = parse_variables(&arguments.env)?;
    let path = Path::new(&arguments.tool);
    let wasm = std::fs::read(path).with_context(|| format!("`{}` cannot be read", path.display()))?;
    let tools_runtime = ToolRuntime::new(config, 1, None, RunAs::Server, |text| note(text))?;
    let job = CompileJob { wasm, contract: Contract::Command };
    let report_progress = |seconds| note(format_args!("still compiling: {seconds} s so far"));
    let Compiled { module, component, facts, .. } = tools_runtime.compiler.run(&job, &report_progress)?;
    let code = if component { Code::component(&module) } else { Code::module(&module) };
    let artifact = tools_runtime.sandbox.load(code)?;
    let claims = Claims { limits, network: Some(false), ..Claims::default() };
    // The operator's own folders are changed directly, as by any other program that the operator starts.
    let ceilings = Ceilings { effects: FileEffects::Direct, ..config.ceilings.clone() };
    let permit = Permit::for_operator(&take_authority()?, claims, &ceilings, &folders)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let input = Input::Passthrough {
        args: std::iter::once(name).chain(arguments.args.iter().cloned()).collect(),
        env,
    };
    let inline = Inline::new(Arc::clone(&tools_runtime.sandbox), Arc::clone(&tools_runtime.clock));
    let execution = inline.begin(&permit, Arc::default());
    let mut outcome = inline.run(artifact, permit, input, &execution).await;
    let start_memory_bytes = facts.start_memory_bytes;
    if start_memory_bytes > outcome.usage.memory.value.bytes() {
        outcome.usage.start_memory_bytes = Some(start_memory_bytes);
    }
    Ok(exit_code(&outcome))
}

fn parse_mounts(mounts: &[String]) -> Result<Vec<(PathBuf, String)>, UsageError> {
    let split = |mount: &String| {
        let (host, guest) = mount.split_once(':').ok_or_else(|| {
            UsageError(format!("`--mount {mount}` must be HOST:GUEST, such as `./data:/data`"))
        })?;
        Ok((PathBuf::from(host), guest.to_owned()))
    };
    mounts.iter().map(split).collect()
}

fn parse_variables(env: &[String]) -> Result<Vec<(String, String)>, UsageError> {
    let split = |variable: &String| {
        let (name, value) = variable
            .split_once('=')
            .ok_or_else(|| UsageError(format!("`--env {variable}` must be NAME=VALUE")))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    env.iter().map(split).collect()
}

/// The module's own exit code; 124 for a timeout, as from `timeout(1)`, and 134 for any other failure, as from a shell
/// after SIGABRT.
fn exit_code(outcome: &Outcome) -> ExitCode {
    match &outcome.end {
        End::Returned(_) | End::Staged(_) => ExitCode::SUCCESS,
        End::Exited { code, .. } => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
        End::LimitReached(limit) => {
            note(format_args!("error: {}", error_message(outcome)));
            ExitCode::from(if *limit == Limit::Time { 124 } else { 134 })
        }
        End::Trapped(_)
        | End::ToolError { .. }
        | End::ResultNotJson
        | End::ResultInvalid { .. }
        | End::NotStarted(_)
        | End::Crashed(_)
        | End::NotCommitted(_)
        | End::LeftToOperator(_)
        | End::Aborted(_) => {
            note(format_args!("error: {}", error_message(outcome)));
            ExitCode::from(134)
        }
    }
}

/// The report's sentence about a run that did not succeed. Limits that the report attributes to the operator were set
/// on this command line, so the sentence is changed to say that.
fn error_message(outcome: &Outcome) -> String {
    let sentence = encode::describe_failure(outcome).unwrap_or_default();
    if matches!(outcome.end, End::LimitReached(_)) {
        return sentence.replace("set by the operator", "set on the command line");
    }
    sentence
}
