//! The ids that an agent has used.

use a2g_types::ident::IntentId;
use std::collections::{BTreeSet, HashMap};

/// Ids of one agent that are remembered at once.
const MAX_IDS: usize = 100_000;

/// The use of an id, which decides if it may come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdPurpose {
    /// Runs a tool. The journal detects repeats.
    Execute,
    /// Reports an event, which may be sent again.
    Event,
    /// Asks for something that is done once.
    Once,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdUse {
    /// The id is new.
    First,
    /// The id was used for the same purpose, which may come again.
    Again,
    /// The id was used before, and may not come again.
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
    /// Marks an id as used. It is remembered until `until_ms`, in milliseconds since 1970.
    pub(super) fn use_id(&mut self, id: IntentId, purpose: IdPurpose, now_ms: u64, until_ms: u64) -> IdUse {
        while let Some((_, gone)) = self.until_ms.first().copied().filter(|(until, _)| *until < now_ms) {
            self.until_ms.pop_first();
            self.purposes.remove(&gone);
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
    fn an_id_is_used_once_but_for_what_may_come_again() {
        let mut used = UsedIds::default();
        let [command, query, event] = [0; 3].map(|_| IntentId::random());
        let mut spend = |id, purpose, now| used.use_id(id, purpose, now, 1000);
        for (id, purpose, again) in [
            (command, IdPurpose::Execute, IdUse::Again),
            (query, IdPurpose::Once, IdUse::Spent),
            (event, IdPurpose::Event, IdUse::Again),
        ] {
            assert_eq!(spend(id, purpose, 1), IdUse::First);
            assert_eq!(spend(id, purpose, 1000), again);
        }
        assert_eq!(spend(command, IdPurpose::Once, 1000), IdUse::Spent);
        assert_eq!(spend(event, IdPurpose::Execute, 1000), IdUse::Spent);
        assert_eq!(spend(query, IdPurpose::Execute, 1001), IdUse::First, "it is remembered no longer");
    }

    #[test]
    fn no_more_ids_are_remembered_than_there_may_be() {
        let mut used = UsedIds::default();
        for _ in 0..MAX_IDS {
            assert_eq!(used.use_id(IntentId::random(), IdPurpose::Once, 1, 10), IdUse::First);
        }
        assert_eq!(used.use_id(IntentId::random(), IdPurpose::Once, 1, 10), IdUse::Full);
        assert_eq!(used.use_id(IntentId::random(), IdPurpose::Once, 11, 20), IdUse::First);
        assert_eq!((used.purposes.len(), used.until_ms.len()), (1, 1));
    }
}
