//! A strict reader of JSON objects, member by member, with the JSON Pointer of each value.
//!
//! The text of a value is examined before it is converted, so a number counts as an integer only when it is
//! written as one, and a message quotes no more of the input than [`excerpt`] allows. (A derived `Deserialize`
//! accepts an array in place of an object, and its messages quote the input in full.)

use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, Issuer, ToolName, did_you_mean, excerpt};
use a2g_types::outcome::Status;
use a2g_types::quantity::OutOfRangeError;
use a2g_types::session::{SessionHandle, SessionRequest};
use a2g_types::stop::OperatorReason;
use a2g_types::tool::Digest;
use a2g_types::verdict::{Decision, RiskLevel};
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt;
use strum::VariantArray;
use time::OffsetDateTime;

/// The last second that RFC 3339 can express: 9999-12-31T23:59:59Z.
const LATEST_SECOND: u64 = 253_402_300_799;

/// A JSON value and its pointer from the root of the message.
#[derive(Debug)]
pub(super) struct Field<'a> {
    raw: &'a RawValue,
    pointer: String,
}

/// The members of an object that have not been taken yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Object<'a> {
    pointer: String,
    members: Vec<(Cow<'a, str>, &'a RawValue)>,
    /// The names that a reader has asked for, which are those that an object can have.
    known: Vec<&'static str>,
}

/// A type that every protocol writes in the same way, so that a member needs no more than its name.
///
/// A quantity that messages have in several units, such as a timeout, is not one: its decoder names the unit.
pub(super) trait Decode<'a>: Sized {
    /// Decodes the value of a member.
    fn decode(field: Field<'a>) -> Result<Self, Fault>;
}

/// Implements [`Decode`] for types that one method of [`Field`] reads.
macro_rules! decode_by {
    ($($method:ident $arguments:tt: $type:ty;)+) => {
        $(impl $crate::field::Decode<'_> for $type {
            fn decode(field: $crate::field::Field<'_>) -> Result<Self, a2g_types::fault::Fault> {
                field.$method $arguments
            }
        })+
    };
}
pub(super) use decode_by;

decode_by! {
    string(): String;
    strings(): Vec<String>;
    boolean(): bool;
    map(): Map<String, Value>;
    parse_with(AgentDid::parse): AgentDid;
    parse_with(IntentId::parse): IntentId;
    parse_with(ToolName::parse): ToolName;
    parse_with(Issuer::parse): Issuer;
    parse_with(Digest::parse): Digest;
    parse_with(OperatorReason::parse): OperatorReason;
    parse_with(SessionHandle::parse): SessionHandle;
    parse_with(SessionRequest::parse): SessionRequest;
    enum_variant(): Decision;
    enum_variant(): RiskLevel;
    enum_variant(): Status;
}

impl<'a> Decode<'a> for Object<'a> {
    fn decode(field: Field<'a>) -> Result<Self, Fault> {
        field.object()
    }
}

/// Appends a token to a pointer, escaped as RFC 6901 requires.
fn child_pointer(pointer: &str, token: &str) -> String {
    format!("{pointer}/{}", token.replace('~', "~0").replace('/', "~1"))
}

/// The name of a value in messages: the last token of its pointer, or `list[index]` for an element.
fn display_name(pointer: &str) -> String {
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
    /// Parses a complete JSON text.
    pub(super) fn parse(text: &'a str) -> Result<Self, Fault> {
        let raw = serde_json::from_str(text).map_err(|error| {
            Fault::Parse(format!("not JSON at line {} column {}", error.line(), error.column()))
        })?;
        Ok(Self { raw, pointer: String::new() })
    }

    pub(super) fn as_raw(&self) -> &'a RawValue {
        self.raw
    }

    pub(super) fn pointer(&self) -> &str {
        &self.pointer
    }

    /// The fault of this value, with a message of the caller.
    pub(super) fn fault(&self, message: impl Into<String>) -> Fault {
        Fault::invalid(&self.pointer, message)
    }

    pub(super) fn is_null(&self) -> bool {
        self.raw.get() == "null"
    }

    pub(super) fn is_object(&self) -> bool {
        self.raw.get().starts_with('{')
    }

    /// The fault for a value of the wrong type or range; `expected` completes "must be …".
    pub(super) fn expected_error(&self, expected: &str) -> Fault {
        let name = display_name(&self.pointer);
        let shown = excerpt(self.raw.get());
        self.fault(format!("`{name}` must be {expected}, not `{shown}`"))
    }

    /// The fault for a value that another module's parser rejects with a message of its own.
    pub(super) fn invalid(&self, reason: &impl fmt::Display) -> Fault {
        self.fault(format!("`{}`: {reason}", display_name(&self.pointer)))
    }

    /// Reads the members of an object. Rejects arrays, which serde would accept for a struct.
    pub(super) fn object(self) -> Result<Object<'a>, Fault> {
        let members = self.convert::<RawMembers<'a>>('{', "an object")?.0;
        Ok(Object { pointer: self.pointer, members, known: Vec::new() })
    }

    /// Converts an object to a map, without checking its members.
    pub(super) fn map(&self) -> Result<Map<String, Value>, Fault> {
        self.convert('{', "a JSON object whose numbers fit in 64 bits")
    }

    pub(super) fn string(&self) -> Result<String, Fault> {
        self.convert('"', "a string")
    }

    pub(super) fn list(&self) -> Result<Vec<Field<'a>>, Fault> {
        self.elements("a list")
    }

    pub(super) fn strings(&self) -> Result<Vec<String>, Fault> {
        self.elements("a list of strings")?.iter().map(Field::string).collect()
    }

    fn elements(&self, expected: &str) -> Result<Vec<Field<'a>>, Fault> {
        let elements: Vec<&'a RawValue> = self.convert('[', expected)?;
        let element = |(index, raw)| Field { raw, pointer: format!("{}/{index}", self.pointer) };
        Ok(elements.into_iter().enumerate().map(element).collect())
    }

    pub(super) fn boolean(&self) -> Result<bool, Fault> {
        match self.raw.get() {
            "true" => Ok(true),
            "false" => Ok(false),
            _other => Err(self.expected_error("true or false")),
        }
    }

    /// An integer that `convert` accepts, written only in digits: `5.0`, `5e1`, `-0`, `"5"` and `null` are rejected.
    pub(super) fn quantity<T>(
        &self,
        convert: impl Fn(u64) -> Result<T, OutOfRangeError>,
    ) -> Result<T, Fault> {
        // Of all JSON numbers, std parses only plain digits as `u64`.
        let value: Option<u64> = self.raw.get().parse().ok();
        // `convert` reports its range only in an error, which a number below or above the range causes.
        let range = match value.map(&convert) {
            Some(Ok(quantity)) => return Ok(quantity),
            Some(Err(range)) => Some(range),
            None => convert(0).err().or_else(|| convert(u64::MAX).err()),
        };
        let OutOfRangeError { min, max } = range.unwrap_or(OutOfRangeError { min: 0, max: u64::MAX });
        Err(self.expected_error(&format!("an integer from {min} to {max}")))
    }

    pub(super) fn integer(&self, min: u64, max: u64) -> Result<u64, Fault> {
        self.quantity(|value| {
            if (min..=max).contains(&value) { Ok(value) } else { Err(OutOfRangeError { min, max }) }
        })
    }

    /// A `NumericDate` of RFC 7519, in whole seconds.
    pub(super) fn timestamp(&self) -> Result<OffsetDateTime, Fault> {
        let seconds = self.integer(0, LATEST_SECOND)?;
        let moment = i64::try_from(seconds).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
        moment.ok_or_else(|| self.expected_error("a time in seconds"))
    }

    /// A number in any JSON notation, within `min..=max`.
    pub(super) fn number(&self, min: f64, max: f64) -> Result<f64, Fault> {
        let text = self.raw.get();
        let is_number = text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        let value: Option<f64> = if is_number { text.parse().ok() } else { None };
        let in_range = value.filter(|value| (min..=max).contains(value) && value.is_finite());
        in_range.ok_or_else(|| match max.is_finite() {
            true => self.expected_error(&format!("a number from {min} to {max}")),
            false => self.expected_error(&format!("a number of at least {min}")),
        })
    }

    pub(super) fn parse_with<T, E: fmt::Display>(
        &self,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, Fault> {
        parse(&self.string()?).map_err(|error| self.invalid(&error))
    }

    /// The value that `names` has for the string.
    pub(super) fn enum_value<T: Copy>(&self, names: &[(&str, T)]) -> Result<T, Fault> {
        let text = self.string()?;
        let value = names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        value.ok_or_else(|| {
            let names: Vec<String> = names.iter().map(|(name, _)| format!("`{name}`")).collect();
            self.expected_error(&format!("one of {}", names.join(", ")))
        })
    }

    /// The variant of an enum that has this name.
    pub(super) fn enum_variant<T: Copy + Into<&'static str> + VariantArray>(&self) -> Result<T, Fault> {
        let names = T::VARIANTS.iter().map(|variant| ((*variant).into(), *variant));
        self.enum_value(&names.collect::<Vec<_>>())
    }

    fn convert<T: Deserialize<'a>>(&self, first: char, expected: &str) -> Result<T, Fault> {
        let is_expected_kind = self.raw.get().starts_with(first);
        let value = if is_expected_kind { serde_json::from_str(self.raw.get()).ok() } else { None };
        value.ok_or_else(|| self.expected_error(expected))
    }
}

impl<'a> Object<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, Fault> {
        Field::parse(text)?.object()
    }

    /// Removes and returns a member if it is present, `null` included.
    ///
    /// # Errors
    /// [`Fault::InvalidParams`] when the member is present twice.
    pub(super) fn take(&mut self, name: &'static str) -> Result<Option<Field<'a>>, Fault> {
        self.known.push(name);
        let Some(index) = self.members.iter().position(|(key, _)| key == name) else { return Ok(None) };
        let field =
            Field { raw: self.members.swap_remove(index).1, pointer: child_pointer(&self.pointer, name) };
        if self.members.iter().any(|(key, _)| key == name) {
            return Err(Fault::invalid(field.pointer, format!("`{name}` occurs twice")));
        }
        Ok(Some(field))
    }

    /// Removes and returns a member; `null` counts as absent.
    pub(super) fn take_unless_null(&mut self, name: &'static str) -> Result<Option<Field<'a>>, Fault> {
        Ok(self.take(name)?.filter(|field| !field.is_null()))
    }

    /// Removes and returns a mandatory member.
    pub(super) fn require(&mut self, name: &'static str) -> Result<Field<'a>, Fault> {
        self.take(name)?.ok_or_else(|| self.missing(name))
    }

    /// The fault for a mandatory member that is absent.
    pub(super) fn missing(&self, name: &str) -> Fault {
        Fault::invalid(child_pointer(&self.pointer, name), format!("`{name}` is missing"))
    }

    /// Reads a mandatory member.
    pub(super) fn read<T: Decode<'a>>(&mut self, name: &'static str) -> Result<T, Fault> {
        T::decode(self.require(name)?)
    }

    /// Reads a member if it is present; `null` is a value of it.
    pub(super) fn read_optional<T: Decode<'a>>(&mut self, name: &'static str) -> Result<Option<T>, Fault> {
        self.read_optional_with(name, T::decode)
    }

    /// Reads a member if it is present; `null` counts as absent.
    pub(super) fn read_nullable<T: Decode<'a>>(&mut self, name: &'static str) -> Result<Option<T>, Fault> {
        self.read_nullable_with(name, T::decode)
    }

    /// [`Object::read_optional`] with a decoder.
    pub(super) fn read_optional_with<T>(
        &mut self,
        name: &'static str,
        decode: impl FnOnce(Field<'a>) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        self.take(name)?.map(decode).transpose()
    }

    /// [`Object::read_nullable`] with a decoder.
    pub(super) fn read_nullable_with<T>(
        &mut self,
        name: &'static str,
        decode: impl FnOnce(Field<'a>) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        self.take_unless_null(name)?.map(decode).transpose()
    }

    /// Reads members, and rejects those that are left; see [`Object::finish`].
    pub(super) fn read_all<T>(
        mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let value = read(&mut self)?;
        self.finish()?;
        Ok(value)
    }

    /// The members that have not been taken, with their names.
    pub(super) fn remaining(self) -> impl Iterator<Item = (Cow<'a, str>, Field<'a>)> {
        let Self { pointer, members, known: _ } = self;
        members.into_iter().map(move |(key, raw)| {
            let pointer = child_pointer(&pointer, &key);
            (key, Field { raw, pointer })
        })
    }

    /// Rejects remaining members. Call this for objects that restrict something: an unknown member could be a
    /// restriction that would not be enforced.
    ///
    /// # Errors
    /// [`Fault::InvalidParams`] that names the unknown member, and those that the object can have.
    pub(super) fn finish(mut self) -> Result<(), Fault> {
        let Some((key, _)) = self.members.first() else { return Ok(()) };
        self.known.sort_unstable();
        let nearest = did_you_mean(key, self.known.iter().copied());
        let names = self.known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let known = if names.is_empty() { "none" } else { &names };
        let message =
            format!("`{}` is not a known member{nearest}; the members here are {known}", excerpt(key));
        // Pointers are never truncated, so only a short key is included in one.
        let pointer = if key.len() <= 64 { child_pointer(&self.pointer, key) } else { self.pointer };
        Err(Fault::invalid(pointer, message))
    }
}

/// The members of an object in the order of the text, duplicates included.
struct RawMembers<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for RawMembers<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);

        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((key, raw)) = map.next_entry::<MemberName<'de>, &'de RawValue>()? {
                    members.push((key.0, raw));
                }
                Ok(members)
            }
        }
        reader.deserialize_map(MembersVisitor).map(Self)
    }
}
