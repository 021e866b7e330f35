//! The vocabulary → A2G params and results, with their members in the document's order.
//!
//! Every struct is destructured completely, so that a new field fails to compile here instead of being omitted from a
//! report.

use super::decode::ProofClaims;
use super::schema::{UpTo, Word};
use super::{message, usage};
use crate::call::Call;
use crate::ident::{AgentDid, IntentId};
use crate::json::JsonText;
use crate::outcome::{Artifact, End, LogLine, Metrics, Outcome, Output, Receipt};
use crate::quantity::Timeout;
use crate::tool::{Declared, Descriptor};
use crate::verdict::{Manifest, NetworkRule, Policy, ResourceRule, Risk, ToolRule, Verdict};
use crate::wire::failure_message;
use crate::wire::raw;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The params of `a2g/intent`, including the agent's context.
#[must_use]
pub fn intent(call: &Call) -> Box<RawValue> {
    // The time that the caller waits is not sent to the governor: it can only shorten what is granted.
    let Call {
        door: _,
        agent,
        intent,
        tool,
        arguments,
        context,
        at_most: _,
        priority: _,
        is_new: _,
        charge: _,
    } = call;
    raw(&message::Intent { agent_did: agent, intent_id: *intent, tool, arguments, context: context.as_ref() })
}

/// The result of `a2g/intent`: the verdict.
#[must_use]
pub fn verdict(verdict: &Verdict) -> Box<RawValue> {
    raw(&verdict_message(verdict))
}

/// The result of `a2g/intent` with the proof in addition to the verdict.
#[must_use]
pub fn proven_verdict(verdict: &Verdict, proof: &str) -> Box<RawValue> {
    #[derive(Serialize)]
    struct Proven<'a> {
        #[serde(flatten)]
        verdict: message::Verdict<'a>,
        proof: &'a str,
    }
    raw(&Proven { verdict: verdict_message(verdict), proof })
}

/// The header of a proof that is signed with the key of this id.
#[must_use]
pub fn proof_header(key: &str) -> Box<RawValue> {
    #[derive(Serialize)]
    struct Header<'a> {
        alg: &'static str,
        kid: &'a str,
        typ: &'static str,
    }
    raw(&Header { alg: "EdDSA", kid: key, typ: "JWT" })
}

/// The claims of a proof.
#[must_use]
pub fn proof_claims(claims: &ProofClaims) -> Box<RawValue> {
    let ProofClaims {
        id,
        audience,
        agent,
        issued_at,
        not_before,
        expires_at,
        intent,
        tool,
        arguments,
        module,
        verdict,
    } = claims;
    raw(&message::ProofClaims {
        iss: id.issuer().as_str(),
        aud: audience.as_str(),
        sub: agent.as_str(),
        jti: id.identifier(),
        iat: issued_at.unix_timestamp(),
        nbf: not_before.unix_timestamp(),
        exp: expires_at.unix_timestamp(),
        intent_id: intent.to_string(),
        tool: tool.as_str(),
        arguments_sha256: arguments.to_string(),
        tool_sha256: module.as_ref().map(ToString::to_string),
        verdict,
    })
}

/// The gateway's answer: the verdict, with the `report` if the tool ran.
#[must_use]
pub fn intent_answer(verdict: &Verdict, receipt: Option<&Receipt>) -> Box<RawValue> {
    raw(&message::IntentAnswer { verdict: verdict_message(verdict), report: receipt.map(report_message) })
}

/// The params of `a2g/report`, which are also the result of `a2g/execute`.
#[must_use]
pub fn report(receipt: &Receipt) -> Box<RawValue> {
    raw(&report_message(receipt))
}

/// The report's `error`: one sentence; `None` for a success.
#[must_use]
pub fn sentence(outcome: &Outcome) -> Option<String> {
    failure_message::describe(outcome)
}

/// The params of `a2g/register`: the executor with its public key and the names of its tools.
#[must_use]
pub fn registration(agent: &AgentDid, public_key: Option<&str>, tools: &[String]) -> Box<RawValue> {
    let metadata = message::Metadata {
        name: env!("CARGO_PKG_NAME"),
        version: env!("CARGO_PKG_VERSION"),
        runtime: "wasmtime",
    };
    raw(&message::Registration {
        agent_did: agent.as_str(),
        public_key,
        capabilities_requested: tools,
        metadata,
    })
}

/// The result of `a2g/register`: an acceptance, with the agent's standing policy.
#[must_use]
pub fn registered(policy: Option<&Policy>) -> Box<RawValue> {
    raw(&message::Registered { accepted: true, policy: policy.map(policy_message) })
}

/// The member `journal` of a heartbeat: the current end of the executor's journal.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct JournalState<'a> {
    /// The total number of receipts written.
    pub count: u64,
    /// The hash of the last one.
    pub root: &'a str,
    /// A compact JWS over both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<&'a str>,
}

/// The payload of a checkpoint's signature.
#[must_use]
pub fn checkpoint_claims(executor: &AgentDid, count: u64, root: &str, issued_at: i64) -> Box<RawValue> {
    #[derive(Serialize)]
    struct Claims<'a> {
        iss: &'a str,
        iat: i64,
        count: u64,
        root: &'a str,
    }
    raw(&Claims { iss: executor.as_str(), iat: issued_at, count, root })
}

/// The params of `a2g/heartbeat`.
#[must_use]
pub fn heartbeat(
    agent: &AgentDid,
    uptime_seconds: u64,
    running: usize,
    queued: usize,
    journal: JournalState<'_>,
) -> Box<RawValue> {
    #[derive(Serialize)]
    struct Heartbeat<'a> {
        agent_did: &'a str,
        uptime_seconds: u64,
        running: usize,
        queued: usize,
        journal: JournalState<'a>,
    }
    raw(&Heartbeat { agent_did: agent.as_str(), uptime_seconds, running, queued, journal })
}

/// The params of `g2a/policy`. A policy for every agent is written with `"*"`, which only
/// [`super::decode::policy_file`] accepts.
#[must_use]
pub fn policy(policy: &Policy) -> Box<RawValue> {
    raw(&policy_message(policy))
}

/// The result of `a2g/cancel`.
#[must_use]
pub fn cancelled(intent: IntentId, cancelled: bool) -> Box<RawValue> {
    raw(&message::Cancelled { intent_id: intent, cancelled })
}

/// The result of a notification that is only acknowledged, such as `g2a/policy`.
#[must_use]
pub fn accepted() -> Box<RawValue> {
    raw(&message::Accepted { accepted: true, aborted: None, executors: None })
}

/// The result of `g2a/revoke`: the number of waiting or running intents that end now.
#[must_use]
pub fn revoked(aborted: usize) -> Box<RawValue> {
    raw(&message::Accepted { accepted: true, aborted: Some(aborted), executors: None })
}

/// The governor's result for a message that it forwarded to its executors.
#[must_use]
pub fn relayed(executors: usize) -> Box<RawValue> {
    raw(&message::Accepted { accepted: true, aborted: None, executors: Some(executors) })
}

/// One tool of the catalogue.
#[must_use]
pub fn tool(tool: &Descriptor) -> Box<RawValue> {
    raw(&tool_message(tool))
}

/// The result of `a2g/tools`: the catalogue.
#[must_use]
pub fn tools<'a>(tools: impl IntoIterator<Item = &'a Descriptor>) -> Box<RawValue> {
    raw(&message::Tools { tools: tools.into_iter().map(tool_message).collect() })
}

/// A value that is sent unmodified, such as the OpenRPC document.
#[must_use]
pub fn value(value: &Value) -> Box<RawValue> {
    raw(value)
}

/// The state of an intent, as `a2g/status` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It waits for a person.
    Escalated,
    /// It waits for a slot.
    Queued,
    /// Its tool runs.
    Running,
    /// It is over.
    Finished,
}

/// The result of `a2g/status`: the state of the intent, with its report once finished.
#[must_use]
pub fn status(intent: IntentId, state: State, receipt: Option<&Receipt>) -> Box<RawValue> {
    raw(&message::IntentStatus { intent_id: intent, state, report: receipt.map(report_message) })
}

fn verdict_message(verdict: &Verdict) -> message::Verdict<'_> {
    let Verdict { decision, intent, risk, manifest, conditions, expires_at, reason } = verdict;
    message::Verdict {
        verdict: Word(*decision),
        intent_id: *intent,
        risk_assessment: risk.as_ref().map(risk_message),
        capability_manifest: manifest_message(manifest),
        conditions,
        expires_at: expires_at.and_then(moment),
        reason: reason.as_deref(),
    }
}

/// A time in RFC 3339. A time that has no such form (a year over 9999) is omitted, and every decoder refuses a verdict
/// without its expiry, so that nothing runs on it.
fn moment(moment: OffsetDateTime) -> Option<String> {
    moment.format(&Rfc3339).ok()
}

fn seconds(timeout: Timeout) -> message::Seconds {
    UpTo(timeout.seconds())
}

fn risk_message(risk: &Risk) -> message::Risk<'_> {
    let Risk { score, level, model_score, heuristic_score, threats } = risk;
    message::Risk {
        score: *score,
        level: Word(*level),
        model_score: *model_score,
        heuristic_score: *heuristic_score,
        threats,
    }
}

fn manifest_message(manifest: &Manifest) -> message::Manifest<'_> {
    let Manifest { max_memory, max_cpu, timeout, network_allowed, filesystem_scope } = manifest;
    message::Manifest {
        max_memory_mb: *max_memory,
        max_cpu_percent: *max_cpu,
        timeout_seconds: timeout.map(seconds),
        network_allowed: *network_allowed,
        filesystem_scope,
    }
}

/// The report of a receipt, for use inside another message.
pub(super) fn report_message(receipt: &Receipt) -> message::Report<'_> {
    let Receipt { agent, intent, tool: _, approved_by: _, durability, outcome } = receipt;
    let Outcome { end, output, metrics, usage } = outcome;
    let Output { logs, progress: _, artifacts, truncated } = output;
    let (result, tool_error) = parts_of(end);
    message::Report {
        agent_did: agent,
        intent_id: *intent,
        status: Word(end.status()),
        result,
        error: failure_message::describe(outcome),
        tool_error,
        metrics: metrics_message(metrics),
        logs: logs.iter().map(log_line).collect(),
        artifacts: artifacts.iter().map(artifact).collect(),
        truncated: *truncated,
        usage: usage::message(usage, metrics),
        durability: (!durability.is_default()).then_some(Word(*durability)),
    }
}

/// The tool's own output: a result, or an error with its code.
fn parts_of(end: &End) -> (Option<&JsonText>, Option<message::ToolError<'_>>) {
    match end {
        End::Returned(value) => (Some(value), None),
        End::ToolError { code, message, detail } => {
            (None, Some(message::ToolError { code, message, detail: detail.as_ref() }))
        }
        End::Exited { .. }
        | End::ResultNotJson
        | End::Trapped(_)
        | End::Unlinkable(_)
        | End::Crashed(_)
        | End::LimitReached(_)
        | End::Aborted(_) => (None, None),
    }
}

fn metrics_message(metrics: &Metrics) -> message::Metrics {
    message::Metrics {
        duration_ms: metrics.duration_ms(),
        memory_used_mb: metrics.memory_used_mb(),
        cpu_percent: metrics.cpu_percent(),
    }
}

fn log_line(line: &LogLine) -> message::LogLine<'_> {
    let LogLine { level, message } = line;
    message::LogLine { level: Word(*level), message }
}

fn artifact(artifact: &Artifact) -> message::Artifact<'_> {
    let Artifact { name, mime, content } = artifact;
    message::Artifact { name, mime, content: message::Base64(content) }
}

fn policy_message(policy: &Policy) -> message::Policy<'_> {
    let Policy { agent, version, tools, network, resources, constitution_hash } = policy;
    message::Policy {
        agent_did: agent.as_ref().map_or("*", AgentDid::as_str),
        version,
        capabilities: message::Capabilities {
            tools: tools.iter().map(|(name, rule)| (name.as_str(), tool_rule(rule))).collect(),
            network: network_rule(network),
            resources: resource_rule(resources),
        },
        constitution_hash: constitution_hash.as_deref(),
    }
}

fn tool_rule(rule: &ToolRule) -> message::ToolRule<'_> {
    let ToolRule { allowed, paths, blocked_paths, blocked_patterns, max_size_bytes, timeout } = rule;
    message::ToolRule {
        allowed: *allowed,
        constraints: message::Constraints {
            paths: paths.as_deref(),
            blocked_paths,
            blocked_patterns,
            max_size_bytes: max_size_bytes.map(UpTo),
            timeout_seconds: timeout.map(seconds),
        },
    }
}

fn network_rule(rule: &NetworkRule) -> message::NetworkRule<'_> {
    let NetworkRule { allowed_domains, blocked_domains, max_requests_per_minute } = rule;
    message::NetworkRule {
        allowed_domains: allowed_domains.as_deref(),
        blocked_domains,
        max_requests_per_minute: max_requests_per_minute.map(UpTo),
    }
}

fn resource_rule(rule: &ResourceRule) -> message::ResourceRule {
    let ResourceRule { max_memory, max_cpu, max_disk_mb } = rule;
    message::ResourceRule {
        max_memory_mb: *max_memory,
        max_cpu_percent: *max_cpu,
        max_disk_mb: max_disk_mb.map(UpTo),
    }
}

fn tool_message(tool: &Descriptor) -> message::Tool<'_> {
    let Descriptor { name, version, description, contract, digest, arguments_schema, capabilities } = tool;
    let Declared { filesystem, network, memory, cpu, timeout } = capabilities;
    message::Tool {
        name,
        version,
        description,
        contract: Word(*contract),
        digest: format!("sha256:{digest}"),
        arguments_schema,
        capabilities: message::Declared {
            filesystem: Word(*filesystem),
            network: *network,
            max_memory_mb: *memory,
            max_cpu_percent: *cpu,
            timeout_seconds: timeout.map(seconds),
        },
    }
}
