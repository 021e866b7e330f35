//! The files of a folder, in an order and with modes that do not depend on the machine.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

/// A file of a package.
pub(crate) struct Entry {
    /// The path below the folder, with `/`.
    pub(crate) path: String,
    /// Where the content is.
    pub(crate) file: PathBuf,
    /// 0o755 for a program, 0o644 for any other file.
    pub(crate) mode: u32,
}

/// The files below a folder, sorted by path.
pub(crate) fn list(folder: &Path) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        for file in fs::read_dir(next)? {
            let file = file?.path();
            let metadata = fs::symlink_metadata(&file)?;
            if metadata.is_dir() {
                waiting.push(file);
                continue;
            }
            ensure!(metadata.is_file(), "{} is neither a file nor a folder", file.display());
            let path = file.strip_prefix(folder)?.to_str().context("a path is not UTF-8")?.to_owned();
            let mode = if metadata.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 };
            entries.push(Entry { path, file, mode });
        }
    }
    entries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    Ok(entries)
}
