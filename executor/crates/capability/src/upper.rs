//! The folder that holds a run's changes to files until they take effect together.

use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The opened private folder of one run whose file changes are kept apart from the granted folders.
///
/// The run writes its changes there and reads its granted folders only. The folder holds nothing when the run begins, and
/// belongs to this run alone.
#[derive(Debug)]
pub struct Upper {
    dir: OwnedFd,
    member: Option<MemberFolders>,
}

/// The part of a run in a program: a run whose file changes are kept apart, with all calls that it makes. They see one
/// another's changes.
///
/// No other user may write in these folders, and the process of the run only reads them.
#[derive(Debug)]
pub struct MemberFolders {
    /// The folder that the server alone writes for this run: the table of its files, which is there when the run begins and
    /// is replaced when a call of the run has changed it, and the contents of those calls that have ended.
    pub base: OwnedFd,
    /// The folders with contents of the runs that have led to this one: for each, from the outermost on, its `base` and
    /// then its own.
    pub earlier: Vec<EarlierFolder>,
    /// The folders of the table's roots, opened for look-ups only (`O_PATH`): the run's grant need not contain them.
    pub roots: Vec<OwnedFd>,
    /// The places of the granted folders, in the order of the grant; `None` for a folder that is not there.
    pub places: Vec<Option<Place>>,
    /// The files and folders outside of the grant that the program has moved into it.
    pub readable: Vec<OwnedFd>,
}

/// A folder with contents of an earlier run.
#[derive(Debug)]
pub struct EarlierFolder {
    /// The folder.
    pub folder: OwnedFd,
    /// The number of the first content of that run, or of one of its calls.
    pub from: u64,
}

/// The place of a granted folder in a program's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The index of the table's root.
    pub root: usize,
    /// The names below that root, the outermost first.
    pub names: Vec<Vec<u8>>,
}

impl Upper {
    /// The folder behind a handle. It must be empty, and no other user may write in it.
    #[must_use]
    pub const fn new(dir: OwnedFd) -> Self {
        Self { dir, member: None }
    }

    /// The same folder, of a run that belongs to a program.
    #[must_use]
    pub fn with_member(self, member: MemberFolders) -> Self {
        Self { member: Some(member), ..self }
    }

    /// The run's part in a program; `None` if it shares its files with no other run.
    #[must_use]
    pub const fn member(&self) -> Option<&MemberFolders> {
        self.member.as_ref()
    }

    /// Gives up the handles, for the code that lays changes over the granted folders.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, Option<MemberFolders>) {
        (self.dir, self.member)
    }
}

impl AsFd for Upper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl MemberFolders {
    /// The files and folders whose contents the process of the run may read, in addition to the granted folders.
    pub fn readable_handles(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let earlier = self.earlier.iter().map(|earlier| &earlier.folder);
        earlier.chain([&self.base]).chain(&self.readable).map(AsFd::as_fd)
    }
}
