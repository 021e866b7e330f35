//! The set-up of a [`Sandbox`].

use super::engine::CodeFeatures;
use super::{Sandbox, SandboxError, engine, handles_per_run, linkers, network, preopens};
use a2g_capability::{Authority, EngineId};
use a2g_types::clock::{Clock, SystemClock};
use std::sync::Arc;

/// The settings of a [`Sandbox`]. Each has a default: one execution at once, no nested ones, no further features of
/// code, the machine's clocks, and the permits of the process.
#[must_use = "a builder does nothing before `build`"]
pub struct SandboxBuilder {
    concurrent: u32,
    nested: u32,
    features: CodeFeatures,
    clock: Arc<dyn Clock>,
    engine_id: Option<EngineId>,
}

impl SandboxBuilder {
    pub(super) fn new() -> Self {
        let features = CodeFeatures::default();
        Self { concurrent: 1, nested: 0, features, clock: Arc::new(SystemClock), engine_id: None }
    }

    /// The number of executions at once. Address space is reserved for each.
    pub fn concurrent(mut self, executions: u32) -> Self {
        self.concurrent = executions;
        self
    }

    /// The number of executions that others call, in addition to [`Self::concurrent`]. Each execution has its share of
    /// handles as if there were none.
    pub fn nested(mut self, executions: u32) -> Self {
        self.nested = executions;
        self
    }

    /// The features of code. Code that was compiled with others cannot be loaded.
    pub fn features(mut self, features: CodeFeatures) -> Self {
        self.features = features;
        self
    }

    /// The clocks of deadlines and measurements.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Runs the permits of this authority, and of no other. Without it, the sandbox runs the permits of the process's only
    /// authority ([`Authority::take`]).
    pub fn authority(mut self, authority: &Authority) -> Self {
        self.engine_id = authority.engine();
        self
    }

    /// Sets up the engine.
    ///
    /// # Ambient Authority
    /// Creates an empty folder in the system's temporary folder and unlinks its name again. Raises the process's soft limit
    /// on descriptors to its hard limit.
    ///
    /// # Errors
    /// [`SandboxError`] when the machine cannot reserve the address space.
    pub fn build(self) -> Result<Sandbox, SandboxError> {
        let Self { concurrent, nested, features, clock, engine_id } = self;
        let engine_error = |error: wasmtime::Error| SandboxError::Engine(error.into());
        let executions = concurrent.saturating_add(nested);
        let engine = engine::pooling_engine(executions, features).map_err(engine_error)?;
        Ok(Sandbox {
            core: linkers::core_linker(&engine).map_err(engine_error)?,
            component_with_network: {
                let mut component_with_network = linkers::component_linker(&engine).map_err(engine_error)?;
                network::link(&mut component_with_network).map_err(engine_error)?;
                component_with_network
            },
            component: linkers::component_linker(&engine).map_err(engine_error)?,
            ticker: engine::Ticker::new(&engine, executions),
            engine,
            preopens: preopens::Preopens::new()?,
            max_handles: handles_per_run(concurrent),
            meters_fuel: features.meters_fuel,
            clock,
            engine_id,
        })
    }
}
