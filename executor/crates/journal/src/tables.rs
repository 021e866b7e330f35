//! Compares the records with the tables derived from them: open and waiting intents, tasks, and refusals.

use super::chain::{Hash, Head};
use super::finding::{CheckError, Finding};
use super::log::{Extent, RefusalRow};
use super::record::{self, digest};
use super::recorded_state::{RecordedState, RunEnd, parse_body, recorded_state};
use super::replay::{ReplayState, ReplayedIntent};
use super::tasks::{HASHED_COLUMNS, hash_row};
use super::verify::Verifier;
use a2g_types::ident::IntentId;
use rusqlite::{Connection, OptionalExtension as _, params};

/// The finding for a row that differs from its record.
pub(super) const CHANGED: &str = "was changed";

/// The number of last refusals that a partial check reads.
const LAST_REFUSALS: i64 = 5_000;

/// Compares the rows of `open`, `waiting` and `tasks` with the states that the records give, in both directions. After
/// a partial check, only the intents whose records were checked are searched for missing rows.
pub(super) fn compare(connection: &Connection, verifier: &Verifier) -> Result<(), CheckError> {
    let is_full = verifier.is_full();
    let replayed = |intent: &[u8; 16]| verifier.live.get(intent).copied();
    compare_open(connection, &replayed, is_full)?;
    compare_waiting(connection)?;
    if is_full {
        // A partial check has not read the records of older tasks, and would report their rows as having no record.
        compare_tasks(connection, &replayed)?;
    }
    // The comparisons above read the rows that exist; this one starts at the records, and so finds deleted rows.
    verifier.live.iter().try_for_each(|(intent, live)| check_rows(connection, intent, live))
}

/// Checks that the rows required by an intent's state exist.
fn check_rows(connection: &Connection, intent: &[u8; 16], live: &ReplayedIntent) -> Result<(), CheckError> {
    let (table, column, record) = match live.state {
        ReplayState::Started(claim) | ReplayState::Ended { claim, .. } => ("open", "run", claim),
        ReplayState::Waiting(held) | ReplayState::Approved(held) => ("waiting", "number", held),
        ReplayState::Unknown | ReplayState::Denied | ReplayState::Closed(_) => ("", "", 0),
    };
    let missing = |table, record| CheckError::Found(Finding::Row { table, record, what: "is missing" });
    if record != 0 {
        let sql = format!("SELECT 1 FROM {table} WHERE {column} = ?1");
        let row = connection.prepare_cached(&sql)?.query_row([record], |_| Ok(())).optional()?;
        row.ok_or_else(|| missing(table, record))?;
    }
    let Some(hash) = live.task else { return Ok(()) };
    let sql = "SELECT number FROM tasks WHERE task = ?1";
    let number = connection.prepare_cached(sql)?.query_row([intent], |row| row.get(0)).optional()?;
    let Some(number) = number else { return Err(missing("tasks", last_task_record(connection, intent)?)) };
    // `NOT INDEXED`: SQLite would read the task's id from the index, which `quick_check` does not compare with the
    // table.
    let sql = format!("SELECT {HASHED_COLUMNS} FROM tasks NOT INDEXED WHERE number = ?1");
    let row = connection.prepare_cached(&sql)?.query_row([number], hash_row).optional()?;
    if row == Some(hash) {
        Ok(())
    } else {
        Err(Finding::Row { table: "tasks", record: number, what: CHANGED }.into())
    }
}

/// The number of the last record of a task.
fn last_task_record(connection: &Connection, task: &[u8; 16]) -> rusqlite::Result<i64> {
    let sql = "SELECT max(number) FROM records WHERE intent = ?1 AND kind <> 'receipt'";
    Ok(connection.query_row(sql, [task], |row| row.get::<_, Option<i64>>(0))?.unwrap_or_default())
}

/// Compares each row of `open` with its claim.
fn compare_open(
    connection: &Connection,
    replayed: &impl Fn(&[u8; 16]) -> Option<ReplayedIntent>,
    is_full: bool,
) -> Result<(), CheckError> {
    let condition = if is_full { "" } else { "WHERE receipt IS NULL" };
    let sql = format!("SELECT run, fallback_receipt, task, receipt FROM open {condition} ORDER BY run");
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let run = row.get::<_, i64>(0)?;
        let row_error = |what| CheckError::Found(Finding::Row { table: "open", record: run, what });
        let hash_text = |column: usize| -> rusqlite::Result<Option<record::Digest32>> {
            Ok(row.get_ref(column)?.as_str_or_null()?.map(|text| digest(text.as_bytes())))
        };
        let hashes = (hash_text(1)?, hash_text(2)?);
        let receipt = row.get::<_, Option<i64>>(3)?;
        let (intent, claim) = read_claim(connection, run)?.ok_or_else(|| row_error("has no claim"))?;
        let is_unchanged = match receipt {
            None => hashes == (Some(claim.fallback_receipt), claim.task),
            Some(_) => hashes == (None, None),
        };
        if !is_unchanged {
            return Err(row_error(CHANGED));
        }
        // The run may have begun before the records of a partial check, which therefore reads all records of the
        // intent.
        let state = if is_full {
            replayed(&intent).map(|live| live.state)
        } else {
            read_run_state(connection, IntentId::from_bytes(intent))?
        };
        let expected = match receipt {
            None => ReplayState::Started(run),
            Some(receipt) => ReplayState::Ended { claim: run, receipt },
        };
        if state != Some(expected) {
            return Err(row_error("contradicts its records"));
        }
    }
    Ok(())
}

fn read_claim(connection: &Connection, run: i64) -> rusqlite::Result<Option<([u8; 16], record::ClaimBody)>> {
    let sql = "SELECT intent, body FROM records WHERE number = ?1 AND kind = 'claim'";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, parse_body(row.get_ref(1)?.as_blob()?)?));
    connection.prepare_cached(sql)?.query_row([run], read).optional()
}

fn read_run_state(connection: &Connection, intent: IntentId) -> rusqlite::Result<Option<ReplayState>> {
    let RecordedState::Claimed(claimed) = recorded_state(connection, intent)? else { return Ok(None) };
    Ok(Some(match claimed.end {
        RunEnd::Pending => ReplayState::Started(claimed.number),
        RunEnd::Receipt(receipt) => ReplayState::Ended { claim: claimed.number, receipt },
        RunEnd::Pruned => ReplayState::Closed(claimed.number),
    }))
}

/// Compares each row of `waiting` with its record.
fn compare_waiting(connection: &Connection) -> Result<(), CheckError> {
    let mut rows = connection
        // This is not an inner join, which would skip a row without a record.
        .prepare("SELECT waiting.number, text, intent FROM waiting LEFT JOIN records USING (number)")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let held = row.get::<_, i64>(0)?;
        let row_error = |what| CheckError::Found(Finding::Row { table: "waiting", record: held, what });
        let intent = row.get::<_, Option<[u8; 16]>>(2)?.ok_or_else(|| row_error("has no record"))?;
        let waiting = match recorded_state(connection, IntentId::from_bytes(intent))? {
            RecordedState::Waiting(held) | RecordedState::Approved(held, _) => Some(held),
            RecordedState::Unknown
            | RecordedState::Withdrawn(_)
            | RecordedState::Denied(_)
            | RecordedState::Claimed(_) => None,
        };
        let waiting = waiting
            .filter(|waiting| waiting.number == held)
            .ok_or_else(|| row_error("contradicts its records: the intent does not wait"))?;
        let text = row.get_ref(1)?.as_str().map_err(|_other_type| row_error(CHANGED))?;
        if digest(text.as_bytes()) != waiting.body.text_hash {
            return Err(row_error(CHANGED));
        }
    }
    Ok(())
}

/// Finds tasks without a record.
fn compare_tasks(
    connection: &Connection,
    replayed: &impl Fn(&[u8; 16]) -> Option<ReplayedIntent>,
) -> Result<(), CheckError> {
    // `NOT INDEXED`, because an index may have another id than the row; `check_structure` compares the two.
    let mut rows = connection.prepare("SELECT number, task FROM tasks NOT INDEXED")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let number = row.get::<_, i64>(0)?;
        let task = row.get::<_, [u8; 16]>(1)?;
        if replayed(&task).and_then(|live| live.task).is_none() {
            return Err(Finding::Row { table: "tasks", record: number, what: "has no record" }.into());
        }
    }
    Ok(())
}

/// Compares the refusals with their own chain, and the chain with its marks in the records.
pub(super) fn compare_refusals(
    connection: &Connection,
    mark: Option<&record::RefusalsBody>,
    is_full: bool,
) -> Result<(), CheckError> {
    let row_error = |record, what| CheckError::Found(Finding::Row { table: "refusals", record, what });
    let missing = |_error| CheckError::Found(Finding::Row { table: "chains", record: 0, what: "is missing" });
    let extent = Extent::read(connection, "refusals").map_err(missing)?;
    let Extent { first, first_hash, pruned, last, last_hash } = extent;
    let chains = connection.query_row("SELECT count(*) FROM chains", [], |row| row.get::<_, i64>(0))?;
    // Unused columns and rows are compared as well, so that every change of this table is found.
    if pruned != Head::START || chains != 2 {
        return Err(Finding::Row { table: "chains", record: 0, what: CHANGED }.into());
    }
    let mut number = first;
    let mut hash = first_hash;
    let begin = last.saturating_sub(LAST_REFUSALS);
    if !is_full && begin > first {
        let sql = "SELECT hash FROM refusals WHERE number = ?1";
        let at = connection.query_row(sql, [begin], |row| row.get::<_, Hash>(0)).optional()?;
        (number, hash) = (begin, at.ok_or_else(|| row_error(begin, "is missing"))?);
    }
    // The marked refusal may have been dropped since, because only `MAX_REFUSALS` are stored.
    let mut is_mark_found = mark.is_none_or(|mark| mark.number <= number);
    let sql = "SELECT number, refused, intent, agent, tool, blocked_by, message, hash FROM refusals
               WHERE number > ?1 ORDER BY number";
    let mut rows = connection.prepare(sql)?;
    // A full check begins before the first row, so that rows added in front of it are found.
    let mut rows = rows.query(params![if is_full { i64::MIN } else { number }])?;
    while let Some(row) = rows.next()? {
        let row_number = row.get::<_, i64>(0)?;
        if row_number != number + 1 {
            return Err(row_error(number + 1, "is missing"));
        }
        let refusal = RefusalRow::read(row, 1).map_err(|_other_type| row_error(row_number, CHANGED))?;
        let row_hash = refusal.hash(row_number, &hash);
        if row.get_ref(7)?.as_blob().ok() != Some(&row_hash[..]) {
            return Err(row_error(row_number, CHANGED));
        }
        (number, hash) = (row_number, row_hash);
        is_mark_found |= mark.is_some_and(|mark| (mark.number, mark.hash.0) == (number, hash));
    }
    match () {
        () if number < last => Err(row_error(number + 1, "is missing")),
        () if (number, hash) != (last, last_hash) => Err(row_error(number, CHANGED)),
        () if !is_mark_found => Err(row_error(number, "is not what the records say")),
        () => Ok(()),
    }
}
