//! The channel from a running tool to the executor: log, progress, artifacts and calls to other tools.
//!
//! Only an artifact can be refused, because of its name or its media type.

use crate::artifact::ArtifactWriter;
use crate::host::Host;
use crate::{ToolError, Tools};

/// Importance of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// For the author of the tool.
    Debug,
    /// For the people who follow the execution.
    Info,
    /// The result is valid, but something about it deserves attention.
    Warn,
    /// Part of the work failed.
    Error,
}

/// The executor as the tool sees it during one invocation.
#[derive(Debug, Default)]
pub struct Context {
    pub(crate) host: Host,
}

impl Context {
    /// Adds one line to the log of this invocation.
    pub fn log(&self, level: Level, message: impl AsRef<str>) {
        self.host.log(level, message.as_ref());
    }

    /// Reports the current step and, if known, the progress in percent: `progress(50.0, "halfway")` or
    /// `progress(None, "reading")`. A percentage is clamped to 0 to 100.
    pub fn progress(&self, percent: impl Into<Option<f32>>, message: impl AsRef<str>) {
        let percent =
            percent.into().filter(|percent| !percent.is_nan()).map(|percent| percent.clamp(0.0, 100.0));
        self.host.progress(percent, message.as_ref());
    }

    /// Sends a complete artifact: content for the caller in addition to the result, such as a report.
    ///
    /// # Errors
    /// `invalid` if the executor refuses the name or the media type; [`Self::artifact_writer`] lists the rules.
    pub fn artifact(&self, name: &str, mime: &str, content: impl AsRef<[u8]>) -> Result<(), ToolError> {
        let mut writer = self.artifact_writer(name, mime);
        writer.append(content.as_ref())?;
        writer.finish()
    }

    /// Opens an artifact that is written in pieces, so that the tool never has all of it in memory.
    ///
    /// A name has 1 to 255 bytes, is neither `.` nor `..`, and contains no `/`, no `\\` and no control, bidirectional
    /// or invisible character. A media type is `type/subtype`, such as `text/csv; charset=utf-8`, with at most 8
    /// parameters and at most 255 bytes in total. The executor refuses any other name or media type with the code
    /// `invalid` at the first chunk; a native test accepts it.
    #[must_use = "an artifact is complete only after `finish`"]
    pub fn artifact_writer(&self, name: &str, mime: &str) -> ArtifactWriter<'_> {
        ArtifactWriter::new(&self.host, name, mime)
    }

    /// The other tools that this run may call.
    #[must_use]
    pub fn tools(&self) -> Tools<'_> {
        Tools::new(&self.host)
    }
}
