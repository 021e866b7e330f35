//! The A2G door, the primary one: its document's messages and what this project adds to them.
//!
//! [`decode`] reads params and results into the vocabulary, [`encode`] writes them, [`fault`] is
//! this door's one table of error codes, and [`openrpc`] describes it all to a client. The law is
//! the A2G document, "Message Types"; what it leaves open is decided in `docs/protocols/`.
//!
//! Two rules decide what an unknown member means. In an object that restricts (manifest, policy,
//! directive, the params of `a2g/execute`) it is refused, because a restriction that nobody knows
//! would be a restriction that nobody enforces. In an object that describes (intent, risk, verdict,
//! report, registration, heartbeat) it is ignored.

pub mod decode;
pub mod encode;
pub mod fault;
mod message;
pub mod openrpc;
mod schema;
#[cfg(test)]
mod tests;
mod usage;
