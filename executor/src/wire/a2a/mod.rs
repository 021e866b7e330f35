//! A2A 0.3.0, and the shapes and codes of A2A-ACP's document where those differ.
//!
//! One task is one call of a tool. A call is a `data` part `{"tool": …, "arguments": {…}}`, or `metadata.tool` with
//! a `data` part of arguments; a message without one leaves its task waiting for it.

pub mod card;
pub mod decode;
pub mod encode;
pub mod fault;
pub mod governance;
pub mod message;
pub mod page;
pub mod push;

#[cfg(test)]
mod tests;

/// In whose shapes and codes the door answers. What it takes does not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// A2A 0.3.0.
    A2a,
    /// The A2A-ACP document.
    Acp,
}
