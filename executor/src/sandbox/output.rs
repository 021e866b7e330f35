//! The output of a guest under one limit: standard output and error, logs, progress and artifacts.
//!
//! The streams replace wasmtime's: they accept bytes only while the limit allows, never buffer ahead of it,
//! and an empty write never makes the host allocate.

use super::label::{LabelError, check_media_type, check_name};
use super::stop::Stop;
use super::witness::{Event, Witness};
use crate::limit::{Bound, Limit};
use crate::outcome::{Artifact, LogLevel, LogLine, Output, Progress};
use crate::quantity::OutputLimit;
use bytes::Bytes;
use std::io::Write;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
pub(super) struct Recorder {
    limit: Bound<OutputLimit>,
    taken: Mutex<Taken>,
    witness: Witness,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    stdout: Vec<u8>,
    /// The last line of standard error while it has no line end yet.
    stderr_line: Vec<u8>,
    progress_seen: usize,
    open_artifacts: Vec<Artifact>,
    output: Output,
}

/// One of the two standard output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channel {
    Stdout,
    Stderr,
}

impl Recorder {
    pub(super) fn new(limit: Bound<OutputLimit>, witness: Witness) -> Self {
        Self { limit, taken: Mutex::default(), witness }
    }

    pub(super) fn limit(&self) -> Bound<OutputLimit> {
        self.limit
    }

    /// Bytes charged so far.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges `added` bytes to the limit, or ends the run.
    fn charge(&self, taken: &mut Taken, added: usize) -> Result<(), Stop> {
        let total = taken.bytes.saturating_add(u64::try_from(added).unwrap_or(u64::MAX));
        if total > self.limit.value.bytes() {
            taken.output.truncated = true;
            return Err(Stop::Limit(Limit::Output));
        }
        taken.bytes = total;
        Ok(())
    }

    fn write(&self, channel: Channel, bytes: &[u8]) -> Result<(), Stop> {
        let mut taken = self.lock();
        self.charge(&mut taken, bytes.len())?;
        match channel {
            Channel::Stdout => taken.stdout.extend_from_slice(bytes),
            Channel::Stderr => {
                // Lines are completed as they arrive, so that each is reported while the guest still runs.
                for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
                    taken.stderr_line.extend_from_slice(piece);
                    if piece.ends_with(b"\n") || taken.stderr_line.len() >= MAX_LINE_BYTES {
                        self.end_stderr_line(&mut taken);
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn log(&self, level: LogLevel, message: &str) -> Result<(), Stop> {
        let mut taken = self.lock();
        // Counts as much as the same line on standard error, line end included.
        self.charge(&mut taken, message.len() + 1)?;
        self.keep_line(&mut taken, level, message);
        Ok(())
    }

    pub(super) fn progress(&self, percent: Option<f32>, message: &str) -> Result<(), Stop> {
        let mut taken = self.lock();
        self.charge(&mut taken, message.len() + 1)?;
        let percent = percent.filter(|percent| percent.is_finite()).map(|percent| percent.clamp(0.0, 100.0));
        let progress = Progress { percent, message: printable(message) };
        taken.progress_seen += 1;
        if taken.progress_seen <= MAX_PROGRESS {
            self.witness.see(|| Event::Progress(progress.clone()));
        }
        taken.output.progress = Some(progress);
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
    ) -> Result<Result<(), LabelError>, Stop> {
        let mut taken = self.lock();
        let open = taken.open_artifacts.iter().position(|artifact| artifact.name == name);
        if open.is_none()
            && let Err(refused) = check_name(name).and_then(|()| check_media_type(mime))
        {
            return Ok(Err(refused));
        }
        if open.is_none() && taken.open_artifacts.len() + taken.output.artifacts.len() >= MAX_ARTIFACTS {
            taken.output.truncated = true;
            return Err(Stop::Limit(Limit::Output));
        }
        // The labels count once, with the first chunk.
        let named = if open.is_some() { 0 } else { name.len() + mime.len() + 1 };
        self.charge(&mut taken, chunk.len() + named)?;
        let index = open.unwrap_or_else(|| {
            taken.open_artifacts.push(Artifact { name: name.into(), mime: mime.into(), content: Vec::new() });
            taken.open_artifacts.len() - 1
        });
        if let Some(artifact) = taken.open_artifacts.get_mut(index) {
            artifact.content.extend_from_slice(chunk);
        }
        if last {
            let artifact = taken.open_artifacts.remove(index);
            self.witness.see(|| Event::Artifact(artifact.clone()));
            taken.output.artifacts.push(artifact);
        }
        Ok(Ok(()))
    }

    fn end_stderr_line(&self, taken: &mut Taken) {
        let line = std::mem::take(&mut taken.stderr_line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches(['\n', '\r']);
        if !text.is_empty() {
            self.keep_line(taken, LogLevel::Info, text);
        }
    }

    fn keep_line(&self, taken: &mut Taken, level: LogLevel, message: &str) {
        if taken.output.logs.len() < MAX_LOG_LINES {
            let message = printable(message);
            self.witness.see(|| Event::Log(level, message.clone()));
            taken.output.logs.push(LogLine { level, message });
        } else {
            taken.output.truncated = true;
        }
    }

    /// Charges `added` bytes that another process reports, if they can be within the limit.
    fn has_room(&self, taken: &mut Taken, added: usize) -> bool {
        let total = taken.bytes.saturating_add(u64::try_from(added).unwrap_or(u64::MAX));
        // The other process counted raw bytes. A control character becomes up to six when it is escaped, so an
        // honest child stays below six times the limit.
        let fits = total <= self.limit.value.bytes().saturating_mul(6);
        if fits {
            taken.bytes = total;
        } else {
            taken.output.truncated = true;
        }
        fits
    }

    /// Records a line that another process has already counted against the limit.
    pub(super) fn saw_line(&self, level: LogLevel, message: &str) {
        let mut taken = self.lock();
        if !self.has_room(&mut taken, message.len()) {
            return;
        }
        self.keep_line(&mut taken, level, message);
    }

    /// See [`Self::saw_line`].
    pub(super) fn saw_progress(&self, progress: Progress) {
        let mut taken = self.lock();
        let bytes = taken.bytes;
        if !self.has_room(&mut taken, progress.message.len()) {
            return;
        }
        // The next message replaces this one, so its bytes are not held against those that follow.
        taken.bytes = bytes;
        let progress = Progress { message: printable(&progress.message), ..progress };
        taken.progress_seen += 1;
        if taken.progress_seen <= MAX_PROGRESS {
            self.witness.see(|| Event::Progress(progress.clone()));
        }
        taken.output.progress = Some(progress);
    }

    /// See [`Self::saw_line`].
    pub(super) fn saw_artifact(&self, artifact: Artifact) {
        let mut taken = self.lock();
        let bytes = artifact.content.len() + artifact.name.len() + artifact.mime.len();
        if !self.has_room(&mut taken, bytes) {
            return;
        }
        // The child has checked the labels too, but a compromised child can send any.
        let is_checked = check_name(&artifact.name).and_then(|()| check_media_type(&artifact.mime)).is_ok();
        if is_checked && taken.output.artifacts.len() < MAX_ARTIFACTS {
            self.witness.see(|| Event::Artifact(artifact.clone()));
            taken.output.artifacts.push(artifact);
        } else {
            taken.output.truncated = true;
        }
    }

    /// Charges a typed tool's result of `length` bytes to the limit.
    pub(super) fn answer(&self, length: usize) -> Result<(), Stop> {
        let mut taken = self.lock();
        self.charge(&mut taken, length)
    }

    pub(super) fn take_stdout(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().stdout)
    }

    /// The end of standard error as printable text, in whole lines.
    pub(super) fn stderr_tail(&self) -> String {
        let mut taken = self.lock();
        self.end_stderr_line(&mut taken);
        let mut tail = Vec::new();
        let mut length = 0;
        for line in taken.output.logs.iter().rev() {
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
    pub(super) fn finish(&self) -> Output {
        let mut taken = self.lock();
        self.end_stderr_line(&mut taken);
        let unfinished = std::mem::take(&mut taken.open_artifacts);
        unfinished.iter().for_each(|artifact| self.witness.see(|| Event::Artifact(artifact.clone())));
        let mut output = std::mem::take(&mut taken.output);
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
    pub(super) recorder: Arc<Recorder>,
    pub(super) channel: Channel,
    /// Bytes go to the executor's own standard stream instead of being recorded.
    pub(super) passthrough: bool,
}

impl GuestStream {
    fn take(&self, bytes: &[u8]) -> Result<(), StreamError> {
        if self.passthrough {
            let result = match self.channel {
                Channel::Stdout => {
                    std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush())
                }
                Channel::Stderr => std::io::stderr().write_all(bytes),
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
        self.recorder.write(self.channel, bytes).map_err(|stop| StreamError::Trap(stop.into()))
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
        self.take(&bytes)
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
        Poll::Ready(self.take(bytes).map(|()| bytes.len()).map_err(std::io::Error::other))
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
                Channel::Stdout => std::io::IsTerminal::is_terminal(&std::io::stdout()),
                Channel::Stderr => std::io::IsTerminal::is_terminal(&std::io::stderr()),
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
    use crate::limit::Layer;

    fn recorder(bytes: u64) -> Recorder {
        let value = OutputLimit::from_bytes(bytes).unwrap();
        Recorder::new(Bound { value, layer: Layer::Verdict }, Witness::default())
    }

    #[test]
    fn all_kinds_of_output_share_one_limit() {
        let recorder = recorder(20);
        recorder.write(Channel::Stdout, b"12345").unwrap();
        recorder.write(Channel::Stderr, b"1234\n").unwrap();
        recorder.log(LogLevel::Warn, "1234").unwrap();
        recorder.answer(5).unwrap();
        assert_eq!(recorder.bytes(), 20);
        assert!(matches!(recorder.write(Channel::Stdout, b"x"), Err(Stop::Limit(Limit::Output))));
        assert!(recorder.finish().truncated);
    }

    #[test]
    fn many_small_things_cost_no_unbounded_memory() {
        let recorder = recorder(1 << 30);
        for _ in 0..=MAX_LOG_LINES {
            recorder.log(LogLevel::Info, "").unwrap();
        }
        for i in 0..MAX_ARTIFACTS {
            recorder.artifact(&i.to_string(), "a/b", b"", i % 2 == 0).unwrap().unwrap();
        }
        assert!(recorder.artifact("one more", "a/b", b"", true).is_err());
        let output = recorder.finish();
        assert_eq!((output.logs.len(), output.artifacts.len()), (MAX_LOG_LINES, MAX_ARTIFACTS));
        assert!(output.truncated);
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        let recorder = recorder(1000);
        recorder.write(Channel::Stderr, b"\x1b[2Jred\nplain\nno end").unwrap();
        let logs = recorder.finish().logs;
        let lines = logs.iter().map(|line| line.message.as_str()).collect::<Vec<_>>();
        assert_eq!(lines, ["\\u{1b}[2Jred", "plain", "no end"]);
    }

    #[test]
    fn an_artifact_with_a_bad_name_or_type_reaches_nobody() {
        let recorder = recorder(1000);
        let refused = [("a/b", "text/plain"), ("a", ""), ("a", "text")];
        for (name, mime) in refused {
            assert!(recorder.artifact(name, mime, b"x", true).unwrap().is_err(), "{name} {mime}");
            let artifact = Artifact { name: name.into(), mime: mime.into(), content: Vec::new() };
            recorder.saw_artifact(artifact);
        }
        let output = recorder.finish();
        assert!(output.artifacts.is_empty() && output.truncated);
    }

    #[test]
    fn artifacts_are_joined_by_name() {
        let recorder = recorder(1000);
        recorder.artifact("a", "text/plain", b"one ", false).unwrap().unwrap();
        recorder.artifact("b", "text/plain", b"other", true).unwrap().unwrap();
        recorder.artifact("a", "", b"two", true).unwrap().unwrap();
        let artifacts = recorder.finish().artifacts;
        let seen = artifacts.iter().map(|a| (a.name.as_str(), a.content.as_slice())).collect::<Vec<_>>();
        assert_eq!(seen, [("b", b"other".as_slice()), ("a", b"one two".as_slice())]);
    }
}
