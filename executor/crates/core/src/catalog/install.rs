//! Checks a tool in the form in which its author has it, and installs it into a catalogue.

use super::code::read_regular_file;
use super::definition::{Place, WAITING_FOLDER};
use super::manifest::{self, FILE, ToolManifest};
use super::package::{Package, read_readme};
use super::trust::{check_rollback, check_trust};
use super::{
    Cache, CatalogError, CompileJob, Compiled, Definitions, Installation, MAX_MODULE_BYTES, ModuleFacts,
    Tool, ToolBuilder, Update, assemble, load_or_build, open_tool,
};
use a2g_govern::ToolTrust;
use a2g_types::ident::ToolName;
use a2g_types::tool::{Contract, Digest};
use std::path::Path;

/// The file of a package's signatures in a tool's folder.
const SIGNATURES_FILE: &str = "signatures.json";
/// The maximum size of that file, in bytes.
pub const MAX_SIGNATURES_BYTES: u64 = 64 << 10;

/// A tool that could be installed.
#[derive(Debug)]
pub struct CheckedTool {
    /// The tool.
    pub tool: Tool,
    /// Its manifest: that of the folder, or the one made for a bare module.
    pub manifest: ToolManifest,
    /// Its package: that of the folder if it fits the folder's files, or a new one.
    pub package: Package,
    /// The signatures of the package, unverified.
    pub signatures: Option<Vec<u8>>,
    /// The size of the module, in bytes.
    pub module_bytes: usize,
    /// The name, version, description and argument schema that a typed module reports.
    pub described: Option<[String; 4]>,
}

/// Checks a tool as [`install`] does, and installs nothing. Nothing is compiled if `trust` refuses the tool.
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
    prepare(source, cache, build, trust).map(|(checked, _wasm)| checked)
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
    let (digest, bytes) = (Digest::compute(&wasm), wasm.len());
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

/// Adds a tool to a catalogue. `source` is a folder with a `tool.toml`, or a bare typed module, which reports
/// its own name, version and description. The installed `tool.toml` pins the module's digest.
///
/// The catalogue is unchanged when the module does not compile or violates its contract. An existing tool
/// with the same name is replaced completely, unless the new definition needs approval: then the update waits beside the
/// tools, and replaces one that waited there. If `trust` demands signatures, they are checked before anything is compiled,
/// and no older version replaces the installed one.
///
/// # Ambient Authority
/// Reads `source`, writes `catalog/<name>` or `catalog/.waiting/<name>`, and the file of `definitions`.
///
/// # Errors
/// [`CatalogError`] with the problem of the tool.
pub fn install(
    source: &Path,
    catalog: &Path,
    cache: &Cache,
    build: &dyn ToolBuilder,
    trust: &ToolTrust,
    definitions: &Definitions,
) -> Result<Installation, CatalogError> {
    check_rollback(source, catalog, trust)?;
    let (checked, wasm) = prepare(source, cache, build, trust)?;
    let name = &checked.manifest.name;
    remember_installed(name, catalog, cache, build, trust, definitions)?;
    let signatures = checked.signatures.as_deref();
    let mut locked = definitions.lock()?;
    let accepted = locked.accepted(name)?;
    if let Some(changes) = locked.find_waiting_changes(&checked.tool.descriptor)? {
        write(name.as_str(), &checked.package, signatures, &wasm, &catalog.join(WAITING_FOLDER))?;
        let place = Place::Waiting;
        return Ok(Installation::Waits(Box::new(Update { checked, wasm, accepted, changes, place })));
    }
    locked.accept(&checked.tool.descriptor)?;
    // In this order, a crash in between leaves a tool that a server accepts at its next start.
    write(name.as_str(), &checked.package, signatures, &wasm, catalog)?;
    locked.write()?;
    Ok(Installation::Installed(Box::new(checked.tool)))
}

/// Accepts the installed tool of this name if none was accepted, as a server would: it is what an update is compared
/// with. A tool that is broken tells nobody anything, so an update may replace it.
fn remember_installed(
    name: &ToolName,
    catalog: &Path,
    cache: &Cache,
    build: &dyn ToolBuilder,
    trust: &ToolTrust,
    definitions: &Definitions,
) -> Result<(), CatalogError> {
    let folder = catalog.join(name.as_str());
    if definitions.accepted(name)?.is_some() || folder.join(FILE).symlink_metadata().is_err() {
        return Ok(());
    }
    if let Ok(Some(installed)) = open_tool(&folder, name, cache, Some(build), trust) {
        definitions.admit(&[&installed.descriptor])?;
    }
    Ok(())
}

/// Checks a tool, and returns it with its module.
pub(super) fn prepare(
    source: &Path,
    cache: &Cache,
    build: &dyn ToolBuilder,
    trust: &ToolTrust,
) -> Result<(CheckedTool, Vec<u8>), CatalogError> {
    let (manifest, wasm, trusted) = if source.is_dir() {
        let (manifest, text) = ToolManifest::read_with_text(&source.join(FILE))?;
        let wasm = read_regular_file(&source.join(&manifest.module), MAX_MODULE_BYTES)?;
        let trusted = check_trust(trust, &manifest, &text, Digest::compute(&wasm), source)?;
        (Some(manifest), wasm, trusted)
    } else {
        // A bare module has no package.
        let trusted = trust.check(None)?;
        (None, read_regular_file(source, MAX_MODULE_BYTES)?, trusted)
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
        (None, Some(described)) => ToolManifest::from_description(ToolName::parse(&described[0])?, described),
        (None, None) => {
            return Err(CatalogError::Module(format!(
                "a bare module must be a typed tool: to add a command, put it in a folder with a `{FILE}` and add the folder"
            )));
        }
    };
    check_start_memory(&manifest, &facts)?;
    let manifest = ToolManifest { sha256: Some(digest.to_string()), module: "tool.wasm".into(), ..manifest };
    let module_bytes = wasm.len();
    let kept = if source.is_dir() { read_fitting(source, digest)? } else { None };
    let (package, signatures) = match kept {
        Some(package) => (package, read_signatures(source)?),
        // The signatures of another package would only be refused later.
        None => {
            let readme = if source.is_dir() { read_readme(source)? } else { None };
            (Package::new(&manifest, &wasm, &facts, readme)?, None)
        }
    };
    let tool = assemble(manifest.clone(), digest, wasm.clone(), cache, Some(build), trusted)?;
    let tool = tool.ok_or_else(not_built)?;
    Ok((CheckedTool { tool, manifest, package, signatures, module_bytes, described }, wasm))
}

/// The package of a folder, if it fits the folder's files; otherwise they were changed, and the tool is packaged again.
// A package that another version of this program made keeps its bytes, and so its digest and its signatures.
fn read_fitting(source: &Path, module: Digest) -> Result<Option<Package>, CatalogError> {
    let Some(package) = Package::read(source)? else { return Ok(None) };
    let text = read_regular_file(&source.join(FILE), manifest::MAX_BYTES)?;
    let readme = read_readme(source)?;
    let fits = package.check_files(&text, module).and_then(|()| package.check_readme(readme.as_deref()));
    Ok(fits.is_ok().then_some(package))
}

/// Reads the signatures of a folder's package; `None` if there are none.
pub(super) fn read_signatures(folder: &Path) -> Result<Option<Vec<u8>>, CatalogError> {
    let path = folder.join(SIGNATURES_FILE);
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    read_regular_file(&path, MAX_SIGNATURES_BYTES).map(Some)
}

/// Refuses a module that starts with more memory than its author declares, because no run of it can start.
fn check_start_memory(manifest: &ToolManifest, facts: &ModuleFacts) -> Result<(), CatalogError> {
    match manifest.capabilities.memory {
        Some(declared) if facts.start_memory_bytes > declared.bytes() => {
            Err(CatalogError::StartMemory { needed_mb: facts.start_memory_mb(), declared_mb: declared.mb() })
        }
        Some(_) | None => Ok(()),
    }
}

/// Writes the folder `name` of a tool under a temporary name and renames it.
pub(super) fn write(
    name: &str,
    package: &Package,
    signatures: Option<&[u8]>,
    wasm: &[u8],
    catalog: &Path,
) -> Result<(), CatalogError> {
    let io = |error| CatalogError::io(catalog, error);
    std::fs::create_dir_all(catalog).map_err(io)?;
    let draft = tempfile::Builder::new().prefix(".adding-").tempdir_in(catalog).map_err(io)?;
    package.write(draft.path())?;
    std::fs::write(draft.path().join("tool.wasm"), wasm).map_err(io)?;
    if let Some(signatures) = signatures {
        std::fs::write(draft.path().join(SIGNATURES_FILE), signatures).map_err(io)?;
    }
    let target = catalog.join(name);
    if target.exists() {
        let backup = tempfile::Builder::new().prefix(".replaced-").tempdir_in(catalog).map_err(io)?;
        std::fs::rename(&target, backup.path().join("tool")).map_err(io)?;
    }
    std::fs::rename(draft.keep(), &target).map_err(io)?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o755)).map_err(io)
}
