//! `fleet init`: the only way in which a stream is created.

use super::NatsStore;
use super::connect::{FORMAT, connect_client, find_stream, stream_error, stream_name, subject_prefix};
use crate::identity::{IDENTITY, StreamId, StreamIdentity, check_identity, read_identity};
use crate::record::encode;
use crate::seal::SealedStore;
use crate::store::Write;
use crate::{FleetError, FleetKey, FleetSettings, LeaseTimes};
use async_nats::jetstream::context::CreateStreamErrorKind;
use async_nats::jetstream::stream::{Config, DiscardPolicy};
use async_nats::jetstream::{Context, ErrorCode};
use std::time::Duration;

/// The time for which the server remembers message ids. The messages of a fleet have none.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(1);

/// What `fleet init` may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InitMode {
    /// Creates the stream of a new fleet.
    First,
    /// Also accepts that the claims of these streams, and of the one that the journal remembers, are gone.
    Replace(Vec<StreamId>),
}

/// What `fleet init` has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InitReply {
    /// The stream has this identity now.
    Changed(StreamIdentity),
    /// The stream had this identity before, and nothing was changed.
    Unchanged(StreamIdentity),
}

/// Creates the stream of a fleet, with leases of these `times`. An existing stream keeps its values. `remembered` is the
/// identity that the journal of this configuration remembers.
///
/// # Ambient Authority
/// As [`crate::connect`].
///
/// # Errors
/// [`FleetError::Lost`] if the journal remembers another stream and [`FleetError::Emptied`] if the stream has lost its
/// values, unless `mode` accepts that, and if the servers cannot be used.
pub async fn init(
    settings: &FleetSettings,
    key: FleetKey,
    remembered: Option<&StreamIdentity>,
    mode: &InitMode,
    times: LeaseTimes,
) -> Result<InitReply, FleetError> {
    let name = &settings.name;
    let lost = |id, found| FleetError::lost(name, id, found);
    let (client, context) = connect_client(settings).await?;
    let store = match find_stream(&client, &context, settings).await? {
        Some(store) => store,
        None => {
            if let (InitMode::First, Some(known)) = (mode, remembered) {
                return Err(lost(&known.id, None));
            }
            create_stream(&context, settings).await?;
            let found = find_stream(&client, &context, settings).await?;
            found.ok_or_else(|| FleetError::NoStream { fleet: name.clone() })?
        }
    };
    let is_fresh = store.is_fresh();
    let store = SealedStore::new(store, key, name.clone());
    let replaced = match mode {
        InitMode::First => &[],
        InitMode::Replace(ids) => ids.as_slice(),
    };
    let known = remembered.into_iter().flat_map(|known| std::iter::once(&known.id).chain(&known.replaces));
    let (mut identity, revision) = match (read_identity(&store).await?, mode) {
        (Some((found, _)), InitMode::First) => {
            check_identity(&store, remembered).await?;
            return Ok(InitReply::Unchanged(found));
        }
        (Some(found), InitMode::Replace(_)) => found,
        (None, InitMode::First) => match remembered {
            Some(known) => return Err(lost(&known.id, None)),
            None if is_fresh => (StreamIdentity::random(times), 0),
            None => return Err(FleetError::Emptied { fleet: name.clone() }),
        },
        (None, InitMode::Replace(_)) => (StreamIdentity::random(times), 0),
    };
    let before = identity.clone();
    identity.replace(known.chain(replaced));
    if revision != 0 && identity == before {
        return Ok(InitReply::Unchanged(identity));
    }
    match store.update(IDENTITY, &encode(&identity)?, revision).await? {
        Write::Done(_) => Ok(InitReply::Changed(identity)),
        Write::Conflict => Err(FleetError::contended("init", "another command has changed the stream")),
    }
}

/// Creates a stream, unless another command has just created one.
async fn create_stream(context: &Context, settings: &FleetSettings) -> Result<(), FleetError> {
    let name = &settings.name;
    let config = Config {
        name: stream_name(name),
        description: Some(format!("A2G fleet {name}, format {FORMAT}")),
        subjects: vec![format!("{}>", subject_prefix(name, &StreamId::random()))],
        max_messages_per_subject: 1,
        // A full stream refuses claims: forgetting old ones would let their intents run again.
        discard: DiscardPolicy::New,
        max_age: settings.keep,
        duplicate_window: DUPLICATE_WINDOW,
        num_replicas: settings.replicas,
        ..Config::default()
    };
    let Err(error) = context.create_stream(config).await else { return Ok(()) };
    let exists = matches!(error.kind(), CreateStreamErrorKind::JetStream(found)
        if found.error_code() == ErrorCode::STREAM_NAME_EXIST);
    if exists { Ok(()) } else { Err(stream_error(name, &error)) }
}

impl NatsStore {
    /// Returns `true` if the stream never had a value when it was opened.
    fn is_fresh(&self) -> bool {
        self.stream.cached_info().state.last_sequence == 0
    }
}
