//! The folders of one run's changes, and what is done with the changes as a whole.

use super::held::{HeldList, RequestEnd};
use super::program::reopen_contents;
use super::roots::RunRoots;
use super::sets::{KeptState, StoredSet};
use super::{Fate, RunFolder, STORE, open_folder};
use a2g_overlay::{
    CommitError, Disk, Effects, EffectsError, EffectsLimits, Folders, Recovered, Table, Upper, commit,
    recover, undo,
};
use a2g_types::outcome::{End, Receipt};
use a2g_types::stored;
use a2g_types::tool::Digest;
use rustix::fs::{Mode, OFlags, openat, renameat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use time::OffsetDateTime;

/// The bounds of the work for the list of one run's changes.
// Reading this much takes a minute or so, on one of the threads for long work, of which an owner has at most half.
const LIMITS: EffectsLimits = EffectsLimits { max_changes: 200_000, max_hashed_bytes: 16 << 30 };

/// The file with the list of the changes that wait for a decision.
const LIST: &str = "changes.json";

/// The file with the receipt of the run.
const RECEIPT: &str = "receipt.json";
/// Its name until it is complete.
const RECEIPT_DRAFT: &str = "receipt.json.new";
/// The longest such file, in bytes.
const MAX_RECEIPT_BYTES: u64 = 256 << 20;

/// The opened folders of a run that has ended.
pub(in crate::run) struct RunChanges {
    pub(super) folder: RunFolder,
    pub(super) upper: Upper,
    pub(super) store: OwnedFd,
    pub(super) roots: RunRoots,
    /// The requests that a commit sends; `None` if there are none.
    pub(in crate::run) requests: Option<Arc<HeldList>>,
}

/// The reason why the changes of a run are not as they should be.
pub(in crate::run) enum ApplyError {
    /// Nothing was changed. The reason is a clause.
    Unchanged(String),
    /// Some changes may be in force. The reason is a clause.
    LeftToOperator(String),
}

impl ApplyError {
    /// The reason, as a clause.
    pub(in crate::run) fn into_reason(self) -> String {
        match self {
            Self::Unchanged(reason) | Self::LeftToOperator(reason) => reason,
        }
    }

    /// The end of the decision that this error ended.
    pub(in crate::run) fn into_end(self) -> End {
        match self {
            Self::Unchanged(reason) => End::NotCommitted(reason),
            Self::LeftToOperator(reason) => End::LeftToOperator(reason),
        }
    }
}

impl RunChanges {
    /// Opens the other folders of an earlier run, whose granted folders are open.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    pub(super) fn open(folder: RunFolder, roots: RunRoots) -> io::Result<Self> {
        let upper = reopen_contents(&folder.dir)?;
        let store = open_folder(&folder.dir, STORE)?;
        let requests = HeldList::open(&folder.dir)?.map(Arc::new);
        Ok(Self { folder, upper, store, roots, requests })
    }

    pub(super) fn folders(&self) -> Folders<'_> {
        Folders { roots: self.roots.lower(), upper: &self.upper, store: &self.store }
    }

    /// Lets the changes with this digest take effect. Returns `Ok` exactly if they are in force.
    ///
    /// # Errors
    /// The reason why they are not, as a clause.
    pub(in crate::run) fn commit(&self, digest: &Digest) -> Result<(), ApplyError> {
        let list = read_list(&self.folder).map_err(|error| {
            ApplyError::Unchanged(format!("their list cannot be read ({error}): discard them"))
        })?;
        let files_digest = Digest(*list.digest().as_bytes());
        let found = self.requests.as_ref().map_or(files_digest, |requests| requests.bind(&files_digest));
        if found != *digest {
            let reason = "they are not those that were listed: discard them".to_owned();
            return Err(ApplyError::Unchanged(reason));
        }
        let bodies = self.requests.as_ref().map_or(Ok(()), |requests| requests.check_bodies());
        bodies.map_err(|error| {
            ApplyError::Unchanged(format!("a request of theirs cannot be read ({error}): discard them"))
        })?;
        self.apply(&list)
    }

    /// Lets the listed changes take effect. Returns `Ok` exactly if they are in force.
    pub(super) fn apply(&self, list: &Effects) -> Result<(), ApplyError> {
        match commit(list, self.folders(), &Disk::new()) {
            Ok(()) => Ok(()),
            Err(error) => self.settle_after(&error, Recovered::Committed),
        }
    }

    /// Takes the changes back. Returns `Ok` exactly if none is in force.
    ///
    /// # Errors
    /// The reason why they are still in force, as a clause.
    pub(in crate::run) fn undo(&self) -> Result<(), ApplyError> {
        match undo(self.folders(), &Disk::new()) {
            Ok(()) => Ok(()),
            Err(error) => self.settle_after(&error, Recovered::Unchanged),
        }
    }

    /// Finds out what a commit or an undo that failed has left.
    fn settle_after(&self, error: &CommitError, wanted: Recovered) -> Result<(), ApplyError> {
        let reason = self.roots.describe_commit_error(error);
        match settle(self.folders()) {
            // The failure came after the last step.
            Ok(state) if state == wanted => Ok(()),
            Ok(Recovered::Committed | Recovered::Unchanged) => Err(ApplyError::Unchanged(reason)),
            Err(again) => {
                let folder = self.folder.path();
                let state = self.roots.describe_commit_error(&again);
                tracing::error!(folder = %folder.display(), state, "file changes could be neither applied nor taken back as a whole: the next start tries again");
                Err(ApplyError::LeftToOperator(reason))
            }
        }
    }

    /// The end of each request that a commit sends, as the log in the folder says.
    pub(super) fn read_request_ends(&self) -> Vec<RequestEnd> {
        self.requests.as_ref().map(|requests| requests.read_ends()).unwrap_or_default()
    }

    /// Writes the state of the set into its folder.
    pub(super) fn mark(
        &self,
        state: KeptState,
        since: OffsetDateTime,
        until: OffsetDateTime,
    ) -> io::Result<StoredSet> {
        StoredSet::write(&self.folder, state, since, until)
    }

    /// Lets the folder be removed with this value, or not.
    pub(super) fn set_fate(&mut self, fate: Fate) {
        self.folder.fate = fate;
    }

    /// Writes the receipt of the run into its folder: decisions do not depend on what the journal prunes, and an older copy
    /// of the journal is noticed.
    pub(super) fn write_receipt(&self, receipt: &Receipt) {
        let write = || {
            let text = stored::write_receipt(receipt).map_err(io::Error::other)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(&self.folder.dir, RECEIPT_DRAFT, flags, Mode::RUSR | Mode::WUSR)?;
            File::from(file).write_all(text.as_bytes())?;
            renameat(&self.folder.dir, RECEIPT_DRAFT, &self.folder.dir, RECEIPT)?;
            Ok::<_, io::Error>(())
        };
        if let Err(error) = write() {
            let folder = self.folder.path();
            tracing::warn!(folder = %folder.display(), %error, "the receipt of these file changes is only in the journal");
        }
    }
}

/// Reads the receipt in the folder of a run; `None` if there is none.
pub(super) fn read_receipt(folder: &RunFolder) -> io::Result<Option<Receipt>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match openat(&folder.dir, RECEIPT, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut text = Vec::new();
    file.take(MAX_RECEIPT_BYTES).read_to_end(&mut text)?;
    stored::read_receipt(&text).map(Some).map_err(io::Error::other)
}

/// Ends a commit or an undo that failed or was interrupted.
pub(super) fn settle(folders: Folders<'_>) -> Result<Recovered, CommitError> {
    match recover(folders, &Disk::new()) {
        // It was led back, which is its end.
        Err(CommitError::Conflicts(_)) => recover(folders, &Disk::new()),
        other => other,
    }
}

/// The changes that a table describes.
pub(super) fn list_changes(table: &Table, upper: &Upper, roots: &RunRoots) -> Result<Effects, String> {
    let effects = Effects::of(table, roots.lower(), upper, LIMITS);
    effects.map_err(|error: EffectsError| roots.describe_effects_error(&error))
}

/// Writes the list of the changes that wait for a decision, outside of what the guest's process can write.
pub(super) fn write_list(folder: &RunFolder, list: &Effects) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&folder.dir, LIST, flags, Mode::RUSR | Mode::WUSR)?;
    let mut writer = BufWriter::new(File::from(file));
    serde_json::to_writer(&mut writer, list)?;
    writer.flush()
}

fn read_list(folder: &RunFolder) -> io::Result<Effects> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(openat(&folder.dir, LIST, flags, Mode::empty())?);
    Ok(serde_json::from_reader(BufReader::new(file))?)
}
