//! The protocol adapters, over HTTP, WebSocket and standard streams, and the configuration that they are set up by.

pub mod config;
pub mod serve;
