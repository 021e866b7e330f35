//! Room for the output of runs: how much those that are open may still hand out, and whether one more fits.
//!
//! ```text
//! room for one more ◀─ its agent's share
//!                   ◀─ the heap that is in use + the output that open runs may still hand out ≤ the budget
//! ```
//! Output that has arrived is part of the heap, whoever holds it.

use crate::ident::AgentDid;
use crate::memory::{self, Held, Shares};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// All expected output.
#[derive(Debug)]
pub(super) struct OutputRoom {
    shares: Arc<Shares>,
    expected: AtomicU64,
}

/// The output that one run may still hand out.
#[derive(Debug)]
pub(super) struct ExpectedOutput {
    room: Arc<OutputRoom>,
    bytes: u64,
    _share: Held,
}

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// The agent's share is used up.
    Agent,
    /// The budget of the whole server is.
    Server,
}

impl OutputRoom {
    /// With so many bytes for each agent.
    pub(super) fn new(share: u64) -> Arc<Self> {
        Arc::new(Self { shares: Shares::new(share), expected: AtomicU64::new(0) })
    }

    /// Room for the output of one more run. A run that may hand out more than the budget has room when no other is
    /// open.
    pub(super) fn expect(self: &Arc<Self>, agent: &AgentDid, bytes: u64) -> Result<ExpectedOutput, NoRoom> {
        let share = self.shares.hold(agent.as_str(), bytes).ok_or(NoRoom::Agent)?;
        let others = self.expected.fetch_add(bytes, Relaxed);
        let expected = ExpectedOutput { room: Arc::clone(self), bytes, _share: share };
        let needed = if others == 0 { 0 } else { others.saturating_add(bytes) };
        if memory::has_room(needed) { Ok(expected) } else { Err(NoRoom::Server) }
    }
}

impl Drop for ExpectedOutput {
    fn drop(&mut self) {
        self.room.expected.fetch_sub(self.bytes, Relaxed);
    }
}
