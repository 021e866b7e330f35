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
    Ok(Registration {
        agent: object.read("agent_did")?,
        public_key: object.read_nullable("public_key")?,
        capabilities_requested: object.read_nullable("capabilities_requested")?.unwrap_or_default(),
        metadata: object.read_nullable("metadata")?,
    })
}

/// Decodes the params of `a2g/heartbeat`.
///
/// # Errors
/// As [`registration`].
pub fn heartbeat(params: &str) -> Result<Heartbeat, Fault> {
    let mut object = Object::parse(params)?;
    Ok(Heartbeat {
        agent: object.read("agent_did")?,
        uptime_seconds: read_count(&mut object, "uptime_seconds")?,
        running: read_count(&mut object, "running")?,
        queued: read_count(&mut object, "queued")?,
        journal: object.read_nullable_with("journal", decode_journal)?,
    })
}

fn read_count(object: &mut Object<'_>, name: &'static str) -> Result<u64, Fault> {
    object.require(name)?.integer(0, u64::MAX)
}

/// Decodes the agent in the params of an `a2g/heartbeat` from an agent that is not an executor. The protocol defines
/// no other member of this message.
///
/// # Errors
/// As [`registration`].
pub fn agent_heartbeat(params: &str) -> Result<AgentDid, Fault> {
    Object::parse(params)?.read("agent_did")
}

/// The count and the root of a journal. The signature is ignored: it is for the parties that store the checkpoint.
fn decode_journal(member: Field<'_>) -> Result<(u64, String), Fault> {
    let mut object = member.object()?;
    Ok((read_count(&mut object, "count")?, object.read("root")?))
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
        agent: object.read("agent_did")?,
        intent: object.read("intent_id")?,
        status: object.read("status")?,
    };
    object.read_nullable::<String>("error")?;
    object.read_nullable_with("metrics", check_metrics)?;
    Ok(head)
}

fn check_metrics(field: Field<'_>) -> Result<(), Fault> {
    let mut object = field.object()?;
    for name in ["duration_ms", "memory_used_mb"] {
        object.read_nullable_with(name, |field| field.integer(0, u64::MAX))?;
    }
    object.read_nullable_with("cpu_percent", |field| field.number(0.0, f64::INFINITY))?;
    Ok(())
}
