//! The report log of the local governor: one JSON object on each line of a file.
//!
//! ```text
//! record ─ channel ─▶ thread: all pending reports ─ write ─ fdatasync ─▶ each caller gets the result
//! ```
//! A recorded report is on the disk. Reports are delivered at least once, and a repeat is not written again:
//! the SHA-256 of the latest lines is kept in memory, and computed from the file at the start.

use a2g_types::tool::Digest;
use rustix::fs::{OFlags, fcntl_setfl};
use sha2::Digest as _;
use std::collections::{HashSet, VecDeque};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

/// Maximum number of reports that are recognized as repeats. A repeat of an older report is recorded twice.
/// Executors repeat only undelivered reports, of which they keep 10,000 by default.
const MAX_KNOWN: usize = 100_000;
/// Maximum number of bytes that are read from the end of the file at the start.
const MAX_READ_BYTES: u64 = 256 << 20;

/// The report log, as the sender to its writer thread; `None` if the operator configured no file.
#[derive(Debug, Default)]
pub struct ReportLog(Option<Sender<PendingReport>>);

/// A report to write, and the channel for its result.
#[derive(Debug)]
struct PendingReport {
    line: String,
    reply: oneshot::Sender<Result<()>>,
}

impl ReportLog {
    /// Appends to a file, which is created with mode 0600 if it does not exist: reports have the results of tools.
    ///
    /// # Ambient Authority
    /// Opens `path` for appending, reads the file's end, and starts a thread.
    ///
    /// # Errors
    /// If the file cannot be opened, other users may access it, or no thread can be started.
    pub fn append_to(path: &Path) -> Result<Self> {
        // A pipe without a reader is refused: opening it would wait for one.
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let file = OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(path)?;
        fcntl_setfl(&file, OFlags::APPEND)?;
        let metadata = file.metadata()?;
        check_private(&metadata)?;
        let mut writer = ReportWriter {
            is_file: metadata.is_file(),
            file,
            is_truncated: false,
            known: RecentDigests::default(),
        };
        if writer.is_file {
            // A file that cannot be read, such as one with only write permission, yields no known lines.
            writer.is_truncated = writer.known.read(path).unwrap_or(false);
        }
        let (sender, receiver) = channel();
        std::thread::Builder::new().name("records".to_owned()).spawn(move || writer.write_all(&receiver))?;
        Ok(Self(Some(sender)))
    }

    /// Checks a path as [`Self::append_to`] does, which creates the file if it does not exist.
    ///
    /// # Ambient Authority
    /// Looks at `path`.
    ///
    /// # Errors
    /// If other users may access the file, it is a folder, or its folder does not exist.
    pub fn check(path: &Path) -> Result<()> {
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Err(ErrorKind::IsADirectory.into()),
            Ok(metadata) => check_private(&metadata),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                folder.map_or(Ok(()), |folder| std::fs::metadata(folder).map(drop))
            }
            Err(error) => Err(error),
        }
    }

    /// Records one report, whose JSON text is computed only if a file is configured. A repeat is not recorded
    /// again.
    ///
    /// # Errors
    /// If the report could not be written. It must then be sent again.
    pub async fn record<T: AsRef<str>>(&self, report: impl FnOnce() -> T) -> Result<()> {
        let Some(sender) = &self.0 else { return Ok(()) };
        // A caller's JSON may contain line ends between tokens, but never inside a string.
        let line = report().as_ref().replace(['\n', '\r'], " ");
        let (reply, result) = oneshot::channel();
        let thread_ended = || Error::other("the thread that records reports has ended");
        sender.send(PendingReport { line, reply }).map_err(|_| thread_ended())?;
        result.await.map_err(|_| thread_ended())?
    }
}

fn check_private(metadata: &Metadata) -> Result<()> {
    let mode = metadata.mode() & 0o777;
    if metadata.is_file() && mode & !0o600 != 0 {
        return Err(Error::other(format!(
            "it has the mode {mode:04o}, and it contains the results of tools: run `chmod 600` on it"
        )));
    }
    Ok(())
}

/// The file and its recent lines, owned by the writer thread.
#[derive(Debug)]
struct ReportWriter {
    file: File,
    /// `false` for a pipe, for example, which cannot be synced.
    is_file: bool,
    /// `true` when a crash truncated the last line, or a full disk did and the fragment could not be removed. Its report
    /// was not acknowledged and will be sent again; the next report must not be appended to the fragment.
    is_truncated: bool,
    known: RecentDigests,
}

impl ReportWriter {
    /// Writes reports until every sender is dropped. Reports that arrive together share one sync.
    fn write_all(mut self, receiver: &Receiver<PendingReport>) {
        while let Ok(first) = receiver.recv() {
            let reports = std::iter::once(first).chain(receiver.try_iter()).collect();
            self.write(reports);
        }
    }

    fn write(&mut self, reports: Vec<PendingReport>) {
        let mut unsynced = Vec::new();
        for PendingReport { line, reply } in reports {
            let digest = Digest::compute(line.as_bytes());
            let is_repeat =
                self.known.contains(&digest) || unsynced.iter().any(|(other, _)| *other == digest);
            match if is_repeat { Ok(()) } else { self.append(&line) } {
                Ok(()) => unsynced.push((digest, reply)),
                Err(error) => drop(reply.send(Err(error))),
            }
        }
        let sync = if self.is_file { self.file.sync_data() } else { Ok(()) };
        for (digest, reply) in unsynced {
            let result = match &sync {
                Ok(()) => {
                    self.known.insert(digest);
                    Ok(())
                }
                Err(error) => Err(Error::new(error.kind(), error.to_string())),
            };
            let _caller_disconnected = reply.send(result);
        }
    }

    fn append(&mut self, line: &str) -> Result<()> {
        let separator = if self.is_truncated { "\n" } else { "" };
        let length = if self.is_file { self.file.metadata().ok().map(|file| file.len()) } else { None };
        let result = self.file.write_all(format!("{separator}{line}\n").as_bytes());
        if result.is_err() {
            // A reader of the file must not find the part of a line that fitted on a full disk.
            let is_removed = length.is_some_and(|length| self.file.set_len(length).is_ok());
            self.is_truncated |= !is_removed;
        } else {
            self.is_truncated = false;
        }
        result
    }
}

/// The SHA-256 of the latest [`MAX_KNOWN`] lines. An executor repeats a report byte for byte, so the hash of a
/// line recognizes a repeat without parsing. A different report of the same intent is also recorded: otherwise
/// the first sender would determine the record.
#[derive(Debug, Default)]
struct RecentDigests {
    set: HashSet<Digest>,
    /// Oldest first.
    order: VecDeque<Digest>,
}

impl RecentDigests {
    fn contains(&self, line: &Digest) -> bool {
        self.set.contains(line)
    }

    fn insert(&mut self, line: Digest) {
        if !self.set.insert(line) {
            return;
        }
        self.order.push_back(line);
        if self.order.len() > MAX_KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
    }

    /// Hashes the last lines of a file. `true` when the last line is truncated.
    fn read(&mut self, path: &Path) -> Result<bool> {
        let mut file = File::open(path)?;
        let start = file.metadata()?.len().saturating_sub(MAX_READ_BYTES);
        file.seek(SeekFrom::Start(start))?;
        let mut reader = BufReader::new(file);
        if start > 0 {
            // The first line is incomplete, because reading started inside it.
            next_line(&mut reader)?;
        }
        loop {
            match next_line(&mut reader)? {
                NextLine::Whole(digest) => self.insert(digest),
                NextLine::Truncated => return Ok(true),
                NextLine::End => return Ok(false),
            }
        }
    }
}

enum NextLine {
    Whole(Digest),
    Truncated,
    End,
}

/// Hashes the next line in pieces, because it may be larger than the memory.
fn next_line(reader: &mut impl BufRead) -> Result<NextLine> {
    let mut hash = sha2::Sha256::new();
    let mut is_empty = true;
    loop {
        let part = reader.fill_buf()?;
        if part.is_empty() {
            return Ok(if is_empty { NextLine::End } else { NextLine::Truncated });
        }
        is_empty = false;
        let end = part.iter().position(|byte| *byte == b'\n');
        hash.update(part.get(..end.unwrap_or(part.len())).unwrap_or(part));
        let length = end.map_or(part.len(), |end| end + 1);
        reader.consume(length);
        if end.is_some() {
            return Ok(NextLine::Whole(Digest(hash.finalize().into())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_report_after_a_truncated_line_is_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reports.ndjson");
        for report in ["{}", "{ }"] {
            ReportLog::append_to(&path).unwrap().record(|| report).await.unwrap();
        }
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(br#"{"half":"#).unwrap();
        let log = ReportLog::append_to(&path).unwrap();
        log.record(|| "{  }").await.unwrap();
        log.record(|| "[\n]").await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n{ }\n{\"half\":\n{  }\n[ ]\n");
    }

    #[tokio::test]
    async fn a_repeat_is_recorded_once_even_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reports.ndjson");
        let long = format!("{{\"long\":\"{}\"}}", "x".repeat(100_000));
        for _restart in 0..3 {
            let log = ReportLog::append_to(&path).unwrap();
            for report in ["{}", "[\n]", &long, "{}"] {
                log.record(|| report).await.unwrap();
            }
            let concurrent = (0..100).map(|nth| log.record(move || format!("{}", nth % 10)));
            assert!(
                futures_util::future::join_all(concurrent).await.into_iter().all(|result| result.is_ok())
            );
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = format!("{{}}\n[ ]\n{long}\n0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
        assert!(text == expected, "{} bytes", text.len());
    }

    #[test]
    fn the_oldest_digest_is_dropped_first() {
        let digest = |nth: usize| Digest::compute(nth.to_string().as_bytes());
        let mut known = RecentDigests::default();
        for nth in 0..=MAX_KNOWN {
            known.insert(digest(nth));
            known.insert(digest(nth));
        }
        assert_eq!((known.set.len(), known.order.len()), (MAX_KNOWN, MAX_KNOWN));
        assert!(
            !known.contains(&digest(0)) && known.contains(&digest(1)) && known.contains(&digest(MAX_KNOWN))
        );
    }
}
