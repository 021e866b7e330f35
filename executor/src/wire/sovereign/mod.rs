//! sovereign-a2a: JSON-RPC 3.0, its legacy form, and clients that still speak 2.0.
//!
//! A tool is a skill with operations. One whose name has a dot, such as `email.check_unread`, is the operation
//! behind the dot of the skill before it; any other is a skill with the one operation `run`, which need not be
//! named.

pub mod decode;
pub mod encode;
pub mod fault;
mod message;
pub mod skills;
#[cfg(test)]
mod tests;
