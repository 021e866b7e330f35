//! The limits that a run stands under, and the layers that may set them.

use crate::quantity::MemoryLimit;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The five layers whose meet is a grant, in the order in which ties are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Layer {
    /// The capability manifest of the verdict.
    Verdict,
    /// A condition of the verdict.
    Condition,
    /// The standing policy of the agent (`g2a/policy`).
    StandingPolicy,
    /// What the tool itself declares in its `tool.toml`.
    Tool,
    /// The executor's own ceilings, from its configuration.
    Executor,
}

impl Layer {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Verdict => "verdict",
            Self::Condition => "condition",
            Self::StandingPolicy => "standing_policy",
            Self::Tool => "tool",
            Self::Executor => "executor",
        }
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Limit {
    /// Guest memories and tables together.
    Memory,
    /// The deadline on the monotonic clock.
    Time,
    /// Result, logs and artifacts together.
    Output,
    /// The guest's call stack.
    Stack,
    /// Open files, folders and other handles together.
    Descriptors,
    /// Bytes written to files.
    Written,
    /// Files, folders and links made.
    Created,
}

impl Limit {
    /// The word on the wire (`data.limit`).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Time => "time",
            Self::Output => "output",
            Self::Stack => "stack",
            Self::Descriptors => "descriptors",
            Self::Written => "written_bytes",
            Self::Created => "created",
        }
    }
}

/// What one run may do with the disk. The executor's own ceilings alone set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budgets {
    /// The most that it may write to files.
    pub written: MemoryLimit,
    /// How many files, folders and links it may make.
    pub created: u64,
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
}

/// What one run may do with the network. The executor's own ceilings alone set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkBudgets {
    /// How many requests it may make; those that are refused count too.
    pub requests: u32,
    /// How many connections it may have at once.
    pub connections: u32,
    /// The most bytes that its connections may send, as they go over the wire.
    pub sent_bytes: u64,
    /// The most bytes that they may receive, as they come over the wire.
    pub received_bytes: u64,
}

impl NetworkBudgets {
    /// Nothing, for runs that have no network anyway.
    pub const NONE: Self = Self { requests: 0, connections: 0, sent_bytes: 0, received_bytes: 0 };
}

/// Whether files may be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
        match self {
            Self::ReadOnly => "read-only",
            Self::ReadWrite => "read-write",
        }
    }
}
