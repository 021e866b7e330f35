//! Replaces the content of a file by renaming a complete new file over it.
//!
//! ```text
//! create beside ──▶ write ──▶ sync ──▶ rename
//!      └──────────────┴─────────┴────────┴──▶ failed: the temporary file is removed, the old one stands
//! ```

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use a2g_guest_sdk::prelude::*;

/// Number of leftovers of killed runs that are skipped before the edit fails.
const ATTEMPTS: u32 = 100;

/// Replaces the content of the file at `path`.
///
/// # Errors
/// The error of the step that failed; the file is then unchanged.
pub(crate) fn atomically(path: &str, content: &[u8]) -> Result<(), ToolError> {
    let (file, temporary) = create_beside(Path::new(path)).map_err(|error| cannot_create(path, error))?;
    let replaced = write(file, content).and_then(|()| fs::rename(&temporary, path));
    if replaced.is_err() {
        // The caller needs the first error.
        let _ = fs::remove_file(&temporary);
    }
    replaced.at(path)
}

/// `create_new` makes the name this run's own, also when two runs edit the same file.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut last = io::Error::from(ErrorKind::AlreadyExists);
    for attempt in 0..ATTEMPTS {
        let temporary = path.with_file_name(format!(".a2g-edit-{attempt}.{name}"));
        match File::create_new(&temporary) {
            Ok(file) => return Ok((file, temporary)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn write(mut file: File, content: &[u8]) -> io::Result<()> {
    file.write_all(content)?;
    file.sync_all()
}

fn cannot_create(path: &str, error: io::Error) -> ToolError {
    let error = ToolError::from(error);
    ToolError::new(
        error.code(),
        format!(
            "`{path}`: cannot create the temporary file beside it, which needs write access to its directory: {}",
            error.message()
        ),
    )
    .with_detail(json!({ "path": path }))
}
