//! The opened folders of the granted trees.
//!
//! A root is opened once, here, without following a symbolic link below the folder that the operator named. From then
//! on only the handle is passed on, so that nothing can be swapped between the check and the use. A root that does not exist
//! stays so for the whole run, even if its folder is created meanwhile.

use super::grant::Grant;
use super::root::Root;
use super::scope::{Area, ScopeError, Tree};
use cap_std::fs::Dir;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The mapping of a guest path to a host folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The guest path.
    pub guest: Tree,
    /// The folder on the host.
    pub host: PathBuf,
}

/// The operator's map from guest paths to host folders. A guest path without a mount is the same path on the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mounts(Vec<Mount>);

/// The reason why a granted tree cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootsError {
    /// The folder does not exist.
    #[error("the granted folder `{0}` does not exist here: create it, or map it with `[[mount]]`")]
    Missing(String),
    /// A component of the folder's path is a symbolic link or not a folder.
    #[error("the granted folder `{0}` is reached through a symbolic link or is not a folder")]
    NotAFolder(String),
    /// Another file system is mounted below the folder.
    #[error(
        "the granted folder `{path}` holds the mount `{mount}`, which was not granted: grant a folder without one"
    )]
    HoldsMount {
        /// The guest path.
        path: String,
        /// The mount point on the host.
        mount: String,
    },
    /// The kernel refused to open the folder.
    #[error("the granted folder `{path}` cannot be opened")]
    Refused {
        /// The guest path.
        path: String,
        /// The kernel's error, for the log.
        source: std::io::Error,
    },
}

/// An opened root of a grant.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenRoot {
    /// The guest path of the root.
    pub guest: String,
    /// The granted part of the folder; `None` if the operator opened the folder with everything below it.
    pub granted: Option<Arc<Root>>,
    /// `true` if the folder does not exist on the host, and an empty one without a name takes its place.
    pub is_missing: bool,
    /// The handle of the opened host folder.
    pub dir: Dir,
}

/// The opened roots of one grant.
#[derive(Debug)]
pub struct Roots {
    opened: Vec<OpenRoot>,
    watch_outside: bool,
}

impl Mounts {
    /// Makes a map of `mounts`.
    ///
    /// # Errors
    /// [`ScopeError::Malformed`] if the guest path of one mount equals that of another or lies in it.
    pub fn new(mounts: Vec<Mount>) -> Result<Self, ScopeError> {
        // A path in two mounts would be one file under one scope and another file under a wider one.
        for (index, mount) in mounts.iter().enumerate() {
            let others = mounts.iter().enumerate().filter(|(other, _)| *other != index);
            if others.into_iter().any(|(_, other)| other.guest.covers(&mount.guest)) {
                return Err(ScopeError::Malformed {
                    pattern: mount.guest.path().to_owned(),
                    reason: "another mount has this guest path or one above it: keep mounts apart",
                });
            }
        }
        Ok(Self(mounts))
    }

    /// All mounts.
    #[must_use]
    pub fn as_slice(&self) -> &[Mount] {
        &self.0
    }

    /// The host folder that contains a tree, and the tree's path below that folder.
    fn locate<'a>(&'a self, tree: &'a Tree, ceilings: &'a [Area]) -> Option<(&'a Path, &'a str)> {
        let mounted = self.0.iter().map(|mount| (&mount.guest, mount.host.as_path()));
        let same_path = ceilings.iter().map(|ceiling| (ceiling.root(), Path::new(ceiling.root().path())));
        // A mount takes precedence over the same path on the host, and a longer guest path over a shorter one.
        let longest = |candidates: &mut dyn Iterator<Item = (&'a Tree, &'a Path)>| {
            candidates
                .filter_map(|(guest, host)| Some((guest, host, guest.relative_path(tree.path())?)))
                .max_by_key(|(guest, _, _)| guest.path().len())
                .map(|(_, host, rest)| (host, rest))
        };
        longest(&mut mounted.into_iter()).or_else(|| longest(&mut same_path.into_iter()))
    }

    /// The host folder of a tree, for checks of the configuration; `None` if no mount or ceiling contains the tree.
    #[must_use]
    pub fn host_path(&self, tree: &Tree, ceilings: &[Area]) -> Option<PathBuf> {
        let (base, rest) = self.locate(tree, ceilings)?;
        Some(if rest.is_empty() { base.to_owned() } else { base.join(rest) })
    }
}

impl Roots {
    /// Opens every root of a grant; see [`super::Permit::open`].
    ///
    /// # Ambient Authority
    /// As [`super::Permit::open`].
    ///
    /// # Errors
    /// [`RootsError`] names the first root that cannot be opened.
    pub(super) fn open(
        grant: &Grant,
        mounts: &Mounts,
        ceilings: &[Area],
        is_needed: impl Fn(&Tree) -> bool,
    ) -> Result<Self, RootsError> {
        let opened = grant.roots().iter().map(|root| match open_root(root, mounts, ceilings) {
            Err(RootsError::Missing(path)) if !is_needed(root.tree()) => {
                open_nothing(root).map_err(|source| RootsError::Refused { path, source })
            }
            opened => opened,
        });
        Ok(Self { opened: opened.collect::<Result<_, _>>()?, watch_outside: true })
    }

    /// A set without folders.
    pub(super) fn empty() -> Self {
        Self { opened: Vec::new(), watch_outside: true }
    }

    /// Opens folders that the operator names on the command line, under any guest path, `.` and `/` included. The guest
    /// has access to these folders and nothing else.
    ///
    /// # Ambient Authority
    /// Opens the host folders in `folders`.
    ///
    /// # Errors
    /// [`RootsError`] names the first folder that cannot be opened.
    pub(super) fn open_for_operator(folders: &[(PathBuf, String)]) -> Result<Self, RootsError> {
        let open = |(host, guest): &(PathBuf, String)| match std::fs::File::open(host) {
            Ok(file) if file.metadata().is_ok_and(|metadata| metadata.is_dir()) => {
                let dir = Dir::from_std_file(file);
                Ok(OpenRoot { guest: guest.clone(), granted: None, is_missing: false, dir })
            }
            Ok(_) => Err(RootsError::NotAFolder(host.display().to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(RootsError::Missing(host.display().to_string()))
            }
            Err(source) => Err(RootsError::Refused { path: host.display().to_string(), source }),
        };
        Ok(Self { opened: folders.iter().map(open).collect::<Result<_, _>>()?, watch_outside: false })
    }

    /// The guest paths of those of `roots` that do not exist on the host now, for the people who approve a run. Blocks as
    /// long as the host's file systems do.
    ///
    /// # Ambient Authority
    /// As [`super::Permit::open`].
    #[must_use]
    pub fn find_missing(roots: &[Arc<Root>], mounts: &Mounts, ceilings: &[Area]) -> Vec<String> {
        let is_missing =
            |root: &&Arc<Root>| matches!(open_root(root, mounts, ceilings), Err(RootsError::Missing(_)));
        roots.iter().filter(is_missing).map(|root| root.tree().path().to_owned()).collect()
    }

    /// Splits the roots, to be reassembled in another process.
    pub(super) fn into_parts(self) -> (Vec<OpenRoot>, bool) {
        (self.opened, self.watch_outside)
    }

    pub(super) fn from_parts(opened: Vec<OpenRoot>, watch_outside: bool) -> Self {
        Self { opened, watch_outside }
    }

    /// The same folders with descriptors of their own.
    pub(super) fn duplicate(&self) -> std::io::Result<Self> {
        let duplicate = |OpenRoot { guest, granted, is_missing, dir }: &OpenRoot| {
            let dir = dir.try_clone()?;
            Ok(OpenRoot { guest: guest.clone(), granted: granted.clone(), is_missing: *is_missing, dir })
        };
        let opened = self.opened.iter().map(duplicate).collect::<std::io::Result<_>>()?;
        Ok(Self { opened, watch_outside: self.watch_outside })
    }

    /// `true` if attempts to access paths outside the roots have to be recorded.
    #[must_use]
    pub fn should_watch_outside(&self) -> bool {
        self.watch_outside
    }

    /// The opened roots.
    #[must_use]
    pub fn as_slice(&self) -> &[OpenRoot] {
        &self.opened
    }
}

fn open_root(root: &Arc<Root>, mounts: &Mounts, ceilings: &[Area]) -> Result<OpenRoot, RootsError> {
    let tree = root.tree();
    let guest_path = || tree.path().to_owned();
    let (base, rest) = mounts.locate(tree, ceilings).ok_or_else(|| RootsError::Missing(guest_path()))?;
    let open_error = |error: rustix::io::Errno| match error {
        rustix::io::Errno::NOENT => RootsError::Missing(guest_path()),
        rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP | rustix::io::Errno::XDEV => {
            RootsError::NotAFolder(guest_path())
        }
        other => RootsError::Refused { path: guest_path(), source: other.into() },
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = rustix::fs::open(base, flags, Mode::empty()).map_err(open_error)?;
    let handle = if rest.is_empty() {
        base
    } else {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&base, rest, flags, Mode::empty(), beneath).map_err(open_error)?
    };
    let mounts_error = |source| RootsError::Refused { path: guest_path(), source };
    if let Some(mount) = mount_below(&handle).map_err(mounts_error)? {
        return Err(RootsError::HoldsMount { path: guest_path(), mount });
    }
    let dir = Dir::from_std_file(handle.into());
    Ok(OpenRoot { guest: tree.path().to_owned(), granted: Some(Arc::clone(root)), is_missing: false, dir })
}

/// A folder in the place of one that does not exist. It has been removed, so that the kernel finds and lists nothing in it,
/// and creates nothing. It is a new one for each run: the times of a shared one could pass on what a run knows.
fn open_nothing(root: &Arc<Root>) -> std::io::Result<OpenRoot> {
    let folder = tempfile::tempdir()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::open(folder.path(), flags, Mode::empty())?;
    folder.close()?;
    // The user of a run depends on the modes of its folders. This one is open to every user, and nobody can reach it.
    rustix::fs::fchmod(&handle, Mode::RWXU | Mode::RWXG | Mode::RWXO)?;
    let dir = Dir::from_std_file(handle.into());
    let guest = root.tree().path().to_owned();
    Ok(OpenRoot { guest, granted: Some(Arc::clone(root)), is_missing: true, dir })
}

/// The first mount point below an opened folder, if there is one. It contains another file system, which no pattern
/// names and which path resolution beneath the folder does not exclude.
fn mount_below(folder: &OwnedFd) -> std::io::Result<Option<String>> {
    let folder = std::fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd()))?;
    let points = MountPoints::current()?;
    let below = points.iter().find(|point| **point != folder && point.starts_with(&folder));
    Ok(below.map(|point| point.display().to_string()))
}

/// The mount points, as last read from the kernel.
struct MountPoints {
    /// `/proc/self/mountinfo`. Polling it reports a change since it was opened, or last polled.
    list: File,
    points: Arc<[PathBuf]>,
}

impl MountPoints {
    /// All mount points. Reading the list takes longer than all other steps of opening a folder, so it is read again
    /// only when the kernel reports a change.
    fn current() -> std::io::Result<Arc<[PathBuf]>> {
        static CACHED: Mutex<Option<MountPoints>> = Mutex::new(None);
        let mut cached = CACHED.lock();
        if let Some(Self { list, points }) = &mut *cached {
            let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut [PollFd::new(list, PollFlags::PRI)], Some(&no_wait))? > 0 {
                *points = read_mount_points(list)?;
            }
            return Ok(Arc::clone(points));
        }
        let mut list = File::open("/proc/self/mountinfo")?;
        let points = read_mount_points(&mut list)?;
        *cached = Some(Self { list, points: Arc::clone(&points) });
        Ok(points)
    }
}

fn read_mount_points(list: &mut File) -> std::io::Result<Arc<[PathBuf]>> {
    let mut text = Vec::new();
    list.rewind()?;
    list.read_to_end(&mut text)?;
    let points = text.split(|&byte| byte == b'\n').filter_map(|line| line.split(|&byte| byte == b' ').nth(4));
    Ok(points.map(|point| PathBuf::from(OsString::from_vec(unescape(point)))).collect())
}

/// Decodes the kernel's escapes: a space is written as `\040`, and other such characters likewise.
fn unescape(mut point: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(point.len());
    while let Some((&first, rest)) = point.split_first() {
        let octal = rest.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = octal.filter(|_| first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.push(escaped.unwrap_or(first));
        point = if escaped.is_some() { rest.get(3..).unwrap_or_default() } else { rest };
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn mount_points_are_read_as_the_kernel_writes_them() {
        assert_eq!(unescape(br"/a\040b\011\134c"), b"/a b\t\\c");
        assert_eq!(unescape(br"/a\04"), br"/a\04");
        let open = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
        assert!(mount_below(&open("/")).unwrap().is_some(), "/proc is below /");
        assert_eq!(mount_below(&open("/proc/self")).unwrap(), None);
    }

    /// It is skipped for a user that may not mount anything.
    #[test]
    fn a_later_mount_is_detected() {
        let run = |program: &str, arguments: &[&str], last: &Path| {
            let run = std::process::Command::new(program).args(arguments).arg(last).output();
            run.is_ok_and(|output| output.status.success())
        };
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let mount = || mount_below(&OwnedFd::from(File::open(outer.path()).unwrap())).unwrap();
        assert_eq!(mount(), None);
        if !run("mount", &["-t", "tmpfs", "none"], &inner) {
            // A passing test shows nothing that `println!` prints.
            let _untold = writeln!(std::io::stderr(), "skipped: this user may not mount anything");
            return;
        }
        let while_mounted = mount();
        assert!(run("umount", &["-l"], &inner));
        assert_eq!((while_mounted, mount()), (Some(inner.display().to_string()), None));
    }
}
