//! The configuration file as written. `docs/configuration.md` describes every key.

use a2g_types::durability::Durability;
use a2g_types::limit::{KeyNumbers, LIMITS, LimitRow};
use a2g_types::limit_table::{self, LimitTable};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::LazyLock;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) server: Server,
    pub(super) executor: Executor,
    pub(super) governor: Governor,
    pub(super) trust: Trust,
    pub(super) catalog: Catalog,
    pub(super) journal: Journal,
    pub(super) ceilings: Ceilings,
    pub(super) network: Network,
    pub(super) mount: Vec<Mount>,
    pub(super) doors: Doors,
    pub(super) console: ConsoleSection,
    pub(super) approvals: Vec<ApprovalRuleSection>,
    pub(super) fleet: Option<Fleet>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fleet {
    pub(super) name: String,
    pub(super) node: Option<String>,
    pub(super) servers: Vec<String>,
    pub(super) key_file: PathBuf,
    pub(super) credentials: Option<PathBuf>,
    pub(super) nkey_file: Option<PathBuf>,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) replicas: Option<u64>,
    #[serde(default = "default_keep_hours")]
    pub(super) keep_hours: u64,
    #[serde(default = "default_pass_calls")]
    pub(super) pass_calls: bool,
}

fn default_pass_calls() -> bool {
    true
}

/// A week.
fn default_keep_hours() -> u64 {
    7 * 24
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ApprovalRuleSection {
    #[serde(default)]
    pub(super) tools: Vec<String>,
    #[serde(default)]
    pub(super) min_risk: f64,
    pub(super) required: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ConsoleSection {
    pub(super) enabled: Option<bool>,
    pub(super) listen: Option<String>,
    pub(super) public_url: Option<String>,
    pub(super) notify: Vec<Notify>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Notify {
    pub(super) url: String,
    pub(super) key_file: PathBuf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Doors {
    pub(super) a2a: A2aDoor,
    pub(super) a2e: A2e,
    pub(super) mcp: Mcp,
    pub(super) nexus: Nexus,
    pub(super) sovereign: Door,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Mcp {
    pub(super) enabled: bool,
    pub(super) open_to: DoorAccess,
    pub(super) agent: Option<String>,
    pub(super) listing: Listing,
    pub(super) max_sessions: u64,
    pub(super) max_sessions_per_caller: u64,
    pub(super) idle_seconds: u64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Listing {
    Tools,
    Code,
}

impl Default for Mcp {
    fn default() -> Self {
        Self {
            enabled: cfg!(feature = "mcp"),
            open_to: DoorAccess::Callers,
            agent: None,
            listing: Listing::Tools,
            max_sessions: 256,
            max_sessions_per_caller: 64,
            idle_seconds: 1800,
        }
    }
}

/// The Nexus door, which is enabled by setting `key_file`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Nexus {
    pub(super) open_to: DoorAccess,
    pub(super) id: Option<String>,
    pub(super) key_file: Option<PathBuf>,
    pub(super) signature_scope: SignatureScope,
    pub(super) heartbeat_seconds: u64,
}

impl Default for Nexus {
    fn default() -> Self {
        Self {
            open_to: DoorAccess::Callers,
            id: None,
            key_file: None,
            signature_scope: SignatureScope::Header,
            heartbeat_seconds: 30,
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SignatureScope {
    Header,
    Full,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct A2e {
    pub(super) enabled: bool,
    pub(super) open_to: DoorAccess,
    pub(super) agent: Option<String>,
    pub(super) max_parallel: u64,
    pub(super) max_sessions: u64,
    pub(super) max_sessions_per_caller: u64,
    pub(super) reconnect_seconds: u64,
    pub(super) idle_seconds: u64,
}

impl Default for A2e {
    fn default() -> Self {
        Self {
            enabled: cfg!(feature = "a2e"),
            open_to: DoorAccess::Callers,
            agent: None,
            max_parallel: 4,
            max_sessions: 128,
            max_sessions_per_caller: 32,
            reconnect_seconds: 15,
            idle_seconds: 300,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct A2aDoor {
    pub(super) enabled: bool,
    pub(super) open_to: DoorAccess,
    pub(super) agent: Option<String>,
    pub(super) dialect: Dialect,
    pub(super) requests_per_minute: u64,
    pub(super) requests_per_hour: u64,
    pub(super) requests_at_once: u64,
    pub(super) webhook_domains: Vec<String>,
}

impl Default for A2aDoor {
    fn default() -> Self {
        Self {
            enabled: cfg!(feature = "a2a"),
            open_to: DoorAccess::Callers,
            agent: None,
            dialect: Dialect::A2a,
            requests_per_minute: 60,
            requests_per_hour: 1000,
            requests_at_once: 10,
            webhook_domains: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Dialect {
    A2a,
    Acp,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Door {
    pub(super) enabled: bool,
    pub(super) open_to: DoorAccess,
    pub(super) agent: Option<String>,
}

impl Default for Door {
    fn default() -> Self {
        Self { enabled: cfg!(feature = "sovereign"), open_to: DoorAccess::Callers, agent: None }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DoorAccess {
    Callers,
    Everybody,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Server {
    pub(super) listen: String,
    pub(super) max_body_bytes: u64,
    pub(super) max_json_depth: u64,
    pub(super) allowed_hosts: Vec<String>,
    pub(super) allowed_origins: Vec<String>,
    pub(super) callers: Option<PathBuf>,
    pub(super) issuer: Vec<Issuer>,
    pub(super) max_connections: u64,
    pub(super) max_memory_mb: Option<u64>,
    pub(super) request_seconds: u64,
    pub(super) unauthenticated_per_minute: u64,
    pub(super) tls: Option<Tls>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Issuer {
    pub(super) issuer: String,
    pub(super) keys: PathBuf,
    pub(super) audience: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) client_ca: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Executor {
    pub(super) did: String,
    pub(super) isolation: Isolation,
    pub(super) containment: Option<Containment>,
    pub(super) run_as: Option<String>,
    pub(super) inline_tools: Vec<String>,
    pub(super) waiting: Option<u64>,
    pub(super) renew_runs: u64,
    pub(super) renew_seconds: u64,
    pub(super) fresh_layout: bool,
    pub(super) concurrent: Option<u64>,
    pub(super) concurrent_per_agent: Option<u64>,
    pub(super) queue: u64,
    pub(super) queue_per_agent: Option<u64>,
    pub(super) drain_seconds: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Containment {
    BestEffort,
    Required,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Isolation {
    Process,
    Inline,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Governor {
    pub(super) url: Option<String>,
    pub(super) policies: Option<PathBuf>,
    pub(super) reports: Option<PathBuf>,
    pub(super) heartbeat_seconds: u64,
    pub(super) conditions_from: Option<f64>,
    pub(super) escalate_from: Option<f64>,
    pub(super) deny_from: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Trust {
    pub(super) keys: Option<PathBuf>,
    pub(super) max_proof_seconds: u64,
    pub(super) intent_signature: Option<IntentSignature>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IntentSignature {
    pub(super) key_file: PathBuf,
    pub(super) key_form: KeyForm,
    pub(super) escape_non_ascii: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KeyForm {
    Ascii,
    Bytes,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Catalog {
    pub(super) tools: PathBuf,
    pub(super) cache: Option<PathBuf>,
    pub(super) definitions: Option<PathBuf>,
    pub(super) compile_seconds: u64,
    pub(super) compile_memory_mb: u64,
    pub(super) remote: Vec<RemoteTool>,
    pub(super) trust: Option<CatalogTrust>,
}

/// One `[[catalog.remote]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoteTool {
    pub(super) tool: String,
    pub(super) name: Option<String>,
}

/// `[catalog.trust]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CatalogTrust {
    pub(super) signer: Vec<Signer>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Signer {
    pub(super) name: String,
    pub(super) key_file: PathBuf,
    #[serde(default = "every_tool")]
    pub(super) tools: Vec<String>,
}

fn every_tool() -> Vec<String> {
    vec!["*".to_owned()]
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Journal {
    pub(super) path: Option<PathBuf>,
    pub(super) max_undelivered: u64,
    pub(super) key: Option<PathBuf>,
    pub(super) durability: Durability,
    pub(super) arguments: Arguments,
    pub(super) max_arguments_bytes: u64,
    pub(super) never_store: Vec<String>,
    pub(super) max_mb_per_agent_hour: u64,
    pub(super) keep_days: Option<u64>,
    pub(super) max_gb: Option<f64>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Arguments {
    #[default]
    Full,
    Hash,
}

/// `[ceilings]`: a key for each row of the table of limits, and four more.
#[derive(Debug, Default)]
pub(super) struct Ceilings {
    /// The numbers that the file sets.
    pub(super) numbers: KeyNumbers,
    pub(super) hard_links: bool,
    pub(super) network_allowed: bool,
    pub(super) read_only: bool,
    /// `None`: the default, which depends on where the executor's own files are.
    pub(super) filesystem_scope: Option<Vec<String>>,
}

/// The keys of [`Ceilings`], in the order in which a message lists them.
static CEILING_KEYS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let numbers = LIMITS.iter().map(LimitRow::key);
    numbers.chain(["hard_links", "network_allowed", "read_only", "filesystem_scope"]).collect()
});

impl LimitTable for Ceilings {
    const NAME: &'static str = "Ceilings";

    fn keys() -> &'static [&'static str] {
        &CEILING_KEYS
    }

    fn numbers(&mut self) -> &mut KeyNumbers {
        &mut self.numbers
    }

    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, members: &mut A) -> Result<(), A::Error> {
        match key {
            "hard_links" => self.hard_links = members.next_value()?,
            "network_allowed" => self.network_allowed = members.next_value()?,
            "read_only" => self.read_only = members.next_value()?,
            _filesystem_scope => self.filesystem_scope = Some(members.next_value()?),
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Ceilings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        limit_table::deserialize(from)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Network {
    pub(super) allowed_domains: Vec<String>,
    pub(super) blocked_domains: Vec<String>,
    pub(super) allowed_addresses: Vec<String>,
    pub(super) hosts: BTreeMap<String, Vec<IpAddr>>,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) max_requests: u64,
    pub(super) max_connections: u64,
    pub(super) max_sent_bytes: u64,
    pub(super) max_received_bytes: u64,
    pub(super) connect_seconds: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mount {
    pub(super) guest: String,
    pub(super) host: PathBuf,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:7420".to_owned(),
            max_body_bytes: 1 << 20,
            max_json_depth: 64,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            callers: None,
            issuer: Vec::new(),
            max_connections: 512,
            max_memory_mb: None,
            request_seconds: 30,
            unauthenticated_per_minute: 6000,
            tls: None,
        }
    }
}

impl Default for Executor {
    fn default() -> Self {
        Self {
            did: "did:a2g:executor:1.0:local".to_owned(),
            isolation: Isolation::Process,
            containment: None,
            run_as: None,
            inline_tools: Vec::new(),
            waiting: None,
            renew_runs: 5000,
            renew_seconds: 900,
            fresh_layout: false,
            concurrent: None,
            concurrent_per_agent: None,
            queue: 1024,
            queue_per_agent: None,
            drain_seconds: None,
        }
    }
}

impl Default for Governor {
    fn default() -> Self {
        Self {
            url: None,
            policies: None,
            reports: None,
            heartbeat_seconds: 30,
            conditions_from: None,
            escalate_from: None,
            deny_from: None,
        }
    }
}

impl Default for Trust {
    fn default() -> Self {
        Self { keys: None, max_proof_seconds: 3600, intent_signature: None }
    }
}

impl Default for Catalog {
    fn default() -> Self {
        Self {
            tools: "tools".into(),
            cache: None,
            definitions: None,
            compile_seconds: 60,
            compile_memory_mb: 1024,
            trust: None,
            remote: Vec::new(),
        }
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            path: None,
            max_undelivered: 10_000,
            key: None,
            durability: Durability::default(),
            arguments: Arguments::default(),
            max_arguments_bytes: 64 << 10,
            never_store: Vec::new(),
            max_mb_per_agent_hour: 4096,
            keep_days: None,
            max_gb: None,
        }
    }
}

impl Default for Network {
    fn default() -> Self {
        Self {
            allowed_domains: Vec::new(),
            blocked_domains: Vec::new(),
            allowed_addresses: Vec::new(),
            hosts: BTreeMap::new(),
            ca_file: None,
            max_requests: 100,
            max_connections: 8,
            max_sent_bytes: 16 << 20,
            max_received_bytes: 64 << 20,
            connect_seconds: 10,
        }
    }
}
