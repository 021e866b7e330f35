//! The methods on file changes that wait for a decision or can be undone.

use super::{ALL_ROLES, DECIDERS, Encoded, MethodCaller, decision_right, register};
use a2g_core::run::{ChangeSet, ChangeSetSummary, Executor};
use a2g_govern::Caller;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::outcome::FileChanges;
use a2g_wire::a2g::decode::{CommitParams, EffectsDecision, EffectsSet};
use a2g_wire::a2g::{decode, encode};
use jsonrpsee::RpcModule;
use jsonrpsee::core::RegisterMethodError;
use std::sync::Arc;

/// Registers the methods.
pub(super) fn register_all(module: &mut RpcModule<Arc<Executor>>) -> Result<(), RegisterMethodError> {
    register(
        module,
        "a2g/effects",
        &ALL_ROLES,
        async |executor, sender, params| match decode::effects_params(&params)? {
            None => Ok(list(&executor, &sender.caller)),
            Some(intent) => show(&executor, &sender.caller, intent).await,
        },
    )?;
    register(module, "a2g/commit", &DECIDERS, async |executor, MethodCaller { caller, .. }, params| {
        let CommitParams { intent, digest } = decode::commit_params(&params)?;
        let right = decision_right(&executor, "a2g/commit", &caller)?;
        let receipt = executor.changes.commit(intent, &digest, right).await?;
        Ok(encode::report(&receipt))
    })?;
    register(module, "a2g/discard", &ALL_ROLES, async |executor, MethodCaller { caller, .. }, params| {
        let intent = decode::decision_params(&params)?;
        check_visible(&executor, &caller, intent).await?;
        let may_decide = caller.decision_right().is_some();
        let may_discard = |agent: &AgentDid| may_decide || caller.may_cancel(agent);
        let receipt = executor.changes.discard(intent, &may_discard, caller.name()).await?;
        Ok(encode::report(&receipt))
    })?;
    register(module, "a2g/undo", &DECIDERS, async |executor, MethodCaller { caller, .. }, params| {
        let intent = decode::decision_params(&params)?;
        let right = decision_right(&executor, "a2g/undo", &caller)?;
        let receipt = executor.changes.undo(intent, right).await?;
        Ok(encode::report(&receipt))
    })
}

fn list(executor: &Executor, caller: &Caller) -> Encoded {
    let summaries = executor.changes.list(&|agent: &AgentDid| caller.may_read(agent));
    let set = |summary: ChangeSetSummary| {
        let changes = FileChanges::new(summary.count, summary.digest);
        effects_set(summary, changes, None)
    };
    encode::effects(&summaries.into_iter().map(set).collect::<Vec<_>>())
}

/// The changes of one run, with their list.
async fn show(executor: &Executor, caller: &Caller, intent: IntentId) -> Result<Encoded, Fault> {
    // Before the receipt is read, whose length would show in the time of the answer.
    check_visible(executor, caller, intent).await?;
    let found = executor.changes.find(intent).await?.filter(|set| caller.may_read(&set.summary.agent));
    let ChangeSet { summary, receipt, decisions } = found.ok_or_else(|| unknown_fault(intent))?;
    let decided = decisions.iter().filter_map(|decision| EffectsDecision::of_receipt(decision)).collect();
    let right = caller.decision_right();
    let with_bodies = executor.changes.with_bodies(&receipt, right.as_ref()).await;
    let shown = with_bodies.as_ref().unwrap_or(&receipt);
    let changes = shown.outcome.usage.changes.clone().ok_or_else(|| {
        Fault::Internal(format!("the receipt of `{intent}`, whose changes are known, has none"))
    })?;
    Ok(encode::effects(&[effects_set(summary, changes, Some(decided))]))
}

/// Checks that a caller may see a run of this node. To an agent, the runs of other agents do not exist.
async fn check_visible(executor: &Executor, caller: &Caller, intent: IntentId) -> Result<(), Fault> {
    match executor.queries.agent_of_start(intent)? {
        Some(agent) if caller.may_read(&agent) => Ok(()),
        Some(_) => Err(unknown_fault(intent)),
        None => {
            let may_read = |agent: &AgentDid| caller.may_read(agent);
            let elsewhere = executor.changes.find_elsewhere(intent, &may_read).await;
            Err(elsewhere.map_or_else(|| unknown_fault(intent), |message| Fault::invalid("/intent", message)))
        }
    }
}

fn effects_set(
    summary: ChangeSetSummary,
    changes: FileChanges,
    decisions: Option<Vec<EffectsDecision>>,
) -> EffectsSet {
    let ChangeSetSummary {
        intent,
        agent,
        tool,
        mode,
        state,
        count: _,
        requests: held,
        digest: _,
        bytes,
        since,
        until,
    } = summary;
    EffectsSet { intent, agent, tool, mode, state, changes, held, bytes, since, until, decisions }
}

fn unknown_fault(intent: IntentId) -> Fault {
    let message = format!(
        "no file changes of the intent `{intent}` wait, can be undone, or were decided on: `a2g/effects` without an intent \
         lists those that wait or can be undone"
    );
    Fault::invalid("/intent", message)
}
