//! `tool test`: runs the examples of a `tool.toml` in the sandbox, under the tool's declared capabilities.
//!
//! The tool is installed into a temporary catalogue, and each example is a call of the executor that `run` uses, with a
//! temporary folder as `/workspace`. Its recorded `answers` are in place of the network; without any, the network is off.
//! `--suggest` runs the examples again under narrower capabilities,
//! and writes those under which they still pass.

use crate::replay::{Replay, recorded_hosts};
use crate::suggest::{self, Measured};
use crate::{find_manifest, toolchain};
use a2g_capability::{Area, Mount, Mounts, Tree};
use a2g_command::layout::{Listing, status_cell, text};
use a2g_command::local_run::{CallParts, local_call, start_executor};
use a2g_command::output::{note, one_line, print};
use a2g_command::setup::{CgroupGuard, ToolRuntime, check_containment, take_authority};
use a2g_config::Config;
use a2g_core::catalog::{Definitions, Example, Expected, ToolManifest};
use a2g_core::run::Executor;
use a2g_govern::local::{LocalGovernor, PolicySet};
use a2g_govern::{Granter, OperatorLimits, ToolTrust};
use a2g_sandbox::egress::Egress;
use a2g_types::fault::Fault;
use a2g_types::ident::ToolName;
use a2g_types::outcome::{End, Outcome, Receipt};
use a2g_types::tool::{DeclaredCapabilities, DeclaredFilesystem};
use a2g_types::verdict::Manifest;
use a2g_wire::a2g::{encode, fault};
use anyhow::{Context as _, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The folder of an example's files, as the tool sees it.
const WORKSPACE: &str = "/workspace";
/// The maximum width of an example's name in the table, in characters, so that a line fits into 80 columns.
const MAX_NAME_CHARS: usize = 20;
/// The number of times that the examples may run: as declared, and to try suggestions.
const MAX_ROUNDS: usize = 6;

pub(crate) fn test(folder: &Path, mut config: Config, writes_suggestion: bool) -> anyhow::Result<ExitCode> {
    let path = find_manifest(folder)?;
    let manifest = ToolManifest::read(&path)?;
    if manifest.examples.is_empty() {
        bail!("`{}` has no `[[example]]`: add one with `arguments`, and `result` or `error`", path.display());
    }
    if !folder.join(&manifest.module).is_file() {
        bail!("`{}` has no `{}` yet: `tool build` makes it", folder.display(), manifest.module.display());
    }
    if let Some(remark) = toolchain::stale_module_remark(folder, &manifest) {
        note(format_args!("note: {remark}"));
    }
    let scratch = tempfile::tempdir().context("a temporary folder cannot be made")?;
    let workspace = scratch.path().join("workspace");
    std::fs::create_dir(&workspace)?;
    config.catalog = scratch.path().join("tools");
    config.mounts =
        Mounts::new(vec![Mount { guest: Tree::parse_path(WORKSPACE)?, host: workspace.canonicalize()? }])?;
    config.ceilings.areas = Area::parse(&format!("{WORKSPACE}/**"))?;
    let replay = Replay::of(&manifest.examples);
    config.ceilings.network = replay.is_some();
    config.ceilings.hosts = recorded_hosts(&manifest.examples)?;
    config.ceilings.tool_hosts.clear();
    config.ceilings.secrets.clear();
    // The person who runs this command named the tool.
    config.signers = None;
    let run_as = check_containment(&config, None)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let _handler = runtime.spawn(remove_on_interrupt(scratch.path().to_owned()));
    let cgroup_guard = CgroupGuard::create(&config);
    let tools_runtime = ToolRuntime::new(&config, 1, cgroup_guard.share(), run_as, |text| note(text))?;
    // The examples run in a temporary catalogue, under capabilities that become narrower and then wider again.
    let tools_runtime = tools_runtime.with_definitions(Definitions::none());
    install(folder, &manifest, &config, &tools_runtime)?;
    let egress = replay.as_ref().map(|replay| open_replay(&config, &tools_runtime, replay)).transpose()?;
    let code = runtime.block_on(async {
        let authority = take_authority()?;
        let limits = (0..MAX_ROUNDS * manifest.examples.len())
            .map(|_| OperatorLimits::new(&authority, limits()))
            .collect();
        let governor = LocalGovernor::new(PolicySet::builtin()?, Arc::clone(&tools_runtime.clock));
        let executor = start_executor(
            &config,
            &tools_runtime,
            &manifest.name,
            egress,
            Granter::new(authority),
            governor,
        )
        .await?;
        let mut runner = ExampleRunner {
            config: &config,
            tools_runtime: &tools_runtime,
            executor,
            limits,
            workspace,
            replay,
        };
        runner.run(folder, &manifest, writes_suggestion).await
    });
    runtime.shutdown_background();
    code
}

/// Removes the temporary folder when Ctrl-C ends the program, which would otherwise leave it.
async fn remove_on_interrupt(scratch: PathBuf) {
    if tokio::signal::ctrl_c().await.is_ok() {
        // A run that still writes may create a file again; it stays in the system's folder for temporary files.
        let _may_be_in_use = std::fs::remove_dir_all(&scratch);
        note("interrupted");
        std::process::exit(130);
    }
}

/// Installs the tool with this manifest into the temporary catalogue. It needs no secrets there: recorded answers ask for
/// none. Examples with files need a declared use of files, but here the files are laid out in any case.
fn install(
    folder: &Path,
    manifest: &ToolManifest,
    config: &Config,
    tools_runtime: &ToolRuntime,
) -> anyhow::Result<()> {
    let capabilities = DeclaredCapabilities { secrets: BTreeSet::new(), ..manifest.capabilities.clone() };
    let tested = ToolManifest { capabilities, examples: Vec::new(), ..manifest.clone() };
    let source = tempfile::tempdir()?;
    std::fs::write(source.path().join("tool.toml"), tested.to_toml()?)?;
    std::fs::copy(folder.join(&manifest.module), source.path().join(&manifest.module))?;
    let trust = ToolTrust::anyone();
    let installer = tools_runtime.installer(&config.catalog, &trust, &tools_runtime.definitions);
    installer.install(installer.check(source.path())?)?;
    Ok(())
}

/// The network that consists of recorded answers.
fn open_replay(
    config: &Config,
    tools_runtime: &ToolRuntime,
    replay: &Arc<Replay>,
) -> anyhow::Result<Arc<Egress>> {
    let egress = Egress::new(config.egress.clone(), None, Arc::clone(&tools_runtime.clock));
    let egress = egress.context("the network of the examples cannot be set up")?;
    Ok(Arc::new(egress.with_answers(Arc::<Replay>::clone(replay))))
}

/// The operator's part of a grant: the workspace, and the network, which is off or consists of recorded answers.
/// Everything else is up to the tool's declarations.
fn limits() -> Manifest {
    Manifest {
        filesystem_scope: vec![format!("{WORKSPACE}/**")],
        network_allowed: Some(true),
        ..Manifest::default()
    }
}

/// The executor of the examples, and their folder.
struct ExampleRunner<'a> {
    config: &'a Config,
    tools_runtime: &'a ToolRuntime,
    executor: Arc<Executor>,
    /// One for each run, because a run consumes its limits.
    limits: Vec<OperatorLimits>,
    workspace: PathBuf,
    /// The recorded answers; `None` if no example has any.
    replay: Option<Arc<Replay>>,
}

/// The end of one example.
struct ExampleEnd {
    receipt: Option<Arc<Receipt>>,
    /// The differences from what was expected; `None` if there are none.
    failure: Option<String>,
}

impl ExampleRunner<'_> {
    async fn run(
        &mut self,
        folder: &Path,
        manifest: &ToolManifest,
        writes_suggestion: bool,
    ) -> anyhow::Result<ExitCode> {
        let ends = self.run_all(manifest).await?;
        show(&manifest.examples, &ends);
        let failed = ends.iter().filter(|end| end.failure.is_some()).count();
        if failed > 0 {
            note(format_args!("{failed} of {} examples failed", ends.len()));
            return Ok(ExitCode::FAILURE);
        }
        let declared = &manifest.capabilities;
        let measured = Measured::of(ends.iter().filter_map(|end| Some(&end.receipt.as_ref()?.outcome)));
        let smallest = self.find_smallest(folder, manifest, &measured).await?;
        let changes = suggest::changes(declared, &smallest);
        if changes.is_empty() {
            print(format_args!("{} examples passed; no smaller capabilities would do", ends.len()));
            return Ok(ExitCode::SUCCESS);
        }
        print(format_args!("{} examples passed; these capabilities would do for them:", ends.len()));
        changes.iter().for_each(|(key, value)| print(format_args!("  {key} = {value}")));
        if writes_suggestion {
            suggest::write(&folder.join("tool.toml"), &changes)?;
            print(format_args!(
                "written to `{}`; larger arguments may need more",
                folder.join("tool.toml").display()
            ));
        } else {
            note("larger arguments may need more; `--suggest` writes these to `tool.toml`");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Runs all examples.
    async fn run_all(&mut self, manifest: &ToolManifest) -> anyhow::Result<Vec<ExampleEnd>> {
        let mut ends = Vec::with_capacity(manifest.examples.len());
        for example in &manifest.examples {
            ends.push(self.run_one(&manifest.name, example).await?);
        }
        Ok(ends)
    }

    async fn run_one(&mut self, name: &ToolName, example: &Example) -> anyhow::Result<ExampleEnd> {
        lay_out(&self.workspace, example)?;
        if let Some(replay) = &self.replay {
            replay.begin(example);
        }
        let limits = self.limits.pop().context("the examples were run too often")?;
        let call = local_call(CallParts {
            agent: "did:a2g:cli:1.0:local",
            tool: name.clone(),
            arguments: example.arguments.clone(),
        })?;
        let (receipt, found) = match self.executor.engine.execute_for_operator(call, limits).await {
            Ok(receipt) | Err(Fault::Failed(receipt) | Fault::LimitReached(receipt, _)) => {
                let found = Found::of_outcome(&receipt.outcome);
                (Some(receipt), found)
            }
            Err(refusal) => (None, Found::of_refusal(&refusal)),
        };
        let sent = self.replay.as_ref().and_then(|replay| replay.difference());
        Ok(ExampleEnd { receipt, failure: sent.or_else(|| found.difference(&example.expected)) })
    }

    /// The smallest capabilities under which the examples pass, among those that are tried.
    async fn find_smallest(
        &mut self,
        folder: &Path,
        manifest: &ToolManifest,
        measured: &Measured,
    ) -> anyhow::Result<DeclaredCapabilities> {
        let start = measured.narrow(&manifest.capabilities);
        for filesystem in [DeclaredFilesystem::None, DeclaredFilesystem::Read, DeclaredFilesystem::ReadWrite]
        {
            if filesystem > start.filesystem {
                break;
            }
            let candidate = DeclaredCapabilities { filesystem, ..start.clone() };
            if candidate == manifest.capabilities || self.passes(folder, manifest, &candidate).await? {
                return Ok(candidate);
            }
        }
        Ok(manifest.capabilities.clone())
    }

    /// Returns `true` if the examples pass under these capabilities.
    async fn passes(
        &mut self,
        folder: &Path,
        manifest: &ToolManifest,
        candidate: &DeclaredCapabilities,
    ) -> anyhow::Result<bool> {
        let narrow = ToolManifest { capabilities: candidate.clone(), ..manifest.clone() };
        let runtime = self.tools_runtime;
        if install(folder, &narrow, self.config, runtime).is_err() {
            return Ok(false);
        }
        self.executor.catalogue.replace(runtime.load_for(self.config, &manifest.name).await?);
        let ends = self.run_all(manifest).await?;
        Ok(ends.iter().all(|end| end.failure.is_none()))
    }
}

/// Makes the workspace hold the files of an example, and nothing else.
fn lay_out(workspace: &Path, example: &Example) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(workspace)? {
        let path = entry?.path();
        if path.is_dir() { std::fs::remove_dir_all(path)? } else { std::fs::remove_file(path)? }
    }
    for (name, content) in &example.files {
        let path = workspace.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(workspace))?;
        std::fs::write(&path, content).with_context(|| format!("the file `{name}` of an example"))?;
    }
    Ok(())
}

/// The end of a run, in the words of an example.
enum Found {
    Result(Value),
    Error { code: String, message: String },
}

impl Found {
    fn of_outcome(outcome: &Outcome) -> Self {
        let code = match &outcome.end {
            End::Returned(result) | End::Staged(result) => {
                return Self::Result(serde_json::from_str(result.as_str()).unwrap_or(Value::Null));
            }
            End::ToolError { code, .. } => code.clone(),
            End::Exited { code, .. } => format!("exit_{code}"),
            End::LimitReached(_) => "limit_reached".to_owned(),
            End::Aborted(_) => "aborted".to_owned(),
            End::ResultNotJson
            | End::ResultInvalid { .. }
            | End::Trapped(_)
            | End::NotStarted(_)
            | End::Crashed(_)
            | End::NotCommitted(_)
            | End::LeftToOperator(_) => "failed".to_owned(),
        };
        Self::Error { code, message: encode::describe_failure(outcome).unwrap_or_default() }
    }

    fn of_refusal(refusal: &Fault) -> Self {
        let is_about_arguments =
            matches!(refusal, Fault::InvalidParams { pointer, .. } if pointer.starts_with("/arguments"));
        let code = if is_about_arguments { "invalid_arguments" } else { "failed" };
        Self::Error { code: code.to_owned(), message: fault::to_error(refusal).1 }
    }

    /// The difference from the end that an example expects, as a sentence.
    fn difference(&self, expected: &Expected) -> Option<String> {
        let wanted = match expected {
            Expected::Result(result) => result.to_string(),
            Expected::Error(code) => format!("the error `{code}`"),
        };
        match (self, expected) {
            (Self::Result(found), Expected::Result(wanted)) if found == wanted => None,
            (Self::Error { code, .. }, Expected::Error(wanted)) if code == wanted => None,
            (Self::Result(found), Expected::Result(value)) if is_same_but_for_number_types(found, value) => {
                Some(format!(
                    "expected {wanted}\n     got {found}\n     `1` and `1.0` are different numbers in JSON"
                ))
            }
            (Self::Result(found), _) => Some(format!("expected {wanted}\n     got {found}")),
            (Self::Error { code, message }, _) => {
                Some(format!("expected {wanted}\n     got the error `{}`: {message}", one_line(code)))
            }
        }
    }
}

/// `true` if two values are equal when integers are compared as floating-point numbers.
fn is_same_but_for_number_types(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| is_same_but_for_number_types(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let is_same = |name: &String, value: &Value| {
                other.get(name).is_some_and(|other| is_same_but_for_number_types(value, other))
            };
            one.len() == other.len() && one.iter().all(|(name, value)| is_same(name, value))
        }
        (one, other) => one == other,
    }
}

/// Prints the table, and below it what failed.
fn show(examples: &[Example], ends: &[ExampleEnd]) {
    let name = |index: usize, example: &Example| {
        let name = example.name.clone().unwrap_or_else(|| format!("example {}", index + 1));
        let is_long = name.chars().count() > MAX_NAME_CHARS;
        let cut = name.chars().take(MAX_NAME_CHARS - 1).chain(['…']).collect();
        if is_long { cut } else { name }
    };
    let mut listing = Listing::new(&["example", "end", "time", "slack", "memory", "slack"]);
    for (index, (example, end)) in examples.iter().zip(ends).enumerate() {
        let status = status_cell(if end.failure.is_none() { "ok" } else { "FAILED" }, end.failure.is_none());
        let cells = match &end.receipt {
            Some(receipt) => measurements(&receipt.outcome),
            None => ["refused before it ran".to_owned(), String::new(), String::new(), String::new()],
        };
        let [time, time_slack, memory, memory_slack] = cells.map(text);
        listing.row([text(name(index, example)), status, time, time_slack, memory, memory_slack]);
    }
    listing.show(std::io::stdout());
    for (index, (example, end)) in examples.iter().zip(ends).enumerate() {
        let Some(failure) = &end.failure else { continue };
        print(format_args!("{}: {failure}", name(index, example)));
        let logs = end.receipt.iter().flat_map(|receipt| &receipt.outcome.output.logs);
        logs.for_each(|line| print(format_args!("     log {}", one_line(&line.message))));
    }
}

/// The used and granted time and memory, each with the unused part in percent.
fn measurements(outcome: &Outcome) -> [String; 4] {
    let Outcome { metrics, usage, .. } = outcome;
    let slack =
        |used: f64, granted: f64| format!("{:.0} %", (100.0 * (1.0 - used / granted)).max(0.0).floor());
    let wall = metrics.wall.as_secs_f64();
    let timeout = usage.timeout.value.duration().as_secs_f64();
    let memory = usage.memory.value;
    [
        format!("{:.1} ms of {}", wall * 1000.0, usage.timeout.value),
        slack(wall, timeout),
        format!("{} of {memory}", metrics.memory_used_mb()),
        slack(metrics.peak_memory_bytes as f64, memory.bytes() as f64),
    ]
}
