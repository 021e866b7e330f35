//! The events of a run, for a door that streams them, and the task that a door stores with a run.

use crate::journal::JournalTask;
use crate::outcome::{Artifact, LogLine, Progress, Receipt};
use crate::sandbox::{Event, EventSink};
use crate::verdict::Verdict;
use std::fmt;
use std::sync::Arc;

/// An event of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Happening {
    /// The intent has a slot and its start is in the journal: its guest runs from here on.
    Started,
    /// The tool reported its progress.
    Progress(Progress),
    /// The tool wrote a log line.
    Log(LogLine),
    /// An artifact is complete.
    Artifact(Artifact),
}

/// The task that a door stores with a run, in the same transaction as the run's own record.
pub trait Keeper: Send + Sync {
    /// The intent has to wait before it runs, for a governor, a person or other intents. May be called more than once.
    fn waits(&self);
    /// The task that is stored if the process ends during the run; `None` for a task that is stored already.
    fn will(&self) -> Option<JournalTask>;
    /// The task that is stored with the receipt. `verdict` is the governor's, if the governor was asked.
    fn end(&self, receipt: &Receipt, verdict: Option<&Verdict>) -> JournalTask;
}

/// The receiver of a run's events, and the keeper of its task.
#[derive(Clone, Default)]
pub struct Watcher {
    each: Option<Arc<dyn Fn(Happening) + Send + Sync>>,
    keeper: Option<Arc<dyn Keeper>>,
}

impl Watcher {
    /// A watcher that receives no events.
    #[must_use]
    pub fn nobody() -> Self {
        Self::default()
    }

    /// Passes every event to `each`, once and in order, on the run's own thread: it must not block. Events of a guest
    /// that is stuck past its deadline may arrive after the answer.
    #[must_use]
    pub fn new(each: impl Fn(Happening) + Send + Sync + 'static) -> Self {
        Self { each: Some(Arc::new(each)), keeper: None }
    }

    /// Adds a keeper for the run's task.
    #[must_use]
    pub fn kept_by(self, keeper: Arc<dyn Keeper>) -> Self {
        Self { keeper: Some(keeper), ..self }
    }

    pub(super) fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        self.keeper.clone()
    }

    /// Notifies the keeper that the intent has to wait.
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

    /// Forwards the sandbox's events to this watcher.
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
