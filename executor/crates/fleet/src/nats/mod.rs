//! The store of a real fleet: a stream of NATS JetStream that has one message for each key.
//!
//! A key-value bucket is such a stream too, but it forbids the removal of messages: each removed key leaves a delete
//! marker, which stays until it is as old as the bucket allows.

mod connect;
mod error;
mod init;

pub use connect::{connect, open_store};
pub use init::{InitMode, InitReply, init};

use crate::store::{Store, StoredValue, Write};
use crate::{FleetError, FleetSettings};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::node::FleetName;
use async_nats::Client;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::{
    DeleteMessageError, DeleteMessageErrorKind, LastRawMessageError, LastRawMessageErrorKind, Stream,
};
use async_nats::jetstream::{Context, Error as JetStreamError, ErrorCode};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;
use time::OffsetDateTime;

/// The delays before each retry of a write that a cluster refused because it has not stored an earlier write of the key.
const RETRY_DELAYS: [Duration; 4] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(200),
];

/// A stream.
#[derive(Debug, Clone)]
pub struct NatsStore {
    /// The connection, for messages that are not stored.
    client: Client,
    context: Context,
    stream: Stream,
    fleet: FleetName,
    /// The part of each subject before the key.
    prefix: String,
    /// The addresses of the servers, without passwords.
    servers: String,
}

impl NatsStore {
    /// The store in a stream whose subjects begin with `prefix`, which ends with a dot.
    fn new(
        client: Client,
        context: Context,
        stream: Stream,
        settings: &FleetSettings,
        prefix: String,
    ) -> Self {
        let fleet = settings.name.clone();
        Self { client, context, stream, fleet, prefix, servers: settings.shown_servers() }
    }

    /// The addresses of the servers, without passwords.
    pub(crate) fn servers(&self) -> &str {
        &self.servers
    }

    /// Subscribes to a subject of messages that are not stored.
    pub(crate) async fn subscribe(&self, subject: String) -> Result<BoxStream<'static, Bytes>, FleetError> {
        let subscriber = self.client.subscribe(subject).await;
        let subscriber = subscriber.map_err(|error| FleetError::unavailable("subscribe", error))?;
        Ok(subscriber.map(|message| message.payload).boxed())
    }

    /// Sends a message that is not stored.
    pub(crate) async fn send(&self, subject: String, message: Bytes) -> Result<(), FleetError> {
        let sent = self.client.publish(subject, message).await;
        sent.map_err(|error| FleetError::unavailable("send a message", error))
    }

    fn subject(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    async fn message(&self, key: &str) -> Result<Option<StreamMessage>, FleetError> {
        // Answered by the stream's leader: a direct read may be answered by a server that lags behind.
        match self.stream.get_last_raw_message_by_subject(&self.subject(key)).await {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) if is_stream_missing(&error) => {
                Err(FleetError::NoStream { fleet: self.fleet.clone() })
            }
            Err(error) => Err(FleetError::unavailable("read a key", error)),
        }
    }

    /// The time of the server that leads the stream, with which the times of its messages can be compared.
    async fn now(&self) -> Result<OffsetDateTime, FleetError> {
        let subject = format!("STREAM.INFO.{}", self.stream.cached_info().config.name);
        let asked = self.context.request::<_, _, StreamTime>(subject, &json!({})).await;
        let answer = asked.map_err(|error| FleetError::unavailable("read the time", error))?;
        Ok(answer.ts.unwrap_or_else(|| SystemClock.now()))
    }

    async fn publish(&self, key: &str, message: PublishMessage) -> Result<Write, FleetError> {
        let mut delays = RETRY_DELAYS.into_iter();
        loop {
            let sent = self.context.send_publish(self.subject(key), message.clone()).await;
            let stored = match sent {
                Ok(sent) => sent.await,
                Err(error) => Err(error),
            };
            let error = match stored {
                Ok(stored) => return Ok(Write::Done(stored.sequence)),
                Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {
                    return Ok(Write::Conflict);
                }
                Err(error) => error,
            };
            match delays.next().filter(|_| is_write_in_progress(&error)) {
                Some(delay) => tokio::time::sleep(delay).await,
                None => return Err(FleetError::unavailable("write a key", error)),
            }
        }
    }
}

impl Store for NatsStore {
    async fn get(&self, key: &str) -> Result<Option<StoredValue>, FleetError> {
        Ok(self.message(key).await?.map(to_value))
    }

    async fn get_with_age(&self, key: &str) -> Result<Option<(StoredValue, Duration)>, FleetError> {
        let Some(message) = self.message(key).await? else { return Ok(None) };
        let age = self.now().await? - message.time;
        // Negative if another server of the cluster leads the stream now, whose clock is behind.
        Ok(Some((to_value(message), Duration::try_from(age).unwrap_or_default())))
    }

    async fn update(&self, key: &str, value: Bytes, expected: u64) -> Result<Write, FleetError> {
        let message = PublishMessage::build().payload(value).expected_last_subject_sequence(expected);
        self.publish(key, message).await
    }

    async fn put(&self, key: &str, value: Bytes) -> Result<u64, FleetError> {
        match self.publish(key, PublishMessage::build().payload(value)).await? {
            Write::Done(revision) => Ok(revision),
            Write::Conflict => Err(FleetError::contended("write a key", "the server found a conflict")),
        }
    }

    async fn remove(&self, revision: u64) -> Result<(), FleetError> {
        match self.stream.delete_message(revision).await {
            Ok(_is_deleted) => Ok(()),
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(FleetError::unavailable("remove a key", error)),
        }
    }

    async fn keys(&self, pattern: &str) -> Result<Vec<String>, FleetError> {
        let unavailable = |error: &dyn std::fmt::Display| FleetError::unavailable("list keys", error);
        // The server's index of subjects needs no consumer.
        let listed = self.stream.info_with_subjects(self.subject(pattern)).await;
        let mut subjects = listed.map_err(|error| unavailable(&error))?;
        let mut keys = Vec::new();
        while let Some(subject) = subjects.next().await {
            let (subject, _count) = subject.map_err(|error| unavailable(&error))?;
            keys.extend(subject.strip_prefix(&self.prefix).map(str::to_owned));
        }
        Ok(keys)
    }

    async fn next(&self, pattern: &str, revision: u64) -> Result<Option<(String, StoredValue)>, FleetError> {
        // Answered by the stream's leader too.
        let first = revision.saturating_add(1);
        match self.stream.get_first_raw_message_by_subject(self.subject(pattern), first).await {
            Ok(message) => {
                let key = message.subject.strip_prefix(&self.prefix).unwrap_or_default().to_owned();
                Ok(Some((key, to_value(message))))
            }
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(FleetError::unavailable("read changed keys", error)),
        }
    }
}

/// The part of an answer about a stream that has the time of the server.
#[derive(Debug, Deserialize)]
struct StreamTime {
    /// `None` from an old server.
    #[serde(default, with = "time::serde::rfc3339::option")]
    ts: Option<OffsetDateTime>,
}

fn to_value(message: StreamMessage) -> StoredValue {
    StoredValue { bytes: message.payload, revision: message.sequence }
}

/// Returns `true` if a cluster refuses a write because it has not stored an earlier one of the same key yet.
fn is_write_in_progress(error: &PublishError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<JetStreamError>());
    let codes = [
        ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT,
        ErrorCode::STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_NOT_READY,
    ];
    source.is_some_and(|error| codes.contains(&error.error_code()))
}

/// Returns `true` if there is no stream to read from.
fn is_stream_missing(error: &LastRawMessageError) -> bool {
    matches!(error.kind(), LastRawMessageErrorKind::JetStream(found)
        if found.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

/// Returns `true` if the message to delete was deleted before.
fn is_absent(error: &DeleteMessageError) -> bool {
    match error.kind() {
        DeleteMessageErrorKind::JetStream(error) => {
            [ErrorCode::NO_MESSAGE_FOUND, ErrorCode::SEQUENCE_NOT_FOUND].contains(&error.error_code())
        }
        DeleteMessageErrorKind::Request | DeleteMessageErrorKind::TimedOut => false,
    }
}
