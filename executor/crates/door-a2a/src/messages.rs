//! The messages of callers: each begins a task, or continues one that waits for a message.

use super::push::{Push, add_webhook};
use super::record::TaskRecord;
use super::tasks::{TaskHandle, TaskStore};
use a2g_core::run::Executor;
use a2g_govern::Caller;
use a2g_http::conversations::{Conversation, ConversationCall, ConversationSessions};
use a2g_http::protocol::{DoorSettings, with_caller};
use a2g_types::call::{Call, Door, Priority};
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::memory::Charge;
use a2g_wire::a2a::decode::SendParams;
use a2g_wire::a2a::encode;
use a2g_wire::a2a::fault::Problem;
use a2g_wire::a2a::message::{Message, Part, TaskState};
use a2g_wire::a2a::push::PushConfig;
use std::sync::Arc;

/// Maximum number of messages of a task that waits for a message with a tool call.
const MAX_MESSAGES: usize = 100;
/// Maximum total size of these messages.
const MAX_HISTORY_BYTES: usize = 256 << 10;

const CALL_PROMPT: &str = "This executor runs tools. Send a `data` part {\"tool\": name, \"arguments\": {…}} with this \
                           `taskId`; the skills of the agent card are the tools.";

/// The time at which a message is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerTime {
    /// Once it is accepted.
    AtOnce,
    /// Once its task has settled.
    Settled,
}

/// A task that accepted a message, with the call to run.
pub(super) struct AcceptedMessage {
    pub(super) handle: Arc<TaskHandle>,
    pub(super) call: Option<AcceptedCall>,
}

/// A call to run.
pub(super) struct AcceptedCall {
    pub(super) call: Call,
    pub(super) in_conversation: ConversationCall,
}

/// Accepts messages in the name of the callers' agents.
pub(super) struct Messages {
    executor: Arc<Executor>,
    door: DoorSettings,
    store: Arc<TaskStore>,
    push: Arc<Push>,
    tool_sessions: Arc<ConversationSessions>,
}

impl Messages {
    pub(super) fn new(
        executor: Arc<Executor>,
        door: DoorSettings,
        store: Arc<TaskStore>,
        push: Arc<Push>,
        tool_sessions: Arc<ConversationSessions>,
    ) -> Self {
        Self { executor, door, store, push, tool_sessions }
    }

    /// The agent that owns the tasks of a caller.
    pub(super) fn agent_of(&self, caller: &Caller) -> Result<AgentDid, Problem> {
        let agent = self.door.agent_of(Door::A2a, caller, None)?;
        if caller.may_act_as(&agent) {
            return Ok(agent);
        }
        let message = format!("`{}` may not send intents in the name of `{agent}`", caller.name());
        Err(self.executor.refusals.refuse(None, BlockedBy::CallerUnauthorized, message).into())
    }

    /// Accepts a message for a new task or an existing one. Its call is charged to the share of the request.
    pub(super) async fn accept(
        &self,
        caller: &Caller,
        charge: &Charge,
        sent: SendParams,
        answered: AnswerTime,
    ) -> Result<AcceptedMessage, Problem> {
        let SendParams {
            mut message,
            call: tool_call,
            blocking: _,
            history: _,
            accepts,
            push: webhook,
            asks_for_session,
        } = sent;
        let push = webhook
            .map(|config| self.push.complete(*config, "/configuration/pushNotificationConfig/url"))
            .transpose()?;
        if !encode::is_output_accepted(&accepts) {
            let message = "results are `application/json` or `text/plain`: accept one of them".to_owned();
            return Err(Problem::ContentType(message));
        }
        let agent = self.agent_of(caller)?;
        let existing = match &message.task_id {
            Some(task) => Some(self.store.find_for(caller, task, &[]).await?),
            None => None,
        };
        let id = existing.as_ref().map_or_else(IntentId::random, |handle| handle.id);
        let owner = existing.as_ref().map_or(agent, |handle| handle.record().owner.clone());
        let call = match tool_call {
            None => None,
            Some(tool_call) => {
                let unchecked = Call {
                    door: Door::A2a,
                    agent: owner.clone(),
                    intent: id,
                    is_new: existing.is_none(),
                    tool: tool_call.tool.clone(),
                    arguments: tool_call.arguments.clone(),
                    context: None,
                    priority: Priority::Normal,
                    caller_timeout: tool_call.timeout,
                    charge: charge.clone(),
                    parent: None,
                    caller_tools: None,
                    session: None,
                };
                let call = with_caller(&self.executor, caller, unchecked)?;
                let checked = self.executor.engine.check_tool(&call).await;
                checked.map_err(|fault| tool_call.relocate_fault(fault))?;
                let context = match &existing {
                    Some(handle) => handle.record().task.context_id.clone(),
                    // A message without one begins a conversation of its own.
                    None => message.context_id.get_or_insert_with(|| IntentId::random().to_string()).clone(),
                };
                let conversation = Conversation::of(caller, &call, &context);
                let in_conversation = self.tool_sessions.find(conversation, &call, asks_for_session)?;
                let call = Call { session: in_conversation.session(), ..call };
                Some(AcceptedCall { call, in_conversation })
            }
        };
        let checked_call = call.as_ref().map(|accepted| &accepted.call);
        let handle = match existing {
            Some(handle) => self.continue_task(handle, message, checked_call, push).await?,
            None => self.create_task(id, owner, message, checked_call, push, answered).await?,
        };
        Ok(AcceptedMessage { handle, call })
    }

    async fn create_task(
        &self,
        id: IntentId,
        owner: AgentDid,
        message: Message,
        call: Option<&Call>,
        push: Option<PushConfig>,
        answered: AnswerTime,
    ) -> Result<Arc<TaskHandle>, Problem> {
        let now = self.executor.clock().now();
        if call.is_none() && !fits_history(&[&message]) {
            return Err(too_long_fault());
        }
        let mut record = TaskRecord::new(id, owner, message, now);
        record.webhooks.extend(push);
        match call {
            Some(call) => record.tool = Some(call.tool.clone()),
            None => {
                record.set_state(TaskState::InputRequired, vec![Part::text(CALL_PROMPT)], now);
            }
        }
        let handle = self.store.add(id, record)?;
        // If the message is answered only when the task settles, the task is written with its run, which saves a
        // transaction.
        if answered == AnswerTime::AtOnce || call.is_none() {
            handle.persist().await.map_err(Fault::from)?;
        }
        Ok(handle)
    }

    async fn continue_task(
        &self,
        handle: Arc<TaskHandle>,
        message: Message,
        call: Option<&Call>,
        push: Option<PushConfig>,
    ) -> Result<Arc<TaskHandle>, Problem> {
        let now = self.executor.clock().now();
        let pending_write = handle.try_change(|record| {
            check_accepts(record, &message)?;
            if let Some(push) = push {
                add_webhook(&mut record.webhooks, push)?;
            }
            let update = match call {
                Some(call) => {
                    record.tool = Some(call.tool.clone());
                    record.set_state(TaskState::Submitted, Vec::new(), now)
                }
                None => record.set_state(TaskState::InputRequired, vec![Part::text(CALL_PROMPT)], now),
            };
            let task_id = Some(record.task.id.clone());
            let context_id = Some(record.task.context_id.clone());
            record.task.history.push(Message { task_id, context_id, ..message });
            Ok::<_, Problem>(vec![update])
        })?;
        handle.finish_write(pending_write).await;
        Ok(handle)
    }
}

/// Checks that a task accepts this message in its current state.
fn check_accepts(record: &TaskRecord, message: &Message) -> Result<(), Problem> {
    let reject = |reason: String| Err(Problem::TakesNoMessage(reason));
    if message.context_id.as_ref().is_some_and(|context| *context != record.task.context_id) {
        return Err(Problem::ContextMismatch);
    }
    match record.state() {
        TaskState::InputRequired => {}
        state @ (TaskState::Completed | TaskState::Canceled | TaskState::Failed | TaskState::Rejected) => {
            return reject(format!("the task is {}: send a new message without a `taskId`", state.as_str()));
        }
        state @ (TaskState::Submitted | TaskState::Working) => {
            return reject(format!(
                "the task is {}, and accepts no message until it asks for one",
                state.as_str()
            ));
        }
    }
    if record.is_prompting() {
        return reject("a permission prompt is pending: answer it with `permissionOptionId`".to_owned());
    }
    if record.task.history.iter().any(|before| before.message_id == message.message_id) {
        return reject("a message with this `messageId` was sent before".to_owned());
    }
    let all = record.task.history.iter().chain([message]).collect::<Vec<_>>();
    if all.len() > MAX_MESSAGES || !fits_history(&all) {
        return reject(
            "the history of the task is too long: send a new message without a `taskId`".to_owned(),
        );
    }
    Ok(())
}

/// Returns `true` if these messages have at most [`MAX_HISTORY_BYTES`]. They are bounded because a waiting task stays
/// in memory without counting against its owner's share.
fn fits_history(messages: &[&Message]) -> bool {
    serde_json::to_string(messages).is_ok_and(|text| text.len() <= MAX_HISTORY_BYTES)
}

fn too_long_fault() -> Problem {
    let message = format!("a message that calls no tool has at most {MAX_HISTORY_BYTES} bytes");
    Fault::invalid("/params/message", message).into()
}
