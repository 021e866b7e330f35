//! Orders that every node follows: stops, cancellations, standing policies and revocations.
//!
//! An order is a key, so that a node that joins later reads the latest of each name. The key `orders` changes with each
//! order: a node that finds it unchanged reads nothing else.

use crate::FleetError;
use crate::claims::Fleet;
use crate::store::{Store, StoredValue, Write};
use parking_lot::Mutex;

/// The key that changes with each order.
const CHANGES: &str = "orders";
/// The number of looks after which the orders are read even if [`CHANGES`] has not changed: a node may have been killed
/// between the order and that key.
const LOOKS: u32 = 30;
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
pub(crate) struct SeenOrders(Mutex<Seen>);

#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    /// The revision of [`CHANGES`].
    changes: u64,
    /// The revision of the latest order.
    latest: u64,
    looks: u32,
}

impl<S: Store> Fleet<S> {
    /// Gives an order. `make` gets the text of the present order with this name, and returns the new text, or `None` if
    /// the present order stays.
    ///
    /// # Errors
    /// [`FleetError`]; the order may have been given.
    pub async fn give_order(
        &self,
        name: &str,
        make: impl Fn(Option<&str>) -> Option<String> + Send,
    ) -> Result<(), FleetError> {
        let key = format!("order.{name}");
        for _ in 0..MAX_TRIES {
            let present = self.store.get(&key).await?;
            let text = present.as_ref().map(|present| to_text(&key, present)).transpose()?;
            let Some(new) = make(text.as_deref()) else { return Ok(()) };
            let expected = present.map_or(0, |present| present.revision);
            if let Write::Done(_) = self.store.update(&key, new.as_bytes(), expected).await? {
                return self.store.put(CHANGES, name.as_bytes()).await.map(drop);
            }
        }
        Err(FleetError::unavailable("give an order", "other nodes keep changing it"))
    }

    /// Removes an order that all nodes have followed.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn withdraw_order(&self, name: &str) -> Result<(), FleetError> {
        let Some(value) = self.store.get(&format!("order.{name}")).await? else { return Ok(()) };
        self.store.remove(value.revision).await
    }

    /// The orders since the last call, those of this node included, in the order in which they were given. The first
    /// call returns all of them.
    ///
    /// # Errors
    /// [`FleetError`]: the next call returns these orders.
    pub async fn take_orders(&self) -> Result<Vec<Order>, FleetError> {
        let seen = *self.orders.0.lock();
        let changes = self.store.get(CHANGES).await?.map_or(0, |value| value.revision);
        let looks = (seen.looks + 1) % LOOKS;
        if changes == seen.changes && looks != 0 && seen.looks != 0 {
            self.orders.0.lock().looks = looks;
            return Ok(Vec::new());
        }
        let mut orders = Vec::new();
        for key in self.store.keys("order.").await? {
            let Some(value) = self.store.get(&key).await? else { continue };
            if value.revision > seen.latest {
                let name = key.trim_start_matches("order.").to_owned();
                orders.push(Order { name, text: to_text(&key, &value)?, revision: value.revision });
            }
        }
        orders.sort_by_key(|order| order.revision);
        let latest = orders.last().map_or(seen.latest, |order| order.revision);
        *self.orders.0.lock() = Seen { changes, latest, looks: looks.max(1) };
        Ok(orders)
    }
}

fn to_text(key: &str, value: &StoredValue) -> Result<Box<str>, FleetError> {
    std::str::from_utf8(&value.bytes).map(Box::from).map_err(|error| FleetError::value(key, error))
}
