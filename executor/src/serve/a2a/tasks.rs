//! The tasks of this door: each one a record that the journal keeps, and that is changed in one place.
//!
//! ```text
//! submitted ─▶ working ─▶ completed, failed, canceled
//!     │            ▲
//!     ├────────────┼────▶ rejected: refused before it ran
//!     ▼            │
//! input-required ──┴────▶ canceled, rejected
//! ```
//! A task is in memory as long as somebody has to do with it: its follower, a stream, a request. What is changed
//! is told to the streams and to the journal before anybody else can change it, so that all three have the same
//! order. A task whose call somebody waits for goes to the disk when that call has to wait, or with the start of its
//! run; until then only this process knows of it. Its end goes there with the receipt, before anybody is told; what
//! changes meanwhile is written again.

use crate::error_chain::ErrorChain;
use crate::fault::{Fault, RECEIPT_PENDING};
use crate::ident::{AgentDid, IntentId, ToolName};
use crate::journal::{Journal, JournalError, KeptTask, Pace};
use crate::outcome::Receipt;
use crate::run::{Executor, Happening};
use crate::wire::a2a::governance::Governance;
use crate::wire::a2a::message::{
    Artifact, ArtifactUpdate, Message, Part, State, Status, StatusUpdate, Task, Update,
};
use crate::wire::a2a::push::{self, Notice, PushConfig, Webhooks};
use crate::wire::a2a::{Dialect, encode, fault};
use serde::{Deserialize, Serialize};
use serde_json::Map;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use time::OffsetDateTime;
use tokio::sync::{broadcast, watch};

/// How many updates wait for a stream that does not take them. Who is further behind is dropped.
const MAX_UPDATES_BEHIND: usize = 256;
/// How many tasks of one owner may be open at once.
const MAX_OPEN: usize = 250;

/// All that is known of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) owner: AgentDid,
    #[serde(with = "time::serde::rfc3339")]
    pub(super) created: OffsetDateTime,
    /// The tool of its call, once it has one.
    pub(super) tool: Option<ToolName>,
    pub(super) governance: Governance,
    /// Who is told of it.
    #[serde(default)]
    pub(super) pushes: Vec<PushConfig>,
    pub(super) task: Task,
}

impl Record {
    /// A task that was just made for a message.
    pub(super) fn new(id: IntentId, owner: AgentDid, message: Message, now: OffsetDateTime) -> Self {
        let id = id.to_string();
        let context_id = message.context_id.clone().unwrap_or_else(|| IntentId::random().to_string());
        let message = Message { task_id: Some(id.clone()), context_id: Some(context_id.clone()), ..message };
        let status =
            Status { state: State::Submitted, message: None, timestamp: now.truncate_to_millisecond() };
        let history = vec![message];
        let task = Task { id, context_id, status, artifacts: Vec::new(), history, metadata: None };
        let (governance, created) = (Governance::default(), now.truncate_to_microsecond());
        Self { owner, created, tool: None, governance, pushes: Vec::new(), task }
    }

    /// Where it is.
    pub(super) fn state(&self) -> State {
        self.task.status.state
    }

    /// Whether a call of it waits for a person.
    pub(super) fn is_prompting(&self) -> bool {
        !self.governance.pending_permissions.is_empty()
    }

    /// Goes to a state and says so. What was asked before is part of the history from then on.
    pub(super) fn enter(&mut self, state: State, parts: Vec<Part>, now: OffsetDateTime) -> Update {
        let Task { id, context_id, .. } = &self.task;
        let message = (!parts.is_empty()).then(|| encode::said(id, context_id, parts));
        let status = Status { state, message, timestamp: now.truncate_to_millisecond() };
        let before = std::mem::replace(&mut self.task.status, status);
        if before.state == State::InputRequired {
            self.task.history.extend(before.message);
        }
        if state.is_terminal() {
            self.governance.pending_permissions.clear();
        }
        self.at()
    }

    /// Ends, and says so; nothing when it has ended before.
    pub(super) fn end(
        &mut self,
        state: State,
        message: String,
        details: Map<String, serde_json::Value>,
        now: OffsetDateTime,
    ) -> Vec<Update> {
        if self.state().is_terminal() {
            return Vec::new();
        }
        let details = (!details.is_empty()).then(|| Part::data(details));
        let parts = std::iter::once(Part::text(message)).chain(details).collect();
        vec![self.enter(state, parts, now)]
    }

    /// Ends as its run did, and says so with all that the run made.
    pub(super) fn ran(&mut self, receipt: &Receipt, now: OffsetDateTime) -> Vec<Update> {
        if self.state().is_terminal() {
            return Vec::new();
        }
        let told = self.task.artifacts.len();
        self.task.artifacts = encode::artifacts(receipt);
        self.task.metadata = Some(encode::measured(receipt));
        let new = self.task.artifacts.iter().skip(told).cloned().collect::<Vec<_>>();
        let mut updates = new.into_iter().map(|artifact| self.made(artifact)).collect::<Vec<_>>();
        let parts = match fault::state_of(receipt) {
            (_, None) => Vec::new(),
            (_, Some(why)) => vec![Part::text(why), Part::data(fault::details(receipt))],
        };
        updates.push(self.enter(fault::state_of(receipt).0, parts, now));
        updates
    }

    /// Where it is, as an update.
    fn at(&self) -> Update {
        Update::Status(Box::new(StatusUpdate {
            task_id: self.task.id.clone(),
            context_id: self.task.context_id.clone(),
            status: self.task.status.clone(),
            r#final: self.state().is_settled(),
        }))
    }

    fn made(&self, artifact: Artifact) -> Update {
        Update::Artifact(Box::new(ArtifactUpdate {
            task_id: self.task.id.clone(),
            context_id: self.task.context_id.clone(),
            artifact,
            append: false,
            last_chunk: true,
        }))
    }

    /// What a list says of it.
    pub(super) fn status(&self) -> String {
        serde_json::to_string(&self.task.status).unwrap_or_default()
    }

    fn kept(&self, task: IntentId) -> KeptTask {
        let over = self.state().is_terminal().then_some(self.task.status.timestamp);
        KeptTask {
            task,
            owner: self.owner.clone(),
            context: self.task.context_id.clone(),
            created: self.created,
            over,
            status: self.status(),
            // Its maps have texts as keys, so that this cannot fail.
            document: serde_json::to_string(self).unwrap_or_default(),
        }
    }
}

/// The tasks that are not over, by their owners.
#[derive(Default)]
struct OpenTasks(Mutex<HashMap<AgentDid, HashSet<IntentId>>>);

impl OpenTasks {
    /// Adds a task, unless its owner has as many as may be open.
    fn add(&self, owner: &AgentDid, task: IntentId) -> Result<(), Fault> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(owner).is_some_and(|open| open.len() >= MAX_OPEN) {
            let message = format!(
                "{MAX_OPEN} tasks of `{owner}` are open: cancel those that wait for a message, or answer them"
            );
            return Err(Fault::Busy { message, retry_after_ms: 60_000 });
        }
        all.entry(owner.clone()).or_default().insert(task);
        Ok(())
    }

    fn all(&self) -> Vec<IntentId> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().flatten().copied().collect()
    }

    fn remove(&self, owner: &AgentDid, task: IntentId) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = all.get_mut(owner) {
            open.remove(&task);
            if open.is_empty() {
                all.remove(owner);
            }
        }
    }
}

/// A task that somebody has to do with.
pub(super) struct Live {
    pub(super) id: IntentId,
    now: watch::Sender<Arc<Record>>,
    updates: broadcast::Sender<Arc<Update>>,
    /// The caller who wants it to be stopped.
    stop: watch::Sender<Option<Arc<str>>>,
    /// `true` once its run is over and the receipt waits for room in the journal.
    waits_for_room: watch::Sender<bool>,
    /// Whether the journal has it, or was given it before anybody could know of it.
    is_kept: Arc<AtomicBool>,
    /// What the journal is being told, and nobody else is yet.
    prepared: Mutex<Option<Prepared>>,
    /// What it is one of until it is over.
    open: Arc<OpenTasks>,
    /// The webhooks, when there are any.
    webhooks: Option<Hooks>,
}

/// The webhooks of tasks.
#[derive(Clone)]
pub(super) struct Hooks {
    pub(super) post: Arc<dyn Webhooks>,
    /// The dialect of what is posted to them.
    pub(super) dialect: Dialect,
}

/// A change that is not made yet.
struct Prepared {
    /// The record that it is a change of.
    before: Arc<Record>,
    after: Record,
    updates: Vec<Update>,
}

/// An answer of the journal that can be waited for.
pub(super) type Keeping = std::pin::Pin<Box<dyn Future<Output = Result<(), JournalError>> + Send>>;

impl Live {
    /// The record as it is now.
    pub(super) fn record(&self) -> Arc<Record> {
        Arc::clone(&self.now.borrow())
    }

    /// The record as it is now, and every update after it.
    pub(super) fn subscribe(&self) -> (Arc<Record>, broadcast::Receiver<Arc<Update>>) {
        // Nothing can be changed while it is borrowed.
        let now = self.now.borrow();
        (Arc::clone(&now), self.updates.subscribe())
    }

    /// Waits until nothing more happens by itself, or not before the journal has room.
    pub(super) async fn settled(&self) -> Arc<Record> {
        let (mut now, mut waits_for_room) = (self.now.subscribe(), self.waits_for_room.subscribe());
        tokio::select! {
            settled = now.wait_for(|record| record.state().is_settled()) => {
                settled.map(|record| Arc::clone(&record)).unwrap_or_else(|_gone| self.record())
            }
            _it_waits = waits_for_room.wait_for(|waits| *waits) => self.record(),
        }
    }

    /// Marks the task of a run that is over and whose receipt waits for room in the journal. The receipt ends it.
    pub(super) fn wait_for_room(&self, now: OffsetDateTime) {
        self.now.send_if_modified(|record| {
            if record.state().is_settled() {
                return false;
            }
            let record = Arc::make_mut(record);
            let before = record.state();
            let update = record.enter(State::Working, vec![Part::text(RECEIPT_PENDING.to_owned())], now);
            self.tell(record, before, now, vec![update]);
            false
        });
        self.waits_for_room.send_replace(true);
    }

    /// Asks for the task to be stopped, in the name of a caller.
    pub(super) fn stop(&self, by: &str) {
        self.stop.send_replace(Some(by.into()));
    }

    /// Whether it is to be stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.borrow().is_some()
    }

    /// Waits until the task is to be stopped, and gives the caller who wants that.
    pub(super) async fn stopped(&self) -> Arc<str> {
        let mut stop = self.stop.subscribe();
        let by = stop.wait_for(Option::is_some).await.ok().and_then(|by| by.clone());
        by.unwrap_or_else(|| "nobody".into())
    }

    /// Waits until it is over.
    pub(super) async fn over(&self) -> Arc<Record> {
        let mut now = self.now.subscribe();
        let over = now.wait_for(|record| record.state().is_terminal()).await;
        over.map(|record| Arc::clone(&record)).unwrap_or_else(|_gone| self.record())
    }

    /// Puts a task that was just made on the disk, before its call begins; or it never was.
    pub(super) async fn keep(&self, journal: &Journal) -> Result<(), JournalError> {
        // Nobody finds it before: what is not listed cannot be changed.
        self.is_kept.store(true, Ordering::Release);
        let record = self.record();
        let kept = journal.keep_task(record.kept(self.id), Pace::NowOrNever).await;
        if kept.is_err() {
            self.open.remove(&record.owner, self.id);
        }
        kept
    }

    /// Changes the record, unless `change` refuses to. When the answer comes, the change is on the disk.
    pub(super) fn try_change<E>(
        &self,
        journal: &Journal,
        change: impl FnOnce(&mut Record) -> Result<Vec<Update>, E>,
    ) -> Result<Keeping, E> {
        let mut changed = None;
        self.now.send_if_modified(|now| {
            let mut record = Record::clone(now);
            let told = change(&mut record).map(|updates| {
                self.tell(&record, now.state(), record.task.status.timestamp, updates);
                let (keeping, is_kept) =
                    (journal.keep_task(record.kept(self.id), Pace::AtOnce), Arc::clone(&self.is_kept));
                self.becomes(now, record);
                let keeping: Keeping = Box::pin(async move {
                    keeping.await?;
                    is_kept.store(true, Ordering::Release);
                    Ok(())
                });
                keeping
            });
            let is_changed = told.is_ok();
            changed = Some(told);
            is_changed
        });
        changed.unwrap_or_else(|| Ok(Box::pin(std::future::ready(Ok(())))))
    }

    /// Changes the record. When this returns, the change is on the disk, or never will be.
    pub(super) async fn change(&self, journal: &Journal, change: impl FnOnce(&mut Record) -> Vec<Update>) {
        let keeping = self.try_change(journal, |record| Ok::<_, std::convert::Infallible>(change(record)));
        let Ok(keeping) = keeping;
        if let Err(error) = keeping.await {
            tracing::error!(task = %self.id, error = %ErrorChain(&error), "a task could not be kept");
        }
    }

    /// Puts a changed record in place of the one that was. A task that is over is not open any more.
    fn becomes(&self, now: &mut Arc<Record>, record: Record) {
        if record.state().is_terminal() {
            self.open.remove(&record.owner, self.id);
        }
        *now = Arc::new(record);
    }

    /// Whether the journal has it, so that it is found there.
    fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Acquire)
    }

    /// Tells the journal of it, unless that has it already. Nobody waits for it.
    pub(super) fn keep_meanwhile(&self, journal: &Journal) {
        if !self.is_kept() {
            let Ok(keeping) = self.try_change(journal, |_| Ok::<_, std::convert::Infallible>(Vec::new()));
            tokio::spawn(keeping);
        }
    }

    /// The task as the journal keeps it while its run goes on; `None` when it is kept already.
    pub(super) fn will(&self) -> Option<KeptTask> {
        (!self.is_kept()).then(|| self.record().kept(self.id))
    }

    /// A change as the journal keeps it. It is made, and told, by [`Self::publish`].
    pub(super) fn prepare(&self, change: impl FnOnce(&mut Record) -> Vec<Update>) -> KeptTask {
        let before = self.record();
        let mut after = Record::clone(&before);
        let updates = change(&mut after);
        let kept = after.kept(self.id);
        *self.prepared() = Some(Prepared { before, after, updates });
        kept
    }

    fn prepared(&self) -> MutexGuard<'_, Option<Prepared>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the change that was prepared, and tells of it; `is_kept` when the journal has it. `false` when the task
    /// has changed meanwhile, or nothing was prepared, because its run is not of this process.
    pub(super) fn publish(&self, is_kept: bool) -> bool {
        let Some(Prepared { before, after, updates }) = self.prepared().take() else { return false };
        self.now.send_if_modified(|now| {
            if !Arc::ptr_eq(now, &before) {
                return false;
            }
            self.tell(&after, now.state(), after.task.status.timestamp, updates);
            if is_kept {
                self.is_kept.store(true, Ordering::Release);
            }
            self.becomes(now, after);
            true
        })
    }

    /// Changes the record when the change is on the disk, so that nobody is told what a crash takes back. While there
    /// is no room it is told all the same, and tried on.
    pub(super) async fn settle(&self, journal: &Journal, change: impl Fn(&mut Record) -> Vec<Update>) {
        let kept = journal.keep_task(self.prepare(&change), Pace::AtOnce).await;
        if let Err(error) = &kept {
            tracing::error!(task = %self.id, error = %ErrorChain(error), "a task could not be kept");
        }
        if !self.publish(kept.is_ok()) {
            self.change(journal, change).await;
        }
    }

    /// What a run shows of itself. The journal need not know it: what comes of the run, it does.
    pub(super) fn happened(&self, happening: Happening, now: OffsetDateTime) {
        self.now.send_if_modified(|record| {
            // A guest that is stuck may be heard when it is over.
            if record.state().is_terminal() {
                return false;
            }
            let record = Arc::make_mut(record);
            let before = record.state();
            let update = match happening {
                Happening::Started => record.enter(State::Working, Vec::new(), now),
                Happening::Progress(progress) => {
                    record.enter(State::Working, encode::progress(&progress), now)
                }
                Happening::Log(line) => record.enter(State::Working, encode::log(&line), now),
                Happening::Artifact(made) => {
                    let artifact = encode::artifact(&made, record.task.artifacts.len());
                    record.task.artifacts.push(artifact.clone());
                    record.made(artifact)
                }
            };
            self.tell(record, before, now, vec![update]);
            // It has not settled by this, so that nobody who waits for that has to look.
            false
        });
    }

    fn tell(&self, record: &Record, before: State, now: OffsetDateTime, updates: Vec<Update>) {
        for update in updates {
            self.notify(record, before, now, &update);
            let _nobody_listens = self.updates.send(Arc::new(update));
        }
    }

    /// Tells the webhooks of an update, as far as each wants to hear of it now.
    fn notify(&self, record: &Record, before: State, now: OffsetDateTime, update: &Update) {
        let Some(hooks) = self.webhooks.as_ref().filter(|_| !record.pushes.is_empty()) else { return };
        let notices = match hooks.dialect {
            Dialect::A2a => push::task_notices(update, before, &record.task),
            Dialect::Acp => push::event_notices(update, before, &record.task.id, now),
        };
        for (events, body) in notices {
            let wants = |config: &&PushConfig| events.iter().any(|event| config.wants(*event, now));
            for config in record.pushes.iter().filter(wants) {
                hooks.post.notify(Notice {
                    of: (record.task.id.clone(), config.id.clone()),
                    owner: record.owner.clone(),
                    url: config.url.clone(),
                    headers: config.headers(),
                    body: body.clone(),
                });
            }
        }
    }
}

/// All tasks.
pub(super) struct Board {
    executor: Arc<Executor>,
    webhooks: Option<Hooks>,
    live: Mutex<HashMap<IntentId, Weak<Live>>>,
    open: Arc<OpenTasks>,
}

impl Board {
    /// All tasks of the journal.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub(super) fn new(executor: Arc<Executor>, webhooks: Option<Hooks>) -> Result<Self, Fault> {
        let mut open = HashMap::<AgentDid, HashSet<IntentId>>::new();
        for (task, owner) in executor.journal().open_tasks().map_err(|error| broken(&error))? {
            open.entry(owner).or_default().insert(task);
        }
        let open = Arc::new(OpenTasks(Mutex::new(open)));
        Ok(Self { executor, webhooks, live: Mutex::default(), open })
    }

    /// Makes a task.
    ///
    /// # Errors
    /// When too many tasks of its owner are open.
    pub(super) fn add(&self, id: IntentId, record: Record) -> Result<Arc<Live>, Fault> {
        self.open.add(&record.owner, id)?;
        let live = self.live(&mut self.lock(), id, record, false);
        let record = live.record();
        // No stream can be there yet.
        if !record.pushes.is_empty() {
            let first = Update::Task(Box::new(record.task.clone()));
            live.tell(&record, record.state(), record.created, vec![first]);
        }
        Ok(live)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IntentId, Weak<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(
        &self,
        all: &mut HashMap<IntentId, Weak<Live>>,
        id: IntentId,
        record: Record,
        is_kept: bool,
    ) -> Arc<Live> {
        let live = Arc::new(Live {
            id,
            now: watch::Sender::new(Arc::new(record)),
            updates: broadcast::Sender::new(MAX_UPDATES_BEHIND),
            stop: watch::Sender::new(None),
            waits_for_room: watch::Sender::new(false),
            is_kept: Arc::new(AtomicBool::new(is_kept)),
            prepared: Mutex::default(),
            open: Arc::clone(&self.open),
            webhooks: self.webhooks.clone(),
        });
        all.retain(|_, live| live.strong_count() > 0);
        all.insert(id, Arc::downgrade(&live));
        live
    }

    /// The tasks that only this process knows of. One that is written just now may be here and there.
    pub(super) fn unkept(&self) -> Vec<Arc<Live>> {
        let lives = self.lock().values().filter_map(Weak::upgrade).collect::<Vec<_>>();
        lives.into_iter().filter(|live| !live.is_kept()).collect()
    }

    /// A task, wherever it is.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub(super) fn find(&self, id: IntentId) -> Result<Option<Arc<Live>>, Fault> {
        let mut all = self.lock();
        if let Some(live) = all.get(&id).and_then(Weak::upgrade) {
            return Ok(Some(live));
        }
        let Some(kept) = self.executor.journal().task(id).map_err(|error| broken(&error))? else {
            return Ok(None);
        };
        Ok(Some(self.live(&mut all, id, read(&kept)?, true)))
    }

    /// A task that somebody has to do with.
    pub(super) fn at_hand(&self, id: IntentId) -> Option<Arc<Live>> {
        self.lock().get(&id).and_then(Weak::upgrade)
    }

    /// The tasks that are not over: before this process has made any, those that an earlier one left.
    pub(super) fn open(&self) -> Vec<IntentId> {
        self.open.all()
    }
}

/// What the journal keeps of a task.
pub(super) fn read(kept: &KeptTask) -> Result<Record, Fault> {
    serde_json::from_str(&kept.document)
        .map_err(|error| Fault::Internal(format!("the task {} of the journal: {error}", kept.task)))
}

pub(super) fn broken(error: &JournalError) -> Fault {
    match error {
        JournalError::Backlog | JournalError::NoRoom => {
            Fault::Busy { message: error.to_string(), retry_after_ms: 500 }
        }
        JournalError::Broken(_) => Fault::Internal(ErrorChain(error).to_string()),
    }
}
