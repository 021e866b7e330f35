//! The fleet that this journal's executor has joined: the identity of its stream, as a text of the caller.
//!
//! A record of kind `fleet` names it, so that an executor whose fleet has lost its claims does not go on with an empty
//! one. The latest record counts; pruning copies it to the end of the chain.

use super::batch::Batch;
use super::error::{OpenError, WriteError};
use super::record::{RecordKind, column_error};
use super::store::Reader;
use a2g_types::ident::IntentId;
use rusqlite::{Connection, OptionalExtension as _};
use std::path::Path;

/// The id in the records of kind `fleet`. No state of an intent depends on them.
// The index of intents finds the latest one among any number of records.
pub(super) const FLEET_ID: [u8; 16] = [0; 16];

/// The latest record of the fleet, with its number.
pub(super) fn latest(connection: &Connection) -> rusqlite::Result<Option<(i64, String)>> {
    // `kind <> 'receipt'` is the condition of the partial index, which SQLite does not derive from `kind = 'fleet'`.
    let sql = "SELECT number, body FROM records WHERE intent = ?1 AND kind <> 'receipt' AND kind = 'fleet'
               ORDER BY number DESC LIMIT 1";
    let read = |row: &rusqlite::Row<'_>| {
        let text =
            std::str::from_utf8(row.get_ref(1)?.as_blob()?).map_err(|_not_as_written| column_error(1))?;
        Ok((row.get(0)?, text.to_owned()))
    };
    connection.prepare_cached(sql)?.query_row([FLEET_ID], read).optional()
}

impl Batch<'_> {
    /// Records the fleet, unless the latest record says the same.
    pub(super) fn remember_fleet(&mut self, identity: &str) -> Result<(), WriteError> {
        if latest(self.connection())?.is_some_and(|(_, known)| known == identity) {
            return Ok(());
        }
        self.append_about(RecordKind::Fleet, IntentId::from_bytes(FLEET_ID), identity.as_bytes())
    }
}

/// The identity of the fleet that the executor of a journal has joined; `None` if it has joined none, or there is no
/// journal at `path`. A server may use the journal.
///
/// # Ambient Authority
/// Reads the file.
///
/// # Errors
/// [`OpenError`] if the journal cannot be read.
pub fn remembered_fleet(path: &Path) -> Result<Option<String>, OpenError> {
    if !path.exists() {
        return Ok(None);
    }
    let reader = Reader::open(path)?;
    let latest = latest(reader.connection()).map_err(OpenError::from_sqlite(path))?;
    Ok(latest.map(|(_, identity)| identity))
}
