//! A task as server-sent events: its current state, then each change, until it has settled.

use super::limits::RateLimitGuard;
use super::tasks::TaskRecord;
use crate::serve::connections::RequestGuard;
use a2g_runtime::spawn::SessionTasks;
use a2g_wire::a2a::message::TaskUpdate;
use a2g_wire::a2a::{Dialect, encode, fault};
use a2g_wire::jsonrpc::Id;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};

/// Events that are buffered ahead of the client.
const MAX_BUFFERED_EVENTS: usize = 2;
/// Interval of the comments that keep a stream without events open.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

pub(super) struct TaskStream {
    pub(super) id: Id,
    pub(super) dialect: Dialect,
    /// Time that an event may wait for the client to read it.
    pub(super) write_timeout: Duration,
    /// Held while the stream is open.
    pub(super) _guard: Arc<RateLimitGuard>,
    /// Held while the stream is open.
    pub(super) _work: RequestGuard,
}

pub(super) struct StreamStart {
    /// The task at the start of the stream.
    pub(super) record: Arc<TaskRecord>,
    pub(super) updates: broadcast::Receiver<Arc<TaskUpdate>>,
    /// `true` keeps the stream open while the task waits for a permission.
    pub(super) waits_for_a_person: bool,
}

/// An error response as the single event of a stream: clients of a streaming method read nothing else.
pub(super) fn error_event(response: &str) -> Response {
    (EVENT_STREAM_HEADERS, sse_event(response)).into_response()
}

const EVENT_STREAM_HEADERS: [(header::HeaderName, &str); 2] =
    [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];

impl TaskStream {
    /// The response, whose events are written by a task of these sessions.
    pub(super) fn into_response(self, start: StreamStart, sessions: &SessionTasks) -> Response {
        let (lines, taken) = mpsc::channel::<Bytes>(MAX_BUFFERED_EVENTS);
        sessions.spawn(self.send_updates(start, lines));
        let body = futures_util::stream::unfold(taken, async |mut taken| {
            let line = taken.recv().await?;
            Some((Ok::<_, Infallible>(line), taken))
        });
        (EVENT_STREAM_HEADERS, Body::from_stream(body)).into_response()
    }

    async fn send_updates(self, start: StreamStart, lines: mpsc::Sender<Bytes>) {
        let StreamStart { record, mut updates, waits_for_a_person } = start;
        let stays_open = waits_for_a_person && record.is_prompting();
        let first = TaskUpdate::Task(Box::new(record.task.clone()));
        if !self.send(&lines, self.update_event(&first)).await || (first.is_final() && !stays_open) {
            return;
        }
        loop {
            let event = tokio::select! {
                update = updates.recv() => match update {
                    Ok(update) => (self.update_event(&update), update.is_final()),
                    Err(RecvError::Lagged(missed)) => {
                        tracing::warn!(missed, "a stream is closed: the client reads too slowly");
                        (self.too_slow_event(), true)
                    }
                    Err(RecvError::Closed) => return,
                },
                () = tokio::time::sleep(KEEP_ALIVE_INTERVAL) => (Bytes::from_static(b":\n\n"), false),
                () = lines.closed() => return,
            };
            if !self.send(&lines, event.0).await || event.1 {
                return;
            }
        }
    }

    /// Returns `false` if the client did not read the event in time.
    async fn send(&self, lines: &mpsc::Sender<Bytes>, event: Bytes) -> bool {
        match tokio::time::timeout(self.write_timeout, lines.send(event)).await {
            Ok(sent) => sent.is_ok(),
            Err(_late) => {
                let seconds = self.write_timeout.as_secs();
                tracing::warn!(seconds, "a stream is closed: the client has read nothing for too long");
                false
            }
        }
    }

    fn update_event(&self, update: &TaskUpdate) -> Bytes {
        sse_event(&encode::update_response(&self.id, update, self.dialect))
    }

    fn too_slow_event(&self) -> Bytes {
        let fault = a2g_types::fault::Fault::Busy {
            message: "this stream was read too slowly: continue with `tasks/resubscribe`".to_owned(),
            retry_after_ms: 0,
        };
        sse_event(&fault::to_error(&fault.into(), self.dialect).response(&self.id, self.dialect))
    }
}

/// One event. Compact JSON has no line feeds, so it is a single `data` line.
fn sse_event(json: &str) -> Bytes {
    Bytes::from(format!("data: {json}\n\n"))
}
