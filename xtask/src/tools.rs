//! `tools`: builds the guest tools and writes the catalogue that the executor reads.
//!
//! A tool is a folder of `tools/` with a `tool.toml`; its crate, or its main file in Python or JavaScript, has
//! the folder's name. Files change by rename, the module before its descriptor, and only if their content
//! differs: a reader sees the old tool, the new tool, or, for a moment, a digest that does not match the
//! module, and must then refuse the tool.

use std::path::{Path, PathBuf};
use std::process::{self, Command};

use anyhow::{Result, ensure};
use fs_err as fs;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::components::{self, Language};
use crate::run::{self, UNLIMITED, Workspace};
use crate::setup::{self, GuestCompilers, WASIP1, WASIP2};

pub(crate) const HELP: &str = "\
Build the guest tools and write their catalogue.

Usage: cargo xtask tools

Each folder of tools/ with a tool.toml is a tool. A crate is built in release
for wasm32-wasip1; a program in Python or JavaScript is made a component, where
what makes it can be installed. The catalogue gets it as
  target/tools/<NAME>/tool.wasm   the module
  target/tools/<NAME>/tool.toml   its descriptor, with the module's SHA-256
The module of the tools that `tool new --openapi` and `--mcp` make is written to
  target/clients/api_client.wasm
Commands that also build the executor call `a2g-executor tool prepare`, which
compiles the tools and adds arguments.json, the schema that a module reports.
Point the executor's catalogue at target/tools. Unchanged files are not written;
tools that an earlier run wrote and that are no longer in tools/ are removed.
Tools that `a2g-executor tool add` wrote stay.

Calls `cargo xtask setup` first.";

const DESCRIPTOR: &str = "tool.toml";
/// The tool whose dependencies need more features of crates that other tools have too.
const SHELL: &str = "run_shell";
/// The module that the tools of `tool new --openapi` and `--mcp` share.
pub(crate) const CLIENT: &str = "api_client";
/// The first line of each descriptor that this module writes, and of no other.
const MARK: &str = "# Laid out by `cargo xtask tools`; edit the source instead.\n";

pub(crate) fn build_with_executor(workspace: &Workspace) -> Result<GuestCompilers> {
    build_and_prepare(workspace, None)
}

/// As [`build_with_executor`], but compiles the tools into the cache of the tests, and not also into this user's.
pub(crate) fn build_for_tests(workspace: &Workspace) -> Result<GuestCompilers> {
    // The harness names this folder too.
    build_and_prepare(workspace, Some(&workspace.target.join("test-cache")))
}

fn build_and_prepare(workspace: &Workspace, cache_home: Option<&Path>) -> Result<GuestCompilers> {
    let guests = setup::prepare(workspace)?;
    build(workspace, &guests)?;
    let is_first = !workspace.executor().exists();
    let remark = if is_first { " (the first time, wasmtime takes some minutes)" } else { "" };
    let mut cargo = workspace.cargo(&["build", "--locked", "-p", "a2g-executor"]);
    run::progress("Building", &format!("the executor{remark}"));
    run::show("build the executor", &mut cargo)?;
    prepare(workspace, cache_home)?;
    Ok(guests)
}

/// Compiles the tools into the cache that commands without `catalog.cache` use: this user's, or the one that they use
/// when `XDG_CACHE_HOME` is `cache_home`.
fn prepare(workspace: &Workspace, cache_home: Option<&Path>) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("a2g-prepare-").tempdir()?;
    let config = folder.path().join("executor.toml");
    // The definitions that this user has accepted are for other catalogues.
    let tools = workspace.target.join("tools");
    let definitions = folder.path().join("definitions.json");
    let text = format!(
        "[catalog]\ntools = {}\ndefinitions = {}\n[ceilings]\nfilesystem_scope = [\"/workspace/**\"]\n",
        json!(tools),
        json!(definitions)
    );
    fs::write(&config, text)?;
    let mut command = Command::new(workspace.executor());
    command.args(["tool", "prepare", "--config"]).arg(&config);
    command.envs(cache_home.map(|home| ("XDG_CACHE_HOME", home)));
    run::show("compile the tools", &mut command)
}

pub(crate) fn compile(workspace: &Workspace, what: &str, cargo: &mut Command) -> Result<()> {
    if workspace.shares_terminal {
        return run::log(workspace, &format!("build {what}"), cargo, UNLIMITED);
    }
    run::progress("Building", what);
    run::show(&format!("build {what}"), cargo)
}

/// Builds every tool and updates the catalogue.
pub(crate) fn build(workspace: &Workspace, guests: &GuestCompilers) -> Result<()> {
    build_modules(workspace, guests)?;
    let catalogue = workspace.target.join("tools");
    let modules = modules(workspace, names(workspace)?)?;
    let mut changed = 0;
    for (name, module) in &modules {
        changed += usize::from(write_tool(workspace, &catalogue.join(name), name, module)?);
    }
    let clients = workspace.target.join("clients");
    fs::create_dir_all(&clients)?;
    replace(&clients.join(CLIENT).with_extension("wasm"), &fs::read(module(workspace, CLIENT))?)?;
    changed += remove_old_tools(&catalogue, |name| modules.iter().any(|(kept, _)| kept == name))?;
    let total = modules.len();
    run::progress("Catalogue", &format!("{} ({total} tools, {changed} changed)", catalogue.display()));
    Ok(())
}

/// The names of all tools.
pub(crate) fn names(workspace: &Workspace) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(workspace.root.join("tools"))? {
        let entry = entry?;
        if entry.path().join(DESCRIPTOR).is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    ensure!(!names.is_empty(), "tools/ has no folder with a {DESCRIPTOR}");
    Ok(names)
}

/// Compiles the tools in Rust: [`SHELL`] apart, because cargo gives one build the features that any of its
/// packages needs, so that the patterns of `search_text` would get the tables of Unicode.
pub(crate) fn build_modules(workspace: &Workspace, guests: &GuestCompilers) -> Result<()> {
    let parts = [
        (format!("the guest tools for {WASIP1}"), &["--workspace", "--exclude", SHELL][..]),
        (format!("{SHELL} for {WASIP1}"), &["--package", SHELL][..]),
    ];
    for (what, packages) in parts {
        let build = ["build", "--locked", "--release", "--target", WASIP1];
        compile(workspace, &what, &mut guests.cargo(workspace, &[&build[..], packages].concat()))?;
    }
    Ok(())
}

/// The compiled module of a tool in Rust.
pub(crate) fn module(workspace: &Workspace, name: &str) -> PathBuf {
    let release = workspace.guest_target().join(WASIP1).join("release");
    release.join(name.replace('-', "_")).with_extension("wasm")
}

/// Builds the guests of the tests that need [`WASIP2`], with the native toolchain.
pub(crate) fn build_wasip2_guests(workspace: &Workspace) -> Result<()> {
    let arguments = ["build", "--locked", "--release", "--target", WASIP2, "--package", "hostile_tcp"];
    let what = format!("guests of the tests for {WASIP2}");
    compile(workspace, &what, &mut workspace.guest_cargo(&arguments))
}

/// Builds the tools that the conformance suite of MCP calls. They are examples, which no other build includes.
pub(crate) fn build_conformance_guests(workspace: &Workspace, guests: &GuestCompilers) -> Result<()> {
    let arguments =
        ["build", "--locked", "--release", "--target", WASIP1, "--package", "conformance", "--examples"];
    compile(workspace, "the tools of the conformance suite", &mut guests.cargo(workspace, &arguments))
}

/// Builds the client of MCP in Rust: a workspace of its own, because its dependencies need other features.
pub(crate) fn build_rust_client(workspace: &Workspace) -> Result<()> {
    let mut cargo = workspace.cargo(&["build", "--locked"]);
    cargo.current_dir(workspace.root.join("tests/clients/rmcp"));
    cargo.env("CARGO_TARGET_DIR", setup::clients_folder(workspace).join("rmcp"));
    compile(workspace, "the client of MCP in Rust", &mut cargo)
}

/// The name and the module of each tool. A tool that cannot be made here is left out.
fn modules(workspace: &Workspace, names: Vec<String>) -> Result<Vec<(String, Vec<u8>)>> {
    let makers = setup::prepare_makers(workspace)?;
    let mut modules = Vec::with_capacity(names.len());
    for name in names {
        let language = Language::of(&workspace.root.join("tools").join(&name), &name);
        let content = match language {
            Language::Rust => Some(fs::read(module(workspace, &name))?),
            Language::Python | Language::JavaScript => {
                components::component(workspace, &makers, language, &name)?
            }
        };
        match content {
            Some(content) => modules.push((name, content)),
            None => {
                run::progress("Without", &format!("the tool {name}, which needs the program named above"))
            }
        }
    }
    Ok(modules)
}

/// Writes the module and the descriptor of a tool. Returns `true` if either has changed.
fn write_tool(workspace: &Workspace, folder: &Path, name: &str, module: &[u8]) -> Result<bool> {
    let source = fs::read_to_string(workspace.root.join("tools").join(name).join(DESCRIPTOR))?;
    fs::create_dir_all(folder)?;
    let is_new = replace(&folder.join("tool.wasm"), module)?;
    let arguments = folder.join("arguments.json");
    if is_new && arguments.exists() {
        // Those of the old module. `tool prepare` writes the new ones.
        fs::remove_file(&arguments)?;
    }
    // The digest is written before any table. If the source has a digest too, the executor refuses the duplicate key.
    let descriptor = format!("{MARK}sha256 = \"{}\"\n{source}", run::to_hex(&Sha256::digest(module)));
    Ok(replace(&folder.join(DESCRIPTOR), descriptor.as_bytes())? || is_new)
}

/// Removes the tools that carry the [`MARK`] and are not to be kept. Returns their number.
fn remove_old_tools(catalogue: &Path, is_kept: impl Fn(&str) -> bool) -> Result<usize> {
    fs::create_dir_all(catalogue)?;
    let mut count = 0;
    for entry in fs::read_dir(catalogue)? {
        let entry = entry?;
        let is_ours =
            fs::read_to_string(entry.path().join(DESCRIPTOR)).is_ok_and(|text| text.starts_with(MARK));
        if is_ours && !is_kept(&entry.file_name().to_string_lossy()) {
            fs::remove_dir_all(entry.path())?;
            count += 1;
        }
    }
    Ok(count)
}

/// Replaces a file by rename if its content differs. Returns `true` if it did.
fn replace(path: &Path, content: &[u8]) -> Result<bool> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(false);
    }
    let temporary = path.with_extension(format!("{}.tmp", process::id()));
    fs::write(&temporary, content)?;
    fs::rename(&temporary, path)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::Scratch;

    #[test]
    fn tools_are_written_with_a_digest_and_old_ones_removed() {
        let scratch = Scratch::new();
        let (workspace, write) =
            (&scratch.workspace, |path: &str, content: &str| scratch.write(path, content));
        let catalogue = workspace.target.join("tools");
        write("tools/x/tool.toml", "name = \"x\"\n");
        assert!(write_tool(workspace, &catalogue.join("x"), "x", b"abc").unwrap());
        assert!(!write_tool(workspace, &catalogue.join("x"), "x", b"abc").unwrap(), "nothing has changed");
        let written = fs::read_to_string(catalogue.join("x/tool.toml")).unwrap();
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(written, format!("{MARK}sha256 = \"{digest}\"\nname = \"x\"\n"));
        write("target/tools/old/tool.toml", &format!("{MARK}name = \"old\"\n"));
        write("target/tools/added/tool.toml", "name = \"added\"\n");
        assert_eq!(remove_old_tools(&catalogue, |name| name == "x").unwrap(), 1);
        assert_eq!(["x", "old", "added"].map(|name| catalogue.join(name).exists()), [true, false, true]);
    }
}
