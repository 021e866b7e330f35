//! The sections `[governor]`, `[trust]` and `[[approvals]]`: what verdicts have to be, and when a person decides.

use super::error::{InvalidValueError, invalid};
use super::file;
use super::values::{check_count, check_seconds, parse_tool_names};
use a2g_core::run::ApprovalRule;
use a2g_govern::local::RiskThresholds;
use a2g_govern::{KeyForm, SignatureSettings, TrustSettings};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The thresholds of the built-in governor, none of which is above the next one.
pub(super) fn parse_risk(governor: &file::Governor) -> Result<RiskThresholds, InvalidValueError> {
    let default = RiskThresholds::default();
    let file::Governor { conditions_from, escalate_from, deny_from, .. } = governor;
    let mut lowest = 0.0;
    let mut threshold = |key: &'static str, given: &Option<f64>, default: f64| {
        let score = given.unwrap_or(default);
        if !(lowest..=1.0).contains(&score) {
            return Err(invalid(key)(&format_args!(
                "is {score} and has to be from {lowest} to 1.0, because `conditions_from` is not above `escalate_from`, \
                 nor that above `deny_from`"
            )));
        }
        lowest = score;
        Ok(score)
    };
    Ok(RiskThresholds {
        conditions_from: threshold("governor.conditions_from", conditions_from, default.conditions_from)?,
        escalate_from: threshold("governor.escalate_from", escalate_from, default.escalate_from)?,
        deny_from: threshold("governor.deny_from", deny_from, default.deny_from)?,
    })
}

/// The first threshold that the file sets.
pub(super) fn given_threshold(governor: &file::Governor) -> Option<&'static str> {
    let file::Governor { conditions_from, escalate_from, deny_from, .. } = governor;
    let keys = [
        ("governor.conditions_from", conditions_from),
        ("governor.escalate_from", escalate_from),
        ("governor.deny_from", deny_from),
    ];
    keys.into_iter().find_map(|(key, given)| given.is_some().then_some(key))
}

/// The names of the policy files that are only observed.
pub(super) fn parse_observe(governor: &file::Governor) -> Result<Vec<String>, InvalidValueError> {
    let error = invalid("governor.observe");
    let file::Governor { observe, policies, url, .. } = governor;
    let Some(first) = observe.first() else { return Ok(Vec::new()) };
    if url.is_some() || policies.is_none() {
        return Err(error(&format_args!(
            "names `{first}`, and needs `governor.policies` with policies in Cedar for the built-in governor: set it, or \
             remove this key"
        )));
    }
    let names_file = |name: &&String| name.ends_with(".cedar") && !name.contains('/');
    if let Some(other) = observe.iter().find(|name| !names_file(name)) {
        return Err(error(&format_args!(
            "names `{other}`, and has to name files of `governor.policies` such as `new.cedar`, without a folder"
        )));
    }
    let distinct = observe.iter().collect::<BTreeSet<_>>();
    if distinct.len() < observe.len() {
        return Err(error(&"names a file twice"));
    }
    Ok(observe.clone())
}

pub(super) fn parse_trust(
    trust: file::Trust,
    resolve: impl Fn(PathBuf) -> PathBuf,
) -> Result<TrustSettings, InvalidValueError> {
    let file::Trust { keys, max_proof_seconds, intent_signature } = trust;
    let signature = |signature: file::IntentSignature| {
        let file::IntentSignature { key_file, key_form, escape_non_ascii } = signature;
        let key_form = match key_form {
            file::KeyForm::Ascii => KeyForm::Ascii,
            file::KeyForm::Bytes => KeyForm::Bytes,
        };
        SignatureSettings { key_file: resolve(key_file), key_form, escape_non_ascii }
    };
    Ok(TrustSettings {
        signature: intent_signature.map(signature),
        keys: keys.map(&resolve),
        max_lifetime: check_seconds("trust.max_proof_seconds", max_proof_seconds, 604_800)?,
    })
}

pub(super) fn parse_approval_rule(
    section: file::ApprovalRuleSection,
) -> Result<ApprovalRule, InvalidValueError> {
    let file::ApprovalRuleSection { tools, min_risk, required } = section;
    if !(0.0..=1.0).contains(&min_risk) {
        return Err(invalid("approvals.min_risk")(&"has to be from 0.0 to 1.0"));
    }
    Ok(ApprovalRule {
        tools: parse_tool_names("approvals.tools", &tools)?,
        min_risk,
        required: check_count("approvals.required", required, 1, ApprovalRule::MAX_REQUIRED)?,
    })
}
