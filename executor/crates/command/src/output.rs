//! Text output. Colours are used only on terminals, and never with `NO_COLOR`.
//!
//! All output is escaped, so that text of a tool, a guest or a report cannot control the terminal.

use a2g_types::ident::is_display_control;
use std::fmt::{Display, Write as _};
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;

/// The width of lists that are not printed to a terminal, unless `COLUMNS` is set.
const DEFAULT_COLUMNS: u16 = 100;
/// The minimum that `COLUMNS` can set.
const MIN_COLUMNS: u16 = 40;

/// Returns `true` if colours may be written to a stream.
#[allow(clippy::disallowed_methods, reason = "NO_COLOR is a convention of the environment")]
pub fn supports_colours(stream: &impl IsTerminal) -> bool {
    let no_color = std::env::var("NO_COLOR").is_ok_and(|value| !value.is_empty());
    stream.is_terminal() && !no_color
}

/// The width of lines on `stream`.
pub fn columns(stream: &(impl IsTerminal + AsFd)) -> usize {
    let columns = rustix::termios::tcgetwinsize(stream).map_or(0, |size| size.ws_col);
    usize::from(if columns == 0 { default_columns() } else { columns })
}

/// The width of lists that are not printed to a terminal.
#[allow(clippy::disallowed_methods, reason = "COLUMNS is a convention of the environment")]
fn default_columns() -> u16 {
    let requested = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse::<u16>().ok());
    requested.map_or(DEFAULT_COLUMNS, |columns| columns.max(MIN_COLUMNS))
}

/// Prints text on standard output. A closed pipe, such as to `head`, is not an error.
pub fn print(text: impl Display) {
    let _ignored = writeln!(std::io::stdout(), "{}", escape(text, &['\n', '\t']));
}

/// Prints a row of `config check`: a name and a value.
pub fn print_row(name: &str, value: impl Display) {
    print(format_args!("{name:<12}{value}"));
}

/// The texts of these values, separated by commas.
pub fn list(values: impl IntoIterator<Item: ToString>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
}

/// Prints text on standard error.
pub fn note(text: impl Display) {
    let _ignored = writeln!(std::io::stderr(), "{}", escape(text, &['\n', '\t']));
}

/// `true` if a person at a terminal can be asked.
pub fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks a person at the terminal, who has to type `y` to confirm.
///
/// # Errors
/// If the answer cannot be read.
pub fn confirm(question: impl Display) -> std::io::Result<bool> {
    let _ignored = write!(std::io::stderr(), "{} [y/N] ", one_line(question));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Escapes text of other parties, including line ends, so that it cannot imitate lines of this program.
pub fn one_line(text: impl Display) -> String {
    escape(text, &[])
}

/// Escapes terminal control characters, except those in `allowed`, in JSON's form: JSON text stays JSON with the same
/// value.
fn escape(text: impl Display, allowed: &[char]) -> String {
    let text = text.to_string();
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_display_control(c) && !allowed.contains(&c) {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_characters_are_escaped() {
        for c in (0..=0x1f).chain(0x7f..=0x9f).filter_map(char::from_u32) {
            assert_eq!(one_line(format_args!("a{c}ü")), format!("a\\u{:04x}ü", u32::from(c)));
        }
        assert_eq!(escape("a\tb\n\u{1b}c", &['\n', '\t']), "a\tb\n\\u001bc");
        assert_eq!(one_line("txt.\u{202e}exe\u{200b} ü→"), "txt.\\u202eexe\\u200b ü→");
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({ "a\u{7f}": "\u{1b}[2J \u{9b}2J\n" });
        let escaped = escape(&value, &['\n', '\t']);
        assert!(!escaped.chars().any(char::is_control), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}
