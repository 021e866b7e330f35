//! The executor's A2G door: its methods by name, and the roles that may call each.
//!
//! [`governor`] is the door of the bundled governor, and [`OperatorClient`] calls the methods of a running executor.

mod effects;
pub mod governor;
mod operator;

pub use operator::{OperatorClient, OperatorClientError};

use a2g_core::run::{DirectiveOutcome, Executor, IntentState, RunEventSink};
use a2g_govern::Role::{self, Agent, Approver, Governor, Operator};
use a2g_govern::{Caller, DecisionRight, StopRight};
use a2g_http::document::PerCatalog;
use a2g_http::protocol::{foreign_agent_message, may_see, with_caller};
use a2g_http::rpc::{Followups, error_object};
use a2g_types::call::Call;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::memory::Charge;
use a2g_types::tool::CallTargets;
use a2g_wire::a2g::{decode, encode, openrpc};
use a2g_wire::listing;
use jsonrpsee::RpcModule;
use jsonrpsee::core::{RegisterMethodError, RpcResult};
use jsonrpsee::types::{Extensions, Params};
use serde_json::value::RawValue;
use std::future::Future;
use std::sync::{Arc, OnceLock};

/// The methods that are also accepted as notifications: those that a governor pushes.
pub const NOTIFICATIONS: &[&str] = &["g2a/policy", "g2a/revoke", "g2a/directive"];

type Encoded = Box<RawValue>;

/// Registers the methods of this door.
///
/// # Errors
/// If two methods have the same name.
pub fn methods(executor: Arc<Executor>) -> Result<RpcModule<Arc<Executor>>, RegisterMethodError> {
    let mut module = RpcModule::new(executor);
    register(&mut module, "a2g/execute", &[Agent], execute)?;
    register(&mut module, "a2g/intent", &[Agent], intent)?;
    module.register_async_method(
        "a2g/register",
        |params: Params<'static>, executor, extensions| async move {
            let answer = register_agent(&executor, &extensions, params.as_str().unwrap_or("{}"));
            answer.map_err(|fault| error_object(&fault)) as RpcResult<Encoded>
        },
    )?;
    // Acknowledged and dropped. The SDKs send reports to the receiver of their intents, and stop at an error. If
    // reports were stored, an agent could claim lower usage, or the failure of another agent's intent. Nothing is
    // looked up, so the answer reveals nothing about an intent.
    register(&mut module, "a2g/report", &[Agent], async |executor, sender, params| {
        let decode::ReportHead { agent, intent: _, status: _ } = decode::report(&params)?;
        check_agent(&executor, &sender.caller, &agent)?;
        Ok(encode::acceptance())
    })?;
    register(&mut module, "a2g/heartbeat", &[Agent], async |executor, sender, params| {
        check_agent(&executor, &sender.caller, &decode::agent_heartbeat(&params)?)?;
        Ok(encode::acceptance())
    })?;
    register(&mut module, "a2g/cancel", &[Agent, Governor, Operator], async |executor, sender, params| {
        let intent = decode::intent_id(&params)?;
        let caller = sender.caller;
        let may_cancel = |agent: &AgentDid| caller.may_cancel(agent);
        let cancelled = executor.operator.cancel(intent, &may_cancel, caller.name()).await?;
        Ok(encode::cancel_result(intent, cancelled))
    })?;
    register(&mut module, "a2g/session/end", &[Agent, Operator], async |executor, sender, params| {
        let decode::SessionEndParams { agent, handle } = decode::session_end_params(&params)?;
        let caller = sender.caller;
        // An operator ends a session of any caller.
        let owner = (!caller.is_any_of(&[Operator])).then(|| caller.name());
        if owner.is_some() {
            check_agent(&executor, &caller, &agent)?;
        }
        Ok(encode::session_end_result(executor.engine.end_session(handle, &agent, owner)))
    })?;
    register(&mut module, "a2g/status", &ALL_ROLES, async |executor, sender, params| {
        status(&executor, &sender.caller, decode::intent_id(&params)?).await
    })?;
    let whole_list = Arc::new(PerCatalog::default());
    register(&mut module, "a2g/tools", &ALL_ROLES, move |executor, sender, params| {
        let whole_list = Arc::clone(&whole_list);
        async move { list_tools(&executor, &whole_list, &sender.caller, decode::tools_params(&params)?) }
    })?;
    // The A2G document does not restrict the senders of these three. Without a role, an agent could approve its own
    // intent.
    register(&mut module, "g2a/policy", &[Governor], async |executor, sender, params| {
        let policy = decode::policy(&params)?;
        check_reaches_all_tools(&executor, &sender.caller)?;
        executor.operator.set_policy(policy, sender.caller.name()).await?;
        Ok(encode::acceptance())
    })?;
    register(&mut module, "g2a/revoke", &[Governor], async |executor, sender, params| {
        let decode::RevokeParams { agent, intent } = decode::revoke_params(&params)?;
        check_reaches_all_tools(&executor, &sender.caller)?;
        Ok(encode::revoke_result(
            executor.operator.revoke(agent.as_ref(), intent, sender.caller.name()).await?,
        ))
    })?;
    register(
        &mut module,
        "g2a/directive",
        &DECIDERS,
        async |executor, MethodCaller { caller, .. }, params| {
            let directive = decode::directive(&params)?;
            tracing::info!(
                intent = %directive.intent, approved = directive.approved, caller = caller.name(), "directive received"
            );
            let right = decision_right(&executor, "g2a/directive", &caller)?;
            let outcome = executor.operator.apply_directive(&directive, right).await?;
            Ok(encode::directive_result(outcome == DirectiveOutcome::NeedsMoreApprovals))
        },
    )?;
    effects::register_all(&mut module)?;
    // Not for governors: theirs is `g2a/revoke`, and only an operator lifts what an operator has stopped.
    register(&mut module, "a2g/stop", &[Operator], async |executor, sender, params| {
        let decode::StopParams { target, reason } = decode::stop_params(&params)?;
        let right = stop_right(&executor, &sender.caller)?;
        Ok(encode::stop_result(executor.operator.stop(target, reason, right).await?))
    })?;
    register(&mut module, "a2g/resume", &[Operator], async |executor, sender, params| {
        let target = decode::resume_params(&params)?;
        let right = stop_right(&executor, &sender.caller)?;
        Ok(encode::resume_result(executor.operator.resume(&target, right).await?))
    })?;
    register(&mut module, "a2g/stops", &[Operator], async |executor, _, params| {
        decode::no_params(Some(&params))?;
        Ok(encode::stops(&executor.queries.stops()))
    })?;
    register(&mut module, "rpc.discover", &ALL_ROLES, async |_, _, _| {
        static DOCUMENT: OnceLock<Encoded> = OnceLock::new();
        let document = || encode::json_value(&openrpc::document(env!("CARGO_PKG_VERSION")));
        Ok(DOCUMENT.get_or_init(document).clone())
    })?;
    Ok(module)
}

const DECIDERS: [Role; 2] = [Governor, Approver];
const ALL_ROLES: [Role; 4] = [Agent, Governor, Approver, Operator];

/// The caller of a method, and the message's charge against the caller's share of memory.
struct MethodCaller {
    caller: Arc<Caller>,
    charge: Charge,
}

impl MethodCaller {
    /// Checks that a call is in the name of one of the caller's agents, and adds the message's charge to it.
    fn call(self, executor: &Executor, call: Call) -> Result<Call, Fault> {
        Ok(Call { charge: self.charge, ..with_caller(executor, &self.caller, call)? })
    }
}

/// Adds a method together with the roles that may call it. All methods but `a2g/register`, which needs the extensions
/// and checks its role itself, are added by this function.
fn register<F, Fut>(
    module: &mut RpcModule<Arc<Executor>>,
    name: &'static str,
    roles: &'static [Role],
    method: F,
) -> Result<(), RegisterMethodError>
where
    F: Fn(Arc<Executor>, MethodCaller, String) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Encoded, Fault>> + Send + 'static,
{
    module
        .register_async_method(name, move |params: Params<'static>, executor, extensions: Extensions| {
            let params = params.as_str().unwrap_or("{}").to_owned();
            let charge = extensions.get::<Charge>().cloned().unwrap_or_default();
            let answer = authorize(&executor, &extensions, name, roles)
                .map(|caller| method(Arc::clone(&executor), MethodCaller { caller, charge }, params));
            async move {
                let answer = async { answer?.await };
                answer.await.map_err(|fault| error_object(&fault)) as RpcResult<Encoded>
            }
        })
        .map(drop)
}

/// Returns the caller, if one of its roles may call this method.
fn authorize(
    executor: &Executor,
    extensions: &Extensions,
    method: &str,
    roles: &[Role],
) -> Result<Arc<Caller>, Fault> {
    let missing = || Fault::Internal("a message has no caller".to_owned());
    let caller = extensions.get::<Arc<Caller>>().ok_or_else(missing)?;
    if caller.is_any_of(roles) {
        return Ok(Arc::clone(caller));
    }
    Err(refuse_role(executor, method, roles, caller))
}

fn refuse_role(executor: &Executor, method: &str, roles: &[Role], caller: &Caller) -> Fault {
    let list = |roles: &mut dyn Iterator<Item = Role>| {
        roles.map(|role| format!("`{}`", role.as_str())).collect::<Vec<_>>().join(", ")
    };
    let message = format!(
        "`{method}` is for callers with the role {}, and `{}` has {}: see `a2g-executor caller`; a governor can send it \
         over the executor's own connection instead",
        list(&mut roles.iter().copied()),
        caller.name(),
        list(&mut caller.roles()),
    );
    executor.refusals.refuse(None, BlockedBy::CallerUnauthorized, message)
}

/// The right of a caller that may decide on intents and on their file changes.
fn decision_right<'a>(
    executor: &Executor,
    method: &str,
    caller: &'a Caller,
) -> Result<DecisionRight<'a>, Fault> {
    caller.decision_right().ok_or_else(|| refuse_role(executor, method, &DECIDERS, caller))
}

/// The name of a caller that may stop and resume.
fn stop_right<'a>(executor: &Executor, caller: &'a Caller) -> Result<StopRight<'a>, Fault> {
    caller.stop_right().ok_or_else(|| refuse_scope(executor, caller, "a stop or its end"))
}

/// Checks that the scope of a governor's token names no tools: a policy and a revocation bind an agent at every tool.
fn check_reaches_all_tools(executor: &Executor, caller: &Caller) -> Result<(), Fault> {
    match caller.tools() {
        CallTargets::All => Ok(()),
        CallTargets::Named(_) => Err(refuse_scope(executor, caller, "a policy or a revocation")),
    }
}

fn refuse_scope(executor: &Executor, caller: &Caller, act: &str) -> Fault {
    let message = format!(
        "the token of `{}` is narrowed to some tools, and {act} concerns others: use one without such a scope",
        caller.name()
    );
    executor.refusals.refuse(None, BlockedBy::CallerUnauthorized, message)
}

/// Answers the registration of an agent that uses the executor as its governor, with that agent's standing policy. On a
/// connection that stays open, the policy is also sent as `g2a/policy`. Nothing of the registration is stored.
fn register_agent(executor: &Executor, extensions: &Extensions, params: &str) -> Result<Encoded, Fault> {
    let caller = authorize(executor, extensions, "a2g/register", &[Agent])?;
    let agent = decode::registration(params)?.agent;
    check_agent(executor, &caller, &agent)?;
    let policy = executor.policies.policy_of(&agent);
    if let Some(policy) = &policy {
        Followups::send(extensions, "g2a/policy", &encode::policy(policy));
    }
    Ok(encode::registration_result(policy.as_ref()))
}

/// Checks that a caller may send messages in the name of an agent.
fn check_agent(executor: &Executor, caller: &Caller, agent: &AgentDid) -> Result<(), Fault> {
    if caller.may_act_as(agent) {
        return Ok(());
    }
    Err(executor.refusals.refuse(None, BlockedBy::CallerUnauthorized, foreign_agent_message(caller, agent)))
}

async fn execute(executor: Arc<Executor>, sender: MethodCaller, params: String) -> Result<Encoded, Fault> {
    let decode::ExecuteParams { call, verdict, proof } = decode::execute_params(&params)?;
    drop(params);
    let call = sender.call(&executor, call)?;
    let receipt = executor.engine.execute(call, verdict, proof.as_ref()).await.map_err(point_into_intent)?;
    Ok(encode::report(&receipt))
}

/// Prefixes the pointer of a fault with `/intent`: the pipeline reports it relative to the intent, which is a member of
/// the params.
fn point_into_intent(fault: Fault) -> Fault {
    let Fault::InvalidParams { message, pointer } = fault else { return fault };
    Fault::InvalidParams { message, pointer: format!("/intent{pointer}") }
}

async fn intent(executor: Arc<Executor>, sender: MethodCaller, params: String) -> Result<Encoded, Fault> {
    let call = sender.call(&executor, decode::intent(&params)?)?;
    if let Some(signatures) = executor.engine.signatures() {
        let signature = decode::context_signature(&params, signatures.escape_non_ascii())?;
        executor.engine.check_signature(&call, signature.as_ref())?;
    }
    drop(params);
    let answer = executor.engine.handle_intent(call, RunEventSink::none()).await?;
    Ok(encode::intent_answer(&answer.verdict, answer.receipt.as_deref()))
}

/// Answers `a2g/tools`: the whole catalogue, or with `listing: "code"` the interpreters or the typed stubs that one
/// agent reaches.
fn list_tools(
    executor: &Executor,
    whole_list: &PerCatalog<Encoded>,
    caller: &Caller,
    params: decode::ToolsParams,
) -> Result<Encoded, Fault> {
    let tools = executor.catalogue.tools();
    let (agent, request) = match params {
        decode::ToolsParams::Every => {
            return Ok((*whole_list.get(tools, |tools| encode::tools(tools))).clone());
        }
        decode::ToolsParams::Code { agent, request } => (agent, request),
    };
    let agent = agent.as_ref().or_else(|| caller.only_agent()).ok_or_else(|| {
        Fault::invalid("/agent_did", "`agent_did` is missing: name the agent whose tools are listed")
    })?;
    if !caller.may_read(agent) {
        return Err(executor.refusals.refuse(
            None,
            BlockedBy::CallerUnauthorized,
            foreign_agent_message(caller, agent),
        ));
    }
    let reachable = tools.iter().filter(|tool| may_see(executor, caller, agent, &tool.name));
    Ok(match request {
        None => encode::tools(reachable.filter(|tool| listing::is_interpreter(tool))),
        Some(request) => encode::tool_stubs(&listing::describe(reachable, &request)),
    })
}

/// The state of an intent. To an agent, the intents of other agents do not exist.
async fn status(executor: &Executor, caller: &Arc<Caller>, intent: IntentId) -> Result<Encoded, Fault> {
    // Checked before the receipt is read, whose length would show in the time of the answer.
    if executor.queries.agent_of_start(intent)?.is_some_and(|agent| !caller.may_read(&agent)) {
        return denial_status(executor, caller, intent).await;
    }
    let found = executor.queries.status_anywhere(intent).await?;
    let readable = found.filter(|(agent, _)| caller.may_read(agent));
    let Some((agent, state)) = readable else { return denial_status(executor, caller, intent).await };
    let (state, receipt) = match state {
        IntentState::Escalated => {
            let session = executor.previews.session_of_waiting(intent);
            let arguments = executor.queries.arguments(intent, &agent)?;
            return Ok(encode::waiting_status(intent, session, arguments.as_ref()));
        }
        IntentState::Queued => (encode::IntentStateName::Queued, None),
        IntentState::Running => (encode::IntentStateName::Running, None),
        IntentState::Finished(receipt) => (encode::IntentStateName::Finished, receipt),
    };
    let effects = match receipt.as_deref() {
        Some(receipt) => executor.changes.state_of(receipt).await?,
        None => None,
    };
    let calls = executor.queries.nested_calls(intent);
    let arguments = executor.queries.arguments(intent, &agent)?;
    Ok(encode::status(intent, state, receipt.as_deref(), effects, &calls, arguments.as_ref(), None))
}

/// The state of an intent that a person or the governor denied.
async fn denial_status(
    executor: &Executor,
    caller: &Arc<Caller>,
    intent: IntentId,
) -> Result<Encoded, Fault> {
    let state = encode::IntentStateName::Denied;
    let by_person =
        executor.queries.denial_anywhere(intent).await?.filter(|(agent, _)| caller.may_read(agent));
    if let Some((agent, Fault::Refused { message, blocked_by, .. })) = by_person {
        let arguments = executor.queries.arguments(intent, &agent)?;
        let denial = Some((&*message, blocked_by));
        return Ok(encode::status(intent, state, None, None, &[], arguments.as_ref(), denial));
    }
    let reader = Arc::clone(caller);
    let by_governor =
        executor.queries.denial_by_governor(intent, move |agent| reader.may_read(agent)).await?;
    let message =
        by_governor.ok_or_else(|| Fault::invalid("/intent_id", format!("unknown intent `{intent}`")))?;
    // The arguments of a call that was denied at once are not stored, and an earlier call may have had others.
    let denial = Some((&*message, BlockedBy::VerdictDenied));
    Ok(encode::status(intent, state, None, None, &[], None, denial))
}
