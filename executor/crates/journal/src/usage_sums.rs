//! The sums from which usage is computed, in constant memory: only counts, maxima and a histogram of fixed size are kept for
//! each agent and tool. The sums of several executors can be merged.

use super::needs::NeedSums;
use super::search::FoundRun;
use super::series::{SeriesSpan, SeriesSums};
use super::usage::{
    AccessUse, GroupUsage, LimitAmounts, LimitKind, LimitSlack, StatusCounts, UsageFigures, UsageSummary,
    limit_amounts,
};
use super::wall_histogram::WallHistogram;
use a2g_types::limit::Access;
use a2g_types::outcome::{AbortReason, Outcome, Receipt};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use time::OffsetDateTime;

/// The maximum number of agents, and of tools, with figures of their own. Each takes about 4 kB, so all of them take
/// less than 2 MB.
const MAX_GROUPS: usize = 200;

/// `false` for a lost run: its receipt was written before it began.
fn is_measured(receipt: &Receipt) -> bool {
    receipt.outcome.end.abort_reason() != Some(AbortReason::Lost)
}

/// The sums of one group.
#[derive(Debug, Default, Serialize, Deserialize)]
struct FigureSums {
    runs: u64,
    by_status: StatusCounts,
    wall: WallHistogram,
    refusals: BTreeMap<String, u64>,
    slack: BTreeMap<LimitKind, LimitSlack>,
    network: AccessUse,
    writing: AccessUse,
    calling: AccessUse,
}

impl FigureSums {
    fn add_run(&mut self, receipt: &Receipt) {
        let Outcome { end, output: _, metrics, usage } = &receipt.outcome;
        self.runs += 1;
        self.by_status.add(end.status());
        if !is_measured(receipt) {
            return;
        }
        self.wall.add(metrics.wall);
        for LimitAmounts { limit, granted, used } in limit_amounts(&receipt.outcome, receipt.calls.as_ref()) {
            if let Some(granted) = granted {
                self.widen(LimitSlack { limit, granted, used });
            }
        }
        let may_write = usage.filesystem.iter().any(|area| area.access.value == Access::ReadWrite);
        let has_written = usage.spent.is_some_and(|spent| spent.has_written());
        self.writing.add(may_write, has_written);
        let requests = usage.network_used.as_ref().map_or(0, |network| network.requests);
        self.network.add(usage.network.value, requests > 0);
        let calls = receipt.calls.as_ref();
        self.calling.add(calls.is_some(), calls.is_some_and(|calls| calls.count > 0));
    }

    fn add_refusal(&mut self, blocked_by: &str) {
        match self.refusals.get_mut(blocked_by) {
            Some(count) => *count += 1,
            None => drop(self.refusals.insert(blocked_by.to_owned(), 1)),
        }
    }

    fn merge(&mut self, other: Self) {
        let Self { runs, by_status, wall, refusals, slack, network, writing, calling } = other;
        self.runs = self.runs.saturating_add(runs);
        self.by_status.merge(by_status);
        self.wall.merge(&wall);
        for (reason, count) in refusals {
            let known = self.refusals.entry(reason).or_default();
            *known = known.saturating_add(count);
        }
        slack.into_values().for_each(|slack| self.widen(slack));
        self.network.merge(network);
        self.writing.merge(writing);
        self.calling.merge(calling);
    }

    /// Widens the maxima of a limit.
    fn widen(&mut self, LimitSlack { limit, granted, used }: LimitSlack) {
        let known = self.slack.entry(limit).or_insert(LimitSlack { limit, granted, used });
        known.granted = known.granted.max(granted);
        known.used = known.used.max(used);
    }

    fn finish(self) -> UsageFigures {
        let Self { runs, by_status, wall, refusals, slack, network, writing, calling } = self;
        let wall = wall.percentiles();
        let slack = slack.into_values().collect();
        UsageFigures { runs, by_status, wall, refusals, slack, network, writing, calling }
    }
}

/// The sums of all runs and refusals that were read, and of each agent and tool.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct UsageSums {
    total: FigureSums,
    agents: BTreeMap<String, FigureSums>,
    tools: BTreeMap<String, FigureSums>,
    is_grouping_truncated: bool,
    series: Option<SeriesSums>,
    needs: NeedSums,
    pub(super) extent: ReadExtent,
}

/// The part of a journal that was read.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReadExtent {
    #[serde(with = "time::serde::timestamp::microseconds::option")]
    pub(super) searched_until: Option<OffsetDateTime>,
    pub(super) is_complete: bool,
    pub(super) are_refusals_complete: bool,
}

impl Default for ReadExtent {
    /// The extent of an empty journal.
    fn default() -> Self {
        Self { searched_until: None, is_complete: true, are_refusals_complete: true }
    }
}

impl ReadExtent {
    fn merge(&mut self, other: &Self) {
        let open_until = |extent: &Self| extent.searched_until.filter(|_| !extent.is_complete);
        // Runs before the latest of these times are missing.
        self.searched_until = open_until(self).max(open_until(other));
        self.is_complete &= other.is_complete;
        self.are_refusals_complete &= other.are_refusals_complete;
    }
}

impl UsageSums {
    pub(super) fn new(span: Option<SeriesSpan>) -> Self {
        Self { series: span.map(SeriesSums::new), ..Self::default() }
    }

    /// The number of runs that were added.
    pub(super) fn runs(&self) -> u64 {
        self.total.runs
    }

    pub(super) fn add_run(&mut self, run: &FoundRun<'_>, receipt: &Receipt) {
        self.add_to_groups(run.agent, run.tool, |sums| sums.add_run(receipt));
        let is_measured = is_measured(receipt);
        self.needs.add(run.agent, run.tool, receipt, is_measured);
        if let Some(series) = &mut self.series {
            series.add(receipt, run.ended, is_measured.then_some(receipt.outcome.metrics.wall));
        }
    }

    pub(super) fn add_refusal(&mut self, agent: &str, tool: &str, blocked_by: &str) {
        self.add_to_groups(agent, tool, |sums| sums.add_refusal(blocked_by));
    }

    /// Calls `add` with the sums of everything, of an agent and of a tool.
    fn add_to_groups(&mut self, agent: &str, tool: &str, add: impl Fn(&mut FigureSums)) {
        add(&mut self.total);
        for (groups, name) in [(&mut self.agents, agent), (&mut self.tools, tool)] {
            if let Some(sums) = groups.get_mut(name) {
                add(sums);
            } else if groups.len() < MAX_GROUPS {
                add(groups.entry(name.to_owned()).or_default());
            } else {
                self.is_grouping_truncated = true;
            }
        }
    }

    /// Adds the sums of another executor. If its series has another span, there is no series any more.
    pub fn merge(&mut self, other: Self) {
        let Self { total, agents, tools, is_grouping_truncated, series, needs, extent } = other;
        self.total.merge(total);
        self.is_grouping_truncated |= is_grouping_truncated;
        for (own, others) in [(&mut self.agents, agents), (&mut self.tools, tools)] {
            for (name, sums) in others {
                own.entry(name).or_default().merge(sums);
            }
            self.is_grouping_truncated |= own.len() > MAX_GROUPS;
            keep_largest(own, MAX_GROUPS);
        }
        let is_merged = match (&mut self.series, series) {
            (Some(own), Some(other)) => own.merge(other),
            (None, _) | (_, None) => false,
        };
        if !is_merged {
            self.series = None;
        }
        self.needs.merge(needs);
        self.extent.merge(&extent);
    }

    /// Writes the sums as JSON. If it has more than `max_bytes`, the needs, and then the agents and tools with the fewest
    /// runs, are left out. Returns `None` if it is longer even without these.
    #[must_use]
    pub fn to_json(mut self, max_bytes: usize) -> Option<String> {
        let mut max_groups = MAX_GROUPS;
        loop {
            let text = serde_json::to_string(&self).ok()?;
            if text.len() <= max_bytes {
                return Some(text);
            }
            if !self.needs.is_empty() {
                self.needs = NeedSums::truncated();
            } else if max_groups > 0 {
                max_groups /= 2;
                self.is_grouping_truncated = true;
                keep_largest(&mut self.agents, max_groups);
                keep_largest(&mut self.tools, max_groups);
            } else {
                return None;
            }
        }
    }

    /// Computes the figures.
    #[must_use]
    pub fn finish(self) -> UsageSummary {
        let Self { total, agents, tools, is_grouping_truncated, series, needs, extent } = self;
        let ReadExtent { searched_until, is_complete, are_refusals_complete } = extent;
        let are_needs_truncated = needs.is_truncated;
        UsageSummary {
            total: total.finish(),
            agents: finish_groups(agents),
            tools: finish_groups(tools),
            is_grouping_truncated,
            series: series.map(SeriesSums::finish),
            needs: needs.finish(),
            are_needs_truncated,
            searched_until,
            is_complete,
            are_refusals_complete,
        }
    }
}

/// Keeps the groups with the most runs.
fn keep_largest(groups: &mut BTreeMap<String, FigureSums>, max_groups: usize) {
    let mut all = std::mem::take(groups).into_iter().collect::<Vec<_>>();
    all.sort_by_key(|(_, sums)| Reverse(sums.runs));
    groups.extend(all.into_iter().take(max_groups));
}

/// The figures of each group, the one with the most runs first.
fn finish_groups(groups: BTreeMap<String, FigureSums>) -> Vec<GroupUsage> {
    let groups = groups.into_iter().map(|(name, sums)| GroupUsage { name, figures: sums.finish() });
    let mut groups = groups.collect::<Vec<_>>();
    groups.sort_by_key(|group| Reverse(group.figures.runs));
    groups
}
