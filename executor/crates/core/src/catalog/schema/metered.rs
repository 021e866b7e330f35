//! JSON values whose accesses are counted, so that a validation ends within a budget of steps.
//!
//! The validator reads values only through [`Metered`]. After the budget is exhausted, every value appears as
//! `null` and every list as ended, so that the validator returns soon; [`run_within`] discards its result.
//! The budget is thread-local, because the validator creates nodes for property names, which contain only the
//! text.

use jsonschema::JsonType;
use jsonschema::json::{Array, Json, JsonNumber, Node, NodeIdentity, Object};
use serde_json::{Map, Number, Value};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;

/// The number of bytes of text that cost one step.
const BYTES_PER_STEP: usize = 64;
/// The largest absolute value of an integer that every JSON reader represents exactly.
const MAX_EXACT_INTEGER: u64 = (1 << 53) - 1;

thread_local! {
    /// The remaining steps of the validation on this thread.
    static REMAINING_STEPS: Cell<u64> = const { Cell::new(0) };
}

/// The budget was exhausted before the end of the validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exhausted;

/// Runs one validation with a budget of `steps`.
pub(super) fn run_within<T>(steps: u64, validate: impl FnOnce() -> T) -> Result<T, Exhausted> {
    REMAINING_STEPS.set(steps);
    let result = validate();
    if REMAINING_STEPS.replace(0) == 0 { Err(Exhausted) } else { Ok(result) }
}

/// Takes steps from the budget. Returns `false` when it is exhausted.
fn charge(steps: usize) -> bool {
    let remaining = REMAINING_STEPS.get().saturating_sub(u64::try_from(steps).unwrap_or(u64::MAX));
    REMAINING_STEPS.set(remaining);
    remaining > 0
}

/// The JSON representation that the validator uses.
pub(super) struct MeteredJson;

/// A value whose accesses are counted.
#[derive(Clone, Copy)]
pub(super) struct Metered<'a>(pub(super) &'a Value);

impl<'a> Metered<'a> {
    /// The value, or `null` after the budget is exhausted.
    fn read(self) -> &'a Value {
        if charge(1) { self.0 } else { &Value::Null }
    }
}

impl Json for MeteredJson {
    type Node<'a> = Metered<'a>;
    type PreparedKey = String;
    type StringBuffer = Value;

    fn prepare_key(key: &str) -> String {
        key.to_owned()
    }

    fn with_string_node<T>(buffer: &mut Value, string: &str, f: impl FnOnce(Metered<'_>) -> T) -> T {
        *buffer = Value::String(string.to_owned());
        f(Metered(buffer))
    }
}

impl<'a> Node<'a, MeteredJson> for Metered<'a> {
    type Object = MeteredObject<'a>;
    type Array = MeteredArray<'a>;
    type Number = MeteredNumber<'a>;

    fn as_object(&self) -> Option<MeteredObject<'a>> {
        self.read().as_object().map(MeteredObject)
    }

    fn as_array(&self) -> Option<MeteredArray<'a>> {
        self.read().as_array().map(|items| MeteredArray(items))
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        let text = self.read().as_str()?;
        charge(text.len() / BYTES_PER_STEP).then_some(Cow::Borrowed(text))
    }

    fn as_number(&self) -> Option<MeteredNumber<'a>> {
        self.read().as_number().map(MeteredNumber)
    }

    fn as_boolean(&self) -> Option<bool> {
        self.read().as_bool()
    }

    fn is_null(&self) -> bool {
        self.read().is_null()
    }

    fn json_type(&self) -> JsonType {
        match self.read() {
            Value::Null => JsonType::Null,
            Value::Bool(_) => JsonType::Boolean,
            Value::Number(_) => JsonType::Number,
            Value::String(_) => JsonType::String,
            Value::Array(_) => JsonType::Array,
            Value::Object(_) => JsonType::Object,
        }
    }

    /// Costs one step, because a comparison reads at most the size of `expected`, which is part of the
    /// schema.
    fn equals_value(&self, expected: &Value) -> bool {
        jsonschema::json::cmp::equal(self.read(), expected)
    }

    fn to_value(&self) -> Cow<'a, Value> {
        Cow::Borrowed(self.read())
    }

    fn identity(&self) -> Option<NodeIdentity> {
        Some(NodeIdentity::new(std::ptr::from_ref(self.0).addr()))
    }
}

/// An object, whose members cost one step each.
pub(super) struct MeteredObject<'a>(&'a Map<String, Value>);

impl<'a> Object<'a, MeteredJson> for MeteredObject<'a> {
    type Node = Metered<'a>;
    type MemberName = &'a str;
    type MembersIter = MeteredMembers<'a>;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, key: &String) -> Option<Metered<'a>> {
        if charge(1) { self.0.get(key).map(Metered) } else { None }
    }

    fn members(&self) -> MeteredMembers<'a> {
        MeteredMembers(self.0.iter())
    }
}

/// The members of an object until they, or the budget, end.
pub(super) struct MeteredMembers<'a>(serde_json::map::Iter<'a>);

impl<'a> Iterator for MeteredMembers<'a> {
    type Item = (&'a str, Metered<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if !charge(1) {
            return None;
        }
        self.0.next().map(|(name, value)| (name.as_str(), Metered(value)))
    }
}

/// An array, whose elements cost one step each.
pub(super) struct MeteredArray<'a>(&'a [Value]);

impl<'a> Array<'a, MeteredJson> for MeteredArray<'a> {
    type Node = Metered<'a>;
    type ElementsIter = MeteredElements<'a>;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn elements(&self) -> MeteredElements<'a> {
        MeteredElements(self.0.iter())
    }

    /// Replaces the library's comparison by hashes, which are equal for all arrays of empty arrays: with
    /// these, a caller could force a comparison of each pair of elements. Here only equal elements have equal
    /// keys.
    fn is_unique(&self) -> bool {
        let mut seen = HashSet::new();
        for element in self.elements() {
            let mut key = Vec::new();
            write_key(element.0, &mut key);
            if !charge(key.len() / BYTES_PER_STEP) || !seen.insert(key) {
                return false;
            }
        }
        true
    }
}

/// The elements of an array until they, or the budget, end.
pub(super) struct MeteredElements<'a>(std::slice::Iter<'a, Value>);

impl<'a> Iterator for MeteredElements<'a> {
    type Item = Metered<'a>;

    fn next(&mut self) -> Option<Metered<'a>> {
        if charge(1) { self.0.next().map(Metered) } else { None }
    }
}

/// Writes a key that is the same for two values exactly if they are equal in JSON Schema: members are sorted
/// by name, and numbers are compared by their mathematical value.
fn write_key(value: &Value, key: &mut Vec<u8>) {
    match value {
        Value::Null => key.push(b'n'),
        Value::Bool(value) => key.push(if *value { b't' } else { b'f' }),
        Value::Number(number) => write_number(number, key),
        Value::String(text) => write_text(text, key),
        Value::Array(items) => {
            key.push(b'[');
            items.iter().for_each(|item| write_key(item, key));
            key.push(b']');
        }
        Value::Object(members) => {
            let mut members = members.iter().collect::<Vec<_>>();
            members.sort_unstable_by_key(|(name, _)| *name);
            key.push(b'{');
            for (name, value) in members {
                write_text(name, key);
                write_key(value, key);
            }
            key.push(b'}');
        }
    }
}

fn write_text(text: &str, key: &mut Vec<u8>) {
    key.push(b's');
    key.extend(text.len().to_le_bytes());
    key.extend(text.as_bytes());
}

/// Writes the key of a number. `1` and `1.0` have the same key.
fn write_number(number: &Number, key: &mut Vec<u8>) {
    let integer = number.as_i128().or_else(|| float_to_integer(number.as_f64()?));
    match integer {
        Some(integer) => {
            key.push(b'i');
            key.extend(integer.to_le_bytes());
        }
        None => {
            key.push(b'd');
            key.extend(number.as_f64().unwrap_or_default().to_le_bytes());
        }
    }
}

/// The value of a float as an integer, if the value is an integer that fits into 128 bits.
#[allow(clippy::cast_possible_truncation, reason = "`fits` checks the bounds")]
fn float_to_integer(number: f64) -> Option<i128> {
    let fits = number.fract() == 0.0 && number.abs() < 2_f64.powi(126);
    fits.then_some(number as i128)
}

/// A number. An integer that a reader with doubles would change does not match `type: integer`.
pub(super) struct MeteredNumber<'a>(&'a Number);

impl JsonNumber for MeteredNumber<'_> {
    fn as_u64(&self) -> Option<u64> {
        self.0.as_u64()
    }

    fn as_i64(&self) -> Option<i64> {
        self.0.as_i64()
    }

    fn as_f64(&self) -> Option<f64> {
        self.0.as_f64()
    }

    fn as_str(&self) -> Cow<'_, str> {
        Cow::Owned(self.0.to_string())
    }

    fn to_number(&self) -> Cow<'_, Number> {
        Cow::Borrowed(self.0)
    }

    fn is_integer(&self) -> bool {
        let is_whole = self.0.as_f64().is_some_and(|number| number.fract() == 0.0);
        is_whole && !is_inexact_integer(self.0)
    }
}

/// `true` for an integer beyond [`MAX_EXACT_INTEGER`].
pub(super) fn is_inexact_integer(number: &Number) -> bool {
    #[allow(clippy::cast_precision_loss, reason = "the bound is below 2^53 and converts exactly")]
    let bound = MAX_EXACT_INTEGER as f64;
    number.as_f64().is_some_and(|number| number.fract() == 0.0 && number.abs() > bound)
}
