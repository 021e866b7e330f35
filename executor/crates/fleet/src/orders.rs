//! Orders that every node follows: stops, cancellations, standing policies and revocations.
//!
//! An order is a key, so that a node that joins later reads the latest of each name. The key `orders` changes with each
//! order: a node that finds it unchanged reads nothing else.

use crate::FleetError;
use crate::member::Member;
use crate::store::{Store, StoredValue, Write};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The key that changes with each order.
const CHANGES: &str = "orders";
/// One of this many looks reads the orders even if [`CHANGES`] has not changed: a node may have been killed between
/// the order and that key.
const LOOKS_UNTIL_ALL: u32 = 30;
/// The maximum number of times that an order is written again because another node has changed it.
const MAX_TRIES: usize = 8;

/// An order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Its name: `KIND.SUBJECT`.
    pub name: String,
    /// Its text.
    pub text: Box<str>,
    revision: u64,
}

/// The orders that this node has read.
#[derive(Debug, Default)]
struct Seen {
    /// The revision of [`CHANGES`].
    changes: u64,
    /// The revision of each order that was returned.
    // One number for all would skip an order that is given while later ones are read.
    returned: HashMap<String, u64>,
    looks: u32,
}

/// The orders of all nodes.
pub struct Orders<S> {
    member: Arc<Member<S>>,
    seen: Mutex<Seen>,
}

impl<S: Store> Orders<S> {
    pub(crate) fn new(member: Arc<Member<S>>) -> Self {
        Self { member, seen: Mutex::default() }
    }

    /// Gives an order. `make` gets the text of the present order with this name, and returns the new text, or `None` if
    /// the present order says the same.
    ///
    /// # Errors
    /// [`FleetError`]; the order may have been given. An error of `make` is returned.
    pub async fn give(
        &self,
        name: &str,
        make: impl Fn(Option<&str>) -> Result<Option<String>, FleetError> + Send,
    ) -> Result<(), FleetError> {
        let key = format!("order.{name}");
        for _ in 0..MAX_TRIES {
            let present = self.member.store.get(&key).await?;
            let text = present.as_ref().map(|present| to_text(&key, present)).transpose()?;
            let Some(new) = make(text.as_deref())? else { return Ok(()) };
            let expected = present.map_or(0, |present| present.revision);
            if let Write::Done(_) = self.member.store.update(&key, new.as_bytes(), expected).await? {
                return self.member.store.put(CHANGES, name.as_bytes()).await.map(drop);
            }
        }
        Err(FleetError::contended("give an order", "other nodes keep changing it"))
    }

    /// Removes an order that all nodes have followed.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn withdraw(&self, name: &str) -> Result<(), FleetError> {
        self.member.store.remove_key(&format!("order.{name}")).await
    }

    /// The orders since the last call, those of this node included, in the order in which they were given. The first
    /// call returns all of them. An order that no node wrote is left out, with a warning in the log.
    ///
    /// # Errors
    /// [`FleetError`]: the next call returns these orders.
    pub async fn take(&self) -> Result<Vec<Order>, FleetError> {
        let changes = match self.member.store.get(CHANGES).await {
            Ok(value) => value.map_or(0, |value| value.revision),
            // Its value says nothing: all orders are read.
            Err(FleetError::Value { .. }) => u64::MAX,
            Err(error) => return Err(error),
        };
        let (is_unchanged, looks) = {
            let seen = self.seen.lock();
            (changes == seen.changes && changes != u64::MAX, (seen.looks + 1) % LOOKS_UNTIL_ALL)
        };
        if is_unchanged && looks > 1 {
            self.seen.lock().looks = looks;
            return Ok(Vec::new());
        }
        let mut orders = Vec::new();
        for key in self.member.store.keys("order.>").await? {
            let name = key.trim_start_matches("order.").to_owned();
            let value = match self.member.store.get(&key).await {
                Ok(Some(value)) => value,
                Ok(None) => continue,
                Err(error @ FleetError::Value { .. }) => {
                    tracing::warn!(key, %error, "an order is ignored");
                    continue;
                }
                Err(error) => return Err(error),
            };
            if self.seen.lock().returned.get(&name).is_none_or(|returned| *returned < value.revision) {
                orders.push(Order { name, text: to_text(&key, &value)?, revision: value.revision });
            }
        }
        orders.sort_by_key(|order| order.revision);
        let mut seen = self.seen.lock();
        (seen.changes, seen.looks) = (changes, looks.max(1));
        seen.returned.extend(orders.iter().map(|order| (order.name.clone(), order.revision)));
        Ok(orders)
    }
}

fn to_text(key: &str, value: &StoredValue) -> Result<Box<str>, FleetError> {
    std::str::from_utf8(&value.bytes).map(Box::from).map_err(|error| FleetError::value(key, error))
}
