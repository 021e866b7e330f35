//! What the executor sends to its governor by itself: registration, heartbeats and reports; and
//! what the governor pushes back over the same connection.

mod webhook;

pub use webhook::Post;

use crate::error_chain::ErrorChain;
use crate::fault::Fault;
use crate::govern::{Checkpoint, Introduction, KeyPair, Pulse, Push, RemoteError};
use crate::ident::AgentDid;
use crate::journal::chain::{Head, shown};
use crate::outcome::Receipt;
use crate::run::Executor;
use crate::wire::a2g::decode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

/// How many reports are on their way at once.
const MAX_IN_FLIGHT: usize = 16;
/// The first and the longest pause before something is sent again.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);
/// The name on record for decisions that come over the executor's own connection to its governor.
const GOVERNOR: &str = "the governor";

/// Delivers reports for as long as the process lives, each at least once.
pub async fn deliver_reports(executor: Arc<Executor>) {
    let places = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (due, receipt) = match executor.journal().next_report().await {
            Ok(next) => next,
            Err(error) => {
                return tracing::error!(error = %ErrorChain(&error), "no more reports are delivered");
            }
        };
        let executor = Arc::clone(&executor);
        tokio::spawn(async move {
            let span = span(&receipt);
            let delivered = executor.governor().report(&receipt).instrument(span.clone()).await;
            executor.metrics().delivered(delivered.is_ok());
            let Err(error) = delivered else {
                span.in_scope(|| tracing::debug!("delivered"));
                return executor.journal().delivered(&due);
            };
            // A pause takes no place away from others.
            drop(place);
            let refused = matches!(error, RemoteError::Refused(_));
            let due = executor.journal().failed(due, refused);
            let pause = jittered(pause_before(due.tries));
            let governor = executor.governor().place();
            span.record("failed", true);
            span.in_scope(|| {
                let (tries, pause_ms) = (due.tries, pause.as_millis());
                let error = ErrorChain(&error);
                tracing::warn!(governor, %error, tries, pause_ms, "the report is sent again");
            });
            drop((receipt, span));
            tokio::time::sleep(pause).await;
            executor.journal().again(due);
        });
    }
}

/// The span of one try to deliver a report.
fn span(receipt: &Receipt) -> Span {
    let Receipt { agent, intent, tool, approved_by: _, durability: _, outcome: _ } = receipt;
    let (agent, tool) = (agent.as_str(), tool.as_str());
    tracing::error_span!("delivery", %intent, agent, tool, failed = Empty)
}

/// The pause after so many tries: twice as long each time.
fn pause_before(tries: u32) -> Duration {
    let factor = 2_u32.saturating_pow(tries.saturating_sub(1));
    FIRST_PAUSE.saturating_mul(factor).min(MAX_RETRY_DELAY)
}

/// A pause of half to all of `pause`, so that many senders do not come back at once.
fn jittered(pause: Duration) -> Duration {
    let random = uuid::Uuid::new_v4().as_u128() % 1000;
    let share = u32::try_from(random).unwrap_or(0);
    pause / 2 + pause / 2 * share / 1000
}

/// Registers the executor, again whenever the governor has forgotten it, and sends heartbeats.
///
/// A heartbeat carries the journal's checkpoint, signed by `key` when there is one, and the registration carries
/// `public_key`. The first heartbeat, right after the registration, carries the checkpoint `at_start`, before
/// anything ran: it shows a restored older copy even if that has since grown longer than the history that it lost.
pub async fn stay_registered(
    executor: Arc<Executor>,
    did: AgentDid,
    every: Duration,
    key: Option<KeyPair>,
    public_key: Option<String>,
    at_start: Head,
) {
    let began = executor.clock().monotonic();
    let introduction = Introduction { agent: did.clone(), public_key, tools: executor.tool_names() };
    let mut untold = Some(at_start);
    loop {
        register(&executor, &introduction).await;
        let mut just_registered = true;
        loop {
            let (running, queued) = executor.load();
            let uptime = executor.clock().monotonic().saturating_duration_since(began);
            let Head { number: count, hash } = untold.unwrap_or_else(|| executor.journal().head());
            let root = shown(&hash);
            let now = executor.clock().now();
            let signature = key.as_ref().map(|key| key.attest(&did, count, &root, now));
            let checkpoint = Checkpoint { count, root, signature };
            let pulse =
                Pulse { agent: did.clone(), uptime_seconds: uptime.as_secs(), running, queued, checkpoint };
            match executor.governor().heartbeat(&pulse).await {
                Ok(()) => untold = None,
                // Who forgets at once is not asked again at once.
                Err(RemoteError::Refused(Fault::SessionExpired(_))) if !just_registered => break,
                Err(error) => {
                    let governor = executor.governor().place();
                    tracing::warn!(governor, error = %ErrorChain(&error), "the heartbeat failed");
                }
            }
            just_registered = false;
            tokio::time::sleep(every).await;
        }
    }
}

async fn register(executor: &Executor, introduction: &Introduction) {
    let mut pause = FIRST_PAUSE;
    let governor = executor.governor().place();
    loop {
        match executor.governor().register(introduction).await {
            Ok(policy) => {
                tracing::info!(governor, agent = %introduction.agent, "registered with the governor");
                if let Some(policy) = policy {
                    executor.set_policy(policy);
                }
                return;
            }
            Err(error) => {
                let pause_ms = pause.as_millis();
                tracing::warn!(governor, error = %ErrorChain(&error), pause_ms, "not registered yet");
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(MAX_RETRY_DELAY);
            }
        }
    }
}

/// Follows what the governor pushes over the executor's own connection to it.
pub async fn follow(executor: Arc<Executor>, mut pushes: mpsc::Receiver<Push>) {
    while let Some(push) = pushes.recv().await {
        if let Err(fault) = obey(&executor, &push).await {
            let governor = executor.governor().place();
            tracing::warn!(governor, method = push.method, ?fault, "a push of the governor was refused");
        }
    }
}

async fn obey(executor: &Arc<Executor>, push: &Push) -> Result<(), Fault> {
    let params = push.params.get();
    match push.method {
        "g2a/policy" => executor.set_policy(decode::policy(params)?),
        "g2a/revoke" => {
            let decode::Revoke { agent, intent } = decode::revoke(params)?;
            executor.revoke(agent.as_ref(), intent, GOVERNOR).await?;
        }
        "g2a/directive" => executor.direct(&decode::directive(params)?, GOVERNOR).await?,
        other => tracing::warn!(method = other, "a push of an unknown method"),
    }
    Ok(())
}
