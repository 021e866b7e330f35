//! Tests of policies: calls with facts, and the decisions that are expected (`NAME.test.toml` beside `NAME.cedar`).
//!
//! Here they are read and compared; whoever runs them decides as a governor does. Nothing of a test depends on the time
//! at which it runs.

#[cfg(test)]
mod tests;

use crate::decide::Allowed;
use crate::facts::{History, Window};
use crate::rule_name::RuleName;
use a2g_types::call::Door;
use a2g_types::ident::{AgentDid, SecretName, ToolName, did_you_mean, excerpt};
use a2g_types::limit::{LIMITS, LimitRow};
use a2g_types::verdict::Decision;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::datetime;

/// The time of a case that names none: noon of a Monday, so that a rule about hours has a known answer.
const DEFAULT_TIME: OffsetDateTime = datetime!(2026-01-05 12:00 UTC);

/// The reason why a file of tests is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaseError {
    /// It is no TOML of this form.
    #[error("{0}")]
    Toml(String),
    /// A case says something that cannot be.
    #[error("the case `{case}`: {message}")]
    Case {
        /// Its name.
        case: String,
        /// What is refused, and what to write instead.
        message: String,
    },
    /// There is no case.
    #[error("there is no `[[case]]`: add one with `name`, `agent`, `tool`, `arguments` and `expect`")]
    Empty,
}

/// A file of tests.
#[derive(Debug, Clone)]
pub struct TestFile {
    /// The files of policies that are tested together; empty: the one beside the tests.
    pub policies: Vec<String>,
    /// The cases, of which there is at least one.
    pub cases: Vec<Case>,
}

/// A call, and what is expected.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its name, for people.
    pub name: String,
    /// The agent.
    pub agent: AgentDid,
    /// The tool.
    pub tool: ToolName,
    /// The arguments.
    pub arguments: Map<String, Value>,
    /// The time of the decision.
    pub at: OffsetDateTime,
    /// The door.
    pub door: Door,
    /// The tool of the run that makes the call.
    pub parent: Option<ToolName>,
    /// The runs above the call.
    pub depth: u32,
    /// `true` for a turn of a session.
    pub is_in_session: bool,
    /// The risk score from 0 to 100, and the names of the heuristics that match; `None`: as the governor assesses it.
    pub risk: Option<(u8, Vec<String>)>,
    /// The past of the agent, the same for every subject.
    pub facts: History,
    /// What is expected.
    pub expected: Expected,
}

/// The facts that are neither zero nor empty.
fn facts_table(facts: &History) -> Map<String, Value> {
    let History { calls, denials, same, written_bytes, succeeded, reached, read } = facts;
    let windows = [("calls", calls), ("denials", denials), ("same", same), ("written_bytes", written_bytes)];
    let windows = windows.into_iter().filter(|(_, window)| **window != Window::default());
    let windows = windows.map(|(name, Window { minute, hour, day })| {
        (name, json!({ "minute": minute, "hour": hour, "day": day }))
    });
    let sets = [("succeeded", json!(succeeded)), ("reached", json!(reached)), ("read", json!(read))];
    let sets = sets.into_iter().filter(|(_, set)| set.as_array().is_some_and(|set| !set.is_empty()));
    windows.chain(sets).map(|(name, value)| (name.to_owned(), value)).collect()
}

impl Case {
    /// The call as a case in TOML, without its name and what is expected.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut table = Map::new();
        let mut set = |name: &str, value: Value| table.insert(name.to_owned(), value);
        set("agent", self.agent.as_str().into());
        set("tool", self.tool.as_str().into());
        set("arguments", self.arguments.clone().into());
        set("at", self.at.format(&Rfc3339).unwrap_or_default().into());
        if self.door != Door::A2g {
            set("door", self.door.to_string().into());
        }
        if let Some(parent) = &self.parent {
            set("parent", parent.as_str().into());
        }
        if self.depth > 0 {
            set("depth", self.depth.into());
        }
        if self.is_in_session {
            set("in_session", true.into());
        }
        if let Some((score, threats)) = &self.risk {
            set("risk", json!({ "score": score, "threats": threats }));
        }
        let facts = facts_table(&self.facts);
        if !facts.is_empty() {
            set("facts", facts.into());
        }
        let cases = json!({ "case": [table] });
        toml::to_string(&cases).unwrap_or_else(|error| format!("# it has no form in TOML: {error}"))
    }
}

/// A decision, as a case names it. A greater one allows more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecisionWord {
    /// The call never runs.
    Deny,
    /// It waits for a person.
    Escalate,
    /// It may run, perhaps under conditions.
    Allow,
}

impl From<Decision> for DecisionWord {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Approved | Decision::Conditional => Self::Allow,
            Decision::Denied => Self::Deny,
            Decision::Escalate => Self::Escalate,
        }
    }
}

impl fmt::Display for DecisionWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Escalate => "escalate",
        })
    }
}

/// What a case expects. What is `None` is not compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The decision.
    pub decision: DecisionWord,
    /// A rule among those that decide: `file.cedar:12`, or its `@id`.
    pub rule: Option<String>,
    /// A part of the reason.
    pub reason: Option<String>,
    /// The limits of the run, by the names of the annotations and in their units.
    pub limits: BTreeMap<String, u64>,
    /// All folders of the grant, as patterns.
    pub folders: Option<BTreeSet<String>>,
    /// All hosts of the grant, as patterns.
    pub hosts: Option<BTreeSet<String>>,
    /// All secrets of the grant.
    pub secrets: Option<BTreeSet<SecretName>>,
}

/// A decision that was made on a case.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// The decision.
    pub decision: Decision,
    /// Its reason.
    pub reason: Option<&'a str>,
    /// The rules that decided.
    pub decided_by: &'a [RuleName],
    /// The files of the grant, as patterns.
    pub folders: &'a [String],
    /// What the policies give the call; `None` if it is denied.
    pub granted: Option<&'a Allowed>,
}

impl TestFile {
    /// Reads a file of tests.
    ///
    /// # Errors
    /// [`CaseError`], with the line or the name of the case.
    pub fn parse(text: &str) -> Result<Self, CaseError> {
        let FileTable { policies, case } =
            toml::from_str(text).map_err(|error| CaseError::Toml(error.to_string().trim_end().to_owned()))?;
        if case.is_empty() {
            return Err(CaseError::Empty);
        }
        let cases = case.into_iter().map(|table| {
            let name = table.name.clone();
            Case::of(table).map_err(|message| CaseError::Case { case: excerpt(&name), message })
        });
        Ok(Self { policies, cases: cases.collect::<Result<_, _>>()? })
    }
}

impl Expected {
    /// What differs from what is expected, one sentence for each; empty if nothing does.
    #[must_use]
    pub fn differences(&self, observed: &Observed<'_>) -> Vec<String> {
        let mut differences = Vec::new();
        let decision = DecisionWord::from(observed.decision);
        let reason = observed.reason.unwrap_or("it gives no reason");
        if decision != self.decision {
            differences.push(format!("expected {}, and it is {decision}: {reason}", self.decision));
        }
        if let Some(rule) = &self.rule
            && !observed.decided_by.iter().any(|name| is_named(name, rule))
        {
            let names = observed.decided_by.iter().map(ToString::to_string).collect::<Vec<_>>();
            let decided = if names.is_empty() { "no rule".to_owned() } else { names.join(", ") };
            differences.push(format!("expected the rule `{rule}` to decide, and it is {decided}"));
        }
        if let Some(part) = self.reason.as_ref().filter(|part| !reason.contains(&***part)) {
            differences.push(format!("expected a reason with `{part}`, and it is: {reason}"));
        }
        self.compare_grant(observed, &mut differences);
        differences
    }

    fn compare_grant(&self, observed: &Observed<'_>, differences: &mut Vec<String>) {
        let granted = observed.granted;
        let limits = granted.map(|granted| granted.resources.limits.narrower(&granted.rule.limits));
        for (name, expected) in &self.limits {
            let row = LIMITS.iter().find(|row| row.key() == name);
            let amount = row.and_then(|row| Some(row.to_number(limits.as_ref()?[row.limit]?)));
            if amount != Some(*expected) {
                let found =
                    amount.map_or_else(|| "no policy sets it".to_owned(), |amount| format!("it is {amount}"));
                differences.push(format!("expected `{name}` of {expected}, and {found}"));
            }
        }
        let hosts = granted.and_then(|granted| granted.network.allowed_domains.as_ref());
        let hosts = hosts.into_iter().flatten().cloned().collect::<BTreeSet<_>>();
        let secrets = granted.and_then(|granted| granted.rule.secrets.clone()).unwrap_or_default();
        let folders = observed.folders.iter().cloned().collect::<BTreeSet<_>>();
        let mut compare = |what: &str, expected: Option<BTreeSet<String>>, found: BTreeSet<String>| {
            if let Some(expected) = expected.filter(|expected| *expected != found) {
                differences.push(format!(
                    "expected the {what} {}, and they are {}",
                    shown(&expected),
                    shown(&found)
                ));
            }
        };
        compare("folders", self.folders.clone(), folders);
        compare("hosts", self.hosts.clone(), hosts);
        let names = |secrets: &BTreeSet<SecretName>| secrets.iter().map(ToString::to_string).collect();
        compare("secrets", self.secrets.as_ref().map(names), names(&secrets));
    }
}

/// The number of cases that each rule of a set decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage(BTreeMap<RuleName, u64>);

impl Coverage {
    /// No case yet.
    pub fn of(rules: impl IntoIterator<Item = RuleName>) -> Self {
        Self(rules.into_iter().map(|rule| (rule, 0)).collect())
    }

    /// Counts the rules that decided a case.
    pub fn add(&mut self, decided_by: &[RuleName]) {
        for rule in decided_by.iter().collect::<BTreeSet<_>>() {
            *self.0.entry(rule.clone()).or_default() += 1;
        }
    }

    /// The rules, by file and line, with their numbers of cases.
    pub fn rules(&self) -> impl Iterator<Item = (&RuleName, u64)> {
        self.0.iter().map(|(rule, cases)| (rule, *cases))
    }
}

fn is_named(name: &RuleName, text: &str) -> bool {
    name.id.as_deref() == Some(text) || format!("{}:{}", name.file, name.line) == text
}

fn shown(texts: &BTreeSet<String>) -> String {
    let texts = texts.iter().map(|text| format!("`{text}`")).collect::<Vec<_>>();
    if texts.is_empty() { "(none)".to_owned() } else { texts.join(", ") }
}

/// The TOML form of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTable {
    #[serde(default)]
    policies: Vec<String>,
    #[serde(default)]
    case: Vec<CaseTable>,
}

/// The TOML form of a case.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseTable {
    name: String,
    agent: AgentDid,
    tool: ToolName,
    #[serde(default)]
    arguments: Map<String, Value>,
    at: Option<toml::Value>,
    door: Option<String>,
    parent: Option<ToolName>,
    depth: Option<u32>,
    #[serde(default)]
    in_session: bool,
    risk: Option<RiskValue>,
    #[serde(default)]
    facts: FactsTable,
    expect: DecisionWord,
    rule: Option<String>,
    reason: Option<String>,
    #[serde(default)]
    limits: BTreeMap<String, u64>,
    folders: Option<BTreeSet<String>>,
    hosts: Option<BTreeSet<String>>,
    secrets: Option<BTreeSet<SecretName>>,
}

/// A score, or a score with the names of heuristics.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum RiskValue {
    Score(u8),
    Table {
        #[serde(default)]
        score: u8,
        #[serde(default)]
        threats: Vec<String>,
    },
}

/// The TOML form of facts.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FactsTable {
    calls: WindowValue,
    denials: WindowValue,
    same: WindowValue,
    written_bytes: WindowValue,
    succeeded: BTreeSet<ToolName>,
    reached: BTreeSet<String>,
    read: BTreeSet<String>,
}

/// A number that holds for each window, or one for some of them.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum WindowValue {
    Each(u64),
    Windows {
        #[serde(default)]
        minute: u64,
        hour: Option<u64>,
        day: Option<u64>,
    },
}

impl Default for WindowValue {
    fn default() -> Self {
        Self::Each(0)
    }
}

impl From<WindowValue> for Window {
    fn from(value: WindowValue) -> Self {
        match value {
            WindowValue::Each(count) => Self::of_each(count),
            WindowValue::Windows { minute, hour, day } => {
                // What happened within a minute happened within the hour.
                let within_hour = hour.unwrap_or(minute);
                Self { minute, hour: within_hour, day: day.unwrap_or(within_hour) }
            }
        }
    }
}

impl Case {
    fn of(table: CaseTable) -> Result<Self, String> {
        let CaseTable {
            name, agent, tool, arguments, at, door, parent, depth, in_session, risk, facts, ..
        } = table;
        let FactsTable { calls, denials, same, written_bytes, succeeded, reached, read } = facts;
        let history = History {
            calls: calls.into(),
            denials: denials.into(),
            same: same.into(),
            written_bytes: written_bytes.into(),
            succeeded,
            reached,
            read,
        };
        let risk = risk.map(|risk| match risk {
            RiskValue::Score(score) => (score, Vec::new()),
            RiskValue::Table { score, threats } => (score, threats),
        });
        if let Some((score, _)) = risk.as_ref().filter(|(score, _)| *score > 100) {
            return Err(format!("`risk` is {score}, and a score is from 0 to 100"));
        }
        let keys = || LIMITS.iter().map(LimitRow::key);
        if let Some(unknown) = table.limits.keys().find(|name| !keys().any(|key| key == *name)) {
            return Err(format!(
                "`limits` has `{unknown}`, which is no limit{}",
                did_you_mean(unknown, keys())
            ));
        }
        Ok(Self {
            name,
            agent,
            tool,
            arguments,
            at: at.map_or(Ok(DEFAULT_TIME), time_of)?,
            door: door.map_or(Ok(Door::A2g), |name| door_of(&name))?,
            depth: depth.unwrap_or_else(|| u32::from(parent.is_some())),
            parent,
            is_in_session: in_session,
            risk,
            facts: history,
            expected: Expected {
                decision: table.expect,
                rule: table.rule,
                reason: table.reason,
                limits: table.limits,
                folders: table.folders,
                hosts: table.hosts,
                secrets: table.secrets,
            },
        })
    }
}

/// The time of a text, or of a date of TOML.
fn time_of(value: toml::Value) -> Result<OffsetDateTime, String> {
    let text = match value {
        toml::Value::String(text) => text,
        toml::Value::Datetime(date) => date.to_string(),
        other @ (toml::Value::Integer(_)
        | toml::Value::Float(_)
        | toml::Value::Boolean(_)
        | toml::Value::Array(_)
        | toml::Value::Table(_)) => other.to_string(),
    };
    OffsetDateTime::parse(&text, &Rfc3339).map_err(|_| {
        format!("`at` is `{}`, and has to be a time such as `2026-12-01T09:30:00Z`", excerpt(&text))
    })
}

fn door_of(name: &str) -> Result<Door, String> {
    let names = || Door::ALL.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let door = Door::ALL.iter().copied().find(|door| door.to_string() == name);
    door.ok_or_else(|| format!("`door` is `{}`, and there are {}", excerpt(name), names()))
}
