//! The token with which a client requests the next page of a list of tasks.
//!
//! A token is a position and grants nothing: a list contains only the tasks that its caller may see.

use a2g_types::ident::IntentId;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use time::OffsetDateTime;

/// The bytes of a token: microseconds since 1970, and an id.
const TOKEN_BYTES: usize = 8 + 16;

/// The last task of a page, as the sort key of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageToken {
    /// The creation time of the task, in whole microseconds.
    pub created: OffsetDateTime,
    /// The id of the task.
    pub task: IntentId,
}

impl PageToken {
    /// Parses the output of [`fmt::Display`]; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (created, task) = bytes.split_first_chunk::<8>()?;
        let micros = i128::from(i64::from_be_bytes(*created));
        let created = OffsetDateTime::from_unix_timestamp_nanos(micros * 1000).ok()?;
        Some(Self { created, task: IntentId::from_bytes(task.try_into().ok()?) })
    }
}

impl fmt::Display for PageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = i64::try_from(self.created.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX);
        let mut bytes = Vec::with_capacity(TOKEN_BYTES);
        bytes.extend(micros.to_be_bytes());
        bytes.extend(self.task.as_bytes());
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_parses_from_its_own_text_and_from_no_other() {
        let created = time::macros::datetime!(2026-11-23 12:00:00.123456 UTC);
        let token = PageToken { created, task: IntentId::random() };
        let text = token.to_string();
        assert_eq!(PageToken::parse(&text), Some(token));
        let short = text[1..].to_owned();
        let far = "_".repeat(32);
        let long = format!("{text}AAAA");
        for other in ["", "1", "=", &short, &long, &far[..31]] {
            assert_eq!(PageToken::parse(other), None, "{other}");
        }
    }
}
