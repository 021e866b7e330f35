//! Why a request has no answer, and what to change.

use std::fmt;

use ::http::Uri;
use serde_json::{Value, json};

use crate::ToolError;

/// A request that came to nothing, or an answer that is not what the tool asked for.
///
/// It names where the request went, without the query, which may hold a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    url: String,
    reason: Reason,
}

/// Why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The run has no network. Nothing was called.
    Off,
    /// The request is none; it says what is wrong with it. Nothing was sent.
    Invalid(String),
    /// The executor refused it: whom it goes to, or that there is one more.
    Denied(String),
    /// A ceiling of the executor was reached, on requests, connections or bytes.
    Limit(String),
    /// It took too long; it says what did.
    Timeout(String),
    /// The body is longer than the request allowed.
    TooLarge {
        /// The number of bytes allowed.
        max_bytes: usize,
    },
    /// There was no connection, or it broke, or what came over it was not HTTP.
    Transport(String),
    /// The body is not UTF-8.
    NotText {
        /// The first byte that belongs to no character.
        at: usize,
    },
    /// The body is not the JSON that was wanted.
    NotJson(String),
}

impl Error {
    pub(super) fn new(url: &Uri, reason: Reason) -> Self {
        let scheme = url.scheme_str().unwrap_or_default();
        let authority = url.authority().map_or("", |authority| authority.as_str());
        Self::about(format!("{scheme}://{authority}{}", url.path()), reason)
    }

    /// With what is to be shown of a URL; empty where the reason says it.
    pub(super) fn about(url: String, reason: Reason) -> Self {
        Self { url, reason }
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        &self.reason
    }

    /// The stable code that a [`ToolError`] gets.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match &self.reason {
            Reason::Off => "network_off",
            Reason::Invalid(_) => "invalid_request",
            Reason::Denied(_) => "network_denied",
            Reason::Limit(_) => "network_limit",
            Reason::Timeout(_) => "network_timeout",
            Reason::TooLarge { .. } => "response_too_large",
            Reason::Transport(_) => "network_error",
            Reason::NotText { .. } => "not_utf8",
            Reason::NotJson(_) => "invalid_json",
        }
    }

    /// Facts for programs.
    fn detail(&self) -> Value {
        let fact = match &self.reason {
            Reason::TooLarge { max_bytes } => Some(("max_bytes", json!(max_bytes))),
            Reason::NotText { at } => Some(("offset", json!(at))),
            Reason::Off
            | Reason::Invalid(_)
            | Reason::Denied(_)
            | Reason::Limit(_)
            | Reason::Timeout(_)
            | Reason::Transport(_)
            | Reason::NotJson(_) => None,
        };
        let url = (!self.url.is_empty()).then(|| ("url", json!(self.url)));
        url.into_iter().chain(fact).map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.url.is_empty() {
            write!(f, "`{}`: ", self.url)?;
        }
        self.reason.fmt(f)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str(
                "the network is off for this run; it needs `network = true` in `tool.toml`, and leave from \
                 the verdict, from the agent's standing policy and from the executor's configuration: \
                 `usage.limits.network_allowed` in the report names the layer that set it",
            ),
            Self::Invalid(what) => f.write_str(what),
            Self::Denied(what) => write!(
                f,
                "the executor refused it: {what}; `usage.denied` in the report says by which rule, and the \
                 governor's policy and the executor's configuration can allow it"
            ),
            Self::Limit(what) => write!(
                f,
                "a limit of the executor was reached: {what}; ask for less, or have the limit raised in \
                 the executor's configuration"
            ),
            Self::Timeout(what) => {
                write!(f, "{what}; allow more time, within that of the run, or ask for less")
            }
            Self::TooLarge { max_bytes } => {
                write!(f, "the body has more than {max_bytes} bytes; ask for less, or raise `max_bytes`")
            }
            Self::Transport(what) => f.write_str(what),
            Self::NotText { at } => write!(f, "the body is not UTF-8 at byte {at}; take it as bytes"),
            Self::NotJson(what) => write!(f, "the body is not the JSON that was expected: {what}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for ToolError {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string()).with_detail(error.detail())
    }
}
