//! Decoder for bodies of `POST /run`, which have passed the strict reader.

use crate::field::{Field, Object};
use crate::jsonrpc::Id;
use a2g_types::fault::Fault;
use a2g_types::ident::excerpt;
use a2g_types::quantity::Timeout;
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
        Ok((payload, stream, hints)) => {
            let PartialRequest { form, id, skill, operation } = partial;
            let skill = skill.unwrap_or_default();
            Ok(SovereignRequest { form, id, skill, operation, payload, stream, hints })
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

type RequestBody = (Map<String, Value>, bool, ContextHints);

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
    partial.id = decode_id(body.take_unless_null("id")?)?;
    partial.form = match version.string().as_deref() {
        Ok("3.0") => RequestForm::Sovereign,
        Ok("2.0") => RequestForm::JsonRpc2,
        Ok(_) | Err(_) => {
            return Err(Fault::InvalidRequest("`jsonrpc` must be \"3.0\" or \"2.0\"".to_owned()));
        }
    };
    let method = body.take_unless_null("method")?.map(|method| method.string()).transpose()?;
    let mut params = match body.take_unless_null("params")? {
        Some(params) => Some(params.object()?),
        None => None,
    };
    let mut take_text = |name: &str| -> Result<Option<String>, Fault> {
        let field = params.as_mut().map(|params| params.take_unless_null(name)).transpose()?.flatten();
        field.map(|field| field.string()).transpose()
    };
    let (skill, operation) = (take_text("skill")?, take_text("operation")?);
    let split = method.as_deref().map(|method| match method.split_once('/') {
        Some((skill, operation)) => (skill, Some(operation)),
        None => (method, None),
    });
    partial.skill = split.map(|(skill, _)| skill.to_owned()).or_else(|| skill.clone());
    partial.operation =
        split.and_then(|(_, operation)| operation).map(str::to_owned).or_else(|| operation.clone());
    check_agreement("/params/skill", skill.as_deref(), partial.skill.as_deref())?;
    check_agreement("/params/operation", operation.as_deref(), partial.operation.as_deref())?;
    let payload = params.as_mut().map(|params| params.take_unless_null("payload")).transpose()?.flatten();
    let payload = payload.map(|payload| payload.map()).transpose()?.unwrap_or_default();
    let metadata = body.take_unless_null("metadata")?.map(Field::object).transpose()?;
    let (stream, hints) = metadata.map(decode_metadata).transpose()?.unwrap_or_default();
    require_skill(partial)?;
    Ok((payload, stream, hints))
}

/// Decodes `{skill, action|operation, params|payload, context, request_id, timeout_ms}`.
fn read_legacy(mut body: Object<'_>, partial: &mut PartialRequest) -> Result<RequestBody, Fault> {
    partial.id = decode_id(body.take_unless_null("request_id")?)?;
    partial.skill = body.take_unless_null("skill")?.map(|skill| skill.string()).transpose()?;
    let operation = take_either(&mut body, "operation", "action")?;
    partial.operation = operation.map(|operation| operation.string()).transpose()?;
    let payload = take_either(&mut body, "payload", "params")?;
    let payload = payload.map(|payload| payload.map()).transpose()?.unwrap_or_default();
    let timeout = body.take_unless_null("timeout_ms")?;
    let timeout = timeout.map(|timeout| timeout.quantity(Timeout::from_millis)).transpose()?;
    let context = body.take_unless_null("context")?;
    if let Some(context) = context {
        context.object()?;
    }
    require_skill(partial)?;
    Ok((payload, false, ContextHints { timeout, corrects_payload: false }))
}

/// Takes a member that has two names; a request may use only one of them.
fn take_either<'a>(body: &mut Object<'a>, name: &str, other: &str) -> Result<Option<Field<'a>>, Fault> {
    match (body.take_unless_null(name)?, body.take_unless_null(other)?) {
        (Some(_), Some(field)) => {
            Err(Fault::invalid(field.pointer(), format!("`{other}` repeats `{name}`: send one of them")))
        }
        (field, alias) => Ok(field.or(alias)),
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

fn decode_id(field: Option<Field<'_>>) -> Result<Option<Id>, Fault> {
    field.map(|field| Id::from_field(&field)).transpose()
}

/// Decodes the members that this door interprets. Others are meant for other agents, and ignored.
fn decode_metadata(mut metadata: Object<'_>) -> Result<(bool, ContextHints), Fault> {
    if let Some(priority) = metadata.take_unless_null("priority")? {
        priority.string()?;
    }
    if let Some(capabilities) = metadata.take_unless_null("capabilities")? {
        capabilities.strings()?;
    }
    let stream = metadata.take_unless_null("stream")?;
    let stream = stream.map(|stream| stream.boolean()).transpose()?.unwrap_or_default();
    let hints = metadata.take_unless_null("context_hints")?.map(Field::object).transpose()?;
    Ok((stream, hints.map(decode_hints).transpose()?.unwrap_or_default()))
}

fn decode_hints(mut hints: Object<'_>) -> Result<ContextHints, Fault> {
    if let Some(tier) = hints.take_unless_null("tier")? {
        tier.enum_value(&[("LOW", ()), ("MID", ()), ("HIGH", ())])?;
    }
    let retry = hints.take_unless_null("retry_strategy")?;
    let retry =
        retry.map(|retry| retry.enum_value(&[("none", false), ("correct_payload", true)])).transpose()?;
    let timeout = hints.take_unless_null("timeout_ms")?;
    let timeout = timeout.map(|timeout| timeout.quantity(Timeout::from_millis)).transpose()?;
    Ok(ContextHints { timeout, corrects_payload: retry.unwrap_or_default() })
}
