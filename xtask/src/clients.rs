//! Clients of the doors that others wrote, from the registries of their languages: where one cannot be had, its
//! tests are skipped, by name.
//!
//! What failed once is remembered below `target/` until `--retry`, as in [`crate::setup`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::run::{self, AtPath, Failure, Workspace};

/// The library of A2A for Python, with what it needs as a client.
const PYTHON: &str = "a2a-sdk==0.3.26";
/// The library of A2A for JavaScript.
const JAVASCRIPT: &str = "@a2a-js/sdk@0.3.14";
/// A registry that answers needs seconds.
const LIMIT: Duration = Duration::from_secs(180);

/// Gets what is missing. Nothing depends on it but a few tests.
///
/// # Errors
/// When a note below `target/` cannot be written.
pub(crate) fn prepare(workspace: &Workspace) -> Result<(), Failure> {
    let folder = workspace.notes().join("clients");
    fs::create_dir_all(&folder).at(&folder)?;
    for (name, install) in [(PYTHON, python as Install), (JAVASCRIPT, javascript)] {
        let (there, note) = (folder.join(file(name, "installed")), folder.join(file(name, "unavailable")));
        if there.exists() {
            continue;
        }
        let reason = match fs::read_to_string(&note) {
            Ok(reason) => reason,
            Err(_nothing_failed_yet) => match install(workspace, &folder) {
                Ok(()) => {
                    fs::write(&there, "").at(&there)?;
                    continue;
                }
                Err(failure) => {
                    fs::write(&note, failure.to_string()).at(&note)?;
                    failure.to_string()
                }
            },
        };
        run::progress("Without", &format!("{name}, so its test is skipped: {reason}"));
    }
    Ok(())
}

type Install = fn(&Workspace, &Path) -> Result<(), Failure>;

/// Makes the next run try again.
///
/// # Errors
/// When a note cannot be removed.
pub(crate) fn forget(workspace: &Workspace) -> Result<(), Failure> {
    let folder = workspace.notes().join("clients");
    let notes = [PYTHON, JAVASCRIPT].map(|name| folder.join(file(name, "unavailable")));
    notes.iter().filter(|note| note.exists()).try_for_each(|note| fs::remove_file(note).at(note))
}

fn file(name: &str, state: &str) -> PathBuf {
    PathBuf::from(format!("{}-{state}", name.replace(['@', '/', '='], "-")))
}

fn python(workspace: &Workspace, folder: &Path) -> Result<(), Failure> {
    let home = folder.join("python");
    let mut venv = Command::new("python3");
    run::logged(workspace, "make a place for Python", venv.args(["-m", "venv"]).arg(&home), Some(LIMIT))?;
    let mut pip = Command::new(home.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", PYTHON]);
    run::logged(workspace, &format!("install {PYTHON}"), &mut pip, Some(LIMIT))
}

fn javascript(workspace: &Workspace, folder: &Path) -> Result<(), Failure> {
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-fund", "--no-audit", "--prefix"]).arg(folder.join("node")).arg(JAVASCRIPT);
    run::logged(workspace, &format!("install {JAVASCRIPT}"), &mut npm, Some(LIMIT))
}
