//! TypeScript declarations.

use super::Stub;
use super::shape::{Field, Object, Shape};
use super::text::{MAX_TOOL_DOC, is_identifier, one_line, quote};
use a2g_types::tool::Descriptor;

pub(super) fn stub(tool: &Descriptor, arguments: &Shape, result: &Shape) -> Stub {
    let doc = one_line(&tool.description, MAX_TOOL_DOC);
    let doc = if doc.is_empty() { String::new() } else { format!("  {}\n", comment(&doc)) };
    let mark = if needs_arguments(arguments) { "" } else { "?" };
    // Arguments are always an object.
    let any = Shape::Map(Box::default());
    let arguments = type_text(if *arguments == Shape::Unknown { &any } else { arguments }, 1);
    let name = key(tool.name.as_str());
    let result = type_text(result, 1);
    Stub {
        types: String::new(),
        member: format!("{doc}  {name}(args{mark}: {arguments}): Promise<{result}>;\n"),
    }
}

/// `true` if a call without arguments breaks the schema.
fn needs_arguments(shape: &Shape) -> bool {
    if let Shape::Union(alternatives) = shape {
        return alternatives.iter().all(needs_arguments);
    }
    matches!(shape, Shape::Object(object) if object.fields.iter().any(|field| field.is_required))
}

/// The name of a member.
fn key(name: &str) -> String {
    if is_identifier(name) { name.to_owned() } else { quote(name) }
}

fn comment(text: &str) -> String {
    format!("/** {} */", text.replace("*/", "* /"))
}

fn type_text(shape: &Shape, indent: usize) -> String {
    match shape {
        Shape::Unknown => "unknown".to_owned(),
        Shape::Null => "null".to_owned(),
        Shape::Boolean => "boolean".to_owned(),
        Shape::Integer | Shape::Number => "number".to_owned(),
        Shape::Text => "string".to_owned(),
        Shape::Literal(value) => match value.as_str() {
            Some(text) => quote(text),
            None => value.to_string(),
        },
        Shape::List(element) => {
            let text = type_text(element, indent);
            if matches!(**element, Shape::Union(_)) { format!("({text})[]") } else { format!("{text}[]") }
        }
        Shape::Map(values) => format!("Record<string, {}>", type_text(values, indent)),
        Shape::Object(object) => object_text(object, indent),
        Shape::Union(alternatives) => {
            let mut texts: Vec<String> = Vec::new();
            for text in alternatives.iter().map(|shape| type_text(shape, indent)) {
                // An integer and a number have the same name.
                if !texts.contains(&text) {
                    texts.push(text);
                }
            }
            texts.join(" | ")
        }
    }
}

/// On one line if no member has a comment.
fn object_text(object: &Object, indent: usize) -> String {
    let has_comments = object.fields.iter().any(|field| !field_comment(field).is_empty());
    let fields = object.fields.iter().map(|field| field_text(field, indent + 1));
    // TypeScript checks named members against the type of the others, so it has to be the widest.
    let others = object.is_open.then(|| "[name: string]: unknown".to_owned());
    let fields = fields.chain(others).collect::<Vec<_>>();
    if fields.is_empty() {
        return "{}".to_owned();
    }
    if !has_comments {
        return format!("{{ {} }}", fields.join("; "));
    }
    let outer = "  ".repeat(indent);
    let inner = "  ".repeat(indent + 1);
    let lines = fields.iter().map(|field| format!("{inner}{field};\n")).collect::<String>();
    format!("{{\n{lines}{outer}}}")
}

fn field_text(field: &Field, indent: usize) -> String {
    let mark = if field.is_required { "" } else { "?" };
    let text = format!("{}{mark}: {}", key(&field.name), type_text(&field.shape, indent));
    match field_comment(field) {
        comment if comment.is_empty() => text,
        comment => format!("{comment} {text}"),
    }
}

fn field_comment(field: &Field) -> String {
    let default = field.default.as_ref().map(|default| match default.as_str() {
        Some(text) => format!("(default {})", quote(text)),
        None => format!("(default {default})"),
    });
    let parts = [Some(field.doc.clone()).filter(|doc| !doc.is_empty()), default];
    let parts = parts.into_iter().flatten().collect::<Vec<_>>();
    if parts.is_empty() { String::new() } else { comment(&parts.join(" ")) }
}
