//! Cuts bytes at a character boundary of UTF-8.

use std::str;

use a2g_guest_sdk::prelude::*;

/// Why bytes cannot be returned as text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The bytes start in the middle of a character; the next one starts `next` bytes later.
    Inside { next: usize },
    /// Byte `at` belongs to no character.
    Invalid { at: usize },
}

/// The whole characters among the first `limit` bytes, or the first character where even that one is
/// longer, so that a reader who goes on from there always advances.
pub(crate) fn whole_characters(bytes: &[u8], limit: usize) -> Result<&[u8], Problem> {
    let within = bytes.get(..limit).unwrap_or(bytes);
    let Err(error) = str::from_utf8(within) else {
        return Ok(within);
    };
    let at = error.valid_up_to();
    let goes_on = error.error_len().is_none() && within.len() < bytes.len();
    match (goes_on, at) {
        (true, 0) => first_character(bytes).ok_or(Problem::Invalid { at: 0 }),
        (true, _) => Ok(bytes.get(..at).unwrap_or(bytes)),
        (false, 0) => Err(inside(bytes)),
        (false, _) => Err(Problem::Invalid { at }),
    }
}

fn first_character(bytes: &[u8]) -> Option<&[u8]> {
    (1..=4).filter_map(|length| bytes.get(..length)).find(|start| str::from_utf8(start).is_ok())
}

/// Tells an offset inside a character from bytes that are no text at all.
fn inside(bytes: &[u8]) -> Problem {
    let next = bytes.iter().take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
    if (1..=3).contains(&next) { Problem::Inside { next } } else { Problem::Invalid { at: 0 } }
}

impl Problem {
    /// The error for the file at `path`, read from `offset` bytes on.
    pub(crate) fn into_error(self, path: &str, offset: u64) -> ToolError {
        match self {
            Self::Inside { next } if offset > 0 => {
                let next = offset + next as u64;
                ToolError::new(
                    "invalid_offset",
                    format!("`{path}`: offset {offset} is inside a character; the next starts at {next}"),
                )
                .with_detail(json!({ "path": path, "next_offset": next }))
            }
            Self::Inside { .. } => Self::Invalid { at: 0 }.into_error(path, offset),
            Self::Invalid { at } => {
                let at = offset + at as u64;
                ToolError::new(
                    "not_utf8",
                    format!("`{path}` is not UTF-8 at byte {at}; ask for \"encoding\": \"base64\""),
                )
                .with_detail(json!({ "path": path, "offset": at, "suggested_encoding": "base64" }))
            }
        }
    }
}
