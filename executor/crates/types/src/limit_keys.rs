//! The keys of limits in a table of a file, which has other keys too.

use crate::limit::{KeyNumbers, LIMITS};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// A table that has keys of limits among others.
pub trait LimitKeys: Default {
    /// The name of the type in messages.
    const NAME: &'static str;

    /// All keys, in the order in which a message lists them.
    fn keys() -> &'static [&'static str];

    /// The numbers of the limits.
    fn numbers(&mut self) -> &mut KeyNumbers;

    /// Reads the value of a key that is not of a limit.
    ///
    /// # Errors
    /// If the value has another form.
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, members: &mut A) -> Result<(), A::Error>;
}

/// Reads a table. A key that is absent has the value of its default.
///
/// # Errors
/// For an unknown key, one that occurs twice, and a value of another form.
pub fn deserialize<'de, T: LimitKeys, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    from.deserialize_map(Members(PhantomData))
}

struct Members<T>(PhantomData<T>);

impl<'de, T: LimitKeys> Visitor<'de> for Members<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "struct {}", T::NAME)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<T, A::Error> {
        let mut table = T::default();
        let mut seen = Vec::new();
        while let Some(key) = members.next_key_seed(Key(T::keys()))? {
            if seen.contains(&key) {
                return Err(A::Error::duplicate_field(key));
            }
            seen.push(key);
            match LIMITS.iter().find(|row| row.key() == key) {
                Some(row) => table.numbers().set(row.limit, Some(members.next_value()?)),
                None => table.read(key, &mut members)?,
            }
        }
        Ok(table)
    }
}

/// One of these keys. An unknown one is refused here and not by the table, so that the message has its line.
struct Key(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Key {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Key {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key of the table")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        let known = self.0.iter().find(|known| **known == name);
        known.copied().ok_or_else(|| E::unknown_field(name, self.0))
    }
}
