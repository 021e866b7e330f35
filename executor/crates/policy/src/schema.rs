//! The Cedar schema of the tools, and what it says of each tool.
//!
//! There is one way in: the text of the schema. It is made from the catalogue, or read from the file of a governor that
//! has none, so both decide alike.

use crate::rule_text::quoted;
use crate::source::{PolicyError, SCHEMA_FILE, describe};
use a2g_types::ident::ToolName;
use a2g_types::tool::{DeclaredFilesystem, Descriptor};
use cedar_policy::{EntityId, EntityTypeName, EntityUid, ParseErrors, Schema, SchemaFragment};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The group of the actions of all tools.
pub(crate) const CALL: &str = "call";
/// The action of reading files in a folder.
pub(crate) const READ: &str = "read";
/// The action of changing files in a folder.
pub(crate) const WRITE: &str = "write";
/// The action of sending requests to a host.
pub(crate) const REACH: &str = "reach";
/// The action of sending a secret.
pub(crate) const USE_SECRET: &str = "use_secret";

/// The actions that are not those of a tool.
const FIXED_ACTIONS: [&str; 5] = [CALL, READ, WRITE, REACH, USE_SECRET];
/// The beginning of the action of a tool whose name is one of them.
const TOOL_PREFIX: &str = "tool:";

/// The label of a tool that reads files.
const READS_FILES: &str = "reads_files";
/// The label of a tool that changes files.
const WRITES_FILES: &str = "writes_files";
/// The label of a tool that uses the network.
const NETWORK: &str = "network";
/// The labels of tools that follow from their definitions.
pub(crate) const LABELS: [&str; 6] =
    [READS_FILES, WRITES_FILES, NETWORK, "calls_tools", "sessions", "secrets"];

/// Words that cannot be the name of a member without quotes.
const RESERVED: [&str; 10] = ["true", "false", "if", "then", "else", "in", "is", "like", "has", "__cedar"];
/// Maximum nesting of the records of arguments.
const MAX_DEPTH: usize = 16;

/// What does not depend on the tools.
const HEAD: &str = r#"// The tools that policies may name. Written by `a2g-executor policy schema`: write it again when a tool changes.
entity Group in [Group];
entity Agent in [Group];
entity Label;
entity Tool in [Label];
entity Folder in [Folder];
entity Host in [Host];
entity Secret;

type Window = { minute: Long, hour: Long, day: Long };
type History = {
    calls: Window,
    denials: Window,
    same: Window,
    written_bytes: Window,
    succeeded: Set<Tool>,
    reached: Set<Host>,
    read: Set<Folder>,
};
type Risk = { score: Long, threats: Set<String> };
type Call = { depth: Long, door: String, in_session: Bool, parent?: Tool };

action "call";
action "read", "write" appliesTo {
    principal: Agent,
    resource: Folder,
    context: { tool: Tool, call: Call, history: History, risk: Risk, now: datetime, weekday: String },
};
action "reach" appliesTo {
    principal: Agent,
    resource: Host,
    context: { tool: Tool, call: Call, history: History, risk: Risk, now: datetime, weekday: String },
};
action "use_secret" appliesTo {
    principal: Agent,
    resource: Secret,
    context: { tool: Tool, call: Call, history: History, risk: Risk, now: datetime, weekday: String },
};
"#;

/// The types of entities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EntityKind {
    Action,
    Agent,
    Folder,
    Group,
    Host,
    Label,
    Secret,
    Tool,
}

impl EntityKind {
    const ALL: [Self; 8] = [
        Self::Action,
        Self::Agent,
        Self::Folder,
        Self::Group,
        Self::Host,
        Self::Label,
        Self::Secret,
        Self::Tool,
    ];
}

/// The names of the types, which Cedar parses once.
#[derive(Debug, Clone)]
pub(crate) struct EntityTypes {
    action: EntityTypeName,
    agent: EntityTypeName,
    folder: EntityTypeName,
    group: EntityTypeName,
    host: EntityTypeName,
    label: EntityTypeName,
    secret: EntityTypeName,
    tool: EntityTypeName,
}

impl EntityTypes {
    fn parse() -> Result<Self, Box<ParseErrors>> {
        Ok(Self {
            action: "Action".parse()?,
            agent: "Agent".parse()?,
            folder: "Folder".parse()?,
            group: "Group".parse()?,
            host: "Host".parse()?,
            label: "Label".parse()?,
            secret: "Secret".parse()?,
            tool: "Tool".parse()?,
        })
    }

    /// The name of a type.
    pub(crate) fn name(&self, kind: EntityKind) -> &EntityTypeName {
        match kind {
            EntityKind::Action => &self.action,
            EntityKind::Agent => &self.agent,
            EntityKind::Folder => &self.folder,
            EntityKind::Group => &self.group,
            EntityKind::Host => &self.host,
            EntityKind::Label => &self.label,
            EntityKind::Secret => &self.secret,
            EntityKind::Tool => &self.tool,
        }
    }

    /// The type of an entity; `None` for a type that the schema lacks.
    pub(crate) fn kind(&self, uid: &EntityUid) -> Option<EntityKind> {
        EntityKind::ALL.into_iter().find(|kind| self.name(*kind) == uid.type_name())
    }

    /// The identifier of an entity.
    pub(crate) fn uid(&self, kind: EntityKind, id: &str) -> EntityUid {
        EntityUid::from_type_name_and_id(self.name(kind).clone(), EntityId::new(id))
    }
}

/// What policies may say of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolShape {
    /// Its action.
    pub(crate) action: EntityUid,
    /// The tool as the resource of its action.
    pub(crate) resource: EntityUid,
    /// The arguments that have a form in Cedar (`context.input`).
    pub(crate) input: Record,
    /// The labels that follow from its definition.
    pub(crate) labels: BTreeSet<String>,
    /// Its declared use of files.
    pub(crate) filesystem: DeclaredFilesystem,
    /// `true` if it uses the network.
    pub(crate) has_network: bool,
}

/// The members of a record.
pub(crate) type Record = BTreeMap<String, Member>;

/// A member of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its type.
    pub(crate) kind: CedarType,
    /// `false` if it may be left out (`?`).
    pub(crate) is_required: bool,
}

/// The type of an argument in Cedar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CedarType {
    String,
    Long,
    Bool,
    /// A set of strings, integers or Booleans.
    Set(Box<CedarType>),
    Record(Record),
}

/// The name of the action of a tool.
pub(crate) fn action_name(tool: &ToolName) -> String {
    let name = tool.as_str();
    if FIXED_ACTIONS.contains(&name) { format!("{TOOL_PREFIX}{name}") } else { name.to_owned() }
}

/// The Cedar schema of these tools, in its syntax for people. The same tools in another order give the same text.
#[must_use]
pub fn schema_text<'a>(tools: impl IntoIterator<Item = &'a Descriptor>) -> String {
    let tools = tools.into_iter().map(|tool| (&tool.name, tool)).collect::<BTreeMap<_, _>>();
    tools.into_values().fold(HEAD.to_owned(), |text, tool| text + &action_text(tool))
}

fn action_text(tool: &Descriptor) -> String {
    let labels = labels(tool).join(" ");
    let name = action_name(&tool.name);
    let input = record(&tool.arguments_schema, MAX_DEPTH).unwrap_or_default();
    let left_out = left_out(tool).into_iter().fold(String::new(), |text, (name, reason)| {
        format!("{text}        // {}: {reason}\n", quoted(&name))
    });
    format!(
        "
@labels(\"{labels}\")
action \"{name}\" in [\"call\"] appliesTo {{
    principal: Agent,
    resource: Tool,
    context: {{
{left_out}        input: {},
        call: Call,
        history: History,
        risk: Risk,
        now: datetime,
        weekday: String,
        longest_text: Long,
        text: String,
    }},
}};
",
        record_text(&input)
    )
}

/// The labels of a tool, in the order of [`LABELS`].
fn labels(tool: &Descriptor) -> Vec<&'static str> {
    let capabilities = &tool.capabilities;
    let has = [
        capabilities.filesystem != DeclaredFilesystem::None,
        capabilities.filesystem == DeclaredFilesystem::ReadWrite,
        capabilities.network,
        !capabilities.calls.is_empty(),
        tool.has_sessions,
        !capabilities.secrets.is_empty(),
    ];
    LABELS.into_iter().zip(has).filter_map(|(label, has)| has.then_some(label)).collect()
}

/// The arguments of a tool that have no form in Cedar, with the reason.
pub(crate) fn left_out(tool: &Descriptor) -> BTreeMap<String, &'static str> {
    let reason = |schema: &Value| match schema.get("type").and_then(Value::as_str) {
        Some("number") => "Cedar has no numbers with a fraction",
        Some("array") => "Cedar has sets only of strings, integers or Booleans here",
        Some(_) | None => "its values have no single type that Cedar has",
    };
    let members = tool.arguments_schema.get("properties").and_then(Value::as_object);
    let is_left_out = |(_, schema): &(&String, &Value)| cedar_type(schema, MAX_DEPTH).is_none();
    let named = |(name, schema): (&String, &Value)| (name.clone(), reason(schema));
    members.into_iter().flatten().filter(is_left_out).map(named).collect()
}

/// The type of the values of a JSON schema; `None` if Cedar has none.
fn cedar_type(schema: &Value, depth: usize) -> Option<CedarType> {
    match schema.get("type")?.as_str()? {
        "string" => Some(CedarType::String),
        "integer" => Some(CedarType::Long),
        "boolean" => Some(CedarType::Bool),
        "array" => {
            let element = cedar_type(schema.get("items")?, 0)?;
            let is_scalar = !matches!(element, CedarType::Set(_) | CedarType::Record(_));
            is_scalar.then(|| CedarType::Set(Box::new(element)))
        }
        "object" => record(schema, depth.checked_sub(1)?).map(CedarType::Record),
        _other => None,
    }
}

/// The record of an object's JSON schema, without the members that have no form in Cedar.
fn record(schema: &Value, depth: usize) -> Option<Record> {
    let members = schema.get("properties")?.as_object()?;
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|other| other == name));
    let member = |(name, schema): (&String, &Value)| {
        let kind = cedar_type(schema, depth)?;
        Some((name.clone(), Member { kind, is_required: is_required(name) }))
    };
    Some(members.iter().filter_map(member).collect())
}

fn record_text(record: &Record) -> String {
    let members = record.iter().map(|(name, Member { kind, is_required })| {
        let mark = if *is_required { "" } else { "?" };
        format!("{}{mark}: {}", member_name(name), type_text(kind))
    });
    let members = members.collect::<Vec<_>>().join(", ");
    if members.is_empty() { "{}".to_owned() } else { format!("{{ {members} }}") }
}

fn type_text(kind: &CedarType) -> String {
    match kind {
        CedarType::String => "String".to_owned(),
        CedarType::Long => "Long".to_owned(),
        CedarType::Bool => "Bool".to_owned(),
        CedarType::Set(element) => format!("Set<{}>", type_text(element)),
        CedarType::Record(members) => record_text(members),
    }
}

/// The name of a member, in quotes where it needs them.
fn member_name(name: &str) -> String {
    let mut bytes = name.bytes();
    let is_identifier = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !RESERVED.contains(&name);
    if is_identifier { name.to_owned() } else { quoted(name) }
}

/// A schema, parsed.
#[derive(Debug)]
pub(crate) struct ParsedSchema {
    pub(crate) schema: Schema,
    pub(crate) types: EntityTypes,
    pub(crate) tools: BTreeMap<ToolName, ToolShape>,
}

impl ParsedSchema {
    /// Parses a text of [`schema_text`].
    pub(crate) fn of_catalogue(text: &str) -> Result<Self, PolicyError> {
        Self::parse(text).map_err(|(_, message)| PolicyError::Schema { message })
    }

    /// Parses the file of a governor without a catalogue.
    pub(crate) fn of_file(text: &str) -> Result<Self, PolicyError> {
        // Another version has other facts: policies would be checked against one model, and calls against another.
        if !text.starts_with(HEAD) {
            let message =
                "it was not written by this version; write it again with `a2g-executor policy schema`";
            return Err(PolicyError::at(SCHEMA_FILE, None, message.to_owned()));
        }
        Self::parse(text).map_err(|(line, message)| PolicyError::at(SCHEMA_FILE, line, message))
    }

    fn parse(text: &str) -> Result<Self, (Option<u32>, String)> {
        let (fragment, _warnings) =
            SchemaFragment::from_cedarschema_str(text).map_err(|error| describe(&error, text))?;
        let schema =
            Schema::from_schema_fragments([fragment.clone()]).map_err(|error| describe(&error, text))?;
        let types = EntityTypes::parse().map_err(|error| describe(&*error, text))?;
        let json = fragment.clone().to_json_value().map_err(|error| describe(&error, text))?;
        let actions = json.get("").and_then(|namespace| namespace.get("actions")).and_then(Value::as_object);
        let mut tools = BTreeMap::new();
        for (action, definition) in actions.into_iter().flatten() {
            if FIXED_ACTIONS.contains(&action.as_str()) {
                continue;
            }
            let labels = fragment.action_annotation(None, &EntityId::new(action), "labels");
            let tool = ToolName::parse(action.strip_prefix(TOOL_PREFIX).unwrap_or(action))
                .map_err(|error| (None, format!("the action `{}`: {error}", action.escape_debug())))?;
            let shape = ToolShape::of(&types, &tool, action, definition, labels.unwrap_or_default());
            tools.insert(tool, shape);
        }
        Ok(Self { schema, types, tools })
    }
}

impl ToolShape {
    /// The shape of a tool, of the definition of its action in Cedar's JSON form of schemas.
    fn of(types: &EntityTypes, tool: &ToolName, action: &str, definition: &Value, labels: &str) -> Self {
        let labels = labels.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
        let input = definition.pointer("/appliesTo/context/attributes/input/attributes");
        let filesystem = match (labels.contains(READS_FILES), labels.contains(WRITES_FILES)) {
            (_, true) => DeclaredFilesystem::ReadWrite,
            (true, false) => DeclaredFilesystem::Read,
            (false, false) => DeclaredFilesystem::None,
        };
        Self {
            action: types.uid(EntityKind::Action, action),
            resource: types.uid(EntityKind::Tool, tool.as_str()),
            input: input.and_then(Value::as_object).map(record_of).unwrap_or_default(),
            has_network: labels.contains(NETWORK),
            filesystem,
            labels,
        }
    }
}

/// The members of a record in Cedar's JSON form of schemas.
fn record_of(members: &Map<String, Value>) -> Record {
    let member = |(name, definition): (&String, &Value)| {
        let is_required = definition.get("required").and_then(Value::as_bool).unwrap_or(true);
        Some((name.clone(), Member { kind: type_of(definition)?, is_required }))
    };
    members.iter().filter_map(member).collect()
}

fn type_of(definition: &Value) -> Option<CedarType> {
    match definition.get("type")?.as_str()? {
        "Record" => definition.get("attributes")?.as_object().map(record_of).map(CedarType::Record),
        "Set" => Some(CedarType::Set(Box::new(type_of(definition.get("element")?)?))),
        "EntityOrCommon" => scalar(definition.get("name")?.as_str()?),
        name => scalar(name),
    }
}

fn scalar(name: &str) -> Option<CedarType> {
    match name.strip_prefix("__cedar::").unwrap_or(name) {
        "String" => Some(CedarType::String),
        "Long" => Some(CedarType::Long),
        "Bool" | "Boolean" => Some(CedarType::Bool),
        _other => None,
    }
}

#[cfg(test)]
pub(crate) mod tests;
