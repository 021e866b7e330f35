//! What a run may do: five layers of claims, and their meet.
//!
//! ```text
//! verdict ─┐
//! conditions ─┤
//! standing policy ─┼─ Limits::meet ─▶ Grant::new ─▶ Grant ─ Roots::open ─▶ opened folders
//! tool.toml ─┤
//! ceilings ─┘
//! ```
//! A [`Grant`] has private fields and no way to be made but from the executor's [`Ceilings`] and
//! the layers under them, so every limit of it is present and none is wider than any layer allows.

mod condition;
mod grant;
mod handover;
mod limits;
mod permit;
mod reach;
mod roots;
mod scope;
#[cfg(test)]
mod tests;

pub use condition::{ConditionError, claims_of};
pub use grant::{Ceilings, Grant};
pub use handover::Handover;
pub use limits::{Claims, Limits};
pub use permit::Permit;
pub use reach::{Domain, Host, HostClaims, HostError, HostPattern, Reach, Unreachable};
pub use roots::{Mount, Mounts, OpenRoot, Roots, RootsError};
pub use scope::{Pattern, ScopeError, Tree};
