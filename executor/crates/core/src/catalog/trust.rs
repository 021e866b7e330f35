//! What the operator demands of a tool (`[catalog.trust]`), checked before its module is compiled or loaded.

use super::CatalogError;
use super::install::read_signatures;
use super::manifest::{FILE, ToolManifest};
use super::package::{Package, read_readme};
use a2g_govern::{OfferedTool, SignatureError, ToolTrust, TrustedTool};
use a2g_types::ident::excerpt;
use a2g_types::tool::Digest;
use semver::Version;
use std::path::Path;

/// Checks the signatures of the tool in `folder`, whose files have to be those of its package. `text` is the `tool.toml`
/// from which `manifest` was parsed, and `module` the digest of the module.
///
/// # Ambient Authority
/// Reads files of the folder, if signatures are demanded.
///
/// # Errors
/// [`CatalogError::Package`] with the file that was changed, or [`CatalogError::Signature`].
pub(super) fn check_trust(
    trust: &ToolTrust,
    manifest: &ToolManifest,
    text: &str,
    module: Digest,
    folder: &Path,
) -> Result<TrustedTool, CatalogError> {
    if !trust.demands_signatures() {
        return Ok(trust.check(None)?);
    }
    let package = Package::read(folder)?.ok_or(SignatureError::NotPackaged)?;
    let signatures = match read_signatures(folder) {
        Ok(signatures) => signatures,
        Err(CatalogError::TooLarge { path: _, bytes, max_bytes }) => {
            let reason = format!("the file has {bytes} bytes, but at most {max_bytes} are accepted");
            return Err(SignatureError::Malformed(reason).into());
        }
        Err(error) => return Err(error),
    };
    package.check_files(text.as_bytes(), module)?;
    package.check_readme(read_readme(folder)?.as_deref())?;
    let offered = OfferedTool {
        name: &manifest.name,
        version: &manifest.version,
        package: package.digest(),
        signatures: signatures.as_deref(),
    };
    Ok(trust.check(Some(offered))?)
}

/// Refuses to replace an installed tool by an older version, if signatures are demanded: the signature of an old version
/// stays valid, so it would be a way back to known faults. Versions that are no semantic versions are not compared.
///
/// # Ambient Authority
/// Reads the `tool.toml` in `source` and in the catalogue.
///
/// # Errors
/// [`CatalogError::Rollback`].
pub fn check_rollback(source: &Path, catalog: &Path, trust: &ToolTrust) -> Result<(), CatalogError> {
    if !trust.demands_signatures() || !source.is_dir() {
        return Ok(());
    }
    let offered = ToolManifest::read(&source.join(FILE))?;
    // An installed tool that cannot be read has no version, and is replaced.
    let Ok(installed) = ToolManifest::read(&catalog.join(offered.name.as_str()).join(FILE)) else {
        return Ok(());
    };
    match (Version::parse(&offered.version), Version::parse(&installed.version)) {
        (Ok(new), Ok(old)) if new < old => Err(CatalogError::Rollback {
            name: offered.name,
            offered: excerpt(&offered.version),
            installed: excerpt(&installed.version),
        }),
        (Ok(_) | Err(_), Ok(_) | Err(_)) => Ok(()),
    }
}
