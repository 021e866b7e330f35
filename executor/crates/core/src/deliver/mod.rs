//! The executor's own messages to its governor (registration, heartbeats and reports), the messages that the governor
//! pushes over the same connection, and notifications to webhooks.

mod webhook;

pub use webhook::{WebhookAuthentication, WebhookId, WebhookNotification, WebhookPoster};

use crate::run::{Delivery, Executor};
use a2g_govern::{Checkpoint, ExecutorHeartbeat, ExecutorRegistration, GOVERNOR, KeyPair, Push, RemoteError};
use a2g_journal::chain::{Head, to_hex};
use a2g_types::error_chain::ErrorChain;
use a2g_types::fault::Fault;
use a2g_types::ident::AgentDid;
use a2g_types::outcome::Receipt;
use a2g_wire::a2g::decode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

/// Maximum number of reports in flight.
const MAX_IN_FLIGHT: usize = 16;
/// The delay before the first retry; each delay is twice the previous one.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);
/// The maximum delay before a retry.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Delivers reports, each at least once, until the sessions end.
pub async fn deliver_reports(executor: Arc<Executor>) {
    let permits = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let (due, receipt) = match executor.journal.deliveries.next_report().await {
            Ok(next) => next,
            Err(error) => {
                return tracing::error!(error = %ErrorChain(&error), "the delivery of reports has stopped");
            }
        };
        let executor = Arc::clone(&executor);
        executor.session_tasks().clone().spawn(async move {
            let deliveries = &executor.journal.deliveries;
            let span = delivery_span(&receipt);
            // Another node may have delivered it while this one did not run, or could not reach the governor.
            let delivery = match due.is_first_attempt() {
                true => Delivery::Here,
                false => executor.node.delivery_elsewhere(receipt.intent).await,
            };
            match delivery {
                Delivery::Done => return deliveries.mark_delivered(&due),
                Delivery::Pending => {
                    // Counted as refused, so that it does not block the agent's later reports for long.
                    let due = deliveries.mark_failed(due, true);
                    drop((permit, receipt));
                    tokio::time::sleep(jitter(retry_delay(due.tries))).await;
                    return deliveries.requeue(due);
                }
                Delivery::Here => {}
            }
            let result = executor.policies.governor().report(&receipt).instrument(span.clone()).await;
            executor.metrics().record_delivery(result.is_ok());
            let Err(error) = result else {
                span.in_scope(|| tracing::debug!("delivered"));
                deliveries.mark_delivered(&due);
                return executor.node.mark_reported(receipt.intent).await;
            };
            // A report that waits for its retry does not count as in flight.
            drop(permit);
            let is_refusal = matches!(error, RemoteError::Refused(_));
            let due = deliveries.mark_failed(due, is_refusal);
            let delay = jitter(retry_delay(due.tries));
            let governor = executor.policies.governor().endpoint();
            span.record("failed", true);
            span.in_scope(|| {
                let tries = due.tries;
                let pause_ms = delay.as_millis();
                let error = ErrorChain(&error);
                tracing::warn!(governor, %error, tries, pause_ms, "the delivery of a report failed, and is retried");
            });
            drop((receipt, span));
            tokio::time::sleep(delay).await;
            deliveries.requeue(due);
        });
    }
}

/// The span of one delivery attempt.
fn delivery_span(receipt: &Receipt) -> Span {
    let Receipt { agent, intent, tool, .. } = receipt;
    let agent = agent.as_str();
    let tool = tool.as_str();
    // Level `error`, so that warnings also have these fields at `RUST_LOG=warn`.
    tracing::error_span!("delivery", %intent, agent, tool, failed = Empty)
}

/// The delay after `tries` attempts, which doubles each time.
fn retry_delay(tries: u32) -> Duration {
    let factor = 2_u32.saturating_pow(tries.saturating_sub(1));
    FIRST_RETRY_DELAY.saturating_mul(factor).min(MAX_RETRY_DELAY)
}

/// A random delay between half and all of `delay`, so that many senders do not retry at the same time.
fn jitter(delay: Duration) -> Duration {
    let random = uuid::Uuid::new_v4().as_u128() % 1000;
    let thousandths = u32::try_from(random).unwrap_or(0);
    delay / 2 + delay / 2 * thousandths / 1000
}

/// Registers the executor, sends heartbeats, and registers again when the governor has forgotten it: see [`is_forgotten`].
///
/// A heartbeat has the journal's checkpoint, signed if there is a `key`, and the registration has `public_key`. The
/// first heartbeat, immediately after the registration, has the checkpoint `at_start` from before any run. That one
/// reveals a restored older copy of the journal even if new runs have made the copy longer than the original.
pub async fn stay_registered(
    executor: Arc<Executor>,
    did: AgentDid,
    interval: Duration,
    key: Option<KeyPair>,
    public_key: Option<String>,
    at_start: Head,
) {
    let started_at = executor.clock().monotonic();
    let registration =
        ExecutorRegistration { agent: did.clone(), public_key, tools: executor.catalogue.tool_names() };
    let mut first_checkpoint = Some(at_start);
    loop {
        register(&executor, &registration).await;
        let connection = executor.policies.governor().connection();
        let mut is_first_heartbeat = true;
        let mut was_accepted = false;
        loop {
            let (running, queued) = executor.queries.queue_stats();
            let uptime = executor.clock().monotonic().saturating_duration_since(started_at);
            let Head { number: count, hash } = first_checkpoint.unwrap_or_else(|| executor.journal.head());
            let root = to_hex(&hash);
            let now = executor.clock().now();
            let signature = key.as_ref().map(|key| key.attest(&did, count, &root, now));
            let checkpoint = Checkpoint { count, root, signature };
            let heartbeat = ExecutorHeartbeat {
                agent: did.clone(),
                uptime_seconds: uptime.as_secs(),
                running,
                queued,
                checkpoint,
            };
            let is_forgotten = match executor.policies.governor().heartbeat(&heartbeat).await {
                Ok(()) => {
                    first_checkpoint = None;
                    was_accepted = true;
                    executor.policies.governor().connection() != connection
                }
                Err(error) => {
                    let governor = executor.policies.governor().endpoint();
                    tracing::warn!(governor, error = %ErrorChain(&error), "the heartbeat failed");
                    is_forgotten(&error, was_accepted)
                }
            };
            // The executor does not register again after the first heartbeat: a governor that rejects each one, or closes
            // each connection, would cause a loop of registrations.
            if is_forgotten && !is_first_heartbeat {
                break;
            }
            is_first_heartbeat = false;
            tokio::time::sleep(interval).await;
        }
    }
}

/// Returns `true` if a failed heartbeat may mean that the governor no longer knows the executor. Governors have different
/// errors for this, so any refusal counts, if the governor has accepted a heartbeat since the registration. A governor that
/// could not be reached may have been started again.
fn is_forgotten(error: &RemoteError, was_accepted: bool) -> bool {
    match error {
        RemoteError::Refused(Fault::SessionExpired(_)) => true,
        RemoteError::Refused(_) | RemoteError::Faulty { .. } => was_accepted,
        RemoteError::Unreachable(_) | RemoteError::TimedOut(_) => true,
        RemoteError::InvalidResult(_) | RemoteError::Record(_) => false,
    }
}

async fn register(executor: &Executor, registration: &ExecutorRegistration) {
    let mut delay = FIRST_RETRY_DELAY;
    let governor = executor.policies.governor().endpoint();
    loop {
        match executor.policies.governor().register(registration).await {
            Ok(policy) => {
                tracing::info!(governor, agent = %registration.agent, "registered with the governor");
                if let Some(policy) = policy
                    && let Err(fault) = executor.operator.set_policy(policy, GOVERNOR).await
                {
                    tracing::warn!(?fault, "the policy of the registration is not known to the whole fleet");
                }
                return;
            }
            Err(error) => {
                let pause_ms = delay.as_millis();
                tracing::warn!(governor, error = %ErrorChain(&error), pause_ms, "the registration failed, and is retried");
                tokio::time::sleep(jitter(delay)).await;
                delay = (delay * 2).min(MAX_RETRY_DELAY);
            }
        }
    }
}

/// Applies the messages that the governor pushes over the connection that the executor has opened.
pub async fn follow_pushes(executor: Arc<Executor>, mut pushes: mpsc::Receiver<Push>) {
    while let Some(push) = pushes.recv().await {
        if let Err(fault) = apply_push(&executor, &push).await {
            let governor = executor.policies.governor().endpoint();
            tracing::warn!(
                governor,
                method = push.method,
                ?fault,
                "a message that the governor pushed was refused"
            );
        }
    }
}

async fn apply_push(executor: &Arc<Executor>, push: &Push) -> Result<(), Fault> {
    let params = push.params.get();
    match push.method {
        "g2a/policy" => executor.operator.set_policy(decode::policy(params)?, GOVERNOR).await?,
        "g2a/revoke" => {
            let decode::RevokeParams { agent, intent } = decode::revoke_params(params)?;
            executor.operator.revoke(agent.as_ref(), intent, GOVERNOR).await?;
        }
        "g2a/directive" => {
            let right = executor.policies.governor().decision_right();
            executor.operator.apply_directive(&decode::directive(params)?, right).await?;
        }
        other => tracing::warn!(method = other, "a message that the governor pushed has an unknown method"),
    }
    Ok(())
}
