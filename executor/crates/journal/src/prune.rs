//! Removes the oldest records of the chain, in small transactions with pauses between them, so that calls go on meanwhile.
//!
//! Records that are still needed are copied to the end of the chain: claims, waiting intents and decisions on them, the
//! hashes of tasks, the stops in force and the identity of the fleet. Another record names the last removed record.

use super::arguments;
use super::chain::Hash;
use super::error::{OpenError, WriteError};
use super::fleet;
use super::log::{Extent, NewRecord, RecordLog, Tip};
use super::record::{self, Digest32, RecordKind};
use super::recorded_state::{
    ClaimedIntent, DeniedIntent, RecordedState, RunEnd, WaitingIntent, recorded_state,
};
use super::stops::{self, StopCopy};
use super::store::{self, open_writable, to_sqlite_int};
use super::to_micros;
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::error_chain::BoxedError;
use a2g_types::ident::IntentId;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;
use time::{Duration, OffsetDateTime};

/// The maximum number of records or tasks that one transaction removes: a server that writes waits for it.
// 10,000 took 0.6 s.
pub(super) const MAX_PRUNED_PER_TRANSACTION: i64 = 250;
/// The number of bytes of removed texts after which a transaction ends. The pages of each have to be read.
const MAX_PRUNED_BYTES: i64 = 4 << 20;
/// The minimum pause after a transaction.
// A connection that waits for another's lock asks again after 1, 2, 5, 10, 15 and then up to 100 ms: so it finds the pause.
const MIN_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// The time for which an intent is stored after its verdicts have expired. A clock that is temporarily ahead by less
/// than this time cannot make an intent run again.
const EXPIRED_RETENTION: Duration = Duration::DAY;

/// The reason why pruning failed. Some records may have been removed already.
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
    /// The number of removed receipts.
    pub receipts: u64,
    /// The number of removed intents, whose verdicts all expired at least a day ago.
    pub intents: u64,
    /// The number of removed tasks.
    pub tasks: u64,
}

/// Removes the first records of the chain that are older than `before`, up to the first run that has not finished or
/// whose report is undelivered, and with them intents whose verdicts all expired at least a day ago. Also removes tasks
/// that ended before `before`. A server may write at the same time.
///
/// # Errors
/// [`PruneError`]. Records that were already removed stay removed.
pub fn prune(path: &Path, before: OffsetDateTime, now: OffsetDateTime) -> Result<PruneSummary, PruneError> {
    prune_while(path, before, Some(before), now, |_connection| Ok(true))
}

/// As [`prune`], until `goes_on` returns `false`; it is called before each transaction. Without `tasks_before`, no tasks are
/// removed.
pub(super) fn prune_while(
    path: &Path,
    before: OffsetDateTime,
    tasks_before: Option<OffsetDateTime>,
    now: OffsetDateTime,
    mut goes_on: impl FnMut(&Connection) -> rusqlite::Result<bool>,
) -> Result<PruneSummary, PruneError> {
    let mut connection = open_writable(path)?;
    let mut summary = PruneSummary::default();
    if let Some(before) = tasks_before {
        while goes_on(&connection)? {
            let begun = SystemClock.monotonic();
            let dropped = prune_tasks(&mut connection, before, now)?;
            summary.tasks += dropped;
            if dropped == 0 {
                break;
            }
            pause_after(begun);
        }
    }
    // Records that are written from now on, such as the copies, are not pruned.
    let end = Extent::read(&connection, "records")?.last;
    while goes_on(&connection)? {
        let begun = SystemClock.monotonic();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let extent = Extent::read(&transaction, "records")?;
        let cut = find_cut(&transaction, &extent, to_micros(before), end)?;
        if cut <= extent.first {
            break;
        }
        let mut pruning = Pruning::begin(&transaction, &extent, cut, to_micros(now))?;
        pruning.run()?;
        summary.receipts += pruning.receipts;
        summary.intents += pruning.dropped_intents;
        transaction.commit()?;
        pause_after(begun);
    }
    Ok(summary)
}

/// Pauses for as long as a transaction took, so that others write for at least half of the time.
fn pause_after(begun: Instant) {
    std::thread::sleep(SystemClock.monotonic().saturating_duration_since(begun).max(MIN_PAUSE));
}

/// Drops some of the tasks that ended before `before`, with a record for each. Returns their number.
fn prune_tasks(
    connection: &mut Connection,
    before: OffsetDateTime,
    now: OffsetDateTime,
) -> Result<u64, PruneError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut log = RecordLog::resume(&transaction, Tip::read(&transaction)?)?;
    let mut dropped = 0;
    {
        let sql = "DELETE FROM tasks WHERE number IN (SELECT number FROM tasks WHERE ended < ?1 LIMIT ?2)
                   RETURNING task";
        let mut statement = transaction.prepare_cached(sql)?;
        let params = params![to_micros(before), MAX_PRUNED_PER_TRANSACTION];
        let tasks = statement.query_map(params, |row| row.get(0).map(IntentId::from_bytes))?;
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

/// Finds the last record that can be removed.
fn find_cut(connection: &Connection, extent: &Extent, before: i64, end: i64) -> rusqlite::Result<i64> {
    let max_cut = extent.first.saturating_add(MAX_PRUNED_PER_TRANSACTION).min(end);
    let max_cut = limit_bytes(connection, extent.first, max_cut)?;
    // Only the first records can be removed, because the rest has to remain one chain. If bodies were erased in the
    // middle instead, the chain would still grow with every run.
    let first_needed = connection.query_row(
        // Records about the journal itself are removed at any age.
        "SELECT min(number) FROM records WHERE number > ?1 AND number <= ?2
         AND (at >= ?3 AND kind NOT IN ('delivered', 'refusals', 'pruned') OR number >= (SELECT coalesce(min(run), ?2 + 1) FROM open))",
        params![extent.first, max_cut, before],
        |row| row.get::<_, Option<i64>>(0),
    )?;
    Ok(first_needed.map_or(max_cut, |number| number - 1))
}

/// The last record up to `max_cut` with which the texts after `first` do not exceed the maximum, or the next record.
fn limit_bytes(connection: &Connection, first: i64, max_cut: i64) -> rusqlite::Result<i64> {
    // Neither function reads the text.
    let sql = "SELECT number, length(body) + coalesce(octet_length(text), 0)
               FROM records LEFT JOIN arguments USING (number)
               WHERE number > ?1 AND number <= ?2 ORDER BY number";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([first, max_cut])?;
    let mut cut = first;
    let mut bytes = 0_i64;
    while let Some(row) = rows.next()? {
        bytes = bytes.saturating_add(row.get(1)?);
        if bytes > MAX_PRUNED_BYTES && cut > first {
            return Ok(cut);
        }
        cut = row.get(0)?;
    }
    Ok(max_cut)
}

/// A record to copy to the end of the chain.
struct RecordCopy {
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
    /// The number of the last record to remove.
    cut: i64,
    now: i64,
    log: RecordLog<'a>,
    receipts: u64,
    dropped_intents: u64,
}

impl<'a> Pruning<'a> {
    fn begin(connection: &'a Connection, extent: &Extent, cut: i64, now: i64) -> Result<Self, PruneError> {
        let log = RecordLog::resume(connection, Tip::read(connection)?)?;
        let sql = "SELECT count(*) FROM records WHERE number <= ?1 AND kind = 'receipt'";
        let receipts = connection.query_row(sql, [cut], |row| row.get(0).map(store::from_sqlite_int))?;
        Ok(Self { connection, extent: *extent, cut, now, log, receipts, dropped_intents: 0 })
    }

    /// Copies the records that are needed, removes all records up to the cut, and records the pruning.
    fn run(&mut self) -> Result<(), PruneError> {
        let sql = "SELECT intent FROM records WHERE number <= ?1 AND intent IS NOT NULL
                   GROUP BY intent ORDER BY min(number)";
        let mut statement = self.connection.prepare(sql)?;
        let intents = statement.query_map([self.cut], |row| row.get(0).map(IntentId::from_bytes))?;
        let mut copies = Vec::new();
        for intent in intents.collect::<rusqlite::Result<Vec<_>>>()? {
            self.copy_intent(intent, &mut copies)?;
        }
        let stops = stops::up_to(self.connection, self.cut)?;
        // The hash of the last removed record is the new beginning of the chain.
        let at_cut = Tip::at_record(self.connection, self.cut, &self.extent)?;
        // Deleted before the copies are written: the unique index of proofs allows no second claim with the same proof.
        self.connection.execute("DELETE FROM records WHERE number <= ?1", [self.cut])?;
        arguments::prune(self.connection, self.cut)?;
        let mut held = None;
        for record in &copies {
            held = self.write_copy(record, held)?;
        }
        for stop in &stops {
            self.write_stop_copy(stop)?;
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

    /// Writes a copy. Returns the number of the copy of a wait: the row of the wait's text gets this number, and the
    /// copy of the approval, which follows, gets it as `held`.
    fn write_copy(&mut self, copy: &RecordCopy, held: Option<i64>) -> Result<Option<i64>, PruneError> {
        let RecordCopy { kind, intent, agent, tool, about, proof, body } = copy;
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
            .execute("UPDATE waiting SET number = ?2 WHERE number = ?1", params![copy.about, number])?;
        Ok(Some(number))
    }

    /// Writes a copy of a stop. The row of the stop gets its number.
    fn write_stop_copy(&mut self, stop: &StopCopy) -> Result<(), PruneError> {
        let StopCopy { number, agent, tool, body } = stop;
        let agent = agent.as_deref();
        let tool = tool.as_deref();
        let new = NewRecord { at: self.now, agent, tool, body, ..NewRecord::default() };
        let copy = self.log.append(RecordKind::StopSet, &new)?;
        self.connection.execute("UPDATE stops SET number = ?2 WHERE number = ?1", params![number, copy])?;
        Ok(())
    }

    /// Collects the copies for an intent that has records up to the cut.
    fn copy_intent(&mut self, intent: IntentId, copies: &mut Vec<RecordCopy>) -> Result<(), PruneError> {
        let new = |kind, agent: String, tool: String, about, body| RecordCopy {
            kind,
            intent,
            agent,
            tool,
            about,
            proof: None,
            body,
        };
        match recorded_state(self.connection, intent)? {
            RecordedState::Unknown | RecordedState::Withdrawn(_) => {}
            RecordedState::Waiting(WaitingIntent { number, agent, tool, body }) if number <= self.cut => {
                copies.push(new(RecordKind::Held, agent, tool, Some(number), to_json(&body)?));
            }
            RecordedState::Approved(WaitingIntent { number, agent, tool, body }, decided)
                if number <= self.cut =>
            {
                copies.push(new(
                    RecordKind::Held,
                    agent.clone(),
                    tool.clone(),
                    Some(number),
                    to_json(&body)?,
                ));
                copies.push(new(RecordKind::Approved, agent, tool, None, to_json(&decided)?));
            }
            RecordedState::Denied(DeniedIntent { number, agent, tool, body }) if number <= self.cut => {
                // With an expired verdict, the intent can no longer be approved.
                if self.must_retain(body.held.until) {
                    let body = to_json(&record::DecisionBody { arguments: None, ..body })?;
                    copies.push(new(RecordKind::Denied, agent, tool, None, body));
                } else {
                    self.dropped_intents += 1;
                }
            }
            RecordedState::Claimed(claimed) if claimed.number <= self.cut => {
                self.copy_claim(intent, claimed, copies)?
            }
            RecordedState::Waiting(_)
            | RecordedState::Approved(..)
            | RecordedState::Denied(_)
            | RecordedState::Claimed(_) => {}
        }
        if *intent.as_bytes() == fleet::FLEET_ID
            && let Some((number, identity)) = fleet::latest(self.connection)?
            && number <= self.cut
        {
            copies.push(new(RecordKind::Fleet, String::new(), String::new(), None, identity.into_bytes()));
        }
        // The row of the task stays, and needs a record with its hash.
        if let Some(hash) = self.task_hash(intent)? {
            copies.push(new(RecordKind::Task, String::new(), String::new(), None, hash.to_vec()));
        }
        Ok(())
    }

    /// `true` if an intent whose last verdict expires at `until` must still be stored.
    fn must_retain(&self, until: i64) -> bool {
        let retention = i64::try_from(EXPIRED_RETENTION.whole_microseconds()).unwrap_or(i64::MAX);
        until.saturating_add(retention) > self.now
    }

    fn copy_claim(
        &mut self,
        intent: IntentId,
        claimed: ClaimedIntent,
        copies: &mut Vec<RecordCopy>,
    ) -> Result<(), PruneError> {
        let receipt = match claimed.end {
            RunEnd::Receipt(number) => Some(number),
            RunEnd::Pending | RunEnd::Pruned => None,
        };
        // A receipt after the cut stays, and needs the content of its claim.
        let about = receipt.filter(|receipt| *receipt > self.cut);
        if about.is_none() && !self.must_retain(claimed.keep_until) {
            self.dropped_intents += 1;
            return Ok(());
        }
        // The proof is stored as long as its claim.
        let proof = "SELECT proof FROM records WHERE number = ?1";
        let proof = self.connection.query_row(proof, [claimed.number], |row| row.get(0))?;
        let body = to_json(&record::UsedBody {
            content: Digest32(claimed.content),
            keep_until: claimed.keep_until,
            verdict: about.and(claimed.verdict),
        })?;
        let agent = claimed.agent;
        let tool = claimed.tool;
        copies.push(RecordCopy { kind: RecordKind::Used, intent, agent, tool, about, proof, body });
        Ok(())
    }

    /// The hash of a stored task from its last record, if that record is up to the cut.
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
