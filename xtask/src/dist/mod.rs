//! `dist`: makes the packages of a release, with the lists of their components, checksums and a signature.
//!
//! ```text
//! compile ─▶ root (program, signed tools, pages) ─▶ packages ─▶ lists, checksums, signature
//! ```
//! What a package contains is laid out once, in a folder as below `/usr`; the packagers only read it. Equal roots give
//! equal packages in any folder and at any time.

mod archive;
mod check_deb;
mod check_hosts;
mod check_image;
mod checksums;
mod compile;
mod deb;
mod files;
mod image;
mod mcp_client;
mod note;
mod npm;
mod podman;
mod reproduce;
mod root;
mod server_json;
mod symbols;
mod tree;
mod wheel;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::run::{self, Workspace};
use crate::setup;
use crate::tools;

pub(crate) const HELP: &str = "\
Make the packages of a release.

Usage: cargo xtask dist [--check[=compile]] [--binary FILE]
       cargo xtask dist --symbols [--binary FILE]

Options:
  --check          Make all packages twice, in two folders, compare them, and
                   try them where this machine has what that needs
  --check=compile  Also compile twice, in two folders, which takes twice as long
  --binary FILE    Take this program instead of compiling one
  --symbols        Report what makes the program large, and make no package;
                   FILE must not be stripped

target/dist gets the packages, a list of the components of each (CycloneDX),
SHA256SUMS, its signature SHA256SUMS.sig, and the signer's key, signer.pem:
  sha256sum --check SHA256SUMS
  openssl pkeyutl -verify -pubin -inkey signer.pem -rawin -in SHA256SUMS \\
    -sigfile SHA256SUMS.sig

The program runs with glibc 2.28 and newer. cargo-zigbuild and Zig (411 MB)
compile it; pip installs them below target/, and their digests are pinned. The
program for aarch64 is cross-built and not run. Compiling takes 25 minutes on
two cores.

Environment:
  A2G_DIST_KEY       A private Ed25519 key in PEM, which signs the tools and
                     SHA256SUMS (`openssl genpkey -algorithm ed25519`);
                     default: one that is created in target/dist/work
  SOURCE_DATE_EPOCH  The time of all files, in seconds since 1970;
                     default: that of the last commit

Calls `cargo xtask tools` first.";

/// What each package is made of.
pub(crate) struct Release<'a> {
    pub(crate) workspace: &'a Workspace,
    /// The version of the executor, such as `0.1.0`.
    pub(crate) version: String,
    /// Seconds since 1970 of the last commit: the time of every file in a package (`SOURCE_DATE_EPOCH`).
    pub(crate) epoch: u64,
    /// The folder of the finished packages.
    pub(crate) folder: PathBuf,
    pub(crate) architecture: Architecture,
    /// The files as below a prefix such as `/usr`.
    pub(crate) root: PathBuf,
}

/// A processor that a release is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The target of the Rust compiler.
    fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.as_str())
    }

    /// The processor of this machine.
    fn of_this_machine() -> Result<Self> {
        let found = Self::ALL.into_iter().find(|known| known.as_str() == env::consts::ARCH);
        let found = found.filter(|_| cfg!(target_os = "linux"));
        found.context("packages are made on Linux, on x86_64 or aarch64")
    }
}

/// Makes the packages of one kind from a root, and returns them.
type Packager = fn(&Release<'_>) -> Result<Vec<PathBuf>>;
/// Tries the packages of one kind. Says so and succeeds where this machine lacks what that needs.
type Check = fn(&Release<'_>) -> Result<()>;

const PACKAGERS: &[(&str, Packager)] = &[
    ("archive", archive::build),
    ("wheel", wheel::build),
    ("packages for npm", npm::build),
    ("server.json", server_json::build),
    ("Debian package", deb::build),
    ("image", image::build),
];
const CHECKS: &[(&str, Check)] = &[
    ("wheel and packages for npm", check_hosts::check),
    ("Debian package", check_deb::check),
    ("image", check_image::check),
];

/// What `--check` asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Extent {
    #[default]
    Nothing,
    Packages,
    Compilation,
}

/// The options of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    extent: Extent,
    binary: Option<PathBuf>,
    shows_symbols: bool,
}

impl Options {
    /// `None` if the words are not valid.
    pub(crate) fn parse(mut words: &[&str]) -> Option<Self> {
        let mut options = Self::default();
        while let [word, rest @ ..] = words {
            words = rest;
            match *word {
                "--check" => options.extent = Extent::Packages,
                "--check=compile" => options.extent = Extent::Compilation,
                "--symbols" => options.shows_symbols = true,
                "--binary" => {
                    let [file, rest @ ..] = words else { return None };
                    if file.starts_with('-') {
                        return None;
                    }
                    options.binary = Some(PathBuf::from(file));
                    words = rest;
                }
                _ => return None,
            }
        }
        let has_check = options.extent != Extent::Nothing;
        let compiles_nothing = options.extent == Extent::Compilation && options.binary.is_some();
        let is_contradiction = compiles_nothing || (options.shows_symbols && has_check);
        (!is_contradiction).then_some(options)
    }
}

/// The command `dist`.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let native = Architecture::of_this_machine()?;
    if options.shows_symbols {
        let program = match &options.binary {
            Some(file) => file.clone(),
            None => compile::program(workspace, &compile::prepare(workspace)?, native, epoch(workspace)?)?,
        };
        return symbols::run(workspace, &program);
    }
    let folder = workspace.target.join("dist");
    let work = folder.join("work");
    clear(&folder, &work)?;
    let key = checksums::Key::find(&work)?;
    tools::build(workspace, &setup::prepare(workspace)?)?;
    let releases = releases(workspace, options.binary.as_deref(), native, &key)?;
    let packages = releases.iter().map(|release| Ok((release, build(release)?)));
    let packages = packages.collect::<Result<Vec<_>>>()?;
    checksums::write(&packages, &folder, &key)?;
    if options.extent != Extent::Nothing {
        reproduce::check_packages(&packages, &work)?;
        for (name, check) in CHECKS {
            run::progress("Checking", name);
            let native = releases.iter().find(|release| release.architecture == native);
            native.map_or(Ok(()), check).with_context(|| format!("the check of the {name} has failed"))?;
        }
    }
    if options.extent == Extent::Compilation {
        reproduce::check_compilation(workspace, native, epoch(workspace)?, &work)?;
    }
    for path in files(&folder)?.iter().filter(|path| !path.starts_with("work")) {
        let bytes = fs::metadata(folder.join(path))?.len();
        run::progress("Made", &format!("{} ({:.1} MB)", path.display(), bytes as f64 / 1e6));
    }
    Ok(())
}

/// Removes the packages of an earlier run. The working folder stays, because it has the key and the compiled tools.
fn clear(folder: &Path, work: &Path) -> Result<()> {
    fs::create_dir_all(work)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.is_dir() {
            fs::remove_file(&path)?;
        } else if path != work {
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}

/// Compiles the programs unless one is given, and lays out the root of each.
fn releases<'a>(
    workspace: &'a Workspace,
    given: Option<&Path>,
    native: Architecture,
    key: &checksums::Key,
) -> Result<Vec<Release<'a>>> {
    let epoch = epoch(workspace)?;
    let others = Architecture::ALL.into_iter().filter(|other| given.is_none() && *other != native);
    let mut releases = Vec::new();
    for architecture in [native].into_iter().chain(others) {
        let target = architecture.target();
        if given.is_none() && !setup::prepare_target(workspace, &target)? {
            ensure!(
                architecture != native,
                "a release needs the target {target}: make `rustup target add` work"
            );
            run::progress("Skipped", &format!("the packages for {}", architecture.as_str()));
            continue;
        }
        let folder = workspace.target.join("dist");
        let root = folder.join("work").join(architecture.as_str()).join("root");
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let release = Release { workspace, version, epoch, folder, architecture, root };
        let program = match given {
            Some(file) => file.to_owned(),
            None => {
                let programs = compile::prepare(workspace)?;
                let program = compile::program(workspace, &programs, architecture, epoch)?;
                compile::strip(workspace, &program)?
            }
        };
        match releases.first() {
            None => root::lay_out(&release, &program, key)?,
            // The tools and the pages are the same, and this program cannot make them here.
            Some(first) => {
                root::lay_out_like(first, &release, &program)?;
                run::progress("Untested", &format!("the program for {target} is not run here"));
            }
        }
        releases.push(release);
    }
    Ok(releases)
}

/// Makes all packages of a release.
fn build(release: &Release<'_>) -> Result<Vec<PathBuf>> {
    let mut packages = Vec::new();
    for (name, packager) in PACKAGERS {
        let what = format!("the {name} for {}", release.architecture.as_str());
        run::progress("Packing", &what);
        packages.extend(packager(release).with_context(|| format!("could not make {what}"))?);
    }
    Ok(packages)
}

/// The time of all files: `SOURCE_DATE_EPOCH`, or else that of the last commit.
fn epoch(workspace: &Workspace) -> Result<u64> {
    if let Some(seconds) = env::var_os("SOURCE_DATE_EPOCH") {
        let seconds = seconds.to_string_lossy();
        return seconds.parse().context("SOURCE_DATE_EPOCH has to be a number of seconds since 1970");
    }
    let mut log = Command::new("git");
    log.args(["log", "-1", "--format=%ct"]).current_dir(&workspace.root);
    let seconds = run::output(&mut log).and_then(|seconds| seconds.parse().ok());
    seconds.context("git names no last commit: set SOURCE_DATE_EPOCH to the time of the release, in seconds")
}

/// The files below a folder, as relative paths, in the order of their names' bytes.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(&next)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                waiting.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(folder)?.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
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

    #[test]
    fn options_are_parsed_and_contradictions_refused() {
        let parse = |line: &str| Options::parse(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(parse(""), Some(Options::default()));
        let options = parse("--binary x --check").unwrap();
        assert_eq!((options.extent, options.binary), (Extent::Packages, Some(PathBuf::from("x"))));
        assert_eq!(parse("--check=compile").unwrap().extent, Extent::Compilation);
        assert!(parse("--symbols --binary x").unwrap().shows_symbols);
        for wrong in [
            "--binary",
            "--binary --check",
            "--check=x",
            "x",
            "--symbols --check",
            "--check=compile --binary x",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
