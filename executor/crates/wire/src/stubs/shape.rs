//! The part of a JSON Schema that a type can express.
//!
//! A shape accepts every value that its schema accepts, and often more. Only members that a schema does not name are
//! left out unless it allows them expressly, because a model would have to guess them.

use super::text::{MAX_LITERAL_BYTES, MAX_MEMBER_DOC, one_line};
use serde_json::{Map, Value};

/// Maximum number of members of one object.
const MAX_FIELDS: usize = 100;
/// Maximum length of a member's name, in bytes.
const MAX_NAME_BYTES: usize = 100;
/// Maximum number of alternatives of one union.
const MAX_ALTERNATIVES: usize = 24;
/// Maximum number of tokens of a reference.
const MAX_POINTER_TOKENS: usize = 16;

/// The extent to which a schema is followed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Detail {
    /// `true` for descriptions and defaults of members.
    has_docs: bool,
    /// Maximum nesting.
    depth: usize,
    /// Maximum number of subschemas.
    subschemas: usize,
}

impl Detail {
    /// All of them, the most detailed first.
    pub(super) const EVERY: [Self; 5] = [
        Self { has_docs: true, depth: 8, subschemas: 256 },
        Self { has_docs: false, depth: 8, subschemas: 256 },
        Self { has_docs: false, depth: 3, subschemas: 64 },
        Self { has_docs: false, depth: 1, subschemas: 16 },
        Self { has_docs: false, depth: 0, subschemas: 0 },
    ];
}

/// A type.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Shape {
    /// Any value.
    #[default]
    Unknown,
    Null,
    Boolean,
    Integer,
    Number,
    Text,
    /// One string, number or boolean.
    Literal(Value),
    List(Box<Shape>),
    /// An object with values of one type under any names.
    Map(Box<Shape>),
    Object(Object),
    Union(Vec<Shape>),
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Object {
    pub(super) fields: Vec<Field>,
    /// `true` if there may be members with other names.
    pub(super) is_open: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) is_required: bool,
    /// On one line; empty if there is none.
    pub(super) doc: String,
    /// A scalar.
    pub(super) default: Option<Value>,
}

impl Shape {
    /// A union of different types, without nested unions.
    fn union(shapes: impl IntoIterator<Item = Self>) -> Self {
        let mut members = Vec::new();
        for shape in shapes {
            let nested = match shape {
                Self::Unknown => return Self::Unknown,
                Self::Union(nested) => nested,
                Self::Null
                | Self::Boolean
                | Self::Integer
                | Self::Number
                | Self::Text
                | Self::Literal(_)
                | Self::List(_)
                | Self::Map(_)
                | Self::Object(_) => vec![shape],
            };
            for shape in nested {
                if !members.contains(&shape) {
                    members.push(shape);
                }
            }
        }
        match members.len() {
            0 => Self::Unknown,
            1 => members.remove(0),
            2..=MAX_ALTERNATIVES => Self::Union(members),
            _ => Self::Unknown,
        }
    }

    /// The type of values that have both types, or one that accepts more.
    fn both(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown, shape) | (shape, Self::Unknown) => shape,
            (Self::Object(first), Self::Object(second)) => Self::Object(first.merge(second)),
            (Self::Map(_), object @ Self::Object(_)) => object,
            // An alternative is usually narrower than the type that applies to all of them.
            (
                Self::Null
                | Self::Boolean
                | Self::Integer
                | Self::Number
                | Self::Text
                | Self::List(_)
                | Self::Map(_),
                narrow @ (Self::Literal(_) | Self::Union(_)),
            ) => narrow,
            (first, _) => first,
        }
    }

    /// The number of types in it.
    fn weight(&self) -> usize {
        match self {
            Self::Unknown
            | Self::Null
            | Self::Boolean
            | Self::Integer
            | Self::Number
            | Self::Text
            | Self::Literal(_) => 1,
            Self::List(element) | Self::Map(element) => 1 + element.weight(),
            Self::Object(object) => 1 + object.fields.iter().map(|field| field.shape.weight()).sum::<usize>(),
            Self::Union(alternatives) => 1 + alternatives.iter().map(Self::weight).sum::<usize>(),
        }
    }
}

impl Object {
    /// The members of either object; a common member has both types.
    fn merge(mut self, other: Self) -> Self {
        for field in other.fields {
            match self.fields.iter_mut().find(|own| own.name == field.name) {
                Some(own) => {
                    own.is_required |= field.is_required;
                    own.shape = std::mem::take(&mut own.shape).both(field.shape);
                    if own.doc.is_empty() {
                        own.doc = field.doc;
                    }
                    own.default = own.default.take().or(field.default);
                }
                None => self.fields.push(field),
            }
        }
        self.is_open |= other.is_open;
        self
    }

    /// The members of arguments: those of every alternative, required if they are in all of them.
    pub(super) fn of_arguments(shape: &Shape) -> Self {
        match shape {
            Shape::Object(object) => object.clone(),
            Shape::Union(alternatives) => {
                let mut objects = alternatives.iter().map(Self::of_arguments);
                let first = objects.next().unwrap_or_default();
                objects.fold(first, Self::either)
            }
            Shape::Unknown
            | Shape::Null
            | Shape::Boolean
            | Shape::Integer
            | Shape::Number
            | Shape::Text
            | Shape::Literal(_)
            | Shape::List(_)
            | Shape::Map(_) => Self { fields: Vec::new(), is_open: true },
        }
    }

    fn either(mut self, other: Self) -> Self {
        for own in &mut self.fields {
            let counterpart = other.fields.iter().find(|field| field.name == own.name);
            own.is_required &= counterpart.is_some_and(|field| field.is_required);
            if let Some(field) = counterpart {
                own.shape = Shape::union([std::mem::take(&mut own.shape), field.shape.clone()]);
            }
        }
        for field in other.fields {
            if !self.fields.iter().any(|own| own.name == field.name) {
                self.fields.push(Field { is_required: false, ..field });
            }
        }
        self.is_open |= other.is_open;
        self
    }
}

/// Reads one schema.
pub(super) struct Reader<'a> {
    root: &'a Value,
    detail: Detail,
    /// The number of subschemas that may still be read.
    left: usize,
    /// The references that are being followed: a type that contains itself ends as [`Shape::Unknown`].
    references: Vec<&'a str>,
}

type Members = Map<String, Value>;

impl<'a> Reader<'a> {
    pub(super) fn read(schema: &'a Value, detail: Detail) -> Shape {
        let mut reader = Self { root: schema, detail, left: detail.subschemas, references: Vec::new() };
        reader.shape(schema, detail.depth)
    }

    fn shape(&mut self, schema: &'a Value, depth: usize) -> Shape {
        let Some(members) = schema.as_object() else { return Shape::Unknown };
        if self.left == 0 {
            return Shape::Unknown;
        }
        self.left -= 1;
        let mut shape = self.own_shape(members, depth);
        if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
            shape = self.follow(reference, depth).both(shape);
        }
        for part in list(members, "allOf") {
            let part = self.shape(part, depth);
            shape = shape.both(part);
        }
        for key in ["anyOf", "oneOf"] {
            let alternatives = list(members, key);
            if !alternatives.is_empty() {
                let alternatives = alternatives.iter().map(|part| self.shape(part, depth));
                let alternatives = Shape::union(alternatives.collect::<Vec<_>>());
                shape = self.narrow(shape, alternatives);
            }
        }
        // As in OpenAPI 3.0.
        let is_nullable = members.get("nullable").is_some_and(|nullable| nullable == true);
        if is_nullable { Shape::union([shape, Shape::Null]) } else { shape }
    }

    /// The shape of a schema without its alternatives, combined with them: each gets the members that all have in
    /// common.
    fn narrow(&mut self, own: Shape, alternatives: Shape) -> Shape {
        let Shape::Union(shapes) = &alternatives else { return own.both(alternatives) };
        if !matches!(own, Shape::Object(_)) {
            return own.both(alternatives);
        }
        // Each copy counts, because the copies of nested objects multiply.
        let copies = own.weight() * shapes.len();
        if copies > self.left || !shapes.iter().all(|shape| matches!(shape, Shape::Object(_) | Shape::Map(_)))
        {
            return own;
        }
        self.left -= copies;
        Shape::union(shapes.iter().map(|shape| own.clone().both(shape.clone())))
    }

    /// The shape of a subschema that the document has elsewhere.
    fn follow(&mut self, reference: &'a str, depth: usize) -> Shape {
        if self.references.contains(&reference) {
            return Shape::Unknown;
        }
        let Some(schema) = resolve(self.root, reference) else { return Shape::Unknown };
        self.references.push(reference);
        let shape = self.shape(schema, depth);
        self.references.pop();
        shape
    }

    /// The shape without references and alternatives.
    fn own_shape(&mut self, members: &'a Members, depth: usize) -> Shape {
        if let Some(value) = members.get("const") {
            return literal(value);
        }
        if let Some(values) = members.get("enum").and_then(Value::as_array) {
            let read = if values.len() > MAX_ALTERNATIVES { widened } else { literal };
            return Shape::union(values.iter().map(read));
        }
        match members.get("type") {
            Some(Value::String(kind)) => self.kind(kind, members, depth),
            Some(Value::Array(kinds)) => {
                let kinds = kinds.iter().map(|kind| match kind.as_str() {
                    Some(kind) => self.kind(kind, members, depth),
                    None => Shape::Unknown,
                });
                Shape::union(kinds.collect::<Vec<_>>())
            }
            Some(_) => Shape::Unknown,
            None if members.contains_key("properties") => self.object(members, depth),
            None if members.get("items").is_some_and(Value::is_object) => self.array(members, depth),
            None => Shape::Unknown,
        }
    }

    fn kind(&mut self, kind: &str, members: &'a Members, depth: usize) -> Shape {
        match kind {
            "null" => Shape::Null,
            "boolean" => Shape::Boolean,
            "integer" => Shape::Integer,
            "number" => Shape::Number,
            "string" => Shape::Text,
            "array" => self.array(members, depth),
            "object" => self.object(members, depth),
            _other => Shape::Unknown,
        }
    }

    /// A list of anything that an element may be. Places have no types of their own.
    fn array(&mut self, members: &'a Members, depth: usize) -> Shape {
        let Some(depth) = depth.checked_sub(1) else { return Shape::List(Box::default()) };
        let items = members.get("items");
        let places = list(members, "prefixItems");
        // Before 2020-12, `items` had the places and `additionalItems` the rest.
        let (rest, places) = match items {
            Some(Value::Array(places)) => (members.get("additionalItems"), places.as_slice()),
            items => (items, places),
        };
        let rest_shape = match rest {
            Some(Value::Bool(false)) if !places.is_empty() => None,
            Some(schema) => Some(self.shape(schema, depth)),
            None => Some(Shape::Unknown),
        };
        let places = places.iter().map(|place| self.shape(place, depth)).collect::<Vec<_>>();
        Shape::List(Box::new(Shape::union(places.into_iter().chain(rest_shape))))
    }

    fn object(&mut self, members: &'a Members, depth: usize) -> Shape {
        let Some(depth) = depth.checked_sub(1) else { return Shape::Map(Box::default()) };
        let properties = members.get("properties").and_then(Value::as_object);
        let patterns = members.get("patternProperties").and_then(Value::as_object);
        let has_patterns = patterns.is_some_and(|patterns| !patterns.is_empty());
        let additional = members.get("additionalProperties");
        let mut object = self.fields(members, properties, depth);
        object.is_open |= has_patterns || additional.is_some_and(|schema| *schema != false);
        let is_map = object.fields.is_empty() && (object.is_open || additional.is_none());
        if !is_map {
            return Shape::Object(object);
        }
        let patterns = patterns.into_iter().flat_map(Map::values).take(MAX_ALTERNATIVES);
        let values = patterns.chain(additional.filter(|schema| **schema != false));
        let values = values.map(|schema| self.shape(schema, depth)).collect::<Vec<_>>();
        Shape::Map(Box::new(Shape::union(values)))
    }

    fn fields(&mut self, members: &'a Members, properties: Option<&'a Members>, depth: usize) -> Object {
        let mut object = Object::default();
        let required = list(members, "required");
        for (name, schema) in properties.into_iter().flatten() {
            if *schema == false {
                continue;
            }
            if object.fields.len() == MAX_FIELDS || name.len() > MAX_NAME_BYTES {
                object.is_open = true;
                continue;
            }
            object.fields.push(Field {
                name: name.clone(),
                shape: self.shape(schema, depth),
                is_required: required.iter().any(|required| required == name),
                doc: self.doc(schema),
                default: self.default(schema),
            });
        }
        object
    }

    /// The description next to a reference, or at its target.
    fn doc(&self, schema: &'a Value) -> String {
        let text = |schema: &'a Value| {
            let texts = ["description", "title"].into_iter().filter_map(|key| schema.get(key)?.as_str());
            texts.map(|text| one_line(text, MAX_MEMBER_DOC)).find(|text| !text.is_empty())
        };
        if !self.detail.has_docs {
            return String::new();
        }
        let target = || resolve(self.root, schema.get("$ref")?.as_str()?).and_then(text);
        text(schema).or_else(target).unwrap_or_default()
    }

    fn default(&self, schema: &Value) -> Option<Value> {
        let default = schema.get("default").filter(|_| self.detail.has_docs)?;
        (literal(default) != Shape::Unknown).then(|| default.clone())
    }
}

/// The elements of a member that is a list.
fn list<'a>(members: &'a Members, key: &str) -> &'a [Value] {
    members.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A value as a type.
fn literal(value: &Value) -> Shape {
    match value {
        Value::Null => Shape::Null,
        Value::String(text) if text.len() > MAX_LITERAL_BYTES => Shape::Text,
        Value::Bool(_) | Value::Number(_) | Value::String(_) => Shape::Literal(value.clone()),
        Value::Array(_) | Value::Object(_) => Shape::Unknown,
    }
}

/// The type of a value.
fn widened(value: &Value) -> Shape {
    match value {
        Value::Null => Shape::Null,
        Value::Bool(_) => Shape::Boolean,
        Value::Number(_) => Shape::Number,
        Value::String(_) => Shape::Text,
        Value::Array(_) | Value::Object(_) => Shape::Unknown,
    }
}

/// The subschema at a reference into the same document, such as `#/$defs/name`.
fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    let is_short = pointer.matches('/').count() <= MAX_POINTER_TOKENS;
    // A pointer with percent signs is left out: names of definitions do not need them.
    root.pointer(pointer).filter(|_| is_short && !pointer.contains('%'))
}
