//! The doors, and the transports that they share: HTTP, WebSocket, server-sent events and stdio.
//!
//! A2G's transports hand whole messages to an [`Rpc`], which checks them strictly before jsonrpsee's method table sees
//! them. The methods are in [`a2g`], the executor's door, and [`governor`], the door of the bundled governor. The other
//! doors ([`a2a`], [`a2e`], [`nexus`], [`sovereign`]) are each a [`Doorway`] on the same port.

pub mod a2a;
pub mod a2e;
pub mod a2g;
mod answers;
mod arriving;
mod connections;
mod doorway;
pub mod governor;
mod heads;
mod http;
mod leftover;
mod lines;
mod listen;
pub mod nexus;
mod rpc;
pub mod sovereign;
mod stdio;
mod tls;

pub use connections::ConnectionLimits;
pub use doorway::{DoorSettings, Doorway, Gate, OpenTo};
pub use http::{HttpDoor, HttpSettings, KnownCallers};
pub use listen::Listen;
pub use nexus::NexusSettings;
pub use rpc::Rpc;
pub use stdio::serve_stdio;
pub use tls::{ServerTlsError, Tls, TlsSettings};
