//! Generated calls, to compare two sets of policies: made of the schemas of the tools, of what the policies name, and of
//! the numbers in their conditions, with those beside them. The same texts give the same calls.
//!
//! ```text
//! agent, tool ─▶ a plain call ─▶ each change of it ─▶ each two changes ─▶ … until the share of the pair is used up
//! ```
//! They prove nothing: what no call of them shows may still be so.

#[cfg(test)]
mod tests;

use crate::cases::{Case, DecisionWord, Expected};
use crate::facts::{History, Window};
use a2g_types::call::Door;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::tool::Descriptor;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use time::format_description::well_known::Rfc3339;
use time::macros::datetime;
use time::{Duration, OffsetDateTime};

/// A Monday, at the beginning of the day.
const MONDAY: OffsetDateTime = datetime!(2026-01-05 0:00 UTC);
/// An agent that no policy names, except by accident.
const OTHER_AGENT: &str = "did:a2g:agent:1.0:any-other";
/// A path in no folder of a policy, except by accident.
const OTHER_PATH: &str = "/any-other/a";
/// Maximum number of values of one kind that are tried.
const MAX_VALUES: usize = 200;

/// A generated call.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The call. It expects nothing.
    pub case: Case,
    /// The number of changes of a plain call.
    pub changes: usize,
}

/// What policies name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Words {
    /// The names of entities, by their types.
    entities: BTreeMap<String, BTreeSet<String>>,
    /// The other texts.
    texts: BTreeSet<String>,
    numbers: BTreeSet<u64>,
}

/// One change of a call.
#[derive(Debug, Clone, PartialEq)]
enum Change {
    Argument(String, Value),
    Calls(u64),
    Denials(u64),
    Same(u64),
    WrittenBytes(u64),
    Succeeded(ToolName),
    Reached(String),
    Read(String),
    Risk(u8),
    Threat(String),
    At(OffsetDateTime),
    Parent(ToolName),
    Depth(u32),
    Door(Door),
    Session,
}

/// Up to `max` calls for policies with these texts and entities, of the agents that they name and one more.
#[must_use]
pub fn samples(texts: &[&str], entities: &[&str], tools: &[&Descriptor], max: usize) -> Vec<Sample> {
    let mut words = Words::default();
    texts.iter().for_each(|text| words.read(text));
    let named = words.of("Agent").chain(entities.iter().flat_map(|text| text.split('"')));
    let agents = named.filter_map(|text| AgentDid::parse(text).ok()).chain(AgentDid::parse(OTHER_AGENT).ok());
    let agents = agents.collect::<BTreeSet<_>>();
    let pairs = agents.len().saturating_mul(tools.len()).max(1);
    let share = max.div_ceil(pairs);
    let mut samples = Vec::new();
    for agent in &agents {
        for tool in tools {
            samples.extend(of_pair(agent, tool, &words, share));
        }
    }
    samples.truncate(max);
    samples
}

/// The calls of one tool by one agent.
fn of_pair(agent: &AgentDid, tool: &Descriptor, words: &Words, share: usize) -> Vec<Sample> {
    let plain = plain_case(agent, tool, words);
    let changes = changes(tool, words);
    let mut samples = vec![Sample { case: plain.clone(), changes: 0 }];
    samples.extend(changes.iter().map(|change| changed(&plain, &[change])));
    let count = changes.len();
    let all = count.saturating_mul(count.saturating_sub(1)) / 2;
    // Of more pairs than there is room for, some from each part.
    let step = all.div_ceil(share.saturating_sub(samples.len()).max(1)).max(1);
    let pairs = changes
        .iter()
        .enumerate()
        .flat_map(|(nth, one)| changes.iter().skip(nth + 1).map(move |other| (one, other)));
    samples.extend(pairs.step_by(step).map(|(one, other)| changed(&plain, &[one, other])));
    samples.truncate(share.max(1));
    samples
}

fn changed(plain: &Case, changes: &[&Change]) -> Sample {
    let mut case = plain.clone();
    changes.iter().for_each(|change| change.apply(&mut case));
    Sample { case, changes: changes.len() }
}

fn plain_case(agent: &AgentDid, tool: &Descriptor, words: &Words) -> Case {
    let mut arguments = Map::new();
    let required = tool.arguments_schema.get("required").and_then(Value::as_array);
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        let value = values(property(tool, name), words).into_iter().next();
        arguments.insert(name.to_owned(), value.unwrap_or_else(|| Value::String("x".to_owned())));
    }
    Case {
        name: String::new(),
        agent: agent.clone(),
        tool: tool.name.clone(),
        arguments,
        at: MONDAY + Duration::hours(12),
        door: Door::A2g,
        parent: None,
        depth: 0,
        is_in_session: false,
        risk: None,
        facts: History::default(),
        expected: Expected {
            decision: DecisionWord::Allow,
            rule: None,
            reason: None,
            limits: BTreeMap::new(),
            folders: None,
            hosts: None,
            secrets: None,
        },
    }
}

fn property<'a>(tool: &'a Descriptor, name: &str) -> Option<&'a Value> {
    tool.arguments_schema.get("properties")?.get(name)
}

/// The values that an argument is tried with.
fn values(schema: Option<&Value>, words: &Words) -> Vec<Value> {
    let kind = schema.and_then(|schema| schema.get("type")).and_then(Value::as_str).unwrap_or("string");
    let listed = schema.and_then(|schema| schema.get("enum")).and_then(Value::as_array);
    if let Some(listed) = listed {
        return listed.clone();
    }
    match kind {
        "string" => words.strings().into_iter().map(Value::String).collect(),
        "integer" | "number" => words.numbers.iter().map(|number| Value::from(*number)).collect(),
        "boolean" => vec![Value::Bool(true), Value::Bool(false)],
        "array" => {
            let items = schema.and_then(|schema| schema.get("items"));
            let each = values(items, words).into_iter().map(|item| Value::Array(vec![item]));
            std::iter::once(Value::Array(Vec::new())).chain(each).collect()
        }
        // Nothing is known of others.
        _other => vec![Value::Object(Map::new())],
    }
}

/// All changes of a call of this tool.
fn changes(tool: &Descriptor, words: &Words) -> Vec<Change> {
    let properties = tool.arguments_schema.get("properties").and_then(Value::as_object);
    let arguments = properties.into_iter().flatten().flat_map(|(name, schema)| {
        values(Some(schema), words).into_iter().map(move |value| Change::Argument(name.clone(), value))
    });
    let numbers = || words.numbers.iter().copied();
    let counts = [Change::Calls, Change::Denials, Change::Same, Change::WrittenBytes];
    let counts = counts.into_iter().flat_map(|change| numbers().map(change));
    let tools = || words.of("Tool").filter_map(|name| ToolName::parse(name).ok());
    let risks = numbers().filter_map(|number| u8::try_from(number).ok()).filter(|score| *score <= 100);
    let hours = numbers().filter_map(|number| i64::try_from(number).ok()).filter(|hour| *hour < 24);
    let days = (0..7).map(|day| MONDAY + Duration::days(day) + Duration::hours(12));
    let times = hours.map(|hour| MONDAY + Duration::hours(hour)).chain(days).chain(words.times());
    let depths = numbers().filter_map(|number| u32::try_from(number).ok()).filter(|depth| *depth <= 16);
    let doors = Door::ALL.iter().copied().filter(|door| words.texts.contains(&door.to_string()));
    let owned = |kind: &'static str| words.of(kind).map(str::to_owned);
    arguments
        .chain(counts)
        .chain(tools().map(Change::Succeeded))
        .chain(owned("Host").map(Change::Reached))
        .chain(owned("Folder").map(Change::Read))
        .chain(risks.map(Change::Risk))
        .chain(words.texts.iter().cloned().map(Change::Threat))
        .chain(times.map(Change::At))
        .chain(tools().map(Change::Parent))
        .chain(depths.map(Change::Depth))
        .chain(doors.map(Change::Door))
        .chain([Change::Session])
        .collect()
}

impl Change {
    fn apply(&self, case: &mut Case) {
        let facts = &mut case.facts;
        match self {
            Self::Argument(name, value) => {
                case.arguments.insert(name.clone(), value.clone());
            }
            Self::Calls(count) => facts.calls = Window::of_each(*count),
            Self::Denials(count) => facts.denials = Window::of_each(*count),
            Self::Same(count) => facts.same = Window::of_each(*count),
            Self::WrittenBytes(count) => facts.written_bytes = Window::of_each(*count),
            Self::Succeeded(tool) => {
                facts.succeeded.insert(tool.clone());
            }
            Self::Reached(host) => {
                facts.reached.insert(host.clone());
            }
            Self::Read(folder) => {
                facts.read.insert(folder.clone());
            }
            Self::Risk(score) => case.risk.get_or_insert_default().0 = *score,
            Self::Threat(name) => case.risk.get_or_insert_default().1.push(name.clone()),
            Self::At(at) => case.at = *at,
            Self::Parent(tool) => {
                case.parent = Some(tool.clone());
                case.depth = case.depth.max(1);
            }
            Self::Depth(depth) => case.depth = *depth,
            Self::Door(door) => case.door = *door,
            Self::Session => case.is_in_session = true,
        }
    }
}

impl Words {
    /// The names of entities of a type.
    fn of(&self, kind: &str) -> impl Iterator<Item = &str> {
        self.entities.get(kind).into_iter().flatten().map(String::as_str)
    }

    /// Texts for arguments: a file in each folder and the folder, a URL of each host, and what conditions compare with.
    fn strings(&self) -> Vec<String> {
        let folders = self.of("Folder").flat_map(|folder| [format!("{folder}/a"), folder.to_owned()]);
        let hosts = self.of("Host").map(|host| {
            let host = host.rsplit("://").next().unwrap_or(host);
            format!("https://{}/", host.replacen('*', "any", 1))
        });
        // A pattern of `like` matches itself without its stars.
        let texts = self.texts.iter().map(|text| text.replace('*', ""));
        let others = [OTHER_PATH.to_owned(), "https://any-other.example/".to_owned(), "x".to_owned()];
        folders.chain(hosts).chain(texts).chain(others).take(MAX_VALUES).collect()
    }

    /// The times of conditions, with those right before and after them.
    fn times(&self) -> impl Iterator<Item = OffsetDateTime> {
        let times = self.texts.iter().filter_map(|text| {
            let whole = if text.contains('T') { text.clone() } else { format!("{text}T00:00:00Z") };
            OffsetDateTime::parse(&whole, &Rfc3339).ok()
        });
        times.flat_map(|time| [-1, 0, 1].map(|seconds| time + Duration::seconds(seconds)))
    }

    /// Reads the words of a text of policies, without those of comments.
    fn read(&mut self, text: &str) {
        self.numbers.extend([0, 1]);
        let mut kind = String::new();
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            if let Some(comment) = rest.strip_prefix("//") {
                rest = comment.split_once('\n').map_or("", |(_, after)| after);
            } else if let Some(literal) = rest.strip_prefix('"') {
                let (inner, after) = split_literal(literal);
                self.add(&kind, inner);
                rest = after;
            } else if letter.is_alphanumeric() || letter == '_' {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                let (word, after) = rest.split_at(end);
                word.parse::<u64>().into_iter().for_each(|number| {
                    self.numbers.extend([number.saturating_sub(1), number, number.saturating_add(1)]);
                });
                kind = if after.starts_with("::") { word.to_owned() } else { String::new() };
                rest = after;
            } else {
                rest = rest.get(letter.len_utf8()..).unwrap_or_default();
                if letter != ':' {
                    kind.clear();
                }
            }
        }
    }

    fn add(&mut self, kind: &str, text: &str) {
        if kind.is_empty() {
            self.texts.insert(text.to_owned());
        } else {
            self.entities.entry(kind.to_owned()).or_default().insert(text.to_owned());
        }
    }
}

/// The text of a literal whose first quote is taken away, without its escapes, and what follows it.
fn split_literal(literal: &str) -> (&str, &str) {
    let mut is_escaped = false;
    let end = literal.char_indices().find(|(_, letter)| {
        let is_end = *letter == '"' && !is_escaped;
        is_escaped = *letter == '\\' && !is_escaped;
        is_end
    });
    let end = end.map_or(literal.len(), |(at, _)| at);
    let (inner, after) = literal.split_at(end);
    (inner, after.strip_prefix('"').unwrap_or(after))
}
