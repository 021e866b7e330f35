//! The lists of components, the checksums, and their signature.
//!
//! OpenSSL signs and verifies, so that the signature needs no program of this project. The key also signs the tools
//! (`tool sign`), which reads the same file.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use sha2::{Digest as _, Sha256};

use super::{Packed, Release, root};
use crate::run;
use crate::sbom::{Components, Package, Tool};

const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.sig";
const SIGNER: &str = "signer.pem";
/// The beginning of the PEM of every Ed25519 public key (RFC 8410).
const ED25519_PEM: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA";
const KEY_VARIABLE: &str = "A2G_DIST_KEY";

/// The key that signs a release.
pub(crate) struct Key {
    private: PathBuf,
    public: PathBuf,
}

impl Key {
    /// The key of `A2G_DIST_KEY`, or else the one in the working folder, which is created if it is missing.
    pub(crate) fn find(work: &Path) -> Result<Self> {
        let public = work.join(SIGNER);
        let private = match env::var_os(KEY_VARIABLE) {
            Some(file) => PathBuf::from(file),
            None => {
                let file = work.join("key.pem");
                if !file.exists() {
                    let created = openssl(
                        Command::new("openssl").args(["genpkey", "-algorithm", "ed25519", "-out"]).arg(&file),
                    );
                    ensure!(created, "openssl could not create the key {}", file.display());
                }
                let remark = format!("{} signs; set {KEY_VARIABLE} for a release", file.display());
                run::progress("Trial key", &remark);
                file
            }
        };
        let mut export = Command::new("openssl");
        export.args(["pkey", "-pubout", "-in"]).arg(&private).arg("-out").arg(&public);
        let is_ed25519 =
            openssl(&mut export) && fs::read_to_string(&public).is_ok_and(|pem| pem.starts_with(ED25519_PEM));
        ensure!(
            is_ed25519,
            "{} is not a private Ed25519 key in PEM: `openssl genpkey -algorithm ed25519 -out FILE` makes one",
            private.display()
        );
        Ok(Self { private, public })
    }

    pub(crate) fn private(&self) -> &Path {
        &self.private
    }

    /// The file with the public key, as PEM.
    pub(crate) fn public(&self) -> &Path {
        &self.public
    }

    fn sign(&self, file: &Path, signature: &Path) -> Result<()> {
        let mut sign = Command::new("openssl");
        sign.args(["pkeyutl", "-sign", "-rawin", "-inkey"]).arg(&self.private);
        sign.arg("-in").arg(file).arg("-out").arg(signature);
        ensure!(openssl(&mut sign), "openssl could not sign {}: it has to be 3.0 or newer", file.display());
        Ok(())
    }
}

/// Runs openssl. Returns `true` if it succeeds.
fn openssl(command: &mut Command) -> bool {
    run::output(command).is_some()
}

/// `true` if the key signed the file, as OpenSSL says.
fn is_signed(file: &Path, signature: &Path, signer: &Path) -> bool {
    let mut verify = Command::new("openssl");
    verify.args(["pkeyutl", "-verify", "-pubin", "-rawin", "-inkey"]).arg(signer);
    openssl(verify.arg("-in").arg(file).arg("-sigfile").arg(signature))
}

/// Writes the list of each package beside it, and then the checksums of all files and their signature.
pub(crate) fn write(packages: &[Packed<'_>], folder: &Path, key: &Key) -> Result<()> {
    for Packed { release, files } in packages {
        let components = Components::find(release.workspace, Some(&release.architecture.target()))?;
        let tools = tools(release)?;
        for path in files.iter().filter(|path| path.extension().is_none_or(|kind| kind != "json")) {
            let name = path.strip_prefix(folder)?.to_string_lossy().into_owned();
            let package = Package { name, sha256: digest(path)?, version: &release.version, tools: &tools };
            let mut list = path.clone().into_os_string();
            list.push(".cdx.json");
            fs::write(list, components.document(Some(&package))?)?;
        }
    }
    let sums = folder.join(SUMS);
    fs::write(&sums, sums_of(folder)?)?;
    let signature = folder.join(SIGNATURE);
    let signer = folder.join(SIGNER);
    key.sign(&sums, &signature)?;
    fs::copy(key.public(), &signer)?;
    ensure!(
        is_signed(&sums, &signature, &signer),
        "openssl does not verify the signature of {}",
        sums.display()
    );
    Ok(())
}

/// The checksums in the format of `sha256sum`.
fn sums_of(folder: &Path) -> Result<String> {
    let mut lines = String::new();
    for entry in super::finished(folder)? {
        if ![SUMS, SIGNATURE, SIGNER].contains(&entry.path.as_str()) {
            lines.push_str(&format!("{}  {}\n", digest(&entry.file)?, entry.path));
        }
    }
    Ok(lines)
}

/// The tools of a root.
fn tools(release: &Release<'_>) -> Result<Vec<Tool>> {
    let folder = release.root.join(root::TOOLS);
    let mut tools = Vec::new();
    for name in root::tools(&folder)? {
        let manifest = fs::read_to_string(folder.join(&name).join(root::MANIFEST))?;
        let version = manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
        let version = version.with_context(|| format!("the tool {name} has no version"))?.to_owned();
        let sha256 = digest(&folder.join(&name).join("tool.wasm"))?;
        tools.push(Tool { sha256, name, version });
    }
    Ok(tools)
}

fn digest(path: &Path) -> Result<String> {
    Ok(run::to_hex(&Sha256::digest(fs::read(path)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openssl_verifies_the_signature_of_the_checksums_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("work")).unwrap();
        fs::create_dir(path("npm")).unwrap();
        fs::write(path("npm/a.tgz"), "abc").unwrap();
        let key = Key::find(&path("work")).unwrap();
        write(&[], folder.path(), &key).unwrap();
        let sums = fs::read_to_string(path(SUMS)).unwrap();
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sums, format!("{digest}  npm/a.tgz\n"));

        let is_signed = || is_signed(&path(SUMS), &path(SIGNATURE), &path(SIGNER));
        assert!(is_signed());
        let signature = fs::read(path(SIGNATURE)).unwrap();
        write(&[], folder.path(), &Key::find(&path("work")).unwrap()).unwrap();
        assert_eq!(
            fs::read(path(SIGNATURE)).unwrap(),
            signature,
            "the key is kept, and signs without randomness"
        );
        fs::write(path(SUMS), sums.replace("ba78", "ba79")).unwrap();
        assert!(!is_signed());
    }
}
