//! Effects, their commit, its recovery and its undo, on real files.

mod conflicts;
mod hostile;
mod kills;
mod kinds;
mod races;
mod support;
