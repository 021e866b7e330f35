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
mod counted;
mod denials;
mod engine;
mod filesystem;
mod label;
mod limiter;
mod linkers;
mod listing;
mod meter;
mod network;
mod output;
mod path_text;
mod preopens;
mod preview1;
mod sockets;
mod state;
mod stop;
mod throttle;
mod typed;
mod walk;
mod witness;

pub use artifact::{Artifact, ArtifactError, Code, ModuleCompiler, is_component};
pub use stop::Abort;
pub use witness::{Event, Witness};

use crate::capability::{Grant, GrantView, Permit};
use crate::clock::Clock;
use crate::egress::Network;
use crate::error_chain::BoxedError;
use crate::json::JsonText;
use crate::limit::{Access, Bound, Budgets, Layer, Limit};
use crate::outcome::{End, GrantedArea, Metrics, Outcome, Usage};
use crate::tool::Contract;
use artifact::{Linked, Prepared};
use budget::Budget;
use limiter::MemoryGauge;
pub use meter::Accounting;
use meter::{Meter, Metered};
use output::{Channel, GuestStream, Recorder};
use serde_json::Value;
use state::{Deadline, Gauges, InForce, Preopen, PreopenKind, State};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;
use stop::{Stop, end_of, lacks_handles};
use wasmtime::component::{InstancePre, Linker as ComponentLinker};
use wasmtime::{Engine, Linker as CoreLinker, Store, UpdateDeadline};
use wasmtime_wasi::filesystem::WasiFilesystemView as _;
use wasmtime_wasi::p2::bindings::CommandPre;
use wasmtime_wasi::p2::bindings::filesystem::preopens::Host as _;
use wasmtime_wasi::{WasiCtxBuilder, WasiView as _};

/// Descriptors of the process that no guest may have: connections, logs, the engine.
const OWN_DESCRIPTORS: u64 = 256;
/// The most bytes that one host call may copy out of a guest. A guest that reads or writes a file
/// in one call passes a buffer as large as the file, so this bounds that call too.
const MAX_HOSTCALL_BYTES: usize = 16 << 20;

/// The engine and everything that a guest can be linked with. One for each process.
pub struct Sandbox {
    engine: Engine,
    core: CoreLinker<State>,
    component: ComponentLinker<State>,
    /// As `component`, and the network.
    networked: ComponentLinker<State>,
    ticker: engine::Ticker,
    preopens: preopens::Preopens,
    /// How many handles a run may have, where the process has few descriptors.
    most_handles: u64,
    meters_fuel: bool,
    clock: Arc<dyn Clock>,
}

/// Why a sandbox could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The engine or a linker refused.
    #[error("the WebAssembly engine cannot be set up")]
    Engine(#[source] BoxedError),
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
    grant: GrantView,
    network: Network,
    abort: Arc<Abort>,
    began: Instant,
}

impl Execution {
    /// A run under `grant` over `network` whose clock starts at `now`, with `witness` told of what
    /// happens in it.
    /// `accounting` says whose CPU time is the guest's.
    #[must_use]
    pub fn begin(
        grant: GrantView,
        network: Network,
        abort: Arc<Abort>,
        accounting: Accounting,
        witness: Witness,
        now: Instant,
    ) -> Self {
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
            grant,
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

    /// What it may do.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
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

    /// When its clock started.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.began
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
        denied_truncated |= more_of_them || denied.len() > Usage::MAX_DENIALS;
        denied.truncate(Usage::MAX_DENIALS);
        // A guest that could not even be instantiated has no live store to read back from; what
        // would have been in force is the grant.
        let in_force = gauges.in_force.get().cloned().unwrap_or_else(|| InForce {
            memory: self.grant.memory(),
            cpu: self.grant.cpu(),
            timeout: self.grant.timeout(),
            handles: self.grant.budgets().handles,
            filesystem: Vec::new(),
            blocked: Vec::new(),
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
                blocked: in_force.blocked,
                filesystem_emptied_by: self.grant.emptied_by(),
                budgets: Budgets { handles: in_force.handles, ..gauges.budget.granted() },
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
    /// Sets up the engine for `concurrent` executions at once. One that `meters_fuel` has its guests count
    /// their instructions, which makes them slower; what the two kinds compile does not fit each other.
    ///
    /// # Ambient Authority
    /// Makes an empty folder in the system's temporary folder and takes its name away again.
    ///
    /// # Errors
    /// [`SandboxError`] when the machine cannot reserve the address space.
    pub fn new(concurrent: u32, meters_fuel: bool, clock: Arc<dyn Clock>) -> Result<Self, SandboxError> {
        let refused = |error: wasmtime::Error| SandboxError::Engine(error.into());
        let engine = engine::engine(concurrent, meters_fuel).map_err(refused)?;
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
            meters_fuel,
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

    /// Does what the first guest of a thread needs once, so that a thread that waits for a job has done it.
    pub fn warm_up(&self) {
        Engine::tls_eager_initialize();
        drop(Store::new(&self.engine, WasiCtxBuilder::new().build_p1()));
    }

    /// The empty folder that stands for all that is not granted. Guests are let into it, to see what
    /// they reach for, so a process that is confined has to be let into it as well.
    #[must_use]
    pub fn outside(&self) -> BorrowedFd<'_> {
        self.preopens.outside()
    }

    /// What decides whether compiled bytes can be loaded here: versions, settings and processor.
    #[must_use]
    pub fn compatibility(&self) -> String {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.engine.precompile_compatibility_hash().hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Loads what a [`ModuleCompiler`] made and links it.
    ///
    /// # Errors
    /// [`ArtifactError::Load`] when the bytes are of another engine, [`ArtifactError::Unlinkable`]
    /// when the module imports what is not linked or lacks the export of its contract.
    pub fn load(&self, code: Code<'_>) -> Result<Artifact, ArtifactError> {
        let Code { module, component, componentised, contract } = code;
        let load = |error: wasmtime::Error| ArtifactError::Load(error.into());
        let prepared = if component {
            match contract {
                Contract::Command => Prepared::ComponentCommand(self.component_command(module)?),
                Contract::Typed => Prepared::Typed(self.component(module, contract, typed::ToolPre::new)?),
            }
        } else {
            let module = artifact::load_module(&self.engine, module).map_err(load)?;
            let exports = module.exports().map(|export| export.name()).collect::<Vec<_>>();
            let misfit = artifact::misfit(contract, &exports);
            match contract {
                Contract::Command => {
                    let start = module.get_export("_start");
                    let start = start.as_ref().and_then(wasmtime::ExternType::func);
                    if !start.is_some_and(|start| start.params().len() == 0 && start.results().len() == 0) {
                        let missing = "it exports no function `_start` without parameters and results";
                        return Err(misfit(wasmtime::Error::msg(missing)));
                    }
                    let native = self.core.instantiate_pre(&module);
                    Prepared::CoreCommand {
                        native: native.map_err(artifact::unlinkable(contract))?,
                        componentised: componentised.map(|code| self.component_command(code)).transpose()?,
                    }
                }
                Contract::Typed => {
                    return Err(misfit(wasmtime::Error::msg("a typed tool has to be a component")));
                }
            }
        };
        Ok(Artifact(prepared))
    }

    fn component_command(&self, compiled: &File) -> Result<Linked<CommandPre<State>>, ArtifactError> {
        self.component(compiled, Contract::Command, CommandPre::new)
    }

    /// A component, linked for runs without a network, and for runs with one when it imports one.
    fn component<P>(
        &self,
        compiled: &File,
        contract: Contract,
        fit: impl Fn(InstancePre<State>) -> wasmtime::Result<P>,
    ) -> Result<Linked<P>, ArtifactError> {
        let component = artifact::load_component(&self.engine, compiled)
            .map_err(|error| ArtifactError::Load(error.into()))?;
        let shape = component.component_type();
        let exports = shape.exports(&self.engine).map(|(name, _)| name).collect::<Vec<_>>();
        let misfit = artifact::misfit(contract, &exports);
        let unlinkable = artifact::unlinkable(contract);
        if !network::is_imported(&component, &self.engine) {
            let pre = self.component.instantiate_pre(&component).map_err(unlinkable)?;
            return Ok(Linked { off: fit(pre).map_err(misfit)?, on: None });
        }
        let link = |linker: &ComponentLinker<State>, on| {
            let mut linker = linker.clone();
            network::link_none(&mut linker, &component, &self.engine, on).map_err(&unlinkable)?;
            let pre = linker.instantiate_pre(&component).map_err(&unlinkable)?;
            fit(pre).map_err(&misfit)
        };
        Ok(Linked { off: link(&self.component, false)?, on: Some(link(&self.networked, true)?) })
    }

    /// The handle by which a run under `permit` over `network` can be watched, and stopped by `abort`.
    /// The run's clock starts here.
    #[must_use]
    pub fn begin(&self, permit: &Permit, network: Network, abort: Arc<Abort>) -> Execution {
        Execution::begin(
            permit.grant().clone(),
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
        let end = run(artifact, &mut store, input, gauges).await;
        // What is stopped between two instructions has not written down how far it came.
        if let (false, Ok(left)) = (is_stopped(&end), store.get_fuel()) {
            gauges.budget.fuel_left(left);
        }
        match gauges.meter.accounting() {
            Accounting::Thread => drop(store),
            // The process ends with its guest: it is not put in order for another one.
            Accounting::Process => std::mem::forget(store),
        }
        end
    }

    /// Makes the store of one execution and reads its limits back.
    fn store(&self, permit: Permit, input: &Input, execution: &Execution) -> wasmtime::Result<Store<State>> {
        let gauges = &execution.gauges;
        let grant = permit.grant();
        let mut wasi = WasiCtxBuilder::new();
        wasi.allow_blocking_current_thread(true).max_random_size(counted::MAX_RANDOM_BYTES);
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
            walks: !grant.whole_trees(),
            places: HashMap::new(),
            links: !permit.roots().watch_outside(),
            hard_links: grant.budgets().hard_links || !permit.roots().watch_outside(),
            renumbered: false,
            gauges: Arc::clone(gauges),
        };
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(MAX_HOSTCALL_BYTES);
        let handles = grant.budgets().handles.min(self.most_handles);
        let handles = usize::try_from(handles).unwrap_or(usize::MAX);
        // What a component names and what the host holds for it: the same file is one of each.
        store.set_max_component_handles(handles);
        store.data_mut().wasi.ctx().table.set_max_capacity(handles);
        match (grant.budgets().fuel, self.meters_fuel) {
            // An engine that counts none refuses.
            (Some(fuel), _) => store.set_fuel(fuel)?,
            (None, true) => store.set_fuel(u64::MAX)?,
            (None, false) => {}
        }
        store.set_epoch_deadline(1);
        let (clock, abort) = (Arc::clone(&self.clock), Arc::clone(&execution.abort));
        store.epoch_deadline_callback(move |mut store| at_tick(store.data_mut(), &*clock, &abort));
        read_back(store.data_mut(), kinds)?;
        Ok(store)
    }
}

/// How many handles one of `concurrent` guests may have, so that all of them together leave the
/// process descriptors of its own. Raises the process's soft limit to its hard one.
fn most_handles(concurrent: u32) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _as_it_was = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let Some(most) = getrlimit(Resource::Nofile).current else { return Budgets::MAX_HANDLES };
    let share = most.saturating_sub(OWN_DESCRIPTORS) / u64::from(concurrent.max(1));
    share.max(Budgets::MIN_HANDLES)
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
        // What goes to the network is sent between the guest's own steps, also when it does nothing but ask
        // whether that is done.
        None if state.http.is_on() => UpdateDeadline::Yield(1),
        None => UpdateDeadline::Continue(1),
    })
}

/// Reads the limits back from the live store, before the guest's first instruction.
fn read_back(state: &mut State, kinds: Vec<PreopenKind>) -> wasmtime::Result<()> {
    let (mut filesystem, mut blocked) = (Vec::new(), Vec::new());
    for ((descriptor, path), kind) in state.filesystem().get_directories()?.into_iter().zip(kinds) {
        let wasmtime_wasi::filesystem::Descriptor::Dir(dir) = state.ctx().table.delete(descriptor)? else {
            return Err(wasmtime::Error::msg("a preopened folder is not a folder"));
        };
        if let PreopenKind::Granted { access, root } = &kind {
            let value = if dir.perms.write_not_permitted() { Access::ReadOnly } else { Access::ReadWrite };
            let access = Bound { value, layer: access.layer };
            match root {
                Some(root) => {
                    filesystem.extend(root.areas().iter().map(|area| GrantedArea {
                        path: path.clone(),
                        pattern: area.value.to_string(),
                        access,
                        set_by: area.layer,
                    }));
                    blocked.extend(root.blocked().iter().map(|Bound { value, layer }| {
                        let value = value.text().to_owned();
                        Bound { value, layer: *layer }
                    }));
                }
                None => {
                    let pattern = format!("{}/**", path.trim_end_matches('/'));
                    filesystem.push(GrantedArea {
                        path: path.clone(),
                        pattern,
                        access,
                        set_by: Layer::Executor,
                    });
                }
            }
        }
        state.preopens.push(Preopen { path, kind, handle: dir.dir });
    }
    let in_force = InForce {
        memory: state.limiter.limit(),
        cpu: state.throttle.limit(),
        timeout: state.deadline.timeout,
        handles: u64::try_from(state.ctx().table.max_capacity()).unwrap_or(u64::MAX),
        filesystem,
        blocked,
    };
    state.gauges.witness.see(|| Event::InForce(in_force.clone()));
    let _set_once = state.gauges.in_force.set(in_force);
    Ok(())
}

/// Runs a guest in its store.
async fn run(artifact: &Artifact, store: &mut Store<State>, input: Input, gauges: &Gauges) -> End {
    let governed = matches!(input, Input::Arguments(_));
    let network = store.data().http.is_on();
    let ended = match &artifact.0 {
        Prepared::CoreCommand { native, .. } if !store.data().walks => core_command(native, store).await,
        Prepared::CoreCommand { componentised: Some(pre), .. } => {
            component_command(pre.pick(network), store).await
        }
        Prepared::CoreCommand { componentised: None, .. } => {
            return End::Unlinkable("it cannot run under a scope other than whole trees".to_owned());
        }
        Prepared::ComponentCommand(pre) => component_command(pre.pick(network), store).await,
        Prepared::Typed(pre) => match input {
            Input::Arguments(arguments) => {
                return typed_tool(pre.pick(network), store, &arguments, gauges).await;
            }
            Input::Passthrough { .. } => {
                return End::Unlinkable("a typed tool is run by its name, with arguments".to_owned());
            }
        },
    };
    let failed = match &ended {
        Ok(()) => None,
        Err(error) => end_of(error, &gauges.memory, || lacks_handles(&mut *store)),
    };
    match failed {
        Some(End::Exited { code, .. }) => End::Exited { code, stderr_tail: gauges.recorder.stderr_tail() },
        Some(end) => end,
        None if governed => command_result(&gauges.recorder.take_stdout()),
        None => End::Returned(JsonText::null()),
    }
}

/// Whether a guest was ended at a moment that was not its own.
fn is_stopped(end: &End) -> bool {
    matches!(end, End::Aborted(_) | End::LimitReached(Limit::Time))
}

async fn core_command(pre: &wasmtime::InstancePre<State>, store: &mut Store<State>) -> wasmtime::Result<()> {
    let instance = pre.instantiate_async(&mut *store).await?;
    let start = instance.get_typed_func::<(), ()>(&mut *store, "_start")?;
    start.call_async(store, ()).await
}

async fn component_command(pre: &CommandPre<State>, store: &mut Store<State>) -> wasmtime::Result<()> {
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
            Ok(()) => returned(&result),
            Err(stop) => stop.into(),
        },
        Ok(Err(typed::a2g::tool::types::ToolError { code, message, detail })) => {
            let said = code.len() + message.len() + detail.as_ref().map_or(0, String::len);
            match gauges.recorder.answer(said) {
                Ok(()) => End::ToolError { code, message, detail: detail.as_deref().map(error_detail) },
                Err(stop) => stop.into(),
            }
        }
        // A typed tool that exits has not answered, whatever the code.
        Err(error) => end_of(&error, &gauges.memory, || lacks_handles(&mut *store))
            .unwrap_or(End::Exited { code: 0, stderr_tail: gauges.recorder.stderr_tail() }),
    }
}

/// The result of a command: its standard output as JSON, `null` when it wrote nothing.
fn command_result(stdout: &[u8]) -> End {
    if stdout.iter().all(u8::is_ascii_whitespace) {
        return End::Returned(JsonText::null());
    }
    std::str::from_utf8(stdout).map_or(End::ResultNotJson, returned)
}

/// A result that every reader of the report can read, or none.
#[must_use]
pub fn returned(text: &str) -> End {
    JsonText::parse(text).map_or(End::ResultNotJson, End::Returned)
}

/// The longest detail of a tool's error that is kept as a value, in bytes. It becomes a part of the error that a
/// caller gets, which is a tree.
const MAX_DETAIL_BYTES: usize = 16 << 10;

/// More of a tool's error: the value that it is, or its text when it is long or no reader of the report could
/// read the value.
#[must_use]
pub fn error_detail(text: &str) -> Value {
    let short = (text.len() <= MAX_DETAIL_BYTES).then(|| JsonText::parse(text).ok()).flatten();
    let value = short.and_then(|text| serde_json::from_str(text.as_str()).ok());
    value.unwrap_or_else(|| Value::String(text.to_owned()))
}
