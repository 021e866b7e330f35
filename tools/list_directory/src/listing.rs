//! Walks a tree in order: names sorted by their bytes, and what is in a directory right after it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use a2g_guest_sdk::prelude::*;

use crate::entry::{Entry, Kind};

/// A listing in the making.
pub(crate) struct Listing<'a> {
    ctx: &'a Context,
    limit: usize,
    include_hidden: bool,
    recursive: bool,
    /// The entries so far, in order, at most `limit`.
    pub(crate) entries: Vec<Entry>,
    /// True if an entry was omitted at the limit.
    pub(crate) truncated: bool,
}

impl<'a> Listing<'a> {
    pub(crate) fn new(ctx: &'a Context, limit: usize, include_hidden: bool, recursive: bool) -> Self {
        Self { ctx, limit, include_hidden, recursive, entries: Vec::new(), truncated: false }
    }

    /// Lists the directory at `root`.
    ///
    /// # Errors
    /// If `root` itself cannot be read. A directory below it that cannot be read is logged and
    /// listed without content.
    pub(crate) fn read(&mut self, root: &Path) -> io::Result<()> {
        // A stack of directories, each with what is still to come, instead of recursion: a tree may
        // be deeper than the stack of a guest.
        let mut pending = vec![(PathBuf::new(), self.names(root)?.into_iter())];
        while let Some((directory, names)) = pending.last_mut() {
            let Some((name, kind)) = names.next() else {
                pending.pop();
                continue;
            };
            if self.entries.len() == self.limit {
                self.truncated = true;
                return Ok(());
            }
            let relative = directory.join(name);
            let path = root.join(&relative);
            let metadata = fs::symlink_metadata(&path).ok();
            self.entries.push(Entry::new(&path, &relative, kind, metadata.as_ref()));
            if self.recursive && kind == Kind::Directory {
                let below = self.names(&path).unwrap_or_else(|error| {
                    let message = format!("`{}` is listed without content: {error}", path.display());
                    self.ctx.log(Level::Warn, message);
                    BTreeMap::new()
                });
                pending.push((relative, below.into_iter()));
            }
        }
        Ok(())
    }

    /// The first names of one directory, in order: one more than there is room for, because that one
    /// shows that the listing is truncated.
    fn names(&self, directory: &Path) -> io::Result<BTreeMap<OsString, Kind>> {
        let room = self.limit - self.entries.len();
        let mut names = BTreeMap::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if self.include_hidden || !name.as_encoded_bytes().starts_with(b".") {
                names.insert(name, kind(&entry));
            }
            if names.len() > room + 1 {
                names.pop_last();
            }
        }
        Ok(names)
    }
}

fn kind(entry: &DirEntry) -> Kind {
    entry.file_type().map_or(Kind::Other, Kind::from)
}
