//! The open intents of an executor: which wait for a person, which are claimed or run, and what an operator has stopped.
//!
//! All of it is one value, [`Intents`], without I/O, clock or lock. Whatever happens to an intent (a decision, a
//! cancellation, a stop, its start, its end) is one call of it, and is therefore wholly before or after any other.
//!
//! ```text
//! hold ─▶ undecided ─ take_undecided ─▶ deciding ─ mark_approving ──▶ approving ─ mark_claimed ─▶ claimed ─ end_wait ─▶ gone
//!            ▲  ▲                         │    ▲                          │                          │
//!            │  └──────── release ────────┘    └──────── take_back ───────┘                          │ cannot begin
//!            │                                                                                       ▼
//!            └───────────── wait_again ─────────────── retrying ◀────────── take_approved ─────── approved
//!                                                         │ └─ mark_claimed ─▶ claimed                ▲
//!                                                         └──────────── wait_to_run ──────────────────┘
//! claim ─▶ claimed here ◀─ take_back_run ─┐
//!             │    └─────── pass_on ──▶ at another node
//!             └─ end_run ─▶ gone
//! ```
//! An intent that a person approves has both a wait and a run: its wait lasts until its run has ended, so that it is not lost if the run
//! cannot begin. [`Intents::end`], [`Intents::end_all`] and [`Intents::stop`] end an intent in any of these states: a wait
//! that is not claimed is removed, and a run is aborted.
//!
//! A call that an operator has stopped neither waits nor is claimed, because each of these steps looks at the stops, and
//! each stop at all intents.

mod open;
mod stops;
mod table;

#[cfg(test)]
mod tests;

pub use open::{Outdated, Owner, RunNumber, RunPlace, WaitNumber, WakeCondition};
pub use stops::{NumberedStop, Stops};
pub use table::{
    Changes, ClaimError, Ended, EndedAll, HoldError, Intents, Registration, Removal, StartError, Taken,
};

use a2g_types::outcome::AbortReason;
use std::fmt::Debug;

/// The values that an executor keeps with an intent. Nothing here depends on them.
pub trait Content: Debug {
    /// A call that waits for a person.
    type Call: Debug;
    /// The approval of a call that could not run immediately.
    type Approval: Debug + Clone;
    /// One approval of a call that needs several.
    type PartialApproval: Debug;
    /// A claimed call.
    type Run: Debug + Abortable;
}

/// Something that runs, or is about to, and can be told to end.
pub trait Abortable {
    /// Ends it, now or as soon as it begins.
    fn abort(&self, reason: AbortReason);
}
