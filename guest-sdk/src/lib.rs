//! Everything that a typed tool of the A2G executor needs, in one dependency.
//!
//! A tool is a function from a context and its arguments to a result. The derive gives the
//! arguments a parser and a JSON Schema, and [`export_tool!`] makes the crate a guest of the world
//! `a2g:tool/tool` (see `wit/tool.wit`, the single source of truth):
//!
//! ```
//! use a2g_guest_sdk::prelude::*;
//!
//! /// Adds two integers.
//! #[derive(Arguments)]
//! struct Add {
//!     /// The first summand.
//!     a: i64,
//!     /// The second summand.
//!     b: i64,
//! }
//!
//! fn add(ctx: &mut Context, arguments: Add) -> Result<Value, ToolError> {
//!     ctx.log(Level::Info, "adding");
//!     let sum = arguments.a.checked_add(arguments.b);
//!     let sum = sum.ok_or_else(|| ToolError::new("overflow", "the sum is too large"))?;
//!     Ok(json!({ "sum": sum }))
//! }
//!
//! export_tool!(add, description = "Adds two integers");
//! # fn main() {}
//! ```
//!
//! The same source builds for `wasm32-wasip1` (a core module that the executor componentises), for
//! `wasm32-wasip2` (a component), and natively, where [`testing`] replaces the executor.
//!
//! The SDK grants nothing: a tool can access exactly what its capability manifest allows, through WASI
//! (of which [`http`] is one part) and the methods of [`Context`], one of which gives access to [other
//! tools](Context::tools).

mod artifact;
#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub mod bindings;
mod context;
mod error;
mod export;
mod host;
pub mod http;
#[cfg(not(target_family = "wasm"))]
pub mod testing;
mod tool;
mod tools;

pub use a2g_guest_sdk_derive::Arguments;
pub use artifact::ArtifactWriter;
pub use context::{Context, Level};
pub use error::{AtPath, ToolError};
pub use schemars;
pub use serde;
pub use serde_json;
pub use tool::{Arguments, Descriptor, Identity};
pub use tools::{FinishedCall, StartedCall, ToolDefinition, ToolSummary, Tools};

/// The imports of a tool's source file: `use a2g_guest_sdk::prelude::*`.
pub mod prelude {
    pub use crate::{Arguments, AtPath, Context, Level, ToolError, export_tool};
    pub use serde::Serialize;
    pub use serde_json::{Value, json};
}

/// Items that the expansion of [`export_tool!`] uses; not a public interface.
#[doc(hidden)]
pub mod __private {
    #[cfg(target_family = "wasm")]
    pub use crate::bindings;
    pub use crate::tool::{describe, invoke};
}
