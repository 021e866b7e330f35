//! The definitions of a server's tools, made manifests.
//!
//! A model reads the description and the schemas of a tool, and a person approves them. So a character that a person
//! could not see is escaped in texts for people, and refused elsewhere. `annotations` are hints of a stranger, and none
//! is taken over: a tool is `idempotent` only if its operator writes so.

use super::Source;
use super::endpoint::Endpoint;
use super::server::ListedTools;
use crate::client::is_toml;
use a2g_core::catalog::{Schema, ToolManifest};
use a2g_types::ident::{SecretName, ToolName, excerpt};
use a2g_types::limit::ClaimedLimits;
use a2g_types::quantity::{MemoryLimit, Timeout};
use a2g_types::tool::{Contract, DeclaredCapabilities};
use a2g_types::visible_text::{escape_invisible, escape_invisible_lines, is_invisible};
use a2g_wire::mcp::Revision;
use a2g_wire::mcp::headers::{ANNOTATION, annotated_arguments, check_annotations};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Value of `kind` in the settings of these tools.
pub(super) const KIND: &str = "mcp";
/// Maximum length of a description, in bytes: that of `tool.toml`.
const MAX_DESCRIPTION_BYTES: usize = 8 << 10;
/// Maximum length of a title, in characters.
const MAX_TITLE_CHARS: usize = 60;
/// What a call needs: an answer of 8 MiB, with its parsed form and its files.
const MEMORY_MB: u64 = 128;
const TIMEOUT_SECONDS: u64 = 120;
const VERSION: &str = "1.0.0";
/// Keywords of a schema whose values are texts for people.
const TEXTS: [&str; 3] = ["title", "description", "$comment"];
/// Keywords of a schema whose values are data.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];
/// Keywords of a schema with a map from names to schemas.
const MAPS: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// The tools of a server.
pub(super) struct Definitions {
    /// The revision that they speak.
    pub(super) revision: Revision,
    /// The manifests of those that can be used, by name.
    pub(super) tools: Vec<ToolManifest>,
    /// The others.
    pub(super) left_out: Vec<LeftOut>,
}

/// A tool of a server that cannot be used.
pub(super) struct LeftOut {
    /// Its name there.
    pub(super) tool: String,
    /// The reason.
    pub(super) reason: String,
}

/// Makes a manifest of each definition.
pub(super) fn read_all(source: &Source, listed: ListedTools) -> Definitions {
    let ListedTools { revision, tools } = listed;
    let mut found = BTreeMap::<ToolName, ToolManifest>::new();
    let mut twice = BTreeSet::new();
    let mut left_out = Vec::new();
    for tool in tools {
        let remote = tool.get("name").and_then(Value::as_str).unwrap_or_default();
        match read(source, revision, remote, &tool) {
            Ok(manifest) => {
                if let Some(other) = found.insert(manifest.name.clone(), manifest) {
                    twice.insert(other.name);
                }
            }
            Err(reason) => left_out.push(LeftOut { tool: excerpt(remote), reason }),
        }
    }
    // Which of them the server means by the name, nobody can say.
    for name in twice {
        found.remove(&name);
        left_out.push(LeftOut {
            tool: name.to_string(),
            reason: "the server lists it more than once".to_owned(),
        });
    }
    Definitions { revision, tools: found.into_values().collect(), left_out }
}

/// Makes the manifest of one tool.
fn read(source: &Source, revision: Revision, remote: &str, tool: &Value) -> Result<ToolManifest, String> {
    let Source { prefix, endpoint, secrets } = source;
    let name = ToolName::parse(&format!("{prefix}_{remote}")).map_err(|error| error.to_string())?;
    if tool.pointer("/execution/taskSupport").is_some_and(|support| support == "required") {
        return Err("it can only be called as a task".to_owned());
    }
    let text =
        |key: &str| tool.get(key).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    let title = text("title").map(|title| escape_invisible(title, MAX_TITLE_CHARS));
    let description = match text("description") {
        Some(description) => escape_invisible_lines(&description.replace("\r\n", "\n")),
        None => format!("The tool `{remote}` of the MCP server {}", endpoint.origin()),
    };
    if description.len() > MAX_DESCRIPTION_BYTES {
        return Err(format!(
            "its description has {} bytes, and at most {MAX_DESCRIPTION_BYTES} are accepted",
            description.len()
        ));
    }
    let arguments = match tool.get("inputSchema") {
        Some(schema @ Value::Object(_)) => read_schema(schema, "inputSchema")?,
        Some(_) | None => return Err("it has no schema of its arguments (`inputSchema`)".to_owned()),
    };
    Schema::new(&arguments).map_err(|error| error.to_string())?;
    let structured = match tool.get("outputSchema") {
        None | Some(Value::Null) => None,
        Some(schema) => Some(read_schema(schema, "outputSchema")?),
    };
    let mut settings = Map::new();
    settings.insert("kind".to_owned(), KIND.into());
    settings.insert("url".to_owned(), endpoint.as_str().into());
    settings.insert("tool".to_owned(), remote.into());
    settings.insert("revision".to_owned(), revision.as_str().into());
    if structured.is_some() {
        settings.insert("structured".to_owned(), true.into());
    }
    let fields = read_annotations(revision, &arguments)?;
    if !fields.is_empty() {
        settings.insert("headers".to_owned(), fields.into());
    }
    let result = structured.unwrap_or_else(text_result);
    Schema::new_for_result(&result).map_err(|error| error.to_string())?;
    if !is_toml(&arguments) || !is_toml(&result) {
        return Err(
            "its schemas have no form in TOML: `null`, or an integer beyond 64 bits with a sign".to_owned()
        );
    }
    let manifest = ToolManifest {
        name,
        title,
        version: VERSION.to_owned(),
        description,
        contract: Contract::Typed,
        module: "tool.wasm".into(),
        sha256: None,
        capabilities: capabilities(revision, endpoint, secrets),
        arguments: Some(arguments),
        result: Some(result),
        settings: Some(settings),
        idempotent: false,
        session: false,
        examples: Vec::new(),
    };
    Ok(manifest)
}

/// The network to the one endpoint, and nothing else.
fn capabilities(
    revision: Revision,
    endpoint: &Endpoint,
    secrets: &BTreeSet<SecretName>,
) -> DeclaredCapabilities {
    let end = (revision == Revision::Session).then(|| endpoint.delete().clone());
    DeclaredCapabilities {
        network: true,
        requests: [endpoint.post().clone()].into_iter().chain(end).collect(),
        secrets: secrets.clone(),
        limits: ClaimedLimits::default()
            .with(MemoryLimit::from_mb(MEMORY_MB).ok())
            .with(Timeout::from_seconds(TIMEOUT_SECONDS).ok()),
        ..DeclaredCapabilities::default()
    }
}

/// The schema of the result of a tool without an output schema, as the client makes it.
fn text_result() -> Value {
    let texts =
        json!({ "type": "array", "items": { "type": "string" }, "description": "The names of its files." });
    json!({
        "type": "object",
        "required": ["text"],
        "additionalProperties": false,
        "properties": {
            "text": { "type": "string", "description": "The text of the answer." },
            "structured": { "description": "The answer as data." },
            "artifacts": texts,
            "links": { "type": "array", "items": { "type": "object" }, "description": "Resources of the server." },
        },
    })
}

/// The arguments that header fields of 2026-07-28 repeat.
fn read_annotations(revision: Revision, arguments: &Value) -> Result<Vec<Value>, String> {
    if revision == Revision::Session {
        return Ok(Vec::new());
    }
    check_annotations(arguments)?;
    let annotated = annotated_arguments(arguments);
    if count_annotations(arguments) != annotated.len() {
        return Err(format!("its schema has `{ANNOTATION}` where no header can repeat the value"));
    }
    Ok(annotated.into_iter().map(|(name, path)| json!({ "name": name, "path": path })).collect())
}

/// The number of annotations anywhere in a schema.
fn count_annotations(schema: &Value) -> usize {
    match schema {
        Value::Array(items) => items.iter().map(count_annotations).sum(),
        Value::Object(members) => {
            let own = members.get(ANNOTATION).is_some_and(Value::is_string);
            usize::from(own) + members.values().map(count_annotations).sum::<usize>()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// A schema without characters that nobody could see, and without `null`, which TOML does not have.
fn read_schema(schema: &Value, key: &str) -> Result<Value, String> {
    let mut read = schema.clone();
    remove_nulls(&mut read);
    check_texts(&mut read).map_err(|reason| format!("`{key}` {reason}"))?;
    Ok(read)
}

/// Escapes what a person could not see in texts for people, and refuses it elsewhere.
fn check_texts(value: &mut Value) -> Result<(), String> {
    let is_hidden = |c: char| is_invisible(c) && !['\n', '\t'].contains(&c);
    let refuse = |text: &str| format!("has characters that nobody could see, in `{}`", excerpt(text));
    match value {
        Value::String(text) if text.contains(is_hidden) => Err(refuse(text)),
        Value::Array(items) => items.iter_mut().try_for_each(check_texts),
        Value::Object(members) => members.iter_mut().try_for_each(|(name, member)| {
            if name.contains(is_hidden) {
                return Err(refuse(name));
            }
            if let (true, Value::String(text)) = (TEXTS.contains(&name.as_str()), &mut *member) {
                *text = escape_invisible_lines(&text.replace("\r\n", "\n"));
                return Ok(());
            }
            check_texts(member)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// Writes a schema without `null`: as a default or an example it means nothing to a validator, and as a value it is the
/// type `null`.
fn remove_nulls(schema: &mut Value) {
    let keywords = match schema {
        Value::Array(schemas) => return schemas.iter_mut().for_each(remove_nulls),
        Value::Object(keywords) => keywords,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return,
    };
    let is_annotation = |name: &str| ["default", "examples", "example"].contains(&name);
    keywords.retain(|name, value| {
        name == "const" || !(value.is_null() || is_annotation(name) && !is_toml(value))
    });
    let mut more = Vec::new();
    if keywords.get("const").is_some_and(Value::is_null) {
        keywords.remove("const");
        more.push(json!({ "type": "null" }));
    }
    let values = keywords.get("enum").and_then(Value::as_array);
    if let Some(values) = values.filter(|values| values.contains(&Value::Null)) {
        let others = values.iter().filter(|value| !value.is_null()).cloned().collect::<Vec<_>>();
        more.push(match others.as_slice() {
            [] => json!({ "type": "null" }),
            [..] => json!({ "anyOf": [{ "enum": others }, { "type": "null" }] }),
        });
        keywords.remove("enum");
    }
    for (name, value) in keywords.iter_mut() {
        if DATA.contains(&name.as_str()) {
            continue;
        }
        if let (true, Value::Object(schemas)) = (MAPS.contains(&name.as_str()), &mut *value) {
            schemas.values_mut().for_each(remove_nulls);
        } else {
            remove_nulls(value);
        }
    }
    if more.is_empty() {
        return;
    }
    match keywords.entry("allOf").or_insert_with(|| json!([])) {
        Value::Array(all) => all.extend(more),
        // No schema: the validator refuses it.
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_config::Config;
    use std::path::Path;

    fn source() -> Source {
        let config = Config::parse("", Path::new("executor.toml"), Path::new("/srv/a2g")).unwrap();
        Source {
            prefix: ToolName::parse("wiki").unwrap(),
            endpoint: Endpoint::parse("https://mcp.example.com/mcp?key=1", &config).unwrap(),
            secrets: [SecretName::parse("wiki").unwrap()].into(),
        }
    }

    fn read_tools(revision: Revision, tools: &[Value]) -> Definitions {
        read_all(&source(), ListedTools { revision, tools: tools.to_vec() })
    }

    fn reason(change: &Value) -> String {
        let mut tool = json!({ "name": "find", "inputSchema": { "type": "object" } });
        for (key, value) in change.as_object().unwrap() {
            tool[key] = value.clone();
        }
        let found = read_tools(Revision::Stateless, &[tool]);
        found.left_out.first().map(|left_out| left_out.reason.clone()).unwrap_or_default()
    }

    #[test]
    fn a_definition_becomes_a_manifest_with_one_request() {
        let schema = json!({
            "type": "object",
            "properties": { "q": { "type": "string", "x-mcp-header": "Q", "description": "a\u{202e}b" } },
        });
        let hints = json!({ "readOnlyHint": true, "idempotentHint": true });
        let tool = json!({ "name": "find", "title": "Find", "description": "Finds\r\n\u{200b}", "annotations": hints,
                           "inputSchema": schema, "outputSchema": { "type": "array" } });
        let found = read_tools(Revision::Stateless, std::slice::from_ref(&tool));
        let [manifest] = found.tools.as_slice() else { unreachable!("{:?}", found.left_out.len()) };
        assert_eq!((manifest.name.as_str(), manifest.idempotent), ("wiki_find", false));
        assert_eq!(manifest.description, "Finds\n\\u{200b}");
        let settings = json!({
            "kind": "mcp", "url": "https://mcp.example.com/mcp?key=1", "tool": "find", "revision": "2026-07-28",
            "structured": true, "headers": [{ "name": "Q", "path": ["q"] }],
        });
        assert_eq!(manifest.settings.clone().map(Value::Object), Some(settings));
        let arguments = manifest.arguments.as_ref().unwrap();
        assert_eq!(arguments["properties"]["q"]["description"], "a\\u{202e}b");
        assert_eq!(manifest.result, Some(json!({ "type": "array" })));
        let requests = |manifest: &ToolManifest| {
            manifest.capabilities.requests.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(requests(manifest), ["POST https://mcp.example.com/mcp"]);
        let session = read_tools(Revision::Session, &[tool]);
        let [in_session] = session.tools.as_slice() else { unreachable!() };
        assert_eq!(
            requests(in_session),
            ["DELETE https://mcp.example.com/mcp", "POST https://mcp.example.com/mcp"]
        );
        assert!(!in_session.settings.as_ref().unwrap().contains_key("headers"));
    }

    #[test]
    fn what_could_not_be_checked_or_read_makes_no_tool() {
        assert_eq!(reason(&json!({})), "");
        let object =
            |properties: Value| json!({ "inputSchema": { "type": "object", "properties": properties } });
        for (change, words) in [
            (json!({ "name": "a b" }), "is not a tool name"),
            (json!({ "name": "x".repeat(60) }), "is not a tool name"),
            (json!({ "name": "\u{202e}find" }), "is not a tool name"),
            (json!({ "execution": { "taskSupport": "required" } }), "as a task"),
            (json!({ "description": "x".repeat(9 << 10) }), "its description has 9216 bytes"),
            (json!({ "inputSchema": null }), "no schema of its arguments"),
            (json!({ "inputSchema": { "type": "nothing" } }), "not a JSON Schema"),
            (object(json!({ "a": { "$ref": "https://other.example/schema" } })), "too complex"),
            (object(json!({ "a\u{200b}": {} })), "nobody could see"),
            (object(json!({ "a": { "enum": ["\u{1b}[2J"] } })), "nobody could see"),
            (object(json!({ "a": { "maximum": u64::MAX } })), "no form in TOML"),
            (object(json!({ "a": { "x-mcp-header": "A" } })), "needs the type"),
            (object(json!({ "a": { "items": { "x-mcp-header": "A" } } })), "where no header"),
            (json!({ "outputSchema": { "$dynamicRef": "#a" } }), "`[result]`"),
        ] {
            let reason = reason(&change);
            assert!(reason.contains(words), "{change}: {reason}");
        }
        let tool = json!({ "name": "find", "inputSchema": {} });
        let twice = read_tools(Revision::Stateless, &[tool.clone(), tool]);
        assert!(twice.tools.is_empty() && twice.left_out[0].reason.contains("more than once"));
    }

    #[test]
    fn a_schema_keeps_its_meaning_without_null() {
        let mut schema = json!({
            "default": { "a": null },
            "examples": [u64::MAX],
            "properties": {
                "default": { "type": ["string", "null"], "default": null, "x-note": null },
                "kind": { "enum": ["a", null], "description": "b" },
                "none": { "const": null, "allOf": [{ "enum": [null] }] },
            },
        });
        let before = Schema::new(&schema).unwrap();
        remove_nulls(&mut schema);
        assert!(is_toml(&schema), "{schema}");
        let after = Schema::new(&schema).unwrap();
        for value in [
            json!({ "kind": "a" }),
            json!({ "kind": null, "none": null, "default": null }),
            json!({ "kind": "c" }),
            json!({ "none": 1 }),
            json!({ "default": 1 }),
        ] {
            assert_eq!(before.check(&value).is_ok(), after.check(&value).is_ok(), "{value}");
        }
    }
}
