//! Ends a guest from inside its store, and turns the resulting wasmtime error into an [`End`].

use super::calls::RequestRefusedError;
use super::limiter::MemoryGauge;
use super::network::NetworkDeniedError;
use super::staged::TakeBackError;
use a2g_types::limit::Limit;
use a2g_types::outcome::{AbortReason, End};
use std::sync::atomic::Ordering;
use tokio::sync::SetOnce;
use wasmtime::component::{Resource, ResourceTableError};
use wasmtime::{AsContextMut, PoolConcurrencyLimitError, Trap};

/// The executor's reason to end a guest, carried through wasmtime as an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TerminationReason {
    #[error("the {} limit was reached", .0.as_str())]
    Limit(Limit),
    #[error("{}", .0.message())]
    Aborted(AbortReason),
}

impl From<TerminationReason> for End {
    fn from(stop: TerminationReason) -> Self {
        match stop {
            TerminationReason::Limit(limit) => Self::LimitReached(limit),
            TerminationReason::Aborted(reason) => Self::Aborted(reason),
        }
    }
}

/// Stops a running guest from another thread. The first reason wins.
#[derive(Debug, Default)]
pub struct Abort(SetOnce<AbortReason>);

impl Abort {
    /// Stops the guest for `reason`, unless it was stopped before.
    pub fn trigger(&self, reason: AbortReason) {
        let _first_wins = self.0.set(reason);
    }

    /// The first reason given; `None` while the guest may run.
    #[must_use]
    pub fn reason(&self) -> Option<AbortReason> {
        self.0.get().copied()
    }

    /// Waits until [`Self::trigger`] is called, and returns the first reason.
    pub async fn wait(&self) -> AbortReason {
        *self.0.wait().await
    }
}

/// The resource type of the one handle that [`is_out_of_handles`] takes.
struct Probe;

/// Returns `true` when the store has no free handle. The store must not be used again, because the probe takes the
/// last one.
// wasmtime 48 has no error type for a component that names or lends one handle too many, only two texts, one of which
// changed in an update. A guest that holds every handle and fails in another way is also reported as out of handles,
// which is true.
pub(super) fn is_out_of_handles(store: impl AsContextMut) -> bool {
    Resource::<Probe>::new_own(0).try_into_resource_any(store).is_err()
}

/// The end of a run whose guest failed with `error`; `None` for an exit with code 0, which is not a failure.
/// `is_out_of_handles` is called only if nothing else explains the error.
pub(super) fn end_from_error(
    error: &wasmtime::Error,
    memory: &MemoryGauge,
    is_out_of_handles: impl FnOnce() -> bool,
) -> Option<End> {
    if let Some(stop) = error.downcast_ref::<TerminationReason>() {
        return Some((*stop).into());
    }
    if let Some(no_network) = error.downcast_ref::<NetworkDeniedError>() {
        return Some(End::Trapped(no_network.to_string()));
    }
    if let Some(refused) = error.downcast_ref::<RequestRefusedError>() {
        return Some(End::Trapped(refused.to_string()));
    }
    if let Some(lost) = error.downcast_ref::<TakeBackError>() {
        return Some(End::NotCommitted(lost.to_string()));
    }
    // Checked before exit codes and traps: a guest that was refused memory exits or aborts in its own way.
    let is_memory_refused = memory.refused.load(Ordering::Relaxed);
    if let Some(exit) = error.downcast_ref::<wasmtime_wasi::I32Exit>() {
        return match exit.0 {
            0 => None,
            _failed if is_memory_refused => Some(End::LimitReached(Limit::Memory)),
            code => Some(End::Exited { code, stderr_tail: String::new() }),
        };
    }
    if error.downcast_ref::<Trap>() == Some(&Trap::OutOfFuel) {
        return Some(End::LimitReached(Limit::Fuel));
    }
    if error.downcast_ref::<Trap>() == Some(&Trap::StackOverflow) {
        return Some(End::LimitReached(Limit::Stack));
    }
    // A guest that was refused memory usually aborts with an `unreachable`. An initial memory that is far too
    // large is refused by the kernel before the limiter is called.
    let is_out_of_memory = |error: &std::io::Error| error.kind() == std::io::ErrorKind::OutOfMemory;
    if is_memory_refused || error.downcast_ref().is_some_and(is_out_of_memory) {
        return Some(End::LimitReached(Limit::Memory));
    }
    if error.is::<PoolConcurrencyLimitError>() {
        return Some(End::NotStarted("too many guests are stuck in host calls to start another".to_owned()));
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        return Some(End::Trapped(trap.to_string()));
    }
    // wasmtime has an error type for a full host table, and none for a component's own handles.
    if matches!(error.downcast_ref(), Some(ResourceTableError::Full)) || is_out_of_handles() {
        return Some(End::LimitReached(Limit::Handles));
    }
    Some(End::Trapped("the guest broke the contract of a host call".to_owned()))
}
