//! The granted folders of a run, as the commit of its changes sees them.

use super::program::{AreaRoot, Areas};
use super::{RunFolder, STORE, make_folder, open_folder};
use a2g_capability::{OpenRoot, Permit, Root};
use a2g_overlay::{
    Access, ChangeKind, CommitError, Conflict, ConflictKind, Effects, EffectsError, EntryKind, EntryPath,
    LowerRoot,
};
use a2g_types::limit::Access as FileAccess;
use a2g_types::visible_text::escape_invisible;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, fstat, fsync, openat, openat2, renameat, statx,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file from which the next start finds the granted folders. A commit begins only once it is on the disk.
const ROOTS: &str = "roots.json";
/// Its name until it is complete.
const DRAFT: &str = "roots.json.new";
/// The longest such file, in bytes: some kilobytes for each of the most folders of a grant.
const MAX_ROOTS_BYTES: u64 = 4 << 20;
/// The version of its form.
const VERSION: u32 = 1;
/// The number of paths that a message names.
const MAX_NAMED_PATHS: usize = 4;

/// The opened folders of one run, in the order of its grant.
pub(super) struct RunRoots {
    lower: Vec<LowerRoot>,
    named: Vec<NamedRoot>,
}

/// The granted part that paths in one of the folders are checked against, and the name that they are called by.
struct NamedRoot {
    guest: String,
    /// The granted part; `None` once the run has ended, and for the folders of a program.
    granted: Option<Arc<Root>>,
    /// `true` if the folder does not exist on the host.
    is_missing: bool,
}

/// The part of a folder that a change concerns.
#[derive(Clone, Copy)]
enum Extent {
    Entry,
    /// The entry with everything below it, none of which the list of changes names.
    Tree,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRoots {
    version: u32,
    roots: Vec<StoredRoot>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRoot {
    guest: String,
    /// The folder on the host; `None` for one that does not exist.
    host: Option<PathBuf>,
    inode: u64,
    /// The time at which it was made, in seconds and nanoseconds, if its file system knows it: an inode is used again.
    #[serde(default)]
    born: Option<(i64, u32)>,
    is_writable: bool,
}

impl RunRoots {
    /// Further handles of the folders of a permit.
    pub(super) fn of(permit: &Permit) -> io::Result<Self> {
        let granted_access = permit.grant().access().value;
        let lower = |root: &OpenRoot| -> io::Result<LowerRoot> {
            let dir = OwnedFd::from(root.dir.try_clone()?.into_std_file());
            let access = match granted_access {
                FileAccess::ReadWrite if !root.is_missing => Access::Write,
                FileAccess::ReadWrite | FileAccess::ReadOnly => Access::Read,
            };
            Ok(LowerRoot { dir, access })
        };
        let named = |root: &OpenRoot| NamedRoot {
            guest: root.guest.clone(),
            granted: root.granted.clone(),
            is_missing: root.is_missing,
        };
        let opened = permit.roots().as_slice();
        Ok(Self {
            lower: opened.iter().map(lower).collect::<io::Result<_>>()?,
            named: opened.iter().map(named).collect(),
        })
    }

    /// Further handles of the folders of a program.
    pub(super) fn of_areas(areas: &Areas) -> io::Result<Self> {
        let named = |root: &AreaRoot| NamedRoot {
            guest: root.guest.path().to_owned(),
            granted: None,
            is_missing: false,
        };
        Ok(Self { lower: areas.lower()?, named: areas.roots().iter().map(named).collect() })
    }

    /// The folders.
    pub(super) fn lower(&self) -> &[LowerRoot] {
        &self.lower
    }

    /// Checks that every change is in the granted part of its folder: the process that made the list had the whole folder
    /// open.
    ///
    /// # Errors
    /// The first path that is not granted.
    pub(super) fn check_granted<'a>(&self, effects: &'a Effects) -> Result<(), &'a EntryPath> {
        let check = |path: &'a EntryPath, extent| {
            if self.is_granted(path, extent) { Ok(()) } else { Err(path) }
        };
        effects.changes.iter().try_for_each(|change| match &change.kind {
            ChangeKind::Renamed { from, before, after: _ } => {
                let extent = match before.kind {
                    EntryKind::Folder => Extent::Tree,
                    EntryKind::File | EntryKind::Link | EntryKind::Other => Extent::Entry,
                };
                check(from, extent)?;
                check(&change.path, extent)
            }
            ChangeKind::Deleted { .. }
            | ChangeKind::Created { .. }
            | ChangeKind::Changed { .. }
            | ChangeKind::Attributes { .. } => check(&change.path, Extent::Entry),
        })
    }

    fn is_granted(&self, path: &EntryPath, extent: Extent) -> bool {
        let Some(root) = self.named.get(path.root).and_then(|named| named.granted.as_deref()) else {
            return false;
        };
        // A pattern is compared with text, so a path that is none is granted only with the whole folder.
        let is_granted_text = |path: &str| {
            root.grants(path)
                && match extent {
                    Extent::Entry => true,
                    Extent::Tree => root.grants_all_below(path),
                }
        };
        root.is_whole() || self.guest_path(path).is_some_and(|path| is_granted_text(&path))
    }

    /// The path that the guest uses; `None` if a name in it is not text.
    fn guest_path(&self, path: &EntryPath) -> Option<String> {
        let names = path.names.iter().map(|name| name.as_os_str().to_str());
        let names = names.collect::<Option<Vec<_>>>()?;
        Some(join(&self.named.get(path.root)?.guest, &names))
    }

    /// The path that the guest uses, for a message.
    pub(super) fn describe_path(&self, path: &EntryPath) -> String {
        format!("`{}`", self.show_path(path))
    }

    /// The path that the guest uses, for people: what they could not see is escaped.
    pub(super) fn show_path(&self, path: &EntryPath) -> String {
        let guest = self.named.get(path.root).map_or("", |named| named.guest.as_str());
        let names = path.names.iter().map(|name| show_bytes(name.as_bytes())).collect::<Vec<_>>();
        join(guest, &names)
    }

    /// The reason why there is no list of changes, as a clause.
    pub(super) fn describe_effects_error(&self, error: &EffectsError) -> String {
        if let EffectsError::Conflicts(conflicts) = error {
            return format!("{}: run it again", self.describe_conflicts(conflicts));
        }
        if let EffectsError::ReadOnly(path) | EffectsError::Original { path, source: _ } = error {
            return format!("{error}: {}", self.describe_path(path));
        }
        error.to_string()
    }

    /// The reason why the changes are not in force, as a clause.
    pub(super) fn describe_commit_error(&self, error: &CommitError) -> String {
        if let CommitError::Conflicts(conflicts) = error {
            return self.describe_conflicts(conflicts);
        }
        if let CommitError::ReadOnly(path) | CommitError::Kept(path) = error {
            return format!("{error}: {}", self.describe_path(path));
        }
        if let CommitError::Stranded { left } = error {
            let paths = left.iter().map(|path| self.describe_path(path)).collect::<Vec<_>>();
            return format!("{error}: {}", list_first(&paths));
        }
        error.to_string()
    }

    fn describe_conflicts(&self, conflicts: &[Conflict]) -> String {
        let describe = |conflict: &Conflict| {
            let what = match conflict.what {
                ConflictKind::Missing => "is gone",
                ConflictKind::Replaced => "was replaced",
                ConflictKind::Changed => "has changed",
                ConflictKind::Exists => "exists now",
                ConflictKind::Unseen => "is in a folder that the run removes",
                ConflictKind::OtherMount => "is on another mount than its folder",
                ConflictKind::Special => "is a special file on another mount than `effects.folder`",
            };
            format!("{} {what}", self.describe_path(&conflict.path))
        };
        let conflicts = conflicts.iter().map(describe).collect::<Vec<_>>();
        let listed = list_first(&conflicts);
        format!("others have changed the files ({listed})")
    }

    /// Stores where the folders are, and makes the folder of the commit's log. Both are on the disk afterwards, and so is
    /// what `sync` brings there, which gets the file with the places of the folders.
    ///
    /// # Ambient Authority
    /// Reads the paths of the folders from `/proc`.
    pub(super) fn prepare_commit(
        &self,
        folder: &RunFolder,
        sync: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<OwnedFd> {
        let store = make_folder(&folder.dir, STORE)?;
        let mut roots = Vec::new();
        for (lower, named) in self.lower.iter().zip(&self.named) {
            let host = std::fs::read_link(format!("/proc/self/fd/{}", lower.dir.as_raw_fd()))?;
            roots.push(StoredRoot {
                guest: named.guest.clone(),
                host: (!named.is_missing).then_some(host),
                inode: fstat(&lower.dir)?.st_ino,
                born: find_birth(&lower.dir)?,
                is_writable: lower.access == Access::Write,
            });
        }
        let stored = StoredRoots { version: VERSION, roots };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut draft = File::from(openat(&folder.dir, DRAFT, flags, Mode::RUSR | Mode::WUSR)?);
        draft.write_all(&serde_json::to_vec(&stored)?)?;
        sync(&draft)?;
        renameat(&folder.dir, DRAFT, &folder.dir, ROOTS)?;
        fsync(&folder.dir)?;
        Ok(store)
    }

    /// Opens the folders of an earlier process's run again; `None` if its commit has not begun.
    ///
    /// # Ambient Authority
    /// Opens the host folders that the file names.
    ///
    /// # Errors
    /// If the file cannot be read, or a folder is no longer in its place.
    pub(super) fn reopen(folder: &RunFolder) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(&folder.dir, ROOTS, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut text = Vec::new();
        file.take(MAX_ROOTS_BYTES).read_to_end(&mut text)?;
        let StoredRoots { version, roots } = serde_json::from_slice(&text)?;
        if version != VERSION {
            return Err(io::Error::other(format!("another version of the executor wrote `{ROOTS}`")));
        }
        let mut lower = Vec::new();
        let mut named = Vec::new();
        for StoredRoot { guest, host, inode, born, is_writable } in roots {
            let dir = match &host {
                Some(path) => open_host(path, inode, born)?,
                // Nothing was changed in a folder that did not exist. This one only keeps the others at their numbers.
                None => open_folder(&folder.dir, STORE)?,
            };
            let access = if is_writable { Access::Write } else { Access::Read };
            lower.push(LowerRoot { dir, access });
            named.push(NamedRoot { guest, granted: None, is_missing: host.is_none() });
        }
        Ok(Some(Self { lower, named }))
    }
}

/// Bytes as people read them: those that are no UTF-8 as `\\xff`, and characters that they could not see escaped.
pub(super) fn show_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        // Doubled, so that nothing looks like a byte that is no text.
        text.push_str(&escape_invisible(&chunk.valid().replace('\\', "\\\\"), usize::MAX));
        for byte in chunk.invalid() {
            let _a_string_takes_all = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// # Ambient Authority
/// Opens the folder.
fn open_host(host: &Path, inode: u64, born: Option<(i64, u32)>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let plain = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let describe = |reason: &dyn std::fmt::Display| {
        io::Error::other(format!("the folder `{}` cannot be opened again: {reason}", host.display()))
    };
    let dir = openat2(CWD, host, flags, Mode::empty(), plain).map_err(|error| describe(&error))?;
    if fstat(&dir)?.st_ino != inode || find_birth(&dir)? != born {
        return Err(describe(&"another folder is in its place"));
    }
    Ok(dir)
}

fn find_birth(folder: &OwnedFd) -> io::Result<Option<(i64, u32)>> {
    let found = statx(folder, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
    let has_time = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    Ok(has_time.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec)))
}

fn join(guest: &str, names: &[impl AsRef<str>]) -> String {
    let mut path = guest.to_owned();
    for name in names {
        if !path.ends_with('/') {
            path.push('/');
        }
        path.push_str(name.as_ref());
    }
    path
}

/// The first of some texts, and the number of the others.
fn list_first(texts: &[String]) -> String {
    let first = texts.iter().take(MAX_NAMED_PATHS).map(String::as_str).collect::<Vec<_>>().join(", ");
    match texts.len().saturating_sub(MAX_NAMED_PATHS) {
        0 => first,
        more => format!("{first}, and {more} more"),
    }
}

#[cfg(test)]
mod tests;
