//! What an executor keeps with an intent, and what people and operators select it by.

use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::AbortReason;
use std::fmt::Debug;

/// The values that an executor keeps with an intent. Nothing here depends on them.
pub trait Content: Debug {
    /// A call that waits for a person.
    type Call: Debug;
    /// The approval of a call that could not run immediately.
    type Approval: Debug + Clone;
    /// One approval of a call that needs several.
    type PartialApproval: Debug;
    /// A claimed call.
    type Run: Debug + Abortable;
}

/// Something that runs, or is about to, and can be told to end.
pub trait Abortable {
    /// Ends it, now or as soon as it begins.
    fn abort(&self, reason: AbortReason);
}

/// The parts of a call by which people and operators select it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The agent.
    pub agent: AgentDid,
    /// The tool.
    pub tool: ToolName,
    /// The run that makes the call, if it is a nested one.
    pub parent: Option<IntentId>,
}
