//! A decision as a call without a guest, and the state of changes as the receipts of the decisions on them tell it.

use crate::run::effects::{RequestEnd, describe_ends};
use a2g_types::call::{Call, ParentRun, Priority};
use a2g_types::durability::Durability;
use a2g_types::fault::Fault;
use a2g_types::ident::{IntentId, ToolName};
use a2g_types::json::JsonText;
use a2g_types::limit::{Bound, FileEffects, Layer};
use a2g_types::memory::Charge;
use a2g_types::outcome::{
    ChangeState, DecisionAct, End, Outcome, Receipt, RunMetrics, RunOutput, Status, Usage,
};
use a2g_types::verdict::Rationale;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// One decision, as a call without a guest.
pub(super) struct Decision {
    pub(super) call: Call,
    by: String,
    /// The limits of the run whose changes it is about.
    usage: Usage,
    /// The result if it takes effect, without the ends of requests.
    result: Map<String, Value>,
}

impl Decision {
    /// The decision with this number, from 1, among those on the changes of a run.
    pub(super) fn new(staged: &Receipt, act: DecisionAct, by: &str, number: u32) -> Result<Self, Fault> {
        let internal = |error: &dyn std::fmt::Display| Fault::Internal(error.to_string());
        let tool = ToolName::parse(act.tool()).map_err(|error| internal(&error))?;
        let Receipt { agent, intent, door, outcome, .. } = staged;
        let calls = staged.calls.as_ref().map_or(0, |calls| calls.count);
        let ordinal = calls.saturating_add(number);
        let namespace =
            decisions_of(staged).ok_or_else(|| internal(&"these file changes allow no decision"))?;
        let changes = outcome.usage.changes.as_ref();
        let digest = changes.map(|changes| changes.digest.to_string());
        let mut arguments = Map::new();
        arguments.insert("intent".to_owned(), Value::from(intent.to_string()));
        arguments.insert("digest".to_owned(), Value::from(digest.clone()));
        let depth = staged.parent.as_ref().map_or(1, |parent| parent.depth.saturating_add(1));
        let parent = ParentRun { intent: *intent, tool: staged.tool.clone(), ordinal, depth };
        let call = Call {
            door: *door,
            agent: agent.clone(),
            intent: namespace.nested(number),
            is_new: true,
            tool,
            arguments,
            context: None,
            caller_timeout: None,
            priority: Priority::default(),
            charge: Charge::default(),
            parent: Some(parent),
            caller_tools: None,
            session: None,
        };
        let usage = Usage {
            effects: Bound { value: FileEffects::Direct, layer: Layer::Executor },
            changes: None,
            network_used: None,
            denied: Vec::new(),
            denied_truncated: false,
            start_memory_bytes: None,
            ..outcome.usage.clone()
        };
        let count = changes.map(|changes| changes.count);
        let result = Map::from_iter([
            ("changes".to_owned(), Value::from(count)),
            ("digest".to_owned(), Value::from(digest)),
        ]);
        Ok(Self { call, by: by.to_owned(), usage, result })
    }

    /// The end of a decision that has taken effect, after which the requests of the run have these ends.
    pub(super) fn success(&self, ends: &[RequestEnd]) -> End {
        let mut result = self.result.clone();
        if let Some(message) = describe_ends(ends) {
            result.insert("requests".to_owned(), json!(ends));
            result.insert("message".to_owned(), message.into());
        }
        End::Returned(JsonText::from(Value::from(result)))
    }

    /// The receipt of the decision with this end.
    pub(super) fn receipt(&self, durability: Durability, end: End, wall: Duration) -> Receipt {
        let Call { door, agent, intent, tool, parent, .. } = &self.call;
        Receipt {
            agent: agent.clone(),
            intent: *intent,
            tool: tool.clone(),
            door: *door,
            approved_by: Some(self.by.clone()),
            durability,
            parent: parent.clone(),
            calls: None,
            signature: None,
            session: None,
            rationale: Rationale::default(),
            outcome: Outcome {
                end,
                output: RunOutput::default(),
                metrics: RunMetrics { wall, ..RunMetrics::default() },
                usage: self.usage.clone(),
            },
        }
    }
}

/// The namespace of the intents of the decisions on a run's changes.
pub(super) fn decisions_of(receipt: &Receipt) -> Option<IntentId> {
    receipt.outcome.usage.changes.as_ref()?.decisions
}

/// `true` for a run whose changes were kept apart, and have taken effect or wait.
pub(super) fn has_set(receipt: &Receipt) -> bool {
    let kept_apart = receipt.outcome.usage.changes.as_ref().is_some_and(|changes| !changes.is_empty());
    let is_decision = DecisionAct::of_tool(receipt.tool.as_str()).is_some();
    kept_apart
        && !is_decision
        && match receipt.outcome.end.status() {
            Status::Success | Status::Staged => true,
            Status::Failure | Status::Timeout | Status::Aborted => false,
        }
}

/// The state of changes of which nothing is kept. Those that would wait are lost.
pub(super) fn state_without_folder(receipt: &Receipt, decisions: &[Arc<Receipt>]) -> ChangeState {
    match told_state(receipt, decisions) {
        ChangeState::Waiting => ChangeState::Discarded,
        state @ (ChangeState::Sending
        | ChangeState::InForce
        | ChangeState::Kept
        | ChangeState::Discarded
        | ChangeState::Undone) => state,
    }
}

/// The state of changes, as the decisions on them say. None says that requests are being sent.
pub(super) fn told_state(receipt: &Receipt, decisions: &[Arc<Receipt>]) -> ChangeState {
    let begins_with = match receipt.outcome.end.status() {
        Status::Staged => ChangeState::Waiting,
        Status::Success | Status::Failure | Status::Timeout | Status::Aborted => ChangeState::Kept,
    };
    let succeeded = decisions.iter().filter(|decision| decision.outcome.end.status() == Status::Success);
    succeeded.fold(begins_with, |state, decision| match DecisionAct::of_tool(decision.tool.as_str()) {
        Some(DecisionAct::Commit) => ChangeState::Kept,
        Some(DecisionAct::Discard) => ChangeState::Discarded,
        Some(DecisionAct::Undo) => ChangeState::Undone,
        None => state,
    })
}
