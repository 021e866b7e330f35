//! Reads the body of a request, within limits for its size, its time, and its caller's share of memory.

use a2g_govern::Caller;
use a2g_types::fault::Fault;
use a2g_types::memory::{self, Charge, NoRoom, SMALL_MESSAGE_BYTES};
use a2g_wire::strict_json::{self, JsonBounds};
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use std::time::Duration;

/// The body of a request, read before the handler runs.
#[derive(Debug, Clone)]
pub enum BufferedBody {
    /// The whole body, with its charge against the caller's share of memory.
    Whole(Bytes, Charge),
    /// The body is longer than `server.max_body_bytes`, and was dropped.
    TooLong,
    /// The memory budget or the caller's share is used up.
    OverBudget(NoRoom),
}

impl BufferedBody {
    /// Wraps a body that was read for `sender`; a `body` of `None` was too long.
    pub(super) fn new(body: Option<Bytes>, sender: &Caller) -> Self {
        let Some(body) = body else { return Self::TooLong };
        match memory::charge(sender.name(), strict_json::tree_bytes(&body)) {
            Ok(charge) => Self::Whole(body, charge),
            Err(no_room) => Self::OverBudget(no_room),
        }
    }

    /// The body as text that has passed the strict reader.
    ///
    /// # Errors
    /// [`Fault::Parse`] if the body is too long or not valid; [`Fault::Busy`] if the memory budget or the caller's
    /// share is used up.
    pub fn text(&self, bounds: &JsonBounds) -> Result<&str, Fault> {
        match self {
            Self::Whole(bytes, _) => strict_json::check(bytes, bounds),
            Self::TooLong => Err(bounds.too_long_fault()),
            Self::OverBudget(no_room) => Err(no_room_fault(*no_room)),
        }
    }

    /// The body's charge against the caller's share of memory.
    #[must_use]
    pub fn charge(&self) -> Charge {
        match self {
            Self::Whole(_, charge) => charge.clone(),
            Self::TooLong | Self::OverBudget(_) => Charge::default(),
        }
    }
}

/// Counts the parsed form of a message against its caller's share of memory.
///
/// # Errors
/// [`Fault::Busy`] if the memory budget or the caller's share is used up.
pub fn charge(caller: &str, message: &[u8]) -> Result<Charge, Fault> {
    memory::charge(caller, strict_json::tree_bytes(message)).map_err(no_room_fault)
}

/// The fault for a caller whose message or answer has no room.
#[must_use]
pub fn no_room_fault(no_room: NoRoom) -> Fault {
    let message = no_room_message(no_room).trim_end().to_owned();
    Fault::Busy { message, retry_after_ms: BUSY_RETRY_MS }
}

/// The text of the answer to a caller whose message or answer has no room.
#[must_use]
pub fn no_room_message(no_room: NoRoom) -> &'static str {
    match no_room {
        NoRoom::Budget => BUDGET_USED_UP,
        NoRoom::Share => SHARE_USED_UP,
    }
}

/// The answer to a message of more than [`SMALL_MESSAGE_BYTES`] when the memory budget is used up.
const BUDGET_USED_UP: &str =
    "the executor's memory budget (`server.max_memory_mb`) is used up, and it accepts short messages only\n";

/// The answer to a caller whose share is used up.
const SHARE_USED_UP: &str = "your messages and unread answers use up one caller's share of \
                                   `server.max_memory_mb`: read the answers, let calls end, and send this again\n";

/// Retry delay for a caller that is refused for lack of memory.
const BUSY_RETRY_MS: u64 = 1_000;

/// Reads a body; `None` if it is too long. While the body is read, its announced length counts against the caller's
/// share of memory.
///
/// # Errors
/// The error response, if the body takes too long to arrive, or if the memory budget or the caller's share is used up.
pub async fn read_body(
    body: Body,
    max_bytes: usize,
    timeout: Duration,
    caller: &Caller,
) -> Result<Option<Bytes>, Box<Response>> {
    let announced = body.size_hint().upper().unwrap_or(u64::MAX).min(max_bytes as u64);
    let is_large = announced > SMALL_MESSAGE_BYTES;
    let hold =
        || memory::hold(caller.name(), announced).map_err(|no_room| retry_later(no_room_message(no_room)));
    let _held = is_large.then(hold).transpose()?;
    match tokio::time::timeout(timeout, collect_body(body, max_bytes)).await {
        Ok(collected) => collected,
        Err(_late) => {
            let message = format!("the body took longer than {} seconds to arrive\n", timeout.as_secs());
            Err(closing_response(StatusCode::REQUEST_TIMEOUT, message))
        }
    }
}

/// Collects the chunks of a body as long as the memory budget allows; `None` if it is too long.
async fn collect_body(body: Body, max_bytes: usize) -> Result<Option<Bytes>, Box<Response>> {
    let mut chunks = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(chunk) = chunks.next().await {
        // An aborted body is treated as too long: its client has disconnected and reads no answer.
        let Ok(chunk) = chunk else { return Ok(None) };
        let collected = whole.len() + chunk.len();
        if collected > max_bytes {
            return Ok(None);
        }
        if collected as u64 > SMALL_MESSAGE_BYTES && !memory::has_room(chunk.len() as u64) {
            return Err(retry_later(BUDGET_USED_UP));
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(Some(whole.into()))
}

/// The answer to a request whose body is not read to its end, so that the connection cannot be used again.
fn closing_response(status: StatusCode, message: impl IntoResponse) -> Box<Response> {
    Box::new((status, [(header::CONNECTION, "close")], message).into_response())
}

fn retry_later(message: &'static str) -> Box<Response> {
    closing_response(StatusCode::SERVICE_UNAVAILABLE, ([(header::RETRY_AFTER, "1")], message))
}
