//! Finds where the old text is, and refuses unless it is clear what to replace.

use a2g_guest_sdk::prelude::*;

/// Number of lines that an `ambiguous` error names.
const MAX_LINES: usize = 20;

/// Number of replacements to make.
///
/// # Errors
/// `not_found` when there is no occurrence, `ambiguous` when there are several and not all are meant.
pub(crate) fn count(content: &str, old_text: &str, all: bool, path: &str) -> Result<usize, ToolError> {
    // Only the first ones are looked at one by one: a large file may hold millions.
    let first: Vec<usize> = overlapping(content, old_text).take(MAX_LINES).collect();
    let replaceable = content.matches(old_text).count();
    match first.as_slice() {
        [] => Err(not_found(path)),
        [_] => Ok(1),
        _ if all => Ok(replaceable),
        several => {
            let count = replaceable.max(several.len());
            Err(ambiguous(path, count, &lines(content, several)))
        }
    }
}

/// The byte offset of every occurrence. Overlapping ones count, since "aa" in "aaa" is ambiguous.
fn overlapping<'a>(content: &'a str, old_text: &'a str) -> impl Iterator<Item = usize> + 'a {
    let step = old_text.chars().next().map_or(1, char::len_utf8);
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = from + content.get(from..)?.find(old_text)?;
        from = start + step;
        Some(start)
    })
}

/// The lines, counted from 1, on which the occurrences start.
fn lines(content: &str, starts: &[usize]) -> Vec<usize> {
    let (mut line, mut seen) = (1, 0);
    starts
        .iter()
        .map(|start| {
            let between = content.get(seen..*start).unwrap_or_default();
            line += between.matches('\n').count();
            seen = *start;
            line
        })
        .collect()
}

fn not_found(path: &str) -> ToolError {
    let message = format!("`{path}` does not contain `old_text`");
    ToolError::new("not_found", message)
        // A missing file has the same code.
        .with_detail(json!({ "path": path, "missing": "old_text" }))
}

fn ambiguous(path: &str, count: usize, lines: &[usize]) -> ToolError {
    let named = lines.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = if count > lines.len() { ", …" } else { "" };
    ToolError::new(
        "ambiguous",
        format!("`{path}` contains `old_text` {count} times, on lines {named}{more}; add context or set `replace_all`"),
    )
    .with_detail(json!({ "path": path, "occurrences": count, "lines": lines }))
}
