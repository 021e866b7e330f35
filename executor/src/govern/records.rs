//! The reports that the governor inside keeps: one JSON object a line, in a file of the operator's.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Where reports go; nowhere, when the operator named no file.
#[derive(Debug, Default)]
pub struct Records(Option<Mutex<File>>);

impl Records {
    /// Appends to a file, which is made when it is not there.
    ///
    /// # Ambient Authority
    /// Opens `path` for appending.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn append_to(path: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(Some(Mutex::new(file))))
    }

    /// Records one report, given as the JSON text of its params, which is only asked for when it
    /// is kept.
    ///
    /// # Errors
    /// When it cannot be written; then it was not recorded and has to be sent again.
    pub fn record<T: AsRef<str>>(&self, report: impl FnOnce() -> T) -> std::io::Result<()> {
        let Some(file) = &self.0 else { return Ok(()) };
        // Text from a caller may have line ends between its tokens, and none inside a string.
        let line = format!("{}\n", report().as_ref().replace(['\n', '\r'], " "));
        file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())
    }
}
