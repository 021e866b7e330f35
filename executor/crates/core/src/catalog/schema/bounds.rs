//! Limits on a schema, checked before the validation library compiles the schema.
//!
//! The library follows every combination of `allOf`, `anyOf`, `$ref` and similar keywords that examines one
//! value. Forty definitions, each with two references to the next one, have 2^40 combinations, and following
//! them does not read the value, so [`super::metered`] cannot count them. A schema with more than
//! [`MAX_PATHS`] combinations for one value is rejected; the budget of a validation bounds the remaining
//! cost.

use serde_json::{Map, Value};
use std::collections::HashMap;

/// The maximum length of a schema, in bytes.
const MAX_BYTES: usize = 256 << 10;
/// The maximum nesting of objects and arrays in a schema.
const MAX_DEPTH: usize = 64;
/// The maximum number of combinations of subschemas that examine one value.
const MAX_PATHS: u64 = 1_000;
/// The maximum nesting of subschemas that examine one value. Each level uses some of the thread's stack.
const MAX_CHAIN: u64 = 16;
/// The maximum number of regular expressions. Each may take [`MAX_PATTERN_BYTES`] twice: for its program and
/// for its cache.
const MAX_PATTERNS: usize = 64;
/// The maximum size of one compiled regular expression, in bytes.
pub(super) const MAX_PATTERN_BYTES: usize = 256 << 10;

/// Keywords whose subschema, or list of subschemas, examines the same value as the schema itself.
const IN_PLACE: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else"];
/// Keywords with a map of subschemas that examine the same value as the schema itself.
const IN_PLACE_BY_NAME: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Keywords that [`CostMeter`] does not follow: they select a subschema during validation, or by a name.
const UNBOUNDED: [&str; 6] =
    ["$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$anchor", "$vocabulary"];
/// Keywords whose content is data and not a schema.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];
/// Keywords with a map from names to subschemas.
const MAPS: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// The reason why the cost of a validation has no acceptable bound, with the position in the schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnboundedSchemaError(String);

impl<T: Into<String>> From<T> for UnboundedSchemaError {
    fn from(message: T) -> Self {
        Self(message.into())
    }
}

pub(super) fn check_length(bytes: usize) -> Result<(), UnboundedSchemaError> {
    if bytes > MAX_BYTES {
        return Err(format!("it has {bytes} bytes, but at most {MAX_BYTES} are accepted").into());
    }
    Ok(())
}

/// Rejects a schema whose validation has no acceptable bound.
///
/// # Errors
/// [`UnboundedSchemaError`] with the position in the schema.
pub(super) fn check(schema: &Value) -> Result<(), UnboundedSchemaError> {
    check_length(schema.to_string().len())?;
    let mut subschemas = Vec::new();
    collect(schema, "", 0, &mut subschemas)?;
    let patterns = subschemas.iter().map(|(_, object)| count_patterns(object)).sum::<usize>();
    if patterns > MAX_PATTERNS {
        return Err(format!("it has {patterns} patterns, but at most {MAX_PATTERNS} are accepted").into());
    }
    let mut meter = CostMeter { root: schema, depth: 0, costs: HashMap::new() };
    for (pointer, object) in &subschemas {
        check_references(pointer, object)?;
        let SchemaCost { paths, chain } = meter
            .object(object)
            .map_err(|reason| UnboundedSchemaError(format!("at `#{pointer}`, {reason}")))?;
        if paths > MAX_PATHS {
            return Err(format!(
                "at `#{pointer}`, more than {MAX_PATHS} combinations of `allOf`, `anyOf`, `oneOf`, `if` and `$ref` \
                 apply to a single value"
            )
            .into());
        }
        if chain > MAX_CHAIN {
            return Err(format!(
                "at `#{pointer}`, {chain} nested subschemas apply to a single value, but at most {MAX_CHAIN} \
                 are accepted"
            )
            .into());
        }
    }
    Ok(())
}

/// Collects every object that can be a schema, with its JSON Pointer.
fn collect<'a>(
    value: &'a Value,
    pointer: &str,
    depth: usize,
    subschemas: &mut Vec<(String, &'a Map<String, Value>)>,
) -> Result<(), UnboundedSchemaError> {
    if depth > MAX_DEPTH {
        return Err(format!("at `#{pointer}`, it is nested deeper than {MAX_DEPTH} levels").into());
    }
    match value {
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.try_for_each(|(index, item)| {
                collect(item, &format!("{pointer}/{index}"), depth + 1, subschemas)
            })
        }
        Value::Object(object) => {
            subschemas.push((pointer.to_owned(), object));
            object.iter().filter(|(keyword, _)| !DATA.contains(&keyword.as_str())).try_for_each(
                |(keyword, value)| {
                    let pointer = format!("{pointer}/{}", escape_token(keyword));
                    match value.as_object().filter(|_| MAPS.contains(&keyword.as_str())) {
                        Some(map) => map.iter().try_for_each(|(name, value)| {
                            collect(
                                value,
                                &format!("{pointer}/{}", escape_token(name)),
                                depth + 2,
                                subschemas,
                            )
                        }),
                        None => collect(value, &pointer, depth + 1, subschemas),
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

/// Rejects references that [`CostMeter`] cannot follow.
fn check_references(pointer: &str, object: &Map<String, Value>) -> Result<(), UnboundedSchemaError> {
    if let Some(keyword) = UNBOUNDED.iter().find(|keyword| object.contains_key(**keyword)) {
        return Err(
            format!("at `#{pointer}`, `{keyword}` is not supported: use `$ref` with `#/$defs/…`").into()
        );
    }
    // An `$id` in a subschema would change the root of its references.
    if !pointer.is_empty()
        && (object.contains_key("$id") || object.contains_key("id") && object.contains_key("$ref"))
    {
        return Err(format!("at `#{pointer}`, `$id` is only supported at the root of a schema").into());
    }
    Ok(())
}

/// The validation cost of a schema for one value, without the cost for the value's members and elements.
#[derive(Debug, Clone, Copy)]
struct SchemaCost {
    /// The number of combinations of subschemas.
    paths: u64,
    /// The maximum nesting of subschemas.
    chain: u64,
}

impl SchemaCost {
    const LEAF: Self = Self { paths: 1, chain: 1 };
}

/// Computes the costs of subschemas.
struct CostMeter<'a> {
    root: &'a Value,
    /// The number of nested schemas in progress.
    depth: usize,
    /// The costs by the address of the schema; `None` while a schema is in progress.
    costs: HashMap<*const Map<String, Value>, Option<SchemaCost>>,
}

impl<'a> CostMeter<'a> {
    fn value(&mut self, value: &'a Value) -> Result<SchemaCost, UnboundedSchemaError> {
        value.as_object().map_or(Ok(SchemaCost::LEAF), |object| self.object(object))
    }

    fn object(&mut self, object: &'a Map<String, Value>) -> Result<SchemaCost, UnboundedSchemaError> {
        match self.costs.get(&std::ptr::from_ref(object)) {
            Some(Some(cost)) => return Ok(*cost),
            Some(None) => return Err("it refers to itself for the same value".into()),
            None => {}
        }
        if self.depth > MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} nested subschemas apply to a single value").into());
        }
        self.depth += 1;
        self.costs.insert(object, None);
        let mut cost = SchemaCost::LEAF;
        for subschema in self.in_place(object)? {
            let SchemaCost { paths, chain } = self.value(subschema)?;
            cost.paths = cost.paths.saturating_add(paths);
            cost.chain = cost.chain.max(chain + 1);
        }
        self.costs.insert(object, Some(cost));
        self.depth -= 1;
        Ok(cost)
    }

    /// The subschemas that examine the same value.
    fn in_place(&self, object: &'a Map<String, Value>) -> Result<Vec<&'a Value>, UnboundedSchemaError> {
        let mut subschemas = Vec::new();
        for (keyword, value) in object {
            match (keyword.as_str(), value) {
                (keyword, Value::Array(list)) if IN_PLACE.contains(&keyword) => subschemas.extend(list),
                (keyword, value) if IN_PLACE.contains(&keyword) => subschemas.push(value),
                (keyword, Value::Object(map)) if IN_PLACE_BY_NAME.contains(&keyword) => {
                    subschemas.extend(map.values());
                }
                ("$ref", Value::String(reference)) => subschemas.push(self.resolve(reference)?),
                (_other, _value) => {}
            }
        }
        Ok(subschemas)
    }

    /// Resolves a reference to a subschema of the same schema.
    fn resolve(&self, reference: &str) -> Result<&'a Value, UnboundedSchemaError> {
        let excerpt = || a2g_types::ident::excerpt(reference);
        let outside = || -> UnboundedSchemaError {
            format!("`{}` is not supported: references have the form `#/$defs/…`", excerpt()).into()
        };
        let pointer = reference.strip_prefix('#').ok_or_else(outside)?;
        let pointer = percent_decode(pointer).ok_or_else(outside)?;
        if !pointer.is_empty() && !pointer.starts_with('/') {
            return Err(outside());
        }
        let missing = || format!("`{}` refers to nothing", excerpt()).into();
        self.root.pointer(&pointer).ok_or_else(missing)
    }
}

fn percent_decode(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Escapes one token of a JSON Pointer.
fn escape_token(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
