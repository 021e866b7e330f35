//! The configuration: a TOML file as written, then checked, with every limit present.
//!
//! An unknown key, a wrong type or a number out of range is refused with its line and key; nothing
//! starts on a configuration that was only half understood.

mod doors;
mod file;

pub use doors::Doors;

use crate::capability::{Area, Ceilings, Host, HostClaims, HostPattern, Mount, Mounts, Tree};
use crate::catalog::CompileLimits;
use crate::durability::Durability;
use crate::egress::{EgressSettings, Lifted};
use crate::govern::{GovernorUrl, IssuerSettings, KeyForm, SignatureSettings, TrustSettings};
use crate::ident::{AgentDid, Issuer, ToolName, did_you_mean};
use crate::isolate::{Isolation, User};
use crate::limit::{Access, Budgets, NetworkBudgets};
use crate::quantity::{CpuPercent, MemoryLimit, OutOfRange, OutputLimit, Timeout};
use crate::run::Capacity;
use crate::serve::{ConnectionLimits, Listen, TlsSettings};
use crate::wire::strict_json::JsonBounds;
use file::File;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("`{path}` cannot be read: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said. Part of the sentence, so no `source`, which a chain would say again.
        error: std::io::Error,
    },
    /// The file is not TOML, or has an unknown key or a wrong type. Names line and column.
    #[error("`{path}` is not a valid configuration\n{reason}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What the parser said, with the line.
        reason: String,
    },
    /// A value that cannot be.
    #[error("`{path}`{line}: `{key}` {reason}")]
    Value {
        /// The file.
        path: PathBuf,
        /// ` line N`, when the key stands in the file.
        line: String,
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// The checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The executor's own DID.
    pub did: AgentDid,
    /// Where the HTTP door listens.
    pub listen: Listen,
    /// The list of callers; `None`: nobody is told apart.
    pub callers: Option<PathBuf>,
    /// Whose JSON Web Tokens callers may show.
    pub issuers: Vec<IssuerSettings>,
    /// The TLS of the HTTP door.
    pub tls: Option<TlsSettings>,
    /// What a body may be.
    pub bounds: JsonBounds,
    /// `Host` names that are accepted beside loopback names and the address listened on.
    pub allowed_hosts: Vec<String>,
    /// `Origin` values that are accepted. A request without one is no web page's.
    pub allowed_origins: Vec<String>,
    /// What connections to the HTTP door may be.
    pub connections: ConnectionLimits,
    /// Where tools run that are not named in [`Self::inline_tools`].
    pub isolation: Isolation,
    /// The tools that run on a thread of the server.
    pub inline_tools: BTreeSet<ToolName>,
    /// The answer to a control of the process ring that the kernel lacks; `None`: as [`Self::containment_at`] says.
    pub containment: Option<Containment>,
    /// The user of every run, where the server is root; `None`: the owner of its folders.
    pub run_as: Option<User>,
    /// How many processes wait ahead of time for a guest.
    pub waiting: usize,
    /// The lifetime of an address layout that processes of guests share.
    pub layout: Layout,
    /// How many executions run and wait at once.
    pub capacity: Capacity,
    /// How long running work may go on after SIGTERM.
    pub drain: Duration,
    /// The remote governor; `None` is the one inside.
    pub governor: Option<GovernorUrl>,
    /// The policies of the governor inside; `None` is the built-in policy.
    pub policies: Option<PathBuf>,
    /// Where the governor inside records reports.
    pub reports: Option<PathBuf>,
    /// The journal.
    pub journal: PathBuf,
    /// The event that a commit of the journal waits for.
    pub durability: Durability,
    /// The key that signs the journal's checkpoints; without one they are not signed.
    pub journal_key: Option<PathBuf>,
    /// How many reports may wait for the governor before nothing more is run.
    pub most_undelivered: usize,
    /// How often a heartbeat goes to the governor.
    pub heartbeat: Duration,
    /// Whose proofs are believed, and how intents have to be signed.
    pub trust: TrustSettings,
    /// The folder of tools.
    pub catalog: PathBuf,
    /// The private folder of compiled tools.
    pub cache: PathBuf,
    /// Heap memory above which nothing more is taken in.
    pub memory: MemoryLimit,
    /// Limits on the compilation of one module.
    pub compile_limits: CompileLimits,
    /// The executor's ceilings.
    pub ceilings: Ceilings,
    /// The map from guest paths to host folders.
    pub mounts: Mounts,
    /// The way out, for runs with a network.
    pub egress: EgressSettings,
    /// Certificates that are trusted beside the machine's own.
    pub ca_file: Option<PathBuf>,
    /// The doors of the other protocols.
    pub doors: Doors,
}

/// The answer to a control of the process ring that the kernel lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Containment {
    /// The log says so, and tools run without it.
    BestEffort,
    /// Nothing starts.
    Required,
}

/// The lifetime of an address layout that processes of guests share.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// The most runs.
    pub renew_runs: u64,
    /// The longest time.
    pub renew_after: Duration,
    /// Not at all: each has one of its own.
    pub fresh: bool,
}

/// The configuration file that is read when none is named.
pub const DEFAULT_FILE: &str = "executor.toml";

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
        let base = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Self::parse(&text, path, base)
    }

    /// The bytes of memory that one caller may make the server hold: a quarter of the budget, or half where callers are
    /// not told apart.
    #[must_use]
    pub fn caller_share(&self) -> u64 {
        self.memory.bytes() / if self.callers.is_some() { 4 } else { 2 }
    }

    /// The bytes that all runs together may hand out at once.
    #[must_use]
    pub fn max_expected_output(&self) -> u64 {
        (self.capacity.concurrent as u64).saturating_mul(self.ceilings.output.bytes())
    }

    /// The configuration without a file: every default.
    ///
    /// # Errors
    /// [`ConfigError`] when the defaults do not fit this machine, such as without a home folder.
    pub fn without_file() -> Result<Self, ConfigError> {
        Self::parse("", Path::new("the defaults"), Path::new("."))
    }

    /// The containment for calls that come by `listen`: the configured one, or else [`Containment::Required`] where
    /// others than this machine can call.
    #[must_use]
    pub fn containment_at(&self, listen: Option<&Listen>) -> Containment {
        let is_local = listen.is_none_or(Listen::is_local);
        self.containment.unwrap_or(if is_local { Containment::BestEffort } else { Containment::Required })
    }

    /// Checks again that nothing of the executor's own lies where guests are let in: after a command
    /// line moved something.
    ///
    /// # Errors
    /// [`ConfigError::Value`] names the two folders.
    pub fn check_places(&self, said_by: &Path) -> Result<(), ConfigError> {
        check_door(&self.listen, self.callers.as_deref(), self.tls.as_ref())
            .and_then(|()| self.doors.check_reach(&self.listen))
            .map_err(|wrong| wrong.at(said_by, "", 0))?;
        self.check_private_places().map_err(|wrong| wrong.at(said_by, "", 0))
    }

    /// What is the executor's own, by the key that names it, must not lie where a guest could be let in.
    fn check_private_places(&self) -> Result<(), Wrong> {
        let tls = self.tls.as_ref();
        let socket = match &self.listen {
            Listen::Unix(path) => Some(path),
            Listen::Tcp(_) => None,
        };
        let own = [
            ("catalog.cache", Some(&self.cache)),
            ("journal.path", Some(&self.journal)),
            ("journal.key", self.journal_key.as_ref()),
            ("governor.reports", self.reports.as_ref()),
            ("governor.policies", self.policies.as_ref()),
            ("network.ca_file", self.ca_file.as_ref()),
            ("server.callers", self.callers.as_ref()),
            ("server.listen", socket),
            ("server.tls.certificate", tls.map(|tls| &tls.certificate)),
            ("server.tls.key", tls.map(|tls| &tls.key)),
            ("server.tls.client_ca", tls.and_then(|tls| tls.client_ca.as_ref())),
            ("trust.keys", self.trust.keys.as_ref()),
            (
                "trust.intent_signature.key_file",
                self.trust.signature.as_ref().map(|signature| &signature.key_file),
            ),
            ("doors.nexus.key_file", self.doors.nexus.as_ref().map(|nexus| &nexus.key_file)),
        ];
        let own = own.into_iter().filter_map(|(key, path)| Some((key, path?)));
        let issuers = self.issuers.iter().map(|issuer| ("server.issuer.keys", &issuer.keys));
        check_apart(&self.ceilings.areas, &self.mounts, own.chain(issuers))
    }

    /// Checks that the folders and the tools are there which the file at `path` names. A server needs
    /// them later: this is for whoever asks whether it will find them.
    ///
    /// # Ambient Authority
    /// Looks at the folders, and reads the file again for its lines.
    ///
    /// # Errors
    /// [`ConfigError::Value`] names the first that is missing.
    pub fn check_folders(&self, path: &Path) -> Result<(), ConfigError> {
        let mounts = self.mounts.as_slice().iter().enumerate();
        let hosts = mounts.map(|(nth, mount)| ("mount.host", nth, &mount.host));
        let mut named = std::iter::once(("catalog.tools", 0, &self.catalog)).chain(hosts);
        let missing = named.find(|(_, _, folder)| !folder.is_dir()).map(|(key, nth, folder)| {
            (key, nth, format!("names `{}`, and there is no such folder", folder.display()))
        });
        let no_tool = || {
            let mut inline = self.inline_tools.iter();
            let tool = inline.find(|tool| !self.catalog.join(tool.as_str()).join("tool.toml").is_file())?;
            let entries = std::fs::read_dir(&self.catalog).into_iter().flatten().flatten();
            let known = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>();
            let nearest = did_you_mean(tool.as_str(), known.iter().map(String::as_str));
            let reason =
                format!("names `{tool}`{nearest}, and there is no such tool in `{}`", self.catalog.display());
            Some(("executor.inline_tools", 0, reason))
        };
        let Some((key, nth, reason)) = missing.or_else(no_tool) else { return Ok(()) };
        // Without a file, which is no fault, there is no line to name.
        let text = std::fs::read_to_string(path).unwrap_or_default();
        Err(Wrong { key, reason }.at(path, &text, nth))
    }

    fn parse(text: &str, path: &Path, base: &Path) -> Result<Self, ConfigError> {
        let file: File = toml::from_str(text).map_err(|error| ConfigError::Syntax {
            path: path.to_owned(),
            reason: with_nearest(error.to_string().trim_end()),
        })?;
        check(file, base).map_err(|wrong| wrong.at(path, text, 0))
    }
}

/// The parser's reason, with the nearest of the expected names beside the unknown one. The parser says both in one
/// line: ``unknown field `lisen`, expected one of `listen`, …``.
fn with_nearest(reason: &str) -> String {
    let line = |line: &str| {
        let mut quoted = line.split('`').skip(1).step_by(2);
        let unknown = quoted.next().filter(|_| line.starts_with("unknown "));
        match unknown.map(|name| (format!("`{name}`"), did_you_mean(name, quoted))) {
            Some((name, nearest)) => line.replacen(&name, &format!("{name}{nearest}"), 1),
            None => line.to_owned(),
        }
    };
    reason.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// A value that cannot be, by its dotted key.
struct Wrong {
    key: &'static str,
    reason: String,
}

impl Wrong {
    /// As an error of a file with this text, in which the key may stand more than once.
    fn at(self, path: &Path, text: &str, nth: usize) -> ConfigError {
        let line = line_of(text, self.key, nth).map(|line| format!(" line {line}")).unwrap_or_default();
        ConfigError::Value { path: path.to_owned(), line, key: self.key.to_owned(), reason: self.reason }
    }
}

fn wrong(key: &'static str) -> impl Fn(&dyn std::fmt::Display) -> Wrong {
    move |reason| Wrong { key, reason: reason.to_string() }
}

fn ranged<T>(key: &'static str, value: u64, make: impl Fn(u64) -> Result<T, OutOfRange>) -> Result<T, Wrong> {
    make(value).map_err(|error| wrong(key)(&error))
}

fn within(key: &'static str, value: u64, most: u64) -> Result<u64, Wrong> {
    between(key, value, 1, most)
}

fn between(key: &'static str, value: u64, least: u64, most: u64) -> Result<u64, Wrong> {
    if (least..=most).contains(&value) { Ok(value) } else { Err(wrong(key)(&OutOfRange { least, most })) }
}

fn check(file: File, base: &Path) -> Result<Config, Wrong> {
    let File { server, executor, governor, trust, catalog, journal, ceilings, network, mount, doors } = file;
    let at = |path: PathBuf| if path.is_absolute() { path } else { base.join(path) };
    let areas = ceilings.filesystem_scope.iter().map(|pattern| Area::parse(pattern));
    let areas = areas.collect::<Result<Vec<_>, _>>().map_err(|e| wrong("ceilings.filesystem_scope")(&e))?;
    let areas = areas.concat();
    let mounts = mount
        .into_iter()
        .map(|mount| Ok(Mount { guest: Tree::parse_path(&mount.guest)?, host: at(mount.host) }));
    let mounts =
        mounts.collect::<Result<_, _>>().and_then(Mounts::new).map_err(|e| wrong("mount.guest")(&e))?;
    let cache = match catalog.cache {
        Some(cache) => at(cache),
        None => default_folder("XDG_CACHE_HOME", ".cache").ok_or_else(|| {
            wrong("catalog.cache")(&"has to be set: neither `XDG_CACHE_HOME` nor `HOME` names a folder")
        })?,
    };
    let journal_path = match journal.path {
        Some(path) => at(path),
        None => default_folder("XDG_STATE_HOME", ".local/state")
            .map(|state| state.join("journal.db"))
            .ok_or_else(|| {
                wrong("journal.path")(&"has to be set: neither `XDG_STATE_HOME` nor `HOME` names a folder")
            })?,
    };
    let reports = governor.reports.map(at);
    let ca_file = network.ca_file.clone().map(at);
    let journal_key = journal.key.map(at);
    let listen = match server.listen.parse().map_err(|e| wrong("server.listen")(&e))? {
        Listen::Unix(path) => Listen::Unix(at(path)),
        tcp @ Listen::Tcp(_) => tcp,
    };
    let callers = server.callers.map(at);
    let issuers = whose_tokens_are_shown(server.issuer, callers.as_deref(), &executor.did, at)?;
    let tls = server.tls.map(|file::Tls { certificate, key, client_ca }| TlsSettings {
        certificate: at(certificate),
        key: at(key),
        client_ca: client_ca.map(at),
    });
    check_door(&listen, callers.as_deref(), tls.as_ref())?;
    let trust = who_is_trusted(trust, at)?;
    if trust.keys.is_some() && executor.did == file::Executor::default().did {
        return Err(wrong("executor.did")(
            &"has to be set where `trust.keys` is: a proof is for the executor with this DID, and every executor that \
              has none of its own has the same",
        ));
    }
    let doors = Doors::check(doors, at)?;
    let (hosts, network_budgets) = whom_runs_may_reach(&network)?;
    let egress = way_out(&network)?;
    let waiting = match executor.waiting {
        Some(given) => within("executor.waiting", given, 256)?,
        None => u64::from(default_waiting()),
    };
    let capacity = how_much_at_once(&executor)?;
    let output = ranged("ceilings.max_output_bytes", ceilings.max_output_bytes, OutputLimit::from_bytes)?;
    let outputs = (capacity.concurrent as u64).saturating_mul(output.bytes());
    let enough_mb = default_memory_mb().saturating_add(outputs.div_ceil(1 << 20)).min(MemoryLimit::MAX_MB);
    let memory_mb = server.max_memory_mb.unwrap_or(enough_mb);
    let memory = ranged("server.max_memory_mb", memory_mb, MemoryLimit::from_mb)?;
    let inline_tools = executor.inline_tools.iter().map(|name| ToolName::parse(name));
    let inline_tools =
        inline_tools.collect::<Result<_, _>>().map_err(|e| wrong("executor.inline_tools")(&e))?;
    let config = Config {
        did: AgentDid::parse(&executor.did).map_err(|e| wrong("executor.did")(&e))?,
        listen,
        callers,
        issuers,
        tls,
        bounds: JsonBounds {
            max_bytes: size(within("server.max_body_bytes", server.max_body_bytes, 1 << 30)?),
            max_depth: size(within("server.max_json_depth", server.max_json_depth, 100)?),
            max_tree_bytes: size((memory.bytes() / 4).max(server.max_body_bytes.saturating_mul(8))),
        },
        memory,
        allowed_hosts: server.allowed_hosts,
        allowed_origins: server.allowed_origins,
        connections: ConnectionLimits {
            most: size(within("server.max_connections", server.max_connections, 100_000)?),
            request: Duration::from_secs(within("server.request_seconds", server.request_seconds, 3600)?),
        },
        isolation: match executor.isolation {
            file::Isolation::Process => Isolation::Process,
            file::Isolation::Inline => Isolation::Inline,
        },
        inline_tools,
        containment: executor.containment.map(|containment| match containment {
            file::Containment::BestEffort => Containment::BestEffort,
            file::Containment::Required => Containment::Required,
        }),
        run_as: executor
            .run_as
            .map(|user| User::parse(&user))
            .transpose()
            .map_err(|e| wrong("executor.run_as")(&e))?,
        waiting: size(waiting),
        layout: Layout {
            renew_runs: within("executor.renew_runs", executor.renew_runs, 1_000_000)?,
            renew_after: Duration::from_secs(within(
                "executor.renew_seconds",
                executor.renew_seconds,
                86_400,
            )?),
            fresh: executor.fresh_layout,
        },
        capacity,
        drain: Duration::from_secs(within("executor.drain_seconds", executor.drain_seconds, 3600)?),
        governor: governor
            .url
            .map(|url| GovernorUrl::parse(&url))
            .transpose()
            .map_err(|e| wrong("governor.url")(&e))?,
        policies: governor.policies.map(at),
        reports,
        journal: journal_path,
        durability: journal.durability,
        journal_key,
        most_undelivered: size(within("journal.max_undelivered", journal.max_undelivered, 10_000_000)?),
        heartbeat: Duration::from_secs(within(
            "governor.heartbeat_seconds",
            governor.heartbeat_seconds,
            86_400,
        )?),
        trust,
        catalog: at(catalog.tools),
        cache,
        compile_limits: CompileLimits {
            cpu_seconds: within("catalog.compile_seconds", catalog.compile_seconds, 3600)?,
            memory: ranged("catalog.compile_memory_mb", catalog.compile_memory_mb, MemoryLimit::from_mb)?,
        },
        ceilings: Ceilings {
            memory: ranged("ceilings.max_memory_mb", ceilings.max_memory_mb, MemoryLimit::from_mb)?,
            cpu: ranged("ceilings.max_cpu_percent", ceilings.max_cpu_percent, CpuPercent::new)?,
            timeout: ranged("ceilings.timeout_seconds", ceilings.timeout_seconds, Timeout::from_seconds)?,
            output,
            budgets: Budgets {
                written: ranged("ceilings.max_written_mb", ceilings.max_written_mb, MemoryLimit::from_mb)?,
                created: within("ceilings.max_created", ceilings.max_created, Budgets::MAX)?,
                handles: between(
                    "ceilings.max_handles",
                    ceilings.max_handles,
                    Budgets::MIN_HANDLES,
                    Budgets::MAX_HANDLES,
                )?,
                subscriptions: within(
                    "ceilings.max_subscriptions",
                    ceilings.max_subscriptions,
                    Budgets::MAX_HANDLES,
                )?,
                random_bytes: within("ceilings.max_random_bytes", ceilings.max_random_bytes, Budgets::MAX)?,
                directory_entries: within(
                    "ceilings.max_directory_entries",
                    ceilings.max_directory_entries,
                    Budgets::MAX,
                )?,
                fuel: ceilings
                    .max_fuel
                    .map(|fuel| within("ceilings.max_fuel", fuel, Budgets::MAX_FUEL))
                    .transpose()?,
                hard_links: ceilings.hard_links,
            },
            network: ceilings.network_allowed,
            hosts,
            network_budgets,
            access: if ceilings.read_only { Access::ReadOnly } else { Access::ReadWrite },
            areas,
        },
        mounts,
        egress,
        ca_file,
        doors,
    };
    config.check_private_places()?;
    Ok(config)
}

/// What a door needs that is more than a local one.
fn check_door(listen: &Listen, callers: Option<&Path>, tls: Option<&TlsSettings>) -> Result<(), Wrong> {
    let asks_for_certificates = tls.is_some_and(|tls| tls.client_ca.is_some());
    if asks_for_certificates && callers.is_none() {
        return Err(wrong("server.tls.client_ca")(
            &"needs `server.callers`, which says whose certificate is good for what",
        ));
    }
    if tls.is_some() && listen.ip().is_none() {
        return Err(wrong("server.tls")(&"is for a port, and `server.listen` is a socket in a folder"));
    }
    Ok(())
}

/// Whose JSON Web Tokens callers may show: of each issuer, the file of its keys and for whom its tokens have to be.
fn whose_tokens_are_shown(
    written: Vec<file::Issuer>,
    callers: Option<&Path>,
    did: &str,
    at: impl Fn(PathBuf) -> PathBuf,
) -> Result<Vec<IssuerSettings>, Wrong> {
    let wrong = wrong("server.issuer");
    if !written.is_empty() && callers.is_none() {
        return Err(wrong(
            &"needs `server.callers`, which says about whom its tokens have to be, and what they may do",
        ));
    }
    let mut issuers = Vec::<IssuerSettings>::new();
    for file::Issuer { issuer, keys, audience } in written {
        let issuer = Issuer::parse(&issuer).map_err(|error| wrong(&error))?;
        if issuers.iter().any(|other| other.issuer == issuer) {
            return Err(wrong(&format_args!("names `{issuer}` twice: put all of its keys into one file")));
        }
        let audience = match audience {
            Some(audience) if audience.is_empty() => return Err(wrong(&"has an empty `audience`")),
            Some(audience) => audience,
            None if did == file::Executor::default().did => {
                return Err(wrong(
                    &"needs an `audience`, or an `executor.did` of this executor's own, which is the audience \
                      otherwise: a token for the default one would be good at every executor that has it",
                ));
            }
            None => did.to_owned(),
        };
        issuers.push(IssuerSettings { issuer, keys: at(keys), audience });
    }
    Ok(issuers)
}

/// How many run and wait. An agent may have three quarters of what runs and a quarter of what waits, so that
/// there is always room for another.
fn how_much_at_once(executor: &file::Executor) -> Result<Capacity, Wrong> {
    let concurrent = match executor.concurrent {
        Some(given) => within("executor.concurrent", given, 4096)?,
        None => u64::from(default_concurrent()),
    };
    let queue = within("executor.queue", executor.queue, 1_000_000)?;
    let concurrent_per_agent = match executor.concurrent_per_agent {
        Some(given) => within("executor.concurrent_per_agent", given, concurrent)?,
        None => (concurrent * 3).div_ceil(4),
    };
    let queue_per_agent = match executor.queue_per_agent {
        Some(given) => within("executor.queue_per_agent", given, queue)?,
        None => queue.div_ceil(4),
    };
    Ok(Capacity {
        concurrent: size(concurrent),
        concurrent_per_agent: size(concurrent_per_agent),
        queue: size(queue),
        queue_per_agent: size(queue_per_agent),
    })
}

fn who_is_trusted(trust: file::Trust, at: impl Fn(PathBuf) -> PathBuf) -> Result<TrustSettings, Wrong> {
    let file::Trust { keys, max_proof_seconds, intent_signature } = trust;
    let signature = |signature: file::IntentSignature| {
        let file::IntentSignature { key_file, key_form, escape_non_ascii } = signature;
        let key_form = match key_form {
            file::KeyForm::Ascii => KeyForm::Ascii,
            file::KeyForm::Bytes => KeyForm::Bytes,
        };
        SignatureSettings { key_file: at(key_file), key_form, escape_non_ascii }
    };
    Ok(TrustSettings {
        signature: intent_signature.map(signature),
        keys: keys.map(&at),
        longest: Duration::from_secs(within("trust.max_proof_seconds", max_proof_seconds, 604_800)?),
    })
}

/// Whom runs may reach at all, and how much.
fn whom_runs_may_reach(network: &file::Network) -> Result<(HostClaims, NetworkBudgets), Wrong> {
    let patterns = |key: &'static str, texts: &[String]| {
        let parsed = texts.iter().map(|text| HostPattern::parse(text)).collect::<Result<Vec<_>, _>>();
        parsed.map_err(|error| wrong(key)(&error))
    };
    let count =
        |key, value, most| within(key, value, most).map(|value| u32::try_from(value).unwrap_or(u32::MAX));
    let claims = HostClaims {
        allowed: Some(patterns("network.allowed_domains", &network.allowed_domains)?),
        blocked: patterns("network.blocked_domains", &network.blocked_domains)?,
        requests_per_minute: None,
    };
    let budgets = NetworkBudgets {
        requests: count("network.max_requests", network.max_requests, NetworkBudgets::MAX_REQUESTS)?,
        connections: count(
            "network.max_connections",
            network.max_connections,
            NetworkBudgets::MAX_CONNECTIONS,
        )?,
        sent_bytes: within("network.max_sent_bytes", network.max_sent_bytes, NetworkBudgets::MAX_BYTES)?,
        received_bytes: within(
            "network.max_received_bytes",
            network.max_received_bytes,
            NetworkBudgets::MAX_BYTES,
        )?,
    };
    Ok((claims, budgets))
}

fn way_out(network: &file::Network) -> Result<EgressSettings, Wrong> {
    let lifted = network.allowed_addresses.iter().map(|text| text.parse::<Lifted>());
    let hosts = network.hosts.iter().map(|(name, addresses)| match Host::parse(name) {
        Ok(Host::Name(name)) if !addresses.is_empty() => Ok((name, addresses.clone())),
        Ok(_) => Err(wrong("network.hosts")(&"has to map names to one address or more each")),
        Err(error) => Err(wrong("network.hosts")(&error)),
    });
    Ok(EgressSettings {
        lifted: lifted.collect::<Result<_, _>>().map_err(|e| wrong("network.allowed_addresses")(&e))?,
        hosts: hosts.collect::<Result<_, _>>()?,
        connect: Duration::from_secs(within("network.connect_seconds", network.connect_seconds, 3600)?),
    })
}

/// Nothing of `own` may lie in a folder that guests are let in to, and no such folder in another.
fn check_apart<'a>(
    areas: &[Area],
    mounts: &Mounts,
    own: impl Iterator<Item = (&'static str, &'a PathBuf)>,
) -> Result<(), Wrong> {
    let resolved = |path: &Path| {
        // The path itself may not exist yet; what counts is the nearest folder that does.
        let nearest = path.ancestors().find_map(|known| Some((known, known.canonicalize().ok()?)));
        nearest.map_or_else(
            || path.to_owned(),
            |(known, real)| path.strip_prefix(known).map_or_else(|_| real.clone(), |rest| real.join(rest)),
        )
    };
    let own = own.map(|(key, path)| (key, resolved(path))).collect::<Vec<_>>();
    // Every folder from which a guest's paths may start: of each area, and of each mount that an
    // area lets guests into.
    let mounted =
        mounts.as_slice().iter().filter(|mount| areas.iter().any(|area| area.root().covers(&mount.guest)));
    let bases = areas.iter().filter_map(|area| mounts.host_path(area.root(), areas));
    let mut bases =
        bases.chain(mounted.map(|mount| mount.host.clone())).map(|host| resolved(&host)).collect::<Vec<_>>();
    bases.sort();
    bases.dedup();
    for host in &bases {
        if let Some((key, inside)) = own.iter().find(|(_, path)| path.starts_with(host)) {
            return Err(wrong("ceilings.filesystem_scope")(&format_args!(
                "lets guests into `{}`, where the executor keeps `{}` (`{key}`): move one of the two",
                host.display(),
                inside.display()
            )));
        }
        // A guest that may change the outer folder could put something else in the place of the inner.
        if let Some(outer) = bases.iter().find(|outer| *outer != host && host.starts_with(outer)) {
            return Err(wrong("ceilings.filesystem_scope")(&format_args!(
                "lets guests into `{}` and, by another way, into `{}` inside it: keep the two apart",
                outer.display(),
                host.display()
            )));
        }
    }
    Ok(())
}

fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Two for each core, so that one is made while another is used, in an eighth of memory at most.
fn default_waiting() -> u32 {
    default_concurrent().div_ceil(8)
}

/// Memory for messages and answers, beside the output of runs: a sixty-fourth of the machine's, but at least 64 MB and
/// at most 128 MB.
fn default_memory_mb() -> u64 {
    (machine_memory() >> 26).clamp(64, 128)
}

/// Bytes of memory that the machine has.
fn machine_memory() -> u64 {
    sysinfo::System::new().map_or(0, |mut system| {
        system.refresh_memory();
        system.total_memory()
    })
}

/// Sixteen for each core, but no more than the machine has room for at 64 MB each.
fn default_concurrent() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let room = machine_memory() >> 26;
    let at_once = u64::try_from(cores.saturating_mul(16)).unwrap_or(u64::MAX).min(room.max(1));
    u32::try_from(at_once).unwrap_or(u32::MAX)
}

#[allow(
    clippy::disallowed_methods,
    reason = "this is the configuration, the one place that reads the environment"
)]
fn default_folder(variable: &str, at_home: &str) -> Option<PathBuf> {
    let folder = |name| std::env::var(name).ok().filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = folder(variable).or_else(|| folder("HOME").map(|home| home.join(at_home)));
    base.map(|base| base.join("a2g-executor"))
}

/// The line on which a dotted key stands for the nth time, from 0. The file was parsed already, so
/// this only has to find it.
fn line_of(text: &str, key: &str, nth: usize) -> Option<usize> {
    let (table, last) = key.split_once('.')?;
    let mut here = "";
    text.lines()
        .enumerate()
        .filter(|(_, line)| {
            let line = line.trim();
            if let Some(name) = line.strip_prefix('[') {
                here = name.trim_matches(['[', ']', ' ']);
                // A table can be the value itself.
                return here == key;
            }
            let named = line.split('=').next().unwrap_or_default().trim();
            (here == table && named == last) || named == key
        })
        .nth(nth)
        .map(|(index, _)| index + 1)
}

#[cfg(test)]
mod tests;
