//! The limits of a run: layers of claims, and their meet.
//!
//! ```text
//!       verdict, or operator ─┐
//!                 conditions ─┤
//!            standing policy ─┼─ Grant::meet ─▶ Grant ─ Permit::open ─▶ Permit ─▶ one run
//!                  tool.toml ─┤      ▲
//!                     caller ─┤  &Authority
//!                   ceilings ─┘
//! ```
//! A [`Grant`] is made from the executor's [`Ceilings`] and the layers under them, so it has every limit, and none is
//! wider than any layer allows. A grant that names a verdict requires the [`Authority`] of the process; one of the
//! operator's own limits ([`Grant::for_operator`]) has another label. Neither a grant nor a [`Permit`] can be copied,
//! and a permit consumes its grant.

mod authority;
mod condition;
mod glob;
mod grant;
mod handover;
mod limits;
mod permit;
mod reach;
mod root;
mod roots;
mod scope;
#[cfg(test)]
mod tests;

pub use authority::Authority;
pub use condition::{ConditionError, parse_condition};
pub use glob::Glob;
pub use grant::{Ceilings, Grant, GrantView};
pub use handover::Handover;
pub use limits::{Claims, Limits};
pub use permit::{OperatorPermitError, Permit};
pub use reach::{Domain, Host, HostClaims, HostError, HostPattern, Reach, ReachError};
pub use root::Root;
pub use roots::{Mount, Mounts, OpenRoot, Roots, RootsError};
pub use scope::{Area, ScopeError, Tree};
