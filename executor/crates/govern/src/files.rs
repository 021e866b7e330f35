//! Reads and writes files that define trust, such as keys and callers: small regular files, protected from other users.

use rustix::fs::{Mode, OFlags};
use std::fs::{File, Metadata};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use zeroize::Zeroizing;

/// Maximum size of a file with one key, in bytes.
pub(super) const MAX_KEY_FILE_BYTES: u64 = 16 << 10;
/// Maximum size of a file with the secrets of many agents, in bytes.
const MAX_SECRETS_BYTES: u64 = 1 << 20;
/// Maximum size of a file with certificates, in bytes.
const MAX_BUNDLE_BYTES: u64 = 4 << 20;

/// The reason why a file cannot be used. No message repeats any of its content.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read or created.
    #[error("`{path}`: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error. It is part of the message; as a `source` it would be printed twice in an error
        /// chain.
        error: std::io::Error,
    },
    /// The file to create exists already.
    #[error("`{0}` exists already and was not changed: remove it, or name another file")]
    Exists(PathBuf),
    /// The path is a folder or a device, or the file is too large.
    #[error("`{0}` is not a regular file of at most {1} bytes")]
    NotSmall(PathBuf, u64),
    /// Other users can read a secret, or change a file that defines trust.
    #[error("`{path}` {reason}")]
    NotPrivate {
        /// The file or folder.
        path: PathBuf,
        /// The problem and its remedy.
        reason: &'static str,
    },
}

impl FileError {
    pub(super) fn io(path: &Path, error: impl Into<std::io::Error>) -> Self {
        Self::Io { path: path.to_owned(), error: error.into() }
    }
}

/// Reads a file of at most 1 MiB that only its owner can read.
///
/// # Ambient Authority
/// Reads the file.
///
/// # Errors
/// [`FileError`], also when other users can read the file.
pub fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let (text, metadata) = read(path, MAX_SECRETS_BYTES)?;
    let reason = if !is_owned_by_this_user_or_root(&metadata) {
        "belongs to another user, who can change it"
    } else if metadata.mode() & 0o077 != 0 {
        "contains a secret that other users may read: run `chmod 600` on it"
    } else {
        return Ok(text);
    };
    Err(FileError::NotPrivate { path: path.to_owned(), reason })
}

/// Reads a file of at most 4 MiB that only its owner can change, such as certificates.
///
/// # Ambient Authority
/// Reads the file.
///
/// # Errors
/// [`FileError`], also when other users can change the file.
pub fn read_trusted(path: &Path) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let (text, metadata) = read(path, MAX_BUNDLE_BYTES)?;
    check_unchanged_by_others(path, &metadata)?;
    Ok(text)
}

/// Reads a file that only its owner can change, in a folder where other users cannot replace the file.
pub(super) fn read_guarded(path: &Path, max_bytes: u64) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let folder = parent_folder(path);
    let metadata = std::fs::metadata(folder).map_err(|error| FileError::io(folder, error))?;
    check_unchanged_by_others(folder, &metadata)?;
    let (text, metadata) = read(path, max_bytes)?;
    check_unchanged_by_others(path, &metadata)?;
    Ok(text)
}

pub(super) fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Reads a regular file of at most `max_bytes` bytes, and the metadata of the same open file.
pub(super) fn read(path: &Path, max_bytes: u64) -> Result<(Zeroizing<Vec<u8>>, Metadata), FileError> {
    let io = |error: std::io::Error| FileError::io(path, error);
    // Without NONBLOCK, opening a FIFO would wait for a writer.
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| FileError::io(path, error))?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() || metadata.len() > max_bytes {
        return Err(FileError::NotSmall(path.to_owned(), max_bytes));
    }
    let size = usize::try_from(metadata.len().saturating_add(1)).unwrap_or(usize::MAX);
    let mut text = Zeroizing::new(Vec::with_capacity(size));
    file.take(max_bytes).read_to_end(&mut text).map_err(io)?;
    Ok((text, metadata))
}

/// Creates a new file atomically: it exists completely or not at all.
pub(super) fn create(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    let file = write_temporary(path, text, mode)?;
    file.persist_noclobber(path).map(drop).map_err(|error| {
        let already_exists = error.error.kind() == std::io::ErrorKind::AlreadyExists;
        if already_exists { FileError::Exists(path.to_owned()) } else { FileError::io(path, error.error) }
    })
}

/// Replaces the text of a file that only its owner can read, atomically.
///
/// # Ambient Authority
/// Writes the file.
///
/// # Errors
/// [`FileError`] if it cannot be written.
pub fn replace_private(path: &Path, text: &str) -> Result<(), FileError> {
    replace(path, text, 0o600)
}

/// Replaces the text of a file atomically: a reader gets the old text or the new one.
pub(super) fn replace(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    let file = write_temporary(path, text, mode)?;
    file.persist(path).map(drop).map_err(|error| FileError::io(path, error.error))
}

/// Writes a synced temporary file beside `path`.
fn write_temporary(path: &Path, text: &str, mode: u32) -> Result<NamedTempFile, FileError> {
    let io = |error: std::io::Error| FileError::io(path, error);
    let folder = parent_folder(path);
    let mut file = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(mode))
        .tempfile_in(folder)
        .map_err(|error| FileError::io(folder, error))?;
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(io)?;
    Ok(file)
}

/// Checks that only root or this user may change a file that defines trust.
pub(super) fn check_unchanged_by_others(path: &Path, metadata: &Metadata) -> Result<(), FileError> {
    let reason = if !is_owned_by_this_user_or_root(metadata) {
        "defines who is trusted and belongs to another user: run `chown` on it"
    } else if metadata.mode() & 0o022 != 0 {
        "defines who is trusted and other users may change it: run `chmod go-w` on it"
    } else {
        return Ok(());
    };
    Err(FileError::NotPrivate { path: path.to_owned(), reason })
}

fn is_owned_by_this_user_or_root(metadata: &Metadata) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid())
}
