//! A command that fails.

#![allow(clippy::print_stderr, reason = "a command has its log on standard error")]

use std::process::ExitCode;

fn main() -> ExitCode {
    eprintln!("This tool intentionally returns an error for testing");
    ExitCode::FAILURE
}
