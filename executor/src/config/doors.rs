//! The doors of the other protocols, as the operator wants them.

use super::{Wrong, file, wrong};
use crate::call::Door;
use crate::ident::AgentDid;
use crate::serve::{DoorSettings, Listen, OpenTo};

/// The doors that are served beside A2G; `None` is one that is switched off.
#[derive(Debug, Clone)]
pub struct Doors {
    /// sovereign JSON-RPC 3.0.
    pub sovereign: Option<DoorSettings>,
}

impl Doors {
    pub(super) fn check(written: file::Doors) -> Result<Self, Wrong> {
        let file::Doors { sovereign } = written;
        Ok(Self { sovereign: door(Door::Sovereign, "doors.sovereign.agent", sovereign)? })
    }

    /// A door that is open to everybody is for local callers only.
    pub(super) fn check_reach(&self, listen: &Listen) -> Result<(), Wrong> {
        let Self { sovereign } = self;
        let doors = [("doors.sovereign.open_to", sovereign.as_ref())];
        let open = doors.into_iter().find(|(_, door)| door.is_some_and(|d| d.open_to == OpenTo::Everybody));
        match open {
            Some((key, _)) if !listen.is_local() => Err(wrong(key)(&format_args!(
                "is `everybody`, and others can call {listen}: only a loopback address or a socket is opened like that"
            ))),
            Some(_) | None => Ok(()),
        }
    }
}

fn door(door: Door, key: &'static str, written: file::Door) -> Result<Option<DoorSettings>, Wrong> {
    let file::Door { enabled, open_to, agent } = written;
    let agent = agent.unwrap_or_else(|| format!("did:a2g:agent:1.0:{door}"));
    let agent = AgentDid::parse(&agent).map_err(|error| wrong(key)(&error))?;
    let open_to = match open_to {
        file::OpenTo::Callers => OpenTo::Callers,
        file::OpenTo::Everybody => OpenTo::Everybody,
    };
    Ok(enabled.then_some(DoorSettings { open_to, agent }))
}
