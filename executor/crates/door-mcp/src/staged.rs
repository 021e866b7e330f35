//! The file changes of a staged run: the question to a person, the decision in a form, and the answer to the call.
//!
//! ```text
//! run ─▶ STAGED ─┬─ 2026-07-28 ─▶ `input_required` with a state ─ call with state and answer ─▶ decision ─▶ answer
//!                └─ 2025-11-25 ─▶ `elicitation/create` on the call's stream ─ answer ─▶ decision ─▶ answer
//! ```
//! Only a caller that may decide is asked, if its client shows forms. Any other call, and one whose form is closed, is
//! answered at once, and the changes wait.

use super::approval::{ReceivedAnswer, Subject};
use super::{McpDoor, RequestContext};
use a2g_core::run::all_agents;
use a2g_govern::Caller;
use a2g_http::staged::{staged_state, wait_until_decided};
use a2g_types::call::Call;
use a2g_types::failure_message;
use a2g_types::fault::Fault;
use a2g_types::outcome::Receipt;
use a2g_types::tool::accepts_more_members;
use a2g_types::verdict::Verdict;
use a2g_wire::mcp::Revision;
use a2g_wire::mcp::elicit::{self, ElicitAction, ElicitAnswer, Elicitation, PersonDecision};
use a2g_wire::mcp::encode::StagedNotice;
use a2g_wire::mcp::state::StateOwner;
use a2g_wire::staged::{StagedState, changes_of};

/// The step after a run.
enum Step {
    /// The answer to the request is the question to a person.
    Reply(String),
    /// The run is answered. The text is the reason why a decision in a form had no effect, if it had none.
    Answer(Option<String>),
}

impl McpDoor {
    /// Answers a call whose tool ran. If its file changes wait, a person is asked first; `answer` is the answer that came
    /// with the call.
    pub(super) async fn answer_run(
        &self,
        context: &RequestContext,
        call: &Call,
        verdict: &Verdict,
        receipt: &Receipt,
        answer: Option<ElicitAnswer>,
    ) -> Result<String, Fault> {
        let waiting = staged_state(&self.executor, receipt).await.filter(StagedState::is_waiting);
        let step = match (waiting, answer) {
            (None, _) => Step::Answer(None),
            (Some(_), Some(answer)) => {
                Step::Answer(self.decide_changes(&context.caller, receipt, answer).await?)
            }
            (Some(state), None) => self.ask_about_changes(context, call, receipt, &state).await?,
        };
        let refusal = match step {
            Step::Reply(question) => return Ok(question),
            Step::Answer(refusal) => refusal,
        };
        let notice = self.staged_notice(receipt, refusal).await;
        let digest = self.executor.queries.receipt_hash(receipt.intent);
        Ok(context.encoder().receipt(&context.id, receipt, Some(verdict), digest, notice.as_ref()))
    }

    async fn ask_about_changes(
        &self,
        context: &RequestContext,
        call: &Call,
        receipt: &Receipt,
        state: &StagedState,
    ) -> Result<Step, Fault> {
        let Some(question) = self.changes_question(context, receipt, state).await else {
            return Ok(Step::Answer(None));
        };
        match (context.revision, &context.elicitor) {
            (Revision::Stateless, _) => {
                let owner = StateOwner { caller: context.caller.name(), tool: call.tool.as_str() };
                let now = self.executor.clock().now();
                let issued = self.states.issue(owner, call.intent, Subject::Changes, state.until, now);
                let encoder = context.encoder();
                let reply =
                    issued.map(|text| encoder.input_required(&context.id, call.intent, &question, &text));
                Ok(reply.map_or(Step::Answer(None), Step::Reply))
            }
            (Revision::Session, Some(elicitor)) => {
                // A client that gives the call up leaves the changes waiting.
                let received = tokio::select! {
                    received = elicitor.ask(&question.params) => received,
                    _decided = wait_until_decided(&self.executor, receipt) => None,
                    () = self.executor.wait_until_closed() => None,
                };
                match received {
                    Some(ReceivedAnswer { answer, caller }) => {
                        self.decide_changes(&caller, receipt, answer).await.map(Step::Answer)
                    }
                    None => Ok(Step::Answer(None)),
                }
            }
            (Revision::Session, None) => Ok(Step::Answer(None)),
        }
    }

    /// The question about file changes that wait; `None` if the caller may not decide, or its client shows no forms.
    pub(super) async fn changes_question(
        &self,
        context: &RequestContext,
        receipt: &Receipt,
        state: &StagedState,
    ) -> Option<Elicitation> {
        let right = context.caller.decision_right().filter(|_| context.capabilities.elicits_forms)?;
        let page = self.console_url.changes_page(receipt.intent);
        let with_bodies = self.executor.changes.with_bodies(receipt, Some(&right)).await;
        elicit::changes_question(with_bodies.as_ref().unwrap_or(receipt), state, page.as_deref())
    }

    /// Commits or discards the file changes of a staged run, as a person has decided in a form. Returns the reason if the
    /// decision had no effect. A form that was closed, or sent without a decision, decides nothing.
    ///
    /// # Errors
    /// [`Fault::Internal`].
    pub(super) async fn decide_changes(
        &self,
        caller: &Caller,
        receipt: &Receipt,
        answer: ElicitAnswer,
    ) -> Result<Option<String>, Fault> {
        let Some(changes) = changes_of(receipt) else { return Ok(None) };
        let is_commit = match (answer.action, answer.decision) {
            (ElicitAction::Accept, Some(PersonDecision::Commit)) => true,
            (ElicitAction::Accept, Some(PersonDecision::Discard)) | (ElicitAction::Decline, _) => false,
            (ElicitAction::Accept, Some(PersonDecision::Approve | PersonDecision::Deny) | None)
            | (ElicitAction::Cancel, _) => return Ok(None),
        };
        let Some(right) = caller.decision_right() else {
            let reason = format!(
                "a decision on file changes is for callers with the role `approver` or `governor`, and `{}` has neither",
                caller.name()
            );
            return Ok(Some(reason));
        };
        let intent = receipt.intent;
        tracing::info!(%intent, is_commit, caller = caller.name(), "decision on file changes received in a form");
        let sets = &self.executor.changes;
        let decided = match is_commit {
            // The person was shown the changes of this receipt.
            true => sets.commit(intent, &changes.digest, right).await,
            false => sets.discard(intent, &all_agents, right.by()).await,
        };
        match decided {
            Ok(decision) => Ok(failure_message::describe(&decision.outcome)),
            Err(Fault::Internal(detail)) => Err(Fault::Internal(detail)),
            Err(fault) => Ok(Some(fault.sentence().into_owned())),
        }
    }

    /// The part of the answer of a staged run about its file changes; `None` for any other run.
    pub(super) async fn staged_notice(
        &self,
        receipt: &Receipt,
        refusal: Option<String>,
    ) -> Option<StagedNotice> {
        changes_of(receipt)?;
        let tools = self.executor.catalogue.tools();
        let tool = tools.iter().find(|tool| tool.name == receipt.tool);
        Some(StagedNotice {
            is_result_closed: tool.is_none_or(|tool| {
                tool.result_schema.as_ref().is_some_and(|schema| !accepts_more_members(schema))
            }),
            state: staged_state(&self.executor, receipt).await,
            decider: self.decider,
            page: self.console_url.changes_page(receipt.intent),
            refusal,
        })
    }
}
