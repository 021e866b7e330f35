//! One transaction of the writer: the effect of each entry on the records and on the tables derived from them.

use super::arguments;
use super::chain::Hash;
use super::error::{WriteError, changed_error};
use super::log::{NewRecord, RecordLog, RefusalRecord, RefusalTip, Tip};
use super::record::{self, Digest32, RecordKind, digest};
use super::recorded_state::{RecordedState, recorded_state};
use super::store::{CommitSync, RunId, rewrite_page};
use super::tasks::JournalTask;
use super::{IntentDenial, IntentSummary, Reporting, Resolution, ResolvedIntent, to_micros};
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::Receipt;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::Serialize;
use serde_json::value::RawValue;
use std::sync::Arc;

/// The size of a record and of its index entries without texts, in bytes, as it is counted for an agent's share.
pub(super) const RECORD_BYTES: usize = 512;

/// A run that is about to begin.
#[derive(Debug)]
pub(super) struct StartRecord {
    pub(super) intent: IntentId,
    pub(super) agent: AgentDid,
    pub(super) tool: ToolName,
    pub(super) content: Hash,
    /// Issuer and single-use id of the verdict's proof.
    pub(super) proof: Option<String>,
    /// In microseconds since 1970.
    pub(super) keep_until: i64,
    /// In microseconds since 1970.
    pub(super) started: i64,
    pub(super) verdict: Option<String>,
    pub(super) fallback_receipt: String,
    pub(super) task: Option<String>,
    pub(super) sync: CommitSync,
    /// The text of the arguments, if they are stored.
    pub(super) arguments: Option<String>,
}

impl StartRecord {
    /// The length of the texts that are written.
    pub(super) fn bytes(&self) -> usize {
        let texts = [
            self.verdict.as_ref(),
            Some(&self.fallback_receipt),
            self.task.as_ref(),
            self.arguments.as_ref(),
        ];
        RECORD_BYTES + texts.into_iter().flatten().map(String::len).sum::<usize>()
    }
}

/// The answer to a [`StartRecord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartReply {
    /// The start is recorded, and this call runs the intent.
    New(RunId),
    /// The intent has already started, or a person denied it.
    Known,
    /// Another intent has started with this proof.
    Replayed,
    /// The intent waits or has waited with other content.
    Conflict,
}

/// A receipt to write.
#[derive(Debug, Clone)]
pub(super) struct FinishRecord {
    pub(super) run: RunId,
    pub(super) receipt: Arc<Receipt>,
    pub(super) body: Arc<str>,
    pub(super) task: Option<JournalTask>,
    /// In microseconds since 1970.
    pub(super) ended: i64,
    /// The executor that is expected to deliver the report.
    pub(super) reporting: Reporting,
}

impl FinishRecord {
    /// The length of the texts that are written.
    pub(super) fn bytes(&self) -> usize {
        RECORD_BYTES + self.body.len() + self.task.as_ref().map_or(0, |task| task.document.len())
    }
}

/// An intent to hold for a decision.
#[derive(Debug)]
pub(super) struct HoldRecord {
    pub(super) summary: IntentSummary,
    pub(super) content: Hash,
    /// The text shown to the person who decides, verbatim.
    pub(super) text: String,
    /// The expiry of its verdict, in microseconds since 1970.
    pub(super) until: i64,
}

/// The result of holding an escalated intent.
#[derive(Debug, Clone, PartialEq)]
pub enum HoldResult {
    /// The intent waits; it may already have waited before.
    Waiting,
    /// The intent is known with other content, and the given content does not wait.
    Conflict,
    /// The intent has started.
    Started,
    /// A person denied the intent.
    Denied(IntentDenial),
}

/// The stop of a run or a queued intent by a caller.
#[derive(Debug)]
pub(super) struct StopRecord {
    pub(super) intent: IntentId,
    pub(super) by: String,
    pub(super) method: &'static str,
}

/// A revocation by the governor.
#[derive(Debug)]
pub(super) struct RevocationRecord {
    /// The agent that loses its capabilities; `None` for every agent.
    pub(super) agent: Option<AgentDid>,
    /// The only intent that is revoked; `None` for every intent.
    pub(super) intent: Option<IntentId>,
    pub(super) by: String,
    /// The number of runs and waiting intents that the revocation ended.
    pub(super) stopped: usize,
}

/// One transaction of the writer.
pub(super) struct Batch<'a> {
    log: RecordLog<'a>,
    refusals: RefusalTip,
    delivered: record::DeliveredBody,
    /// In microseconds since 1970.
    now: i64,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        tip: Tip,
        refusals: RefusalTip,
        now: i64,
    ) -> Result<Self, WriteError> {
        Ok(Self { log: RecordLog::resume(connection, tip)?, refusals, delivered: Vec::new(), now })
    }

    /// Writes the records that cover the whole batch, and the new ends of the chains. Returns these ends.
    pub(super) fn close(mut self) -> Result<(Tip, RefusalTip), WriteError> {
        if !self.delivered.is_empty() {
            let body = serde_json::to_vec(&self.delivered)?;
            self.log.append(
                RecordKind::Delivered,
                &NewRecord { at: self.now, body: &body, ..NewRecord::default() },
            )?;
        }
        let is_new = self.log.has_new();
        // A batch with only refusals adds no mark: a flood of them would otherwise fill the main chain, which only
        // pruning shortens.
        if is_new {
            self.refusals.mark(&mut self.log, self.now)?;
        }
        self.log.save()?;
        Ok((self.log.tip, self.refusals))
    }

    /// Adds no record. A commit that syncs then syncs SQLite's log, and with it every earlier transaction.
    pub(super) fn rewrite(&self) -> Result<(), WriteError> {
        Ok(rewrite_page(self.connection())?)
    }

    pub(super) fn connection(&self) -> &'a Connection {
        self.log.connection
    }

    /// Appends a record with a JSON body. A time of 0 means the time of the batch.
    pub(super) fn append(
        &mut self,
        kind: RecordKind,
        new: NewRecord<'_>,
        body: &impl Serialize,
    ) -> Result<i64, WriteError> {
        let body = serde_json::to_vec(body)?;
        let at = if new.at == 0 { self.now } else { new.at };
        self.log.append(kind, &NewRecord { at, body: &body, ..new })
    }

    pub(super) fn start(&mut self, start: &StartRecord) -> Result<StartReply, WriteError> {
        let StartRecord {
            intent,
            agent,
            tool,
            content,
            proof,
            keep_until,
            started,
            verdict,
            fallback_receipt,
            task,
            sync: _,
            arguments,
        } = start;
        // Read inside the transaction: another run may have ended since the caller's own look-up.
        let held = match recorded_state(self.connection(), *intent)? {
            RecordedState::Claimed(_) | RecordedState::Denied(_) => return Ok(StartReply::Known),
            RecordedState::Unknown => None,
            RecordedState::Withdrawn(known) if known == *content => None,
            RecordedState::Waiting(held) | RecordedState::Approved(held, _)
                if held.body.content.0 == *content =>
            {
                Some(held.number)
            }
            RecordedState::Withdrawn(_) | RecordedState::Waiting(_) | RecordedState::Approved(..) => {
                return Ok(StartReply::Conflict);
            }
        };
        // The unique index would also refuse a used proof, but its error would break the journal instead of refusing
        // one call.
        if self.is_proof_used(proof.as_deref())? {
            return Ok(StartReply::Replayed);
        }
        let body = record::ClaimBody {
            content: Digest32(*content),
            keep_until: *keep_until,
            // The record has only the hash: the text is in `open` until the run has its receipt, and the hash reveals a
            // change of the text.
            fallback_receipt: digest(fallback_receipt.as_bytes()),
            task: task.as_ref().map(|task| digest(task.as_bytes())),
            verdict: verdict.clone().map(RawValue::from_string).transpose()?,
            arguments: arguments.as_ref().map(|text| digest(text.as_bytes())),
        };
        let new = NewRecord {
            at: *started,
            intent: Some(*intent),
            agent: Some(agent.as_str()),
            tool: Some(tool.as_str()),
            about: held,
            proof: proof.as_deref(),
            ..NewRecord::default()
        };
        let run = RunId(self.append(RecordKind::Claim, new, &body)?);
        arguments::insert(self.connection(), run.0, arguments.as_ref())?;
        self.connection()
            // The fallback receipt is on the disk before the guest begins, so that recovery needs no other source.
            .prepare_cached("INSERT INTO open(run, fallback_receipt, task) VALUES (?1, ?2, ?3)")?
            .execute(params![run.0, fallback_receipt, task])?;
        // Removed in the same transaction, so that a crash never leaves an intent that has started and can still be
        // approved.
        held.map_or(Ok(()), |held| self.remove_waiting_row(held))?;
        Ok(StartReply::New(run))
    }

    fn is_proof_used(&self, proof: Option<&str>) -> Result<bool, WriteError> {
        let Some(proof) = proof else { return Ok(false) };
        let sql = "SELECT 1 FROM records WHERE proof = ?1";
        let row = self.connection().prepare_cached(sql)?.query_row([proof], |_| Ok(())).optional()?;
        Ok(row.is_some())
    }

    /// Writes a receipt and the task of its run. Returns the number of the receipt's record.
    pub(super) fn finish(&mut self, finish: &FinishRecord) -> Result<i64, WriteError> {
        let FinishRecord { run, receipt, body, task, ended, reporting: _ } = finish;
        let new = NewRecord {
            at: *ended,
            intent: Some(receipt.intent),
            agent: Some(receipt.agent.as_str()),
            tool: Some(receipt.tool.as_str()),
            status: Some(receipt.outcome.end.status().as_str()),
            about: Some(run.0),
            body: body.as_bytes(),
            ..NewRecord::default()
        };
        let number = self.log.append(RecordKind::Receipt, &new)?;
        let updated = self
            .connection()
            .prepare_cached(
                "UPDATE open SET fallback_receipt = NULL, task = NULL, receipt = ?2
                 WHERE run = ?1 AND receipt IS NULL",
            )?
            .execute([run.0, number])?;
        // A row that is missing, or already has a receipt, was changed by another program: continuing would hide that.
        if updated != 1 {
            return Err(changed_error(&format!("table `open` has no open row for the run {}", run.0)));
        }
        // Written in the same transaction: a client that has seen this end must not see another one after a crash.
        task.as_ref().map_or(Ok(()), |task| self.store_task(task))?;
        Ok(number)
    }

    /// Releases the claim of an intent that was refused before its guest began.
    pub(super) fn release(&mut self, run: RunId, intent: IntentId) -> Result<(), WriteError> {
        let new =
            NewRecord { at: self.now, intent: Some(intent), about: Some(run.0), ..NewRecord::default() };
        self.log.append(RecordKind::Released, &new)?;
        self.connection().prepare_cached("DELETE FROM open WHERE run = ?1")?.execute([run.0])?;
        Ok(())
    }

    /// Extends the time for which a claim is stored.
    pub(super) fn extend_claim(&mut self, intent: IntentId, until: i64) -> Result<(), WriteError> {
        // A claim that was released in the meantime is not extended: its intent may run again.
        let RecordedState::Claimed(claimed) = recorded_state(self.connection(), intent)? else {
            return Ok(());
        };
        if until <= claimed.keep_until {
            return Ok(());
        }
        // The remaining time is doubled, so that many verdicts that each expire a little later add few records.
        let keep_until = until.saturating_add(until.saturating_sub(self.now).max(0));
        let new = NewRecord { intent: Some(intent), about: Some(claimed.number), ..NewRecord::default() };
        self.append(RecordKind::Kept, new, &record::KeptBody { keep_until }).map(drop)
    }

    pub(super) fn mark_delivered(&mut self, run: RunId, receipt: i64) -> Result<(), WriteError> {
        self.connection().prepare_cached("DELETE FROM open WHERE run = ?1")?.execute([run.0])?;
        self.delivered.push(receipt);
        Ok(())
    }

    /// Stores an escalated intent, unless it has started, was denied, or is known with other content. A later verdict does
    /// not replace the first one.
    pub(super) fn hold(&mut self, hold: &HoldRecord) -> Result<HoldResult, WriteError> {
        let HoldRecord { summary: IntentSummary { intent, agent, tool }, content, text, until } = hold;
        // The caller looked the intent up before it asked the governor. Since then, the id may have waited with other
        // content that a person has seen.
        match recorded_state(self.connection(), *intent)? {
            RecordedState::Unknown => {}
            RecordedState::Withdrawn(known) if known == *content => {}
            RecordedState::Waiting(held) | RecordedState::Approved(held, _)
                if held.body.content.0 == *content =>
            {
                return Ok(HoldResult::Waiting);
            }
            RecordedState::Claimed(claimed) if claimed.content == *content => return Ok(HoldResult::Started),
            RecordedState::Denied(denied) if denied.body.held.content.0 == *content => {
                return Ok(HoldResult::Denied(denied.body.into()));
            }
            RecordedState::Withdrawn(_)
            | RecordedState::Waiting(_)
            | RecordedState::Approved(..)
            | RecordedState::Claimed(_)
            | RecordedState::Denied(_) => return Ok(HoldResult::Conflict),
        }
        let body = record::HeldBody {
            content: Digest32(*content),
            text_hash: digest(text.as_bytes()),
            until: *until,
        };
        let agent = Some(agent.as_str());
        let tool = Some(tool.as_str());
        let new = NewRecord { intent: Some(*intent), agent, tool, ..NewRecord::default() };
        let number = self.append(RecordKind::Held, new, &body)?;
        self.connection()
            .prepare_cached("INSERT INTO waiting(number, text) VALUES (?1, ?2)")?
            .execute(params![number, text])?;
        Ok(HoldResult::Waiting)
    }

    fn remove_waiting_row(&self, held: i64) -> Result<(), WriteError> {
        self.connection().prepare_cached("DELETE FROM waiting WHERE number = ?1")?.execute([held])?;
        Ok(())
    }

    /// Applies a decision to a waiting intent, if the intent still has the content that was decided on. An approved
    /// intent can only be cancelled, revoked or expire. Returns `true` if the decision applied.
    pub(super) fn resolve(&mut self, resolved: &ResolvedIntent) -> Result<bool, WriteError> {
        let ResolvedIntent {
            intent,
            at,
            content,
            resolution,
            by,
            risk_score,
            manifest,
            reason,
            basis,
            grants,
            arguments,
        } = resolved;
        let held = match (recorded_state(self.connection(), *intent)?, resolution) {
            (RecordedState::Waiting(held), _) => held,
            (
                RecordedState::Approved(held, _),
                Resolution::Cancelled | Resolution::Revoked | Resolution::Expired,
            ) => held,
            // An approved intent may already be starting, so a denial could not be enforced.
            (
                RecordedState::Approved(..),
                Resolution::PartlyApproved | Resolution::Approved | Resolution::Denied,
            )
            | (
                RecordedState::Unknown
                | RecordedState::Withdrawn(_)
                | RecordedState::Denied(_)
                | RecordedState::Claimed(_),
                _,
            ) => {
                return Ok(false);
            }
        };
        if content.is_some_and(|decided_on| decided_on != held.body.content.0) {
            return Ok(false);
        }
        let by = by.clone();
        let manifest = manifest.clone();
        let reason = reason.clone();
        // The decision repeats the body of the wait, because pruning removes the record of the wait before the denial.
        let basis = basis.map(record::Digest32);
        let held_body = held.body;
        let risk_score = *risk_score;
        let grants = grants.clone();
        let body = record::DecisionBody {
            by,
            held: held_body,
            risk_score,
            manifest,
            reason,
            basis,
            grants,
            arguments: arguments.as_ref().map(|text| digest(text.as_bytes())),
        };
        let new = NewRecord {
            at: to_micros(*at),
            intent: Some(*intent),
            agent: Some(&held.agent),
            tool: Some(&held.tool),
            about: Some(held.number),
            ..NewRecord::default()
        };
        let number = self.append(resolution.kind(), new, &body)?;
        arguments::insert(self.connection(), number, arguments.as_ref())?;
        match resolution {
            // An approved intent keeps its text until it starts: after a crash in between it still has to run.
            Resolution::PartlyApproved | Resolution::Approved => {}
            Resolution::Denied | Resolution::Cancelled | Resolution::Revoked | Resolution::Expired => {
                self.remove_waiting_row(held.number)?;
            }
        }
        Ok(true)
    }

    pub(super) fn record_stop(&mut self, stop: &StopRecord) -> Result<(), WriteError> {
        let StopRecord { intent, by, method } = stop;
        let body = record::StopBody { by: by.clone(), method: (*method).to_owned() };
        self.append(RecordKind::Stopped, NewRecord { intent: Some(*intent), ..NewRecord::default() }, &body)
            .map(drop)
    }

    pub(super) fn record_revocation(&mut self, revocation: &RevocationRecord) -> Result<(), WriteError> {
        let RevocationRecord { agent, intent, by, stopped } = revocation;
        let new = NewRecord {
            intent: *intent,
            agent: agent.as_ref().map(AgentDid::as_str),
            ..NewRecord::default()
        };
        let body = record::RevocationBody { by: by.clone(), stopped: *stopped };
        self.append(RecordKind::Revocation, new, &body).map(drop)
    }

    pub(super) fn record_refusal(&mut self, refusal: &RefusalRecord) -> Result<(), WriteError> {
        self.refusals.append(self.log.connection, &refusal.as_row())
    }

    /// Appends a record about a task, whose id is that of its intent, or about the fleet.
    pub(super) fn append_about(
        &mut self,
        kind: RecordKind,
        intent: IntentId,
        body: &[u8],
    ) -> Result<(), WriteError> {
        let new = NewRecord { at: self.now, intent: Some(intent), body, ..NewRecord::default() };
        self.log.append(kind, &new).map(drop)
    }
}
