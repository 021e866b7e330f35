//! The methods of the bundled governor: those that executors call, and those that an operator calls and that the
//! governor relays to the executors that are connected by WebSocket.

use a2g_govern::local::LocalGovernor;
use a2g_govern::{KeyPair, ReportLog};
use a2g_http::rpc::{Followups, error_object, notification};
use a2g_types::call::Call;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::verdict::{Decision, Verdict};
use a2g_wire::a2g::{decode, encode};
use jsonrpsee::RpcModule;
use jsonrpsee::core::{RegisterMethodError, RpcResult};
use jsonrpsee::types::{Extensions, Params};
use serde_json::value::RawValue;
use std::sync::Arc;
use tokio::sync::broadcast;

/// The methods that are also accepted as notifications.
pub const NOTIFICATIONS: &[&str] = &["a2g/report", "a2g/heartbeat"];

/// The state behind the methods.
pub struct GovernorDoor {
    /// Answers intents with verdicts.
    pub governor: Arc<LocalGovernor>,
    /// The key that signs verdicts; `None`: verdicts have no proof.
    pub key: Option<KeyPair>,
    /// The file of received reports.
    pub records: ReportLog,
    /// Sends messages to every connected WebSocket.
    pub pushes: broadcast::Sender<Arc<str>>,
}

type Encoded = Box<RawValue>;

/// Registers the methods of the governor.
///
/// # Errors
/// If two methods have the same name.
pub fn methods(door: GovernorDoor) -> Result<RpcModule<GovernorDoor>, RegisterMethodError> {
    let mut module = RpcModule::new(door);
    register(&mut module, "a2g/register", |door, params, extensions| {
        let registration = decode::registration(params)?;
        let policy = door.governor.register(&registration.agent, &registration.capabilities_requested)?;
        if let Some(policy) = &policy {
            // The A2G document specifies only this push. The policy in the answer is an extension.
            Followups::send(extensions, "g2a/policy", &encode::policy(policy));
        }
        Ok(encode::registration_result(policy.as_ref()))
    })?;
    register(&mut module, "a2g/intent", |door, params, _| {
        let call = decode::intent(params)?;
        let verdict = door.governor.decide(&call);
        let why = verdict.reason.as_deref().unwrap_or_default();
        let Call { agent, intent, tool, .. } = &call;
        tracing::info!(%intent, %agent, %tool, verdict = verdict.decision.as_str(), why, "decided");
        if verdict.decision == Decision::Denied {
            return Err(denial_fault(verdict));
        }
        Ok(match proof(door, &call, &verdict)? {
            Some(proof) => encode::verdict_with_proof(&verdict, &proof),
            None => encode::verdict(&verdict),
        })
    })?;
    module.register_async_method("a2g/report", |params: Params<'static>, door, _| async move {
        let answer = record(&door, params.as_str().unwrap_or("{}")).await;
        answer.map_err(|fault| error_object(&fault)) as RpcResult<Encoded>
    })?;
    register(&mut module, "a2g/heartbeat", |door, params, _| {
        let decode::Heartbeat { agent, journal, .. } = decode::heartbeat(params)?;
        door.governor.heartbeat(&agent, journal.as_ref().map(|(count, root)| (*count, root.as_str())))?;
        Ok(encode::acceptance())
    })?;
    register(&mut module, "g2a/policy", |door, params, _| {
        decode::policy(params)?;
        relay(door, "g2a/policy", params)
    })?;
    register(&mut module, "g2a/revoke", |door, params, _| {
        decode::revoke_params(params)?;
        relay(door, "g2a/revoke", params)
    })?;
    register(&mut module, "g2a/directive", |door, params, _| {
        door.governor.resolve(&decode::directive(params)?)?;
        relay(door, "g2a/directive", params)
    })?;
    Ok(module)
}

fn register(
    module: &mut RpcModule<GovernorDoor>,
    name: &'static str,
    method: fn(&GovernorDoor, &str, &Extensions) -> Result<Encoded, Fault>,
) -> Result<(), RegisterMethodError> {
    module
        .register_method(name, move |params: Params<'_>, door, extensions| -> RpcResult<Encoded> {
            method(door, params.as_str().unwrap_or("{}"), extensions).map_err(|fault| error_object(&fault))
        })
        .map(drop)
}

/// Stores a report, and acknowledges it once it is on the disk.
async fn record(door: &GovernorDoor, params: &str) -> Result<Encoded, Fault> {
    let head = decode::report(params)?;
    // Before the log: a report whose line cannot be written comes again, and counts once.
    door.governor.observe_report(&head, params);
    let result = door.records.record(|| params).await;
    result.map_err(|error| {
        Fault::Internal(format!("the report of `{}` could not be recorded: {error}", head.intent))
    })?;
    Ok(encode::acceptance())
}

/// Signs a verdict for the executor that the agent names in `context.executor`; `None` if there is no key or no such
/// name. The agent has to name the executor, because a proof names its audience, and the executor may not be connected
/// to this governor.
fn proof(door: &GovernorDoor, call: &Call, verdict: &Verdict) -> Result<Option<String>, Fault> {
    let Some(key) = &door.key else { return Ok(None) };
    let Some(audience) = decode::requested_executor(call)? else { return Ok(None) };
    let proof = key.prove(&audience, call, verdict, door.governor.now());
    proof.map(Some).map_err(|error| Fault::invalid("/arguments", error.to_string()))
}

/// The error response for a denial, as in the A2G document.
fn denial_fault(verdict: Verdict) -> Fault {
    Fault::Refused {
        intent: Some(verdict.intent),
        risk_score: verdict.risk.map(|risk| risk.score),
        blocked_by: BlockedBy::VerdictDenied,
        message: verdict.reason.unwrap_or_else(|| "denied".to_owned()),
    }
}

/// Sends a message to every executor that is connected by WebSocket.
fn relay(door: &GovernorDoor, method: &str, params: &str) -> Result<Encoded, Fault> {
    let executors = door.pushes.send(notification(method, params)).unwrap_or(0);
    Ok(encode::relay_result(executors))
}
