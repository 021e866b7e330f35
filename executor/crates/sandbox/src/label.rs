//! The labels of an artifact: a name that is safe to display and to use as a file name, and a media type in the form
//! of RFC 9110. Labels that fail these checks never reach a caller, a governor or a browser.

use a2g_types::ident::{excerpt, is_display_control};

/// Maximum size of a name (as of a file name) and of a media type, in bytes.
const MAX_LABEL_BYTES: usize = 255;
/// Maximum number of parameters of a media type; registered types have at most three.
const MAX_PARAMETERS: usize = 8;

/// An artifact's label is not valid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LabelError {
    #[error(
        "`{0}` cannot name an artifact: a name has 1 to 255 bytes, is not `.` or `..`, and contains no `/`, no `\\` and \
         no control, bidirectional or invisible character"
    )]
    Name(String),
    #[error(
        "`{0}` is not a valid media type for an artifact: write `type/subtype`, such as `text/plain; charset=utf-8`, \
        with at most 8 parameters and 255 bytes"
    )]
    MediaType(String),
}

pub(super) fn check_name(name: &str) -> Result<(), LabelError> {
    let is_name = (1..=MAX_LABEL_BYTES).contains(&name.len())
        && !matches!(name, "." | "..")
        && !name.chars().any(|c| matches!(c, '/' | '\\') || is_display_control(c));
    if is_name { Ok(()) } else { Err(LabelError::Name(excerpt(name))) }
}

pub(super) fn check_media_type(text: &str) -> Result<(), LabelError> {
    let is_media_type = text.len() <= MAX_LABEL_BYTES && has_media_type_form(text);
    if is_media_type { Ok(()) } else { Err(LabelError::MediaType(excerpt(text))) }
}

/// Matches `type "/" subtype *( OWS ";" OWS name "=" value )` of RFC 9110 sections 8.3.1 and 5.6.6, without the
/// empty parameters that the RFC tolerates.
fn has_media_type_form(text: &str) -> bool {
    let (essence, mut rest) = text.split_at(text.find([';', ' ', '\t']).unwrap_or(text.len()));
    let is_essence =
        essence.split_once('/').is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype));
    let mut parameters = 0;
    while let Some(after) = trim(rest).strip_prefix(';') {
        let Some((name, value)) = trim(after).split_once('=') else { return false };
        let Some(after) = after_value(value).filter(|_| is_token(name)) else { return false };
        rest = after;
        parameters += 1;
    }
    is_essence && rest.is_empty() && parameters <= MAX_PARAMETERS
}

/// The text after the token or quoted string at the start of `text`; `None` if it starts with neither.
fn after_value(text: &str) -> Option<&str> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (token, rest) = text.split_at(text.find(|c| !is_token_char(c)).unwrap_or(text.len()));
        return is_token(token).then_some(rest);
    };
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return quoted.get(at + 1..),
            '\\' => chars.next().filter(|(_, escaped)| is_quotable(*escaped)).map(drop)?,
            plain if is_quotable(plain) => {}
            _control_or_beyond_ascii => return None,
        }
    }
    None
}

fn is_quotable(c: char) -> bool {
    c == ' ' || c.is_ascii_graphic()
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_token_char)
}

fn is_token_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

fn trim(text: &str) -> &str {
    text.trim_start_matches([' ', '\t'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_to_display_and_as_file_names() {
        for good in ["a", "plot 1.png", "Bericht für März.pdf", "报告", ".hidden", "...", &"x".repeat(255)]
        {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        let long = "x".repeat(256);
        let hidden = [
            "a\u{202e}gnp.exe",
            "a\u{2066}",
            "a\u{200b}b",
            "a\u{2028}b",
            "a\u{85}b",
            "a\nb",
            "a\0",
            "\x1b[2J",
        ];
        for bad in ["", ".", "..", "a/b", "/etc/passwd", "..\\x", &long].iter().chain(&hidden) {
            assert_eq!(check_name(bad), Err(LabelError::Name(excerpt(bad))), "{bad:?}");
        }
    }

    #[test]
    fn media_types_have_the_form_of_rfc_9110() {
        let many = |count: usize| format!("a/b{}", "; c=d".repeat(count));
        let good = [
            "text/plain",
            "application/vnd.a+json",
            "text/plain;charset=utf-8",
            "text/plain \t; charset=\"utf-8\"",
            "a/b; c=\"d;\\\" e\"; f=g",
            &many(8),
        ];
        for good in good {
            assert_eq!(check_media_type(good), Ok(()), "{good}");
        }
        let long = format!("text/{}", "x".repeat(251));
        let bad = [
            "",
            "text",
            "text/",
            "/plain",
            "text/plain/more",
            "text/plain;",
            "text/plain; charset",
            "text/plain; =x",
            "text/plain; charset=",
            "text/plain; a=b c",
            "text/plain; a=\"b",
            "text/plain; a=\"b\"c",
            "text /plain",
            "text/plain ",
            "text/plain\r\nX: y",
            "text/plain; a=\"\n\"",
            "text/pl\u{e4}in",
            "text/plain; a=\"\u{202e}\"",
            &long,
            &many(9),
        ];
        for bad in bad {
            assert_eq!(check_media_type(bad), Err(LabelError::MediaType(excerpt(bad))), "{bad:?}");
        }
    }
}
