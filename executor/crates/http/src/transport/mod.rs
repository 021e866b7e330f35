//! The transports that the doors share, each with its limits and timeouts.
//!
//! | module | transport |
//! |---|---|
//! | [`json`] | one JSON body for each request and answer |
//! | [`lines`] | one JSON value on each line: streamed answers, and standard input and output |
//! | [`events`] | server-sent events |
//! | [`websocket`] | WebSocket messages |
// Functions instead of a trait, because a trait would need a method for each difference between the doors.

pub mod events;
pub mod json;
pub mod lines;
pub mod websocket;
