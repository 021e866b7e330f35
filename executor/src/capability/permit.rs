//! The right to run once.

use super::grant::Grant;
use super::roots::Roots;

/// One run's authority: a grant with its folders already open.
///
/// A permit is not `Clone`, and the run takes it by value, so that one admission can start one
/// guest and no more.
#[derive(Debug)]
pub struct Permit {
    grant: Grant,
    roots: Roots,
}

impl Permit {
    /// Joins a grant with its opened folders.
    #[must_use]
    pub fn new(grant: Grant, roots: Roots) -> Self {
        Self { grant, roots }
    }

    /// Takes it apart, to be put together in another process.
    pub(super) fn into_parts(self) -> (Grant, Roots) {
        (self.grant, self.roots)
    }

    /// The grant.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The opened folders.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.roots
    }
}
