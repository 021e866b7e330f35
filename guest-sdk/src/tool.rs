//! The two exports of the world, made from the author's function.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Context, ToolError};

/// The arguments of a tool: a type that parses from JSON and has a schema.
///
/// `#[derive(Arguments)]` provides both. The arguments of a tool are a JSON object, so the outermost
/// type is a struct with named fields.
pub trait Arguments: DeserializeOwned + JsonSchema {}

impl<T: DeserializeOwned + JsonSchema> Arguments for T {}

/// The description that a tool gives of itself; the record `descriptor` of the contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The name that intents use.
    pub name: String,
    /// The semantic version.
    pub version: String,
    /// One or two sentences for the agent or person who chooses a tool.
    pub description: String,
    /// The JSON Schema (draft 2020-12) of the arguments, as JSON text.
    pub arguments_schema: String,
}

/// The values that the options of [`export_tool!`](crate::export_tool) set; each option calls the method of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    name: &'static str,
    version: &'static str,
    description: &'static str,
}

impl Identity {
    /// The identity of a tool without a description.
    #[must_use]
    pub const fn new(name: &'static str, version: &'static str) -> Self {
        let description = "";
        Self { name, version, description }
    }

    /// Replaces the name, which is the function's by default.
    #[must_use]
    pub const fn name(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// Replaces the version, which is the package's by default.
    #[must_use]
    pub const fn version(self, version: &'static str) -> Self {
        Self { version, ..self }
    }

    /// Sets the description, which every tool needs, because agents choose tools by it.
    #[must_use]
    pub const fn description(self, description: &'static str) -> Self {
        Self { description, ..self }
    }

    /// True if the tool has a description.
    #[must_use]
    pub const fn is_described(&self) -> bool {
        !self.description.is_empty()
    }
}

/// The descriptor of the tool that `handler` implements.
#[must_use]
pub fn describe<H, A, R, E>(handler: H, identity: Identity) -> Descriptor
where
    H: FnOnce(&mut Context, A) -> Result<R, E>,
    A: Arguments,
{
    // Only the type of the arguments matters here.
    let _ = handler;
    Descriptor {
        name: identity.name.to_owned(),
        version: identity.version.to_owned(),
        description: identity.description.to_owned(),
        arguments_schema: arguments_schema::<A>(),
    }
}

/// Parses the arguments, runs the tool and serializes its result.
///
/// # Errors
/// The tool's own error, `invalid_arguments` if the arguments cannot be parsed, or `invalid_result` if the result
/// cannot be serialized.
pub fn invoke<H, A, R, E>(handler: H, context: &mut Context, arguments: &str) -> Result<String, ToolError>
where
    H: FnOnce(&mut Context, A) -> Result<R, E>,
    A: Arguments,
    R: Serialize,
    E: Into<ToolError>,
{
    let arguments = serde_json::from_str(arguments)
        .map_err(|error| ToolError::new("invalid_arguments", error.to_string()))?;
    let result = handler(context, arguments).map_err(Into::into)?;
    serde_json::to_string(&result).map_err(|error| ToolError::new("invalid_result", error.to_string()))
}

/// The schema of the arguments. Nested types are inlined, because agents read a schema without `$ref` more reliably.
fn arguments_schema<A: Arguments>() -> String {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<A>().to_value().to_string()
}
