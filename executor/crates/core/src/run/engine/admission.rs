//! The entry points of the pipeline: the checks of a call, the governor's verdict, and the claim of the intent.

use super::checks::{check_arguments, check_memory};
use crate::catalog::{Catalog, CatalogEntry};
use crate::run::current_catalog::PREPARING_RETRY_MS;
use crate::run::faults::{busy_fault, lifted_stop_fault};
use crate::run::fleet::CallIdentity;
use crate::run::message_size::{is_too_large, too_large_fault};
use crate::run::questions::ToolAnswer;
use crate::run::trace::Stopwatch;
use crate::run::waits::Held;
use crate::run::{Engine, IntentAnswer, LoadedCatalog, RunEvent, RunEventSink, trace};
use a2g_govern::{
    Admission, Admitted, Escalated, Governor, IntentSignatures, OperatorLimits, VerifiedVerdict, admit,
    check_caller_tools,
};
use a2g_journal::{IntentSummary, KnownIntent};
use a2g_runtime::aside::run_large;
use a2g_types::call::{Call, ContextSignature};
use a2g_types::fault::{BlockedBy, Fault};
use a2g_types::outcome::{AbortReason, End, Progress, Receipt};
use a2g_types::quantity::Timeout;
use a2g_types::tool::Digest;
use a2g_types::verdict::{Decision, Proof, Verdict};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tracing::Instrument as _;

/// The interval between two reports of a call that waits for the compilation of its tool.
const COMPILE_PROGRESS_INTERVAL: Duration = Duration::from_secs(3);

/// The location of a call's tool.
pub(in crate::run) enum ToolLocation {
    /// At this node, with this catalogue.
    Here(Arc<LoadedCatalog>),
    /// Not in the catalogue of this node. Another node of the fleet may have it.
    Elsewhere,
}

impl Engine {
    /// The verifier of intent signatures; `None` if signatures are not required.
    #[must_use]
    pub fn signatures(&self) -> Option<&IntentSignatures> {
        self.settings.signatures.as_deref()
    }

    /// Checks the signature of an intent, if signatures are required.
    ///
    /// # Errors
    /// [`Fault::Refused`] if the signature is missing or not valid.
    pub fn check_signature(&self, call: &Call, signature: Option<&ContextSignature>) -> Result<(), Fault> {
        let Some(signatures) = self.signatures() else { return Ok(()) };
        let result = signatures.check(signature, self.clock.now());
        result.map_err(|error| self.refusals.refuse(Some(call), error.blocked_by, error.message.to_owned()))
    }

    /// Runs a call under the verdict sent with it (`a2g/execute`): the verdict's proof must be valid, or the operator
    /// must accept unsigned verdicts.
    ///
    /// # Errors
    /// If the call is refused, or its run fails or reaches a limit.
    pub async fn execute(
        self: &Arc<Self>,
        call: Call,
        verdict: Verdict,
        proof: Option<&Proof>,
    ) -> Result<Arc<Receipt>, Fault> {
        let summary = IntentSummary::from_call(&call);
        let span = trace::intent_span(&summary, call.door);
        let (owner, bytes) = charged_to(&call);
        let engine = Arc::clone(self);
        let proof = proof.cloned();
        let execution = async move {
            engine
                .execute_call(call, verdict, proof.as_ref())
                .await
                .map_err(|fault| engine.refusals.record(Some(&summary), fault))
        };
        run_large(&owner, bytes, execution.instrument(span)).await
    }

    async fn execute_call(
        self: &Arc<Self>,
        call: Call,
        verdict: Verdict,
        proof: Option<&Proof>,
    ) -> Result<Arc<Receipt>, Fault> {
        let trust = self.policies.trust();
        let permission = self.settings.accept_unsigned;
        let (call, verdict) =
            VerifiedVerdict::from_call(call, verdict, proof, &trust, permission, self.clock.now())?;
        // A verdict that runs nothing is refused at once.
        if verdict.verdict().decision != Decision::Denied {
            let expires_at = verdict.verdict().expires_at;
            self.wait_until_compiled(&call, expires_at, &RunEventSink::none()).await?;
        }
        let stopwatch = Stopwatch::start(self.clock.monotonic());
        let location = self.locate_tool(&call)?;
        check_memory()?;
        let expires_at = verdict.verdict().expires_at;
        // The claim of a call that starts at once finds what the fleet knows of the intent: one request less.
        let is_here = matches!(location, ToolLocation::Here(_));
        let starts_at_once = self.node.fleet().is_some()
            && is_here
            && permits_run(verdict.verdict())
            && self.slots.has_free(&call.agent);
        let known = match starts_at_once {
            true => self.claims.find_known_here(&call, expires_at).await?,
            false => self.claims.find_known(&call, expires_at).await?,
        };
        if let Some(known) = known {
            return require_success(self.claims.await_existing(&CallIdentity::of(&call), known).await?.0);
        }
        let not_looked_up = starts_at_once.then(|| CallIdentity::of(&call));
        let fault = match self.execute_new(call, verdict, location, stopwatch).await {
            Ok(receipt) => return require_success(receipt),
            Err(fault @ (Fault::Busy { .. } | Fault::ReceiptPending { .. })) => return Err(fault),
            Err(fault) => fault,
        };
        // A repeat gets its receipt, even if the call would be refused now.
        let Some(call) = not_looked_up else { return Err(fault) };
        let Some(known) = self.node.find_in_fleet(&call).await? else { return Err(fault) };
        require_success(self.claims.await_existing(&call, known).await?.0)
    }

    /// Runs a call whose intent is not known to have run, under the verdict sent with it.
    async fn execute_new(
        self: &Arc<Self>,
        call: Call,
        verdict: VerifiedVerdict,
        location: ToolLocation,
        stopwatch: Stopwatch,
    ) -> Result<Arc<Receipt>, Fault> {
        self.intents.check_stopped(&call)?;
        self.check_early(&call, &location).await?;
        let now = self.clock.now();
        // Fails if an intent with this id but different content waits; a call with the same content goes on.
        self.intents.pending_verdict(&call, now)?;
        match admit(call, verdict, now)? {
            Admission::Run(admitted) => {
                self.run_at(location, *admitted, None, stopwatch, RunEventSink::none()).await
            }
            Admission::Wait(escalated) => {
                let identity = CallIdentity::of(escalated.call());
                let intent = identity.intent;
                let risk_score = escalated.verdict().risk.as_ref().map(|risk| risk.score);
                if let Some(known) = self.hold_at(location, *escalated, &RunEventSink::none()).await? {
                    return Ok(self.claims.await_existing(&identity, known).await?.0);
                }
                Err(Fault::Refused {
                    intent: Some(intent),
                    risk_score,
                    blocked_by: BlockedBy::EscalationPending,
                    message: "a person has to decide: the intent runs if `g2a/directive` approves it"
                        .to_owned(),
                })
            }
        }
    }

    /// Runs a call under the operator's own limits (`a2g-executor run`). Stops apply as to any other call; but they are
    /// in the journal of a server, and a process that serves only this call has none.
    ///
    /// # Errors
    /// If the call is refused, or its run fails or reaches a limit.
    pub async fn execute_for_operator(
        self: &Arc<Self>,
        call: Call,
        limits: OperatorLimits,
    ) -> Result<Arc<Receipt>, Fault> {
        let summary = IntentSummary::from_call(&call);
        let span = trace::intent_span(&summary, call.door);
        let execution = async {
            let stopwatch = Stopwatch::start(self.clock.monotonic());
            let loaded = self.catalogue.find(&call)?;
            let admitted = limits.admit(call, self.clock.now())?;
            check_arguments(&loaded, admitted.call()).await?;
            require_success(self.run(admitted, loaded, None, stopwatch, RunEventSink::none(), None).await?)
        };
        let execution =
            async { execution.await.map_err(|fault| self.refusals.record(Some(&summary), fault)) };
        execution.instrument(span).await
    }

    /// Asks the governor about a call, and runs the call if it is permitted. `sink` receives the events of the run, but
    /// none if an earlier request started the run.
    ///
    /// # Errors
    /// If the call is refused before its run; the outcome of the run is in the answer.
    pub async fn handle_intent(
        self: &Arc<Self>,
        call: Call,
        sink: RunEventSink,
    ) -> Result<IntentAnswer, Fault> {
        let summary = IntentSummary::from_call(&call);
        let span = trace::intent_span(&summary, call.door);
        let (owner, bytes) = charged_to(&call);
        let engine = Arc::clone(self);
        let answer = async move {
            let answer = engine.decide_and_run(call, sink).await;
            answer.map_err(|fault| engine.refusals.record(Some(&summary), fault))
        };
        run_large(&owner, bytes, answer.instrument(span)).await
    }

    async fn decide_and_run(self: &Arc<Self>, call: Call, sink: RunEventSink) -> Result<IntentAnswer, Fault> {
        // Before the governor is asked, because its verdict expires. An agent whose policies refuse the tool learns nothing
        // of it.
        if self.policies.may_reach(&call.agent, &call.tool) {
            self.wait_until_compiled(&call, None, &sink).await?;
        }
        let mut stopwatch = Stopwatch::start(self.clock.monotonic());
        let location = self.locate_tool(&call)?;
        check_memory()?;
        let known = if call.is_new { None } else { self.claims.find_known(&call, None).await? };
        if let Some(known) = known
            && let (receipt, Some(verdict)) =
                self.claims.await_existing(&CallIdentity::of(&call), known).await?
        {
            return Ok(IntentAnswer { verdict, receipt: Some(receipt) });
        }
        if let ToolLocation::Elsewhere = location
            && !call.is_new
        {
            // The fleet may store it as waiting, and this node has not followed that yet.
            self.pending.refresh(call.intent).await?;
        }
        if let Some(waiting) = self.intents.pending_verdict(&call, self.clock.now())? {
            return Ok(IntentAnswer { verdict: Arc::new(waiting), receipt: None });
        }
        // Before the governor is asked: nobody has to decide on a call that cannot run.
        self.intents.check_stopped(&call)?;
        self.check_early(&call, &location).await?;
        let call = without_parent_context(call);
        match self.policies.governor() {
            Governor::Local(..) => {}
            Governor::Remote(_) => sink.notify_waiting(),
        }
        let sent_at = self.clock.monotonic();
        let still_waits = |intent| self.intents.awaits_decision(intent);
        let result = self.policies.governor().decide(&call, &still_waits).await;
        self.metrics.record_verdict_time(stopwatch.exclude(sent_at, self.clock.monotonic()));
        let verified = result?;
        match self.policies.governor() {
            Governor::Local(..) => self.metrics.count_observed(&verified.verdict().rationale),
            // It could name any number of files.
            Governor::Remote(_) => {}
        }
        // Only the governor needs the context, so it is neither stored nor passed to the tool.
        let call = Call { context: None, ..call };
        let verdict = Arc::clone(verified.verdict());
        let now = self.clock.now();
        match admit(call, verified, now)? {
            Admission::Wait(escalated) => {
                let identity = CallIdentity::of(escalated.call());
                let Some(known) = self.hold_at(location, *escalated, &sink).await? else {
                    return Ok(IntentAnswer { verdict, receipt: None });
                };
                let (receipt, recorded) = self.claims.await_existing(&identity, known).await?;
                Ok(IntentAnswer { verdict: recorded.unwrap_or(verdict), receipt: Some(receipt) })
            }
            Admission::Run(admitted) => {
                let verdict_to_store = Some(Arc::clone(&verdict));
                let receipt = self.run_at(location, *admitted, verdict_to_store, stopwatch, sink).await?;
                Ok(IntentAnswer { verdict, receipt: Some(receipt) })
            }
        }
    }

    /// Runs an admitted call here, or at another node, which then checks the arguments.
    pub(in crate::run) async fn run_at(
        self: &Arc<Self>,
        location: ToolLocation,
        admitted: Admitted,
        verdict: Option<Arc<Verdict>>,
        stopwatch: Stopwatch,
        sink: RunEventSink,
    ) -> Result<Arc<Receipt>, Fault> {
        match location {
            ToolLocation::Here(loaded) => {
                check_arguments(&loaded, admitted.call()).await?;
                self.run(admitted, loaded, verdict, stopwatch, sink, None).await
            }
            ToolLocation::Elsewhere => self.run_elsewhere(admitted, verdict, stopwatch, sink).await,
        }
    }

    /// Lets a call wait for a person, who decides on the module that this node or another one has. Returns the intent if
    /// another request has started it since this one looked it up.
    async fn hold_at(
        self: &Arc<Self>,
        location: ToolLocation,
        escalated: Escalated,
        sink: &RunEventSink,
    ) -> Result<Option<KnownIntent>, Fault> {
        let call = escalated.call();
        let module = match location {
            ToolLocation::Here(loaded) => {
                check_arguments(&loaded, call).await?;
                sink.notify_waiting();
                let tool = loaded.usable_tool(&call.tool);
                tool.map(|tool| tool.descriptor.digest).ok_or_else(|| {
                    Fault::Internal("the tool of an escalated call is not in the catalogue".to_owned())
                })?
            }
            ToolLocation::Elsewhere => {
                sink.notify_waiting();
                self.find_module_elsewhere(&escalated).await?
            }
        };
        match self.pending.hold(escalated, module).await? {
            Held::New | Held::Known => Ok(None),
            Held::Started(known) => Ok(Some(known)),
        }
    }

    /// The module of a call's tool at another node, which has checked the arguments.
    async fn find_module_elsewhere(&self, escalated: &Escalated) -> Result<Digest, Fault> {
        let call = escalated.call();
        let text = escalated.to_journal().map_err(|error| Fault::Internal(error.to_string()))?;
        if is_too_large(&text) {
            return Err(too_large_fault(&call.tool));
        }
        match self.peers.find_tool(&call.tool, Some(&call.arguments)).await? {
            Some(ToolAnswer::Module(module)) => Ok(module),
            Some(ToolAnswer::Fault(fault)) => Err(fault.into_fault(call.intent)),
            Some(ToolAnswer::Preparing) => Err(Fault::Busy {
                message: format!("the tool `{}` is being prepared at another node of the fleet", call.tool),
                retry_after_ms: PREPARING_RETRY_MS,
            }),
            None => Err(self.catalogue.absent_tool_fault(&call.agent, &call.tool)),
        }
    }

    /// Checks that a call names a tool that this executor can use, or that another node of the fleet has.
    ///
    /// # Errors
    /// [`Fault::InvalidParams`], [`Fault::ToolUnavailable`], or [`Fault::Refused`] with `tool_untrusted` or
    /// `caller_unauthorized`, which is recorded; [`Fault::Busy`] if another node does not answer.
    pub async fn check_tool(&self, call: &Call) -> Result<(), Fault> {
        // The call waits for it.
        if self.catalogue.preparing_tool(call).is_some() {
            return Ok(());
        }
        let checked = match self.locate_tool(call) {
            Ok(ToolLocation::Here(_)) => Ok(()),
            Ok(ToolLocation::Elsewhere) => self.check_tool_elsewhere(call).await,
            Err(fault) => Err(fault),
        };
        checked.map_err(|fault| self.refusals.record_of_call(call, fault))
    }

    /// As [`Self::check_tool`], but a tool that another node may have passes without a question to the others.
    ///
    /// # Errors
    /// As for [`Self::check_tool`], without the faults about other nodes.
    pub fn check_tool_locally(&self, call: &Call) -> Result<(), Fault> {
        if self.catalogue.preparing_tool(call).is_some() {
            return Ok(());
        }
        self.locate_tool(call).map(drop).map_err(|fault| self.refusals.record_of_call(call, fault))
    }

    /// Checks before a decision that another node has the tool that this one lacks, or that the call can have
    /// the session that it asks for.
    async fn check_early(&self, call: &Call, location: &ToolLocation) -> Result<(), Fault> {
        let loaded = match location {
            ToolLocation::Here(loaded) => loaded,
            // A call with a session does not get there.
            ToolLocation::Elsewhere => return self.check_tool_elsewhere(call).await,
        };
        // An agent whose policies refuse the tool learns nothing of it.
        if !self.policies.may_reach(&call.agent, &call.tool) {
            return Ok(());
        }
        let tool = loaded.usable_tool(&call.tool);
        tool.map_or(Ok(()), |tool| self.tool_sessions.check(call, &tool.descriptor))
    }

    /// Waits while the tool of a call is compiled, at most for the time that the call may take, and until `expires_at`.
    /// The progress of the call says so. A tool that is still not compiled is refused afterwards.
    ///
    /// # Errors
    /// If the call is ended while it waits, or too many calls of its agent wait.
    pub(in crate::run) async fn wait_until_compiled(
        &self,
        call: &Call,
        expires_at: Option<OffsetDateTime>,
        sink: &RunEventSink,
    ) -> Result<(), Fault> {
        let Some(preparing) = self.catalogue.preparing_tool(call) else { return Ok(()) };
        let max_waits = self.settings.capacity.queue_per_agent;
        let Some(wait) = self.compile_waits.add(call, max_waits) else {
            let message = format!(
                "{max_waits} calls of this agent wait for tools that are being compiled: send the call again later"
            );
            return Err(Fault::Busy { message, retry_after_ms: PREPARING_RETRY_MS });
        };
        // Any later stop finds the wait.
        self.intents.check_stopped(call)?;
        let declared =
            preparing.descriptor.and_then(|descriptor| descriptor.capabilities.limits.quantity::<Timeout>());
        let timeout = call.caller_timeout.or(declared).unwrap_or(Timeout::DEFAULT).duration();
        // Zero for a time that has passed.
        let until_expiry =
            expires_at.map(|at| Duration::try_from(at - self.clock.now()).unwrap_or(Duration::ZERO));
        let timeout = until_expiry.map_or(timeout, |until_expiry| timeout.min(until_expiry));
        sink.notify_waiting();
        let is_compiled =
            |catalog: &Catalog| !matches!(catalog.get(&call.tool), Some(CatalogEntry::Preparing(_)));
        let report = async {
            let began = self.clock.monotonic();
            loop {
                let seconds = self.clock.monotonic().saturating_duration_since(began).as_secs();
                let message = format!("compiling {}, {seconds} s", call.tool);
                sink.send(RunEvent::Progress(Progress { percent: None, message }));
                tokio::time::sleep(COMPILE_PROGRESS_INTERVAL).await;
            }
        };
        tokio::select! {
            biased;
            reason = wait.abort.wait() => Err(self.ended_wait_fault(call, reason)),
            () = self.slots.wait_until_closed() => Err(busy_fault("the executor is shutting down")),
            () = self.catalogue.wait_for(is_compiled) => Ok(()),
            () = tokio::time::sleep(timeout) => Ok(()),
            () = report => Ok(()),
        }
    }

    /// The fault of a call that was ended while it waited for the compilation of its tool.
    fn ended_wait_fault(&self, call: &Call, reason: AbortReason) -> Fault {
        let blocked_by = BlockedBy::EscalationPending;
        let refused = |message: &str| Fault::Refused {
            intent: Some(call.intent),
            risk_score: None,
            blocked_by,
            message: message.to_owned(),
        };
        match reason {
            AbortReason::Stopped => {
                self.intents.check_stopped(call).err().unwrap_or_else(|| lifted_stop_fault(call.intent))
            }
            AbortReason::Revoked => refused("it was revoked while its tool was compiled"),
            AbortReason::Shutdown => busy_fault("the executor is shutting down"),
            AbortReason::Cancelled
            | AbortReason::ParentEnded
            | AbortReason::Lost
            | AbortReason::LeaseLost => refused("it was cancelled while its tool was compiled"),
        }
    }

    /// Finds the tool of a call, if its caller reaches it. Other nodes are not asked yet.
    pub(in crate::run) fn locate_tool(&self, call: &Call) -> Result<ToolLocation, Fault> {
        check_caller_tools(call)?;
        let Call { agent, tool, .. } = call;
        let is_absent = self.catalogue.current().catalog.get(tool).is_none();
        let may_pass_call = self.passing.is_enabled && !call.is_bound_to_node();
        // No other node is asked for an agent whose policies refuse the tool.
        if is_absent && may_pass_call && self.policies.may_reach(agent, tool) {
            return Ok(ToolLocation::Elsewhere);
        }
        self.catalogue.find(call).map(ToolLocation::Here)
    }

    /// Checks that another node has the tool of a call, which this one lacks.
    ///
    /// # Errors
    /// [`Fault::InvalidParams`] if no node has it; [`Fault::Busy`] if one that may have it does not answer.
    pub(in crate::run) async fn check_tool_elsewhere(&self, call: &Call) -> Result<(), Fault> {
        match self.peers.find_tool(&call.tool, None).await? {
            Some(_has_tool) => Ok(()),
            None => Err(self.catalogue.absent_tool_fault(&call.agent, &call.tool)),
        }
    }
}

/// The owner of a call's message, and the message's size in bytes.
fn charged_to(call: &Call) -> (Box<str>, u64) {
    (call.charge.owner().unwrap_or(call.agent.as_str()).into(), call.charge.bytes())
}

/// Removes the member `parent` from the context of a call from outside: only the executor says which run makes a call.
fn without_parent_context(mut call: Call) -> Call {
    if call.parent.is_none()
        && let Some(context) = &mut call.context
    {
        context.remove("parent");
    }
    call
}

/// Returns `true` if a verdict lets a call run without a person's decision.
fn permits_run(verdict: &Verdict) -> bool {
    match verdict.decision {
        Decision::Approved | Decision::Conditional => true,
        Decision::Denied | Decision::Escalate => false,
    }
}

/// Maps a receipt to the answer to `a2g/execute`: every end but a success is a fault.
fn require_success(receipt: Arc<Receipt>) -> Result<Arc<Receipt>, Fault> {
    match &receipt.outcome.end {
        End::Returned(_) | End::Staged(_) => Ok(receipt),
        End::LimitReached(limit) => {
            let limit = *limit;
            Err(Fault::LimitReached(receipt, limit))
        }
        End::ToolError { .. }
        | End::Exited { .. }
        | End::ResultNotJson
        | End::ResultInvalid { .. }
        | End::Trapped(_)
        | End::NotStarted(_)
        | End::Crashed(_)
        | End::NotCommitted(_)
        | End::LeftToOperator(_)
        | End::Aborted(_) => Err(Fault::Failed(receipt)),
    }
}
