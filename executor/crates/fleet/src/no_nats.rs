//! The store of a build without the client of NATS: nobody can make one. So there is no fleet, and what uses one is
//! compiled and never runs.

use crate::store::{Store, StoredValue, Write};
use crate::{Fleet, FleetError, FleetKey, FleetSettings, NodeHead, RememberedFleet};
use a2g_types::clock::Clock;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use std::sync::Arc;
use std::time::Duration;

/// A store that cannot be made.
#[derive(Debug)]
pub enum NoStore {}

impl NoStore {
    pub(crate) fn servers(&self) -> &str {
        match *self {}
    }

    pub(crate) async fn subscribe(&self, _subject: String) -> Result<BoxStream<'static, Bytes>, FleetError> {
        match *self {}
    }

    pub(crate) async fn send(&self, _subject: String, _message: Bytes) -> Result<(), FleetError> {
        match *self {}
    }
}

impl Store for NoStore {
    async fn get(&self, _key: &str) -> Result<Option<StoredValue>, FleetError> {
        match *self {}
    }

    async fn get_with_age(&self, _key: &str) -> Result<Option<(StoredValue, Duration)>, FleetError> {
        match *self {}
    }

    async fn update(&self, _key: &str, _value: Bytes, _expected: u64) -> Result<Write, FleetError> {
        match *self {}
    }

    async fn put(&self, _key: &str, _value: Bytes) -> Result<u64, FleetError> {
        match *self {}
    }

    async fn remove(&self, _revision: u64) -> Result<(), FleetError> {
        match *self {}
    }

    async fn keys(&self, _pattern: &str) -> Result<Vec<String>, FleetError> {
        match *self {}
    }

    async fn next(
        &self,
        _pattern: &str,
        _revision: u64,
    ) -> Result<Option<(String, StoredValue)>, FleetError> {
        match *self {}
    }
}

/// Connects a node to its fleet, which this build cannot.
///
/// # Errors
/// [`FleetError::NotInBuild`].
pub async fn connect(
    _settings: &FleetSettings,
    _key: FleetKey,
    _clock: Arc<dyn Clock>,
    _head: NodeHead,
    _remembered: Option<&RememberedFleet>,
    _has_receipt: impl Fn(u64, &str) -> bool,
) -> Result<Fleet<NoStore>, FleetError> {
    Err(FleetError::NotInBuild)
}
