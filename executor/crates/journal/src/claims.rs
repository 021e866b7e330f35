//! Claims: the intents that are open in this process, and those that were open before.

use super::BrokenError;
use super::batch::{FinishRecord, StartRecord, StartReply};
use super::recorded_state::{ClaimedIntent, RecordedState, RunEnd};
use super::store::RunId;
use super::tasks::JournalTask;
use super::writer::JournalEntry;
use super::{
    Condition, IfFull, IntentDenial, Journal, JournalError, MAX_INLINE_BYTES, spawn_blocking_if_large,
    to_micros, to_row_text,
};
use a2g_types::call::Call;
use a2g_types::ident::{AgentDid, IntentId, ProofId, ToolName};
use a2g_types::outcome::Receipt;
use a2g_types::stored;
use a2g_types::verdict::Verdict;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::Arc;
use time::OffsetDateTime;
use tokio::sync::watch;

/// The stage of an intent.
#[derive(Debug, Clone, PartialEq)]
pub enum Stage {
    /// It waits for a slot.
    Queued,
    /// Its guest runs.
    Running,
    /// Its guest has ended, and its receipt is about to be written.
    Ended,
    /// It has finished.
    Finished(Arc<Receipt>),
    /// It has finished, and its receipt was pruned.
    Pruned,
    /// It was refused before it ran.
    Released,
}

/// An intent that is known already.
#[derive(Debug)]
pub enum KnownIntent {
    /// With the same content: its stage, and the governor's verdict if the executor asked the governor.
    Same(StageSource, Option<Arc<Verdict>>),
    /// With the same content, and a person denied it.
    Denied(IntentDenial),
    /// With other content.
    Conflict,
}

/// A known intent, to be followed to its end.
#[derive(Debug)]
pub enum StageSource {
    /// It is open in this process.
    Live(watch::Receiver<Stage>),
    /// It has finished.
    Final(Stage),
}

/// The answer to a claim.
#[derive(Debug)]
pub enum ClaimResult {
    /// The intent is not open; the caller that claimed it has to finish or release it.
    New,
    /// It is open already.
    Known(KnownIntent),
}

/// The result of the start of a run.
#[derive(Debug)]
pub enum StartResult {
    /// The run may begin: its start is on the disk.
    New,
    /// The intent has started before, or was denied, and must not run. The claim is released.
    Known(KnownIntent),
    /// Another intent has started under the same proof. The claim is released.
    Replayed,
}

/// The intents that are open in this process.
#[derive(Debug)]
pub(super) struct OpenIntent {
    agent: AgentDid,
    content: [u8; 32],
    verdict: Option<Arc<Verdict>>,
    /// The run, once its start is on the disk.
    run: Option<RunId>,
    stage: watch::Sender<Stage>,
    keep_until: OffsetDateTime,
    /// The expiry of the latest verdict that arrived since, if it is later.
    extended: Option<OffsetDateTime>,
}

pub(super) type OpenIntents = Arc<Mutex<HashMap<IntentId, OpenIntent>>>;

/// A run that is about to begin.
#[derive(Debug)]
pub struct StartRequest<'a> {
    /// The call.
    pub call: &'a Call,
    /// The time until which the intent and its proof have to be known as used.
    pub keep_until: OffsetDateTime,
    /// The verdict's proof, which is valid for one intent.
    pub proof: Option<&'a ProofId>,
    /// The receipt that is written if the process ends before it can write another.
    pub fallback_receipt: &'a Receipt,
    /// The task of the run, if it is stored nowhere else yet.
    pub task: Option<&'a JournalTask>,
}

/// The intent, agent and tool of a call that has been consumed.
#[derive(Debug, Clone)]
pub struct IntentSummary {
    /// The intent.
    pub intent: IntentId,
    /// The agent.
    pub agent: AgentDid,
    /// The tool.
    pub tool: ToolName,
}

impl IntentSummary {
    /// The identity of a call.
    #[must_use]
    pub fn from_call(call: &Call) -> Self {
        Self { intent: call.intent, agent: call.agent.clone(), tool: call.tool.clone() }
    }
}

impl Journal {
    /// Looks up a known intent, before a governor is asked. A verdict that came with the call extends the time for
    /// which the intent is known to its expiry.
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
        // The disk comes second: an intent leaves memory only once its end is on the disk, so none is missed in
        // between.
        match self.recorded_state(call.intent)? {
            // A waiting intent is known to its holder.
            RecordedState::Unknown | RecordedState::Waiting(_) | RecordedState::Approved(..) => Ok(None),
            RecordedState::Denied(denied) if denied.body.held.content.0 == content => {
                Ok(Some(KnownIntent::Denied(denied.body.into())))
            }
            RecordedState::Claimed(claimed) if claimed.content == content => {
                if let Some(later) = expires_at.map(to_micros).filter(|until| *until > claimed.keep_until) {
                    self.send(JournalEntry::Extend(call.intent, later));
                }
                let over = self.final_stage(claimed.end, IfFull::Refuse).await?;
                Ok(Some(KnownIntent::Same(StageSource::Final(over), parse_verdict(&claimed)?.map(Arc::new))))
            }
            RecordedState::Denied(_) | RecordedState::Claimed(_) => Ok(Some(KnownIntent::Conflict)),
        }
    }

    fn recorded_state(&self, intent: IntentId) -> Result<RecordedState, JournalError> {
        self.read(|reader| reader.recorded_state(intent).map(Some))
            .map(|found| found.unwrap_or(RecordedState::Unknown))
    }

    /// The stage of an intent that is not open in this process.
    async fn final_stage(&self, end: RunEnd, if_full: IfFull) -> Result<Stage, JournalError> {
        let receipt = match end {
            // An earlier process started it, and opening the journal gave every such intent a receipt. This state is
            // therefore impossible, and is an error instead of an end.
            RunEnd::Pending => {
                return Err(JournalError::Broken("an intent is neither open nor over".into()));
            }
            RunEnd::Pruned => None,
            RunEnd::Receipt(number) => self.receipt(number, if_full).await?,
        };
        Ok(receipt.map_or(Stage::Pruned, Stage::Finished))
    }

    /// Claims an intent in this process.
    ///
    /// # Errors
    /// [`JournalError::Backlog`] while too many reports wait, [`JournalError::NoRoom`] while nothing can be written,
    /// [`JournalError::Broken`].
    pub fn claim(
        &self,
        call: &Call,
        keep_until: OffsetDateTime,
        verdict: Option<Arc<Verdict>>,
    ) -> Result<ClaimResult, JournalError> {
        let content = content_hash(call);
        let mut all = self.lock();
        if let Some(open) = all.get_mut(&call.intent) {
            open.extend(keep_until);
            return Ok(ClaimResult::Known(open.compare_content(content)));
        }
        // The condition comes second, so that a repeat of an open intent is answered while nothing can be written.
        match self.condition() {
            Condition::Works => {}
            Condition::Full => return Err(JournalError::NoRoom),
            Condition::Broken(error) => return Err(JournalError::Broken(error)),
        }
        // Each open intent will also need a place in the outbox.
        if self.outbox.undelivered_count().saturating_add(all.len()) >= self.max_undelivered {
            return Err(JournalError::Backlog);
        }
        let (agent, stage) = (call.agent.clone(), watch::channel(Stage::Queued).0);
        let open = OpenIntent { agent, content, verdict, run: None, stage, keep_until, extended: None };
        // A claim is not written: an intent whose process dies in the queue has not run, and may be sent again.
        all.insert(call.intent, open);
        Ok(ClaimResult::New)
    }

    /// Writes the start of a claimed intent to the disk. Its guest may begin only on [`StartResult::New`].
    ///
    /// # Errors
    /// [`JournalError`]; the claim is released.
    pub async fn start(
        &self,
        request: StartRequest<'_>,
        now: OffsetDateTime,
    ) -> Result<StartResult, JournalError> {
        let (call, keep_until) = (request.call, request.keep_until);
        let verdict = self.lock().get(&call.intent).and_then(|open| open.verdict.clone());
        let start = build_start_record(request, verdict.as_deref(), now)?;
        let reply = match self.request(|reply| JournalEntry::Start(Box::new(start), reply)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_no_room)) => Err(JournalError::NoRoom),
            Err(broken) => Err(broken),
        };
        if let Ok(StartReply::New(run)) = reply {
            if let Some(open) = self.lock().get_mut(&call.intent) {
                open.run = Some(run);
                open.stage.send_replace(Stage::Running);
            }
            return Ok(StartResult::New);
        }
        close_intent(&self.open, call.intent, Stage::Released);
        if reply? == StartReply::Replayed {
            return Ok(StartResult::Replayed);
        }
        let gone = || JournalError::Broken("an open intent disappeared".into());
        Ok(StartResult::Known(self.find(call, Some(keep_until)).await?.ok_or_else(gone)?))
    }

    /// Writes a receipt, its report in the outbox and the end of its task; all are on the disk on return. Waits while
    /// there is no room.
    ///
    /// # Errors
    /// [`JournalError::Broken`]: it is not known whether they are on the disk.
    pub async fn finish(
        &self,
        receipt: Arc<Receipt>,
        task: Option<JournalTask>,
        now: OffsetDateTime,
    ) -> Result<(), JournalError> {
        let long =
            usize::try_from(receipt.outcome.metrics.output_bytes).is_ok_and(|most| most > MAX_INLINE_BYTES);
        let written = Arc::clone(&receipt);
        let body = spawn_blocking_if_large(long, move || stored::write_receipt(&written)).await?.into();
        let intent = receipt.intent;
        let open = self.lock().get(&intent).and_then(|open| {
            open.stage.send_replace(Stage::Ended);
            Some((open.run?, open.extended))
        });
        let Some((run, extended)) = open else {
            return Err(JournalError::Broken("an intent finished that had not started".into()));
        };
        let finish = FinishRecord { run, receipt, body, task, ended: to_micros(now) };
        self.request(|reply| JournalEntry::Finish(Box::new(finish), reply)).await?;
        // Repeats during the run extend its claim in memory, so that one entry covers all of them.
        if let Some(until) = extended {
            self.send(JournalEntry::Extend(intent, to_micros(until)));
        }
        Ok(())
    }

    /// Releases a claim whose guest has not begun: the intent may be claimed again.
    ///
    /// # Errors
    /// [`JournalError::Broken`].
    pub async fn release(&self, intent: IntentId) -> Result<(), JournalError> {
        let run = self.lock().get(&intent).and_then(|open| open.run);
        let released = match run {
            Some(run) => self.request(|reply| JournalEntry::Release(run, intent, reply)).await,
            // A claim without a start is on no disk.
            None => Ok(()),
        };
        // The claim stays until then: a repeat in between would find the start on the disk and be told that it ran.
        close_intent(&self.open, intent, Stage::Released);
        released
    }

    /// The agent and the stage of a claimed intent.
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
        let RecordedState::Claimed(claimed) = self.recorded_state(intent)? else { return Ok(None) };
        let agent = AgentDid::parse(&claimed.agent);
        let agent = agent.map_err(|error| JournalError::Broken(BrokenError::from_read(error)))?;
        Ok(Some((agent, self.final_stage(claimed.end, if_full).await?)))
    }

    /// The governor's verdict for an intent that has started, if the executor asked the governor.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub fn verdict(&self, intent: IntentId) -> Result<Option<Verdict>, JournalError> {
        match self.recorded_state(intent)? {
            RecordedState::Claimed(claimed) => parse_verdict(&claimed),
            RecordedState::Unknown
            | RecordedState::Waiting(_)
            | RecordedState::Approved(..)
            | RecordedState::Denied(_) => Ok(None),
        }
    }

    /// The stage of an intent that is open in this process, as it changes.
    #[must_use]
    pub fn subscribe(&self, intent: IntentId) -> Option<watch::Receiver<Stage>> {
        self.lock().get(&intent).map(|open| open.stage.subscribe())
    }
}

fn build_start_record(
    request: StartRequest<'_>,
    verdict: Option<&Verdict>,
    now: OffsetDateTime,
) -> Result<StartRecord, JournalError> {
    let StartRequest { call, keep_until, proof, fallback_receipt, task } = request;
    Ok(StartRecord {
        intent: call.intent,
        agent: call.agent.clone(),
        tool: call.tool.clone(),
        content: content_hash(call),
        // Neither part contains white space.
        proof: proof.map(|proof| format!("{} {}", proof.issuer(), proof.identifier())),
        keep_until: to_micros(keep_until),
        started: to_micros(now),
        verdict: verdict.map(|verdict| to_row_text(stored::write_verdict(verdict))).transpose()?,
        fallback_receipt: to_row_text(stored::write_receipt(fallback_receipt))?,
        task: task.map(|task| to_row_text(task.to_text())).transpose()?,
    })
}

fn parse_verdict(claimed: &ClaimedIntent) -> Result<Option<Verdict>, JournalError> {
    let verdict = claimed.verdict.as_deref().map(|verdict| stored::read_verdict(verdict.get())).transpose();
    verdict.map_err(|error| JournalError::Broken(BrokenError::from_read(error)))
}

impl OpenIntent {
    /// A run that an earlier process left, and for whose receipt there has been no room yet.
    pub(super) fn from_earlier_process(finish: &FinishRecord, content: [u8; 32]) -> Self {
        Self {
            agent: finish.receipt.agent.clone(),
            content,
            verdict: None,
            run: Some(finish.run),
            stage: watch::channel(Stage::Ended).0,
            keep_until: OffsetDateTime::UNIX_EPOCH,
            extended: None,
        }
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
        self.extended = self.extended.max((until > self.keep_until).then_some(until));
    }
}

/// Removes an intent from the open ones, and sends its last stage to the tasks that wait for it.
pub(super) fn close_intent(all: &OpenIntents, intent: IntentId, stage: Stage) {
    let open = all.lock().remove(&intent);
    if let Some(open) = open {
        open.stage.send_replace(stage);
    }
}

/// The identity of a call: agent, tool and arguments. Keys are hashed in order of their names, so that the order in
/// which they were sent is irrelevant.
pub(super) fn content_hash(call: &Call) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in [call.agent.as_str(), call.tool.as_str()] {
        // The lengths keep two calls apart whose names meet at another place.
        hasher.update(part.len().to_le_bytes());
        hasher.update(part);
    }
    hash_object(&call.arguments, &mut hasher);
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
