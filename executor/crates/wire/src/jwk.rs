//! Ed25519 keys as JSON Web Keys (RFC 7517, RFC 8037). Other kinds are rejected.
//!
//! `iss` is an extension by this project: the issuer whose proofs the key verifies.

use super::field::Object;
use super::strict_json::{self, JsonBounds};
use super::to_raw;
use a2g_types::fault::Fault;
use a2g_types::ident::Issuer;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde_json::value::RawValue;
use zeroize::Zeroizing;

/// An Ed25519 public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicJwk {
    /// The 32-byte encoding of RFC 8032.
    pub x: [u8; 32],
    /// The id that the key's owner chose, if any.
    pub kid: Option<String>,
    /// The issuer whose proofs the key verifies.
    pub issuer: Option<Issuer>,
}

/// Reads a public key and ignores members that do not describe it.
///
/// # Errors
/// [`Fault::InvalidParams`] for another kind of key and for a private key, which must not be stored among
/// public ones; [`Fault::Parse`] for text that is not JSON.
pub fn decode_public(text: &[u8]) -> Result<PublicJwk, Fault> {
    let mut object = Object::parse(strict_json::check(text, &JsonBounds::default())?)?;
    if object.take("d")?.is_some() {
        return Err(Fault::invalid(
            "/d",
            "this is a private key: take its public part with `key show --json`",
        ));
    }
    decode_public_part(&mut object)
}

/// Reads a key pair: the public key, and the 32 bytes of the private one.
///
/// # Errors
/// As [`decode_public`], except that the private part is required. No message repeats any of the input.
pub fn decode_private(text: &[u8]) -> Result<(PublicJwk, Zeroizing<[u8; 32]>), Fault> {
    let unreadable = || Fault::invalid("", "this is not a key pair from `key new`");
    let read = || {
        let mut object = Object::parse(strict_json::check(text, &JsonBounds::default()).ok()?).ok()?;
        let d = Zeroizing::new(object.read::<String>("d").ok()?);
        Some((decode_public_part(&mut object).ok()?, Zeroizing::new(decode_key_bytes(&d)?)))
    };
    read().ok_or_else(unreadable)
}

fn decode_public_part(object: &mut Object<'_>) -> Result<PublicJwk, Fault> {
    object.require("kty")?.enum_value(&[("OKP", ())])?;
    object.require("crv")?.enum_value(&[("Ed25519", ())])?;
    object.read_optional_with("alg", |field| field.enum_value(&[("EdDSA", ()), ("Ed25519", ())]))?;
    object.read_optional_with("use", |field| field.enum_value(&[("sig", ())]))?;
    let parse_x = |text: &str| decode_key_bytes(text).ok_or("must be 32 bytes in base64url");
    Ok(PublicJwk {
        x: object.require("x")?.parse_with(parse_x)?,
        kid: object.read_optional_with("kid", |field| field.parse_with(parse_key_id))?,
        issuer: object.read_optional("iss")?,
    })
}

pub(super) fn parse_key_id(text: &str) -> Result<String, &'static str> {
    let is_valid = (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    if is_valid {
        Ok(text.to_owned())
    } else {
        Err("must be 1 to 128 printable ASCII characters, without spaces")
    }
}

pub(super) fn decode_key_bytes(text: &str) -> Option<[u8; 32]> {
    URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()
}

#[derive(Serialize)]
struct JwkMembers<'a> {
    kty: &'static str,
    crv: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<&'a str>,
    x: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    d: Option<&'a str>,
}

/// The JWK of a public key.
#[must_use]
pub fn encode_public(key: &PublicJwk) -> Box<RawValue> {
    let x = URL_SAFE_NO_PAD.encode(key.x);
    to_raw(&members(key, &x, None))
}

/// The JWK of a key pair. The text is a secret.
#[must_use]
pub fn encode_private(key: &PublicJwk, private: &[u8; 32]) -> Zeroizing<String> {
    let x = URL_SAFE_NO_PAD.encode(key.x);
    let d = Zeroizing::new(URL_SAFE_NO_PAD.encode(private));
    Zeroizing::new(Box::<str>::from(to_raw(&members(key, &x, Some(&d)))).into_string())
}

fn members<'a>(key: &'a PublicJwk, x: &'a str, d: Option<&'a str>) -> JwkMembers<'a> {
    let PublicJwk { x: _, kid, issuer } = key;
    JwkMembers {
        kty: "OKP",
        crv: "Ed25519",
        kid: kid.as_deref(),
        iss: issuer.as_ref().map(Issuer::as_str),
        x,
        d,
    }
}

/// The text that RFC 7638 hashes for the thumbprint of a key.
#[must_use]
pub fn thumbprint_input(x: &[u8; 32]) -> String {
    format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{}"}}"#, URL_SAFE_NO_PAD.encode(x))
}

/// The input of the thumbprint (RFC 7638) of a key on P-256.
#[must_use]
pub fn thumbprint_input_p256(x: &[u8; 32], y: &[u8; 32]) -> String {
    let [x, y] = [x, y].map(|coordinate| URL_SAFE_NO_PAD.encode(coordinate));
    format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#)
}
