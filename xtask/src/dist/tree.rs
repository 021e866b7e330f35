//! Files with the owners and modes that a package gives them.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt as _;
use tar::Header;

use super::files::{self, PUBLIC, READABLE};
use super::tarball::Tarball;

/// The thing at a path.
struct Entry {
    /// `None` for a folder.
    content: Option<Vec<u8>>,
    mode: u32,
    /// The user and its group.
    owner: u64,
}

/// Files by their paths, which begin below the root.
#[derive(Default)]
pub(super) struct Tree(BTreeMap<PathBuf, Entry>);

impl Tree {
    pub(super) fn add_folder(&mut self, path: &str, mode: u32, owner: u64) {
        self.add(Path::new(path), Entry { content: None, mode, owner });
    }

    pub(super) fn add_file(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.add(Path::new(path), Entry { content: Some(content.into()), mode: READABLE, owner: 0 });
    }

    pub(super) fn add_program(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.add(Path::new(path), Entry { content: Some(content.into()), mode: PUBLIC, owner: 0 });
    }

    /// Copies a file, to which a link may lead, or a folder with all of its files.
    pub(super) fn copy(&mut self, from: &Path, path: &Path) -> Result<()> {
        let metadata = fs::metadata(from)?;
        if metadata.is_dir() {
            for file in files::list(from)? {
                self.copy(&file.file, &path.join(&file.path))?;
            }
            return Ok(());
        }
        self.add(path, Entry { content: Some(fs::read(from)?), mode: files::mode(&metadata), owner: 0 });
        Ok(())
    }

    fn add(&mut self, path: &Path, entry: Entry) {
        for folder in path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()) {
            let public = || Entry { content: None, mode: PUBLIC, owner: 0 };
            self.0.entry(folder.to_owned()).or_insert_with(public);
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// Writes a tar archive in which everything has this time.
    pub(super) fn write_archive(&self, file: &Path, epoch: u64) -> Result<()> {
        let mut archive = Tarball::new(fs::File::create(file)?, Header::new_gnu(), epoch);
        for (path, entry) in &self.0 {
            archive.add(path, entry.mode, entry.owner, entry.content.as_deref())?;
        }
        archive.finish().map(drop)
    }

    /// Writes the files below a folder, for the user that runs this program.
    pub(super) fn write_files(&self, root: &Path) -> Result<()> {
        fs::create_dir_all(root)?;
        fs::set_permissions(root, Permissions::from_mode(PUBLIC))?;
        for (path, entry) in &self.0 {
            let path = root.join(path);
            let Some(content) = &entry.content else {
                fs::create_dir_all(&path)?;
                fs::set_permissions(&path, Permissions::from_mode(entry.mode))?;
                continue;
            };
            let mut file =
                fs::OpenOptions::new().write(true).create_new(true).mode(entry.mode).open(&path)?;
            file.write_all(content)?;
            // The process's mask may have taken bits of the mode.
            fs::set_permissions(&path, Permissions::from_mode(entry.mode))?;
        }
        Ok(())
    }

    /// The sum of the lengths of all files.
    pub(super) fn bytes(&self) -> usize {
        self.0.values().filter_map(|entry| Some(entry.content.as_ref()?.len())).sum()
    }

    /// Removes a file, if it is there.
    pub(super) fn remove(&mut self, path: &Path) {
        self.0.remove(path);
    }

    /// The paths of all files below a folder.
    pub(super) fn files_below(&self, folder: &str) -> Vec<PathBuf> {
        let files = self.0.iter().filter(|(path, entry)| entry.content.is_some() && path.starts_with(folder));
        files.map(|(path, _)| path.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(paths: [&str; 2]) -> Tree {
        let mut tree = Tree::default();
        for path in paths {
            tree.add_file(path, path);
        }
        tree.add_folder("var/lib/state", 0o700, 10001);
        tree.add_program("usr/bin/program", "");
        tree
    }

    #[test]
    fn an_archive_depends_on_its_files_and_the_time_only() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = |tree: &Tree| {
            let file = folder.path().join("archive.tar");
            tree.write_archive(&file, 7).unwrap();
            fs::read(file).unwrap()
        };
        let archive = bytes(&tree(["usr/a", "etc/b"]));
        assert_eq!(archive, bytes(&tree(["etc/b", "usr/a"])));
        let mut archive = tar::Archive::new(archive.as_slice());
        let entries = archive.entries().unwrap().map(|entry| {
            let header = entry.unwrap().header().clone();
            let path = header.path().unwrap().display().to_string();
            (path, header.mode().unwrap(), header.uid().unwrap(), header.mtime().unwrap())
        });
        let expected = [
            ("etc", 0o755, 0),
            ("etc/b", 0o644, 0),
            ("usr", 0o755, 0),
            ("usr/a", 0o644, 0),
            ("usr/bin", 0o755, 0),
            ("usr/bin/program", 0o755, 0),
            ("var", 0o755, 0),
            ("var/lib", 0o755, 0),
            ("var/lib/state", 0o700, 10001),
        ];
        let expected = expected.map(|(path, mode, owner)| (path.to_owned(), mode, owner, 7));
        assert_eq!(entries.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn written_files_have_their_modes() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let tree = tree(["usr/a", "etc/b"]);
        tree.write_files(&root).unwrap();
        let mode = |path: &str| fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(["", "usr/a", "usr/bin/program"].map(mode), [0o755, 0o644, 0o755]);

        let mut copy = Tree::default();
        copy.copy(&root, Path::new("")).unwrap();
        assert_eq!(copy.files_below("usr"), tree.files_below("usr"));
        assert_eq!(copy.bytes(), tree.bytes());
        copy.remove(Path::new("usr/a"));
        assert_eq!(copy.files_below("usr"), [Path::new("usr/bin/program")]);
    }
}
