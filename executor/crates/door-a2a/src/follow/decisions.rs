//! What callers decide about a task of this node: its cancellation, and the answer to its permission prompt.

use super::Follower;
use crate::record::TaskRecord;
use crate::tasks::TaskHandle;
use a2g_core::run::{DirectiveOutcome, IntentState, all_agents};
use a2g_govern::{Caller, DecisionRight};
use a2g_http::staged::staged_state;
use a2g_types::failure_message;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::verdict::Directive;
use a2g_wire::a2a::fault::Problem;
use a2g_wire::a2a::governance::PermissionAnswer;
use a2g_wire::a2a::message::TaskState;
use a2g_wire::staged::changes_of;
use std::sync::Arc;
use std::time::Duration;

/// The member of a message that answers a permission prompt.
const ANSWER: &str = "/permissionOptionId";
const NOT_PENDING: &str = "no permission prompt of this task is pending";
const ABOUT_CALL: &str = "the prompt is about the call, which has not run: send `approved` or `denied`";
const ABOUT_CHANGES: &str = "the call has run, and the prompt is about its file changes, which are in the task's artifact \
                             `changes`: send `commit` or `discard`";
/// Maximum wait for the end of a canceled run before `tasks/cancel` is answered.
pub(crate) const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks that a task was canceled: it may have ended in another way just before.
pub(crate) fn check_canceled(state: TaskState) -> Result<(), Problem> {
    match state {
        TaskState::Completed | TaskState::Failed | TaskState::Rejected => Err(Problem::NotCancelable(state)),
        TaskState::Canceled | TaskState::Submitted | TaskState::Working | TaskState::InputRequired => Ok(()),
    }
}

impl Follower {
    /// Cancels a task. Returns its record once it has ended, or after [`CANCEL_TIMEOUT`].
    pub(crate) async fn cancel(
        &self,
        caller: &Caller,
        handle: &TaskHandle,
    ) -> Result<Arc<TaskRecord>, Problem> {
        let now = self.executor.clock().now();
        let canceled = handle.try_change(|record| {
            if record.state() == TaskState::InputRequired && !record.is_prompting() {
                return Ok(vec![record.set_state(TaskState::Canceled, Vec::new(), now)]);
            }
            Err(record.state())
        });
        match canceled {
            Ok(pending_write) => handle.finish_write(pending_write).await,
            Err(state) if state.is_terminal() => return Err(Problem::NotCancelable(state)),
            Err(_runs) => {
                let refusal = handle.record().refusal();
                handle.stop(caller.name());
                let end = tokio::time::timeout(CANCEL_TIMEOUT, handle.wait_until_ended()).await;
                if let Some(refusal) = refusal
                    && end.is_ok_and(|record| record.state() == TaskState::Canceled)
                {
                    self.record_canceled(caller, handle, refusal).await;
                }
            }
        }
        let record = handle.record();
        check_canceled(record.state()).map(|()| record)
    }

    /// Records the answer to a permission prompt that was pending when its task was canceled.
    async fn record_canceled(&self, caller: &Caller, handle: &TaskHandle, refusal: PermissionAnswer) {
        let now = self.executor.clock().now();
        handle
            .change(|record| {
                record.add_decision(&source(caller), refusal, now, "the task was canceled");
                Vec::new()
            })
            .await;
    }

    /// Answers the permission prompt of a task that the caller may read.
    pub(crate) async fn answer_prompt(
        &self,
        caller: &Caller,
        handle: &TaskHandle,
        answer: PermissionAnswer,
    ) -> Result<Arc<TaskRecord>, Problem> {
        // The task may be about to record an answer to the prompt that it still has.
        let _until_recorded = handle.directive.lock().await;
        let record = handle.record();
        // Whoever may read the task learns that there is nothing to answer, with or without the right to decide.
        if !record.is_prompting() {
            return Err(Problem::invalid(ANSWER, NOT_PENDING));
        }
        let Some(right) = caller.decision_right() else {
            let message = format!(
                "a permission prompt is for callers with the role `approver` or `governor`, and `{}` has neither",
                caller.name()
            );
            return Err(self.executor.refusals.refuse(None, BlockedBy::CallerUnauthorized, message).into());
        };
        match (record.asks_about_changes(), answer) {
            (false, PermissionAnswer::Approved | PermissionAnswer::Denied) => {
                self.decide_call(caller, right, handle, answer).await?;
            }
            (true, PermissionAnswer::Commit | PermissionAnswer::Discard) => {
                self.decide_changes(caller, right, handle, answer).await?;
            }
            (false, PermissionAnswer::Commit | PermissionAnswer::Discard) => {
                return Err(Problem::invalid(ANSWER, ABOUT_CALL));
            }
            // It may be a repeat of the answer about the call.
            (true, PermissionAnswer::Approved | PermissionAnswer::Denied) => {
                return Err(Problem::invalid(ANSWER, ABOUT_CHANGES));
            }
        }
        Ok(handle.record())
    }

    /// Answers the prompt about a call.
    async fn decide_call(
        &self,
        caller: &Caller,
        right: DecisionRight<'_>,
        handle: &TaskHandle,
        answer: PermissionAnswer,
    ) -> Result<(), Problem> {
        let approved = answer == PermissionAnswer::Approved;
        let directive = Directive { intent: handle.id, approved, manifest: None, reason: None, digest: None };
        tracing::info!(intent = %handle.id, approved, caller = caller.name(), "a permission was answered");
        let outcome = self.executor.operator.apply_directive(&directive, right).await.map_err(|fault| {
            let Fault::InvalidParams { message, pointer: _ } = fault else { return fault };
            Fault::invalid(ANSWER, message)
        })?;
        let now = self.executor.clock().now();
        handle
            .change(|record| {
                let summary = if approved { "approved by a person" } else { "denied by a person" };
                record.add_decision(&source(caller), answer, now, summary);
                if outcome == DirectiveOutcome::NeedsMoreApprovals {
                    // The prompt stays for the next person.
                    return Vec::new();
                }
                record.governance.pending_permissions.clear();
                if record.state() != TaskState::InputRequired {
                    return Vec::new();
                }
                if approved {
                    return vec![record.set_state(TaskState::Working, Vec::new(), now)];
                }
                record.end_without_run(TaskState::Rejected, summary, now)
            })
            .await;
        Ok(())
    }

    /// Answers the prompt about the file changes of a staged run. If they cannot take effect, the prompt stays.
    async fn decide_changes(
        &self,
        caller: &Caller,
        right: DecisionRight<'_>,
        handle: &TaskHandle,
        answer: PermissionAnswer,
    ) -> Result<(), Problem> {
        let Some((_, IntentState::Finished(Some(receipt)))) = self.executor.queries.status(handle.id).await?
        else {
            return Err(Problem::invalid(ANSWER, NOT_PENDING));
        };
        let Some(changes) = changes_of(&receipt) else {
            return Err(Problem::invalid(ANSWER, NOT_PENDING));
        };
        let is_commit = answer == PermissionAnswer::Commit;
        tracing::info!(intent = %handle.id, is_commit, caller = caller.name(), "a prompt about file changes was answered");
        let sets = &self.executor.changes;
        let decided = match is_commit {
            // The task has the list of these changes.
            true => sets.commit(handle.id, &changes.digest, right).await,
            false => sets.discard(handle.id, &all_agents, right.by()).await,
        };
        let decision = decided.map_err(|fault| {
            let Fault::InvalidRequest(message) = fault else { return fault };
            Fault::invalid(ANSWER, message)
        })?;
        if let Some(reason) = failure_message::describe(&decision.outcome) {
            return Err(Problem::invalid(ANSWER, &reason));
        }
        // If the journal is too busy to tell, the task ends as soon as it does.
        if let Some(state) = staged_state(&self.executor, &receipt).await {
            let now = self.executor.clock().now();
            let by = source(caller);
            handle.change(|record| record.end_with_changes(&receipt, Some(&state), Some(&by), now)).await;
        }
        Ok(())
    }
}

/// The caller as the `source` of a decision.
fn source(caller: &Caller) -> String {
    format!("caller:{}", caller.name())
}
