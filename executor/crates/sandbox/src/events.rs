//! Events of a run in progress.
//!
//! The process that runs a guest can be killed at any moment, and its memory is lost with it. It therefore
//! sends each event as it happens, and [`super::Execution::record_event`] repeats the accounting in the server. The
//! events of each kind are bounded, so that a guest cannot flood the server.

use super::state::EffectiveLimits;
use a2g_types::outcome::{Artifact, DenialReason, LogLevel, Progress};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// One event of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// The limits as read back from the live store. Sent once, before the guest's first instruction.
    EffectiveLimits(EffectiveLimits),
    /// A new peak of guest memories and tables, in bytes. Sent once per MB.
    MemoryPeak(u64),
    /// A log line. The number of lines is bounded.
    Log(LogLevel, String),
    /// A progress message of the guest.
    Progress(Progress),
    /// A complete artifact.
    Artifact(Artifact),
    /// A denial, its reason and its count. Sent the first time, and whenever the count has doubled.
    Denied(String, DenialReason, u64),
}

/// The receiver of a run's events. The default discards them, for a guest in the process that makes the report.
#[derive(Clone, Default)]
pub struct EventSink(Option<Arc<dyn Fn(Event) + Send + Sync>>);

impl EventSink {
    /// Calls `callback` with every event, on the guest's own thread.
    #[must_use]
    pub fn new(callback: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(callback)))
    }

    pub(super) fn emit(&self, event: impl FnOnce() -> Event) {
        if let Some(callback) = &self.0 {
            callback(event());
        }
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "EventSink(callback)" } else { "EventSink(none)" })
    }
}
