//! The tasks of other nodes of the fleet: read, cancelled and followed here, kept there.
//!
//! The task of a lost node is derived from the call or the receipt, which the fleet has. Its messages come back with its
//! node.

use super::follow::decisions::{CANCEL_TIMEOUT, check_canceled};
use super::record::TaskRecord;
use super::tasks::{MAX_UPDATES_BEHIND, READ_ALL_ROLES, TaskStore};
use a2g_core::run::{Executor, IntentState, all_agents};
use a2g_govern::Caller;
use a2g_govern::Role::{self, Governor, Operator};
use a2g_types::call::{Call, Door};
use a2g_types::fault::Fault;
use a2g_types::ident::IntentId;
use a2g_wire::a2a::fault::Problem;
use a2g_wire::a2a::message::{TaskState, TaskUpdate};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;

/// The document kind of a task.
const TASK_DOCUMENT: &str = "a2a.task";
/// The time between two requests for a task that is being cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two requests for a task that is followed.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

/// Reads, cancels and follows the tasks of other nodes.
pub(super) struct OtherNodes {
    executor: Arc<Executor>,
}

impl OtherNodes {
    pub(super) fn new(executor: Arc<Executor>) -> Self {
        Self { executor }
    }

    /// Lets other nodes of a fleet read the tasks of this one.
    pub(super) fn share_tasks(&self, store: &Arc<TaskStore>) {
        let store = Arc::downgrade(store);
        self.executor.peers.share_documents(TASK_DOCUMENT, move |id| {
            let store = store.clone();
            Box::pin(async move {
                let handle = store.upgrade()?.find(id).await.ok()??;
                // Without the webhooks, which have credentials.
                let record = TaskRecord { webhooks: Vec::new(), ..TaskRecord::clone(&handle.record()) };
                serde_json::to_string(&record).ok()
            })
        });
    }

    /// As [`TaskStore::find_for`], for a task of another node. Returns the task's present record.
    pub(super) async fn find(
        &self,
        caller: &Caller,
        task: &str,
        roles: &[Role],
    ) -> Result<TaskRecord, Problem> {
        let Ok(id) = IntentId::parse(task) else { return Err(Problem::TaskNotFound) };
        let record = self.read(id).await?;
        let may_access = caller.may_act_as(&record.owner) || caller.is_any_of(roles);
        if may_access { Ok(record) } else { Err(Problem::TaskNotFound) }
    }

    async fn read(&self, id: IntentId) -> Result<TaskRecord, Problem> {
        if self.executor.node.fleet().is_none() {
            return Err(Problem::TaskNotFound);
        }
        let parse = |text: String| {
            serde_json::from_str::<TaskRecord>(&text).map_err(|_other_version| Problem::TaskNotFound)
        };
        // The task's own node is asked first: it has the whole record.
        let found = self.executor.peers.find_document(TASK_DOCUMENT, id).await;
        if let Ok(Some(text)) = found {
            return parse(text);
        }
        if let Some(record) = self.find_pending(id).await? {
            return Ok(record);
        }
        found?;
        match self.executor.queries.status(id).await? {
            Some((_, IntentState::Finished(Some(receipt)))) if receipt.door == Door::A2a => {
                Ok(TaskRecord::from_receipt(&receipt, self.executor.clock().now()))
            }
            Some(_) | None => Err(Problem::TaskNotFound),
        }
    }

    /// The task of another node, whose call the fleet stores.
    async fn find_pending(&self, id: IntentId) -> Result<Option<TaskRecord>, Problem> {
        let Some((call, state)) = self.executor.queries.find_pending(id).await? else { return Ok(None) };
        let state = match state {
            IntentState::Escalated => TaskState::InputRequired,
            IntentState::Queued => TaskState::Submitted,
            IntentState::Running => TaskState::Working,
            IntentState::Finished(_) => return Ok(None),
        };
        let Call { agent, tool, door, .. } = call;
        let now = self.executor.clock().now();
        Ok((door == Door::A2a).then(|| TaskRecord::without_messages(id, agent, tool, state, now)))
    }

    /// As [`super::follow::Follower::cancel`], for a task of another node.
    pub(super) async fn cancel(&self, caller: &Caller, task: &str) -> Result<TaskRecord, Problem> {
        let find = async || self.find(caller, task, &[Governor, Operator]).await;
        let Ok(id) = IntentId::parse(task) else { return Err(Problem::TaskNotFound) };
        let mut record = find().await?;
        if record.state().is_terminal() {
            return Err(Problem::NotCancelable(record.state()));
        }
        let is_cancelled = self.executor.operator.cancel(id, &all_agents, caller.name()).await?;
        let deadline = a2g_runtime::timer_now() + CANCEL_TIMEOUT;
        while !record.state().is_terminal() && a2g_runtime::timer_now() < deadline {
            tokio::time::sleep(CANCEL_INTERVAL).await;
            match find().await {
                // The task of a lost node has no record of its own here, and no receipt if it has not run.
                Err(Problem::TaskNotFound | Problem::Core(Fault::Busy { .. })) if is_cancelled => {
                    record.set_state(TaskState::Canceled, Vec::new(), self.executor.clock().now());
                }
                found => record = found?,
            }
        }
        check_canceled(record.state()).map(|()| record)
    }

    /// The record of another node's task, and its later updates while the receiver exists.
    pub(super) async fn follow(
        self: &Arc<Self>,
        caller: &Caller,
        task: &str,
    ) -> Result<(Arc<TaskRecord>, broadcast::Receiver<Arc<TaskUpdate>>), Problem> {
        let Ok(id) = IntentId::parse(task) else { return Err(Problem::TaskNotFound) };
        let record = self.find(caller, task, &READ_ALL_ROLES).await?;
        let (sender, receiver) = broadcast::channel(MAX_UPDATES_BEHIND);
        let nodes = Arc::clone(self);
        let mut latest = record.clone();
        self.executor.session_tasks().spawn(async move {
            while !latest.state().is_terminal() && sender.receiver_count() > 0 {
                tokio::time::sleep(FOLLOW_INTERVAL).await;
                match nodes.read(id).await {
                    Ok(record) => {
                        for update in record.updates_since(&latest) {
                            drop(sender.send(Arc::new(update)));
                        }
                        latest = record;
                    }
                    Err(Problem::TaskNotFound) => return,
                    // The node may answer later, or be taken over.
                    Err(problem) => {
                        tracing::debug!(?problem, task = %id, "a task cannot be followed at the moment")
                    }
                }
            }
        });
        Ok((Arc::new(record), receiver))
    }
}
