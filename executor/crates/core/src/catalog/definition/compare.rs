//! The difference between two definitions of a tool, and which of its changes wait for an operator.
//!
//! Every changed text waits, and so does every changed schema, because models read its descriptions, and every change of
//! the settings, which decide what a shared module does. A capability waits
//! if it became wider. A limit that is not declared is the widest, because then only the executor's ceiling applies.
//! Numbers of calls are compared even while there is no tool to call: otherwise the later update that adds tools would
//! not show that the numbers rose.

use super::Definition;
use crate::catalog::manifest::declared_rows;
use a2g_types::ident::SecretName;
use a2g_types::limit::{Limit, LimitRow};
use a2g_types::request::DeclaredRequest;
use a2g_types::tool::DeclaredCapabilities;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;
use strum::IntoStaticStr;

/// The maximum length, in characters, of a version that may replace another one without approval.
const MAX_PLAIN_VERSION_CHARS: usize = 32;
/// The maximum length of an identifier in its suffix, in characters: of a short commit, or a date and time.
const MAX_IDENTIFIER_CHARS: usize = 12;
/// The maximum number of identifiers with letters in its suffix, such as `rc` and a commit. More would be a sentence.
const MAX_WORDS: usize = 2;

/// A part of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr)]
pub enum Part {
    /// The name for people.
    #[strum(serialize = "title")]
    Title,
    /// The version.
    #[strum(serialize = "version")]
    Version,
    /// The description.
    #[strum(serialize = "description")]
    Description,
    /// The contract.
    #[strum(serialize = "contract")]
    Contract,
    /// The schema of the arguments.
    #[strum(serialize = "arguments")]
    Arguments,
    /// The schema of the result.
    #[strum(serialize = "result")]
    Result,
    /// The settings.
    #[strum(serialize = "settings")]
    Settings,
    /// `idempotent`.
    #[strum(serialize = "idempotent")]
    Idempotent,
    /// `session`.
    #[strum(serialize = "session")]
    Session,
    /// The access to files.
    #[strum(serialize = "capabilities.filesystem")]
    Filesystem,
    /// The time at which file changes take effect.
    #[strum(serialize = "capabilities.effects")]
    Effects,
    /// The access to the network.
    #[strum(serialize = "capabilities.network")]
    Network,
    /// The requests that the tool sends.
    #[strum(serialize = "capabilities.requests")]
    Requests,
    /// The secrets that the tool needs.
    #[strum(serialize = "capabilities.secrets")]
    Secrets,
    /// A limit.
    #[strum(serialize = "capabilities")]
    Limit(Limit),
    /// The tools that the tool may call.
    #[strum(serialize = "capabilities.calls")]
    Calls,
}

/// The key of the part in `tool.toml`.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.into())?;
        if let Self::Limit(limit) = self {
            write!(f, ".{}", limit.row().map_or(limit.as_str(), LimitRow::key))?;
        }
        Ok(())
    }
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// A text, a schema, the settings or the contract changed.
    Told,
    /// A capability became wider.
    Wider,
    /// A capability became narrower.
    Narrower,
    /// The version changed, and has the form of a version.
    Version,
}

impl ChangeKind {
    /// Returns `true` if this kind of change needs the approval of an operator.
    #[must_use]
    pub fn needs_approval(self) -> bool {
        match self {
            Self::Told | Self::Wider => true,
            Self::Narrower | Self::Version => false,
        }
    }
}

/// A changed part of a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The part.
    pub part: Part,
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The accepted text, as the author wrote it: it may contain any character. A schema is pretty-printed JSON, and so are
    /// settings.
    pub accepted: String,
    /// The new text.
    pub offered: String,
}

/// The changes from the `accepted` definition to the `offered` one, in the order of [`Part`]. Schemas are compared as
/// JSON values, so a different order of keys is no change.
#[must_use]
pub fn compare(accepted: &Definition, offered: &Definition) -> Vec<Change> {
    let Definition {
        title,
        version,
        description,
        contract,
        arguments_schema,
        result_schema,
        settings,
        is_idempotent,
        has_sessions,
        capabilities,
    } = offered;
    let told =
        |part, old: String, new: String| Change { part, kind: ChangeKind::Told, accepted: old, offered: new };
    let title_text = |title: &Option<String>| title.clone().unwrap_or_default();
    let schema_text = |schema: &Option<Value>| schema.as_ref().map(lines).unwrap_or_default();
    let settings_text = |settings: &Option<Map<String, Value>>| {
        settings.as_ref().map(|settings| lines(&Value::Object(settings.clone()))).unwrap_or_default()
    };
    let mut changes = Vec::new();
    if accepted.title != *title {
        changes.push(told(Part::Title, title_text(&accepted.title), title_text(title)));
    }
    if accepted.version != *version {
        // Models read the version, so free text in it needs approval like any other text.
        let kind = if is_plain_version(version) { ChangeKind::Version } else { ChangeKind::Told };
        changes.push(Change { kind, ..told(Part::Version, accepted.version.clone(), version.clone()) });
    }
    if accepted.description != *description {
        changes.push(told(Part::Description, accepted.description.clone(), description.clone()));
    }
    if accepted.contract != *contract {
        let [old, new] = [accepted.contract, *contract].map(|contract| contract.as_str().to_owned());
        changes.push(told(Part::Contract, old, new));
    }
    if accepted.arguments_schema != *arguments_schema {
        changes.push(told(Part::Arguments, lines(&accepted.arguments_schema), lines(arguments_schema)));
    }
    if accepted.result_schema != *result_schema {
        changes.push(told(Part::Result, schema_text(&accepted.result_schema), schema_text(result_schema)));
    }
    if accepted.settings != *settings {
        changes.push(told(Part::Settings, settings_text(&accepted.settings), settings_text(settings)));
    }
    if accepted.is_idempotent != *is_idempotent {
        let text = |is: bool| if is { "yes" } else { "not declared" }.to_owned();
        changes.push(told(Part::Idempotent, text(accepted.is_idempotent), text(*is_idempotent)));
    }
    if accepted.has_sessions != *has_sessions {
        let kind = if *has_sessions { ChangeKind::Wider } else { ChangeKind::Narrower };
        let [old, new] =
            [accepted.has_sessions, *has_sessions].map(|has| if has { "yes" } else { "no" }.to_owned());
        changes.push(Change { part: Part::Session, kind, accepted: old, offered: new });
    }
    compare_capabilities(&accepted.capabilities, capabilities, &mut changes);
    changes
}

fn compare_capabilities(
    accepted: &DeclaredCapabilities,
    offered: &DeclaredCapabilities,
    changes: &mut Vec<Change>,
) {
    let DeclaredCapabilities { filesystem, effects, network, requests, secrets, limits, calls } = offered;
    let mut note = |part, is_wider: bool, accepted: String, offered: String| {
        let kind = if is_wider { ChangeKind::Wider } else { ChangeKind::Narrower };
        changes.push(Change { part, kind, accepted, offered });
    };
    let yes_no = |is: bool| if is { "yes" } else { "no" }.to_owned();
    if accepted.filesystem != *filesystem {
        let is_wider = *filesystem > accepted.filesystem;
        let [old, new] = [accepted.filesystem, *filesystem].map(|files| files.as_str().to_owned());
        note(Part::Filesystem, is_wider, old, new);
    }
    if accepted.effects != *effects {
        let is_wider = *effects < accepted.effects;
        let [old, new] = [accepted.effects, *effects].map(|effects| effects.as_str().to_owned());
        note(Part::Effects, is_wider, old, new);
    }
    if accepted.network != *network {
        note(Part::Network, *network, yes_no(accepted.network), yes_no(*network));
    }
    if accepted.requests != *requests {
        // Without a network, no request is sent.
        let is_wider = *network && !are_within(requests, &accepted.requests);
        let [old, new] = [&accepted.requests, requests].map(requests_text);
        note(Part::Requests, is_wider, old, new);
    }
    if accepted.secrets != *secrets {
        // An empty set leaves the secrets to the other layers.
        let is_within =
            accepted.secrets.is_empty() || !secrets.is_empty() && secrets.is_subset(&accepted.secrets);
        let [old, new] = [&accepted.secrets, secrets].map(secrets_text);
        note(Part::Secrets, *network && !is_within, old, new);
    }
    for row in declared_rows() {
        if row.limit == Limit::Calls && accepted.calls != *calls {
            let [old, new] = [&accepted.calls, calls].map(|targets| targets.to_names().join("\n"));
            note(Part::Calls, !calls.is_within(&accepted.calls), old, new);
        }
        let [old, new] = [accepted.limits[row.limit], limits[row.limit]];
        if old != new {
            let [old_text, new_text] = [old, new].map(|amount| limit_text(row, amount));
            note(Part::Limit(row.limit), is_wider(old, new), old_text, new_text);
        }
    }
}

/// `true` if the `accepted` requests allow each of the `offered` ones. An empty set allows every request.
fn are_within(offered: &BTreeSet<DeclaredRequest>, accepted: &BTreeSet<DeclaredRequest>) -> bool {
    let is_accepted = |request: &DeclaredRequest| accepted.iter().any(|other| request.is_within(other));
    accepted.is_empty() || !offered.is_empty() && offered.iter().all(is_accepted)
}

fn requests_text(requests: &BTreeSet<DeclaredRequest>) -> String {
    if requests.is_empty() {
        return "undeclared: every request to the hosts of the other layers".to_owned();
    }
    requests.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn secrets_text(secrets: &BTreeSet<SecretName>) -> String {
    if secrets.is_empty() {
        return "undeclared: every secret that the other layers let it use".to_owned();
    }
    secrets.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn is_wider(accepted: Option<u64>, offered: Option<u64>) -> bool {
    match (accepted, offered) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(accepted), Some(offered)) => offered > accepted,
    }
}

fn limit_text(row: &LimitRow, amount: Option<u64>) -> String {
    amount.map_or_else(|| "undeclared: the executor's ceiling".to_owned(), |amount| row.format(amount))
}

/// A schema or settings as pretty-printed JSON with sorted keys, so that only changed lines differ.
fn lines(schema: &Value) -> String {
    let mut schema = schema.clone();
    schema.sort_all_objects();
    serde_json::to_string_pretty(&schema).unwrap_or_default()
}

/// Returns `true` for numbers separated by dots, with an optional suffix after `-` or `+` that is too short for a sentence.
fn is_plain_version(version: &str) -> bool {
    let (numbers, suffix) =
        version.find(['-', '+']).map_or((version, ""), |at| version.split_at_checked(at).unwrap_or_default());
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let identifiers = suffix.split(['.', '-', '+']);
    let is_plain = |part: &str| {
        part.len() <= MAX_IDENTIFIER_CHARS && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    version.len() <= MAX_PLAIN_VERSION_CHARS
        && numbers.split('.').all(is_number)
        && identifiers.clone().all(is_plain)
        && identifiers.filter(|part| !part.is_empty() && !is_number(part)).count() <= MAX_WORDS
}

#[cfg(test)]
mod tests;
