//! `portability`: runs one area of the tests where other people might build: in a folder below /tmp whose name has a
//! space, with root's home, and as an ordinary user.
//!
//! The built programs are copied, because nothing has to be compiled again for another place: the tests find everything
//! from the path of their own program, except for data that they read from the repository.

use std::path::{Path, PathBuf};
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

/// The tests that depend on the folder, the home and the user. Of authors' work and of the doors, one each: the former
/// runs a tool with the default scope, which contains this folder. Neither reads the repository.
const AREAS: [&str; 5] = [
    "bad_input::",
    "cli::",
    "hostile::isolation::",
    "authoring::a_module_that_needs_more_memory_to_start_than_it_gets_is_named_with_both_numbers",
    "doors::every_door_gives_the_same_run_for_the_same_call",
];
/// The ids of Debian's `nobody`, which owns nothing.
const ORDINARY_USER: u32 = 65534;

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let program = test_program(workspace)?;
    let folder = tempfile::Builder::new().prefix("a2g executor ").tempdir_in("/tmp")?;
    let target = folder.path().join("target");
    fs::create_dir_all(target.join("debug/deps"))?;
    let copy = target.join("debug/deps/main");
    fs::copy(program, &copy)?;
    fs::copy(workspace.executor(), target.join("debug/a2g-executor"))?;
    // The caches of compiled modules too, so that nothing is compiled again.
    let shared = ["tools", "guest", "test-cache"].map(|name| workspace.target.join(name));
    let mut cp = Command::new("cp");
    cp.args(["--recursive"]).args(shared.iter().filter(|path| path.exists())).arg(&target);
    run::log(workspace, "copy the built programs", &mut cp, UNLIMITED)?;
    let mut below_tmp = Command::new(&copy);
    let mut outcomes = vec![follow("below /tmp", &mut below_tmp, Path::new("/root"))?];
    let is_root = run::is_root();
    if is_root {
        let mut chown = Command::new("chown");
        chown.args(["--recursive", &format!("{ORDINARY_USER}:{ORDINARY_USER}")]).arg(folder.path());
        run::log(workspace, "give the copy to an ordinary user", &mut chown, UNLIMITED)?;
        let mut setpriv = Command::new("setpriv");
        setpriv.args([format!("--reuid={ORDINARY_USER}"), format!("--regid={ORDINARY_USER}")]);
        setpriv.arg("--clear-groups").arg(&copy);
        outcomes.push(follow("as an ordinary user", &mut setpriv, folder.path())?);
    } else {
        run::progress("Without", "a run as an ordinary user: this is one already");
    }
    test::conclude(&outcomes, "")
}

/// Runs the tests of [`AREAS`] with this home folder.
fn follow(name: &'static str, tests: &mut Command, home: &Path) -> Result<Outcome> {
    tests.args(AREAS).env("HOME", home).current_dir("/");
    run::remove_package_variables(tests);
    let outcome = test::follow(name, tests, test::MAX_LEFT_BEHIND)?;
    ensure!(outcome.has_run(), "no test ran {name}: the names of the areas have changed");
    Ok(outcome)
}

/// The newest test program that drives the executor.
fn test_program(workspace: &Workspace) -> Result<PathBuf> {
    let mut list = workspace.cargo(&["test", "--locked", "--workspace", "--test", "main", "--no-run"]);
    list.args(["--message-format", "json"]);
    let messages =
        run::output(&mut list).context("the tests do not compile: run `cargo xtask test` first")?;
    let mut executables =
        messages.lines().filter_map(|line| line.split_once("\"executable\":\"")?.1.split('"').next());
    let program = executables.next_back().context("cargo has named no test program")?;
    Ok(program.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_test_exists() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests");
        for (module, function) in AREAS.iter().filter_map(|area| area.rsplit_once("::")) {
            let path = tests.join(module.replace("::", "/")).with_extension("rs");
            let text = fs::read_to_string(path).unwrap();
            assert!(
                function.is_empty() || text.contains(&format!("fn {function}()")),
                "{module}::{function}"
            );
        }
    }
}
