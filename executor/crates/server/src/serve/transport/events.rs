//! Answers as server-sent events.

use axum::http::{HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use std::convert::Infallible;
use std::time::Duration;

/// Interval of the comments that keep a stream without events open.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// An answer with one event for each JSON text.
pub(in crate::serve) fn event_response(texts: impl Stream<Item = String> + Send + 'static) -> Response {
    respond(texts.map(|text| Event::default().data(text)))
}

fn respond(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let events = events.map(Ok::<_, Infallible>);
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE_INTERVAL);
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    // axum's `no-cache` lets a cache store the events.
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// An answer with one event without content for each name.
#[cfg(feature = "console")]
pub(in crate::serve) fn named_event_response(
    names: impl Stream<Item = &'static str> + Send + 'static,
) -> Response {
    respond(names.map(|name| Event::default().event(name).data("changed")))
}

/// An answer with one event for each id and JSON text.
#[cfg(feature = "mcp")]
pub(in crate::serve) fn numbered_event_response(
    events: impl Stream<Item = (String, String)> + Send + 'static,
) -> Response {
    respond(events.map(|(id, text)| Event::default().id(id).data(text)))
}

/// An answer of a single event. Clients of a streaming method read only events, so its errors are also events.
#[cfg(feature = "a2a")]
pub(in crate::serve) fn single_event_response(text: String) -> Response {
    event_response(futures_util::stream::iter([text]))
}
