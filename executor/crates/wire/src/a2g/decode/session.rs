//! The params of `a2g/session/end`.

use crate::field::Object;
use a2g_types::fault::Fault;
use a2g_types::ident::AgentDid;
use a2g_types::session::SessionHandle;

/// The params of `a2g/session/end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionEndParams {
    /// The agent whose session it is.
    pub agent: AgentDid,
    /// The session.
    pub handle: SessionHandle,
}

/// Decodes the params of `a2g/session/end`: `{agent_did, session}`.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer into `params`; [`Fault::Parse`] for text that is not JSON.
pub fn session_end_params(params: &str) -> Result<SessionEndParams, Fault> {
    Object::parse(params)?.read_all(|object| {
        Ok(SessionEndParams { agent: object.read("agent_did")?, handle: object.read("session")? })
    })
}
