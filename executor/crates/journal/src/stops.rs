//! Records of what operators stop and resume.
//!
//! ```text
//! stop_set ─▶ in force, with a row in `stops` ─┬─ stop_lifted ─▶ ended
//!     ▲                                        └─ stop_set of the same target ─▶ replaced
//!     └ pruning copies a stop that is in force to the end of the chain
//! ```
//! The table `stops` is derived from the records.

use super::batch::Batch;
use super::error::WriteError;
use super::finding::{CheckError, Finding};
use super::log::NewRecord;
use super::record::{RecordKind, StopLiftedBody, StopSetBody, column_error};
use super::recorded_state::parse_body;
use super::verify::Verifier;
use super::{from_micros, to_micros};
use a2g_types::ident::{AgentDid, ToolName};
use a2g_types::stop::{OperatorReason, Stop, StopTarget};
use rusqlite::{Connection, OptionalExtension as _};

/// The table of the stops in force.
// A check compares this text with the file, comments included.
pub(super) const TABLE: &str = "
CREATE TABLE stops(              -- what operators have stopped
    number INTEGER PRIMARY KEY   -- the record that says so
);
";

/// An operator's resumption of a target.
#[derive(Debug)]
pub(super) struct StopLift {
    pub(super) target: StopTarget,
    pub(super) by: String,
}

impl Batch<'_> {
    pub(super) fn set_stop(&mut self, stop: &Stop) -> Result<(), WriteError> {
        let Stop { target, reason, by, since } = stop;
        let replaced = find(self.connection(), target)?;
        let (agent, tool) = columns(target);
        let new = NewRecord { agent, tool, about: replaced, ..NewRecord::default() };
        let body =
            StopSetBody { by: by.clone(), reason: reason.as_str().to_owned(), since: to_micros(*since) };
        let number = self.append(RecordKind::StopSet, new, &body)?;
        replaced.map_or(Ok(()), |replaced| self.remove_stop_row(replaced))?;
        self.connection().prepare_cached("INSERT INTO stops(number) VALUES (?1)")?.execute([number])?;
        Ok(())
    }

    /// Lifts a stop. Returns `false` if the target is not stopped.
    pub(super) fn lift_stop(&mut self, lift: &StopLift) -> Result<bool, WriteError> {
        let StopLift { target, by } = lift;
        let Some(stop) = find(self.connection(), target)? else { return Ok(false) };
        let (agent, tool) = columns(target);
        let new = NewRecord { agent, tool, about: Some(stop), ..NewRecord::default() };
        self.append(RecordKind::StopLifted, new, &StopLiftedBody { by: by.clone() })?;
        self.remove_stop_row(stop)?;
        Ok(true)
    }

    fn remove_stop_row(&self, stop: i64) -> Result<(), WriteError> {
        self.connection().prepare_cached("DELETE FROM stops WHERE number = ?1")?.execute([stop])?;
        Ok(())
    }
}

/// The columns `agent` and `tool` of a record about a target.
fn columns(target: &StopTarget) -> (Option<&str>, Option<&str>) {
    match target {
        StopTarget::Agent(agent) => (Some(agent.as_str()), None),
        StopTarget::Tool(tool) => (None, Some(tool.as_str())),
        StopTarget::Everything => (None, None),
    }
}

/// The target of a record with these columns; `None` if this version does not write them.
pub(super) fn parse_target(agent: Option<&str>, tool: Option<&str>) -> Option<StopTarget> {
    match (agent, tool) {
        (Some(agent), None) => AgentDid::parse(agent).ok().map(StopTarget::Agent),
        (None, Some(tool)) => ToolName::parse(tool).ok().map(StopTarget::Tool),
        (None, None) => Some(StopTarget::Everything),
        (Some(_), Some(_)) => None,
    }
}

/// The record of the stop of a target, if it is stopped.
fn find(connection: &Connection, target: &StopTarget) -> rusqlite::Result<Option<i64>> {
    let (agent, tool) = columns(target);
    connection
        .prepare_cached(
            "SELECT number FROM stops JOIN records USING (number) WHERE agent IS ?1 AND tool IS ?2",
        )?
        .query_row([agent, tool], |row| row.get(0))
        .optional()
}

/// The stops in force, oldest first.
///
/// # Errors
/// SQLite's errors, and an error for a row without its record or with one that this version cannot have written.
pub(super) fn in_force(connection: &Connection) -> rusqlite::Result<Vec<Stop>> {
    // This is not an inner join, which would skip a row without a record, and with it a stop.
    let sql = "SELECT kind, agent, tool, body FROM stops LEFT JOIN records USING (number) ORDER BY number";
    let mut statement = connection.prepare(sql)?;
    let stops = statement.query_map([], |row| {
        let text = |column: usize| row.get_ref(column)?.as_str_or_null().map_err(rusqlite::Error::from);
        if text(0)? != Some(RecordKind::StopSet.as_str()) {
            return Err(column_error(0));
        }
        let StopSetBody { by, reason, since } = parse_body(row.get_ref(3)?.as_blob()?)?;
        Ok(Stop {
            target: parse_target(text(1)?, text(2)?).ok_or_else(|| column_error(1))?,
            reason: OperatorReason::parse(&reason).map_err(|_not_as_written| column_error(3))?,
            by,
            since: from_micros(since),
        })
    })?;
    stops.collect()
}

/// A stop to copy to the end of the chain, before pruning removes its record.
pub(super) struct StopCopy {
    pub(super) number: i64,
    pub(super) agent: Option<String>,
    pub(super) tool: Option<String>,
    pub(super) body: Vec<u8>,
}

/// The stops in force whose records are not after `cut`.
pub(super) fn up_to(connection: &Connection, cut: i64) -> rusqlite::Result<Vec<StopCopy>> {
    let sql = "SELECT number, agent, tool, body FROM stops JOIN records USING (number)
               WHERE number <= ?1 ORDER BY number";
    let mut statement = connection.prepare(sql)?;
    let stops = statement.query_map([cut], |row| {
        Ok(StopCopy { number: row.get(0)?, agent: row.get(1)?, tool: row.get(2)?, body: row.get(3)? })
    })?;
    stops.collect()
}

/// Compares the rows of `stops` with the stops that the checked records leave in force, in both directions. After a
/// partial check, the record of an older row has to be that of a stop.
pub(super) fn compare(connection: &Connection, verifier: &Verifier) -> Result<(), CheckError> {
    let row_error = |record, what| CheckError::Found(Finding::Row { table: "stops", record, what });
    let mut statement = connection.prepare("SELECT number FROM stops")?;
    let rows = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
    for row in &rows {
        let is_in_force = if verifier.covers(*row) {
            verifier.stops.contains_key(row)
        } else {
            let sql = "SELECT 1 FROM records WHERE number = ?1 AND kind = 'stop_set'";
            connection.prepare_cached(sql)?.query_row([row], |_| Ok(())).optional()?.is_some()
        };
        if !is_in_force {
            return Err(row_error(*row, "contradicts its records: nothing is stopped"));
        }
    }
    match verifier.stops.keys().find(|stop| !rows.contains(stop)) {
        Some(stop) => Err(row_error(*stop, "is missing")),
        None => Ok(()),
    }
}
