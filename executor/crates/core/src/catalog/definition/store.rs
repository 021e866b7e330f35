//! The file of accepted definitions: private to its owner, replaced atomically, and changed under a lock, so concurrent
//! processes lose no update.
//!
//! A file that is damaged, or that other users may write to, is an error, never an empty list: with an empty list,
//! every tool would be accepted as it is.

use super::stored::DefinitionsFile;
use super::{Change, Definition, Part, compare};
use crate::catalog::CatalogError;
use crate::catalog::code::read_regular_file;
use a2g_types::ident::ToolName;
use a2g_types::tool::Descriptor;
use rustix::fs::{FlockOperation, flock};
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The maximum size of the file, in bytes. A usual definition has 1 to 4 kB.
const MAX_BYTES: u64 = 32 << 20;

/// How a process uses the accepted definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// New and narrower definitions are remembered: for processes that offer the tools to agents or change the
    /// catalogue.
    Record,
    /// Definitions are only compared.
    Compare,
}

/// The accepted definitions of one catalogue.
#[derive(Debug, Clone)]
pub struct Definitions(Option<Store>);

#[derive(Debug, Clone)]
struct Store {
    path: PathBuf,
    /// The catalogue's path; see [`identify`]. If the catalogue is a link that is pointed to another folder, the tools
    /// there are compared with the definitions accepted before.
    catalogue: String,
    access: Access,
}

/// The accepted definitions, locked for this process.
pub(in crate::catalog) struct LockedDefinitions<'a>(Option<Locked<'a>>);

struct Locked<'a> {
    store: &'a Store,
    file: DefinitionsFile,
    _lock: File,
}

/// The result of comparing a tool with its accepted definition.
enum Comparison {
    /// The definition equals the accepted one.
    Accepted,
    /// There is no accepted definition.
    First,
    /// The definition became narrower, or only the version changed.
    Narrower,
    /// An operator has to approve these changes.
    Waits(Vec<Change>),
}

fn compare_with_accepted(accepted: Option<&Definition>, offered: &Definition) -> Comparison {
    let Some(accepted) = accepted else { return Comparison::First };
    let changes = compare(accepted, offered);
    if changes.iter().any(|change| change.kind.needs_approval()) {
        Comparison::Waits(changes)
    } else if changes.is_empty() {
        Comparison::Accepted
    } else {
        Comparison::Narrower
    }
}

/// The path by which the file names a catalogue, independent of its spelling. Links in the parent folders are resolved.
/// A link in place of the catalogue is not, so its definitions stay when the link points to another folder.
fn identify(catalogue: &Path) -> PathBuf {
    let absolute = std::path::absolute(catalogue).unwrap_or_else(|_| catalogue.to_owned());
    let parent = absolute.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, absolute.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        // The path ends in `..`, or its parent does not exist yet.
        (Some(_) | None, _) => absolute.canonicalize().unwrap_or_else(|_| absolute.components().collect()),
    }
}

impl Definitions {
    /// The definitions of `catalogue` in the file at `path`, which need not exist yet.
    #[must_use]
    pub fn new(path: &Path, catalogue: &Path, access: Access) -> Self {
        let catalogue = identify(catalogue).to_string_lossy().into_owned();
        Self(Some(Store { path: path.to_owned(), catalogue, access }))
    }

    /// No definitions: every tool is accepted, and none is remembered. For a temporary catalogue that no agent uses.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// The accepted definition of a tool; `None` if none was accepted.
    ///
    /// # Ambient Authority
    /// Reads the file.
    ///
    /// # Errors
    /// [`CatalogError::Definitions`] if the file cannot be used.
    pub fn accepted(&self, tool: &ToolName) -> Result<Option<Definition>, CatalogError> {
        let Some(store) = &self.0 else { return Ok(None) };
        store.get(&store.read()?, tool)
    }

    /// Compares tools with their accepted definitions, and remembers new and narrower ones. Returns the error of each
    /// tool that has to wait, or whose definition cannot be written, in the order of `tools`.
    ///
    /// # Ambient Authority
    /// Reads the file, and writes it if there is something to remember.
    ///
    /// # Errors
    /// [`CatalogError::Definitions`] if the file cannot be used.
    pub(in crate::catalog) fn admit(
        &self,
        tools: &[&Descriptor],
    ) -> Result<Vec<Result<(), CatalogError>>, CatalogError> {
        let Some(store) = &self.0 else { return Ok(tools.iter().map(|_| Ok(())).collect()) };
        let file = store.read()?;
        let compare = |tool: &&Descriptor| -> Result<Comparison, CatalogError> {
            let accepted = store.get(&file, &tool.name)?;
            Ok(compare_with_accepted(accepted.as_ref(), &Definition::of(tool)))
        };
        let compared = tools.iter().map(compare).collect::<Result<Vec<_>, _>>()?;
        let is_new = |comparison: &Comparison| match comparison {
            Comparison::First | Comparison::Narrower => true,
            Comparison::Accepted | Comparison::Waits(_) => false,
        };
        let not_written = if store.access == Access::Record && compared.iter().any(is_new) {
            match self.record(tools) {
                Err(CatalogError::DefinitionsNotWritten { path, reason }) => Some((path, reason)),
                judged => return judged,
            }
        } else {
            None
        };
        // A tool whose definition is on the disk can be used although no other can be written there now.
        let judge = |(tool, comparison): (&&Descriptor, Comparison)| match (comparison, &not_written) {
            (Comparison::Waits(changes), _) => Err(changed(&tool.name, &changes)),
            (Comparison::First | Comparison::Narrower, Some((path, reason))) => {
                Err(CatalogError::DefinitionsNotWritten { path: path.clone(), reason: reason.clone() })
            }
            (Comparison::First | Comparison::Narrower, None) | (Comparison::Accepted, _) => Ok(()),
        };
        Ok(tools.iter().zip(compared).map(judge).collect())
    }

    /// Compares a tool with its accepted definition, and remembers nothing.
    ///
    /// # Ambient Authority
    /// Reads the file.
    ///
    /// # Errors
    /// [`CatalogError::DefinitionChanged`] if its definition has to be approved, and [`CatalogError::Definitions`] if
    /// the file cannot be used.
    pub(in crate::catalog) fn check(&self, tool: &Descriptor) -> Result<(), CatalogError> {
        let accepted = self.accepted(&tool.name)?;
        match compare_with_accepted(accepted.as_ref(), &Definition::of(tool)) {
            Comparison::Waits(changes) => Err(changed(&tool.name, &changes)),
            Comparison::Accepted | Comparison::First | Comparison::Narrower => Ok(()),
        }
    }

    /// Compares tools again under the lock, because another process may have written the file meanwhile, and writes the
    /// new definitions.
    fn record(&self, tools: &[&Descriptor]) -> Result<Vec<Result<(), CatalogError>>, CatalogError> {
        let mut locked = self.lock()?;
        let judged = tools.iter().map(|tool| locked.accept_unless_waiting(tool)).collect::<Result<_, _>>()?;
        locked.write()?.commit()?;
        Ok(judged)
    }

    /// Locks the definitions. Waits while another process changes them.
    ///
    /// # Ambient Authority
    /// Creates and locks the file's folder, and reads the file.
    ///
    /// # Errors
    /// [`CatalogError::Definitions`] if the file cannot be used, and [`CatalogError::DefinitionsNotWritten`] if nothing
    /// can be written beside it.
    pub(in crate::catalog) fn lock(&self) -> Result<LockedDefinitions<'_>, CatalogError> {
        let Some(store) = &self.0 else { return Ok(LockedDefinitions(None)) };
        let folder = store.folder();
        let unusable = |error: std::io::Error| {
            let cannot_write =
                [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::ReadOnlyFilesystem];
            if cannot_write.contains(&error.kind()) {
                store.not_written(error)
            } else {
                store.unusable(format!("`{}`: {error}", folder.display()))
            }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(unusable)?;
        // Every change replaces the file, so another one is locked. Nobody else can open it, and so nobody else can lock it.
        let path = store.real_path().with_added_extension("lock");
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        let lock = lock.map_err(unusable)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| unusable(error.into()))?;
        Ok(LockedDefinitions(Some(Locked { store, file: store.read()?, _lock: lock })))
    }
}

impl LockedDefinitions<'_> {
    pub(in crate::catalog) fn accepted(&self, tool: &ToolName) -> Result<Option<Definition>, CatalogError> {
        let Some(Locked { store, file, _lock }) = &self.0 else { return Ok(None) };
        store.get(file, tool)
    }

    /// The changes of a tool that has to wait for approval; `None` if it need not wait.
    pub(in crate::catalog) fn find_waiting_changes(
        &self,
        tool: &Descriptor,
    ) -> Result<Option<Vec<Change>>, CatalogError> {
        let accepted = self.accepted(&tool.name)?;
        Ok(match compare_with_accepted(accepted.as_ref(), &Definition::of(tool)) {
            Comparison::Accepted | Comparison::First | Comparison::Narrower => None,
            Comparison::Waits(changes) => Some(changes),
        })
    }

    /// Makes the definition of a tool the accepted one, without a comparison. [`Self::write`] saves it.
    ///
    /// # Errors
    /// [`CatalogError::Module`] if the definition cannot be stored.
    pub(in crate::catalog) fn accept(&mut self, tool: &Descriptor) -> Result<(), CatalogError> {
        let Some(Locked { store, file, _lock }) = &mut self.0 else { return Ok(()) };
        file.insert(&store.catalogue, tool.name.as_str(), &Definition::of(tool), MAX_BYTES)
            .map_err(|reason| CatalogError::Module(format!("its definition cannot be remembered: {reason}")))
    }

    fn accept_unless_waiting(&mut self, tool: &Descriptor) -> Result<Result<(), CatalogError>, CatalogError> {
        let accepted = self.accepted(&tool.name)?;
        match compare_with_accepted(accepted.as_ref(), &Definition::of(tool)) {
            Comparison::Accepted => {}
            Comparison::First => {
                tracing::info!(tool = %tool.name, "accepted the definition of this tool, which is seen for the first time");
                return Ok(self.accept(tool));
            }
            Comparison::Narrower => {
                tracing::info!(tool = %tool.name, "accepted the narrower definition of this tool");
                return Ok(self.accept(tool));
            }
            Comparison::Waits(changes) => return Ok(Err(changed(&tool.name, &changes))),
        }
        Ok(Ok(()))
    }

    /// Writes the new content to the disk, beside the file. Only [`WrittenDefinitions::commit`] replaces the file.
    pub(in crate::catalog) fn write(&self) -> Result<WrittenDefinitions<'_>, CatalogError> {
        let Some(Locked { store, file, _lock }) = &self.0 else { return Ok(WrittenDefinitions(None)) };
        let text = file.to_json();
        let not_written = |error| store.not_written(error);
        // The mode of a temporary file is 0600.
        let mut draft = NamedTempFile::new_in(store.folder()).map_err(not_written)?;
        draft.write_all(&text).and_then(|()| draft.as_file().sync_all()).map_err(not_written)?;
        Ok(WrittenDefinitions(Some((store, draft))))
    }
}

/// Definitions that are on the disk and not yet in force.
#[must_use]
pub(in crate::catalog) struct WrittenDefinitions<'a>(Option<(&'a Store, NamedTempFile)>);

impl WrittenDefinitions<'_> {
    /// Replaces the file: a reader gets the old content or the new one.
    pub(in crate::catalog) fn commit(self) -> Result<(), CatalogError> {
        let Some((store, draft)) = self.0 else { return Ok(()) };
        draft.persist(store.real_path()).map_err(|error| store.not_written(error.error))?;
        File::open(store.folder())
            .and_then(|folder| folder.sync_all())
            .map_err(|error| store.not_written(error))
    }
}

impl Store {
    fn not_written(&self, error: std::io::Error) -> CatalogError {
        CatalogError::DefinitionsNotWritten { path: self.path.clone(), reason: error.to_string() }
    }

    fn unusable(&self, reason: String) -> CatalogError {
        CatalogError::Definitions { path: self.path.clone(), reason }
    }

    /// The path of the file itself if the operator's path is a link.
    fn real_path(&self) -> PathBuf {
        self.path.canonicalize().unwrap_or_else(|_| self.path.clone())
    }

    fn folder(&self) -> PathBuf {
        let path = self.real_path();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new(".")).to_owned()
    }

    fn get(&self, file: &DefinitionsFile, tool: &ToolName) -> Result<Option<Definition>, CatalogError> {
        file.get(&self.catalogue, tool.as_str()).map_err(|reason| self.unusable(reason))
    }

    fn read(&self) -> Result<DefinitionsFile, CatalogError> {
        // Whoever may write to the folder could remove the file, and every tool would be accepted as it is.
        if let Ok(folder) = self.folder().metadata() {
            self.check_private("its folder", &folder)?;
        }
        match self.path.metadata() {
            Ok(metadata) => self.check_private("it", &metadata)?,
            // A dangling link is an error, not a missing file.
            Err(error) if error.kind() == ErrorKind::NotFound && !self.path.is_symlink() => {
                return Ok(DefinitionsFile::default());
            }
            Err(error) => return Err(self.unusable(format!("it cannot be read: {error}"))),
        }
        let text =
            read_regular_file(&self.path, MAX_BYTES).map_err(|error| self.unusable(error.to_string()))?;
        DefinitionsFile::parse(&text).map_err(|reason| self.unusable(reason))
    }

    fn check_private(&self, what: &str, metadata: &Metadata) -> Result<(), CatalogError> {
        let owner = metadata.uid();
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            return Err(self.unusable(format!("{what} belongs to another user, who can change it")));
        }
        // In a folder with the sticky bit, nobody else can remove the file.
        let is_sticky = metadata.is_dir() && metadata.mode() & 0o1000 != 0;
        if metadata.mode() & 0o022 != 0 && !is_sticky {
            return Err(self.unusable(format!("other users may write to {what}: run `chmod go-w` on it")));
        }
        Ok(())
    }
}

fn changed(tool: &ToolName, changes: &[Change]) -> CatalogError {
    let changes = changes.iter().filter(|change| change.kind.needs_approval());
    CatalogError::DefinitionChanged {
        tool: tool.clone(),
        parts: changes.map(|change| change.part).collect::<Vec<Part>>(),
    }
}

#[cfg(test)]
mod tests;
