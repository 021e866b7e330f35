//! The output of a guest under one limit: standard output and error, logs, progress and artifacts.
//!
//! The streams replace wasmtime's: they accept bytes only while the limit allows, never buffer ahead of it,
//! and an empty write never makes the host allocate.

use super::events::{Event, EventSink};
use super::label::{LabelError, check_media_type, check_name};
use super::termination::TerminationReason;
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

/// The largest single write that a stream permits.
const MAX_WRITE_BYTES: usize = 64 << 10;
/// The longest log line, in bytes; a longer one is split.
const MAX_LINE_BYTES: usize = 8 << 10;
/// The most log lines that are stored.
// The output limit counts bytes; an entry costs the host more than its bytes, so entries have limits of their own.
const MAX_LOG_LINES: usize = 10_000;
const MAX_ARTIFACTS: usize = 1_000;
/// The most progress messages that are reported while the guest runs. The last one is always in the report.
const MAX_PROGRESS: usize = 10_000;
/// The number of bytes of standard error that a report quotes when a command fails.
const STDERR_TAIL: usize = 2 << 10;

/// The output of one execution so far.
#[derive(Debug)]
pub(super) struct OutputCollector {
    limit: Bound<OutputLimit>,
    collected: Mutex<CollectedOutput>,
    events: EventSink,
}

#[derive(Debug, Default)]
struct CollectedOutput {
    bytes: u64,
    stdout: Vec<u8>,
    /// The last line of standard error while it has no line end yet.
    stderr_line: Vec<u8>,
    progress_seen: usize,
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
    pub(super) fn new(limit: Bound<OutputLimit>, events: EventSink) -> Self {
        Self { limit, collected: Mutex::default(), events }
    }

    pub(super) fn limit(&self) -> Bound<OutputLimit> {
        self.limit
    }

    /// Bytes charged so far.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, CollectedOutput> {
        self.collected.lock()
    }

    /// Charges `added` bytes to the limit, or ends the run.
    fn charge(&self, collected: &mut CollectedOutput, added: usize) -> Result<(), TerminationReason> {
        let total = collected.bytes.saturating_add(u64::try_from(added).unwrap_or(u64::MAX));
        if total > self.limit.value.bytes() {
            collected.output.truncated = true;
            return Err(TerminationReason::Limit(Limit::Output));
        }
        collected.bytes = total;
        Ok(())
    }

    fn write(&self, channel: StdStream, bytes: &[u8]) -> Result<(), TerminationReason> {
        let mut collected = self.lock();
        self.charge(&mut collected, bytes.len())?;
        match channel {
            StdStream::Stdout => collected.stdout.extend_from_slice(bytes),
            StdStream::Stderr => {
                // Lines are completed as they arrive, so that each is reported while the guest still runs.
                for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
                    collected.stderr_line.extend_from_slice(piece);
                    if piece.ends_with(b"\n") || collected.stderr_line.len() >= MAX_LINE_BYTES {
                        self.end_stderr_line(&mut collected);
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn log(&self, level: LogLevel, message: &str) -> Result<(), TerminationReason> {
        let mut collected = self.lock();
        // Counts as much as the same line on standard error, line end included.
        self.charge(&mut collected, message.len() + 1)?;
        self.push_log_line(&mut collected, level, message);
        Ok(())
    }

    pub(super) fn progress(&self, percent: Option<f32>, message: &str) -> Result<(), TerminationReason> {
        let mut collected = self.lock();
        self.charge(&mut collected, message.len() + 1)?;
        let percent = percent.filter(|percent| percent.is_finite()).map(|percent| percent.clamp(0.0, 100.0));
        let progress = Progress { percent, message: printable(message) };
        collected.progress_seen += 1;
        if collected.progress_seen <= MAX_PROGRESS {
            self.events.emit(|| Event::Progress(progress.clone()));
        }
        collected.output.progress = Some(progress);
        Ok(())
    }

    /// Accepts one chunk of an artifact, the media type with the first. An invalid name or media type is an error
    /// for the guest, and nothing of that artifact is stored.
    pub(super) fn artifact(
        &self,
        name: &str,
        mime: &str,
        chunk: &[u8],
        last: bool,
    ) -> Result<Result<(), LabelError>, TerminationReason> {
        let mut collected = self.lock();
        let open = collected.open_artifacts.iter().position(|artifact| artifact.name == name);
        if open.is_none()
            && let Err(refused) = check_name(name).and_then(|()| check_media_type(mime))
        {
            return Ok(Err(refused));
        }
        if open.is_none()
            && collected.open_artifacts.len() + collected.output.artifacts.len() >= MAX_ARTIFACTS
        {
            collected.output.truncated = true;
            return Err(TerminationReason::Limit(Limit::Output));
        }
        // The labels count once, with the first chunk.
        let named = if open.is_some() { 0 } else { name.len() + mime.len() + 1 };
        self.charge(&mut collected, chunk.len() + named)?;
        let index = open.unwrap_or_else(|| {
            collected.open_artifacts.push(Artifact {
                name: name.into(),
                mime: mime.into(),
                content: Vec::new(),
            });
            collected.open_artifacts.len() - 1
        });
        if let Some(artifact) = collected.open_artifacts.get_mut(index) {
            artifact.content.extend_from_slice(chunk);
        }
        if last {
            let artifact = collected.open_artifacts.remove(index);
            self.events.emit(|| Event::Artifact(artifact.clone()));
            collected.output.artifacts.push(artifact);
        }
        Ok(Ok(()))
    }

    fn end_stderr_line(&self, collected: &mut CollectedOutput) {
        let line = std::mem::take(&mut collected.stderr_line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches(['\n', '\r']);
        if !text.is_empty() {
            self.push_log_line(collected, LogLevel::Info, text);
        }
    }

    fn push_log_line(&self, collected: &mut CollectedOutput, level: LogLevel, message: &str) {
        if collected.output.logs.len() < MAX_LOG_LINES {
            let message = printable(message);
            self.events.emit(|| Event::Log(level, message.clone()));
            collected.output.logs.push(LogLine { level, message });
        } else {
            collected.output.truncated = true;
        }
    }

    /// Charges `added` bytes that another process reports, if they can be within the limit.
    fn has_room(&self, collected: &mut CollectedOutput, added: usize) -> bool {
        let total = collected.bytes.saturating_add(u64::try_from(added).unwrap_or(u64::MAX));
        // The other process counted raw bytes. A control character becomes up to six when it is escaped, so an
        // honest child stays below six times the limit.
        let fits = total <= self.limit.value.bytes().saturating_mul(6);
        if fits {
            collected.bytes = total;
        } else {
            collected.output.truncated = true;
        }
        fits
    }

    /// Records a line that another process has already counted against the limit.
    pub(super) fn record_remote_line(&self, level: LogLevel, message: &str) {
        let mut collected = self.lock();
        if !self.has_room(&mut collected, message.len()) {
            return;
        }
        self.push_log_line(&mut collected, level, message);
    }

    /// See [`Self::record_remote_line`].
    pub(super) fn record_remote_progress(&self, progress: Progress) {
        let mut collected = self.lock();
        let bytes = collected.bytes;
        if !self.has_room(&mut collected, progress.message.len()) {
            return;
        }
        // The next message replaces this one, so its bytes are not held against those that follow.
        collected.bytes = bytes;
        let progress = Progress { message: printable(&progress.message), ..progress };
        collected.progress_seen += 1;
        if collected.progress_seen <= MAX_PROGRESS {
            self.events.emit(|| Event::Progress(progress.clone()));
        }
        collected.output.progress = Some(progress);
    }

    /// See [`Self::record_remote_line`].
    pub(super) fn record_remote_artifact(&self, artifact: Artifact) {
        let mut collected = self.lock();
        let bytes = artifact.content.len() + artifact.name.len() + artifact.mime.len();
        if !self.has_room(&mut collected, bytes) {
            return;
        }
        // The child has checked the labels too, but a compromised child can send any.
        let is_checked = check_name(&artifact.name).and_then(|()| check_media_type(&artifact.mime)).is_ok();
        if is_checked && collected.output.artifacts.len() < MAX_ARTIFACTS {
            self.events.emit(|| Event::Artifact(artifact.clone()));
            collected.output.artifacts.push(artifact);
        } else {
            collected.output.truncated = true;
        }
    }

    /// Charges a typed tool's result of `length` bytes to the limit.
    pub(super) fn charge_result(&self, length: usize) -> Result<(), TerminationReason> {
        let mut collected = self.lock();
        self.charge(&mut collected, length)
    }

    pub(super) fn take_stdout(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().stdout)
    }

    /// The end of standard error as printable text, in whole lines.
    pub(super) fn stderr_tail(&self) -> String {
        let mut collected = self.lock();
        self.end_stderr_line(&mut collected);
        let mut tail = Vec::new();
        let mut length = 0;
        for line in collected.output.logs.iter().rev() {
            length += line.message.len() + 1;
            if length > STDERR_TAIL {
                break;
            }
            tail.push(line.message.as_str());
        }
        tail.reverse();
        tail.join("\n")
    }

    /// The output besides the result. An unfinished line or artifact is completed with its content so far.
    pub(super) fn finish(&self) -> RunOutput {
        let mut collected = self.lock();
        self.end_stderr_line(&mut collected);
        let unfinished = std::mem::take(&mut collected.open_artifacts);
        unfinished.iter().for_each(|artifact| self.events.emit(|| Event::Artifact(artifact.clone())));
        let mut output = std::mem::take(&mut collected.output);
        output.truncated |= !unfinished.is_empty();
        output.artifacts.extend(unfinished);
        output
    }
}

/// Escapes control characters, so that no log can move a terminal's cursor.
fn printable(text: &str) -> String {
    if text.chars().all(|c| !c.is_control() || c == '\t' || c == '\n') {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\t' && c != '\n' {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// One standard stream of a guest.
#[derive(Clone)]
pub(super) struct GuestStream {
    pub(super) collector: Arc<OutputCollector>,
    pub(super) channel: StdStream,
    /// Bytes go to the executor's own standard stream instead of being recorded.
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
        self.collector.write(self.channel, bytes).map_err(|stop| StreamError::Trap(stop.into()))
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
    use a2g_types::limit::Layer;

    fn collector(bytes: u64) -> OutputCollector {
        let value = OutputLimit::from_bytes(bytes).unwrap();
        OutputCollector::new(Bound { value, layer: Layer::Verdict }, EventSink::default())
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
    fn many_small_things_cost_no_unbounded_memory() {
        let collector = collector(1 << 30);
        for _ in 0..=MAX_LOG_LINES {
            collector.log(LogLevel::Info, "").unwrap();
        }
        for i in 0..MAX_ARTIFACTS {
            collector.artifact(&i.to_string(), "a/b", b"", i % 2 == 0).unwrap().unwrap();
        }
        assert!(collector.artifact("one more", "a/b", b"", true).is_err());
        let output = collector.finish();
        assert_eq!((output.logs.len(), output.artifacts.len()), (MAX_LOG_LINES, MAX_ARTIFACTS));
        assert!(output.truncated);
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
    fn an_artifact_with_a_bad_name_or_type_reaches_nobody() {
        let collector = collector(1000);
        let refused = [("a/b", "text/plain"), ("a", ""), ("a", "text")];
        for (name, mime) in refused {
            assert!(collector.artifact(name, mime, b"x", true).unwrap().is_err(), "{name} {mime}");
            let artifact = Artifact { name: name.into(), mime: mime.into(), content: Vec::new() };
            collector.record_remote_artifact(artifact);
        }
        let output = collector.finish();
        assert!(output.artifacts.is_empty() && output.truncated);
    }

    #[test]
    fn artifacts_are_joined_by_name() {
        let collector = collector(1000);
        collector.artifact("a", "text/plain", b"one ", false).unwrap().unwrap();
        collector.artifact("b", "text/plain", b"other", true).unwrap().unwrap();
        collector.artifact("a", "", b"two", true).unwrap().unwrap();
        let artifacts = collector.finish().artifacts;
        let seen = artifacts.iter().map(|a| (a.name.as_str(), a.content.as_slice())).collect::<Vec<_>>();
        assert_eq!(seen, [("b", b"other".as_slice()), ("a", b"one two".as_slice())]);
    }
}
