//! The journal as people ask about it: what was run, whether the chain holds, and what may go.

use super::chain::{Hash, Head, Link};
use super::micros;
use super::store::{OpenError, Reader, head, number, stored, writable};
use crate::ident::{AgentDid, IntentId, ToolName};
use crate::outcome::{Receipt, Status};
use rusqlite::{OptionalExtension as _, Row, params};
use std::path::Path;
use time::{Duration, OffsetDateTime};

/// How many receipts one transaction prunes, so that a server that writes meanwhile waits briefly.
const PRUNED_AT_ONCE: i64 = 5_000;

/// How much longer than its verdicts are good an intent is known. A clock that is ahead by less, for a while,
/// makes nothing that ran run again.
const KNOWN_LONGER: Duration = Duration::DAY;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file.
    #[error("the journal cannot be read: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A receipt.
    #[error("receipt {number} cannot be understood: {reason}")]
    Receipt {
        /// Its number.
        number: u64,
        /// What the parser said.
        reason: String,
    },
}

/// Why nothing, or not everything, was pruned.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// There is no journal.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// SQLite.
    #[error("the journal cannot be written: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

/// Which receipts are asked for. What is `None` or `false` does not choose.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Those of this agent.
    pub agent: Option<AgentDid>,
    /// Those of this tool.
    pub tool: Option<ToolName>,
    /// Those that ended like this.
    pub status: Option<Status>,
    /// Those that ended then or later.
    pub since: Option<OffsetDateTime>,
    /// Those that ended before.
    pub until: Option<OffsetDateTime>,
    /// Those that the governor does not have.
    pub undelivered: bool,
}

/// One receipt with its place in the chain.
#[derive(Debug, Clone)]
pub struct Entry {
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
    /// When it ended.
    pub ended: OffsetDateTime,
    /// Whether the governor has its report.
    pub delivered: bool,
    /// Its hash.
    pub hash: Hash,
    body: Vec<u8>,
}

impl Entry {
    /// The receipt itself.
    ///
    /// # Errors
    /// [`HistoryError::Receipt`] when it was written by another version, or changed.
    pub fn receipt(&self) -> Result<Receipt, HistoryError> {
        serde_json::from_slice(&self.body)
            .map_err(|error| HistoryError::Receipt { number: self.number, reason: error.to_string() })
    }
}

/// Something that was not run.
#[derive(Debug, Clone)]
pub struct Refused {
    /// When.
    pub at: OffsetDateTime,
    /// The intent.
    pub intent: IntentId,
    /// The agent.
    pub agent: String,
    /// The tool.
    pub tool: String,
    /// What refused it.
    pub blocked_by: String,
    /// In words.
    pub message: String,
}

/// What a check of the chain found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The chain holds.
    Holds {
        /// How many receipts it has.
        receipts: u64,
        /// How many were pruned before them.
        pruned: u64,
        /// Where it ends.
        head: Head,
    },
    /// A receipt is not what was written, or not where it was written.
    Changed {
        /// Its number.
        number: u64,
        /// Its intent, as it stands there now.
        intent: IntentId,
    },
    /// Receipts are missing between others.
    Missing {
        /// The first of them.
        first: u64,
        /// The last of them.
        last: u64,
    },
    /// The last receipts are missing.
    Cut {
        /// The last one that is there.
        last: u64,
        /// The last one that was there.
        was: u64,
    },
    /// Another chain than the one of the checkpoint: an older copy that went on, or another history.
    Differs {
        /// The number of the checkpoint.
        number: u64,
    },
    /// The receipt of the checkpoint was pruned, so that nothing can be said of it.
    CheckpointPruned {
        /// The number of the checkpoint.
        number: u64,
    },
}

/// What was pruned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Receipts that are gone.
    pub receipts: u64,
    /// Intents that are forgotten: all of their verdicts expired a day ago.
    pub intents: u64,
    /// Tasks of the A2A door that are gone: they ended before.
    pub tasks: u64,
}

/// A journal that is only read. A server may write it meanwhile.
pub struct History(Reader);

impl History {
    /// Opens a journal that is there.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Reader::open(path).map(Self)
    }

    /// Gives receipts to `each`, newest first unless `oldest_first`, at most `most`.
    ///
    /// # Errors
    /// [`HistoryError`], and what `each` says.
    pub fn receipts<E: From<HistoryError>>(
        &self,
        filter: &Filter,
        oldest_first: bool,
        most: Option<u64>,
        mut each: impl FnMut(Entry) -> Result<(), E>,
    ) -> Result<(), E> {
        let Filter { agent, tool, status, since, until, undelivered } = filter;
        let order = if oldest_first { "ASC" } else { "DESC" };
        let sql = format!(
            "SELECT number, intent, agent, tool, status, ended, hash, body,
                    number NOT IN (SELECT receipt FROM open WHERE receipt IS NOT NULL)
             FROM receipts
             WHERE (?1 IS NULL OR agent = ?1) AND (?2 IS NULL OR tool = ?2) AND (?3 IS NULL OR status = ?3)
               AND (?4 IS NULL OR ended >= ?4) AND (?5 IS NULL OR ended < ?5)
               AND (NOT ?6 OR number IN (SELECT receipt FROM open WHERE receipt IS NOT NULL))
             ORDER BY number {order} LIMIT ?7"
        );
        let chosen = params![
            agent.as_ref().map(AgentDid::as_str),
            tool.as_ref().map(ToolName::as_str),
            status.map(Status::as_str),
            since.map(micros),
            until.map(micros),
            undelivered,
            most.map_or(-1, stored),
        ];
        let mut statement = self.0.connection().prepare(&sql).map_err(HistoryError::from)?;
        let rows = statement.query_map(chosen, entry).map_err(HistoryError::from)?;
        rows.into_iter().try_for_each(|row| each(row.map_err(HistoryError::from)?))
    }

    /// The receipt of an intent.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn receipt_of(&self, intent: IntentId) -> Result<Option<Entry>, HistoryError> {
        let sql = "SELECT number, intent, agent, tool, status, ended, hash, body,
                          number NOT IN (SELECT receipt FROM open WHERE receipt IS NOT NULL)
                   FROM receipts WHERE number = (SELECT receipt FROM intents WHERE intent = ?1)";
        Ok(self.0.connection().query_row(sql, [intent.as_bytes()], entry).optional()?)
    }

    /// The intents whose ids begin with these bytes, a few at most.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn intents_beginning(&self, block: [u8; 4]) -> Result<Vec<IntentId>, HistoryError> {
        const MAX_SHOWN: u64 = 10;
        let bound = |rest: u8| {
            let mut id = [rest; 16];
            id.iter_mut().zip(block).for_each(|(byte, given)| *byte = given);
            id
        };
        let sql = "SELECT intent FROM intents WHERE intent BETWEEN ?1 AND ?2 ORDER BY intent LIMIT ?3";
        let mut statement = self.0.connection().prepare(sql)?;
        let chosen = params![bound(0), bound(u8::MAX), stored(MAX_SHOWN)];
        let rows = statement.query_map(chosen, |row| Ok(IntentId::from_bytes(row.get(0)?)))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// The latest refusals that a filter chooses by agent, tool and time, newest first.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn refusals(&self, filter: &Filter, most: u64) -> Result<Vec<Refused>, HistoryError> {
        // What was refused has no status and no report.
        let Filter { agent, tool, status: _, since, until, undelivered: _ } = filter;
        let sql = "SELECT refused, intent, agent, tool, blocked_by, message FROM refusals
                   WHERE (?1 IS NULL OR agent = ?1) AND (?2 IS NULL OR tool = ?2)
                     AND (?3 IS NULL OR refused >= ?3) AND (?4 IS NULL OR refused < ?4)
                   ORDER BY number DESC LIMIT ?5";
        let chosen = params![
            agent.as_ref().map(AgentDid::as_str),
            tool.as_ref().map(ToolName::as_str),
            since.map(micros),
            until.map(micros),
            stored(most),
        ];
        let mut statement = self.0.connection().prepare(sql)?;
        let rows = statement.query_map(chosen, |row| {
            Ok(Refused {
                at: moment(row.get(0)?),
                intent: IntentId::from_bytes(row.get(1)?),
                agent: row.get(2)?,
                tool: row.get(3)?,
                blocked_by: row.get(4)?,
                message: row.get(5)?,
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// The escalated intents, as they were given to [`Journal::hold`](super::Journal::hold).
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn waiting(&self) -> Result<Vec<String>, HistoryError> {
        let mut statement = self.0.connection().prepare("SELECT held FROM waiting")?;
        Ok(statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
    }

    /// Checks every receipt against its hash and the one before it, and the whole against a
    /// checkpoint. `progress` hears how many were checked, now and then.
    ///
    /// # Errors
    /// [`HistoryError::Sqlite`].
    pub fn verify(
        &self,
        checkpoint: Option<Head>,
        mut progress: impl FnMut(u64),
    ) -> Result<Finding, HistoryError> {
        // One transaction, so that a server that writes meanwhile does not matter.
        let view = self.0.connection().unchecked_transaction()?;
        let start = view.query_row("SELECT number, hash FROM chain", [], |row| {
            Ok(Head { number: number(row.get(0)?), hash: row.get(1)? })
        })?;
        let mut at = start;
        let mut agrees = checkpoint.filter(|point| *point == start).is_some();
        let mut statement = view.prepare(
            "SELECT number, intent, agent, tool, status, ended, body, hash FROM receipts ORDER BY number",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (is, intent) = (number(row.get(0)?), row.get::<_, [u8; 16]>(1)?);
            let expected = at.number + 1;
            if is != expected {
                return Ok(Finding::Missing { first: expected, last: is.saturating_sub(1) });
            }
            let head = at.and(&Link {
                intent: &intent,
                agent: text(row, 2)?,
                tool: text(row, 3)?,
                status: text(row, 4)?,
                ended: row.get(5)?,
                body: row.get_ref(6)?.as_blob().unwrap_or_default(),
            });
            if row.get_ref(7)?.as_blob().ok() != Some(&head.hash[..]) {
                return Ok(Finding::Changed { number: is, intent: IntentId::from_bytes(intent) });
            }
            at = head;
            agrees |= checkpoint == Some(head);
            if is % 10_000 == 0 {
                progress(is);
            }
        }
        // Every intent names its receipt, so that an end that is cut off is missed.
        let named = "SELECT max(max((SELECT coalesce(max(receipt), 0) FROM intents)),
                                (SELECT coalesce(max(receipt), 0) FROM open))";
        let was =
            number(view.query_row(named, [], |row| row.get(0))?).max(checkpoint.map_or(0, |at| at.number));
        if was > at.number {
            return Ok(Finding::Cut { last: at.number, was });
        }
        match checkpoint {
            Some(point) if point.number < start.number => {
                Ok(Finding::CheckpointPruned { number: point.number })
            }
            Some(point) if !agrees => Ok(Finding::Differs { number: point.number }),
            Some(_) | None => {
                Ok(Finding::Holds { receipts: at.number - start.number, pruned: start.number, head: at })
            }
        }
    }
}

/// Takes receipts out that ended before `before` and that the governor has, oldest first and none
/// from between others, and forgets intents whose verdicts have all expired a day ago. A server may
/// write meanwhile.
///
/// # Errors
/// [`PruneError`]. What was pruned before it stays pruned.
pub fn prune(path: &Path, before: OffsetDateTime, now: OffsetDateTime) -> Result<Pruned, PruneError> {
    let mut connection = writable(path)?;
    let mut pruned = Pruned::default();
    loop {
        let batch = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let Head { number: at, .. } = batch.query_row("SELECT number, hash FROM chain", [], |row| {
            Ok(Head { number: number(row.get(0)?), hash: row.get(1)? })
        })?;
        // The first that has to stay, and so do all after it.
        let stays = "SELECT min(number) FROM receipts WHERE number <= ?1 + ?3
                     AND (ended >= ?2 OR number IN (SELECT receipt FROM open WHERE receipt IS NOT NULL))";
        let stays = batch.query_row(stays, params![stored(at), micros(before), PRUNED_AT_ONCE], |row| {
            row.get::<_, Option<i64>>(0)
        })?;
        let last =
            stays.map_or(stored(at) + PRUNED_AT_ONCE, |stays| stays - 1).min(stored(head(&batch)?.number));
        let receipts = if last > stored(at) {
            batch.execute(
                "UPDATE chain SET number = ?1, hash = (SELECT hash FROM receipts WHERE number = ?1)",
                [last],
            )?;
            batch.execute("DELETE FROM receipts WHERE number <= ?1", [last])?
        } else {
            0
        };
        if receipts == 0 {
            let gone = "DELETE FROM intents WHERE receipt <= (SELECT number FROM chain) AND keep_until <= ?1";
            pruned.intents = count(batch.execute(gone, [micros(now.saturating_sub(KNOWN_LONGER))])?);
            pruned.tasks = count(batch.execute("DELETE FROM tasks WHERE over < ?1", [micros(before)])?);
        }
        batch.commit()?;
        pruned.receipts += count(receipts);
        if receipts == 0 {
            return Ok(pruned);
        }
    }
}

fn count(rows: usize) -> u64 {
    u64::try_from(rows).unwrap_or(u64::MAX)
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    Ok(Entry {
        number: number(row.get(0)?),
        intent: IntentId::from_bytes(row.get(1)?),
        agent: row.get(2)?,
        tool: row.get(3)?,
        status: row.get(4)?,
        ended: moment(row.get(5)?),
        hash: row.get(6)?,
        body: row.get(7)?,
        delivered: row.get(8)?,
    })
}

/// A text of a row. What is no text was changed, and has no hash that fits.
fn text<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<&'a str> {
    Ok(row.get_ref(column)?.as_str().unwrap_or_default())
}

fn moment(micros: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
