//! The folder that holds a run's changes to files until they take effect together.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The opened private folder of one run whose file changes are kept apart from the granted folders.
///
/// The run writes its changes there and reads its granted folders only. The folder holds nothing when the run begins, and
/// belongs to this run alone.
#[derive(Debug)]
pub struct Upper {
    dir: OwnedFd,
}

impl Upper {
    /// The folder behind a handle. It must be empty, and no other user may write in it.
    #[must_use]
    pub const fn new(dir: OwnedFd) -> Self {
        Self { dir }
    }

    /// Another handle of the same folder, for the code that lays changes over the granted folders.
    ///
    /// # Errors
    /// If the process has reached its limit on open descriptors.
    pub fn try_clone_dir(&self) -> std::io::Result<OwnedFd> {
        self.dir.try_clone()
    }

    /// Gives up the handle, to be sent to another process.
    pub(super) fn into_dir(self) -> OwnedFd {
        self.dir
    }
}

impl AsFd for Upper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}
