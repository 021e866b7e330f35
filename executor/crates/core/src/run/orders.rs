//! The orders that the nodes of a fleet give each other: stops, resumptions, cancellations, standing policies and
//! revocations.
//!
//! A node follows an order of its own at once, and then tells the others, which ask for new orders every second. A node
//! that starts follows all of them before it listens.

use super::Membership;
use super::faults::busy_fault;
use super::fleet::{Fleet, Node};
use a2g_fleet::{FleetError, FoundState, Order};
use a2g_govern::PolicyOrigin;
use a2g_intent::Scope;
use a2g_journal::Stage;
use a2g_runtime::spawn;
use a2g_types::clock::{from_micros, to_micros};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::AbortReason;
use a2g_types::stop::{OperatorReason, Stop, StopTarget};
use a2g_types::tool::Digest;
use a2g_types::verdict::Policy;
use a2g_wire::a2g::{decode, encode};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// The time between two requests for new orders.
const ORDER_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two requests for the state of an intent that another node was told to end.
const END_INTERVAL: Duration = Duration::from_millis(100);
/// The time after which an order to end a call that waited for a slot is removed: its node has followed it.
const END_ORDER_LIFE: Duration = Duration::from_secs(10);
/// The maximum number of requests for the state of such an intent.
const MAX_END_REQUESTS: u32 = 40;

/// The kind of end of one intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EndKind {
    Cancellation,
    Revocation,
}

impl EndKind {
    /// The reason for which a run of the intent is aborted.
    pub(super) fn reason(self) -> AbortReason {
        match self {
            Self::Cancellation => AbortReason::Cancelled,
            Self::Revocation => AbortReason::Revoked,
        }
    }
}

/// The state of a stop after an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StopState {
    InForce,
    Lifted,
}

/// What becomes of the orders that this node has given itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnOrders {
    Follow,
    Skip,
}

/// The text of an order.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
enum OrderText {
    /// A stop, or its end.
    Stop {
        node: String,
        agent: Option<String>,
        tool: Option<String>,
        reason: String,
        by: String,
        /// The time of the stop, in microseconds since 1970.
        since: i64,
        state: StopState,
    },
    /// The cancellation or revocation of one intent.
    End { node: String, intent: String, by: String, kind: EndKind },
    /// A standing policy; a revocation if there is no policy.
    // As text: serde cannot read a raw value within a tagged one.
    Policy { node: String, agent: Option<String>, policy: Option<String>, by: String, at: i64 },
}

impl OrderText {
    fn node(&self) -> &str {
        match self {
            Self::Stop { node, .. } | Self::End { node, .. } | Self::Policy { node, .. } => node,
        }
    }
}

/// An order that is being given; empty without a fleet.
#[must_use]
pub(super) struct OrderInProgress(Option<JoinHandle<Result<(), FleetError>>>);

/// An order that cannot be followed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct OrderError(String);

impl Node {
    /// Starts to tell the other nodes of a stop, or of its end.
    pub(super) fn start_stop_order(&self, stop: &Stop, state: StopState) -> OrderInProgress {
        let stop = stop.clone();
        self.start_order(async move |fleet| publish_stop(&fleet, &stop, state).await)
    }

    /// Starts to tell the other nodes of a standing policy, or of a revocation if there is no policy.
    pub(super) fn start_policy_order(
        &self,
        agent: Option<&AgentDid>,
        policy: Option<&Policy>,
        origin: &PolicyOrigin,
    ) -> OrderInProgress {
        let name = format!("policy.{}", to_token(agent.map_or("*", AgentDid::as_str)));
        let agent = agent.map(ToString::to_string);
        let by = origin.by.clone();
        let policy = policy.map(|policy| encode::policy(policy).get().to_owned());
        let at = to_micros(origin.since);
        self.start_order(async move |fleet| {
            let node = fleet.member.node().to_string();
            give(&fleet, &name, &OrderText::Policy { node, agent, policy, by, at }).await
        })
    }

    /// Starts to give an order. It is given even if the caller disconnects.
    fn start_order<T>(&self, give: impl FnOnce(Arc<Fleet>) -> T) -> OrderInProgress
    where
        T: Future<Output = Result<(), FleetError>> + Send + 'static,
    {
        OrderInProgress(self.fleet().cloned().map(|fleet| spawn::spawn_run_task(give(fleet))))
    }

    /// Waits until an intent has ended that was given back after its end was ordered. Returns `false` if it has ended by
    /// itself.
    ///
    /// # Errors
    /// If it has not ended in time.
    pub(super) async fn await_ordered_end(&self, intent: IntentId) -> Result<bool, Fault> {
        for _ in 0..MAX_END_REQUESTS {
            if let Some((_, stage @ Stage::Finished(_))) = self.find_stage_in_fleet(intent).await? {
                return Ok(was_ended_by_order(&stage));
            }
            tokio::time::sleep(END_INTERVAL).await;
        }
        Err(busy_fault("the intent is being ended: ask for its state"))
    }

    /// Returns `true` if another node runs an intent whose agent `filter` selects.
    pub(super) async fn is_running_elsewhere(
        &self,
        intent: IntentId,
        filter: &(impl Fn(&AgentDid) -> bool + ?Sized),
    ) -> Result<bool, Fault> {
        let Some(fleet) = self.fleet() else { return Ok(false) };
        let found = fleet.claims.find(intent).await.map_err(|error| self.fleet_fault(&error))?;
        Ok(found.is_some_and(|found| {
            let is_open = match found.state {
                FoundState::Open => true,
                FoundState::Ended(_) | FoundState::Denied(_) => false,
            };
            let is_selected = || AgentDid::parse(&found.agent).is_ok_and(|agent| filter(&agent));
            is_open && found.node != *fleet.member.node() && is_selected()
        }))
    }

    /// Returns `true` if an intent has run or is denied, at whichever node.
    pub(super) async fn has_ended_in_fleet(&self, intent: IntentId) -> Result<bool, Fault> {
        let Some(fleet) = self.fleet() else { return Ok(false) };
        let found = fleet.claims.find(intent).await.map_err(|error| self.fleet_fault(&error))?;
        Ok(found.is_some_and(|found| match found.state {
            FoundState::Ended(_) | FoundState::Denied(_) => true,
            FoundState::Open => false,
        }))
    }

    /// Orders the node that runs an intent to end it, and waits until it has. Returns `false` if the run has ended by itself.
    ///
    /// # Errors
    /// If the fleet cannot be reached, or the run goes on.
    pub(super) async fn order_end(
        &self,
        fleet: &Fleet,
        intent: IntentId,
        filter: impl Fn(&AgentDid) -> bool + Sync,
        by: &str,
        kind: EndKind,
    ) -> Result<bool, Fault> {
        self.give_end_order(fleet, intent, by, kind).await?;
        for _ in 0..MAX_END_REQUESTS {
            tokio::time::sleep(END_INTERVAL).await;
            if self.is_running_elsewhere(intent, &filter).await? {
                continue;
            }
            self.withdraw_end_order(fleet, intent).await;
            // The run may have ended by itself before the order reached it.
            let stage = self.find_stage_in_fleet(intent).await?;
            return Ok(stage.is_some_and(|(_, stage)| was_ended_by_order(&stage)));
        }
        Err(busy_fault("the node that runs the intent was told to end it, and has not done so yet"))
    }

    /// Orders the node that has an intent to end it.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub(super) async fn give_end_order(
        &self,
        fleet: &Fleet,
        intent: IntentId,
        by: &str,
        kind: EndKind,
    ) -> Result<(), Fault> {
        let node = fleet.member.node().to_string();
        let text = OrderText::End { node, intent: intent.to_string(), by: by.to_owned(), kind };
        give(fleet, &end_order(intent), &text).await.map_err(|error| order_fault(&error))
    }

    /// Removes a followed order to end an intent.
    pub(super) async fn withdraw_end_order(&self, fleet: &Fleet, intent: IntentId) {
        withdraw_end_order(fleet, intent).await;
    }

    /// Removes an order to end an intent once the nodes have followed it.
    pub(super) fn withdraw_end_order_later(&self, fleet: &Arc<Fleet>, intent: IntentId) {
        let fleet = Arc::clone(fleet);
        self.sessions.spawn(async move {
            tokio::time::sleep(END_ORDER_LIFE).await;
            withdraw_end_order(&fleet, intent).await;
        });
    }
}

async fn withdraw_end_order(fleet: &Fleet, intent: IntentId) {
    if let Err(error) = fleet.orders.withdraw(&end_order(intent)).await {
        tracing::debug!(%intent, %error, "the followed order could not be removed");
    }
}

fn end_order(intent: IntentId) -> String {
    format!("end.{intent}")
}

impl Membership {
    /// Follows the orders that were given before this node joined, and tells the others of its own stops.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn follow_earlier_orders(&self) -> Result<(), FleetError> {
        let Some(fleet) = self.node.fleet() else { return Ok(()) };
        self.follow_new_orders(fleet, OwnOrders::Follow).await?;
        self.publish_stops(fleet).await
    }

    /// Follows the orders of other nodes, until the sessions end.
    pub(super) async fn follow_orders(self: Arc<Self>, fleet: Arc<Fleet>) {
        loop {
            tokio::time::sleep(ORDER_INTERVAL).await;
            // `keep_fleet` logs that the servers do not answer.
            if self.follow_new_orders(&fleet, OwnOrders::Skip).await.is_ok()
                && self.intents.take_unpublished_stops()
                && self.publish_stops(&fleet).await.is_err()
            {
                self.intents.mark_unpublished_stops();
            }
        }
    }

    async fn follow_new_orders(&self, fleet: &Fleet, own: OwnOrders) -> Result<(), FleetError> {
        for order in fleet.orders.take().await? {
            if let Err(error) = self.follow_order(fleet, &order, own).await {
                tracing::error!(order = order.name, %error, "an order of the fleet cannot be followed");
            }
        }
        Ok(())
    }

    /// Tells the other nodes of the stops that they do not have: those from before this node joined, and those that could
    /// not be published.
    async fn publish_stops(&self, fleet: &Fleet) -> Result<(), FleetError> {
        for stop in self.queries.stops() {
            match publish_stop(fleet, &stop, StopState::InForce).await {
                // The next look finds it.
                Ok(()) | Err(FleetError::LaterOrder) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn follow_order(
        &self,
        fleet: &Fleet,
        order: &Order,
        own: OwnOrders,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let text = serde_json::from_str::<OrderText>(&order.text)?;
        if own == OwnOrders::Skip && text.node() == fleet.member.node().as_str() {
            return Ok(());
        }
        let fault = |fault: Fault| OrderError(format!("{fault:?}"));
        match text {
            OrderText::Stop { agent, tool, reason, by, since, state, node: _ } => {
                let target = match (agent, tool) {
                    (Some(agent), None) => StopTarget::Agent(AgentDid::parse(&agent)?),
                    (None, Some(tool)) => StopTarget::Tool(ToolName::parse(&tool)?),
                    (None, None) => StopTarget::Everything,
                    (Some(_), Some(_)) => return Err("it names an agent and a tool".into()),
                };
                let since = from_micros(since);
                self.intents.update(|intents| intents.stops.note_order(&target, since));
                let present = self.intents.find_exact_stop(&target);
                let is_newer = |stop: &Stop| to_micros(stop.since) > to_micros(since);
                let is_same = |stop: &Stop| to_micros(stop.since) == to_micros(since);
                match (state, present) {
                    (_, Some(present)) if is_newer(&present) => {}
                    (StopState::InForce, Some(present)) if is_same(&present) => {}
                    (StopState::Lifted, None) => {}
                    (StopState::InForce, Some(_) | None) => {
                        let reason = OperatorReason::parse(&reason)?;
                        let stop = Stop { target, reason, by, since };
                        self.operator.set_stop(stop, Scope::ThisNode).await.map_err(fault)?;
                    }
                    (StopState::Lifted, Some(_)) => {
                        self.operator.lift_stop(&target, &by).await.map_err(fault)?;
                    }
                }
            }
            OrderText::End { intent, by, kind, node: _ } => {
                let intent = IntentId::parse(&intent)?;
                self.operator.end_here(intent, &by, kind).await.map_err(fault)?;
            }
            OrderText::Policy { agent, policy, by, at, node: _ } => {
                let origin = PolicyOrigin { by, since: from_micros(at) };
                match policy {
                    Some(policy) => self.policies.set(decode::policy(&policy).map_err(fault)?, origin),
                    None => {
                        let agent = agent.map(|agent| AgentDid::parse(&agent)).transpose()?;
                        let agent = agent.as_ref();
                        let revoked =
                            self.operator.revoke_here(agent, None, &origin.by, Scope::ThisNode).await;
                        revoked.map_err(fault)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn was_ended_by_order(stage: &Stage) -> bool {
    match stage {
        Stage::Finished(receipt) => match receipt.outcome.end.abort_reason() {
            Some(AbortReason::Cancelled | AbortReason::Revoked) => true,
            Some(
                AbortReason::Shutdown
                | AbortReason::Lost
                | AbortReason::LeaseLost
                | AbortReason::ParentEnded
                | AbortReason::Stopped,
            )
            | None => false,
        },
        Stage::Queued | Stage::Running | Stage::Ended | Stage::Pruned | Stage::Released => false,
    }
}

async fn publish_stop(fleet: &Fleet, stop: &Stop, state: StopState) -> Result<(), FleetError> {
    let (agent, tool) = match &stop.target {
        StopTarget::Agent(agent) => (Some(agent.to_string()), None),
        StopTarget::Tool(tool) => (None, Some(tool.to_string())),
        StopTarget::Everything => (None, None),
    };
    let name = format!("stop.{}", to_token(&stop.target.cli_options()));
    let since = to_micros(stop.since);
    let node = fleet.member.node().to_string();
    let reason = stop.reason.to_string();
    let by = stop.by.clone();
    let text = to_text(&OrderText::Stop { node, agent, tool, reason, by, since, state });
    let make = |present: Option<&str>| match present.map(serde_json::from_str::<OrderText>) {
        Some(Ok(OrderText::Stop { since: latest, state: known, .. })) if latest > since => {
            // The end of an earlier stop says nothing about a later one.
            let is_lifted = state == StopState::Lifted && known == StopState::Lifted;
            if is_lifted { Ok(None) } else { Err(FleetError::LaterOrder) }
        }
        Some(Ok(OrderText::Stop { since: latest, state: known, .. }))
            if latest == since && known == state =>
        {
            Ok(None)
        }
        // Lifted by another node, which this one has not noticed yet.
        Some(Ok(OrderText::Stop { since: latest, .. })) if latest == since && state == StopState::InForce => {
            Err(FleetError::LaterOrder)
        }
        Some(Ok(_) | Err(_)) | None => Ok(Some(text.clone())),
    };
    fleet.orders.give(&name, make).await
}

async fn give(fleet: &Fleet, name: &str, text: &OrderText) -> Result<(), FleetError> {
    let text = to_text(text);
    fleet.orders.give(name, |_| Ok(Some(text.clone()))).await
}

fn to_text(order: &OrderText) -> String {
    // Names and numbers always have a JSON form.
    serde_json::to_string(order).unwrap_or_default()
}

/// A token for the subject of a key, of any text.
fn to_token(text: &str) -> String {
    Digest::compute(text.as_bytes()).to_string()
}

fn order_fault(error: &FleetError) -> Fault {
    busy_fault(&format!("the nodes of the fleet may not all know of it, so repeat it later: {error}"))
}

/// Waits until an order is given.
///
/// # Errors
/// If the other nodes may not know of it.
pub(super) async fn finish_order(order: OrderInProgress) -> Result<(), Fault> {
    let Some(task) = order.0 else { return Ok(()) };
    let given =
        task.await.map_err(|error| Fault::Internal(format!("the task of an order ended: {error}")))?;
    given.map_err(|error| order_fault(&error))
}
