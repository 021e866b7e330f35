//! The files of the shell: those of the granted folders, through the standard library and so through the
//! sandbox, `/tmp` in memory where no grant has one, and the devices of which scripts make use.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use a2g_guest_sdk::ToolError;
use bashkit::{
    DirEntry, Error, FileSystem, FileSystemExt, FileType, FsLimits, InMemoryFs, Metadata, Result,
    async_trait, normalize_path,
};

const TEMPORARY: &str = "/tmp";
/// The sandbox has no modes: files are shown with those that new ones have elsewhere.
const FILE_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;
/// The paths for which bash would open a connection.
const SOCKETS: [&str; 2] = ["/dev/tcp", "/dev/udp"];

/// The most that one reading of an endless device returns: bashkit reads whole files.
const MAX_DEVICE_BYTES: usize = 1 << 20;
const DEVICES: [(&str, Device); 4] = [
    ("/dev/null", Device::Null),
    ("/dev/zero", Device::Zero),
    ("/dev/urandom", Device::Random),
    ("/dev/random", Device::Random),
];

/// The files of one shell.
pub(crate) struct Files {
    /// The granted folders.
    folders: Vec<PathBuf>,
    /// The place of temporary files, if no granted folder has it.
    temporary: Option<InMemoryFs>,
    /// The modes that scripts have given to files of granted folders. Only this shell knows them, so that a
    /// script can run another one that it has made executable.
    modes: Mutex<BTreeMap<PathBuf, u32>>,
}

/// The place to which a path leads.
enum Place<'a> {
    Sandbox,
    Memory(&'a InMemoryFs),
    /// A folder above granted ones, which the sandbox does not have.
    Above,
    Device(Device),
}

/// A device, which the shell has without the sandbox. It discards what is written to it.
#[derive(Clone, Copy)]
enum Device {
    Null,
    Zero,
    Random,
}

impl Device {
    async fn read(self) -> Result<Vec<u8>> {
        match self {
            Self::Null => Ok(Vec::new()),
            Self::Zero => Ok(vec![0; MAX_DEVICE_BYTES]),
            Self::Random => random().await,
        }
    }
}

/// Bytes of the guest's source of random numbers, of which bashkit's own device returns a few at a time.
async fn random() -> Result<Vec<u8>> {
    let source = InMemoryFs::with_limits(FsLimits::unlimited());
    let mut content = Vec::with_capacity(MAX_DEVICE_BYTES);
    while content.len() < MAX_DEVICE_BYTES {
        content.extend(source.read_file(Path::new("/dev/urandom")).await?);
    }
    content.truncate(MAX_DEVICE_BYTES);
    Ok(content)
}

impl Files {
    /// The files of a run that is granted `folders`. The sandbox always names the root, and no executor
    /// grants it.
    pub(crate) fn new(mut folders: Vec<PathBuf>) -> Self {
        folders.retain(|folder| folder != Path::new("/"));
        let has_temporary = folders
            .iter()
            .any(|folder| folder.starts_with(TEMPORARY) || Path::new(TEMPORARY).starts_with(folder));
        let temporary = (!has_temporary).then(|| InMemoryFs::with_limits(FsLimits::unlimited()));
        Self { folders, temporary, modes: Mutex::default() }
    }

    /// The folder in which a shell starts: the first that is granted, or else that of temporary files.
    pub(crate) fn start(&self) -> PathBuf {
        self.folders.first().cloned().unwrap_or_else(|| PathBuf::from(TEMPORARY))
    }

    fn place(&self, path: &Path) -> Place<'_> {
        if let Some((_, device)) = DEVICES.into_iter().find(|(name, _)| path == Path::new(name)) {
            return Place::Device(device);
        }
        if self.folders.iter().any(|folder| path.starts_with(folder)) {
            return Place::Sandbox;
        }
        match &self.temporary {
            Some(memory) if path.starts_with(TEMPORARY) => Place::Memory(memory),
            _ if self.is_above(path) => Place::Above,
            // The sandbox refuses the path, and its report lists it.
            _ => Place::Sandbox,
        }
    }

    fn modes(&self) -> MutexGuard<'_, BTreeMap<PathBuf, u32>> {
        self.modes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The metadata of a file of a granted folder.
    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let mut found = metadata(&fs::symlink_metadata(path)?);
        if let Some(mode) = self.modes().get(path) {
            found.mode = *mode;
        }
        Ok(found)
    }

    fn is_above(&self, path: &Path) -> bool {
        // bashkit looks at the folder of a device before the device.
        ["/", "/dev"].iter().any(|folder| path == Path::new(folder))
            || self.folders.iter().any(|folder| folder.starts_with(path))
    }

    /// The entries of a folder above granted ones.
    fn below(&self, path: &Path) -> Vec<DirEntry> {
        let temporary = self.temporary.is_some().then(|| PathBuf::from(TEMPORARY));
        let folders = self.folders.iter().chain(&temporary);
        let names = folders.filter_map(|folder| {
            let rest = folder.strip_prefix(path).ok()?;
            rest.components().next().map(|name| name.as_os_str().to_string_lossy().into_owned())
        });
        let entries = names.map(|name| (name, above())).collect::<BTreeMap<_, _>>();
        entries.into_iter().map(|(name, metadata)| DirEntry { name, metadata }).collect()
    }

    /// Gives the result of a file operation the words of the shell's commands.
    fn at<T>(&self, path: &Path, result: io::Result<T>) -> Result<T> {
        result.map_err(|error| self.explain(path, error))
    }

    fn explain(&self, path: &Path, error: io::Error) -> Error {
        if SOCKETS.iter().any(|sockets| path.starts_with(sockets)) {
            let words = "the shell has no network: use `tool http_fetch --url URL`";
            return io::Error::new(ErrorKind::PermissionDenied, words).into();
        }
        let kind = error.kind();
        let named = ToolError::from(error);
        let (shown, words) = match named.code() {
            "not_found" => (ErrorKind::NotFound, "No such file or directory".to_owned()),
            "already_exists" => (ErrorKind::AlreadyExists, "File exists".to_owned()),
            "is_a_directory" => (ErrorKind::IsADirectory, "Is a directory".to_owned()),
            "not_a_directory" => (ErrorKind::NotADirectory, "Not a directory".to_owned()),
            "directory_not_empty" => (ErrorKind::DirectoryNotEmpty, "Directory not empty".to_owned()),
            "permission_denied" => (ErrorKind::PermissionDenied, self.denied(path)),
            _ => (kind, named.message().to_owned()),
        };
        io::Error::new(shown, words).into()
    }

    fn denied(&self, path: &Path) -> String {
        if self.folders.iter().any(|folder| path.starts_with(folder)) {
            return "Permission denied".to_owned();
        }
        let folders = self.folders.iter().map(|folder| folder.to_string_lossy()).collect::<Vec<_>>();
        if folders.is_empty() {
            return "Permission denied: this run has no files".to_owned();
        }
        format!("Permission denied: this run has files in {} only", folders.join(", "))
    }
}

/// The metadata of a device, which is shown as an empty file.
fn device() -> Metadata {
    Metadata { file_type: FileType::File, size: 0, mode: 0o666, modified: UNIX_EPOCH, created: UNIX_EPOCH }
}

/// The metadata of a folder above granted ones.
fn above() -> Metadata {
    Metadata {
        file_type: FileType::Directory,
        size: 0,
        mode: FOLDER_MODE,
        modified: UNIX_EPOCH,
        created: UNIX_EPOCH,
    }
}

fn metadata(found: &fs::Metadata) -> Metadata {
    let (file_type, mode) = if found.is_dir() {
        (FileType::Directory, FOLDER_MODE)
    } else if found.is_symlink() {
        (FileType::Symlink, 0o777)
    } else {
        (FileType::File, FILE_MODE)
    };
    let modified = found.modified().unwrap_or(UNIX_EPOCH);
    Metadata { file_type, size: found.len(), mode, modified, created: found.created().unwrap_or(modified) }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let found = file.metadata()?;
    if found.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    let mut content = Vec::with_capacity(usize::try_from(found.len()).unwrap_or_default());
    file.read_to_end(&mut content)?;
    Ok(content)
}

fn append(path: &Path, content: &[u8]) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).open(path)?.write_all(content)
}

/// The entries of a folder by their names.
fn list(path: &Path) -> io::Result<Vec<DirEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // An entry that was removed meanwhile is left out.
        if let Ok(found) = fs::symlink_metadata(entry.path()) {
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push(DirEntry { name, metadata: metadata(&found) });
        }
    }
    entries.sort_by(|first, second| first.name.cmp(&second.name));
    Ok(entries)
}

fn make_folder(path: &Path, recursive: bool) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if recursive && found.is_dir() => Ok(()),
        Ok(_) => Err(ErrorKind::AlreadyExists.into()),
        Err(_) if recursive => fs::create_dir_all(path),
        Err(_) => fs::create_dir(path),
    }
}

fn remove(path: &Path, recursive: bool) -> io::Result<()> {
    match (fs::symlink_metadata(path)?.is_dir(), recursive) {
        (true, true) => fs::remove_dir_all(path),
        (true, false) => fs::remove_dir(path),
        (false, _) => fs::remove_file(path),
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    if source.metadata()?.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    io::copy(&mut source, &mut File::create(to)?)?;
    Ok(())
}

impl FileSystemExt for Files {}

#[async_trait]
impl FileSystem for Files {
    async fn read_file(&self, given: &Path) -> Result<Vec<u8>> {
        let path = normalize_path(given);
        match self.place(&path) {
            Place::Sandbox => self.at(&path, read(&path)),
            Place::Memory(memory) => memory.read_file(&path).await,
            Place::Above => self.at(&path, Err(ErrorKind::IsADirectory.into())),
            Place::Device(device) => device.read().await,
        }
    }

    async fn write_file(&self, given: &Path, content: &[u8]) -> Result<()> {
        let path = normalize_path(given);
        match self.place(&path) {
            Place::Sandbox => self.at(&path, fs::write(&path, content)),
            Place::Memory(memory) => memory.write_file(&path, content).await,
            Place::Above => self.at(&path, Err(ErrorKind::IsADirectory.into())),
            Place::Device(_) => Ok(()),
        }
    }

    async fn append_file(&self, given: &Path, content: &[u8]) -> Result<()> {
        let path = normalize_path(given);
        match self.place(&path) {
            Place::Sandbox => self.at(&path, append(&path, content)),
            Place::Memory(memory) => memory.append_file(&path, content).await,
            Place::Above => self.at(&path, Err(ErrorKind::IsADirectory.into())),
            Place::Device(_) => Ok(()),
        }
    }

    async fn mkdir(&self, given: &Path, recursive: bool) -> Result<()> {
        let path = normalize_path(given);
        match self.place(&path) {
            Place::Sandbox => self.at(&path, make_folder(&path, recursive)),
            Place::Memory(memory) => memory.mkdir(&path, recursive).await,
            Place::Above if recursive => Ok(()),
            Place::Above | Place::Device(_) => self.at(&path, Err(ErrorKind::AlreadyExists.into())),
        }
    }

    async fn remove(&self, given: &Path, recursive: bool) -> Result<()> {
        let path = normalize_path(given);
        match self.place(&path) {
            Place::Sandbox => {
                self.modes().remove(&path);
                self.at(&path, remove(&path, recursive))
            }
            Place::Memory(memory) => memory.remove(&path, recursive).await,
            Place::Above | Place::Device(_) => self.at(&path, Err(ErrorKind::PermissionDenied.into())),
        }
    }

    /// The metadata of the path itself: bashkit follows links above this layer.
    async fn stat(&self, given: &Path) -> Result<Metadata> {
        let path = normalize_path(given);
        match self.place(&path) {
            Place::Sandbox => self.at(&path, self.metadata(&path)),
            Place::Memory(memory) => memory.stat(&path).await,
            Place::Above => Ok(above()),
            Place::Device(_) => Ok(device()),
        }
    }

    async fn read_dir(&self, given: &Path) -> Result<Vec<DirEntry>> {
        let path = normalize_path(given);
        match self.place(&path) {
            Place::Sandbox => self.at(&path, list(&path)),
            Place::Memory(memory) => memory.read_dir(&path).await,
            Place::Above => Ok(self.below(&path)),
            Place::Device(_) => self.at(&path, Err(ErrorKind::NotADirectory.into())),
        }
    }

    async fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.stat(path).await.is_ok())
    }

    async fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let source = normalize_path(from);
        let target = normalize_path(to);
        match (self.place(&source), self.place(&target)) {
            (Place::Sandbox, Place::Sandbox) => {
                self.at(&source, fs::rename(&source, &target))?;
                let mut modes = self.modes();
                if let Some(mode) = modes.remove(&source) {
                    modes.insert(target, mode);
                }
                Ok(())
            }
            (Place::Memory(memory), Place::Memory(_)) => memory.rename(&source, &target).await,
            (Place::Above | Place::Device(_), _) => self.at(&source, Err(ErrorKind::PermissionDenied.into())),
            (_, Place::Above | Place::Device(_)) => self.at(&target, Err(ErrorKind::PermissionDenied.into())),
            (Place::Sandbox, Place::Memory(_)) | (Place::Memory(_), Place::Sandbox) => {
                let content = self.read_file(&source).await?;
                self.write_file(&target, &content).await?;
                self.remove(&source, false).await
            }
        }
    }

    async fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        let source = normalize_path(from);
        let target = normalize_path(to);
        if let (Place::Sandbox, Place::Sandbox) = (self.place(&source), self.place(&target)) {
            return self.at(&source, copy(&source, &target));
        }
        let content = self.read_file(&source).await?;
        self.write_file(&target, &content).await
    }

    async fn symlink(&self, target: &Path, given: &Path) -> Result<()> {
        let link = normalize_path(given);
        match self.place(&link) {
            Place::Memory(memory) => memory.symlink(target, &link).await,
            Place::Sandbox | Place::Above | Place::Device(_) => {
                let words = "links cannot be created in granted folders: copy the file";
                Err(io::Error::new(ErrorKind::Unsupported, words).into())
            }
        }
    }

    async fn read_link(&self, given: &Path) -> Result<PathBuf> {
        let path = normalize_path(given);
        match self.place(&path) {
            Place::Sandbox => self.at(&path, fs::read_link(&path)),
            Place::Memory(memory) => memory.read_link(&path).await,
            Place::Above | Place::Device(_) => self.at(&path, Err(ErrorKind::InvalidInput.into())),
        }
    }

    async fn chmod(&self, given: &Path, mode: u32) -> Result<()> {
        let path = normalize_path(given);
        match self.place(&path) {
            Place::Memory(memory) => memory.chmod(&path, mode).await,
            Place::Sandbox => {
                let found = self.at(&path, self.metadata(&path))?;
                if found.mode != mode {
                    self.modes().insert(path, mode);
                }
                Ok(())
            }
            Place::Above | Place::Device(_) => self.at(&path, Err(ErrorKind::PermissionDenied.into())),
        }
    }

    async fn set_modified_time(&self, given: &Path, time: SystemTime) -> Result<()> {
        let path = normalize_path(given);
        match self.place(&path) {
            Place::Memory(memory) => memory.set_modified_time(&path, time).await,
            Place::Sandbox => {
                let opened = OpenOptions::new().write(true).open(&path);
                self.at(&path, opened.and_then(|file| file.set_modified(time)))
            }
            Place::Above | Place::Device(_) => self.at(&path, Err(ErrorKind::PermissionDenied.into())),
        }
    }
}
