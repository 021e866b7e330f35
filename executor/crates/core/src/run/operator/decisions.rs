//! Decisions on intents that wait for a person: approve and deny.
//!
//! A decision is in the journal before its answer is sent. An approved intent runs once, if necessary after a restart,
//! unless its verdict expires or an operator stops it first; a denied intent never runs.

use super::approved_runs::{NotClaimed, is_withdrawal};
use crate::run::approval_rules::{self, ApprovalBar, PartialApproval};
use crate::run::claims::ClaimedRun;
use crate::run::decision_basis::DecisionBasis;
use crate::run::fleet::FleetDenial;
use crate::run::pending::PendingIntent;
use crate::run::preview::changed_fault;
use crate::run::wait_records::new_decision;
use crate::run::waits::not_waiting_fault;
use crate::run::{Operator, all_agents, trace};
use a2g_govern::{DecisionAuthor, DecisionRight, Escalated};
use a2g_intent::{IfIdle, Outdated, WaitId};
use a2g_journal::{Approval, IntentSummary, Resolution, ResolvedIntent};
use a2g_runtime::spawn;
use a2g_types::call::Call;
use a2g_types::failure_message::describe_failure;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::IntentId;
use a2g_types::outcome::Status;
use a2g_types::stop::OperatorReason;
use a2g_types::tool::Digest;
use a2g_types::verdict::{Directive, Manifest};
use std::sync::Arc;
use tokio::sync::oneshot;
use tracing::Instrument as _;

/// The effect of a directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectiveOutcome {
    /// The intent is denied, or it has enough approvals and runs.
    Applied,
    /// The approval counts, and the intent waits for another person's.
    NeedsMoreApprovals,
}

/// The result of adding one approval to the earlier ones.
enum CombinedApproval {
    /// The intent may run.
    Enough(Box<BoundApproval>),
    /// The intent needs more approvals than this one and the earlier ones.
    NeedsMore(Box<PartialApproval>),
}

/// The fault for an approval that does not count under the operator's rules.
fn uncounted_fault(escalated: &Escalated, message: String) -> Fault {
    Fault::Refused {
        intent: Some(escalated.call().intent),
        risk_score: escalated.risk_score(),
        blocked_by: BlockedBy::CallerUnauthorized,
        message,
    }
}

fn outdated_fault(outdated: Outdated) -> Fault {
    match outdated {
        Outdated::WaitEnded => not_waiting_fault(),
        Outdated::ApprovalsForgotten => changed_fault(),
    }
}

/// The approval of an intent that has enough of them, with the names of all approvers.
struct BoundApproval {
    approval: Approval,
    /// The authors of all approvals, the latest one last.
    authors: Vec<DecisionAuthor>,
    /// `true` if no author may act for the intent's agent.
    needs_others: bool,
}

impl Operator {
    /// Applies a directive to an escalated intent, at whichever node of a fleet it arrived. An intent with enough approvals
    /// runs in its own task, or at another node if this one lacks its tool; one that needs more continues to wait.
    ///
    /// # Errors
    /// If no such intent waits, or its verdict has expired. If the intent cannot run as approved, the approval
    /// cannot be written, or the fleet cannot be reached: the intent then continues to wait. If a denial cannot be written yet: the intent is denied
    /// nevertheless.
    pub async fn apply_directive(
        self: &Arc<Self>,
        directive: &Directive,
        right: DecisionRight<'_>,
    ) -> Result<DirectiveOutcome, Fault> {
        self.decide(directive, right, None).await
    }

    /// Applies a directive like [`Self::apply_directive`], an approval only if the intent is still as the person was shown
    /// it.
    ///
    /// # Errors
    /// As [`Self::apply_directive`], and [`Fault::InvalidRequest`] if what was shown has changed; the intent then
    /// continues to wait.
    pub async fn apply_shown_directive(
        self: &Arc<Self>,
        directive: &Directive,
        right: DecisionRight<'_>,
        shown: DecisionBasis,
    ) -> Result<DirectiveOutcome, Fault> {
        self.decide(directive, right, Some(shown)).await
    }

    async fn decide(
        self: &Arc<Self>,
        directive: &Directive,
        right: DecisionRight<'_>,
        shown: Option<DecisionBasis>,
    ) -> Result<DirectiveOutcome, Fault> {
        let Directive { intent, approved, manifest: _, reason: _, digest } = directive;
        if self.changes.has_waiting(*intent, &all_agents) {
            return self.decide_on_changes(*intent, *approved, digest.as_ref(), right).await;
        }
        if !approved {
            // The denial has its own task, because the person may disconnect before the fleet has it.
            let operator = Arc::clone(self);
            let directive = directive.clone();
            let author = right.author();
            let denial = async move { operator.deny(&directive, &author).await };
            let denial = spawn::spawn_run_task(denial.in_current_span()).await;
            let ended_early = |error| Fault::Internal(format!("the task of a denial ended early: {error}"));
            return denial.map_err(ended_early)?.map(|()| DirectiveOutcome::Applied);
        }
        let stored = self.pending.refresh_for_decision(*intent).await?;
        let IfIdle::Idle((escalated, taken)) = self.intents.take_undecided(*intent) else {
            return Err(not_waiting_fault());
        };
        let span = trace::intent_span(&IntentSummary::from_call(escalated.call()), escalated.call().door);
        let combined = match self.combine_approvals(&escalated, taken, directive, &right, shown) {
            Ok(combined) => combined,
            Err(fault) => {
                if let Some(stored) = &stored {
                    self.pending.forget_approvals_of(stored).await;
                }
                self.intents.release_taken(taken);
                return Err(fault);
            }
        };
        // The approval has its own task, because the approver may disconnect.
        let (answer_tx, answer) = oneshot::channel();
        let operator = Arc::clone(self);
        let task = async move {
            match combined {
                CombinedApproval::Enough(bound) => {
                    operator.approve(escalated, taken, stored, *bound, answer_tx).await
                }
                CombinedApproval::NeedsMore(approval) => {
                    let _no_waiter =
                        answer_tx.send(operator.add_approval(&escalated, taken, stored, *approval).await);
                }
            }
        };
        spawn::spawn_run_task(task.instrument(span));
        answer
            .await
            .unwrap_or_else(|_dropped| Err(Fault::Internal("the task of an approval ended early".to_owned())))
    }

    /// Commits the file changes of a staged run, or discards them: the directive came after its guest had ended. An approval
    /// has to name the changes, because it may have been meant for the call, or be a repeat of the one for it.
    async fn decide_on_changes(
        &self,
        intent: IntentId,
        approved: bool,
        digest: Option<&Digest>,
        right: DecisionRight<'_>,
    ) -> Result<DirectiveOutcome, Fault> {
        let receipt = match (approved, digest) {
            (true, Some(digest)) => self.changes.commit(intent, digest, right).await?,
            (true, None) => {
                return Err(Fault::InvalidRequest(format!(
                    "the call `{intent}` has run, and its file changes wait: to commit them, approve them with the `digest` of \
                     their list, which is in the report (`a2g/effects`)"
                )));
            }
            (false, _) => self.changes.discard(intent, &all_agents, right.by()).await?,
        };
        match receipt.outcome.end.status() {
            Status::Success => Ok(DirectiveOutcome::Applied),
            Status::Staged | Status::Failure | Status::Timeout | Status::Aborted => {
                let reason = describe_failure(&receipt.outcome);
                Err(Fault::InvalidRequest(if receipt.outcome.end.is_left_to_operator() {
                    reason
                } else {
                    format!("the file changes are not in force, and still wait: {reason}")
                }))
            }
        }
    }

    /// Records an approval of an intent that needs more of them, and lets the intent wait again.
    async fn add_approval(
        &self,
        escalated: &Escalated,
        taken: WaitId,
        stored: Option<PendingIntent>,
        approval: PartialApproval,
    ) -> Result<DirectiveOutcome, Fault> {
        let intent = escalated.call().intent;
        let counted = self.write_partial_approval(escalated, taken, stored.as_ref(), &approval).await;
        if let Err(fault) = counted {
            self.intents.release_taken(taken);
            return Err(fault);
        }
        let by = approval.author.name().to_owned();
        self.intents
            .update(|intents| intents.waits.release_with_approval(taken, approval))
            .map_err(outdated_fault)?;
        tracing::info!(%intent, caller = by, "approved, and needs another person's approval");
        Ok(DirectiveOutcome::NeedsMoreApprovals)
    }

    /// Writes an approval of an intent that needs more of them to the journal, and to the fleet, if there is one: from then
    /// on it counts.
    async fn write_partial_approval(
        &self,
        escalated: &Escalated,
        taken: WaitId,
        stored: Option<&PendingIntent>,
        approval: &PartialApproval,
    ) -> Result<(), Fault> {
        let Call { intent, agent, .. } = escalated.call();
        self.pending.record_hold(escalated).await?;
        let by = approval.author.name();
        let recorded = ResolvedIntent {
            manifest: approval.manifest.clone(),
            basis: approval.basis.map(DecisionBasis::hash),
            ..new_decision(&self.decisions, escalated, Resolution::PartlyApproved, by, self.clock.now())
        };
        let recording = self.intents.read(|intents| {
            intents.waits.check_current(taken).map_err(outdated_fault)?;
            self.policies.check_authors(*intent, std::slice::from_ref(&approval.author), Some(agent))?;
            Ok::<_, Fault>(self.decisions.resolve(vec![recorded]))
        });
        match recording?.await {
            Ok(0) => {
                self.intents.end_wait(taken);
                return Err(not_waiting_fault());
            }
            Ok(_one) => {}
            Err(error) => return Err(Fault::from(error)),
        }
        match stored {
            Some(stored) => self.pending.add_approval(stored, approval).await,
            None => Ok(()),
        }
    }

    /// Combines an approval with the earlier ones of the intent, under the operator's rules. The run gets only what all
    /// of them allow.
    ///
    /// # Errors
    /// If the person may no longer decide, may act for the intent's agent, has approved before, or was shown an
    /// outdated state.
    fn combine_approvals(
        &self,
        escalated: &Escalated,
        taken: WaitId,
        directive: &Directive,
        right: &DecisionRight<'_>,
        shown: Option<DecisionBasis>,
    ) -> Result<CombinedApproval, Fault> {
        let call = escalated.call();
        let by = right.by();
        let rules = &self.settings.approval_rules;
        let required = approval_rules::required_approvals(rules, &call.tool, escalated.risk_score());
        let author = right.author();
        // The list of callers may have been replaced since the caller was authenticated.
        self.policies.check_authors(call.intent, std::slice::from_ref(&author), None)?;
        let basis = shown.map(DecisionBasis::hash);
        let approval =
            |grants| Approval { by: by.to_owned(), manifest: directive.manifest.clone(), basis, grants };
        let alone = |approval, author| {
            CombinedApproval::Enough(Box::new(BoundApproval {
                approval,
                authors: vec![author],
                needs_others: false,
            }))
        };
        if required.is_none() && shown.is_none() {
            // Without a page, an approval covers whatever the verdict and the other layers grant.
            return Ok(alone(approval(Vec::new()), author));
        }
        let preview = self.previews.preview(escalated, taken, directive.manifest.as_ref());
        if shown.is_some_and(|shown| shown != preview.basis) {
            return Err(changed_fault());
        }
        let Some(required) = required else {
            return Ok(alone(approval(vec![preview.grant?]), author));
        };
        self.check_approval_bar(escalated, right, required)?;
        let counts = |earlier: &PartialApproval| self.policies.counts(earlier, &call.agent);
        let earlier = self.intents.partial_approvals(call.intent, counts);
        self.check_narrower(escalated, taken, directive.manifest.as_ref())?;
        let own = PartialApproval {
            author,
            manifest: directive.manifest.clone(),
            grant: preview.grant?,
            basis: shown,
        };
        self.combine_with_earlier(escalated, earlier, own, required)
    }

    /// Combines an approval with the earlier ones that count. If one of these allows less than the run would get now, all
    /// are forgotten.
    fn combine_with_earlier(
        &self,
        escalated: &Escalated,
        earlier: Vec<PartialApproval>,
        own: PartialApproval,
        required: u32,
    ) -> Result<CombinedApproval, Fault> {
        if let Some(other) = earlier.iter().find(|earlier| !own.grant.is_within(&earlier.grant)) {
            self.intents.update(|intents| intents.waits.forget_partial_approvals(escalated.call().intent));
            let message = format!(
                "the run would get more now than `{}` approved: everybody has to approve again (`[[approvals]]`)",
                other.author.name()
            );
            return Err(uncounted_fault(escalated, message));
        }
        if (earlier.len() as u64) + 1 < u64::from(required) {
            return Ok(CombinedApproval::NeedsMore(Box::new(own)));
        }
        let basis = own.basis.map(DecisionBasis::hash);
        let all = earlier.into_iter().chain([own]).collect::<Vec<_>>();
        let manifests = all.iter().filter_map(|approval| approval.manifest.as_ref());
        let manifest = approval_rules::narrow(&escalated.verdict().manifest, manifests);
        let names = all.iter().map(|approval| approval.author.name()).collect::<Vec<_>>().join(", ");
        let (authors, grants) = all.into_iter().map(|approval| (approval.author, approval.grant)).unzip();
        Ok(CombinedApproval::Enough(Box::new(BoundApproval {
            approval: Approval { by: names, manifest: Some(manifest), basis, grants },
            authors,
            needs_others: true,
        })))
    }

    /// Refuses an approval that does not count under the operator's rules, which require `required` people.
    fn check_approval_bar(
        &self,
        escalated: &Escalated,
        right: &DecisionRight<'_>,
        required: u32,
    ) -> Result<(), Fault> {
        let Call { intent, agent, .. } = escalated.call();
        let by = right.by();
        let Some(bar) = self.previews.approval_bar(*intent, right) else { return Ok(()) };
        let message = match bar {
            ApprovalBar::Governor => format!(
                "the governor's approval does not count here: {required} people, listed in `server.callers`, have to approve \
                 (`[[approvals]]`)"
            ),
            ApprovalBar::OwnAgent => format!(
                "`{by}` may act for `{agent}`, so another person, listed in `server.callers`, has to approve \
                 (`[[approvals]]`)"
            ),
            ApprovalBar::AlreadyApproved => format!(
                "`{by}` has already approved this intent: another person has to approve it, {required} people in all \
                 (`[[approvals]]`)"
            ),
        };
        Err(uncounted_fault(escalated, message))
    }

    /// Refuses a manifest that would replace what others have approved. Without a rule, a manifest replaces the verdict's.
    fn check_narrower(
        &self,
        escalated: &Escalated,
        taken: WaitId,
        manifest: Option<&Manifest>,
    ) -> Result<(), Fault> {
        let Some(manifest) = manifest else { return Ok(()) };
        let unchanged = self.previews.preview(escalated, taken, None).grant?;
        if unchanged.includes(&unchanged.complete(manifest), &escalated.verdict().manifest) {
            return Ok(());
        }
        let message = "where several people approve (`[[approvals]]`), a manifest may only make limits narrower, and name only \
                       patterns that are granted without it";
        Err(uncounted_fault(escalated, message.to_owned()))
    }

    /// Forgets the approvals of all intents that need more of them. Called when the list of callers changes, because
    /// somebody who approved may no longer be in it.
    pub fn forget_partial_approvals(&self) {
        self.pending.forget_approvals();
        self.intents.update(|intents| intents.waits.forget_all_partial_approvals());
    }

    /// Denies a waiting intent. The denial is recorded like any other refusal, and every later call with the intent
    /// gets the same fault.
    async fn deny(&self, directive: &Directive, author: &DecisionAuthor) -> Result<(), Fault> {
        let may_deny = || self.policies.check_authors(directive.intent, std::slice::from_ref(author), None);
        let reason = directive.reason.as_ref().map(OperatorReason::as_str);
        let Some(fleet) = self.node.fleet() else {
            return self.waits.deny_here(directive.intent, author.name(), reason, may_deny).await;
        };
        self.pending.refresh_for_decision(directive.intent).await?;
        let (escalated, taken) = self.take_for_denial(directive.intent).await?;
        let denied = async {
            may_deny()?;
            let call = escalated.call();
            let denial = FleetDenial::ByPerson {
                by: author.name().to_owned(),
                risk_score: escalated.risk_score(),
                reason: reason.map(str::to_owned),
            };
            self.pending.record_hold(&escalated).await?;
            self.pending.deny(call.intent, &denial).await?;
            self.node.deny_in_fleet(fleet, call, &denial).await
        };
        let denied = denied.await;
        if denied.is_ok() {
            self.due_ends.note_removal(directive.intent);
        }
        self.intents.release_taken(taken);
        if let Some(earlier) = denied? {
            self.waits.end_denied(directive.intent, &earlier).await;
            return Err(not_waiting_fault());
        }
        let recorded = self.waits.deny_here(directive.intent, author.name(), reason, may_deny).await;
        if let Err(fault) = self.due_ends.finish(directive.intent).await {
            tracing::debug!(?fault, "a look removes the denied intent");
        }
        recorded
    }

    /// Takes an undecided intent, once no other decision on it is in progress.
    async fn take_for_denial(&self, intent: IntentId) -> Result<(Escalated, WaitId), Fault> {
        let mut changes = self.intents.changes();
        loop {
            changes.mark_unchanged();
            match self.intents.take_undecided(intent) {
                IfIdle::Idle(taken) => return Ok(taken),
                IfIdle::InDecision => drop(changes.changed().await),
                IfIdle::Absent => return Err(not_waiting_fault()),
            }
        }
    }

    /// Records an approval, answers the approver, and runs the intent, unless another node does.
    async fn approve(
        self: Arc<Self>,
        escalated: Escalated,
        taken: WaitId,
        stored: Option<PendingIntent>,
        bound: BoundApproval,
        answer_tx: oneshot::Sender<Result<DirectiveOutcome, Fault>>,
    ) {
        let claimed = match self.record_approval(&escalated, taken, stored.as_ref(), &bound).await {
            Ok(claimed) => claimed,
            Err(fault) => {
                self.intents.release_taken(taken);
                let fault = self.refusals.record(Some(&IntentSummary::from_call(escalated.call())), fault);
                let _no_waiter = answer_tx.send(Err(fault));
                return;
            }
        };
        let _no_waiter = answer_tx.send(Ok(DirectiveOutcome::Applied));
        match claimed {
            Some(claimed) => self.run_approved(escalated, taken, bound.approval, Some(claimed)).await,
            None => self.intents.leave_to_fleet(taken),
        }
    }

    /// Claims an intent, and records its approval. Releases the claim if the record fails. Returns `None` if another node
    /// of the fleet runs the intent.
    async fn record_approval(
        self: &Arc<Self>,
        escalated: &Escalated,
        taken: WaitId,
        stored: Option<&PendingIntent>,
        bound: &BoundApproval,
    ) -> Result<Option<Box<ClaimedRun>>, Fault> {
        let may_run_elsewhere = stored.is_some_and(PendingIntent::may_run_anywhere);
        let claimed = match self.pending.runs_here(escalated, stored) {
            true => match self.claim_approved(escalated, taken, &bound.approval).await {
                Ok(claimed) => Some(claimed),
                // Another node may have a place for it.
                Err(NotClaimed::Refused(Fault::Busy { .. })) if may_run_elsewhere => None,
                Err(refused) => return Err(refused.into_fault()),
            },
            false => None,
        };
        let Err(fault) = self.write_approval(escalated, taken, stored, bound, claimed.is_some()).await else {
            return Ok(claimed);
        };
        let Some(claimed) = claimed else { return Err(fault) };
        // From now on, a cancel ends the wait and no longer the run.
        self.intents.update(|intents| intents.waits.mark_deciding(taken));
        let withdrawal = claimed.running.end().filter(|reason| is_withdrawal(*reason));
        drop(claimed);
        if let Some(reason) = withdrawal
            && self.intents.end_wait(taken)
        {
            self.due_ends.note_denial(escalated.call(), reason);
            self.waits.record_end(escalated, Resolution::Cancelled, reason.message(), self.clock.now()).await;
        }
        self.claims.release(escalated.call().intent).await?;
        Err(fault)
    }

    /// Writes an approval to the fleet, if there is one, and to the journal.
    async fn write_approval(
        &self,
        escalated: &Escalated,
        taken: WaitId,
        stored: Option<&PendingIntent>,
        BoundApproval { approval, authors, needs_others }: &BoundApproval,
        is_run_here: bool,
    ) -> Result<(), Fault> {
        let Call { intent, agent, .. } = escalated.call();
        let check_authors = || self.policies.check_authors(*intent, authors, needs_others.then_some(agent));
        if let Some(stored) = stored {
            self.pending.record_hold(escalated).await?;
            // Checked again when the journal gets it.
            check_authors()?;
            self.pending.approve(stored, approval, is_run_here).await?;
        }
        let now = self.clock.now();
        let approved = new_decision(&self.decisions, escalated, Resolution::Approved, &approval.by, now);
        let Approval { by: _, manifest, basis, grants } = approval.clone();
        let approved = ResolvedIntent { manifest, basis, grants, ..approved };
        let recorded = self.intents.update(|intents| {
            intents.waits.check_current(taken).map_err(outdated_fault)?;
            check_authors()?;
            let recording = self.decisions.resolve(vec![approved]);
            if is_run_here {
                intents.waits.mark_approving(taken);
            }
            Ok(recording)
        });
        let fault = match recorded {
            Err(fault) => fault,
            Ok(recording) => match recording.await {
                Ok(0) => {
                    self.intents.end_wait(taken);
                    not_waiting_fault()
                }
                Ok(_one) => return Ok(()),
                Err(error) => Fault::from(error),
            },
        };
        if let Some(stored) = stored {
            self.pending.wait_again(*intent, stored.number()).await;
        }
        Err(fault)
    }
}
