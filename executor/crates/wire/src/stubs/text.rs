//! Texts of authors inside generated code.

use a2g_types::ident::is_display_control;
use serde_json::Value;
use std::fmt::Write as _;

/// Maximum length of a member's description, in characters.
pub(super) const MAX_MEMBER_DOC: usize = 100;
/// Maximum length of a tool's description, in characters.
pub(super) const MAX_TOOL_DOC: usize = 160;
/// Maximum length of a string that is shown as a literal, in bytes.
pub(super) const MAX_LITERAL_BYTES: usize = 60;

/// The beginning of a text on one line, without characters that control or hide others.
pub(crate) fn one_line(text: &str, max_chars: usize) -> String {
    let mut line = String::new();
    let mut chars = 0;
    for word in text.split_whitespace() {
        let word = word.chars().filter(|c| !is_display_control(*c));
        for (index, c) in word.enumerate() {
            let gap = usize::from(index == 0 && !line.is_empty());
            if chars + gap >= max_chars {
                line.push('…');
                return line;
            }
            if gap == 1 {
                line.push(' ');
            }
            line.push(c);
            chars += gap + 1;
        }
    }
    line
}

/// A string literal of JavaScript and of Python.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    for c in Value::from(text).to_string().chars() {
        // All of them are in the basic plane, so four digits are enough.
        if is_display_control(c) {
            let _infallible = write!(quoted, "\\u{:04x}", u32::from(c));
        } else {
            quoted.push(c);
        }
    }
    quoted
}

/// `true` for a name that is an identifier of both languages, apart from their keywords.
pub(super) fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
