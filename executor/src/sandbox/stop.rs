//! Why the executor ends a guest from inside its store, and what to make of the error that comes out.

use super::limiter::MemoryGauge;
use super::network::NetworkDeniedError;
use crate::limit::Limit;
use crate::outcome::{AbortReason, End};
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::sync::Notify;
use wasmtime::component::{Resource, ResourceTableError};
use wasmtime::{AsContextMut, PoolConcurrencyLimitError, Trap};

/// A decision of the executor, travelling as an error through wasmtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Stop {
    #[error("the {} limit was reached", .0.as_str())]
    Limit(Limit),
    #[error("{}", .0.message())]
    Aborted(AbortReason),
}

impl From<Stop> for End {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Limit(limit) => Self::LimitReached(limit),
            Stop::Aborted(reason) => Self::Aborted(reason),
        }
    }
}

/// The switch by which a running guest is stopped from outside. The first reason wins.
#[derive(Debug, Default)]
pub struct Abort {
    reason: AtomicU8,
    pulled: Notify,
}

impl Abort {
    /// Stops the guest, unless it was stopped before.
    pub fn pull(&self, reason: AbortReason) {
        let code = match reason {
            AbortReason::Cancelled => 1,
            AbortReason::Revoked => 2,
            AbortReason::Shutdown => 3,
            AbortReason::Lost => 4,
        };
        let _first_wins = self.reason.compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst);
        self.pulled.notify_waiters();
    }

    /// The reason, once there is one.
    #[must_use]
    pub fn reason(&self) -> Option<AbortReason> {
        match self.reason.load(Ordering::SeqCst) {
            0 => None,
            1 => Some(AbortReason::Cancelled),
            2 => Some(AbortReason::Revoked),
            3 => Some(AbortReason::Shutdown),
            _lost => Some(AbortReason::Lost),
        }
    }

    /// Waits for a reason.
    pub async fn wait(&self) -> AbortReason {
        loop {
            let pulled = self.pulled.notified();
            if let Some(reason) = self.reason() {
                return reason;
            }
            pulled.await;
        }
    }
}

/// Marks the one handle that [`lacks_handles`] asks for.
struct Probe;

/// `true` when the store can name no further resource. The store is not used again: the probe takes what may be the
/// last handle.
pub(super) fn lacks_handles(store: impl AsContextMut) -> bool {
    Resource::<Probe>::new_own(0).try_into_resource_any(store).is_err()
}

/// The end of a run whose guest failed with `error`; `lacks_handles` says whether the store has no handle left. An exit
/// with code 0 is no error, and is `None`.
pub(super) fn end_of(
    error: &wasmtime::Error,
    memory: &MemoryGauge,
    lacks_handles: impl FnOnce() -> bool,
) -> Option<End> {
    if let Some(stop) = error.downcast_ref::<Stop>() {
        return Some((*stop).into());
    }
    if let Some(no_network) = error.downcast_ref::<NetworkDeniedError>() {
        return Some(End::Trapped(no_network.to_string()));
    }
    let refused_memory = memory.refused.load(Ordering::Relaxed);
    if let Some(exit) = error.downcast_ref::<wasmtime_wasi::I32Exit>() {
        return match exit.0 {
            0 => None,
            _failed if refused_memory => Some(End::LimitReached(Limit::Memory)),
            code => Some(End::Exited { code, stderr_tail: String::new() }),
        };
    }
    if error.downcast_ref::<Trap>() == Some(&Trap::OutOfFuel) {
        return Some(End::LimitReached(Limit::Fuel));
    }
    if error.downcast_ref::<Trap>() == Some(&Trap::StackOverflow) {
        return Some(End::LimitReached(Limit::Stack));
    }
    // A guest that was refused memory usually aborts with an `unreachable`. A first memory that is far
    // too large is refused by the kernel, before the limiter is asked.
    let no_room = |error: &std::io::Error| error.kind() == std::io::ErrorKind::OutOfMemory;
    if refused_memory || error.downcast_ref().is_some_and(no_room) {
        return Some(End::LimitReached(Limit::Memory));
    }
    if error.is::<PoolConcurrencyLimitError>() {
        return Some(End::Unlinkable("too many guests are stuck in host calls to start another".to_owned()));
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        return Some(End::Trapped(trap.to_string()));
    }
    // wasmtime has a type for the error of a handle that the host holds. It has none for one that a component names or
    // lends, but such an error leaves the store without a handle.
    if matches!(error.downcast_ref(), Some(ResourceTableError::Full)) || lacks_handles() {
        return Some(End::LimitReached(Limit::Handles));
    }
    Some(End::Trapped("the guest broke the contract of a host call".to_owned()))
}
