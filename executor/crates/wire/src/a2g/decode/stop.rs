//! The params and results of `a2g/stop`, `a2g/resume` and `a2g/stops`.
//!
//! Unknown members are refused: a misspelt target must not become another one.

use crate::field::{Field, Object};
use a2g_types::fault::Fault;
use a2g_types::stop::{OperatorReason, Stop, StopTarget};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The params of `a2g/stop`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopParams {
    /// What is stopped.
    pub target: StopTarget,
    /// The operator's reason.
    pub reason: OperatorReason,
}

/// Decodes the params of `a2g/stop`: `{target, reason}`.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer into `params`; [`Fault::Parse`] for text that is not JSON.
pub fn stop_params(params: &str) -> Result<StopParams, Fault> {
    Object::parse(params)?.read_all(|object| {
        Ok(StopParams { target: decode_target(object.require("target")?)?, reason: object.read("reason")? })
    })
}

/// Decodes the params of `a2g/resume`: `{target}`.
///
/// # Errors
/// As [`stop_params`].
pub fn resume_params(params: &str) -> Result<StopTarget, Fault> {
    Object::parse(params)?.read_all(|object| decode_target(object.require("target")?))
}

/// Decodes `{agent_did}`, `{tool}` or `{all: true}`.
fn decode_target(field: Field<'_>) -> Result<StopTarget, Fault> {
    let pointer = field.pointer().to_owned();
    let target = field.object()?.read_all(|object| {
        let all = object.read_optional_with("all", |all| match all.boolean()? {
            true => Ok(()),
            false => Err(all.expected_error("true")),
        })?;
        Ok((object.read_optional("agent_did")?, object.read_optional("tool")?, all))
    })?;
    match target {
        (Some(agent), None, None) => Ok(StopTarget::Agent(agent)),
        (None, Some(tool), None) => Ok(StopTarget::Tool(tool)),
        (None, None, Some(())) => Ok(StopTarget::Everything),
        (Some(_), Some(_), _) | (Some(_), _, Some(_)) | (_, Some(_), Some(_)) | (None, None, None) => {
            Err(Fault::invalid(pointer, "send one of `agent_did`, `tool` and `\"all\": true`"))
        }
    }
}

/// Decodes the result of `a2g/stops`.
///
/// # Errors
/// As [`stop_params`], with pointers into the result.
pub fn stops_result(result: &str) -> Result<Vec<Stop>, Fault> {
    let stops = Object::parse(result)?.require("stops")?.list()?;
    stops.into_iter().map(decode_stop).collect()
}

fn decode_stop(field: Field<'_>) -> Result<Stop, Fault> {
    let mut object = field.object()?;
    Ok(Stop {
        target: decode_target(object.require("target")?)?,
        reason: object.read("reason")?,
        by: object.read("by")?,
        since: object.require("since")?.parse_with(|text| OffsetDateTime::parse(text, &Rfc3339))?,
    })
}
