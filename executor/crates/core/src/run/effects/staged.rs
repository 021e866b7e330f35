//! The changes of one run: staged, in force, or taken back.

use super::roots::RunRoots;
use super::{EffectsFolder, Fate, RunFolder};
use crate::run::faults::busy_fault;
use a2g_capability::Permit;
use a2g_overlay::{
    CommitError, Disk, Effects, EffectsLimits, Folders, MAX_TABLE_BYTES, Recovered, Table, Upper, commit,
    recover, undo,
};
use a2g_runtime::aside::run_aside;
use a2g_types::call::Call;
use a2g_types::fault::Fault;
use a2g_types::outcome::FileChanges;
use a2g_types::tool::Digest;
use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The bounds of the work for the list of one run's changes.
// Reading this much takes a minute or so; the changes of other runs wait meanwhile.
const LIMITS: EffectsLimits = EffectsLimits { max_changes: 200_000, max_hashed_bytes: 16 << 30 };
/// The refusal of a call whose folder cannot be made.
const NO_FOLDER: &str = "the executor cannot keep the file changes of this call apart (its log has the reason): send the \
                         call again later";

/// The changes of a run that has not ended. Dropping it discards them.
pub(in crate::run) struct StagedChanges {
    effects: Arc<EffectsFolder>,
    folder: RunFolder,
    upper: Upper,
    /// Another handle of it, for the run.
    guests: Option<a2g_capability::Upper>,
    roots: RunRoots,
    /// The owner of the run's message, who waits for a turn on the threads for long work.
    owner: Box<str>,
}

/// The end of a commit.
pub(in crate::run) struct Committed {
    pub(in crate::run) changes: FileChanges,
    /// `None` if the run has changed nothing.
    pub(in crate::run) applied: Option<AppliedChanges>,
}

impl EffectsFolder {
    /// Makes the folder of a run whose changes take effect together; `None` for any other run.
    pub(in crate::run) async fn stage(
        self: &Arc<Self>,
        call: &Call,
        permit: &Permit,
    ) -> Result<Option<StagedChanges>, Fault> {
        if permit.grant().effects().value.is_direct() {
            return Ok(None);
        }
        let owner = Box::<str>::from(call.charge.owner().unwrap_or(call.agent.as_str()));
        let effects = Arc::clone(self);
        let intent = call.intent;
        let made = run_aside(&owner, async move {
            let (folder, upper) = effects.make(intent)?;
            let guests = upper.try_clone()?;
            Ok::<_, io::Error>((folder, upper, guests))
        });
        let staged = match (RunRoots::of(permit), made.await) {
            (Ok(roots), Ok((folder, upper, guests))) => Ok(StagedChanges {
                effects: Arc::clone(self),
                folder,
                upper: Upper::new(upper),
                guests: Some(a2g_capability::Upper::new(guests)),
                roots,
                owner,
            }),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        staged.map(Some).map_err(|error| {
            tracing::error!(%intent, %error, "the folder for the file changes of a run cannot be made");
            busy_fault(NO_FOLDER)
        })
    }
}

impl StagedChanges {
    /// The folder for the run's permit.
    pub(in crate::run) fn take_upper(&mut self) -> Option<a2g_capability::Upper> {
        self.guests.take()
    }

    /// Lets all changes take effect, or none.
    ///
    /// # Errors
    /// The reason why none did, as a clause.
    pub(in crate::run) async fn commit(self) -> Result<Committed, String> {
        let effects = Arc::clone(&self.effects);
        let owner = self.owner.clone();
        // Never closed.
        let _turn = effects.turn.acquire().await.ok();
        run_aside(&owner, async move { self.apply() }).await
    }

    fn apply(self) -> Result<Committed, String> {
        let Self { effects, mut folder, upper, guests: _, roots, owner } = self;
        let list = list_changes(&upper, &roots)?;
        if let Err(path) = roots.check_granted(&list) {
            let shown = roots.describe_path(path);
            return Err(format!("the run was not granted {shown}, which they change: check the tool"));
        }
        let count = u64::try_from(list.changes.len()).unwrap_or(u64::MAX);
        let changes = FileChanges { count, digest: Digest(*list.digest().as_bytes()) };
        if list.is_empty() {
            return Ok(Committed { changes, applied: None });
        }
        let store = roots.prepare_commit(&folder).map_err(|error| {
            format!("the commit could not be prepared ({error}): see that `effects.folder` has space")
        })?;
        // From here on, the log in the folder is what ends the commit, should this process not do it.
        folder.fate = Fate::Kept;
        let applied = AppliedChanges { effects, folder, upper, store, roots, owner };
        match commit(&list, applied.folders(), &Disk::new()) {
            Ok(()) => Ok(Committed { changes, applied: Some(applied) }),
            Err(error) => {
                let settled = applied.settle_after(&error)?;
                Ok(Committed { changes, applied: Some(settled) })
            }
        }
    }
}

/// The changes of a run that are in force, and are kept until its receipt is on the disk. Dropping it leaves what to do
/// to the next start.
pub(in crate::run) struct AppliedChanges {
    effects: Arc<EffectsFolder>,
    folder: RunFolder,
    upper: Upper,
    store: OwnedFd,
    roots: RunRoots,
    owner: Box<str>,
}

impl AppliedChanges {
    fn folders(&self) -> Folders<'_> {
        Folders { roots: self.roots.lower(), upper: &self.upper, store: &self.store }
    }

    /// Finds out what a commit that failed has left.
    ///
    /// # Errors
    /// The reason why the changes are not in force, as a clause.
    fn settle_after(mut self, error: &CommitError) -> Result<Self, String> {
        let reason = self.roots.describe_commit_error(error);
        match settle(self.folders()) {
            // The failure came after the last step.
            Ok(Recovered::Committed) => Ok(self),
            Ok(Recovered::Unchanged) => {
                self.folder.fate = Fate::Removed;
                Err(reason)
            }
            Err(again) => {
                let folder = self.folder.path();
                let state = self.roots.describe_commit_error(&again);
                tracing::error!(folder = %folder.display(), state, "a commit of file changes has failed, and some may be in force: the next start tries to take them back");
                Err(format!("{reason}; some may be in force, see the executor's log"))
            }
        }
    }

    /// Takes the changes back, because the run is reported with another end.
    pub(in crate::run) async fn take_back(self) {
        let effects = Arc::clone(&self.effects);
        let owner = self.owner.clone();
        // Never closed.
        let _turn = effects.turn.acquire().await.ok();
        run_aside(&owner, async move { self.take_back_now() }).await;
    }

    fn take_back_now(mut self) {
        match undo(self.folders(), &Disk::new()) {
            Ok(()) => self.folder.fate = Fate::Removed,
            Err(error) => {
                let folder = self.folder.path();
                let reason = self.roots.describe_commit_error(&error);
                tracing::error!(folder = %folder.display(), reason, "the file changes of a run that is reported as aborted are in force: the next start tries again to take them back");
            }
        }
    }

    /// Lets the changes stay: the receipt that says so is on the disk.
    pub(in crate::run) fn finish(mut self) {
        self.folder.fate = Fate::Removed;
    }
}

/// Ends a commit or an undo that failed or was interrupted.
pub(super) fn settle(folders: Folders<'_>) -> Result<Recovered, CommitError> {
    match recover(folders, &Disk::new()) {
        // It was led back, which is its end.
        Err(CommitError::Conflicts(_)) => recover(folders, &Disk::new()),
        other => other,
    }
}

/// The changes in the table that the guest's process has left.
fn list_changes(upper: &Upper, roots: &RunRoots) -> Result<Effects, String> {
    let unreadable = |error: io::Error| format!("their table cannot be read ({error}): run it again");
    let bytes = read_table(upper).map_err(unreadable)?;
    let table = Table::from_bytes(&bytes, roots.lower().len()).map_err(|error| error.to_string())?;
    drop(bytes);
    let effects = Effects::of(&table, roots.lower(), upper, LIMITS);
    effects.map_err(|error| roots.describe_effects_error(&error))
}

fn read_table(upper: &Upper) -> io::Result<Vec<u8>> {
    // The process can have put anything in its place: nothing is followed, and nothing waits.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(upper.dir(), Upper::TABLE, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a file"));
    }
    let max = u64::try_from(MAX_TABLE_BYTES).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    // One byte more, so that a longer one is refused.
    File::from(file).take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}
