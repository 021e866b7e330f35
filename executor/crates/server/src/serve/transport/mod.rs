//! The transports that the doors share, each with its limits and timeouts.
//!
//! | module | transport |
//! |---|---|
//! | [`json`] | one JSON body for each request and answer |
//! | [`lines`] | one JSON value on each line: streamed answers, and standard input and output |
//! | [`events`] | server-sent events |
//! | [`websocket`] | WebSocket messages |
// Functions instead of a trait, because a trait would need a method for each difference between the doors.

#[cfg(any(feature = "a2a", feature = "a2e", feature = "console", feature = "mcp"))]
pub(super) mod events;
pub(super) mod json;
pub(super) mod lines;
pub(super) mod websocket;
