//! The sums of the demo: what the clients counted, what the tool wrote, and what the governor received.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result};
use fs_err as fs;
use serde_json::Value;
use uuid::Uuid;

use super::calls::{DOORS, Door, Reply};
use super::nodes::NODES;
use crate::demo::client::{at, text};
use crate::demo::output::mark;
use crate::run::{BOLD, FAINT};

/// One request to a node and what came back.
#[derive(Debug)]
pub(super) struct Attempt {
    /// The position in [`NODES`].
    pub(super) node: usize,
    pub(super) reply: Reply,
}

/// An intent that a node has answered.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) number: usize,
    pub(super) door: Door,
    pub(super) id: Uuid,
    /// The status of its report.
    pub(super) status: String,
    /// In order. The last one got the answer.
    pub(super) attempts: Vec<Attempt>,
}

/// The columns of one node, or their sums.
#[derive(Debug, Default, PartialEq, Eq)]
struct Row {
    sent: usize,
    repeated: usize,
    answered: usize,
    refused: usize,
    broken: usize,
}

impl Row {
    /// Counts the requests that one node got.
    fn of(node: usize, intents: &[Answered]) -> Self {
        let mut row = Self::default();
        for intent in intents {
            for (position, attempt) in intent.attempts.iter().enumerate() {
                if attempt.node == node {
                    row.count(position, &attempt.reply);
                }
            }
        }
        row
    }

    fn count(&mut self, position: usize, reply: &Reply) {
        let request = if position == 0 { &mut self.sent } else { &mut self.repeated };
        *request += 1;
        let result = match reply {
            Reply::Ended(_) => &mut self.answered,
            Reply::Refused { .. } => &mut self.refused,
            Reply::Broken => &mut self.broken,
        };
        *result += 1;
    }

    fn add(mut self, other: &Self) -> Self {
        let Self { sent, repeated, answered, refused, broken } = other;
        self.sent += sent;
        self.repeated += repeated;
        self.answered += answered;
        self.refused += refused;
        self.broken += broken;
        self
    }

    /// Every request got an answer or a refusal, or its connection broke.
    fn agrees(&self) -> bool {
        self.sent + self.repeated == self.answered + self.refused + self.broken
    }

    fn print(&self, name: &str) {
        let Self { sent, repeated, answered, refused, broken } = self;
        anstream::println!(
            "{} {name:<8} {sent:>8} {repeated:>10} {answered:>10} {refused:>9} {broken:>8}",
            mark(self.agrees())
        );
    }
}

/// What the tool wrote: a line for each run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Runs {
    lines: usize,
    numbers: BTreeSet<usize>,
}

impl Runs {
    fn read(file: &Path) -> Result<Self> {
        let numbers = read_lines(file)?.into_iter().map(|line| {
            let number = at(&line, "/number").as_u64().and_then(|number| usize::try_from(number).ok());
            number.with_context(|| format!("{line} is no line of the tool"))
        });
        let numbers: Vec<usize> = numbers.collect::<Result<_>>()?;
        Ok(Self { lines: numbers.len(), numbers: numbers.into_iter().collect() })
    }
}

/// The status of each intent in the governor's reports, by id, and the number of reports.
pub(super) struct Reports {
    count: usize,
    pub(super) statuses: BTreeMap<String, String>,
}

impl Reports {
    pub(super) fn read(file: &Path) -> Result<Self> {
        let reports = read_lines(file)?;
        let status =
            |report: &Value| (text(report, "/intent_id").to_owned(), text(report, "/status").to_owned());
        Ok(Self { count: reports.len(), statuses: reports.iter().map(status).collect() })
    }
}

/// Prints the sums. Returns `true` if they agree: every intent was sent once, answered once and reported once with the
/// status of its answer; none ran twice; and all with SUCCESS ran.
pub(super) fn compare(expected: usize, intents: &[Answered], runs: &Path, reports: &Reports) -> Result<bool> {
    let runs = Runs::read(runs)?;
    print_nodes(intents);
    let rows = (0..NODES.len()).map(|node| Row::of(node, intents));
    let total = rows.fold(Row::default(), |total, row| total.add(&row));
    let ids: BTreeSet<_> = intents.iter().map(|intent| intent.id).collect();
    let is_complete = total.sent == expected && total.answered == expected && ids.len() == expected;
    let lines = [
        (is_complete, format!("{expected} intents: {} sent, {} answered", total.sent, total.answered)),
        check_statuses(intents, &runs),
        check_runs(intents, &runs),
        check_reports(intents, reports),
    ];
    anstream::println!();
    for (is_good, line) in &lines {
        anstream::println!("{} {line}", mark(*is_good));
    }
    Ok(total.agrees() && lines.iter().all(|(is_good, _)| *is_good))
}

fn print_nodes(intents: &[Answered]) {
    let titles = format!(
        "  {:<8} {:>8} {:>10} {:>10} {:>9} {:>8}",
        "Node", "Sent", "Repeated", "Answered", "Refused", "Broken"
    );
    anstream::println!("\n{BOLD}{titles}{BOLD:#}\n{FAINT}  {}{FAINT:#}", "─".repeat(57));
    let mut total = Row::default();
    for (node, name) in NODES.iter().enumerate() {
        let row = Row::of(node, intents);
        row.print(name);
        total = total.add(&row);
    }
    total.print("total");
    anstream::println!("  {FAINT}sent + repeated = answered + refused + broken{FAINT:#}");
}

/// The sums of the statuses, and of the protocols.
fn check_statuses(intents: &[Answered], runs: &Runs) -> (bool, String) {
    let mut statuses = BTreeMap::<&str, usize>::new();
    for intent in intents {
        *statuses.entry(&intent.status).or_default() += 1;
    }
    let is_known = statuses.keys().all(|status| matches!(*status, "SUCCESS" | "ABORTED"));
    let have_run = intents.iter().filter(|intent| intent.status == "SUCCESS");
    let have_run = have_run.map(|intent| intent.number).all(|number| runs.numbers.contains(&number));
    let statuses: Vec<String> = statuses.iter().map(|(status, count)| format!("{count} {status}")).collect();
    let doors = DOORS.map(|door| {
        let count = intents.iter().filter(|intent| intent.door == door).count();
        format!("{count} over {}", door.name())
    });
    (is_known && have_run, format!("statuses: {}; {}", statuses.join(" + "), doors.join(", ")))
}

/// An aborted intent may have run, or not.
fn check_runs(intents: &[Answered], runs: &Runs) -> (bool, String) {
    let aborted = intents.iter().filter(|intent| intent.status == "ABORTED");
    let aborted = aborted.filter(|intent| runs.numbers.contains(&intent.number)).count();
    let lines = runs.lines;
    let distinct = runs.numbers.len();
    let is_once = lines == distinct;
    let more = if aborted == 0 { String::new() } else { format!(", {aborted} of them of aborted intents") };
    (is_once, format!("runs: {lines} lines of the tool, of {distinct} intents{more}"))
}

fn check_reports(intents: &[Answered], reports: &Reports) -> (bool, String) {
    let is_equal = |intent: &&Answered| reports.statuses.get(&intent.id.to_string()) == Some(&intent.status);
    let equal = intents.iter().filter(is_equal).count();
    let count = reports.count;
    let distinct = reports.statuses.len();
    let is_good = [count, distinct, equal].iter().all(|number| *number == intents.len());
    (
        is_good,
        format!("governor: {count} reports, of {distinct} intents; {equal} have the status of the answer"),
    )
}

/// Reads the complete lines of a file, each of which is JSON. A missing file has none.
fn read_lines(file: &Path) -> Result<Vec<Value>> {
    if !file.exists() {
        return Ok(Vec::new());
    }
    let content = fs::read_to_string(file)?;
    let (complete, _) = content.rsplit_once('\n').unwrap_or_default();
    let values = complete.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    values.with_context(|| format!("a line of {} is not JSON", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ended(node: usize, status: &str) -> Attempt {
        Attempt { node, reply: Reply::Ended(status.to_owned()) }
    }

    fn intents() -> Vec<Answered> {
        let intent = |number, status: &str, attempts| Answered {
            number,
            door: Door::A2g,
            id: Uuid::from_u128(number as u128),
            status: status.to_owned(),
            attempts,
        };
        let broken = Attempt { node: 1, reply: Reply::Broken };
        let refused = Attempt { node: 2, reply: Reply::Refused { retry_after_ms: 1 } };
        vec![
            intent(0, "SUCCESS", vec![ended(0, "SUCCESS")]),
            intent(1, "ABORTED", vec![broken, refused, ended(0, "ABORTED")]),
        ]
    }

    #[test]
    fn every_request_is_in_two_columns() {
        let rows = [0, 1, 2].map(|node| Row::of(node, &intents()));
        let row =
            |sent, repeated, answered, refused, broken| Row { sent, repeated, answered, refused, broken };
        assert_eq!(rows, [row(1, 1, 2, 0, 0), row(1, 0, 0, 0, 1), row(0, 1, 0, 1, 0)]);
        assert!(rows.iter().all(Row::agrees) && !row(1, 0, 0, 0, 0).agrees());
    }

    #[test]
    fn sums_that_do_not_agree_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let reports = folder.path().join("reports");
        let write = |file: &Path, lines: &[Value]| {
            fs::write(file, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        };
        let run = |number: usize| json!({ "number": number });
        let report = |number: u128, status| json!({ "intent_id": Uuid::from_u128(number).to_string(), "status": status });
        let good = [report(0, "SUCCESS"), report(1, "ABORTED")];
        for (ran, reported, expected, agrees) in [
            (vec![run(0)], good.to_vec(), 2, true),
            (vec![run(0), run(1)], good.to_vec(), 2, true),
            (vec![run(0), run(0)], good.to_vec(), 2, false),
            (vec![run(1)], good.to_vec(), 2, false),
            (vec![run(0)], good[..1].to_vec(), 2, false),
            (vec![run(0)], vec![report(0, "SUCCESS"), report(1, "SUCCESS")], 2, false),
            (vec![run(0)], [&good[..], &good[1..]].concat(), 2, false),
            (vec![run(0)], good.to_vec(), 3, false),
        ] {
            write(&runs, &ran);
            write(&reports, &reported);
            let reports = Reports::read(&reports).unwrap();
            assert_eq!(
                compare(expected, &intents(), &runs, &reports).unwrap(),
                agrees,
                "{ran:?} {reported:?}"
            );
        }
    }
}
