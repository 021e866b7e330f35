//! The annotations of a policy, as values.

use super::scope::Scope;
use crate::schema::{CALL, EntityKind, EntityTypes, ToolShape};
use a2g_capability::{Area, Glob};
use a2g_types::ident::{IdentError, SecretName, ToolName, did_you_mean, excerpt, is_display_control};
use a2g_types::limit::{ClaimedLimits, FileEffects, LIMITS, Layer, LimitRow};
use a2g_types::tool::CallTargets;
use cedar_policy::{Effect, Entities, Policy};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum length of a text for people, in characters.
const MAX_TEXT_CHARS: usize = 500;
/// Maximum number of requests per minute, the same as that of a policy in JSON.
const MAX_REQUESTS_PER_MINUTE: u64 = 1_000_000;

/// The annotations that stand at permits and at forbids.
const EVERYWHERE: [&str; 1] = ["id"];
/// The annotations that stand only at forbids.
const OF_FORBIDS: [&str; 1] = ["reason"];
/// The annotations that stand at every permit, besides those of [`EVERYWHERE`].
const OF_PERMITS: [&str; 3] = ["effects", "escalate", "max_requests_per_minute"];
/// The annotations that stand only at permits of calls, besides the limits.
const OF_CALLS: [&str; 7] =
    ["blocked_paths", "blocked_patterns", "calls", "grant_all_paths", "preview", "scope", "secrets"];

/// The annotations of a policy. All but `reason` stand only at permits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Annotations {
    /// `@max_memory_mb("64")` and the other limits: counted amounts (bytes, not MB).
    pub(crate) limits: ClaimedLimits,
    /// `@scope("/workspace/** /tmp/**")`: patterns that are valid.
    pub(crate) scope: Option<Vec<String>>,
    /// `@blocked_paths(".env *.pem")`: patterns that are valid.
    pub(crate) blocked_paths: Vec<String>,
    /// `@blocked_patterns("curl|sh")`: texts, one a line.
    pub(crate) blocked_patterns: Vec<String>,
    /// `@effects("staged")`; direct leaves it to the other layers.
    pub(crate) effects: FileEffects,
    /// `@escalate("reason")`: a person decides.
    pub(crate) escalate: Option<String>,
    /// `@reason("…")` of a forbid, which the agent is told.
    pub(crate) reason: Option<String>,
    /// `@preview`.
    pub(crate) is_previewed: bool,
    /// `@grant_all_paths`.
    pub(crate) grants_all_paths: bool,
    /// `@calls("*")`, or names of tools.
    pub(crate) calls: Option<CallTargets>,
    /// `@secrets("NAME NAME")`.
    pub(crate) secrets: Option<BTreeSet<SecretName>>,
    /// `@max_requests_per_minute("20")`.
    pub(crate) max_requests_per_minute: Option<u64>,
}

/// What annotations are checked with.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) types: &'a EntityTypes,
    pub(super) tools: &'a BTreeMap<ToolName, ToolShape>,
    /// The actions, with their group.
    pub(super) actions: &'a Entities,
}

impl Annotations {
    /// Reads the annotations of a policy.
    ///
    /// # Errors
    /// A message for an unknown annotation, one at the wrong kind of policy, and a value out of range.
    pub(super) fn read(policy: &Policy, scope: &Scope, setting: Setting<'_>) -> Result<Self, String> {
        let is_of_calls = scope.may_have_resource(EntityKind::Tool, EntityKind::Label, setting.types)
            && setting.may_be_call(scope);
        let mut annotations = Self::default();
        for (name, value) in policy.annotations() {
            check_place(name, policy.effect(), is_of_calls)?;
            annotations.set(name, value, setting).map_err(|message| format!("`@{name}`: {message}"))?;
        }
        Ok(annotations)
    }

    fn set(&mut self, name: &str, value: &str, setting: Setting<'_>) -> Result<(), String> {
        match name {
            "id" => text(value).map(|_id| ())?,
            "reason" => self.reason = Some(text(value)?),
            "escalate" => self.escalate = Some(text(value)?),
            "effects" => {
                let unknown = || "it is `direct`, `atomic` or `staged`".to_owned();
                self.effects = FileEffects::parse(value).ok_or_else(unknown)?;
            }
            "max_requests_per_minute" => {
                self.max_requests_per_minute = Some(number(value, 1, MAX_REQUESTS_PER_MINUTE)?);
            }
            "preview" => self.is_previewed = flag(value)?,
            "grant_all_paths" => self.grants_all_paths = flag(value)?,
            "scope" => self.scope = Some(patterns(value)?),
            "blocked_paths" => self.blocked_paths = blocking_patterns(value)?,
            "blocked_patterns" => self.blocked_patterns = blocked_texts(value)?,
            "secrets" => {
                let names =
                    value.split_whitespace().map(SecretName::parse).collect::<Result<_, IdentError>>();
                self.secrets = Some(names.map_err(|error| error.to_string())?);
            }
            "calls" => self.calls = Some(targets(value, setting.tools)?),
            limit => {
                let (row, layer) = limit_row(limit).ok_or("there is no such annotation")?;
                let range = row.range_for(layer);
                let number = number(value, *range.start(), *range.end())?;
                let amount = row.parse_amount(layer, number).map_err(|error| error.to_string())?;
                self.limits = self.limits.with_amount(row.limit, Some(amount));
            }
        }
        Ok(())
    }
}

impl Setting<'_> {
    fn may_be_call(&self, scope: &Scope) -> bool {
        // Without a tool, `call` itself is what is left to be right.
        let call = self.types.uid(EntityKind::Action, CALL);
        let mut actions = self.tools.values().map(|tool| &tool.action).chain([&call]);
        actions.any(|action| scope.matches_action(action, self.actions))
    }
}

/// The limit of an annotation, with the layer whose range it has.
fn limit_row(name: &str) -> Option<(&'static LimitRow, Layer)> {
    let row = LIMITS.iter().find(|row| row.key() == name)?;
    // What a policy in JSON cannot set is enforced as a condition.
    let layer = [Layer::StandingPolicy, Layer::Condition].into_iter().find(|layer| row.is_set_by(*layer))?;
    Some((row, layer))
}

/// Refuses an annotation that is not known, or that means nothing at this policy.
fn check_place(name: &str, effect: Effect, is_of_calls: bool) -> Result<(), String> {
    let is_limit = limit_row(name).is_some();
    let is_only_of_calls = is_limit || OF_CALLS.contains(&name);
    let is_of_permits = is_only_of_calls || OF_PERMITS.contains(&name);
    if EVERYWHERE.contains(&name) {
        return Ok(());
    }
    match effect {
        Effect::Permit if OF_FORBIDS.contains(&name) => {
            Err(format!("`@{name}` stands only at a `forbid`; remove it"))
        }
        Effect::Permit if is_only_of_calls && !is_of_calls => Err(format!(
            "`@{name}` stands only at a `permit` of calls (`action in Action::\"call\"`, or of a tool)"
        )),
        Effect::Permit if is_of_permits => Ok(()),
        Effect::Forbid if OF_FORBIDS.contains(&name) => Ok(()),
        Effect::Forbid if is_of_permits => {
            Err(format!("`@{name}` stands only at a `permit`; a `forbid` grants nothing that it could limit"))
        }
        Effect::Permit | Effect::Forbid => {
            let limits = LIMITS.iter().map(LimitRow::key).filter(|key| limit_row(key).is_some());
            let known =
                EVERYWHERE.into_iter().chain(OF_FORBIDS).chain(OF_PERMITS).chain(OF_CALLS).chain(limits);
            Err(format!("there is no annotation `@{name}`{}", did_you_mean(name, known)))
        }
    }
}

/// A text for people.
fn text(value: &str) -> Result<String, String> {
    let is_valid = !value.trim().is_empty()
        && value.chars().count() <= MAX_TEXT_CHARS
        && !value.chars().any(is_display_control);
    let refused = || format!("it is a text of 1 to {MAX_TEXT_CHARS} characters on one line");
    is_valid.then(|| value.to_owned()).ok_or_else(refused)
}

fn number(value: &str, min: u64, max: u64) -> Result<u64, String> {
    // `+5` and `007` are numbers to `parse`, and misreadings to a person.
    let number = value.parse::<u64>().ok().filter(|number| number.to_string() == value);
    let refused = || format!("it is an integer from {min} to {max}, in quotes");
    number.filter(|number| (min..=max).contains(number)).ok_or_else(refused)
}

fn flag(value: &str) -> Result<bool, String> {
    if value.is_empty() { Ok(true) } else { Err("it has no value; write the name alone".to_owned()) }
}

/// Patterns of files, separated by spaces.
fn patterns(value: &str) -> Result<Vec<String>, String> {
    let patterns = value.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    if patterns.is_empty() {
        return Err("it is a list of patterns such as `/workspace/**`, separated by spaces".to_owned());
    }
    match patterns.iter().find_map(|pattern| Area::parse(pattern).err()) {
        Some(error) => Err(error.to_string()),
        None => Ok(patterns),
    }
}

/// Patterns of files that stay closed, separated by spaces; a relative one matches in every folder.
fn blocking_patterns(value: &str) -> Result<Vec<String>, String> {
    let patterns = value.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    if patterns.is_empty() {
        return Err("it is a list of patterns such as `.env`, separated by spaces".to_owned());
    }
    for pattern in &patterns {
        Glob::parse_blocking(pattern).map_err(|error| error.to_string())?;
        let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.starts_with(['~', '$']);
        if !pattern.starts_with('/') && (pattern == "**" || !pattern.split('/').all(is_plain)) {
            return Err(format!(
                "`{}` is not a pattern such as `.env`, `.ssh/**` or `*.pem`",
                excerpt(pattern)
            ));
        }
    }
    Ok(patterns)
}

/// Texts that no argument may contain, one a line (`\n`); the parts around a `|` match the stages of a pipeline.
fn blocked_texts(value: &str) -> Result<Vec<String>, String> {
    let texts = value.split('\n').map(str::trim).map(str::to_owned).collect::<Vec<_>>();
    let is_empty = |text: &String| text.split('|').all(|stage| stage.trim().is_empty());
    if texts.iter().any(is_empty) {
        return Err("a text of it is empty and would block everything".to_owned());
    }
    Ok(texts)
}

/// Names of tools, separated by spaces; none for a tool that calls no others.
fn targets(value: &str, tools: &BTreeMap<ToolName, ToolShape>) -> Result<CallTargets, String> {
    let names = value.split_whitespace().collect::<Vec<_>>();
    let targets = CallTargets::parse(&names).map_err(|error| error.to_string())?;
    let unknown = match &targets {
        CallTargets::All => None,
        CallTargets::Named(named) => named.iter().find(|name| !tools.contains_key(*name)),
    };
    match unknown {
        Some(name) => {
            let advice = did_you_mean(name.as_str(), tools.keys().map(ToolName::as_str));
            Err(format!("there is no tool `{name}`{advice}"))
        }
        None => Ok(targets),
    }
}
