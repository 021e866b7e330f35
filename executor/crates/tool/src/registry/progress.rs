//! The progress of a transfer, on standard error: one line that is updated on a terminal, otherwise a line every few
//! seconds. A transfer of less than a second shows nothing.

use a2g_command::output::note;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;
use tokio::time::Instant;

/// The delay before the first line.
const DELAY: Duration = Duration::from_secs(1);
/// The interval between updates on a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);
/// The interval between lines elsewhere.
const LINE_INTERVAL: Duration = Duration::from_secs(3);

/// The progress of one transfer.
pub(super) struct Progress {
    what: &'static str,
    bytes: u64,
    is_terminal: bool,
    started: Instant,
    shown: Option<Instant>,
}

impl Progress {
    /// Starts the progress of a transfer of `bytes`.
    pub(super) fn start(what: &'static str, bytes: u64) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { what, bytes, is_terminal, started: a2g_runtime::timer_now(), shown: None }
    }

    /// Shows that `done` bytes are transferred, if an update is due.
    pub(super) fn show(&mut self, done: u64) {
        let now = a2g_runtime::timer_now();
        let interval = if self.is_terminal { TERMINAL_INTERVAL } else { LINE_INTERVAL };
        let is_due = match self.shown {
            None => now - self.started >= DELAY,
            Some(shown) => now - shown >= interval,
        };
        if is_due {
            self.shown = Some(now);
            self.write(done);
        }
    }

    /// Ends the progress. The last line is shown only if an earlier one was.
    pub(super) fn end(&self, done: u64) {
        if self.shown.is_some() {
            self.write(done);
            if self.is_terminal {
                let _closed = writeln!(std::io::stderr());
            }
        }
    }

    fn write(&self, done: u64) {
        let Self { what, bytes, is_terminal, .. } = self;
        let percent = done.saturating_mul(100) / (*bytes).max(1);
        let text = format!("{what}: {} of {} ({percent} %)", megabytes(done), megabytes(*bytes));
        if *is_terminal {
            let _closed = write!(std::io::stderr(), "\r{text}  ");
        } else {
            note(text);
        }
    }
}

/// A size in MB, with one decimal.
fn megabytes(bytes: u64) -> String {
    let tenths = bytes / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_decimal() {
        assert_eq!(
            [0, 99_999, 100_000, 17_300_000].map(megabytes),
            ["0.0 MB", "0.0 MB", "0.1 MB", "17.3 MB"]
        );
    }
}
