//! Makes the tool of an operation.

use super::document::{Document, clean, text_member};
use super::operation::{Effect, Operation, Route, snake_case};
use super::parameters::Arguments;
use super::response::Responses;
use super::schema::{Converted, Direction, convert};
use super::security::bindings;
use super::settings::OpenapiSettings;
use super::uri::write_url;
use crate::arguments::ApiOptions;
use crate::client::{Binding, is_toml};
use a2g_core::catalog::{AnswerBody, Example, Expected, RecordedAnswer, Schema, ToolManifest};
use a2g_types::ident::ToolName;
use a2g_types::limit::{ClaimedLimits, FileEffects};
use a2g_types::quantity::{MemoryLimit, Timeout};
use a2g_types::tool::{CallTargets, Contract, DeclaredCapabilities, DeclaredFilesystem};
use anyhow::bail;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The maximum length of a tool's description, in characters.
const MAX_DESCRIPTION_CHARS: usize = 1_000;
/// The maximum length of a tool's name, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// Enough for an answer of 8 MiB, which is the most that the client reads.
const MEMORY_MB: u64 = 64;
const TIMEOUT_SECONDS: u64 = 60;
/// The version of a tool whose document has another kind of version.
const FIRST_VERSION: &str = "1.0.0";

/// A tool that was made of an operation.
#[derive(Debug)]
pub(super) struct MadeTool {
    pub(super) manifest: ToolManifest,
    pub(super) bindings: Vec<Binding>,
    /// The scheme and the host of its requests.
    pub(super) origin: String,
    pub(super) remarks: BTreeSet<&'static str>,
}

/// Makes the tool of an operation, one of all `operations` of the document. Its name begins with `prefix`.
///
/// # Errors
/// If the operation cannot be a tool. The message says why.
pub(super) fn make(
    document: &Document,
    operations: &[Operation<'_>],
    operation: &Operation<'_>,
    prefix: &str,
    options: &ApiOptions,
) -> anyhow::Result<MadeTool> {
    let route = operation.route(document, options.server.as_deref())?;
    let arguments = Arguments::read(document, operation, &route)?;
    let responses = Responses::read(document, operation)?;
    let pagination = responses.pagination(document, operation, &arguments);
    let has_pages = pagination.is_some();
    let Converted { schema: arguments_schema, remarks: argument_remarks } =
        convert(document, Direction::Request, |converter| arguments.schema(converter, has_pages))?;
    let Converted { schema: result_schema, remarks: result_remarks } =
        convert(document, Direction::Response, |converter| responses.schema(converter, has_pages))?;
    let mut remarks = &(&argument_remarks | &result_remarks) | &arguments.remarks;
    let bindings = bindings(document, operation, prefix, &options.secrets, &mut remarks)?;
    let settings = OpenapiSettings {
        method: operation.method.to_owned(),
        url: route.url.clone(),
        retry: operation.effect == Effect::Idempotent,
        others: operation.others(operations).into_iter().collect(),
        body: arguments.body.as_ref().map(|body| body.settings.clone()),
        pagination,
        parameters: arguments.all.iter().map(|argument| argument.parameter.clone()).collect(),
    };
    let manifest = ToolManifest {
        name: tool_name(prefix, &operation.id)?,
        title: None,
        version: version(document),
        description: description(operation, &route),
        contract: Contract::Typed,
        module: "tool.wasm".into(),
        sha256: None,
        capabilities: capabilities(&route, &bindings),
        arguments: Some(arguments_schema),
        result: Some(result_schema),
        settings: Some(settings_table(&settings)?),
        idempotent: operation.effect == Effect::Idempotent,
        session: false,
        examples: Vec::new(),
    };
    let examples = example(document, &arguments, &responses, &settings, &manifest).into_iter().collect();
    let with_example = ToolManifest { examples, ..manifest };
    // Everything in it came from the document, so it is read as `tool add` reads it.
    if let Err(error) = with_example.to_toml() {
        bail!("its `tool.toml` cannot be written: {error}");
    }
    Ok(MadeTool { manifest: with_example, bindings, origin: route.origin, remarks })
}

/// The name of the tool: the prefix and the words of the operation's id.
fn tool_name(prefix: &str, id: &str) -> anyhow::Result<ToolName> {
    let name = format!("{prefix}_{}", snake_case(id));
    let cut = name.get(..MAX_NAME_BYTES).unwrap_or(&name);
    Ok(ToolName::parse(cut.trim_end_matches('_'))?)
}

/// The version of the document, if it looks like one of software: models read it.
fn version(document: &Document) -> String {
    let version = document.root.get("info").and_then(|info| text_member(info, "version")).unwrap_or_default();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_plain = version.len() <= 32 && version.split('.').all(is_number);
    if is_plain { version.to_owned() } else { FIRST_VERSION.to_owned() }
}

fn description(operation: &Operation<'_>, route: &Route) -> String {
    let [summary, text] =
        ["summary", "description"].map(|name| text_member(operation.value, name).unwrap_or_default());
    let joined = match (summary.trim().trim_end_matches('.'), text.trim()) {
        ("", "") => format!("Sends {}.", route.declared),
        ("", text) => text.to_owned(),
        (summary, text) if text.is_empty() || text == summary => {
            format!("{summary}.")
        }
        (summary, text) => format!("{summary}. {text}"),
    };
    clean(&joined, MAX_DESCRIPTION_CHARS)
}

fn capabilities(route: &Route, bindings: &[Binding]) -> DeclaredCapabilities {
    let memory = MemoryLimit::from_mb(MEMORY_MB).ok();
    let timeout = Timeout::from_seconds(TIMEOUT_SECONDS).ok();
    DeclaredCapabilities {
        filesystem: DeclaredFilesystem::None,
        effects: FileEffects::default(),
        network: true,
        requests: BTreeSet::from([route.declared.clone()]),
        secrets: bindings.iter().map(|binding| binding.name.clone()).collect(),
        limits: ClaimedLimits::default().with(memory).with(timeout),
        calls: CallTargets::none(),
    }
}

/// The `[settings]` of the client.
fn settings_table(settings: &OpenapiSettings) -> anyhow::Result<Map<String, Value>> {
    let mut table = Map::from_iter([("kind".to_owned(), "openapi".into())]);
    if let Value::Object(members) = serde_json::to_value(settings)? {
        table.extend(members);
    }
    Ok(table)
}

/// An example of the document's own examples; `None` if they are incomplete, or do not fit its schemas.
fn example(
    document: &Document,
    arguments: &Arguments<'_>,
    responses: &Responses<'_>,
    settings: &OpenapiSettings,
    manifest: &ToolManifest,
) -> Option<Example> {
    let given = arguments.example(document)?;
    let (status, answer) = responses.example(document)?;
    let url = write_url(settings, &given).ok()?;
    let mut members = Map::from_iter([("status".to_owned(), json!(status))]);
    if let Some(body) = &answer {
        members.insert("body".to_owned(), body.clone());
    }
    if let Some(pagination) = &settings.pagination {
        let names_next = |member: &String| {
            answer.as_ref().and_then(|body| body.get(member)).is_some_and(|next| !next.is_null())
        };
        if pagination.member.as_ref().is_some_and(names_next) {
            return None;
        }
        members.insert("pages".to_owned(), 1.into());
        members.insert("has_more".to_owned(), false.into());
    }
    let result = Value::Object(members);
    let passed = Value::Object(given.clone());
    if !is_toml(&passed) || !is_toml(&result) {
        return None;
    }
    Schema::new(manifest.arguments.as_ref()?).ok()?.check(&passed).ok()?;
    Schema::new_for_result(manifest.result.as_ref()?).ok()?.check(&result).ok()?;
    let body = answer.map_or(AnswerBody::Text(String::new()), AnswerBody::Json);
    let recorded =
        RecordedAnswer { method: settings.method.clone(), url, status, headers: BTreeMap::new(), body };
    Some(Example {
        name: Some("of the document".to_owned()),
        arguments: given,
        files: BTreeMap::new(),
        answers: vec![recorded],
        expected: Expected::Result(result),
    })
}
