//! Makes JSON Schemas, as the executor accepts them, of the schemas of a document.
//!
//! References are written out, because models read a schema without them more reliably; only a schema that contains
//! itself is in `$defs`. What exceeds a limit of the executor accepts any value, and a remark says so: first the parts
//! that are nested the deepest.

use super::document::{Document, Version, clean, list_member, object_member, text_member};
use crate::client::is_toml;
use a2g_core::catalog::Schema;
use anyhow::bail;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The depths of nested schemas that are tried, until the whole schema is within the limits.
const DEPTHS: [usize; 9] = [24, 12, 8, 6, 4, 3, 2, 1, 0];
/// The maximum size of a schema as JSON, in bytes. A model reads all of it.
const MAX_BYTES: usize = 48 << 10;
/// The maximum number of nested schemas that are made.
const MAX_SCHEMAS: usize = 2_000;
/// The maximum number of references that are written out inside each other.
const MAX_OPEN: usize = 64;
/// The maximum number of values of an enumeration.
const MAX_ENUM: usize = 200;
/// The maximum number of patterns, of which the executor accepts 64.
const MAX_PATTERNS: usize = 48;
/// The maximum length of a description inside a schema, in characters.
const MAX_DESCRIPTION_CHARS: usize = 300;
/// The maximum length of an example or a default, in characters.
const MAX_VALUE_CHARS: usize = 100;
/// Keywords whose value is copied, if it is a number that TOML has.
const NUMBERS: [&str; 10] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
];
/// Keywords beside `allOf` that say nothing of the value.
const ANNOTATIONS: [&str; 12] = [
    "allOf",
    "default",
    "deprecated",
    "description",
    "discriminator",
    "example",
    "externalDocs",
    "nullable",
    "readOnly",
    "title",
    "writeOnly",
    "xml",
];
/// Keywords of JSON Schema that are left out, so that more is accepted.
const LEFT_OUT: [&str; 11] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "dependentRequired",
    "dependentSchemas",
    "patternProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// The use of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Arguments: strict, so that a mistake is found before anything is sent.
    Request,
    /// An answer, which may have more members than the document knows.
    Response,
}

/// A schema that the executor accepts.
#[derive(Debug)]
pub(crate) struct Converted {
    pub(crate) schema: Value,
    /// What the document says and the schema does not.
    pub(crate) remarks: BTreeSet<&'static str>,
}

/// Makes a schema with `build`, as deep as the limits of the executor permit.
///
/// # Errors
/// Those of `build`, or if no depth gives a schema that the executor accepts.
pub(crate) fn convert<'a>(
    document: &'a Document,
    direction: Direction,
    build: impl Fn(&mut Converter<'a>) -> anyhow::Result<Value>,
) -> anyhow::Result<Converted> {
    let mut refused = String::new();
    for max_depth in DEPTHS {
        let mut converter = Converter::new(document, direction, max_depth);
        let mut schema = build(&mut converter)?;
        converter.add_definitions(&mut schema)?;
        if converter.schemas > MAX_SCHEMAS || schema.to_string().len() > MAX_BYTES {
            continue;
        }
        let checked = match direction {
            Direction::Request => Schema::new(&schema),
            Direction::Response => Schema::new_for_result(&schema),
        };
        match checked {
            Ok(_) => return Ok(Converted { schema, remarks: converter.remarks }),
            Err(error) => refused = error.to_string(),
        }
    }
    if refused.is_empty() {
        bail!("its schema has too many members");
    }
    bail!("its schema cannot be used: {refused}")
}

/// Makes the parts of one schema.
pub(crate) struct Converter<'a> {
    document: &'a Document,
    direction: Direction,
    max_depth: usize,
    /// The number of schemas that were made.
    schemas: usize,
    patterns: usize,
    /// The references that are written out at the moment, each with the number of levels above it.
    open: Vec<(&'a str, usize)>,
    /// The definition's name of each reference that contains itself.
    recursive: BTreeMap<&'a str, String>,
    remarks: BTreeSet<&'static str>,
}

/// The position of a schema.
#[derive(Debug, Clone, Copy)]
struct Level {
    /// The number of objects and lists around it.
    depth: usize,
    /// `true` if another schema examines the same value, so that neither knows all of its members.
    is_combined: bool,
}

impl Level {
    fn below(self) -> Self {
        Self { depth: self.depth + 1, is_combined: false }
    }

    fn combined(self) -> Self {
        Self { is_combined: true, ..self }
    }
}

impl<'a> Converter<'a> {
    fn new(document: &'a Document, direction: Direction, max_depth: usize) -> Self {
        Self {
            document,
            direction,
            max_depth,
            schemas: 0,
            patterns: 0,
            open: Vec::new(),
            recursive: BTreeMap::new(),
            remarks: BTreeSet::new(),
        }
    }

    /// The JSON Schema of a schema of the document.
    ///
    /// # Errors
    /// If a reference leads outside of the document, or to nothing.
    pub(crate) fn schema(&mut self, schema: &'a Value) -> anyhow::Result<Value> {
        self.convert(schema, Level { depth: 0, is_combined: false })
    }

    /// Adds the definitions of the schemas that contain themselves.
    fn add_definitions(&mut self, schema: &mut Value) -> anyhow::Result<()> {
        let mut definitions = Map::new();
        loop {
            // A definition may refer to further ones.
            let mut missing = self.recursive.iter().filter(|(_, name)| !definitions.contains_key(*name));
            let next = missing.next().map(|(reference, name)| (*reference, name.clone()));
            let Some((reference, name)) = next else { break };
            self.open = vec![(reference, 0)];
            let target = self.document.target(reference)?;
            let definition = self.convert(target, Level { depth: 0, is_combined: false })?;
            definitions.insert(name, definition);
        }
        if !definitions.is_empty() {
            schema["$defs"] = Value::Object(definitions);
        }
        Ok(())
    }

    fn convert(&mut self, schema: &'a Value, level: Level) -> anyhow::Result<Value> {
        self.schemas += 1;
        let is_last = self.max_depth == 0 && level.is_combined;
        if is_last || level.depth > self.max_depth || self.schemas > MAX_SCHEMAS || self.open.len() > MAX_OPEN
        {
            self.remarks.insert("deeply nested parts accept any value");
            return Ok(described(schema, Map::new()));
        }
        if let Some(reference) = text_member(schema, "$ref") {
            return self.convert_reference(schema, reference, level);
        }
        let Value::Object(members) = schema else {
            return Ok(if *schema == Value::Bool(false) { json!(false) } else { json!({}) });
        };
        let is_annotation =
            |keyword: &String| ANNOTATIONS.contains(&keyword.as_str()) || keyword.starts_with("x-");
        if let [only] = list_member(schema, "allOf")
            && members.keys().all(is_annotation)
        {
            // The usual way to add a description, or `nullable`, to a reference of 3.0.
            let inner = self.convert(only, level)?;
            let out = inner.as_object().cloned().unwrap_or_default();
            return Ok(described(schema, nullable(out, is_nullable(schema))));
        }
        let mut out = Map::new();
        self.copy_values(schema, &mut out);
        self.convert_members(schema, level, &mut out)?;
        self.convert_items(schema, level, &mut out)?;
        self.convert_combinations(schema, level, &mut out)?;
        if LEFT_OUT.iter().any(|keyword| members.contains_key(*keyword)) {
            self.remarks.insert("some conditions of its schemas are not checked");
        }
        let has_null =
            list_member(schema, "enum").contains(&Value::Null) || members.get("const") == Some(&Value::Null);
        Ok(described(schema, nullable(out, has_null || is_nullable(schema))))
    }

    fn convert_reference(
        &mut self,
        schema: &'a Value,
        reference: &'a str,
        level: Level,
    ) -> anyhow::Result<Value> {
        let target = self.document.target(reference)?;
        if let Some((_, depth)) = self.open.iter().find(|(open, _)| *open == reference) {
            if *depth == level.depth {
                self.remarks.insert("a schema that consists of itself accepts any value");
                return Ok(json!({}));
            }
            let name = self.definition_name(reference);
            return Ok(json!({ "$ref": format!("#/$defs/{name}") }));
        }
        if let Some(name) = self.recursive.get(reference) {
            return Ok(json!({ "$ref": format!("#/$defs/{name}") }));
        }
        self.open.push((reference, level.depth));
        let converted = self.convert(target, level);
        self.open.pop();
        let has_description = self.document.version == Version::V31 && schema.get("description").is_some();
        Ok(match (converted?, has_description) {
            (Value::Object(out), true) => described(schema, out),
            (out, _) => out,
        })
    }

    /// The name of the definition of a reference that contains itself.
    fn definition_name(&mut self, reference: &'a str) -> String {
        if let Some(name) = self.recursive.get(reference) {
            return name.clone();
        }
        let last = reference.rsplit('/').next().unwrap_or_default();
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let plain =
            last.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect::<String>();
        let is_taken = self.recursive.values().any(|name| *name == plain);
        let name = if is_taken { format!("{plain}_{}", self.recursive.len() + 1) } else { plain };
        self.recursive.insert(reference, name.clone());
        name
    }

    /// Copies the keywords that have no schemas.
    fn copy_values(&mut self, schema: &Value, out: &mut Map<String, Value>) {
        match schema.get("type") {
            Some(Value::String(name)) => drop(out.insert("type".to_owned(), name.as_str().into())),
            Some(Value::Array(names)) => {
                let texts = names.iter().filter(|name| name.is_string()).cloned();
                out.insert("type".to_owned(), Value::Array(texts.collect()));
            }
            _ => {}
        }
        for keyword in NUMBERS {
            let number = schema
                .get(keyword)
                .and_then(Value::as_number)
                .filter(|number| !number.is_u64() || number.is_i64());
            if let Some(number) = number {
                out.insert(keyword.to_owned(), number.clone().into());
            }
        }
        // In 3.0, these say whether the limit itself is excluded.
        for (keyword, limit) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
            if schema.get(keyword) == Some(&Value::Bool(true))
                && let Some(number) = out.remove(limit)
            {
                out.insert(keyword.to_owned(), number);
            }
        }
        if let Some(factor) = schema.get("multipleOf").and_then(Value::as_i64).filter(|factor| *factor > 0) {
            out.insert("multipleOf".to_owned(), factor.into());
        }
        if schema.get("uniqueItems") == Some(&Value::Bool(true)) {
            out.insert("uniqueItems".to_owned(), true.into());
        }
        if let Some(format) = text_member(schema, "format").filter(|format| format.len() <= 40) {
            out.insert("format".to_owned(), clean(format, 40).into());
        }
        self.copy_enumeration(schema, out);
        self.copy_pattern(schema, out);
        if self.direction == Direction::Request {
            if let Some(value) = schema.get("default").filter(|value| is_short(value)) {
                out.insert("default".to_owned(), value.clone());
            }
            let examples = list_member(schema, "examples").first();
            if let Some(value) = schema.get("example").or(examples).filter(|value| is_short(value)) {
                out.insert("examples".to_owned(), json!([value]));
            }
        }
    }

    fn copy_enumeration(&mut self, schema: &Value, out: &mut Map<String, Value>) {
        let values = list_member(schema, "enum");
        let kept = values.iter().filter(|value| is_toml(value)).cloned().collect::<Vec<_>>();
        if values.len() > MAX_ENUM {
            self.remarks.insert("long enumerations accept any value");
        } else if !kept.is_empty() {
            out.insert("enum".to_owned(), Value::Array(kept));
        }
        if let Some(value) = schema.get("const").filter(|value| is_toml(value)) {
            out.insert("const".to_owned(), value.clone());
        }
    }

    /// Copies a pattern that the executor can check. It has no look-around, for example.
    fn copy_pattern(&mut self, schema: &Value, out: &mut Map<String, Value>) {
        let Some(pattern) = text_member(schema, "pattern") else { return };
        let is_accepted = self.patterns < MAX_PATTERNS && Schema::new(&json!({ "pattern": pattern })).is_ok();
        if is_accepted {
            self.patterns += 1;
            out.insert("pattern".to_owned(), pattern.into());
        } else {
            self.remarks.insert("some patterns are not checked");
        }
    }

    /// Converts the members of an object.
    fn convert_members(
        &mut self,
        schema: &'a Value,
        level: Level,
        out: &mut Map<String, Value>,
    ) -> anyhow::Result<()> {
        let is_request = self.direction == Direction::Request;
        let is_hidden = |member: &Value| {
            let keyword = if is_request { "readOnly" } else { "writeOnly" };
            member.get(keyword) == Some(&Value::Bool(true))
        };
        let mut properties = Map::new();
        for (name, member) in object_member(schema, "properties") {
            if !is_hidden(member) {
                properties.insert(name.clone(), self.convert(member, level.below())?);
            }
        }
        let hidden =
            |name: &str| schema.get("properties").and_then(|all| all.get(name)).is_some_and(is_hidden);
        let named = list_member(schema, "required").iter().filter_map(Value::as_str);
        let combinations = ["allOf", "anyOf", "oneOf", "patternProperties"];
        let is_combined =
            level.is_combined || combinations.iter().any(|keyword| schema.get(keyword).is_some());
        let has_properties = !properties.is_empty();
        // A member that no schema names could not be passed.
        let is_known =
            |name: &str| !is_request || is_combined || !has_properties || properties.contains_key(name);
        let required = named.filter(|name| !hidden(name) && is_known(name)).collect::<BTreeSet<_>>();
        if !required.is_empty() {
            out.insert("required".to_owned(), json!(required));
        }
        if has_properties {
            out.insert("properties".to_owned(), Value::Object(properties));
        }
        match schema.get("additionalProperties") {
            Some(Value::Bool(false)) if is_request && !is_combined => {
                out.insert("additionalProperties".to_owned(), false.into());
            }
            None if is_request && has_properties && !is_combined => {
                out.insert("additionalProperties".to_owned(), false.into());
            }
            Some(members @ Value::Object(_)) if schema.get("patternProperties").is_none() => {
                let converted = self.convert(members, level.below())?;
                out.insert("additionalProperties".to_owned(), converted);
            }
            Some(_) | None => {}
        }
        Ok(())
    }

    /// Converts the items of a list.
    fn convert_items(
        &mut self,
        schema: &'a Value,
        level: Level,
        out: &mut Map<String, Value>,
    ) -> anyhow::Result<()> {
        if let Some(items) = schema.get("items").filter(|items| !items.is_array()) {
            out.insert("items".to_owned(), self.convert(items, level.below())?);
        }
        let mut first = Vec::new();
        for item in list_member(schema, "prefixItems") {
            first.push(self.convert(item, level.below())?);
        }
        if !first.is_empty() {
            out.insert("prefixItems".to_owned(), Value::Array(first));
        }
        Ok(())
    }

    /// Converts the schemas of which the value has to match all or some. Exactly one is not asked for: alternatives of
    /// documents often overlap.
    fn convert_combinations(
        &mut self,
        schema: &'a Value,
        level: Level,
        out: &mut Map<String, Value>,
    ) -> anyhow::Result<()> {
        let mut all = Vec::new();
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let mut parts = Vec::new();
            for part in list_member(schema, keyword) {
                parts.push(self.convert(part, level.combined())?);
            }
            match keyword {
                "allOf" => all.extend(parts),
                _some if parts.is_empty() => {}
                _some if out.contains_key("anyOf") => all.push(json!({ "anyOf": parts })),
                _some => drop(out.insert("anyOf".to_owned(), Value::Array(parts))),
            }
        }
        if !all.is_empty() {
            out.insert("allOf".to_owned(), Value::Array(all));
        }
        Ok(())
    }
}

/// `true` for a schema of 3.0 that also accepts null.
fn is_nullable(schema: &Value) -> bool {
    schema.get("nullable") == Some(&Value::Bool(true))
}

/// The schema that also accepts null.
fn nullable(mut out: Map<String, Value>, accepts_null: bool) -> Map<String, Value> {
    if !accepts_null || out.is_empty() {
        return out;
    }
    let is_closed =
        ["enum", "const", "allOf", "anyOf", "$ref"].iter().any(|keyword| out.contains_key(*keyword));
    match out.get("type") {
        Some(Value::String(name)) if !is_closed => {
            let names = json!([name, "null"]);
            out.insert("type".to_owned(), names);
            out
        }
        Some(Value::Array(names)) if !is_closed => {
            let mut with_null = names.clone();
            if !with_null.contains(&json!("null")) {
                with_null.push("null".into());
            }
            out.insert("type".to_owned(), Value::Array(with_null));
            out
        }
        None if !is_closed => out,
        Some(_) | None => Map::from_iter([("anyOf".to_owned(), json!([out, { "type": "null" }]))]),
    }
}

/// The schema with the description of `schema`, if that has one.
fn described(schema: &Value, mut out: Map<String, Value>) -> Value {
    let title = text_member(schema, "title").filter(|_| !out.contains_key("description"));
    if let Some(text) = text_member(schema, "description").or(title) {
        let cleaned = clean(text, MAX_DESCRIPTION_CHARS);
        if !cleaned.is_empty() {
            out.insert("description".to_owned(), cleaned.into());
        }
    }
    Value::Object(out)
}

fn is_short(value: &Value) -> bool {
    is_toml(value)
        && !value.is_object()
        && !value.is_array()
        && value.to_string().chars().count() <= MAX_VALUE_CHARS
}

#[cfg(test)]
mod tests;
