//! A task as server-sent events: the task as it is, and then what changes, until nothing more happens by itself.

use super::limits::Pass;
use super::tasks::Record;
use crate::serve::connections::Work;
use crate::wire::a2a::message::TaskUpdate;
use crate::wire::a2a::{Dialect, encode, fault};
use crate::wire::jsonrpc::Id;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};

/// How many events are written ahead of what the client takes.
const AHEAD: usize = 2;
/// After how long without an event a comment shows that the stream is there.
const QUIET: Duration = Duration::from_secs(15);

/// What a stream is of, and to whom it goes.
pub(super) struct Stream {
    pub(super) id: Id,
    pub(super) dialect: Dialect,
    /// How long an event may wait to be taken.
    pub(super) patience: Duration,
    /// Held while the stream is open.
    pub(super) _pass: Arc<Pass>,
    /// Held while the stream is open.
    pub(super) _work: Work,
}

/// The beginning of a stream.
pub(super) struct Beginning {
    /// The task as it is.
    pub(super) record: Arc<Record>,
    /// Its changes after that.
    pub(super) updates: broadcast::Receiver<Arc<TaskUpdate>>,
    /// `true` when the stream stays open while the task waits for a person.
    pub(super) waits_for_a_person: bool,
}

/// A response instead of a stream, as its one event: clients of a streaming method read nothing else.
pub(super) fn refusal(response: &str) -> Response {
    (EVENTS, data(response)).into_response()
}

const EVENTS: [(header::HeaderName, &str); 2] =
    [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];

impl Stream {
    /// The answer.
    pub(super) fn response(self, beginning: Beginning) -> Response {
        let (lines, taken) = mpsc::channel::<Bytes>(AHEAD);
        tokio::spawn(self.pump(beginning, lines));
        let body = futures_util::stream::unfold(taken, async |mut taken| {
            let line = taken.recv().await?;
            Some((Ok::<_, Infallible>(line), taken))
        });
        (EVENTS, Body::from_stream(body)).into_response()
    }

    async fn pump(self, beginning: Beginning, lines: mpsc::Sender<Bytes>) {
        let Beginning { record, mut updates, waits_for_a_person } = beginning;
        let goes_on = waits_for_a_person && record.is_prompting();
        let first = TaskUpdate::Task(Box::new(record.task.clone()));
        if !self.send(&lines, self.event(&first)).await || (first.is_final() && !goes_on) {
            return;
        }
        loop {
            let event = tokio::select! {
                update = updates.recv() => match update {
                    Ok(update) => (self.event(&update), update.is_final()),
                    Err(RecvError::Lagged(missed)) => {
                        tracing::warn!(missed, "a stream is dropped: it is read too slowly");
                        (self.too_slow(), true)
                    }
                    Err(RecvError::Closed) => return,
                },
                () = tokio::time::sleep(QUIET) => (Bytes::from_static(b":\n\n"), false),
                () = lines.closed() => return,
            };
            if !self.send(&lines, event.0).await || event.1 {
                return;
            }
        }
    }

    /// Whether it was taken.
    async fn send(&self, lines: &mpsc::Sender<Bytes>, event: Bytes) -> bool {
        match tokio::time::timeout(self.patience, lines.send(event)).await {
            Ok(sent) => sent.is_ok(),
            Err(_late) => {
                let seconds = self.patience.as_secs();
                tracing::warn!(seconds, "a stream is dropped: nobody reads it");
                false
            }
        }
    }

    fn event(&self, update: &TaskUpdate) -> Bytes {
        data(&encode::update_response(&self.id, update, self.dialect))
    }

    fn too_slow(&self) -> Bytes {
        let fault = crate::fault::Fault::Busy {
            message: "this stream was read too slowly: `tasks/resubscribe` goes on with the task".to_owned(),
            retry_after_ms: 0,
        };
        data(&fault::to_error(&fault.into(), self.dialect).response(&self.id, self.dialect))
    }
}

/// One event. JSON has no line ends of its own.
fn data(json: &str) -> Bytes {
    Bytes::from(format!("data: {json}\n\n"))
}
