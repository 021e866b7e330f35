//! Keys against external test vectors, and the protection of their files.

use super::*;
use crate::vectors;
use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

fn issuer() -> Issuer {
    Issuer::parse("did:a2g:governor:1.0:test").unwrap()
}

fn hex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn signatures_are_told_apart_as_wycheproof_says() {
    let Some(folder) = vectors::folder("ed25519") else { return };
    let text = std::fs::read(folder.join("wycheproof_ed25519.json")).unwrap();
    let suite: Value = serde_json::from_slice(&text).unwrap();
    let mut seen = 0;
    for group in suite["testGroups"].as_array().unwrap() {
        let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode(hex(&group["publicKey"]["pk"])) });
        let key =
            TrustedKey::parse(jwk.to_string().as_bytes(), Some(issuer()), Path::new("a vector")).unwrap();
        for case in group["tests"].as_array().unwrap() {
            let verified = key.verify(&hex(&case["msg"]), &hex(&case["sig"]));
            assert_eq!(verified, case["result"] == "valid", "{case}");
            seen += 1;
        }
    }
    assert_eq!(suite["numberOfTests"], seen);
}

/// RFC 8037, appendix A: the key, its thumbprint, and a signature.
const D: &str = "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A";
const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
const THUMBPRINT: &str = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k";
const SIGNED: &str = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
const SIGNATURE: &str =
    "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";

#[test]
fn the_key_of_the_rfc() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rfc.jwk");
    let text = json!({ "kty": "OKP", "crv": "Ed25519", "d": D, "x": X, "iss": "https://governor.example" });
    create(&path, &text.to_string(), 0o600).unwrap();
    let pair = KeyPair::read(&path).unwrap();
    assert_eq!(pair.public().id(), THUMBPRINT);
    assert_eq!(URL_SAFE_NO_PAD.encode(pair.sign(SIGNED.as_bytes())), SIGNATURE);
    assert!(pair.public().verify(SIGNED.as_bytes(), &URL_SAFE_NO_PAD.decode(SIGNATURE).unwrap()));
    assert!(!format!("{pair:?} {:?}", pair.public()).contains(D));
}

/// A signature by the key of the RFC whose first half is the neutral element: the private key made it, and RFC
/// 8032 permits a verifier to accept it. The strict rules reject it.
#[test]
fn a_signature_with_a_point_of_small_order_is_refused() {
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": X });
    let key = TrustedKey::parse(jwk.to_string().as_bytes(), Some(issuer()), Path::new("the RFC")).unwrap();
    let signature = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAMhx6LRvTAJCrbpKvlosYynhIyg_5s5zxLywDregXzCA";
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    let parsed = Signature::from_slice(&signature).unwrap();
    assert!(ed25519_dalek::Verifier::verify(&key.key, b"any message", &parsed).is_ok());
    assert!(!key.verify(b"any message", &signature));
}

#[test]
fn a_key_pair_is_its_owners_alone_and_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("governor.jwk");
    let made = KeyPair::create(&path, issuer()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(KeyPair::read(&path).unwrap().public(), made.public());
    let before = std::fs::read(&path).unwrap();
    assert!(KeyPair::create(&path, issuer()).unwrap_err().to_string().contains("exists already"));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    for mode in [0o640, 0o604, 0o660, 0o644] {
        set_mode(&path, mode);
        assert!(KeyPair::read(&path).unwrap_err().to_string().contains("chmod 600"), "{mode:o}");
    }
    set_mode(&path, 0o400);
    assert!(KeyPair::read(&path).is_ok());
    // The private half must belong to the public one, and no message repeats it.
    set_mode(&path, 0o600);
    let text = json!({ "kty": "OKP", "crv": "Ed25519", "d": D, "x": made.public().to_jwk(), "iss": "i" });
    std::fs::write(&path, text.to_string()).unwrap();
    let error = KeyPair::read(&path).unwrap_err();
    assert!(!format!("{error} {error:?}").contains(D), "{error}");
}

#[test]
fn a_folder_of_keys_is_read_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let trusted = folder.path().join("trusted");
    let pair = KeyPair::create(&folder.path().join("governor.jwk"), issuer()).unwrap();
    let file = TrustedKeys::add(&trusted, pair.public()).unwrap();
    let keys = TrustedKeys::read(&trusted).unwrap();
    assert_eq!(keys.iter().collect::<Vec<_>>(), [pair.public()]);
    assert_eq!(keys.get(pair.public().id()), Some(pair.public()));
    // Adding the key again changes nothing.
    assert_eq!(TrustedKeys::add(&trusted, pair.public()).unwrap(), file);
    let text = pair.public().to_jwk();
    let for_another = Issuer::parse("did:a2g:governor:1.0:another").unwrap();
    let for_another = TrustedKey::parse(text.as_bytes(), Some(for_another), Path::new("k")).unwrap();
    assert!(matches!(TrustedKeys::add(&trusted, &for_another), Err(KeyError::Duplicate { .. })));

    for (of, wide, right) in [(&file, 0o666, 0o644), (&trusted, 0o777, 0o755)] {
        set_mode(of, wide);
        assert!(matches!(TrustedKeys::read(&trusted), Err(KeyError::File(FileError::NotPrivate { .. }))));
        set_mode(of, right);
    }
    std::fs::write(trusted.join("other.jwk"), pair.public().to_jwk()).unwrap();
    assert!(matches!(TrustedKeys::read(&trusted), Err(KeyError::Duplicate { .. })));
    std::fs::copy(folder.path().join("governor.jwk"), trusted.join("other.jwk")).unwrap();
    assert!(TrustedKeys::read(&trusted).unwrap_err().to_string().contains("private key"));
    std::fs::write(trusted.join("other.jwk"), "{}").unwrap();
    assert!(TrustedKeys::read(&trusted).unwrap_err().to_string().contains("`kty` is missing"));
}

#[test]
fn only_ed25519_keys_that_say_something_are_keys() {
    // The neutral element, under which a signature of zeros verifies for any message.
    let weak = URL_SAFE_NO_PAD.encode([[1].as_slice(), &[0; 31]].concat());
    let cases = [
        (json!({ "kty": "RSA", "crv": "Ed25519", "x": X }), "`kty`"),
        (json!({ "kty": "OKP", "crv": "X25519", "x": X }), "`crv`"),
        (json!({ "kty": "OKP", "crv": "Ed25519", "x": X, "alg": "HS256" }), "`alg`"),
        (json!({ "kty": "OKP", "crv": "Ed25519", "x": X, "use": "enc" }), "`use`"),
        (json!({ "kty": "OKP", "crv": "Ed25519", "x": format!("{X}=") }), "`x`"),
        (json!({ "kty": "OKP", "crv": "Ed25519", "x": &X[1..] }), "`x`"),
        (json!({ "kty": "OKP", "crv": "Ed25519", "x": weak }), "`x`"),
        (json!({ "kty": "OKP", "crv": "Ed25519", "x": X, "kid": "a b" }), "`kid`"),
    ];
    for (jwk, words) in cases {
        let error =
            TrustedKey::parse(jwk.to_string().as_bytes(), Some(issuer()), Path::new("k")).unwrap_err();
        assert!(error.to_string().contains(words), "{jwk}: {error}");
    }
    let nobody = json!({ "kty": "OKP", "crv": "Ed25519", "x": X });
    let error = TrustedKey::parse(nobody.to_string().as_bytes(), None, Path::new("k")).unwrap_err();
    assert!(error.to_string().contains("--issuer"), "{error}");
}
