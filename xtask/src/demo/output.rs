//! What the demos print, in 80 columns: steps, facts, commands, and the reports that the governor received.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::Value;

use super::client::{at, text};
use crate::run::{self, BOLD, FAINT, GREEN, RED, YELLOW};

pub(super) const WIDTH: usize = 80;
/// The width of a command beside its prompt.
const COMMAND_WIDTH: usize = 72;
const NOTE_INDENT: usize = 6;
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time to wait for surplus reports, which must not arrive.
const SETTLE_DELAY: Duration = Duration::from_millis(200);

/// The governor's verdict, or the code of an error that is not a denial.
pub(super) fn verdict(answer: &Value) -> String {
    match (text(answer, "/result/verdict"), text(answer, "/error/data/blocked_by")) {
        ("", "verdict_denied") => "DENIED".to_owned(),
        ("", _) => format!("error {}", at(answer, "/error/code")),
        (verdict, _) => verdict.to_owned(),
    }
}

pub(super) fn outcome(answer: &Value) -> &str {
    at(answer, "/result/report/status").as_str().unwrap_or("not run")
}

/// The reason for a failure: the report's, or else the governor's.
pub(super) fn reason(answer: &Value) -> Result<String> {
    let mut reasons = ["/result/report/error", "/error/message", "/result/reason"].into_iter();
    let reason = reasons.find_map(|pointer| at(answer, pointer).as_str());
    reason.map(str::to_owned).context("the answer gives no reason")
}

/// A limit of the report: the granted and the used amount.
pub(super) fn limit(answer: &Value, name: &str) -> Result<(f64, f64)> {
    let limit = at(answer, "/result/report/usage/limits").get(name).unwrap_or(&Value::Null);
    let amounts = at(limit, "/granted").as_f64().zip(at(limit, "/used").as_f64());
    amounts.with_context(|| format!("the report has no {name}"))
}

pub(super) fn mark(is_good: bool) -> String {
    if is_good { format!("{GREEN}✓{GREEN:#}") } else { format!("{RED}✗{RED:#}") }
}

pub(super) fn print_heading(title: &str) {
    anstream::println!("\n{BOLD}{title}{BOLD:#}");
}

/// Prints a command that a person enters.
pub(super) fn print_command(person: &str, line: &str) {
    let lines = textwrap::wrap(line, textwrap::Options::new(COMMAND_WIDTH).subsequent_indent("    "));
    anstream::println!("{FAINT}{person}${FAINT:#} {BOLD}{}{BOLD:#}", lines.join("\n"));
}

/// Prints a fact, which has to be so.
pub(super) fn check(is_so: bool, fact: &str) -> Result<()> {
    anstream::println!("{} {fact}", mark(is_so));
    ensure!(is_so, "it is not so: {fact}");
    Ok(())
}

pub(super) fn print_header() {
    let titles = format!("   #  {:<49}  {:<8}  Risk  Outcome", "The agent's intent", "Verdict");
    anstream::println!("\n{BOLD}{titles}{BOLD:#}\n{FAINT}{}{FAINT:#}", "─".repeat(WIDTH));
}

/// The colour of a verdict or an outcome.
fn style(word: &str) -> anstyle::Style {
    match word {
        "APPROVED" | "SUCCESS" => GREEN,
        "CONDITIONAL" | "ESCALATE" => YELLOW,
        "not run" => FAINT,
        _ => RED,
    }
}

/// Prints the row of a step, its use of limits and its note.
pub(super) fn print_row(number: usize, title: &str, answer: &Value, note: &Result<String>) {
    let mark = mark(note.is_ok());
    let verdict = verdict(answer);
    let outcome = outcome(answer);
    let left = style(&verdict);
    let right = style(outcome);
    let score = at(answer, "/result/risk_assessment/score").as_f64();
    let score = score.or_else(|| at(answer, "/error/data/risk_score").as_f64());
    let risk = score.map_or_else(String::new, |score| format!("{score:.2}"));
    anstream::println!(
        "{mark} {number:>2}  {title:<49}  {left}{verdict:<8}{left:#}  {risk:<4}  {right}{outcome}{right:#}"
    );
    let limits = ["timeout_seconds", "max_cpu_percent", "max_memory_mb"].map(|name| limit(answer, name));
    if let [Ok((time, time_used)), Ok((cpu, cpu_used)), Ok((memory, memory_used))] = limits {
        let time = format!("{time_used:.3} of {time} s");
        let cpu = format!("{cpu_used:.1} of {cpu} %");
        anstream::println!("{:NOTE_INDENT$}time {time}, CPU {cpu}, memory {memory_used} of {memory} MB", "");
    }
    match note {
        Ok(note) => print_note(note, FAINT),
        Err(error) => {
            print_note(&reason(answer).unwrap_or_default(), FAINT);
            print_note(&format!("not as expected: {error:#}"), RED);
        }
    }
}

/// Prints a program and the calls that it made, as an indented table.
pub(super) fn print_calls(tool: &str, answer: &Value, calls: &[Value]) {
    let duration = at(answer, "/result/report/metrics/duration_ms");
    print_call("", tool, &verdict(answer), outcome(answer), duration);
    for call in calls {
        let tool = text(call, "/tool");
        let status = text(call, "/status");
        // Without a verdict, the call was refused before the governor was asked.
        let verdict = at(call, "/verdict").as_str().unwrap_or("-");
        print_call("  └ ", tool, verdict, status, at(call, "/duration_ms"));
    }
}

fn print_call(indent: &str, tool: &str, verdict: &str, status: &str, duration: &Value) {
    let tool = format!("{indent}{tool}");
    let left = style(verdict);
    let right = style(status);
    let duration = duration.to_string();
    anstream::println!(
        "{:NOTE_INDENT$}{tool:<24}  {left}{verdict:<11}{left:#}  {right}{status:<8}{right:#}  {duration:>6} ms",
        ""
    );
}

/// Prints the row of a step that needs a program which could not be installed.
pub(super) fn print_left_out(number: usize, title: &str, missing: &str) {
    anstream::println!("{FAINT}- {number:>2}  {title}{FAINT:#}");
    print_note(&format!("left out: {missing}, which makes this tool, could not be installed here"), YELLOW);
}

/// Prints a text below what it is about.
pub(super) fn print_note(text: &str, style: anstyle::Style) {
    for line in textwrap::wrap(text, textwrap::Options::new(WIDTH - NOTE_INDENT).break_words(false)) {
        anstream::println!("{:NOTE_INDENT$}{style}{line}{style:#}", "");
    }
}

/// Waits for a report of each run and prints them. Returns `true` if the governor has exactly one report for
/// each run, equal to the report that the agent got, and no others, and if each run had a process of its own.
///
/// `own` has the agent's reports with the names of their steps; `others` is the number of intents that did not run.
pub(super) fn compare_reports(record: &Path, own: &[(String, Value)], others: usize) -> Result<bool> {
    let started = run::now();
    while read_reports(record)?.len() < own.len() && started.elapsed() < DELIVERY_TIMEOUT {
        thread::sleep(POLL_INTERVAL);
    }
    thread::sleep(SETTLE_DELAY);
    let received = read_reports(record)?;

    anstream::println!("\n{BOLD}The reports that the governor received{BOLD:#}");
    for report in &received {
        let step = own.iter().find(|(_, own)| own == report).map_or("?", |(name, _)| name);
        print_report(report, step);
    }
    let is_once = |report: &Value| received.iter().filter(|received| *received == report).count() == 1;
    let is_equal = received.len() == own.len() && own.iter().all(|(_, report)| is_once(report));
    let isolated = received.iter().filter(|report| report.pointer("/usage/process").is_some()).count();
    let runs = own.len();
    let reports = received.len();
    let is_isolated = isolated == runs;
    let verb = if is_equal { "equal" } else { "not equal" };
    anstream::println!("{} {isolated} of {runs} runs had a process of their own", mark(is_isolated));
    anstream::println!(
        "{} {reports} reports, {verb} to the agent's for {runs} runs; none for the {others} that did not run",
        mark(is_equal)
    );
    Ok(is_isolated && is_equal)
}

/// Reads the complete lines of the governor's record.
pub(super) fn read_reports(record: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(record)?;
    let (complete, _) = text.rsplit_once('\n').unwrap_or_default();
    let reports = complete.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    reports.with_context(|| format!("a line of {} is not JSON", record.display()))
}

fn print_report(report: &Value, step: &str) {
    let number = |pointer| at(report, pointer).to_string();
    anstream::println!(
        "  {step:<4}  {:.8}  {:<7} {:>5} ms  cpu {:>5} %  memory {:>2} MB  process {:>2} MB",
        text(report, "/intent_id"),
        text(report, "/status"),
        number("/metrics/duration_ms"),
        number("/metrics/cpu_percent"),
        number("/metrics/memory_used_mb"),
        number("/usage/process/peak_resident_mb"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_one_equal_report_for_each_run_agrees() {
        let report = json!({ "intent_id": "one", "status": "SUCCESS", "usage": { "process": {} } });
        let other = json!({ "intent_id": "one", "status": "FAILURE", "usage": { "process": {} } });
        let inline = json!({ "intent_id": "one", "status": "SUCCESS", "usage": {} });
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join("reports.ndjson");
        for (ran, received, agrees) in [
            (vec![&report], vec![&report], true),
            (vec![&report], vec![&report, &report], false),
            (vec![&report], vec![&other], false),
            (vec![&inline], vec![&inline], false),
            (vec![], vec![&report], false),
            (vec![], vec![], true),
        ] {
            let own: Vec<_> = ran.into_iter().map(|report| ("1".to_owned(), report.clone())).collect();
            let text: String = received.iter().map(|line| format!("{line}\n")).collect();
            fs::write(&record, text).unwrap();
            assert_eq!(compare_reports(&record, &own, 1).unwrap(), agrees, "{received:?}");
        }
    }
}
