//! `setup`: what building guests needs beyond a Rust toolchain.
//!
//! ```text
//! installed? ──no──▶ rustup target add ──fails──▶ Debian's packages ──fail──▶ one sentence, exit 1
//!     │ yes                 │ ok                        │ ok
//!     ▼                     ▼                           ▼
//!   Native               Native                      Debian
//! ```
//!
//! A finished setup is recognised in well under a second and without the network: what failed once is
//! remembered below `target/` until `--retry`. It never changes the toolchain that builds the executor,
//! except for `rustup target add`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::clients;
use crate::debian_fallback::{self, DebianToolchain};
use crate::extras;
use crate::run::{self, AtPath, Failure, Workspace};

pub(crate) const HELP: &str = "\
Get what building the guest tools needs.

Usage: cargo xtask setup [--retry]

Two targets of the Rust compiler are needed for guests:
  wasm32-wasip1   required: the tools are built for it
  wasm32-wasip2   wanted: without it, its tests are skipped, by name

Each is used when it is installed; otherwise `rustup target add` gets it. Where
that fails on Debian or Ubuntu, the distribution's packages stand in for
wasm32-wasip1: this needs root or a password-less sudo, installs about 1 GB with
apt-get, removes nothing, and builds the standard library once.

Some tests use strace and libfaketime; where they are missing, this gets them in
the same way, and otherwise those tests are skipped, by name. So are those with the
A2A libraries of Python and JavaScript, which pip and npm install below target/.

The other commands call this one. A second run takes less than a second.

Options:
  --retry   Try again what failed before and was remembered";

/// The target that every tool is built for.
pub(crate) const REQUIRED: &str = "wasm32-wasip1";
/// The target of which the tests need a few guests.
pub(crate) const WANTED: &str = "wasm32-wasip2";
/// `rustup target add` takes seconds where its server answers; where it does not, a minute is enough.
const RUSTUP_LIMIT: Duration = Duration::from_secs(60);

/// What compiles a guest for [`REQUIRED`].
#[derive(Debug)]
pub(crate) enum GuestToolchain {
    /// The toolchain that also builds the executor.
    Native,
    /// The distribution's own, because rustup could not provide the target.
    Debian(DebianToolchain),
}

impl GuestToolchain {
    /// A cargo that can build for [`REQUIRED`]; the caller adds `build`, the target and the rest.
    pub(crate) fn cargo(&self, workspace: &Workspace) -> Command {
        match self {
            Self::Native => workspace.cargo(),
            Self::Debian(toolchain) => toolchain.cargo(workspace),
        }
    }
}

/// What is there after setup.
#[derive(Debug)]
pub(crate) struct Guests {
    /// What compiles for [`REQUIRED`].
    pub(crate) toolchain: GuestToolchain,
    /// Whether [`WANTED`] can be compiled for.
    pub(crate) has_wanted: bool,
}

/// The command itself: sets up and says what there is.
///
/// # Errors
/// As [`prepare`].
pub(crate) fn run(workspace: &Workspace, retry: bool) -> Result<(), Failure> {
    if retry {
        forget(&note_about_wanted(workspace))?;
        debian_fallback::forget(workspace)?;
        extras::forget(workspace)?;
        clients::forget(workspace)?;
    }
    let guests = prepare(workspace)?;
    extras::prepare(workspace)?;
    clients::prepare(workspace)?;
    let how = match guests.toolchain {
        GuestToolchain::Native => "by the Rust toolchain",
        GuestToolchain::Debian(_) => "by the distribution's packages",
    };
    run::progress("Ready", &format!("{REQUIRED}, {how}"));
    if guests.has_wanted {
        run::progress("Ready", WANTED);
    }
    Ok(())
}

/// Makes sure that guests can be built.
///
/// # Errors
/// When [`REQUIRED`] cannot be had; the sentence says what to do.
pub(crate) fn prepare(workspace: &Workspace) -> Result<Guests, Failure> {
    let sysroot = sysroot(workspace)?;
    let toolchain = required(workspace, &sysroot)?;
    let unavailable = match &toolchain {
        GuestToolchain::Native => wanted(workspace, &sysroot)?,
        GuestToolchain::Debian(_) => Some("the distribution's packages do not include it".to_owned()),
    };
    if let Some(reason) = &unavailable {
        run::progress("Without", &format!("{WANTED}, so its tests are skipped: {reason}"));
    }
    Ok(Guests { toolchain, has_wanted: unavailable.is_none() })
}

fn required(workspace: &Workspace, sysroot: &Path) -> Result<GuestToolchain, Failure> {
    if installed(sysroot, REQUIRED) {
        return Ok(GuestToolchain::Native);
    }
    if let Some(toolchain) = debian_fallback::ready(workspace) {
        return Ok(GuestToolchain::Debian(toolchain));
    }
    let reason = match add(workspace, sysroot, REQUIRED) {
        Ok(()) => return Ok(GuestToolchain::Native),
        Err(failure) => failure.to_string(),
    };
    if !debian_fallback::applies() {
        return Err(Failure::Missing(format!(
            "guests need the target {REQUIRED}: make `rustup target add {REQUIRED}` work or install your \
             distribution's Rust package for it, then run this again ({reason})"
        )));
    }
    run::progress("Falling back", &format!("to the distribution's packages: {reason}"));
    debian_fallback::install(workspace).map(GuestToolchain::Debian)
}

/// Why [`WANTED`] cannot be had, or `None` when it is there. A failure is remembered, since asking
/// rustup costs up to [`RUSTUP_LIMIT`].
fn wanted(workspace: &Workspace, sysroot: &Path) -> Result<Option<String>, Failure> {
    if installed(sysroot, WANTED) {
        return Ok(None);
    }
    let note = note_about_wanted(workspace);
    if note.exists() {
        return Ok(Some("it could not be had before (`cargo xtask setup --retry` tries again)".to_owned()));
    }
    let Err(failure) = add(workspace, sysroot, WANTED) else { return Ok(None) };
    let reason = failure.to_string();
    fs::create_dir_all(workspace.notes()).at(&workspace.notes())?;
    fs::write(&note, &reason).at(&note)?;
    Ok(Some(reason))
}

fn add(workspace: &Workspace, sysroot: &Path, target: &str) -> Result<(), Failure> {
    let mut rustup = Command::new("rustup");
    rustup.args(["target", "add", target]).current_dir(&workspace.root);
    run::logged(workspace, &format!("add {target} with rustup"), &mut rustup, Some(RUSTUP_LIMIT))?;
    // rustup may serve another toolchain than the one that compiles here.
    if installed(sysroot, target) {
        return Ok(());
    }
    Err(Failure::Missing(format!("rustup added {target} to another toolchain than the one in use")))
}

fn sysroot(workspace: &Workspace) -> Result<PathBuf, Failure> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    run::output(Command::new(rustc).args(["--print", "sysroot"]).current_dir(&workspace.root))
        .map(PathBuf::from)
        .ok_or_else(|| {
            Failure::Missing("`rustc --print sysroot` does not work: install Rust first".to_owned())
        })
}

fn installed(sysroot: &Path, target: &str) -> bool {
    sysroot.join("lib/rustlib").join(target).join("lib").is_dir()
}

fn note_about_wanted(workspace: &Workspace) -> PathBuf {
    workspace.notes().join(format!("{WANTED}-unavailable"))
}

fn forget(note: &Path) -> Result<(), Failure> {
    if note.exists() { fs::remove_file(note).at(note) } else { Ok(()) }
}
