//! Filesystem patterns as written by a governor.
//!
//! A pattern is parsed here into [`Area`]s, one for each of its `{a,b}` alternatives. It is never matched against a
//! path that a guest sent, only against paths that were resolved from an opened root. `/a/b/**` is the folder `/a/b`
//! and everything below it, but not `/a/bc`.

use super::glob::{Glob, check_components};
use a2g_types::ident::excerpt;
use std::collections::BTreeSet;
use std::fmt;

/// The reason why a pattern is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError {
    /// No executor could enforce the pattern safely.
    #[error("the filesystem pattern `{pattern}` is refused: {reason}")]
    Malformed {
        /// The pattern, cut to a printable excerpt.
        pattern: String,
        /// The problem with the pattern.
        reason: &'static str,
    },
    /// One layer has too many patterns, or the patterns of all layers have too many overlaps.
    #[error(
        "the filesystem patterns, each alternative counted, are more than {max}, or have too many overlaps: \
         use fewer patterns, or wider ones"
    )]
    TooMany {
        /// The maximum number of patterns.
        max: usize,
    },
}

impl ScopeError {
    pub(super) fn malformed(pattern: &str, reason: &'static str) -> Self {
        Self::Malformed { pattern: excerpt(pattern), reason }
    }
}

/// A folder and everything below it, by its absolute guest path without a trailing slash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tree(Box<str>);

impl Tree {
    /// The absolute path of the folder, without a trailing slash.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0
    }

    /// `true` if `other` is this tree or lies inside it, compared by whole path components.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.contains(&other.0)
    }

    /// `true` if an absolute path without `.` and `..` is the folder or lies below it.
    #[must_use]
    pub fn contains(&self, path: &str) -> bool {
        self.relative_path(path).is_some()
    }

    /// The part of `path` below this folder; `None` if the path lies outside.
    #[must_use]
    pub fn relative_path<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix(&*self.0)?;
        if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
    }

    /// Parses an absolute folder path such as `/workspace`, as used in a `[[mount]]`.
    ///
    /// # Errors
    /// [`ScopeError::Malformed`] for a relative path, the root folder, `.`, `..`, empty components and characters that
    /// have a special meaning in patterns.
    pub fn parse_path(path: &str) -> Result<Self, ScopeError> {
        let path = path.strip_suffix('/').unwrap_or(path);
        check_components(path).map_err(|reason| ScopeError::malformed(path, reason))?;
        if Glob::has_special_characters(path) {
            return Err(ScopeError::malformed(path, "a path is needed here, not a pattern"));
        }
        Ok(Self(path.into()))
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/**", self.0)
    }
}

/// One part of the filesystem: the paths in `root` that all of `globs` match; the whole tree if there are no globs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Area {
    root: Tree,
    globs: BTreeSet<Glob>,
}

impl From<Tree> for Area {
    fn from(root: Tree) -> Self {
        Self { root, globs: BTreeSet::new() }
    }
}

impl Area {
    /// Parses a pattern into one area for each of its alternatives.
    ///
    /// # Errors
    /// [`ScopeError::Malformed`] if the pattern is relative, has the root `/`, or cannot be enforced exactly: see
    /// [`Glob::parse_alternatives`].
    pub fn parse(pattern: &str) -> Result<Vec<Self>, ScopeError> {
        Glob::parse_alternatives(pattern)?.into_iter().map(|glob| Self::from_glob(pattern, glob)).collect()
    }

    fn from_glob(pattern: &str, glob: Glob) -> Result<Self, ScopeError> {
        let Some((root, is_whole)) = glob.root() else {
            let reason = "its root would be `/`: write `/folder/**` for a folder and all below it";
            return Err(ScopeError::malformed(pattern, reason));
        };
        let globs = if is_whole { BTreeSet::new() } else { BTreeSet::from([glob]) };
        Ok(Self { root: Tree(root.into()), globs })
    }

    /// Reassembles an area from the [`Self::root`] and [`Self::globs`] of another process.
    pub(super) fn from_parts(root: &str, globs: &[String]) -> Option<Self> {
        let globs = globs.iter().map(|text| Glob::from_text(text));
        Some(Self { root: Tree::parse_path(root).ok()?, globs: globs.collect::<Option<_>>()? })
    }

    /// The folder that contains the whole area.
    #[must_use]
    pub fn root(&self) -> &Tree {
        &self.root
    }

    /// The globs, all of which a path in the root has to match. Empty for a whole tree.
    #[must_use]
    pub fn globs(&self) -> &BTreeSet<Glob> {
        &self.globs
    }

    /// `true` if all of `other` lies in this area. Never wrongly `true`, but `false` if the globs are equivalent and
    /// written differently.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.root.covers(&other.root) && self.globs.is_subset(&other.globs)
    }

    /// The intersection of both areas; `None` if it is always empty.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Option<Self> {
        let root = match (self.root.covers(&other.root), other.root.covers(&self.root)) {
            (true, _) => &other.root,
            (false, true) => &self.root,
            (false, false) => return None,
        };
        let globs: BTreeSet<Glob> = self.globs.union(&other.globs).cloned().collect();
        let is_possible = globs.iter().all(|glob| glob.matches(&root.0) || glob.can_match_below(&root.0));
        is_possible.then(|| Self { root: root.clone(), globs })
    }

    /// `true` if an absolute path without `.` and `..` lies in the area.
    #[must_use]
    pub fn contains(&self, path: &str) -> bool {
        self.root.contains(path) && self.globs.iter().all(|glob| glob.matches(path))
    }

    /// Patterns that together match what lies in the area below its root. `None` for an intersection of several globs, which
    /// no pattern can express.
    #[must_use]
    pub fn to_patterns(&self) -> Option<Vec<String>> {
        let mut globs = self.globs.iter();
        match (globs.next(), globs.next()) {
            (None, _) => Some(vec![self.root.to_string()]),
            (Some(glob), None) => Some(glob.patterns_below(&self.root.0)),
            (Some(_), Some(_)) => None,
        }
    }

    /// `true` if something below the folder `path` may lie in the area.
    pub(super) fn can_contain_below(&self, path: &str) -> bool {
        let is_above_root = Tree(path.into()).covers(&self.root);
        is_above_root || self.root.contains(path) && self.globs.iter().all(|glob| glob.can_match_below(path))
    }

    /// `true` if `path` and everything below it lies in the area.
    pub(super) fn contains_all_below(&self, path: &str) -> bool {
        let matches_all = |glob: &Glob| glob.matches(path) && glob.matches_all_below(path);
        self.root.contains(path) && self.globs.iter().all(matches_all)
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut globs = self.globs.iter();
        match (globs.next(), globs.next()) {
            (None, _) => self.root.fmt(f),
            (Some(glob), None) if glob.root().is_some_and(|(root, _)| root == *self.root.0) => {
                f.write_str(glob.text())
            }
            (Some(_), _) => {
                self.root.fmt(f)?;
                self.globs.iter().try_for_each(|glob| write!(f, " & {}", glob.text()))
            }
        }
    }
}
