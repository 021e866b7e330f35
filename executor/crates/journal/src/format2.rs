//! Converts journals of format 2, and computes the hashes of their receipts, which are still checked.
//!
//! The new journal is written beside the old one, in one transaction, and checked; then the two names are exchanged
//! atomically. So there is a complete journal at any time, and the old one stays as `journal.db.format-2`.

use super::chain::Head;
use super::error::{OpenError, WriteError};
use super::files::{
    JournalFiles, find_free_name, open_private, rename_new, sibling_path, sidecar_files, sync_folder_of,
};
use super::finding::{CheckError, Finding};
use super::log::{NewRecord, RecordLog, RefusalRow, RefusalTip, Tip};
use super::record::{self, Digest32, JournalRecord, RecordKind, digest};
use super::store::{create, from_sqlite_int, read_format, to_sqlite_int};
use super::tasks::{HASHED_COLUMNS, hash_row};
use super::to_micros;
use super::verify::{CHUNK_RECORDS, Verifier};
use a2g_types::call::Call;
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::ident::IntentId;
use a2g_types::stored::v1;
use a2g_types::verdict::Verdict;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};

const FORMAT: i64 = 2;
/// The maximum number of receipts in one record of deliveries.
const MAX_DELIVERED_PER_RECORD: usize = 500;

/// The checkpoint after one more receipt, with the hash of format 2.
pub(super) fn next_head(head: Head, receipt: &JournalRecord<'_>) -> Option<Head> {
    let number = head.number + 1;
    let mut hasher = Sha256::new();
    // Never change these bytes: governors and operators store checkpoints of this chain.
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

/// `true` if the journal has format 2.
pub(super) fn needs_conversion(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name IN ('intents', 'receipts', 'chain')";
    let tables = connection.query_row(sql, [], |row| row.get::<_, i64>(0))?;
    Ok(tables == 3 && read_format(connection)? == FORMAT)
}

/// Converts a journal that this process has locked.
///
/// # Errors
/// [`OpenError`]; the journal is then unchanged.
pub(super) fn convert(files: &JournalFiles, path: &Path) -> Result<(), OpenError> {
    let (real, new) = (files.real(), sibling_path(files.real(), ".format-2"));
    let open_error = |error: std::io::Error| OpenError::from_io(path, error);
    tracing::info!(journal = %path.display(), old = %new.display(), "converting the journal to the format of this version");
    // A conversion in place would leave a file of twice the size, and need a log of that size as well.
    free_old_name(&new, path)?;
    open_private(&new).map_err(open_error)?;
    create(&new)?;
    let result = Conversion::convert_all(real, &new, path);
    if result.is_err() {
        let _already_absent = std::fs::remove_file(&new);
    }
    result?;
    renameat_with(CWD, &new, CWD, real, RenameFlags::EXCHANGE).map_err(|error| open_error(error.into()))?;
    sync_folder_of(real).map_err(open_error)
}

/// Frees the name that the old journal will get. The files of an interrupted conversion are removed; another converted
/// journal is renamed.
fn free_old_name(name: &Path, path: &Path) -> Result<(), OpenError> {
    let open_error = |error: std::io::Error| OpenError::from_io(path, error);
    let is_journal =
        || Connection::open(name).and_then(|connection| needs_conversion(&connection)).unwrap_or(false);
    if name.exists() && is_journal() {
        return rename_new(name, &find_free_name(name, "before")).map_err(open_error);
    }
    for file in [name, &sidecar_files(name)[0], &sidecar_files(name)[1]] {
        match std::fs::remove_file(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            result => result.map_err(open_error)?,
        }
    }
    Ok(())
}

/// The JSON text of a waiting intent in format 2.
#[derive(Deserialize)]
struct WaitingRow {
    #[serde(with = "v1::Call")]
    call: Call,
    #[serde(with = "v1::Verdict")]
    verdict: Verdict,
}

/// A conversion of the journal `old` to `new`.
struct Conversion<'a> {
    old: &'a Connection,
    new: &'a Connection,
    log: RecordLog<'a>,
    now: i64,
    delivered: Vec<i64>,
}

/// The reason why a conversion failed.
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
    fn convert_all(real: &Path, draft: &PathBuf, path: &Path) -> Result<(), OpenError> {
        let from_sqlite = OpenError::from_sqlite(path);
        let old = Connection::open(real).map_err(&from_sqlite)?;
        let mut new = Connection::open(draft).map_err(&from_sqlite)?;
        let convert = || -> Result<(), ConversionError> {
            let transaction = new.transaction()?;
            // One snapshot for all queries.
            let _snapshot = old.unchecked_transaction()?;
            Conversion::begin(&old, &transaction)?.run()?;
            Ok(transaction.commit()?)
        };
        let damage_error = |found: String| OpenError::Damaged { path: path.to_owned(), found };
        match { convert }() {
            Ok(()) => {}
            Err(ConversionError::Damaged(found)) => return Err(damage_error(found)),
            Err(ConversionError::Write(WriteError::NoSpace(error))) => {
                return Err(OpenError::NoSpace { path: path.to_owned(), source: error.into() });
            }
            Err(ConversionError::Write(WriteError::Broken(error))) => {
                return Err(OpenError::other(path, error));
            }
        }
        // Checked before the exchange of the names, so that the old journal stays in place if the check fails.
        match verify_all(&new) {
            Ok(_intact) => {}
            Err(CheckError::Found(found)) => return Err(damage_error(found.to_string())),
            Err(CheckError::Sqlite(error)) => return Err(from_sqlite(error)),
        }
        // Moves the logs into the files, because only the files are renamed.
        for connection in [&old, &new] {
            let result = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            result.map_err(&from_sqlite)?;
        }
        Ok(())
    }
}

impl<'a> Conversion<'a> {
    fn begin(old: &'a Connection, new: &'a Connection) -> Result<Self, ConversionError> {
        let pruned = old.query_row("SELECT number, hash FROM chain", [], read_head)?;
        let sql = "UPDATE chains SET receipts = ?1, checkpoint = ?2 WHERE name = 'records'";
        new.execute(sql, params![to_sqlite_int(pruned.number), pruned.hash])?;
        let log = RecordLog::resume(new, Tip::read(new)?)?;
        Ok(Self { old, new, log, now: to_micros(SystemClock.now()), delivered: Vec::new() })
    }

    fn run(mut self) -> Result<(), ConversionError> {
        self.append_origin()?;
        self.convert_used_intents()?;
        self.convert_receipts()?;
        self.convert_running_intents()?;
        self.convert_waiting_intents()?;
        self.convert_tasks()?;
        self.convert_refusals()?;
        Ok(self.log.save()?)
    }

    fn append(
        &mut self,
        kind: RecordKind,
        new: NewRecord<'_>,
        body: &impl Serialize,
    ) -> Result<i64, ConversionError> {
        let body = serde_json::to_vec(body)?;
        let at = if new.at == 0 { self.now } else { new.at };
        Ok(self.log.append(kind, &NewRecord { at, body: &body, ..new })?)
    }

    /// Appends the records that name the end of the old chain and its pruned part.
    fn append_origin(&mut self) -> Result<(), ConversionError> {
        let pruned = self.log.tip.head;
        let last = "SELECT number, hash FROM receipts ORDER BY number DESC LIMIT 1";
        let last = self.old.query_row(last, [], read_head).optional()?.unwrap_or(pruned);
        // Every intent names its receipt, so missing last receipts are detected.
        let last_named = "SELECT max((SELECT coalesce(max(receipt), 0) FROM intents), (SELECT coalesce(max(receipt), 0) FROM open))";
        let last_named = self.old.query_row(last_named, [], |row| row.get(0).map(from_sqlite_int))?;
        if last_named > last.number {
            return Err(ConversionError::Damaged(format!(
                "the receipts {} to {last_named} are missing",
                last.number + 1
            )));
        }
        let (receipts, checkpoint) = (to_sqlite_int(last.number), Digest32(last.hash));
        self.append(
            RecordKind::Migrated,
            NewRecord::default(),
            &record::MigratedBody { format: FORMAT, receipts, checkpoint },
        )?;
        if pruned.number > 0 {
            let (receipts, checkpoint) = (to_sqlite_int(pruned.number), Digest32(pruned.hash));
            let body = record::PrunedBody {
                number: 0,
                hash: Digest32(super::chain::INITIAL_HASH),
                receipts,
                checkpoint,
            };
            self.append(RecordKind::Pruned, NewRecord::default(), &body)?;
        }
        Ok(())
    }

    /// Converts the intents whose receipts were pruned.
    fn convert_used_intents(&mut self) -> Result<(), ConversionError> {
        let sql = "SELECT intent, agent, content, keep_until, proof, started FROM intents
                   WHERE receipt <= (SELECT number FROM chain) ORDER BY run";
        let mut statement = self.old.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let agent = row.get::<_, String>(1)?;
            let proof = row.get::<_, Option<String>>(4)?;
            let new = NewRecord {
                at: row.get(5)?,
                intent: Some(IntentId::from_bytes(row.get(0)?)),
                agent: Some(&agent),
                proof: proof.as_deref(),
                ..NewRecord::default()
            };
            let (content, keep_until) = (Digest32(row.get(2)?), row.get(3)?);
            self.append(RecordKind::Used, new, &record::UsedBody { content, keep_until, verdict: None })?;
        }
        Ok(())
    }

    /// Converts the receipts, with their claims.
    fn convert_receipts(&mut self) -> Result<(), ConversionError> {
        let sql = "SELECT receipts.number, receipts.intent, receipts.agent, tool, status, ended, body, hash,
                          content, proof, keep_until, started, verdict,
                          EXISTS (SELECT 1 FROM open WHERE open.receipt = receipts.number)
                   FROM receipts LEFT JOIN intents ON intents.receipt = receipts.number ORDER BY number";
        let mut statement = self.old.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            self.convert_receipt(row)?;
        }
        self.append_delivered()
    }

    fn convert_receipt(&mut self, row: &Row<'_>) -> Result<(), ConversionError> {
        let number = row.get::<_, i64>(0)?;
        let damage_error = |what: &str| ConversionError::Damaged(format!("receipt {number} {what}"));
        if from_sqlite_int(number) != self.log.tip.head.number + 1 {
            return Err(damage_error("does not come after the one before it"));
        }
        let text = |column: usize| row.get::<_, String>(column);
        let (agent, tool, status) = (text(2)?, text(3)?, text(4)?);
        let intent = Some(IntentId::from_bytes(row.get(1)?));
        let content = row.get::<_, Option<[u8; 32]>>(8)?.ok_or_else(|| damage_error("has no intent"))?;
        let proof = row.get::<_, Option<String>>(9)?;
        let base = NewRecord { intent, agent: Some(&agent), tool: Some(&tool), ..NewRecord::default() };
        let claim = record::ClaimBody {
            content: Digest32(content),
            keep_until: row.get(10)?,
            // Format 2 drops this text at the end of the run, and a check compares its hash only during a run.
            fallback_receipt: digest(b""),
            task: None,
            verdict: read_verdict(row, 12)?,
            arguments: None,
        };
        let new = NewRecord { at: row.get(11)?, proof: proof.as_deref(), ..base };
        let claim = self.append(RecordKind::Claim, new, &claim)?;
        let body =
            row.get_ref(6)?.as_blob().map_err(|_other_type| damage_error("is not what was written there"))?;
        let (at, about, root) = (row.get(5)?, Some(claim), Some(row.get(7)?));
        let new = NewRecord {
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
        let receipt = self.log.append(RecordKind::Receipt, &new)?;
        if row.get::<_, bool>(13)? {
            let sql = "INSERT INTO open(run, receipt) VALUES (?1, ?2)";
            self.new.prepare_cached(sql)?.execute([claim, receipt])?;
        } else {
            self.delivered.push(receipt);
        }
        if self.delivered.len() >= MAX_DELIVERED_PER_RECORD {
            self.append_delivered()?;
        }
        Ok(())
    }

    fn append_delivered(&mut self) -> Result<(), ConversionError> {
        let delivered = std::mem::take(&mut self.delivered);
        if !delivered.is_empty() {
            self.append(RecordKind::Delivered, NewRecord::default(), &delivered)?;
        }
        Ok(())
    }

    /// Converts the intents that have started and have no receipt.
    fn convert_running_intents(&mut self) -> Result<(), ConversionError> {
        let task = if self.has_column("open", "task")? { "open.task" } else { "NULL" };
        let sql = format!(
            "SELECT intent, agent, content, proof, keep_until, started, verdict, will, {task}
             FROM intents LEFT JOIN open USING (run) WHERE intents.receipt IS NULL ORDER BY run"
        );
        let mut statement = self.old.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let intent = IntentId::from_bytes(row.get(0)?);
            let (agent, proof) = (row.get::<_, String>(1)?, row.get::<_, Option<String>>(3)?);
            let no_receipt =
                || ConversionError::Damaged(format!("the intent {intent} is neither open nor finished"));
            let fallback_receipt = row.get::<_, Option<String>>(7)?.ok_or_else(no_receipt)?;
            let task = row.get::<_, Option<String>>(8)?;
            let body = record::ClaimBody {
                content: Digest32(row.get(2)?),
                keep_until: row.get(4)?,
                fallback_receipt: digest(fallback_receipt.as_bytes()),
                task: task.as_ref().map(|task| digest(task.as_bytes())),
                verdict: read_verdict(row, 6)?,
                arguments: None,
            };
            let (at, proof) = (row.get(5)?, proof.as_deref());
            let new =
                NewRecord { at, intent: Some(intent), agent: Some(&agent), proof, ..NewRecord::default() };
            let run = self.append(RecordKind::Claim, new, &body)?;
            let sql = "INSERT INTO open(run, will, task) VALUES (?1, ?2, ?3)";
            self.new.execute(sql, params![run, fallback_receipt, task])?;
        }
        Ok(())
    }

    fn convert_waiting_intents(&mut self) -> Result<(), ConversionError> {
        let mut statement = self.old.prepare("SELECT held FROM waiting")?;
        let texts = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
        for text in texts {
            let WaitingRow { call, verdict } = serde_json::from_str(&text)?;
            let body = record::HeldBody {
                content: Digest32(super::claims::content_hash(&call)),
                text_hash: digest(text.as_bytes()),
                until: verdict.expires_at.map_or(0, to_micros),
            };
            let (agent, tool) = (Some(call.agent.as_str()), Some(call.tool.as_str()));
            let new = NewRecord { intent: Some(call.intent), agent, tool, ..NewRecord::default() };
            let number = self.append(RecordKind::Held, new, &body)?;
            self.new.execute("INSERT INTO waiting(number, text) VALUES (?1, ?2)", params![number, text])?;
        }
        Ok(())
    }

    /// Converts the tasks. Early journals of format 2 have no table of tasks, or one without the column `number`.
    fn convert_tasks(&mut self) -> Result<(), ConversionError> {
        if !self.has_column("tasks", "task")? {
            return Ok(());
        }
        let order = if self.has_column("tasks", "number")? { "number" } else { "created" };
        let mut statement =
            self.old.prepare(&format!("SELECT {HASHED_COLUMNS} FROM tasks ORDER BY {order}"))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let values = (0..8)
                .map(|column| row.get(column))
                .collect::<rusqlite::Result<Vec<rusqlite::types::Value>>>()?;
            let sql = format!("INSERT INTO tasks({HASHED_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
            self.new.prepare_cached(&sql)?.execute(rusqlite::params_from_iter(values))?;
            let (intent, hash) = (Some(IntentId::from_bytes(row.get(0)?)), hash_row(row, 0)?);
            self.log.append(
                RecordKind::Task,
                &NewRecord { at: self.now, intent, body: &hash, ..NewRecord::default() },
            )?;
        }
        Ok(())
    }

    fn convert_refusals(&mut self) -> Result<(), ConversionError> {
        let sql = "SELECT refused, intent, agent, tool, blocked_by, message FROM refusals ORDER BY number";
        let mut tip = RefusalTip::read(self.new)?;
        let mut statement = self.old.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            tip.append(self.new, &RefusalRow::read(row, 0)?)?;
        }
        Ok(tip.mark(&mut self.log, self.now)?)
    }

    fn has_column(&self, table: &str, column: &str) -> rusqlite::Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2)";
        self.old.query_row(sql, [table, column], |row| row.get(0))
    }
}

fn read_head(row: &Row<'_>) -> rusqlite::Result<Head> {
    Ok(Head { number: from_sqlite_int(row.get(0)?), hash: row.get(1)? })
}

fn read_verdict(row: &Row<'_>, column: usize) -> Result<Option<Box<RawValue>>, ConversionError> {
    Ok(row.get::<_, Option<String>>(column)?.map(RawValue::from_string).transpose()?)
}

/// Checks all records of the new journal, and with them the receipts of the old chain.
fn verify_all(new: &Connection) -> Result<Finding, CheckError> {
    let mut verifier = Verifier::full(new, None)?;
    while verifier.check_chunk(new, CHUNK_RECORDS)? {}
    verifier.finish(new)
}
