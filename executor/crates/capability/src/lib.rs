//! The limits of a run: those of several layers, and their meet.
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
//! wider than any layer allows. A grant that names a verdict requires an [`Authority`]. So does a grant of the
//! operator's own limits ([`Grant::for_operator`]), which names the operator instead. Neither a grant nor a [`Permit`]
//! can be copied, and a permit consumes its grant.
//!
//! # Example
//! A verdict grants more memory than the ceilings allow, and one folder:
//!
//! ```
//! use a2g_capability::{Area, Authority, Ceilings, ClaimedLimits, Claims, Grant, Layer, LimitMap, MemoryLimit};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let authority = Authority::for_engine().ok_or("this process has another authority")?;
//! let ceilings = Ceilings {
//!     limits: LimitMap::defaults().with(MemoryLimit::from_mb(64)?),
//!     areas: Area::parse("/workspace/**")?,
//!     ..Ceilings::closed()
//! };
//! let verdict = Claims {
//!     limits: ClaimedLimits::default().with(Some(MemoryLimit::from_mb(512)?)),
//!     areas: Some(Area::parse("/workspace/reports/**")?),
//!     ..Claims::default()
//! };
//! let grant = Grant::meet(&authority, [(Layer::Verdict, verdict)], &ceilings)?;
//!
//! assert_eq!((grant.memory().value.mb(), grant.memory().layer), (64, Layer::Executor));
//! assert_eq!(grant.roots()[0].tree().path(), "/workspace/reports");
//! assert_eq!(grant.engine(), authority.engine(), "no other engine runs under it");
//! # Ok(())
//! # }
//! ```
//! `examples/` has more: the meet of several layers, the folders of a permit, the hosts of a grant.

// The example of the page that package indexes show.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod authority;
mod condition;
mod glob;
mod grant;
mod handover;
mod limits;
mod permit;
mod reach;
mod requests;
mod root;
mod roots;
mod scope;
mod secrets;
#[cfg(test)]
mod tests;
mod upper;

pub use authority::{Authority, EngineId};
pub use condition::{ConditionError, parse_condition};
pub use glob::Glob;
pub use grant::{CallGrant, Ceilings, Grant, GrantView, TurnLimits};
pub use handover::{Handover, ReceivedPermit};
pub use limits::{Claims, Limits};
pub use permit::{OperatorPermitError, Permit};
pub use reach::{Domain, Host, HostClaims, HostError, HostPattern, Reach, ReachError};
pub use requests::{RequestRule, RequestTarget};
pub use root::Root;
pub use roots::{Mount, Mounts, OpenRoot, Roots, RootsError};
pub use scope::{Area, ScopeError, Tree};
pub use secrets::{
    GrantedSecret, PLACEHOLDER_BYTES, Placeholder, Rendering, SecretBinding, SecretBindingError, SecretParts,
    SecretPlace, ToolRange,
};
pub use upper::{EarlierFolder, MemberFolders, Place, Upper};

// What the functions of this crate take and return, so that its users need no other crate.
pub use a2g_types::ident::{SecretName, ToolName};
pub use a2g_types::limit::{
    Access, Bound, BudgetUsage, Budgets, ClaimedLimits, FileEffects, Layer, Limit, LimitMap, NetworkBudgets,
    Quantity,
};
pub use a2g_types::quantity::{CpuPercent, MemoryLimit, OutOfRangeError, OutputLimit, Timeout};
pub use a2g_types::request::{DeclaredRequest, RequestError};
pub use a2g_types::tool::CallTargets;
