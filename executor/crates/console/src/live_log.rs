//! The latest log lines and the progress of runs that have not ended, for the pages of these runs.

use super::page::MAX_LINE_CHARS;
use a2g_core::run::{RunEvent, RunNotification};
use a2g_types::ident::IntentId;
use a2g_types::outcome::{LogLevel, Progress};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};

/// Maximum number of lines of one run. The receipt has all of them.
const MAX_LINES: usize = 50;
/// Maximum number of runs. When a further run begins to say something, the oldest one is forgotten.
const MAX_RUNS: usize = 64;

/// The output of a run so far.
#[derive(Debug, Clone, Default)]
pub(super) struct RunLog {
    /// The position of this run in the order in which runs began to say something.
    order: u64,
    /// The latest lines, each shortened.
    pub(super) lines: VecDeque<(LogLevel, String)>,
    /// `true` if earlier lines were forgotten.
    pub(super) is_shortened: bool,
    /// The latest progress.
    pub(super) progress: Option<Progress>,
}

/// The logs of the runs that have not ended.
#[derive(Debug, Default)]
pub(super) struct LiveLogs(Mutex<LogsByRun>);

#[derive(Debug, Default)]
struct LogsByRun {
    next: u64,
    by_run: HashMap<IntentId, RunLog>,
}

impl LiveLogs {
    /// Records what a run says. Called on the run's thread.
    pub(super) fn record(&self, run: IntentId, notification: RunNotification<'_>) {
        match notification {
            RunNotification::Event(RunEvent::Log(line)) => {
                let text = line.message.chars().take(MAX_LINE_CHARS + 1).collect();
                self.change(run, |log| {
                    log.lines.push_back((line.level, text));
                    if log.lines.len() > MAX_LINES {
                        log.lines.pop_front();
                        log.is_shortened = true;
                    }
                });
            }
            RunNotification::Event(RunEvent::Progress(progress)) => {
                self.change(run, |log| log.progress = Some(progress.clone()));
            }
            RunNotification::Event(RunEvent::Started | RunEvent::Artifact(_)) => {}
            RunNotification::Finished(_) => drop(self.0.lock().by_run.remove(&run)),
        }
    }

    fn change(&self, run: IntentId, change: impl FnOnce(&mut RunLog)) {
        let mut logs = self.0.lock();
        let LogsByRun { next, by_run } = &mut *logs;
        if !by_run.contains_key(&run) && by_run.len() >= MAX_RUNS {
            // A run whose receipt cannot be written stays here, so room is made by age.
            let oldest = by_run.iter().min_by_key(|(_, log)| log.order).map(|(run, _)| *run);
            oldest.and_then(|oldest| by_run.remove(&oldest));
        }
        let log = by_run.entry(run).or_insert_with(|| {
            *next += 1;
            RunLog { order: *next, ..RunLog::default() }
        });
        change(log);
    }

    /// The output of a run so far; `None` if there is none, or the run has ended.
    pub(super) fn find(&self, run: IntentId) -> Option<RunLog> {
        self.0.lock().by_run.get(&run).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::outcome::LogLine;

    fn say(logs: &LiveLogs, run: IntentId, message: &str) {
        let line = LogLine { level: LogLevel::Info, message: message.to_owned() };
        logs.record(run, RunNotification::Event(&RunEvent::Log(line)));
    }

    #[test]
    fn lines_and_runs_are_bounded() {
        let logs = LiveLogs::default();
        let run = IntentId::random();
        for number in 0..=MAX_LINES {
            say(&logs, run, &format!("{number}{}", "x".repeat(10_000)));
        }
        let log = logs.find(run).unwrap();
        assert_eq!((log.lines.len(), log.is_shortened), (MAX_LINES, true));
        assert!(log.lines.iter().all(|(_, text)| text.len() == MAX_LINE_CHARS + 1));
        assert!(log.lines[0].1.starts_with("1x"));
        (0..MAX_RUNS).for_each(|_| say(&logs, IntentId::random(), "x"));
        assert_eq!(logs.0.lock().by_run.len(), MAX_RUNS);
        assert!(logs.find(run).is_none(), "the oldest run is forgotten");
    }
}
