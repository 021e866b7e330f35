//! Questions between the nodes of a fleet: which one has a tool or a call that waits for a slot, a document, or a page of
//! the console.
//!
//! ```text
//! question                               answer
//! does INTENT wait for a slot at you?    its agent
//! do you have the document ID?           the document
//! what does your console show CALLER?    its answer; it may also decide
//! do you run calls with the tool NAME?   its module, or the fault of the arguments
//! ```
//! A decision is a compare-and-set on what the person was shown, so a copy of an earlier question decides nothing.

use super::Membership;
use super::engine::checks::check_tool_arguments;
use super::faults::{NodeFault, busy_fault};
use super::fleet::{Fleet, Node, subscribe};
use a2g_fleet::Question;
use a2g_govern::Caller;
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::node::{NodeName, NodeText};
use a2g_types::tool::Digest;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The time in which the nodes reply to a question.
pub(super) const ASK_TIMEOUT: Duration = Duration::from_secs(3);
/// The time in which the console of another node makes a decision.
const DECIDE_TIMEOUT: Duration = Duration::from_secs(10);

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
}

/// The effect of a question to another node's console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionEffect {
    /// It is answered, and nothing changes.
    Reads,
    /// A person decides on an intent.
    Decides,
}

/// What answers the questions of other nodes.
#[derive(Default)]
pub(super) struct Answers {
    /// The readers of documents, by the kind of document.
    documents: Mutex<HashMap<String, Arc<DocumentReader>>>,
    console: OnceLock<Box<ConsoleResponder>>,
}

/// A question, as it is sent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "question", rename_all = "snake_case")]
pub(super) enum QuestionText {
    /// Does the intent wait for a slot there?
    Waits { intent: IntentId },
    /// Has the node this document? Any part of the program may have documents of its kind.
    Document { kind: String, id: IntentId },
    /// Does the node run calls with this tool? The answer is a [`ToolAnswer`].
    HasTool {
        tool: ToolName,
        /// The arguments of a call that waits for a person, to be checked.
        arguments: Option<Map<String, Value>>,
    },
    /// What does the console there show to this caller? It may also decide.
    Console {
        /// As for [`ConsoleQuestion::text`].
        text: String,
        /// Read by [`a2g_govern::Callers::caller_from_node`].
        caller: Value,
    },
}

/// The answer to [`QuestionText::HasTool`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToolAnswer {
    /// The tool is usable, and the arguments are valid.
    Module(Digest),
    /// The tool is being compiled.
    Preparing,
    /// The arguments are not valid.
    Fault(NodeFault),
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

    /// Asks the consoles of the other nodes on behalf of a caller. Returns `None` if no node has an answer, or if
    /// [`Caller::to_node`] has no form for the caller.
    ///
    /// # Errors
    /// If the fleet cannot be reached, or a node does not answer in time: it may have decided.
    pub async fn ask_consoles(
        &self,
        caller: &Caller,
        text: String,
        effect: QuestionEffect,
    ) -> Result<Option<String>, Fault> {
        let Some(caller) = caller.to_node() else { return Ok(None) };
        let question = QuestionText::Console { text, caller };
        let answer = match effect {
            QuestionEffect::Reads => self.ask(&question, ASK_TIMEOUT).await?,
            QuestionEffect::Decides => {
                self.ask(&question, DECIDE_TIMEOUT).await.map_err(|_fault| undecided_fault())?
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
        let question = to_text(&QuestionText::Console { text, caller })?;
        let asked = fleet.messages.ask_all(&question, ASK_TIMEOUT).await;
        let (answers, is_complete) = asked.map_err(|error| self.node.fleet_fault(&error))?;
        let answers = answers.into_iter().map(|(node, answer)| (node, answer.as_str().to_owned()));
        Ok((answers.collect(), is_complete))
    }

    /// The agent of a call that waits for a slot at another node.
    ///
    /// # Errors
    /// If the fleet cannot be reached, or a node does not answer.
    pub(super) async fn find_queued(&self, intent: IntentId) -> Result<Option<AgentDid>, Fault> {
        let answer = self.ask(&QuestionText::Waits { intent }, ASK_TIMEOUT).await?;
        Ok(answer.and_then(|answer| AgentDid::parse(answer.as_str()).ok()))
    }

    /// Asks for a node that has a tool, and for a check of arguments.
    ///
    /// # Errors
    /// If the fleet cannot be reached, or a node does not answer.
    pub(super) async fn find_tool(
        &self,
        tool: &ToolName,
        arguments: Option<&Map<String, Value>>,
    ) -> Result<Option<ToolAnswer>, Fault> {
        let question = QuestionText::HasTool { tool: tool.clone(), arguments: arguments.cloned() };
        let answer = self.ask(&question, ASK_TIMEOUT).await?;
        Ok(answer.and_then(|answer| serde_json::from_str(answer.as_str()).ok()))
    }

    async fn ask(&self, question: &QuestionText, timeout: Duration) -> Result<Option<NodeText>, Fault> {
        let Some(fleet) = self.node.fleet() else { return Ok(None) };
        fleet.messages.ask(&to_text(question)?, timeout).await.map_err(|error| self.node.fleet_fault(&error))
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
            QuestionText::Waits { intent } => {
                let agent = self.intents.agent_of_run(intent).or_else(|| self.stored_calls.agent_of(intent));
                agent.map(|agent| agent.to_string())
            }
            QuestionText::HasTool { tool, arguments } => {
                let answer = self.find_own_tool(&tool, arguments).await?;
                serde_json::to_string(&answer).ok()
            }
            QuestionText::Document { kind, id } => {
                let read = self.answers.documents.lock().get(&kind).cloned()?;
                read(id).await
            }
            QuestionText::Console { text, caller: _ } => {
                let callers = self.policies.callers().load();
                let caller = callers.caller_from_node(question.text(), self.clock.now())?;
                self.answers.console.get()?(ConsoleQuestion { caller, text }).await
            }
        }
    }

    /// The answer to [`QuestionText::HasTool`].
    async fn find_own_tool(
        &self,
        tool: &ToolName,
        arguments: Option<Map<String, Value>>,
    ) -> Option<ToolAnswer> {
        if !self.passing.is_enabled {
            return None;
        }
        let loaded = self.catalogue.current();
        let Some(usable) = loaded.usable_tool(tool) else {
            let is_preparing = self.catalogue.tool_names().contains(&tool.to_string());
            return is_preparing.then_some(ToolAnswer::Preparing);
        };
        let module = usable.descriptor.digest;
        let checked = match arguments {
            Some(arguments) => check_tool_arguments(&loaded, tool, arguments).await,
            None => Ok(()),
        };
        Some(match checked {
            Ok(()) => ToolAnswer::Module(module),
            Err(fault) => ToolAnswer::Fault(NodeFault::new(fault)),
        })
    }
}

fn to_text(question: &QuestionText) -> Result<String, Fault> {
    serde_json::to_string(question).map_err(|error| Fault::Internal(error.to_string()))
}

/// The fault for a decision about which the node that has the tool has not answered.
fn undecided_fault() -> Fault {
    busy_fault(
        "the node that has the tool has not answered, and may have decided: ask for the state of the intent",
    )
}
