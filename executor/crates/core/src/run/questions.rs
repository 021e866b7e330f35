//! Questions between the nodes of a fleet: which one has a tool, an intent that waits for a person, a document, or a page
//! of the console.
//!
//! ```text
//! question                                    answer
//! does INTENT wait at you?                    its agent, its verdict if it waits for a person, and a challenge
//! decide on INTENT, with the challenge        the effect, or the fault
//! end the wait of INTENT, with the challenge  whether it waited
//! do you have the document ID?                the document
//! what does your console show CALLER?         its answer; it may also decide, with a challenge
//! do you run calls with the tool NAME?        an empty text
//! can a call wait for a person at you?        a challenge
//! let the call wait, with the challenge       `null`, or the fault
//! ```
//! A decision is made by the node at which the intent waits, under its own list of callers. A challenge is good for one
//! use: a copy of an earlier message decides nothing, and lets nothing wait.

use super::engine::held_elsewhere::PendingVerdict;
use super::faults::{NodeFault, busy_fault};
use super::fleet::{Fleet, Node, subscribe};
use super::operator::decisions::DirectiveOutcome;
use super::orders::EndKind;
use super::{AgentFilter, IntentState, Membership, trace};
use a2g_fleet::Question;
use a2g_govern::{Caller, DecisionRight, Escalated};
use a2g_journal::IntentSummary;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::node::{NodeName, NodeText};
use a2g_types::stop::OperatorReason;
use a2g_types::stored::v1;
use a2g_types::tool::Digest;
use a2g_types::verdict::{Directive, Manifest};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tracing::Instrument as _;
use uuid::Uuid;

/// The time in which the nodes reply to a question.
pub(super) const ASK_TIMEOUT: Duration = Duration::from_secs(3);
/// The time in which the node at which an intent waits makes a decision.
pub(super) const DECIDE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two requests for the end of a call that waits for a slot.
const END_INTERVAL: Duration = Duration::from_millis(50);
/// The time after a challenge in which it can be used.
const CHALLENGE_LIFE: Duration = Duration::from_secs(60);

/// Reads a document by its id, in the form that other nodes get.
type DocumentReader = dyn Fn(IntentId) -> BoxFuture<'static, Option<String>> + Send + Sync;

/// Answers the question of another node's console.
type ConsoleResponder = dyn Fn(ConsoleQuestion) -> BoxFuture<'static, Option<String>> + Send + Sync;

/// A question of another node's console.
#[derive(Debug)]
pub struct ConsoleQuestion {
    /// The person at the other console, with the rights that the list of callers of this node gives them.
    pub caller: Arc<Caller>,
    /// As it was passed to [`Peers::ask_consoles`].
    pub text: String,
    /// The intent on which the question may decide, once; `None` if it may only read.
    pub may_decide: Option<IntentId>,
}

/// What answers the questions of other nodes, and the challenges of intents that wait here.
pub(super) struct Answers {
    /// The readers of documents, by the kind of document.
    documents: Mutex<HashMap<String, Arc<DocumentReader>>>,
    console: OnceLock<Box<ConsoleResponder>>,
    challenges: Challenges,
}

/// The challenges of intents that wait here. They are not stored before they are used, so that no number of questions
/// displaces one.
struct Challenges {
    secret: Uuid,
    /// The used ones that could be used still, with the times at which they were made.
    used: Mutex<Vec<(String, Instant)>>,
    started_at: Instant,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "question", rename_all = "snake_case")]
pub(super) enum QuestionText {
    Waits {
        intent: IntentId,
        #[serde(default)]
        with_verdict: bool,
    },
    Decide {
        intent: IntentId,
        challenge: String,
        approved: bool,
        manifest: Option<Box<NodeManifest>>,
        reason: Option<String>,
        /// Read by [`a2g_govern::Callers::caller_from_node`].
        author: Value,
    },
    EndWait {
        intent: IntentId,
        challenge: String,
        by: String,
        kind: EndKind,
    },
    Document {
        kind: String,
        id: IntentId,
    },
    HasTool {
        tool: String,
    },
    CanHold {
        intent: IntentId,
        agent: AgentDid,
        tool: ToolName,
    },
    Hold {
        intent: IntentId,
        challenge: String,
        /// Read by [`Escalated::from_question`].
        escalated: Value,
    },
    Console {
        text: String,
        /// The intent on which the question decides, and the challenge.
        decides: Option<(IntentId, String)>,
        /// Read by [`a2g_govern::Callers::caller_from_node`].
        caller: Value,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NodeManifest(#[serde(with = "v1::Manifest")] Manifest);

/// The answer to [`QuestionText::Waits`]: the intent waits at the node that answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WaitsElsewhere {
    agent: AgentDid,
    challenge: String,
    /// `true` if the intent waits for a slot, `false` if it waits for a person.
    // Nodes of an earlier version answer only for the latter.
    #[serde(default)]
    is_queued: bool,
    /// Only if the question asks for it, and the intent waits for a person.
    #[serde(default)]
    pub(super) pending: Option<PendingVerdict>,
}

/// The answer to [`QuestionText::Decide`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decided {
    Applied,
    NeedsMoreApprovals,
    // Untagged, so that a fault has the same form as from a node of an earlier version.
    #[serde(untagged)]
    Fault(NodeFault),
}

impl Decided {
    fn from_result(result: Result<DirectiveOutcome, Fault>) -> Self {
        match result {
            Ok(DirectiveOutcome::Applied) => Self::Applied,
            Ok(DirectiveOutcome::NeedsMoreApprovals) => Self::NeedsMoreApprovals,
            Err(fault) => Self::Fault(NodeFault::new(fault)),
        }
    }

    fn into_result(self, intent: IntentId) -> Result<DirectiveOutcome, Fault> {
        match self {
            Self::Applied => Ok(DirectiveOutcome::Applied),
            Self::NeedsMoreApprovals => Ok(DirectiveOutcome::NeedsMoreApprovals),
            Self::Fault(fault) => Err(fault.into_fault(intent)),
        }
    }
}

impl Answers {
    pub(super) fn new(now: Instant) -> Self {
        let challenges = Challenges { secret: Uuid::new_v4(), used: Mutex::default(), started_at: now };
        Self { documents: Mutex::default(), console: OnceLock::new(), challenges }
    }
}

impl Challenges {
    fn make(&self, intent: IntentId, now: Instant) -> String {
        let made_at = now.saturating_duration_since(self.started_at).as_millis();
        let text = format!("{made_at}.{}", Uuid::new_v4());
        format!("{text}.{}", self.code(intent, &text))
    }

    fn code(&self, intent: IntentId, text: &str) -> Digest {
        let secret = self.secret;
        Digest::compute(format!("{secret}.{intent}.{text}.{secret}").as_bytes())
    }

    /// Uses a challenge up. Returns `false` if it was not made for the intent, is too old, or was used before.
    fn use_up(&self, intent: IntentId, challenge: &str, now: Instant) -> bool {
        let Some((text, code)) = challenge.rsplit_once('.') else { return false };
        if self.code(intent, text).to_string() != code {
            return false;
        }
        let made_at = text.split_once('.').and_then(|(made_at, _)| made_at.parse().ok());
        let made_at = made_at.and_then(|millis| self.started_at.checked_add(Duration::from_millis(millis)));
        let age = |at: &Instant| now.checked_duration_since(*at);
        let is_current = |at: &Instant| age(at).is_some_and(|age| age < CHALLENGE_LIFE);
        let Some(made_at) = made_at.filter(is_current) else { return false };
        let mut used = self.used.lock();
        used.retain(|(_, made_at)| is_current(made_at));
        let is_new = used.iter().all(|(known, _)| known != challenge);
        if is_new {
            used.push((challenge.to_owned(), made_at));
        }
        is_new
    }
}

/// The questions of this node to the others of its fleet. Without a fleet, nobody answers.
pub struct Peers {
    node: Arc<Node>,
    answers: Arc<Answers>,
}

impl Peers {
    pub(super) fn new(node: Arc<Node>, answers: Arc<Answers>) -> Self {
        Self { node, answers }
    }

    /// Answers questions of other nodes for documents of a kind with the results of `read`; `None` if there is no such
    /// document.
    pub fn share_documents(
        &self,
        kind: &str,
        read: impl Fn(IntentId) -> BoxFuture<'static, Option<String>> + Send + Sync + 'static,
    ) {
        self.answers.documents.lock().insert(kind.to_owned(), Arc::new(read));
    }

    /// Asks the other nodes for a document; `None` if none of them has it.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub async fn find_document(&self, kind: &str, id: IntentId) -> Result<Option<String>, Fault> {
        let question = QuestionText::Document { kind: kind.to_owned(), id };
        let answer = self.ask(&question, ASK_TIMEOUT).await?;
        Ok(answer.map(|answer| answer.as_str().to_owned()))
    }

    /// Answers questions of other nodes' consoles with the results of `respond`; `None` if this node has nothing of what
    /// the question names. Only the first call has an effect.
    pub fn answer_consoles(
        &self,
        respond: impl Fn(ConsoleQuestion) -> BoxFuture<'static, Option<String>> + Send + Sync + 'static,
    ) {
        drop(self.answers.console.set(Box::new(respond)));
    }

    /// Asks the consoles of the other nodes on behalf of a caller. `decides` is the intent on which the question
    /// decides. Returns `None` if no node has an answer, if that intent waits at no other node, or if
    /// [`Caller::to_node`] has no form for the caller.
    ///
    /// # Errors
    /// If the fleet cannot be reached, or a node does not answer in time: it may have decided.
    pub async fn ask_consoles(
        &self,
        caller: &Caller,
        text: String,
        decides: Option<IntentId>,
    ) -> Result<Option<String>, Fault> {
        let Some(caller) = caller.to_node() else { return Ok(None) };
        let answer = match decides {
            None => {
                let question = QuestionText::Console { text, decides: None, caller };
                self.ask(&question, ASK_TIMEOUT).await?
            }
            Some(intent) => {
                let Some(WaitsElsewhere { challenge, is_queued: false, agent: _, pending: _ }) =
                    self.find_waiting_elsewhere(intent).await?
                else {
                    return Ok(None);
                };
                let question = QuestionText::Console { text, decides: Some((intent, challenge)), caller };
                let answer = self.ask(&question, DECIDE_TIMEOUT).await;
                answer.map_err(|_fault| undecided_fault())?
            }
        };
        Ok(answer.map(|answer| answer.as_str().to_owned()))
    }

    /// As [`Self::ask_consoles`], with a question to which every node may have an answer. Returns the answers, and `true`
    /// if all nodes that are known to run have given one.
    ///
    /// # Errors
    /// If the fleet cannot be reached.
    pub async fn ask_all_consoles(
        &self,
        caller: &Caller,
        text: String,
    ) -> Result<(HashMap<NodeName, String>, bool), Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok((HashMap::new(), true)) };
        let Some(caller) = caller.to_node() else { return Ok((HashMap::new(), true)) };
        let question = to_text(&QuestionText::Console { text, decides: None, caller })?;
        let asked = fleet.messages.ask_all(&question, ASK_TIMEOUT).await;
        let (answers, is_complete) = asked.map_err(|error| self.node.fleet_fault(&error))?;
        let answers = answers.into_iter().map(|(node, answer)| (node, answer.as_str().to_owned()));
        Ok((answers.collect(), is_complete))
    }

    /// The agent and the state of an intent that waits for a person or a slot at another node, or for a person at one that
    /// does not run.
    ///
    /// # Errors
    /// If the fleet cannot be reached, or a node does not answer.
    pub async fn status_of_waiting_elsewhere(
        &self,
        intent: IntentId,
    ) -> Result<Option<(AgentDid, IntentState)>, Fault> {
        match self.find_waiting_elsewhere(intent).await? {
            Some(WaitsElsewhere { agent, is_queued: true, .. }) => Ok(Some((agent, IntentState::Queued))),
            Some(WaitsElsewhere { agent, is_queued: false, .. }) => Ok(Some((agent, IntentState::Escalated))),
            None => {
                let orphan = self.node.find_orphan(intent).await?;
                Ok(orphan.map(|escalated| (escalated.call().agent.clone(), IntentState::Escalated)))
            }
        }
    }

    async fn find_waiting_elsewhere(&self, intent: IntentId) -> Result<Option<WaitsElsewhere>, Fault> {
        self.ask_who_holds(intent, false).await
    }

    /// The answer of the node at which an intent waits, with the verdict if it waits for a person.
    pub(super) async fn find_verdict_elsewhere(
        &self,
        intent: IntentId,
    ) -> Result<Option<WaitsElsewhere>, Fault> {
        self.ask_who_holds(intent, true).await
    }

    async fn ask_who_holds(
        &self,
        intent: IntentId,
        with_verdict: bool,
    ) -> Result<Option<WaitsElsewhere>, Fault> {
        let answer = self.ask(&QuestionText::Waits { intent, with_verdict }, ASK_TIMEOUT).await?;
        Ok(answer.and_then(|answer| serde_json::from_str(answer.as_str()).ok()))
    }

    pub(super) async fn ask(
        &self,
        question: &QuestionText,
        timeout: Duration,
    ) -> Result<Option<NodeText>, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(None) };
        fleet.messages.ask(&to_text(question)?, timeout).await.map_err(|error| self.node.fleet_fault(&error))
    }

    /// Passes a directive on to the node at which its intent waits. Returns `None` if the intent waits at no other
    /// node, or the author has no entry in a list.
    pub(super) async fn decide_elsewhere(
        &self,
        directive: &Directive,
        right: &DecisionRight<'_>,
    ) -> Result<Option<DirectiveOutcome>, Fault> {
        let Directive { intent, approved, manifest, reason } = directive;
        let Some(author) = right.to_node() else { return Ok(None) };
        let Some(WaitsElsewhere { challenge, is_queued: false, agent: _, pending: _ }) =
            self.find_waiting_elsewhere(*intent).await?
        else {
            return match self.node.find_orphan(*intent).await? {
                Some(_waits) => Err(busy_fault(
                    "the intent waits at a node that does not run: send the decision again once that node runs, or another \
                     one with the same module of its tool has taken the intent over",
                )),
                None => Ok(None),
            };
        };
        let question = QuestionText::Decide {
            intent: *intent,
            challenge,
            approved: *approved,
            manifest: manifest.clone().map(NodeManifest).map(Box::new),
            reason: reason.as_ref().map(ToString::to_string),
            author,
        };
        let answer = self.ask(&question, DECIDE_TIMEOUT).await.ok().flatten();
        match answer.and_then(|answer| serde_json::from_str::<Decided>(answer.as_str()).ok()) {
            Some(decided) => decided.into_result(*intent).map(Some),
            None => Err(undecided_fault()),
        }
    }

    /// Ends the waits of an intent at all other nodes, for a person or a slot, if `filter` selects its agent, also at those
    /// that do not run. Returns `false` if it waits at none.
    pub(super) async fn end_waiting_elsewhere(
        &self,
        intent: IntentId,
        filter: AgentFilter<'_>,
        by: &str,
        kind: EndKind,
    ) -> Result<bool, Fault> {
        let mut has_ended = false;
        while let Some(WaitsElsewhere { agent, challenge, is_queued, pending: _ }) =
            self.find_waiting_elsewhere(intent).await?
            && filter(&agent)
        {
            let question = QuestionText::EndWait { intent, challenge, by: by.to_owned(), kind };
            let answer = self.ask(&question, DECIDE_TIMEOUT).await.ok().flatten();
            match answer.and_then(|answer| serde_json::from_str(answer.as_str()).ok()) {
                Some(true) => {
                    has_ended = true;
                    if is_queued {
                        // The call ends in a moment, and another node may have it too.
                        tokio::time::sleep(END_INTERVAL).await;
                    }
                }
                Some(false) => break,
                None => {
                    let message =
                        "the node at which the intent waits was told to end it, and has not answered";
                    return Err(busy_fault(message));
                }
            }
        }
        if has_ended {
            return Ok(true);
        }
        self.node.end_stored_wait(intent, filter, kind.reason()).await
    }
}

impl Membership {
    /// Answers the questions of other nodes, until the sessions end.
    pub(super) async fn answer_questions(self: Arc<Self>, fleet: Arc<Fleet>) {
        let mut questions = subscribe(|| fleet.messages.questions()).await;
        while let Some(question) = questions.next().await {
            let member = Arc::clone(&self);
            let fleet = Arc::clone(&fleet);
            self.sessions.spawn(async move {
                let answer = member.find_answer(&question).await;
                if let Err(error) = fleet.messages.reply_to_question(question, answer).await {
                    tracing::debug!(%error, "the reply to a question was not sent");
                }
            });
        }
    }

    async fn find_answer(self: &Arc<Self>, question: &Question) -> Option<String> {
        match serde_json::from_str(question.text().as_str()).ok()? {
            QuestionText::Waits { intent, with_verdict } => self.find_wait(intent, with_verdict),
            QuestionText::Decide { intent, challenge, approved, manifest, reason, author: _ } => {
                if !self.answers.challenges.use_up(intent, &challenge, self.clock.monotonic()) {
                    return None;
                }
                let reason = reason.map(|reason| OperatorReason::parse(&reason)).transpose().ok()?;
                let manifest = manifest.map(|manifest| manifest.0);
                let directive = Directive { intent, approved, manifest, reason };
                let decided = self.decide_for_node(&directive, question.text()).await;
                serde_json::to_string(&Decided::from_result(decided)).ok()
            }
            QuestionText::EndWait { intent, challenge, by, kind } => {
                if !self.answers.challenges.use_up(intent, &challenge, self.clock.monotonic()) {
                    return None;
                }
                // Without an answer, the other node does not know the effect.
                let is_ended = self.operator.end_here(intent, &by, kind).await.ok()?;
                serde_json::to_string(&is_ended).ok()
            }
            QuestionText::HasTool { tool } => {
                // A tool that is being compiled counts: the call waits until it is ready.
                let may_take = self.passing.is_enabled && self.catalogue.tool_names().contains(&tool);
                may_take.then(String::new)
            }
            QuestionText::CanHold { intent, agent, tool } => {
                let can_hold = self.can_hold_for_node(&tool, &agent);
                can_hold.then(|| self.answers.challenges.make(intent, self.clock.monotonic()))
            }
            QuestionText::Hold { intent, challenge, escalated: _ } => {
                if !self.answers.challenges.use_up(intent, &challenge, self.clock.monotonic()) {
                    return None;
                }
                self.hold_as_asked(intent, question.text()).await
            }
            QuestionText::Document { kind, id } => {
                let read = self.answers.documents.lock().get(&kind).cloned()?;
                read(id).await
            }
            QuestionText::Console { text, decides, caller: _ } => {
                let now = self.clock.monotonic();
                let is_current = |(intent, challenge): &(IntentId, String)| {
                    self.answers.challenges.use_up(*intent, challenge, now)
                };
                if !decides.as_ref().is_none_or(is_current) {
                    return None;
                }
                let caller =
                    self.policies.callers().load().caller_from_node(question.text(), self.clock.now())?;
                let may_decide = decides.map(|(intent, _challenge)| intent);
                self.answers.console.get()?(ConsoleQuestion { caller, text, may_decide }).await
            }
        }
    }

    /// The answer to [`QuestionText::Waits`].
    fn find_wait(&self, intent: IntentId, with_verdict: bool) -> Option<String> {
        let now = self.clock.now();
        let copy =
            |escalated: &Escalated| (escalated.call().agent.clone(), with_verdict.then(|| escalated.clone()));
        let held = self.intents.read(|intents| intents.waits.visible_call(intent, now).map(copy));
        let is_queued = held.is_none();
        let (agent, escalated) = match held {
            Some(held) => held,
            None => {
                let agent = self.intents.agent_of_run(intent);
                (agent.or_else(|| self.stored_calls.agent_of(intent))?, None)
            }
        };
        let pending = escalated.as_ref().map(PendingVerdict::new).transpose().ok()?;
        let challenge = self.answers.challenges.make(intent, self.clock.monotonic());
        serde_json::to_string(&WaitsElsewhere { agent, challenge, is_queued, pending }).ok()
    }

    /// Lets the call of a [`QuestionText::Hold`] wait here, if it is the one of `intent`.
    async fn hold_as_asked(&self, intent: IntentId, question: &NodeText) -> Option<String> {
        let escalated = Escalated::from_question(question).ok()?;
        let call = escalated.call();
        if call.intent != intent {
            return None;
        }
        let span = trace::intent_span(&IntentSummary::from_call(call), call.door);
        let held = self.hold_for_node(escalated).instrument(span).await;
        serde_json::to_string(&held.err().map(NodeFault::new)).ok()
    }

    async fn decide_for_node(
        self: &Arc<Self>,
        directive: &Directive,
        decision: &NodeText,
    ) -> Result<DirectiveOutcome, Fault> {
        if let Some(right) = self.policies.governor().decision_right_from_node(decision) {
            return self.operator.decide(directive, right, None).await;
        }
        let caller = self.policies.callers().load().caller_from_node(decision, self.clock.now());
        let right = caller.as_ref().and_then(|caller| caller.decision_right());
        match right {
            Some(right) => self.operator.decide(directive, right, None).await,
            None => Err(Fault::Refused {
                intent: Some(directive.intent),
                risk_score: None,
                blocked_by: BlockedBy::CallerUnauthorized,
                message: "neither the list of callers (`server.callers`) nor the governor of the node at which the \
                          intent waits lets the sender decide: give all nodes the same list and the same governor"
                    .to_owned(),
            }),
        }
    }
}

fn to_text(question: &QuestionText) -> Result<String, Fault> {
    serde_json::to_string(question).map_err(|error| Fault::Internal(error.to_string()))
}

/// The fault for a decision about which the node at which the intent waits has not answered.
fn undecided_fault() -> Fault {
    busy_fault(
        "the node at which the intent waits has not answered, and may have decided: ask for the state of the intent",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::clock::{Clock as _, SystemClock};

    #[test]
    fn a_challenge_is_good_for_one_decision_on_its_intent() {
        let now = SystemClock.monotonic();
        let challenges = Answers::new(now).challenges;
        let [intent, other] = [(); 2].map(|()| IntentId::random());
        let challenge = challenges.make(intent, now);
        assert!(!challenges.use_up(other, &challenge, now));
        assert!(!challenges.use_up(intent, &format!("9{challenge}"), now), "it was changed");
        let text = format!("{}.x", u64::MAX);
        let far = format!("{text}.{}", challenges.code(intent, &text));
        assert!(!challenges.use_up(intent, &far, now), "its time has not come");
        assert!(challenges.use_up(intent, &challenge, now));
        assert!(!challenges.use_up(intent, &challenge, now), "it was used");
        let late = challenges.make(intent, now);
        assert!(!challenges.use_up(intent, &late, now + CHALLENGE_LIFE), "it is too old");
        assert!(challenges.use_up(intent, &late, now + CHALLENGE_LIFE / 2));
        assert!(
            !Answers::new(now).challenges.use_up(intent, &challenges.make(intent, now), now),
            "of another process"
        );
    }
}
