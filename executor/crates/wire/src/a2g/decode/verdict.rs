//! `G2A_VERDICT` and `g2a/directive`: the decisions of a governor and of a person.

use crate::a2g::limits;
use crate::field::{Field, Object};
use a2g_types::fault::Fault;
use a2g_types::verdict::{Decision, Directive, Manifest, Observation, Rationale, Risk, Verdict};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Decodes the result of `a2g/intent`: a verdict.
///
/// `capability_manifest` is required for APPROVED and CONDITIONAL, `conditions` for CONDITIONAL, and `expires_at` for
/// all decisions but DENIED.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer into the result; [`Fault::Parse`] for text that is not JSON.
pub fn verdict(result: &str) -> Result<Verdict, Fault> {
    decode(Field::parse(result)?)
}

/// Decodes the params of `g2a/directive`. Unknown members are refused.
///
/// # Errors
/// As [`verdict`], with pointers into `params`.
pub fn directive(params: &str) -> Result<Directive, Fault> {
    Object::parse(params)?.read_all(|object| {
        Ok(Directive {
            intent: object.read("intent_id")?,
            approved: object.require("decision")?.enum_value(&[("APPROVED", true), ("DENIED", false)])?,
            manifest: object.read_optional_with("capability_manifest", decode_manifest)?,
            reason: None,
            digest: object.read_optional("digest")?,
        })
    })
}

/// Decodes the verdict in a field.
pub(super) fn decode(field: Field<'_>) -> Result<Verdict, Fault> {
    let mut object = field.object()?;
    let decision = object.read("verdict")?;
    let intent = object.read("intent_id")?;
    let (needs_manifest, needs_conditions, needs_expiry) = match decision {
        Decision::Approved => (true, false, true),
        Decision::Conditional => (true, true, true),
        Decision::Escalate => (false, false, true),
        Decision::Denied => (false, false, false),
    };
    let manifest = take_limiting_member(&mut object, "capability_manifest", needs_manifest, decision)?;
    let conditions = take_limiting_member(&mut object, "conditions", needs_conditions, decision)?;
    let expires_at = take_limiting_member(&mut object, "expires_at", needs_expiry, decision)?;
    Ok(Verdict {
        decision,
        intent,
        risk: object.read_nullable_with("risk_assessment", decode_risk)?,
        manifest: manifest.map(decode_manifest).transpose()?.unwrap_or_default(),
        conditions: conditions.map(|field| field.strings()).transpose()?.unwrap_or_default(),
        expires_at: expires_at.map(|field| decode_time(&field)).transpose()?,
        reason: object.read_nullable("reason")?,
        rationale: Rationale {
            decided_by: object.read_nullable("decided_by")?.unwrap_or_default(),
            observed: object.read_nullable_with("observed", decode_observed)?.unwrap_or_default(),
        },
    })
}

fn decode_observed(field: Field<'_>) -> Result<Vec<Observation>, Fault> {
    let observation = |field: Field<'_>| {
        let mut object = field.object()?;
        Ok(Observation {
            file: object.read("file")?,
            decision: object.read("decision")?,
            decided_by: object.read("decided_by")?,
        })
    };
    field.list()?.into_iter().map(observation).collect()
}

/// Takes a member that restricts the run. It may be `null` only in a denial, which runs nothing.
fn take_limiting_member<'a>(
    object: &mut Object<'a>,
    name: &'static str,
    needed: bool,
    decision: Decision,
) -> Result<Option<Field<'a>>, Fault> {
    match (decision, needed) {
        (Decision::Denied, _) => object.take_unless_null(name),
        (Decision::Approved | Decision::Escalate | Decision::Conditional, true) => {
            object.require(name).map(Some)
        }
        (Decision::Approved | Decision::Escalate | Decision::Conditional, false) => object.take(name),
    }
}

fn decode_risk(field: Field<'_>) -> Result<Risk, Fault> {
    let mut object = field.object()?;
    let score = |field: Field<'_>| field.number(0.0, 1.0);
    Ok(Risk {
        score: score(object.require("score")?)?,
        level: object.read("level")?,
        model_score: object.read_nullable_with("model_score", score)?,
        heuristic_score: object.read_nullable_with("heuristic_score", score)?,
        threats: object.read_nullable("threats")?.unwrap_or_default(),
    })
}

/// Decodes a capability manifest. An absent limit is set by the other layers; an unknown member is refused.
fn decode_manifest(field: Field<'_>) -> Result<Manifest, Fault> {
    field.object()?.read_all(|object| {
        Ok(Manifest {
            limits: limits::read::<limits::InManifest>(object)?,
            network_allowed: object.read_optional("network_allowed")?,
            filesystem_scope: object.read_optional("filesystem_scope")?.unwrap_or_default(),
        })
    })
}

fn decode_time(field: &Field<'_>) -> Result<OffsetDateTime, Fault> {
    OffsetDateTime::parse(&field.string()?, &Rfc3339)
        .map_err(|_| field.expected_error("an RFC 3339 time with an offset, such as 2024-01-15T10:05:00Z"))
}
