//! The schemas that the built server publishes (`rpc.discover`), held against what it answers and reports.
//!
//! The document is asked for once and compiled once in a process of tests. An object with a member that its schema does
//! not name fails as well, so that the document cannot lag behind the wire.

use super::{Options, StdioClient};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{LazyLock, Mutex, PoisonError};

/// The longest message that is looked at: a longer one is a test of its length.
const MAX_BYTES: usize = 1 << 20;
/// The most reports that are remembered, so that one that is read again is not validated again.
const MAX_SEEN: usize = 100_000;

/// The compiled document.
struct Published {
    /// The schema of the result of each method that has one of its own.
    results: BTreeMap<String, jsonschema::Validator>,
    report: jsonschema::Validator,
}

static PUBLISHED: LazyLock<Published> = LazyLock::new(|| {
    let mut server = StdioClient::start(Options::new());
    let answer = server.exchange(&json!({ "jsonrpc": "2.0", "method": "rpc.discover", "id": 1 }).to_string());
    Published::compile(answer["result"].clone())
});

impl Published {
    fn compile(mut document: Value) -> Self {
        let schemas = document["components"]["schemas"].as_object_mut().expect("schemas");
        schemas.values_mut().for_each(close);
        let components = document["components"].take();
        let compiled = |schema: &Value| {
            let mut schema = json!({ "allOf": [schema] });
            schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
            schema["components"] = components.clone();
            jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{error}"))
        };
        let methods = document["methods"].as_array().expect("methods").iter();
        let own = methods.filter(|method| method["name"] != "rpc.discover");
        let name = |method: &Value| method["name"].as_str().expect("a name").to_owned();
        let results = own.map(|method| (name(method), compiled(&method["result"]["schema"]))).collect();
        Self { results, report: compiled(&json!({ "$ref": "#/components/schemas/Report" })) }
    }
}

/// Refuses members that a schema does not name, wherever it names any.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if members.contains_key("properties") && !members.contains_key("additionalProperties") {
                members.insert("additionalProperties".to_owned(), false.into());
            }
            members.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn hold(validator: &jsonschema::Validator, what: &str, value: &Value) {
    if let Err(error) = validator.validate(value) {
        panic!("{what} is not as the server publishes it, at `{}`: {error}", error.instance_path());
    }
}

/// Holds a report against the published schema.
pub fn check_report(report: &Value) {
    static SEEN: LazyLock<(RandomState, Mutex<HashSet<u64>>)> = LazyLock::new(Default::default);
    let (hasher, seen) = &*SEEN;
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let is_new = seen.insert(hasher.hash_one(report.to_string()));
    if seen.len() > MAX_SEEN {
        seen.clear();
    }
    drop(seen);
    if is_new {
        hold(&PUBLISHED.report, "a report", report);
    }
}

/// Holds the answers to one request, or to a batch, against what their methods publish. Messages that are no such
/// thing are not looked at: other tests send and expect them.
pub fn check_answers(request: &[u8], answer: &[u8]) {
    if answer.len() > MAX_BYTES {
        return;
    }
    let (Ok(request), Ok(answer)) = (serde_json::from_slice(request), serde_json::from_slice(answer)) else {
        return;
    };
    let messages = |message: Value| message.as_array().cloned().unwrap_or_else(|| vec![message]);
    let named = |request: Value| Some((request["id"].to_string(), request["method"].as_str()?.to_owned()));
    let methods = messages(request).into_iter().filter_map(named).collect::<BTreeMap<_, _>>();
    for answer in messages(answer) {
        check_answer(methods.get(&answer["id"].to_string()).map(String::as_str), &answer);
    }
}

/// Holds the response to a call of a method against what it publishes.
pub fn check_answer(method: Option<&str>, response: &Value) {
    // The document itself is described by a schema of others, and is what all the other checks wait for.
    let own = method.filter(|method| *method != "rpc.discover");
    let validator = own.and_then(|method| PUBLISHED.results.get(method));
    if let (Some(validator), Some(result)) = (validator, response.get("result")) {
        hold(validator, &format!("the result of `{}`", method.unwrap_or_default()), result);
    }
    if let Some(report) = response.pointer("/error/data/report") {
        check_report(report);
    }
}
