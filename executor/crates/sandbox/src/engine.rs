//! The wasmtime engine and its clock.
//!
//! Every WebAssembly proposal that this executor does not need is disabled here. This is the only place that
//! creates a [`Config`], so that a module compiled in one process can be loaded in another. The ticker advances
//! the epoch once per [`TICK`] while a guest runs, and sleeps otherwise.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use wasmtime::{
    Config, Engine, EngineWeak, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig,
    RegallocAlgorithm, WasmFeatures,
};

/// The interval at which a running guest is checked. A guest overshoots its deadline by at most this much
/// plus one host call.
pub(super) const TICK: Duration = Duration::from_millis(1);

/// The guest's share of the fibre's stack; the rest is for host calls.
// An overflow in a host call ends the whole process, but one in the guest's own part ends only its run. CPython counts
// on far more than wasmtime's default of 512 KiB before its own limit on recursion.
const WASM_STACK_BYTES: usize = 2 << 20;
/// The stack of the fibre that a guest and its host calls run on.
const FIBRE_STACK_BYTES: usize = 3 << 20;

/// Maximum number of core instances in one execution.
// A componentised tool has four core instances, one of `componentize-py` fourteen; the rest is for components
// that compose others. These are constants and do not follow from the catalogue: the pool reserves addresses for
// all of them but memory only for those that a guest uses, so smaller values save nothing measurable.
pub(super) const MAX_INSTANCES: u32 = 64;
pub(super) const MAX_MEMORIES: u32 = 16;
pub(super) const MAX_TABLES: u32 = 64;
/// Maximum size of wasmtime's records for one component with its core instances, in bytes.
// CPython needs more than wasmtime's default of one megabyte.
const MAX_INSTANCE_BYTES: usize = 8 << 20;
/// Maximum number of elements in one table.
const MAX_TABLE_ELEMENTS: usize = 100_000;
/// Bytes of a memory or table that are cleared in place between two executions instead of being returned to the
/// kernel.
// About the amount that a small tool touches, so that its next run does not fault in every page again.
const KEEP_RESIDENT_BYTES: usize = 256 << 10;

/// The proposals that a tool may use. A module that uses another is rejected when it is compiled.
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

/// The proposals that [`CodeFeatures::exceptions`] adds. wasmtime keeps exceptions in a garbage-collected heap: one more
/// memory of the run, which only a module with exceptions has, and which counts against the memory limit.
const EXCEPTIONS: WasmFeatures = WasmFeatures::EXCEPTIONS.union(WasmFeatures::GC_TYPES);

/// The settings that compiled code has to have in common with the engine that loads it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CodeFeatures {
    /// Generated code counts its instructions, which makes it slower and is needed for a limit on fuel.
    pub meters_fuel: bool,
    /// Modules may use exceptions, as those of interpreters in C++ do.
    pub exceptions: bool,
}

impl CodeFeatures {
    /// The options of the executor's own processes that compile or load code.
    #[must_use]
    pub fn options(self) -> &'static [&'static str] {
        match (self.meters_fuel, self.exceptions) {
            (false, false) => &[],
            (true, false) => &["--fuel"],
            (false, true) => &["--exceptions"],
            (true, true) => &["--fuel", "--exceptions"],
        }
    }
}

/// An engine for `concurrent` executions at once.
///
/// # Errors
/// If the machine cannot reserve the address space.
pub(super) fn pooling_engine(concurrent: u32, features: CodeFeatures) -> wasmtime::Result<Engine> {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(concurrent)
        .total_core_instances(concurrent.saturating_mul(MAX_INSTANCES))
        .total_memories(concurrent.saturating_mul(MAX_MEMORIES))
        .total_tables(concurrent.saturating_mul(MAX_TABLES))
        .total_stacks(concurrent)
        .total_gc_heaps(concurrent)
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
    let mut config = config(features);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config)
}

/// An engine that only compiles and reserves no address space.
///
/// # Errors
/// If the machine's processor is not supported.
pub(super) fn compiler_engine(features: CodeFeatures) -> wasmtime::Result<Engine> {
    Engine::new(&config(features))
}

/// An engine for code that runs once in this process, which is compiled in two thirds of the time.
///
/// # Errors
/// As [`compiler_engine`].
pub(super) fn snapshot_engine(features: CodeFeatures) -> wasmtime::Result<Engine> {
    let mut config = config(features);
    config.cranelift_opt_level(OptLevel::None).cranelift_regalloc_algorithm(RegallocAlgorithm::SinglePass);
    Engine::new(&config)
}

/// The settings that determine if compiled code fits an engine: the same in the server, the zygote and the
/// compiler's process.
fn config(features: CodeFeatures) -> Config {
    let mut config = Config::new();
    let proposals = if features.exceptions { FEATURES.union(EXCEPTIONS) } else { FEATURES };
    // Every proposal is set, so that one that a later wasmtime enables by default stays off.
    for (_, flag) in WasmFeatures::all().iter_names() {
        config.wasm_features(flag, proposals.contains(flag));
    }
    // Fuel is counted only if the operator limits it: a tight loop took 1.67 s with the counter, and 1.46 s without.
    config
        .epoch_interruption(true)
        .consume_fuel(features.meters_fuel)
        .concurrency_support(false)
        .max_wasm_stack(WASM_STACK_BYTES)
        .async_stack_size(FIBRE_STACK_BYTES)
        .wasm_backtrace_max_frames(None)
        .memory_init_cow(true);
    config
}

/// Advances the epoch of one engine while at least one [`TickerGuard`] exists.
// The thread starts at the first use and not with the engine, because a process that forks must have no other
// thread.
#[derive(Clone)]
pub(super) struct Ticker {
    engine: EngineWeak,
    max_idle_ticks: u32,
    state: Arc<TickerState>,
}

#[derive(Debug, Default)]
struct TickerState {
    running: AtomicUsize,
    is_started: Mutex<bool>,
    is_asleep: Mutex<bool>,
    wake: Condvar,
}

/// The number of ticks for which the ticker of a shared engine continues after the last execution.
// A series of small executions then does not wake the thread for each of them. A child has one guest, and its ticker
// sleeps at once: at a CPU limit of 1 % an idle ticker would use more than the guest, whose process is charged for it.
const MAX_IDLE_TICKS: u32 = 500;

/// Keeps the ticker awake.
#[derive(Debug)]
pub(super) struct TickerGuard(Arc<TickerState>);

impl Ticker {
    pub(super) fn new(engine: &Engine, concurrent: u32) -> Self {
        let max_idle_ticks = if concurrent > 1 { MAX_IDLE_TICKS } else { 0 };
        Self { engine: engine.weak(), max_idle_ticks, state: Arc::default() }
    }

    /// Starts the thread, unless it runs already. The thread runs `init` first, and ends when the engine is dropped.
    ///
    /// # Errors
    /// If no thread can be started, or `init` fails.
    pub(super) fn start(
        &self,
        init: impl FnOnce() -> std::io::Result<()> + Send + 'static,
    ) -> std::io::Result<()> {
        let mut is_started = self.state.is_started.lock();
        if *is_started {
            return Ok(());
        }
        let engine = self.engine.clone();
        let max_idle_ticks = self.max_idle_ticks;
        let state = Arc::clone(&self.state);
        let (result_tx, result_rx) = std::sync::mpsc::sync_channel(1);
        std::thread::Builder::new().name("epoch-ticker".into()).spawn(move || {
            let result = init();
            let has_failed = result.is_err();
            let _nobody_waits = result_tx.send(result);
            if has_failed {
                return;
            }
            let mut idle_ticks = 0;
            while let Some(engine) = engine.upgrade() {
                std::thread::sleep(TICK);
                engine.increment_epoch();
                drop(engine);
                idle_ticks = if state.running.load(Ordering::SeqCst) > 0 { 0 } else { idle_ticks + 1 };
                if idle_ticks > max_idle_ticks {
                    state.sleep_until_needed();
                    idle_ticks = 0;
                }
            }
        })?;
        // `init` may confine the thread: the guest must not start before that has succeeded.
        result_rx.recv().map_err(std::io::Error::other)??;
        *is_started = true;
        Ok(())
    }

    /// Keeps the ticker awake while the returned guard lives.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn keep_awake(&self) -> std::io::Result<TickerGuard> {
        self.start(|| Ok(()))?;
        self.state.running.fetch_add(1, Ordering::SeqCst);
        let mut is_asleep = self.state.is_asleep.lock();
        if std::mem::take(&mut *is_asleep) {
            self.state.wake.notify_one();
        }
        Ok(TickerGuard(Arc::clone(&self.state)))
    }
}

impl TickerState {
    fn sleep_until_needed(&self) {
        let mut is_asleep = self.is_asleep.lock();
        // A guard that was counted before this lock was taken is visible here; one that is counted later finds
        // `is_asleep` set and wakes the thread. The timeout lets the thread notice a dropped engine.
        *is_asleep = self.running.load(Ordering::SeqCst) == 0;
        while *is_asleep {
            let timeout = self.wake.wait_for(&mut is_asleep, Duration::from_secs(10));
            if timeout.timed_out() {
                *is_asleep = false;
            }
        }
    }
}

impl Drop for TickerGuard {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticker_sleeps_while_no_guest_runs() {
        let engine = compiler_engine(CodeFeatures::default()).unwrap();
        for concurrent in [1, 2] {
            let ticker = Ticker::new(&engine, concurrent);
            let is_asleep = || *ticker.state.is_asleep.lock();
            let guard = ticker.keep_awake().unwrap();
            std::thread::sleep(TICK * (2 * ticker.max_idle_ticks + 100));
            assert!(!is_asleep(), "it sleeps while a guest runs");
            drop(guard);
            let is_asleep_after_a_tick = |_| {
                std::thread::sleep(TICK);
                is_asleep()
            };
            // A busy machine takes longer than the ticks for which a shared ticker goes on.
            assert!((0..20_000).any(is_asleep_after_a_tick), "it goes on without a guest");
            let _guard = ticker.keep_awake().unwrap();
            assert!(!is_asleep(), "it sleeps although a guest has begun");
        }
    }
}
