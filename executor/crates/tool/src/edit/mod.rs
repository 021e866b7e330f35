//! Changes of single values in files that people write: comments, order and everything else stay as they are.

pub(crate) mod json;
pub(crate) mod toml;

use crate::difference;
use anyhow::{Context as _, bail};
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The mode of a file that did not exist before.
const NEW_FILE_MODE: u32 = 0o644;

/// A text file with its content before and after some changes.
#[derive(Debug)]
pub(crate) struct EditedFile {
    path: PathBuf,
    /// The content of the file; `None` if it does not exist yet.
    found: Option<String>,
    /// The content to which the changes are made: that of the file, or of the one that it is to be a copy of.
    before: String,
    after: String,
}

impl EditedFile {
    /// Reads a file, which need not exist.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let found = match std::fs::read_to_string(path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("`{}` cannot be read", path.display())),
        };
        let before = found.clone().unwrap_or_default();
        Ok(Self { path: path.to_owned(), found, after: before.clone(), before })
    }

    /// A file that is to be made, as a changed copy of this text.
    pub(crate) fn copy(path: PathBuf, text: &str) -> Self {
        Self { path, found: None, before: text.to_owned(), after: text.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// `true` if there was no such file.
    pub(crate) fn is_new(&self) -> bool {
        self.found.is_none()
    }

    /// The content after the changes so far.
    pub(crate) fn text(&self) -> &str {
        &self.after
    }

    /// `true` if there were changes.
    pub(crate) fn is_changed(&self) -> bool {
        self.before != self.after
    }

    /// Applies a change. `what` describes it for the error.
    pub(crate) fn change(
        &mut self,
        what: &str,
        change: impl FnOnce(&str) -> Option<String>,
    ) -> anyhow::Result<()> {
        let Some(changed) = change(&self.after) else {
            bail!("`{}` has a form that is not changed automatically: {what} by hand", self.path.display());
        };
        self.after = changed;
        Ok(())
    }

    /// The changed lines, with a few others around them.
    pub(crate) fn lines(&self) -> Vec<String> {
        difference::text_lines(&self.before, &self.after)
    }

    /// Replaces the file as a whole, with its owner and mode.
    pub(crate) fn write(&self) -> anyhow::Result<()> {
        let Self { path, found, before: _, after } = self;
        let folder = folder_of(path);
        let write = || {
            std::fs::create_dir_all(folder)?;
            let mut draft = NamedTempFile::new_in(folder)?;
            draft.write_all(after.as_bytes())?;
            let mode = match path.symlink_metadata() {
                Ok(metadata) => {
                    let made = draft.as_file().metadata()?;
                    if (made.uid(), made.gid()) != (metadata.uid(), metadata.gid()) {
                        fchown(draft.as_file(), Some(metadata.uid()), Some(metadata.gid()))?;
                    }
                    metadata.mode() & 0o777
                }
                Err(_) => NEW_FILE_MODE,
            };
            draft.as_file().set_permissions(std::fs::Permissions::from_mode(mode))?;
            draft.as_file().sync_all()?;
            draft.persist(path)?;
            Ok::<_, std::io::Error>(())
        };
        if path.is_symlink() {
            bail!("`{}` is a link: name the file that it leads to", path.display());
        }
        if std::fs::read_to_string(path).ok() != *found {
            bail!("`{}` was changed meanwhile: run the command again", path.display());
        }
        write().with_context(|| format!("`{}` cannot be written", path.display()))
    }
}

/// The folder of a file.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The text with another one in the place of a range of bytes.
fn splice(text: &str, range: Range<usize>, new: &str) -> Option<String> {
    Some([text.get(..range.start)?, new, text.get(range.end..)?].concat())
}

/// The spaces and tabs with which the line of an offset begins.
fn indent_at(text: &str, offset: usize) -> Option<&str> {
    let before = text.get(..offset)?;
    let line = text.get(before.rfind('\n').map_or(0, |at| at + 1)..)?;
    line.get(..line.len() - line.trim_start_matches([' ', '\t']).len())
}
