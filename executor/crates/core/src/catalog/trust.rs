//! The signatures of a tool, and the comparison of versions, if `[catalog.trust]` demands signatures. Both are checked before
//! a module is compiled or loaded.

use super::code::read_regular_file;
use super::install::read_signatures;
use super::manifest::{FILE, ToolManifest};
use super::package::{Package, read_readme};
use super::{CatalogError, MAX_MODULE_BYTES};
use a2g_govern::{OfferedTool, SignatureError, ToolTrust, TrustedTool};
use a2g_types::ident::{ToolName, excerpt};
use a2g_types::tool::Digest;
use semver::Version;
use std::path::Path;

/// The package in a tool's folder, and the files that belong to it. They are read once, so that what is verified is what is
/// installed.
#[derive(Debug, Default)]
pub(super) struct PackageFiles {
    pub(super) package: Option<Package>,
    pub(super) readme: Option<String>,
    /// `None` without a package.
    pub(super) signatures: Option<Vec<u8>>,
}

impl PackageFiles {
    pub(super) fn read(folder: &Path) -> Result<Self, CatalogError> {
        let package = Package::read(folder)?;
        let signatures = match package.as_ref().map_or(Ok(None), |_package| read_signatures(folder)) {
            Ok(signatures) => signatures,
            Err(CatalogError::TooLarge { path: _, bytes, max_bytes }) => {
                let reason = format!("the file has {bytes} bytes, but at most {max_bytes} are accepted");
                return Err(SignatureError::Malformed(reason).into());
            }
            Err(error) => return Err(error),
        };
        Ok(Self { package, readme: read_readme(folder)?, signatures })
    }

    /// Checks that a tool has exactly the files of the package. `text` is its `tool.toml`.
    ///
    /// # Errors
    /// [`CatalogError::Package`] with the file that was changed, or [`CatalogError::Signature`] without a package.
    pub(super) fn check(&self, text: &str, module: Digest) -> Result<&Package, CatalogError> {
        let package = self.package.as_ref().ok_or(SignatureError::NotPackaged)?;
        package.check_files(text.as_bytes(), module)?;
        package.check_readme(self.readme.as_deref())?;
        Ok(package)
    }
}

/// Checks the signatures of a tool, whose files have to be those of its package. `text` is the `tool.toml` from which
/// `manifest` was parsed, and `module` the digest of the module.
///
/// # Errors
/// [`CatalogError::Package`] with the file that was changed, or [`CatalogError::Signature`].
pub(super) fn check_trust(
    trust: &ToolTrust,
    manifest: &ToolManifest,
    text: &str,
    module: Digest,
    files: &PackageFiles,
) -> Result<TrustedTool, CatalogError> {
    if !trust.demands_signatures() {
        return Ok(trust.check(None)?);
    }
    let offered = OfferedTool {
        name: &manifest.name,
        version: &manifest.version,
        package: files.check(text, module)?.digest(),
        signatures: files.signatures.as_deref(),
    };
    Ok(trust.check(Some(offered))?)
}

/// The name and the package of an installed tool, if it has exactly the files of the package, and `trust` accepts it.
///
/// # Ambient Authority
/// Reads files of the folder.
#[must_use]
pub fn find_installed_package(folder: &Path, trust: &ToolTrust) -> Option<(ToolName, Package)> {
    let read = || {
        let (manifest, text) = ToolManifest::read_with_text(&folder.join(FILE))?;
        let wasm = read_regular_file(&folder.join(&manifest.module), MAX_MODULE_BYTES)?;
        let (module, files) = (Digest::compute(&wasm), PackageFiles::read(folder)?);
        let package = files.check(&text, module)?.clone();
        check_trust(trust, &manifest, &text, module, &files)?;
        Ok::<_, CatalogError>((manifest.name, package))
    };
    // A tool that cannot be read has no package.
    read().ok()
}

/// Refuses to replace an installed tool by an older version, if signatures are demanded: the signature of an old version
/// stays valid, so it would be a way back to known faults. A version that is no semantic one has no order, so it replaces
/// no semantic one; in place of another such version, it is accepted.
///
/// # Ambient Authority
/// Reads the `tool.toml` in the catalogue.
///
/// # Errors
/// [`CatalogError::Rollback`] or [`CatalogError::NotComparable`].
pub(super) fn check_rollback(
    offered: &ToolManifest,
    catalog: &Path,
    trust: &ToolTrust,
) -> Result<(), CatalogError> {
    if !trust.demands_signatures() {
        return Ok(());
    }
    // An installed tool that cannot be read has no version, and is replaced.
    let Ok(installed) = ToolManifest::read(&catalog.join(offered.name.as_str()).join(FILE)) else {
        return Ok(());
    };
    let (name, offered, installed) = (offered.name.clone(), &offered.version, &installed.version);
    match (Version::parse(offered), Version::parse(installed)) {
        // Build metadata has no precedence.
        (Ok(new), Ok(old)) if new.cmp_precedence(&old).is_lt() => {
            Err(CatalogError::Rollback { name, offered: excerpt(offered), installed: excerpt(installed) })
        }
        (Err(_), Ok(_)) => Err(CatalogError::NotComparable {
            name,
            offered: excerpt(offered),
            installed: excerpt(installed),
        }),
        (Ok(_), Ok(_)) | (Ok(_) | Err(_), Err(_)) => Ok(()),
    }
}
