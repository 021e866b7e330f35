//! The ids that an agent has used.

use a2g_types::ident::IntentId;
use std::collections::{BTreeSet, HashMap};

/// Maximum number of ids of one agent that are remembered.
const MAX_IDS: usize = 100_000;

/// The purpose of a message, which determines whether its id may be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdPurpose {
    /// Runs a tool. The journal detects repeats.
    Execute,
    /// Reports an event, which may be sent again.
    Event,
    /// Requests an action that is performed once.
    Once,
}

/// The result of using an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdUse {
    /// The id is new.
    First,
    /// The id was used for the same purpose, which permits repeats.
    Again,
    /// The id was used before, and may not be used again.
    Spent,
    /// The table of ids is full.
    Full,
}

/// The ids that one agent has used.
#[derive(Debug, Default)]
pub(super) struct UsedIds {
    purposes: HashMap<IntentId, IdPurpose>,
    until_ms: BTreeSet<(u64, IntentId)>,
}

impl UsedIds {
    /// Marks an id as used until `until_ms`. Times are in milliseconds since 1970.
    pub(super) fn use_id(&mut self, id: IntentId, purpose: IdPurpose, now_ms: u64, until_ms: u64) -> IdUse {
        while let Some((_, expired)) = self.until_ms.first().copied().filter(|(until, _)| *until < now_ms) {
            self.until_ms.pop_first();
            self.purposes.remove(&expired);
        }
        match self.purposes.get(&id) {
            Some(IdPurpose::Once) => IdUse::Spent,
            Some(before) if *before == purpose => IdUse::Again,
            Some(_) => IdUse::Spent,
            None if self.purposes.len() >= MAX_IDS => IdUse::Full,
            None => {
                self.purposes.insert(id, purpose);
                self.until_ms.insert((until_ms, id));
                IdUse::First
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_and_events_may_repeat_an_id() {
        let mut used = UsedIds::default();
        let [command, query, event] = [0; 3].map(|_| IntentId::random());
        let mut use_id = |id, purpose, now| used.use_id(id, purpose, now, 1000);
        for (id, purpose, again) in [
            (command, IdPurpose::Execute, IdUse::Again),
            (query, IdPurpose::Once, IdUse::Spent),
            (event, IdPurpose::Event, IdUse::Again),
        ] {
            assert_eq!(use_id(id, purpose, 1), IdUse::First);
            assert_eq!(use_id(id, purpose, 1000), again);
        }
        assert_eq!(use_id(command, IdPurpose::Once, 1000), IdUse::Spent);
        assert_eq!(use_id(event, IdPurpose::Execute, 1000), IdUse::Spent);
        assert_eq!(use_id(query, IdPurpose::Execute, 1001), IdUse::First, "the id is no longer remembered");
    }

    #[test]
    fn the_number_of_remembered_ids_is_limited() {
        let mut used = UsedIds::default();
        for _ in 0..MAX_IDS {
            assert_eq!(used.use_id(IntentId::random(), IdPurpose::Once, 1, 10), IdUse::First);
        }
        assert_eq!(used.use_id(IntentId::random(), IdPurpose::Once, 1, 10), IdUse::Full);
        assert_eq!(used.use_id(IntentId::random(), IdPurpose::Once, 11, 20), IdUse::First);
        assert_eq!((used.purposes.len(), used.until_ms.len()), (1, 1));
    }
}
