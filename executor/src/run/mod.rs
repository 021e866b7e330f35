//! The pipeline of every call, whichever door it came through.
//!
//! ```text
//! Call ─ check: tool, schema ─▶ verdict ─ admit ─▶ Admitted ─ grant, open ─▶ claim in the journal
//!   ─ slot ─▶ expiry again ─▶ Permit ─ isolate ─▶ Outcome ─▶ journal: Receipt, report queued
//! ```
//! From the claim on, a call belongs to a task of its own: a caller that goes away changes nothing.
//! Execution is at most once; a repeated intent gets the one receipt.

mod escalations;
mod refusals;
mod running;

use crate::call::{Call, ContextSignature};
use crate::capability::{Ceilings, Grant, Mounts, Permit, Roots, RootsError};
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::egress::{Egress, Network};
use crate::fault::{BlockedBy, Fault};
use crate::govern::{
    AcceptUnsigned, Admission, Admitted, Authentic, Escalated, Governor, IntentSignatures, Standing, Trust,
    admit,
};
use crate::ident::{AgentDid, IntentId};
use crate::isolate::Isolate;
use crate::journal::{Claim, Journal, Stage};
use crate::limit::Limit;
use crate::outcome::{AbortReason, End, Receipt};
use crate::tool::Descriptor;
use crate::verdict::{Directive, Policy, Proof, Verdict};
use escalations::Escalations;
use refusals::{Refusals, Refused};
use running::{Entered, Running};
use serde_json::Value;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::{Semaphore, watch};

/// When a caller that found no room should come again.
const RETRY_AFTER_MS: u64 = 500;

/// What the operator decided about this executor.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its ceilings.
    pub ceilings: Ceilings,
    /// Its map from guest paths to host folders.
    pub mounts: Mounts,
    /// How many executions run at once.
    pub concurrent: usize,
    /// How many more may wait.
    pub queue: usize,
    /// The leave to take unsigned verdicts, if it was given.
    pub accept_unsigned: Option<AcceptUnsigned>,
    /// How intents have to be signed, when they have to be.
    pub signatures: Option<Arc<IntentSignatures>>,
}

/// A catalogue, and its tools where they run.
pub struct Loaded {
    /// The catalogue.
    pub catalog: Catalog,
    /// Its tools, ready to run.
    pub isolate: Isolate,
}

/// The core behind every door.
pub struct Executor {
    settings: Settings,
    /// Swapped as a whole, and held by each run that began with it.
    loaded: RwLock<Arc<Loaded>>,
    governor: Governor,
    /// Whose proofs are believed. Swapped as a whole.
    trust: RwLock<Arc<Trust>>,
    /// The way out, when any run may have a network.
    egress: Option<Arc<Egress>>,
    standing: Standing,
    journal: Journal,
    slots: Arc<Semaphore>,
    queued: watch::Sender<usize>,
    running: Running,
    escalations: Escalations,
    refusals: Refusals,
    clock: Arc<dyn Clock>,
    closing: watch::Sender<bool>,
}

/// What a gateway call comes back with.
#[derive(Debug)]
pub struct Answer {
    /// The governor's verdict.
    pub verdict: Arc<Verdict>,
    /// The receipt, when the tool ran.
    pub receipt: Option<Arc<Receipt>>,
}

impl Executor {
    /// Puts the core together.
    #[must_use]
    pub fn new(
        settings: Settings,
        loaded: Loaded,
        governor: Governor,
        trust: Trust,
        egress: Option<Arc<Egress>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(settings.concurrent)),
            settings,
            loaded: RwLock::new(Arc::new(loaded)),
            governor,
            trust: RwLock::new(Arc::new(trust)),
            egress,
            standing: Standing::default(),
            journal: Journal::default(),
            queued: watch::channel(0).0,
            running: Running::default(),
            escalations: Escalations::default(),
            refusals: Refusals::default(),
            clock,
            closing: watch::channel(false).0,
        }
    }

    /// The descriptors of all usable tools, sorted by name.
    #[must_use]
    pub fn tools(&self) -> Vec<Descriptor> {
        let loaded = self.loaded();
        let usable = loaded.catalog.iter().filter(|(name, _)| loaded.isolate.usable(name).is_ok());
        usable.filter_map(|(_, entry)| entry.as_ref().ok().map(|tool| tool.descriptor.clone())).collect()
    }

    /// Takes another catalogue for all calls from here on. Runs that have begun end with the one that
    /// they began with.
    pub fn renew(&self, loaded: Loaded) {
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
    }

    fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Believes the proofs of other keys from here on.
    pub fn renew_trust(&self, trust: Trust) {
        *self.trust.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(trust);
    }

    fn trust(&self) -> Arc<Trust> {
        Arc::clone(&self.trust.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The governor.
    #[must_use]
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// The journal.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Says whether a policy, a revocation or a directive is obeyed that came through a door. What comes
    /// there is not known to be the governor's; what is comes over the executor's own connection to it.
    ///
    /// # Errors
    /// `verdict_untrusted` without the operator's leave.
    pub fn obeys_the_door(&self) -> Result<(), Fault> {
        if self.settings.accept_unsigned.is_some() {
            return Ok(());
        }
        let message = "nothing shows that this comes from the governor: send it over the executor's own connection \
                       (WebSocket), or, on a developer's own machine, start the executor with \
                       `--insecure-accept-unsigned`";
        Err(self.refused(
            None,
            Fault::Refused {
                intent: None,
                risk_score: None,
                blocked_by: BlockedBy::VerdictUntrusted,
                message: message.to_owned(),
            },
        ))
    }

    /// How intents have to be signed that come through a door; `None` when they need not be.
    #[must_use]
    pub fn signatures(&self) -> Option<&IntentSignatures> {
        self.settings.signatures.as_deref()
    }

    /// Checks the signature of an intent, when intents have to be signed.
    ///
    /// # Errors
    /// `intent_untrusted` or `intent_replayed`.
    pub fn check_signature(&self, call: &Call, signature: Option<&ContextSignature>) -> Result<(), Fault> {
        let Some(signatures) = self.signatures() else { return Ok(()) };
        signatures.check(signature, self.clock.now()).map_err(|bad| {
            let refusal = Fault::Refused {
                intent: Some(call.intent),
                risk_score: None,
                blocked_by: bad.blocked_by,
                message: bad.message.to_owned(),
            };
            self.refused(Some(&Refused::of(call)), refusal)
        })
    }

    /// Where every refusal passes on its way out.
    fn refused(&self, call: Option<&Refused>, fault: Fault) -> Fault {
        self.refusals.record(call, &fault, self.clock.monotonic());
        fault
    }

    /// Executions that run, and that wait for a slot.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        let running = self.settings.concurrent.saturating_sub(self.slots.available_permits());
        (running, *self.queued.borrow())
    }

    /// Runs a call under a verdict that came with it (`a2g/execute`), when its proof or the operator's leave
    /// says that it counts.
    ///
    /// # Errors
    /// Every refusal, and the failure or the limit that ended the run.
    pub async fn execute(
        self: &Arc<Self>,
        call: Call,
        verdict: Verdict,
        proof: Option<&Proof>,
    ) -> Result<Arc<Receipt>, Fault> {
        let whose = Refused::of(&call);
        self.executed(call, verdict, proof).await.map_err(|fault| self.refused(Some(&whose), fault))
    }

    async fn executed(
        self: &Arc<Self>,
        call: Call,
        verdict: Verdict,
        proof: Option<&Proof>,
    ) -> Result<Arc<Receipt>, Fault> {
        let (trust, leave) = (self.trust(), self.settings.accept_unsigned);
        let (call, verdict) = Authentic::with_call(call, verdict, proof, &trust, leave, self.clock.now())?;
        let loaded = self.check(&call)?;
        if let Some((known, _)) = self.journal.find(&call, verdict.verdict().expires_at) {
            return success(self.known(&call, known).await?);
        }
        let now = self.clock.now();
        match admit(call, verdict, now)? {
            Admission::Run(admitted) => success(self.run(*admitted, loaded, None).await?),
            Admission::Wait(escalated) => {
                let intent = escalated.call().intent;
                let risk_score = escalated.verdict().risk.as_ref().map(|risk| risk.score);
                self.escalations.hold(*escalated, now)?;
                Err(Fault::Refused {
                    intent: Some(intent),
                    risk_score,
                    blocked_by: BlockedBy::EscalationPending,
                    message: "a person has to decide: the intent runs when `g2a/directive` approves it"
                        .to_owned(),
                })
            }
        }
    }

    /// Asks the governor about a call and runs it when it may (`a2g/intent`).
    ///
    /// # Errors
    /// Every refusal before the run; what became of the run is in the answer.
    pub async fn intent(self: &Arc<Self>, call: Call) -> Result<Answer, Fault> {
        let whose = Refused::of(&call);
        self.answered(call).await.map_err(|fault| self.refused(Some(&whose), fault))
    }

    async fn answered(self: &Arc<Self>, call: Call) -> Result<Answer, Fault> {
        let loaded = self.check(&call)?;
        if let Some((known, verdict)) = self.journal.find(&call, None) {
            let receipt = self.known(&call, known).await?;
            if let Some(verdict) = verdict {
                return Ok(Answer { verdict, receipt: Some(receipt) });
            }
        }
        if let Some(waiting) = self.escalations.waiting(&call, self.clock.now())? {
            return Ok(Answer { verdict: Arc::new(waiting), receipt: None });
        }
        let authentic = self.governor.decide(&call).await?;
        // The context was for the governor; nothing here keeps it.
        let call = Call { context: None, ..call };
        let verdict = Arc::new(authentic.verdict().clone());
        let now = self.clock.now();
        match admit(call, authentic, now)? {
            Admission::Wait(escalated) => {
                self.escalations.hold(*escalated, now)?;
                Ok(Answer { verdict, receipt: None })
            }
            Admission::Run(admitted) => {
                let receipt = self.run(*admitted, loaded, Some(Arc::clone(&verdict))).await?;
                Ok(Answer { verdict, receipt: Some(receipt) })
            }
        }
    }

    /// Stops a running or waiting intent. `true` when there was something to stop.
    pub fn cancel(&self, intent: IntentId) -> bool {
        self.escalations.drop_one(intent, None) || self.running.abort(intent, AbortReason::Cancelled)
    }

    /// Where an intent is.
    #[must_use]
    pub fn status(&self, intent: IntentId) -> Option<Stage> {
        if self.escalations.is_waiting(intent, self.clock.now()) {
            return Some(Stage::Escalated);
        }
        self.journal.stage(intent).map(|(_, stage)| stage)
    }

    /// Takes a standing policy.
    pub fn set_policy(&self, policy: Policy) {
        tracing::info!(
            agent = policy.agent.as_ref().map(AgentDid::as_str),
            version = policy.version,
            "standing policy"
        );
        self.standing.set(policy);
    }

    /// Drops standing capabilities and stops what runs under them. Without an agent or an intent,
    /// everything is revoked. Gives the number of runs that were stopped.
    pub fn revoke(&self, agent: Option<&AgentDid>, intent: Option<IntentId>) -> usize {
        tracing::warn!(
            agent = agent.map(AgentDid::as_str),
            intent = intent.map(tracing::field::display),
            "revoked"
        );
        if let Some(intent) = intent {
            let waited = self.escalations.drop_one(intent, agent);
            let ran = self.running.abort_of(intent, agent, AbortReason::Revoked);
            return usize::from(waited) + usize::from(ran);
        }
        self.standing.revoke(agent);
        self.escalations.drop_of(agent) + self.running.abort_all(agent, AbortReason::Revoked)
    }

    /// Resolves an escalated intent. The run goes on by itself; `a2g/status` shows it.
    ///
    /// # Errors
    /// When no such intent waits, its verdict has expired, or it cannot be run as it was approved; then it
    /// goes on waiting.
    pub fn direct(self: &Arc<Self>, directive: &Directive) -> Result<(), Fault> {
        let escalated = self
            .escalations
            .get(directive.intent)
            .ok_or_else(|| Fault::invalid("/intent_id", "no intent with this id waits for a directive"))?;
        let whose = Refused::of(escalated.call());
        self.directed(directive, escalated).map_err(|fault| self.refused(Some(&whose), fault))
    }

    fn directed(self: &Arc<Self>, directive: &Directive, escalated: Escalated) -> Result<(), Fault> {
        if !directive.approved {
            tracing::info!(intent = %directive.intent, "denied by a directive");
            self.escalations.drop_one(directive.intent, None);
            return Ok(());
        }
        let verdict = Arc::new(escalated.verdict().clone());
        // A directive that cannot be followed, such as one with a manifest that cannot be enforced,
        // leaves the intent waiting. Two that can be followed run it once: the journal sees to it.
        let admitted = escalated.resolve(directive, self.clock.now())?;
        // The catalogue may be another one than when the intent began to wait.
        let loaded = self.check(admitted.call())?;
        let whose = Refused::of(admitted.call());
        let started = self.claim(admitted, loaded, Some(verdict))?;
        self.escalations.drop_one(directive.intent, None);
        if let Started::Claimed(claimed) = started {
            let executor = Arc::clone(self);
            tokio::spawn(async move {
                if let Err(fault) = Arc::clone(&executor).claimed(*claimed).await {
                    let fault = executor.refused(Some(&whose), fault);
                    tracing::warn!(?fault, "an approved intent could not be run");
                }
            });
        }
        Ok(())
    }

    /// Stops taking calls.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Waits until calls are no longer taken.
    pub async fn closed(&self) {
        let mut closing = self.closing.subscribe();
        let _never_dropped = closing.wait_for(|closing| *closing).await;
    }

    /// Waits until nothing runs or waits for a slot.
    pub async fn idle(&self) {
        // Slots are handed out in turn, so that whoever asks for all of them is before a call that has its
        // place and has not asked yet. The calls come first.
        // What `wait_for` gives locks the count, and a call that comes meanwhile would wait for it.
        drop(self.queued.subscribe().wait_for(|queued| *queued == 0).await);
        let all = u32::try_from(self.settings.concurrent).unwrap_or(u32::MAX);
        let _all_slots = self.slots.acquire_many(all).await;
    }

    /// Stops everything that still runs.
    pub fn abort_all(&self) -> usize {
        self.running.abort_all(None, AbortReason::Shutdown)
    }

    /// Checks what can be checked without a verdict: the tool and its arguments. What they were checked
    /// against is what has to run.
    fn check(&self, call: &Call) -> Result<Arc<Loaded>, Fault> {
        let loaded = self.loaded();
        let tool = match loaded.catalog.get(&call.tool) {
            Some(Ok(tool)) => match loaded.isolate.usable(&call.tool) {
                Ok(()) => tool,
                Err(reason) => {
                    return Err(Fault::ToolUnavailable {
                        tool: call.tool.clone(),
                        message: reason.to_owned(),
                    });
                }
            },
            Some(Err(error)) => {
                return Err(Fault::ToolUnavailable {
                    tool: call.tool.clone(),
                    message: error.public_message(),
                });
            }
            None => {
                let message = format!("there is no tool `{}`: `a2g/tools` lists what there is", call.tool);
                return Err(Fault::invalid("/tool", message));
            }
        };
        tool.schema.check(&Value::Object(call.arguments.clone())).map_err(|violation| {
            let message = format!("the arguments break the schema of `{}`: {}", call.tool, violation.message);
            Fault::invalid(format!("/arguments{}", violation.pointer), message)
        })?;
        Ok(loaded)
    }

    /// Waits for the receipt of an intent that is known already.
    async fn known(&self, call: &Call, claim: Claim) -> Result<Arc<Receipt>, Fault> {
        let mut stage = match claim {
            Claim::Known(stage) => stage,
            Claim::New | Claim::Conflict | Claim::Replayed => {
                return Err(Fault::InvalidRequest(format!(
                    "the intent `{}` was used before with other content: every intent needs an id of its own",
                    call.intent
                )));
            }
        };
        let over = |stage: &Stage| matches!(stage, Stage::Finished(_) | Stage::Forgotten | Stage::Released);
        let ended = stage.wait_for(over).await;
        match ended.as_deref() {
            Ok(Stage::Finished(receipt)) => Ok(Arc::clone(receipt)),
            Ok(Stage::Forgotten) => Err(Fault::InvalidRequest(format!(
                "the intent `{}` ran before, and its report is no longer kept here",
                call.intent
            ))),
            Ok(Stage::Escalated | Stage::Queued | Stage::Running | Stage::Released) | Err(_) => {
                Err(self.busy("the first call with this intent was refused before it ran: send it again"))
            }
        }
    }

    fn busy(&self, message: &str) -> Fault {
        Fault::Busy { message: message.to_owned(), retry_after_ms: RETRY_AFTER_MS }
    }

    /// Claims an admitted call and runs it in a task of its own.
    async fn run(
        self: &Arc<Self>,
        admitted: Admitted,
        loaded: Arc<Loaded>,
        verdict: Option<Arc<Verdict>>,
    ) -> Result<Arc<Receipt>, Fault> {
        let claimed = match self.claim(admitted, loaded, verdict)? {
            Started::Claimed(claimed) => claimed,
            Started::Known(call, claim) => return self.known(&call, claim).await,
        };
        let executor = Arc::clone(self);
        let task = tokio::spawn(async move { executor.claimed(*claimed).await });
        match task.await {
            Ok(result) => result,
            Err(panicked) => Err(Fault::Internal(format!("the task of a run ended early: {panicked}"))),
        }
    }

    /// Checks all that can be refused, and claims the intent. From here on it runs.
    fn claim(
        self: &Arc<Self>,
        admitted: Admitted,
        loaded: Arc<Loaded>,
        verdict: Option<Arc<Verdict>>,
    ) -> Result<Started, Fault> {
        let tool = loaded.catalog.get(&admitted.call().tool).and_then(|entry| entry.as_ref().ok());
        let Some(tool) = tool else {
            return Err(Fault::Internal("an admitted call's tool is gone".to_owned()));
        };
        let grant = admitted.grant(&self.standing, &tool.descriptor, &self.settings.ceilings)?;
        if let Some(Err(reason)) = &tool.componentised
            && !grant.whole_trees()
        {
            let message = format!(
                "the tool `{}` can run under whole trees such as `/workspace/**` only, because it is a core module, and \
                 {reason}: grant trees, or build it as a component",
                admitted.call().tool
            );
            return Err(admitted.refused(BlockedBy::ScopeUnenforceable, message));
        }
        let roots = self.open(&admitted, &grant)?;
        let place = self.place()?;
        let (proof, until) = (admitted.proof_id(), admitted.remember_until());
        let claimed = self.journal.claim(admitted.call(), proof, until, self.clock.now());
        match claimed.map_err(|full| self.busy(&full.to_string()))? {
            Claim::New => {}
            Claim::Replayed => {
                let message = "the `proof` was used before, for another intent: ask the governor again";
                return Err(admitted.refused(BlockedBy::VerdictReplayed, message));
            }
            known @ (Claim::Known(_) | Claim::Conflict) => {
                return Ok(Started::Known(Box::new(admitted.call().clone()), known));
            }
        }
        let Call { intent, agent, .. } = admitted.call();
        let running = self.running.enter(*intent, agent.clone());
        if let Some(verdict) = verdict {
            self.journal.decided(*intent, verdict);
        }
        Ok(Started::Claimed(Box::new(Claimed { admitted, loaded, grant, roots, place, running })))
    }

    /// Opens the granted folders.
    fn open(&self, admitted: &Admitted, grant: &Grant) -> Result<Roots, Fault> {
        Roots::open(grant, &self.settings.mounts, &self.settings.ceilings.areas).map_err(|error| {
            if let RootsError::Refused { path, source } = &error {
                tracing::warn!(path, %source, "a granted folder cannot be opened");
            }
            admitted.refused(BlockedBy::ScopeUnenforceable, error.to_string())
        })
    }

    /// A place in the queue, or the news that there is none.
    fn place(self: &Arc<Self>) -> Result<Place, Fault> {
        // Counted first: whoever closes sees either the count, or nobody who overlooked the closing.
        let mut queued = 0;
        self.queued.send_modify(|count| {
            queued = *count;
            *count += 1;
        });
        let place = Place(Arc::clone(self));
        if *self.closing.borrow() {
            return Err(self.busy("the executor is shutting down"));
        }
        if queued >= self.settings.queue.saturating_add(self.slots.available_permits()) {
            return Err(self.busy("the queue is full"));
        }
        Ok(place)
    }

    /// The life of a claimed intent: it ends in a receipt or is released.
    async fn claimed(self: Arc<Self>, claimed: Claimed) -> Result<Arc<Receipt>, Fault> {
        let Claimed { admitted, loaded, grant, roots, place, running } = claimed;
        let call = admitted.call();
        // An intent that is cancelled while it waits needs no slot.
        let slot = tokio::select! {
            slot = Arc::clone(&self.slots).acquire_owned() => Some(slot),
            _cancelled = running.abort().wait() => None,
        };
        drop(place);
        let Ok(_slot) = slot.transpose() else {
            self.journal.advance(call.intent, Stage::Released);
            return Err(self.busy("the executor is shutting down"));
        };
        if let Err(expired) = admitted.check_expiry(self.clock.now()) {
            self.journal.advance(call.intent, Stage::Released);
            return Err(expired);
        }
        let permit = Permit::new(grant, roots);
        let open = |egress: &Arc<Egress>| egress.open(&call.agent, permit.grant());
        let network = self.egress.as_ref().map_or(Network::Off, open);
        let execution = loaded.isolate.begin(&permit, network, Arc::clone(running.abort()));
        self.journal.advance(call.intent, Stage::Running);
        let outcome = match running.abort().reason() {
            Some(reason) => execution.outcome(End::Aborted(reason), self.clock.monotonic()),
            None => {
                let arguments = Value::Object(call.arguments.clone()).to_string();
                loaded.isolate.run(&call.tool, permit, arguments, &execution).await
            }
        };
        let receipt = Arc::new(Receipt {
            agent: call.agent.clone(),
            intent: call.intent,
            tool: call.tool.clone(),
            outcome,
        });
        tracing::debug!(
            intent = %receipt.intent, tool = %receipt.tool, status = receipt.outcome.end.status().as_str(),
            wall_us = receipt.outcome.metrics.wall.as_micros(), "executed"
        );
        self.journal.finished(Arc::clone(&receipt));
        Ok(receipt)
    }
}

/// What became of a claim.
enum Started {
    /// It is this call's to run.
    Claimed(Box<Claimed>),
    /// The intent was claimed before.
    Known(Box<Call>, Claim),
}

/// An intent that this process has claimed, with all that it needs to run.
struct Claimed {
    admitted: Admitted,
    loaded: Arc<Loaded>,
    grant: Grant,
    roots: Roots,
    place: Place,
    running: Entered,
}

/// A counted place in the queue.
struct Place(Arc<Executor>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.queued.send_modify(|count| *count -= 1);
    }
}

/// A receipt as the answer to `a2g/execute`: only a success is a result.
fn success(receipt: Arc<Receipt>) -> Result<Arc<Receipt>, Fault> {
    match &receipt.outcome.end {
        End::Returned(_) => Ok(receipt),
        End::LimitReached(
            limit @ (Limit::Memory
            | Limit::Time
            | Limit::Output
            | Limit::Stack
            | Limit::Handles
            | Limit::Written
            | Limit::Created
            | Limit::DirectoryEntries
            | Limit::RandomBytes
            | Limit::Subscriptions
            | Limit::Fuel),
        ) => {
            let limit = *limit;
            Err(Fault::LimitReached(receipt, limit))
        }
        End::ToolError { .. }
        | End::Exited { .. }
        | End::ResultNotJson
        | End::Trapped(_)
        | End::Unlinkable(_)
        | End::Crashed(_)
        | End::Aborted(_) => Err(Fault::Failed(receipt)),
    }
}
