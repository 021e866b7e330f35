//! Updates that wait for an operator. An update of `tool add` is in the catalogue's folder `.waiting`, which no server
//! reads. A change of the catalogue's own files is in the tool's folder.

use super::{Change, Definition, Definitions, compare};
use crate::catalog::manifest::FILE;
use crate::catalog::package::Package;
use crate::catalog::tools_folder::ToolsFolder;
use crate::catalog::{CatalogError, CheckedTool, Installer, install, open_tool};
use a2g_types::ident::ToolName;
use a2g_types::tool::Digest;
use std::path::Path;

/// The folder of waiting updates in a catalogue. [`Catalog::open`](crate::catalog::Catalog::open) ignores names with a
/// leading dot.
pub(in crate::catalog) const WAITING_FOLDER: &str = ".waiting";

/// The result of adding a tool.
#[derive(Debug)]
pub enum Installation {
    /// The tool is in the catalogue.
    Installed(Box<CheckedTool>),
    /// The update waits for approval; the installed version is unchanged.
    Waits(Box<Update>),
}

/// An update of a tool, with its files in memory: the files that were compared are those that are installed.
#[derive(Debug)]
pub struct Update {
    pub(in crate::catalog) checked: CheckedTool,
    pub(in crate::catalog) accepted: Option<Definition>,
    pub(in crate::catalog) changes: Vec<Change>,
    pub(in crate::catalog) place: Place,
}

/// The location of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::catalog) enum Place {
    /// In [`WAITING_FOLDER`].
    Waiting,
    /// In the tool's folder of the catalogue.
    Catalogue,
}

impl Update {
    /// The tool.
    #[must_use]
    pub fn tool(&self) -> &CheckedTool {
        &self.checked
    }

    /// The changes from the accepted definition. Some of them may need no approval.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The digest of the tool's package, which covers its whole definition, its README and its module.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.checked.package.digest()
    }

    /// Installs the update, and makes its definition the accepted one.
    ///
    /// # Ambient Authority
    /// Writes `catalog/<name>` and the file of definitions, and removes the waiting update.
    ///
    /// # Errors
    /// [`CatalogError::UpdateReplaced`] if the accepted definition or the waiting update was replaced meanwhile.
    pub fn approve(self, catalog: &Path, definitions: &Definitions) -> Result<(), CatalogError> {
        let Self { checked, accepted, changes: _, place } = self;
        let name = &checked.manifest.name;
        let mut locked = definitions.lock()?;
        if locked.accepted(name)? != accepted {
            return Err(CatalogError::UpdateReplaced(name.clone()));
        }
        locked.accept(&checked.tool.descriptor)?;
        let definitions = locked.write()?;
        if place == Place::Catalogue {
            return definitions.commit();
        }
        let folder = ToolsFolder::create(catalog)?;
        let waiting = folder.open(WAITING_FOLDER)?;
        let read = |waiting: &ToolsFolder| Package::read(&waiting.entry(name.as_str()));
        let found = waiting.as_ref().map(read).transpose()?.flatten();
        let Some(waiting) =
            waiting.filter(|_| found.is_some_and(|found| found.digest() == checked.package.digest()))
        else {
            return Err(CatalogError::UpdateReplaced(name.clone()));
        };
        install::write(name.as_str(), &checked, &folder)?;
        definitions.commit()?;
        // The update is installed, so what cannot be removed is only in the way of later ones.
        if let Err(error) = waiting.remove(name.as_str()) {
            tracing::warn!(tool = %name, %error, "the waiting update is installed and cannot be removed");
        }
        Ok(())
    }
}

impl Installer<'_> {
    /// The update of a tool that waits for approval; `None` if there is none. An update of `tool add` takes precedence
    /// over a change in the tool's own folder, because it would replace that folder.
    ///
    /// # Ambient Authority
    /// Reads the catalogue and the file of definitions, reads and writes the cache, and runs the builder.
    ///
    /// # Errors
    /// [`CatalogError`] with the problem of the tool.
    pub fn find_update(&self, name: &ToolName) -> Result<Option<Update>, CatalogError> {
        let waiting = self.catalog.join(WAITING_FOLDER).join(name.as_str());
        let (folder, place) = match has_tool(&waiting) {
            true => (waiting, Place::Waiting),
            false => (self.catalog.join(name.as_str()), Place::Catalogue),
        };
        if !has_tool(&folder) {
            return Ok(None);
        }
        // Checks name, digest and signature, as a server does.
        open_tool(&folder, name, self.cache, Some(self.build), self.trust)?;
        // The version is compared again, because the files may have been replaced since `tool add` compared it.
        let checked = self.check(&folder)?;
        let accepted = self.definitions.accepted(name)?;
        let offered = Definition::of(&checked.tool.descriptor);
        let changes = accepted.as_ref().map(|accepted| compare(accepted, &offered)).unwrap_or_default();
        let needs_approval = changes.iter().any(|change| change.kind.needs_approval());
        let is_update = checked.manifest.name == *name && (place == Place::Waiting || needs_approval);
        Ok(is_update.then_some(Update { checked, accepted, changes, place }))
    }
}

/// The names of the tools with an update of `tool add` that waits for approval, sorted.
///
/// # Ambient Authority
/// Reads the catalogue's folder.
#[must_use]
pub fn waiting_updates(catalog: &Path) -> Vec<ToolName> {
    let entries = std::fs::read_dir(catalog.join(WAITING_FOLDER)).into_iter().flatten().flatten();
    let tools = entries.filter(|entry| has_tool(&entry.path()));
    let mut names =
        tools.filter_map(|entry| ToolName::parse(entry.file_name().to_str()?).ok()).collect::<Vec<_>>();
    names.sort();
    names
}

/// Removes the waiting update of a tool. Returns `false` if there is none.
///
/// # Ambient Authority
/// Removes the update's folder.
///
/// # Errors
/// [`CatalogError`] if the folder cannot be removed, or the file of definitions cannot be locked.
pub fn reject(name: &ToolName, catalog: &Path, definitions: &Definitions) -> Result<bool, CatalogError> {
    let _lock = definitions.lock()?;
    match ToolsFolder::create(catalog)?.open(WAITING_FOLDER)? {
        Some(waiting) => waiting.remove(name.as_str()),
        None => Ok(false),
    }
}

fn has_tool(folder: &Path) -> bool {
    folder.join(FILE).symlink_metadata().is_ok()
}
