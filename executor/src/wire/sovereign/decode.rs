//! Bodies of `POST /run` as requests. The body has passed the strict reader.

use crate::fault::Fault;
use crate::ident::excerpt;
use crate::quantity::Timeout;
use crate::wire::field::{Field, Object};
use crate::wire::jsonrpc::Id;
use serde_json::{Map, Value};

/// In which form a request came, and is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `"jsonrpc": "3.0"`.
    Sovereign,
    /// `"jsonrpc": "2.0"`: answered without `metadata`.
    JsonRpc2,
    /// Without `jsonrpc`: answered flat.
    Legacy,
}

/// A request to run an operation of a skill.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Its form.
    pub form: Form,
    /// The id to answer with; `None` when there was none.
    pub id: Option<Id>,
    /// The skill.
    pub skill: String,
    /// The operation; `None` when none was named.
    pub operation: Option<String>,
    /// The arguments.
    pub payload: Map<String, Value>,
    /// Whether partial results are wanted as they come.
    pub stream: bool,
    /// What the caller hints at.
    pub hints: Hints,
}

/// `metadata.context_hints` of a request. None of them can widen anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hints {
    /// The longest run.
    pub timeout: Option<Timeout>,
    /// Whether the caller will correct a payload that breaks the schema, so that it is told the schema.
    pub corrects_payload: bool,
}

/// A request that is none, with all that is known to answer it.
#[derive(Debug)]
pub struct SovereignDecodeError {
    /// The form.
    pub form: Form,
    /// The id, as far as it could be read.
    pub id: Option<Id>,
    /// The skill and the operation, as far as they could be read.
    pub named: (Option<String>, Option<String>),
    /// What is wrong.
    pub fault: Fault,
}

/// Reads a request.
///
/// # Errors
/// [`SovereignDecodeError`], in the form in which the request seems to be.
pub fn request(text: &str) -> Result<Request, Box<SovereignDecodeError>> {
    let mut known = Known { form: Form::Sovereign, id: None, skill: None, operation: None };
    match read(text, &mut known) {
        Ok((payload, stream, hints)) => {
            let Known { form, id, skill, operation } = known;
            let skill = skill.unwrap_or_default();
            Ok(Request { form, id, skill, operation, payload, stream, hints })
        }
        Err(fault) => {
            let Known { form, id, skill, operation } = known;
            Err(Box::new(SovereignDecodeError { form, id, named: (skill, operation), fault }))
        }
    }
}

/// What is known of a request before all of it was read.
struct Known {
    form: Form,
    id: Option<Id>,
    skill: Option<String>,
    operation: Option<String>,
}

type Asked = (Map<String, Value>, bool, Hints);

fn read(text: &str, known: &mut Known) -> Result<Asked, Fault> {
    let body = Field::root(text)?;
    if !body.is_object() {
        return Err(Fault::InvalidRequest("a request is one object: this door has no batches".to_owned()));
    }
    let mut body = body.object()?;
    let version = body.take("jsonrpc")?;
    let Some(version) = version else {
        known.form = Form::Legacy;
        return legacy(body, known);
    };
    known.id = id(body.take_unless_null("id")?)?;
    known.form = match version.text().as_deref() {
        Ok("3.0") => Form::Sovereign,
        Ok("2.0") => Form::JsonRpc2,
        Ok(_) | Err(_) => {
            return Err(Fault::InvalidRequest(
                "`jsonrpc` must be \"3.0\", or \"2.0\" for a client of the older form".to_owned(),
            ));
        }
    };
    let method = body.take_unless_null("method")?.map(|method| method.text()).transpose()?;
    let mut params = match body.take_unless_null("params")? {
        Some(params) => Some(params.object()?),
        None => None,
    };
    let mut part = |name: &str| -> Result<Option<String>, Fault> {
        let field = params.as_mut().map(|params| params.take_unless_null(name)).transpose()?.flatten();
        field.map(|field| field.text()).transpose()
    };
    let (skill, operation) = (part("skill")?, part("operation")?);
    let split = method.as_deref().map(|method| match method.split_once('/') {
        Some((skill, operation)) => (skill, Some(operation)),
        None => (method, None),
    });
    known.skill = split.map(|(skill, _)| skill.to_owned()).or_else(|| skill.clone());
    known.operation = split.and_then(|(_, named)| named).map(str::to_owned).or_else(|| operation.clone());
    agrees("/params/skill", skill.as_deref(), known.skill.as_deref())?;
    agrees("/params/operation", operation.as_deref(), known.operation.as_deref())?;
    let payload = params.as_mut().map(|params| params.take_unless_null("payload")).transpose()?.flatten();
    let payload = payload.map(|payload| payload.map()).transpose()?.unwrap_or_default();
    let metadata = body.take_unless_null("metadata")?.map(Field::object).transpose()?;
    let (stream, hints) = metadata.map(self::metadata).transpose()?.unwrap_or_default();
    named(known)?;
    Ok((payload, stream, hints))
}

/// `{skill, action|operation, params|payload, context, request_id, timeout_ms}`.
fn legacy(mut body: Object<'_>, known: &mut Known) -> Result<Asked, Fault> {
    known.id = id(body.take_unless_null("request_id")?)?;
    known.skill = body.take_unless_null("skill")?.map(|skill| skill.text()).transpose()?;
    let operation = one_of(&mut body, "operation", "action")?;
    known.operation = operation.map(|operation| operation.text()).transpose()?;
    let payload = one_of(&mut body, "payload", "params")?;
    let payload = payload.map(|payload| payload.map()).transpose()?.unwrap_or_default();
    let timeout = body.take_unless_null("timeout_ms")?;
    let timeout = timeout.map(|timeout| timeout.quantity(Timeout::from_millis)).transpose()?;
    let context = body.take_unless_null("context")?;
    if let Some(context) = context {
        context.object()?;
    }
    named(known)?;
    Ok((payload, false, Hints { timeout, corrects_payload: false }))
}

/// Of two names for one thing, the one that is there.
fn one_of<'a>(body: &mut Object<'a>, name: &str, other: &str) -> Result<Option<Field<'a>>, Fault> {
    match (body.take_unless_null(name)?, body.take_unless_null(other)?) {
        (Some(_), Some(field)) => {
            Err(Fault::invalid(field.pointer(), format!("`{other}` says again what `{name}` says: send one")))
        }
        (one, other) => Ok(one.or(other)),
    }
}

fn named(known: &Known) -> Result<(), Fault> {
    match known.skill.as_deref() {
        None | Some("") => Err(Fault::InvalidRequest(
            "no skill is named: send `method` as `skill/operation`, or `params.skill`".to_owned(),
        )),
        Some(_) => Ok(()),
    }
}

/// `params` may say again what `method` says, and nothing else.
fn agrees(pointer: &str, said: Option<&str>, meant: Option<&str>) -> Result<(), Fault> {
    match said {
        Some(said) if Some(said) != meant => {
            Err(Fault::invalid(pointer, format!("`{}` is not what `method` names", excerpt(said))))
        }
        Some(_) | None => Ok(()),
    }
}

fn id(field: Option<Field<'_>>) -> Result<Option<Id>, Fault> {
    field.map(|field| Id::of(&field)).transpose()
}

/// The members that mean something here; others are for other agents on the way.
fn metadata(mut metadata: Object<'_>) -> Result<(bool, Hints), Fault> {
    if let Some(priority) = metadata.take_unless_null("priority")? {
        priority.text()?;
    }
    if let Some(capabilities) = metadata.take_unless_null("capabilities")? {
        capabilities.texts()?;
    }
    let stream = metadata.take_unless_null("stream")?;
    let stream = stream.map(|stream| stream.boolean()).transpose()?.unwrap_or_default();
    let hints = metadata.take_unless_null("context_hints")?.map(Field::object).transpose()?;
    Ok((stream, hints.map(self::hints).transpose()?.unwrap_or_default()))
}

fn hints(mut hints: Object<'_>) -> Result<Hints, Fault> {
    if let Some(tier) = hints.take_unless_null("tier")? {
        tier.word(&[("LOW", ()), ("MID", ()), ("HIGH", ())])?;
    }
    let retry = hints.take_unless_null("retry_strategy")?;
    let retry = retry.map(|retry| retry.word(&[("none", false), ("correct_payload", true)])).transpose()?;
    let timeout = hints.take_unless_null("timeout_ms")?;
    let timeout = timeout.map(|timeout| timeout.quantity(Timeout::from_millis)).transpose()?;
    Ok(Hints { timeout, corrects_payload: retry.unwrap_or_default() })
}
