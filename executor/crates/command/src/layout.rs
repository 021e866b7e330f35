//! Layout of lists: a table if it fits; otherwise rows with the last column below each entry; and if these do not fit
//! either, each column on its own line.
//!
//! Lines are broken only at spaces, so that a path, an id or a name can be copied whole. A single word that is wider
//! than the screen is left to the terminal.

use crate::output::{columns, one_line, supports_colours};
use comfy_table::{
    Cell, Color, ColumnConstraint, ContentArrangement, Table, Width, presets::UTF8_BORDERS_ONLY,
};
use std::fmt::{Display, Write as _};
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;

/// Indent of the lines below a heading, in columns.
const INDENT: usize = 4;

/// A cell: text with terminal control characters escaped.
pub struct ListCell {
    text: String,
    color: Option<Color>,
}

/// A cell with plain text.
pub fn text(text: impl Display) -> ListCell {
    ListCell { text: one_line(text), color: None }
}

/// A cell that is green if `is_good`, and red otherwise.
pub fn status_cell(text: &str, is_good: bool) -> ListCell {
    ListCell { text: one_line(text), color: Some(if is_good { Color::Green } else { Color::Red }) }
}

/// Entries with the same columns; the first column names the entry.
pub struct Listing {
    header: Vec<&'static str>,
    rows: Vec<Vec<ListCell>>,
}

impl Listing {
    /// A list with these columns, and no entry yet.
    pub fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }

    /// Adds an entry, with a cell for each column.
    pub fn row(&mut self, row: impl IntoIterator<Item = ListCell>) {
        self.rows.push(row.into_iter().collect());
    }

    /// Prints the list at the width of the stream's terminal. A closed stream is not an error.
    pub fn show(&self, mut stream: impl IsTerminal + AsFd + Write) {
        let width = columns(&stream);
        let is_coloured = supports_colours(&stream);
        let fits = |shown: &str| shown.lines().all(|line| line.chars().count() <= width);
        let shown = if fits(&self.table(width, false)) {
            self.table(width, is_coloured)
        } else {
            let stacked = Some(self.stack(width)).filter(|shown| fits(shown));
            stacked.unwrap_or_else(|| self.blocks(width, is_coloured))
        };
        let _ignored = writeln!(stream, "{shown}");
    }

    /// Prints each column on its own line, at any width.
    pub fn show_blocks(&self, mut stream: impl IsTerminal + AsFd + Write) {
        let shown = self.blocks(columns(&stream), supports_colours(&stream));
        let _ignored = writeln!(stream, "{shown}");
    }

    fn table(&self, width: usize, is_coloured: bool) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
        // By default comfy-table uses the width of standard output, even for another stream.
        table.set_width(u16::try_from(width).unwrap_or(u16::MAX)).force_no_tty();
        if is_coloured {
            table.enforce_styling();
        }
        table.set_header(self.header.iter().map(Cell::new));
        for row in &self.rows {
            table.add_row(row.iter().map(|ListCell { text, color }| match color {
                Some(color) => Cell::new(text).fg(*color),
                None => Cell::new(text),
            }));
        }
        for (nth, column) in table.column_iter_mut().enumerate() {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(self.longest_word(nth))));
        }
        table.to_string()
    }

    /// The width of the longest word of a column, plus padding. comfy-table would break a longer word, and a broken
    /// path or id can be neither read nor copied.
    fn longest_word(&self, nth: usize) -> u16 {
        let cells = self.rows.iter().filter_map(|row| row.get(nth)).map(|cell| cell.text.as_str());
        let words = cells.chain(self.header.get(nth).copied()).flat_map(str::split_whitespace);
        let longest = words.map(|word| word.chars().count()).max().unwrap_or(0);
        u16::try_from(longest.saturating_add(2)).unwrap_or(u16::MAX)
    }

    /// All columns except the last in a row, and the last one below them.
    fn stack(&self, width: usize) -> String {
        let count = self.header.len().saturating_sub(1);
        let titles = self.header.iter().take(count).map(|title| (*title).to_owned()).collect();
        let texts =
            self.rows.iter().map(|row| row.iter().take(count).map(|cell| cell.text.clone()).collect());
        let rows = std::iter::once(titles).chain(texts).collect::<Vec<Vec<_>>>();
        let aligned = align(&rows, &[], width);
        let mut lines = aligned.lines();
        let mut shown = lines.next().unwrap_or_default().to_owned();
        for (line, row) in lines.zip(&self.rows) {
            let last = row.last().map_or("", |cell| cell.text.as_str());
            // Writing to a string cannot fail.
            let _ = write!(shown, "\n{line}\n{}", wrap(&" ".repeat(INDENT), last, width));
        }
        shown
    }

    /// The entries, each with its columns as labelled lines.
    fn blocks(&self, width: usize, is_coloured: bool) -> String {
        let longest = self.header.iter().skip(1).map(|label| label.len()).max().unwrap_or(0);
        let block = |row: &Vec<ListCell>| {
            let mut cells = self.header.iter().zip(row);
            let mut block = cells.next().map_or_else(String::new, |(_, name)| name.paint(is_coloured));
            for (label, cell) in cells.filter(|(_, cell)| !cell.text.is_empty()) {
                let start = format!("{:INDENT$}{label:longest$}  ", "");
                let plain = wrap(&start, &cell.text, width);
                // Writing to a string cannot fail. Coloured cells are single words, which are never broken.
                let text = plain.replacen(&cell.text, &cell.paint(is_coloured), 1);
                let _ = write!(block, "\n{text}");
            }
            block
        };
        self.rows.iter().map(block).collect::<Vec<_>>().join("\n")
    }
}

impl ListCell {
    fn paint(&self, is_coloured: bool) -> String {
        match self.color.filter(|_| is_coloured) {
            Some(Color::Green) => format!("\u{1b}[32m{}\u{1b}[0m", self.text),
            Some(_) => format!("\u{1b}[31m{}\u{1b}[0m", self.text),
            None => self.text.clone(),
        }
    }
}

/// Wraps text after `start` at spaces, in lines of at most `width` columns, with continuation lines aligned to the
/// first word.
pub fn wrap(start: &str, text: &str, width: usize) -> String {
    let indent = start.chars().count();
    let mut lines = String::from(start);
    let mut column = indent;
    for (nth, word) in text.split(' ').enumerate() {
        let length = word.chars().count();
        if nth > 0 && column + 1 + length > width {
            let _ = write!(lines, "\n{:indent$}", "");
            column = indent;
        } else if nth > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines
}

/// Aligns the columns of rows, one line each, within `width` if possible: the columns in `flexible` (index, minimum
/// width) are truncated with an ellipsis, in that order and as far as necessary.
pub fn align(rows: &[Vec<String>], flexible: &[(usize, usize)], width: usize) -> String {
    const GAP: usize = 2;
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let length = |nth: usize| {
        rows.iter().filter_map(|row| row.get(nth)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut widths = (0..count).map(length).collect::<Vec<_>>();
    for (nth, min) in flexible {
        let total = widths.iter().sum::<usize>() + GAP * count.saturating_sub(1);
        if let Some(column) = widths.get_mut(*nth) {
            *column = column.saturating_sub(total.saturating_sub(width)).max((*min).min(*column));
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{:width$}", truncate(cell, *width)));
        cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn truncate(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing() -> Listing {
        let mut listing = Listing::new(&["name", "state", "what it is for"]);
        listing.row([
            text("short"),
            status_cell("well", true),
            text("a few words that can stand in several lines"),
        ]);
        listing.row([
            text("x"),
            status_cell("ill", false),
            text("see /a/path/that/nobody/wants/to/see/in/pieces for more"),
        ]);
        listing
    }

    #[test]
    fn words_are_not_broken_at_any_width() {
        let words = |shown: &str| shown.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let listing = listing();
        let all = listing.rows.iter().flatten().flat_map(|cell| words(&cell.text)).collect::<Vec<_>>();
        let widest = |shown: &str| shown.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        for width in 40..120 {
            let ways = [listing.table(width, false), listing.stack(width), listing.blocks(width, false)];
            for shown in ways {
                let found = words(&shown);
                assert!(all.iter().all(|word| found.contains(word)), "{width}: {shown}");
                assert!(widest(&shown) <= width.max(70), "{width}: {shown}");
            }
        }
        assert!(widest(&listing.table(40, false)) > 40 && widest(&listing.table(100, false)) <= 100);
        let coloured = listing.blocks(40, true);
        assert!(coloured.contains("\u{1b}[32mwell\u{1b}[0m") && coloured.contains("\u{1b}[31mill\u{1b}[0m"));
    }

    #[test]
    fn wrapped_lines_are_aligned_to_the_first_word() {
        assert_eq!(wrap("  a  ", "one two three", 12), "  a  one two\n     three");
        assert_eq!(wrap("", "one", 1), "one");
    }

    #[test]
    fn only_flexible_columns_are_truncated() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["1", "a long name", "id"]), row(["22", "b", "id"])];
        assert_eq!(align(&rows, &[(1, 4)], 80), "1   a long name  id\n22  b            id");
        assert_eq!(align(&rows, &[(1, 4)], 14), "1   a lon…  id\n22  b       id");
        assert_eq!(align(&rows, &[(1, 4)], 1), "1   a l…  id\n22  b     id");
    }
}
