//! Downloads the parts of a package: small ones into memory, and a module into a file, resuming an earlier download.
//!
//! ```text
//! cache/<digest>.partial ─ every byte, counted ─▶ the size is reached ─ SHA-256 ─┬─ equal ─▶ renamed
//!        ▲      │                                                                └─ other ─▶ removed
//!        └──────┴─ interrupted: kept, and continued with a Range
//! ```
//! A partial file is locked while a process writes it. Only this user can read it, and no command treats it as a tool.

use super::client::{Answer, Outgoing, RegistryClient, shown};
use super::error::RegistryError;
use super::progress::Progress;
use a2g_types::tool::Digest;
use http::header::CONTENT_RANGE;
use http::{Method, StatusCode};
use rustix::fs::{FlockOperation, OFlags, flock};
use sha2::Digest as _;
use sha2::Sha256;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;

/// The maximum number of times that one process resumes the download of a module.
const MAX_ATTEMPTS: usize = 5;
/// The pause before a download is resumed.
const PAUSE: Duration = Duration::from_millis(500);
/// The prefix of a folder in which a tool is assembled.
pub(super) const FOLDER_PREFIX: &str = ".pulled-";
/// The suffix of a partial module.
const PARTIAL_SUFFIX: &str = ".partial";
/// The age at which leftovers of earlier processes are removed from the cache.
const MAX_LEFTOVER_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// The size of the chunks in which a file is read, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Reads a small part of a package, and checks its size and digest.
pub(super) async fn read_blob(
    client: &mut RegistryClient,
    digest: Digest,
    bytes: u64,
    what: &str,
) -> Result<Vec<u8>, RegistryError> {
    let answer = request(client, digest, None, what, &[StatusCode::OK]).await?;
    check_length(client, &answer, bytes)?;
    let host = client.host();
    let body = answer.read(bytes).await?;
    if body.len() as u64 != bytes {
        return Err(RegistryError::Length {
            host,
            what: what.to_owned(),
            found: body.len() as u64,
            expected: bytes,
        });
    }
    check_digest(what, Digest::compute(&body), digest)?;
    Ok(body)
}

/// Refuses content whose digest differs from the requested one.
pub(super) fn check_digest(what: &str, found: Digest, expected: Digest) -> Result<(), RegistryError> {
    if found == expected {
        return Ok(());
    }
    let found = found.to_string();
    let expected = expected.to_string();
    Err(RegistryError::Digest { what: what.to_owned(), found, expected })
}

/// Removes from the cache what killed processes and abandoned downloads have left.
///
/// # Ambient Authority
/// Reads the names in `cache`, and removes files and folders there.
pub(super) fn remove_leftovers(cache: &Path, now: OffsetDateTime) {
    for entry in std::fs::read_dir(cache).into_iter().flatten().flatten() {
        let file_name = entry.file_name();
        let name = file_name.to_string_lossy();
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        // A file may have any time, even one outside the range of dates.
        let age = changed.ok().and_then(|changed| SystemTime::from(now).duration_since(changed).ok());
        let is_old = age.is_some_and(|age| age > MAX_LEFTOVER_AGE);
        // Failing to remove a leftover is harmless.
        let _removed = if is_old && name.starts_with(FOLDER_PREFIX) {
            std::fs::remove_dir_all(entry.path())
        } else if is_old && name.ends_with(PARTIAL_SUFFIX) {
            std::fs::remove_file(entry.path())
        } else {
            Ok(())
        };
    }
}

/// Downloads a module to `target`, which must be on the file system of `cache`. An interrupted download is resumed, in
/// this call or the next one.
///
/// # Ambient Authority
/// Writes a partial file in `cache`, and `target`.
pub(super) async fn download(
    client: &mut RegistryClient,
    digest: Digest,
    bytes: u64,
    cache: &Path,
    target: &Path,
) -> Result<(), RegistryError> {
    let path = cache.join(format!("{digest}{PARTIAL_SUFFIX}"));
    let what = format!("the module (sha256:{digest})");
    let mut partial = Partial::open(&path, bytes, &what)?;
    let mut progress = Progress::start("module", bytes);
    let mut attempts = 0;
    // A complete file may come from an earlier process, so its digest is checked as well.
    let mut was_resumed = partial.done > 0;
    loop {
        if partial.done < bytes {
            match fetch_rest(client, digest, bytes, &what, &mut partial, &mut progress).await {
                Ok(()) => {}
                Err(error @ (RegistryError::Interrupted { .. } | RegistryError::Silent { .. })) => {
                    attempts += 1;
                    if attempts < MAX_ATTEMPTS {
                        was_resumed = true;
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                    let done = partial.done;
                    let total = bytes;
                    return Err(RegistryError::Partial { what, done, total, reason: Box::new(error) });
                }
                Err(error @ RegistryError::Unreachable { .. }) if partial.done > 0 => {
                    let done = partial.done;
                    let total = bytes;
                    return Err(RegistryError::Partial { what, done, total, reason: Box::new(error) });
                }
                Err(error) => return Err(error),
            }
        }
        match check_digest(&what, partial.digest(), digest) {
            Ok(()) => break,
            // The bytes of the earlier download may be wrong, so the whole module is downloaded once more.
            Err(_) if was_resumed => {
                was_resumed = false;
                partial.restart()?;
            }
            Err(error) => {
                partial.remove()?;
                return Err(error);
            }
        }
    }
    progress.end(bytes);
    partial.finish(target)
}

/// Requests the bytes that the file does not have, and appends them.
async fn fetch_rest(
    client: &mut RegistryClient,
    digest: Digest,
    bytes: u64,
    what: &str,
    partial: &mut Partial<'_>,
    progress: &mut Progress,
) -> Result<(), RegistryError> {
    let from_byte = Some(partial.done).filter(|done| *done > 0);
    let accepted = [StatusCode::OK, StatusCode::PARTIAL_CONTENT, StatusCode::RANGE_NOT_SATISFIABLE];
    let mut answer = request(client, digest, from_byte, what, &accepted).await?;
    if from_byte.is_some() && answer.status == StatusCode::RANGE_NOT_SATISFIABLE {
        partial.restart()?;
        answer = request(client, digest, None, what, &[StatusCode::OK]).await?;
    }
    match (answer.status, from_byte) {
        (StatusCode::PARTIAL_CONTENT, Some(first)) => check_range(&answer, first, bytes)?,
        // The registry ignores the header `Range` and sends the whole module.
        (StatusCode::OK, _) => partial.restart()?,
        (status, _) => {
            let reason = format!("the status of a full download is {status}");
            return Err(RegistryError::Invalid { url: shown(&answer.url), reason });
        }
    }
    let expected = bytes - partial.done;
    if let Err(error) = check_length(client, &answer, expected) {
        partial.remove()?;
        return Err(error);
    }
    if answer.is_web_page() {
        return Err(RegistryError::WebPage { url: shown(&answer.url) });
    }
    let host = client.host();
    let too_large =
        || RegistryError::TooLarge { host: host.clone(), what: what.to_owned(), max_bytes: bytes };
    let reading = answer.for_each_part(expected, |part| {
        if partial.done + part.len() as u64 > bytes {
            return Err(too_large());
        }
        partial.append(part)?;
        progress.show(partial.done);
        Ok(())
    });
    let read = reading.await;
    if let Err(RegistryError::TooLarge { .. }) = &read {
        partial.remove()?;
    }
    read?;
    if partial.done < bytes {
        // Without `Content-Length`, the end of the connection is the end of the body.
        let reason = "the connection ended before the last byte".to_owned();
        return Err(RegistryError::Interrupted { host, what: what.to_owned(), reason });
    }
    Ok(())
}

async fn request(
    client: &mut RegistryClient,
    digest: Digest,
    from_byte: Option<u64>,
    what: &str,
    statuses: &[StatusCode],
) -> Result<Answer, RegistryError> {
    let url = client.url(&format!("blobs/sha256:{digest}"));
    let outgoing = Outgoing { from_byte, ..Outgoing::new(Method::GET, url, what) };
    client.expect(&outgoing, statuses).await
}

/// Refuses a response whose announced size differs from the manifest.
fn check_length(client: &RegistryClient, answer: &Answer, expected: u64) -> Result<(), RegistryError> {
    match answer.announced_bytes() {
        Some(found) if found != expected => {
            if answer.is_web_page() {
                return Err(RegistryError::WebPage { url: shown(&answer.url) });
            }
            Err(RegistryError::Length { host: client.host(), what: answer.what.clone(), found, expected })
        }
        Some(_) | None => Ok(()),
    }
}

/// Refuses a range that does not begin at the end of the file.
fn check_range(answer: &Answer, first: u64, bytes: u64) -> Result<(), RegistryError> {
    let range = answer.headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let expected = format!("bytes {first}-{}/", bytes.saturating_sub(1));
    if range.starts_with(&expected) {
        return Ok(());
    }
    let reason = format!("its `Content-Range` is not `{expected}{bytes}`");
    Err(RegistryError::Invalid { url: shown(&answer.url), reason })
}

/// The file of a partial module.
struct Partial<'a> {
    path: &'a Path,
    file: File,
    hash: Sha256,
    /// The size of the file, in bytes.
    done: u64,
}

impl<'a> Partial<'a> {
    /// Opens or creates the file, and hashes its content.
    fn open(path: &'a Path, bytes: u64, what: &str) -> Result<Self, RegistryError> {
        let io = |error| RegistryError::Io { path: path.to_owned(), error };
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        // A link in the cache could lead to another file of this user.
        #[allow(clippy::cast_possible_wrap, reason = "the flags of the system are a C `int`")]
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(path).map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(RegistryError::Locked { what: what.to_owned() });
            }
            Err(error) => return Err(io(error.into())),
        }
        // The previous holder of the lock may have renamed or removed the file.
        let is_named = |named: Metadata| Ok(named.ino() == file.metadata()?.ino());
        if !path.symlink_metadata().and_then(is_named).unwrap_or(false) {
            return Err(RegistryError::Locked { what: what.to_owned() });
        }
        let mut partial = Self { path, file, hash: Sha256::new(), done: 0 };
        if partial.file.metadata().map_err(io)?.len() > bytes {
            partial.restart()?;
        }
        partial.file.seek(SeekFrom::Start(0)).map_err(io)?;
        let mut part = vec![0; CHUNK_BYTES];
        loop {
            let read = partial.file.read(&mut part).map_err(io)?;
            let Some(part) = part.get(..read).filter(|part| !part.is_empty()) else { return Ok(partial) };
            partial.hash.update(part);
            partial.done += read as u64;
        }
    }

    fn append(&mut self, part: &[u8]) -> Result<(), RegistryError> {
        self.file.write_all(part).map_err(|error| RegistryError::Io { path: self.path.to_owned(), error })?;
        self.hash.update(part);
        self.done += part.len() as u64;
        Ok(())
    }

    /// Empties the file.
    fn restart(&mut self) -> Result<(), RegistryError> {
        self.file.set_len(0).map_err(|error| RegistryError::Io { path: self.path.to_owned(), error })?;
        self.hash = Sha256::new();
        self.done = 0;
        Ok(())
    }

    fn remove(&self) -> Result<(), RegistryError> {
        std::fs::remove_file(self.path)
            .map_err(|error| RegistryError::Io { path: self.path.to_owned(), error })
    }

    fn digest(&self) -> Digest {
        Digest(self.hash.clone().finalize().into())
    }

    /// Renames the file, which is complete and verified.
    fn finish(self, target: &Path) -> Result<(), RegistryError> {
        let renamed = self.file.sync_all().and_then(|()| std::fs::rename(self.path, target));
        renamed.map_err(|error| RegistryError::Io { path: target.to_owned(), error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_leftovers_are_removed() {
        let cache = tempfile::tempdir().unwrap();
        std::fs::create_dir(cache.path().join(".pulled-x")).unwrap();
        for name in ["a.partial", "a.compiled-5"] {
            std::fs::write(cache.path().join(name), "").unwrap();
        }
        let changed = std::fs::metadata(cache.path().join("a.partial")).unwrap().modified().unwrap();
        let count = || std::fs::read_dir(cache.path()).unwrap().count();
        remove_leftovers(cache.path(), OffsetDateTime::from(changed) + MAX_LEFTOVER_AGE / 2);
        assert_eq!(count(), 3);
        remove_leftovers(cache.path(), OffsetDateTime::from(changed) + MAX_LEFTOVER_AGE * 2);
        assert_eq!(count(), 1);
        assert!(cache.path().join("a.compiled-5").exists());
    }
}
