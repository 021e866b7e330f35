//! Usage of limits by the recorded runs, by agent and by tool.
//!
//! The figures are computed from the receipts, newest first, in a fixed time and in constant memory: one receipt is
//! parsed at a time, and only the [`UsageSums`] are kept.

use super::history::{HistoryError, REFUSAL_COLUMNS, RefusalEntry, read_refusal};
use super::needs::PairNeeds;
use super::scan::{Scan, ScanBudget, ScannedChain};
use super::search::{FoundRun, run_columns};
use super::series::UsageSeries;
use super::store::Reader;
use super::to_micros;
use super::usage_sums::UsageSums;
use a2g_types::limit::{Limit, LimitRow, NetworkBudgets, budget_rows};
use a2g_types::outcome::{CallUsage, NetworkUsage, Outcome, RunMetrics, Usage};
use rusqlite::params;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use time::OffsetDateTime;

/// The maximum time for the refusals, which is part of [`MAX_SCAN_TIME`](super::scan::MAX_SCAN_TIME). It is a quarter
/// of that, because receipts take longer to read: they are parsed.
pub(super) const MAX_REFUSAL_TIME: Duration = Duration::from_millis(15);

/// The use of the executor since a time.
#[derive(Debug, Clone)]
pub struct UsageSummary {
    /// The figures of all runs.
    pub total: UsageFigures,
    /// The figures of each agent, the one with the most runs first.
    pub agents: Vec<GroupUsage>,
    /// The figures of each tool, the one with the most runs first.
    pub tools: Vec<GroupUsage>,
    /// `true` if there are agents or tools without figures of their own, because there are 200 others, or because the sums
    /// of an executor were too long. In merged figures, runs of the others may be missing.
    pub is_grouping_truncated: bool,
    /// The runs by the time at which they ended; `None` if no series was asked for.
    pub series: Option<UsageSeries>,
    /// The needs of each agent's runs of each tool, by the names of both.
    pub needs: Vec<PairNeeds>,
    /// `true` if the needs of some pairs of agents and tools are not known, because there are 400 others, or because the
    /// sums of an executor were too long.
    pub are_needs_truncated: bool,
    /// The time up to which receipts were searched, backwards from now; `None` if none was.
    pub searched_until: Option<OffsetDateTime>,
    /// `false` if the time or the maximum number of receipts was used up: the figures are only those of the latest
    /// runs, as many as [`UsageFigures::runs`] of `total` says. Merged figures have all runs since `searched_until`, and
    /// some before.
    pub is_complete: bool,
    /// `false` if the time was used up before all refusals were counted.
    pub are_refusals_complete: bool,
}

/// The figures of one agent or tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupUsage {
    /// The agent or tool.
    pub name: String,
    /// Its figures.
    pub figures: UsageFigures,
}

/// The figures of a group of runs and refused calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageFigures {
    /// The number of receipts from which the figures are computed.
    pub runs: u64,
    /// The number of runs with each status.
    pub by_status: StatusCounts,
    /// The wall times; `None` if no run was measured.
    pub wall: Option<WallTimes>,
    /// The number of refused calls by the code of the reason.
    pub refusals: BTreeMap<String, u64>,
    /// The limits of the runs that were measured. A limit that no receipt has is left out.
    pub slack: Vec<LimitSlack>,
    /// The use of the network.
    pub network: AccessUse,
    /// The use of folders that may be changed.
    pub writing: AccessUse,
    /// The use of calls to other tools.
    pub calling: AccessUse,
}

/// The number of runs with each status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StatusCounts {
    /// [`Status::Success`] and [`Status::Staged`].
    pub success: u64,
    /// [`Status::Failure`].
    pub failure: u64,
    /// [`Status::Timeout`].
    pub timeout: u64,
    /// [`Status::Aborted`].
    pub aborted: u64,
}

/// Percentiles of wall times. They come from a histogram, and are too high by at most a sixteenth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WallTimes {
    /// Half of the runs took no longer.
    pub p50: Duration,
    /// 95 of 100 runs took no longer.
    pub p95: Duration,
    /// 99 of 100 runs took no longer.
    pub p99: Duration,
    /// The longest run, exactly.
    pub max: Duration,
}

/// The number of runs that had an access, and that used it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AccessUse {
    /// The number of runs to which the access was granted.
    pub granted: u64,
    /// The number of those that used it.
    pub used: u64,
}

impl AccessUse {
    pub(super) fn merge(&mut self, Self { granted, used }: Self) {
        self.granted = self.granted.saturating_add(granted);
        self.used = self.used.saturating_add(used);
    }

    pub(super) fn add(&mut self, is_granted: bool, is_used: bool) {
        self.granted += u64::from(is_granted);
        self.used += u64::from(is_granted && is_used);
    }
}

/// The greatest amounts of one limit that were granted and used. The difference is what a verdict could take away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitSlack {
    /// The limit.
    pub limit: LimitKind,
    /// The greatest amount that was granted to a run.
    pub granted: u64,
    /// The greatest amount that a run used; `None` if no receipt says it.
    pub used: Option<u64>,
}

/// A limit of runs. Receipts have the granted amount of each limit, and the used amount of most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum LimitKind {
    /// Guest memories and tables together, in bytes.
    MemoryBytes,
    /// CPU time in percent of wall time; 100 is one core.
    CpuPercent,
    /// The timeout and the wall time, in milliseconds.
    WallMs,
    /// Result, logs and artifacts together, in bytes.
    OutputBytes,
    /// Areas of the filesystem. Receipts do not say which of them a run used.
    Areas,
    /// A limit in the budgets of a run. Receipts do not have the number of handles and subscriptions.
    Budget(Limit),
    /// Requests over the network.
    Requests,
    /// Simultaneous connections.
    Connections,
    /// Bytes sent.
    SentBytes,
    /// Bytes received.
    ReceivedBytes,
    /// Calls to other tools.
    Calls,
    /// Simultaneous calls to other tools. Receipts do not have their number.
    ParallelCalls,
}

impl LimitKind {
    /// The kinds that are no budgets.
    const OTHERS: [Self; 11] = [
        Self::MemoryBytes,
        Self::CpuPercent,
        Self::WallMs,
        Self::OutputBytes,
        Self::Areas,
        Self::Requests,
        Self::Connections,
        Self::SentBytes,
        Self::ReceivedBytes,
        Self::Calls,
        Self::ParallelCalls,
    ];

    /// The name, with the unit last.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MemoryBytes => "memory_bytes",
            Self::CpuPercent => "cpu_percent",
            Self::WallMs => "wall_ms",
            Self::OutputBytes => "output_bytes",
            Self::Areas => "areas",
            Self::Budget(limit) => limit.as_str(),
            Self::Requests => "requests",
            Self::Connections => "connections",
            Self::SentBytes => "sent_bytes",
            Self::ReceivedBytes => "received_bytes",
            Self::Calls => "calls",
            Self::ParallelCalls => "parallel_calls",
        }
    }
}

impl From<LimitKind> for &'static str {
    fn from(limit: LimitKind) -> Self {
        limit.as_str()
    }
}

impl TryFrom<String> for LimitKind {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, &'static str> {
        let budgets = budget_rows().map(|row| Self::Budget(row.limit));
        Self::OTHERS.into_iter().chain(budgets).find(|kind| kind.as_str() == name).ok_or("not a limit")
    }
}

/// The granted and the used amount of one limit in one receipt; `granted` is `None` if the receipt lacks the limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct LimitAmounts {
    pub(super) limit: LimitKind,
    pub(super) granted: Option<u64>,
    pub(super) used: Option<u64>,
}

/// The amounts of all limits in a receipt.
pub(super) fn limit_amounts(
    outcome: &Outcome,
    calls: Option<&CallUsage>,
) -> impl Iterator<Item = LimitAmounts> {
    let Outcome { end: _, output: _, metrics, usage } = outcome;
    let Usage { memory, cpu, timeout, output, filesystem, budgets, spent, network_used, .. } = usage;
    let network = network_used.as_ref();
    let amounts = |limit, granted, used| LimitAmounts { limit, granted, used };
    let budgets = budget_rows().map(move |LimitRow { limit, .. }| {
        let used = spent.and_then(|spent| spent.amount(*limit));
        amounts(LimitKind::Budget(*limit), budgets.granted(*limit), used)
    });
    let network_amounts = |limit, granted: fn(&NetworkBudgets) -> u64, used: fn(&NetworkUsage) -> u64| {
        amounts(limit, network.map(|network| granted(&network.budgets)), network.map(used))
    };
    let timeout_ms = u64::try_from(timeout.value.duration().as_millis()).unwrap_or(u64::MAX);
    let others = [
        amounts(LimitKind::MemoryBytes, Some(memory.value.bytes()), Some(metrics.peak_memory_bytes)),
        amounts(LimitKind::CpuPercent, Some(cpu.value.get().into()), cpu_percent_rounded_up(metrics)),
        amounts(LimitKind::WallMs, Some(timeout_ms), Some(metrics.duration_ms())),
        amounts(LimitKind::OutputBytes, Some(output.value.bytes()), Some(metrics.output_bytes)),
        amounts(LimitKind::Areas, Some(filesystem.len() as u64), None),
        network_amounts(
            LimitKind::Requests,
            |budgets| budgets.requests.into(),
            |network| network.requests.into(),
        ),
        network_amounts(
            LimitKind::Connections,
            |budgets| budgets.connections.into(),
            |network| network.connections.into(),
        ),
        network_amounts(LimitKind::SentBytes, |budgets| budgets.sent_bytes, |network| network.sent_bytes),
        network_amounts(
            LimitKind::ReceivedBytes,
            |budgets| budgets.received_bytes,
            |network| network.received_bytes,
        ),
        amounts(
            LimitKind::Calls,
            calls.map(|calls| calls.max_calls.value.into()),
            calls.map(|calls| calls.count.into()),
        ),
        amounts(LimitKind::ParallelCalls, calls.map(|calls| calls.max_parallel.value.into()), None),
    ];
    others.into_iter().chain(budgets)
}

/// CPU time in percent of wall time, rounded up; `None` for a run that took no time.
fn cpu_percent_rounded_up(metrics: &RunMetrics) -> Option<u64> {
    let wall = metrics.wall.as_nanos();
    let percent = (metrics.cpu.as_nanos() * 100).checked_next_multiple_of(wall.max(1))?.checked_div(wall)?;
    Some(u64::try_from(percent).unwrap_or(u64::MAX))
}

impl Reader {
    pub(super) fn usage(
        &self,
        mut sums: UsageSums,
        since: Option<OffsetDateTime>,
        filter: &dyn Fn(&str) -> bool,
        max_rows: u64,
        refusal_budget: &mut ScanBudget,
        receipt_budget: &mut ScanBudget,
    ) -> Result<UsageSums, HistoryError> {
        // One snapshot for all chunks, as in `search_runs`.
        let _snapshot = self.connection().unchecked_transaction()?;
        sums.extent.are_refusals_complete = self.add_refusals(&mut sums, since, filter, refusal_budget)?;
        let scan = self.add_runs(&mut sums, since, filter, max_rows, receipt_budget)?;
        sums.extent.searched_until = scan.searched_until()?;
        sums.extent.is_complete = scan.is_at_end();
        Ok(sums)
    }

    /// Adds the refusals. Returns `false` if the budget was used up before all were added.
    fn add_refusals(
        &self,
        sums: &mut UsageSums,
        since: Option<OffsetDateTime>,
        filter: &dyn Fn(&str) -> bool,
        budget: &mut ScanBudget,
    ) -> Result<bool, HistoryError> {
        let mut scan = Scan::new(self.connection(), ScannedChain::Refusals, None, since)?;
        let mut statement = self.connection().prepare_cached(&format!(
            "SELECT {REFUSAL_COLUMNS} FROM refusals
             WHERE number >= ?1 AND number < ?2 AND (?3 IS NULL OR refused >= ?3) ORDER BY number DESC"
        ))?;
        while let Some(chunk) = scan.next_chunk(budget)? {
            let mut rows = statement.query(params![chunk.start, chunk.end, since.map(to_micros)])?;
            while let Some(row) = rows.next()? {
                let RefusalEntry { at: _, intent: _, agent, tool, blocked_by, message: _ } =
                    read_refusal(row)?;
                if filter(&agent) {
                    sums.add_refusal(&agent, &tool, &blocked_by);
                }
            }
        }
        Ok(scan.is_at_end())
    }

    /// Adds the runs. Returns the scan, which says how far it came.
    fn add_runs(
        &self,
        sums: &mut UsageSums,
        since: Option<OffsetDateTime>,
        filter: &dyn Fn(&str) -> bool,
        max_rows: u64,
        budget: &mut ScanBudget,
    ) -> Result<Scan<'_>, HistoryError> {
        let mut scan = Scan::new(self.connection(), ScannedChain::Records, None, since)?;
        let columns = run_columns();
        let mut statement = self.connection().prepare_cached(&format!(
            "SELECT {columns} FROM records
             WHERE number >= ?1 AND number < ?2 AND kind = 'receipt' AND (?3 IS NULL OR at >= ?3)
             ORDER BY number DESC"
        ))?;
        while let Some(chunk) = scan.next_chunk(budget)? {
            let mut rows = statement.query(params![chunk.start, chunk.end, since.map(to_micros)])?;
            while let Some(row) = rows.next()? {
                let run = FoundRun::read(row)?;
                if filter(run.agent) {
                    let receipt = run.parse_receipt(&run.body(self)?)?;
                    sums.add_run(&run, &receipt);
                }
                if sums.runs() >= max_rows || budget.is_over() {
                    scan.stop_after(run.record);
                    return Ok(scan);
                }
            }
        }
        Ok(scan)
    }
}
