//! The serialized forms of the domain types, with members in the order of the A2G document.
//!
//! [`super::encode`] and [`super::usage`] build them by destructuring the domain types completely. The published
//! schemas ([`super::openrpc`]) are derived from them, so the comments on their members are part of the schemas that
//! clients read.

use super::decode::{MAX_DISK_MB, MAX_REQUESTS_PER_MINUTE, MAX_SIZE_BYTES};
use super::encode::IntentStateName;
use super::limits::{
    InCallConstraints, InManifest, InResources, InRunConstraints, InTool, InToolCalls, LimitMembers,
};
use super::schema::{UpTo, WireName};
use a2g_types::durability::Durability;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::json::JsonText;
use a2g_types::limit::{
    Access, BudgetUsage, Budgets, Consumption, FileEffects, Layer, LimitRow, NetworkBudgets, budget_rows,
};
use a2g_types::outcome::{
    ChangeState, ChangeWord, DecisionAct, DenialReason, EntryWord, LogLevel, NestedEnd, Status,
};
use a2g_types::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use a2g_types::session::SessionEnd;
use a2g_types::tool::{Contract, DeclaredFilesystem};
use a2g_types::verdict::{Decision, RiskLevel};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// The pattern of a session's handle.
pub(super) const HANDLE_PATTERN: &str = "^ses_[0-9a-f]{32}$";
/// The pattern of a request for a session.
pub(super) const SESSION_PATTERN: &str = "^(new|ses_[0-9a-f]{32})$";

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Intent")]
pub(super) struct IntentMessage<'a> {
    pub(super) agent_did: &'a AgentDid,
    pub(super) intent_id: IntentId,
    pub(super) tool: &'a ToolName,
    pub(super) arguments: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) context: Option<&'a Map<String, Value>>,
    /// The session in which the tool shall run: `new`, or the handle of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = SESSION_PATTERN))]
    pub(super) session: Option<String>,
}

// A caller may omit members that this door always writes.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Verdict", extend("required" = ["verdict", "intent_id"]))]
pub(super) struct VerdictMessage<'a> {
    pub(super) verdict: WireName<Decision>,
    pub(super) intent_id: IntentId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) risk_assessment: Option<RiskMessage<'a>>,
    pub(super) capability_manifest: ManifestMessage<'a>,
    pub(super) conditions: &'a [String],
    /// The latest moment at which the tool may start; required except in a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub(super) expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'a str>,
    #[serde(flatten)]
    pub(super) rationale: RationaleMembers<'a>,
}

/// The rules of policies behind a verdict.
#[derive(Serialize, JsonSchema)]
pub(super) struct RationaleMembers<'a> {
    /// The names of the rules that decided, for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) decided_by: Vec<&'a str>,
    /// What policy files that change no outcome would have decided.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) observed: Vec<ObservationMessage<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Observation")]
pub(super) struct ObservationMessage<'a> {
    pub(super) file: &'a str,
    pub(super) decision: WireName<Decision>,
    pub(super) decided_by: &'a [String],
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RiskAssessment", extend("required" = ["score", "level"]))]
pub(super) struct RiskMessage<'a> {
    #[schemars(range(min = 0, max = 1))]
    pub(super) score: f64,
    pub(super) level: WireName<RiskLevel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1))]
    pub(super) model_score: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1))]
    pub(super) heuristic_score: Option<f64>,
    pub(super) threats: &'a [String],
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CapabilityManifest", deny_unknown_fields, extend("required" = []))]
pub(super) struct ManifestMessage<'a> {
    #[serde(flatten)]
    pub(super) limits: LimitMembers<InManifest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network_allowed: Option<bool>,
    pub(super) filesystem_scope: &'a [String],
}

#[derive(Serialize)]
pub(super) struct ProofClaimsMessage<'a> {
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

#[derive(Serialize, JsonSchema)]
pub(super) struct IntentAnswer<'a> {
    #[serde(flatten)]
    pub(super) verdict: VerdictMessage<'a>,
    /// The report, when the tool ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) report: Option<ReportMessage<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Report")]
pub(super) struct ReportMessage<'a> {
    pub(super) agent_did: &'a AgentDid,
    pub(super) intent_id: IntentId,
    pub(super) status: WireName<Status>,
    /// The tool's answer, when it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    pub(super) result: Option<&'a JsonText>,
    /// One sentence, when the tool did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// Present when some file changes may be in force, and an operator has to look.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("const" = true))]
    pub(super) left_to_operator: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_error: Option<ToolErrorMessage<'a>>,
    pub(super) metrics: MetricsMessage,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) logs: Vec<LogLineMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) artifacts: Vec<ArtifactMessage<'a>>,
    /// Present when output was dropped at the output limit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("const" = true))]
    pub(super) truncated: bool,
    pub(super) usage: UsageMessage<'a>,
    /// Present when a power failure can lose the latest entries of the journal, such as this report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) durability: Option<WireName<Durability>>,
    /// The run that made this call; absent for a call from outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parent: Option<ParentMessage<'a>>,
    /// The calls that the run made; absent when it could make none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) calls: Option<CallsMessage<'a>>,
    /// The signature of the tool that ran; absent when the executor demands none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_signature: Option<ToolSignatureMessage<'a>>,
    /// The turn of the session in which the tool ran; absent for a run that keeps nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<SessionMessage>,
    #[serde(flatten)]
    pub(super) rationale: RationaleMembers<'a>,
}

/// A turn of a session.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SessionTurn")]
pub(super) struct SessionMessage {
    /// The handle, for `session` of the next call.
    #[schemars(regex(pattern = HANDLE_PATTERN))]
    pub(super) handle: String,
    /// The number of the turn, from 1.
    #[schemars(range(min = 1))]
    pub(super) turn: u32,
    pub(super) state: SessionStateName,
    /// The time for which the session waits for its next turn; absent when it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idle_seconds: Option<u64>,
    /// The reason for which the session has ended; absent when it is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<WireName<SessionEnd>>,
}

/// The state of a session after a turn.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "SessionState")]
pub(super) enum SessionStateName {
    /// It waits for its next turn.
    Kept,
    /// It has ended.
    Ended,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SessionEnded")]
pub(super) struct SessionEndResult {
    /// `false` if there was no such session.
    pub(super) ended: bool,
}

/// A signature of a tool's package that the executor has verified.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ToolSignature")]
pub(super) struct ToolSignatureMessage<'a> {
    /// The signer, by the name in the executor's configuration.
    pub(super) signer: &'a str,
    /// The digest of the package's manifest.
    #[schemars(regex(pattern = "^sha256:[0-9a-f]{64}$"))]
    pub(super) package: String,
    /// The time at which the signature expires; absent when it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub(super) expires_at: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ParentRun")]
pub(super) struct ParentMessage<'a> {
    pub(super) intent_id: IntentId,
    pub(super) tool: &'a ToolName,
    /// The number of the call among those of its run, from 1.
    #[schemars(range(min = 1))]
    pub(super) ordinal: u32,
    /// The number of runs above the call.
    #[schemars(range(min = 1))]
    pub(super) depth: u32,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Calls")]
pub(super) struct CallsMessage<'a> {
    pub(super) max_calls: Amount<u32, u32>,
    pub(super) max_parallel_calls: Rate,
    /// The first 1000 calls, in order.
    pub(super) list: Vec<NestedCallMessage<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "NestedCall")]
pub(super) struct NestedCallMessage<'a> {
    #[schemars(range(min = 1))]
    pub(super) ordinal: u32,
    pub(super) tool: &'a str,
    pub(super) intent_id: IntentId,
    /// Absent when the call was refused before the governor was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verdict: Option<WireName<Decision>>,
    pub(super) status: WireName<NestedEnd>,
    pub(super) duration_ms: u64,
}

/// An error that the tool itself reported.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ToolError")]
pub(super) struct ToolErrorMessage<'a> {
    pub(super) code: &'a str,
    pub(super) message: &'a str,
    /// Further details, as the tool gave them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<&'a Value>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Metrics")]
pub(super) struct MetricsMessage {
    pub(super) duration_ms: u64,
    pub(super) memory_used_mb: u64,
    #[schemars(range(min = 0))]
    pub(super) cpu_percent: f64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LogLine")]
pub(super) struct LogLineMessage<'a> {
    pub(super) level: WireName<LogLevel>,
    pub(super) message: &'a str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Artifact")]
pub(super) struct ArtifactMessage<'a> {
    pub(super) name: &'a str,
    pub(super) mime: &'a str,
    #[schemars(with = "String", extend("contentEncoding" = "base64"))]
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

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Usage")]
pub(super) struct UsageMessage<'a> {
    pub(super) limits: LimitsMessage<'a>,
    /// The hosts that were reached; absent when the run had no network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) contacted: Option<Vec<ContactMessage<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) contacted_truncated: Option<bool>,
    /// The use of each secret that is bound to the run; absent when none is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) secrets: Vec<SecretUseMessage<'a>>,
    /// The MCP server that carries out the calls of the tool: confinement ends at the request to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remote_server: Option<&'a str>,
    pub(super) denied: Vec<DenialMessage<'a>>,
    pub(super) denied_truncated: bool,
    /// The file changes of a run that are kept apart until its end; absent when each took effect at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effects: Option<EffectsMessage<'a>>,
    /// The run's process; absent when it had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) process: Option<ProcessUsage>,
}

/// The file changes of a run that are kept apart until its end.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Effects")]
pub(super) struct EffectsMessage<'a> {
    /// The time at which they take effect.
    pub(super) mode: WireName<FileEffects>,
    pub(super) set_by: WireName<Layer>,
    /// The number of files, folders and links that were changed together, or whose changes wait for a decision; absent
    /// when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) changes: Option<u64>,
    /// The SHA-256 of all these changes, which a decision to commit them repeats; absent when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<String>,
    #[serde(flatten)]
    pub(super) listed: ListedChanges<'a>,
}

/// The list of changes that wait for a decision, or waited for one.
#[derive(Default, Serialize, JsonSchema)]
pub(super) struct ListedChanges<'a> {
    /// The numbers of all changes, listed or not; absent if nothing counted them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) counts: Option<ChangeCountsMessage>,
    /// The first changes of a staged run: deletions, renames and emptied files come first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) files: Vec<FileChangeMessage<'a>>,
    /// The number of changes that are not listed; absent when all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) left_out: Option<u64>,
    /// The requests that a commit sends, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) requests: Vec<RequestMessage<'a>>,
}

/// A request that waits for the commit.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "HeldRequest")]
pub(super) struct RequestMessage<'a> {
    pub(super) method: &'a str,
    /// The whole URL. What a person could not see is escaped.
    pub(super) url: &'a str,
    /// The names of the header fields.
    pub(super) fields: &'a [String],
    /// The size of the body.
    pub(super) bytes: u64,
    /// The SHA-256 of the body.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub(super) sha256: String,
    /// The text of a short body, in the answer of `a2g/effects` to a caller who may commit. What a person could not see is
    /// escaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body: Option<&'a str>,
}

/// The numbers of changes by kind. An emptied file is not counted as changed.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChangeCounts")]
pub(super) struct ChangeCountsMessage {
    pub(super) deleted: u64,
    pub(super) renamed: u64,
    /// The number of files that keep their path, and nothing of their content.
    pub(super) emptied: u64,
    pub(super) changed: u64,
    /// The number of entries of which only the permissions or times are changed.
    pub(super) attributes: u64,
    pub(super) created: u64,
}

/// One change of a file, folder or link. Paths are those that the run saw. In every text, what a person could not see is
/// escaped, and a byte that is not UTF-8 is `\xNN`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FileChange")]
pub(super) struct FileChangeMessage<'a> {
    pub(super) change: WireName<ChangeWord>,
    pub(super) entry: WireName<EntryWord>,
    /// The path after the change.
    pub(super) path: &'a str,
    /// The path before it, of a renamed entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes_before: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes_after: Option<u64>,
    /// The permissions before the change, if it changes them: 420 is 0644.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mode_before: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mode_after: Option<u32>,
    /// The target of a created link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<&'a str>,
    /// The difference of a text, as unified hunks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) diff: Option<&'a str>,
    /// The changed ranges of a file that is no text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) ranges: Vec<RangeMessage>,
    /// Present when `diff` or `ranges` lacks a part of the difference.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("const" = true))]
    pub(super) diff_cut: bool,
}

/// A range of bytes that is replaced by others.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChangedRange")]
pub(super) struct RangeMessage {
    pub(super) start: u64,
    pub(super) old_bytes: u64,
    pub(super) new_bytes: u64,
}

#[derive(Serialize)]
pub(super) struct EffectsParams {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) intent: Option<IntentId>,
}

#[derive(Serialize)]
pub(super) struct CommitParams {
    pub(super) intent: IntentId,
    pub(super) digest: String,
}

/// Sets of file changes, newest first.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "EffectsSets")]
pub(super) struct EffectsSetList<'a> {
    pub(super) sets: Vec<EffectsSetMessage<'a>>,
}

/// The file changes of one run, which were kept apart until its end.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "EffectsSet")]
pub(super) struct EffectsSetMessage<'a> {
    /// The intent of the run.
    pub(super) intent: IntentId,
    pub(super) agent: &'a AgentDid,
    pub(super) tool: &'a ToolName,
    pub(super) mode: WireName<FileEffects>,
    pub(super) state: WireName<ChangeState>,
    /// The number of changed files, folders and links.
    pub(super) changes: u64,
    /// The number of requests that a commit sends; absent when it sends none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held: Option<u64>,
    /// The SHA-256 of all changes, which a decision to commit them repeats.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub(super) digest: String,
    /// The disk space that the set takes.
    pub(super) bytes: u64,
    /// The time at which the state began.
    #[schemars(extend("format" = "date-time"))]
    pub(super) since: String,
    /// The time at which changes that wait are discarded, or until which changes in force can be undone.
    #[schemars(extend("format" = "date-time"))]
    pub(super) until: String,
    #[serde(flatten)]
    pub(super) listed: ListedChanges<'a>,
    /// The decisions on the changes, oldest first; absent in a list of sets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) decisions: Option<Vec<EffectsDecisionMessage<'a>>>,
}

/// A decision on the file changes of a run.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "EffectsDecision")]
pub(super) struct EffectsDecisionMessage<'a> {
    /// The intent of the decision, under which its report is found.
    pub(super) intent: IntentId,
    pub(super) act: WireName<DecisionAct>,
    /// The status of the decision: `FAILURE` when files had changed, so that it changed nothing.
    pub(super) status: WireName<Status>,
    /// The caller that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) by: Option<&'a str>,
    /// One sentence, when the decision failed, or about the requests that were sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<&'a str>,
}

/// The run's process.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Process")]
pub(super) struct ProcessUsage {
    /// Its peak memory during the run, as counted by the kernel, with the executor's own memory in that process; absent
    /// when the process had served other runs and the kernel's peak could not be reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peak_resident_mb: Option<u64>,
    /// The number of runs that the process had served before; absent when there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) earlier_runs: Option<NonZeroU32>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Limits")]
pub(super) struct LimitsMessage<'a> {
    pub(super) max_memory_mb: Amount<MemoryLimit, u64>,
    pub(super) max_cpu_percent: Amount<CpuPercent, f64>,
    pub(super) timeout_seconds: Amount<Timeout, f64>,
    pub(super) max_output_bytes: Amount<OutputLimit, u64>,
    #[serde(flatten)]
    pub(super) budgets: BudgetRows,
    pub(super) network_allowed: NetworkGrant,
    /// The limits on the network; absent when the run had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<NetworkLimits<'a>>,
    pub(super) filesystem_scope: Filesystem<'a>,
}

/// A limit and its usage, in the same unit.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Amount<G, U> {
    pub(super) granted: G,
    #[schemars(range(min = 0))]
    pub(super) used: U,
    /// The unused rest of the limit, at least zero.
    #[schemars(range(min = 0))]
    pub(super) slack: U,
    pub(super) set_by: WireName<Layer>,
}

/// The budgets in the table of limits, first those that a run uses up. One that is not limited is absent.
pub(super) struct BudgetRows {
    pub(super) budgets: Budgets,
    pub(super) spent: Option<BudgetUsage>,
}

impl BudgetRows {
    fn rows() -> impl Iterator<Item = &'static LimitRow> {
        let of = |consumption| budget_rows().filter(move |row| row.consumption == consumption);
        of(Consumption::Total).chain(of(Consumption::AtOnce))
    }
}

impl Serialize for BudgetRows {
    fn serialize<S: Serializer>(&self, writer: S) -> Result<S::Ok, S::Error> {
        let mut map = writer.serialize_map(None)?;
        for row in Self::rows() {
            let Some(granted) = self.budgets.granted(row.limit) else { continue };
            let granted = granted / row.unit.size();
            let set_by = WireName(self.budgets.layer(row.limit));
            match row.consumption {
                Consumption::Total => {
                    // Null if the run's process ended before it reported the usage.
                    let used = self.spent.and_then(|spent| spent.amount(row.limit));
                    let used = used.map(|used| used.div_ceil(row.unit.size()));
                    let slack = used.map(|used| granted.saturating_sub(used));
                    map.serialize_entry(row.key(), &Amount { granted, used, slack, set_by })?;
                }
                Consumption::AtOnce => {
                    map.serialize_entry(row.key(), &ConcurrencyLimit { granted, set_by })?
                }
            }
        }
        map.end()
    }
}

impl JsonSchema for BudgetRows {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "BudgetRows".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut properties = Map::new();
        for row in Self::rows() {
            let mut schema = match row.consumption {
                Consumption::Total => Amount::<u64, Option<u64>>::json_schema(generator),
                Consumption::AtOnce => ConcurrencyLimit::json_schema(generator),
            };
            if let Some(granted) = schema.pointer_mut("/properties/granted") {
                *granted = json!({ "type": "integer", "minimum": 1, "maximum": row.max });
            }
            if row.default.is_none() {
                schema.insert(
                    "description".to_owned(),
                    format!("Absent when no {} is counted.", row.resource).into(),
                );
            }
            properties.insert(row.key().to_owned(), schema.into());
        }
        // None is required: the receipt of a run from before a limit existed has no row of it.
        json_schema!({ "type": "object", "properties": properties })
    }
}

/// A limit on the number that exists at one time, which has no usage.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ConcurrencyLimit {
    pub(super) granted: u64,
    pub(super) set_by: WireName<Layer>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct NetworkGrant {
    pub(super) granted: bool,
    pub(super) linked: bool,
    pub(super) set_by: WireName<Layer>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct NetworkLimits<'a> {
    pub(super) allowed_domains: Vec<SetPattern<'a>>,
    pub(super) blocked_domains: Vec<SetPattern<'a>>,
    /// The only requests that the run could send; absent if its tool declares none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) allowed_requests: Vec<SetPattern<'a>>,
    pub(super) max_requests: Amount<UpTo<{ NetworkBudgets::MAX_REQUESTS }>, u64>,
    pub(super) max_connections: Amount<UpTo<{ NetworkBudgets::MAX_CONNECTIONS }>, u64>,
    pub(super) max_sent_bytes: Amount<UpTo<{ NetworkBudgets::MAX_BYTES }>, u64>,
    pub(super) max_received_bytes: Amount<UpTo<{ NetworkBudgets::MAX_BYTES }>, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_requests_per_minute: Option<Rate>,
    /// The number of requests that may wait for the commit; absent when none may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held_requests: Option<Rate>,
}

/// The use of a secret by a run, which never saw its value.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SecretUse")]
pub(super) struct SecretUseMessage<'a> {
    pub(super) name: &'a str,
    /// The versions of the values that were sent: 16 hexadecimal digits that change with the value.
    pub(super) versions: &'a [String],
    /// The number of requests that were sent with the secret.
    pub(super) uses: u32,
    /// The number of requests to the secret's host that were sent without it, because they are not its requests.
    pub(super) without: u32,
    /// The number of cookies that the executor kept from the guest.
    pub(super) kept_cookies: u32,
    /// The number of times that the value was replaced in answers and in what the guest returned; absent if it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redacted: Option<u32>,
    /// The number of requests with the guest's placeholder of the secret in the URL or in a field; absent for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) placeholders: Option<u32>,
}

/// A pattern of hosts, paths or requests, with the layer that set it.
#[derive(Serialize, JsonSchema)]
pub(super) struct SetPattern<'a> {
    pub(super) pattern: &'a str,
    pub(super) set_by: WireName<Layer>,
}

/// A limit of which the report has no used amount.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Rate {
    pub(super) granted: u32,
    pub(super) set_by: WireName<Layer>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Contact")]
pub(super) struct ContactMessage<'a> {
    pub(super) authority: &'a str,
    pub(super) address: String,
    pub(super) requests: u32,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Filesystem<'a> {
    /// The patterns in force.
    pub(super) granted: Vec<&'a str>,
    /// Each pattern in force, with its folder.
    pub(super) trees: Vec<GrantedTree<'a>>,
    /// The patterns that are blocked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) blocked: Vec<SetPattern<'a>>,
    /// The granted folders that do not exist on the host; absent when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) missing_roots: Vec<&'a str>,
    /// The layer that excluded everything; present when nothing is granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) set_by: Option<WireName<Layer>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Tree")]
pub(super) struct GrantedTree<'a> {
    pub(super) path: &'a str,
    pub(super) pattern: &'a str,
    pub(super) access: WireName<Access>,
    pub(super) access_set_by: WireName<Layer>,
    pub(super) set_by: WireName<Layer>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Denied")]
pub(super) struct DenialMessage<'a> {
    pub(super) what: &'a str,
    pub(super) reason: WireName<DenialReason>,
    pub(super) count: u64,
}

#[derive(Serialize)]
pub(super) struct RegistrationMessage<'a> {
    pub(super) agent_did: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) public_key: Option<&'a str>,
    pub(super) capabilities_requested: &'a [String],
    pub(super) metadata: RegistrationMetadata,
}

#[derive(Serialize)]
pub(super) struct RegistrationMetadata {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) runtime: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Accepted")]
pub(super) struct Acceptance {
    #[schemars(extend("const" = true))]
    pub(super) accepted: bool,
    /// The number of waiting or running intents that are aborted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) aborted: Option<usize>,
    /// `true` if the approval counts, and the intent waits for another person's approval.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("const" = true))]
    pub(super) needs_more_approvals: bool,
    // Only the bundled governor writes this member.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub(super) executors: Option<usize>,
}

impl Acceptance {
    pub(super) const PLAIN: Self =
        Self { accepted: true, aborted: None, needs_more_approvals: false, executors: None };
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Registered")]
pub(super) struct RegistrationResult<'a> {
    #[schemars(extend("const" = true))]
    pub(super) accepted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<PolicyMessage<'a>>,
}

/// What an operator stops or resumes: exactly one member.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StopTarget", extend("minProperties" = 1, "maxProperties" = 1, "additionalProperties" = false))]
pub(super) struct StopTargetMessage<'a> {
    /// All calls of this agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agent_did: Option<&'a AgentDid>,
    /// All calls of this tool, by any agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool: Option<&'a ToolName>,
    /// All calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("const" = true))]
    pub(super) all: Option<bool>,
}

#[derive(Serialize)]
pub(super) struct StopParams<'a> {
    pub(super) target: StopTargetMessage<'a>,
    pub(super) reason: &'a str,
}

#[derive(Serialize)]
pub(super) struct ResumeParams<'a> {
    pub(super) target: StopTargetMessage<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Resumed")]
pub(super) struct ResumeResult {
    /// `false` if the target was not stopped.
    pub(super) resumed: bool,
}

/// The stops in force.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Stops")]
pub(super) struct StopList<'a> {
    pub(super) stops: Vec<StopMessage<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Stop")]
pub(super) struct StopMessage<'a> {
    pub(super) target: StopTargetMessage<'a>,
    pub(super) reason: &'a str,
    /// The operator that set the stop.
    pub(super) by: &'a str,
    /// The time of the stop (RFC 3339).
    pub(super) since: String,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Cancelled")]
pub(super) struct CancelResult {
    pub(super) intent_id: IntentId,
    pub(super) cancelled: bool,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct IntentStatus<'a> {
    pub(super) intent_id: IntentId,
    pub(super) state: IntentStateName,
    /// Who denied the intent, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'a str>,
    /// The code of the denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) blocked_by: Option<&'a str>,
    /// The session that a call which waits for a person asks for: `new`, or the beginning of its handle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<String>,
    /// The arguments, if this executor has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) arguments: Option<&'a Map<String, Value>>,
    /// The JSON Pointers of the arguments that the operator never wants stored.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) arguments_left_out: &'a [String],
    /// Why the arguments are not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) arguments_not_stored: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) report: Option<ReportMessage<'a>>,
    /// The state of the run's file changes, if they were kept apart until its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effects_state: Option<WireName<ChangeState>>,
    /// The first 1000 calls that a run has made so far, in order; the report of a finished one has its own list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) calls: Vec<NestedCallMessage<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Tools")]
pub(super) struct ToolList<'a> {
    pub(super) tools: Vec<ToolMessage<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Tool")]
pub(super) struct ToolMessage<'a> {
    pub(super) name: &'a ToolName,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) title: Option<&'a str>,
    pub(super) version: &'a str,
    pub(super) description: &'a str,
    pub(super) contract: WireName<Contract>,
    #[schemars(regex(pattern = "^sha256:[0-9a-f]{64}$"))]
    pub(super) digest: String,
    /// A JSON Schema.
    pub(super) arguments_schema: &'a Value,
    /// A JSON Schema. A result that breaks it is a failure of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) result_schema: Option<&'a Value>,
    /// The author's declaration that a repeat with the same arguments changes nothing more; absent if `false`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) idempotent: bool,
    /// `true` if a call may ask for a session; absent if it may not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) session: bool,
    pub(super) capabilities: DeclaredMessage,
    /// The signature under which the tool is in the catalogue; absent when the executor demands none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signature: Option<ToolSignatureMessage<'a>>,
}

/// The capabilities that a tool declares; an absent limit is set by the other layers.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DeclaredCapabilities")]
pub(super) struct DeclaredMessage {
    pub(super) filesystem: WireName<DeclaredFilesystem>,
    /// The time at which the tool's file changes take effect; absent if the tool leaves it to the other layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effects: Option<WireName<FileEffects>>,
    pub(super) network: bool,
    /// The only requests that it sends; absent if it declares none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) requests: Vec<String>,
    /// The names of the secrets without which it does not run; absent if it declares none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) secrets: Vec<String>,
    #[serde(flatten)]
    pub(super) limits: LimitMembers<InTool>,
    /// The tools that it calls; `*` stands for every tool.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) calls: Vec<String>,
    #[serde(flatten)]
    pub(super) call_limits: LimitMembers<InToolCalls>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Policy")]
pub(super) struct PolicyMessage<'a> {
    // A policy for every agent, `*`, is allowed only in a file.
    #[schemars(with = "AgentDid")]
    pub(super) agent_did: &'a str,
    pub(super) version: &'a str,
    pub(super) capabilities: Capabilities<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) constitution_hash: Option<&'a str>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(deny_unknown_fields, extend("required" = []))]
pub(super) struct Capabilities<'a> {
    pub(super) tools: BTreeMap<&'a str, ToolRuleMessage<'a>>,
    pub(super) network: NetworkRuleMessage<'a>,
    pub(super) resources: ResourceRuleMessage,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ToolRule", deny_unknown_fields, extend("required" = ["allowed"]))]
pub(super) struct ToolRuleMessage<'a> {
    pub(super) allowed: bool,
    pub(super) constraints: Constraints<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Constraints<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) paths: Option<&'a [String]>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(super) blocked_paths: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(super) blocked_patterns: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_size_bytes: Option<UpTo<MAX_SIZE_BYTES>>,
    /// The time at which the file changes of a run take effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effects: Option<WireName<FileEffects>>,
    #[serde(flatten)]
    pub(super) limits: LimitMembers<InRunConstraints>,
    /// The tools that a run may call; `*` stands for every tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) calls: Option<Vec<String>>,
    #[serde(flatten)]
    pub(super) call_limits: LimitMembers<InCallConstraints>,
    /// The names of the secrets that the tool's requests may get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) secrets: Option<Vec<String>>,
    /// Present when a manifest grants all of `paths`, and not only the parts that the arguments name.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) grant_all_paths: bool,
    /// Present when a call that would wait for a person runs at once instead, and a person decides on its file changes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) preview: bool,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "NetworkRule", deny_unknown_fields)]
pub(super) struct NetworkRuleMessage<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) allowed_domains: Option<&'a [String]>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(super) blocked_domains: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_requests_per_minute: Option<UpTo<MAX_REQUESTS_PER_MINUTE>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ResourceRule", deny_unknown_fields)]
pub(super) struct ResourceRuleMessage {
    #[serde(flatten)]
    pub(super) limits: LimitMembers<InResources>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_disk_mb: Option<UpTo<MAX_DISK_MB>>,
}
