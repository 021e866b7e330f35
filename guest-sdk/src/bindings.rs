//! The bindings of `wit/tool.wit`, and the conversions between its types and the SDK's.
//!
//! The SDK's own types exist on every target and carry what an author wants (a detail that is JSON,
//! not text); these exist on WebAssembly only and mirror the contract.

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

use self::a2g::tool::types;

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
