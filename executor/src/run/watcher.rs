//! What a run shows while it goes on, for a door that streams it, and what a door keeps with it on the disk.

use crate::journal::KeptTask;
use crate::outcome::{Artifact, LogLine, Progress, Receipt};
use crate::sandbox::{Event, EventSink};
use crate::verdict::Verdict;
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

/// What a door keeps of a run, on the disk with the run's own record: neither is there without the other.
pub trait Keeper: Send + Sync {
    /// It has to wait before it runs, as long as a governor, a person or others like. May be told more than once.
    fn waits(&self);
    /// What is kept if the process ends while it runs; `None` for a task that is kept already.
    fn will(&self) -> Option<KeptTask>;
    /// What is kept with its receipt, under the governor's verdict when the governor was asked.
    fn end(&self, receipt: &Receipt, verdict: Option<&Verdict>) -> KeptTask;
}

/// Who is told, and who keeps something.
#[derive(Clone, Default)]
pub struct Watcher {
    each: Option<Arc<dyn Fn(Happening) + Send + Sync>>,
    keeper: Option<Arc<dyn Keeper>>,
}

impl Watcher {
    /// Nobody.
    #[must_use]
    pub fn nobody() -> Self {
        Self::default()
    }

    /// `each` is told of everything, in order, on the run's own thread: it must not wait. Nothing is told
    /// twice; a guest that is stuck past its deadline may still be heard after the answer.
    #[must_use]
    pub fn new(each: impl Fn(Happening) + Send + Sync + 'static) -> Self {
        Self { each: Some(Arc::new(each)), keeper: None }
    }

    /// The same, and `keeper` keeps something of the run.
    #[must_use]
    pub fn kept_by(self, keeper: Arc<dyn Keeper>) -> Self {
        Self { keeper: Some(keeper), ..self }
    }

    /// Who keeps something of the run.
    pub(super) fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        self.keeper.clone()
    }

    /// It has to wait before it runs.
    pub(super) fn waits(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.waits();
        }
    }

    pub(super) fn told(&self, happening: Happening) {
        if let Some(each) = &self.each {
            each(happening);
        }
    }

    /// What the sandbox tells it.
    pub(super) fn event_sink(&self) -> EventSink {
        let Some(each) = self.each.clone() else { return EventSink::default() };
        EventSink::new(move |event| match event {
            Event::Progress(progress) => each(Happening::Progress(progress)),
            Event::Log(level, message) => each(Happening::Log(LogLine { level, message })),
            Event::Artifact(artifact) => each(Happening::Artifact(artifact)),
            Event::EffectiveLimits(_) | Event::MemoryPeak(_) | Event::Denied(..) => {}
        })
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.each.is_some() { "Watcher(someone)" } else { "Watcher(nobody)" })
    }
}
