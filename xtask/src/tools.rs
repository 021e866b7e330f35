//! `tools`: builds the guest tools and lays out the catalogue that the executor reads.
//!
//! A tool is a folder of `tools/` with a `tool.toml`; its crate has the folder's name. In the catalogue
//! the descriptor carries the module's digest. Files change by rename, the module before its
//! descriptor, and only when their content differs: a reader sees the old tool, the new tool, or (for a
//! moment) a digest that does not fit, which it must refuse. Nothing half-written is ever visible.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use sha2::{Digest, Sha256};

use crate::build;
use crate::run::{self, AtPath, Failure, Workspace};
use crate::setup::{self, GuestToolchain, REQUIRED, WANTED};

pub(crate) const HELP: &str = "\
Build the guest tools and lay out their catalogue.

Usage: cargo xtask tools

Each folder of tools/ with a tool.toml is a tool. It is built in release for
wasm32-wasip1, and the catalogue gets it as
  target/tools/<NAME>/tool.wasm   the module
  target/tools/<NAME>/tool.toml   its descriptor, with the module's SHA-256
Point the executor's catalogue at target/tools. Files that did not change are
left alone; of the tools that were laid out before, those that are no longer in
tools/ are taken out. What `a2g-executor tool add` put there stays.

Calls `cargo xtask setup` first.";

/// The guests of the tests that need [`WANTED`].
const WANTED_GUESTS: [&str; 1] = ["hostile_tcp"];
const DESCRIPTOR: &str = "tool.toml";
const MODULE: &str = "tool.wasm";
/// The first line of every descriptor that was laid out here, and of no other.
const MARK: &str = "# Laid out by `cargo xtask tools`; edit the source instead.\n";

/// The command itself.
///
/// # Errors
/// As [`setup::prepare`] and [`build`].
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let guests = setup::prepare(workspace)?;
    build(workspace, &guests.toolchain)
}

/// Builds every tool and brings the catalogue up to date.
///
/// # Errors
/// When a tool does not compile, a descriptor already has a digest, or a file cannot be written.
pub(crate) fn build(workspace: &Workspace, toolchain: &GuestToolchain) -> Result<(), Failure> {
    let names = discover(&workspace.root.join("tools"))?;
    compile(workspace, toolchain)?;
    let catalogue = workspace.target.join("tools");
    let mut changed = take_out_others(&catalogue, &names)?;
    for name in &names {
        changed += usize::from(lay_out(workspace, &catalogue, name)?);
    }
    let total = names.len();
    run::progress("Catalogue", &format!("{} ({total} tools, {changed} changed)", catalogue.display()));
    Ok(())
}

/// The names of the tools, sorted.
fn discover(folder: &Path) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).at(folder)? {
        let entry = entry.at(folder)?;
        if entry.path().join(DESCRIPTOR).is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    if names.is_empty() {
        return Err(Failure::Missing(format!("{} has no folder with a {DESCRIPTOR}", folder.display())));
    }
    Ok(names)
}

fn compile(workspace: &Workspace, toolchain: &GuestToolchain) -> Result<(), Failure> {
    run::progress("Building", &format!("the guest tools for {REQUIRED}"));
    let mut cargo = toolchain.cargo(workspace);
    cargo.args(["build", "--locked", "--release", "--target", REQUIRED]);
    cargo.arg("--manifest-path").arg(workspace.root.join("tools/Cargo.toml"));
    cargo.arg("--target-dir").arg(workspace.guest_target());
    build::build("the guest tools", &mut cargo, crates(workspace))
}

/// The number of crates that the tools and the guests of the tests take.
fn crates(workspace: &Workspace) -> Option<usize> {
    let mut cargo = workspace.cargo();
    cargo.current_dir(workspace.root.join("tools"));
    build::count_crates(cargo, &["--workspace", "--target", REQUIRED], "normal,build")
}

/// Builds the guests of the tests that need [`WANTED`], which the machine has to have.
///
/// # Errors
/// When one does not compile.
pub(crate) fn build_wanted(workspace: &Workspace) -> Result<(), Failure> {
    run::progress("Building", &format!("guests of the tests for {WANTED}"));
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--locked", "--release", "--target", WANTED]);
    cargo.args(WANTED_GUESTS.iter().flat_map(|guest| ["--package", guest]));
    cargo.arg("--manifest-path").arg(workspace.root.join("tools/Cargo.toml"));
    cargo.arg("--target-dir").arg(workspace.guest_target());
    build::build("guests of the tests", &mut cargo, None)
}

/// Whether anything changed.
fn lay_out(workspace: &Workspace, catalogue: &Path, name: &str) -> Result<bool, Failure> {
    let artifact = workspace.guest_target().join(REQUIRED).join("release");
    let artifact = artifact.join(format!("{}.wasm", name.replace('-', "_")));
    let module = fs::read(&artifact).at(&artifact)?;
    let source = workspace.root.join("tools").join(name).join(DESCRIPTOR);
    let descriptor = fs::read_to_string(&source).at(&source)?;
    if has_digest(&descriptor) {
        return Err(Failure::Program(format!("{} has a `sha256` of its own: take it out", source.display())));
    }
    let descriptor = with_digest(&descriptor, &hex_digest(&module));
    let folder = catalogue.join(name);
    fs::create_dir_all(&folder).at(&folder)?;
    let new_module = replace(&folder.join(MODULE), &module)?;
    let new_descriptor = replace(&folder.join(DESCRIPTOR), descriptor.as_bytes())?;
    Ok(new_module || new_descriptor)
}

/// How many tools were laid out here earlier and are no tool any more. What has no [`MARK`] is not ours.
fn take_out_others(catalogue: &Path, names: &[String]) -> Result<usize, Failure> {
    fs::create_dir_all(catalogue).at(catalogue)?;
    let mut count = 0;
    for entry in fs::read_dir(catalogue).at(catalogue)? {
        let entry = entry.at(catalogue)?;
        let ours = fs::read_to_string(entry.path().join(DESCRIPTOR)).is_ok_and(|text| text.starts_with(MARK));
        if ours && !names.iter().any(|name| entry.file_name() == name.as_str()) {
            fs::remove_dir_all(entry.path()).at(&entry.path())?;
            count += 1;
        }
    }
    Ok(count)
}

fn hex_digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Whether the top level, which ends at the first table, already names a digest.
fn has_digest(descriptor: &str) -> bool {
    let top_level = descriptor.lines().map(str::trim).take_while(|line| !line.starts_with('['));
    top_level.filter_map(|line| line.split_once('=')).any(|(key, _)| key.trim() == "sha256")
}

/// The digest comes first: whatever follows, that is the top level.
fn with_digest(descriptor: &str, digest: &str) -> String {
    format!("{MARK}sha256 = \"{digest}\"\n{descriptor}")
}

/// Replaces the file by rename when its content differs. Returns whether it did.
fn replace(path: &Path, content: &[u8]) -> Result<bool, Failure> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(false);
    }
    let temporary: PathBuf = path.with_extension(format!("{}.tmp", process::id()));
    fs::write(&temporary, content).at(&temporary)?;
    fs::rename(&temporary, path).at(path)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_stands_at_the_top_level() {
        let laid_out = with_digest("name = \"x\"\n[capabilities]\nnetwork = false\n", &hex_digest(b"abc"));
        assert!(has_digest(&laid_out));
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(laid_out.contains(&format!("\nsha256 = \"{digest}\"\nname = \"x\"\n")));
    }

    #[test]
    fn only_a_digest_at_the_top_level_is_one() {
        assert!(has_digest("name = \"x\"\nsha256=\"…\"\n"));
        assert!(!has_digest("name = \"x\"\n# sha256 = 1\n[other]\nsha256 = \"…\"\n"));
    }

    #[test]
    fn only_what_was_laid_out_here_is_taken_out() {
        let catalogue = std::env::temp_dir().join(format!("xtask-catalogue-{}", process::id()));
        let put = |name: &str, descriptor: &str| {
            fs::create_dir_all(catalogue.join(name)).unwrap();
            fs::write(catalogue.join(name).join(DESCRIPTOR), descriptor).unwrap();
        };
        put("stays", &with_digest("name = \"stays\"", "1"));
        put("gone", &with_digest("name = \"gone\"", "1"));
        put("added", "name = \"added\"\nsha256 = \"1\"\n");
        assert_eq!(take_out_others(&catalogue, &["stays".to_owned()]).unwrap(), 1);
        assert!(!catalogue.join("gone").exists());
        assert!(catalogue.join("stays").exists() && catalogue.join("added").exists());
        fs::remove_dir_all(&catalogue).unwrap();
    }

    #[test]
    fn a_file_is_replaced_only_when_it_differs() {
        let path = std::env::temp_dir().join(format!("xtask-replace-{}", process::id()));
        assert!(replace(&path, b"one").unwrap());
        assert!(!replace(&path, b"one").unwrap());
        assert!(replace(&path, b"two").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"two");
        fs::remove_file(&path).unwrap();
    }
}
