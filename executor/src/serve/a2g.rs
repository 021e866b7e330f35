//! The executor's A2G door: its methods, by name.

use super::rpc::error_object;
use crate::fault::Fault;
use crate::ident::IntentId;
use crate::run::{Executor, Whereabouts};
use crate::wire::a2g::{decode, encode, openrpc};
use jsonrpsee::RpcModule;
use jsonrpsee::core::{RegisterMethodError, RpcResult};
use jsonrpsee::types::Params;
use serde_json::value::RawValue;
use std::future::Future;
use std::sync::Arc;

/// The methods that also run as notifications: what a governor pushes.
pub const NOTIFICATIONS: &[&str] = &["g2a/policy", "g2a/revoke", "g2a/directive"];

type Encoded = Box<RawValue>;

/// The methods of this door.
///
/// # Errors
/// When two methods have one name.
pub fn methods(executor: Arc<Executor>) -> Result<RpcModule<Arc<Executor>>, RegisterMethodError> {
    let mut module = RpcModule::new(executor);
    register(&mut module, "a2g/execute", execute)?;
    register(&mut module, "a2g/intent", intent)?;
    register(&mut module, "a2g/cancel", async |executor, params| {
        let intent = decode::intent_id(&params)?;
        Ok(encode::cancelled(intent, executor.cancel(intent).await?))
    })?;
    register(&mut module, "a2g/status", async |executor, params| {
        status(&executor, decode::intent_id(&params)?).await
    })?;
    register(&mut module, "a2g/tools", async |executor, params| {
        decode::no_params(Some(&params))?;
        Ok(encode::tools(&executor.tools()))
    })?;
    register(&mut module, "g2a/policy", async |executor, params| {
        let policy = decode::policy(&params)?;
        executor.obeys_the_door()?;
        executor.set_policy(policy);
        Ok(encode::accepted())
    })?;
    register(&mut module, "g2a/revoke", async |executor, params| {
        let decode::Revoke { agent, intent } = decode::revoke(&params)?;
        executor.obeys_the_door()?;
        Ok(encode::revoked(executor.revoke(agent.as_ref(), intent).await?))
    })?;
    register(&mut module, "g2a/directive", async |executor, params| {
        let directive = decode::directive(&params)?;
        executor.obeys_the_door()?;
        executor.direct(&directive).await?;
        Ok(encode::accepted())
    })?;
    register(&mut module, "rpc.discover", async |_, _| {
        Ok(encode::value(&openrpc::document(env!("CARGO_PKG_VERSION"))))
    })?;
    Ok(module)
}

fn register<F, Fut>(
    module: &mut RpcModule<Arc<Executor>>,
    name: &'static str,
    method: F,
) -> Result<(), RegisterMethodError>
where
    F: Fn(Arc<Executor>, String) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Encoded, Fault>> + Send + 'static,
{
    module
        .register_async_method(name, move |params: Params<'static>, executor, _| {
            let params = params.as_str().unwrap_or("{}").to_owned();
            let answer = method(Arc::clone(&executor), params);
            async move { answer.await.map_err(|fault| error_object(&fault)) as RpcResult<Encoded> }
        })
        .map(drop)
}

async fn execute(executor: Arc<Executor>, params: String) -> Result<Encoded, Fault> {
    let decode::Execute { call, verdict, proof } = decode::execute(&params)?;
    let receipt = executor.execute(call, verdict, proof.as_ref()).await.map_err(in_intent)?;
    Ok(encode::report(&receipt))
}

/// The pipeline points into the intent, which is one member of the params here.
fn in_intent(fault: Fault) -> Fault {
    let Fault::InvalidParams { message, pointer } = fault else { return fault };
    Fault::InvalidParams { message, pointer: format!("/intent{pointer}") }
}

async fn intent(executor: Arc<Executor>, params: String) -> Result<Encoded, Fault> {
    let call = decode::intent(&params)?;
    if let Some(signatures) = executor.signatures() {
        let signature = decode::context_signature(&params, signatures.escape_non_ascii())?;
        executor.check_signature(&call, signature.as_ref())?;
    }
    let answer = executor.intent(call).await?;
    Ok(encode::intent_answer(&answer.verdict, answer.receipt.as_deref()))
}

async fn status(executor: &Executor, intent: IntentId) -> Result<Encoded, Fault> {
    let (state, receipt) = match executor.status(intent).await? {
        Some(Whereabouts::Escalated) => ("escalated", None),
        Some(Whereabouts::Queued) => ("queued", None),
        Some(Whereabouts::Running) => ("running", None),
        Some(Whereabouts::Finished(receipt)) => ("finished", receipt),
        None => {
            return Err(Fault::invalid("/intent_id", format!("the intent `{intent}` is not known here")));
        }
    };
    Ok(encode::status(intent, state, receipt.as_deref()))
}
