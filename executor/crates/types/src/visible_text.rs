//! Texts of tools and agents, as they are shown to people.

use crate::ident::is_display_control;

/// The first characters of a text. Control characters, characters that reorder or hide others, and spaces of another width
/// are escaped, so that
/// a person sees every character.
#[must_use]
pub fn escape_invisible(text: &str, max_chars: usize) -> String {
    let mut shown = String::new();
    for c in text.chars().take(max_chars) {
        push_visible(&mut shown, c);
    }
    if text.chars().nth(max_chars).is_some() {
        shown.push('…');
    }
    shown
}

/// The whole text with its line ends and tabs, and everything else that a person could not see escaped.
#[must_use]
pub fn escape_invisible_lines(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            _other => push_visible(&mut shown, c),
        }
    }
    shown
}

/// `true` for a character that a person could not see, or that changes how others are shown. Line ends and tabs are among
/// them.
#[must_use]
pub fn is_invisible(c: char) -> bool {
    // A space of another width than the usual one could hide where a text ends.
    is_display_control(c) || is_blank(c) || (c.is_whitespace() && c != ' ')
}

/// Appends a character, or its escape if a person could not see it.
fn push_visible(shown: &mut String, c: char) {
    if is_invisible(c) {
        shown.extend(c.escape_default());
    } else {
        shown.push(c);
    }
}

/// Characters that show nothing although they control no display: joiners, fillers, blank letters and signs, variation
/// selectors, tags, and the format characters of shorthand, hieroglyphs and music.
fn is_blank(c: char) -> bool {
    matches!(c,
        '\u{34f}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{fffc}'
        | '\u{13430}'..='\u{1345f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_nobody_sees_are_escaped() {
        for c in [
            '\u{ad}',
            '\u{202e}',
            '\u{2800}',
            '\u{fff0}',
            '\u{fff8}',
            '\u{fffc}',
            '\u{13430}',
            '\u{1bca0}',
            '\u{e0041}',
            '\u{70f}',
            '\u{1806}',
            '\u{2d7f}',
            '\u{16fe4}',
            '\u{1107f}',
            '\u{110bd}',
            '\u{1d159}',
        ] {
            let shown = escape_invisible_lines(&format!("re{c}port"));
            assert_eq!(shown, format!("re{}port", c.escape_default()));
        }
        assert_eq!(escape_invisible_lines("é א 日本\n\t"), "é א 日本\n\t");
        assert_eq!(escape_invisible("abc", 2), "ab…");
    }
}
