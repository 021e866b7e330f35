//! `portability`: runs some of the tests where other people might build: in a folder below /tmp whose name has a
//! space, with root's home, and as an ordinary user.
//!
//! The built programs are copied, because nothing has to be compiled again for another place: the tests find everything
//! from the path of their own program, except for data that they read from the repository.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::run::{self, UNLIMITED, Workspace};
use crate::test::{self, Outcome};

pub(crate) const HELP: &str = "\
Run some of the tests in another place, and as another user.

Usage: cargo xtask portability

Copies what `cargo xtask test` has built to a folder below /tmp whose name has a
space, and runs the tests of bad input, of the command line's first steps and of
isolation there, and one of authoring and of the doors: with the home folder of
root, and, if this user is root, once more as an ordinary user.";

/// The tests that depend on the folder, the home and the user, by the area whose program they are in. Of authors' work
/// and of the doors, one each: the former runs a tool with the default scope, which contains this folder. Neither reads
/// the repository.
const TESTS: [(&str, &[&str]); 4] = [
    ("operation", &["bad_input::", "cli::"]),
    (
        "packages",
        &["authoring::a_module_that_needs_more_memory_to_start_than_it_gets_is_named_with_both_numbers"],
    ),
    ("protocols", &["doors::every_door_gives_the_same_run_for_the_same_call"]),
    ("sandbox", &["hostile::isolation::"]),
];
/// The ids of Debian's `nobody`, which owns nothing.
const ORDINARY_USER: u32 = 65534;

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("a2g executor ").tempdir_in("/tmp")?;
    let target = folder.path().join("target");
    let programs = target.join("debug/deps");
    fs::create_dir_all(&programs)?;
    copy_test_programs(workspace, &programs)?;
    fs::copy(workspace.executor(), target.join("debug/a2g-executor"))?;
    // The caches of compiled modules too, so that nothing is compiled again.
    let shared = ["tools", "guest", "test-cache"].map(|name| workspace.target.join(name));
    let mut cp = Command::new("cp");
    cp.args(["--recursive"]).args(shared.iter().filter(|path| path.exists())).arg(&target);
    run::log(workspace, "copy the built programs", &mut cp, UNLIMITED)?;
    let mut outcomes = vec![follow("below /tmp", &programs, &[], Path::new("/root"))?];
    let is_root = run::is_root();
    if is_root {
        let mut chown = Command::new("chown");
        chown.args(["--recursive", &format!("{ORDINARY_USER}:{ORDINARY_USER}")]).arg(folder.path());
        run::log(workspace, "give the copy to an ordinary user", &mut chown, UNLIMITED)?;
        let user = format!("--reuid={ORDINARY_USER}");
        let group = format!("--regid={ORDINARY_USER}");
        let setpriv = ["setpriv", &user, &group, "--clear-groups"];
        outcomes.push(follow("as an ordinary user", &programs, &setpriv, folder.path())?);
    } else {
        run::progress("Without", "a run as an ordinary user: this is one already");
    }
    test::conclude(&outcomes, "")
}

/// Runs the [`TESTS`] with this home folder. Each program is an argument of the command `outer`, unless that is empty.
fn follow(name: &'static str, programs: &Path, outer: &[&str], home: &Path) -> Result<Outcome> {
    let mut outcomes = Vec::with_capacity(TESTS.len());
    for (area, filters) in TESTS {
        let program = programs.join(area);
        let words = outer.iter().map(OsStr::new).chain([program.as_os_str()]).collect::<Vec<_>>();
        let (first, rest) = words.split_first().context("a program")?;
        let mut tests = Command::new(first);
        tests.args(rest).args(filters).env("HOME", home).current_dir("/");
        run::remove_package_variables(&mut tests);
        let outcome = test::follow(name, &mut tests, test::MAX_LEFT_BEHIND)?;
        ensure!(outcome.has_run(), "no test of {area} ran {name}: the names of the tests have changed");
        outcomes.push(outcome);
    }
    outcomes.into_iter().reduce(Outcome::and).context("there are no tests")
}

/// Copies the newest program of each area that has some of the [`TESTS`].
fn copy_test_programs(workspace: &Workspace, to: &Path) -> Result<()> {
    let mut list = workspace.cargo(&["test", "--locked", "--workspace", "--no-run"]);
    list.args(TESTS.iter().flat_map(|(area, _)| ["--test", area])).args(["--message-format", "json"]);
    let messages =
        run::output(&mut list).context("the tests do not compile: run `cargo xtask test` first")?;
    let executables = messages
        .lines()
        .filter_map(|line| line.split_once("\"executable\":\"")?.1.split('"').next())
        .map(Path::new)
        .collect::<Vec<_>>();
    for (area, _) in TESTS {
        let start = format!("{area}-");
        let is_of_area =
            |path: &&&Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start));
        let program = executables.iter().rfind(is_of_area);
        fs::copy(program.with_context(|| format!("cargo has named no program of {area}"))?, to.join(area))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_test_exists() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests");
        for (area, names) in TESTS {
            for name in names {
                let (module, function) = name.rsplit_once("::").unwrap();
                let path = tests.join(area).join(module.replace("::", "/")).with_extension("rs");
                let text = fs::read_to_string(path).unwrap();
                let is_there = function.is_empty() || text.contains(&format!("fn {function}()"));
                assert!(is_there, "{name} is not in {area}");
            }
        }
    }
}
