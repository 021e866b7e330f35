//! What the demo says: on standard output, with colours only on a terminal and never with NO_COLOR.

use std::env;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// How a text may look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ink {
    Plain,
    Bold,
    Faint,
    Green,
    Yellow,
    Red,
}

/// The text in its colour, where there are colours.
pub(super) fn painted(text: &str, ink: Ink) -> String {
    let code = match ink {
        Ink::Plain => return text.to_owned(),
        Ink::Bold => "1",
        Ink::Faint => "2",
        Ink::Green => "32",
        Ink::Yellow => "33",
        Ink::Red => "1;31",
    };
    if colours() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

fn colours() -> bool {
    let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = env::var_os("TERM").is_some_and(|value| value == "dumb");
    !unwanted && !dumb && io::stdout().is_terminal()
}

/// A line on standard output. A reader that went away, such as `head`, does not change what is checked.
pub(super) fn say(line: impl Display) {
    let _reader_went_away = writeln!(io::stdout(), "{line}");
}
