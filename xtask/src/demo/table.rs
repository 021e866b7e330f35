//! The table of the story: a row for each step as soon as it is over, what it used and its note below
//! it. It fits 80 columns; where `COLUMNS` says that there are more, notes take them.

use super::paint::{Ink, painted, say};
use super::reply::Reply;
use super::story::Step;

/// The width of the table, and of every note where there is no more room.
const WIDTH: usize = 80;
/// Where the second column starts, and with it the notes.
const INDENT: usize = 6;

/// A column: its title and its width in characters.
const COLUMNS: [(&str, usize); 4] =
    [("What the agent asked for", 49), ("Verdict", 8), ("Risk", 4), ("Outcome", 7)];

/// The titles.
pub(super) fn header() {
    let titles = COLUMNS.map(|(title, _)| (title.to_owned(), Ink::Bold));
    say(format_args!("\n{}", line(&painted("   #  ", Ink::Bold), &titles)));
    say(painted(&"─".repeat(WIDTH), Ink::Faint));
}

/// The row and the notes of a step.
pub(super) fn row(number: usize, step: &Step) {
    let Step { asked, reply, note, unexpected } = step;
    let mark = if unexpected.is_none() { painted("✓", Ink::Green) } else { painted("✗", Ink::Red) };
    let verdict = reply.verdict();
    let verdict_ink = match verdict.as_str() {
        "APPROVED" => Ink::Green,
        "CONDITIONAL" | "ESCALATE" => Ink::Yellow,
        _ => Ink::Red,
    };
    let (outcome, outcome_ink) = match reply.outcome() {
        Some("SUCCESS") => ("SUCCESS", Ink::Green),
        Some(word) => (word, Ink::Red),
        None => ("not run", Ink::Faint),
    };
    let cells = [
        ((*asked).to_owned(), Ink::Plain),
        (verdict, verdict_ink),
        (reply.risk().map_or_else(String::new, |risk| format!("{risk:.2}")), Ink::Plain),
        (outcome.to_owned(), outcome_ink),
    ];
    say(line(&format!("{mark} {number:>2}  "), &cells));
    if let Some(used) = used(reply) {
        say(format_args!("{:INDENT$}{used}", ""));
    }
    let most = width() - INDENT;
    for text in wrapped(note, most) {
        say(format_args!("{:INDENT$}{}", "", painted(&text, Ink::Faint)));
    }
    for text in unexpected.iter().flat_map(|why| wrapped(&format!("not as expected: {why}"), most)) {
        say(format_args!("{:INDENT$}{}", "", painted(&text, Ink::Red)));
    }
}

/// What a run used of its limits; `None` when nothing ran.
fn used(reply: &Reply) -> Option<String> {
    let (time, cpu) = (reply.limit("timeout_seconds")?, reply.limit("max_cpu_percent")?);
    let memory = reply.limit("max_memory_mb")?;
    Some(format!(
        "time {:.3} of {} s, CPU {:.1} of {} %, memory {} of {} MB",
        time.used, time.granted, cpu.used, cpu.granted, memory.used, memory.granted
    ))
}

/// How wide notes may be.
fn width() -> usize {
    let said = std::env::var_os("COLUMNS").and_then(|columns| columns.to_str()?.parse().ok());
    said.unwrap_or(WIDTH).max(WIDTH)
}

/// Cells side by side. Colours come after the padding: they have no width.
fn line(start: &str, cells: &[(String, Ink); 4]) -> String {
    let cells = cells.iter().zip(COLUMNS).map(|((text, ink), (_, width))| {
        let padding = " ".repeat(width.saturating_sub(text.chars().count()));
        format!("{}{padding}", painted(text, *ink))
    });
    let all = cells.collect::<Vec<_>>().join("  ");
    format!("{start}{}", all.trim_end())
}

/// The text in lines that fit below the second column, broken at spaces.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(last) if last.chars().count() + 1 + word.chars().count() <= most => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_fit_the_width() {
        let cells: usize = COLUMNS.iter().map(|(_, width)| width).sum();
        assert!(INDENT + cells + 2 * (COLUMNS.len() - 1) <= WIDTH);
        assert!(COLUMNS.iter().all(|(title, width)| title.chars().count() <= *width));
    }

    #[test]
    fn long_notes_are_broken_at_spaces() {
        let lines = wrapped(&"word ".repeat(50), 74);
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().all(|line| line.chars().count() <= 74));
        assert!(wrapped("", 74).is_empty());
    }
}
