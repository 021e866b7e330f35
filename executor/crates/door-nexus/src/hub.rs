//! The state of each agent: its message rate, its used ids, and its subscriptions.
//!
//! Only agents in the key file have a state, which bounds the map.

use super::ids::{IdPurpose, IdUse, UsedIds};
use super::mailbox::{Mailbox, OutgoingEvent, Subscription};
use super::socket::EventTarget;
use a2g_core::run::{RunEvent, RunIdentity, RunNotification};
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::outcome::{Artifact, LogLine, Progress};
use a2g_types::rate_limit::{RateLimit, RateState};
use a2g_wire::nexus::encode;
use a2g_wire::nexus::message::EventName;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of messages of one agent in a burst, and then per second on average.
pub(super) const MAX_MESSAGES_PER_SECOND: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// The agents that have sent a message.
#[derive(Debug, Default)]
pub(super) struct Hub(Mutex<HashMap<Box<str>, Agent>>);

#[derive(Debug, Default)]
struct Agent {
    rate: RateState,
    used: UsedIds,
    mailbox: Mailbox,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Agent>> {
        self.0.lock()
    }

    fn agent<T>(&self, name: &str, change: impl FnOnce(&mut Agent) -> T) -> T {
        let mut agents = self.lock();
        change(agents.entry(name.into()).or_default())
    }

    /// Counts a message of an agent. If there are too many, the error is the time after which another one is accepted.
    pub(super) fn acquire(&self, name: &str, now: Instant) -> Result<(), Duration> {
        let limit = RateLimit::per_period(MAX_MESSAGES_PER_SECOND, Duration::from_secs(1));
        self.agent(name, |agent| agent.rate.acquire(limit, now))
    }

    /// Marks an id of an agent as used until `until_ms`, in milliseconds since 1970.
    pub(super) fn use_id(
        &self,
        name: &str,
        id: IntentId,
        purpose: IdPurpose,
        now_ms: u64,
        until_ms: u64,
    ) -> IdUse {
        self.agent(name, |agent| agent.used.use_id(id, purpose, now_ms, until_ms))
    }

    /// Attaches the connection that an agent's events are sent over, unless another one is attached.
    pub(super) fn attach(&self, name: &str, target: &EventTarget) {
        self.agent(name, |agent| agent.mailbox.attach(target.id, &target.wake));
    }

    /// Removes a connection that has ended.
    pub(super) fn detach(&self, target: &EventTarget, now: Instant) {
        let mut agents = self.lock();
        for name in target.agents() {
            if let Some(agent) = agents.get_mut(&name) {
                agent.mailbox.detach(target.id, now);
            }
        }
    }

    /// Adds a subscription. Returns `false` if the agent has the maximum number of them.
    pub(super) fn subscribe(
        &self,
        name: &str,
        subscription: Subscription,
        target: &EventTarget,
        now: Instant,
    ) -> bool {
        self.agent(name, |agent| {
            agent.mailbox.expire(now);
            agent.mailbox.subscribe(subscription, &target.wake)
        })
    }

    /// Ends a subscription. Returns `false` if it does not exist.
    pub(super) fn unsubscribe(&self, name: &str, id: IntentId) -> bool {
        self.agent(name, |agent| agent.mailbox.unsubscribe(id))
    }

    /// Handles an agent's acknowledgement of an event.
    pub(super) fn acknowledge(&self, name: &str, id: IntentId) {
        if !self.agent(name, |agent| agent.mailbox.acknowledge(id)) {
            tracing::debug!(agent = name, event = %id, "an acknowledgement names no stored event");
        }
    }

    /// Takes the events that a connection has to send now, with the names of their agents.
    pub(super) fn take_due(
        &self,
        target: &EventTarget,
        now: Instant,
        allowed: impl Fn(&AgentDid) -> bool,
    ) -> Vec<(Box<str>, Arc<OutgoingEvent>)> {
        let mut agents = self.lock();
        let mut due = Vec::new();
        for name in target.agents() {
            let Some(agent) = agents.get_mut(&name) else { continue };
            let events = agent.mailbox.take_due(target.id, now, &allowed);
            due.extend(events.into_iter().map(|event| (name.clone(), event)));
        }
        due
    }

    /// Queues an event for its subscribers. The run's own thread calls this, so it never blocks.
    pub(super) fn publish(&self, run: &RunIdentity, notification: RunNotification<'_>, now: Instant) {
        let name = match &notification {
            RunNotification::Event(RunEvent::Started) => EventName::Started,
            RunNotification::Event(RunEvent::Progress(_)) => EventName::Progress,
            RunNotification::Event(RunEvent::Log(_)) => EventName::Log,
            RunNotification::Event(RunEvent::Artifact(_)) => EventName::Artifact,
            RunNotification::Finished(_) => EventName::Finished,
        };
        let mut data = None;
        for agent in self.lock().values_mut() {
            agent.mailbox.expire(now);
            if agent.mailbox.wants(run, name) {
                let data = data.get_or_insert_with(|| self::data(run, notification));
                agent.mailbox.publish(run, name, data);
            }
        }
    }
}

/// The data of an event. It has neither the result nor the content of artifacts, which only the response has.
fn data(run: &RunIdentity, notification: RunNotification<'_>) -> Value {
    let RunIdentity { agent, intent, tool } = run;
    let mut data = json!({
        "intentId": intent.to_string(),
        "agent": agent.as_str(),
        "tool": tool.as_str(),
    });
    let details = match notification {
        RunNotification::Event(RunEvent::Started) => json!({}),
        RunNotification::Event(RunEvent::Progress(Progress { percent, message })) => {
            json!({ "percent": percent, "message": message })
        }
        RunNotification::Event(RunEvent::Log(LogLine { level, message })) => {
            json!({ "level": level.as_str(), "message": message })
        }
        RunNotification::Event(RunEvent::Artifact(Artifact { name, mime, content })) => {
            json!({ "name": name, "mime": mime, "size": content.len() })
        }
        RunNotification::Finished(receipt) => json!({
            "status": receipt.outcome.end.status().as_str(),
            "metrics": encode::metrics(receipt),
        }),
    };
    if let (Some(data), Value::Object(details)) = (data.as_object_mut(), details) {
        data.extend(details);
    }
    data
}
