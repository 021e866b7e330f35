//! Genesis Nexus: signed messages of one shape over HTTP and WebSocket.
//!
//! ```text
//! text ─ decode::envelope ─▶ Envelope ─ verified: HMAC over the bytes as they came ─▶ Verified
//!   ─ content: AES-256-GCM if it was sealed, then strict JSON ─▶ Content
//! Body ─ encode::Letter::write: sealed as the request was, then signed ─▶ text
//! ```
//! There is no way from an [`decode::Envelope`] to what it asks for that does not pass its signature. Keys,
//! times, ids and nonces are handed in.

pub mod decode;
pub mod encode;
pub mod fault;
pub mod keys;
pub mod message;

#[cfg(test)]
mod tests;
