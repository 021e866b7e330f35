//! Server-sent events that tell open pages what has changed.
//!
//! An event has no content: the page then asks for its changed part again, under the rights that its session has by
//! then. A page gets at most one event of each kind per second. Events about the inbox are only for changes of the
//! intents that the caller may see; events about runs are for changes of any run.

use super::ConsoleState;
use super::inbox::visible_intents;
use super::session::SignedIn;
use crate::serve::connections::PeerCertNames;
use crate::serve::transport::events::named_event_response;
use a2g_core::run::Executor;
use a2g_runtime::timer_now;
use a2g_types::ident::IntentId;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Maximum number of open event streams: half of the connections that the port has by default.
const MAX_STREAMS: usize = 256;
/// Maximum number of open event streams of one caller.
const MAX_STREAMS_PER_CALLER: usize = 64;
/// Minimum time between two events of one kind of one stream.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time before a stream checks that its session is still valid.
const MAX_QUIET: Duration = Duration::from_secs(5);

/// The signal that runs have changed, and the number of open streams.
pub(super) struct LiveChanges {
    runs: watch::Sender<()>,
    streams: Arc<Mutex<HashMap<Box<str>, usize>>>,
}

impl LiveChanges {
    pub(super) fn subscribe(executor: &Executor) -> Self {
        let runs = watch::Sender::new(());
        let sender = runs.clone();
        // Called on the thread of a run: without a receiver, this costs one atomic read.
        executor.subscribe(move |_, _| {
            if sender.receiver_count() > 0 {
                sender.send_replace(());
            }
        });
        Self { runs, streams: Arc::default() }
    }
}

/// The place of one stream, until it is dropped.
struct StreamPlace {
    streams: Arc<Mutex<HashMap<Box<str>, usize>>>,
    caller: Box<str>,
}

impl StreamPlace {
    /// A place for a stream of this caller; `None` if there are too many.
    fn take(streams: &Arc<Mutex<HashMap<Box<str>, usize>>>, caller: &str) -> Option<Self> {
        let mut by_caller = streams.lock();
        let (all, own) = (by_caller.values().sum::<usize>(), by_caller.get(caller).copied().unwrap_or(0));
        if all >= MAX_STREAMS || own >= MAX_STREAMS_PER_CALLER {
            return None;
        }
        by_caller.insert(caller.into(), own + 1);
        Some(Self { streams: Arc::clone(streams), caller: caller.into() })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut by_caller = self.streams.lock();
        let remaining = by_caller.get(&self.caller).map_or(0, |count| count.saturating_sub(1));
        if remaining == 0 {
            by_caller.remove(&self.caller);
        } else {
            by_caller.insert(self.caller.clone(), remaining);
        }
    }
}

/// The sources of one stream.
struct EventStream {
    console: Arc<ConsoleState>,
    headers: HeaderMap,
    certificate: PeerCertNames,
    runs: watch::Receiver<()>,
    inbox: watch::Receiver<()>,
    /// The events to send at once: a change after the page was rendered and before this stream began would otherwise be
    /// missed.
    first: Vec<&'static str>,
    /// The time before which the stream has no event about runs.
    next_runs: Instant,
    /// The time before which it has none about the inbox.
    next_inbox: Instant,
    /// The waiting intents that the caller could see at the last event about the inbox; at first none. If the caller
    /// sees the same ones now, there is no event.
    seen: Vec<IntentId>,
    _place: StreamPlace,
}

/// `GET /console/events`.
pub(super) async fn events(
    State(console): State<Arc<ConsoleState>>,
    certificate: Option<axum::Extension<PeerCertNames>>,
    headers: HeaderMap,
    signed_in: SignedIn,
) -> Response {
    let place = StreamPlace::take(&console.changes.streams, signed_in.caller.name());
    let Some(place) = place else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many pages of the console are open: close some\n")
            .into_response();
    };
    let sources = EventStream {
        runs: console.changes.runs.subscribe(),
        inbox: console.executor.escalation_changes(),
        certificate: certificate.map(|axum::Extension(names)| names).unwrap_or_default(),
        console,
        headers,
        first: vec!["runs", "inbox"],
        next_runs: timer_now(),
        next_inbox: timer_now(),
        seen: Vec::new(),
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
            if let Some(name) = self.first.pop() {
                return Some(name);
            }
            let (next_runs, next_inbox) = (self.next_runs, self.next_inbox);
            let inbox = async {
                tokio::time::sleep_until(next_inbox).await;
                self.inbox.changed().await
            };
            let runs = async {
                tokio::time::sleep_until(next_runs).await;
                self.runs.changed().await
            };
            tokio::select! {
                changed = inbox => {
                    changed.ok()?;
                    self.next_inbox = timer_now() + MIN_INTERVAL;
                    let visible = visible_intents(&self.console, &signed_in);
                    let visible = visible.into_iter().map(|waiting| waiting.intent).collect::<Vec<_>>();
                    if visible != self.seen {
                        self.seen = visible;
                        return Some("inbox");
                    }
                }
                changed = runs => {
                    self.next_runs = timer_now() + MIN_INTERVAL;
                    return changed.ok().map(|()| "runs");
                }
                () = self.console.executor.wait_until_closed() => return None,
                () = tokio::time::sleep(MAX_QUIET) => {}
            }
        }
    }
}
