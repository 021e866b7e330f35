//! Decisions with other facts than this governor's, by the same code: for tests, replays and comparisons of policies.
//!
//! Nothing is recorded, and nothing runs.

use super::super::decide::RiskThresholds;
use super::{Decided, Question, Setting, facts, normalized_text, risk};
use crate::arguments::Arguments;
use a2g_capability::Area;
use a2g_policy::{Allowed, CedarSet, Ledger, Past, RuleName};
use a2g_types::call::Call;
use a2g_types::ident::ToolName;
use a2g_types::verdict::{Risk, RiskLevel, Verdict};
use time::OffsetDateTime;

/// A call, with the facts that policies may read of it.
#[derive(Clone, Copy)]
pub struct Trial<'a> {
    /// The call.
    pub call: &'a Call,
    /// The time of the decision.
    pub at: OffsetDateTime,
    /// The earlier calls.
    pub past: &'a dyn Past,
    /// The risk; `None`: as the governor assesses it.
    pub risk: Option<&'a Risk>,
    /// The areas that the executor opens, as for [`LocalGovernor::with_open_areas`](super::super::LocalGovernor).
    pub open: Option<&'a [Area]>,
}

/// A decision that nobody acts on.
pub struct TrialOutcome {
    /// The verdict.
    pub verdict: Verdict,
    /// The rules that decided.
    pub decided_by: Vec<RuleName>,
    /// What the policies give the call; `None` if they or the arguments deny it.
    pub granted: Option<Box<Allowed>>,
}

impl Trial<'_> {
    /// Decides as a governor with this set would.
    #[must_use]
    pub fn decide_by(&self, set: &CedarSet) -> TrialOutcome {
        let Self { call, at, past, risk: given, open } = *self;
        let assessed = given.map_or_else(|| risk::assess(call), Risk::clone);
        let arguments = Arguments::of(&call.arguments);
        let text = set.mentions_text().then(|| normalized_text(&arguments));
        let needs_several = |_: &ToolName, _: f64| false;
        let no_calls = Ledger::default();
        let setting = Setting {
            open,
            thresholds: RiskThresholds::default(),
            needs_several: &needs_several,
            now: at,
            ledger: &no_calls,
        };
        let facts = facts(call, &arguments, &assessed, text.as_deref(), &setting);
        let question =
            Question { call, arguments: &arguments, risk: &assessed, facts: &facts, setting: &setting };
        let (Decided { verdict, decided_by }, granted) = question.decide_in(set, past);
        TrialOutcome { verdict, decided_by, granted }
    }
}

/// A risk of this score, from 0 to 100, at which these heuristics match, by name.
#[must_use]
pub fn risk_of(score: u8, threats: &[String]) -> Risk {
    let share = f64::from(score.min(100)) / 100.0;
    Risk {
        score: share,
        level: RiskLevel::from_score(share),
        model_score: None,
        heuristic_score: Some(share),
        // The name of a heuristic stands before the first colon.
        threats: threats.iter().map(|name| format!("{name}: given")).collect(),
    }
}
