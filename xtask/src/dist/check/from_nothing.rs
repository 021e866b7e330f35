//! Installs the wheel and the packages for npm in a Debian that has nothing else: only Python, or only Node.js.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use super::python::UV;
use super::{Shared, debian_root, require};
use crate::dist::{files, npm, wheel};
use crate::run;
use crate::setup;

/// The oldest release of Debian with support, and so the oldest glibc (2.36).
const DEBIAN: &str = "bookworm";
/// The home folder in the folders of Debian.
const HOME: &str = "/home/user";

/// A folder with Debian and these packages, without a compiler.
fn root(shared: &Shared<'_>, packages: &str) -> Result<PathBuf> {
    let root = debian_root::prepare(shared.release.workspace, DEBIAN, packages)?;
    // A compiler would make the check say less than it claims.
    for program in ["cc", "rustc", "cargo"] {
        ensure!(!root.join("usr/bin").join(program).exists(), "{} has {program}", root.display());
    }
    Ok(root)
}

/// Empties the home folder and `/dist` of a folder with Debian.
fn clean(root: &Path) -> Result<()> {
    files::create_empty(&root.join("dist"))?;
    files::create_empty(&root.join("home/user"))?;
    Ok(fs::create_dir(root.join("home/user/notes"))?)
}

/// A program inside a folder with Debian: with processes and mounts of its own, which end with it.
fn inside(root: &Path, paths: &str, words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--root"]).arg(root);
    command.args(["--wd", HOME, "/usr/bin/env", "-i", "LANG=C.UTF-8"]);
    command.args([format!("HOME={HOME}"), format!("PATH={paths}:/usr/bin:/bin")]).args(words);
    command
}

/// pip and uv, which come from PyPI, with the wheels in a folder.
pub(super) fn check_python(shared: &Shared<'_>) -> Result<()> {
    let workspace = shared.release.workspace;
    require(setup::install_python(workspace, UV)?, "uv cannot be installed")?;
    let root = root(shared, "python3-venv")?;
    let wheel = wheel::path(shared.release);
    let name = wheel.file_name().context("the wheel has no name")?;
    for way in ["pip", "uvx"] {
        clean(&root)?;
        fs::copy(&wheel, root.join("dist").join(name))?;
        let mut download = Command::new(shared.python().join("pip"));
        download.args(["download", "--quiet", "--no-deps", "--dest"]).arg(root.join("dist")).arg(UV);
        shared.log("download uv", &mut download)?;
        let paths = format!("{HOME}/venv/bin");
        let started = run::now();
        shared.log(
            "make a Python environment in Debian",
            &mut inside(&root, "", &["python3", "-m", "venv", "venv"]),
        )?;
        let package = if way == "uvx" { "uv" } else { npm::NAME };
        let pip = ["pip", "install", "--no-index", "--find-links", "/dist", package];
        shared.log(&format!("install {package} with pip in Debian"), &mut inside(&root, &paths, &pip))?;
        let uvx = ["uvx", "--offline", "--no-index", "--find-links", "/dist", npm::NAME];
        let start = |words: &[&str]| -> Command {
            let program = if way == "uvx" { uvx.as_slice() } else { &[npm::NAME] };
            inside(&root, &paths, &[program, words].concat())
        };
        shared.use_tools(&format!("Debian, from nothing with {way}"), HOME, started, &start)?;
        ensure!(root.join("home/user/notes/key.pem").exists(), "the approved call wrote no file");
    }
    clean(&root)
}

/// npx, with a registry on this machine.
pub(super) fn check_node(shared: &Shared<'_>) -> Result<()> {
    let registry = shared.registry()?;
    let modules = &registry.modules;
    let root = root(shared, "libstdc++6")?;
    clean(&root)?;
    files::create_empty(&root.join("opt/node"))?;
    fs::copy(modules.join(".bin/node").canonicalize()?, root.join("opt/node/node"))?;
    let mut cp = Command::new("cp");
    cp.args(["--recursive"]).arg(modules.join("npm")).arg(root.join("opt/node/npm"));
    shared.log("copy npm", &mut cp)?;
    let npx = ["node", "/opt/node/npm/bin/npx-cli.js", "--registry", &registry.url, "-y", npm::NAME];
    let start = |words: &[&str]| inside(&root, "/opt/node", &[&npx, words].concat());
    shared.use_tools("Debian, from nothing with npx", HOME, run::now(), &start)?;
    clean(&root)
}
