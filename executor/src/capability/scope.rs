//! Filesystem patterns as a governor writes them.
//!
//! A pattern is parsed here and never matched against a path that a guest sent. `/a/b/**` is a
//! [`Tree`]: it grants `/a/b` and all below it, and never `/a/bc`. Any other well-formed pattern is
//! kept as a glob, which this version of the executor refuses to run under rather than widen.

use crate::ident::excerpt;
use std::fmt;

/// Why a pattern was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// The pattern is not one that any executor could enforce safely.
    #[error("the filesystem pattern `{pattern}` is refused: {reason}")]
    Malformed {
        /// The pattern, cut to a printable excerpt.
        pattern: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The pattern is well formed, but this version enforces only whole trees.
    #[error(
        "the filesystem pattern `{pattern}` cannot be enforced exactly by this version: \
         only whole trees such as `/workspace/**` can"
    )]
    Unenforceable {
        /// The pattern, cut to a printable excerpt.
        pattern: String,
    },
}

/// A folder and everything below it, by its absolute guest path without a trailing slash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tree(Box<str>);

impl Tree {
    /// The absolute path of the root, without a trailing slash.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0
    }

    /// Whether `other` is this tree or lies inside it, counted in whole path components.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.rest_of(other).is_some()
    }

    /// The components of `other` below this tree's root; `None` when it is not covered.
    pub(super) fn rest_of<'a>(&self, other: &'a Self) -> Option<&'a str> {
        let rest = other.0.strip_prefix(&*self.0)?;
        if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
    }

    /// Parses an absolute folder path such as `/workspace`, as a `[[mount]]` names it.
    ///
    /// # Errors
    /// [`ScopeError::Malformed`] for a relative path, the root folder, `.`, `..`, empty components
    /// and the characters that patterns give a meaning to.
    pub fn parse_path(path: &str) -> Result<Self, ScopeError> {
        let path = path.strip_suffix('/').unwrap_or(path);
        check_components(path)?;
        if has_glob(path) {
            return Err(malformed(path, "a path is needed here, not a pattern"));
        }
        Ok(Self(path.into()))
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/**", self.0)
    }
}

/// One parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// A whole tree.
    Tree(Tree),
    /// An exact path or a glob, well formed, kept as text.
    Glob(Box<str>),
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// [`ScopeError::Malformed`] when it is relative, names the root folder, holds `..`, `.`, an
    /// empty component or a NUL, or is not a glob that `globset` can read.
    pub fn parse(pattern: &str) -> Result<Self, ScopeError> {
        check_components(pattern)?;
        if let Some(root) = pattern.strip_suffix("/**")
            && !has_glob(root)
        {
            return Ok(Self::Tree(Tree(root.into())));
        }
        if pattern.split('/').nth(1).is_some_and(has_glob) {
            return Err(malformed(pattern, "its root would be `/`"));
        }
        globset::GlobBuilder::new(pattern)
            .literal_separator(true)
            .build()
            .map_err(|_| malformed(pattern, "it is not a glob"))?;
        Ok(Self::Glob(pattern.into()))
    }

    /// The tree, when this is one.
    ///
    /// # Errors
    /// [`ScopeError::Unenforceable`] for every other pattern.
    pub fn into_tree(self) -> Result<Tree, ScopeError> {
        match self {
            Self::Tree(tree) => Ok(tree),
            Self::Glob(pattern) => Err(ScopeError::Unenforceable { pattern: excerpt(&pattern) }),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tree(tree) => tree.fmt(f),
            Self::Glob(pattern) => f.write_str(pattern),
        }
    }
}

fn malformed(pattern: &str, reason: &'static str) -> ScopeError {
    ScopeError::Malformed { pattern: excerpt(pattern), reason }
}

fn has_glob(text: &str) -> bool {
    text.contains(['*', '?', '[', ']', '{', '}', '\\', '!'])
}

fn check_components(path: &str) -> Result<(), ScopeError> {
    if path.contains('\0') {
        return Err(malformed(path, "it holds a NUL"));
    }
    let Some(rest) = path.strip_prefix('/') else {
        return Err(malformed(path, "it does not start with `/`"));
    };
    if rest.is_empty() || rest == "**" {
        return Err(malformed(path, "its root is `/`"));
    }
    for component in rest.split('/') {
        match component {
            "" => return Err(malformed(path, "it holds an empty component")),
            "." | ".." => return Err(malformed(path, "it holds `.` or `..`")),
            named if named.len() > 255 => {
                return Err(malformed(path, "a component is longer than 255 bytes"));
            }
            _named => {}
        }
    }
    Ok(())
}
