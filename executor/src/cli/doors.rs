//! Builds the doors of the other protocols from the configuration.

#[cfg(any(feature = "a2a", feature = "console"))]
use a2g_capability::HostPattern;
#[cfg(any(feature = "a2a", feature = "console"))]
use a2g_core::deliver::WebhookPoster;
use a2g_core::run::Executor;
#[cfg(any(feature = "a2a", feature = "console"))]
use a2g_sandbox::egress::{Egress, WebhookClient};
use a2g_server::config::Config;
use a2g_server::serve::{CallerDirectory, ConsoleUrl, ProtocolRouter};
#[cfg(any(feature = "a2a", feature = "console"))]
use anyhow::Context as _;
use std::sync::Arc;

/// Builds the doors that are enabled.
#[cfg_attr(
    not(all(feature = "a2a", feature = "a2e", feature = "mcp", feature = "nexus", feature = "sovereign")),
    allow(unused_variables, unused_mut, clippy::unused_async, reason = "a build may lack any of the doors")
)]
pub(super) async fn protocol_routers(
    config: &Config,
    callers: &CallerDirectory,
    executor: &Arc<Executor>,
    console_url: &ConsoleUrl,
) -> anyhow::Result<Vec<ProtocolRouter>> {
    let mut routers = Vec::new();
    #[cfg(feature = "a2a")]
    if let Some(settings) = config.doors.a2a.clone() {
        routers.extend(a2a::routers(config, executor, settings).await?);
    }
    #[cfg(feature = "a2e")]
    if let Some(settings) = config.doors.a2e.clone() {
        let (executor, callers) = (Arc::clone(executor), callers.clone());
        routers.push(a2g_server::serve::a2e::router(executor, settings, config.bounds, callers));
    }
    #[cfg(feature = "mcp")]
    if let Some(settings) = config.doors.mcp.clone() {
        let (executor, console_url) = (Arc::clone(executor), console_url.clone());
        routers.extend(a2g_server::serve::mcp::routers(executor, settings, config.bounds, console_url));
    }
    #[cfg(feature = "nexus")]
    if let Some(settings) = config.doors.nexus.clone() {
        routers.push(nexus::router(config, callers, executor, settings)?);
    }
    #[cfg(feature = "sovereign")]
    if let Some(settings) = config.doors.sovereign.clone() {
        routers.push(a2g_server::serve::sovereign::router(Arc::clone(executor), settings, config.bounds));
    }
    Ok(routers)
}

/// The poster for webhooks on these hosts, and on no others; `None` if there are no hosts.
#[cfg(any(feature = "a2a", feature = "console"))]
pub(super) fn webhooks(
    config: &Config,
    executor: &Executor,
    hosts: Vec<HostPattern>,
) -> anyhow::Result<Option<Arc<WebhookPoster>>> {
    if hosts.is_empty() {
        return Ok(None);
    }
    let clock = executor.clock();
    let egress = Egress::new(config.egress.clone(), config.ca_file.as_deref(), Arc::clone(clock));
    let egress = egress.context("network access for webhooks cannot be set up")?;
    let client = WebhookClient::new(Arc::new(egress), hosts);
    Ok(Some(Arc::new(WebhookPoster::new(client, executor.sessions().clone(), Arc::clone(clock)))))
}

#[cfg(feature = "a2a")]
mod a2a {
    use a2g_core::run::Executor;
    use a2g_server::config::Config;
    use a2g_server::serve::a2a::{A2aPort, routers as a2a_routers};
    use a2g_server::serve::{A2aSettings, ProtocolRouter};
    use std::sync::Arc;

    pub(super) async fn routers(
        config: &Config,
        executor: &Arc<Executor>,
        settings: A2aSettings,
    ) -> anyhow::Result<[ProtocolRouter; 2]> {
        let port = A2aPort {
            bounds: config.bounds,
            tls: config.tls.is_some(),
            lists_callers: config.callers.is_some(),
            accepts_jwts: !config.issuers.is_empty(),
            write_timeout: config.connections.request_timeout,
        };
        let webhooks = super::webhooks(config, executor, config.doors.webhook_domains.clone())?;
        let routers = a2a_routers(Arc::clone(executor), settings, port, webhooks).await;
        routers.map_err(|fault| anyhow::anyhow!("the tasks of the A2A door cannot be read: {fault:?}"))
    }
}

#[cfg(feature = "nexus")]
pub(super) mod nexus {
    use super::super::UsageError;
    use a2g_core::run::Executor;
    use a2g_govern::AgentSecret;
    use a2g_server::config::Config;
    use a2g_server::serve::nexus::{NexusPort, agent_of, router as nexus_router};
    use a2g_server::serve::{CallerDirectory, NexusSettings, ProtocolRouter};
    use a2g_types::ident::AgentDid;
    use a2g_wire::nexus::keys::{AgentKeys, Keyring};
    use anyhow::{Context as _, bail};
    use std::collections::HashSet;
    use std::sync::Arc;

    pub(super) fn router(
        config: &Config,
        callers: &CallerDirectory,
        executor: &Arc<Executor>,
        settings: NexusSettings,
    ) -> anyhow::Result<ProtocolRouter> {
        let keys = keyring(&settings, &config.did)?;
        let port =
            NexusPort { bounds: config.bounds, callers: callers.clone(), connections: config.connections };
        Ok(nexus_router(Arc::clone(executor), settings, config.did.as_str(), keys, port))
    }

    /// Reads the keys of the Genesis Nexus agents.
    pub(in crate::cli) fn keyring(settings: &NexusSettings, did: &AgentDid) -> anyhow::Result<Keyring> {
        let secrets = AgentSecret::read(&settings.key_file)?;
        let own = settings.id.as_deref().unwrap_or(did.as_str());
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
        Ok(Keyring::new(keys.collect::<anyhow::Result<Vec<_>>>()?))
    }
}
