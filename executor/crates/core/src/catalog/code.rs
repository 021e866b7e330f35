//! Memory files for code, and reading files in a tool's folder.
//!
//! Compiled code is in sealed memory files: all zygotes map the same pages, and the server has no copy in its
//! heap.

use super::CatalogError;
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Result, Write};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

/// The size of one copied chunk, in bytes.
const CHUNK_BYTES: usize = 256 << 10;
/// The delay between two attempts to seal a file, and the maximum number of further attempts.
const SEAL_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_SEAL_RETRIES: u32 = 40;

pub(super) fn memory_file() -> Result<File> {
    Ok(File::from(memfd_create("a2g-code", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?))
}

/// Seals a memory file, so that no process can write, grow or shrink it.
pub(super) fn seal(file: &File) -> Result<()> {
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    let mut tries = 0;
    // The kernel itself may hold references to pages for a moment, for example while it moves them.
    while let Err(error) = fcntl_add_seals(file, seals) {
        if error != Errno::BUSY || tries == MAX_SEAL_RETRIES {
            return Err(error.into());
        }
        tries += 1;
        std::thread::sleep(SEAL_RETRY_DELAY);
    }
    Ok(())
}

/// Creates a sealed memory file with these bytes.
///
/// # Errors
/// If the machine has no memory for the file.
pub fn create_sealed(bytes: &[u8]) -> Result<File> {
    let mut file = memory_file()?;
    file.write_all(bytes)?;
    seal(&file)?;
    Ok(file)
}

pub(super) fn create_sealed_copy(from: &File, offset: u64, length: u64) -> Result<File> {
    let mut file = memory_file()?;
    copy(from, offset, length, &mut file)?;
    seal(&file)?;
    Ok(file)
}

/// Copies a part of a file without moving the file's position.
pub(super) fn copy(from: &File, offset: u64, length: u64, to: &mut impl Write) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = offset;
    let end = offset.saturating_add(length);
    while at < end {
        let chunk_length = usize::try_from(end - at).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        let Some(chunk) = chunk.get_mut(..chunk_length) else { break };
        from.read_exact_at(chunk, at)?;
        to.write_all(chunk)?;
        at += chunk_length as u64;
    }
    Ok(())
}

/// Reads a regular file of at most `max_bytes`.
pub(super) fn read_regular_file(path: &Path, max_bytes: u64) -> std::result::Result<Vec<u8>, CatalogError> {
    read_file(path, max_bytes, OFlags::empty())
}

/// Reads a file whose bytes are copied. A symbolic link is refused: it could point to any file that the reader may read.
pub(super) fn read_own_file(path: &Path, max_bytes: u64) -> std::result::Result<Vec<u8>, CatalogError> {
    read_file(path, max_bytes, OFlags::NOFOLLOW)
}

fn read_file(path: &Path, max_bytes: u64, flags: OFlags) -> std::result::Result<Vec<u8>, CatalogError> {
    let io = |error: std::io::Error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => {
            CatalogError::NotAFile(path.to_owned())
        }
        Some(_) | None => CatalogError::io(path, error),
    };
    // Without NONBLOCK, opening a FIFO would wait for a writer.
    let flags = i32::try_from((flags | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(CatalogError::NotAFile(path.to_owned()));
    }
    let mut bytes = Vec::new();
    let too_large = |bytes| CatalogError::TooLarge { path: path.to_owned(), bytes, max_bytes };
    if metadata.len() > max_bytes {
        return Err(too_large(metadata.len()));
    }
    // The file may grow while it is read.
    let length = file.take(max_bytes + 1).read_to_end(&mut bytes).map_err(io)? as u64;
    if length > max_bytes { Err(too_large(length)) } else { Ok(bytes) }
}
