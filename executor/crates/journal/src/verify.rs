//! Checks a journal against its own chain: every record against its hash and the previous record, the records of each
//! intent against each other, and every other table against the records that it is derived from.
//!
//! A [`Verifier`] reads the records in order, in chunks. It holds in memory the intents that run, wait or have an
//! undelivered report at that point, and the stored tasks.

use super::arguments;
use super::chain::{Head, INITIAL_HASH};
use super::files::{self, Marker};
use super::finding::CheckError;
pub use super::finding::Finding;
use super::log::{Extent, Tip, find_hash};
use super::record::{self, Digest32, JournalRecord, RECORD_COLUMNS, RecordKind};
use super::recorded_state::{find_receipt, parse_body};
use super::replay::{ReplayState, ReplayStep, ReplayedIntent};
use super::stops;
use super::store::{from_sqlite_int, schema};
use super::tables;
use a2g_types::ident::IntentId;
use a2g_types::stop::StopTarget;
use rusqlite::Connection;
use rusqlite::types::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// The number of records in one chunk.
pub(super) const CHUNK_RECORDS: usize = 10_000;

/// A check in progress.
pub(super) struct Verifier {
    extent: Extent,
    /// The number of the last record before the checked ones.
    begin: i64,
    pub(super) tip: Tip,
    /// The intents that need a row in another table, by id.
    pub(super) live: HashMap<[u8; 16], ReplayedIntent>,
    /// The intents of undelivered receipts, by the receipt's record.
    undelivered: HashMap<i64, [u8; 16]>,
    /// Receipts whose claim was pruned: a copy of the claim has to follow.
    orphans: HashMap<[u8; 16], i64>,
    /// The stops in force, by the record of each.
    pub(super) stops: BTreeMap<i64, StopTarget>,
    /// The number of checked records that have a row of arguments.
    argument_rows: i64,
    pruned: Option<record::PrunedBody>,
    refusals: Option<record::RefusalsBody>,
    checkpoint: Option<Head>,
    is_checkpoint_seen: bool,
}

impl Verifier {
    /// A check of all records.
    pub(super) fn full(connection: &Connection, checkpoint: Option<Head>) -> rusqlite::Result<Self> {
        let extent = Extent::read(connection, "records")?;
        Ok(Self::new(extent, Tip::before_first(&extent), checkpoint))
    }

    /// A check of the last `count` records.
    pub(super) fn last_records(connection: &Connection, count: i64) -> Result<Self, CheckError> {
        let extent = Extent::read(connection, "records")?;
        let begin = extent.last.saturating_sub(count);
        if begin <= extent.first {
            return Ok(Self::new(extent, Tip::before_first(&extent), None));
        }
        let tip = Tip::at_record(connection, begin, &extent)?;
        Ok(Self::new(extent, tip, None))
    }

    fn new(extent: Extent, tip: Tip, checkpoint: Option<Head>) -> Self {
        Self {
            extent,
            begin: tip.number,
            tip,
            live: HashMap::new(),
            undelivered: HashMap::new(),
            orphans: HashMap::new(),
            stops: BTreeMap::new(),
            argument_rows: 0,
            pruned: None,
            refusals: None,
            checkpoint,
            // The checkpoint may be that of the last pruned receipt, which is in no remaining record.
            is_checkpoint_seen: checkpoint == Some(tip.head),
        }
    }

    /// `true` if the check covers every record.
    pub(super) fn is_full(&self) -> bool {
        self.begin == self.extent.first
    }

    /// `true` if a record is one of the checked ones.
    pub(super) fn covers(&self, record: i64) -> bool {
        record > self.begin
    }

    /// `true` if no record has been pruned since the start of the check.
    pub(super) fn is_unpruned(&self, connection: &Connection) -> rusqlite::Result<bool> {
        Ok(Extent::read(connection, "records")?.first == self.extent.first)
    }

    /// Checks up to `max_records` more records. Returns `true` if there may be more.
    pub(super) fn check_chunk(
        &mut self,
        connection: &Connection,
        max_records: usize,
    ) -> Result<bool, CheckError> {
        // In a background check, the server appends records between the chunks.
        self.extent.last = Extent::read(connection, "records")?.last;
        let mut statement = connection.prepare_cached(&format!(
            "SELECT {RECORD_COLUMNS} FROM records WHERE number > ?1 ORDER BY number LIMIT ?2"
        ))?;
        let mut rows = statement
            .query(rusqlite::params![self.tip.number, i64::try_from(max_records).unwrap_or(i64::MAX)])?;
        let mut count = 0;
        loop {
            let row = rows.next().map_err(|error| self.with_position(error.into()))?;
            let Some(row) = row else { return Ok(count == max_records) };
            self.check_record(connection, row).map_err(|error| self.with_position(error))?;
            count += 1;
        }
    }

    /// Adds the position to a read error of the file.
    fn with_position(&self, error: CheckError) -> CheckError {
        match error {
            CheckError::Found(Finding::Unreadable { reason, .. }) => {
                CheckError::Found(Finding::Unreadable { after: self.tip.number, reason })
            }
            CheckError::Found(_) | CheckError::Sqlite(_) => error,
        }
    }

    fn check_record(&mut self, connection: &Connection, row: &rusqlite::Row<'_>) -> Result<(), CheckError> {
        let expected = self.tip.number + 1;
        let number = row.get::<_, i64>(0)?;
        if number != expected {
            return Err(Finding::Missing { first: expected, last: number - 1 }.into());
        }
        let intent = row.get::<_, Option<[u8; 16]>>(3).ok().flatten().map(IntentId::from_bytes);
        let change_error = || CheckError::Found(Finding::Changed { record: number, intent });
        // SQLite's types belong to values and not to columns, so a value of another type is a change of the record.
        let (record, hash) = JournalRecord::read(row).map_err(|_other_type| change_error())?;
        let latest = if record.kind == RecordKind::Receipt { number } else { self.tip.latest };
        let receipt = record.receipt.map(from_sqlite_int);
        let expected_receipt = (record.kind == RecordKind::Receipt).then(|| self.tip.head.number + 1);
        // The latest receipt may have been pruned.
        let is_latest_correct =
            record.latest == latest || (self.tip.latest == 0 && !self.covers(record.latest));
        if record.hash(&self.tip.hash) != hash || !is_latest_correct || receipt != expected_receipt {
            return Err(change_error());
        }
        self.tip = self.tip.with_record(&record, hash);
        self.tip.latest = record.latest;
        self.is_checkpoint_seen |= receipt.is_some() && self.checkpoint == Some(self.tip.head);
        match record.intent {
            Some(intent) => self.check_intent_record(connection, &record, intent),
            None => self.check_journal_record(&record),
        }
    }

    /// Checks a record about an intent.
    fn check_intent_record(
        &mut self,
        connection: &Connection,
        record: &JournalRecord<'_>,
        intent: [u8; 16],
    ) -> Result<(), CheckError> {
        let first = self.extent.first;
        let order_error =
            |what| Finding::Order { record: record.number, intent: Some(IntentId::from_bytes(intent)), what };
        // Look-ups use indexes that SQLite's `quick_check` does not compare with the table: an intent whose entry is
        // missing could run again.
        let earlier = check_indexes(connection, record, &intent)?
            .ok_or_else(|| order_error("is missing in an index"))?;
        let live = match self.live.get(&intent) {
            Some(live) => *live,
            // A settled intent is not kept, because memory would grow with every run; its few records are read again.
            None => replay_earlier(connection, record, &earlier, first)?
                .ok_or_else(|| order_error("contradicts the earlier records"))?,
        };
        let step = to_step(record)?;
        let live = live.after(&step, first).ok_or_else(|| order_error("contradicts the earlier records"))?;
        match (live.state, record.kind) {
            (ReplayState::Ended { claim, receipt }, RecordKind::Receipt) => {
                self.undelivered.insert(receipt, intent);
                if claim <= first {
                    self.orphans.insert(intent, receipt);
                }
            }
            (_any, RecordKind::Used) => drop(self.orphans.remove(&intent)),
            _other => {}
        }
        if live.is_settled() {
            self.live.remove(&intent);
        } else {
            self.live.insert(intent, live);
        }
        self.argument_rows += i64::from(arguments::check(connection, record, self.is_full())?);
        Ok(())
    }

    /// Checks a record about the journal itself.
    fn check_journal_record(&mut self, record: &JournalRecord<'_>) -> Result<(), CheckError> {
        let order_error = |what| Finding::Order { record: record.number, intent: None, what };
        match record.kind {
            RecordKind::Delivered => {
                for receipt in parse_body::<record::DeliveredBody>(record.body)? {
                    self.apply_delivery(receipt).ok_or_else(|| {
                        order_error("marks as delivered what is not a receipt, or was already delivered")
                    })?;
                }
            }
            RecordKind::Refusals => self.refusals = Some(parse_body(record.body)?),
            RecordKind::Pruned => self.pruned = Some(parse_body(record.body)?),
            RecordKind::StopSet => {
                let _body = parse_body::<record::StopSetBody>(record.body)?;
                let target = stops::parse_target(record.agent, record.tool)
                    .ok_or_else(|| order_error("names nothing that can be stopped"))?;
                self.apply_stop(record, target)
                    .ok_or_else(|| order_error("contradicts the earlier records of stops"))?;
            }
            RecordKind::StopLifted => {
                let _body = parse_body::<record::StopLiftedBody>(record.body)?;
                let target = stops::parse_target(record.agent, record.tool);
                self.end_stop(record.about, target.as_ref())
                    .ok_or_else(|| order_error("lifts what is not stopped"))?;
            }
            RecordKind::Revocation => {}
            RecordKind::Claim
            | RecordKind::Receipt
            | RecordKind::Released
            | RecordKind::Kept
            | RecordKind::Held
            | RecordKind::PartlyApproved
            | RecordKind::Approved
            | RecordKind::Denied
            | RecordKind::Cancelled
            | RecordKind::Revoked
            | RecordKind::Expired
            | RecordKind::Stopped
            | RecordKind::Task
            | RecordKind::TaskDropped
            | RecordKind::Used
            | RecordKind::Fleet => return Err(order_error("names no intent").into()),
        }
        Ok(())
    }

    /// Applies a stop, which may replace an earlier one of the same target.
    fn apply_stop(&mut self, record: &JournalRecord<'_>, target: StopTarget) -> Option<()> {
        match record.about {
            None if self.stops.values().any(|stopped| *stopped == target) => return None,
            None => {}
            Some(_) => self.end_stop(record.about, Some(&target))?,
        }
        self.stops.insert(record.number, target);
        Some(())
    }

    /// Ends a stop of `target`, whose record may precede the checked ones.
    fn end_stop(&mut self, about: Option<i64>, target: Option<&StopTarget>) -> Option<()> {
        let about = about?;
        let target = target?;
        if !self.covers(about) {
            return Some(());
        }
        (self.stops.remove(&about)? == *target).then_some(())
    }

    fn apply_delivery(&mut self, receipt: i64) -> Option<()> {
        let Some(intent) = self.undelivered.remove(&receipt) else {
            // A receipt before the checked records is not in `undelivered`.
            return (!self.covers(receipt)).then_some(());
        };
        let live = self.live.get_mut(&intent)?;
        if let ReplayState::Ended { claim, .. } = live.state {
            live.state = ReplayState::Closed(claim);
        }
        if live.is_settled() {
            self.live.remove(&intent);
        }
        Some(())
    }

    /// Compares all other tables with the records, after all records were checked. Returns the finding.
    pub(super) fn finish(&self, connection: &Connection) -> Result<Finding, CheckError> {
        let extent = Extent::read(connection, "records").map_err(|_error| {
            CheckError::Found(Finding::Row { table: "chains", record: self.tip.number, what: "is missing" })
        })?;
        if extent.last > self.tip.number {
            return Err(Finding::Cut { last: self.tip.number, was: extent.last }.into());
        }
        if (extent.last, extent.last_hash) != (self.tip.number, self.tip.hash) {
            return Err(Finding::Row { table: "chains", record: extent.last, what: tables::CHANGED }.into());
        }
        self.check_pruned_extent(&extent)?;
        if let Some((intent, receipt)) = self.orphans.iter().next() {
            let record = *receipt;
            let intent = Some(IntentId::from_bytes(*intent));
            return Err(Finding::Order { record, intent, what: "has no claim" }.into());
        }
        tables::compare(connection, self)?;
        stops::compare(connection, self)?;
        // Rows before the first record have none either.
        let begin = if self.is_full() { i64::MIN } else { self.begin };
        arguments::check_count(connection, begin, self.argument_rows)?;
        tables::compare_refusals(connection, self.refusals.as_ref(), self.is_full())?;
        Ok(self.conclude())
    }

    fn check_pruned_extent(&self, extent: &Extent) -> Result<(), CheckError> {
        let Extent { first, first_hash, pruned, .. } = *extent;
        let actual = record::PrunedBody {
            number: first,
            hash: Digest32(first_hash),
            receipts: super::store::to_sqlite_int(pruned.number),
            checkpoint: Digest32(pruned.hash),
        };
        let nothing = Digest32(INITIAL_HASH);
        let none = record::PrunedBody { number: 0, hash: nothing, receipts: 0, checkpoint: nothing };
        // A change of the row in `chains` could hide that the first records were removed, so the row has to agree with
        // a record.
        let recorded = match &self.pruned {
            Some(pruned) => pruned,
            None if self.is_full() => &none,
            // A partial check may not have read the record of the pruning.
            None => return Ok(()),
        };
        if *recorded == actual {
            Ok(())
        } else {
            Err(Finding::Row { table: "chains", record: first, what: tables::CHANGED }.into())
        }
    }

    fn conclude(&self) -> Finding {
        let head = self.tip.head;
        let pruned = self.extent.pruned.number;
        match self.checkpoint {
            Some(point) if point.number > head.number => {
                Finding::Short { last: head.number, number: point.number }
            }
            Some(point) if point.number < pruned => Finding::CheckpointPruned { number: point.number },
            Some(point) if !self.is_checkpoint_seen => Finding::Differs { number: point.number },
            Some(_) | None => Finding::Holds {
                receipts: head.number - pruned,
                pruned,
                records: from_sqlite_int(self.tip.number - self.extent.first),
                head,
            },
        }
    }
}

fn to_step(record: &JournalRecord<'_>) -> Result<ReplayStep, CheckError> {
    let JournalRecord { number, kind, about, body, .. } = *record;
    let task = body.try_into().ok().filter(|_| kind == RecordKind::Task);
    Ok(ReplayStep { number, kind, about, task })
}

/// The numbers of the earlier records of an intent, according to the indexes; `None` if `record` is not in an index.
fn check_indexes(
    connection: &Connection,
    record: &JournalRecord<'_>,
    intent: &[u8; 16],
) -> Result<Option<Vec<i64>>, CheckError> {
    if let Some(proof) = record.proof {
        let sql = "SELECT number FROM records WHERE proof = ?1";
        let found = connection.prepare_cached(sql)?.query_row([proof], |row| row.get::<_, i64>(0));
        if found != Ok(record.number) {
            return Ok(None);
        }
    }
    if record.kind == RecordKind::Receipt {
        let found = match record.about {
            Some(claim) => find_receipt(connection, claim)?,
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
    if record.kind != RecordKind::Receipt && numbers.pop() != Some(record.number) {
        return Ok(None);
    }
    Ok(Some(numbers))
}

/// The state of an intent after its `earlier` records; `None` if they contradict each other. The earlier records were
/// checked before, or precede a partial check.
fn replay_earlier(
    connection: &Connection,
    record: &JournalRecord<'_>,
    earlier: &[i64],
    first: i64,
) -> Result<Option<ReplayedIntent>, CheckError> {
    let mut live = Some(ReplayedIntent::UNKNOWN);
    for number in earlier {
        let Some(before) = live else { return Ok(None) };
        let sql = "SELECT kind, about, body FROM records WHERE number = ?1";
        let step = connection.prepare_cached(sql)?.query_row([number], |row| {
            let kind = row
                .get_ref(0)?
                .as_str()
                .ok()
                .and_then(RecordKind::parse)
                .ok_or_else(|| record::column_error(0))?;
            let task = row.get_ref(2)?.as_blob()?.try_into().ok().filter(|_| kind == RecordKind::Task);
            Ok(ReplayStep { number: *number, kind, about: row.get(1)?, task })
        })?;
        live = before.after(&step, first);
        // The index of the intent does not contain its receipt.
        if step.kind == RecordKind::Claim
            && let Some(receipt) =
                find_receipt(connection, *number)?.filter(|receipt| *receipt < record.number)
        {
            let receipt_step =
                ReplayStep { number: receipt, kind: RecordKind::Receipt, about: Some(*number), task: None };
            live = live.and_then(|live| live.after(&receipt_step, first));
            // Deliveries are not in the index of the intent, so an earlier receipt counts as delivered here.
            live = live.map(|live| ReplayedIntent { state: ReplayState::Closed(*number), ..live });
        }
    }
    Ok(live)
}

/// Compares the tables, indexes and triggers with those of a journal.
pub(super) fn check_schema(connection: &Connection) -> Result<(), CheckError> {
    // Values are read without conversion, so that a blob with the same bytes differs from the text.
    let list = |connection: &Connection| -> rusqlite::Result<Vec<[Value; 4]>> {
        let sql = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name";
        let mut statement = connection.prepare(sql)?;
        statement.query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))?.collect()
    };
    // The whole schema is compared, because an added trigger or a missing unique index changes the effect of later
    // writes.
    let expected = Connection::open_in_memory()?;
    expected.execute_batch(&schema())?;
    let expected = list(&expected)?;
    let actual = list(connection)?;
    let added = actual.iter().find(|entry| !expected.contains(entry));
    match added.or_else(|| expected.iter().find(|entry| !actual.contains(entry))) {
        None => Ok(()),
        Some([kind, name, table, _]) => {
            let name = format!("{} {} on {}", display_value(kind), display_value(name), display_value(table));
            Err(Finding::Schema { name }.into())
        }
    }
}

fn display_value(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Text(text) => Cow::Borrowed(text),
        Value::Blob(bytes) => String::from_utf8_lossy(bytes),
        Value::Null | Value::Integer(_) | Value::Real(_) => Cow::Borrowed("?"),
    }
}

/// Checks that the journal has the record that the marker names.
pub(super) fn check_marker(connection: &Connection, marker: Option<&Marker>) -> Result<(), CheckError> {
    let Some(Marker { number, hash, .. }) = marker else { return Ok(()) };
    let extent = Extent::read(connection, "records")?;
    if extent.last < *number {
        return Err(Finding::Cut { last: extent.last, was: *number }.into());
    }
    // `journal prune` writes no marker, so it may have removed the marked record.
    if *number <= extent.first {
        return Ok(());
    }
    // The hash is compared because another history may have the same length.
    if find_hash(connection, *number)? == Some(*hash) {
        Ok(())
    } else {
        Err(Finding::Changed { record: *number, intent: None }.into())
    }
}

/// Checks a whole journal on one snapshot, so that a server may write at the same time. `progress` receives the number
/// of the last checked record after each chunk.
///
/// # Errors
/// SQLite's errors that are not caused by the content of the journal.
pub(super) fn verify(
    connection: &Connection,
    path: &Path,
    checkpoint: Option<Head>,
    mut progress: impl FnMut(u64),
) -> rusqlite::Result<Finding> {
    // Read before the snapshot: a marker that the server writes later could name a record that is not in the snapshot.
    let marker = files::read_marker(path);
    let _snapshot = connection.unchecked_transaction()?;
    let check = || -> Result<Finding, CheckError> {
        check_schema(connection)?;
        let mut verifier = Verifier::full(connection, checkpoint)?;
        while verifier.check_chunk(connection, CHUNK_RECORDS)? {
            progress(from_sqlite_int(verifier.tip.number));
        }
        let finding = verifier.finish(connection)?;
        check_marker(connection, marker.as_ref())?;
        check_structure(connection, verifier.tip.number)?;
        Ok(finding)
    };
    match { check }() {
        Ok(finding) | Err(CheckError::Found(finding)) => Ok(finding),
        Err(CheckError::Sqlite(error)) => Err(error),
    }
}

/// Runs SQLite's check of its own pages and of the indexes of `tasks`. `check_indexes` covers those of `records`.
pub(super) fn check_structure(connection: &Connection, after: i64) -> Result<(), CheckError> {
    for check in ["PRAGMA quick_check(1)", "PRAGMA integrity_check(tasks)"] {
        let reason = connection.query_row(check, [], |row| row.get::<_, String>(0))?;
        if reason != "ok" {
            return Err(Finding::Unreadable { after, reason }.into());
        }
    }
    Ok(())
}
