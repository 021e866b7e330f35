//! The work of a node of a fleet that no call asks for. Without a fleet, there is none.

use super::current_catalog::CurrentCatalog;
use super::engine::passing::Passing;
use super::engine::stored_calls::StoredCalls;
use super::fleet::Node;
use super::open_intents::OpenIntents;
use super::pending::Pending;
use super::policies::Policies;
use super::query::Queries;
use super::questions::Answers;
use super::slots::Slots;
use super::{Engine, ExecutorSettings, Operator, Parts};
use a2g_journal::Journal;
use a2g_metrics::Metrics;
use a2g_runtime::spawn::SessionTasks;
use a2g_types::clock::Clock;
use std::sync::Arc;

/// The tasks of a node of a fleet: it keeps its lease, replaces lost nodes, and serves the others.
pub struct Membership {
    pub(super) settings: Arc<ExecutorSettings>,
    pub(super) catalogue: Arc<CurrentCatalog>,
    pub(super) policies: Arc<Policies>,
    pub(super) journal: Arc<Journal>,
    pub(super) node: Arc<Node>,
    pub(super) passing: Arc<Passing>,
    pub(super) stored_calls: Arc<StoredCalls>,
    pub(super) pending: Arc<Pending>,
    pub(super) slots: Arc<Slots>,
    pub(super) intents: Arc<OpenIntents>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) sessions: SessionTasks,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) engine: Arc<Engine>,
    pub(super) operator: Arc<Operator>,
    pub(super) queries: Arc<Queries>,
    pub(super) answers: Arc<Answers>,
}

impl Membership {
    pub(super) fn new(
        parts: &Parts,
        engine: Arc<Engine>,
        operator: Arc<Operator>,
        queries: Arc<Queries>,
    ) -> Self {
        Self {
            settings: Arc::clone(&parts.settings),
            catalogue: Arc::clone(&parts.catalogue),
            policies: Arc::clone(&parts.policies),
            journal: Arc::clone(&parts.journal),
            node: Arc::clone(&parts.node),
            passing: Arc::clone(&parts.passing),
            stored_calls: Arc::clone(&parts.stored_calls),
            pending: Arc::clone(&parts.pending),
            slots: Arc::clone(&parts.slots),
            intents: Arc::clone(&parts.intents),
            metrics: Arc::clone(&parts.metrics),
            sessions: parts.session_tasks.clone(),
            clock: Arc::clone(&parts.clock),
            engine,
            operator,
            queries,
            answers: Arc::clone(&parts.answers),
        }
    }
}
