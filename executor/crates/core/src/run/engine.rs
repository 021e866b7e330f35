//! What runs calls.

use super::catalogue::Catalogue;
use super::claims::Claims;
use super::compile_waits::CompileWaits;
use super::fleet::Node;
use super::open_intents::OpenIntents;
use super::output::ExpectedOutput;
use super::passing::Passing;
use super::policies::Policies;
use super::query::Queries;
use super::questions::Peers;
use super::refusals::Refusals;
use super::slots::Slots;
use super::stored_calls::{CallStore, StoredCalls};
use super::stored_waits::StoredWaits;
use super::subscribers::Subscribers;
use super::waits::Waits;
use super::{ExecutorSettings, Parts};
use a2g_journal::Journal;
use a2g_metrics::Metrics;
use a2g_sandbox::egress::Egress;
use a2g_types::clock::Clock;
use std::sync::Arc;

/// What runs calls.
pub struct Engine {
    pub(super) settings: Arc<ExecutorSettings>,
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) policies: Arc<Policies>,
    pub(super) refusals: Arc<Refusals>,
    pub(super) journal: Arc<Journal>,
    pub(super) node: Arc<Node>,
    pub(super) peers: Arc<Peers>,
    pub(super) passing: Arc<Passing>,
    pub(super) stored_calls: Arc<StoredCalls>,
    pub(super) waits: Arc<Waits>,
    pub(super) stored_waits: Arc<StoredWaits>,
    pub(super) slots: Arc<Slots>,
    pub(super) compile_waits: CompileWaits,
    pub(super) intents: Arc<OpenIntents>,
    pub(super) subscribers: Arc<Subscribers>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Arc<dyn Clock>,
    /// The network access of runs; `None` if no run may use the network.
    pub(super) egress: Option<Arc<Egress>>,
    pub(super) queries: Arc<Queries>,
    pub(super) call_store: Arc<CallStore>,
    pub(super) claims: Arc<Claims>,
    pub(super) output: ExpectedOutput,
}

impl Engine {
    pub(super) fn new(
        parts: &Parts,
        egress: Option<Arc<Egress>>,
        output: ExpectedOutput,
        claims: Arc<Claims>,
        call_store: Arc<CallStore>,
        queries: Arc<Queries>,
    ) -> Self {
        Self {
            call_store,
            claims,
            output,
            settings: Arc::clone(&parts.settings),
            catalogue: Arc::clone(&parts.catalogue),
            policies: Arc::clone(&parts.policies),
            refusals: Arc::clone(&parts.refusals),
            journal: Arc::clone(&parts.journal),
            node: Arc::clone(&parts.node),
            peers: Arc::clone(&parts.peers),
            passing: Arc::clone(&parts.passing),
            stored_calls: Arc::clone(&parts.stored_calls),
            waits: Arc::clone(&parts.waits),
            stored_waits: Arc::clone(&parts.stored_waits),
            slots: Arc::clone(&parts.slots),
            compile_waits: parts.compile_waits.clone(),
            intents: Arc::clone(&parts.intents),
            subscribers: Arc::clone(&parts.subscribers),
            metrics: Arc::clone(&parts.metrics),
            clock: Arc::clone(&parts.clock),
            egress,
            queries,
        }
    }
}
