//! The policies of the built-in governor, of which `tool allow` changes one.

use super::say;
use crate::arguments::AllowOptions;
use crate::edit::{EditedFile, folder_of, json, toml};
use a2g_capability::HostPattern;
use a2g_command::UsageError;
use a2g_command::output::{list, print};
use a2g_config::Config;
use a2g_govern::local::PolicySet;
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::verdict::Policy;
use a2g_wire::a2g::decode;
use anyhow::{Context as _, anyhow, bail};
use serde_json::json;
use std::path::Path;

/// The folder of the policies that are made for a configuration which names none, and its only file.
const NEW_FOLDER: &str = "policies";
const NEW_FILE: &str = "default.json";

/// The governor of the executor.
pub(super) enum Policies {
    /// One of its own, at this address.
    Remote(String),
    /// The built-in one, with these policies.
    BuiltIn { files: Vec<PolicyFile>, source: Source, changed: Option<usize> },
}

/// The origin of the policies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A folder that exists.
    Folder,
    /// The program, of whose policy a folder is made.
    Program,
}

/// A policy and its file.
pub(super) struct PolicyFile {
    file: EditedFile,
    policy: Policy,
    /// `true` if the changes add a host to its list.
    has_new_host: bool,
}

impl Policies {
    /// Reads the policies that decide on calls.
    pub(super) fn read(config: &Config, options: &AllowOptions, config_path: &Path) -> anyhow::Result<Self> {
        let folder = match (&options.policies, &config.governor) {
            (Some(folder), _) => Some(folder),
            (None, Some(url)) => return Ok(Self::Remote(url.redact())),
            (None, None) => config.policies.as_ref(),
        };
        let built_in = |files, source| Ok(Self::BuiltIn { files, source, changed: None });
        if let Some(folder) = folder {
            return built_in(read_folder(folder)?, Source::Folder);
        }
        let new_folder = folder_of(config_path).join(NEW_FOLDER);
        if new_folder.symlink_metadata().is_ok() {
            bail!(
                "the configuration names no folder of policies, and the one to make is there: set `policies` in `[governor]` \
                 to `{}`, or to another folder, first",
                new_folder.display()
            );
        }
        let file = EditedFile::copy(new_folder.join(NEW_FILE), PolicySet::builtin_text());
        built_in(vec![PolicyFile::parse(file)?], Source::Program)
    }

    /// Lets one policy allow the tool and the host.
    pub(super) fn change(
        &mut self,
        tool: &ToolName,
        origin: &HostPattern,
        agent: Option<&str>,
        config_file: &mut EditedFile,
    ) -> anyhow::Result<()> {
        let Self::BuiltIn { files, source, changed } = self else { return Ok(()) };
        let index = find(files, agent)?;
        let Some(policy) = files.get_mut(index) else { return Ok(()) };
        policy.change(tool, origin)?;
        *changed = Some(index);
        if *source == Source::Program {
            let folder = toml::string(NEW_FOLDER);
            let what = format!("set `policies = {folder}` in `[governor]`");
            config_file.change(&what, |text| toml::set(text, &["governor", "policies"], &folder))?;
        }
        Ok(())
    }

    /// The file of the policy that was changed, or that needed no change.
    pub(super) fn changed_file(&self) -> Option<&EditedFile> {
        match self {
            Self::Remote(_) => None,
            Self::BuiltIn { files, source: _, changed } => files.get((*changed)?).map(|policy| &policy.file),
        }
    }

    /// `true` if the policy granted this tool the network before the changes.
    pub(super) fn had_network(&self, tool: &ToolName) -> bool {
        match self {
            // Its verdicts are not known, and do not change.
            Self::Remote(_) => true,
            Self::BuiltIn { files, source: _, changed } => {
                let own = changed.and_then(|index| files.get(index));
                own.is_some_and(|policy| policy.allows(tool) && policy.has_hosts())
            }
        }
    }

    /// `true` if the changes turn the network on for this tool. `was_on` says if the ceilings allowed it
    /// before.
    pub(super) fn turns_on(&self, tool: &ToolName, was_on: bool) -> bool {
        match self {
            // Its verdicts are not known.
            Self::Remote(_) => !was_on,
            Self::BuiltIn { files, .. } => files.iter().any(|file| {
                let had_hosts = file.has_hosts();
                file.allows(tool) && (had_hosts || file.has_new_host) && !(was_on && had_hosts)
            }),
        }
    }

    /// `true` if the changes add the host to the list of a policy that allows this tool.
    pub(super) fn adds_host_for(&self, tool: &ToolName) -> bool {
        match self {
            Self::Remote(_) => false,
            Self::BuiltIn { files, .. } => files.iter().any(|file| file.has_new_host && file.allows(tool)),
        }
    }

    /// Says what has to be known about the governor.
    pub(super) fn advise(&self, tool: &ToolName) {
        match self {
            Self::Remote(url) => {
                say(format_args!(
                    "The governor at {url} decides on each call. Its verdict on those of this tool has to have"
                ));
                print("  \"capability_manifest\": { \"network_allowed\": true }");
                say("and no condition `no_network`. If it sends a policy (`g2a/policy`) whose \
                     `capabilities.network` has `allowed_domains`, that has to list the host.");
            }
            Self::BuiltIn { files, source, changed } => {
                let own = changed.and_then(|index| files.get(index));
                let agent = own.map(PolicyFile::agent).unwrap_or_default();
                say(format_args!("The policy is that of {agent}."));
                let others = files.iter().enumerate().filter(|(index, _)| Some(*index) != *changed);
                let with_hosts = others.filter(|(_, file)| file.allows(tool) && file.has_hosts());
                let sharing = list(with_hosts.map(|(_, file)| file.agent()));
                if !sharing.is_empty() {
                    say(format_args!(
                        "Other policies allow the tool and some host: {sharing}. A verdict names no hosts, so their \
                         runs of the tool may reach this one, too, unless the executor gets the policies (`g2a/policy`)."
                    ));
                }
                if *source == Source::Program {
                    say(
                        "The policy is a copy of the one that is part of the program, and is used in its place.",
                    );
                }
            }
        }
    }
}

impl PolicyFile {
    fn parse(file: EditedFile) -> anyhow::Result<Self> {
        let policy = decode::policy_file(file.text())
            .map_err(|fault| anyhow!("`{}` is not a policy: {}", file.path().display(), fault.sentence()))?;
        Ok(Self { file, policy, has_new_host: false })
    }

    /// The agent, as a sentence names it.
    fn agent(&self) -> String {
        match &self.policy.agent {
            Some(agent) => agent.to_string(),
            None => "every agent without a policy of its own".to_owned(),
        }
    }

    fn allows(&self, tool: &ToolName) -> bool {
        self.policy.tools.get(tool).is_some_and(|rule| rule.allowed)
    }

    /// `true` if the built-in governor grants the network by the policy as it was found.
    fn has_hosts(&self) -> bool {
        self.policy.network.allowed_domains.as_ref().is_some_and(|hosts| !hosts.is_empty())
    }

    fn change(&mut self, tool: &ToolName, origin: &HostPattern) -> anyhow::Result<()> {
        let Self { file, policy, has_new_host } = self;
        let covers =
            |pattern: &String| HostPattern::parse(pattern).is_ok_and(|pattern| pattern.covers(origin));
        if policy.network.blocked_domains.iter().any(covers) {
            bail!(
                "`{}` blocks `{origin}` (`capabilities.network.blocked_domains`), and blocked hosts win: remove the entry \
                 first",
                file.path().display()
            );
        }
        match policy.tools.get(tool).map(|rule| rule.allowed) {
            Some(true) => {}
            Some(false) => {
                let key = ["capabilities", "tools", tool.as_str(), "allowed"];
                let what = format!("set `allowed` of the tool `{tool}` to true");
                file.change(&what, |text| json::set(text, &key, &json!(true)))?;
            }
            None => {
                let key = ["capabilities", "tools", tool.as_str()];
                let what = format!("add the tool `{tool}`");
                file.change(&what, |text| json::set(text, &key, &json!({ "allowed": true })))?;
            }
        }
        if !policy.network.allowed_domains.iter().flatten().any(covers) {
            *has_new_host = true;
            let key = ["capabilities", "network", "allowed_domains"];
            let what = format!("add \"{origin}\" to `capabilities.network.allowed_domains`");
            file.change(&what, |text| json::push(text, &key, &json!(origin.to_string())))?;
        }
        // A governor would refuse it only at its next start.
        decode::policy_file(file.text()).map_err(|fault| anyhow!("{}", fault.sentence()))?;
        Ok(())
    }
}

/// Reads a folder as a governor does at its start, and then each of its files.
fn read_folder(folder: &Path) -> anyhow::Result<Vec<PolicyFile>> {
    if PolicySet::load(folder)?.cedar().is_some() {
        bail!(
            "`{}` has policies in Cedar, which this command does not change: permit the host there yourself, with a rule such \
             as `permit (principal, action == Action::\"reach\", resource in Host::\"api.example.com\");`",
            folder.display()
        );
    }
    let entries = std::fs::read_dir(folder).with_context(|| format!("`{}`", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let files = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let read = files.map(|path| PolicyFile::parse(EditedFile::read(&path)?));
    let mut policies = read.collect::<anyhow::Result<Vec<_>>>()?;
    policies.sort_by(|one, other| one.file.path().cmp(other.file.path()));
    Ok(policies)
}

/// The index of the policy of an agent, or of the only one.
fn find(files: &[PolicyFile], agent: Option<&str>) -> anyhow::Result<usize> {
    let name = |file: &PolicyFile| file.policy.agent.as_ref().map_or("*".to_owned(), AgentDid::to_string);
    let named = || list(files.iter().map(name));
    let Some(agent) = agent else {
        if files.len() == 1 {
            return Ok(0);
        }
        bail!(UsageError(format!(
            "there are several policies: name the agent with `--agent`, one of {}",
            named()
        )));
    };
    let wanted = if agent == "*" { None } else { Some(AgentDid::parse(agent)?) };
    let found = files.iter().position(|file| file.policy.agent == wanted);
    found.with_context(|| {
        format!(
            "no policy is for `{agent}` alone, there are {}: give it a file of its own first, or change the policy for every \
             agent (`--agent '*'`)",
            named()
        )
    })
}
