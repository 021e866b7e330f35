//! The A2E door: the same sessions over HTTP with server-sent events, and over standard input and output.
//!
//! ```text
//! line ─ strict_json ─▶ text ─ decode ─▶ Message ─ Session ─▶ Call ─▶ Engine::handle_intent
//!                                 Outgoing ◀─ answers, events ──┘
//! ```

mod http;
mod outgoing;
mod session;
mod session_id;
mod stdio;

pub use http::router;
pub use stdio::serve_a2e_stdio;

use a2g_core::run::Executor;
use a2g_govern::{Caller, Credential};
use a2g_http::A2eSettings;
use a2g_http::auth::{CallerDirectory, Unauthenticated};
use a2g_types::ident::IntentId;
use a2g_wire::strict_json::JsonBounds;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

struct A2eShared {
    executor: Arc<Executor>,
    settings: A2eSettings,
    bounds: JsonBounds,
    callers: CallerDirectory,
    started: Instant,
    /// The number of calls that wait for each intent. If two sessions wait for an intent, the end of one session does
    /// not cancel it.
    pending: Mutex<HashMap<IntentId, usize>>,
}

impl A2eShared {
    fn new(
        executor: Arc<Executor>,
        settings: A2eSettings,
        bounds: JsonBounds,
        callers: CallerDirectory,
    ) -> Arc<Self> {
        let started = executor.clock().monotonic();
        Arc::new(Self { executor, settings, bounds, callers, started, pending: Mutex::default() })
    }

    /// Seconds since 1970: the protocol's unit of time.
    fn timestamp(&self) -> f64 {
        let now = self.executor.clock().now();
        time::Duration::nanoseconds_i128(now.unix_timestamp_nanos()).as_seconds_f64()
    }

    fn uptime_seconds(&self) -> f64 {
        self.executor.clock().monotonic().saturating_duration_since(self.started).as_secs_f64()
    }

    fn identify(&self, credential: &Credential) -> Result<Arc<Caller>, Unauthenticated> {
        self.callers.identify(credential, self.executor.clock().now())
    }

    fn lock_pending(&self) -> MutexGuard<'_, HashMap<IntentId, usize>> {
        self.pending.lock()
    }
}

/// Counts a call that waits for an intent.
struct PendingRequest<'a> {
    shared: &'a A2eShared,
    intent: IntentId,
}

impl<'a> PendingRequest<'a> {
    fn new(shared: &'a A2eShared, intent: IntentId) -> Self {
        *shared.lock_pending().entry(intent).or_default() += 1;
        Self { shared, intent }
    }

    /// Returns `true` if no other call waits for the intent.
    fn is_exclusive(&self) -> bool {
        self.shared.lock_pending().get(&self.intent) == Some(&1)
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let mut pending = self.shared.lock_pending();
        if let Some(count) = pending.get_mut(&self.intent) {
            *count -= 1;
            if *count == 0 {
                pending.remove(&self.intent);
            }
        }
    }
}
