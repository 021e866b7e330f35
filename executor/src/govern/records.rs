//! The reports that the governor inside keeps: one JSON object a line, in a file of the operator's.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Result, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Where reports go; nowhere, when the operator named no file.
#[derive(Debug, Default)]
pub struct Records(Option<Mutex<Lines>>);

#[derive(Debug)]
struct Lines {
    file: File,
    /// Whether the last line has no end: a crash or a full disk cut it off. Its report was not acknowledged, and
    /// comes again; the next one must not become a part of it.
    cut_off: bool,
}

impl Records {
    /// Appends to a file, which is made when it is not there.
    ///
    /// # Ambient Authority
    /// Opens `path` for appending.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn append_to(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        // What is no file, such as a pipe, has no last line, and what cannot be read shows none.
        let cut_off = file.metadata()?.is_file() && last_byte(path).is_ok_and(|last| last != b'\n');
        Ok(Self(Some(Mutex::new(Lines { file, cut_off }))))
    }

    /// Records one report, given as the JSON text of its params, which is only asked for when it
    /// is kept.
    ///
    /// # Errors
    /// When it cannot be written; then it was not recorded and has to be sent again.
    pub fn record<T: AsRef<str>>(&self, report: impl FnOnce() -> T) -> Result<()> {
        let Some(lines) = &self.0 else { return Ok(()) };
        // Text from a caller may have line ends between its tokens, and none inside a string.
        let report = report().as_ref().replace(['\n', '\r'], " ");
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        let before = if lines.cut_off { "\n" } else { "" };
        let written = lines.file.write_all(format!("{before}{report}\n").as_bytes());
        lines.cut_off = written.is_err();
        written
    }
}

fn last_byte(path: &Path) -> Result<u8> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_cut_off_takes_no_report_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reports.ndjson");
        for _ in 0..2 {
            Records::append_to(&path).unwrap().record(|| "{}").unwrap();
        }
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(br#"{"half":"#).unwrap();
        let records = Records::append_to(&path).unwrap();
        records.record(|| "{ }").unwrap();
        records.record(|| "[\n]").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n{}\n{\"half\":\n{ }\n[ ]\n");
    }
}
