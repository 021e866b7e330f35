//! The chain of records and the chain of refusals: their ends, and appending to them.
//!
//! Every write to a chain also updates the end of the chain in `chains`, so that missing last records are detected.

use super::chain::{Hash, Head};
use super::error::{WriteError, changed_error};
use super::record::{Digest32, JournalRecord, RECORD_COLUMNS, RecordKind, RefusalsBody};
use super::store::{from_sqlite_int, to_sqlite_int};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use sha2::{Digest as _, Sha256};

/// The maximum number of stored refusals; older ones are dropped.
// Their number is bounded, because any caller can cause refusals. The log also has the dropped ones.
const MAX_REFUSALS: i64 = 100_000;

/// The tables of the two chains.
// A check compares this text with the file, comments included.
pub(super) const TABLES: &str = "
CREATE TABLE records(
    number INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    at INTEGER NOT NULL,         -- in microseconds since 1970
    intent BLOB,
    agent TEXT,
    tool TEXT,
    status TEXT,                 -- of a receipt
    about INTEGER,               -- the record that this one is about
    proof TEXT,                  -- of a claim: issuer and single-use id of the verdict's proof
    receipt INTEGER,             -- of a receipt: its number among the receipts
    latest INTEGER NOT NULL,     -- the record of the latest receipt up to here; 0 before the first
    body BLOB NOT NULL,
    hash BLOB NOT NULL           -- of all columns and the hash before
);
CREATE INDEX records_of ON records(intent) WHERE intent IS NOT NULL AND kind <> 'receipt';
CREATE UNIQUE INDEX receipt_of ON records(about) WHERE kind = 'receipt';
CREATE UNIQUE INDEX proofs ON records(proof) WHERE proof IS NOT NULL;
CREATE TABLE refusals(           -- what did not run, the latest of it
    number INTEGER PRIMARY KEY,
    refused INTEGER NOT NULL,
    intent BLOB NOT NULL,
    agent TEXT NOT NULL,
    tool TEXT NOT NULL,
    blocked_by TEXT NOT NULL,
    message TEXT NOT NULL,
    hash BLOB NOT NULL           -- as in records
);
CREATE TABLE chains(             -- how far the two go
    name TEXT PRIMARY KEY,
    first INTEGER NOT NULL,      -- the last one that was pruned; 0 when none was
    first_hash BLOB NOT NULL,
    receipts INTEGER NOT NULL,   -- how many receipts there were up to there
    checkpoint BLOB NOT NULL,    -- of the last of them
    last INTEGER NOT NULL,
    last_hash BLOB NOT NULL
) WITHOUT ROWID;
INSERT INTO chains VALUES
    ('records', 0, zeroblob(32), 0, zeroblob(32), 0, zeroblob(32)),
    ('refusals', 0, zeroblob(32), 0, zeroblob(32), 0, zeroblob(32));
";

/// The first and the last record of a chain, as stored in `chains`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// The number of the last pruned record; 0 if none was pruned.
    pub(super) first: i64,
    pub(super) first_hash: Hash,
    /// The checkpoint of the last pruned receipt.
    pub(super) pruned: Head,
    pub(super) last: i64,
    pub(super) last_hash: Hash,
}

impl Extent {
    pub(super) fn read(connection: &Connection, chain: &str) -> rusqlite::Result<Self> {
        connection
            .prepare_cached(
                "SELECT first, first_hash, receipts, checkpoint, last, last_hash FROM chains WHERE name = ?1",
            )?
            .query_row([chain], |row| {
                Ok(Self {
                    first: row.get(0)?,
                    first_hash: row.get(1)?,
                    pruned: Head { number: from_sqlite_int(row.get(2)?), hash: row.get(3)? },
                    last: row.get(4)?,
                    last_hash: row.get(5)?,
                })
            })
    }
}

/// The end of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tip {
    pub(super) number: i64,
    pub(super) hash: Hash,
    /// The record of the latest receipt.
    pub(super) latest: i64,
    /// The checkpoint of the latest receipt.
    pub(super) head: Head,
}

impl Tip {
    /// The tip before the first remaining record.
    pub(super) fn before_first(extent: &Extent) -> Self {
        let Extent { first, first_hash, pruned, .. } = *extent;
        Self { number: first, hash: first_hash, latest: 0, head: pruned }
    }

    /// Reads the tip from the file.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let extent = Extent::read(connection, "records")?;
        Self::at_record(connection, extent.last, &extent)
    }

    /// The tip at an existing record, or before the first one.
    pub(super) fn at_record(connection: &Connection, record: i64, extent: &Extent) -> rusqlite::Result<Self> {
        if record == extent.first {
            return Ok(Self::before_first(extent));
        }
        let sql = "SELECT latest, hash FROM records WHERE number = ?1";
        let (latest, hash) = connection.query_row(sql, [record], |row| Ok((row.get(0)?, row.get(1)?)))?;
        // If the latest receipt has been pruned, only `chains` has its checkpoint.
        let head = if latest > extent.first { read_checkpoint(connection, latest)? } else { extent.pruned };
        Ok(Self { number: record, hash, latest, head })
    }

    /// The tip after one more record, with its hash.
    pub(super) fn with_record(self, record: &JournalRecord<'_>, hash: Hash) -> Self {
        let JournalRecord { number: at, latest, receipt, .. } = *record;
        // Only receipts change the checkpoint: a governor treats another hash with the same count as another journal.
        let head = receipt.map_or(self.head, |receipt| Head { number: from_sqlite_int(receipt), hash });
        Self { number: at, hash, latest, head }
    }
}

/// The hash of a record; `None` if there is no such record, or it was pruned.
pub(super) fn find_hash(connection: &Connection, record: i64) -> rusqlite::Result<Option<Hash>> {
    let mut statement = connection.prepare_cached("SELECT hash FROM records WHERE number = ?1")?;
    statement.query_row([record], |row| row.get(0)).optional()
}

/// Reads the checkpoint of a receipt by the number of its record.
fn read_checkpoint(connection: &Connection, record: i64) -> rusqlite::Result<Head> {
    let sql = "SELECT receipt, hash FROM records WHERE number = ?1 AND kind = 'receipt'";
    connection
        .query_row(sql, [record], |row| Ok(Head { number: from_sqlite_int(row.get(0)?), hash: row.get(1)? }))
}

/// The content of a new record. Its other columns are derived from the previous record.
#[derive(Debug, Default)]
pub(super) struct NewRecord<'a> {
    /// In microseconds since 1970.
    pub(super) at: i64,
    pub(super) intent: Option<IntentId>,
    pub(super) agent: Option<&'a str>,
    pub(super) tool: Option<&'a str>,
    pub(super) status: Option<&'a str>,
    pub(super) about: Option<i64>,
    pub(super) proof: Option<&'a str>,
    pub(super) body: &'a [u8],
}

/// The chain of records, in one transaction.
#[derive(Debug)]
pub(super) struct RecordLog<'a> {
    pub(super) connection: &'a Connection,
    pub(super) tip: Tip,
    /// The tip that is in `chains`.
    saved: Tip,
}

impl<'a> RecordLog<'a> {
    /// Continues from `tip`, or from the records that another program, such as `journal prune`, has appended since.
    ///
    /// # Errors
    /// [`WriteError::Broken`] if the records in the file do not continue `tip`.
    pub(super) fn resume(connection: &'a Connection, tip: Tip) -> Result<Self, WriteError> {
        let extent = Extent::read(connection, "records")?;
        let Extent { first, last, last_hash, .. } = extent;
        let tip = match () {
            () if (last, last_hash) == (tip.number, tip.hash) => tip,
            () if first <= tip.number => read_appended(connection, tip)?,
            // The records after `tip` have been pruned.
            () => read_appended(connection, Tip::before_first(&extent))?,
        };
        if (tip.number, tip.hash) != (last, last_hash) {
            return Err(changed_error("its last record is not the one that was written"));
        }
        Ok(Self { connection, tip, saved: tip })
    }

    /// Appends a record. Returns its number.
    pub(super) fn append(&mut self, kind: RecordKind, new: &NewRecord<'_>) -> Result<i64, WriteError> {
        let NewRecord { at, intent, agent, tool, status, about, proof, body } = *new;
        // The hash covers the number, so SQLite cannot assign it.
        let number = self.tip.number + 1;
        let is_receipt = kind == RecordKind::Receipt;
        let receipt = is_receipt.then(|| to_sqlite_int(self.tip.head.number) + 1);
        let latest = if is_receipt { number } else { self.tip.latest };
        let intent = intent.map(|intent| *intent.as_bytes());
        let record = JournalRecord {
            number,
            kind,
            at,
            intent,
            agent,
            tool,
            status,
            about,
            proof,
            receipt,
            latest,
            body,
        };
        let hash = record.hash(&self.tip.hash);
        self.connection
            .prepare_cached(&format!(
                "INSERT INTO records({RECORD_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)"
            ))?
            .execute(params![
                number,
                kind.as_str(),
                at,
                intent,
                agent,
                tool,
                status,
                about,
                proof,
                receipt,
                latest,
                body,
                hash
            ])?;
        self.tip = self.tip.with_record(&record, hash);
        Ok(number)
    }

    /// `true` if records were appended since the last save.
    pub(super) fn has_new(&self) -> bool {
        self.tip != self.saved
    }

    /// Writes the new end of the chain to the file.
    pub(super) fn save(&mut self) -> Result<(), WriteError> {
        if self.has_new() {
            self.connection
                // Writes one more page for each commit; otherwise a chain that lost its last records would still be
                // valid.
                .prepare_cached("UPDATE chains SET last = ?1, last_hash = ?2 WHERE name = 'records'")?
                .execute(params![self.tip.number, self.tip.hash])?;
            self.saved = self.tip;
        }
        Ok(())
    }
}

/// Reads the records that another program has appended.
fn read_appended(connection: &Connection, mut tip: Tip) -> Result<Tip, WriteError> {
    let mut statement = connection
        .prepare_cached(&format!("SELECT {RECORD_COLUMNS} FROM records WHERE number > ?1 ORDER BY number"))?;
    let mut rows = statement.query([tip.number])?;
    while let Some(row) = rows.next()? {
        let (record, hash) = JournalRecord::read(row)?;
        // Checked, because the hash of the next record would make any content of these records valid.
        if record.number != tip.number + 1 || record.hash(&tip.hash) != hash {
            return Err(changed_error(&format!(
                "its record {} does not come after the one before it",
                record.number
            )));
        }
        tip = tip.with_record(&record, hash);
    }
    Ok(tip)
}

/// A refused call to record.
#[derive(Debug)]
pub(super) struct RefusalRecord {
    /// The time of the refusal, in microseconds since 1970.
    pub(super) refused: i64,
    pub(super) intent: IntentId,
    pub(super) agent: AgentDid,
    pub(super) tool: ToolName,
    pub(super) blocked_by: &'static str,
    pub(super) message: String,
}

impl RefusalRecord {
    pub(super) fn as_row(&self) -> RefusalRow<'_> {
        let Self { refused, intent, agent, tool, blocked_by, message } = self;
        let intent = *intent.as_bytes();
        let agent = agent.as_str();
        let tool = tool.as_str();
        RefusalRow { refused: *refused, intent, agent, tool, blocked_by, message }
    }
}

/// A refusal in the form that is written and hashed.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefusalRow<'a> {
    pub(super) refused: i64,
    pub(super) intent: [u8; 16],
    pub(super) agent: &'a str,
    pub(super) tool: &'a str,
    pub(super) blocked_by: &'a str,
    pub(super) message: &'a str,
}

impl<'a> RefusalRow<'a> {
    /// Reads a refusal from the columns of a row that begin at `first`.
    pub(super) fn read(row: &'a Row<'_>, first: usize) -> rusqlite::Result<Self> {
        let text = |column: usize| row.get_ref(first + column)?.as_str().map_err(rusqlite::Error::from);
        Ok(Self {
            refused: row.get(first)?,
            intent: row.get(first + 1)?,
            agent: text(2)?,
            tool: text(3)?,
            blocked_by: text(4)?,
            message: text(5)?,
        })
    }

    pub(super) fn hash(&self, number: i64, previous: &Hash) -> Hash {
        let Self { refused, intent, agent, tool, blocked_by, message } = self;
        let mut hasher = Sha256::new();
        // The prefix differs from that of records, so that no refusal has the hash of a record.
        hasher.update(b"a2g-executor refusal 1\n");
        hasher.update(previous);
        [number, *refused].into_iter().for_each(|number| hasher.update(number.to_le_bytes()));
        hasher.update(intent);
        for part in [agent, tool, blocked_by, message] {
            // The lengths make the boundaries of the parts unambiguous.
            hasher.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize().into()
    }
}

/// The end of the chain of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RefusalTip {
    pub(super) number: i64,
    pub(super) hash: Hash,
    /// The number of the last refusal whose hash is in the main chain.
    pub(super) marked: i64,
}

impl RefusalTip {
    /// Reads the tip from the file. The last mark is not looked up, because a repeated mark is harmless.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let Extent { last, last_hash, .. } = Extent::read(connection, "refusals")?;
        Ok(Self { number: last, hash: last_hash, marked: 0 })
    }

    /// Appends a refusal, and drops the oldest ones beyond [`MAX_REFUSALS`].
    pub(super) fn append(
        &mut self,
        connection: &Connection,
        refusal: &RefusalRow<'_>,
    ) -> Result<(), WriteError> {
        let number = self.number + 1;
        let hash = refusal.hash(number, &self.hash);
        let RefusalRow { refused, intent, agent, tool, blocked_by, message } = refusal;
        connection
            .prepare_cached(
                "INSERT INTO refusals(number, refused, intent, agent, tool, blocked_by, message, hash)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![number, refused, intent, agent, tool, blocked_by, message, hash])?;
        (self.number, self.hash) = (number, hash);
        connection
            .prepare_cached("UPDATE chains SET last = ?1, last_hash = ?2 WHERE name = 'refusals'")?
            .execute(params![number, hash])?;
        drop_refusals(connection, number - MAX_REFUSALS)
    }

    /// Appends a record with the end of the refusals to the main chain, unless the last one is still current.
    pub(super) fn mark(&mut self, log: &mut RecordLog<'_>, now: i64) -> Result<(), WriteError> {
        if self.marked == self.number {
            return Ok(());
        }
        // The hash in the main chain reveals if the whole chain of refusals is replaced by a new one.
        let body = serde_json::to_vec(&RefusalsBody { number: self.number, hash: Digest32(self.hash) })?;
        log.append(RecordKind::Refusals, &NewRecord { at: now, body: &body, ..NewRecord::default() })?;
        self.marked = self.number;
        Ok(())
    }
}

/// Drops the refusals up to `last`.
fn drop_refusals(connection: &Connection, last: i64) -> Result<(), WriteError> {
    if last <= 0 {
        return Ok(());
    }
    // Reads the hash before its row is deleted, because the first remaining refusal continues from it.
    connection
        .prepare_cached(
            "UPDATE chains SET first = ?1, first_hash = (SELECT hash FROM refusals WHERE number = ?1)
             WHERE name = 'refusals'",
        )?
        .execute([last])?;
    connection.prepare_cached("DELETE FROM refusals WHERE number <= ?1")?.execute([last])?;
    Ok(())
}
