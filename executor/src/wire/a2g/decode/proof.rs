//! The two JSON texts inside a proof, a compact JWS: its header, and the claims that are signed.
//!
//! Both restrict what may run, so a member that is not known here is refused: `crit`, `b64`, `jwk`,
//! `jku` and `x5u` of a header among them. Both texts are held to [`strict_json::check`] here, because
//! they came encoded and nobody has looked at them.

use crate::fault::Fault;
use crate::ident::{AgentDid, IntentId, Issuer, ProofId, ToolName};
use crate::tool::Digest;
use crate::wire::field::Object;
use crate::wire::strict_json::{self, JsonBounds};
use serde_json::{Map, Value};
use time::OffsetDateTime;

/// What a proof says, once its signature is known to be good.
#[derive(Debug, Clone, PartialEq)]
pub struct ProofClaims {
    /// `iss` and `jti`: who signed it, and its identifier.
    pub id: ProofId,
    /// `aud`: the executor that it is for.
    pub audience: AgentDid,
    /// `sub`: the agent that it is for.
    pub agent: AgentDid,
    /// `iat`: when it was signed.
    pub issued_at: OffsetDateTime,
    /// `nbf`: not to be used before.
    pub not_before: OffsetDateTime,
    /// `exp`: not to be used from then on.
    pub expires_at: OffsetDateTime,
    /// The intent that the verdict answers.
    pub intent: IntentId,
    /// The tool that it asks for.
    pub tool: ToolName,
    /// The SHA-256 of the arguments as canonical JSON (RFC 8785).
    pub arguments: Digest,
    /// The SHA-256 of the tool's module, when the verdict is about no other.
    pub module: Option<Digest>,
    /// The verdict, as it was signed.
    pub verdict: Map<String, Value>,
}

/// Reads the header of a proof and gives the id of the key that it names.
///
/// `alg` is `EdDSA`, or the name that RFC 9864 gives to the same algorithm with the same curve,
/// `Ed25519`; `typ` may be `JWT`; nothing else may be there.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer into the header; [`Fault::Parse`] for text that is not JSON.
pub fn proof_header(text: &[u8]) -> Result<String, Fault> {
    let mut object = Object::root(strict_json::check(text, &JsonBounds::default())?)?;
    object.require("alg")?.enum_value(&[("EdDSA", ()), ("Ed25519", ())])?;
    let key = object.require("kid")?.string()?;
    object.take("typ")?.map(|field| field.enum_value(&[("JWT", ())])).transpose()?;
    object.finish()?;
    Ok(key)
}

/// Reads the claims of a proof.
///
/// # Errors
/// As [`proof_header`], with pointers into the claims.
pub fn proof_claims(text: &[u8]) -> Result<ProofClaims, Fault> {
    let mut object = Object::root(strict_json::check(text, &JsonBounds::default())?)?;
    let issuer = object.require("iss")?.parse_with(Issuer::parse)?;
    let claims = ProofClaims {
        id: object.require("jti")?.parse_with(|text| ProofId::parse(issuer, text))?,
        audience: object.require("aud")?.parse_with(AgentDid::parse)?,
        agent: object.require("sub")?.parse_with(AgentDid::parse)?,
        issued_at: object.require("iat")?.timestamp()?,
        not_before: object.require("nbf")?.timestamp()?,
        expires_at: object.require("exp")?.timestamp()?,
        intent: object.require("intent_id")?.parse_with(IntentId::parse)?,
        tool: object.require("tool")?.parse_with(ToolName::parse)?,
        arguments: object.require("arguments_sha256")?.parse_with(Digest::parse)?,
        module: object.take("tool_sha256")?.map(|field| field.parse_with(Digest::parse)).transpose()?,
        verdict: object.require("verdict")?.map()?,
    };
    object.finish()?;
    Ok(claims)
}
