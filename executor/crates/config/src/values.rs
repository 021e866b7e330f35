//! Single values: texts of a form and numbers in a range. The error for another one names its key.

use super::error::{InvalidValueError, invalid};
use a2g_types::ident::ToolName;
use a2g_types::quantity::OutOfRangeError;
use std::num::NonZeroU32;
use std::time::Duration;

/// Parses the value of a key.
pub(super) fn parse_value<V, T, E: std::fmt::Display>(
    key: &'static str,
    value: V,
    parse: impl FnOnce(V) -> Result<T, E>,
) -> Result<T, InvalidValueError> {
    parse(value).map_err(|error| invalid(key)(&error))
}

/// Parses the text of a key, if the file sets it.
pub(super) fn parse_optional<T, E: std::fmt::Display>(
    key: &'static str,
    text: Option<String>,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, InvalidValueError> {
    text.map(|text| parse_value(key, text.as_str(), parse)).transpose()
}

pub(super) fn parse_tool_names<T: FromIterator<ToolName>>(
    key: &'static str,
    names: &[String],
) -> Result<T, InvalidValueError> {
    let names = names.iter().map(|name| ToolName::parse(name)).collect::<Result<_, _>>();
    names.map_err(|error| invalid(key)(&error))
}

pub(super) fn check_range(
    key: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<u64, InvalidValueError> {
    if (min..=max).contains(&value) { Ok(value) } else { Err(invalid(key)(&OutOfRangeError { min, max })) }
}

/// Checks that a number is from 1 to `max`.
pub(super) fn check_max(key: &'static str, value: u64, max: u64) -> Result<u64, InvalidValueError> {
    check_range(key, value, 1, max)
}

pub(super) fn check_count(
    key: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<u32, InvalidValueError> {
    // Every maximum of a count fits.
    check_range(key, value, min, max).map(|count| u32::try_from(count).unwrap_or(u32::MAX))
}

pub(super) fn check_rate(key: &'static str, value: u64) -> Result<NonZeroU32, InvalidValueError> {
    // `check_count` refuses zero.
    check_count(key, value, 1, u32::MAX.into()).map(|count| NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN))
}

pub(super) fn check_seconds(
    key: &'static str,
    seconds: u64,
    max: u64,
) -> Result<Duration, InvalidValueError> {
    check_max(key, seconds, max).map(Duration::from_secs)
}

pub(super) fn check_size(key: &'static str, value: u64, max: u64) -> Result<usize, InvalidValueError> {
    check_max(key, value, max).map(to_usize)
}

pub(super) fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
