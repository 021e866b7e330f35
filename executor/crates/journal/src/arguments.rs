//! The arguments of calls, in rows beside the records of their starts, and of their waits that ended without a start.
//!
//! The record has the hash of its row. The record's hash of the call's content also covers the arguments, so a full check
//! computes it again, unless members were left out: those that the operator never wants stored.

use super::claims::hash_content;
use super::finding::{CheckError, Finding};
use super::record::{self, Digest32, JournalRecord, RecordKind, digest};
use super::recorded_state::parse_body;
use super::store::Reader;
use super::tables::CHANGED;
use a2g_types::call::{Call, StoredArguments, main_argument};
use a2g_types::ident::IntentId;
use a2g_types::stored;
use rusqlite::{Connection, OptionalExtension as _, params};

/// The table of the arguments.
// A check compares this text with the file, comments included.
pub(super) const TABLE: &str = "
CREATE TABLE arguments(          -- of calls that have started, or waited and did not start
    number INTEGER PRIMARY KEY,  -- the record that says so, and has the hash of the text
    text TEXT NOT NULL
);
";

/// The extent to which a journal stores the arguments of calls.
#[derive(Debug, Clone)]
pub enum ArgumentStorage {
    /// The arguments are stored.
    Full {
        /// The maximum length of the arguments of one call as JSON, in bytes. Longer ones are not stored.
        max_bytes: u64,
        /// The names of members that are never stored, at any depth and in any case.
        never: Vec<String>,
    },
    /// Only the hash of the call's content is stored.
    Hash,
}

impl ArgumentStorage {
    /// The default maximum length of the arguments of one call, in bytes.
    pub const DEFAULT_MAX_BYTES: u64 = 64 << 10;

    /// The text to store for a call; `None` if only its hash is stored.
    pub(super) fn text(&self, call: &Call) -> Option<String> {
        match self {
            Self::Full { max_bytes, never } => Some(stored::write_arguments(call, never, *max_bytes)),
            Self::Hash => None,
        }
    }
}

/// The purpose of stored arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredFor {
    /// The latest start of a call, or the end of its wait.
    Call,
    /// The end of a wait without a start. `at` is the time of the refusal that was recorded with it, in microseconds since
    /// 1970: a later call with the same id may have been refused at once, and had other arguments.
    EndedWait { at: i64 },
}

impl Default for ArgumentStorage {
    fn default() -> Self {
        Self::Full { max_bytes: Self::DEFAULT_MAX_BYTES, never: Vec::new() }
    }
}

impl Reader {
    pub(super) fn arguments(
        &self,
        intent: IntentId,
        agent: &str,
        stored_for: StoredFor,
    ) -> rusqlite::Result<Option<StoredArguments>> {
        let ended = match stored_for {
            StoredFor::Call => None,
            StoredFor::EndedWait { at } => Some(at),
        };
        // `kind <> 'receipt'` is the condition of the index of intents.
        let sql = "SELECT text FROM records JOIN arguments USING (number)
                   WHERE intent = ?1 AND kind <> 'receipt' AND agent = ?2
                     AND (?3 IS NULL OR (kind <> 'claim' AND at = ?3))
                   ORDER BY number DESC LIMIT 1";
        let mut statement = self.connection().prepare_cached(sql)?;
        let text =
            statement.query_row(params![intent.as_bytes(), agent, ended], |row| row.get::<_, String>(0));
        let row = text.optional()?.map(|text| stored::read_arguments(&text)).transpose();
        Ok(row.map_err(|_not_as_written| record::column_error(0))?.map(|row| row.arguments))
    }

    /// The argument by which people recognise an agent's call; `None` if its arguments are not stored.
    pub(super) fn main_argument(
        &self,
        intent: IntentId,
        agent: &str,
        stored_for: StoredFor,
    ) -> rusqlite::Result<Option<String>> {
        Ok(match self.arguments(intent, agent, stored_for)? {
            Some(StoredArguments::Kept { arguments, left_out: _ }) => main_argument(&arguments),
            Some(StoredArguments::TooLarge { .. }) | None => None,
        })
    }
}

/// Writes the row of a record.
pub(super) fn insert(connection: &Connection, record: i64, text: Option<&String>) -> rusqlite::Result<()> {
    let Some(text) = text else { return Ok(()) };
    let sql = "INSERT INTO arguments(number, text) VALUES (?1, ?2)";
    connection.prepare_cached(sql)?.execute(params![record, text]).map(drop)
}

/// Removes the rows of the records up to `cut`.
pub(super) fn prune(connection: &Connection, cut: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM arguments WHERE number <= ?1")?.execute([cut]).map(drop)
}

/// The hashes of a record that its row of arguments has to match: of the text, and of the call's content.
fn hashes(record: &JournalRecord<'_>) -> rusqlite::Result<Option<(Digest32, Digest32)>> {
    Ok(match record.kind {
        RecordKind::Claim => {
            let body = parse_body::<record::ClaimBody>(record.body)?;
            body.arguments.map(|arguments| (arguments, body.content))
        }
        RecordKind::Denied | RecordKind::Cancelled | RecordKind::Revoked | RecordKind::Expired => {
            let body = parse_body::<record::DecisionBody>(record.body)?;
            body.arguments.map(|arguments| (arguments, body.held.content))
        }
        RecordKind::Receipt
        | RecordKind::Released
        | RecordKind::Kept
        | RecordKind::Delivered
        | RecordKind::Held
        | RecordKind::PartlyApproved
        | RecordKind::Approved
        | RecordKind::Stopped
        | RecordKind::Revocation
        | RecordKind::Fleet
        | RecordKind::Task
        | RecordKind::TaskDropped
        | RecordKind::Refusals
        | RecordKind::Used
        | RecordKind::Pruned
        | RecordKind::StopSet
        | RecordKind::StopLifted => None,
    })
}

/// Compares a record with its row of arguments, and with `is_full` the row with the call's content. Returns `true` if the
/// record has a row.
pub(super) fn check(
    connection: &Connection,
    record: &JournalRecord<'_>,
    is_full: bool,
) -> Result<bool, CheckError> {
    let Some((hash, content)) = hashes(record)? else { return Ok(false) };
    let error = |what| CheckError::Found(Finding::Row { table: "arguments", record: record.number, what });
    let sql = "SELECT text FROM arguments WHERE number = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([record.number])?;
    let row = rows.next()?.ok_or_else(|| error("is missing"))?;
    let text = row.get_ref(0)?.as_str().map_err(|_other_type| error(CHANGED))?;
    if digest(text.as_bytes()) != hash {
        return Err(error(CHANGED));
    }
    if is_full {
        let row = stored::read_arguments(text).map_err(|_not_as_written| error(CHANGED))?;
        let kept = match &row.arguments {
            StoredArguments::Kept { arguments, left_out } => Some(arguments).filter(|_| left_out.is_empty()),
            StoredArguments::TooLarge { .. } => None,
        };
        let agent = record.agent.unwrap_or_default();
        let tool = record.tool.unwrap_or_default();
        if kept.is_some_and(|kept| hash_content(agent, tool, kept, row.parent, row.session) != content.0) {
            return Err(error("differs from the call that its record is about"));
        }
    }
    Ok(true)
}

/// Compares the number of rows with those that the checked records have: `count`, after the record `begin`.
pub(super) fn check_count(connection: &Connection, begin: i64, count: i64) -> Result<(), CheckError> {
    let sql = "SELECT count(*), max(number) FROM arguments WHERE number > ?1";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?));
    match connection.query_row(sql, [begin], read)? {
        (rows, _) if rows == count => Ok(()),
        (_, last) => {
            let record = last.unwrap_or_default();
            Err(Finding::Row { table: "arguments", record, what: "has no record" }.into())
        }
    }
}
