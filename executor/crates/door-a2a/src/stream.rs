//! A task as server-sent events: its current state, then each change, until it has settled. The last update has
//! `final: true`.

use super::limits::RateLimitGuard;
use super::record::TaskRecord;
use a2g_http::connections::RequestGuard;
use a2g_http::transport::events::event_response;
use a2g_runtime::spawn::SessionTasks;
use a2g_wire::a2a::message::TaskUpdate;
use a2g_wire::a2a::{Dialect, encode, fault};
use a2g_wire::jsonrpc::Id;
use axum::response::Response;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};

/// Maximum number of events that are buffered for the client.
const MAX_BUFFERED_EVENTS: usize = 2;

pub(super) struct TaskStream {
    pub(super) id: Id,
    pub(super) dialect: Dialect,
    /// Maximum time for the client to read an event.
    pub(super) write_timeout: Duration,
    /// Counts the request as concurrent while the stream is open.
    pub(super) _guard: Arc<RateLimitGuard>,
    /// Marks the connection as busy while the stream is open.
    pub(super) _work: RequestGuard,
}

pub(super) struct StreamStart {
    /// The task at the start of the stream.
    pub(super) record: Arc<TaskRecord>,
    pub(super) updates: broadcast::Receiver<Arc<TaskUpdate>>,
    /// `true` keeps the stream open while the task waits for a permission.
    pub(super) waits_for_a_person: bool,
}

impl TaskStream {
    /// Returns the response, and spawns the task of `sessions` that writes its events.
    pub(super) fn into_response(self, start: StreamStart, sessions: &SessionTasks) -> Response {
        let (updates, unread) = mpsc::channel(MAX_BUFFERED_EVENTS);
        sessions.spawn(self.send_updates(start, updates));
        let texts = futures_util::stream::unfold(unread, async |mut unread| {
            let text = unread.recv().await?;
            Some((text, unread))
        });
        event_response(texts)
    }

    async fn send_updates(self, start: StreamStart, lines: mpsc::Sender<String>) {
        let StreamStart { record, mut updates, waits_for_a_person } = start;
        let stays_open = waits_for_a_person && record.is_prompting();
        let first = TaskUpdate::Task(Box::new(record.task.clone()));
        if !self.send(&lines, self.update_event(&first)).await {
            return;
        }
        if first.is_final() && !stays_open {
            // A task has no `final`, for which clients wait.
            self.send(&lines, self.update_event(&record.status_update())).await;
            return;
        }
        loop {
            let (event, is_last) = tokio::select! {
                update = updates.recv() => match update {
                    Ok(update) => (self.update_event(&update), update.is_final()),
                    Err(RecvError::Lagged(missed)) => {
                        tracing::warn!(missed, "a stream is closed: the client reads too slowly");
                        (self.too_slow_event(), true)
                    }
                    Err(RecvError::Closed) => return,
                },
                () = lines.closed() => return,
            };
            if !self.send(&lines, event).await || is_last {
                return;
            }
        }
    }

    /// Sends an event. Returns `false` if the client did not read it in time, or has disconnected.
    async fn send(&self, lines: &mpsc::Sender<String>, event: String) -> bool {
        match tokio::time::timeout(self.write_timeout, lines.send(event)).await {
            Ok(sent) => sent.is_ok(),
            Err(_late) => {
                let seconds = self.write_timeout.as_secs();
                tracing::warn!(seconds, "a stream is closed: the client has read no event for too long");
                false
            }
        }
    }

    fn update_event(&self, update: &TaskUpdate) -> String {
        encode::update_response(&self.id, update, self.dialect)
    }

    fn too_slow_event(&self) -> String {
        let fault = a2g_types::fault::Fault::Busy {
            message: "this stream was read too slowly: continue with `tasks/resubscribe`".to_owned(),
            retry_after_ms: 0,
        };
        fault::to_error(&fault.into(), self.dialect).response(&self.id, self.dialect)
    }
}
