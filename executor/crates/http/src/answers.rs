//! Unread answers, each counted against its caller's share of memory.

use super::body::no_room_message;
use a2g_govern::Caller;
use a2g_types::memory::{self, CountedBytes, NoRoom, SMALL_MESSAGE_BYTES};
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Counts an answer until the returned value is dropped; `None` for a short answer, which is not counted.
///
/// # Errors
/// [`NoRoom`] if the memory budget or the caller's share is used up.
pub(super) fn hold(caller: &Caller, bytes: u64) -> Result<Option<CountedBytes>, NoRoom> {
    if bytes <= SMALL_MESSAGE_BYTES {
        return Ok(None);
    }
    memory::hold(caller.name(), bytes).map(Some)
}

/// Returns the answer, which is counted until it is read; or an error response if the caller's share is used up. A
/// streamed answer is not counted, because its chunks are made as they are read.
pub fn charge(caller: &Caller, answer: Response) -> Response {
    match hold(caller, answer.body().size_hint().exact().unwrap_or(0)) {
        Ok(None) => answer,
        Ok(Some(counted)) => hold_until_written(answer, vec![counted]),
        Err(no_room) => {
            let message = no_room_message(no_room);
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], message).into_response()
        }
    }
}

/// Keeps `counted` alive until the answer is written.
pub(super) fn hold_until_written(answer: Response, counted: Vec<CountedBytes>) -> Response {
    if counted.is_empty() {
        return answer;
    }
    answer.map(|body| Body::new(CountedAnswer { body, counted: counted.into() }))
}

/// A body whose chunks are counted until the last of them is written. To count only until the body is consumed would be
/// too short: the connection buffers all chunks at once, and writes them as the peer reads.
struct CountedAnswer {
    body: Body,
    counted: Arc<[CountedBytes]>,
}

struct CountedChunk {
    chunk: Bytes,
    _counted: Arc<[CountedBytes]>,
}

impl AsRef<[u8]> for CountedChunk {
    fn as_ref(&self) -> &[u8] {
        &self.chunk
    }
}

impl HttpBody for CountedAnswer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let hold_chunk =
            |chunk| Bytes::from_owner(CountedChunk { chunk, _counted: Arc::clone(&self.counted) });
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(hold_chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
