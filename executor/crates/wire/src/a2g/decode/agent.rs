//! The messages from an agent or its executor to a governor: registration, heartbeat and report. This is the receiving
//! side, which the bundled governor, the executor's A2G door and the tests use.

use crate::field::{Field, Object};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::outcome::Status;
use serde_json::{Map, Value};

/// The params of `a2g/register`.
#[derive(Debug, Clone, PartialEq)]
pub struct Registration {
    /// The agent that registers.
    pub agent: AgentDid,
    /// The agent's public key, as sent.
    pub public_key: Option<String>,
    /// The requested tools, as sent.
    pub capabilities_requested: Vec<String>,
    /// The agent's description of itself, as sent.
    pub metadata: Option<Map<String, Value>>,
}

/// The params of `a2g/heartbeat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The agent of the heartbeat.
    pub agent: AgentDid,
    /// The executor's uptime, in seconds.
    pub uptime_seconds: u64,
    /// The number of running tools.
    pub running: u64,
    /// The number of waiting calls.
    pub queued: u64,
    /// The total number of receipts in the journal and the hash of the last one, if the heartbeat contains them.
    pub journal: Option<(u64, String)>,
}

/// The members of a report that a governor needs to store it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportHead {
    /// The agent of the call.
    pub agent: AgentDid,
    /// The intent that ran.
    pub intent: IntentId,
    /// The status of the run.
    pub status: Status,
}

/// Decodes the params of `a2g/register`.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer into `params`; [`Fault::Parse`] for text that is not JSON.
pub fn registration(params: &str) -> Result<Registration, Fault> {
    let mut object = Object::parse(params)?;
    let requested = object.take_unless_null("capabilities_requested")?;
    Ok(Registration {
        agent: object.require("agent_did")?.parse_with(AgentDid::parse)?,
        public_key: object.take_unless_null("public_key")?.map(|field| field.string()).transpose()?,
        capabilities_requested: requested.map(Field::strings).transpose()?.unwrap_or_default(),
        metadata: object.take_unless_null("metadata")?.map(|field| field.map()).transpose()?,
    })
}

/// Decodes the params of `a2g/heartbeat`.
///
/// # Errors
/// As [`registration`].
pub fn heartbeat(params: &str) -> Result<Heartbeat, Fault> {
    let mut object = Object::parse(params)?;
    let agent = object.require("agent_did")?.parse_with(AgentDid::parse)?;
    let mut take_count = |name| object.require(name)?.integer(0, u64::MAX);
    Ok(Heartbeat {
        agent,
        uptime_seconds: take_count("uptime_seconds")?,
        running: take_count("running")?,
        queued: take_count("queued")?,
        journal: object.take_unless_null("journal")?.map(decode_journal).transpose()?,
    })
}

/// Decodes the agent in the params of an `a2g/heartbeat` from an agent that is not an executor. The protocol defines
/// no other member of this message.
///
/// # Errors
/// As [`registration`].
pub fn agent_heartbeat(params: &str) -> Result<AgentDid, Fault> {
    Object::parse(params)?.require("agent_did")?.parse_with(AgentDid::parse)
}

/// The count and the root of a journal. The signature is ignored: it is for the parties that store the checkpoint.
fn decode_journal(member: Field<'_>) -> Result<(u64, String), Fault> {
    let mut object = member.object()?;
    let count = object.require("count")?.integer(0, u64::MAX)?;
    let root = object.require("root")?.string()?;
    Ok((count, root))
}

/// Decodes the params of `a2g/report`. All members that the A2G document defines are checked, and only the head is
/// returned; others, such as `usage`, are ignored. All of `metrics` is optional, because the reference SDKs send only
/// some of its members, or none.
///
/// # Errors
/// As [`registration`].
pub fn report(params: &str) -> Result<ReportHead, Fault> {
    let mut object = Object::parse(params)?;
    let head = ReportHead {
        agent: object.require("agent_did")?.parse_with(AgentDid::parse)?,
        intent: object.require("intent_id")?.parse_with(IntentId::parse)?,
        status: object.require("status")?.enum_variant::<Status>()?,
    };
    if let Some(error) = object.take_unless_null("error")? {
        error.string()?;
    }
    if let Some(metrics) = object.take_unless_null("metrics")? {
        check_metrics(metrics)?;
    }
    Ok(head)
}

fn check_metrics(field: Field<'_>) -> Result<(), Fault> {
    let mut object = field.object()?;
    for name in ["duration_ms", "memory_used_mb"] {
        object.take_unless_null(name)?.map(|field| field.integer(0, u64::MAX)).transpose()?;
    }
    object.take_unless_null("cpu_percent")?.map(|field| field.number(0.0, f64::INFINITY)).transpose()?;
    Ok(())
}
