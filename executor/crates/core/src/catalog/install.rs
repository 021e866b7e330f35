//! Checks a tool in the form in which its author has it, and installs it into a catalogue.

use super::code::read_regular_file;
use super::definition::{Place, WAITING_FOLDER};
use super::manifest::{FILE, ToolManifest};
use super::package::Package;
use super::tools_folder::ToolsFolder;
use super::trust::{PackageFiles, SIGNATURES_FILE, check_rollback, check_trust};
use super::{
    Cache, CatalogError, CompileJob, Compiled, Definitions, Installation, MAX_MODULE_BYTES, ModuleFacts,
    Opened, Tool, ToolBuilder, Update, assemble, load_or_build, open_tool, parse_tool_name,
};
use a2g_govern::ToolTrust;
use a2g_types::ident::ToolName;
use a2g_types::quantity::MemoryLimit;
use a2g_types::tool::{Contract, Digest};
use std::path::Path;

/// A tool that could be installed.
#[derive(Debug)]
pub struct CheckedTool {
    /// The tool.
    pub tool: Tool,
    /// Its manifest: that of the folder, or the one made for a bare module.
    pub manifest: ToolManifest,
    /// Its package: that of the folder if it matches the folder's files, otherwise a new one.
    pub package: Package,
    /// The signatures of the package, unverified.
    pub signatures: Option<Vec<u8>>,
    /// The module.
    pub wasm: Vec<u8>,
    /// The name, version, description and argument schema that a typed module reports.
    pub described: Option<[String; 4]>,
}

/// Checks a tool without installing it. `source` is a folder with a `tool.toml`, or a bare typed module, which reports
/// its own name, version and description. Nothing is compiled if `trust` refuses the tool.
///
/// # Ambient Authority
/// Reads `source`, reads and writes the cache, and runs `build`.
///
/// # Errors
/// [`CatalogError`] with the problem of the tool.
pub fn check(
    source: &Path,
    cache: &Cache,
    build: &dyn ToolBuilder,
    trust: &ToolTrust,
) -> Result<CheckedTool, CatalogError> {
    check_replacing(source, cache, build, trust, |_manifest| Ok(()))
}

/// Like [`check`], but compiles nothing if `may_replace` refuses the manifest of a folder.
fn check_replacing(
    source: &Path,
    cache: &Cache,
    build: &dyn ToolBuilder,
    trust: &ToolTrust,
    may_replace: impl FnOnce(&ToolManifest) -> Result<(), CatalogError>,
) -> Result<CheckedTool, CatalogError> {
    let (manifest, wasm, files, fits, trusted) = if source.is_dir() {
        let (manifest, text) = ToolManifest::read_with_text(&source.join(FILE))?;
        let wasm = read_regular_file(&source.join(&manifest.module), MAX_MODULE_BYTES)?;
        let module = Digest::compute(&wasm);
        let files = PackageFiles::read(source)?;
        let trusted = check_trust(trust, &manifest, &text, module, &files)?;
        may_replace(&manifest)?;
        let fits = files.check(&text, module).is_ok();
        (Some(manifest), wasm, files, fits, trusted)
    } else {
        // A bare module has no package.
        let trusted = trust.check(None)?;
        (None, read_regular_file(source, MAX_MODULE_BYTES)?, PackageFiles::default(), false, trusted)
    };
    let digest = Digest::compute(&wasm);
    let pinned = manifest.as_ref().and_then(|manifest| manifest.sha256.as_ref());
    if let Some(pinned) = pinned.filter(|pinned| **pinned != digest.to_string()) {
        return Err(CatalogError::Digest { found: digest.to_string(), pinned: pinned.clone() });
    }
    let name = match &manifest {
        Some(manifest) => manifest.name.to_string(),
        None => source.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    };
    let contract = manifest.as_ref().map_or(Contract::Typed, |manifest| manifest.contract);
    let job = CompileJob { wasm: wasm.clone(), contract };
    let Compiled { described, facts, .. } =
        load_or_build(&name, digest, &job, cache, Some(build), &trusted)?.ok_or_else(not_built)?;
    let manifest = match (manifest, &described) {
        (Some(manifest), _) => manifest,
        (None, Some(described)) => ToolManifest::from_description(parse_tool_name(&described[0])?, described),
        (None, None) => {
            return Err(CatalogError::Module(format!(
                "a bare module must be a typed tool: to add a command, put it in a folder with a `{FILE}` and add the folder"
            )));
        }
    };
    check_start_memory(&manifest, &facts)?;
    let manifest = ToolManifest { sha256: Some(digest.to_string()), module: "tool.wasm".into(), ..manifest };
    let PackageFiles { package, arguments: _, readme, signatures } = files;
    let (package, signatures) = match package.filter(|_package| fits) {
        // A package made by another version of this program keeps its bytes, and so its digest and signatures.
        Some(package) => (package, signatures),
        // Signatures of another package would be refused later anyway.
        None => {
            // Those that `tool.toml` declares are in it, and the module's are of no tool.
            let reported = described.as_ref().filter(|_| manifest.arguments.is_none());
            let arguments = reported.map(|[_, _, _, arguments]| arguments.clone());
            (Package::new(&manifest, &wasm, &facts, arguments, readme)?, None)
        }
    };
    let opened = assemble(manifest.clone(), digest, wasm.clone(), None, cache, Some(build), trusted)?;
    let Opened::Ready(tool) = opened else { return Err(not_built()) };
    Ok(CheckedTool { tool: *tool, manifest, package, signatures, wasm, described })
}

/// A module without a `tool.toml`.
#[derive(Debug)]
pub struct BareModule {
    /// The contract that it fits.
    pub contract: Contract,
    /// Its size, in bytes.
    pub bytes: usize,
    /// Its imports and its start memory.
    pub facts: ModuleFacts,
    /// The name, version, description and argument schema that it reports, if it is typed.
    pub described: Option<[String; 4]>,
}

/// Checks a module of either contract.
///
/// # Ambient Authority
/// Reads `module`, reads and writes the cache, and runs `build`.
///
/// # Errors
/// [`CatalogError`] with the problem of the module.
pub fn check_bare(module: &Path, cache: &Cache, build: &dyn ToolBuilder) -> Result<BareModule, CatalogError> {
    let wasm = read_regular_file(module, MAX_MODULE_BYTES)?;
    let digest = Digest::compute(&wasm);
    let bytes = wasm.len();
    let name = module.file_name().unwrap_or_default().to_string_lossy();
    // The operator named the module, and it is not installed.
    let trusted = ToolTrust::anyone().check(None)?;
    let build_as = |contract, wasm| {
        let job = CompileJob { wasm, contract };
        let compiled =
            load_or_build(&name, digest, &job, cache, Some(build), &trusted)?.ok_or_else(not_built)?;
        let Compiled { facts, described, .. } = compiled;
        Ok(BareModule { contract, bytes, facts, described })
    };
    // The error of a typed module is returned, because one that fits neither contract has the same error twice.
    build_as(Contract::Typed, wasm.clone())
        .or_else(|error| build_as(Contract::Command, wasm).map_err(|_same: CatalogError| error))
}

fn not_built() -> CatalogError {
    CatalogError::Module("the tool was not built".to_owned())
}

/// Installs tools into one catalogue.
#[derive(Clone, Copy)]
pub struct Installer<'a> {
    /// The folder of tools.
    pub catalog: &'a Path,
    /// The cache of compiled modules.
    pub cache: &'a Cache,
    /// The builder of code.
    pub build: &'a dyn ToolBuilder,
    /// The signers whose tools are accepted.
    pub trust: &'a ToolTrust,
    /// The accepted definitions.
    pub definitions: &'a Definitions,
}

impl Installer<'_> {
    /// Checks a tool as [`check`] does. If signatures are required, a version older than the installed one is refused.
    ///
    /// # Ambient Authority
    /// Reads `source` and the catalogue, reads and writes the cache, and runs the builder.
    ///
    /// # Errors
    /// [`CatalogError`] with the problem of the tool.
    pub fn check(&self, source: &Path) -> Result<CheckedTool, CatalogError> {
        let may_replace = |manifest: &ToolManifest| check_rollback(manifest, self.catalog, self.trust);
        check_replacing(source, self.cache, self.build, self.trust, may_replace)
    }

    /// Adds a checked tool to the catalogue. The installed `tool.toml` pins the module's digest.
    ///
    /// An existing tool with the same name is replaced completely, unless the new definition needs approval. Then the
    /// update waits in `.waiting`, and replaces an earlier waiting update.
    ///
    /// # Ambient Authority
    /// Writes `<name>` or `.waiting/<name>` in the catalogue, and the file of definitions.
    ///
    /// # Errors
    /// [`CatalogError`] if a file cannot be read or written, or a newer version was installed since the check.
    pub fn install(&self, checked: CheckedTool) -> Result<Installation, CatalogError> {
        let name = &checked.manifest.name;
        self.remember_installed(name)?;
        let mut locked = self.definitions.lock()?;
        // Another process may have installed a newer version since the check.
        check_rollback(&checked.manifest, self.catalog, self.trust)?;
        let accepted = locked.accepted(name)?;
        let folder = ToolsFolder::create(self.catalog)?;
        if let Some(changes) = locked.find_waiting_changes(&checked.tool.descriptor)? {
            write(name.as_str(), &checked, &folder.open_or_create(WAITING_FOLDER)?)?;
            let place = Place::Waiting;
            return Ok(Installation::Waits(Box::new(Update { checked, accepted, changes, place })));
        }
        locked.accept(&checked.tool.descriptor)?;
        // The disk may be full, so the definitions are written before the tool is replaced. In this order, a crash in
        // between leaves a tool that a server accepts at its next start.
        let definitions = locked.write()?;
        write(name.as_str(), &checked, &folder)?;
        definitions.commit()?;
        Ok(Installation::Installed(Box::new(checked)))
    }

    /// If the installed tool of this name has no accepted definition, accepts it as a server would, so that the update
    /// is compared with it. A broken tool is skipped: agents cannot use it, so any update may replace it.
    fn remember_installed(&self, name: &ToolName) -> Result<(), CatalogError> {
        let folder = self.catalog.join(name.as_str());
        if self.definitions.accepted(name)?.is_some() || folder.join(FILE).symlink_metadata().is_err() {
            return Ok(());
        }
        if let Ok(Opened::Ready(installed)) =
            open_tool(&folder, name, self.cache, Some(self.build), self.trust)
        {
            self.definitions.admit(&[&installed.descriptor])?;
        }
        Ok(())
    }
}

/// Refuses a module that starts with more memory than its author declares, because no run of it can start.
fn check_start_memory(manifest: &ToolManifest, facts: &ModuleFacts) -> Result<(), CatalogError> {
    match manifest.capabilities.limits.quantity::<MemoryLimit>() {
        Some(declared) if facts.start_memory_bytes > declared.bytes() => {
            Err(CatalogError::StartMemory { needed_mb: facts.start_memory_mb(), declared_mb: declared.mb() })
        }
        Some(_) | None => Ok(()),
    }
}

/// Writes a checked tool as the folder `name`.
pub(super) fn write(name: &str, checked: &CheckedTool, folder: &ToolsFolder) -> Result<(), CatalogError> {
    let CheckedTool { package, signatures, wasm, tool: _, manifest: _, described: _ } = checked;
    let mut files = package.files().collect::<Vec<_>>();
    files.push(("tool.wasm", wasm));
    files.extend(signatures.as_deref().map(|signatures| (SIGNATURES_FILE, signatures)));
    folder.replace(name, &files)
}
