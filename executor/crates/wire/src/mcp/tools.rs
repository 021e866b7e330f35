//! The definitions of tools, as `tools/list` has them.

use super::{Revision, names};
use crate::listing::{DESCRIBE_TOOLS, DescribeRequest, MAX_QUERY_BYTES, is_interpreter};
use crate::stubs::Language;
use crate::to_raw;
use a2g_types::fault::Fault;
use a2g_types::ident::{ToolName, excerpt};
use a2g_types::tool::{DeclaredFilesystem, Descriptor, Digest};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use strum::VariantArray as _;

/// The maximum number of tools in one page.
pub const PAGE_SIZE: usize = 50;

/// The definitions of tools in one revision, which are the same for every client.
#[derive(Debug)]
pub struct Definitions(Vec<Definition>);

/// The definition of one tool, as text.
#[derive(Debug)]
pub struct Definition {
    tool: ToolName,
    is_interpreter: bool,
    text: Box<RawValue>,
}

impl Definitions {
    /// The definitions of these tools, which are sorted by name.
    #[must_use]
    pub fn new(tools: &[Descriptor], revision: Revision) -> Self {
        let define = |tool: &Descriptor| Definition {
            tool: tool.name.clone(),
            is_interpreter: is_interpreter(tool),
            text: to_raw(&ToolDefinition::new(tool, revision)),
        };
        Self(tools.iter().map(define).collect())
    }

    /// The definitions, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Definition> {
        self.0.iter()
    }
}

impl Definition {
    /// The name of the tool.
    #[must_use]
    pub fn tool(&self) -> &ToolName {
        &self.tool
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolDefinition<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    description: &'a str,
    input_schema: Cow<'a, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a Value>,
    annotations: Annotations,
    #[serde(rename = "_meta", skip_serializing_if = "Map::is_empty")]
    meta: Map<String, Value>,
}

/// Hints about a tool's behaviour. They follow from the capabilities that the tool declares and the executor enforces.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Annotations {
    read_only_hint: bool,
    destructive_hint: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    idempotent_hint: bool,
    open_world_hint: bool,
}

impl Annotations {
    fn of(tool: &Descriptor) -> Self {
        let writes = match tool.capabilities.filesystem {
            DeclaredFilesystem::None | DeclaredFilesystem::Read => false,
            DeclaredFilesystem::ReadWrite => true,
        };
        // A request over the network may change something at its other end.
        let is_read_only = !(writes || tool.capabilities.network);
        Self {
            read_only_hint: is_read_only,
            destructive_hint: !is_read_only,
            idempotent_hint: tool.is_idempotent,
            open_world_hint: tool.capabilities.network,
        }
    }
}

impl<'a> ToolDefinition<'a> {
    fn new(tool: &'a Descriptor, revision: Revision) -> Self {
        let mut definition = Self {
            name: tool.name.as_str(),
            title: tool.title.as_deref(),
            description: &tool.description,
            input_schema: input_schema(tool),
            output_schema: tool.result_schema.as_ref().filter(|schema| revision.allows_output_schema(schema)),
            annotations: Annotations::of(tool),
            meta: Map::new(),
        };
        let text = format!("{} {} {}", to_raw(&definition).get(), tool.version, tool.digest);
        let digest = Digest::compute(text.as_bytes()).to_string();
        definition.meta.insert(names::DEFINITION_DIGEST.to_owned(), digest.into());
        definition
    }
}

/// The description of the argument that asks for a session.
const SESSION_DESCRIPTION: &str = "Optional. \"new\" keeps what this call defines (variables, imports, open \
     files) for further calls: the result's last line names the session, such as ses_…, and the next call \
     passes that name here. The session ends when a call reaches a limit (time, memory, output) or crashes, \
     and after the idle time that results name; an error of the program itself does not end it. Without it, \
     nothing is kept.";

/// The schema of the arguments, with the one that asks for a session if the tool has sessions.
fn input_schema(tool: &Descriptor) -> Cow<'_, Value> {
    let schema = object_schema(&tool.arguments_schema);
    if !tool.takes_session_argument() {
        return schema;
    }
    let mut with_session = schema.into_owned();
    if let Value::Object(members) = &mut with_session
        && let Value::Object(properties) = members.entry("properties").or_insert_with(|| json!({}))
    {
        let argument = json!({ "type": "string", "description": SESSION_DESCRIPTION });
        properties.insert(Descriptor::SESSION_ARGUMENT.to_owned(), argument);
    }
    Cow::Owned(with_session)
}

/// The schema of the arguments. The protocol requires `"type": "object"` at its root; a schema without it, which the
/// executor accepts because arguments are always an object, gets it.
fn object_schema(schema: &Value) -> Cow<'_, Value> {
    let kind = schema.get("type");
    match schema {
        Value::Object(_) if kind.is_some_and(|kind| kind == "object") => Cow::Borrowed(schema),
        Value::Object(members) if kind.is_none() => {
            let mut typed = Map::from_iter([("type".to_owned(), "object".into())]);
            typed.extend(members.clone());
            Cow::Owned(typed.into())
        }
        Value::Object(_)
        | Value::Bool(_)
        | Value::Null
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_) => Cow::Owned(json!({ "type": "object", "allOf": [schema] })),
    }
}

/// One page of tools, which are sorted by name, and the cursor of the next one.
pub(super) fn page<'a>(
    tools: impl Iterator<Item = &'a Definition>,
    after: Option<&ToolName>,
) -> (Vec<Cow<'a, RawValue>>, Option<String>) {
    let mut rest = tools.skip_while(|tool| after.is_some_and(|after| tool.tool <= *after)).peekable();
    let page = rest.by_ref().take(PAGE_SIZE).collect::<Vec<_>>();
    let next = rest.peek().and(page.last()).map(|last| last.tool.to_string());
    (page.into_iter().map(|tool| Cow::Borrowed(&*tool.text)).collect(), next)
}

/// The list under the listing `code`: the interpreters among the tools, and the request for descriptions. It is one
/// page.
pub(super) fn code_page<'a>(
    tools: impl Iterator<Item = &'a Definition>,
    after: Option<&ToolName>,
) -> Vec<Cow<'a, RawValue>> {
    let interpreters = tools.filter(|tool| tool.is_interpreter);
    let interpreters = interpreters.map(|tool| (tool.tool.as_str(), Cow::Borrowed(&*tool.text)));
    let describe = (DESCRIBE_TOOLS, Cow::Owned(to_raw(&describe_definition())));
    let mut page = std::iter::once(describe).chain(interpreters).collect::<Vec<_>>();
    page.retain(|(name, _)| after.is_none_or(|after| *name > after.as_str()));
    page.sort_by_key(|(name, _)| *name);
    page.into_iter().map(|(_, text)| text).collect()
}

fn describe_definition() -> ToolDefinition<'static> {
    let languages = Language::VARIANTS.iter().map(|language| language.as_str()).collect::<Vec<_>>();
    let schema = json!({
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "description": "Words for what a tool should do, or names of tools; empty: an overview",
            },
            "language": { "enum": languages },
        },
        "additionalProperties": false,
    });
    ToolDefinition {
        name: DESCRIBE_TOOLS,
        title: None,
        description: "Finds the tools that programs can call as `tools.NAME`, and answers their types. Look \
             here before you write a program.",
        input_schema: Cow::Owned(schema),
        output_schema: None,
        annotations: Annotations {
            read_only_hint: true,
            destructive_hint: false,
            idempotent_hint: true,
            open_world_hint: false,
        },
        meta: Map::new(),
    }
}

/// Decodes the arguments of a request for descriptions.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer to the argument.
pub fn decode_describe(arguments: &Map<String, Value>) -> Result<DescribeRequest, Fault> {
    let mut request = DescribeRequest::default();
    for (name, value) in arguments {
        let invalid = |reason: String| {
            let pointer = format!("/arguments/{}", excerpt(name).replace('~', "~0").replace('/', "~1"));
            Fault::invalid(pointer, reason)
        };
        match (name.as_str(), value.as_str()) {
            ("query", Some(query)) if query.len() <= MAX_QUERY_BYTES => query.clone_into(&mut request.query),
            ("query", _) => {
                return Err(invalid(format!("`query` must be a string of at most {MAX_QUERY_BYTES} bytes")));
            }
            ("language", text) => {
                let found = Language::VARIANTS.iter().find(|language| Some(language.as_str()) == text);
                let message = || invalid("`language` must be `javascript` or `python`".to_owned());
                request.language = Some(*found.ok_or_else(message)?);
            }
            (name, _) => return Err(invalid(format!("`{}` is not a known argument", excerpt(name)))),
        }
    }
    Ok(request)
}
