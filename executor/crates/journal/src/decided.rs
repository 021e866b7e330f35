//! The calls since a time with the decisions on them, oldest first: for a replay of policies.
//!
//! What was not kept, or cannot be read, is passed as such, so that whoever replays can say so.

use super::from_micros;
use super::history::{HistoryError, REFUSAL_COLUMNS, RefusalEntry, read_refusal};
use super::record::{self, RecordKind, column_error};
use super::recorded_state::parse_body;
use super::scan::ScannedChain;
use super::store::{Reader, from_sqlite_int};
use super::to_micros;
use a2g_types::ident::IntentId;
use a2g_types::outcome::Receipt;
use a2g_types::stored::{self, ArgumentsRow};
use a2g_types::verdict::Verdict;
use rusqlite::{OptionalExtension as _, Row, params};
use std::collections::HashMap;
use std::rc::Rc;
use time::OffsetDateTime;

/// Something that has happened with a call.
#[derive(Debug)]
pub enum DecidedEvent {
    /// A call has started.
    Started(Box<StartedCall>),
    /// A run has ended, or a decision on its file changes.
    Ended {
        /// The time of the end.
        ended: OffsetDateTime,
        /// The receipt.
        receipt: Rc<Receipt>,
    },
    /// A call was refused.
    Refused(RefusalEntry),
    /// A record that cannot be read: a later version wrote it, or it was changed.
    Damaged {
        /// The number among the records, from 1.
        record: u64,
        /// The intent.
        intent: Option<IntentId>,
    },
}

/// A call that has started.
#[derive(Debug)]
pub struct StartedCall {
    /// The time of the start.
    pub at: OffsetDateTime,
    /// The intent.
    pub intent: IntentId,
    /// The agent.
    pub agent: String,
    /// The tool.
    pub tool: String,
    /// The governor's verdict; `None` if the executor did not ask it.
    pub verdict: Option<Verdict>,
    /// The arguments; `None` if they are not stored.
    pub arguments: Option<ArgumentsRow>,
    /// The receipt; `None` if the run has not ended.
    pub receipt: Option<Rc<Receipt>>,
}

/// The receipts of started calls whose records have not come yet.
type ExpectedReceipts = HashMap<i64, Rc<Receipt>>;

impl Reader {
    /// Passes what has happened since a time to `each`: the records in the order of the chain, with the refusals between
    /// them by their times. Rows are read one after the other.
    pub(super) fn decided_since<E: From<HistoryError>>(
        &self,
        since: OffsetDateTime,
        mut each: impl FnMut(DecidedEvent) -> Result<(), E>,
    ) -> Result<(), E> {
        // One snapshot for all queries.
        let _snapshot = self.connection().unchecked_transaction().map_err(HistoryError::from)?;
        let from = to_micros(since);
        let first = self.first_since(ScannedChain::Refusals, since).map_err(HistoryError::from)?;
        let sql = format!(
            "SELECT {REFUSAL_COLUMNS} FROM refusals WHERE number >= ?1 AND refused >= ?2 ORDER BY number"
        );
        let mut statement = self.connection().prepare(&sql).map_err(HistoryError::from)?;
        let refusals = statement.query_map(params![first, from], read_refusal).map_err(HistoryError::from)?;
        let mut refusals = refusals.peekable();
        let first = self.first_since(ScannedChain::Records, since).map_err(HistoryError::from)?;
        let sql = "SELECT number, kind, at, intent, agent, tool, body FROM records
                   WHERE number >= ?1 AND at >= ?2 AND kind IN ('claim', 'receipt') ORDER BY number";
        let mut statement = self.connection().prepare(sql).map_err(HistoryError::from)?;
        let mut rows = statement.query(params![first, from]).map_err(HistoryError::from)?;
        let mut expected = ExpectedReceipts::new();
        while let Some(row) = rows.next().map_err(HistoryError::from)? {
            let at = from_micros(row.get::<_, i64>(2).map_err(HistoryError::from)?);
            let is_later =
                |next: &rusqlite::Result<RefusalEntry>| next.as_ref().is_ok_and(|next| next.at >= at);
            while let Some(refusal) = refusals.next_if(|next| !is_later(next)) {
                each(DecidedEvent::Refused(refusal.map_err(HistoryError::from)?))?;
            }
            each(self.decided_event(row, at, &mut expected)?)?;
        }
        for refusal in refusals {
            each(DecidedEvent::Refused(refusal.map_err(HistoryError::from)?))?;
        }
        Ok(())
    }

    fn decided_event(
        &self,
        row: &Row<'_>,
        at: OffsetDateTime,
        expected: &mut ExpectedReceipts,
    ) -> Result<DecidedEvent, HistoryError> {
        let number = row.get::<_, i64>(0)?;
        let intent = row.get::<_, Option<[u8; 16]>>(3)?.map(IntentId::from_bytes);
        let damaged = || DecidedEvent::Damaged { record: from_sqlite_int(number), intent };
        let is_receipt = row.get_ref(1)?.as_str().ok() == Some(RecordKind::Receipt.as_str());
        let body = row.get_ref(6)?.as_blob().map_err(|_other_type| column_error(6))?;
        if is_receipt {
            let read = || stored::read_receipt(body).ok().map(Rc::new);
            let receipt = expected.remove(&number).or_else(read);
            return Ok(receipt.map_or_else(damaged, |receipt| DecidedEvent::Ended { ended: at, receipt }));
        }
        let Some(intent) = intent else { return Ok(damaged()) };
        let Ok(claim) = parse_body::<record::ClaimBody>(body) else { return Ok(damaged()) };
        let verdict = claim.verdict.map(|verdict| stored::read_verdict(verdict.get())).transpose();
        let Ok(verdict) = verdict else { return Ok(damaged()) };
        let sql = "SELECT text FROM arguments WHERE number = ?1";
        let mut statement = self.connection().prepare_cached(sql)?;
        let text = statement.query_row([number], |row| row.get::<_, String>(0)).optional()?;
        let Ok(arguments) = text.map(|text| stored::read_arguments(&text)).transpose() else {
            return Ok(damaged());
        };
        let sql = "SELECT number, body FROM records WHERE about = ?1 AND kind = 'receipt'";
        let mut statement = self.connection().prepare_cached(sql)?;
        let found = statement.query_row([number], |row| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?)));
        // One that cannot be parsed is passed as damaged when its own record comes.
        let receipt = found.optional()?.and_then(|(record, body): (i64, Vec<u8>)| {
            let receipt = Rc::new(stored::read_receipt(&body).ok()?);
            expected.insert(record, Rc::clone(&receipt));
            Some(receipt)
        });
        let text = |column: usize| -> rusqlite::Result<String> {
            Ok(row.get_ref(column)?.as_str_or_null()?.unwrap_or_default().to_owned())
        };
        let agent = text(4)?;
        let tool = text(5)?;
        Ok(DecidedEvent::Started(Box::new(StartedCall {
            at,
            intent,
            agent,
            tool,
            verdict,
            arguments,
            receipt,
        })))
    }
}
