//! One execution in one store.
//!
//! ```text
//! Artifact + Permit + Input ─▶ Execution::new ─▶ execute ─▶ Outcome
//!                                   │ store made: limiter, throttle, deadline, streams, preopens
//!                                   │ limits read back from the live store
//!                                   │ guest runs, watched at every tick of the epoch
//!                                   └ store dropped
//! ```
//! [`Sandbox::execute`] does not know where it runs: it needs a thread that may block, and a tokio
//! runtime for its timers. It never panics on a guest's account, never trusts a number that a guest
//! gives, and uses no store twice.

mod artifact;
mod budget;
mod denials;
mod engine;
mod filesystem;
mod limiter;
mod linkers;
mod meter;
mod network;
mod output;
mod preopens;
mod preview1;
mod state;
mod stop;
mod throttle;
mod typed;
mod witness;

pub use artifact::{Artifact, ArtifactError, is_component};
pub use stop::Abort;
pub use witness::{Event, Witness};

use crate::capability::{Grant, Permit};
use crate::clock::Clock;
use crate::egress::Network;
use crate::limit::{Access, Limit};
use crate::outcome::{End, GrantedTree, Metrics, Outcome, Usage};
use crate::tool::Contract;
use artifact::{Linked, Prepared};
use budget::Budget;
use limiter::MemoryGauge;
pub use meter::Accounting;
use meter::{Meter, Metered};
use output::{Channel, GuestStream, Recorder};
use serde_json::Value;
use state::{Deadline, Gauges, InForce, Preopen, PreopenKind, State};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;
use stop::{Stop, end_of};
use wasmtime::component::{Component, InstancePre, Linker as ComponentLinker};
use wasmtime::{Engine, Linker as CoreLinker, Store, UpdateDeadline};
use wasmtime_wasi::filesystem::WasiFilesystemView as _;
use wasmtime_wasi::p2::bindings::filesystem::preopens::Host as _;
use wasmtime_wasi::{WasiCtxBuilder, WasiView as _};

/// The most random bytes of one call.
const MOST_RANDOM_BYTES: u64 = 64 << 10;
/// The most handles of one store, and the most entries of its resource table.
const MOST_HANDLES: usize = 1024;
/// The fewest, where the process may have few descriptors.
const FEWEST_HANDLES: usize = 32;
/// Descriptors of the process that no guest may have: connections, logs, the engine.
const OWN_DESCRIPTORS: u64 = 256;
/// The most bytes that one host call may copy out of a guest. A guest that reads or writes a file
/// in one call passes a buffer as large as the file, so this bounds that call too.
const MOST_HOSTCALL_BYTES: usize = 16 << 20;

/// The engine and everything that a guest can be linked with. One for each process.
pub struct Sandbox {
    engine: Engine,
    core: CoreLinker<State>,
    component: ComponentLinker<State>,
    /// As `component`, and `wasi:http`.
    networked: ComponentLinker<State>,
    ticker: engine::Ticker,
    preopens: preopens::Preopens,
    most_handles: usize,
    clock: Arc<dyn Clock>,
}

/// Why a sandbox could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The engine or a linker refused.
    #[error("the WebAssembly engine cannot be set up: {0}")]
    Engine(String),
    /// The machine refused a thread or a folder.
    #[error("the sandbox cannot be set up")]
    System(#[from] std::io::Error),
}

/// What goes into a guest.
#[derive(Debug)]
pub enum Input {
    /// A governed call: the arguments object as JSON text. Output is recorded.
    Arguments(String),
    /// An operator's own try of a module: standard streams are the executor's own.
    Passthrough {
        /// The command line, the program's name first.
        args: Vec<String>,
        /// The environment.
        env: Vec<(String, String)>,
    },
}

/// One execution, from the outside: what can be seen of it while it runs.
#[derive(Debug, Clone)]
pub struct Execution {
    gauges: Arc<Gauges>,
    grant: Grant,
    network: Network,
    abort: Arc<Abort>,
    began: Instant,
}

impl Execution {
    /// A run under `permit` over `network` whose clock starts at `now`, with `witness` told of what
    /// happens in it.
    /// `accounting` says whose CPU time is the guest's.
    #[must_use]
    pub fn begin(
        permit: &Permit,
        network: Network,
        abort: Arc<Abort>,
        accounting: Accounting,
        witness: Witness,
        now: Instant,
    ) -> Self {
        let grant = permit.grant();
        Self {
            gauges: Arc::new(Gauges {
                meter: Arc::new(Meter::new(accounting)),
                memory: Arc::new(MemoryGauge { witness: witness.clone(), ..MemoryGauge::default() }),
                recorder: Arc::new(Recorder::new(grant.output(), witness.clone())),
                denials: denials::Denials::new(witness.clone()),
                in_force: std::sync::OnceLock::new(),
                budget: Arc::new(Budget::new(grant.budgets())),
                witness,
            }),
            grant: grant.clone(),
            network,
            abort,
            began: now,
        }
    }

    /// Keeps what the witness of the same run in another process was told.
    pub fn saw(&self, event: Event) {
        let gauges = &self.gauges;
        match event {
            Event::InForce(in_force) => drop(gauges.in_force.set(in_force)),
            Event::MemoryPeak(bytes) => gauges.memory.reached(bytes),
            Event::Log(level, message) => gauges.recorder.saw_line(level, &message),
            Event::Progress(progress) => gauges.recorder.saw_progress(progress),
            Event::Artifact(artifact) => gauges.recorder.saw_artifact(artifact),
            // What the way out denies, it has written down itself.
            Event::Denied(_, reason, _) if reason.is_of_egress() => {}
            Event::Denied(what, reason, count) => gauges.denials.counted(&what, reason, count),
        }
    }

    /// The most output that the run may have, in bytes.
    #[must_use]
    pub fn output_limit(&self) -> u64 {
        self.grant.output().value.bytes()
    }

    /// The switch that stops it.
    #[must_use]
    pub fn abort(&self) -> &Arc<Abort> {
        &self.abort
    }

    /// The run's network.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The latest moment at which the guest may still run.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.began + self.grant.timeout().value.duration()
    }

    /// What is known now, with `end` as its end. For the runner of a guest that is stuck in a host
    /// call, and for `execute` itself.
    #[must_use]
    pub fn outcome(&self, end: End, now: Instant) -> Outcome {
        let gauges = &self.gauges;
        let (mut denied, mut denied_truncated) =
            self.network.line().map(|line| line.denied()).unwrap_or_default();
        let (others, more_of_them) = gauges.denials.list();
        denied.extend(others);
        denied_truncated |= more_of_them || denied.len() > Usage::MOST_DENIALS;
        denied.truncate(Usage::MOST_DENIALS);
        // A guest that could not even be instantiated has no live store to read back from; what
        // would have been in force is the grant.
        let in_force = gauges.in_force.get().cloned().unwrap_or_else(|| InForce {
            memory: self.grant.memory(),
            cpu: self.grant.cpu(),
            timeout: self.grant.timeout(),
            filesystem: Vec::new(),
        });
        Outcome {
            end,
            metrics: Metrics {
                wall: now.saturating_duration_since(self.began),
                cpu: gauges.meter.seen_from_outside(),
                peak_memory_bytes: gauges.memory.peak.load(std::sync::atomic::Ordering::Relaxed),
                output_bytes: gauges.recorder.bytes(),
                peak_resident_bytes: None,
            },
            output: gauges.recorder.finish(),
            usage: Usage {
                memory: in_force.memory,
                cpu: in_force.cpu,
                timeout: in_force.timeout,
                output: gauges.recorder.limit(),
                filesystem: in_force.filesystem,
                filesystem_emptied_by: self.grant.emptied_by(),
                budgets: gauges.budget.granted(),
                spent: Some(gauges.budget.spent()),
                network: self.grant.network(),
                network_used: self.network.line().map(|line| line.usage()),
                denied,
                denied_truncated,
            },
        }
    }
}

impl Sandbox {
    /// Sets up the engine for `concurrent` executions at once.
    ///
    /// # Ambient Authority
    /// Makes an empty folder in the system's temporary folder and takes its name away again.
    ///
    /// # Errors
    /// [`SandboxError`] when the machine cannot reserve the address space.
    pub fn new(concurrent: u32, clock: Arc<dyn Clock>) -> Result<Self, SandboxError> {
        let refused = |error: wasmtime::Error| SandboxError::Engine(format!("{error:#}"));
        let engine = engine::engine(concurrent).map_err(refused)?;
        Ok(Self {
            core: linkers::core(&engine).map_err(refused)?,
            networked: {
                let mut networked = linkers::component(&engine).map_err(refused)?;
                network::link(&mut networked).map_err(refused)?;
                networked
            },
            component: linkers::component(&engine).map_err(refused)?,
            ticker: engine::Ticker::new(&engine, concurrent),
            engine,
            preopens: preopens::Preopens::new()?,
            most_handles: most_handles(concurrent),
            clock,
        })
    }

    /// Starts the thread that watches guests, which otherwise starts with the first of them. It does
    /// `first` before all else, such as to confine itself.
    ///
    /// # Errors
    /// When the machine has no room for a thread, and what `first` says.
    pub fn start_ticker(
        &self,
        first: impl FnOnce() -> std::io::Result<()> + Send + 'static,
    ) -> std::io::Result<()> {
        self.ticker.start(first)
    }

    /// The empty folder that stands for all that is not granted. Guests are let into it, to see what
    /// they reach for, so a process that is confined has to be let into it as well.
    #[must_use]
    pub fn outside(&self) -> BorrowedFd<'_> {
        self.preopens.outside()
    }

    /// Compiles a module or component for this sandbox.
    ///
    /// # Errors
    /// [`ArtifactError::Invalid`] when it is not valid or uses a proposal that is switched off.
    pub fn compile(&self, wasm: &[u8]) -> Result<Vec<u8>, ArtifactError> {
        artifact::compile(&self.engine, wasm)
    }

    /// What decides whether compiled bytes can be loaded here: versions, settings and processor.
    #[must_use]
    pub fn compatibility(&self) -> String {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.engine.precompile_compatibility_hash().hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Loads what [`Self::compile`] made and links it.
    ///
    /// # Errors
    /// [`ArtifactError::Load`] when the bytes are of another engine, [`ArtifactError::Unlinkable`]
    /// when the module imports what is not linked or lacks the export of its contract.
    pub fn load(
        &self,
        compiled: &[u8],
        component: bool,
        contract: Contract,
    ) -> Result<Artifact, ArtifactError> {
        let load = |error: wasmtime::Error| ArtifactError::Load(format!("{error:#}"));
        let unlinkable = artifact::unlinkable(contract);
        let prepared = match (component, contract) {
            (false, Contract::Command) => {
                let module = artifact::load_module(&self.engine, compiled).map_err(load)?;
                let start = module.get_export("_start");
                let start = start.as_ref().and_then(wasmtime::ExternType::func);
                if !start.is_some_and(|start| start.params().len() == 0 && start.results().len() == 0) {
                    let missing = "it exports no function `_start` without parameters and results";
                    return Err(unlinkable(wasmtime::Error::msg(missing)));
                }
                Prepared::CoreCommand(self.core.instantiate_pre(&module).map_err(unlinkable)?)
            }
            (false, Contract::Typed) => {
                return Err(unlinkable(wasmtime::Error::msg("a typed tool has to be a component")));
            }
            (true, contract) => {
                let component = artifact::load_component(&self.engine, compiled).map_err(load)?;
                match contract {
                    Contract::Command => Prepared::ComponentCommand(
                        self.linked(&component, wasmtime_wasi::p2::bindings::CommandPre::new)
                            .map_err(unlinkable)?,
                    ),
                    Contract::Typed => {
                        Prepared::Typed(self.linked(&component, typed::ToolPre::new).map_err(unlinkable)?)
                    }
                }
            }
        };
        Ok(Artifact(prepared))
    }

    /// Links a component for runs without a network, and for runs with one when it imports one.
    fn linked<P>(
        &self,
        component: &Component,
        fit: impl Fn(InstancePre<State>) -> wasmtime::Result<P>,
    ) -> wasmtime::Result<Linked<P>> {
        if !network::is_imported(component, &self.engine) {
            return Ok(Linked { off: fit(self.component.instantiate_pre(component)?)?, on: None });
        }
        let link = |linker: &ComponentLinker<State>, http| {
            let mut linker = linker.clone();
            network::link_none(&mut linker, component, &self.engine, http)?;
            fit(linker.instantiate_pre(component)?)
        };
        Ok(Linked { off: link(&self.component, false)?, on: Some(link(&self.networked, true)?) })
    }

    /// The handle by which a run under `permit` over `network` can be watched, and stopped by `abort`.
    /// The run's clock starts here.
    #[must_use]
    pub fn begin(&self, permit: &Permit, network: Network, abort: Arc<Abort>) -> Execution {
        Execution::begin(
            permit,
            network,
            abort,
            Accounting::Thread,
            Witness::default(),
            self.clock.monotonic(),
        )
    }

    /// Runs one guest to its end.
    ///
    /// Has to be polled on a thread that may block: the guest's file calls happen inside the poll,
    /// so that their CPU time is counted.
    pub async fn execute(
        &self,
        artifact: &Artifact,
        permit: Permit,
        input: Input,
        execution: &Execution,
    ) -> Outcome {
        let meter = Arc::clone(&execution.gauges.meter);
        let guest = Metered::new(meter, &self.ticker, self.guest(artifact, permit, input, execution));
        let end = tokio::select! {
            biased;
            end = guest => end.unwrap_or_else(|error| {
                End::Unlinkable(format!("no thread can be started to watch it: {error}"))
            }),
            reason = execution.abort.wait() => End::Aborted(reason),
            () = tokio::time::sleep_until(execution.deadline().into()) => End::LimitReached(Limit::Time),
        };
        execution.outcome(end, self.clock.monotonic())
    }

    /// Runs a typed tool's `describe`, and gives its four fields.
    ///
    /// # Errors
    /// [`ArtifactError::Unlinkable`] when the tool does not answer within the permit.
    pub async fn describe(&self, artifact: &Artifact, permit: Permit) -> Result<[String; 4], ArtifactError> {
        let unlinkable = artifact::unlinkable(Contract::Typed);
        let Prepared::Typed(tool) = &artifact.0 else {
            return Err(unlinkable(wasmtime::Error::msg("it does not export `describe`")));
        };
        let execution = self.begin(&permit, Network::Off, Arc::default());
        let described = Metered::new(Arc::clone(&execution.gauges.meter), &self.ticker, async {
            let mut store = self.store(permit, &Input::Arguments(String::new()), &execution)?;
            tool.pick(false).instantiate_async(&mut store).await?.call_describe(&mut store).await
        });
        let described = tokio::time::timeout_at(execution.deadline().into(), described)
            .await
            .map_err(|_| unlinkable(wasmtime::Error::msg("`describe` did not answer in time")))?;
        let typed::a2g::tool::types::Descriptor { name, version, description, arguments_schema } =
            described.map_err(|error| unlinkable(error.into()))?.map_err(unlinkable)?;
        Ok([name, version, description, arguments_schema])
    }

    async fn guest(&self, artifact: &Artifact, permit: Permit, input: Input, execution: &Execution) -> End {
        let gauges = &execution.gauges;
        let mut store = match self.store(permit, &input, execution) {
            Ok(store) => store,
            Err(error) => return End::Unlinkable(format!("the store cannot be made: {error:#}")),
        };
        let network = store.data().http.is_on();
        let governed = matches!(input, Input::Arguments(_));
        let ended = match &artifact.0 {
            Prepared::CoreCommand(pre) => core_command(pre, &mut store).await,
            Prepared::ComponentCommand(pre) => component_command(pre.pick(network), &mut store).await,
            Prepared::Typed(pre) => match input {
                Input::Arguments(arguments) => {
                    return typed_tool(pre.pick(network), &mut store, &arguments, gauges).await;
                }
                Input::Passthrough { .. } => {
                    return End::Unlinkable("a typed tool is run by its name, with arguments".to_owned());
                }
            },
        };
        let failed = match &ended {
            Ok(()) => None,
            Err(error) => end_of(error, &gauges.memory),
        };
        match failed {
            Some(End::Exited { code, .. }) => {
                End::Exited { code, stderr_tail: gauges.recorder.stderr_tail() }
            }
            Some(end) => end,
            None if governed => command_result(&gauges.recorder.take_stdout()),
            None => End::Returned(Value::Null),
        }
    }

    /// Makes the store of one execution and reads its limits back.
    fn store(&self, permit: Permit, input: &Input, execution: &Execution) -> wasmtime::Result<Store<State>> {
        let gauges = &execution.gauges;
        let grant = permit.grant();
        let mut wasi = WasiCtxBuilder::new();
        wasi.allow_blocking_current_thread(true).max_random_size(MOST_RANDOM_BYTES);
        let stream = |channel, passthrough| GuestStream {
            recorder: Arc::clone(&gauges.recorder),
            channel,
            passthrough,
        };
        match input {
            Input::Arguments(arguments) => {
                wasi.stdin(wasmtime_wasi::p2::pipe::MemoryInputPipe::new(arguments.clone()))
                    .stdout(stream(Channel::Stdout, false))
                    .stderr(stream(Channel::Stderr, false));
            }
            Input::Passthrough { args, env } => {
                wasi.inherit_stdin()
                    .args(args)
                    .envs(env)
                    .stdout(stream(Channel::Stdout, true))
                    .stderr(stream(Channel::Stderr, true));
            }
        }
        let mut wasi = wasi.build_p1();
        let (filesystem, kinds) = self.preopens.of(permit.roots(), grant)?;
        *wasi.ctx().ctx.filesystem() = filesystem;
        let now = self.clock.monotonic();
        let state = State {
            wasi,
            http: network::Http::new(execution.network.carrier()),
            network: grant.network(),
            limiter: limiter::Limiter::new(grant.memory(), Arc::clone(&gauges.memory)),
            throttle: throttle::Throttle::new(grant.cpu(), now),
            deadline: Deadline { timeout: grant.timeout(), at: execution.deadline() },
            preopens: Vec::new(),
            links: !permit.roots().watch_outside(),
            hard_links: grant.budgets().hard_links || !permit.roots().watch_outside(),
            renumbered: false,
            gauges: Arc::clone(gauges),
        };
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(MOST_HOSTCALL_BYTES);
        store.set_max_component_handles(self.most_handles);
        store.data_mut().wasi.ctx().table.set_max_capacity(self.most_handles);
        store.set_epoch_deadline(1);
        let (clock, abort) = (Arc::clone(&self.clock), Arc::clone(&execution.abort));
        store.epoch_deadline_callback(move |mut store| at_tick(store.data_mut(), &*clock, &abort));
        read_back(store.data_mut(), kinds)?;
        Ok(store)
    }
}

/// How many handles one of `concurrent` guests may have, so that all of them together leave the
/// process descriptors of its own. Raises the process's soft limit to its hard one.
fn most_handles(concurrent: u32) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _as_it_was = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let Some(most) = getrlimit(Resource::Nofile).current else { return MOST_HANDLES };
    let share = most.saturating_sub(OWN_DESCRIPTORS) / u64::from(concurrent.max(1));
    usize::try_from(share).unwrap_or(MOST_HANDLES).clamp(FEWEST_HANDLES, MOST_HANDLES)
}

/// Looks at a running guest: is it cancelled, is it late, has it used too much CPU?
fn at_tick(state: &mut State, clock: &dyn Clock, abort: &Abort) -> wasmtime::Result<UpdateDeadline> {
    if let Some(reason) = abort.reason() {
        return Err(Stop::Aborted(reason).into());
    }
    let now = clock.monotonic();
    if now >= state.deadline.at {
        return Err(Stop::Limit(Limit::Time).into());
    }
    Ok(match state.throttle.owed(state.gauges.meter.cpu(), now) {
        Some(sleep) => UpdateDeadline::YieldCustom(1, Box::pin(tokio::time::sleep(sleep))),
        None => UpdateDeadline::Continue(1),
    })
}

/// Reads the limits back from the live store, before the guest's first instruction.
fn read_back(state: &mut State, kinds: Vec<PreopenKind>) -> wasmtime::Result<()> {
    let mut trees = Vec::new();
    for ((descriptor, path), kind) in state.filesystem().get_directories()?.into_iter().zip(kinds) {
        let wasmtime_wasi::filesystem::Descriptor::Dir(dir) = state.ctx().table.delete(descriptor)? else {
            return Err(wasmtime::Error::msg("a preopened folder is not a folder"));
        };
        if let PreopenKind::Granted { access, set_by } = kind {
            let value = if dir.perms.write_not_permitted() { Access::ReadOnly } else { Access::ReadWrite };
            let access = crate::limit::Bound { value, layer: access.layer };
            trees.push(GrantedTree { path: path.clone(), access, set_by });
        }
        state.preopens.push(Preopen { path, kind, handle: dir.dir });
    }
    let in_force = InForce {
        memory: state.limiter.limit(),
        cpu: state.throttle.limit(),
        timeout: state.deadline.timeout,
        filesystem: trees,
    };
    state.gauges.witness.see(|| Event::InForce(in_force.clone()));
    let _set_once = state.gauges.in_force.set(in_force);
    Ok(())
}

async fn core_command(pre: &wasmtime::InstancePre<State>, store: &mut Store<State>) -> wasmtime::Result<()> {
    let instance = pre.instantiate_async(&mut *store).await?;
    let start = instance.get_typed_func::<(), ()>(&mut *store, "_start")?;
    start.call_async(store, ()).await
}

async fn component_command(
    pre: &wasmtime_wasi::p2::bindings::CommandPre<State>,
    store: &mut Store<State>,
) -> wasmtime::Result<()> {
    let command = pre.instantiate_async(&mut *store).await?;
    match command.wasi_cli_run().call_run(store).await? {
        Ok(()) => Ok(()),
        Err(()) => Err(wasmtime_wasi::I32Exit(1).into()),
    }
}

async fn typed_tool(
    pre: &typed::ToolPre<State>,
    store: &mut Store<State>,
    arguments: &str,
    gauges: &Gauges,
) -> End {
    let answered = async {
        let tool = pre.instantiate_async(&mut *store).await?;
        tool.call_invoke(&mut *store, arguments).await
    };
    match answered.await {
        Ok(Ok(result)) => match gauges.recorder.answer(result.len()) {
            Ok(()) => returned(serde_json::from_str(&result)),
            Err(stop) => stop.into(),
        },
        Ok(Err(typed::a2g::tool::types::ToolError { code, message, detail })) => {
            let said = code.len() + message.len() + detail.as_ref().map_or(0, String::len);
            match gauges.recorder.answer(said) {
                Ok(()) => End::ToolError { code, message, detail: detail.as_deref().map(parsed_detail) },
                Err(stop) => stop.into(),
            }
        }
        // A typed tool that exits has not answered, whatever the code.
        Err(error) => end_of(&error, &gauges.memory)
            .unwrap_or(End::Exited { code: 0, stderr_tail: gauges.recorder.stderr_tail() }),
    }
}

/// The result of a command: its standard output as JSON, `null` when it wrote nothing.
fn command_result(stdout: &[u8]) -> End {
    if stdout.iter().all(u8::is_ascii_whitespace) {
        return End::Returned(Value::Null);
    }
    returned(serde_json::from_slice(stdout))
}

/// A result that was written down, as [`Sandbox::execute`] would give it.
#[must_use]
pub fn parsed_result(text: &str) -> End {
    returned(serde_json::from_str(text))
}

/// More of a tool's error: the value that it is, or the text when no reader of the report could read that.
#[must_use]
pub fn parsed_detail(text: &str) -> Value {
    readable(serde_json::from_str(text)).unwrap_or_else(|| Value::String(text.to_owned()))
}

/// How deep a result may be. A report holds it two levels down, and readers stop at 64.
const DEEPEST_RESULT: usize = 48;

/// A result that every reader of the report can read, or none.
fn returned(result: serde_json::Result<Value>) -> End {
    readable(result).map_or(End::ResultNotJson, End::Returned)
}

/// A value that is not too deep for a report.
fn readable(value: serde_json::Result<Value>) -> Option<Value> {
    fn fits(value: &Value, left: usize) -> bool {
        match value {
            Value::Array(items) => left > 0 && items.iter().all(|item| fits(item, left - 1)),
            Value::Object(members) => left > 0 && members.values().all(|member| fits(member, left - 1)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        }
    }
    value.ok().filter(|value| fits(value, DEEPEST_RESULT))
}
