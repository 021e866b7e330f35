//! Errors of requests and responses. Each message says what to change.

use std::fmt;

use ::http::Uri;
use serde_json::{Value, json};

use crate::ToolError;

/// The error of a request that got no complete response, or of a response body that the tool cannot use.
///
/// It contains the URL without the query, which may contain a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    url: String,
    reason: Reason,
}

/// The reason of an [`Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The run has no network. Nothing was sent.
    Off,
    /// The request is invalid; the text says why. Nothing was sent.
    Invalid(String),
    /// The executor refused the request: its host, address or method is not allowed, or there were too many requests.
    Denied(String),
    /// A limit of the executor on requests, connections or bytes was reached; the text says which.
    Limit(String),
    /// A time limit was exceeded; the text says in which step.
    Timeout(String),
    /// The response body is longer than the maximum of the request.
    TooLarge {
        /// The maximum number of bytes.
        max_bytes: usize,
    },
    /// The connection failed or broke, or the response is not valid HTTP.
    Transport(String),
    /// The response body is not UTF-8.
    NotText {
        /// The offset of the first byte that is not UTF-8.
        at: usize,
    },
    /// The response body is not JSON, or not of the expected type.
    NotJson(String),
}

impl Error {
    pub(super) fn new(url: &Uri, reason: Reason) -> Self {
        let scheme = url.scheme_str().unwrap_or_default();
        let authority = url.authority().map_or("", |authority| authority.as_str());
        Self::about(format!("{scheme}://{authority}{}", url.path()), reason)
    }

    /// Makes an error about `url`, shortened to the part that may be shown; empty if `reason` already contains it.
    pub(super) fn about(url: String, reason: Reason) -> Self {
        Self { url, reason }
    }

    /// The reason of this error.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        &self.reason
    }

    /// The stable code of this error, also after its conversion to a [`ToolError`].
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

    /// Machine-readable facts for the detail of a [`ToolError`].
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
                "this run has no network: do without it, or ask the operator, who can see in \
                 `usage.limits.network_allowed` of the report which layer turned it off: `network = true` in \
                 `tool.toml`, the verdict, the agent's standing policy and the configuration all have to allow it",
            ),
            Self::Invalid(what) => f.write_str(what),
            Self::Denied(what) => write!(
                f,
                "the executor refused the request: {what}; use another address, or ask the operator to allow it \
                 (`usage.denied` in the report names the rule)"
            ),
            Self::Limit(what) => write!(
                f,
                "a limit of the executor was reached: {what}; request less, or ask the operator to raise it"
            ),
            Self::Timeout(what) => {
                write!(f, "{what}; set a longer timeout, up to that of the run, or request less")
            }
            Self::TooLarge { max_bytes } => {
                write!(f, "the body has more than {max_bytes} bytes; request less, or raise `max_bytes`")
            }
            Self::Transport(what) => f.write_str(what),
            Self::NotText { at } => write!(f, "the body is not UTF-8 at byte {at}; read it as bytes"),
            Self::NotJson(what) => write!(f, "the body is not JSON of the expected type: {what}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for ToolError {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string()).with_detail(error.detail())
    }
}
