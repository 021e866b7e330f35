//! What is known of each agent: how much it sends, which ids it used, and what it wants to be told.
//!
//! Agents are those of the key file, so that there are never more than it has.

use super::ids::{Purpose, Use, UsedIds};
use super::mailbox::{Mailbox, Outgoing, Subscription};
use super::socket::Line;
use crate::ident::{AgentDid, IntentId};
use crate::outcome::{Artifact, LogLine, Progress};
use crate::rate_limit::{RateLimit, RateState};
use crate::run::{Happening, News, Subject};
use crate::wire::nexus::encode;
use crate::wire::nexus::message::EventName;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The messages of one agent: as many at once, and as many in each second from then on.
pub(super) const MAX_MESSAGES_PER_SECOND: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// All agents that have sent something.
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn agent<T>(&self, name: &str, change: impl FnOnce(&mut Agent) -> T) -> T {
        let mut agents = self.lock();
        change(agents.entry(name.into()).or_default())
    }

    /// Counts a message of an agent, unless there are too many: then the time after which one is taken.
    pub(super) fn acquire(&self, name: &str, now: Instant) -> Result<(), Duration> {
        let limit = RateLimit::per(MAX_MESSAGES_PER_SECOND, Duration::from_secs(1));
        self.agent(name, |agent| agent.rate.acquire(limit, now))
    }

    /// Uses an id of an agent.
    pub(super) fn spend(
        &self,
        name: &str,
        id: IntentId,
        purpose: Purpose,
        now_ms: u64,
        until_ms: u64,
    ) -> Use {
        self.agent(name, |agent| agent.used.spend(id, purpose, now_ms, until_ms))
    }

    /// Lets an agent's events go over a connection, when they go over no other.
    pub(super) fn attach(&self, name: &str, line: &Line) {
        self.agent(name, |agent| agent.mailbox.attach(line.id, &line.wake));
    }

    /// A connection is gone.
    pub(super) fn detach(&self, line: &Line, now: Instant) {
        let mut agents = self.lock();
        for name in line.agents() {
            if let Some(agent) = agents.get_mut(&name) {
                agent.mailbox.detach(line.id, now);
            }
        }
    }

    /// Adds a subscription. `false` when there are too many.
    pub(super) fn subscribe(
        &self,
        name: &str,
        subscription: Subscription,
        line: &Line,
        now: Instant,
    ) -> bool {
        self.agent(name, |agent| {
            agent.mailbox.expire(now);
            agent.mailbox.subscribe(subscription, &line.wake)
        })
    }

    /// Ends a subscription. `false` when there is none.
    pub(super) fn unsubscribe(&self, name: &str, id: IntentId) -> bool {
        self.agent(name, |agent| agent.mailbox.unsubscribe(id))
    }

    /// An event arrived at an agent.
    pub(super) fn acknowledged(&self, name: &str, id: IntentId) {
        if !self.agent(name, |agent| agent.mailbox.acknowledged(id)) {
            tracing::debug!(agent = name, event = %id, "an acknowledgement of no event that is kept");
        }
    }

    /// What a connection is to send now, with the names of its agents.
    pub(super) fn due(
        &self,
        line: &Line,
        now: Instant,
        allowed: impl Fn(&AgentDid) -> bool,
    ) -> Vec<(Box<str>, Arc<Outgoing>)> {
        let mut agents = self.lock();
        let mut due = Vec::new();
        for name in line.agents() {
            let Some(agent) = agents.get_mut(&name) else { continue };
            let events = agent.mailbox.due(line.id, now, &allowed);
            due.extend(events.into_iter().map(|event| (name.clone(), event)));
        }
        due
    }

    /// Tells all who want to know. It is called on a run's own thread, and waits for nobody.
    pub(super) fn publish(&self, subject: &Subject, news: News<'_>, now: Instant) {
        let name = match &news {
            News::Happened(Happening::Started) => EventName::Started,
            News::Happened(Happening::Progress(_)) => EventName::Progress,
            News::Happened(Happening::Log(_)) => EventName::Log,
            News::Happened(Happening::Artifact(_)) => EventName::Artifact,
            News::Finished(_) => EventName::Finished,
        };
        let mut data = None;
        for agent in self.lock().values_mut() {
            agent.mailbox.expire(now);
            if agent.mailbox.wants(subject, name) {
                let data = data.get_or_insert_with(|| self::data(subject, news));
                agent.mailbox.publish(subject, name, data);
            }
        }
    }
}

/// What is told of it. An artifact's content and a result come with the response.
fn data(subject: &Subject, news: News<'_>) -> Value {
    let Subject { agent, intent, tool } = subject;
    let mut data = json!({
        "intentId": intent.to_string(),
        "agent": agent.as_str(),
        "tool": tool.as_str(),
    });
    let more = match news {
        News::Happened(Happening::Started) => json!({}),
        News::Happened(Happening::Progress(Progress { percent, message })) => {
            json!({ "percent": percent, "message": message })
        }
        News::Happened(Happening::Log(LogLine { level, message })) => {
            json!({ "level": level.as_str(), "message": message })
        }
        News::Happened(Happening::Artifact(Artifact { name, mime, content })) => {
            json!({ "name": name, "mime": mime, "size": content.len() })
        }
        News::Finished(receipt) => json!({
            "status": receipt.outcome.end.status().as_str(),
            "metrics": encode::metrics(receipt),
        }),
    };
    if let (Some(data), Value::Object(more)) = (data.as_object_mut(), more) {
        data.extend(more);
    }
    data
}
