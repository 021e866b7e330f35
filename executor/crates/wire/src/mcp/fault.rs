//! The error responses of this door, with their HTTP statuses, and the class of each fault of a call.
//!
//! The numbers have other meanings at other doors, so no other door may use this table.

use super::Revision;
use crate::fault_parts::{self, Detail, DetailNames, FaultClass};
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

impl McpError {
    /// The JSON-RPC error code.
    #[must_use]
    pub fn code(&self) -> i64 {
        self.codes().0
    }

    /// The HTTP status of the response, as Streamable HTTP of this revision has it.
    #[must_use]
    pub fn http_status(&self, revision: Revision) -> u16 {
        match (self, revision) {
            (Self::Fault(Fault::MethodNotFound(_)), Revision::Session) => 200,
            (_, Revision::Session | Revision::Stateless) => self.codes().1,
        }
    }

    /// The JSON-RPC error code, the HTTP status, and the details of a fault that are sent.
    fn codes(&self) -> (i64, u16, &'static DetailNames) {
        const POINTER: &DetailNames = &[(Detail::Pointer, "pointer")];
        match self {
            Self::HeaderMismatch(_) => (-32020, 400, &[]),
            Self::MissingCapability(_) => (-32021, 400, &[]),
            Self::UnsupportedVersion(_) => (-32022, 400, &[]),
            Self::StateRejected => (-32602, 200, &[]),
            Self::ResourceNotFound { revision: Revision::Session, .. } => (-32002, 200, &[]),
            Self::ResourceNotFound { revision: Revision::Stateless, .. } => (-32602, 200, &[]),
            Self::SessionRequired => (-32600, 400, &[]),
            Self::SessionNotFound => (-32600, 404, &[]),
            Self::TooManySessions => (-32603, 503, &[]),
            Self::Fault(Fault::InvalidParams { pointer, .. }) if pointer.starts_with("/_meta") => {
                (-32602, 400, POINTER)
            }
            Self::Fault(fault) => match FaultClass::of(fault) {
                FaultClass::Parse => (-32700, 400, &[]),
                FaultClass::InvalidRequest => (-32600, 400, &[]),
                FaultClass::MethodNotFound => (-32601, 404, &[]),
                FaultClass::InvalidParams => (-32602, 200, POINTER),
                FaultClass::Busy => (-32603, 503, &[(Detail::RetryAfter, "retry_after_ms")]),
                // A call that is refused or fails has a result; see `call_fault`.
                FaultClass::ToolUnavailable
                | FaultClass::Refused(_)
                | FaultClass::RegistrationFailed
                | FaultClass::SessionExpired
                | FaultClass::Failed
                | FaultClass::LimitReached
                | FaultClass::ReceiptPending
                | FaultClass::Internal => (-32603, 200, &[]),
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
            Self::Fault(fault) => fault.sentence().into_owned(),
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
            Self::Fault(fault) => {
                let (_code, _status, names) = self.codes();
                Some(fault_parts::details(fault, names)).filter(|data| !data.is_empty()).map(Value::Object)
            }
            Self::HeaderMismatch(_)
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
