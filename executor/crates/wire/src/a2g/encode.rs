//! Encodes domain types as A2G params and results. Members are in the order of the A2G document.
//!
//! Every struct is destructured completely, so that a new field fails to compile here instead of being omitted from a
//! report.

use super::decode::{EffectsDecision, EffectsSet, ProofClaims};
use super::limits::LimitMembers;
use super::schema::{UpTo, WireName};
use super::{message, usage};
use crate::listing::ToolStubs;
use crate::to_raw;
use a2g_types::call::{Call, ParentRun, StoredArguments};
use a2g_types::failure_message;
use a2g_types::fault::BlockedBy;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::json::JsonText;
use a2g_types::limit::Bound;
use a2g_types::outcome::{
    Artifact, CallUsage, ChangeState, End, LogLine, NestedCall, Outcome, Receipt, RunMetrics, RunOutput,
};
use a2g_types::session::{SessionRequest, SessionState, SessionTurn};
use a2g_types::stop::{OperatorReason, Stop, StopTarget};
use a2g_types::tool::{CallTargets, DeclaredCapabilities, Descriptor, Digest, ToolSignature};
use a2g_types::verdict::{
    Manifest, NetworkRule, Observation, Policy, Rationale, ResourceRule, Risk, ToolRule, Verdict,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The params of `a2g/intent`, including the agent's context.
#[must_use]
pub fn intent(call: &Call) -> Box<RawValue> {
    // The caller's own time limit is not sent to the governor, because it can only shorten the granted time.
    let Call {
        door: _,
        agent,
        intent,
        tool,
        arguments,
        context,
        caller_timeout: _,
        priority: _,
        is_new: _,
        charge: _,
        parent: _,
        caller_tools: _,
        session,
    } = call;
    to_raw(&message::IntentMessage {
        agent_did: agent,
        intent_id: *intent,
        tool,
        arguments,
        context: context.as_ref(),
        session: session.as_ref().map(|session| session.request.to_string()),
    })
}

/// The result of `a2g/intent`: the verdict.
#[must_use]
pub fn verdict(verdict: &Verdict) -> Box<RawValue> {
    to_raw(&verdict_message(verdict))
}

/// The result of `a2g/intent` with the proof in addition to the verdict.
#[must_use]
pub fn verdict_with_proof(verdict: &Verdict, proof: &str) -> Box<RawValue> {
    #[derive(Serialize)]
    struct VerdictWithProof<'a> {
        #[serde(flatten)]
        verdict: message::VerdictMessage<'a>,
        proof: &'a str,
    }
    to_raw(&VerdictWithProof { verdict: verdict_message(verdict), proof })
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
    to_raw(&Header { alg: "EdDSA", kid: key, typ: "JWT" })
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
    to_raw(&message::ProofClaimsMessage {
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
    to_raw(&message::IntentAnswer { verdict: verdict_message(verdict), report: receipt.map(report_message) })
}

/// The params of `a2g/report`, which are also the result of `a2g/execute`.
#[must_use]
pub fn report(receipt: &Receipt) -> Box<RawValue> {
    to_raw(&report_message(receipt))
}

/// The members `metrics` and `usage` of a report, for messages of other protocols.
#[must_use]
pub fn measurements(receipt: &Receipt) -> (Box<RawValue>, Box<RawValue>) {
    let Outcome { end: _, output: _, metrics, usage } = &receipt.outcome;
    (to_raw(&metrics_message(metrics)), to_raw(&usage::usage_message(usage, metrics)))
}

/// The report's `error`: one sentence; `None` for a success.
#[must_use]
pub fn describe_failure(outcome: &Outcome) -> Option<String> {
    failure_message::describe(outcome)
}

/// The params of `a2g/register`: the executor with its public key and the names of its tools.
#[must_use]
pub fn registration(agent: &AgentDid, public_key: Option<&str>, tools: &[String]) -> Box<RawValue> {
    let metadata = message::RegistrationMetadata {
        name: "a2g-executor",
        version: env!("CARGO_PKG_VERSION"),
        runtime: "wasmtime",
    };
    to_raw(&message::RegistrationMessage {
        agent_did: agent.as_str(),
        public_key,
        capabilities_requested: tools,
        metadata,
    })
}

/// The result of `a2g/register`: an acceptance, with the agent's standing policy.
#[must_use]
pub fn registration_result(policy: Option<&Policy>) -> Box<RawValue> {
    to_raw(&message::RegistrationResult { accepted: true, policy: policy.map(policy_message) })
}

/// The member `journal` of a heartbeat: the current end of the executor's journal.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct JournalState<'a> {
    /// The total number of receipts written.
    pub count: u64,
    /// The hash of the last receipt.
    pub root: &'a str,
    /// A compact JWS over `count` and `root`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<&'a str>,
}

/// The payload of a checkpoint's signature.
#[must_use]
pub fn checkpoint_claims(executor: &AgentDid, count: u64, root: &str, issued_at: i64) -> Box<RawValue> {
    #[derive(Serialize)]
    struct CheckpointClaims<'a> {
        iss: &'a str,
        iat: i64,
        count: u64,
        root: &'a str,
    }
    to_raw(&CheckpointClaims { iss: executor.as_str(), iat: issued_at, count, root })
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
    struct HeartbeatParams<'a> {
        agent_did: &'a str,
        uptime_seconds: u64,
        running: usize,
        queued: usize,
        journal: JournalState<'a>,
    }
    to_raw(&HeartbeatParams { agent_did: agent.as_str(), uptime_seconds, running, queued, journal })
}

/// The params of `g2a/policy`. A policy for every agent is written with `"*"`, which only
/// [`super::decode::policy_file`] accepts.
#[must_use]
pub fn policy(policy: &Policy) -> Box<RawValue> {
    to_raw(&policy_message(policy))
}

/// The result of `a2g/cancel`.
#[must_use]
pub fn cancel_result(intent: IntentId, cancelled: bool) -> Box<RawValue> {
    to_raw(&message::CancelResult { intent_id: intent, cancelled })
}

/// The result of a notification that is only acknowledged, such as `g2a/policy`.
#[must_use]
pub fn acceptance() -> Box<RawValue> {
    to_raw(&message::Acceptance::PLAIN)
}

/// The result of `g2a/directive`.
#[must_use]
pub fn directive_result(needs_more_approvals: bool) -> Box<RawValue> {
    to_raw(&message::Acceptance { needs_more_approvals, ..message::Acceptance::PLAIN })
}

/// The result of `g2a/revoke`: the number of waiting or running intents that are aborted.
#[must_use]
pub fn revoke_result(aborted: usize) -> Box<RawValue> {
    to_raw(&message::Acceptance { aborted: Some(aborted), ..message::Acceptance::PLAIN })
}

/// The params of `a2g/stop`.
#[must_use]
pub fn stop_params(target: &StopTarget, reason: &OperatorReason) -> Box<RawValue> {
    to_raw(&message::StopParams { target: stop_target(target), reason: reason.as_str() })
}

/// The params of `a2g/resume`.
#[must_use]
pub fn resume_params(target: &StopTarget) -> Box<RawValue> {
    to_raw(&message::ResumeParams { target: stop_target(target) })
}

/// The result of `a2g/stop`: the number of runs and intents that it ended.
#[must_use]
pub fn stop_result(aborted: usize) -> Box<RawValue> {
    revoke_result(aborted)
}

/// The result of `a2g/resume`.
#[must_use]
pub fn resume_result(resumed: bool) -> Box<RawValue> {
    to_raw(&message::ResumeResult { resumed })
}

/// The result of `a2g/stops`.
#[must_use]
pub fn stops(stops: &[Stop]) -> Box<RawValue> {
    to_raw(&message::StopList { stops: stops.iter().map(stop_message).collect() })
}

fn stop_message(stop: &Stop) -> message::StopMessage<'_> {
    let Stop { target, reason, by, since } = stop;
    // Only a year beyond 9999 has no such form.
    let since = format_time(*since).unwrap_or_default();
    message::StopMessage { target: stop_target(target), reason: reason.as_str(), by, since }
}

fn stop_target(target: &StopTarget) -> message::StopTargetMessage<'_> {
    let nothing = message::StopTargetMessage { agent_did: None, tool: None, all: None };
    match target {
        StopTarget::Agent(agent) => message::StopTargetMessage { agent_did: Some(agent), ..nothing },
        StopTarget::Tool(tool) => message::StopTargetMessage { tool: Some(tool), ..nothing },
        StopTarget::Everything => message::StopTargetMessage { all: Some(true), ..nothing },
    }
}

/// The params of `a2g/effects`: for one intent, or for all sets.
#[must_use]
pub fn effects_params(intent: Option<IntentId>) -> Box<RawValue> {
    to_raw(&message::EffectsParams { intent })
}

/// The params of `a2g/commit`. `digest` is that of the changes which the person was shown.
#[must_use]
pub fn commit_params(intent: IntentId, digest: &Digest) -> Box<RawValue> {
    to_raw(&message::CommitParams { intent, digest: digest.to_string() })
}

/// The params of `a2g/discard` and `a2g/undo`.
#[must_use]
pub fn decision_params(intent: IntentId) -> Box<RawValue> {
    to_raw(&message::EffectsParams { intent: Some(intent) })
}

/// The result of `a2g/effects`.
#[must_use]
pub fn effects(sets: &[EffectsSet]) -> Box<RawValue> {
    to_raw(&message::EffectsSetList { sets: sets.iter().map(effects_set).collect() })
}

fn effects_set(set: &EffectsSet) -> message::EffectsSetMessage<'_> {
    let EffectsSet { intent, agent, tool, mode, state, changes, held, bytes, since, until, decisions } = set;
    message::EffectsSetMessage {
        intent: *intent,
        agent,
        tool,
        mode: WireName(*mode),
        state: WireName(*state),
        changes: changes.count,
        digest: changes.digest.to_string(),
        held: Some(*held).filter(|held| *held > 0),
        bytes: *bytes,
        // Only a year beyond 9999 has no such form.
        since: format_time(*since).unwrap_or_default(),
        until: format_time(*until).unwrap_or_default(),
        listed: match decisions {
            Some(_) => usage::listed_changes(*mode, changes),
            None => message::ListedChanges::default(),
        },
        decisions: decisions.as_ref().map(|decisions| decisions.iter().map(effects_decision).collect()),
    }
}

fn effects_decision(decision: &EffectsDecision) -> message::EffectsDecisionMessage<'_> {
    let EffectsDecision { intent, act, status, by, message } = decision;
    message::EffectsDecisionMessage {
        intent: *intent,
        act: WireName(*act),
        status: WireName(*status),
        by: by.as_deref(),
        message: message.as_deref(),
    }
}

/// The governor's result for a message that it forwarded to its executors.
#[must_use]
pub fn relay_result(executors: usize) -> Box<RawValue> {
    to_raw(&message::Acceptance { executors: Some(executors), ..message::Acceptance::PLAIN })
}

/// One tool of the catalogue.
#[must_use]
pub fn tool(tool: &Descriptor) -> Box<RawValue> {
    to_raw(&tool_message(tool))
}

/// The result of `a2g/tools`: the catalogue.
#[must_use]
pub fn tools<'a>(tools: impl IntoIterator<Item = &'a Descriptor>) -> Box<RawValue> {
    to_raw(&message::ToolList { tools: tools.into_iter().map(tool_message).collect() })
}

/// The result of `a2g/tools` for a query: descriptions of tools.
#[must_use]
pub fn tool_stubs(stubs: &ToolStubs) -> Box<RawValue> {
    to_raw(stubs)
}

/// A value that is sent unmodified, such as the OpenRPC document.
#[must_use]
pub fn json_value(value: &Value) -> Box<RawValue> {
    to_raw(value)
}

/// The state of an intent, as `a2g/status` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "State")]
pub enum IntentStateName {
    /// The intent waits for a person.
    Escalated,
    /// The intent waits for a slot.
    Queued,
    /// The tool runs.
    Running,
    /// The intent has finished.
    Finished,
    /// A person or the governor denied the intent.
    Denied,
}

/// The result of `a2g/status`: the state of the intent with its arguments, its report once finished, the state of its file
/// changes if they were kept apart, and the calls of a run so far. `denial` has the message and the code of its denial.
#[must_use]
pub fn status(
    intent: IntentId,
    state: IntentStateName,
    receipt: Option<&Receipt>,
    effects_state: Option<ChangeState>,
    calls: &[NestedCall],
    arguments: Option<&StoredArguments>,
    denial: Option<(&str, BlockedBy)>,
) -> Box<RawValue> {
    let status = status_message(intent, state, arguments);
    to_raw(&message::IntentStatus {
        reason: denial.map(|(message, _)| message),
        blocked_by: denial.map(|(_, blocked_by)| blocked_by.as_str()),
        report: receipt.map(report_message),
        effects_state: effects_state.map(WireName),
        calls: calls.iter().map(nested_call_message).collect(),
        ..status
    })
}

/// The result of `a2g/status` for an intent that waits for a person, with the session that it asks for.
#[must_use]
pub fn waiting_status(
    intent: IntentId,
    session: Option<SessionRequest>,
    arguments: Option<&StoredArguments>,
) -> Box<RawValue> {
    let status = status_message(intent, IntentStateName::Escalated, arguments);
    to_raw(&message::IntentStatus { session: session.map(|request| request.short()), ..status })
}

fn status_message(
    intent: IntentId,
    state: IntentStateName,
    arguments: Option<&StoredArguments>,
) -> message::IntentStatus<'_> {
    let (arguments, left_out, not_stored) = match arguments {
        Some(StoredArguments::Kept { arguments, left_out }) => (Some(arguments), &**left_out, None),
        Some(StoredArguments::TooLarge { max_bytes }) => {
            (None, <&[String]>::default(), Some(too_large(*max_bytes)))
        }
        None => (None, <&[String]>::default(), None),
    };
    message::IntentStatus {
        intent_id: intent,
        state,
        reason: None,
        blocked_by: None,
        session: None,
        arguments,
        arguments_left_out: left_out,
        arguments_not_stored: not_stored,
        report: None,
        effects_state: None,
        calls: Vec::new(),
    }
}

/// Why the arguments of a call are not stored.
#[must_use]
pub fn too_large(max_bytes: u64) -> String {
    format!("they had more than {max_bytes} bytes (`journal.max_arguments_bytes`)")
}

fn verdict_message(verdict: &Verdict) -> message::VerdictMessage<'_> {
    let Verdict { decision, intent, risk, manifest, conditions, expires_at, reason, rationale } = verdict;
    message::VerdictMessage {
        verdict: WireName(*decision),
        intent_id: *intent,
        risk_assessment: risk.as_ref().map(risk_message),
        capability_manifest: manifest_message(manifest),
        conditions,
        expires_at: expires_at.and_then(format_time),
        reason: reason.as_deref(),
        rationale: rationale_members(rationale),
    }
}

fn rationale_members(rationale: &Rationale) -> message::RationaleMembers<'_> {
    let Rationale { decided_by, observed } = rationale;
    message::RationaleMembers {
        decided_by: decided_by.iter().map(String::as_str).collect(),
        observed: observed.iter().map(observation_message).collect(),
    }
}

fn observation_message(observation: &Observation) -> message::ObservationMessage<'_> {
    let Observation { file, decision, decided_by } = observation;
    message::ObservationMessage { file, decision: WireName(*decision), decided_by }
}

/// A time in RFC 3339; `None` for a year after 9999. Decoders refuse an approval without an expiry, so no tool runs
/// under such a verdict.
fn format_time(moment: OffsetDateTime) -> Option<String> {
    moment.format(&Rfc3339).ok()
}

fn risk_message(risk: &Risk) -> message::RiskMessage<'_> {
    let Risk { score, level, model_score, heuristic_score, threats } = risk;
    message::RiskMessage {
        score: *score,
        level: WireName(*level),
        model_score: *model_score,
        heuristic_score: *heuristic_score,
        threats,
    }
}

fn manifest_message(manifest: &Manifest) -> message::ManifestMessage<'_> {
    let Manifest { limits, network_allowed, filesystem_scope } = manifest;
    message::ManifestMessage {
        limits: LimitMembers::new(*limits),
        network_allowed: *network_allowed,
        filesystem_scope,
    }
}

/// The report of a receipt, for use inside another message.
pub(super) fn report_message(receipt: &Receipt) -> message::ReportMessage<'_> {
    let Receipt {
        agent,
        intent,
        tool: _,
        door: _,
        approved_by: _,
        durability,
        parent,
        calls,
        signature,
        session,
        rationale,
        outcome,
    } = receipt;
    let Outcome { end, output, metrics, usage } = outcome;
    let RunOutput { logs, progress: _, artifacts, truncated } = output;
    let (result, tool_error) = split_end(end);
    message::ReportMessage {
        agent_did: agent,
        intent_id: *intent,
        status: WireName(end.status()),
        result,
        error: failure_message::describe(outcome),
        left_to_operator: end.is_left_to_operator(),
        tool_error,
        metrics: metrics_message(metrics),
        logs: logs.iter().map(log_line).collect(),
        artifacts: artifacts.iter().map(artifact).collect(),
        truncated: *truncated,
        usage: usage::usage_message(usage, metrics),
        durability: (!durability.is_default()).then_some(WireName(*durability)),
        parent: parent.as_ref().map(parent_message),
        calls: calls.as_ref().map(calls_message),
        tool_signature: signature.as_ref().map(signature_message),
        session: session.as_ref().map(session_message),
        rationale: rationale_members(rationale),
    }
}

/// The member `session` of a report, for messages of other protocols; `None` for a run without one.
pub(crate) fn session_turn(receipt: &Receipt) -> Option<Value> {
    receipt.session.as_ref().and_then(|turn| serde_json::to_value(session_message(turn)).ok())
}

fn session_message(session: &SessionTurn) -> message::SessionMessage {
    let SessionTurn { handle, turn, state } = session;
    let of_state = |state, idle_seconds, reason| message::SessionMessage {
        handle: handle.to_string(),
        turn: *turn,
        state,
        idle_seconds,
        reason,
    };
    match state {
        SessionState::Kept { idle_seconds } => {
            of_state(message::SessionStateName::Kept, Some(*idle_seconds), None)
        }
        SessionState::Ended(end) => of_state(message::SessionStateName::Ended, None, Some(WireName(*end))),
    }
}

/// The result of `a2g/session/end`.
#[must_use]
pub fn session_end_result(ended: bool) -> Box<RawValue> {
    to_raw(&message::SessionEndResult { ended })
}

fn signature_message(signature: &ToolSignature) -> message::ToolSignatureMessage<'_> {
    let ToolSignature { signer, package, expires_at } = signature;
    message::ToolSignatureMessage {
        signer: signer.as_str(),
        package: format!("sha256:{package}"),
        expires_at: expires_at.and_then(format_time),
    }
}

fn parent_message(parent: &ParentRun) -> message::ParentMessage<'_> {
    let ParentRun { intent, tool, ordinal, depth } = parent;
    message::ParentMessage { intent_id: *intent, tool, ordinal: *ordinal, depth: *depth }
}

fn calls_message(usage: &CallUsage) -> message::CallsMessage<'_> {
    let CallUsage { max_calls, max_parallel, count, calls } = usage;
    let Bound { value: granted, layer } = *max_calls;
    message::CallsMessage {
        max_calls: message::Amount {
            granted,
            used: *count,
            slack: granted.saturating_sub(*count),
            set_by: WireName(layer),
        },
        max_parallel_calls: message::Rate {
            granted: max_parallel.value,
            set_by: WireName(max_parallel.layer),
        },
        list: calls.iter().map(nested_call_message).collect(),
    }
}

/// A call that a run made.
fn nested_call_message(call: &NestedCall) -> message::NestedCallMessage<'_> {
    let NestedCall { ordinal, tool, intent, decision, end, duration } = call;
    message::NestedCallMessage {
        ordinal: *ordinal,
        tool,
        intent_id: *intent,
        verdict: decision.map(WireName),
        status: WireName(*end),
        duration_ms: u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX),
    }
}

/// The tool's own output: a result, or an error with its code.
fn split_end(end: &End) -> (Option<&JsonText>, Option<message::ToolErrorMessage<'_>>) {
    match end {
        End::Returned(value) | End::Staged(value) => (Some(value), None),
        End::ToolError { code, message, detail } => {
            (None, Some(message::ToolErrorMessage { code, message, detail: detail.as_ref() }))
        }
        End::Exited { .. }
        | End::ResultNotJson
        | End::ResultInvalid { .. }
        | End::Trapped(_)
        | End::NotStarted(_)
        | End::Crashed(_)
        | End::NotCommitted(_)
        | End::LeftToOperator(_)
        | End::LimitReached(_)
        | End::Aborted(_) => (None, None),
    }
}

fn metrics_message(metrics: &RunMetrics) -> message::MetricsMessage {
    message::MetricsMessage {
        duration_ms: metrics.duration_ms(),
        memory_used_mb: metrics.memory_used_mb(),
        cpu_percent: metrics.cpu_percent(),
    }
}

fn log_line(line: &LogLine) -> message::LogLineMessage<'_> {
    let LogLine { level, message } = line;
    message::LogLineMessage { level: WireName(*level), message }
}

fn artifact(artifact: &Artifact) -> message::ArtifactMessage<'_> {
    let Artifact { name, mime, content } = artifact;
    message::ArtifactMessage { name, mime, content: message::Base64(content) }
}

fn policy_message(policy: &Policy) -> message::PolicyMessage<'_> {
    let Policy { agent, version, tools, network, resources, constitution_hash } = policy;
    message::PolicyMessage {
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

fn tool_rule(rule: &ToolRule) -> message::ToolRuleMessage<'_> {
    let ToolRule {
        allowed,
        paths,
        blocked_paths,
        blocked_patterns,
        max_size_bytes,
        effects,
        limits,
        calls,
        secrets,
        grants_all_paths,
        is_previewed,
    } = rule;
    message::ToolRuleMessage {
        allowed: *allowed,
        constraints: message::Constraints {
            paths: paths.as_deref(),
            blocked_paths,
            blocked_patterns,
            max_size_bytes: max_size_bytes.map(UpTo),
            effects: effects.unless_direct().map(WireName),
            limits: LimitMembers::new(*limits),
            calls: calls.as_ref().map(CallTargets::to_names),
            call_limits: LimitMembers::new(*limits),
            secrets: secrets.as_ref().map(|names| names.iter().map(ToString::to_string).collect()),
            grant_all_paths: *grants_all_paths,
            preview: *is_previewed,
        },
    }
}

fn network_rule(rule: &NetworkRule) -> message::NetworkRuleMessage<'_> {
    let NetworkRule { allowed_domains, blocked_domains, max_requests_per_minute } = rule;
    message::NetworkRuleMessage {
        allowed_domains: allowed_domains.as_deref(),
        blocked_domains,
        max_requests_per_minute: max_requests_per_minute.map(UpTo),
    }
}

fn resource_rule(rule: &ResourceRule) -> message::ResourceRuleMessage {
    let ResourceRule { limits, max_disk_mb } = rule;
    message::ResourceRuleMessage { limits: LimitMembers::new(*limits), max_disk_mb: max_disk_mb.map(UpTo) }
}

fn tool_message(tool: &Descriptor) -> message::ToolMessage<'_> {
    let Descriptor {
        name,
        title,
        version,
        description,
        contract,
        digest,
        arguments_schema,
        result_schema,
        settings: _,
        is_idempotent,
        has_sessions,
        capabilities,
        signature,
    } = tool;
    let DeclaredCapabilities { filesystem, effects, network, requests, secrets, limits, calls } =
        capabilities;
    message::ToolMessage {
        name,
        title: title.as_deref(),
        version,
        description,
        contract: WireName(*contract),
        digest: format!("sha256:{digest}"),
        arguments_schema,
        result_schema: result_schema.as_ref(),
        idempotent: *is_idempotent,
        session: *has_sessions,
        capabilities: message::DeclaredMessage {
            filesystem: WireName(*filesystem),
            effects: effects.unless_direct().map(WireName),
            network: *network,
            requests: requests.iter().map(ToString::to_string).collect(),
            secrets: secrets.iter().map(ToString::to_string).collect(),
            limits: LimitMembers::new(*limits),
            calls: calls.to_names(),
            call_limits: LimitMembers::new(*limits),
        },
        signature: signature.as_ref().map(signature_message),
    }
}
