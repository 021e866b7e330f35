//! `dist`: what people install, in `target/dist`.

mod check_hosts;
mod files;
mod mcp_client;
mod npm;
mod server_json;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::run::{self, Workspace};

pub(crate) const HELP: &str = "\
Make the packages of the executor, in target/dist.

Usage: cargo xtask dist [--check] --binary FILE";

/// What each package is made of.
pub(crate) struct Release<'a> {
    pub(crate) workspace: &'a Workspace,
    /// The version of the executor, such as `0.1.0`.
    pub(crate) version: String,
    /// Seconds since 1970 of the last commit: the time of every file in a package (`SOURCE_DATE_EPOCH`).
    pub(crate) epoch: u64,
    /// `target/dist`, for the finished packages.
    pub(crate) folder: PathBuf,
    pub(crate) architecture: Architecture,
    /// The files as below a prefix such as `/usr`.
    pub(crate) root: PathBuf,
}

/// A processor for which packages are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }
}

/// Packages of an already built program.
pub(crate) fn run(workspace: &Workspace, binary: &Path, is_checked: bool) -> Result<()> {
    let folder = workspace.target.join("dist");
    let root = folder.join("work/x86_64/root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fs::create_dir_all(root.join("bin"))?;
    fs::copy(binary, root.join("bin/a2g-executor"))?;
    let tools = root.join("share/a2g-executor");
    fs::create_dir_all(&tools)?;
    let mut cp = Command::new("cp");
    cp.arg("--recursive").arg(binary.ancestors().nth(2).context("no folder")?.join("tools")).arg(&tools);
    run::log(workspace, "copy the tools", &mut cp, Duration::from_secs(60))?;
    let documents = root.join("share/doc/a2g-executor");
    fs::create_dir_all(&documents)?;
    fs::copy(workspace.root.join("LICENSE"), documents.join("LICENSE"))?;
    let release = Release {
        workspace,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        epoch: 1_795_910_000,
        folder,
        architecture: Architecture::X86_64,
        root,
    };
    let packages = [wheel::build(&release)?, npm::build(&release)?, server_json::build(&release)?];
    for package in packages.iter().flatten() {
        run::progress("Finished", &format!("{} ({} bytes)", package.display(), fs::metadata(package)?.len()));
    }
    if is_checked {
        check_hosts::check(&release)?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A release of a few small files, in a folder that is removed on drop.
    pub(crate) struct Sample {
        workspace: Workspace,
        folder: tempfile::TempDir,
    }

    impl Sample {
        /// `program` is the content of the file of the executor.
        pub(crate) fn new(program: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let files = [
                ("bin/a2g-executor", program),
                ("share/a2g-executor/tools/greet/tool.toml", "name = \"greet\"\n"),
                ("share/a2g-executor/tools/greet/tool.wasm", "\0asm"),
                ("share/doc/a2g-executor/LICENSE", "Apache\n"),
                ("share/doc/a2g-executor/README.md", "# A2G\n"),
                ("share/doc/a2g-executor/a2g-executor.cdx.json", "{}\n"),
                ("share/man/man1/a2g-executor.1", ".TH\n"),
            ];
            for (name, content) in files {
                let path = folder.path().join("root").join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, content).unwrap();
            }
            let executor = folder.path().join("root/bin/a2g-executor");
            fs::set_permissions(executor, std::fs::Permissions::from_mode(0o755)).unwrap();
            fs::create_dir(folder.path().join("dist")).unwrap();
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned();
            let target = root.join("target");
            Self { workspace: Workspace::new(root, target), folder }
        }

        pub(crate) fn release(&self) -> Release<'_> {
            Release {
                workspace: &self.workspace,
                version: "0.1.0".to_owned(),
                epoch: 1_700_000_000,
                folder: self.folder.path().join("dist"),
                architecture: Architecture::X86_64,
                root: self.folder.path().join("root"),
            }
        }
    }
}
