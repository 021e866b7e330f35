//! The form of the stored texts in journals of format 1.
//!
//! Every type is the twin of the type that its `remote` names. The names of a twin's members and variants, or those in
//! `rename`, are the names on the disk and never change.

#![allow(missing_docs, reason = "a twin has the members of a documented type")]

use super::budgets;
use crate::ident::{AgentDid, IntentId, SecretName, SignerName, ToolName};
use crate::json::JsonText;
use crate::limit::{LIMITS, Quantity};
use crate::memory::Charge;
use crate::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use crate::session::SessionHandle;
use crate::{call, durability, grant, limit, outcome, session, tool, verdict};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;
use time::OffsetDateTime;

/// A module for `#[serde(with)]` that stores an optional value of a type that has a twin.
#[macro_export]
macro_rules! optional_twin {
    ($vis:vis $module:ident, $type:ty, $twin:literal) => {
        #[allow(unreachable_pub, reason = "the visibility of the module decides")]
        $vis mod $module {
            use super::*;
            use serde::{Deserializer, Serializer};

            #[derive(Serialize)]
            struct Written<'a>(#[serde(with = $twin)] &'a $type);

            #[derive(Deserialize)]
            struct Read(#[serde(with = $twin)] $type);

            pub fn serialize<S: Serializer>(value: &Option<$type>, to: S) -> Result<S::Ok, S::Error> {
                value.as_ref().map(Written).serialize(to)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<$type>, D::Error> {
                Ok(Option::deserialize(from)?.map(|Read(value)| value))
            }
        }
    };
}

/// A module for `#[serde(with)]` that stores a list of values of a type that has a twin.
macro_rules! list {
    ($vis:vis $module:ident, $type:ty, $twin:literal) => {
        #[allow(unreachable_pub, reason = "the visibility of the module decides")]
        $vis mod $module {
            use super::*;
            use serde::{Deserializer, Serializer};

            #[derive(Serialize)]
            struct Written<'a>(#[serde(with = $twin)] &'a $type);

            #[derive(Deserialize)]
            struct Read(#[serde(with = $twin)] $type);

            pub fn serialize<S: Serializer>(values: &[$type], to: S) -> Result<S::Ok, S::Error> {
                to.collect_seq(values.iter().map(Written))
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<$type>, D::Error> {
                let values = Vec::deserialize(from)?;
                Ok(values.into_iter().map(|Read(value)| value).collect())
            }
        }
    };
}

optional_twin!(optional_call_limits, grant::CallSummary, "CallLimits");
optional_twin!(optional_calls, outcome::CallUsage, "CallUsage");
optional_twin!(optional_decision, verdict::Decision, "Decision");
optional_twin!(optional_layer, limit::Layer, "Layer");
optional_twin!(pub optional_manifest, verdict::Manifest, "Manifest");
optional_twin!(optional_network, outcome::NetworkUsage, "NetworkUsage");
optional_twin!(optional_change_counts, outcome::ChangeCounts, "ChangeCounts");
optional_twin!(optional_changes, outcome::FileChanges, "FileChanges");
optional_twin!(optional_parent, call::ParentRun, "ParentRun");
optional_twin!(optional_progress, outcome::Progress, "Progress");
optional_twin!(optional_rate, limit::Bound<u32>, "Bound");
optional_twin!(optional_risk, verdict::Risk, "Risk");
optional_twin!(optional_session, session::CallSession, "CallSession");
optional_twin!(optional_signature, tool::ToolSignature, "ToolSignature");
optional_twin!(optional_targets, tool::CallTargets, "CallTargets");
optional_twin!(optional_turn, session::SessionTurn, "SessionTurn");
list!(areas, outcome::GrantedArea, "GrantedArea");
list!(artifacts, outcome::Artifact, "Artifact");
list!(byte_ranges, outcome::ChangedRange, "ChangedRange");
list!(call_targets, limit::Bound<tool::CallTargets>, "BoundTargets");
list!(contacts, outcome::Contact, "Contact");
list!(denials, outcome::Denial, "Denial");
list!(pub grants, grant::GrantSummary, "ShownGrant");
list!(host_rules, outcome::HostRule, "HostRule");
list!(log_lines, outcome::LogLine, "LogLine");
list!(nested_calls, outcome::NestedCall, "NestedCall");
list!(observations, verdict::Observation, "Observation");
list!(patterns, limit::Bound<String>, "Bound");
list!(secret_uses, outcome::SecretUse, "SecretUse");
list!(secrets, grant::SecretSummary, "SecretSummary");
list!(shown_changes, outcome::ShownChange, "ShownChange");
list!(shown_requests, outcome::ShownRequest, "ShownRequest");

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::Receipt")]
pub struct Receipt {
    agent: AgentDid,
    intent: IntentId,
    tool: ToolName,
    #[serde(with = "Door")]
    door: call::Door,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approved_by: Option<String>,
    #[serde(default, skip_serializing_if = "durability::Durability::is_default", with = "Durability")]
    durability: durability::Durability,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_parent")]
    parent: Option<call::ParentRun>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_calls")]
    calls: Option<outcome::CallUsage>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_signature")]
    signature: Option<tool::ToolSignature>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_turn")]
    session: Option<session::SessionTurn>,
    #[serde(default, skip_serializing_if = "verdict::Rationale::is_empty", with = "Rationale")]
    rationale: verdict::Rationale,
    #[serde(with = "Outcome")]
    outcome: outcome::Outcome,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "tool::ToolSignature")]
struct ToolSignature {
    signer: SignerName,
    #[serde(with = "as_hexadecimal")]
    package: tool::Digest,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "time::serde::rfc3339::option")]
    expires_at: Option<OffsetDateTime>,
}

/// Stores a digest as 64 hexadecimal digits.
mod as_hexadecimal {
    use crate::tool::Digest;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(digest: &Digest, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(digest)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        Digest::parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "call::ParentRun")]
struct ParentRun {
    intent: IntentId,
    tool: ToolName,
    ordinal: u32,
    depth: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::CallUsage")]
struct CallUsage {
    #[serde(with = "Bound")]
    max_calls: limit::Bound<u32>,
    #[serde(with = "Bound")]
    max_parallel: limit::Bound<u32>,
    count: u32,
    #[serde(with = "nested_calls")]
    calls: Vec<outcome::NestedCall>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::NestedCall")]
struct NestedCall {
    ordinal: u32,
    tool: String,
    intent: IntentId,
    #[serde(with = "optional_decision")]
    decision: Option<verdict::Decision>,
    #[serde(with = "NestedEnd")]
    end: outcome::NestedEnd,
    duration: Duration,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::NestedEnd")]
enum NestedEnd {
    Pending,
    Refused,
    Success,
    Staged,
    Failure,
    Timeout,
    Aborted,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "durability::Durability")]
enum Durability {
    #[serde(rename = "power-loss")]
    PowerLoss,
    #[serde(rename = "process-crash")]
    ProcessCrash,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::Outcome")]
struct Outcome {
    #[serde(with = "End")]
    end: outcome::End,
    #[serde(with = "Output")]
    output: outcome::RunOutput,
    #[serde(with = "Metrics")]
    metrics: outcome::RunMetrics,
    #[serde(with = "Usage")]
    usage: outcome::Usage,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::End")]
enum End {
    Returned(JsonText),
    Staged(JsonText),
    ToolError { code: String, message: String, detail: Option<Value> },
    Exited { code: i32, stderr_tail: String },
    ResultNotJson,
    ResultInvalid { pointer: String, message: String },
    Trapped(String),
    NotStarted(String),
    Crashed(String),
    NotCommitted(String),
    LeftToOperator(String),
    LimitReached(#[serde(deserialize_with = "limit::Limit::deserialize_ending")] limit::Limit),
    Aborted(#[serde(with = "AbortReason")] outcome::AbortReason),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::AbortReason")]
pub enum AbortReason {
    Cancelled,
    Revoked,
    Shutdown,
    Lost,
    ParentEnded,
    Stopped,
    LeaseLost,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::RunOutput")]
struct Output {
    #[serde(with = "log_lines")]
    logs: Vec<outcome::LogLine>,
    #[serde(with = "optional_progress")]
    progress: Option<outcome::Progress>,
    #[serde(with = "artifacts")]
    artifacts: Vec<outcome::Artifact>,
    truncated: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::LogLine")]
pub struct LogLine {
    #[serde(with = "LogLevel")]
    level: outcome::LogLevel,
    message: String,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::LogLevel")]
enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::Progress")]
pub struct Progress {
    percent: Option<f32>,
    message: String,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::Artifact")]
pub struct Artifact {
    name: String,
    mime: String,
    #[serde(with = "outcome::as_base64")]
    content: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::RunMetrics")]
struct Metrics {
    wall: Duration,
    cpu: Duration,
    peak_memory_bytes: u64,
    output_bytes: u64,
    peak_resident_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    earlier_runs: u32,
}

/// `true` for a number that a record leaves out.
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::Usage")]
struct Usage {
    #[serde(with = "Bound")]
    memory: limit::Bound<MemoryLimit>,
    #[serde(with = "Bound")]
    cpu: limit::Bound<CpuPercent>,
    #[serde(with = "Bound")]
    timeout: limit::Bound<Timeout>,
    #[serde(with = "Bound")]
    output: limit::Bound<OutputLimit>,
    #[serde(with = "areas")]
    filesystem: Vec<outcome::GrantedArea>,
    #[serde(with = "patterns")]
    blocked: Vec<limit::Bound<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    missing_roots: Vec<String>,
    #[serde(with = "optional_layer")]
    filesystem_emptied_by: Option<limit::Layer>,
    #[serde(default = "direct", skip_serializing_if = "is_direct", with = "BoundEffects")]
    effects: limit::Bound<limit::FileEffects>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_changes")]
    changes: Option<outcome::FileChanges>,
    #[serde(with = "budgets")]
    budgets: limit::Budgets,
    #[serde(with = "budgets::spent")]
    spent: Option<limit::BudgetUsage>,
    #[serde(with = "Bound")]
    network: limit::Bound<bool>,
    #[serde(with = "optional_network")]
    network_used: Option<outcome::NetworkUsage>,
    #[serde(with = "denials")]
    denied: Vec<outcome::Denial>,
    denied_truncated: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start_memory_bytes: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::FileChanges")]
struct FileChanges {
    count: u64,
    #[serde(with = "as_hexadecimal")]
    digest: tool::Digest,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_change_counts")]
    counts: Option<outcome::ChangeCounts>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "shown_changes")]
    shown: Vec<outcome::ShownChange>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "shown_requests")]
    requests: Vec<outcome::ShownRequest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decisions: Option<IntentId>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::ShownRequest")]
struct ShownRequest {
    method: String,
    url: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    fields: Vec<String>,
    body_bytes: u64,
    #[serde(with = "as_hexadecimal")]
    body_digest: tool::Digest,
    // Never stored.
    #[serde(skip)]
    body: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::ChangeCounts")]
struct ChangeCounts {
    deleted: u64,
    renamed: u64,
    emptied: u64,
    changed: u64,
    attributes: u64,
    created: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::ShownChange")]
struct ShownChange {
    #[serde(with = "ChangeWord")]
    kind: outcome::ChangeWord,
    #[serde(with = "EntryWord")]
    entry: outcome::EntryWord,
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes_before: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes_after: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode_before: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode_after: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    diff: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "byte_ranges")]
    ranges: Vec<outcome::ChangedRange>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_diff_cut: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::ChangeWord")]
enum ChangeWord {
    Deleted,
    Renamed,
    Created,
    Changed,
    Attributes,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::EntryWord")]
enum EntryWord {
    File,
    Folder,
    Link,
    Other,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::ChangedRange")]
struct ChangedRange {
    start: u64,
    old_bytes: u64,
    new_bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "limit::Bound")]
struct Bound<T> {
    value: T,
    #[serde(with = "Layer")]
    layer: limit::Layer,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "limit::Layer")]
pub(super) enum Layer {
    Verdict,
    Operator,
    Condition,
    StandingPolicy,
    Tool,
    Executor,
    Caller,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::GrantedArea")]
struct GrantedArea {
    path: String,
    pattern: String,
    #[serde(with = "BoundAccess")]
    access: limit::Bound<limit::Access>,
    #[serde(with = "Layer")]
    set_by: limit::Layer,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "limit::Bound<limit::Access>")]
struct BoundAccess {
    #[serde(with = "Access")]
    value: limit::Access,
    #[serde(with = "Layer")]
    layer: limit::Layer,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "limit::Access")]
enum Access {
    ReadOnly,
    ReadWrite,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "limit::Bound<limit::FileEffects>")]
struct BoundEffects {
    #[serde(with = "FileEffects")]
    value: limit::FileEffects,
    #[serde(with = "Layer")]
    layer: limit::Layer,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "limit::FileEffects")]
enum FileEffects {
    Direct,
    Atomic,
    Staged,
}

/// The effects of a record that does not name them: no layer has set narrower ones than the executor's own.
fn direct() -> limit::Bound<limit::FileEffects> {
    limit::Bound { value: limit::FileEffects::Direct, layer: limit::Layer::Executor }
}

/// `true` for the effects that a record leaves out.
fn is_direct(effects: &limit::Bound<limit::FileEffects>) -> bool {
    *effects == direct()
}

// A member added by a later version may be a limit, so such a record is refused rather than read without it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "grant::GrantSummary", deny_unknown_fields)]
struct ShownGrant {
    #[serde(getter = "granted")]
    memory: Granted<MemoryLimit>,
    #[serde(getter = "granted")]
    cpu: Granted<CpuPercent>,
    #[serde(getter = "granted")]
    timeout: Granted<Timeout>,
    #[serde(getter = "granted")]
    output: Granted<OutputLimit>,
    /// The counted amounts of the other limits that the person approved.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "budgets::deserialize_unique",
        getter = "other_granted"
    )]
    limits: BTreeMap<limit::Limit, Granted<u64>>,
    #[serde(with = "Bound")]
    network: limit::Bound<bool>,
    #[serde(with = "host_rules")]
    allowed_hosts: Vec<outcome::HostRule>,
    #[serde(with = "host_rules")]
    blocked_hosts: Vec<outcome::HostRule>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "patterns")]
    allowed_requests: Vec<limit::Bound<String>>,
    #[serde(with = "optional_rate")]
    requests_per_minute: Option<limit::Bound<u32>>,
    #[serde(with = "patterns")]
    areas: Vec<limit::Bound<String>>,
    #[serde(with = "patterns")]
    blocked_paths: Vec<limit::Bound<String>>,
    #[serde(with = "BoundAccess")]
    access: limit::Bound<limit::Access>,
    #[serde(default = "direct", skip_serializing_if = "is_direct", with = "BoundEffects")]
    effects: limit::Bound<limit::FileEffects>,
    #[serde(with = "optional_call_limits")]
    calls: Option<grant::CallSummary>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "secrets")]
    secrets: Vec<grant::SecretSummary>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "grant::SecretSummary", deny_unknown_fields)]
struct SecretSummary {
    name: SecretName,
    place: String,
    requests: Vec<String>,
    max_uses: u32,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_layer")]
    withheld_by: Option<limit::Layer>,
}

#[derive(Serialize, Deserialize)]
#[serde(bound(serialize = "T: Serialize", deserialize = "T: Deserialize<'de>"))]
struct Granted<T>(#[serde(with = "Bound")] limit::Bound<T>);

/// The limits that have members of their own in a stored grant and in a stored manifest. A grant has the output too.
const NAMED: [limit::Limit; 3] = [limit::Limit::Memory, limit::Limit::Cpu, limit::Limit::Time];

fn granted<Q: Quantity>(grant: &grant::GrantSummary) -> Granted<Q> {
    Granted(grant.limits.quantity())
}

fn other_granted(grant: &grant::GrantSummary) -> BTreeMap<limit::Limit, Granted<u64>> {
    let is_named = |kind: limit::Limit| kind == limit::Limit::Output || NAMED.contains(&kind);
    let others = LIMITS.iter().filter(|row| row.is_approved() && !is_named(row.limit));
    others.map(|row| (row.limit, Granted(grant.limits[row.limit]))).collect()
}

impl From<ShownGrant> for grant::GrantSummary {
    fn from(stored: ShownGrant) -> Self {
        let ShownGrant {
            memory,
            cpu,
            timeout,
            output,
            limits,
            network,
            allowed_hosts,
            blocked_hosts,
            allowed_requests,
            requests_per_minute,
            areas,
            blocked_paths,
            access,
            effects,
            calls,
            secrets,
        } = stored;
        // A limit that the person was not shown allows nothing.
        let not_shown = limit::Bound { value: 0, layer: limit::Layer::Executor };
        let other = |kind: limit::Limit| limits.get(&kind).map_or(not_shown, |Granted(amount)| *amount);
        let others = grant::approved_limits(other);
        Self {
            limits: others.with(memory.0).with(cpu.0).with(timeout.0).with(output.0),
            network,
            allowed_hosts,
            blocked_hosts,
            allowed_requests,
            requests_per_minute,
            areas,
            blocked_paths,
            access,
            effects,
            calls,
            secrets,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "grant::CallSummary", deny_unknown_fields)]
struct CallLimits {
    #[serde(with = "call_targets")]
    targets: Vec<limit::Bound<tool::CallTargets>>,
    #[serde(with = "Bound")]
    max_calls: limit::Bound<u32>,
    #[serde(with = "Bound")]
    max_parallel: limit::Bound<u32>,
    max_depth: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "limit::Bound<tool::CallTargets>")]
struct BoundTargets {
    #[serde(with = "CallTargets")]
    value: tool::CallTargets,
    #[serde(with = "Layer")]
    layer: limit::Layer,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "tool::CallTargets")]
enum CallTargets {
    All,
    Named(BTreeSet<ToolName>),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::NetworkUsage")]
struct NetworkUsage {
    #[serde(with = "NetworkBudgets")]
    budgets: limit::NetworkBudgets,
    #[serde(with = "host_rules")]
    allowed: Vec<outcome::HostRule>,
    #[serde(with = "host_rules")]
    blocked: Vec<outcome::HostRule>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "patterns")]
    allowed_requests: Vec<limit::Bound<String>>,
    #[serde(with = "optional_rate")]
    requests_per_minute: Option<limit::Bound<u32>>,
    requests: u32,
    connections: u32,
    sent_bytes: u64,
    received_bytes: u64,
    #[serde(with = "contacts")]
    contacted: Vec<outcome::Contact>,
    contacted_truncated: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "secret_uses")]
    secrets: Vec<outcome::SecretUse>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remote_server: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::SecretUse")]
struct SecretUse {
    name: SecretName,
    versions: Vec<String>,
    uses: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    without: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    kept_cookies: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    redacted: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    placeholders: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "limit::NetworkBudgets")]
struct NetworkBudgets {
    requests: u32,
    connections: u32,
    sent_bytes: u64,
    received_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    held_requests: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::HostRule")]
struct HostRule {
    pattern: String,
    #[serde(with = "Layer")]
    set_by: limit::Layer,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::Contact")]
struct Contact {
    authority: String,
    address: SocketAddr,
    requests: u32,
    sent_bytes: u64,
    received_bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::Denial")]
struct Denial {
    what: String,
    #[serde(with = "DenialReason")]
    reason: outcome::DenialReason,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_layer")]
    set_by: Option<limit::Layer>,
    count: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outcome::DenialReason")]
enum DenialReason {
    OutsideScope,
    EscapesRoot,
    ReadOnly,
    HostPermissions,
    Link,
    HardLink,
    NetworkOff,
    NotOffered,
    RequestAuthority,
    DomainNotAllowed,
    DomainBlocked,
    IpLiteral,
    Address,
    NotLookedUp,
    Requests,
    RequestRate,
    Connections,
    SentBytes,
    ReceivedBytes,
    Staged,
    HeldRequests,
    RequestNotDeclared,
    SecretWithheld,
    SecretUnavailable,
    SecretUses,
    SecretPlace,
    SecretAnswer,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "verdict::Verdict")]
pub struct Verdict {
    #[serde(with = "Decision")]
    decision: verdict::Decision,
    intent: IntentId,
    #[serde(with = "optional_risk")]
    risk: Option<verdict::Risk>,
    #[serde(with = "Manifest")]
    manifest: verdict::Manifest,
    conditions: Vec<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    expires_at: Option<OffsetDateTime>,
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "verdict::Rationale::is_empty", with = "Rationale")]
    rationale: verdict::Rationale,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "verdict::Rationale")]
struct Rationale {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    decided_by: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "observations")]
    observed: Vec<verdict::Observation>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "verdict::Observation")]
struct Observation {
    file: String,
    #[serde(with = "Decision")]
    decision: verdict::Decision,
    decided_by: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "verdict::Decision")]
enum Decision {
    Approved,
    Denied,
    Escalate,
    Conditional,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "verdict::Risk")]
struct Risk {
    score: f64,
    #[serde(with = "RiskLevel")]
    level: verdict::RiskLevel,
    model_score: Option<f64>,
    heuristic_score: Option<f64>,
    threats: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "verdict::RiskLevel")]
enum RiskLevel {
    Low,
    Medium,
    High,
    Critical,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "verdict::Manifest")]
pub struct Manifest {
    #[serde(getter = "claimed")]
    max_memory: Option<MemoryLimit>,
    #[serde(getter = "claimed")]
    max_cpu: Option<CpuPercent>,
    #[serde(getter = "claimed")]
    timeout: Option<Timeout>,
    /// The counted amounts of the other limits that the manifest sets.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "budgets::deserialize_unique",
        getter = "other_claimed"
    )]
    limits: BTreeMap<limit::Limit, u64>,
    network_allowed: Option<bool>,
    filesystem_scope: Vec<String>,
}

fn claimed<Q: Quantity>(manifest: &verdict::Manifest) -> Option<Q> {
    manifest.limits.quantity()
}

fn other_claimed(manifest: &verdict::Manifest) -> BTreeMap<limit::Limit, u64> {
    let claimed = manifest.limits.claimed().filter(|(row, _)| !NAMED.contains(&row.limit));
    claimed.map(|(row, amount)| (row.limit, amount)).collect()
}

impl From<Manifest> for verdict::Manifest {
    fn from(stored: Manifest) -> Self {
        let Manifest { max_memory, max_cpu, timeout, limits, network_allowed, filesystem_scope } = stored;
        let named = limit::ClaimedLimits::default().with(max_memory).with(max_cpu).with(timeout);
        let limits = named.narrower(&limits.into_iter().collect());
        Self { limits, network_allowed, filesystem_scope }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "call::Call")]
pub struct Call {
    #[serde(with = "Door")]
    door: call::Door,
    agent: AgentDid,
    intent: IntentId,
    #[serde(skip)]
    is_new: bool,
    tool: ToolName,
    arguments: Map<String, Value>,
    context: Option<Map<String, Value>>,
    caller_timeout: Option<Timeout>,
    #[serde(with = "Priority")]
    priority: call::Priority,
    #[serde(skip)]
    charge: Charge,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_parent")]
    parent: Option<call::ParentRun>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_targets")]
    caller_tools: Option<tool::CallTargets>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_session")]
    session: Option<session::CallSession>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "session::CallSession")]
struct CallSession {
    #[serde(with = "SessionRequest")]
    request: session::SessionRequest,
    caller: String,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "session::SessionRequest")]
enum SessionRequest {
    New,
    Continue(SessionHandle),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "session::SessionTurn")]
struct SessionTurn {
    handle: SessionHandle,
    turn: u32,
    #[serde(with = "SessionState")]
    state: session::SessionState,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "session::SessionState")]
enum SessionState {
    Kept { idle_seconds: u64 },
    Ended(#[serde(with = "SessionEnd")] session::SessionEnd),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "session::SessionEnd")]
enum SessionEnd {
    TurnFailed,
    ProcessEnded,
    Stopped,
    ToolChanged,
    Closed,
    Shutdown,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "call::Door")]
enum Door {
    A2g,
    A2a,
    A2e,
    Mcp,
    Nexus,
    Sovereign,
    Console,
    Cli,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "call::Priority")]
enum Priority {
    Low,
    Normal,
    High,
    Critical,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{ClaimedLimits, Limit};

    #[derive(Serialize, Deserialize)]
    struct Stored(#[serde(with = "Manifest")] verdict::Manifest);

    #[test]
    fn earlier_runs_are_stored_only_if_there_are_any() {
        #[derive(Serialize, Deserialize)]
        struct Stored(#[serde(with = "Metrics")] outcome::RunMetrics);

        for (earlier_runs, stored) in [(0, false), (1, true), (u32::MAX, true)] {
            let metrics = outcome::RunMetrics { earlier_runs, ..outcome::RunMetrics::default() };
            let text = serde_json::to_string(&Stored(metrics)).unwrap();
            assert_eq!(text.contains("earlier_runs"), stored, "{text}");
            assert_eq!(serde_json::from_str::<Stored>(&text).unwrap().0, metrics);
        }
    }

    #[test]
    fn effects_are_stored_unless_they_are_direct() {
        #[derive(Serialize, Deserialize)]
        struct Stored {
            #[serde(default = "direct", skip_serializing_if = "is_direct", with = "BoundEffects")]
            effects: limit::Bound<limit::FileEffects>,
        }

        let atomic = limit::Bound { value: limit::FileEffects::Atomic, layer: limit::Layer::Condition };
        let set = limit::Bound { layer: limit::Layer::Operator, ..direct() };
        for (effects, text) in [
            (direct(), "{}"),
            (atomic, r#"{"effects":{"value":"Atomic","layer":"Condition"}}"#),
            (set, r#"{"effects":{"value":"Direct","layer":"Operator"}}"#),
        ] {
            assert_eq!(serde_json::to_string(&Stored { effects }).unwrap(), text);
            assert_eq!(serde_json::from_str::<Stored>(text).unwrap().effects, effects);
        }
    }

    #[test]
    fn a_manifest_is_stored_with_limits_that_have_no_member_of_their_own() {
        let limits = ClaimedLimits::default().with(MemoryLimit::from_mb(2).ok());
        let named = verdict::Manifest { limits, ..verdict::Manifest::default() };
        let other = verdict::Manifest { limits: limits.with_amount(Limit::Output, Some(5)), ..named.clone() };
        let text = |manifest: &verdict::Manifest| serde_json::to_string(&Stored(manifest.clone())).unwrap();
        assert!(!text(&named).contains("limits"), "{}", text(&named));
        let stored = r#""limits":{"Output":5}"#;
        assert!(text(&other).contains(stored), "{}", text(&other));
        for manifest in [&named, &other] {
            assert_eq!(serde_json::from_str::<Stored>(&text(manifest)).unwrap().0, *manifest);
        }
        for damaged in [r#""limits":{"Output":5,"Output":6}"#, r#""limits":{"Later":5}"#] {
            let text = text(&other).replace(stored, damaged);
            assert!(serde_json::from_str::<Stored>(&text).is_err(), "{text}");
        }
    }
}
