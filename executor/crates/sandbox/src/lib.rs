//! One execution in one store.
//!
//! ```text
//! Artifact + Permit + Input ─▶ Execution::begin ─▶ execute ─▶ Outcome
//!                                                   │ create the store: limiter, throttle, deadline, streams, preopens
//!                                                   │ read the limits back from the live store
//!                                                   │ run the guest, check it at every epoch tick
//!                                                   └ drop the store
//! ```
//! [`Sandbox::execute`] works in any process: it needs a thread that may block, and a tokio runtime for
//! its timers. It never panics because of a guest, never trusts a number that a guest supplies, and never
//! reuses a store, except for the turns of one session ([`SessionStore`]).
//!
//! # Example
//! A module runs under a grant in your own program. The module prints its result, as every command does:
//!
//! ```
//! use a2g_sandbox::capability::{Authority, Ceilings, Claims, Grant, Layer, Limit, Mounts, Permit};
//! use a2g_sandbox::{Contract, End, Input, Network, Sandbox};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let wasm = wat::parse_str(r#"(module
//!     (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
//!     (memory (export "memory") 1)
//!     (data (i32.const 0) "\08\00\00\00\02\00\00\0042")
//!     (func (export "_start") (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))))"#)?;
//!
//! let ceilings = Ceilings::closed();
//! let authority = Authority::for_engine().ok_or("this process has another authority")?;
//! let grant = Grant::meet(&authority, [(Layer::Verdict, Claims::default())], &ceilings)?;
//! let permit = Permit::open(grant, &Mounts::new(Vec::new())?, &ceilings.areas, |_| true)?;
//!
//! let sandbox = Sandbox::builder().authority(&authority).build()?;
//! let artifact = sandbox.compile(&wasm, Contract::Command)?;
//! let execution = sandbox.begin(&permit, Network::Off, Arc::default());
//! let run = sandbox.execute(&artifact, permit, Input::Arguments("{}".to_owned()), &execution);
//! let outcome = tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(run);
//!
//! assert!(matches!(outcome.end, End::Returned(result) if result.as_str() == "42"));
//! assert!(outcome.metrics.peak_memory_bytes <= ceilings.limits[Limit::Memory]);
//! # Ok(())
//! # }
//! ```
//! Here the module runs in the calling process. The executor runs it in a confined process, which `a2g-isolate`
//! provides. `examples/` has more: a granted folder, the end of a run at a limit, two engines in one process.
//!
//! # Features
//! Both are on by default.
//! - `egress`: the network access of runs ([`egress`]). Without it, a run has none, or a backend of its caller's own.
//! - `preview1`: WASI preview 1, which core modules import. Without it, only components have WASI.

// The example of the page that package indexes show.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod artifact;
mod budget;
mod budgeted;
mod builder;
mod calls;
mod denials;
pub mod egress;
mod engine;
mod events;
mod files;
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
#[cfg(feature = "preview1")]
mod preview1;
mod redacted_end;
mod session;
pub mod snapshot;
mod sockets;
mod staged;
mod state;
mod termination;
mod throttle;
mod typed;
mod walk;

pub use artifact::{Artifact, ArtifactError, Code, ModuleCompiler, is_component};
pub use builder::SandboxBuilder;
pub use calls::{
    CallAnswer, CallBackend, CallError, CallFuture, CallRequest, CallableTool, Calls, MAX_ARGUMENT_BYTES,
    ToolDefinition,
};
pub use engine::CodeFeatures;
pub use events::{Event, EventSink};
pub use session::SessionStore;
pub use termination::Abort;

// What the functions of this crate take and return, so that its users need no other crate.
pub use crate::egress::Network;
pub use a2g_capability as capability;
pub use a2g_types::clock::{Clock, SystemClock};
pub use a2g_types::json::JsonText;
pub use a2g_types::outcome;
pub use a2g_types::outcome::{AbortReason, End, Outcome};
pub use a2g_types::tool::Contract;

use a2g_capability::{EngineId, Grant, GrantView, PLACEHOLDER_BYTES, Permit, Roots, Upper};
use a2g_types::error_chain::BoxedError;
use a2g_types::limit::{Access, Bound, Budgets, Layer, Limit};
use a2g_types::outcome::{GrantedArea, RunMetrics, Usage};
use artifact::{NetworkVariants, PreparedGuest};
use budget::Budget;
use files::Files;
use limiter::MemoryGauge;
pub use meter::Accounting;
use meter::{Meter, MeteredFuture};
use output::{GuestStream, OutputCollector, StdStream};
use redacted_end::redact_end;
use serde_json::Value;
use staged::Staged;
use state::{CurrentStats, Deadline, EffectiveLimits, Preopen, PreopenKind, RunStats, StoreState};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;
use termination::{TerminationReason, end_from_error, is_out_of_handles};
use wasmtime::component::{InstancePre, Linker as ComponentLinker};
use wasmtime::{Engine, Linker as CoreLinker, Store, UpdateDeadline};
use wasmtime_wasi::filesystem::WasiFilesystemView as _;
use wasmtime_wasi::p2::bindings::CommandPre;
use wasmtime_wasi::p2::bindings::filesystem::preopens::Host as _;
use wasmtime_wasi::{WasiCtxBuilder, WasiView as _};

/// Number of descriptors reserved for the process itself: connections, logs, the engine.
const OWN_DESCRIPTORS: u64 = 256;
/// Maximum number of bytes that one host call copies out of a guest.
// wasmtime's `set_hostcall_fuel` also bounds the buffer of one `fd_read` or `fd_write`, and a guest that reads
// a file in one call passes a buffer as large as the file: at 1 MiB, reading 2 MB would fail. Lists of poll
// subscriptions, which would need a smaller value, have their own limit.
const MAX_HOSTCALL_BYTES: usize = 16 << 20;
/// The only variable of a guest's environment besides those with placeholders: the names of its folders.
// The C library of Python knows them, and tells programs nothing of them.
const FOLDERS_VARIABLE: &str = "A2G_FOLDERS";

/// The engine, the linkers and the epoch ticker. The executor has one for each process.
pub struct Sandbox {
    engine: Engine,
    core: CoreLinker<StoreState>,
    component: ComponentLinker<StoreState>,
    /// `component` plus the network interfaces.
    component_with_network: ComponentLinker<StoreState>,
    ticker: engine::Ticker,
    preopens: preopens::Preopens,
    /// The process's own limit on handles per run, derived from its descriptor limit.
    max_handles: u64,
    meters_fuel: bool,
    clock: Arc<dyn Clock>,
    /// The engine whose permits it runs, besides those that name none.
    engine_id: Option<EngineId>,
}

/// A sandbox could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// wasmtime rejected the engine's settings or a linker definition.
    #[error("the WebAssembly engine cannot be set up")]
    Engine(#[source] BoxedError),
    /// The operating system refused a thread or a folder.
    #[error("the sandbox cannot be set up")]
    System(#[from] std::io::Error),
}

/// The input of a guest.
#[derive(Debug)]
#[non_exhaustive]
pub enum Input {
    /// A governed call: the arguments object as JSON text. Output is recorded.
    Arguments(String),
    /// A module that an operator runs directly: its standard streams are the executor's own.
    Passthrough {
        /// The command line, the program's name first.
        args: Vec<String>,
        /// The environment.
        env: Vec<(String, String)>,
    },
}

/// The store of a run that has ended. Dropping it clears the guest's memory for another guest.
pub struct EndedStore(Store<StoreState>);

impl EndedStore {
    /// Leaves the guest's memory as it is, for a process that ends with its guest.
    // Clearing the memory costs 64 of a child's 299 page faults.
    pub fn leak(self) {
        std::mem::forget(self.0);
    }
}

/// One execution, as other threads observe it during the run.
#[derive(Debug, Clone)]
pub struct Execution {
    stats: Arc<RunStats>,
    grant: GrantView,
    network: Network,
    calls: Calls,
    abort: Arc<Abort>,
    started_at: Instant,
}

/// The ways of a run out of its own process. The server decides on both.
#[derive(Debug, Clone, Default)]
pub struct Outside {
    /// Its network access.
    pub network: Network,
    /// Its calls to other tools.
    pub calls: Calls,
}

impl Execution {
    /// Begins a run under `grant` that reaches `outside`. The run's clock starts at `now`, its events go to `events`,
    /// and `accounting` selects the CPU clock that is charged to the guest.
    #[must_use]
    pub fn begin(
        grant: GrantView,
        outside: Outside,
        abort: Arc<Abort>,
        accounting: Accounting,
        events: EventSink,
        now: Instant,
    ) -> Self {
        let budget = Arc::new(Budget::new(grant.budgets()));
        Self {
            stats: Arc::new(RunStats {
                meter: Arc::new(Meter::new(accounting)),
                memory: Arc::new(MemoryGauge { events: events.clone(), ..MemoryGauge::default() }),
                collector: Arc::new(OutputCollector::new(
                    grant.output(),
                    Arc::clone(&budget),
                    events.clone(),
                    outside.network.clone(),
                )),
                denials: denials::Denials::new(events.clone()),
                effective_limits: std::sync::OnceLock::new(),
                budget,
                events,
            }),
            grant,
            network: outside.network,
            calls: outside.calls,
            abort,
            started_at: now,
        }
    }

    /// Records an event that another process has sent for the same run.
    pub fn record_event(&self, event: Event) {
        let stats = &self.stats;
        match event {
            Event::EffectiveLimits(effective_limits) => drop(stats.effective_limits.set(effective_limits)),
            Event::MemoryPeak(bytes) => stats.memory.record(bytes),
            Event::Log(level, message) => stats.collector.record_remote_line(level, &message),
            Event::Progress(progress) => stats.collector.record_remote_progress(progress),
            Event::Artifact(artifact) => stats.collector.record_remote_artifact(artifact),
            // The server's network session has already counted these denials; those of the child would be duplicates.
            Event::Denied(_, reason, _) if reason.is_egress_denial() => {}
            Event::Denied(what, reason, count) => stats.denials.merge_count(&what, reason, count),
        }
    }

    /// The run's output limit, in bytes.
    #[must_use]
    pub fn output_limit(&self) -> u64 {
        self.grant.output().value.bytes()
    }

    /// The grant that the run executes under.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The cancellation handle of the run.
    #[must_use]
    pub fn abort(&self) -> &Arc<Abort> {
        &self.abort
    }

    /// The run's network access.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The run's calls to other tools.
    #[must_use]
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// The start of the run, on the monotonic clock.
    #[must_use]
    pub fn started_at(&self) -> Instant {
        self.started_at
    }

    /// The moment at which the run's timeout expires.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.started_at + self.grant.timeout().value.duration()
    }

    /// The outcome at `now`, with `end` as the run's end, and the values of the run's secrets replaced where its guest wrote
    /// them. [`Sandbox::execute`] uses it, and so does the runner of
    /// a guest that is stuck in a host call and cannot produce its own outcome.
    #[must_use]
    pub fn outcome(&self, end: End, now: Instant) -> Outcome {
        let stats = &self.stats;
        let end = redact_end(&self.network, end);
        let output = stats.collector.finish();
        let (mut denied, mut denied_truncated) = self.network.denials();
        let (filesystem_denials, is_truncated) = stats.denials.list();
        denied.extend(filesystem_denials);
        denied_truncated |= is_truncated || denied.len() > Usage::MAX_DENIALS;
        denied.truncate(Usage::MAX_DENIALS);
        for denial in &mut denied {
            denial.what = self.network.redact_text(std::mem::take(&mut denial.what));
        }
        // A guest that was never instantiated has no live store to read the limits from, so the grant's
        // own values are reported.
        let effective_limits = stats.effective_limits.get().cloned().unwrap_or_else(|| EffectiveLimits {
            memory: self.grant.memory(),
            cpu: self.grant.cpu(),
            timeout: self.grant.timeout(),
            handles: self.grant.limit(Limit::Handles).value,
            filesystem: Vec::new(),
            blocked: Vec::new(),
            missing_roots: Vec::new(),
        });
        Outcome {
            end,
            metrics: RunMetrics {
                wall: now.saturating_duration_since(self.started_at),
                cpu: stats.meter.cpu_from_other_thread(),
                peak_memory_bytes: stats.memory.peak.load(std::sync::atomic::Ordering::Relaxed),
                output_bytes: stats.collector.bytes(),
                peak_resident_bytes: None,
                earlier_runs: 0,
            },
            output,
            usage: Usage {
                memory: effective_limits.memory,
                cpu: effective_limits.cpu,
                timeout: effective_limits.timeout,
                output: stats.collector.limit(),
                filesystem: effective_limits.filesystem,
                blocked: effective_limits.blocked,
                missing_roots: effective_limits.missing_roots,
                filesystem_emptied_by: self.grant.emptied_by(),
                effects: self.grant.effects(),
                budgets: stats.budget.limits().with(Limit::Handles, effective_limits.handles),
                spent: Some(stats.budget.usage()),
                network: self.grant.network(),
                network_used: self.network.usage(),
                denied,
                denied_truncated,
                changes: None,
                start_memory_bytes: None,
            },
        }
    }
}

impl Sandbox {
    /// The number of executions at once for which a process can reserve addresses: 64.5 GiB each, for the most memories
    /// of one, of the 128 TiB that a process has. Parts of these are in use: 1,400 executions were refused.
    pub const MAX_EXECUTIONS: u64 = 1000;

    /// The settings of a sandbox, each with its default.
    pub fn builder() -> SandboxBuilder {
        SandboxBuilder::new()
    }

    /// Starts the epoch ticker's thread, which otherwise starts with the first guest. The thread runs `init` first,
    /// for example to confine itself.
    ///
    /// # Errors
    /// If no thread can be started, or `init` fails.
    pub fn start_ticker(
        &self,
        init: impl FnOnce() -> std::io::Result<()> + Send + 'static,
    ) -> std::io::Result<()> {
        self.ticker.start(init)
    }

    /// Performs the per-thread initialisation that would otherwise delay the first guest.
    pub fn warm_up(&self) {
        // About 100 of a child's 299 page faults came from code that ran for the first time after the job had
        // arrived. A child runs this while it waits for the job. Mapping all code ahead of time, or running a
        // module beforehand, saved no more page faults.
        Engine::tls_eager_initialize();
        drop(Store::new(&self.engine, state::build_wasi(&mut WasiCtxBuilder::new())));
    }

    /// The empty placeholder folder for everything that is not granted. Guests find it open as `/`, so that
    /// attempts outside the grant are recorded; a confined process needs access to this folder as well.
    #[must_use]
    pub fn outside(&self) -> BorrowedFd<'_> {
        self.preopens.outside()
    }

    /// Opens the folders of a permit ahead of its runs, which then find them open.
    ///
    /// # Errors
    /// If the process has reached its limit on open descriptors, or may not open the folders.
    pub fn open_folders(&self, permit: &Permit) -> Result<(), BoxedError> {
        self.preopens.for_run(permit.roots(), permit.grant())?;
        Ok(())
    }

    /// A hash of wasmtime's version, the engine's settings and the processor, in hexadecimal. Compiled code can
    /// be loaded only where the hash is the same as when it was compiled.
    #[must_use]
    pub fn compatibility(&self) -> String {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.engine.precompile_compatibility_hash().hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Compiles and loads a module or component in this process. A hostile one is better compiled by a [`ModuleCompiler`]
    /// in a confined process. A core module runs only under grants of whole folders whose files change at once: see
    /// [`Code::componentised`].
    ///
    /// # Ambient Authority
    /// Creates a file without a name in the system's temporary folder, which holds the machine code.
    ///
    /// # Errors
    /// [`ArtifactError`] when the module is not valid or does not fit its contract.
    pub fn compile(&self, wasm: &[u8], contract: Contract) -> Result<Artifact, ArtifactError> {
        let machine_code = artifact::compile(&self.engine, wasm)?;
        let file_error = |error: std::io::Error| ArtifactError::Load(error.into());
        let mut file = tempfile::tempfile().map_err(file_error)?;
        file.write_all(&machine_code).map_err(file_error)?;
        let code = if is_component(wasm) { Code::component(&file) } else { Code::module(&file) };
        self.load(code.contract(contract))
    }

    /// Loads and links the output of a [`ModuleCompiler`].
    ///
    /// The code is trusted completely: it must be such an output, in a file that no other user can write and that does not
    /// change while the artifact exists. Machine code from elsewhere has every right of this process.
    ///
    /// # Errors
    /// [`ArtifactError::Load`] when the bytes were compiled for another engine, or the module needs more than the pool
    /// has for one execution; [`ArtifactError::Unlinkable`] when the module imports something that is not linked or
    /// lacks the export of its contract.
    pub fn load(&self, code: Code<'_>) -> Result<Artifact, ArtifactError> {
        let Code { compiled, is_component, componentised, contract } = code;
        let prepared = if is_component {
            match contract {
                Contract::Command => PreparedGuest::ComponentCommand(self.component_command(compiled)?),
                Contract::Typed => {
                    PreparedGuest::Typed(self.component(compiled, contract, typed::ToolPre::new)?)
                }
            }
        } else {
            let module = artifact::load_module(&self.engine, compiled)?;
            let exports = module.exports().map(|export| export.name()).collect::<Vec<_>>();
            let contract_mismatch = artifact::contract_mismatch(contract, &exports);
            match contract {
                Contract::Command => {
                    // Checked here, so that a module with a wrong `_start` is rejected when it is added and not
                    // at its first run.
                    let start = module.get_export("_start");
                    let start = start.as_ref().and_then(wasmtime::ExternType::func);
                    if !start.is_some_and(|start| start.params().len() == 0 && start.results().len() == 0) {
                        let missing = "it exports no function `_start` without parameters and results";
                        return Err(contract_mismatch(wasmtime::Error::msg(missing)));
                    }
                    let native = self.core.instantiate_pre(&module);
                    PreparedGuest::CoreCommand {
                        native: native.map_err(artifact::link_error(contract))?,
                        componentised: componentised.map(|code| self.component_command(code)).transpose()?,
                    }
                }
                Contract::Typed => {
                    return Err(contract_mismatch(wasmtime::Error::msg(
                        "a typed tool has to be a component",
                    )));
                }
            }
        };
        Ok(Artifact(prepared))
    }

    fn component_command(
        &self,
        compiled: &File,
    ) -> Result<NetworkVariants<CommandPre<StoreState>>, ArtifactError> {
        self.component(compiled, Contract::Command, CommandPre::new)
    }

    /// Links a component for runs without a network and, when it imports the network, for runs with one.
    fn component<P>(
        &self,
        compiled: &File,
        contract: Contract,
        wrap: impl Fn(InstancePre<StoreState>) -> wasmtime::Result<P>,
    ) -> Result<NetworkVariants<P>, ArtifactError> {
        let component = artifact::load_component(&self.engine, compiled)?;
        let component_type = component.component_type();
        let exports = component_type.exports(&self.engine).map(|(name, _)| name).collect::<Vec<_>>();
        let contract_mismatch = artifact::contract_mismatch(contract, &exports);
        let link_error = artifact::link_error(contract);
        if !network::is_imported(&component, &self.engine) {
            let pre = self.component.instantiate_pre(&component).map_err(link_error)?;
            return Ok(NetworkVariants {
                without_network: wrap(pre).map_err(contract_mismatch)?,
                with_network: None,
            });
        }
        // Without a network the imports are linked as functions that end the run with a reason, so that a tool
        // that uses the network only sometimes can be added, and can run without a network.
        let link = |linker: &ComponentLinker<StoreState>, has_network| {
            let mut linker = linker.clone();
            network::link_unavailable(&mut linker, &component, &self.engine, has_network)
                .map_err(&link_error)?;
            let pre = linker.instantiate_pre(&component).map_err(&link_error)?;
            wrap(pre).map_err(&contract_mismatch)
        };
        Ok(NetworkVariants {
            without_network: link(&self.component, false)?,
            with_network: Some(link(&self.component_with_network, true)?),
        })
    }

    /// Starts the clock of a run in this process and returns the run's [`Execution`]. `abort` can stop the run.
    #[must_use]
    pub fn begin(&self, permit: &Permit, network: Network, abort: Arc<Abort>) -> Execution {
        Execution::begin(
            permit.grant().clone(),
            Outside { network, calls: Calls::default() },
            abort,
            Accounting::Thread,
            EventSink::default(),
            self.clock.monotonic(),
        )
    }

    /// Runs one guest to its end. Starts no guest if `execution` was begun for another permit, or the permit is for another
    /// engine ([`Grant::engine`]).
    ///
    /// The future has to be polled on a thread that may block: the guest's file calls happen inside the poll, so
    /// that their CPU time is counted. Unless the execution has its process to itself ([`Accounting::Process`]), that
    /// thread has to do nothing else until the guest's end: the guest is charged for it.
    pub async fn execute(
        &self,
        artifact: &Artifact,
        permit: Permit,
        input: Input,
        execution: &Execution,
    ) -> Outcome {
        self.execute_keeping_store(artifact, permit, input, execution).await.0
    }

    /// Like [`Self::execute`]. Also returns the store, so that the outcome can be sent before the store's memory is cleared;
    /// `None` if the guest was not started, or stopped from outside.
    pub async fn execute_keeping_store(
        &self,
        artifact: &Artifact,
        permit: Permit,
        input: Input,
        execution: &Execution,
    ) -> (Outcome, Option<EndedStore>) {
        self.supervise(execution, self.run_guest(artifact, permit, input, execution)).await
    }

    /// Runs a guest until its end, its deadline or its cancellation. Returns the store that the guest gives
    /// back.
    async fn supervise<S>(
        &self,
        execution: &Execution,
        run: impl Future<Output = (End, Option<S>)>,
    ) -> (Outcome, Option<S>) {
        let guest = MeteredFuture::new(Arc::clone(&execution.stats.meter), &self.ticker, run);
        let (end, store) = tokio::select! {
            biased;
            end = guest => end.unwrap_or_else(|error| {
                let reason = format!("the thread of the epoch ticker cannot be started: {error}");
                (End::NotStarted(reason), None)
            }),
            // The epoch callback covers guests that compute; these two cover guests that wait in a host call.
            reason = execution.abort.wait() => (End::Aborted(reason), None),
            () = tokio::time::sleep_until(execution.deadline().into()) => (End::LimitReached(Limit::Time), None),
        };
        (execution.outcome(end, self.clock.monotonic()), store)
    }

    /// Runs a typed tool's `describe` and returns its name, version, description and arguments schema.
    ///
    /// # Errors
    /// [`ArtifactError::Unlinkable`] when the tool does not answer within the permit's limits.
    pub async fn describe(&self, artifact: &Artifact, permit: Permit) -> Result<[String; 4], ArtifactError> {
        let link_error = artifact::link_error(Contract::Typed);
        let PreparedGuest::Typed(tool) = &artifact.0 else {
            return Err(link_error(wasmtime::Error::msg("it does not export `describe`")));
        };
        let execution = self.begin(&permit, Network::Off, Arc::default());
        let description = MeteredFuture::new(Arc::clone(&execution.stats.meter), &self.ticker, async {
            let mut store = self.make_store(permit, &Input::Arguments(String::new()), &execution)?;
            tool.pick(false).instantiate_async(&mut store).await?.call_describe(&mut store).await
        });
        let description = tokio::time::timeout_at(execution.deadline().into(), description)
            .await
            .map_err(|_| link_error(wasmtime::Error::msg("`describe` did not answer in time")))?;
        let typed::a2g::tool::types::Descriptor { name, version, description, arguments_schema } =
            description.map_err(|error| link_error(error.into()))?.map_err(link_error)?;
        Ok([name, version, description, arguments_schema])
    }

    async fn run_guest(
        &self,
        artifact: &Artifact,
        permit: Permit,
        input: Input,
        execution: &Execution,
    ) -> (End, Option<EndedStore>) {
        let stats = &execution.stats;
        let mut store = match self.make_store(permit, &input, execution) {
            Ok(store) => store,
            Err(error) => {
                return (End::NotStarted(format!("its store cannot be created: {error:#}")), None);
            }
        };
        let guest_end = run(artifact, &mut store, input, stats).await;
        let end = store.data_mut().files.settle(guest_end);
        record_fuel(&store, &end, stats);
        (end, Some(EndedStore(store)))
    }

    /// Creates the store of one execution and reads the store's limits back.
    fn make_store(
        &self,
        mut permit: Permit,
        input: &Input,
        execution: &Execution,
    ) -> wasmtime::Result<Store<StoreState>> {
        let upper = permit.take_upper();
        let stats = &execution.stats;
        let grant = permit.grant();
        // The limits come from the execution and the folders from the permit, so both must have the same grant.
        if !execution.grant.is_same_grant(grant) {
            return Err(wasmtime::Error::msg("this execution was begun for another permit"));
        }
        if grant.engine().is_some() && grant.engine() != self.engine_id {
            return Err(wasmtime::Error::msg("the permit is for another engine"));
        }
        let files = self.files_of(&permit, upper, stats)?;
        let mut wasi = WasiCtxBuilder::new();
        // File calls block this thread and do not move to a thread pool: the thread's CPU clock then counts their
        // work, and no file call waits for another thread.
        wasi.allow_blocking_current_thread(true).max_random_size(budgeted::MAX_RANDOM_BYTES);
        let current = Arc::new(CurrentStats::new(Arc::clone(stats)));
        let stream =
            |channel, passthrough| GuestStream { current: Arc::clone(&current), channel, passthrough };
        match input {
            Input::Arguments(arguments) => {
                wasi.stdin(wasmtime_wasi::p2::pipe::MemoryInputPipe::new(arguments.clone()))
                    .stdout(stream(StdStream::Stdout, false))
                    .stderr(stream(StdStream::Stderr, false));
                if let Some(folders) = folder_names(permit.roots()) {
                    wasi.env(FOLDERS_VARIABLE, folders);
                }
                set_placeholders(&mut wasi, grant)?;
            }
            Input::Passthrough { args, env } => {
                wasi.inherit_stdin()
                    .args(args)
                    .envs(env)
                    .stdout(stream(StdStream::Stdout, true))
                    .stderr(stream(StdStream::Stderr, true));
            }
        }
        let mut wasi = state::build_wasi(&mut wasi);
        let (filesystem, mut kinds) = self.preopens.for_run(permit.roots(), grant)?;
        files.mark_missing(&mut kinds);
        *wasi.ctx().ctx.filesystem() = filesystem;
        let now = self.clock.monotonic();
        let state = StoreState {
            wasi,
            http: network::Http::new(execution.network.backend()),
            calls: calls::PendingCalls::new(execution.calls.clone()),
            network: grant.network(),
            limiter: limiter::Limiter::new(grant.memory(), Arc::clone(&stats.memory)),
            throttle: throttle::Throttle::new(grant.cpu(), now),
            deadline: Deadline { timeout: grant.timeout(), at: execution.deadline() },
            preopens: Vec::new(),
            walks: grant.checks_each_path(),
            files,
            walked_paths: HashMap::new(),
            links: !permit.roots().should_watch_outside(),
            hard_links: grant.budgets().hard_links || !permit.roots().should_watch_outside(),
            #[cfg(feature = "preview1")]
            renumbered: false,
            stats: Arc::clone(stats),
            current,
        };
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(MAX_HOSTCALL_BYTES);
        let handles = grant.limit(Limit::Handles).value.min(self.max_handles);
        let handles = usize::try_from(handles).unwrap_or(usize::MAX);
        // A file takes one component handle and one entry of the host's table, so both get the same limit.
        store.set_max_component_handles(handles);
        store.data_mut().wasi.ctx().table.set_max_capacity(handles);
        self.limit_execution(&mut store, execution)?;
        // The report states the limits of the live store, not those of the grant, so that a mistake in the
        // code above becomes visible.
        read_back(store.data_mut(), kinds)?;
        Ok(store)
    }

    /// Gives a store the fuel of one execution, and the checks that end it.
    fn limit_execution(&self, store: &mut Store<StoreState>, execution: &Execution) -> wasmtime::Result<()> {
        match (execution.grant.budgets().granted(Limit::Fuel), self.meters_fuel) {
            // Fails on an engine without fuel metering: a fuel limit that cannot be enforced is never ignored.
            (Some(fuel), _) => store.set_fuel(fuel)?,
            // In a metering engine, a new store has no fuel.
            (None, true) => store.set_fuel(u64::MAX)?,
            (None, false) => {}
        }
        // A store without a deadline traps at its first check.
        store.set_epoch_deadline(1);
        let clock = Arc::clone(&self.clock);
        let abort = Arc::clone(&execution.abort);
        store.epoch_deadline_callback(move |mut store| check_at_tick(store.data_mut(), &*clock, &abort));
        Ok(())
    }

    /// The files of a run. A permit that does not keep changes apart exactly if its grant says so is refused: the changes
    /// would take effect too early, or never.
    fn files_of(&self, permit: &Permit, upper: Option<Upper>, stats: &RunStats) -> wasmtime::Result<Files> {
        match (permit.grant().effects().value.is_direct(), upper) {
            (true, None) => Ok(Files::Direct),
            (false, Some(upper)) => {
                let budget = Arc::clone(&stats.budget);
                let staged = Staged::new(permit, upper, self.outside(), budget);
                let staged = staged.map_err(|error| {
                    wasmtime::Error::msg(format!("the folder for its file changes cannot be used: {error}"))
                })?;
                Ok(Files::Staged(Box::new(staged)))
            }
            (true, Some(_)) => Err(wasmtime::Error::msg(
                "its grant lets file changes take effect at once, and its permit has a folder to keep them apart",
            )),
            (false, None) => Err(wasmtime::Error::msg(
                "its grant keeps file changes apart, and its permit has no folder for them",
            )),
        }
    }
}

/// Sets the variables with placeholders of secrets, for one store.
fn set_placeholders(wasi: &mut WasiCtxBuilder, grant: &Grant) -> wasmtime::Result<()> {
    for placeholder in grant.placeholders() {
        let mut random = [0; PLACEHOLDER_BYTES];
        getrandom::fill(&mut random).map_err(wasmtime::Error::msg)?;
        wasi.env(placeholder.variable(), placeholder.text(random));
    }
    Ok(())
}

/// The names of the granted folders that exist, as a JSON list; `None` if there is none.
fn folder_names(roots: &Roots) -> Option<String> {
    let existing = roots.as_slice().iter().filter(|root| !root.is_missing);
    let names = existing.map(|root| root.guest.as_str()).collect::<Vec<_>>();
    if names.is_empty() { None } else { serde_json::to_string(&names).ok() }
}

/// Raises the process's soft descriptor limit to its hard limit. Returns the number of handles for each of `concurrent`
/// guests, which leaves [`OWN_DESCRIPTORS`] to the process.
fn handles_per_run(concurrent: u32) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // Failing to raise the limit is not an error: the share below follows from the limit that is effective.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _limit_is_unchanged = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let Some(limit) = getrlimit(Resource::Nofile).current else { return Budgets::MAX_HANDLES };
    let share = limit.saturating_sub(OWN_DESCRIPTORS) / u64::from(concurrent.max(1));
    share.max(Budgets::MIN_HANDLES)
}

/// Checks a running guest for cancellation, its deadline and its CPU share.
fn check_at_tick(
    state: &mut StoreState,
    clock: &dyn Clock,
    abort: &Abort,
) -> wasmtime::Result<UpdateDeadline> {
    if let Some(reason) = abort.reason() {
        return Err(TerminationReason::Aborted(reason).into());
    }
    let now = clock.monotonic();
    if now >= state.deadline.at {
        return Err(TerminationReason::Limit(Limit::Time).into());
    }
    Ok(match state.throttle.charge(state.stats.meter.cpu(), now) {
        Some(sleep) => UpdateDeadline::YieldCustom(1, Box::pin(tokio::time::sleep(sleep))),
        // A child has one thread, which sends the guest's bytes when the guest yields. Without this yield, a
        // guest that polls in a loop until it may write would never finish.
        None if state.http.is_on() || state.calls.is_on() => UpdateDeadline::Yield(1),
        None => UpdateDeadline::Continue(1),
    })
}

/// Reads the limits back from the live store, before the guest's first instruction.
fn read_back(state: &mut StoreState, kinds: Vec<PreopenKind>) -> wasmtime::Result<()> {
    let mut filesystem = Vec::new();
    let mut blocked = Vec::new();
    let mut missing_roots = Vec::new();
    for ((descriptor, path), kind) in state.filesystem().get_directories()?.into_iter().zip(kinds) {
        let wasmtime_wasi::filesystem::Descriptor::Dir(dir) = state.ctx().table.delete(descriptor)? else {
            return Err(wasmtime::Error::msg("a preopened folder is not a folder"));
        };
        if let PreopenKind::Granted { access, root, is_missing } = &kind {
            missing_roots.extend(is_missing.then(|| path.clone()));
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
                    blocked.extend(root.blocked_globs().iter().map(|Bound { value, layer }| {
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
    let effective_limits = EffectiveLimits {
        memory: state.limiter.limit(),
        cpu: state.throttle.limit(),
        timeout: state.deadline.timeout,
        handles: u64::try_from(state.ctx().table.max_capacity()).unwrap_or(u64::MAX),
        filesystem,
        blocked,
        missing_roots,
    };
    state.stats.report_limits(effective_limits);
    Ok(())
}

/// Runs a guest in its store.
async fn run(artifact: &Artifact, store: &mut Store<StoreState>, input: Input, stats: &RunStats) -> End {
    let is_governed = matches!(input, Input::Arguments(_));
    let has_network = store.data().http.is_on();
    let result = match &artifact.0 {
        // Native code runs only with whole trees whose files change at once: single paths are checked, and changes kept
        // apart, only over WASI 0.2.
        PreparedGuest::CoreCommand { native, .. } if !store.data().walks => core_command(native, store).await,
        PreparedGuest::CoreCommand { componentised: Some(pre), .. } => {
            component_command(pre.pick(has_network), store).await
        }
        PreparedGuest::CoreCommand { componentised: None, .. } => {
            return End::NotStarted(
                "it can run only under scopes that are whole trees, such as `/workspace/**`, and with file changes \
                 that take effect at once"
                    .to_owned(),
            );
        }
        PreparedGuest::ComponentCommand(pre) => component_command(pre.pick(has_network), store).await,
        PreparedGuest::Typed(pre) => match input {
            Input::Arguments(arguments) => {
                return typed_tool(pre.pick(has_network), store, &arguments, stats).await;
            }
            Input::Passthrough { .. } => {
                return End::NotStarted("run a typed tool by its name, with arguments".to_owned());
            }
        },
    };
    let end = match &result {
        Ok(()) => None,
        Err(error) => end_from_error(error, &stats.memory, || is_out_of_handles(&mut *store)),
    };
    match end {
        Some(End::Exited { code, .. }) => End::Exited { code, stderr_tail: stats.collector.stderr_tail() },
        Some(end) => end,
        None if is_governed => command_result(&stats.collector.take_stdout()),
        None => End::Returned(JsonText::null()),
    }
}

/// Records the fuel that a guest has left at its end.
fn record_fuel(store: &Store<StoreState>, end: &End, stats: &RunStats) {
    // Generated code writes its fuel counter back only at calls and returns, so the counter of a guest that
    // was stopped in between is stale and is not reported.
    if let (false, Ok(remaining)) = (is_stopped(end), store.get_fuel()) {
        stats.budget.record_remaining_fuel(remaining);
    }
}

/// Returns `true` if the guest was stopped between two of its own instructions.
fn is_stopped(end: &End) -> bool {
    matches!(end, End::Aborted(_) | End::LimitReached(Limit::Time))
}

async fn core_command(
    pre: &wasmtime::InstancePre<StoreState>,
    store: &mut Store<StoreState>,
) -> wasmtime::Result<()> {
    let instance = pre.instantiate_async(&mut *store).await?;
    let start = instance.get_typed_func::<(), ()>(&mut *store, "_start")?;
    start.call_async(store, ()).await
}

async fn component_command(
    pre: &CommandPre<StoreState>,
    store: &mut Store<StoreState>,
) -> wasmtime::Result<()> {
    let command = pre.instantiate_async(&mut *store).await?;
    match command.wasi_cli_run().call_run(store).await? {
        Ok(()) => Ok(()),
        Err(()) => Err(wasmtime_wasi::I32Exit(1).into()),
    }
}

async fn typed_tool(
    pre: &typed::ToolPre<StoreState>,
    store: &mut Store<StoreState>,
    arguments: &str,
    stats: &RunStats,
) -> End {
    let call = async {
        let tool = pre.instantiate_async(&mut *store).await?;
        tool.call_invoke(&mut *store, arguments).await
    };
    let answer = call.await;
    typed_end(answer, store, stats)
}

/// The end of a typed tool that has answered its call or failed.
fn typed_end(
    answer: wasmtime::Result<Result<String, typed::a2g::tool::types::ToolError>>,
    store: &mut Store<StoreState>,
    stats: &RunStats,
) -> End {
    match answer {
        Ok(Ok(result)) => match stats.collector.charge_result(result.len()) {
            Ok(()) => parse_result(&result),
            Err(stop) => stop.into(),
        },
        Ok(Err(typed::a2g::tool::types::ToolError { code, message, detail })) => {
            let length = code.len() + message.len() + detail.as_ref().map_or(0, String::len);
            match stats.collector.charge_result(length) {
                Ok(()) => End::ToolError { code, message, detail: detail.as_deref().map(error_detail) },
                Err(stop) => stop.into(),
            }
        }
        // A typed tool answers by returning, so an exit is a failure even with code 0.
        Err(error) => end_from_error(&error, &stats.memory, || is_out_of_handles(&mut *store))
            .unwrap_or(End::Exited { code: 0, stderr_tail: stats.collector.stderr_tail() }),
    }
}

/// The result of a command: its standard output as JSON, or `null` when the command wrote nothing.
fn command_result(stdout: &[u8]) -> End {
    if stdout.iter().all(u8::is_ascii_whitespace) {
        return End::Returned(JsonText::null());
    }
    std::str::from_utf8(stdout).map_or(End::ResultNotJson, parse_result)
}

/// Parses a tool's result. Text that is not JSON, or that some JSON parsers would reject, is [`End::ResultNotJson`].
#[must_use]
pub fn parse_result(text: &str) -> End {
    JsonText::parse(text).map_or(End::ResultNotJson, End::Returned)
}

/// Maximum size of the detail of a tool's error that is parsed as JSON, in bytes.
// The value becomes part of the error that a caller receives, which is held as a tree of many times the text's
// size.
const MAX_DETAIL_BYTES: usize = 16 << 10;

/// The detail of a tool's error as a JSON value. A text that is too long, or that [`parse_result`] would not accept,
/// becomes a JSON string.
#[must_use]
pub fn error_detail(text: &str) -> Value {
    let short = (text.len() <= MAX_DETAIL_BYTES).then(|| JsonText::parse(text).ok()).flatten();
    let value = short.and_then(|text| serde_json::from_str(text.as_str()).ok());
    value.unwrap_or_else(|| Value::String(text.to_owned()))
}
