//! The stashes: folders for what comes and goes, each on the mount of the roots that it serves.

use super::disk::Disk;
use super::plan::{Item, Plan, StashPlace};
use super::{CommitError, io_error};
use crate::current::{CurrentRoots, mount_of};
use crate::hash::Sha256;
use crate::lower::LowerRoot;
use crate::name::{EntryPath, Name};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// The folder of the store with the items that are kept for an undo, which is also the stash of roots on its mount.
const KEPT: &str = "stash";

/// The beginning of the name of a root's own stash, before 16 hexadecimal digits that nobody can guess.
const OWN_PREFIX: &str = ".a2g-";

/// `true` for the name of a root's own stash. Its items are what a person has decided on, from paths that other runs may
/// not reach: listings for guests leave it out, so that no guest learns the name.
#[must_use]
pub fn is_stash_name(name: &[u8]) -> bool {
    let digits = name.strip_prefix(OWN_PREFIX.as_bytes());
    digits.is_some_and(|digits| digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit))
}

/// The opened stashes of a plan.
#[derive(Debug)]
pub(super) struct Stashes {
    pub(super) kept: OwnedFd,
    /// The own stash of each root; `None` for the one in the store.
    own: Vec<Option<OwnedFd>>,
}

impl Stashes {
    /// Opens the stashes; `None` if one of them does not exist.
    pub(super) fn open(
        store: &OwnedFd,
        roots: &[LowerRoot],
        places: &[StashPlace],
    ) -> Result<Option<Self>, CommitError> {
        let open = |folder: &OwnedFd, name: &std::ffi::OsStr| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(folder, name, flags, Mode::empty()) {
                Ok(stash) => Ok(Some(stash)),
                Err(Errno::NOENT) => Ok(None),
                Err(error) => Err(io_error("open the stash")(error)),
            }
        };
        let Some(kept) = open(store, KEPT.as_ref())? else { return Ok(None) };
        let mut own = Vec::new();
        for place in places {
            own.push(match place {
                StashPlace::Store => None,
                StashPlace::Root { root, name } => {
                    let root = roots.get(*root).ok_or_else(no_root)?;
                    let Some(stash) = open(&root.dir, name.as_os_str())? else { return Ok(None) };
                    Some(stash)
                }
            });
        }
        Ok(Some(Self { kept, own }))
    }

    /// The stash of the root of a path.
    pub(super) fn of(&self, path: &EntryPath) -> BorrowedFd<'_> {
        self.own.get(path.root).and_then(Option::as_ref).map_or_else(|| self.kept.as_fd(), |own| own.as_fd())
    }

    /// The root's own stash, if it is not the one in the store.
    pub(super) fn own_of(&self, path: &EntryPath) -> Option<BorrowedFd<'_>> {
        self.own.get(path.root)?.as_ref().map(OwnedFd::as_fd)
    }

    /// One handle of each stash.
    pub(super) fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.own.iter().flatten().map(OwnedFd::as_fd).chain([self.kept.as_fd()])
    }
}

fn no_root() -> CommitError {
    CommitError::Log("it names a root that does not exist".to_owned())
}

/// Chooses the stash of each root: that of the store if it is on the same mount, else one in the first root of the mount.
pub(super) fn choose(store: &OwnedFd, current: &CurrentRoots<'_>) -> Result<Vec<StashPlace>, CommitError> {
    let store_mount = mount_of(store).map_err(io_error("look at the store"))?;
    let random = RandomState::new().build_hasher().finish();
    let name = Name::new(OsString::from(format!("{OWN_PREFIX}{random:016x}")))
        .map_err(|error| CommitError::Log(error.to_string()))?;
    let chosen = current.mounts().iter().map(|mount| {
        let first = current.mounts().iter().position(|other| other == mount);
        match first {
            Some(root) if *mount != store_mount => StashPlace::Root { root, name: name.clone() },
            Some(_) | None => StashPlace::Store,
        }
    });
    Ok(chosen.collect())
}

/// Makes the stash in the store.
pub(super) fn make_kept(store: &OwnedFd, disk: &Disk) -> Result<(), CommitError> {
    disk.make_folder(store, KEPT).map_err(io_error("make the stash"))
}

/// Makes the stashes in roots.
pub(super) fn make_own(roots: &[LowerRoot], places: &[StashPlace], disk: &Disk) -> Result<(), CommitError> {
    each_own(roots, places, |root, name| disk.make_folder(&root.dir, name.as_os_str()))
}

/// Removes the items of a plan from the roots' own stashes, and those stashes. What else is in them stays.
pub(super) fn remove_own(roots: &[LowerRoot], plan: &Plan, disk: &Disk) -> Result<(), CommitError> {
    each_own(roots, &plan.stashes, |root, name| remove_items(&root.dir, name.as_os_str(), plan, disk))
}

/// Removes the items of a plan from the stash in the store, and that stash.
pub(super) fn remove_kept(store: &OwnedFd, plan: &Plan, disk: &Disk) -> Result<(), CommitError> {
    remove_items(store, KEPT.as_ref(), plan, disk).map_err(io_error("remove the stash"))
}

fn each_own(
    roots: &[LowerRoot],
    places: &[StashPlace],
    act: impl Fn(&LowerRoot, &Name) -> Result<(), Errno>,
) -> Result<(), CommitError> {
    for (index, place) in places.iter().enumerate() {
        match place {
            StashPlace::Root { root, name } if *root == index => {
                let root = roots.get(*root).ok_or_else(no_root)?;
                act(root, name).map_err(io_error("change the stash"))?;
            }
            StashPlace::Root { .. } | StashPlace::Store => {}
        }
    }
    Ok(())
}

fn remove_items(folder: &OwnedFd, name: &std::ffi::OsStr, plan: &Plan, disk: &Disk) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let stash = match openat(folder, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    for name in crate::current::list(&stash)? {
        let number = name.as_os_str().to_str().and_then(|text| text.parse::<Item>().ok());
        if number.is_none_or(|number| number > plan.last_item()) {
            continue;
        }
        match disk.remove_file(&stash, name.as_os_str()) {
            Err(Errno::ISDIR | Errno::PERM) => disk.remove_folder(&stash, name.as_os_str())?,
            other => other?,
        }
    }
    match disk.remove_folder(folder, name) {
        // Something else put a file into it, which is not ours to remove.
        Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The name of an item in its stash.
pub(super) fn item_name(item: Item) -> OsString {
    item.to_string().into()
}

/// The originals of which a copy is kept in the store while the roots' own stashes are removed, with their places and the
/// hashes of their contents, as far as they are known.
pub(super) fn kept_items(plan: &Plan) -> impl Iterator<Item = (Item, &EntryPath, Option<Sha256>)> {
    let exchanged = plan.exchanges.iter().map(|exchange| (exchange.item, &exchange.at, exchange.old.sha256));
    let removed = plan.detaches.iter().filter(|detach| detach.is_removed);
    exchanged.chain(removed.map(|detach| (detach.item, &detach.at, detach.old.sha256)))
}
