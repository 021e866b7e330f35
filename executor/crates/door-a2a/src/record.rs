//! A task as the journal stores it, and how its state, messages and artifacts change.
//!
//! ```text
//! from            to
//! submitted       working, input-required, rejected, failed, canceled
//! input-required  submitted (a message has the call), working (a person has approved), rejected, canceled,
//!                 completed (the file changes are in force), failed (nobody here knows what became of them)
//! working         completed, failed, canceled, input-required (the file changes wait)
//! ```
//! A task whose intent runs through another door ends without `working`.

use a2g_journal::JournalTask;
use a2g_types::failure_message::failure_details;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::{DecisionAct, FileChanges, Receipt};
use a2g_wire::a2a::governance::{
    Governance, PendingPermission, PermissionAnswer, PermissionDecision, changes_options,
};
use a2g_wire::a2a::message::{
    ArtifactUpdate, Message, Part, StatusUpdate, Task, TaskArtifact, TaskState, TaskStatus, TaskUpdate,
};
use a2g_wire::a2a::push::PushConfig;
use a2g_wire::a2a::{encode, fault};
use a2g_wire::staged::{StagedState, changes_of, sentence};
use serde::{Deserialize, Serialize};
use serde_json::Map;
use time::OffsetDateTime;

/// A task with its governance history and webhooks. This is the document that the journal stores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TaskRecord {
    pub(super) owner: AgentDid,
    #[serde(with = "time::serde::rfc3339")]
    pub(super) created: OffsetDateTime,
    /// The tool of the task's call; `None` until a message has a call.
    pub(super) tool: Option<ToolName>,
    pub(super) governance: Governance,
    pub(super) webhooks: Vec<PushConfig>,
    pub(super) task: Task,
}

impl TaskRecord {
    /// A new task for a message.
    pub(super) fn new(id: IntentId, owner: AgentDid, message: Message, now: OffsetDateTime) -> Self {
        let id = id.to_string();
        let context_id = message.context_id.clone().unwrap_or_else(|| IntentId::random().to_string());
        let message = Message { task_id: Some(id.clone()), context_id: Some(context_id.clone()), ..message };
        let status = TaskStatus {
            state: TaskState::Submitted,
            message: None,
            timestamp: now.truncate_to_millisecond(),
        };
        let history = vec![message];
        let task = Task { id, context_id, status, artifacts: Vec::new(), history, metadata: None };
        let created = now.truncate_to_microsecond();
        Self { owner, created, tool: None, governance: Governance::default(), webhooks: Vec::new(), task }
    }

    /// The task of an intent whose own record is not available. Its messages and its context are known only to that
    /// record.
    pub(super) fn without_messages(
        intent: IntentId,
        owner: AgentDid,
        tool: ToolName,
        state: TaskState,
        now: OffsetDateTime,
    ) -> Self {
        let id = intent.to_string();
        let status = TaskStatus { state, message: None, timestamp: now.truncate_to_millisecond() };
        let task = Task {
            context_id: id.clone(),
            id,
            status,
            artifacts: Vec::new(),
            history: Vec::new(),
            metadata: None,
        };
        let governance = Governance::default();
        Self { owner, created: now, tool: Some(tool), governance, webhooks: Vec::new(), task }
    }

    /// As [`Self::without_messages`], of a receipt.
    pub(super) fn from_receipt(receipt: &Receipt, now: OffsetDateTime) -> Self {
        let Receipt { intent, agent, tool, .. } = receipt;
        let mut record =
            Self::without_messages(*intent, agent.clone(), tool.clone(), TaskState::Working, now);
        record.end_with_receipt(receipt, now);
        record
    }

    /// The changes since an earlier state of the task.
    pub(super) fn updates_since(&self, earlier: &Self) -> Vec<TaskUpdate> {
        let new_artifacts = self.task.artifacts.iter().skip(earlier.task.artifacts.len());
        let artifacts = new_artifacts.map(|artifact| self.artifact_update(artifact.clone()));
        let status = (self.task.status != earlier.task.status).then(|| self.status_update());
        artifacts.chain(status).collect()
    }

    pub(super) fn state(&self) -> TaskState {
        self.task.status.state
    }

    /// Returns `true` while a permission prompt is pending.
    pub(super) fn is_prompting(&self) -> bool {
        !self.governance.pending_permissions.is_empty()
    }

    /// Returns `true` while the prompt is about the file changes of a run that has ended.
    pub(super) fn asks_about_changes(&self) -> bool {
        self.governance
            .pending_permissions
            .iter()
            .any(|pending| pending.tool_id == DecisionAct::Commit.tool())
    }

    /// The answer to the pending prompt by which nothing happens; `None` without a prompt.
    pub(super) fn refusal(&self) -> Option<PermissionAnswer> {
        let refusal =
            if self.asks_about_changes() { PermissionAnswer::Discard } else { PermissionAnswer::Denied };
        self.is_prompting().then_some(refusal)
    }

    /// Enters a state and returns the update. The message of a previous `input-required` moves to the history.
    pub(super) fn set_state(
        &mut self,
        state: TaskState,
        parts: Vec<Part>,
        now: OffsetDateTime,
    ) -> TaskUpdate {
        let Task { id, context_id, .. } = &self.task;
        let message = (!parts.is_empty()).then(|| encode::agent_message(id, context_id, parts));
        let status = TaskStatus { state, message, timestamp: now.truncate_to_millisecond() };
        let before = std::mem::replace(&mut self.task.status, status);
        if before.state == TaskState::InputRequired {
            self.task.history.extend(before.message);
        }
        if state.is_terminal() {
            self.governance.pending_permissions.clear();
        }
        self.status_update()
    }

    /// Ends the task. Returns no update if it has already ended.
    pub(super) fn end(
        &mut self,
        state: TaskState,
        message: String,
        details: Map<String, serde_json::Value>,
        now: OffsetDateTime,
    ) -> Vec<TaskUpdate> {
        if self.state().is_terminal() {
            return Vec::new();
        }
        let details = (!details.is_empty()).then(|| Part::data(details));
        let parts = std::iter::once(Part::text(message)).chain(details).collect();
        vec![self.set_state(state, parts, now)]
    }

    /// Ends the task of a call that did not run.
    pub(super) fn end_without_run(
        &mut self,
        state: TaskState,
        reason: &str,
        now: OffsetDateTime,
    ) -> Vec<TaskUpdate> {
        self.end(state, reason.to_owned(), Map::from_iter([("ran".to_owned(), false.into())]), now)
    }

    /// Records who decided on the task's call, or on its file changes.
    pub(super) fn add_decision(
        &mut self,
        source: &str,
        answer: PermissionAnswer,
        now: OffsetDateTime,
        summary: &str,
    ) {
        let decision = PermissionDecision::new(&self.task.id, source, answer, now, summary);
        self.governance.permission_decisions.push(decision);
    }

    /// Ends the task with the outcome of its run, or lets it wait for a decision on the file changes, and returns updates
    /// for the artifacts and the new state.
    pub(super) fn end_with_receipt(&mut self, receipt: &Receipt, now: OffsetDateTime) -> Vec<TaskUpdate> {
        if self.state().is_terminal() || self.asks_about_changes() {
            return Vec::new();
        }
        let already_sent = self.task.artifacts.len();
        self.task.artifacts = encode::artifacts(receipt);
        self.task.metadata = Some(encode::run_metadata(receipt));
        let new = self.task.artifacts.iter().skip(already_sent).cloned().collect::<Vec<_>>();
        let mut updates = new.into_iter().map(|artifact| self.artifact_update(artifact)).collect::<Vec<_>>();
        if let Some(changes) = changes_of(receipt) {
            updates.push(self.ask_about_changes(receipt, changes, now));
            return updates;
        }
        let parts = match fault::end_for_receipt(receipt) {
            (_, None) => Vec::new(),
            (_, Some(reason)) => vec![Part::text(reason), Part::data(failure_details(receipt))],
        };
        updates.push(self.set_state(fault::end_for_receipt(receipt).0, parts, now));
        updates
    }

    fn ask_about_changes(
        &mut self,
        receipt: &Receipt,
        changes: &FileChanges,
        now: OffsetDateTime,
    ) -> TaskUpdate {
        let Receipt { tool, .. } = receipt;
        let summary = match changes.describe_sending() {
            Some(sends) if changes.count == 0 => format!(
                "A person has to decide whether the requests of `{tool}` are sent: none of them is sent yet; a commit \
                 {sends}, for good"
            ),
            sending => {
                let also =
                    sending.map(|sends| format!("; a commit also {sends}, for good")).unwrap_or_default();
                format!(
                    "A person has to decide whether the file changes of `{tool}` ({}) take effect: none of them is in \
                     force{also}",
                    changes.count
                )
            }
        };
        let pending = PendingPermission {
            tool_call_id: self.task.id.clone(),
            tool_id: DecisionAct::Commit.tool().to_owned(),
            options: changes_options(changes),
            summary: std::iter::once(summary).chain(changes.describe_unseen()).collect(),
            created_at: now,
        };
        let parts = pending.parts();
        self.governance.pending_permissions = vec![pending];
        self.set_state(TaskState::InputRequired, parts, now)
    }

    /// Ends the task of a staged run whose file changes no longer wait. `state` is `None` if this node does not know what has
    /// become of them. `decided_by` is the source of the decision to record, if it is not recorded otherwise.
    pub(super) fn end_with_changes(
        &mut self,
        receipt: &Receipt,
        state: Option<&StagedState>,
        decided_by: Option<&str>,
        now: OffsetDateTime,
    ) -> Vec<TaskUpdate> {
        let task_state = fault::state_for_changes(state.map(|state| state.state));
        if !self.asks_about_changes() || task_state == TaskState::InputRequired {
            return Vec::new();
        }
        if let Some(changes) = changes_of(receipt)
            && let Some(source) = decided_by
            && let Some(answer) = state.and_then(|state| PermissionAnswer::leading_to(state.state))
        {
            self.add_decision(source, answer, now, &sentence(changes, state));
        }
        vec![self.set_state(task_state, encode::changes_parts(receipt, state), now)]
    }

    /// The current status as an update.
    pub(super) fn status_update(&self) -> TaskUpdate {
        TaskUpdate::Status(Box::new(StatusUpdate {
            task_id: self.task.id.clone(),
            context_id: self.task.context_id.clone(),
            status: self.task.status.clone(),
            r#final: self.state().is_settled(),
        }))
    }

    pub(super) fn artifact_update(&self, artifact: TaskArtifact) -> TaskUpdate {
        TaskUpdate::Artifact(Box::new(ArtifactUpdate {
            task_id: self.task.id.clone(),
            context_id: self.task.context_id.clone(),
            artifact,
            append: false,
            last_chunk: true,
        }))
    }

    /// The status as JSON text, as in lists of tasks.
    pub(super) fn status_json(&self) -> String {
        serde_json::to_string(&self.task.status).unwrap_or_default()
    }

    pub(super) fn to_row(&self, task: IntentId) -> JournalTask {
        let ended = self.state().is_terminal().then_some(self.task.status.timestamp);
        JournalTask {
            task,
            owner: self.owner.clone(),
            context: self.task.context_id.clone(),
            created: self.created,
            ended,
            status: self.status_json(),
            // Serialization cannot fail: all map keys are strings.
            document: serde_json::to_string(self).unwrap_or_default(),
        }
    }
}
