//! The comparison of two runs in two folders.
//!
//! The packages are always compared. A second compilation takes as long as the first, so it is made only on request,
//! from the last commit. Not compared are the components of tools in Python and JavaScript: what makes them starts the
//! interpreter once and stores its memory, which has random numbers.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};
use fs_err as fs;

use super::Shared;
use crate::dist::{self, Packed, Release, compile, files};
use crate::run::{self, Workspace};
use crate::setup;
use crate::tools;

/// Makes all packages again, from a copy of the root in another folder, and compares them.
pub(super) fn check_packages(shared: &Shared<'_>) -> Result<()> {
    let again = shared.release.work().join("again");
    files::create_empty(&again)?;
    for Packed { release, files: made } in shared.packages {
        let copy = Release {
            folder: again.join("packages"),
            root: again.join(release.architecture.as_str()),
            ..release.clone()
        };
        fs::create_dir_all(&copy.folder)?;
        files::copy(files::list(&release.root)?, &copy.root)?;
        dist::build(&copy)?;
        for path in made {
            let second = copy.folder.join(path.strip_prefix(&release.folder)?);
            ensure!(
                fs::read(path)? == fs::read(&second)?,
                "two runs give different bytes: {} and {}",
                path.display(),
                second.display()
            );
        }
    }
    run::progress("Compared", "two runs of the packaging, in two folders: the same bytes");
    Ok(fs::remove_dir_all(&again)?)
}

/// Compiles the last commit in another folder, and compares the program and the tools.
pub(super) fn check_compilation(shared: &Shared<'_>) -> Result<()> {
    let Release { workspace, architecture, epoch, .. } = *shared.release;
    let mut status = Command::new("git");
    let changes = run::output(status.args(["status", "--porcelain"]).current_dir(&workspace.root));
    ensure!(
        changes.is_some_and(|changes| changes.is_empty()),
        "a second compilation takes the last commit: commit what `git status` shows, or leave `--check=compile` out"
    );
    let again = shared.release.work().join("another-folder");
    files::create_empty(&again)?;
    let mut clone = Command::new("git");
    clone.args(["clone", "--quiet"]).arg(&workspace.root).arg(again.join("source"));
    run::log(workspace, "clone the repository", &mut clone, setup::INSTALL_TIMEOUT)?;
    let copy = Workspace::new(again.join("source"), again.join("target"));

    tools::build_modules(&copy, &setup::prepare(workspace)?)?;
    for name in tools::names(&copy)? {
        let [first, second] = [workspace, &copy].map(|workspace| tools::module(workspace, &name));
        // Those in Python and JavaScript have none.
        if second.exists() {
            compare(&first, &second)?;
        }
    }
    let programs = compile::prepare(workspace)?;
    let [first, second] = [workspace, &copy].map(|workspace| {
        compile::strip(workspace, &compile::program(workspace, &programs, architecture, epoch)?)
    });
    compare(&first?, &second?)?;
    run::progress("Compared", "two compilations, in two folders: the same bytes");
    Ok(fs::remove_dir_all(&again)?)
}

/// Fails with the first difference of two files.
fn compare(first: &Path, second: &Path) -> Result<()> {
    let one = fs::read(first)?;
    let other = fs::read(second)?;
    if one == other {
        return Ok(());
    }
    let place = one.iter().zip(&other).position(|(one, other)| one != other);
    let place = place.unwrap_or(one.len().min(other.len()));
    bail!("{} and {} differ, first at byte {place}", first.display(), second.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, content) in [("a", "1234"), ("b", "1234"), ("c", "12x4"), ("d", "12")] {
            fs::write(path(name), content).unwrap();
        }
        assert!(compare(&path("a"), &path("b")).is_ok());
        for (name, byte) in [("c", 2), ("d", 2)] {
            let error = compare(&path("a"), &path(name)).unwrap_err().to_string();
            assert!(error.ends_with(&format!("first at byte {byte}")), "{error}");
        }
    }
}
