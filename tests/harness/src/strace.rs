//! Programs below another one, such as strace.

use super::{Home, print_skipped};
use std::path::Path;
use std::process::Command;

/// True if there is a strace; otherwise the test is named as skipped.
pub fn has_strace() -> bool {
    let has = Path::new("/usr/bin/strace").exists();
    if !has {
        print_skipped("there is no strace here (`cargo xtask torture` installs it)");
    }
    has
}

/// The executor under strace, which watches one `call` and does to it what `inject` says.
pub fn under_strace(home: &Home, call: &str, inject: &str) -> Command {
    trace(&home.command(), call, inject)
}

/// As [`under_strace`], of any command.
pub fn trace(command: &Command, call: &str, inject: &str) -> Command {
    let trace = format!("--trace={call}");
    let mut strace =
        vec!["/usr/bin/strace", "--follow-forks", "--quiet=all", "--output=/dev/null", &trace, inject];
    // With the filter, only the traced call stops the program, which is many times faster. strace sends no signal with it.
    if !inject.contains(":signal=") {
        strace.push("--seccomp-bpf");
    }
    under(&strace, command)
}

/// A command as the last arguments of another one, with its folder and its environment.
pub fn under(outer: &[&str], command: &Command) -> Command {
    let [program, arguments @ ..] = outer else { panic!("a program") };
    let mut both = Command::new(program);
    both.args(arguments).arg(command.get_program()).args(command.get_args());
    both.current_dir(command.get_current_dir().expect("a folder"));
    command.get_envs().for_each(|(name, value)| match value {
        Some(value) => drop(both.env(name, value)),
        None => drop(both.env_remove(name)),
    });
    both
}
