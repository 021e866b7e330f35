//! Posts notifications to webhooks, in order for each webhook and with a few retries. Neither runs nor callers wait for a
//! post.
//!
//! Every webhook has its own queue, so that a webhook that does not answer delays no other. A notification that exceeds
//! a limit is dropped and logged. Its receiver can still query the state: a client the task, a person the inbox.

use a2g_govern::WebhookKey;
use a2g_runtime::spawn::SessionTasks;
use a2g_sandbox::egress::{EgressError, WebhookClient};
use a2g_types::clock::Clock;
use a2g_types::ident::AgentDid;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::mpsc;

/// Maximum number of webhooks with a queue.
const MAX_WEBHOOKS: usize = 256;
/// Maximum number of webhooks of one owner with a queue.
const MAX_WEBHOOKS_PER_OWNER: usize = MAX_WEBHOOKS / 4;
/// Maximum number of queued notifications of one webhook.
const MAX_QUEUED: usize = 64;
/// The delays before the retries of a notification, which is dropped after the last retry.
const RETRY_DELAYS: [Duration; 4] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(8), Duration::from_secs(30)];
/// Maximum time of one attempt.
const POST_TIMEOUT: Duration = Duration::from_secs(20);

/// A notification to post to a webhook.
#[derive(Debug, Clone)]
pub struct WebhookNotification {
    /// The webhook. Its notifications are posted in order.
    pub webhook: WebhookId,
    /// The agent that owns the webhook; the executor itself owns the webhooks of its configuration.
    pub owner: AgentDid,
    /// The URL to post to.
    pub url: String,
    /// The proof by which the receiver recognises the sender.
    pub authentication: WebhookAuthentication,
    /// The JSON body.
    pub body: String,
}

/// The proof by which the receiver of a notification recognises its sender.
#[derive(Debug, Clone)]
pub enum WebhookAuthentication {
    /// By these HTTP headers: names and values.
    Headers(Vec<(&'static str, String)>),
    /// By a signature, as Standard Webhooks 1.0 defines it.
    Signature {
        /// The id of the message. It is the same in each attempt, so that the receiver recognises a message that it has
        /// already got.
        message: String,
        /// The key.
        key: Arc<WebhookKey>,
    },
}

impl WebhookAuthentication {
    /// The HTTP headers of one attempt at `now`.
    fn headers(&self, body: &str, now: OffsetDateTime) -> Vec<(&'static str, String)> {
        match self {
            Self::Headers(headers) => headers.clone(),
            // A receiver refuses old messages, so each attempt has its own time.
            Self::Signature { message, key } => vec![
                ("webhook-id", message.clone()),
                ("webhook-timestamp", now.unix_timestamp().to_string()),
                ("webhook-signature", key.sign(message, now, body)),
            ],
        }
    }
}

/// A webhook.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WebhookId {
    /// The id of the task; `None` for a webhook of the configuration.
    pub task: Option<String>,
    /// The id of the webhook within the task, or in the configuration.
    pub id: String,
}

type WebhookQueues = Arc<Mutex<HashMap<WebhookId, (AgentDid, mpsc::Sender<WebhookNotification>)>>>;

/// Posts notifications to webhooks.
pub struct WebhookPoster {
    client: Arc<WebhookClient>,
    queues: WebhookQueues,
    sessions: SessionTasks,
    clock: Arc<dyn Clock>,
}

impl WebhookPoster {
    /// A poster that uses `client`, in tasks of `sessions`.
    #[must_use]
    pub fn new(client: WebhookClient, sessions: SessionTasks, clock: Arc<dyn Clock>) -> Self {
        Self { client: Arc::new(client), queues: WebhookQueues::default(), sessions, clock }
    }

    /// Checks that the operator allows posts to a URL.
    ///
    /// # Errors
    /// If a rule forbids them: that rule.
    pub fn check(&self, url: &str) -> Result<(), EgressError> {
        self.client.check(url)
    }

    /// Queues a notification without blocking.
    pub fn notify(&self, notification: WebhookNotification) {
        let mut queues = self.queues.lock();
        let key = notification.webhook.clone();
        if let Some((_, queue)) = queues.get(&key) {
            if queue.try_send(notification).is_err() {
                log_dropped(&key, "too many notifications of this webhook are queued");
            }
            return;
        }
        let owner = notification.owner.clone();
        let count_of_owner = queues.values().filter(|(other, _)| *other == owner).count();
        if queues.len() >= MAX_WEBHOOKS || count_of_owner >= MAX_WEBHOOKS_PER_OWNER {
            return log_dropped(&key, "too many webhooks have queued notifications");
        }
        let (queue, notifications) = mpsc::channel(MAX_QUEUED);
        let _fits = queue.try_send(notification);
        queues.insert(key.clone(), (owner, queue));
        drop(queues);
        let client = Arc::clone(&self.client);
        let clock = Arc::clone(&self.clock);
        self.sessions.spawn(post_all(client, clock, Arc::clone(&self.queues), key, notifications));
    }
}

/// Posts the queued notifications, and ends when the queue is empty.
async fn post_all(
    client: Arc<WebhookClient>,
    clock: Arc<dyn Clock>,
    queues: WebhookQueues,
    key: WebhookId,
    mut notifications: mpsc::Receiver<WebhookNotification>,
) {
    loop {
        let next = {
            let mut queues = queues.lock();
            let next = notifications.try_recv();
            // Removed under the lock that `notify` takes, so that no notification is added to a queue without a reader.
            if next.is_err() {
                queues.remove(&key);
            }
            next
        };
        let Ok(notification) = next else { return };
        post(&client, &*clock, notification).await;
    }
}

async fn post(client: &WebhookClient, clock: &dyn Clock, notification: WebhookNotification) {
    let WebhookNotification { webhook, owner, url, authentication, body } = notification;
    let mut delays = RETRY_DELAYS.into_iter();
    loop {
        let headers = authentication.headers(&body, clock.now());
        let response = client.post(&owner, &url, &headers, body.clone());
        let reason = match tokio::time::timeout(POST_TIMEOUT, response).await {
            Ok(Ok(200..=299)) => return tracing::debug!(task = webhook.task, webhook = webhook.id, "posted"),
            // A rejected notification is not retried.
            Ok(Ok(status @ 300..=499)) if ![408, 429].contains(&status) => {
                return log_dropped(&webhook, &format!("it was answered with {status}"));
            }
            Ok(Ok(status)) => format!("it was answered with {status}"),
            Ok(Err(EgressError::Denied(denial))) => {
                return log_dropped(&webhook, denial.as_str());
            }
            Ok(Err(error @ EgressError::Failed(_))) => error.to_string(),
            Err(_elapsed) => "it timed out".to_owned(),
        };
        let Some(delay) = delays.next() else { return log_dropped(&webhook, &reason) };
        tracing::debug!(task = webhook.task, webhook = webhook.id, why = reason, "a notification is retried");
        tokio::time::sleep(delay).await;
    }
}

fn log_dropped(webhook: &WebhookId, reason: &str) {
    tracing::warn!(task = webhook.task, webhook = webhook.id, why = reason, "a notification is dropped");
}
