//! The meet of the annotations of all permits that apply: of each, the narrowest.

use crate::rule_name::RuleName;
use crate::set::Rule;
use a2g_capability::Area;
use a2g_types::ident::SecretName;
use a2g_types::limit::{ClaimedLimits, FileEffects};
use a2g_types::tool::CallTargets;
use a2g_types::verdict::ResourceRule;
use std::collections::BTreeSet;

/// Maximum number of areas of a call, which bounds the time of a decision. A grant has fewer.
const MAX_AREAS: usize = 4096;

/// The reason why scopes have no meet, as a clause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScopeMeetError {
    /// No pattern matches what several patterns match.
    #[error(
        "the `@scope` of {0} has patterns whose intersection no pattern can express; the operator has to write one of \
         them as whole folders (`/folder/**`)"
    )]
    Inexpressible(String),
    /// There are too many intersections.
    #[error(
        "the `@scope` of {0} has too many intersections with what else applies; the operator has to shorten it"
    )]
    TooMany(String),
    /// A pattern that was valid when the policies were loaded is not.
    #[error("the `@scope` of {0} cannot be read; tell the operator")]
    Unreadable(String),
}

/// The annotations of the permits of one call.
#[derive(Debug, Default)]
pub(super) struct Meet<'a> {
    pub(super) limits: ClaimedLimits,
    pub(super) effects: FileEffects,
    pub(super) calls: Option<CallTargets>,
    pub(super) secrets: Option<BTreeSet<SecretName>>,
    pub(super) max_requests_per_minute: Option<u64>,
    /// `true` if a permit of the call says so: the folders that it then gets have permits of their own.
    pub(super) grants_all_paths: bool,
    /// `true` if a permit of the call says so, and each of them that escalates: to ask a person afterwards is to ask
    /// less.
    pub(super) is_previewed: bool,
    /// What any of them blocks.
    pub(super) blocked_paths: BTreeSet<String>,
    pub(super) blocked_patterns: BTreeSet<String>,
    scopes: Vec<(&'a RuleName, &'a [String])>,
    reasons: Vec<&'a str>,
    decided_by: Vec<RuleName>,
}

impl<'a> Meet<'a> {
    /// The meet of the permits of the call itself.
    pub(super) fn of_call(rules: &[&'a Rule]) -> Self {
        let mut meet = Self::default();
        for rule in rules {
            let annotations = &rule.annotations;
            meet.calls = match (meet.calls.take(), annotations.calls.clone()) {
                (Some(calls), Some(others)) => Some(calls.intersection(others)),
                (calls, others) => calls.or(others),
            };
            meet.secrets = match (meet.secrets.take(), annotations.secrets.as_ref()) {
                (Some(secrets), Some(others)) => Some(&secrets & others),
                (secrets, others) => secrets.or_else(|| others.cloned()),
            };
            meet.grants_all_paths |= annotations.grants_all_paths;
            meet.blocked_paths.extend(annotations.blocked_paths.iter().cloned());
            meet.blocked_patterns.extend(annotations.blocked_patterns.iter().cloned());
            meet.scopes.extend(annotations.scope.as_deref().map(|scope| (&rule.name, scope)));
        }
        let has_preview = |rule: &&Rule| rule.annotations.is_previewed;
        let mut escalating = rules.iter().filter(|rule| rule.annotations.escalate.is_some());
        meet.is_previewed = rules.iter().any(has_preview) && escalating.all(has_preview);
        meet.add(rules);
        meet
    }

    /// Adds the permits of a folder, a host or a secret that is granted.
    pub(super) fn add(&mut self, rules: &[&'a Rule]) {
        for rule in rules {
            let annotations = &rule.annotations;
            self.limits = self.limits.narrower(&annotations.limits);
            self.effects = self.effects.max(annotations.effects);
            let rates = [self.max_requests_per_minute, annotations.max_requests_per_minute];
            self.max_requests_per_minute = rates.into_iter().flatten().min();
            let reason = annotations.escalate.as_deref();
            self.reasons.extend(reason.filter(|reason| !self.reasons.contains(reason)));
        }
        self.name(rules);
    }

    /// Names rules among those that decided.
    pub(super) fn name(&mut self, rules: &[&'a Rule]) {
        self.decided_by.extend(rules.iter().map(|rule| rule.name.clone()));
    }

    /// The reasons of `@escalate`, as one text.
    pub(super) fn escalate(&self) -> Option<String> {
        (!self.reasons.is_empty()).then(|| self.reasons.join("; "))
    }

    /// The rules that decided: first those of the call itself.
    pub(super) fn into_decided_by(self) -> Vec<RuleName> {
        let mut named = BTreeSet::new();
        self.decided_by.into_iter().filter(|name| named.insert(name.clone())).collect()
    }

    /// The limits on memory and CPU, which a rule has for all tools, and those of the tool.
    pub(super) fn split_limits(&self) -> (ResourceRule, ClaimedLimits) {
        let part = |is_for_all_tools: bool| -> ClaimedLimits {
            let rows = self.limits.claimed().filter(|(row, _)| row.is_for_all_tools() == is_for_all_tools);
            rows.map(|(row, amount)| (row.limit, amount)).collect()
        };
        (ResourceRule { limits: part(true), max_disk_mb: None }, part(false))
    }

    /// The parts of these areas that lie in every `@scope`, as patterns and as areas.
    pub(super) fn narrow(&self, mut areas: Vec<Area>) -> Result<Vec<(String, Area)>, ScopeMeetError> {
        for (rule, scope) in &self.scopes {
            let patterns = scope.iter().map(|pattern| Area::parse(pattern)).collect::<Result<Vec<_>, _>>();
            let patterns = patterns.map_err(|_| ScopeMeetError::Unreadable(format!("`{rule}`")))?.concat();
            let met = areas.iter().flat_map(|area| patterns.iter().filter_map(|pattern| area.meet(pattern)));
            let met = met.take(MAX_AREAS + 1).collect::<Vec<_>>();
            if met.len() > MAX_AREAS {
                return Err(ScopeMeetError::TooMany(format!("`{rule}`")));
            }
            areas = met.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        }
        let mut written = Vec::new();
        for area in areas {
            for pattern in area.to_patterns().ok_or_else(|| self.inexpressible())? {
                written.push((pattern, area.clone()));
            }
        }
        Ok(written)
    }

    fn inexpressible(&self) -> ScopeMeetError {
        let names = self.scopes.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>();
        ScopeMeetError::Inexpressible(names.join(" and "))
    }
}
