//! Builds guests with the packages of Debian and Ubuntu, on machines that cannot reach rustup's server.
//!
//! The distribution has a compiler, the source of the standard library and wasi-libc, but no compiled
//! standard library for wasm32-wasip1. This module compiles it once into a sysroot below `target/`;
//! afterwards the distribution's cargo builds guests with `--sysroot`. Only apt-get writes outside
//! `target/`, and apt-get removes no package.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::run::{self, UNLIMITED, Workspace};
use crate::setup::{INSTALL_TIMEOUT, WASIP1};

/// The compiler that the distribution keeps recent (for its web browsers), the source of the standard
/// library, the C library that the standard library links, and a linker for WebAssembly.
const PACKAGES: &str = concat!(
    "rustc-web (>= ",
    env!("CARGO_PKG_RUST_VERSION"),
    "), cargo-web, rust-web-src, wasi-libc, lld-19"
);
/// apt-get's arguments. `satisfy` compares versions, and does not change a package that is recent enough.
const SATISFY: [&str; 4] = ["satisfy", "--yes", "--no-remove", "--no-install-recommends"];
const RUSTC: &str = "/usr/bin/rustc";
/// The folders of the package wasi-libc for programs with one thread, in its newer and older versions.
const WASI_LIBC: [&str; 2] = ["/usr/lib/wasm32-wasip1", "/usr/lib/wasm32-wasi"];

/// The distribution's cargo in the tools' workspace, independent of the toolchain that runs this program.
pub(crate) fn cargo(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = Command::new("/usr/bin/cargo");
    command.args(arguments).current_dir(workspace.root.join("tools"));
    run::remove_package_variables(&mut command);
    for name in [
        "CARGO",
        "LD_LIBRARY_PATH",
        "RUSTUP_TOOLCHAIN",
        "RUSTFLAGS",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
    ] {
        command.env_remove(name);
    }
    let mut flags = workspace.remapping();
    flags.extend(["--sysroot".to_owned(), home(workspace).join("sysroot").display().to_string()]);
    command
        .env("CARGO_TARGET_DIR", workspace.guest_target())
        .env("RUSTC", RUSTC)
        .env("CARGO_TARGET_WASM32_WASIP1_LINKER", "/usr/bin/wasm-ld-19")
        // Encoded, because the path may contain spaces. With `--target` these flags are the guest's
        // alone: build scripts and macros keep the distribution's own sysroot.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    command
}

/// Returns `true` on Debian and the distributions that are derived from it.
pub(crate) fn applies() -> bool {
    Path::new("/etc/debian_version").exists()
}

/// Returns `true` if an earlier run has finished and the compiler is still the same.
pub(crate) fn is_ready(workspace: &Workspace) -> bool {
    compiler().is_some_and(|version| fs::read_to_string(stamp(workspace)).is_ok_and(|stamp| stamp == version))
}

/// Installs the packages and compiles the standard library.
pub(crate) fn install(workspace: &Workspace) -> Result<()> {
    if !are_installed(PACKAGES) {
        run::progress("Installing", &format!("{PACKAGES} (about 170 MB to fetch)"));
        let advice = "enable the distribution's security updates or make `rustup target add` work";
        let satisfied = satisfy(workspace, "install packages with apt-get", PACKAGES, UNLIMITED);
        satisfied.with_context(|| format!("the tools need {PACKAGES}: {advice}"))?;
    }
    let version =
        compiler().context("rustc-web is installed, but `/usr/bin/rustc` fails: reinstall rustc-web")?;
    build_standard_library(workspace)?;
    Ok(fs::write(stamp(workspace), version)?)
}

/// Installs packages, written as Debian's dependencies, such as `strace (>= 6), faketime`.
pub(crate) fn satisfy(workspace: &Workspace, what: &str, packages: &str, limit: Duration) -> Result<()> {
    ensure!(applies(), "install {packages} with the package manager of this system");
    let is_root = run::is_root();
    ensure!(
        is_root || run::output(Command::new("sudo").args(["-n", "true"])).is_some(),
        "installing packages needs root: run `sudo apt-get update && sudo apt-get {} '{packages}'`, then \
         `cargo xtask setup --retry`",
        SATISFY.join(" ")
    );
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new(if is_root { "env" } else { "sudo" });
        command.args((!is_root).then_some(["-n", "env"]).into_iter().flatten());
        command.args(["DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "apt-get"]).args(arguments);
        command
    };
    let install = || run::log(workspace, what, apt_get(&SATISFY).arg(packages), limit);
    // If the package lists are missing or old, they name files that the mirror does not have.
    install().or_else(|_| {
        run::log(workspace, "update apt-get's lists", &mut apt_get(&["update"]), INSTALL_TIMEOUT)?;
        install()
    })
}

/// Runs apt-get's simulation, which needs neither root nor the mirror.
fn are_installed(packages: &str) -> bool {
    let actions = run::output(Command::new("apt-get").args(SATISFY).args(["--simulate", packages]));
    actions.is_some_and(|actions| !actions.lines().any(|line| line.starts_with("Inst ")))
}

/// The version of the distribution's compiler, with its commit.
fn compiler() -> Option<String> {
    run::output(Command::new(RUSTC).arg("--version").env_remove("LD_LIBRARY_PATH"))
}

fn home(workspace: &Workspace) -> PathBuf {
    workspace.state().join("debian")
}

/// The file that a finished installation leaves: the version of its compiler.
pub(crate) fn stamp(workspace: &Workspace) -> PathBuf {
    home(workspace).join("compiler")
}

/// Compiles the standard library as a dependency of an empty program, copies it to the sysroot, and
/// compiles the program again to show that the sysroot is complete.
fn build_standard_library(workspace: &Workspace) -> Result<()> {
    if home(workspace).exists() {
        fs::remove_dir_all(home(workspace))?;
    }
    let sysroot = home(workspace).join("sysroot");
    let libraries = sysroot.join("lib/rustlib").join(WASIP1).join("lib");
    fs::create_dir_all(libraries.join("self-contained"))?;
    let wasi_libc = WASI_LIBC.map(Path::new).into_iter().find(|folder| folder.join("libc.a").is_file());
    let wasi_libc = wasi_libc.context("the package wasi-libc lacks libc.a: install another version of it")?;
    // rustc links these from its sysroot.
    for name in ["crt1-command.o", "crt1-reactor.o", "libc.a"] {
        fs::copy(wasi_libc.join(name), libraries.join("self-contained").join(name))?;
    }
    let probe = home(workspace).join("probe");
    fs::create_dir_all(probe.join("src"))?;
    fs::write(probe.join("Cargo.toml"), "[package]\nname = \"probe\"\nedition = \"2024\"\n[workspace]\n")?;
    fs::write(probe.join("src/main.rs"), "fn main() { println!(\"{:?}\", std::env::args()); }\n")?;
    let mut build = cargo(workspace, &["build", "--release", "--target", WASIP1]);
    build.current_dir(&probe).env("CARGO_TARGET_DIR", "target").env("RUSTC_BOOTSTRAP", "1");
    // Bitcode, because the tools are linked with link-time optimisation.
    let flags = format!("--sysroot\x1f{}\x1f-Cembed-bitcode=yes", sysroot.display());
    build.arg("-Zbuild-std=std,panic_abort").env("CARGO_ENCODED_RUSTFLAGS", flags);
    run::log(workspace, &format!("compile the standard library for {WASIP1}"), &mut build, UNLIMITED)?;
    for file in fs::read_dir(probe.join("target").join(WASIP1).join("release/deps"))? {
        let file = file?;
        if file.path().extension().is_some_and(|extension| extension == "rlib") {
            fs::copy(file.path(), libraries.join(file.file_name()))?;
        }
    }
    let mut check = cargo(workspace, &["build", "--release", "--target", WASIP1]);
    check.current_dir(&probe).env("CARGO_TARGET_DIR", "target");
    run::log(workspace, &format!("compile a program for {WASIP1}"), &mut check, UNLIMITED)?;
    Ok(fs::remove_dir_all(&probe)?)
}
