//! Journals of format 2: their conversion, and their chain of receipts, which continues to be checked.
//!
//! The new journal is made beside the old one, in one transaction, and checked; then the two names are exchanged
//! atomically. So at any moment there is one whole journal, and the old one stays as `journal.db.format-2`.

use super::chain::Head;
use super::error::{OpenError, WriteError};
use super::files::{Files, beside, free_name, others, private, rename_new, sync_folder_of};
use super::finding::{Finding, Stop};
use super::log::{Log, New, RefusalTip, Refused, Tip};
use super::micros;
use super::record::{self, Digest32, Kind, Record, digest};
use super::store::{create, format_of, number, stored};
use super::tasks::{ROW, row_digest};
use super::verify::{PIECE, Verifier};
use crate::call::Call;
use crate::clock::{Clock as _, SystemClock};
use crate::ident::IntentId;
use crate::stored::v1;
use crate::verdict::Verdict;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};

const FORMAT: i64 = 2;
/// The maximum number of receipts in one record of deliveries.
const DELIVERED_AT_ONCE: usize = 500;

/// The head of the chain of receipts after one more receipt, as format 2 hashed it.
pub(super) fn head_after(head: Head, receipt: &Record<'_>) -> Option<Head> {
    let number = head.number + 1;
    let mut hasher = Sha256::new();
    hasher.update(b"a2g-executor receipt 1\n");
    hasher.update(head.hash);
    hasher.update(number.to_le_bytes());
    hasher.update(receipt.at.to_le_bytes());
    hasher.update(receipt.intent?);
    let (agent, tool, status) = (receipt.agent?, receipt.tool?, receipt.status?);
    for part in [agent.as_bytes(), tool.as_bytes(), status.as_bytes(), receipt.body] {
        hasher.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(part);
    }
    Some(Head { number, hash: hasher.finalize().into() })
}

/// `true` if a journal has to be converted before use.
pub(super) fn is_due(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name IN ('intents', 'receipts', 'chain')";
    let tables = connection.query_row(sql, [], |row| row.get::<_, i64>(0))?;
    Ok(tables == 3 && format_of(connection)? == FORMAT)
}

/// Converts a journal that this process has locked.
///
/// # Errors
/// [`OpenError`]; the journal is then unchanged.
pub(super) fn convert(files: &Files, path: &Path) -> Result<(), OpenError> {
    let (real, new) = (files.real(), beside(files.real(), ".format-2"));
    let failed = |error: std::io::Error| OpenError::of_system(path, error);
    tracing::info!(journal = %path.display(), old = %new.display(), "the journal is converted to this version's format");
    make_way(&new, path)?;
    private(&new).map_err(failed)?;
    create(&new)?;
    let converted = Conversion::all(real, &new, path);
    if converted.is_err() {
        let _is_gone = std::fs::remove_file(&new);
    }
    converted?;
    renameat_with(CWD, &new, CWD, real, RenameFlags::EXCHANGE).map_err(|error| failed(error.into()))?;
    sync_folder_of(real).map_err(failed)
}

/// Frees the name of the old journal: the remains of an interrupted conversion are removed, and an older journal that
/// was converted before gets another name.
fn make_way(name: &Path, path: &Path) -> Result<(), OpenError> {
    let failed = |error: std::io::Error| OpenError::of_system(path, error);
    let is_one = || Connection::open(name).and_then(|connection| is_due(&connection)).unwrap_or(false);
    if name.exists() && is_one() {
        return rename_new(name, &free_name(name, "before")).map_err(failed);
    }
    for file in [name, &others(name)[0], &others(name)[1]] {
        match std::fs::remove_file(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.map_err(failed)?,
        }
    }
    Ok(())
}

/// An escalated intent as format 2 stored it.
#[derive(Deserialize)]
struct Waiting {
    #[serde(with = "v1::Call")]
    call: Call,
    #[serde(with = "v1::Verdict")]
    verdict: Verdict,
}

/// Reads the old journal and writes the new one.
struct Conversion<'a> {
    old: &'a Connection,
    new: &'a Connection,
    log: Log<'a>,
    now: i64,
    delivered: Vec<i64>,
}

/// The reason for which a conversion failed.
enum ConversionError {
    Write(WriteError),
    Damaged(String),
}

impl<T: Into<WriteError>> From<T> for ConversionError {
    fn from(error: T) -> Self {
        Self::Write(error.into())
    }
}

impl Conversion<'_> {
    fn all(real: &Path, draft: &PathBuf, path: &Path) -> Result<(), OpenError> {
        let of_sqlite = OpenError::of_sqlite(path);
        let old = Connection::open(real).map_err(&of_sqlite)?;
        let mut new = Connection::open(draft).map_err(&of_sqlite)?;
        let written = || -> Result<(), ConversionError> {
            let transaction = new.transaction()?;
            // One snapshot of the old journal, which no process writes.
            let _moment = old.unchecked_transaction()?;
            Conversion::begin(&old, &transaction)?.run()?;
            Ok(transaction.commit()?)
        };
        let damaged = |found: String| OpenError::Damaged { path: path.to_owned(), found };
        match { written }() {
            Ok(()) => {}
            Err(ConversionError::Damaged(found)) => return Err(damaged(found)),
            Err(ConversionError::Write(WriteError::NoRoom(error))) => {
                return Err(OpenError::NoRoom { path: path.to_owned(), source: error.into() });
            }
            Err(ConversionError::Write(WriteError::Broken(error))) => {
                return Err(OpenError::failed(path, error));
            }
        }
        match verified(&new) {
            Ok(_holds) => {}
            Err(Stop::Found(found)) => return Err(damaged(found.to_string())),
            Err(Stop::Sqlite(error)) => return Err(of_sqlite(error)),
        }
        // Each is a single file from here on.
        for connection in [&old, &new] {
            let done = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            done.map_err(&of_sqlite)?;
        }
        Ok(())
    }
}

impl<'a> Conversion<'a> {
    fn begin(old: &'a Connection, new: &'a Connection) -> Result<Self, ConversionError> {
        let pruned = old.query_row("SELECT number, hash FROM chain", [], head)?;
        let sql = "UPDATE chains SET receipts = ?1, checkpoint = ?2 WHERE name = 'records'";
        new.execute(sql, params![stored(pruned.number), pruned.hash])?;
        let log = Log::after(new, Tip::read(new)?)?;
        Ok(Self { old, new, log, now: micros(SystemClock.now()), delivered: Vec::new() })
    }

    fn run(mut self) -> Result<(), ConversionError> {
        self.say_what_it_was()?;
        self.used()?;
        self.receipts()?;
        self.running()?;
        self.waiting()?;
        self.tasks()?;
        self.refusals()?;
        Ok(self.log.save()?)
    }

    fn append(&mut self, kind: Kind, new: New<'_>, body: &impl Serialize) -> Result<i64, ConversionError> {
        let body = serde_json::to_vec(body)?;
        let at = if new.at == 0 { self.now } else { new.at };
        Ok(self.log.append(kind, &New { at, body: &body, ..new })?)
    }

    fn say_what_it_was(&mut self) -> Result<(), ConversionError> {
        let pruned = self.log.tip.head;
        let last = "SELECT number, hash FROM receipts ORDER BY number DESC LIMIT 1";
        let last = self.old.query_row(last, [], head).optional()?.unwrap_or(pruned);
        // Every intent names its receipt, so that a missing end is noticed.
        let named = "SELECT max((SELECT coalesce(max(receipt), 0) FROM intents), (SELECT coalesce(max(receipt), 0) FROM open))";
        let named = self.old.query_row(named, [], |row| row.get(0).map(number))?;
        if named > last.number {
            return Err(ConversionError::Damaged(format!(
                "the receipts {} to {named} are missing",
                last.number + 1
            )));
        }
        let (receipts, checkpoint) = (stored(last.number), Digest32(last.hash));
        self.append(
            Kind::Migrated,
            New::default(),
            &record::Migrated { format: FORMAT, receipts, checkpoint },
        )?;
        if pruned.number > 0 {
            let (receipts, checkpoint) = (stored(pruned.number), Digest32(pruned.hash));
            let body =
                record::Pruned { number: 0, hash: Digest32(super::chain::NOTHING), receipts, checkpoint };
            self.append(Kind::Pruned, New::default(), &body)?;
        }
        Ok(())
    }

    /// Converts the intents whose receipts were pruned.
    fn used(&mut self) -> Result<(), ConversionError> {
        let sql = "SELECT intent, agent, content, keep_until, proof, started FROM intents
                   WHERE receipt <= (SELECT number FROM chain) ORDER BY run";
        let mut statement = self.old.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let agent = row.get::<_, String>(1)?;
            let proof = row.get::<_, Option<String>>(4)?;
            let new = New {
                at: row.get(5)?,
                intent: Some(IntentId::from_bytes(row.get(0)?)),
                agent: Some(&agent),
                proof: proof.as_deref(),
                ..New::default()
            };
            let (content, keep_until) = (Digest32(row.get(2)?), row.get(3)?);
            self.append(Kind::Used, new, &record::Used { content, keep_until, verdict: None })?;
        }
        Ok(())
    }

    /// Converts the receipts, with their claims.
    fn receipts(&mut self) -> Result<(), ConversionError> {
        let sql = "SELECT receipts.number, receipts.intent, receipts.agent, tool, status, ended, body, hash,
                          content, proof, keep_until, started, verdict,
                          EXISTS (SELECT 1 FROM open WHERE open.receipt = receipts.number)
                   FROM receipts LEFT JOIN intents ON intents.receipt = receipts.number ORDER BY number";
        let mut statement = self.old.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            self.receipt(row)?;
        }
        self.say_delivered()
    }

    fn receipt(&mut self, row: &Row<'_>) -> Result<(), ConversionError> {
        let nth = row.get::<_, i64>(0)?;
        let damaged = |what: &str| ConversionError::Damaged(format!("receipt {nth} {what}"));
        if number(nth) != self.log.tip.head.number + 1 {
            return Err(damaged("does not come after the one before it"));
        }
        let text = |column: usize| row.get::<_, String>(column);
        let (agent, tool, status) = (text(2)?, text(3)?, text(4)?);
        let intent = Some(IntentId::from_bytes(row.get(1)?));
        let content = row.get::<_, Option<[u8; 32]>>(8)?.ok_or_else(|| damaged("has no intent"))?;
        let proof = row.get::<_, Option<String>>(9)?;
        let base = New { intent, agent: Some(&agent), tool: Some(&tool), ..New::default() };
        let claim = record::Claim {
            content: Digest32(content),
            keep_until: row.get(10)?,
            will: digest(b""),
            task: None,
            verdict: verdict(row, 12)?,
        };
        let claimed = New { at: row.get(11)?, proof: proof.as_deref(), ..base };
        let claim = self.append(Kind::Claim, claimed, &claim)?;
        let body =
            row.get_ref(6)?.as_blob().map_err(|_other_type| damaged("is not what was written there"))?;
        let (at, about, root) = (row.get(5)?, Some(claim), Some(row.get(7)?));
        let ended = New {
            at,
            about,
            root,
            body,
            status: Some(&status),
            intent,
            agent: Some(&agent),
            tool: Some(&tool),
            proof: None,
        };
        let receipt = self.log.append(Kind::Receipt, &ended)?;
        if row.get::<_, bool>(13)? {
            let sql = "INSERT INTO open(run, receipt) VALUES (?1, ?2)";
            self.new.prepare_cached(sql)?.execute([claim, receipt])?;
        } else {
            self.delivered.push(receipt);
        }
        if self.delivered.len() >= DELIVERED_AT_ONCE {
            self.say_delivered()?;
        }
        Ok(())
    }

    fn say_delivered(&mut self) -> Result<(), ConversionError> {
        let delivered = std::mem::take(&mut self.delivered);
        if !delivered.is_empty() {
            self.append(Kind::Delivered, New::default(), &delivered)?;
        }
        Ok(())
    }

    /// Converts the intents that had started and have no receipt.
    fn running(&mut self) -> Result<(), ConversionError> {
        let task = if self.has("open", "task")? { "open.task" } else { "NULL" };
        let sql = format!(
            "SELECT intent, agent, content, proof, keep_until, started, verdict, will, {task}
             FROM intents LEFT JOIN open USING (run) WHERE intents.receipt IS NULL ORDER BY run"
        );
        let mut statement = self.old.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let intent = IntentId::from_bytes(row.get(0)?);
            let (agent, proof) = (row.get::<_, String>(1)?, row.get::<_, Option<String>>(3)?);
            let no_will =
                || ConversionError::Damaged(format!("the intent {intent} is neither open nor over"));
            let will = row.get::<_, Option<String>>(7)?.ok_or_else(no_will)?;
            let task = row.get::<_, Option<String>>(8)?;
            let body = record::Claim {
                content: Digest32(row.get(2)?),
                keep_until: row.get(4)?,
                will: digest(will.as_bytes()),
                task: task.as_ref().map(|task| digest(task.as_bytes())),
                verdict: verdict(row, 6)?,
            };
            let (at, proof) = (row.get(5)?, proof.as_deref());
            let new = New { at, intent: Some(intent), agent: Some(&agent), proof, ..New::default() };
            let run = self.append(Kind::Claim, new, &body)?;
            let sql = "INSERT INTO open(run, will, task) VALUES (?1, ?2, ?3)";
            self.new.execute(sql, params![run, will, task])?;
        }
        Ok(())
    }

    fn waiting(&mut self) -> Result<(), ConversionError> {
        let mut statement = self.old.prepare("SELECT held FROM waiting")?;
        let texts = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
        for text in texts {
            let Waiting { call, verdict } = serde_json::from_str(&text)?;
            let body = record::Held {
                content: Digest32(super::claims::content(&call)),
                shown: digest(text.as_bytes()),
                until: verdict.expires_at.map_or(0, micros),
            };
            let (agent, tool) = (Some(call.agent.as_str()), Some(call.tool.as_str()));
            let new = New { intent: Some(call.intent), agent, tool, ..New::default() };
            let number = self.append(Kind::Held, new, &body)?;
            self.new.execute("INSERT INTO waiting(number, text) VALUES (?1, ?2)", params![number, text])?;
        }
        Ok(())
    }

    /// A journal from before the A2A door has no tasks, and an early one of format 2 has them in another order.
    fn tasks(&mut self) -> Result<(), ConversionError> {
        if !self.has("tasks", "task")? {
            return Ok(());
        }
        let order = if self.has("tasks", "number")? { "number" } else { "created" };
        let mut statement = self.old.prepare(&format!("SELECT {ROW} FROM tasks ORDER BY {order}"))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let values = (0..8)
                .map(|column| row.get(column))
                .collect::<rusqlite::Result<Vec<rusqlite::types::Value>>>()?;
            let sql = format!("INSERT INTO tasks({ROW}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
            self.new.prepare_cached(&sql)?.execute(rusqlite::params_from_iter(values))?;
            let (intent, hash) = (Some(IntentId::from_bytes(row.get(0)?)), row_digest(row, 0)?);
            self.log.append(Kind::Task, &New { at: self.now, intent, body: &hash, ..New::default() })?;
        }
        Ok(())
    }

    fn refusals(&mut self) -> Result<(), ConversionError> {
        let sql = "SELECT refused, intent, agent, tool, blocked_by, message FROM refusals ORDER BY number";
        let mut tip = RefusalTip::read(self.new)?;
        let mut statement = self.old.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            tip.append(self.new, &Refused::read(row, 0)?)?;
        }
        Ok(tip.mark(&mut self.log, self.now)?)
    }

    fn has(&self, table: &str, column: &str) -> rusqlite::Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2)";
        self.old.query_row(sql, [table, column], |row| row.get(0))
    }
}

fn head(row: &Row<'_>) -> rusqlite::Result<Head> {
    Ok(Head { number: number(row.get(0)?), hash: row.get(1)? })
}

fn verdict(row: &Row<'_>, column: usize) -> Result<Option<Box<RawValue>>, ConversionError> {
    Ok(row.get::<_, Option<String>>(column)?.map(RawValue::from_string).transpose()?)
}

/// Checks the new journal, and with it the chain of the old one.
fn verified(new: &Connection) -> Result<Finding, Stop> {
    let mut verifier = Verifier::of_all(new, None)?;
    while verifier.piece(new, PIECE)? {}
    verifier.finish(new)
}
