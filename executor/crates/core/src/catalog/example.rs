//! `[[example]]` of a `tool.toml`: arguments with the expected result or error. `a2g-executor tool test` runs them, and
//! nothing else uses them.

use super::ManifestError;
use a2g_types::ident::excerpt;
use a2g_types::tool::{DeclaredCapabilities, DeclaredFilesystem};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Component, Path};

/// The maximum number of examples of one tool: each is a run of `tool test`.
const MAX_EXAMPLES: usize = 100;
/// The maximum number of recorded answers of one example.
const MAX_ANSWERS: usize = 100;

/// One example.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The name in the output of `tool test`.
    pub name: Option<String>,
    /// The arguments.
    pub arguments: Map<String, Value>,
    /// The files that exist before the run, by their path below `/workspace`.
    pub files: BTreeMap<String, String>,
    /// The answers to the requests of the tool, in their order and in place of the network.
    pub answers: Vec<RecordedAnswer>,
    /// The expected end of the run.
    pub expected: Expected,
}

/// A recorded answer to a request of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedAnswer {
    /// The method of the request.
    pub method: String,
    /// Its URL.
    pub url: String,
    /// The status of the answer, 200 to 599.
    pub status: u16,
    /// The header fields of the answer.
    pub headers: BTreeMap<String, String>,
    /// The body of the answer.
    pub body: AnswerBody,
}

/// The body of a recorded answer.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerBody {
    /// A text.
    Text(String),
    /// A value, sent as JSON with that media type.
    Json(Value),
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    answers: Vec<AnswerTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<toml::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The TOML form of a recorded answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerTable {
    /// Such as `GET https://api.example.com/items/1?all=true`.
    request: String,
    #[serde(default = "default_status")]
    status: u16,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<toml::Value>,
}

fn default_status() -> u16 {
    200
}

/// Checks the examples of a tool with these capabilities.
pub(super) fn check_all(
    tables: Vec<ExampleTable>,
    capabilities: &DeclaredCapabilities,
) -> Result<Vec<Example>, ManifestError> {
    if tables.len() > MAX_EXAMPLES {
        return Err(
            format!("there are {} examples, but at most {MAX_EXAMPLES} are accepted", tables.len()).into()
        );
    }
    let numbered = tables.into_iter().enumerate();
    let examples = numbered.map(|(index, table)| {
        let named = table.name.as_ref().map(|name| format!(" (`{name}`)")).unwrap_or_default();
        check(table, capabilities)
            .map_err(|reason| format!("`[[example]]` number {}{named}: {reason}", index + 1).into())
    });
    examples.collect()
}

fn check(table: ExampleTable, capabilities: &DeclaredCapabilities) -> Result<Example, String> {
    let ExampleTable { name, arguments, files, answers, result, error } = table;
    let expected = match (result, error) {
        (Some(result), None) => Expected::Result(to_json(&result)?),
        (None, Some(code)) if !code.is_empty() => Expected::Error(code),
        (None, _) => return Err("it needs `result`, or `error` with the code of an error".to_owned()),
        (Some(_), Some(_)) => return Err("it has both `result` and `error`: remove one of them".to_owned()),
    };
    if !files.is_empty() && capabilities.filesystem == DeclaredFilesystem::None {
        return Err("it has `files`, but `capabilities.filesystem` is \"none\": declare \"read\"".to_owned());
    }
    for path in files.keys() {
        let is_inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        if path.is_empty() || !is_inside {
            return Err(format!("`files` has `{path}`: a path is relative to `/workspace`, without `..`"));
        }
    }
    if !answers.is_empty() && !capabilities.network {
        return Err("it has `answers`, but `capabilities.network` is false".to_owned());
    }
    if answers.len() > MAX_ANSWERS {
        return Err(format!("it has {} answers, but at most {MAX_ANSWERS} are accepted", answers.len()));
    }
    let numbered = answers.into_iter().enumerate();
    let answers = numbered.map(|(index, table)| {
        check_answer(table).map_err(|reason| format!("number {} of its `answers`: {reason}", index + 1))
    });
    let answers = answers.collect::<Result<_, _>>()?;
    Ok(Example { name, arguments: to_json_object(&arguments)?, files, answers, expected })
}

fn check_answer(table: AnswerTable) -> Result<RecordedAnswer, String> {
    let AnswerTable { request, status, headers, body, json } = table;
    let is_url = |url: &str| ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
    let Some((method, url)) = request.split_once(' ').filter(|(_, url)| is_url(url)) else {
        return Err(format!(
            "`{}` is no request such as `GET https://api.example.com/items/1`",
            excerpt(&request)
        ));
    };
    if !(200..600).contains(&status) {
        return Err(format!("the status {status} is not from 200 to 599"));
    }
    let body = match (body, json) {
        (Some(_), Some(_)) => return Err("it has both `body` and `json`: remove one of them".to_owned()),
        (text, None) => AnswerBody::Text(text.unwrap_or_default()),
        (None, Some(json)) => AnswerBody::Json(to_json(&json)?),
    };
    Ok(RecordedAnswer { method: method.to_owned(), url: url.to_owned(), status, headers, body })
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
        let Self { name, arguments, files, answers, expected } = self;
        let (result, error) = match expected {
            Expected::Result(result) => (Some(to_toml(result)?), None),
            Expected::Error(code) => (None, Some(code.clone())),
        };
        Ok(ExampleTable {
            name: name.clone(),
            arguments: to_toml_table(arguments)?,
            files: files.clone(),
            answers: answers.iter().map(RecordedAnswer::to_table).collect::<Result<_, _>>()?,
            result,
            error,
        })
    }
}

impl RecordedAnswer {
    fn to_table(&self) -> Result<AnswerTable, ManifestError> {
        let Self { method, url, status, headers, body } = self;
        let (body, json) = match body {
            AnswerBody::Text(text) => (Some(text.clone()).filter(|text| !text.is_empty()), None),
            AnswerBody::Json(value) => (None, Some(to_toml(value)?)),
        };
        let request = format!("{method} {url}");
        Ok(AnswerTable { request, status: *status, headers: headers.clone(), body, json })
    }
}

fn to_toml(value: &Value) -> Result<toml::Value, ManifestError> {
    toml::Value::try_from(value).map_err(|error| ManifestError::from(error.to_string()))
}
