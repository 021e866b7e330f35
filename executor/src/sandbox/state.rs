//! What one store holds.

use super::budget::Budget;
use super::denials::Denials;
use super::limiter::{Limiter, MemoryGauge};
use super::meter::Meter;
use super::network::Http;
use super::output::Recorder;
use super::throttle::Throttle;
use super::witness::Witness;
use crate::limit::{Access, Bound, Layer};
use crate::outcome::GrantedTree;
use crate::quantity::{CpuPercent, MemoryLimit, Timeout};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::{WasiCtxView, WasiView};

/// The data of one store: one execution, never used again.
pub(super) struct State {
    /// Both versions of WASI over one context; preview 1 keeps its descriptor table in it.
    pub(super) wasi: WasiP1Ctx,
    pub(super) http: Http,
    /// Whether the grant has a network, and who said so.
    pub(super) network: Bound<bool>,
    pub(super) limiter: Limiter,
    pub(super) throttle: Throttle,
    pub(super) deadline: Deadline,
    pub(super) preopens: Vec<Preopen>,
    /// Whether links may be made: in folders that the operator opened on the command line.
    pub(super) links: bool,
    /// Whether files with another name may be opened.
    pub(super) hard_links: bool,
    /// Whether the descriptors 0 to 2 of preview 1 may have become files.
    pub(super) renumbered: bool,
    pub(super) gauges: Arc<Gauges>,
}

/// When the guest has to be gone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    pub(super) timeout: Bound<Timeout>,
    pub(super) at: std::time::Instant,
}

/// A folder that the guest finds open, in the order of its descriptors.
#[derive(Debug, Clone)]
pub(super) struct Preopen {
    /// The guest path of the folder.
    pub(super) path: String,
    pub(super) kind: PreopenKind,
    /// The store's own handle, to recognise the folder by.
    pub(super) handle: Arc<std::fs::File>,
}

/// What a preopened folder is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PreopenKind {
    /// A granted tree.
    Granted { access: Bound<Access>, set_by: Layer },
    /// The empty folder that stands for all that is not granted, so that reaching for it is seen.
    Outside,
}

/// What can be read of an execution from outside of its store, while it runs or is stuck.
#[derive(Debug)]
pub(super) struct Gauges {
    pub(super) meter: Arc<Meter>,
    pub(super) memory: Arc<MemoryGauge>,
    pub(super) recorder: Arc<Recorder>,
    pub(super) denials: Denials,
    /// Read back from the live store before the guest's first instruction.
    pub(super) in_force: OnceLock<InForce>,
    pub(super) budget: Arc<Budget>,
    /// Who is told of these limits.
    pub(super) witness: Witness,
}

/// The limits that the live store holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InForce {
    pub(super) memory: Bound<MemoryLimit>,
    pub(super) cpu: Bound<CpuPercent>,
    pub(super) timeout: Bound<Timeout>,
    pub(super) filesystem: Vec<GrantedTree>,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        self.wasi.ctx()
    }
}
