//! Verification of callers' JSON Web Tokens (RFC 7519).
//!
//! An issuer is an identity provider that the operator configured, with its public keys in a file. Its tokens
//! identify a caller and nothing more: roles come from the list of callers, because roles in claims would let
//! an identity provider appoint governors. Keys of issuers and of governors are separate.
//!
//! ```text
//! token ─ three parts, header ─▶ Jwt ─ known keys ─▶ signature ─▶ claims ─ iss, aud, times ─▶ JwtSubject
//! ```
//! The signature is verified before the claims are parsed. The key determines the algorithm, and
//! keys inside a token are ignored. Files are the only source of keys: with a `jwks_uri` the executor would
//! trust any server at that address, and could not start while that server is down.

use super::files;
use super::jws::Jws;
use super::keys::KeyError;
use super::proof::CLOCK_LEEWAY;
use a2g_types::fault::Fault;
use a2g_types::ident::{Issuer, ToolName, excerpt};
use a2g_types::tool::CallTargets;
use a2g_wire::jwks::{self, PublicKey, TokenJwk};
use a2g_wire::jwt::{self, TokenClaims, TokenHeader};
use ed25519_dalek::{Signature, VerifyingKey};
use ring::signature::{ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256};
use ring::signature::{RsaPublicKeyComponents, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use time::OffsetDateTime;

/// Maximum size of a token, in bytes.
const MAX_TOKEN_BYTES: usize = 8 << 10;
/// Maximum size of a key file, in bytes. A set may contain a certificate for each key.
const MAX_KEY_SET_BYTES: u64 = 256 << 10;
/// The first bytes of every token: `{"` in base64url.
const JWT_PREFIX: &[u8] = b"eyJ";

/// The operator's settings for one issuer. They are a table of the configuration, because a JWK Set does not
/// contain the name of its issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerSettings {
    /// The `iss` of the issuer's tokens.
    pub issuer: Issuer,
    /// The file of the issuer's public keys: one JWK or a JWK Set.
    pub keys: PathBuf,
    /// The audience that `aud` of the tokens must contain.
    pub audience: String,
}

/// The identity in a token: a subject of an issuer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtSubject {
    /// The token's `iss`.
    pub issuer: Issuer,
    /// The token's `sub`.
    pub subject: String,
}

/// The scope word for every tool, after `tools:`.
const EVERY_TOOL: &str = "*";

/// The reason why a token is rejected. Only the operator sees the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token is too long.
    #[error("it has {0} bytes, but at most {MAX_TOKEN_BYTES} are accepted")]
    TooLong(usize),
    /// The token is not a compact JWS.
    #[error("it is not three parts in base64url, separated by dots")]
    NotCompact,
    /// The header is not valid.
    #[error("its header is not valid: {0}")]
    Header(String),
    /// No issuer's keys are loaded.
    #[error(
        "no issuer's keys are loaded: check `[[server.issuer]]`, which is read at the start, and its key files"
    )]
    NoIssuer,
    /// No issuer has the named key.
    #[error("no issuer has the key `{key}` for {algorithm}")]
    UnknownKey {
        /// An excerpt of the token's `kid`.
        key: String,
        /// The algorithm in the token's header.
        algorithm: &'static str,
    },
    /// The token names no key, and no issuer has exactly one for its algorithm.
    #[error("it names no key, and no issuer has exactly one key for {0}")]
    NoKeyNamed(&'static str),
    /// The signature is wrong.
    #[error("its signature does not match the key")]
    Signature,
    /// The claims are not valid.
    #[error("its claims are not valid: {0}")]
    Claims(String),
    /// The key belongs to another issuer.
    #[error("its issuer is `{0}`, to which its key does not belong")]
    OtherIssuer(Issuer),
    /// The audience is not this executor.
    #[error("it is for another audience than `{0}`")]
    OtherAudience(String),
    /// The token is not valid yet.
    #[error("it is not valid before {0}")]
    TooEarly(OffsetDateTime),
    /// The token has expired.
    #[error("it expired at {0}")]
    Expired(OffsetDateTime),
    /// The token is valid, but no caller has its subject.
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

/// A parsed token, not yet verified.
pub(super) struct Jwt {
    signed: Box<str>,
    header: TokenHeader,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Jwt(…)")
    }
}

impl Jwt {
    /// Returns `true` when a credential has the form of a JSON Web Token: three parts, of which the first begins like
    /// a JSON object.
    pub(super) fn looks_like_jwt(token: &[u8]) -> bool {
        token.starts_with(JWT_PREFIX) && token.iter().filter(|byte| **byte == b'.').count() == 2
    }

    /// Splits a token and decodes its header.
    pub(super) fn parse(token: &[u8]) -> Result<Self, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong(token.len()));
        }
        let text = std::str::from_utf8(token).map_err(|_| TokenError::NotCompact)?;
        let Jws { signed, header, payload, signature } = Jws::parse(text).ok_or(TokenError::NotCompact)?;
        let header =
            jwt::decode_header(&header).map_err(|fault| TokenError::Header(fault.sentence().into_owned()))?;
        Ok(Self { signed: signed.into(), header, payload, signature })
    }
}

/// The issuers whose tokens are accepted.
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
    /// A point in uncompressed form.
    P256(Vec<u8>),
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
}

impl TokenIssuers {
    /// Reads the keys of these issuers, whose names must differ.
    ///
    /// # Ambient Authority
    /// Reads the files of the settings.
    ///
    /// # Errors
    /// [`KeyError`] for the first file that has no key for tokens or an unusable one, or that other users may change.
    /// No file is skipped, because the operator relies on each.
    pub fn read(settings: &[IssuerSettings]) -> Result<Self, KeyError> {
        let read_issuer = |IssuerSettings { issuer, keys, audience }: &IssuerSettings| {
            let text = files::read_guarded(keys, MAX_KEY_SET_BYTES)?;
            let keys = TokenKey::parse_all(&text, keys)?;
            Ok(TokenIssuer { name: issuer.clone(), audience: audience.clone(), keys })
        };
        Ok(Self(settings.iter().map(read_issuer).collect::<Result<_, KeyError>>()?))
    }

    /// Returns `true` when an issuer of this name is configured.
    #[must_use]
    pub fn contains(&self, name: &Issuer) -> bool {
        self.0.iter().any(|issuer| issuer.name == *name)
    }

    /// The number of keys of all issuers.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.0.iter().map(|issuer| issuer.keys.len()).sum()
    }

    /// Verifies a token at time `now` and returns its subject, and the tools that its scope reaches.
    pub(super) fn verify(
        &self,
        token: &Jwt,
        now: OffsetDateTime,
    ) -> Result<(JwtSubject, CallTargets), TokenError> {
        let Jwt { signed, header, payload, signature } = token;
        if self.0.is_empty() {
            return Err(TokenError::NoIssuer);
        }
        let candidates = self.0.iter().filter_map(|issuer| Some((issuer, issuer.key_for(header)?)));
        let mut candidates = candidates.peekable();
        if candidates.peek().is_none() {
            let algorithm = header.algorithm.as_str();
            return Err(match &header.key {
                Some(key) => TokenError::UnknownKey { key: excerpt(key), algorithm },
                None => TokenError::NoKeyNamed(algorithm),
            });
        }
        // Each tenant of an identity provider is a separate issuer, and all tenants share its keys. So `iss`, which is
        // signed, is read last and must name an issuer whose key verified the signature.
        let verified = candidates.filter(|(_, key)| key.verifies(signed.as_bytes(), signature));
        let signers = verified.map(|(issuer, _)| issuer).collect::<Vec<_>>();
        if signers.is_empty() {
            return Err(TokenError::Signature);
        }
        let claims =
            jwt::decode_claims(payload).map_err(|fault| TokenError::Claims(fault.sentence().into_owned()))?;
        let issuer = signers.into_iter().find(|issuer| issuer.name == claims.issuer);
        let issuer = issuer.ok_or_else(|| TokenError::OtherIssuer(claims.issuer.clone()))?;
        issuer.check_claims(claims, now)
    }
}

impl TokenIssuer {
    /// The key that a header names, or the only one for its algorithm if it names none.
    fn key_for(&self, header: &TokenHeader) -> Option<&TokenKey> {
        let mut candidates = self.keys.iter().filter(|key| key.algorithm == header.algorithm);
        match &header.key {
            Some(id) => candidates.find(|key| key.id.as_ref() == Some(id)),
            None => candidates.next().filter(|_| candidates.next().is_none()),
        }
    }

    /// Checks claims whose signature is verified, and returns their subject.
    fn check_claims(
        &self,
        claims: TokenClaims,
        now: OffsetDateTime,
    ) -> Result<(JwtSubject, CallTargets), TokenError> {
        let TokenClaims { issuer, subject, audiences, expires_at, not_before, issued_at, tools } = claims;
        if !audiences.contains(&self.audience) {
            return Err(TokenError::OtherAudience(self.audience.clone()));
        }
        let valid_from = not_before.max(issued_at).filter(|start| *start > now.saturating_add(CLOCK_LEEWAY));
        if let Some(start) = valid_from {
            return Err(TokenError::TooEarly(start));
        }
        if expires_at <= now {
            return Err(TokenError::Expired(expires_at));
        }
        // The scope narrows what its caller may do, and never widens it: a word that is no name reaches no tool.
        let tools = match tools {
            Some(tools) if !tools.contains(EVERY_TOOL) => {
                CallTargets::Named(tools.iter().filter_map(|name| ToolName::parse(name).ok()).collect())
            }
            Some(_) | None => CallTargets::All,
        };
        Ok((JwtSubject { issuer, subject }, tools))
    }
}

impl TokenKey {
    fn parse_all(text: &[u8], path: &Path) -> Result<Vec<Self>, KeyError> {
        let keys = jwks::decode_keys(text)
            .map_err(|fault| KeyError::not_a_key(path, fault_message_with_pointer(&fault)))?;
        if keys.is_empty() {
            return Err(KeyError::not_a_key(
                path,
                "it contains no key that verifies tokens: Ed25519, P-256 for ES256, or RSA for RS256",
            ));
        }
        let mut ids = BTreeSet::new();
        for id in keys.iter().filter_map(|key| key.kid.as_ref()) {
            if !ids.insert(id) {
                return Err(KeyError::not_a_key(
                    path,
                    format_args!(
                        "two keys have the id `{id}`, and a token could mean either: remove one of the two"
                    ),
                ));
            }
        }
        keys.into_iter().map(|key| Self::new(key, path)).collect()
    }

    fn new(key: TokenJwk, path: &Path) -> Result<Self, KeyError> {
        let TokenJwk { kid, key } = key;
        let algorithm = key.algorithm();
        let verifier = match key {
            PublicKey::Ed25519 { x } => {
                let point = VerifyingKey::from_bytes(&x).ok().filter(|key| !key.is_weak());
                let not_a_point = || KeyError::not_a_key(path, "`x` is not a usable Ed25519 point");
                Verifier::Ed25519(point.ok_or_else(not_a_point)?)
            }
            PublicKey::P256 { x, y } => Verifier::P256([&[4], &x[..], &y[..]].concat()),
            PublicKey::Rsa { n, e } => Verifier::Rsa(RsaPublicKeyComponents { n, e }),
        };
        Ok(Self { id: kid, algorithm, verifier })
    }

    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.verifier {
            // `verify_strict` rejects points of small order, so all verifiers agree on each signature.
            Verifier::Ed25519(key) => Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify_strict(message, &signature).is_ok()),
            Verifier::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature).is_ok()
            }
            Verifier::Rsa(key) => key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature).is_ok(),
        }
    }
}

/// The message of a fault with its JSON Pointer, because a set may contain many keys.
fn fault_message_with_pointer(fault: &Fault) -> String {
    let message = fault.sentence();
    if let Fault::InvalidParams { pointer, .. } = fault
        && !pointer.is_empty()
    {
        return format!("{message} (at {pointer})");
    }
    message.into_owned()
}

#[cfg(test)]
mod tests;
