//! The A2G door, the primary one: the messages of the A2G document and this project's additions.
//!
//! [`decode`] parses params and results into domain types, [`encode`] serializes them, [`fault`] is this door's only
//! table of error codes, and [`openrpc`] describes the door to clients. The specification is the A2G document, "Message
//! Types"; the points that it leaves open are decided in `docs/protocols/`.
//!
//! Two rules define the treatment of unknown members. In an object that restricts (manifest, policy, directive, the
//! params of `a2g/execute`) an unknown member is refused, because an unknown restriction would not be enforced. In an
//! object that describes (intent, risk, verdict, report, registration, heartbeat) an unknown member is ignored.

pub mod decode;
pub mod encode;
pub mod fault;
mod limits;
mod message;
pub mod openrpc;
mod schema;
#[cfg(test)]
mod tests;
mod usage;
