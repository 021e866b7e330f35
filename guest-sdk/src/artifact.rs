//! The writer of one artifact.
//!
//! ```text
//! artifact_writer ──▶ open ──write──▶ open ──finish──▶ complete
//!                       └────────drop───────▶ incomplete, and reported as such
//! ```

use std::io::{self, Write};

use crate::ToolError;
use crate::host::Host;

/// Size of one chunk: large enough that the cost of a host call does not matter, small enough that
/// neither side has much of the artifact in memory.
const CHUNK_BYTES: usize = 64 * 1024;

/// Writes one artifact in chunks; [`finish`](Self::finish) completes it. Writing fails only if the executor
/// refuses the name or the media type; [`Context::artifact_writer`](crate::Context::artifact_writer) lists the rules.
///
/// If a writer is dropped before `finish`, for example by `?`, the artifact remains incomplete, so that half a report
/// is never mistaken for a whole one.
#[derive(Debug)]
#[must_use = "an artifact is complete only after `finish`"]
pub struct ArtifactWriter<'a> {
    host: &'a Host,
    name: String,
    mime: String,
    pending: Vec<u8>,
}

impl<'a> ArtifactWriter<'a> {
    pub(crate) fn new(host: &'a Host, name: &str, mime: &str) -> Self {
        Self { host, name: name.to_owned(), mime: mime.to_owned(), pending: Vec::new() }
    }

    /// Sends the remaining bytes and completes the artifact.
    ///
    /// # Errors
    /// `invalid` if the executor refuses the name or the media type.
    pub fn finish(self) -> Result<(), ToolError> {
        self.send(&self.pending, true)
    }

    pub(crate) fn append(&mut self, mut bytes: &[u8]) -> Result<(), ToolError> {
        while self.pending.len() + bytes.len() > CHUNK_BYTES {
            let room = CHUNK_BYTES - self.pending.len();
            let (head, tail) = bytes.split_at(room);
            self.pending.extend_from_slice(head);
            self.send_pending()?;
            bytes = tail;
        }
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    fn send_pending(&mut self) -> Result<(), ToolError> {
        if !self.pending.is_empty() {
            self.send(&self.pending, false)?;
            self.pending.clear();
        }
        Ok(())
    }

    fn send(&self, chunk: &[u8], last: bool) -> Result<(), ToolError> {
        self.host.artifact(&self.name, &self.mime, chunk, last)
    }
}

impl Write for ArtifactWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(artifact_error)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_pending().map_err(artifact_error)
    }
}

fn artifact_error(error: ToolError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
