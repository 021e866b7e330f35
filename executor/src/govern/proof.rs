//! Proofs: what shows that a verdict is the governor's though it came through other hands.
//!
//! A proof is a compact JWS (RFC 7515) by an Ed25519 key that the operator trusts. It is bound to one
//! executor, agent, intent, tool and arguments, to the whole verdict, and, when the governor says so, to
//! the module of the tool; it is good for a short time and for one run.
//!
//! ```text
//! compact ─ header: known key ─▶ signature, strictly ─▶ claims ─ each compared ─▶ Proven
//! ```
//! The signature is looked at before anything that it covers is read. Whatever cannot be read in exactly
//! one way is refused.

use super::canonical::{NotCanonical, canonical};
use super::jws::Jws;
use super::keys::{KeyError, KeyPair, TrustedKeys, said};
use super::signature::SignatureSettings;
use crate::call::Call;
use crate::fault::BlockedBy;
use crate::ident::{AgentDid, ProofId, excerpt};
use crate::tool::Digest;
use crate::verdict::{Proof, Verdict};
use crate::wire::a2g::decode::{ProofClaims, proof_claims, proof_header};
use crate::wire::a2g::encode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};
use std::path::PathBuf;
use time::{Duration, OffsetDateTime};

/// How far the clocks of whoever signs and of an executor may be apart before what was signed is from the
/// future. There is none at the other end: who is late asks again.
pub(super) const LEEWAY: Duration = Duration::seconds(30);

/// What the operator decided about keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustSettings {
    /// The folder of the keys whose proofs are believed; `None` when there are none.
    pub keys: Option<PathBuf>,
    /// The longest time from `iat` to `exp` of a proof.
    pub longest: std::time::Duration,
    /// How intents have to be signed, when they have to be.
    pub signature: Option<SignatureSettings>,
}

/// Whose proofs are believed here.
#[derive(Debug, Clone)]
pub struct Trust {
    /// Without any, every proof is refused.
    keys: TrustedKeys,
    /// This executor, as a proof has to name it.
    audience: AgentDid,
    longest: std::time::Duration,
}

/// What a proof that was believed leaves for later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Proven {
    /// The identity of the proof, single-use.
    pub(super) id: ProofId,
    /// When it ends.
    pub(super) expires_at: OffsetDateTime,
    /// The module that the tool has to be, when the verdict is about no other.
    pub(super) module: Option<Digest>,
}

/// Why a proof is not believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Disbelief {
    pub(super) blocked_by: BlockedBy,
    pub(super) message: String,
}

fn untrusted(what: impl std::fmt::Display) -> Disbelief {
    Disbelief { blocked_by: BlockedBy::VerdictUntrusted, message: format!("the `proof` {what}") }
}

fn mismatch(what: impl std::fmt::Display) -> Disbelief {
    Disbelief { blocked_by: BlockedBy::VerdictMismatch, message: format!("the `proof` is for {what}") }
}

impl Trust {
    /// Reads the trusted keys, for the executor with this DID.
    ///
    /// # Ambient Authority
    /// Reads the folder of keys.
    ///
    /// # Errors
    /// [`KeyError`] as [`TrustedKeys::read`].
    pub fn read(settings: &TrustSettings, audience: AgentDid) -> Result<Self, KeyError> {
        let TrustSettings { keys, longest, signature: _ } = settings;
        let keys = keys.as_deref().map(TrustedKeys::read).transpose()?.unwrap_or_default();
        Ok(Self { keys, audience, longest: *longest })
    }

    /// Believes no proof at all.
    #[must_use]
    pub fn of_nobody(audience: AgentDid) -> Self {
        Self { keys: TrustedKeys::default(), audience, longest: std::time::Duration::ZERO }
    }

    /// How many keys are trusted.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.iter().count()
    }

    /// Checks a proof against the call and the verdict that it came with, and gives the arguments as they
    /// were signed: from their canonical form, so that what is hashed is what the tool is given.
    pub(super) fn believe(
        &self,
        call: &Call,
        proof: &Proof,
        now: OffsetDateTime,
    ) -> Result<(Map<String, Value>, Proven), Disbelief> {
        let claims = self.signed(&proof.compact)?;
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
            return Err(mismatch(format_args!(
                "another executor, `{audience}`: this one is `{}`",
                self.audience
            )));
        }
        if agent != call.agent {
            return Err(mismatch(format_args!("another agent, `{agent}`")));
        }
        if intent != call.intent {
            return Err(mismatch(format_args!("another intent, `{intent}`")));
        }
        if tool != call.tool {
            return Err(mismatch(format_args!("another tool, `{tool}`")));
        }
        let form = |error: NotCanonical, what: &str| {
            mismatch(format_args!("a call that can be told from all others, and in {what} {error}"))
        };
        let asked = canonical(&call.arguments).map_err(|error| form(error, "its arguments"))?;
        if Digest::of(&asked) != arguments {
            return Err(mismatch("other arguments"));
        }
        let sent = canonical(&proof.verdict).map_err(|error| form(error, "the verdict"))?;
        if sent != canonical(&verdict).map_err(|error| form(error, "the signed verdict"))? {
            return Err(mismatch("another verdict: send the one that the governor gave, unchanged"));
        }
        self.check_times(issued_at, not_before, expires_at, now)?;
        let arguments = serde_json::from_slice(&asked)
            .map_err(|_| mismatch("arguments that cannot be read from their canonical form"))?;
        Ok((arguments, Proven { id, expires_at, module }))
    }

    /// The claims of a proof whose signature is good, by a key that may speak for its issuer.
    fn signed(&self, compact: &str) -> Result<ProofClaims, Disbelief> {
        let Jws { signed, header, payload, signature } = Jws::parse(compact).ok_or_else(|| {
            untrusted("is not a compact JWS: three parts in base64url, with a dot between them")
        })?;
        let named = proof_header(&header)
            .map_err(|fault| untrusted(format_args!("has a header that is refused: {}", said(&fault))))?;
        if self.keys() == 0 {
            return Err(untrusted(
                "cannot be believed: this executor trusts no key (`trust.keys`; `a2g-executor key trust` adds one)",
            ));
        }
        let key = self.keys.get(&named).ok_or_else(|| {
            let named = excerpt(&named);
            untrusted(format_args!("names the key `{named}`, which this executor does not trust"))
        })?;
        if !key.verify(signed.as_bytes(), &signature) {
            return Err(untrusted(format_args!("is not signed by the key that it names, `{}`", key.id())));
        }
        let claims = proof_claims(&payload)
            .map_err(|fault| untrusted(format_args!("has claims that are refused: {}", said(&fault))))?;
        if claims.id.issuer() != key.issuer() {
            let (says, may) = (claims.id.issuer(), key.issuer());
            return Err(untrusted(format_args!(
                "speaks for `{says}`, and its key may speak for `{may}` only"
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
    ) -> Result<(), Disbelief> {
        let early = issued_at.max(not_before);
        if early > now.saturating_add(LEEWAY) {
            return Err(untrusted(format_args!("is not to be used before {early}")));
        }
        let lifetime = expires_at - issued_at;
        if !lifetime.is_positive() {
            return Err(untrusted("expires before it was issued"));
        }
        if lifetime > self.longest {
            let (lifetime, longest) = (lifetime.whole_seconds(), self.longest.as_secs());
            return Err(untrusted(format_args!(
                "is good for {lifetime} seconds, and at most {longest} are believed (`trust.max_proof_seconds`)"
            )));
        }
        Ok(())
    }
}

impl KeyPair {
    /// Signs a verdict about a call, for one executor.
    ///
    /// # Errors
    /// [`NotProvable`] for arguments that cannot be told from all others, and for a verdict without an end.
    pub fn prove(
        &self,
        audience: &AgentDid,
        call: &Call,
        verdict: &Verdict,
        now: OffsetDateTime,
    ) -> Result<String, NotProvable> {
        let arguments =
            canonical(&call.arguments).map_err(|error| NotProvable::Arguments(error.to_string()))?;
        let issued_at = now.truncate_to_second();
        // A verdict that is written here can be read here.
        let said = serde_json::from_str(encode::verdict(verdict).get()).unwrap_or_default();
        let claims = ProofClaims {
            id: ProofId::fresh(self.public().issuer().clone()),
            audience: audience.clone(),
            agent: call.agent.clone(),
            issued_at,
            not_before: issued_at,
            expires_at: verdict.expires_at.ok_or(NotProvable::Endless)?,
            intent: call.intent,
            tool: call.tool.clone(),
            arguments: Digest::of(&arguments),
            module: None,
            verdict: said,
        };
        Ok(self.compact(encode::proof_claims(&claims).get()))
    }
}

impl KeyPair {
    /// Signs how far the journal of an executor goes, as a compact JWS.
    #[must_use]
    pub fn attest(&self, executor: &AgentDid, count: u64, root: &str, now: OffsetDateTime) -> String {
        self.compact(encode::checkpoint_claims(executor, count, root, now.unix_timestamp()).get())
    }

    /// A compact JWS over a payload.
    fn compact(&self, payload: &str) -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let header = part(encode::proof_header(self.public().id()).get());
        let signed = format!("{header}.{}", part(payload));
        let signature = URL_SAFE_NO_PAD.encode(self.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

/// Why a verdict cannot be signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotProvable {
    /// The arguments have no canonical form.
    #[error("no proof can be made: {0}")]
    Arguments(String),
    /// The verdict has no end.
    #[error("no proof can be made of a verdict without an end")]
    Endless,
}

#[cfg(test)]
mod tests;
