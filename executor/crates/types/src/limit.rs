//! The limits of a run, and the layers that may set them.

use crate::quantity::{BYTES_PER_MB, CpuPercent, MemoryLimit, OutOfRangeError, OutputLimit, Timeout};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::ops::{Index, IndexMut, RangeInclusive};
use std::time::Duration;
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

/// A limit of a run. [`LIMITS`] has a row for each that can be set.
// The names of the variants are stored in receipts and never change.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
)]
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
    /// Folder entries listed. An entry that is listed twice counts twice.
    DirectoryEntries,
    /// Random bytes read.
    RandomBytes,
    /// Subscriptions of one poll.
    Subscriptions,
    /// Instructions, as wasmtime counts them.
    Fuel,
    /// Artifacts.
    Artifacts,
    /// CPU time as a share of wall time.
    Cpu,
    /// Calls to other tools.
    Calls,
    /// Simultaneous calls to other tools.
    ParallelCalls,
    /// Runs above a call.
    CallDepth,
}

impl Limit {
    /// Every limit.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The name used on the wire (`data.limit`), and for the used amount of a budget in stored receipts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The row of the limit; `None` for the call stack, whose size is fixed.
    #[must_use]
    pub fn row(self) -> Option<&'static LimitRow> {
        LIMITS.iter().find(|row| row.limit == self)
    }

    /// `true` if the limit ends a run that exceeds it. (A run that exceeds its CPU limit is slowed down, and a call beyond
    /// a limit on calls is refused or waits.)
    #[must_use]
    pub fn ends_runs(self) -> bool {
        ![Self::Cpu, Self::Calls, Self::ParallelCalls, Self::CallDepth].contains(&self)
    }

    /// The limits that end a run that exceeds them.
    pub fn ending_runs() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|limit| limit.ends_runs())
    }

    /// Reads a limit that ended a run.
    pub(crate) fn deserialize_ending<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let limit = Self::deserialize(from)?;
        if limit.ends_runs() { Ok(limit) } else { Err(D::Error::custom("a limit that ends no run")) }
    }
}

/// The unit of a limit's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// Bytes.
    Bytes,
    /// MB of [`BYTES_PER_MB`] bytes; the amount is counted in bytes.
    Megabytes,
    /// Percent; 100 is one core.
    Percent,
    /// Seconds; the amount is counted in milliseconds.
    Seconds,
}

impl Unit {
    /// The counted amount of one unit.
    #[must_use]
    pub fn size(self) -> u64 {
        match self {
            Self::Megabytes => BYTES_PER_MB,
            Self::Seconds => 1000,
            Self::Count | Self::Bytes | Self::Percent => 1,
        }
    }

    /// The unit at the end of a key.
    fn key_suffix(self) -> &'static str {
        match self {
            Self::Count => "",
            Self::Bytes => "_bytes",
            Self::Megabytes => "_mb",
            Self::Percent => "_percent",
            Self::Seconds => "_seconds",
        }
    }

    /// The unit behind a number, with a space.
    fn suffix(self) -> &'static str {
        match self {
            Self::Count => "",
            Self::Bytes => " bytes",
            Self::Megabytes => " MB",
            Self::Percent => " %",
            Self::Seconds => " s",
        }
    }
}

/// The way in which a run uses a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumption {
    /// Used up by the run as a whole: the report has the amount used.
    Total,
    /// Limited at one time: the report has no amount used.
    AtOnce,
}

/// A group of limits, which `config check` prints on one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// The limits of a run that each have a member of their own in stored receipts.
    Run,
    /// The limits that are counted by the sandbox, the [`Budgets`]. Stored receipts have them under [`LimitRow::name`].
    Budget,
    /// The limits of calls to other tools.
    Calls,
}

/// A row of the table of limits.
#[derive(Debug)]
pub struct LimitRow {
    /// The limit.
    pub limit: Limit,
    /// The dotted key in the configuration.
    pub path: &'static str,
    /// The unit of the key.
    pub unit: Unit,
    /// Minimum configurable value, in the unit of the key.
    pub min: u64,
    /// Maximum configurable value, in the unit of the key.
    pub max: u64,
    /// The ceiling if nothing is configured, in the unit of the key; `None`: the resource is not counted.
    pub default: Option<u64>,
    /// The layers that may lower the executor's ceiling. (The operator sets what a verdict sets.)
    pub set_by: &'static [Layer],
    /// The resource, as the sentence about a run that reached the limit names it.
    pub resource: &'static str,
    /// The words behind the value in the output of `config check`.
    pub summary: &'static str,
    /// The way in which a run uses the limit.
    pub consumption: Consumption,
    /// The group of the limit.
    pub group: Group,
}

impl LimitRow {
    /// The key without its section. Conditions, manifests and reports name the limit so.
    #[must_use]
    pub fn key(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_section, key)| key)
    }

    /// `true` if the limit is a part of [`Budgets`].
    #[must_use]
    pub fn is_budget(&self) -> bool {
        self.group == Group::Budget
    }

    /// `true` if `layer` may set the limit.
    #[must_use]
    pub fn is_set_by(&self, layer: Layer) -> bool {
        self.set_by.contains(&layer)
    }

    /// `true` if the limit is among those that a person approves (`GrantSummary`). A budget that only the executor sets
    /// is not, and calls have a summary of their own.
    pub(crate) fn is_approved(&self) -> bool {
        match self.group {
            Group::Run => true,
            Group::Budget => !self.set_by.is_empty(),
            Group::Calls => false,
        }
    }

    /// The numbers that `layer` may set, in the unit of the key. Decoders, their messages and the published schemas read
    /// it.
    #[must_use]
    pub fn range_for(&self, layer: Layer) -> RangeInclusive<u64> {
        // A tool that makes no calls declares so in `calls`.
        let min = if layer == Layer::Tool { self.min.max(1) } else { self.min };
        // A condition may be above the range of the ceiling: the grant takes the lower of the two.
        let is_unbounded = layer == Layer::Condition && self.limit == Limit::Calls;
        let max = if is_unbounded { u32::MAX.into() } else { self.max };
        min..=max
    }

    /// The counted amount of a number that `layer` sets, which is in the unit of the key.
    ///
    /// # Errors
    /// [`OutOfRangeError`] outside the range of the layer.
    pub fn parse_amount(&self, layer: Layer, number: u64) -> Result<u64, OutOfRangeError> {
        let range = self.range_for(layer);
        if range.contains(&number) {
            return Ok(number.saturating_mul(self.unit.size()));
        }
        Err(OutOfRangeError { min: *range.start(), max: *range.end() })
    }

    /// A counted amount in the unit of the key, rounded up.
    #[must_use]
    pub fn to_number(&self, amount: u64) -> u64 {
        amount.div_ceil(self.unit.size())
    }

    /// The key without `max_` and the unit, such as `memory` and `timeout`. Stored receipts have it, so it never changes.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let name = self.key().trim_start_matches("max_");
        name.strip_suffix(self.unit.key_suffix()).unwrap_or(name)
    }

    /// The resource as a label.
    #[must_use]
    pub fn label(&self) -> String {
        let (first, rest) = self.resource.split_at_checked(1).unwrap_or_default();
        first.to_ascii_uppercase() + rest
    }

    /// `true` if a standing policy sets the limit for all tools of an agent (`resources`), and not for each tool.
    #[must_use]
    pub fn is_for_all_tools(&self) -> bool {
        [Limit::Memory, Limit::Cpu].contains(&self.limit)
    }

    /// The text of a counted amount, with its unit.
    #[must_use]
    pub fn format(&self, amount: u64) -> String {
        let suffix = self.unit.suffix();
        match self.unit {
            Unit::Seconds => format!("{}{suffix}", Duration::from_millis(amount).as_secs_f64()),
            Unit::Count | Unit::Bytes | Unit::Megabytes | Unit::Percent => {
                format!("{}{suffix}", amount / self.unit.size())
            }
        }
    }

    /// The text of a ceiling in the output of `config check`; `None` stands for a resource that is not counted.
    #[must_use]
    pub fn summarize(&self, amount: Option<u64>) -> String {
        let amount = amount.map_or_else(|| "unlimited".to_owned(), |amount| self.format(amount));
        format!("{amount} {}", self.summary).trim_end().to_owned()
    }
}

/// Maximum configurable value of most counts.
const MAX_COUNT: u64 = 1_000_000_000;

/// A row with what most rows have.
const COUNT: LimitRow = LimitRow {
    limit: Limit::Stack,
    path: "",
    unit: Unit::Count,
    min: 1,
    max: MAX_COUNT,
    default: None,
    set_by: &[],
    resource: "",
    summary: "",
    consumption: Consumption::Total,
    group: Group::Run,
};

/// The table of limits: the facts of each, but for the few that functions of [`Limit`] and [`LimitRow`] name, in the
/// order of `[ceilings]`. The configuration, its check, the sentences, the report, the stored receipts and the statistics
/// read it.
pub static LIMITS: [LimitRow; 15] = [
    LimitRow {
        limit: Limit::Memory,
        path: "ceilings.max_memory_mb",
        unit: Unit::Megabytes,
        max: MemoryLimit::MAX_MB,
        default: Some(256),
        set_by: &[Layer::Verdict, Layer::Condition, Layer::StandingPolicy, Layer::Tool],
        resource: "memory",
        ..COUNT
    },
    LimitRow {
        limit: Limit::Cpu,
        path: "ceilings.max_cpu_percent",
        unit: Unit::Percent,
        max: CpuPercent::MAX,
        default: Some(100),
        set_by: &[Layer::Verdict, Layer::StandingPolicy, Layer::Tool],
        resource: "CPU",
        summary: "CPU",
        ..COUNT
    },
    LimitRow {
        limit: Limit::Time,
        path: "ceilings.timeout_seconds",
        unit: Unit::Seconds,
        max: Timeout::MAX_SECONDS,
        default: Some(Timeout::DEFAULT.seconds()),
        set_by: &[Layer::Verdict, Layer::Condition, Layer::StandingPolicy, Layer::Tool, Layer::Caller],
        resource: "time",
        ..COUNT
    },
    LimitRow {
        limit: Limit::Output,
        path: "ceilings.max_output_bytes",
        unit: Unit::Bytes,
        max: OutputLimit::MAX_BYTES,
        default: Some(1 << 20),
        set_by: &[Layer::Condition],
        resource: "output",
        summary: "of output",
        ..COUNT
    },
    LimitRow {
        limit: Limit::Written,
        path: "ceilings.max_written_mb",
        unit: Unit::Megabytes,
        max: MemoryLimit::MAX_MB,
        default: Some(1024),
        resource: "written bytes",
        summary: "written",
        group: Group::Budget,
        ..COUNT
    },
    LimitRow {
        limit: Limit::Created,
        path: "ceilings.max_created",
        default: Some(10_000),
        resource: "created files and folders",
        summary: "created",
        group: Group::Budget,
        ..COUNT
    },
    LimitRow {
        limit: Limit::Handles,
        path: "ceilings.max_handles",
        min: Budgets::MIN_HANDLES,
        max: Budgets::MAX_HANDLES,
        default: Some(1024),
        resource: "open files and handles",
        summary: "handles",
        consumption: Consumption::AtOnce,
        group: Group::Budget,
        ..COUNT
    },
    LimitRow {
        limit: Limit::Subscriptions,
        path: "ceilings.max_subscriptions",
        max: Budgets::MAX_HANDLES,
        default: Some(128),
        resource: "subscriptions",
        summary: "subscriptions",
        consumption: Consumption::AtOnce,
        group: Group::Budget,
        ..COUNT
    },
    LimitRow {
        limit: Limit::RandomBytes,
        path: "ceilings.max_random_bytes",
        default: Some(16 << 20),
        resource: "random bytes",
        summary: "random bytes",
        group: Group::Budget,
        ..COUNT
    },
    LimitRow {
        limit: Limit::DirectoryEntries,
        path: "ceilings.max_directory_entries",
        default: Some(1_000_000),
        resource: "listed directory entries",
        summary: "directory entries",
        group: Group::Budget,
        ..COUNT
    },
    LimitRow {
        limit: Limit::Fuel,
        path: "ceilings.max_fuel",
        // Every JSON parser can represent the integers up to this one exactly.
        max: 1 << 53,
        resource: "fuel",
        summary: "fuel",
        group: Group::Budget,
        ..COUNT
    },
    LimitRow {
        limit: Limit::Artifacts,
        path: "ceilings.max_artifacts",
        // Each takes more of the host's memory than the bytes that the output limit counts.
        max: 10_000,
        default: Some(1000),
        resource: "artifacts",
        summary: "artifacts",
        group: Group::Budget,
        ..COUNT
    },
    LimitRow {
        limit: Limit::Calls,
        path: "ceilings.max_calls",
        min: 0,
        max: 100_000,
        default: Some(1000),
        set_by: &[Layer::Condition, Layer::StandingPolicy, Layer::Tool],
        resource: "calls",
        summary: "of a run",
        group: Group::Calls,
        ..COUNT
    },
    LimitRow {
        limit: Limit::ParallelCalls,
        path: "ceilings.max_parallel_calls",
        max: 64,
        default: Some(8),
        set_by: &[Layer::Tool],
        resource: "simultaneous calls",
        summary: "at once",
        consumption: Consumption::AtOnce,
        group: Group::Calls,
        ..COUNT
    },
    LimitRow {
        limit: Limit::CallDepth,
        path: "ceilings.max_call_depth",
        min: 0,
        max: 16,
        default: Some(4),
        resource: "runs above a call",
        summary: "runs deep",
        consumption: Consumption::AtOnce,
        group: Group::Calls,
        ..COUNT
    },
];

/// The rows of the limits that `layer` may set.
pub fn rows_set_by(layer: Layer) -> impl Iterator<Item = &'static LimitRow> {
    LIMITS.iter().filter(move |row| row.is_set_by(layer))
}

/// The rows of the limits in [`Budgets`].
pub fn budget_rows() -> impl Iterator<Item = &'static LimitRow> {
    LIMITS.iter().filter(|row| row.is_budget())
}

/// A value for each limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LimitMap<T>([T; Limit::VARIANTS.len()]);

impl<T> LimitMap<T> {
    /// The value of `make` for each limit.
    #[must_use]
    pub fn from_fn(mut make: impl FnMut(Limit) -> T) -> Self {
        let mut limits = Limit::VARIANTS.iter();
        Self(std::array::from_fn(|_| make(*limits.next().unwrap_or(&Limit::Memory))))
    }
}

#[allow(clippy::indexing_slicing, reason = "the array has an entry for each variant")]
impl<T> Index<Limit> for LimitMap<T> {
    type Output = T;

    fn index(&self, limit: Limit) -> &T {
        &self.0[limit as usize]
    }
}

#[allow(clippy::indexing_slicing, reason = "the array has an entry for each variant")]
impl<T> IndexMut<Limit> for LimitMap<T> {
    fn index_mut(&mut self, limit: Limit) -> &mut T {
        &mut self.0[limit as usize]
    }
}

/// The amount of a limit that is not counted.
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// A quantity that is the amount of one limit.
pub trait Quantity: Copy {
    /// The limit.
    const LIMIT: Limit;

    /// The counted amount: bytes, percent or milliseconds.
    fn to_amount(self) -> u64;

    /// The quantity of a counted amount, or the nearest one in its range.
    fn from_amount(amount: u64) -> Self;
}

macro_rules! quantities {
    ($($quantity:ty: $limit:ident, $to_amount:ident;)+) => {
        $(impl Quantity for $quantity {
            const LIMIT: Limit = Limit::$limit;

            fn to_amount(self) -> u64 {
                self.$to_amount()
            }

            fn from_amount(amount: u64) -> Self {
                Self::nearest(amount)
            }
        })+
    };
}

quantities! {
    MemoryLimit: Memory, bytes;
    CpuPercent: Cpu, percent;
    Timeout: Time, millis;
    OutputLimit: Output, bytes;
}

/// The amount of each limit, such as the executor's ceilings.
impl LimitMap<u64> {
    /// The amounts if nothing is configured.
    #[must_use]
    pub fn defaults() -> Self {
        Self::from_fn(|limit| {
            let amount = |row: &LimitRow| Some(row.default?.saturating_mul(row.unit.size()));
            limit.row().and_then(amount).unwrap_or(UNLIMITED)
        })
    }

    /// These amounts with another quantity.
    #[must_use]
    pub fn with<Q: Quantity>(self, quantity: Q) -> Self {
        self.with_amount(Q::LIMIT, quantity.to_amount())
    }

    /// These amounts with another counted amount (bytes, not MB) of one limit.
    #[must_use]
    pub fn with_amount(mut self, limit: Limit, amount: u64) -> Self {
        self[limit] = amount;
        self
    }

    /// The amount of a limit as a quantity.
    #[must_use]
    pub fn quantity<Q: Quantity>(&self) -> Q {
        Q::from_amount(self[Q::LIMIT])
    }

    /// The counted amount of a limit; `None` if it is not limited.
    #[must_use]
    pub fn limited(&self, limit: Limit) -> Option<u64> {
        Some(self[limit]).filter(|amount| *amount != UNLIMITED)
    }
}

/// The amount of each limit, with the layer that set it.
impl LimitMap<Bound<u64>> {
    /// These amounts with a quantity.
    #[must_use]
    pub fn with<Q: Quantity>(mut self, Bound { value, layer }: Bound<Q>) -> Self {
        self[Q::LIMIT] = Bound { value: value.to_amount(), layer };
        self
    }

    /// The amount of a limit as a quantity.
    #[must_use]
    pub fn quantity<Q: Quantity>(&self) -> Bound<Q> {
        let Bound { value, layer } = self[Q::LIMIT];
        Bound { value: Q::from_amount(value), layer }
    }
}

/// The numbers that a table of a file has for limits, each in the unit of its key (MB, not bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyNumbers(LimitMap<Option<u64>>);

impl KeyNumbers {
    /// The number of a limit; `None` if the table does not set it.
    #[must_use]
    pub fn get(&self, limit: Limit) -> Option<u64> {
        self.0[limit]
    }

    /// The numbers of counted amounts.
    #[must_use]
    pub fn of(limits: &ClaimedLimits) -> Self {
        Self(limits.claimed().map(|(row, amount)| (row.limit, row.to_number(amount))).collect())
    }

    /// Sets or removes the number of a limit.
    pub fn set(&mut self, limit: Limit, number: Option<u64>) {
        self.0[limit] = number;
    }
}

/// The counted amounts (bytes, not MB) that one layer sets; `None` leaves a limit to the other layers.
pub type ClaimedLimits = LimitMap<Option<u64>>;

impl ClaimedLimits {
    /// These amounts with a quantity, if the layer sets it.
    #[must_use]
    pub fn with<Q: Quantity>(self, quantity: Option<Q>) -> Self {
        self.with_amount(Q::LIMIT, quantity.map(Q::to_amount))
    }

    /// The limits that the layer sets, in the order of the table.
    pub fn claimed(&self) -> impl Iterator<Item = (&'static LimitRow, u64)> {
        LIMITS.iter().filter_map(move |row| Some((row, self[row.limit]?)))
    }

    /// The smaller amount of each limit. One that only one side sets is that side's.
    #[must_use]
    pub fn narrower(&self, other: &Self) -> Self {
        Self::from_fn(|limit| self[limit].into_iter().chain(other[limit]).min())
    }

    /// The amount of a limit as a quantity, if the layer sets it.
    #[must_use]
    pub fn quantity<Q: Quantity>(&self) -> Option<Q> {
        self[Q::LIMIT].map(Q::from_amount)
    }

    /// These amounts with a counted amount (bytes, not MB) of one limit, if the layer sets it.
    #[must_use]
    pub fn with_amount(mut self, limit: Limit, amount: Option<u64>) -> Self {
        self[limit] = amount;
        self
    }
}

impl FromIterator<(Limit, u64)> for ClaimedLimits {
    fn from_iter<I: IntoIterator<Item = (Limit, u64)>>(amounts: I) -> Self {
        let mut limits = Self::default();
        amounts.into_iter().for_each(|(limit, amount)| limits[limit] = Some(amount));
        limits
    }
}

/// The budgets of one run for host resources other than memory, CPU, time and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// Counted amounts: bytes, not MB. Limits that are no budgets are [`UNLIMITED`].
    granted: LimitMap<Bound<u64>>,
    /// `true` if the run may open files with several hard links, some of which may lie outside its scope.
    pub hard_links: bool,
}

impl Default for Budgets {
    /// The budgets if nothing is configured.
    fn default() -> Self {
        let ceilings = LimitMap::defaults();
        let bound = |limit| Bound { value: ceilings[limit], layer: Layer::Executor };
        Self::of(&LimitMap::from_fn(bound), false)
    }
}

impl Budgets {
    /// Minimum configurable number of handles: enough to start a guest with its standard streams and granted folders.
    pub const MIN_HANDLES: u64 = 32;
    /// Maximum configurable number of handles, and of subscriptions of one poll.
    pub const MAX_HANDLES: u64 = 1 << 16;

    /// The budgets among the amounts of all limits.
    #[must_use]
    pub fn of(limits: &LimitMap<Bound<u64>>, hard_links: bool) -> Self {
        let mut budgets = Self { hard_links, ..Self::unlimited() };
        budget_rows().for_each(|row| budgets.granted[row.limit] = limits[row.limit]);
        budgets
    }

    /// Budgets that count nothing.
    pub(crate) fn unlimited() -> Self {
        let unlimited = Bound { value: UNLIMITED, layer: Layer::Executor };
        Self { granted: LimitMap::from_fn(|_| unlimited), hard_links: false }
    }

    /// The counted amount (bytes, not MB) of a budget; the maximum number if it is not limited.
    #[must_use]
    pub fn amount(&self, limit: Limit) -> u64 {
        self.granted[limit].value
    }

    /// The counted amount of a budget; `None` if it is not limited.
    #[must_use]
    pub fn granted(&self, limit: Limit) -> Option<u64> {
        Some(self.amount(limit)).filter(|amount| *amount != UNLIMITED)
    }

    /// The layer that set a budget.
    #[must_use]
    pub fn layer(&self, limit: Limit) -> Layer {
        self.granted[limit].layer
    }

    /// These budgets with another counted amount of one, by the same layer.
    #[must_use]
    pub fn with(mut self, limit: Limit, amount: u64) -> Self {
        self.granted[limit].value = amount;
        self
    }

    /// These budgets, of which another layer set one.
    pub(crate) fn with_layer(mut self, limit: Limit, layer: Layer) -> Self {
        self.granted[limit].layer = layer;
        self
    }

    /// Caps the consumption reported by another process to these budgets.
    #[must_use]
    pub fn cap(&self, reported: BudgetUsage) -> BudgetUsage {
        let is_used_up = |limit: Limit| limit.row().is_some_and(|row| row.consumption == Consumption::Total);
        let capped = |limit| {
            let reported = reported.amount(limit).filter(|_| is_used_up(limit))?;
            Some(reported.min(self.granted(limit)?))
        };
        BudgetUsage(LimitMap::from_fn(capped))
    }
}

/// The part of its [`Budgets`] that a run has consumed. An amount is absent if it is not counted, or if the guest was
/// stopped before the count was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BudgetUsage(LimitMap<Option<u64>>);

impl BudgetUsage {
    /// The counted amount of one budget.
    #[must_use]
    pub fn amount(&self, limit: Limit) -> Option<u64> {
        self.0[limit]
    }

    /// `true` if a run has written to a file or created one.
    #[must_use]
    pub fn has_written(&self) -> bool {
        [Limit::Written, Limit::Created].iter().any(|limit| self.amount(*limit).is_some_and(|used| used > 0))
    }
}

impl FromIterator<(Limit, u64)> for BudgetUsage {
    fn from_iter<I: IntoIterator<Item = (Limit, u64)>>(amounts: I) -> Self {
        Self(amounts.into_iter().collect())
    }
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
    /// Maximum number of requests that wait for the commit of a staged run. With 0, they are refused.
    pub held_requests: u32,
}

impl NetworkBudgets {
    /// Maximum configurable number of requests.
    pub const MAX_REQUESTS: u64 = 1_000_000;
    /// Maximum configurable number of connections.
    pub const MAX_CONNECTIONS: u64 = 64;
    /// Maximum configurable number of bytes, in each direction.
    pub const MAX_BYTES: u64 = 1 << 40;
    /// Maximum configurable number of requests that wait.
    pub const MAX_HELD_REQUESTS: u64 = 64;
    /// All budgets 0, for runs without a network.
    pub const ZERO: Self =
        Self { requests: 0, connections: 0, sent_bytes: 0, received_bytes: 0, held_requests: 0 };
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

/// The time at which the file changes of a run take effect, in the order of narrowness: a later one leaves the run less.
/// The narrowest of all layers wins.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum FileEffects {
    /// Each change takes effect when the run makes it.
    #[default]
    Direct,
    /// All changes take effect together after a successful run. Any other end leaves none of them.
    Atomic,
    /// The changes of a successful run wait until somebody commits or discards them. Any other end leaves none of them.
    Staged,
}

impl FileEffects {
    /// The name used in files and on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The variant of a name; `None` for any other text.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::VARIANTS.iter().copied().find(|effects| effects.as_str() == name)
    }

    /// The meaning, as the end of a sentence about a run.
    #[must_use]
    pub fn summary(self) -> &'static str {
        match self {
            Self::Direct => "each file change takes effect when the run makes it",
            Self::Atomic => {
                "all file changes take effect together after a successful run, and any other end leaves none of them"
            }
            Self::Staged => {
                "the file changes of a successful run wait for a decision, and any other end leaves none of them"
            }
        }
    }

    /// `true` if the changes take effect while the run makes them, and stay whatever its end is.
    #[must_use]
    pub fn is_direct(self) -> bool {
        match self {
            Self::Direct => true,
            Self::Atomic | Self::Staged => false,
        }
    }

    /// The same; `None` for the widest, which narrows nothing. Claims, files and messages leave it out.
    #[must_use]
    pub fn unless_direct(self) -> Option<Self> {
        Some(self).filter(|effects| !effects.is_direct())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_are_read_by_their_names_and_later_ones_are_narrower() {
        assert!(FileEffects::VARIANTS.is_sorted() && FileEffects::default().is_direct());
        assert_eq!(FileEffects::Direct.unless_direct(), None);
        assert_eq!(FileEffects::Atomic.unless_direct(), Some(FileEffects::Atomic));
        assert_eq!(FileEffects::Staged.unless_direct(), Some(FileEffects::Staged));
        for effects in FileEffects::VARIANTS {
            assert_eq!(FileEffects::parse(effects.as_str()), Some(*effects));
            assert_eq!(serde_json::to_value(effects).unwrap(), effects.as_str());
        }
        for other in ["", "Atomic", "atomic ", "none"] {
            assert_eq!(FileEffects::parse(other), None, "{other:?}");
        }
    }

    /// Budgets of 1, 2, 3 … in the order of the table.
    fn small() -> Budgets {
        let numbered = budget_rows().zip(1..);
        numbered.fold(Budgets::default(), |budgets, (row, number)| budgets.with(row.limit, number))
    }

    #[test]
    fn reported_usage_is_capped_at_the_budgets() {
        let usage = |amount: &dyn Fn(Limit) -> u64| -> BudgetUsage {
            let used_up = budget_rows().filter(|row| row.consumption == Consumption::Total);
            used_up.map(|row| (row.limit, amount(row.limit))).collect()
        };
        let at_the_limit = usage(&|limit| small().amount(limit));
        let beyond = usage(&|_| u64::MAX);
        assert_eq!((small().cap(beyond), small().cap(at_the_limit)), (at_the_limit, at_the_limit));
        let unmetered = small().with(Limit::Fuel, UNLIMITED);
        assert_eq!(unmetered.cap(beyond).amount(Limit::Fuel), None);
        assert_eq!(small().cap(BudgetUsage::default()), BudgetUsage::default());
        let others = [Limit::Memory, Limit::Stack, Limit::Handles];
        let others = others.map(|limit| (limit, 1)).into_iter().collect();
        assert_eq!(small().cap(others), BudgetUsage::default(), "no other process adds a budget");
    }

    #[test]
    fn the_table_has_a_row_for_each_limit_and_a_default_in_each_range() {
        for limit in Limit::VARIANTS {
            let rows = LIMITS.iter().filter(|row| row.limit == *limit).count();
            assert_eq!(rows, usize::from(*limit != Limit::Stack), "{limit:?}");
        }
        for row in &LIMITS {
            // Only fuel is not counted by default. A row without a default would be a resource without a limit.
            assert_eq!(row.default.is_none(), row.limit == Limit::Fuel, "{}", row.path);
            let is_in_range = |default: u64| row.range_for(Layer::Executor).contains(&default);
            assert!(row.default.is_none_or(is_in_range), "{}", row.path);
            assert!(!row.key().is_empty() && !row.resource.is_empty(), "{}", row.path);
            assert!(!row.is_budget() || !row.summary.is_empty(), "{}", row.path);
            assert!(row.min <= row.max && row.max.checked_mul(row.unit.size()).is_some(), "{}", row.path);
        }
    }

    #[test]
    fn each_layer_has_one_range_for_the_number_of_calls() {
        let row = Limit::Calls.row().unwrap();
        for (layer, min, max) in [
            (Layer::Executor, 0, 100_000),
            (Layer::StandingPolicy, 0, 100_000),
            (Layer::Tool, 1, 100_000),
            (Layer::Condition, 0, u32::MAX.into()),
        ] {
            assert_eq!(row.range_for(layer), min..=max, "{layer}");
            assert_eq!((row.parse_amount(layer, min), row.parse_amount(layer, max)), (Ok(min), Ok(max)));
            for number in [min.wrapping_sub(1), max + 1] {
                let refused = row.parse_amount(layer, number);
                assert_eq!(refused, Err(OutOfRangeError { min, max }), "{layer}: {number}");
            }
        }
    }

    // A compromised child sends any end of its run.
    #[test]
    fn a_run_that_another_process_reports_ends_at_a_limit_that_ends_runs() {
        for limit in Limit::ALL {
            let text = serde_json::json!({ "LimitReached": limit }).to_string();
            let read = serde_json::from_str::<crate::outcome::End>(&text).ok();
            assert_eq!(
                read,
                limit.ends_runs().then_some(crate::outcome::End::LimitReached(*limit)),
                "{text}"
            );
        }
        assert!(!Limit::Cpu.ends_runs() && Limit::Stack.ends_runs());
    }

    /// The text of a page of the documentation.
    fn page(name: &str) -> String {
        let path = format!("{}/../../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_documents_have_the_rows_of_the_table() {
        let configuration = page("configuration.md");
        let report = page("protocols/a2g.md");
        for row in &LIMITS {
            let line = match row.default {
                Some(default) => format!("\n{} = {default} ", row.key()),
                None => format!("\n{} = ", row.key()),
            };
            assert!(configuration.contains(&line), "{}", row.path);
        }
        for limit in Limit::ending_runs() {
            assert!(report.contains(&format!("`{}`", limit.as_str())), "{limit:?}");
        }
    }
}
