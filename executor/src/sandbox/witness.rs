//! What a run shows of itself while it goes on.
//!
//! The process that runs a guest can be killed at any moment, and what it knew is gone with it. So
//! it tells what it sees as it sees it, and [`super::Execution::saw`] keeps the same books on the
//! other side. Every kind of event is bounded, so that a guest cannot keep the other side busy.

use super::state::InForce;
use crate::outcome::{Artifact, DenialReason, LogLevel, Progress};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// One thing that was seen.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// The limits, read back from the live store: once, before the guest's first instruction.
    InForce(InForce),
    /// Guest memories and tables reached a new peak: once for each MB.
    MemoryPeak(u64),
    /// A log line, at most as many as are kept.
    Log(LogLevel, String),
    /// The guest said how far it is.
    Progress(Progress),
    /// An artifact is complete.
    Artifact(Artifact),
    /// Something was denied: the first time, and whenever the count has doubled.
    Denied(String, DenialReason, u64),
}

/// Who is told. Nobody, when guest and report are in one process.
#[derive(Clone, Default)]
pub struct Witness(Option<Arc<dyn Fn(Event) + Send + Sync>>);

impl Witness {
    /// Tells `each` of every event, on the guest's own thread.
    #[must_use]
    pub fn new(each: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(each)))
    }

    pub(super) fn see(&self, event: impl FnOnce() -> Event) {
        if let Some(each) = &self.0 {
            each(event());
        }
    }
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Witness(someone)" } else { "Witness(nobody)" })
    }
}
