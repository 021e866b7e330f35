//! The right to make grants that name a verdict.
//!
//! There are two kinds, and a process has only one of them:
//! - [`Authority::take`] is for a program that is one engine. The main program takes it at start and moves it to the
//!   code that admits calls. No other code can obtain one afterwards, so no other code can label a limit as a verdict's.
//! - [`Authority::for_engine`] is for a library, and for a program with several engines. Each call makes the right of
//!   an engine of its own, and other engines refuse its permits.

use parking_lot::Mutex;

// This is a value at run time, because a private constructor would be accessible to this whole crate, and a sealed
// trait to every crate that implements it.
static IN_USE: Mutex<InUse> = Mutex::new(InUse::Nothing);

/// The authorities that this process has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InUse {
    /// None so far.
    Nothing,
    /// The only one.
    Process,
    /// One for each of so many engines.
    Engines(u64),
}

/// An engine with an [`Authority`] of its own. It grants nothing: it says which engine a permit is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineId(u64);

/// The right to make a [`Grant`](super::Grant) with the limits of a verdict. It cannot be copied.
#[derive(Debug)]
pub struct Authority {
    /// `None` for the only authority of a process.
    engine: Option<EngineId>,
}

impl Authority {
    /// Takes the only authority of this process; `None` if the process has had one of either kind before. Every engine
    /// of the process runs its permits.
    #[must_use]
    pub fn take() -> Option<Self> {
        let mut in_use = IN_USE.lock();
        match *in_use {
            InUse::Nothing => {
                *in_use = InUse::Process;
                Some(Self { engine: None })
            }
            InUse::Process | InUse::Engines(_) => None,
        }
    }

    /// Makes the authority of one engine, which is built with it. No other engine runs its permits, and nothing else can
    /// make permits for that engine. `None` if the only authority of this process has been taken, or the process has
    /// received a permit from another one.
    #[must_use]
    pub fn for_engine() -> Option<Self> {
        let mut in_use = IN_USE.lock();
        let engines = match *in_use {
            InUse::Nothing => 1,
            InUse::Engines(engines) => engines.checked_add(1)?,
            InUse::Process => return None,
        };
        *in_use = InUse::Engines(engines);
        Some(Self { engine: Some(EngineId(engines)) })
    }

    /// The engine that this authority is for; `None` for the only authority of the process.
    #[must_use]
    pub fn engine(&self) -> Option<EngineId> {
        self.engine
    }

    /// `true` if this process has had an authority.
    pub(super) fn is_in_use() -> bool {
        *IN_USE.lock() != InUse::Nothing
    }

    /// An authority for unit tests, in addition to that of the process.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self { engine: None }
    }
}
