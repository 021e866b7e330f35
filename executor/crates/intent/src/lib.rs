//! The open intents of an executor: which wait for a person, which are claimed or run, and what an operator has stopped.
//!
//! All of it is one value, [`Intents`], without I/O, clock or lock. Whatever happens to an intent (a decision, a
//! cancellation, a stop, its start, its end) is one call of it, and is therefore wholly before or after any other. A step
//! within [`Waits`], [`Runs`] or [`Stops`], its parts, is a method of that part; one that looks at several is its own.
//!
//! ```text
//! Waits:
//! hold ─▶ undecided ─ take_undecided ─▶ deciding ─ mark_approving ──▶ approving ─ mark_claimed ─▶ claimed ─ end ─▶ gone
//!            ▲  ▲                         │    ▲                          │                          │
//!            │  └──────── release ────────┘    └───── mark_deciding ──────┘                          │ cannot begin
//!            │                                                                                       ▼
//!            └───────────── wait_again ─────────────── retrying ◀────────── take_approved ─────── approved
//!                                                         │ └─ mark_claimed ─▶ claimed                ▲
//!                                                         └──────────── wait_to_run ──────────────────┘
//! a node of a fleet: follow ─▶ undecided ◀─ follow ─▶ decided ─ take_decided ─▶ retrying
//!                    deciding, approved, retrying ─ leave ─▶ decided
//!
//! Runs:
//! claim ─▶ claimed here ◀── take_back ────┐
//!             │    └─────── pass_on ──▶ at another node
//!             └─ end ─▶ gone
//! ```
//! An intent that a person approves has both a wait and a run: its wait lasts until its run has ended, so that it is not
//! lost if the run cannot begin. A cancellation, a revocation and a stop ([`Intents::end`], [`Intents::end_all`],
//! [`Intents::stop`]) end an intent in any of these states, by one rule (`Wait::ends_with_wait`):
//!
//! ```text
//! undecided, deciding, approved,
//! retrying, decided                         the wait is removed, and a run that was claimed for it is aborted
//! approving, claimed                        the run is aborted; its end ends the wait
//! no wait                                   the run is aborted
//! ```
//!
//! In a fleet, a value that all nodes share says what waits, and what was decided ([`FleetWaits`]). What a task of this
//! process decides or runs is that task's business until it leaves the intent to the fleet again.
//!
//! A call that an operator has stopped neither waits nor is claimed, because each of these steps looks at the stops, and
//! each stop at all intents.

mod content;
mod intents;
mod runs;
mod stops;
mod waits;

#[cfg(test)]
mod tests;

pub use content::{Abortable, Content, Owner};
pub use intents::{ClaimError, Ended, EndedAll, Intents, Scope, StartError};
pub use runs::{AbortEffect, RunId, RunPlace, Runs};
pub use stops::{NumberedStop, Stops};
pub use waits::{
    Changes, EndedWait, FleetWaits, HeldCall, HoldError, HoldOutcome, IfIdle, Outdated, StoredWait, Wait,
    WaitId, Waits, WakeCondition,
};
