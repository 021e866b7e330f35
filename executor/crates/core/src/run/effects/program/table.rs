//! The table that the process of a run has stored, as it is read: bounded, and counted against the share of whoever sent
//! the program as long as it is in memory.

use a2g_overlay::{MAX_TABLE_BYTES, Table, TableError, Upper};
use a2g_types::memory::{self, CountedBytes, NoRoom, SMALL_MESSAGE_BYTES};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Deref;
use std::os::fd::AsFd;

/// The reason why the table of a run is not taken. Both texts are clauses.
#[derive(Debug, thiserror::Error)]
pub(in crate::run::effects) enum TableRefused {
    /// There is no memory for it now.
    #[error("{0}")]
    NoRoom(&'static str),
    /// It cannot be read, or is not one that the run can have left.
    #[error("{0}")]
    Unusable(String),
}

impl From<NoRoom> for TableRefused {
    fn from(no_room: NoRoom) -> Self {
        Self::NoRoom(match no_room {
            NoRoom::Budget => {
                "the executor has reached its memory limit (`server.max_memory_mb`), and the list of the files that the \
                 program has used needs more: run it again later"
            }
            NoRoom::Share => {
                "the lists of the files that the caller's programs have used, with its messages, use up its share of \
                 `server.max_memory_mb`: let them use fewer files, or wait for other calls to end, and run it again"
            }
        })
    }
}

/// A table in memory, which counts against the share of its owner.
pub(in crate::run::effects) struct CountedTable {
    pub(super) table: Table,
    pub(super) counted: CountedBytes,
}

impl Deref for CountedTable {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

impl CountedTable {
    /// Counts as much again: for the list of changes, which is about as large.
    pub(in crate::run::effects) fn count_list(&self, owner: &str) -> CountedBytes {
        memory::hold_always(owner, self.counted.bytes())
    }
}

/// Reads the table that the process of a run has stored in a folder; `None` if there is none. It counts against the share
/// of `owner`, and so do its bytes meanwhile. `kept` bytes of that share stay in use as long as the table is needed.
///
/// # Errors
/// If it is no table, or there is no memory for it.
pub(in crate::run::effects) fn read_table(
    folder: impl AsFd,
    roots: usize,
    owner: &str,
    kept: u64,
) -> Result<Option<CountedTable>, TableRefused> {
    let Some((file, length)) = open_table(folder).map_err(|error| unreadable(&error))? else {
        return Ok(None);
    };
    let max = u64::try_from(MAX_TABLE_BYTES).unwrap_or(u64::MAX);
    if length > max {
        return Err(TableRefused::Unusable(TableError::TooLarge.to_string()));
    }
    let mut counted = memory::hold_always(owner, 0);
    count(&mut counted, length, kept)?;
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(length).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    let mut heap = 0;
    let mut no_room = None;
    let read = Table::from_bytes_within(&bytes, roots, &mut |taken| {
        heap = u64::try_from(taken).unwrap_or(u64::MAX);
        no_room = count(&mut counted, length.saturating_add(heap), kept).err();
        no_room.is_none()
    });
    drop(bytes);
    let table = match (read, no_room) {
        (Ok(table), _) => table,
        (Err(_), Some(refused)) => return Err(refused),
        (Err(error), None) => return Err(TableRefused::Unusable(error.to_string())),
    };
    count(&mut counted, heap, kept)?;
    Ok(Some(CountedTable { table, counted }))
}

/// Opens a stored table. Returns its length, too.
fn open_table(folder: impl AsFd) -> io::Result<Option<(File, u64)>> {
    // The process can have put anything in its place: nothing is followed, and nothing waits.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat(folder, Upper::TABLE, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let found = file.metadata()?;
    if found.is_file() { Ok(Some((file, found.len()))) } else { Err(io::Error::other("it is not a file")) }
}

/// Sets the memory that is counted for a table. A small one counts as nothing, as a small message does. One that does not
/// fit into the share beside `kept` bytes never will.
fn count(counted: &mut CountedBytes, bytes: u64, kept: u64) -> Result<(), TableRefused> {
    let result = counted.try_set(if bytes <= SMALL_MESSAGE_BYTES { 0 } else { bytes });
    result.map_err(|no_room| match no_room {
        NoRoom::Share if counted.exceeds_share(bytes.saturating_add(kept)) => TableRefused::Unusable(
            "the list of the files that the program has used needs more than the caller's share of \
             `server.max_memory_mb`, set by the operator: let the program use fewer files"
                .to_owned(),
        ),
        NoRoom::Share | NoRoom::Budget => no_room.into(),
    })
}

pub(super) fn unreadable(error: &io::Error) -> TableRefused {
    TableRefused::Unusable(format!("their table cannot be read ({error}): run it again"))
}
