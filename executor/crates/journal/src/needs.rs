//! The amounts that the runs of each agent with each tool needed of the limits in a standing policy or a `tool.toml`.
//!
//! Under limits of these amounts, the same runs would still have been allowed. A set is `None` if the receipts do not list
//! everything.

use a2g_types::ident::ToolName;
use a2g_types::outcome::{NestedEnd, NetworkUsage, Receipt};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of pairs of an agent and a tool whose needs are kept. Each takes up to 8 kB.
const MAX_PAIRS: usize = 400;
/// The maximum number of hosts, and of called tools, that are kept for one pair.
const MAX_NAMES: usize = 24;

/// The needs of one agent's runs of one tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairNeeds {
    /// The agent.
    pub agent: String,
    /// The tool.
    pub tool: String,
    /// The needs.
    pub needs: RunNeeds,
}

/// The greatest needs of a group of measured runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunNeeds {
    /// The number of measured runs.
    pub runs: u64,
    /// The number of runs whose use is not known, because the executor ended while they ran.
    pub unmeasured: u64,
    /// Peak memory, in bytes.
    pub memory_bytes: u64,
    /// The greatest memory that was granted, in bytes.
    pub granted_memory_bytes: u64,
    /// Wall time, in milliseconds.
    pub wall_ms: u64,
    /// The greatest timeout that was granted, in milliseconds.
    pub granted_ms: u64,
    /// `true` if some run got a part of the filesystem.
    pub has_files: bool,
    /// `true` if some run wrote bytes or created names in files, or ended before it reported that.
    pub has_written: bool,
    /// `true` if some run made a request over the network.
    pub has_used_network: bool,
    /// The hosts that were contacted; `None` if receipts do not name all of them.
    pub hosts: Option<BTreeSet<String>>,
    /// `true` if some run could call other tools.
    pub may_call: bool,
    /// The greatest number of calls to other tools of one run, including refused ones.
    pub calls: u32,
    /// The tools that were called; `None` if receipts do not name all of them.
    pub called: Option<BTreeSet<ToolName>>,
}

impl Default for RunNeeds {
    /// The needs of no run.
    fn default() -> Self {
        Self {
            runs: 0,
            unmeasured: 0,
            memory_bytes: 0,
            granted_memory_bytes: 0,
            wall_ms: 0,
            granted_ms: 0,
            has_files: false,
            has_written: false,
            has_used_network: false,
            hosts: Some(BTreeSet::new()),
            may_call: false,
            calls: 0,
            called: Some(BTreeSet::new()),
        }
    }
}

impl RunNeeds {
    /// Widens the needs by those of other runs.
    pub fn merge(&mut self, other: &Self) {
        let Self {
            runs,
            unmeasured,
            memory_bytes,
            granted_memory_bytes,
            wall_ms,
            granted_ms,
            has_files,
            has_written,
            has_used_network,
            hosts,
            may_call,
            calls,
            called,
        } = other;
        self.runs = self.runs.saturating_add(*runs);
        self.unmeasured = self.unmeasured.saturating_add(*unmeasured);
        self.memory_bytes = self.memory_bytes.max(*memory_bytes);
        self.granted_memory_bytes = self.granted_memory_bytes.max(*granted_memory_bytes);
        self.wall_ms = self.wall_ms.max(*wall_ms);
        self.granted_ms = self.granted_ms.max(*granted_ms);
        self.has_files |= has_files;
        self.has_written |= has_written;
        self.has_used_network |= has_used_network;
        self.may_call |= may_call;
        self.calls = self.calls.max(*calls);
        extend(&mut self.hosts, hosts.as_ref().map(|hosts| hosts.iter().cloned()));
        extend(&mut self.called, called.as_ref().map(|called| called.iter().cloned()));
    }

    /// Adds a run that was measured.
    fn add(&mut self, receipt: &Receipt) {
        let outcome = &receipt.outcome;
        let metrics = &outcome.metrics;
        let usage = &outcome.usage;
        self.runs += 1;
        self.memory_bytes = self.memory_bytes.max(metrics.peak_memory_bytes);
        self.granted_memory_bytes = self.granted_memory_bytes.max(usage.memory.value.bytes());
        self.wall_ms = self.wall_ms.max(metrics.duration_ms());
        let granted_ms = u64::try_from(usage.timeout.value.duration().as_millis()).unwrap_or(u64::MAX);
        self.granted_ms = self.granted_ms.max(granted_ms);
        self.has_files |= !usage.filesystem.is_empty();
        self.has_written |= usage.spent.is_none_or(|spent| spent.has_written());
        if let Some(network) = usage.network_used.as_ref().filter(|network| network.requests > 0) {
            self.has_used_network = true;
            extend(&mut self.hosts, contacted_hosts(network).map(Vec::into_iter));
        }
        if let Some(calls) = &receipt.calls {
            self.may_call = true;
            self.calls = self.calls.max(calls.count);
            let are_all_listed = u32::try_from(calls.calls.len()) == Ok(calls.count);
            let allowed = calls.calls.iter().filter(|call| call.end != NestedEnd::Refused);
            let allowed = allowed.filter_map(|call| ToolName::parse(&call.tool).ok());
            extend(&mut self.called, are_all_listed.then_some(allowed));
        }
    }
}

/// Adds names to a set, which becomes `None` if they are not known, or if it has too many.
fn extend<T: Ord>(set: &mut Option<BTreeSet<T>>, names: Option<impl Iterator<Item = T>>) {
    let Some(names) = names else {
        *set = None;
        return;
    };
    let Some(known) = set.as_mut() else { return };
    for name in names {
        known.insert(name);
        if known.len() > MAX_NAMES {
            *set = None;
            return;
        }
    }
}

/// The hosts that a run contacted; `None` if the list is truncated, or if some request is not counted at any contact. Such a
/// request may have been only a DNS look-up, which a list of the contacted hosts would refuse.
fn contacted_hosts(network: &NetworkUsage) -> Option<Vec<String>> {
    let NetworkUsage { contacted, contacted_truncated, requests, .. } = network;
    let counted = contacted.iter().map(|contact| u64::from(contact.requests)).sum::<u64>();
    if *contacted_truncated || counted < u64::from(*requests) {
        return None;
    }
    let host = |authority: &str| {
        let (_scheme, rest) = authority.split_once("://")?;
        Some(rest.rsplit_once(':')?.0.to_owned())
    };
    contacted.iter().map(|contact| host(&contact.authority)).collect()
}

/// The needs of all pairs while receipts are read.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(from = "NeedList", into = "NeedList")]
pub(super) struct NeedSums {
    pairs: BTreeMap<(String, String), RunNeeds>,
    pub(super) is_truncated: bool,
}

/// [`NeedSums`] in JSON, in which a pair cannot be a key.
#[derive(Serialize, Deserialize)]
struct NeedList {
    pairs: Vec<PairNeeds>,
    is_truncated: bool,
}

impl From<NeedSums> for NeedList {
    fn from(needs: NeedSums) -> Self {
        Self { is_truncated: needs.is_truncated, pairs: needs.finish() }
    }
}

impl From<NeedList> for NeedSums {
    fn from(NeedList { pairs, is_truncated }: NeedList) -> Self {
        let mut sums = Self { pairs: BTreeMap::new(), is_truncated };
        for PairNeeds { agent, tool, needs } in pairs {
            if let Some(own) = sums.needs_of((agent, tool)) {
                own.merge(&needs);
            }
        }
        sums
    }
}

impl NeedSums {
    /// The sums of needs that are not known.
    pub(super) fn truncated() -> Self {
        Self { is_truncated: true, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Adds a run. `is_measured` is `false` for a run whose use is not known.
    pub(super) fn add(&mut self, agent: &str, tool: &str, receipt: &Receipt, is_measured: bool) {
        match self.needs_of((agent.to_owned(), tool.to_owned())) {
            Some(needs) if is_measured => needs.add(receipt),
            Some(needs) => needs.unmeasured += 1,
            None => {}
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.is_truncated |= other.is_truncated;
        for (pair, needs) in other.pairs {
            if let Some(own) = self.needs_of(pair) {
                own.merge(&needs);
            }
        }
    }

    /// The needs of a pair; `None` if there are too many pairs.
    fn needs_of(&mut self, pair: (String, String)) -> Option<&mut RunNeeds> {
        if !self.pairs.contains_key(&pair) && self.pairs.len() >= MAX_PAIRS {
            self.is_truncated = true;
            return None;
        }
        Some(self.pairs.entry(pair).or_default())
    }

    pub(super) fn finish(self) -> Vec<PairNeeds> {
        let pairs = self.pairs.into_iter();
        pairs.map(|((agent, tool), needs)| PairNeeds { agent, tool, needs }).collect()
    }
}
