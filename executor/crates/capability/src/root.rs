//! The granted part of an opened folder.
//!
//! All checks here take absolute guest paths that were resolved name by name from the opened root, never paths as a
//! guest sent them.

use super::glob::Glob;
use super::limits::Limits;
use super::scope::{Area, Tree};
use a2g_types::limit::{Bound, Layer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A folder that is opened for a guest, with the granted part of it: the paths that lie in one of its areas and are not
/// blocked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    tree: Tree,
    areas: Vec<Bound<Area>>,
    blocked: Vec<Bound<Glob>>,
}

/// The serialized form of a root for another process; see [`super::handover`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RootTransfer {
    tree: String,
    areas: Vec<(String, Vec<String>, Layer)>,
    blocked: Vec<Bound<String>>,
}

impl Root {
    /// The roots of a meet. If all of them are blocked, also the layer that blocked the last one.
    pub(super) fn from_limits(limits: &Limits) -> (Vec<Self>, Option<Layer>) {
        let areas = || limits.areas.iter().flatten();
        let is_outermost =
            |tree: &Tree| !areas().any(|other| other.root() != tree && other.root().covers(tree));
        let trees: BTreeSet<&Tree> = areas().map(Area::root).filter(|tree| is_outermost(tree)).collect();
        let mut blocked_by = None;
        let mut roots = Vec::new();
        for tree in trees {
            let is_relevant =
                |glob: &Glob| glob.matches_at_or_above(tree.path()) || glob.can_match_below(tree.path());
            let blocked = limits.blocked.iter().filter(|(glob, _)| is_relevant(glob));
            let blocked = blocked.map(|(glob, layer)| Bound { value: glob.clone(), layer: *layer });
            let inside = areas().filter(|area| tree.covers(area.root()));
            let areas = inside.map(|area| Bound { value: area.clone(), layer: limits.layer_of(area) });
            let root = Self { tree: tree.clone(), areas: areas.collect(), blocked: blocked.collect() };
            match root.blocking_layer(tree.path()) {
                Some(layer) => blocked_by = Some(layer),
                None => roots.push(root),
            }
        }
        let blocked_by = blocked_by.filter(|_| roots.is_empty());
        (roots, blocked_by)
    }

    pub(super) fn to_transfer(&self) -> RootTransfer {
        let area = |Bound { value, layer }: &Bound<Area>| {
            let globs = value.globs().iter().map(|glob| glob.text().to_owned()).collect();
            (value.root().path().to_owned(), globs, *layer)
        };
        let glob = |Bound { value, layer }: &Bound<Glob>| {
            let value = value.text().to_owned();
            Bound { value, layer: *layer }
        };
        RootTransfer {
            tree: self.tree.path().to_owned(),
            areas: self.areas.iter().map(area).collect(),
            blocked: self.blocked.iter().map(glob).collect(),
        }
    }

    pub(super) fn from_transfer(RootTransfer { tree, areas, blocked }: RootTransfer) -> Option<Self> {
        let area = |(root, globs, layer): (String, Vec<String>, Layer)| {
            Some(Bound { value: Area::from_parts(&root, &globs)?, layer })
        };
        let glob =
            |Bound { value, layer }: Bound<String>| Some(Bound { value: Glob::from_text(&value)?, layer });
        let tree = Tree::parse_path(&tree).ok()?;
        let areas = areas.into_iter().map(area).collect::<Option<Vec<_>>>()?;
        // An area outside the folder could grant a path that no handle was opened for.
        if !areas.iter().all(|area| tree.covers(area.value.root())) {
            return None;
        }
        let blocked = blocked.into_iter().map(glob).collect::<Option<_>>()?;
        Some(Self { tree, areas, blocked })
    }

    /// The opened folder, by its guest path.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The granted areas of the folder, each with the layer that set its pattern.
    #[must_use]
    pub fn areas(&self) -> &[Bound<Area>] {
        &self.areas
    }

    /// The patterns excluded from the areas, with everything below their matches.
    #[must_use]
    pub fn blocked_globs(&self) -> &[Bound<Glob>] {
        &self.blocked
    }

    /// `true` if the folder is granted with everything below it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let is_whole = |area: &Bound<Area>| area.value.root() == &self.tree && area.value.globs().is_empty();
        self.blocked.is_empty() && self.areas.iter().any(is_whole)
    }

    /// `true` if `path` is granted.
    #[must_use]
    pub fn grants(&self, path: &str) -> bool {
        self.areas.iter().any(|area| area.value.contains(path)) && self.blocking_layer(path).is_none()
    }

    /// `true` if something below the folder `path` may be granted. A guest may then traverse the folder and see its
    /// name, and no more.
    #[must_use]
    pub fn can_grant_below(&self, path: &str) -> bool {
        self.areas.iter().any(|area| area.value.can_contain_below(path))
            && self.blocking_layer(path).is_none()
    }

    /// `true` if `path` is granted with everything that is or can be created below it.
    #[must_use]
    pub fn grants_all_below(&self, path: &str) -> bool {
        self.areas.iter().any(|area| area.value.contains_all_below(path))
            && self.blocking_layer(path).is_none()
            && !self.blocked.iter().any(|blocked| blocked.value.can_match_below(path))
    }

    fn blocking_layer(&self, path: &str) -> Option<Layer> {
        let blocked = self.blocked.iter().find(|blocked| blocked.value.matches_at_or_above(path));
        blocked.map(|blocked| blocked.layer)
    }
}
