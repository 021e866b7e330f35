//! The part that runs calls.

pub(super) mod admission;
pub(super) mod checks;
mod execution;
pub(super) mod nested;
pub(super) mod passing;
mod phases;
pub(super) mod stored_calls;

use self::passing::Passing;
use self::stored_calls::{CallStore, StoredCalls};
use super::claims::Claims;
use super::compile_waits::CompileWaits;
use super::current_catalog::CurrentCatalog;
use super::effects::EffectsFolder;
use super::fleet::Node;
use super::open_intents::OpenIntents;
use super::output::ExpectedOutput;
use super::pending::Pending;
use super::policies::Policies;
use super::query::Queries;
use super::questions::Peers;
use super::refusals::Refusals;
use super::slots::Slots;
use super::subscribers::Subscribers;
use super::tool_sessions::ToolSessions;
use super::waits::Waits;
use super::{ExecutorSettings, Parts};
use a2g_journal::IntentClaims;
use a2g_metrics::Metrics;
use a2g_sandbox::egress::Egress;
use a2g_types::clock::Clock;
use a2g_types::durability::Durability;
use a2g_types::ident::AgentDid;
use a2g_types::session::SessionHandle;
use std::sync::Arc;

/// The part that runs calls.
pub struct Engine {
    settings: Arc<ExecutorSettings>,
    catalogue: Arc<CurrentCatalog>,
    policies: Arc<Policies>,
    refusals: Arc<Refusals>,
    journal_claims: Arc<IntentClaims>,
    durability: Durability,
    node: Arc<Node>,
    peers: Arc<Peers>,
    passing: Arc<Passing>,
    stored_calls: Arc<StoredCalls>,
    waits: Arc<Waits>,
    pending: Arc<Pending>,
    slots: Arc<Slots>,
    compile_waits: CompileWaits,
    intents: Arc<OpenIntents>,
    subscribers: Arc<Subscribers>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    /// The network access of runs; `None` if no run may use the network.
    egress: Option<Arc<Egress>>,
    queries: Arc<Queries>,
    call_store: Arc<CallStore>,
    claims: Arc<Claims>,
    output: ExpectedOutput,
    effects: Arc<EffectsFolder>,
    tool_sessions: Arc<ToolSessions>,
}

impl Engine {
    pub(super) fn new(
        parts: &Parts,
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
            journal_claims: Arc::clone(&parts.journal.claims),
            durability: parts.journal.durability(),
            node: Arc::clone(&parts.node),
            peers: Arc::clone(&parts.peers),
            passing: Arc::clone(&parts.passing),
            stored_calls: Arc::clone(&parts.stored_calls),
            waits: Arc::clone(&parts.waits),
            pending: Arc::clone(&parts.pending),
            slots: Arc::clone(&parts.slots),
            compile_waits: parts.compile_waits.clone(),
            intents: Arc::clone(&parts.intents),
            subscribers: Arc::clone(&parts.subscribers),
            metrics: Arc::clone(&parts.metrics),
            clock: Arc::clone(&parts.clock),
            egress: parts.egress.clone(),
            effects: Arc::clone(&parts.effects),
            tool_sessions: Arc::clone(&parts.tool_sessions),
            queries,
        }
    }

    /// Reads every secret again before it is used next.
    pub fn forget_secrets(&self) {
        if let Some(egress) = &self.egress {
            egress.forget_secrets();
        }
    }

    /// Ends a session of an agent, on behalf of its caller, or of an operator if `caller` is `None`. A turn
    /// that runs goes on, and is the last one. Returns `false` if there is no such session.
    pub fn end_session(&self, handle: SessionHandle, agent: &AgentDid, caller: Option<&str>) -> bool {
        self.tool_sessions.end_one(handle, agent, caller)
    }
}
