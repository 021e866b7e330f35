//! The messages as they are written: private twins of the vocabulary, in the document's order.
//!
//! They borrow, they are made in [`super::encode`] and [`super::usage`] by taking the vocabulary
//! apart without a rest, and they never leave the door.

use crate::json::JsonText;
use crate::quantity::Timeout;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

#[derive(Serialize)]
pub(super) struct Intent<'a> {
    pub(super) agent_did: &'a str,
    pub(super) intent_id: String,
    pub(super) tool: &'a str,
    pub(super) arguments: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) context: Option<&'a Map<String, Value>>,
}

#[derive(Serialize)]
pub(super) struct Verdict<'a> {
    pub(super) verdict: &'static str,
    pub(super) intent_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) risk_assessment: Option<Risk<'a>>,
    pub(super) capability_manifest: Manifest<'a>,
    pub(super) conditions: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'a str>,
}

#[derive(Serialize)]
pub(super) struct Risk<'a> {
    pub(super) score: f64,
    pub(super) level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model_score: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) heuristic_score: Option<f64>,
    pub(super) threats: &'a [String],
}

#[derive(Serialize)]
pub(super) struct Manifest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_memory_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_cpu_percent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network_allowed: Option<bool>,
    pub(super) filesystem_scope: &'a [String],
}

#[derive(Serialize)]
pub(super) struct ProofClaims<'a> {
    pub(super) iss: &'a str,
    pub(super) aud: &'a str,
    pub(super) sub: &'a str,
    pub(super) jti: &'a str,
    pub(super) iat: i64,
    pub(super) nbf: i64,
    pub(super) exp: i64,
    pub(super) intent_id: String,
    pub(super) tool: &'a str,
    pub(super) arguments_sha256: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_sha256: Option<String>,
    pub(super) verdict: &'a Map<String, Value>,
}

#[derive(Serialize)]
pub(super) struct IntentAnswer<'a> {
    #[serde(flatten)]
    pub(super) verdict: Verdict<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) report: Option<Report<'a>>,
}

#[derive(Serialize)]
pub(super) struct Report<'a> {
    pub(super) agent_did: &'a str,
    pub(super) intent_id: String,
    pub(super) status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<&'a JsonText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_error: Option<ToolError<'a>>,
    pub(super) metrics: Metrics,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) logs: Vec<LogLine<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) artifacts: Vec<Artifact<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) truncated: bool,
    pub(super) usage: Usage<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) durability: Option<&'static str>,
}

#[derive(Serialize)]
pub(super) struct ToolError<'a> {
    pub(super) code: &'a str,
    pub(super) message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<&'a Value>,
}

#[derive(Serialize)]
pub(super) struct Metrics {
    pub(super) duration_ms: u64,
    pub(super) memory_used_mb: u64,
    pub(super) cpu_percent: f64,
}

#[derive(Serialize)]
pub(super) struct LogLine<'a> {
    pub(super) level: &'static str,
    pub(super) message: &'a str,
}

#[derive(Serialize)]
pub(super) struct Artifact<'a> {
    pub(super) name: &'a str,
    pub(super) mime: &'a str,
    pub(super) content: Base64<'a>,
}

/// Bytes that are written as base64 with padding.
pub(super) struct Base64<'a>(pub(super) &'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, writer: S) -> Result<S::Ok, S::Error> {
        let alphabet = &base64::engine::general_purpose::STANDARD;
        writer.collect_str(&base64::display::Base64Display::new(self.0, alphabet))
    }
}

#[derive(Serialize)]
pub(super) struct Usage<'a> {
    pub(super) limits: Limits<'a>,
    /// Who was reached; left out when the run had no network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) contacted: Option<Vec<Contact<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) contacted_truncated: Option<bool>,
    pub(super) denied: Vec<Denied<'a>>,
    pub(super) denied_truncated: bool,
    /// The run's own process; left out when it had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) process: Option<Process>,
}

/// What the kernel counted of the process of a run: the guest's and the executor's own.
#[derive(Debug, Serialize)]
pub(super) struct Process {
    pub(super) peak_resident_mb: u64,
}

#[derive(Serialize)]
pub(super) struct Limits<'a> {
    pub(super) max_memory_mb: Amount<u64, u64>,
    pub(super) max_cpu_percent: Amount<u32, f64>,
    pub(super) timeout_seconds: Amount<Timeout, f64>,
    pub(super) max_output_bytes: Amount<u64, u64>,
    pub(super) max_written_mb: Amount<u64, Option<u64>>,
    pub(super) max_created: Amount<u64, Option<u64>>,
    pub(super) max_random_bytes: Amount<u64, Option<u64>>,
    pub(super) max_directory_entries: Amount<u64, Option<u64>>,
    /// Left out where none is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_fuel: Option<Amount<u64, Option<u64>>>,
    pub(super) max_handles: AtOnce,
    pub(super) max_subscriptions: AtOnce,
    pub(super) network_allowed: Network,
    /// What a run with a network could do; left out when it had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<NetworkLimits<'a>>,
    pub(super) filesystem_scope: Filesystem<'a>,
}

/// A limit beside what was used of it, both in the limit's unit.
#[derive(Serialize)]
pub(super) struct Amount<G, U> {
    pub(super) granted: G,
    pub(super) used: U,
    /// What was left, never below zero.
    pub(super) slack: U,
    pub(super) set_by: &'static str,
}

/// A limit on how much there may be at one moment, of which nothing is used up.
#[derive(Serialize)]
pub(super) struct AtOnce {
    pub(super) granted: u64,
    pub(super) set_by: &'static str,
}

#[derive(Serialize)]
pub(super) struct Network {
    pub(super) granted: bool,
    pub(super) linked: bool,
    pub(super) set_by: &'static str,
}

#[derive(Serialize)]
pub(super) struct NetworkLimits<'a> {
    pub(super) allowed_domains: Vec<HostRule<'a>>,
    pub(super) blocked_domains: Vec<HostRule<'a>>,
    pub(super) max_requests: Amount<u64, u64>,
    pub(super) max_connections: Amount<u64, u64>,
    pub(super) max_sent_bytes: Amount<u64, u64>,
    pub(super) max_received_bytes: Amount<u64, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_requests_per_minute: Option<Rate>,
}

#[derive(Serialize)]
pub(super) struct HostRule<'a> {
    pub(super) pattern: &'a str,
    pub(super) set_by: &'static str,
}

/// A limit over all runs of an agent, of which no single run uses up anything.
#[derive(Serialize)]
pub(super) struct Rate {
    pub(super) granted: u32,
    pub(super) set_by: &'static str,
}

#[derive(Serialize)]
pub(super) struct Contact<'a> {
    pub(super) authority: &'a str,
    pub(super) address: String,
    pub(super) requests: u32,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
}

#[derive(Serialize)]
pub(super) struct Filesystem<'a> {
    /// The patterns in force.
    pub(super) granted: Vec<&'a str>,
    /// Each of them, with the folder that it lies in.
    pub(super) trees: Vec<Tree<'a>>,
    /// What is taken out of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) blocked: Vec<Blocked<'a>>,
    /// The layer that left nothing, when nothing is granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) set_by: Option<&'static str>,
}

#[derive(Serialize)]
pub(super) struct Blocked<'a> {
    pub(super) pattern: &'a str,
    pub(super) set_by: &'static str,
}

#[derive(Serialize)]
pub(super) struct Tree<'a> {
    pub(super) path: &'a str,
    pub(super) pattern: &'a str,
    pub(super) access: &'static str,
    pub(super) access_set_by: &'static str,
    pub(super) set_by: &'static str,
}

#[derive(Serialize)]
pub(super) struct Denied<'a> {
    pub(super) what: &'a str,
    pub(super) reason: &'static str,
    pub(super) count: u64,
}

#[derive(Serialize)]
pub(super) struct Registration<'a> {
    pub(super) agent_did: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) public_key: Option<&'a str>,
    pub(super) capabilities_requested: &'a [String],
    pub(super) metadata: Metadata,
}

#[derive(Serialize)]
pub(super) struct Metadata {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) runtime: &'static str,
}

#[derive(Serialize)]
pub(super) struct Accepted {
    pub(super) accepted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) aborted: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) executors: Option<usize>,
}

#[derive(Serialize)]
pub(super) struct Tool<'a> {
    pub(super) name: &'a str,
    pub(super) version: &'a str,
    pub(super) description: &'a str,
    pub(super) contract: &'static str,
    pub(super) digest: String,
    pub(super) arguments_schema: &'a Value,
    pub(super) capabilities: Declared,
}

/// What a tool declares; an absent number is left to the other layers.
#[derive(Serialize)]
pub(super) struct Declared {
    pub(super) filesystem: &'static str,
    pub(super) network: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_memory_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_cpu_percent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_seconds: Option<u64>,
}

#[derive(Serialize)]
pub(super) struct Policy<'a> {
    pub(super) agent_did: &'a str,
    pub(super) version: &'a str,
    pub(super) capabilities: Capabilities<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) constitution_hash: Option<&'a str>,
}

#[derive(Serialize)]
pub(super) struct Capabilities<'a> {
    pub(super) tools: BTreeMap<&'a str, ToolRule<'a>>,
    pub(super) network: NetworkRule<'a>,
    pub(super) resources: ResourceRule,
}

#[derive(Serialize)]
pub(super) struct ToolRule<'a> {
    pub(super) allowed: bool,
    pub(super) constraints: Constraints<'a>,
}

#[derive(Serialize)]
pub(super) struct Constraints<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) paths: Option<&'a [String]>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(super) blocked_paths: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(super) blocked_patterns: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_size_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_seconds: Option<u64>,
}

#[derive(Serialize)]
pub(super) struct NetworkRule<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) allowed_domains: Option<&'a [String]>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(super) blocked_domains: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_requests_per_minute: Option<u64>,
}

#[derive(Serialize)]
pub(super) struct ResourceRule {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_memory_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_cpu_percent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_disk_mb: Option<u64>,
}
