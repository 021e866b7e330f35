//! Access control that the doors of protocols other than A2G share: authentication, and the agent of a call.
//!
//! A door only decodes its protocol. The port authenticates its callers, and [`with_caller`] decides for which
//! agents they may act.

use a2g_core::run::Executor;
use a2g_govern::Caller;
use a2g_types::call::{Call, Door};
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, ToolName, excerpt};
use a2g_types::session::{CallSession, SessionRequest};
use a2g_types::tool::Descriptor;
use axum::Router;
use axum::http::request::Parts;
use serde_json::{Map, Value};

/// The router of another protocol on the port of the A2G door.
pub struct ProtocolRouter {
    /// The paths of the protocol. Their handlers find the `Arc<`[`Caller`]`>` and the
    /// [`BufferedBody`](crate::body::BufferedBody) in the request's extensions.
    pub routes: Router,
    /// The authentication that these paths require.
    pub auth: AuthPolicy,
}

/// Marks, as an extension, a streamed answer whose door itself repeatedly authenticates the caller, so that the port
/// does not. A2E needs this, because a later handshake may present another token.
#[derive(Debug, Clone, Copy)]
pub struct SelfReauthenticating;

/// The callers that a door is open to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoorAccess {
    /// Callers in the operator's list, identified by `Authorization: Bearer …`, `X-API-Key` or a client certificate.
    Callers,
    /// Every client, which may act for any agent.
    Public,
}

/// Returns `true` for the head of a request of somebody that the door knows.
pub type IsSignedIn = Box<dyn Fn(&Parts) -> bool + Send + Sync>;

/// The side that authenticates a request, and the side that answers an unknown caller. The rate of requests of unknown
/// callers is limited by the port for all of them.
pub enum AuthPolicy {
    /// The port authenticates, and answers unknown callers itself.
    Required(DoorAccess),
    /// The port authenticates, and the door answers unknown callers in its own format: `Option<Arc<`[`Caller`]`>>` is
    /// in a request's extensions. The body of an unknown caller is not read.
    Delegated(DoorAccess),
    /// No authentication by the port: the paths read no body, or their handlers authenticate the sender, and bound the
    /// body of a sender that is unknown.
    Public,
    /// As [`Self::Public`], for a door that knows some senders by other credentials than a caller's.
    Session(IsSignedIn),
}

/// The operator's settings that every door has.
#[derive(Debug, Clone)]
pub struct DoorSettings {
    /// The callers that may use the door.
    pub access: DoorAccess,
    /// The agent of a call that names none, if its caller has more than one agent.
    pub agent: AgentDid,
}

impl DoorSettings {
    /// The agent of a call. `claimed` is the name in the message: a DID is taken verbatim, and any other name becomes a
    /// DID of this door, such as `did:a2e:my%20agent`. [`with_caller`] then checks that the caller may act for it.
    ///
    /// # Errors
    /// [`Fault::InvalidRequest`] if the name does not fit into a DID.
    pub fn agent_of(&self, door: Door, caller: &Caller, claimed: Option<&str>) -> Result<AgentDid, Fault> {
        match claimed {
            Some(name) => agent_did(door, name),
            None => Ok(caller.only_agent().unwrap_or(&self.agent).clone()),
        }
    }
}

/// A call with the tools that its caller's token reaches, which the executor checks for it and for the calls
/// of its run, and with its caller's name if it asks for a session.
///
/// # Errors
/// [`Fault::Refused`] with `caller_unauthorized`, if the caller may not act for the agent of the call.
pub fn with_caller(executor: &Executor, caller: &Caller, call: Call) -> Result<Call, Fault> {
    if !caller.may_act_as(&call.agent) {
        let message = foreign_agent_message(caller, &call.agent);
        return Err(executor.refusals.refuse(Some(&call), BlockedBy::CallerUnauthorized, message));
    }
    let session = call.session.map(|session| CallSession { caller: caller.name().to_owned(), ..session });
    Ok(Call { caller_tools: Some(caller.tools().clone()), session, ..call })
}

/// Takes the request for a session out of the arguments of a call, if its tool is listed with that argument.
/// Any other tool keeps an argument of the name.
///
/// # Errors
/// [`Fault::InvalidParams`] if the argument is neither `new` nor a handle.
pub fn take_session_argument(
    executor: &Executor,
    tool: &ToolName,
    arguments: &mut Map<String, Value>,
) -> Result<Option<CallSession>, Fault> {
    let tools = executor.catalogue.tools();
    let listed = tools.iter().find(|listed| listed.name == *tool);
    if !listed.is_some_and(Descriptor::takes_session_argument) {
        return Ok(None);
    }
    let invalid = |problem: String| Fault::invalid("/arguments/session", format!("`session`: {problem}"));
    match arguments.shift_remove(Descriptor::SESSION_ARGUMENT) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => {
            let request = SessionRequest::parse(&text).map_err(|error| invalid(error.to_string()))?;
            Ok(Some(request.into()))
        }
        Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            Err(invalid("must be `new`, or the handle of a session".to_owned()))
        }
    }
}

/// Returns `true` if the caller's scope and the agent's policies reach a tool, so that a list for them shows it.
pub fn may_see(executor: &Executor, caller: &Caller, agent: &AgentDid, tool: &ToolName) -> bool {
    caller.tools().includes(tool) && executor.policies.may_reach(agent, tool)
}

/// The message for a caller that names an agent for which it may not act.
pub fn foreign_agent_message(caller: &Caller, agent: &AgentDid) -> String {
    format!(
        "`{}` may not send intents in the name of `{agent}`: add the agent to the caller's `agents`",
        caller.name()
    )
}

/// Maps an agent's name in another protocol to a DID. Percent-encoding keeps two names from becoming the same DID.
///
/// # Errors
/// [`Fault::InvalidRequest`] if the name does not fit into a DID.
pub fn agent_did(door: Door, name: &str) -> Result<AgentDid, Fault> {
    if name.starts_with("did:") {
        return AgentDid::parse(name).map_err(|error| Fault::InvalidRequest(error.to_string()));
    }
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let escaped = name.bytes().fold(String::new(), |mut text, byte| {
        if is_unreserved(byte) {
            text.push(char::from(byte))
        } else {
            text.push_str(&format!("%{byte:02X}"))
        }
        text
    });
    let to_fault = |_| {
        Fault::InvalidRequest(format!("`{}` is empty or too long for the name of an agent", excerpt(name)))
    };
    AgentDid::parse(&format!("did:{door}:{escaped}")).map_err(to_fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_name_maps_to_a_did_of_its_door() {
        let did = |door, name| agent_did(door, name).map(|did| did.to_string()).ok();
        assert_eq!(did(Door::A2e, "planner").as_deref(), Some("did:a2e:planner"));
        assert_eq!(did(Door::Nexus, "a:b/c d%").as_deref(), Some("did:nexus:a%3Ab%2Fc%20d%25"));
        assert_eq!(did(Door::A2e, "did:aeon:x:1").as_deref(), Some("did:aeon:x:1"));
        assert_eq!(did(Door::A2e, "did:"), None);
        assert_eq!(did(Door::A2e, ""), None);
        assert_eq!(did(Door::A2e, &"é".repeat(100)), None);
    }

    #[test]
    fn a_call_that_names_no_agent_gets_the_doors_default() {
        let agent = AgentDid::parse("did:a2g:agent:1.0:sovereign").unwrap();
        let settings = DoorSettings { access: DoorAccess::Callers, agent: agent.clone() };
        let caller = Caller::any_agent();
        assert_eq!(settings.agent_of(Door::Sovereign, &caller, None).unwrap(), agent);
        let named = settings.agent_of(Door::Sovereign, &caller, Some("x")).unwrap();
        assert_eq!(named.as_str(), "did:sovereign:x");
    }
}
