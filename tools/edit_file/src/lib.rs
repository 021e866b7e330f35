//! Replaces text in one file. The file changes as a whole or not at all: the new content is written
//! to a temporary file beside it, which is then renamed over it.

use std::fs;

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{schemars, serde};

mod occurrence;
mod replace;

/// The old and the new content are in memory together, within 64 MiB.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Arguments)]
struct EditFile {
    /// The absolute path of the file, which is UTF-8 text.
    path: String,
    /// The exact text to replace, with its whitespace and line breaks. It must occur exactly once,
    /// unless `replace_all` is set.
    #[schemars(length(min = 1))]
    old_text: String,
    /// The text to put in its place.
    new_text: String,
    /// Whether to replace every occurrence instead of insisting on exactly one.
    #[serde(default)]
    replace_all: bool,
}

#[derive(Serialize, schemars::JsonSchema)]
#[serde(crate = "serde")]
struct Edited {
    /// The path as it was given.
    path: String,
    /// How many occurrences were replaced.
    replacements: usize,
    /// The size of the file now.
    bytes_written: usize,
}

fn edit_file(_: &mut Context, arguments: EditFile) -> Result<Edited, ToolError> {
    let EditFile { path, old_text, new_text, replace_all } = arguments;
    if old_text.is_empty() {
        return Err(ToolError::new("empty_old_text", "`old_text` is empty"));
    }
    let content = read(&path)?;
    let replacements = occurrence::count(&content, &old_text, replace_all, &path)?;
    let edited = content.replace(&old_text, &new_text);
    drop(content);
    replace::atomically(&path, edited.as_bytes())?;
    Ok(Edited { path, replacements, bytes_written: edited.len() })
}

/// The content of a regular file that is text and not too large.
fn read(path: &str) -> Result<String, ToolError> {
    let metadata = fs::symlink_metadata(path).at(path)?;
    let refuse = |code: &str, why: &str| Err(ToolError::new(code, format!("`{path}` {why}")));
    if metadata.is_dir() {
        return refuse("is_a_directory", "is a directory");
    }
    if metadata.is_symlink() {
        return refuse("symlink", "is a symbolic link, which the edit would replace; name its target");
    }
    if metadata.len() > MAX_BYTES {
        return refuse("file_too_large", "is larger than 16 MiB");
    }
    let bytes = fs::read(path).at(path)?;
    String::from_utf8(bytes).or_else(|_| refuse("not_utf8", "is not UTF-8 text"))
}

export_tool!(
    edit_file,
    description = "Replaces an exact piece of text in a UTF-8 file, atomically; refuses when the text is absent or ambiguous."
);

#[cfg(test)]
mod tests;
