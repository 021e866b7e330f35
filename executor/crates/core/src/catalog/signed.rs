//! Signed packages beside the sources of a tool: `signed/` in the author's folder.
//!
//! The author's `tool.toml` pins no digest, so it cannot be part of a package. `tool sign` writes a complete, pinned
//! package with its signatures to `signed/`. `tool add` and `tool push` take it from there, as long as the folder still
//! has the files that were signed.

use super::code::read_regular_file;
use super::install::{check, write};
use super::manifest::{FILE, ToolManifest};
use super::package::{Package, read_readme};
use super::tools_folder::ToolsFolder;
use super::{Cache, CatalogError, MAX_MODULE_BYTES, ToolBuilder};
use a2g_govern::{PackageToSign, ToolSigningKey, ToolTrust, sign_package};
use a2g_types::ident::ToolName;
use a2g_types::tool::Digest;
use std::path::{Path, PathBuf};
use time::OffsetDateTime;

/// The folder of the signed package in a tool's folder.
const FOLDER: &str = "signed";

/// A signed package.
#[derive(Debug)]
pub struct SignedFolder {
    /// The folder with the package and its signatures.
    pub folder: PathBuf,
    /// The name of the tool.
    pub name: ToolName,
    /// The version of the tool.
    pub version: String,
    /// The digest of the package.
    pub package: Digest,
}

/// The folder from which a tool is added or pushed: `signed/` in the tool's folder, or the folder itself if it has
/// none. Returns a path that is not a folder unchanged.
///
/// # Ambient Authority
/// Reads files of the folder.
///
/// # Errors
/// [`CatalogError::SignedOutdated`] if `signed/` was made of other files than the folder has now.
pub fn package_folder(source: &Path) -> Result<PathBuf, CatalogError> {
    let folder = source.join(FOLDER);
    if folder.symlink_metadata().is_err() {
        return Ok(source.to_owned());
    }
    match changed_file(source, &folder)? {
        None => Ok(folder),
        Some(file) => Err(CatalogError::SignedOutdated { folder, file }),
    }
}

/// The file of a tool's folder that differs from its signed package; `None` if all are the same.
fn changed_file(source: &Path, signed: &Path) -> Result<Option<&'static str>, CatalogError> {
    let Some(package) = Package::read(signed)? else { return Ok(Some("manifest.json")) };
    let manifest = ToolManifest::read(&source.join(FILE))?;
    let wasm = read_regular_file(&source.join(&manifest.module), MAX_MODULE_BYTES)?;
    let digest = Digest::compute(&wasm);
    if package.module().0 != digest {
        return Ok(Some("module"));
    }
    // Compared as values, because another version of this program may format the same values differently.
    let pinned = ToolManifest { sha256: Some(digest.to_string()), module: "tool.wasm".into(), ..manifest };
    let packaged = ToolManifest::parse(package.tool_toml())
        .map_err(|reason| CatalogError::Manifest { path: signed.join(FILE), reason })?;
    if packaged != pinned {
        return Ok(Some(FILE));
    }
    if package.check_readme(read_readme(source)?.as_deref()).is_err() {
        return Ok(Some("README.md"));
    }
    Ok(None)
}

/// Checks the tool in a folder as [`super::check`] does, and writes its package with a signature by `key` to `signed/`.
/// If that folder already has a package of the same files, adds the signature to it.
///
/// # Ambient Authority
/// Reads `source`, writes `source/signed`, reads and writes the cache, and runs `build`.
///
/// # Errors
/// [`CatalogError`] with the problem of the tool, and [`CatalogError::Sign`].
pub fn sign(
    source: &Path,
    key: &ToolSigningKey,
    expires_at: Option<OffsetDateTime>,
    cache: &Cache,
    build: &dyn ToolBuilder,
) -> Result<SignedFolder, CatalogError> {
    let packaged = match package_folder(source) {
        Ok(folder) => folder,
        Err(CatalogError::SignedOutdated { .. } | CatalogError::Package(_)) => source.to_owned(),
        Err(error) => return Err(error),
    };
    let mut checked = check(&packaged, cache, build, &ToolTrust::anyone())?;
    let manifest = &checked.manifest;
    let package = checked.package.digest();
    let what = PackageToSign { name: &manifest.name, version: &manifest.version, package, expires_at };
    checked.signatures = Some(sign_package(key, what, checked.signatures.as_deref())?);
    write(FOLDER, &checked, &ToolsFolder::create(source)?)?;
    let ToolManifest { name, version, .. } = checked.manifest;
    Ok(SignedFolder { folder: source.join(FOLDER), name, version, package })
}
