//! The claim of an intent that has its place in the queue.

use super::open_intents::ActiveRun;
use super::slots::Place;
use a2g_journal::KnownIntent;

/// The result of [`super::claims::Claims::reserve_and_claim`].
pub(super) enum ReservedClaim {
    /// The intent is new in this process. It has the place, and is registered.
    New(Place, ActiveRun),
    /// The intent was claimed before.
    Known(KnownIntent),
}
