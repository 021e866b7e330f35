//! Comparison of a journal with its own chain: every record with its hash and the one before it, the records of each
//! intent with each other, and every other table with the records that it follows from.
//!
//! A [`Verifier`] reads the records in order, in pieces, and holds in memory the entries that are open at that point:
//! intents that run, wait or are not delivered, and stored tasks.

use super::chain::{Hash, Head, NOTHING};
use super::files::{self, Marked};
pub use super::finding::Finding;
use super::finding::Stop;
use super::format2;
use super::log::{Extent, Tip};
use super::record::{self, COLUMNS, Digest32, Kind, Record};
use super::standing::{body, receipt_of};
use super::state::{Live, State, Step};
use super::store::{number, schema};
use super::tables;
use crate::ident::IntentId;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

/// The number of records that are read in one piece.
pub(super) const PIECE: usize = 10_000;

/// The check of one journal.
pub(super) struct Verifier {
    extent: Extent,
    /// The number before the first record that is checked.
    begin: i64,
    pub(super) tip: Tip,
    /// The end of the chain of a journal of format 2.
    old: Head,
    pub(super) live: HashMap<[u8; 16], Live>,
    /// The receipts that are not delivered, by their records.
    undelivered: HashMap<i64, [u8; 16]>,
    /// Receipts whose claim was pruned: a carried-over record has to have the content of the claim.
    orphans: HashMap<[u8; 16], i64>,
    pruned: Option<record::Pruned>,
    refusals: Option<record::Refusals>,
    checkpoint: Option<Head>,
    agrees: bool,
}

impl Verifier {
    /// A verifier of all records.
    pub(super) fn of_all(connection: &Connection, checkpoint: Option<Head>) -> rusqlite::Result<Self> {
        let extent = Extent::of(connection, "records")?;
        Ok(Self::from(extent, Tip::before_the_first(&extent), checkpoint))
    }

    /// A verifier of the last `most` records.
    pub(super) fn of_the_last(connection: &Connection, most: i64) -> Result<Self, Stop> {
        let extent = Extent::of(connection, "records")?;
        let begin = extent.last.saturating_sub(most);
        if begin <= extent.first {
            return Ok(Self::from(extent, Tip::before_the_first(&extent), None));
        }
        let tip = Tip::of(connection, begin, &extent)?;
        Ok(Self::from(extent, tip, None))
    }

    fn from(extent: Extent, tip: Tip, checkpoint: Option<Head>) -> Self {
        Self {
            extent,
            begin: tip.number,
            tip,
            old: tip.head,
            live: HashMap::new(),
            undelivered: HashMap::new(),
            orphans: HashMap::new(),
            pruned: None,
            refusals: None,
            checkpoint,
            agrees: checkpoint == Some(tip.head),
        }
    }

    /// `true` if every record is checked.
    pub(super) fn is_of_all(&self) -> bool {
        self.begin == self.extent.first
    }

    /// `true` while no record has been pruned since the start of the check.
    pub(super) fn goes_on(&self, connection: &Connection) -> rusqlite::Result<bool> {
        Ok(Extent::of(connection, "records")?.first == self.extent.first)
    }

    /// Checks up to `most` more records. Returns `true` if there may be more.
    pub(super) fn piece(&mut self, connection: &Connection, most: usize) -> Result<bool, Stop> {
        self.extent.last = Extent::of(connection, "records")?.last;
        let mut statement = connection.prepare_cached(&format!(
            "SELECT {COLUMNS} FROM records WHERE number > ?1 ORDER BY number LIMIT ?2"
        ))?;
        let mut rows =
            statement.query(rusqlite::params![self.tip.number, i64::try_from(most).unwrap_or(i64::MAX)])?;
        let mut count = 0;
        loop {
            let row = rows.next().map_err(|error| self.at(error.into()))?;
            let Some(row) = row else { return Ok(count == most) };
            self.record(connection, row).map_err(|stop| self.at(stop))?;
            count += 1;
        }
    }

    /// Adds the position to a read error of the file.
    fn at(&self, stop: Stop) -> Stop {
        match stop {
            Stop::Found(Finding::Unreadable { reason, .. }) => {
                Stop::Found(Finding::Unreadable { after: self.tip.number, reason })
            }
            Stop::Found(_) | Stop::Sqlite(_) => stop,
        }
    }

    fn record(&mut self, connection: &Connection, row: &rusqlite::Row<'_>) -> Result<(), Stop> {
        let expected = self.tip.number + 1;
        let is = row.get::<_, i64>(0)?;
        if is != expected {
            return Err(Finding::Missing { first: expected, last: is - 1 }.into());
        }
        let intent = row.get::<_, Option<[u8; 16]>>(3).ok().flatten().map(IntentId::from_bytes);
        let changed = || Stop::Found(Finding::Changed { record: is, intent });
        let (record, hash) = Record::read(row).map_err(|_other_type| changed())?;
        let latest = if record.kind == Kind::Receipt { is } else { self.tip.latest };
        let counted = record.receipt.map(number);
        let nth = (record.kind == Kind::Receipt).then(|| self.tip.head.number + 1);
        // The latest receipt may have been pruned.
        let latest_is_right =
            record.latest == latest || (self.tip.latest == 0 && record.latest <= self.begin);
        if record.hash(&self.tip.hash) != hash || !latest_is_right || counted != nth {
            return Err(changed());
        }
        self.check_old_chain(&record).ok_or_else(changed)?;
        self.tip = self.tip.and(&record, hash);
        self.tip.latest = record.latest;
        self.agrees |= nth.is_some() && self.checkpoint == Some(self.tip.head);
        match record.intent {
            Some(intent) => self.intent(connection, &record, intent),
            None => self.other(&record),
        }
    }

    /// Compares a receipt that was in a journal of format 2 with its chain there.
    fn check_old_chain(&mut self, record: &Record<'_>) -> Option<()> {
        if let Some(root) = record.root {
            self.old = format2::head_after(self.old, record)?;
            (self.old.hash == root).then_some(())?;
        }
        Some(())
    }

    /// Checks a record about an intent.
    fn intent(&mut self, connection: &Connection, record: &Record<'_>, intent: [u8; 16]) -> Result<(), Stop> {
        let first = self.extent.first;
        let wrong =
            |what| Finding::Order { record: record.number, intent: Some(IntentId::from_bytes(intent)), what };
        let earlier =
            check_indexes(connection, record, &intent)?.ok_or_else(|| wrong("is missing in an index"))?;
        let live = match self.live.get(&intent) {
            Some(live) => *live,
            None => folded(connection, record, &earlier, first)?
                .ok_or_else(|| wrong("does not go with those before"))?,
        };
        let step = step_of(record)?;
        let live = live.after(&step, first).ok_or_else(|| wrong("does not go with those before"))?;
        match (live.state, record.kind) {
            (State::Ended { claim, receipt }, Kind::Receipt) => {
                self.undelivered.insert(receipt, intent);
                if claim <= first {
                    self.orphans.insert(intent, receipt);
                }
            }
            (_any, Kind::Used) => drop(self.orphans.remove(&intent)),
            _other => {}
        }
        if live.is_settled() {
            self.live.remove(&intent);
        } else {
            self.live.insert(intent, live);
        }
        Ok(())
    }

    /// Checks a record about the journal itself.
    fn other(&mut self, record: &Record<'_>) -> Result<(), Stop> {
        let wrong = |what| Finding::Order { record: record.number, intent: None, what };
        match record.kind {
            Kind::Delivered => {
                for receipt in body::<record::Delivered>(record.body)? {
                    self.delivered(receipt)
                        .ok_or_else(|| wrong("delivers what is no receipt, or was delivered before"))?;
                }
            }
            Kind::Refusals => self.refusals = Some(body(record.body)?),
            Kind::Pruned => self.pruned = Some(body(record.body)?),
            Kind::Migrated | Kind::Revocation => {}
            Kind::Claim
            | Kind::Receipt
            | Kind::Released
            | Kind::Kept
            | Kind::Held
            | Kind::Approved
            | Kind::Denied
            | Kind::Cancelled
            | Kind::Revoked
            | Kind::Expired
            | Kind::Stopped
            | Kind::Task
            | Kind::TaskDropped
            | Kind::Used => return Err(wrong("names no intent").into()),
        }
        Ok(())
    }

    fn delivered(&mut self, receipt: i64) -> Option<()> {
        let Some(intent) = self.undelivered.remove(&receipt) else {
            return (receipt <= self.begin).then_some(());
        };
        let live = self.live.get_mut(&intent)?;
        if let State::Ended { claim, .. } = live.state {
            live.state = State::Over(claim);
        }
        if live.is_settled() {
            self.live.remove(&intent);
        }
        Some(())
    }

    /// Compares everything else with the records, after all of them were checked, and returns the finding.
    pub(super) fn finish(&self, connection: &Connection) -> Result<Finding, Stop> {
        let extent = Extent::of(connection, "records").map_err(|_gone| {
            Stop::Found(Finding::Row { table: "chains", record: self.tip.number, what: "is missing" })
        })?;
        if extent.last > self.tip.number {
            return Err(Finding::Cut { last: self.tip.number, was: extent.last }.into());
        }
        if (extent.last, extent.last_hash) != (self.tip.number, self.tip.hash) {
            return Err(
                Finding::Row { table: "chains", record: extent.last, what: "is not as it was" }.into()
            );
        }
        self.check_what_was_pruned(&extent)?;
        if let Some((intent, receipt)) = self.orphans.iter().next() {
            let (record, intent) = (*receipt, Some(IntentId::from_bytes(*intent)));
            return Err(Finding::Order { record, intent, what: "has no claim" }.into());
        }
        tables::compare(connection, self)?;
        tables::compare_refusals(connection, self.refusals.as_ref(), self.is_of_all())?;
        Ok(self.agreed())
    }

    fn check_what_was_pruned(&self, extent: &Extent) -> Result<(), Stop> {
        let Extent { first, first_hash, pruned, .. } = *extent;
        let is = record::Pruned {
            number: first,
            hash: Digest32(first_hash),
            receipts: super::store::stored(pruned.number),
            checkpoint: Digest32(pruned.hash),
        };
        let nothing = Digest32(NOTHING);
        let none = record::Pruned { number: 0, hash: nothing, receipts: 0, checkpoint: nothing };
        let said = match &self.pruned {
            Some(pruned) => pruned,
            None if self.is_of_all() => &none,
            // The record of the pruning is not among the last ones.
            None => return Ok(()),
        };
        if *said == is {
            Ok(())
        } else {
            Err(Finding::Row { table: "chains", record: first, what: "is not as it was" }.into())
        }
    }

    fn agreed(&self) -> Finding {
        let (head, pruned) = (self.tip.head, self.extent.pruned.number);
        match self.checkpoint {
            Some(point) if point.number > head.number => {
                Finding::Short { last: head.number, number: point.number }
            }
            Some(point) if point.number < pruned => Finding::CheckpointPruned { number: point.number },
            Some(point) if !self.agrees => Finding::Differs { number: point.number },
            Some(_) | None => Finding::Holds {
                receipts: head.number - pruned,
                pruned,
                records: number(self.tip.number - self.extent.first),
                head,
            },
        }
    }
}

fn step_of(record: &Record<'_>) -> Result<Step, Stop> {
    let Record { number, kind, about, body, .. } = *record;
    let task = body.try_into().ok().filter(|_| kind == Kind::Task);
    Ok(Step { number, kind, about, task })
}

/// The records of an intent before this one, according to the indexes; `None` if this one is not in them.
fn check_indexes(
    connection: &Connection,
    record: &Record<'_>,
    intent: &[u8; 16],
) -> Result<Option<Vec<i64>>, Stop> {
    if let Some(proof) = record.proof {
        let sql = "SELECT number FROM records WHERE proof = ?1";
        let found = connection.prepare_cached(sql)?.query_row([proof], |row| row.get::<_, i64>(0));
        if found != Ok(record.number) {
            return Ok(None);
        }
    }
    if record.kind == Kind::Receipt {
        let found = match record.about {
            Some(claim) => receipt_of(connection, claim)?,
            None => None,
        };
        if found != Some(record.number) {
            return Ok(None);
        }
    }
    let mut statement = connection.prepare_cached(
        "SELECT number FROM records WHERE intent = ?1 AND kind <> 'receipt' AND number <= ?2 ORDER BY number",
    )?;
    let numbers = statement.query_map(rusqlite::params![intent, record.number], |row| row.get(0))?;
    let mut numbers = numbers.collect::<rusqlite::Result<Vec<i64>>>()?;
    if record.kind != Kind::Receipt && numbers.pop() != Some(record.number) {
        return Ok(None);
    }
    Ok(Some(numbers))
}

/// The state of an intent after its earlier records, which were checked before or are not among the last; `None` if
/// they contradict each other.
fn folded(
    connection: &Connection,
    record: &Record<'_>,
    earlier: &[i64],
    first: i64,
) -> Result<Option<Live>, Stop> {
    let mut live = Some(Live::UNKNOWN);
    for number in earlier {
        let Some(before) = live else { return Ok(None) };
        let sql = "SELECT kind, about, body FROM records WHERE number = ?1";
        let step = connection.prepare_cached(sql)?.query_row([number], |row| {
            let kind = row.get_ref(0)?.as_str().ok().and_then(Kind::parse).ok_or_else(|| record::wrong(0))?;
            let task = row.get_ref(2)?.as_blob()?.try_into().ok().filter(|_| kind == Kind::Task);
            Ok(Step { number: *number, kind, about: row.get(1)?, task })
        })?;
        live = before.after(&step, first);
        // The index of the intent does not contain its receipt.
        if step.kind == Kind::Claim
            && let Some(receipt) = receipt_of(connection, *number)?.filter(|receipt| *receipt < record.number)
        {
            let ended = Step { number: receipt, kind: Kind::Receipt, about: Some(*number), task: None };
            live = live.and_then(|live| live.after(&ended, first));
            live = live.map(|live| Live { state: State::Over(*number), ..live });
        }
    }
    Ok(live)
}

/// Compares the tables, indexes and triggers with those of a journal.
pub(super) fn check_schema(connection: &Connection) -> Result<(), Stop> {
    // Without conversion: SQLite tells the same text as a blob apart, and an expression of it would not.
    let list = |connection: &Connection| -> rusqlite::Result<Vec<[Value; 4]>> {
        let sql = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name";
        let mut statement = connection.prepare(sql)?;
        statement.query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))?.collect()
    };
    let right = Connection::open_in_memory()?;
    right.execute_batch(&schema())?;
    let (right, is) = (list(&right)?, list(connection)?);
    let different =
        is.iter().find(|one| !right.contains(one)).or_else(|| right.iter().find(|one| !is.contains(one)));
    match different {
        None => Ok(()),
        Some([kind, name, table, _]) => {
            let name = format!("{} {} on {}", shown(kind), shown(name), shown(table));
            Err(Finding::Schema { name }.into())
        }
    }
}

fn shown(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Text(text) => Cow::Borrowed(text),
        Value::Blob(bytes) => String::from_utf8_lossy(bytes),
        Value::Null | Value::Integer(_) | Value::Real(_) => Cow::Borrowed("?"),
    }
}

/// Checks that the records reach the one of the marker beside the journal.
pub(super) fn check_marker(connection: &Connection, marked: Option<&Marked>) -> Result<(), Stop> {
    let Some(Marked { number, hash, .. }) = marked else { return Ok(()) };
    let extent = Extent::of(connection, "records")?;
    if extent.last < *number {
        return Err(Finding::Cut { last: extent.last, was: *number }.into());
    }
    if *number <= extent.first {
        return Ok(());
    }
    let sql = "SELECT hash FROM records WHERE number = ?1";
    let is = connection.query_row(sql, [number], |row| row.get::<_, Hash>(0)).optional()?;
    if is == Some(*hash) { Ok(()) } else { Err(Finding::Changed { record: *number, intent: None }.into()) }
}

/// Checks a whole journal on one snapshot, so that a server may write meanwhile. `progress` receives the number of
/// checked records from time to time.
///
/// # Errors
/// SQLite's errors that are not caused by the content of the journal.
pub(super) fn verify(
    connection: &Connection,
    path: &Path,
    checkpoint: Option<Head>,
    mut progress: impl FnMut(u64),
) -> rusqlite::Result<Finding> {
    // Read first: the server may write meanwhile.
    let marked = files::marked(path);
    let _moment = connection.unchecked_transaction()?;
    let check = || -> Result<Finding, Stop> {
        check_schema(connection)?;
        let mut verifier = Verifier::of_all(connection, checkpoint)?;
        while verifier.piece(connection, PIECE)? {
            progress(number(verifier.tip.number));
        }
        let finding = verifier.finish(connection)?;
        check_marker(connection, marked.as_ref())?;
        check_structure(connection, verifier.tip.number)?;
        Ok(finding)
    };
    match { check }() {
        Ok(finding) | Err(Stop::Found(finding)) => Ok(finding),
        Err(Stop::Sqlite(error)) => Err(error),
    }
}

/// Runs SQLite's check of its own pages, and of the indexes of `tasks`; those of `records` were compared record by
/// record.
pub(super) fn check_structure(connection: &Connection, after: i64) -> Result<(), Stop> {
    for check in ["PRAGMA quick_check(1)", "PRAGMA integrity_check(tasks)"] {
        let reason = connection.query_row(check, [], |row| row.get::<_, String>(0))?;
        if reason != "ok" {
            return Err(Finding::Unreadable { after, reason }.into());
        }
    }
    Ok(())
}
