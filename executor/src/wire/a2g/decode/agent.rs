//! What an agent's executor tells its governor: registration, heartbeat and report. This is the
//! governor's side, which the bundled governor and the tests use.

use crate::fault::Fault;
use crate::ident::{AgentDid, IntentId};
use crate::outcome::Status;
use crate::wire::field::{Field, Object};
use serde_json::{Map, Value};

/// The params of `a2g/register`.
#[derive(Debug, Clone, PartialEq)]
pub struct Registration {
    /// The agent that registers.
    pub agent: AgentDid,
    /// Its public key, as sent.
    pub public_key: Option<String>,
    /// The tools that it asks for, as sent.
    pub capabilities_requested: Vec<String>,
    /// What it says about itself.
    pub metadata: Option<Map<String, Value>>,
}

/// The params of `a2g/heartbeat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The agent that is alive.
    pub agent: AgentDid,
    /// How long its executor has been up.
    pub uptime_seconds: u64,
    /// How many tools are running.
    pub running: u64,
    /// How many calls wait.
    pub queued: u64,
    /// How many receipts its journal has ever had, and the hash of the last one, when it says so.
    pub journal: Option<(u64, String)>,
}

/// What a governor needs of a report to file it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportHead {
    /// The agent that asked.
    pub agent: AgentDid,
    /// The intent that ran.
    pub intent: IntentId,
    /// How it ended.
    pub status: Status,
}

/// Reads the params of `a2g/register`.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer into `params`; [`Fault::Parse`] for text that is not JSON.
pub fn register(params: &str) -> Result<Registration, Fault> {
    let mut object = Object::root(params)?;
    let requested = object.take_unless_null("capabilities_requested")?;
    Ok(Registration {
        agent: object.require("agent_did")?.parse_with(AgentDid::parse)?,
        public_key: object.take_unless_null("public_key")?.map(|field| field.string()).transpose()?,
        capabilities_requested: requested.map(Field::strings).transpose()?.unwrap_or_default(),
        metadata: object.take_unless_null("metadata")?.map(|field| field.map()).transpose()?,
    })
}

/// Reads the params of `a2g/heartbeat`.
///
/// # Errors
/// As [`register`].
pub fn heartbeat(params: &str) -> Result<Heartbeat, Fault> {
    let mut object = Object::root(params)?;
    let agent = object.require("agent_did")?.parse_with(AgentDid::parse)?;
    let mut count = |name| object.require(name)?.integer(0, u64::MAX);
    Ok(Heartbeat {
        agent,
        uptime_seconds: count("uptime_seconds")?,
        running: count("running")?,
        queued: count("queued")?,
        journal: object.take_unless_null("journal")?.map(journal).transpose()?,
    })
}

/// Reads the params of the `a2g/heartbeat` of an agent that is no executor: the agent. The protocol names the message and
/// no other member of it.
///
/// # Errors
/// As [`register`].
pub fn agent_heartbeat(params: &str) -> Result<AgentDid, Fault> {
    Object::root(params)?.require("agent_did")?.parse_with(AgentDid::parse)
}

/// The count and the root of a journal. A signature is for whoever keeps it.
fn journal(member: Field<'_>) -> Result<(u64, String), Fault> {
    let mut object = member.object()?;
    let count = object.require("count")?.integer(0, u64::MAX)?;
    let root = object.require("root")?.string()?;
    Ok((count, root))
}

/// Reads the params of `a2g/report`. All members of the document are checked, and of them only the
/// head is kept; others, such as `usage`, are ignored. The reference's SDKs measure a part of `metrics`, or nothing.
///
/// # Errors
/// As [`register`].
pub fn report(params: &str) -> Result<ReportHead, Fault> {
    let mut object = Object::root(params)?;
    let head = ReportHead {
        agent: object.require("agent_did")?.parse_with(AgentDid::parse)?,
        intent: object.require("intent_id")?.parse_with(IntentId::parse)?,
        status: object.require("status")?.one_of::<Status>()?,
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
