//! What people see: sentences, tables, colours. Colours only on a terminal, and never with `NO_COLOR`.
//!
//! What a tool, a guest or a report says is escaped on its way out, so that it cannot steer a
//! terminal.

use crate::ident::steers;
use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Table, presets::UTF8_BORDERS_ONLY};
use std::fmt::{Display, Write as _};
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;

/// How wide a table is that goes to no terminal, unless `COLUMNS` says it.
const COLUMNS_WITHOUT_A_TERMINAL: u16 = 100;
/// The narrowest table that can be read.
const FEWEST_COLUMNS: u16 = 40;

/// Whether colours may go to a stream.
#[allow(clippy::disallowed_methods, reason = "NO_COLOR is a convention of the environment")]
pub(super) fn colours(stream: &impl IsTerminal) -> bool {
    let no_color = std::env::var("NO_COLOR").is_ok_and(|value| !value.is_empty());
    stream.is_terminal() && !no_color
}

/// A table with a header, as wide as the terminal that `stream` goes to.
pub(super) fn table(stream: &(impl IsTerminal + AsFd), header: &[&str]) -> Table {
    let columns = rustix::termios::tcgetwinsize(stream).map_or(0, |size| size.ws_col);
    let columns = if columns == 0 { columns_wanted() } else { columns };
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    // Left to itself, it would look at standard output, whatever the stream.
    table.set_width(columns).force_no_tty();
    if colours(stream) {
        table.enforce_styling();
    }
    table.set_header(header.iter().map(Cell::new));
    table
}

/// The table with one column in which no line is broken, so that what stands there can be copied.
pub(super) fn unbroken(mut table: Table, nth: usize) -> Table {
    if let Some(column) = table.column_mut(nth) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    table
}

/// How wide a table should be that goes to no terminal.
#[allow(clippy::disallowed_methods, reason = "COLUMNS is a convention of the environment")]
fn columns_wanted() -> u16 {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse::<u16>().ok());
    said.map_or(COLUMNS_WITHOUT_A_TERMINAL, |columns| columns.max(FEWEST_COLUMNS))
}

/// A cell with any text.
pub(super) fn cell(text: impl Display) -> Cell {
    Cell::new(one_line(text))
}

/// A cell that is green when things are well and red when they are not.
pub(super) fn verdict_cell(text: &str, good: bool) -> Cell {
    Cell::new(text).fg(if good { Color::Green } else { Color::Red })
}

/// Prints text on standard output. A reader that went away, such as `head`, is no failure.
pub(super) fn print(text: impl Display) {
    let _reader_went_away = writeln!(std::io::stdout(), "{}", escaped(text, &['\n', '\t']));
}

/// Prints text on standard error.
pub(super) fn note(text: impl Display) {
    let _nowhere_to_say_it = writeln!(std::io::stderr(), "{}", escaped(text, &['\n', '\t']));
}

/// Prints a table, whose cells are escaped already and whose colours have to stay.
pub(super) fn show(table: &Table, mut stream: impl Write) {
    let _reader_went_away = writeln!(stream, "{table}");
}

/// Text of others that must not look like lines of ours.
pub(super) fn one_line(text: impl Display) -> String {
    escaped(text, &[])
}

/// Escapes characters that steer, but for those in `kept`, as JSON does: JSON text stays JSON, and says
/// the same.
fn escaped(text: impl Display, kept: &[char]) -> String {
    let text = text.to_string();
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) && !kept.contains(&c) {
            // Writing to a string cannot fail.
            let _ = write!(shown, "\\u{:04x}", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_gets_out() {
        for c in (0..=0x1f).chain(0x7f..=0x9f).filter_map(char::from_u32) {
            assert_eq!(one_line(format_args!("a{c}ü")), format!("a\\u{:04x}ü", u32::from(c)));
        }
        assert_eq!(escaped("a\tb\n\u{1b}c", &['\n', '\t']), "a\tb\n\\u001bc");
        assert_eq!(one_line("txt.\u{202e}exe\u{200b} ü→"), "txt.\\u202eexe\\u200b ü→");
    }

    #[test]
    fn escaped_json_says_the_same() {
        let value = serde_json::json!({ "a\u{7f}": "\u{1b}[2J \u{9b}2J\n" });
        let shown = escaped(&value, &['\n', '\t']);
        assert!(!shown.chars().any(char::is_control), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
