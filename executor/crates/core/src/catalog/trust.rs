//! Checks of signatures and versions if `[catalog.trust]` requires signatures. Both run before a module is compiled or
//! loaded.

use super::code::{read_own_file, read_regular_file};
use super::manifest::{FILE, ToolManifest};
use super::package::{Package, read_arguments, read_readme};
use super::{CatalogError, MAX_MODULE_BYTES};
use a2g_govern::{OfferedTool, SignatureError, ToolTrust, TrustedTool};
use a2g_types::ident::{ToolName, excerpt};
use a2g_types::tool::Digest;
use semver::Version;
use std::path::Path;

/// The file of a package's signatures in a tool's folder.
pub(super) const SIGNATURES_FILE: &str = "signatures.json";
/// The maximum size of that file, in bytes.
pub const MAX_SIGNATURES_BYTES: u64 = 64 << 10;

/// The package in a tool's folder, with its README and signatures. The files are read once, so the verified bytes are
/// the installed ones.
#[derive(Debug, Default)]
pub(super) struct PackageFiles {
    pub(super) package: Option<Package>,
    /// The schema of the arguments that a typed module reports.
    pub(super) arguments: Option<String>,
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
        Ok(Self { package, arguments: read_arguments(folder)?, readme: read_readme(folder)?, signatures })
    }

    /// Checks that the files of a tool are exactly those of the package. `text` is its `tool.toml`.
    ///
    /// # Errors
    /// [`CatalogError::Package`] with the file that was changed, or [`CatalogError::Signature`] without a package.
    pub(super) fn check(&self, text: &str, module: Digest) -> Result<&Package, CatalogError> {
        let package = self.package.as_ref().ok_or(SignatureError::NotPackaged)?;
        package.check_files(text.as_bytes(), module)?;
        package.check_arguments(self.arguments.as_deref())?;
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
    if !trust.requires_signatures() {
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

/// The name and package of an installed tool, if its files are exactly those of the package and `trust` accepts it.
///
/// # Ambient Authority
/// Reads files of the folder.
#[must_use]
pub fn find_installed_package(folder: &Path, trust: &ToolTrust) -> Option<(ToolName, Package)> {
    let read = || {
        let (manifest, text) = ToolManifest::read_with_text(&folder.join(FILE))?;
        let wasm = read_regular_file(&folder.join(&manifest.module), MAX_MODULE_BYTES)?;
        let module = Digest::compute(&wasm);
        let files = PackageFiles::read(folder)?;
        let package = files.check(&text, module)?.clone();
        check_trust(trust, &manifest, &text, module, &files)?;
        Ok::<_, CatalogError>((manifest.name, package))
    };
    // A tool that cannot be read counts as a tool without a package.
    read().ok()
}

/// If signatures are required, refuses to replace an installed tool by an older version. The signature of an old
/// version stays valid, so without this check known faults could be reintroduced. A version that is not semantic has no
/// order: it replaces no semantic version, but any other.
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
    if !trust.requires_signatures() {
        return Ok(());
    }
    // An installed tool that cannot be read has no version to compare, and may be replaced.
    let Ok(installed) = ToolManifest::read(&catalog.join(offered.name.as_str()).join(FILE)) else {
        return Ok(());
    };
    let name = offered.name.clone();
    let offered = &offered.version;
    let installed = &installed.version;
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

/// Reads the signatures of a folder's package; `None` if there are none.
fn read_signatures(folder: &Path) -> Result<Option<Vec<u8>>, CatalogError> {
    let path = folder.join(SIGNATURES_FILE);
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    read_own_file(&path, MAX_SIGNATURES_BYTES).map(Some)
}
