//! The tasks of this door: each is a record in the journal, and all changes to it are serialized here.
//!
//! A task stays in memory while something holds it: the future that follows its run (`follow.rs`), a stream, or a
//! request. Each change is sent to the streams and to the journal under the record's lock, so that record, streams and
//! journal see the same order. The task of a blocking call is written when the call has to wait, or in the transaction
//! that starts its run; until then the task exists only in this process. The end of a task is written with the receipt,
//! before any client learns of it: otherwise a crash could undo an end that a stream has reported. Other changes are
//! sent at once; if their write fails, the journal retries it.

use super::record::TaskRecord;
use a2g_core::deliver::{WebhookAuthentication, WebhookId, WebhookNotification, WebhookPoster};
use a2g_core::run::{Executor, RunEvent};
use a2g_govern::Caller;
use a2g_govern::Role::{self, Approver, Governor, Operator};
use a2g_journal::{JournalError, JournalTask, RetryPolicy, TaskSummary, Tasks};
use a2g_types::error_chain::ErrorChain;
use a2g_types::fault::{Fault, RECEIPT_PENDING};
use a2g_types::ident::{AgentDid, IntentId};
use a2g_wire::a2a::fault::Problem;
use a2g_wire::a2a::message::{Part, TaskState, TaskUpdate};
use a2g_wire::a2a::push::{self, PushConfig};
use a2g_wire::a2a::{Dialect, encode};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use time::OffsetDateTime;
use tokio::sync::{broadcast, watch};

/// Maximum number of updates that wait for a slow stream. A stream that falls further behind is closed.
pub(super) const MAX_UPDATES_BEHIND: usize = 256;
/// Roles that may read the tasks of other callers.
pub(super) const READ_ALL_ROLES: [Role; 3] = [Governor, Approver, Operator];
/// Maximum number of open tasks of one owner.
const MAX_OPEN: usize = 250;

/// The tasks that have not ended, by owner. The count is kept in memory, so that a new task needs no query.
#[derive(Default)]
struct OpenTasks(Mutex<HashMap<AgentDid, HashSet<IntentId>>>);

impl OpenTasks {
    /// Adds a task, unless its owner already has [`MAX_OPEN`] open ones.
    fn add(&self, owner: &AgentDid, task: IntentId) -> Result<(), Fault> {
        let mut all = self.0.lock();
        if all.get(owner).is_some_and(|open| open.len() >= MAX_OPEN) {
            let message = format!(
                "`{owner}` has {MAX_OPEN} open tasks, which is the maximum: cancel tasks that wait for a message, or answer them"
            );
            return Err(Fault::Busy { message, retry_after_ms: 60_000 });
        }
        all.entry(owner.clone()).or_default().insert(task);
        Ok(())
    }

    fn ids(&self) -> Vec<IntentId> {
        self.0.lock().values().flatten().copied().collect()
    }

    fn remove(&self, owner: &AgentDid, task: IntentId) {
        let mut all = self.0.lock();
        if let Some(open) = all.get_mut(owner) {
            open.remove(&task);
            if open.is_empty() {
                all.remove(owner);
            }
        }
    }
}

/// A task in memory.
pub(super) struct TaskHandle {
    pub(super) id: IntentId,
    record: watch::Sender<Arc<TaskRecord>>,
    updates: broadcast::Sender<Arc<TaskUpdate>>,
    /// The caller that asked to stop the task; `None` if no caller has.
    stop: watch::Sender<Option<Arc<str>>>,
    /// `true` once the run has ended and its receipt waits for space in the journal.
    waits_for_space: watch::Sender<bool>,
    /// `true` once the journal has the task. A new task counts from the moment at which it is sent there, because no
    /// other caller knows its id yet.
    is_persisted: Arc<AtomicBool>,
    /// Locked from a person's directive until the task has recorded it. Otherwise the follower of the run could be
    /// faster, and record an end that does not name the person.
    pub(super) directive: tokio::sync::Mutex<()>,
    /// A change that is being written, and is published when the write is done.
    pending: Mutex<Option<PendingChange>>,
    /// The set of open tasks, which the task leaves when it ends.
    open: Arc<OpenTasks>,
    journal_tasks: Arc<Tasks>,
    webhooks: Option<TaskWebhooks>,
}

#[derive(Clone)]
pub(super) struct TaskWebhooks {
    pub(super) poster: Arc<WebhookPoster>,
    /// The dialect of the posted bodies.
    pub(super) dialect: Dialect,
}

/// A change that is not published yet.
struct PendingChange {
    /// The record that the change starts from.
    before: Arc<TaskRecord>,
    after: TaskRecord,
    updates: Vec<TaskUpdate>,
}

/// The future result of a write.
pub(super) type PendingWrite = std::pin::Pin<Box<dyn Future<Output = Result<(), JournalError>> + Send>>;

impl TaskHandle {
    pub(super) fn record(&self) -> Arc<TaskRecord> {
        Arc::clone(&self.record.borrow())
    }

    /// The current record, and every later update.
    pub(super) fn subscribe(&self) -> (Arc<TaskRecord>, broadcast::Receiver<Arc<TaskUpdate>>) {
        // The borrow locks the record, so no update falls between the snapshot and the subscription.
        let record = self.record.borrow();
        (Arc::clone(&record), self.updates.subscribe())
    }

    /// Waits until the task has settled, or cannot settle before the journal has space.
    pub(super) async fn wait_until_settled(&self) -> Arc<TaskRecord> {
        let mut record = self.record.subscribe();
        let mut waits_for_space = self.waits_for_space.subscribe();
        tokio::select! {
            settled = record.wait_for(|record| record.state().is_settled()) => {
                settled.map(|record| Arc::clone(&record)).unwrap_or_else(|_closed| self.record())
            }
            _waits = waits_for_space.wait_for(|waits| *waits) => self.record(),
        }
    }

    /// Marks the task of a finished run whose receipt waits for space in the journal. The receipt ends the task later.
    pub(super) fn mark_waiting_for_space(&self, now: OffsetDateTime) {
        self.record.send_if_modified(|record| {
            if record.state().is_settled() {
                return false;
            }
            let record = Arc::make_mut(record);
            let before = record.state();
            let update =
                record.set_state(TaskState::Working, vec![Part::text(RECEIPT_PENDING.to_owned())], now);
            self.send_updates(record, before, now, vec![update]);
            // This does not settle the task, so no task that waits for that is woken.
            false
        });
        self.waits_for_space.send_replace(true);
    }

    /// Requests the end of the task, in the name of a caller.
    pub(super) fn stop(&self, by: &str) {
        self.stop.send_replace(Some(by.into()));
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.borrow().is_some()
    }

    /// Waits for a stop request, and returns the caller that made it.
    pub(super) async fn wait_for_stop(&self) -> Arc<str> {
        let mut stop = self.stop.subscribe();
        let by = stop.wait_for(Option::is_some).await.ok().and_then(|by| by.clone());
        by.unwrap_or_else(|| "nobody".into())
    }

    /// Waits until the task has ended.
    pub(super) async fn wait_until_ended(&self) -> Arc<TaskRecord> {
        let mut record = self.record.subscribe();
        let ended = record.wait_for(|record| record.state().is_terminal()).await;
        ended.map(|record| Arc::clone(&record)).unwrap_or_else(|_closed| self.record())
    }

    /// Writes a new task before its call begins. On an error the task is discarded.
    pub(super) async fn persist(&self) -> Result<(), JournalError> {
        // Set before the write, because no other caller knows the id of a new task yet.
        self.is_persisted.store(true, Ordering::Release);
        let record = self.record();
        let stored = self.journal_tasks.store(record.to_row(self.id), RetryPolicy::FailFast).await;
        if stored.is_err() {
            self.open.remove(&record.owner, self.id);
        }
        stored
    }

    /// Changes the record, unless `change` returns an error. The change is on the disk when the returned future
    /// resolves.
    pub(super) fn try_change<E>(
        &self,
        change: impl FnOnce(&mut TaskRecord) -> Result<Vec<TaskUpdate>, E>,
    ) -> Result<PendingWrite, E> {
        let mut result = None;
        self.record.send_if_modified(|current| {
            let mut record = TaskRecord::clone(current);
            let outcome = change(&mut record).map(|updates| {
                self.send_updates(&record, current.state(), record.task.status.timestamp, updates);
                let stored = self.journal_tasks.store(record.to_row(self.id), RetryPolicy::Retry);
                let is_persisted = Arc::clone(&self.is_persisted);
                self.set_record(current, record);
                let pending_write: PendingWrite = Box::pin(async move {
                    stored.await?;
                    is_persisted.store(true, Ordering::Release);
                    Ok(())
                });
                pending_write
            });
            let is_changed = outcome.is_ok();
            result = Some(outcome);
            is_changed
        });
        result.unwrap_or_else(|| Ok(Box::pin(std::future::ready(Ok(())))))
    }

    /// Changes the record. On return the change is on the disk, or its write has failed for good.
    pub(super) async fn change(&self, change: impl FnOnce(&mut TaskRecord) -> Vec<TaskUpdate>) {
        let pending_write = self.try_change(|record| Ok::<_, std::convert::Infallible>(change(record)));
        let Ok(pending_write) = pending_write;
        self.finish_write(pending_write).await;
    }

    /// Waits for a write. If it fails, the journal retries it, and the task continues.
    pub(super) async fn finish_write(&self, pending_write: PendingWrite) {
        if let Err(error) = pending_write.await {
            self.log_failure(&error);
        }
    }

    fn log_failure(&self, error: &JournalError) {
        tracing::error!(task = %self.id, error = %ErrorChain(error), "a task could not be written to the journal");
    }

    /// Replaces the record. A task that has ended leaves the set of open tasks.
    fn set_record(&self, current: &mut Arc<TaskRecord>, record: TaskRecord) {
        if record.state().is_terminal() {
            self.open.remove(&record.owner, self.id);
        }
        *current = Arc::new(record);
    }

    fn is_persisted(&self) -> bool {
        self.is_persisted.load(Ordering::Acquire)
    }

    /// Writes the task in the background, unless the journal already has it.
    pub(super) fn persist_in_background(&self, executor: &Executor) {
        if !self.is_persisted() {
            let unchanged = |_: &mut TaskRecord| Ok::<_, std::convert::Infallible>(Vec::new());
            let Ok(pending_write) = self.try_change(unchanged);
            executor.session_tasks().spawn(pending_write);
        }
    }

    /// The row to write with the start of the task's run; `None` if the journal already has the task.
    pub(super) fn unsaved_row(&self) -> Option<JournalTask> {
        (!self.is_persisted()).then(|| self.record().to_row(self.id))
    }

    /// Prepares a change and returns its row. [`Self::publish`] applies it and sends the updates.
    pub(super) fn prepare(&self, change: impl FnOnce(&mut TaskRecord) -> Vec<TaskUpdate>) -> JournalTask {
        let before = self.record();
        let mut after = TaskRecord::clone(&before);
        let updates = change(&mut after);
        let row = after.to_row(self.id);
        *self.lock_pending() = Some(PendingChange { before, after, updates });
        row
    }

    fn lock_pending(&self) -> MutexGuard<'_, Option<PendingChange>> {
        self.pending.lock()
    }

    /// Applies the prepared change and sends its updates. `is_persisted` states whether the journal has the change.
    /// Returns `false` if the task has changed since, or if nothing was prepared because another process ran the
    /// intent.
    pub(super) fn publish(&self, is_persisted: bool) -> bool {
        let Some(PendingChange { before, after, updates }) = self.lock_pending().take() else { return false };
        self.record.send_if_modified(|current| {
            if !Arc::ptr_eq(current, &before) {
                return false;
            }
            self.send_updates(&after, current.state(), after.task.status.timestamp, updates);
            if is_persisted {
                self.is_persisted.store(true, Ordering::Release);
            }
            self.set_record(current, after);
            true
        })
    }

    /// Writes a change before it is published, so that no client learns of an end that a crash could undo. If the write
    /// fails, the change is published nevertheless, and the journal retries the write.
    pub(super) async fn settle(&self, change: impl Fn(&mut TaskRecord) -> Vec<TaskUpdate>) {
        let stored = self.journal_tasks.store(self.prepare(&change), RetryPolicy::Retry).await;
        if let Err(error) = &stored {
            self.log_failure(error);
        }
        if !self.publish(stored.is_ok()) {
            self.change(change).await;
        }
    }

    /// Applies an event of the run. Events are not written: the receipt has all that the run produced.
    pub(super) fn on_event(&self, event: RunEvent, now: OffsetDateTime) {
        self.record.send_if_modified(|record| {
            // An event of a stuck guest may arrive after the run was ended.
            if record.state().is_terminal() {
                return false;
            }
            let record = Arc::make_mut(record);
            let before = record.state();
            let update = match event {
                RunEvent::Started => record.set_state(TaskState::Working, Vec::new(), now),
                RunEvent::Progress(progress) => {
                    record.set_state(TaskState::Working, encode::progress_parts(&progress), now)
                }
                RunEvent::Log(line) => record.set_state(TaskState::Working, encode::log_parts(&line), now),
                RunEvent::Artifact(artifact) => {
                    let artifact = encode::artifact(&artifact, record.task.artifacts.len());
                    record.task.artifacts.push(artifact.clone());
                    record.artifact_update(artifact)
                }
            };
            self.send_updates(record, before, now, vec![update]);
            // No event settles the task, so no task that waits for that is woken.
            false
        });
    }

    fn send_updates(
        &self,
        record: &TaskRecord,
        before: TaskState,
        now: OffsetDateTime,
        updates: Vec<TaskUpdate>,
    ) {
        for update in updates {
            self.notify_webhooks(record, before, now, &update);
            let _no_receiver = self.updates.send(Arc::new(update));
        }
    }

    /// Posts an update to the webhooks that subscribe to it.
    fn notify_webhooks(
        &self,
        record: &TaskRecord,
        before: TaskState,
        now: OffsetDateTime,
        update: &TaskUpdate,
    ) {
        let Some(hooks) = self.webhooks.as_ref().filter(|_| !record.webhooks.is_empty()) else { return };
        let notices = match hooks.dialect {
            Dialect::A2a => push::task_notifications(update, before, &record.task),
            Dialect::Acp => push::event_notifications(update, before, &record.task.id, now),
        };
        for (events, body) in notices {
            let wants = |config: &&PushConfig| events.iter().any(|event| config.accepts(*event, now));
            for config in record.webhooks.iter().filter(wants) {
                hooks.poster.notify(WebhookNotification {
                    webhook: WebhookId { task: Some(record.task.id.clone()), id: config.id.clone() },
                    owner: record.owner.clone(),
                    url: config.url.clone(),
                    authentication: WebhookAuthentication::Headers(config.headers()),
                    body: body.clone(),
                });
            }
        }
    }
}

/// Locked while a task is read from the journal. A second reader could replace a newer change by the older state that
/// it read.
type LoadingLock = tokio::sync::Mutex<()>;

pub(super) struct TaskStore {
    executor: Arc<Executor>,
    webhooks: Option<TaskWebhooks>,
    handles: Mutex<HashMap<IntentId, Weak<TaskHandle>>>,
    /// The locks of the tasks that are being read from the journal.
    loading: Mutex<HashMap<IntentId, Weak<LoadingLock>>>,
    open: Arc<OpenTasks>,
}

impl TaskStore {
    /// Reads which tasks are open.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub(super) async fn new(executor: Arc<Executor>, webhooks: Option<TaskWebhooks>) -> Result<Self, Fault> {
        let mut open = HashMap::<AgentDid, HashSet<IntentId>>::new();
        let listed = executor.journal.tasks.list_open().await;
        for (task, owner) in listed? {
            open.entry(owner).or_default().insert(task);
        }
        let open = Arc::new(OpenTasks(Mutex::new(open)));
        Ok(Self { executor, webhooks, handles: Mutex::default(), loading: Mutex::default(), open })
    }

    /// Adds a new task.
    ///
    /// # Errors
    /// If too many tasks of its owner are open.
    pub(super) fn add(&self, id: IntentId, record: TaskRecord) -> Result<Arc<TaskHandle>, Fault> {
        self.open.add(&record.owner, id)?;
        let handle = self.insert(&mut self.lock(), id, record, false);
        let record = handle.record();
        // So far only webhooks can have subscribed: no stream knows the id yet.
        if !record.webhooks.is_empty() {
            let first = TaskUpdate::Task(Box::new(record.task.clone()));
            handle.send_updates(&record, record.state(), record.created, vec![first]);
        }
        Ok(handle)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IntentId, Weak<TaskHandle>>> {
        self.handles.lock()
    }

    fn insert(
        &self,
        all: &mut HashMap<IntentId, Weak<TaskHandle>>,
        id: IntentId,
        record: TaskRecord,
        is_persisted: bool,
    ) -> Arc<TaskHandle> {
        let handle = Arc::new(TaskHandle {
            id,
            record: watch::Sender::new(Arc::new(record)),
            updates: broadcast::Sender::new(MAX_UPDATES_BEHIND),
            stop: watch::Sender::new(None),
            waits_for_space: watch::Sender::new(false),
            is_persisted: Arc::new(AtomicBool::new(is_persisted)),
            directive: tokio::sync::Mutex::default(),
            pending: Mutex::default(),
            open: Arc::clone(&self.open),
            journal_tasks: Arc::clone(&self.executor.journal.tasks),
            webhooks: self.webhooks.clone(),
        });
        all.retain(|_, handle| handle.strong_count() > 0);
        all.insert(id, Arc::downgrade(&handle));
        handle
    }

    /// The tasks of an owner and a context (`None`: any) that are not in the journal yet. A task whose write is in
    /// progress may be found both here and there.
    pub(super) fn unsaved_tasks(&self, owner: Option<&AgentDid>, context: Option<&str>) -> Vec<TaskSummary> {
        let handles = self.lock().values().filter_map(Weak::upgrade).collect::<Vec<_>>();
        let unsaved = handles.iter().filter(|handle| !handle.is_persisted());
        let selected = unsaved.map(|handle| (handle.id, handle.record())).filter(|(_, record)| {
            owner.is_none_or(|owner| *owner == record.owner)
                && context.is_none_or(|context| context == record.task.context_id)
        });
        let to_summary = |(task, record): (IntentId, Arc<TaskRecord>)| TaskSummary {
            task,
            context: record.task.context_id.clone(),
            created: record.created,
            status: record.status_json(),
        };
        selected.map(to_summary).collect()
    }

    /// A task of the caller, or any task for a caller with one of these roles. Any other is reported as not found.
    pub(super) async fn find_for(
        &self,
        caller: &Caller,
        task: &str,
        roles: &[Role],
    ) -> Result<Arc<TaskHandle>, Problem> {
        // Task ids are UUIDs: any other text names no task.
        let Ok(id) = IntentId::parse(task) else { return Err(Problem::TaskNotFound) };
        let handle = self.find(id).await?.ok_or(Problem::TaskNotFound)?;
        let may_access = caller.may_act_as(&handle.record().owner) || caller.is_any_of(roles);
        if may_access { Ok(handle) } else { Err(Problem::TaskNotFound) }
    }

    /// Finds a task in memory or in the journal. While the journal is read, other tasks are not locked.
    ///
    /// # Errors
    /// If the journal cannot be read, or too many of its reads are waiting.
    pub(super) async fn find(&self, id: IntentId) -> Result<Option<Arc<TaskHandle>>, Fault> {
        if let Some(handle) = self.get_cached(id) {
            return Ok(Some(handle));
        }
        let loading = self.loading_lock(id);
        let _loading = loading.lock().await;
        if let Some(handle) = self.get_cached(id) {
            return Ok(Some(handle));
        }
        let found = self.executor.journal.tasks.find(id, decode_record).await;
        let Some(record) = found?.transpose()? else { return Ok(None) };
        Ok(Some(self.insert(&mut self.lock(), id, record, true)))
    }

    fn loading_lock(&self, id: IntentId) -> Arc<LoadingLock> {
        let mut all = self.loading.lock();
        all.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = all.get(&id).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        all.insert(id, Arc::downgrade(&lock));
        lock
    }

    /// A task in memory.
    pub(super) fn get_cached(&self, id: IntentId) -> Option<Arc<TaskHandle>> {
        self.lock().get(&id).and_then(Weak::upgrade)
    }

    /// The tasks that have not ended. At start these are the tasks that the previous process left open.
    pub(super) fn open_tasks(&self) -> Vec<IntentId> {
        self.open.ids()
    }
}

/// Decodes the stored document of a task.
pub(super) fn decode_record(stored: &JournalTask) -> Result<TaskRecord, Fault> {
    serde_json::from_str(&stored.document).map_err(|error| {
        Fault::Internal(format!("the task {} in the journal cannot be read: {error}", stored.task))
    })
}
