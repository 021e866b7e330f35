//! The stored form of budgets and of their use: the names and the order of the table of limits.

use super::v1;
use crate::limit::{BudgetUsage, Budgets, Consumption, Layer, LimitRow, budget_rows};
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::ser::{SerializeMap as _, Serializer};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;

/// The member for [`Budgets::hard_links`].
const HARD_LINKS: &str = "hard_links";

/// The member for the layers of budgets that are not the executor's ceilings. It is absent if there are none.
const SET_BY: &str = "set_by";

#[derive(Serialize, Deserialize)]
struct StoredLayer(#[serde(with = "v1::Layer")] Layer);

/// Writes each budget in the unit of its key, or `null` if it is not limited.
pub(super) fn serialize<S: Serializer>(budgets: &Budgets, to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(None)?;
    for row in budget_rows() {
        let granted = budgets.granted(row.limit).map(|amount| amount / row.unit.size());
        map.serialize_entry(row.name(), &granted)?;
    }
    map.serialize_entry(HARD_LINKS, &budgets.hard_links)?;
    let layers = budget_rows().map(|row| (row.name(), budgets.layer(row.limit)));
    let lowered = layers.filter(|(_, layer)| *layer != Layer::Executor);
    let lowered = lowered.map(|(name, layer)| (name, StoredLayer(layer))).collect::<BTreeMap<_, _>>();
    if !lowered.is_empty() {
        map.serialize_entry(SET_BY, &lowered)?;
    }
    map.end()
}

/// A map of which no member may occur twice.
struct Unique<K, V>(BTreeMap<K, V>);

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for Unique<K, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members<K, V>(PhantomData<(K, V)>);

        impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Members<K, V> {
            type Value = Unique<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of limits")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Unique<K, V>, A::Error> {
                let mut map = BTreeMap::new();
                while let Some((name, value)) = members.next_entry()? {
                    if map.insert(name, value).is_some() {
                        return Err(A::Error::custom("a member occurs twice"));
                    }
                }
                Ok(Unique(map))
            }
        }

        from.deserialize_map(Members(PhantomData))
    }
}

/// Reads a map of which no member may occur twice.
pub(super) fn deserialize_unique<'de, K, V, D>(from: D) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Unique::deserialize(from).map(|Unique(map)| map)
}

fn find_row(name: &str) -> Option<&'static LimitRow> {
    budget_rows().find(|row| row.name() == name)
}

/// Reads budgets. A receipt lacks only a budget that is younger than it, which did not limit its run. A member that
/// occurs twice is refused.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Budgets, D::Error> {
    struct Members;

    impl<'de> Visitor<'de> for Members {
        type Value = Budgets;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the budgets of a run")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Budgets, A::Error> {
            let mut budgets = Budgets::unlimited();
            let mut hard_links = None;
            let mut seen = BTreeSet::new();
            while let Some(name) = members.next_key::<String>()? {
                if !seen.insert(name.clone()) {
                    return Err(A::Error::custom("a member occurs twice"));
                }
                if name == HARD_LINKS {
                    hard_links = Some(members.next_value()?);
                    continue;
                }
                if name == SET_BY {
                    for (name, StoredLayer(layer)) in members.next_value::<Unique<String, StoredLayer>>()?.0 {
                        if let Some(row) = find_row(&name) {
                            budgets = budgets.with_layer(row.limit, layer);
                        }
                    }
                    continue;
                }
                let Some(row) = find_row(&name) else {
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

    pub(in super::super) fn serialize<S: Serializer>(
        spent: &Option<BudgetUsage>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(&spent.as_ref().map(Written), to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<BudgetUsage>, D::Error> {
        let stored = Option::<Unique<String, Option<u64>>>::deserialize(from)?;
        let amount = |amounts: &BTreeMap<String, Option<u64>>, row: &LimitRow| {
            amounts.get(row.limit.as_str()).copied().flatten().map(|amount| (row.limit, amount))
        };
        Ok(stored.map(|Unique(amounts)| budget_rows().filter_map(|row| amount(&amounts, row)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;

    #[derive(Serialize, Deserialize)]
    struct Stored(#[serde(with = "super")] Budgets);

    #[test]
    fn budgets_are_read_as_they_were_written() {
        let budgets = Budgets::default().with(Limit::Fuel, 5);
        let lowered = budgets.with(Limit::Created, 7).with_layer(Limit::Created, Layer::Condition);
        for (budgets, has_layers) in [(Budgets::default(), false), (budgets, false), (lowered, true)] {
            let text = serde_json::to_string(&Stored(budgets)).unwrap();
            assert_eq!(serde_json::from_str::<Stored>(&text).unwrap().0, budgets, "{text}");
            assert_eq!(text.contains(SET_BY), has_layers, "{text}");
        }
        // An earlier receipt lacks the members of later budgets, and this program ignores those of later ones.
        let other = serde_json::from_str::<Stored>(r#"{"later":1,"created":3,"hard_links":true}"#).unwrap().0;
        assert_eq!((other.granted(Limit::Created), other.granted(Limit::Handles)), (Some(3), None));
        assert!(serde_json::from_str::<Stored>(r#"{"created":3}"#).is_err());
        for twice in [
            r#"{"created":3,"created":4,"hard_links":true}"#,
            r#"{"created":3,"created":null,"hard_links":true}"#,
            r#"{"hard_links":false,"hard_links":true}"#,
            r#"{"hard_links":true,"set_by":{"created":"Tool","created":"Executor"}}"#,
            r#"{"hard_links":true,"set_by":{},"set_by":{"created":"Tool"}}"#,
        ] {
            assert!(serde_json::from_str::<Stored>(twice).is_err(), "{twice}");
        }
        assert!(
            serde_json::from_str::<Stored>(r#"{"written":18446744073709551615,"hard_links":true}"#).is_err()
        );
    }
}
