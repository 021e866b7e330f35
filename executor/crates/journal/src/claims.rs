//! The open intents of this process (a claim is only in memory until its run starts), and the look-up of earlier ones.

use super::backend::Backend;
use super::batch::{FinishRecord, StartRecord, StartReply};
use super::outbox::Outbox;
use super::recorded_state::{ClaimedIntent, RecordedState, RunEnd};
use super::store::{CommitSync, RunId};
use super::tasks::JournalTask;
use super::writer::JournalEntry;
use super::{
    Condition, IfFull, IntentDenial, JournalError, MAX_INLINE_BYTES, UnwrittenReceipts, to_micros,
    to_row_text,
};
use a2g_types::call::Call;
use a2g_types::durability::SyncedStarts;
use a2g_types::ident::{AgentDid, IntentId, ProofId, ToolName};
use a2g_types::outcome::Receipt;
use a2g_types::session::SessionRequest;
use a2g_types::stored;
use a2g_types::verdict::Verdict;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use time::OffsetDateTime;
use tokio::sync::{oneshot, watch};

/// The stage of an intent, from the queue to its receipt.
#[derive(Debug, Clone, PartialEq)]
pub enum Stage {
    /// The intent waits for a slot.
    Queued,
    /// The guest runs.
    Running,
    /// The guest has ended, and the receipt is about to be written.
    Ended,
    /// The intent has finished.
    Finished(Arc<Receipt>),
    /// The intent has finished, and its receipt was pruned.
    Pruned,
    /// The claim was released before the guest began. The intent may be claimed again.
    Released,
}

/// A known intent, compared with a call that has the same id.
#[derive(Debug)]
pub enum KnownIntent {
    /// The content is the same. Contains the stage, and the governor's verdict if the executor asked the governor.
    Same(StageSource, Option<Arc<Verdict>>),
    /// The content is the same, and the intent is denied.
    Denied(IntentDenial),
    /// The content differs.
    Conflict,
}

/// The stage of a known intent, and whether it can still change.
#[derive(Debug)]
pub enum StageSource {
    /// The intent is open in this process, and its stage can change.
    Live(watch::Receiver<Stage>),
    /// The intent has finished.
    Final(Stage),
}

/// The result of [`IntentClaims::claim`].
#[derive(Debug)]
pub enum ClaimResult {
    /// The intent is claimed. The caller has to finish or release it.
    New,
    /// An intent with this id is already open.
    Known(KnownIntent),
}

/// The result of [`IntentClaims::start`].
#[derive(Debug)]
pub enum StartResult {
    /// The run may begin: its start is recorded.
    New,
    /// The intent has already started, or was denied, and must not run. The claim is released.
    Known(KnownIntent),
    /// Another intent has started with the same proof. The claim is released.
    Replayed,
}

/// An intent that is open in this process.
#[derive(Debug)]
pub(super) struct OpenIntent {
    agent: AgentDid,
    content: [u8; 32],
    verdict: Option<Arc<Verdict>>,
    /// The run, once its start is recorded.
    run: Option<RunId>,
    stage: watch::Sender<Stage>,
    keep_until: OffsetDateTime,
    /// The latest verdict expiry seen since the claim, if later than `keep_until`.
    extended_until: Option<OffsetDateTime>,
}

pub(super) type OpenIntents = Arc<Mutex<HashMap<IntentId, OpenIntent>>>;

/// A run that is about to begin.
#[derive(Debug)]
pub struct StartRequest<'a> {
    /// The call whose intent was claimed.
    pub call: &'a Call,
    /// The time until which the intent and its proof must be remembered, so that neither can start another run.
    pub keep_until: OffsetDateTime,
    /// The proof of the verdict, which is valid for one intent; `None` for a verdict without a proof.
    pub proof: Option<&'a ProofId>,
    /// The receipt that recovery writes if the process ends during the run.
    pub fallback_receipt: &'a Receipt,
    /// The task of the run, unless it is already stored.
    pub task: Option<&'a JournalTask>,
    /// The run's effects outside itself.
    pub effects: RunEffects,
}

/// Whether a run may change something outside itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEffects {
    /// It may not: a power failure that loses its start loses nothing else. With
    /// [`SyncedStarts::WithEffects`](a2g_types::durability::SyncedStarts), its start is on the disk together with its
    /// end.
    None,
    /// It may, or others than a caller that waits for its end are told of the run before. Its start is on the disk before
    /// its guest begins.
    Possible,
}

/// The intent, agent and tool of a call, for use after the call itself was moved.
#[derive(Debug, Clone)]
pub struct IntentSummary {
    /// The intent's id.
    pub intent: IntentId,
    /// The agent that requests the run.
    pub agent: AgentDid,
    /// The tool to run.
    pub tool: ToolName,
}

impl IntentSummary {
    /// Copies the three values from a call.
    #[must_use]
    pub fn from_call(call: &Call) -> Self {
        Self { intent: call.intent, agent: call.agent.clone(), tool: call.tool.clone() }
    }
}

/// Who delivers the report of a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reporting {
    /// This executor.
    Here,
    /// Perhaps another executor of the fleet, which has taken over from this one: the fleet is asked before this one
    /// sends it.
    Elsewhere,
}

/// What a journal knows of the report of an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportState {
    /// The journal has no run of the intent.
    Unknown,
    /// The intent runs, or its report is in the outbox.
    Undelivered,
    /// The report was delivered, or another executor delivers it.
    Delivered,
}

/// The claims, starts and ends of intents.
pub struct IntentClaims {
    backend: Arc<Backend>,
    open: OpenIntents,
    outbox: Arc<Outbox>,
    max_undelivered: usize,
    synced_starts: SyncedStarts,
}

impl IntentClaims {
    pub(super) fn new(
        backend: Arc<Backend>,
        open: OpenIntents,
        outbox: Arc<Outbox>,
        max_undelivered: usize,
        synced_starts: SyncedStarts,
    ) -> Self {
        Self { backend, open, outbox, max_undelivered, synced_starts }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IntentId, OpenIntent>> {
        self.open.lock()
    }

    /// Looks up an intent before the governor is asked. If a verdict came with the call, a known intent is kept at
    /// least until `expires_at`, the expiry of that verdict.
    ///
    /// # Errors
    /// [`JournalError::Busy`], and [`JournalError::Broken`] if the journal cannot be read.
    pub async fn find(
        &self,
        call: &Call,
        expires_at: Option<OffsetDateTime>,
    ) -> Result<Option<KnownIntent>, JournalError> {
        let content = content_hash(call);
        if let Some(open) = self.lock().get_mut(&call.intent) {
            expires_at.into_iter().for_each(|until| open.extend(until));
            return Ok(Some(open.compare_content(content)));
        }
        // Memory is read before the disk: an intent leaves memory only after its end is on the disk, so one of the two
        // has it.
        match self.backend.recorded_state(call.intent)? {
            // Intents that wait or are approved are answered from `OpenIntents` (`core`), not from here.
            RecordedState::Unknown | RecordedState::Waiting(_) | RecordedState::Approved(..) => Ok(None),
            RecordedState::Withdrawn(known) if known == content => Ok(None),
            RecordedState::Denied(denied) if denied.body.held.content.0 == content => {
                Ok(Some(KnownIntent::Denied(denied.body.into())))
            }
            RecordedState::Claimed(claimed) if claimed.content == content => {
                if let Some(later) = expires_at.map(to_micros).filter(|until| *until > claimed.keep_until) {
                    self.backend.send(JournalEntry::Extend(call.intent, later));
                }
                let stage = self.final_stage(claimed.end, IfFull::Refuse).await?;
                Ok(Some(KnownIntent::Same(StageSource::Final(stage), parse_verdict(&claimed)?.map(Arc::new))))
            }
            RecordedState::Withdrawn(_) | RecordedState::Denied(_) | RecordedState::Claimed(_) => {
                Ok(Some(KnownIntent::Conflict))
            }
        }
    }

    /// The stage of an intent that is not open in this process.
    async fn final_stage(&self, end: RunEnd, if_full: IfFull) -> Result<Stage, JournalError> {
        let receipt = match end {
            // Unreachable in an intact journal: opening it gave every interrupted intent a receipt.
            RunEnd::Pending => {
                return Err(JournalError::Broken("an intent is neither open nor finished".into()));
            }
            RunEnd::Pruned => None,
            RunEnd::Receipt(number) => self.backend.receipt(number, if_full).await?,
        };
        Ok(receipt.map_or(Stage::Pruned, Stage::Finished))
    }

    /// Claims an intent in this process.
    ///
    /// # Errors
    /// As for [`Self::claim_with`].
    pub fn claim(
        &self,
        call: &Call,
        keep_until: OffsetDateTime,
        verdict: Option<Arc<Verdict>>,
    ) -> Result<ClaimResult, JournalError> {
        Ok(match self.claim_with(call, keep_until, verdict, || ())? {
            Ok(()) => ClaimResult::New,
            Err(known) => ClaimResult::Known(known),
        })
    }

    /// As [`Self::claim`]. Calls `register` in the same step if the claim is new, and returns its result: a caller that
    /// finds the claim finds what `register` has made. It must not use this journal.
    ///
    /// # Errors
    /// [`JournalError::Backlog`] while too many reports are undelivered; [`JournalError::Share`] while the agent's
    /// share is used up; [`JournalError::NoSpace`] while the disk is full or the file is locked;
    /// [`JournalError::Broken`].
    pub fn claim_with<T>(
        &self,
        call: &Call,
        keep_until: OffsetDateTime,
        verdict: Option<Arc<Verdict>>,
        register: impl FnOnce() -> T,
    ) -> Result<Result<T, KnownIntent>, JournalError> {
        let content = content_hash(call);
        let mut open_intents = self.lock();
        if let Some(open) = open_intents.get_mut(&call.intent) {
            open.extend(keep_until);
            return Ok(Err(open.compare_content(content)));
        }
        // Checked after the look-up, so that a repeat of an open intent is answered even while the disk is full.
        let condition = self.backend.condition().borrow().clone();
        match condition {
            Condition::Works => {}
            Condition::Full => return Err(JournalError::NoSpace),
            Condition::Broken(error) => return Err(JournalError::Broken(error)),
        }
        self.backend.limits().check_share(&call.agent)?;
        // Each open intent adds a report to the outbox when it finishes.
        if self.outbox.undelivered_count().saturating_add(open_intents.len()) >= self.max_undelivered {
            return Err(JournalError::Backlog);
        }
        let agent = call.agent.clone();
        let stage = watch::channel(Stage::Queued).0;
        let open = OpenIntent { agent, content, verdict, run: None, stage, keep_until, extended_until: None };
        // Written only when the run starts: an intent that was queued when the process died has not run, and may be
        // sent again.
        open_intents.insert(call.intent, open);
        Ok(Ok(register()))
    }

    /// Records the start of a claimed intent. Its guest may begin only on [`StartResult::New`].
    ///
    /// # Errors
    /// [`JournalError`]; the claim is released.
    pub async fn start(
        &self,
        request: StartRequest<'_>,
        now: OffsetDateTime,
    ) -> Result<StartResult, JournalError> {
        let call = request.call;
        let keep_until = request.keep_until;
        let verdict = self.lock().get(&call.intent).and_then(|open| open.verdict.clone());
        let sync = match (request.effects, self.synced_starts) {
            (RunEffects::None, SyncedStarts::WithEffects) => CommitSync::WithNext,
            (RunEffects::None, SyncedStarts::All) | (RunEffects::Possible, _) => CommitSync::Now,
        };
        let arguments = self.backend.limits().arguments_text(call);
        let start = build_start_record(request, verdict.as_deref(), arguments, sync, now)?;
        self.backend.limits().count_bytes(&call.agent, start.bytes());
        let pending = self.backend.submit(|reply| JournalEntry::Start(Box::new(start), reply));
        let reply = pending.wait_unless_full().await;
        if let Ok(StartReply::New(run)) = reply {
            if let Some(open) = self.lock().get_mut(&call.intent) {
                open.run = Some(run);
                open.stage.send_replace(Stage::Running);
            }
            return Ok(StartResult::New);
        }
        close_intent(&self.open, call.intent, Stage::Released);
        match reply? {
            StartReply::Replayed => return Ok(StartResult::Replayed),
            StartReply::Conflict => return Ok(StartResult::Known(KnownIntent::Conflict)),
            StartReply::Known | StartReply::New(_) => {}
        }
        let missing = || JournalError::Broken("an intent that has started is not in the journal".into());
        Ok(StartResult::Known(self.find(call, Some(keep_until)).await?.ok_or_else(missing)?))
    }

    /// Writes a receipt, its report in the outbox and the end of its task, and returns when all three are on the disk.
    /// Waits while the disk is full.
    ///
    /// # Errors
    /// [`JournalError::Broken`]: the three may or may not be on the disk.
    pub async fn finish(
        &self,
        receipt: Arc<Receipt>,
        task: Option<JournalTask>,
        reporting: Reporting,
        now: OffsetDateTime,
    ) -> Result<(), JournalError> {
        let output_bytes = usize::try_from(receipt.outcome.metrics.output_bytes);
        let is_long = output_bytes.is_ok_and(|bytes| bytes > MAX_INLINE_BYTES);
        let text = if is_long {
            let shared = Arc::clone(&receipt);
            let written = tokio::task::spawn_blocking(move || stored::write_receipt(&shared)).await;
            written.map_err(JournalError::unreadable)?
        } else {
            stored::write_receipt(&receipt)
        };
        let body = text.map_err(JournalError::unreadable)?.into();
        let intent = receipt.intent;
        let open = self.lock().get(&intent).and_then(|open| {
            open.stage.send_replace(Stage::Ended);
            Some((open.run?, open.extended_until))
        });
        let Some((run, extended_until)) = open else {
            return Err(JournalError::Broken("an intent finished without a start".into()));
        };
        let finish = FinishRecord { run, receipt, body, task, ended: to_micros(now), reporting };
        self.backend.limits().count_bytes(&finish.receipt.agent, finish.bytes());
        self.backend.submit(|reply| JournalEntry::Finish(Box::new(finish), reply)).wait().await?;
        // Repeats during the run extended the claim in memory, so one entry is enough for all of them.
        if let Some(until) = extended_until {
            self.backend.send(JournalEntry::Extend(intent, to_micros(until)));
        }
        Ok(())
    }

    /// Writes the start and the end of a run that this executor has claimed in its fleet and not started, and that the
    /// fleet has ended. The fleet is asked who delivers the report. Returns `false` if the intent is open in this
    /// process: the call has to be repeated.
    ///
    /// # Errors
    /// [`JournalError::NoSpace`] while the disk is full, and [`JournalError::Broken`].
    pub async fn record_end(
        &self,
        content: [u8; 32],
        verdict: Option<String>,
        receipt: Arc<Receipt>,
        now: OffsetDateTime,
    ) -> Result<bool, JournalError> {
        let intent = receipt.intent;
        let body = to_row_text(stored::write_receipt(&receipt))?;
        let open = OpenIntent::ended(&receipt, content, None, now);
        // A repeat waits for the receipt: records without one are an error for `final_stage`.
        match self.lock().entry(intent) {
            Entry::Occupied(_) => return Ok(false),
            Entry::Vacant(vacant) => {
                vacant.insert(open);
            }
        }
        let start = StartRecord {
            intent,
            agent: receipt.agent.clone(),
            tool: receipt.tool.clone(),
            content,
            proof: None,
            keep_until: to_micros(now),
            started: to_micros(now),
            verdict,
            fallback_receipt: body.clone(),
            task: None,
            sync: CommitSync::Now,
            arguments: None,
        };
        let pending = self.backend.submit(|reply| JournalEntry::Start(Box::new(start), reply));
        let reply = pending.wait_unless_full().await;
        let Ok(StartReply::New(run)) = reply else {
            close_intent(&self.open, intent, Stage::Released);
            // Without an error, the journal has the intent, or its id with other content.
            return reply.map(|_known| true);
        };
        let finish = FinishRecord {
            run,
            receipt,
            body: body.into(),
            task: None,
            ended: to_micros(now),
            reporting: Reporting::Elsewhere,
        };
        self.backend.submit(|reply| JournalEntry::Finish(Box::new(finish), reply)).wait().await?;
        Ok(true)
    }

    /// Announces the stage of an open intent: the end of its guest before [`Self::finish`], or what another executor of
    /// the fleet does.
    pub fn announce_stage(&self, intent: IntentId, stage: Stage) {
        if let Some(open) = self.lock().get(&intent) {
            open.stage.send_if_modified(|current| {
                let is_changed = *current != stage;
                *current = stage;
                is_changed
            });
        }
    }

    /// Closes the claim of a call that another executor of the fleet has run. This journal does not store the receipt.
    pub fn close_elsewhere(&self, intent: IntentId, receipt: Arc<Receipt>) {
        close_intent(&self.open, intent, Stage::Finished(receipt));
    }

    /// What this journal knows of the report of an intent.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub fn report_state(&self, intent: IntentId) -> Result<ReportState, JournalError> {
        if self.lock().contains_key(&intent) {
            return Ok(ReportState::Undelivered);
        }
        let RecordedState::Claimed(claimed) = self.backend.recorded_state(intent)? else {
            return Ok(ReportState::Unknown);
        };
        let is_undelivered = self.backend.read(|reader| reader.is_undelivered(claimed.number))?;
        Ok(if is_undelivered { ReportState::Undelivered } else { ReportState::Delivered })
    }

    /// Releases a claim whose guest has not begun: the intent may be claimed again.
    ///
    /// # Errors
    /// [`JournalError::Broken`].
    pub async fn release(&self, intent: IntentId) -> Result<(), JournalError> {
        let run = self.lock().get(&intent).and_then(|open| open.run);
        let result = match run {
            Some(run) => self.backend.submit(|reply| JournalEntry::Release(run, intent, reply)).wait().await,
            // A claim without a start is not on the disk.
            None => Ok(()),
        };
        // Closed after the write: otherwise a repeated call could find the start on the disk and be told that the
        // intent ran.
        close_intent(&self.open, intent, Stage::Released);
        result
    }

    /// The agent and the stage of an intent that is claimed or has started; `None` for any other.
    ///
    /// # Errors
    /// [`JournalError::Busy`], and [`JournalError::Broken`] if the journal cannot be read.
    pub async fn stage(
        &self,
        intent: IntentId,
        if_full: IfFull,
    ) -> Result<Option<(AgentDid, Stage)>, JournalError> {
        if let Some(open) = self.lock().get(&intent) {
            let stage = open.stage.borrow().clone();
            return Ok(Some((open.agent.clone(), stage)));
        }
        let RecordedState::Claimed(claimed) = self.backend.recorded_state(intent)? else { return Ok(None) };
        let agent = AgentDid::parse(&claimed.agent).map_err(JournalError::unreadable)?;
        Ok(Some((agent, self.final_stage(claimed.end, if_full).await?)))
    }

    /// Subscribes to the stage of an intent; `None` if it is not open in this process.
    #[must_use]
    pub fn subscribe(&self, intent: IntentId) -> Option<watch::Receiver<Stage>> {
        self.lock().get(&intent).map(|open| open.stage.subscribe())
    }
}

fn build_start_record(
    request: StartRequest<'_>,
    verdict: Option<&Verdict>,
    arguments: Option<String>,
    sync: CommitSync,
    now: OffsetDateTime,
) -> Result<StartRecord, JournalError> {
    let StartRequest { call, keep_until, proof, fallback_receipt, task, effects: _ } = request;
    Ok(StartRecord {
        intent: call.intent,
        agent: call.agent.clone(),
        tool: call.tool.clone(),
        content: content_hash(call),
        // Neither part contains white space, so the text is unambiguous.
        proof: proof.map(|proof| format!("{} {}", proof.issuer(), proof.identifier())),
        keep_until: to_micros(keep_until),
        started: to_micros(now),
        verdict: verdict.map(|verdict| to_row_text(stored::write_verdict(verdict))).transpose()?,
        fallback_receipt: to_row_text(stored::write_receipt(fallback_receipt))?,
        task: task.map(|task| to_row_text(task.to_text())).transpose()?,
        sync,
        arguments,
    })
}

pub(super) fn parse_verdict(claimed: &ClaimedIntent) -> Result<Option<Verdict>, JournalError> {
    let verdict = claimed.verdict.as_deref().map(|verdict| stored::read_verdict(verdict.get())).transpose();
    verdict.map_err(JournalError::unreadable)
}

impl OpenIntent {
    /// An intent that has ended, and whose receipt is not written yet.
    fn ended(receipt: &Receipt, content: [u8; 32], run: Option<RunId>, keep_until: OffsetDateTime) -> Self {
        let agent = receipt.agent.clone();
        let stage = watch::channel(Stage::Ended).0;
        Self { agent, content, verdict: None, run, stage, keep_until, extended_until: None }
    }

    fn compare_content(&self, content: [u8; 32]) -> KnownIntent {
        if self.content == content {
            KnownIntent::Same(StageSource::Live(self.stage.subscribe()), self.verdict.clone())
        } else {
            KnownIntent::Conflict
        }
    }

    /// Records the expiry of another verdict for the intent.
    fn extend(&mut self, until: OffsetDateTime) {
        self.extended_until = self.extended_until.max((until > self.keep_until).then_some(until));
    }
}

/// Counts the interrupted runs as open whose receipts could not be written, because the disk is full, until they are.
/// Returns the entries of these receipts.
pub(super) fn reopen(open_intents: &OpenIntents, unwritten: UnwrittenReceipts) -> Vec<JournalEntry> {
    let entries = unwritten.into_iter().map(|(finish, content)| {
        // The open intent answers repeats until its receipt is on the disk: `final_stage` treats records without a
        // receipt as an error.
        let open = OpenIntent::ended(&finish.receipt, content, Some(finish.run), OffsetDateTime::UNIX_EPOCH);
        open_intents.lock().insert(finish.receipt.intent, open);
        // The caller of this run belonged to the earlier process.
        JournalEntry::Finish(Box::new(finish), oneshot::channel().0)
    });
    entries.collect()
}

/// The callback for each receipt that is on the disk, with the number of its record.
pub(super) fn on_finished(
    open_intents: OpenIntents,
    outbox: Arc<Outbox>,
) -> impl Fn(i64, &FinishRecord) + Send + Sync {
    move |number, finish| {
        // The outbox counts the report before the intent is closed, so that `claim` never admits one run too many.
        outbox.push(number, finish.run, &finish.receipt, finish.reporting);
        close_intent(&open_intents, finish.receipt.intent, Stage::Finished(Arc::clone(&finish.receipt)));
    }
}

/// Removes an intent from the open intents, and sends its last stage to the subscribers.
fn close_intent(open_intents: &OpenIntents, intent: IntentId, stage: Stage) {
    let open = open_intents.lock().remove(&intent);
    if let Some(open) = open {
        open.stage.send_replace(stage);
    }
}

/// The hash of a call's agent, tool, arguments, parent and session. Members are hashed in the order of their
/// names, so that their order in the message is irrelevant.
#[must_use]
pub fn content_hash(call: &Call) -> [u8; 32] {
    let Call { agent, tool, arguments, parent, session, .. } = call;
    let parent_intent = parent.as_ref().map(|parent| parent.intent);
    let request = session.as_ref().map(|session| session.request);
    hash_content(agent.as_str(), tool.as_str(), arguments, parent_intent, request)
}

/// As [`content_hash`], of the parts of a call.
pub(super) fn hash_content(
    agent: &str,
    tool: &str,
    arguments: &serde_json::Map<String, Value>,
    parent: Option<IntentId>,
    session: Option<SessionRequest>,
) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in [agent, tool] {
        // The length separates the agent from the tool.
        hasher.update(part.len().to_le_bytes());
        hasher.update(part);
    }
    hash_object(arguments, &mut hasher);
    if let Some(parent) = parent {
        // A call from outside with the same id and arguments is then a conflict, not a repeat.
        hasher.update(b"nested");
        hasher.update(parent.as_bytes());
    }
    if let Some(session) = session {
        // The same arguments in another session are another call.
        hasher.update(b"session");
        hasher.update(session.to_string());
    }
    hasher.finalize().into()
}

fn hash_object(object: &serde_json::Map<String, serde_json::Value>, hasher: &mut Sha256) {
    let mut entries = object.iter().collect::<Vec<_>>();
    entries.sort_unstable_by_key(|(key, _)| *key);
    hasher.update(b"{");
    for (key, value) in entries {
        hasher.update(key.len().to_le_bytes());
        hasher.update(key);
        hash_value(value, hasher);
    }
    hasher.update(b"}");
}

fn hash_value(value: &serde_json::Value, hasher: &mut Sha256) {
    match value {
        Value::Object(object) => hash_object(object, hasher),
        Value::Array(items) => {
            hasher.update(b"[");
            items.iter().for_each(|item| hash_value(item, hasher));
            hasher.update(b"]");
        }
        Value::String(text) => {
            hasher.update(b"\"");
            hasher.update(text.len().to_le_bytes());
            hasher.update(text);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            hasher.update(b" ");
            hasher.update(value.to_string());
        }
    }
}
