//! Notices to the webhooks of A2A tasks, each in the order in which it came, tried again for a while, and never
//! waited for by anybody.
//!
//! Every webhook of a task has a line of its own, so that one that does not answer keeps no other waiting. What
//! finds no room is dropped, and the log says so: a client that has to know asks for the task.

use crate::egress::WebhookClient;
use crate::wire::a2a::push::{PushNotification, WebhookUrlError, Webhooks};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// How many webhooks are told at once.
const MAX_CONCURRENT: usize = 256;
/// How many of them may be one owner's.
const MAX_CONCURRENT_PER_OWNER: usize = MAX_CONCURRENT / 4;
/// How many notices wait for one webhook.
const MAX_WAITING: usize = 64;
/// The pauses before a notice is sent again. After the last it is dropped.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(8), Duration::from_secs(30)];
/// The longest that one try may take.
const ONE_TRY: Duration = Duration::from_secs(20);

type Key = (String, String);
type Lines = Arc<Mutex<HashMap<Key, (String, mpsc::Sender<PushNotification>)>>>;

/// Posts notices.
pub struct Post {
    client: Arc<WebhookClient>,
    lines: Lines,
}

impl Post {
    /// With this client.
    #[must_use]
    pub fn new(client: WebhookClient) -> Self {
        Self { client: Arc::new(client), lines: Lines::default() }
    }
}

impl Webhooks for Post {
    fn check(&self, url: &str) -> Result<(), WebhookUrlError> {
        self.client.check(url).map_err(|error| WebhookUrlError { reason: error.into() })
    }

    fn notify(&self, notice: PushNotification) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let key = notice.of.clone();
        if let Some((_, line)) = lines.get(&key) {
            if line.try_send(notice).is_err() {
                dropped(&key, "too many wait for this webhook");
            }
            return;
        }
        let owner = notice.owner.to_string();
        let theirs = lines.values().filter(|(of, _)| *of == owner).count();
        if lines.len() >= MAX_CONCURRENT || theirs >= MAX_CONCURRENT_PER_OWNER {
            return dropped(&key, "too many webhooks are told at once");
        }
        let (line, waiting) = mpsc::channel(MAX_WAITING);
        let _there_is_room = line.try_send(notice);
        lines.insert(key.clone(), (owner, line));
        drop(lines);
        tokio::spawn(post_all(Arc::clone(&self.client), Arc::clone(&self.lines), key, waiting));
    }
}

/// Posts what waits, and goes when nothing does.
async fn post_all(
    client: Arc<WebhookClient>,
    lines: Lines,
    key: Key,
    mut waiting: mpsc::Receiver<PushNotification>,
) {
    loop {
        let next = {
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            let next = waiting.try_recv();
            // Nobody can say anything in between.
            if next.is_err() {
                lines.remove(&key);
            }
            next
        };
        let Ok(notice) = next else { return };
        post(&client, notice).await;
    }
}

async fn post(client: &WebhookClient, notice: PushNotification) {
    let PushNotification { of, owner, url, headers, body } = notice;
    let mut pauses = PAUSES.into_iter();
    loop {
        let posted = client.post(&owner, &url, &headers, body.clone());
        let why = match tokio::time::timeout(ONE_TRY, posted).await {
            Ok(Ok(200..=299)) => return tracing::debug!(task = of.0, webhook = of.1, "told"),
            // What the other side does not want is not sent again.
            Ok(Ok(status @ 300..=499)) if ![408, 429].contains(&status) => {
                return dropped(&of, &format!("it was answered with {status}"));
            }
            Ok(Ok(status)) => format!("it was answered with {status}"),
            Ok(Err(crate::egress::EgressError::Denied(reason))) => return dropped(&of, reason.as_str()),
            Ok(Err(refusal @ crate::egress::EgressError::Failed(_))) => refusal.to_string(),
            Err(_late) => "it took too long".to_owned(),
        };
        let Some(pause) = pauses.next() else { return dropped(&of, &why) };
        tracing::debug!(task = of.0, webhook = of.1, why, "a notice is sent again");
        tokio::time::sleep(pause).await;
    }
}

fn dropped(of: &Key, why: &str) {
    tracing::warn!(task = of.0, webhook = of.1, why, "a notice is dropped");
}
