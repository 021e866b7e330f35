//! Decoder for bodies of `POST /run`, which have passed the strict reader.

use crate::field::{Decode, Field, Object};
use crate::jsonrpc::Id;
use a2g_types::fault::Fault;
use a2g_types::ident::excerpt;
use a2g_types::quantity::Timeout;
use a2g_types::session::SessionRequest;
use serde_json::{Map, Value};

/// The form of a request, which its response shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestForm {
    /// `"jsonrpc": "3.0"`.
    Sovereign,
    /// `"jsonrpc": "2.0"`; the response has no `metadata`.
    JsonRpc2,
    /// Without `jsonrpc`; the response is a flat object.
    Legacy,
}

/// A request to run an operation of a skill.
#[derive(Debug, Clone, PartialEq)]
pub struct SovereignRequest {
    /// The form, which the response shares.
    pub form: RequestForm,
    /// The id of the response; `None` if the request had none.
    pub id: Option<Id>,
    /// The name of the skill, not empty.
    pub skill: String,
    /// The operation, if one was named.
    pub operation: Option<String>,
    /// The arguments, not yet checked against the tool's schema.
    pub payload: Map<String, Value>,
    /// `true` to receive partial results while the tool runs.
    pub stream: bool,
    /// The caller's hints.
    pub hints: ContextHints,
    /// The session in which the tool shall run.
    pub session: Option<SessionRequest>,
}

/// `metadata.context_hints`. Hints can only narrow the governor's grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextHints {
    /// The caller's own limit on the run time.
    pub timeout: Option<Timeout>,
    /// `true` when the caller intends to correct an invalid payload: the error then contains the schema.
    pub corrects_payload: bool,
}

/// A request that cannot be decoded, with the parts that were readable.
#[derive(Debug)]
pub struct SovereignDecodeError {
    /// The form; [`RequestForm::Sovereign`] if it was not readable.
    pub form: RequestForm,
    /// The id, if it was readable.
    pub id: Option<Id>,
    /// The skill and the operation, if they were readable.
    pub named: (Option<String>, Option<String>),
    /// The reason.
    pub fault: Fault,
}

/// Decodes a request.
///
/// # Errors
/// If the request cannot be decoded. The error has those parts of the request that were readable.
pub fn request(text: &str) -> Result<SovereignRequest, Box<SovereignDecodeError>> {
    let mut partial = PartialRequest { form: RequestForm::Sovereign, id: None, skill: None, operation: None };
    match read(text, &mut partial) {
        Ok(RequestBody { payload, stream, hints, session }) => {
            let PartialRequest { form, id, skill, operation } = partial;
            let skill = skill.unwrap_or_default();
            Ok(SovereignRequest { form, id, skill, operation, payload, stream, hints, session })
        }
        Err(fault) => {
            let PartialRequest { form, id, skill, operation } = partial;
            Err(Box::new(SovereignDecodeError { form, id, named: (skill, operation), fault }))
        }
    }
}

/// The parts of a request that an error response needs, as far as they have been read.
struct PartialRequest {
    form: RequestForm,
    id: Option<Id>,
    skill: Option<String>,
    operation: Option<String>,
}

struct RequestBody {
    payload: Map<String, Value>,
    stream: bool,
    hints: ContextHints,
    session: Option<SessionRequest>,
}

fn read(text: &str, partial: &mut PartialRequest) -> Result<RequestBody, Fault> {
    let body = Field::parse(text)?;
    if !body.is_object() {
        return Err(Fault::InvalidRequest(
            "a request must be one object: this door does not accept batches".to_owned(),
        ));
    }
    let mut body = body.object()?;
    let version = body.take("jsonrpc")?;
    let Some(version) = version else {
        partial.form = RequestForm::Legacy;
        return read_legacy(body, partial);
    };
    partial.id = body.read_nullable_with("id", |id| Id::from_field(&id))?;
    partial.form = match version.string().as_deref() {
        Ok("3.0") => RequestForm::Sovereign,
        Ok("2.0") => RequestForm::JsonRpc2,
        Ok(_) | Err(_) => {
            return Err(Fault::InvalidRequest("`jsonrpc` must be \"3.0\" or \"2.0\"".to_owned()));
        }
    };
    let method = body.read_nullable::<String>("method")?;
    let mut params = body.read_nullable::<Object<'_>>("params")?.unwrap_or_default();
    let skill = params.read_nullable::<String>("skill")?;
    let operation = params.read_nullable::<String>("operation")?;
    let split = method.as_deref().map(|method| match method.split_once('/') {
        Some((skill, operation)) => (skill, Some(operation)),
        None => (method, None),
    });
    partial.skill = split.map(|(skill, _)| skill.to_owned()).or_else(|| skill.clone());
    partial.operation =
        split.and_then(|(_, operation)| operation).map(str::to_owned).or_else(|| operation.clone());
    check_agreement("/params/skill", skill.as_deref(), partial.skill.as_deref())?;
    check_agreement("/params/operation", operation.as_deref(), partial.operation.as_deref())?;
    let payload = params.read_nullable("payload")?.unwrap_or_default();
    let session = params.read_nullable("session")?;
    let (stream, hints) = body.read_nullable_with("metadata", decode_metadata)?.unwrap_or_default();
    require_skill(partial)?;
    Ok(RequestBody { payload, stream, hints, session })
}

/// Decodes `{skill, action|operation, params|payload, context, request_id, timeout_ms, session}`.
fn read_legacy(mut body: Object<'_>, partial: &mut PartialRequest) -> Result<RequestBody, Fault> {
    partial.id = body.read_nullable_with("request_id", |id| Id::from_field(&id))?;
    partial.skill = body.read_nullable("skill")?;
    partial.operation = read_either(&mut body, "operation", "action")?;
    let payload = read_either(&mut body, "payload", "params")?.unwrap_or_default();
    let timeout = body.read_nullable_with("timeout_ms", |field| field.quantity(Timeout::from_millis))?;
    let session = body.read_nullable("session")?;
    body.read_nullable::<Object<'_>>("context")?;
    require_skill(partial)?;
    let hints = ContextHints { timeout, corrects_payload: false };
    Ok(RequestBody { payload, stream: false, hints, session })
}

/// Reads a member that has two names; a request may use only one of them.
fn read_either<'a, T: Decode<'a>>(
    body: &mut Object<'a>,
    name: &'static str,
    other: &'static str,
) -> Result<Option<T>, Fault> {
    match (body.take_unless_null(name)?, body.take_unless_null(other)?) {
        (Some(_), Some(field)) => Err(field.fault(format!("`{other}` repeats `{name}`: send one of them"))),
        (field, alias) => field.or(alias).map(T::decode).transpose(),
    }
}

fn require_skill(partial: &PartialRequest) -> Result<(), Fault> {
    match partial.skill.as_deref() {
        None | Some("") => Err(Fault::InvalidRequest(
            "the request names no skill: send `method` as `skill/operation`, or `params.skill`".to_owned(),
        )),
        Some(_) => Ok(()),
    }
}

/// Checks that a member of `params` agrees with `method`.
fn check_agreement(pointer: &str, member: Option<&str>, effective: Option<&str>) -> Result<(), Fault> {
    match member {
        Some(name) if Some(name) != effective => {
            Err(Fault::invalid(pointer, format!("`{}` contradicts `method`", excerpt(name))))
        }
        Some(_) | None => Ok(()),
    }
}

/// Decodes the members that this door interprets. Others are meant for other agents, and ignored.
fn decode_metadata(field: Field<'_>) -> Result<(bool, ContextHints), Fault> {
    let mut metadata = field.object()?;
    metadata.read_nullable::<String>("priority")?;
    metadata.read_nullable::<Vec<String>>("capabilities")?;
    let stream = metadata.read_nullable("stream")?.unwrap_or_default();
    let hints = metadata.read_nullable_with("context_hints", decode_hints)?.unwrap_or_default();
    Ok((stream, hints))
}

fn decode_hints(field: Field<'_>) -> Result<ContextHints, Fault> {
    let mut hints = field.object()?;
    hints.read_nullable_with("tier", |tier| tier.enum_value(&[("LOW", ()), ("MID", ()), ("HIGH", ())]))?;
    let retries = [("none", false), ("correct_payload", true)];
    let corrects_payload = hints.read_nullable_with("retry_strategy", |retry| retry.enum_value(&retries))?;
    Ok(ContextHints {
        timeout: hints.read_nullable_with("timeout_ms", |field| field.quantity(Timeout::from_millis))?,
        corrects_payload: corrects_payload.unwrap_or_default(),
    })
}
