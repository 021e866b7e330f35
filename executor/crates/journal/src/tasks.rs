//! Tasks of the protocols that have tasks, stored as opaque documents, so that a task outlives the process.
//!
//! The writer writes tasks in the order of the calls, or with the start and the end of their runs. Only the latest
//! tasks of each owner are stored; a task that has not ended is never dropped for a newer one.

use super::backend::Backend;
use super::batch::{Batch, RECORD_BYTES};
use super::chain::Hash;
use super::error::WriteError;
use super::record::RecordKind;
use super::store::{Reader, from_sqlite_int};
use super::writer::JournalEntry;
use super::{IfFull, JournalError, MAX_INLINE_BYTES, from_micros, to_micros};
use a2g_types::ident::{AgentDid, IntentId};
use rusqlite::types::ValueRef;
use rusqlite::{OptionalExtension as _, Row, ToSql, params};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;
use time::OffsetDateTime;

/// The table of tasks. Its rows are in the order of their first writes, so that current writes are on the last page: in
/// a tree ordered by random ids, every write would touch eleven pages.
// A check compares this text with the file, comments included.
pub(super) const TABLES: &str = "
CREATE TABLE tasks(                      -- of the A2A door
    number INTEGER PRIMARY KEY,          -- in the order in which they were first written
    task BLOB NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    context TEXT NOT NULL,
    created INTEGER NOT NULL,            -- in microseconds since 1970
    ended INTEGER,                       -- in microseconds since 1970
    status TEXT NOT NULL,                -- what a list says of it
    bytes INTEGER NOT NULL,              -- of the document
    document TEXT NOT NULL
);
CREATE INDEX tasks_of ON tasks(owner, created, bytes);
CREATE INDEX tasks_open_of ON tasks(owner) WHERE ended IS NULL;
";

/// Hashes a row with the columns of [`HASHED_COLUMNS`], for its record.
pub(super) fn hash_row(row: &Row<'_>) -> rusqlite::Result<Hash> {
    let mut hasher = Sha256::new();
    hasher.update(b"a2g-executor task 1\n");
    for column in 0..HASHED_COLUMN_COUNT {
        let (kind, bytes): (&[u8], Cow<'_, [u8]>) = match row.get_ref(column)? {
            ValueRef::Null => (b"null", Cow::default()),
            ValueRef::Integer(number) => (b"integer", number.to_le_bytes().to_vec().into()),
            ValueRef::Real(number) => (b"real", number.to_le_bytes().to_vec().into()),
            ValueRef::Text(text) => (b"text", text.into()),
            ValueRef::Blob(blob) => (b"blob", blob.into()),
        };
        // SQLite's types belong to values, so the type is hashed as well.
        hasher.update(kind);
        hasher.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(bytes);
    }
    Ok(hasher.finalize().into())
}

/// The columns of a row of [`TABLES`], which are all hashed, in this order.
pub(super) const HASHED_COLUMNS: &str =
    "number, task, owner, context, created, ended, status, bytes, document";
const HASHED_COLUMN_COUNT: usize = 9;

/// The maximum number of stored tasks of one owner. It can be exceeded until the next clean-up: see [`should_prune`].
pub(super) const MAX_TASKS: i64 = 1_000;
/// The maximum size of the stored documents of one owner, in bytes.
pub(super) const MAX_TASK_BYTES: i64 = 256 << 20;

/// A stored task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalTask {
    /// The id of the task and of its intent.
    pub task: IntentId,
    /// The agent that the task belongs to.
    pub owner: AgentDid,
    /// The id of the conversation.
    pub context: String,
    /// The creation time.
    pub created: OffsetDateTime,
    /// The end time; `None` for an open task.
    pub ended: Option<OffsetDateTime>,
    /// The status that lists show, in the door's own format.
    pub status: String,
    /// The whole task, in the door's own format.
    pub document: String,
}

/// The treatment of a task that cannot be written because the disk is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPolicy {
    /// The write is retried.
    Retry,
    /// The write fails, and the caller gets [`JournalError::NoSpace`].
    FailFast,
}

/// A task in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSummary {
    /// The id of the task.
    pub task: IntentId,
    /// The id of the conversation.
    pub context: String,
    /// The creation time.
    pub created: OffsetDateTime,
    /// [`JournalTask::status`].
    pub status: String,
}

impl TaskSummary {
    /// The position in lists.
    #[must_use]
    pub fn key(&self) -> TaskKey {
        TaskKey { created: self.created, task: self.task }
    }
}

/// The position of a task in lists, which are in descending order of their keys. A key never changes, so that a page
/// that begins after a key neither repeats nor omits a task, even while tasks are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskKey {
    /// The creation time, in whole microseconds.
    pub created: OffsetDateTime,
    /// The id, which orders tasks with the same creation time.
    pub task: IntentId,
}

/// A query for one page of the list of tasks.
#[derive(Debug, Clone, Default)]
pub struct TaskQuery {
    /// The agent whose tasks are listed; `None` for all agents.
    pub owner: Option<AgentDid>,
    /// The conversation; `None` for all conversations.
    pub context: Option<String>,
    /// The key after which the page begins; `None` to begin at the newest task.
    pub after: Option<TaskKey>,
    /// The maximum number of tasks on the page.
    pub limit: usize,
    /// The tasks of this owner and conversation that may not be in the journal yet. A task that is already in the
    /// journal is counted once.
    pub unsaved: Vec<TaskSummary>,
}

/// The JSON form of a task in the row of its run. It has every field of [`JournalTask`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "JournalTask")]
struct StoredTask {
    task: IntentId,
    owner: AgentDid,
    context: String,
    #[serde(with = "time::serde::rfc3339")]
    created: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    ended: Option<OffsetDateTime>,
    status: String,
    document: String,
}

impl JournalTask {
    pub(super) fn to_text(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Text<'a>(#[serde(with = "StoredTask")] &'a JournalTask);
        serde_json::to_string(&Text(self))
    }

    pub(super) fn from_text(text: &str) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Text(#[serde(with = "StoredTask")] JournalTask);
        serde_json::from_str(text).map(|Text(task)| task)
    }
}

/// The stored tasks.
pub struct Tasks(Arc<Backend>);

impl Tasks {
    pub(super) fn new(backend: Arc<Backend>) -> Self {
        Self(backend)
    }

    /// Stores the current state of a task. Tasks are written in the order of these calls, independent of when their
    /// futures are awaited. While the disk is full, a task with [`RetryPolicy::Retry`] is retried.
    ///
    /// # Errors
    /// [`JournalError::NoSpace`]: the task is not on the disk; `retry_policy` determines whether the write is retried.
    /// [`JournalError::Share`], with [`RetryPolicy::FailFast`]: nothing is written. [`JournalError::Broken`].
    pub fn store(
        &self,
        task: JournalTask,
        retry_policy: RetryPolicy,
    ) -> impl Future<Output = Result<(), JournalError>> + Send + use<> {
        // Only a new task is refused: the state of one that runs has to be stored.
        let share = match retry_policy {
            RetryPolicy::Retry => Ok(()),
            RetryPolicy::FailFast => self.0.limits().check_share(&task.owner),
        };
        let pending = share.map(|()| {
            self.0.limits().count_bytes(&task.owner, RECORD_BYTES + task.document.len());
            self.0.submit(|reply| JournalEntry::Task(Box::new(task), retry_policy, Some(reply)))
        });
        async { pending?.wait_unless_full().await }
    }

    /// Reads a task and converts it with `convert`. A long task is read and converted on a reader thread.
    ///
    /// # Errors
    /// [`JournalError::Busy`], and [`JournalError::Broken`] if the journal cannot be read.
    pub async fn find<T: Send + 'static>(
        &self,
        task: IntentId,
        convert: impl FnOnce(&JournalTask) -> T + Send + 'static,
    ) -> Result<Option<T>, JournalError> {
        let Some(bytes) = self.0.read(|reader| reader.task_bytes(task))? else { return Ok(None) };
        // Converted by the thread that reads the document, so that a long one does not block the runtime's workers.
        let query = move |reader: &Reader| Ok(reader.task(task)?.as_ref().map(convert));
        let is_long = bytes > MAX_INLINE_BYTES as u64;
        if is_long { self.0.read_long(IfFull::Refuse, query).await } else { self.0.read(query) }
    }

    /// A page of tasks, newest first, and the total number of tasks of that owner and conversation.
    ///
    /// # Errors
    /// [`JournalError::Busy`], and [`JournalError::Broken`] if the journal cannot be read.
    pub async fn list(&self, query: TaskQuery) -> Result<(Vec<TaskSummary>, u64), JournalError> {
        self.0.read_long(IfFull::Refuse, move |reader| reader.tasks(query)).await
    }

    /// The ids and owners of the tasks that have not ended, without their documents, which may be long.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub async fn list_open(&self) -> Result<Vec<(IntentId, AgentDid)>, JournalError> {
        self.0.read_long(IfFull::Wait, Reader::open_tasks).await
    }
}

impl Batch<'_> {
    /// Writes a task, and a record with the hash of its row.
    pub(super) fn store_task(&mut self, task: &JournalTask) -> Result<(), WriteError> {
        let JournalTask { task, owner, context, created, ended, status, document } = task;
        let bytes = i64::try_from(document.len()).unwrap_or(i64::MAX);
        // An update keeps the owner, context and creation time of the first write, so the hash is that of the stored
        // row.
        let hash = self
            .connection()
            .prepare_cached(&format!(
                "INSERT INTO tasks({HASHED_COLUMNS}) VALUES (NULL, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
                 ON CONFLICT(task) DO UPDATE SET ended = excluded.ended, status = excluded.status,
                                           bytes = excluded.bytes, document = excluded.document
                 RETURNING {HASHED_COLUMNS}"
            ))?
            .query_row(
                params![
                    task.as_bytes(),
                    owner.as_str(),
                    context,
                    to_micros(*created),
                    ended.map(to_micros),
                    status,
                    bytes,
                    document
                ],
                hash_row,
            )?;
        self.append_about(RecordKind::Task, *task, &hash)?;
        // Only the end of a task can exceed the number of ended tasks.
        if ended.is_some() && should_prune(*task) {
            self.drop_excess_tasks(owner.as_str())?;
        }
        Ok(())
    }

    /// Drops the ended tasks of an owner that exceed a limit. The count reads only an index; the limit on the size
    /// needs a sort of all tasks of the owner, which is rare.
    fn drop_excess_tasks(&mut self, owner: &str) -> Result<(), WriteError> {
        let (count, bytes) = self
            .connection()
            .prepare_cached("SELECT count(*), total(bytes) FROM tasks WHERE owner = ?1")?
            .query_row([owner], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, f64>(1)?)))?;
        #[allow(clippy::cast_precision_loss, reason = "the limit is far below 2^53")]
        let too_large = bytes > MAX_TASK_BYTES as f64;
        let dropped = if too_large {
            self.drop_tasks(
                "DELETE FROM tasks WHERE number IN (
                     SELECT number FROM (
                         SELECT number, ended, row_number() OVER latest AS place, sum(bytes) OVER latest AS total
                         FROM tasks WHERE owner = ?1 WINDOW latest AS (ORDER BY created DESC, number DESC)
                     ) WHERE ended IS NOT NULL AND (place > ?2 OR total > ?3)) RETURNING task",
                params![owner, MAX_TASKS, MAX_TASK_BYTES],
            )?
        } else if count > MAX_TASKS {
            self.drop_tasks(
                "DELETE FROM tasks WHERE ended IS NOT NULL AND number IN (
                     SELECT number FROM tasks WHERE owner = ?1 ORDER BY created, number LIMIT ?2) RETURNING task",
                params![owner, count - MAX_TASKS],
            )?
        } else {
            Vec::new()
        };
        dropped.into_iter().try_for_each(|task| self.append_about(RecordKind::TaskDropped, task, b""))
    }

    fn drop_tasks(&self, sql: &str, params: &[&dyn ToSql]) -> rusqlite::Result<Vec<IntentId>> {
        let mut statement = self.connection().prepare_cached(sql)?;
        statement.query_map(params, |row| row.get(0).map(IntentId::from_bytes))?.collect()
    }
}

/// `true` if the end of this task triggers a clean-up. One task in sixteen does, because a clean-up reads all tasks of
/// the owner. Ids are random, so every owner's tasks are cleaned up.
fn should_prune(task: IntentId) -> bool {
    task.as_bytes().last().is_some_and(|last| last % 16 == 0)
}

const TASK_COLUMNS: &str = "task, owner, context, created, ended, status, document";

impl Reader {
    fn task(&self, task: IntentId) -> rusqlite::Result<Option<JournalTask>> {
        self.connection()
            .prepare_cached(&format!("SELECT {TASK_COLUMNS} FROM tasks WHERE task = ?1"))?
            .query_row([task.as_bytes()], read_task)
            .optional()
    }

    /// The size of a task's document, in bytes.
    fn task_bytes(&self, task: IntentId) -> rusqlite::Result<Option<u64>> {
        self.connection()
            .prepare_cached("SELECT bytes FROM tasks WHERE task = ?1")?
            .query_row([task.as_bytes()], |row| row.get(0).map(from_sqlite_int))
            .optional()
    }

    /// See [`Tasks::list`]. A page of several owners is merged from one page of each, so the cost grows with their
    /// number.
    fn tasks(&self, query: TaskQuery) -> rusqlite::Result<(Vec<TaskSummary>, u64)> {
        let TaskQuery { owner, context, after, limit, mut unsaved } = query;
        // All queries read the same snapshot.
        let _snapshot = self.connection().unchecked_transaction()?;
        for task in std::mem::take(&mut unsaved) {
            if self.task_bytes(task.task)?.is_none() {
                unsaved.push(task);
            }
        }
        let mut total = unsaved.len() as u64;
        let mut page = unsaved;
        page.retain(|task| after.is_none_or(|after| task.key() < after));
        truncate_to_newest(&mut page, limit);
        let owners = match owner {
            Some(owner) => vec![owner.as_str().to_owned()],
            None => self.owners()?,
        };
        for owner in owners {
            total += self.count_tasks(&owner, context.as_deref())?;
            // A task that is older than the last one of a full page is not on it.
            let oldest = page.get(limit.saturating_sub(1)).map_or(i64::MIN, |last| to_micros(last.created));
            page.extend(self.owner_tasks(&owner, context.as_deref(), after, oldest, limit)?);
            truncate_to_newest(&mut page, limit);
        }
        Ok((page, total))
    }

    /// The newest tasks of an owner after a key, down to the creation time `oldest`.
    fn owner_tasks(
        &self,
        owner: &str,
        context: Option<&str>,
        after: Option<TaskKey>,
        oldest: i64,
        limit: usize,
    ) -> rusqlite::Result<Vec<TaskSummary>> {
        let newest = after.map_or(i64::MAX, |after| to_micros(after.created));
        let before = after.map_or([0; 16], |after| *after.task.as_bytes());
        // SQLite searches its index by the bounds of `created`; the id orders only tasks with the same creation time.
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut statement = self.connection().prepare_cached(
            "SELECT task, context, created, status FROM tasks
             WHERE owner = ?1 AND created BETWEEN ?2 AND ?3 AND (created < ?3 OR task < ?4)
               AND (?5 IS NULL OR context = ?5)
             ORDER BY created DESC, task DESC LIMIT ?6",
        )?;
        let rows =
            statement.query_map(params![owner, oldest, newest, before, context, limit], read_summary)?;
        rows.collect()
    }

    fn count_tasks(&self, owner: &str, context: Option<&str>) -> rusqlite::Result<u64> {
        self.connection()
            .prepare_cached("SELECT count(*) FROM tasks WHERE owner = ?1 AND (?2 IS NULL OR context = ?2)")?
            .query_row(params![owner, context], |row| row.get(0).map(from_sqlite_int))
    }

    /// All owners of tasks, with one index look-up for each owner instead of one for each task.
    // An index of all tasks by time would cost one more page for each write of a task.
    fn owners(&self) -> rusqlite::Result<Vec<String>> {
        let mut statement = self.connection().prepare_cached(
            "WITH RECURSIVE owners(owner) AS (
                 SELECT min(owner) FROM tasks
                 UNION ALL
                 SELECT (SELECT min(owner) FROM tasks WHERE owner > owners.owner) FROM owners
                 WHERE owners.owner IS NOT NULL
             ) SELECT owner FROM owners WHERE owner IS NOT NULL",
        )?;
        statement.query_map([], |row| row.get(0))?.collect()
    }

    fn open_tasks(&self) -> rusqlite::Result<Vec<(IntentId, AgentDid)>> {
        let mut statement = self
            .connection()
            // The partial index contains only open tasks, so that a restart does not read ended ones.
            .prepare("SELECT task, owner FROM tasks INDEXED BY tasks_open_of WHERE ended IS NULL")?;
        statement
            .query_map([], |row| Ok((IntentId::from_bytes(row.get(0)?), parse_owner(row.get(1)?)?)))?
            .collect()
    }
}

fn truncate_to_newest(page: &mut Vec<TaskSummary>, limit: usize) {
    page.sort_unstable_by_key(|task| Reverse(task.key()));
    page.truncate(limit);
}

/// Parses the owner of a task, the second column of each query.
fn parse_owner(text: String) -> rusqlite::Result<AgentDid> {
    AgentDid::parse(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, Box::new(error))
    })
}

fn read_summary(row: &Row<'_>) -> rusqlite::Result<TaskSummary> {
    Ok(TaskSummary {
        task: IntentId::from_bytes(row.get(0)?),
        context: row.get(1)?,
        created: from_micros(row.get(2)?),
        status: row.get(3)?,
    })
}

fn read_task(row: &Row<'_>) -> rusqlite::Result<JournalTask> {
    Ok(JournalTask {
        task: IntentId::from_bytes(row.get(0)?),
        owner: parse_owner(row.get(1)?)?,
        context: row.get(2)?,
        created: from_micros(row.get(3)?),
        ended: row.get::<_, Option<i64>>(4)?.map(from_micros),
        status: row.get(5)?,
        document: row.get(6)?,
    })
}
