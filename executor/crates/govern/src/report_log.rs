//! The report log of the local governor: one JSON object on each line of a file.
//!
//! ```text
//! record ─ channel ─▶ thread: all that wait ─ write ─ fdatasync ─▶ each caller gets the result
//! ```
//! A recorded report is on the disk. Reports are delivered at least once, and a repeat is not written again:
//! the SHA-256 of the latest lines is kept in memory, and computed from the file at the start.
// By its bytes and not by its intent: otherwise the first sender of a report would decide what is on record.

use a2g_types::tool::Digest;
use sha2::Digest as _;
use std::collections::{HashSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Error, Result, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

/// The maximum number of reports that are recognized as repeats. A repeat of an older one is recorded twice.
/// Executors repeat only undelivered reports, of which they keep 10,000 by default.
const MAX_KNOWN: usize = 100_000;
/// The maximum number of bytes that are read from the end of the file at the start.
const MAX_READ: u64 = 256 << 20;

/// The sender to the writer thread; `None` when the operator configured no file.
#[derive(Debug, Default)]
pub struct ReportLog(Option<Sender<PendingReport>>);

/// A report to write, and the channel for the result.
#[derive(Debug)]
struct PendingReport {
    line: String,
    recorded: oneshot::Sender<Result<()>>,
}

impl ReportLog {
    /// Appends to a file, which is created if it does not exist.
    ///
    /// # Ambient Authority
    /// Opens `path` for appending, reads the end of it, and starts a thread.
    ///
    /// # Errors
    /// The error of the system when the file cannot be opened.
    pub fn append_to(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let mut lines = ReportWriter {
            is_file: file.metadata()?.is_file(),
            file,
            cut_off: false,
            known: RecentDigests::default(),
        };
        if lines.is_file {
            // A file that cannot be read, such as one with write permission only, yields no known lines.
            lines.cut_off = lines.known.read(path).unwrap_or(false);
        }
        let (sender, waiting) = channel();
        std::thread::Builder::new().name("records".to_owned()).spawn(move || lines.write_all(&waiting))?;
        Ok(Self(Some(sender)))
    }

    /// ReportLog one report, whose JSON text is computed only if a file is configured. A repeat is not recorded
    /// again.
    ///
    /// # Errors
    /// The error of the system. The report is then not recorded and must be sent again.
    pub async fn record<T: AsRef<str>>(&self, report: impl FnOnce() -> T) -> Result<()> {
        let Some(lines) = &self.0 else { return Ok(()) };
        // A caller's JSON may contain line ends between tokens, but never inside a string.
        let line = report().as_ref().replace(['\n', '\r'], " ");
        let (recorded, written) = oneshot::channel();
        let gone = || Error::other("the thread that records reports has ended");
        lines.send(PendingReport { line, recorded }).map_err(|_| gone())?;
        written.await.map_err(|_| gone())?
    }
}

/// The file and its recent lines, owned by the writer thread.
#[derive(Debug)]
struct ReportWriter {
    file: File,
    /// `false` for a pipe, for example, which cannot be synced.
    is_file: bool,
    /// `true` when a crash or a full disk truncated the last line. Its report was not acknowledged and will be
    /// sent again; the next report must not be appended to the fragment.
    cut_off: bool,
    known: RecentDigests,
}

impl ReportWriter {
    /// Writes reports until every sender is dropped. Reports that arrive together share one sync.
    fn write_all(mut self, waiting: &Receiver<PendingReport>) {
        while let Ok(first) = waiting.recv() {
            let all = std::iter::once(first).chain(waiting.try_iter()).collect();
            self.write(all);
        }
    }

    fn write(&mut self, all: Vec<PendingReport>) {
        let mut written = Vec::new();
        for PendingReport { line, recorded } in all {
            let digest = Digest::compute(line.as_bytes());
            let repeats = self.known.contains(&digest) || written.iter().any(|(other, _)| *other == digest);
            match if repeats { Ok(()) } else { self.append(&line) } {
                Ok(()) => written.push((digest, recorded)),
                Err(error) => drop(recorded.send(Err(error))),
            }
        }
        let synced = if self.is_file { self.file.sync_data() } else { Ok(()) };
        for (digest, recorded) in written {
            let result = match &synced {
                Ok(()) => {
                    self.known.insert(digest);
                    Ok(())
                }
                Err(error) => Err(Error::new(error.kind(), error.to_string())),
            };
            let _gone = recorded.send(result);
        }
    }

    fn append(&mut self, line: &str) -> Result<()> {
        let before = if self.cut_off { "\n" } else { "" };
        let written = self.file.write_all(format!("{before}{line}\n").as_bytes());
        self.cut_off = written.is_err();
        written
    }
}

/// The SHA-256 of the latest [`MAX_KNOWN`] lines. An executor repeats a report byte for byte, so the hash of a
/// line recognizes a repeat without parsing. A different report of the same intent is recorded, too: otherwise
/// the first sender would decide what is on record.
#[derive(Debug, Default)]
struct RecentDigests {
    all: HashSet<Digest>,
    /// Oldest first.
    order: VecDeque<Digest>,
}

impl RecentDigests {
    fn contains(&self, line: &Digest) -> bool {
        self.all.contains(line)
    }

    fn insert(&mut self, line: Digest) {
        if !self.all.insert(line) {
            return;
        }
        self.order.push_back(line);
        if self.order.len() > MAX_KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }

    /// Hashes the last lines of a file. `true` when the last line is truncated.
    fn read(&mut self, path: &Path) -> Result<bool> {
        let mut file = File::open(path)?;
        let start = file.metadata()?.len().saturating_sub(MAX_READ);
        file.seek(SeekFrom::Start(start))?;
        let mut reader = BufReader::new(file);
        if start > 0 {
            // The first line is incomplete, because reading started inside it.
            next_line(&mut reader)?;
        }
        loop {
            match next_line(&mut reader)? {
                NextLine::Whole(digest) => self.insert(digest),
                NextLine::CutOff => return Ok(true),
                NextLine::End => return Ok(false),
            }
        }
    }
}

enum NextLine {
    Whole(Digest),
    CutOff,
    End,
}

/// Hashes the next line in pieces, because it may be larger than the memory.
fn next_line(reader: &mut impl BufRead) -> Result<NextLine> {
    let (mut hash, mut is_empty) = (sha2::Sha256::new(), true);
    loop {
        let part = reader.fill_buf()?;
        if part.is_empty() {
            return Ok(if is_empty { NextLine::End } else { NextLine::CutOff });
        }
        is_empty = false;
        let end = part.iter().position(|byte| *byte == b'\n');
        hash.update(part.get(..end.unwrap_or(part.len())).unwrap_or(part));
        let read = end.map_or(part.len(), |end| end + 1);
        reader.consume(read);
        if end.is_some() {
            return Ok(NextLine::Whole(Digest(hash.finalize().into())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_was_cut_off_takes_no_report_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reports.ndjson");
        for report in ["{}", "{ }"] {
            ReportLog::append_to(&path).unwrap().record(|| report).await.unwrap();
        }
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(br#"{"half":"#).unwrap();
        let records = ReportLog::append_to(&path).unwrap();
        records.record(|| "{  }").await.unwrap();
        records.record(|| "[\n]").await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n{ }\n{\"half\":\n{  }\n[ ]\n");
    }

    #[tokio::test]
    async fn a_repeat_is_recorded_once_also_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reports.ndjson");
        let long = format!("{{\"long\":\"{}\"}}", "x".repeat(100_000));
        for _restart in 0..3 {
            let records = ReportLog::append_to(&path).unwrap();
            for report in ["{}", "[\n]", &long, "{}"] {
                records.record(|| report).await.unwrap();
            }
            let together = (0..100).map(|nth| records.record(move || format!("{}", nth % 10)));
            assert!(futures_util::future::join_all(together).await.into_iter().all(|done| done.is_ok()));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = format!("{{}}\n[ ]\n{long}\n0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
        assert!(text == expected, "{} bytes", text.len());
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let digest = |nth: usize| Digest::compute(nth.to_string().as_bytes());
        let mut known = RecentDigests::default();
        for nth in 0..=MAX_KNOWN {
            known.insert(digest(nth));
            known.insert(digest(nth));
        }
        assert_eq!((known.all.len(), known.order.len()), (MAX_KNOWN, MAX_KNOWN));
        assert!(
            !known.contains(&digest(0)) && known.contains(&digest(1)) && known.contains(&digest(MAX_KNOWN))
        );
    }
}
