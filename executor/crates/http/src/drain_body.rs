//! Drains the rest of a request's body when its answer is ready before the body has ended.
//!
//! hyper itself would not read the rest, and would close the connection without announcing that. The client would then
//! need another connection, and could lose the answer, because closing a socket with unread bytes resets the
//! connection. All routes are wrapped, so that no handler has to drain its body.

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::header::{self, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use parking_lot::{Mutex, MutexGuard};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Maximum number of bytes that are read and dropped.
const MAX_DRAINED_BYTES: u64 = 4 << 20;
/// Maximum time for draining a body.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A body that a handler borrows and may stop reading at any point.
#[derive(Debug)]
pub(super) struct BorrowedBody<B>(Arc<Mutex<B>>);

impl<B> Clone for BorrowedBody<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Body<Data = Bytes> + Unpin> BorrowedBody<B> {
    pub(super) fn new(body: B) -> Self {
        Self(Arc::new(Mutex::new(body)))
    }

    fn lock(&self) -> MutexGuard<'_, B> {
        self.0.lock()
    }

    /// Reads the rest, so that another request can follow on this connection; if that cannot be done, adds
    /// `Connection: close` to the answer. With `expects_continue` (`Expect: 100-continue`), nothing is read, because
    /// the client sends the body only if it is asked to.
    pub(super) async fn drain(self, expects_continue: bool, answer: &mut HeaderMap) {
        if self.is_end_stream() {
            return;
        }
        let is_drained =
            !expects_continue && self.size_hint().lower() <= MAX_DRAINED_BYTES && self.read_to_end().await;
        if !is_drained {
            answer.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// Drops the rest of the body. Returns `true` if its end was reached within the limits.
    async fn read_to_end(mut self) -> bool {
        let read = async {
            let mut remaining = MAX_DRAINED_BYTES;
            loop {
                match std::future::poll_fn(|cx| Pin::new(&mut self).poll_frame(cx)).await {
                    None => return true,
                    Some(Err(_aborted)) => return false,
                    Some(Ok(frame)) => {
                        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                        match remaining.checked_sub(bytes) {
                            Some(rest) => remaining = rest,
                            None => return false,
                        }
                    }
                }
            }
        };
        tokio::time::timeout(DRAIN_TIMEOUT, read).await.unwrap_or(false)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for BorrowedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut *self.lock()).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().size_hint()
    }
}
