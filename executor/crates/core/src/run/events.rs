//! The events of a run, for a door that streams them, and the task that a door stores with a run.

use a2g_journal::JournalTask;
use a2g_sandbox::{Event, EventSink};
use a2g_types::outcome::{Artifact, LogLine, Progress, Receipt};
use a2g_types::verdict::Verdict;
use std::fmt;
use std::sync::Arc;

/// An event of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEvent {
    /// The intent has a slot and its start is in the journal: its guest runs from here on.
    Started,
    /// The tool reported its progress.
    Progress(Progress),
    /// The tool wrote a log line.
    Log(LogLine),
    /// An artifact is complete.
    Artifact(Artifact),
}

/// The storage of a door's task with its run, in the same transaction as the run's own record.
pub trait TaskPersistence: Send + Sync {
    /// The intent has to wait before it runs, for a governor, a person or other intents. May be called more than once.
    fn on_wait(&self);
    /// The task that is stored if the process ends during the run; `None` for a task that is stored already.
    fn fallback_task(&self) -> Option<JournalTask>;
    /// The task that is stored with the receipt. `verdict` is the governor's, if the governor was asked.
    fn final_task(&self, receipt: &Receipt, verdict: Option<&Verdict>) -> JournalTask;
}

/// The receiver of a run's events, and the storage of its task.
#[derive(Clone, Default)]
pub struct RunEventSink {
    on_event: Option<Arc<dyn Fn(RunEvent) + Send + Sync>>,
    persistence: Option<Arc<dyn TaskPersistence>>,
}

impl RunEventSink {
    /// A sink that drops all events.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Passes every event to `on_event`, once and in order, on the run's own thread: it must not block. Events of a
    /// guest that is stuck past its deadline may arrive after the answer.
    #[must_use]
    pub fn new(on_event: impl Fn(RunEvent) + Send + Sync + 'static) -> Self {
        Self { on_event: Some(Arc::new(on_event)), persistence: None }
    }

    /// Stores the run's task with `persistence`.
    #[must_use]
    pub fn with_persistence(self, persistence: Arc<dyn TaskPersistence>) -> Self {
        Self { persistence: Some(persistence), ..self }
    }

    pub(super) fn persistence(&self) -> Option<Arc<dyn TaskPersistence>> {
        self.persistence.clone()
    }

    /// Reports to the task's storage that the intent has to wait.
    pub(super) fn notify_waiting(&self) {
        if let Some(persistence) = &self.persistence {
            persistence.on_wait();
        }
    }

    pub(super) fn send(&self, event: RunEvent) {
        if let Some(on_event) = &self.on_event {
            on_event(event);
        }
    }

    /// Forwards the sandbox's events to this sink.
    pub(super) fn event_sink(&self) -> EventSink {
        let Some(on_event) = self.on_event.clone() else { return EventSink::default() };
        EventSink::new(move |event| match event {
            Event::Progress(progress) => on_event(RunEvent::Progress(progress)),
            Event::Log(level, message) => on_event(RunEvent::Log(LogLine { level, message })),
            Event::Artifact(artifact) => on_event(RunEvent::Artifact(artifact)),
            Event::EffectiveLimits(_) | Event::MemoryPeak(_) | Event::Denied(..) => {}
        })
    }
}

impl fmt::Debug for RunEventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.on_event.is_some() { "RunEventSink(on)" } else { "RunEventSink(off)" })
    }
}
