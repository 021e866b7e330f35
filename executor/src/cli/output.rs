//! What people see: tables, colours, logs. Colours only on a terminal, and never with `NO_COLOR`.

use comfy_table::{Cell, Color, ContentArrangement, Table, presets::UTF8_BORDERS_ONLY};
use std::io::{IsTerminal, Write};
use tracing_subscriber::EnvFilter;

/// Whether colours may go to a stream.
#[allow(clippy::disallowed_methods, reason = "NO_COLOR is a convention of the environment")]
pub(super) fn colours(stream: &impl IsTerminal) -> bool {
    let no_color = std::env::var("NO_COLOR").is_ok_and(|value| !value.is_empty());
    stream.is_terminal() && !no_color
}

/// Logs go to standard error, filtered by `RUST_LOG`.
pub(super) fn start_logging(default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours(&std::io::stderr()))
        .with_target(false)
        .init();
}

/// A table with a header.
pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    if !colours(&std::io::stdout()) {
        table.force_no_tty();
    }
    table.set_header(header.iter().map(Cell::new));
    table
}

/// A cell that is green when things are well and red when they are not.
pub(super) fn verdict_cell(text: &str, good: bool) -> Cell {
    Cell::new(text).fg(if good { Color::Green } else { Color::Red })
}

/// Prints a line on standard output. A reader that went away, such as `head`, is no failure.
pub(super) fn print(text: impl std::fmt::Display) {
    let _reader_went_away = writeln!(std::io::stdout(), "{text}");
}

/// Prints a line on standard error.
pub(super) fn note(text: impl std::fmt::Display) {
    let _nowhere_to_say_it = writeln!(std::io::stderr(), "{text}");
}
