//! The limits of one layer, and the lattice in which the limits of several layers meet.
//!
//! [`Limits`] is a meet-semilattice: `meet` is commutative, associative and idempotent, its result is never wider than
//! either side, and [`Limits::default`], which sets no limit, is its top. The property tests in `tests.rs` check these
//! laws.

use super::glob::Glob;
use super::reach::{HostClaims, Reach};
use super::scope::Area;
use a2g_types::ident::SecretName;
use a2g_types::limit::{Access, Bound, ClaimedLimits, FileEffects, Layer, LimitMap};
use a2g_types::tool::CallTargets;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The limits that one layer sets. `None` leaves a limit to the other layers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claims {
    /// The counted amounts that the layer sets.
    pub limits: ClaimedLimits,
    /// `true` if the run may use the network.
    pub network: Option<bool>,
    /// The hosts that a run with a network may reach.
    pub hosts: HostClaims,
    /// The parts of the filesystem that may be accessed; an empty list allows none.
    pub areas: Option<Vec<Area>>,
    /// The widest access to files.
    pub access: Option<Access>,
    /// The time at which the file changes of the run take effect.
    pub effects: Option<FileEffects>,
    /// Patterns of the paths that may not be accessed, with everything below their matches.
    pub blocked: Vec<Glob>,
    /// The tools that the run may call.
    pub calls: Option<CallTargets>,
    /// The secrets that the run's requests may get, of those that are bound to it.
    pub secrets: Option<BTreeSet<SecretName>>,
}

/// The meet of the limits of some layers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    pub(super) limits: LimitMap<Option<Bound<u64>>>,
    pub(super) network: Option<Bound<bool>>,
    pub(super) reach: Reach,
    /// An antichain: no area in it covers another.
    pub(super) areas: Option<BTreeSet<Area>>,
    /// Every area that a layer named, to find the layer that an area of the meet comes from.
    pub(super) named: BTreeSet<(Area, Layer)>,
    pub(super) access: Option<Bound<Access>>,
    /// Reversed, because a later variant is narrower.
    pub(super) effects: Option<Bound<Reverse<FileEffects>>>,
    pub(super) blocked: BTreeSet<(Glob, Layer)>,
    /// Every layer's targets, all of which have to include a called tool.
    pub(super) calls: BTreeSet<(Layer, CallTargets)>,
    /// Every layer's secrets, all of which have to include a used one.
    pub(super) secrets: BTreeSet<(Layer, BTreeSet<SecretName>)>,
}

impl Limits {
    /// The limits of one layer.
    #[must_use]
    pub fn from_claims(layer: Layer, claims: Claims) -> Self {
        fn bound<T>(layer: Layer, value: Option<T>) -> Option<Bound<T>> {
            value.map(|value| Bound { value, layer })
        }
        let Claims { limits, network, hosts, areas, access, effects, blocked, calls, secrets } = claims;
        Self {
            limits: LimitMap::from_fn(|limit| bound(layer, limits[limit])),
            network: bound(layer, network),
            reach: Reach::from_claims(layer, hosts),
            named: areas.iter().flatten().map(|area| (area.clone(), layer)).collect(),
            areas: areas.map(|areas| remove_covered(areas.into_iter().collect())),
            access: bound(layer, access),
            effects: bound(layer, effects.map(Reverse)),
            blocked: blocked.into_iter().map(|glob| (glob, layer)).collect(),
            calls: calls.into_iter().map(|targets| (layer, targets)).collect(),
            secrets: secrets.into_iter().map(|names| (layer, names)).collect(),
        }
    }

    /// The layer that an area of the meet is attributed to: the one that named the narrowest area covering it, or of
    /// several such layers the first in the order of [`Layer`].
    pub(super) fn layer_of(&self, area: &Area) -> Layer {
        let covering: Vec<_> = self.named.iter().filter(|(named, _)| named.covers(area)).collect();
        let narrowest = covering.iter().filter(|(a, _)| !covering.iter().any(|(b, _)| a != b && a.covers(b)));
        narrowest.map(|(_, layer)| *layer).min().unwrap_or(Layer::Executor)
    }

    /// `true` if the areas of both sides have more than `max_overlaps` overlaps. The cost of the meet is quadratic in
    /// their number, so a malicious governor could otherwise keep a server busy for minutes.
    #[must_use]
    pub(super) fn has_more_overlaps_than(&self, other: &Self, max_overlaps: usize) -> bool {
        let (Some(a), Some(b)) = (&self.areas, &other.areas) else { return false };
        let mut distinct = BTreeSet::new();
        a.len().saturating_mul(b.len()) > max_overlaps
            && overlaps(a, b).any(|area| {
                distinct.insert(area);
                distinct.len() > max_overlaps
            })
    }

    /// The limits that both sides allow, never wider than either.
    #[must_use]
    pub fn meet(self, other: Self) -> Self {
        fn narrower<T: Ord>(a: Option<Bound<T>>, b: Option<Bound<T>>) -> Option<Bound<T>> {
            match (a, b) {
                (Some(a), Some(b)) => Some(a.narrower(b)),
                (only, None) | (None, only) => only,
            }
        }
        let mut blocked = self.blocked;
        blocked.extend(other.blocked);
        let mut named = self.named;
        named.extend(other.named);
        let mut calls = self.calls;
        calls.extend(other.calls);
        let mut secrets = self.secrets;
        secrets.extend(other.secrets);
        Self {
            limits: LimitMap::from_fn(|limit| narrower(self.limits[limit], other.limits[limit])),
            network: narrower(self.network, other.network),
            reach: self.reach.meet(other.reach),
            areas: match (self.areas, other.areas) {
                (Some(a), Some(b)) => Some(intersect(&a, &b)),
                (only, None) | (None, only) => only,
            },
            named,
            access: narrower(self.access, other.access),
            effects: narrower(self.effects, other.effects),
            blocked,
            calls,
            secrets,
        }
    }
}

/// Removes the areas that another one covers.
fn remove_covered(areas: BTreeSet<Area>) -> BTreeSet<Area> {
    let is_covered = |area: &&Area| areas.iter().any(|other| other != *area && other.covers(area));
    areas.iter().filter(|area| !is_covered(area)).cloned().collect()
}

/// All overlaps of an area of one side with an area of the other.
fn overlaps(a: &BTreeSet<Area>, b: &BTreeSet<Area>) -> impl Iterator<Item = Area> {
    a.iter().flat_map(|x| b.iter().filter_map(|y| x.meet(y)))
}

fn intersect(a: &BTreeSet<Area>, b: &BTreeSet<Area>) -> BTreeSet<Area> {
    remove_covered(overlaps(a, b).collect())
}
