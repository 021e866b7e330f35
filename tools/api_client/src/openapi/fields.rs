//! Writes arguments into the header fields and the form of a request.

use super::settings::{OpenapiSettings, Place};
use super::uri::{encode, pair, text_of, write_deep, write_joined};
use serde_json::{Map, Value};

/// The header fields of an operation for these arguments, by name.
pub(crate) fn header_fields(
    settings: &OpenapiSettings,
    arguments: &Map<String, Value>,
) -> Vec<(String, String)> {
    let in_header = settings.parameters.iter().filter(|parameter| parameter.place == Place::Header);
    let written = in_header.filter_map(|parameter| {
        let value = arguments.get(&parameter.argument).filter(|value| !value.is_null())?;
        let text = write_joined(value, parameter.explode, "=", ",", &|text| text.to_owned());
        Some((parameter.name.clone(), text))
    });
    written.collect()
}

/// A form as `application/x-www-form-urlencoded`. The items of the `deep` members are numbered, and members of objects
/// are in brackets.
pub(crate) fn write_form(members: &Map<String, Value>, deep: &[String]) -> String {
    let mut pairs = Vec::new();
    for (name, value) in members {
        match (value, deep.contains(name)) {
            (Value::Array(items), false) => pairs.extend(items.iter().map(|item| pair(name, &text_of(item)))),
            _ => write_deep(&encode(name), value, &mut pairs),
        }
    }
    pairs.join("&")
}
