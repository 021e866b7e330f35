//! `cargo xtask`: the project's own commands, for people and for continuous integration alike.
//!
//! It guarantees exit code 0 for success, 1 for a failure and 2 for a command line it does not
//! understand; progress goes to standard error. It never links the executor or wasmtime: it compiles
//! in seconds and drives cargo from outside.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line's output is its purpose")]

mod bench;
mod build;
mod clients;
mod debian_fallback;
mod demo;
mod extras;
mod run;
mod setup;
mod test;
mod tools;
mod torture;

use std::env;
use std::process::ExitCode;

use run::{Failure, Workspace};

const HELP: &str = "\
The A2G executor's own commands.

Usage: cargo xtask <COMMAND> [--help]

Commands:
  setup   Get what building the guest tools needs; the other commands call it
  tools   Build the guest tools and lay out their catalogue in target/tools
  test    Run every test of the executor and of the tools
  demo    Drive the real executor through a story
  bench   Measure the executor
  torture Kill the executor again and again, and compare the books

A new clone needs one command: `cargo xtask test`.
Exit codes: 0 success, 1 failure, 2 a command line that makes no sense.";

/// What the command line asks for. The arguments of `test` are cargo's own and travel untouched.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Help(&'static str),
    Setup { retry: bool },
    Tools,
    Demo,
    Test { arguments: Vec<String> },
    Bench(Option<String>),
    Torture(u32),
}

fn main() -> ExitCode {
    let arguments = env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    match parse(arguments).and_then(perform) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            run::complain(&failure.to_string());
            failure.exit_code()
        }
    }
}

fn parse(arguments: Vec<String>) -> Result<Request, Failure> {
    let mut words = arguments.into_iter();
    let Some(command) = words.next() else { return Ok(Request::Help(HELP)) };
    let rest: Vec<String> = words.collect();
    match command.as_str() {
        "help" | "--help" | "-h" => Ok(Request::Help(HELP)),
        "setup" => {
            let (words, retry) = take_flag(rest, "--retry");
            without_arguments(&words, setup::HELP, Request::Setup { retry })
        }
        "tools" => without_arguments(&rest, tools::HELP, Request::Tools),
        "demo" => without_arguments(&rest, demo::HELP, Request::Demo),
        "bench" => match rest.first().map(String::as_str) {
            Some(part) if bench::PARTS.contains(&part) && rest.len() == 1 => {
                Ok(Request::Bench(Some(part.to_owned())))
            }
            _ => without_arguments(&rest, bench::HELP, Request::Bench(None)),
        },
        "torture" => match rest.first().map(|word| word.parse::<u32>()) {
            Some(Ok(times)) if rest.len() == 1 && times > 0 => Ok(Request::Torture(times)),
            _ => without_arguments(&rest, torture::HELP, Request::Torture(torture::TIMES)),
        },
        "test" if asks_for_help(rest.first()) => Ok(Request::Help(test::HELP)),
        "test" => Ok(Request::Test { arguments: rest }),
        other => Err(Failure::Usage(format!(
            "there is no command `{other}`{}; `cargo xtask --help` lists them",
            did_you_mean(other)
        ))),
    }
}

const COMMANDS: [&str; 7] = ["setup", "tools", "test", "demo", "bench", "torture", "help"];

/// ` (did you mean `x`?)`, where one command is like what was typed.
fn did_you_mean(typed: &str) -> String {
    const MAX_SLIPS: usize = 2;
    let slips = |command: &&&str| strsim::osa_distance(typed, command);
    let nearest = COMMANDS.iter().min_by_key(slips).filter(|command| slips(command) <= MAX_SLIPS);
    nearest.map_or_else(String::new, |command| format!(" (did you mean `{command}`?)"))
}

fn take_flag(words: Vec<String>, flag: &str) -> (Vec<String>, bool) {
    let count = words.len();
    let rest: Vec<String> = words.into_iter().filter(|word| word != flag).collect();
    let found = rest.len() != count;
    (rest, found)
}

fn without_arguments(words: &[String], help: &'static str, request: Request) -> Result<Request, Failure> {
    match words.first() {
        None => Ok(request),
        Some(word) if asks_for_help(Some(word)) => Ok(Request::Help(help)),
        Some(word) => Err(Failure::Usage(format!("`{word}` is not understood here; `--help` says what is"))),
    }
}

fn asks_for_help(word: Option<&String>) -> bool {
    word.is_some_and(|word| matches!(word.as_str(), "--help" | "-h"))
}

fn perform(request: Request) -> Result<(), Failure> {
    if let Request::Help(text) = request {
        println!("{text}");
        return Ok(());
    }
    let workspace = Workspace::find()?;
    match request {
        Request::Help(_) => Ok(()),
        Request::Setup { retry } => setup::run(&workspace, retry),
        Request::Tools => tools::run(&workspace),
        Request::Demo => demo::run(&workspace),
        Request::Test { arguments } => test::run(&workspace, &arguments),
        Request::Bench(part) => bench::run(&workspace, part.as_deref()),
        Request::Torture(times) => torture::run(&workspace, times),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<Request> {
        parse(line.split_whitespace().map(str::to_owned).collect()).ok()
    }

    #[test]
    fn the_command_line_is_understood_or_refused() {
        assert_eq!(parsed(""), Some(Request::Help(HELP)));
        assert_eq!(parsed("setup"), Some(Request::Setup { retry: false }));
        assert_eq!(parsed("setup --retry"), Some(Request::Setup { retry: true }));
        assert_eq!(parsed("setup --help"), Some(Request::Help(setup::HELP)));
        assert_eq!(parsed("test --help"), Some(Request::Help(test::HELP)));
        let passed = vec!["-p".to_owned(), "tests".to_owned(), "--".to_owned(), "--help".to_owned()];
        assert_eq!(parsed("test -p tests -- --help"), Some(Request::Test { arguments: passed }));
        assert_eq!(parsed("torture"), Some(Request::Torture(torture::TIMES)));
        assert_eq!(parsed("torture 50"), Some(Request::Torture(50)));
        assert_eq!(parsed("bench"), Some(Request::Bench(None)));
        for part in bench::PARTS {
            assert_eq!(parsed(&format!("bench {part}")), Some(Request::Bench(Some(part.to_owned()))));
            assert!(bench::HELP.contains(&format!("\n  {part} ")), "{part} is not in the help");
        }
        for command in COMMANDS {
            assert!(parsed(command).is_some(), "{command} is offered and not understood");
        }
        assert_eq!(did_you_mean("tset"), " (did you mean `test`?)");
        assert_eq!(did_you_mean("fly"), "");
        for refused in [
            "bench x",
            "bench doors x",
            "tset",
            "setup now",
            "tools --retry",
            "demo x",
            "torture 0",
            "torture 1 2",
        ] {
            assert_eq!(parsed(refused), None, "{refused}");
        }
    }
}
