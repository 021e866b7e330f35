//! Places of which each caller has a limited number, so that no caller takes all of them.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The places that are taken, by caller.
pub(super) struct Places {
    max: usize,
    max_per_caller: usize,
    taken: Arc<Mutex<HashMap<Box<str>, usize>>>,
}

/// One place, until it is dropped.
pub(super) struct Place {
    taken: Arc<Mutex<HashMap<Box<str>, usize>>>,
    caller: Box<str>,
}

impl Places {
    pub(super) fn new(max: usize, max_per_caller: usize) -> Self {
        Self { max, max_per_caller, taken: Arc::default() }
    }

    /// Takes a place for this caller; `None` if too many are taken.
    pub(super) fn take(&self, caller: &str) -> Option<Place> {
        let mut taken = self.taken.lock();
        let all = taken.values().sum::<usize>();
        let own = taken.get(caller).copied().unwrap_or(0);
        if all >= self.max || own >= self.max_per_caller {
            return None;
        }
        taken.insert(caller.into(), own + 1);
        Some(Place { taken: Arc::clone(&self.taken), caller: caller.into() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        let remaining = taken.get(&self.caller).map_or(0, |count| count.saturating_sub(1));
        if remaining == 0 {
            taken.remove(&self.caller);
        } else {
            taken.insert(self.caller.clone(), remaining);
        }
    }
}
