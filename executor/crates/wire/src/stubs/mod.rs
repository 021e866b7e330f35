//! Typed stubs of tools, for a model that writes programs: TypeScript declarations (`.d.ts`) and Python stubs (`.pyi`).
//!
//! ```text
//! JSON Schema ─ shape ─▶ Shape ─ typescript, python ─▶ text
//! ```
//! The author of a tool wrote its schema and its descriptions. Reading a schema is bounded by a number of subschemas
//! and a depth, a stub by its length, and no text can end the comment or the string that it is in. `unknown` or `Any`
//! stands for everything that a language cannot express: a stub never says more than the schema, and only the schema
//! decides on a call.

mod python;
mod shape;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod typescript;

pub(crate) use text::one_line;

use a2g_types::tool::Descriptor;
use schemars::JsonSchema;
use serde::Serialize;
use shape::{Detail, Reader};
use strum::{IntoStaticStr, VariantArray};

/// The language of a program that calls tools.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Language {
    /// JavaScript, with TypeScript declarations.
    Javascript,
    /// Python.
    Python,
}

impl Language {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The declaration of one tool, as a part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stub {
    /// Declarations of the types that the member uses.
    types: String,
    /// The member of the object `tools`.
    member: String,
}

impl Stub {
    /// Makes the declaration of a tool with at most `max_bytes`. A schema that needs more loses details: first the
    /// comments of its members, then nested types, and then all types.
    #[must_use]
    pub fn new(tool: &Descriptor, language: Language, max_bytes: usize) -> Self {
        let mut stub = Self::with_detail(tool, language, Detail::EVERY[0]);
        for detail in &Detail::EVERY[1..] {
            if stub.len() <= max_bytes {
                break;
            }
            stub = Self::with_detail(tool, language, *detail);
        }
        stub
    }

    fn with_detail(tool: &Descriptor, language: Language, detail: Detail) -> Self {
        let arguments = Reader::read(&tool.arguments_schema, detail);
        let result = tool.result_schema.as_ref().map(|schema| Reader::read(schema, detail));
        let arguments = arguments;
        let result = result.unwrap_or_default();
        match language {
            Language::Javascript => typescript::stub(tool, &arguments, &result),
            Language::Python => python::stub(tool, &arguments, &result),
        }
    }

    /// The length of the declaration in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.types.len() + self.member.len()
    }

    /// `true` for no declaration, which [`Self::new`] never makes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The bytes of a file around its stubs.
#[must_use]
pub fn overhead(language: Language) -> usize {
    file(language, &[]).len()
}

/// A file with these stubs: a TypeScript declaration file or a Python stub file.
#[must_use]
pub fn file(language: Language, stubs: &[&Stub]) -> String {
    let types = stubs.iter().map(|stub| &*stub.types).collect::<String>();
    let members = stubs.iter().map(|stub| &*stub.member).collect::<String>();
    match language {
        Language::Javascript => format!("declare const tools: {{\n{members}}};\n"),
        Language::Python => python::file(&types, &members),
    }
}
