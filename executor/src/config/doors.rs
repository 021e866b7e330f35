//! The doors of the other protocols, as the operator wants them.

use super::{Wrong, file, wrong};
use crate::call::Door;
use crate::capability::HostPattern;
use crate::ident::AgentDid;
use crate::serve::a2a::{A2aSettings, RateLimits};
use crate::serve::{DoorSettings, Listen, OpenTo};
use crate::wire::a2a::Dialect;

/// The doors that are served beside A2G; `None` is one that is switched off.
#[derive(Debug, Clone)]
pub struct Doors {
    /// A2A 0.3.0.
    pub a2a: Option<A2aSettings>,
    /// Whose webhooks it tells; nobody's when empty.
    pub webhook_domains: Vec<HostPattern>,
    /// sovereign JSON-RPC 3.0.
    pub sovereign: Option<DoorSettings>,
}

impl Doors {
    pub(super) fn check(written: file::Doors) -> Result<Self, Wrong> {
        let file::Doors { a2a: written_a2a, sovereign } = written;
        let domains = written_a2a.webhook_domains.iter().map(|domain| HostPattern::parse(domain));
        let webhook_domains = domains.collect::<Result<_, _>>();
        let webhook_domains = webhook_domains.map_err(|error| wrong("doors.a2a.webhook_domains")(&error))?;
        Ok(Self {
            a2a: a2a(written_a2a)?,
            webhook_domains,
            sovereign: door(Door::Sovereign, "doors.sovereign.agent", sovereign)?,
        })
    }

    /// A door that is open to everybody is for local callers only.
    pub(super) fn check_reach(&self, listen: &Listen) -> Result<(), Wrong> {
        let Self { a2a, webhook_domains: _, sovereign } = self;
        let doors = [
            ("doors.a2a.open_to", a2a.as_ref().map(|a2a| &a2a.door)),
            ("doors.sovereign.open_to", sovereign.as_ref()),
        ];
        let open = doors.into_iter().find(|(_, door)| door.is_some_and(|d| d.open_to == OpenTo::Everybody));
        match open {
            Some((key, _)) if !listen.is_local() => Err(wrong(key)(&format_args!(
                "is `everybody`, and others can call {listen}: only a loopback address or a socket is opened like that"
            ))),
            Some(_) | None => Ok(()),
        }
    }
}

fn a2a(written: file::A2aDoor) -> Result<Option<A2aSettings>, Wrong> {
    let file::A2aDoor {
        enabled,
        open_to,
        agent,
        dialect,
        requests_per_minute: per_minute,
        requests_per_hour: per_hour,
        requests_at_once: at_once,
        webhook_domains: _,
    } = written;
    let limits = [
        ("doors.a2a.requests_per_minute", per_minute),
        ("doors.a2a.requests_per_hour", per_hour),
        ("doors.a2a.requests_at_once", at_once),
    ];
    if let Some((key, _)) = limits.into_iter().find(|(_, limit)| *limit == 0) {
        return Err(wrong(key)(&"must be at least 1"));
    }
    let dialect = match dialect {
        file::Dialect::A2a => Dialect::A2a,
        file::Dialect::Acp => Dialect::Acp,
    };
    let limits = RateLimits { per_minute, per_hour, at_once };
    let door = door(Door::A2a, "doors.a2a.agent", file::Door { enabled, open_to, agent })?;
    Ok(door.map(|door| A2aSettings { door, dialect, limits }))
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
