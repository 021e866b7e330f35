//! The public keys of issuers of JSON Web Tokens, as identity providers publish them: one key as JSON (RFC
//! 7517, RFC 7518, RFC 8037), or a set of keys.
//!
//! The kind of a key determines its only algorithm. Keys of other kinds or for other purposes, such as
//! encryption, are skipped, as RFC 7517 (section 5) requires of sets. An unusable key of a supported kind is
//! rejected, and so is anything that is not a public key.

use super::field::Object;
use super::jwk::{decode_key_bytes, parse_key_id};
use super::jwt::Algorithm;
use super::strict_json::{self, JsonBounds};
use a2g_types::fault::Fault;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The accepted sizes of an RSA modulus, in bits.
const MODULUS_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;
/// Maximum size of an RSA exponent, in bytes.
const MAX_EXPONENT_BYTES: usize = 4;

/// A key that verifies tokens, with its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenJwk {
    /// The id that the key's issuer chose, if any.
    pub kid: Option<String>,
    /// The key material.
    pub key: PublicKey,
}

/// The supported kinds of keys. Points are accepted without a check that they lie on their curve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicKey {
    /// An Ed25519 key.
    Ed25519 {
        /// The point as RFC 8032 encodes it.
        x: [u8; 32],
    },
    /// A point on P-256.
    P256 {
        /// The first coordinate, big-endian.
        x: [u8; 32],
        /// The second coordinate, big-endian.
        y: [u8; 32],
    },
    /// An RSA key; numbers are big-endian without leading zeros.
    Rsa {
        /// The modulus: odd, 2048 to 8192 bits.
        n: Vec<u8>,
        /// The exponent: odd, at least 3, at most 4 bytes.
        e: Vec<u8>,
    },
}

impl PublicKey {
    /// The one algorithm that this key verifies.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Self::Ed25519 { .. } => Algorithm::EdDsa,
            Self::P256 { .. } => Algorithm::Es256,
            Self::Rsa { .. } => Algorithm::Rs256,
        }
    }
}

/// Reads a key or a set of keys, and returns those that verify tokens.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer to a key that is unusable or not public; [`Fault::Parse`] for text
/// that is not JSON.
pub fn decode_keys(text: &[u8]) -> Result<Vec<TokenJwk>, Fault> {
    let mut object = Object::parse(strict_json::check(text, &JsonBounds::default())?)?;
    if let Some(field) = object.take("jwks_uri")? {
        return Err(field.invalid(
            &"this is a discovery document: download the key set from the `jwks_uri` that it names",
        ));
    }
    match object.take("keys")? {
        Some(set) => set
            .list()?
            .into_iter()
            .filter_map(|field| field.object().and_then(decode_key).transpose())
            .collect(),
        None => Ok(decode_key(object)?.into_iter().collect()),
    }
}

/// One key; `None` when it cannot verify tokens.
fn decode_key(mut object: Object<'_>) -> Result<Option<TokenJwk>, Fault> {
    for secret in ["d", "k"] {
        if let Some(field) = object.take(secret)? {
            return Err(
                field.invalid(&"this is a private key or a shared secret: only public keys are accepted")
            );
        }
    }
    if !is_for_verification(&mut object)? {
        return Ok(None);
    }
    let kind = object.read::<String>("kty")?;
    let curve = object.read_optional::<String>("crv")?;
    let key = match (&*kind, curve.as_deref()) {
        ("OKP", Some("Ed25519")) => {
            PublicKey::Ed25519 { x: object.require("x")?.parse_with(parse_coordinate)? }
        }
        ("EC", Some("P-256")) => PublicKey::P256 {
            x: object.require("x")?.parse_with(parse_coordinate)?,
            y: object.require("y")?.parse_with(parse_coordinate)?,
        },
        ("RSA", None) => PublicKey::Rsa {
            n: object.require("n")?.parse_with(parse_modulus)?,
            e: object.require("e")?.parse_with(parse_exponent)?,
        },
        // An unsupported kind.
        (_, _) => return Ok(None),
    };
    if let Some(algorithm) = object.read_optional::<String>("alg")?
        && !Algorithm::NAMES.contains(&(&*algorithm, key.algorithm()))
    {
        return Ok(None);
    }
    let kid = object.read_optional_with("kid", |field| field.parse_with(parse_key_id))?;
    Ok(Some(TokenJwk { kid, key }))
}

/// `true` unless `use` or `key_ops` excludes verification.
fn is_for_verification(object: &mut Object<'_>) -> Result<bool, Fault> {
    let usage = object.read_optional::<String>("use")?;
    let operations = object.read_optional::<Vec<String>>("key_ops")?;
    let verifies = |operations: Vec<String>| operations.iter().any(|operation| operation == "verify");
    Ok(usage.is_none_or(|usage| usage == "sig") && operations.is_none_or(verifies))
}

/// An invalid member of an RSA key. Each text completes a sentence that begins with the member's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum RsaKeyError {
    #[error("must be a number in base64url")]
    NotANumber,
    #[error("must be an odd number without leading zeros")]
    NotOdd,
    #[error("has {0} bits: an RSA key must have {min} to {max}", min = MODULUS_BITS.start(), max = MODULUS_BITS.end())]
    Modulus(usize),
    #[error("must be at least 3, and at most {MAX_EXPONENT_BYTES} bytes long")]
    Exponent,
}

fn parse_coordinate(text: &str) -> Result<[u8; 32], &'static str> {
    decode_key_bytes(text).ok_or("must be 32 bytes in base64url")
}

fn parse_modulus(text: &str) -> Result<Vec<u8>, RsaKeyError> {
    let n = parse_odd_number(text)?;
    let leading_zeros = n.first().map_or(0, |byte| byte.leading_zeros());
    let bits = n.len().saturating_mul(8).saturating_sub(usize::try_from(leading_zeros).unwrap_or(usize::MAX));
    if MODULUS_BITS.contains(&bits) {
        return Ok(n);
    }
    Err(RsaKeyError::Modulus(bits))
}

fn parse_exponent(text: &str) -> Result<Vec<u8>, RsaKeyError> {
    let e = parse_odd_number(text)?;
    if e.len() <= MAX_EXPONENT_BYTES && e != [1] {
        return Ok(e);
    }
    Err(RsaKeyError::Exponent)
}

/// A `Base64urlUInt` of RFC 7518, in the minimum number of bytes.
fn parse_odd_number(text: &str) -> Result<Vec<u8>, RsaKeyError> {
    let number = URL_SAFE_NO_PAD.decode(text).map_err(|_| RsaKeyError::NotANumber)?;
    let is_minimal = number.first().is_some_and(|first| *first != 0);
    let is_odd = number.last().is_some_and(|last| last % 2 == 1);
    if is_minimal && is_odd { Ok(number) } else { Err(RsaKeyError::NotOdd) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

    fn read(text: &str) -> Result<Vec<TokenJwk>, String> {
        decode_keys(text.as_bytes()).map_err(|fault| format!("{fault:?}"))
    }

    fn rsa(n: &[u8], e: &[u8]) -> String {
        let n = URL_SAFE_NO_PAD.encode(n);
        let e = URL_SAFE_NO_PAD.encode(e);
        format!(r#"{{"kty":"RSA","n":"{n}","e":"{e}"}}"#)
    }

    #[test]
    fn a_set_yields_its_verification_keys_and_skips_the_others() {
        let modulus = vec![0xff; 256];
        let n = URL_SAFE_NO_PAD.encode(&modulus);
        let set = format!(
            r#"{{"issuer":"https://id.example","keys":[
                {{"kty":"OKP","crv":"Ed25519","x":"{X}","kid":"a","use":"sig","alg":"EdDSA","x5c":["AA=="]}},
                {{"kty":"EC","crv":"P-256","x":"{X}","y":"{X}","kid":"b","key_ops":["verify"]}},
                {{"kty":"RSA","n":"{n}","e":"AQAB","alg":"RS256"}},
                {{"kty":"RSA","n":"{n}","e":"AQAB","kid":"c","use":"enc","alg":"RSA-OAEP"}},
                {{"kty":"RSA","n":"{n}","e":"AQAB","kid":"d","alg":"PS256"}},
                {{"kty":"RSA","n":"AQAB","e":"AQAB","kid":"e","use":"enc"}},
                {{"kty":"EC","crv":"P-384","x":"AA","y":"AA"}},
                {{"kty":"OKP","crv":"X25519","x":"{X}"}},
                {{"kty":"OKP","crv":"Ed25519","x":"{X}","key_ops":["encrypt"]}},
                {{"kty":"new"}}
            ]}}"#
        );
        let keys = read(&set).unwrap();
        let point = decode_key_bytes(X).unwrap();
        let named = |kid: &str, key| TokenJwk { kid: Some(kid.to_owned()), key };
        assert_eq!(
            keys,
            [
                named("a", PublicKey::Ed25519 { x: point }),
                named("b", PublicKey::P256 { x: point, y: point }),
                TokenJwk { kid: None, key: PublicKey::Rsa { n: modulus, e: vec![1, 0, 1] } },
            ]
        );
        let algorithms = keys.iter().map(|key| key.key.algorithm().as_str()).collect::<Vec<_>>();
        assert_eq!(algorithms, ["EdDSA", "ES256", "RS256"]);
        assert_eq!(read(&format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{X}"}}"#)).unwrap().len(), 1);
        assert_eq!(read(r#"{"keys":[]}"#), Ok(Vec::new()));
    }

    #[test]
    fn an_unusable_key_is_refused_with_its_pointer() {
        for (text, expected) in [
            (format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{X}","d":"{X}"}}]}}"#), "/keys/0/d"),
            (format!(r#"{{"kty":"RSA","use":"enc","d":"{X}"}}"#), "private key"),
            (r#"{"kty":"oct","k":"c2VjcmV0"}"#.to_owned(), "shared secret"),
            (r#"{"kty":"OKP","crv":"Ed25519","x":"AA"}"#.to_owned(), "`x`"),
            (format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{X}="}}"#), "`x`"),
            (format!(r#"{{"kty":"EC","crv":"P-256","x":"{X}"}}"#), "`y` is missing"),
            (format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{X}","kid":"a b"}}"#), "`kid`"),
            (format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{X}","x":"{X}"}}"#), "duplicate key"),
            (format!(r#"{{"crv":"Ed25519","x":"{X}"}}"#), "`kty` is missing"),
            (rsa(&[0xff; 255], &[3]), "2040 bits"),
            (rsa(&[&[0x7f; 1][..], &[0xff; 255]].concat(), &[3]), "2047 bits"),
            (rsa(&[0xff; 1025], &[3]), "8200 bits"),
            (rsa(&[&[0; 1][..], &[0xff; 256]].concat(), &[3]), "without leading zeros"),
            (rsa(&[0xfe; 256], &[3]), "odd"),
            (rsa(&[0xff; 256], &[1]), "at least 3"),
            (rsa(&[0xff; 256], &[2]), "odd"),
            (rsa(&[0xff; 256], &[]), "odd"),
            (rsa(&[0xff; 256], &[1; 5]), "4 bytes"),
            (r#"{"issuer":"a","jwks_uri":"https://a/keys"}"#.to_owned(), "discovery document"),
            (r#"{"keys":{}}"#.to_owned(), "`keys`"),
            (r#"{"keys":["a"]}"#.to_owned(), "/keys/0"),
            ("[]".to_owned(), "object"),
            ("-----BEGIN PUBLIC KEY-----".to_owned(), "JSON"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(expected) && !error.contains("c2VjcmV0"), "{expected}: {error}");
        }
    }
}
