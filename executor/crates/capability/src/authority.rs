//! The right to make grants that name a verdict.
//!
//! A process has one [`Authority`]. The main program takes it at start and moves it to the code that admits calls. No
//! other code can obtain one afterwards, so no other code can label a limit as a verdict's.

use std::sync::atomic::{AtomicBool, Ordering};

// This is a flag at run time, because a private constructor would be accessible to this whole crate, and a sealed trait
// to every crate that implements it.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The right to make a [`Grant`](super::Grant) with the limits of a verdict. It cannot be copied.
#[derive(Debug)]
pub struct Authority(());

impl Authority {
    /// Takes the authority of this process; `None` if it has been taken before.
    #[must_use]
    pub fn take() -> Option<Self> {
        (!TAKEN.swap(true, Ordering::SeqCst)).then_some(Self(()))
    }

    /// `true` if this process has taken its authority.
    pub(super) fn is_taken() -> bool {
        TAKEN.load(Ordering::SeqCst)
    }

    /// An authority for unit tests, in addition to that of the process.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self(())
    }
}
