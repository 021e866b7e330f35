//! The subscriptions of one agent, and the events that wait for it.
//!
//! ```text
//! publish ─▶ at-most-once: waits for the writer, or is left out
//!        └─▶ else: kept ─ due ─▶ sent ─ ack ─▶ gone
//!                          ▲───────┘ after RESEND, or over another connection
//! ```
//! An at-most-once subscription ends with its connection. The other two outlive it for [`RETAIN`], but not the process.
//! All queues are bounded: events that do not fit are dropped and counted, and the next event has that number.

use crate::serve::session::{Attachment, BoundedQueue, ByteSize, QueueLimit, ReplayQueue};
use a2g_core::run::RunIdentity;
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

/// Subscriptions of one agent.
const MAX_SUBSCRIPTIONS: usize = 16;
/// Events of at-least-once and exactly-once that are stored for one agent.
const KEPT_LIMIT: QueueLimit = QueueLimit { messages: 1000, bytes: 1 << 20 };
/// Events of at-most-once that wait for the writer.
const PASSING_LIMIT: QueueLimit = QueueLimit { messages: 256, bytes: 256 << 10 };
/// Events that are sent and not acknowledged.
const MAX_IN_FLIGHT: usize = 32;
/// Time without an acknowledgement after which an event is sent again.
const RESEND: Duration = Duration::from_secs(5);
/// Times that an event of at-least-once is sent.
const MAX_ATTEMPTS: u32 = 5;
/// Time that subscriptions and stored events outlive the last connection.
const RETAIN: Duration = Duration::from_secs(600);

/// A subscription to the events of runs.
#[derive(Debug)]
pub(super) struct Subscription {
    pub id: IntentId,
    /// The agent whose runs it is about; `None` for all agents.
    pub of: Option<AgentDid>,
    /// Limits it to this run.
    pub intent: Option<IntentId>,
    pub events: BTreeSet<EventName>,
    pub guarantee: DeliveryGuarantee,
    /// `true` if its events are encrypted.
    pub sealed: bool,
    /// The agent's identity, verbatim.
    pub to: Arc<RawValue>,
    /// The connection that it was created on.
    pub connection: u64,
    /// The number of events so far.
    pub sequence: u64,
    /// The number of events dropped since the last one that was not.
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
    /// The agent whose run it is about.
    pub of: AgentDid,
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
    passing: BoundedQueue<Arc<OutgoingEvent>>,
    kept: ReplayQueue<Arc<OutgoingEvent>>,
    /// The connection that events go to.
    outlet: Attachment,
    /// The wake-up of that connection.
    wake: Arc<Notify>,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self {
            subscriptions: Vec::new(),
            passing: BoundedQueue::new(PASSING_LIMIT, None),
            kept: ReplayQueue::new(KEPT_LIMIT, MAX_IN_FLIGHT, RESEND),
            outlet: Attachment::default(),
            wake: Arc::default(),
        }
    }
}

impl Mailbox {
    /// Sends events to a connection, unless they go to another.
    pub(super) fn attach(&mut self, connection: u64, wake: &Arc<Notify>) {
        if !self.outlet.is_attached() {
            self.move_to(connection, wake);
        }
    }

    fn move_to(&mut self, connection: u64, wake: &Arc<Notify>) {
        if self.outlet.attach(connection) {
            self.wake = Arc::clone(wake);
            self.kept.resume();
            wake.notify_one();
        }
    }

    /// Removes a connection that has ended.
    pub(super) fn detach(&mut self, connection: u64, now: Instant) {
        self.subscriptions.retain(|subscription| {
            subscription.connection != connection || subscription.guarantee != DeliveryGuarantee::AtMostOnce
        });
        self.passing.retain(|event| event.connection != connection);
        self.outlet.detach(connection, now);
    }

    /// Adds a subscription, whose connection gets all events from now on. Returns `false` if there are too many.
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
        self.passing.retain(|event| event.subscription != id);
        self.kept.retain(|event| event.subscription != id);
        self.subscriptions.len() < before
    }

    /// Returns `true` if a subscription matches.
    pub(super) fn wants(&self, run: &RunIdentity, name: EventName) -> bool {
        self.subscriptions.iter().any(|subscription| subscription.matches(run, name))
    }

    /// Queues an event for every subscription that matches.
    pub(super) fn publish(&mut self, run: &RunIdentity, name: EventName, data: &Value) {
        for subscription in self.subscriptions.iter_mut().filter(|s| s.matches(run, name)) {
            let event = Arc::new(subscription.event(run, name, data));
            let fits = match event.guarantee {
                // Nothing of at-most-once waits for a connection, and such an event does not count as dropped.
                DeliveryGuarantee::AtMostOnce if !self.outlet.is_attached() => true,
                DeliveryGuarantee::AtMostOnce => self.passing.offer(vec![event]),
                DeliveryGuarantee::AtLeastOnce | DeliveryGuarantee::ExactlyOnce => {
                    memory::has_room(event.byte_size() as u64) && self.kept.offer(event)
                }
            };
            subscription.dropped = if fits { 0 } else { subscription.dropped.saturating_add(1) };
        }
        self.wake.notify_one();
    }

    /// The events that a connection has to send now. Events of runs whose agent is not `allowed` are dropped.
    pub(super) fn due(
        &mut self,
        connection: u64,
        now: Instant,
        allowed: impl Fn(&AgentDid) -> bool,
    ) -> Vec<Arc<OutgoingEvent>> {
        if !self.outlet.is_current(connection) {
            return Vec::new();
        }
        let max_attempts = |event: &Arc<OutgoingEvent>| match event.guarantee {
            DeliveryGuarantee::AtLeastOnce => MAX_ATTEMPTS,
            DeliveryGuarantee::AtMostOnce | DeliveryGuarantee::ExactlyOnce => u32::MAX,
        };
        for event in self.kept.expire(now, max_attempts) {
            tracing::debug!(event = %event.id, "an event was never acknowledged");
        }
        self.kept.retain(|event| allowed(&event.of));
        let mut due = self.passing.take_all().into_iter().collect::<Vec<_>>();
        due.retain(|event| allowed(&event.of));
        due.extend(self.kept.send_due(now));
        due
    }

    /// Removes an acknowledged event. Returns `false` if no stored event has this id.
    pub(super) fn acknowledge(&mut self, id: IntentId) -> bool {
        let is_stored = self.kept.retain(|event| event.id != id) > 0;
        if is_stored {
            self.wake.notify_one();
        }
        is_stored
    }

    /// Drops everything if the agent has not reconnected in time.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.outlet.away(now).is_some_and(|away| away >= RETAIN) {
            let gone = self.kept.len();
            if gone > 0 {
                tracing::info!(gone, "events are dropped: their agent did not reconnect in time");
            }
            *self = Self::default();
        }
    }
}

impl Subscription {
    fn matches(&self, run: &RunIdentity, name: EventName) -> bool {
        self.events.contains(&name)
            && self.of.as_ref().is_none_or(|agent| *agent == run.agent)
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
            of: run.agent.clone(),
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
            of: Some(run_identity().agent),
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

    fn everybodys(_: &AgentDid) -> bool {
        true
    }

    #[test]
    fn what_is_kept_is_sent_again_until_it_is_acknowledged_with_one_id() {
        let (wake, start) = (Arc::new(Notify::new()), SystemClock.monotonic());
        for (guarantee, attempts) in
            [(DeliveryGuarantee::AtLeastOnce, 5), (DeliveryGuarantee::ExactlyOnce, 20)]
        {
            let mut mailbox = Mailbox::default();
            assert!(mailbox.subscribe(subscription(guarantee, 1), &wake));
            mailbox.publish(&run_identity(), EventName::Started, &json!({}));
            let mut ids = BTreeSet::new();
            let mut sent = 0;
            for nth in 0..20 {
                let now = start + RESEND * nth;
                let due = mailbox.due(1, now, everybodys);
                sent += due.len();
                ids.extend(due.iter().map(|event| event.id));
                assert!(mailbox.due(1, now, everybodys).is_empty(), "not before its time");
            }
            assert_eq!((sent, ids.len()), (attempts, 1), "{guarantee:?}");
            let id = ids.into_iter().next().unwrap();
            assert_eq!(mailbox.acknowledge(id), guarantee == DeliveryGuarantee::ExactlyOnce);
            assert!(!mailbox.acknowledge(id));
            assert_eq!(mailbox.kept.len(), 0);
        }
    }

    #[test]
    fn what_is_kept_outlives_its_connection_and_is_sent_over_the_next() {
        let (wake, now) = (Arc::new(Notify::new()), SystemClock.monotonic());
        let mut mailbox = Mailbox::default();
        assert!(mailbox.subscribe(subscription(DeliveryGuarantee::ExactlyOnce, 1), &wake));
        assert!(mailbox.subscribe(subscription(DeliveryGuarantee::AtMostOnce, 1), &wake));
        mailbox.publish(&run_identity(), EventName::Started, &json!({}));
        let first = mailbox.due(1, now, everybodys);
        assert_eq!(first.len(), 2);
        mailbox.detach(1, now);
        mailbox.publish(&run_identity(), EventName::Finished, &json!({}));
        assert!(mailbox.due(1, now, everybodys).is_empty(), "the connection is gone");
        mailbox.attach(2, &wake);
        let second = mailbox.due(2, now, everybodys);
        assert_eq!(
            second.iter().map(|event| event.name).collect::<Vec<_>>(),
            [EventName::Started, EventName::Finished]
        );
        assert!(first.iter().any(|event| event.id == second[0].id), "the same event has the same id");
        mailbox.detach(2, now);
        mailbox.expire(now + RETAIN - Duration::from_secs(1));
        assert_eq!(mailbox.kept.len(), 2);
        mailbox.expire(now + RETAIN);
        assert!(mailbox.kept.len() == 0 && mailbox.subscriptions.is_empty());
    }

    #[test]
    fn nothing_grows_without_end_and_what_was_left_out_is_said() {
        let (wake, now) = (Arc::new(Notify::new()), SystemClock.monotonic());
        for (guarantee, most) in [
            (DeliveryGuarantee::ExactlyOnce, KEPT_LIMIT.messages),
            (DeliveryGuarantee::AtMostOnce, PASSING_LIMIT.messages),
        ] {
            let mut mailbox = Mailbox::default();
            assert!(mailbox.subscribe(subscription(guarantee, 1), &wake));
            for _ in 0..most + 7 {
                mailbox.publish(&run_identity(), EventName::Progress, &json!({}));
            }
            assert_eq!(mailbox.kept.len() + mailbox.passing.len(), most);
            let due = mailbox.due(1, now, everybodys);
            assert_eq!(
                due.len(),
                most.min(if guarantee == DeliveryGuarantee::ExactlyOnce { MAX_IN_FLIGHT } else { most })
            );
            mailbox.acknowledge(due[0].id);
            mailbox.publish(&run_identity(), EventName::Finished, &json!({}));
            let last = mailbox.kept.last().or(mailbox.passing.last()).unwrap();
            assert_eq!(data(last)["dropped"], 7);
            let large = "x".repeat(KEPT_LIMIT.bytes);
            mailbox.publish(&run_identity(), EventName::Log, &json!({ "message": large }));
            assert!(
                mailbox.kept.bytes() <= KEPT_LIMIT.bytes && mailbox.passing.bytes() <= PASSING_LIMIT.bytes
            );
        }
        let mut mailbox = Mailbox::default();
        for nth in 0..=MAX_SUBSCRIPTIONS {
            let taken = mailbox.subscribe(subscription(DeliveryGuarantee::AtMostOnce, 1), &wake);
            assert_eq!(taken, nth < MAX_SUBSCRIPTIONS);
        }
    }

    #[test]
    fn an_agent_is_told_what_it_asked_for_of_whom_it_may_know() {
        let (wake, now) = (Arc::new(Notify::new()), SystemClock.monotonic());
        let mut mailbox = Mailbox::default();
        let (mine, other) = (
            run_identity(),
            RunIdentity { agent: AgentDid::parse("did:nexus:b").unwrap(), ..run_identity() },
        );
        let only = Subscription {
            intent: Some(mine.intent),
            events: [EventName::Finished].into(),
            ..subscription(DeliveryGuarantee::AtLeastOnce, 1)
        };
        assert!(mailbox.subscribe(only, &wake));
        assert!(!mailbox.wants(&mine, EventName::Started));
        assert!(!mailbox.wants(&run_identity(), EventName::Finished), "another intent");
        assert!(!mailbox.wants(&RunIdentity { intent: mine.intent, ..other.clone() }, EventName::Finished));
        assert!(mailbox.wants(&mine, EventName::Finished));
        assert!(
            mailbox.subscribe(
                Subscription { of: None, ..subscription(DeliveryGuarantee::AtMostOnce, 1) },
                &wake
            )
        );
        mailbox.publish(&other, EventName::Started, &json!({}));
        // An operator who is none any more.
        assert!(mailbox.due(1, now, |agent| *agent == mine.agent).is_empty());
    }
}
