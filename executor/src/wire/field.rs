//! Taking a JSON object apart member by member, with a JSON Pointer at every step.
//!
//! The text of a value is looked at before it is converted, so that a number is an integer only
//! when it is written as one, and that a message never echoes more of the input than
//! [`excerpt`] lets through. (A derived `Deserialize` accepts an array where an object belongs, and
//! its messages quote the input whole.)

use crate::fault::Fault;
use crate::ident::excerpt;
use crate::quantity::OutOfRange;
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt;
use strum::VariantArray;
use time::OffsetDateTime;

/// The latest second that RFC 3339 can write: 9999-12-31T23:59:59Z.
const LATEST_SECOND: u64 = 253_402_300_799;

/// A value with the place where it stands.
#[derive(Debug)]
pub(super) struct Field<'a> {
    raw: &'a RawValue,
    pointer: String,
}

/// An object that is being taken apart.
#[derive(Debug)]
pub(super) struct Object<'a> {
    pointer: String,
    members: Vec<(Cow<'a, str>, &'a RawValue)>,
}

/// One token behind a pointer, escaped as RFC 6901 asks.
fn below(pointer: &str, token: &str) -> String {
    format!("{pointer}/{}", token.replace('~', "~0").replace('/', "~1"))
}

/// How a message names the value at a pointer: by its last token, and an element by its list.
fn name_of(pointer: &str) -> String {
    let mut tokens = pointer.rsplit('/');
    let last = tokens.next().unwrap_or_default();
    let list = tokens.next().unwrap_or_default();
    let is_index = !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit());
    match (last, is_index) {
        ("", _) => "params".to_owned(),
        (_, true) => format!("{}[{last}]", excerpt(list)),
        (_, false) => excerpt(last),
    }
}

impl<'a> Field<'a> {
    /// The whole of a text.
    pub(super) fn root(text: &'a str) -> Result<Self, Fault> {
        let raw = serde_json::from_str(text).map_err(|error| {
            Fault::Parse(format!("not JSON at line {} column {}", error.line(), error.column()))
        })?;
        Ok(Self { raw, pointer: String::new() })
    }

    /// The value as it was written.
    pub(super) fn raw(&self) -> &'a RawValue {
        self.raw
    }

    /// Where the value stands.
    pub(super) fn pointer(&self) -> &str {
        &self.pointer
    }

    /// Whether it is `null`.
    pub(super) fn is_null(&self) -> bool {
        self.raw.get() == "null"
    }

    /// Whether it is an object.
    pub(super) fn is_object(&self) -> bool {
        self.raw.get().starts_with('{')
    }

    /// The fault of this value: that it must be something else.
    pub(super) fn must_be(&self, expected: &str) -> Fault {
        let (name, shown) = (name_of(&self.pointer), excerpt(self.raw.get()));
        Fault::invalid(&self.pointer, format!("`{name}` must be {expected}, not `{shown}`"))
    }

    /// A value that some other room's parser refused with a message of its own.
    pub(super) fn refused(&self, why: &impl fmt::Display) -> Fault {
        Fault::invalid(&self.pointer, format!("`{}`: {why}", name_of(&self.pointer)))
    }

    /// An object, and nothing that only resembles one.
    pub(super) fn object(self) -> Result<Object<'a>, Fault> {
        let members = self.convert::<Members<'a>>('{', "an object")?.0;
        Ok(Object { pointer: self.pointer, members })
    }

    /// An object that is kept as it is.
    pub(super) fn map(&self) -> Result<Map<String, Value>, Fault> {
        self.convert('{', "an object of JSON whose numbers fit in 64 bits")
    }

    /// A string.
    pub(super) fn text(&self) -> Result<String, Fault> {
        self.convert('"', "a string")
    }

    /// A list, element by element.
    pub(super) fn list(self) -> Result<Vec<Field<'a>>, Fault> {
        let elements: Vec<&'a RawValue> = self.convert('[', "a list")?;
        let element = |(index, raw)| Field { raw, pointer: format!("{}/{index}", self.pointer) };
        Ok(elements.into_iter().enumerate().map(element).collect())
    }

    /// A list of strings.
    pub(super) fn texts(self) -> Result<Vec<String>, Fault> {
        let elements: Vec<&'a RawValue> = self.convert('[', "a list of strings")?;
        let element = |(index, raw)| Field { raw, pointer: format!("{}/{index}", self.pointer) }.text();
        elements.into_iter().enumerate().map(element).collect()
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self) -> Result<bool, Fault> {
        match self.raw.get() {
            "true" => Ok(true),
            "false" => Ok(false),
            _other => Err(self.must_be("true or false")),
        }
    }

    /// An integer of a quantity. It is written in digits only: `5.0`, `5e1`, `-0`, `"5"` and `null`
    /// are none.
    pub(super) fn quantity<T>(&self, make: impl Fn(u64) -> Result<T, OutOfRange>) -> Result<T, Fault> {
        // Of what JSON calls a number, std reads plain digits as a `u64` and nothing else.
        let value: Option<u64> = self.raw.get().parse().ok();
        // A quantity that refuses 0 says its range by refusing it.
        let range = match value.map(&make) {
            Some(Ok(quantity)) => return Ok(quantity),
            Some(Err(range)) => Some(range),
            None => make(0).err(),
        };
        let OutOfRange { least, most } = range.unwrap_or(OutOfRange { least: 0, most: u64::MAX });
        Err(self.must_be(&format!("an integer from {least} to {most}")))
    }

    /// An integer of a range.
    pub(super) fn integer(&self, least: u64, most: u64) -> Result<u64, Fault> {
        self.quantity(|value| {
            if (least..=most).contains(&value) { Ok(value) } else { Err(OutOfRange { least, most }) }
        })
    }

    /// A `NumericDate` of RFC 7519, in whole seconds.
    pub(super) fn second(&self) -> Result<OffsetDateTime, Fault> {
        let seconds = self.integer(0, LATEST_SECOND)?;
        let moment = i64::try_from(seconds).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
        moment.ok_or_else(|| self.must_be("a time in seconds"))
    }

    /// A number of a range, in any notation of JSON.
    pub(super) fn number(&self, least: f64, most: f64) -> Result<f64, Fault> {
        let text = self.raw.get();
        let is_number = text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        let value: Option<f64> = if is_number { text.parse().ok() } else { None };
        let in_range = value.filter(|value| (least..=most).contains(value) && value.is_finite());
        in_range.ok_or_else(|| match most.is_finite() {
            true => self.must_be(&format!("a number from {least} to {most}")),
            false => self.must_be(&format!("a number of at least {least}")),
        })
    }

    /// A string that `parse` accepts.
    pub(super) fn parsed<T, E: fmt::Display>(
        &self,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, Fault> {
        parse(&self.text()?).map_err(|error| self.refused(&error))
    }

    /// One of the words of a closed set.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, Fault> {
        let text = self.text()?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        found.ok_or_else(|| {
            let words: Vec<String> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
            self.must_be(&format!("one of {}", words.join(", ")))
        })
    }

    /// One of the words of an enum, which may be any of its variants.
    pub(super) fn one_of<T: Copy + Into<&'static str> + VariantArray>(&self) -> Result<T, Fault> {
        let words = T::VARIANTS.iter().map(|variant| ((*variant).into(), *variant));
        self.word(&words.collect::<Vec<_>>())
    }

    fn convert<T: Deserialize<'a>>(&self, first: char, expected: &str) -> Result<T, Fault> {
        let right_kind = self.raw.get().starts_with(first);
        let value = if right_kind { serde_json::from_str(self.raw.get()).ok() } else { None };
        value.ok_or_else(|| self.must_be(expected))
    }
}

impl<'a> Object<'a> {
    /// The object that a text is.
    pub(super) fn root(text: &'a str) -> Result<Self, Fault> {
        Field::root(text)?.object()
    }

    /// Takes out a member when it is there, `null` included.
    ///
    /// # Errors
    /// [`Fault::InvalidParams`] when the member is there twice.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<Field<'a>>, Fault> {
        let Some(index) = self.members.iter().position(|(key, _)| key == name) else { return Ok(None) };
        let field = Field { raw: self.members.swap_remove(index).1, pointer: below(&self.pointer, name) };
        if self.members.iter().any(|(key, _)| key == name) {
            return Err(Fault::invalid(field.pointer, format!("`{name}` is there twice")));
        }
        Ok(Some(field))
    }

    /// Takes out a member that says nothing when it is `null`.
    pub(super) fn take_unless_null(&mut self, name: &str) -> Result<Option<Field<'a>>, Fault> {
        Ok(self.take(name)?.filter(|field| !field.is_null()))
    }

    /// Takes out a member that has to be there.
    pub(super) fn need(&mut self, name: &str) -> Result<Field<'a>, Fault> {
        self.take(name)?
            .ok_or_else(|| Fault::invalid(below(&self.pointer, name), format!("`{name}` is missing")))
    }

    /// The members that are left, by their names.
    pub(super) fn rest(self) -> impl Iterator<Item = (Cow<'a, str>, Field<'a>)> {
        let Self { pointer, members } = self;
        members.into_iter().map(move |(key, raw)| {
            let pointer = below(&pointer, &key);
            (key, Field { raw, pointer })
        })
    }

    /// Ends the taking apart of an object that restricts: a member that is left over could be a
    /// restriction that nobody would enforce.
    ///
    /// # Errors
    /// [`Fault::InvalidParams`] that names the unknown member.
    pub(super) fn end(self) -> Result<(), Fault> {
        let Some((key, _)) = self.members.first() else { return Ok(()) };
        // A pointer is not cut, so it names only a key that is short.
        let pointer = if key.len() <= 64 { below(&self.pointer, key) } else { self.pointer };
        Err(Fault::invalid(pointer, format!("`{}` is not known here", excerpt(key))))
    }
}

/// The members of an object in the order in which they came.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((key, raw)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
                    members.push((key.0, raw));
                }
                Ok(members)
            }
        }
        reader.deserialize_map(All).map(Self)
    }
}
