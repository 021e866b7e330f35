//! The archive for any Linux: the root in one folder, as `tar.gz`.

use std::path::PathBuf;

use anyhow::Result;
use fs_err as fs;
use tar::Header;

use super::tarball::Tarball;
use super::{Release, files};

pub(crate) fn build(release: &Release<'_>) -> Result<Vec<PathBuf>> {
    let name = format!("a2g-executor-{}-{}-linux", release.version, release.architecture.as_str());
    let mut archive = Tarball::compressed(Header::new_gnu(), release.epoch);
    for entry in files::list(&release.root)? {
        archive.add_file(&format!("{name}/{}", entry.path), entry.mode, &fs::read(&entry.file)?)?;
    }
    let path = release.folder.join(format!("{name}.tar.gz"));
    fs::write(&path, archive.into_bytes()?)?;
    Ok(vec![path])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::tests::Sample;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn equal_roots_give_equal_archives() {
        let [first, second] = [Sample::new("a"), Sample::new("a")];
        let [program, page] = ["bin/a2g-executor", "share/doc/a2g-executor/README.md"]
            .map(|name| second.release().root.join(name));
        fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let file = fs::File::options().append(true).open(&page).unwrap();
        file.file().set_modified(std::time::UNIX_EPOCH).unwrap();
        let archive = |sample: &Sample| fs::read(&build(&sample.release()).unwrap()[0]).unwrap();
        let bytes = archive(&first);
        assert_eq!(bytes, archive(&second), "a mode or a time has changed the archive");

        let mut found = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
        let modes = found.entries().unwrap().map(|entry| {
            let header = entry.unwrap().header().clone();
            assert_eq!((header.mtime().unwrap(), header.uid().unwrap()), (1_700_000_000, 0));
            (header.path().unwrap().to_string_lossy().into_owned(), header.mode().unwrap())
        });
        let modes: Vec<(String, u32)> = modes.collect();
        let folder = "a2g-executor-0.1.0-x86_64-linux";
        assert_eq!(modes[0], (format!("{folder}/bin/a2g-executor"), 0o755));
        assert_eq!(modes[1], (format!("{folder}/share/a2g-executor/tools/greet/tool.toml"), 0o644));
        assert!(modes.is_sorted() && modes.len() == 7, "{modes:?}");

        fs::write(&page, "changed").unwrap();
        assert_ne!(archive(&first), archive(&second));
    }
}
