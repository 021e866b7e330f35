//! `torture`: the tests of durability, for long, with everything that they can use.

use crate::run::{Failure, Workspace};
use crate::test;

pub(crate) const HELP: &str = "\
Kill the executor again and again, break its disk, and compare the books.

Usage: cargo xtask torture [TIMES]

It runs the tests of `tests/tests/durability` with TIMES crashes each (1000 without
a number; about 15 minutes), one after another. It first installs strace and
faketime from Debian's packages where they are missing and this user may: without
them the crashes at chosen system calls and the jumps of the clock are left out,
and that is said.";

/// How many crashes without a number.
pub(crate) const TIMES: u32 = 1000;

/// The command itself.
///
/// # Errors
/// As [`test::torture`].
pub(crate) fn run(workspace: &Workspace, times: u32) -> Result<(), Failure> {
    test::torture(workspace, times)
}
