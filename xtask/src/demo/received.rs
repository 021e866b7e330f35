//! What the governor received: its own record, compared with what the agent was told.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::paint::{Ink, painted, say};
use super::story::Step;
use crate::run::{self, AtPath, Failure};

/// How long the last report may be on its way.
const DELIVERY_LIMIT: Duration = Duration::from_secs(5);
/// How often the record is looked at.
const GLANCE: Duration = Duration::from_millis(20);
/// How long to look for reports that should not come.
const SETTLE: Duration = Duration::from_millis(200);

/// Waits for a report of each run and shows them. Returns whether the governor has exactly one of each,
/// the same as the agent got, and none of what did not run.
///
/// # Errors
/// When the record cannot be read.
pub(super) fn show(record: &Path, steps: &[Step]) -> Result<bool, Failure> {
    let runs = steps.iter().filter(|step| step.reply.report().is_some()).count();
    let began = run::now();
    while reports(record)?.len() < runs && began.elapsed() < DELIVERY_LIMIT {
        thread::sleep(GLANCE);
    }
    thread::sleep(SETTLE);
    let received = reports(record)?;

    say(painted("\nWhat the governor received", Ink::Bold));
    let mut agree = received.len() == runs;
    for report in &received {
        let number = steps.iter().position(|step| step.reply.report() == Some(report));
        agree &= number.is_some();
        say(summary(report, number.map(|index| index + 1)));
    }
    for (index, step) in steps.iter().enumerate() {
        let copies = received.iter().filter(|report| step.reply.report() == Some(report)).count();
        if step.reply.report().is_some() && copies != 1 {
            agree = false;
            say(painted(&format!("✗ step {}: {copies} reports instead of one", index + 1), Ink::Red));
        }
    }
    let apart = received.iter().filter(|report| report.pointer("/usage/process").is_some()).count();
    if apart == runs {
        say(format_args!("{} every run had a process of its own", painted("✓", Ink::Green)));
    } else {
        agree = false;
        say(painted(&format!("✗ only {apart} of {runs} runs had a process of their own"), Ink::Red));
    }
    let not_run = steps.len() - runs;
    if agree {
        let sentence = format!(
            "{runs} runs, {runs} reports, the same as the agent's; none for {not_run} that did not run"
        );
        say(format_args!("{} {sentence}", painted("✓", Ink::Green)));
    } else {
        let sentence = format!("✗ {} reports for {runs} runs", received.len());
        say(painted(&sentence, Ink::Red));
    }
    Ok(agree)
}

/// The complete lines of the record.
fn reports(record: &Path) -> Result<Vec<Value>, Failure> {
    let text = fs::read_to_string(record).at(record)?;
    let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
    let parse = |line: &str| {
        serde_json::from_str(line)
            .map_err(|error| Failure::Program(format!("a line of {} is no JSON: {error}", record.display())))
    };
    complete.lines().map(parse).collect()
}

fn summary(report: &Value, step: Option<usize>) -> String {
    let text = |pointer: &str| match report.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "?".to_owned(),
    };
    let step =
        step.map_or_else(|| painted("an unknown report", Ink::Red), |number| format!("step {number:>2}"));
    format!(
        "  {step}  {:.8}  {:<7} {:>5} ms  cpu {:>5} %  memory {:>2} MB  process {:>2} MB",
        text("/intent_id"),
        text("/status"),
        text("/metrics/duration_ms"),
        text("/metrics/cpu_percent"),
        text("/metrics/memory_used_mb"),
        text("/usage/process/peak_resident_mb"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::reply::Reply;
    use super::*;
    use serde_json::json;

    fn step(answer: Value) -> Step {
        Step { asked: "something", reply: Reply(answer), note: String::new(), unexpected: None }
    }

    #[test]
    fn only_one_equal_report_for_each_run_agrees() {
        let report = json!({ "intent_id": "one", "status": "SUCCESS", "usage": { "process": {} } });
        let ran = || step(json!({ "result": { "report": report } }));
        let denied = || step(json!({ "error": { "code": -32000 } }));
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join("reports.ndjson");
        let other = json!({ "intent_id": "one", "status": "FAILURE" });
        for (lines, agree) in [
            (vec![&report], true),
            (vec![&report, &report], false),
            (vec![&report, &other], false),
            (vec![&other], false),
        ] {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            fs::write(&record, text).unwrap();
            assert_eq!(show(&record, &[ran(), denied()]).unwrap(), agree, "{lines:?}");
        }
        fs::write(&record, format!("{report}\n")).unwrap();
        assert!(!show(&record, &[denied()]).unwrap(), "nothing ran, and a report came");
    }
}
