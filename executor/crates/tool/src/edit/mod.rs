//! Changes of single values in files that people write: comments, order and everything else stay as they are.

pub(crate) mod json;
pub(crate) mod toml;

use crate::difference;
use a2g_command::output::list;
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
        write_all(&[self])
    }

    /// Checks that the file is still the one that was read.
    fn check(&self) -> anyhow::Result<()> {
        let Self { path, found, before: _, after: _ } = self;
        if path.is_symlink() {
            bail!("`{}` is a link: name the file that it leads to", path.display());
        }
        if std::fs::read_to_string(path).ok() != *found {
            bail!("`{}` was changed meanwhile: run the command again", path.display());
        }
        Ok(())
    }

    /// Writes the changed content to a new file in the folder, which has the owner and mode of the file.
    fn draft(&self) -> anyhow::Result<NamedTempFile> {
        let Self { path, found: _, before: _, after } = self;
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
            Ok::<_, std::io::Error>(draft)
        };
        write().with_context(|| format!("`{}` cannot be written", path.display()))
    }

    /// Puts the draft in the place of the file.
    fn replace(&self, draft: NamedTempFile) -> anyhow::Result<()> {
        self.check()?;
        let replaced = draft.persist(&self.path).map_err(|error| error.error);
        replaced.with_context(|| format!("`{}` cannot be written", self.path.display()))?;
        Ok(())
    }
}

/// Replaces files in this order, after all of them were checked and their new contents are on the disk. The
/// error names those that were replaced before it.
pub(crate) fn write_all(files: &[&EditedFile]) -> anyhow::Result<()> {
    files.iter().try_for_each(|file| file.check())?;
    let drafts = files.iter().map(|file| file.draft()).collect::<anyhow::Result<Vec<_>>>()?;
    let mut written = Vec::new();
    for (file, draft) in files.iter().zip(drafts) {
        if let Err(error) = file.replace(draft) {
            let is_first = written.is_empty();
            return Err(if is_first {
                error
            } else {
                error.context(format!("changed is only {}", list(written)))
            });
        }
        written.push(format!("`{}`", file.path.display()));
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_replaced_if_one_cannot_be() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
        let edit = |path: &Path| {
            std::fs::write(path, "before").unwrap();
            let mut file = EditedFile::read(path).unwrap();
            file.change("a change", |_| Some("after".to_owned())).unwrap();
            file
        };
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let files = [edit(&one), edit(&two)];
        let write = || write_all(&files.each_ref()).map_err(|error| error.to_string());
        std::fs::write(&two, "of another").unwrap();
        assert!(write().unwrap_err().contains("two` was changed meanwhile"));
        assert_eq!((read(&one), read(&two)), ("before".to_owned(), "of another".to_owned()));
        std::fs::remove_file(&two).unwrap();
        std::os::unix::fs::symlink(&one, &two).unwrap();
        assert!(write().unwrap_err().contains("two` is a link"));
        assert_eq!(read(&one), "before");
        std::fs::remove_file(&two).unwrap();
        std::fs::write(&two, "before").unwrap();
        assert_eq!(write(), Ok(()));
        assert_eq!((read(&one), read(&two)), ("after".to_owned(), "after".to_owned()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no draft is left");
    }
}
