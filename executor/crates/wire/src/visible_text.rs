//! Texts of tools and agents, as they are shown to people.

/// The first characters of a text. Control characters, and characters that reorder or hide others, are escaped, so that
/// a person sees what is there.
pub(crate) fn visible(text: &str, max_chars: usize) -> String {
    let mut shown = String::new();
    for c in text.chars().take(max_chars) {
        if c.is_control() || is_invisible(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    if text.chars().nth(max_chars).is_some() {
        shown.push('…');
    }
    shown
}

/// Format characters and look-alikes of nothing: soft hyphen, zero-width and bidirectional marks, variation selectors,
/// fillers and tags.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}
