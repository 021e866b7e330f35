//! Follows a call until its task ends, even if the client disconnects. The task of a staged run ends with the decision on
//! its file changes, wherever somebody makes it.

pub(super) mod decisions;

use super::messages::AcceptedCall;
use super::record::TaskRecord;
use super::tasks::{TaskHandle, TaskStore};
use a2g_core::run::{
    DeniedInFleet, Executor, IntentAnswer, IntentState, RunEventSink, TaskPersistence, all_agents,
};
use a2g_http::conversations::ConversationCall;
use a2g_http::staged::wait_until_decided;
use a2g_journal::JournalTask;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::IntentId;
use a2g_types::outcome::{AbortReason, ChangeState, Receipt};
use a2g_types::verdict::Verdict;
use a2g_wire::a2a::fault;
use a2g_wire::a2a::governance::{
    Feedback, GOVERNOR_SOURCE, PendingPermission, PermissionAnswer, permission_options,
};
use a2g_wire::a2a::message::{TaskState, TaskUpdate};
use a2g_wire::staged::changes_of;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

/// The `source` of a decision that arrived as `g2a/directive`.
const BY_DIRECTIVE: &str = "directive";

/// Persists a task in the two transactions of its run: with the run's start, and with the receipt. Separate writes
/// would make a blocking `message/send` several times as slow as the same call over A2G.
struct A2aTaskPersistence {
    handle: Arc<TaskHandle>,
    executor: Arc<Executor>,
}

impl TaskPersistence for A2aTaskPersistence {
    // The pipeline calls this, because a timer would cost each call 20 µs to wake the runtime's driver.
    fn on_wait(&self) {
        self.handle.persist_in_background(&self.executor);
    }

    fn fallback_task(&self) -> Option<JournalTask> {
        self.handle.unsaved_row()
    }

    fn final_task(&self, receipt: &Receipt, verdict: Option<&Verdict>) -> JournalTask {
        self.handle.prepare(|record| end_record(record, receipt, verdict, self.executor.clock().now()))
    }
}

/// Ends the task of a finished run, or lets it wait for a decision on the file changes. `verdict` allowed the run; `None`
/// if the governor was not asked in this call.
fn end_record(
    record: &mut TaskRecord,
    receipt: &Receipt,
    verdict: Option<&Verdict>,
    now: OffsetDateTime,
) -> Vec<TaskUpdate> {
    if record.asks_about_changes() {
        return Vec::new();
    }
    if let Some(verdict) = verdict {
        let summary = format!("{} by the governor", verdict.decision.as_str());
        record.add_decision(GOVERNOR_SOURCE, PermissionAnswer::Approved, now, &summary);
        record.governance.governor_feedback.push(Feedback::from_verdict(verdict, now));
    }
    // The prompt was not answered at this door, so only a directive can have approved the intent.
    if record.is_prompting() {
        record.add_decision(BY_DIRECTIVE, PermissionAnswer::Approved, now, "approved by a directive");
    }
    record.end_with_receipt(receipt, now)
}

/// Follows the calls of the tasks of this node.
pub(super) struct Follower {
    executor: Arc<Executor>,
    store: Arc<TaskStore>,
}

impl Follower {
    pub(super) fn new(executor: Arc<Executor>, store: Arc<TaskStore>) -> Self {
        Self { executor, store }
    }

    /// Runs a call in a tokio task of its own.
    pub(super) fn start(self: &Arc<Self>, handle: Arc<TaskHandle>, call: AcceptedCall) {
        let follower = Arc::clone(self);
        self.executor.session_tasks().spawn(async move { follower.run_to_end(&handle, call).await });
    }

    /// Runs a call until its task has settled and is on the disk. A task that has settled but not ended is followed
    /// further in the background.
    pub(super) async fn run_until_settled(
        self: &Arc<Self>,
        handle: &Arc<TaskHandle>,
        call: AcceptedCall,
    ) -> Arc<TaskRecord> {
        let follower = Arc::clone(self);
        let task = Arc::clone(handle);
        let mut follow = Box::pin(async move { follower.run_to_end(&task, call).await });
        tokio::select! {
            () = &mut follow => handle.record(),
            settled = handle.wait_until_settled() => {
                self.executor.session_tasks().spawn(follow);
                settled
            }
        }
    }

    async fn run_to_end(&self, handle: &Arc<TaskHandle>, accepted: AcceptedCall) {
        let AcceptedCall { call, in_conversation } = accepted;
        let task = Arc::clone(handle);
        let clock = Arc::clone(self.executor.clock());
        let persistence =
            Arc::new(A2aTaskPersistence { handle: Arc::clone(handle), executor: Arc::clone(&self.executor) });
        let sink =
            RunEventSink::new(move |event| task.on_event(event, clock.now())).with_persistence(persistence);
        // A claimed call belongs to the executor, so dropping this future does not cancel the run.
        let answer = tokio::select! {
            answer = self.executor.engine.handle_intent(call, sink) => answer,
            _by = handle.wait_for_stop() => return self.await_end(handle, Some(&in_conversation)).await,
        };
        match answer {
            Ok(IntentAnswer { verdict, receipt: Some(receipt) }) => {
                in_conversation.note_receipt(&receipt);
                self.finish(handle, &receipt, Some(&verdict)).await;
                self.follow_changes(handle, &receipt).await;
            }
            Ok(IntentAnswer { verdict, receipt: None }) => {
                self.prompt(handle, &verdict).await;
                self.await_end(handle, Some(&in_conversation)).await;
            }
            // The run has ended; the task ends once the journal has space for the receipt.
            Err(Fault::ReceiptPending { .. }) => {
                handle.mark_waiting_for_space(self.executor.clock().now());
                self.await_end(handle, Some(&in_conversation)).await;
            }
            // Another node may have cancelled it while it waited here.
            Err(fault @ Fault::Refused { blocked_by: BlockedBy::VerdictDenied, .. }) => {
                match self.executor.queries.denial_in_fleet(handle.id).await {
                    Ok(Some(denial)) => self.end_denied(handle, &denial).await,
                    Ok(None) | Err(_) => self.fail(handle, &fault).await,
                }
            }
            Err(fault) => {
                in_conversation.note_fault(&fault);
                self.fail(handle, &fault).await;
            }
        }
    }

    /// Waits for the end of an intent that another process started, or whose run this future no longer drives.
    /// `in_conversation` is the call, if this process has accepted it.
    async fn await_end(&self, handle: &Arc<TaskHandle>, in_conversation: Option<&ConversationCall>) {
        let outcome = tokio::select! {
            outcome = self.executor.queries.await_outcome(handle.id) => outcome,
            by = handle.wait_for_stop() => tokio::select! {
                // Without a run, the task ends once its cancellation is stored.
                Ok(Some(receipt)) = self.executor.queries.await_outcome(handle.id) => Ok(Some(receipt)),
                () = self.cancel_run(handle.id, &by) => self.executor.queries.await_outcome(handle.id).await,
            },
        };
        let stopped = handle.is_stopped();
        // A person's decision that is being recorded ends the task, with its own message. So this waits until the
        // decision is recorded.
        let directive_recorded = handle.directive.lock().await;
        match outcome {
            Ok(Some(receipt)) => {
                if let Some(call) = in_conversation {
                    call.note_receipt(&receipt);
                }
                self.finish(handle, &receipt, None).await;
                drop(directive_recorded);
                self.follow_changes(handle, &receipt).await;
            }
            Ok(None) if stopped => {
                self.end_without_run(handle, TaskState::Canceled, "canceled before it ran").await
            }
            Ok(None) => match self.executor.queries.denial_in_fleet(handle.id).await {
                Ok(Some(denial)) => self.end_denied(handle, &denial).await,
                Ok(None) | Err(_) => {
                    let reason = "the call did not run: it was denied, stopped by an operator, or not approved in time";
                    self.end_without_run(handle, TaskState::Rejected, reason).await;
                }
            },
            Err(fault) => self.fail(handle, &fault).await,
        }
    }

    /// Cancels the call of a canceled task, as soon as the node at which it waits answers.
    async fn cancel_run(&self, intent: IntentId, by: &str) {
        loop {
            match self.executor.operator.cancel(intent, &all_agents, by).await {
                Ok(_was_active) => return,
                Err(Fault::Busy { retry_after_ms, .. }) => {
                    tokio::time::sleep(Duration::from_millis(retry_after_ms)).await;
                }
                Err(fault) => {
                    return tracing::warn!(%intent, ?fault, "the run of a canceled task could not be cancelled");
                }
            }
        }
    }

    /// Moves the task to `input-required` with a permission prompt.
    async fn prompt(&self, handle: &TaskHandle, verdict: &Verdict) {
        let now = self.executor.clock().now();
        handle
            .settle(|record| {
                if record.state().is_terminal() {
                    return Vec::new();
                }
                let tool = record.tool.as_ref().map(ToString::to_string).unwrap_or_default();
                let reason = verdict.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
                let summary = format!("A person has to permit this call of `{tool}`{reason}");
                let pending = PendingPermission {
                    tool_call_id: handle.id.to_string(),
                    tool_id: tool,
                    options: permission_options(),
                    summary: vec![summary],
                    created_at: now,
                };
                let parts = pending.parts();
                record.governance.governor_feedback.push(Feedback::from_verdict(verdict, now));
                record.governance.pending_permissions.push(pending);
                vec![record.set_state(TaskState::InputRequired, parts, now)]
            })
            .await;
    }

    /// Ends the task of a finished run, or lets it wait for a decision on the file changes. `verdict` allowed the run; `None`
    /// if the governor was not asked in this call. The receipt is on the disk, usually in the same transaction as the
    /// task's end; if not, a restart derives the same end from the receipt.
    async fn finish(&self, handle: &TaskHandle, receipt: &Receipt, verdict: Option<&Verdict>) {
        if handle.publish(true) {
            return;
        }
        let has_feedback = !handle.record().governance.governor_feedback.is_empty();
        let read = match verdict {
            None if !has_feedback => self.executor.queries.verdict(handle.id),
            Some(_) | None => Ok(None),
        };
        let stored = read.unwrap_or_else(|fault| {
            tracing::warn!(task = %handle.id, ?fault, "the verdict of a task cannot be read");
            None
        });
        let allowed_by = verdict.or(stored.as_ref());
        let now = self.executor.clock().now();
        handle.change(|record| end_record(record, receipt, allowed_by, now)).await;
    }

    /// Waits until somebody has decided on the file changes of a staged run, and ends its task. The task of any other run
    /// has ended.
    async fn follow_changes(&self, handle: &TaskHandle, receipt: &Receipt) {
        if !handle.record().asks_about_changes() {
            return;
        }
        let state = tokio::select! {
            state = wait_until_decided(&self.executor, receipt) => state,
            by = handle.wait_for_stop() => {
                // Discards them, unless somebody else was faster.
                self.cancel_run(handle.id, &by).await;
                wait_until_decided(&self.executor, receipt).await
            }
        };
        // An answer at this door that is being recorded ends the task, with the name of the caller.
        let _answer_recorded = handle.directive.lock().await;
        let is_discarded = state.as_ref().is_some_and(|state| state.state == ChangeState::Discarded);
        // The cancellation of a task is recorded with its caller.
        let is_recorded = is_discarded && handle.is_stopped();
        let author = state.as_ref().and_then(|state| state.by.as_deref());
        let decided_by = author.filter(|_| !is_recorded);
        let now = self.executor.clock().now();
        handle.settle(|record| record.end_with_changes(receipt, state.as_ref(), decided_by, now)).await;
    }

    /// Ends the task of an intent that is denied at all nodes of the fleet.
    async fn end_denied(&self, handle: &TaskHandle, denial: &DeniedInFleet) {
        if denial.withdrawn_for == Some(AbortReason::Cancelled) {
            let reason = "canceled at another node of the fleet, before it ran";
            return self.end_without_run(handle, TaskState::Canceled, reason).await;
        }
        self.fail(handle, &denial.fault).await;
    }

    async fn fail(&self, handle: &TaskHandle, fault: &Fault) {
        if let Fault::Internal(detail) = fault {
            tracing::error!(task = %handle.id, detail, "a task ended with an internal error");
        }
        let now = self.executor.clock().now();
        handle
            .settle(|record| {
                if let Fault::Refused { blocked_by: BlockedBy::VerdictDenied, message, .. } = fault {
                    record.add_decision(GOVERNOR_SOURCE, PermissionAnswer::Denied, now, message);
                }
                let (state, message, details) = fault::end_for_fault(fault);
                record.end(state, message, details, now)
            })
            .await;
    }

    async fn end_without_run(&self, handle: &TaskHandle, state: TaskState, reason: &str) {
        let now = self.executor.clock().now();
        handle.settle(|record| record.end_without_run(state, reason, now)).await;
    }

    /// Resumes the tasks that an earlier process left open: those that still run are followed, and the others are
    /// ended.
    pub(super) async fn resume(self: &Arc<Self>) -> Result<(), Fault> {
        // The tasks are resumed one at a time, because each record may be large.
        for task in self.store.open_tasks() {
            let Some(handle) = self.store.find(task).await? else { continue };
            let record = handle.record();
            let waits_for_a_message = record.state() == TaskState::InputRequired && !record.is_prompting();
            if waits_for_a_message {
                continue;
            }
            // Read before the status, because a stored call is removed once its intent has a claim.
            // If the servers do not answer, the task is followed until they do.
            let may_wait = self.executor.queries.may_still_wait(handle.id).await.unwrap_or(true);
            match self.executor.queries.status(handle.id).await? {
                Some((_, IntentState::Finished(Some(receipt)))) if changes_of(&receipt).is_some() => {
                    self.follow(handle);
                }
                Some((_, IntentState::Finished(Some(receipt)))) => {
                    self.finish(&handle, &receipt, None).await;
                }
                Some((_, IntentState::Finished(None))) => {
                    let reason = "the call ran, but its report is no longer stored here";
                    self.end_without_run(&handle, TaskState::Failed, reason).await;
                }
                Some((_, IntentState::Escalated)) => {
                    if !record.is_prompting() {
                        self.restore_prompt(&handle).await;
                    }
                    self.follow(handle);
                }
                Some((_, IntentState::Queued | IntentState::Running)) => self.follow(handle),
                // The fleet stores its call as waiting.
                None if may_wait => self.follow(handle),
                None => match self.executor.queries.denial_in_fleet(handle.id).await? {
                    Some(denial) => self.end_denied(&handle, &denial).await,
                    None if record.is_prompting() => {
                        let reason = "the call was not approved in time";
                        self.end_without_run(&handle, TaskState::Rejected, reason).await;
                    }
                    None => {
                        let reason = "the executor ended before the tool ran: send the call again";
                        self.end_without_run(&handle, TaskState::Failed, reason).await;
                    }
                },
            }
        }
        Ok(())
    }

    /// Waits for the end of a task in a tokio task of its own.
    fn follow(self: &Arc<Self>, handle: Arc<TaskHandle>) {
        let follower = Arc::clone(self);
        self.executor.session_tasks().spawn(async move { follower.await_end(&handle, None).await });
    }

    /// Like [`Self::prompt`], for an escalation that an earlier process did not record. The prompt then has no reason.
    async fn restore_prompt(&self, handle: &TaskHandle) {
        let verdict = Verdict {
            decision: a2g_types::verdict::Decision::Escalate,
            intent: handle.id,
            risk: None,
            manifest: a2g_types::verdict::Manifest::default(),
            conditions: Vec::new(),
            expires_at: None,
            reason: None,
            rationale: a2g_types::verdict::Rationale::default(),
        };
        self.prompt(handle, &verdict).await;
    }
}
