//! What policies may read of a call: `context` in Cedar.

use a2g_types::call::Door;
use a2g_types::ident::{AgentDid, ToolName};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use time::OffsetDateTime;

/// A count over the last minute, hour and day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// The last 60 seconds.
    pub minute: u64,
    /// The last 60 minutes.
    pub hour: u64,
    /// The last 24 hours.
    pub day: u64,
}

impl Window {
    /// A count of what has happened within the last minute, and nothing before it.
    #[must_use]
    pub fn of_each(count: u64) -> Self {
        Self { minute: count, hour: count, day: count }
    }
}

/// The past of an agent, from its calls of the last 24 hours. Calls in progress count as having done what they may do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// The calls that were allowed.
    pub calls: Window,
    /// The calls that were denied.
    pub denials: Window,
    /// Those of the same subject: calls of the tool, calls that were granted the folder, requests to the host, requests
    /// with the secret.
    pub same: Window,
    /// Bytes written to files.
    pub written_bytes: Window,
    /// The tools of which a call ended with SUCCESS.
    pub succeeded: BTreeSet<ToolName>,
    /// The hosts of policies to which a request was sent.
    pub reached: BTreeSet<String>,
    /// The folders of policies of which a call was granted something, with those around them.
    pub read: BTreeSet<String>,
}

/// The subject of [`History::same`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    /// Calls of a tool.
    Tool(&'a ToolName),
    /// Calls that were granted a folder of a policy.
    Folder(&'a str),
    /// Requests to a host of a policy, or below it.
    Host(&'a str),
    /// Requests with a secret.
    Secret(&'a str),
}

/// The past of all agents.
pub trait Past {
    /// The facts of one agent at this time.
    fn history(&self, agent: &AgentDid, subject: Subject<'_>, now: OffsetDateTime) -> History;
}

/// The same past for every agent and subject. In that of `History::default()`, nothing has happened.
impl Past for History {
    fn history(&self, _agent: &AgentDid, _subject: Subject<'_>, _now: OffsetDateTime) -> Self {
        self.clone()
    }
}

/// The facts of a call.
#[derive(Debug, Clone)]
pub struct CallFacts<'a> {
    /// The agent of the call.
    pub agent: &'a AgentDid,
    /// Its tool.
    pub tool: &'a ToolName,
    /// Its arguments.
    pub arguments: &'a Map<String, Value>,
    /// The arguments that are presumably paths, absolute and without `.` and `..`.
    pub paths: Vec<String>,
    /// The number of runs above the call.
    pub depth: u32,
    /// Its door; `None` if a governor is not told.
    pub door: Option<Door>,
    /// `true` if it is a turn of a session.
    pub is_in_session: bool,
    /// The tool of the run that makes it.
    pub parent: Option<ToolName>,
    /// The risk score, from 0 to 100.
    pub risk_score: u8,
    /// The names of the heuristics that match.
    pub threats: BTreeSet<String>,
    /// The time of the decision.
    pub now: OffsetDateTime,
    /// All texts of the arguments, normalized; `None` if no policy reads them.
    pub text: Option<&'a str>,
    /// The length of the longest text in bytes.
    pub longest_text: u64,
}
