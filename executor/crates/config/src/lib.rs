//! The configuration: a TOML file, parsed and checked, with every limit present.
//!
//! An unknown key, a wrong type or a number out of range is refused with its line and key: no command starts with a
//! configuration that was only partly understood.

mod catalog;
mod ceilings;
mod console;
mod doors;
mod effects;
mod error;
mod executor;
mod features;
mod file;
mod fleet;
mod governor;
mod journal;
mod machine;
mod network;
mod paths;
mod secrets;
mod server;
mod sessions;
mod values;

pub use console::{ConsoleSettings, NotifySettings};
pub use doors::Doors;
pub use error::ConfigError;
pub use executor::{AddressLayout, Containment, DEFAULT_DRAIN, Reuse};
pub use file::DEFAULT_LISTEN;
pub use secrets::SecretSetting;

use a2g_capability::{Ceilings, Mounts};
use a2g_core::catalog::{CompileLimits, RemoteTool};
use a2g_core::run::{ApprovalRule, Capacity, EffectsSettings, SessionSettings};
use a2g_fleet::FleetSettings;
use a2g_govern::local::RiskThresholds;
use a2g_govern::{GovernorUrl, IssuerSettings, SignerSettings, TrustSettings};
use a2g_http::{ConnectionLimits, ListenAddress, TlsSettings};
use a2g_isolate::{Isolation, User};
use a2g_journal::{JournalLimits, Retention};
use a2g_sandbox::egress::EgressSettings;
use a2g_types::durability::{Durability, SyncedStarts};
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::limit::Limit;
use a2g_types::quantity::MemoryLimit;
use a2g_wire::strict_json::JsonBounds;
use catalog::{parse_compile_limits, parse_exceptions, parse_remote_tools, parse_signers};
use ceilings::{parse_ceilings, parse_mounts};
use effects::parse_effects;
use error::{InvalidValueError, invalid, syntax_reason};
use executor::{
    parse_capacity, parse_containment, parse_isolation, parse_layout, parse_reuse, parse_waiting,
};
use file::File;
use governor::{given_threshold, parse_approval_rule, parse_observe, parse_risk, parse_trust};
use journal::{parse_journal_limits, parse_retention};
use machine::{default_cache, default_journal};
use network::parse_egress;
use secrets::parse_secrets;
use server::{
    check_port, parse_address, parse_bounds, parse_connections, parse_issuers, parse_memory, parse_tls,
};
use sessions::parse_sessions;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use values::{check_seconds, check_size, parse_optional, parse_tool_names, parse_value};

/// The checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The executor's own DID.
    pub did: AgentDid,
    /// The address of the HTTP port.
    pub listen: ListenAddress,
    /// The list of callers; `None`: callers are not authenticated.
    pub callers: Option<PathBuf>,
    /// Issuers of the JSON Web Tokens that callers may present.
    pub issuers: Vec<IssuerSettings>,
    /// The TLS files of the HTTP port; `None`: plain HTTP.
    pub tls: Option<TlsSettings>,
    /// Size and depth limits of a message.
    pub bounds: JsonBounds,
    /// `Host` names that are accepted in addition to loopback names and the address of the port.
    pub allowed_hosts: Vec<String>,
    /// `Origin` values that are accepted. A request without `Origin` does not come from a web page.
    pub allowed_origins: Vec<String>,
    /// Limits for connections to the HTTP port.
    pub connections: ConnectionLimits,
    /// Isolation of the tools that are not in [`Self::inline_tools`].
    pub isolation: Isolation,
    /// The tools that run on a thread of the server.
    pub inline_tools: BTreeSet<ToolName>,
    /// Policy for protections that the kernel lacks; `None`: the default of [`Self::containment_at`].
    pub containment: Option<Containment>,
    /// The user of every run, if the server is root; `None`: the owner of the run's folders.
    pub run_as: Option<User>,
    /// Number of child processes that are forked in advance.
    pub waiting: usize,
    /// The lifetime of an address layout that children share.
    pub layout: AddressLayout,
    /// The tools whose processes are reused.
    pub reuse: Reuse,
    /// Maximum number of running and of waiting executions.
    pub capacity: Capacity,
    /// Maximum time for runs to end after SIGTERM; `None` if the file does not set it: [`DEFAULT_DRAIN`], or less
    /// for a process that serves one host.
    pub drain: Option<Duration>,
    /// The remote governor; `None`: the built-in one.
    pub governor: Option<GovernorUrl>,
    /// The policies of the built-in governor; `None`: the built-in policy.
    pub policies: Option<PathBuf>,
    /// The file in which the built-in governor records reports; `None`: that governor records no reports.
    pub reports: Option<PathBuf>,
    /// The names of the policy files in Cedar that change no outcome.
    pub observe: Vec<String>,
    /// The risk scores by which the built-in governor decides on policies in JSON.
    pub risk: RiskThresholds,
    /// The first key of these scores that the file sets; `None` if it sets none.
    pub given_threshold: Option<&'static str>,
    /// The journal's file.
    pub journal: PathBuf,
    /// The private folder that has a folder for each run whose file changes are kept apart.
    pub effects: PathBuf,
    /// The limits on file changes that wait for a decision or can be undone.
    pub effects_settings: EffectsSettings,
    /// The limits on sessions of tools.
    pub sessions: SessionSettings,
    /// The durability level of the journal.
    pub durability: Durability,
    /// The runs whose start waits for the disk.
    pub synced_starts: SyncedStarts,
    /// The limits on what the journal stores of arguments and for one agent.
    pub journal_limits: JournalLimits,
    /// The age and the size at which records are removed from the journal.
    pub retention: Retention,
    /// The key that signs the journal's checkpoints; `None`: checkpoints are not signed.
    pub journal_key: Option<PathBuf>,
    /// Number of undelivered reports above which no further intent runs.
    pub max_undelivered: usize,
    /// Interval of heartbeats to the governor.
    pub heartbeat: Duration,
    /// The keys that verdicts' proofs are verified with, and the signature that intents need.
    pub trust: TrustSettings,
    /// The folder of tools.
    pub catalog: PathBuf,
    /// The tools that `tool sync` installs from registries.
    pub remote_tools: Vec<RemoteTool>,
    /// The signers of tools (`[catalog.trust]`); `None` if tools need no signature.
    pub signers: Option<Vec<SignerSettings>>,
    /// The configuration file; `None` for the defaults.
    pub file: Option<PathBuf>,
    /// The private folder of compiled tools.
    pub cache: PathBuf,
    /// The file of accepted definitions.
    pub definitions: PathBuf,
    /// Heap memory above which new calls are refused.
    pub memory: MemoryLimit,
    /// Limits on the compilation of one module.
    pub compile_limits: CompileLimits,
    /// `true` if modules may use exceptions.
    pub exceptions: bool,
    /// The executor's ceilings.
    pub ceilings: Ceilings,
    /// `true` if the file does not set `ceilings.filesystem_scope`.
    pub has_default_scope: bool,
    /// The sentence for the operator if the default scope is narrower here than elsewhere.
    pub scope_note: Option<String>,
    /// The map from guest paths to host folders.
    pub mounts: Mounts,
    /// The secrets that requests of runs get. Their bindings are those of the ceilings, but for [`Self::add_secrets`].
    pub secrets: Vec<SecretSetting>,
    /// Egress settings, for runs with a network.
    pub egress: EgressSettings,
    /// Certificates that are trusted in addition to the machine's own.
    pub ca_file: Option<PathBuf>,
    /// The doors besides A2G.
    pub doors: Doors,
    /// The rules about how many people have to approve an intent.
    pub approval_rules: Vec<ApprovalRule>,
    /// The console, and the webhooks that are told what waits for a person.
    pub console: ConsoleSettings,
    /// The fleet that the executor is a node of; `None` if it shares nothing with others.
    pub fleet: Option<FleetSettings>,
}

/// The file of accepted definitions, which is by default beside the journal.
const DEFINITIONS: &str = "definitions.json";
/// The folder of staged file changes, which is by default beside the journal.
const EFFECTS: &str = "effects";
/// The file with the key of the versions of secrets, beside the journal.
const SECRETS_KEY: &str = "secrets.key";
/// The configuration file that is read, if it exists, when no other file is named.
pub const DEFAULT_FILE: &str = "executor.toml";

impl Config {
    /// Reads a file. Relative paths in it are below the file's own folder.
    ///
    /// # Errors
    /// If the file cannot be read or is not valid; the error then names the line and the key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
        let base = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let config = Self::parse(&text, path, base)?;
        Ok(Self { file: Some(path.to_owned()), ..config })
    }

    /// The signers of tools, read again from the file.
    ///
    /// # Ambient Authority
    /// Reads the file again.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn reread_signers(&self) -> Result<Option<Vec<SignerSettings>>, ConfigError> {
        match &self.file {
            Some(file) => Self::read(file).map(|config| config.signers),
            None => Ok(self.signers.clone()),
        }
    }

    /// The file with the key of the versions of secrets, which is made at the first start with secrets.
    #[must_use]
    pub fn secrets_key(&self) -> PathBuf {
        self.journal.with_file_name(SECRETS_KEY)
    }

    /// Bytes of memory that one caller may make the server hold: a quarter of the budget, or half where callers are not
    /// authenticated. The share is a caller's and not an agent's, because a caller may name any number of agents.
    #[must_use]
    pub fn caller_share(&self) -> u64 {
        self.memory.bytes() / if self.callers.is_some() { 4 } else { 2 }
    }

    /// Bytes of output that all concurrent runs together may produce.
    #[must_use]
    pub fn max_expected_output(&self) -> u64 {
        (self.capacity.concurrent as u64).saturating_mul(self.ceilings.limits[Limit::Output])
    }

    /// The default configuration.
    ///
    /// # Errors
    /// If the defaults do not fit this machine, for example without a home folder.
    pub fn without_file() -> Result<Self, ConfigError> {
        Self::parse("", Path::new("the defaults"), Path::new("."))
    }

    /// `true` if only this machine can connect to the ports of the server.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.listen.is_local() && self.console.listen.as_ref().is_none_or(ListenAddress::is_local)
    }

    /// The configured containment, or the default for calls that arrive at `listen`, and then also at `console.listen`.
    /// The default is [`Containment::Required`] if other machines can call, because a log line about a missing
    /// protection is easily overlooked. On loopback it is best effort, so that a developer without Landlock can start.
    #[must_use]
    pub fn containment_at(&self, listen: Option<&ListenAddress>) -> Containment {
        let console = listen.and(self.console.listen.as_ref());
        let is_local = listen.into_iter().chain(console).all(ListenAddress::is_local);
        self.containment.unwrap_or(if is_local { Containment::BestEffort } else { Containment::Required })
    }

    /// The isolation of a tool's runs: the configured one, or inline for a tool that runs so in any case.
    #[must_use]
    pub fn isolation_of(&self, tool: &ToolName) -> Isolation {
        if self.inline_tools.contains(tool) { Isolation::Inline } else { self.isolation }
    }

    /// Repeats the checks of the port, of the doors' access and of paths, after command-line options have changed them.
    ///
    /// # Errors
    /// [`ConfigError::Value`], with the key, if a check fails.
    pub fn check_paths(&mut self, origin: &Path) -> Result<(), ConfigError> {
        check_port(&self.listen, self.callers.as_deref(), self.tls.as_ref())
            .and_then(|()| self.doors.check_exposure(&self.listen))
            .map_err(|error| error.at_path(origin, ""))?;
        self.console.check_address(&self.listen).map_err(|error| error.at_path(origin, ""))?;
        self.check_private_paths().map_err(|error| error.at_path(origin, ""))
    }

    /// Checks that the catalogue has no tool whose name the executor needs for itself. Tools may be added at any time,
    /// so this is for the start and for each reload.
    ///
    /// # Ambient Authority
    /// Looks at the catalogue's folder.
    ///
    /// # Errors
    /// [`ConfigError::Value`], with the key.
    pub fn check_tool_names(&self, origin: &Path) -> Result<(), ConfigError> {
        self.doors.check_listing(&self.catalog).map_err(|error| error.at_path(origin, ""))
    }

    /// Checks what sections demand of each other, and gives the doors what they need of the section of the server.
    fn check_sections(mut self) -> Result<Self, InvalidValueError> {
        if !self.issuers.is_empty() && self.callers.is_none() {
            return Err(invalid("server.issuer")(
                &"needs `server.callers`, which maps the subjects of its tokens to roles and agents",
            ));
        }
        check_port(&self.listen, self.callers.as_deref(), self.tls.as_ref())?;
        if self.trust.keys.is_some() && self.did.as_str() == file::Executor::default().did {
            return Err(invalid("executor.did")(
                &"has to be set where `trust.keys` is: proofs name the executor by this DID, and the default is shared by \
                  all executors that set none",
            ));
        }
        self.check_reuse()?;
        self.check_secrets()?;
        if !self.approval_rules.is_empty() && self.callers.is_none() {
            return Err(invalid("approvals")(
                &"needs `server.callers`: without a list, every client may act for every agent, and nobody can approve",
            ));
        }
        if self.fleet.as_ref().is_some_and(|fleet| fleet.keep < self.trust.max_lifetime) {
            return Err(invalid("fleet.keep_hours")(
                &"is shorter than `trust.max_proof_seconds`: a verdict could be used again once its claim is forgotten",
            ));
        }
        if let Some(mcp) = &mut self.doors.mcp {
            mcp.issuers = self.issuers.iter().map(|issuer| issuer.issuer.as_str().to_owned()).collect();
            mcp.scheme = if self.tls.is_some() { "https" } else { "http" };
        }
        self.console.check_address(&self.listen)?;
        self.check_private_paths()?;
        Ok(self)
    }

    /// Checks that the tools whose processes are reused have processes, and that these may share an address layout.
    fn check_reuse(&self) -> Result<(), InvalidValueError> {
        let error = invalid("executor.reuse.tools");
        let mut tools = self.reuse.tools.iter();
        if let Some(tool) = tools.find(|tool| self.isolation_of(tool) == Isolation::Inline) {
            return Err(error(&format_args!(
                "names `{tool}`, which has no process to reuse, because `executor.isolation` or `executor.inline_tools` \
                 lets it run inline: remove it here, or let it run in processes"
            )));
        }
        if self.layout.per_child && !self.reuse.tools.is_empty() {
            return Err(error(
                &"contradicts `executor.fresh_layout`, which gives each run an address layout of its own: remove one of \
                  the two",
            ));
        }
        Ok(())
    }

    /// Parses a configuration. Errors name the file as `path`; relative paths in the text are below `base`.
    ///
    /// # Errors
    /// If the configuration is not valid. The error names the key, and the line if the key is in the text.
    pub fn parse(text: &str, path: &Path, base: &Path) -> Result<Self, ConfigError> {
        let file = parse_file(text, path)?;
        parse_sections(file, base).and_then(Self::check_sections).map_err(|error| error.at_path(path, text))
    }

    /// Adds the sections `[[secret]]` of a text, for a command that uses them before their host is allowed. No run gets
    /// these secrets, because the ceilings do not have them.
    ///
    /// # Errors
    /// As for [`Self::parse`], with `origin` as the file.
    pub fn add_secrets(&mut self, text: &str, origin: &Path) -> Result<(), ConfigError> {
        let sections = parse_file(text, origin)?.secret;
        self.secrets = parse_secrets(self.secrets.clone(), sections, |path| path)
            .map_err(|error| error.at_path(origin, ""))?;
        Ok(())
    }
}

fn parse_file(text: &str, path: &Path) -> Result<File, ConfigError> {
    toml::from_str(text)
        .map_err(|error| ConfigError::Syntax { path: path.to_owned(), reason: syntax_reason(text, &error) })
}

/// The checked sections. What they demand of each other is left to [`Config::check_sections`].
fn parse_sections(file: File, base: &Path) -> Result<Config, InvalidValueError> {
    let resolve = |path: PathBuf| base.join(path);
    let secrets = parse_secrets(Vec::new(), file.secret, resolve)?;
    let bindings = secrets.iter().map(|secret| Arc::clone(&secret.binding)).collect();
    let ceilings = Ceilings { secrets: bindings, ..parse_ceilings(&file.ceilings, &file.network)? };
    let capacity = parse_capacity(&file.executor, &ceilings)?;
    let memory = parse_memory(file.server.max_memory_mb, &capacity, &ceilings)?;
    let journal = file.journal.path.clone().map_or_else(default_journal, |path| Ok(resolve(path)))?;
    let drain = |given| check_seconds("executor.drain_seconds", given, 3600);
    let egress = parse_egress(&file.network)?;
    let layout = parse_layout(&file.executor)?;
    let isolation = parse_isolation(file.executor.isolation);
    let inline_tools = parse_tool_names("executor.inline_tools", &file.executor.inline_tools)?;
    Ok(Config {
        has_default_scope: file.ceilings.filesystem_scope.is_none(),
        scope_note: None,
        bounds: parse_bounds(&file.server, memory)?,
        connections: parse_connections(&file.server)?,
        memory,
        listen: parse_address(&file.server.listen, resolve)?,
        issuers: parse_issuers(file.server.issuer, &file.executor.did, resolve)?,
        callers: file.server.callers.map(resolve),
        tls: file.server.tls.map(|tls| parse_tls(tls, resolve)),
        allowed_hosts: file.server.allowed_hosts,
        allowed_origins: file.server.allowed_origins,
        did: parse_value("executor.did", file.executor.did.as_str(), AgentDid::parse)?,
        layout,
        reuse: parse_reuse(&file.executor.reuse)?,
        capacity,
        waiting: parse_waiting(file.executor.waiting)?,
        exceptions: parse_exceptions(&file.catalog, isolation, &inline_tools)?,
        isolation,
        containment: file.executor.containment.map(parse_containment),
        inline_tools,
        run_as: parse_optional("executor.run_as", file.executor.run_as, User::parse)?,
        drain: file.executor.drain_seconds.map(drain).transpose()?,
        given_threshold: given_threshold(&file.governor),
        risk: parse_risk(&file.governor)?,
        observe: parse_observe(&file.governor)?,
        governor: parse_optional("governor.url", file.governor.url, GovernorUrl::parse)?,
        policies: file.governor.policies.map(resolve),
        reports: file.governor.reports.map(resolve),
        heartbeat: check_seconds("governor.heartbeat_seconds", file.governor.heartbeat_seconds, 86_400)?,
        journal_limits: parse_journal_limits(&file.journal)?,
        retention: parse_retention(&file.journal)?,
        durability: file.journal.durability,
        synced_starts: file.journal.synced_starts,
        journal_key: file.journal.key.map(resolve),
        max_undelivered: check_size("journal.max_undelivered", file.journal.max_undelivered, 10_000_000)?,
        trust: parse_trust(file.trust, resolve)?,
        compile_limits: parse_compile_limits(&file.catalog)?,
        definitions: file.catalog.definitions.map_or_else(|| journal.with_file_name(DEFINITIONS), resolve),
        effects_settings: parse_effects(&file.effects)?,
        sessions: parse_sessions(&file.sessions)?,
        effects: file.effects.folder.map_or_else(|| journal.with_file_name(EFFECTS), resolve),
        cache: file.catalog.cache.map_or_else(default_cache, |path| Ok(resolve(path)))?,
        remote_tools: parse_remote_tools(file.catalog.remote)?,
        signers: file.catalog.trust.map(|trust| parse_signers(trust, resolve)).transpose()?,
        catalog: resolve(file.catalog.tools),
        file: None,
        journal,
        ceilings,
        mounts: parse_mounts(file.mount, resolve)?,
        secrets,
        ca_file: file.network.ca_file.map(resolve),
        doors: Doors::parse(file.doors, resolve)?,
        console: ConsoleSettings::parse(file.console, &egress, resolve)?,
        egress,
        fleet: file.fleet.map(|section| fleet::parse_fleet(section, resolve)).transpose()?,
        approval_rules: file.approvals.into_iter().map(parse_approval_rule).collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests;
