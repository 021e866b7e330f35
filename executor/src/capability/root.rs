//! What of one opened folder is granted.
//!
//! Everything here is asked of absolute guest paths that were walked to from the opened root, name by
//! name; never of a path as a guest sent it.

use super::glob::Glob;
use super::limits::Limits;
use super::scope::{Area, Tree};
use crate::limit::{Bound, Layer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A folder that a guest finds open, and what of it is granted: what lies in one of its areas and is
/// not blocked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    tree: Tree,
    areas: Vec<Bound<Area>>,
    blocked: Vec<Bound<Glob>>,
}

/// A root as it is written down on its way to another process; see [`super::handover`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Carried {
    tree: String,
    areas: Vec<(String, Vec<String>, Layer)>,
    blocked: Vec<Bound<String>>,
}

impl Root {
    /// The roots of a meet, and the layer that blocked all of the last one when none is left.
    pub(super) fn of(met: &Limits) -> (Vec<Self>, Option<Layer>) {
        let areas = || met.areas.iter().flatten();
        let outermost = |tree: &Tree| !areas().any(|other| other.root() != tree && other.root().covers(tree));
        let trees: BTreeSet<&Tree> = areas().map(Area::root).filter(|tree| outermost(tree)).collect();
        let mut blocked_by = None;
        let mut roots = Vec::new();
        for tree in trees {
            let here = |glob: &Glob| glob.matches_at_or_above(tree.path()) || glob.leads(tree.path());
            let blocked = met.blocked.iter().filter(|(glob, _)| here(glob));
            let blocked = blocked.map(|(glob, layer)| Bound { value: glob.clone(), layer: *layer });
            let inside = areas().filter(|area| tree.covers(area.root()));
            let areas = inside.map(|area| Bound { value: area.clone(), layer: met.layer_of(area) });
            let root = Self { tree: tree.clone(), areas: areas.collect(), blocked: blocked.collect() };
            match root.blocker(tree.path()) {
                Some(by) => blocked_by = Some(by),
                None => roots.push(root),
            }
        }
        let left = roots.is_empty();
        (roots, blocked_by.filter(|_| left))
    }

    pub(super) fn carry(&self) -> Carried {
        let area = |Bound { value, layer }: &Bound<Area>| {
            let globs = value.globs().iter().map(|glob| glob.text().to_owned()).collect();
            (value.root().path().to_owned(), globs, *layer)
        };
        let glob = |Bound { value, layer }: &Bound<Glob>| {
            let value = value.text().to_owned();
            Bound { value, layer: *layer }
        };
        Carried {
            tree: self.tree.path().to_owned(),
            areas: self.areas.iter().map(area).collect(),
            blocked: self.blocked.iter().map(glob).collect(),
        }
    }

    pub(super) fn carried(Carried { tree, areas, blocked }: Carried) -> Option<Self> {
        let area = |(root, globs, layer): (String, Vec<String>, Layer)| {
            Some(Bound { value: Area::carried(&root, &globs)?, layer })
        };
        let glob =
            |Bound { value, layer }: Bound<String>| Some(Bound { value: Glob::carried(&value)?, layer });
        let tree = Tree::parse_path(&tree).ok()?;
        let areas = areas.into_iter().map(area).collect::<Option<Vec<_>>>()?;
        // An area beside the folder could grant what no handle was opened for.
        if !areas.iter().all(|area| tree.covers(area.value.root())) {
            return None;
        }
        let blocked = blocked.into_iter().map(glob).collect::<Option<_>>()?;
        Some(Self { tree, areas, blocked })
    }

    /// The folder.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The areas of it that are granted, each with the layer whose pattern it is.
    #[must_use]
    pub fn areas(&self) -> &[Bound<Area>] {
        &self.areas
    }

    /// What is taken out of them, with all below it.
    #[must_use]
    pub fn blocked(&self) -> &[Bound<Glob>] {
        &self.blocked
    }

    /// Whether the folder is granted with all that lies below it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let whole = |area: &Bound<Area>| area.value.root() == &self.tree && area.value.globs().is_empty();
        self.blocked.is_empty() && self.areas.iter().any(whole)
    }

    /// Whether what lies at `path` is granted.
    #[must_use]
    pub fn grants(&self, path: &str) -> bool {
        self.areas.iter().any(|area| area.value.holds(path)) && self.blocker(path).is_none()
    }

    /// Whether something below the folder `path` may be granted, so that a guest may walk through it
    /// and find its name, and no more.
    #[must_use]
    pub fn leads(&self, path: &str) -> bool {
        self.areas.iter().any(|area| area.value.leads(path)) && self.blocker(path).is_none()
    }

    /// Whether `path` and all that lies below it, now or later, is granted.
    #[must_use]
    pub fn grants_all_below(&self, path: &str) -> bool {
        self.areas.iter().any(|area| area.value.holds_all_below(path))
            && self.blocker(path).is_none()
            && !self.blocked.iter().any(|blocked| blocked.value.leads(path))
    }

    fn blocker(&self, path: &str) -> Option<Layer> {
        let blocked = self.blocked.iter().find(|blocked| blocked.value.matches_at_or_above(path));
        blocked.map(|blocked| blocked.layer)
    }
}
