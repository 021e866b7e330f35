//! The authentication of values: a value that no node of the fleet wrote, or that was copied from another key, is
//! refused.

use crate::FleetError;
use crate::record::decode;
use crate::store::{Store, StoredValue, Write};
use a2g_types::node::FleetName;
use a2g_types::tool::Digest;
use bytes::{Bytes, BytesMut};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::de::DeserializeOwned;
use sha2::Sha256;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zeroize::Zeroizing;

/// The length of the HMAC-SHA256 before each value, in bytes.
const CODE_BYTES: usize = 32;

/// The key that all nodes of a fleet have. `Debug` does not print it.
#[derive(Clone)]
pub struct FleetKey(Hmac<Sha256>);

impl fmt::Debug for FleetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetKey").finish_non_exhaustive()
    }
}

impl FleetKey {
    /// The key with these 32 bytes, in lower-case hexadecimal; `None` if they have another form.
    #[must_use]
    pub fn parse(digits: &[u8]) -> Option<Self> {
        let digits = std::str::from_utf8(digits).ok()?;
        let bytes = Zeroizing::new(Digest::parse(digits).ok()?.0);
        Hmac::new_from_slice(bytes.as_slice()).ok().map(Self)
    }
}

/// The key of a fleet. It authenticates each value: the HMAC-SHA256 of fleet, key and value precedes the value.
#[derive(Debug)]
pub(crate) struct Seal {
    key: FleetKey,
    fleet: FleetName,
    refused: AtomicU64,
}

impl Seal {
    pub(crate) fn code(&self, key: &str, value: &[u8]) -> Hmac<Sha256> {
        // Neither name contains a zero byte, so the text is unambiguous.
        let parts = [self.fleet.as_str().as_bytes(), b"\0", key.as_bytes(), b"\0", value];
        parts.into_iter().fold(self.key.0.clone(), hmac::Mac::chain_update)
    }

    pub(crate) fn seal(&self, key: &str, value: &[u8]) -> Bytes {
        let code = self.code(key, value).finalize().into_bytes();
        let mut sealed = BytesMut::with_capacity(CODE_BYTES + value.len());
        sealed.extend_from_slice(&code);
        sealed.extend_from_slice(value);
        sealed.freeze()
    }

    pub(crate) fn open(&self, key: &str, sealed: &Bytes) -> Result<Bytes, FleetError> {
        let opened = sealed.split_at_checked(CODE_BYTES).and_then(|(code, value)| {
            self.code(key, value).verify_slice(code).ok().map(|()| sealed.slice_ref(value))
        });
        opened.ok_or_else(|| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            FleetError::value(key, "its authentication code is wrong")
        })
    }

    pub(crate) fn fleet(&self) -> &FleetName {
        &self.fleet
    }

    /// The number of values that were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// A store whose values are authenticated.
pub(crate) struct SealedStore<S> {
    pub(crate) store: S,
    pub(crate) seal: Seal,
}

impl<S: Store> SealedStore<S> {
    pub(crate) fn new(store: S, key: FleetKey, fleet: FleetName) -> Self {
        Self { store, seal: Seal { key, fleet, refused: AtomicU64::new(0) } }
    }

    pub(crate) async fn get(&self, key: &str) -> Result<Option<StoredValue>, FleetError> {
        let Some(StoredValue { bytes, revision }) = self.store.get(key).await? else { return Ok(None) };
        Ok(Some(StoredValue { bytes: self.seal.open(key, &bytes)?, revision }))
    }

    /// Reads a value, and its revision.
    pub(crate) async fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<(T, u64)>, FleetError> {
        let Some(StoredValue { bytes, revision }) = self.get(key).await? else { return Ok(None) };
        Ok(Some((decode(key, &bytes)?, revision)))
    }

    /// As [`Self::get`], with the time since the value was written, by the clock of the servers.
    pub(crate) async fn get_with_age(
        &self,
        key: &str,
    ) -> Result<Option<(StoredValue, Duration)>, FleetError> {
        let Some((value, age)) = self.store.get_with_age(key).await? else { return Ok(None) };
        let bytes = self.seal.open(key, &value.bytes)?;
        Ok(Some((StoredValue { bytes, ..value }, age)))
    }

    pub(crate) async fn update(&self, key: &str, value: &[u8], expected: u64) -> Result<Write, FleetError> {
        self.store.update(key, self.seal.seal(key, value), expected).await
    }

    pub(crate) async fn put(&self, key: &str, value: &[u8]) -> Result<u64, FleetError> {
        self.store.put(key, self.seal.seal(key, value)).await
    }

    pub(crate) async fn remove(&self, revision: u64) -> Result<(), FleetError> {
        self.store.remove(revision).await
    }

    /// Removes the value of a key, if it has one.
    pub(crate) async fn remove_key(&self, key: &str) -> Result<(), FleetError> {
        let Some(StoredValue { revision, .. }) = self.get(key).await? else { return Ok(()) };
        self.remove(revision).await
    }

    /// The list of keys is not authenticated; a caller has to read the value of each key.
    pub(crate) async fn keys(&self, pattern: &str) -> Result<Vec<String>, FleetError> {
        self.store.keys(pattern).await
    }
}
