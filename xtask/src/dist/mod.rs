//! `dist`: makes the packages of a release, with the lists of their components, checksums and a signature.
//!
//! ```text
//! compile ─▶ root (program, signed tools, pages) ─▶ packages ─▶ lists, checksums, signature
//! ```
//! What a package contains is laid out once, in a folder as below `/usr`; the packagers only read it. Equal roots give
//! equal packages in any folder and at any time.

mod archive;
mod check;
mod checksums;
mod compile;
mod deb;
mod files;
mod image;
mod npm;
mod podman;
mod root;
mod server_json;
mod symbols;
mod tarball;
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

Usage: cargo xtask dist [--check] [--check=PART]... [--binary FILE]
       cargo xtask dist --symbols [--binary FILE]

Options:
  --check        Check all parts below but `compile`; those that need what this
                 machine does not have are skipped
  --check=PART   Check one part
  --binary FILE  Take this program instead of compiling one
  --symbols      Report what makes the program large, and make no package;
                 FILE must not be stripped

Parts:
  size           The program has at most 40 MB
  packing        Packing again in another folder gives the same bytes
  server-json    server.json is valid by the schema of the registry
  pip            The wheel works with pip, and says what of it is missing
  uv             with uvx
  pipx           with pipx
  auditwheel     needs no newer glibc than its name says
  npm            The packages work with npx and npm, and say what is missing
  debian-python  From nothing in a Debian with Python only: pip, uvx
  debian-node    From nothing in a Debian with Node.js only: npx
  hosts          Claude Code, Codex and Gemini CLI list the executor
  lintian        The Debian package follows Debian's rules
  deb            It is installed, started, upgraded and purged, with systemd
  image          The image works with podman, and has at most 90 MB
  compile        Compiling the last commit again in another folder gives the
                 same bytes, and takes as long as the first time

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

/// The parts of each package.
#[derive(Clone)]
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

impl Release<'_> {
    /// The folder of what is not finished, and is used again by later runs.
    fn work(&self) -> PathBuf {
        self.folder.join(WORK)
    }

    /// `true` if its program runs on this machine.
    fn is_native(&self) -> bool {
        self.architecture.as_str() == env::consts::ARCH
    }
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

/// The finished packages of a release.
struct Packed<'a> {
    release: Release<'a>,
    files: Vec<PathBuf>,
}

/// Makes the packages of one kind from a root, and returns them.
type Packager = fn(&Release<'_>) -> Result<Vec<PathBuf>>;

const PACKAGERS: [(&str, Packager); 5] = [
    ("archive", archive::build),
    ("wheel", wheel::build),
    ("package for npm", npm::build),
    ("Debian package", deb::build),
    ("image", image::build),
];
/// The packages that are the same for each architecture, and are made with the release for this machine.
const COMMON_PACKAGERS: [(&str, Packager); 2] =
    [("launcher for npm", npm::build_launcher), ("entry for registries", server_json::build)];
/// Below the folder of the finished packages.
const WORK: &str = "work";

/// The options of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The parts to check.
    parts: Vec<&'static str>,
    binary: Option<PathBuf>,
    shows_symbols: bool,
}

impl Options {
    /// Returns the reason if the words are not valid.
    pub(crate) fn parse(mut words: &[&str]) -> Result<Self, String> {
        let mut options = Self::default();
        while let [word, rest @ ..] = words {
            words = rest;
            match *word {
                "--check" => options.parts.extend(check::names().filter(|name| *name != check::COMPILE)),
                "--symbols" => options.shows_symbols = true,
                "--binary" => {
                    let file = words.first().filter(|file| !file.starts_with('-'));
                    options.binary = Some(PathBuf::from(file.ok_or("`--binary` needs a file")?));
                    words = words.get(1..).unwrap_or_default();
                }
                _ => options.parts.push(part(word)?),
            }
        }
        if options.shows_symbols && !options.parts.is_empty() {
            return Err("`--symbols` makes no package that `--check` could check".to_owned());
        }
        if options.binary.is_some() && options.parts.contains(&check::COMPILE) {
            return Err("`--binary` compiles nothing that `--check=compile` could compare".to_owned());
        }
        Ok(options)
    }
}

/// The part that `--check=PART` names.
fn part(word: &str) -> Result<&'static str, String> {
    let hint = || format!("`dist` does not take `{word}`; `cargo xtask dist --help` shows its arguments");
    let typed = word.strip_prefix("--check=").ok_or_else(hint)?;
    check::names().find(|name| *name == typed).ok_or_else(|| {
        let names = check::names().collect::<Vec<_>>().join(", ");
        format!("there is no part `{typed}` to check; the parts are {names}")
    })
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
    clear(&folder)?;
    let key = checksums::Key::find(&folder.join(WORK))?;
    tools::build(workspace, &setup::prepare(workspace)?)?;
    let releases = releases(workspace, options.binary.as_deref(), native, &key)?;
    let packed = releases.into_iter().map(|release| Ok(Packed { files: build(&release)?, release }));
    let packed = packed.collect::<Result<Vec<_>>>()?;
    checksums::write(&packed, &folder, &key)?;
    for entry in finished(&folder)? {
        let bytes = fs::metadata(&entry.file)?.len();
        run::progress("Made", &format!("{} ({:.1} MB)", entry.path, bytes as f64 / 1e6));
    }
    match packed.first() {
        Some(native) if !options.parts.is_empty() => check::run(&options.parts, &packed, &native.release),
        _ => Ok(()),
    }
}

/// Removes the packages of an earlier run. The working folder stays, because it has the key and the compiled tools.
fn clear(folder: &Path) -> Result<()> {
    let work = folder.join(WORK);
    fs::create_dir_all(&work)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path != work {
            files::remove(&path)?;
        }
    }
    Ok(())
}

/// The finished packages and what belongs to them.
fn finished(folder: &Path) -> Result<Vec<files::Entry>> {
    files::list_without(folder, Some(&folder.join(WORK)))
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
        let root = folder.join(WORK).join(architecture.as_str()).join("root");
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
    let common = if release.is_native() { COMMON_PACKAGERS.as_slice() } else { &[] };
    for (name, packager) in PACKAGERS.iter().chain(common) {
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
        assert_eq!(parse(""), Ok(Options::default()));
        let options = parse("--binary x --check").unwrap();
        assert_eq!(options.binary, Some(PathBuf::from("x")));
        assert!(options.parts.contains(&"image") && !options.parts.contains(&check::COMPILE));
        assert_eq!(parse("--check=compile --check=pip").unwrap().parts, ["compile", "pip"]);
        assert!(parse("--symbols --binary x").unwrap().shows_symbols);
        for (wrong, reason) in [
            ("--binary", "needs a file"),
            ("--binary --check", "needs a file"),
            ("--check=x", "the parts are size, packing, "),
            ("--check=", "the parts are "),
            ("x", "does not take `x`"),
            ("--symbols --check", "makes no package"),
            ("--check=compile --binary x", "compiles nothing"),
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains(reason), "{wrong}: {error}");
        }
    }

    #[test]
    fn the_help_describes_each_part() {
        let (_, parts) = HELP.split_once("\nParts:\n").unwrap();
        let (parts, _) = parts.split_once("\n\n").unwrap();
        let described = parts.lines().map(|line| line.trim_start_matches("  ").split(' ').next().unwrap());
        let described: Vec<&str> = described.filter(|name| !name.is_empty()).collect();
        assert_eq!(described, check::names().collect::<Vec<_>>());
    }
}
