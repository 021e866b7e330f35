//! The conditions that a CONDITIONAL verdict may carry and that this executor can enforce.

use super::glob::Glob;
use super::limits::Claims;
use super::reach::{HostClaims, HostError, HostPattern};
use super::scope::{Area, ScopeError};
use a2g_types::ident::{SecretName, excerpt};
use a2g_types::limit::{Access, FileEffects, Layer, Limit, rows_set_by};
use a2g_types::quantity::OutOfRangeError;
use a2g_types::tool::CallTargets;
use std::collections::BTreeSet;

/// The reason why a condition is refused. If one condition is refused, so is the whole verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// The condition is not one that this executor can enforce.
    #[error("this executor cannot enforce the condition `{0}`, only {known}", known = known_conditions())]
    Unknown(String),
    /// The condition is known, but its number is out of range.
    #[error("the condition `{condition}` {error}")]
    Number {
        /// The condition, cut to a printable excerpt.
        condition: String,
        /// The accepted range.
        error: OutOfRangeError,
    },
    /// The condition is known, but its pattern cannot be enforced.
    #[error(transparent)]
    Scope(#[from] ScopeError),
    /// The condition is known, but its pattern is not one of hosts.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// The known conditions, as the end of a sentence.
fn known_conditions() -> String {
    let mut known = [
        "read_only",
        "no_network",
        "host:PATTERN",
        "blocked_host:PATTERN",
        "max_requests_per_minute:N",
        "no_secrets",
        "secrets:NAME",
        "effects:atomic",
        "effects:staged",
    ]
    .map(str::to_owned)
    .to_vec();
    for row in rows_set_by(Layer::Condition) {
        if row.limit == Limit::Output {
            known.extend(["filesystem_scope:GLOB", "blocked_path:GLOB"].map(str::to_owned));
        }
        if row.limit == Limit::Calls {
            known.push("calls:TOOL".to_owned());
        }
        known.push(format!("{}:N", row.key()));
    }
    let last = known.pop().unwrap_or_default();
    format!("`{}` and `{last}`", known.join("`, `"))
}

/// Parses one condition into the limits that it sets.
///
/// # Errors
/// [`ConditionError`] if the condition cannot be enforced exactly.
pub fn parse_condition(condition: &str) -> Result<Claims, ConditionError> {
    let no_claims = Claims::default();
    let unknown = || ConditionError::Unknown(excerpt(condition));
    let Some((name, value)) = condition.split_once(':') else {
        return match condition {
            "read_only" => Ok(Claims { access: Some(Access::ReadOnly), ..no_claims }),
            "no_network" => Ok(Claims { network: Some(false), ..no_claims }),
            "no_secrets" => Ok(Claims { secrets: Some(BTreeSet::new()), ..no_claims }),
            _other => Err(unknown()),
        };
    };
    let number = || parse_number(value).ok_or_else(unknown);
    let range = |error| ConditionError::Number { condition: excerpt(condition), error };
    if let Some(row) = rows_set_by(Layer::Condition).find(|row| row.key() == name) {
        let amount = row.parse_amount(Layer::Condition, number()?).map_err(range)?;
        return Ok(Claims { limits: no_claims.limits.with_amount(row.limit, Some(amount)), ..no_claims });
    }
    match name {
        "calls" => {
            let targets = CallTargets::parse(&[value]).map_err(|_| unknown())?;
            Ok(Claims { calls: Some(targets), ..no_claims })
        }
        "secrets" => {
            let name = SecretName::parse(value).map_err(|_| unknown())?;
            Ok(Claims { secrets: Some([name].into()), ..no_claims })
        }
        // `direct` is no condition: it excludes nothing, and another layer may set a narrower one.
        "effects" => {
            let effects = FileEffects::parse(value).and_then(FileEffects::unless_direct);
            Ok(Claims { effects: Some(effects.ok_or_else(unknown)?), ..no_claims })
        }
        "host" => {
            let allowed = Some(vec![HostPattern::parse(value)?]);
            Ok(Claims { hosts: HostClaims { allowed, ..HostClaims::default() }, ..no_claims })
        }
        "blocked_host" => {
            let blocked = vec![HostPattern::parse(value)?];
            Ok(Claims { hosts: HostClaims { blocked, ..HostClaims::default() }, ..no_claims })
        }
        "max_requests_per_minute" => {
            // As in a policy, a rate beyond `u32` is capped: nobody sends so many.
            let requests_per_minute = Some(u32::try_from(number()?).unwrap_or(u32::MAX));
            Ok(Claims { hosts: HostClaims { requests_per_minute, ..HostClaims::default() }, ..no_claims })
        }
        "filesystem_scope" => Ok(Claims { areas: Some(Area::parse(value)?), ..no_claims }),
        "blocked_path" => Ok(Claims { blocked: Glob::parse_blocking(value)?, ..no_claims }),
        _other => Err(unknown()),
    }
}

/// Parses only digits: `+5`, ` 5`, `5.0` and `5e1` are rejected.
fn parse_number(text: &str) -> Option<u64> {
    let digits_only = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits_only { text.parse().ok() } else { None }
}
