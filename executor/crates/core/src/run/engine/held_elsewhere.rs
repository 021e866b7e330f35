//! Calls that wait for a person at another node, because this one lacks their tools. The person is shown the tool, and the
//! approval is bound to its module.
//!
//! ```text
//! the node that was asked                       a node with the tool
//! can the call wait at you?             ─▶
//!                                       ◀─      a challenge, if it has room
//! let the call wait, with the challenge ─▶      checks it, and lets it wait as if it had come here
//!                                       ◀─      `null`, once the fleet stores it, or the fault
//! ```
//! From then on, the call is found and decided like any other that waits at another node.

use super::admission::{check_arguments, check_memory};
use super::passing::too_large_fault;
use super::stored_calls::TakenOverCall;
use crate::run::faults::{busy_fault, intent_conflict_fault, refusal};
use crate::run::questions::{ASK_TIMEOUT, DECIDE_TIMEOUT, Peers, QuestionText};
use crate::run::waits::Held;
use crate::run::{Engine, Membership, faults::NodeFault};
use a2g_fleet::MAX_MESSAGE_BYTES;
use a2g_govern::Escalated;
use a2g_journal::content_hash;
use a2g_runtime::spawn;
use a2g_types::call::Call;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::stored;
use a2g_types::tool::Digest;
use a2g_types::verdict::Verdict;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::sync::Arc;
use tracing::Instrument as _;

/// The recorded reason for a call of another node that the fleet does not store.
const NOT_STORED: &str = "the fleet could not store its wait";
/// The maximum size of the module's digest, which the holding node adds to the text of a call.
const MODULE_BYTES: usize = 128;

/// The reason why a call does not wait at another node.
enum NotHeld {
    /// It waits at none because of this request.
    Refused(Fault),
    /// It may wait at one.
    Unknown(Fault),
}

impl NotHeld {
    fn into_fault(self) -> Fault {
        match self {
            Self::Refused(fault) | Self::Unknown(fault) => fault,
        }
    }
}

impl From<Fault> for NotHeld {
    fn from(fault: Fault) -> Self {
        Self::Refused(fault)
    }
}

/// The verdict of a call that waits for a person, as other nodes are told.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::run) struct PendingVerdict {
    /// The hash of the call's content.
    content: String,
    /// The verdict, as [`stored::write_verdict`] writes it.
    verdict: Box<RawValue>,
}

impl PendingVerdict {
    pub(in crate::run) fn new(escalated: &Escalated) -> serde_json::Result<Self> {
        let verdict = stored::write_verdict(escalated.verdict()).and_then(RawValue::from_string)?;
        Ok(Self { content: Digest(content_hash(escalated.call())).to_string(), verdict })
    }
}

impl Peers {
    /// The verdict of a call whose intent waits for a person at another node; `None` if it waits at none.
    ///
    /// # Errors
    /// If the waiting intent has different content; [`Fault::Busy`] if a node does not answer.
    pub(in crate::run) async fn pending_elsewhere(&self, call: &Call) -> Result<Option<Verdict>, Fault> {
        if call.is_new {
            return Ok(None);
        }
        let waits = self.find_verdict_elsewhere(call.intent).await?;
        let Some(PendingVerdict { content, verdict }) = waits.and_then(|waits| waits.pending) else {
            return Ok(None);
        };
        if content != Digest(content_hash(call)).to_string() {
            return Err(intent_conflict_fault(call.intent));
        }
        stored::read_verdict(verdict.get()).map(Some).map_err(|error| Fault::Internal(error.to_string()))
    }

    async fn request_hold(&self, escalated: &Escalated) -> Result<(), NotHeld> {
        let call = escalated.call();
        let internal = |error: serde_json::Error| Fault::Internal(error.to_string());
        let text = escalated.to_journal().map_err(internal)?;
        // The message has the text in a string.
        let escapes = text.matches(['"', '\\']).count();
        if text.len() + escapes + MODULE_BYTES > MAX_MESSAGE_BYTES {
            return Err(too_large_fault(&call.tool).into());
        }
        let intent = call.intent;
        let question = QuestionText::CanHold { intent, agent: call.agent.clone(), tool: call.tool.clone() };
        let Some(challenge) = self.ask(&question, ASK_TIMEOUT).await? else {
            let message = "a person has to decide on the call, and no node can hold it now: each one that has its tool is \
                           at its maximum of waiting calls, is preparing the tool, is closing, or is of an earlier \
                           version";
            return Err(busy_fault(message).into());
        };
        let challenge = challenge.as_str().to_owned();
        let escalated = serde_json::from_str(&text).map_err(internal)?;
        let question = QuestionText::Hold { intent, challenge, escalated };
        // A node that is not yet known to run may answer after all known ones, or not in time.
        let answer = self.ask(&question, DECIDE_TIMEOUT).await.ok().flatten();
        match answer.and_then(|answer| serde_json::from_str::<Option<NodeFault>>(answer.as_str()).ok()) {
            Some(None) => Ok(()),
            Some(Some(fault)) => {
                let fault = fault.into_fault(intent);
                // Its wait may be stored nevertheless.
                let may_wait = matches!(fault, Fault::Busy { .. });
                Err(if may_wait { NotHeld::Unknown(fault) } else { NotHeld::Refused(fault) })
            }
            None => Err(NotHeld::Unknown(busy_fault(
                "a person has to decide on the call, and the node that was to hold it has not said whether it does: \
                 send the call again",
            ))),
        }
    }
}

impl Engine {
    /// Lets a call whose tool this node lacks wait for a person at a node that has the tool. `has_task` is `true` for the
    /// call of a task, which ends with the first fault.
    ///
    /// # Errors
    /// The refusal of that node; [`Fault::ToolUnavailable`] if the call cannot be passed on; [`Fault::Busy`] if no such
    /// node has room, or one does not answer: it may hold the call, unless nobody can send it again.
    pub(in crate::run) async fn hold_elsewhere(
        self: &Arc<Self>,
        escalated: Escalated,
        has_task: bool,
    ) -> Result<(), Fault> {
        // The call may wait at a node already, and a second one would hold it too.
        if self.peers.pending_elsewhere(escalated.call()).await?.is_some() {
            return Ok(());
        }
        // A cancellation denies a stored call, whichever node is about to hold it.
        if !self.stored_calls.add(escalated.call()) {
            return Err(busy_fault(
                "an earlier request with this intent is still in progress: repeat this one later",
            ));
        }
        let engine = Arc::clone(self);
        let request = async move {
            let call = escalated.call();
            let fault = match engine.peers.request_hold(&escalated).await {
                // Without the denial, the call could run although nobody can ask for it.
                Err(NotHeld::Unknown(fault)) if has_task || call.is_new => fault,
                held => match engine.stored_calls.remove_unless_stopped(call.intent) {
                    Some(reason) => refusal(call.intent, format!("{}, before it ran", reason.message())),
                    None => return held.map_err(NotHeld::into_fault),
                },
            };
            engine.deny_stored_call(call, fault).await.map(drop)
        };
        // The request goes on if its caller disconnects, so that a cancellation finds the call.
        let result = spawn::spawn_run_task(request.in_current_span()).await;
        let ended_early = |error| {
            Fault::Internal(format!("the task that passes a call on for a decision ended early: {error}"))
        };
        result.map_err(ended_early)?
    }
}

impl Membership {
    /// Returns `true` if a call of another node could wait for a person here.
    pub(in crate::run) fn can_hold_for_node(&self, tool: &ToolName, agent: &AgentDid) -> bool {
        self.passing.is_enabled
            && !self.slots.is_closed()
            && self.catalogue.current().usable_tool(tool).is_some()
            && self.intents.has_room(agent)
    }

    /// Lets a call of another node, which lacks its tool, wait for a person here.
    pub(in crate::run) async fn hold_for_node(&self, escalated: Escalated) -> Result<(), Fault> {
        let call = escalated.call();
        check_memory()?;
        if !escalated.is_pending(self.clock.now()) {
            return Err(Fault::Refused {
                intent: Some(call.intent),
                risk_score: escalated.risk_score(),
                blocked_by: BlockedBy::VerdictExpired,
                message: "the verdict expired before the call could wait at the node that has its tool"
                    .to_owned(),
            });
        }
        let loaded = self.catalogue.find(call)?;
        check_arguments(&loaded, call).await?;
        let intent = call.intent;
        self.taken_over.add(intent, TakenOverCall::from(call));
        let is_new = match self.stored_waits.hold(escalated, &loaded).await? {
            Held::New => true,
            Held::Known => {
                // An earlier request may still be storing its wait.
                self.stored_waits.store_new_wait(intent).await;
                false
            }
            // The node that asks finds the run in the fleet.
            Held::Started(_) => {
                return Err(busy_fault("the intent has started in the meantime: send it again"));
            }
        };
        let is_stored = self.node.fleet().is_some_and(|fleet| fleet.waits.is_stored(intent));
        // A call that is no longer held was decided or ended meanwhile, which its caller finds out as of any wait.
        if is_stored || (is_new && !self.intents.is_held(intent)) {
            return Ok(());
        }
        if is_new {
            self.waits.withdraw_undecided(intent, NOT_STORED).await;
            if self.intents.is_held(intent) {
                // Somebody is deciding on it.
                return Ok(());
            }
        }
        Err(busy_fault(
            "the call cannot wait for a person now, because the servers of the fleet have not stored its wait: send the \
             call again",
        ))
    }
}
