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
    object.need("alg")?.word(&[("EdDSA", ()), ("Ed25519", ())])?;
    let key = object.need("kid")?.text()?;
    object.take("typ")?.map(|field| field.word(&[("JWT", ())])).transpose()?;
    object.end()?;
    Ok(key)
}

/// Reads the claims of a proof.
///
/// # Errors
/// As [`proof_header`], with pointers into the claims.
pub fn proof_claims(text: &[u8]) -> Result<ProofClaims, Fault> {
    let mut object = Object::root(strict_json::check(text, &JsonBounds::default())?)?;
    let issuer = object.need("iss")?.parsed(Issuer::parse)?;
    let claims = ProofClaims {
        id: object.need("jti")?.parsed(|text| ProofId::parse(issuer, text))?,
        audience: object.need("aud")?.parsed(AgentDid::parse)?,
        agent: object.need("sub")?.parsed(AgentDid::parse)?,
        issued_at: object.need("iat")?.second()?,
        not_before: object.need("nbf")?.second()?,
        expires_at: object.need("exp")?.second()?,
        intent: object.need("intent_id")?.parsed(IntentId::parse)?,
        tool: object.need("tool")?.parsed(ToolName::parse)?,
        arguments: object.need("arguments_sha256")?.parsed(Digest::parse)?,
        module: object.take("tool_sha256")?.map(|field| field.parsed(Digest::parse)).transpose()?,
        verdict: object.need("verdict")?.map()?,
    };
    object.end()?;
    Ok(claims)
}
