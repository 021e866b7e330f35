//! The journal's file: SQLite in WAL mode, where a committed transaction is on the disk.

use super::chain::{Head, Link};
use super::tasks::KeptTask;
use crate::ident::{AgentDid, IntentId, ToolName};
use crate::outcome::Receipt;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, params};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The version of the tables.
const FORMAT: i64 = 2;
/// How long somebody else's transaction is waited for, such as that of `journal prune`.
const PATIENCE: Duration = Duration::from_secs(5);
/// A connection is used by one thread at a time, which SQLite need not see to.
const WRITES: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);
const READS: OpenFlags = OpenFlags::SQLITE_OPEN_READ_ONLY.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);
/// How much of the file each connection holds in memory, in KiB, by a number below zero as SQLite wants it. The kernel
/// holds it as well, and the server is not to grow while the journal does.
const CACHE_KIB: i64 = -256;
/// How many of the latest refusals are kept.
const MOST_REFUSALS: i64 = 100_000;

const TABLES: &str = "
CREATE TABLE chain(
    number INTEGER NOT NULL,     -- of the last receipt that was pruned; 0 when none was
    hash BLOB NOT NULL           -- its hash, from which the first that is left goes on
);
CREATE TABLE intents(            -- what has started, and must never start again
    run INTEGER PRIMARY KEY,     -- in the order of starting, so that those of late stand together
    intent BLOB NOT NULL,
    agent TEXT NOT NULL,
    content BLOB NOT NULL,       -- SHA-256 of agent, tool and arguments
    proof TEXT,                  -- issuer and single-use id of the verdict's proof
    keep_until INTEGER NOT NULL, -- when its verdicts have expired, in microseconds since 1970
    started INTEGER NOT NULL,
    verdict TEXT,                -- the governor's, when the executor asked it
    receipt INTEGER              -- its number, once there is one
);
CREATE UNIQUE INDEX ids ON intents(intent);
CREATE UNIQUE INDEX proofs ON intents(proof) WHERE proof IS NOT NULL;
CREATE TABLE open(               -- what has started and is not yet reported
    run INTEGER PRIMARY KEY,
    will TEXT,                   -- while it runs: the receipt if nobody can write another
    task TEXT,                   -- while it runs: its task of the A2A door, when that is kept nowhere else
    receipt INTEGER              -- once it is over: the receipt that the governor does not have yet
);
CREATE TABLE receipts(
    number INTEGER PRIMARY KEY,
    intent BLOB NOT NULL,
    agent TEXT NOT NULL,
    tool TEXT NOT NULL,
    status TEXT NOT NULL,
    ended INTEGER NOT NULL,
    body BLOB NOT NULL,
    hash BLOB NOT NULL
);
CREATE TABLE waiting(            -- escalated intents
    intent BLOB PRIMARY KEY,
    held TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE refusals(           -- what did not run, the latest of it
    number INTEGER PRIMARY KEY,
    refused INTEGER NOT NULL,
    intent BLOB NOT NULL,
    agent TEXT NOT NULL,
    tool TEXT NOT NULL,
    blocked_by TEXT NOT NULL,
    message TEXT NOT NULL
);
INSERT INTO chain VALUES (0, zeroblob(32));
";

/// Why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process writes it.
    #[error(
        "the journal `{0}` is in use by another executor: stop that one, or give this one a `journal.path` of its own"
    )]
    InUse(PathBuf),
    /// There is none.
    #[error("there is no journal `{0}`: it is made when the executor first serves")]
    Missing(PathBuf),
    /// The file is something else.
    #[error("`{0}` is not a journal of this version of the executor (its format is {1})")]
    Format(PathBuf, i64),
    /// The system or SQLite.
    #[error("the journal `{path}` cannot be opened: {reason}")]
    Failed {
        /// The file.
        path: PathBuf,
        /// What was said.
        reason: String,
    },
}

/// Why nothing was written.
#[derive(Debug, Clone)]
pub(super) enum Trouble {
    /// There is no room, or the file is locked: it may work later.
    Later(String),
    /// What is on the disk is not known any more. After a failed fsync the kernel may have thrown the
    /// pages away, so that another try would only seem to work.
    Broken(String),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Later(reason) | Self::Broken(reason) => f.write_str(reason),
        }
    }
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                Self::Later(error.to_string())
            }
            Some(_) | None => Self::Broken(error.to_string()),
        }
    }
}

/// A run as the file names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Run(pub(super) i64);

/// A run that is about to begin.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) intent: IntentId,
    pub(super) agent: AgentDid,
    pub(super) content: [u8; 32],
    pub(super) proof: Option<String>,
    pub(super) keep_until: i64,
    pub(super) started: i64,
    pub(super) verdict: Option<String>,
    pub(super) will: String,
    pub(super) task: Option<String>,
}

/// What became of a [`Start`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Began {
    /// It is on the disk, and nobody else's.
    New(Run),
    /// This intent has started before.
    Known,
    /// Another intent has started under this proof.
    Replayed,
}

/// A receipt to be written.
#[derive(Debug, Clone)]
pub(super) struct Finish {
    pub(super) run: Run,
    pub(super) receipt: Arc<Receipt>,
    pub(super) body: Arc<str>,
    pub(super) task: Option<KeptTask>,
    pub(super) ended: i64,
}

/// What an earlier process left of a run that it did not see end.
#[derive(Debug)]
pub(super) struct Will {
    pub(super) run: Run,
    pub(super) receipt: String,
    pub(super) task: Option<String>,
}

/// A report that the governor does not have, as an earlier process left it.
#[derive(Debug)]
pub(super) struct Undelivered {
    pub(super) number: u64,
    pub(super) run: Run,
    pub(super) agent: String,
}

/// An intent that has started, as it is found again.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) agent: String,
    pub(super) content: [u8; 32],
    pub(super) keep_until: i64,
    pub(super) verdict: Option<String>,
    /// `None` while it runs.
    pub(super) receipt: Option<u64>,
}

/// Something that was not run, for the record.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) refused: i64,
    pub(super) intent: IntentId,
    pub(super) agent: AgentDid,
    pub(super) tool: ToolName,
    pub(super) blocked_by: &'static str,
    pub(super) message: String,
}

/// The writing side. There is one in the world.
pub(super) struct Store {
    connection: Connection,
    head: Head,
    /// Held as long as this process may write.
    _lock: File,
}

impl Store {
    /// Opens or makes the journal.
    ///
    /// # Ambient Authority
    /// Makes the file, its folder and a lock beside it, for this user alone.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |reason: String| OpenError::Failed { path: path.to_owned(), reason };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| failed(error.to_string()))?;
        }
        let private = |path: &Path| {
            OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)
        };
        let lock = private(&beside(path, "lock")).map_err(|error| failed(error.to_string()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(OpenError::InUse(path.to_owned())),
            Err(error) => return Err(failed(error.to_string())),
        }
        // SQLite gives its other files the mode of this one.
        private(path).map_err(|error| failed(error.to_string()))?;
        let opened = Connection::open_with_flags(path, WRITES);
        let connection = opened.map_err(self::failed(path))?;
        prepare(&connection, path)?;
        let head = head(&connection).map_err(self::failed(path))?;
        Ok(Self { connection, head, _lock: lock })
    }

    /// How far the chain goes.
    pub(super) fn head(&self) -> Head {
        self.head
    }

    /// Writes all of it, or nothing: `entries` says what, and its results come back once it is on
    /// the disk.
    pub(super) fn commit<T>(
        &mut self,
        entries: impl FnOnce(&mut Batch<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Trouble> {
        let transaction =
            self.connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let mut batch = Batch { transaction: &transaction, head: self.head };
        let written = entries(&mut batch)?;
        let head = batch.head;
        transaction.commit()?;
        self.head = head;
        Ok(written)
    }

    /// The receipts to write for what had started and not finished when the process before this one
    /// ended, in the order in which it had started, and its tasks.
    pub(super) fn wills(&self) -> rusqlite::Result<Vec<Will>> {
        // A task that has a row is newer there.
        let mut wills = self.connection.prepare(
            "SELECT run, will, iif(intent IN (SELECT task FROM tasks), NULL, open.task)
             FROM open JOIN intents USING (run) WHERE open.receipt IS NULL ORDER BY run",
        )?;
        let will = |row: &rusqlite::Row<'_>| {
            Ok(Will { run: Run(row.get(0)?), receipt: row.get(1)?, task: row.get(2)? })
        };
        wills.query_map([], will)?.collect()
    }

    /// What waits for a person.
    pub(super) fn waiting(&self) -> rusqlite::Result<Vec<String>> {
        let mut waiting = self.connection.prepare("SELECT held FROM waiting")?;
        waiting.query_map([], |row| row.get(0))?.collect()
    }

    /// What the governor does not have, oldest first.
    pub(super) fn undelivered(&self) -> rusqlite::Result<Vec<Undelivered>> {
        let mut open = self.connection.prepare(
            "SELECT open.receipt, run, agent FROM open JOIN intents USING (run)
             WHERE open.receipt IS NOT NULL ORDER BY open.receipt",
        )?;
        let rows = open.query_map([], |row| {
            Ok(Undelivered { number: number(row.get(0)?), run: Run(row.get(1)?), agent: row.get(2)? })
        })?;
        rows.collect()
    }
}

/// One transaction.
pub(super) struct Batch<'a> {
    transaction: &'a Connection,
    head: Head,
}

impl Batch<'_> {
    pub(super) fn connection(&self) -> &Connection {
        self.transaction
    }

    pub(super) fn start(&self, start: &Start) -> rusqlite::Result<Began> {
        let Start { intent, agent, content, proof, keep_until, started, verdict, will, task } = start;
        let inserted = self
            .transaction
            .prepare_cached(
                "INSERT INTO intents(intent, agent, content, proof, keep_until, started, verdict)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
            )?
            .execute(params![
                intent.as_bytes(),
                agent.as_str(),
                content,
                proof,
                keep_until,
                started,
                verdict
            ])?;
        if inserted == 1 {
            let run = Run(self.transaction.last_insert_rowid());
            self.transaction
                .prepare_cached("INSERT INTO open(run, will, task) VALUES (?1, ?2, ?3)")?
                .execute(params![run.0, will, task])?;
            // Whoever waited for a person waits no longer.
            self.let_go(*intent)?;
            return Ok(Began::New(run));
        }
        let known = find(self.transaction, *intent)?.is_some();
        Ok(if known { Began::Known } else { Began::Replayed })
    }

    /// Writes a receipt and the task of its run, and gives the receipt's number.
    pub(super) fn finish(&mut self, finish: &Finish) -> rusqlite::Result<u64> {
        let Finish { run, receipt, body, task, ended } = finish;
        let (intent, agent, tool) =
            (receipt.intent.as_bytes(), receipt.agent.as_str(), receipt.tool.as_str());
        let status = receipt.outcome.end.status().as_str();
        let link = Link { intent, agent, tool, status, ended: *ended, body: body.as_bytes() };
        let head = self.head.and(&link);
        let stored = stored(head.number);
        self.transaction
            .prepare_cached(
                "INSERT INTO receipts(number, intent, agent, tool, status, ended, body, hash)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![stored, intent, agent, tool, status, ended, body.as_bytes(), head.hash])?;
        for sql in [
            "UPDATE intents SET receipt = ?2 WHERE run = ?1",
            "UPDATE open SET will = NULL, task = NULL, receipt = ?2 WHERE run = ?1",
        ] {
            self.transaction.prepare_cached(sql)?.execute([run.0, stored])?;
        }
        task.iter().try_for_each(|task| self.keep_task(task))?;
        self.head = head;
        Ok(head.number)
    }

    /// Forgets an intent that started for nobody: it was refused before its guest began.
    pub(super) fn release(&self, run: Run) -> rusqlite::Result<()> {
        for sql in ["DELETE FROM open WHERE run = ?1", "DELETE FROM intents WHERE run = ?1"] {
            self.transaction.prepare_cached(sql)?.execute([run.0])?;
        }
        Ok(())
    }

    pub(super) fn keep(&self, intent: IntentId, until: i64) -> rusqlite::Result<()> {
        self.transaction
            .prepare_cached("UPDATE intents SET keep_until = max(keep_until, ?2) WHERE intent = ?1")?
            .execute(params![intent.as_bytes(), until])
            .map(drop)
    }

    pub(super) fn delivered(&self, run: Run) -> rusqlite::Result<()> {
        self.transaction.prepare_cached("DELETE FROM open WHERE run = ?1")?.execute([run.0]).map(drop)
    }

    /// Keeps an escalated intent, unless it has started meanwhile: whether it waits now. The first verdict
    /// for it stays.
    pub(super) fn hold(&self, intent: IntentId, held: &str) -> rusqlite::Result<bool> {
        if find(self.transaction, intent)?.is_some() {
            return Ok(false);
        }
        self.transaction
            .prepare_cached("INSERT INTO waiting(intent, held) VALUES (?1, ?2) ON CONFLICT DO NOTHING")?
            .execute(params![intent.as_bytes(), held])?;
        Ok(true)
    }

    pub(super) fn let_go(&self, intent: IntentId) -> rusqlite::Result<()> {
        self.transaction
            .prepare_cached("DELETE FROM waiting WHERE intent = ?1")?
            .execute([intent.as_bytes()])
            .map(drop)
    }

    pub(super) fn refuse(&self, refusal: &Refusal) -> rusqlite::Result<()> {
        let Refusal { refused, intent, agent, tool, blocked_by, message } = refusal;
        self.transaction
            .prepare_cached(
                "INSERT INTO refusals(refused, intent, agent, tool, blocked_by, message)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                refused,
                intent.as_bytes(),
                agent.as_str(),
                tool.as_str(),
                blocked_by,
                message
            ])?;
        let oldest = self.transaction.last_insert_rowid() - MOST_REFUSALS;
        self.transaction
            .prepare_cached("DELETE FROM refusals WHERE number <= ?1")?
            .execute([oldest])
            .map(drop)
    }
}

/// The reading side.
pub(super) struct Reader(Connection);

impl Reader {
    /// Opens a journal that is there.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        if !path.exists() {
            return Err(OpenError::Missing(path.to_owned()));
        }
        let opened = Connection::open_with_flags(path, READS);
        let connection = opened.map_err(failed(path))?;
        connection.busy_timeout(PATIENCE).map_err(failed(path))?;
        connection.pragma_update(None, "cache_size", CACHE_KIB).map_err(failed(path))?;
        known_format(&connection, path)?;
        Ok(Self(connection))
    }

    pub(super) fn find(&self, intent: IntentId) -> rusqlite::Result<Option<Found>> {
        find(&self.0, intent)
    }

    /// The receipt with a number, as JSON; `None` when it was pruned.
    pub(super) fn body(&self, receipt: u64) -> rusqlite::Result<Option<Vec<u8>>> {
        self.0
            .prepare_cached("SELECT body FROM receipts WHERE number = ?1")?
            .query_row([stored(receipt)], |row| row.get(0))
            .optional()
    }

    /// When the oldest run ended whose report the governor does not have, in microseconds since 1970.
    pub(super) fn oldest_undelivered(&self) -> rusqlite::Result<Option<i64>> {
        self.0
            .prepare_cached("SELECT ended FROM receipts WHERE number = (SELECT min(receipt) FROM open)")?
            .query_row([], |row| row.get(0))
            .optional()
    }

    /// For the questions that people ask.
    pub(super) fn connection(&self) -> &Connection {
        &self.0
    }
}

/// A second writer, which does not append: for pruning.
pub(super) fn writable(path: &Path) -> Result<Connection, OpenError> {
    // Says what is wrong with the file, if anything is.
    Reader::open(path)?;
    let opened = Connection::open_with_flags(path, WRITES);
    let connection = opened.map_err(failed(path))?;
    connection.busy_timeout(PATIENCE).map_err(failed(path))?;
    connection.execute_batch(super::tasks::TABLES).map_err(failed(path))?;
    Ok(connection)
}

fn find(connection: &Connection, intent: IntentId) -> rusqlite::Result<Option<Found>> {
    connection
        .prepare_cached("SELECT agent, content, keep_until, verdict, receipt FROM intents WHERE intent = ?1")?
        .query_row([intent.as_bytes()], |row| {
            Ok(Found {
                agent: row.get(0)?,
                content: row.get(1)?,
                keep_until: row.get(2)?,
                verdict: row.get(3)?,
                receipt: row.get::<_, Option<i64>>(4)?.map(number),
            })
        })
        .optional()
}

/// The head of a chain as it is on the disk.
pub(super) fn head(connection: &Connection) -> rusqlite::Result<Head> {
    let head = |row: &rusqlite::Row<'_>| Ok(Head { number: number(row.get(0)?), hash: row.get(1)? });
    let last = connection
        .query_row("SELECT number, hash FROM receipts ORDER BY number DESC LIMIT 1", [], head)
        .optional()?;
    last.map_or_else(|| connection.query_row("SELECT number, hash FROM chain", [], head), Ok)
}

/// A number of a receipt as SQLite keeps it.
pub(super) fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn number(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}

/// The settings of a connection that writes, and the tables of a new file. Another file is left alone.
fn prepare(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let tables = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
    let is_new = tables.map_err(failed(path))? == 0;
    if !is_new {
        known_format(connection, path)?;
    }
    let prepare = || {
        connection.busy_timeout(PATIENCE)?;
        connection.pragma_update(None, "cache_size", CACHE_KIB)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // A commit returns when it is on the disk, also for a power cut.
        connection.pragma_update(None, "synchronous", "FULL")?;
        if is_new {
            let made = format!("BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {FORMAT}; COMMIT;");
            connection.execute_batch(&made)?;
        }
        super::tasks::prepare(connection)
    };
    prepare().map_err(failed(path))
}

fn failed(path: &Path) -> impl Fn(rusqlite::Error) -> OpenError {
    move |error| OpenError::Failed { path: path.to_owned(), reason: error.to_string() }
}

fn known_format(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    match connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)) {
        Ok(FORMAT) => Ok(()),
        Ok(other) => Err(OpenError::Format(path.to_owned(), other)),
        Err(error) => Err(failed(path)(error)),
    }
}

/// The files of a journal that grow with it.
pub(super) fn files(path: &Path) -> [PathBuf; 2] {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    [path.to_owned(), log.into()]
}

/// A file beside the journal.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    path.with_file_name(name)
}
