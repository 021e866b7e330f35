//! The files that say who is trusted: small, regular, and nobody else's to read or to change.

use rustix::fs::{Mode, OFlags};
use std::fs::{File, Metadata};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use zeroize::Zeroizing;

/// The most bytes of a file with one key.
pub(super) const MAX_KEY_FILE_BYTES: u64 = 16 << 10;
/// The most bytes of a file of secrets, which may be those of many agents.
const MAX_SECRETS_BYTES: u64 = 1 << 20;
/// The most bytes of a file with certificates.
const MAX_BUNDLE_BYTES: u64 = 4 << 20;

/// Why a file cannot be used. No message repeats anything of what is in it.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read or made.
    #[error("`{path}`: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said. Part of the sentence, so no `source`, which a chain would say again.
        error: std::io::Error,
    },
    /// A file that should be made anew.
    #[error("`{0}` is there already, and is left as it is: remove it, or name another file")]
    Exists(PathBuf),
    /// It is a folder, a device, or far too large.
    #[error("`{0}`: this is not a file of at most {1} bytes")]
    NotSmall(PathBuf, u64),
    /// Others could read a secret, or change what is trusted.
    #[error("`{path}` {reason}")]
    NotPrivate {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: &'static str,
    },
}

impl FileError {
    pub(super) fn io(path: &Path, error: impl Into<std::io::Error>) -> Self {
        Self::Io { path: path.to_owned(), error: error.into() }
    }
}

/// Reads a file that nobody but its owner can read.
///
/// # Ambient Authority
/// Reads the file.
///
/// # Errors
/// [`FileError`], also when others can read it.
pub fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let (text, metadata) = read(path, MAX_SECRETS_BYTES)?;
    let reason = if !is_ours(&metadata) {
        "belongs to another user, who can change it"
    } else if metadata.mode() & 0o077 != 0 {
        "holds a secret and others may read it: run `chmod 600` on it"
    } else {
        return Ok(text);
    };
    Err(FileError::NotPrivate { path: path.to_owned(), reason })
}

/// Reads a file that nobody but its owner can change, such as certificates.
///
/// # Ambient Authority
/// Reads the file.
///
/// # Errors
/// [`FileError`], also when others can change it.
pub fn read_trusted(path: &Path) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let (text, metadata) = read(path, MAX_BUNDLE_BYTES)?;
    check_unchanged_by_others(path, &metadata)?;
    Ok(text)
}

/// Reads a file that nobody but its owner can change, in a folder where nobody else can put another one in its
/// place.
pub(super) fn read_guarded(path: &Path, most: u64) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let folder = folder_of(path);
    let metadata = std::fs::metadata(folder).map_err(|error| FileError::io(folder, error))?;
    check_unchanged_by_others(folder, &metadata)?;
    let (text, metadata) = read(path, most)?;
    check_unchanged_by_others(path, &metadata)?;
    Ok(text)
}

/// The folder of a file.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Reads a regular file of at most `most` bytes, and what the system says of the very file that was read.
pub(super) fn read(path: &Path, most: u64) -> Result<(Zeroizing<Vec<u8>>, Metadata), FileError> {
    let io = |error: std::io::Error| FileError::io(path, error);
    // Not to wait for the other end of a FIFO.
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| FileError::io(path, error))?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() || metadata.len() > most {
        return Err(FileError::NotSmall(path.to_owned(), most));
    }
    let size = usize::try_from(metadata.len().saturating_add(1)).unwrap_or(usize::MAX);
    let mut text = Zeroizing::new(Vec::with_capacity(size));
    file.take(most).read_to_end(&mut text).map_err(io)?;
    Ok((text, metadata))
}

/// Makes a new file, which is there as a whole or not at all.
pub(super) fn create(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    let file = written(path, text, mode)?;
    file.persist_noclobber(path).map(drop).map_err(|error| {
        let exists = error.error.kind() == std::io::ErrorKind::AlreadyExists;
        if exists { FileError::Exists(path.to_owned()) } else { FileError::io(path, error.error) }
    })
}

/// Puts another text in the place of a file: whoever reads it gets the old one or the new one.
pub(super) fn replace(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    let file = written(path, text, mode)?;
    file.persist(path).map(drop).map_err(|error| FileError::io(path, error.error))
}

/// A file with this text beside `path`.
fn written(path: &Path, text: &str, mode: u32) -> Result<NamedTempFile, FileError> {
    let io = |error: std::io::Error| FileError::io(path, error);
    let folder = folder_of(path);
    let mut file = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(mode))
        .tempfile_in(folder)
        .map_err(|error| FileError::io(folder, error))?;
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(io)?;
    Ok(file)
}

/// Says that nobody but its owner may change what says who is trusted.
pub(super) fn check_unchanged_by_others(path: &Path, metadata: &Metadata) -> Result<(), FileError> {
    let reason = if !is_ours(metadata) {
        "says who is trusted and belongs to another user"
    } else if metadata.mode() & 0o022 != 0 {
        "says who is trusted and others may change it: run `chmod go-w` on it"
    } else {
        return Ok(());
    };
    Err(FileError::NotPrivate { path: path.to_owned(), reason })
}

/// Whether a file belongs to this user or to root.
fn is_ours(metadata: &Metadata) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid())
}
