//! Finds the files to search, in a stable order. Symbolic links below the start are not followed, so
//! a walk always ends and stays where it was sent.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use a2g_guest_sdk::prelude::*;

use crate::globs::Globs;

/// More files than an agent can mean, and as many paths as fit into memory.
const MAX_FILES: usize = 100_000;

/// The files below a path.
#[derive(Default)]
pub(crate) struct Walked {
    /// Sorted by path.
    pub(crate) files: Vec<PathBuf>,
    /// True if there were more files than the limit.
    pub(crate) truncated: bool,
}

/// The files that `globs` include: `root` itself when it is a file.
///
/// # Errors
/// If `root` cannot be read. A directory below it that cannot be read is logged and skipped.
pub(crate) fn files(ctx: &Context, root: &Path, globs: &Globs) -> Result<Walked, ToolError> {
    let mut walked = Walked::default();
    if fs::metadata(root).at(root)?.is_file() {
        walked.files.push(root.to_owned());
        return Ok(walked);
    }
    let mut pending = vec![PathBuf::new()];
    while let Some(directory) = pending.pop() {
        if let Err(error) = walked.directory(root, &directory, globs, &mut pending) {
            let path = root.join(&directory);
            if directory.as_os_str().is_empty() {
                return Err(error).at(path);
            }
            let message = format!("`{}` is skipped: {error}", path.display());
            ctx.log(Level::Warn, message);
        }
        if walked.truncated {
            break;
        }
    }
    walked.files.sort_unstable();
    Ok(walked)
}

impl Walked {
    fn directory(
        &mut self,
        root: &Path,
        directory: &Path,
        globs: &Globs,
        pending: &mut Vec<PathBuf>,
    ) -> io::Result<()> {
        for entry in fs::read_dir(root.join(directory))? {
            let entry = entry?;
            let relative = directory.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() && !globs.excludes(&relative) {
                pending.push(relative);
            } else if kind.is_file() && globs.includes(&relative) {
                self.files.push(entry.path());
            }
            if self.files.len() + pending.len() > MAX_FILES {
                self.truncated = true;
                break;
            }
        }
        Ok(())
    }
}
