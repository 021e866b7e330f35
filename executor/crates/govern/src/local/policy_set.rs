//! The policies of a local governor: read from a folder, validated completely, then only looked up. A folder has
//! policies in JSON or in Cedar; those in Cedar are compiled for the tools of the executor (`cedar.rs`).

use super::cedar::CedarPolicies;
use crate::rule::{Rule, RuleError, host_claims};
use a2g_capability::{HostClaims, HostError};
use a2g_policy::{PolicyError, PolicyFile, PolicySources};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::verdict::Policy;
use a2g_wire::a2g::decode;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The policy of a governor without a policy folder.
const BUILTIN: &str = include_str!("../../../../../policies/default.json");

/// The reason why policies could not be loaded. Messages are for the operator and contain paths.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    /// A folder or file could not be read.
    #[error("`{}` cannot be read: {error}", path.display())]
    Unreadable {
        /// The folder or file.
        path: PathBuf,
        /// The system's error. It is part of the message; as a `source` it would be printed twice in an error
        /// chain.
        error: io::Error,
    },
    /// The folder has no policy, so the governor would deny everything.
    #[error(
        "`{}` contains no `*.cedar` and no `*.json` policy file; add one, or start without a policy folder",
        path.display()
    )]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// Policies in Cedar that are refused before they are compiled.
    #[error(transparent)]
    Cedar(#[from] PolicyError),
    /// A file is to be observed without policies in Cedar.
    #[error(
        "`governor.observe` names `{file}`, and only policies in Cedar can be observed: let `governor.policies` name a \
         folder with `*.cedar` files (`a2g-executor policy convert` writes policies in JSON as Cedar), or remove it"
    )]
    ObservesJson {
        /// The name of the file.
        file: String,
    },
    /// A file is not a policy.
    #[error("`{}` is not a policy: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The position and the reason.
        message: String,
    },
    /// The rule of a tool cannot be enforced.
    #[error("`{}` at `/capabilities/tools/{tool}/constraints`: {error}", path.display())]
    Rule {
        /// The file.
        path: PathBuf,
        /// The tool.
        tool: ToolName,
        /// The problem with the rule.
        error: RuleError,
    },
    /// A host of the network part is not valid.
    #[error("`{}` at `/capabilities/network`: {error}", path.display())]
    Hosts {
        /// The file.
        path: PathBuf,
        /// The problem with the host.
        error: HostError,
    },
    /// Two files are for the same agent.
    #[error(
        "`{}` and `{}` are both policies for {agent}; keep one of them",
        first.display(), second.display()
    )]
    Duplicate {
        /// The agent, or `every agent`.
        agent: String,
        /// The first file.
        first: PathBuf,
        /// The second file.
        second: PathBuf,
    },
}

/// The origin of a policy. It decides what a denial tells people to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyOrigin {
    /// A file, or a message.
    File,
    /// The program itself.
    Program,
    /// The command line of `a2g-executor mcp`.
    McpCommand,
    /// Policies in Cedar, which gave the rule of one tool for one call.
    Cedar,
}

/// A policy with its parsed rules.
#[derive(Debug, Clone)]
pub(super) struct LoadedPolicy {
    pub(super) policy: Policy,
    pub(super) rules: BTreeMap<ToolName, Rule>,
    pub(super) hosts: HostClaims,
    pub(super) origin: PolicyOrigin,
    source: PathBuf,
}

impl LoadedPolicy {
    fn parse(source: PathBuf, policy: Policy, origin: PolicyOrigin) -> Result<Self, PolicyFileError> {
        let mut rules = BTreeMap::new();
        for (tool, tool_rule) in &policy.tools {
            let rule = Rule::read(tool_rule).map_err(|error| PolicyFileError::Rule {
                path: source.clone(),
                tool: tool.clone(),
                error,
            })?;
            rules.insert(tool.clone(), rule);
        }
        let hosts = host_claims(&policy.network)
            .map_err(|error| PolicyFileError::Hosts { path: source.clone(), error })?;
        Ok(Self { policy, rules, hosts, origin, source })
    }

    /// The rule that policies in Cedar give the tool of one call.
    pub(super) fn of_cedar(policy: Policy) -> Result<Self, PolicyFileError> {
        Self::parse("the policies in Cedar".into(), policy, PolicyOrigin::Cedar)
    }
}

/// A set of policies.
#[derive(Debug, Clone)]
pub struct PolicySet(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// Policies in JSON: at most one for each agent, and at most one for all others.
    Json(BTreeMap<Option<AgentDid>, LoadedPolicy>),
    /// Policies in Cedar, which decide together on every agent.
    Cedar(Arc<CedarPolicies>),
}

impl Default for PolicySet {
    /// No policy.
    fn default() -> Self {
        Self(Kind::Json(BTreeMap::new()))
    }
}

impl PolicySet {
    /// Reads all policies of a folder: its `*.cedar` files, or its `*.json` files, sorted by name. Those in Cedar are
    /// not compiled yet.
    ///
    /// # Errors
    /// [`PolicyFileError`] when the folder or a file cannot be read, a file is not a policy or has an
    /// unenforceable rule, two files are for the same agent, there is no file, or there are files of both kinds.
    ///
    /// # Ambient Authority
    /// Reads a folder that the operator names.
    pub fn load(dir: &Path) -> Result<Self, PolicyFileError> {
        Self::load_observing(dir, &[])
    }

    /// As [`Self::load`], but the files in Cedar that `observe` names change no outcome: what they would decide is only
    /// recorded.
    ///
    /// # Errors
    /// Also [`PolicyError::NotObservable`] and [`PolicyFileError::ObservesJson`].
    ///
    /// # Ambient Authority
    /// Reads a folder that the operator names.
    pub fn load_observing(dir: &Path, observe: &[String]) -> Result<Self, PolicyFileError> {
        if PolicySources::has_cedar(dir) {
            return Self::of_cedar(dir.into(), PolicySources::read(dir)?, observe);
        }
        if let Some(file) = observe.first() {
            return Err(PolicyFileError::ObservesJson { file: file.clone() });
        }
        let unreadable = |path: &Path, error| PolicyFileError::Unreadable { path: path.into(), error };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(|error| unreadable(dir, error))? {
            let path = entry.map_err(|error| unreadable(dir, error))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                paths.push(path);
            }
        }
        paths.sort();
        if paths.is_empty() {
            return Err(PolicyFileError::Empty { path: dir.into() });
        }
        let mut set = Self::default();
        for path in paths {
            let text = std::fs::read_to_string(&path).map_err(|error| unreadable(&path, error))?;
            set.add_text(path, &text)?;
        }
        Ok(set)
    }

    fn of_cedar(path: PathBuf, sources: PolicySources, observe: &[String]) -> Result<Self, PolicyFileError> {
        sources.check_observed(observe)?;
        Ok(Self(Kind::Cedar(Arc::new(CedarPolicies::new(path, sources, observe.to_vec())))))
    }

    /// The policies in Cedar; `None` for policies in JSON.
    #[must_use]
    pub fn cedar(&self) -> Option<&CedarPolicies> {
        match &self.0 {
            Kind::Json(_) => None,
            Kind::Cedar(cedar) => Some(cedar),
        }
    }

    /// The policies in JSON; none for policies in Cedar.
    fn by_agent(&self) -> impl Iterator<Item = (&Option<AgentDid>, &LoadedPolicy)> {
        let by_agent = match &self.0 {
            Kind::Json(by_agent) => Some(by_agent),
            Kind::Cedar(_) => None,
        };
        by_agent.into_iter().flatten()
    }

    /// The DIDs with a policy of their own, and `every other agent` for a general policy. Policies in Cedar are for
    /// `every agent`.
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        let of_cedar = self.cedar().map(|_| "every agent (Cedar)");
        let of_json = self.by_agent().map(|(agent, _)| agent);
        of_json.map(|agent| agent.as_ref().map_or("every other agent", AgentDid::as_str)).chain(of_cedar)
    }

    /// The policies in JSON, first the one for every agent without its own, each with where it is from, for people.
    pub fn iter(&self) -> impl Iterator<Item = (&Policy, String)> {
        self.by_agent().map(|(_, LoadedPolicy { policy, origin, source, .. })| {
            let from = match origin {
                PolicyOrigin::File | PolicyOrigin::Cedar => format!("the file `{}`", source.display()),
                PolicyOrigin::Program => {
                    "this program, because no folder of policies is configured".to_owned()
                }
                PolicyOrigin::McpCommand => "the command line".to_owned(),
            };
            (policy, from)
        })
    }

    /// Reads one policy file.
    ///
    /// # Errors
    /// As for [`Self::load`].
    ///
    /// # Ambient Authority
    /// Reads a file that the operator names.
    pub fn load_file(path: &Path) -> Result<Self, PolicyFileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| PolicyFileError::Unreadable { path: path.into(), error })?;
        if path.extension() == Some(OsStr::new("cedar")) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let file = PolicyFile { name, text };
            let sources = PolicySources { files: vec![file], entities: None, schema: None };
            return Self::of_cedar(path.into(), sources, &[]);
        }
        let mut set = Self::default();
        set.add_text(path.into(), &text)?;
        Ok(set)
    }

    /// The policy of `policies/default.json`, which is embedded in the program.
    ///
    /// # Errors
    /// As for [`Self::load`]; a test verifies that this policy has none.
    pub fn builtin() -> Result<Self, PolicyFileError> {
        let mut set = Self::default();
        set.add_text("policies/default.json".into(), BUILTIN)?;
        Ok(set.with_origin(PolicyOrigin::Program))
    }

    /// The text of that policy.
    #[must_use]
    pub fn builtin_text() -> &'static str {
        BUILTIN
    }

    /// The policy that `a2g-executor mcp` makes from its command line.
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub fn of_mcp_command(policy: Policy) -> Result<Self, PolicyFileError> {
        let mut set = Self::default();
        set.add("the command line".into(), policy)?;
        Ok(set.with_origin(PolicyOrigin::McpCommand))
    }

    fn with_origin(mut self, origin: PolicyOrigin) -> Self {
        match &mut self.0 {
            Kind::Json(by_agent) => by_agent.values_mut().for_each(|entry| entry.origin = origin),
            Kind::Cedar(_) => {}
        }
        self
    }

    /// Adds a policy in JSON; `source` is the file for error messages.
    ///
    /// # Errors
    /// [`PolicyFileError::Rule`], [`PolicyFileError::Hosts`] and [`PolicyFileError::Duplicate`];
    /// [`PolicyFileError::Cedar`] for a set in Cedar.
    pub fn add(&mut self, source: PathBuf, policy: Policy) -> Result<(), PolicyFileError> {
        let by_agent = match &mut self.0 {
            Kind::Json(by_agent) => by_agent,
            Kind::Cedar(cedar) => {
                let json = source.display().to_string();
                return Err(PolicyError::Mixed { path: cedar.folder().into(), json }.into());
            }
        };
        if let Some(first) = by_agent.get(&policy.agent) {
            let agent = policy.agent.as_ref();
            let agent = agent.map_or_else(|| "every agent".to_owned(), |agent| format!("`{agent}`"));
            return Err(PolicyFileError::Duplicate { agent, first: first.source.clone(), second: source });
        }
        let entry = LoadedPolicy::parse(source, policy, PolicyOrigin::File)?;
        by_agent.insert(entry.policy.agent.clone(), entry);
        Ok(())
    }

    /// The agent's own policy, otherwise the policy for every agent, if there is one.
    /// `None` for policies in Cedar.
    pub(super) fn entry_for(&self, agent: &AgentDid) -> Option<&LoadedPolicy> {
        match &self.0 {
            Kind::Json(by_agent) => by_agent.get(&Some(agent.clone())).or_else(|| by_agent.get(&None)),
            Kind::Cedar(_) => None,
        }
    }

    fn add_text(&mut self, path: PathBuf, text: &str) -> Result<(), PolicyFileError> {
        match decode::policy_file(text) {
            Ok(policy) => self.add(path, policy),
            Err(fault) => Err(PolicyFileError::Malformed { path, message: fault_message(&fault, text) }),
        }
    }
}

/// The line of the value at a JSON Pointer, or of the nearest value around it.
fn line_of(text: &str, pointer: &str) -> usize {
    let mut value: &str = text;
    for name in pointer.split('/').skip(1) {
        let name = name.replace("~1", "/").replace("~0", "~");
        let inner = match serde_json::from_str::<BTreeMap<String, &RawValue>>(value) {
            Ok(object) => object.get(&name).copied(),
            Err(_not_an_object) => serde_json::from_str::<Vec<&RawValue>>(value)
                .ok()
                .and_then(|items| items.get(name.parse::<usize>().ok()?).copied()),
        };
        let Some(inner) = inner else { break };
        value = inner.get();
    }
    let start = value.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    text.get(..start).unwrap_or_default().matches('\n').count() + 1
}

/// The message of a decoder's fault, with the line in `text`.
fn fault_message(fault: &Fault, text: &str) -> String {
    let sentence = fault.sentence();
    if let Fault::InvalidParams { pointer, .. } = fault {
        return format!("line {}, at `{pointer}`: {sentence}", line_of(text, pointer));
    }
    sentence.into_owned()
}

#[cfg(test)]
mod tests {
    use super::line_of;

    #[test]
    fn a_pointer_is_found_on_its_line() {
        let text = "{\n  \"a\": 1,\n  \"b/c\": {\n    \"d\": [\n      true,\n      false\n    ]\n  }\n}";
        for (pointer, line) in [("", 1), ("/a", 2), ("/b~1c", 3), ("/b~1c/d/1", 6), ("/b~1c/absent", 3)] {
            assert_eq!(line_of(text, pointer), line, "{pointer}");
        }
    }
}
