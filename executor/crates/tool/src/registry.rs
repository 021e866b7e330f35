//! `tool push`, `tool add oci://…` and `tool sync`: tools in OCI registries.
//!
//! ```text
//! oci://…:TAG ──▶ manifest ─ digest ─▶ config ─ digest ─▶ tool.toml ─ name ─▶ signatures, module ─ digest ─▶ `install`
//!                  oci://…@sha256:… is compared with it      in a private folder of the cache
//! ```
//! A server never uses this module: it reads the catalogue's folder. Each part is checked against its digest and size,
//! and the folder is installed by the same code as any other folder.

mod client;
mod download;
mod error;
mod login;
mod progress;
mod signatures;

use crate::arguments::RegistryOptions;
use crate::{approve, replaced_tool, set_up};
use a2g_command::UsageError;
use a2g_command::output::{note, one_line, print};
use a2g_command::setup::{Setup, ToolRuntime, config, recorded_definitions};
use a2g_config::Config;
use a2g_core::catalog::{
    CheckedTool, Installation, MANIFEST_TYPE, MAX_MANIFEST_BYTES, Package, PinnedReference, Reference,
    RemoteTool, ToolManifest, Version, check as check_tool, find_installed_package, is_tag, package_folder,
};
use a2g_govern::{OfferedTool, ToolTrust};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::ident::ToolName;
use a2g_types::tool::Digest;
use anyhow::{Context as _, bail};
use client::{Outgoing, Purpose, RegistryClient};
use download::{FOLDER_PREFIX, check_digest, download, read_blob, remove_leftovers};
use error::RegistryError;
use http::{Method, StatusCode};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The names of a pulled tool's files.
const TOOL_FILE: &str = "tool.toml";
const MODULE_FILE: &str = "tool.wasm";
/// The header with the digest of a manifest.
const DIGEST_HEADER: &str = "docker-content-digest";
/// The types of a tool's manifest and of an index. A registry may answer with an index, which the error then names.
const ACCEPTED_MANIFESTS: &str =
    "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json;q=0.1";

/// A tool of a registry, before its module is downloaded.
struct RemotePackage {
    reference: PinnedReference,
    package: Package,
    manifest: ToolManifest,
    /// The private folder with its `tool.toml`.
    folder: TempDir,
}

/// A pulled tool, in a folder that [`a2g_core::catalog::install`] accepts.
pub(crate) struct PulledTool {
    /// The address with the digest.
    pub(crate) reference: PinnedReference,
    folder: TempDir,
}

impl PulledTool {
    /// The folder of the tool, until this value is dropped.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Checks that the tool to be installed is the package of the address.
    pub(crate) fn check(&self, checked: &CheckedTool) -> anyhow::Result<()> {
        check_digest("the package", checked.package.digest(), self.reference.digest)?;
        Ok(())
    }
}

/// Pulls a tool, and prints the address with its digest.
///
/// # Ambient Authority
/// Reads the login and certificates of the user, opens connections, and writes to `cache`.
pub(crate) fn pull(
    address: &str,
    config: &Config,
    options: &RegistryOptions,
    cache: &Path,
    trust: &ToolTrust,
) -> anyhow::Result<PulledTool> {
    let reference = Reference::parse(address).map_err(|error| UsageError(error.to_string()))?;
    let Reference { repository, version } = reference;
    let Some(version) = version else {
        let error = a2g_core::catalog::ReferenceError::NoVersion(repository.to_string());
        bail!(UsageError(error.to_string()));
    };
    remove_leftovers(cache, SystemClock.now());
    runtime()?.block_on(async {
        let ca_file = options.ca_file.as_deref().or(config.ca_file.as_deref());
        let mut client = RegistryClient::new(repository, Purpose::Pull, ca_file).await?;
        let found = describe(&mut client, &version, cache).await?;
        if let Version::Tag(tag) = &version {
            found.package.check_tag(tag)?;
        }
        note(format_args!("{}", found.reference));
        fetch(&mut client, found, cache, trust).await
    })
}

/// Pushes a tool.
///
/// # Ambient Authority
/// Reads the tool, the login and certificates of the user, and opens connections.
pub(crate) fn push(
    setup: &Setup,
    options: &RegistryOptions,
    address: &str,
    folder: &Path,
    installed: Option<&str>,
) -> anyhow::Result<()> {
    let Reference { repository, version } =
        Reference::parse(address).map_err(|error| UsageError(error.to_string()))?;
    if let Some(Version::Digest(_)) = version {
        bail!(UsageError("push to a tag, not to a digest: the digest follows from the content".to_owned()));
    }
    let config = config(setup)?;
    let folder: PathBuf = match installed {
        Some(name) => config.catalog.join(ToolName::parse(name)?.as_str()),
        None => package_folder(folder)?,
    };
    let tools = set_up(&config)?;
    // The executors that pull the tool decide which signatures they require.
    let checked = check_tool(&folder, &tools.cache, &tools, &ToolTrust::anyone())?;
    let CheckedTool { manifest, package, signatures, wasm, .. } = &checked;
    package.check_for_registry()?;
    let tag = match version {
        Some(Version::Tag(tag)) => tag,
        Some(Version::Digest(_)) | None if is_tag(&manifest.version) => manifest.version.clone(),
        Some(Version::Digest(_)) | None => bail!(UsageError(format!(
            "the tool's version `{}` is not a valid tag: name one, as in `{repository}:TAG`",
            one_line(&manifest.version)
        ))),
    };
    package.check_tag(&tag).map_err(|_another_version| {
        UsageError(format!(
            "the tag `{tag}` names another version than the tool's, `{}`: `tool add` would refuse it",
            one_line(&manifest.version)
        ))
    })?;
    let signatures = match signatures {
        Some(file) => signatures::parse_for(package.digest(), file)?,
        None => Vec::new(),
    };
    runtime()?.block_on(async {
        let ca_file = options.ca_file.as_deref().or(config.ca_file.as_deref());
        let mut client = RegistryClient::new(repository.clone(), Purpose::Push, ca_file).await?;
        signatures::push_blob(&mut client, package.config(), "the config of the tool").await?;
        signatures::push_blob(&mut client, wasm, "the module").await?;
        // The tag is pushed last, so a tool that it resolves to always has its signatures.
        put_package(&mut client, package, &format!("sha256:{}", package.digest())).await?;
        signatures::push(&mut client, package.manifest(), &signatures).await?;
        put_package(&mut client, package, &tag).await
    })?;
    let reference = PinnedReference { repository, digest: package.digest() };
    print(format_args!("pushed {} {} as {reference}", manifest.name, one_line(&manifest.version)));
    match signatures.len() {
        0 => note("without a signature: an executor with `[catalog.trust]` refuses it (`tool sign`)"),
        1 => print("with 1 signature"),
        count => print(format_args!("with {count} signatures")),
    }
    Ok(())
}

/// Installs the tools of `[[catalog.remote]]` that the catalogue lacks.
///
/// # Ambient Authority
/// Reads the login and certificates of the user, opens connections, and writes the catalogue and the cache.
pub(crate) fn sync(setup: &Setup, options: &RegistryOptions) -> anyhow::Result<ExitCode> {
    let config = config(setup)?;
    if config.remote_tools.is_empty() {
        note("there is nothing to do: the configuration has no `[[catalog.remote]]`");
        return Ok(ExitCode::SUCCESS);
    }
    let tools = set_up(&config)?;
    remove_leftovers(tools.cache.folder(), tools.clock.now());
    let trust = tools.trust();
    let present = present_packages(&config.catalog, &trust);
    let ca_file = options.ca_file.as_deref().or(config.ca_file.as_deref());
    let mut names = BTreeMap::new();
    let mut missing = Vec::new();
    for RemoteTool { reference, name } in &config.remote_tools {
        match present.get(&reference.digest.0) {
            Some(found) => {
                claim_name(&mut names, found, name.as_ref(), reference)?;
                print(format_args!("{found}: already installed"));
            }
            None => missing.push((reference, name.as_ref())),
        }
    }
    let runtime = runtime()?;
    // All names are known before the first module is downloaded or anything is written.
    let described = runtime.block_on(async {
        let mut described = Vec::new();
        for (reference, name) in missing {
            let mut client =
                RegistryClient::new(reference.repository.clone(), Purpose::Pull, ca_file).await?;
            let version = Version::Digest(reference.digest);
            let answer = describe(&mut client, &version, tools.cache.folder()).await;
            let found = answer.with_context(|| format!("{reference} cannot be read"))?;
            claim_name(&mut names, &found.manifest.name, name, reference)?;
            described.push((client, found));
        }
        Ok::<_, anyhow::Error>(described)
    })?;
    let mut is_complete = true;
    for (mut client, found) in described {
        let reference = found.reference.clone();
        let fetched = runtime.block_on(fetch(&mut client, found, tools.cache.folder(), &trust));
        let pulled = fetched.with_context(|| format!("{reference} cannot be fetched"))?;
        is_complete &= install_pulled(&pulled, &config, &tools, setup)?;
    }
    // Same exit code as `tool add` when an update waits.
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

/// Installs a tool of a registry; `false` if its update waits for approval.
fn install_pulled(
    pulled: &PulledTool,
    config: &Config,
    tools: &ToolRuntime,
    setup: &Setup,
) -> anyhow::Result<bool> {
    let reference = &pulled.reference;
    let trust = tools.trust();
    let definitions = recorded_definitions(config);
    let installer = tools.installer(&config.catalog, &trust, &definitions);
    let result = installer.check(pulled.folder());
    let checked = result.with_context(|| format!("{reference} cannot be added"))?;
    pulled.check(&checked)?;
    let replaced = replaced_tool(&config.catalog, &checked);
    let checked = match installer.install(checked)? {
        Installation::Installed(checked) => checked,
        Installation::Waits(update) => {
            approve::print_waiting(&update, setup);
            return Ok(false);
        }
    };
    let tool = &checked.tool;
    let name = &tool.descriptor.name;
    let version = one_line(&tool.descriptor.version);
    print(format_args!("{name}: added {version} from {reference}"));
    if let Some(replaced) = replaced {
        note(format_args!("note: it replaces {replaced}"));
    }
    Ok(true)
}

/// Refuses a tool with a name other than the configured one, and a second tool of the same name.
fn claim_name(
    names: &mut BTreeMap<ToolName, PinnedReference>,
    found: &ToolName,
    expected: Option<&ToolName>,
    reference: &PinnedReference,
) -> anyhow::Result<()> {
    if let Some(expected) = expected.filter(|expected| *expected != found) {
        bail!(
            "{reference} is the tool `{found}`, but `catalog.remote.name` says `{expected}`: nothing was changed"
        );
    }
    if let Some(other) = names.insert(found.clone(), reference.clone()) {
        bail!(
            "{other} and {reference} are both called `{found}`, but the names in a catalogue are unique: remove one of them \
             from `[[catalog.remote]]`; nothing was changed"
        );
    }
    Ok(())
}

/// The tools of a catalogue that have exactly the files of their package and the required signatures, by the digest of
/// the package. Any other tool is pulled again, with its current signatures.
fn present_packages(catalog: &Path, trust: &ToolTrust) -> BTreeMap<[u8; 32], ToolName> {
    let folders = std::fs::read_dir(catalog).into_iter().flatten().flatten();
    let installed = folders.filter_map(|folder| {
        let (name, package) = find_installed_package(&folder.path(), trust)?;
        (folder.file_name().to_str() == Some(name.as_str())).then_some((package.digest().0, name))
    });
    installed.collect()
}

fn runtime() -> anyhow::Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Reads and checks the description of a tool: its manifest, its config, and the `tool.toml` in the config.
async fn describe(
    client: &mut RegistryClient,
    version: &Version,
    cache: &Path,
) -> anyhow::Result<RemotePackage> {
    let (path, what) = match version {
        Version::Tag(tag) => (format!("manifests/{tag}"), format!("`{}:{tag}`", client.repository().name())),
        Version::Digest(digest) => (
            format!("manifests/sha256:{digest}"),
            format!("`{}@sha256:{digest}`", client.repository().name()),
        ),
    };
    let outgoing =
        Outgoing { accept: Some(ACCEPTED_MANIFESTS), ..Outgoing::new(Method::GET, client.url(&path), what) };
    let answer = client.expect(&outgoing, &[StatusCode::OK]).await?;
    let repeated = repeated_digest(&answer);
    let manifest = answer.read(MAX_MANIFEST_BYTES).await?;
    if manifest.trim_ascii_start().starts_with(b"<") {
        bail!(RegistryError::WebPage { url: outgoing.url.to_string() });
    }
    let digest = Digest::compute(&manifest);
    match version {
        Version::Digest(expected) => check_digest("the manifest", digest, *expected)?,
        Version::Tag(_) => {
            if let Some(expected) = repeated {
                check_digest("the manifest", digest, expected)?;
            }
        }
    }
    let (config_digest, config_bytes) = Package::config_of(&manifest)?;
    let config = read_blob(client, config_digest, config_bytes, "the config of the tool").await?;
    let package = Package::parse(manifest, config)?;
    package.check_for_registry()?;
    let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir_in(cache)?;
    let path = folder.path().join(TOOL_FILE);
    std::fs::write(&path, package.tool_toml())?;
    let manifest =
        ToolManifest::read(&path).map_err(|error| anyhow::anyhow!("the tool cannot be used: {error}"))?;
    check_contradictions(&manifest, &package)?;
    let reference = PinnedReference { repository: client.repository().clone(), digest };
    Ok(RemotePackage { reference, package, manifest, folder })
}

/// Refuses a `tool.toml` that names another module than that of the package.
fn check_contradictions(manifest: &ToolManifest, package: &Package) -> anyhow::Result<()> {
    if manifest.module != Path::new(MODULE_FILE) {
        bail!(
            "the tool's `tool.toml` names the module `{}`, but that of a package is `{MODULE_FILE}`: it was not pushed by \
             `a2g-executor tool push`",
            one_line(manifest.module.display())
        );
    }
    let (module, _bytes) = package.module();
    match &manifest.sha256 {
        Some(pinned) if *pinned == module.to_string() => Ok(()),
        Some(pinned) => bail!(
            "the tool's `tool.toml` is for a module with the SHA-256 {pinned}, but the package has one with {module}"
        ),
        None => bail!(
            "the tool's `tool.toml` does not pin its module: it was not pushed by `a2g-executor tool push`"
        ),
    }
}

/// Downloads the module and the signatures of a described tool.
async fn fetch(
    client: &mut RegistryClient,
    found: RemotePackage,
    cache: &Path,
    trust: &ToolTrust,
) -> anyhow::Result<PulledTool> {
    let RemotePackage { reference, package, manifest, folder } = found;
    let ToolManifest { name, version, .. } = &manifest;
    let offered = OfferedTool { name, version, package: reference.digest, signatures: None };
    if let Some(file) = signatures::read(client, trust, &offered).await? {
        std::fs::write(folder.path().join("signatures.json"), file)?;
    }
    let (module, bytes) = package.module();
    package.write(folder.path())?;
    download(client, module, bytes, cache, &folder.path().join(MODULE_FILE)).await?;
    Ok(PulledTool { reference, folder })
}

/// The digest of a manifest in the response header.
fn repeated_digest(answer: &client::Answer) -> Option<Digest> {
    let text = answer.headers.get(DIGEST_HEADER)?.to_str().ok()?;
    Digest::parse(text.strip_prefix("sha256:")?).ok()
}

/// Pushes a tool's manifest under a tag or its digest.
async fn put_package(client: &mut RegistryClient, package: &Package, version: &str) -> anyhow::Result<()> {
    let path = format!("manifests/{version}");
    let what = "the manifest of the tool";
    let answer = signatures::put_manifest(client, &path, MANIFEST_TYPE, package.manifest(), what).await?;
    check_repeated_digest(&answer, package.digest())?;
    Ok(())
}

/// Fails if the registry stored another manifest than was pushed.
fn check_repeated_digest(answer: &client::Answer, expected: Digest) -> Result<(), RegistryError> {
    repeated_digest(answer).map_or(Ok(()), |found| check_digest("the pushed manifest", found, expected))
}
