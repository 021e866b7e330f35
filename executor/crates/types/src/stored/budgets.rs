//! The stored form of budgets and of their use: the names and the order of the table of limits.

use crate::limit::{BudgetUsage, Budgets, Consumption, budget_rows};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::ser::{SerializeMap as _, Serializer};
use std::fmt;

/// The member for [`Budgets::hard_links`].
const HARD_LINKS: &str = "hard_links";

/// Writes each budget in the unit of its key, or `null` if it is not limited.
pub(super) fn serialize<S: Serializer>(budgets: &Budgets, to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(None)?;
    for row in budget_rows() {
        let granted = budgets.granted(row.limit).map(|amount| amount / row.unit.size());
        map.serialize_entry(row.stored().unwrap_or_default(), &granted)?;
    }
    map.serialize_entry(HARD_LINKS, &budgets.hard_links)?;
    map.end()
}

/// Reads budgets. One that the receipt does not have was not limited.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Budgets, D::Error> {
    struct Members;

    impl<'de> Visitor<'de> for Members {
        type Value = Budgets;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the budgets of a run")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Budgets, A::Error> {
            let mut budgets = Budgets::UNLIMITED;
            let mut hard_links = None;
            while let Some(name) = members.next_key::<String>()? {
                if name == HARD_LINKS {
                    hard_links = Some(members.next_value()?);
                    continue;
                }
                let Some(row) = budget_rows().find(|row| row.stored() == Some(&*name)) else {
                    members.next_value::<IgnoredAny>()?;
                    continue;
                };
                if let Some(value) = members.next_value::<Option<u64>>()? {
                    let amount = value.checked_mul(row.unit.size());
                    let amount = amount.ok_or_else(|| A::Error::custom("a budget that is too large"))?;
                    budgets = budgets.with(row.limit, amount);
                }
            }
            budgets.hard_links = hard_links.ok_or_else(|| A::Error::missing_field(HARD_LINKS))?;
            Ok(budgets)
        }
    }

    from.deserialize_map(Members)
}

/// The stored form of a run's use of its budgets, under the names of [`crate::limit::Limit::as_str`].
pub(super) mod spent {
    use super::*;

    struct Written<'a>(&'a BudgetUsage);

    impl serde::Serialize for Written<'_> {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            let mut map = to.serialize_map(None)?;
            for row in budget_rows().filter(|row| row.consumption == Consumption::Total) {
                map.serialize_entry(row.limit.as_str(), &self.0.amount(row.limit))?;
            }
            map.end()
        }
    }

    struct Read(BudgetUsage);

    impl<'de> Deserialize<'de> for Read {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            from.deserialize_map(Members)
        }
    }

    struct Members;

    impl<'de> Visitor<'de> for Members {
        type Value = Read;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the use of a run's budgets")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Read, A::Error> {
            let mut amounts = Vec::new();
            while let Some(name) = members.next_key::<String>()? {
                let Some(row) = budget_rows().find(|row| row.limit.as_str() == name) else {
                    members.next_value::<IgnoredAny>()?;
                    continue;
                };
                amounts.extend(members.next_value::<Option<u64>>()?.map(|amount| (row.limit, amount)));
            }
            Ok(Read(amounts.into_iter().collect()))
        }
    }

    pub(in super::super) fn serialize<S: Serializer>(
        spent: &Option<BudgetUsage>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(&spent.as_ref().map(Written), to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<BudgetUsage>, D::Error> {
        Ok(Option::deserialize(from)?.map(|Read(spent)| spent))
    }
}
