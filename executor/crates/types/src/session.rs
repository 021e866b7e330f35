//! Sessions: a process that keeps the store of a typed tool between two calls.

use crate::ident::excerpt;
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantArray};

/// The text before the digits of a handle.
const PREFIX: &str = "ses_";
/// The number of digits of a handle.
const DIGITS: usize = 32;
/// The number of digits that lists and logs show.
const SHOWN_DIGITS: usize = 8;

/// The text is not the handle of a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not the handle of a session: `ses_` and 32 hexadecimal digits in lower case, or `new` for a new one"
)]
pub struct HandleError(String);

/// The handle of a session: a random number of 122 bits, which only the caller that opened the session gets.
/// Its debug format shows the first digits only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionHandle(uuid::Uuid);

impl SessionHandle {
    /// A new random handle.
    #[must_use]
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4())
    }

    /// Parses the text of a handle.
    ///
    /// # Errors
    /// [`HandleError`] unless the text is `ses_` and 32 hexadecimal digits in lower case.
    pub fn parse(text: &str) -> Result<Self, HandleError> {
        let refuse = || HandleError(excerpt(text));
        let digits = text.strip_prefix(PREFIX).ok_or_else(refuse)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.len() != DIGITS || !digits.bytes().all(is_digit) {
            return Err(refuse());
        }
        uuid::Uuid::try_parse(digits).map(Self).map_err(|_| refuse())
    }

    /// The beginning of the handle, for people: it names a session, and continues none.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string().chars().take(PREFIX.len() + SHOWN_DIGITS).collect()
    }
}

impl fmt::Display for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0.simple())
    }
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.short())
    }
}

impl From<SessionHandle> for String {
    fn from(handle: SessionHandle) -> Self {
        handle.to_string()
    }
}

impl TryFrom<String> for SessionHandle {
    type Error = HandleError;

    fn try_from(text: String) -> Result<Self, HandleError> {
        Self::parse(&text)
    }
}

/// The session that a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionRequest {
    /// A new one.
    New,
    /// One that an earlier call has opened.
    Continue(SessionHandle),
}

impl SessionRequest {
    /// The text that asks for a new session.
    pub const NEW: &str = "new";

    /// Parses the text of a request, `new` or a handle.
    ///
    /// # Errors
    /// [`HandleError`] for any other text.
    pub fn parse(text: &str) -> Result<Self, HandleError> {
        if text == Self::NEW { Ok(Self::New) } else { SessionHandle::parse(text).map(Self::Continue) }
    }

    /// `new`, or the beginning of the handle, for people: it continues no session.
    #[must_use]
    pub fn short(&self) -> String {
        match self {
            Self::New => Self::NEW.to_owned(),
            Self::Continue(handle) => handle.short(),
        }
    }
}

impl fmt::Display for SessionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New => f.write_str(Self::NEW),
            Self::Continue(handle) => handle.fmt(f),
        }
    }
}

/// A call's request for a session, and the caller that makes it: only the caller that opened a session
/// continues it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSession {
    /// The request.
    pub request: SessionRequest,
    /// The name of the authenticated caller; empty until it is known.
    pub caller: String,
}

impl From<SessionRequest> for CallSession {
    fn from(request: SessionRequest) -> Self {
        Self { request, caller: String::new() }
    }
}

/// The turn of a session in which a run was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionTurn {
    /// The session.
    pub handle: SessionHandle,
    /// The number of the turn in its session, from 1.
    pub turn: u32,
    /// The session after the turn.
    pub state: SessionState,
}

/// A session after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// It waits for its next turn.
    Kept {
        /// The time for which it waits, in seconds.
        idle_seconds: u64,
    },
    /// It has ended.
    Ended(SessionEnd),
}

/// The reason why a session has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum SessionEnd {
    /// A turn ended otherwise than with a result or the tool's own error.
    TurnFailed,
    /// Its process has ended, or may not be used again.
    ProcessEnded,
    /// A stop, or a revocation.
    Stopped,
    /// The catalogue has another version of the tool.
    ToolChanged,
    /// Its caller, or an operator, has ended it.
    Closed,
    /// The executor ends, or has ended.
    Shutdown,
}

impl SessionEnd {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The reason as a clause.
    #[must_use]
    pub fn clause(self) -> &'static str {
        match self {
            Self::TurnFailed => "the turn reached a limit (time, memory, output) or crashed",
            Self::ProcessEnded => "its process has ended, or may not be used again",
            Self::Stopped => "it was stopped or revoked",
            Self::ToolChanged => "the tool was changed",
            Self::Closed => "it was ended on request",
            Self::Shutdown => "the executor ends",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_handles_in_lower_case_are_accepted() {
        let handle = SessionHandle::random();
        let text = handle.to_string();
        assert_eq!(text.len(), PREFIX.len() + DIGITS);
        assert_eq!(SessionHandle::parse(&text), Ok(handle));
        assert_eq!(SessionRequest::parse(&text), Ok(SessionRequest::Continue(handle)));
        assert_eq!(SessionRequest::parse("new"), Ok(SessionRequest::New));
        let digits = text.strip_prefix(PREFIX).unwrap();
        let hyphenated = format!("{PREFIX}{}", handle.0.hyphenated());
        for bad in ["", "New", "ses_", digits, &format!("{text}0"), &text.to_uppercase(), &hyphenated] {
            assert!(SessionRequest::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_debug_format_does_not_show_the_handle() {
        let handle = SessionHandle::random();
        assert!(!format!("{handle:?}").contains(&handle.to_string()));
        assert_eq!(handle.short().len(), PREFIX.len() + SHOWN_DIGITS);
        assert_eq!(SessionRequest::Continue(handle).short(), handle.short());
        assert_eq!(SessionRequest::New.short(), "new");
    }
}
