//! What the doors of the other protocols have in common: whom they let in, and in whose name a call is made.
//!
//! A door's protocol says what a message means; here is what none of them may decide for itself.

use crate::call::{Call, Door};
use crate::fault::{BlockedBy, Fault};
use crate::govern::Caller;
use crate::ident::{AgentDid, excerpt};
use crate::memory::{self, Charge};
use crate::run::Executor;
use crate::wire::strict_json::{self, JsonBounds};
use axum::Router;
use axum::body::Bytes;

/// The way in of another protocol on the port of the A2G door.
pub struct Doorway {
    /// Its paths. Their handlers find the `Arc<`[`Caller`]`>` and the [`Arrived`] body among the request's
    /// extensions.
    pub routes: Router,
    /// Who lets whom in.
    pub gate: Gate,
}

/// The body of a request.
#[derive(Debug, Clone)]
pub(super) enum Arrived {
    /// All of it, with what it counts for in its caller's share of memory.
    Whole(Bytes, Charge),
    /// It is longer than `server.max_body_bytes`, and was not kept.
    TooLong,
    /// There is no room for its values.
    NoRoom(Fault),
}

impl Arrived {
    /// The body as text that has passed the strict reader.
    ///
    /// # Errors
    /// [`Fault::Parse`] says what is wrong with it; [`Fault::Busy`] when there is no room for it.
    pub(super) fn text(&self, bounds: &JsonBounds) -> Result<&str, Fault> {
        match self {
            Self::Whole(bytes, _) => strict_json::check(bytes, bounds),
            Self::TooLong => Err(bounds.too_long()),
            Self::NoRoom(fault) => Err(fault.clone()),
        }
    }

    /// The share of its caller's memory that it takes.
    pub(super) fn charge(&self) -> Charge {
        match self {
            Self::Whole(_, charge) => charge.clone(),
            Self::TooLong | Self::NoRoom(_) => Charge::default(),
        }
    }
}

/// Messages and answers that take up to this many bytes are not counted, and are taken even when the server holds as
/// much as it may: a cancel is one.
pub(super) const SMALL_MESSAGE_BYTES: u64 = 16 << 10;

/// Counts the values of a message against its caller's share of memory.
///
/// # Errors
/// [`Fault::Busy`] when the server or the caller holds as much as it may.
pub(super) fn charge(caller: &str, message: &[u8]) -> Result<Charge, Fault> {
    let bytes = strict_json::tree_bytes(message);
    if bytes <= SMALL_MESSAGE_BYTES {
        return Ok(Charge::default());
    }
    if !memory::has_room(bytes) {
        return Err(busy(NO_ROOM));
    }
    memory::hold(caller, bytes).map(Charge::from).ok_or_else(no_share)
}

/// The fault of a caller that holds as much as one may.
pub(super) fn no_share() -> Fault {
    busy(NO_SHARE)
}

fn busy(message: &str) -> Fault {
    Fault::Busy { message: message.trim_end().to_owned(), retry_after_ms: NO_ROOM_RETRY_MS }
}

/// The answer to more than a short message when the server holds as much as it may.
pub(super) const NO_ROOM: &str =
    "the executor holds as much as it may (`server.max_memory_mb`) and takes no more than short messages\n";

/// The answer to a caller that holds as much as one may.
pub(super) const NO_SHARE: &str = "your messages and the answers that you have not taken hold as much as one caller's may \
                                   (a share of `server.max_memory_mb`): take the answers, let calls end, and send it again\n";

/// The pause before a caller that found no room should come again.
const NO_ROOM_RETRY_MS: u64 = 1_000;

/// Among the extensions of an answer in pieces: its door itself asks again who is told them, such as by what was
/// shown since.
#[derive(Debug, Clone, Copy)]
pub(super) struct AsksAgain;

/// Whom a door is open to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenTo {
    /// Those whom the executor knows, by `Authorization: Bearer …`, `X-API-Key` or a certificate.
    Callers,
    /// Everybody, each as an agent of any name.
    Everybody,
}

/// Who asks a request's caller who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// The port, before a handler sees the request.
    Port(OpenTo),
    /// The port as well, and the door refuses in words of its own: `Option<Arc<`[`Caller`]`>>` is among a request's
    /// extensions, and of whoever is not known no body is read.
    Door(OpenTo),
    /// Nobody: whoever comes is answered, and nothing that they send is read.
    Open,
}

/// What the operator decided about a door.
#[derive(Debug, Clone)]
pub struct DoorSettings {
    /// Whom it is open to.
    pub open_to: OpenTo,
    /// In whose name calls are made of those who name no agent, and may speak for more than one.
    pub agent: AgentDid,
}

impl DoorSettings {
    /// In whose name a caller makes a call. `claimed` is what the message says: a DID as it is, and any other
    /// name as one of the door's own, `did:a2e:my%20agent`. Whether the caller may, [`in_own_name`] says.
    ///
    /// # Errors
    /// [`Fault::InvalidRequest`] when the name cannot be a DID's.
    pub fn agent_of(&self, door: Door, caller: &Caller, claimed: Option<&str>) -> Result<AgentDid, Fault> {
        match claimed {
            Some(name) => named(door, name),
            None => Ok(caller.only_agent().unwrap_or(&self.agent).clone()),
        }
    }
}

/// Refuses a call in the name of an agent that is not the caller's.
///
/// # Errors
/// `caller_unauthorized`.
pub(super) fn in_own_name(executor: &Executor, caller: &Caller, call: &Call) -> Result<(), Fault> {
    if caller.may_act_as(&call.agent) {
        return Ok(());
    }
    let message = not_in_the_name_of(caller, &call.agent);
    Err(executor.refuse(Some(call), BlockedBy::CallerUnauthorized, message))
}

/// The sentence about a caller that speaks in the name of an agent that is not its own.
pub(super) fn not_in_the_name_of(caller: &Caller, agent: &AgentDid) -> String {
    format!(
        "`{}` does not send intents in the name of `{agent}`: add it to the caller's `agents`",
        caller.name()
    )
}

/// A name that another protocol gives to an agent, as a DID.
pub(super) fn named(door: Door, name: &str) -> Result<AgentDid, Fault> {
    if name.starts_with("did:") {
        return AgentDid::parse(name).map_err(|error| Fault::InvalidRequest(error.to_string()));
    }
    let kept = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let escaped = name.bytes().fold(String::new(), |mut text, byte| {
        if kept(byte) {
            text.push(char::from(byte))
        } else {
            text.push_str(&format!("%{byte:02X}"))
        }
        text
    });
    let refuse = |_| {
        Fault::InvalidRequest(format!("`{}` is too long or empty for the name of an agent", excerpt(name)))
    };
    AgentDid::parse(&format!("did:{door}:{escaped}")).map_err(refuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_becomes_a_did_of_its_door_and_no_other() {
        let did = |door, name| named(door, name).map(|did| did.to_string()).ok();
        assert_eq!(did(Door::A2e, "planner").as_deref(), Some("did:a2e:planner"));
        assert_eq!(did(Door::Nexus, "a:b/c d%").as_deref(), Some("did:nexus:a%3Ab%2Fc%20d%25"));
        assert_eq!(did(Door::A2e, "did:aeon:x:1").as_deref(), Some("did:aeon:x:1"));
        assert_eq!(did(Door::A2e, "did:"), None);
        assert_eq!(did(Door::A2e, ""), None);
        assert_eq!(did(Door::A2e, &"é".repeat(100)), None);
    }

    #[test]
    fn who_names_nobody_speaks_for_the_one_it_may_speak_for() {
        let agent = AgentDid::parse("did:a2g:agent:1.0:sovereign").unwrap();
        let settings = DoorSettings { open_to: OpenTo::Callers, agent: agent.clone() };
        let anybody = Caller::any_agent();
        assert_eq!(settings.agent_of(Door::Sovereign, &anybody, None).unwrap(), agent);
        let named = settings.agent_of(Door::Sovereign, &anybody, Some("x")).unwrap();
        assert_eq!(named.as_str(), "did:sovereign:x");
    }
}
