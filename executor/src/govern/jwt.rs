//! JSON Web Tokens of callers (RFC 7519): whose are believed, and about whom they are.
//!
//! An issuer is an identity provider that the operator names, with its public keys in a file. Its tokens say
//! who somebody is, and nothing more: what a caller may do stands in the list of callers. No key of a governor
//! is among them.
//!
//! ```text
//! token ─ three parts, header ─▶ Jwt ─ known keys ─▶ signature ─▶ claims ─ iss, aud, times ─▶ JwtSubject
//! ```
//! The signature is looked at before anything that it covers is read. The key decides the algorithm, and a
//! token brings no key along.

use super::files;
use super::jws::Jws;
use super::keys::{KeyError, said};
use super::proof::LEEWAY;
use crate::fault::Fault;
use crate::ident::{Issuer, excerpt};
use crate::wire::jwks::{self, PublicKey, TokenJwk};
use crate::wire::jwt::{self, Claims, Header};
use ed25519_dalek::{Signature, VerifyingKey};
use ring::signature::{ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256};
use ring::signature::{RsaPublicKeyComponents, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use time::OffsetDateTime;

/// The most bytes of a token.
const MAX_TOKEN_BYTES: usize = 8 << 10;
/// The most bytes of a file of keys: a set may have the certificates of each key beside it.
const MAX_KEY_SET_BYTES: u64 = 256 << 10;
/// What every token begins with: `{"` in base64url.
const BEGINNING: &[u8] = b"eyJ";

/// One issuer, as the operator names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerSettings {
    /// What its tokens say in `iss`.
    pub issuer: Issuer,
    /// The file of its public keys: one JWK, or a JWK Set.
    pub keys: PathBuf,
    /// What `aud` of its tokens has to hold.
    pub audience: String,
}

/// About whom a token is: somebody that an issuer knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtSubject {
    /// `iss`.
    pub issuer: Issuer,
    /// `sub`.
    pub subject: String,
}

/// Why a token was not taken. For the operator: its caller is told no more than that it was not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// More bytes than are read.
    #[error("it has {0} bytes, and at most {MAX_TOKEN_BYTES} are read")]
    TooLong(usize),
    /// Not a compact JWS.
    #[error("it is not three parts in base64url, with a dot between them")]
    NotCompact,
    /// A header that is refused.
    #[error("its header is refused: {0}")]
    Header(String),
    /// Nobody's tokens are believed.
    #[error("no issuer's keys are in force: see `[[server.issuer]]`, which is read at the start")]
    NoIssuer,
    /// It names a key that nobody has.
    #[error("no issuer has the key `{key}` for {algorithm}")]
    UnknownKey {
        /// `kid`.
        key: String,
        /// What the token says that the key is for.
        algorithm: &'static str,
    },
    /// It names no key, and no issuer has just one for it.
    #[error("it names no key, and no issuer has just one key for {0}")]
    NoKeyNamed(&'static str),
    /// Somebody else's signature, or none.
    #[error("it is not signed by the key that it is checked with")]
    Signature,
    /// Claims that are refused.
    #[error("its claims are refused: {0}")]
    Claims(String),
    /// The key speaks for another issuer.
    #[error("it speaks for the issuer `{0}`, and its key does not")]
    OtherIssuer(Issuer),
    /// It is for somebody else.
    #[error("it is for another audience than `{0}`")]
    OtherAudience(String),
    /// It is from the future.
    #[error("it is not to be used before {0}")]
    TooEarly(OffsetDateTime),
    /// It is over.
    #[error("it expired at {0}")]
    Expired(OffsetDateTime),
    /// It is in order, and nobody in the list shows it.
    #[error("no caller is listed for the subject `{}` of the issuer `{}`", excerpt(&.0.subject), .0.issuer)]
    Unlisted(JwtSubject),
}

impl TokenError {
    /// The label of this error in the metrics.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::TooLong(_) => "too_long",
            Self::NotCompact => "not_compact",
            Self::Header(_) => "header",
            Self::NoIssuer => "no_issuer",
            Self::UnknownKey { .. } | Self::NoKeyNamed(_) => "unknown_key",
            Self::Signature => "signature",
            Self::Claims(_) => "claims",
            Self::OtherIssuer(_) => "other_issuer",
            Self::OtherAudience(_) => "other_audience",
            Self::TooEarly(_) => "too_early",
            Self::Expired(_) => "expired",
            Self::Unlisted(_) => "unlisted",
        }
    }
}

/// A token that was shown, taken apart. Nothing of it is believed yet.
pub(super) struct Jwt {
    signed: Box<str>,
    header: Header,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Jwt(…)")
    }
}

impl Jwt {
    /// Whether what was shown is read as a token of this kind: three parts, of which the first is JSON.
    pub(super) fn is_meant(shown: &[u8]) -> bool {
        shown.starts_with(BEGINNING) && shown.iter().filter(|byte| **byte == b'.').count() == 2
    }

    /// Takes a token apart and reads its header.
    pub(super) fn parse(shown: &[u8]) -> Result<Self, TokenError> {
        if shown.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong(shown.len()));
        }
        let text = std::str::from_utf8(shown).map_err(|_| TokenError::NotCompact)?;
        let Jws { signed, header, payload, signature } = Jws::parse(text).ok_or(TokenError::NotCompact)?;
        let header = jwt::header(&header).map_err(|fault| TokenError::Header(said(&fault)))?;
        Ok(Self { signed: signed.into(), header, payload, signature })
    }
}

/// Whose tokens are believed.
#[derive(Debug, Clone, Default)]
pub struct TokenIssuers(Vec<TokenIssuer>);

#[derive(Debug, Clone)]
struct TokenIssuer {
    name: Issuer,
    audience: String,
    keys: Vec<TokenKey>,
}

#[derive(Debug, Clone)]
struct TokenKey {
    id: Option<String>,
    algorithm: jwt::Algorithm,
    verifier: Verifier,
}

#[derive(Debug, Clone)]
enum Verifier {
    Ed25519(VerifyingKey),
    /// A point as it is written without compression.
    P256(Vec<u8>),
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
}

impl TokenIssuers {
    /// Reads the keys of these issuers, whose names are all different.
    ///
    /// # Ambient Authority
    /// Reads the files of the settings.
    ///
    /// # Errors
    /// [`KeyError`] for the first file that has no key to verify with, or one that cannot be used, or that
    /// others may change. Nothing is left out: an operator who named a file means it.
    pub fn read(settings: &[IssuerSettings]) -> Result<Self, KeyError> {
        let read = |IssuerSettings { issuer, keys, audience }: &IssuerSettings| {
            let text = files::read_guarded(keys, MAX_KEY_SET_BYTES)?;
            let keys = TokenKey::parse_all(&text, keys)?;
            Ok(TokenIssuer { name: issuer.clone(), audience: audience.clone(), keys })
        };
        Ok(Self(settings.iter().map(read).collect::<Result<_, KeyError>>()?))
    }

    /// Whether it is one of these.
    #[must_use]
    pub fn has(&self, name: &Issuer) -> bool {
        self.0.iter().any(|issuer| issuer.name == *name)
    }

    /// How many keys are in force.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.0.iter().map(|issuer| issuer.keys.len()).sum()
    }

    /// About whom a token is that is believed at this time.
    pub(super) fn believe(&self, token: &Jwt, now: OffsetDateTime) -> Result<JwtSubject, TokenError> {
        let Jwt { signed, header, payload, signature } = token;
        if self.0.is_empty() {
            return Err(TokenError::NoIssuer);
        }
        let fitting = self.0.iter().filter_map(|issuer| Some((issuer, issuer.key(header)?)));
        let mut fitting = fitting.peekable();
        if fitting.peek().is_none() {
            let algorithm = header.algorithm.as_str();
            return Err(match &header.key {
                Some(key) => TokenError::UnknownKey { key: excerpt(key), algorithm },
                None => TokenError::NoKeyNamed(algorithm),
            });
        }
        // Tenants of one identity provider are issuers of their own that share its keys.
        let verified = fitting.filter(|(_, key)| key.verifies(signed.as_bytes(), signature));
        let signers = verified.map(|(issuer, _)| issuer).collect::<Vec<_>>();
        if signers.is_empty() {
            return Err(TokenError::Signature);
        }
        let claims = jwt::claims(payload).map_err(|fault| TokenError::Claims(said(&fault)))?;
        let issuer = signers.into_iter().find(|issuer| issuer.name == claims.issuer);
        let issuer = issuer.ok_or_else(|| TokenError::OtherIssuer(claims.issuer.clone()))?;
        issuer.believe(claims, now)
    }
}

impl TokenIssuer {
    /// The key that a header names, or, when it names none, the only one for its algorithm.
    fn key(&self, header: &Header) -> Option<&TokenKey> {
        let mut fitting = self.keys.iter().filter(|key| key.algorithm == header.algorithm);
        match &header.key {
            Some(id) => fitting.find(|key| key.id.as_ref() == Some(id)),
            None => fitting.next().filter(|_| fitting.next().is_none()),
        }
    }

    /// About whom claims are that this issuer has signed.
    fn believe(&self, claims: Claims, now: OffsetDateTime) -> Result<JwtSubject, TokenError> {
        let Claims { issuer, subject, audiences, expires_at, not_before, issued_at } = claims;
        if !audiences.contains(&self.audience) {
            return Err(TokenError::OtherAudience(self.audience.clone()));
        }
        let early = not_before.max(issued_at).filter(|early| *early > now.saturating_add(LEEWAY));
        if let Some(early) = early {
            return Err(TokenError::TooEarly(early));
        }
        if expires_at <= now {
            return Err(TokenError::Expired(expires_at));
        }
        Ok(JwtSubject { issuer, subject })
    }
}

impl TokenKey {
    /// The keys of a file.
    fn parse_all(text: &[u8], path: &Path) -> Result<Vec<Self>, KeyError> {
        let read = jwks::keys(text).map_err(|fault| KeyError::not_a_key(path, placed(&fault)))?;
        if read.is_empty() {
            return Err(KeyError::not_a_key(
                path,
                "there is no key in it to verify tokens with: Ed25519, P-256 for ES256, or RSA for RS256",
            ));
        }
        let mut ids = BTreeSet::new();
        for id in read.iter().filter_map(|key| key.kid.as_ref()) {
            if !ids.insert(id) {
                return Err(KeyError::not_a_key(
                    path,
                    format_args!(
                        "two keys have the id `{id}`, and a token could mean either: remove one of the two"
                    ),
                ));
            }
        }
        read.into_iter().map(|key| Self::new(key, path)).collect()
    }

    fn new(key: TokenJwk, path: &Path) -> Result<Self, KeyError> {
        let TokenJwk { kid, key } = key;
        let algorithm = key.algorithm();
        let verifier = match key {
            PublicKey::Ed25519 { x } => {
                let point = VerifyingKey::from_bytes(&x).ok().filter(|key| !key.is_weak());
                let not_a_point = || KeyError::not_a_key(path, "`x` is not a point that can be signed with");
                Verifier::Ed25519(point.ok_or_else(not_a_point)?)
            }
            PublicKey::P256 { x, y } => Verifier::P256([&[4], &x[..], &y[..]].concat()),
            PublicKey::Rsa { n, e } => Verifier::Rsa(RsaPublicKeyComponents { n, e }),
        };
        Ok(Self { id: kid, algorithm, verifier })
    }

    /// Whether a signature is this key's over these bytes.
    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.verifier {
            Verifier::Ed25519(key) => Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify_strict(message, &signature).is_ok()),
            Verifier::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature).is_ok()
            }
            Verifier::Rsa(key) => key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature).is_ok(),
        }
    }
}

/// The sentence of a decoder with the place in a set, which may have many keys.
fn placed(fault: &Fault) -> String {
    let sentence = said(fault);
    if let Fault::InvalidParams { pointer, .. } = fault
        && !pointer.is_empty()
    {
        return format!("{sentence} (at {pointer})");
    }
    sentence
}

#[cfg(test)]
mod tests;
