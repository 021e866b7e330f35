//! Effects, their commit, its recovery and its undo, on real files.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, and says what it counted"
)]

mod conflicts;
mod faults;
mod hostile;
mod kills;
mod kinds;
mod races;
mod random;
mod support;

/// Every `step`-th call, or each one if this variable is set: with all of them, the tests of this program take minutes.
fn stride(step: usize) -> usize {
    if std::env::var_os("A2G_OVERLAY_ALL_CALLS").is_some() { 1 } else { step }
}
