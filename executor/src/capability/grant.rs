//! The grant: every limit of one run, each with the layer that set it.

use super::limits::{Claims, Limits};
use super::reach::{HostClaims, Reach};
use super::scope::{Pattern, ScopeError, Tree};
use crate::ident::excerpt;
use crate::limit::{Access, Bound, Budgets, Layer, NetworkBudgets};
use crate::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The executor's own ceilings. They have a value for every limit, so that a limit that no other
/// layer names is still a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ceilings {
    /// The most memory of one run.
    pub memory: MemoryLimit,
    /// The largest share of CPU of one run.
    pub cpu: CpuPercent,
    /// The longest run.
    pub timeout: Timeout,
    /// The most output of one run.
    pub output: OutputLimit,
    /// Whether any run may have the network.
    pub network: bool,
    /// Whom a run with a network may reach at all. An absent list allows nobody.
    pub hosts: HostClaims,
    /// What one run may do with the network.
    pub network_budgets: NetworkBudgets,
    /// The trees that may be granted at all.
    pub trees: Vec<Tree>,
    /// Whether files may be changed at all.
    pub access: Access,
    /// What one run may leave on the disk.
    pub budgets: Budgets,
}

/// The limits of one run, in force and complete.
///
/// Only [`Grant::new`] makes one; there is no `Default`, no `From` and no `Deserialize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    memory: Bound<MemoryLimit>,
    cpu: Bound<CpuPercent>,
    timeout: Bound<Timeout>,
    output: Bound<OutputLimit>,
    network: Bound<bool>,
    reach: Reach,
    network_budgets: NetworkBudgets,
    trees: Vec<Bound<Tree>>,
    emptied_by: Option<Layer>,
    access: Bound<Access>,
    budgets: Budgets,
}

/// A grant as it is written down on its way to another process; see [`super::handover`]. Whom the run
/// may reach stays behind: the process that is asked to reach someone decides by its own grant.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Carried {
    memory: Bound<MemoryLimit>,
    cpu: Bound<CpuPercent>,
    timeout: Bound<Timeout>,
    output: Bound<OutputLimit>,
    network: Bound<bool>,
    network_budgets: NetworkBudgets,
    trees: Vec<Bound<String>>,
    emptied_by: Option<Layer>,
    access: Bound<Access>,
    budgets: Budgets,
}

impl Grant {
    pub(super) fn carry(self) -> Carried {
        let Self {
            memory,
            cpu,
            timeout,
            output,
            network,
            reach: _,
            network_budgets,
            trees,
            emptied_by,
            access,
            budgets,
        } = self;
        let trees = trees.into_iter().map(|Bound { value, layer }| {
            let value = value.path().to_owned();
            Bound { value, layer }
        });
        Carried {
            memory,
            cpu,
            timeout,
            output,
            network,
            network_budgets,
            trees: trees.collect(),
            emptied_by,
            access,
            budgets,
        }
    }

    pub(super) fn carried(carried: Carried) -> Option<Self> {
        let Carried {
            memory,
            cpu,
            timeout,
            output,
            network,
            network_budgets,
            trees,
            emptied_by,
            access,
            budgets,
        } = carried;
        let trees = trees.into_iter().map(|Bound { value, layer }| {
            let value = Tree::parse_path(&value).ok()?;
            Some(Bound { value, layer })
        });
        let trees = trees.collect::<Option<_>>()?;
        Some(Self {
            memory,
            cpu,
            timeout,
            output,
            network,
            reach: Reach::default(),
            network_budgets,
            trees,
            emptied_by,
            access,
            budgets,
        })
    }

    /// The meet of the layers under the executor's ceilings, and of the ceilings themselves.
    ///
    /// # Errors
    /// [`ScopeError::Unenforceable`] when a blocked pattern lies inside a granted tree, where this
    /// version cannot keep a guest away from it.
    pub fn new(
        layers: impl IntoIterator<Item = (Layer, Claims)>,
        ceilings: &Ceilings,
    ) -> Result<Self, ScopeError> {
        let hosts = HostClaims {
            allowed: Some(ceilings.hosts.allowed.clone().unwrap_or_default()),
            ..ceilings.hosts.clone()
        };
        let own = Claims { trees: Some(ceilings.trees.clone()), hosts, ..Claims::default() };
        let mut met = Limits::default();
        let mut emptied_by = None;
        let mut cut_off_by = None;
        for (layer, claims) in layers.into_iter().chain([(Layer::Executor, own)]) {
            met = met.meet(Limits::of(layer, claims));
            let empty = met.trees.as_ref().is_some_and(BTreeMap::is_empty);
            emptied_by = emptied_by.or(empty.then_some(layer));
            cut_off_by = cut_off_by.or(met.reach.is_nobody().then_some(layer));
        }
        // A network with nobody in it is none.
        let cut_off = cut_off_by.map(|layer| Bound { value: false, layer });
        let network = under(ceilings.network, met.network);
        let network = match cut_off {
            Some(cut_off) if network.value => cut_off,
            Some(_) | None => network,
        };
        let trees = met.trees.unwrap_or_default();
        let grant = Self {
            memory: under(ceilings.memory, met.memory),
            cpu: under(ceilings.cpu, met.cpu),
            timeout: under(ceilings.timeout, met.timeout),
            output: under(ceilings.output, met.output),
            network,
            reach: met.reach,
            network_budgets: ceilings.network_budgets,
            access: under(ceilings.access, met.access),
            trees: trees.into_iter().map(|(value, layer)| Bound { value, layer }).collect(),
            emptied_by,
            budgets: ceilings.budgets,
        };
        grant.without(&met.blocked)
    }

    /// Takes blocked trees out of the grant, and refuses what cannot be taken out.
    fn without(mut self, blocked: &BTreeSet<(Pattern, Layer)>) -> Result<Self, ScopeError> {
        for (pattern, layer) in blocked {
            let inside_a_tree = match pattern {
                Pattern::Tree(blocked) => {
                    self.trees.retain(|tree| !blocked.covers(&tree.value));
                    self.trees.iter().any(|tree| tree.value.covers(blocked))
                }
                Pattern::Glob(_) => !self.trees.is_empty(),
            };
            if inside_a_tree {
                return Err(ScopeError::Unenforceable { pattern: excerpt(&pattern.to_string()) });
            }
            if self.trees.is_empty() {
                self.emptied_by = self.emptied_by.or(Some(*layer));
            }
        }
        Ok(self)
    }

    /// The most memory.
    #[must_use]
    pub fn memory(&self) -> Bound<MemoryLimit> {
        self.memory
    }

    /// The largest share of CPU.
    #[must_use]
    pub fn cpu(&self) -> Bound<CpuPercent> {
        self.cpu
    }

    /// The longest run.
    #[must_use]
    pub fn timeout(&self) -> Bound<Timeout> {
        self.timeout
    }

    /// The most output.
    #[must_use]
    pub fn output(&self) -> Bound<OutputLimit> {
        self.output
    }

    /// Whether the network is granted. One in which nobody may be reached is not.
    #[must_use]
    pub fn network(&self) -> Bound<bool> {
        self.network
    }

    /// Whom the run may reach. In the process of a guest nobody: it asks, and its server decides.
    #[must_use]
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// What the run may do with the network.
    #[must_use]
    pub fn network_budgets(&self) -> NetworkBudgets {
        self.network_budgets
    }

    /// The granted trees, sorted by path; none of them covers another.
    #[must_use]
    pub fn trees(&self) -> &[Bound<Tree>] {
        &self.trees
    }

    /// The layer that left no tree, when there is none.
    #[must_use]
    pub fn emptied_by(&self) -> Option<Layer> {
        self.emptied_by
    }

    /// What the run may leave on the disk.
    #[must_use]
    pub fn budgets(&self) -> Budgets {
        self.budgets
    }

    /// Whether files may be changed.
    #[must_use]
    pub fn access(&self) -> Bound<Access> {
        self.access
    }
}

fn under<T: Ord>(ceiling: T, said: Option<Bound<T>>) -> Bound<T> {
    let ceiling = Bound { value: ceiling, layer: Layer::Executor };
    match said {
        Some(said) => said.narrower(ceiling),
        None => ceiling,
    }
}
