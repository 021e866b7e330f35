//! The keys of signers of tools: Ed25519 and ECDSA P-256, as JWK or in the formats of `openssl` and cosign.
//!
//! A public key is a JWK, or a SubjectPublicKeyInfo (RFC 5280) as PEM or DER. A private key is a file made by
//! `key new`, or an unencrypted PKCS#8 key (RFC 5958) as PEM or DER. Signatures have cosign's format: Ed25519 over the
//! message itself, ECDSA over its SHA-256 as ASN.1 DER.

use super::files::{self, FileError, MAX_KEY_FILE_BYTES};
use super::keys::{KeyError, KeyPair};
use a2g_types::tool::Digest;
use a2g_wire::jwk;
use a2g_wire::jwks::{self, PublicKey, TokenJwk};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, VerifyingKey};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    UnparsedPublicKey,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use std::fmt;
use std::path::Path;
use zeroize::Zeroize as _;

/// The first bytes of every PEM.
const PEM_PREFIX: &[u8] = b"-----BEGIN";
/// The DER of an Ed25519 SubjectPublicKeyInfo up to the 32 bytes of the key (RFC 8410).
const SPKI_ED25519: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// The DER of a P-256 SubjectPublicKeyInfo up to the uncompressed point (RFC 5480). The first byte of the point, 4, is
/// part of the prefix, so a compressed point is refused.
const SPKI_P256: [u8; 27] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00, 0x04,
];

/// A public key that verifies signatures of tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolKey(Form);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    Ed25519(VerifyingKey),
    P256 { x: [u8; 32], y: [u8; 32] },
}

impl ToolKey {
    /// Reads a public key.
    ///
    /// # Ambient Authority
    /// Reads the file, and looks at its folder.
    ///
    /// # Errors
    /// [`KeyError`], also if other users can change or replace the file.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        Self::parse(&files::read_guarded(path, MAX_KEY_FILE_BYTES)?, path)
    }

    /// Parses a public key; `path` is used in errors.
    pub(super) fn parse(text: &[u8], path: &Path) -> Result<Self, KeyError> {
        let refuse = |reason: &str| KeyError::not_a_key(path, reason);
        let not_a_key = || {
            refuse(
                "it is not a public key: a JWK, or a SubjectPublicKeyInfo of Ed25519 or P-256 as PEM or DER",
            )
        };
        let (x, y) = if text.trim_ascii_start().starts_with(b"{") {
            let keys =
                jwks::decode_keys(text).map_err(|fault| KeyError::not_a_key(path, fault.sentence()))?;
            let [TokenJwk { key, kid: _ }] = &keys[..] else {
                return Err(refuse("it has to contain exactly one key, of Ed25519 or P-256"));
            };
            match key {
                PublicKey::Ed25519 { x } => (*x, None),
                PublicKey::P256 { x, y } => (*x, Some(*y)),
                PublicKey::Rsa { .. } => {
                    return Err(refuse("RSA keys are not supported: use Ed25519 or P-256"));
                }
            }
        } else if text.trim_ascii_start().starts_with(PEM_PREFIX) {
            let der = SubjectPublicKeyInfoDer::from_pem_slice(text).map_err(|_| {
                refuse("it has no `PUBLIC KEY`: certificates and private keys are not accepted")
            })?;
            parse_spki(&der).ok_or_else(not_a_key)?
        } else {
            parse_spki(text).ok_or_else(not_a_key)?
        };
        match y {
            Some(y) => Ok(Self(Form::P256 { x, y })),
            None => Self::ed25519(&x).ok_or_else(|| refuse("it is not a usable Ed25519 point")),
        }
    }

    fn ed25519(x: &[u8; 32]) -> Option<Self> {
        let key = VerifyingKey::from_bytes(x).ok().filter(|key| !key.is_weak())?;
        Some(Self(Form::Ed25519(key)))
    }

    /// The thumbprint (RFC 7638), which does not depend on the format of the file.
    #[must_use]
    pub fn id(&self) -> String {
        let input = match &self.0 {
            Form::Ed25519(key) => jwk::thumbprint_input(&key.to_bytes()),
            Form::P256 { x, y } => jwk::thumbprint_input_p256(x, y),
        };
        URL_SAFE_NO_PAD.encode(Digest::compute(input.as_bytes()).0)
    }

    /// The kind of the key, for people.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.0 {
            Form::Ed25519(_) => "Ed25519",
            Form::P256 { .. } => "ECDSA P-256",
        }
    }

    /// Returns `true` if this key verifies the signature of the message.
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.0 {
            // `verify_strict` rejects points of small order, so all verifiers agree on each signature.
            Form::Ed25519(key) => Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify_strict(message, &signature).is_ok()),
            Form::P256 { x, y } => {
                let point = [&[4], &x[..], &y[..]].concat();
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point).verify(message, signature).is_ok()
            }
        }
    }
}

/// The key in a SubjectPublicKeyInfo: a point of Ed25519, or both coordinates of a P-256 point.
// DER has one encoding of each key, so the prefix is constant.
fn parse_spki(der: &[u8]) -> Option<([u8; 32], Option<[u8; 32]>)> {
    if let Some(x) = der.strip_prefix(&SPKI_ED25519) {
        return Some((x.try_into().ok()?, None));
    }
    let (x, y) = der.strip_prefix(&SPKI_P256)?.split_at_checked(32)?;
    Some((x.try_into().ok()?, Some(y.try_into().ok()?)))
}

/// A private key that signs tools. `Debug` prints only the id of its public key.
pub struct ToolSigningKey {
    private: Private,
    public: ToolKey,
}

enum Private {
    /// A file made by `key new`.
    Jwk(Box<KeyPair>),
    Ed25519(Ed25519KeyPair),
    P256(EcdsaKeyPair),
}

impl fmt::Debug for ToolSigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolSigningKey").field("id", &self.public.id()).finish_non_exhaustive()
    }
}

impl ToolSigningKey {
    /// Reads a private key.
    ///
    /// # Ambient Authority
    /// Reads the file.
    ///
    /// # Errors
    /// [`KeyError`], also if other users can read the file. No message contains any of its content.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = files::read_secret(path)?;
        if text.trim_ascii_start().starts_with(b"{") {
            let pair = KeyPair::read(path)?;
            let public = ToolKey(Form::Ed25519(pair.public().point()));
            return Ok(Self { private: Private::Jwk(Box::new(pair)), public });
        }
        if !text.trim_ascii_start().starts_with(PEM_PREFIX) {
            return Self::from_pkcs8(&text, path);
        }
        let der = PrivatePkcs8KeyDer::from_pem_slice(&text).map_err(|_| {
            KeyError::not_a_key(
                path,
                "it has no `PRIVATE KEY`: an encrypted key or one of another form has to be converted with \
                 `openssl pkcs8 -topk8 -nocrypt`",
            )
        });
        let mut der = der?;
        let key = Self::from_pkcs8(der.secret_pkcs8_der(), path);
        der.zeroize();
        key
    }

    fn from_pkcs8(der: &[u8], path: &Path) -> Result<Self, KeyError> {
        let not_a_point = || KeyError::not_a_key(path, "its public part is not a usable point");
        // `openssl` writes Ed25519 keys without their public part, so it is computed.
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der) {
            let x = pair.public_key().as_ref().try_into().ok();
            let public = x.and_then(|x| ToolKey::ed25519(&x)).ok_or_else(not_a_point)?;
            return Ok(Self { private: Private::Ed25519(pair), public });
        }
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der, &random);
        let pair = pair.map_err(|_| {
            KeyError::not_a_key(
                path,
                "it is not a private key: a file of `key new`, or PKCS#8 of Ed25519 or P-256 as PEM or DER, not encrypted",
            )
        })?;
        let public = match pair.public_key().as_ref() {
            [4, point @ ..] => point
                .split_at_checked(32)
                .and_then(|(x, y)| Some(Form::P256 { x: x.try_into().ok()?, y: y.try_into().ok()? })),
            _compressed => None,
        };
        let public = ToolKey(public.ok_or_else(not_a_point)?);
        Ok(Self { private: Private::P256(pair), public })
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> &ToolKey {
        &self.public
    }

    /// Signs a message.
    pub(super) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, FileError> {
        match &self.private {
            Private::Jwk(pair) => Ok(pair.sign(message).to_vec()),
            Private::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            Private::P256(pair) => {
                let signature = pair.sign(&SystemRandom::new(), message);
                let signature = signature.map_err(|_| {
                    FileError::io(
                        Path::new("the system's random numbers"),
                        std::io::Error::other("unavailable"),
                    )
                })?;
                Ok(signature.as_ref().to_vec())
            }
        }
    }
}
