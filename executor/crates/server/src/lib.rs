//! The protocol adapters, over HTTP, WebSocket and standard streams, and the executor's configuration file.

pub mod config;
pub mod serve;
