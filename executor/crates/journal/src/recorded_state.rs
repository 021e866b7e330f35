//! The state of an intent according to its records: the newest relevant record decides.
//!
//! ```text
//! ─▶ Unknown ─ held ─▶ Waiting ─ approved ─▶ Approved ─ claim ─▶ Started ─ receipt ─▶ Ended
//!       ▲                 │  └─ denied ─▶ Denied             └─ released ─▶ Unknown
//!       └─ Withdrawn ◀─ cancelled, revoked, expired ─┘ (of a waiting or an approved intent)
//! ```
//! A waiting or an unknown intent may also be claimed, by a call with a proof.

use super::chain::Hash;
use super::record::{self, RecordKind, column_error};
use a2g_types::ident::IntentId;
use rusqlite::{Connection, OptionalExtension as _};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// The recorded state of an intent.
#[derive(Debug)]
pub(super) enum RecordedState {
    /// No record prevents the intent from waiting or starting.
    Unknown,
    /// The intent waits for a person.
    Waiting(WaitingIntent),
    /// A person approved the intent, and it has not started.
    Approved(WaitingIntent, record::DecisionBody),
    /// The intent was cancelled, revoked or not decided in time, and may be sent again with the same content. Contains
    /// the hash of that content, so that nobody who saw the intent wait approves anything else under its id.
    Withdrawn(Hash),
    /// A person denied the intent.
    Denied(DeniedIntent),
    /// The intent has started, and may have finished.
    Claimed(ClaimedIntent),
}

/// An intent that waits or has waited.
#[derive(Debug)]
pub(super) struct WaitingIntent {
    /// The number of the record of the wait, and of the row of its text in `waiting`.
    pub(super) number: i64,
    pub(super) agent: String,
    pub(super) tool: String,
    pub(super) body: record::HeldBody,
}

/// An intent that a person denied.
#[derive(Debug)]
pub(super) struct DeniedIntent {
    pub(super) number: i64,
    pub(super) agent: String,
    pub(super) tool: String,
    pub(super) body: record::DecisionBody,
}

/// An intent that has started.
#[derive(Debug)]
pub(super) struct ClaimedIntent {
    /// The number of the record of the claim, or of the copy that pruning wrote.
    pub(super) number: i64,
    pub(super) agent: String,
    pub(super) tool: String,
    pub(super) content: Hash,
    /// In microseconds since 1970.
    pub(super) keep_until: i64,
    pub(super) verdict: Option<Box<RawValue>>,
    pub(super) end: RunEnd,
}

/// The end of a claim's run, with the place of its receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunEnd {
    /// The run has not ended.
    Pending,
    /// The run has a receipt. Contains the number of its record.
    Receipt(i64),
    /// The receipt was pruned.
    Pruned,
}

/// One row of the query in [`recorded_state`].
struct IntentRow {
    number: i64,
    kind: RecordKind,
    agent: String,
    tool: String,
    about: Option<i64>,
    body: Vec<u8>,
}

impl IntentRow {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let kind =
            row.get_ref(1)?.as_str().ok().and_then(RecordKind::parse).ok_or_else(|| column_error(1))?;
        let text = |column: usize| {
            Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_str_or_null()?.unwrap_or_default().to_owned())
        };
        Ok(Self {
            number: row.get(0)?,
            kind,
            agent: text(2)?,
            tool: text(3)?,
            about: row.get(4)?,
            body: row.get(5)?,
        })
    }

    fn parse_body<T: DeserializeOwned>(&self) -> rusqlite::Result<T> {
        parse_body(&self.body)
    }

    fn into_claimed(
        self,
        content: record::Digest32,
        keep_until: i64,
        verdict: Option<Box<RawValue>>,
        end: RunEnd,
    ) -> RecordedState {
        let Self { number, agent, tool, .. } = self;
        let content = content.0;
        RecordedState::Claimed(ClaimedIntent { number, agent, tool, content, keep_until, verdict, end })
    }
}

/// Parses the JSON body of a record.
pub(super) fn parse_body<T: DeserializeOwned>(body: &[u8]) -> rusqlite::Result<T> {
    serde_json::from_slice(body).map_err(|_not_as_written| column_error(5))
}

/// Reads the state of an intent from its records.
///
/// # Errors
/// SQLite's errors, and an error for a record that this version cannot have written.
pub(super) fn recorded_state(connection: &Connection, intent: IntentId) -> rusqlite::Result<RecordedState> {
    // Only the records are read, because only the hash chain protects them.
    let mut statement = connection.prepare_cached(
        "SELECT number, kind, agent, tool, about, body FROM records
         WHERE intent = ?1 AND kind <> 'receipt' ORDER BY number DESC",
    )?;
    let mut rows = statement.query([intent.as_bytes()])?;
    let mut extended_until = 0;
    while let Some(row) = rows.next()? {
        let row = IntentRow::read(row)?;
        return match row.kind {
            RecordKind::Kept => {
                // Verdicts arrive in any order, so the newest record may not have the latest expiry.
                extended_until = extended_until.max(row.parse_body::<record::KeptBody>()?.keep_until);
                continue;
            }
            // The intent continues to wait.
            RecordKind::PartlyApproved => continue,
            RecordKind::Stopped
            | RecordKind::Revocation
            | RecordKind::Task
            | RecordKind::TaskDropped
            | RecordKind::Fleet => continue,
            RecordKind::Claim => {
                let body: record::ClaimBody = row.parse_body()?;
                let end = find_receipt(connection, row.number)?.map_or(RunEnd::Pending, RunEnd::Receipt);
                let keep_until = body.keep_until.max(extended_until);
                Ok(row.into_claimed(body.content, keep_until, body.verdict, end))
            }
            RecordKind::Used => {
                let body: record::UsedBody = row.parse_body()?;
                let receipt = find_copied_receipt(connection, row.about)?;
                let end = receipt.map_or(RunEnd::Pruned, RunEnd::Receipt);
                let keep_until = body.keep_until.max(extended_until);
                Ok(row.into_claimed(body.content, keep_until, body.verdict, end))
            }
            RecordKind::Denied => {
                let body = row.parse_body()?;
                let IntentRow { number, agent, tool, .. } = row;
                Ok(RecordedState::Denied(DeniedIntent { number, agent, tool, body }))
            }
            RecordKind::Held => Ok(RecordedState::Waiting(read_held(row)?)),
            RecordKind::Approved => read_approved(connection, &row),
            RecordKind::Released => Ok(RecordedState::Unknown),
            RecordKind::Cancelled | RecordKind::Revoked | RecordKind::Expired => {
                let body: record::DecisionBody = row.parse_body()?;
                Ok(RecordedState::Withdrawn(body.held.content.0))
            }
            // These kinds are not in the index of intents, so the row was changed.
            RecordKind::Receipt
            | RecordKind::Delivered
            | RecordKind::Refusals
            | RecordKind::Pruned
            | RecordKind::StopSet
            | RecordKind::StopLifted => Err(column_error(1)),
        };
    }
    Ok(RecordedState::Unknown)
}

fn read_held(row: IntentRow) -> rusqlite::Result<WaitingIntent> {
    Ok(WaitingIntent { number: row.number, body: row.parse_body()?, agent: row.agent, tool: row.tool })
}

fn read_approved(connection: &Connection, row: &IntentRow) -> rusqlite::Result<RecordedState> {
    let about = row.about.ok_or_else(|| column_error(4))?;
    let held = connection
        .prepare_cached(
            "SELECT number, kind, agent, tool, about, body FROM records WHERE number = ?1 AND kind = 'held'",
        )?
        .query_row([about], IntentRow::read)?;
    Ok(RecordedState::Approved(read_held(held)?, row.parse_body()?))
}

/// The record of the receipt of an intent; `None` if the intent has not ended, or its receipt was pruned.
pub(super) fn receipt_record(connection: &Connection, intent: IntentId) -> rusqlite::Result<Option<i64>> {
    let RecordedState::Claimed(claimed) = recorded_state(connection, intent)? else { return Ok(None) };
    Ok(match claimed.end {
        RunEnd::Receipt(record) => Some(record),
        RunEnd::Pending | RunEnd::Pruned => None,
    })
}

/// The receipt that a copy of a claim names; `None` if it was pruned after its claim was copied.
fn find_copied_receipt(connection: &Connection, receipt: Option<i64>) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT number FROM records WHERE number = ?1 AND kind = 'receipt'";
    connection.prepare_cached(sql)?.query_row([receipt], |row| row.get(0)).optional()
}

/// The record of the receipt of a claim.
pub(super) fn find_receipt(connection: &Connection, claim: i64) -> rusqlite::Result<Option<i64>> {
    connection
        // The index of intents has no receipts, so that a write of a receipt updates one index and not two.
        .prepare_cached("SELECT number FROM records WHERE about = ?1 AND kind = 'receipt'")?
        .query_row([claim], |row| row.get(0))
        .optional()
}
