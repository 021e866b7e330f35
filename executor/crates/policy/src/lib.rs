//! Policies in Cedar: they resolve a call to the rule of its tool.
//!
//! ```text
//! *.cedar, entities.json, tools ─▶ CedarSet::compile ─▶ CedarSet
//! call, risk, time, Ledger      ─▶ CedarSet::decide  ─▶ Allowed (rule of the tool, hosts, limits) or Denied
//! ```
//! The rule has the form that a policy in JSON has, so the checks of arguments, the manifest and the conditions of a
//! verdict are those of `a2g_govern::local`, and there is one enforcement.

mod cases;
mod convert;
mod decide;
mod facts;
mod ledger;
mod rule_name;
mod rule_text;
mod samples;
mod schema;
mod set;
mod source;
mod suggest;

pub use cases::{Case, CaseError, Coverage, DecisionWord, Expected, Observed, TestFile};
pub use convert::{ConvertError, Surroundings, Thresholds, convert};
pub use decide::{Allowed, Answer, Denied};
pub use facts::{CallFacts, History, Past, Subject, Window};
pub use ledger::{Admission, AdmittedCall, Done, EndedCall, Ledger, LedgerView, Possible};
pub use rule_name::RuleName;
pub use samples::{Sample, samples};
pub use schema::schema_text;
pub use set::{CedarSet, CompiledPolicies, RuleInfo, RuleScope};
pub use source::{PolicyError, PolicyFile, PolicySources};
pub use suggest::{ToolUse, suggest};
