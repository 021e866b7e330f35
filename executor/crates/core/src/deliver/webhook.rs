//! Posts notifications to callers' webhooks, in order for each webhook and with a few retries. Neither runs nor callers
//! wait for a post.
//!
//! Every webhook has its own queue, so that a webhook that does not answer delays no other. A notification that exceeds
//! a limit is dropped and logged, because a client can always query the task.

use a2g_runtime::spawn::SessionTasks;
use a2g_sandbox::egress::{EgressError, WebhookClient};
use a2g_types::ident::AgentDid;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookNotification {
    /// The webhook. Its notifications are posted in order.
    pub webhook: WebhookId,
    /// The agent that owns the task.
    pub owner: AgentDid,
    /// The URL to post to.
    pub url: String,
    /// The HTTP headers: names and values.
    pub headers: Vec<(&'static str, String)>,
    /// The JSON body.
    pub body: String,
}

/// A webhook of a task.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WebhookId {
    /// The id of the task.
    pub task: String,
    /// The id of the webhook within the task.
    pub id: String,
}

type WebhookQueues = Arc<Mutex<HashMap<WebhookId, (AgentDid, mpsc::Sender<WebhookNotification>)>>>;

/// Posts notifications to webhooks.
pub struct WebhookPoster {
    client: Arc<WebhookClient>,
    queues: WebhookQueues,
    sessions: SessionTasks,
}

impl WebhookPoster {
    /// A poster that uses `client`, in tasks of `sessions`.
    #[must_use]
    pub fn new(client: WebhookClient, sessions: SessionTasks) -> Self {
        Self { client: Arc::new(client), queues: WebhookQueues::default(), sessions }
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
        self.sessions.spawn(post_all(Arc::clone(&self.client), Arc::clone(&self.queues), key, notifications));
    }
}

/// Posts the queued notifications, and ends when the queue is empty.
async fn post_all(
    client: Arc<WebhookClient>,
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
        post(&client, notification).await;
    }
}

async fn post(client: &WebhookClient, notification: WebhookNotification) {
    let WebhookNotification { webhook, owner, url, headers, body } = notification;
    let mut delays = RETRY_DELAYS.into_iter();
    loop {
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
