//! The calls of runs that a kill has interrupted, for their reports: the list was in the memory of the killed process.
//!
//! The ids of the calls follow from the id of their run, so each is looked up by its number. Another agent can derive these
//! ids too, and only calls of the run's agent are its own. A call without any record, such as one to an unknown tool, is not
//! in the list. The calls beyond the longest list are only counted.

use super::recorded_state::{RecordedState, RunEnd, recorded_state};
use super::store::{InterruptedRun, find_body};
use a2g_types::error_chain::BoxedError;
use a2g_types::fault::BlockedBy;
use a2g_types::ident::IntentId;
use a2g_types::outcome::{CallUsage, NestedCall, NestedEnd, Receipt};
use a2g_types::stored;
use a2g_types::verdict::Decision;
use rusqlite::{Connection, params};
use std::collections::HashMap;
use std::time::Duration;

/// The number of calls without a record, one after another, that end the count of the calls beyond the longest list.
const MAX_GAP: u32 = 1000;

/// An interrupted run that could make calls.
#[derive(Clone, Copy)]
struct Parent<'a> {
    intent: IntentId,
    agent: &'a str,
    max_calls: u32,
}

/// A call as its records have it.
struct FoundCall {
    tool: String,
    decision: Option<Decision>,
    end: NestedEnd,
    duration: Duration,
}

/// The refused calls of one agent by their intents.
type Refusals = HashMap<IntentId, FoundCall>;

/// Adds the calls of interrupted runs to the receipts that recovery writes for them.
///
/// # Errors
/// SQLite's errors, and those of receipts and verdicts that cannot be parsed.
pub(super) fn add(
    connection: &Connection,
    mut runs: Vec<InterruptedRun>,
) -> Result<Vec<InterruptedRun>, BoxedError> {
    let lost = runs.iter().map(|run| stored::read_receipt(run.receipt.as_bytes()));
    let lost = lost.collect::<Result<Vec<_>, _>>()?;
    let may_call = lost.iter().any(|receipt| receipt.calls.is_some());
    let mut refusals_by_agent = if may_call { read_refusals(connection)? } else { HashMap::new() };
    for (run, receipt) in runs.iter_mut().zip(&lost) {
        // A run that could make no calls has no list.
        let Some(usage) = &receipt.calls else { continue };
        let refusals = refusals_by_agent.entry(receipt.agent.as_str().to_owned()).or_default();
        let parent =
            Parent { intent: run.intent, agent: receipt.agent.as_str(), max_calls: usage.max_calls.value };
        let calls = find_calls(connection, parent, &lost, refusals)?;
        let last_listed = calls.last().map_or(0, |call| call.ordinal);
        let count = find_last_ordinal(connection, parent, last_listed, refusals)?;
        let calls = Some(CallUsage { calls, count, ..usage.clone() });
        run.receipt = stored::write_receipt(&Receipt { calls, ..receipt.clone() })?;
    }
    Ok(runs)
}

/// The calls of a run, in order.
fn find_calls(
    connection: &Connection,
    parent: Parent<'_>,
    lost: &[Receipt],
    refusals: &mut Refusals,
) -> Result<Vec<NestedCall>, BoxedError> {
    let max_listed = u32::try_from(CallUsage::MAX_LISTED).unwrap_or(u32::MAX);
    let mut calls = Vec::new();
    for ordinal in 1..=parent.max_calls.min(max_listed) {
        let intent = parent.intent.nested(ordinal);
        let found = match find_call(connection, parent, intent, lost)? {
            Some(found) => Some(found),
            None => refusals.remove(&intent),
        };
        calls.extend(found.map(|FoundCall { tool, decision, end, duration }| NestedCall {
            ordinal,
            tool,
            intent,
            decision,
            end,
            duration,
        }));
    }
    Ok(calls)
}

/// The ordinal of the last call of a run that has a record, from that of the last listed call.
// A run may make 100,000 calls, so the receipts of those that are not listed are not read.
fn find_last_ordinal(
    connection: &Connection,
    parent: Parent<'_>,
    last_listed: u32,
    refusals: &Refusals,
) -> rusqlite::Result<u32> {
    let sql = "SELECT EXISTS (SELECT 1 FROM records WHERE intent = ?1 AND kind <> 'receipt' AND agent = ?2)";
    let mut statement = connection.prepare_cached(sql)?;
    let mut last = last_listed;
    for ordinal in (1..=parent.max_calls).skip(CallUsage::MAX_LISTED) {
        if ordinal - last > MAX_GAP {
            break;
        }
        let intent = parent.intent.nested(ordinal);
        let is_recorded = refusals.contains_key(&intent)
            || statement.query_row(params![intent.as_bytes(), parent.agent], |row| row.get::<_, bool>(0))?;
        if is_recorded {
            last = ordinal;
        }
    }
    Ok(last)
}

/// The call with this id, if the journal has a record of it, and the run made it.
fn find_call(
    connection: &Connection,
    parent: Parent<'_>,
    intent: IntentId,
    lost: &[Receipt],
) -> Result<Option<FoundCall>, BoxedError> {
    // An intent from outside may have the id as well.
    let is_of_parent =
        |receipt: &Receipt| receipt.parent.as_ref().is_some_and(|of| of.intent == parent.intent);
    Ok(match recorded_state(connection, intent)? {
        RecordedState::Claimed(claimed) => {
            let receipt = match claimed.end {
                RunEnd::Receipt(record) => read_receipt(connection, record)?,
                // It was interrupted as well.
                RunEnd::Pending => lost.iter().find(|lost| lost.intent == intent).cloned(),
                RunEnd::Pruned => None,
            };
            let verdict = claimed.verdict.map(|verdict| stored::read_verdict(verdict.get())).transpose()?;
            receipt.filter(is_of_parent).map(|receipt| FoundCall {
                tool: claimed.tool,
                decision: verdict.map(|verdict| verdict.decision),
                end: receipt.outcome.end.status().into(),
                duration: receipt.outcome.metrics.wall,
            })
        }
        RecordedState::Waiting(held) | RecordedState::Approved(held, _) => {
            (held.agent == parent.agent).then(|| waited(held.tool))
        }
        RecordedState::Denied(denied) => (denied.agent == parent.agent).then(|| waited(denied.tool)),
        RecordedState::Unknown | RecordedState::Withdrawn(_) => None,
    })
}

/// A call that had to wait for a person, and did not run.
fn waited(tool: String) -> FoundCall {
    FoundCall { tool, decision: Some(Decision::Escalate), end: NestedEnd::Refused, duration: Duration::ZERO }
}

fn read_receipt(connection: &Connection, record: i64) -> Result<Option<Receipt>, BoxedError> {
    Ok(find_body(connection, record)?.map(|body| stored::read_receipt(&body)).transpose()?)
}

/// The refused calls by their agents.
fn read_refusals(connection: &Connection) -> rusqlite::Result<HashMap<String, Refusals>> {
    let mut statement = connection.prepare("SELECT intent, tool, blocked_by, agent FROM refusals")?;
    let mut rows = statement.query([])?;
    let mut by_agent = HashMap::<String, Refusals>::new();
    while let Some(row) = rows.next()? {
        let is_denied = row.get_ref(2)?.as_str()? == BlockedBy::VerdictDenied.as_str();
        let decision = is_denied.then_some(Decision::Denied);
        let refused =
            FoundCall { tool: row.get(1)?, decision, end: NestedEnd::Refused, duration: Duration::ZERO };
        by_agent.entry(row.get(3)?).or_default().insert(IntentId::from_bytes(row.get(0)?), refused);
    }
    Ok(by_agent)
}
