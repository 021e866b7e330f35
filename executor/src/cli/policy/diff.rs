//! `policy diff`: generated calls, decided on by two sets of policies.
//!
//! No solver is part of this program, so nothing is proved, and the output says so.

use super::Workplace;
use super::test::decide;
use crate::cli::output::{one_line, print};
use a2g_capability::{Area, HostPattern};
use a2g_govern::local::TrialOutcome;
use a2g_policy::{Allowed, CedarSet, DecisionWord, PolicySources, Sample, samples};
use a2g_types::limit::{LIMITS, LimitRow};
use a2g_types::tool::CallTargets;
use std::path::Path;
use std::process::ExitCode;

/// A call that the new policies allow more of.
pub(super) struct Widened {
    sample: Sample,
    what: String,
}

pub(super) fn diff(workplace: &Workplace, old: &Path, new: &Path, calls: usize) -> anyhow::Result<ExitCode> {
    let old = workplace.sources(Some(old))?;
    let new = workplace.sources(Some(new))?;
    let sets = [workplace.compile(&old)?, workplace.compile(&new)?];
    let [old_set, new_set] = &sets;
    let (count, found) = compare(workplace, [&old, &new], old_set, new_set, calls);
    print(PROOF_NOTE);
    Ok(match found {
        None => {
            print(format_args!(
                "no difference found in {count} calls: the new policies grant nothing more in any of them"
            ));
            ExitCode::SUCCESS
        }
        Some(widened) => {
            show(&widened, count);
            ExitCode::FAILURE
        }
    })
}

/// What the output says of its own worth.
pub(super) const PROOF_NOTE: &str =
    "no proof was made: this program has no solver, and compares generated calls";

/// The number of compared calls, of which there are at most `calls`, and the smallest one of which the new set allows more.
pub(super) fn compare(
    workplace: &Workplace,
    sources: [&PolicySources; 2],
    old: &CedarSet,
    new: &CedarSet,
    calls: usize,
) -> (usize, Option<Widened>) {
    let texts = sources.iter().flat_map(|sources| sources.files.iter().map(|file| file.text.as_str()));
    let entities = sources.iter().filter_map(|sources| sources.entities.as_deref());
    let tools = workplace.tools.iter().collect::<Vec<_>>();
    let made = samples(&texts.collect::<Vec<_>>(), &entities.collect::<Vec<_>>(), &tools, calls);
    let count = made.len();
    let areas = workplace.config.open_areas();
    let widened = made.into_iter().filter_map(|sample| {
        let [before, after] = [old, new].map(|set| decide(set, &sample.case, &areas));
        // A call that was refused, and is not, says more than one that gets more.
        let is_allowed_alike = word(&before) == word(&after);
        Some((is_allowed_alike, Widened { what: more(&before, &after)?, sample }))
    });
    let smallest = widened.min_by_key(|(is_allowed_alike, widened)| {
        (*is_allowed_alike, widened.sample.changes, widened.sample.case.to_toml().len())
    });
    (count, smallest.map(|(_, widened)| widened))
}

pub(super) fn show(widened: &Widened, count: usize) {
    print(format_args!("the new policies allow more: {}", one_line(&widened.what)));
    print(format_args!("the smallest call of {count} that shows it:\n"));
    print(widened.sample.case.to_toml().trim_end());
}

fn word(outcome: &TrialOutcome) -> DecisionWord {
    outcome.verdict.decision.into()
}

/// What a decision allows that another one does not.
fn more(before: &TrialOutcome, after: &TrialOutcome) -> Option<String> {
    let was = word(before);
    let is = word(after);
    if is != was {
        return (is > was).then(|| format!("the decision was {was}, and is {is}"));
    }
    let (one, other) = before.granted.as_deref().zip(after.granted.as_deref())?;
    more_files(before, after)
        .or_else(|| more_hosts(one, other))
        .or_else(|| more_of_rule(one, other))
        .or_else(|| more_of_limits(one, other))
}

fn more_files(before: &TrialOutcome, after: &TrialOutcome) -> Option<String> {
    let areas = |outcome: &TrialOutcome| {
        let patterns = &outcome.verdict.manifest.filesystem_scope;
        patterns.iter().filter_map(|pattern| Area::parse(pattern).ok()).flatten().collect::<Vec<_>>()
    };
    let known = areas(before);
    let opened = areas(after).into_iter().find(|area| !known.iter().any(|other| other.covers(area)));
    if let Some(area) = opened {
        return Some(format!("the files `{area}`"));
    }
    let blocked = |outcome: &TrialOutcome| {
        let conditions = outcome.verdict.conditions.iter();
        conditions
            .filter_map(|text| text.strip_prefix("blocked_path:").map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let still = blocked(after);
    let freed = blocked(before).into_iter().find(|pattern| !still.contains(pattern))?;
    Some(format!("the files `{freed}`, which were blocked"))
}

fn more_hosts(before: &Allowed, after: &Allowed) -> Option<String> {
    let patterns =
        |texts: &[String]| texts.iter().filter_map(|text| HostPattern::parse(text).ok()).collect::<Vec<_>>();
    let of = |allowed: &Allowed| patterns(allowed.network.allowed_domains.as_deref().unwrap_or_default());
    let known = of(before);
    if let Some(host) = of(after).into_iter().find(|host| !known.iter().any(|other| other.covers(host))) {
        return Some(format!("the host `{host}`"));
    }
    let still = patterns(&after.network.blocked_domains);
    let blocked = patterns(&before.network.blocked_domains);
    if let Some(host) = blocked.into_iter().find(|host| !still.iter().any(|other| other.covers(host))) {
        return Some(format!("the host `{host}`, which was blocked"));
    }
    let rates = (before.network.max_requests_per_minute, after.network.max_requests_per_minute);
    is_wider(rates.0, rates.1).then(|| "more requests in a minute".to_owned())
}

fn more_of_rule(before: &Allowed, after: &Allowed) -> Option<String> {
    let one = &before.rule;
    let other = &after.rule;
    let known = one.secrets.clone().unwrap_or_default();
    let secret = other.secrets.iter().flatten().find(|secret| !known.contains(secret));
    if let Some(secret) = secret {
        return Some(format!("the secret `{secret}`"));
    }
    if other.effects < one.effects {
        return Some(format!(
            "file changes that are {} instead of {}",
            other.effects.as_str(),
            one.effects.as_str()
        ));
    }
    let freed = one.blocked_patterns.iter().find(|text| !other.blocked_patterns.contains(text));
    if let Some(text) = freed {
        return Some(format!("arguments with `{text}`"));
    }
    let all = CallTargets::All;
    let targets = [one, other].map(|rule| rule.calls.as_ref().unwrap_or(&all));
    let calls_more = match targets {
        [CallTargets::All, _] => false,
        [CallTargets::Named(_), CallTargets::All] => true,
        [CallTargets::Named(known), CallTargets::Named(named)] => !named.is_subset(known),
    };
    calls_more.then(|| "calls of other tools".to_owned())
}

fn more_of_limits(before: &Allowed, after: &Allowed) -> Option<String> {
    let [one, other] = [before, after].map(|allowed| allowed.resources.limits.narrower(&allowed.rule.limits));
    let row = LIMITS.iter().find(|row| is_wider(one[row.limit], other[row.limit]))?;
    Some(format!("a higher `{}`", LimitRow::key(row)))
}

/// `true` if the second limit, of which `None` is none, lets more through.
fn is_wider(before: Option<u64>, after: Option<u64>) -> bool {
    match (before, after) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(before), Some(after)) => after > before,
    }
}
