//! The files of a journal: their permissions, the lock of the one writing process, and their identity while they are
//! open.
//!
//! ```text
//! journal.db        the records; this process holds a lock on its inode, under whatever name it was opened
//! journal.db-wal    SQLite's log: pages that are not yet in the journal
//! journal.db-shm    memory that SQLite's connections share
//! journal.db.lock   the marker: there is a journal, and this was its last record
//! ```
//! The marker is written after each commit and not awaited: after a kill it names the last record on the disk, after a
//! power cut that record or an earlier one. A journal that ends before its marker has lost records.

use super::chain::{Hash, from_hex, to_hex};
use super::error::{OpenError, ReplacedError};
use super::record::digest;
use rustix::fs::{CWD, FlockOperation, Mode, RenameFlags, fchmod, flock, renameat_with};
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Readable and writable by the user of this process only.
const PRIVATE_MODE: u32 = 0o600;
const MARKER_PREFIX: &str = "a2g-executor journal 3";
/// An upper bound for the size of a marker.
const MAX_MARKER_BYTES: u64 = 512;

/// The action of a start that finds no journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfMissing {
    /// Creates one, unless a file beside its place shows that there was one.
    Create,
    /// Creates one, whatever is beside its place, as the operator demanded. An existing journal is refused.
    CreateAnyway,
}

/// The open files of the journal that this process writes.
#[derive(Debug)]
pub(super) struct JournalFiles {
    /// The path as the operator wrote it.
    path: PathBuf,
    /// The path without symbolic links, from which SQLite derives the names of its other files.
    real: PathBuf,
    /// The locked journal. Closing any descriptor of it would release SQLite's own locks on it, so this one has to
    /// outlive every connection.
    database: File,
    marker: File,
    boot: String,
    bytes: u64,
    /// `-wal` and `-shm`, once they exist.
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
    /// The boot of the kernel under which it was written.
    pub(super) boot: String,
}

impl JournalFiles {
    /// Locks the journal at `path`. `create` makes it if it does not exist and may be made.
    ///
    /// # Ambient Authority
    /// Makes the journal, its folder and its marker, for this user alone.
    pub(super) fn open(
        path: &Path,
        if_missing: IfMissing,
        create: impl FnOnce(&Path) -> Result<(), OpenError>,
    ) -> Result<Self, OpenError> {
        let failed = |error: std::io::Error| OpenError::from_io(path, error);
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        }
        // SQLite names its log after the path that it opens, so a link would get a second log for the same journal.
        let real = resolve_links(path).map_err(failed)?;
        // SQLite takes an empty file for a new database, so a journal that was cut to nothing would be begun anew in
        // silence.
        let is_there = real.metadata().is_ok_and(|file| file.len() > 0);
        match (is_there, find_sign_of_journal(path, &real), if_missing) {
            (true, _, IfMissing::CreateAnyway) => return Err(OpenError::Exists(path.to_owned())),
            (true, _, IfMissing::Create) => {}
            // Under a new journal, everything that ran before could run again.
            (false, Some(sign), IfMissing::Create) => {
                return Err(OpenError::Vanished { path: path.to_owned(), sign });
            }
            (false, _, IfMissing::Create | IfMissing::CreateAnyway) => {
                set_aside_remains(&real).map_err(failed)?;
                create_atomically(&real, create)?;
            }
        }
        Self::lock(path, real)
    }

    fn lock(path: &Path, real: PathBuf) -> Result<Self, OpenError> {
        let failed = |error: std::io::Error| OpenError::from_io(path, error);
        let database = OpenOptions::new().read(true).write(true).open(&real).map_err(failed)?;
        // The journal itself is locked: a file beside it can be deleted, and is another one under another name.
        lock_file(&database, path)?;
        let is = database.metadata().map_err(failed)?;
        check_private(path, &is)?;
        let marker = open_private(&sibling_path(&real, ".lock")).map_err(failed)?;
        // An executor of an earlier format locks the marker alone.
        lock_file(&marker, path)?;
        // SQLite gives new files the mode of the journal, but files that a crash left keep the mode that they have.
        for file in sidecar_files(&real).iter().filter(|file| file.exists()) {
            let file = OpenOptions::new().read(true).write(true).open(file).map_err(failed)?;
            fchmod(&file, Mode::from_raw_mode(PRIVATE_MODE)).map_err(|error| failed(error.into()))?;
        }
        fchmod(&marker, Mode::from_raw_mode(PRIVATE_MODE)).map_err(|error| failed(error.into()))?;
        let (path, boot, others) = (path.to_owned(), boot_id(), [None; 2]);
        let files = Self { path, real, database, marker, boot, bytes: is.len(), sidecars: others };
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

    /// Compares the files at the journal's place with the open ones.
    ///
    /// # Errors
    /// The difference.
    pub(super) fn check(&mut self) -> Result<(), ReplacedError> {
        self.bytes = self.check_database()?;
        for (nth, file) in sidecar_files(&self.real).iter().enumerate() {
            let Some(known) = self.sidecars.get_mut(nth) else { continue };
            let is = file.metadata().ok().map(|is| (inode(&is), is.len()));
            match (*known, is) {
                (None, is) => *known = is,
                // SQLite overwrites its log in place after a checkpoint and does not shorten it, so a shorter log has
                // lost records.
                (Some((was, had)), Some((is, bytes))) if was == is && bytes >= had => {
                    *known = Some((is, bytes))
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
        // SQLite's own `HAS_MOVED` compares the inode alone, of the database alone: a cut file and a second name pass
        // it.
        let open = self.database.metadata().map_err(|error| self.inspect_error(error))?;
        // The operator's path is looked up again, so that a renamed folder or a redirected link counts as well.
        let there = match self.path.metadata() {
            Ok(there) => there,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(self.replaced_error("it was removed, or its folder was renamed"));
            }
            Err(error) => return Err(self.inspect_error(error)),
        };
        match () {
            () if inode(&there) != inode(&open) => {
                Err(self.replaced_error("another file was put in its place"))
            }
            // SQLite keeps a log for each name, so a process under the second name would not see what this one writes.
            () if open.nlink() != 1 => Err(self.replaced_error(format!("it has {} names", open.nlink()))),
            // Pruned pages are used again, so a journal that is served never becomes shorter by itself.
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
        ReplacedError { source: Some(error), ..self.replaced_error("it cannot be looked at") }
    }

    /// Writes the last record into the marker. A failure leaves an earlier record there, which is valid as well.
    pub(super) fn update_marker(&self, number: i64, hash: &Hash) {
        // The marker is not synced: after a power cut it may name an earlier record, and a commit waits for the disk
        // only once.
        let _less_is_known = write_marker(&self.marker, number, hash, &self.boot);
    }

    /// The content of the marker; `None` when it cannot be read.
    pub(super) fn read_marker(&self) -> Option<Marker> {
        parse_marker(&self.marker)
    }
}

/// Writes a marker; its length is constant.
pub(super) fn write_marker(marker: &File, number: i64, hash: &Hash, boot: &str) -> std::io::Result<()> {
    // The number has a fixed width, so that one write replaces the marker and leaves no rest of a longer one.
    let text = format!("{MARKER_PREFIX} {number:020} {} {boot}", to_hex(hash));
    // A power cut may tear the write: the digest makes such a marker unreadable instead of wrong.
    let check = to_hex(&digest(text.as_bytes()).0);
    marker.write_all_at(format!("{text} {check}\n").as_bytes(), 0)
}

/// The content of the marker beside a journal that is only read.
pub(super) fn read_marker(journal: &Path) -> Option<Marker> {
    let real = resolve_links(journal).ok()?;
    parse_marker(&File::open(sibling_path(&real, ".lock")).ok()?)
}

fn parse_marker(marker: &File) -> Option<Marker> {
    let mut text = String::new();
    let mut from_the_start = marker.try_clone().ok()?;
    std::io::Seek::rewind(&mut from_the_start).ok()?;
    from_the_start.take(MAX_MARKER_BYTES).read_to_string(&mut text).ok()?;
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
    // Without an id, all boots look the same, so that no loss of records is ever taken for that of a power cut.
    if id.is_empty() { "unknown".to_owned() } else { id.to_owned() }
}

/// Locks a file for this process, under whatever name it was opened. The lock ends with the descriptor.
pub(super) fn lock_file(file: &File, journal: &Path) -> Result<(), OpenError> {
    // `flock` is independent of SQLite's POSIX locks on the same file, and ends with the process however that ends.
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse(journal.to_owned())),
        Err(error) => Err(OpenError::from_io(journal, error.into())),
    }
}

/// Checks that no other user may access the journal, and that it has one name.
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

/// Opens a file for this user alone, and creates it if it does not exist.
pub(super) fn open_private(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(PRIVATE_MODE).open(path)
}

/// Resolves symbolic links, also of a file that does not exist yet.
pub(super) fn resolve_links(path: &Path) -> std::io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        resolved => return resolved,
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(ErrorKind::InvalidFilename)?;
    Ok(folder.canonicalize()?.join(name))
}

/// The file that shows that there was a journal at a place without one.
fn find_sign_of_journal(path: &Path, real: &Path) -> Option<PathBuf> {
    let mut signs = vec![sibling_path(real, ".lock"), sibling_path(real, "-wal"), sibling_path(real, "-shm")];
    // A dangling link, or the remains of a file that was truncated to nothing.
    signs.extend(path.is_symlink().then(|| path.to_owned()));
    signs.into_iter().find(|sign| sign.symlink_metadata().is_ok())
}

/// Makes the journal under another name, and renames it when it is complete.
fn create_atomically(
    real: &Path,
    create: impl FnOnce(&Path) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    // A crash in the middle leaves a draft and no journal without tables, which would look like a damaged one.
    let draft = draft_path(real);
    let failed = |error: std::io::Error| OpenError::from_io(real, error);
    let made = open_private(&draft).map_err(failed).and_then(|_file| create(&draft));
    let made = made.and_then(|()| match rename_new(&draft, real) {
        // Another start was faster, and its lock decides.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        renamed => renamed.map_err(failed),
    });
    for file in [
        draft.clone(),
        sibling_path(&draft, "-wal"),
        sibling_path(&draft, "-shm"),
        sibling_path(&draft, "-journal"),
    ] {
        let _is_gone = std::fs::remove_file(file);
    }
    made
}

/// The path beside a journal for one that is not complete.
pub(super) fn draft_path(real: &Path) -> PathBuf {
    // The process id keeps the drafts of two starts at the same moment apart.
    sibling_path(real, &format!(".draft-{}", std::process::id()))
}

/// Renames a file to a name that no file has, atomically.
pub(super) fn rename_new(from: &Path, to: &Path) -> std::io::Result<()> {
    // Without the flag, a file that got the name in between would be lost: the journal of a faster start, for example.
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?;
    // A rename survives a power cut only once its folder is on the disk.
    sync_folder_of(to)
}

/// Waits until the entries of a file's folder are on the disk.
pub(super) fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Renames the remains of a journal, so that SQLite does not put its log into another one.
pub(super) fn set_aside_remains(real: &Path) -> std::io::Result<()> {
    if real.metadata().is_ok_and(|file| file.len() == 0) {
        std::fs::remove_file(real)?;
    }
    // SQLite rebuilds this file from the log, so nothing is lost with it.
    let _is_not_there = std::fs::remove_file(sibling_path(real, "-shm"));
    let log = sibling_path(real, "-wal");
    if !log.exists() {
        return Ok(());
    }
    // The log may be the only place of the last records, so it is set aside and not removed.
    rename_new(&log, &find_free_name(&log, "lost"))
}

/// An unused name: `FILE.WORD-1`, or a higher number.
pub(super) fn find_free_name(path: &Path, word: &str) -> PathBuf {
    let names = (1_u32..).map(|nth| sibling_path(path, &format!(".{word}-{nth}")));
    // A dangling link takes its name as well.
    let mut free = names.filter(|name| name.symlink_metadata().is_err());
    free.next().unwrap_or_else(|| sibling_path(path, &format!(".{word}")))
}

/// The files of a journal that grow with it.
pub(super) fn data_files(path: &Path) -> [PathBuf; 2] {
    [path.to_owned(), sibling_path(path, "-wal")]
}

/// The other files of SQLite beside a journal.
pub(super) fn sidecar_files(real: &Path) -> [PathBuf; 2] {
    [sibling_path(real, "-wal"), sibling_path(real, "-shm")]
}

/// A path beside another, with `ending` appended to its name.
pub(super) fn sibling_path(path: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
