//! The right to run once.

use super::authority::Authority;
use super::grant::{Ceilings, Grant, GrantView, TurnLimits};
use super::limits::Claims;
use super::roots::{Mounts, Roots, RootsError};
use super::scope::{Area, ScopeError, Tree};
use super::upper::Upper;
use a2g_types::limit::Limit;
use std::path::PathBuf;

/// The authority of one run: a grant whose folders are open.
///
/// It is made by consuming a [`Grant`], it is not `Clone`, and the run takes it by value. One grant therefore starts at
/// most one guest; only [`ReceivedPermit`](super::ReceivedPermit) makes copies, for the further runs of a reused process.
#[derive(Debug)]
pub struct Permit {
    grant: GrantView,
    roots: Roots,
    /// The folder for the run's file changes, if they take effect only after its end.
    upper: Option<Upper>,
}

/// The reason why an operator's own limits and folders do not make a permit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorPermitError {
    /// The limits cannot be combined with the ceilings.
    #[error(transparent)]
    Limits(#[from] ScopeError),
    /// A folder cannot be opened.
    #[error(transparent)]
    Folders(#[from] RootsError),
}

impl Permit {
    /// Opens the folders of a grant below the operator's mounts and `ceilings`. A folder that does not exist, and that the
    /// run does not need according to `is_needed`, is replaced by one in which nothing is found and nothing can be created.
    ///
    /// # Ambient Authority
    /// Opens host folders below the operator's mounts and ceilings, and reads the system's list of mount points. For a
    /// folder that does not exist, creates a folder in the system's temporary folder and removes it again.
    ///
    /// # Errors
    /// [`RootsError`] names the first folder that cannot be opened.
    pub fn open(
        grant: Grant,
        mounts: &Mounts,
        ceilings: &[Area],
        is_needed: impl Fn(&Tree) -> bool,
    ) -> Result<Self, RootsError> {
        let roots = Roots::open(&grant, mounts, ceilings, is_needed)?;
        Ok(Self::new(grant, roots))
    }

    /// Joins the operator's own limits with `folders`, each a host folder and its guest path, `.` and `/` included. The
    /// guest has access to these folders and no others, whatever areas the claims or the ceilings name.
    ///
    /// A verdict's grant cannot be joined with such folders.
    ///
    /// # Ambient Authority
    /// Opens the host folders in `folders`.
    ///
    /// # Errors
    /// [`OperatorPermitError`] names the first folder that cannot be opened, or the problem with the limits.
    pub fn for_operator(
        authority: &Authority,
        claims: Claims,
        ceilings: &Ceilings,
        folders: &[(PathBuf, String)],
    ) -> Result<Self, OperatorPermitError> {
        let claims = Claims { areas: Some(Vec::new()), ..claims };
        let grant = Grant::for_operator(authority, claims, ceilings)?;
        Ok(Self::new(grant, Roots::open_for_operator(folders)?))
    }

    /// A permit without files and network, with the memory, CPU, time, output and budgets of `ceilings`.
    #[must_use]
    pub fn without_access(ceilings: &Ceilings) -> Self {
        Self::new(Grant::without_access(ceilings), Roots::empty())
    }

    /// Joins a grant with its opened folders.
    pub(super) fn new(grant: Grant, roots: Roots) -> Self {
        Self { grant: GrantView::new(grant), roots, upper: None }
    }

    /// Keeps the run's file changes in `upper`, apart from the granted folders, which the run then only reads. A run whose
    /// grant does not say so is not started with such a folder, and no other run without one.
    #[must_use]
    pub fn with_upper(self, upper: Upper) -> Self {
        Self { upper: Some(upper), ..self }
    }

    /// Lets the run write at most `max_bytes` to files; its grant may allow less.
    #[must_use]
    pub fn narrow_written(self, max_bytes: u64) -> Self {
        Self { grant: self.grant.narrow(Limit::Written, max_bytes), ..self }
    }

    /// Takes out the folder for the run's file changes, with the run's part in a program. `None` as [`Self::upper`].
    pub fn take_upper(&mut self) -> Option<Upper> {
        self.upper.take()
    }

    /// Another permit of the same grant, for another run of the process that has received this one.
    pub(super) fn duplicate(&self) -> std::io::Result<Self> {
        if self.upper.is_some() {
            return Err(std::io::Error::other("the folder for a run's changes serves one run only"));
        }
        Ok(Self { grant: self.grant.clone(), roots: self.roots.duplicate()?, upper: None })
    }

    /// The same permit, with the limits of a turn.
    pub(super) fn for_turn(self, turn: &TurnLimits) -> Self {
        Self { grant: self.grant.for_turn(turn), ..self }
    }

    /// Splits the permit, to be reassembled in another process.
    pub(super) fn into_parts(self) -> (GrantView, Roots, Option<Upper>) {
        (self.grant, self.roots, self.upper)
    }

    /// The read-only view of the grant.
    #[must_use]
    pub fn grant(&self) -> &GrantView {
        &self.grant
    }

    /// The opened folders.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The folder for the run's file changes; `None` if the run changes its granted folders directly.
    #[must_use]
    pub fn upper(&self) -> Option<&Upper> {
        self.upper.as_ref()
    }
}
