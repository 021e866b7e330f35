//! Builds the doors of the other protocols from the configuration.

use a2g_capability::HostPattern;
use a2g_core::deliver;
use a2g_core::run::Executor;
use a2g_govern::AgentSecret;
use a2g_sandbox::egress::{Egress, WebhookClient};
use a2g_server::config::{Config, Doors};
use a2g_server::serve::{CallerDirectory, NexusSettings, ProtocolRouter, a2a, a2e, nexus, sovereign};
use a2g_types::ident::AgentDid;
use a2g_wire::a2a::push::Webhooks;
use a2g_wire::nexus::keys::{AgentKeys, Keyring};
use anyhow::{Context as _, bail};
use std::collections::HashSet;
use std::sync::Arc;

/// Builds the doors that are enabled.
pub(super) async fn protocol_routers(
    config: &Config,
    callers: &CallerDirectory,
    executor: &Arc<Executor>,
) -> anyhow::Result<Vec<ProtocolRouter>> {
    let Doors { a2a, webhook_domains, a2e, nexus, sovereign } = config.doors.clone();
    let bounds = config.bounds;
    let mut routers = Vec::new();
    if let Some(settings) = a2a {
        let port = a2a::A2aPort {
            bounds,
            tls: config.tls.is_some(),
            lists_callers: config.callers.is_some(),
            takes_jwts: !config.issuers.is_empty(),
            write_timeout: config.connections.request_timeout,
        };
        let webhooks = webhooks(config, executor, webhook_domains)?;
        let a2a = a2a::routers(Arc::clone(executor), settings, port, webhooks).await;
        routers.extend(
            a2a.map_err(|fault| anyhow::anyhow!("the tasks of the A2A door cannot be read: {fault:?}"))?,
        );
    }
    if let Some(settings) = a2e {
        routers.push(a2e::router(Arc::clone(executor), settings, bounds, callers.clone()));
    }
    if let Some(settings) = nexus {
        let keys = keyring(&settings, &config.did)?;
        let port = nexus::NexusPort { bounds, callers: callers.clone(), connections: config.connections };
        routers.push(nexus::router(Arc::clone(executor), settings, config.did.as_str(), keys, port));
    }
    if let Some(settings) = sovereign {
        routers.push(sovereign::router(Arc::clone(executor), settings, bounds));
    }
    Ok(routers)
}

/// Reads the keys of the Genesis Nexus agents.
pub(super) fn keyring(settings: &NexusSettings, did: &AgentDid) -> anyhow::Result<Keyring> {
    let secrets = AgentSecret::read(&settings.key_file)?;
    let own = settings.id.as_deref().unwrap_or(did.as_str());
    if secrets.iter().any(|secret| &*secret.agent == own) {
        // A message that the executor signed itself could be sent back to it as an agent's.
        bail!(super::UsageError(format!(
            "`doors.nexus.key_file` has an agent with the executor's own id `{own}`"
        )));
    }
    let mut agents = HashSet::new();
    for AgentSecret { agent, .. } in &secrets {
        let did = nexus::agent_of(agent);
        let did = did.map_err(|_| {
            super::UsageError(format!("`doors.nexus.key_file`: `{agent}` is not a valid agent id"))
        })?;
        if !agents.insert(did) {
            bail!(super::UsageError(format!("`doors.nexus.key_file` has the agent `{agent}` under two ids")));
        }
    }
    let keys = secrets.into_iter().map(|AgentSecret { agent, signing, sealing }| {
        let keys = AgentKeys::new(&signing, sealing.as_deref());
        keys.map(|keys| (agent, keys)).context("a key of `doors.nexus.key_file` cannot be used")
    });
    Ok(Keyring::new(keys.collect::<anyhow::Result<Vec<_>>>()?))
}

/// The client for webhooks on these hosts; `None` if there are none.
fn webhooks(
    config: &Config,
    executor: &Executor,
    hosts: Vec<HostPattern>,
) -> anyhow::Result<Option<Arc<dyn Webhooks>>> {
    if hosts.is_empty() {
        return Ok(None);
    }
    let clock = Arc::clone(executor.clock());
    let egress = Egress::new(config.egress.clone(), config.ca_file.as_deref(), clock);
    let egress = egress.context("the network of webhooks cannot be set up")?;
    let client = WebhookClient::new(Arc::new(egress), hosts);
    Ok(Some(Arc::new(deliver::WebhookPoster::new(client, executor.sessions().clone()))))
}
