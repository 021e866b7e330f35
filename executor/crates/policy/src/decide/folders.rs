//! What a call is granted of the folders that policies name.
//!
//! Each folder is a cell: its files, without those of the folders below it that policies name too. An open cell is
//! granted as its whole tree, and the closed ones below it are blocked. So a region is an open folder with the open
//! ones that follow each other below it:
//!
//! ```text
//! /w          open ──────▶ region /w/**
//! ├── a       open         part of it
//! ├── secrets closed ────▶ blocked
//! │   └── x   open         a region of its own, which lies in a blocked tree
//! └── …
//! /etc        closed
//! └── ssl     open ──────▶ region /etc/ssl/**
//! ```
//! A rule blocks more than it allows where both match, so `x` cannot be granted together with `/w`. It is granted alone
//! to a call whose arguments name files in it, and none of the region around it.

use a2g_capability::Tree;
use std::collections::{BTreeSet, HashMap};

/// The answer of the policies for a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    /// A permit applies, and no forbid.
    Open,
    /// The same, but it is open only as a part of the folder around it: no permit names it or one around it.
    Within,
    /// No permit applies, or a forbid does.
    Closed,
}

/// The files that a call needs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need<'a> {
    /// All that it is granted: its arguments are a program.
    All,
    /// Those that its arguments name, by absolute paths without `.` and `..`.
    Paths(&'a [String]),
}

impl Need<'_> {
    /// `true` if the answer for a folder matters: it contains a path of the arguments, or lies at or below one. Then
    /// all folders above it matter too.
    pub(super) fn concerns(self, tree: &Tree) -> bool {
        let is_below = |path: &str| {
            let rest = tree.path().strip_prefix(path.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.has_path(|path| tree.contains(path) || is_below(path))
    }

    /// `true` if the call needs something in a folder.
    fn is_in(self, tree: &Tree) -> bool {
        self.has_path(|path| tree.contains(path))
    }

    /// `true` if the call needs one of these paths.
    pub(super) fn has_path(self, is_one: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::All => true,
            Self::Paths(paths) => paths.iter().any(|path| is_one(path)),
        }
    }
}

/// The folders of policies, by path.
#[derive(Debug)]
pub(super) struct Folders<'a> {
    trees: Vec<&'a Tree>,
    by_path: HashMap<&'a str, usize>,
}

/// What is granted, as indices of the folders.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Layout {
    /// The regions, with those that the call does not need: a message about a path outside names them.
    pub(super) regions: Vec<usize>,
    /// The folders in regions that the call needs, which are not granted with them.
    pub(super) blocked: Vec<usize>,
    /// The folders that are granted with the regions that the call needs.
    pub(super) granted: Vec<usize>,
}

/// The place of a folder in a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In no region.
    Outside,
    /// In a region that the call needs.
    Granted,
    /// In a region that it does not need.
    Unneeded,
    /// In a blocked tree.
    Blocked,
}

impl<'a> Folders<'a> {
    /// Folders, each before those below it.
    pub(super) fn of(trees: impl IntoIterator<Item = &'a Tree>) -> Self {
        let trees = trees.into_iter().collect::<Vec<_>>();
        let by_path = trees.iter().enumerate().map(|(index, tree)| (tree.path(), index)).collect();
        Self { trees, by_path }
    }

    /// The folder to which a path belongs.
    pub(super) fn of_path(&self, path: &str) -> Option<usize> {
        self.by_path.get(path).copied().or_else(|| self.above(path))
    }

    /// The nearest folder above a path.
    fn above(&self, path: &str) -> Option<usize> {
        let folders = path.rmatch_indices('/').filter_map(|(end, _)| path.get(..end));
        folders.filter_map(|folder| self.by_path.get(folder)).copied().next()
    }

    fn tree(&self, index: usize) -> Option<&'a Tree> {
        self.trees.get(index).copied()
    }

    /// The first folder of the region to which a path belongs, if it belongs to one.
    fn region_of(&self, path: &str, cells: &[Cell]) -> Option<usize> {
        let mut region = None;
        let mut next = self.of_path(path);
        while let Some(index) = next {
            match cells.get(index) {
                Some(Cell::Open) => region = Some(index),
                Some(Cell::Within) => {}
                Some(Cell::Closed) | None => break,
            }
            next = self.tree(index).and_then(|tree| self.above(tree.path()));
        }
        region
    }

    /// `true` if each path that a call names, and at least one, lies in an open region. Then the folders that its need
    /// does not concern make no difference.
    pub(super) fn has_all(&self, cells: &[Cell], need: Need<'_>) -> bool {
        match need {
            Need::All => true,
            Need::Paths(paths) => {
                !paths.is_empty() && paths.iter().all(|path| self.region_of(path, cells).is_some())
            }
        }
    }

    /// What a call is granted. `cells` has the answer for each folder that `need` concerns.
    pub(super) fn layout(&self, cells: &[Cell], need: Need<'_>) -> Layout {
        let around = self.regions_around(cells, need);
        let mut layout = Layout::default();
        let mut places = Vec::with_capacity(self.trees.len());
        for (index, (tree, cell)) in self.trees.iter().zip(cells).enumerate() {
            let place_above = self.above(tree.path()).and_then(|above| places.get(above).copied());
            // A folder that the arguments do not concern is not granted with the folder around it.
            let is_granted_within = *cell != Cell::Closed && need.concerns(tree);
            let place = match place_above.unwrap_or(Place::Outside) {
                Place::Granted if is_granted_within => Place::Granted,
                Place::Granted => {
                    layout.blocked.push(index);
                    Place::Blocked
                }
                Place::Blocked => Place::Blocked,
                Place::Unneeded if *cell != Cell::Closed => Place::Unneeded,
                Place::Unneeded | Place::Outside if *cell != Cell::Open => Place::Outside,
                Place::Unneeded | Place::Outside if around.contains(&index) => Place::Unneeded,
                Place::Unneeded | Place::Outside => {
                    layout.regions.push(index);
                    if need.is_in(tree) { Place::Granted } else { Place::Unneeded }
                }
            };
            if place == Place::Granted {
                layout.granted.push(index);
            }
            places.push(place);
        }
        layout
    }

    /// The regions around another one that the call needs, in which it needs nothing else.
    fn regions_around(&self, cells: &[Cell], need: Need<'_>) -> BTreeSet<usize> {
        let Need::Paths(paths) = need else { return BTreeSet::new() };
        let needed = paths.iter().filter_map(|path| self.region_of(path, cells)).collect::<BTreeSet<_>>();
        let mut around = BTreeSet::new();
        for index in &needed {
            let mut next = self.tree(*index);
            while let Some(above) = next.and_then(|tree| self.above(tree.path())) {
                if !needed.contains(&above) {
                    around.insert(above);
                }
                next = self.tree(above);
            }
        }
        around
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Cell::{Closed, Open, Within};

    fn texts(folders: &[&str]) -> Vec<String> {
        folders.iter().map(ToString::to_string).collect()
    }

    /// Lays folders out, and names the regions, the blocked folders and the granted ones.
    fn lay_out(cells: &[(&str, Cell)], need: Need<'_>) -> (Vec<String>, Vec<String>, Vec<String>) {
        let trees = cells.iter().map(|(path, _)| Tree::parse_path(path).unwrap()).collect::<Vec<_>>();
        let folders = Folders::of(&trees);
        let answers = cells.iter().map(|(_, cell)| *cell).collect::<Vec<_>>();
        let Layout { regions, blocked, granted } = folders.layout(&answers, need);
        let paths = |indices: Vec<usize>| indices.into_iter().map(|index| trees[index].path().to_owned());
        (paths(regions).collect(), paths(blocked).collect(), paths(granted).collect())
    }

    #[test]
    fn a_program_is_granted_all_open_folders_without_the_closed_ones_below() {
        for (cells, regions, blocked, granted) in [
            (
                &[("/w", Open), ("/w/a", Closed), ("/w-a", Open)][..],
                &["/w", "/w-a"][..],
                &["/w/a"][..],
                &["/w", "/w-a"][..],
            ),
            (&[], &[], &[], &[]),
            (&[("/w", Closed)], &[], &[], &[]),
            (&[("/w", Open), ("/w/a", Open)], &["/w"], &[], &["/w", "/w/a"]),
            // By no permit, or by a forbid that leaves the child out.
            (&[("/w", Closed), ("/w/a", Open)], &["/w/a"], &[], &["/w/a"]),
            (&[("/w", Closed), ("/w/a", Closed), ("/w/a/b/c", Open)], &["/w/a/b/c"], &[], &["/w/a/b/c"]),
            // A closed folder below a blocked one needs no pattern, and an open one has no effect there.
            (&[("/w", Open), ("/w/a", Closed), ("/w/a/b", Closed)], &["/w"], &["/w/a"], &["/w"]),
            (&[("/w", Open), ("/w/a", Closed), ("/w/a/b", Open)], &["/w"], &["/w/a"], &["/w"]),
            // What no permit names is open in a region, and is none.
            (&[("/w", Open), ("/w/a", Within)], &["/w"], &[], &["/w", "/w/a"]),
            (&[("/w", Within), ("/w/a", Open), ("/x", Within)], &["/w/a"], &[], &["/w/a"]),
        ] {
            let expected = (texts(regions), texts(blocked), texts(granted));
            assert_eq!(lay_out(cells, Need::All), expected, "{cells:?}");
        }
    }

    #[test]
    fn arguments_narrow_the_grant_to_the_folders_that_they_concern() {
        let cells = [
            ("/etc", Closed),
            ("/etc/ssl", Open),
            ("/w", Open),
            ("/w/a", Open),
            ("/w/a/b", Open),
            ("/w/secrets", Closed),
            ("/w/secrets/x", Open),
        ];
        for (paths, regions, blocked, granted) in [
            (&["/w/f"][..], &["/etc/ssl", "/w"][..], &["/w/a", "/w/secrets"][..], &["/w"][..]),
            // No file is named, and none is granted.
            (&[], &["/etc/ssl", "/w", "/w/secrets/x"], &[], &[]),
            (&["/tmp/f"], &["/etc/ssl", "/w", "/w/secrets/x"], &[], &[]),
            (&["/w/a/f"], &["/etc/ssl", "/w"], &["/w/a/b", "/w/secrets"], &["/w", "/w/a"]),
            (&["/w/a"], &["/etc/ssl", "/w"], &["/w/secrets"], &["/w", "/w/a", "/w/a/b"]),
            (&["/w"], &["/etc/ssl", "/w"], &["/w/secrets"], &["/w", "/w/a", "/w/a/b"]),
            (&["/w/f", "/w/a/b/g"], &["/etc/ssl", "/w"], &["/w/secrets"], &["/w", "/w/a", "/w/a/b"]),
            (&["/etc/ssl/f"], &["/etc/ssl", "/w", "/w/secrets/x"], &[], &["/etc/ssl"]),
            // Only the inner region is needed, so the outer one does not block it.
            (&["/w/secrets/x/f"], &["/etc/ssl", "/w/secrets/x"], &[], &["/w/secrets/x"]),
            // Both are needed: the inner one stays blocked, and the path in it is refused.
            (&["/w/f", "/w/secrets/x/f"], &["/etc/ssl", "/w"], &["/w/a", "/w/secrets"], &["/w"]),
            (&["/w/secrets/f"], &["/etc/ssl", "/w"], &["/w/a", "/w/secrets"], &["/w"]),
        ] {
            let expected = (texts(regions), texts(blocked), texts(granted));
            assert_eq!(lay_out(&cells, Need::Paths(&texts(paths))), expected, "{paths:?}");
        }
    }

    #[test]
    fn a_path_belongs_to_the_deepest_folder_around_it() {
        let trees = ["/w", "/w-a", "/w/a"].map(|path| Tree::parse_path(path).unwrap());
        let folders = Folders::of(&trees);
        for (path, expected) in [
            ("/w", Some(0)),
            ("/w/b/c", Some(0)),
            ("/w/a", Some(2)),
            ("/w/a/b", Some(2)),
            ("/w/ab", Some(0)),
            ("/w-a/b", Some(1)),
            ("/x", None),
            ("/", None),
            ("w/a", None),
        ] {
            assert_eq!(folders.of_path(path), expected, "{path}");
        }
    }
}
