//! What a run shows while it goes on, for a door that streams it.

use crate::outcome::{Artifact, LogLine, Progress};
use crate::sandbox::{Event, Witness};
use std::fmt;
use std::sync::Arc;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Happening {
    /// The intent has a slot and its start is in the journal: its guest runs from here on.
    Started,
    /// The tool said how far it is.
    Progress(Progress),
    /// The tool wrote a log line.
    Log(LogLine),
    /// An artifact is complete.
    Artifact(Artifact),
}

/// Who is told.
#[derive(Clone)]
pub struct Watcher(Option<Arc<dyn Fn(Happening) + Send + Sync>>);

impl Watcher {
    /// Nobody.
    #[must_use]
    pub fn nobody() -> Self {
        Self(None)
    }

    /// `each` is told of everything, in order, on the run's own thread: it must not wait. Nothing is told
    /// twice; a guest that is stuck past its deadline may still be heard after the answer.
    #[must_use]
    pub fn new(each: impl Fn(Happening) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(each)))
    }

    pub(super) fn told(&self, happening: Happening) {
        if let Some(each) = &self.0 {
            each(happening);
        }
    }

    /// What the sandbox tells it.
    pub(super) fn witness(&self) -> Witness {
        let Some(each) = self.0.clone() else { return Witness::default() };
        Witness::new(move |event| match event {
            Event::Progress(progress) => each(Happening::Progress(progress)),
            Event::Log(level, message) => each(Happening::Log(LogLine { level, message })),
            Event::Artifact(artifact) => each(Happening::Artifact(artifact)),
            Event::InForce(_) | Event::MemoryPeak(_) | Event::Denied(..) => {}
        })
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Watcher(someone)" } else { "Watcher(nobody)" })
    }
}
