//! sovereign-a2a: JSON-RPC 3.0, its legacy form, and clients that still use 2.0.
//!
//! A tool is an operation of a skill. `email.check_unread` is the operation `check_unread` of the skill
//! `email`; a tool without a dot is a skill with the single operation `run`, which a request may omit.

pub mod decode;
pub mod encode;
pub mod fault;
mod message;
pub mod skills;
#[cfg(test)]
mod tests;
