//! A cache with a bound.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;

/// Maximum number of entries.
const MAX_ENTRIES: usize = 16_384;
/// Maximum sum of the weights, which are about the bytes that a value takes.
const MAX_WEIGHT: usize = 64 << 20;

/// Values that can be made again. When it is full, some of them are.
#[derive(Debug)]
pub(super) struct Bounded<K, V>(Mutex<Held<K, V>>);

#[derive(Debug)]
struct Held<K, V> {
    entries: HashMap<K, (V, usize)>,
    weight: usize,
}

impl<K, V> Default for Bounded<K, V> {
    fn default() -> Self {
        Self(Mutex::new(Held { entries: HashMap::new(), weight: 0 }))
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Bounded<K, V> {
    /// The value of a key, if it is held.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.0.lock().entries.get(key).map(|(value, _)| value.clone())
    }

    /// Holds a value of this weight, and returns it. One that is heavier than the bound is not held.
    pub(super) fn insert(&self, key: K, value: V, weight: usize) -> V {
        if weight > MAX_WEIGHT {
            return value;
        }
        let mut guard = self.0.lock();
        let held = &mut *guard;
        while held.entries.len() >= MAX_ENTRIES || held.weight + weight > MAX_WEIGHT {
            let Some(any) = held.entries.keys().next().cloned() else { break };
            held.remove(&any);
        }
        held.remove(&key);
        held.entries.insert(key, (value.clone(), weight));
        held.weight += weight;
        value
    }
}

impl<K: Eq + Hash, V> Held<K, V> {
    fn remove(&mut self, key: &K) {
        if let Some((_, weight)) = self.entries.remove(key) {
            self.weight -= weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_entries_nor_weights_exceed_their_bound() {
        for (weight, most) in [(0, MAX_ENTRIES), (1, MAX_ENTRIES), (8 << 20, 8)] {
            let cache = Bounded::default();
            for key in 0..MAX_ENTRIES + 10 {
                assert_eq!(cache.insert(key, key, weight), key);
                assert_eq!(cache.get(&key), Some(key), "the newest is held");
            }
            let held = cache.0.lock();
            assert_eq!((held.entries.len(), held.weight), (most, most * weight), "{weight}");
        }
        let cache = Bounded::default();
        assert_eq!(cache.insert(1, 2, MAX_WEIGHT + 1), 2);
        assert_eq!(cache.get(&1), None);
        for weight in [3, 5] {
            cache.insert(1, 2, weight);
        }
        assert_eq!(cache.0.lock().weight, 5, "a key that is inserted twice counts once");
    }
}
