//! `journal show --tree`: an intent, the calls that its run made, the calls that their runs made, and so on.

use crate::cli::layout::align;
use crate::cli::output::{columns, one_line, print};
use a2g_journal::history::{History, HistoryError};
use a2g_types::ident::IntentId;
use a2g_types::outcome::{CallUsage, NestedCall, NestedEnd, Receipt, Status};
use serde_json::{Value, json};

/// The number of consecutive calls without a record after which no further call is looked for.
// Calls that were refused, or had not begun when the server ended, have no record of their own.
const MAX_GAP: u32 = 32;
/// The depth at which the tree ends. No run is nested so deeply.
const MAX_DEPTH: usize = 64;

/// An intent and its calls.
#[derive(Debug)]
struct Node {
    intent: IntentId,
    /// The number among the calls of its run; `None` for a call from outside.
    ordinal: Option<u32>,
    tool: String,
    verdict: Option<&'static str>,
    status: String,
    duration_ms: Option<u64>,
    calls: Vec<Self>,
    /// The number of calls that the intent's report does not list.
    unlisted: u32,
}

/// Prints the tree below a receipt.
pub(super) fn show(history: &History, receipt: &Receipt, json: bool) -> Result<(), HistoryError> {
    let root = of_receipt(history, receipt, None, 0)?;
    if json {
        print(format_args!("{:#}", root.to_json()));
        return Ok(());
    }
    if let Some(parent) = &receipt.parent {
        print(format_args!("call {} of {}, {}", parent.ordinal, parent.tool, parent.intent));
    }
    let titles = ["call", "verdict", "status", "duration", "intent"].map(str::to_owned).to_vec();
    let mut rows = vec![titles];
    root.push_rows(0, &mut rows);
    print(align(&rows, &[(0, 12)], columns(&std::io::stdout())));
    Ok(())
}

fn of_receipt(
    history: &History,
    receipt: &Receipt,
    listed: Option<&NestedCall>,
    depth: usize,
) -> Result<Node, HistoryError> {
    let Receipt { intent, tool, parent, calls, outcome, .. } = receipt;
    let is_lost = calls.is_none() && outcome.end.status() == Status::Aborted;
    let (children, unlisted) = match calls {
        _ if depth >= MAX_DEPTH => (Vec::new(), 0),
        Some(usage) => (of_usage(history, usage, depth)?, count_unlisted(usage)),
        None if is_lost => (probe(history, *intent, depth)?, 0),
        None => (Vec::new(), 0),
    };
    let decision = match listed.and_then(|call| call.decision) {
        Some(decision) => Some(decision),
        None => history.decision_of(*intent)?,
    };
    Ok(Node {
        intent: *intent,
        ordinal: parent.as_ref().map(|parent| parent.ordinal),
        tool: tool.to_string(),
        verdict: decision.map(Into::into),
        status: outcome.end.status().as_str().to_owned(),
        duration_ms: Some(outcome.metrics.duration_ms()),
        calls: children,
        unlisted,
    })
}

fn count_unlisted(CallUsage { count, calls, .. }: &CallUsage) -> u32 {
    count.saturating_sub(u32::try_from(calls.len()).unwrap_or(u32::MAX))
}

fn of_usage(history: &History, usage: &CallUsage, depth: usize) -> Result<Vec<Node>, HistoryError> {
    usage.calls.iter().map(|call| of_listed(history, call, depth)).collect()
}

fn of_listed(history: &History, call: &NestedCall, depth: usize) -> Result<Node, HistoryError> {
    let receipt = receipt_of(history, call.intent)?;
    // If an intent from outside already had the call's id, the call was refused, and the receipt is that intent's.
    if let Some(receipt) = receipt.filter(|receipt| receipt.parent.is_some()) {
        return of_receipt(history, &receipt, Some(call), depth + 1);
    }
    let NestedCall { ordinal, tool, intent, decision, end, duration } = call;
    Ok(Node {
        intent: *intent,
        ordinal: Some(*ordinal),
        tool: tool.clone(),
        verdict: decision.map(Into::into),
        status: end.as_str().to_owned(),
        duration_ms: u64::try_from(duration.as_millis()).ok(),
        calls: Vec::new(),
        unlisted: 0,
    })
}

/// The calls of a run whose list was lost with the server.
fn probe(history: &History, parent: IntentId, depth: usize) -> Result<Vec<Node>, HistoryError> {
    let mut found = Vec::new();
    let mut gap = 0;
    for ordinal in 1.. {
        match of_record(history, parent, ordinal, depth)? {
            Some(node) => {
                found.push(node);
                gap = 0;
            }
            None => gap += 1,
        }
        if gap == MAX_GAP {
            break;
        }
    }
    Ok(found)
}

/// The call with this number, if the journal has a record of it.
fn of_record(
    history: &History,
    parent: IntentId,
    ordinal: u32,
    depth: usize,
) -> Result<Option<Node>, HistoryError> {
    let intent = parent.nested(ordinal);
    if let Some(receipt) = receipt_of(history, intent)? {
        let is_nested = receipt.parent.as_ref().is_some_and(|of| of.intent == parent);
        return is_nested.then(|| of_receipt(history, &receipt, None, depth + 1)).transpose();
    }
    let mut found = None;
    history.records(Some(intent), |record| -> Result<(), HistoryError> {
        let node = found.get_or_insert_with(|| Node {
            intent,
            ordinal: Some(ordinal),
            tool: String::new(),
            verdict: None,
            status: String::new(),
            duration_ms: None,
            calls: Vec::new(),
            unlisted: 0,
        });
        if let Some(tool) = record.tool {
            node.tool = tool;
        }
        let has_ended = !["claim", "held", "approved"].contains(&record.kind);
        node.status = if has_ended { NestedEnd::Refused } else { NestedEnd::Pending }.as_str().to_owned();
        Ok(())
    })?;
    Ok(found)
}

fn receipt_of(history: &History, intent: IntentId) -> Result<Option<Receipt>, HistoryError> {
    history.receipt_of(intent)?.map(|entry| entry.parse_receipt()).transpose()
}

impl Node {
    fn push_rows(&self, depth: usize, rows: &mut Vec<Vec<String>>) {
        let Self { intent, ordinal, tool, verdict, status, duration_ms, calls, unlisted } = self;
        let number = ordinal.filter(|_| depth > 0).map(|ordinal| format!("{ordinal} ")).unwrap_or_default();
        let block = intent.to_string().split('-').next().unwrap_or_default().to_owned();
        rows.push(vec![
            format!("{}{number}{}", "  ".repeat(depth), one_line(tool)),
            verdict.unwrap_or("-").to_owned(),
            status.clone(),
            duration_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms")),
            block,
        ]);
        calls.iter().for_each(|call| call.push_rows(depth + 1, rows));
        if *unlisted > 0 {
            rows.push(vec![format!("{}and {unlisted} more", "  ".repeat(depth + 1))]);
        }
    }

    fn to_json(&self) -> Value {
        let Self { intent, ordinal, tool, verdict, status, duration_ms, calls, unlisted } = self;
        let mut json = json!({
            "intent_id": intent.to_string(), "ordinal": ordinal, "tool": tool, "verdict": verdict, "status": status,
            "duration_ms": duration_ms, "calls": calls.iter().map(Self::to_json).collect::<Vec<_>>(), "unlisted": unlisted,
        });
        // Members without a value are left out, as in reports.
        if let Some(members) = json.as_object_mut() {
            members.retain(|name, value| !value.is_null() && (name != "unlisted" || *value != 0));
        }
        json
    }
}
