//! A tool enters a catalogue.

use super::compiler::{CompileJob, Compiler};
use super::manifest::{FILE, ToolManifest};
use super::{Cache, CatalogError, Entry, prepare};
use crate::ident::ToolName;
use crate::tool::{Contract, Digest};
use std::path::Path;

/// Adds a tool to a catalogue: a folder with a `tool.toml`, or a bare typed module, whose name,
/// version and description are its own. The module's digest is pinned in the copy of `tool.toml`.
///
/// Nothing is changed when the module does not compile or does not fit its contract. A tool of the
/// same name is replaced as a whole.
///
/// # Ambient Authority
/// Reads `source`, writes `catalog/<name>`.
///
/// # Errors
/// [`CatalogError`] says what is wrong with the tool.
pub fn install(source: &Path, catalog: &Path, cache: &Cache, compiler: &Compiler) -> Entry {
    let (manifest, wasm) = if source.is_dir() {
        let manifest = ToolManifest::read(&source.join(FILE))?;
        let module = source.join(&manifest.module);
        let wasm = std::fs::read(&module).map_err(|error| CatalogError::io(&module, error))?;
        (manifest, wasm)
    } else {
        let wasm = std::fs::read(source).map_err(|error| CatalogError::io(source, error))?;
        let described =
            compiler.run(&CompileJob { wasm: wasm.clone(), contract: Contract::Typed })?.described;
        let Some(described) = described else {
            return Err(CatalogError::Module(format!(
                "a bare module has to be a typed tool: put a command beside a `{FILE}` and add the folder"
            )));
        };
        (ToolManifest::of_described(ToolName::parse(&described[0])?, &described), wasm)
    };
    let digest = Digest::of(&wasm);
    if let Some(pinned) = manifest.sha256.as_ref().filter(|pinned| **pinned != digest.to_string()) {
        return Err(CatalogError::Digest { found: digest.to_string(), pinned: pinned.clone() });
    }
    let manifest = ToolManifest { sha256: Some(digest.to_string()), module: "tool.wasm".into(), ..manifest };
    let tool = prepare(manifest.clone(), digest, wasm.clone(), cache, compiler, &mut |_| {})?;
    write(&manifest, &wasm, catalog)?;
    Ok(tool)
}

/// Writes the tool's folder beside its place and moves it there.
fn write(manifest: &ToolManifest, wasm: &[u8], catalog: &Path) -> Result<(), CatalogError> {
    let io = |error| CatalogError::io(catalog, error);
    let text = manifest.to_toml().map_err(|reason| CatalogError::Manifest {
        path: catalog.join(manifest.name.as_str()).join(FILE),
        reason,
    })?;
    std::fs::create_dir_all(catalog).map_err(io)?;
    let fresh = tempfile::Builder::new().prefix(".adding-").tempdir_in(catalog).map_err(io)?;
    std::fs::write(fresh.path().join(FILE), text).map_err(io)?;
    std::fs::write(fresh.path().join("tool.wasm"), wasm).map_err(io)?;
    let place = catalog.join(manifest.name.as_str());
    if place.exists() {
        let replaced = tempfile::Builder::new().prefix(".replaced-").tempdir_in(catalog).map_err(io)?;
        std::fs::rename(&place, replaced.path().join("tool")).map_err(io)?;
    }
    std::fs::rename(fresh.keep(), &place).map_err(io)?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).map_err(io)
}
