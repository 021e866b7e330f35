//! Installs a tool into a catalogue.

use super::code::read_regular_file;
use super::manifest::{FILE, ToolManifest};
use super::{Cache, CatalogError, CompileJob, MAX_MODULE_BYTES, Tool, ToolBuilder, assemble, load_or_build};
use a2g_types::ident::ToolName;
use a2g_types::tool::{Contract, Digest};
use std::path::Path;

/// Adds a tool to a catalogue. `source` is a folder with a `tool.toml`, or a bare typed module, which reports
/// its own name, version and description. The installed `tool.toml` pins the module's digest.
///
/// The catalogue is unchanged when the module does not compile or violates its contract. An existing tool
/// with the same name is replaced completely.
///
/// # Ambient Authority
/// Reads `source`, writes `catalog/<name>`.
///
/// # Errors
/// [`CatalogError`] with the problem of the tool.
pub fn install(
    source: &Path,
    catalog: &Path,
    cache: &Cache,
    build: &dyn ToolBuilder,
) -> Result<Tool, CatalogError> {
    let (manifest, wasm) = if source.is_dir() {
        let manifest = ToolManifest::read(&source.join(FILE))?;
        let wasm = read_regular_file(&source.join(&manifest.module), MAX_MODULE_BYTES)?;
        (Some(manifest), wasm)
    } else {
        (None, read_regular_file(source, MAX_MODULE_BYTES)?)
    };
    let digest = Digest::compute(&wasm);
    let manifest = match manifest {
        Some(manifest) => manifest,
        None => {
            let file_name = source.file_name().unwrap_or_default().to_string_lossy();
            let job = CompileJob { wasm: wasm.clone(), contract: Contract::Typed };
            let compiled = load_or_build(&file_name, digest, &job, cache, Some(build))?;
            let Some(described) = compiled.and_then(|compiled| compiled.described) else {
                return Err(CatalogError::Module(format!(
                    "a bare module must be a typed tool: to add a command, put it in a folder with a `{FILE}` and add the folder"
                )));
            };
            ToolManifest::from_description(ToolName::parse(&described[0])?, &described)
        }
    };
    if let Some(pinned) = manifest.sha256.as_ref().filter(|pinned| **pinned != digest.to_string()) {
        return Err(CatalogError::Digest { found: digest.to_string(), pinned: pinned.clone() });
    }
    let manifest = ToolManifest { sha256: Some(digest.to_string()), module: "tool.wasm".into(), ..manifest };
    let tool = assemble(manifest.clone(), digest, wasm.clone(), cache, Some(build))?;
    let tool = tool.ok_or_else(|| CatalogError::Module("the tool was not built".to_owned()))?;
    write(&manifest, &wasm, catalog)?;
    Ok(tool)
}

/// Writes the tool's folder under a temporary name and renames it.
fn write(manifest: &ToolManifest, wasm: &[u8], catalog: &Path) -> Result<(), CatalogError> {
    let io = |error| CatalogError::io(catalog, error);
    let text = manifest.to_toml().map_err(|reason| CatalogError::Manifest {
        path: catalog.join(manifest.name.as_str()).join(FILE),
        reason,
    })?;
    std::fs::create_dir_all(catalog).map_err(io)?;
    let draft = tempfile::Builder::new().prefix(".adding-").tempdir_in(catalog).map_err(io)?;
    std::fs::write(draft.path().join(FILE), text).map_err(io)?;
    std::fs::write(draft.path().join("tool.wasm"), wasm).map_err(io)?;
    let target = catalog.join(manifest.name.as_str());
    if target.exists() {
        let backup = tempfile::Builder::new().prefix(".replaced-").tempdir_in(catalog).map_err(io)?;
        std::fs::rename(&target, backup.path().join("tool")).map_err(io)?;
    }
    std::fs::rename(draft.keep(), &target).map_err(io)?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o755)).map_err(io)
}
