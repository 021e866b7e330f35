//! The error responses of this door, with their HTTP statuses, and the class of each fault of a call.
//!
//! The numbers have other meanings at other doors, so no other door may use this table.

use super::Revision;
use crate::jsonrpc::Id;
use crate::to_raw;
use a2g_types::fault::Fault;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The reason why a request has no result.
#[derive(Debug, Clone)]
pub enum McpError {
    /// A fault of the core or the decoder.
    Fault(Fault),
    /// A header is missing, or contradicts the message.
    HeaderMismatch(String),
    /// The request names a revision that is not served here.
    UnsupportedVersion(String),
    /// The request needs a capability that the client does not declare: the name of the extension.
    MissingCapability(&'static str),
    /// `requestState` is not one that this server accepts for this call.
    StateRejected,
    /// There is no resource with this URI, or the caller may not read it. Callers cannot tell which.
    ResourceNotFound {
        /// The URI as the caller sent it.
        uri: String,
        /// The revision of the request, because the code depends on it.
        revision: Revision,
    },
    /// The request belongs to a session and names none.
    SessionRequired,
    /// The session does not exist, or belongs to another caller. Callers cannot tell which.
    SessionNotFound,
    /// All sessions have calls, so none can be ended for a new one.
    TooManySessions,
}

impl From<Fault> for McpError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

const INTERNAL: &str = "internal error of the executor";

impl McpError {
    /// The JSON-RPC error code.
    #[must_use]
    pub fn code(&self) -> i64 {
        match self {
            Self::HeaderMismatch(_) => -32020,
            Self::MissingCapability(_) => -32021,
            Self::UnsupportedVersion(_) => -32022,
            Self::ResourceNotFound { revision: Revision::Session, .. } => -32002,
            Self::StateRejected | Self::ResourceNotFound { revision: Revision::Stateless, .. } => -32602,
            Self::SessionRequired | Self::SessionNotFound => -32600,
            Self::TooManySessions => -32603,
            Self::Fault(fault) => match fault {
                Fault::Parse(_) => -32700,
                Fault::InvalidRequest(_) => -32600,
                Fault::MethodNotFound(_) => -32601,
                Fault::InvalidParams { .. } => -32602,
                // A call that is refused or fails has a result; see `call_fault`.
                Fault::ToolUnavailable { .. }
                | Fault::Refused { .. }
                | Fault::RegistrationFailed(_)
                | Fault::SessionExpired(_)
                | Fault::Failed(_)
                | Fault::LimitReached(..)
                | Fault::ReceiptPending { .. }
                | Fault::Busy { .. }
                | Fault::Internal(_) => -32603,
            },
        }
    }

    /// The HTTP status of the response, as Streamable HTTP of this revision has it.
    #[must_use]
    pub fn http_status(&self, revision: Revision) -> u16 {
        match self {
            Self::HeaderMismatch(_)
            | Self::MissingCapability(_)
            | Self::UnsupportedVersion(_)
            | Self::SessionRequired => 400,
            Self::StateRejected | Self::ResourceNotFound { .. } => 200,
            Self::SessionNotFound => 404,
            Self::TooManySessions => 503,
            Self::Fault(fault) => match (fault, revision) {
                (Fault::Parse(_) | Fault::InvalidRequest(_), _) => 400,
                (Fault::InvalidParams { pointer, .. }, _) if pointer.starts_with("/_meta") => 400,
                (Fault::MethodNotFound(_), Revision::Stateless) => 404,
                (Fault::Busy { .. }, _) => 503,
                (
                    Fault::MethodNotFound(_)
                    | Fault::InvalidParams { .. }
                    | Fault::ToolUnavailable { .. }
                    | Fault::Refused { .. }
                    | Fault::RegistrationFailed(_)
                    | Fault::SessionExpired(_)
                    | Fault::Failed(_)
                    | Fault::LimitReached(..)
                    | Fault::ReceiptPending { .. }
                    | Fault::Internal(_),
                    _,
                ) => 200,
            },
        }
    }

    fn message(&self) -> String {
        match self {
            Self::HeaderMismatch(message) => format!("Header mismatch: {message}"),
            Self::UnsupportedVersion(_) => {
                "Unsupported protocol version: use one of `data.supported`".to_owned()
            }
            Self::MissingCapability(extension) => {
                format!("Missing required client capability: declare the extension `{extension}`")
            }
            Self::StateRejected => {
                "`requestState` was used, has expired, or belongs to another caller or call: send the \
                                    call without it, and a person is asked again"
                    .to_owned()
            }
            Self::ResourceNotFound { .. } => {
                "there is no such resource, or the operator has removed it".to_owned()
            }
            Self::SessionRequired => format!(
                "send `_meta` with `{}` and `{}`, or open a session with `initialize` and name it in \
                 `Mcp-Session-Id`",
                super::names::PROTOCOL_VERSION,
                super::names::CLIENT_CAPABILITIES
            ),
            Self::SessionNotFound => "there is no such session: open one with `initialize`".to_owned(),
            Self::TooManySessions => {
                "there are too many sessions, and all of them have calls: end one of them first".to_owned()
            }
            Self::Fault(fault) => match fault {
                Fault::Parse(message)
                | Fault::InvalidRequest(message)
                | Fault::MethodNotFound(message)
                | Fault::InvalidParams { message, .. }
                | Fault::ToolUnavailable { message, .. }
                | Fault::Refused { message, .. }
                | Fault::RegistrationFailed(message)
                | Fault::SessionExpired(message)
                | Fault::Busy { message, .. } => message.clone(),
                Fault::Failed(receipt) | Fault::LimitReached(receipt, _) => {
                    a2g_types::failure_message::describe_failure(&receipt.outcome)
                }
                Fault::ReceiptPending { .. } => a2g_types::fault::RECEIPT_PENDING.to_owned(),
                Fault::Internal(_) => INTERNAL.to_owned(),
            },
        }
    }

    fn data(&self) -> Option<Value> {
        match self {
            Self::UnsupportedVersion(requested) => {
                let supported = Revision::ALL.map(Revision::as_str);
                let requested = a2g_types::ident::excerpt(requested);
                Some(json!({ "supported": supported, "requested": requested }))
            }
            Self::MissingCapability(extension) => {
                Some(json!({ "requiredCapabilities": { "extensions": { *extension: {} } } }))
            }
            Self::StateRejected => Some(json!({ "pointer": "/requestState" })),
            Self::ResourceNotFound { uri, .. } => {
                Some(json!({ "pointer": "/uri", "uri": a2g_types::ident::excerpt(uri) }))
            }
            Self::Fault(Fault::InvalidParams { pointer, .. }) => Some(json!({ "pointer": pointer })),
            Self::Fault(Fault::Busy { retry_after_ms, .. }) => {
                Some(json!({ "retry_after_ms": retry_after_ms }))
            }
            Self::Fault(
                Fault::Parse(_)
                | Fault::InvalidRequest(_)
                | Fault::MethodNotFound(_)
                | Fault::ToolUnavailable { .. }
                | Fault::Refused { .. }
                | Fault::RegistrationFailed(_)
                | Fault::SessionExpired(_)
                | Fault::Failed(_)
                | Fault::LimitReached(..)
                | Fault::ReceiptPending { .. }
                | Fault::Internal(_),
            )
            | Self::HeaderMismatch(_)
            | Self::SessionRequired
            | Self::SessionNotFound
            | Self::TooManySessions => None,
        }
    }

    /// The error response. Without an id, which a message may lack or have wrong, the member is left out: `null` is
    /// not an id of this protocol.
    #[must_use]
    pub fn response(&self, id: Option<&Id>) -> String {
        #[derive(Serialize)]
        struct ErrorResponse<'a> {
            jsonrpc: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            id: Option<&'a RawValue>,
            error: ErrorObject,
        }
        #[derive(Serialize)]
        struct ErrorObject {
            code: i64,
            message: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            data: Option<Value>,
        }
        let error = ErrorObject { code: self.code(), message: self.message(), data: self.data() };
        to_raw(&ErrorResponse { jsonrpc: "2.0", id: id.map(Id::as_raw), error }).get().to_owned()
    }
}

/// The answer to a call that has no successful run.
#[derive(Debug, Clone)]
pub enum CallFault {
    /// A protocol error: the request itself is wrong, and no model can correct it.
    Protocol(McpError),
    /// A result with `isError`, which a model can act on.
    Result(Fault),
}

/// Decides how a fault of a call is reported.
#[must_use]
pub fn call_fault(fault: Fault) -> CallFault {
    match fault {
        // The tool is named in `/name`; `/tool` is the core's pointer.
        Fault::InvalidParams { message, pointer } if pointer == "/tool" => {
            CallFault::Protocol(Fault::invalid("/name", message).into())
        }
        Fault::InvalidParams { ref pointer, .. } if !pointer.starts_with("/arguments") => {
            CallFault::Protocol(fault.into())
        }
        Fault::Parse(_)
        | Fault::InvalidRequest(_)
        | Fault::MethodNotFound(_)
        | Fault::RegistrationFailed(_)
        | Fault::SessionExpired(_)
        | Fault::Internal(_) => CallFault::Protocol(fault.into()),
        Fault::InvalidParams { .. }
        | Fault::ToolUnavailable { .. }
        | Fault::Refused { .. }
        | Fault::Failed(_)
        | Fault::LimitReached(..)
        | Fault::ReceiptPending { .. }
        | Fault::Busy { .. } => CallFault::Result(fault),
    }
}
