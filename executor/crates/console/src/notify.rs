//! Notifications: signed messages to the operator's webhooks which say that an intent waits for a person.
//!
//! ```text
//! OpenIntents ─ list_changes ─▶ Announcer ─ at most MAX_MESSAGES in a burst ─▶ WebhookPoster ─ a queue per webhook ─▶ post
//! ```
//! The notifier follows the list of waiting intents as an open page does: no call waits for it. A message names the
//! intent, its agent and its tool, and links to the page of the decision. It never contains arguments, results or
//! reasons: readers of the channel may not be allowed to decide.

use a2g_core::deliver::{WebhookAuthentication, WebhookId, WebhookNotification, WebhookPoster};
use a2g_core::run::{Executor, WaitingSummary};
use a2g_govern::WebhookKey;
use a2g_http::PublicUrl;
use a2g_types::clock::format_seconds;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::rate_limit::{RateLimit, RateState};
use a2g_types::visible_text::escape_invisible;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of messages to a webhook at once and per [`MESSAGE_PERIOD`]: enough for a person, and below the rate limits
/// of chat services.
const MAX_MESSAGES: NonZeroU32 = NonZeroU32::new(10).unwrap();
/// The period of [`MAX_MESSAGES`].
const MESSAGE_PERIOD: Duration = Duration::from_secs(60);
/// Minimum time between two look-ups of the waiting intents, which lock their list.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of the name of an agent or a tool, in characters.
const MAX_NAME_CHARS: usize = 300;

/// A webhook that is notified of waiting intents.
pub struct NotifyWebhook {
    /// The URL to post to.
    pub url: String,
    /// The key that signs its messages.
    pub key: WebhookKey,
}

/// Notifies webhooks of the intents that wait for a person.
pub struct Notifier {
    executor: Arc<Executor>,
    poster: Arc<WebhookPoster>,
    owner: AgentDid,
    webhooks: Vec<(String, Arc<WebhookKey>)>,
}

impl Notifier {
    /// Creates a notifier that posts to these webhooks through `poster`, in the name of `owner`.
    #[must_use]
    pub fn new(
        executor: Arc<Executor>,
        poster: Arc<WebhookPoster>,
        owner: AgentDid,
        webhooks: Vec<NotifyWebhook>,
    ) -> Self {
        let webhooks = webhooks.into_iter().map(|NotifyWebhook { url, key }| (url, Arc::new(key))).collect();
        Self { executor, poster, owner, webhooks }
    }

    /// Announces the waiting intents, with links to the console at `public_url`, until the server ends.
    pub async fn run(self, public_url: PublicUrl) {
        let mut changes = self.executor.queries.escalation_changes();
        let mut announcer = Announcer::default();
        loop {
            changes.mark_unchanged();
            let mut waiting = self.executor.previews.waiting_intents(&|_agent| true);
            // The others are announced by the nodes at which they arrived.
            waiting.retain(|waiting| waiting.node.is_none());
            // Read after the list, so that an intent in neither of them has left; if it is sent again, it is announced again.
            let held = self.executor.queries.held_intents();
            let now = self.executor.clock().monotonic();
            let (announcements, retry_after) = announcer.announce(&waiting, &held, now);
            for announcement in announcements {
                self.post(&announcement.body(&public_url));
            }
            tokio::time::sleep(MIN_INTERVAL).await;
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = wait(retry_after) => {}
            }
        }
    }

    /// Queues a message for every webhook.
    fn post(&self, body: &Value) {
        let body = body.to_string();
        let message = format!("msg_{}", IntentId::random());
        for (index, (url, key)) in self.webhooks.iter().enumerate() {
            self.poster.notify(WebhookNotification {
                webhook: WebhookId { task: None, id: format!("console.notify {}", index + 1) },
                owner: self.owner.clone(),
                url: url.clone(),
                authentication: WebhookAuthentication::Signature {
                    message: message.clone(),
                    key: Arc::clone(key),
                },
                body: body.clone(),
            });
        }
    }
}

/// Waits for a time, or for ever.
async fn wait(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// The content of one message.
#[derive(Debug)]
enum Announcement<'a> {
    /// An intent waits.
    Intent(&'a WaitingSummary),
    /// The number of waiting intents that have no message of their own.
    Others(usize),
}

impl Announcement<'_> {
    fn body(&self, public_url: &PublicUrl) -> Value {
        match self {
            Self::Intent(WaitingSummary {
                intent,
                agent,
                tool,
                session: _,
                main_argument: _,
                risk,
                reason: _,
                expires_at,
                node: _,
            }) => json!({
                "event": "waiting",
                "intent": intent.to_string(),
                "agent": escape_invisible(agent.as_str(), MAX_NAME_CHARS),
                "tool": escape_invisible(tool.as_str(), MAX_NAME_CHARS),
                "risk": risk.map(|(level, score)| json!({ "level": level.as_str(), "score": score })),
                "expires_at": format_seconds(*expires_at),
                "url": public_url.page(&format!("/console/decide/{intent}")),
            }),
            Self::Others(count) => json!({
                "event": "waiting",
                "count": count,
                "url": public_url.page("/console/inbox"),
            }),
        }
    }
}

/// Selects what the next messages say. Each intent is announced once while it is held.
#[derive(Debug, Default)]
struct Announcer {
    /// The announced intents that are still held, whose number the core limits.
    announced: HashSet<IntentId>,
    rate: RateState,
}

impl Announcer {
    /// The announcements of the waiting intents that are new. The last message that the rate limit allows counts all remaining
    /// intents. Also returns the time until the next message is allowed, if intents remain.
    fn announce<'a>(
        &mut self,
        waiting: &'a [WaitingSummary],
        held: &HashSet<IntentId>,
        now: Instant,
    ) -> (Vec<Announcement<'a>>, Option<Duration>) {
        let limit = RateLimit::per_period(MAX_MESSAGES, MESSAGE_PERIOD);
        let unannounced = waiting.iter().filter(|waiting| !self.announced.contains(&waiting.intent));
        let new = unannounced.collect::<Vec<_>>();
        let mut announcements = Vec::new();
        let mut retry_after = None;
        let mut rest = new.as_slice();
        while let [first, others @ ..] = rest {
            if let Err(wait) = self.rate.acquire(limit, now) {
                retry_after = Some(wait);
                break;
            }
            let is_last = !self.rate.wait_time(limit, now).is_zero();
            if is_last && !others.is_empty() {
                announcements.push(Announcement::Others(rest.len()));
                rest = &[];
            } else {
                announcements.push(Announcement::Intent(first));
                rest = others;
            }
        }
        let announced = new.len() - rest.len();
        self.announced.extend(new.iter().take(announced).map(|waiting| waiting.intent));
        self.announced.retain(|intent| held.contains(intent));
        (announcements, retry_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::clock::{Clock as _, SystemClock};
    use a2g_types::ident::ToolName;
    use a2g_types::verdict::RiskLevel;
    use time::macros::datetime;

    fn waiting(count: usize) -> Vec<WaitingSummary> {
        let summary = |_| WaitingSummary {
            intent: IntentId::random(),
            agent: AgentDid::parse("did:a:b").unwrap(),
            tool: ToolName::parse("write_file").unwrap(),
            session: None,
            main_argument: None,
            risk: None,
            reason: Some("the arguments contain a key".to_owned()),
            expires_at: datetime!(2026-11-26 12:00:00.5 UTC),
            node: None,
        };
        (0..count).map(summary).collect()
    }

    fn held(waiting: &[WaitingSummary]) -> HashSet<IntentId> {
        waiting.iter().map(|waiting| waiting.intent).collect()
    }

    /// The numbers of intents that the announcements stand for: 0 for one that names its intent.
    fn counts(announcements: &[Announcement<'_>]) -> Vec<usize> {
        let count = |announcement: &Announcement<'_>| match announcement {
            Announcement::Intent(_) => 0,
            Announcement::Others(count) => *count,
        };
        announcements.iter().map(count).collect()
    }

    #[test]
    fn an_intent_is_announced_once_while_it_is_held() {
        let mut announcer = Announcer::default();
        let all = waiting(2);
        let now = SystemClock.monotonic();
        let (announcements, retry_after) = announcer.announce(&all[..1], &held(&all), now);
        assert_eq!((counts(&announcements), retry_after), (vec![0], None));
        // The first intent is in a decision, and is then released.
        assert_eq!(counts(&announcer.announce(&all[1..], &held(&all), now).0), [0]);
        assert_eq!(counts(&announcer.announce(&all, &held(&all), now).0), [0; 0]);
        // The first intent expired and was sent again.
        assert_eq!(counts(&announcer.announce(&all[1..], &held(&all[1..]), now).0), [0; 0]);
        assert_eq!(counts(&announcer.announce(&all, &held(&all), now).0), [0]);
        assert_eq!(announcer.announced.len(), 2);
    }

    #[test]
    fn the_last_message_of_a_flood_stands_for_the_rest() {
        let mut announcer = Announcer::default();
        let all = waiting(1000);
        let now = SystemClock.monotonic();
        let (announcements, retry_after) = announcer.announce(&all[..300], &held(&all[..300]), now);
        assert_eq!(counts(&announcements), [0, 0, 0, 0, 0, 0, 0, 0, 0, 291]);
        assert_eq!(retry_after, None, "every intent is announced");
        let (announcements, retry_after) = announcer.announce(&all, &held(&all), now);
        assert_eq!((counts(&announcements), retry_after), (vec![], Some(Duration::from_secs(6))));
        let later = now + Duration::from_secs(6);
        let (announcements, retry_after) = announcer.announce(&all, &held(&all), later);
        assert_eq!((counts(&announcements), retry_after), (vec![700], None));
        // Intents that are gone leave no entry.
        assert_eq!(counts(&announcer.announce(&[], &HashSet::new(), later).0), [0; 0]);
        assert!(announcer.announced.is_empty());
    }

    #[test]
    fn a_message_has_names_and_a_link_and_nothing_that_an_agent_wrote() {
        let url = PublicUrl::parse("https://tools.example.com/").unwrap();
        let mut summary = waiting(1).remove(0);
        let intent = summary.intent;
        let body = |summary: &WaitingSummary| Announcement::Intent(summary).body(&url);
        let mut expected = json!({
            "event": "waiting",
            "intent": intent.to_string(),
            "agent": "did:a:b",
            "tool": "write_file",
            "risk": null,
            "expires_at": "2026-11-26T12:00:00Z",
            "url": format!("https://tools.example.com/console/decide/{intent}"),
        });
        assert_eq!(body(&summary), expected);
        summary.risk = Some((RiskLevel::High, 0.75));
        expected["risk"] = json!({ "level": RiskLevel::High.as_str(), "score": 0.75 });
        assert_eq!(body(&summary), expected);
        assert_eq!(
            Announcement::Others(3).body(&url),
            json!({ "event": "waiting", "count": 3, "url": "https://tools.example.com/console/inbox" })
        );
    }
}
