//! The JSON Schemas of a tool's arguments and of its result.
//!
//! The schema comes from a tool's author and the arguments from a caller, so both are bounded: the schema
//! when the tool is loaded ([`bounds`]), and each validation by a number of steps ([`metered`]). A validation
//! first determines if the arguments are valid. If not, an explanation collects the errors of every branch;
//! the explanation has a smaller budget, and is omitted when that budget is exhausted.

mod bounds;
mod metered;
#[cfg(test)]
mod tests;

pub use bounds::UnboundedSchemaError;

use super::CatalogError;
use a2g_types::tool::unrestricted_members;
use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError, Validator};
use metered::{Exhausted, Metered, MeteredJson};
use serde_json::Value;
use std::collections::BTreeSet;

/// The maximum number of steps of one validation. A step takes some tens of nanoseconds.
const MAX_STEPS: u64 = 4_000_000;
/// The maximum number of steps of a quick validation, which runs on a shared thread: less than a millisecond.
const MAX_QUICK_STEPS: u64 = 20_000;
/// The maximum number of steps of an explanation. A step may allocate an error of some hundred bytes.
const MAX_EXPLANATION_STEPS: u64 = 20_000;
/// The maximum length of an explanation, in characters.
const MAX_MESSAGE_CHARS: usize = 300;

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    validator: Validator<MeteredJson>,
    unrestricted_members: BTreeSet<String>,
}

/// The reason why a schema cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// It is not a JSON Schema.
    #[error("it is not a JSON Schema: {0}")]
    Invalid(String),
    /// The cost of a validation has no acceptable bound.
    #[error("it is too complex: {0}")]
    Unbounded(UnboundedSchemaError),
}

/// The first violation of a schema by a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// A JSON Pointer into the value.
    pub pointer: String,
    /// A message that quotes at most an excerpt of the value.
    pub message: String,
}

/// The result of [`Schema::check_quickly`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuickCheck {
    /// The validation finished with this result.
    Done(Result<(), Violation>),
    /// The budget was exhausted before the result: call [`Schema::check`] on a blocking thread.
    Unfinished,
}

impl Schema {
    /// Parses the text of a schema.
    ///
    /// # Errors
    /// [`CatalogError`] when the text is too long or not JSON.
    pub(super) fn parse(text: &str) -> Result<Value, CatalogError> {
        bounds::check_length(text.len()).map_err(CatalogError::SchemaTooComplex)?;
        serde_json::from_str(text).map_err(|error| CatalogError::Schema(error.to_string()))
    }

    /// Compiles the schema of a tool's arguments.
    ///
    /// # Errors
    /// [`CatalogError::Schema`] when it is not a JSON Schema; [`CatalogError::SchemaTooComplex`] when it
    /// refers to anything outside itself, or the cost of a validation has no acceptable bound.
    pub fn new(schema: &Value) -> Result<Self, CatalogError> {
        Self::compile(schema).map_err(|error| match error {
            SchemaError::Invalid(reason) => CatalogError::Schema(reason),
            SchemaError::Unbounded(reason) => CatalogError::SchemaTooComplex(reason),
        })
    }

    /// Compiles the schema of a tool's results.
    ///
    /// # Errors
    /// [`CatalogError::ResultSchema`].
    pub fn new_for_result(schema: &Value) -> Result<Self, CatalogError> {
        let length = bounds::check_length(schema.to_string().len());
        let compiled = length.map_err(SchemaError::Unbounded).and_then(|()| Self::compile(schema));
        compiled.map_err(CatalogError::ResultSchema)
    }

    fn compile(schema: &Value) -> Result<Self, SchemaError> {
        bounds::check(schema).map_err(SchemaError::Unbounded)?;
        let patterns = PatternOptions::regex()
            .size_limit(bounds::MAX_PATTERN_BYTES)
            .dfa_size_limit(bounds::MAX_PATTERN_BYTES);
        jsonschema::options_for::<MeteredJson>()
            .with_pattern_options(patterns)
            // As in draft 2020-12, a format is an annotation, in every draft.
            .should_validate_formats(false)
            .build(schema)
            .map(|validator| Self { validator, unrestricted_members: unrestricted_members(schema) })
            .map_err(|error| SchemaError::Invalid(shorten(&error.to_string())))
    }

    /// The members of an object that satisfy the schema with any value.
    #[must_use]
    pub fn unrestricted_members(&self) -> &BTreeSet<String> {
        &self.unrestricted_members
    }

    /// Validates a value within [`MAX_STEPS`]: up to some tenths of a second.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn check(&self, value: &Value) -> Result<(), Violation> {
        self.check_within(MAX_STEPS, value).unwrap_or_else(|Exhausted| {
            Err(Violation {
                pointer: String::new(),
                message: format!(
                    "checking them takes more than {MAX_STEPS} steps, because there are too many values for the combinations \
                     in the schema: send fewer or less nested values"
                ),
            })
        })
    }

    /// Validates a value within [`MAX_QUICK_STEPS`]: at most a millisecond.
    #[must_use]
    pub fn check_quickly(&self, value: &Value) -> QuickCheck {
        let result = self.check_within(MAX_QUICK_STEPS, value);
        result.map_or(QuickCheck::Unfinished, QuickCheck::Done)
    }

    fn check_within(&self, steps: u64, value: &Value) -> Result<Result<(), Violation>, Exhausted> {
        if metered::run_within(steps, || self.validator.is_valid(Metered(value)))? {
            return Ok(Ok(()));
        }
        let explanation = metered::run_within(MAX_EXPLANATION_STEPS, || {
            self.validator.validate(Metered(value)).err().map(|error| Violation::new(&error))
        });
        let violation = explanation.ok().flatten().unwrap_or_else(|| Violation {
            pointer: String::new(),
            message: "no combination of subschemas accepts them, and there are too many combinations for a more precise message"
                .to_owned(),
        });
        Ok(Err(violation))
    }
}

impl Violation {
    fn new(error: &ValidationError<'_>) -> Self {
        let is_inexact = error.instance().as_number().is_some_and(metered::is_inexact_integer);
        let message = if is_inexact && matches!(error.kind(), ValidationErrorKind::Type { .. }) {
            "an integer beyond 2^53 - 1 is not exact in every JSON reader: send it as a string, if the tool accepts \
             one"
                .to_owned()
        } else {
            shorten(&error.masked_with("the value").to_string())
        };
        Self { pointer: error.instance_path().to_string(), message }
    }
}

fn shorten(message: &str) -> String {
    match message.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", message.get(..end).unwrap_or_default()),
        None => message.to_owned(),
    }
}
