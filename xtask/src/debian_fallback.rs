//! Guests by Debian's and Ubuntu's own packages, for machines where rustup's server is out of reach.
//!
//! The distribution has a compiler, the source of the standard library and wasi-libc, but no compiled
//! standard library for wasm32-wasip1. So it is compiled once, into a sysroot of our own below
//! `target/`; afterwards the distribution's cargo builds guests with `--sysroot` and nothing else that
//! is special. It never writes outside `target/` except through apt-get, and never lets apt-get remove
//! a package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::run::{self, AtPath, Failure, Workspace};
use crate::setup::REQUIRED;

/// The compiler that the distribution keeps recent (for its web browsers), its standard library's
/// source, the C library that the standard library links, and a linker for WebAssembly.
const PACKAGES: [&str; 5] = ["rustc-web", "cargo-web", "rust-web-src", "wasi-libc", "lld-19"];
const CARGO: &str = "/usr/bin/cargo";
const RUSTC: &str = "/usr/bin/rustc";
const LINKER: &str = "/usr/bin/wasm-ld-19";
/// What rustc links by itself for this target, and looks for in its sysroot.
const LINKED: [&str; 3] = ["crt1-command.o", "crt1-reactor.o", "libc.a"];
/// The oldest compiler that compiles the tools: the project's `rust-version`.
const OLDEST: &str = env!("CARGO_PKG_RUST_VERSION");
/// A mirror that answers needs seconds; without an answer there is nothing to wait for.
const UPDATE_LIMIT: Duration = Duration::from_secs(120);

/// The distribution's toolchain with our sysroot for guests.
#[derive(Debug)]
pub(crate) struct DebianToolchain {
    sysroot: PathBuf,
}

impl DebianToolchain {
    fn at(workspace: &Workspace) -> Self {
        Self { sysroot: home(workspace).join("sysroot") }
    }

    fn library(&self) -> PathBuf {
        self.sysroot.join("lib/rustlib").join(REQUIRED).join("lib")
    }

    /// The distribution's cargo, unaware of the toolchain that runs us.
    pub(crate) fn cargo(&self, workspace: &Workspace) -> Command {
        let mut command = Command::new(CARGO);
        command.current_dir(&workspace.root);
        run::without_our_package(&mut command);
        for name in ["CARGO", "LD_LIBRARY_PATH", "RUSTUP_TOOLCHAIN", "RUSTFLAGS", "RUSTC_WRAPPER"] {
            command.env_remove(name);
        }
        command
            .env("RUSTC", RUSTC)
            .env("CARGO_TARGET_WASM32_WASIP1_LINKER", LINKER)
            // Encoded, because the path may contain spaces. With `--target` these flags are the guest's
            // alone: build scripts and macros keep the distribution's own sysroot.
            .env("CARGO_ENCODED_RUSTFLAGS", format!("--sysroot\x1f{}", self.sysroot.display()));
        command
    }
}

/// Whether this machine is one that the fallback is for.
pub(crate) fn applies() -> bool {
    fs::read_to_string("/etc/os-release").is_ok_and(|text| is_debian(&text))
}

/// The toolchain, when an earlier run has finished it and the compiler is still the same.
pub(crate) fn ready(workspace: &Workspace) -> Option<DebianToolchain> {
    let stamp = fs::read_to_string(stamp(workspace)).ok()?;
    (stamp == compiler()?).then(|| DebianToolchain::at(workspace))
}

/// Makes the next run begin with rustup again.
///
/// # Errors
/// When the stamp cannot be removed.
pub(crate) fn forget(workspace: &Workspace) -> Result<(), Failure> {
    let stamp = stamp(workspace);
    if stamp.exists() { fs::remove_file(&stamp).at(&stamp) } else { Ok(()) }
}

/// Installs the packages and compiles the standard library.
///
/// # Errors
/// When a package cannot be had, the compiler is too old or a step fails, in one sentence each.
pub(crate) fn install(workspace: &Workspace) -> Result<DebianToolchain, Failure> {
    if !packages_installed() || compiler().is_none_or(|version| is_old(&version)) {
        install_packages(workspace)?;
    }
    let compiler = compiler().ok_or_else(|| {
        Failure::Missing(format!("{RUSTC} does not run although rustc-web is installed: reinstall it"))
    })?;
    refuse_old(&compiler)?;
    let toolchain = build_standard_library(workspace)?;
    let stamp = stamp(workspace);
    fs::write(&stamp, compiler).at(&stamp)?;
    Ok(toolchain)
}

fn is_debian(os_release: &str) -> bool {
    os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split(' '))
        .any(|id| matches!(id, "debian" | "ubuntu"))
}

fn packages_installed() -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat", "${db:Status-Status}\n"]).args(PACKAGES);
    run::output(&mut query).is_some_and(|text| text.lines().all(|line| line == "installed"))
}

fn install_packages(workspace: &Workspace) -> Result<(), Failure> {
    let packages = PACKAGES.join(" ");
    if !may_install() {
        return Err(Failure::Missing(format!(
            "installing packages needs root: run `sudo apt-get update && sudo apt-get install --no-remove \
             --no-install-recommends {packages}`, then `cargo xtask setup` again"
        )));
    }
    if first_unknown().is_some() || candidate("rustc-web").is_some_and(|version| is_old(&version)) {
        update(workspace)?;
    }
    if let Some(package) = first_unknown() {
        return Err(Failure::Missing(format!(
            "this release of the distribution has no package `{package}`: make `rustup target add {REQUIRED}` work"
        )));
    }
    refuse_old(&candidate("rustc-web").unwrap_or_default())?;
    run::progress("Installing", &format!("{packages} (about 170 MB to fetch)"));
    let again = |_| update(workspace).and_then(|()| apt_install(workspace));
    // Lists that are older than the mirror name files that it no longer has.
    apt_install(workspace).or_else(again)
}

fn apt_install(workspace: &Workspace) -> Result<(), Failure> {
    let mut install = as_root("apt-get");
    install.args(["install", "--yes", "--no-remove", "--no-install-recommends"]).args(PACKAGES);
    run::logged(workspace, "install packages with apt-get", &mut install, None)
}

fn update(workspace: &Workspace) -> Result<(), Failure> {
    run::logged(workspace, "update apt-get's lists", as_root("apt-get").arg("update"), Some(UPDATE_LIMIT))
}

fn is_root() -> bool {
    run::output(Command::new("id").arg("-u")).is_some_and(|id| id == "0")
}

/// Whether this user may install packages without being asked for a password.
pub(crate) fn may_install() -> bool {
    is_root() || run::output(Command::new("sudo").args(["-n", "true"])).is_some()
}

/// A program that root runs.
pub(crate) fn as_root(program: &str) -> Command {
    let mut command = Command::new(if is_root() { "env" } else { "sudo" });
    if !is_root() {
        command.args(["-n", "env"]);
    }
    command.args(["DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", program]);
    command
}

fn first_unknown() -> Option<&'static str> {
    PACKAGES.into_iter().find(|package| candidate(package).is_none())
}

/// The version that apt-get would install.
fn candidate(package: &str) -> Option<String> {
    let policy = run::output(Command::new("apt-cache").args(["policy", package]).env("LC_ALL", "C"))?;
    let version = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (version != "(none)").then(|| version.to_owned())
}

/// The distribution's compiler, in its own words: they also name its commit.
fn compiler() -> Option<String> {
    run::output(Command::new(RUSTC).arg("--version").env_remove("LD_LIBRARY_PATH"))
}

fn refuse_old(version: &str) -> Result<(), Failure> {
    if !is_old(version) {
        return Ok(());
    }
    Err(Failure::Missing(format!(
        "the distribution's compiler is `{version}`, and the tools need {OLDEST}: enable the distribution's \
         security updates or make `rustup target add {REQUIRED}` work"
    )))
}

/// Whether it is older than [`OLDEST`]; a version that cannot be read counts as old.
fn is_old(version: &str) -> bool {
    major_minor(version) < major_minor(OLDEST)
}

/// (1, 96) of `1.96.0+dfsg1-1~deb12u2` and of `rustc 1.96.0 (…)`.
fn major_minor(version: &str) -> Option<(u32, u32)> {
    let number = version.split(' ').find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut parts = number.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn home(workspace: &Workspace) -> PathBuf {
    workspace.notes().join("debian")
}

fn stamp(workspace: &Workspace) -> PathBuf {
    home(workspace).join("compiler")
}

/// Compiles the standard library by way of an empty program, moves it to our sysroot, and shows that it
/// is complete there by compiling the program again, as any guest will be.
fn build_standard_library(workspace: &Workspace) -> Result<DebianToolchain, Failure> {
    let toolchain = DebianToolchain::at(workspace);
    if home(workspace).exists() {
        fs::remove_dir_all(home(workspace)).at(&home(workspace))?;
    }
    collect_linked(&toolchain)?;
    let probe = write_probe(workspace)?;
    let mut build = build_probe(&toolchain, workspace, &probe);
    build.arg("-Zbuild-std=std,panic_abort").env("RUSTC_BOOTSTRAP", "1").env(
        "CARGO_ENCODED_RUSTFLAGS",
        // Bitcode, because the tools are linked with link-time optimisation.
        format!("--sysroot\x1f{}\x1f-Cembed-bitcode=yes", toolchain.sysroot.display()),
    );
    run::logged(workspace, &format!("compile the standard library for {REQUIRED}"), &mut build, None)?;
    keep_libraries(&probe.join("target").join(REQUIRED).join("release/deps"), &toolchain.library())?;
    let mut check = build_probe(&toolchain, workspace, &probe);
    run::logged(workspace, &format!("compile a program for {REQUIRED}"), &mut check, None)?;
    fs::remove_dir_all(&probe).at(&probe)?;
    Ok(toolchain)
}

fn collect_linked(toolchain: &DebianToolchain) -> Result<(), Failure> {
    let listing = run::output(Command::new("dpkg").args(["--listfiles", "wasi-libc"])).unwrap_or_default();
    let folder = folder_with_linked(&listing).ok_or_else(|| {
        Failure::Missing(format!(
            "the package wasi-libc lacks {}: install another version of it",
            LINKED.join(", ")
        ))
    })?;
    let to = toolchain.library().join("self-contained");
    fs::create_dir_all(&to).at(&to)?;
    for name in LINKED {
        let from = folder.join(name);
        fs::copy(&from, to.join(name)).at(&from)?;
    }
    Ok(())
}

/// The folder of the package that holds everything in [`LINKED`]; the single-threaded one.
fn folder_with_linked(listing: &str) -> Option<PathBuf> {
    let files: Vec<&Path> = listing.lines().map(Path::new).collect();
    let holds_all = |folder: &&Path| LINKED.iter().all(|name| files.contains(&folder.join(name).as_path()));
    let fits = |folder: &&Path| folder.ends_with(REQUIRED) || folder.ends_with("wasm32-wasi");
    let folders = files.iter().filter(|file| file.ends_with("libc.a")).filter_map(|file| file.parent());
    folders.filter(fits).find(holds_all).map(Path::to_owned)
}

fn write_probe(workspace: &Workspace) -> Result<PathBuf, Failure> {
    let probe = home(workspace).join("probe");
    let source = probe.join("src");
    fs::create_dir_all(&source).at(&source)?;
    let manifest = "[package]\nname = \"probe\"\nedition = \"2024\"\n[workspace]\n";
    fs::write(probe.join("Cargo.toml"), manifest).at(&probe)?;
    fs::write(source.join("main.rs"), "fn main() { println!(\"{:?}\", std::env::args()); }\n").at(&source)?;
    Ok(probe)
}

fn build_probe(toolchain: &DebianToolchain, workspace: &Workspace, probe: &Path) -> Command {
    let mut build = toolchain.cargo(workspace);
    build.current_dir(probe).args(["build", "--release", "--target", REQUIRED, "--target-dir", "target"]);
    build
}

fn keep_libraries(from: &Path, to: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(from).at(from)? {
        let file = entry.at(from)?.path();
        if let (Some(name), true) = (file.file_name(), file.extension().is_some_and(|end| end == "rlib")) {
            fs::copy(&file, to.join(name)).at(&file)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_and_its_children_are_recognised() {
        assert!(is_debian("NAME=\"Debian GNU/Linux\"\nID=debian\n"));
        assert!(is_debian("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian("ID=fedora\nNAME=debian\n"));
        assert!(!is_debian(""));
    }

    #[test]
    fn versions_of_packages_and_compilers_are_read() {
        assert_eq!(major_minor("1.96.0+dfsg1-1~deb12u2"), Some((1, 96)));
        assert_eq!(major_minor("rustc 1.85.0 (4d91de4e4 2025-02-17)"), Some((1, 85)));
        assert_eq!(major_minor("unknown"), None);
        assert!(major_minor(OLDEST).is_some());
        assert!(refuse_old(&format!("rustc {OLDEST}.0")).is_ok());
        assert!(refuse_old("2.0.0").is_ok());
        assert!(refuse_old("1.85.0").is_err());
        assert!(refuse_old("").is_err());
    }

    #[test]
    fn the_single_threaded_folder_of_wasi_libc_is_found() {
        let listing = "/a/wasm32-wasi-threads/libc.a\n/a/wasm32-wasi-threads/crt1-command.o\n\
                       /a/wasm32-wasi/crt1-command.o\n/a/wasm32-wasi/crt1-reactor.o\n/a/wasm32-wasi/libc.a\n";
        assert_eq!(folder_with_linked(listing), Some(PathBuf::from("/a/wasm32-wasi")));
        assert_eq!(folder_with_linked("/a/wasm32-wasi/libc.a\n"), None);
    }
}
