//! Tasks: calls that go on after their request is answered. A task is an intent, so the journal has it, and it survives
//! a restart.

use super::approval::apply_answer;
use super::{McpDoor, RequestContext};
use a2g_core::run::IntentState;
use a2g_http::staged::staged_state;
use a2g_journal::Resolution;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::outcome::AbortReason;
use a2g_wire::mcp::elicit::{InputResponses, Question};
use a2g_wire::mcp::fault::McpError;
use a2g_wire::mcp::{Task, TaskStatus};
use a2g_wire::staged::StagedState;

impl McpDoor {
    /// `tasks/get`.
    pub(super) async fn get_task(
        &self,
        context: &RequestContext,
        task: IntentId,
    ) -> Result<String, McpError> {
        let status = self.task_status(context, task).await?;
        Ok(context.encoder().task(&context.id, &self.task(task, status)?))
    }

    /// `tasks/update`: the answers of a person. The task's new state is visible to the next `tasks/get`.
    pub(super) async fn update_task(
        &self,
        context: &RequestContext,
        task: IntentId,
        responses: InputResponses,
    ) -> Result<String, McpError> {
        self.task_status(context, task).await?;
        if let Some(answer) = responses.call
            && let Some((call, _)) = self.executor.queries.undecided_call(task)
        {
            let question = self.question(context, task);
            apply_answer(&self.executor, &context.caller, &call, question.as_ref(), answer).await?;
        }
        if let Some(answer) = responses.changes
            && let Some((_, IntentState::Finished(Some(receipt)))) =
                self.executor.queries.status(task).await?
            && let Some(reason) = self.decide_changes(&context.caller, &receipt, answer).await?
        {
            return Err(Fault::InvalidRequest(reason).into());
        }
        Ok(context.encoder().empty(&context.id))
    }

    /// `tasks/cancel`.
    pub(super) async fn cancel_task(
        &self,
        context: &RequestContext,
        task: IntentId,
    ) -> Result<String, McpError> {
        self.task_status(context, task).await?;
        let caller = &context.caller;
        let may_cancel = |agent: &AgentDid| caller.may_cancel(agent);
        // A task that has ended stays as it is.
        self.executor.operator.cancel(task, &may_cancel, caller.name()).await?;
        Ok(context.encoder().empty(&context.id))
    }

    /// The response to a call that goes on as a task.
    pub(super) fn created_task(
        &self,
        context: &RequestContext,
        task: IntentId,
        status: TaskStatus,
    ) -> Result<String, Fault> {
        Ok(context.encoder().created_task(&context.id, &self.task(task, status)?))
    }

    /// A task with its times. Without a journal on the disk, these are the present.
    pub(super) fn task(&self, intent: IntentId, status: TaskStatus) -> Result<Task, Fault> {
        let now = self.executor.clock().now();
        let records = self.executor.queries.intent_records(intent)?;
        let (created, updated) = records.map_or((now, now), |records| (records.created, records.updated));
        Ok(Task { intent, status, created, updated })
    }

    pub(super) async fn task_status(
        &self,
        context: &RequestContext,
        task: IntentId,
    ) -> Result<TaskStatus, Fault> {
        let caller = &context.caller;
        let found = self.executor.queries.status(task).await?;
        match found.filter(|(agent, _)| caller.may_read(agent)).map(|(_, state)| state) {
            Some(IntentState::Escalated) => Ok(self.waiting_status(context, task)),
            Some(IntentState::Queued | IntentState::Running) => Ok(TaskStatus::Running),
            Some(IntentState::Finished(Some(receipt))) => {
                match receipt.outcome.end.abort_reason() {
                    Some(AbortReason::Cancelled | AbortReason::Revoked | AbortReason::Stopped) => {
                        return Ok(TaskStatus::Cancelled);
                    }
                    Some(
                        AbortReason::Shutdown
                        | AbortReason::Lost
                        | AbortReason::LeaseLost
                        | AbortReason::ParentEnded,
                    )
                    | None => {}
                }
                let waiting = staged_state(&self.executor, &receipt).await.filter(StagedState::is_waiting);
                if let Some(state) = waiting
                    && let Some(question) = self.changes_question(context, &receipt, &state).await
                {
                    return Ok(TaskStatus::InputRequired(question));
                }
                let verdict = self.executor.queries.verdict(task)?;
                let digest = self.executor.queries.receipt_hash(task);
                let notice = self.staged_notice(&receipt, None).await;
                let encoder = context.encoder();
                let result = encoder.receipt_result(&receipt, verdict.as_ref(), digest, notice.as_ref());
                Ok(TaskStatus::Completed(result))
            }
            Some(IntentState::Finished(None)) => Err(unknown_task()),
            None => match self.ended_status(context, task) {
                Err(unknown) => match self.denied_status(context, task).await? {
                    Some(status) => Ok(status),
                    None => self.status_anywhere(context, task).await?.ok_or(unknown),
                },
                ended => ended,
            },
        }
    }

    /// The status of an intent that was denied, cancelled or revoked at another node; `None` for any other.
    async fn denied_status(
        &self,
        context: &RequestContext,
        task: IntentId,
    ) -> Result<Option<TaskStatus>, Fault> {
        let denied = self.executor.queries.denial_in_fleet(task).await?;
        let visible = denied.filter(|denied| context.caller.may_read(&denied.agent));
        Ok(visible.map(|denied| match denied.withdrawn_for {
            Some(AbortReason::Cancelled | AbortReason::Revoked) => TaskStatus::Cancelled,
            Some(_) | None => TaskStatus::Completed(context.encoder().refusal_result(&denied.fault, task)),
        }))
    }

    /// The status of an intent that waits for a person or a slot at another node of the fleet; `None` for any other.
    async fn status_anywhere(
        &self,
        context: &RequestContext,
        task: IntentId,
    ) -> Result<Option<TaskStatus>, Fault> {
        let found = self.executor.queries.status_anywhere(task).await?;
        let visible = found.filter(|(agent, _)| context.caller.may_read(agent));
        Ok(visible.map(|(_, state)| match state {
            IntentState::Escalated => self.waiting_status(context, task),
            IntentState::Queued | IntentState::Running | IntentState::Finished(_) => TaskStatus::Running,
        }))
    }

    fn waiting_status(&self, context: &RequestContext, task: IntentId) -> TaskStatus {
        // The intent is approved, and about to run.
        let Some((call, verdict)) = self.executor.queries.undecided_call(task) else {
            return TaskStatus::Running;
        };
        match self.question(context, task) {
            Some(question @ (Question::Decide | Question::OpenPage(_))) => {
                TaskStatus::InputRequired(question.elicitation(&call, &verdict, context.revision))
            }
            Some(Question::WaitForApprover) | None => TaskStatus::Waiting(self.decider),
        }
    }

    /// The status of an intent that neither runs nor ran.
    fn ended_status(&self, context: &RequestContext, task: IntentId) -> Result<TaskStatus, Fault> {
        let stored = self.executor.queries.intent_records(task)?;
        let records = stored.filter(|records| context.caller.may_read(&records.agent));
        match records.ok_or_else(unknown_task)?.resolution {
            Some(Resolution::Denied) => {
                let fault = self.executor.queries.denial(task)?.unwrap_or_else(unknown_task);
                Ok(TaskStatus::Completed(context.encoder().refusal_result(&fault, task)))
            }
            Some(Resolution::Cancelled | Resolution::Revoked | Resolution::Expired) => {
                Ok(TaskStatus::Cancelled)
            }
            // The intent is about to run, or has just ended its wait.
            Some(Resolution::PartlyApproved | Resolution::Approved) => Ok(TaskStatus::Running),
            None => Err(unknown_task()),
        }
    }
}

fn unknown_task() -> Fault {
    Fault::invalid("/taskId", "there is no such task, or the operator has removed it")
}
