//! The wasmtime engine and its clock.
//!
//! Every proposal that this executor does not need is switched off here, in the one place that
//! makes a [`Config`], so that a module compiled for one process runs in another. The ticker
//! advances the epoch once a [`TICK`] while something runs, and sleeps when nothing does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use wasmtime::{
    Config, Engine, EngineWeak, InstanceAllocationStrategy, PoolingAllocationConfig, WasmFeatures,
};

/// How often a running guest is looked at. A guest overshoots its deadline by at most this much
/// plus one host call.
pub(super) const TICK: Duration = Duration::from_millis(1);

/// The guest's own stack. What it does not use of the host's stack stays free for host calls.
const WASM_STACK_BYTES: usize = 512 << 10;
/// The stack of the fibre that a guest and its host calls run on.
const FIBRE_STACK_BYTES: usize = 1 << 20;

/// The most core instances, memories and tables of one execution. A componentised tool has four core
/// instances, one of `componentize-py` fourteen; the rest is room for components that compose others. The pool
/// reserves addresses for all of them, and memory only for those that a guest has.
pub(super) const MAX_INSTANCES: u32 = 64;
pub(super) const MAX_MEMORIES: u32 = 16;
pub(super) const MAX_TABLES: u32 = 64;
/// Bytes of the engine's own records of one component with its core instances. CPython takes more than the
/// megabyte that is the engine's default.
const MAX_INSTANCE_BYTES: usize = 8 << 20;
/// The most elements of one table.
const MAX_TABLE_ELEMENTS: usize = 100_000;
/// Bytes of a memory or table that are cleared in place rather than given back to the kernel
/// between two executions: what a small tool touches, so that it does not fault every page anew.
const KEEP_RESIDENT_BYTES: usize = 256 << 10;

/// The proposals that a tool may use. Everything else is refused when it is compiled.
const FEATURES: WasmFeatures = WasmFeatures::MUTABLE_GLOBAL
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::REFERENCE_TYPES)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::SIMD)
    .union(WasmFeatures::FLOATS)
    .union(WasmFeatures::MULTI_MEMORY)
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::COMPONENT_MODEL);

/// An engine for `concurrent` executions at once, whose guests count their instructions when it
/// `meters_fuel`.
///
/// # Errors
/// When the machine cannot reserve the address space.
pub(super) fn engine(concurrent: u32, meters_fuel: bool) -> wasmtime::Result<Engine> {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(concurrent)
        .total_core_instances(concurrent.saturating_mul(MAX_INSTANCES))
        .total_memories(concurrent.saturating_mul(MAX_MEMORIES))
        .total_tables(concurrent.saturating_mul(MAX_TABLES))
        .total_stacks(concurrent)
        .max_core_instances_per_component(MAX_INSTANCES)
        .max_memories_per_component(MAX_MEMORIES)
        .max_tables_per_component(MAX_TABLES)
        .max_memories_per_module(MAX_MEMORIES)
        .max_tables_per_module(MAX_TABLES)
        .max_core_instance_size(MAX_INSTANCE_BYTES)
        .max_component_instance_size(MAX_INSTANCE_BYTES)
        .table_elements(MAX_TABLE_ELEMENTS)
        .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
        .table_keep_resident(KEEP_RESIDENT_BYTES);
    let mut config = config(meters_fuel);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config)
}

/// An engine that only compiles, and reserves nothing.
///
/// # Errors
/// When the machine's processor is not supported.
pub(super) fn compiling(meters_fuel: bool) -> wasmtime::Result<Engine> {
    Engine::new(&config(meters_fuel))
}

/// What decides whether a compiled module fits an engine: the same in the server and in the
/// compiler's child.
fn config(meters_fuel: bool) -> Config {
    let mut config = Config::new();
    for (_, flag) in WasmFeatures::all().iter_names() {
        config.wasm_features(flag, FEATURES.contains(flag));
    }
    config
        .epoch_interruption(true)
        .consume_fuel(meters_fuel)
        .concurrency_support(false)
        .max_wasm_stack(WASM_STACK_BYTES)
        .async_stack_size(FIBRE_STACK_BYTES)
        .wasm_backtrace_max_frames(None)
        .memory_init_cow(true);
    config
}

/// Advances the epoch of one engine while at least one [`Running`] exists. In an engine for many
/// guests it goes on for a short while after, so that a stream of small executions does not wake a
/// thread for each of them. Its thread starts when it is first needed: a process that forks has to
/// have none.
#[derive(Clone)]
pub(super) struct Ticker {
    engine: EngineWeak,
    linger: u32,
    state: Arc<TickerState>,
}

#[derive(Debug, Default)]
struct TickerState {
    running: AtomicUsize,
    started: Mutex<bool>,
    asleep: Mutex<bool>,
    wake: Condvar,
}

/// How many ticks the ticker goes on after the last execution.
const LINGER_TICKS: u32 = 500;

/// Keeps the ticker awake.
#[derive(Debug)]
pub(super) struct Running(Arc<TickerState>);

impl Ticker {
    pub(super) fn new(engine: &Engine, concurrent: u32) -> Self {
        let linger = if concurrent > 1 { LINGER_TICKS } else { 0 };
        Self { engine: engine.weak(), linger, state: Arc::default() }
    }

    /// Starts the thread, once, which does `first` before all else. It ends when the engine is gone.
    ///
    /// # Errors
    /// When no thread can be started, and what `first` says.
    pub(super) fn start(
        &self,
        first: impl FnOnce() -> std::io::Result<()> + Send + 'static,
    ) -> std::io::Result<()> {
        let mut started = self.state.started.lock().unwrap_or_else(PoisonError::into_inner);
        if *started {
            return Ok(());
        }
        let (engine, linger, ticking) = (self.engine.clone(), self.linger, Arc::clone(&self.state));
        let (did, done) = std::sync::mpsc::sync_channel(1);
        std::thread::Builder::new().name("epoch-ticker".into()).spawn(move || {
            let first = first();
            let failed = first.is_err();
            let _nobody_waits = did.send(first);
            if failed {
                return;
            }
            let mut idle = 0;
            while let Some(engine) = engine.upgrade() {
                std::thread::sleep(TICK);
                engine.increment_epoch();
                drop(engine);
                idle = if ticking.running.load(Ordering::SeqCst) > 0 { 0 } else { idle + 1 };
                if idle > linger {
                    ticking.sleep_until_needed();
                    idle = 0;
                }
            }
        })?;
        done.recv().map_err(std::io::Error::other)??;
        *started = true;
        Ok(())
    }

    /// Counts one guest that computes for as long as the returned value lives.
    ///
    /// # Errors
    /// When the thread has to be started and cannot be.
    pub(super) fn running(&self) -> std::io::Result<Running> {
        self.start(|| Ok(()))?;
        self.state.running.fetch_add(1, Ordering::SeqCst);
        let mut asleep = self.state.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *asleep) {
            self.state.wake.notify_one();
        }
        Ok(Running(Arc::clone(&self.state)))
    }
}

impl TickerState {
    fn sleep_until_needed(&self) {
        let mut asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        // A `running()` that counted before this lock was taken is seen here; one that counts
        // later finds `asleep` set and wakes us. The time limit lets the thread see a dropped engine.
        *asleep = self.running.load(Ordering::SeqCst) == 0;
        while *asleep {
            let (guard, timeout) = self
                .wake
                .wait_timeout(asleep, Duration::from_secs(10))
                .unwrap_or_else(PoisonError::into_inner);
            asleep = guard;
            if timeout.timed_out() {
                *asleep = false;
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}
