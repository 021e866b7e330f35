//! The part of a run in a program: its files are lent to its calls while these are open, and then taken back with what the
//! calls have changed.
//!
//! ```text
//! Shared ─ the run uses a file ─▶ Used ─ a call begins: the table is stored ─▶ Lent ─ the last call has ended ─▶ Shared
//!    └─────────────────────────────────── a call begins ───────────────────────▶ │
//!                                  Used ◀─ … and the server has another table ───┘
//! ```

use a2g_capability::{EarlierFolder, MemberFolders, Place};
use a2g_overlay::{Access, LowerRoot, MAX_TABLE_BYTES, Name, NodeId, Table, Upper, UpperBudget, View};
use a2g_types::error_chain::BoxedError;
use rustix::fs::{Mode, OFlags, fstat, openat};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Error, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use tokio::sync::watch;

/// The files of a run that has not begun.
pub(super) struct StartFiles {
    pub(super) view: View,
    /// The granted folders, in the order of the grant; `None` for one that is not there.
    pub(super) roots: Vec<Option<NodeId>>,
    /// `None` for a run that shares its files with no other one.
    pub(super) program: Option<Program>,
}

/// The part of a run in a program.
pub(super) struct Program {
    /// The folder in which the server keeps the table.
    base: OwnedFd,
    /// The number of the table's roots.
    roots: usize,
    /// The table that was last read. It stays open, so that no later one gets its inode.
    table: File,
    open_calls: watch::Sender<usize>,
    state: State,
}

/// The relation of the run's view to the table that the server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// They say the same.
    Shared,
    /// The run may have changed its view.
    Used,
    /// The run's calls may change the server's table.
    Lent,
}

/// Lends the files of a run to one of its calls until it is dropped.
pub(crate) struct Loan(watch::Sender<usize>);

/// The files of a run cannot be taken back from its calls.
#[derive(Debug, thiserror::Error)]
#[error("what its calls have changed cannot be read: {0}")]
pub(crate) struct TakeBackError(pub(super) BoxedError);

impl Program {
    /// Opens the files of a program for one of its runs, whose own changes will be kept in `upper`.
    ///
    /// # Errors
    /// If the table cannot be read or does not fit the folders, or nothing can be made in `upper`.
    pub(super) fn open(
        member: MemberFolders,
        upper: OwnedFd,
        access: Access,
        budget: UpperBudget,
    ) -> std::io::Result<StartFiles> {
        let MemberFolders { base, earlier, roots, places, readable: _ } = member;
        let file = open_table(&base)?;
        let table = read_table(&file, roots.len()).map_err(Error::other)?;
        let earlier = earlier
            .into_iter()
            .map(|EarlierFolder { folder, from }| a2g_overlay::EarlierFolder { folder, from });
        let contents = Upper::of_member(upper, base.try_clone()?, table.next_content(), earlier.collect());
        let program = Self {
            base,
            roots: roots.len(),
            table: file,
            open_calls: watch::Sender::new(0),
            // The places of the granted folders may have given numbers to folders that the server's table does not have.
            state: State::Used,
        };
        let lower = roots.into_iter().map(|dir| LowerRoot { dir, access }).collect();
        let mut view = View::load(table, contents, lower, budget)?;
        let places = places.into_iter().map(|place| open_place(&mut view, place));
        let granted = places.collect::<std::io::Result<Vec<_>>>()?;
        Ok(StartFiles { view, roots: granted, program: Some(program) })
    }

    /// Notes that the run uses its view.
    pub(super) const fn note_use(&mut self) {
        match self.state {
            State::Shared => self.state = State::Used,
            State::Used | State::Lent => {}
        }
    }

    /// Lends the files to a call. `store` stores the table, if the server does not have it.
    ///
    /// # Errors
    /// That of `store`.
    pub(super) fn lend(
        &mut self,
        store: impl FnOnce() -> Result<(), BoxedError>,
    ) -> Result<Loan, BoxedError> {
        match self.state {
            State::Used => store()?,
            State::Shared | State::Lent => {}
        }
        self.state = State::Lent;
        self.open_calls.send_modify(|count| *count += 1);
        Ok(Loan(self.open_calls.clone()))
    }

    /// `true` if calls have the files.
    pub(super) fn is_lent(&self) -> bool {
        self.state == State::Lent
    }

    /// Waits until no call has the files.
    pub(super) async fn wait(&self) {
        // Cannot fail: this is a sender.
        drop(self.open_calls.subscribe().wait_for(|count| *count == 0).await);
    }

    /// Takes the files back if no call has them any more. Returns the table if it is another one than before.
    ///
    /// # Errors
    /// If the server's table cannot be read.
    pub(super) fn take_back(&mut self) -> Result<Option<Table>, BoxedError> {
        let has_ended = *self.open_calls.borrow() == 0;
        if !(self.is_lent() && has_ended) {
            return Ok(None);
        }
        let file = open_table(&self.base)?;
        let found = fstat(&file)?;
        let known = fstat(&self.table)?;
        if (found.st_dev, found.st_ino) == (known.st_dev, known.st_ino) {
            self.state = State::Shared;
            return Ok(None);
        }
        let table = read_table(&file, self.roots)?;
        self.table = file;
        // Loading it may make copies.
        self.state = State::Used;
        Ok(Some(table))
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

fn open_table(base: &OwnedFd) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(base, Upper::TABLE, flags, Mode::empty()).map(File::from)
}

fn read_table(file: &File, roots: usize) -> Result<Table, BoxedError> {
    // One byte more, so that a longer one is refused.
    let max = u64::try_from(MAX_TABLE_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(Table::from_bytes(&bytes, roots)?)
}

fn open_place(view: &mut View, place: Option<Place>) -> std::io::Result<Option<NodeId>> {
    let Some(Place { root, names }) = place else { return Ok(None) };
    let name = |bytes| Name::new(OsString::from_vec(bytes)).map_err(Error::other);
    let names = names.into_iter().map(name).collect::<std::io::Result<Vec<_>>>()?;
    Ok(view.open_place(root, &names)?)
}
