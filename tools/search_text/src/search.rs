//! Matches lines, one file after another.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use a2g_guest_sdk::prelude::*;
use a2g_guest_sdk::{schemars, serde};
use regex::bytes::Regex;

/// A file with a NUL byte in its first part is taken for binary, as `grep` does.
const PROBE_BYTES: usize = 8 * 1024;
/// Bytes of a line that are searched; the result reports a longer line as truncated.
const LINE_BYTES: usize = 1 << 20;
/// Characters shown of one line: enough to understand it, and a minified file does not fill the answer.
const TEXT_CHARS: usize = 500;
/// Characters of a long line shown before the match.
const LEAD_CHARS: usize = 100;
/// The matches stop when their text reaches this size, whatever their number.
const TOTAL_TEXT_BYTES: usize = 4 << 20;

/// One matching line.
#[derive(Debug, Serialize, schemars::JsonSchema)]
#[serde(crate = "serde")]
pub(crate) struct Match {
    /// The path of the file, as other tools take it.
    path: String,
    /// Its path relative to the searched directory; of a searched file, its name.
    relative: String,
    /// From 1.
    line: u64,
    /// In characters, from 1: where the first match in the line starts.
    column: usize,
    /// The line; of a long one, the part around the match.
    text: String,
    /// The lines before it, if `context_lines` asks for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    before: Vec<String>,
    /// The lines after it, if `context_lines` asks for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    after: Vec<String>,
}

/// A search in the making.
pub(crate) struct Search<'a> {
    root: &'a Path,
    pattern: Regex,
    max_matches: usize,
    context_lines: usize,
    text_bytes: usize,
    /// The matches so far, in order.
    pub(crate) matches: Vec<Match>,
    /// Number of files read as text.
    pub(crate) files_searched: usize,
    /// True if a possible match was omitted.
    pub(crate) truncated: bool,
}

impl<'a> Search<'a> {
    /// A search of what is at `root`.
    pub(crate) fn new(root: &'a Path, pattern: Regex, max_matches: usize, context_lines: usize) -> Self {
        Self {
            root,
            pattern,
            max_matches,
            context_lines,
            text_bytes: 0,
            matches: Vec::new(),
            files_searched: 0,
            truncated: false,
        }
    }

    /// True if a further match was found over the limit.
    pub(crate) fn is_full(&self) -> bool {
        self.truncated && !self.has_room()
    }

    /// Searches one file, unless it is binary.
    ///
    /// # Errors
    /// If the file cannot be read; earlier matches are kept.
    pub(crate) fn file(&mut self, path: &Path) -> io::Result<()> {
        let mut reader = BufReader::with_capacity(PROBE_BYTES, File::open(path)?);
        if reader.fill_buf()?.contains(&0) {
            return Ok(());
        }
        self.files_searched += 1;
        let mut lines = Lines::new(reader);
        let mut before = VecDeque::new();
        let first = self.matches.len();
        while let Some((number, line)) = lines.next()? {
            self.add_after(first, number, line);
            if let Some(found) = self.pattern.find(line) {
                let start = found.start();
                self.add_match(path, number, line, start, &before);
            }
            if self.is_full() && self.is_context_complete(first, number) {
                break;
            }
            self.remember(&mut before, line);
        }
        self.truncated |= lines.cut;
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.matches.len() < self.max_matches && self.text_bytes < TOTAL_TEXT_BYTES
    }

    fn add_match(&mut self, path: &Path, line: u64, bytes: &[u8], start: usize, before: &VecDeque<String>) {
        if !self.has_room() {
            self.truncated = true;
            return;
        }
        let lead = String::from_utf8_lossy(bytes.get(..start).unwrap_or_default());
        let column = lead.chars().count() + 1;
        let found = Match {
            path: path.to_string_lossy().into_owned(),
            relative: self.relative(path),
            line,
            column,
            text: excerpt(bytes, column),
            before: before.iter().cloned().collect(),
            after: Vec::new(),
        };
        self.text_bytes += found.text.len() + before.iter().map(String::len).sum::<usize>();
        self.matches.push(found);
    }

    /// The path relative to the searched directory; the name of a searched file.
    fn relative(&self, path: &Path) -> String {
        let below = path.strip_prefix(self.root).ok().filter(|below| !below.as_os_str().is_empty());
        let relative = below.or_else(|| path.file_name().map(Path::new)).unwrap_or(path);
        relative.to_string_lossy().into_owned()
    }

    /// Adds a line to the context of the matches shortly before it, from `first` on.
    fn add_after(&mut self, first: usize, number: u64, line: &[u8]) {
        let reach = self.context_lines as u64;
        let in_file = self.matches.get_mut(first..).unwrap_or_default();
        for found in in_file.iter_mut().rev().take(self.context_lines) {
            if number <= found.line + reach {
                let text = excerpt(line, 1);
                self.text_bytes += text.len();
                found.after.push(text);
            }
        }
    }

    fn is_context_complete(&self, first: usize, number: u64) -> bool {
        let last = self.matches.get(first..).and_then(<[Match]>::last);
        last.is_none_or(|last| number >= last.line + self.context_lines as u64)
    }

    fn remember(&self, before: &mut VecDeque<String>, line: &[u8]) {
        if self.context_lines > 0 {
            if before.len() == self.context_lines {
                before.pop_front();
            }
            before.push_back(excerpt(line, 1));
        }
    }
}

/// The part of a line around a column, with `…` where something is left out.
fn excerpt(line: &[u8], column: usize) -> String {
    let line = String::from_utf8_lossy(line);
    if line.len() <= TEXT_CHARS {
        return line.into_owned();
    }
    let skipped = column.saturating_sub(LEAD_CHARS);
    let mut rest = line.chars().skip(skipped);
    let mut text = String::from(if skipped > 0 { "…" } else { "" });
    text.extend(rest.by_ref().take(TEXT_CHARS));
    if rest.next().is_some() {
        text.push('…');
    }
    text
}

/// The lines of a file, without their ends, in bounded memory.
struct Lines<R> {
    reader: R,
    line: Vec<u8>,
    number: u64,
    /// True if a line was longer than the searched part.
    cut: bool,
}

impl<R: BufRead> Lines<R> {
    fn new(reader: R) -> Self {
        Self { reader, line: Vec::new(), number: 0, cut: false }
    }

    fn next(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        self.line.clear();
        let mut limited = self.reader.by_ref().take(LINE_BYTES as u64);
        if limited.read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        let ended = self.line.pop_if(|byte| *byte == b'\n').is_some();
        if ended {
            self.line.pop_if(|byte| *byte == b'\r');
        } else if self.line.len() == LINE_BYTES {
            self.cut |= self.reader.skip_until(b'\n')? > 0;
        }
        Ok(Some((self.number, &self.line)))
    }
}
