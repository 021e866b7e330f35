//! `tools/call`: the intent, the notifications of its run, and its end when the client gives it up.

use super::{McpDoor, RequestContext};
use crate::serve::protocol::check_call_agent;
use a2g_core::run::{Executor, IntentAnswer, RunEvent, RunEventSink};
use a2g_govern::Caller;
use a2g_types::call::{Call, Door, Priority};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::Progress;
use a2g_wire::mcp::decode::{ToolCall, intent_of};
use a2g_wire::mcp::fault::{CallFault, McpError, call_fault};
use a2g_wire::mcp::{ProgressToken, encode};
use parking_lot::Mutex;
use std::sync::Arc;

/// The total of a progress in percent.
const WHOLE: f64 = 100.0;

impl McpDoor {
    /// Sends the intent of a call, and encodes what became of it.
    pub(super) async fn call(&self, context: RequestContext, call: ToolCall) -> Result<String, McpError> {
        let encoder = context.encoder();
        let id = context.id.clone();
        let (intent, is_new) = intent_of(&context.meta);
        match self.send_intent(context, call, intent, is_new).await {
            Ok(IntentAnswer { verdict, receipt: Some(receipt) }) => {
                Ok(encoder.receipt(&id, &receipt, Some(&verdict)))
            }
            Ok(IntentAnswer { verdict, receipt: None }) => Ok(encoder.waiting(&id, &verdict)),
            Err(fault) => match call_fault(fault) {
                CallFault::Protocol(error) => Err(error),
                CallFault::Result(fault) => Ok(encoder.refusal(&id, &fault, intent)),
            },
        }
    }

    async fn send_intent(
        &self,
        context: RequestContext,
        ToolCall { tool, arguments }: ToolCall,
        intent: IntentId,
        is_new: bool,
    ) -> Result<IntentAnswer, Fault> {
        let tool = ToolName::parse(&tool).map_err(|error| Fault::invalid("/name", error.to_string()))?;
        let agent = self.settings.agent_of(Door::Mcp, &context.caller, None)?;
        let sink = notification_sink(&context, &tool);
        let call = Call {
            door: Door::Mcp,
            agent,
            intent,
            is_new,
            tool,
            arguments,
            context: None,
            caller_timeout: None,
            priority: Priority::Normal,
            charge: context.charge,
        };
        check_call_agent(&self.executor, &context.caller, &call)?;
        let guard = CancelGuard {
            executor: &self.executor,
            intent,
            agent: call.agent.clone(),
            caller: Arc::clone(&context.caller),
            is_armed: true,
        };
        let answer = self.executor.handle_intent(call, sink).await;
        guard.disarm();
        answer
    }
}

/// Cancels an intent when the request that waits for it is dropped.
struct CancelGuard<'a> {
    executor: &'a Arc<Executor>,
    intent: IntentId,
    agent: AgentDid,
    caller: Arc<Caller>,
    is_armed: bool,
}

impl CancelGuard<'_> {
    fn disarm(mut self) {
        self.is_armed = false;
    }
}

impl Drop for CancelGuard<'_> {
    fn drop(&mut self) {
        if !self.is_armed {
            return;
        }
        let (executor, intent) = (Arc::clone(self.executor), self.intent);
        let (agent, caller) = (self.agent.clone(), Arc::clone(&self.caller));
        self.executor.sessions().spawn(async move {
            let is_own = move |owner: &AgentDid| *owner == agent;
            if let Err(fault) = executor.cancel(intent, &is_own, caller.name()).await {
                tracing::warn!(%intent, ?fault, "the cancel of a call that its client gave up is not recorded yet");
            }
        });
    }
}

/// The sink that turns events of a run into the notifications that the request asked for.
fn notification_sink(context: &RequestContext, tool: &ToolName) -> RunEventSink {
    let Some(notifications) = context.notifications.clone() else { return RunEventSink::none() };
    let progress = context.meta.progress_token.clone().map(|token| Mutex::new(ProgressEncoder::new(token)));
    let (level, tool) = (context.log_level, tool.clone());
    if progress.is_none() && level.is_none() {
        return RunEventSink::none();
    }
    RunEventSink::new(move |event| {
        let text = match &event {
            RunEvent::Progress(report) => {
                progress.as_ref().and_then(|progress| progress.lock().encode(report))
            }
            RunEvent::Log(line) => {
                level.filter(|level| level.includes(line.level)).map(|_| encode::log_message(&tool, line))
            }
            // The answer has every artifact.
            RunEvent::Started | RunEvent::Artifact(_) => None,
        };
        if let Some(text) = text {
            // Never blocks the run. A client that does not read loses notifications, and no answer.
            let _unread = notifications.try_send(text);
        }
    })
}

/// Encodes the progress of a run. The protocol requires that the number rises with every notification.
struct ProgressEncoder {
    token: ProgressToken,
    last: Option<f64>,
    /// Reports without a percentage are counted, until the first one with a percentage.
    counts: bool,
}

impl ProgressEncoder {
    fn new(token: ProgressToken) -> Self {
        Self { token, last: None, counts: true }
    }

    fn encode(&mut self, report: &Progress) -> Option<String> {
        let Progress { percent, message } = report;
        let (progress, total) = match percent {
            Some(percent) => {
                if self.counts {
                    (self.counts, self.last) = (false, None);
                }
                (f64::from(*percent), Some(WHOLE))
            }
            None if self.counts => (self.last.unwrap_or(0.0) + 1.0, None),
            None => return None,
        };
        if self.last.is_some_and(|last| progress <= last) {
            return None;
        }
        self.last = Some(progress);
        Some(encode::progress(&self.token, progress, total, message))
    }
}
