//! The journal as people query it: the runs, refusals and decisions, and its integrity.

use super::chain::{Hash, Head};
use super::error::OpenError;
use super::record::{JournalRecord, RECORD_COLUMNS, RecordKind};
use super::recorded_state::{RecordedState, RunEnd, recorded_state};
use super::store::{Reader, from_sqlite_int, to_sqlite_int};
use super::verify::{Finding, verify};
use super::{from_micros, to_micros};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::{Receipt, Status};
use a2g_types::stored;
use rusqlite::{OptionalExtension as _, Row, params};
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};
use time::OffsetDateTime;

/// The reason for which a query has no answer.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// An error of the file.
    #[error("the journal cannot be read")]
    Sqlite(#[from] rusqlite::Error),
    /// A receipt that cannot be parsed.
    #[error("receipt {number} cannot be understood")]
    Receipt {
        /// Its number.
        number: u64,
        /// The parser's error.
        source: serde_json::Error,
    },
}

/// A selection of receipts. Members that are `None` or `false` select everything.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Those of this agent.
    pub agent: Option<AgentDid>,
    /// Those of this tool.
    pub tool: Option<ToolName>,
    /// Those with this status.
    pub status: Option<Status>,
    /// Those that ended at this time or later.
    pub since: Option<OffsetDateTime>,
    /// Those that ended before this time.
    pub until: Option<OffsetDateTime>,
    /// Those that the governor does not have.
    pub undelivered: bool,
}

/// One receipt with its place in the chain.
#[derive(Debug, Clone)]
pub struct ReceiptEntry {
    /// Its number, from 1.
    pub number: u64,
    /// Its intent.
    pub intent: IntentId,
    /// Its agent.
    pub agent: String,
    /// Its tool.
    pub tool: String,
    /// Its status word.
    pub status: String,
    /// The time at which it ended.
    pub ended: OffsetDateTime,
    /// `true` if the governor has its report.
    pub delivered: bool,
    /// Its hash.
    pub hash: Hash,
    body: Vec<u8>,
}

impl ReceiptEntry {
    /// Parses the receipt.
    ///
    /// # Errors
    /// [`HistoryError::Receipt`] if it was written by another version, or changed.
    pub fn parse_receipt(&self) -> Result<Receipt, HistoryError> {
        stored::read_receipt(&self.body)
            .map_err(|source| HistoryError::Receipt { number: self.number, source })
    }
}

/// A call that was not run.
#[derive(Debug, Clone)]
pub struct RefusalEntry {
    /// The time of the refusal.
    pub at: OffsetDateTime,
    /// The intent.
    pub intent: IntentId,
    /// The agent.
    pub agent: String,
    /// The tool.
    pub tool: String,
    /// The reason, as a word.
    pub blocked_by: String,
    /// The reason, as a sentence.
    pub message: String,
}

/// A record in readable form.
#[derive(Debug, Clone)]
pub struct RecordEntry {
    /// Its number.
    pub number: u64,
    /// Its kind, as a word.
    pub kind: &'static str,
    /// The time at which it was written.
    pub at: OffsetDateTime,
    /// The intent that it is about.
    pub intent: Option<IntentId>,
    /// Its agent.
    pub agent: Option<String>,
    /// Its tool.
    pub tool: Option<String>,
    /// The status word of a receipt.
    pub status: Option<String>,
    /// The record that this one is about.
    pub about: Option<i64>,
    /// The rest of its content, as JSON; `None` for a receipt, which has a report, and for a task.
    pub body: Option<Box<RawValue>>,
    /// Its hash.
    pub hash: Hash,
}

/// A journal that is only read. A server may write it meanwhile.
pub struct History(Reader, PathBuf);

impl History {
    /// Opens an existing journal.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Ok(Self(Reader::open(path)?, path.to_owned()))
    }

    /// Passes receipts to `each`, newest first unless `oldest_first`, at most `most`.
    ///
    /// # Errors
    /// [`HistoryError`], and the errors of `each`.
    pub fn receipts<E: From<HistoryError>>(
        &self,
        filter: &Filter,
        oldest_first: bool,
        most: Option<u64>,
        mut each: impl FnMut(ReceiptEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        let Filter { agent, tool, status, since, until, undelivered } = filter;
        let order = if oldest_first { "ASC" } else { "DESC" };
        let sql = format!(
            "SELECT {ENTRY_COLUMNS} FROM records
             WHERE kind = 'receipt' AND (?1 IS NULL OR agent = ?1) AND (?2 IS NULL OR tool = ?2)
               AND (?3 IS NULL OR status = ?3) AND (?4 IS NULL OR at >= ?4) AND (?5 IS NULL OR at < ?5)
               AND (NOT ?6 OR number IN (SELECT receipt FROM open WHERE receipt IS NOT NULL))
             ORDER BY number {order} LIMIT ?7"
        );
        let chosen = params![
            agent.as_ref().map(AgentDid::as_str),
            tool.as_ref().map(ToolName::as_str),
            status.map(Status::as_str),
            since.map(to_micros),
            until.map(to_micros),
            undelivered,
            most.map_or(-1, to_sqlite_int),
        ];
        let mut statement = self.0.connection().prepare(&sql).map_err(HistoryError::from)?;
        let rows = statement.query_map(chosen, read_entry).map_err(HistoryError::from)?;
        rows.into_iter().try_for_each(|row| each(row.map_err(HistoryError::from)?))
    }

    /// The receipt of an intent.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn receipt_of(&self, intent: IntentId) -> Result<Option<ReceiptEntry>, HistoryError> {
        let connection = self.0.connection();
        let RecordedState::Claimed(claimed) = recorded_state(connection, intent)? else { return Ok(None) };
        let RunEnd::Receipt(record) = claimed.end else { return Ok(None) };
        let sql = format!("SELECT {ENTRY_COLUMNS} FROM records WHERE number = ?1");
        Ok(connection.query_row(&sql, [record], read_entry).optional()?)
    }

    /// Passes records to `each`, oldest first: those of an intent, or all.
    ///
    /// # Errors
    /// [`HistoryError`], and the errors of `each`.
    pub fn records<E: From<HistoryError>>(
        &self,
        intent: Option<IntentId>,
        mut each: impl FnMut(RecordEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        let sql =
            format!("SELECT {RECORD_COLUMNS} FROM records WHERE ?1 IS NULL OR intent = ?1 ORDER BY number");
        let mut statement = self.0.connection().prepare(&sql).map_err(HistoryError::from)?;
        let intent = intent.map(|intent| *intent.as_bytes());
        let rows = statement.query_map([intent], read_record).map_err(HistoryError::from)?;
        rows.into_iter().try_for_each(|row| each(row.map_err(HistoryError::from)?))
    }

    /// The intents whose ids begin with these bytes, at most ten.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn intents_with_prefix(&self, block: [u8; 4]) -> Result<Vec<IntentId>, HistoryError> {
        const MAX_SHOWN: u64 = 10;
        let bound = |rest: u8| {
            let mut id = [rest; 16];
            id.iter_mut().zip(block).for_each(|(byte, given)| *byte = given);
            id
        };
        // A range and the conditions of the partial index let SQLite search by it, where a prefix would read every
        // record.
        let sql = "SELECT DISTINCT intent FROM records
                   WHERE intent BETWEEN ?1 AND ?2 AND intent IS NOT NULL AND kind <> 'receipt'
                   ORDER BY intent LIMIT ?3";
        let mut statement = self.0.connection().prepare(sql)?;
        let chosen = params![bound(0), bound(u8::MAX), to_sqlite_int(MAX_SHOWN)];
        let rows = statement.query_map(chosen, |row| Ok(IntentId::from_bytes(row.get(0)?)))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// The latest refusals that match a filter's agent, tool and times, newest first.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn refusals(&self, filter: &Filter, most: u64) -> Result<Vec<RefusalEntry>, HistoryError> {
        // A refusal has no status and no report.
        let Filter { agent, tool, status: _, since, until, undelivered: _ } = filter;
        let sql = "SELECT refused, intent, agent, tool, blocked_by, message FROM refusals
                   WHERE (?1 IS NULL OR agent = ?1) AND (?2 IS NULL OR tool = ?2)
                     AND (?3 IS NULL OR refused >= ?3) AND (?4 IS NULL OR refused < ?4)
                   ORDER BY number DESC LIMIT ?5";
        let chosen = params![
            agent.as_ref().map(AgentDid::as_str),
            tool.as_ref().map(ToolName::as_str),
            since.map(to_micros),
            until.map(to_micros),
            to_sqlite_int(most),
        ];
        let mut statement = self.0.connection().prepare(sql)?;
        let rows = statement.query_map(chosen, |row| {
            Ok(RefusalEntry {
                at: from_micros(row.get(0)?),
                intent: IntentId::from_bytes(row.get(1)?),
                agent: row.get(2)?,
                tool: row.get(3)?,
                blocked_by: row.get(4)?,
                message: row.get(5)?,
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// The undecided escalated intents, by the texts that were passed to [`Journal::hold`](super::Journal::hold).
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn waiting_texts(&self) -> Result<Vec<String>, HistoryError> {
        // `kind <> 'receipt'` is the condition of the partial index, which SQLite does not derive from `kind =
        // 'approved'`.
        let sql = "SELECT text FROM waiting JOIN records AS held USING (number)
                   WHERE NOT EXISTS (SELECT 1 FROM records WHERE intent = held.intent AND kind <> 'receipt'
                                     AND kind = 'approved' AND about = held.number)
                   ORDER BY number";
        let mut statement = self.0.connection().prepare(sql)?;
        Ok(statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
    }

    /// Checks the whole journal: each record against its hash and the one before it, the records of each intent against
    /// each other, every other table against the records, and the whole against a checkpoint. `progress` receives the
    /// number of checked records from time to time.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn verify(
        &self,
        checkpoint: Option<Head>,
        progress: impl FnMut(u64),
    ) -> Result<Finding, HistoryError> {
        Ok(verify(self.0.connection(), &self.1, checkpoint, progress)?)
    }
}

/// The columns that [`read_entry`] reads.
const ENTRY_COLUMNS: &str = "receipt, intent, agent, tool, status, at, hash, body,
    number NOT IN (SELECT receipt FROM open WHERE receipt IS NOT NULL)";

fn read_entry(row: &Row<'_>) -> rusqlite::Result<ReceiptEntry> {
    Ok(ReceiptEntry {
        number: from_sqlite_int(row.get(0)?),
        intent: IntentId::from_bytes(row.get(1)?),
        agent: row.get(2)?,
        tool: row.get(3)?,
        status: row.get(4)?,
        ended: from_micros(row.get(5)?),
        hash: row.get(6)?,
        body: row.get(7)?,
        delivered: row.get(8)?,
    })
}

fn read_record(row: &Row<'_>) -> rusqlite::Result<RecordEntry> {
    let (record, hash) = JournalRecord::read(row)?;
    let has_no_text = matches!(record.kind, RecordKind::Receipt | RecordKind::Task);
    let body = (!has_no_text).then(|| serde_json::from_slice(record.body).ok()).flatten();
    let own = |text: Option<&str>| text.map(str::to_owned);
    Ok(RecordEntry {
        number: from_sqlite_int(record.number),
        kind: record.kind.as_str(),
        at: from_micros(record.at),
        intent: record.intent.map(IntentId::from_bytes),
        agent: own(record.agent),
        tool: own(record.tool),
        status: own(record.status),
        about: record.about,
        body,
        hash,
    })
}
