//! The params and results of `a2g/effects`, `a2g/commit`, `a2g/discard` and `a2g/undo`.
//!
//! Unknown members of params are refused: a misspelt intent must not ask for all sets.

use crate::field::{Field, Object};
use a2g_types::failure_message;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::limit::FileEffects;
use a2g_types::outcome::{
    ChangeCounts, ChangeState, ChangedRange, DecisionAct, FileChanges, Receipt, ShownChange, ShownRequest,
    Status,
};
use a2g_types::quantity::OutOfRangeError;
use a2g_types::tool::Digest;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The params of `a2g/commit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitParams {
    /// The intent of the staged run.
    pub intent: IntentId,
    /// The digest of the changes that the person was shown.
    pub digest: Digest,
}

/// The file changes of one run in the result of `a2g/effects`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectsSet {
    /// The intent of the run.
    pub intent: IntentId,
    /// The agent of the run.
    pub agent: AgentDid,
    /// The tool that ran.
    pub tool: ToolName,
    /// The time at which the changes take effect.
    pub mode: FileEffects,
    /// The state of the changes.
    pub state: ChangeState,
    /// The changes. They are written without their list unless `decisions` is present.
    pub changes: FileChanges,
    /// The number of requests that a commit sends.
    pub held: u64,
    /// The disk space that the set takes, in bytes.
    pub bytes: u64,
    /// The time at which the state began.
    pub since: OffsetDateTime,
    /// The time at which changes that wait are discarded, or until which changes in force can be undone.
    pub until: OffsetDateTime,
    /// The decisions on the changes, oldest first; `None` in a list of sets.
    pub decisions: Option<Vec<EffectsDecision>>,
}

/// A decision on the file changes of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectsDecision {
    /// The intent of the decision.
    pub intent: IntentId,
    /// The decision.
    pub act: DecisionAct,
    /// The status of its receipt.
    pub status: Status,
    /// The caller that decided.
    pub by: Option<String>,
    /// The reason why the decision failed, or what became of the requests.
    pub message: Option<String>,
}

impl EffectsDecision {
    /// The decision of a receipt; `None` for the receipt of a tool.
    #[must_use]
    pub fn of_receipt(receipt: &Receipt) -> Option<Self> {
        Some(Self {
            intent: receipt.intent,
            act: DecisionAct::of_tool(receipt.tool.as_str())?,
            status: receipt.outcome.end.status(),
            by: receipt.approved_by.clone(),
            message: failure_message::describe(&receipt.outcome).or_else(|| DecisionAct::find_note(receipt)),
        })
    }
}

/// Decodes the params of `a2g/effects`: `{}` for all sets, or `{intent}`.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer into `params`; [`Fault::Parse`] for text that is not JSON.
pub fn effects_params(params: &str) -> Result<Option<IntentId>, Fault> {
    Object::parse(params)?.read_all(|object| object.read_optional("intent"))
}

/// Decodes the params of `a2g/commit`: `{intent, digest}`.
///
/// # Errors
/// As [`effects_params`].
pub fn commit_params(params: &str) -> Result<CommitParams, Fault> {
    Object::parse(params)?.read_all(|object| {
        Ok(CommitParams { intent: object.read("intent")?, digest: object.read("digest")? })
    })
}

/// Decodes the params of `a2g/discard` and `a2g/undo`: `{intent}`.
///
/// # Errors
/// As [`effects_params`].
pub fn decision_params(params: &str) -> Result<IntentId, Fault> {
    Object::parse(params)?.read_all(|object| object.read("intent"))
}

/// Decodes the result of `a2g/effects`.
///
/// # Errors
/// As [`effects_params`], with pointers into the result.
pub fn effects_result(result: &str) -> Result<Vec<EffectsSet>, Fault> {
    decode_list(&Object::parse(result)?.require("sets")?, decode_set)
}

fn decode_list<'a, T>(
    list: &Field<'a>,
    decode: impl Fn(Field<'a>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    list.list()?.into_iter().map(decode).collect()
}

fn decode_set(field: Field<'_>) -> Result<EffectsSet, Fault> {
    let mut object = field.object()?;
    let shown = object.read_optional_with("files", |files| decode_list(&files, decode_change))?;
    let requests = object.read_optional_with("requests", |list| decode_list(&list, decode_request))?;
    Ok(EffectsSet {
        intent: object.read("intent")?,
        agent: object.read("agent")?,
        tool: object.read("tool")?,
        mode: object.require("mode")?.enum_variant()?,
        state: object.require("state")?.enum_variant()?,
        changes: FileChanges {
            count: decode_number(object.require("changes")?)?,
            digest: object.read("digest")?,
            counts: object.read_optional_with("counts", decode_counts)?,
            shown: shown.unwrap_or_default(),
            requests: requests.unwrap_or_default(),
            decisions: None,
        },
        held: object.read_optional_with("held", decode_number)?.unwrap_or_default(),
        bytes: decode_number(object.require("bytes")?)?,
        since: decode_time(object.require("since")?)?,
        until: decode_time(object.require("until")?)?,
        decisions: object.read_optional_with("decisions", |list| decode_list(&list, decode_decision))?,
    })
}

fn decode_request(field: Field<'_>) -> Result<ShownRequest, Fault> {
    let mut object = field.object()?;
    Ok(ShownRequest {
        method: object.read("method")?,
        url: object.read("url")?,
        fields: object.require("fields")?.strings()?,
        body_bytes: decode_number(object.require("bytes")?)?,
        body_digest: object.read("sha256")?,
        body: object.read_optional("body")?,
    })
}

fn decode_counts(field: Field<'_>) -> Result<ChangeCounts, Fault> {
    let mut object = field.object()?;
    Ok(ChangeCounts {
        deleted: decode_number(object.require("deleted")?)?,
        renamed: decode_number(object.require("renamed")?)?,
        emptied: decode_number(object.require("emptied")?)?,
        changed: decode_number(object.require("changed")?)?,
        attributes: decode_number(object.require("attributes")?)?,
        created: decode_number(object.require("created")?)?,
    })
}

fn decode_change(field: Field<'_>) -> Result<ShownChange, Fault> {
    let mut object = field.object()?;
    let ranges = object.read_optional_with("ranges", |ranges| decode_list(&ranges, decode_range))?;
    Ok(ShownChange {
        kind: object.require("change")?.enum_variant()?,
        entry: object.require("entry")?.enum_variant()?,
        path: object.read("path")?,
        from: object.read_optional("from")?,
        bytes_before: object.read_optional_with("bytes_before", decode_number)?,
        bytes_after: object.read_optional_with("bytes_after", decode_number)?,
        mode_before: object.read_optional_with("mode_before", decode_mode)?,
        mode_after: object.read_optional_with("mode_after", decode_mode)?,
        target: object.read_optional("target")?,
        diff: object.read_optional("diff")?,
        ranges: ranges.unwrap_or_default(),
        is_diff_cut: object.read_optional("diff_cut")?.unwrap_or_default(),
    })
}

fn decode_range(field: Field<'_>) -> Result<ChangedRange, Fault> {
    let mut object = field.object()?;
    Ok(ChangedRange {
        start: decode_number(object.require("start")?)?,
        old_bytes: decode_number(object.require("old_bytes")?)?,
        new_bytes: decode_number(object.require("new_bytes")?)?,
    })
}

fn decode_decision(field: Field<'_>) -> Result<EffectsDecision, Fault> {
    let mut object = field.object()?;
    Ok(EffectsDecision {
        intent: object.read("intent")?,
        act: object.require("act")?.enum_variant()?,
        status: object.read("status")?,
        by: object.read_optional("by")?,
        message: object.read_optional("message")?,
    })
}

fn decode_number(field: Field<'_>) -> Result<u64, Fault> {
    field.integer(0, u64::MAX)
}

fn decode_mode(field: Field<'_>) -> Result<u32, Fault> {
    let range = OutOfRangeError { min: 0, max: u32::MAX.into() };
    field.quantity(|mode| u32::try_from(mode).map_err(|_| range))
}

fn decode_time(field: Field<'_>) -> Result<OffsetDateTime, Fault> {
    field.parse_with(|text| OffsetDateTime::parse(text, &Rfc3339))
}
