//! Removal of folders whose content nobody has checked: a process that was taken over can nest folders in its own as deep as
//! it likes, so nothing here calls itself.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

/// Removes the folder `name` of `parent` with everything in it. While this works, folders from within it are in `parent`,
/// under names that begin with `name`: if it is interrupted, they are removed with what begins so.
///
/// # Ambient Authority
/// None: it works below `parent`, and follows no link.
///
/// # Errors
/// As the system calls. What could be removed is removed.
pub(super) fn remove_tree(parent: &OwnedFd, name: &str) -> io::Result<()> {
    let mut left = vec![name.to_owned()];
    let mut moved = 0_u64;
    while let Some(next) = left.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(parent, next.as_str(), flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                names.push(entry.file_name().to_owned());
            }
        }
        for entry in names {
            let found = statat(&folder, &entry, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
                unlinkat(&folder, &entry, AtFlags::empty())?;
                continue;
            }
            match unlinkat(&folder, &entry, AtFlags::REMOVEDIR) {
                Ok(()) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    let outside = move_out(&folder, &entry, parent, name, &mut moved)?;
                    left.push(outside);
                }
                Err(error) => return Err(error.into()),
            }
        }
        unlinkat(parent, next.as_str(), AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Moves a folder to the first free number. Those of an interrupted removal are in use.
fn move_out(
    folder: &OwnedFd,
    entry: &CStr,
    parent: &OwnedFd,
    name: &str,
    moved: &mut u64,
) -> rustix::io::Result<String> {
    loop {
        *moved = moved.saturating_add(1);
        let outside = format!("{name}.{moved}");
        match renameat(folder, entry, parent, outside.as_str()) {
            Ok(()) => return Ok(outside),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mkdirat;
    use std::fs::File;

    #[test]
    fn a_folder_is_removed_however_deep_it_is_and_nothing_is_followed() {
        let home = tempfile::tempdir().unwrap();
        let kept = home.path().join("kept");
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("file"), "").unwrap();
        let parent = OwnedFd::from(File::open(home.path()).unwrap());
        mkdirat(&parent, "done", Mode::RWXU).unwrap();
        std::os::unix::fs::symlink(&kept, home.path().join("done/link")).unwrap();
        std::fs::write(home.path().join("done/file"), "").unwrap();
        // Of a removal that was interrupted.
        std::fs::create_dir_all(home.path().join("done.1/inside")).unwrap();
        let mut at = openat(&parent, "done", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..20_000 {
            mkdirat(&at, "d", Mode::RWXU).unwrap();
            mkdirat(&at, "e", Mode::RWXU).unwrap();
            at = openat(&at, "d", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        drop(at);
        remove_tree(&parent, "done").unwrap();
        remove_tree(&parent, "done.1").unwrap();
        let left = std::fs::read_dir(home.path()).unwrap().count();
        assert_eq!(left, 1, "only what a link leads to is left");
        assert!(kept.join("file").exists());
        assert!(remove_tree(&parent, "done").is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
    }
}
