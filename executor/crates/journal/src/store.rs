//! The journal's file: an SQLite database in WAL mode.

use super::batch::Batch;
use super::chain::{Hash, Head};
use super::check;
use super::error::{OpenError, WriteError};
use super::files::{self, IfMissing, JournalFiles};
use super::log::{self, RefusalTip, Tip};
use super::record::{DecisionBody, Digest32};
use super::recorded_state::{RecordedState, recorded_state};
use super::sweep::sweep;
use super::{JournalLimits, arguments, fleet, stops, tasks};
use a2g_types::durability::{Durability, SyncedStarts};
use a2g_types::ident::IntentId;
use a2g_types::stop::Stop;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, TransactionBehavior};
use std::path::Path;
use std::time::Duration;
use strum::IntoStaticStr;

/// The version of the tables and of the texts in them.
pub(super) const FORMAT: i64 = 1;
/// The maximum time to wait for a transaction of another process, such as `journal prune`.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Each connection is used by one thread at a time, so SQLite needs no mutex.
const WRITE_FLAGS: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);
const READ_FLAGS: OpenFlags = OpenFlags::SQLITE_OPEN_READ_ONLY.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);
/// The page cache of each connection. SQLite reads a negative number as KiB. It is small because the kernel also caches
/// the file, and the server must not grow with the journal.
const CACHE_KIB: i64 = -256;

/// The tables of open and waiting intents. Their rows are derived from the records, and are compared with them.
// There is one small table for running and undelivered intents, so that the rows of a batch share few pages. A check
// compares this text with the file, comments included.
const TABLES: &str = "
CREATE TABLE open(               -- what has started and is not yet reported
    run INTEGER PRIMARY KEY,     -- the record of its claim
    fallback_receipt TEXT,       -- while it runs: the receipt if nobody can write another
    task TEXT,                   -- while it runs: its task of the A2A door, when that is kept nowhere else
    receipt INTEGER              -- once it is over: the record of the receipt that the governor does not have yet
);
CREATE TABLE waiting(            -- escalated intents
    number INTEGER PRIMARY KEY,  -- the record that says so
    text TEXT NOT NULL
);
";

/// Every table and index of a journal.
pub(super) fn schema() -> String {
    [log::TABLES, TABLES, tasks::TABLES, stops::TABLE, arguments::TABLE].concat()
}

/// The id of a run: the number of the record of its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RunId(pub(super) i64);

/// A run that had not ended when an earlier process did, with its fallback receipt.
#[derive(Debug)]
pub(super) struct InterruptedRun {
    pub(super) run: RunId,
    pub(super) intent: IntentId,
    pub(super) receipt: String,
    pub(super) task: Option<String>,
    pub(super) content: [u8; 32],
}

/// An undelivered report of an earlier process.
#[derive(Debug)]
pub(super) struct Undelivered {
    pub(super) receipt: i64,
    pub(super) run: RunId,
    pub(super) agent: String,
}

/// The options for opening a journal.
#[derive(Debug, Clone)]
pub struct JournalOptions {
    /// The action if there is no journal.
    pub if_missing: IfMissing,
    /// The worst failure that a committed entry survives.
    pub durability: Durability,
    /// The runs whose start is such an entry before their guest begins.
    pub synced_starts: SyncedStarts,
    /// The limits on what is stored.
    pub limits: JournalLimits,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            if_missing: IfMissing::Create,
            durability: Durability::default(),
            synced_starts: SyncedStarts::default(),
            limits: JournalLimits::default(),
        }
    }
}

/// The time at which a transaction is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommitSync {
    /// When its commit returns, at the durability [`Durability::PowerLoss`].
    Now,
    /// With the next transaction that is synced. The kernel has it when its commit returns.
    WithNext,
}

/// SQLite's setting `synchronous`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "UPPERCASE")]
enum Synchronous {
    /// A commit returns when it is on the disk.
    Full,
    /// A commit returns when the kernel has it.
    Normal,
}

impl Synchronous {
    fn of(durability: Durability, sync: CommitSync) -> Self {
        match (durability, sync) {
            (Durability::PowerLoss, CommitSync::Now) => Self::Full,
            (Durability::PowerLoss, CommitSync::WithNext) | (Durability::ProcessCrash, _) => Self::Normal,
        }
    }
}

/// The connection that writes. There is one for each journal.
pub(super) struct Store {
    // Declared before `files`, so that it is closed first: see `JournalFiles`.
    connection: Connection,
    durability: Durability,
    /// The setting of the connection.
    synchronous: Synchronous,
    tip: Tip,
    refusals: RefusalTip,
    files: JournalFiles,
    /// The record that the marker names; `None` before this process has written it.
    marked: Option<i64>,
}

impl Store {
    /// Opens or creates the journal, and checks its last records.
    ///
    /// # Ambient Authority
    /// Creates the file, its folder and a marker beside it, with access only for this user.
    pub(super) fn open(path: &Path, options: &JournalOptions) -> Result<Self, OpenError> {
        let from_sqlite = OpenError::from_sqlite(path);
        sweep(path);
        let files = JournalFiles::open(path, options.if_missing, create)?;
        let mut connection = Connection::open_with_flags(files.real(), WRITE_FLAGS).map_err(&from_sqlite)?;
        check_format(&connection, path)?;
        // After the check of the format, because the settings write to the file: a journal of another format is not
        // changed.
        configure(&connection, options.durability).map_err(&from_sqlite)?;
        check::check_at_start(&mut connection, path, &files, options.durability)?;
        let tip = Tip::read(&connection);
        let refusals = RefusalTip::read(&connection);
        let tip = tip.map_err(&from_sqlite)?;
        let refusals = refusals.map_err(&from_sqlite)?;
        let durability = options.durability;
        let synchronous = Synchronous::of(durability, CommitSync::Now);
        let mut store = Self { connection, durability, synchronous, tip, refusals, files, marked: None };
        // Syncs the records that an earlier process committed without a sync, and then writes the marker, which is behind
        // after them, `journal prune` or a power failure, and missing if the operator accepted a loss.
        match store.commit(0, CommitSync::Now, |_| Ok(())) {
            // On a full disk, the marker stays behind until a commit succeeds.
            Ok(()) | Err(WriteError::NoSpace(_)) => Ok(store),
            Err(WriteError::Broken(error)) => Err(OpenError::other(path, error)),
        }
    }

    /// The connection, to read at the start.
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The checkpoint of the latest receipt.
    pub(super) fn head(&self) -> Head {
        self.tip.head
    }

    /// Runs `write` in one transaction, and returns its result once the transaction is committed. `now` is in
    /// microseconds since 1970.
    pub(super) fn commit<T>(
        &mut self,
        now: i64,
        sync: CommitSync,
        write: impl FnOnce(&mut Batch<'_>) -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        self.set_synchronous(Synchronous::of(self.durability, sync))?;
        // `Immediate`: in a transaction that begins with a read, SQLite's first write fails if `journal prune` has
        // written since the read.
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut batch = Batch::new(&transaction, self.tip, self.refusals, now)?;
        // SQLite syncs nothing for a transaction that changes nothing, and earlier records may wait for this sync.
        if sync == CommitSync::Now && self.marked != Some(self.tip.number) {
            batch.rewrite()?;
        }
        let result = write(&mut batch)?;
        let (tip, refusals) = batch.close()?;
        transaction.commit()?;
        // A write to a removed file is lost.
        self.files.check()?;
        // After the commit: in the other order, a crash could leave a marker that names a record that does not exist. A
        // power failure could do the same with a record that is not synced.
        let is_synced = sync == CommitSync::Now || self.durability == Durability::ProcessCrash;
        if is_synced && self.marked != Some(tip.number) {
            self.files.update_marker(tip.number, &tip.hash);
            self.marked = Some(tip.number);
        }
        // Updated only now, because the records of a failed batch do not exist.
        (self.tip, self.refusals) = (tip, refusals);
        Ok(result)
    }

    fn set_synchronous(&mut self, synchronous: Synchronous) -> rusqlite::Result<()> {
        if self.synchronous != synchronous {
            self.connection.pragma_update(None, "synchronous", <&str>::from(synchronous))?;
            self.synchronous = synchronous;
        }
        Ok(())
    }

    /// Checks that the files are still the ones that were opened.
    pub(super) fn check_files(&mut self) -> Result<(), WriteError> {
        Ok(self.files.check()?)
    }

    /// Checks that the disk has space for a page.
    pub(super) fn check_space(&mut self) -> Result<(), WriteError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        rewrite_page(&transaction)?;
        Ok(transaction.commit()?)
    }

    /// The runs that had not ended when the previous process did, in the order of their starts.
    pub(super) fn interrupted_runs(&self) -> rusqlite::Result<Vec<InterruptedRun>> {
        // If the task has its own row, that one is newer.
        let mut runs = self.connection.prepare(
            "SELECT run, fallback_receipt, iif(intent IN (SELECT task FROM tasks), NULL, open.task), intent
             FROM open JOIN records ON records.number = run WHERE open.receipt IS NULL ORDER BY run",
        )?;
        let read = |row: &rusqlite::Row<'_>| {
            let intent = IntentId::from_bytes(row.get(3)?);
            let state = recorded_state(&self.connection, intent)?;
            let content = if let RecordedState::Claimed(claimed) = state { claimed.content } else { [0; 32] };
            let run = RunId(row.get(0)?);
            let receipt = row.get(1)?;
            let task = row.get(2)?;
            Ok(InterruptedRun { run, intent, receipt, task, content })
        };
        runs.query_map([], read)?.collect()
    }

    /// Returns `true` if the receipt with this number has this hash.
    pub(super) fn has_receipt(&self, number: u64, hash: &Hash) -> rusqlite::Result<bool> {
        // From the end: the receipts that are asked for are among the latest, and have no index.
        let sql = "SELECT hash = ?2 FROM records WHERE receipt = ?1 ORDER BY number DESC LIMIT 1";
        let Ok(number) = i64::try_from(number) else { return Ok(false) };
        let parameters = rusqlite::params![number, hash];
        let has_hash = self.connection.query_row(sql, parameters, |row| row.get(0)).optional()?;
        Ok(has_hash.unwrap_or(false))
    }

    /// The intents that wait for a person, and the approved intents that have not started.
    pub(super) fn held_intents(&self) -> rusqlite::Result<Vec<super::HeldIntent>> {
        let sql = "SELECT text, intent FROM waiting JOIN records USING (number) ORDER BY number";
        let mut waiting = self.connection.prepare(sql)?;
        let rows = waiting.query_map([], |row| {
            let state = recorded_state(&self.connection, IntentId::from_bytes(row.get(1)?))?;
            let approval = if let RecordedState::Approved(_, decided) = state {
                let DecisionBody { by, manifest, basis, grants, .. } = decided;
                Some(super::Approval { by, manifest, basis: basis.map(|Digest32(hash)| hash), grants })
            } else {
                None
            };
            Ok(super::HeldIntent { text: row.get(0)?, approval })
        })?;
        rows.collect()
    }

    /// The identity of the fleet that the journal remembers.
    pub(super) fn fleet(&self) -> rusqlite::Result<Option<String>> {
        Ok(fleet::latest(&self.connection)?.map(|(_, identity)| identity))
    }

    /// The stops in force, oldest first.
    pub(super) fn stops(&self) -> rusqlite::Result<Vec<Stop>> {
        stops::in_force(&self.connection)
    }

    /// The undelivered reports, oldest first.
    pub(super) fn undelivered_reports(&self) -> rusqlite::Result<Vec<Undelivered>> {
        // The outbox delivers the reports of an agent in this order.
        let mut open = self.connection.prepare(
            "SELECT open.receipt, run, agent FROM open JOIN records ON records.number = open.receipt
             WHERE open.receipt IS NOT NULL ORDER BY open.receipt",
        )?;
        let rows = open.query_map([], |row| {
            Ok(Undelivered { receipt: row.get(0)?, run: RunId(row.get(1)?), agent: row.get(2)? })
        })?;
        rows.collect()
    }
}

/// A connection that only reads.
pub(super) struct Reader(Connection);

impl Reader {
    /// Returns `true` if the run has not ended, or the governor has not acknowledged its report.
    pub(super) fn is_undelivered(&self, run: i64) -> rusqlite::Result<bool> {
        let sql = "SELECT EXISTS(SELECT 1 FROM open WHERE run = ?1)";
        self.connection().prepare_cached(sql)?.query_row([run], |row| row.get(0))
    }

    /// Opens an existing journal.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        if !path.exists() {
            return Err(OpenError::Missing(path.to_owned()));
        }
        let connection =
            Connection::open_with_flags(path, READ_FLAGS).map_err(OpenError::from_sqlite(path))?;
        let configure = || {
            connection.busy_timeout(BUSY_TIMEOUT)?;
            keep_plans(&connection)?;
            connection.pragma_update(None, "cache_size", CACHE_KIB)
        };
        configure().map_err(OpenError::from_sqlite(path))?;
        check_format(&connection, path)?;
        Ok(Self(connection))
    }

    pub(super) fn recorded_state(&self, intent: IntentId) -> rusqlite::Result<RecordedState> {
        // One snapshot for several queries.
        let _snapshot = self.0.unchecked_transaction()?;
        recorded_state(&self.0, intent)
    }

    /// The size of a receipt in bytes; `None` if it was pruned.
    pub(super) fn body_length(&self, receipt: i64) -> rusqlite::Result<Option<u64>> {
        self.0
            .prepare_cached("SELECT length(body) FROM records WHERE number = ?1 AND kind = 'receipt'")?
            .query_row([receipt], |row| row.get(0).map(from_sqlite_int))
            .optional()
    }

    /// The JSON text of a receipt; `None` if it was pruned.
    pub(super) fn body(&self, receipt: i64) -> rusqlite::Result<Option<Vec<u8>>> {
        find_body(&self.0, receipt)
    }

    /// The end time of the oldest run with an undelivered report, in microseconds since 1970.
    pub(super) fn oldest_undelivered_at(&self) -> rusqlite::Result<Option<i64>> {
        self.0
            .prepare_cached("SELECT at FROM records WHERE number = (SELECT min(receipt) FROM open)")?
            .query_row([], |row| row.get(0))
            .optional()
    }

    /// The connection, for the queries of `History`.
    pub(super) fn connection(&self) -> &Connection {
        &self.0
    }

    /// The connection, for a check that sets a progress handler on it.
    pub(super) fn into_connection(self) -> Connection {
        self.0
    }
}

/// The JSON text of the receipt of a record; `None` if it was pruned.
pub(super) fn find_body(connection: &Connection, record: i64) -> rusqlite::Result<Option<Vec<u8>>> {
    connection
        .prepare_cached("SELECT body FROM records WHERE number = ?1 AND kind = 'receipt'")?
        .query_row([record], |row| row.get(0))
        .optional()
}

/// Opens a connection that writes beside the server's, for pruning.
pub(super) fn open_writable(path: &Path) -> Result<Connection, OpenError> {
    // Checks that the file is a journal.
    Reader::open(path)?;
    let metadata = path.metadata().map_err(|error| OpenError::from_io(path, error))?;
    files::check_private(path, &metadata)?;
    let connection = Connection::open_with_flags(path, WRITE_FLAGS).map_err(OpenError::from_sqlite(path))?;
    let result = connection.busy_timeout(BUSY_TIMEOUT).and_then(|()| keep_plans(&connection));
    result.map_err(OpenError::from_sqlite(path))?;
    Ok(connection)
}

/// Writes a page with its present content into the transaction. SQLite neither writes nor syncs anything for a transaction
/// without pages, and takes the page of an `UPDATE` that changes nothing for one; but it always writes the first page for
/// this setting.
pub(super) fn rewrite_page(transaction: &Connection) -> rusqlite::Result<()> {
    transaction.pragma_update(None, "user_version", FORMAT)
}

/// Makes SQLite use the same query plan for all bound values. Otherwise it recompiles each statement that uses a
/// partial index for each value, which takes longer than the statement itself.
pub(super) fn keep_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Creates the tables of a journal in an empty file.
pub(super) fn create(path: &Path) -> Result<(), OpenError> {
    let create = || {
        let connection = Connection::open_with_flags(path, WRITE_FLAGS)?;
        connection.execute_batch(&format!("BEGIN; {} PRAGMA user_version = {FORMAT}; COMMIT;", schema()))?;
        connection.pragma_update(None, "journal_mode", "WAL")
    };
    create().map_err(OpenError::from_sqlite(path))
}

/// Configures a connection that writes.
fn configure(connection: &Connection, durability: Durability) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    keep_plans(connection)?;
    // The page size and the checkpoint interval are SQLite's defaults: other values made no measurable difference.
    connection.pragma_update(None, "cache_size", CACHE_KIB)?;
    // A restored journal is in mode DELETE, because its backup is a single file.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let synchronous = Synchronous::of(durability, CommitSync::Now);
    connection.pragma_update(None, "synchronous", <&str>::from(synchronous))
}

/// Checks that a file is a journal of this format.
pub(super) fn check_format(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let sql =
        "SELECT user_version, EXISTS (SELECT 1 FROM sqlite_schema WHERE name IN ('records', 'receipts'))
               FROM pragma_user_version";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?));
    match connection.query_row(sql, [], read).map_err(OpenError::from_sqlite(path))? {
        // The database of another program may have any version.
        (_any, false) => Err(OpenError::NotAJournal(path.to_owned())),
        (FORMAT, true) => Ok(()),
        (format, true) => Err(OpenError::Format { path: path.to_owned(), format }),
    }
}

/// Converts a number to SQLite's integer type.
pub(super) fn to_sqlite_int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn from_sqlite_int(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synchronous_level_follows_durability() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.db");
        // SQLite's values of FULL and NORMAL.
        for (durability, expected) in
            [(Durability::PowerLoss, [2, 1, 2]), (Durability::ProcessCrash, [1, 1, 1])]
        {
            let mut store =
                Store::open(&path, &JournalOptions { durability, ..JournalOptions::default() }).unwrap();
            let level = |store: &Store| {
                store.connection.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0)).unwrap()
            };
            let at_start = level(&store);
            let after = [CommitSync::WithNext, CommitSync::Now].map(|sync| {
                store.commit(0, sync, |_| Ok(())).unwrap();
                level(&store)
            });
            assert_eq!([at_start, after[0], after[1]], expected, "{durability:?}");
        }
    }

    /// An earlier process may have committed records without a sync. SQLite syncs its log only if it writes to it.
    #[test]
    fn an_opened_journal_is_synced_before_its_marker_names_the_last_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.db");
        let marked = || files::read_marker(&path).unwrap().number;
        let log_bytes = || files::data_files(&path)[1].metadata().unwrap().len();
        let mut store = Store::open(&path, &JournalOptions::default()).unwrap();
        store.commit(0, CommitSync::WithNext, |batch| batch.remember_fleet("a")).unwrap();
        assert_eq!(marked(), 0);
        // The last connection moves the log into the file.
        drop(store);
        assert!(!files::data_files(&path)[1].exists());
        let mut store = Store::open(&path, &JournalOptions::default()).unwrap();
        assert!(log_bytes() > 0, "nothing was synced");
        assert_eq!(marked(), 1);
        let before = log_bytes();
        store.check_space().unwrap();
        assert!(log_bytes() > before, "the disk's space was not tried");
    }
}
