//! Debian's packages that a few tests use: where one is missing, its tests are skipped, by name.
//!
//! What failed once is remembered below `target/` until `--retry`, as in [`crate::setup`].

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::debian_fallback::{applies, as_root, may_install};
use crate::run::{self, AtPath, Failure, Workspace};

/// A package, and what of it the tests look for.
type Package = (&'static str, fn() -> bool);

/// strace breaks system calls and stops a server at one; faketime sets the wall clock of a server.
const PACKAGES: [Package; 2] = [("strace", has_strace), ("faketime", has_faketime)];
/// Both are small; a mirror that answers needs seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// Gets what is missing, where this user may. Nothing depends on it but some tests.
///
/// # Errors
/// When a note below `target/` cannot be written.
pub(crate) fn prepare(workspace: &Workspace) -> Result<(), Failure> {
    let missing: Vec<&str> = PACKAGES.iter().filter(|(_, there)| !there()).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let note = note(workspace);
    let reason = match fs::read_to_string(&note) {
        Ok(reason) => reason,
        Err(_nothing_failed_yet) => match install(workspace, &missing) {
            Ok(()) => return Ok(()),
            Err(failure) => {
                fs::create_dir_all(workspace.notes()).at(&workspace.notes())?;
                fs::write(&note, failure.to_string()).at(&note)?;
                failure.to_string()
            }
        },
    };
    run::progress("Without", &format!("{}, so some tests are skipped: {reason}", missing.join(" and ")));
    Ok(())
}

/// Makes the next run try again.
///
/// # Errors
/// When the note cannot be removed.
pub(crate) fn forget(workspace: &Workspace) -> Result<(), Failure> {
    let note = note(workspace);
    if note.exists() { fs::remove_file(&note).at(&note) } else { Ok(()) }
}

fn install(workspace: &Workspace, packages: &[&str]) -> Result<(), Failure> {
    if !applies() || !may_install() {
        let packages = packages.join(" ");
        return Err(Failure::Missing(format!("install {packages} by the means of this system")));
    }
    let what = format!("install {} with apt-get", packages.join(" and "));
    let attempt = || {
        let mut install = as_root("apt-get");
        install.args(["install", "--yes", "--no-remove", "--no-install-recommends"]).args(packages);
        run::logged(workspace, &what, &mut install, Some(LIMIT))
    };
    // Lists that are old, or not there, know no package.
    attempt().or_else(|_| {
        run::logged(workspace, "update apt-get's lists", as_root("apt-get").arg("update"), Some(LIMIT))
            .and_then(|()| attempt())
    })
}

fn has_strace() -> bool {
    Path::new("/usr/bin/strace").exists()
}

fn has_faketime() -> bool {
    let libraries = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    libraries.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1")).any(|library| library.exists())
}

fn note(workspace: &Workspace) -> PathBuf {
    workspace.notes().join("extras-unavailable")
}
