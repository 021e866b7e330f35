//! `[[example]]` of a `tool.toml`: arguments with the expected result or error. `a2g-executor tool test` runs them, and
//! nothing else uses them.

use super::ManifestError;
use a2g_types::tool::DeclaredFilesystem;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Component, Path};

/// The maximum number of examples of one tool: each is a run of `tool test`.
const MAX_EXAMPLES: usize = 100;

/// One example.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The name in the output of `tool test`.
    pub name: Option<String>,
    /// The arguments.
    pub arguments: Map<String, Value>,
    /// The files that exist before the run, by their path below `/workspace`.
    pub files: BTreeMap<String, String>,
    /// The expected end of the run.
    pub expected: Expected,
}

/// The expected end of an example.
#[derive(Debug, Clone, PartialEq)]
pub enum Expected {
    /// The result, exactly.
    Result(Value),
    /// The code of the error.
    Error(String),
}

/// The TOML form.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExampleTable {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default)]
    arguments: toml::Table,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    files: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<toml::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Checks the examples of a tool that declares this use of files.
pub(super) fn check_all(
    tables: Vec<ExampleTable>,
    filesystem: DeclaredFilesystem,
) -> Result<Vec<Example>, ManifestError> {
    if tables.len() > MAX_EXAMPLES {
        return Err(
            format!("there are {} examples, but at most {MAX_EXAMPLES} are accepted", tables.len()).into()
        );
    }
    let numbered = tables.into_iter().enumerate();
    let examples = numbered.map(|(index, table)| {
        let named = table.name.as_ref().map(|name| format!(" (`{name}`)")).unwrap_or_default();
        check(table, filesystem)
            .map_err(|reason| format!("`[[example]]` number {}{named}: {reason}", index + 1).into())
    });
    examples.collect()
}

fn check(table: ExampleTable, filesystem: DeclaredFilesystem) -> Result<Example, String> {
    let ExampleTable { name, arguments, files, result, error } = table;
    let expected = match (result, error) {
        (Some(result), None) => Expected::Result(to_json(&result)?),
        (None, Some(code)) if !code.is_empty() => Expected::Error(code),
        (None, _) => return Err("it needs `result`, or `error` with the code of an error".to_owned()),
        (Some(_), Some(_)) => return Err("it has both `result` and `error`: remove one of them".to_owned()),
    };
    if !files.is_empty() && filesystem == DeclaredFilesystem::None {
        return Err("it has `files`, but `capabilities.filesystem` is \"none\": declare \"read\"".to_owned());
    }
    for path in files.keys() {
        let is_inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        if path.is_empty() || !is_inside {
            return Err(format!("`files` has `{path}`: a path is relative to `/workspace`, without `..`"));
        }
    }
    Ok(Example { name, arguments: to_json_object(&arguments)?, files, expected })
}

/// The JSON object of a TOML table, as [`to_json`] makes it.
pub(super) fn to_json_object(table: &toml::Table) -> Result<Map<String, Value>, String> {
    table.iter().map(|(key, value)| Ok((key.clone(), to_json(value)?))).collect()
}

/// The TOML table of a JSON object.
///
/// # Errors
/// [`ManifestError`] when a value has no TOML form.
pub(super) fn to_toml_table(object: &Map<String, Value>) -> Result<toml::Table, ManifestError> {
    toml::Table::try_from(object).map_err(|error| ManifestError::from(error.to_string()))
}

/// The JSON value of a TOML value. JSON has no dates, and no number that is infinite or none.
fn to_json(value: &toml::Value) -> Result<Value, String> {
    Ok(match value {
        toml::Value::String(text) => Value::String(text.clone()),
        toml::Value::Integer(number) => Value::from(*number),
        toml::Value::Float(number) => {
            let number = serde_json::Number::from_f64(*number);
            number.map(Value::Number).ok_or("JSON has no number `inf` or `nan`")?
        }
        toml::Value::Boolean(truth) => Value::Bool(*truth),
        toml::Value::Datetime(date) => return Err(format!("JSON has no dates: write \"{date}\" in quotes")),
        toml::Value::Array(values) => Value::Array(values.iter().map(to_json).collect::<Result<_, _>>()?),
        toml::Value::Table(table) => Value::Object(to_json_object(table)?),
    })
}

impl Example {
    /// The TOML form.
    ///
    /// # Errors
    /// [`ManifestError`] when a value has no TOML form.
    pub(super) fn to_table(&self) -> Result<ExampleTable, ManifestError> {
        let Self { name, arguments, files, expected } = self;
        let no_toml = |error: toml::ser::Error| ManifestError::from(error.to_string());
        let (result, error) = match expected {
            Expected::Result(result) => (Some(toml::Value::try_from(result).map_err(no_toml)?), None),
            Expected::Error(code) => (None, Some(code.clone())),
        };
        Ok(ExampleTable {
            name: name.clone(),
            arguments: to_toml_table(arguments)?,
            files: files.clone(),
            result,
            error,
        })
    }
}
