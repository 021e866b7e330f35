//! The limits of a run, and the layers that may set them.

use crate::quantity::MemoryLimit;
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantArray};

/// The layers that are combined into a grant. If several layers set the same value, reports name the first in this
/// order.
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
    /// The operator, instead of a verdict: `a2g-executor run`, or a program that embeds the executor.
    Operator,
    /// A condition of the verdict.
    Condition,
    /// The standing policy of the agent (`g2a/policy`).
    StandingPolicy,
    /// The needs that the tool declares in its `tool.toml`.
    Tool,
    /// The executor's own ceilings, from its configuration.
    Executor,
    /// The caller, if it requested a lower limit than it is allowed.
    Caller,
}

impl Layer {
    /// The name used on the wire.
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
    /// The effective value.
    pub value: T,
    /// The layer that set the value.
    pub layer: Layer,
}

impl<T: Ord> Bound<T> {
    /// The narrower of two bounds; if the values are equal, the one whose layer comes first.
    #[must_use]
    pub fn narrower(self, other: Self) -> Self {
        if (&self.value, self.layer) <= (&other.value, other.layer) { self } else { other }
    }
}

/// A limit that ends a run when it is exceeded. (A run that exceeds its CPU limit is slowed down and never ended.)
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
    /// Files, folders and other handles that are open at the same time.
    Handles,
    /// Bytes written to files.
    #[strum(serialize = "written_bytes")]
    Written,
    /// Files, folders and links created.
    Created,
    /// Folder entries listed.
    DirectoryEntries,
    /// Random bytes read.
    RandomBytes,
    /// Subscriptions of one poll.
    Subscriptions,
    /// Instructions, as wasmtime counts them.
    Fuel,
}

impl Limit {
    /// The name used on the wire (`data.limit`).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The budgets of one run for host resources other than memory, CPU, time and output. Only the executor's own ceilings
/// set them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budgets {
    /// Maximum number of bytes written to files.
    pub written: MemoryLimit,
    /// Maximum number of files, folders and links created.
    pub created: u64,
    /// Maximum number of files, folders and other handles that are open at the same time.
    pub handles: u64,
    /// Maximum number of subscriptions of one poll.
    pub subscriptions: u64,
    /// Maximum number of random bytes read.
    pub random_bytes: u64,
    /// Maximum number of folder entries listed. An entry that is listed twice counts twice.
    pub directory_entries: u64,
    /// Maximum amount of wasmtime's fuel; with `None`, fuel is not counted.
    pub fuel: Option<u64>,
    /// `true` if the run may open files with several hard links, some of which may lie outside its scope.
    pub hard_links: bool,
}

impl Budgets {
    /// The budgets if nothing is configured.
    pub const DEFAULT: Self = Self {
        written: MemoryLimit::DEFAULT_WRITTEN,
        created: 10_000,
        handles: 1024,
        subscriptions: 128,
        random_bytes: 16 << 20,
        directory_entries: 1_000_000,
        fuel: None,
        hard_links: false,
    };
}

/// The part of its [`Budgets`] that a run has consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BudgetUsage {
    /// Bytes written to files.
    pub written_bytes: u64,
    /// Files, folders and links created.
    pub created: u64,
    /// Random bytes read.
    pub random_bytes: u64,
    /// Folder entries listed.
    pub directory_entries: u64,
    /// Fuel consumed; `None` if fuel is not counted, or the guest was stopped before the count was read.
    pub fuel: Option<u64>,
}

impl Budgets {
    /// Maximum configurable value of any count.
    pub const MAX: u64 = 1_000_000_000;
    /// Minimum configurable number of handles: enough to start a guest with its standard streams and granted folders.
    pub const MIN_HANDLES: u64 = 32;
    /// Maximum configurable number of handles, and of subscriptions of one poll.
    pub const MAX_HANDLES: u64 = 1 << 16;
    /// Maximum configurable fuel: every JSON parser can represent the integers up to this one exactly.
    pub const MAX_FUEL: u64 = 1 << 53;

    /// Caps the consumption reported by another process to these budgets.
    #[must_use]
    pub fn cap(&self, reported: BudgetUsage) -> BudgetUsage {
        let BudgetUsage { written_bytes, created, random_bytes, directory_entries, fuel } = reported;
        BudgetUsage {
            written_bytes: written_bytes.min(self.written.bytes()),
            created: created.min(self.created),
            random_bytes: random_bytes.min(self.random_bytes),
            directory_entries: directory_entries.min(self.directory_entries),
            fuel: self.fuel.and_then(|limit| Some(fuel?.min(limit))),
        }
    }
}

/// The executor's own ceilings for the calls of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallCeilings {
    /// Maximum number of calls.
    pub max_calls: u32,
    /// Maximum number of simultaneous calls.
    pub max_parallel: u32,
    /// Maximum number of runs above a call.
    pub max_depth: u32,
}

impl CallCeilings {
    /// The ceilings if nothing is configured.
    pub const DEFAULT: Self = Self { max_calls: 1000, max_parallel: 8, max_depth: 4 };
    /// Maximum configurable number of calls.
    pub const MAX_CALLS: u64 = 100_000;
    /// Maximum configurable number of simultaneous calls.
    pub const MAX_PARALLEL: u64 = 64;
    /// Maximum configurable depth.
    pub const MAX_DEPTH: u64 = 16;
}

/// The network budgets of one run. Only the executor's own ceilings set them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkBudgets {
    /// Maximum number of requests, including refused ones. A name look-up counts as one request and covers the tool's
    /// first direct connection to an address that the look-up returned. Every other direct connection counts as one
    /// request.
    pub requests: u32,
    /// Maximum number of simultaneous connections.
    pub connections: u32,
    /// Maximum number of bytes that all connections together may send, as counted on the wire.
    pub sent_bytes: u64,
    /// Maximum number of bytes that all connections together may receive, as counted on the wire.
    pub received_bytes: u64,
}

impl NetworkBudgets {
    /// Maximum configurable number of requests.
    pub const MAX_REQUESTS: u64 = 1_000_000;
    /// Maximum configurable number of connections.
    pub const MAX_CONNECTIONS: u64 = 64;
    /// Maximum configurable number of bytes, in each direction.
    pub const MAX_BYTES: u64 = 1 << 40;
    /// All budgets 0, for runs without a network.
    pub const ZERO: Self = Self { requests: 0, connections: 0, sent_bytes: 0, received_bytes: 0 };
}

/// The access of a run to files.
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
    /// Files and folders may also be created, changed and removed.
    ReadWrite,
}

impl Access {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_usage_is_capped_at_the_budgets() {
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
        let at_the_limit = BudgetUsage {
            written_bytes: 1 << 20,
            created: 2,
            random_bytes: 4,
            directory_entries: 5,
            fuel: Some(6),
        };
        let max = u64::MAX;
        let reported = BudgetUsage {
            written_bytes: max,
            created: max,
            random_bytes: max,
            directory_entries: max,
            fuel: Some(max),
        };
        assert_eq!((budgets.cap(reported), budgets.cap(at_the_limit)), (at_the_limit, at_the_limit));
        let unmetered = Budgets { fuel: None, ..budgets };
        assert_eq!(unmetered.cap(reported).fuel, None);
        assert_eq!(budgets.cap(BudgetUsage::default()), BudgetUsage::default());
    }
}
