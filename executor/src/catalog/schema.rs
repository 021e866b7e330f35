//! The JSON Schema of a tool's arguments, checked before anything runs.

use super::CatalogError;
use serde_json::Value;

/// A compiled schema.
#[derive(Debug)]
pub struct Schema(jsonschema::Validator);

/// The first thing wrong with some arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Where, as a JSON Pointer into the arguments.
    pub pointer: String,
    /// What is wrong. Quotes no more than an excerpt of the arguments.
    pub message: String,
}

impl Schema {
    /// Compiles a schema. References to anything outside of it are refused.
    ///
    /// # Errors
    /// [`CatalogError::Schema`] when it is not a JSON Schema.
    pub fn new(schema: &Value) -> Result<Self, CatalogError> {
        jsonschema::validator_for(schema).map(Self).map_err(|error| CatalogError::Schema(error.to_string()))
    }

    /// Checks arguments.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn check(&self, arguments: &Value) -> Result<(), Violation> {
        self.0.validate(arguments).map_err(|error| Violation {
            pointer: error.instance_path().to_string(),
            message: shorten(&error.masked_with("the value").to_string()),
        })
    }
}

fn shorten(message: &str) -> String {
    const LONGEST: usize = 300;
    match message.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", message.get(..end).unwrap_or_default()),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_violation_points_at_the_place() {
        let schema = json!({
            "type": "object",
            "properties": { "lines": { "type": "array", "items": { "type": "integer" } } },
            "additionalProperties": false
        });
        let schema = Schema::new(&schema).unwrap();
        assert_eq!(schema.check(&json!({ "lines": [1, 2] })), Ok(()));
        assert_eq!(schema.check(&json!({ "lines": [1, "two"] })).unwrap_err().pointer, "/lines/1");
        let secret = "s".repeat(10_000);
        let violation = schema.check(&json!({ "lines": secret })).unwrap_err();
        assert!(violation.message.len() < 400 && !violation.message.contains("sss"), "{violation:?}");
    }

    #[test]
    fn a_schema_that_fetches_is_refused() {
        assert!(Schema::new(&json!({ "$ref": "https://example.com/schema.json" })).is_err());
        assert!(Schema::new(&json!({ "type": 5 })).is_err());
    }
}
