//! Searches files for a regular expression. The time is linear in what is read, whatever the
//! pattern; what is held in memory is bounded by the limits below, not by the files.

use std::path::Path;

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{schemars, serde};
use regex::bytes::{Regex, RegexBuilder};

mod globs;
mod search;
mod walk;

use globs::Globs;
use search::{Match, Search};

const DEFAULT_MATCHES: usize = 200;
const MAX_MATCHES: usize = 5_000;
const MAX_CONTEXT_LINES: usize = 10;
/// A compiled pattern larger than this is refused; `(a{1000}){1000}` would otherwise take it all.
const PATTERN_BYTES: usize = 4 << 20;
/// A search is reported about this many times, however many files it visits.
const PROGRESS_REPORTS: usize = 20;

#[derive(Arguments)]
struct SearchText {
    /// The absolute path of a directory, searched with everything below it, or of one file.
    path: String,
    /// A regular expression in the syntax of the Rust crate `regex`: no look-around and no
    /// backreferences. It is matched against one line at a time.
    pattern: String,
    /// Search only files that match one of these globs, relative to `path`. A glob without a slash
    /// matches names at any depth; `*` does not cross a slash, `**` does.
    #[serde(default)]
    include: Vec<String>,
    /// Skip files and whole directories that match one of these globs.
    #[serde(default)]
    exclude: Vec<String>,
    /// Whether upper and lower case differ.
    #[serde(default = "default_case_sensitive")]
    case_sensitive: bool,
    /// At most how many matching lines to return; `truncated` says whether there may be more.
    #[serde(default = "default_matches")]
    #[schemars(range(min = 1, max = 5_000))]
    max_matches: usize,
    /// How many lines to return before and after each matching line.
    #[serde(default)]
    #[schemars(range(max = 10))]
    context_lines: usize,
}

fn default_case_sensitive() -> bool {
    true
}

fn default_matches() -> usize {
    DEFAULT_MATCHES
}

#[derive(Serialize, schemars::JsonSchema)]
#[serde(crate = "serde")]
struct Found {
    /// One for each matching line, in the order of the paths.
    matches: Vec<Match>,
    /// How many text files were searched.
    files_searched: usize,
    /// Whether something that may match was left out.
    truncated: bool,
}

fn search_text(ctx: &mut Context, arguments: SearchText) -> Result<Found, ToolError> {
    check_range("max_matches", arguments.max_matches, 1, MAX_MATCHES)?;
    check_range("context_lines", arguments.context_lines, 0, MAX_CONTEXT_LINES)?;
    let pattern = compile(&arguments)?;
    let globs = Globs::new(&arguments.include, &arguments.exclude)?;
    ctx.progress(None, "listing files");
    let root = Path::new(&arguments.path);
    let walked = walk::files(ctx, root, &globs)?;
    let mut search = Search::new(root, pattern, arguments.max_matches, arguments.context_lines);
    search.truncated = walked.truncated;
    let total = walked.files.len();
    let report_every = total.div_ceil(PROGRESS_REPORTS).max(1);
    for (done, path) in walked.files.iter().enumerate() {
        if done.is_multiple_of(report_every) {
            let percent = done as f32 / total as f32 * 100.0;
            ctx.progress(percent, format!("searched {done} of {total} files"));
        }
        if let Err(error) = search.file(path) {
            let message = format!("`{}` is skipped: {error}", path.display());
            ctx.log(Level::Warn, message);
        }
        if search.is_full() {
            break;
        }
    }
    Ok(Found { matches: search.matches, files_searched: search.files_searched, truncated: search.truncated })
}

fn compile(arguments: &SearchText) -> Result<Regex, ToolError> {
    RegexBuilder::new(&arguments.pattern)
        .case_insensitive(!arguments.case_sensitive)
        .size_limit(PATTERN_BYTES)
        .build()
        .map_err(|error| ToolError::new("invalid_pattern", error.to_string()))
}

/// The executor checks the ranges as well, but the memory of the tool should not depend on that.
fn check_range(name: &str, value: usize, min: usize, max: usize) -> Result<(), ToolError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let message = format!("`{name}` is {value}; it must be from {min} to {max}");
    Err(ToolError::new("invalid_arguments", message))
}

export_tool!(
    search_text,
    description = "Searches text files for a regular expression, below a directory or in one file."
);

#[cfg(test)]
mod tests;
