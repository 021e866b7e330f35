//! Searches of runs and of refused calls, newest first and page by page, for a console.
//!
//! A page takes a fixed time, also in a journal of a million receipts: it ends early and says where, and the caller
//! continues from there. No search writes, and none needs an index; see `scan`.

use super::arguments::StoredFor;
use super::history::{Filter, HistoryError, REFUSAL_COLUMNS, RefusalEntry, read_refusal};
use super::scan::{Scan, ScanBudget, ScannedChain};
use super::store::{Reader, from_sqlite_int};
use super::{from_micros, to_micros};
use a2g_types::call::{Door, ParentRun};
use a2g_types::failure_message::describe;
use a2g_types::fault::BlockedBy;
use a2g_types::ident::{AgentDid, IntentId, ToolName};
use a2g_types::outcome::{DenialReason, Receipt, Status};
use a2g_types::stored;
use rusqlite::{Row, params};
use std::borrow::Cow;
use std::time::Duration;
use strum::VariantArray as _;
use time::OffsetDateTime;

/// A selection of runs.
#[derive(Debug, Clone, Default)]
pub struct RunSearch {
    /// Selects runs. With `since`, the search ends where the records are more than 10 minutes older.
    pub filter: Filter,
    /// Selects runs of calls through this door, and of the calls that they made.
    pub door: Option<Door>,
    /// Selects runs with this text in the intent, the agent, the tool, a contacted host, a granted or denied path, the
    /// reason of a denial, or the error message. ASCII letters match in either case. `None` does not restrict the
    /// selection.
    pub text: Option<String>,
}

/// A run in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSummary {
    /// The number of the record of its receipt; see [`Page::next`].
    pub record: u64,
    /// The number of its receipt among the receipts, from 1.
    pub number: u64,
    /// The intent.
    pub intent: IntentId,
    /// The agent.
    pub agent: String,
    /// The tool.
    pub tool: String,
    /// The [argument](a2g_types::call::main_argument) by which people recognise the call; `None` if its arguments are not
    /// stored.
    pub main_argument: Option<String>,
    /// The door.
    pub door: Door,
    /// The status, such as `SUCCESS`.
    pub status: String,
    /// The end of the run.
    pub ended: OffsetDateTime,
    /// The wall time of the run.
    pub wall: Duration,
    /// `true` if the report was delivered to the governor.
    pub delivered: bool,
    /// The caller that approved the intent, if the intent was escalated.
    pub approved_by: Option<String>,
    /// The run that made this call; `None` for a call from outside.
    pub parent: Option<ParentRun>,
    /// The number of calls that the run made, including refused ones.
    pub calls: u32,
}

impl RunSummary {
    /// `true` if another run made this call.
    #[must_use]
    pub fn is_nested(&self) -> bool {
        self.parent.is_some()
    }
}

/// One page of a search, newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The rows that were found.
    pub items: Vec<T>,
    /// The number before which the next page begins; `None` on the last page. A page that is not complete has one
    /// even if nothing was found.
    pub next: Option<u64>,
    /// The time of the last row that was searched; `None` if none was.
    pub searched_until: Option<OffsetDateTime>,
    /// `false` if the search ran out of time before the page was full.
    pub is_complete: bool,
}

impl<T> Default for Page<T> {
    /// The page of a journal without records.
    fn default() -> Self {
        Self { items: Vec::new(), next: None, searched_until: None, is_complete: true }
    }
}

impl<T> Page<T> {
    /// The page of what `scan` has found.
    fn of_scan(items: Vec<T>, is_full: bool, scan: &Scan<'_>) -> Result<Self, HistoryError> {
        let is_complete = is_full || scan.is_at_end();
        Ok(Self { items, next: scan.next(), searched_until: scan.searched_until()?, is_complete })
    }
}

/// A selection of refused calls.
#[derive(Debug, Clone, Default)]
pub struct RefusalSearch {
    /// Selects calls by agent, tool and time. A refused call has no status and no report.
    pub filter: Filter,
    /// Selects calls that were refused for this reason.
    pub blocked_by: Option<BlockedBy>,
    /// Selects calls with this text in the intent, the agent, the tool, the reason's code or the message. ASCII letters
    /// match in either case.
    pub text: Option<String>,
}

/// A refused call in a list.
#[derive(Debug, Clone)]
pub struct NumberedRefusal {
    /// The number among the refusals; see [`Page::next`].
    pub number: u64,
    /// The refusal.
    pub refusal: RefusalEntry,
    /// The argument by which people recognise the call, if it waited and its arguments are stored.
    pub main_argument: Option<String>,
}

/// The maximum length of a body that is read with its row, in bytes. A longer one is read only once its row is known to
/// be wanted.
const MAX_BODY_IN_ROW: usize = 65536;

/// The columns that [`FoundRun::read`] reads.
pub(super) fn run_columns() -> String {
    // SQLite knows the length without reading the body.
    format!(
        "number, receipt, intent, agent, tool, status, at, iif(length(body) <= {MAX_BODY_IN_ROW}, body, NULL)"
    )
}

/// A row of a receipt, before the receipt is parsed.
pub(super) struct FoundRun<'a> {
    /// The number of the record.
    pub(super) record: i64,
    pub(super) number: u64,
    pub(super) intent: IntentId,
    pub(super) agent: &'a str,
    pub(super) tool: &'a str,
    pub(super) status: &'a str,
    pub(super) ended: OffsetDateTime,
    /// `None` for a body of more than [`MAX_BODY_IN_ROW`].
    body: Option<&'a [u8]>,
}

impl<'a> FoundRun<'a> {
    /// Reads a row with [`run_columns`].
    pub(super) fn read(row: &'a Row<'_>) -> rusqlite::Result<Self> {
        let text = |column: usize| row.get_ref(column)?.as_str().map_err(rusqlite::Error::from);
        Ok(Self {
            record: row.get(0)?,
            number: from_sqlite_int(row.get(1)?),
            intent: IntentId::from_bytes(row.get(2)?),
            agent: text(3)?,
            tool: text(4)?,
            status: text(5)?,
            ended: from_micros(row.get(6)?),
            body: row.get_ref(7)?.as_blob_or_null()?,
        })
    }

    /// The stored text of the receipt.
    pub(super) fn body(&self, reader: &Reader) -> rusqlite::Result<Cow<'a, [u8]>> {
        Ok(match self.body {
            Some(body) => Cow::Borrowed(body),
            // The parser reports a missing body.
            None => Cow::Owned(reader.body(self.record)?.unwrap_or_default()),
        })
    }

    /// Parses the text of the receipt.
    pub(super) fn parse_receipt(&self, body: &[u8]) -> Result<Receipt, HistoryError> {
        stored::read_receipt(body).map_err(|source| HistoryError::Receipt { number: self.number, source })
    }

    fn summarize(&self, receipt: Receipt, main_argument: Option<String>, delivered: bool) -> RunSummary {
        let Receipt {
            door,
            approved_by,
            parent,
            calls,
            outcome,
            agent: _,
            intent: _,
            tool: _,
            durability: _,
            signature: _,
            session: _,
            rationale: _,
        } = receipt;
        RunSummary {
            record: from_sqlite_int(self.record),
            number: self.number,
            intent: self.intent,
            // The agent is that of the row, not of the receipt, because the filter was asked about that one.
            agent: self.agent.to_owned(),
            tool: self.tool.to_owned(),
            main_argument,
            door,
            status: self.status.to_owned(),
            ended: self.ended,
            wall: outcome.metrics.wall,
            delivered,
            approved_by,
            parent,
            calls: calls.map_or(0, |calls| calls.count),
        }
    }
}

impl Reader {
    pub(super) fn search_runs(
        &self,
        search: &RunSearch,
        may_see: &dyn Fn(&str) -> bool,
        before: Option<u64>,
        limit: usize,
        budget: &mut ScanBudget,
    ) -> Result<Page<RunSummary>, HistoryError> {
        // One snapshot for all chunks, so that pruning in between leaves no gap.
        let _snapshot = self.connection().unchecked_transaction()?;
        let RunSearch { filter: Filter { agent, tool, status, since, until, undelivered }, door, text } =
            search;
        let text = TextMatcher::new(text.as_deref());
        let columns = run_columns();
        let mut statement = self.connection().prepare_cached(&format!(
            // An undelivered report has a row in `open`. The receipt is about the claim, which is `run` there.
            "SELECT {columns}, EXISTS (SELECT 1 FROM open WHERE run = about AND open.receipt IS NOT NULL)
             FROM records
             WHERE number >= ?1 AND number < ?2 AND kind = 'receipt'
               AND (?3 IS NULL OR agent = ?3) AND (?4 IS NULL OR tool = ?4) AND (?5 IS NULL OR status = ?5)
               AND (?6 IS NULL OR at >= ?6) AND (?7 IS NULL OR at < ?7)
               AND (NOT ?8 OR EXISTS (SELECT 1 FROM open WHERE run = about AND open.receipt IS NOT NULL))
             ORDER BY number DESC"
        ))?;
        let mut scan = Scan::new(self.connection(), ScannedChain::Records, before, *since)?;
        let mut runs = Vec::new();
        let mut is_full = false;
        'chunks: loop {
            if *undelivered {
                self.skip_delivered(&mut scan)?;
            }
            let Some(chunk) = scan.next_chunk(budget)? else { break };
            let mut rows = statement.query(params![
                chunk.start,
                chunk.end,
                agent.as_ref().map(AgentDid::as_str),
                tool.as_ref().map(ToolName::as_str),
                status.map(Status::as_str),
                since.map(to_micros),
                until.map(to_micros),
                undelivered,
            ])?;
            while let Some(row) = rows.next()? {
                let run = FoundRun::read(row)?;
                if may_see(run.agent)
                    && let Some(receipt) = self.match_run(&run, text.as_ref())?
                    && door.is_none_or(|door| receipt.door == door)
                {
                    let is_undelivered = row.get::<_, bool>(8)?;
                    let main_argument = self.main_argument(run.intent, run.agent, StoredFor::Call)?;
                    runs.push(run.summarize(receipt, main_argument, !is_undelivered));
                }
                is_full = runs.len() >= limit.max(1);
                if is_full || budget.is_over() {
                    scan.stop_after(run.record);
                    break 'chunks;
                }
            }
        }
        Page::of_scan(runs, is_full, &scan)
    }

    /// Moves a scan to the next undelivered report. These are few, and their table is small.
    fn skip_delivered(&self, scan: &mut Scan<'_>) -> rusqlite::Result<()> {
        let mut statement =
            self.connection().prepare_cached("SELECT max(receipt) FROM open WHERE receipt < ?1")?;
        match statement.query_row([scan.position()], |row| row.get::<_, Option<i64>>(0))? {
            Some(latest) => scan.skip_to(latest.saturating_add(1)),
            None => scan.end(),
        }
        Ok(())
    }

    /// Parses the receipt of a run; `None` if the text does not match it.
    fn match_run(
        &self,
        run: &FoundRun<'_>,
        text: Option<&TextMatcher>,
    ) -> Result<Option<Receipt>, HistoryError> {
        let body = run.body(self)?;
        if text.is_some_and(|text| !text.may_match_receipt(run.status, &body)) {
            return Ok(None);
        }
        let receipt = run.parse_receipt(&body)?;
        let is_match = text.is_none_or(|text| text.matches_run(run, &receipt));
        Ok(is_match.then_some(receipt))
    }

    pub(super) fn search_refusals(
        &self,
        search: &RefusalSearch,
        may_see: &dyn Fn(&str) -> bool,
        before: Option<u64>,
        limit: usize,
        budget: &mut ScanBudget,
    ) -> Result<Page<NumberedRefusal>, HistoryError> {
        let _snapshot = self.connection().unchecked_transaction()?;
        let RefusalSearch { filter: selected, blocked_by, text } = search;
        let Filter { agent, tool, status: _, since, until, undelivered: _ } = selected;
        let text = TextMatcher::new(text.as_deref());
        let mut statement = self.connection().prepare_cached(&format!(
            "SELECT {REFUSAL_COLUMNS}, number FROM refusals
             WHERE number >= ?1 AND number < ?2
               AND (?3 IS NULL OR agent = ?3) AND (?4 IS NULL OR tool = ?4) AND (?5 IS NULL OR blocked_by = ?5)
               AND (?6 IS NULL OR refused >= ?6) AND (?7 IS NULL OR refused < ?7)
             ORDER BY number DESC"
        ))?;
        let mut scan = Scan::new(self.connection(), ScannedChain::Refusals, before, *since)?;
        let mut refusals = Vec::new();
        let mut is_full = false;
        'chunks: while let Some(chunk) = scan.next_chunk(budget)? {
            let mut rows = statement.query(params![
                chunk.start,
                chunk.end,
                agent.as_ref().map(AgentDid::as_str),
                tool.as_ref().map(ToolName::as_str),
                blocked_by.map(BlockedBy::as_str),
                since.map(to_micros),
                until.map(to_micros),
            ])?;
            while let Some(row) = rows.next()? {
                let number = row.get(6)?;
                let refusal = read_refusal(row)?;
                if may_see(&refusal.agent) && text.as_ref().is_none_or(|text| text.matches_refusal(&refusal))
                {
                    let ended = StoredFor::EndedWait { at: to_micros(refusal.at) };
                    let main_argument = self.main_argument(refusal.intent, &refusal.agent, ended)?;
                    refusals.push(NumberedRefusal {
                        number: from_sqlite_int(number),
                        refusal,
                        main_argument,
                    });
                }
                is_full = refusals.len() >= limit.max(1);
                if is_full || budget.is_over() {
                    scan.stop_after(number);
                    break 'chunks;
                }
            }
        }
        Page::of_scan(refusals, is_full, &scan)
    }
}

/// A text that is sought, without regard to the case of ASCII letters.
struct TextMatcher {
    lower_case: String,
    /// `true` if a receipt with this text also has it in its stored form. JSON must not escape the text, and the text
    /// must not occur in a reason of a denial, which is stored under another name.
    is_verbatim: bool,
}

impl TextMatcher {
    /// `None` for an empty text, which is in every run.
    fn new(text: Option<&str>) -> Option<Self> {
        let text = text.filter(|text| !text.is_empty())?;
        let lower_case = text.to_ascii_lowercase();
        let has_escapes = text.chars().any(|c| c < ' ' || c == '"' || c == '\\');
        let is_of_reason = DenialReason::VARIANTS.iter().any(|reason| reason.as_str().contains(&lower_case));
        Some(Self { lower_case, is_verbatim: !has_escapes && !is_of_reason })
    }

    fn is_in(&self, field: &str) -> bool {
        field.to_ascii_lowercase().contains(&self.lower_case)
    }

    /// `false` if the text is not in the stored text of a receipt, and so in none of its fields. This takes a fraction
    /// of the time that parsing the receipt takes.
    fn may_match_receipt(&self, status: &str, body: &[u8]) -> bool {
        // The message of a failed run is not stored, but made of its end and its limits.
        let has_failed = ![Status::Success, Status::Staged].map(Status::as_str).contains(&status);
        if !self.is_verbatim || has_failed {
            return true;
        }
        let body = body.to_ascii_lowercase();
        // A text that is not UTF-8 is passed on, because the parser reports it.
        std::str::from_utf8(&body).map_or(true, |body| body.contains(&self.lower_case))
    }

    fn matches_run(&self, run: &FoundRun<'_>, receipt: &Receipt) -> bool {
        let usage = &receipt.outcome.usage;
        let mut areas = usage.filesystem.iter();
        let mut changes = usage.changes.iter().flat_map(|changes| &changes.shown);
        let mut contacts = usage.network_used.iter().flat_map(|network| &network.contacted);
        self.is_in(&run.intent.to_string())
            || self.is_in(run.agent)
            || self.is_in(run.tool)
            || areas.any(|area| self.is_in(&area.path) || self.is_in(&area.pattern))
            || usage
                .denied
                .iter()
                .any(|denial| self.is_in(&denial.what) || self.is_in(denial.reason.as_str()))
            || contacts.any(|contact| self.is_in(&contact.authority))
            || changes.any(|change| {
                self.is_in(&change.path) || change.from.as_deref().is_some_and(|from| self.is_in(from))
            })
            || describe(&receipt.outcome).is_some_and(|message| self.is_in(&message))
    }

    fn matches_refusal(&self, refusal: &RefusalEntry) -> bool {
        let RefusalEntry { at: _, intent, agent, tool, blocked_by, message } = refusal;
        let texts = [&intent.to_string(), agent, tool, blocked_by, message];
        texts.into_iter().any(|text| self.is_in(text))
    }
}
