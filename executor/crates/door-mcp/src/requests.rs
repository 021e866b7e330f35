//! The requests of one client that are being answered: their ids, their number and their cancellation.

use super::busy_fault;
use a2g_types::fault::Fault;
use a2g_wire::jsonrpc::Id;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// Maximum number of requests of one client that are answered concurrently. They do not each need a connection, so the
/// number of connections does not limit them.
pub(super) const MAX_OPEN: usize = 64;

/// The requests of a session or of standard input.
#[derive(Default)]
pub(super) struct OpenRequests(Mutex<HashMap<String, Arc<Notify>>>);

impl OpenRequests {
    /// Adds a request until the returned value is dropped.
    ///
    /// # Errors
    /// If the id is in use, or the client has [`MAX_OPEN`] requests.
    pub(super) fn begin(self: &Arc<Self>, id: &Id) -> Result<OpenRequest, Fault> {
        let cancelled = Arc::new(Notify::new());
        let id = id.as_json().to_owned();
        let mut open = self.0.lock();
        if open.contains_key(&id) {
            let message = "`id` is that of a request that is not answered yet";
            return Err(Fault::InvalidRequest(message.to_owned()));
        }
        if open.len() >= MAX_OPEN {
            return Err(busy_fault(format!("{MAX_OPEN} requests are being answered: wait for one of them")));
        }
        open.insert(id.clone(), Arc::clone(&cancelled));
        drop(open);
        Ok(OpenRequest { requests: Arc::clone(self), id, cancelled })
    }

    /// Cancels a request, if it is open.
    pub(super) fn cancel(&self, id: &Id) {
        if let Some(cancelled) = self.0.lock().get(id.as_json()) {
            cancelled.notify_one();
        }
    }

    pub(super) fn cancel_all(&self) {
        for cancelled in self.0.lock().values() {
            cancelled.notify_one();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// A request that is being answered.
pub(super) struct OpenRequest {
    requests: Arc<OpenRequests>,
    id: String,
    cancelled: Arc<Notify>,
}

impl OpenRequest {
    /// Awaits the answer; `None` if the request is cancelled. Dropping the answer's future cancels its call.
    pub(super) async fn run<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            answer = answer => Some(answer),
            () = self.cancelled() => None,
        }
    }

    /// Resolves when the request is cancelled.
    pub(super) async fn cancelled(&self) {
        self.cancelled.notified().await;
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.requests.0.lock().remove(&self.id);
    }
}
