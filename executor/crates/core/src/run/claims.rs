//! The claims of intents: what is checked and reserved for a call before its run, the record of its start, and what a repeat
//! of a claimed call finds.

use super::effects::CallTurn;
use super::engine::checks::NO_MEMORY;
use super::engine::passing::{Passing, TakenCall};
use super::faults::{busy_fault, intent_conflict_fault, receipt_pending_fault, stop_fault};
use super::fleet::{CallIdentity, Node, StartOutcome};
use super::open_intents::{ActiveRun, OpenIntents};
use super::output::ExpectedOutput;
use super::policies::Policies;
use super::reserved_claim::ReservedClaim;
use super::slots::{CapacityError, Place, Slots};
use super::wait_records::denial_fault;
use super::{ExecutorSettings, LoadedCatalog, Parts, RECEIPT_TIMEOUT};
use a2g_capability::{Ceilings, Grant, Permit, RootsError, Tree};
use a2g_govern::{Admitted, Granted};
use a2g_intent::{ClaimError, WaitId};
use a2g_journal::{IntentClaims, KnownIntent, Stage, StageSource, StartRequest, StartResult};
use a2g_types::call::Call;
use a2g_types::clock::Clock;
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::limit::FileEffects;
use a2g_types::outcome::Receipt;
use a2g_types::verdict::Verdict;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::{Semaphore, watch};

/// The time in which another node may take a call from a full queue.
const PLACE_TIMEOUT: Duration = Duration::from_secs(1);
/// The result of claiming an admitted call.
pub(super) enum ClaimOutcome {
    /// The intent is claimed, and this call runs it.
    Claimed(Box<ClaimedRun>),
    /// The intent was already claimed.
    Known(Box<Call>, KnownIntent),
}

/// A claimed intent with everything that its run needs.
pub(super) struct ClaimedRun {
    pub(super) admitted: Admitted<Granted>,
    pub(super) loaded: Arc<LoadedCatalog>,
    /// The governor's verdict, if the governor was asked.
    pub(super) verdict: Option<Arc<Verdict>>,
    /// The caller that approved the intent, if it waited for a person.
    pub(super) approved_by: Option<String>,
    /// The wait from which the intent was taken, if it waited for a person.
    pub(super) wait: Option<WaitId>,
    pub(super) permit: Permit,
    pub(super) place: Place,
    /// The slot of the call's parent, which the call may use.
    pub(super) lent_slot: Option<Arc<Semaphore>>,
    /// For a call that waited at another node: its slot, and the time until which it has to be claimed.
    pub(super) taken: Option<TakenCall>,
    /// `true` if another node has taken the call and given it back, or may still claim it.
    pub(super) was_passed_on: bool,
    pub(super) running: ActiveRun,
    /// The files of the run that makes the call, once it has waited for them; `None` if it shares none.
    pub(super) shared_files: Option<CallTurn>,
}

/// The claims of intents.
pub(super) struct Claims {
    settings: Arc<ExecutorSettings>,
    policies: Arc<Policies>,
    journal_claims: Arc<IntentClaims>,
    node: Arc<Node>,
    passing: Arc<Passing>,
    slots: Arc<Slots>,
    intents: Arc<OpenIntents>,
    clock: Arc<dyn Clock>,
    output: ExpectedOutput,
}

impl Claims {
    pub(super) fn new(parts: &Parts, output: ExpectedOutput) -> Self {
        Self {
            settings: Arc::clone(&parts.settings),
            policies: Arc::clone(&parts.policies),
            journal_claims: Arc::clone(&parts.journal.claims),
            node: Arc::clone(&parts.node),
            passing: Arc::clone(&parts.passing),
            slots: Arc::clone(&parts.slots),
            intents: Arc::clone(&parts.intents),
            clock: Arc::clone(&parts.clock),
            output,
        }
    }

    /// Runs the remaining checks of an admitted call, and claims its intent.
    pub(super) async fn claim(
        self: &Arc<Self>,
        admitted: Admitted,
        loaded: Arc<LoadedCatalog>,
        verdict: Option<Arc<Verdict>>,
    ) -> Result<ClaimOutcome, Fault> {
        let Some(tool) = loaded.usable_tool(&admitted.call().tool) else {
            return Err(Fault::Internal("the tool of an admitted call is not in its catalogue".to_owned()));
        };
        let parent = admitted.call().parent.as_ref().map(|parent| parent.intent);
        // Without these, the parent has ended, and the call is aborted when it is registered.
        let siblings = parent.and_then(|parent| self.intents.calls_of(parent));
        let ExecutorSettings { granter, ceilings, .. } = &*self.settings;
        // The calls of a program share its files, and so the time at which their changes take effect.
        let shared = siblings.as_ref().map_or(FileEffects::Direct, |calls| calls.effects());
        let own_ceilings;
        let ceilings = if shared > ceilings.effects {
            own_ceilings = Ceilings { effects: shared, ..ceilings.clone() };
            &own_ceilings
        } else {
            ceilings
        };
        let (admitted, grant) =
            admitted.grant(granter, self.policies.standing(), &tool.descriptor, ceilings)?;
        if let Some(Err(reason)) = &tool.componentised
            && grant.checks_each_path()
        {
            let message = format!(
                "the tool `{}` runs only with grants of whole trees such as `/workspace/**` and with direct effects, because \
                 it is a core module and {reason}: grant whole trees, or build it as a component",
                admitted.call().tool
            );
            return Err(admitted.refusal(BlockedBy::ScopeUnenforceable, message));
        }
        if let Some(Err(reason)) = siblings.as_ref().map(|calls| calls.check_effects(&grant)) {
            return Err(admitted.refusal(BlockedBy::ScopeUnenforceable, reason));
        }
        let has_shared_files = siblings.as_ref().is_some_and(|calls| calls.member().is_some());
        let permit = self.open_permit(&admitted, grant, has_shared_files)?;
        if !self.output.has_room(permit.grant().output().value.bytes()) {
            return Err(busy_fault(NO_MEMORY));
        }
        let (place, running) = match self.reserve_and_claim(&admitted, verdict.clone()).await? {
            ReservedClaim::New(place, running) => (place, running),
            ReservedClaim::Known(known) => {
                return Ok(ClaimOutcome::Known(Box::new(admitted.call().clone()), known));
            }
        };
        let lent_slot = siblings.map(|calls| calls.slot());
        let claimed = ClaimedRun {
            admitted,
            loaded,
            verdict,
            approved_by: None,
            wait: None,
            permit,
            place,
            lent_slot,
            taken: None,
            was_passed_on: false,
            running,
            shared_files: None,
        };
        Ok(ClaimOutcome::Claimed(Box::new(claimed)))
    }

    /// Reserves a place for an admitted call, claims its intent in this process, and registers it. Releases the intent if
    /// an operator has stopped the call.
    pub(super) async fn reserve_and_claim<L>(
        &self,
        admitted: &Admitted<L>,
        verdict: Option<Arc<Verdict>>,
    ) -> Result<ReservedClaim, Fault> {
        let call = admitted.call();
        let place = match call.parent {
            Some(_) => self.slots.reserve_nested(&call.agent),
            None => self.reserve_place(&call.agent).await?,
        };
        // In one step: whoever finds that the call is queued can end it.
        let register = || self.intents.claim(call);
        match self.journal_claims.claim_with(call, admitted.keep_until(), verdict, register)? {
            Ok(Ok(running)) => Ok(ReservedClaim::New(place, running)),
            Ok(Err(ClaimError::Stopped(stop))) => {
                self.release(call.intent).await?;
                Err(stop_fault(call.intent, &stop))
            }
            Err(known) => Ok(ReservedClaim::Known(known)),
        }
    }

    /// Opens the granted folders. A call needs a folder that does not exist if its arguments name a path in it; any other
    /// call runs, and finds nothing there. With shared files, its program may have made the folder.
    fn open_permit(
        &self,
        admitted: &Admitted<Granted>,
        grant: Grant,
        has_shared_files: bool,
    ) -> Result<Permit, Fault> {
        let is_needed = |folder: &Tree| {
            if has_shared_files {
                return false;
            }
            let Call { intent, tool, arguments, .. } = admitted.call();
            let is_needed = arguments.iter().any(|(key, value)| names_path_in(folder, key, value));
            if !is_needed {
                tracing::warn!(%intent, %tool, folder = folder.path(), "a granted folder does not exist: the call runs without it");
            }
            is_needed
        };
        Permit::open(grant, &self.settings.mounts, &self.settings.ceilings.areas, is_needed).map_err(
            |error| {
                if let RootsError::Refused { path, source } = &error {
                    tracing::warn!(path, %source, "a granted folder cannot be opened");
                }
                admitted.refusal(BlockedBy::ScopeUnenforceable, error.to_string())
            },
        )
    }

    /// Reserves a queue place for an intent of the agent. If the queue is full and other nodes take calls from it, waits
    /// for a place for a short time.
    async fn reserve_place(&self, agent: &AgentDid) -> Result<Place, Fault> {
        let reserved = if self.may_pass_calls() {
            self.slots.reserve_within(agent, PLACE_TIMEOUT).await
        } else {
            self.slots.reserve(agent)
        };
        reserved.map_err(|error| {
            busy_fault(match error {
                CapacityError::Closing => "the executor is shutting down",
                CapacityError::QueueFull => "the queue is full: `executor.queue` sets the maximum",
                CapacityError::AgentQueueFull => {
                    "too many intents of this agent are waiting: `executor.queue_per_agent` sets the maximum"
                }
            })
        })
    }

    /// Returns `true` if there are other nodes that may take calls that wait here.
    fn may_pass_calls(&self) -> bool {
        self.passing.is_enabled && self.node.fleet().is_some_and(|fleet| fleet.member.has_live_others())
    }

    /// Looks up an intent in the journal. `expires_at` is the expiry of a verdict that came with the call.
    pub(super) async fn find_known_here(
        &self,
        call: &Call,
        expires_at: Option<OffsetDateTime>,
    ) -> Result<Option<KnownIntent>, Fault> {
        self.journal_claims.find(call, expires_at).await.map_err(Fault::from)
    }

    /// Looks up an intent in the journal, and then in the fleet. `expires_at` is the expiry of a verdict that came with
    /// the call.
    pub(super) async fn find_known(
        self: &Arc<Self>,
        call: &Call,
        expires_at: Option<OffsetDateTime>,
    ) -> Result<Option<KnownIntent>, Fault> {
        let known = self.find_known_here(call, expires_at).await?;
        // The id of a nested call is known only to the node that runs its parent.
        if known.is_some() || call.parent.is_some() {
            return Ok(known);
        }
        self.node.find_in_fleet(&CallIdentity::of(call)).await
    }

    /// Waits for the receipt of a known intent. Returns the governor's verdict with it, if the governor was asked.
    pub(super) async fn await_existing(
        self: &Arc<Self>,
        call: &CallIdentity,
        mut known: KnownIntent,
    ) -> Result<(Arc<Receipt>, Option<Arc<Verdict>>), Fault> {
        loop {
            let (source, verdict) = match known {
                KnownIntent::Same(source, verdict) => (source, verdict),
                KnownIntent::Denied(denial) => return Err(denial_fault(call.intent, &denial)),
                KnownIntent::Conflict => return Err(intent_conflict_fault(call.intent)),
            };
            let stage = match source {
                StageSource::Final(stage) => stage,
                StageSource::Live(stage) => {
                    // A repeat that waits takes a queue place like a run, so that the number of repeats is limited.
                    let _place = self.reserve_place(&call.agent).await?;
                    wait_for_end(stage).await
                }
            };
            match stage {
                Stage::Finished(receipt) => return Ok((receipt, verdict)),
                Stage::Pruned => {
                    return Err(Fault::InvalidRequest(format!(
                        "the intent `{}` already ran, and its report is no longer stored",
                        call.intent
                    )));
                }
                Stage::Ended => return Err(receipt_pending_fault(call.intent)),
                Stage::Queued | Stage::Running | Stage::Released => {}
            }
            // The first call has not run here, because another node had claimed the intent.
            match self.node.find_in_fleet(call).await? {
                Some(found) => known = found,
                None => {
                    return Err(busy_fault(
                        "the first call with this intent was refused before the tool ran: send the call again",
                    ));
                }
            }
        }
    }

    /// Claims an intent in the fleet, and then writes its start to the journal. The intent is released unless the answer
    /// is [`StartOutcome::New`].
    pub(super) async fn start(
        self: &Arc<Self>,
        request: StartRequest<'_>,
        verdict: Option<&Verdict>,
    ) -> Result<StartOutcome, Fault> {
        let claim = match self.node.claim_in_fleet(&request, verdict).await {
            Ok(StartOutcome::New(claim)) => claim,
            refused => {
                self.release(request.call.intent).await?;
                return refused;
            }
        };
        let refused = match self.journal_claims.start(request, self.clock.now()).await {
            Ok(StartResult::New) => return Ok(StartOutcome::New(claim)),
            Ok(StartResult::Known(known)) => Ok(StartOutcome::Known(known)),
            Ok(StartResult::Replayed) => Ok(StartOutcome::Replayed),
            Err(error) => Err(Fault::from(error)),
        };
        claim.release().await;
        refused
    }

    pub(super) async fn release(&self, intent: IntentId) -> Result<(), Fault> {
        self.journal_claims.release(intent).await.map_err(Fault::from)
    }
}

/// Returns `true` if a text in an argument has the path of the folder, alone or with a path below it. This only allows a
/// clear refusal before the run: a folder that does not exist is never opened.
fn names_path_in(folder: &Tree, key: &str, value: &Value) -> bool {
    let is_in_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let names = |text: &str| {
        text.match_indices(folder.path()).any(|(at, path)| {
            let before = text.get(..at).and_then(|before| before.chars().next_back());
            let after = text.get(at + path.len()..).and_then(|after| after.chars().next());
            !before.is_some_and(|c| c == '/' || is_in_name(c)) && !after.is_some_and(is_in_name)
        })
    };
    names(key)
        || match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
            Value::String(text) => names(text),
            Value::Array(items) => items.iter().any(|item| names_path_in(folder, "", item)),
            Value::Object(object) => object.iter().any(|(key, value)| names_path_in(folder, key, value)),
        }
}

/// Waits until an intent has finished, or until its receipt could not be written for [`RECEIPT_TIMEOUT`].
async fn wait_for_end(mut stage: watch::Receiver<Stage>) -> Stage {
    let has_ended = |stage: &Stage| !matches!(stage, Stage::Queued | Stage::Running);
    let has_finished = |stage: &Stage| has_ended(stage) && *stage != Stage::Ended;
    let closed = |_error| Stage::Released;
    let end = stage.wait_for(has_ended).await.map_or_else(closed, |stage| stage.clone());
    if end != Stage::Ended {
        return end;
    }
    let result = tokio::time::timeout(RECEIPT_TIMEOUT, stage.wait_for(has_finished)).await;
    result.map_or(Stage::Ended, |stage| stage.map_or_else(closed, |stage| stage.clone()))
}
