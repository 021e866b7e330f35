//! `journal show` of an intent without a receipt: it waits for a person, runs, or did not run.

use super::{LISTS_ADVICE, add_arguments, format_time, print_page};
use a2g_govern::Escalated;
use a2g_journal::history::{History, RecordEntry, RefusalEntry};
use a2g_types::call::{Call, StoredArguments};
use a2g_types::ident::IntentId;
use anyhow::bail;
use serde_json::{Value, json};
use time::OffsetDateTime;

pub(super) fn show(history: &History, intent: IntentId, json: bool) -> anyhow::Result<()> {
    if let Some(text) = history.waiting_text_of(intent)? {
        show_waiting(&Escalated::from_journal(&text)?, json);
        return Ok(());
    }
    let mut records = Vec::new();
    history.records(Some(intent), |record| -> anyhow::Result<()> {
        records.push(record);
        Ok(())
    })?;
    let refusal = history.refusal_of(intent)?;
    match (records.last(), refusal) {
        // A refusal before the last record is that of an earlier call with the id.
        (Some(last), Some(refusal)) if !is_open(last) || refusal.at > last.at => {
            show_refusal(&refusal, history.arguments_of_refusal(&refusal)?, json);
        }
        (None, Some(refusal)) => show_refusal(&refusal, history.arguments_of_refusal(&refusal)?, json),
        (Some(last), _) => {
            // The latest: another agent may have used the id before. A revocation has no tool, and may name another agent.
            let call = records.iter().rev().find(|record| record.tool.is_some());
            let agent = call.and_then(|call| call.agent.as_deref());
            let arguments = agent.map(|agent| history.arguments_of(intent, agent)).transpose()?.flatten();
            show_last(last, call, arguments, json);
        }
        (None, None) => bail!("the journal has nothing of the intent `{intent}`: {LISTS_ADVICE}"),
    }
    Ok(())
}

/// Returns `true` if the record is the start of a run that has not ended.
fn is_open(record: &RecordEntry) -> bool {
    record.kind == "claim"
}

/// The state of an intent without a receipt after its last record.
fn state_after(last: &RecordEntry) -> &'static str {
    match last.kind {
        "claim" => "runs, or was interrupted",
        "denied" | "cancelled" | "revoked" | "expired" => "did not run",
        _ => "has no receipt",
    }
}

fn show_waiting(escalated: &Escalated, json: bool) {
    let Call { intent, agent, tool, arguments, .. } = escalated.call();
    let verdict = escalated.verdict();
    let mut entry = json!({
        "intent_id": intent.to_string(), "state": "waits for a person", "agent_did": agent.as_str(), "tool": tool.as_str(),
        "until": format_time(escalated.expires_at()), "risk_score": verdict.risk.as_ref().map(|risk| risk.score),
        "reason": verdict.reason,
    });
    add_arguments(
        &mut entry,
        Some(StoredArguments::Kept { arguments: arguments.clone(), left_out: Vec::new() }),
    );
    print_page(entry, &[("until", escalated.expires_at())], json);
}

fn show_refusal(refusal: &RefusalEntry, arguments: Option<StoredArguments>, json: bool) {
    let RefusalEntry { at, intent, agent, tool, blocked_by, message } = refusal;
    let mut entry = json!({
        "intent_id": intent.to_string(), "state": "did not run", "agent_did": agent, "tool": tool,
        "refused": format_time(*at), "blocked_by": blocked_by, "message": message,
    });
    add_arguments(&mut entry, arguments);
    print_page(entry, &[("refused", *at)], json);
}

/// Shows an intent that runs, or whose receipt was pruned, with the latest record that names its call.
fn show_last(last: &RecordEntry, call: Option<&RecordEntry>, arguments: Option<StoredArguments>, json: bool) {
    let at: OffsetDateTime = last.at;
    let mut entry = json!({
        "intent_id": last.intent.map(|intent| intent.to_string()),
        "state": state_after(last),
        "agent_did": call.and_then(|call| call.agent.as_ref()),
        "tool": call.and_then(|call| call.tool.as_ref()),
        "last_record": last.kind, "at": format_time(at),
    });
    if let Some(members) = entry.as_object_mut() {
        members.retain(|_, value| *value != Value::Null);
    }
    add_arguments(&mut entry, arguments);
    print_page(entry, &[("at", at)], json);
}
