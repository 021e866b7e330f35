//! The configuration of the doors of the other protocols.

use super::error::{InvalidValueError, invalid};
use super::features::has_door;
use super::file;
use super::values::{check_count, check_rate, check_seconds, check_size};
use a2g_capability::HostPattern;
use a2g_http::{
    A2aSettings, A2eSettings, DoorAccess, DoorSettings, ListenAddress, McpSettings, NexusSettings, RateLimits,
};
use a2g_types::call::Door;
use a2g_types::ident::AgentDid;
use a2g_wire::a2a::Dialect;
use a2g_wire::listing::{DESCRIBE_TOOLS, Listing};
use a2g_wire::nexus::message::SignatureScope;
use std::path::{Path, PathBuf};

/// The doors that are served besides A2G; `None`: the door is disabled.
#[derive(Debug, Clone)]
pub struct Doors {
    /// A2A 0.3.0.
    pub a2a: Option<A2aSettings>,
    /// The hosts that A2A webhooks may name; empty: webhooks are disabled.
    pub webhook_domains: Vec<HostPattern>,
    /// A2E 1.0.
    pub a2e: Option<A2eSettings>,
    /// The Model Context Protocol.
    pub mcp: Option<McpSettings>,
    /// Genesis Nexus.
    pub nexus: Option<NexusSettings>,
    /// The sovereign protocol, JSON-RPC 3.0.
    pub sovereign: Option<DoorSettings>,
}

impl Doors {
    pub(super) fn parse(
        section: file::Doors,
        resolve: impl Fn(PathBuf) -> PathBuf,
    ) -> Result<Self, InvalidValueError> {
        let file::Doors { a2a: section_a2a, a2e, mcp, nexus, sovereign } = section;
        let domains = section_a2a.webhook_domains.iter().map(|domain| HostPattern::parse(domain));
        let parsed = domains.collect::<Result<_, _>>();
        let webhook_domains = parsed.map_err(|error| invalid("doors.a2a.webhook_domains")(&error))?;
        Ok(Self {
            a2a: parse_a2a(section_a2a)?,
            webhook_domains,
            a2e: parse_a2e(a2e)?,
            mcp: parse_mcp(mcp)?,
            nexus: parse_nexus(nexus, resolve)?,
            sovereign: parse_sovereign(sovereign)?,
        })
    }

    /// Checks that no tool of the catalogue is named [`DESCRIBE_TOOLS`] if the executor lists a tool of that name itself.
    ///
    /// # Ambient Authority
    /// Looks for the tool in the catalogue's folder.
    ///
    /// # Errors
    /// If a tool has that name: a host could not tell which of the two it calls.
    pub(super) fn check_listing(&self, catalog: &Path) -> Result<(), InvalidValueError> {
        let is_code = self.mcp.as_ref().is_some_and(|mcp| mcp.listing == Listing::Code);
        if !is_code || !catalog.join(DESCRIBE_TOOLS).join("tool.toml").is_file() {
            return Ok(());
        }
        Err(invalid("doors.mcp.listing")(&format_args!(
            "is `code`, which lists `{DESCRIBE_TOOLS}` as the executor's own, and `{}` has a tool of that name: rename or \
             remove the tool",
            catalog.display()
        )))
    }

    /// Checks that a door without authentication is reachable only from this machine.
    pub(super) fn check_exposure(&self, listen: &ListenAddress) -> Result<(), InvalidValueError> {
        let Self { a2a, webhook_domains: _, a2e, mcp, nexus, sovereign } = self;
        let doors = [
            ("doors.a2a.open_to", a2a.as_ref().map(|a2a| a2a.door.access)),
            ("doors.a2e.open_to", a2e.as_ref().map(|a2e| a2e.door.access)),
            ("doors.mcp.open_to", mcp.as_ref().map(|mcp| mcp.door.access)),
            ("doors.nexus.open_to", nexus.as_ref().map(|nexus| nexus.access)),
            ("doors.sovereign.open_to", sovereign.as_ref().map(|door| door.access)),
        ];
        let open = doors.into_iter().find(|(_, access)| *access == Some(DoorAccess::Public));
        match open {
            Some((key, _)) if !listen.is_local() => Err(invalid(key)(&format_args!(
                "is `everybody`, which needs a loopback address or a Unix socket: other machines can call {listen}"
            ))),
            Some(_) | None => Ok(()),
        }
    }
}

fn parse_a2e(section: file::A2e) -> Result<Option<A2eSettings>, InvalidValueError> {
    let file::A2e {
        enabled,
        open_to,
        agent,
        max_parallel,
        max_sessions,
        max_sessions_per_caller,
        reconnect_seconds,
        idle_seconds,
    } = section;
    let door = parse_door(Door::A2e, "doors.a2e.agent", DoorKeys { enabled, open_to, agent })?;
    let max_sessions = check_size("doors.a2e.max_sessions", max_sessions, 100_000)?;
    let per_caller = check_size("doors.a2e.max_sessions_per_caller", max_sessions_per_caller, 100_000)?;
    let settings = |door| {
        Ok(A2eSettings {
            door,
            max_parallel: check_size("doors.a2e.max_parallel", max_parallel, 1024)?,
            max_sessions,
            max_sessions_per_caller: per_caller,
            reconnect: check_seconds("doors.a2e.reconnect_seconds", reconnect_seconds, 86_400)?,
            idle: check_seconds("doors.a2e.idle_seconds", idle_seconds, 86_400)?,
        })
    };
    door.map(settings).transpose()
}

fn parse_mcp(section: file::Mcp) -> Result<Option<McpSettings>, InvalidValueError> {
    let file::Mcp { enabled, open_to, agent, listing, max_sessions, max_sessions_per_caller, idle_seconds } =
        section;
    let door = parse_door(Door::Mcp, "doors.mcp.agent", DoorKeys { enabled, open_to, agent })?;
    let max_sessions = check_size("doors.mcp.max_sessions", max_sessions, 100_000)?;
    let per_caller = check_size("doors.mcp.max_sessions_per_caller", max_sessions_per_caller, 100_000)?;
    let idle = check_seconds("doors.mcp.idle_seconds", idle_seconds, 86_400)?;
    Ok(door.map(|door| McpSettings {
        door,
        listing: match listing {
            file::Listing::Tools => Listing::Tools,
            file::Listing::Code => Listing::Code,
        },
        max_sessions,
        max_sessions_per_caller: per_caller,
        idle,
        // Set by `Config`, which has the section of the server.
        issuers: Vec::new(),
        scheme: "http",
    }))
}

fn parse_a2a(section: file::A2a) -> Result<Option<A2aSettings>, InvalidValueError> {
    let file::A2a {
        enabled,
        open_to,
        agent,
        dialect,
        requests_per_minute: per_minute,
        requests_per_hour: per_hour,
        requests_at_once: concurrent,
        webhook_domains: _,
    } = section;
    let limits = RateLimits {
        per_minute: check_rate("doors.a2a.requests_per_minute", per_minute)?,
        per_hour: check_rate("doors.a2a.requests_per_hour", per_hour)?,
        concurrent: check_count("doors.a2a.requests_at_once", concurrent, 1, u32::MAX.into())?,
    };
    let dialect = match dialect {
        file::Dialect::A2a => Dialect::A2a,
        file::Dialect::Acp => Dialect::Acp,
    };
    let door = parse_door(Door::A2a, "doors.a2a.agent", DoorKeys { enabled, open_to, agent })?;
    Ok(door.map(|door| A2aSettings { door, dialect, limits }))
}

fn parse_sovereign(section: file::Sovereign) -> Result<Option<DoorSettings>, InvalidValueError> {
    let file::Sovereign { enabled, open_to, agent } = section;
    parse_door(Door::Sovereign, "doors.sovereign.agent", DoorKeys { enabled, open_to, agent })
}

/// The keys that the sections of most doors have.
struct DoorKeys {
    enabled: bool,
    open_to: file::DoorAccess,
    agent: Option<String>,
}

fn parse_door(
    door: Door,
    key: &'static str,
    keys: DoorKeys,
) -> Result<Option<DoorSettings>, InvalidValueError> {
    let DoorKeys { enabled, open_to, agent } = keys;
    if enabled && !has_door(door) {
        return Err(missing_door(key, door));
    }
    let name = agent.unwrap_or_else(|| format!("did:a2g:agent:1.0:{door}"));
    let agent = AgentDid::parse(&name).map_err(|error| invalid(key)(&error))?;
    Ok(enabled.then_some(DoorSettings { access: parse_access(open_to), agent }))
}

fn parse_access(section: file::DoorAccess) -> DoorAccess {
    match section {
        file::DoorAccess::Callers => DoorAccess::Callers,
        file::DoorAccess::Everybody => DoorAccess::Public,
    }
}

fn parse_nexus(
    section: file::Nexus,
    resolve: impl Fn(PathBuf) -> PathBuf,
) -> Result<Option<NexusSettings>, InvalidValueError> {
    let file::Nexus { open_to, id, key_file, signature_scope, heartbeat_seconds } = section;
    let heartbeat = check_seconds("doors.nexus.heartbeat_seconds", heartbeat_seconds, 3600)?;
    if id.as_deref().is_some_and(|id| id.is_empty() || id.len() > 200) {
        return Err(invalid("doors.nexus.id")(&"has to be 1 to 200 bytes long"));
    }
    if key_file.is_some() && !has_door(Door::Nexus) {
        return Err(missing_door("doors.nexus.key_file", Door::Nexus));
    }
    Ok(key_file.map(|key_file| NexusSettings {
        access: parse_access(open_to),
        id,
        key_file: resolve(key_file),
        scope: match signature_scope {
            file::SignatureScope::Header => SignatureScope::Header,
            file::SignatureScope::Full => SignatureScope::Full,
        },
        heartbeat,
    }))
}

fn missing_door(key: &'static str, door: Door) -> InvalidValueError {
    invalid(key)(&format_args!(
        "needs the door `{door}`, which this build lacks: disable it, or build with the feature `{door}`"
    ))
}
