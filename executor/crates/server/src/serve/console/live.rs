//! Server-sent events that tell open pages what has changed.
//!
//! An event has no content: the page then asks for its changed part again, under the rights that its session has by
//! then. However many runs there are, a page gets at most one event about them per second.

use super::Console;
use super::session::SignedIn;
use crate::serve::connections::PeerCertNames;
use crate::serve::transport::events::named_event_response;
use a2g_core::run::Executor;
use a2g_runtime::timer_now;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Maximum number of open event streams: half of the connections that the port has by default.
const MAX_STREAMS: usize = 256;
/// Minimum time between two events of one stream about runs, of which there may be many.
const MIN_RUNS_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time before a stream checks that its session is still valid.
const MAX_QUIET: Duration = Duration::from_secs(5);

/// The signal that runs have changed, and the number of open streams.
pub(super) struct LiveChanges {
    runs: watch::Sender<()>,
    streams: Arc<AtomicUsize>,
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
struct StreamPlace(Arc<AtomicUsize>);

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The sources of one stream.
struct EventStream {
    console: Arc<Console>,
    headers: HeaderMap,
    certificate: PeerCertNames,
    runs: watch::Receiver<()>,
    inbox: watch::Receiver<()>,
    /// The first events: what changed between the page and this stream would otherwise be missed.
    first: Vec<&'static str>,
    /// The time before which the stream has no event about runs.
    next_runs: Instant,
    _place: StreamPlace,
}

/// `GET /console/events`.
pub(super) async fn events(
    State(console): State<Arc<Console>>,
    certificate: Option<axum::Extension<PeerCertNames>>,
    headers: HeaderMap,
    _: SignedIn,
) -> Response {
    let streams = Arc::clone(&console.changes.streams);
    let place = StreamPlace(Arc::clone(&streams));
    if streams.fetch_add(1, Ordering::Relaxed) >= MAX_STREAMS {
        drop(place);
        return (StatusCode::SERVICE_UNAVAILABLE, "too many pages of the console are open: close some\n")
            .into_response();
    }
    let follower = EventStream {
        runs: console.changes.runs.subscribe(),
        inbox: console.executor.escalation_changes(),
        certificate: certificate.map(|axum::Extension(names)| names).unwrap_or_default(),
        console,
        headers,
        first: vec!["runs", "inbox"],
        next_runs: timer_now(),
        _place: place,
    };
    named_event_response(stream::unfold(follower, |mut follower| async {
        let name = follower.next().await?;
        Some((name, follower))
    }))
}

impl EventStream {
    /// Waits for the next event; `None` once the session is over or the server closes.
    async fn next(&mut self) -> Option<&'static str> {
        loop {
            let PeerCertNames(certificate) = &self.certificate;
            self.console.sessions.find(&self.headers, certificate)?;
            if let Some(name) = self.first.pop() {
                return Some(name);
            }
            let next_runs = self.next_runs;
            let runs = async {
                tokio::time::sleep_until(next_runs).await;
                self.runs.changed().await
            };
            tokio::select! {
                changed = self.inbox.changed() => return changed.ok().map(|()| "inbox"),
                changed = runs => {
                    self.next_runs = timer_now() + MIN_RUNS_INTERVAL;
                    return changed.ok().map(|()| "runs");
                }
                () = self.console.executor.wait_until_closed() => return None,
                () = tokio::time::sleep(MAX_QUIET) => {}
            }
        }
    }
}
