//! The name of a rule: the place where it is written.

use std::fmt;

/// A rule of a set of policies, by its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName {
    /// The name of the file in the policy folder.
    pub file: String,
    /// The line of its first annotation, or of `permit` or `forbid`, from 1.
    pub line: u32,
    /// The text of its `@id`, if it has one.
    pub id: Option<String>,
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, id } = self;
        write!(f, "{file}:{line}")?;
        id.as_ref().map_or(Ok(()), |id| write!(f, " ({id})"))
    }
}
