//! The connection to the servers, and the fleet's stream.

use super::NatsStore;
use super::error::explain;
use crate::identity::{RememberedFleet, StreamId, StreamIdentity, check_identity};
use crate::lease::{LeaseTimes, NodeHead, node_key};
use crate::record::NodeRecord;
use crate::seal::SealedStore;
use crate::settings::{FleetSettings, Login, file_error};
use crate::{Fleet, FleetError, FleetKey, Member};
use a2g_types::clock::Clock;
use a2g_types::error_chain::ErrorChain;
use a2g_types::node::{FleetName, NodeName};
use async_nats::jetstream::context::{ContextBuilder, GetStreamErrorKind};
use async_nats::jetstream::{Context, ErrorCode};
use async_nats::{Client, ConnectOptions, ServerAddr};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

/// The time in which the first server has to answer.
/// The size of the largest message that the servers have to accept, in bytes: their default.
const MIN_PAYLOAD_BYTES: usize = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time in which a request is answered. The effect of a request that takes longer is not known.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// The format of the values in the stream.
pub(super) const FORMAT: u32 = 2;

/// Connects a node to its fleet, and takes the node's lease. `remembered` is what the node's journal remembers of the
/// fleet, and `has_receipt` returns `true` if the journal has a receipt with this number and this hash, in hexadecimal.
///
/// If the fleet has a lease of the node, and the journal knows neither the process nor the receipt that the lease names,
/// this waits until the lease has ended.
///
/// # Ambient Authority
/// Opens connections, and reads the files of the login.
///
/// # Errors
/// [`FleetError`] if the servers cannot be used or do not have that stream, or another executor has the node's name.
pub async fn connect(
    settings: &FleetSettings,
    key: FleetKey,
    clock: Arc<dyn Clock>,
    head: NodeHead,
    remembered: Option<&RememberedFleet>,
    has_receipt: impl Fn(u64, &str) -> bool,
) -> Result<Fleet<NatsStore>, FleetError> {
    let stream = remembered.map(|remembered| &remembered.stream);
    let store = open_store(settings, &key, stream).await?;
    let sealed = SealedStore::new(store.clone(), key.clone(), settings.name.clone());
    let times = check_identity(&sealed, stream).await?.lease;
    // The process that wrote either had locked the journal, which this process has locked now.
    let has_written = |lease: &NodeRecord| {
        remembered.is_some_and(|remembered| remembered.process == lease.process)
            || (lease.receipts > 0 && has_receipt(lease.receipts, &lease.head))
    };
    wait_until_ended(&sealed, &settings.node, times, has_written).await?;
    let joined = Member::join(settings.node.clone(), clock, store, key, settings.name.clone(), head).await;
    joined.map(Fleet::new)
}

/// Connects to a fleet without becoming one of its nodes. `remembered` is the identity of its stream that the journal of
/// this configuration remembers.
///
/// # Ambient Authority
/// As [`connect`].
///
/// # Errors
/// [`FleetError`] if the servers cannot be used, or do not have that stream.
pub async fn open_store(
    settings: &FleetSettings,
    key: &FleetKey,
    remembered: Option<&StreamIdentity>,
) -> Result<NatsStore, FleetError> {
    let (client, context) = connect_client(settings).await?;
    let Some(store) = find_stream(&client, &context, settings).await? else {
        return Err(match remembered {
            Some(known) => FleetError::lost(&settings.name, &known.id, None),
            None => FleetError::NoStream { fleet: settings.name.clone() },
        });
    };
    let sealed = SealedStore::new(store.clone(), key.clone(), settings.name.clone());
    check_identity(&sealed, remembered).await?;
    Ok(store)
}

/// Connects to the servers.
pub(super) async fn connect_client(settings: &FleetSettings) -> Result<(Client, Context), FleetError> {
    let failed = |reason: &dyn Display| FleetError::Connect { reason: explain(reason) };
    let parsed = settings.servers.iter().map(|server| server.parse::<ServerAddr>());
    let addresses = parsed.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
    let connected = options(settings).await?.connect(addresses).await;
    let client = connected.map_err(|error| failed(&ErrorChain(&error)))?;
    let max_payload = client.server_info().max_payload;
    if max_payload < MIN_PAYLOAD_BYTES {
        return Err(FleetError::Stream {
            stream: stream_name(&settings.name),
            reason: format!(
                "the servers accept messages of at most {max_payload} bytes, and a fleet needs {MIN_PAYLOAD_BYTES} \
                 (`max_payload` of the servers)"
            ),
        });
    }
    let context = ContextBuilder::new().timeout(REQUEST_TIMEOUT).ack_timeout(REQUEST_TIMEOUT);
    Ok((client.clone(), context.build(client)))
}

async fn options(settings: &FleetSettings) -> Result<ConnectOptions, FleetError> {
    let Login { credentials, nkey_file, ca_file } = &settings.login;
    let mut options = ConnectOptions::new()
        .name(format!("a2g-executor {} {}", settings.name, settings.node))
        .connection_timeout(CONNECT_TIMEOUT)
        .request_timeout(Some(REQUEST_TIMEOUT));
    if let Some(path) = credentials {
        let added = options.credentials_file(path).await;
        options = added.map_err(|error| file_error(path, "fleet.credentials", explain(error)))?;
    }
    if let Some(path) = nkey_file {
        let contents = tokio::fs::read_to_string(path).await;
        let seed = contents.map_err(|error| file_error(path, "fleet.nkey_file", error))?;
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

/// The name of the stream of a fleet.
pub(super) fn stream_name(fleet: &FleetName) -> String {
    format!("A2G_{fleet}")
}

/// The part of each subject before the key. The random id differs in each stream that `fleet init` creates.
pub(super) fn subject_prefix(fleet: &FleetName, id: &StreamId) -> String {
    format!("a2g.{fleet}.{id}.")
}

/// Finds the stream of a fleet; `None` if the servers have none.
pub(super) async fn find_stream(
    client: &Client,
    context: &Context,
    settings: &FleetSettings,
) -> Result<Option<NatsStore>, FleetError> {
    let fleet = &settings.name;
    let found = match context.get_stream(stream_name(fleet)).await {
        Ok(found) => found,
        Err(error) => {
            let is_missing = matches!(error.kind(), GetStreamErrorKind::JetStream(found)
                if found.error_code() == ErrorCode::STREAM_NOT_FOUND);
            return if is_missing { Ok(None) } else { Err(stream_error(fleet, &error)) };
        }
    };
    let config = &found.cached_info().config;
    let other_format =
        |found: String, expected| FleetError::Format { stream: stream_name(fleet), found, expected };
    let description = config.description.clone().unwrap_or_default();
    let expected = format!("A2G fleet {fleet}, format {FORMAT}");
    if description != expected {
        return Err(other_format(description, expected));
    }
    let id = config.subjects.first().and_then(|subject| {
        let id = subject.strip_prefix(&format!("a2g.{fleet}."))?.strip_suffix(".>")?;
        StreamId::try_from(id.to_owned()).ok()
    });
    let Some(id) = id else {
        return Err(other_format(config.subjects.join(", "), format!("a2g.{fleet}.ID.>")));
    };
    let prefix = subject_prefix(fleet, &id);
    Ok(Some(NatsStore::new(client.clone(), context.clone(), found, settings, prefix)))
}

pub(super) fn stream_error(fleet: &FleetName, error: &(dyn std::error::Error + 'static)) -> FleetError {
    FleetError::Stream { stream: stream_name(fleet), reason: explain(ErrorChain(error)) }
}

/// Waits until the earlier process of a node has certainly ended. `has_written` returns `true` if the process that wrote
/// a lease used the journal of this one.
async fn wait_until_ended(
    store: &SealedStore<NatsStore>,
    node: &NodeName,
    times: LeaseTimes,
    has_written: impl Fn(&NodeRecord) -> bool,
) -> Result<(), FleetError> {
    let key = node_key(node);
    let mut first_revision = None;
    let rounds = times.renewals_until_ended();
    for round in 0..rounds {
        let Some((lease, revision)) = store.read::<NodeRecord>(&key).await? else { return Ok(()) };
        if lease.state.has_ended() || has_written(&lease) {
            return Ok(());
        }
        match first_revision {
            None => {
                first_revision = Some(revision);
                let seconds = times.restart_wait().as_millis().div_ceil(1000);
                tracing::warn!(
                    %node,
                    "waits up to {seconds} s for the lease of its earlier process, which ended without releasing it, and \
                     which this journal does not know"
                );
            }
            Some(first) if first != revision => return Err(FleetError::NodeRuns { node: node.clone() }),
            Some(_) => {
                tracing::info!(%node, round, rounds, "still waits for the lease of its earlier process")
            }
        }
        tokio::time::sleep(times.renewal()).await;
    }
    Ok(())
}
