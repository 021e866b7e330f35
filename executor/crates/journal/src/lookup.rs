//! What callers read of the records, and the queries of their look-ups: the times and the end of an intent, its
//! receipt's hash, and a list of receipts.

use super::arguments::StoredFor;
use super::backend::Backend;
use super::chain::Hash;
use super::claims::parse_verdict;
use super::history::{REFUSAL_COLUMNS, RefusalEntry, read_refusal};
use super::log::find_hash;
use super::recorded_state::{RecordedState, receipt_record};
use super::scan::{MAX_SCAN_TIME, ScanBudget};
use super::store::{Reader, to_sqlite_int};
use super::usage::MAX_REFUSAL_TIME;
use super::{
    IfFull, IntentDenial, JournalError, NumberedRefusal, Page, RefusalSearch, Resolution, RunRecord,
    RunSearch, RunSummary, SeriesSpan, UsageSums, from_micros, to_micros,
};
use a2g_types::call::StoredArguments;
use a2g_types::ident::{AgentDid, IntentId};
use a2g_types::verdict::Verdict;
use rusqlite::params;
use std::sync::Arc;
use strum::VariantArray as _;
use time::OffsetDateTime;

/// The maximum number of records that one page of [`Records::recent_receipts`] searches.
const MAX_SEARCHED: u64 = 50_000;
/// Number of the latest refusals that are searched for one of an intent.
const MAX_SEARCHED_REFUSALS: i64 = 10_000;

/// The records of an intent, in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntentRecords {
    /// The agent.
    pub agent: AgentDid,
    /// The time of the first record.
    pub created: OffsetDateTime,
    /// The time of the latest record.
    pub updated: OffsetDateTime,
    /// The reason why the intent stopped waiting, if that is its latest record.
    pub resolution: Option<Resolution>,
}

/// A receipt in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptSummary {
    /// The number of its record, by which lists page.
    pub record: u64,
    /// The intent.
    pub intent: IntentId,
    /// The tool.
    pub tool: String,
    /// The status, such as `SUCCESS`.
    pub status: String,
    /// The end of the run.
    pub ended: OffsetDateTime,
}

/// One page of receipts, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReceiptPage {
    /// The receipts.
    pub receipts: Vec<ReceiptSummary>,
    /// The record before which the next page begins; `None` after the last page.
    pub next: Option<u64>,
}

/// The contents of the records: intents, runs and refused calls.
pub struct Records(Arc<Backend>);

impl Records {
    pub(super) fn new(backend: Arc<Backend>) -> Self {
        Self(backend)
    }

    pub(super) fn backend(&self) -> &Backend {
        &self.0
    }

    /// The records of an intent, in short; `None` for an intent without records.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub fn intent_records(&self, intent: IntentId) -> Result<Option<IntentRecords>, JournalError> {
        let Some((agent, created, updated, kind)) = self.0.read(|reader| reader.intent_span(intent))? else {
            return Ok(None);
        };
        let agent = AgentDid::parse(&agent).map_err(JournalError::unreadable)?;
        let mut resolutions = Resolution::VARIANTS.iter().copied();
        let resolution = resolutions.find(|resolution| resolution.kind().as_str() == kind);
        Ok(Some(IntentRecords {
            agent,
            created: from_micros(created),
            updated: from_micros(updated),
            resolution,
        }))
    }

    /// The denial of an intent by a person.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub fn denial(&self, intent: IntentId) -> Result<Option<IntentDenial>, JournalError> {
        let RecordedState::Denied(denied) = self.0.recorded_state(intent)? else { return Ok(None) };
        Ok(Some(denied.body.into()))
    }

    /// The latest refusal of an intent that `is_wanted` selects, among the latest [`MAX_SEARCHED_REFUSALS`], unless the
    /// agent has used the id since for a call that waited or began.
    ///
    /// # Errors
    /// [`JournalError::Busy`], and [`JournalError::Broken`] if the journal cannot be read.
    pub async fn find_refusal(
        &self,
        intent: IntentId,
        is_wanted: impl Fn(&RefusalEntry) -> bool + Send + 'static,
    ) -> Result<Option<RefusalEntry>, JournalError> {
        self.0.read_long(IfFull::Refuse, move |reader| reader.find_refusal(intent, &is_wanted)).await
    }

    /// The hash of the record with the receipt of an intent.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub fn receipt_hash(&self, intent: IntentId) -> Result<Option<Hash>, JournalError> {
        self.0.read(|reader| {
            // One snapshot for several queries.
            let _snapshot = reader.connection().unchecked_transaction()?;
            let Some(record) = receipt_record(reader.connection(), intent)? else { return Ok(None) };
            find_hash(reader.connection(), record)
        })
    }

    /// The latest receipts of the agents that `filter` selects. A page that searched [`MAX_SEARCHED`] records may be
    /// short, and has a next one.
    ///
    /// # Errors
    /// [`JournalError::Busy`], and [`JournalError::Broken`] if the journal cannot be read.
    pub async fn recent_receipts(
        &self,
        filter: impl Fn(&str) -> bool + Send + 'static,
        before: Option<u64>,
        limit: usize,
    ) -> Result<ReceiptPage, JournalError> {
        self.0.read_long(IfFull::Refuse, move |reader| reader.recent_receipts(&filter, before, limit)).await
    }

    /// The agent of an intent that has started, without its receipt; `None` for any other.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub fn agent_of_start(&self, intent: IntentId) -> Result<Option<AgentDid>, JournalError> {
        let RecordedState::Claimed(claimed) = self.0.recorded_state(intent)? else { return Ok(None) };
        AgentDid::parse(&claimed.agent).map(Some).map_err(JournalError::unreadable)
    }

    /// The governor's verdict for an intent that has started, if the executor asked the governor.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub fn verdict(&self, intent: IntentId) -> Result<Option<Verdict>, JournalError> {
        let RecordedState::Claimed(claimed) = self.0.recorded_state(intent)? else { return Ok(None) };
        parse_verdict(&claimed)
    }

    /// The arguments of the latest start of an agent's intent, or of its latest wait that ended without one; `None` if
    /// they are not stored, or were pruned. Callers choose the ids, so an intent of another agent may have the same
    /// one.
    ///
    /// # Errors
    /// [`JournalError::Broken`] if the journal cannot be read.
    pub fn arguments(
        &self,
        intent: IntentId,
        agent: &AgentDid,
    ) -> Result<Option<StoredArguments>, JournalError> {
        self.0.read(|reader| reader.arguments(intent, agent.as_str(), StoredFor::Call))
    }

    /// Everything that the records say about an intent; `None` for an intent without records. If several agents have
    /// used its id, only what is about the latest of them.
    ///
    /// # Errors
    /// [`JournalError::Busy`], and [`JournalError::Broken`] if the journal, the receipt or the verdict cannot be read.
    pub async fn run_record(&self, intent: IntentId) -> Result<Option<RunRecord>, JournalError> {
        self.0.query_history(move |reader| reader.run_record(intent)).await
    }

    /// The latest runs that `search` selects, of the agents that `may_see` selects, before the record `before`. A page
    /// has at most `limit` runs; a `limit` of 0 counts as 1. A page that is not complete has searched for about 60 ms;
    /// the caller continues from [`Page::next`].
    ///
    /// # Errors
    /// [`JournalError::Busy`], and [`JournalError::Broken`] if the journal or a receipt cannot be read.
    pub async fn search_runs(
        &self,
        search: RunSearch,
        may_see: impl Fn(&str) -> bool + Send + 'static,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Page<RunSummary>, JournalError> {
        let query = move |reader: &Reader| {
            let mut budget = ScanBudget::start(MAX_SCAN_TIME);
            reader.search_runs(&search, &may_see, before, limit, &mut budget)
        };
        self.0.query_history(query).await
    }

    /// The latest refused calls that `search` selects, of the agents that `may_see` selects, before the refusal
    /// `before`. Pages are as in [`Self::search_runs`]. Only the latest refusals are stored.
    ///
    /// # Errors
    /// [`JournalError::Busy`], and [`JournalError::Broken`] if the journal cannot be read.
    pub async fn search_refusals(
        &self,
        search: RefusalSearch,
        may_see: impl Fn(&str) -> bool + Send + 'static,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Page<NumberedRefusal>, JournalError> {
        let query = move |reader: &Reader| {
            let mut budget = ScanBudget::start(MAX_SCAN_TIME);
            reader.search_refusals(&search, &may_see, before, limit, &mut budget)
        };
        self.0.query_history(query).await
    }

    /// The use of the executor by the agents that `filter` selects, since `since` or since the first receipt, from the
    /// latest `max_rows` receipts at most, with a series of the runs if there is a `span`. Within about 60 ms, it
    /// counts refusals and parses as many of the latest receipts as it can.
    ///
    /// # Errors
    /// [`JournalError::Busy`], and [`JournalError::Broken`] if the journal or a receipt cannot be read.
    pub async fn usage(
        &self,
        since: Option<OffsetDateTime>,
        filter: impl Fn(&str) -> bool + Send + 'static,
        max_rows: u64,
        span: Option<SeriesSpan>,
    ) -> Result<UsageSums, JournalError> {
        let query = move |reader: &Reader| {
            let mut refusals = ScanBudget::start(MAX_REFUSAL_TIME);
            let mut receipts = ScanBudget::start(MAX_SCAN_TIME);
            reader.usage(UsageSums::new(span), since, &filter, max_rows, &mut refusals, &mut receipts)
        };
        self.0.query_history(query).await
    }
}

impl Reader {
    fn intent_span(&self, intent: IntentId) -> rusqlite::Result<Option<(String, i64, i64, String)>> {
        // The receipt's record is not in the index of intents. It is found by the claim's.
        let mut statement = self.connection().prepare_cached(
            "SELECT r.agent, r.at, r.kind, (SELECT at FROM records WHERE about = r.number AND kind = 'receipt')
             FROM records r WHERE r.intent = ?1 AND r.kind <> 'receipt' ORDER BY r.number",
        )?;
        let mut rows = statement.query([intent.as_bytes()])?;
        let mut span: Option<(Option<String>, i64, i64, String)> = None;
        while let Some(row) = rows.next()? {
            let agent: Option<String> = row.get(0)?;
            let at: i64 = row.get(1)?;
            let kind: String = row.get(2)?;
            let ended: Option<i64> = row.get(3)?;
            let (known, created) = match span {
                Some((known, created, ..)) => (known, created),
                None => (None, at),
            };
            span = Some((agent.or(known), created, ended.unwrap_or(at).max(at), kind));
        }
        Ok(span.and_then(|(agent, created, updated, kind)| Some((agent?, created, updated, kind))))
    }

    fn find_refusal(
        &self,
        intent: IntentId,
        is_wanted: &dyn Fn(&RefusalEntry) -> bool,
    ) -> rusqlite::Result<Option<RefusalEntry>> {
        // Refusals have no index, so only the latest are read.
        let sql = format!(
            "SELECT {REFUSAL_COLUMNS} FROM refusals
             WHERE intent = ?1 AND number > (SELECT coalesce(max(number), 0) FROM refusals) - ?2 ORDER BY number DESC"
        );
        let mut statement = self.connection().prepare_cached(&sql)?;
        let mut rows = statement.query(params![intent.as_bytes(), MAX_SEARCHED_REFUSALS])?;
        while let Some(row) = rows.next()? {
            let refusal = read_refusal(row)?;
            if is_wanted(&refusal) {
                let is_outdated = self.has_later_call(&refusal)?;
                return Ok((!is_outdated).then_some(refusal));
            }
        }
        Ok(None)
    }

    /// Returns `true` if a call of the same agent with the same id has waited or begun since a refusal.
    fn has_later_call(&self, refusal: &RefusalEntry) -> rusqlite::Result<bool> {
        // A record without a tool, such as that of a task, does not say that a call has waited or begun.
        let sql = "SELECT EXISTS (SELECT 1 FROM records
                                  WHERE intent = ?1 AND kind <> 'receipt' AND agent = ?2 AND tool IS NOT NULL
                                    AND at > ?3)";
        let params = params![refusal.intent.as_bytes(), refusal.agent, to_micros(refusal.at)];
        self.connection().prepare_cached(sql)?.query_row(params, |row| row.get(0))
    }

    fn recent_receipts(
        &self,
        filter: &dyn Fn(&str) -> bool,
        before: Option<u64>,
        limit: usize,
    ) -> rusqlite::Result<ReceiptPage> {
        let before = match before {
            Some(before) => to_sqlite_int(before),
            None => {
                let sql = "SELECT coalesce(max(number), 0) + 1 FROM records";
                self.connection().query_row(sql, [], |row| row.get(0))?
            }
        };
        let first = before.saturating_sub(to_sqlite_int(MAX_SEARCHED));
        let mut statement = self.connection().prepare_cached(
            "SELECT number, agent, intent, tool, status, at FROM records
             WHERE kind = 'receipt' AND number >= ?1 AND number < ?2 ORDER BY number DESC",
        )?;
        let mut rows = statement.query(params![first, before])?;
        let mut page = ReceiptPage::default();
        while let Some(row) = rows.next()? {
            if !row.get_ref(1)?.as_str_or_null()?.is_some_and(filter) {
                continue;
            }
            if page.receipts.len() >= limit {
                page.next = page.receipts.last().map(|last| last.record);
                return Ok(page);
            }
            page.receipts.push(ReceiptSummary {
                record: row.get::<_, i64>(0)?.unsigned_abs(),
                intent: IntentId::from_bytes(row.get(2)?),
                tool: row.get(3)?,
                status: row.get(4)?,
                ended: from_micros(row.get(5)?),
            });
        }
        page.next = (first > 1).then_some(first.unsigned_abs());
        Ok(page)
    }
}
