//! Python stubs.

use super::Stub;
use super::shape::{Field, Object, Shape};
use super::text::{MAX_TOOL_DOC, is_identifier, one_line, quote};
use a2g_types::tool::Descriptor;
use serde_json::Value;
use std::collections::BTreeSet;

/// The names that cannot be those of parameters or members of a class.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def",
    "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is",
    "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// A file with these types and members of `tools`.
pub(super) fn file(types: &str, members: &str) -> String {
    let members = if members.is_empty() { "    ...\n" } else { members };
    let names = ["Any", "Literal", "NotRequired", "TypedDict"];
    let used = names.iter().filter(|name| types.contains(**name) || members.contains(**name));
    let used = used.copied().collect::<Vec<_>>().join(", ");
    let import = if used.is_empty() { String::new() } else { format!("from typing import {used}\n") };
    format!("{import}{types}class Tools:\n{members}tools: Tools\n")
}

pub(super) fn stub(tool: &Descriptor, arguments: &Shape, result: &Shape) -> Stub {
    let name = tool.name.as_str();
    let mut writer = Writer { types: String::new(), names: BTreeSet::new() };
    let prefix = class_name("", name);
    let parameters = writer.parameters(&Object::of_arguments(arguments), &prefix);
    let result = writer.type_text(result, &format!("{prefix}Result"));
    let doc = one_line(&tool.description, MAX_TOOL_DOC);
    let doc = match doc.is_empty() {
        true => String::new(),
        // Neither can end the string or begin an escape.
        false => format!("\n        \"\"\"{}\"\"\"", doc.replace('\\', "/").replace('"', "'")),
    };
    let (name, note) = match is_name(name) {
        true => (name.to_owned(), String::new()),
        false => (safe_name(name), format!("    # tools[{}](...)\n", quote(name))),
    };
    let end = if doc.is_empty() { " ..." } else { "" };
    let member = format!("{note}    def {name}(self{parameters}) -> {result}:{end}{doc}\n");
    Stub { types: writer.types, member }
}

fn is_name(name: &str) -> bool {
    is_identifier(name) && !KEYWORDS.contains(&name)
}

/// An identifier that resembles `name`, which is not one.
fn safe_name(name: &str) -> String {
    let safe = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect::<String>();
    if is_name(&safe) { safe } else { format!("{safe}_") }
}

/// The name of a class: `prefix`, and the words of `name`.
fn class_name(prefix: &str, name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.map(|word| {
        let mut chars = word.chars();
        let first = chars.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(chars).collect::<String>()
    });
    format!("{prefix}{}", words.collect::<String>())
}

/// Collects the classes of objects.
struct Writer {
    types: String,
    names: BTreeSet<String>,
}

impl Writer {
    /// Everything after `self`.
    fn parameters(&mut self, arguments: &Object, prefix: &str) -> String {
        let is_parameter = |field: &&Field| is_name(&field.name) && field.name != "self";
        let named = arguments.fields.iter().filter(is_parameter);
        let others = arguments.fields.iter().filter(|field| !is_parameter(field));
        // Default values are left out, so that required members come first.
        let (required, optional) = named.partition::<Vec<_>, _>(|field| field.is_required);
        let mut lines = Vec::new();
        for field in required.into_iter().chain(optional) {
            let kind = self.type_text(&field.shape, &class_name(prefix, &field.name));
            let default = match &field.default {
                _ if field.is_required => String::new(),
                Some(default) => format!(" = {}", literal(default)),
                None => " = ...".to_owned(),
            };
            lines.push((format!("{}: {kind}{default}", field.name), field.doc.clone()));
        }
        let others = others.map(|field| {
            let kind = self.type_text(&field.shape, &class_name(prefix, &field.name));
            let mark = if field.is_required { "" } else { " (optional)" };
            format!("{}: {kind}{mark}", quote(&field.name))
        });
        let others = others.collect::<Vec<_>>();
        let star = if lines.is_empty() { "" } else { ", *" };
        if arguments.is_open || !others.is_empty() {
            let mut name = "others".to_owned();
            while arguments.fields.iter().any(|field| field.name == name) {
                name.push('_');
            }
            let note = if others.is_empty() {
                String::new()
            } else {
                format!("pass as **{{...}}: {}", others.join(", "))
            };
            lines.push((format!("**{name}: Any"), note));
        }
        if lines.iter().all(|(_, comment)| comment.is_empty()) {
            let lines = lines.iter().map(|(text, _)| format!(", {text}"));
            return format!("{star}{}", lines.collect::<String>());
        }
        let lines = lines.iter().map(|(text, note)| format!("        {text},{}\n", comment(note)));
        format!("{star},\n{}    ", lines.collect::<String>())
    }

    /// The type as an expression. `name` is that of its class, if it is one.
    fn type_text(&mut self, shape: &Shape, name: &str) -> String {
        match shape {
            Shape::Unknown => "Any".to_owned(),
            Shape::Null => "None".to_owned(),
            Shape::Boolean => "bool".to_owned(),
            Shape::Integer => "int".to_owned(),
            Shape::Number => "float".to_owned(),
            Shape::Text => "str".to_owned(),
            Shape::Literal(value) if is_literal(value) => format!("Literal[{}]", literal(value)),
            Shape::Literal(_) => "float".to_owned(),
            Shape::List(element) => format!("list[{}]", self.type_text(element, &format!("{name}Item"))),
            Shape::Map(values) => format!("dict[str, {}]", self.type_text(values, &format!("{name}Value"))),
            Shape::Object(object) => self.class(object, name),
            Shape::Union(alternatives) => self.union(alternatives, name),
        }
    }

    fn union(&mut self, alternatives: &[Shape], name: &str) -> String {
        let (literals, others) = alternatives
            .iter()
            .partition::<Vec<_>, _>(|shape| matches!(shape, Shape::Literal(value) if is_literal(value)));
        let mut texts = Vec::new();
        if !literals.is_empty() {
            let literals = literals.into_iter().map(literal_of).collect::<Vec<_>>();
            texts.push(format!("Literal[{}]", literals.join(", ")));
        }
        for shape in others {
            let text = self.type_text(shape, name);
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        texts.join(" | ")
    }

    /// Declares a class, and returns its name.
    fn class(&mut self, object: &Object, name: &str) -> String {
        let mut unique = name.to_owned();
        let mut number = 2;
        while !self.names.insert(unique.clone()) {
            unique = format!("{name}{number}");
            number += 1;
        }
        let fields = object.fields.iter().map(|field| {
            let kind = self.type_text(&field.shape, &class_name(&unique, &field.name));
            let kind = if field.is_required { kind } else { format!("NotRequired[{kind}]") };
            (field, kind)
        });
        let fields = fields.collect::<Vec<_>>();
        let more = if object.is_open { comment("and others") } else { String::new() };
        // A class statement would take other names for syntax, or hide them.
        let has_names = fields.iter().all(|(field, _)| is_name(&field.name) && !field.name.starts_with("__"));
        let text = if has_names && !fields.is_empty() {
            let lines = fields
                .iter()
                .map(|(field, kind)| format!("    {}: {kind}{}\n", field.name, comment(&field.doc)));
            format!("class {unique}(TypedDict):{more}\n{}", lines.collect::<String>())
        } else {
            let items = fields.iter().map(|(field, kind)| format!("{}: {kind}", quote(&field.name)));
            let items = items.collect::<Vec<_>>().join(", ");
            format!("{unique} = TypedDict({}, {{{items}}}){more}\n", quote(&unique))
        };
        self.types.push_str(&text);
        unique
    }
}

/// A comment to the end of the line; the text has no line break.
fn comment(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("  # {text}") }
}

/// `true` for a value that `Literal` may have.
fn is_literal(value: &Value) -> bool {
    match value {
        Value::Number(number) => !number.is_f64(),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
        Value::Array(_) | Value::Object(_) => false,
    }
}

fn literal_of(shape: &Shape) -> String {
    if let Shape::Literal(value) = shape { literal(value) } else { String::new() }
}

fn literal(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::String(text) => quote(text),
        Value::Number(number) => number.to_string(),
        Value::Array(_) | Value::Object(_) => "...".to_owned(),
    }
}
