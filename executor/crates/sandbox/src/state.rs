//! The data of one wasmtime store, and the part of it that other threads observe.

use super::budget::Budget;
use super::calls::PendingCalls;
use super::denials::Denials;
use super::events::{Event, EventSink};
use super::files::Files;
use super::limiter::{Limiter, MemoryGauge};
use super::meter::Meter;
use super::network::Http;
use super::output::OutputCollector;
use super::throttle::Throttle;
use super::walk::WalkedPath;
use a2g_capability::Root;
use a2g_types::limit::{Access, Bound};
use a2g_types::outcome::GrantedArea;
use a2g_types::quantity::{CpuPercent, MemoryLimit, Timeout};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use wasmtime_wasi::{WasiCtxBuilder, WasiCtxView, WasiView};

/// The context of both WASI versions, with preview 1's descriptor table.
#[cfg(feature = "preview1")]
pub(super) type Wasi = wasmtime_wasi::p1::WasiP1Ctx;

/// The context of WASI 0.2.
#[cfg(not(feature = "preview1"))]
pub(super) struct Wasi {
    context: wasmtime_wasi::WasiCtx,
    table: wasmtime::component::ResourceTable,
}

#[cfg(not(feature = "preview1"))]
impl WasiView for Wasi {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.context, table: &mut self.table }
    }
}

/// Makes the context of one store.
#[cfg(feature = "preview1")]
pub(super) fn build_wasi(builder: &mut WasiCtxBuilder) -> Wasi {
    builder.build_p1()
}

/// Makes the context of one store.
#[cfg(not(feature = "preview1"))]
pub(super) fn build_wasi(builder: &mut WasiCtxBuilder) -> Wasi {
    Wasi { context: builder.build(), table: wasmtime::component::ResourceTable::new() }
}

/// The data of one store. It belongs to one execution, or to the turns of one session (`session.rs`).
pub(super) struct StoreState {
    pub(super) wasi: Wasi,
    pub(super) http: Http,
    pub(super) calls: PendingCalls,
    /// The grant's decision on the network, and the layer that made it.
    pub(super) network: Bound<bool>,
    pub(super) limiter: Limiter,
    pub(super) throttle: Throttle,
    pub(super) deadline: Deadline,
    pub(super) preopens: Vec<Preopen>,
    pub(super) files: Files,
    /// `true` if every path has to be walked: some root is only partly granted, or the run's changes are kept apart.
    pub(super) walks: bool,
    /// The walked paths of the guest's open folders and listings, by handle; empty unless `walks`.
    pub(super) walked_paths: HashMap<u32, WalkedPath>,
    /// `true` if links may be created, which requires folders that the operator opened on the command line.
    pub(super) links: bool,
    /// `true` if files with more than one name (hard links) may be opened.
    pub(super) hard_links: bool,
    /// `true` if preview 1's descriptors 0 to 2 may have become files.
    #[cfg(feature = "preview1")]
    pub(super) renumbered: bool,
    pub(super) stats: Arc<RunStats>,
    /// The same statistics for the guest's open streams.
    pub(super) current: Arc<CurrentStats>,
}

/// The statistics of the current execution of a store. A guest's open streams outlast the turns of a session,
/// and what they do counts in the turn that uses them.
#[derive(Debug)]
pub(super) struct CurrentStats(Mutex<Arc<RunStats>>);

impl CurrentStats {
    pub(super) fn new(stats: Arc<RunStats>) -> Self {
        Self(Mutex::new(stats))
    }

    pub(super) fn get(&self) -> Arc<RunStats> {
        Arc::clone(&self.0.lock())
    }

    pub(super) fn replace(&self, stats: Arc<RunStats>) {
        *self.0.lock() = stats;
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    pub(super) timeout: Bound<Timeout>,
    pub(super) at: std::time::Instant,
}

/// A folder that the guest finds open at its start.
#[derive(Debug, Clone)]
pub(super) struct Preopen {
    /// The guest path of the folder.
    pub(super) path: String,
    pub(super) kind: PreopenKind,
    /// The store's own handle; the folder is recognised by pointer equality with it.
    pub(super) handle: Arc<std::fs::File>,
}

impl Preopen {
    /// The granted part of the folder; `None` for the placeholder folder, and for a folder that the operator opened
    /// with everything below it.
    pub(super) fn root(&self) -> Option<Arc<Root>> {
        match &self.kind {
            PreopenKind::Granted { root, .. } => root.clone(),
            PreopenKind::Outside => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PreopenKind {
    /// A granted root; without one, a folder that the operator opened on the command line.
    Granted {
        access: Bound<Access>,
        root: Option<Arc<Root>>,
        /// `true` if the folder does not exist on the host.
        is_missing: bool,
    },
    /// The empty placeholder folder, to which a guest's libc resolves every path outside the granted folders.
    // A guest's libc resolves a path among its open folders, so a path outside all of them would never reach
    // the host, and the attempt would not be recorded.
    Outside,
}

/// The statistics of an execution. Other threads read them while the guest runs or is stuck in a host call.
#[derive(Debug)]
pub(super) struct RunStats {
    pub(super) meter: Arc<Meter>,
    pub(super) memory: Arc<MemoryGauge>,
    pub(super) collector: Arc<OutputCollector>,
    pub(super) denials: Denials,
    /// Read back from the live store before the guest's first instruction.
    pub(super) effective_limits: OnceLock<EffectiveLimits>,
    pub(super) budget: Arc<Budget>,
    pub(super) events: EventSink,
}

impl RunStats {
    /// Notes the limits of the live store, and sends them.
    pub(super) fn report_limits(&self, limits: EffectiveLimits) {
        self.events.emit(|| Event::EffectiveLimits(limits.clone()));
        let _set_once = self.effective_limits.set(limits);
    }
}

/// The limits as read back from the live store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EffectiveLimits {
    pub(super) memory: Bound<MemoryLimit>,
    pub(super) cpu: Bound<CpuPercent>,
    pub(super) timeout: Bound<Timeout>,
    pub(super) handles: u64,
    pub(super) filesystem: Vec<GrantedArea>,
    pub(super) blocked: Vec<Bound<String>>,
    pub(super) missing_roots: Vec<String>,
}

impl WasiView for StoreState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        self.wasi.ctx()
    }
}
