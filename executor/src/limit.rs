//! The limits that a run stands under, and the layers that may set them.

use crate::quantity::MemoryLimit;
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantArray};

/// The layers whose meet is a grant, in the order in which ties are named.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum Layer {
    /// The capability manifest of the verdict.
    Verdict,
    /// The operator, in the place of a verdict: the limits of `a2g-executor run`, or of a program that uses this one
    /// as a library.
    Operator,
    /// A condition of the verdict.
    Condition,
    /// The standing policy of the agent (`g2a/policy`).
    StandingPolicy,
    /// What the tool itself declares in its `tool.toml`.
    Tool,
    /// The executor's own ceilings, from its configuration.
    Executor,
    /// The caller, who asked for less than it may have.
    Caller,
}

impl Layer {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A limit's value together with the layer that set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bound<T> {
    /// The value in force.
    pub value: T,
    /// The layer that it came from.
    pub layer: Layer,
}

impl<T: Ord> Bound<T> {
    /// The narrower of two bounds; at a tie, the one whose layer comes first.
    #[must_use]
    pub fn narrower(self, other: Self) -> Self {
        let first = (&self.value, self.layer) <= (&other.value, other.layer);
        if first { self } else { other }
    }
}

/// A limit whose excess ends a run. (CPU over its limit slows a run down, and never ends it.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Limit {
    /// Guest memories and tables together.
    Memory,
    /// The deadline on the monotonic clock.
    Time,
    /// Result, logs and artifacts together.
    Output,
    /// The guest's call stack.
    Stack,
    /// Open files, folders and other handles at once.
    Handles,
    /// Bytes written to files.
    #[strum(serialize = "written_bytes")]
    Written,
    /// Files, folders and links made.
    Created,
    /// Entries of folders listed.
    DirectoryEntries,
    /// Random bytes taken.
    RandomBytes,
    /// Things waited for in one poll.
    Subscriptions,
    /// Instructions, as wasmtime counts them.
    Fuel,
}

impl Limit {
    /// The word on the wire (`data.limit`).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What one run may have and take of the host beside memory, CPU, time and output. The executor's own
/// ceilings alone set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budgets {
    /// The most that it may write to files.
    pub written: MemoryLimit,
    /// How many files, folders and links it may make.
    pub created: u64,
    /// How many files, folders and other handles it may have open at once.
    pub handles: u64,
    /// How many things it may wait for in one poll.
    pub subscriptions: u64,
    /// How many random bytes it may take.
    pub random_bytes: u64,
    /// How many entries of folders it may list; one that it lists twice counts twice.
    pub directory_entries: u64,
    /// How much of wasmtime's fuel it may burn; `None` counts none.
    pub fuel: Option<u64>,
    /// Whether it may open files that have another name, which may lie outside of its scope.
    pub hard_links: bool,
}

/// What one run has spent of its [`Budgets`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spent {
    /// Bytes written to files.
    pub written_bytes: u64,
    /// Files, folders and links made.
    pub created: u64,
    /// Random bytes taken.
    pub random_bytes: u64,
    /// Entries of folders listed.
    pub directory_entries: u64,
    /// Fuel burnt; `None` where none is counted, or the guest was stopped before it had counted.
    pub fuel: Option<u64>,
}

impl Budgets {
    /// The most of any count that can be asked for.
    pub const MAX: u64 = 1_000_000_000;
    /// The fewest handles with which a guest can start: its own streams and folders are among them.
    pub const MIN_HANDLES: u64 = 32;
    /// The most handles, and the most things to wait for at once, that can be asked for.
    pub const MAX_HANDLES: u64 = 1 << 16;
    /// The most fuel that can be asked for: what every reader of JSON can tell from its neighbours.
    pub const MAX_FUEL: u64 = 1 << 53;

    /// What can have been spent of them at most, of what another process says.
    #[must_use]
    pub fn believed(&self, said: Spent) -> Spent {
        let Spent { written_bytes, created, random_bytes, directory_entries, fuel } = said;
        Spent {
            written_bytes: written_bytes.min(self.written.bytes()),
            created: created.min(self.created),
            random_bytes: random_bytes.min(self.random_bytes),
            directory_entries: directory_entries.min(self.directory_entries),
            fuel: self.fuel.and_then(|most| Some(fuel?.min(most))),
        }
    }
}

/// What one run may do with the network. The executor's own ceilings alone set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkBudgets {
    /// How many requests it may make; those that are refused count too. The look-up of a name is one, and
    /// pays for the first connection of the tool's own to what it gave; every other such connection is one.
    pub requests: u32,
    /// How many connections it may have at once.
    pub connections: u32,
    /// The most bytes that its connections may send, as they go over the wire.
    pub sent_bytes: u64,
    /// The most bytes that they may receive, as they come over the wire.
    pub received_bytes: u64,
}

impl NetworkBudgets {
    /// The most requests that can be asked for.
    pub const MAX_REQUESTS: u64 = 1_000_000;
    /// The most connections that can be asked for.
    pub const MAX_CONNECTIONS: u64 = 64;
    /// The most bytes that can be asked for, in each direction.
    pub const MAX_BYTES: u64 = 1 << 40;
    /// Nothing, for runs that have no network anyway.
    pub const NONE: Self = Self { requests: 0, connections: 0, sent_bytes: 0, received_bytes: 0 };
}

/// Whether files may be changed.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub enum Access {
    /// Files and folders may be read and listed.
    ReadOnly,
    /// They may be created, changed and removed as well.
    ReadWrite,
}

impl Access {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_spent_more_than_there_was() {
        let budgets = Budgets {
            written: MemoryLimit::from_mb(1).unwrap(),
            created: 2,
            handles: 32,
            subscriptions: 3,
            random_bytes: 4,
            directory_entries: 5,
            fuel: Some(6),
            hard_links: false,
        };
        let most = Spent {
            written_bytes: 1 << 20,
            created: 2,
            random_bytes: 4,
            directory_entries: 5,
            fuel: Some(6),
        };
        let all = u64::MAX;
        let said = Spent {
            written_bytes: all,
            created: all,
            random_bytes: all,
            directory_entries: all,
            fuel: Some(all),
        };
        assert_eq!((budgets.believed(said), budgets.believed(most)), (most, most));
        let unmetered = Budgets { fuel: None, ..budgets };
        assert_eq!(unmetered.believed(said).fuel, None);
        assert_eq!(budgets.believed(Spent::default()), Spent::default());
    }
}
