//! One layer's claims, and the lattice in which they meet.
//!
//! [`Limits`] is a meet-semilattice: `meet` is commutative, associative and idempotent, its result
//! is never wider than either side, and [`Limits::default`], which says nothing, is its top. The
//! property tests in `tests.rs` hold it to that.

use super::reach::{HostClaims, Reach};
use super::scope::{Pattern, Tree};
use crate::limit::{Access, Bound, Layer};
use crate::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use std::collections::{BTreeMap, BTreeSet};

/// What one layer says. `None` says nothing about that limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claims {
    /// The most memory.
    pub memory: Option<MemoryLimit>,
    /// The largest share of CPU.
    pub cpu: Option<CpuPercent>,
    /// The longest run.
    pub timeout: Option<Timeout>,
    /// The most output.
    pub output: Option<OutputLimit>,
    /// Whether the network is on.
    pub network: Option<bool>,
    /// Whom a run with a network may reach.
    pub hosts: HostClaims,
    /// The trees that may be touched; an empty list allows none.
    pub trees: Option<Vec<Tree>>,
    /// Whether files may be changed.
    pub access: Option<Access>,
    /// Patterns that may not be touched.
    pub blocked: Vec<Pattern>,
}

/// The meet of the claims of some layers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    pub(super) memory: Option<Bound<MemoryLimit>>,
    pub(super) cpu: Option<Bound<CpuPercent>>,
    pub(super) timeout: Option<Bound<Timeout>>,
    pub(super) output: Option<Bound<OutputLimit>>,
    pub(super) network: Option<Bound<bool>>,
    pub(super) reach: Reach,
    /// An antichain: no tree in it covers another.
    pub(super) trees: Option<BTreeMap<Tree, Layer>>,
    pub(super) access: Option<Bound<Access>>,
    pub(super) blocked: BTreeSet<(Pattern, Layer)>,
}

impl Limits {
    /// The claims of one layer.
    #[must_use]
    pub fn of(layer: Layer, claims: Claims) -> Self {
        fn bound<T>(layer: Layer, value: Option<T>) -> Option<Bound<T>> {
            value.map(|value| Bound { value, layer })
        }
        let Claims { memory, cpu, timeout, output, network, hosts, trees, access, blocked } = claims;
        Self {
            memory: bound(layer, memory),
            cpu: bound(layer, cpu),
            timeout: bound(layer, timeout),
            output: bound(layer, output),
            network: bound(layer, network),
            reach: Reach::of(layer, hosts),
            trees: trees.map(|trees| outermost(layer, &trees)),
            access: bound(layer, access),
            blocked: blocked.into_iter().map(|pattern| (pattern, layer)).collect(),
        }
    }

    /// What both sides allow. Never wider than either.
    #[must_use]
    pub fn meet(self, other: Self) -> Self {
        fn narrower<T: Ord>(a: Option<Bound<T>>, b: Option<Bound<T>>) -> Option<Bound<T>> {
            match (a, b) {
                (Some(a), Some(b)) => Some(a.narrower(b)),
                (said, None) | (None, said) => said,
            }
        }
        let mut blocked = self.blocked;
        blocked.extend(other.blocked);
        Self {
            memory: narrower(self.memory, other.memory),
            cpu: narrower(self.cpu, other.cpu),
            timeout: narrower(self.timeout, other.timeout),
            output: narrower(self.output, other.output),
            network: narrower(self.network, other.network),
            reach: self.reach.meet(other.reach),
            trees: match (self.trees, other.trees) {
                (Some(a), Some(b)) => Some(common(&a, &b)),
                (said, None) | (None, said) => said,
            },
            access: narrower(self.access, other.access),
            blocked,
        }
    }
}

/// The trees of a list that no other tree of it covers.
fn outermost(layer: Layer, trees: &[Tree]) -> BTreeMap<Tree, Layer> {
    let covered = |tree: &Tree| trees.iter().any(|other| other != tree && other.covers(tree));
    trees.iter().filter(|tree| !covered(tree)).map(|tree| (tree.clone(), layer)).collect()
}

/// Every overlap of a tree of one side with a tree of the other, which is the inner of the two.
fn common(a: &BTreeMap<Tree, Layer>, b: &BTreeMap<Tree, Layer>) -> BTreeMap<Tree, Layer> {
    let mut shared = BTreeMap::new();
    for (x, &x_layer) in a {
        for (y, &y_layer) in b {
            let (inner, layer) = match (x.covers(y), y.covers(x)) {
                (true, true) => (x, x_layer.min(y_layer)),
                (true, false) => (y, y_layer),
                (false, true) => (x, x_layer),
                (false, false) => continue,
            };
            shared
                .entry(inner.clone())
                .and_modify(|first: &mut Layer| *first = (*first).min(layer))
                .or_insert(layer);
        }
    }
    shared
}
