//! The parts that the tables of error codes of all doors share: the class of a fault, and its details.
//!
//! A door has one table from classes to its own codes, without a default, and one list of the details that it sends: a
//! class that is added here does not compile until each door has a code for it.

use a2g_types::fault::{Fault, RefusalClass};
use serde_json::{Map, Value};

/// The class of a fault, by which each door selects its error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultClass {
    Parse,
    InvalidRequest,
    MethodNotFound,
    InvalidParams,
    ToolUnavailable,
    Refused(RefusalClass),
    RegistrationFailed,
    SessionExpired,
    Failed,
    LimitReached,
    ReceiptPending,
    Busy,
    Internal,
}

impl FaultClass {
    pub(crate) fn of(fault: &Fault) -> Self {
        match fault {
            Fault::Parse(_) => Self::Parse,
            Fault::InvalidRequest(_) => Self::InvalidRequest,
            Fault::MethodNotFound(_) => Self::MethodNotFound,
            Fault::InvalidParams { .. } => Self::InvalidParams,
            Fault::ToolUnavailable { .. } => Self::ToolUnavailable,
            Fault::Refused { blocked_by, .. } => Self::Refused(blocked_by.class()),
            Fault::RegistrationFailed(_) => Self::RegistrationFailed,
            Fault::SessionExpired(_) => Self::SessionExpired,
            Fault::Failed(_) => Self::Failed,
            Fault::LimitReached(..) => Self::LimitReached,
            Fault::ReceiptPending { .. } => Self::ReceiptPending,
            Fault::Busy { .. } => Self::Busy,
            Fault::Internal(_) => Self::Internal,
        }
    }
}

/// A machine-readable part of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    Pointer,
    Tool,
    BlockedBy,
    Intent,
    RiskScore,
    Ran,
    RetryAfter,
}

/// The details that a door sends, with their names there, in the order of its messages.
pub(crate) type DetailNames = [(Detail, &'static str)];

/// The details of a fault under their names at a door.
pub(crate) fn details(fault: &Fault, names: &DetailNames) -> Map<String, Value> {
    let values = detail_values(fault);
    let named = |(detail, name): &(Detail, &str)| {
        let (_, value) = values.iter().find(|(known, _)| known == detail)?;
        Some(((*name).to_owned(), value.clone()))
    };
    names.iter().filter_map(named).collect()
}

fn detail_values(fault: &Fault) -> Vec<(Detail, Value)> {
    match fault {
        Fault::InvalidParams { pointer, .. } => vec![(Detail::Pointer, pointer.as_str().into())],
        Fault::ToolUnavailable { tool, .. } => vec![(Detail::Tool, tool.as_str().into())],
        Fault::Refused { intent, risk_score, blocked_by, .. } => {
            let mut values = vec![(Detail::BlockedBy, blocked_by.as_str().into())];
            values.extend(intent.map(|intent| (Detail::Intent, intent.to_string().into())));
            values.extend(risk_score.map(|score| (Detail::RiskScore, score.into())));
            values
        }
        Fault::ReceiptPending { intent, retry_after_ms } => vec![
            (Detail::Intent, intent.to_string().into()),
            (Detail::Ran, true.into()),
            (Detail::RetryAfter, (*retry_after_ms).into()),
        ],
        Fault::Busy { retry_after_ms, .. } => vec![(Detail::RetryAfter, (*retry_after_ms).into())],
        Fault::Parse(_)
        | Fault::InvalidRequest(_)
        | Fault::MethodNotFound(_)
        | Fault::RegistrationFailed(_)
        | Fault::SessionExpired(_)
        | Fault::Failed(_)
        | Fault::LimitReached(..)
        | Fault::Internal(_) => Vec::new(),
    }
}
