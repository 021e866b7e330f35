//! The standing of an intent by its records: the newest relevant record decides.
//!
//! ```text
//! ─▶ Unknown ─ held ─▶ Waiting ─ approved ─▶ Approved ─ claim ─▶ Started ─ receipt ─▶ Ended
//!       ▲                 │  └─ denied ─▶ Denied             └─ released ─▶ Unknown
//!       └─ cancelled, revoked, expired ──────┘ (of a waiting or an approved intent)
//! ```
//! A waiting or an unknown intent may be claimed as well, by a proof that arrived for it.

use super::chain::Hash;
use super::record::{self, Kind, wrong};
use crate::ident::IntentId;
use rusqlite::{Connection, OptionalExtension as _};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// The standing of an intent.
#[derive(Debug)]
pub(super) enum Standing {
    /// No record prevents the intent from waiting or starting.
    Unknown,
    /// It waits for a person.
    Waiting(Held),
    /// A person approved it, and it has not started.
    Approved(Held, record::Decided),
    /// A person denied it.
    Denied(Denied),
    /// It has started, and may have finished.
    Claimed(Claimed),
}

/// An intent that waits, or waited.
#[derive(Debug)]
pub(super) struct Held {
    /// The record of the wait, and the row of its text in `waiting`.
    pub(super) number: i64,
    pub(super) agent: String,
    pub(super) tool: String,
    pub(super) body: record::Held,
}

/// An intent that a person denied.
#[derive(Debug)]
pub(super) struct Denied {
    pub(super) number: i64,
    pub(super) agent: String,
    pub(super) tool: String,
    pub(super) body: record::Decided,
}

/// An intent that has started.
#[derive(Debug)]
pub(super) struct Claimed {
    /// The record of its claim, or the one that pruning wrote instead.
    pub(super) number: i64,
    pub(super) agent: String,
    pub(super) tool: String,
    pub(super) content: Hash,
    /// In microseconds since 1970.
    pub(super) keep_until: i64,
    pub(super) verdict: Option<Box<RawValue>>,
    pub(super) end: Ended,
}

/// The end of a claim's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The run has not ended.
    No,
    /// The record of its receipt.
    Receipt(i64),
    /// The receipt was pruned.
    Pruned,
}

/// One row of the query of [`standing`].
struct Row {
    number: i64,
    kind: Kind,
    agent: String,
    tool: String,
    about: Option<i64>,
    body: Vec<u8>,
}

impl Row {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let kind = row.get_ref(1)?.as_str().ok().and_then(Kind::parse).ok_or_else(|| wrong(1))?;
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

    fn body<T: DeserializeOwned>(&self) -> rusqlite::Result<T> {
        body(&self.body)
    }
}

/// Parses the JSON body of a record.
pub(super) fn body<T: DeserializeOwned>(body: &[u8]) -> rusqlite::Result<T> {
    serde_json::from_slice(body).map_err(|_not_as_written| wrong(5))
}

/// The standing of an intent by its records.
///
/// # Errors
/// SQLite's errors, and a record that differs from its written form.
pub(super) fn standing(connection: &Connection, intent: IntentId) -> rusqlite::Result<Standing> {
    let mut statement = connection.prepare_cached(
        "SELECT number, kind, agent, tool, about, body FROM records
         WHERE intent = ?1 AND kind <> 'receipt' ORDER BY number DESC",
    )?;
    let mut rows = statement.query([intent.as_bytes()])?;
    let mut kept_until = 0;
    while let Some(row) = rows.next()? {
        let row = Row::read(row)?;
        return match row.kind {
            Kind::Kept => {
                kept_until = kept_until.max(row.body::<record::Kept>()?.keep_until);
                continue;
            }
            Kind::Stopped | Kind::Revocation | Kind::Task | Kind::TaskDropped => continue,
            Kind::Claim => claimed(connection, row, kept_until),
            Kind::Used => used(connection, row, kept_until),
            Kind::Denied => {
                let body = row.body()?;
                let Row { number, agent, tool, .. } = row;
                Ok(Standing::Denied(Denied { number, agent, tool, body }))
            }
            Kind::Held => Ok(Standing::Waiting(held(row)?)),
            Kind::Approved => approved(connection, &row),
            Kind::Released | Kind::Cancelled | Kind::Revoked | Kind::Expired => Ok(Standing::Unknown),
            Kind::Receipt | Kind::Delivered | Kind::Refusals | Kind::Pruned | Kind::Migrated => Err(wrong(1)),
        };
    }
    Ok(Standing::Unknown)
}

fn held(row: Row) -> rusqlite::Result<Held> {
    Ok(Held { number: row.number, body: row.body()?, agent: row.agent, tool: row.tool })
}

fn approved(connection: &Connection, row: &Row) -> rusqlite::Result<Standing> {
    let about = row.about.ok_or_else(|| wrong(4))?;
    let waited = connection
        .prepare_cached(
            "SELECT number, kind, agent, tool, about, body FROM records WHERE number = ?1 AND kind = 'held'",
        )?
        .query_row([about], Row::read)?;
    Ok(Standing::Approved(held(waited)?, row.body()?))
}

fn claimed(connection: &Connection, row: Row, kept_until: i64) -> rusqlite::Result<Standing> {
    let record::Claim { content, keep_until, verdict, will: _, task: _ } = row.body()?;
    let end = receipt_of(connection, row.number)?.map_or(Ended::No, Ended::Receipt);
    let keep_until = keep_until.max(kept_until);
    let Row { number, agent, tool, .. } = row;
    Ok(Standing::Claimed(Claimed { number, agent, tool, content: content.0, keep_until, verdict, end }))
}

fn used(connection: &Connection, row: Row, kept_until: i64) -> rusqlite::Result<Standing> {
    let record::Used { content, keep_until, verdict } = row.body()?;
    let receipt = match row.about {
        Some(number) => connection
            .prepare_cached("SELECT number FROM records WHERE number = ?1 AND kind = 'receipt'")?
            .query_row([number], |row| row.get(0))
            .optional()?,
        None => None,
    };
    let end = receipt.map_or(Ended::Pruned, Ended::Receipt);
    let keep_until = keep_until.max(kept_until);
    let Row { number, agent, tool, .. } = row;
    Ok(Standing::Claimed(Claimed { number, agent, tool, content: content.0, keep_until, verdict, end }))
}

/// The record of the receipt of a claim.
pub(super) fn receipt_of(connection: &Connection, claim: i64) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached("SELECT number FROM records WHERE about = ?1 AND kind = 'receipt'")?
        .query_row([claim], |row| row.get(0))
        .optional()
}
