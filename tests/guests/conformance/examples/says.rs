//! A command that logs a line and answers with a text.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command has its result and its log there")]

fn main() {
    eprintln!("The tool answers with a text");
    println!("\"This is a simple text response for testing.\"");
}
