//! The files of a journal: their permissions, the lock of the writing process, and their identity while they are open.
//!
//! ```text
//! journal.db        the records; this process locks the inode, so the lock holds for every name of the file
//! journal.db-wal    SQLite's log: pages that are not yet in the journal
//! journal.db-shm    the shared memory of SQLite's connections
//! journal.db.lock   the marker, which names the last record
//! ```
//! The marker is written after each commit that syncs, and is not synced itself: it names the last record that is known
//! to be on the disk, or after a power failure an earlier one. A journal that ends before its marker has lost records.

use super::chain::{Hash, from_hex, to_hex};
use super::error::{OpenError, ReplacedError};
use super::record::digest;
use super::sweep::{create_locked, remove_copy};
use rustix::fs::{CWD, FlockOperation, Mode, RenameFlags, fchmod, flock, renameat_with};
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Readable and writable only by the user of this process.
const PRIVATE_MODE: u32 = 0o600;
const MARKER_PREFIX: &str = "a2g-executor journal 1";
/// The maximum number of bytes that are read from a marker.
const MAX_MARKER_BYTES: u64 = 512;

/// The action if there is no journal at the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfMissing {
    /// Creates a journal, unless another file shows that there was one.
    Create,
    /// Creates a journal even if other files show that there was one. An existing journal is refused.
    CreateAnyway,
}

/// The locked files of the journal that this process writes.
#[derive(Debug)]
pub(super) struct JournalFiles {
    /// The path in the operator's configuration.
    path: PathBuf,
    /// The path without symbolic links, from which SQLite derives the names of its other files.
    real: PathBuf,
    /// The locked journal. It has to outlive every connection: closing any descriptor of the file releases SQLite's own
    /// locks on it.
    database: File,
    marker: File,
    boot: String,
    /// The size of the database at the last check.
    bytes: u64,
    /// The inodes and sizes of `-wal` and `-shm`, once they exist.
    sidecars: [Option<(Inode, u64)>; 2],
}

type Inode = (u64, u64);

fn inode(file: &Metadata) -> Inode {
    (file.dev(), file.ino())
}

/// The last record according to the marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Marker {
    pub(super) number: i64,
    pub(super) hash: Hash,
    /// The id of the kernel's boot when the marker was written.
    pub(super) boot: String,
}

impl JournalFiles {
    /// Locks the journal at `path`. If there is none and `if_missing` allows it, calls `create`.
    ///
    /// # Ambient Authority
    /// Creates the journal, its folder and its marker, with access only for this user.
    pub(super) fn open(
        path: &Path,
        if_missing: IfMissing,
        create: impl FnOnce(&Path) -> Result<(), OpenError>,
    ) -> Result<Self, OpenError> {
        let open_error = |error: std::io::Error| OpenError::from_io(path, error);
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(open_error)?;
        }
        // SQLite names its log after the path that it opens, so a link would give the same journal a second log.
        let real = resolve_links(path).map_err(open_error)?;
        // An empty file counts as missing: SQLite would silently begin a new database in a journal that was truncated.
        let exists = real.metadata().is_ok_and(|file| file.len() > 0);
        match (exists, find_sign_of_journal(path, &real), if_missing) {
            (true, _, IfMissing::CreateAnyway) => return Err(OpenError::Exists(path.to_owned())),
            (true, _, IfMissing::Create) => {}
            // With a new journal, every intent that ran before could run again.
            (false, Some(sign), IfMissing::Create) => {
                return Err(OpenError::Vanished { path: path.to_owned(), sign });
            }
            (false, _, IfMissing::Create | IfMissing::CreateAnyway) => {
                set_aside_remains(&real).map_err(open_error)?;
                create_atomically(&real, create)?;
            }
        }
        Self::lock(path, real)
    }

    fn lock(path: &Path, real: PathBuf) -> Result<Self, OpenError> {
        let open_error = |error: std::io::Error| OpenError::from_io(path, error);
        let database = OpenOptions::new().read(true).write(true).open(&real).map_err(open_error)?;
        // The journal itself is locked: a lock file could be deleted, and a second name of the journal would have
        // another lock file.
        lock_file(&database, path)?;
        let metadata = database.metadata().map_err(open_error)?;
        check_private(path, &metadata)?;
        let marker = open_private(&sibling_path(&real, ".lock")).map_err(open_error)?;
        // A restore to a path without a journal has only this lock.
        lock_file(&marker, path)?;
        // SQLite creates these files with the mode of the journal, but does not change the mode of existing ones.
        for file in sidecar_files(&real).iter().filter(|file| file.exists()) {
            let file = OpenOptions::new().read(true).write(true).open(file).map_err(open_error)?;
            fchmod(&file, Mode::from_raw_mode(PRIVATE_MODE)).map_err(|error| open_error(error.into()))?;
        }
        fchmod(&marker, Mode::from_raw_mode(PRIVATE_MODE)).map_err(|error| open_error(error.into()))?;
        let path = path.to_owned();
        let boot = boot_id();
        let bytes = metadata.len();
        let files = Self { path, real, database, marker, boot, bytes, sidecars: [None; 2] };
        // The file may have been replaced before it was locked.
        match files.check_database() {
            Ok(_bytes) => Ok(files),
            Err(replaced) => Err(OpenError::other(&files.path, replaced)),
        }
    }

    /// The path by which SQLite opens the journal.
    pub(super) fn real(&self) -> &Path {
        &self.real
    }

    /// Compares the files at the journal's path with the open ones.
    ///
    /// # Errors
    /// [`ReplacedError`] with the difference.
    pub(super) fn check(&mut self) -> Result<(), ReplacedError> {
        self.bytes = self.check_database()?;
        for (nth, file) in sidecar_files(&self.real).iter().enumerate() {
            let Some(known) = self.sidecars.get_mut(nth) else { continue };
            let current = file.metadata().ok().map(|metadata| (inode(&metadata), metadata.len()));
            match (*known, current) {
                (None, current) => *known = current,
                // SQLite overwrites its log in place after a checkpoint and never shortens it, so a shorter log has
                // lost records.
                (Some((old_inode, old_bytes)), Some((inode, bytes)))
                    if old_inode == inode && bytes >= old_bytes =>
                {
                    *known = Some((inode, bytes))
                }
                (Some(_), Some(_) | None) => {
                    let file = file.display();
                    return Err(
                        self.replaced_error(format!("its file `{file}` was removed, replaced or cut short"))
                    );
                }
            }
        }
        Ok(())
    }

    /// The size of the database, if it is still the file that was opened.
    fn check_database(&self) -> Result<u64, ReplacedError> {
        // SQLite's own `HAS_MOVED` compares only the inode of the database: it detects neither a truncated file nor a
        // second name.
        let open = self.database.metadata().map_err(|error| self.inspect_error(error))?;
        // The configured path is resolved again, so that a renamed folder or a changed link is detected as well.
        let current = match self.path.metadata() {
            Ok(current) => current,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(self.replaced_error("it was removed, or its folder was renamed"));
            }
            Err(error) => return Err(self.inspect_error(error)),
        };
        match () {
            () if inode(&current) != inode(&open) => {
                Err(self.replaced_error("another file was put in its place"))
            }
            // SQLite has one log for each name, so a process that uses the second name would not see this one's writes.
            () if open.nlink() != 1 => Err(self.replaced_error(format!("it has {} names", open.nlink()))),
            // SQLite reuses pruned pages, so the file never becomes shorter while it is served.
            () if open.len() < self.bytes => Err(self.replaced_error(format!(
                "it was cut short: it had {} bytes and has {}",
                self.bytes,
                open.len()
            ))),
            () => Ok(open.len()),
        }
    }

    fn replaced_error(&self, change: impl Into<String>) -> ReplacedError {
        ReplacedError { path: self.path.clone(), change: change.into(), source: None }
    }

    fn inspect_error(&self, error: std::io::Error) -> ReplacedError {
        ReplacedError { source: Some(error), ..self.replaced_error("its files cannot be inspected") }
    }

    /// Writes the last record into the marker. A failure is ignored: the marker then names an earlier record, which is
    /// valid.
    pub(super) fn update_marker(&self, number: i64, hash: &Hash) {
        // Not synced, so that a commit waits for the disk only once.
        let _names_earlier_record = write_marker(&self.marker, number, hash, &self.boot);
    }

    /// Reads the marker; `None` if it is not valid.
    pub(super) fn read_marker(&self) -> Option<Marker> {
        parse_marker(&self.marker)
    }
}

/// Writes a marker.
pub(super) fn write_marker(marker: &File, number: i64, hash: &Hash, boot: &str) -> std::io::Result<()> {
    // The number has a fixed width, so that one write replaces the previous marker completely.
    let text = format!("{MARKER_PREFIX} {number:020} {} {boot}", to_hex(hash));
    // A power failure may tear the write: the digest makes such a marker invalid instead of wrong.
    let check = to_hex(&digest(text.as_bytes()).0);
    marker.write_all_at(format!("{text} {check}\n").as_bytes(), 0)
}

/// Reads the marker of a journal that this process does not lock; `None` if it is missing or not valid.
pub(super) fn read_marker(journal: &Path) -> Option<Marker> {
    let real = resolve_links(journal).ok()?;
    parse_marker(&File::open(sibling_path(&real, ".lock")).ok()?)
}

fn parse_marker(marker: &File) -> Option<Marker> {
    let mut text = String::new();
    let mut file = marker.try_clone().ok()?;
    std::io::Seek::rewind(&mut file).ok()?;
    file.take(MAX_MARKER_BYTES).read_to_string(&mut text).ok()?;
    let (text, check) = text.strip_suffix('\n')?.rsplit_once(' ')?;
    if from_hex(check)? != digest(text.as_bytes()).0 {
        return None;
    }
    let mut parts = text.strip_prefix(MARKER_PREFIX)?.split_ascii_whitespace();
    let number = parts.next()?.parse().ok()?;
    Some(Marker { number, hash: from_hex(parts.next()?)?, boot: parts.next()?.to_owned() })
}

/// The id of the kernel's current boot.
pub(super) fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let id = id.trim();
    // With one constant for unknown ids, a loss of records is never attributed to a power failure.
    if id.is_empty() { "unknown".to_owned() } else { id.to_owned() }
}

/// Locks a file for this process, until the descriptor is closed. The lock is on the inode, not on the name.
pub(super) fn lock_file(file: &File, journal: &Path) -> Result<(), OpenError> {
    // `flock` is independent of SQLite's POSIX locks on the same file, and the kernel releases it if the process dies.
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse(journal.to_owned())),
        Err(error) => Err(OpenError::from_io(journal, error.into())),
    }
}

/// Checks that no other user may access the journal, and that the file has one name.
pub(super) fn check_private(path: &Path, file: &Metadata) -> Result<(), OpenError> {
    let mode = file.mode() & 0o7777;
    if mode & !PRIVATE_MODE != 0 {
        return Err(OpenError::Mode { path: path.to_owned(), mode });
    }
    if file.nlink() != 1 {
        return Err(OpenError::Names { path: path.to_owned(), names: file.nlink() });
    }
    Ok(())
}

/// Opens a file, and creates it with mode 0600 if it does not exist.
pub(super) fn open_private(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(PRIVATE_MODE).open(path)
}

/// Resolves symbolic links. The file itself need not exist.
pub(super) fn resolve_links(path: &Path) -> std::io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        resolved => return resolved,
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(ErrorKind::InvalidFilename)?;
    Ok(folder.canonicalize()?.join(name))
}

/// Finds a file that shows that there was a journal at a path without one.
fn find_sign_of_journal(path: &Path, real: &Path) -> Option<PathBuf> {
    let mut signs = vec![sibling_path(real, ".lock"), sibling_path(real, "-wal"), sibling_path(real, "-shm")];
    // A symbolic link whose target is missing or empty.
    signs.extend(path.is_symlink().then(|| path.to_owned()));
    signs.into_iter().find(|sign| sign.symlink_metadata().is_ok())
}

/// Creates the journal under another name, and renames it when it is complete.
fn create_atomically(
    real: &Path,
    create: impl FnOnce(&Path) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    // A crash in between leaves a draft, and never a journal without tables, which would look damaged.
    let draft = draft_path(real);
    let open_error = |error: std::io::Error| OpenError::from_io(real, error);
    let locked = create_locked(&draft).map_err(open_error)?;
    let result = create(&draft).and_then(|()| match rename_new(&draft, real) {
        // Another process created the journal before; the lock decides which process uses it.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        renamed => renamed.map_err(open_error),
    });
    remove_copy(&draft);
    drop(locked);
    result
}

/// The path of an incomplete journal, beside the final path.
pub(super) fn draft_path(real: &Path) -> PathBuf {
    // The process id gives two processes that start at the same time different drafts.
    sibling_path(real, &format!(".draft-{}", std::process::id()))
}

/// Renames a file to a name that no file has, atomically.
pub(super) fn rename_new(from: &Path, to: &Path) -> std::io::Result<()> {
    // Without the flag, the rename would replace a file that got the name in between, such as another process's
    // journal.
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?;
    // A rename survives a power failure only once its folder is on the disk.
    sync_folder_of(to)
}

/// Syncs the folder of a file, and with it the file's name.
fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Removes or renames the leftover files of a missing journal, so that SQLite does not apply its log to a new one.
pub(super) fn set_aside_remains(real: &Path) -> std::io::Result<()> {
    if real.metadata().is_ok_and(|file| file.len() == 0) {
        std::fs::remove_file(real)?;
    }
    // SQLite rebuilds this file from the log.
    let _already_absent = std::fs::remove_file(sibling_path(real, "-shm"));
    let log = sibling_path(real, "-wal");
    if !log.exists() {
        return Ok(());
    }
    // The log may have the only copy of the last records, so it is renamed and not removed.
    rename_new(&log, &find_free_name(&log, "lost"))
}

/// Finds an unused path: `FILE.WORD-1`, or a higher number.
pub(super) fn find_free_name(path: &Path, word: &str) -> PathBuf {
    let names = (1_u32..).map(|nth| sibling_path(path, &format!(".{word}-{nth}")));
    // `symlink_metadata`, because a dangling link also occupies its name.
    let mut free = names.filter(|name| name.symlink_metadata().is_err());
    free.next().unwrap_or_else(|| sibling_path(path, &format!(".{word}")))
}

/// The files of a journal that contain its records.
pub(super) fn data_files(path: &Path) -> [PathBuf; 2] {
    [path.to_owned(), sibling_path(path, "-wal")]
}

/// The other files of SQLite beside a journal.
pub(super) fn sidecar_files(real: &Path) -> [PathBuf; 2] {
    [sibling_path(real, "-wal"), sibling_path(real, "-shm")]
}

/// A path with `ending` appended to the name.
pub(super) fn sibling_path(path: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
