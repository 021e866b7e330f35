//! The output of a guest under one limit: standard output and error, logs, progress and artifacts.
//!
//! What leaves a run here has the values of its secrets replaced, in the process that has them: the server.
//!
//! The streams replace wasmtime's: they accept bytes only while the limit allows, never buffer bytes beyond the limit,
//! and do not allocate host memory for an empty write.

use super::budget::Budget;
use super::events::{Event, EventSink};
use super::label::{LabelError, check_media_type, check_name};
use super::state::CurrentStats;
use super::termination::TerminationReason;
use crate::egress::Network;
use a2g_types::limit::{Bound, Limit};
use a2g_types::outcome::{Artifact, LogLevel, LogLine, Progress, RunOutput};
use a2g_types::quantity::OutputLimit;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

/// Maximum size of a single write to a stream, in bytes.
const MAX_WRITE_BYTES: usize = 64 << 10;
/// Maximum size of a log line, in bytes; a longer one is split.
const MAX_LINE_BYTES: usize = 8 << 10;
/// Maximum number of log lines stored.
// An entry costs the host more memory than the bytes that the output limit counts, so entries have their own limits,
// here and in `Limit::Artifacts`.
const MAX_LOG_LINES: usize = 10_000;
/// Maximum number of progress messages reported while the guest runs. The last message is always in the report.
const MAX_PROGRESS: usize = 10_000;
/// The name of an artifact whose own name is none once values are replaced in it.
const REDACTED_NAME: &str = "artifact";
/// The media type of an artifact whose own type is none once values are replaced in it.
const REDACTED_MEDIA_TYPE: &str = "application/octet-stream";
/// Maximum number of bytes of standard error that a report quotes when a command fails.
const MAX_STDERR_TAIL_BYTES: usize = 2 << 10;

/// The output of one execution so far.
#[derive(Debug)]
pub(super) struct OutputCollector {
    limit: Bound<OutputLimit>,
    budget: Arc<Budget>,
    state: Mutex<CollectorState>,
    events: EventSink,
    /// The network of the run, which knows the values that are replaced.
    network: Network,
}

#[derive(Debug, Default)]
struct CollectorState {
    bytes: u64,
    stdout: Vec<u8>,
    /// The last line of standard error, as long as it has no line end.
    stderr_line: Vec<u8>,
    progress_count: usize,
    open_artifacts: Vec<Artifact>,
    output: RunOutput,
}

/// One of the two standard output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StdStream {
    Stdout,
    Stderr,
}

impl OutputCollector {
    pub(super) fn new(
        limit: Bound<OutputLimit>,
        budget: Arc<Budget>,
        events: EventSink,
        network: Network,
    ) -> Self {
        Self { limit, budget, state: Mutex::default(), events, network }
    }

    pub(super) fn limit(&self) -> Bound<OutputLimit> {
        self.limit
    }

    /// Bytes charged so far.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, CollectorState> {
        self.state.lock()
    }

    /// Charges `added` bytes to the limit, or ends the run.
    fn charge(&self, state: &mut CollectorState, added: usize) -> Result<(), TerminationReason> {
        let total = state.bytes.saturating_add(u64::try_from(added).unwrap_or(u64::MAX));
        if total > self.limit.value.bytes() {
            state.output.truncated = true;
            return Err(TerminationReason::Limit(Limit::Output));
        }
        state.bytes = total;
        Ok(())
    }

    fn write(&self, channel: StdStream, bytes: &[u8]) -> Result<(), TerminationReason> {
        let mut state = self.lock();
        self.charge(&mut state, bytes.len())?;
        match channel {
            StdStream::Stdout => state.stdout.extend_from_slice(bytes),
            StdStream::Stderr => {
                // Lines are completed as they arrive, so that each is reported while the guest still runs.
                for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
                    state.stderr_line.extend_from_slice(piece);
                    if piece.ends_with(b"\n") || state.stderr_line.len() >= MAX_LINE_BYTES {
                        self.end_stderr_line(&mut state);
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn log(&self, level: LogLevel, message: &str) -> Result<(), TerminationReason> {
        let mut state = self.lock();
        // Counts as much as the same line on standard error, line end included.
        self.charge(&mut state, message.len() + 1)?;
        self.push_log_line(&mut state, level, message);
        Ok(())
    }

    pub(super) fn set_progress(&self, percent: Option<f32>, message: &str) -> Result<(), TerminationReason> {
        let mut state = self.lock();
        self.charge(&mut state, message.len() + 1)?;
        let percent = percent.filter(|percent| percent.is_finite()).map(|percent| percent.clamp(0.0, 100.0));
        self.push_progress(&mut state, percent, message);
        Ok(())
    }

    fn push_progress(&self, state: &mut CollectorState, percent: Option<f32>, message: &str) {
        let progress = Progress { percent, message: self.network.redact_text(printable(message)) };
        state.progress_count += 1;
        if state.progress_count <= MAX_PROGRESS {
            self.events.emit(|| Event::Progress(progress.clone()));
        }
        state.output.progress = Some(progress);
    }

    /// Adds one chunk to an artifact, whose media type is taken from the first chunk. An invalid name or media type is
    /// an error for the guest, and nothing of that artifact is stored.
    pub(super) fn add_artifact_chunk(
        &self,
        name: &str,
        mime: &str,
        chunk: &[u8],
        last: bool,
    ) -> Result<Result<(), LabelError>, TerminationReason> {
        let mut state = self.lock();
        let open = state.open_artifacts.iter().position(|artifact| artifact.name == name);
        if open.is_none()
            && let Err(refused) = check_name(name).and_then(|()| check_media_type(mime))
        {
            return Ok(Err(refused));
        }
        if open.is_none()
            && let Err(reached) = self.budget.charge(Limit::Artifacts, 1)
        {
            state.output.truncated = true;
            return Err(reached);
        }
        // The labels count once, with the first chunk.
        let label_bytes = if open.is_some() { 0 } else { name.len() + mime.len() + 1 };
        self.charge(&mut state, chunk.len() + label_bytes)?;
        let index = open.unwrap_or_else(|| {
            state.open_artifacts.push(Artifact { name: name.into(), mime: mime.into(), content: Vec::new() });
            state.open_artifacts.len() - 1
        });
        if let Some(artifact) = state.open_artifacts.get_mut(index) {
            artifact.content.extend_from_slice(chunk);
        }
        if last {
            let artifact = state.open_artifacts.remove(index);
            self.push_artifact(&mut state, artifact);
        }
        Ok(Ok(()))
    }

    fn push_artifact(&self, state: &mut CollectorState, artifact: Artifact) {
        let Artifact { name, mime, content } = artifact;
        let artifact = Artifact {
            name: self.redact_label(name, check_name, REDACTED_NAME),
            mime: self.redact_label(mime, check_media_type, REDACTED_MEDIA_TYPE),
            content: self.network.redact_bytes(content),
        };
        self.events.emit(|| Event::Artifact(artifact.clone()));
        state.output.artifacts.push(artifact);
    }

    /// A label of an artifact with the values of secrets replaced, or this `other` one if the result were no label.
    fn redact_label(
        &self,
        label: String,
        check: impl Fn(&str) -> Result<(), LabelError>,
        other: &str,
    ) -> String {
        let redacted = self.network.redact_text(label);
        if check(&redacted).is_ok() { redacted } else { other.to_owned() }
    }

    fn end_stderr_line(&self, state: &mut CollectorState) {
        let line = std::mem::take(&mut state.stderr_line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches(['\n', '\r']);
        if !text.is_empty() {
            self.push_log_line(state, LogLevel::Info, text);
        }
    }

    fn push_log_line(&self, state: &mut CollectorState, level: LogLevel, message: &str) {
        if state.output.logs.len() < MAX_LOG_LINES {
            let message = self.network.redact_text(printable(message));
            self.events.emit(|| Event::Log(level, message.clone()));
            state.output.logs.push(LogLine { level, message });
        } else {
            state.output.truncated = true;
        }
    }

    /// Charges `added` bytes that another process reported. Returns `false` if the limit allows no such total.
    fn try_charge_remote(&self, state: &mut CollectorState, added: usize) -> bool {
        let total = state.bytes.saturating_add(u64::try_from(added).unwrap_or(u64::MAX));
        // The other process counted raw bytes. A control character becomes up to six when it is escaped, so an
        // honest child stays below six times the limit.
        let fits = total <= self.limit.value.bytes().saturating_mul(6);
        if fits {
            state.bytes = total;
        } else {
            state.output.truncated = true;
        }
        fits
    }

    /// Records a log line that another process has already counted against the limit.
    pub(super) fn record_remote_line(&self, level: LogLevel, message: &str) {
        let mut state = self.lock();
        if !self.try_charge_remote(&mut state, message.len()) {
            return;
        }
        self.push_log_line(&mut state, level, message);
    }

    /// Records a progress message that another process has already counted against the limit.
    pub(super) fn record_remote_progress(&self, progress: Progress) {
        let mut state = self.lock();
        let bytes = state.bytes;
        if !self.try_charge_remote(&mut state, progress.message.len()) {
            return;
        }
        // The next message replaces this one, so its bytes do not count against later output.
        state.bytes = bytes;
        self.push_progress(&mut state, progress.percent, &progress.message);
    }

    /// Records an artifact that another process has already counted against the limit.
    pub(super) fn record_remote_artifact(&self, artifact: Artifact) {
        let mut state = self.lock();
        let bytes = artifact.content.len() + artifact.name.len() + artifact.mime.len();
        if !self.try_charge_remote(&mut state, bytes) {
            return;
        }
        // The child has checked the labels too, but a compromised child can send any.
        let is_checked = check_name(&artifact.name).and_then(|()| check_media_type(&artifact.mime)).is_ok();
        if is_checked && self.budget.charge(Limit::Artifacts, 1).is_ok() {
            self.push_artifact(&mut state, artifact);
        } else {
            state.output.truncated = true;
        }
    }

    /// Charges a typed tool's result of `length` bytes to the limit.
    pub(super) fn charge_result(&self, length: usize) -> Result<(), TerminationReason> {
        let mut state = self.lock();
        self.charge(&mut state, length)
    }

    pub(super) fn take_stdout(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().stdout)
    }

    /// The end of standard error as printable text, in whole lines.
    pub(super) fn stderr_tail(&self) -> String {
        let mut state = self.lock();
        self.end_stderr_line(&mut state);
        let mut tail = Vec::new();
        let mut length = 0;
        for line in state.output.logs.iter().rev() {
            length += line.message.len() + 1;
            if length > MAX_STDERR_TAIL_BYTES {
                break;
            }
            tail.push(line.message.as_str());
        }
        tail.reverse();
        tail.join("\n")
    }

    /// Takes the output, except the result. An unfinished line or artifact is completed with its content so far.
    pub(super) fn finish(&self) -> RunOutput {
        let mut state = self.lock();
        self.end_stderr_line(&mut state);
        let unfinished = std::mem::take(&mut state.open_artifacts);
        state.output.truncated |= !unfinished.is_empty();
        for artifact in unfinished {
            self.push_artifact(&mut state, artifact);
        }
        std::mem::take(&mut state.output)
    }
}

/// Escapes control characters, so that no log can move a terminal's cursor.
fn printable(text: &str) -> String {
    if text.chars().all(|c| !c.is_control() || c == '\t' || c == '\n') {
        return text.to_owned();
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\t' && c != '\n' {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// One standard stream of a guest.
#[derive(Clone)]
pub(super) struct GuestStream {
    pub(super) current: Arc<CurrentStats>,
    pub(super) channel: StdStream,
    /// `true` if bytes go to the executor's own standard stream and are not recorded.
    pub(super) passthrough: bool,
}

impl GuestStream {
    fn consume(&self, bytes: &[u8]) -> Result<(), StreamError> {
        if self.passthrough {
            let result = match self.channel {
                StdStream::Stdout => {
                    std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush())
                }
                StdStream::Stderr => std::io::stderr().write_all(bytes),
            };
            return result.map_err(|error| {
                // `a2g-executor run … | head` ends the guest's stream, as it would end a native program's.
                if error.kind() == std::io::ErrorKind::BrokenPipe {
                    StreamError::Closed
                } else {
                    StreamError::LastOperationFailed(error.into())
                }
            });
        }
        self.current.get().collector.write(self.channel, bytes).map_err(|stop| StreamError::Trap(stop.into()))
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for GuestStream {
    // A write either fits the limit or ends the run, so there is never anything to wait for.
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl OutputStream for GuestStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.consume(&bytes)
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(MAX_WRITE_BYTES)
    }
}

impl tokio::io::AsyncWrite for GuestStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(self.consume(bytes).map(|()| bytes.len()).map_err(std::io::Error::other))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl IsTerminal for GuestStream {
    fn is_terminal(&self) -> bool {
        self.passthrough
            && match self.channel {
                StdStream::Stdout => std::io::IsTerminal::is_terminal(&std::io::stdout()),
                StdStream::Stderr => std::io::IsTerminal::is_terminal(&std::io::stderr()),
            }
    }
}

impl StdoutStream for GuestStream {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2g_types::limit::{Budgets, Layer};

    const MAX_ARTIFACTS: u64 = 9;

    fn collector(bytes: u64) -> OutputCollector {
        let value = OutputLimit::from_bytes(bytes).unwrap();
        let budget = Budget::new(Budgets::default().with(Limit::Artifacts, MAX_ARTIFACTS));
        let limit = Bound { value, layer: Layer::Verdict };
        OutputCollector::new(limit, Arc::new(budget), EventSink::default(), Network::Off)
    }

    #[test]
    fn all_kinds_of_output_share_one_limit() {
        let collector = collector(20);
        collector.write(StdStream::Stdout, b"12345").unwrap();
        collector.write(StdStream::Stderr, b"1234\n").unwrap();
        collector.log(LogLevel::Warn, "1234").unwrap();
        collector.charge_result(5).unwrap();
        assert_eq!(collector.bytes(), 20);
        assert!(matches!(
            collector.write(StdStream::Stdout, b"x"),
            Err(TerminationReason::Limit(Limit::Output))
        ));
        assert!(collector.finish().truncated);
    }

    #[test]
    fn many_small_entries_use_bounded_memory() {
        let collector = collector(1 << 30);
        for _ in 0..=MAX_LOG_LINES {
            collector.log(LogLevel::Info, "").unwrap();
        }
        for i in 0..MAX_ARTIFACTS {
            collector.add_artifact_chunk(&i.to_string(), "a/b", b"", i % 2 == 0).unwrap().unwrap();
        }
        let one_more = collector.add_artifact_chunk("one more", "a/b", b"", true);
        assert!(matches!(one_more, Err(TerminationReason::Limit(Limit::Artifacts))));
        let output = collector.finish();
        assert_eq!((output.logs.len(), output.artifacts.len()), (MAX_LOG_LINES, 9));
        assert!(output.truncated);
    }

    // A compromised child may send more than its own collector would.
    #[test]
    fn artifacts_of_another_process_have_the_same_limit() {
        let collector = collector(1 << 20);
        for i in 0..=MAX_ARTIFACTS {
            let artifact = Artifact { name: i.to_string(), mime: "a/b".into(), content: Vec::new() };
            collector.record_remote_artifact(artifact);
        }
        let output = collector.finish();
        assert_eq!((output.artifacts.len(), output.truncated), (9, true));
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        let collector = collector(1000);
        collector.write(StdStream::Stderr, b"\x1b[2Jred\nplain\nno end").unwrap();
        let logs = collector.finish().logs;
        let lines = logs.iter().map(|line| line.message.as_str()).collect::<Vec<_>>();
        assert_eq!(lines, ["\\u{1b}[2Jred", "plain", "no end"]);
    }

    #[test]
    fn an_artifact_with_an_invalid_name_or_type_is_dropped() {
        let collector = collector(1000);
        let invalid = [("a/b", "text/plain"), ("a", ""), ("a", "text")];
        for (name, mime) in invalid {
            assert!(collector.add_artifact_chunk(name, mime, b"x", true).unwrap().is_err(), "{name} {mime}");
            let artifact = Artifact { name: name.into(), mime: mime.into(), content: Vec::new() };
            collector.record_remote_artifact(artifact);
        }
        let output = collector.finish();
        assert!(output.artifacts.is_empty() && output.truncated);
    }

    #[test]
    fn artifacts_are_joined_by_name() {
        let collector = collector(1000);
        collector.add_artifact_chunk("a", "text/plain", b"one ", false).unwrap().unwrap();
        collector.add_artifact_chunk("b", "text/plain", b"other", true).unwrap().unwrap();
        collector.add_artifact_chunk("a", "", b"two", true).unwrap().unwrap();
        let artifacts = collector.finish().artifacts;
        let seen = artifacts.iter().map(|a| (a.name.as_str(), a.content.as_slice())).collect::<Vec<_>>();
        assert_eq!(seen, [("b", b"other".as_slice()), ("a", b"one two".as_slice())]);
    }
}
