//! Valid tokens, the examples of the RFCs, and every way in which a token is rejected.

use super::*;
use crate::files::FileError;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use time::Duration;
use time::macros::datetime;

const NOW: OffsetDateTime = datetime!(2026-11-22 12:00 UTC);
const ISSUER: &str = "https://id.example";
const AUDIENCE: &str = "did:a2g:executor:1.0:test";

fn named(issuer: &str, keys: PathBuf) -> IssuerSettings {
    IssuerSettings { issuer: Issuer::parse(issuer).unwrap(), keys, audience: AUDIENCE.to_owned() }
}

/// Issuers with these sets of keys.
fn issuers(sets: &[(&str, Value)]) -> Result<TokenIssuers, String> {
    let folder = tempfile::tempdir().unwrap();
    let settings = sets.iter().enumerate().map(|(nth, (issuer, keys))| {
        let path = folder.path().join(nth.to_string());
        std::fs::write(&path, keys.to_string()).unwrap();
        named(issuer, path)
    });
    TokenIssuers::read(&settings.collect::<Vec<_>>()).map_err(|error| error.to_string())
}

fn pair(nth: u8) -> SigningKey {
    SigningKey::from_bytes(&[nth; 32])
}

fn jwk(pair: &SigningKey, kid: Option<&str>) -> Value {
    let mut jwk = json!({
        "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode(pair.verifying_key().to_bytes()),
    });
    if let Some(kid) = kid {
        jwk["kid"] = kid.into();
    }
    jwk
}

/// The one issuer of most tests, with the keys `one` and `two`.
fn usual() -> TokenIssuers {
    let keys = json!({ "keys": [jwk(&pair(1), Some("one")), jwk(&pair(2), Some("two"))] });
    issuers(&[(ISSUER, keys)]).unwrap()
}

fn header() -> Value {
    json!({ "alg": "EdDSA", "kid": "one" })
}

fn claims() -> Value {
    let exp = (NOW + Duration::minutes(5)).unix_timestamp();
    json!({ "iss": ISSUER, "sub": "anna", "aud": AUDIENCE, "exp": exp })
}

fn signed(pair: &SigningKey, header: &str, claims: &str) -> String {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let signed = format!("{}.{}", part(header), part(claims));
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(pair.sign(signed.as_bytes()).to_bytes()))
}

/// A token of these, signed by the pair of this number.
fn token(nth: u8, header: &Value, claims: &Value) -> String {
    signed(&pair(nth), &header.to_string(), &claims.to_string())
}

fn believe(issuers: &TokenIssuers, token: &str) -> Result<JwtSubject, TokenError> {
    assert!(Jwt::looks_like_jwt(token.as_bytes()), "{token}");
    issuers.verify(&Jwt::parse(token.as_bytes())?, NOW).map(|(subject, _)| subject)
}

fn with(mut object: Value, member: &str, value: Value) -> Value {
    object[member] = value;
    object
}

#[test]
fn a_token_says_about_whom_it_is() {
    let token = token(1, &header(), &claims());
    let subject = believe(&usual(), &token).unwrap();
    assert_eq!((subject.issuer.as_str(), &*subject.subject), (ISSUER, "anna"));
    let parsed = Jwt::parse(token.as_bytes()).unwrap();
    assert_eq!(format!("{parsed:?}"), "Jwt(…)", "nothing of it is shown");
    // Members that a reader may ignore, and one audience among others.
    let header = json!({ "alg": "Ed25519", "kid": "two", "typ": "at+jwt", "jku": "https://a.example", "jwk": jwk(&pair(3), None) });
    let claims = with(with(claims(), "aud", json!(["other", AUDIENCE])), "scope", json!("everything"));
    assert!(believe(&usual(), &self::token(2, &header, &claims)).is_ok());
}

/// RFC 7515, appendices A.2 and A.3, and RFC 8037, appendix A.4: keys, and tokens that they have signed.
const EXAMPLES: [(&str, &str); 3] = [
    (
        r#"{"kty":"RSA","e":"AQAB","n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ"}"#,
        "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
    ),
    (
        r#"{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#,
        "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
    ),
    (
        r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#,
        "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
    ),
];

#[test]
fn the_examples_of_the_rfcs_are_signed_by_their_keys_and_no_others() {
    let keys = EXAMPLES.map(|(key, _)| {
        let mut keys = TokenKey::parse_all(key.as_bytes(), Path::new("a")).unwrap();
        (keys.len() == 1).then(|| keys.remove(0)).unwrap()
    });
    for (nth, (_, token)) in EXAMPLES.iter().enumerate() {
        let Jwt { signed, header, payload: _, mut signature } = Jwt::parse(token.as_bytes()).unwrap();
        for (other, key) in keys.iter().enumerate() {
            assert_eq!(key.verifies(signed.as_bytes(), &signature), nth == other, "{nth} by {other}");
            assert_eq!(key.algorithm == header.algorithm, nth == other);
        }
        assert!(!keys[nth].verifies(&signed.as_bytes()[1..], &signature));
        signature[7] ^= 1;
        assert!(!keys[nth].verifies(signed.as_bytes(), &signature));
        assert!(!keys[nth].verifies(signed.as_bytes(), &signature[1..]));
        assert!(!keys[nth].verifies(signed.as_bytes(), &[]));
        assert!(!keys[nth].verifies(signed.as_bytes(), &[0; 64]), "a signature of zeros is nobody's");
    }
    // The claims of RFC 7515 lack mandatory members, which is reported only after the signature was verified.
    let (key, token) = EXAMPLES[0];
    let joe = issuers(&[("joe", serde_json::from_str(key).unwrap())]).unwrap();
    assert!(matches!(believe(&joe, token), Err(TokenError::Claims(why)) if why.contains("`aud` is missing")));
}

#[test]
fn what_is_not_exactly_a_signed_token_is_refused() {
    let issuers = usual();
    let good = token(1, &header(), &claims());
    let (front, signature) = good.rsplit_once('.').unwrap();
    let not_compact = [
        format!("{front}."),
        format!("{front}.{signature}="),
        format!("{front}.{signature} "),
        // The last base64 character of 64 bytes has four bits that must be 0.
        format!("{front}.{}B", &signature[..signature.len() - 1]),
        good.replacen('.', "=.", 1),
    ];
    for token in &not_compact {
        let refused = believe(&issuers, token).unwrap_err();
        assert!(matches!(refused, TokenError::NotCompact | TokenError::Signature), "{token}: {refused}");
    }
    assert_eq!(believe(&issuers, &not_compact[3]), Err(TokenError::NotCompact), "bits are left over");
    assert_eq!(believe(&issuers, &not_compact[0]), Err(TokenError::Signature), "there is none");
    assert_eq!(Jwt::parse(b"eyJ\xff.a.b").unwrap_err(), TokenError::NotCompact);
    let long = format!("{front}.{}", "A".repeat(MAX_TOKEN_BYTES + 1 - front.len() - 1));
    assert_eq!(believe(&issuers, &long), Err(TokenError::TooLong(MAX_TOKEN_BYTES + 1)));
    assert_eq!(believe(&issuers, &long[..MAX_TOKEN_BYTES]).unwrap_err(), TokenError::Signature);
    for other in ["", "a2g_abc", "eyJ", "eyJ.a", "eyJ.a.b.c", "xeyJ.a.b"] {
        assert!(!Jwt::looks_like_jwt(other.as_bytes()), "{other}");
    }
    assert_eq!(believe(&TokenIssuers::default(), &good), Err(TokenError::NoIssuer));
}

#[test]
fn the_key_is_the_one_that_is_named() {
    let issuers = usual();
    let by = |nth, header: Value| believe(&issuers, &token(nth, &header, &claims()));
    assert!(by(2, with(header(), "kid", json!("two"))).is_ok());
    assert_eq!(by(2, header()), Err(TokenError::Signature));
    let unknown = TokenError::UnknownKey { key: "three".to_owned(), algorithm: "EdDSA" };
    assert_eq!(by(1, with(header(), "kid", json!("three"))), Err(unknown));
    // The key exists, for another algorithm.
    let other = TokenError::UnknownKey { key: "one".to_owned(), algorithm: "RS256" };
    assert_eq!(by(1, with(header(), "alg", json!("RS256"))), Err(other));
    assert_eq!(by(1, json!({ "alg": "EdDSA" })), Err(TokenError::NoKeyNamed("EdDSA")));
    for alg in ["none", "HS256", "ES384", "eddsa"] {
        assert!(matches!(by(1, with(header(), "alg", json!(alg))), Err(TokenError::Header(_))), "{alg}");
    }
    assert!(matches!(by(1, with(header(), "crit", json!(["exp"]))), Err(TokenError::Header(_))));
}

#[test]
fn a_key_need_not_be_named_where_only_one_fits() {
    let rsa: Value = serde_json::from_str(EXAMPLES[0].0).unwrap();
    let set = json!({ "keys": [rsa, jwk(&pair(1), None)] });
    let token = signed(&pair(1), r#"{"alg":"EdDSA"}"#, &claims().to_string());
    assert!(believe(&issuers(&[(ISSUER, set)]).unwrap(), &token).is_ok());
    // Another issuer's keys change nothing.
    let other = json!({ "keys": [jwk(&pair(3), Some("a")), jwk(&pair(4), Some("b"))] });
    let both = issuers(&[("https://other.example", other), (ISSUER, jwk(&pair(1), Some("one")))]).unwrap();
    assert!(believe(&both, &token).is_ok());
    // An unknown `kid` is not ignored.
    let token = self::token(1, &header(), &claims());
    assert!(believe(&issuers(&[(ISSUER, jwk(&pair(1), None))]).unwrap(), &token).is_err());
}

#[test]
fn a_key_speaks_for_its_own_issuer_only() {
    let both = issuers(&[
        (ISSUER, jwk(&pair(1), Some("one"))),
        ("https://other.example", jwk(&pair(2), Some("one"))),
        ("https://tenant.example", jwk(&pair(1), Some("one"))),
    ]);
    let both = both.unwrap();
    let of =
        |nth, issuer: &str| believe(&both, &token(nth, &header(), &with(claims(), "iss", json!(issuer))));
    // The last of them shares a key with the first.
    for (nth, issuer) in [(1, ISSUER), (2, "https://other.example"), (1, "https://tenant.example")] {
        assert_eq!(of(nth, issuer).unwrap().issuer.as_str(), issuer);
    }
    for (nth, issuer) in
        [(2, ISSUER), (1, "https://other.example"), (1, "https://id.example/"), (1, "HTTPS://id.example")]
    {
        let other = TokenError::OtherIssuer(Issuer::parse(issuer).unwrap());
        assert_eq!(of(nth, issuer), Err(other));
    }
}

#[test]
fn claims_hold_for_one_audience_and_one_time() {
    let issuers = usual();
    let of =
        |member: &str, value: Value| believe(&issuers, &token(1, &header(), &with(claims(), member, value)));
    let at = |seconds: i64| json!(NOW.unix_timestamp() + seconds);
    let moment = |seconds| NOW + Duration::seconds(seconds);
    for audience in [json!("other"), json!([]), json!(["other"]), json!(""), json!(format!("{AUDIENCE}x"))] {
        assert_eq!(of("aud", audience), Err(TokenError::OtherAudience(AUDIENCE.to_owned())));
    }
    assert!(of("exp", at(1)).is_ok());
    assert_eq!(of("exp", at(0)), Err(TokenError::Expired(moment(0))), "there is no leeway at the end");
    assert_eq!(of("exp", at(-1)), Err(TokenError::Expired(moment(-1))));
    for early in ["nbf", "iat"] {
        assert!(of(early, at(30)).is_ok(), "clocks may be apart");
        assert_eq!(of(early, at(31)), Err(TokenError::TooEarly(moment(31))), "{early}");
    }
    assert!(matches!(of("sub", json!(1)), Err(TokenError::Claims(_))));
    let twice = claims().to_string().replacen('{', r#"{"sub":"root","#, 1);
    let token = signed(&pair(1), &header().to_string(), &twice);
    assert!(
        matches!(believe(&issuers, &token), Err(TokenError::Claims(why)) if why.contains("duplicate key"))
    );
}

#[test]
fn a_file_of_keys_is_used_as_a_whole_or_not_at_all() {
    let small_order = json!({ "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode([0; 32]) });
    let private = with(jwk(&pair(1), None), "d", json!(URL_SAFE_NO_PAD.encode([1; 32])));
    for (keys, words) in [
        (
            json!({ "kty": "EC", "crv": "P-384", "x": "AA", "y": "AA" }),
            "it contains no key that verifies tokens",
        ),
        (small_order, "not a usable"),
        (json!({ "keys": [jwk(&pair(2), None), private] }), "at /keys/1/d"),
    ] {
        let error = issuers(&[(ISSUER, keys)]).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(usual().key_count(), 2);
}

#[test]
fn a_file_of_keys_that_others_may_change_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    std::fs::write(&path, jwk(&pair(1), None).to_string()).unwrap();
    let read = || TokenIssuers::read(&[named(ISSUER, path.clone())]);
    assert_eq!(read().unwrap().key_count(), 1);
    // In a folder that others may change, another file could be put there.
    for (of, wide, right) in [(&*path, 0o664, 0o644), (folder.path(), 0o777, 0o700)] {
        let set = |mode| std::fs::set_permissions(of, std::fs::Permissions::from_mode(mode)).unwrap();
        set(wide);
        assert!(matches!(read(), Err(KeyError::File(FileError::NotPrivate { .. }))), "{}", of.display());
        set(right);
        assert!(read().is_ok());
    }
    std::fs::write(&path, vec![b' '; usize::try_from(MAX_KEY_SET_BYTES).unwrap() + 1]).unwrap();
    assert!(matches!(read(), Err(KeyError::File(FileError::NotSmall(..)))));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(read(), Err(KeyError::File(FileError::Io { .. }))));
}
