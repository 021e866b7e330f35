//! One layer's claims, and the lattice in which they meet.
//!
//! [`Limits`] is a meet-semilattice: `meet` is commutative, associative and idempotent, its result
//! is never wider than either side, and [`Limits::default`], which says nothing, is its top. The
//! property tests in `tests.rs` hold it to that.

use super::glob::Glob;
use super::reach::{HostClaims, Reach};
use super::scope::Area;
use crate::limit::{Access, Bound, Layer};
use crate::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use std::collections::BTreeSet;

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
    /// The parts of the filesystem that may be touched; an empty list allows none.
    pub areas: Option<Vec<Area>>,
    /// Whether files may be changed.
    pub access: Option<Access>,
    /// What may not be touched, with all below it.
    pub blocked: Vec<Glob>,
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
    /// An antichain: no area in it covers another.
    pub(super) areas: Option<BTreeSet<Area>>,
    /// Every area that some layer named, so that it can be told whose an area is.
    pub(super) named: BTreeSet<(Area, Layer)>,
    pub(super) access: Option<Bound<Access>>,
    pub(super) blocked: BTreeSet<(Glob, Layer)>,
}

impl Limits {
    /// The claims of one layer.
    #[must_use]
    pub fn of(layer: Layer, claims: Claims) -> Self {
        fn bound<T>(layer: Layer, value: Option<T>) -> Option<Bound<T>> {
            value.map(|value| Bound { value, layer })
        }
        let Claims { memory, cpu, timeout, output, network, hosts, areas, access, blocked } = claims;
        Self {
            memory: bound(layer, memory),
            cpu: bound(layer, cpu),
            timeout: bound(layer, timeout),
            output: bound(layer, output),
            network: bound(layer, network),
            reach: Reach::of(layer, hosts),
            named: areas.iter().flatten().map(|area| (area.clone(), layer)).collect(),
            areas: areas.map(|areas| outermost(areas.into_iter().collect())),
            access: bound(layer, access),
            blocked: blocked.into_iter().map(|glob| (glob, layer)).collect(),
        }
    }

    /// The layer that an area of the meet is owed to: of the areas that layers named and that hold all
    /// of it, the narrowest one's; of several, the first.
    pub(super) fn layer_of(&self, area: &Area) -> Layer {
        let wide: Vec<_> = self.named.iter().filter(|(wide, _)| wide.covers(area)).collect();
        let narrowest = wide.iter().filter(|(a, _)| !wide.iter().any(|(b, _)| a != b && a.covers(b)));
        narrowest.map(|(_, layer)| *layer).min().unwrap_or(Layer::Executor)
    }

    /// Whether the areas of both sides overlap in more than `most` ways. To meet them takes the square of
    /// these ways, so a governor that knows how could keep a server busy for minutes.
    #[must_use]
    pub(super) fn overlaps_in_more_than(&self, other: &Self, most: usize) -> bool {
        let (Some(a), Some(b)) = (&self.areas, &other.areas) else { return false };
        let mut ways = BTreeSet::new();
        a.len().saturating_mul(b.len()) > most
            && overlaps(a, b).any(|way| {
                ways.insert(way);
                ways.len() > most
            })
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
        let mut named = self.named;
        named.extend(other.named);
        Self {
            memory: narrower(self.memory, other.memory),
            cpu: narrower(self.cpu, other.cpu),
            timeout: narrower(self.timeout, other.timeout),
            output: narrower(self.output, other.output),
            network: narrower(self.network, other.network),
            reach: self.reach.meet(other.reach),
            areas: match (self.areas, other.areas) {
                (Some(a), Some(b)) => Some(common(&a, &b)),
                (said, None) | (None, said) => said,
            },
            named,
            access: narrower(self.access, other.access),
            blocked,
        }
    }
}

/// The areas that no other of them covers.
fn outermost(areas: BTreeSet<Area>) -> BTreeSet<Area> {
    let covered = |area: &&Area| areas.iter().any(|other| other != *area && other.covers(area));
    areas.iter().filter(|area| !covered(area)).cloned().collect()
}

/// Every overlap of an area of one side with an area of the other.
fn overlaps(a: &BTreeSet<Area>, b: &BTreeSet<Area>) -> impl Iterator<Item = Area> {
    a.iter().flat_map(|x| b.iter().filter_map(|y| x.meet(y)))
}

fn common(a: &BTreeSet<Area>, b: &BTreeSet<Area>) -> BTreeSet<Area> {
    outermost(overlaps(a, b).collect())
}
