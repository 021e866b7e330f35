//! Queries of the journal for operators: runs, refusals and decisions, and the integrity of the file.

use super::arguments::StoredFor;
use super::chain::{Hash, Head};
use super::decided::DecidedEvent;
use super::error::OpenError;
use super::log::Extent;
use super::record::{JournalRecord, RECORD_COLUMNS, RecordKind};
use super::recorded_state::{RecordedState, receipt_record, recorded_state};
use super::store::{Reader, from_sqlite_int, to_sqlite_int};
use super::verify::{Finding, verify};
use super::{from_micros, to_micros};
use a2g_types::call::StoredArguments;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::{Receipt, Status};
use a2g_types::stored;
use a2g_types::verdict::{Decision, Verdict};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};
use time::OffsetDateTime;

/// The reason why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// An error of the file.
    #[error("the journal cannot be read")]
    Sqlite(#[from] rusqlite::Error),
    /// A receipt that cannot be parsed.
    #[error("receipt {number} cannot be parsed")]
    Receipt {
        /// The number of the receipt.
        number: u64,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A verdict that cannot be parsed.
    #[error("the verdict of {intent} cannot be parsed")]
    Verdict {
        /// The intent.
        intent: IntentId,
        /// The parser's error.
        source: serde_json::Error,
    },
}

/// A selection of receipts. A field that is `None` or `false` does not restrict it.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Selects receipts of this agent.
    pub agent: Option<AgentDid>,
    /// Selects receipts of this tool.
    pub tool: Option<ToolName>,
    /// Selects receipts with this status.
    pub status: Option<Status>,
    /// Selects runs that ended at this time or later.
    pub since: Option<OffsetDateTime>,
    /// Selects runs that ended before this time.
    pub until: Option<OffsetDateTime>,
    /// Selects receipts whose reports are undelivered.
    pub undelivered: bool,
}

/// A receipt with its position in the chain.
#[derive(Debug, Clone)]
pub struct ReceiptEntry {
    /// The number among the receipts, from 1.
    pub number: u64,
    /// The intent.
    pub intent: IntentId,
    /// The agent.
    pub agent: String,
    /// The tool.
    pub tool: String,
    /// The status, such as `SUCCESS`.
    pub status: String,
    /// The end time of the run.
    pub ended: OffsetDateTime,
    /// `true` if the report was delivered to the governor.
    pub delivered: bool,
    /// The hash of the record.
    pub hash: Hash,
    body: Vec<u8>,
}

impl ReceiptEntry {
    /// Parses the receipt.
    ///
    /// # Errors
    /// [`HistoryError::Receipt`] if a later version wrote the receipt, or it was changed.
    pub fn parse_receipt(&self) -> Result<Receipt, HistoryError> {
        stored::read_receipt(&self.body)
            .map_err(|source| HistoryError::Receipt { number: self.number, source })
    }
}

/// A refused call.
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
    /// The code of the reason.
    pub blocked_by: String,
    /// The reason as text.
    pub message: String,
}

/// A record, for output.
#[derive(Debug, Clone)]
pub struct RecordEntry {
    /// The number among the records, from 1.
    pub number: u64,
    /// The name of the kind.
    pub kind: &'static str,
    /// The time at which it was written.
    pub at: OffsetDateTime,
    /// The intent that it is about.
    pub intent: Option<IntentId>,
    /// The agent.
    pub agent: Option<String>,
    /// The tool.
    pub tool: Option<String>,
    /// The status of a receipt.
    pub status: Option<String>,
    /// The record that this one is about.
    pub about: Option<i64>,
    /// The rest of the content, as JSON; `None` for a receipt and for a task.
    pub body: Option<Box<RawValue>>,
    /// The hash of the record.
    pub hash: Hash,
}

/// A read-only view of a journal. A server may write the journal at the same time.
pub struct History(Reader, PathBuf);

impl History {
    /// Opens an existing journal.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Ok(Self(Reader::open(path)?, path.to_owned()))
    }

    /// Passes up to `limit` receipts to `each`, newest first unless `oldest_first`.
    ///
    /// # Errors
    /// [`HistoryError`], and the errors of `each`.
    pub fn receipts<E: From<HistoryError>>(
        &self,
        filter: &Filter,
        oldest_first: bool,
        limit: Option<u64>,
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
        let params = params![
            agent.as_ref().map(AgentDid::as_str),
            tool.as_ref().map(ToolName::as_str),
            status.map(Status::as_str),
            since.map(to_micros),
            until.map(to_micros),
            undelivered,
            limit.map_or(-1, to_sqlite_int),
        ];
        let mut statement = self.0.connection().prepare(&sql).map_err(HistoryError::from)?;
        let rows = statement.query_map(params, read_entry).map_err(HistoryError::from)?;
        rows.into_iter().try_for_each(|row| each(row.map_err(HistoryError::from)?))
    }

    /// The receipt of an intent.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn receipt_of(&self, intent: IntentId) -> Result<Option<ReceiptEntry>, HistoryError> {
        let connection = self.0.connection();
        let Some(record) = receipt_record(connection, intent)? else { return Ok(None) };
        Ok(find_entry(connection, record)?)
    }

    /// The governor's decision on an intent that has started; `None` if the executor did not ask the governor.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn decision_of(&self, intent: IntentId) -> Result<Option<Decision>, HistoryError> {
        Ok(find_verdict(self.0.connection(), intent)?.map(|verdict| verdict.decision))
    }

    /// The arguments of the latest start of an agent's intent, or of its latest wait that ended without one.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn arguments_of(
        &self,
        intent: IntentId,
        agent: &str,
    ) -> Result<Option<StoredArguments>, HistoryError> {
        Ok(self.0.arguments(intent, agent, StoredFor::Call)?)
    }

    /// The arguments of a refused call; `None` if it did not wait, or they are not stored.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn arguments_of_refusal(
        &self,
        refusal: &RefusalEntry,
    ) -> Result<Option<StoredArguments>, HistoryError> {
        let ended = StoredFor::EndedWait { at: to_micros(refusal.at) };
        Ok(self.0.arguments(refusal.intent, &refusal.agent, ended)?)
    }

    /// The latest refusal of an intent.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn refusal_of(&self, intent: IntentId) -> Result<Option<RefusalEntry>, HistoryError> {
        let sql =
            format!("SELECT {REFUSAL_COLUMNS} FROM refusals WHERE intent = ?1 ORDER BY number DESC LIMIT 1");
        let mut statement = self.0.connection().prepare(&sql)?;
        Ok(statement.query_row([intent.as_bytes()], read_refusal).optional()?)
    }

    /// Passes the calls since a time with the decisions on them to `each`, oldest first. Those before are not read.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`], and the errors of `each`.
    pub fn decided_since<E: From<HistoryError>>(
        &self,
        since: OffsetDateTime,
        each: impl FnMut(DecidedEvent) -> Result<(), E>,
    ) -> Result<(), E> {
        self.0.decided_since(since, each)
    }

    /// The number of receipts that were pruned.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn pruned_receipts(&self) -> Result<u64, HistoryError> {
        Ok(Extent::read(self.0.connection(), "records")?.pruned.number)
    }

    /// The text of an undecided or approved intent, as passed to [`Decisions::hold`](super::Decisions::hold).
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn waiting_text_of(&self, intent: IntentId) -> Result<Option<String>, HistoryError> {
        let sql = "SELECT text FROM waiting JOIN records USING (number) WHERE intent = ?1";
        let mut statement = self.0.connection().prepare(sql)?;
        Ok(statement.query_row([intent.as_bytes()], |row| row.get(0)).optional()?)
    }

    /// Passes the records of an intent, or all records, to `each`, oldest first.
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

    /// The first ten intents whose ids begin with these bytes, refused ones included.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn intents_with_prefix(&self, prefix: [u8; 4]) -> Result<Vec<IntentId>, HistoryError> {
        const LIMIT: u64 = 10;
        let bound = |padding: u8| {
            let mut id = [padding; 16];
            id.iter_mut().zip(prefix).for_each(|(byte, prefix_byte)| *byte = prefix_byte);
            id
        };
        // The range and the conditions of the partial index let SQLite use that index instead of reading every record.
        let sql = "SELECT intent FROM records
                   WHERE intent BETWEEN ?1 AND ?2 AND intent IS NOT NULL AND kind <> 'receipt'
                   UNION SELECT intent FROM refusals WHERE intent BETWEEN ?1 AND ?2
                   ORDER BY intent LIMIT ?3";
        let mut statement = self.0.connection().prepare(sql)?;
        let params = params![bound(0), bound(u8::MAX), to_sqlite_int(LIMIT)];
        let rows = statement.query_map(params, |row| Ok(IntentId::from_bytes(row.get(0)?)))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Up to `limit` refusals that match the filter's agent, tool and times, newest first.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn refusals(&self, filter: &Filter, limit: u64) -> Result<Vec<RefusalEntry>, HistoryError> {
        // A refusal has no status and no report.
        let Filter { agent, tool, status: _, since, until, undelivered: _ } = filter;
        let sql = format!(
            "SELECT {REFUSAL_COLUMNS} FROM refusals
             WHERE (?1 IS NULL OR agent = ?1) AND (?2 IS NULL OR tool = ?2)
               AND (?3 IS NULL OR refused >= ?3) AND (?4 IS NULL OR refused < ?4)
             ORDER BY number DESC LIMIT ?5"
        );
        let params = params![
            agent.as_ref().map(AgentDid::as_str),
            tool.as_ref().map(ToolName::as_str),
            since.map(to_micros),
            until.map(to_micros),
            to_sqlite_int(limit),
        ];
        let mut statement = self.0.connection().prepare(&sql)?;
        let rows = statement.query_map(params, read_refusal)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// The texts of the undecided intents, as passed to [`Decisions::hold`](super::Decisions::hold).
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

    /// Checks the whole journal: each record against its hash and the previous record, the records of each intent
    /// against each other, every other table against the records, and the receipts against a checkpoint. `progress`
    /// receives the number of the last checked record after each chunk.
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

/// The receipt of a record; `None` if it was pruned.
pub(super) fn find_entry(connection: &Connection, record: i64) -> rusqlite::Result<Option<ReceiptEntry>> {
    let sql = format!("SELECT {ENTRY_COLUMNS} FROM records WHERE number = ?1");
    connection.query_row(&sql, [record], read_entry).optional()
}

/// The governor's verdict on an intent that has started.
pub(super) fn find_verdict(
    connection: &Connection,
    intent: IntentId,
) -> Result<Option<Verdict>, HistoryError> {
    let RecordedState::Claimed(claimed) = recorded_state(connection, intent)? else { return Ok(None) };
    let verdict = claimed.verdict.as_deref().map(|verdict| stored::read_verdict(verdict.get())).transpose();
    verdict.map_err(|source| HistoryError::Verdict { intent, source })
}

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

/// The columns that [`read_refusal`] reads.
pub(super) const REFUSAL_COLUMNS: &str = "refused, intent, agent, tool, blocked_by, message";

pub(super) fn read_refusal(row: &Row<'_>) -> rusqlite::Result<RefusalEntry> {
    Ok(RefusalEntry {
        at: from_micros(row.get(0)?),
        intent: IntentId::from_bytes(row.get(1)?),
        agent: row.get(2)?,
        tool: row.get(3)?,
        blocked_by: row.get(4)?,
        message: row.get(5)?,
    })
}

fn read_record(row: &Row<'_>) -> rusqlite::Result<RecordEntry> {
    let (record, hash) = JournalRecord::read(row)?;
    let has_no_body = matches!(record.kind, RecordKind::Receipt | RecordKind::Task);
    let body = (!has_no_body).then(|| serde_json::from_slice(record.body).ok()).flatten();
    let to_owned = |text: Option<&str>| text.map(str::to_owned);
    Ok(RecordEntry {
        number: from_sqlite_int(record.number),
        kind: record.kind.as_str(),
        at: from_micros(record.at),
        intent: record.intent.map(IntentId::from_bytes),
        agent: to_owned(record.agent),
        tool: to_owned(record.tool),
        status: to_owned(record.status),
        about: record.about,
        body,
        hash,
    })
}
