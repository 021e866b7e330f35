//! The files of a folder, in an order and with modes that do not depend on the machine.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

/// The mode of a folder, and of a program that everybody can use.
pub(super) const PUBLIC: u32 = 0o755;
/// The mode of a file that everybody can read.
pub(super) const READABLE: u32 = 0o644;

/// A file of a folder.
pub(super) struct Entry {
    /// The path below the folder, with `/`.
    pub(super) path: String,
    /// The file with the content.
    pub(super) file: PathBuf,
    /// [`PUBLIC`] for a program, [`READABLE`] for any other file.
    pub(super) mode: u32,
}

/// The files below a folder, sorted by path.
pub(super) fn list(folder: &Path) -> Result<Vec<Entry>> {
    list_without(folder, None)
}

/// The files below a folder, without those of one of its folders.
pub(super) fn list_without(folder: &Path, left_out: Option<&Path>) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        for file in fs::read_dir(next)? {
            let file = file?.path();
            let metadata = fs::symlink_metadata(&file)?;
            if metadata.is_dir() {
                if left_out != Some(&file) {
                    waiting.push(file);
                }
                continue;
            }
            ensure!(metadata.is_file(), "{} is neither a file nor a folder", file.display());
            let path = file.strip_prefix(folder)?.to_str().context("a path is not UTF-8")?.to_owned();
            entries.push(Entry { path, mode: mode(&metadata), file });
        }
    }
    entries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    Ok(entries)
}

/// The mode that a file has in a package.
pub(super) fn mode(metadata: &std::fs::Metadata) -> u32 {
    if metadata.permissions().mode() & 0o111 == 0 { READABLE } else { PUBLIC }
}

/// Copies files of a folder to another one.
pub(super) fn copy(entries: impl IntoIterator<Item = Entry>, to: &Path) -> Result<()> {
    for entry in entries {
        let copy = to.join(&entry.path);
        fs::create_dir_all(copy.parent().unwrap_or(to))?;
        fs::copy(&entry.file, copy)?;
    }
    Ok(())
}

/// Removes a file or a folder, if it is there.
pub(super) fn remove(path: &Path) -> Result<()> {
    if path.is_dir() {
        fs::remove_dir_all(path)?;
    } else if path.exists() {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Creates an empty folder, in the place of one that is there.
pub(super) fn create_empty(folder: &Path) -> Result<()> {
    remove(folder)?;
    Ok(fs::create_dir_all(folder)?)
}
