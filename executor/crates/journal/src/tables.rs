//! The comparison of the records with the tables that follow from them: open and waiting intents, tasks, and refusals.

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

/// The number of refusals that are checked if only the last records are.
const LAST_REFUSALS: i64 = 5_000;

/// Compares the rows of `open`, `waiting` and `tasks` with the open intents by the records, in both directions. If only
/// the last records were checked, this covers the intents that began among them.
pub(super) fn compare(connection: &Connection, verifier: &Verifier) -> Result<(), CheckError> {
    let is_full = verifier.is_full();
    let known = |intent: &[u8; 16]| verifier.live.get(intent).copied();
    compare_open(connection, &known, is_full)?;
    compare_waiting(connection)?;
    if is_full {
        // A task whose record is not among the last ones is unknown to a partial check, and would be reported as a
        // stray row.
        compare_tasks(connection, &known)?;
    }
    // A deleted row shows only from the side of the records.
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
    // SQLite takes the id of a task from the index where it can, and `quick_check` compares no index with its table.
    let sql = format!("SELECT {HASHED_COLUMNS} FROM tasks NOT INDEXED WHERE number = ?1");
    let row = connection.prepare_cached(&sql)?.query_row([number], |row| hash_row(row, 0)).optional()?;
    if row == Some(hash) {
        Ok(())
    } else {
        Err(Finding::Row { table: "tasks", record: number, what: "is not as it was" }.into())
    }
}

/// The last record of a task.
fn last_task_record(connection: &Connection, task: &[u8; 16]) -> rusqlite::Result<i64> {
    let sql = "SELECT max(number) FROM records WHERE intent = ?1 AND kind <> 'receipt'";
    Ok(connection.query_row(sql, [task], |row| row.get::<_, Option<i64>>(0))?.unwrap_or_default())
}

/// Compares each row of `open` with its claim.
fn compare_open(
    connection: &Connection,
    known: &impl Fn(&[u8; 16]) -> Option<ReplayedIntent>,
    is_full: bool,
) -> Result<(), CheckError> {
    let runs = if is_full { "" } else { "WHERE receipt IS NULL" };
    let mut rows =
        connection.prepare(&format!("SELECT run, will, task, receipt FROM open {runs} ORDER BY run"))?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let run = row.get::<_, i64>(0)?;
        let wrong = |what| CheckError::Found(Finding::Row { table: "open", record: run, what });
        let text = |column: usize| row.get_ref(column)?.as_str_or_null().map_err(rusqlite::Error::from);
        let (will, task) = (text(1)?, text(2)?);
        let receipt = row.get::<_, Option<i64>>(3)?;
        let claim = read_claim(connection, run)?.ok_or_else(|| wrong("has no claim"))?;
        let (intent, claim) = claim;
        let hashes = (will.map(|will| digest(will.as_bytes())), task.map(|task| digest(task.as_bytes())));
        let is_right = match receipt {
            None => hashes == (Some(claim.fallback_receipt), claim.task),
            Some(_) => hashes == (None, None),
        };
        if !is_right {
            return Err(wrong("is not as it was"));
        }
        // A run may have begun before the last records, so a partial check reads the state from all records of the
        // intent.
        let state = if is_full {
            known(&intent).map(|live| live.state)
        } else {
            read_run_state(connection, IntentId::from_bytes(intent))?
        };
        let expected = match receipt {
            None => ReplayState::Started(run),
            Some(receipt) => ReplayState::Ended { claim: run, receipt },
        };
        if state != Some(expected) {
            return Err(wrong("does not go with its records"));
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
    Ok(match recorded_state(connection, intent)? {
        RecordedState::Claimed(claimed) => Some(match claimed.end {
            RunEnd::Pending => ReplayState::Started(claimed.number),
            RunEnd::Receipt(receipt) => ReplayState::Ended { claim: claimed.number, receipt },
            RunEnd::Pruned => ReplayState::Closed(claimed.number),
        }),
        RecordedState::Unknown
        | RecordedState::Waiting(_)
        | RecordedState::Approved(..)
        | RecordedState::Denied(_) => None,
    })
}

/// Compares each row of `waiting` with its record.
fn compare_waiting(connection: &Connection) -> Result<(), CheckError> {
    let mut rows = connection
        // An inner join would pass over a row that was added without a record.
        .prepare("SELECT waiting.number, text, intent FROM waiting LEFT JOIN records USING (number)")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let held = row.get::<_, i64>(0)?;
        let wrong = |what| CheckError::Found(Finding::Row { table: "waiting", record: held, what });
        let intent = row.get::<_, Option<[u8; 16]>>(2)?.ok_or_else(|| wrong("has no record"))?;
        let waits = match recorded_state(connection, IntentId::from_bytes(intent))? {
            RecordedState::Waiting(held) | RecordedState::Approved(held, _) => Some(held),
            RecordedState::Unknown | RecordedState::Denied(_) | RecordedState::Claimed(_) => None,
        };
        let waits = waits
            .filter(|waits| waits.number == held)
            .ok_or_else(|| wrong("does not wait by its records"))?;
        let text = row.get_ref(1)?.as_str().map_err(|_other_type| wrong("is not as it was"))?;
        if digest(text.as_bytes()) != waits.body.text_hash {
            return Err(wrong("is not as it was"));
        }
    }
    Ok(())
}

/// Searches for tasks without a record.
fn compare_tasks(
    connection: &Connection,
    known: &impl Fn(&[u8; 16]) -> Option<ReplayedIntent>,
) -> Result<(), CheckError> {
    // An index may hold another id than the row, and is compared with it elsewhere.
    let mut rows = connection.prepare("SELECT number, task FROM tasks NOT INDEXED")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let number = row.get::<_, i64>(0)?;
        let task = row.get::<_, [u8; 16]>(1)?;
        if known(&task).and_then(|live| live.task).is_none() {
            return Err(Finding::Row { table: "tasks", record: number, what: "has no record" }.into());
        }
    }
    Ok(())
}

/// Compares the refusals with their own chain, and the chain with its marks in the records.
pub(super) fn compare_refusals(
    connection: &Connection,
    marked: Option<&record::RefusalsBody>,
    is_full: bool,
) -> Result<(), CheckError> {
    let wrong = |record, what| CheckError::Found(Finding::Row { table: "refusals", record, what });
    let gone = |_gone| CheckError::Found(Finding::Row { table: "chains", record: 0, what: "is missing" });
    let extent = Extent::read(connection, "refusals").map_err(gone)?;
    let Extent { first, first_hash, pruned, last, last_hash } = extent;
    let chains = connection.query_row("SELECT count(*) FROM chains", [], |row| row.get::<_, i64>(0))?;
    // Columns and rows without a use are compared too, so that no change of this table stays unnoticed.
    if pruned != Head::START || chains != 2 {
        return Err(Finding::Row { table: "chains", record: 0, what: "is not as it was" }.into());
    }
    let (mut number, mut hash) = (first, first_hash);
    let begin = last.saturating_sub(LAST_REFUSALS);
    if !is_full && begin > first {
        let sql = "SELECT hash FROM refusals WHERE number = ?1";
        let at = connection.query_row(sql, [begin], |row| row.get::<_, Hash>(0)).optional()?;
        (number, hash) = (begin, at.ok_or_else(|| wrong(begin, "is missing"))?);
    }
    // The marked refusal may have been dropped since, as one beyond `MAX_REFUSALS`.
    let mut agrees = marked.is_none_or(|marked| marked.number <= number);
    let sql = "SELECT number, refused, intent, agent, tool, blocked_by, message, hash FROM refusals
               WHERE number > ?1 ORDER BY number";
    let mut rows = connection.prepare(sql)?;
    // A full check begins before the first row, so that rows added in front of it are found.
    let mut rows = rows.query(params![if is_full { i64::MIN } else { number }])?;
    while let Some(row) = rows.next()? {
        let is = row.get::<_, i64>(0)?;
        if is != number + 1 {
            return Err(wrong(number + 1, "is missing"));
        }
        let refused = RefusalRow::read(row, 1).map_err(|_other_type| wrong(is, "is not as it was"))?;
        let next = refused.hash(is, &hash);
        if row.get_ref(7)?.as_blob().ok() != Some(&next[..]) {
            return Err(wrong(is, "is not as it was"));
        }
        (number, hash) = (is, next);
        agrees |= marked.is_some_and(|marked| (marked.number, marked.hash.0) == (number, hash));
    }
    match () {
        () if number < last => Err(wrong(number + 1, "is missing")),
        () if (number, hash) != (last, last_hash) => Err(wrong(number, "is not as it was")),
        () if !agrees => Err(wrong(number, "is not what the records say")),
        () => Ok(()),
    }
}
