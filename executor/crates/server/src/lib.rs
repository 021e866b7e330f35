//! The protocol adapters, over HTTP, WebSocket and standard streams.

pub mod serve;
