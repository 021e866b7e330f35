//! Writes tools into a folder that other users may be able to write to.
//!
//! Such a user can replace any name in the folder by a link, at any moment. Files are therefore created through the handle
//! of a new folder, and never opened, changed or removed through a link.

use super::CatalogError;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use uuid::Uuid;

/// The beginning of the name of a folder that is being written, or that was exchanged for one.
const DRAFT_PREFIX: &str = ".adding-";
/// The beginning of the name of an earlier tool where names cannot be exchanged.
const REPLACED_PREFIX: &str = ".replaced-";
/// The time after which a draft of a process that was killed is removed.
const MAX_DRAFT_AGE: Duration = Duration::from_secs(24 * 3600);

/// An open folder with one folder for each tool.
#[derive(Debug)]
pub(super) struct ToolsFolder {
    handle: OwnedFd,
    path: PathBuf,
}

impl ToolsFolder {
    /// Opens a folder, and creates it if it does not exist. The operator's path may be a link.
    ///
    /// # Ambient Authority
    /// Opens or creates `path`.
    pub(super) fn create(path: &Path) -> Result<Self, CatalogError> {
        let io = |error| CatalogError::io(path, error);
        std::fs::create_dir_all(path).map_err(io)?;
        let handle = rustix::fs::open(path, FOLDER_FLAGS, Mode::empty()).map_err(|error| io(error.into()))?;
        Ok(Self { handle, path: path.to_owned() })
    }

    /// Opens a folder inside this one; `None` if there is none.
    ///
    /// # Errors
    /// [`CatalogError::Io`] if the name is that of a link or a file.
    pub(super) fn open(&self, name: &str) -> Result<Option<Self>, CatalogError> {
        match self.open_folder(name) {
            Ok(handle) => Ok(Some(Self { handle, path: self.path.join(name) })),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.io(name, error)),
        }
    }

    /// Opens a folder inside this one, and creates it if it does not exist.
    pub(super) fn open_or_create(&self, name: &str) -> Result<Self, CatalogError> {
        match rustix::fs::mkdirat(&self.handle, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(self.io(name, error)),
        }
        self.open(name)?.ok_or_else(|| self.io(name, Errno::NOENT))
    }

    /// The path of an entry, through the handle: it stays the same folder if its name is replaced.
    pub(super) fn entry(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.handle.as_raw_fd())).join(name)
    }

    /// Writes a tool's folder, and replaces any earlier one. A reader finds the whole old tool or the whole new one, and
    /// for a moment none where the file system cannot exchange names.
    pub(super) fn replace(&self, name: &str, files: &[(&str, &[u8])]) -> Result<(), CatalogError> {
        let draft = format!("{DRAFT_PREFIX}{}", Uuid::new_v4());
        rustix::fs::mkdirat(&self.handle, &draft, Mode::RWXU).map_err(|error| self.io(&draft, error))?;
        let replaced = self.write_draft(&draft, files).and_then(|()| self.rename_draft(&draft, name));
        // The earlier tool, or a draft that could not be written.
        let _removed_later = self.remove(&draft);
        replaced
    }

    /// Writes a file of this folder, and replaces an earlier one. A reader finds the whole old file or the whole new one.
    pub(super) fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), CatalogError> {
        let draft = format!("{DRAFT_PREFIX}{}", Uuid::new_v4());
        let written = create_file(&self.handle, &draft, bytes).and_then(|()| {
            rustix::fs::renameat(&self.handle, &draft, &self.handle, name).map_err(std::io::Error::from)
        });
        if written.is_err() {
            let _none_was_created = rustix::fs::unlinkat(&self.handle, &draft, AtFlags::empty());
        }
        written.map_err(|error| CatalogError::io(&self.path.join(name), error))
    }

    /// Removes an entry and everything in it, but nothing that a link leads to. Returns `false` if there is none.
    pub(super) fn remove(&self, name: &str) -> Result<bool, CatalogError> {
        let removed = match std::fs::remove_dir_all(self.entry(name)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                rustix::fs::unlinkat(&self.handle, name, AtFlags::empty()).map_err(std::io::Error::from)
            }
            removed => removed,
        };
        match removed {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(CatalogError::io(&self.path.join(name), error)),
        }
    }

    fn open_folder(&self, name: &str) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.handle, name, FOLDER_FLAGS | OFlags::NOFOLLOW, Mode::empty())
    }

    fn write_draft(&self, draft: &str, files: &[(&str, &[u8])]) -> Result<(), CatalogError> {
        let folder = File::from(self.open_folder(draft).map_err(|error| self.io(draft, error))?);
        let io = |error| CatalogError::io(&self.path.join(draft), error);
        let metadata = folder.metadata().map_err(io)?;
        // The folder inherits the setgid bit.
        if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o777 != 0o700 {
            return Err(io(std::io::Error::other(
                "this is not the folder just created: another user may have replaced it, or the file system does not keep \
                 owner and mode",
            )));
        }
        if let Ok(now) = metadata.modified() {
            self.remove_old_drafts(now);
        }
        for (name, bytes) in files {
            create_file(&folder, name, bytes)
                .map_err(|error| CatalogError::io(&self.path.join(draft).join(name), error))?;
        }
        folder.set_permissions(std::fs::Permissions::from_mode(0o755)).map_err(io)?;
        folder.sync_all().map_err(io)
    }

    /// Gives the draft the name of the tool, and the earlier tool the name of the draft.
    fn rename_draft(&self, draft: &str, name: &str) -> Result<(), CatalogError> {
        let rename = |flags| rustix::fs::renameat_with(&self.handle, draft, &self.handle, name, flags);
        let renamed = match rename(RenameFlags::EXCHANGE) {
            Err(Errno::NOENT) => rename(RenameFlags::NOREPLACE),
            renamed => renamed,
        };
        let renamed = match renamed {
            // A file system without these flags, such as NFS.
            Err(Errno::INVAL | Errno::NOSYS) => self.rename_in_two_steps(draft, name),
            renamed => renamed,
        };
        renamed.and_then(|()| rustix::fs::fsync(&self.handle)).map_err(|error| self.io(name, error))
    }

    fn rename_in_two_steps(&self, draft: &str, name: &str) -> Result<(), Errno> {
        // Not a draft: if this process is killed before the second step, it is the only copy of the tool.
        let old = format!("{REPLACED_PREFIX}{}", Uuid::new_v4());
        let moved = rustix::fs::renameat(&self.handle, name, &self.handle, &old);
        if moved.is_err_and(|error| error != Errno::NOENT) {
            return moved;
        }
        let renamed = rustix::fs::renameat(&self.handle, draft, &self.handle, name);
        if renamed.is_err() && moved.is_ok() {
            return rustix::fs::renameat(&self.handle, &old, &self.handle, name).and(renamed);
        }
        let _removed_later = self.remove(&old);
        renamed
    }

    /// Removes drafts that killed processes left. `now` is the time of a new folder.
    fn remove_old_drafts(&self, now: std::time::SystemTime) {
        for entry in std::fs::read_dir(self.entry(".")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| name.starts_with(DRAFT_PREFIX)) else { continue };
            let changed = entry.metadata().and_then(|metadata| metadata.modified());
            let age = changed.ok().and_then(|changed| now.duration_since(changed).ok());
            if age.is_some_and(|age| age > MAX_DRAFT_AGE) {
                let _removed_later = self.remove(name);
            }
        }
    }

    fn io(&self, name: &str, error: Errno) -> CatalogError {
        let error = match error {
            Errno::LOOP | Errno::NOTDIR => std::io::Error::other("it is a link or a file, not a folder"),
            error => error.into(),
        };
        CatalogError::io(&self.path.join(name), error)
    }
}

/// Creates a file, which must not exist yet.
fn create_file(folder: impl AsFd, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o644))?);
    // The users of every run read it, whatever the umask is.
    file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
    file.write_all(bytes)?;
    file.sync_all()
}

const FOLDER_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const FILES: &[(&str, &[u8])] = &[("tool.toml", b"new"), ("tool.wasm", b"code")];

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>();
        names.sort();
        names
    }

    #[test]
    fn a_tool_replaces_an_earlier_one_and_leaves_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("tools");
        let folder = ToolsFolder::create(&path).unwrap();
        // A folder that a group shares: new folders inherit the bit.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o2775)).unwrap();
        folder.replace("greet", &[("tool.toml", b"old"), ("README.md", b"old")]).unwrap();
        folder.replace("greet", FILES).unwrap();
        assert_eq!(
            (names(&path), names(&path.join("greet"))),
            (vec!["greet".into()], vec!["tool.toml".into(), "tool.wasm".into()])
        );
        assert_eq!(std::fs::metadata(path.join("greet")).unwrap().mode() & 0o777, 0o755);
        // Where names cannot be exchanged.
        folder.write_draft_named("other");
        folder.rename_in_two_steps("other", "greet").unwrap();
        assert_eq!(names(&path), ["greet"]);
        std::fs::write(path.join("file"), "").unwrap();
        folder.replace("file", FILES).unwrap();
        assert!(folder.remove("file").unwrap() && !folder.remove("file").unwrap());
        // A draft that cannot be written is removed, and the earlier tool stays.
        assert!(folder.replace("greet", &[("a/b", b"")]).is_err());
        assert_eq!(names(&path), ["greet"]);
    }

    impl ToolsFolder {
        fn write_draft_named(&self, name: &str) {
            rustix::fs::mkdirat(&self.handle, name, Mode::RWXU).unwrap();
            self.write_draft(name, FILES).unwrap();
        }
    }

    #[test]
    fn no_link_is_followed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("tools");
        let secret = place.path().join("secret");
        std::fs::create_dir(&secret).unwrap();
        std::fs::write(secret.join("tool.toml"), "mine").unwrap();
        let folder = ToolsFolder::create(&path).unwrap();
        for name in ["greet", ".waiting", "draft"] {
            symlink(&secret, path.join(name)).unwrap();
        }
        assert!(folder.open(".waiting").is_err() && folder.open_or_create(".waiting").is_err());
        assert!(folder.write_draft("draft", FILES).is_err(), "another user has replaced it by a link");
        assert!(folder.open("greet").is_err());
        folder.replace("greet", FILES).unwrap();
        symlink(secret.join("tool.toml"), path.join("greet/arguments.json")).unwrap();
        folder.open("greet").unwrap().unwrap().write_file("arguments.json", b"{}").unwrap();
        assert_eq!(std::fs::read_to_string(path.join("greet/arguments.json")).unwrap(), "{}");
        assert_eq!(names(&path.join("greet")), ["arguments.json", "tool.toml", "tool.wasm"]);
        assert!(folder.remove(".waiting").unwrap() && folder.remove("draft").unwrap());
        // A folder of somebody else, or one that was not made for this draft.
        rustix::fs::mkdirat(&folder.handle, "draft", Mode::from_raw_mode(0o755)).unwrap();
        assert!(folder.write_draft("draft", FILES).is_err());
        rustix::fs::chmodat(&folder.handle, "draft", Mode::RWXU, AtFlags::empty()).unwrap();
        symlink(secret.join("tool.toml"), path.join("draft/tool.toml")).unwrap();
        assert!(folder.write_draft("draft", FILES).is_err());
        assert_eq!(names(&secret), ["tool.toml"]);
        assert_eq!(std::fs::read_to_string(secret.join("tool.toml")).unwrap(), "mine");
        assert_eq!(std::fs::read_to_string(path.join("greet/tool.toml")).unwrap(), "new");
    }

    #[test]
    fn drafts_of_killed_processes_are_removed_after_a_day() {
        let place = tempfile::tempdir().unwrap();
        let folder = ToolsFolder::create(place.path()).unwrap();
        for name in [".adding-old", ".adding-new", "greet"] {
            std::fs::create_dir(place.path().join(name)).unwrap();
        }
        let old = File::open(place.path().join(".adding-old")).unwrap();
        let now = old.metadata().unwrap().modified().unwrap();
        old.set_modified(now - MAX_DRAFT_AGE * 2).unwrap();
        folder.replace("other", FILES).unwrap();
        assert_eq!(names(place.path()), [".adding-new", "greet", "other"]);
    }
}
