//! The replacement of forms in the text of a JSON value.

use crate::matcher::Matcher;

impl Matcher {
    /// The text of a JSON value with the forms in its strings and numbers replaced, and calls `found` for each; `None` if
    /// there are none. Strings are searched as what they stand for, whatever their escapes are. A number with a form becomes
    /// a string. Two keys of an object can become equal.
    pub fn redact_json(&self, json: &str, found: &mut dyn FnMut(&str)) -> Option<String> {
        // Without escapes, each string is a part of the text.
        if !json.contains('\\') && !self.occurs_in(json.as_bytes()) {
            return None;
        }
        let mut redacted = String::with_capacity(json.len());
        let mut is_changed = false;
        let mut rest = json;
        while let Some(at) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
            let (before, token_and_more) = rest.split_at(at);
            let (token, after) = token_and_more.split_at(token_length(token_and_more));
            redacted.push_str(before);
            match self.redact_token(token, found) {
                Some(replaced) => {
                    redacted.push_str(&replaced);
                    is_changed = true;
                }
                None => redacted.push_str(token),
            }
            rest = after;
        }
        redacted.push_str(rest);
        is_changed.then_some(redacted)
    }

    /// A string with its quotation marks, or a number; `None` if it has no form.
    fn redact_token(&self, token: &str, found: &mut dyn FnMut(&str)) -> Option<String> {
        let content = token.strip_prefix('"').map_or(token, |rest| rest.strip_suffix('"').unwrap_or(rest));
        let unescaped = if token.starts_with('"') && content.contains('\\') {
            serde_json::from_str::<String>(token).ok()
        } else {
            None
        };
        let replaced = self.redact_text(unescaped.as_deref().unwrap_or(content), found)?;
        // Serializing a string cannot fail.
        Some(serde_json::to_string(&replaced).unwrap_or_else(|_| "null".to_owned()))
    }
}

/// The length of the string or number at the start of a text, in bytes.
fn token_length(text: &str) -> usize {
    let Some(content) = text.strip_prefix('"') else {
        let is_other = |c: char| !c.is_ascii_digit() && !"+-.eE".contains(c);
        return text.find(is_other).unwrap_or(text.len());
    };
    let mut is_escaped = false;
    let end = content.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    end.map_or(text.len(), |end| end + 2)
}
