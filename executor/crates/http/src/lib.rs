//! The parts that the doors share: the port with its connections, TLS, authentication and limits; bodies, documents,
//! sessions and transports; and the settings that the configuration gives them.
//!
//! A2G's transports hand whole messages to an [`Rpc`], which checks them strictly before jsonrpsee's method table sees
//! them. Every other door is a [`ProtocolRouter`] on the same port.

mod address_rates;
pub mod answers;
pub mod auth;
mod bare_lf;
pub mod body;
pub mod connections;
mod console_url;
pub mod conversations;
pub mod document;
mod drain_body;
mod listen;
mod partial_message;
mod port;
pub mod protocol;
mod public_url;
pub mod rpc;
pub mod server_url;
pub mod session;
mod settings;
pub mod staged;
mod stdio;
mod tls;
pub mod transport;

pub use auth::CallerDirectory;
pub use connections::ConnectionLimits;
pub use console_url::ConsoleUrl;
pub use listen::ListenAddress;
pub use port::{CheckedHost, HttpServer, HttpSettings};
pub use protocol::{AuthPolicy, DoorAccess, DoorSettings, IsSignedIn, ProtocolRouter};
pub use public_url::{PublicUrl, PublicUrlError};
pub use rpc::Rpc;
pub use settings::{A2aSettings, A2eSettings, McpSettings, NexusSettings, RateLimits};
pub use stdio::serve_stdio;
pub use tls::{ServerTlsError, Tls, TlsSettings};
