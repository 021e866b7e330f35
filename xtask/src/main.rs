//! `cargo xtask`: the project's own commands, for people and for continuous integration.
//!
//! The exit code is 0 for success, 1 for a failure and 2 for an invalid command line; progress goes to
//! standard error. This crate does not link the executor or wasmtime: it compiles in seconds and runs
//! cargo as a program.

mod bench;
mod collections;
mod components;
mod debian;
mod demo;
mod deny;
mod deploy_lint;
mod dist;
mod nats;
mod portability;
mod run;
mod sbom;
mod science;
mod setup;
mod test;
mod tools;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use run::{RED, Workspace};

const HELP: &str = "\
The A2G executor's own commands.

Usage: cargo xtask <COMMAND> [--help]

Commands:
  setup   Install what building the guest tools needs; other commands call it
  tools   Build the guest tools and write their catalogue to target/tools
  test    Run every test of the executor and of the tools
  portability
          Run some of the tests below /tmp, and as an ordinary user
  demo    Run the executor and a governor through a series of checked steps
  bench   Measure the executor
  torture Kill the executor again and again, and compare its records
  deny    Check the licences, sources and advisories of all dependencies
  sbom    Write the list of what is linked into the executor
  deploy-lint
          Check the files below deploy/
  dist    Make the packages of a release

A new clone needs one command: `cargo xtask test`.
Exit codes: 0 success, 1 failure, 2 an invalid command line.";

const COMMANDS: [(&str, &str); 12] = [
    ("setup", setup::HELP),
    ("tools", tools::HELP),
    ("test", test::HELP),
    ("portability", portability::HELP),
    ("demo", demo::HELP),
    ("bench", bench::HELP),
    ("torture", test::TORTURE_HELP),
    ("deny", deny::HELP),
    ("sbom", sbom::HELP),
    ("deploy-lint", deploy_lint::HELP),
    ("dist", dist::HELP),
    ("help", HELP),
];

type Action = Box<dyn FnOnce(&Workspace) -> Result<()>>;

fn main() -> ExitCode {
    let words: Vec<String> = env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (error, code) = match parse(&words) {
        Err(error) => (error, 2),
        Ok(action) => match Workspace::find().and_then(|workspace| action(&workspace)) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => (format!("{error:#}"), 1),
        },
    };
    anstream::eprintln!("{RED}error{RED:#}: {error}");
    ExitCode::from(code)
}

/// The action of a command line, or why it is not valid.
fn parse(words: &[&str]) -> Result<Action, String> {
    let (command, arguments) = match words {
        [] | ["--help" | "-h", ..] => ("help", &[][..]),
        [command, arguments @ ..] => (*command, arguments),
    };
    let Some(&(_, help)) = COMMANDS.iter().find(|(name, _)| *name == command) else {
        return Err(unknown_command(command));
    };
    Ok(match (command, arguments) {
        ("help", _) | (_, ["--help" | "-h", ..] | ["--retry", "--help" | "-h"]) => Box::new(move |_| {
            anstream::println!("{help}");
            Ok(())
        }),
        ("test", ["--repeat", times] | ["--repeat", times, "--load"])
            if let Ok(times @ 1..) = times.parse() =>
        {
            let has_load = arguments.len() == 3;
            Box::new(move |workspace| test::repeat(workspace, times, has_load))
        }
        ("test", _) if !matches!(arguments, ["--repeat" | "--load", ..]) => {
            let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
            Box::new(move |workspace| test::run(workspace, &arguments))
        }
        ("setup", []) => Box::new(|workspace| setup::run(workspace, false)),
        ("setup", ["--retry"]) => Box::new(|workspace| setup::run(workspace, true)),
        ("tools", []) => Box::new(|workspace| tools::build(workspace, &setup::prepare(workspace)?)),
        ("demo", []) => Box::new(demo::run),
        ("demo", ["effects"]) => Box::new(demo::effects::run),
        ("demo", ["fleet"]) => Box::new(demo::fleet::run),
        ("demo", ["policy"]) => Box::new(demo::policy::run),
        ("bench", []) => Box::new(|workspace| bench::run(workspace, None)),
        ("bench", ["peers", words @ ..]) => {
            let options = bench::peers::Options::parse(words)?;
            Box::new(move |workspace| bench::peers::run(workspace, &options))
        }
        ("bench", ["growth", words @ ..]) => {
            let options = bench::growth::Options::parse(words)?;
            Box::new(move |workspace| bench::growth::run(workspace, &options))
        }
        ("bench", [part]) if let Some(&part) = bench::PARTS.iter().find(|name| *name == part) => {
            Box::new(move |workspace| bench::run(workspace, Some(part)))
        }
        ("torture", []) => Box::new(|workspace| test::torture(workspace, test::DEFAULT_CRASHES)),
        ("torture", [crashes]) if let Ok(crashes @ 1..) = crashes.parse() => {
            Box::new(move |workspace| test::torture(workspace, crashes))
        }
        ("portability", []) => Box::new(portability::run),
        ("deny", []) => Box::new(deny::run),
        ("deploy-lint", []) => Box::new(deploy_lint::run),
        ("dist", _) => {
            let options = dist::Options::parse(arguments)?;
            Box::new(move |workspace| dist::run(workspace, &options))
        }
        ("sbom", []) => Box::new(|workspace| sbom::run(workspace, None)),
        ("sbom", [file]) if !file.starts_with('-') => {
            let file = PathBuf::from(file);
            Box::new(move |workspace| sbom::run(workspace, Some(&file)))
        }
        _ => {
            let hint = format!("`cargo xtask {command} --help` shows its arguments");
            return Err(format!("`{command}` does not take `{}`; {hint}", arguments.join(" ")));
        }
    })
}

fn unknown_command(typed: &str) -> String {
    const MAX_TYPING_ERRORS: usize = 2;
    let distances = COMMANDS.iter().map(|(name, _)| (strsim::osa_distance(typed, name), name));
    let nearest = distances.min().filter(|(distance, _)| *distance <= MAX_TYPING_ERRORS);
    let hint = nearest.map_or_else(String::new, |(_, name)| format!(" (did you mean `{name}`?)"));
    format!("there is no command `{typed}`{hint}; `cargo xtask --help` lists them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_command_lines_are_parsed_and_others_refused() {
        let valid = "-h|setup --retry|test -p tests -- --help|test --repeat 3|\
                     test --repeat 3 --load|tools|demo|demo effects|demo fleet|demo policy|\
                     bench|bench doors|bench effects|bench policy|bench peers|bench peers --only wasmtime --quick|\
                     bench growth --journal-receipts 5|torture|torture 50|portability|deny|\
                     deploy-lint|sbom|sbom x|dist|dist --check|dist --check=compile|dist --symbols --binary x";
        let invalid = "bench x|bench doors x|bench peers x|bench peers --only|\
                       bench growth --journal-receipts 0|setup x|tools --retry|\
                       demo x|test --load|test --repeat 0|test --repeat 2 x|torture 0|torture 1 2|\
                       tset|portability x|deny x|deploy-lint x|sbom x y|sbom -x|dist x|dist --binary|dist --symbols --check";
        for (lines, is_valid) in [(valid, true), (invalid, false)] {
            for line in lines.split('|') {
                assert_eq!(parse(&line.split(' ').collect::<Vec<_>>()).is_ok(), is_valid, "{line}");
            }
        }
        assert!(unknown_command("tset").contains("(did you mean `test`?)"));
        assert!(!unknown_command("fly").contains("did you mean"));
        assert!(COMMANDS.iter().all(|(_, help)| help.lines().all(|line| line.chars().count() <= 80)));
        assert!(bench::PARTS.iter().all(|part| bench::HELP.contains(&format!("\n  {part} "))));
    }
}
