//! Lists a directory. Symbolic links are listed, never followed, so a listing always ends; what it
//! holds in memory is bounded by `max_entries`, not by the directory.

use std::path::Path;

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{schemars, serde};

mod entry;
mod listing;

use entry::Entry;
use listing::Listing;

const DEFAULT_ENTRIES: usize = 1_000;
const MAX_ENTRIES: usize = 10_000;

#[derive(Arguments)]
struct ListDirectory {
    /// The absolute path of the directory.
    path: String,
    /// Whether to list everything below it as well.
    #[serde(default)]
    recursive: bool,
    /// At most how many entries to return; `truncated` says whether there are more.
    #[serde(default = "default_entries")]
    #[schemars(range(min = 1, max = 10_000))]
    max_entries: usize,
    /// Whether to list names that start with a dot, and what is below them.
    #[serde(default)]
    include_hidden: bool,
}

fn default_entries() -> usize {
    DEFAULT_ENTRIES
}

#[derive(Serialize, schemars::JsonSchema)]
#[serde(crate = "serde")]
struct Listed {
    /// The path as it was given.
    path: String,
    /// Sorted by name; what is in a directory follows it directly.
    entries: Vec<Entry>,
    /// Whether there are more entries.
    truncated: bool,
}

fn list_directory(ctx: &mut Context, arguments: ListDirectory) -> Result<Listed, ToolError> {
    let limit = arguments.max_entries;
    if !(1..=MAX_ENTRIES).contains(&limit) {
        let message = format!("`max_entries` is {limit}; it must be from 1 to {MAX_ENTRIES}");
        return Err(ToolError::new("invalid_arguments", message));
    }
    let path = arguments.path;
    let mut listing = Listing::new(ctx, limit, arguments.include_hidden, arguments.recursive);
    listing.read(Path::new(&path)).at(&path)?;
    Ok(Listed { truncated: listing.truncated, entries: listing.entries, path })
}

export_tool!(
    list_directory,
    description = "Lists a directory, optionally with everything below it, in a stable order."
);

#[cfg(test)]
mod tests;
