//! The errors of requests, look-ups and connections.

use a2g_types::outcome::DenialReason;
use serde::{Deserialize, Serialize};

/// A request, the body of its response, a look-up or a connection failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum EgressError {
    /// A rule or a limit of the run denies the access. The denial is counted in `usage.denied`.
    #[error("the request is denied: {}", .0.as_str())]
    Denied(DenialReason),
    /// The network, the other side or the request itself caused the failure.
    #[error("{0}")]
    Failed(NetworkError),
}

/// A failure for another reason than a rule or a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The scheme is neither `http` nor `https`.
    #[error("the scheme is neither `http` nor `https`")]
    Scheme,
    /// The method is `CONNECT`, which would open a tunnel.
    #[error("this method is not supported")]
    Method,
    /// The request is not valid, or has trailers.
    #[error("the request is malformed")]
    Request,
    /// The request's head is too large.
    #[error("the head of the request is too large")]
    RequestHead,
    /// The request's body ended early.
    #[error("the body of the request ended early")]
    RequestBody,
    /// The executor has no memory for the request's body, in which it sets a secret.
    #[error(
        "the executor has no memory for the body of the request: `server.max_memory_mb`, or the agent's share of it, is \
         used up; send it later"
    )]
    Memory,
    /// The name has no address.
    #[error("the name has no address")]
    Name,
    /// No address of the host accepted a connection.
    #[error("no address of the host accepted a connection")]
    Refused,
    /// The connection was not established in time.
    #[error("the connection was not established in time")]
    ConnectTimeout,
    /// The executor does not trust the certificate for this host.
    #[error("the certificate is not trusted for this host")]
    Certificate,
    /// The TLS handshake failed.
    #[error("the TLS handshake failed")]
    Tls,
    /// The response did not begin, or did not continue, in time.
    #[error("the response did not arrive in time")]
    #[serde(rename = "AnswerTimeout")]
    ResponseTimeout,
    /// The response's head is too large.
    #[error("the head of the response is too large")]
    #[serde(rename = "AnswerHead")]
    ResponseHead,
    /// The response switches to another protocol.
    #[error("the response switches to another protocol")]
    Upgrade,
    /// The response is not HTTP.
    #[error("the response is not HTTP")]
    #[serde(rename = "Answer")]
    Response,
    /// The other side closed the connection before the response was complete.
    #[error("the response is incomplete")]
    Incomplete,
    /// A TCP connection of the guest's own failed.
    #[error("the connection failed")]
    Broken,
    /// The run has ended.
    #[error("the run has ended")]
    #[serde(rename = "Over")]
    RunEnded,
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

#[cfg(feature = "egress")]
impl EgressError {
    /// `true` if a request that failed so may nevertheless have reached its server.
    #[must_use]
    pub fn may_have_arrived(&self) -> bool {
        match self {
            Self::Denied(reason) => match reason {
                DenialReason::RequestAuthority
                | DenialReason::DomainNotAllowed
                | DenialReason::DomainBlocked
                | DenialReason::IpLiteral
                | DenialReason::Address
                | DenialReason::Requests
                | DenialReason::RequestRate
                | DenialReason::Connections
                | DenialReason::RequestNotDeclared
                | DenialReason::SecretWithheld
                | DenialReason::SecretUnavailable
                | DenialReason::SecretUses
                | DenialReason::SecretPlace => false,
                // Counted on a connection, or nothing that a request is denied for.
                DenialReason::SentBytes
                | DenialReason::ReceivedBytes
                | DenialReason::SecretAnswer
                | DenialReason::NotLookedUp
                | DenialReason::Staged
                | DenialReason::HeldRequests
                | DenialReason::NetworkOff
                | DenialReason::NotOffered
                | DenialReason::OutsideScope
                | DenialReason::EscapesRoot
                | DenialReason::ReadOnly
                | DenialReason::HostPermissions
                | DenialReason::Link
                | DenialReason::HardLink => true,
            },
            Self::Failed(failure) => match failure {
                NetworkError::Scheme
                | NetworkError::Method
                | NetworkError::Request
                | NetworkError::RequestHead
                | NetworkError::Memory
                | NetworkError::Name
                | NetworkError::Refused
                | NetworkError::ConnectTimeout
                | NetworkError::Certificate
                | NetworkError::Tls => false,
                NetworkError::RequestBody
                | NetworkError::ResponseTimeout
                | NetworkError::ResponseHead
                | NetworkError::Upgrade
                | NetworkError::Response
                | NetworkError::Incomplete
                | NetworkError::Broken
                | NetworkError::RunEnded => true,
            },
        }
    }

    /// The refusal inside a socket's error, or [`NetworkError::Broken`].
    pub(super) fn from_io(error: &std::io::Error) -> Self {
        let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>());
        refusal.copied().unwrap_or(NetworkError::Broken.into())
    }

    /// The refusal inside an error of the HTTP library, or the failure that the error stands for.
    pub(super) fn from_hyper(error: &hyper::Error) -> Self {
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
            NetworkError::ResponseHead
        } else if error.is_parse() {
            NetworkError::Response
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
