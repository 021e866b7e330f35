//! The difference of two contents, for the person who decides on a change.
//!
//! The contents are a program's and may be hostile: the work is bounded by the sizes below and a deadline, the output by
//! [`DiffBudget::max_bytes`]. What is removed is never left out; only added and unchanged lines are. The lines are not
//! escaped, which is the task of what shows them.

use similar::algorithms::{Capture, Compact, Replace, myers};
use similar::{DiffOp, DiffTag, group_diff_ops};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

/// The maximum size of each side that is compared as text.
pub const MAX_TEXT_BYTES: u64 = 1 << 20;
/// The maximum number of lines of each side that is compared as text.
pub const MAX_TEXT_LINES: usize = 20_000;
/// The maximum number of bytes of each side that are compared. What follows counts as different.
pub const MAX_COMPARED_BYTES: u64 = 64 << 20;
/// The maximum number of ranges of compared bytes. The last one reaches to the last byte that differs.
pub const MAX_BYTE_RANGES: usize = 64;
/// The number of unchanged lines shown around changed ones.
const CONTEXT_LINES: usize = 3;
/// The unit in which bytes are compared.
const BLOCK_BYTES: usize = 64 << 10;
/// The maximum number of equal bytes between two differing ones of one range.
const MAX_GAP_BYTES: u64 = 16;

/// The bounds of one comparison.
#[derive(Debug, Clone, Copy)]
pub struct DiffBudget {
    /// The maximum size of the shown lines, in bytes. Removed lines count, but are always shown.
    pub max_bytes: usize,
    /// The time after which a difference may have more lines than necessary.
    pub deadline: Instant,
}

/// The difference between two contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// Both are UTF-8 without NUL, and small enough.
    Text(Vec<Hunk>),
    /// At least one is not text, or is too large.
    Bytes(Vec<ByteRange>),
}

/// Neighbouring changed lines of a text, with a few unchanged ones around them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hunk {
    /// The number of lines before it in the old text.
    pub old_start: usize,
    /// The number of lines before it in the new text.
    pub new_start: usize,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// One line of a difference, with its line end if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// It is in both texts.
    Same(String),
    /// It is in the old text only.
    Removed(String),
    /// It is in the new text only.
    Added(String),
    /// Lines that the budget leaves no room for; none of them is removed.
    LeftOut {
        /// The number of lines in both texts.
        same: usize,
        /// The number of lines in the new text only.
        added: usize,
    },
}

/// A range of bytes that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// The number of bytes before it, in both contents.
    pub start: u64,
    /// The number of bytes that the old content has there.
    pub old_bytes: u64,
    /// The number of bytes that the new content has there.
    pub new_bytes: u64,
}

impl Difference {
    /// Compares two files, of which `None` is one that does not exist. An empty list of hunks or ranges means that they
    /// are equal.
    ///
    /// # Errors
    /// If a file cannot be read, or becomes shorter meanwhile.
    pub fn of(old: Option<&File>, new: Option<&File>, budget: DiffBudget) -> Result<Self> {
        let old_text = read_text(old)?;
        let new_text = read_text(new)?;
        match old_text.zip(new_text) {
            Some((old_text, new_text)) => Ok(Self::Text(compare_lines(&old_text, &new_text, budget))),
            None => compare_bytes(old, new).map(Self::Bytes),
        }
    }

    /// The hunks in the form of `diff -u`, without the two lines that name the files; empty for bytes.
    #[must_use]
    pub fn to_unified(&self) -> String {
        match self {
            Self::Text(hunks) => hunks.iter().map(Hunk::to_unified).collect(),
            Self::Bytes(_) => String::new(),
        }
    }
}

impl Hunk {
    fn to_unified(&self) -> String {
        let mut old_lines = 0;
        let mut new_lines = 0;
        let mut body = String::new();
        for line in &self.lines {
            let (sign, text) = match line {
                Line::Same(text) => (' ', text),
                Line::Removed(text) => ('-', text),
                Line::Added(text) => ('+', text),
                Line::LeftOut { same, added } => {
                    old_lines += same;
                    new_lines += same + added;
                    let _a_string_takes_all =
                        writeln!(body, "\\ {added} added and {same} unchanged lines are left out");
                    continue;
                }
            };
            old_lines += usize::from(sign != '+');
            new_lines += usize::from(sign != '-');
            body.push(sign);
            body.push_str(text);
            if !text.ends_with('\n') {
                body.push_str("\n\\ No newline at end of file\n");
            }
        }
        let old = range_text(self.old_start, old_lines);
        let new = range_text(self.new_start, new_lines);
        format!("@@ -{old} +{new} @@\n{body}")
    }
}

/// The lines of a hunk as `diff -u` writes them: an empty range has the number of the line before it.
fn range_text(start: usize, lines: usize) -> String {
    format!("{},{lines}", if lines == 0 { start } else { start + 1 })
}

fn size_of(file: Option<&File>) -> Result<u64> {
    file.map_or(Ok(0), |file| Ok(file.metadata()?.len()))
}

/// The content as text; `None` if it is not text, or too large.
fn read_text(file: Option<&File>) -> Result<Option<String>> {
    let size = size_of(file)?;
    if size > MAX_TEXT_BYTES {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(size).map_err(|_| Error::from(ErrorKind::FileTooLarge))?];
    if let Some(file) = file {
        file.read_exact_at(&mut bytes, 0)?;
    }
    let text = String::from_utf8(bytes).ok();
    Ok(text.filter(|text| !text.contains('\0') && text.split_inclusive('\n').count() <= MAX_TEXT_LINES))
}

fn compare_lines(old: &str, new: &str, budget: DiffBudget) -> Vec<Hunk> {
    let old_lines = old.split_inclusive('\n').collect::<Vec<_>>();
    let new_lines = new.split_inclusive('\n').collect::<Vec<_>>();
    let mut room = budget.max_bytes;
    let mut hunks = Vec::new();
    for group in group_diff_ops(find_operations(&old_lines, &new_lines, budget.deadline), CONTEXT_LINES) {
        let Some(first) = group.first() else { continue };
        let mut shown = HunkLines { lines: Vec::new(), room: &mut room };
        for operation in &group {
            shown.push_operation(operation, &old_lines, &new_lines);
        }
        let lines = shown.lines;
        hunks.push(Hunk { old_start: first.old_range().start, new_start: first.new_range().start, lines });
    }
    hunks
}

/// The operations that make the new lines of the old ones.
// The lines are compared as numbers, so that long lines with a common beginning do not cost more than others. `TextDiff`
// would bring six algorithms in four forms into the program.
fn find_operations(old: &[&str], new: &[&str], deadline: Instant) -> Vec<DiffOp> {
    let mut numbers = HashMap::new();
    let old = number_lines(&mut numbers, old);
    let new = number_lines(&mut numbers, new);
    let mut found = Compact::new(Replace::new(Capture::new()), &*old, &*new);
    let Ok(()) = myers::diff_deadline(&mut found, &*old, 0..old.len(), &*new, 0..new.len(), Some(deadline));
    found.into_inner().into_inner().into_ops()
}

fn number_lines<'a>(numbers: &mut HashMap<&'a str, usize>, lines: &[&'a str]) -> Vec<usize> {
    let number = |line: &&'a str| {
        let next = numbers.len();
        *numbers.entry(line).or_insert(next)
    };
    lines.iter().map(number).collect()
}

/// The lines of a hunk while they are collected.
struct HunkLines<'a> {
    lines: Vec<Line>,
    /// The bytes that may still be shown.
    room: &'a mut usize,
}

impl HunkLines<'_> {
    fn push_operation(&mut self, operation: &DiffOp, old: &[&str], new: &[&str]) {
        let old = old.get(operation.old_range()).unwrap_or_default();
        let new = new.get(operation.new_range()).unwrap_or_default();
        match operation.tag() {
            DiffTag::Equal => {
                old.iter().for_each(|line| self.push(Line::Same((*line).to_owned()), line.len()))
            }
            DiffTag::Delete | DiffTag::Insert | DiffTag::Replace => {
                for line in old {
                    *self.room = self.room.saturating_sub(line.len());
                    self.lines.push(Line::Removed((*line).to_owned()));
                }
                new.iter().for_each(|line| self.push(Line::Added((*line).to_owned()), line.len()));
            }
        }
    }

    /// Appends a line that may be left out.
    fn push(&mut self, line: Line, bytes: usize) {
        if let Some(rest) = self.room.checked_sub(bytes) {
            *self.room = rest;
            self.lines.push(line);
            return;
        }
        *self.room = 0;
        let is_added = matches!(line, Line::Added(_));
        let one = Line::LeftOut { same: usize::from(!is_added), added: usize::from(is_added) };
        match self.lines.last_mut() {
            Some(Line::LeftOut { same, added }) => {
                *same += usize::from(!is_added);
                *added += usize::from(is_added);
            }
            Some(Line::Same(_) | Line::Removed(_) | Line::Added(_)) | None => self.lines.push(one),
        }
    }
}

/// The ranges in which the bytes at equal positions differ, and what one content has more than the other.
fn compare_bytes(old: Option<&File>, new: Option<&File>) -> Result<Vec<ByteRange>> {
    let old_bytes = size_of(old)?;
    let new_bytes = size_of(new)?;
    let shared = old_bytes.min(new_bytes);
    let compared = shared.min(MAX_COMPARED_BYTES);
    let mut found = Vec::new();
    if let Some((old, new)) = old.zip(new) {
        find_ranges(old, new, compared, &mut found)?;
    }
    if old_bytes != new_bytes || compared < shared {
        let rest =
            ByteRange { start: compared, old_bytes: old_bytes - compared, new_bytes: new_bytes - compared };
        found.push(rest);
    }
    Ok(found)
}

fn find_ranges(old: &File, new: &File, size: u64, found: &mut Vec<ByteRange>) -> Result<()> {
    let mut old_block = vec![0; BLOCK_BYTES];
    let mut new_block = vec![0; BLOCK_BYTES];
    let mut at = 0;
    while at < size {
        let length = usize::try_from(size - at).map_or(BLOCK_BYTES, |rest| rest.min(BLOCK_BYTES));
        let (old_part, _) = old_block.split_at_mut(length);
        let (new_part, _) = new_block.split_at_mut(length);
        old.read_exact_at(old_part, at)?;
        new.read_exact_at(new_part, at)?;
        if old_part != new_part {
            let pairs = (at..).zip(old_part.iter().zip(new_part.iter()));
            pairs.filter(|(_, (old, new))| old != new).for_each(|(place, _)| add_byte(found, place));
        }
        at += length as u64;
    }
    Ok(())
}

/// Adds a byte that differs, which is behind all earlier ones.
fn add_byte(found: &mut Vec<ByteRange>, place: u64) {
    let is_full = found.len() == MAX_BYTE_RANGES;
    match found.last_mut() {
        Some(last) if is_full || place - (last.start + last.old_bytes) <= MAX_GAP_BYTES => {
            last.old_bytes = place + 1 - last.start;
            last.new_bytes = last.old_bytes;
        }
        Some(_) | None => found.push(ByteRange { start: place, old_bytes: 1, new_bytes: 1 }),
    }
}

#[cfg(test)]
mod tests;
