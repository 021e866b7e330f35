//! The bindings of `wit/tool.wit`, and the conversions between its types and the SDK's.
//!
//! The SDK's own types exist on every target and are convenient for authors (a detail is JSON, not text). The types of
//! this module exist on WebAssembly only and mirror the contract.

#![allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    clippy::all,
    clippy::restriction,
    clippy::pedantic,
    reason = "generated: the canonical ABI passes raw pointers"
)]

wit_bindgen::generate!({
    path: "wit",
    world: "tool",
    pub_export_macro: true,
    export_macro_name: "export_world",
    default_bindings_module: "a2g_guest_sdk::__private::bindings",
});

use self::a2g::tool::{calls, types};

impl From<crate::Level> for types::Level {
    fn from(level: crate::Level) -> Self {
        match level {
            crate::Level::Debug => Self::Debug,
            crate::Level::Info => Self::Info,
            crate::Level::Warn => Self::Warn,
            crate::Level::Error => Self::Error,
        }
    }
}

impl From<crate::Descriptor> for types::Descriptor {
    fn from(descriptor: crate::Descriptor) -> Self {
        Self {
            name: descriptor.name,
            version: descriptor.version,
            description: descriptor.description,
            arguments_schema: descriptor.arguments_schema,
        }
    }
}

impl From<crate::ToolError> for types::ToolError {
    fn from(error: crate::ToolError) -> Self {
        Self {
            detail: error.detail().map(ToString::to_string),
            code: error.code().to_owned(),
            message: error.message().to_owned(),
        }
    }
}

impl From<types::ToolError> for crate::ToolError {
    fn from(types::ToolError { code, message, detail }: types::ToolError) -> Self {
        let error = Self::new(code, message);
        match detail {
            Some(detail) => error.with_detail(json_or_text(detail)),
            None => error,
        }
    }
}

impl From<calls::Summary> for crate::ToolSummary {
    fn from(calls::Summary { name, description }: calls::Summary) -> Self {
        Self { name, description }
    }
}

impl From<calls::Definition> for crate::ToolDefinition {
    fn from(definition: calls::Definition) -> Self {
        let calls::Definition { name, description, arguments_schema, result_schema } = definition;
        let (arguments_schema, result_schema) =
            (json_or_text(arguments_schema), result_schema.map(json_or_text));
        Self { name, description, arguments_schema, result_schema }
    }
}

/// Parses JSON text. The contract requires JSON; any other text is kept as a string.
fn json_or_text(text: String) -> serde_json::Value {
    serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text))
}
