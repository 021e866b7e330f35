//! A tool as an OCI artifact: the package that is signed, pushed to a registry and pulled from one.
//!
//! ```text
//! manifest.json ─ digest ─┬─▶ config.json   tool.toml, arguments.json, README.md, and what other hosts read of a module
//!  (its digest is the     └─▶ tool.wasm     the only layer
//!   package's digest)
//! ```
//! The layout is that of the CNCF's Wasm OCI artifact. Its readers accept exactly one layer, so a member of the config,
//! which they ignore, has the other files of the tool. Packaging is reproducible: the same tool always gives the same
//! bytes, independent of time and machine.

use super::code::read_own_file;
use super::manifest::{FILE, ToolManifest};
use super::tools_folder::ToolsFolder;
use super::{CatalogError, ModuleFacts};
use a2g_types::tool::{Contract, Descriptor, Digest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The media type of a package's manifest.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of its config.
pub const CONFIG_TYPE: &str = "application/vnd.wasm.config.v0+json";
/// The media type of its module.
pub const MODULE_TYPE: &str = "application/wasm";
/// The maximum size of a manifest, in bytes.
pub const MAX_MANIFEST_BYTES: u64 = 1 << 20;
/// The maximum size of a config, in bytes.
pub const MAX_CONFIG_BYTES: u64 = 2 << 20;
/// The maximum size of a README, in bytes.
const MAX_README_BYTES: u64 = 256 << 10;
/// The file of the manifest in a tool's folder.
const MANIFEST_FILE: &str = "manifest.json";
/// The file of the config in a tool's folder.
const CONFIG_FILE: &str = "config.json";
/// The file in a typed tool's folder with the JSON Schema of its arguments, as the module reports it. With this file a
/// tool can be listed before its module is compiled.
pub(super) const ARGUMENTS_FILE: &str = "arguments.json";
/// The file of the README in a tool's folder.
const README_FILE: &str = "README.md";
/// The time in every config, which the layout requires. It is constant, so that the same files give the same package.
const CREATED: &str = "1970-01-01T00:00:00Z";
const DIGEST_PREFIX: &str = "sha256:";

/// The reason why bytes are not the package of a tool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackageError {
    /// The manifest or config is not JSON of the expected shape.
    #[error("the {part} of the package cannot be read: {reason}")]
    Malformed {
        /// `manifest` or `config`.
        part: &'static str,
        /// The problem.
        reason: String,
    },
    /// A manifest or config has another media type.
    #[error("the {part} of the package has the type `{found}`, but a tool's has `{expected}`")]
    MediaType {
        /// The part.
        part: &'static str,
        /// The actual type.
        found: String,
        /// The required type.
        expected: &'static str,
    },
    /// There is not exactly one layer.
    #[error("the package has {0} layers, but a tool's has exactly one, its module")]
    Layers(usize),
    /// A part exceeds the limit for its kind.
    #[error("the {part} of the package has {bytes} bytes, but at most {max_bytes} are accepted")]
    TooLarge {
        /// The part.
        part: &'static str,
        /// Its size, in bytes.
        bytes: u64,
        /// The limit, in bytes.
        max_bytes: u64,
    },
    /// The bytes of a part do not match the digest in the manifest.
    #[error(
        "the {part} of the package was changed: its SHA-256 is {found}, but the manifest names {expected}"
    )]
    Changed {
        /// The part.
        part: &'static str,
        /// The actual digest.
        found: String,
        /// The digest in the manifest.
        expected: String,
    },
    /// A file in the folder differs from the one in the package.
    #[error("`{0}` was changed after the tool was packaged: restore the file, or add the tool again")]
    FileChanged(&'static str),
    /// A tag that names a version points to another version.
    #[error(
        "the tag `{tag}` points to version `{version}` of the tool: the tag was moved, for example back to an older version"
    )]
    MovedTag {
        /// The tag.
        tag: String,
        /// The version of the package.
        version: String,
    },
    /// The artifact is a module without the files of a tool.
    #[error("the artifact is a module without a `tool.toml`: it was not pushed by `a2g-executor tool push`")]
    NotATool,
}

/// The package of one tool, without its module. Manifest and config match each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    manifest: Vec<u8>,
    config: Vec<u8>,
    module: Digest,
    module_bytes: u64,
    files: Files,
}

/// The members of an OCI image manifest that a package has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OciManifest {
    schema_version: u32,
    media_type: String,
    config: OciDescriptor,
    layers: Vec<OciDescriptor>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OciDescriptor {
    media_type: String,
    digest: String,
    size: u64,
}

/// The config of the Wasm OCI artifact, with one more member.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WasmConfig {
    created: String,
    architecture: String,
    os: String,
    layer_digests: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    component: Option<ComponentInterfaces>,
    #[serde(rename = "a2g.tool")]
    files: Option<Files>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ComponentInterfaces {
    exports: Vec<String>,
    imports: Vec<String>,
    target: Option<String>,
}

/// The files of a tool beside its module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Files {
    #[serde(rename = "tool.toml")]
    manifest: String,
    #[serde(rename = "arguments.json", skip_serializing_if = "Option::is_none")]
    arguments: Option<String>,
    #[serde(rename = "README.md", skip_serializing_if = "Option::is_none")]
    readme: Option<String>,
}

impl Package {
    /// Packages a checked tool. `manifest` pins the digest of `wasm`, and `arguments` is the schema that a typed module
    /// reports.
    ///
    /// # Errors
    /// [`CatalogError::Manifest`] if the manifest has a value that TOML cannot express.
    pub(super) fn new(
        manifest: &ToolManifest,
        wasm: &[u8],
        facts: &ModuleFacts,
        arguments: Option<String>,
        readme: Option<String>,
    ) -> Result<Self, CatalogError> {
        let text =
            manifest.to_toml().map_err(|reason| CatalogError::Manifest { path: FILE.into(), reason })?;
        let module = Digest::compute(wasm);
        let component = facts.is_component.then(|| ComponentInterfaces {
            exports: facts.exports.clone(),
            imports: facts.imports.clone(),
            target: None,
        });
        let files = Files { manifest: text, arguments, readme };
        let config = WasmConfig {
            created: CREATED.to_owned(),
            architecture: "wasm".to_owned(),
            os: if component.is_some() { "wasip2" } else { "wasip1" }.to_owned(),
            layer_digests: vec![format!("{DIGEST_PREFIX}{module}")],
            component,
            files: Some(files.clone()),
        };
        let malformed = |part| {
            move |error: serde_json::Error| PackageError::Malformed { part, reason: error.to_string() }
        };
        let config = serde_json::to_vec(&config).map_err(malformed("config"))?;
        check_size("config", config.len() as u64, MAX_CONFIG_BYTES)?;
        let annotation =
            |name: &str, text: &str| (format!("org.opencontainers.image.{name}"), text.to_owned());
        let module_bytes = wasm.len() as u64;
        let oci = OciManifest {
            schema_version: 2,
            media_type: MANIFEST_TYPE.to_owned(),
            config: OciDescriptor::of(CONFIG_TYPE, Digest::compute(&config), config.len() as u64),
            layers: vec![OciDescriptor::of(MODULE_TYPE, module, module_bytes)],
            annotations: BTreeMap::from([
                annotation("title", manifest.name.as_str()),
                annotation("version", &manifest.version),
                annotation("description", &manifest.description),
            ]),
        };
        let manifest = serde_json::to_vec(&oci).map_err(malformed("manifest"))?;
        Ok(Self { manifest, config, module, module_bytes, files })
    }

    /// Reads a package from the bytes of its manifest and config.
    ///
    /// # Errors
    /// [`PackageError`] if they are not those of a tool, or do not match each other.
    pub fn parse(manifest: Vec<u8>, config: Vec<u8>) -> Result<Self, PackageError> {
        let (module, module_bytes) = check_manifest(&manifest, &config)?;
        check_size("config", config.len() as u64, MAX_CONFIG_BYTES)?;
        let parsed: WasmConfig = serde_json::from_slice(&config)
            .map_err(|error| PackageError::Malformed { part: "config", reason: error.to_string() })?;
        let files = parsed.files.ok_or(PackageError::NotATool)?;
        Ok(Self { manifest, config, module, module_bytes, files })
    }

    /// The digest and the size in bytes of the config that a manifest names.
    ///
    /// # Errors
    /// [`PackageError`] if it is not the manifest of a tool.
    pub fn config_of(manifest: &[u8]) -> Result<(Digest, u64), PackageError> {
        let [config, _module] = parse_manifest(manifest)?;
        Ok(config)
    }

    /// Reads the package beside an installed tool; `None` if the tool was installed without one.
    ///
    /// # Ambient Authority
    /// Reads files of the folder.
    ///
    /// # Errors
    /// [`CatalogError`] if its files cannot be read, or are not a package.
    pub fn read(folder: &Path) -> Result<Option<Self>, CatalogError> {
        let path = folder.join(MANIFEST_FILE);
        if path.symlink_metadata().is_err() {
            return Ok(None);
        }
        let manifest = read_own_file(&path, MAX_MANIFEST_BYTES)?;
        let config = read_own_file(&folder.join(CONFIG_FILE), MAX_CONFIG_BYTES)?;
        Ok(Some(Self::parse(manifest, config)?))
    }

    /// Checks that an installed tool has the files of this package.
    ///
    /// # Errors
    /// [`PackageError::FileChanged`] with the file that differs.
    pub fn check_files(&self, tool_toml: &[u8], module: Digest) -> Result<(), PackageError> {
        if tool_toml != self.files.manifest.as_bytes() {
            return Err(PackageError::FileChanged(FILE));
        }
        if module != self.module {
            return Err(PackageError::FileChanged("tool.wasm"));
        }
        Ok(())
    }

    /// Checks that an installed tool has the README of this package.
    ///
    /// # Errors
    /// [`PackageError::FileChanged`].
    pub(super) fn check_readme(&self, readme: Option<&str>) -> Result<(), PackageError> {
        if readme == self.files.readme.as_deref() {
            Ok(())
        } else {
            Err(PackageError::FileChanged(README_FILE))
        }
    }

    /// Checks that an installed tool has the schema of its arguments from this package.
    ///
    /// # Errors
    /// [`PackageError::FileChanged`].
    pub(super) fn check_arguments(&self, arguments: Option<&str>) -> Result<(), PackageError> {
        if arguments == self.files.arguments.as_deref() {
            Ok(())
        } else {
            Err(PackageError::FileChanged(ARGUMENTS_FILE))
        }
    }

    /// Checks that a package pulled by a tag has the version that the tag names. A tag that is not a semantic version,
    /// such as `latest`, names none.
    ///
    /// # Errors
    /// [`PackageError::MovedTag`], and [`CatalogError::Manifest`] if the `tool.toml` of the package is not valid.
    pub fn check_tag(&self, tag: &str) -> Result<(), CatalogError> {
        let ToolManifest { version, .. } = ToolManifest::parse(&self.files.manifest)
            .map_err(|reason| CatalogError::Manifest { path: FILE.into(), reason })?;
        let Ok(named) = semver::Version::parse(tag.strip_prefix('v').unwrap_or(tag)) else { return Ok(()) };
        if semver::Version::parse(&version).is_ok_and(|version| version.cmp_precedence(&named).is_eq()) {
            return Ok(());
        }
        let tag = a2g_types::ident::excerpt(tag);
        let version = a2g_types::ident::excerpt(&version);
        Err(PackageError::MovedTag { tag, version }.into())
    }

    /// Writes the files of the package except its module.
    ///
    /// # Ambient Authority
    /// Writes files of the folder.
    ///
    /// # Errors
    /// [`CatalogError::Io`] if a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), CatalogError> {
        for (name, bytes) in self.files() {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(|error| CatalogError::io(&path, error))?;
        }
        Ok(())
    }

    /// The names and contents of the files, without the module and the signatures.
    pub(super) fn files(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let Self { manifest, config, module: _, module_bytes: _, files } = self;
        let Files { manifest: text, arguments, readme } = files;
        let arguments = arguments.as_deref().map(|arguments| (ARGUMENTS_FILE, arguments.as_bytes()));
        let readme = readme.as_deref().map(|readme| (README_FILE, readme.as_bytes()));
        [(MANIFEST_FILE, &**manifest), (CONFIG_FILE, &**config), (FILE, text.as_bytes())]
            .into_iter()
            .chain(arguments)
            .chain(readme)
    }

    /// The digest of the package: the SHA-256 of its manifest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::compute(&self.manifest)
    }

    /// The manifest. Its digest covers all other bytes.
    #[must_use]
    pub fn manifest(&self) -> &[u8] {
        &self.manifest
    }

    /// The config.
    #[must_use]
    pub fn config(&self) -> &[u8] {
        &self.config
    }

    /// The digest of the module, and its size in bytes.
    #[must_use]
    pub fn module(&self) -> (Digest, u64) {
        (self.module, self.module_bytes)
    }

    /// Checks that a registry may have this package.
    ///
    /// # Errors
    /// [`PackageError::TooLarge`] for a module above [`super::MAX_PULLED_MODULE_BYTES`].
    pub fn check_for_registry(&self) -> Result<(), PackageError> {
        check_size("module", self.module_bytes, super::MAX_PULLED_MODULE_BYTES)
    }

    /// The text of `tool.toml`, which pins the module's digest.
    #[must_use]
    pub fn tool_toml(&self) -> &str {
        &self.files.manifest
    }

    /// The README, which is in the registry with the tool.
    #[must_use]
    pub fn readme(&self) -> Option<&str> {
        self.files.readme.as_deref()
    }
}

impl OciDescriptor {
    fn of(media_type: &str, digest: Digest, size: u64) -> Self {
        Self { media_type: media_type.to_owned(), digest: format!("{DIGEST_PREFIX}{digest}"), size }
    }

    fn check(&self, part: &'static str, media_type: &'static str) -> Result<(Digest, u64), PackageError> {
        let Self { media_type: found, digest, size } = self;
        if found != media_type {
            let found = a2g_types::ident::excerpt(found);
            return Err(PackageError::MediaType { part, found, expected: media_type });
        }
        let digest = digest.strip_prefix(DIGEST_PREFIX).and_then(|digits| Digest::parse(digits).ok());
        let reason = || format!("the digest of the {part} is not a SHA-256");
        let digest = digest.ok_or_else(|| PackageError::Malformed { part: "manifest", reason: reason() })?;
        Ok((digest, *size))
    }
}

/// The digests and sizes of the config and the module that a manifest names.
fn parse_manifest(manifest: &[u8]) -> Result<[(Digest, u64); 2], PackageError> {
    check_size("manifest", manifest.len() as u64, MAX_MANIFEST_BYTES)?;
    let OciManifest { schema_version: _, media_type, config, layers, annotations: _ } =
        serde_json::from_slice(manifest)
            .map_err(|error| PackageError::Malformed { part: "manifest", reason: error.to_string() })?;
    if media_type != MANIFEST_TYPE {
        let found = a2g_types::ident::excerpt(&media_type);
        return Err(PackageError::MediaType { part: "manifest", found, expected: MANIFEST_TYPE });
    }
    let config = config.check("config", CONFIG_TYPE)?;
    check_size("config", config.1, MAX_CONFIG_BYTES)?;
    let [module] = &layers[..] else { return Err(PackageError::Layers(layers.len())) };
    let module = module.check("module", MODULE_TYPE)?;
    check_size("module", module.1, super::MAX_MODULE_BYTES)?;
    Ok([config, module])
}

fn check_manifest(manifest: &[u8], config: &[u8]) -> Result<(Digest, u64), PackageError> {
    let [(expected, _size), module] = parse_manifest(manifest)?;
    let found = Digest::compute(config);
    if found != expected {
        let found = found.to_string();
        let expected = expected.to_string();
        return Err(PackageError::Changed { part: "config", found, expected });
    }
    Ok(module)
}

fn check_size(part: &'static str, bytes: u64, max_bytes: u64) -> Result<(), PackageError> {
    if bytes > max_bytes { Err(PackageError::TooLarge { part, bytes, max_bytes }) } else { Ok(()) }
}

/// Reads the README of a tool's folder; `None` if there is none.
pub(super) fn read_readme(folder: &Path) -> Result<Option<String>, CatalogError> {
    read_text(folder, README_FILE, MAX_README_BYTES)
}

/// Reads the schema of the arguments in a tool's folder; `None` if there is none.
pub(super) fn read_arguments(folder: &Path) -> Result<Option<String>, CatalogError> {
    read_text(folder, ARGUMENTS_FILE, MAX_CONFIG_BYTES)
}

/// Writes the schema of a typed tool's arguments into its folder, unless the folder has a package, whose files do not
/// change.
///
/// # Ambient Authority
/// Writes `arguments.json` in the tool's folder of `catalog`.
///
/// # Errors
/// [`CatalogError::Io`] if the file cannot be written, or the tool's folder is a link.
pub fn write_arguments(catalog: &Path, tool: &Descriptor) -> Result<(), CatalogError> {
    if tool.contract == Contract::Command || tool.settings.is_some() {
        return Ok(());
    }
    let Some(folder) = ToolsFolder::create(catalog)?.open(tool.name.as_str())? else { return Ok(()) };
    if folder.entry(MANIFEST_FILE).symlink_metadata().is_ok() {
        return Ok(());
    }
    folder.write_file(ARGUMENTS_FILE, format!("{:#}\n", tool.arguments_schema).as_bytes())
}

fn read_text(folder: &Path, file: &'static str, max_bytes: u64) -> Result<Option<String>, CatalogError> {
    let path = folder.join(file);
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    let text = String::from_utf8(read_own_file(&path, max_bytes)?);
    text.map(Some).map_err(|_| {
        CatalogError::Package(PackageError::Malformed { part: file, reason: "it is not UTF-8".to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const TOOL: &str =
        "name = \"greet\"\nversion = \"1.0.0\"\ndescription = \"Greets.\"\ncontract = \"typed\"\n";

    type Change<'a> = &'a dyn Fn(&mut Value);

    fn package(folder: &Path, wasm: &[u8]) -> Package {
        std::fs::write(folder.join(FILE), TOOL).unwrap();
        let manifest = ToolManifest::read(&folder.join(FILE)).unwrap();
        let digest = Some(Digest::compute(wasm).to_string());
        let manifest = ToolManifest { sha256: digest, ..manifest };
        let facts = ModuleFacts { is_component: true, imports: vec!["a:b/c".into()], ..Default::default() };
        let arguments = Some("{}".to_owned());
        Package::new(&manifest, wasm, &facts, arguments, Some("# Greets".to_owned())).unwrap()
    }

    #[test]
    fn a_package_is_written_read_and_bound_to_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let package = package(folder.path(), b"wasm");
        package.write(folder.path()).unwrap();
        assert_eq!(Package::read(folder.path()).unwrap().as_ref(), Some(&package));
        let module = Digest::compute(b"wasm");
        assert_eq!(package.check_files(package.tool_toml().as_bytes(), module), Ok(()));
        assert_eq!(package.check_files(b"", module), Err(PackageError::FileChanged(FILE)));
        let other = Digest::compute(b"other");
        let changed = package.check_files(package.tool_toml().as_bytes(), other);
        assert_eq!(changed, Err(PackageError::FileChanged("tool.wasm")));
        assert_eq!(std::fs::read_to_string(folder.path().join(README_FILE)).unwrap(), "# Greets");
        assert_eq!(read_arguments(folder.path()).unwrap().as_deref(), Some("{}"));
        let other_arguments = package.check_arguments(Some("{\"type\":\"object\"}"));
        assert_eq!(other_arguments, Err(PackageError::FileChanged(ARGUMENTS_FILE)));
        let config: Value = serde_json::from_slice(package.config()).unwrap();
        assert_eq!((&config["os"], &config["component"]["imports"]), (&json!("wasip2"), &json!(["a:b/c"])));
    }

    #[test]
    fn a_tag_that_names_another_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let package = package(folder.path(), b"wasm");
        for tag in ["1.0.0", "v1.0.0", "latest", "1", "stable-2"] {
            assert!(package.check_tag(tag).is_ok(), "{tag}");
        }
        for tag in ["2.0.0", "v0.9.0", "1.0.0-rc.1"] {
            let error = package.check_tag(tag).unwrap_err().to_string();
            assert!(error.contains("the tag was moved") && error.contains("`1.0.0`"), "{tag}: {error}");
        }
    }

    #[test]
    fn other_manifests_are_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let package = package(folder.path(), b"wasm");
        let changed = |change: Change<'_>| {
            let mut manifest: Value = serde_json::from_slice(package.manifest()).unwrap();
            change(&mut manifest);
            let manifest = serde_json::to_vec(&manifest).unwrap();
            Package::parse(manifest, package.config().to_vec()).unwrap_err().to_string()
        };
        let layer = |manifest: &Value| manifest["layers"][0].clone();
        let cases: [(Change<'_>, &str); 7] = [
            (&|manifest| manifest["mediaType"] = json!("x"), "has the type `x`"),
            (&|manifest| manifest["layers"] = json!([]), "0 layers"),
            (&|manifest| manifest["layers"] = json!(vec![layer(manifest); 5_000]), "5000 layers"),
            (&|manifest| manifest["layers"][0]["mediaType"] = json!("text/html"), "`text/html`"),
            (&|manifest| manifest["layers"][0]["digest"] = json!("sha256:../x"), "not a SHA-256"),
            (&|manifest| manifest["layers"][0]["size"] = json!(1_u64 << 40), "at most"),
            (
                &|manifest| manifest["config"]["digest"] = json!(format!("sha256:{}", "0".repeat(64))),
                "was changed",
            ),
        ];
        for (change, reason) in cases {
            let error = changed(change);
            assert!(error.contains(reason), "{error}");
        }
        let config = b"{\"created\":\"\",\"architecture\":\"\",\"os\":\"\",\"layerDigests\":[]}".to_vec();
        let mut manifest: Value = serde_json::from_slice(package.manifest()).unwrap();
        manifest["config"]["digest"] = json!(format!("sha256:{}", Digest::compute(&config)));
        let manifest = serde_json::to_vec(&manifest).unwrap();
        assert_eq!(Package::parse(manifest, config), Err(PackageError::NotATool));
    }
}
