//! The nodes of a fleet: their names, and what one node has from another.

use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};

/// The maximum length of a name, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// The reason why a name cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("has to have 1 to 64 characters of `a` to `z`, `A` to `Z`, `0` to `9`, `-` and `_`")]
pub struct NameError;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                // The name is a token of a subject, so it has no dot, wildcard or space.
                let is_valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                let has_valid_length = (1..=MAX_NAME_BYTES).contains(&text.len());
                if has_valid_length && text.chars().all(is_valid) { Ok(Self(text)) } else { Err(NameError) }
            }
        }

        impl Display for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// The name of a fleet. Executors with the same name share their claims.
    FleetName
}
name! {
    /// The name of an executor within its fleet.
    NodeName
}

/// A call that this node passes on to another, or stores for another.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallMessage {
    /// The call and its verdict.
    pub text: String,
    /// `true` if the governor was asked; `false` if the verdict came with the call.
    pub asked_governor: bool,
}

/// A call that another node of this fleet has passed on, or has stored before it was lost.
// Not `Deserialize`, because its verdict counts as verified.
#[derive(Debug)]
pub struct PassedCall(CallMessage);

impl PassedCall {
    /// The call in a message or a value whose authentication code was checked. Only the crate `fleet` may call this
    /// (`executor/tests/rooms.rs`).
    #[must_use]
    pub fn from_authenticated(call: CallMessage) -> Self {
        Self(call)
    }

    /// The call and its verdict.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Returns `true` if the other node has asked the governor; `false` if the verdict came with the call.
    #[must_use]
    pub fn has_asked_governor(&self) -> bool {
        self.0.asked_governor
    }
}

/// A text that a node of this fleet wrote.
// Not `Deserialize`, because it counts as the word of that node.
#[derive(Debug)]
pub struct NodeText(String);

impl NodeText {
    /// The text in a message whose authentication code was checked. Only the crate `fleet` may call this, as for
    /// [`PassedCall`].
    #[must_use]
    pub fn from_authenticated(text: String) -> Self {
        Self(text)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tokens_of_subjects() {
        for name in ["a", "node-1_B", &"x".repeat(64)] {
            assert!(NodeName::try_from(name.to_owned()).is_ok(), "{name}");
        }
        for name in ["", "a.b", "*", ">", "a b", "ä", "a\n", "a/b", &"x".repeat(65)] {
            assert_eq!(FleetName::try_from(name.to_owned()), Err(NameError), "{name}");
        }
    }
}
