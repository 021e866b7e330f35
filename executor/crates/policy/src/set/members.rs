//! `entities.json`: the groups of agents, and further labels of tools.

use crate::schema::{EntityKind, EntityTypes, LABELS, ParsedSchema};
use crate::source::{ENTITIES_FILE, PolicyError};
use a2g_types::ident::{AgentDid, ToolName, did_you_mean, excerpt};
use cedar_policy::{Entity, EntityUid};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The entities that are no literals of policies, each with those that it is in.
#[derive(Debug, Default)]
pub(super) struct Members {
    parents: BTreeMap<EntityUid, BTreeSet<EntityUid>>,
    /// Every group that is named.
    groups: BTreeSet<String>,
    /// Every label that is named, and those that follow from definitions.
    labels: BTreeSet<String>,
    /// Every agent that is named.
    pub(super) agents: BTreeSet<AgentDid>,
}

impl Members {
    /// The tools with their labels, and what `entities.json` adds.
    pub(super) fn read(text: Option<&str>, schema: &ParsedSchema) -> Result<Self, PolicyError> {
        let mut members = Self { labels: LABELS.into_iter().map(str::to_owned).collect(), ..Self::default() };
        for tool in schema.tools.values() {
            let labels = tool.labels.iter().map(|label| schema.types.uid(EntityKind::Label, label));
            members.parents.insert(tool.resource.clone(), labels.collect());
        }
        let refused = |message| PolicyError::at(ENTITIES_FILE, None, message);
        let Some(text) = text else { return Ok(members) };
        let list = serde_json::from_str::<Vec<Value>>(text).map_err(|error| refused(error.to_string()))?;
        let mut seen = BTreeSet::new();
        for (index, entry) in list.iter().enumerate() {
            let uid = members
                .add(entry, schema)
                .map_err(|message| refused(format!("entity {} of the list: {message}", index + 1)))?;
            if !seen.insert(uid.clone()) {
                return Err(refused(format!("`{uid}` is there twice; write its parents in one entity")));
            }
        }
        Ok(members)
    }

    /// Adds an entity of the list.
    fn add(&mut self, entry: &Value, schema: &ParsedSchema) -> Result<EntityUid, String> {
        let object = entry.as_object().ok_or("it is not an object with `uid` and `parents`")?;
        for (name, value) in object {
            let is_empty = value.as_object().is_some_and(serde_json::Map::is_empty);
            match name.as_str() {
                "uid" | "parents" => {}
                "attrs" | "tags" if is_empty => {}
                "attrs" | "tags" => {
                    return Err(format!("`{name}`: entities have no attributes here; leave it out"));
                }
                _other => {
                    return Err(format!("`{}` is not one of `uid`, `parents` and `attrs`", excerpt(name)));
                }
            }
        }
        let uid = parse_uid(object.get("uid").ok_or("it has no `uid`")?)?;
        self.check(&uid, schema)?;
        let parents: &[Value] = match object.get("parents") {
            None => &[],
            Some(parents) => parents.as_array().ok_or("`parents` is not a list")?.as_slice(),
        };
        for parent in parents {
            let parent = parse_uid(parent)?;
            self.check(&parent, schema)?;
            check_parent(&uid, &parent, &schema.types)?;
            self.parents.entry(uid.clone()).or_default().insert(parent);
        }
        self.parents.entry(uid.clone()).or_default();
        Ok(uid)
    }

    /// Refuses an entity that is no agent, group, label or known tool, and remembers the others.
    fn check(&mut self, uid: &EntityUid, schema: &ParsedSchema) -> Result<(), String> {
        let id = uid.id().unescaped();
        match schema.types.kind(uid) {
            Some(EntityKind::Agent) => {
                self.agents.insert(AgentDid::parse(id).map_err(|error| error.to_string())?);
            }
            Some(EntityKind::Group) => {
                self.groups.insert(id.to_owned());
            }
            Some(EntityKind::Label) => {
                self.labels.insert(id.to_owned());
            }
            Some(EntityKind::Tool) => check_tool(id, schema)?,
            Some(EntityKind::Action | EntityKind::Folder | EntityKind::Host | EntityKind::Secret) | None => {
                return Err(format!("`{uid}`: entities here are `Agent`, `Group`, `Tool` and `Label`"));
            }
        }
        Ok(())
    }

    /// Refuses a group that has no member, of which a policy would say nothing.
    pub(super) fn check_group(&self, id: &str) -> Result<(), String> {
        check_known("group", id, &self.groups, "add it to `entities.json`")
    }

    /// Refuses a label that no tool has, of which a policy would say nothing.
    pub(super) fn check_label(&self, id: &str) -> Result<(), String> {
        check_known("label", id, &self.labels, "add it to a tool in `entities.json`")
    }

    /// The entities.
    pub(super) fn into_entities(self) -> impl Iterator<Item = Entity> {
        let entity = |(uid, parents): (EntityUid, BTreeSet<EntityUid>)| {
            Entity::new_no_attrs(uid, parents.into_iter().collect::<HashSet<_>>())
        };
        self.parents.into_iter().map(entity)
    }
}

/// Refuses a tool that the catalogue lacks.
pub(super) fn check_tool(id: &str, schema: &ParsedSchema) -> Result<(), String> {
    let is_known = ToolName::parse(id).is_ok_and(|name| schema.tools.contains_key(&name));
    let known = schema.tools.keys().map(ToolName::as_str);
    let refused = || {
        let id_text = excerpt(id);
        format!(
            "the catalogue has no tool `{id_text}`{}; add the tool, or remove its rules",
            did_you_mean(id, known)
        )
    };
    if is_known { Ok(()) } else { Err(refused()) }
}

fn check_known(what: &str, id: &str, known: &BTreeSet<String>, remedy: &str) -> Result<(), String> {
    if known.contains(id) {
        return Ok(());
    }
    let advice = did_you_mean(id, known.iter().map(String::as_str));
    Err(format!("there is no {what} `{}`{advice}; {remedy}", excerpt(id)))
}

/// `{ "type": …, "id": … }`, or that as `__entity`.
fn parse_uid(value: &Value) -> Result<EntityUid, String> {
    EntityUid::from_json(value.clone()).map_err(|error| error.to_string())
}

fn check_parent(uid: &EntityUid, parent: &EntityUid, types: &EntityTypes) -> Result<(), String> {
    let is_allowed = match types.kind(uid) {
        Some(EntityKind::Agent | EntityKind::Group) => types.kind(parent) == Some(EntityKind::Group),
        Some(EntityKind::Tool) => types.kind(parent) == Some(EntityKind::Label),
        Some(
            EntityKind::Action
            | EntityKind::Folder
            | EntityKind::Host
            | EntityKind::Label
            | EntityKind::Secret,
        )
        | None => false,
    };
    let refused =
        || format!("`{uid}` cannot be in `{parent}`: agents and groups are in groups, tools have labels");
    if is_allowed { Ok(()) } else { Err(refused()) }
}
