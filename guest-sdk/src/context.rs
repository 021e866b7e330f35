//! The ways of a tool to tell the executor something while it runs, and to call other tools. A tool behaves the same whether
//! or not somebody listens to what it tells. Only an artifact can be refused, for its name or its media type.

use crate::artifact::ArtifactWriter;
use crate::host::Host;
use crate::{ToolError, Tools};

/// Importance of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// For the author of the tool.
    Debug,
    /// For whoever follows the execution.
    Info,
    /// The result stands, but something about it deserves attention.
    Warn,
    /// Part of the work failed.
    Error,
}

/// The executor as the tool sees it, for the length of one invocation.
#[derive(Debug, Default)]
pub struct Context {
    pub(crate) host: Host,
}

impl Context {
    /// Adds one line to the log of this invocation.
    pub fn log(&self, level: Level, message: impl AsRef<str>) {
        self.host.log(level, message.as_ref());
    }

    /// Reports what the tool is doing and, where it knows, how far it is in percent: `progress(50.0,
    /// "halfway")` or `progress(None, "reading")`. A percentage is clamped to 0 to 100.
    pub fn progress(&self, percent: impl Into<Option<f32>>, message: impl AsRef<str>) {
        let percent =
            percent.into().filter(|percent| !percent.is_nan()).map(|percent| percent.clamp(0.0, 100.0));
        self.host.progress(percent, message.as_ref());
    }

    /// Hands over a whole artifact: something for the caller beside the result, such as a report.
    ///
    /// # Errors
    /// `invalid` when the executor refuses the name or the media type: [`Self::artifact_writer`] has the rules.
    pub fn artifact(&self, name: &str, mime: &str, content: impl AsRef<[u8]>) -> Result<(), ToolError> {
        let mut writer = self.artifact_writer(name, mime);
        writer.append(content.as_ref())?;
        writer.finish()
    }

    /// Opens an artifact that is written piece by piece, so that the tool never holds all of it.
    ///
    /// A name has 1 to 255 bytes, is neither `.` nor `..`, and holds no `/`, no `\\` and no control, bidirectional or
    /// invisible character. A media type is `type/subtype`, such as `text/csv; charset=utf-8`, with at most 8
    /// parameters, in 255 bytes. The executor refuses any other with the code `invalid` when the first chunk reaches
    /// it; a native test takes any.
    #[must_use = "an artifact is complete only after `finish`"]
    pub fn artifact_writer(&self, name: &str, mime: &str) -> ArtifactWriter<'_> {
        ArtifactWriter::new(&self.host, name, mime)
    }

    /// The other tools, as far as this run may call them.
    #[must_use]
    pub fn tools(&self) -> Tools<'_> {
        Tools::new(&self.host)
    }
}
