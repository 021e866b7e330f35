//! Removal of old records from the front of the chain.
//!
//! The promises in them are written again at the end of the chain: intents that were used, that wait, or that a person
//! decided about, and the hashes of tasks. A record states the last removed record.

use super::chain::Hash;
use super::error::{OpenError, WriteError};
use super::log::{Extent, NewRecord, RecordLog, Tip};
use super::record::{self, Digest32, RecordKind};
use super::recorded_state::{ClaimedIntent, RecordedState, RunEnd, WaitingIntent, recorded_state};
use super::store::{self, open_writable, to_sqlite_int};
use super::to_micros;
use a2g_types::error_chain::BoxedError;
use a2g_types::ident::IntentId;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use serde::Serialize;
use std::path::Path;
use time::{Duration, OffsetDateTime};

/// The maximum number of records that one transaction prunes, so that a server that writes meanwhile waits briefly.
const MAX_PRUNED_PER_TRANSACTION: i64 = 10_000;

/// The time for which an intent stays known after its verdicts have expired. A clock that is ahead by less, for a
/// while, cannot make an intent run again.
const EXPIRED_RETENTION: Duration = Duration::DAY;

/// The reason for which nothing, or not everything, was pruned.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// The journal cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The journal cannot be written.
    #[error("the journal cannot be written")]
    Write(#[source] BoxedError),
}

impl From<WriteError> for PruneError {
    fn from(error: WriteError) -> Self {
        Self::Write(error.into())
    }
}

impl From<rusqlite::Error> for PruneError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Write(error.into())
    }
}

/// The numbers of pruned receipts, intents and tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PruneSummary {
    /// Removed receipts.
    pub receipts: u64,
    /// Removed intents: all of their verdicts expired a day ago or earlier.
    pub intents: u64,
    /// Removed tasks, which ended before the limit.
    pub tasks: u64,
}

/// Removes records that are older than `before`, from the front of the chain up to the first run that has not finished
/// or whose receipt the governor does not have, and forgets intents whose verdicts all expired a day ago or earlier. A
/// server may write meanwhile.
///
/// # Errors
/// [`PruneError`]. Records that were pruned before it stay pruned.
pub fn prune(path: &Path, before: OffsetDateTime, now: OffsetDateTime) -> Result<PruneSummary, PruneError> {
    let mut connection = open_writable(path)?;
    let mut pruned =
        PruneSummary { tasks: prune_tasks(&mut connection, before, now)?, ..PruneSummary::default() };
    // Records that are written from here on, including those of this function, are left for the next time.
    let end = Extent::read(&connection, "records")?.last;
    loop {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let extent = Extent::read(&transaction, "records")?;
        let cut = find_cut(&transaction, &extent, to_micros(before), end)?;
        if cut <= extent.first {
            return Ok(pruned);
        }
        let mut pruning = Pruning::begin(&transaction, &extent, cut, to_micros(now))?;
        pruning.carry_over()?;
        pruned.receipts += pruning.receipts;
        pruned.intents += pruning.forgotten;
        transaction.commit()?;
    }
}

/// Drops the tasks that ended before `before`, with a record for each.
fn prune_tasks(
    connection: &mut Connection,
    before: OffsetDateTime,
    now: OffsetDateTime,
) -> Result<u64, PruneError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut log = RecordLog::resume(&transaction, Tip::read(&transaction)?)?;
    let mut dropped = 0;
    {
        let mut statement = transaction.prepare("DELETE FROM tasks WHERE over < ?1 RETURNING task")?;
        let tasks = statement.query_map([to_micros(before)], |row| row.get(0).map(IntentId::from_bytes))?;
        for task in tasks.collect::<rusqlite::Result<Vec<_>>>()? {
            let new = NewRecord { at: to_micros(now), intent: Some(task), ..NewRecord::default() };
            log.append(RecordKind::TaskDropped, &new)?;
            dropped += 1;
        }
    }
    log.save()?;
    transaction.commit()?;
    Ok(dropped)
}

/// The last record that can be removed.
fn find_cut(connection: &Connection, extent: &Extent, before: i64, end: i64) -> rusqlite::Result<i64> {
    let most = extent.first.saturating_add(MAX_PRUNED_PER_TRANSACTION).min(end);
    // Records leave from the front alone, so that the rest is still one chain: an open run keeps everything after it.
    // A chain whose bodies can be erased in the middle would keep a skeleton of every run.
    let stays = connection.query_row(
        // The journal's own records have no meaning without those that they are about.
        "SELECT min(number) FROM records WHERE number > ?1 AND number <= ?2
         AND (at >= ?3 AND kind NOT IN ('delivered', 'refusals', 'pruned', 'migrated') OR number >= (SELECT coalesce(min(run), ?2 + 1) FROM open))",
        params![extent.first, most, before],
        |row| row.get::<_, Option<i64>>(0),
    )?;
    Ok(stays.map_or(most, |stays| stays - 1))
}

/// A record to be written again.
struct CarriedRecord {
    kind: RecordKind,
    intent: IntentId,
    agent: String,
    tool: String,
    about: Option<i64>,
    proof: Option<String>,
    body: Vec<u8>,
}

/// One transaction that removes records.
struct Pruning<'a> {
    connection: &'a Connection,
    extent: Extent,
    cut: i64,
    now: i64,
    log: RecordLog<'a>,
    receipts: u64,
    forgotten: u64,
}

impl<'a> Pruning<'a> {
    fn begin(connection: &'a Connection, extent: &Extent, cut: i64, now: i64) -> Result<Self, PruneError> {
        let log = RecordLog::resume(connection, Tip::read(connection)?)?;
        let sql = "SELECT count(*) FROM records WHERE number <= ?1 AND kind = 'receipt'";
        let receipts = connection.query_row(sql, [cut], |row| row.get(0).map(store::from_sqlite_int))?;
        Ok(Self { connection, extent: *extent, cut, now, log, receipts, forgotten: 0 })
    }

    fn carry_over(&mut self) -> Result<(), PruneError> {
        let sql = "SELECT intent FROM records WHERE number <= ?1 AND intent IS NOT NULL
                   GROUP BY intent ORDER BY min(number)";
        let mut statement = self.connection.prepare(sql)?;
        let intents = statement.query_map([self.cut], |row| row.get(0).map(IntentId::from_bytes))?;
        let mut carried = Vec::new();
        for intent in intents.collect::<rusqlite::Result<Vec<_>>>()? {
            self.carry_intent(intent, &mut carried)?;
        }
        // The new front of the chain is the hash of the last removed record.
        let at_cut = Tip::at_record(self.connection, self.cut, &self.extent)?;
        // The old claims go first: the unique index of proofs would refuse the carried ones beside them.
        self.connection.execute("DELETE FROM records WHERE number <= ?1", [self.cut])?;
        let mut held = None;
        for record in &carried {
            held = self.write_carried(record, held)?;
        }
        let body = record::PrunedBody {
            number: at_cut.number,
            hash: Digest32(at_cut.hash),
            receipts: to_sqlite_int(at_cut.head.number),
            checkpoint: Digest32(at_cut.head.hash),
        };
        let body = to_json(&body)?;
        self.log
            .append(RecordKind::Pruned, &NewRecord { at: self.now, body: &body, ..NewRecord::default() })?;
        self.connection.execute(
            "UPDATE chains SET first = ?1, first_hash = ?2, receipts = ?3, checkpoint = ?4 WHERE name = 'records'",
            params![at_cut.number, at_cut.hash, to_sqlite_int(at_cut.head.number), at_cut.head.hash],
        )?;
        Ok(self.log.save()?)
    }

    /// Writes a record again. A waiting intent keeps its text under the new number, and its decision refers to that
    /// number.
    fn write_carried(
        &mut self,
        carried: &CarriedRecord,
        held: Option<i64>,
    ) -> Result<Option<i64>, PruneError> {
        let CarriedRecord { kind, intent, agent, tool, about, proof, body } = carried;
        let about = if *kind == RecordKind::Approved { held } else { *about };
        let new = NewRecord {
            at: self.now,
            intent: Some(*intent),
            agent: (!agent.is_empty()).then_some(agent),
            tool: (!tool.is_empty()).then_some(tool),
            about: if *kind == RecordKind::Held { None } else { about },
            proof: proof.as_deref(),
            body,
            ..NewRecord::default()
        };
        let number = self.log.append(*kind, &new)?;
        if *kind != RecordKind::Held {
            return Ok(None);
        }
        self.connection
            .execute("UPDATE waiting SET number = ?2 WHERE number = ?1", params![carried.about, number])?;
        Ok(Some(number))
    }

    /// Collects the records to be written again for an intent that has records up to the cut.
    fn carry_intent(&mut self, intent: IntentId, carried: &mut Vec<CarriedRecord>) -> Result<(), PruneError> {
        let new = |kind, agent: String, tool: String, about, body| CarriedRecord {
            kind,
            intent,
            agent,
            tool,
            about,
            proof: None,
            body,
        };
        match recorded_state(self.connection, intent)? {
            RecordedState::Unknown => {}
            RecordedState::Waiting(WaitingIntent { number, agent, tool, body }) if number <= self.cut => {
                carried.push(new(RecordKind::Held, agent, tool, Some(number), to_json(&body)?));
            }
            RecordedState::Approved(WaitingIntent { number, agent, tool, body }, decided)
                if number <= self.cut =>
            {
                carried.push(new(
                    RecordKind::Held,
                    agent.clone(),
                    tool.clone(),
                    Some(number),
                    to_json(&body)?,
                ));
                carried.push(new(RecordKind::Approved, agent, tool, None, to_json(&decided)?));
            }
            RecordedState::Denied(denied) if denied.number <= self.cut => {
                // A denial goes as a run does: with an expired verdict the intent can no longer be approved.
                if self.is_known(denied.body.held.until) {
                    carried.push(new(
                        RecordKind::Denied,
                        denied.agent,
                        denied.tool,
                        None,
                        to_json(&denied.body)?,
                    ));
                } else {
                    self.forgotten += 1;
                }
            }
            RecordedState::Claimed(claimed) if claimed.number <= self.cut => {
                self.carry_claim(intent, claimed, carried)?
            }
            RecordedState::Waiting(_)
            | RecordedState::Approved(..)
            | RecordedState::Denied(_)
            | RecordedState::Claimed(_) => {}
        }
        // The row of the task stays, and a check would find it without a record.
        if let Some(hash) = self.task_hash(intent)? {
            carried.push(new(RecordKind::Task, String::new(), String::new(), None, hash.to_vec()));
        }
        Ok(())
    }

    fn is_known(&self, until: i64) -> bool {
        let longer = i64::try_from(EXPIRED_RETENTION.whole_microseconds()).unwrap_or(i64::MAX);
        until.saturating_add(longer) > self.now
    }

    fn carry_claim(
        &mut self,
        intent: IntentId,
        claimed: ClaimedIntent,
        carried: &mut Vec<CarriedRecord>,
    ) -> Result<(), PruneError> {
        let receipt = match claimed.end {
            RunEnd::Receipt(number) => Some(number),
            RunEnd::Pending | RunEnd::Pruned => None,
        };
        // A receipt that stays needs the content of its claim.
        let about = receipt.filter(|receipt| *receipt > self.cut);
        if about.is_none() && !self.is_known(claimed.keep_until) {
            self.forgotten += 1;
            return Ok(());
        }
        // A proof stays used for as long as its claim is known.
        let proof = "SELECT proof FROM records WHERE number = ?1";
        let proof = self.connection.query_row(proof, [claimed.number], |row| row.get(0))?;
        let body = to_json(&record::UsedBody {
            content: Digest32(claimed.content),
            keep_until: claimed.keep_until,
            verdict: about.and(claimed.verdict),
        })?;
        let (agent, tool) = (claimed.agent, claimed.tool);
        carried.push(CarriedRecord { kind: RecordKind::Used, intent, agent, tool, about, proof, body });
        Ok(())
    }

    /// The hash of a stored task from its last record, if that record is removed.
    fn task_hash(&self, task: IntentId) -> rusqlite::Result<Option<Hash>> {
        // `kind <> 'receipt'` is the condition of the partial index, which SQLite does not derive from `kind = 'task'`.
        let sql = "SELECT number, body FROM records WHERE intent = ?1 AND kind <> 'receipt' AND kind = 'task'
                   AND EXISTS (SELECT 1 FROM tasks WHERE task = ?1) ORDER BY number DESC LIMIT 1";
        let last = self
            .connection
            .prepare_cached(sql)?
            .query_row([task.as_bytes()], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)));
        Ok(last.optional()?.filter(|(number, _)| *number <= self.cut).map(|(_, hash)| hash))
    }
}

fn to_json(body: &impl Serialize) -> Result<Vec<u8>, PruneError> {
    serde_json::to_vec(body).map_err(|error| PruneError::Write(error.into()))
}
