//! `torture`: the tests of durability, for long, with everything that they can use.

use std::process::Command;

use crate::run::{Failure, Workspace};
use crate::test;

pub(crate) const HELP: &str = "\
Kill the executor again and again, break its disk, and compare the books.

Usage: cargo xtask torture [TIMES]

It runs the tests of `tests/tests/durability` with TIMES crashes each (1000 without
a number; about 15 minutes), one after another. It first installs strace from
Debian's packages where it is missing and this user may: without it the crashes
at chosen system calls are left out, and that is said.";

/// How many crashes without a number.
pub(crate) const TIMES: u32 = 1000;

/// The command itself.
///
/// # Errors
/// As [`test::torture`].
pub(crate) fn run(workspace: &Workspace, times: u32) -> Result<(), Failure> {
    if !std::path::Path::new("/usr/bin/strace").exists() {
        let _tests_say_what_they_leave_out =
            Command::new("apt-get").args(["install", "--yes", "strace"]).status();
    }
    test::torture(workspace, times)
}
