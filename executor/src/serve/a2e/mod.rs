//! The A2E door: the same sessions over HTTP with server-sent events, and over standard input and output.
//!
//! ```text
//! line ─ strict_json ─▶ text ─ decode ─▶ Message ─ Session ─▶ Call ─▶ Executor::intent
//!                                 Outgoing ◀─ answers, events ──┘
//! ```

mod http;
mod outgoing;
mod session;
mod stdio;

pub use http::doorway;
pub use stdio::serve_a2e_stdio;

use super::doorway::DoorSettings;
use super::http::KnownCallers;
use crate::govern::{Caller, Credential};
use crate::ident::IntentId;
use crate::run::Executor;
use crate::wire::strict_json::JsonBounds;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the operator decided about this door.
#[derive(Debug, Clone)]
pub struct A2eSettings {
    /// Whom it is open to, and in whose name.
    pub door: DoorSettings,
    /// How many calls of one session run at once.
    pub max_parallel: usize,
    /// How many sessions there may be.
    pub max_sessions: usize,
    /// Of which may be one caller's.
    pub max_sessions_per_caller: usize,
    /// How long a session with calls may be without a stream before they are cancelled.
    pub reconnect: Duration,
    /// How long one without calls may be.
    pub idle: Duration,
}

/// What all sessions share.
struct Host {
    executor: Arc<Executor>,
    settings: A2eSettings,
    bounds: JsonBounds,
    known: KnownCallers,
    started: Instant,
    /// How many calls wait for each intent: one that a second session asks for again is not cancelled with
    /// the first.
    asked: Mutex<HashMap<IntentId, usize>>,
}

impl Host {
    fn new(
        executor: Arc<Executor>,
        settings: A2eSettings,
        bounds: JsonBounds,
        known: KnownCallers,
    ) -> Arc<Self> {
        let started = executor.clock().monotonic();
        Arc::new(Self { executor, settings, bounds, known, started, asked: Mutex::default() })
    }

    /// Seconds since 1970, as the protocol writes times.
    fn ts(&self) -> f64 {
        let now = self.executor.clock().now();
        time::Duration::nanoseconds_i128(now.unix_timestamp_nanos()).as_seconds_f64()
    }

    fn uptime_seconds(&self) -> f64 {
        self.executor.clock().monotonic().saturating_duration_since(self.started).as_secs_f64()
    }

    fn identify(&self, shown: &Credential) -> Option<Arc<Caller>> {
        self.known.identify(shown, self.executor.clock().now())
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<IntentId, usize>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that waits for an intent.
struct Asking<'a> {
    host: &'a Host,
    intent: IntentId,
}

impl<'a> Asking<'a> {
    fn new(host: &'a Host, intent: IntentId) -> Self {
        *host.asked().entry(intent).or_default() += 1;
        Self { host, intent }
    }

    /// Whether nobody else waits for it.
    fn is_alone(&self) -> bool {
        self.host.asked().get(&self.intent) == Some(&1)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut asked = self.host.asked();
        if let Some(count) = asked.get_mut(&self.intent) {
            *count -= 1;
            if *count == 0 {
                asked.remove(&self.intent);
            }
        }
    }
}
