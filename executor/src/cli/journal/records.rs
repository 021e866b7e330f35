//! `journal records`: the records of the chain, which name the source of every decision.

use super::format_time;
use crate::cli::UsageError;
use crate::cli::output::print;
use a2g_journal::chain::to_hex;
use a2g_journal::history::{History, RecordEntry};
use a2g_types::ident::IntentId;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Prints the records of an intent, or all records, one JSON object per line.
pub(super) fn list(journal: &Path, intent: Option<&str>) -> anyhow::Result<()> {
    let intent = intent.map(IntentId::parse).transpose().map_err(|error| UsageError(error.to_string()))?;
    History::open(journal)?.records(intent, |record| -> anyhow::Result<()> {
        print(record_json(&record)?);
        Ok(())
    })
}

fn record_json(record: &RecordEntry) -> anyhow::Result<Value> {
    let RecordEntry { number, kind, at, intent, agent, tool, status, about, body, hash } = record;
    let mut line = json!({ "record": number, "kind": kind, "at": format_time(*at), "hash": to_hex(hash) });
    let body = body.as_ref().map(|body| serde_json::from_str::<Value>(body.get())).transpose()?;
    let members = [
        ("intent_id", intent.map(|intent| intent.to_string().into())),
        ("agent_did", agent.clone().map(Value::from)),
        ("tool", tool.clone().map(Value::from)),
        ("status", status.clone().map(Value::from)),
        ("about", about.map(Value::from)),
        ("says", body),
    ];
    let optional = members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    if let Some(line) = line.as_object_mut() {
        line.extend(optional.collect::<Map<_, _>>());
    }
    Ok(line)
}
