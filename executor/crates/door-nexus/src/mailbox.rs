//! The subscriptions of one agent, and the events that wait for it.
//!
//! ```text
//! publish ─▶ at-most-once: waits for the writer, or is dropped
//!        └─▶ else: stored ─ due ─▶ sent ─ ack ─▶ removed
//!                            ▲───────┘ after RESEND_DELAY, or over another connection
//! ```
//! An at-most-once subscription ends with its connection. Subscriptions with the other two guarantees outlive their
//! connection by up to [`RETENTION`], but not the process. All queues are bounded: events that do not fit are dropped,
//! and the next queued event reports their number.

use a2g_core::run::RunIdentity;
use a2g_http::session::{Attachment, BoundedQueue, ByteSize, QueueLimit, ReplayQueue};
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::memory;
use a2g_wire::nexus::encode;
use a2g_wire::nexus::message::{DeliveryGuarantee, EventName};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Maximum number of subscriptions of one agent.
const MAX_SUBSCRIPTIONS: usize = 16;
/// Limit of the at-least-once and exactly-once events that are stored for one agent.
const STORED_LIMIT: QueueLimit = QueueLimit { messages: 1000, bytes: 1 << 20 };
/// Limit of the at-most-once events that wait for the writer.
const TRANSIENT_LIMIT: QueueLimit = QueueLimit { messages: 256, bytes: 256 << 10 };
/// Maximum number of events of one agent that are sent but not acknowledged.
const MAX_IN_FLIGHT: usize = 32;
/// Time without an acknowledgement after which an event is sent again.
const RESEND_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of attempts to send an at-least-once event.
const MAX_ATTEMPTS: u32 = 5;
/// Time for which subscriptions and stored events outlive the last connection.
const RETENTION: Duration = Duration::from_secs(600);

/// A subscription to the events of runs.
#[derive(Debug)]
pub(super) struct Subscription {
    pub id: IntentId,
    /// The agent whose runs the subscription covers; `None` for all agents.
    pub agent: Option<AgentDid>,
    /// The only run that the subscription covers; `None` for all runs.
    pub intent: Option<IntentId>,
    pub events: BTreeSet<EventName>,
    pub guarantee: DeliveryGuarantee,
    /// `true` if its events are encrypted.
    pub sealed: bool,
    /// The subscriber's identity (`from` of its message).
    pub to: Arc<RawValue>,
    /// The connection that the subscription was created on.
    pub connection: u64,
    /// The number of events so far, dropped ones included.
    pub sequence: u64,
    /// The number of events dropped since the last queued one.
    pub dropped: u64,
}

/// An event that waits to be sent, or was sent.
#[derive(Debug)]
pub(super) struct OutgoingEvent {
    pub id: IntentId,
    pub name: EventName,
    pub guarantee: DeliveryGuarantee,
    pub sealed: bool,
    pub to: Arc<RawValue>,
    pub payload: Box<RawValue>,
    /// The agent of the run.
    pub agent: AgentDid,
    subscription: IntentId,
    connection: u64,
}

impl ByteSize for OutgoingEvent {
    fn byte_size(&self) -> usize {
        self.payload.get().len()
    }
}

/// The events of one agent.
#[derive(Debug)]
pub(super) struct Mailbox {
    subscriptions: Vec<Subscription>,
    /// At-most-once events.
    transient: BoundedQueue<Arc<OutgoingEvent>>,
    /// Events that are sent again until they are acknowledged.
    stored: ReplayQueue<Arc<OutgoingEvent>>,
    /// The connection that events are sent over.
    attachment: Attachment,
    /// Wakes the writer of that connection.
    wake: Arc<Notify>,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self {
            subscriptions: Vec::new(),
            transient: BoundedQueue::new(TRANSIENT_LIMIT, None),
            stored: ReplayQueue::new(STORED_LIMIT, MAX_IN_FLIGHT, RESEND_DELAY),
            attachment: Attachment::default(),
            wake: Arc::default(),
        }
    }
}

impl Mailbox {
    /// Attaches the connection that events are sent over, unless another one is attached.
    pub(super) fn attach(&mut self, connection: u64, wake: &Arc<Notify>) {
        if !self.attachment.is_attached() {
            self.move_to(connection, wake);
        }
    }

    fn move_to(&mut self, connection: u64, wake: &Arc<Notify>) {
        if self.attachment.attach(connection) {
            self.wake = Arc::clone(wake);
            self.stored.resume();
            wake.notify_one();
        }
    }

    /// Removes a connection that has ended.
    pub(super) fn detach(&mut self, connection: u64, now: Instant) {
        self.subscriptions.retain(|subscription| {
            subscription.connection != connection || subscription.guarantee != DeliveryGuarantee::AtMostOnce
        });
        self.transient.retain(|event| event.connection != connection);
        self.attachment.detach(connection, now);
    }

    /// Adds a subscription. Its connection gets all events of the agent from now on. Returns `false` if there are too
    /// many subscriptions.
    pub(super) fn subscribe(&mut self, subscription: Subscription, wake: &Arc<Notify>) -> bool {
        if self.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            return false;
        }
        self.move_to(subscription.connection, wake);
        self.subscriptions.push(subscription);
        true
    }

    /// Ends a subscription and drops its events. Returns `false` if it does not exist.
    pub(super) fn unsubscribe(&mut self, id: IntentId) -> bool {
        let before = self.subscriptions.len();
        self.subscriptions.retain(|subscription| subscription.id != id);
        self.transient.retain(|event| event.subscription != id);
        self.stored.retain(|event| event.subscription != id);
        self.subscriptions.len() < before
    }

    /// Returns `true` if a subscription covers the event.
    pub(super) fn wants(&self, run: &RunIdentity, name: EventName) -> bool {
        self.subscriptions.iter().any(|subscription| subscription.matches(run, name))
    }

    /// Queues an event for every subscription that covers it.
    pub(super) fn publish(&mut self, run: &RunIdentity, name: EventName, data: &Value) {
        for subscription in self.subscriptions.iter_mut().filter(|s| s.matches(run, name)) {
            let event = Arc::new(subscription.event(run, name, data));
            let fits = match event.guarantee {
                // At-most-once events do not wait for a connection, and do not count as dropped.
                DeliveryGuarantee::AtMostOnce if !self.attachment.is_attached() => true,
                DeliveryGuarantee::AtMostOnce => self.transient.offer(vec![event]),
                DeliveryGuarantee::AtLeastOnce | DeliveryGuarantee::ExactlyOnce => {
                    memory::has_room(event.byte_size() as u64) && self.stored.offer(event)
                }
            };
            subscription.dropped = if fits { 0 } else { subscription.dropped.saturating_add(1) };
        }
        self.wake.notify_one();
    }

    /// Takes the events that a connection has to send now. Events of runs whose agent is not `allowed` are dropped.
    pub(super) fn take_due(
        &mut self,
        connection: u64,
        now: Instant,
        allowed: impl Fn(&AgentDid) -> bool,
    ) -> Vec<Arc<OutgoingEvent>> {
        if !self.attachment.is_current(connection) {
            return Vec::new();
        }
        let max_attempts = |event: &Arc<OutgoingEvent>| match event.guarantee {
            DeliveryGuarantee::AtLeastOnce => MAX_ATTEMPTS,
            DeliveryGuarantee::AtMostOnce | DeliveryGuarantee::ExactlyOnce => u32::MAX,
        };
        for event in self.stored.expire(now, max_attempts) {
            tracing::debug!(event = %event.id, "an event was never acknowledged");
        }
        self.stored.retain(|event| allowed(&event.agent));
        let mut due = self.transient.take_all().into_iter().collect::<Vec<_>>();
        due.retain(|event| allowed(&event.agent));
        due.extend(self.stored.send_due(now));
        due
    }

    /// Removes an acknowledged event. Returns `false` if no stored event has this id.
    pub(super) fn acknowledge(&mut self, id: IntentId) -> bool {
        let is_stored = self.stored.retain(|event| event.id != id) > 0;
        if is_stored {
            self.wake.notify_one();
        }
        is_stored
    }

    /// Drops all subscriptions and events if the agent has not reconnected in time.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.attachment.time_detached(now).is_some_and(|detached| detached >= RETENTION) {
            let dropped = self.stored.len();
            if dropped > 0 {
                tracing::info!(dropped, "events are dropped: their agent did not reconnect in time");
            }
            *self = Self::default();
        }
    }
}

impl Subscription {
    fn matches(&self, run: &RunIdentity, name: EventName) -> bool {
        self.events.contains(&name)
            && self.agent.as_ref().is_none_or(|agent| *agent == run.agent)
            && self.intent.is_none_or(|intent| intent == run.intent)
    }

    fn event(&mut self, run: &RunIdentity, name: EventName, data: &Value) -> OutgoingEvent {
        self.sequence = self.sequence.saturating_add(1);
        let mut data = data.clone();
        if let Some(data) = data.as_object_mut() {
            data.insert("subscriptionId".to_owned(), self.id.to_string().into());
            data.insert("sequence".to_owned(), self.sequence.into());
            if self.dropped > 0 {
                data.insert("dropped".to_owned(), self.dropped.into());
            }
        }
        OutgoingEvent {
            id: IntentId::random(),
            name,
            guarantee: self.guarantee,
            sealed: self.sealed,
            to: Arc::clone(&self.to),
            payload: encode::event_payload(&data),
            agent: run.agent.clone(),
            subscription: self.id,
            connection: self.connection,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::clock::{Clock as _, SystemClock};
    use a2g_types::ident::ToolName;
    use serde_json::json;

    fn run_identity() -> RunIdentity {
        RunIdentity {
            agent: AgentDid::parse("did:nexus:a").unwrap(),
            intent: IntentId::random(),
            tool: ToolName::parse("t").unwrap(),
        }
    }

    fn subscription(guarantee: DeliveryGuarantee, connection: u64) -> Subscription {
        Subscription {
            id: IntentId::random(),
            agent: Some(run_identity().agent),
            intent: None,
            events: EventName::ALL.into(),
            guarantee,
            sealed: false,
            to: RawValue::from_string("{}".to_owned()).unwrap().into(),
            connection,
            sequence: 0,
            dropped: 0,
        }
    }

    fn data(event: &OutgoingEvent) -> Value {
        serde_json::from_str::<Value>(event.payload.get()).unwrap()["data"].clone()
    }

    fn any_agent(_: &AgentDid) -> bool {
        true
    }

    #[test]
    fn stored_events_are_sent_again_with_one_id_until_they_are_acknowledged() {
        let wake = Arc::new(Notify::new());
        let start = SystemClock.monotonic();
        for (guarantee, attempts) in
            [(DeliveryGuarantee::AtLeastOnce, 5), (DeliveryGuarantee::ExactlyOnce, 20)]
        {
            let mut mailbox = Mailbox::default();
            assert!(mailbox.subscribe(subscription(guarantee, 1), &wake));
            mailbox.publish(&run_identity(), EventName::Started, &json!({}));
            let mut ids = BTreeSet::new();
            let mut sent = 0;
            for nth in 0..20 {
                let now = start + RESEND_DELAY * nth;
                let due = mailbox.take_due(1, now, any_agent);
                sent += due.len();
                ids.extend(due.iter().map(|event| event.id));
                assert!(mailbox.take_due(1, now, any_agent).is_empty(), "not before the resend delay");
            }
            assert_eq!((sent, ids.len()), (attempts, 1), "{guarantee:?}");
            let id = ids.into_iter().next().unwrap();
            assert_eq!(mailbox.acknowledge(id), guarantee == DeliveryGuarantee::ExactlyOnce);
            assert!(!mailbox.acknowledge(id));
            assert!(mailbox.stored.is_empty());
        }
    }

    #[test]
    fn stored_events_outlive_their_connection_and_are_sent_over_the_next() {
        let wake = Arc::new(Notify::new());
        let now = SystemClock.monotonic();
        let mut mailbox = Mailbox::default();
        assert!(mailbox.subscribe(subscription(DeliveryGuarantee::ExactlyOnce, 1), &wake));
        assert!(mailbox.subscribe(subscription(DeliveryGuarantee::AtMostOnce, 1), &wake));
        mailbox.publish(&run_identity(), EventName::Started, &json!({}));
        let first = mailbox.take_due(1, now, any_agent);
        assert_eq!(first.len(), 2);
        mailbox.detach(1, now);
        mailbox.publish(&run_identity(), EventName::Finished, &json!({}));
        assert!(mailbox.take_due(1, now, any_agent).is_empty(), "the connection has ended");
        mailbox.attach(2, &wake);
        let second = mailbox.take_due(2, now, any_agent);
        assert_eq!(
            second.iter().map(|event| event.name).collect::<Vec<_>>(),
            [EventName::Started, EventName::Finished]
        );
        assert!(first.iter().any(|event| event.id == second[0].id), "the same event has the same id");
        mailbox.detach(2, now);
        mailbox.expire(now + RETENTION - Duration::from_secs(1));
        assert_eq!(mailbox.stored.len(), 2);
        mailbox.expire(now + RETENTION);
        assert!(mailbox.stored.is_empty() && mailbox.subscriptions.is_empty());
    }

    #[test]
    fn queues_are_bounded_and_the_number_of_dropped_events_is_reported() {
        let wake = Arc::new(Notify::new());
        let now = SystemClock.monotonic();
        for (guarantee, max) in [
            (DeliveryGuarantee::ExactlyOnce, STORED_LIMIT.messages),
            (DeliveryGuarantee::AtMostOnce, TRANSIENT_LIMIT.messages),
        ] {
            let mut mailbox = Mailbox::default();
            assert!(mailbox.subscribe(subscription(guarantee, 1), &wake));
            for _ in 0..max + 7 {
                mailbox.publish(&run_identity(), EventName::Progress, &json!({}));
            }
            assert_eq!(mailbox.stored.len() + mailbox.transient.len(), max);
            let due = mailbox.take_due(1, now, any_agent);
            assert_eq!(
                due.len(),
                max.min(if guarantee == DeliveryGuarantee::ExactlyOnce { MAX_IN_FLIGHT } else { max })
            );
            mailbox.acknowledge(due[0].id);
            mailbox.publish(&run_identity(), EventName::Finished, &json!({}));
            let last = mailbox.stored.last().or(mailbox.transient.last()).unwrap();
            assert_eq!(data(last)["dropped"], 7);
            let large = "x".repeat(STORED_LIMIT.bytes);
            mailbox.publish(&run_identity(), EventName::Log, &json!({ "message": large }));
            assert!(
                mailbox.stored.bytes() <= STORED_LIMIT.bytes
                    && mailbox.transient.bytes() <= TRANSIENT_LIMIT.bytes
            );
        }
        let mut mailbox = Mailbox::default();
        for nth in 0..=MAX_SUBSCRIPTIONS {
            let is_added = mailbox.subscribe(subscription(DeliveryGuarantee::AtMostOnce, 1), &wake);
            assert_eq!(is_added, nth < MAX_SUBSCRIPTIONS);
        }
    }

    #[test]
    fn a_subscription_covers_its_events_of_permitted_agents_only() {
        let wake = Arc::new(Notify::new());
        let now = SystemClock.monotonic();
        let mut mailbox = Mailbox::default();
        let own = run_identity();
        let other = RunIdentity { agent: AgentDid::parse("did:nexus:b").unwrap(), ..run_identity() };
        let only = Subscription {
            intent: Some(own.intent),
            events: [EventName::Finished].into(),
            ..subscription(DeliveryGuarantee::AtLeastOnce, 1)
        };
        assert!(mailbox.subscribe(only, &wake));
        assert!(!mailbox.wants(&own, EventName::Started));
        assert!(!mailbox.wants(&run_identity(), EventName::Finished), "another intent");
        assert!(!mailbox.wants(&RunIdentity { intent: own.intent, ..other.clone() }, EventName::Finished));
        assert!(mailbox.wants(&own, EventName::Finished));
        assert!(mailbox.subscribe(
            Subscription { agent: None, ..subscription(DeliveryGuarantee::AtMostOnce, 1) },
            &wake
        ));
        mailbox.publish(&other, EventName::Started, &json!({}));
        // The caller is no longer an operator.
        assert!(mailbox.take_due(1, now, |agent| *agent == own.agent).is_empty());
    }
}
