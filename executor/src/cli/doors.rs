//! The doors besides A2G, made from the configuration: [`DOORS`] has one entry for each.

#![cfg_attr(
    not(all(
        feature = "a2a",
        feature = "a2e",
        feature = "console",
        feature = "mcp",
        feature = "nexus",
        feature = "sovereign"
    )),
    allow(dead_code, reason = "a build may lack any of the doors")
)]

use super::setup::InspectedContainment;
use a2g_capability::HostPattern;
use a2g_config::Config;
use a2g_core::deliver::WebhookPoster;
use a2g_core::run::Executor;
use a2g_govern::Caller;
use a2g_http::{
    CallerDirectory, ConsoleUrl, HttpSettings, ProtocolRouter, Rpc, Tls, serve_stdio as serve_rpc_stdio,
};
use a2g_sandbox::egress::{Egress, WebhookClient};
use a2g_types::call::Door;
use a2g_wire::strict_json::JsonBounds;
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The doors of this build, in the order in which they are opened.
pub(super) const DOORS: &[DoorEntry] = &[
    #[cfg(feature = "a2a")]
    DoorEntry::new(Door::A2a, |parts| Box::pin(a2a::open(parts))),
    #[cfg(feature = "a2e")]
    DoorEntry {
        stdio: |config| {
            let settings = config.doors.a2e.clone()?;
            let serve = move |parts: StdioParts| -> StdioServing {
                let StdioParts { executor, bounds, callers, .. } = parts;
                Box::pin(a2g_door_a2e::serve_a2e_stdio(executor, settings, bounds, callers))
            };
            Some(StdioDoor { peer: Peer::Process, serve: Box::new(serve) })
        },
        ..DoorEntry::new(Door::A2e, |parts| {
            let open = |settings| {
                let executor = Arc::clone(parts.executor);
                let callers = parts.callers.clone();
                a2g_door_a2e::router(executor, settings, parts.config.bounds, callers)
            };
            ready(Ok(OpenDoor::new(parts.config.doors.a2e.clone().map(open))))
        })
    },
    #[cfg(feature = "mcp")]
    DoorEntry {
        stdio: |config| {
            let settings = config.doors.mcp.clone()?;
            let serve = move |parts: StdioParts| -> StdioServing {
                let StdioParts { executor, bounds, journal, input_ended, .. } = parts;
                let caller = Arc::new(Caller::local_person());
                Box::pin(async move {
                    a2g_door_mcp::serve_mcp_stdio(executor, settings, bounds, caller, &journal, input_ended)
                        .await
                })
            };
            Some(StdioDoor { peer: Peer::Host, serve: Box::new(serve) })
        },
        ..DoorEntry::new(Door::Mcp, |parts| {
            let open = |settings| {
                let executor = Arc::clone(parts.executor);
                let console_url = parts.console_url.clone();
                a2g_door_mcp::routers(executor, settings, parts.config.bounds, console_url)
            };
            ready(Ok(OpenDoor::new(parts.config.doors.mcp.clone().map(open).into_iter().flatten())))
        })
    },
    #[cfg(feature = "nexus")]
    DoorEntry {
        check: |config| nexus::keyring(config).map(drop),
        print_rows: nexus::print_rows,
        ..DoorEntry::new(Door::Nexus, |parts| ready(nexus::open(parts)))
    },
    #[cfg(feature = "sovereign")]
    DoorEntry::new(Door::Sovereign, |parts| {
        let open = |settings| {
            let executor = Arc::clone(parts.executor);
            a2g_door_sovereign::router(executor, settings, parts.config.bounds)
        };
        ready(Ok(OpenDoor::new(parts.config.doors.sovereign.clone().map(open))))
    }),
    // The last one: its port may be the server's, or one of its own.
    #[cfg(feature = "console")]
    DoorEntry {
        print_rows: super::console::print_rows,
        ..DoorEntry::new(Door::Console, |parts| Box::pin(super::console::open_door(parts)))
    },
];

/// The making of a door. Each function reads the door's own section of the configuration.
pub(super) struct DoorEntry {
    door: Door,
    /// Opens the door, if it is enabled.
    pub(super) open: for<'a> fn(&'a DoorParts<'a>) -> Opening<'a>,
    /// The door on standard input and output; `None` if it is disabled, or has no such form.
    stdio: fn(&Config) -> Option<StdioDoor>,
    /// Checks the door's files, for `config check`.
    pub(super) check: fn(&Config) -> anyhow::Result<()>,
    /// Prints the door's rows of `config check`.
    pub(super) print_rows: fn(&Config) -> anyhow::Result<()>,
}

impl DoorEntry {
    /// A door that is served over HTTP only, and has no files.
    const fn new(door: Door, open: for<'a> fn(&'a DoorParts<'a>) -> Opening<'a>) -> Self {
        Self { door, open, stdio: |_| None, check: |_| Ok(()), print_rows: |_| Ok(()) }
    }
}

/// The parts of the server that its doors use.
pub(super) struct DoorParts<'a> {
    pub(super) config: &'a Config,
    pub(super) executor: &'a Arc<Executor>,
    pub(super) callers: &'a CallerDirectory,
    pub(super) tls: Option<&'a Arc<Tls>>,
    pub(super) console_url: ConsoleUrl,
    /// The file of the journal.
    pub(super) journal: &'a Path,
    pub(super) contained: &'a InspectedContainment,
    pub(super) has_cgroups: bool,
}

impl DoorParts<'_> {
    /// The settings of a port with these paths.
    pub(super) fn http_settings(&self, protocols: Vec<ProtocolRouter>) -> HttpSettings {
        HttpSettings {
            allowed_hosts: self.config.allowed_hosts.clone(),
            allowed_origins: self.config.allowed_origins.clone(),
            callers: self.callers.clone(),
            clock: Arc::clone(self.executor.clock()),
            tls: self.tls.cloned(),
            connections: self.config.connections,
            pushes: None,
            executor: Some(Arc::clone(self.executor)),
            sessions: self.executor.session_tasks().clone(),
            protocols,
        }
    }
}

/// A door that is being opened.
pub(super) type Opening<'a> = Pin<Box<dyn Future<Output = anyhow::Result<OpenDoor<'a>>> + 'a>>;

/// A door that needs no time to open.
fn ready(opened: anyhow::Result<OpenDoor<'_>>) -> Opening<'_> {
    Box::pin(std::future::ready(opened))
}

/// An open door; a disabled one has nothing.
#[derive(Default)]
pub(super) struct OpenDoor<'a> {
    /// Its paths on the server's port.
    pub(super) routers: Vec<ProtocolRouter>,
    /// Told the origin of the server's port, if that is a TCP port, once it is bound.
    pub(super) on_bound: Option<OnBound<'a>>,
}

/// Takes the origin of a port.
pub(super) type OnBound<'a> = Box<dyn FnOnce(&str) -> anyhow::Result<()> + 'a>;

impl OpenDoor<'_> {
    fn new(routers: impl IntoIterator<Item = ProtocolRouter>) -> Self {
        Self { routers: routers.into_iter().collect(), on_bound: None }
    }
}

/// A door on standard input and output.
pub(super) struct StdioDoor {
    pub(super) peer: Peer,
    pub(super) serve: Box<dyn FnOnce(StdioParts) -> StdioServing>,
}

/// The other end of standard input and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// A process that has no special needs.
    Process,
    /// An agent host, which has started this process for itself, and waits for its end.
    Host,
}

/// The parts of the server that a door on standard input and output uses.
pub(super) struct StdioParts {
    pub(super) executor: Arc<Executor>,
    pub(super) rpc: Rpc,
    pub(super) bounds: JsonBounds,
    pub(super) callers: CallerDirectory,
    /// The process at the other end, where no list of callers matters.
    pub(super) anonymous: Arc<Caller>,
    /// The file of the journal.
    pub(super) journal: PathBuf,
    /// Told that standard input has ended, by a door after which calls that run for long would answer nobody.
    pub(super) input_ended: oneshot::Sender<()>,
}

/// Resolves when standard input has ended and every message is answered.
pub(super) type StdioServing = Pin<Box<dyn Future<Output = std::io::Result<()>> + Send>>;

impl StdioDoor {
    /// The A2G door.
    pub(super) fn a2g() -> Self {
        let serve = |parts: StdioParts| -> StdioServing {
            let StdioParts { executor, rpc, anonymous, .. } = parts;
            Box::pin(async move { serve_rpc_stdio(rpc, anonymous, executor.session_tasks()).await })
        };
        Self { peer: Peer::Process, serve: Box::new(serve) }
    }

    /// Another door; `None` if it is disabled, or has no such form.
    pub(super) fn of(door: Door, config: &Config) -> Option<Self> {
        DOORS.iter().find(|entry| entry.door == door).and_then(|entry| (entry.stdio)(config))
    }
}

/// The poster for webhooks on these hosts, and on no others; `None` if there are no hosts.
pub(super) fn webhooks(
    config: &Config,
    executor: &Executor,
    hosts: Vec<HostPattern>,
) -> anyhow::Result<Option<Arc<WebhookPoster>>> {
    if hosts.is_empty() {
        return Ok(None);
    }
    let clock = executor.clock();
    let egress = Egress::new(config.egress.clone(), config.ca_file.as_deref(), Arc::clone(clock))
        .context("network access for webhooks cannot be set up")?;
    let client = WebhookClient::new(Arc::new(egress), hosts);
    Ok(Some(Arc::new(WebhookPoster::new(client, executor.session_tasks().clone(), Arc::clone(clock)))))
}

#[cfg(feature = "a2a")]
mod a2a {
    use super::{DoorParts, OpenDoor, webhooks};
    use a2g_door_a2a::{A2aPort, routers};
    use std::sync::Arc;

    pub(super) async fn open<'a>(parts: &'a DoorParts<'a>) -> anyhow::Result<OpenDoor<'a>> {
        let config = parts.config;
        let Some(settings) = config.doors.a2a.clone() else { return Ok(OpenDoor::default()) };
        let port = A2aPort {
            bounds: config.bounds,
            tls: config.tls.is_some(),
            lists_callers: config.callers.is_some(),
            accepts_jwts: !config.issuers.is_empty(),
            write_timeout: config.connections.request_timeout,
        };
        let poster = webhooks(config, parts.executor, config.doors.webhook_domains.clone())?;
        match routers(Arc::clone(parts.executor), settings, port, poster).await {
            Ok(routers) => Ok(OpenDoor::new(routers)),
            Err(fault) => anyhow::bail!("the tasks of the A2A door cannot be read: {fault:?}"),
        }
    }
}

#[cfg(feature = "nexus")]
mod nexus {
    use super::super::UsageError;
    use super::super::output::print_row;
    use super::{DoorParts, OpenDoor};
    use a2g_config::Config;
    use a2g_door_nexus::{NexusPort, agent_of, router};
    use a2g_govern::AgentSecret;
    use a2g_wire::nexus::keys::{AgentKeys, Keyring};
    use anyhow::{Context as _, bail};
    use std::collections::HashSet;
    use std::sync::Arc;

    pub(super) fn open(parts: &DoorParts<'_>) -> anyhow::Result<OpenDoor<'static>> {
        let config = parts.config;
        let Some((settings, keys)) = config.doors.nexus.clone().zip(keyring(config)?) else {
            return Ok(OpenDoor::default());
        };
        let port = NexusPort {
            bounds: config.bounds,
            callers: parts.callers.clone(),
            connections: config.connections,
        };
        let executor = Arc::clone(parts.executor);
        Ok(OpenDoor::new([router(executor, settings, config.did.as_str(), keys, port)]))
    }

    pub(super) fn print_rows(config: &Config) -> anyhow::Result<()> {
        if let Some(keys) = keyring(config)? {
            print_row("nexus", format_args!("on, agents with keys: {}", keys.agents().count()));
        }
        Ok(())
    }

    /// Reads the keys of the Genesis Nexus agents; `None` if the door is disabled.
    pub(super) fn keyring(config: &Config) -> anyhow::Result<Option<Keyring>> {
        let Some(settings) = &config.doors.nexus else { return Ok(None) };
        let secrets = AgentSecret::read(&settings.key_file)?;
        let own = settings.id.as_deref().unwrap_or(config.did.as_str());
        if secrets.iter().any(|secret| &*secret.agent == own) {
            // Otherwise a message that the executor signed could be sent back to the executor as an agent's.
            bail!(UsageError(format!(
                "`doors.nexus.key_file` has an agent with the executor's own id `{own}`"
            )));
        }
        let mut agents = HashSet::new();
        for AgentSecret { agent, .. } in &secrets {
            let did = agent_of(agent).map_err(|_| {
                UsageError(format!("`doors.nexus.key_file`: `{agent}` is not a valid agent id"))
            })?;
            if !agents.insert(did) {
                bail!(UsageError(format!("`doors.nexus.key_file` has the agent `{agent}` under two ids")));
            }
        }
        let keys = secrets.into_iter().map(|AgentSecret { agent, signing, sealing }| {
            let keys = AgentKeys::new(&signing, sealing.as_deref());
            keys.map(|keys| (agent, keys)).context("a key of `doors.nexus.key_file` cannot be used")
        });
        Ok(Some(Keyring::new(keys.collect::<anyhow::Result<Vec<_>>>()?)))
    }
}
