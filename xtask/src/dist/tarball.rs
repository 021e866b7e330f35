//! Tar archives whose bytes depend on their files, the order of these, and the time of the release only.

use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result};
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// An archive that is being written.
pub(super) struct Tarball<W: Write> {
    archive: Builder<W>,
    /// The properties that all entries have in common.
    header: Header,
}

impl Tarball<GzEncoder<Vec<u8>>> {
    /// An archive compressed by gzip, whose own header has neither a name nor a time.
    pub(super) fn compressed(header: Header, epoch: u64) -> Self {
        Self::new(GzBuilder::new().write(Vec::new(), Compression::best()), header, epoch)
    }

    /// The bytes of the compressed archive.
    pub(super) fn into_bytes(self) -> Result<Vec<u8>> {
        Ok(self.finish()?.finish()?)
    }
}

impl<W: Write> Tarball<W> {
    /// `header` has the format of the archive; everything in it has the time `epoch`.
    pub(super) fn new(output: W, mut header: Header, epoch: u64) -> Self {
        header.set_mtime(epoch);
        Self { archive: Builder::new(output), header }
    }

    /// Adds a file that belongs to root.
    pub(super) fn add_file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.add(Path::new(path), mode, 0, Some(content))
    }

    /// Adds a file, or a folder if there is no content. `owner` is the user and its group.
    pub(super) fn add(&mut self, path: &Path, mode: u32, owner: u64, content: Option<&[u8]>) -> Result<()> {
        let mut header = self.header.clone();
        header.set_entry_type(if content.is_some() { EntryType::Regular } else { EntryType::Directory });
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner);
        let content = content.unwrap_or_default();
        header.set_size(content.len().try_into()?);
        let added = self.archive.append_data(&mut header, path, content);
        added.with_context(|| format!("`{}` cannot be archived", path.display()))
    }

    pub(super) fn finish(self) -> Result<W> {
        Ok(self.archive.into_inner()?)
    }
}
