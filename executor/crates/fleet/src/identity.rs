//! The identity of a fleet's stream: a stream that was made anew has another one, so a node notices that the claims are
//! gone.
//!
//! ```text
//! fleet init ─▶ stream with the subjects `a2g.FLEET.RANDOM.>`, and the key `identity` with an id of its own
//! node:         remembers the identity in its journal, and reads the key at the start and with each renewal
//!                 │ the key is missing, or has another id
//!                 ▼
//!               runs nothing, until the stream is back, or `fleet init --new` names what it replaces
//! ```
//! Requests to a deleted stream have no effect in the next one, since its subjects differ. The id of the identity is not
//! part of the subjects, because a stream that somebody makes again from its saved configuration has the same subjects.

use crate::record::{decode, encode};
use crate::seal::SealedStore;
use crate::store::{Store, StoredValue};
use crate::{FleetError, LeaseTimes};
use a2g_types::node::FleetName;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use std::time::Duration;
use uuid::Uuid;

/// The key of the identity.
pub(crate) const IDENTITY: &str = "identity";
/// The time after which the identity is written again, before the stream forgets it: an hour is the shortest
/// `fleet.keep_hours`.
const REWRITE_INTERVAL: Duration = Duration::from_secs(50 * 60);
/// The length of an id.
const ID_DIGITS: usize = 32;

/// The random id of a stream: 32 hexadecimal digits in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct StreamId(String);

/// The reason why a text is no id of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is not an id of 32 hexadecimal digits, as a refused start or `a2g-executor fleet init` prints it")]
pub struct StreamIdError;

impl StreamId {
    pub(crate) fn random() -> Self {
        Self(Uuid::new_v4().simple().to_string())
    }
}

impl TryFrom<String> for StreamId {
    type Error = StreamIdError;

    fn try_from(text: String) -> Result<Self, StreamIdError> {
        let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        if text.len() == ID_DIGITS && text.chars().all(is_digit) {
            Ok(Self(text))
        } else {
            Err(StreamIdError)
        }
    }
}

impl Display for StreamId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The identity of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamIdentity {
    /// The id of the stream.
    pub id: StreamId,
    /// The earlier streams whose claims are gone, as an operator has accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<StreamId>,
    /// The times of the leases of all nodes.
    pub lease: LeaseTimes,
}

impl StreamIdentity {
    /// Returns `true` for this stream, and for those that it replaces.
    pub(crate) fn stands_for(&self, id: &StreamId) -> bool {
        self.id == *id || self.replaces.contains(id)
    }

    /// A new identity, of a stream that replaces none.
    #[must_use]
    pub fn random(lease: LeaseTimes) -> Self {
        Self { id: StreamId::random(), replaces: Vec::new(), lease }
    }

    /// Adds ids to those that this stream replaces.
    pub fn replace<'a>(&mut self, ids: impl IntoIterator<Item = &'a StreamId>) {
        for id in ids {
            if !self.stands_for(id) {
                self.replaces.push(id.clone());
            }
        }
    }
}

/// The facts of its fleet that a node's journal remembers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RememberedFleet {
    /// The identity of the stream.
    pub stream: StreamIdentity,
    /// The random name of the latest process that has joined with this journal.
    pub process: String,
}

impl RememberedFleet {
    /// The text for a journal.
    ///
    /// # Errors
    /// [`FleetError::Value`].
    pub fn to_text(&self) -> Result<String, FleetError> {
        serde_json::to_string(self).map_err(|error| FleetError::value(IDENTITY, error))
    }

    /// Reads the text from a journal.
    ///
    /// # Errors
    /// [`FleetError::Value`].
    pub fn parse(text: &str) -> Result<Self, FleetError> {
        decode(IDENTITY, text.as_bytes())
    }
}

/// Reads the identity of a stream, with its revision; `None` if it is missing.
///
/// # Errors
/// [`FleetError::OtherKey`], and the errors of the store.
pub(crate) async fn read_identity<S: Store>(
    store: &SealedStore<S>,
) -> Result<Option<(StreamIdentity, u64)>, FleetError> {
    match store.get(IDENTITY).await {
        Ok(None) => Ok(None),
        Ok(Some(StoredValue { bytes, revision })) => Ok(Some((decode(IDENTITY, &bytes)?, revision))),
        Err(FleetError::Value { .. }) => Err(FleetError::OtherKey { fleet: store.seal.fleet().clone() }),
        Err(error) => Err(error),
    }
}

/// Reads the identity of a stream, and compares it with the one that a journal remembers.
///
/// # Errors
/// [`FleetError::NoStream`] and [`FleetError::Lost`], and those of [`read_identity`].
pub(crate) async fn check_identity<S: Store>(
    store: &SealedStore<S>,
    remembered: Option<&StreamIdentity>,
) -> Result<StreamIdentity, FleetError> {
    let fleet = store.seal.fleet();
    match (read_identity(store).await?, remembered) {
        (Some((found, _)), None) => Ok(found),
        (Some((found, _)), Some(known)) if found.stands_for(&known.id) => Ok(found),
        (Some((found, _)), Some(known)) => Err(FleetError::lost(fleet, &known.id, Some(found.id))),
        (None, Some(known)) => Err(FleetError::lost(fleet, &known.id, None)),
        (None, None) => Err(FleetError::NoStream { fleet: fleet.clone() }),
    }
}

/// The identity of the stream of a node, and whether it is still there.
pub(crate) struct OwnStream {
    pub(crate) identity: StreamIdentity,
    /// The reason why the claims are gone, if they are.
    loss: Mutex<Option<FleetError>>,
}

impl OwnStream {
    pub(crate) fn new(identity: StreamIdentity) -> Self {
        Self { identity, loss: Mutex::default() }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.loss.lock().is_some()
    }

    pub(crate) fn loss(&self) -> Option<FleetError> {
        self.loss.lock().clone()
    }

    /// Checks that the stream still has its identity. Until a later check finds it again, this node runs nothing.
    pub(crate) async fn check<S: Store>(
        &self,
        store: &SealedStore<S>,
        renewals: u64,
    ) -> Result<(), FleetError> {
        let fleet = store.seal.fleet();
        let found = match read_identity(store).await {
            Err(FleetError::NoStream { .. }) => None,
            found => found?,
        };
        let Some((found, revision)) = found else {
            return Err(self.record_loss(fleet, None));
        };
        if found.id != self.identity.id {
            return Err(self.record_loss(fleet, Some(found.id)));
        }
        *self.loss.lock() = None;
        if renewals.is_multiple_of(self.identity.lease.renewals_in(REWRITE_INTERVAL)) {
            // Not made anew if it is gone by now. In a conflict, another node has just written it.
            store.update(IDENTITY, &encode(&found)?, revision).await.map(drop)?;
        }
        Ok(())
    }

    /// Records that the claims are gone, and what there is instead.
    fn record_loss(&self, fleet: &FleetName, found: Option<StreamId>) -> FleetError {
        let loss = FleetError::lost(fleet, &self.identity.id, found);
        *self.loss.lock() = Some(loss.clone());
        loss
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_stands_for_itself_and_for_what_it_replaces() {
        let [first, other] = [(); 2].map(|()| StreamId::random());
        let mut identity = StreamIdentity::random(LeaseTimes::default());
        let second = identity.id.clone();
        assert!(!identity.stands_for(&first));
        identity.replace([&first, &second, &first]);
        assert_eq!(identity.replaces, std::slice::from_ref(&first));
        assert!(identity.stands_for(&first) && identity.stands_for(&second) && !identity.stands_for(&other));
        let remembered = RememberedFleet { stream: identity, process: "a process".to_owned() };
        let text = remembered.to_text().unwrap();
        assert_eq!(RememberedFleet::parse(&text).unwrap(), remembered);
        for text in ["", "{}", &text.replace(&first.0, "x"), &text.replace("lease", "leases")] {
            assert!(RememberedFleet::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ids_are_tokens_of_subjects() {
        for text in ["", "a.b", &"A".repeat(32), &"0".repeat(31), &"0".repeat(33), &">".repeat(32)] {
            assert_eq!(StreamId::try_from(text.to_owned()), Err(StreamIdError), "{text}");
        }
    }
}
