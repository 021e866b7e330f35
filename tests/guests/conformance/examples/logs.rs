//! A command that logs three lines, with pauses, so that a client can get them while it runs.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command has its result and its log there")]

use std::thread::sleep;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(50);

fn main() {
    eprintln!("Tool execution started");
    sleep(PAUSE);
    eprintln!("Tool processing data");
    sleep(PAUSE);
    eprintln!("Tool execution completed");
    println!("\"The tool has logged three lines.\"");
}
