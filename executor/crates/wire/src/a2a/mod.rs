//! A2A 0.3.0, and the shapes and codes of the A2A-ACP document where they differ.
//!
//! One task is one tool call. The call is a `data` part `{"tool": …, "arguments": {…}}`, or `metadata.tool`
//! with a `data` part of arguments. A message without a call leaves its task in `input-required`.

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

/// The shapes and codes of the answers. Requests are accepted in both dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// A2A 0.3.0.
    A2a,
    /// The A2A-ACP document.
    Acp,
}

impl Dialect {
    /// The code of this dialect.
    pub(super) fn select(self, a2a: i64, acp: i64) -> i64 {
        match self {
            Self::A2a => a2a,
            Self::Acp => acp,
        }
    }
}
