//! The image: its files in one archive, and the image that podman makes of them by `deploy/container/Containerfile`.
//!
//! The files are those of the release, what the program is linked with, and the certificates of Debian's package. The
//! machine's own certificates are not copied: people of this machine may have added to them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, ensure};
use fs_err as fs;

use super::podman::Podman;
use super::root::{CLIENTS, TOOLS};
use super::tree::Tree;
use super::{Release, files};
use crate::run;

/// The user of the image.
pub(super) const USER: u64 = 10001;
/// The name of the image, without its version.
pub(super) const NAME: &str = "localhost/a2g-executor";
const CONTAINERFILE: &str = "deploy/container/Containerfile";
const CONFIGURATION: &str = "deploy/container/executor.toml";
/// The certificates of Debian's package ca-certificates, one in each file.
const CERTIFICATES: &str = "/usr/share/ca-certificates/mozilla";
/// The packages of what is not from this repository. Scanners for vulnerabilities read their versions.
const PACKAGES: [&str; 3] = ["ca-certificates", "libc6", "libgcc-s1"];

/// The finished archive.
pub(super) fn archive(release: &Release<'_>) -> PathBuf {
    let name = format!("a2g-executor-{}-image-{}.tar", release.version, release.architecture.as_str());
    release.folder.join(name)
}

/// Returns no image where it cannot be made: the other packages need neither podman nor Debian. `--check` then fails if
/// podman is here.
pub(crate) fn build(release: &Release<'_>) -> Result<Vec<PathBuf>> {
    let architecture = release.architecture.as_str();
    let made = if release.is_native() {
        pack(release)
    } else {
        Err(anyhow!("its libraries are not on this machine"))
    };
    Ok(made.map(|archive| vec![archive]).unwrap_or_else(|error| {
        run::progress("Skipped", &format!("the image for {architecture}: {error:#}"));
        Vec::new()
    }))
}

/// Makes the image, and writes it as an OCI archive. The archive is not podman's, which has the time of its creation.
fn pack(release: &Release<'_>) -> Result<PathBuf> {
    let context = release.root.with_file_name("image");
    files::create_empty(&context)?;
    let tree = tree(release)?;
    run::progress("Packaging", &format!("the image, {} MB of files", tree.bytes() / 1_000_000));
    tree.write_archive(&context.join("rootfs.tar"), release.epoch)?;
    let podman = Podman::find(release.workspace)
        .with_context(|| format!("its files are in {}, but not packed", context.display()))?;
    let name = format!("{NAME}:{}", release.version);
    let mut build =
        podman.command(["build", "--isolation=chroot", "--layers=false", "--identity-label=false"]);
    build.arg(format!("--timestamp={}", release.epoch));
    build.arg(format!("--label=org.opencontainers.image.version={}", release.version));
    build.arg("--tag").arg(&name).arg("--file").arg(release.workspace.root.join(CONTAINERFILE)).arg(&context);
    run::log(release.workspace, "build the image with podman", &mut build, run::UNLIMITED)?;
    let layout = context.join("oci");
    let mut push = podman.command(["push", "--quiet", &name]);
    push.arg(format!("oci:{}:{name}", layout.display()));
    run::log(release.workspace, "write the image with podman", &mut push, run::UNLIMITED)?;
    let mut archived = Tree::default();
    archived.copy(&layout, Path::new(""))?;
    let archive = archive(release);
    archived.write_archive(&archive, release.epoch)?;
    Ok(archive)
}

fn tree(release: &Release<'_>) -> Result<Tree> {
    let mut tree = Tree::default();
    let program = release.root.join("bin/a2g-executor");
    tree.copy(&program, Path::new("usr/bin/a2g-executor"))?;
    for shared in [TOOLS, CLIENTS] {
        tree.copy(&release.root.join(shared), &Path::new("usr").join(shared))?;
    }
    let configuration = release.workspace.root.join(CONFIGURATION);
    tree.add_file("etc/a2g-executor/executor.toml", fs::read(configuration)?);
    for library in libraries(&program)? {
        tree.copy(Path::new("/").join(&library).as_path(), &library)?;
    }
    tree.add_file("etc/ssl/certs/ca-certificates.crt", certificates()?);
    for package in PACKAGES {
        let status = run::output(Command::new("dpkg").args(["--status", package]).env("LC_ALL", "C"));
        let status =
            status.with_context(|| format!("the image needs Debian's package {package}: install it"))?;
        tree.add_file(&format!("var/lib/dpkg/status.d/{package}"), format!("{status}\n"));
    }
    tree.add_file("etc/os-release", fs::read("/etc/os-release")?);
    tree.add_file("etc/passwd", format!("a2g:x:{USER}:{USER}::/var/lib/a2g-executor:/none\n"));
    tree.add_file("etc/group", format!("a2g:x:{USER}:\n"));
    tree.add_folder("tmp", 0o1777, 0);
    tree.add_folder("workspace", 0o755, USER);
    for folder in ["var/lib/a2g-executor", "var/cache/a2g-executor"] {
        tree.add_folder(folder, 0o700, USER);
    }
    Ok(tree)
}

/// The libraries that a program is linked with, and what loads them, by their paths below the root.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let text = run::output(Command::new("ldd").arg(program).env("LC_ALL", "C"));
    let text = text.with_context(|| format!("`ldd {}` fails", program.display()))?;
    ensure!(!text.contains("not found"), "the program lacks libraries on this machine: {text}");
    let paths =
        text.lines().filter_map(|line| line.split_whitespace().find_map(|word| word.strip_prefix('/')));
    Ok(paths.map(PathBuf::from).collect())
}

fn certificates() -> Result<Vec<u8>> {
    let missing = || format!("the image needs {CERTIFICATES}: install Debian's package ca-certificates");
    let entries = fs::read_dir(CERTIFICATES).with_context(missing)?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    ensure!(!paths.is_empty(), missing());
    let mut bundle = Vec::new();
    for path in paths {
        bundle.extend(fs::read(path)?);
    }
    Ok(bundle)
}
