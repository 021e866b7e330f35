//! Limits on the schema itself, checked before the validator's library sees it.
//!
//! The library follows every combination of `allOf`, `anyOf`, `$ref` and the like that looks at one value, and
//! forty definitions with two references each to the next one have 2^40 of them. A schema with more
//! than [`MAX_PATHS`] for one value is refused, so that the budget of a validation (see [`super::metered`]) is
//! all that is left to hold.

use serde_json::{Map, Value};
use std::collections::HashMap;

/// Bytes of a schema's text.
const MAX_BYTES: usize = 256 << 10;
/// Objects and arrays inside each other, in the text of a schema.
const MAX_DEPTH: usize = 64;
/// Combinations of subschemas that look at one value.
const MAX_PATHS: u64 = 1_000;
/// Subschemas inside each other that look at one value: each takes some of the thread's stack.
const MAX_CHAIN: u64 = 16;
/// Regular expressions. Each may take [`MAX_PATTERN_BYTES`] twice: as a program and as its cache.
const MAX_PATTERNS: usize = 64;
/// Bytes of one compiled regular expression.
pub(super) const MAX_PATTERN_BYTES: usize = 256 << 10;

/// Keywords whose subschema, or list of them, looks at the value that the schema itself looks at.
const IN_PLACE: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else"];
/// Keywords with a map of such subschemas.
const IN_PLACE_BY_NAME: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Keywords that choose their subschema while the value is read, or by a name that can be anywhere.
const UNBOUNDED: [&str; 6] =
    ["$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$anchor", "$vocabulary"];
/// Keywords whose content is data, in which a member's name is no keyword.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];
/// Keywords with a map from names, which are no keywords, to subschemas.
const MAPS: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// Why no limit holds the validation of a schema, with the place in the schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnboundedSchemaError(String);

impl<T: Into<String>> From<T> for UnboundedSchemaError {
    fn from(message: T) -> Self {
        Self(message.into())
    }
}

/// Refuses a text that is too long to be read as a schema.
pub(super) fn check_length(bytes: usize) -> Result<(), UnboundedSchemaError> {
    if bytes > MAX_BYTES {
        return Err(format!("it has {bytes} bytes, and {MAX_BYTES} are the most").into());
    }
    Ok(())
}

/// Refuses a schema whose worst case no limit holds.
///
/// # Errors
/// A sentence with the place in the schema.
pub(super) fn check(schema: &Value) -> Result<(), UnboundedSchemaError> {
    check_length(schema.to_string().len())?;
    let mut subschemas = Vec::new();
    collect(schema, "", 0, &mut subschemas)?;
    let patterns = subschemas.iter().map(|(_, object)| count_patterns(object)).sum::<usize>();
    if patterns > MAX_PATTERNS {
        return Err(format!("it has {patterns} patterns, and {MAX_PATTERNS} are the most").into());
    }
    let mut measure = Measure { root: schema, open: 0, known: HashMap::new() };
    for (place, object) in &subschemas {
        check_names(place, object)?;
        let Shape { paths, chain } = measure
            .object(object)
            .map_err(|reason| UnboundedSchemaError(format!("at `#{place}`, {reason}")))?;
        if paths > MAX_PATHS {
            return Err(format!(
                "at `#{place}`, its combinations of `allOf`, `anyOf`, `oneOf`, `if` and `$ref` are more than \
                 {MAX_PATHS} for a single value"
            )
            .into());
        }
        if chain > MAX_CHAIN {
            return Err(format!(
                "at `#{place}`, {chain} subschemas stand inside each other for a single value, and {MAX_CHAIN} \
                 are the most"
            ).into());
        }
    }
    Ok(())
}

/// Gathers every object that stands where a schema can, with its place as a JSON Pointer.
fn collect<'a>(
    value: &'a Value,
    place: &str,
    depth: usize,
    found: &mut Vec<(String, &'a Map<String, Value>)>,
) -> Result<(), UnboundedSchemaError> {
    if depth > MAX_DEPTH {
        return Err(format!("at `#{place}`, it is nested deeper than {MAX_DEPTH} levels").into());
    }
    match value {
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.try_for_each(|(index, item)| collect(item, &format!("{place}/{index}"), depth + 1, found))
        }
        Value::Object(object) => {
            found.push((place.to_owned(), object));
            object.iter().filter(|(keyword, _)| !DATA.contains(&keyword.as_str())).try_for_each(
                |(keyword, value)| {
                    let place = format!("{place}/{}", escape(keyword));
                    match value.as_object().filter(|_| MAPS.contains(&keyword.as_str())) {
                        Some(named) => named.iter().try_for_each(|(name, value)| {
                            collect(value, &format!("{place}/{}", escape(name)), depth + 2, found)
                        }),
                        None => collect(value, &place, depth + 1, found),
                    }
                },
            )
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn count_patterns(object: &Map<String, Value>) -> usize {
    let by_name = object.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
    by_name + usize::from(object.contains_key("pattern"))
}

/// References that [`Measure`] could not follow.
fn check_names(place: &str, object: &Map<String, Value>) -> Result<(), UnboundedSchemaError> {
    if let Some(keyword) = UNBOUNDED.iter().find(|keyword| object.contains_key(**keyword)) {
        return Err(
            format!("at `#{place}`, `{keyword}` is not supported: use `$ref` with `#/$defs/…`").into()
        );
    }
    // An `$id` inside a schema gives its references another root.
    if !place.is_empty()
        && (object.contains_key("$id") || object.contains_key("id") && object.contains_key("$ref"))
    {
        return Err(format!("at `#{place}`, `$id` is only supported at the root of a schema").into());
    }
    Ok(())
}

/// The work of a schema for one value, without the value's own members and elements.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Ways through the subschemas that look at it.
    paths: u64,
    /// The longest of them.
    chain: u64,
}

impl Shape {
    const LEAF: Self = Self { paths: 1, chain: 1 };
}

/// The shapes of all schemas, by the place in memory where they stand.
struct Measure<'a> {
    root: &'a Value,
    /// Schemas that are being measured.
    open: usize,
    /// `None` while it is being measured.
    known: HashMap<*const Map<String, Value>, Option<Shape>>,
}

impl<'a> Measure<'a> {
    fn value(&mut self, value: &'a Value) -> Result<Shape, UnboundedSchemaError> {
        value.as_object().map_or(Ok(Shape::LEAF), |object| self.object(object))
    }

    fn object(&mut self, object: &'a Map<String, Value>) -> Result<Shape, UnboundedSchemaError> {
        match self.known.get(&std::ptr::from_ref(object)) {
            Some(Some(shape)) => return Ok(*shape),
            Some(None) => return Err("it refers to itself without looking deeper into the value".into()),
            None => {}
        }
        if self.open > MAX_DEPTH {
            return Err(format!(
                "more than {MAX_DEPTH} subschemas stand inside each other for a single value"
            )
            .into());
        }
        self.open += 1;
        self.known.insert(object, None);
        let mut shape = Shape::LEAF;
        for subschema in self.in_place(object)? {
            let Shape { paths, chain } = self.value(subschema)?;
            shape.paths = shape.paths.saturating_add(paths);
            shape.chain = shape.chain.max(chain + 1);
        }
        self.known.insert(object, Some(shape));
        self.open -= 1;
        Ok(shape)
    }

    /// The subschemas that look at the same value.
    fn in_place(&self, object: &'a Map<String, Value>) -> Result<Vec<&'a Value>, UnboundedSchemaError> {
        let mut subschemas = Vec::new();
        for (keyword, value) in object {
            match (keyword.as_str(), value) {
                (keyword, Value::Array(list)) if IN_PLACE.contains(&keyword) => subschemas.extend(list),
                (keyword, value) if IN_PLACE.contains(&keyword) => subschemas.push(value),
                (keyword, Value::Object(named)) if IN_PLACE_BY_NAME.contains(&keyword) => {
                    subschemas.extend(named.values());
                }
                ("$ref", Value::String(reference)) => subschemas.push(self.resolve(reference)?),
                (_other, _value) => {}
            }
        }
        Ok(subschemas)
    }

    /// A reference into the same schema.
    fn resolve(&self, reference: &str) -> Result<&'a Value, UnboundedSchemaError> {
        let shown = || crate::ident::excerpt(reference);
        let outside = || -> UnboundedSchemaError {
            format!("`{}` is not supported: references have the form `#/$defs/…`", shown()).into()
        };
        let pointer = reference.strip_prefix('#').ok_or_else(outside)?;
        let pointer = percent_decoded(pointer).ok_or_else(outside)?;
        if !pointer.is_empty() && !pointer.starts_with('/') {
            return Err(outside());
        }
        let missing = || format!("`{}` refers to nothing", shown()).into();
        self.root.pointer(&pointer).ok_or_else(missing)
    }
}

/// The text of a URI's fragment.
fn percent_decoded(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
}

/// One step of a JSON Pointer.
fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
