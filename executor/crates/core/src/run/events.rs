//! The events of a run for a door that streams them, and the task that a door stores with the run.

use a2g_journal::JournalTask;
use a2g_sandbox::{Event, EventSink};
use a2g_types::outcome::{Artifact, LogLine, Progress, Receipt};
use a2g_types::verdict::Verdict;
use std::fmt;
use std::sync::Arc;

/// An event of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEvent {
    /// The intent has a slot, its start is in the journal, and its guest is about to run.
    Started,
    /// The tool reported its progress.
    Progress(Progress),
    /// The tool wrote a log line.
    Log(LogLine),
    /// The tool completed an artifact.
    Artifact(Artifact),
}

/// Provides the task of a door, which is stored in the same transaction as the record of its run.
pub trait TaskPersistence: Send + Sync {
    /// Called, possibly several times, when the intent has to wait for a governor, a person or a slot.
    fn on_wait(&self);
    /// The task to store if the process ends during the run; `None` for a task that is already stored.
    fn fallback_task(&self) -> Option<JournalTask>;
    /// The task to store with the receipt. `verdict` is the governor's, if the governor was asked.
    fn final_task(&self, receipt: &Receipt, verdict: Option<&Verdict>) -> JournalTask;
}

/// Receives the events of a run, and provides its task.
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
    /// guest that does not stop at its deadline may arrive after the answer.
    #[must_use]
    pub fn new(on_event: impl Fn(RunEvent) + Send + Sync + 'static) -> Self {
        Self { on_event: Some(Arc::new(on_event)), persistence: None }
    }

    /// Stores, together with the run, the task that `persistence` provides.
    #[must_use]
    pub fn with_persistence(self, persistence: Arc<dyn TaskPersistence>) -> Self {
        Self { persistence: Some(persistence), ..self }
    }

    pub(super) fn persistence(&self) -> Option<Arc<dyn TaskPersistence>> {
        self.persistence.clone()
    }

    /// Returns `true` for the call of a task, whose caller does not have to wait for the end.
    pub(super) fn has_task(&self) -> bool {
        self.persistence.is_some()
    }

    /// The sink without the task.
    pub(super) fn without_task(self) -> Self {
        Self { persistence: None, ..self }
    }

    /// Calls [`TaskPersistence::on_wait`].
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

    /// The sink for the sandbox's events, which forwards them to this one.
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
