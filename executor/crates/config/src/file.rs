//! The configuration file as written. `docs/configuration.md` describes every key.

use super::features::has_door;
use a2g_http::ConnectionLimits;
use a2g_journal::{ArgumentStorage, JournalLimits};
use a2g_types::call::Door;
use a2g_types::durability::{Durability, SyncedStarts};
use a2g_types::limit::{FileEffects, KeyNumbers, LIMITS, LimitRow};
use a2g_types::limit_keys::{self, LimitKeys};
use a2g_types::quantity::BYTES_PER_MB;
use a2g_wire::strict_json::JsonBounds;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::LazyLock;

/// The default of `server.listen`.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:7420";

/// Declares a section: each of its keys with the type and the default of the value.
macro_rules! section {
    ($(#[$meta:meta])* $name:ident { $($key:ident: $type:ty = $default:expr,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(super) struct $name {
            $(pub(super) $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }
    };
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) server: Server,
    pub(super) executor: Executor,
    pub(super) governor: Governor,
    pub(super) trust: Trust,
    pub(super) catalog: Catalog,
    pub(super) journal: Journal,
    pub(super) effects: Effects,
    pub(super) sessions: Sessions,
    pub(super) ceilings: Ceilings,
    pub(super) network: Network,
    pub(super) secret: Vec<Secret>,
    pub(super) mount: Vec<Mount>,
    pub(super) doors: Doors,
    pub(super) console: ConsoleSection,
    pub(super) approvals: Vec<ApprovalRuleSection>,
    pub(super) fleet: Option<Fleet>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Secret {
    pub(super) name: String,
    pub(super) file: Option<PathBuf>,
    pub(super) env: Option<String>,
    pub(super) command: Option<Vec<String>>,
    pub(super) refresh_seconds: Option<u64>,
    pub(super) oauth: Option<OAuth>,
    pub(super) tools: Vec<String>,
    pub(super) agents: Option<Vec<String>>,
    pub(super) requests: Vec<String>,
    pub(super) place: String,
    pub(super) scheme: Option<String>,
    pub(super) placeholder_env: Option<String>,
    #[serde(default = "default_max_uses")]
    pub(super) max_uses: u64,
    #[serde(default = "default_keep_cookies")]
    pub(super) keep_cookies: bool,
}

/// `oauth` of a `[[secret]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OAuth {
    pub(super) token_url: String,
    pub(super) client_id: String,
    pub(super) client_secret_file: PathBuf,
    pub(super) scope: Option<String>,
    #[serde(default)]
    pub(super) auth: ClientAuth,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ClientAuth {
    #[default]
    Basic,
    Body,
}

fn default_max_uses() -> u64 {
    100
}

fn default_keep_cookies() -> bool {
    true
}

section!(Effects {
    folder: Option<PathBuf> = None,
    decide_within_hours: u32 = 24,
    keep_days: u32 = 1,
    max_mb: u64 = 4096,
});

section!(Sessions {
    max: u64 = 16,
    max_per_agent: u64 = 4,
    idle_seconds: u64 = 600,
    max_memory_mb: u64 = 2048,
});

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
    pub(super) a2a: A2a,
    pub(super) a2e: A2e,
    pub(super) mcp: Mcp,
    pub(super) nexus: Nexus,
    pub(super) sovereign: Sovereign,
}

section!(Mcp {
    enabled: bool = has_door(Door::Mcp),
    open_to: DoorAccess = DoorAccess::Callers,
    agent: Option<String> = None,
    listing: Listing = Listing::Tools,
    max_sessions: u64 = 256,
    max_sessions_per_caller: u64 = 64,
    idle_seconds: u64 = 1800,
});

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Listing {
    Tools,
    Code,
}

section!(
    /// The Nexus door, which is enabled by setting `key_file`.
    Nexus {
        open_to: DoorAccess = DoorAccess::Callers,
        id: Option<String> = None,
        key_file: Option<PathBuf> = None,
        signature_scope: SignatureScope = SignatureScope::Header,
        heartbeat_seconds: u64 = 30,
    }
);

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SignatureScope {
    Header,
    Full,
}

section!(A2e {
    enabled: bool = has_door(Door::A2e),
    open_to: DoorAccess = DoorAccess::Callers,
    agent: Option<String> = None,
    max_parallel: u64 = 4,
    max_sessions: u64 = 128,
    max_sessions_per_caller: u64 = 32,
    reconnect_seconds: u64 = 15,
    idle_seconds: u64 = 300,
});

section!(A2a {
    enabled: bool = has_door(Door::A2a),
    open_to: DoorAccess = DoorAccess::Callers,
    agent: Option<String> = None,
    dialect: Dialect = Dialect::A2a,
    requests_per_minute: u64 = 60,
    requests_per_hour: u64 = 1000,
    requests_at_once: u64 = 10,
    webhook_domains: Vec<String> = Vec::new(),
});

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Dialect {
    A2a,
    Acp,
}

section!(Sovereign {
    enabled: bool = has_door(Door::Sovereign),
    open_to: DoorAccess = DoorAccess::Callers,
    agent: Option<String> = None,
});

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DoorAccess {
    Callers,
    Everybody,
}

section!(Server {
    listen: String = DEFAULT_LISTEN.to_owned(),
    max_body_bytes: u64 = JsonBounds::default().max_bytes as u64,
    max_json_depth: u64 = JsonBounds::default().max_depth as u64,
    allowed_hosts: Vec<String> = Vec::new(),
    allowed_origins: Vec<String> = Vec::new(),
    callers: Option<PathBuf> = None,
    issuer: Vec<Issuer> = Vec::new(),
    max_connections: u64 = ConnectionLimits::default().max_connections as u64,
    max_memory_mb: Option<u64> = None,
    request_seconds: u64 = ConnectionLimits::default().request_timeout.as_secs(),
    unauthenticated_per_minute: u64 = ConnectionLimits::default().unauthenticated_per_minute.get().into(),
    tls: Option<Tls> = None,
});

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

section!(Executor {
    did: String = "did:a2g:executor:1.0:local".to_owned(),
    isolation: Isolation = Isolation::Process,
    containment: Option<Containment> = None,
    run_as: Option<String> = None,
    inline_tools: Vec<String> = Vec::new(),
    waiting: Option<u64> = None,
    renew_runs: u64 = 5000,
    renew_seconds: u64 = 900,
    fresh_layout: bool = false,
    concurrent: Option<u64> = None,
    concurrent_per_agent: Option<u64> = None,
    queue: u64 = 1024,
    queue_per_agent: Option<u64> = None,
    drain_seconds: Option<u64> = None,
    reuse: Reuse = Reuse::default(),
});

section!(
    /// `[executor.reuse]`.
    Reuse {
        tools: Vec<String> = Vec::new(),
        runs: u64 = 100,
        idle_ms: u64 = 500,
    }
);

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

section!(Governor {
    url: Option<String> = None,
    policies: Option<PathBuf> = None,
    observe: Vec<String> = Vec::new(),
    reports: Option<PathBuf> = None,
    heartbeat_seconds: u64 = 30,
    conditions_from: Option<f64> = None,
    escalate_from: Option<f64> = None,
    deny_from: Option<f64> = None,
});

section!(Trust {
    keys: Option<PathBuf> = None,
    max_proof_seconds: u64 = 3600,
    intent_signature: Option<IntentSignature> = None,
});

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

section!(Catalog {
    tools: PathBuf = "tools".into(),
    cache: Option<PathBuf> = None,
    definitions: Option<PathBuf> = None,
    compile_seconds: u64 = 60,
    compile_memory_mb: u64 = 1024,
    exceptions: bool = false,
    remote: Vec<RemoteTool> = Vec::new(),
    trust: Option<CatalogTrust> = None,
});

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

section!(Journal {
    path: Option<PathBuf> = None,
    max_undelivered: u64 = 10_000,
    key: Option<PathBuf> = None,
    durability: Durability = Durability::default(),
    synced_starts: SyncedStarts = SyncedStarts::default(),
    arguments: Arguments = Arguments::default(),
    max_arguments_bytes: u64 = ArgumentStorage::DEFAULT_MAX_BYTES,
    never_store: Vec<String> = Vec::new(),
    max_mb_per_agent_hour: u64 = JournalLimits::DEFAULT_AGENT_SHARE / BYTES_PER_MB,
    keep_days: Option<u64> = None,
    max_gb: Option<f64> = None,
});

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Arguments {
    #[default]
    Full,
    Hash,
}

/// `[ceilings]`: a key for each row of the table of limits, and six more.
#[derive(Debug, Default)]
pub(super) struct Ceilings {
    /// The numbers that the file sets.
    pub(super) numbers: KeyNumbers,
    pub(super) hard_links: bool,
    pub(super) network_allowed: bool,
    pub(super) read_only: bool,
    pub(super) effects: FileEffects,
    pub(super) held_requests: u64,
    /// `None`: the default, which depends on where the executor's own files are.
    pub(super) filesystem_scope: Option<Vec<String>>,
}

/// The keys of [`Ceilings`], in the order in which a message lists them.
static CEILING_KEYS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let numbers = LIMITS.iter().map(LimitRow::key);
    let others =
        ["hard_links", "network_allowed", "read_only", "effects", "held_requests", "filesystem_scope"];
    numbers.chain(others).collect()
});

impl LimitKeys for Ceilings {
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
            "effects" => self.effects = members.next_value()?,
            "held_requests" => self.held_requests = members.next_value()?,
            _filesystem_scope => self.filesystem_scope = Some(members.next_value()?),
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Ceilings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        limit_keys::deserialize(from)
    }
}

section!(Network {
    allowed_domains: Vec<String> = Vec::new(),
    blocked_domains: Vec<String> = Vec::new(),
    allowed_addresses: Vec<String> = Vec::new(),
    hosts: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new(),
    tools: BTreeMap<String, Vec<String>> = BTreeMap::new(),
    ca_file: Option<PathBuf> = None,
    max_requests: u64 = 100,
    max_connections: u64 = 8,
    max_sent_bytes: u64 = 16 << 20,
    max_received_bytes: u64 = 64 << 20,
    connect_seconds: u64 = 10,
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mount {
    pub(super) guest: String,
    pub(super) host: PathBuf,
}
