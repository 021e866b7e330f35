//! The file changes of runs that are kept apart, from the start of a run to its receipt.
//!
//! ```text
//! start    a private folder for the run ─▶ its folder `upper` goes to the guest's process
//! end      SUCCESS ─┬─ atomic: commit ─▶ in force, and still kept ─ receipt on the disk ─▶ can be undone for some time
//!             │     │             └─ conflict ─▶ no file is changed, and the run is a failure
//!             │     └─ staged: listed ─ receipt (STAGED) on the disk ─▶ waits for a decision (`sets.rs`)
//!             └─ any other end ─▶ the run's folder is removed, with the requests that the run has left (`held.rs`)
//! restart  for each folder that is left: the receipt says SUCCESS ─▶ the changes stay; STAGED ─▶ they wait again;
//!          otherwise they are taken back
//! ```
//! The guest's process can write anything into `upper`. So the list of changes is computed and checked here, and what a
//! commit needs besides (`roots.json`, `store`) is outside of `upper`.

mod changes;
mod held;
mod program;
mod recover;
mod removal;
mod roots;
mod sets;
mod shown;
mod staged;
mod withdrawal;

pub(super) use changes::{ApplyError, RunChanges};
pub(super) use held::{HeldList, RequestEnd, StoredRequest, describe_ends};
pub(super) use program::{CallTurn, Member};
pub(super) use recover::LeftSet;
pub use sets::ChangeSetSummary;
pub(super) use sets::{TakenSet, wrong_state_fault};
pub(super) use staged::{Kept, SettleError, Settled, StagedChanges};

use a2g_types::ident::IntentId;
use parking_lot::Mutex;
use removal::remove_tree;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, mkdirat, openat, renameat};
use rustix::io::Errno;
use sets::KeptSet;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinError;
use withdrawal::UnsettledRun;

/// The folder of a run in which its guest's process writes.
const UPPER: &str = "upper";
/// The folder of a run with the log of its commit, and with the originals until the receipt is on the disk.
const STORE: &str = "store";
/// The beginning of the name of a folder that nothing needs any more.
const DONE: &str = "done-";

/// The location of the file changes that have not taken effect.
#[derive(Debug, Clone)]
pub enum EffectsLocation {
    /// This folder, which one journal alone uses. It is made when a run first needs it.
    Folder(PathBuf),
    /// A temporary folder, for a journal in memory: no later process knows the ends of its runs.
    Temporary,
}

impl EffectsLocation {
    /// The location for a journal, in the folder of the configuration.
    #[must_use]
    pub fn of_journal(folder: &Path, journal: &Path) -> Self {
        Self::Folder(folder.join(journal.file_name().unwrap_or(OsStr::new("journal"))))
    }
}

/// The operator's settings of file changes that are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectsSettings {
    /// The time within which somebody has to decide on the changes of a staged run. They are discarded then.
    pub decide_within: Duration,
    /// The time for which changes that are in force can be undone; zero if they cannot.
    pub keep: Duration,
    /// The disk space of all changes that wait or can be undone, in bytes.
    pub max_bytes: u64,
}

/// The folders of the runs whose changes are kept apart.
pub(super) struct EffectsFolder {
    location: EffectsLocation,
    settings: EffectsSettings,
    /// The sets of earlier runs, by the intent of the run.
    sets: Mutex<HashMap<IntentId, KeptSet>>,
    /// The runs whose changes are left to an operator.
    blocked: Mutex<HashSet<IntentId>>,
    /// The runs whose changes neither are in force nor wait.
    unsettled: Mutex<HashMap<IntentId, UnsettledRun>>,
    opened: Mutex<Option<Arc<OpenedFolder>>>,
    /// One commit or undo at a time: no two of this process change a folder at once.
    originals: Arc<Semaphore>,
    /// The number of the next run's folder.
    next: AtomicU64,
}

impl EffectsFolder {
    pub(super) fn new(location: EffectsLocation, settings: EffectsSettings) -> Self {
        Self {
            location,
            settings,
            sets: Mutex::default(),
            blocked: Mutex::default(),
            unsettled: Mutex::default(),
            opened: Mutex::default(),
            originals: Arc::new(Semaphore::new(1)),
            next: AtomicU64::default(),
        }
    }

    /// The settings.
    pub(super) fn settings(&self) -> EffectsSettings {
        self.settings
    }

    /// Does work that changes the originals, while no other does.
    // Not aside: it would wait behind the long work of its owner, and all other commits behind it.
    pub(super) async fn change_originals<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        // Never closed.
        let only = Arc::clone(&self.originals).acquire_owned().await.ok();
        let done = tokio::task::spawn_blocking(move || {
            let _only = only;
            work()
        });
        match done.await.map_err(JoinError::try_into_panic) {
            Ok(done) => done,
            Err(Ok(panic)) => resume_unwind(panic),
            // The runtime ends.
            Err(Err(_cancelled)) => std::future::pending().await,
        }
    }

    /// Opens the folder, and makes it if there is none.
    ///
    /// # Ambient Authority
    /// Makes the folder of the configuration with access only for this user, or a temporary folder.
    fn open(&self) -> io::Result<Arc<OpenedFolder>> {
        let mut opened = self.opened.lock();
        if let Some(folder) = &*opened {
            return Ok(Arc::clone(folder));
        }
        let folder = Arc::new(match &self.location {
            EffectsLocation::Folder(path) => {
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
                OpenedFolder::lock(path.clone(), None)?
            }
            EffectsLocation::Temporary => {
                let private = Permissions::from_mode(0o700);
                let temporary =
                    tempfile::Builder::new().prefix("a2g-effects-").permissions(private).tempdir()?;
                OpenedFolder::lock(temporary.path().to_owned(), Some(temporary))?
            }
        });
        *opened = Some(Arc::clone(&folder));
        Ok(folder)
    }

    /// Makes the folder of a run. Returns it with a handle of its empty folder `upper`.
    ///
    /// # Ambient Authority
    /// As [`Self::open`].
    fn make(&self, intent: IntentId) -> io::Result<(RunFolder, OwnedFd)> {
        let parent = self.open()?;
        // An intent that was released before it began may come again while its first folder is removed.
        let name = format!("{intent}-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let dir = make_folder(&parent.dir, &name)?;
        let folder = RunFolder { parent, name, dir, fate: Fate::Removed };
        let upper = make_folder(&folder.dir, UPPER)?;
        Ok((folder, upper))
    }
}

/// The opened folder, which no other process uses.
struct OpenedFolder {
    path: PathBuf,
    /// Locked while it is open.
    dir: OwnedFd,
    _temporary: Option<TempDir>,
}

impl OpenedFolder {
    /// # Ambient Authority
    /// Opens the folder.
    fn lock(path: PathBuf, temporary: Option<TempDir>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&path, flags, Mode::empty())?;
        let status = fstat(&dir)?;
        let is_private = status.st_uid == rustix::process::geteuid().as_raw() && status.st_mode & 0o077 == 0;
        if !is_private {
            return Err(io::Error::other(format!(
                "`{}` (`effects.folder`) is open to other users: give it to the user of the executor, with mode 0700",
                path.display()
            )));
        }
        match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path, dir, _temporary: temporary }),
            Err(Errno::WOULDBLOCK) => Err(io::Error::other(format!(
                "another process uses `{}` (`effects.folder`): end it, or name another folder",
                path.display()
            ))),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the folder of a run. If this is interrupted, the next start goes on with it.
    fn remove(&self, name: &str) {
        let done = if name.starts_with(DONE) { name.to_owned() } else { format!("{DONE}{name}") };
        // Renamed first: a folder of which a part is missing would say something else of its commit.
        let removed = renameat(&self.dir, name, &self.dir, &done).map_err(io::Error::from);
        if let Err(error) = removed.and_then(|()| remove_tree(&self.dir, &done)) {
            let folder = self.path.join(name);
            tracing::warn!(folder = %folder.display(), %error, "the folder of a run's file changes cannot be removed: the next start tries again");
        }
    }
}

/// The end of a run's folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is removed as soon as nothing uses it.
    Removed,
    /// It is left to the next start, because it has what a commit needs.
    Kept,
}

/// The folder of one run.
struct RunFolder {
    parent: Arc<OpenedFolder>,
    name: String,
    dir: OwnedFd,
    fate: Fate,
}

impl RunFolder {
    fn path(&self) -> PathBuf {
        self.parent.path.join(&self.name)
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        match self.fate {
            Fate::Kept => return,
            Fate::Removed => {}
        }
        let parent = Arc::clone(&self.parent);
        let name = std::mem::take(&mut self.name);
        let remove = move || parent.remove(&name);
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_no_runtime) => remove(),
        }
    }
}

/// Makes a private folder, and opens it.
fn make_folder(parent: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    mkdirat(&parent, name, Mode::RWXU)?;
    Ok(open_folder(&parent, name)?)
}

fn open_folder(parent: impl AsFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: EffectsSettings =
        EffectsSettings { decide_within: Duration::from_secs(60), keep: Duration::ZERO, max_bytes: 1 << 20 };

    #[test]
    fn a_folder_is_private_and_used_by_one_process_and_that_of_a_run_is_removed() {
        let home = tempfile::tempdir().unwrap();
        let base = home.path().join("effects");
        let location = || EffectsLocation::of_journal(&base, Path::new("/state/journal.db"));
        let effects = EffectsFolder::new(location(), SETTINGS);
        let (folder, upper) = effects.make(IntentId::random()).unwrap();
        let path = folder.path();
        assert_eq!(path.parent().unwrap(), base.join("journal.db"));
        for private in [&base, &path, &path.join(UPPER)] {
            assert_eq!(private.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        }
        let in_use = EffectsFolder::new(location(), SETTINGS).open().map(drop).unwrap_err().to_string();
        assert!(in_use.contains("another process") && in_use.contains("`effects.folder`"), "{in_use}");
        // Without a runtime, it is removed at once.
        drop((folder, upper));
        assert!(!path.exists());
        drop(effects);
        std::fs::set_permissions(base.join("journal.db"), std::fs::Permissions::from_mode(0o750)).unwrap();
        let open = EffectsFolder::new(location(), SETTINGS).open().map(drop).unwrap_err().to_string();
        assert!(open.contains("open to other users"), "{open}");
    }

    #[test]
    fn a_temporary_folder_goes_with_the_last_user() {
        let effects = EffectsFolder::new(EffectsLocation::Temporary, SETTINGS);
        let folder = effects.open().unwrap();
        let path = folder.path.clone();
        drop(effects);
        assert!(path.is_dir());
        drop(folder);
        assert!(!path.exists());
    }
}
