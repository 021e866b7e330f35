//! Proofs, which authenticate a governor's verdict that arrives through another sender.
//!
//! A proof is a compact JWS (RFC 7515) by an Ed25519 key that the operator trusts. It is bound to one executor, agent,
//! intent, tool and arguments, to the whole verdict, and optionally to the tool's module. It is valid for a short time
//! and for one run.
//!
//! ```text
//! compact ─ header: known key ─▶ signature, strictly ─▶ claims ─ each compared ─▶ VerifiedProof
//! ```
//! The signature is verified before the signed claims are parsed. Ambiguous text is rejected.

use super::canonical::{CanonicalError, canonicalize};
use super::jws::Jws;
use super::keys::{KeyError, KeyPair, TrustedKeys};
use super::signature::SignatureSettings;
use a2g_types::call::Call;
use a2g_types::fault::BlockedBy;
use a2g_types::ident::{AgentDid, ProofId, excerpt};
use a2g_types::tool::Digest;
use a2g_types::verdict::{Proof, Verdict};
use a2g_wire::a2g::decode::{ProofClaims, proof_claims, proof_header};
use a2g_wire::a2g::encode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};
use std::path::PathBuf;
use time::{Duration, OffsetDateTime};

/// Maximum time by which a signer's clock may be ahead of the executor's. There is no such tolerance at the expiry of a
/// proof or a token, because the sender can request another one.
pub(super) const CLOCK_LEEWAY: Duration = Duration::seconds(30);

/// The operator's settings for keys and signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustSettings {
    /// The folder of trusted keys; `None` trusts none.
    pub keys: Option<PathBuf>,
    /// Maximum time from `iat` to `exp` of a proof.
    pub max_lifetime: std::time::Duration,
    /// The signature that intents must have, if one is required.
    pub signature: Option<SignatureSettings>,
}

/// The keys whose proofs this executor accepts.
#[derive(Debug, Clone)]
pub struct Trust {
    /// The trusted keys. Without any, every proof is rejected.
    keys: TrustedKeys,
    /// This executor's DID, which a proof must contain as `aud`.
    audience: AgentDid,
    max_lifetime: std::time::Duration,
}

/// The part of a verified proof that later checks need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VerifiedProof {
    /// The single-use id of the proof.
    pub(super) id: ProofId,
    /// The time from which the proof is no longer valid.
    pub(super) expires_at: OffsetDateTime,
    /// The digest that the tool's module must have, if the proof restricts it.
    pub(super) module: Option<Digest>,
}

/// The reason why a proof is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProofError {
    pub(super) blocked_by: BlockedBy,
    pub(super) message: String,
}

fn untrusted_error(problem: impl std::fmt::Display) -> ProofError {
    ProofError { blocked_by: BlockedBy::VerdictUntrusted, message: format!("the `proof` {problem}") }
}

fn mismatch_error(subject: impl std::fmt::Display) -> ProofError {
    ProofError { blocked_by: BlockedBy::VerdictMismatch, message: format!("the `proof` is for {subject}") }
}

impl Trust {
    /// Reads the trusted keys, for the executor with this DID.
    ///
    /// # Ambient Authority
    /// Reads the folder of keys.
    ///
    /// # Errors
    /// As [`TrustedKeys::read`].
    pub fn read(settings: &TrustSettings, audience: AgentDid) -> Result<Self, KeyError> {
        let TrustSettings { keys, max_lifetime, signature: _ } = settings;
        let keys = keys.as_deref().map(TrustedKeys::read).transpose()?.unwrap_or_default();
        Ok(Self { keys, audience, max_lifetime: *max_lifetime })
    }

    /// Trusts no key, so every proof is rejected.
    #[must_use]
    pub fn empty(audience: AgentDid) -> Self {
        Self { keys: TrustedKeys::default(), audience, max_lifetime: std::time::Duration::ZERO }
    }

    /// The number of trusted keys.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys.iter().count()
    }

    /// Verifies the proof of the verdict that was sent with a call, and returns the call's arguments as parsed from
    /// their canonical form.
    pub(super) fn verify(
        &self,
        call: &Call,
        proof: &Proof,
        now: OffsetDateTime,
    ) -> Result<(Map<String, Value>, VerifiedProof), ProofError> {
        let claims = self.verify_signature(&proof.compact)?;
        let ProofClaims {
            id,
            audience,
            agent,
            issued_at,
            not_before,
            expires_at,
            intent,
            tool,
            arguments,
            module,
            verdict,
        } = claims;
        if audience != self.audience {
            return Err(mismatch_error(format_args!(
                "another executor, `{audience}`: this one is `{}`",
                self.audience
            )));
        }
        if agent != call.agent {
            return Err(mismatch_error(format_args!("another agent, `{agent}`")));
        }
        if intent != call.intent {
            return Err(mismatch_error(format_args!("another intent, `{intent}`")));
        }
        if tool != call.tool {
            return Err(mismatch_error(format_args!("another tool, `{tool}`")));
        }
        let not_canonical = |error: CanonicalError, part: &str| {
            mismatch_error(format_args!("a call with a canonical form, but in {part} {error}"))
        };
        let call_arguments =
            canonicalize(&call.arguments).map_err(|error| not_canonical(error, "its arguments"))?;
        if Digest::compute(&call_arguments) != arguments {
            return Err(mismatch_error("other arguments"));
        }
        let call_verdict =
            canonicalize(&proof.verdict).map_err(|error| not_canonical(error, "the verdict"))?;
        if call_verdict
            != canonicalize(&verdict).map_err(|error| not_canonical(error, "the signed verdict"))?
        {
            return Err(mismatch_error("another verdict: send the one that the governor gave, unchanged"));
        }
        self.check_times(issued_at, not_before, expires_at, now)?;
        // `3` and `3.0` have the same hash, but a tool can tell them apart. The tool gets the arguments from
        // the hashed text, so that equal hashes mean equal input.
        let arguments = serde_json::from_slice(&call_arguments)
            .map_err(|_| mismatch_error("arguments that cannot be read from their canonical form"))?;
        Ok((arguments, VerifiedProof { id, expires_at, module }))
    }

    /// Verifies the signature and returns the claims, if the key may speak for their issuer.
    fn verify_signature(&self, compact: &str) -> Result<ProofClaims, ProofError> {
        let Jws { signed, header, payload, signature } = Jws::parse(compact).ok_or_else(|| {
            untrusted_error("is not a compact JWS: three parts in base64url, with a dot between them")
        })?;
        let key_id = proof_header(&header).map_err(|fault| {
            untrusted_error(format_args!("has a header that is refused: {}", fault.sentence()))
        })?;
        if self.key_count() == 0 {
            return Err(untrusted_error(
                "cannot be verified: this executor trusts no key (`trust.keys`; `a2g-executor key trust` adds one)",
            ));
        }
        let key = self.keys.get(&key_id).ok_or_else(|| {
            let key_id = excerpt(&key_id);
            untrusted_error(format_args!("names the key `{key_id}`, which this executor does not trust"))
        })?;
        if !key.verify(signed.as_bytes(), &signature) {
            return Err(untrusted_error(format_args!(
                "is not signed by the key that it names, `{}`",
                key.id()
            )));
        }
        let claims = proof_claims(&payload).map_err(|fault| {
            untrusted_error(format_args!("has claims that are refused: {}", fault.sentence()))
        })?;
        if claims.id.issuer() != key.issuer() {
            let issuer = claims.id.issuer();
            let key_issuer = key.issuer();
            return Err(untrusted_error(format_args!(
                "speaks for `{issuer}`, but its key may speak for `{key_issuer}` only"
            )));
        }
        Ok(claims)
    }

    fn check_times(
        &self,
        issued_at: OffsetDateTime,
        not_before: OffsetDateTime,
        expires_at: OffsetDateTime,
        now: OffsetDateTime,
    ) -> Result<(), ProofError> {
        let valid_from = issued_at.max(not_before);
        if valid_from > now.saturating_add(CLOCK_LEEWAY) {
            return Err(untrusted_error(format_args!("is not valid before {valid_from}")));
        }
        let lifetime = expires_at - issued_at;
        if !lifetime.is_positive() {
            return Err(untrusted_error("expires before it was issued"));
        }
        if lifetime > self.max_lifetime {
            let lifetime = lifetime.whole_seconds();
            let maximum = self.max_lifetime.as_secs();
            return Err(untrusted_error(format_args!(
                "is valid for {lifetime} seconds, but at most {maximum} are accepted (`trust.max_proof_seconds`)"
            )));
        }
        Ok(())
    }
}

impl KeyPair {
    /// Signs a verdict about a call, for one executor.
    ///
    /// # Errors
    /// [`SigningError`] for arguments without an exact canonical form, and for a verdict without an expiry.
    pub fn prove(
        &self,
        audience: &AgentDid,
        call: &Call,
        verdict: &Verdict,
        now: OffsetDateTime,
    ) -> Result<String, SigningError> {
        let arguments =
            canonicalize(&call.arguments).map_err(|error| SigningError::Arguments(error.to_string()))?;
        let issued_at = now.truncate_to_second();
        // Parsing cannot fail for JSON that was serialized on this line.
        let encoded_verdict = serde_json::from_str(encode::verdict(verdict).get()).unwrap_or_default();
        let claims = ProofClaims {
            id: ProofId::random(self.public().issuer().clone()),
            audience: audience.clone(),
            agent: call.agent.clone(),
            issued_at,
            not_before: issued_at,
            expires_at: verdict.expires_at.ok_or(SigningError::NoExpiry)?,
            intent: call.intent,
            tool: call.tool.clone(),
            arguments: Digest::compute(&arguments),
            module: None,
            verdict: encoded_verdict,
        };
        Ok(self.compact(encode::proof_claims(&claims).get()))
    }
}

impl KeyPair {
    /// Signs the end of an executor's journal, as a compact JWS.
    #[must_use]
    pub fn attest(&self, executor: &AgentDid, count: u64, root: &str, now: OffsetDateTime) -> String {
        self.compact(encode::checkpoint_claims(executor, count, root, now.unix_timestamp()).get())
    }

    fn compact(&self, payload: &str) -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let header = part(encode::proof_header(self.public().id()).get());
        let signed = format!("{header}.{}", part(payload));
        let signature = URL_SAFE_NO_PAD.encode(self.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

/// The reason why a verdict cannot be signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SigningError {
    /// The arguments have no canonical form.
    #[error("no proof can be made: {0}")]
    Arguments(String),
    /// The verdict has no expiry.
    #[error("no proof can be made for a verdict without `expires_at`")]
    NoExpiry,
}

#[cfg(test)]
mod tests;
