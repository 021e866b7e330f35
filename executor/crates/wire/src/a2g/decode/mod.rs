//! Decodes A2G params and results into domain types. A [`Fault::InvalidParams`] has the pointer of the invalid value.
//!
//! Limits are integers in range, written in digits. For an optional member, `null` means the same
//! as absence only if the member restricts nothing. Pointers are relative to the text that the function was given.

mod agent;
mod effects;
mod policy;
mod proof;
mod session;
mod signature;
mod stop;
mod usage;
mod verdict;

pub use agent::{Heartbeat, Registration, ReportHead, agent_heartbeat, heartbeat, registration, report};
pub use effects::{
    CommitParams, EffectsDecision, EffectsSet, commit_params, decision_params, effects_params, effects_result,
};
pub(super) use policy::{MAX_DISK_MB, MAX_REQUESTS_PER_MINUTE, MAX_SIZE_BYTES};
pub use policy::{policy, policy_file, registration_result};
pub use proof::{ProofClaims, proof_claims, proof_header};
pub use session::{SessionEndParams, session_end_params};
pub use signature::context_signature;
pub use stop::{StopParams, resume_params, stop_params, stops_result};
pub use usage::{ReportUsage, report_usage};
pub use verdict::{directive, verdict};

use crate::field::{Field, Object, decode_by};
use crate::listing::{DescribeRequest, Listing, MAX_QUERY_BYTES};
use crate::stubs::Language;
use a2g_types::call::{Call, Door, Priority};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::session::{CallSession, SessionRequest};
use a2g_types::verdict::{Proof, Verdict};

/// The params of `a2g/execute`: an intent with the verdict that answers it.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecuteParams {
    /// The call.
    pub call: Call,
    /// The claimed verdict of the governor.
    pub verdict: Verdict,
    /// The proof of the verdict's origin, if sent. Not verified here.
    pub proof: Option<Proof>,
}

/// The params of `g2a/revoke`. At least one of the two members is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevokeParams {
    /// The agent whose intents are aborted and whose standing capabilities are dropped.
    pub agent: Option<AgentDid>,
    /// The intent that is aborted.
    pub intent: Option<IntentId>,
}

/// Decodes the params of `a2g/intent`.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer into `params`; [`Fault::Parse`] for text that is not JSON.
pub fn intent(params: &str) -> Result<Call, Fault> {
    decode_call(Field::parse(params)?)
}

/// Decodes the params of `a2g/execute`.
///
/// # Errors
/// As [`intent`]; members other than `intent`, `verdict`, `proof` and `session` are refused.
pub fn execute_params(params: &str) -> Result<ExecuteParams, Fault> {
    Object::parse(params)?.read_all(|object| {
        let intent = decode_call(object.require("intent")?)?;
        // A governor may return the intent with the member that it was sent with.
        let session = object.read_nullable::<SessionRequest>("session")?.map(CallSession::from);
        if let (Some(session), Some(own)) = (&session, &intent.session)
            && session.request != own.request
        {
            return Err(Fault::invalid("/session", "differs from `session` in the intent: send one of them"));
        }
        let call = Call { session: session.or_else(|| intent.session.clone()), ..intent };
        let verdict = object.require("verdict")?;
        let proof = object.read_nullable_with("proof", |field| decode_proof(&field, &verdict))?;
        Ok(ExecuteParams { call, verdict: verdict::decode(verdict)?, proof })
    })
}

/// Decodes the params of `g2a/revoke`. Here `null` is the same as absent: refusing a revocation would leave more
/// intents running than a lenient reading of it.
///
/// # Errors
/// As [`intent`], and if neither an agent nor an intent is named.
pub fn revoke_params(params: &str) -> Result<RevokeParams, Fault> {
    let mut object = Object::parse(params)?;
    let agent = object.read_nullable("agent_did")?;
    let intent = object.read_nullable("intent_id")?;
    if agent.is_none() && intent.is_none() {
        return Err(Fault::invalid("", "send `agent_did`, `intent_id` or both"));
    }
    Ok(RevokeParams { agent, intent })
}

/// Decodes the params of `a2g/cancel` and `a2g/status`: `{intent_id}`.
///
/// # Errors
/// As [`intent`].
pub fn intent_id(params: &str) -> Result<IntentId, Fault> {
    Object::parse(params)?.read("intent_id")
}

/// The params of `a2g/tools`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolsParams {
    /// Every tool, with its schemas.
    Every,
    /// The catalogue as code.
    Code {
        /// The agent that would call the tools; `None`: the caller's only one.
        agent: Option<AgentDid>,
        /// The request for descriptions; `None`: the interpreters are listed.
        request: Option<DescribeRequest>,
    },
}

/// Decodes the params of `a2g/tools`: none, or `{listing, agent_did?, query?, language?}`.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer; also for a member that needs another.
pub fn tools_params(params: &str) -> Result<ToolsParams, Fault> {
    if no_params(Some(params)).is_ok() {
        return Ok(ToolsParams::Every);
    }
    Object::parse(params)?.read_all(|object| {
        let listing = object.read_optional::<Listing>("listing")?;
        if listing.unwrap_or_default() == Listing::Tools {
            return Ok(ToolsParams::Every);
        }
        let agent = object.read_nullable("agent_did")?;
        let language = object.read_nullable::<Language>("language")?;
        match object.read_nullable_with("query", decode_query)? {
            Some(query) => {
                Ok(ToolsParams::Code { agent, request: Some(DescribeRequest { query, language }) })
            }
            None if language.is_some() => {
                Err(Fault::invalid("/query", "`query` is missing: `language` is that of an answer to one"))
            }
            None => Ok(ToolsParams::Code { agent, request: None }),
        }
    })
}

decode_by! {
    enum_variant(): Listing;
    enum_variant(): Language;
}

fn decode_query(field: Field<'_>) -> Result<String, Fault> {
    let query = field.string()?;
    if query.len() > MAX_QUERY_BYTES {
        return Err(field.expected_error(&format!("a string of at most {MAX_QUERY_BYTES} bytes")));
    }
    Ok(query)
}

/// Checks that a method without parameters received none: no params, `{}` or `[]`.
///
/// # Errors
/// [`Fault::InvalidParams`] for anything else.
pub fn no_params(params: Option<&str>) -> Result<(), Fault> {
    let Some(params) = params else { return Ok(()) };
    let field = Field::parse(params)?;
    let empty = matches!(serde_json::from_str(params), Ok(serde_json::Value::Array(list)) if list.is_empty());
    if empty { Ok(()) } else { field.object()?.finish() }
}

/// The executor that an agent requests a proof for: `context.executor` of its intent.
///
/// # Errors
/// [`Fault::InvalidParams`] if the member is present and not a DID.
pub fn requested_executor(call: &Call) -> Result<Option<AgentDid>, Fault> {
    let Some(executor) = call.context.as_ref().and_then(|context| context.get("executor")) else {
        return Ok(None);
    };
    let text = executor.as_str().ok_or("must be the DID of an executor".to_owned());
    let did = text.and_then(|text| AgentDid::parse(text).map_err(|error| error.to_string()));
    let invalid = |error| Fault::invalid("/context/executor", format!("`executor`: {error}"));
    did.map(Some).map_err(invalid)
}

fn decode_proof(field: &Field<'_>, raw_verdict: &Field<'_>) -> Result<Proof, Fault> {
    let mut verdict = raw_verdict.map()?;
    verdict.shift_remove("proof");
    Ok(Proof { compact: field.string()?, verdict })
}

fn decode_call(field: Field<'_>) -> Result<Call, Fault> {
    let mut object = field.object()?;
    Ok(Call {
        caller_timeout: None,
        priority: Priority::Normal,
        door: Door::A2g,
        agent: object.read("agent_did")?,
        intent: object.read("intent_id")?,
        is_new: false,
        charge: a2g_types::memory::Charge::default(),
        parent: None,
        caller_tools: None,
        session: object.read_nullable::<SessionRequest>("session")?.map(CallSession::from),
        tool: object.read("tool")?,
        arguments: object.read("arguments")?,
        context: object.read_nullable("context")?,
    })
}
