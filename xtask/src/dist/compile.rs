//! Compiles the program of a release, so that any machine and any folder give the same bytes.
//!
//! cargo-zigbuild links against the functions of an old glibc, whatever this machine has. No folder of this machine is
//! in the program: rustc and the C compiler replace each by a constant name, and the compiled file is searched for
//! them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use super::Architecture;
use crate::run::{self, Workspace};
use crate::setup;

/// The oldest glibc that the program runs with: that of Debian 10, RHEL 8 and the wheels of `manylinux_2_28`.
const GLIBC: &str = "2.28";

/// Installs cargo-zigbuild and Zig, and returns their folder.
pub(crate) fn prepare(workspace: &Workspace) -> Result<PathBuf> {
    let programs = setup::prepare_zigbuild(workspace)?;
    programs.context(
        "a release needs cargo-zigbuild and Zig: `cargo xtask setup --retry` tries to install them again",
    )
}

/// Compiles the program with the compilers in `programs`, and returns it with its symbols.
pub(crate) fn program(
    workspace: &Workspace,
    programs: &Path,
    architecture: Architecture,
    epoch: u64,
) -> Result<PathBuf> {
    let target = architecture.target();
    let mut cargo = workspace.cargo(&["zigbuild", "--locked", "--release", "--package", "a2g-executor"]);
    cargo.args(["--target", &format!("{target}.{GLIBC}")]);
    let paths = env::var_os("PATH").unwrap_or_default();
    let paths = env::join_paths([programs.to_owned()].into_iter().chain(env::split_paths(&paths)))?;
    cargo.env("PATH", paths).env("SOURCE_DATE_EPOCH", epoch.to_string());
    // A build id would be the only hash of the file with its symbols that survives stripping.
    let mut flags = workspace.remapping();
    flags.push("-Clink-arg=-Wl,--build-id=none".to_owned());
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    cargo.env(format!("CFLAGS_{}", target.replace('-', "_")), c_flags(workspace));
    // The symbols are for `--symbols`; the packages get a stripped copy.
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "false");
    run::progress("Building", &format!("the executor for {target} and glibc {GLIBC}"));
    run::show("build the executor", &mut cargo)?;
    Ok(workspace.target.join(target).join("release/a2g-executor"))
}

/// Copies a program without its symbols, and checks that the copy names no folder of this machine.
pub(crate) fn strip(workspace: &Workspace, program: &Path) -> Result<PathBuf> {
    let sysroot = setup::sysroot(workspace)?;
    // The one of the toolchain knows the files of any processor.
    let host = format!("lib/rustlib/{}-unknown-linux-gnu/bin/rust-objcopy", env::consts::ARCH);
    let stripped = program.with_extension("stripped");
    let mut objcopy = Command::new(sysroot.join(host));
    objcopy.env("LD_LIBRARY_PATH", sysroot.join("lib"));
    objcopy.arg("--strip-all").args([program, &stripped]);
    run::log(workspace, "strip the executor", &mut objcopy, setup::INSTALL_TIMEOUT)?;
    let content = fs::read(&stripped)?;
    for (folder, _) in workspace.replaced_folders() {
        ensure!(
            !contains(&content, folder.as_os_str().as_encoded_bytes()),
            "the program names the folder {}: a crate embeds a path, so another folder gives other bytes",
            folder.display()
        );
    }
    Ok(stripped)
}

/// `true` if the content has these bytes.
fn contains(content: &[u8], wanted: &[u8]) -> bool {
    content.windows(wanted.len()).any(|window| window == wanted)
}

/// The options of the C compiler that replace the folders of this machine.
fn c_flags(workspace: &Workspace) -> String {
    let folders = workspace.replaced_folders().into_iter();
    let flags = folders.map(|(folder, name)| format!("-ffile-prefix-map={}={name}", folder.display()));
    flags.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_replaced_after_the_source_that_contains_it() {
        let workspace = Workspace::new("/home/x/a2g".into(), "/home/x/a2g/target".into());
        let flags = workspace.remapping();
        assert_eq!(flags[0], "--remap-path-prefix=/home/x/a2g=/source");
        assert_eq!(flags[1], "--remap-path-prefix=/home/x/a2g/target=/target");
        assert!(c_flags(&workspace).contains(" -ffile-prefix-map=/home/x/a2g/target=/target"));
        assert!(
            contains(b"a\0/home/x/a2g/target/b", b"/home/x/a2g") && !contains(b"/home/x", b"/home/x/a2g")
        );
    }
}
