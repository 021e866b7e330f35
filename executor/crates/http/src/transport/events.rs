//! Answers as server-sent events.

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use std::convert::Infallible;
use std::time::Duration;

/// Interval of the comments that keep a stream without events open.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// The time after which a client connects again to a stream that broke, in milliseconds.
const RETRY_MS: u64 = 1_000;

/// An answer with one event for each JSON text.
pub fn event_response(texts: impl Stream<Item = String> + Send + 'static) -> Response {
    respond(texts.map(|text| event(String::new(), &text)))
}

/// An event of these fields and this data. axum's own events leave empty data out.
fn event(fields: String, data: &str) -> String {
    let mut event = fields;
    event.reserve("data: \n\n".len() + data.len());
    for line in data.split(['\n', '\r']) {
        event.push_str("data: ");
        event.push_str(line);
        event.push('\n');
    }
    event.push('\n');
    event
}

fn respond(events: impl Stream<Item = String> + Send + 'static) -> Response {
    let events = futures_util::stream::unfold(Box::pin(events), async |mut events| {
        let event = match tokio::time::timeout(KEEP_ALIVE_INTERVAL, events.next()).await {
            Ok(event) => event?,
            Err(_quiet) => ":\n\n".to_owned(),
        };
        Some((Ok::<_, Infallible>(event), events))
    });
    // A cache must not store the events.
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(events)).into_response()
}

/// An answer with one event without content for each name.
pub fn named_event_response(names: impl Stream<Item = &'static str> + Send + 'static) -> Response {
    respond(names.map(|name| event(format!("event: {name}\n"), "changed")))
}

/// An answer with one event for each id and JSON text. An event without a text also has the time after which a client
/// connects again.
pub fn numbered_event_response(events: impl Stream<Item = (String, String)> + Send + 'static) -> Response {
    respond(events.map(|(id, text)| {
        let retry = if text.is_empty() { format!("retry: {RETRY_MS}\n") } else { String::new() };
        event(format!("id: {id}\n{retry}"), &text)
    }))
}

/// An answer of a single event. Clients of a streaming method read only events, so its errors are also events.
pub fn single_event_response(text: String) -> Response {
    event_response(futures_util::stream::iter([text]))
}
