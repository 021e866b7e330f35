//! Parses the arguments, runs the command and returns its exit code.

use a2g_types::memory::CountingAllocator;
use clap::Parser as _;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    let cli = a2g_executor::cli::Cli::parse();
    match a2g_executor::cli::main(cli) {
        Ok(code) => code,
        Err(error) => a2g_executor::cli::fail(&error),
    }
}
