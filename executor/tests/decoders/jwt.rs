//! Tokens of callers.

use super::{Members, NOW, apply_changes, compact, now};
use a2g_govern::{Callers, Credential, IssuerSettings, TokenIssuers};
use a2g_types::ident::Issuer;
use a2g_wire::{jwks, jwt};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::SigningKey;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, LazyLock};

const ISSUER: &str = "https://id.example";
const AUDIENCE: &str = "did:a2g:executor:1.0:fuzz";
const SUBJECT: &str = "anna";
const KEY: &str = "fuzz";
const MAX_BYTES: usize = 8 << 10;

struct Known {
    key: SigningKey,
    callers: Callers,
    good: String,
}

fn good_header() -> Value {
    json!({ "alg": "EdDSA", "kid": KEY })
}

fn good_claims() -> Value {
    json!({ "iss": ISSUER, "sub": SUBJECT, "aud": AUDIENCE, "iat": NOW, "exp": NOW + 300 })
}

static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    let key = SigningKey::from_bytes(&[9; 32]);
    let jwk = |key: &SigningKey, kid: &str| {
        let x = URL_SAFE_NO_PAD.encode(key.verifying_key().to_bytes());
        json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": kid })
    };
    let keys = json!({ "keys": [jwk(&key, KEY), jwk(&SigningKey::from_bytes(&[8; 32]), "other")] });
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("jwks.json");
    let list = folder.path().join("callers.toml");
    std::fs::write(&set, keys.to_string()).unwrap();
    let jwt = format!("{{ issuer = {ISSUER:?}, subject = {SUBJECT:?} }}");
    std::fs::write(&list, format!("[[caller]]\nname = \"anna\"\nroles = [\"approver\"]\njwt = {jwt}\n"))
        .unwrap();
    for file in [&set, &list] {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let issuer =
        IssuerSettings { issuer: Issuer::parse(ISSUER).unwrap(), keys: set, audience: AUDIENCE.to_owned() };
    let callers = Callers::read(&list, TokenIssuers::read(&[issuer]).unwrap()).unwrap();
    let good = compact(&key, good_header().to_string().as_bytes(), good_claims().to_string().as_bytes());
    Known { key, callers, good }
});

fn is_taken(token: &[u8]) -> bool {
    let shown = Credential::new(Some(token), Arc::default());
    KNOWN.callers.identify(&shown, now()).is_ok()
}

/// The first byte says what the others are: a whole token; changes to the good one; the claims of one that a
/// known key signs; its header; or a set of keys. Only the good one is taken, and what the key has signed that
/// says what has to be said.
pub(crate) fn jwt(body: &[u8]) {
    let Known { key, good, .. } = &*KNOWN;
    let Some((kind, rest)) = body.split_first() else { return };
    match kind % 5 {
        0 => assert_eq!(is_taken(rest), rest == good.as_bytes()),
        1 => {
            let text = apply_changes(good.as_bytes(), rest);
            assert_eq!(is_taken(&text), text == good.as_bytes(), "{}", String::from_utf8_lossy(&text));
        }
        2 => {
            let text = compact(key, good_header().to_string().as_bytes(), rest);
            assert!(!is_taken(text.as_bytes()) || says_enough(rest), "{text}");
            assert!(text.len() <= MAX_BYTES || !is_taken(text.as_bytes()), "{text}");
            let _read = jwt::decode_claims(rest);
        }
        3 => {
            let text = compact(key, rest, good_claims().to_string().as_bytes());
            assert!(!is_taken(text.as_bytes()) || names_the_key(rest), "{text}");
            let _read = jwt::decode_header(rest);
        }
        _ => keys(rest),
    }
}

/// The members that are looked at: others may be numbers that no `Value` holds.
fn members(text: &[u8], names: &[&str]) -> Value {
    let all = serde_json::from_slice::<Members<'_>>(text).unwrap().0;
    let known = all.into_iter().filter(|(name, _)| names.contains(&name.as_str()));
    known.map(|(name, value)| (name, serde_json::from_str::<Value>(value.get()).unwrap())).collect()
}

fn says_enough(payload: &[u8]) -> bool {
    let said = members(payload, &["iss", "sub", "aud", "exp", "iat", "nbf"]);
    let second = |name: &str| said.get(name).map_or(i64::MIN, |second| second.as_i64().unwrap());
    let is_for_us = match &said["aud"] {
        Value::Array(all) => all.iter().any(|one| one == AUDIENCE),
        one => one == AUDIENCE,
    };
    said["iss"] == ISSUER
        && said["sub"] == SUBJECT
        && is_for_us
        && second("exp") > NOW
        && second("iat").max(second("nbf")) <= NOW + 30
}

fn names_the_key(header: &[u8]) -> bool {
    let said = members(header, &["alg", "kid", "typ", "crit"]);
    let typed =
        said.get("typ").is_none_or(|typ| ["JWT", "at+jwt", "application/at+jwt"].iter().any(|t| typ == t));
    said["kid"] == KEY
        && (said["alg"] == "EdDSA" || said["alg"] == "Ed25519")
        && typed
        && said.get("crit").is_none()
}

/// A key is as large as its algorithm says, and no private one is among them.
fn keys(text: &[u8]) {
    let Ok(keys) = jwks::decode_keys(text) else { return };
    let Ok(said) = serde_json::from_slice::<Value>(text) else { return };
    let all = match &said["keys"] {
        Value::Array(keys) => keys.clone(),
        _ => vec![said.clone()],
    };
    assert!(keys.len() <= all.len());
    assert!(all.iter().all(|key| key.get("d").is_none() && key.get("k").is_none()), "{said}");
    for jwks::TokenJwk { kid, key } in keys {
        assert!(kid.is_none_or(|kid| all.iter().any(|said| said["kid"] == *kid)));
        if let jwks::PublicKey::Rsa { n, e } = key {
            assert!((256..=1024).contains(&n.len()) && n[0] != 0 && n[n.len() - 1] % 2 == 1);
            assert!((1..=4).contains(&e.len()) && e[0] != 0 && e[e.len() - 1] % 2 == 1);
        }
    }
}

/// That there is something to be told apart from.
pub(crate) fn the_good_token_is_taken() {
    assert!(is_taken(KNOWN.good.as_bytes()));
    assert!(says_enough(good_claims().to_string().as_bytes()));
    assert!(names_the_key(good_header().to_string().as_bytes()));
}
