//! The store of a real fleet: a key-value bucket of NATS JetStream.

use crate::FleetError;
use crate::store::{Store, StoredValue, Write};
use async_nats::jetstream::kv;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use bytes::Bytes;
use futures_util::StreamExt as _;

/// A bucket.
#[derive(Debug, Clone)]
pub struct NatsStore {
    store: kv::Store,
    /// `$KV.BUCKET.`: what the subject of a key begins with.
    prefix: String,
}

impl NatsStore {
    pub(crate) fn new(store: kv::Store) -> Self {
        let prefix = format!("$KV.{}.", store.name);
        Self { store, prefix }
    }
}

impl Store for NatsStore {
    async fn get(&self, key: &str) -> Result<Option<StoredValue>, FleetError> {
        // Asked of the stream's leader: a direct read may be answered by a server that lags behind.
        let subject = format!("{}{key}", self.prefix);
        match self.store.stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => Ok(Some(StoredValue { bytes: message.payload, revision: message.sequence })),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(FleetError::unavailable("read a key", error)),
        }
    }

    async fn update(&self, key: &str, value: Bytes, expected: u64) -> Result<Write, FleetError> {
        match self.store.update(key, value, expected).await {
            Ok(revision) => Ok(Write::Done(revision)),
            Err(error) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => Ok(Write::Conflict),
            Err(error) => Err(FleetError::unavailable("write a key", error)),
        }
    }

    async fn put(&self, key: &str, value: Bytes) -> Result<u64, FleetError> {
        self.store.put(key, value).await.map_err(|error| FleetError::unavailable("write a key", error))
    }

    async fn remove(&self, revision: u64) -> Result<(), FleetError> {
        // A deletion by sequence leaves no mark, unlike one by key.
        match self.store.stream.delete_message(revision).await {
            Ok(_is_deleted) => Ok(()),
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(FleetError::unavailable("remove a key", error)),
        }
    }

    async fn keys(&self, prefix: &str) -> Result<Vec<String>, FleetError> {
        let unavailable = |error: &dyn std::fmt::Display| FleetError::unavailable("list keys", error);
        // The server's index of subjects needs no consumer.
        let subjects = self.store.stream.info_with_subjects(format!("{}{prefix}>", self.prefix)).await;
        let mut subjects = subjects.map_err(|error| unavailable(&error))?;
        let mut keys = Vec::new();
        while let Some(subject) = subjects.next().await {
            let (subject, _count) = subject.map_err(|error| unavailable(&error))?;
            keys.extend(subject.strip_prefix(&self.prefix).map(str::to_owned));
        }
        Ok(keys)
    }
}

/// Returns `true` if the message to delete was deleted before.
fn is_absent(error: &async_nats::jetstream::stream::DeleteMessageError) -> bool {
    use async_nats::jetstream::ErrorCode;
    use async_nats::jetstream::stream::DeleteMessageErrorKind;
    matches!(error.kind(), DeleteMessageErrorKind::JetStream(error) if error.error_code() == ErrorCode::NO_MESSAGE_FOUND)
}
