//! Genesis Nexus: signed messages of one shape over HTTP and WebSocket.
//!
//! ```text
//! text ─ decode::envelope ─▶ Envelope ─ verify: HMAC over the bytes or their value ─▶ Verified
//!   ─ content: AES-256-GCM if sealed, then strict JSON ─▶ Content
//! OutgoingBody ─ MessageWriter::write: sealed if the request was, then signed ─▶ text
//! ```
//! The content of an [`decode::Envelope`] is accessible only after its signature has been verified. Keys, times, ids
//! and nonces are parameters.

pub mod decode;
pub mod encode;
pub mod fault;
pub mod keys;
pub mod message;
mod stringify;

#[cfg(test)]
mod tests;
