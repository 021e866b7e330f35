//! The doors, and the transports that they share: HTTP, WebSocket, server-sent events and stdio.
//!
//! A2G's transports hand whole messages to an [`Rpc`], which checks them strictly before jsonrpsee's method table sees
//! them. The methods are in [`a2g`], the executor's door, and [`governor`], the door of the bundled governor. Every
//! other door (`a2a`, `a2e`, `mcp`, `nexus`, `sovereign`, each behind a feature) is a [`ProtocolRouter`] on the same
//! port.

#[cfg(feature = "a2a")]
pub mod a2a;
#[cfg(feature = "a2e")]
pub mod a2e;
pub mod a2g;
mod address_rates;
mod answers;
mod auth;
mod bare_lf;
mod body;
mod connections;
#[cfg(feature = "console")]
pub mod console;
mod console_url;
#[cfg_attr(
    not(all(feature = "a2a", feature = "mcp")),
    allow(dead_code, reason = "it is for doors that a build may lack")
)]
mod document;
mod drain_body;
pub mod governor;
mod http;
mod listen;
#[cfg(feature = "mcp")]
pub mod mcp;
#[cfg(feature = "nexus")]
pub mod nexus;
mod operator;
mod partial_message;
mod protocol;
mod public_url;
mod rpc;
mod server_url;
#[cfg(any(feature = "a2e", feature = "nexus"))]
#[cfg_attr(
    not(all(feature = "a2e", feature = "nexus")),
    allow(dead_code, reason = "each door uses a part of it")
)]
mod session;
mod settings;
#[cfg(feature = "sovereign")]
pub mod sovereign;
mod stdio;
mod tls;
mod transport;

pub use auth::CallerDirectory;
pub use connections::ConnectionLimits;
pub use console_url::ConsoleUrl;
pub use http::{HttpServer, HttpSettings};
pub use listen::ListenAddress;
pub use operator::{OperatorClient, OperatorClientError};
pub use protocol::{AuthPolicy, DoorAccess, DoorSettings, IsSignedIn, ProtocolRouter};
pub use public_url::{PublicUrl, PublicUrlError};
pub use rpc::Rpc;
pub use settings::{A2aSettings, A2eSettings, McpSettings, NexusSettings, RateLimits};
pub use stdio::serve_stdio;
pub use tls::{ServerTlsError, Tls, TlsSettings};
