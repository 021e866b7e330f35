//! Everything that the journal knows about one intent, for the page of a run.

use super::arguments::StoredFor;
use super::chain::Hash;
use super::from_micros;
use super::history::{HistoryError, find_entry, find_verdict};
use super::log::{Extent, find_hash};
use super::record::{self, JournalRecord, RECORD_COLUMNS, RecordKind};
use super::recorded_state::{parse_body, receipt_record};
use super::store::{Reader, from_sqlite_int};
use a2g_types::call::StoredArguments;
use a2g_types::grant::GrantSummary;
use a2g_types::ident::IntentId;
use a2g_types::outcome::Receipt;
use a2g_types::verdict::{Manifest, Verdict};
use rusqlite::{OptionalExtension as _, params};
use time::OffsetDateTime;

/// The maximum number of records of one intent that are listed. Only an intent whose task changes often has more.
const MAX_EVENTS: usize = 1_000;

/// An intent with its records, and with its receipt if it has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// The intent.
    pub intent: IntentId,
    /// The agent; the latest one that has used the id.
    pub agent: String,
    /// The tool.
    pub tool: String,
    /// The records of this agent's intent, that of its receipt included, oldest first; only the first 1,000. A record
    /// without an agent, such as a stop, is that of the agent of the record before it.
    pub events: Vec<RecordedEvent>,
    /// The governor's verdict, if the intent has started and the executor asked the governor.
    pub verdict: Option<Verdict>,
    /// The manifest that replaces the verdict's, if a person approved the intent with one.
    pub approved_manifest: Option<Manifest>,
    /// The grant that the person was shown who approved the intent last, if a page showed one.
    pub approved_grant: Option<GrantSummary>,
    /// The arguments of the latest start, or of the latest wait that ended without one; `None` if they are not stored.
    pub arguments: Option<StoredArguments>,
    /// The receipt; `None` if the run has not ended, or the receipt was pruned.
    pub receipt: Option<RecordedReceipt>,
}

/// A receipt with its place in the chain.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedReceipt {
    /// The number of its record.
    pub record: u64,
    /// The number among the receipts, from 1.
    pub number: u64,
    /// The end of the run.
    pub ended: OffsetDateTime,
    /// `true` if the report was delivered to the governor.
    pub delivered: bool,
    /// The hash of the record.
    pub hash: Hash,
    /// The hash of the record before it, which `hash` covers.
    pub previous_hash: Option<Hash>,
    /// The receipt.
    pub receipt: Receipt,
}

/// A record of an intent, in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedEvent {
    /// The number of the record.
    pub record: u64,
    /// The name of its kind, such as `held`, `approved`, `claim` or `receipt`.
    pub kind: &'static str,
    /// The time at which it was written.
    pub at: OffsetDateTime,
    /// The caller that decided or stopped the run, or the reason why a decision was no longer possible.
    pub by: Option<String>,
    /// The reason that a person gave.
    pub reason: Option<String>,
    /// The hash of what the person was shown, if a page showed it.
    pub basis: Option<Hash>,
}

/// A record as it is read, with the columns that only some records have.
struct EventRow {
    event: RecordedEvent,
    kind: RecordKind,
    manifest: Option<Manifest>,
    grant: Option<GrantSummary>,
}

impl RunRecord {
    /// `true` if the verdict of the last wait expired before anybody decided.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.events.last().is_some_and(|event| event.kind == RecordKind::Expired.as_str())
    }
}

impl EventRow {
    fn new(record: &JournalRecord<'_>) -> rusqlite::Result<Self> {
        let mut manifest = None;
        let mut grant = None;
        let mut reason = None;
        let mut basis = None;
        let by = match record.kind {
            RecordKind::PartlyApproved
            | RecordKind::Approved
            | RecordKind::Denied
            | RecordKind::Cancelled
            | RecordKind::Revoked
            | RecordKind::Expired => {
                let decided = parse_body::<record::DecisionBody>(record.body)?;
                manifest = decided.manifest;
                // Each approver was shown a grant, and the last one that of all approvals together.
                grant = decided.grants.into_iter().next_back();
                reason = decided.reason;
                basis = decided.basis.map(|record::Digest32(hash)| hash);
                Some(decided.by)
            }
            RecordKind::Stopped => Some(parse_body::<record::StopBody>(record.body)?.by),
            RecordKind::Revocation => Some(parse_body::<record::RevocationBody>(record.body)?.by),
            RecordKind::Claim
            | RecordKind::Receipt
            | RecordKind::Released
            | RecordKind::Kept
            | RecordKind::Delivered
            | RecordKind::Held
            | RecordKind::Task
            | RecordKind::TaskDropped
            | RecordKind::Refusals
            | RecordKind::Used
            | RecordKind::Pruned
            | RecordKind::StopSet
            | RecordKind::StopLifted
            | RecordKind::Fleet => None,
        };
        let number = from_sqlite_int(record.number);
        let at = from_micros(record.at);
        Ok(Self {
            event: RecordedEvent { record: number, kind: record.kind.as_str(), at, by, reason, basis },
            kind: record.kind,
            manifest,
            grant,
        })
    }
}

impl Reader {
    pub(super) fn run_record(&self, intent: IntentId) -> Result<Option<RunRecord>, HistoryError> {
        // One snapshot for several queries.
        let _snapshot = self.connection().unchecked_transaction()?;
        let receipt_record = receipt_record(self.connection(), intent)?;
        let Some((agent, tool)) = self.latest_user(intent)? else { return Ok(None) };
        let rows = self.event_rows(intent, &agent, receipt_record)?;
        let approval = last_approval(&rows);
        Ok(Some(RunRecord {
            intent,
            verdict: find_verdict(self.connection(), intent)?,
            approved_manifest: approval.and_then(|approval| approval.manifest.clone()),
            approved_grant: approval.and_then(|approval| approval.grant.clone()),
            arguments: self.arguments(intent, &agent, StoredFor::Call)?,
            receipt: receipt_record.map(|record| self.recorded_receipt(record)).transpose()?.flatten(),
            events: rows.into_iter().map(|row| row.event).collect(),
            agent,
            tool,
        }))
    }

    /// The latest agent that has used an id, and its tool.
    fn latest_user(&self, intent: IntentId) -> rusqlite::Result<Option<(String, String)>> {
        // A revocation has an agent, which may be another one, and no tool.
        let sql = "SELECT agent, tool FROM records
                   WHERE intent = ?1 AND kind <> 'receipt' AND agent IS NOT NULL AND tool IS NOT NULL
                   ORDER BY number DESC LIMIT 1";
        let mut statement = self.connection().prepare_cached(sql)?;
        statement.query_row([intent.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?))).optional()
    }

    /// The first records of an agent's intent.
    fn event_rows(
        &self,
        intent: IntentId,
        agent: &str,
        receipt: Option<i64>,
    ) -> rusqlite::Result<Vec<EventRow>> {
        // `History::records` reads every record, and so also finds those that no index has. A console asks too often
        // for that, so this uses the index of intents, and adds the receipt, which that index lacks, by its number.
        let sql = format!(
            "SELECT {RECORD_COLUMNS} FROM records
             WHERE number IN (SELECT number FROM records WHERE intent = ?1 AND kind <> 'receipt'
                              UNION ALL SELECT ?2)
             ORDER BY number"
        );
        let mut statement = self.connection().prepare_cached(&sql)?;
        let mut rows = statement.query(params![intent.as_bytes(), receipt])?;
        let mut events = Vec::new();
        let mut is_own = false;
        while events.len() < MAX_EVENTS
            && let Some(row) = rows.next()?
        {
            let (record, _hash) = JournalRecord::read(row)?;
            // A record without a tool, such as a release, is about the call of the record before it.
            if record.tool.is_some() {
                is_own = record.agent == Some(agent);
            }
            if is_own && record.agent.is_none_or(|named| named == agent) {
                events.push(EventRow::new(&record)?);
            }
        }
        Ok(events)
    }

    fn recorded_receipt(&self, record: i64) -> Result<Option<RecordedReceipt>, HistoryError> {
        let Some(entry) = find_entry(self.connection(), record)? else { return Ok(None) };
        Ok(Some(RecordedReceipt {
            record: from_sqlite_int(record),
            number: entry.number,
            ended: entry.ended,
            delivered: entry.delivered,
            hash: entry.hash,
            previous_hash: self.hash_before(record)?,
            receipt: entry.parse_receipt()?,
        }))
    }

    /// The hash of the record before `record`, which may have been pruned.
    fn hash_before(&self, record: i64) -> rusqlite::Result<Option<Hash>> {
        let Extent { first, first_hash, .. } = Extent::read(self.connection(), "records")?;
        let previous = record - 1;
        if previous == first {
            return Ok(Some(first_hash));
        }
        find_hash(self.connection(), previous)
    }
}

/// The approval of the last wait: an earlier approval that expired applies to nothing.
fn last_approval(rows: &[EventRow]) -> Option<&EventRow> {
    let last = rows.iter().rfind(|row| matches!(row.kind, RecordKind::Held | RecordKind::Approved));
    last.filter(|row| row.kind == RecordKind::Approved)
}
