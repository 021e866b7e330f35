//! What killed processes left of copies and of new journals, and its removal.
//!
//! ```text
//! journal.db.draft-PID   a new or restored journal that has not got its name
//! journal.db.copy-PID    a link to a backup that has not got its name, in any folder
//! ```
//! The process that writes such a file locks it, so a file that can be locked is nobody's.

use super::files::{lock_file, resolve_links, sibling_path, sidecar_files};
use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The end of the name of a backup that is being written.
const PART: &str = ".part";
/// The maximum number of attempts to create a file that other processes sweep meanwhile.
const MAX_TRIES: u32 = 10;

/// Removes what killed processes left beside a journal, and the incomplete backups of it. Files that cannot be removed
/// are left.
///
/// # Ambient Authority
/// Reads the folder of `journal`, follows links of that name, and removes files.
pub fn sweep(journal: &Path) {
    let Ok(real) = resolve_links(journal) else { return };
    let Some(folder) = real.parent() else { return };
    let Some(file_name) = real.file_name() else { return };
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let name = file_name.to_string_lossy();
    let is_of = |file: &str, kind: &str| {
        let process = file.strip_prefix(&*name).and_then(|rest| rest.strip_prefix(kind));
        process.is_some_and(|process| process.parse::<u32>().is_ok())
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        if is_of(&file, ".draft-") {
            remove_unlocked(&path);
        } else if is_of(&file, ".copy-")
            && let Ok(part) = std::fs::read_link(&path)
            && part.to_string_lossy().ends_with(PART)
            && (remove_unlocked(&part) || !part.exists())
        {
            let _already_absent = std::fs::remove_file(&path);
        }
    }
}

/// Removes a copy and its other files, unless a process has locked it. Returns `true` if it was removed.
fn remove_unlocked(copy: &Path) -> bool {
    let is_file = copy.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
    let file = if is_file { File::options().read(true).write(true).open(copy).ok() } else { None };
    let is_free = file.as_ref().is_some_and(|file| lock_file(file, copy).is_ok());
    if is_free {
        tracing::info!(file = %copy.display(), "removing the incomplete copy of a process that was killed");
        remove_copy(copy);
    }
    is_free
}

/// Removes the files of an incomplete copy.
pub(super) fn remove_copy(copy: &Path) {
    // SQLite would apply a log that is left alone to the next file of that name.
    for file in sidecar_files(copy).into_iter().chain([sibling_path(copy, "-journal"), copy.to_owned()]) {
        let _already_absent = std::fs::remove_file(file);
    }
}

/// Creates a file with mode 0600, and locks it until the returned descriptor is closed. Removes one that a killed process
/// left.
///
/// # Errors
/// The system's, and [`ErrorKind::AlreadyExists`] if another process writes this file.
pub(super) fn create_locked(path: &Path) -> Result<File> {
    for _ in 0..MAX_TRIES {
        match File::options().create_new(true).read(true).write(true).mode(0o600).open(path) {
            Ok(file) => {
                // A sweep may have removed the file before it was locked.
                let is_locked = lock_file(&file, path).is_ok();
                let is_same = |named: Metadata| file.metadata().is_ok_and(|open| open.ino() == named.ino());
                if is_locked && path.symlink_metadata().is_ok_and(is_same) {
                    return Ok(file);
                }
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists && remove_unlocked(path) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::from(ErrorKind::AlreadyExists))
}

/// The link to a backup that is being written, which leads a sweep to it. Removed when this is dropped.
pub(super) struct CopyLink(PathBuf);

impl CopyLink {
    /// Makes the link beside the journal. A journal in a folder that cannot be written has no link.
    pub(super) fn create(journal: &Path, part: &Path) -> Option<Self> {
        let real = resolve_links(journal).ok()?;
        let link = Self(sibling_path(&real, &format!(".copy-{}", std::process::id())));
        let part = std::path::absolute(part).ok()?;
        std::os::unix::fs::symlink(part, &link.0).ok().map(|()| link)
    }
}

impl Drop for CopyLink {
    fn drop(&mut self) {
        let _already_absent = std::fs::remove_file(&self.0);
    }
}

/// The name of a backup while it is written.
pub(super) fn part_path(backup: &Path) -> PathBuf {
    sibling_path(backup, PART)
}
