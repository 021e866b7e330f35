//! The public keys of whoever issues JSON Web Tokens, as identity providers give them out: one key as JSON
//! (RFC 7517, RFC 7518, RFC 8037), or a set of them.
//!
//! The kind of a key decides the one algorithm that it verifies. Keys that are for something else, such as
//! encryption, or of another kind are passed over, as RFC 7517 (section 5) says of sets. One that is of a kind
//! here and cannot be used is refused, and so is whatever is no public key.

use super::field::{Field, Object};
use super::jwk::{bytes, key_id};
use super::jwt::Algorithm;
use super::strict_json::{self, JsonBounds};
use crate::fault::Fault;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// How many bits the modulus of an RSA key may have.
const MODULUS_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;
/// The most bytes of the exponent of an RSA key.
const MAX_EXPONENT_BYTES: usize = 4;

/// A key that verifies tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenJwk {
    /// The name that its issuer gave it.
    pub kid: Option<String>,
    /// The key.
    pub key: PublicKey,
}

/// The kinds of keys. Whether a point is one of its curve is not looked at here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicKey {
    /// An Ed25519 key as RFC 8032 encodes it.
    Ed25519 {
        /// The point.
        x: [u8; 32],
    },
    /// A point of P-256.
    P256 {
        /// Its first coordinate, big-endian.
        x: [u8; 32],
        /// Its second coordinate, likewise.
        y: [u8; 32],
    },
    /// An RSA key, big-endian without leading zeros.
    Rsa {
        /// The modulus: odd, of 2048 to 8192 bits.
        n: Vec<u8>,
        /// The exponent: odd, at least 3, of 4 bytes at most.
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

/// Reads a key, or a set of keys, and gives those that verify tokens.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer to a key that cannot be used, or is not public; [`Fault::Parse`]
/// for text that is not JSON.
pub fn keys(text: &[u8]) -> Result<Vec<TokenJwk>, Fault> {
    let mut object = Object::root(strict_json::check(text, &JsonBounds::default())?)?;
    if let Some(field) = object.take("jwks_uri")? {
        return Err(
            field.refused(&"this is a discovery document: take the set of keys from the place that it names")
        );
    }
    match object.take("keys")? {
        Some(set) => {
            set.list()?.into_iter().filter_map(|field| field.object().and_then(key).transpose()).collect()
        }
        None => Ok(key(object)?.into_iter().collect()),
    }
}

/// One key; `None` when it is not one to verify tokens with.
fn key(mut object: Object<'_>) -> Result<Option<TokenJwk>, Fault> {
    for secret in ["d", "k"] {
        if let Some(field) = object.take(secret)? {
            return Err(
                field.refused(&"this is a private key or a shared secret, and only public keys belong here")
            );
        }
    }
    if !is_to_verify(&mut object)? {
        return Ok(None);
    }
    let kind = object.need("kty")?.text()?;
    let curve = object.take("crv")?.map(|field| field.text()).transpose()?;
    let key = match (&*kind, curve.as_deref()) {
        ("OKP", Some("Ed25519")) => PublicKey::Ed25519 { x: object.need("x")?.parsed(coordinate)? },
        ("EC", Some("P-256")) => PublicKey::P256 {
            x: object.need("x")?.parsed(coordinate)?,
            y: object.need("y")?.parsed(coordinate)?,
        },
        ("RSA", None) => {
            PublicKey::Rsa { n: object.need("n")?.parsed(modulus)?, e: object.need("e")?.parsed(exponent)? }
        }
        // Of a kind that is not used here.
        (_, _) => return Ok(None),
    };
    if let Some(algorithm) = object.take("alg")? {
        let algorithm = algorithm.text()?;
        if !Algorithm::NAMES.contains(&(&*algorithm, key.algorithm())) {
            return Ok(None);
        }
    }
    Ok(Some(TokenJwk { kid: object.take("kid")?.map(|field| field.parsed(key_id)).transpose()?, key }))
}

/// Whether a key is for signatures, as far as it says.
fn is_to_verify(object: &mut Object<'_>) -> Result<bool, Fault> {
    let used = object.take("use")?.map(|field: Field<'_>| field.text()).transpose()?;
    let operations = object.take("key_ops")?.map(Field::texts).transpose()?;
    let verifies = |operations: Vec<String>| operations.iter().any(|operation| operation == "verify");
    Ok(used.is_none_or(|used| used == "sig") && operations.is_none_or(verifies))
}

/// What is wrong with a part of an RSA key, as the end of a sentence about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum RsaKeyError {
    #[error("has to be a number in base64url")]
    NotANumber,
    #[error("has to be an odd number without leading zeros")]
    NotOdd,
    #[error("has {0} bits, and keys of {least} to {most} are used", least = MODULUS_BITS.start(), most = MODULUS_BITS.end())]
    Modulus(usize),
    #[error("has to be at least 3, and of {MAX_EXPONENT_BYTES} bytes at most")]
    Exponent,
}

fn coordinate(text: &str) -> Result<[u8; 32], &'static str> {
    bytes(text).ok_or("has to be 32 bytes in base64url")
}

fn modulus(text: &str) -> Result<Vec<u8>, RsaKeyError> {
    let n = odd_number(text)?;
    let leading = n.first().map_or(0, |byte| byte.leading_zeros());
    let bits = n.len().saturating_mul(8).saturating_sub(usize::try_from(leading).unwrap_or(usize::MAX));
    if MODULUS_BITS.contains(&bits) {
        return Ok(n);
    }
    Err(RsaKeyError::Modulus(bits))
}

fn exponent(text: &str) -> Result<Vec<u8>, RsaKeyError> {
    let e = odd_number(text)?;
    if e.len() <= MAX_EXPONENT_BYTES && e != [1] {
        return Ok(e);
    }
    Err(RsaKeyError::Exponent)
}

/// A `Base64urlUInt` of RFC 7518: in as few bytes as it needs.
fn odd_number(text: &str) -> Result<Vec<u8>, RsaKeyError> {
    let number = URL_SAFE_NO_PAD.decode(text).map_err(|_| RsaKeyError::NotANumber)?;
    let shortest = number.first().is_some_and(|first| *first != 0);
    let odd = number.last().is_some_and(|last| last % 2 == 1);
    if shortest && odd { Ok(number) } else { Err(RsaKeyError::NotOdd) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

    fn read(text: &str) -> Result<Vec<TokenJwk>, String> {
        keys(text.as_bytes()).map_err(|fault| format!("{fault:?}"))
    }

    fn rsa(n: &[u8], e: &[u8]) -> String {
        let (n, e) = (URL_SAFE_NO_PAD.encode(n), URL_SAFE_NO_PAD.encode(e));
        format!(r#"{{"kty":"RSA","n":"{n}","e":"{e}"}}"#)
    }

    #[test]
    fn a_set_gives_the_keys_that_verify_and_passes_over_the_others() {
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
        let point = bytes(X).unwrap();
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
    fn what_cannot_be_used_is_refused_with_its_place() {
        for (text, words) in [
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
            let refused = read(&text).unwrap_err();
            assert!(refused.contains(words) && !refused.contains("c2VjcmV0"), "{words}: {refused}");
        }
    }
}
