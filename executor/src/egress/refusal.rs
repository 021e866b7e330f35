//! Why a request, a look-up or a connection did not come to its end.

use crate::outcome::DenialReason;
use serde::{Deserialize, Serialize};

/// Why a request, the body of its answer, a look-up or a connection ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum EgressError {
    /// A rule or a limit of the run; it is counted in `usage.denied`.
    #[error("the request is denied: {}", .0.as_str())]
    Denied(DenialReason),
    /// The network, the other side, or the request itself.
    #[error("{0}")]
    Failed(NetworkError),
}

/// What went wrong that no rule forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NetworkError {
    /// Neither `http` nor `https`.
    #[error("the scheme is neither `http` nor `https`")]
    Scheme,
    /// `CONNECT`, which would make a tunnel.
    #[error("this method is not supported")]
    Method,
    /// The request cannot be understood, or has trailers.
    #[error("the request is malformed")]
    Request,
    /// The request's head is too large.
    #[error("the head of the request is too large")]
    RequestHead,
    /// The request's body broke off.
    #[error("the body of the request broke off")]
    RequestBody,
    /// The name has no address.
    #[error("the name has no address")]
    Name,
    /// Nobody listens there.
    #[error("no connection was accepted")]
    Refused,
    /// Nobody answered in time.
    #[error("no connection was made in time")]
    ConnectTimeout,
    /// The certificate is not one that this executor trusts for this host.
    #[error("the certificate is not trusted for this host")]
    Certificate,
    /// TLS could not be agreed on.
    #[error("TLS could not be agreed on")]
    Tls,
    /// The answer did not begin, or did not go on, in time.
    #[error("the answer did not come in time")]
    AnswerTimeout,
    /// The answer's head is too large.
    #[error("the head of the answer is too large")]
    AnswerHead,
    /// The answer wants another protocol.
    #[error("the answer wants another protocol")]
    Upgrade,
    /// The answer is not HTTP.
    #[error("the answer is not HTTP")]
    Answer,
    /// The other side closed the connection before the answer was complete.
    #[error("the answer broke off")]
    Incomplete,
    /// A connection of the guest's own broke.
    #[error("the connection broke")]
    Broken,
    /// The run is over.
    #[error("the run is over")]
    Over,
}

impl From<NetworkError> for EgressError {
    fn from(failure: NetworkError) -> Self {
        Self::Failed(failure)
    }
}

impl From<DenialReason> for EgressError {
    fn from(reason: DenialReason) -> Self {
        Self::Denied(reason)
    }
}

impl EgressError {
    /// A refusal that travelled through a socket, or that the socket broke.
    pub(super) fn of_socket(error: &std::io::Error) -> Self {
        let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>());
        refusal.copied().unwrap_or(NetworkError::Broken.into())
    }

    /// A refusal that travelled through the HTTP library, or what its error means.
    pub(super) fn of(error: &hyper::Error) -> Self {
        use std::error::Error as _;
        let mut cause = error.source();
        while let Some(inner) = cause {
            if let Some(refusal) = inner.downcast_ref::<Self>() {
                return *refusal;
            }
            let io = inner.downcast_ref::<std::io::Error>();
            if let Some(refusal) = io.and_then(|io| io.get_ref()?.downcast_ref::<Self>()) {
                return *refusal;
            }
            cause = inner.source();
        }
        let failure = if error.is_parse_too_large() {
            NetworkError::AnswerHead
        } else if error.is_parse() {
            NetworkError::Answer
        } else if error.is_body_write_aborted() {
            NetworkError::RequestBody
        } else if error.is_user() {
            NetworkError::Request
        } else {
            NetworkError::Incomplete
        };
        failure.into()
    }
}
