//! Posts notifications to callers' webhooks, in order for each webhook and with a few retries. Neither runs nor callers
//! wait for them.
//!
//! Every webhook has its own queue, so that one that does not answer delays no other. A notification that does not fit
//! is dropped and logged: a client can always query the task.

use a2g_runtime::spawn::SessionTasks;
use a2g_sandbox::egress::{EgressError, WebhookClient};
use a2g_types::ident::AgentDid;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Webhooks with a queue at once.
const MAX_CONCURRENT: usize = 256;
/// Webhooks of one owner with a queue at once.
const MAX_CONCURRENT_PER_OWNER: usize = MAX_CONCURRENT / 4;
/// Notifications that wait for one webhook.
const MAX_WAITING: usize = 64;
/// The delays before the retries of a notification. After the last one it is dropped.
const RETRY_DELAYS: [Duration; 4] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(8), Duration::from_secs(30)];
/// Timeout of one attempt.
const POST_TIMEOUT: Duration = Duration::from_secs(20);

/// One post to a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookNotification {
    /// The webhook. Its notifications are posted in order.
    pub webhook: WebhookId,
    /// The agent that owns the task.
    pub owner: AgentDid,
    /// The URL to post to.
    pub url: String,
    /// The HTTP headers.
    pub headers: Vec<(&'static str, String)>,
    /// The JSON body.
    pub body: String,
}

/// A webhook of a task.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WebhookId {
    /// The task.
    pub task: String,
    /// The id of the webhook within the task.
    pub id: String,
}

type WebhookQueues = Arc<Mutex<HashMap<WebhookId, (AgentDid, mpsc::Sender<WebhookNotification>)>>>;

/// Posts notifications.
pub struct WebhookPoster {
    client: Arc<WebhookClient>,
    queues: WebhookQueues,
    sessions: SessionTasks,
}

impl WebhookPoster {
    /// Posts with this client, in tasks of these sessions.
    #[must_use]
    pub fn new(client: WebhookClient, sessions: SessionTasks) -> Self {
        Self { client: Arc::new(client), queues: WebhookQueues::default(), sessions }
    }

    /// Checks that the operator allows posts to a URL.
    ///
    /// # Errors
    /// The rule that forbids them.
    pub fn check(&self, url: &str) -> Result<(), EgressError> {
        self.client.check(url)
    }

    /// Queues a notification without blocking.
    pub fn notify(&self, notice: WebhookNotification) {
        let mut queues = self.queues.lock();
        let key = notice.webhook.clone();
        if let Some((_, queue)) = queues.get(&key) {
            if queue.try_send(notice).is_err() {
                log_dropped(&key, "too many notifications wait for this webhook");
            }
            return;
        }
        let owner = notice.owner.clone();
        let of_owner = queues.values().filter(|(other, _)| *other == owner).count();
        if queues.len() >= MAX_CONCURRENT || of_owner >= MAX_CONCURRENT_PER_OWNER {
            return log_dropped(&key, "too many webhooks have notifications that wait");
        }
        let (queue, waiting) = mpsc::channel(MAX_WAITING);
        let _there_is_room = queue.try_send(notice);
        queues.insert(key.clone(), (owner, queue));
        drop(queues);
        self.sessions.spawn(post_all(Arc::clone(&self.client), Arc::clone(&self.queues), key, waiting));
    }
}

/// Posts the queued notifications, and ends when the queue is empty.
async fn post_all(
    client: Arc<WebhookClient>,
    queues: WebhookQueues,
    key: WebhookId,
    mut waiting: mpsc::Receiver<WebhookNotification>,
) {
    loop {
        let next = {
            let mut queues = queues.lock();
            let next = waiting.try_recv();
            // Removed under the lock of `notify`, so that no notification is added to a queue without a reader.
            if next.is_err() {
                queues.remove(&key);
            }
            next
        };
        let Ok(notice) = next else { return };
        post(&client, notice).await;
    }
}

async fn post(client: &WebhookClient, notice: WebhookNotification) {
    let WebhookNotification { webhook, owner, url, headers, body } = notice;
    let mut delays = RETRY_DELAYS.into_iter();
    loop {
        let posted = client.post(&owner, &url, &headers, body.clone());
        let why = match tokio::time::timeout(POST_TIMEOUT, posted).await {
            Ok(Ok(200..=299)) => return tracing::debug!(task = webhook.task, webhook = webhook.id, "posted"),
            // A rejected notification is not retried.
            Ok(Ok(status @ 300..=499)) if ![408, 429].contains(&status) => {
                return log_dropped(&webhook, &format!("it was answered with {status}"));
            }
            Ok(Ok(status)) => format!("it was answered with {status}"),
            Ok(Err(EgressError::Denied(reason))) => {
                return log_dropped(&webhook, reason.as_str());
            }
            Ok(Err(refusal @ EgressError::Failed(_))) => refusal.to_string(),
            Err(_late) => "it timed out".to_owned(),
        };
        let Some(delay) = delays.next() else { return log_dropped(&webhook, &why) };
        tracing::debug!(task = webhook.task, webhook = webhook.id, why, "a notification is retried");
        tokio::time::sleep(delay).await;
    }
}

fn log_dropped(webhook: &WebhookId, why: &str) {
    tracing::warn!(task = webhook.task, webhook = webhook.id, why, "a notification is dropped");
}
