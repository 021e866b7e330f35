//! Server-sent events that tell open pages what has changed.
//!
//! An event has no content: the page then asks for its changed part again, under the rights that its session has by
//! then. A page gets at most one event of each kind per second, and only for runs, waiting intents and file changes that
//! its caller may see.

use super::ConsoleState;
use super::live_log::LiveLogs;
use super::places::{Place, Places};
use super::session::SignedIn;
use a2g_core::run::Executor;
use a2g_http::connections::PeerCertNames;
use a2g_http::transport::events::named_event_response;
use a2g_runtime::timer_now;
use a2g_types::ident::{AgentDid, IntentId};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

/// Maximum number of open event streams: half of the connections that the port has by default.
const MAX_STREAMS: usize = 256;
/// Maximum number of open event streams of one caller.
const MAX_STREAMS_PER_CALLER: usize = 64;
/// Minimum time between two events of one kind of one stream.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of changes of runs that wait for a stream. A stream that misses some has an event.
const MAX_UNREAD: usize = 256;
/// Maximum time before a stream checks that its session is still valid, and which file changes still wait.
const MAX_QUIET: Duration = Duration::from_secs(5);

/// The changes of runs, their latest output, and the number of open streams.
pub(super) struct LiveChanges {
    runs: broadcast::Sender<AgentDid>,
    /// The latest log lines of runs that have not ended.
    pub(super) logs: Arc<LiveLogs>,
    streams: Places,
}

impl LiveChanges {
    pub(super) fn subscribe(executor: &Executor) -> Self {
        let runs = broadcast::Sender::new(MAX_UNREAD);
        let sender = runs.clone();
        let logs = Arc::new(LiveLogs::default());
        let recorded = Arc::clone(&logs);
        // Called on the thread of a run, so the agent's name is copied only if a page is open.
        executor.subscribe(move |run, notification| {
            recorded.record(run.intent, notification);
            if sender.receiver_count() > 0 {
                let _every_page_was_closed = sender.send(run.agent.clone());
            }
        });
        Self { runs, logs, streams: Places::new(MAX_STREAMS, MAX_STREAMS_PER_CALLER) }
    }
}

/// The sources of one stream.
struct EventStream {
    console: Arc<ConsoleState>,
    headers: HeaderMap,
    certificate: PeerCertNames,
    runs: broadcast::Receiver<AgentDid>,
    inbox: watch::Receiver<()>,
    /// The events to send at once: a change after the page was rendered and before this stream began would otherwise be
    /// missed.
    first: Vec<&'static str>,
    /// The time before which the stream has no event about runs.
    next_runs: Instant,
    /// The time before which it has none about the inbox.
    next_inbox: Instant,
    /// The waiting intents that the caller could see at the last event about the inbox. If the caller sees the same ones
    /// now, there is no event.
    seen: Vec<IntentId>,
    /// The time before which the stream has no event about file changes.
    next_changes: Instant,
    /// The number of runs with waiting file changes that the caller could see at the last event about them; `None` before
    /// the first one.
    seen_changes: Option<usize>,
    _place: Place,
}

/// `GET /console/events`.
pub(super) async fn events(
    State(console): State<Arc<ConsoleState>>,
    certificate: Option<axum::Extension<PeerCertNames>>,
    headers: HeaderMap,
    signed_in: SignedIn,
) -> Response {
    let Some(place) = console.live.streams.take(signed_in.caller.name()) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many pages of the console are open: close some\n")
            .into_response();
    };
    let sources = EventStream {
        runs: console.live.runs.subscribe(),
        inbox: console.executor.queries.escalation_changes(),
        certificate: certificate.map(|axum::Extension(names)| names).unwrap_or_default(),
        console,
        headers,
        first: vec!["runs", "inbox"],
        next_runs: timer_now(),
        next_inbox: timer_now(),
        seen: Vec::new(),
        next_changes: timer_now(),
        seen_changes: None,
        _place: place,
    };
    named_event_response(stream::unfold(sources, |mut sources| async {
        let name = sources.next().await?;
        Some((name, sources))
    }))
}

impl EventStream {
    /// Waits for the next event; `None` once the session is over or the server closes.
    async fn next(&mut self) -> Option<&'static str> {
        loop {
            let PeerCertNames(certificate) = &self.certificate;
            let signed_in = self.console.sessions.find(&self.headers, certificate)?;
            let see_waiting = || {
                let visible =
                    self.console.executor.previews.waiting_intents(&|agent| signed_in.caller.may_read(agent));
                visible.into_iter().map(|waiting| waiting.intent).collect::<Vec<_>>()
            };
            if let Some(name) = self.first.pop() {
                // The list is read at the event `inbox` itself: an intent that began to wait before it would have none.
                if name == "inbox" {
                    self.seen = see_waiting();
                }
                return Some(name);
            }
            let waiting_changes =
                self.console.executor.changes.waiting_count(&|agent| signed_in.caller.may_read(agent));
            if self.seen_changes != Some(waiting_changes) && timer_now() >= self.next_changes {
                self.next_changes = timer_now() + MIN_INTERVAL;
                self.seen_changes = Some(waiting_changes);
                return Some("changes");
            }
            tokio::select! {
                changed = changed_inbox(&mut self.inbox, self.next_inbox) => {
                    changed?;
                    self.next_inbox = timer_now() + MIN_INTERVAL;
                    let visible = see_waiting();
                    if visible != self.seen {
                        self.seen = visible;
                        return Some("inbox");
                    }
                }
                changed = changed_run(&mut self.runs, self.next_runs, &signed_in) => {
                    changed?;
                    self.next_runs = timer_now() + MIN_INTERVAL;
                    return Some("runs");
                }
                () = self.console.executor.wait_until_closed() => return None,
                () = tokio::time::sleep(MAX_QUIET) => {}
            }
        }
    }
}

/// Waits for a change of the waiting intents, not before `from`; `None` if there will be none.
async fn changed_inbox(inbox: &mut watch::Receiver<()>, from: Instant) -> Option<()> {
    tokio::time::sleep_until(from).await;
    inbox.changed().await.ok()
}

/// Waits for a change of a run that the caller may see, not before `from`; `None` if there will be none.
async fn changed_run(
    runs: &mut broadcast::Receiver<AgentDid>,
    from: Instant,
    signed_in: &SignedIn,
) -> Option<()> {
    tokio::time::sleep_until(from).await;
    loop {
        match runs.recv().await {
            Ok(agent) if signed_in.caller.may_read(&agent) => return Some(()),
            Ok(_other_agent) => {}
            Err(broadcast::error::RecvError::Lagged(_)) => return Some(()),
            Err(broadcast::error::RecvError::Closed) => return None,
        }
    }
}
