//! The connection to the servers, and the fleet's stream.

use crate::lease::{LEASE, NodeHead, NodeState, RENEWAL, node_key};
use crate::nats::NatsStore;
use crate::record::{NodeRecord, decode};
use crate::seal::{KEY_CHECK, SealedStore};
use crate::store::{StoredValue, Write};
use crate::{Fleet, FleetError, FleetKey, FleetName, NodeName};
use a2g_types::clock::Clock;
use a2g_types::error_chain::ErrorChain;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::{Config, DiscardPolicy};
use async_nats::{Client, ConnectOptions, ServerAddr};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The time in which the first server has to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time in which a request is answered. The effect of a request that takes longer is not known.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// The time for which the server remembers message ids. The messages of a fleet have none.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(1);
/// The format of the values in the stream.
const FORMAT: u32 = 1;

/// The login at the servers.
#[derive(Debug, Clone, Default)]
pub struct Login {
    /// A file with a JSON Web Token and its seed, as `nsc` writes it.
    pub credentials: Option<PathBuf>,
    /// A file with the seed of an NKey.
    pub nkey_file: Option<PathBuf>,
    /// A file with the certificates that servers' certificates are checked with.
    pub ca_file: Option<PathBuf>,
}

/// The settings of a node.
#[derive(Debug, Clone)]
pub struct FleetSettings {
    /// The fleet.
    pub name: FleetName,
    /// This executor.
    pub node: NodeName,
    /// The addresses of servers: `nats://HOST:PORT` or `tls://HOST:PORT`.
    pub servers: Vec<String>,
    /// The file of the key that authenticates the values.
    pub key_file: PathBuf,
    /// The login.
    pub login: Login,
    /// The number of servers that store each value: 1, 3 or 5.
    pub replicas: usize,
    /// The time for which a claim is stored after its last change.
    pub keep: Duration,
    /// `true` if other nodes may run calls that wait at this one, and this one runs calls that wait at others.
    pub passes_calls: bool,
}

impl Login {
    /// Checks that the files of the login can be read.
    ///
    /// # Ambient Authority
    /// Opens the files.
    ///
    /// # Errors
    /// [`FleetError::File`].
    pub fn check_files(&self) -> Result<(), FleetError> {
        let Self { credentials, nkey_file, ca_file } = self;
        let files =
            [("fleet.credentials", credentials), ("fleet.nkey_file", nkey_file), ("fleet.ca_file", ca_file)];
        for (setting, path) in files {
            if let Some(path) = path
                && let Err(error) = std::fs::File::open(path)
            {
                return Err(file_error(path, setting, error));
            }
        }
        Ok(())
    }
}

fn file_error(path: &Path, setting: &'static str, error: impl Display) -> FleetError {
    FleetError::File { path: path.display().to_string(), setting, reason: error.to_string() }
}

/// Connects a node to its fleet, and takes the node's lease. `has_receipt` returns `true` if the node's journal has a
/// receipt with this number and this hash, in hexadecimal.
///
/// If the fleet has a lease of the node, and the journal does not have the receipt that the lease names, this waits
/// until the lease has ended.
///
/// # Ambient Authority
/// Opens connections, and reads the files of the login.
///
/// # Errors
/// [`FleetError`] if the servers cannot be used, or another executor has the node's name.
pub async fn connect(
    settings: &FleetSettings,
    key: FleetKey,
    clock: Arc<dyn Clock>,
    head: NodeHead,
    has_receipt: impl Fn(u64, &str) -> bool,
) -> Result<Fleet<NatsStore>, FleetError> {
    let store = open_store(settings).await?;
    let sealed = SealedStore::new(store.clone(), key.clone(), settings.name.clone());
    check_key(&sealed, &settings.name).await?;
    wait_until_ended(&sealed, &settings.node, has_receipt).await?;
    Fleet::join(settings.node.clone(), clock, store, key, settings.name.clone(), head).await
}

/// Connects to a fleet without becoming one of its nodes.
///
/// # Ambient Authority
/// As [`connect`].
///
/// # Errors
/// [`FleetError`] if the servers cannot be used.
pub async fn open_store(settings: &FleetSettings) -> Result<NatsStore, FleetError> {
    let shown = settings.servers.iter().map(|server| shown_address(server)).collect::<Vec<_>>().join(", ");
    let failed = |reason: String| FleetError::Connect { servers: shown.clone(), reason };
    let addresses = settings.servers.iter().map(|server| server.parse::<ServerAddr>());
    let addresses = addresses.collect::<Result<Vec<_>, _>>().map_err(|error| failed(error.to_string()))?;
    let client = options(settings).await?.connect(addresses).await;
    let client = client.map_err(|error| failed(ErrorChain(&error).to_string()))?;
    let context = ContextBuilder::new().timeout(REQUEST_TIMEOUT).ack_timeout(REQUEST_TIMEOUT);
    open_stream(client.clone(), context.build(client), settings).await
}

async fn options(settings: &FleetSettings) -> Result<ConnectOptions, FleetError> {
    let Login { credentials, nkey_file, ca_file } = &settings.login;
    let mut options = ConnectOptions::new()
        .name(format!("a2g-executor {} {}", settings.name, settings.node))
        .connection_timeout(CONNECT_TIMEOUT)
        .request_timeout(Some(REQUEST_TIMEOUT));
    if let Some(path) = credentials {
        let added = options.credentials_file(path).await;
        options = added.map_err(|error| file_error(path, "fleet.credentials", error))?;
    }
    if let Some(path) = nkey_file {
        let seed = tokio::fs::read_to_string(path).await;
        let seed = seed.map_err(|error| file_error(path, "fleet.nkey_file", error))?;
        options = options.nkey(seed.trim().to_owned());
    }
    if let Some(path) = ca_file {
        // Read by the client only when it connects, where an error would not name the file.
        let found = tokio::fs::metadata(path).await;
        found.map_err(|error| file_error(path, "fleet.ca_file", error))?;
        options = options.add_root_certificates(path.clone());
    }
    Ok(options)
}

/// Opens the stream, and creates it if it does not exist.
async fn open_stream(
    client: Client,
    context: Context,
    settings: &FleetSettings,
) -> Result<NatsStore, FleetError> {
    let stream = format!("A2G_{}", settings.name);
    let prefix = format!("a2g.{}.", settings.name);
    let failed = |error: &(dyn std::error::Error + 'static)| FleetError::Stream {
        stream: stream.clone(),
        reason: ErrorChain(error).to_string(),
    };
    let description = format!("A2G fleet {}, format {FORMAT}", settings.name);
    let config = Config {
        name: stream.clone(),
        description: Some(description.clone()),
        subjects: vec![format!("{prefix}>")],
        max_messages_per_subject: 1,
        // A full stream refuses claims: forgetting old ones would let their intents run again.
        discard: DiscardPolicy::New,
        max_age: settings.keep,
        duplicate_window: DUPLICATE_WINDOW,
        num_replicas: settings.replicas,
        ..Config::default()
    };
    let found = context.get_or_create_stream(config).await.map_err(|error| failed(&error))?;
    let found_description = found.cached_info().config.description.clone().unwrap_or_default();
    if found_description != description {
        return Err(FleetError::Format { stream, found: found_description, expected: description });
    }
    Ok(NatsStore::new(client, context, found, prefix))
}

/// Checks that the fleet was not made with another key. Otherwise this node would share nothing with the others.
async fn check_key(store: &SealedStore<NatsStore>, fleet: &FleetName) -> Result<(), FleetError> {
    match store.update(KEY_CHECK, b"", 0).await? {
        Write::Done(_) => Ok(()),
        Write::Conflict => match store.get(KEY_CHECK).await {
            Ok(_) => Ok(()),
            Err(FleetError::Value { .. }) => Err(FleetError::OtherKey { fleet: fleet.clone() }),
            Err(error) => Err(error),
        },
    }
}

/// Waits until the earlier process of a node has certainly ended.
async fn wait_until_ended(
    store: &SealedStore<NatsStore>,
    node: &NodeName,
    has_receipt: impl Fn(u64, &str) -> bool,
) -> Result<(), FleetError> {
    let key = node_key(node);
    let mut first_revision = None;
    for _ in 0..=LEASE.as_secs() / RENEWAL.as_secs() {
        let Some(StoredValue { bytes, revision }) = store.get(&key).await? else { return Ok(()) };
        let NodeRecord { state, receipts, head, .. } = decode(&key, &bytes)?;
        match state {
            NodeState::Left | NodeState::TakenOver(_) => return Ok(()),
            // The process that wrote this had locked the journal, which this process has locked now.
            NodeState::Live | NodeState::Draining if receipts > 0 && has_receipt(receipts, &head) => {
                return Ok(());
            }
            NodeState::Live | NodeState::Draining => {}
        }
        match first_revision {
            None => {
                first_revision = Some(revision);
                let seconds = LEASE.as_secs();
                tracing::info!(%node, seconds, "the fleet has a lease of this node: waiting until it has ended");
            }
            Some(first) if first != revision => return Err(FleetError::NodeRuns { node: node.clone() }),
            Some(_) => {}
        }
        tokio::time::sleep(RENEWAL).await;
    }
    Ok(())
}

/// An address without its user and password.
fn shown_address(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    let host = rest.rsplit_once('@').map_or(rest, |(_login, host)| host);
    if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (address, shown) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("tls://user:pass@nats.example:4222", "tls://nats.example:4222"),
            ("user:p@ss@nats.example", "nats.example"),
        ] {
            assert_eq!(shown_address(address), shown);
        }
    }
}
