//! The grant: every limit of one run, each with the layer that set it.

use super::authority::{Authority, EngineId};
use super::limits::{Claims, Limits};
use super::reach::{HostClaims, HostPattern, Reach};
use super::root::{Root, RootTransfer};
use super::scope::{Area, ScopeError};
use super::secrets::{GrantedSecret, Placeholder, SecretBinding};
use a2g_types::ident::{AgentDid, SecretName, ToolName};
use a2g_types::limit::{Access, Bound, Budgets, FileEffects, Layer, Limit, LimitMap, NetworkBudgets};
use a2g_types::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use a2g_types::tool::CallTargets;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

/// Maximum number of areas of a grant, and of a layer.
const MAX_AREAS: usize = 256;
/// Maximum number of overlaps between the areas of two layers, including those inside another overlap.
const MAX_OVERLAPS: usize = 4 * MAX_AREAS;

/// The executor's own ceilings. Every limit has a value here, so a limit that no other layer names is still bounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ceilings {
    /// The counted amount of each limit.
    pub limits: LimitMap<u64>,
    /// `true` if runs may use the network.
    pub network: bool,
    /// The hosts that a run with a network may reach. Without a list of allowed hosts, it may reach none.
    pub hosts: HostClaims,
    /// The hosts that the runs of these tools may reach, instead of the allowed ones of `hosts`.
    pub tool_hosts: BTreeMap<ToolName, Vec<HostPattern>>,
    /// The network budgets of one run.
    pub network_budgets: NetworkBudgets,
    /// The parts of the filesystem that may be granted.
    pub areas: Vec<Area>,
    /// The widest access to files that may be granted.
    pub access: Access,
    /// The time at which the file changes of every run take effect, unless another layer sets a narrower one.
    pub effects: FileEffects,
    /// `true` if runs may open files with several hard links, some of which may lie outside their scope.
    pub hard_links: bool,
    /// The secrets of the executor, each with the tools, agents and requests that it is for.
    pub secrets: Vec<Arc<SecretBinding>>,
}

impl Ceilings {
    /// The default limits, with no files and no network. To grant more, override fields:
    /// `Ceilings { areas, ..Ceilings::closed() }`.
    #[must_use]
    pub fn closed() -> Self {
        Self {
            limits: LimitMap::defaults(),
            network: false,
            hosts: HostClaims::default(),
            tool_hosts: BTreeMap::new(),
            network_budgets: NetworkBudgets::ZERO,
            areas: Vec::new(),
            access: Access::ReadOnly,
            effects: FileEffects::Direct,
            hard_links: false,
            secrets: Vec::new(),
        }
    }

    /// The ceilings of the runs of one tool, whose `hosts` are those of the tool if it has its own.
    #[must_use]
    pub fn for_tool(&self, tool: &ToolName) -> Cow<'_, Self> {
        let Some(hosts) = self.tool_hosts.get(tool) else { return Cow::Borrowed(self) };
        let hosts = HostClaims { allowed: Some(hosts.clone()), ..self.hosts.clone() };
        Cow::Owned(Self { hosts, ..self.clone() })
    }
}

/// The limits of one run, effective and complete.
///
/// Making a [`Permit`](super::Permit) consumes the grant, so it has no `Clone`, `Default`, `From` or `Deserialize`.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    /// The engine whose authority made it; `None` for one that every engine of this process runs.
    engine: Option<EngineId>,
    limits: LimitMap<Bound<u64>>,
    network: Bound<bool>,
    reach: Reach,
    network_budgets: NetworkBudgets,
    roots: Vec<Arc<Root>>,
    emptied_by: Option<Layer>,
    access: Bound<Access>,
    effects: Bound<FileEffects>,
    hard_links: bool,
    calls: CallGrant,
    /// The secrets that each layer allows.
    secret_names: BTreeSet<(Layer, BTreeSet<SecretName>)>,
    /// The secrets that are bound to the agent and the tool of the run; none before [`Self::bind_secrets`].
    secrets: Vec<GrantedSecret>,
    /// The placeholders of those of them that the run may use.
    placeholders: Vec<Placeholder>,
}

/// The calls to other tools that a run may make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallGrant {
    targets: BTreeSet<(Layer, CallTargets)>,
    max_calls: Bound<u32>,
    max_parallel: Bound<u32>,
    max_depth: u32,
}

impl CallGrant {
    /// No calls: for a run without access, and for a guest's process, which sends its calls to the server for a
    /// decision.
    fn none() -> Self {
        let none = cap_with_ceiling(0, None);
        Self { targets: BTreeSet::new(), max_calls: none, max_parallel: none, max_depth: 0 }
    }

    fn new(targets: BTreeSet<(Layer, CallTargets)>, limits: &LimitMap<Bound<u64>>) -> Self {
        let count = |limit| {
            let Bound { value, layer } = limits[limit];
            Bound { value: u32::try_from(value).unwrap_or(u32::MAX), layer }
        };
        Self {
            targets,
            max_calls: count(Limit::Calls),
            max_parallel: count(Limit::ParallelCalls),
            max_depth: count(Limit::CallDepth).value,
        }
    }

    /// `true` if the run may make calls: the tool declares some, and no layer sets the number of parallel calls to 0.
    /// All of them may still be refused; each refusal then names the layer that refuses it.
    #[must_use]
    pub fn allows_any(&self) -> bool {
        let declares_none =
            self.targets.iter().any(|(layer, targets)| *layer == Layer::Tool && targets.is_empty());
        !self.targets.is_empty() && !declares_none && self.max_parallel.value > 0
    }

    /// Checks that the run may call `tool`.
    ///
    /// # Errors
    /// The layer that does not allow it.
    pub fn check(&self, tool: &ToolName) -> Result<(), Layer> {
        let refusing = self.targets.iter().find(|(_, targets)| !targets.includes(tool));
        match refusing {
            Some((layer, _)) => Err(*layer),
            None if self.targets.is_empty() => Err(Layer::Executor),
            None => Ok(()),
        }
    }

    /// The tools that each layer allows. The run may call the tools that all layers allow.
    pub fn targets(&self) -> impl Iterator<Item = Bound<&CallTargets>> {
        self.targets.iter().map(|(layer, targets)| Bound { value: targets, layer: *layer })
    }

    /// Maximum number of calls, with the layer that set it.
    #[must_use]
    pub fn max_calls(&self) -> Bound<u32> {
        self.max_calls
    }

    /// Maximum number of simultaneous calls, with the layer that set it.
    #[must_use]
    pub fn max_parallel(&self) -> Bound<u32> {
        self.max_parallel
    }

    /// Maximum number of runs above a call.
    #[must_use]
    pub fn max_depth(&self) -> u32 {
        self.max_depth
    }
}

/// A read-only view of a grant that became a permit, for observers of the run. It cannot be turned back into a grant.
#[derive(Debug, Clone)]
pub struct GrantView(Arc<Grant>);

impl GrantView {
    pub(super) fn new(grant: Grant) -> Self {
        Self(Arc::new(grant))
    }

    /// The same grant, with at most `max` of a limit.
    pub(super) fn narrow(self, limit: Limit, max: u64) -> Self {
        if self.limits[limit].value <= max {
            return self;
        }
        let bound = Bound { value: max, layer: Layer::Executor };
        self.with_limits(LimitMap::from_fn(|each| if each == limit { bound } else { self.limits[each] }))
    }

    /// The same grant, with the limits of a turn.
    pub(super) fn for_turn(&self, turn: &TurnLimits) -> Self {
        if self.turn_limits() == *turn {
            return self.clone();
        }
        let mut limits = self.limits;
        limits[Limit::Time] = turn.time;
        limits[Limit::Cpu] = turn.cpu;
        self.with_limits(limits)
    }

    /// Returns `true` if both are equal except for the limits of a turn.
    #[must_use]
    pub fn is_of_same_session(&self, other: &Self) -> bool {
        self.is_same_grant(other) || *self.for_turn(&other.turn_limits()) == **other
    }

    fn with_limits(&self, limits: LimitMap<Bound<u64>>) -> Self {
        Self::new(Grant {
            engine: self.engine,
            limits,
            network: self.network,
            reach: self.reach.clone(),
            network_budgets: self.network_budgets,
            roots: self.roots.clone(),
            emptied_by: self.emptied_by,
            access: self.access,
            effects: self.effects,
            hard_links: self.hard_links,
            calls: self.calls.clone(),
            secret_names: self.secret_names.clone(),
            secrets: self.secrets.clone(),
            placeholders: self.placeholders.clone(),
        })
    }

    /// Returns `true` if both are views of the same grant, not only of equal ones.
    #[must_use]
    pub fn is_same_grant(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for GrantView {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.0
    }
}

/// The limits that each turn of a session has of its own. All others are the same for all turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnLimits {
    time: Bound<u64>,
    cpu: Bound<u64>,
}

/// The serialized form of a grant for another process; see [`super::handover`]. It omits the reachable hosts, the
/// calls and the secrets, but for their placeholders: the server checks them against its own copy of the grant.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GrantTransfer {
    limits: LimitMap<Bound<u64>>,
    network: Bound<bool>,
    network_budgets: NetworkBudgets,
    roots: Vec<RootTransfer>,
    emptied_by: Option<Layer>,
    access: Bound<Access>,
    effects: Bound<FileEffects>,
    hard_links: bool,
    placeholders: Vec<Placeholder>,
}

impl Grant {
    pub(super) fn to_transfer(&self) -> GrantTransfer {
        let Self {
            engine: _,
            limits,
            network,
            reach: _,
            network_budgets,
            roots,
            emptied_by,
            access,
            effects,
            hard_links,
            calls: _,
            secret_names: _,
            secrets: _,
            placeholders,
        } = self;
        GrantTransfer {
            limits: *limits,
            network: *network,
            network_budgets: *network_budgets,
            roots: roots.iter().map(|root| root.to_transfer()).collect(),
            emptied_by: *emptied_by,
            access: *access,
            effects: *effects,
            hard_links: *hard_links,
            placeholders: placeholders.clone(),
        }
    }

    pub(super) fn from_transfer(transfer: GrantTransfer) -> Option<Self> {
        let GrantTransfer {
            limits,
            network,
            network_budgets,
            roots,
            emptied_by,
            access,
            effects,
            hard_links,
            placeholders,
        } = transfer;
        let roots =
            roots.into_iter().map(|root| Root::from_transfer(root).map(Arc::new)).collect::<Option<_>>()?;
        Some(Self {
            engine: None,
            limits,
            network,
            reach: Reach::default(),
            network_budgets,
            roots,
            emptied_by,
            access,
            effects,
            hard_links,
            calls: CallGrant::none(),
            secret_names: BTreeSet::new(),
            secrets: Vec::new(),
            placeholders,
        })
    }

    /// The narrowest limits of all layers of an admitted call and of the ceilings.
    ///
    /// # Errors
    /// [`ScopeError::TooMany`] if a layer has too many patterns, or the layers' patterns have too many overlaps.
    pub fn meet(
        authority: &Authority,
        layers: impl IntoIterator<Item = (Layer, Claims)>,
        ceilings: &Ceilings,
    ) -> Result<Self, ScopeError> {
        Self::from_layers(authority, layers, ceilings)
    }

    /// The operator's own limits under the executor's ceilings. Reports name their layer `operator`, never `verdict`.
    ///
    /// # Errors
    /// As [`Self::meet`].
    pub fn for_operator(
        authority: &Authority,
        claims: Claims,
        ceilings: &Ceilings,
    ) -> Result<Self, ScopeError> {
        Self::from_layers(authority, [(Layer::Operator, claims)], ceilings)
    }

    /// The same grant, with the right to the secrets of `ceilings` that are for this agent and this tool. A
    /// layer that does not allow one withholds it. A grant has no secret before.
    #[must_use]
    pub fn bind_secrets(self, ceilings: &Ceilings, agent: &AgentDid, tool: &ToolName) -> Self {
        let bound = ceilings.secrets.iter().filter(|binding| binding.is_for(agent, tool));
        let withholding = |name: &SecretName| {
            let mut layers = self.secret_names.iter();
            layers.find(|(_, names)| !names.contains(name)).map(|(layer, _)| *layer)
        };
        let granted = bound.map(|binding| GrantedSecret {
            binding: Arc::clone(binding),
            withheld_by: withholding(binding.name()),
        });
        let secrets = granted.collect::<Vec<_>>();
        let usable = secrets.iter().filter(|secret| secret.withheld_by.is_none());
        let placeholders = usable.filter_map(|secret| secret.binding.placeholder().cloned()).collect();
        Self { secrets, placeholders, ..self }
    }

    /// A grant with neither files, network nor calls, and otherwise with the limits of `ceilings`.
    pub(super) fn without_access(ceilings: &Ceilings) -> Self {
        Self {
            engine: None,
            limits: LimitMap::from_fn(|limit| cap_with_ceiling(ceilings.limits[limit], None)),
            network: cap_with_ceiling(false, None),
            reach: Reach::default(),
            network_budgets: NetworkBudgets::ZERO,
            roots: Vec::new(),
            emptied_by: Some(Layer::Executor),
            access: cap_with_ceiling(Access::ReadOnly, None),
            effects: cap_with_ceiling(FileEffects::Direct, None),
            hard_links: ceilings.hard_links,
            calls: CallGrant::none(),
            secret_names: BTreeSet::new(),
            secrets: Vec::new(),
            placeholders: Vec::new(),
        }
    }

    fn from_layers(
        authority: &Authority,
        layers: impl IntoIterator<Item = (Layer, Claims)>,
        ceilings: &Ceilings,
    ) -> Result<Self, ScopeError> {
        let hosts = HostClaims {
            allowed: Some(ceilings.hosts.allowed.clone().unwrap_or_default()),
            ..ceilings.hosts.clone()
        };
        let ceiling_claims = Claims { areas: Some(ceilings.areas.clone()), hosts, ..Claims::default() };
        let mut limits = Limits::default();
        let mut emptied_by = None;
        let mut hosts_emptied_by = None;
        for (layer, claims) in layers.into_iter().chain([(Layer::Executor, ceiling_claims)]) {
            check_area_count(claims.areas.as_ref().map_or(0, Vec::len).max(claims.blocked.len()))?;
            let claims = Limits::from_claims(layer, claims);
            if limits.has_more_overlaps_than(&claims, MAX_OVERLAPS) {
                return Err(ScopeError::TooMany { max: MAX_AREAS });
            }
            limits = limits.meet(claims);
            check_area_count(limits.areas.as_ref().map_or(0, BTreeSet::len))?;
            let is_empty = limits.areas.as_ref().is_some_and(BTreeSet::is_empty);
            emptied_by = emptied_by.or(is_empty.then_some(layer));
            hosts_emptied_by = hosts_emptied_by.or(limits.reach.is_allowed_list_blocked().then_some(layer));
        }
        // A network without any reachable host counts as no network.
        let network = cap_with_ceiling(ceilings.network, limits.network);
        let network = match hosts_emptied_by {
            Some(layer) if network.value => Bound { value: false, layer },
            Some(_) | None => network,
        };
        let (roots, blocked_by) = Root::from_limits(&limits);
        // Each limit has a ceiling, so one that no layer names keeps it.
        let capped =
            LimitMap::from_fn(|limit| cap_with_ceiling(ceilings.limits[limit], limits.limits[limit]));
        let Bound { value: Reverse(effects), layer: effects_set_by } =
            cap_with_ceiling(Reverse(ceilings.effects), limits.effects);
        Ok(Self {
            engine: authority.engine(),
            limits: capped,
            network,
            reach: limits.reach,
            network_budgets: ceilings.network_budgets,
            access: cap_with_ceiling(ceilings.access, limits.access),
            effects: Bound { value: effects, layer: effects_set_by },
            roots: roots.into_iter().map(Arc::new).collect(),
            emptied_by: emptied_by.or(blocked_by),
            hard_links: ceilings.hard_links,
            calls: CallGrant::new(limits.calls, &capped),
            secret_names: limits.secrets,
            secrets: Vec::new(),
            placeholders: Vec::new(),
        })
    }

    /// The only engine that runs under the grant; `None` if every engine of this process does: the grant was made with
    /// the process's only authority, received from another process, or has no access to anything.
    #[must_use]
    pub fn engine(&self) -> Option<EngineId> {
        self.engine
    }

    /// The counted amount of a limit, with the layer that set it.
    #[must_use]
    pub fn limit(&self, limit: Limit) -> Bound<u64> {
        self.limits[limit]
    }

    /// Maximum memory, with the layer that set it.
    #[must_use]
    pub fn memory(&self) -> Bound<MemoryLimit> {
        self.limits.quantity()
    }

    /// Maximum share of CPU, with the layer that set it.
    #[must_use]
    pub fn cpu(&self) -> Bound<CpuPercent> {
        self.limits.quantity()
    }

    /// Maximum duration, with the layer that set it.
    #[must_use]
    pub fn timeout(&self) -> Bound<Timeout> {
        self.limits.quantity()
    }

    /// The limits that a run has of its own if it is a turn of a session.
    #[must_use]
    pub fn turn_limits(&self) -> TurnLimits {
        TurnLimits { time: self.limit(Limit::Time), cpu: self.limit(Limit::Cpu) }
    }

    /// Maximum output, with the layer that set it.
    #[must_use]
    pub fn output(&self) -> Bound<OutputLimit> {
        self.limits.quantity()
    }

    /// `true` if the run may use the network, with the layer that decided. `false` if the run may reach no host.
    #[must_use]
    pub fn network(&self) -> Bound<bool> {
        self.network
    }

    /// The hosts that the run may reach. Empty in a guest's process, which sends its requests to the server for a
    /// decision.
    #[must_use]
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// The network budgets of the run.
    #[must_use]
    pub fn network_budgets(&self) -> NetworkBudgets {
        self.network_budgets
    }

    /// The granted roots, sorted by path. None of them lies inside another.
    #[must_use]
    pub fn roots(&self) -> &[Arc<Root>] {
        &self.roots
    }

    /// `true` if every root is granted with everything below it.
    #[must_use]
    pub fn has_only_whole_trees(&self) -> bool {
        self.roots.iter().all(|root| root.is_whole())
    }

    /// `true` if the path of each file call has to be resolved name by name, which needs WASI 0.2: some root is only partly
    /// granted, or file changes are kept apart.
    #[must_use]
    pub fn checks_each_path(&self) -> bool {
        !self.has_only_whole_trees() || !self.effects.value.is_direct()
    }

    /// The layer that removed the last part of the filesystem; `None` if some part is granted.
    #[must_use]
    pub fn emptied_by(&self) -> Option<Layer> {
        self.emptied_by
    }

    /// The other host resources that the run may hold and consume.
    #[must_use]
    pub fn budgets(&self) -> Budgets {
        Budgets::of(&self.limits, self.hard_links)
    }

    /// The calls to other tools that the run may make. None in a guest's process, which sends its calls to the server
    /// for a decision.
    #[must_use]
    pub fn calls(&self) -> &CallGrant {
        &self.calls
    }

    /// The secrets that are bound to the agent and the tool of the run, also the withheld ones. None in a guest's
    /// process: the server sets them in the requests that it sends.
    #[must_use]
    pub fn secrets(&self) -> &[GrantedSecret] {
        &self.secrets
    }

    /// The variables with placeholders that the guest gets. Each run gets other texts in them.
    #[must_use]
    pub fn placeholders(&self) -> &[Placeholder] {
        &self.placeholders
    }

    /// `true` if the run may change something outside itself: write a file, use the network or call another tool.
    #[must_use]
    pub fn allows_effects(&self) -> bool {
        let writes = match self.access.value {
            Access::ReadOnly => false,
            Access::ReadWrite => !self.roots.is_empty(),
        };
        writes || self.network.value || self.calls.allows_any()
    }

    /// The granted access to files, with the layer that set it.
    #[must_use]
    pub fn access(&self) -> Bound<Access> {
        self.access
    }

    /// The time at which the file changes of the run take effect, with the layer that set it.
    #[must_use]
    pub fn effects(&self) -> Bound<FileEffects> {
        self.effects
    }
}

fn check_area_count(areas: usize) -> Result<(), ScopeError> {
    if areas > MAX_AREAS { Err(ScopeError::TooMany { max: MAX_AREAS }) } else { Ok(()) }
}

fn cap_with_ceiling<T: Ord>(ceiling: T, claimed: Option<Bound<T>>) -> Bound<T> {
    let ceiling = Bound { value: ceiling, layer: Layer::Executor };
    match claimed {
        Some(claimed) => claimed.narrower(ceiling),
        None => ceiling,
    }
}
