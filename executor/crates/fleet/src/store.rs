//! The store of a fleet: a map from keys to values, whose writes compare revisions.

use crate::FleetError;
use bytes::Bytes;
use std::time::Duration;

/// A value, and the revision that a change has to name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredValue {
    /// The value.
    pub bytes: Bytes,
    /// Its revision, from 1.
    pub revision: u64,
}

/// The result of a write that names a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// The value was written, and has this revision.
    Done(u64),
    /// The key has another revision.
    Conflict,
}

/// A linearizable key-value store. The effect of a request that ends with an error is not known.
///
/// [`crate::ServerStore`] is the store of a real fleet; the tests of the protocol have a simulated one.
pub trait Store: Send + Sync + 'static {
    /// The value of a key; `None` if it has none.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<StoredValue>, FleetError>> + Send;

    /// As [`Self::get`], with the time since the value was written, by the clock of the servers.
    fn get_with_age(
        &self,
        key: &str,
    ) -> impl Future<Output = Result<Option<(StoredValue, Duration)>, FleetError>> + Send;

    /// Writes a key whose revision is `expected`; 0 for a key without a value.
    fn update(
        &self,
        key: &str,
        value: Bytes,
        expected: u64,
    ) -> impl Future<Output = Result<Write, FleetError>> + Send;

    /// Writes a key, whatever its revision is. Returns the new revision.
    fn put(&self, key: &str, value: Bytes) -> impl Future<Output = Result<u64, FleetError>> + Send;

    /// Removes the value with this revision, if the key still has it.
    fn remove(&self, revision: u64) -> impl Future<Output = Result<(), FleetError>> + Send;

    /// The keys that match `pattern`, as in subjects of NATS: `*` stands for one name between dots, and `>` at the end for
    /// one or more.
    fn keys(&self, pattern: &str) -> impl Future<Output = Result<Vec<String>, FleetError>> + Send;

    /// Of the keys that match `pattern`, the one whose value has the lowest revision after `revision`, and that value.
    fn next(
        &self,
        pattern: &str,
        revision: u64,
    ) -> impl Future<Output = Result<Option<(String, StoredValue)>, FleetError>> + Send;
}

/// Returns `true` if a key matches a pattern of [`Store::keys`] or [`Store::next`]. Only for the stores of tests: NATS matches patterns
/// itself.
#[cfg(test)]
pub(crate) fn matches(pattern: &str, key: &str) -> bool {
    let mut names = key.split('.');
    for part in pattern.split('.') {
        match (part, names.next()) {
            (">", name) => return name.is_some(),
            ("*", Some(_)) => {}
            (part, name) if name == Some(part) => {}
            _ => return false,
        }
    }
    names.next().is_none()
}
