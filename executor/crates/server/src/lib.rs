//! The protocol adapters, over HTTP, WebSocket and standard streams.
//!
//! The methods of A2G are in [`a2g`], the executor's door, and [`governor`], the door of the bundled governor. Every
//! other door (`a2a`, `a2e`, `mcp`, `nexus`, `sovereign`, each behind a feature) is a
//! [`ProtocolRouter`](a2g_http::ProtocolRouter) on the same port.

#[cfg(feature = "a2a")]
pub mod a2a;
#[cfg(feature = "a2e")]
pub mod a2e;
pub mod a2g;
pub mod governor;
#[cfg(feature = "mcp")]
pub mod mcp;
#[cfg(feature = "nexus")]
pub mod nexus;
mod operator;
#[cfg(feature = "sovereign")]
pub mod sovereign;

pub use operator::{OperatorClient, OperatorClientError};
