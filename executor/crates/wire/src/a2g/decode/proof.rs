//! The two JSON texts inside a proof, a compact JWS: its header, and the claims that are signed.
//!
//! Both restrict what may run, so unknown members are refused, such as `crit`, `b64`, `jwk`, `jku` and `x5u` in a
//! header. Both pass [`strict_json::check`] here, because they arrive encoded and no earlier layer has checked them.

use crate::field::Object;
use crate::strict_json::{self, JsonBounds};
use a2g_types::fault::Fault;
use a2g_types::ident::{AgentDid, IntentId, ProofId, ToolName};
use a2g_types::tool::Digest;
use serde_json::{Map, Value};
use time::OffsetDateTime;

/// The claims of a proof. They count only after its signature has been verified.
#[derive(Debug, Clone, PartialEq)]
pub struct ProofClaims {
    /// `iss` and `jti`: the signer and the identifier of the proof.
    pub id: ProofId,
    /// `aud`: the executor for which the proof was issued.
    pub audience: AgentDid,
    /// `sub`: the agent for which the proof was issued.
    pub agent: AgentDid,
    /// `iat`: the time of the signature.
    pub issued_at: OffsetDateTime,
    /// `nbf`: the proof is invalid before this time.
    pub not_before: OffsetDateTime,
    /// `exp`: the proof is invalid from this time on.
    pub expires_at: OffsetDateTime,
    /// The intent that the verdict answers.
    pub intent: IntentId,
    /// The tool of the intent.
    pub tool: ToolName,
    /// The SHA-256 of the arguments as canonical JSON (RFC 8785).
    pub arguments: Digest,
    /// The SHA-256 of the tool's module, if the verdict is restricted to it.
    pub module: Option<Digest>,
    /// The verdict, as it was signed.
    pub verdict: Map<String, Value>,
}

/// Decodes the header of a proof. Returns the id of the key that it names.
///
/// `alg` is `EdDSA`, or `Ed25519`, the name of RFC 9864 for the same algorithm with the same curve; `typ` may be `JWT`;
/// no other member is allowed.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer into the header; [`Fault::Parse`] for text that is not JSON.
pub fn proof_header(text: &[u8]) -> Result<String, Fault> {
    Object::parse(strict_json::check(text, &JsonBounds::default())?)?.read_all(|object| {
        object.require("alg")?.enum_value(&[("EdDSA", ()), ("Ed25519", ())])?;
        // Without `kid`, a second trusted key would make every proof of the first one ambiguous.
        let key = object.read("kid")?;
        object.read_optional_with("typ", |field| field.enum_value(&[("JWT", ())]))?;
        Ok(key)
    })
}

/// Decodes the claims of a proof.
///
/// # Errors
/// As [`proof_header`], with pointers into the claims.
pub fn proof_claims(text: &[u8]) -> Result<ProofClaims, Fault> {
    Object::parse(strict_json::check(text, &JsonBounds::default())?)?.read_all(|object| {
        let issuer = object.read("iss")?;
        Ok(ProofClaims {
            id: object.require("jti")?.parse_with(|text| ProofId::parse(issuer, text))?,
            audience: object.read("aud")?,
            agent: object.read("sub")?,
            issued_at: object.require("iat")?.timestamp()?,
            not_before: object.require("nbf")?.timestamp()?,
            expires_at: object.require("exp")?.timestamp()?,
            intent: object.read("intent_id")?,
            tool: object.read("tool")?,
            arguments: object.read("arguments_sha256")?,
            module: object.read_optional("tool_sha256")?,
            verdict: object.read("verdict")?,
        })
    })
}
