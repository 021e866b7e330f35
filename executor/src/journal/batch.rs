//! One transaction of the writer: the effect of each entry on the records and on the tables that follow from them.

use super::chain::Hash;
use super::error::{WriteError, changed};
use super::log::{Log, New, Refusal, RefusalTip, Tip};
use super::record::{self, Digest32, Kind, digest};
use super::standing::{Standing, standing};
use super::store::Run;
use super::tasks::KeptTask;
use super::{Asked, Denial, Resolution, Resolved};
use crate::ident::{AgentDid, IntentId, ToolName};
use crate::outcome::Receipt;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::Serialize;
use serde_json::value::RawValue;
use std::sync::Arc;

/// A run that is about to begin.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) intent: IntentId,
    pub(super) agent: AgentDid,
    pub(super) tool: ToolName,
    pub(super) content: Hash,
    pub(super) proof: Option<String>,
    pub(super) keep_until: i64,
    pub(super) started: i64,
    pub(super) verdict: Option<String>,
    pub(super) will: String,
    pub(super) task: Option<String>,
}

/// The result of a [`Start`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Began {
    /// The start is on the disk, and no other call has it.
    New(Run),
    /// The intent has started before, or a person denied it.
    Known,
    /// Another intent has started under this proof.
    Replayed,
}

/// A receipt to be written.
#[derive(Debug, Clone)]
pub(super) struct Finish {
    pub(super) run: Run,
    pub(super) receipt: Arc<Receipt>,
    pub(super) body: Arc<str>,
    pub(super) task: Option<KeptTask>,
    pub(super) ended: i64,
}

/// An intent that is to wait.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) asked: Asked,
    pub(super) content: Hash,
    /// The text that a person is shown, verbatim.
    pub(super) text: String,
    /// The expiry of its verdict, in microseconds since 1970.
    pub(super) until: i64,
}

/// The result of a [`Hold`].
#[derive(Debug, Clone, PartialEq)]
pub enum Waits {
    /// It waits, since before or from now on.
    Yes,
    /// It has started.
    Started,
    /// A person denied it.
    Denied(Denial),
}

/// A caller stopped a run, or a queued intent.
#[derive(Debug)]
pub(super) struct Stop {
    pub(super) intent: IntentId,
    pub(super) by: String,
    pub(super) method: &'static str,
}

/// The governor revoked capabilities.
#[derive(Debug)]
pub(super) struct Revocation {
    /// The agent that loses them; every agent when it is `None`.
    pub(super) agent: Option<AgentDid>,
    /// Restricts the revocation to this intent.
    pub(super) intent: Option<IntentId>,
    pub(super) by: String,
    pub(super) stopped: usize,
}

/// One transaction.
pub(super) struct Batch<'a> {
    log: Log<'a>,
    refusals: RefusalTip,
    delivered: record::Delivered,
    /// In microseconds since 1970.
    now: i64,
}

impl<'a> Batch<'a> {
    pub(super) fn after(
        connection: &'a Connection,
        tip: Tip,
        refusals: RefusalTip,
        now: i64,
    ) -> Result<Self, WriteError> {
        Ok(Self { log: Log::after(connection, tip)?, refusals, delivered: Vec::new(), now })
    }

    /// Writes the records about the whole batch and the new ends of the chains. Returns those ends.
    pub(super) fn close(mut self) -> Result<(Tip, RefusalTip), WriteError> {
        if !self.delivered.is_empty() {
            let body = serde_json::to_vec(&self.delivered)?;
            self.log.append(Kind::Delivered, &New { at: self.now, body: &body, ..New::default() })?;
        }
        let is_new = self.log.has_new();
        if is_new {
            self.refusals.mark(&mut self.log, self.now)?;
        }
        self.log.save()?;
        Ok((self.log.tip, self.refusals))
    }

    pub(super) fn connection(&self) -> &'a Connection {
        self.log.connection
    }

    /// Appends a record about an intent with a JSON body.
    pub(super) fn append(
        &mut self,
        kind: Kind,
        new: New<'_>,
        body: &impl Serialize,
    ) -> Result<i64, WriteError> {
        let body = serde_json::to_vec(body)?;
        let at = if new.at == 0 { self.now } else { new.at };
        self.log.append(kind, &New { at, body: &body, ..new })
    }

    pub(super) fn start(&mut self, start: &Start) -> Result<Began, WriteError> {
        let Start { intent, agent, tool, content, proof, keep_until, started, verdict, will, task } = start;
        let held = match standing(self.connection(), *intent)? {
            Standing::Claimed(_) | Standing::Denied(_) => return Ok(Began::Known),
            Standing::Unknown => None,
            Standing::Waiting(held) | Standing::Approved(held, _) => Some(held.number),
        };
        if self.is_used(proof.as_deref())? {
            return Ok(Began::Replayed);
        }
        let body = record::Claim {
            content: Digest32(*content),
            keep_until: *keep_until,
            will: digest(will.as_bytes()),
            task: task.as_ref().map(|task| digest(task.as_bytes())),
            verdict: verdict.clone().map(RawValue::from_string).transpose()?,
        };
        let new = New {
            at: *started,
            intent: Some(*intent),
            agent: Some(agent.as_str()),
            tool: Some(tool.as_str()),
            about: held,
            proof: proof.as_deref(),
            ..New::default()
        };
        let run = Run(self.append(Kind::Claim, new, &body)?);
        self.connection()
            .prepare_cached("INSERT INTO open(run, will, task) VALUES (?1, ?2, ?3)")?
            .execute(params![run.0, will, task])?;
        held.map_or(Ok(()), |held| self.waits_no_longer(held))?;
        Ok(Began::New(run))
    }

    fn is_used(&self, proof: Option<&str>) -> Result<bool, WriteError> {
        let Some(proof) = proof else { return Ok(false) };
        let sql = "SELECT 1 FROM records WHERE proof = ?1";
        let used = self.connection().prepare_cached(sql)?.query_row([proof], |_| Ok(())).optional()?;
        Ok(used.is_some())
    }

    /// Writes a receipt and the task of its run. Returns the number of the record.
    pub(super) fn finish(&mut self, finish: &Finish) -> Result<i64, WriteError> {
        let Finish { run, receipt, body, task, ended } = finish;
        let new = New {
            at: *ended,
            intent: Some(receipt.intent),
            agent: Some(receipt.agent.as_str()),
            tool: Some(receipt.tool.as_str()),
            status: Some(receipt.outcome.end.status().as_str()),
            about: Some(run.0),
            body: body.as_bytes(),
            ..New::default()
        };
        let number = self.log.append(Kind::Receipt, &new)?;
        let closed = self
            .connection()
            .prepare_cached(
                "UPDATE open SET will = NULL, task = NULL, receipt = ?2 WHERE run = ?1 AND receipt IS NULL",
            )?
            .execute([run.0, number])?;
        if closed != 1 {
            return Err(changed(&format!("the row of `open` of the run {} is gone", run.0)));
        }
        task.as_ref().map_or(Ok(()), |task| self.keep_task(task))?;
        Ok(number)
    }

    /// Undoes the start of an intent that was refused before its guest began.
    pub(super) fn release(&mut self, run: Run, intent: IntentId) -> Result<(), WriteError> {
        let new = New { at: self.now, intent: Some(intent), about: Some(run.0), ..New::default() };
        self.log.append(Kind::Released, &new)?;
        self.connection().prepare_cached("DELETE FROM open WHERE run = ?1")?.execute([run.0])?;
        Ok(())
    }

    /// Extends the time for which a claim is known.
    pub(super) fn keep(&mut self, intent: IntentId, until: i64) -> Result<(), WriteError> {
        let Standing::Claimed(claimed) = standing(self.connection(), intent)? else { return Ok(()) };
        if until <= claimed.keep_until {
            return Ok(());
        }
        // Twice as far ahead as required, so that many verdicts, each a little later, make few records.
        let keep_until = until.saturating_add(until.saturating_sub(self.now).max(0));
        let new = New { intent: Some(intent), about: Some(claimed.number), ..New::default() };
        self.append(Kind::Kept, new, &record::Kept { keep_until }).map(drop)
    }

    pub(super) fn delivered(&mut self, run: Run, receipt: i64) -> Result<(), WriteError> {
        self.connection().prepare_cached("DELETE FROM open WHERE run = ?1")?.execute([run.0])?;
        self.delivered.push(receipt);
        Ok(())
    }

    /// Stores an escalated intent, unless it has started or was denied. The first verdict for it stays.
    pub(super) fn hold(&mut self, hold: &Hold) -> Result<Waits, WriteError> {
        let Hold { asked: Asked { intent, agent, tool }, content, text, until } = hold;
        match standing(self.connection(), *intent)? {
            Standing::Unknown => {}
            Standing::Waiting(_) | Standing::Approved(..) => return Ok(Waits::Yes),
            Standing::Claimed(_) => return Ok(Waits::Started),
            Standing::Denied(denied) => return Ok(Waits::Denied(denied.body.into())),
        }
        let body =
            record::Held { content: Digest32(*content), shown: digest(text.as_bytes()), until: *until };
        let (agent, tool) = (Some(agent.as_str()), Some(tool.as_str()));
        let new = New { intent: Some(*intent), agent, tool, ..New::default() };
        let number = self.append(Kind::Held, new, &body)?;
        self.connection()
            .prepare_cached("INSERT INTO waiting(number, text) VALUES (?1, ?2)")?
            .execute(params![number, text])?;
        Ok(Waits::Yes)
    }

    fn waits_no_longer(&self, held: i64) -> Result<(), WriteError> {
        self.connection().prepare_cached("DELETE FROM waiting WHERE number = ?1")?.execute([held])?;
        Ok(())
    }

    /// Applies a decision to a waiting intent. Returns `true` if it applies; an approved intent can only be taken back.
    pub(super) fn resolve(&mut self, resolved: &Resolved) -> Result<bool, WriteError> {
        let Resolved { intent, how, by, risk_score, manifest } = resolved;
        let held = match (standing(self.connection(), *intent)?, how) {
            (Standing::Waiting(held), _) => held,
            (
                Standing::Approved(held, _),
                Resolution::Cancelled | Resolution::Revoked | Resolution::Expired,
            ) => held,
            (Standing::Approved(..), Resolution::Approved | Resolution::Denied)
            | (Standing::Unknown | Standing::Denied(_) | Standing::Claimed(_), _) => return Ok(false),
        };
        let (by, manifest) = (by.clone(), manifest.clone());
        let body = record::Decided { by, held: held.body, risk_score: *risk_score, manifest };
        let new = New {
            intent: Some(*intent),
            agent: Some(&held.agent),
            tool: Some(&held.tool),
            about: Some(held.number),
            ..New::default()
        };
        self.append(how.kind(), new, &body)?;
        if *how != Resolution::Approved {
            self.waits_no_longer(held.number)?;
        }
        Ok(true)
    }

    pub(super) fn stop(&mut self, stop: &Stop) -> Result<(), WriteError> {
        let Stop { intent, by, method } = stop;
        let body = record::Stopped { by: by.clone(), method: (*method).to_owned() };
        self.append(Kind::Stopped, New { intent: Some(*intent), ..New::default() }, &body).map(drop)
    }

    pub(super) fn revoke(&mut self, revocation: &Revocation) -> Result<(), WriteError> {
        let Revocation { agent, intent, by, stopped } = revocation;
        let new = New { intent: *intent, agent: agent.as_ref().map(AgentDid::as_str), ..New::default() };
        let body = record::Revocation { by: by.clone(), stopped: *stopped };
        self.append(Kind::Revocation, new, &body).map(drop)
    }

    pub(super) fn refuse(&mut self, refusal: &Refusal) -> Result<(), WriteError> {
        self.refusals.append(self.log.connection, &refusal.as_refused())
    }

    /// Appends a record about a task, whose id is that of its intent.
    pub(super) fn about_task(&mut self, kind: Kind, task: IntentId, body: &[u8]) -> Result<(), WriteError> {
        let new = New { at: self.now, intent: Some(task), body, ..New::default() };
        self.log.append(kind, &new).map(drop)
    }
}
