//! What runs calls.

use super::catalogue::Catalogue;
use super::claims::Claims;
use super::compile_waits::CompileWaits;
use super::due_denials::DueDenials;
use super::fleet::Node;
use super::open_intents::OpenIntents;
use super::orders::finish_order;
use super::output::ExpectedOutput;
use super::passing::Passing;
use super::policies::Policies;
use super::preview::Previews;
use super::query::Queries;
use super::questions::{Answers, Peers};
use super::refusals::Refusals;
use super::slots::Slots;
use super::stored_calls::{CallStore, StoredCalls, TakenOverCalls};
use super::stored_waits::StoredWaits;
use super::subscribers::Subscribers;
use super::waits::Waits;
use super::{ExecutorSettings, Parts};
use a2g_journal::Journal;
use a2g_metrics::Metrics;
use a2g_runtime::spawn::SessionTasks;
use a2g_sandbox::egress::Egress;
use a2g_types::clock::Clock;
use a2g_types::fault::Fault;
use a2g_types::verdict::Policy;
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
    pub(super) taken_over: Arc<TakenOverCalls>,
    pub(super) due_denials: Arc<DueDenials>,
    pub(super) waits: Arc<Waits>,
    pub(super) stored_waits: Arc<StoredWaits>,
    pub(super) slots: Arc<Slots>,
    pub(super) compile_waits: CompileWaits,
    pub(super) intents: Arc<OpenIntents>,
    pub(super) subscribers: Arc<Subscribers>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) sessions: SessionTasks,
    pub(super) clock: Arc<dyn Clock>,
    /// The network access of runs; `None` if no run may use the network.
    pub(super) egress: Option<Arc<Egress>>,
    pub(super) queries: Arc<Queries>,
    pub(super) previews: Arc<Previews>,
    pub(super) answers: Arc<Answers>,
    pub(super) call_store: Arc<CallStore>,
    pub(super) claims: Arc<Claims>,
    pub(super) output: ExpectedOutput,
}

impl Engine {
    pub(super) fn new(
        parts: &Parts,
        egress: Option<Arc<Egress>>,
        queries: Arc<Queries>,
        previews: Arc<Previews>,
        answers: Arc<Answers>,
    ) -> Self {
        let output = ExpectedOutput::default();
        Self {
            call_store: Arc::new(CallStore::new(parts, parts.sessions.clone())),
            claims: Arc::new(Claims::new(parts, output.clone())),
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
            taken_over: Arc::clone(&parts.taken_over),
            due_denials: Arc::clone(&parts.due_denials),
            waits: Arc::clone(&parts.waits),
            stored_waits: Arc::clone(&parts.stored_waits),
            slots: Arc::clone(&parts.slots),
            compile_waits: parts.compile_waits.clone(),
            intents: Arc::clone(&parts.intents),
            subscribers: Arc::clone(&parts.subscribers),
            metrics: Arc::clone(&parts.metrics),
            sessions: parts.sessions.clone(),
            clock: Arc::clone(&parts.clock),
            egress,
            queries,
            previews,
            answers,
        }
    }

    /// Sets the standing policy of an agent, or of every agent, on behalf of `by`, at all nodes of the fleet.
    ///
    /// # Errors
    /// If the other nodes of the fleet cannot be told; the policy is in force at this executor nevertheless.
    pub async fn set_policy(&self, policy: Policy, by: &str) -> Result<(), Fault> {
        let origin = self.policies.origin(by);
        let order = self.node.start_policy_order(policy.agent.as_ref(), Some(&policy), &origin);
        self.policies.set(policy, origin);
        finish_order(order).await
    }
}
