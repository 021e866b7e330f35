//! The archive for any Linux: the root in one folder, as `tar.gz`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use flate2::{Compression, GzBuilder};
use fs_err as fs;
use tar::{EntryType, Header};

use super::Release;

pub(crate) fn build(release: &Release<'_>) -> Result<Vec<PathBuf>> {
    let name = format!("a2g-executor-{}-{}-linux", release.version, release.architecture.as_str());
    let path = release.folder.join(format!("{name}.tar.gz"));
    fs::write(&path, pack(&release.root, Path::new(&name), release.epoch)?)?;
    Ok(vec![path])
}

/// The files of a folder below `prefix`. The bytes depend on the names, the contents and `epoch` only.
fn pack(folder: &Path, prefix: &Path, epoch: u64) -> Result<Vec<u8>> {
    // Its header has neither a name nor a time.
    let gzip = GzBuilder::new().write(Vec::new(), Compression::best());
    let mut archive = tar::Builder::new(gzip);
    for path in super::files(folder)? {
        let content = fs::read(folder.join(&path))?;
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(if path.starts_with("bin") { 0o755 } else { 0o644 });
        header.set_mtime(epoch);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, prefix.join(&path), content.as_slice())?;
    }
    Ok(archive.into_inner()?.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// A root with two files, written in the given order.
    fn root(names: [&str; 2]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, name).unwrap();
        }
        folder
    }

    #[test]
    fn equal_roots_give_equal_archives() {
        let names = ["bin/a2g-executor", "share/doc/README.md"];
        let (first, second) = (root(names), root([names[1], names[0]]));
        let [program, page] = names.map(|name| second.path().join(name));
        fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        fs::File::options()
            .append(true)
            .open(&page)
            .unwrap()
            .file()
            .set_modified(std::time::UNIX_EPOCH)
            .unwrap();
        let archive = |folder: &tempfile::TempDir| pack(folder.path(), Path::new("x"), 7).unwrap();
        assert_eq!(archive(&first), archive(&second), "the order, a mode or a time has changed the archive");

        let bytes = archive(&first);
        let mut found = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
        let entries = found.entries().unwrap().map(|entry| {
            let header = entry.unwrap().header().clone();
            let path = header.path().unwrap().to_string_lossy().into_owned();
            (path, header.mode().unwrap(), header.mtime().unwrap(), header.uid().unwrap())
        });
        let expected = [("x/bin/a2g-executor", 0o755), ("x/share/doc/README.md", 0o644)];
        assert_eq!(entries.collect::<Vec<_>>(), expected.map(|(path, mode)| (path.to_owned(), mode, 7, 0)));

        fs::write(&page, "changed").unwrap();
        assert_ne!(archive(&first), archive(&second));
    }
}
